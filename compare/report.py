"""Rows to text: tables per shape and track, the CUTLASS lines, and the two gaps. A pure function of rows.

A row is a mapping with every column of :mod:`compare.rows`, None where nothing was measured. Nothing here
measures, checks, reads a file or asks a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from compare.console import Head, table_of

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

    head: Head
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
    same = Field(Head(f"x {CUBLAS_TITLES[track]}\n[95 %]", right=True), _ratio)
    sgemm = (Field(Head("x cuBLAS\nSGEMM", right=True, goes=7), _sgemm_ratio),)
    if track == "fp32_simt":
        same, sgemm = Field(same.head, lambda row: _ratio(row) or _sgemm_ratio(row)), ()
    return (
        Field(Head("kernel", folds=True), _name),
        Field(Head("layout", goes=4), lambda row: "" if row["layout"] in (None, "rr") else str(row["layout"])),
        Field(Head("tile", goes=5), _tile),
        Field(Head("regs", right=True, goes=2), lambda row: _count(row["registers"])),
        Field(Head("error\n/ bound", goes=6), _error),
        Field(Head("time us", right=True, goes=9), _time),
        Field(Head("TFLOP/s", right=True), _if_timed("tflops", 2)),
        same,
        *sgemm,
        Field(Head("%\npeak", right=True, goes=3), _if_timed("pct_track_peak", 1)),
        Field(Head("% FP16\npeak", right=True, goes=8), _if_timed("pct_fp16_peak", 2)),
        Field(Head("MHz", right=True, goes=1), _if_timed("sm_clock_mhz", 0)),
    )


def tables(rows: Iterable[Row], width: int | None = None) -> list[Table]:
    """One table per shape and track, so that no table mixes data types. Contenders that did not run are rows too.

    ``width``, in columns of text, is what they have to fit in; None for as much as they need.
    """
    chosen = headline(rows)
    result = []
    for shape in shapes_in(chosen):
        for track, title in TRACK_TITLES.items():
            inside = [row for row in chosen if shape_of(row) == shape and row["track"] == track]
            if not inside:
                continue
            used = [f for f in fields(track) if f.head.folds or any(f.cell(row) for row in inside)]
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
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["skipped_because"] and row["ok"] is not False:
            reasons.setdefault(str(row["skipped_because"]).removeprefix(f"{row['name']}: "), []).append(row["name"])
    lines += [f"not run, {', '.join(names)}: {reason}" for reason, names in reasons.items()]
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


def against_cublas(row: Row) -> float | None:
    """Time of cuBLAS on the same track over the row's; None where no cuBLAS time is there to compare."""
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
            ratio = against_cublas(row)
            fraction = f"{ratio:.3f} of {CUBLAS_TITLES[track]}" if ratio is not None else "no cuBLAS time to compare"
            lines.append(
                f"CUTLASS {label}, {title}, {where.shape}, {where.window}: {_kernel_of(row)} "
                f"{row['tflops']:.1f} TFLOP/s, {fraction}."
            )
    return lines


def closing_lines(rows: Iterable[Row], *, entry_names: bool = True) -> tuple[str, str]:
    """The two gaps in words and numbers: on the same track, and to the next track.

    ``entry_names`` adds the name of the kernel that cuBLAS ran.
    """
    where = scene(rows)
    if where is None:
        return (
            "Same track: nothing was timed, so no gap is stated.",
            "Different track: nothing was timed, so no gap is stated.",
        )
    return _same_track(where, entry_names), _different_track(where)


def _same_track(where: Scene, entry_names: bool) -> str:
    place = f"Same track (FP32 SIMT, {where.shape}, {where.window})"
    ours, theirs = fastest(where.pick("handwritten", "fp32_simt")), fastest(where.pick("cublas", "fp32_simt"))
    if ours is None or theirs is None:
        absent = "hand-written kernel" if ours is None else "cuBLAS SGEMM"
        return f"{place}: no {absent} was timed, so no gap is stated."
    ratio = against_cublas(ours)
    if ratio is None:
        ratio = theirs["time_us"] / ours["time_us"]
    text = f"{place}: the best hand-written kernel, {ours['name']}, reaches {ours['tflops']:.1f} TFLOP/s against "
    text += f"{theirs['tflops']:.1f} for cuBLAS SGEMM"
    text += f" ({theirs['kernel_name'] or theirs['name']})" if entry_names else ""
    text += f": {ratio:.3f} times it"
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
    fp32_peak, fp16_peak = peak_behind(sgemm, "pct_track_peak"), peak_behind(sgemm, "pct_fp16_peak")
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


