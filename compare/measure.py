"""Timing of one comparison group: contenders of one track, one problem, one layout, the same buffers.

Everything a sceptic asks of a ratio is settled here: who is compared with whom, in which windows, under
which L2 state; that C is what it was before every launch where beta is not zero; that results are right
after timing, on other inputs, too; and that no number leaves which the device cannot produce.
The windows themselves are in :mod:`compare.windows`, the device in :mod:`compare.timing`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from compare import credibility, peaks
from compare.statistics import Interval, StoppingRule, disagreement, interval, median, paired_ratios, spread
from compare.stopwatch import Stopwatch
from compare.timing import Bench, WindowReading, Work
from compare.windows import (
    GRAPH_BELOW_S,
    GRAPH_LAUNCHES,
    LEAD_IN_BELOW_S,
    BurstResult,
    BurstSettings,
    Series,
    Steady,
    SustainedResult,
    SustainedSettings,
    burst,
    mean_s,
    pack,
    plan_sample,
    sustained,
)
from kernel.contract import Pointers, Problem, ceil_div
from kernel.errors import BuildError, CheckError, LaunchError, MissingToolError, RejectedError

if TYPE_CHECKING:
    from compare.contenders import Contender, Prepared

L2_MULTIPLE = 3
"""Cold L2: between two uses of an operand set, at least this many times the cache passes through it."""
UNSTABLE_DRIFT = 0.02
"""Rounds disagree where the median moved by more than this from the first half to the second."""
UNSTABLE_SPREAD = 0.03
"""Sustained windows of one contender disagree where they spread by more than this."""


class Operands(Protocol):
    """Device buffers of one group; every contender gets the same ones."""

    distribution: str
    """What A and B are filled with."""

    def pointers(self, index: int = 0) -> Pointers:
        """Addresses of operand set ``index``."""

    def grow(self, sets: int) -> None:
        """Make sure that there are so many sets, with equal contents in distinct memory.

        Raises:
            MemoryError: there is no room for them.
        """

    def restore_c(self, stream: int, index: int = 0) -> None:
        """Queue a copy that puts C of a set back to what it was at first."""


Reverify = Callable[["Contender", "Prepared"], "str | None"]
"""Changes the inputs, poisons C, runs what was timed once more and checks it against a fresh reference.

Answers why the result is wrong, or None where it is right. Raises nothing for a wrong result.
"""


@dataclass(frozen=True)
class Progress:
    """What is being done, and the fraction of the group that is behind it."""

    text: str
    fraction: float


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a group is measured."""

    burst: BurstSettings | None = field(default_factory=BurstSettings)
    """None leaves the burst out."""
    sustained: SustainedSettings | None = field(default_factory=SustainedSettings)
    sustained_sizes: tuple[int, ...] | None = None
    """Cubes that sustained windows are taken at; None for every problem."""
    sustained_all: bool = True
    """Every contender, or only cuBLAS and the dispatcher with each family's best and default."""
    sustained_without: tuple[str, ...] = ()
    """Families that have no sustained windows unless everybody has."""
    cold: bool = False
    """Also time bursts with a cold L2."""
    leave_out_slow: bool = True
    """Leave out contenders beyond their ``largest_timed``."""
    max_cold_bytes: int = 8 << 30
    """Most device memory that operand sets for cold timing may take."""
    seed: int = 0

    def wants_sustained(self, problem: Problem) -> bool:
        if self.sustained is None:
            return False
        return self.sustained_sizes is None or (
            problem.m == problem.n == problem.k and problem.m in self.sustained_sizes
        )


def quick() -> Settings:
    """What ``compare`` does by default: five squares in under four minutes on an H200."""
    return Settings(
        burst=BurstSettings(
            long_slice_s=0.4,
            # Two launches of FP16 at 4096: sixteen contenders then share one slice.
            sample_s=0.0005,
            stop=StoppingRule(min_rounds=20, max_rounds=40, half_width=0.005, cap_s=7.0, hard_cap_s=60.0),
        ),
        # Four minutes leave no room for longer windows under a power cap; the intervals are wider there.
        sustained=SustainedSettings(
            capped_s=0.6,
            baseline_every=5,
            stop=StoppingRule(min_rounds=3, max_rounds=3, half_width=0.01, cap_s=15.0, hard_cap_s=40.0),
        ),
        sustained_sizes=(4096, 8192),
        sustained_all=False,
        # torch calls cuBLAS; its bursts show whether that holds.
        sustained_without=("torch",),
    )


