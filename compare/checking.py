"""The command ``check``: contenders times shapes on a GPU or the PTX machine, and what came of it as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compare import driver
from compare.contenders import Contender, contenders
from kernel.errors import MissingToolError, NoDeviceError, RejectedError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from compare.building import Built
    from compare.check import Executor, FuzzReport, Verdict
    from compare.own_kernels import OwnOptions
    from compare.shapes import Shape

DEFAULT_SHAPES = {"gpu": "ladder", "cpu": "small"}
WORTH_SAYING_S = 30.0
"""A check on the CPU that is expected to take longer says so first."""


def choose_executor(device: str) -> Executor:
    """Where to check: the device asked for (``gpu:1`` is the second visible one), else a GPU, else the PTX machine.

    Raises:
        UsageError: the device is neither gpu nor cpu, or there is no GPU of that number.
        NoDeviceError, MissingToolError: it cannot be used here; the text says what it needs.
    """
    from compare.check import executor

    kind, _, number = device.partition(":")
    if kind not in ("", "gpu", "cpu") or (":" in device and (kind != "gpu" or not number.isdecimal())):
        raise UsageError(f"--device {device}: gpu, gpu:1 (and so on) or cpu is needed")
    if kind == "gpu":
        asked = driver.query()
        if asked.problem:
            raise NoDeviceError(
                f"{asked.problem}; a GPU of compute capability 9.0 with CuPy (pip install 'gemm-tracks[gpu]') is "
                "needed, or --device cpu"
            )
        driver.chosen(asked, int(number or 0))
    return executor(kind, int(number) if number else None)


def unmade_for_want_of_packages(chosen: Sequence[Contender], built: Built) -> dict[str, str]:
    """Contenders none of whose builds could be made because a package or tool is missing, with its text."""
    from compare.building import kernels_of

    unmade = {}
    for contender in kernels_of(chosen):
        results = [built.get(unit.name) for unit in contender.kernel.units()]
        missing = [str(result) for result in results if isinstance(result, MissingToolError)]
        if missing and len(missing) == len(results):
            unmade[contender.name] = missing[0]
    return unmade


def run_checks(
    patterns: Sequence[str] | None,
    shapes: str,
    device: str,
    *,
    fuzz: int,
    seed: int,
    as_json: bool,
    own: OwnOptions | None = None,
) -> bool:
    """Run the command; true where a check failed. ``own`` names a kernel of the user's, checked alone by default.

    Raises:
        GemmTracksError: nothing could be checked.
    """
    from compare.building import build
    from compare.check import check_all, check_baseline
    from compare.check import fuzz as draw_and_check
    from compare.console import answers, messages, print_json, progress
    from compare.shapes import parse

    if fuzz and shapes:
        raise UsageError("--fuzz draws its own problems; leave --shapes out, or leave --fuzz out")
    where = choose_executor(device)
    wanted = parse(shapes or DEFAULT_SHAPES[where.name])
    if not device and where.name == "cpu":
        messages().print(f"{driver.query().problem}: checking on the PTX machine, on the CPU")
    mine = own.contenders() if own is not None else ()
    chosen = contenders(patterns, mine) if patterns or not mine else mine
    if not patterns:
        chosen = tuple(contender for contender in chosen if contender.in_default_set)
    unable = {c.name: c.needs() for c in chosen if where.name == "gpu" and c.needs()}
    if unable:
        names = ", ".join(f"{name} ({what})" for name, what in unable.items())
        if len(unable) == len(chosen):
            raise MissingToolError(f"none of the contenders can run here; what each needs: {names}")
        messages().print(f"left out for what is not installed: {names}")
        chosen = tuple(contender for contender in chosen if contender.name not in unable)
    reasons = [where.refuses(contender) for contender in chosen]
    if all(reasons):
        raise NoDeviceError(f"none of the {len(reasons)} contenders can run on the {where.name}: {reasons[0]}")
    built = build(contender for contender, reason in zip(chosen, reasons, strict=True) if reason is None)
    unmade = unmade_for_want_of_packages(chosen, built)
    if unmade:
        if len(unmade) == len(chosen):
            raise MissingToolError(next(iter(unmade.values())))
        messages().print(f"left out, as nothing here can make them: {', '.join(unmade)}")
        chosen = tuple(contender for contender in chosen if contender.name not in unmade)
        reasons = [where.refuses(contender) for contender in chosen]

    check_baseline(where, chosen)
    if fuzz:
        with progress("checking", fuzz) as advance:
            report = draw_and_check(
                chosen, fuzz, seed, where, progress=lambda index, verdict: advance(index + 1, verdict.contender)
            )
        print_json(fuzz_as_json(report)) if as_json else print_fuzz(report)
        if report.stopped:
            messages().print(f"stopped after {report.drawn} of {fuzz} problems")
            raise KeyboardInterrupt
        return bool(report.failures)

    shares = [1.0] * (len(wanted) * len(chosen))
    if where.name == "cpu":
        expected = expected_s(chosen, wanted, where)
        shares = [seconds or 0.0 for seconds in expected]
        if sum(shares) > WORTH_SAYING_S:
            count = len(expected) - expected.count(None)
            messages().print(f"{count} checks on the CPU, about {minutes(sum(shares))}; Ctrl-C ends early")
    tally, stopped, done = Tally(), False, 0.0
    with progress("checking", sum(shares)) as advance:
        try:
            for share, (_, verdict) in zip(shares, check_all(chosen, wanted, where), strict=False):
                tally.verdicts.append(verdict)
                done += share
                advance(done, verdict.contender)
        except KeyboardInterrupt:
            stopped = True
    if as_json:
        print_json([verdict_as_json(verdict) for verdict in tally.verdicts])
    else:
        console = answers()
        console.print(tally_table(tally, chosen, console.width))
        for line in tally_notes(tally):
            console.print(line, soft_wrap=True)
    if stopped:
        messages().print(f"stopped after {len(tally.verdicts)} of {len(wanted) * len(chosen)} checks")
        raise KeyboardInterrupt
    if all(verdict.ok is None for verdict in tally.verdicts):
        text = f"nothing was checked: {tally.verdicts[0].skipped_because}"
        raise NoDeviceError(text) if where.name == "cpu" else RejectedError(text)
    return tally.failed


def expected_s(chosen: Sequence[Contender], wanted: Sequence[Shape], where: Executor) -> list[float | None]:
    """What each check on the CPU will take, in the order of the checks; None where it is refused.

    An opcode that the machine lacks shows only when it is reached: such checks are over sooner.
    """
    from compare import pace
    from compare.check import cpu_seconds, too_much

    found: list[float | None] = []
    read = set()
    for shape in wanted:
        for contender in chosen:
            problem = shape.problem(contender)
            if where.refuses(contender) or contender.rejects(problem) or too_much(contender, problem):
                found.append(None)
                continue
            seconds = cpu_seconds(contender, problem)
            if seconds and contender.name not in read:
                read.add(contender.name)
                seconds += pace.READING * pace.multiply_add_s()
            found.append(seconds)
    return found


def minutes(seconds: float) -> str:
    """A rough time in words."""
    return f"{seconds / 3600:.2g} h" if seconds >= 5400 else f"{max(seconds / 60, 0.5):.2g} min"


@dataclass
class Tally:
    """Verdicts, and what they say together."""

    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(verdict.ok is False for verdict in self.verdicts)

    def of(self, name: str) -> Iterator[Verdict]:
        return (verdict for verdict in self.verdicts if verdict.contender == name)


def tally_table(tally: Tally, chosen: Iterable[Contender], width: int | None = None) -> Table:
    """Per contender: how many problems passed, failed and were refused, and the largest error over its bound."""
    from compare.console import Head, table_of

    heads = (
        Head("kernel", folds=True),
        Head("track", goes=1),
        *(Head(text, right=True) for text in ("passed", "failed", "refused")),
        Head("largest error\n/ bound", right=True),
        Head("at", folds=True, goes=2),
    )
    lines = []
    for contender in chosen:
        verdicts = list(tally.of(contender.name))
        counts = Counter(verdict.ok for verdict in verdicts)
        worst = max((verdict for verdict in verdicts if verdict.ok is not None), key=lambda v: v.margin, default=None)
        margin, where = ("", "") if worst is None else (_margin(worst), str(worst.problem))
        numbers = (str(counts[verdict]) for verdict in (True, False, None))
        style = "red" if counts[False] else ""
        lines.append(((contender.name, contender.track, *numbers, margin, where), style))
    return table_of("Agreement with float64", heads, lines, width)


def _margin(verdict: Verdict) -> str:
    if verdict.max_error is None or verdict.error_bound is None:
        return "exact" if verdict.ok else "-"
    return f"{verdict.max_error:.2e} / {verdict.error_bound:.2e}"


def tally_notes(tally: Tally) -> list[str]:
    """Every failure in full, then how often each contender refused and why."""
    lines = [str(verdict) for verdict in tally.verdicts if verdict.ok is False]
    refused = Counter((v.contender, v.skipped_because) for v in tally.verdicts if v.ok is None)
    lines += [f"refused {count}x, {name}: {reason}" for (name, reason), count in refused.items()]
    passed = sum(verdict.ok is True for verdict in tally.verdicts)
    lines.append(
        f"{passed} of {len(tally.verdicts) - sum(refused.values())} checks passed, {sum(refused.values())} refused"
    )
    return lines


def verdict_as_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON holds it; what is not finite becomes text."""
    from dataclasses import asdict

    values = asdict(verdict)
    values["problem"] = asdict(verdict.problem)
    return {name: str(v) if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


def fuzz_as_json(report: FuzzReport) -> dict[str, Any]:
    """A fuzz report as JSON holds it."""
    return {
        "seed": report.seed,
        "drawn": report.drawn,
        "ran": report.ran,
        "stopped": report.stopped,
        "passed": report.passed,
        "refused": [{"contender": n, "reason": r, "count": c} for (n, r), c in report.refused.items()],
        "worst": {n: v if math.isfinite(v) else str(v) for n, v in report.worst.items()},
        "failures": [
            {"drawn": str(f.drawn), "smallest": str(f.smallest), "command": f.command, **verdict_as_json(f.verdict)}
            for f in report.failures
        ],
    }


def print_fuzz(report: FuzzReport) -> None:
    """A fuzz report for people."""
    from compare.console import answers

    console = answers()
    refused = sum(report.refused.values())
    console.print(
        f"seed {report.seed}: {report.drawn} problems drawn, {report.ran} run ({100 * report.share_run:.0f} %), "
        f"{refused} refused"
    )
    failed = Counter(failure.verdict.contender for failure in report.failures)
    for name in sorted({*report.passed, *report.worst}):
        of_bound = f"largest error {report.worst[name]:.2g} of its bound"
        also = f" and failed {failed[name]}x" if failed[name] else ""
        console.print(f"  passed {report.passed.get(name, 0)}x{also}, {name}: {of_bound}", soft_wrap=True)
    for (name, reason), count in sorted(report.refused.items()):
        console.print(f"  refused {count}x, {name}: {reason}", soft_wrap=True)
    for (verdict, command), count in Counter((str(f.verdict), f.command) for f in report.failures).items():
        if count > 1:
            verdict += f"\n  {count} draws come down to this"
        console.print(f"{verdict}\n  repeat with: {command}", soft_wrap=True)
    console.print("no failure" if not report.failures else f"{len(report.failures)} failures")
