"""The two windows in which contenders are timed: bursts after idling, and sustained load.

Both are plain loops over a :class:`compare.timing.Bench`; which launches make a sample, who runs when,
and when to stop is decided here and tested on a simulated device.

A *round* visits every contender once, in *slices*. A slice is 200 ms of idling and then at most 10 ms of
work, in the order of :func:`compare.statistics.round_order`. Several contenders share a slice where they
fit, which is what makes twenty rounds affordable; it is fair because every contender stands at every
position and behind every neighbour equally often, is brought to the same cache state by an untimed launch
of its own, and is compared with the cuBLAS sample of the same round. It would not be fair for long:
samples of 20 ms in an unbroken row share one power budget, so a thrifty kernel pays for its neighbours.
Hence the bound on a slice, the idling, and the clock that is read around every single sample.

Where a single launch takes milliseconds (FP32 SIMT at 4096 and up), ``long_slice_s`` lets a whole round
share a slice, because that track stays below the power limit for such a time. That is not taken on
trust: a round that sees the clock sag is thrown away, and slices are halved, down to 10 ms. The rounds
that are kept are those in which the clock held, whatever their slices.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from compare.statistics import StoppingRule, interval, median, paired_ratios, round_order
from compare.telemetry import throttle_names
from compare.timing import Bench, Job, WindowReading, Work
from kernel.errors import LaunchError

GRAPH_BELOW_S = 100e-6
"""Launches shorter than this are timed in graphs."""
GRAPH_LAUNCHES = 100
"""Fewest launches in a graph that is timed."""
OVERHEAD_FACTOR = 10
"""A launch must last this many times the timer's overhead, or its ratio comes from a graph."""
LEAD_IN_BELOW_S = 1e-3
"""A launch longer than this works on more than L2 holds; an untimed one before it would change nothing."""
CLOCK_SAG = 0.015
"""Fall of the SM clock within a long slice that proves the power limit to be at work."""
MINIMUM_ROUNDS_BETWEEN_DECISIONS = 5

Report = Callable[[str, float], None]
"""Called with what was just done and the fraction of the window that is behind it."""


@dataclass(frozen=True, kw_only=True)
class BurstSettings:
    """How bursts are taken. Times in seconds."""

    idle_s: float = 0.2
    """How long the device rests before a slice."""
    slice_s: float = 0.010
    """Most work in a slice; a single launch that is longer has a slice to itself."""
    long_slice_s: float = 0.0
    """Most work in a slice of the FP32 SIMT track to begin with, halved whenever the clock sags; 0 for ``slice_s``."""
    sample_s: float = 0.001
    """Length that a sample of launches shorter than it is filled up to."""
    stop: StoppingRule = field(default_factory=StoppingRule)


@dataclass(frozen=True, kw_only=True)
class SustainedSettings:
    """How sustained windows are taken. Times in seconds."""

    window_s: float = 0.6
    """Shortest window; its second half is counted."""
    capped_s: float = 1.3
    """Shortest window of a group whose reference runs below the highest clock: a power controller that dips about
    once a second has to dip in every window or it decides the ratios. All but the first ``window_s / 2`` is counted."""
    part_s: float = 0.008
    """Length of the parts that a window is made of, one sample each."""
    baseline_every: int = 3
    """cuBLAS runs first, last, and after so many other windows."""
    stop: StoppingRule = field(
        default_factory=lambda: StoppingRule(min_rounds=3, max_rounds=12, half_width=0.01, cap_s=60.0, hard_cap_s=180.0)
    )


@dataclass(frozen=True)
class Plan:
    """How one work is sampled."""

    work: Work
    launch_s: float
    """Seconds of a launch, from the pilot."""
    launches: int
    timer: str
    lead_in: int
    note: str = ""
    """Why its ratio to cuBLAS must be withheld, or nothing."""

    @property
    def cost_s(self) -> float:
        return (self.launches + self.lead_in) * self.launch_s

    def job(self) -> Job:
        timer = "graph" if self.timer == "graph" else "events"
        return Job(self.work, self.launches, timer, self.lead_in)  # type: ignore[arg-type]


