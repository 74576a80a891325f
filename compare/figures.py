"""What each figure shows, as data: one source for the page's SVG and for matplotlib. Pure functions of rows.

A figure that has nothing to show is None or empty; whoever draws it says so in words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare.report import (
    DEFAULT_INPUT,
    FAMILY_ORDER,
    GENERATED,
    TRACK_TITLES,
    Row,
    Shape,
    against_cublas,
    headline,
    is_dispatcher,
    is_timed,
    ladder_scene,
    peak_behind,
    plain,
    shape_of,
    shapes_in,
    shown_for,
)
from kernel.contract import ITEMSIZE
from kernel.intensity import BANDWIDTH, FLOP_PER_FMA, block_tile

FAMILY_TITLES = {
    "cublas": "cuBLAS",
    "torch": "PyTorch",
    "handwritten": "hand-written",
    "cutlass": "CUTLASS",
    "cute_dsl": "CuTe DSL",
}
STRIP_ORDER = ("handwritten", "cutlass", "cute_dsl", "torch", "cublas")
"""From ours to the yardstick."""
SHORT_TRACKS = {track: title.partition(" (")[0] for track, title in TRACK_TITLES.items()}


def emulates_fp32(row: Row) -> bool:
    """Whether a TF32 kernel takes three passes to reach FP32's accuracy."""
    return bool(re.search(r"tf32x3|3xtf32", str(row["name"])))


def rung(row: Row) -> str:
    """The first word of a hand-written kernel's name, such as v4; another kernel's whole name."""
    found = re.match(r"[a-z]\d+(?=_)", str(row["name"]))
    return found.group() if found and row["family"] == "handwritten" else str(row["name"])


def is_side_rung(row: Row) -> bool:
    """Whether a hand-written kernel stands beside the ladder: one whose name does not begin with v."""
    return row["family"] == "handwritten" and not str(row["name"]).startswith("v")


@dataclass(frozen=True)
class Strip:
    """One family on one track: every timed kernel of it."""

    family: str
    rows: tuple[Row, ...]

    best: Row
    """The fastest, of the sustained ones where there are any."""


@dataclass(frozen=True)
class Lane:
    """One track: its families, its datasheet peak, and what a loop that touches registers alone reached."""

    track: str
    strips: tuple[Strip, ...]
    peak: float | None
    ceiling: float | None


@dataclass(frozen=True)
class Gap:
    """A distance between two rows, in words and to scale."""

    what: str
    start: Row
    end: Row
    size: str
    """The distance alone: 9.9 x, or 1.5 %."""


@dataclass(frozen=True)
class TrackPicture:
    """Every timed kernel of one problem, by track and family."""

    shape: Shape
    rows: tuple[Row, ...]
    lanes: tuple[Lane, ...]
    gaps: tuple[Gap, ...]

    @property
    def window(self) -> str:
        return windows_of(self.rows)

    @property
    def extent(self) -> tuple[float, float]:
        """Smallest and largest TFLOP/s that the axis must show."""
        values = [float(row["tflops"]) for row in self.rows]
        peaks = [lane.peak for lane in self.lanes if lane.peak]
        return min(values), max([*values, *peaks])


def windows_of(rows: Iterable[Row]) -> str:
    """In one word which windows rows come from: sustained, burst, or both."""
    found = sorted({str(row["window"]) for row in rows}, reverse=True)
    return " or ".join(found)


def ceilings_of(run: Mapping[str, Any]) -> dict[str, float]:
    """The highest sustained ceiling of each track, TFLOP/s. What is not of that form is passed over."""
    found: dict[str, float] = {}
    for one in run.get("ceilings") or ():
        if not isinstance(one, Mapping) or one.get("window") != "sustained":
            continue
        track, tflops = one.get("track"), one.get("tflops")
        if track in TRACK_TITLES and isinstance(tflops, (int, float)) and math.isfinite(tflops):
            found[str(track)] = max(found.get(str(track), 0.0), float(tflops))
    return found


def device_of(run: Mapping[str, Any]) -> str:
    """The GPU's name, empty where the run does not state one."""
    gpu = run.get("gpu")
    return str(gpu.get("name", "")) if isinstance(gpu, Mapping) else ""