def record() -> Settings:
    """What ``compare --record`` does: bursts for everyone, sustained for each family's best and default."""
    return Settings(
        burst=BurstSettings(
            long_slice_s=0.4,
            sample_s=0.001,
            stop=StoppingRule(min_rounds=20, max_rounds=60, half_width=0.005, cap_s=7.0, hard_cap_s=60.0),
        ),
        sustained=SustainedSettings(
            stop=StoppingRule(min_rounds=3, max_rounds=4, half_width=0.01, cap_s=25.0, hard_cap_s=60.0)
        ),
        sustained_all=False,
        sustained_without=("torch",),
    )


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One contender in one window and L2 state; times in seconds of one GEMM.

    Where nothing was measured, ``skipped_because`` or ``rejected_because`` says why and ``seconds`` is empty.
    """

    name: str
    problem: Problem
    window: str
    l2: str = "warm"
    input: str = "uniform"
    variant: str = ""
    kernel_names: tuple[str, ...] = ()
    timer: str = ""
    seconds: tuple[float, ...] = ()
    """Every sample, in the order taken: bursts one a round, sustained one a part of the counted halves."""
    window_seconds: tuple[float, ...] = ()
    """Sustained only: the mean of each window's counted half."""
    ratios: tuple[float, ...] = ()
    """cuBLAS over this, paired within rounds or with the nearest windows."""
    x_cublas: Interval | None = None
    clocks_mhz: tuple[float, ...] = ()
    power_w: float | None = None
    powers_w: tuple[float, ...] = ()
    """Sustained only: the power of each window that has one, in the order taken."""
    power_from: str = ""
    temperature_c: float | None = None
    nvml_clock_mhz: float | None = None
    throttle: tuple[str, ...] | None = None
    unstable: bool | None = None
    stopped_because: str = ""
    notes: tuple[str, ...] = ()
    skipped_because: str = ""
    """It did not run the problem."""
    rejected_because: str = ""
    """It ran, and the number or the result is not to be believed."""

    @property
    def median_s(self) -> float | None:
        """Median time; for sustained windows the median of their means."""
        of = self.window_seconds or self.seconds
        return median(of) if of else None

    @property
    def clock_mhz(self) -> float | None:
        """Median SM clock while samples were taken."""
        return median(self.clocks_mhz) if self.clocks_mhz else None

    @property
    def tflops(self) -> float | None:
        """2 m n k over the median time; None where there is no time or no work."""
        if self.median_s is None or self.problem.is_empty or self.problem.is_scale_only:
            return None
        return self.problem.flop / self.median_s * 1e-12

    def samples(self) -> dict[str, Any]:
        """What is kept beside the table, in JSON's types; times in microseconds."""
        return {
            "name": self.name,
            "variant": self.variant,
            "m": self.problem.m,
            "n": self.problem.n,
            "k": self.problem.k,
            "layout": self.problem.layout,
            "dtype_in": self.problem.dtype_in,
            "dtype_out": self.problem.dtype_out,
            "input": self.input,
            "window": self.window,
            "l2": self.l2,
            "time_us": [round(1e6 * value, 4) for value in self.seconds],
            "window_us": [round(1e6 * value, 4) for value in self.window_seconds],
            "x_cublas": [round(value, 6) for value in self.ratios],
            "clock_mhz": [round(value, 1) for value in self.clocks_mhz],
            "window_power_w": [round(value, 1) for value in self.powers_w],
            "power_from": self.power_from,
            "temperature_c": self.temperature_c,
            "nvml_clock_mhz": self.nvml_clock_mhz,
            "stopped_because": self.stopped_because,
            "notes": list(self.notes),
        }


