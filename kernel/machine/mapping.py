"""Which lane owns which elements of C and reads which of A and B, from a run with numbered elements.

Every element of A and B holds its own number instead of a value. Moves, copies and swizzles keep the
number, so what a lane loads says which element it is, whatever way it took through shared memory.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from kernel.build import artifact
from kernel.contract import ITEMSIZE, Kernel, Problem
from kernel.errors import UsageError
from kernel.machine.execute import program
from kernel.machine.gemm import simulate
from kernel.machine.lower import SHARED, opcodes
from kernel.machine.shape import Checks
from kernel.mapping import LANES, Cells, LaneMap, of_instruction, shared_layout
from kernel.plan import plan

TRACE_LIMIT = 4_000_000
TAG_A, TAG_B = 0x10000000, 0x20000000
"""Added to an element's number in FP32; in FP16 the sign tells B from A."""
TAG_MASK = 0x0FFFFFFF
KINDS = ("transposed", "row-wise")


def tile_problem(kernel: Kernel) -> Problem:
    """One block tile, one k tile deep."""
    tile = kernel.tile
    if not (tile.BLOCK_M and tile.BLOCK_N):
        raise UsageError(f"{kernel.name} states no block tile, so there is no map of one")
    return Problem(
        m=tile.BLOCK_M,
        n=tile.BLOCK_N,
        k=tile.BLOCK_K or 8,
        dtype_in=kernel.dtype_in,
        dtype_acc=kernel.dtype_acc,
        dtype_out=kernel.dtype_out,
        layout=kernel.layouts[0],
    )


def _numbered(rows: int, columns: int, dtype: str, tag: int) -> npt.NDArray[np.generic]:
    numbers = np.arange(rows * columns, dtype=np.uint32).reshape(rows, columns)
    if dtype == "float16":
        if rows * columns >= 0x7C00:
            raise UsageError(f"a tile of {rows} x {columns} halves has more elements than half-precision numbers")
        halves: npt.NDArray[np.generic] = (numbers + 1 + (0x8000 if tag == TAG_B else 0)).astype(np.uint16)
        return halves.view(np.float16)
    words: npt.NDArray[np.generic] = numbers + np.uint32(tag)
    return words.view(np.float32)


class _Elements:
    """Loaded words to elements of A (m, k) and B (k, n)."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.size = ITEMSIZE[problem.dtype_in]

    def of(self, words: npt.NDArray[np.uint32], size: int) -> list[tuple[str, int, int]]:
        """(operand, row, column) of every element in ``size`` loaded bytes; empty for anything else."""
        found = []
        values = words.view(np.uint16 if self.size == 2 else np.uint32)[: size // self.size]
        for value in values.tolist():
            if self.size == 2:
                operand, number = ("b" if value & 0x8000 else "a"), (value & 0x7FFF) - 1
            else:
                operand = {TAG_A: "a", TAG_B: "b"}.get(value & ~TAG_MASK, "")
                number = value & TAG_MASK
            columns = self.problem.k if operand == "a" else self.problem.n
            rows = self.problem.m if operand == "a" else self.problem.k
            if operand and 0 <= number < rows * columns:
                found.append((operand, number // columns, number % columns))
        return found


def lane_map(kernel: Kernel, problem: Problem | None = None) -> LaneMap:
    """The map of warp 0 of block 0, from executed addresses; ``problem`` is one block tile unless given.

    Lanes of kernels that multiply in FP32 own the C elements whose row of A and column of B they load for
    the same k. Kernels with matrix instructions own what they store, or what their instruction defines
    where C takes a way through shared memory.

    Raises:
        UsageError: the tile is unknown or too large to number; MachineFault: the kernel cannot be run.
    """
    problem = problem or tile_problem(kernel)
    a = _numbered(problem.m, problem.k, problem.dtype_in, TAG_A)
    b = _numbered(problem.k, problem.n, problem.dtype_in, TAG_B)
    checks = Checks(races=False, initialised=False, counting=False)
    outcome = simulate(kernel, problem, a, b, checks=checks, blocks=[0], keep_going=True, trace=TRACE_LIMIT)
    planned = plan(kernel, problem)
    assert planned.main is not None
    launch, report = planned.launches[planned.main], outcome.reports[planned.main]
    assert report.trace is not None
    code = program(artifact(launch.unit).ptx, launch.entry)
    trace = report.trace[report.trace["thread"] < LANES]
    kinds = code.code["op"][trace["ins"]]
    in_shared = code.code["space"][trace["ins"]] == SHARED
    loads = opcodes()["ld"], opcodes()["ldmatrix"]
    is_load = (kinds == loads[0]) | (kinds == loads[1])
    elements = _Elements(problem)
    staged = bool(np.any(is_load & in_shared))
    reads: dict[str, dict[int, list[Cells]]] = {"a": defaultdict(list), "b": defaultdict(list)}
    words: dict[str, dict[tuple[int, int], int]] = {"a": {}, "b": {}}
    by_k: dict[int, dict[str, dict[int, set[int]]]] = {
        lane: {"a": defaultdict(set), "b": defaultdict(set)} for lane in range(LANES)
    }
    for record in trace[is_load & (in_shared if staged else True)]:
        lane = int(record["thread"])
        seen = elements.of(record["value"], min(int(record["size"]), 16))
        if not seen:
            continue
        operand = seen[0][0]
        reads[operand][lane].append(tuple((row, column) for _, row, column in seen))
        for i, (which, row, column) in enumerate(seen):
            if which == "a":
                by_k[lane]["a"][column].add(row)
            else:
                by_k[lane]["b"][row].add(column)
            if staged and elements.size == 4:
                words[which].setdefault((row, column), int(record["address"]) // 4 + i)
    owns: dict[int, set[tuple[int, int]]] = defaultdict(set)
    if kernel.instruction == "ffma":
        for lane, sides in by_k.items():
            for k, rows in sides["a"].items():
                owns[lane].update((row, column) for row in rows for column in sides["b"].get(k, ()))
    else:
        owns = _stored(trace[(kinds == opcodes()["st"]) & ~in_shared], problem, outcome.address_c)
        if not owns:
            return of_instruction(kernel.name, kernel.instruction)
    return LaneMap(
        name=kernel.name,
        warp=0,
        owns={lane: tuple(sorted(cells)) for lane, cells in sorted(owns.items())},
        reads_a=_tupled(reads["a"]),
        reads_b=_tupled(reads["b"]),
        a_layout=shared_layout(words["a"], "m", "k", KINDS) if words["a"] else "",
        b_layout=shared_layout(words["b"], "k", "n", KINDS) if words["b"] else "",
        source="executed PTX",
    )


def _tupled(reads: dict[int, list[Cells]]) -> dict[int, tuple[Cells, ...]]:
    return {lane: tuple(loads) for lane, loads in sorted(reads.items())}


def _stored(stores: npt.NDArray[np.void], problem: Problem, base: int) -> dict[int, set[tuple[int, int]]]:
    size = ITEMSIZE[problem.dtype_out]
    owns: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for record in stores:
        first = (int(record["address"]) - base) // size
        for element in range(first, first + int(record["size"]) // size):
            owns[int(record["thread"])].add(divmod(element, problem.ldc))
    return owns
