"""The page's pictures: each figure of :mod:`compare.figures` as SVG, for a wide page and for a phone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from compare.drawing import (
    Drawing,
    Scale,
    decades,
    grouped,
    linear,
    logarithmic,
    number,
    round_steps,
    width_of,
)
from compare.figures import (
    FAMILY_TITLES,
    SHORT_TRACKS,
    Accuracy,
    Gap,
    Ladder,
    Lane,
    Roofline,
    SizePanel,
    Slot,
    TrackPicture,
    emulates_fp32,
    fraction,
    is_side_rung,
    rung,
)
from compare.report import Row, Shape, is_dispatcher

WIDE, NARROW = 1080, 360
"""Natural widths of the two drawings of every figure, in CSS pixels."""
PHONE = 600
"""Below this width a drawing is laid out for a phone."""

DRAWN = ("torch", "cutlass", "cute_dsl", "handwritten", "cublas")
"""Families in the order in which marks that overlap are drawn, the last on top."""
TIMES = "\N{MULTIPLICATION SIGN}"
THIN = "\N{NO-BREAK SPACE}"


def told(row: Row) -> str:
    """A row in one line, for a mark's tip."""
    parts = [str(row["name"]), f"{row['tflops']:.1f} TFLOP/s"]
    ratio = fraction(row)
    if ratio is not None:
        text = f"{ratio:.3f} {TIMES} cuBLAS"
        if row["x_cublas_lo"] is not None and row["x_cublas_hi"] is not None:
            text += f" [{row['x_cublas_lo']:.3f}, {row['x_cublas_hi']:.3f}]"
        parts.append(text)
    parts.append(str(row["window"]))
    if row["is_default"] and row["family"] in ("cutlass", "cute_dsl"):
        parts.append("the package's default")
    return " · ".join(parts)


def plural(rows: Sequence[Row]) -> str:
    """How many kernels."""
    return f"{len(rows)} kernel{'s' if len(rows) != 1 else ''}"


def _is_burst(row: Row) -> bool:
    return bool(row["window"] == "burst")


def clusters(rows: Iterable[Row], place: Scale, apart: float) -> list[tuple[float, str]]:
    """Labels of rungs that stand clear of one another: those too close share one, dispatchers have none."""
    found: list[tuple[list[float], list[str]]] = []
    rungs = [row for row in rows if not is_dispatcher(row) and (not is_side_rung(row) or row["track"] != "fp32_simt")]
    for row in sorted(rungs, key=_tflops):
        x = place(_tflops(row))
        if found and x - found[-1][0][-1] < apart:
            found[-1][0].append(x)
            found[-1][1].append(rung(row))
        else:
            found.append(([x], [rung(row)]))
    return [(sum(xs) / len(xs), span(names)) for xs, names in found]


def _tflops(row: Row) -> float:
    return float(row["tflops"])


def span(names: Sequence[str]) -> str:
    """v4, v5 and v6 as v4 to v6."""
    series: dict[str, list[str]] = {}
    for name in sorted(set(names), key=lambda name: (len(name), name)):
        series.setdefault(name[:1], []).append(name)
    spans = [group[0] if len(group) == 1 else f"{group[0]}\N{EN DASH}{group[-1]}" for group in series.values()]
    return ", ".join(sorted(spans, reverse=True))