@dataclass(eq=False)
class _Entry:
    """A contender on its way through the group."""

    contender: Contender
    prepared: Prepared | None = None
    work: Work | None = None
    launch_s: float = 0.0
    skipped: str = ""
    rejected: str = ""

    @property
    def runs(self) -> bool:
        return self.work is not None and not (self.skipped or self.rejected)

    def running(self) -> tuple[Work, Prepared]:
        """What it runs; only of entries that run."""
        assert self.work is not None
        assert self.prepared is not None
        return self.work, self.prepared

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Entry symbols; none where a library's call cannot be captured to read them."""
        try:
            return tuple(self.running()[1].kernel_names)
        except LaunchError:
            return ()

    def drop(self, error: Exception) -> None:
        """It cannot run (skipped) or must not be believed (rejected)."""
        if isinstance(error, CheckError):
            self.rejected = str(error)
        else:
            self.skipped = str(error)


def baseline_of(contenders: Sequence[Contender]) -> str:
    """Name of the group's cuBLAS, which every ratio is taken against; empty where it is not among them."""
    return next((one.name for one in contenders if one.family == "cublas"), "")


def measure_group(
    contenders: Sequence[Contender],
    problem: Problem,
    operands: Operands,
    settings: Settings,
    progress: Callable[[Progress], None] | None = None,
    *,
    bench: Bench,
    reverify: Reverify | None = None,
    baseline: str | None = None,
    watch: Stopwatch | None = None,
) -> list[Measurement]:
    """Measure contenders of one track on one problem.

    Args:
        contenders: of one track and family-independent; cuBLAS among them is what ratios refer to.
        problem: shape, layout and types; also alpha and beta, which are applied once per launch.
        operands: the buffers everybody runs on.
        settings: :func:`quick`, :func:`record`, or your own.
        progress: told what is going on.
        bench: the device.
        reverify: the check after timing; without it nothing is verified, so only tests leave it out.
        baseline: name of the contender that ratios refer to, if not cuBLAS.
        watch: told which phase begins.

    Returns:
        One measurement per contender, window and L2 state that was asked of it, in the contenders' order;
        contenders that cannot run the problem are among them.
    """
    tell = _Teller(progress, settings, problem)
    watch = watch or Stopwatch(bench.now)
    watch.enter("prepare")
    reference = baseline_of(contenders) if baseline is None else baseline
    entries = [_Entry(contender) for contender in contenders]
    for entry in entries:
        _prepare(entry, problem, operands, settings, bench)
        tell.at(f"prepared {entry.contender.name}", "prepare", 1.0)
    found: list[Measurement] = []
    if settings.burst is not None:
        watch.enter("burst")
        found += _measure_burst(entries, reference, problem, settings, bench, "warm", tell, watch)
        if settings.cold:
            watch.enter("cold")
            found += _measure_cold(entries, reference, problem, operands, settings, bench, tell, watch)
    if settings.wants_sustained(problem):
        watch.enter("sustained")
        without = settings.sustained_without
        chosen = entries if settings.sustained_all else _best_and_default(entries, found, without)
        found += _measure_sustained(chosen, reference, problem, settings, bench, tell)
    bench.forget()
    watch.enter("verify")
    if reverify is not None:
        found = _reverified(entries, found, reverify, tell)
    order = {contender.name: number for number, contender in enumerate(contenders)}
    found = [_believable(one, entries[order[one.name]].contender, bench) for one in found]
    found = [dataclasses.replace(one, input=operands.distribution) for one in found]
    return sorted(found, key=lambda one: order[one.name])


def _prepare(entry: _Entry, problem: Problem, operands: Operands, settings: Settings, bench: Bench) -> None:
    contender = entry.contender
    try:
        reason = _refusal(contender, problem, settings)
        if reason is not None:
            raise RejectedError(reason)
        entry.prepared, entry.work, entry.launch_s = piloted(contender, problem, operands, bench)
    except NOT_TIMED as error:
        entry.drop(error)


NOT_TIMED = (RejectedError, LaunchError, BuildError, MissingToolError, CheckError)
"""What costs one contender its time and leaves the others theirs."""


def piloted(contender: Contender, problem: Problem, operands: Operands, bench: Bench) -> tuple[Prepared, Work, float]:
    """A contender made ready on the shared buffers and run a few times; the last item is seconds of one launch.

    Raises:
        RejectedError, LaunchError, BuildError, MissingToolError: it does not run here.
        CheckError: its times are not to be believed.
    """
    credibility.check_types(contender.name, contender.track, problem)
    prepared = contender.prepare(problem, operands.pointers(0), bench.stream)
    work = Work(contender.name, (prepared,), _restore(problem, operands))
    once, launch_s = bench.pilot(work)
    credibility.check_repeats(contender.name, once, launch_s)
    return prepared, work, launch_s


