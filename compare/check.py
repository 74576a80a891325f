"""Numerical agreement: does a contender compute the GEMM it was given, and touch nothing else?

A check runs a contender twice on the same memory with different values. Before each run the output
and everything around it is poisoned with a NaN that arithmetic never makes; in the second run the
output starts as Inf where beta is 0, and an answer kept from the first run is wrong. Afterwards every
element is compared with float64, the guards must still hold their poison, and A and B their bits.

NaN in the output is right only where the reference is NaN, Inf only where the reference is Inf of
the same sign or too large for the output type.
"""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from compare import pace, room
from compare.contenders import Contender, KernelContender
from compare.inputs import BITS, DISTRIBUTIONS, POISON, Buffers, array_module, widen
from compare.reference import LARGEST, Reference, error_bound, output_roundoff
from compare.shapes import OPTIONS, Shape, parse
from compare.trials import Block, Trials
from kernel.contract import MAX_KNOWN_ALIGNMENT, Problem, ceil_div
from kernel.errors import (
    BuildError,
    CatalogError,
    CheckError,
    LaunchError,
    MachineFault,
    MissingToolError,
    NoDeviceError,
    RejectedError,
    UnsupportedError,
)

ROUNDS = 2
"""Runs of a check, each on new values in the same memory."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check found."""

    contender: str
    problem: Problem
    input: str
    seed: int
    ok: bool | None
    """None where the contender refused the problem; ``skipped_because`` then says why."""
    variant: str = ""
    max_error: float | None = None
    """|C - reference| / scale of the worst element, the one nearest to or furthest beyond its bound."""
    error_bound: float | None = None
    """What that element may have; 0 where the result must agree to the bit."""
    bad: int = 0
    """Elements of C that are wrong, unwritten ones among them."""
    unwritten: int = 0
    """Elements of C that still hold the poison."""
    first_bad: tuple[int, int] | None = None
    got: float | None = None
    expected: float | None = None
    reason: str = ""
    """Why ``ok`` is false, in one sentence; empty otherwise."""
    skipped_because: str = ""
    fatal: bool = False
    """True after a GPU fault: the process can run nothing else on that device."""

    @property
    def margin(self) -> float:
        """max_error / error_bound: 1 is the limit; 0 where nothing was compared or all agrees to the bit."""
        if not self.max_error or self.error_bound is None:
            return 0.0
        return self.max_error / self.error_bound if self.error_bound > 0.0 else math.inf

    def __str__(self) -> str:
        what = f"{self.contender} on {self.problem} ({self.input}, seed {self.seed})"
        if self.ok is None:
            return f"{what}: not run, {self.skipped_because}"
        if not self.ok:
            return f"{what}: FAILED, {self.reason}"
        error = "exact" if self.error_bound == 0.0 or self.max_error is None else f"{self.max_error:.2e}"
        bound = "" if not self.error_bound else f" of {self.error_bound:.2e} allowed"
        return f"{what}: ok, {error}{bound}"


class Executor(Protocol):
    """Where contenders run: a GPU, or the PTX machine on a CPU."""

    name: str
    """gpu or cpu."""

    @property
    def xp(self) -> Any:
        """The array module of its memory: CuPy or NumPy."""

    def refuses(self, contender: Contender) -> str | None:
        """Why a contender cannot run here at all, or None."""

    def run(self, contender: Contender, problem: Problem, buffers: Buffers) -> str:
        """Run the GEMM once on the buffers, wait for it, and return the variant that ran."""