def tracks(picture: TrackPicture, width: int = WIDE, heading: str = "") -> Drawing:
    """Every track on one log axis: families as strips, peaks as walls, and the gaps to scale below.

    ``heading`` says where it comes from, for a drawing that stands alone.
    """
    phone = width < PHONE
    left, right = (98.0, 46.0) if phone else (116.0, 176.0)
    heights = [[_strip_height(lane, place) for place in range(len(lane.strips))] for lane in picture.lanes]
    lane_head, lane_gap, gap_height = 24.0, 10.0, 40.0 if phone else 30.0
    top = 22.0
    body = sum(lane_head + sum(lane) + lane_gap for lane in heights)
    gaps_top = top + body + (26.0 if picture.gaps else 0)
    height = gaps_top + gap_height * len(picture.gaps) + 34.0
    label = f"TFLOP/s on a log axis at {picture.shape}, by track and family. " + " ".join(
        f"{SHORT_TRACKS[lane.track]}: "
        + ", ".join(f"{FAMILY_TITLES[s.family]} {s.best['tflops']:.1f}" for s in lane.strips)
        + (f", peak {lane.peak:.1f}." if lane.peak else ".")
        for lane in picture.lanes
    )
    drawing = Drawing(width, height, label)
    low, high = picture.extent
    place = logarithmic(low / 1.25, high * 1.12, left, width - right)
    axis = height - 26.0
    y = top
    for strips in heights:
        tall = lane_head + sum(strips)
        drawing.add("rect", x=0.0, y=y, width=float(width), height=tall, rx=6.0, cls="lane")
        y += tall + lane_gap
    for tick in decades(low / 1.25, high * 1.12, (1,) if phone else (1, 2, 5)):
        drawing.line(place(tick), top, place(tick), axis, "grid")
        drawing.text(place(tick), axis + 15, number(tick), "tick", "middle")
    drawing.text(10, axis + 15, "TFLOP/s", "tick")
    if heading:
        drawing.text(10, 12, heading, "what")
    drawing.text(width - (0 if phone else 92), 12, "best", "head", "end")
    if not phone:
        drawing.text(width - 8, 12, f"{TIMES} cuBLAS", "head", "end")
    y = top
    for lane, strips in zip(picture.lanes, heights, strict=True):
        drawing.text(10, y + 17, SHORT_TRACKS[lane.track], "lane-title")
        _walls(drawing, lane, place, y, y + lane_head + sum(strips), width - right)
        y += lane_head
        for strip, tall in zip(lane.strips, strips, strict=True):
            middle = y + tall - 14
            drawing.text(10, middle + 4, FAMILY_TITLES[strip.family], f"strip {strip.family}")
            drawing.line(left, middle, width - right, middle, "rail")
            if strip.family == "handwritten":
                for x, text in clusters(strip.rows, place, 27):
                    drawing.text(x, middle - 11, text, "rung", "middle")
            for row in sorted(strip.rows, key=lambda r: (r is strip.best, bool(r["is_default"]))):
                faint = row is not strip.best and (is_side_rung(row) or len(strip.rows) > 3)
                drawing.mark(
                    place(_tflops(row)), middle, strip.family, told(row),
                    hollow=_is_burst(row), faint=faint and strip.family != "handwritten",
                    size=4.2 if is_side_rung(row) and lane.track == "fp32_simt" and row is not strip.best else 5.5,
                )  # fmt: skip
            ratio = fraction(strip.best)
            drawing.text(width - (4 if phone else 92), middle + 4, f"{strip.best['tflops']:.1f}", "value", "end")
            if not phone:
                drawing.text(width - 8, middle + 4, "" if ratio is None else f"{ratio:.3f}", "value", "end")
            y += tall
        y += lane_gap
    if picture.gaps:
        drawing.text(10, gaps_top - 8, "The gaps, to the same scale", "lane-title")
    for index, gap in enumerate(picture.gaps):
        _bracket(drawing, gap, place, gaps_top + gap_height * index, left, width, phone)
    return drawing


def _strip_height(lane: Lane, place: int) -> float:
    return 38.0 if lane.strips[place].family == "handwritten" else 26.0


def _walls(drawing: Drawing, lane: Lane, place: Scale, top: float, bottom: float, right: float) -> None:
    if lane.ceiling:
        x = place(lane.ceiling)
        drawing.add("title", drawing.line(x, top + 20, x, bottom, "ceiling"), f"measured ceiling {lane.ceiling:.1f}")
    if lane.peak:
        x = place(lane.peak)
        drawing.line(x, top + 20, x, bottom, "peak")
        text = f"peak {lane.peak:.1f}"
        drawing.text(min(x, right - width_of(text) / 2 + 6), top + 15, text, "peak-text", "middle")


