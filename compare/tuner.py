"""Which kernel is fastest on which shape: the search behind ``gemm-tracks tune``.

For each shape, in an order that starts where most can be learnt:

1. Candidates are predicted by waves and their rates at the nearest shape that is done (handwritten/dispatch.py); those
   without a chance are left out. On the first shapes nothing is known, so everybody runs.
2. A short pass runs each of the others a few times; whoever is clearly slower than the fastest is out.
3. A race: the finalists and cuBLAS interleaved, in the rounds of :mod:`compare.windows`, idling between slices so
   that the power limit stays out of it.
4. A duel: the two fastest alone, interleaved; the median of their paired ratios decides.
5. The winner is checked on inputs that it has not seen; a wrong one is thrown out and the next takes its place.

No source is touched, and nothing here knows a command line or a file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from compare import credibility, peaks
from compare.contenders import Contender, KernelContender
from compare.measure import NOT_TIMED, Operands, piloted
from compare.shapes import Shape, parse
from compare.statistics import StoppingRule, median, paired_ratios
from compare.timing import Bench, Work
from compare.windows import BurstResult, BurstSettings, burst, plan_sample
from handwritten.dispatch import Prediction, distance, predictions
from handwritten.table import Entry, Table, Tuned, alignment_class
from kernel.contract import Problem
from kernel.errors import CheckError, UsageError

if TYPE_CHECKING:
    from compare.contenders import Prepared

FIRST_SHAPES = (4096, 1024)
"""Cubes whose nearest shapes come first: one that fills the device several times over, one that does not."""
SLACK, SLACK_PER_DOUBLING = 1.25, 0.25
"""A candidate is left out where it is predicted to take more than this times the best, the second for each doubling
of distance between the shape and the one that the prediction rests on."""
CHEAP_US = 300.0
"""A candidate that is predicted to be quicker than this is allowed twice as much: trying it costs little."""
LEAST_PILOTED = 3
PILOT_BUDGET_S = 0.15
"""Most device time of the short pass on one shape, once so many candidates as above have run."""
PILOT_LAUNCHES = 5
FINALISTS, FINAL_SLACK = 4, 1.12
"""Most candidates that race, and how much slower than the fastest of the short pass they may be."""
KEPT_TIMES, KEPT_SLACK = 8, 2.5
"""Times of a shape that go into the table: the fastest so many, and none beyond so many times the fastest."""
RACES = {
    "fp32_simt": BurstSettings(
        idle_s=0.003,
        slice_s=0.03,
        sample_s=0.0008,
        stop=StoppingRule(min_rounds=3, max_rounds=15, half_width=0.002, cap_s=0.5, hard_cap_s=6.0),
    ),
    # Idling two thirds of the time keeps the average power below the limit.
    "fp16_tensor": BurstSettings(
        idle_s=0.015,
        slice_s=0.008,
        sample_s=0.0008,
        stop=StoppingRule(min_rounds=5, max_rounds=15, half_width=0.002, cap_s=0.5, hard_cap_s=6.0),
    ),
}
OVERHEAD_S = 0.5
"""Seconds of a shape that do not depend on its size, for estimates: operands, graphs, idling, host work."""
LAUNCHES = 50
"""Launches of a shape too large for graphs, for estimates."""


class TuningOperands(Operands, Protocol):
    """Operands that can also verify a result on inputs nobody has seen."""

    def reverify(self, contender: Contender, prepared: Prepared) -> str | None: ...


@dataclass(frozen=True)
class Target:
    """One problem to find a kernel for."""

    problem: Problem
    shape_set: str = ""

    @property
    def key(self) -> tuple[int, int, int, str, str, int]:
        """As :attr:`handwritten.table.Entry.key`."""
        p = self.problem
        return (p.m, p.n, p.k, p.layout, p.dtype_out, alignment_class(p))

    @property
    def name(self) -> str:
        p = self.problem
        return f"{p.m}x{p.n}x{p.k} {p.layout}"


def targets(shapes: str, kernel: Contender) -> tuple[Target, ...]:
    """The problems of a shape list: the first layout everywhere, every layout of the track at the squares.

    Raises:
        UsageError: a shape says more than extents, layout, pads and alignment.
    """
    found: dict[tuple[int, int, int, str, str, int], Target] = {}
    for shape in parse(shapes):
        _only_geometry(shape)
        if shape.layout and shape.layout not in kernel.layouts:
            raise UsageError(f"{shape}: {kernel.track} has kernels for the layouts {', '.join(kernel.layouts)}")
        square = shape.m == shape.n == shape.k
        layouts = (shape.layout,) if shape.layout else kernel.layouts if square else kernel.layouts[:1]
        for layout in layouts:
            target = Target(shape.replace(layout=layout).problem(kernel), shape.shape_set)
            if target.problem.is_empty or target.problem.is_scale_only:
                raise UsageError(f"{shape}: there is nothing to multiply")
            found.setdefault(target.key, target)
    return tuple(found.values())


def _only_geometry(shape: Shape) -> None:
    if (shape.alpha, shape.beta, shape.input) != (1.0, 0.0, "uniform"):
        raise UsageError(f"{shape}: a table knows extents, layout and alignment; leave alpha, beta and input out")


def ordered(wanted: Iterable[Target]) -> list[Target]:
    """The targets nearest to the cubes of :data:`FIRST_SHAPES` first, the others as they are."""
    rest = list(wanted)
    first = []
    for size in FIRST_SHAPES:
        if rest:
            nearest = min(rest, key=lambda target: _apart(target.problem, size))
            rest.remove(nearest)
            first.append(nearest)
    return first + rest


def _apart(problem: Problem, size: int) -> float:
    return sum(abs(math.log2(extent / size)) for extent in (problem.m, problem.n, problem.k))


def estimate_s(target: Target) -> float:
    """Seconds that a shape will take on an H200, roughly."""
    rate = {"fp32_simt": 45e12, "fp16_tensor": 550e12}[track_of(target.problem)]
    return OVERHEAD_S + LAUNCHES * target.problem.flop / rate


def track_of(problem: Problem) -> str:
    return "fp16_tensor" if problem.dtype_in == "float16" else "fp32_simt"


@dataclass(frozen=True)
class Found:
    """What one shape gave: its entry, and why candidates have no time there."""

    entry: Entry
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class _Runner:
    contender: KernelContender
    prepared: Prepared
    work: Work
    launch_s: float


@dataclass
class Tuner:
    """Finds the fastest kernel for one problem after another, learning rates on the way.

    Args:
        track: fp32_simt or fp16_tensor.
        candidates: kernels of that track, none of them a dispatcher.
        baseline: cuBLAS on the same track and output type.
        bench: the device.
        resident: thread blocks of each candidate that an SM holds at once, by name.
        operands: buffers for a problem.
        known: entries that are there already, with the times of everybody who ran.
    """

    track: str
    candidates: Sequence[KernelContender]
    baseline: Contender
    bench: Bench
    resident: Mapping[str, int]
    operands: Callable[[Problem], TuningOperands]
    known: list[Entry] = field(default_factory=list)

    def tune(self, target: Target, tell: Callable[[str], None] = lambda text: None) -> Found:
        """The entry of one problem; :attr:`known` grows by it.

        Raises:
            CheckError: no candidate could be timed, or the device no longer answers.
        """
        problem = target.problem
        operands = self.operands(problem)
        left_out: dict[str, str] = {}
        queue = self._queue(problem, left_out)
        try:
            tell("short pass")
            runners = self._short_pass(queue, problem, operands, left_out)
            finalists = runners[:FINALISTS]
            finalists = [one for one in finalists if one.launch_s <= FINAL_SLACK * finalists[0].launch_s]
            tell(f"race of {', '.join(one.contender.name for one in finalists)}")
            times, cublas_s = self._race(finalists, problem, operands, left_out)
            ranking = self._duel(finalists, times, tell)
            times |= {one.contender.name: one.launch_s for one in runners if one.contender.name not in times}
            by_name = {one.contender.name: one for one in runners}
            tell("check")
            winner = self._first_right(ranking, by_name, problem, operands, times, left_out)
        finally:
            self.bench.forget()
        entry = self._entry(target, winner, times, cublas_s)
        self.known.append(entry)
        return Found(entry, left_out)

    def table(self) -> Table:
        """What is known so far, as the model reads it."""
        return Table(
            track=self.track, gpu=self.bench.facts.name, sm_count=self.bench.facts.sms,
            toolkit="", date="", revision="", method="",
            kernels={one.name: Tuned("", self.resident.get(one.name, 1)) for one in self.candidates},
            entries=tuple(self.known),
        )  # fmt: skip

    def _queue(self, problem: Problem, left_out: dict[str, str]) -> list[KernelContender]:
        """Candidates for the short pass, the most promising first."""
        able = []
        for one in self.candidates:
            reason = _refusal(one, problem)
            if reason is None:
                able.append(one)
            else:
                left_out[one.name] = reason
        kernels = {one.name: one.kernel for one in able}
        expected = predictions(problem, self.table(), kernels, self.bench.facts.sms, neighbours=len(self.known))
        best = min((one.us for one in expected.values()), default=0.0)
        # A kernel that nothing is known of runs first: it costs a few launches and may be the best.
        order = sorted(able, key=lambda one: expected[one.name].us if one.name in expected else 0.0)
        chosen: list[KernelContender] = []
        spent = 0.0
        for one in order:
            reason = _hopeless(expected[one.name], best, problem) if one.name in expected else _unknown(one, problem)
            cost = PILOT_LAUNCHES * expected[one.name].us * 1e-6 if one.name in expected else 0.0
            if reason is None and len(chosen) >= LEAST_PILOTED and spent + cost > PILOT_BUDGET_S:
                reason = (
                    f"predicted {expected[one.name].us:.4g} us, and {len(chosen)} faster ones filled the short pass"
                )
            if reason is None:
                chosen.append(one)
                spent += max(cost, PILOT_LAUNCHES * 1e-4)
            else:
                left_out[one.name] = reason
        return chosen

    def _short_pass(
        self, queue: Sequence[KernelContender], problem: Problem, operands: TuningOperands, left_out: dict[str, str]
    ) -> list[_Runner]:
        """Those that ran, the fastest first."""
        runners = []
        for one in queue:
            try:
                prepared, work, launch_s = piloted(one, problem, operands, self.bench)
                self._believe(one.name, problem, launch_s)
                runners.append(_Runner(one, prepared, work, launch_s))
            except NOT_TIMED as error:
                left_out[one.name] = str(error)
        if not runners:
            raise CheckError(f"no candidate could be timed on {problem}: {_texts(left_out)}")
        return sorted(runners, key=lambda one: one.launch_s)

    def _race(
        self, finalists: Sequence[_Runner], problem: Problem, operands: TuningOperands, left_out: dict[str, str]
    ) -> tuple[dict[str, float], float | None]:
        """Median seconds by name, and of cuBLAS."""
        works = [(one.contender.name, one.work, one.launch_s) for one in finalists]
        reference = None
        try:
            _, work, launch_s = piloted(self.baseline, problem, operands, self.bench)
            works.append((self.baseline.name, work, launch_s))
            reference = len(works) - 1
        except NOT_TIMED as error:
            left_out[self.baseline.name] = str(error)
        settings = RACES[self.track]
        plans = [plan_sample(self.bench, work, launch_s, settings.sample_s) for _, work, launch_s in works]
        result = burst(self.bench, plans, reference, settings)
        times = {}
        for (name, _, _), series in zip(works, result.series, strict=True):
            if series.failed or not series.taken:
                left_out[name] = series.failed or "no sample was taken"
                continue
            try:
                self._believe(name, problem, median(series.taken))
                times[name] = median(series.taken)
            except CheckError as error:
                left_out[name] = str(error)
        cublas_s = times.pop(self.baseline.name, None)
        if not times:
            raise CheckError(f"no candidate finished the race on {problem}: {_texts(left_out)}")
        return times, cublas_s

    def _duel(self, finalists: Sequence[_Runner], times: Mapping[str, float], tell: Callable[[str], None]) -> list[str]:
        """Names by place: the race's, with the first two settled between themselves."""
        places = sorted(times, key=lambda name: times[name])
        if len(places) < 2:
            return places
        by_name = {one.contender.name: one for one in finalists}
        first, second = (by_name[name] for name in places[:2])
        tell(f"{places[0]} against {places[1]}")
        settings = RACES[self.track]
        plans = [
            plan_sample(self.bench, one.work, times[one.contender.name], settings.sample_s) for one in (first, second)
        ]
        result: BurstResult = burst(self.bench, plans, 1, settings)
        ratios = paired_ratios(result.series[1].seconds, result.series[0].seconds)
        if ratios and not result.series[0].failed and median(ratios) < 1.0:
            places[:2] = places[1::-1]
        return places

    def _first_right(
        self,
        ranking: Sequence[str],
        runners: Mapping[str, _Runner],
        problem: Problem,
        operands: TuningOperands,
        times: dict[str, float],
        left_out: dict[str, str],
    ) -> str:
        """The best placed kernel whose result is right; wrong ones lose their times."""
        others = sorted((name for name in times if name not in ranking), key=lambda name: times[name])
        for name in (*ranking, *others):
            reason = operands.reverify(runners[name].contender, runners[name].prepared)
            if reason is None:
                return name
            left_out[name] = f"wrong result: {reason}"
            del times[name]
        raise CheckError(f"no candidate is right on {problem}: {_texts(left_out)}")

    def _entry(self, target: Target, winner: str, times: Mapping[str, float], cublas_s: float | None) -> Entry:
        others = sorted((name for name in times if name != winner), key=lambda name: times[name])
        m, n, k, layout, dtype_out, align = target.key
        return Entry(
            m=m, n=n, k=k, layout=layout, dtype_out=dtype_out, align=align,
            times_us={name: 1e6 * times[name] for name in (winner, *others)},
            cublas_us=None if cublas_s is None else 1e6 * cublas_s,
        )  # fmt: skip

    def _believe(self, name: str, problem: Problem, seconds: float) -> None:
        """CheckError where the device cannot be that fast."""
        facts = self.bench.facts
        bound = peaks.peak(facts.name, self.track, facts.sms, facts.max_mhz)
        credibility.check_rate(name, problem, seconds, bound, None)


