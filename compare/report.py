"""Rows to text: tables per shape and track, the CUTLASS lines, and the two gaps. A pure function of rows.

A row is a mapping with every column of :mod:`compare.rows`, None where nothing was measured. Nothing here
measures, checks, reads a file or asks a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]

DEFAULT_INPUT = "uniform"
TRACK_TITLES = {
    "fp32_simt": "FP32 SIMT",
    "tf32_tensor": "TF32 Tensor Core (FP32 in and out)",
    "fp16_tensor": "FP16 Tensor Core",
}
CUBLAS_TITLES = {"fp32_simt": "cuBLAS SGEMM", "tf32_tensor": "cuBLAS TF32", "fp16_tensor": "cuBLAS FP16"}
FAMILY_ORDER = ("cublas", "torch", "handwritten", "cutlass", "cute_dsl")
IDENTITY = ("name", "variant", "m", "n", "k", "layout", "dtype_in", "dtype_acc", "dtype_out", "input")
"""Columns that say what was run; window and L2 state only say how it was timed."""

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

    heading: str
    right: bool
    cell: Callable[[Row], str]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


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


def _sgemm_ratio(row: Row) -> str:
    if not is_timed(row):
        return ""
    value = row["x_cublas_sgemm"]
    if value is None and row["track"] == "fp32_simt":
        value = row["x_cublas"]
    return _number(value, 3)


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
    same = Field(f"x {CUBLAS_TITLES[track]}\n[95 %]", True, _ratio)
    sgemm = () if track == "fp32_simt" else (Field("x cuBLAS\nSGEMM", True, _sgemm_ratio),)
    if track == "fp32_simt":
        same = Field("x cuBLAS SGEMM\n[95 %]", True, lambda row: _ratio(row) or _sgemm_ratio(row))
    return (
        Field("kernel", False, _name),
        Field("layout", False, lambda row: "" if row["layout"] in (None, "rr") else str(row["layout"])),
        Field("tile", False, _tile),
        Field("regs", True, lambda row: _count(row["registers"])),
        Field("error\n/ bound", False, _error),
        Field("time us", True, _time),
        Field("TFLOP/s", True, _if_timed("tflops", 2)),
        same,
        *sgemm,
        Field("%\npeak", True, _if_timed("pct_track_peak", 1)),
        Field("% FP16\npeak", True, _if_timed("pct_fp16_peak", 2)),
        Field("MHz", True, _if_timed("sm_clock_mhz", 0)),
    )


def tables(rows: Iterable[Row]) -> list[Table]:
    """One table per shape and track, so that no table mixes data types. Contenders that did not run are rows too."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    chosen = headline(rows)
    result = []
    for shape in shapes_in(chosen):
        for track, title in TRACK_TITLES.items():
            inside = [row for row in chosen if shape_of(row) == shape and row["track"] == track]
            if not inside:
                continue
            used = [f for f in fields(track) if f.heading == "kernel" or any(f.cell(row) for row in inside)]
            table = Table(
                title=f"{shape}  {title}", title_justify="left", title_style="bold", caption_justify="left",
                box=SIMPLE_HEAD, pad_edge=False,
            )  # fmt: skip
            for column in used:
                table.add_column(column.heading, justify="right" if column.right else "left", no_wrap=True)
            for row in inside:
                style = "" if is_timed(row) else "red" if row["ok"] is False else "dim"
                table.add_row(*(Text(column.cell(row)) for column in used), style=style)
            table.caption = Text("\n".join(notes(inside))) if notes(inside) else None
            result.append(table)
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


GENERATED = ("cutlass", "cute_dsl")
"""Families whose kernels a package generates, so many that the default and the fastest stand for all."""


class Scene(NamedTuple):
    """Where the closing lines are read off: one shape in one window."""

    shape: Shape
    window: str
    rows: list[Row]

    def pick(self, family: str, track: str) -> list[Row]:
        """Timed rows of a family on a track, layout rr where there is one."""
        found = [row for row in self.rows if row["family"] == family and row["track"] == track]
        return [row for row in found if row["layout"] == "rr"] or found


