"""What no run can hold, refused on reading: whatever reads rows or provenance afterwards may count on the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernel.contract import FAMILIES, INT32_MAX, LAYOUTS, TRACKS

TIME_US, RATE, RATIO, PERCENT = (1e-6, 1e13), (1e-12, 1e6), (1e-9, 1e9), (1e-12, 1e6)
CLOCK_MHZ, POWER_W = (1.0, 1e5), (1e-3, 1e5)
RANGES: dict[str, tuple[float, float]] = {
    "max_error": (0.0, math.inf),
    "error_bound": (0.0, math.inf),
    "time_us": TIME_US,
    "time_us_p10": TIME_US,
    "time_us_p90": TIME_US,
    "tflops": RATE,
    "x_cublas": RATIO,
    "x_cublas_lo": RATIO,
    "x_cublas_hi": RATIO,
    "x_cublas_sgemm": RATIO,
    "pct_track_peak": PERCENT,
    "pct_track_peak_at_clock": PERCENT,
    "pct_fp16_peak": PERCENT,
    "pct_ceiling": PERCENT,
    "ceiling_tflops": RATE,
    "sm_clock_mhz": CLOCK_MHZ,
    "power_w": POWER_W,
    "occupancy_pct": (0.0, 100.0),
    **dict.fromkeys(("stages", "samples", "registers", "spill_bytes", "smem_bytes", "gpu_index"), (0, INT32_MAX)),
}
"""Least and largest value of columns. Far wider than any GPU's, and narrow enough for every axis and quotient."""

TEXTS = ("date", "revision", "request", "driver", "driver_cuda", "toolkit", "resumed", "partial", "corrected")
GPU_TEXTS = ("name", "slug", "compute_capability")
GPU_COUNTS = ("sm_count", "memory_bytes", "l2_bytes")


def refuse_row(values: Mapping[str, Any]) -> None:
    """Raise ValueError for a row that no run holds."""
    name = values["name"]
    if not name:
        raise ValueError("name is empty")
    for column, known in (("family", FAMILIES), ("track", TRACKS), ("layout", LAYOUTS)):
        if values[column] not in known:
            raise ValueError(f"{name}: {column} is {values[column]!r}; known: {', '.join(known)}")
    for extent in ("m", "n", "k"):
        if values[extent] is None or not 0 <= values[extent] <= INT32_MAX:
            raise ValueError(f"{name}: {extent} is {values[extent]}; 0 to 2**31 - 1 is needed")
    if values["tflops"] is not None and not values["m"] * values["n"] * values["k"]:
        shape = "x".join(str(values[extent]) for extent in ("m", "n", "k"))
        raise ValueError(f"{name}: tflops is {values['tflops']} at {shape}, which has nothing to multiply")
    for column, bounds in RANGES.items():
        if values[column] is not None:
            _refuse_outside(f"{name}: {column}", values[column], bounds)


def _refuse_outside(what: str, value: Any, bounds: tuple[float, float]) -> None:
    low, high = bounds
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} is {value!r:.60}; a number is needed")
    if not low <= value <= high:
        raise ValueError(f"{what} is {value:g}; {low:g} to {high:g} is possible")


def refuse_run(run: Mapping[str, Any]) -> None:
    """Raise ValueError for provenance whose parts are not of the kind that they are in every run."""
    for name in TEXTS:
        _refuse_other(name, run.get(name), str, "a text")
    gpu = _object("gpu", run.get("gpu"))
    for name in GPU_TEXTS:
        _refuse_other(f"gpu.{name}", gpu.get(name), str, "a text")
    for name in GPU_COUNTS:
        if gpu.get(name) is not None:
            _refuse_outside(f"gpu.{name}", gpu[name], (0, 2**63))
    for table in ("packages", "environment", "cublas_kernels"):
        _object(table, run.get(table))
    _refuse_ceilings("ceilings", run)
    for place, card in enumerate(_list("gpus", run.get("gpus"))):
        where = f"gpus[{place}]"
        for name in ("index", "uuid_hash"):
            if _object(where, card).get(name) is None:
                raise ValueError(f"{where} has no {name}")
        _refuse_other(f"{where}.uuid_hash", card["uuid_hash"], str, "a text")
        _refuse_ceilings(f"{where}.ceilings", card)


def _refuse_ceilings(where: str, holder: Mapping[str, Any]) -> None:
    for place, one in enumerate(_list(where, holder.get("ceilings"))):
        which = f"{where}[{place}]"
        ceiling = _object(which, one)
        for name in ("track", "instruction", "window"):
            if not isinstance(ceiling.get(name), str):
                raise ValueError(f"{which}.{name} is {ceiling.get(name)!r:.60}; a text is needed")
        _refuse_outside(f"{which}.tflops", ceiling.get("tflops"), RATE)
        for name, bounds in (("clock_mhz", CLOCK_MHZ), ("power_w", POWER_W)):
            if ceiling.get(name) is not None:
                _refuse_outside(f"{which}.{name}", ceiling[name], bounds)


def _refuse_other(what: str, value: Any, kind: type, wanted: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{what} is {value!r:.60}; {wanted} is needed")


def _object(what: str, value: Any) -> dict[str, Any]:
    _refuse_other(what, value, dict, "an object")
    return value or {}


def _list(what: str, value: Any) -> list[Any]:
    _refuse_other(what, value, list, "a list")
    return value or []