def track_picture(rows: Iterable[Row], shape: Shape, run: Mapping[str, Any]) -> TrackPicture | None:
    """The tracks at one shape; None where nothing was timed there."""
    inside = [row for row in headline(rows) if is_timed(row) and shape_of(row) == shape]
    ceilings = ceilings_of(run)
    lanes = []
    for track in TRACK_TITLES:
        strips = []
        for family in STRIP_ORDER:
            found = plain([row for row in inside if row["family"] == family and row["track"] == track])
            best = shown_for(found)
            if best is not None:
                strips.append(Strip(family, tuple(found), best))
        if strips:
            known = [strip.best for strip in strips]
            peak = next((p for row in known if (p := peak_behind(row, "pct_track_peak"))), None)
            lanes.append(Lane(track, tuple(strips), peak, ceilings.get(track)))
    shown = tuple(row for lane in lanes for strip in lane.strips for row in strip.rows)
    return TrackPicture(shape, shown, tuple(lanes), _gaps(lanes)) if lanes else None


def _gaps(lanes: Sequence[Lane]) -> tuple[Gap, ...]:
    best = {(lane.track, strip.family): strip.best for lane in lanes for strip in lane.strips}
    rungs = [row for lane in lanes for s in lane.strips for row in s.rows if lane.track == "fp32_simt"]
    rungs = [row for row in rungs if row["family"] == "handwritten" and not is_side_rung(row)]
    ours, sgemm, fp16 = (
        best.get(key) for key in (("fp32_simt", "handwritten"), ("fp32_simt", "cublas"), ("fp16_tensor", "cublas"))
    )
    found = []
    if ours is not None and len(rungs) > 1:
        factor = ours["tflops"] / rungs[0]["tflops"]
        found.append(Gap(f"the ladder, {rung(rungs[0])} to {rung(ours)}", rungs[0], ours, f"{factor:.1f} x"))
    if ours is not None and sgemm is not None:
        ratio = against_cublas(ours) or ours["tflops"] / sgemm["tflops"]
        size = f"{100 * abs(1 - ratio):.1f} %" + (" ahead" if ratio > 1 else "")
        found.append(Gap(f"same track, {rung(ours)} to cuBLAS SGEMM", ours, sgemm, size))
    if sgemm is not None and fp16 is not None:
        found.append(Gap("next track, cuBLAS SGEMM to FP16", sgemm, fp16, f"{fp16['tflops'] / sgemm['tflops']:.1f} x"))
    return tuple(found)


def track_pictures(rows: Sequence[Row], run: Mapping[str, Any]) -> tuple[TrackPicture, ...]:
    """One for each shape at which two tracks or more were timed (any shape, where none has two)."""
    found = [picture for shape in shapes_in(rows) if (picture := track_picture(rows, shape, run))]
    several = [picture for picture in found if len(picture.lanes) > 1] or found
    return tuple(sorted(several, key=lambda picture: picture.shape.m * picture.shape.n * picture.shape.k))


@dataclass(frozen=True)
class Ladder:
    """The hand-written FP32 kernels where most of them were timed, from the first rung to the fastest."""

    shape: Shape
    rungs: tuple[Row, ...]
    side: tuple[Row, ...]
    references: tuple[Row, ...]
    """CUTLASS's and CuTe's default and fastest, and cuBLAS."""
    best: Row
    peak: float | None

    @property
    def rows(self) -> tuple[Row, ...]:
        return (*self.rungs, *self.side, *self.references)

    @property
    def cublas(self) -> float | None:
        """TFLOP/s of cuBLAS SGEMM."""
        return next((float(row["tflops"]) for row in self.references if row["family"] == "cublas"), None)


def fraction(row: Row) -> float | None:
    """Time of cuBLAS on the same track over the row's."""
    return against_cublas(row)


def ladder(rows: Sequence[Row]) -> Ladder | None:
    """The ladder, or None where no hand-written FP32 kernel was timed."""
    where = ladder_scene(rows)
    ours = where.pick("handwritten", "fp32_simt") if where else []
    best = shown_for(ours)
    if where is None or best is None:
        return None
    references: list[Row] = []
    for family in (*GENERATED, "cublas"):
        found = where.pick(family, "fp32_simt")
        fast = shown_for(found)
        references += [row for row in found if row is fast or (row["is_default"] and family in GENERATED)]
    return Ladder(
        where.shape,
        tuple(row for row in ours if not is_side_rung(row)),
        tuple(row for row in ours if is_side_rung(row)),
        tuple(references),
        best,
        peak_behind(best, "pct_track_peak"),
    )


