"""Which lane of a warp owns which elements of C and reads which of A and B, as a record, as text and as SVG.

A :class:`LaneMap` comes from a run of the kernel's address arithmetic (:mod:`kernel.lanes`), from the
definition of a matrix instruction, or from hand. Coordinates are (row, column) in the block tile.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

from kernel.contract import ITEMSIZE, Problem
from kernel.lanes import NO_ORIGIN, Access, Bools, Ints, Run

LANES = 32
Cells = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class LaneMap:
    """One warp of a kernel."""

    name: str
    warp: int
    owns: Mapping[int, Cells]
    """Lane to its elements of C, (m, n), in row-major order."""
    reads_a: Mapping[int, tuple[Cells, ...]] = field(default_factory=dict)
    """Lane to what each of its first shared loads of A brings, (m, k) per load."""
    reads_b: Mapping[int, tuple[Cells, ...]] = field(default_factory=dict)
    """Lane to what each of its first shared loads of B brings, (k, n) per load."""
    a_layout: str = ""
    """How A lies in shared memory, in words: row-wise or transposed, pitch, swizzled; empty where not seen."""
    b_layout: str = ""
    source: str = "executed SASS"

    def groups(self, lane: int, axis: int) -> tuple[tuple[int, int], ...]:
        """Runs of consecutive rows (axis 0) or columns (axis 1) that a lane owns, as (first, length)."""
        places = sorted({cell[axis] for cell in self.owns.get(lane, ())})
        runs: list[tuple[int, int]] = []
        for place in places:
            if runs and place == sum(runs[-1]):
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((place, 1))
        return tuple(runs)


def from_run(name: str, run: Run, problem: Problem, addresses: tuple[int, int], block_k: int) -> LaneMap | None:
    """The map of the first warp that multiplies, from a run on ``problem`` with A and B at these addresses.

    None where no FFMA was seen to multiply an element of A by one of B (matrix instructions, TMA).
    """
    decode = _Decoder(problem, *addresses)
    warp = _first_warp(run)
    if warp is None:
        return None
    lanes_of_warp = slice(32 * warp, 32 * warp + LANES)
    owns: dict[int, set[tuple[int, int]]] = {lane: set() for lane in range(LANES)}
    for left, right in run.factors:
        rows, columns, matches = decode.products(left[lanes_of_warp], right[lanes_of_warp])
        for lane in np.flatnonzero(matches):
            owns[int(lane)].add((int(rows[lane]), int(columns[lane])))
    if not any(owns.values()):
        return None
    reads: dict[str, dict[int, list[Cells]]] = {"a": {}, "b": {}}
    words: dict[str, dict[tuple[int, int], int]] = {"a": {}, "b": {}}
    for executions in run.accesses.values():
        first = executions[0]
        if first.instruction.kind != "LDS":
            continue
        assert first.origins is not None
        for execution in executions:
            _collect_words(execution, decode, block_k, words)
        which, rows, columns = decode.elements(first.origins[:, lanes_of_warp])
        for lane in np.flatnonzero(first.active[lanes_of_warp]):
            cells = tuple(
                (int(rows[i, lane]), int(columns[i, lane])) for i in range(len(rows)) if which[i, lane] != NEITHER
            )
            if cells:
                operand = OPERANDS[which[0, lane]]
                reads[operand].setdefault(int(lane), []).append(cells)
    return LaneMap(
        name=name,
        warp=warp,
        owns={lane: tuple(sorted(cells)) for lane, cells in owns.items()},
        reads_a={lane: tuple(loads) for lane, loads in reads["a"].items()},
        reads_b={lane: tuple(loads) for lane, loads in reads["b"].items()},
        a_layout=shared_layout(words["a"], "m", "k", ("transposed", "row-wise")),
        b_layout=shared_layout(words["b"], "k", "n", ("transposed", "row-wise")),
    )


NEITHER = -1
OPERANDS = ("a", "b")


class _Decoder:
    """Global addresses to elements of A and B."""

    def __init__(self, problem: Problem, a: int, b: int) -> None:
        size = ITEMSIZE[problem.dtype_in]
        self.size = size
        self.operands = (
            (a, problem.extent("a"), problem.lda, problem.layout[0] == "r"),
            (b, problem.extent("b"), problem.ldb, problem.layout[1] == "r"),
        )

    def elements(self, addresses: Ints) -> tuple[Ints, Ints, Ints]:
        """(operand, row, column) per address; the operand is NEITHER where the address is in none."""
        which = np.full(addresses.shape, NEITHER, np.int64)
        rows, columns = np.zeros_like(which), np.zeros_like(which)
        for number, (base, extent, pitch, row_major) in enumerate(self.operands):
            offset = (addresses - base) // self.size
            inside = (addresses != NO_ORIGIN) & (offset >= 0) & (offset < extent)
            outer, inner = np.divmod(offset, pitch)
            which[inside] = number
            rows[inside] = (outer if row_major else inner)[inside]
            columns[inside] = (inner if row_major else outer)[inside]
        return which, rows, columns

    def products(self, left: Ints, right: Ints) -> tuple[Ints, Ints, Bools]:
        """(m, n, valid): the C element that each pair of factors contributes to."""
        first, first_row, first_column = self.elements(left)
        second, second_row, second_column = self.elements(right)
        swapped = first == 1
        k_a = np.where(swapped, second_column, first_column)
        k_b = np.where(swapped, first_row, second_row)
        valid = (first != NEITHER) & (second != NEITHER) & (first != second) & (k_a == k_b)
        return np.where(swapped, second_row, first_row), np.where(swapped, first_column, second_column), valid


def _first_warp(run: Run) -> int | None:
    for left, right in run.factors:
        threads = np.flatnonzero((left != NO_ORIGIN) & (right != NO_ORIGIN))
        if len(threads):
            return int(threads[0]) // 32
    return None


def _collect_words(
    access: Access, decode: _Decoder, block_k: int, words: dict[str, dict[tuple[int, int], int]]
) -> None:
    """Note the shared word of every loaded element of the first k tile (later ones lie in other stages)."""
    assert access.origins is not None
    for i, origins in enumerate(access.origins):
        which, rows, columns = decode.elements(origins)
        inner = np.where(which == 0, columns, rows)
        for thread in np.flatnonzero(access.active & (which != NEITHER) & (inner < block_k)):
            place = (int(rows[thread]), int(columns[thread]))
            words[OPERANDS[which[thread]]].setdefault(place, int(access.addresses[thread]) // 4 + i)


def shared_layout(words: Mapping[tuple[int, int], int], first: str, second: str, kinds: tuple[str, str]) -> str:
    """How a matrix lies in shared memory, from the word of each element; ``first`` and ``second`` name its axes.

    ``kinds`` are the words for neighbours along the first and along the second axis being adjacent.
    """
    if len(words) < 3:
        return ""
    cells = np.array([(row, column, 1) for row, column in words], np.float64)
    places = np.array(list(words.values()), np.float64)
    solution = np.rint(np.linalg.lstsq(cells, places, rcond=None)[0])
    if bool(np.all(cells @ solution == places)):
        along_first, along_second = int(solution[0]), int(solution[1])
        if along_second == 1:
            return f"{kinds[1]}, pitch {along_first} words"
        if along_first == 1:
            return f"{kinds[0]}, pitch {along_second} words"
        return f"{along_first} words along {first}, {along_second} along {second}"
    adjacent = [
        sum(
            abs(words.get((row + down, column + across), place + 2) - place) == 1
            for (row, column), place in words.items()
        )
        for down, across in ((1, 0), (0, 1))
    ]
    if max(adjacent) < len(words) // 4:
        return "scattered"
    return f"{kinds[int(adjacent[1] > adjacent[0])]}, swizzled"


MMA_SYNC = "one mma.sync.m16n8k16 accumulator"
WGMMA = "the first 16 columns of one warp's part of a wgmma accumulator"


def of_instruction(name: str, instruction: str) -> LaneMap:
    """The accumulator map that the PTX ISA defines for ``mma_sync`` or ``wgmma``."""
    columns = 8 if instruction == "mma_sync" else 16
    owns = {
        lane: tuple(
            sorted(
                (lane // 4 + down, block + lane % 4 * 2 + across)
                for block in range(0, columns, 8)
                for down in (0, 8)
                for across in (0, 1)
            )
        )
        for lane in range(LANES)
    }
    what = MMA_SYNC if instruction == "mma_sync" else WGMMA
    return LaneMap(name=name, warp=0, owns=owns, source=f"PTX ISA: {what}")


def text(lane_map: LaneMap, lanes: Iterable[int] = (0, 1, 4, 31)) -> str:
    """The map in words and as a grid of lane numbers: one character pair per element of C, every fourth row."""
    lines = [f"{lane_map.name}, warp {lane_map.warp} ({lane_map.source})"]
    if lane_map.reads_a:
        lines.append(f"A in shared memory: {lane_map.a_layout}")
    for lane in lanes:
        rows, columns = (spans(lane_map.groups(lane, axis)) for axis in (0, 1))
        lines.append(f"lane {lane:2d} owns rows {rows} x columns {columns}")
        for operand, loads in (("A", lane_map.reads_a.get(lane, ())), ("B", lane_map.reads_b.get(lane, ()))):
            if loads:
                first = "; ".join(" ".join(f"{operand}[{r},{c}]" for r, c in cells) for cells in loads[:4])
                lines.append(f"        reads {first}{' …' if len(loads) > 4 else ''}")
    owner = {cell: lane for lane, cells in lane_map.owns.items() for cell in cells}
    rows_seen = sorted({row for row, _ in owner})
    columns_seen = sorted({column for _, column in owner})
    step_m, step_n = (4, 4) if len(rows_seen) >= 32 else (1, 1)
    lines.append(f"lane numbers, every {step_m}{'th' if step_m > 1 else 'st'} row and column of C:")
    lines.append("   n " + " ".join(f"{column:3d}" for column in columns_seen[::step_n]))
    for row in rows_seen[::step_m]:
        cells = (owner.get((row, column)) for column in columns_seen[::step_n])
        lines.append(f"{row:4d} " + " ".join("  ." if lane is None else f"{lane:3d}" for lane in cells))
    return "\n".join(lines)


def spans(runs: Sequence[tuple[int, int]]) -> str:
    """Runs as text: 0..3 + 32..35."""
    return " + ".join(f"{first}..{first + length - 1}" if length > 1 else str(first) for first, length in runs)


CELL = 9
"""Pixels of one element of C in the picture."""
MARGIN = 46


def svg(maps: Sequence[LaneMap]) -> str:
    """Maps side by side as an SVG document: C coloured by owner, one lane outlined, A's reads of that lane below."""
    panels, x, height = [], 0, 0
    for lane_map in maps:
        panel, width, tall = _panel(lane_map)
        panels.append(f'<g transform="translate({x},0)">{panel}</g>')
        x += width + 24
        height = max(height, tall)
    style = (
        "text{font-family:sans-serif;font-size:11px;fill:#222}.n{font-size:8px;text-anchor:middle}.t{font-size:14px}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x}" height="{height}" viewBox="0 0 {x} {height}" '
        f'role="img"><title>{escape(", ".join(m.name for m in maps))}: which lane owns which element of C</title>'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(panels)}</svg>\n'
    )