def plan_sample(bench: Bench, work: Work, launch_s: float, sample_s: float) -> Plan:
    """Launches per sample and the timer for them.

    Operand sets are used in turn, so the launches are a whole number of turns, and the lead-in runs through
    all other sets: then the first timed launch finds nothing of its own in the cache either.
    """
    sets = len(work.prepared)
    short = launch_s < max(GRAPH_BELOW_S, OVERHEAD_FACTOR * bench.timer_overhead_s)
    refused = bench.captures(work) if short else ""
    graph = short and not refused
    launches = max(GRAPH_LAUNCHES if graph else 1, int(sample_s / launch_s))
    if work.restore is None:
        launches = sets * math.ceil(launches / sets)
    lead_in = sets - 1 if sets > 1 else int(launch_s < LEAD_IN_BELOW_S)
    per_pair = launch_s * (1 if work.restore is not None else launches)
    note = ""
    if refused and per_pair < OVERHEAD_FACTOR * bench.timer_overhead_s:
        note = (
            f"ratio withheld: {1e6 * per_pair:.1f} us between events, less than {OVERHEAD_FACTOR} times the timer's "
            f"{1e6 * bench.timer_overhead_s:.1f} us, and no graph ({refused})"
        )
    return Plan(work, launch_s, launches, "graph" if graph else "events", lead_in, note)


def pack(order: Sequence[int], costs: Sequence[float], limit_s: float) -> list[list[int]]:
    """Contenders in ``order``, cut into slices of at most ``limit_s``; a dearer one has a slice to itself."""
    slices: list[list[int]] = []
    spent = math.inf
    for index in order:
        if spent + costs[index] > limit_s:
            slices.append([])
            spent = 0.0
        slices[-1].append(index)
        spent += costs[index]
    return slices


@dataclass
class Series:
    """One contender's samples over the rounds of a window; None for a round it has no sample in."""

    plan: Plan
    seconds: list[float | None] = field(default_factory=list)
    clocks: list[float | None] = field(default_factory=list)
    failed: str = ""
    """Why it dropped out, empty while it runs."""

    @property
    def taken(self) -> list[float]:
        """Samples that exist, seconds of a launch."""
        return [value for value in self.seconds if value is not None]


@dataclass
class BurstResult:
    """Every sample of a burst, and how it ended."""

    series: list[Series]
    stopped_because: str = ""
    rounds: int = 0
    slice_s: float = 0.0
    """Most work that a slice was allowed in the last round."""
    idle_s: float = 0.0
    """Time that the host did nothing but let the device rest, thrown-away rounds included."""
    throttle: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def burst(
    bench: Bench,
    plans: Sequence[Plan],
    baseline: int | None,
    settings: BurstSettings,
    *,
    may_use_long_slices: bool = False,
    report: Report | None = None,
) -> BurstResult:
    """Rounds of bursts until every ratio to ``baseline`` (an index into ``plans``) is narrow enough.

    A contender whose launch fails drops out with its reason; the others go on.
    """
    result = BurstResult([Series(plan) for plan in plans])
    limit = settings.long_slice_s if may_use_long_slices and settings.long_slice_s else settings.slice_s
    began, mask, sagged = bench.now(), 0, 0
    resting_since = began
    while True:
        result.slice_s = limit
        active = [index for index, series in enumerate(result.series) if not series.failed]
        if not active:
            result.stopped_because = "every contender failed"
            break
        order = [active[place] for place in round_order(len(active), result.rounds)]
        for group in pack(order, [plan.cost_s for plan in plans], limit):
            # What the host did since the last slice ended was rest for the device, too.
            rest = max(0.0, settings.idle_s - (bench.now() - resting_since))
            bench.idle(rest)
            result.idle_s += rest
            mask |= _run_slice(bench, result, group)
            resting_since = bench.now()
        result.rounds += 1
        for series in result.series:
            series.seconds += [None] * (result.rounds - len(series.seconds))
            series.clocks += [None] * (result.rounds - len(series.clocks))
        if limit > settings.slice_s and _clock_sagged(result.series):
            sagged += 1
            limit = max(settings.slice_s, limit / 2)
            held = f"thrown away, and slices halved to {1e3 * limit:.0f} ms"
            result.notes = (f"rounds in which the clock sagged by more than {100 * CLOCK_SAG:g} %: {sagged}; {held}",)
            _throw_away_last_round(result)
            continue
        elapsed = bench.now() - began
        decide = result.rounds % MINIMUM_ROUNDS_BETWEEN_DECISIONS == 0 or elapsed >= settings.stop.cap_s
        reason = settings.stop.decide(result.rounds, elapsed, _widths(result.series, baseline)) if decide else None
        if report:
            share = max(result.rounds / settings.stop.min_rounds, elapsed / settings.stop.cap_s)
            report(f"burst round {result.rounds}", min(1.0, share))
        if reason:
            result.stopped_because = reason
            break
    result.throttle = throttle_names(mask)
    return result