def _bracket(drawing: Drawing, gap: Gap, place: Scale, top: float, left: float, width: float, phone: bool) -> None:
    x0, x1 = sorted((place(_tflops(gap.start)), place(_tflops(gap.end))))
    y = top + (27 if phone else 12)
    cls = "gap " + ("ladder" if gap.start["family"] == "handwritten" == gap.end["family"] else "distance")
    drawing.add("path", d=f"M{x0:.1f} {y - 5:.1f}v10m0 -5H{x1:.1f}m0 -5v10", cls=cls)
    size = gap.size.replace(" x", f"{THIN}{TIMES}").replace(" %", f"{THIN}%")
    what = gap.what
    if phone and 10.0 + width_of(f"{size}  {what}", 12.5) > width - 10:
        what = what.partition(", ")[2] or what  # from what to what says which track it is on
    words = width_of(f"{size}  {what}", 12.5)
    if phone:
        x, anchor, y = 10.0, "start", top + 14
    elif x1 + 12 + words < width:
        x, anchor, y = x1 + 12, "start", y + 4
    else:
        x, anchor, y = x0 - 12, "end", y + 4
    text = drawing.text(x, y, "", "gap-text", anchor)
    drawing.add("tspan", text, size, cls="gap-size")
    drawing.add("tspan", text, f"  {what}", dx="4")


def ladder(data: Ladder, summaries: dict[str, str], width: int = WIDE) -> Drawing:
    """Bars from the first rung to the fastest, with the fraction of cuBLAS; side rungs and references below."""
    phone = width < PHONE
    left, right, row_height = (8.0, 10.0, 46.0) if phone else (396.0, 118.0, 36.0)
    top, group_gap = 30.0, 26.0
    groups = [
        ("the ladder", data.rungs),
        ("beside the ladder", data.side),
        ("for comparison", data.references),
    ]
    groups = [(title, rows) for title, rows in groups if rows]
    height = top + sum(row_height * len(rows) + group_gap for _, rows in groups) + 26
    best = f"{rung(data.best)} {data.best['tflops']:.1f}"
    first = f"{data.rungs[0]['name']} {data.rungs[0]['tflops']:.1f}, fastest " if data.rungs else ""
    drawing = Drawing(
        width, height, f"Bars of TFLOP/s at {data.shape}: {first}{best}, cuBLAS SGEMM {data.cublas or 0:.1f}."
    )
    most = max([_tflops(row) for row in data.rows] + ([data.peak] if data.peak else []))
    bar_right = width - right if not phone else width - 104.0
    place = linear(0, most, left, bar_right)
    bottom = height - 26
    for tick in round_steps(0, most, 4 if phone else 8):
        drawing.line(place(tick), top - 6, place(tick), bottom, "grid")
        drawing.text(place(tick), bottom + 16, number(tick), "tick", "middle" if tick else "start")
    if data.peak:
        drawing.line(place(data.peak), top - 6, place(data.peak), bottom, "peak")
        text = f"{'' if phone else 'FP32 '}peak {data.peak:.1f}"
        drawing.text(place(data.peak), top - 13, text, "peak-text", "start" if phone else "middle")
    if data.cublas:
        x = place(data.cublas)
        drawing.line(x, top - 6, x, bottom, "reference")
        drawing.text(x - 8 if not phone else min(x, width - 170.0), top - 13, "cuBLAS SGEMM", "reference-text", "end")
    y = top
    for title, rows in groups:
        drawing.text(8, y + 13, title, "group")
        y += group_gap - 6
        for row in rows:
            _bar(drawing, row, summaries, place, y, left, row_height, phone, row is data.best)
            y += row_height
        y += 6
    return drawing


def _bar(
    drawing: Drawing, row: Row, summaries: dict[str, str], place: Scale, y: float, left: float, row_height: float,
    phone: bool, best: bool,
) -> None:  # fmt: skip
    name, what = str(row["name"]), summaries.get(str(row["name"]), "")
    bar, y_bar = (16.0, y + 22) if phone else (20.0, y + 6)
    end = place(_tflops(row))
    classes = f"bar {row['family']}{'' if best or row['family'] != 'handwritten' else ' faint'}"
    rect = drawing.add("rect", x=left, y=y_bar, width=max(1.0, end - left), height=bar, rx=2.0, cls=classes)
    rect.set("data-tip", told(row))
    drawing.add("title", rect, told(row))
    ratio = fraction(row)
    label = drawing.text(end + 7, y_bar + bar / 2 + 4, f"{row['tflops']:.1f}", "value halo")
    mark = " \N{DAGGER}" if _is_burst(row) else ""
    drawing.add("tspan", label, ("" if ratio is None else f"{ratio:.3f}{THIN}{TIMES}") + mark, dx="6", cls="lesser")
    if phone:
        drawing.text(8, y + 16, _shortened(name, 46), "kernel best" if best else "kernel")
        return
    if what:
        drawing.text(left - 12, y + 14, _shortened(name, 44), "kernel best" if best else "kernel", "end")
        drawing.text(left - 12, y + 28, _shortened(what, 66), "what", "end")
    else:
        drawing.text(left - 12, y + 21, _shortened(name, 44), "kernel best" if best else "kernel", "end")


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip(" ,:;_") + "\N{HORIZONTAL ELLIPSIS}"


