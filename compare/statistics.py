"""Numbers out of samples: paired ratios, their intervals, the order of a round, and when to stop.

Pure functions of sequences; nothing here knows a GPU or a clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
"""Bootstrap resamples; the ends of a 95 % interval then rest on 50 of them each."""

BOOTSTRAP_FROM = 6
"""Fewest samples for a bootstrap of the median: with n samples its interval can reach from the least to
the greatest, which holds the median with probability 1 - 2 ** (1 - n), and 6 is the first n above 95 %."""

STUDENT_T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}
"""97.5 % points of Student's t by degrees of freedom, for sets too small to bootstrap; 8 stands for more."""


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    lo: float
    hi: float

    @property
    def half_width(self) -> float:
        """Half the interval's width over the value, such as 0.005 for half a percent."""
        return (self.hi - self.lo) / 2 / abs(self.value)

    def holds(self, value: float) -> bool:
        """Whether ``value`` lies inside."""
        return self.lo <= value <= self.hi


def percentile(samples: Sequence[float], percent: float) -> float:
    """Percentile with linear interpolation; ``samples`` must not be empty."""
    return float(np.percentile(np.asarray(samples, dtype=np.float64), percent))


def median(samples: Sequence[float]) -> float:
    """Median; ``samples`` must not be empty."""
    return float(np.median(np.asarray(samples, dtype=np.float64)))


def paired_ratios(baseline: Sequence[float | None], times: Sequence[float | None]) -> tuple[float, ...]:
    """Baseline over time, round by round; a round in which either is missing gives no ratio."""
    if len(baseline) != len(times):
        raise ValueError(f"{len(baseline)} baseline rounds against {len(times)}: these were not paired")
    return tuple(b / t for b, t in zip(baseline, times, strict=True) if b is not None and t is not None)


def interval(ratios: Sequence[float], seed: int = 0) -> Interval | None:
    """Median of positive ratios with a 95 % interval; None for fewer than two.

    A percentile bootstrap of the median from :data:`BOOTSTRAP_FROM` samples on. Below that no interval
    between order statistics reaches 95 %, so Student's t on the logarithms is taken: wide, but honest.
    """
    if len(ratios) < 2:
        return None
    values = np.asarray(ratios, dtype=np.float64)
    if len(values) < BOOTSTRAP_FROM:
        logs = np.log(values)
        reach = STUDENT_T_975[len(values) - 1] * float(logs.std(ddof=1)) / math.sqrt(len(values))
        middle = float(logs.mean())
        return Interval(median(ratios), math.exp(middle - reach), math.exp(middle + reach))
    picks = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    lo, hi = np.percentile(np.median(values[picks], axis=1), (2.5, 97.5))
    return Interval(median(ratios), float(lo), float(hi))


def ratio_of_medians(before: Sequence[float], after: Sequence[float], seed: int = 0) -> Interval | None:
    """median(after) / median(before) for unpaired samples, with a 95 % interval; None where a side has one sample.

    A bootstrap where both sides have :data:`BOOTSTRAP_FROM` samples; else Student's t on the logarithms with
    the spread of both sides pooled.
    """
    if min(len(before), len(after)) < 2:
        return None
    if min(len(before), len(after)) < BOOTSTRAP_FROM:
        return _pooled(np.log(np.asarray(before)), np.log(np.asarray(after)))
    rng = np.random.default_rng(seed)

    def resampled(samples: Sequence[float]) -> np.ndarray:
        values = np.asarray(samples, dtype=np.float64)
        return np.asarray(np.median(values[rng.integers(0, len(values), (RESAMPLES, len(values)))], axis=1))

    lo, hi = np.percentile(resampled(after) / resampled(before), (2.5, 97.5))
    return Interval(median(after) / median(before), float(lo), float(hi))


def _pooled(before: np.ndarray, after: np.ndarray) -> Interval:
    freedom = len(before) + len(after) - 2
    squares = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    middle = float(after.mean() - before.mean())
    reach = STUDENT_T_975[min(freedom, max(STUDENT_T_975))] * error
    ratio = math.exp(float(np.median(after) - np.median(before)))
    return Interval(ratio, math.exp(middle - reach), math.exp(middle + reach))


def disagreement(samples: Sequence[float]) -> float:
    """How far the rounds of one contender drifted: |median of late half / median of early half - 1|.

    0 for fewer than four samples; those are judged by :func:`spread`.
    """
    if len(samples) < 4:
        return 0.0
    half = len(samples) // 2
    return abs(median(samples[-half:]) / median(samples[:half]) - 1.0)


def spread(samples: Sequence[float]) -> float:
    """(greatest - least) / median; ``samples`` must not be empty."""
    return (max(samples) - min(samples)) / median(samples)


def round_order(count: int, number: int) -> tuple[int, ...]:
    """The order in which ``count`` contenders take their turn in round ``number``.

    Rows of a Williams square: over ``count`` rounds (twice that where it is odd) each contender stands at
    every position equally often and follows every other one equally often, so neither the place in a
    round nor the neighbour's heat and cache contents favours anyone. A plain rotation would leave each
    contender behind the same neighbour for ever.
    """
    if count <= 0:
        return ()
    first = [0]
    for step in range(1, count):
        first.append((step + 1) // 2 if step % 2 else count - step // 2)
    row = [(place + number) % count for place in first]
    if count % 2 and (number // count) % 2:
        row.reverse()
    return tuple(row)


@dataclass(frozen=True)
class StoppingRule:
    """When enough rounds are enough."""

    min_rounds: int = 20
    max_rounds: int = 200
    half_width: float = 0.005
    """Relative half-width that every ratio's interval must reach."""
    cap_s: float = 20.0
    """Seconds after which a run ends even where intervals are still wide, once it has ``min_rounds``."""
    hard_cap_s: float = 120.0
    """Seconds after which it ends whatever it has."""

    def decide(self, rounds: int, elapsed_s: float, half_widths: Sequence[float | None]) -> str | None:
        """The reason to stop after ``rounds`` rounds, or None to go on.

        ``half_widths`` has one entry a ratio; None is an interval that does not exist yet.
        """
        if elapsed_s >= self.hard_cap_s:
            return f"hard time cap of {self.hard_cap_s:g} s after {rounds} rounds"
        if rounds < self.min_rounds:
            return None
        if half_widths and all(width is not None and width <= self.half_width for width in half_widths):
            return f"every half-width within {100 * self.half_width:g} % after {rounds} rounds"
        if not half_widths:
            return f"nothing to compare with; {rounds} rounds taken"
        if elapsed_s >= self.cap_s:
            return f"time cap of {self.cap_s:g} s after {rounds} rounds"
        if rounds >= self.max_rounds:
            return f"round cap of {self.max_rounds}"
        return None


@dataclass(frozen=True)
class Mean:
    """A geometric mean and how many of the values asked for stand behind it."""

    value: float | None
    counted: int
    total: int

    def __str__(self) -> str:
        text = "-" if self.value is None else f"{self.value:.3f}"
        return text if self.counted == self.total else f"{text} over {self.counted} of {self.total}"


def geometric_mean(values: Sequence[float | None]) -> Mean:
    """Geometric mean of the values that exist; the missing ones stay visible in ``total``."""
    there = [value for value in values if value is not None]
    mean = math.exp(sum(math.log(value) for value in there) / len(there)) if there else None
    return Mean(mean, len(there), len(values))