def _refusal(contender: Contender, problem: Problem, settings: Settings) -> str | None:
    """Why a contender is not timed on a problem, or None if it is."""
    reason = contender.rejects(problem)
    if reason is not None:
        return reason
    limit = contender.largest_timed if settings.leave_out_slow else 0
    if limit and problem.m * problem.n * problem.k > limit**3:
        return f"too slow to be timed above {limit}x{limit}x{limit} unless asked for by name"
    return "nothing to time: C is empty" if problem.is_empty else None


def _restore(problem: Problem, operands: Operands) -> Callable[[int], None] | None:
    """What puts C back before a launch, where launches would otherwise read each other's results."""
    return None if problem.beta == 0.0 else operands.restore_c


def cold_sets(problem: Problem, l2_bytes: int) -> int:
    """Operand sets that are used in turn so that each finds nothing of its own in L2."""
    return 1 + max(1, ceil_div(L2_MULTIPLE * l2_bytes, max(problem.bytes_min, 1)))


def _measure_burst(
    entries: Sequence[_Entry],
    baseline_name: str,
    problem: Problem,
    settings: Settings,
    bench: Bench,
    l2: str,
    tell: _Teller,
    watch: Stopwatch,
) -> list[Measurement]:
    burst_settings = settings.burst
    assert burst_settings is not None
    running = [entry for entry in entries if entry.runs]
    plans = [plan_sample(bench, one.running()[0], one.launch_s, burst_settings.sample_s) for one in running]
    baseline = _index(running, baseline_name)
    result = burst(
        bench,
        plans,
        baseline,
        burst_settings,
        may_use_long_slices=bool(running) and running[0].contender.track == "fp32_simt",
        report=lambda text, share: tell.at(f"{text} ({l2})", f"burst {l2}", share),
    )
    watch.idled(result.idle_s)
    found = []
    for entry, series in zip(running, result.series, strict=True):
        if series.failed:
            entry.skipped = series.failed
        elif series.taken and l2 == "warm":
            entry.launch_s = median(series.taken)
        found.append(_of_series(entry, series, result, baseline, problem, l2))
    names = {entry.contender.name for entry in running}
    return found + [_not_run(entry, problem, "burst", l2) for entry in entries if entry.contender.name not in names]


def _index(entries: Sequence[_Entry], name: str) -> int | None:
    return next((i for i, entry in enumerate(entries) if entry.contender.name == name), None)


def _of_series(
    entry: _Entry, series: Series, result: BurstResult, baseline: int | None, problem: Problem, l2: str
) -> Measurement:
    _, prepared = entry.running()
    notes = [*result.notes, *([series.plan.note] if series.plan.note else [])]
    ratios: tuple[float, ...] = ()
    if baseline is None:
        notes.append("no ratio: cuBLAS is not among the contenders")
    elif not series.plan.note and not result.series[baseline].failed:
        ratios = paired_ratios(result.series[baseline].seconds, series.seconds)
    taken = series.taken
    return Measurement(
        name=entry.contender.name,
        problem=problem,
        window="burst",
        l2=l2,
        variant=prepared.variant,
        kernel_names=entry.kernel_names,
        timer=series.plan.timer,
        seconds=() if series.failed else tuple(taken),
        ratios=ratios,
        x_cublas=interval(ratios),
        clocks_mhz=tuple(clock for clock in series.clocks if clock is not None),
        throttle=result.throttle,
        unstable=disagreement(taken) > UNSTABLE_DRIFT if taken else None,
        stopped_because=result.stopped_because,
        notes=tuple(notes),
        skipped_because=series.failed,
    )