class GpuExecutor:
    """Runs contenders on the current CUDA device, or on ``ordinal``, which then becomes it, on a stream of its own."""

    name = "gpu"

    def __init__(self, ordinal: int | None = None) -> None:
        from kernel.launch import cupy_module

        self._cupy = cupy_module()
        try:
            if ordinal is not None:
                self._cupy.cuda.Device(ordinal).use()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise NoDeviceError(f"device {ordinal} cannot be used: {error}") from None
        self._stream = self._cupy.cuda.Stream(non_blocking=True)

    @property
    def xp(self) -> Any:
        return self._cupy

    def refuses(self, contender: Contender) -> str | None:
        """Nothing: what is missing is an error, not a refusal."""
        return None

    def run(self, contender: Contender, problem: Problem, buffers: Buffers) -> str:
        try:
            self._cupy.cuda.get_current_stream().synchronize()
            prepared = contender.prepare(problem, buffers.pointers, self._stream.ptr)
            prepared.enqueue(self._stream.ptr)
            self._stream.synchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise CheckError(f"the GPU stopped with {error}; this process cannot use it any more") from None
        return prepared.variant


class CpuExecutor:
    """Runs kernels on the PTX machine; libraries have no PTX of ours and are refused."""

    name = "cpu"

    @property
    def xp(self) -> Any:
        return np

    def refuses(self, contender: Contender) -> str | None:
        if isinstance(contender, KernelContender):
            return None
        return f"{contender.family} runs on a GPU only"

    def run(self, contender: Contender, problem: Problem, buffers: Buffers) -> str:
        from kernel.machine.gemm import run_kernel

        if not isinstance(contender, KernelContender):
            raise NoDeviceError(f"{contender.name} runs on a GPU only; check kernels from a catalog here")
        before = buffers.c if problem.beta != 0.0 else None
        # The machine lays operands out itself, pitches and base alignment included, and watches what surrounds them.
        buffers.c[...] = run_kernel(contender.kernel, problem, buffers.a, buffers.b, before)
        return contender.variant(problem)


def executor(device: str = "", ordinal: int | None = None) -> Executor:
    """The executor of that name, ``gpu`` or ``cpu``; left empty, a GPU if one can be used, else the CPU.

    ``ordinal`` is the GPU's number among the visible ones; the current one where it is left out.

    Raises:
        NoDeviceError, MissingToolError: a GPU was asked for and cannot be used.
    """
    if device == "cpu":
        return CpuExecutor()
    try:
        return GpuExecutor(ordinal)
    except (NoDeviceError, MissingToolError):
        if device == "gpu":
            raise
        return CpuExecutor()


def inapplicable(contender: Contender, distribution: str) -> str | None:
    """Why a contender cannot be checked on a distribution, or None.

    It is the arithmetic of the track, not a kernel, that cannot hold these values.
    """
    if contender.track == "tf32_tensor":
        if distribution == "denormal":
            return "TF32 cannot hold the denormals of FP32"
        if distribution in ("inf", "special") and "tf32x3" in contender.name:
            return "three-pass TF32 splits an operand into parts, and Inf - Inf is NaN"
    return None


CPU_LIMIT_S = 1800.0
"""Seconds that one check may be expected to take on the PTX machine."""
SURELY_SHORT = 1e9
"""Work of a round, as :func:`compare.pace.work` counts it, that no host needs that long for."""


def cpu_seconds(contender: Contender, problem: Problem, rounds: int = ROUNDS) -> float:
    """What a check on the PTX machine will roughly take on this host, reading the kernel's PTX left out.

    Raises:
        MissingToolError, BuildError: the machine's engine cannot be built.
    """
    work = rounds * pace.work(contender, problem)
    return work * pace.multiply_add_s() if work else 0.0


def too_much(contender: Contender, problem: Problem, *, rounds: int = ROUNDS, compared: bool = True) -> str | None:
    """Why a problem that is not rejected is not run on the PTX machine, or None.

    Hours of silence help nobody, nor a process that the system ends for want of memory. A check has ``rounds`` and is
    ``compared`` with float64.
    """
    return room.too_large(contender, problem, compared=compared) or too_long(contender, problem, rounds)


