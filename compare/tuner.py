"""Which kernel is fastest on which shape: the search behind ``gemm-tracks tune``.

For each shape, in an order that starts where most can be learnt:

1. Candidates are predicted by waves and their rates at the nearest shape that is done (handwritten/dispatch.py); those
   without a chance are left out. On the first shapes nothing is known, so everybody runs.
2. A short pass runs each of the others a few times; whoever is clearly slower than the fastest is out.
3. A race: the finalists and cuBLAS interleaved, in the rounds of :mod:`compare.windows`, idling between slices so
   that the power limit stays out of it.
4. Where a launch is shorter than :data:`SUSTAINED_FROM_S`, a duel: the two fastest alone, interleaved; the median of
   their paired ratios decides. From there on a sustained final: the fastest of the race, each alone in the sustained
   windows of :mod:`compare.windows`, with cuBLAS around them; the best median time decides.
5. The winner is checked on inputs that it has not seen; a wrong one is thrown out and the next takes its place.

Who holds the place in an existing table is in the race and in the final, whatever the model says. A shape can be left
between its bursts (:class:`Bursts`) and its final, and taken up there.

No source is touched, and nothing here knows a command line or a file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from compare import credibility, peaks
from compare.contenders import Contender, KernelContender
from compare.measure import NOT_TIMED, Operands, piloted, sustained_s
from compare.shapes import Shape, parse
from compare.statistics import StoppingRule, median, paired_ratios
from compare.timing import Bench, Work
from compare.windows import BurstResult, BurstSettings, SustainedSettings, burst, plan_sample, sustained
from handwritten.dispatch import Prediction, distance, predictions
from handwritten.table import Entry, Table, Tuned, alignment_class, entry_of, record_of
from kernel.contract import Problem
from kernel.errors import CheckError, RejectedError, UsageError

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
SUSTAINED_FROM_S = 1e-3
"""Launches of the fastest from here on are decided in sustained windows. In the recorded run on the H200
(2026-11-30-ede6f0c3df) the SM clock of SIMT squares held in sustained windows up to 2048 cubed (0.32 ms a launch,
1,978 MHz and at most 672 W), and did not for some kernel from 3072 cubed (1.07 ms, 1,930 MHz) on; bursts see neither.
FP16 runs into the power limit at every size; there the same limit stands for products that take long by themselves:
a shorter one would have to be repeated for tens of milliseconds, which a power controller averages over."""
SUSTAINED_FINALISTS, SUSTAINED_SLACK = 3, 1.03
"""Most candidates in a sustained final, and how much slower than the fastest of the race they may be there: the
power limit has moved SIMT kernels by 1 to 2 % against each other. The holder of the place comes on top, unless it is
as far behind as keeps others out of the race."""
SUSTAINED = SustainedSettings(
    # cuBLAS first and last, and once between repeats: enough to settle how long windows must be, and for a ratio.
    baseline_every=SUSTAINED_FINALISTS + 1,
    stop=StoppingRule(min_rounds=2, max_rounds=3, half_width=0.005, cap_s=20.0, hard_cap_s=40.0),
)
"""Windows of the final: as long as those that ``compare --record`` takes, and fewer of them."""
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
    holder: str = ""
    """Kernel that an existing table has for it, which must be beaten; empty where there is none."""

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


def estimate_s(target: Target, bursts: Bursts | None = None) -> float:
    """Seconds that a shape will take on an H200, roughly; with its bursts done, those of its final."""
    track = track_of(target.problem)
    launch_s = target.problem.flop / {"fp32_simt": 45e12, "fp16_tensor": 550e12}[track]
    seconds = OVERHEAD_S if bursts else OVERHEAD_S + LAUNCHES * launch_s
    if launch_s >= SUSTAINED_FROM_S:
        seconds += sustained_s(SUSTAINED_FINALISTS, launch_s, track, SUSTAINED)
    return seconds


def track_of(problem: Problem) -> str:
    return "fp16_tensor" if problem.dtype_in == "float16" else "fp32_simt"


@dataclass(frozen=True)
class Found:
    """What one shape gave: its entry, and why candidates have no time there."""

    entry: Entry
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bursts:
    """What the first half of a shape gave, where sustained windows are to decide."""

    entry: Entry
    """Times of everybody who ran, in bursts; no result has been checked."""
    raced: tuple[str, ...]
    """Those in the race, by place. The times of the others are rougher."""
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def launch_s(self) -> float:
        """Seconds of the fastest."""
        return 1e-6 * self.entry.times_us[self.raced[0]]

    def finalists(self, holder: str = "") -> tuple[str, ...]:
        """Who meets in sustained windows; nobody where launches are short, or one is far ahead."""
        if self.launch_s < SUSTAINED_FROM_S:
            return ()
        behind = {name: 1e-6 * self.entry.times_us[name] / self.launch_s for name in self.raced}
        near = [name for name in self.raced if behind[name] <= SUSTAINED_SLACK][:SUSTAINED_FINALISTS]
        if holder not in near and behind.get(holder, math.inf) <= FINAL_SLACK:
            near.append(holder)
        return tuple(near) if len(near) > 1 else ()

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"burst": record_of(self.entry), "raced": list(self.raced), "left_out": dict(self.left_out)}


def bursts_of(record: Mapping[str, Any]) -> Bursts:
    """What :meth:`Bursts.record` gave.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    entry, raced = entry_of(record["burst"]), tuple(record["raced"])
    if not raced or not set(raced) <= set(entry.times_us):
        raise ValueError(f"raced is {raced!r}")
    return Bursts(entry, raced, dict(record["left_out"]))