def _measure_cold(
    entries: Sequence[_Entry],
    baseline_name: str,
    problem: Problem,
    operands: Operands,
    settings: Settings,
    bench: Bench,
    tell: _Teller,
    watch: Stopwatch,
) -> list[Measurement]:
    """Bursts over operand sets that are used in turn. Contenders keep their warm work for what follows."""
    sets = cold_sets(problem, bench.facts.l2_bytes)
    reason = ""
    if problem.beta != 0.0:
        reason = "cold L2 is timed with beta = 0 only: putting C back would warm it"
    elif sets * problem.bytes_min > settings.max_cold_bytes:
        reason = f"{sets} operand sets of {problem.bytes_min >> 20} MiB exceed {settings.max_cold_bytes >> 20} MiB"
    else:
        try:
            operands.grow(sets)
        except MemoryError as error:
            reason = f"no room for {sets} operand sets: {error}"
    if reason:
        missing = [_not_run(entry, problem, "burst", "cold") for entry in entries]
        return [dataclasses.replace(one, skipped_because=one.skipped_because or reason) for one in missing]
    cold = [dataclasses.replace(entry) for entry in entries]
    for entry in cold:
        if entry.runs:
            try:
                _, first = entry.running()
                more = [entry.contender.prepare(problem, operands.pointers(i), bench.stream) for i in range(1, sets)]
                entry.work = Work(entry.contender.name, (first, *more))
            except (RejectedError, LaunchError, MissingToolError, BuildError) as error:
                entry.drop(error)
    return _measure_burst(cold, baseline_name, problem, settings, bench, "cold", tell, watch)


def self_test(
    contender: Contender,
    problem: Problem,
    operands: Operands,
    settings: Settings,
    *,
    bench: Bench,
    watch: Stopwatch | None = None,
) -> list[credibility.SelfTest]:
    """A/A: the contender against itself, prepared twice, in every window of ``settings``.

    Raises:
        CheckError: it could not be timed at all.
    """
    again = dataclasses.replace(contender, name=f"{contender.name} again")
    settings = dataclasses.replace(settings, sustained_all=True, leave_out_slow=False)
    found = measure_group(
        (contender, again), problem, operands, settings, bench=bench, baseline=contender.name, watch=watch
    )
    results = []
    for one in found:
        if one.name == again.name:
            if one.x_cublas is None:
                reason = one.skipped_because or one.rejected_because or "; ".join(one.notes)
                raise CheckError(f"A/A of {contender.name} gave no ratio: {reason}")
            results.append(credibility.SelfTest(contender.name, one.x_cublas, f"{one.window}, {one.l2} L2"))
    return results


def _best_and_default(entries: Sequence[_Entry], found: Sequence[Measurement], without: Sequence[str]) -> list[_Entry]:
    """cuBLAS, the dispatcher, and of every other family its fastest kernel in the burst and its fastest default."""
    times = {one.name: one.median_s for one in found if one.window == "burst" and one.l2 == "warm" and one.seconds}
    leaders: dict[tuple[str, bool], tuple[float, _Entry]] = {}
    for entry in entries:
        contender, seconds = entry.contender, times.get(entry.contender.name)
        if not entry.runs or seconds is None or contender.is_dispatcher or contender.family in without:
            continue
        for kind in {False, contender.is_default}:
            key = (contender.family, kind)
            if key not in leaders or seconds < leaders[key][0]:
                leaders[key] = (seconds, entry)
    chosen = [entry for _, entry in leaders.values()]
    return [
        entry
        for entry in entries
        if entry in chosen or (entry.runs and (entry.contender.is_dispatcher or entry.contender.family == "cublas"))
    ]


def _measure_sustained(
    entries: Sequence[_Entry],
    baseline_name: str,
    problem: Problem,
    settings: Settings,
    bench: Bench,
    tell: _Teller,
) -> list[Measurement]:
    assert settings.sustained is not None
    running = [entry for entry in entries if entry.runs]
    baseline = _index(running, baseline_name)
    result = sustained(
        bench,
        [entry.running()[0] for entry in running],
        {entry.contender.name: entry.launch_s for entry in running},
        baseline,
        settings.sustained,
        seed=settings.seed,
        report=lambda text, share: tell.at(text, "sustained", share),
    )
    found = [
        _of_steady(entry, steady, result, problem, is_baseline=index == baseline)
        for index, (entry, steady) in enumerate(zip(running, result.steady, strict=True))
    ]
    return found + [_not_run(entry, problem, "sustained", "warm") for entry in entries if not entry.runs]


