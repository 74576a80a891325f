"""Rows to text: tables per shape and track, the CUTLASS lines, and the two gaps. A pure function of rows.

A row is a mapping with every column of :mod:`compare.rows`, None where nothing was measured. Nothing here
measures, checks, reads a file or asks a device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from compare.console import Head, table_of

if TYPE_CHECKING:
    from rich.table import Table

    from compare.statistics import Mean

Row = Mapping[str, Any]

DEFAULT_INPUT = "uniform"
TRACK_TITLES = {
    "fp32_simt": "FP32 SIMT",
    "tf32_tensor": "TF32 Tensor Core (FP32 in and out)",
    "fp16_tensor": "FP16 Tensor Core",
}
TRACK_ORDER = tuple(TRACK_TITLES)
CUBLAS_TITLES = {"fp32_simt": "cuBLAS SGEMM", "tf32_tensor": "cuBLAS TF32", "fp16_tensor": "cuBLAS FP16"}
FAMILY_ORDER = ("cublas", "torch", "handwritten", "cutlass", "cute_dsl")
OUTPUT_TITLES = {"float32": "FP32", "float16": "FP16"}
IDENTITY = ("name", "variant", "m", "n", "k", "layout", "dtype_in", "dtype_acc", "dtype_out", "input")
"""Columns that say what was run; window and L2 state only say how it was timed."""

DISPATCHER_SUFFIX = "_dispatch"
"""How the names of dispatchers end; what they pick stands in ``variant``."""
HINTED = "_hint"
"""Ends the name of a kernel whose build has an entry name that makes ptxas keep the order of the FFMAs."""
CROWD = 3
"""From so many kernels of one number on, the ladder shows the fastest."""
WINDOWS = ("sustained", "burst")

BURST_MARK = "†"
UNSTABLE_MARK = "~"


class Shape(NamedTuple):
    """Extents of one problem; printed as MxNxK."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


def shape_of(row: Row) -> Shape:
    return Shape(row["m"], row["n"], row["k"])


def is_timed(row: Row) -> bool:
    """Whether the row may enter a ratio: checked, passed, and timed."""
    return row["ok"] is True and row["time_us"] is not None and row["tflops"] is not None


def headline(rows: Iterable[Row]) -> list[Row]:
    """One row for everything that was run: sustained, or burst where that was not measured; warm, default input.

    Skipped and failed contenders stay, without a time.
    """
    chosen: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["input"] not in (DEFAULT_INPUT, None) or row["l2"] == "cold":
            continue
        key = tuple(row[name] for name in IDENTITY)
        if key not in chosen or _rank(row) > _rank(chosen[key]):
            chosen[key] = row
    return sorted(chosen.values(), key=lambda row: FAMILY_ORDER.index(row["family"]))


def _rank(row: Row) -> tuple[bool, bool]:
    return is_timed(row), row["window"] == "sustained"


def shapes_in(rows: Iterable[Row]) -> list[Shape]:
    """Shapes in the order in which they first appear."""
    return list(dict.fromkeys(shape_of(row) for row in rows))


class Field(NamedTuple):
    """One printed column: heading, and the text of a row's cell."""

    head: Head
    cell: Callable[[Row], str]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def form_of(row: Row) -> str:
    """Layout and, where it is not the type that was read, the type that is written: ``rc``, ``rr, FP32 out``."""
    written = row["dtype_out"]
    other = written not in (None, row["dtype_in"])
    return f"{row['layout']}, {OUTPUT_TITLES.get(written, written)} out" if other else str(row["layout"])


def plain(rows: Sequence[Row]) -> list[Row]:
    """Rows of layout rr that write the type they read, where there are any, else all: a kernel is shown once."""
    return [row for row in rows if form_of(row) == "rr"] or list(rows)


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


def _ratio(row: Row) -> str:
    if not is_timed(row) or row["x_cublas"] is None:
        return ""
    text = f"{row['x_cublas']:.3f}"
    if row["x_cublas_lo"] is not None and row["x_cublas_hi"] is not None:
        text += f" [{row['x_cublas_lo']:.3f}, {row['x_cublas_hi']:.3f}]"
    return text


def _if_timed(column: str, digits: int) -> Callable[[Row], str]:
    return lambda row: _number(row[column], digits) if is_timed(row) else ""


def against_sgemm(row: Row) -> float | None:
    """Time of cuBLAS SGEMM over the row's: paired on its own track, of medians from the others."""
    if row["track"] == "fp32_simt":
        return against_cublas(row)
    return None if row["x_cublas_sgemm"] is None else float(row["x_cublas_sgemm"])


def _sgemm_ratio(row: Row) -> str:
    return _number(against_sgemm(row), 3) if is_timed(row) else ""


def picojoules_a_flop(row: Row) -> float | None:
    """Board power over FLOPs a second, in pJ; None where there is no time, or no power (bursts are too short)."""
    if not is_timed(row) or row["power_w"] is None:
        return None
    return float(row["power_w"]) / float(row["tflops"])