def peak_behind(row: Row | None, column: str) -> float | None:
    """TFLOP/s of the peak behind a percentage column, or None where it is not known."""
    if row is None or not row[column] or row["tflops"] is None:
        return None
    return float(row["tflops"]) / float(row[column]) * 100


def origin(run: Mapping[str, Any], *, recorded: bool) -> str:
    """Where rows come from, in one line: GPU, date, revision; plainly marked where they were recorded earlier."""
    gpu = run.get("gpu") or {}
    text = f"{gpu.get('name', 'unknown GPU')} ({gpu.get('sm_count', '?')} SMs), {str(run.get('date', ''))[:10]}"
    text += f", revision {run.get('revision', 'unknown')}"
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
    """The ladder where most of it was timed, and the tracks; empty where nothing was timed.

    Of families whose kernels a package generates, the default and the fastest stand for all. ``summaries``
    says what each rung adds, by name.
    """
    rows = list(rows)
    where, steps = scene(rows), ladder_scene(rows)
    source = origin(run, recorded=False).removeprefix("Measured here: ")
    found = []
    if steps is not None:
        found.append(_ladder_table(steps, source, summaries or {}))
    if where is not None:
        found.append(_tracks_table(where, source))
    return tuple(found)


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
        for row in _representatives(where.pick(family, "fp32_simt"), family):
            mark = _mark(row)
            if row["window"] != "sustained":
                mark, window = " ".join((mark, "(burst)")).strip(), " (burst where marked)"
            ratio, _, fp16 = _fractions(row)
            what = summaries.get(str(row["name"]), "")
            lines.append((str(row["name"]), mark, what, f"{row['tflops']:.1f}", ratio, fp16))
    return ResultTable(
        "The ladder",
        f"{source}. {where.shape}, sustained{window}, warm L2.",
        ("kernel", "", "what it adds", "TFLOP/s", "x cuBLAS SGEMM", "% of FP16 peak"),
        (False, False, False, True, True, True),
        (True, False, False, False, False, False),
        tuple(lines),
    )


def _mark(row: Row) -> str:
    return "(default)" if row["family"] in GENERATED and row["is_default"] else ""


def _representatives(rows: Sequence[Row], family: str) -> list[Row]:
    """All rows, or the default and the fastest of a family whose kernels a package generates."""
    best = fastest(rows)
    return [row for row in rows if family not in GENERATED or row is best or row["is_default"]]


def _fractions(row: Row) -> tuple[str, str, str]:
    """Against cuBLAS on the same track, against cuBLAS SGEMM, and of the FP16 peak."""
    return _number(against_cublas(row), 3), _sgemm_ratio(row), _number(row["pct_fp16_peak"], 1)


NOTHING_TIMED = "Nothing in this run was timed."


def markdown(rows: Iterable[Row], run: Mapping[str, Any], summaries: Mapping[str, str] | None = None) -> str:
    """The two gaps and the tables of :func:`result_tables`, as the README shows them."""
    rows = list(rows)
    tables_found = result_tables(rows, run, summaries)
    if not tables_found:
        return NOTHING_TIMED
    lines = [f"- {line}" for line in closing_lines(rows)]
    for table in tables_found:
        lines += ["", f"**{table.title}.** {table.source}", ""]
        heads = [head for head in table.heads if head]
        rule = ["---:" if right else "---" for head, right in zip(table.heads, table.right, strict=True) if head]
        lines += [f"| {' | '.join(heads)} |", f"|{'|'.join(rule)}|"]
        for cells in table.lines:
            texts = [f"`{cell}`" if code else cell for cell, code in zip(cells, table.code, strict=True)]
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in _joined(table.heads, texts))} |")
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
                f"\\texttt{{{escaped(cell)}}}" if code else escaped(cell)
                for cell, code in zip(cells, table.code, strict=True)
            ]
            lines.append(f"    {' & '.join(_joined(table.heads, texts))} \\\\")
        lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) if lines else f"% {NOTHING_TIMED}"
