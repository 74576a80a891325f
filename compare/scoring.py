"""From a check's verdict and a measurement to a row, and the columns that need other rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compare import peaks
from compare.building import Built, catalog_columns, static_columns
from compare.contenders import Contender
from compare.rows import row
from compare.statistics import percentile
from kernel.errors import RejectedError

if TYPE_CHECKING:
    from compare.check import Verdict
    from compare.groups import Group
    from compare.measure import Measurement
    from compare.timing import DeviceFacts


def base_columns(contender: Contender, group: Group, built: Built) -> dict[str, Any]:
    """Columns that are known before anything runs."""
    problem = group.problem
    try:
        static = static_columns(contender, problem, built)
    except RejectedError:
        static = {}
    return {
        **catalog_columns(contender),
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "layout": problem.layout,
        # A contender may write another type than it is listed with.
        "dtype_out": problem.dtype_out,
        "input": group.shape.input,
        "shape_set": group.shape.shape_set or None,
        **static,
    }


def unmeasured_row(
    contender: Contender, group: Group, built: Built, reason: str, verdict: Verdict | None = None
) -> dict[str, Any]:
    """The row of a contender that did not run the problem, or failed its check."""
    values: dict[str, Any] = {"skipped_because": reason}
    if verdict is not None and verdict.ok is False:
        values |= {"ok": False, "variant": verdict.variant, **_errors(verdict)}
    return row(**{**base_columns(contender, group, built), **values})


def checked_row(contender: Contender, group: Group, built: Built, verdict: Verdict, reason: str) -> dict[str, Any]:
    """The row of a contender whose result is right and that was not timed, for a reason."""
    values = {"ok": True, "variant": verdict.variant, **_errors(verdict), "skipped_because": reason}
    return row(**{**base_columns(contender, group, built), **values})


def _errors(verdict: Verdict) -> dict[str, Any]:
    finite = verdict.max_error is not None and verdict.max_error < float("inf")
    return {"max_error": verdict.max_error if finite else None, "error_bound": verdict.error_bound}


def measured_row(
    contender: Contender,
    group: Group,
    built: Built,
    verdict: Verdict,
    one: Measurement,
    facts: DeviceFacts,
    ceiling_tflops: float | None = None,
) -> dict[str, Any]:
    """The row of one measurement. One that was rejected keeps ``ok`` false and its reason, and has no time."""
    values = {
        **base_columns(contender, group, built),
        "variant": one.variant or verdict.variant,
        "ok": verdict.ok,
        **_errors(verdict),
        "window": one.window,
        "l2": one.l2,
    }
    if one.kernel_names:
        values["kernel_name"] = "+".join(one.kernel_names)
    if one.rejected_because or one.skipped_because:
        # A contender that the device refused in this window never showed a wrong result.
        values["ok"] = False if one.rejected_because else None
        values["skipped_because"] = one.rejected_because or one.skipped_because
        return row(**values)
    if one.median_s is None or one.tflops is None:
        return row(**{**values, "skipped_because": "no sample was taken"})
    values |= {
        "time_us": 1e6 * one.median_s,
        "time_us_p10": 1e6 * percentile(one.seconds, 10),
        "time_us_p90": 1e6 * percentile(one.seconds, 90),
        "samples": len(one.seconds),
        "timer": one.timer,
        "tflops": one.tflops,
        "sm_clock_mhz": one.clock_mhz,
        "power_w": one.power_w,
        "throttle": None if one.throttle is None else "+".join(one.throttle) or "none",
        "unstable": one.unstable,
        **percentages(one.tflops, contender.track, facts, one.clock_mhz),
    }
    if one.x_cublas is not None:
        low, high = one.x_cublas.lo, one.x_cublas.hi
        values |= {"x_cublas": one.x_cublas.value, "x_cublas_lo": low, "x_cublas_hi": high}
    if ceiling_tflops:
        values |= {"ceiling_tflops": ceiling_tflops, "pct_ceiling": 100 * one.tflops / ceiling_tflops}
    return row(**values)


def percentages(tflops: float, track: str, facts: DeviceFacts, clock_mhz: float | None) -> dict[str, Any]:
    """The columns that compare a rate with published peaks; those that are not known stay empty.

    Raises:
        CheckError: the rate is above what the device can do.
    """
    own = peaks.peak(facts.name, track, facts.sms, facts.max_mhz)
    fp16 = peaks.peak(facts.name, "fp16_tensor", facts.sms, facts.max_mhz).datasheet
    of_datasheet, at_clock = peaks.percent_of_peak(tflops, own, clock_mhz)
    return {
        "pct_track_peak": of_datasheet,
        "pct_track_peak_at_clock": at_clock,
        "pct_fp16_peak": None if fp16 is None else 100 * tflops / fp16,
    }


def with_sgemm_ratio(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with x_cublas_sgemm filled in: medians against cuBLAS SGEMM at the same extents, window and L2 state.

    cuBLAS SGEMM in the row's own layout where it was timed, else in layout rr; on the row's own card where it was
    timed there, else on another of the same model, never on a different one.
    """
    sgemm: dict[tuple[Any, ...], float] = {}
    for one in rows:
        if one["name"] == "cublas_sgemm" and one["time_us"]:
            for card in (one["gpu_uuid_hash"], None):
                sgemm.setdefault((*_place(one, one["layout"]), card), one["time_us"])
    result = []
    for one in rows:
        layouts = (one["layout"], "rr")
        places = [(*_place(one, layout), card) for card in (one["gpu_uuid_hash"], None) for layout in layouts]
        time = next((sgemm[place] for place in places if place in sgemm), None)
        ratio = time / one["time_us"] if time and one["time_us"] and one["ok"] else None
        result.append({**one, "x_cublas_sgemm": ratio})
    return result


def _place(one: Mapping[str, Any], layout: str) -> tuple[Any, ...]:
    return (one["gpu_name"], one["m"], one["n"], one["k"], layout, one["input"], one["window"], one["l2"])