def _time(row: Row) -> str:
    if not is_timed(row):
        return ""
    marks = (BURST_MARK if row["window"] == "burst" else "") + (UNSTABLE_MARK if row["unstable"] else "")
    return f"{row['time_us']:.1f}{marks}" if row["time_us"] < 1e5 else f"{row['time_us']:.0f}{marks}"


def _error(row: Row) -> str:
    if row["max_error"] is None:
        return "" if row["ok"] is not False else "FAILED"
    verdict = "" if row["ok"] else "FAILED "
    bound = "" if row["error_bound"] is None else f" / {row['error_bound']:.1e}"
    return f"{verdict}{row['max_error']:.1e}{bound}"


def _name(row: Row) -> str:
    text = str(row["name"])
    if row["variant"]:
        text += f" ({row['variant']})"
    return text + (" *" if row["is_default"] and row["family"] in ("cutlass", "cute_dsl") else "")


def _tile(row: Row) -> str:
    text = str(row["tile"] or "")
    return f"{text} s{row['stages']}" if text and row["stages"] else text


def fields(track: str) -> tuple[Field, ...]:
    """The printed columns of one track's table."""
    same = Field(Head(f"x {CUBLAS_TITLES[track]}\n[95 %]", right=True), _ratio)
    sgemm: tuple[Field, ...] = (Field(Head("x cuBLAS\nSGEMM", right=True, goes=7), _sgemm_ratio),)
    if track == "fp32_simt":
        same, sgemm = Field(same.head, lambda row: _ratio(row) or _sgemm_ratio(row)), ()
    return (
        Field(Head("kernel", folds=True), _name),
        Field(Head("layout", goes=4), lambda row: "" if form_of(row) in ("None", "rr") else form_of(row)),
        Field(Head("tile", goes=5), _tile),
        Field(Head("regs", right=True, goes=2), lambda row: _count(row["registers"])),
        Field(Head("error\n/ bound", goes=6), _error),
        Field(Head("time us", right=True, goes=9), _time),
        Field(Head("TFLOP/s", right=True), _if_timed("tflops", 2)),
        same,
        *sgemm,
        Field(Head("%\npeak", right=True, goes=3), _if_timed("pct_track_peak", 1)),
        Field(Head("% FP16\npeak", right=True, goes=8), _if_timed("pct_fp16_peak", 2)),
        Field(Head("pJ/\nFLOP", right=True, goes=1), lambda row: _number(picojoules_a_flop(row), 2)),
        Field(Head("MHz", right=True, goes=1), _if_timed("sm_clock_mhz", 0)),
    )


CARD_FIELD = Field(
    Head("GPU", right=True), lambda row: f"{_count(row['gpu_index'])} ({str(row['gpu_uuid_hash'] or '')[:6]})"
)
"""Which card a row's group was on, where a run has several."""


def tables(rows: Iterable[Row], width: int | None = None) -> list[Table]:
    """One table per shape and track, so that no table mixes data types. Contenders that did not run are rows too.

    ``width``, in columns of text, is what they have to fit in; None for as much as they need.
    """
    chosen = headline(rows)
    cards = {row["gpu_uuid_hash"] for row in chosen if row["gpu_uuid_hash"]}
    result = []
    for shape in shapes_in(chosen):
        for track, title in TRACK_TITLES.items():
            inside = [row for row in chosen if shape_of(row) == shape and row["track"] == track]
            if not inside:
                continue
            known = fields(track) if len(cards) < 2 else (*fields(track), CARD_FIELD)
            if len({form_of(row) for row in inside}) > 1:  # two rows of a name: what tells them apart stays
                known = tuple(f._replace(head=f.head._replace(goes=0)) if f.head.text == "layout" else f for f in known)
            used = [f for f in known if f.head.folds or any(f.cell(row) for row in inside)]
            lines = [
                ([f.cell(row) for f in used], "" if is_timed(row) else "red" if row["ok"] is False else "dim")
                for row in inside
            ]
            result.append(table_of(f"{shape}  {title}", [f.head for f in used], lines, width, notes(inside)))
    return result


def notes(rows: Sequence[Row]) -> list[str]:
    """What the marks in a table mean, and every contender that did not run, with its reason."""
    lines = []
    if any(is_timed(row) and row["window"] == "burst" for row in rows):
        lines.append(f"{BURST_MARK} burst window; the others are sustained")
    if any(is_timed(row) and row["unstable"] for row in rows):
        lines.append(f"{UNSTABLE_MARK} unstable: rounds disagreed by more than the method allows")
    if any(row["is_default"] and row["family"] in ("cutlass", "cute_dsl") for row in rows):
        lines.append("* what the package picks by default")
    again = dict.fromkeys(str(row["retried_because"]) for row in rows if row["retried_because"])
    lines += [f"begun elsewhere first: {reason}" for reason in again]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["skipped_because"] and row["ok"] is not False:
            what = "not run" if row["ok"] is None else "right, not timed"
            reason = str(row["skipped_because"]).removeprefix(f"{row['name']}: ")
            reasons.setdefault((what, reason), []).append(row["name"])
    lines += [f"{what}, {', '.join(names)}: {reason}" for (what, reason), names in reasons.items()]
    for row in rows:
        if row["ok"] is False:
            lines.append(f"FAILED and therefore not timed, {row['name']}: {row['skipped_because'] or 'wrong result'}")
    return lines