def too_long(contender: Contender, problem: Problem, rounds: int = ROUNDS) -> str | None:
    """Why that many runs would take too long, or None."""
    if pace.work(contender, problem) <= SURELY_SHORT:
        return None
    seconds = cpu_seconds(contender, problem, rounds)
    if seconds <= CPU_LIMIT_S:
        return None
    return (
        f"about {seconds / 3600:.2g} h on the PTX machine, and {CPU_LIMIT_S / 3600:g} h is the limit; "
        "check it on a GPU, or a smaller problem with the same tails"
    )


def check_contender(
    contender: Contender,
    problem: Problem,
    executor: Executor,
    *,
    distribution: str = "uniform",
    seed: int = 0,
    trials: Trials | None = None,
) -> Verdict:
    """Run a contender on a problem and say whether the result is right.

    Args:
        contender: whom to check.
        problem: extents, layouts, leading dimensions, scalars and base alignments; every one is honoured.
        executor: where to run it.
        distribution: key of :data:`compare.inputs.DISTRIBUTIONS`.
        seed: fixes the values.
        trials: what :func:`shared_trials` made of the same problem, distribution and seed.

    Returns:
        A verdict; a wrong result is no exception, and too little memory is a refusal.

    Raises:
        NoDeviceError, MissingToolError: it cannot be run here at all.
    """
    base = Verdict(contender=contender.name, problem=problem, input=distribution, seed=seed, ok=None)
    reason = executor.refuses(contender) or contender.rejects(problem) or inapplicable(contender, distribution)
    if reason is None and executor.name == "cpu":
        reason = too_much(contender, problem)
    if reason is not None:
        return dataclasses.replace(base, skipped_because=reason)
    try:
        if trials is None:
            trials = Trials(executor.xp, problem, distribution, seed, ROUNDS, shared=False)
        return _rounds(base, contender, executor, trials)
    except MemoryError as error:
        return dataclasses.replace(base, skipped_because=f"not enough memory to check it: {error}")


def shared_trials(executor: Executor, problem: Problem, distribution: str = "uniform", seed: int = 0) -> Trials:
    """Operands and float64 products for :func:`check_contender`, made once for all contenders of a problem.

    Raises:
        MemoryError: there is no room for the operands.
    """
    return Trials(executor.xp, problem, distribution, seed, ROUNDS, shared=True)


def _rounds(base: Verdict, contender: Contender, executor: Executor, trials: Trials) -> Verdict:
    """The first verdict that is not ok, else the one nearest to its bound."""
    worst = base
    for turn in range(ROUNDS):
        verdict = _one_round(base, contender, executor, trials, turn)
        if not verdict.ok:
            return verdict
        if worst.ok is None or verdict.margin > worst.margin:
            worst = verdict
    return worst


def check_shape(contender: Contender, shape: Shape, executor: Executor) -> Verdict:
    """:func:`check_contender` on a shape from the command line or a set."""
    return check_contender(contender, shape.problem(contender), executor, distribution=shape.input, seed=shape.seed)


def _one_round(base: Verdict, contender: Contender, executor: Executor, trials: Trials, turn: int) -> Verdict:
    problem, buffers = trials.problem, trials.buffers
    trials.begin(turn)
    if turn % 2 and problem.beta == 0.0:
        buffers.c[...] = math.inf
    before = buffers.c.copy() if problem.beta != 0.0 else None
    kept = trials.kept(turn, before)
    sums = buffers.input_sums()
    try:
        variant = executor.run(contender, problem, buffers)
    except RejectedError as error:
        return dataclasses.replace(base, skipped_because=str(error))
    except UnsupportedError as error:
        return dataclasses.replace(base, skipped_because=str(error).partition(", reached by")[0])
    except (BuildError, LaunchError, MachineFault) as error:
        return dataclasses.replace(base, ok=False, reason=str(error).partition("\n")[0])
    except CheckError as error:
        return dataclasses.replace(base, ok=False, reason=str(error), fatal=True)

    def against(products: Iterable[Block] | None) -> Verdict:
        operands = (buffers.a, buffers.b, buffers.c, before)
        found = verify(problem, contender.track, base.input, *operands, contender=contender.name, products=products)
        return dataclasses.replace(found, seed=base.seed, variant=variant)

    verdict = trusting(kept, against, trials.forget)
    if not verdict.ok:
        return verdict
    damaged = buffers.damaged_guards()
    if damaged:
        text = ", ".join(f"{count} around {name.upper()}" for name, count in damaged.items())
        return dataclasses.replace(verdict, ok=False, reason=f"elements outside the operands were written: {text}")
    if buffers.input_sums() != sums:
        return dataclasses.replace(verdict, ok=False, reason="A or B was changed")
    return verdict


