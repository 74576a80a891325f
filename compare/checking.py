"""The command ``check``: contenders times shapes on a GPU or the PTX machine, and what came of it as text."""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compare import driver
from compare.contenders import Contender, contenders
from kernel.errors import MissingToolError, NoDeviceError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from compare.check import Executor, FuzzReport, Verdict

DEFAULT_SHAPES = {"gpu": "ladder", "cpu": "small"}


def choose_executor(device: str) -> Executor:
    """Where to check: the device asked for, else a GPU, else the PTX machine.

    Raises:
        UsageError: the device is neither gpu nor cpu.
        NoDeviceError, MissingToolError: it cannot be used here; the text says what it needs.
    """
    from compare.check import executor

    if device not in ("", "gpu", "cpu"):
        raise UsageError(f"--device {device}: gpu or cpu is needed")
    if device == "gpu" and (problem := driver.query().problem):
        raise NoDeviceError(
            f"{problem}; a GPU of compute capability 9.0 with CuPy (pip install 'gemm-tracks[gpu]') is needed, "
            "or --device cpu"
        )
    found = executor(device)
    if found.name == "cpu" and not has_machine():
        problem = "" if device == "cpu" else f"{driver.query().problem}; "
        raise NoDeviceError(
            f"{problem}check needs a GPU of compute capability 9.0 with CuPy (pip install 'gemm-tracks[gpu]'); "
            "the PTX machine that would stand in for one is not part of this version"
        )
    return found


def has_machine() -> bool:
    """Whether this version has the PTX machine."""
    try:
        return importlib.util.find_spec("kernel.machine.gemm") is not None
    except ModuleNotFoundError:
        return False


def run_checks(
    patterns: Sequence[str] | None, shapes: str, device: str, *, fuzz: int, seed: int, as_json: bool
) -> bool:
    """Run the command; true where a check failed.

    Raises:
        GemmTracksError: nothing could be checked.
    """
    from compare.building import build
    from compare.check import check_all, check_baseline
    from compare.check import fuzz as draw_and_check
    from compare.console import answers, messages, print_json, progress
    from compare.shapes import parse

    where = choose_executor(device)
    if not device and where.name == "cpu":
        messages().print(f"{driver.query().problem}: checking on the PTX machine, on the CPU")
    chosen = contenders(patterns)
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
    build(contender for contender, reason in zip(chosen, reasons, strict=True) if reason is None)

    if fuzz:
        report = draw_and_check(chosen, fuzz, seed, where)
        print_json(fuzz_as_json(report)) if as_json else print_fuzz(report)
        return bool(report.failures)

    wanted = parse(shapes or DEFAULT_SHAPES[where.name])
    check_baseline(where, chosen)
    tally, stopped = Tally(), False
    with progress("checking", len(wanted) * len(chosen)) as advance:
        try:
            for done, (_, verdict) in enumerate(check_all(chosen, wanted, where), start=1):
                tally.verdicts.append(verdict)
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
    return tally.failed


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
    console.print(f"seed {report.seed}: {report.drawn} problems drawn, {report.ran} run, {refused} refused")
    for (name, reason), count in sorted(report.refused.items()):
        console.print(f"  refused {count}x, {name}: {reason}", soft_wrap=True)
    for failure in report.failures:
        console.print(f"{failure.verdict}\n  repeat with: {failure.command}", soft_wrap=True)
    console.print("no failure" if not report.failures else f"{len(report.failures)} failures")