def fastest(rows: Iterable[Row]) -> Row | None:
    """The timed row with the most TFLOP/s, or None."""
    return max((row for row in rows if is_timed(row)), key=lambda row: float(row["tflops"]), default=None)


def is_dispatcher(row: Row) -> bool:
    """Whether the row is of a contender that picks among others."""
    return str(row["name"]).endswith(DISPATCHER_SUFFIX)


class Hindsight(NamedTuple):
    """A dispatcher's row, and the fastest hand-written kernel of the same problem and window, known only afterwards."""

    picked: Row
    best: Row | None
    library: Row | None = None
    """The fastest way to call cuBLAS there: cublasGemmEx, or cublasLt with the fastest of its heuristics' answers."""

    @property
    def x_library(self) -> float | None:
        """Time of that call over time of what was picked, each by its own ratio to the reference."""
        ours = against_cublas(self.picked)
        theirs = None if self.library is None else against_cublas(self.library)
        return ours / theirs if ours and theirs else None

    @property
    def share(self) -> float | None:
        """Time of the best over time of what was picked: 1 where the pick was the best, less where it was not."""
        return None if self.best is None else float(self.best["time_us"]) / float(self.picked["time_us"])


def hindsight(rows: Iterable[Row]) -> list[Hindsight]:
    """Every dispatcher's headline rows beside the best kernel of their problem, smallest problem first."""
    known = [row for row in rows if row["l2"] != "cold" and row["input"] in (DEFAULT_INPUT, None)]
    ours = [row for row in known if row["family"] == "handwritten" and is_timed(row) and not is_dispatcher(row)]
    theirs = [row for row in known if row["family"] == "cublas" and is_timed(row)]
    found = []
    for picked in headline(known):
        if is_dispatcher(picked) and is_timed(picked):
            same = ("track", "window", "m", "n", "k", "layout", "dtype_in", "dtype_out")
            rivals = [row for row in ours if all(row[name] == picked[name] for name in same)]
            calls = [row for row in theirs if all(row[name] == picked[name] for name in same)]
            found.append(Hindsight(picked, fastest(rivals), fastest(calls)))
    return sorted(found, key=lambda one: (one.picked["track"], one.picked["m"] * one.picked["n"] * one.picked["k"]))


def hindsight_table(rows: Iterable[Row], width: int | None = None) -> Table | None:
    """The dispatchers beside the best kernel per size in hindsight; None where no dispatcher was timed."""
    lines = []
    for one in hindsight(rows):
        row, best = one.picked, one.best
        theirs = ("nothing else was timed", "") if best is None else (_name(best), _number(against_cublas(best), 3))
        names = (
            str(row["name"]),
            str(shape_of(row)),
            form_of(row),
            str(row["window"]),
            str(row["variant"] or ""),
        )
        lines.append(((*names, _ratio(row), _number(one.x_library, 3), *theirs, _number(one.share, 3)), ""))
    if not lines:
        return None
    heads = (
        Head("dispatcher", goes=2),
        Head("shape"),
        Head("layout", goes=1),
        Head("window", goes=3),
        Head("picked", folds=True),
        Head("x cuBLAS\n[95 %]", right=True),
        Head("x its\nbest call", right=True, goes=4),
        Head("best in hindsight", folds=True),
        Head("x cuBLAS", right=True),
        Head("pick\n/ best", right=True),
    )
    remark = (
        "the best is known only after the run; pick / best is its time over the pick's; "
        "cuBLAS's best call is the faster of cublasGemmEx and the best of cublasLt's heuristics"
    )
    return table_of("Dispatchers, and the best kernel per size in hindsight", heads, lines, width, (remark,))


class Means(NamedTuple):
    """One contender's geometric means of x_cublas over a set of shapes."""

    row: Row
    """Any of the contender's rows: who it is, its layout and types."""
    of: dict[str, Mean]
    """By window."""