def _throw_away_last_round(result: BurstResult) -> None:
    result.rounds -= 1
    for series in result.series:
        del series.seconds[result.rounds :], series.clocks[result.rounds :]


def _run_slice(bench: Bench, result: BurstResult, group: Sequence[int]) -> int:
    """One slice; samples go to their series. A failure is pinned on the contender that caused it."""
    jobs = [result.series[index].plan.job() for index in group]
    try:
        reading = bench.slice(jobs)
    except LaunchError as error:
        if len(group) == 1:
            result.series[group[0]].failed = str(error)
            return 0
        mask = 0
        for index in group:
            mask |= _run_slice(bench, result, [index])
        return mask
    for index, sample in zip(group, reading.readings, strict=True):
        series = result.series[index]
        series.seconds.append(sample.seconds if sample else None)
        series.clocks.append(sample.clock_mhz if sample else None)
    return reading.throttle_mask or 0


def _clock_sagged(series: Sequence[Series]) -> bool:
    """Whether some sample of the last round ran at a clock clearly below another's of the same round."""
    clocks = [one.clocks[-1] for one in series if one.clocks and one.clocks[-1] is not None]
    known = [clock for clock in clocks if clock is not None]
    return len(known) > 1 and min(known) < (1 - CLOCK_SAG) * max(known)


def _widths(series: Sequence[Series], baseline: int | None) -> list[float | None]:
    """Half-widths of all ratios that can still get narrower."""
    if baseline is None or series[baseline].failed:
        return []
    widths: list[float | None] = []
    for index, one in enumerate(series):
        if index != baseline and not one.failed and not one.plan.note:
            found = interval(paired_ratios(series[baseline].seconds, one.seconds))
            widths.append(found.half_width if found else None)
    return widths


@dataclass
class Steady:
    """One contender's sustained windows."""

    work: Work
    windows: list[WindowReading] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """cuBLAS over this, one a window, against the cuBLAS windows around it."""
    failed: str = ""

    @property
    def median_s(self) -> float | None:
        """Seconds of a launch: the median of the windows' means; None where there is no window, or it failed."""
        return None if self.failed or not self.windows else median([mean_s(window) for window in self.windows])


@dataclass
class SustainedResult:
    """Every sustained window, and how it ended."""

    steady: list[Steady]
    stopped_because: str = ""
    repeats: int = 0
    order: list[str] = field(default_factory=list)
    """Names in the order in which windows ran."""


