"""Figures from rows, for papers and slides. Needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import code_facts, figures, report, runs
from compare.charts import span
from compare.drawing import grouped
from compare.figures import FAMILY_TITLES, SHORT_TRACKS, emulates_fp32, fraction, rung
from kernel.errors import MissingToolError, UsageError
from kernel.whole_file import replacing

FORMATS = ("png", "svg", "pdf")
COLOURS = {
    "cublas": "#1A1E24",
    "torch": "#0072B2",
    "handwritten": "#D55E00",
    "cutlass": "#00886A",
    "cute_dsl": "#B0568A",
}
"""By family; after Okabe and Ito's set, which colour-blind readers can tell apart. The page's own are the same."""
MARKERS = {"cublas": "o", "torch": "P", "handwritten": "D", "cutlass": "s", "cute_dsl": "^"}
GREY = "#565D66"
MARK, CLEAR = 2.8, 0.8
"""Half of a mark's width, and what labels keep between them, in points."""
LABEL_REACH = (4.5, 9, 14, 20, 28, 38, 50)
"""How far off a label may stand, in points; the nearest that is free is taken."""
NEARER = 12.0
"""Points further off that a label goes rather than hide one mark or line."""
LABEL_SIDES = ((1, 0), (1, 1), (1, -1), (-1, 0), (0, 1), (0, -1), (-1, 1), (-1, -1))
"""Right of its place first."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Source:
    """What figures are drawn from: a run's rows, its provenance, and what is kept on its kernels' code."""

    rows: Rows
    run: Mapping[str, Any]
    code: Mapping[str, Any]


def run_plot(run: str, what: str, form: str, out: Path | None) -> Path:
    """Draw one figure of a run; its path, - for stdout. Without ``form`` the ending of ``out`` decides, else it is png.

    Raises:
        UsageError: an unknown figure or format, two formats at once, or nothing in the run to draw.
        MissingToolError: matplotlib is not installed.
        RunFileError: there is no such run.
    """
    if what not in FIGURES:
        raise UsageError(f"--what {what}: known figures are {', '.join(FIGURES)}")
    form = _format_of(form, out)
    folder = runs.locate(run)
    provenance, rows = runs.read_run(folder)
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingToolError("matplotlib is not installed; pip install 'gemm-tracks[plot]'") from None
    with rc_context({"axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        # First, as what is drawn then stands where it will stand: labels keep clear of one another in pixels.
        figure.supxlabel(report.origin(provenance, recorded=False).partition(": ")[2], x=0.995, ha="right", size=6)
        FIGURES[what](Source(rows, provenance, code_facts.read(folder)), figure)
        target = out or Path(f"gemm-tracks-{what}.{form}")
        if str(target) == "-":
            figure.savefig(sys.stdout.buffer, format=form, dpi=200)
        else:
            with replacing(target) as partial:
                figure.savefig(partial, format=form, dpi=200)
    return target


def _format_of(form: str, out: Path | None) -> str:
    ending = out.suffix.removeprefix(".").lower() if out is not None else ""
    chosen = form or ending or FORMATS[0]
    if chosen not in FORMATS:
        what = f"--format {form}" if form else f"--out {out}"
        raise UsageError(f"{what}: known formats are {', '.join(FORMATS)}")
    if form and ending and ending != form:
        raise UsageError(f"--format {form} and --out {out} disagree; give one of them, or an ending .{form}")
    return chosen


def draw_tracks(source: Source, figure: Any) -> None:
    """Every kernel of the problem where most of the ladder was timed, by track and family, on one log axis."""
    pictures = figures.track_pictures(source.rows, source.run)
    if not pictures:
        raise UsageError("nothing in this run was timed, so there is nothing to draw")
    steps = report.ladder_scene(source.rows)
    picture = next((p for p in pictures if steps and p.shape == steps.shape), pictures[-1])
    axes = figure.add_subplot()
    low, high = picture.extent
    axes.set_xscale("log")
    axes.set_xlim(low / 1.3, high * 2.4)
    axes.xaxis.set_major_formatter("{x:g}")
    place, labels, places = 0.0, [], []
    for lane in picture.lanes:
        first = place
        for strip in lane.strips:
            for row in sorted(strip.rows, key=lambda row: row is strip.best):
                _mark(axes, row["tflops"], place, row, alpha=1.0 if row is strip.best else 0.55)
            labels.append(FAMILY_TITLES[strip.family])
            places.append(place)
            ratio = fraction(strip.best)
            text = f"{strip.best['tflops']:.1f}" + ("" if ratio is None else f"  {ratio:.3f} x")
            axes.text(high * 2.3, place, text, va="center", ha="right", size=7)
            place += 1
        axes.axhspan(first - 0.6, place - 0.4, color="#F3F1EC", zorder=0)
        axes.text(low / 1.27, first - 0.82, SHORT_TRACKS[lane.track], size=7, weight="bold", va="center")
        if lane.peak:
            axes.vlines(lane.peak, first - 0.6, place - 0.4, color=GREY, linewidth=1.6)
            axes.text(lane.peak, first - 0.82, f"peak {lane.peak:.1f}", size=6, ha="center", va="center", color=GREY)
        if lane.ceiling:
            axes.vlines(lane.ceiling, first - 0.6, place - 0.4, color=GREY, linewidth=0.8, linestyle=":")
        place += 1.1
    for gap in picture.gaps:
        ends = sorted((gap.start["tflops"], gap.end["tflops"]))
        axes.plot(ends, [place, place], color="#1A1E24", linewidth=1.2, marker="|", markersize=7)
        labels.append(gap.what)
        places.append(place)
        axes.text(ends[1] * 1.06, place, gap.size, size=7, weight="bold", va="center")
        place += 0.9
    axes.set_yticks(places, labels, size=7)
    axes.set_ylim(place - 0.3, -1.3)
    axes.set_xlabel("TFLOP/s, log scale")
    axes.set_title(f"Tracks at {picture.shape}, {picture.window}", size=10)


def draw_ladder(source: Source, figure: Any) -> None:
    """The hand-written FP32 kernels in catalog order, as fractions of cuBLAS SGEMM."""
    data = figures.ladder(source.rows)
    if data is None:
        raise UsageError("no hand-written FP32 kernel was timed, so there is no ladder to draw")
    ours = [*data.rungs, *data.side]
    axes = figure.add_subplot()
    ratios = [fraction(row) or 0.0 for row in ours]
    bars = axes.bar(range(len(ours)), ratios, color=COLOURS["handwritten"])
    for bar, row in zip(bars, ours, strict=True):
        bar.set_alpha(1.0 if row is data.best else 0.6)
    axes.axhline(1.0, color=COLOURS["cublas"], linewidth=1, linestyle="--")
    axes.text(-0.4, 1.01, "cuBLAS SGEMM", size=7, va="bottom")
    axes.set_xticks(range(len(ours)), [row["name"] for row in ours], rotation=40, ha="right", size=7)
    axes.set_ylabel("time of cuBLAS SGEMM / time")
    axes.set_title(f"The ladder at {data.shape}, {figures.windows_of(ours)}; TFLOP/s in the bars", size=10)
    for place, (row, ratio) in enumerate(zip(ours, ratios, strict=True)):
        axes.text(place, ratio - 0.012, f"{row['tflops']:.1f}", ha="center", va="top", size=7)


def draw_sizes(source: Source, figure: Any) -> None:
    """A panel for each track: TFLOP/s over cubes, with the 10th to 90th percentile of the samples."""
    panels = figures.sizes(source.rows)
    if not panels:
        raise UsageError("no cube was timed, so there are no sizes to draw")
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for line in panel.lines:
            default = line.title.endswith("default")
            middle = [point.row["tflops"] for point in line.points]
            low = [value - point.lo for value, point in zip(middle, line.points, strict=True)]
            high = [point.hi - value for value, point in zip(middle, line.points, strict=True)]
            axes.errorbar(
                [point.size for point in line.points], middle, yerr=[low, high], label=line.title,
                color=COLOURS[line.family], marker=MARKERS[line.family], markersize=3 if default else 4, linewidth=1.2,
                linestyle="--" if default else "-",
            )  # fmt: skip
        if panel.peak:
            axes.axhline(panel.peak, color=GREY, linewidth=1)
            label = f"peak {panel.peak:.1f}"
            axes.text(panel.sizes[-1], panel.peak, label, size=6, ha="right", va="bottom", color=GREY)
        axes.set_xscale("log", base=2)
        axes.set_xticks(panel.sizes, [str(size) for size in panel.sizes], size=6)
        axes.minorticks_off()
        axes.tick_params(axis="y", labelsize=6)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("m = n = k", size=7)
        axes.set_title(SHORT_TRACKS[panel.track], size=8)
        axes.legend(fontsize=5, loc="lower right")
        if place == 0:
            axes.set_ylabel("TFLOP/s")


def draw_roofline(source: Source, figure: Any) -> None:
    """Kernels over the FLOP per byte that their blocks load, below the device's limits."""
    data = figures.roofline(source.rows, source.run, source.code)
    if data is None:
        raise UsageError("no timed kernel's tile is known, so no intensity is, and there is nothing to draw")
    axes = figure.add_subplot()
    right = 1.6 * max([*data.compulsory.values(), *(point.intensity for point in data.points)])
    left = min(point.intensity for point in data.points) / 1.6
    for track, peak in data.peaks.items():
        start = max(left, peak / data.bandwidth) if data.bandwidth else left
        axes.plot([start, right], [peak, peak], color=GREY, linewidth=1)
        axes.text(right, peak, f"{SHORT_TRACKS[track]} peak {peak:.1f}", size=6, ha="right", va="bottom", color=GREY)
    if data.bandwidth and data.peaks:
        end = max(data.peaks.values()) / data.bandwidth
        label = f"memory {data.bandwidth:g} TB/s"
        axes.plot([left, end], [left * data.bandwidth, end * data.bandwidth], color=GREY, linewidth=1, label=label)
    ours = []
    for point in data.points:
        _mark(axes, point.intensity, point.row["tflops"], point.row, alpha=0.85)
        if point.row["family"] == "handwritten":
            ours.append((math.log2(point.intensity), math.log2(point.row["tflops"]), rung(point.row)))
    _family_legend(axes, [point.row for point in data.points])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(bottom=min(point.row["tflops"] for point in data.points) / 2)
    axes.set_xlabel("FLOP per byte that a block loads from L2 and device memory")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"Roofline at {data.shape}, {figures.windows_of(point.row for point in data.points)}", size=10)
    marks = [(point.intensity, float(point.row["tflops"])) for point in data.points]
    labels = [(2**x, 2**y, span(names)) for x, y, names in grouped(ours, 0.3, 0.22)]
    _label_apart(figure, axes, labels, marks)


