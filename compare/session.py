"""Sessions on a GPU machine, step by step, each with a limit, everything written under one folder.

    python -m compare.session bundle                    # here: build/bundle, which travels
    python -m compare.session run --seconds 560         # there: GPU tests, sanitizer, quick run, recorded run
    python -m compare.session adopt FOLDER              # here: take the recorded run into results/

``run`` writes under OUT (the variable, else build/session): session.log and <gpu>/<date>-<revision>/. Of more
steps, slow runs the GPU tests that take long, evidence and experiments measure what ``claims`` and the page on
method rest on, and tune writes the dispatch tables into tables/, with its journal in cache/. A run that hits the
limit is interrupted, keeps what it finished, and goes on from ``--resume FOLDER`` next time.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from compare import runs
from kernel.errors import GemmTracksError, UsageError

if TYPE_CHECKING:
    from compare.contenders import KernelContender

BUNDLE = Path("build/bundle")
LOG = "session.log"
STEPS, MORE_STEPS = "doctor,tests,timing,sanitize,compare,record", "slow,evidence,experiments,tune"
PYTEST = ("-o", "addopts=-ra", "-p", "no:cacheprovider", "-v", "--maxfail=30")
"""Without the strict options of pyproject.toml: a GPU machine may lack the plug-ins that they expect."""
MOST_WORKERS = 14
"""Processes that share the GPU in the step tests: each holds a context and the memory of its largest test."""
GRACE_S = 40.0
"""What an interrupted step gets to write down what it has."""
MARGIN_S = 10.0
"""How long before its limit a step that can end by itself means to have ended."""


@dataclass(frozen=True)
class Step:
    """One command of a session. ``share`` is the most of the remaining time that it may take."""

    name: str
    command: tuple[str, ...]
    share: float
    environment: Mapping[str, str]
    keep: Path | None = None
    """A file that the step leaves elsewhere and that belongs with the log."""
    ends_by_itself: bool = False
    """Whether the command takes ``--seconds``."""


@dataclass(frozen=True)
class Outcome:
    """What came of a step."""

    name: str
    status: int
    seconds: float
    last_line: str


def _can_travel(contender: KernelContender) -> bool:
    """Whether every build of a DSL kernel is there or can be made here."""
    from cutlass_ref.cute.catalog import CuteKernel
    from cutlass_ref.cute.emit import missing
    from kernel import build

    assert isinstance(contender.kernel, CuteKernel)
    if not any(missing(program) for program in contender.kernel.programs()):
        return True
    return all(build.lookup(unit) is not None for unit in contender.kernel.units())


def write_bundle(everything: bool = False) -> Path:
    """Build what a GPU machine needs to run this checkout, and write it to build/bundle with this revision.

    Besides the hand-written kernels that is each family's default set, or ``everything`` in the catalogs. Kernels of
    the CuTe DSL stay behind, and a line says so, where its optional packages are not installed.

    Raises:
        BuildError, MissingToolError: something of it cannot be built here.
    """
    from compare import ceilings
    from compare.building import units_of
    from compare.contenders import KernelContender, contenders
    from compare.sanitize import planted_unit
    from cutlass_ref.catalog import CutlassKernel, bundle_files
    from kernel import build, placement

    known = (contender for contender in contenders() if isinstance(contender, KernelContender))
    chosen = [c for c in known if everything or c.in_default_set or c.family == "handwritten"]
    left = [c for c in chosen if c.family == "cute_dsl" and not _can_travel(c)]
    if left:
        sys.stderr.write(f"left out of the bundle: {', '.join(c.name for c in left)}: {left[0].needs()} is missing\n")
        chosen = [c for c in chosen if c not in left]
    units = [*units_of(chosen), *ceilings.units("sm_90a"), planted_unit("sm_90a"), placement.unit()]
    emitted = [c.kernel for c in chosen if isinstance(c.kernel, CutlassKernel)]
    folder = build.write_bundle(units, runs.repository() / BUNDLE, bundle_files(emitted))
    (folder / runs.REVISION_FILE).write_text(runs.revision() + "\n", encoding="utf-8")
    return folder


def workers() -> tuple[str, ...]:
    """Options of pytest that spread tests over processes, where pytest-xdist is installed."""
    if importlib.util.find_spec("xdist") is None:
        return ()
    return ("-n", str(min(MOST_WORKERS, os.cpu_count() or 1)), "--dist", "worksteal")


def steps(names: Sequence[str], out: Path) -> list[Step]:
    """The steps of a session, in order.

    Raises:
        UsageError: an unknown name.
    """
    python = sys.executable
    keep = {"GEMM_TRACKS_RESULTS": str(out)}
    lines = {"GEMM_TRACKS_LINES": str(out / "lines")}
    reports = runs.repository() / "build" / "sanitize"
    sanitizer = (python, "-m", "compare.sanitize", "--out", str(reports))
    known = {
        "doctor": Step("doctor", (python, "-m", "compare", "doctor"), 0.2, {}),
        "tests": Step(
            "tests",
            (python, "-m", "pytest", *PYTEST, *workers(), "-m", "gpu and not alone and not slow"),
            0.5,
            lines,
        ),
        "slow": Step("slow", (python, "-m", "pytest", *PYTEST, "-m", "gpu and slow and not alone"), 0.9, lines),
        "timing": Step("timing", (python, "-m", "pytest", *PYTEST, "-m", "gpu and alone and not slow"), 0.4, lines),
        "sanitize": Step("sanitize", sanitizer, 0.5, {}, reports / "sanitize.json"),
        "compare": Step("compare", (python, "-m", "compare", "compare"), 0.6, {}),
        "evidence": Step("evidence", (python, "-m", "compare.evidence"), 0.6, keep),
        "experiments": Step(
            "experiments", (python, "-m", "compare.experiments", "run"), 0.6, {**keep, "OUT": str(out)}
        ),
        "tune": Step(
            "tune",
            (python, "-m", "compare", "tune", "--out", str(out / "tables")),
            0.8,
            {"GEMM_TRACKS_CACHE": str(out / "cache")},
        ),
        "record": Step("record", (python, "-m", "compare", "compare", "--record"), 1.0, keep, ends_by_itself=True),
    }
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"unknown steps: {', '.join(unknown)}; known: {', '.join(known)}")
    return [known[name] for name in names]


def run(names: Sequence[str], seconds: float, resume: Path | None) -> int:
    """Run the steps, tee what they print into the log, and print a short table last."""
    out = Path(os.environ.get("OUT") or runs.repository() / "build" / "session").absolute()
    out.mkdir(parents=True, exist_ok=True)
    if resume is not None:
        shutil.copytree(resume, out, dirs_exist_ok=True, symlinks=True)
    deadline = time.monotonic() + seconds
    outcomes = []
    with (out / LOG).open("a", encoding="utf-8") as log:
        for step in steps(names, out):
            remaining = deadline - time.monotonic() - GRACE_S
            if remaining <= 0:
                outcomes.append(Outcome(step.name, -1, 0.0, "not begun: no time was left"))
                continue
            limit = step.share * remaining
            if step.ends_by_itself:  # a group that is cut off is lost
                step = replace(step, command=(*step.command, "--seconds", f"{max(limit - MARGIN_S, 1.0):.0f}"))
            outcomes.append(run_step(step, limit, log.write))
            if step.keep is not None and step.keep.is_file():
                shutil.copy(step.keep, out)
    for line in table(outcomes):
        sys.stdout.write(line + "\n")
    return int(any(outcome.status for outcome in outcomes))


def run_step(step: Step, limit: float, write: Callable[[str], object]) -> Outcome:
    """Run one step for at most ``limit`` seconds; then it is interrupted, as by Ctrl-C, and given time to end."""
    began = time.monotonic()
    write(f"\n=== {step.name}: {' '.join(step.command)}\n")
    bundle = runs.repository() / BUNDLE
    defaults = {"PYTHONPATH": str(runs.repository()), "PYTHONUNBUFFERED": "1"}
    if bundle.is_dir():
        defaults["GEMM_TRACKS_BUNDLE"] = str(bundle)
    environment = {**defaults, **os.environ, **step.environment}
    process = subprocess.Popen(
        step.command, cwd=runs.repository(), env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    last = ""
    watch = Watch(process, began + limit)
    assert process.stdout is not None
    for line in process.stdout:
        write(line)
        sys.stdout.write(line)
        last = line.strip() or last
    status = process.wait()
    watch.stop()
    return Outcome(step.name, status, time.monotonic() - began, "interrupted at its limit; " * watch.fired + last)


class Watch:
    """Interrupts a process when its time is up, and kills it where that does not help."""

    def __init__(self, process: subprocess.Popen[str], deadline: float) -> None:
        import threading

        self.fired = False
        self._process, self._deadline, self._done = process, deadline, threading.Event()
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        if self._done.wait(max(0.0, self._deadline - time.monotonic())):
            return
        self.fired = True
        self._process.send_signal(signal.SIGINT)
        if not self._done.wait(GRACE_S):
            self._process.kill()

    def stop(self) -> None:
        """The process has ended by itself."""
        self._done.set()
        self._thread.join()


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The closing table, one line per step."""
    lines = [f"{'step':<10} {'exit':>4} {'seconds':>8}  last line"]
    lines += [f"{o.name:<10} {o.status:>4} {o.seconds:>8.1f}  {o.last_line[:140]}" for o in outcomes]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m compare.session", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    bundling = commands.add_parser("bundle", help="write build/bundle for a GPU machine")
    bundling.add_argument("--all", action="store_true", help="every kernel of the catalogs, not only the default set")
    session = commands.add_parser("run", help="run the steps of a session on a GPU")
    session.add_argument(
        "--steps",
        default=STEPS,
        help=f"which, in order: {STEPS}; besides {MORE_STEPS}",
    )
    session.add_argument("--seconds", type=float, default=560.0, help="limit for all of it together")
    session.add_argument("--resume", type=Path, help="what an earlier session left under OUT")
    adopting = commands.add_parser("adopt", help="take a run made elsewhere into results/")
    adopting.add_argument("folder", type=Path)
    adopting.add_argument(
        "--partial", default="", help="what an unfinished run lacks; makes it the latest all the same"
    )
    given = parser.parse_args(arguments)
    try:
        if given.command == "bundle":
            folder = write_bundle(given.all)
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            sys.stdout.write(f"{folder}: {size / 2**20:.1f} MiB\n")
            return 0
        if given.command == "adopt":
            sys.stdout.write(f"{runs.adopt(given.folder, given.partial)}\n")
            return 0
        return run(given.steps.split(","), given.seconds, given.resume)
    except GemmTracksError as error:
        sys.stderr.write(f"compare.session: {error}\n")
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