def geometric_means(rows: Iterable[Row]) -> dict[str, list[Means]]:
    """By set of shapes: contenders with their geometric means of x_cublas, tracks in order, the fastest first.

    The sets are the squares and every set that shapes were drawn from by name. Shapes that a contender does not
    run, or has no time for in a window, count in the mean's total: every shape that cuBLAS and anybody else were timed
    on there.
    """
    from compare.statistics import geometric_mean

    sets: dict[str, list[Row]] = {}
    for row in rows:
        if row["l2"] == "cold" or row["input"] not in (DEFAULT_INPUT, None):
            continue
        drawn_from = str(row["shape_set"] or "")
        square = row["m"] == row["n"] == row["k"]
        name = drawn_from if drawn_from not in ("", "default", "squares") else "squares" if square else ""
        if name:
            sets.setdefault(name, []).append(row)
    result = {}
    for name, inside in sets.items():
        if len(shapes_in(inside)) < 2:
            continue
        reference: dict[tuple[str, str], set[Shape]] = {}
        asked = {(row["track"], shape_of(row)) for row in inside if row["family"] != "cublas"}
        series: dict[tuple[Any, ...], dict[tuple[str, Shape], float | None]] = {}
        who: dict[tuple[Any, ...], Row] = {}
        for row in inside:
            if row["family"] == "cublas":
                if is_timed(row) and (row["track"], shape_of(row)) in asked:
                    reference.setdefault((row["track"], row["window"]), set()).add(shape_of(row))
                continue
            key = (TRACK_ORDER.index(row["track"]), row["name"], row["layout"], row["dtype_out"])
            who.setdefault(key, row)
            if is_timed(row):
                series.setdefault(key, {})[row["window"], shape_of(row)] = row["x_cublas"]
        found = []
        for key, row in who.items():
            of = {}
            for window in WINDOWS:
                shapes = reference.get((row["track"], window), set())
                values = [series.get(key, {}).get((window, shape)) for shape in sorted(shapes)]
                if values:
                    of[window] = geometric_mean(values)
            found.append(Means(row, of))
        found.sort(key=lambda one: (TRACK_ORDER.index(one.row["track"]), -_most(one)))
        result[name] = found
    return result


def _most(one: Means) -> float:
    """What a contender is sorted by: its mean over most shapes."""
    there = [mean for mean in one.of.values() if mean.value is not None]
    best = max(there, key=lambda mean: (mean.counted, mean.value), default=None)
    return 0.0 if best is None or best.value is None else best.value


def _mean(mean: Mean | None) -> str:
    """A mean, with its number of shapes where some are missing; of half of them or fewer only that number."""
    if mean is None or not mean.counted:
        return ""
    return str(mean) if 2 * mean.counted > mean.total else f"{mean.counted} of {mean.total} timed"


def means_tables(rows: Iterable[Row], width: int | None = None) -> list[Table]:
    """One table for each set of shapes: geometric means of x cuBLAS by contender and window."""
    windows = (Head(window, right=True) for window in WINDOWS)
    heads = (Head("track"), Head("kernel", folds=True), Head("layout", goes=1), *windows)
    remark = "over n of N: what a contender does not run, or has no time for, is left out of its mean"
    result = []
    for name, found in geometric_means(rows).items():
        lines = []
        for one in found:
            track = TRACK_TITLES[one.row["track"]].partition(" (")[0]
            cells = (track, str(one.row["name"]), form_of(one.row), *(_mean(one.of.get(w)) for w in WINDOWS))
            lines.append((cells, ""))
        title = f"Geometric means of x cuBLAS, same track, over the shapes of {name}"
        result.append(table_of(title, heads, lines, width, (remark,)))
    return result


def shown_for(rows: Iterable[Row]) -> Row | None:
    """The row that stands for several: the fastest of the sustained ones; a burst only where there is none."""
    rows = list(rows)
    return fastest(row for row in rows if row["window"] == "sustained") or fastest(rows)


GENERATED = ("cutlass", "cute_dsl")
"""Families whose kernels a package generates, so many that the default and the fastest stand for all."""


class Scene(NamedTuple):
    """Where the closing lines are read off: one shape in one window."""

    shape: Shape
    window: str
    rows: list[Row]

    def pick(self, family: str, track: str) -> list[Row]:
        """Timed rows of a family on a track, the plain ones where there are any."""
        return plain([row for row in self.rows if row["family"] == family and row["track"] == track])


def scene(rows: Iterable[Row]) -> Scene | None:
    """Shape and window of the closing lines.

    The scene that shows most of: hand-written FP32 (a kernel, not a dispatcher alone), cuBLAS SGEMM, cuBLAS FP16;
    then sustained before burst; then the larger problem. Windows are never mixed.
    """
    timed = [r for r in rows if is_timed(r) and r["l2"] != "cold" and r["input"] in (DEFAULT_INPUT, None)]
    groups: dict[tuple[Shape, str], list[Row]] = {}
    for row in timed:
        groups.setdefault((shape_of(row), str(row["window"])), []).append(row)
    wanted = (("handwritten", "fp32_simt"), ("cublas", "fp32_simt"), ("cublas", "fp16_tensor"))

    def rank(item: tuple[tuple[Shape, str], list[Row]]) -> tuple[int, bool, int]:
        (shape, window), inside = item
        kernels = [row for row in inside if not is_dispatcher(row)]
        shown = sum(any((row["family"], row["track"]) == pair for row in kernels) for pair in wanted)
        return shown, window == "sustained", shape.m * shape.n * shape.k

    if not groups:
        return None
    (shape, window), inside = max(groups.items(), key=rank)
    return Scene(shape, window, inside)


def against_cublas(row: Row) -> float | None:
    """Time of cuBLAS on the same track over the row's; None where no cuBLAS time is there to compare."""
    value = row["x_cublas"]
    if value is None and row["track"] == "fp32_simt":
        value = row["x_cublas_sgemm"]
    return None if value is None else float(value)