def _of_steady(
    entry: _Entry, steady: Steady, result: SustainedResult, problem: Problem, *, is_baseline: bool
) -> Measurement:
    _, prepared = entry.running()
    windows: Sequence[WindowReading] = () if steady.failed else steady.windows
    means = tuple(map(mean_s, windows))
    ratios = tuple(1.0 for _ in windows) if is_baseline else tuple(steady.ratios if not steady.failed else ())
    powers = [window.state.power_w for window in windows if window.state.power_w is not None]
    temperatures = [window.state.temperature_c for window in windows if window.state.temperature_c is not None]
    clocks = [window.state.nvml_clock_mhz for window in windows if window.state.nvml_clock_mhz is not None]
    reasons = [window.state.throttle for window in windows if window.state.throttle is not None]
    return Measurement(
        name=entry.contender.name,
        problem=problem,
        window="sustained",
        variant=prepared.variant,
        kernel_names=entry.kernel_names,
        timer=windows[0].timer if windows else "",
        seconds=tuple(value for window in windows for value in window.seconds),
        window_seconds=means,
        ratios=ratios,
        x_cublas=interval(ratios),
        clocks_mhz=tuple(window.clock_mhz for window in windows if window.clock_mhz is not None),
        power_w=median(powers) if powers else None,
        powers_w=tuple(powers),
        power_from=windows[0].state.power_from if windows else "",
        temperature_c=max(temperatures, default=None),
        nvml_clock_mhz=median(clocks) if clocks else None,
        throttle=tuple(dict.fromkeys(name for names in reasons for name in names)) if reasons else None,
        unstable=spread(means) > UNSTABLE_SPREAD if means else None,
        stopped_because=result.stopped_because,
        skipped_because=steady.failed,
    )


def _not_run(entry: _Entry, problem: Problem, window: str, l2: str) -> Measurement:
    return Measurement(
        name=entry.contender.name,
        problem=problem,
        window=window,
        l2=l2,
        skipped_because=entry.skipped,
        rejected_because=entry.rejected,
    )


def _reverified(
    entries: Sequence[_Entry], found: Sequence[Measurement], reverify: Reverify, tell: _Teller
) -> list[Measurement]:
    """Strip the times of whoever is wrong now: on other inputs, after all those launches."""
    wrong: dict[str, str] = {}
    for entry in entries:
        if entry.runs:
            reason = reverify(entry.contender, entry.running()[1])
            if reason is not None:
                wrong[entry.contender.name] = f"wrong after timing, on changed inputs: {reason}"
        tell.at(f"checked {entry.contender.name} again", "verify", 1.0)
    return [_stripped(one, wrong[one.name]) if one.name in wrong else one for one in found]


def _stripped(one: Measurement, reason: str) -> Measurement:
    """A failed check never gets a time."""
    return dataclasses.replace(
        one, seconds=(), window_seconds=(), ratios=(), x_cublas=None, unstable=None, rejected_because=reason
    )


def _believable(one: Measurement, contender: Contender, bench: Bench) -> Measurement:
    """The measurement, or what is left of it after a check that it fails."""
    if one.median_s is None:
        return one
    facts = bench.facts
    bound = peaks.peak(facts.name, contender.track, facts.sms, facts.max_mhz)
    try:
        credibility.check_times(one.name, one.seconds)
        credibility.check_rate(one.name, one.problem, one.median_s, bound, one.clock_mhz)
    except CheckError as error:
        return _stripped(one, str(error))
    return one


TYPICAL_TFLOPS = {"fp32_simt": 48.0, "tf32_tensor": 380.0, "fp16_tensor": 720.0}
"""Rates of a middling contender on an H200, for estimates of duration only."""
SLOW_SHARE = 0.4
"""Part of it that rungs reach which are timed at small sizes only."""
LAUNCH_S = 3e-6
"""What a launch takes with hardly any work."""
FLOAT64_TFLOPS = 40.0
"""Rate of the float64 products there; likewise the next four."""
COMPARED_BYTES = 45 * 8
"""What comparing one element of C with its reference moves, each step of it an array of float64."""
COMPARED_BYTES_PER_S = 2.5e12
CONTENDER_S = 0.1
"""What is the same for every contender at every size: loading its cubin, queueing, graphs, waiting for results."""
SLICE_HOST_S = 0.005
"""What a slice costs beside resting and work: queueing it, NVML's readings."""
OPERAND_BYTES_PER_S = 1e11
"""Hashing values into fresh memory."""


