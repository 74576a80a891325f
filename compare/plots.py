"""Figures from rows, for papers and slides. Needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compare import report, runs
from compare.report import DEFAULT_INPUT, Scene, fastest, headline, is_timed, scene
from kernel.errors import MissingToolError, UsageError

FORMATS = ("png", "svg", "pdf")
COLOURS = {
    "cublas": "#000000",
    "torch": "#56B4E9",
    "handwritten": "#D55E00",
    "cutlass": "#009E73",
    "cute_dsl": "#CC79A7",
}
"""By family; from Okabe and Ito's set, which colour-blind readers can tell apart."""
MARKERS = {"fp32_simt": "o", "tf32_tensor": "s", "fp16_tensor": "^"}

Rows = Sequence[Mapping[str, Any]]


def run_plot(run: str, what: str, form: str, out: Path | None) -> Path:
    """Draw one figure of a run; its path.

    Raises:
        UsageError: an unknown figure or format, or nothing in the run to draw.
        MissingToolError: matplotlib is not installed.
        RunFileError: there is no such run.
    """
    if what not in FIGURES:
        raise UsageError(f"--what {what}: known figures are {', '.join(FIGURES)}")
    if form not in FORMATS:
        raise UsageError(f"--format {form}: known formats are {', '.join(FORMATS)}")
    provenance, rows = runs.read_run(run)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingToolError("matplotlib is not installed; pip install 'gemm-tracks[plot]'") from None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FIGURES[what](rows, figure)
    figure.text(0.995, 0.005, report.origin(provenance, recorded=False).partition(": ")[2], ha="right", size=6)
    target = out or Path(f"gemm-tracks-{what}.{form}")
    figure.savefig(target, format=form, dpi=160)
    return target


def _scene(rows: Rows) -> Scene:
    where = scene(rows)
    if where is None:
        raise UsageError("nothing in this run was timed, so there is nothing to draw")
    return where


def draw_tracks(rows: Rows, figure: Any) -> None:
    """Each family's fastest on each track, and the peaks, on one log axis: both gaps at a glance."""
    where = _scene(rows)
    axes = figure.add_subplot()
    labels, values, colours = [], [], []
    for track, title in report.TRACK_TITLES.items():
        for family in report.FAMILY_ORDER:
            best = fastest(where.pick(family, track))
            if best is not None:
                labels.append(f"{best['name']}  ·  {title.partition(' (')[0]}")
                values.append(best["tflops"])
                colours.append(COLOURS[family])
        peak = next((p for row in where.rows if row["track"] == track and (p := _peak(row))), None)
        if peak:
            labels.append(f"datasheet peak  ·  {title.partition(' (')[0]}")
            values.append(peak)
            colours.append("#999999")
    axes.barh(range(len(values)), values, color=colours)
    axes.set_yticks(range(len(values)), labels, size=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(1.0, 2.5 * max(values))
    axes.set_xlabel("TFLOP/s, log scale")
    axes.set_title(f"Tracks at {where.shape}, {where.window}", size=10)
    for place, value in enumerate(values):
        axes.text(value, place, f" {value:.1f}", va="center", size=7)


def _peak(row: Mapping[str, Any]) -> float | None:
    return row["tflops"] / row["pct_track_peak"] * 100 if row["pct_track_peak"] else None


def draw_ladder(rows: Rows, figure: Any) -> None:
    """The hand-written FP32 kernels in catalog order, as fractions of cuBLAS SGEMM."""
    where = _scene(rows)
    rungs = where.pick("handwritten", "fp32_simt")
    if not rungs:
        raise UsageError("no hand-written FP32 kernel was timed where cuBLAS was, so there is no ladder to draw")
    axes = figure.add_subplot()
    ratios = [row["x_cublas"] or row["x_cublas_sgemm"] or 0.0 for row in rungs]
    axes.bar(range(len(rungs)), ratios, color=COLOURS["handwritten"])
    axes.axhline(1.0, color=COLOURS["cublas"], linewidth=1)
    axes.set_xticks(range(len(rungs)), [row["name"] for row in rungs], rotation=40, ha="right", size=7)
    axes.set_ylabel("time of cuBLAS SGEMM / time")
    axes.set_title(f"The ladder at {where.shape}, {where.window}", size=10)
    for place, (row, ratio) in enumerate(zip(rungs, ratios, strict=True)):
        axes.text(place, ratio, f"{row['tflops']:.1f}", ha="center", va="bottom", size=7)


def draw_sizes(rows: Rows, figure: Any) -> None:
    """TFLOP/s over the extent of cubes, with the 10th to 90th percentile of the samples."""
    chosen = [row for row in headline(rows) if is_timed(row) and row["m"] == row["n"] == row["k"]]
    names = list(dict.fromkeys(row["name"] for row in chosen))
    if not chosen:
        raise UsageError("no cube was timed, so there are no sizes to draw")
    axes = figure.add_subplot()
    for name in names:
        line = sorted((row for row in chosen if row["name"] == name and row["layout"] == "rr"), key=lambda r: r["m"])
        if len(line) < 2:
            continue
        middle = [row["tflops"] for row in line]
        low = [row["tflops"] * (1 - row["time_us"] / (row["time_us_p90"] or row["time_us"])) for row in line]
        high = [row["tflops"] * (row["time_us"] / (row["time_us_p10"] or row["time_us"]) - 1) for row in line]
        axes.errorbar(
            [row["m"] for row in line], middle, yerr=[[max(0, v) for v in low], [max(0, v) for v in high]],
            label=name, color=COLOURS[line[0]["family"]], marker=MARKERS[line[0]["track"]], markersize=3, linewidth=1,
            alpha=0.8,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("m = n = k")
    axes.set_ylabel("TFLOP/s, log scale")
    if len(names) <= 24:
        axes.legend(fontsize=5, ncols=2)


def draw_accuracy(rows: Rows, figure: Any) -> None:
    """Largest error against TFLOP/s over all tracks: what each buys in accuracy, and what that costs."""
    where = _scene(rows)
    axes = figure.add_subplot()
    shown = [row for row in where.rows if row["max_error"] and row["input"] in (DEFAULT_INPUT, None)]
    if not shown:
        raise UsageError("no row carries an error, so there is nothing to draw")
    for family in report.FAMILY_ORDER:
        for track, title in report.TRACK_TITLES.items():
            points = [row for row in shown if row["family"] == family and row["track"] == track]
            if points:
                axes.scatter(
                    [row["tflops"] for row in points], [row["max_error"] for row in points], s=18,
                    color=COLOURS[family], marker=MARKERS[track], label=f"{family}, {title.partition(' (')[0]}",
                )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("TFLOP/s, log scale")
    axes.set_ylabel("largest |C - reference| / (|A| @ |B|)")
    axes.set_title(f"Accuracy against speed at {where.shape}, {where.window}", size=10)
    axes.legend(fontsize=6)


FIGURES: dict[str, Callable[[Rows, Any], None]] = {
    "tracks": draw_tracks,
    "ladder": draw_ladder,
    "sizes": draw_sizes,
    "accuracy": draw_accuracy,
}