def _cut(entry: str, longest: int | None) -> str:
    """An entry's name of at most so many letters, cut between its words where it can be."""
    if longest is None or len(entry) <= longest:
        return entry
    kept = entry[:longest]
    whole = kept if entry[longest] == "_" else kept.rpartition("_")[0]
    return f"{whole.rstrip('_') or kept}\N{HORIZONTAL ELLIPSIS}"


def _kernel_of(row: Row, longest: int | None) -> str:
    entry = str(row["kernel_name"] or "")
    if longest == 0 or entry in ("", row["name"]):
        return str(row["name"])
    return f"{row['name']} ({_cut(entry, longest)})"


def cutlass_lines(rows: Iterable[Row], *, longest_entry: int | None = None) -> list[str]:
    """For each track: CUTLASS's default plan and its best kernel, each by name, as a fraction of cuBLAS.

    Names of entries are cut to ``longest_entry`` letters: 0 for none, None for whole ones.
    """
    where = scene(rows)
    if where is None:
        return []
    lines = []
    for track, title in TRACK_TITLES.items():
        found = where.pick("cutlass", track)
        chosen = [("default", row) for row in found if row["is_default"]]
        best = fastest(found)
        if best is not None:
            chosen.append(("best measured", best))
        for label, row in chosen:
            ratio = against_cublas(row)
            fraction = f"{ratio:.3f} of {CUBLAS_TITLES[track]}" if ratio is not None else "no cuBLAS time to compare"
            lines.append(
                f"CUTLASS {label}, {title}, {where.shape}, {where.window}: {_kernel_of(row, longest_entry)} "
                f"{row['tflops']:.1f} TFLOP/s, {fraction}."
            )
    return lines


class Gaps(NamedTuple):
    """What both gaps are read off; None where a side was not timed."""

    where: Scene
    ours: Row | None
    """The fastest hand-written FP32 kernel; a dispatcher only where none of them was timed."""
    sgemm: Row | None
    fp16: Row | None
    ratio: float | None
    """Time of cuBLAS SGEMM over ours, paired where the run paired them."""
    factor: float | None
    """TFLOP/s of cuBLAS FP16 over those of cuBLAS SGEMM."""
    tensor: Row | None = None
    """The fastest hand-written FP16 kernel."""


def gaps(rows: Iterable[Row]) -> Gaps | None:
    """Both gaps in the scene of the closing lines; None where nothing was timed."""
    where = scene(rows)
    if where is None:
        return None
    written = where.pick("handwritten", "fp32_simt")
    ours = fastest([row for row in written if not is_dispatcher(row)] or written)
    sgemm = fastest(where.pick("cublas", "fp32_simt"))
    fp16 = fastest(where.pick("cublas", "fp16_tensor"))
    ratio = factor = None
    if ours is not None and sgemm is not None:
        ratio = against_cublas(ours) or sgemm["time_us"] / ours["time_us"]
    if sgemm is not None and fp16 is not None:
        factor = fp16["tflops"] / sgemm["tflops"]
    tensor = fastest([row for row in where.pick("handwritten", "fp16_tensor") if not is_dispatcher(row)])
    return Gaps(where, ours, sgemm, fp16, ratio, factor, tensor)


def closing_lines(rows: Iterable[Row], *, longest_entry: int | None = None) -> tuple[str, str]:
    """The two gaps in words and numbers: on the same track, and to the next track.

    The name of the kernel that cuBLAS ran is cut to ``longest_entry`` letters: 0 for none, None for the whole one.
    """
    found = gaps(rows)
    if found is None:
        return (
            "Same track: nothing was timed, so no gap is stated.",
            "Different track: nothing was timed, so no gap is stated.",
        )
    return _same_track(found, longest_entry), _different_track(found)


def _same_track(found: Gaps, longest_entry: int | None) -> str:
    where, ours, theirs, ratio = found.where, found.ours, found.sgemm, found.ratio
    place = f"Same track (FP32 SIMT, {where.shape}, {where.window})"
    if ours is None or theirs is None or ratio is None:
        absent = "hand-written kernel" if ours is None else "cuBLAS SGEMM"
        return f"{place}: no {absent} was timed, so no gap is stated."
    text = f"{place}: the best hand-written kernel, {ours['name']}, reaches {ours['tflops']:.1f} TFLOP/s against "
    text += f"{theirs['tflops']:.1f} for cuBLAS SGEMM"
    text += "" if longest_entry == 0 else f" ({_cut(str(theirs['kernel_name'] or theirs['name']), longest_entry)})"
    text += f": {ratio:.3f} times it"
    if ours["x_cublas_lo"] is not None and ours["x_cublas_hi"] is not None:
        text += f", 95 % interval {ours['x_cublas_lo']:.3f} to {ours['x_cublas_hi']:.3f}"
    if ours["x_cublas_lo"] is not None and ours["x_cublas_lo"] > 1:
        text += "; the gap is closed."
    elif ours["x_cublas_hi"] is not None and ours["x_cublas_hi"] >= 1:
        text += "; no gap beyond the noise."
    else:
        text += f"; the gap is {100 * (1 - ratio):.1f} %." if ratio < 1 else "."
    written = where.pick("handwritten", "fp32_simt")
    return text + "".join(_by_table(row) for row in written if is_dispatcher(row) and row is not ours)