def scene(rows: Iterable[Row]) -> Scene | None:
    """Shape and window of the closing lines.

    The scene that shows most of: hand-written FP32, cuBLAS SGEMM, cuBLAS FP16; then sustained before burst;
    then the larger problem. Windows are never mixed.
    """
    timed = [r for r in rows if is_timed(r) and r["l2"] != "cold" and r["input"] in (DEFAULT_INPUT, None)]
    groups: dict[tuple[Shape, str], list[Row]] = {}
    for row in timed:
        groups.setdefault((shape_of(row), str(row["window"])), []).append(row)
    wanted = (("handwritten", "fp32_simt"), ("cublas", "fp32_simt"), ("cublas", "fp16_tensor"))

    def rank(item: tuple[tuple[Shape, str], list[Row]]) -> tuple[int, bool, int]:
        (shape, window), inside = item
        shown = sum(any((row["family"], row["track"]) == pair for row in inside) for pair in wanted)
        return shown, window == "sustained", shape.m * shape.n * shape.k

    if not groups:
        return None
    (shape, window), inside = max(groups.items(), key=rank)
    return Scene(shape, window, inside)


def _against_cublas(row: Row) -> float | None:
    value = row["x_cublas"] if row["x_cublas"] is not None else None
    if value is None and row["track"] == "fp32_simt":
        value = row["x_cublas_sgemm"]
    return None if value is None else float(value)


def _kernel_of(row: Row) -> str:
    entry = str(row["kernel_name"] or "")
    return f"{row['name']} ({entry})" if entry and entry != row["name"] else str(row["name"])


def cutlass_lines(rows: Iterable[Row]) -> list[str]:
    """For each track: CUTLASS's default plan and its best kernel, each by name, as a fraction of cuBLAS."""
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
            ratio = _against_cublas(row)
            fraction = f"{ratio:.3f} of {CUBLAS_TITLES[track]}" if ratio is not None else "no cuBLAS time to compare"
            lines.append(
                f"CUTLASS {label}, {title}, {where.shape}, {where.window}: {_kernel_of(row)} "
                f"{row['tflops']:.1f} TFLOP/s, {fraction}."
            )
    return lines


def closing_lines(rows: Iterable[Row]) -> tuple[str, str]:
    """The two gaps in words and numbers: on the same track, and to the next track."""
    where = scene(rows)
    if where is None:
        return (
            "Same track: nothing was timed, so no gap is stated.",
            "Different track: nothing was timed, so no gap is stated.",
        )
    return _same_track(where), _different_track(where)


def _same_track(where: Scene) -> str:
    place = f"Same track (FP32 SIMT, {where.shape}, {where.window})"
    ours, theirs = fastest(where.pick("handwritten", "fp32_simt")), fastest(where.pick("cublas", "fp32_simt"))
    if ours is None or theirs is None:
        absent = "hand-written kernel" if ours is None else "cuBLAS SGEMM"
        return f"{place}: no {absent} was timed, so no gap is stated."
    ratio = _against_cublas(ours)
    if ratio is None:
        ratio = theirs["time_us"] / ours["time_us"]
    text = f"{place}: the best hand-written kernel, {ours['name']}, reaches {ours['tflops']:.1f} TFLOP/s against "
    text += f"{theirs['tflops']:.1f} for cuBLAS SGEMM ({theirs['kernel_name'] or theirs['name']}): {ratio:.3f} times it"
    if ours["x_cublas_lo"] is not None and ours["x_cublas_hi"] is not None:
        text += f", 95 % interval {ours['x_cublas_lo']:.3f} to {ours['x_cublas_hi']:.3f}"
    if ours["x_cublas_lo"] is not None and ours["x_cublas_lo"] > 1:
        return text + "; the gap is closed."
    if ours["x_cublas_hi"] is not None and ours["x_cublas_hi"] >= 1:
        return text + "; no gap beyond the noise."
    return text + f"; the gap is {100 * (1 - ratio):.1f} %." if ratio < 1 else text + "."


