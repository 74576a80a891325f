"""A run as one HTML file: figures, a table that sorts and filters, provenance. A pure function of what the run holds.

The page asks nothing of the network, and its policy forbids it to. Whatever comes from rows is data: the template
escapes it, charts are built as elements, and the script writes it as text.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare import charts, figures
from compare.drawing import Drawing, outline
from compare.figures import FAMILY_TITLES, SHORT_TRACKS, device_of, fraction, windows_of
from compare.report import (
    NOTHING_TIMED,
    Row,
    closing_lines,
    cutlass_lines,
    form_of,
    gaps,
    is_timed,
    ladder_scene,
    picojoules_a_flop,
    shape_of,
    shapes_in,
)
from compare.rows import COLUMNS, NAMES

if TYPE_CHECKING:
    from markupsafe import Markup

PAGE = Path(__file__).resolve().parent / "page"

DETAILS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What ran", (
        "name", "variant", "family", "track", "instruction", "arch", "tile", "stages", "swizzle", "m", "n", "k",
        "layout", "dtype_in", "dtype_acc", "dtype_out", "input", "shape_set", "kernel_name", "compiler", "is_default",
        "skipped_because",
    )),
    ("Time", (
        "window", "l2", "timer", "samples", "time_us", "time_us_p10", "time_us_p90", "tflops", "unstable",
        "sm_clock_mhz", "power_w", "throttle",
    )),
    ("Against", (
        "x_cublas", "x_cublas_lo", "x_cublas_hi", "x_cublas_sgemm", "pct_track_peak", "pct_track_peak_at_clock",
        "pct_fp16_peak", "pct_ceiling", "ceiling_tflops",
    )),
    ("Check", ("ok", "max_error", "error_bound")),
    ("Resources", ("registers", "spill_bytes", "smem_bytes", "occupancy_pct")),
    ("Where", ("gpu_name", "gpu_index", "gpu_uuid_hash", "retried_because")),
)  # fmt: skip
"""Every column of a row, in the groups in which its details are shown."""
MOST_VIEWS = 12
"""Tabs that a figure can have: report.css shows as many."""


@dataclass(frozen=True)
class Numbers:
    """The numbers behind a figure, for those who cannot or will not read them off it."""

    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class View:
    """One drawing of a figure, for a wide page and for a phone, with its numbers."""

    title: str
    wide: Markup
    narrow: Markup
    numbers: Numbers


@dataclass(frozen=True)
class Figure:
    """One section with a picture. Several views become tabs; none means that there is nothing to show."""

    id: str
    title: str
    caption: str
    views: tuple[View, ...] = ()
    chosen: int = 0
    absent: str = ""
    families: tuple[str, ...] = field(default=())
    keys: tuple[tuple[str, str], ...] = ()
    """What lines and hollow marks mean: (class, words)."""


def render(
    rows: Iterable[Row],
    run: Mapping[str, Any],
    *,
    samples: Sequence[Mapping[str, Any]] = (),
    code: Mapping[str, Any] | None = None,
    summaries: Mapping[str, str] | None = None,
) -> str:
    """The page.

    Args:
        rows: mappings with every column of :mod:`compare.rows`.
        run: run.json's content.
        samples: what samples.json.gz holds; without it, clock and power are medians.
        code: what :mod:`compare.code_facts` kept, by kernel name; without it, no loop mix is shown.
        summaries: what each kernel adds, by name.
    """
    import jinja2

    rows = list(rows)
    style, script = chart_style() + _file("report.css"), _file("report.js")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    page = environment.get_template("report.html.j2")
    return (
        page.render(
            style=_trusted(f"\n{style}"),
            script=_trusted(f"\n{script}"),
            style_hash=_hash(f"\n{style}"),
            script_hash=_hash(f"\n{script}"),
            device=device_of(run) or "unknown GPU",
            date=str(run.get("date", ""))[:10],
            revision=str(run.get("revision", "unknown")),
            cards=_cards(rows),
            remarks=cutlass_lines(rows),
            figures=_figures(rows, run, samples, code or {}, summaries or {}),
            families=FAMILY_TITLES,
            outline=outline,
            table=_table(rows),
            data={
                "columns": NAMES,
                "rows": [[row[name] for name in NAMES] for row in _ordered(rows)],
                "details": DETAILS,
                "meanings": {column.name: column.meaning for column in COLUMNS},
                "code": dict(code or {}),
            },
            columns=COLUMNS,
            provenance=_provenance(run),
            ceilings=_ceilings(run),
            cublas_kernels=_pairs(run.get("cublas_kernels")),
        )
        + "\n"
    )


def chart_style() -> str:
    """Colours and strokes of drawings, for light and dark."""
    return _file("chart.css")


def _file(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _trusted(text: str) -> Markup:
    """Text of this package's own files and drawings, which need no escaping."""
    from markupsafe import Markup

    return Markup(text)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _cards(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The two gaps: a figure to remember, and the sentence that says what it is."""
    same, different = closing_lines(rows, longest_entry=0)
    found = gaps(rows)
    ratio, factor = (found.ratio, found.factor) if found else (None, None)
    behind = "" if ratio is None else "behind cuBLAS" if ratio < 1 else "ahead of cuBLAS"
    return [
        {
            "title": "Same track",
            "size": "–" if ratio is None else f"{100 * abs(1 - ratio):.1f} %",
            "what": behind,
            "sentence": same,
        },
        {
            "title": "Next track",
            "size": "–" if factor is None else f"{factor:.1f} ×",
            "what": "" if factor is None else "from FP32 SIMT to FP16 Tensor Core",
            "sentence": different,
        },
    ]


def _figures(
    rows: Sequence[Row],
    run: Mapping[str, Any],
    samples: Sequence[Mapping[str, Any]],
    code: Mapping[str, Any],
    summaries: Mapping[str, str],
) -> list[Figure]:
    burst = (("hollow", "hollow: burst window; filled: sustained"),)
    return [
        _tracks(rows, run, burst),
        _ladder(rows, summaries),
        _sizes(rows, burst),
        _roofline(rows, run, code, burst),
        _accuracy(rows, burst),
        _clocks(rows, samples),
    ]


def _view(title: str, wide: Drawing, narrow: Drawing, numbers: Numbers) -> View:
    for drawing, name in ((wide, "wide"), (narrow, "narrow")):
        drawing.root.set("class", f"{drawing.root.get('class')} {name}")
    return View(title, _trusted(wide.svg()), _trusted(narrow.svg()), numbers)


def _families(rows: Iterable[Row]) -> tuple[str, ...]:
    present = {row["family"] for row in rows}
    return tuple(family for family in figures.STRIP_ORDER if family in present)


def _tracks(rows: Sequence[Row], run: Mapping[str, Any], burst: tuple[tuple[str, str], ...]) -> Figure:
    pictures = figures.track_pictures(rows, run)
    # Of as many kernels, cubes first.
    fullest = sorted(pictures, key=lambda picture: (-len(picture.rows), len(set(picture.shape))))[:MOST_VIEWS]
    pictures = tuple(picture for picture in pictures if picture in fullest)
    steps = ladder_scene(rows)
    chosen = next((i for i, picture in enumerate(pictures) if steps and picture.shape == steps.shape), 0)
    views = []
    for picture in pictures:
        lines = [
            (SHORT_TRACKS[lane.track], FAMILY_TITLES[s.family], str(row["name"]), *_speed(row))
            for lane in picture.lanes
            for s in lane.strips
            for row in sorted(s.rows, key=lambda r: -r["tflops"])
        ]
        views.append(
            _view(
                f"{_shape_text(picture.shape)}",
                charts.tracks(picture),
                charts.tracks(picture, charts.NARROW),
                Numbers(("track", "family", "kernel", *SPEED_HEADS), tuple(lines)),
            )
        )
    caption = (
        "Every kernel that was timed, on one axis. Each mark is a kernel; the numbers at the right belong to the "
        "fastest of its row. Solid walls are datasheet peaks, dashed ones the most that a loop without memory reached "
        "in this run. Problems that were timed for few kernels have no picture; all rows are in the table below."
    )
    shown = [row for picture in pictures for row in picture.rows]
    keys = burst if any(row["window"] == "burst" for row in shown) else ()
    return Figure(
        "tracks", "The tracks", caption, tuple(views), chosen, "" if views else NOTHING_TIMED, _families(shown), keys
    )


def _ladder(rows: Sequence[Row], summaries: Mapping[str, str]) -> Figure:
    data = figures.ladder(rows)
    title = "The ladder"
    if data is None:
        return Figure("ladder", title, "", absent="No hand-written FP32 kernel was timed.")
    words = {str(row["name"]): summaries.get(str(row["name"]), "") for row in data.rows}
    lines = tuple((str(row["name"]), words[str(row["name"])], *_speed(row)) for row in data.rows)
    caption = (
        f"TFLOP/s and the fraction of cuBLAS SGEMM, from the first rung to the fastest ({data.best['name']}), at "
        f"{_shape_text(data.shape)}, {windows_of(data.rows)}. What each rung adds stands beside it."
    )
    view = _view(
        "", charts.ladder(data, words), charts.ladder(data, words, charts.NARROW),
        Numbers(("kernel", "what it adds", *SPEED_HEADS), lines),
    )  # fmt: skip
    return Figure("ladder", title, caption, (view,))


def _sizes(rows: Sequence[Row], burst: tuple[tuple[str, str], ...]) -> Figure:
    panels = figures.sizes(rows)
    if not panels:
        return Figure("sizes", "Speed by size", "", absent="No cube was timed.")
    lines = tuple(
        (SHORT_TRACKS[panel.track], line.title, str(p.size), str(p.row["name"]), *_speed(p.row), _interval(p))
        for panel in panels
        for line in panel.lines
        for p in line.points
    )  # fmt: skip
    caption = (
        "Each family's fastest kernel at each cube, and what CUTLASS picks by itself. Vertical bars span the 10th to "
        "the 90th percentile of the samples; most are shorter than their mark."
    )
    view = _view(
        "", charts.sizes(panels), charts.sizes(panels, charts.NARROW),
        Numbers(("track", "line", "m = n = k", "kernel", *SPEED_HEADS, "p10 to p90"), lines),
    )  # fmt: skip
    shown = [p.row for panel in panels for line in panel.lines for p in line.points]
    keys = (
        *(burst if any(row["window"] == "burst" for row in shown) else ()),
        ("dashed", "dashed: a package's default"),
    )
    return Figure("sizes", "Speed by size", caption, (view,), families=_families(shown), keys=keys)


def _roofline(
    rows: Sequence[Row], run: Mapping[str, Any], code: Mapping[str, Any], burst: tuple[tuple[str, str], ...]
) -> Figure:
    data = figures.roofline(rows, run, code)
    if data is None:
        return Figure("roofline", "Roofline", "", absent="No kernel's tile is known, so no intensity is.")
    lines = tuple(
        (str(p.row["name"]), SHORT_TRACKS[p.row["track"]], f"{p.intensity:.1f}", p.method, *_speed(p.row))
        for p in sorted(data.points, key=lambda p: -p.row["tflops"])
    )
    whole = ", ".join(f"{SHORT_TRACKS[track]} {value:.0f}" for track, value in data.compulsory.items())
    caption = (
        f"Across: FLOP per byte that a kernel's blocks ask of L2 and device memory, at {_shape_text(data.shape)}. "
        "Marks above the slope are served by caches. With every element moved once the whole problem has, in FLOP "
        f"per byte: {whole}."
    )
    if data.bandwidth is None:
        caption += " No published memory bandwidth is known for this device, so there is no slope."
    view = _view(
        "", charts.roofline(data), charts.roofline(data, charts.NARROW),
        Numbers(("kernel", "track", "FLOP/byte", "counted by", *SPEED_HEADS), lines),
    )  # fmt: skip
    shown = [p.row for p in data.points]
    keys = burst if any(row["window"] == "burst" for row in shown) else ()
    return Figure("roofline", "Roofline", caption, (view,), families=_families(shown), keys=keys)


def _accuracy(rows: Sequence[Row], burst: tuple[tuple[str, str], ...]) -> Figure:
    data = figures.accuracy(rows)
    if data is None:
        return Figure("accuracy", "Accuracy against speed", "", absent="No timed row carries an error.")
    lines = tuple(
        (str(row["name"]), SHORT_TRACKS[row["track"]], f"{row['max_error']:.2e}", *_speed(row))
        for row in sorted(data.rows, key=lambda row: row["max_error"])
    )
    caption = (
        "Largest |C − reference| / (|A| |B|) against float64, on U[-1, 1], at "
        f"{_shape_text(data.shape)}: what the FP32 track buys over TF32, TF32 in three passes, and FP16. "
        "Right is faster, down is more exact."
    )
    view = _view(
        "", charts.accuracy(data), charts.accuracy(data, charts.NARROW),
        Numbers(("kernel", "track", "largest error", *SPEED_HEADS), lines),
    )  # fmt: skip
    keys = burst if any(row["window"] == "burst" for row in data.rows) else ()
    return Figure("accuracy", "Accuracy against speed", caption, (view,), families=_families(data.rows), keys=keys)


def _clocks(rows: Sequence[Row], samples: Sequence[Mapping[str, Any]]) -> Figure:
    shape, slots = figures.clocks(rows, samples)
    title = "Clock and power over time"
    if shape is None:
        return Figure("clocks", title, "", absent="No sustained window kept a clock or a power.")
    lines = tuple(
        (
            str(slot.row["name"]),
            SHORT_TRACKS[slot.row["track"]],
            ", ".join(f"{value:.0f}" for value in slot.clocks_mhz),
            ", ".join(f"{value:.0f}" for value in slot.powers_w),
            str(slot.row["throttle"] or ""),
        )
        for slot in slots
    )
    caption = (
        f"Sustained windows at {_shape_text(shape)}, a column for each kernel, its windows from left to right in the "
        "order in which they ran. The clock is read inside kernels, the power over whole windows."
    )
    view = _view(
        "", charts.clocks(slots, shape), charts.clocks(slots, shape, charts.NARROW),
        Numbers(("kernel", "track", "MHz, window by window", "W", "throttle"), lines),
    )  # fmt: skip
    return Figure("clocks", title, caption, (view,), families=_families(slot.row for slot in slots))


def _interval(point: figures.SizePoint) -> str:
    return f"{point.lo:.1f} to {point.hi:.1f}"


SPEED_HEADS = ("TFLOP/s", "× cuBLAS", "window")


def _speed(row: Row) -> tuple[str, str, str]:
    ratio = fraction(row)
    return f"{row['tflops']:.1f}", "" if ratio is None else f"{ratio:.3f}", str(row["window"])


def _shape_text(shape: Sequence[int]) -> str:
    m, n, k = shape
    return f"{m}³" if m == n == k else f"{m} × {n} × {k}"


@dataclass(frozen=True)
class Cell:
    """A cell of the big table. ``value`` is what it is sorted by, empty where the row has none."""

    text: str
    value: str = ""


@dataclass(frozen=True)
class TableColumn:
    """A column of it: ``kind`` is text or number, ``keep`` whether a phone shows it."""

    title: str
    kind: str
    keep: bool
    hint: str


TABLE_COLUMNS = (
    TableColumn("kernel", "text", True, "details on click"),
    TableColumn("track", "text", False, ""),
    TableColumn("m × n × k", "number", False, "sorted by the number of operations"),
    TableColumn("layout", "text", False, "of A and B, and the type of C where it is not theirs"),
    TableColumn("window", "text", False, "how it was timed"),
    TableColumn("TFLOP/s", "number", True, ""),
    TableColumn("× cuBLAS", "number", True, "same track, layout and output type; 95 % interval in the details"),
    TableColumn("time, µs", "number", False, "median of the samples"),
    TableColumn("% of peak", "number", False, "of the track's datasheet peak"),
    TableColumn("error", "number", False, "largest |C − reference| / (|A| |B|)"),
    TableColumn("MHz", "number", False, "SM clock while samples were taken"),
    TableColumn("W", "number", False, "board power; sustained only"),
    TableColumn("pJ/FLOP", "number", False, "board power over FLOP/s; sustained only"),
    TableColumn("regs", "number", False, "registers a thread"),
)


def _ordered(rows: Sequence[Row]) -> list[Row]:
    """Fastest first; what was not timed last."""
    return sorted(rows, key=lambda row: -float(row["tflops"]) if is_timed(row) else math.inf)


def _window_text(row: Row) -> str:
    if not is_timed(row):
        return "failed" if row["ok"] is False else "not run"
    return str(row["window"]) + (", cold L2" if row["l2"] == "cold" else "")


def _cell(row: Row, column: str, form: str, timed_only: bool = True) -> Cell:
    value = row[column]
    if value is None or (timed_only and not is_timed(row)):
        return Cell("")
    return Cell(format(value, form), repr(value))


def _energy(row: Row) -> Cell:
    energy = picojoules_a_flop(row)
    return Cell("") if energy is None else Cell(f"{energy:.3f}", repr(energy))


def _table(rows: Sequence[Row]) -> dict[str, Any]:
    """Heads, lines and filters of the big table."""
    lines = []
    for row in _ordered(rows):
        ratio = fraction(row) if is_timed(row) else None
        shape = shape_of(row)
        lines.append(
            {
                "cells": (
                    Cell(str(row["name"]), str(row["name"])),
                    Cell(SHORT_TRACKS[row["track"]].partition(" ")[0], str(row["track"])),
                    Cell(_shape_text(shape), str(shape.m * shape.n * shape.k)),
                    Cell("" if row["layout"] is None else form_of(row), form_of(row)),
                    Cell(_window_text(row), _window_text(row)),
                    _cell(row, "tflops", ".1f"),
                    Cell("" if ratio is None else f"{ratio:.3f}", "" if ratio is None else repr(ratio)),
                    _cell(row, "time_us", ",.1f"),
                    _cell(row, "pct_track_peak", ".1f"),
                    _cell(row, "max_error", ".1e", timed_only=False),
                    _cell(row, "sm_clock_mhz", ".0f"),
                    _cell(row, "power_w", ".0f"),
                    _energy(row),
                    _cell(row, "registers", "d", timed_only=False),
                ),
                "family": row["family"],
                "track": row["track"],
                "shape": str(shape),
                "window": _window_text(row),
                "state": "" if is_timed(row) else "failed" if row["ok"] is False else "absent",
                "search": " ".join(str(row[name]) for name in ("name", "variant", "kernel_name", "tile") if row[name]),
                "is_default": bool(row["is_default"]) and row["family"] in ("cutlass", "cute_dsl"),
            }
        )
    steps = ladder_scene(rows)
    present = {row["track"] for row in rows}
    windows = list(dict.fromkeys(str(line["window"]) for line in lines))
    preferred = "sustained" if any(
        line["window"] == "sustained" and steps and line["shape"] == str(steps.shape) for line in lines
    ) else ""  # fmt: skip
    return {
        "columns": TABLE_COLUMNS,
        "lines": lines,
        "filters": (
            _filter("track", "Track", [(t, text) for t, text in SHORT_TRACKS.items() if t in present]),
            _filter("family", "Family", [(f, FAMILY_TITLES[f]) for f in _families(rows)]),
            _filter(
                "shape", "Size", [(str(shape), _shape_text(shape)) for shape in sorted(shapes_in(rows), key=math.prod)],
                str(steps.shape) if steps else "",
            ),
            _filter("window", "Window", [(window, window) for window in sorted(windows)], preferred),
        ),
    }  # fmt: skip


def _filter(name: str, title: str, choices: Sequence[tuple[str, str]], chosen: str = "") -> dict[str, Any]:
    return {"name": name, "title": title, "choices": choices, "chosen": chosen}


def _pairs(value: Any) -> list[tuple[str, str]]:
    return [(str(key), str(text)) for key, text in value.items()] if isinstance(value, Mapping) else []


def _provenance(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader needs to judge the run, in words; empty answers are left out."""
    gpu = run.get("gpu") if isinstance(run.get("gpu"), Mapping) else {}
    assert isinstance(gpu, Mapping)
    command = run.get("command")
    facts = [
        ("GPU", gpu.get("name")),
        ("SMs", gpu.get("sm_count")),
        ("Compute capability", gpu.get("compute_capability")),
        ("Memory", _bytes(gpu.get("memory_bytes"))),
        ("L2", _bytes(gpu.get("l2_bytes"))),
        ("Driver", run.get("driver")),
        ("CUDA of the driver", run.get("driver_cuda")),
        ("Compiler", run.get("toolkit")),
        ("Date", run.get("date")),
        ("Resumed", run.get("resumed")),
        ("Revision", run.get("revision")),
        ("Command", " ".join(map(str, command)) if isinstance(command, list) else command),
        ("Complete", None if run.get("complete") is None else "yes" if run.get("complete") else "no"),
        ("What it lacks", run.get("partial")),
        ("Rows", run.get("rows")),
        *((f"Package {name}", version) for name, version in _pairs(run.get("packages"))),
        *((f"Variable {name}", value) for name, value in _pairs(run.get("environment"))),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def _bytes(value: Any) -> str:
    return f"{value / 2**30:.1f} GiB" if isinstance(value, (int, float)) and value >= 2**30 else (
        f"{value / 2**20:.0f} MiB" if isinstance(value, (int, float)) else ""
    )  # fmt: skip


def _ceilings(run: Mapping[str, Any]) -> Numbers:
    lines = []
    for one in run.get("ceilings") or ():
        if isinstance(one, Mapping) and isinstance(one.get("tflops"), (int, float)):
            clock, power = one.get("clock_mhz"), one.get("power_w")
            lines.append(
                (
                    SHORT_TRACKS.get(str(one.get("track")), str(one.get("track"))),
                    str(one.get("instruction")),
                    str(one.get("window")),
                    f"{one['tflops']:.1f}",
                    f"{clock:.0f}" if isinstance(clock, (int, float)) else "",
                    f"{power:.0f}" if isinstance(power, (int, float)) else "",
                )
            )
    return Numbers(("track", "instruction", "window", "TFLOP/s", "MHz", "W"), tuple(lines))