def _by_table(row: Row) -> str:
    """What a dispatcher ran there; it had to pick before the run, the best kernel is picked after it."""
    ratio = against_cublas(row)
    text = "" if ratio is None else f": {ratio:.3f} times cuBLAS"
    return f" {row['name']}, by its table, ran {row['variant']}{text}."


def _different_track(found: Gaps) -> str:
    where, sgemm, fp16, factor = found.where, found.sgemm, found.fp16, found.factor
    place = f"Different track (FP16 Tensor Core, {where.shape}, {where.window})"
    parts = []
    fp32_peak, fp16_peak = peak_behind(sgemm, "pct_track_peak"), peak_behind(sgemm, "pct_fp16_peak")
    if fp32_peak and fp16_peak:
        parts.append(
            f"the FP32 peak is {100 * fp32_peak / fp16_peak:.2f} % of the FP16 peak "
            f"({fp32_peak:.1f} of {fp16_peak:.1f} TFLOP/s), 1 to {fp16_peak / fp32_peak:.1f}"
        )
    if sgemm is not None and fp16 is not None and factor is not None:
        parts.append(
            f"cuBLAS SGEMM is {100 / factor:.2f} % of cuBLAS FP16 "
            f"({sgemm['tflops']:.1f} of {fp16['tflops']:.1f} TFLOP/s), 1 to {factor:.1f}"
            f"{', on two cards of one model' if sgemm['gpu_uuid_hash'] != fp16['gpu_uuid_hash'] else ''}"
        )
    if found.ours is not None and found.tensor is not None:
        parts.append(_by_hand(found.ours, found.tensor))
    if not parts:
        return f"{place}: cuBLAS was not timed on both tracks and no peak is known, so no gap is stated."
    return f"{place}: {'; '.join(parts)}."


def _by_hand(simt: Row, tensor: Row) -> str:
    """The gap between the best hand-written kernels of both tracks, and why it is not the datasheet's."""
    text = (
        f"by hand, {simt['name']} against {tensor['name']}, {simt['tflops']:.1f} of {tensor['tflops']:.1f} TFLOP/s, "
        f"1 to {tensor['tflops'] / simt['tflops']:.1f}"
    )
    low, high = (peak_behind(row, "pct_track_peak_at_clock") for row in (simt, tensor))
    if not (low and high and simt["sm_clock_mhz"] and tensor["sm_clock_mhz"]):
        return text
    watts = " and ".join(f"{row['power_w']:.0f} W" for row in (simt, tensor) if row["power_w"])
    return text + (
        f"; they ran at {simt['sm_clock_mhz']:.0f} and {tensor['sm_clock_mhz']:.0f} MHz"
        f"{f' ({watts})' if watts else ''}, and at those clocks the peaks are 1 to {high / low:.1f}"
    )


def peak_behind(row: Row | None, column: str) -> float | None:
    """TFLOP/s of the peak behind a percentage column, or None where it is not known."""
    if row is None or not row[column] or row["tflops"] is None:
        return None
    return float(row["tflops"]) / float(row[column]) * 100


def origin(run: Mapping[str, Any], *, recorded: bool) -> str:
    """Where rows come from, in one line: GPU, date, revision; plainly marked where they were recorded earlier."""
    gpu = run.get("gpu") or {}
    sms = f" ({gpu['sm_count']} SMs)" if gpu.get("sm_count") else ""
    text = f"{gpu.get('name', 'unknown GPU')}{sms}, {str(run.get('date', ''))[:10]}"
    text += f", revision {run.get('revision', 'unknown')}"
    text += " (partial)" if run.get("partial") else ""
    return f"RECORDED, not measured here: {text}" if recorded else f"Measured here: {text}"


class ResultTable(NamedTuple):
    """One table of results, before it is markdown or LaTeX. ``code`` marks the columns that hold names."""

    title: str
    source: str
    heads: tuple[str, ...]
    right: tuple[bool, ...]
    code: tuple[bool, ...]
    lines: tuple[tuple[str, ...], ...]


def result_tables(
    rows: Iterable[Row], run: Mapping[str, Any], summaries: Mapping[str, str] | None = None
) -> tuple[ResultTable, ...]:
    """The ladder where most of it was timed, the tracks, the dispatchers, and means over the squares; empty where
    nothing was timed.

    Of families whose kernels a package generates, the default and the fastest stand for all. ``summaries``
    says what each rung adds, by name.
    """
    rows = list(rows)
    where, steps = scene(rows), ladder_scene(rows)
    source = origin(run, recorded=False).removeprefix("Measured here: ")
    whole = f"{source}. The run is partial: {run['partial']}" if run.get("partial") else source
    found = []
    if steps is not None:
        found.append(_ladder_table(steps, whole, summaries or {}))
    if where is not None:
        found.append(_tracks_table(where, whole if steps is None else source))
    more = (_dispatch_table(rows, source), _means_table(rows, source))
    return (*found, *(table for table in more if table is not None))