def _different_track(where: Scene) -> str:
    place = f"Different track (FP16 Tensor Core, {where.shape}, {where.window})"
    sgemm, fp16 = fastest(where.pick("cublas", "fp32_simt")), fastest(where.pick("cublas", "fp16_tensor"))
    parts = []
    fp32_peak, fp16_peak = _peak(sgemm, "pct_track_peak"), _peak(sgemm, "pct_fp16_peak")
    if fp32_peak and fp16_peak:
        parts.append(
            f"the FP32 peak is {100 * fp32_peak / fp16_peak:.2f} % of the FP16 peak "
            f"({fp32_peak:.1f} of {fp16_peak:.1f} TFLOP/s), 1 to {fp16_peak / fp32_peak:.1f}"
        )
    if sgemm is not None and fp16 is not None:
        factor = fp16["tflops"] / sgemm["tflops"]
        parts.append(
            f"cuBLAS SGEMM is {100 / factor:.2f} % of cuBLAS FP16 "
            f"({sgemm['tflops']:.1f} of {fp16['tflops']:.1f} TFLOP/s), 1 to {factor:.1f}"
        )
    if not parts:
        return f"{place}: cuBLAS was not timed on both tracks and no peak is known, so no gap is stated."
    return f"{place}: {'; '.join(parts)}."


def _peak(row: Row | None, column: str) -> float | None:
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
    return f"RECORDED, not measured here: {text}" if recorded else f"Measured here: {text}"


def markdown(rows: Iterable[Row], run: Mapping[str, Any], summaries: Mapping[str, str] | None = None) -> str:
    """The result tables of the README: the two gaps, the ladder where most of it was timed, and the tracks.

    Of families whose kernels a package generates, the default and the fastest stand for all. ``summaries``
    says what each rung adds, by name.
    """
    rows = list(rows)
    where = scene(rows)
    if where is None:
        return "No recorded run yet."
    source = origin(run, recorded=False).removeprefix("Measured here: ")
    lines = [f"- {line}" for line in closing_lines(rows)]
    lines += ["", *_ladder_table(rows, source, summaries or {})]
    lines += ["", f"**The tracks.** {source}. {where.shape}, {where.window}, warm L2.", ""]
    lines += ["| track | kernel | TFLOP/s | x cuBLAS, same track | x cuBLAS SGEMM | % of FP16 peak |"]
    lines += ["|---|---|---:|---:|---:|---:|"]
    for track, title in TRACK_TITLES.items():
        for family in FAMILY_ORDER:
            for row in _representatives(where.pick(family, track), family):
                cells = (title.partition(" (")[0], _called(row), f"{row['tflops']:.1f}", *_fractions(row))
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ladder_table(rows: Sequence[Row], source: str, summaries: Mapping[str, str]) -> list[str]:
    """Every hand-written FP32 kernel at the problem where most were timed, between cuBLAS and CUTLASS."""
    groups: dict[Shape, list[Row]] = {}
    for row in headline(rows):
        if row["track"] == "fp32_simt" and is_timed(row):
            groups.setdefault(shape_of(row), []).append(row)

    def rank(item: tuple[Shape, list[Row]]) -> tuple[int, int]:
        shape, inside = item
        return sum(row["family"] == "handwritten" for row in inside), shape.m * shape.n * shape.k

    shape, inside = max(groups.items(), key=rank)
    window = " (burst where marked)" if any(row["window"] == "burst" for row in inside) else ""
    lines = [f"**The ladder.** {source}. {shape}, sustained{window}, warm L2.", ""]
    lines += ["| kernel | what it adds | TFLOP/s | x cuBLAS SGEMM | % of FP16 peak |", "|---|---|---:|---:|---:|"]
    for family in ("handwritten", "cutlass", "cublas"):
        for row in _representatives([row for row in inside if row["family"] == family], family):
            what = summaries.get(str(row["name"]), "")
            mark = "" if row["window"] == "sustained" else " (burst)"
            ratio, _, fp16 = _fractions(row)
            lines.append(f"| {_called(row)}{mark} | {what} | {row['tflops']:.1f} | {ratio} | {fp16} |")
    return lines


def _representatives(rows: Sequence[Row], family: str) -> list[Row]:
    """All rows, or the default and the fastest of a family whose kernels a package generates."""
    best = fastest(rows)
    return [row for row in rows if family not in GENERATED or row is best or row["is_default"]]


def _called(row: Row) -> str:
    default = " (default)" if row["family"] in GENERATED and row["is_default"] else ""
    return f"`{row['name']}`{default}"


def _fractions(row: Row) -> tuple[str, str, str]:
    """Against cuBLAS on the same track, against cuBLAS SGEMM, and of the FP16 peak."""
    return _number(_against_cublas(row), 3), _sgemm_ratio(row), _number(row["pct_fp16_peak"], 1)