def sizes(panels: Sequence[SizePanel], width: int = WIDE) -> Drawing:
    """A panel for each track: TFLOP/s over cubes, with the 10th to 90th percentile of the samples."""
    phone = width < PHONE
    columns = 1 if phone else min(3, len(panels))
    panel_height, gutter, left = (230.0, 18.0, 38.0) if phone else (320.0, 34.0, 38.0)
    panel_width = (width - gutter * (columns - 1)) / columns
    label = "TFLOP/s over m = n = k. " + " ".join(
        f"{SHORT_TRACKS[panel.track]}: "
        + "; ".join(f"{line.title} " + ", ".join(f"{p.row['tflops']:.1f}" for p in line.points) for line in panel.lines)
        + f" at {', '.join(map(str, panel.sizes))}."
        for panel in panels
    )
    rows = -(-len(panels) // columns)
    drawing = Drawing(width, rows * panel_height, label)
    for index, panel in enumerate(panels):
        x0 = (index % columns) * (panel_width + gutter)
        y0 = (index // columns) * panel_height
        _size_panel(drawing, panel, x0 + left, y0 + 34, x0 + panel_width - 8, y0 + panel_height - 34)
    return drawing


def _size_panel(drawing: Drawing, panel: SizePanel, left: float, top: float, right: float, bottom: float) -> None:
    drawing.text(left - 30, top - 20, SHORT_TRACKS[panel.track], "lane-title")
    most = max([point.hi for line in panel.lines for point in line.points] + ([panel.peak] if panel.peak else []))
    upwards = linear(0, most * 1.04, bottom, top)
    known = panel.sizes
    across = logarithmic(known[0] / 1.15, known[-1] * 1.15, left, right)
    for tick in round_steps(0, most, 5):
        drawing.line(left, upwards(tick), right, upwards(tick), "grid")
        drawing.text(left - 6, upwards(tick) + 4, number(tick), "tick", "end")
    last = left - 40
    for size in known:
        if across(size) - last > 34:
            drawing.text(across(size), bottom + 17, str(size), "tick", "middle")
            last = across(size)
    if panel.peak:
        drawing.line(left, upwards(panel.peak), right, upwards(panel.peak), "peak")
        drawing.text(right, upwards(panel.peak) - 6, f"peak {panel.peak:.1f}", "peak-text", "end")
    for line in panel.lines:
        points = [(across(point.size), upwards(_tflops(point.row))) for point in line.points]
        is_default = line.title.endswith("default")
        if len(points) > 1:
            d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            drawing.add("path", d=d, cls=f"curve {line.family}{' dashed' if is_default else ''}")
        for point, (x, y) in zip(line.points, points, strict=True):
            drawing.line(x, upwards(point.lo), x, upwards(point.hi), f"interval {line.family}")
            tip = f"{point.size}: {told(point.row)} · p10 to p90 {point.lo:.1f} to {point.hi:.1f}"
            radius = 3.2 if is_default else 4.4
            drawing.mark(x, y, line.family, tip, size=radius, hollow=_is_burst(point.row), faint=is_default)


def roofline(data: Roofline, width: int = WIDE) -> Drawing:
    """Kernels over the FLOP per byte that their blocks ask of L2 and device memory, below the device's limits."""
    phone = width < PHONE
    height = 420.0 if phone else 470.0
    left, right, top, bottom = 44.0, width - 18.0, 16.0, height - 44.0
    values = [point.intensity for point in data.points]
    low_x, high_x = min(values) / 1.6, max([*values, *data.compulsory.values()]) * 1.6
    tflops = [_tflops(point.row) for point in data.points]
    low_y, high_y = min(tflops) / 1.8, max([*tflops, *data.peaks.values()]) * 1.6
    across, upwards = logarithmic(low_x, high_x, left, right), logarithmic(low_y, high_y, bottom, top)
    drawing = Drawing(
        width, height, f"Roofline at {data.shape}: TFLOP/s over FLOP per byte, {plural([p.row for p in data.points])}."
    )
    _log_axes(
        drawing, across, upwards, (low_x, high_x, low_y, high_y), (left, top, right, bottom), phone,
        "FLOP per byte that a block loads", "TFLOP/s",
    )  # fmt: skip
    for track, peak in data.peaks.items():
        start = max(low_x, peak / data.bandwidth) if data.bandwidth else low_x
        drawing.line(across(start), upwards(peak), right, upwards(peak), "roof")
        text = f"{SHORT_TRACKS[track].partition(' ')[0] if phone else SHORT_TRACKS[track]} peak {peak:.1f}"
        drawing.text(
            right - 4,
            upwards(peak) + (13 if phone and peak < max(data.peaks.values()) else -6),
            text,
            "peak-text halo",
            "end",
        )
    if data.bandwidth:
        limit = max(data.peaks.values(), default=high_y)
        x0, x1 = max(low_x, low_y / data.bandwidth), min(high_x, limit / data.bandwidth)
        drawing.line(across(x0), upwards(x0 * data.bandwidth), across(x1), upwards(x1 * data.bandwidth), "roof")
        (x, y), (end_x, end_y) = ((across(v), upwards(v * data.bandwidth)) for v in (x0, x1))
        angle = math.degrees(math.atan2(end_y - y, end_x - x))
        drawing.add(
            "text", text=f"memory {data.bandwidth:g} TB/s", x=0.0, y=15.0, cls="peak-text halo", text_anchor="middle",
            transform=f"translate({x + 0.68 * (end_x - x):.1f} {y + 0.68 * (end_y - y):.1f}) rotate({angle:.1f})",
        )  # fmt: skip
    for point in sorted(data.points, key=lambda p: DRAWN.index(p.row["family"])):
        tip = f"{told(point.row)} · {point.intensity:.1f} FLOP/byte ({point.method})"
        faint = point.row["family"] not in ("handwritten", "cublas")
        drawing.mark(
            across(point.intensity), upwards(_tflops(point.row)), point.row["family"], tip,
            hollow=_is_burst(point.row), faint=faint, size=4.6,
        )  # fmt: skip
    ours = [point for point in data.points if point.row["family"] == "handwritten" and not is_dispatcher(point.row)]
    _label_rungs(drawing, [(across(p.intensity), upwards(_tflops(p.row)), rung(p.row)) for p in ours], phone)
    return drawing


def _label_rungs(drawing: Drawing, points: Sequence[tuple[float, float, str]], phone: bool) -> None:
    """Names of rungs right of their marks; those that stand close together share one label."""
    near, close = (44, 30) if phone else (30, 13)
    taken: list[tuple[float, float, float]] = []
    for x, y, names in grouped(points, near, close):
        text, left = span(names), x + 9
        places = [y + shift for shift in (4, 19, -11, 34, -26)]
        drawing.text(left, first_free(taken, left, width_of(text, 12.5), places, (4, 15)), text, "rung halo")


def first_free(
    taken: list[tuple[float, float, float]],
    left: float,
    wide: float,
    places: Sequence[float],
    clear: tuple[float, float],
) -> float:
    """The first height at which a label keeps ``clear`` (across, upwards) of those before it, else the first of all.

    ``taken`` holds left edge, height and width of each label; this one joins it.
    """

    def is_free(y: float) -> bool:
        return not any(
            left < other + width + clear[0] and other < left + wide + clear[0] and abs(y - high) < clear[1]
            for other, high, width in taken
        )

    y = next(filter(is_free, places), places[0])
    taken.append((left, y, wide))
    return y


def _log_axes(
    drawing: Drawing, across: Scale, upwards: Scale, extent: tuple[float, float, float, float],
    box: tuple[float, float, float, float], phone: bool, x_title: str, y_title: str,
    y_text: Callable[[float], str] = number,
) -> None:  # fmt: skip
    low_x, high_x, low_y, high_y = extent
    left, top, right, bottom = box
    steps = (1,) if phone and high_x / low_x > 30 else (1, 2, 5)
    for tick in decades(low_x, high_x, steps):
        drawing.line(across(tick), top, across(tick), bottom, "grid")
        drawing.text(across(tick), bottom + 16, number(tick), "tick", "middle")
    for tick in decades(low_y, high_y, (1, 2, 5) if high_y / low_y < 3000 else (1,)):
        drawing.line(left, upwards(tick), right, upwards(tick), "grid")
        drawing.text(left - 6, upwards(tick) + 4, y_text(tick), "tick", "end")
    drawing.text((left + right) / 2, bottom + 35, x_title, "axis", "middle")
    drawing.add(
        "text",
        text=y_title,
        x=0.0,
        y=0.0,
        cls="axis",
        text_anchor="end",
        transform=f"translate({left + 14:g} {top:g}) rotate(-90)",
    )


SUPERSCRIPT = str.maketrans("-0123456789", "\N{SUPERSCRIPT MINUS}⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(value: float) -> str:
    """1e-7 as a tick."""
    text = f"{value:.0e}"
    digit, _, exponent = text.partition("e")
    tail = "10" + str(int(exponent)).translate(SUPERSCRIPT)
    return tail if digit == "1" else f"{digit}·{tail}"


def accuracy(data: Accuracy, width: int = WIDE) -> Drawing:
    """Error over speed: right is faster, down is more exact."""
    phone = width < PHONE
    height = 320.0 if phone else 360.0
    left, right, top, bottom = 52.0, width - 18.0, 16.0, height - 44.0
    speeds, errors = [_tflops(row) for row in data.rows], [float(row["max_error"]) for row in data.rows]
    low_x, high_x = min(speeds) / 1.4, max(speeds) * 1.6
    low_y, high_y = min(errors) / 2.5, max(errors) * 3
    across, upwards = logarithmic(low_x, high_x, left, right), logarithmic(low_y, high_y, bottom, top)
    per_track = [
        (track, [row for row in data.rows if row["track"] == track])
        for track in SHORT_TRACKS
        if any(row["track"] == track for row in data.rows)
    ]
    label = f"Largest error over TFLOP/s at {data.shape}. " + " ".join(
        f"{SHORT_TRACKS[track]}: errors {min(r['max_error'] for r in found):.1e} to "
        f"{max(r['max_error'] for r in found):.1e}, up to {max(r['tflops'] for r in found):.1f} TFLOP/s."
        for track, found in per_track
    )
    drawing = Drawing(width, height, label)
    _log_axes(
        drawing, across, upwards, (low_x, high_x, low_y, high_y), (left, top, right, bottom), phone,
        "TFLOP/s", "largest error", power_of_ten,
    )  # fmt: skip
    for row in sorted(data.rows, key=lambda r: DRAWN.index(r["family"])):
        tip = f"{told(row)} · error {row['max_error']:.2e}"
        drawing.mark(
            across(_tflops(row)), upwards(float(row["max_error"])), row["family"], tip,
            hollow=_is_burst(row), size=4.8, faint=row["family"] not in ("handwritten", "cublas"),
        )  # fmt: skip
    _label_groups(drawing, per_track, across, upwards, right)
    return drawing


def _label_groups(
    drawing: Drawing, per_track: Sequence[tuple[str, Sequence[Row]]], across: Scale, upwards: Scale, right: float
) -> None:
    """What each cloud is: a track, and in it the kernels that emulate FP32 in three passes."""
    taken: list[tuple[float, float, float]] = []
    for track, rows in per_track:
        emulated = [row for row in rows if emulates_fp32(row)]
        plain = [row for row in rows if row not in emulated]
        for title, found in ((SHORT_TRACKS[track], plain), ("TF32, three passes", emulated)):
            if not found:
                continue
            xs = [across(_tflops(row)) for row in found]
            errors = [upwards(float(row["max_error"])) for row in found]
            half = width_of(title, 12.5) / 2
            x = min(max((min(xs) + max(xs)) / 2, half), right - half)
            places = (min(errors) - 12, max(errors) + 22, min(errors) - 34, max(errors) + 44)
            y = first_free(taken, x - half, 2 * half, places, (12, 21))
            drawing.text(x, y, title, "lane-title halo", "middle")


def clocks(slots: Sequence[Slot], shape: Shape, width: int = WIDE) -> Drawing:
    """Clock above and power below, a column for each kernel, its windows from left to right in time."""
    phone = width < PHONE
    left, right = 46.0, float(width - 6)
    panel, names = (120.0, 136.0) if phone else (150.0, 150.0)
    height = 2 * panel + names + 72
    powers = [value for slot in slots for value in slot.powers_w]
    mhz = [value for slot in slots for value in slot.clocks_mhz]
    label = f"SM clock and board power in sustained windows at {shape}. " + " ".join(
        f"{slot.row['name']}: "
        + (f"{min(slot.clocks_mhz):.0f} to {max(slot.clocks_mhz):.0f} MHz" if slot.clocks_mhz else "no clock")
        + (f", {sum(slot.powers_w) / len(slot.powers_w):.0f} W." if slot.powers_w else ".")
        for slot in slots
    )
    drawing = Drawing(width, height, label)
    step = (right - left) / max(len(slots), 1)
    panels = (("SM clock, MHz", mhz, 40.0), ("board power, W", powers, 40.0 + panel + 30))
    for (title, values, top), kind in zip(panels, ("clock", "power"), strict=True):
        drawing.text(left + 8, top - 5, title, "axis")
        if not values:
            continue
        margin = 0.08 * (max(values) - min(values)) or 0.05 * max(values)
        low, high = min(values) - margin, max(values) + margin
        upwards = linear(low, high, top + panel, top + 6)
        for tick in round_steps(low, high, 4):
            drawing.line(left, upwards(tick), right, upwards(tick), "grid")
            drawing.text(left - 6, upwards(tick) + 4, f"{tick:.0f}", "tick", "end")
        for index, slot in enumerate(slots):
            shown = slot.clocks_mhz if kind == "clock" else slot.powers_w
            _slot(drawing, slot.row, shown, left + index * step, step, upwards, kind)
    tracks_seen: list[str] = []
    base = panels[1][2] + panel
    for index, slot in enumerate(slots):
        x = left + index * step
        if slot.row["track"] not in tracks_seen:
            tracks_seen.append(slot.row["track"])
            drawing.line(x, 4, x, base + names, "divider")
            if not phone:
                title = SHORT_TRACKS[slot.row["track"]]
                room = step * sum(other.row["track"] == slot.row["track"] for other in slots)
                drawing.text(x + 8, 15, title if width_of(title, 12.5) + 12 < room else title.split()[0], "lane-title")
        name = _shortened(_plain_name(slot.row), 20 if phone else 26)
        drawing.add(
            "text", text=name, x=0.0, y=0.0, cls="kernel small", text_anchor="end",
            transform=f"translate({x + step / 2 + 4:.1f} {base + 12:.1f}) rotate({-90 if step < 34 else -48})",
        )  # fmt: skip
    return drawing


def _plain_name(row: Row) -> str:
    """A name short enough to stand below a column: what a generated name shares with its neighbours is cut."""
    name = str(row["name"])
    return re.sub(r"_(rr|rc|cr|cc)(?=_|$)|_persistent|_sm90|^cutlass_(?=.{22})", "", name)


def _slot(
    drawing: Drawing, row: Row, values: Sequence[float], start: float, step: float, upwards: Scale, kind: str
) -> None:
    inner = 0.72 * step
    begin = start + (step - inner) / 2
    xs = [begin + inner * (i / (len(values) - 1) if len(values) > 1 else 0.5) for i in range(len(values))]
    if len(values) > 1:
        d = "M" + "L".join(f"{x:.1f} {upwards(v):.1f}" for x, v in zip(xs, values, strict=True))
        drawing.add("path", d=d, cls=f"curve thin {row['family']}")
    unit = "MHz" if kind == "clock" else "W"
    for place, (x, value) in enumerate(zip(xs, values, strict=True)):
        which = f"window {place + 1} of {len(values)}" if len(values) > 1 else "median of the windows"
        drawing.mark(x, upwards(value), row["family"], f"{row['name']} · {which} · {value:.0f} {unit}", size=3.0)