def trusting(
    kept: Iterable[Block] | None, against: Callable[[Iterable[Block] | None], Verdict], forget: Callable[[], None]
) -> Verdict:
    """Compare with kept products, and where that disagrees drop them and compare with products made anew.

    What is kept may have been written over: no one fails by it alone.
    """
    verdict = against(kept)
    if kept is not None and not verdict.ok:
        forget()
        verdict = against(None)
    return verdict


def verify(
    problem: Problem,
    track: str,
    distribution: str,
    a: Any,
    b: Any,
    c: Any,
    c_before: Any = None,
    *,
    contender: str = "",
    products: Iterable[Block] | None = None,
) -> Verdict:
    """Compare an output with float64, element by element.

    Args:
        problem: what was computed; the arrays' shapes must be its extents.
        track: decides the bound.
        distribution: what A, B and C were filled with; decides the bound.
        a: m x k, NumPy or CuPy, any strides.
        b: k x n, likewise.
        c: the output, m x n. An element that holds the poison of :mod:`compare.inputs` counts as unwritten.
        c_before: C before the call, needed where beta is not 0.
        contender: whose output it is, for the text.
        products: the float64 products of these operands, where they are known already.
    """
    verdict = Verdict(contender=contender, problem=problem, input=distribution, seed=0, ok=True)
    if problem.is_empty:
        return verdict
    bound = error_bound(problem, track, distribution)
    if products is None:
        products = Reference(problem, a, b, c_before, DISTRIBUTIONS[distribution].nonfinite).blocks()
    bad = unwritten = 0
    first: tuple[int, int] | None = None
    got = expected = math.nan
    share, max_error, allowed = -1.0, 0.0, bound
    for rows, value, scale in products:
        found = _Block(c[rows], value, scale, bound, problem)
        bad += found.bad
        unwritten += found.unwritten
        if found.first is not None and first is None:
            first = (rows.start + found.first[0], found.first[1])
            got, expected = found.got, found.expected
        if found.share > share:
            share, max_error, allowed = found.share, found.max_error, found.bound
    verdict = dataclasses.replace(verdict, max_error=max_error, error_bound=allowed)
    if bad == 0:
        return verdict
    assert first is not None
    total = problem.m * problem.n
    reason = f"{bad} of {total} elements wrong"
    if unwritten:
        reason += f", {unwritten} of them never written"
    reason += f"; the first is C[{first[0]}, {first[1]}] = {got:.9g}, expected {expected:.9g}"
    if bound > 0.0:
        reason += f"; largest error {max_error:.2e} against {allowed:.2e} of |A| @ |B|"
    return dataclasses.replace(
        verdict, ok=False, bad=bad, unwritten=unwritten, first_bad=first, got=got, expected=expected, reason=reason
    )