@dataclass(frozen=True)
class SizePoint:
    """One size of a line; ``lo`` and ``hi`` from the 90th and 10th percentile of the samples' times."""

    size: int
    row: Row
    lo: float
    hi: float


@dataclass(frozen=True)
class SizeLine:
    """One kernel over cubes, or whichever kernel of a family was fastest at each."""

    title: str
    family: str
    points: tuple[SizePoint, ...]


@dataclass(frozen=True)
class SizePanel:
    """One track over cubes."""

    track: str
    peak: float | None
    lines: tuple[SizeLine, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted({point.size for line in self.lines for point in line.points}))


TAIL = 1.02
"""A cube this close below a larger one is a test of the tail, not a size of its own."""


def size_point(row: Row) -> SizePoint:
    """The row with its interval in TFLOP/s."""
    time, tflops = float(row["time_us"]), float(row["tflops"])
    slow, fast = float(row["time_us_p90"] or time), float(row["time_us_p10"] or time)
    return SizePoint(int(row["m"]), row, min(tflops, tflops * time / slow), max(tflops, tflops * time / fast))


def sizes(rows: Sequence[Row]) -> tuple[SizePanel, ...]:
    """For each track: each family's fastest kernel at each cube, and the plan that a package picks by itself."""
    cubes = [row for row in headline(rows) if is_timed(row) and row["m"] == row["n"] == row["k"]]
    extents = {int(row["m"]) for row in cubes}
    tails = {size for size in extents for other in extents if size < other < TAIL * size}
    cubes = [row for row in cubes if row["m"] not in tails]
    panels = []
    for track in TRACK_TITLES:
        lines = []
        for family in FAMILY_ORDER:
            found = plain([row for row in cubes if row["track"] == track and row["family"] == family])
            best = _line(FAMILY_TITLES[family] + (", fastest" if family not in ("cublas", "torch") else ""), found)
            chosen = _line(FAMILY_TITLES[family] + ", default", [row for row in found if row["is_default"]])
            lines += [best] if best else []
            if family in GENERATED and chosen and best and chosen.points != best.points:
                lines.append(chosen)
        if lines:
            first = [point.row for line in lines for point in line.points]
            peak = next((p for row in first if (p := peak_behind(row, "pct_track_peak"))), None)
            panels.append(SizePanel(track, peak, tuple(lines)))
    return tuple(panels)


def _line(title: str, rows: Sequence[Row]) -> SizeLine | None:
    by_size: dict[int, list[Row]] = {}
    for row in rows:
        by_size.setdefault(int(row["m"]), []).append(row)
    best = [shown_for(by_size[size]) for size in sorted(by_size)]
    points = tuple(size_point(row) for row in best if row is not None)
    return SizeLine(title, points[0].row["family"], points) if points else None


@dataclass(frozen=True)
class RoofPoint:
    """One kernel under the roofline."""

    row: Row
    intensity: float
    """FLOP per byte that its blocks ask of L2 and device memory."""
    method: str


@dataclass(frozen=True)
class Roofline:
    """Kernels of one shape under the device's limits. ``bandwidth`` in TB/s, None where none is published."""

    shape: Shape
    rows: tuple[Row, ...]
    points: tuple[RoofPoint, ...]
    peaks: dict[str, float]
    bandwidth: float | None
    compulsory: dict[str, float]
    """FLOP per byte of the whole problem by track, if every element moved once."""


def roofline(rows: Sequence[Row], run: Mapping[str, Any], code: Mapping[str, Any] | None = None) -> Roofline | None:
    """The roofline where most of the ladder was timed; None where no kernel's intensity is known.

    A kernel's intensity is what one of its blocks was seen to load, where ``code`` (by kernel name, as
    :mod:`compare.code_facts` writes it) tells; else what its block tile says. A dispatcher is left out: it has no tile
    of its own, and what it picks has a point.
    """
    where = ladder_scene(rows) or _largest(rows)
    if where is None:
        return None
    inside = [row for row in headline(rows) if is_timed(row) and shape_of(row) == where.shape]
    points = [point for row in inside if not is_dispatcher(row) and (point := _roof_point(row, code or {}))]
    if not points:
        return None
    peaks: dict[str, float] = {}
    compulsory: dict[str, float] = {}
    for row in inside:
        peak = peak_behind(row, "pct_track_peak")
        if peak:
            peaks.setdefault(str(row["track"]), peak)
        m, n, k = where.shape
        moved = ITEMSIZE.get(str(row["dtype_in"]), 4) * (m * k + k * n) + ITEMSIZE.get(str(row["dtype_out"]), 4) * m * n
        compulsory.setdefault(str(row["track"]), FLOP_PER_FMA * m * n * k / moved)
    bandwidth = BANDWIDTH.get(device_of(run))
    return Roofline(where.shape, tuple(inside), tuple(points), peaks, bandwidth, compulsory)