@dataclass(eq=False)
class _Runner:
    contender: Contender
    prepared: Prepared
    work: Work
    launch_s: float


@dataclass(eq=False)
class _Stage:
    """A problem with its buffers, and everybody who was made ready on them."""

    problem: Problem
    operands: TuningOperands
    bench: Bench
    ready: dict[str, _Runner] = field(default_factory=dict)

    def runner(self, contender: Contender) -> _Runner:
        """A contender that has run a few times.

        Raises:
            RejectedError, LaunchError, BuildError, MissingToolError, CheckError: as :func:`compare.measure.piloted`.
        """
        if contender.name not in self.ready:
            prepared, work, launch_s = piloted(contender, self.problem, self.operands, self.bench)
            self.ready[contender.name] = _Runner(contender, prepared, work, launch_s)
        return self.ready[contender.name]


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

    def tune(
        self,
        target: Target,
        tell: Callable[[str], None] = lambda text: None,
        *,
        bursts: Bursts | None = None,
        keep: Callable[[Bursts], None] = lambda bursts: None,
    ) -> Found:
        """The entry of one problem; :attr:`known` grows by it.

        Args:
            target: the problem, and who holds its place.
            tell: told what is being done.
            bursts: what an earlier call handed to ``keep``, to go on from there.
            keep: called with the first half once it is done, where a sustained final follows.

        Raises:
            CheckError: no candidate could be timed, or the device no longer answers.
        """
        stage = _Stage(target.problem, self.operands(target.problem), self.bench)
        try:
            if bursts is None:
                bursts = self._bursts(target, stage, tell)
                if bursts.finalists(target.holder):
                    keep(bursts)
            entry, left_out = bursts.entry, dict(bursts.left_out)
            ranking = list(bursts.raced)
            finalists = bursts.finalists(target.holder)
            if finalists:
                entry = self._sustained_final(finalists, entry, stage, left_out, tell)
                ranking = [*entry.sustained_us, *(name for name in ranking if name not in entry.sustained_us)]
            elif bursts.launch_s < SUSTAINED_FROM_S:
                ranking = self._duel(ranking, entry.times_us, stage, tell)
            tell("check")
            entry = self._checked(ranking, entry, stage, left_out)
        finally:
            self.bench.forget()
        self.known.append(entry)
        return Found(entry, left_out)

    def _bursts(self, target: Target, stage: _Stage, tell: Callable[[str], None]) -> Bursts:
        """The short pass and the race."""
        left_out: dict[str, str] = {}
        queue = self._queue(target, left_out)
        tell("short pass")
        runners = self._short_pass(queue, stage, left_out)
        best = runners[0].launch_s
        racing = [
            one
            for place, one in enumerate(runners)
            if one.contender.name == target.holder or (place < FINALISTS and one.launch_s <= FINAL_SLACK * best)
        ]
        tell(f"race of {', '.join(one.contender.name for one in racing)}")
        times, cublas_s = self._race(racing, stage, left_out)
        raced = tuple(sorted(times, key=lambda name: times[name]))
        finished = {name: times[name] for name in raced}
        rough = {one.contender.name: one.launch_s for one in runners if one.contender.name not in (*raced, *left_out)}
        m, n, k, layout, dtype_out, align = target.key
        entry = Entry(
            m=m, n=n, k=k, layout=layout, dtype_out=dtype_out, align=align,
            times_us={name: 1e6 * seconds for name, seconds in (finished | rough).items()},
            cublas_us=None if cublas_s is None else 1e6 * cublas_s,
        )  # fmt: skip
        return Bursts(entry, raced, left_out)

    def table(self) -> Table:
        """What is known so far, as the model reads it."""
        return Table(
            track=self.track, gpu=self.bench.facts.name, sm_count=self.bench.facts.sms,
            toolkit="", date="", revision="", method="",
            kernels={one.name: Tuned("", self.resident.get(one.name, 1)) for one in self.candidates},
            entries=tuple(self.known),
        )  # fmt: skip

    def _queue(self, target: Target, left_out: dict[str, str]) -> list[KernelContender]:
        """Candidates for the short pass, the most promising first."""
        problem, able = target.problem, []
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
        order = sorted(
            able,
            key=lambda one: (one.name != target.holder, expected[one.name].us if one.name in expected else 0.0),
        )
        chosen: list[KernelContender] = []
        spent = 0.0
        for one in order:
            reason = _hopeless(expected[one.name], best, problem) if one.name in expected else _unknown(one, problem)
            cost = PILOT_LAUNCHES * expected[one.name].us * 1e-6 if one.name in expected else 0.0
            if one.name == target.holder:
                reason = None  # first in the order, and it takes nobody's turn
            others = sum(already.name != target.holder for already in chosen)
            if reason is None and others >= LEAST_PILOTED and spent + cost > PILOT_BUDGET_S:
                reason = (
                    f"predicted {expected[one.name].us:.4g} us, and {len(chosen)} faster ones filled the short pass"
                )
            if reason is None:
                chosen.append(one)
                spent += max(cost, PILOT_LAUNCHES * 1e-4)
            else:
                left_out[one.name] = reason
        return chosen

    def _short_pass(self, queue: Sequence[KernelContender], stage: _Stage, left_out: dict[str, str]) -> list[_Runner]:
        """Those that ran, the fastest first."""
        runners = []
        for one in queue:
            try:
                runner = stage.runner(one)
                self._believe(one.name, stage.problem, runner.launch_s)
                runners.append(runner)
            except NOT_TIMED as error:
                left_out[one.name] = str(error)
        if not runners:
            raise CheckError(f"no candidate could be timed on {stage.problem}: {_texts(left_out)}")
        return sorted(runners, key=lambda one: one.launch_s)

    def _race(
        self, racing: Sequence[_Runner], stage: _Stage, left_out: dict[str, str]
    ) -> tuple[dict[str, float], float | None]:
        """Median seconds by name, and of cuBLAS."""
        runners, reference = self._with_cublas(racing, stage, left_out)
        settings = RACES[self.track]
        plans = [plan_sample(self.bench, one.work, one.launch_s, settings.sample_s) for one in runners]
        result = burst(self.bench, plans, reference, settings)
        times: dict[str, float] = {}
        for runner, series in zip(runners, result.series, strict=True):
            name = runner.contender.name
            if series.failed or not series.taken:
                left_out[name] = series.failed or "no sample was taken"
                continue
            self._take(name, median(series.taken), stage.problem, times, left_out)
        cublas_s = times.pop(self.baseline.name, None)
        if not times:
            raise CheckError(f"no candidate finished the race on {stage.problem}: {_texts(left_out)}")
        return times, cublas_s

    def _with_cublas(
        self, runners: Sequence[_Runner], stage: _Stage, left_out: dict[str, str]
    ) -> tuple[list[_Runner], int | None]:
        """The runners with cuBLAS last, and its place; None, and why, where it does not run."""
        try:
            return [*runners, stage.runner(self.baseline)], len(runners)
        except NOT_TIMED as error:
            left_out[self.baseline.name] = str(error)
            return list(runners), None

    def _take(
        self, name: str, seconds: float, problem: Problem, times: dict[str, float], left_out: dict[str, str]
    ) -> None:
        """A time that can be believed goes to the times, another to the reasons."""
        try:
            self._believe(name, problem, seconds)
            times[name] = seconds
        except CheckError as error:
            left_out[name] = str(error)

    def _sustained_final(
        self,
        finalists: Sequence[str],
        entry: Entry,
        stage: _Stage,
        left_out: dict[str, str],
        tell: Callable[[str], None],
    ) -> Entry:
        """The entry with the finalists' times in sustained windows, by place; as it was where they gave none."""
        runners = []
        for name in finalists:
            try:
                runners.append(stage.runner(self._candidate(name)))
            except NOT_TIMED as error:
                left_out[name] = str(error)
        runners, reference = self._with_cublas(runners, stage, left_out)
        launches = {one.contender.name: one.launch_s for one in runners}
        result = sustained(
            self.bench, [one.work for one in runners], launches, reference, SUSTAINED,
            seed=entry.m + entry.n + entry.k, report=lambda text, share: tell(text),
        )  # fmt: skip
        times: dict[str, float] = {}
        for runner, steady in zip(runners, result.steady, strict=True):
            name, seconds = runner.contender.name, steady.median_s
            if seconds is None:
                left_out[name] = steady.failed or "no sustained window was taken"
            else:
                self._take(name, seconds, stage.problem, times, left_out)
        cublas_s = times.pop(self.baseline.name, None)
        return dataclasses.replace(
            entry,
            times_us={name: us for name, us in entry.times_us.items() if name not in left_out},
            sustained_us={name: 1e6 * times[name] for name in sorted(times, key=lambda name: times[name])},
            cublas_sustained_us=None if cublas_s is None else 1e6 * cublas_s,
        )

    def _candidate(self, name: str) -> KernelContender:
        """
        Raises:
            RejectedError: it is no candidate any more.
        """
        found = next((one for one in self.candidates if one.name == name), None)
        if found is None:
            raise RejectedError(f"{name} is no candidate here")
        return found

    def _duel(
        self, places: Sequence[str], times_us: Mapping[str, float], stage: _Stage, tell: Callable[[str], None]
    ) -> list[str]:
        """Names by place: the race's, with the first two settled between themselves."""
        places = list(places)
        if len(places) < 2:
            return places
        first, second = (stage.runner(self._candidate(name)) for name in places[:2])
        tell(f"{places[0]} against {places[1]}")
        settings = RACES[self.track]
        plans = [
            plan_sample(self.bench, one.work, 1e-6 * times_us[one.contender.name], settings.sample_s)
            for one in (first, second)
        ]
        result: BurstResult = burst(self.bench, plans, 1, settings)
        ratios = paired_ratios(result.series[1].seconds, result.series[0].seconds)
        if ratios and not result.series[0].failed and median(ratios) < 1.0:
            places[:2] = places[1::-1]
        return places

    def _checked(self, ranking: Sequence[str], entry: Entry, stage: _Stage, left_out: dict[str, str]) -> Entry:
        """The entry with the best placed kernel whose result is right first; wrong ones lose their times."""
        times = entry.times_us
        others = sorted((name for name in times if name not in ranking), key=lambda name: times[name])
        places = [name for name in (*ranking, *others) if name in times]
        for number, name in enumerate(places):
            try:
                runner = stage.runner(self._candidate(name))
            except NOT_TIMED as error:  # where the bursts were another session's
                left_out[name] = str(error)
                continue
            reason = stage.operands.reverify(runner.contender, runner.prepared)
            if reason is None:
                right = places[number:]
                steady = {one: us for one, us in entry.sustained_us.items() if one in right}
                return dataclasses.replace(entry, times_us={one: times[one] for one in right}, sustained_us=steady)
            left_out[name] = f"wrong result: {reason}"
        raise CheckError(f"no candidate is right on {stage.problem}: {_texts(left_out)}")

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