class _Block:
    """One row block compared: counts, the first wrong element, and the worst element's error and bound."""

    def __init__(self, c: Any, value: Any, scale: Any, bound: float, problem: Problem) -> None:
        xp, dtype = array_module(c), problem.dtype_out
        with np.errstate(all="ignore"):
            out = widen(c)
            if bound == 0.0:
                rounded = value.astype(dtype).astype("float64")
                if dtype == "float32":  # CuPy's rounding flushes denormals
                    rounded = xp.where(abs(value) < 2.0**-126, xp.rint(value * 2.0**149) * 2.0**-149, rounded)
                value = rounded
                allowed = xp.zeros_like(value)
            else:
                relative, absolute = output_roundoff(problem)
                allowed = bound * scale + relative * abs(value) + absolute
            error = abs(out - value)
            finite = xp.isfinite(value)
            # Beyond the largest finite value of the output type Inf is right, and just below it either is.
            overflow = finite & xp.isinf(out) & (out * value > 0) & (abs(value) + allowed >= LARGEST[dtype])
            same = (out == value) | (xp.isnan(out) & xp.isnan(value))
            poisoned = xp.ascontiguousarray(c).view(BITS[dtype]) == POISON[dtype]
            wrong = poisoned | ~xp.where(finite, (error <= allowed) | overflow, same)
            share = xp.where(error > 0, error / xp.where(allowed > 0, allowed, 1e-300), 0.0)
            share = xp.where(wrong & ~(share > 1), math.inf, xp.where(finite & ~overflow, share, 0.0))
        self.bad = int(wrong.sum())
        self.unwritten = int(poisoned.sum())
        index = int(share.argmax())
        self.share = float(share.ravel()[index])
        """Error of the worst element over what it may have; above 1 is wrong."""
        divisor = float(scale.ravel()[index])
        self.max_error = _over(float(error.ravel()[index]), divisor) if self.share > 0.0 else 0.0
        self.bound = bound if self.share == 0.0 else _over(float(allowed.ravel()[index]), divisor)
        self.first: tuple[int, int] | None = None
        self.got = self.expected = math.nan
        if self.bad:
            at = int(wrong.argmax())
            self.first = divmod(at, int(c.shape[1]))
            self.got, self.expected = float(out.ravel()[at]), float(value.ravel()[at])


def _over(error: float, scale: float) -> float:
    """error / scale, Inf where there is no such number."""
    if math.isnan(error):
        return math.inf
    if scale > 0.0:
        return error / scale
    return 0.0 if error == 0.0 else math.inf


BASELINES = ("cublas_sgemm", "cublas_tf32", "cublas_fp16", "cublas_fp16_f32out")
BASELINE_SHAPES = "128x256x64,7x5x3,128@input=identity"


def check_baseline(executor: Executor, among: Sequence[Contender]) -> tuple[Verdict, ...]:
    """Check what everything else is divided by, on shapes that are not square, before it is used.

    Args:
        executor: where; a CPU has no baseline, and the result is then empty.
        among: contenders that hold the baselines; those absent are not checked.

    Raises:
        CheckError: a baseline is wrong, so nothing may be scored against it.
    """
    verdicts = []
    for contender in among:
        if contender.name in BASELINES and executor.refuses(contender) is None:
            verdicts += [check_shape(contender, shape, executor) for shape in parse(BASELINE_SHAPES)]
    wrong = [verdict for verdict in verdicts if not verdict.ok]
    if wrong:
        raise CheckError(f"the baseline is wrong, so nothing is compared with it: {wrong[0]}")
    return tuple(verdicts)