def _refusal(one: KernelContender, problem: Problem) -> str | None:
    """Why a candidate is not tried: it refuses, or another kernel would do the work."""
    reason = one.rejects(problem)
    if reason is not None:
        return reason
    runner = one.kernel.runner(problem)
    return None if runner is one.kernel else f"{runner.name} would run it"


def _unknown(one: KernelContender, problem: Problem) -> str | None:
    """Why a candidate that nothing is known of is left out: by its own word it is too slow to be tried there.

    Up to the first shape, where everybody has to be tried once, its word does not count.
    """
    limit = one.largest_timed
    too_large = limit and problem.m * problem.n * problem.k > max(limit, *FIRST_SHAPES) ** 3
    return f"too slow above {limit}x{limit}x{limit}, and nothing is known of it" if too_large else None


def _hopeless(expected: Prediction, best: float, problem: Problem) -> str | None:
    """Why a candidate is left out by the model alone."""
    allowed = SLACK + SLACK_PER_DOUBLING * distance(expected.entry, problem)
    if expected.us < CHEAP_US:
        allowed *= 2
    if expected.us <= allowed * best:
        return None
    return f"predicted {expected.us:.4g} us, more than {allowed:.2f} times the {best:.4g} of the best"


def _texts(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "none was given"


def merged(table: Table, found: Sequence[Entry]) -> Table:
    """The table with these entries, cut to the times that are worth keeping, and the kernels that they name."""
    entries = tuple(map(_cut, found))
    names = {name for entry in entries for name in entry.times_us}
    kernels = {name: tuned for name, tuned in table.kernels.items() if name in names}
    return dataclasses.replace(table, kernels=kernels, entries=entries)


def _cut(entry: Entry) -> Entry:
    limit = KEPT_SLACK * entry.times_us[entry.kernel]
    kept = [(name, us) for name, us in entry.times_us.items() if us <= limit][:KEPT_TIMES]
    return dataclasses.replace(entry, times_us=dict(kept))