def colour(lane: int) -> str:
    """A distinct pale colour per lane; lanes of one row of the lane grid differ in hue, rows in lightness."""
    red, green, blue = colorsys.hls_to_rgb((lane * 11 % 32) / 32, 0.72 + 0.1 * (lane % 2), 0.65)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _panel(lane_map: LaneMap, marked: int = 5) -> tuple[str, int, int]:
    cells = {cell: lane for lane, owned in lane_map.owns.items() for cell in owned}
    rows = sorted({row for row, _ in cells})
    columns = sorted({column for _, column in cells})
    at_row = {row: MARGIN + i * CELL for i, row in enumerate(rows)}
    at_column = {column: MARGIN + i * CELL for i, column in enumerate(columns)}
    width = max(MARGIN + len(columns) * CELL + 8, 300)
    parts = [
        f'<text class="t" x="{MARGIN}" y="16">{escape(lane_map.name)}</text>',
        f'<text x="{MARGIN}" y="31">C of warp {lane_map.warp}, by lane; lane {marked} outlined</text>',
    ]
    # The marked lane last, so that no neighbour covers its outline.
    for row, column, tall, wide, lane in sorted(_regions(cells, rows, columns), key=lambda region: region[4] == marked):
        x, y = at_column[column], at_row[row]
        edge = ' stroke="#000" stroke-width="2"' if lane == marked else ' stroke="#fff"'
        middle = x + wide * CELL / 2, y + tall * CELL / 2 + 3
        parts.append(
            f'<rect x="{x}" y="{y}" width="{wide * CELL}" height="{tall * CELL}" fill="{colour(lane)}"{edge}/>'
            f'<text class="n" x="{middle[0]:g}" y="{middle[1]:g}">{lane}</text>'
        )
    for row in rows[:: max(len(rows) // 8, 1)]:
        parts.append(f'<text class="n" x="{MARGIN - 12}" y="{at_row[row] + CELL - 1}">{row}</text>')
    for column in columns[:: max(len(columns) // 8, 1)]:
        parts.append(f'<text class="n" x="{at_column[column] + CELL / 2:g}" y="{MARGIN - 4}">{column}</text>')
    y = MARGIN + len(rows) * CELL + 20
    told = f"A in shared memory: {lane_map.a_layout}" if lane_map.a_layout else lane_map.source
    parts.append(f'<text x="{MARGIN}" y="{y}">{escape(told)}</text>')
    strip, y = _strip(lane_map, marked, y + 8, width)
    parts.append(strip)
    return "".join(parts), width, y + 12


def _regions(
    cells: Mapping[tuple[int, int], int], rows: Sequence[int], columns: Sequence[int]
) -> list[tuple[int, int, int, int, int]]:
    """Rectangles of one owner, as (row, column, rows, columns, lane): runs of a row, joined with equal ones below."""
    open_runs: dict[tuple[int, int, int], list[int]] = {}
    done: list[tuple[int, int, int, int, int]] = []
    for i, row in enumerate(rows):
        runs: dict[tuple[int, int, int], list[int]] = {}
        start = 0
        for stop in range(1, len(columns) + 1):
            lane = cells.get((row, columns[start]))
            ends = stop == len(columns) or cells.get((row, columns[stop])) != lane
            if ends or columns[stop] != columns[stop - 1] + 1:
                if lane is not None:
                    key = (columns[start], stop - start, lane)
                    above = open_runs.pop(key, None) if i and row == rows[i - 1] + 1 else None
                    runs[key] = [above[0], above[1] + 1] if above else [row, 1]
                start = stop
        done += [(first, column, tall, wide, lane) for (column, wide, lane), (first, tall) in open_runs.items()]
        open_runs = runs
    return done + [(first, column, tall, wide, lane) for (column, wide, lane), (first, tall) in open_runs.items()]


def _strip(lane_map: LaneMap, marked: int, y: int, width: int) -> tuple[str, int]:
    """What the marked lane's first loads of A bring, a box per element."""
    loads = lane_map.reads_a.get(marked, ())[:8]
    parts = [f'<text x="{MARGIN}" y="{y + 12}">lane {marked} reads, one line a load:</text>'] if loads else []
    y += 18 if loads else 0
    for cells in loads:
        for i, (row, column) in enumerate(cells):
            x = MARGIN + i * 62
            parts.append(
                f'<rect x="{x}" y="{y}" width="60" height="14" fill="{colour(marked)}" stroke="#000" '
                f'stroke-width="0.5"/><text class="n" x="{x + 30}" y="{y + 10}">A[{row},{column}]</text>'
            )
        y += 16
    return "".join(parts), y