def check_all(
    contenders: Sequence[Contender],
    shapes: Sequence[Shape],
    executor: Executor,
) -> Iterator[tuple[Shape, Verdict]]:
    """Every contender on every shape, one verdict at a time, shapes outermost.

    Stops after a verdict that is ``fatal``: a GPU fault leaves the process unable to run anything else.
    """
    for shape in shapes:
        for contender in contenders:
            verdict = check_shape(contender, shape, executor)
            yield shape, verdict
            if verdict.fatal:
                return


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A draw that failed, and the smallest shape found that still fails."""

    drawn: Shape
    smallest: Shape
    verdict: Verdict
    """Of the smallest shape."""
    command: str
    """Repeats the smallest failure."""

    @classmethod
    def of(cls, contender: Contender, shape: Shape, verdict: Verdict, executor: Executor) -> Failure:
        """The failure as it was drawn, not shrunk yet."""
        command = f"gemm-tracks check --device {executor.name} {contender.selected_by} --shapes '{shape}'"
        return cls(drawn=shape, smallest=shape, verdict=verdict, command=command)


@dataclass(frozen=True, kw_only=True)
class FuzzReport:
    """What a fuzz run did."""

    seed: int
    drawn: int
    passed: dict[str, int]
    """How many problems ran and were right, by contender."""
    refused: dict[tuple[str, str], int]
    """How often, by contender and reason, numbers in it replaced by #."""
    worst: dict[str, float]
    """Largest margin (error over bound) seen, by contender."""
    failures: tuple[Failure, ...]
    stopped: bool = False
    """True where Ctrl-C ended it before its last draw."""

    @property
    def ran(self) -> int:
        """Problems that ran, right or wrong."""
        return self.drawn - sum(self.refused.values())

    @property
    def share_run(self) -> float:
        """Part of the draws that ran rather than being refused, 0 to 1."""
        return self.ran / self.drawn if self.drawn else 0.0


def fuzz(
    contenders: Sequence[Contender],
    count: int,
    seed: int,
    executor: Executor,
    *,
    progress: Callable[[int, Verdict], None] | None = None,
    most_failures: int = 10,
) -> FuzzReport:
    """Draw problems at random, check each on one contender, shrink what fails.

    Draw i of seed S equals draw 0 of seed S + i, so one draw can be repeated alone.

    Args:
        contenders: whom to draw from.
        count: problems to draw.
        seed: fixes all draws.
        executor: where to run them; the CPU gets smaller problems.
        progress: called after each draw with its index and verdict.
        most_failures: stop after so many.
    """
    able = [contender for contender in contenders if executor.refuses(contender) is None]
    if not able:
        raise CatalogError(f"none of the {len(contenders)} contenders chosen can run on the {executor.name}")
    refused: Counter[tuple[str, str]] = Counter()
    worst: dict[str, float] = {}
    failures: list[Failure] = []
    passed: Counter[str] = Counter()
    drawn, stopped = 0, False
    try:
        for index in range(count):
            contender = random.Random(f"{seed + index}").choice(able)
            shape = draw(contender, random.Random(f"{seed + index} {contender.name}"), small=executor.name == "cpu")
            verdict = check_shape(contender, shape, executor)
            drawn += 1
            if verdict.ok is None:
                refused[contender.name, NUMBERS.sub("#", verdict.skipped_because)] += 1
            else:
                passed[contender.name] += verdict.ok
                worst[contender.name] = max(worst.get(contender.name, 0.0), verdict.margin)
            if progress is not None:
                progress(index, verdict)
            if verdict.ok is False:
                failures.append(Failure.of(contender, shape, verdict, executor))
                failures[-1] = _smallest(contender, failures[-1], executor)
                if verdict.fatal or len(failures) >= most_failures:
                    break
    except KeyboardInterrupt:
        stopped = True
    return FuzzReport(
        seed=seed,
        drawn=drawn,
        passed=dict(passed),
        refused=dict(refused),
        worst=worst,
        failures=tuple(failures),
        stopped=stopped,
    )


def _smallest(contender: Contender, failure: Failure, executor: Executor) -> Failure:
    """The failure shrunk; after a GPU fault there is nothing left to try with."""
    if failure.verdict.fatal:
        return failure
    shape, verdict = shrink(contender, failure.drawn, failure.verdict, executor)
    return dataclasses.replace(Failure.of(contender, shape, verdict, executor), drawn=failure.drawn)