def _tracks_table(where: Scene, source: str) -> ResultTable:
    lines = []
    for track, title in TRACK_TITLES.items():
        for family in FAMILY_ORDER:
            for row in _representatives(where.pick(family, track), family):
                lines.append(
                    (title.partition(" (")[0], str(row["name"]), _mark(row), f"{row['tflops']:.1f}", *_fractions(row))
                )
    return ResultTable(
        "The tracks",
        f"{source}. {where.shape}, {where.window}, warm L2.",
        ("track", "kernel", "", "TFLOP/s", "x cuBLAS, same track", "x cuBLAS SGEMM", "% of FP16 peak"),
        (False, False, False, True, True, True, True),
        (False, True, False, False, False, False, False),
        tuple(lines),
    )


def _dispatch_table(rows: Sequence[Row], source: str) -> ResultTable | None:
    """The dispatchers at the squares, beside the best kernel in hindsight; None where none was timed."""
    lines = []
    for one in hindsight(rows):
        row, best = one.picked, one.best
        if row["m"] == row["n"] == row["k"]:
            theirs = ("", "") if best is None else (str(best["name"]), _number(against_cublas(best), 3))
            how = f"{form_of(row)}, {row['window']}"
            ours = (str(row["name"]), str(row["m"]), how, str(row["variant"] or ""), _number(against_cublas(row), 3))
            lines.append((*ours, _number(one.x_library, 3), *theirs, _number(one.share, 3)))
    if not lines:
        return None
    return ResultTable(
        "The dispatchers",
        f"{source}. Warm L2; the best kernel is known only in hindsight. cuBLAS's best call: on the "
        "FP16 track the faster of cublasGemmEx and the best of cublasLt's heuristics, where that was timed.",
        (
            "dispatcher",
            "size",
            "window",
            "picked",
            "x cuBLAS",
            "x its best call",
            "best in hindsight",
            "x cuBLAS",
            "pick / best",
        ),
        (False, True, False, False, True, True, False, True, True),
        (True, False, False, True, False, False, True, False, False),
        tuple(lines),
    )


def _means_table(rows: Sequence[Row], source: str) -> ResultTable | None:
    """Geometric means over the squares; of generated families the default and the best stand for all."""
    lines, shown = [], set()
    for one in geometric_means(rows).get("squares", []):
        row = one.row
        family = (row["track"], row["family"], row["layout"], row["dtype_out"])
        if row["family"] in GENERATED and not row["is_default"] and family in shown:
            continue
        if not row["is_default"]:
            shown.add(family)
        mark = " ".join(part for part in (_mark(row), "" if form_of(row) == "rr" else form_of(row)) if part)
        means = [_mean(one.of.get(window)) for window in WINDOWS]
        if all(not text or text.endswith("timed") for text in means):
            continue
        lines.append((TRACK_TITLES[row["track"]].partition(" (")[0], str(row["name"]), mark, *means))
    if not lines:
        return None
    cubes = [row for row in rows if row["m"] == row["n"] == row["k"] and row["family"] != "cublas"]
    sizes = "; ".join(
        f"{TRACK_TITLES[track].partition(' (')[0]} {', '.join(map(str, sorted(found)))}"
        for track in TRACK_ORDER
        if (found := {row["m"] for row in cubes if row["track"] == track})
    )
    return ResultTable(
        "Over the squares",
        f"{source}. Geometric means of the ratio to cuBLAS on the same track, warm L2, over the squares where the "
        f"track was timed ({sizes}); over n of N where the rest has no time, and left out where that is half of them.",
        ("track", "kernel", "", *WINDOWS),
        (False, False, False, True, True),
        (False, True, False, False, False),
        tuple(lines),
    )


def ladder_scene(rows: Iterable[Row]) -> Scene | None:
    """The problem where most hand-written FP32 kernels were timed; then the larger one. None where none was.

    One row a kernel: sustained, or burst where that alone was measured.
    """
    groups: dict[Shape, list[Row]] = {}
    for row in headline(rows):
        if is_timed(row):
            groups.setdefault(shape_of(row), []).append(row)

    def rank(item: tuple[Shape, list[Row]]) -> tuple[int, int]:
        shape, inside = item
        ours = sum(row["family"] == "handwritten" and row["track"] == "fp32_simt" for row in inside)
        return ours, shape.m * shape.n * shape.k

    if not groups:
        return None
    shape, inside = max(groups.items(), key=rank)
    return Scene(shape, "sustained", inside) if rank((shape, inside))[0] else None


def _ladder_table(where: Scene, source: str, summaries: Mapping[str, str]) -> ResultTable:
    """Every hand-written FP32 kernel, between CUTLASS and cuBLAS."""
    window, lines = "", []
    for family in ("handwritten", *GENERATED, "cublas"):
        for row in _one_a_rung(_representatives(where.pick(family, "fp32_simt"), family)):
            mark = _mark(row)
            if row["window"] != "sustained":
                mark, window = " ".join((mark, "(burst)")).strip(), " (burst where marked)"
            _, ratio, fp16 = _fractions(row)
            what = summaries.get(str(row["name"]), "")
            lines.append((str(row["name"]), mark, what, f"{row['tflops']:.1f}", ratio, fp16))
    return ResultTable(
        "The ladder",
        f"{source}. {where.shape}, sustained{window}, warm L2. Of a kernel's plain and hinted build the faster is "
        "shown, and of three or more kernels of one number the fastest.",
        ("kernel", "", "what it adds", "TFLOP/s", "x cuBLAS SGEMM", "% of FP16 peak"),
        (False, False, False, True, True, True),
        (True, False, False, False, False, False),
        tuple(lines),
    )