def _label_apart(
    figure: Any, axes: Any, labels: Sequence[tuple[float, float, str]], marks: Sequence[tuple[float, float]]
) -> None:
    """Write (x, y, text) beside their places, clear of one another, of marks and of what is written already.

    Further off, a thin line leads to the place. Where marks and lines leave no room a label covers as little of them as
    it can; a label for which there is no room beside other labels is left out.
    """
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    inside, point = axes.get_window_extent(), figure.dpi / 72
    taken = [text.get_window_extent() for text in axes.texts]
    taken += [legend.get_window_extent() for legend in [axes.get_legend()] if legend is not None]
    marked = [
        Bbox.from_bounds(x - MARK * point, y - MARK * point, 2 * MARK * point, 2 * MARK * point)
        for x, y in axes.transData.transform(marks)
    ]
    lines = [line.get_path().transformed(line.get_transform()) for line in axes.lines]
    for x, y, text in sorted(labels, key=lambda label: (-label[1], label[0])):
        probe = axes.text(x, y, text, size=6)
        size = probe.get_window_extent()
        probe.remove()
        at_x, at_y = axes.transData.transform((x, y))
        places = []
        for away in LABEL_REACH:
            for dx, dy in LABEL_SIDES:
                shift = (dx * (away * point + size.width / 2), dy * (away * point + size.height / 2))
                box = Bbox.from_bounds(
                    at_x + shift[0] - size.width / 2, at_y + shift[1] - size.height / 2, size.width, size.height
                )
                free = box.padded(CLEAR * point)
                if any(free.overlaps(other) for other in taken) or Bbox.union([inside, box]).bounds != inside.bounds:
                    continue
                hidden = sum(map(box.overlaps, marked)) + sum(line.intersects_bbox(box, filled=False) for line in lines)
                places.append((hidden + away / NEARER, away, shift, box))
        if not places:
            continue
        _, away, shift, box = min(places, key=lambda place: place[:2])
        taken.append(box)
        led = {"arrowstyle": "-", "color": COLOURS["handwritten"], "linewidth": 0.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate(
            text, (x, y), xytext=(shift[0] / point, shift[1] / point), textcoords="offset points", size=6,
            color=COLOURS["handwritten"], ha="center", va="center",
            arrowprops=led if away > LABEL_REACH[0] else None,
        )  # fmt: skip


def draw_accuracy(source: Source, figure: Any) -> None:
    """Largest error against TFLOP/s over all tracks: what each buys in accuracy, and what that costs."""
    data = figures.accuracy(source.rows)
    if data is None:
        raise UsageError("no timed row carries an error, so there is nothing to draw")
    axes = figure.add_subplot()
    for row in data.rows:
        _mark(axes, row["tflops"], row["max_error"], row, alpha=0.7)
    clouds = {title: [r for r in data.rows if r["track"] == track] for track, title in SHORT_TRACKS.items()}
    clouds["TF32, three passes"] = [row for row in data.rows if emulates_fp32(row)]
    for title, found in clouds.items():
        if found:
            last = max(found, key=lambda row: row["tflops"])
            shift = (0, -11) if last["track"] == "fp16_tensor" else (0, 6)
            axes.annotate(
                title, (last["tflops"], last["max_error"]), xytext=shift, textcoords="offset points", size=7, ha="right"
            )
    _family_legend(axes, data.rows)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(0.1, 0.25)
    axes.set_xlabel("TFLOP/s, log scale")
    axes.set_ylabel("largest |C - reference| / (|A| |B|)")
    axes.set_title(f"Accuracy against speed at {data.shape}, {figures.windows_of(data.rows)}", size=10)


def _mark(axes: Any, x: float, y: float, row: Mapping[str, Any], alpha: float) -> None:
    colour, marker = COLOURS[row["family"]], MARKERS[row["family"]]
    face = "none" if row["window"] == "burst" else colour
    axes.scatter([x], [y], s=20, marker=marker, facecolor=face, edgecolor=colour, alpha=alpha, zorder=3)


def _family_legend(axes: Any, rows: Rows) -> None:
    for family in figures.STRIP_ORDER:
        if any(row["family"] == family for row in rows):
            axes.scatter([], [], s=20, color=COLOURS[family], marker=MARKERS[family], label=FAMILY_TITLES[family])
    axes.legend(fontsize=6, loc="upper left")


FIGURES: dict[str, Callable[[Source, Any], None]] = {
    "tracks": draw_tracks,
    "ladder": draw_ladder,
    "sizes": draw_sizes,
    "roofline": draw_roofline,
    "accuracy": draw_accuracy,
}