def sustained(
    bench: Bench,
    works: Sequence[Work],
    launch_s: Mapping[str, float],
    baseline: int | None,
    settings: SustainedSettings,
    *,
    seed: int = 0,
    report: Report | None = None,
) -> SustainedResult:
    """Windows of one contender each, in random order, with cuBLAS before, between and after.

    ``launch_s`` gives seconds of a launch by name, from the burst or the pilot.
    """
    rng = random.Random(seed)
    result = SustainedResult([Steady(work) for work in works])
    length, lead = settings.window_s, settings.window_s / 2
    untried = True
    others = [index for index in range(len(works)) if index != baseline]
    began = bench.now()
    while True:
        order = [index for index in others if not result.steady[index].failed]
        rng.shuffle(order)
        queue: list[int] = []
        for count, index in enumerate(order):
            # A later repeat begins behind the cuBLAS window that closed the one before it.
            due = count % settings.baseline_every == 0 and (count > 0 or result.repeats == 0)
            if baseline is not None and due:
                queue.append(baseline)
            queue.append(index)
        if baseline is not None:
            queue.append(baseline)
        for index in queue:
            steady = result.steady[index]
            if steady.failed:
                continue
            result.order.append(steady.work.name)
            try:
                job = _steady_job(bench, steady.work, launch_s[steady.work.name], settings.part_s)
                reading = bench.window(job, length, lead)
                if untried and _below_the_highest(bench, reading):
                    length = max(length, settings.capped_s)
                    reading = bench.window(job, length, lead)
                untried = False
                steady.windows.append(reading)
            except LaunchError as error:
                steady.failed = str(error)
            if report:
                whole = settings.stop.min_rounds * max(len(queue), 1)
                report(f"sustained {steady.work.name}", min(1.0, len(result.order) / whole))
        result.repeats += 1
        _pair(result, baseline)
        widths = [
            found.half_width if (found := interval(steady.ratios)) else None
            for index, steady in enumerate(result.steady)
            if index != baseline and not steady.failed
        ]
        reference = baseline is not None and not result.steady[baseline].failed
        reason = settings.stop.decide(result.repeats, bench.now() - began, widths if reference else [])
        if reason:
            result.stopped_because = reason
            return result


def _below_the_highest(bench: Bench, reading: WindowReading) -> bool:
    """Whether the clock did not hold in a window."""
    highest = bench.facts.max_mhz
    return highest is not None and reading.clock_mhz is not None and reading.clock_mhz < (1 - CLOCK_SAG) * highest


def _steady_job(bench: Bench, work: Work, launch_s: float, part_s: float) -> Job:
    """One part of a window: about ``part_s`` of launches, in a graph where that is possible."""
    launches = max(1, round(part_s / launch_s))
    if launch_s < GRAPH_BELOW_S:
        launches = max(GRAPH_LAUNCHES, launches)
    graph = launches > 1 and not bench.captures(work)
    return Job(work, launches, "graph" if graph else "events")


def _pair(result: SustainedResult, baseline: int | None) -> None:
    """Fill in every ratio against what cuBLAS would have taken at that moment.

    That is read off the straight line between the cuBLAS windows just before and just after, or the
    nearest one where there is none on one side.
    """
    if baseline is None:
        return
    reference = [(window.middle, mean_s(window)) for window in result.steady[baseline].windows]
    for index, steady in enumerate(result.steady):
        if index != baseline:
            steady.ratios = [_at(reference, window.middle) / mean_s(window) for window in steady.windows if reference]


def mean_s(window: WindowReading) -> float:
    """Seconds of a launch over the counted part."""
    return sum(window.seconds) / len(window.seconds)


def _at(points: Sequence[tuple[float, float]], moment: float) -> float:
    before = [point for point in points if point[0] <= moment]
    after = [point for point in points if point[0] > moment]
    if not before:
        return after[0][1]
    if not after:
        return before[-1][1]
    (t0, y0), (t1, y1) = before[-1], after[0]
    return y0 + (y1 - y0) * (moment - t0) / (t1 - t0)
