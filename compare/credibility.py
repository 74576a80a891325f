"""What no honest measurement does: checks that reject a number before anybody reads it.

Each raises :class:`kernel.errors.CheckError`, which costs one contender its time and leaves the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare.peaks import TRACK_TYPES, Peak, percent_of_peak
from compare.statistics import Interval
from kernel.contract import ITEMSIZE, Problem
from kernel.errors import CheckError

LEAST_GROWTH = 0.7
"""Seconds a launch over 2n launches, as a fraction of the same over n: without a synchronisation it is a half."""
GROWTH_FROM_FLOP_RATIO = 8.0
GROWTH_FROM_S = 50e-6
"""Times below this are mostly launch latency and waves that are not full; they may hardly grow with the work."""
GROWTH_EXPONENT = 1 / 3
GROWTH_SLACK = 0.8
"""On cubes time grows at least about as k, the cube root of the operations: no block's chain of sums is shorter than
that, while the first waves may be all but empty. Seen on the H200 from 1024 to 2048: 1.90 for a 256x512 block tile."""
AA_TOLERANCE = 0.003
AA_RESOLUTION = 0.001
"""What an interval of identical kernels may miss 1 by: timers and twenty rounds resolve no less."""


def check_times(name: str, seconds: Sequence[float]) -> None:
    """Every sample is a positive, finite time. A launch that failed quietly takes none."""
    for number, value in enumerate(seconds):
        if not (math.isfinite(value) and value > 0.0):
            raise CheckError(f"{name}: sample {number} is {value!r} s; a launch that ran takes time, so none did")


def check_repeats(name: str, once_s: float, twice_s: float) -> None:
    """Twice the launches take about twice as long (``*_s``: seconds of one launch, over n and over 2n)."""
    check_times(name, (once_s, twice_s))
    if not twice_s >= LEAST_GROWTH * once_s:
        raise CheckError(
            f"{name}: a launch takes {1e6 * once_s:.2f} us over n launches and {1e6 * twice_s:.2f} us over 2n; the "
            "time does not grow with the work, so the device was not waited for"
        )


def check_scaling(name: str, points: Sequence[tuple[int, float]]) -> None:
    """Across cubes of one contender, time grows with the operations.

    ``points`` are (floating-point operations, seconds). Pairs with a smaller time under
    :data:`GROWTH_FROM_S` tell nothing and are passed over.
    """
    ordered = sorted(points)
    check_times(name, [seconds for _, seconds in ordered])
    for position, (flop, seconds) in enumerate(ordered):
        for more_flop, more_seconds in ordered[position + 1 :]:
            ratio = more_flop / flop if flop else 0.0
            if ratio < GROWTH_FROM_FLOP_RATIO or seconds < GROWTH_FROM_S:
                continue
            if not more_seconds >= GROWTH_SLACK * seconds * ratio**GROWTH_EXPONENT:
                raise CheckError(
                    f"{name}: {ratio:.0f} times the operations take {more_seconds / seconds:.2f} times as long "
                    f"({1e6 * seconds:.1f} and {1e6 * more_seconds:.1f} us); the larger one was not done in full"
                )


SERIES = ("name", "variant", "layout", "dtype_in", "dtype_out", "input", "window", "l2")
"""Columns whose rows differ in the problem's extents only; cubes among them whose rows 16 bytes divide, or divide in
the same part, are held to each other: cuBLAS FP16 takes 910 us at 4095 cubed and 1,430 us at 8192."""
TIMED = (
    "time_us", "time_us_p10", "time_us_p90", "tflops", "x_cublas", "x_cublas_lo", "x_cublas_hi", "x_cublas_sgemm",
    "pct_track_peak", "pct_track_peak_at_clock", "pct_fp16_peak", "pct_ceiling",
)  # fmt: skip
"""Columns that a row loses with its time."""


def without_impossible(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a run; those whose time does not grow with the work are failed and lose it, with the reason."""
    series: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for one in rows:
        if one["ok"] and one["time_us"] and one["m"] == one["n"] == one["k"]:
            vector = math.gcd(int(one["m"]), 16 // ITEMSIZE[one["dtype_in"]])
            series.setdefault((*(one[name] for name in SERIES), vector), []).append(one)
    reasons: dict[int, str] = {}
    for members in series.values():
        points: list[tuple[int, float]] = []
        for one in sorted(members, key=lambda row: _flop(row)):
            point = (_flop(one), one["time_us"] * 1e-6)
            try:
                check_scaling(one["name"], [*points, point])
                points.append(point)
            except CheckError as error:
                reasons[id(one)] = str(error)
    return [
        {**one, **dict.fromkeys(TIMED), "ok": False, "skipped_because": reasons[id(one)]} if id(one) in reasons
        else dict(one)
        for one in rows
    ]  # fmt: skip


def _flop(row: Mapping[str, Any]) -> int:
    return 2 * int(row["m"]) * int(row["n"]) * int(row["k"])


def check_types(name: str, track: str, problem: Problem) -> None:
    """A track's table holds its own data types only: an FP16 result is no FP32 result."""
    needed = TRACK_TYPES[track]
    given = (problem.dtype_in, problem.dtype_acc)
    if given != needed:
        raise CheckError(f"{name}: {given[0]} with {given[1]} accumulation does not belong on the track {track}")


def check_rate(name: str, problem: Problem, seconds: float, bound: Peak, mhz: float | None) -> float | None:
    """The rate in TFLOP/s, after a look at what the device can do at all; None where there is no work.

    Raises:
        CheckError: above the physical peak, or above the peak at the clock that was seen.
    """
    check_types(name, bound.track, problem)
    check_times(name, (seconds,))
    if problem.is_empty or problem.is_scale_only:
        return None
    rate = problem.flop / seconds * 1e-12
    try:
        percent_of_peak(rate, bound, mhz)
    except CheckError as error:
        raise CheckError(f"{name} at {problem}: {error}") from None
    return rate


@dataclass(frozen=True)
class SelfTest:
    """A kernel compared with itself."""

    name: str
    interval: Interval
    window: str

    @property
    def ok(self) -> bool:
        """Whether the interval holds 1.00 (give or take the resolution) and its middle is close to it."""
        lo, hi = self.interval.lo - AA_RESOLUTION, self.interval.hi + AA_RESOLUTION
        return lo <= 1.0 <= hi and abs(self.interval.value - 1.0) <= AA_TOLERANCE

    def __str__(self) -> str:
        i = self.interval
        verdict = "holds 1.00" if self.ok else "does NOT hold 1.00"
        return f"A/A {self.name}, {self.window}: {i.value:.4f} [{i.lo:.4f}, {i.hi:.4f}] {verdict}"