def merged(table: Table, found: Sequence[Entry], base: Table | None = None) -> Table:
    """The table with these entries, cut to the times that are worth keeping, and the kernels that they name.

    Entries of ``base`` that these do not replace are kept, with what it knows of their kernels: one that has changed
    since was timed as it was, and stays stale. Each says from which table, so that what is said of them is counted.
    """
    fresh = {entry.key: _cut(entry) for entry in found}
    before = base.entries if base is not None else ()
    origin = f"{base.date[:10]} (revision {base.revision})" if base is not None else ""
    kept = {
        entry.key: dataclasses.replace(entry, kept_from=entry.kept_from or origin)
        for entry in before
        if entry.key not in fresh
    }
    keys = dict.fromkeys([*(entry.key for entry in before), *fresh])
    entries = tuple(kept.get(key) or fresh[key] for key in keys)
    names = {name for entry in entries for name in entry.times_us}
    old = {name for entry in kept.values() for name in entry.times_us}
    kernels = {
        **{name: tuned for name, tuned in table.kernels.items() if name in names},
        **({name: tuned for name, tuned in base.kernels.items() if name in old} if base is not None else {}),
    }
    return dataclasses.replace(table, kernels=kernels, entries=entries)


def _cut(entry: Entry) -> Entry:
    limit = KEPT_SLACK * entry.times_us[entry.kernel]
    kept = dict([(name, us) for name, us in entry.times_us.items() if us <= limit][:KEPT_TIMES])
    steady = {name: us for name, us in entry.sustained_us.items() if name in kept}
    return dataclasses.replace(entry, times_us=kept, sustained_us=steady)