def _largest(rows: Sequence[Row]) -> Any:
    pictures = track_pictures(rows, {})
    return pictures[-1] if pictures else None


def _roof_point(row: Row, code: Mapping[str, Any]) -> RoofPoint | None:
    seen = (code.get(str(row["name"])) or {}).get("intensity_global")
    if isinstance(seen, (int, float)) and seen > 0:
        return RoofPoint(row, float(seen), "loads of one block, as executed")
    extents = re.fullmatch(r"(\d+)x(\d+)x(\d+)", str(row["tile"] or ""))
    if not extents:  # without a k extent no block tile is staged, so the tile does not tell what is loaded
        return None
    itemsize = ITEMSIZE.get(str(row["dtype_in"]), 4)
    return RoofPoint(row, block_tile(int(extents[1]), int(extents[2]), itemsize).value, "block tile")


@dataclass(frozen=True)
class Accuracy:
    """Error against speed at one shape."""

    shape: Shape
    rows: tuple[Row, ...]


def accuracy(rows: Sequence[Row]) -> Accuracy | None:
    """Every timed row of the shape where most tracks were timed that carries an error above zero."""
    groups: dict[Shape, list[Row]] = {}
    for row in headline(rows):
        if is_timed(row) and row["max_error"] and row["input"] in (DEFAULT_INPUT, None):
            groups.setdefault(shape_of(row), []).append(row)
    if not groups:
        return None

    def rank(item: tuple[Shape, list[Row]]) -> tuple[int, int]:
        return len({row["track"] for row in item[1]}), len(item[1])

    shape, inside = max(groups.items(), key=rank)
    return Accuracy(shape, tuple(inside))


@dataclass(frozen=True)
class Slot:
    """One kernel's sustained windows, in the order in which they ran."""

    row: Row
    clocks_mhz: tuple[float, ...]
    powers_w: tuple[float, ...]
    """One a window where the run kept them, else the row's own median alone."""


def clocks(rows: Sequence[Row], samples: Sequence[Mapping[str, Any]]) -> tuple[Shape | None, tuple[Slot, ...]]:
    """Clock and power of sustained windows at the largest problem that two tracks or more share."""
    steady = [row for row in rows if is_timed(row) and row["window"] == "sustained" and row["l2"] != "cold"]
    kept = {_key(one): one for one in samples if one.get("window") == "sustained"}
    groups: dict[Shape, list[Row]] = {}
    for row in steady:
        if row["input"] in (DEFAULT_INPUT, None) and (row["sm_clock_mhz"] or row["power_w"]):
            groups.setdefault(shape_of(row), []).append(row)
    if not groups:
        return None, ()

    def rank(item: tuple[Shape, list[Row]]) -> tuple[bool, bool, int]:
        shape, inside = item
        families = {row["family"] for row in inside}
        return len({row["track"] for row in inside}) > 1, len(families) > 2, shape.m * shape.n * shape.k

    shape, inside = max(groups.items(), key=rank)
    order = [*TRACK_TITLES]
    inside.sort(key=lambda row: (order.index(row["track"]), FAMILY_ORDER.index(row["family"])))
    slots = []
    for row in inside:
        one = kept.get(_key(row), {})
        clock = _numbers(one.get("clock_mhz")) or _numbers([row["sm_clock_mhz"]])
        power = _numbers(one.get("window_power_w")) or _numbers([row["power_w"]])
        slots.append(Slot(row, clock, power))
    return shape, tuple(slots)


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("name", "variant", "m", "n", "k", "layout", "dtype_in", "dtype_out", "input", "window", "l2")
    return tuple(str(row.get(name) or "") for name in names)


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, (list, tuple)):
        return ()
    return tuple(float(value) for value in values if isinstance(value, (int, float)) and math.isfinite(value))