def _one_a_rung(rows: Sequence[Row]) -> list[Row]:
    """Without the slower of two builds that differ in their entry's name, and without what a number has beyond two."""
    pairs: dict[str, list[Row]] = {}
    for row in rows:
        pairs.setdefault(str(row["name"]).removesuffix(HINTED), []).append(row)
    faster = [row for row in rows if row is fastest(pairs[str(row["name"]).removesuffix(HINTED)])]
    numbers: dict[str, list[Row]] = {}
    for row in faster:
        numbers.setdefault(str(row["name"]).partition("_")[0], []).append(row)

    def stays(row: Row) -> bool:
        rung = numbers[str(row["name"]).partition("_")[0]]
        return row["family"] != "handwritten" or len(rung) < CROWD or row is fastest(rung)

    return [row for row in faster if stays(row)]


def _mark(row: Row) -> str:
    return "(default)" if row["family"] in GENERATED and row["is_default"] else ""


def _representatives(rows: Sequence[Row], family: str) -> list[Row]:
    """All rows, or the default and the fastest of a family whose kernels a package generates."""
    best = shown_for(rows)
    return [row for row in rows if family not in GENERATED or row is best or row["is_default"]]


def _fractions(row: Row) -> tuple[str, str, str]:
    """Against cuBLAS on the same track, against cuBLAS SGEMM, and of the FP16 peak."""
    return _number(against_cublas(row), 3), _sgemm_ratio(row), _number(row["pct_fp16_peak"], 1)


NOTHING_TIMED = "Nothing in this run was timed."


def markdown_text(text: str) -> str:
    """Text that a run brings, as markdown shows it: no tag, no link, one line, and no end of a table's cell."""
    text = " ".join(text.split()).replace("\\", "\\\\")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")
    return text.replace("`", "\\`").replace("|", "\\|")


def markdown_code(text: str) -> str:
    """A name between backticks, of which there are more than it has itself."""
    text = " ".join(text.split()).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def markdown(rows: Iterable[Row], run: Mapping[str, Any], summaries: Mapping[str, str] | None = None) -> str:
    """The two gaps and the tables of :func:`result_tables`, as the README shows them."""
    rows = list(rows)
    tables_found = result_tables(rows, run, summaries)
    if not tables_found:
        return NOTHING_TIMED
    lines = [f"- {markdown_text(line)}" for line in closing_lines(rows)]
    for table in tables_found:
        lines += ["", f"**{table.title}.** {markdown_text(table.source)}", ""]
        heads = [head for head in table.heads if head]
        rule = ["---:" if right else "---" for head, right in zip(table.heads, table.right, strict=True) if head]
        lines += [f"| {' | '.join(heads)} |", f"|{'|'.join(rule)}|"]
        for cells in table.lines:
            texts = [
                markdown_code(cell) if code and cell else markdown_text(cell)
                for cell, code in zip(cells, table.code, strict=True)
            ]
            lines.append(f"| {' | '.join(_joined(table.heads, texts))} |")
    return "\n".join(lines)


def _joined(heads: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Cells of a line, those without a heading joined to the one before."""
    cells: list[str] = []
    for head, text in zip(heads, texts, strict=True):
        if head:
            cells.append(text)
        else:
            cells[-1] = f"{cells[-1]} {text}".strip()
    return cells


LATEX_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def latex(rows: Iterable[Row], run: Mapping[str, Any], summaries: Mapping[str, str] | None = None) -> str:
    """The tables of :func:`result_tables` for a paper. Needs the package booktabs."""

    def escaped(text: str) -> str:
        return "".join(LATEX_SPECIAL.get(letter, letter) for letter in " ".join(text.split()))

    lines = []
    for table in result_tables(rows, run, summaries):
        kept = [right for head, right in zip(table.heads, table.right, strict=True) if head]
        lines += [r"\begin{table}", r"  \centering", f"  \\caption{{{escaped(f'{table.title}. {table.source}')}}}"]
        lines += [f"  \\begin{{tabular}}{{{''.join('r' if right else 'l' for right in kept)}}}", r"    \toprule"]
        lines += [f"    {' & '.join(escaped(head) for head in table.heads if head)} \\\\", r"    \midrule"]
        for cells in table.lines:
            texts = [
                f"\\texttt{{{escaped(cell)}}}" if code and cell else escaped(cell)
                for cell, code in zip(cells, table.code, strict=True)
            ]
            lines.append(f"    {' & '.join(_joined(table.heads, texts))} \\\\")
        lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) if lines else f"% {NOTHING_TIMED}"