def draw(contender: Contender, rng: random.Random, *, small: bool) -> Shape:
    """One random shape for a contender: extents around its tile, tails, pads, offsets, scalars, inputs.

    Half of the draws for FFMA kernels, and most for Tensor Core kernels, keep extents and pitches at
    multiples of 16 elements and bases at 16 bytes, so that vector loads and TMA are exercised too.
    """
    aligned = rng.random() < (0.5 if contender.track == "fp32_simt" else 0.85)
    tile = contender.tile
    limits = (40, 40, 48) if small else (400, 400, 600)

    def extent(block: int, limit: int) -> int:
        kind = rng.random()
        if kind < 0.03:
            return 0
        if kind < 0.25:
            value = rng.randint(1, min(limit, 40))
        elif kind < 0.5 and block:
            value = max(1, block * rng.randint(1, max(1, limit // block)) + rng.choice((-1, 0, 0, 1)))
        else:
            value = rng.randint(1, limit)
        value = min(value, 2 * limit)
        return ceil_div(value, 16) * 16 if aligned else value

    m, n, k = (extent(b, limit) for b, limit in zip((tile.BLOCK_M, tile.BLOCK_N, tile.BLOCK_K), limits, strict=True))
    if not small and rng.random() < 0.05:
        stretched = rng.choice(("m", "n", "k"))
        size = rng.randint(1000, 9000)
        size = ceil_div(size, 16) * 16 if aligned else size
        m, n, k = (size if axis == stretched else value for axis, value in zip("mnk", (m, n, k), strict=True))
    pads = [rng.choice((0, 0, 0, 1, 3, 16, 64)) for _ in range(3)]
    aligns = [rng.choice((MAX_KNOWN_ALIGNMENT, MAX_KNOWN_ALIGNMENT, 2, 4, 8, 16)) for _ in range(3)]
    if aligned:
        pads, aligns = [ceil_div(pad, 16) * 16 for pad in pads], [max(align, 16) for align in aligns]
    usable = [name for name in DISTRIBUTIONS if inapplicable(contender, name) is None]
    drawn = Shape(
        m=m,
        n=n,
        k=k,
        layout=rng.choice(contender.layouts),
        pad_a=pads[0],
        pad_b=pads[1],
        pad_c=pads[2],
        alpha=rng.choice((1.0, 1.0, 1.0, 0.0, 0.5, -2.0, 3.0, round(rng.uniform(-2, 2), 3))),
        beta=rng.choice((0.0, 0.0, 0.0, 1.0, 0.5, 3.0, -1.0, round(rng.uniform(-2, 2), 3))),
        align_a=aligns[0],
        align_b=aligns[1],
        align_c=aligns[2],
        input=rng.choice(("uniform", "uniform", "normal", *usable)),
        seed=rng.randrange(2**16),
    )
    return contender.nearest(drawn)


MOST_SHRINKS = 200
NUMBERS = re.compile(r"(?<!\w)-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
"""What differs between refusals for one reason; digits within a name stay."""


def shrink(contender: Contender, shape: Shape, verdict: Verdict, executor: Executor) -> tuple[Shape, Verdict]:
    """The simplest shape found, by setting options back and lowering extents, that still fails."""
    spent = 0
    improved = True
    while improved:
        improved = False
        for simpler in _simpler(shape):
            spent += 1
            if spent > MOST_SHRINKS:
                return shape, verdict
            found = check_shape(contender, simpler, executor)
            if found.ok is False:
                shape, verdict, improved = simpler, found, not found.fatal
                break
    return shape, verdict


def _simpler(shape: Shape) -> Iterator[Shape]:
    """Shapes one step simpler: an option at its default, or an extent lowered."""
    for name, default in OPTIONS.items():
        if getattr(shape, name) != default and name != "layout":
            yield shape.replace(**{name: default})
    for name in ("m", "n", "k"):
        value = getattr(shape, name)
        for lower in sorted({1, value // 2, value - 1}):
            if 0 < lower < value:
                yield shape.replace(**{name: lower})