def estimate_s(contenders: Sequence[Contender], problem: Problem, settings: Settings) -> float:
    """Seconds that a group will take: checks before and after, a middling rate for everybody, idling, windows.

    For the estimate that a long command shows before it starts; the progress then corrects it, and a run keeps
    both (``seconds`` in run.json). On another device than an H200 the rates are wrong and the idling is right.
    """
    running = [one for one in contenders if _refusal(one, problem, settings) is None]
    if not running:
        return 0.0
    track = running[0].track
    launches = [_launch_s(one, problem) for one in running]
    total = sum(CONTENDER_S + 8 * launch for launch in launches) + _checks_s(len(running), problem)
    if settings.burst is not None:
        total += (2 if settings.cold else 1) * _bursts_s(launches, track, settings.burst)
    if settings.sustained is not None and settings.wants_sustained(problem):
        total += sustained_s(_sustained_beside_cublas(running, settings), min(launches), track, settings.sustained)
    return total


def _launch_s(contender: Contender, problem: Problem) -> float:
    """What a launch may take."""
    share = SLOW_SHARE if contender.largest_timed else 1.0
    return LAUNCH_S + problem.flop / (1e12 * share * TYPICAL_TFLOPS[contender.track])


def _checks_s(count: int, problem: Problem) -> float:
    """Two turns and one more after timing: operands, float64 products of values and of magnitudes, comparisons."""
    turns = 3
    products = 2 * problem.flop / (FLOAT64_TFLOPS * 1e12)
    compared = COMPARED_BYTES * problem.m * problem.n / COMPARED_BYTES_PER_S
    return turns * (products + problem.bytes_min / OPERAND_BYTES_PER_S + count * compared)


def _bursts_s(launches: Sequence[float], track: str, settings: BurstSettings) -> float:
    """The fewest rounds. Where launches take milliseconds, the clock is taken to sag once, which halves slices."""
    samples = []
    for launch in launches:
        least = GRAPH_LAUNCHES if launch < GRAPH_BELOW_S else 1
        samples.append(launch * (max(least, int(settings.sample_s / launch)) + (launch < LEAD_IN_BELOW_S)))
    limit, rounds = settings.slice_s, settings.stop.min_rounds
    if track == "fp32_simt" and settings.long_slice_s:
        limit = settings.long_slice_s
        if min(launches) > LEAD_IN_BELOW_S:
            limit, rounds = limit / 2, rounds + 1
    slices = len(pack(range(len(samples)), samples, limit))
    return rounds * (slices * (settings.idle_s + SLICE_HOST_S) + sum(samples))


def sustained_s(others: int, launch_s: float, track: str, settings: SustainedSettings) -> float:
    """Seconds that sustained windows of so many contenders beside cuBLAS will take, the windows of cuBLAS included."""
    windows = max(1, others + math.ceil(others / settings.baseline_every))
    repeats = (settings.stop.min_rounds + settings.stop.max_rounds) / 2
    window_s = settings.window_s if track == "fp32_simt" else settings.capped_s
    return (repeats * windows + 1) * (1.06 * window_s + 2 * launch_s + 0.03)


def _sustained_beside_cublas(running: Sequence[Contender], settings: Settings) -> int:
    """Contenders that have sustained windows, cuBLAS apart."""
    count = len(running)
    if not settings.sustained_all:
        always = [one for one in running if one.family == "cublas" or one.is_dispatcher]
        rest = [one for one in running if one not in always and one.family not in settings.sustained_without]
        count = len(always) + len({(one.family, one.is_default) for one in rest})
    return count - 1


@dataclass
class _Teller:
    """Turns steps into one fraction that only grows."""

    progress: Callable[[Progress], None] | None
    settings: Settings
    problem: Problem
    reached: float = 0.0

    def at(self, text: str, phase: str, share: float) -> None:
        if self.progress is None:
            return
        phases = ["prepare"]
        phases += ["burst warm"] if self.settings.burst else []
        phases += ["burst cold"] if self.settings.burst and self.settings.cold else []
        phases += ["sustained"] if self.settings.wants_sustained(self.problem) else []
        phases.append("verify")
        done = (phases.index(phase) + share) / len(phases) if phase in phases else 0.0
        self.reached = max(self.reached, 0.0 if phase == "prepare" else done)
        self.progress(Progress(text, min(1.0, self.reached)))
