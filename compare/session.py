"""Sessions on a GPU machine, step by step, each with a limit, everything written under one folder.

    python -m compare.session bundle                    # here: build/bundle, which travels
    python -m compare.session run --seconds 560         # there: GPU tests, sanitizer, quick run, recorded run
    python -m compare.session adopt FOLDER              # here: take the recorded run into results/

``run`` writes under OUT (the variable, else build/session): session.log and <gpu>/<date>-<revision>/. A run
that hits the limit is interrupted, keeps what it finished, and goes on from ``--resume FOLDER`` next time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare import runs
from kernel.errors import CheckError, GemmTracksError, RunFileError

BUNDLE = Path("build/bundle")
LOG = "session.log"
SANITIZED_SHAPES = "130x130x35,132x132x36"
"""The second lets the vector builds run: its pitches are multiples of four."""
NCU_METRICS = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_shared_st.sum",
    "smsp__inst_executed.sum",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
)
GRACE_S = 40.0
"""What an interrupted step gets to write down what it has."""


@dataclass(frozen=True)
class Step:
    """One command of a session. ``share`` is the most of the remaining time that it may take."""

    name: str
    command: tuple[str, ...]
    share: float
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """What came of a step."""

    name: str
    status: int
    seconds: float
    last_line: str


def write_bundle() -> Path:
    """Build what a GPU machine needs to run this checkout, and write it to build/bundle with this revision.

    Raises:
        BuildError, MissingToolError: something of it cannot be built here.
    """
    from cutlass_ref.catalog import CutlassKernel, bundle_files

    from compare.building import units_of
    from compare.contenders import KernelContender, contenders
    from compare.timing import probe_unit
    from kernel import build

    known = (contender for contender in contenders() if isinstance(contender, KernelContender))
    chosen = [contender for contender in known if contender.in_default_set or contender.family == "handwritten"]
    units = [*units_of(chosen), probe_unit("sm_90a")]
    emitted = [c.kernel for c in chosen if isinstance(c.kernel, CutlassKernel)]
    folder = build.write_bundle(units, runs.repository() / BUNDLE, bundle_files(emitted))
    (folder / runs.REVISION_FILE).write_text(runs.revision() + "\n", encoding="utf-8")
    return folder


def steps(names: Sequence[str], out: Path) -> list[Step]:
    """The steps of a session, in order.

    Raises:
        RunFileError: an unknown name.
    """
    python = sys.executable
    keep = {"GEMM_TRACKS_RESULTS": str(out)}
    known = {
        "doctor": Step("doctor", (python, "-m", "compare", "doctor"), 0.2, {}),
        "tests": Step("tests", (python, "-m", "pytest", "-m", "gpu", "-q", "-x", "--no-header"), 0.5, {}),
        "sanitize": Step("sanitize", (python, "-m", "compare.session", "sanitize", "v*", "s*"), 0.5, {}),
        "compare": Step("compare", (python, "-m", "compare", "compare"), 0.6, keep),
        "record": Step("record", (python, "-m", "compare", "compare", "--record"), 1.0, keep),
    }
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RunFileError(f"unknown steps: {', '.join(unknown)}; known: {', '.join(known)}")
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
            outcomes.append(run_step(step, step.share * remaining, log.write))
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


def sanitize(kernels: Sequence[str]) -> int:
    """Kernels under memcheck and racecheck, and a planted overrun that memcheck must report.

    Raises:
        CheckError: the planted overrun went unnoticed, so a clean report would mean nothing.
        MissingToolError: compute-sanitizer is not there.
    """
    planted, text = sanitizer("memcheck", kernels[:1], "130x130x35", "--overrun")
    found = re.search(r"ERROR SUMMARY: (\d+) error", text)
    if found is None or not int(found[1]) or "Invalid __global__ write" not in text:
        raise CheckError(f"compute-sanitizer did not report a planted overrun (exit {planted}): {text[-400:]}")
    sys.stdout.write(f"planted overrun: reported, {found[0]}\n")
    failed = False
    for tool in ("memcheck", "racecheck"):
        status, text = sanitizer(tool, kernels, SANITIZED_SHAPES)
        lines = [line for line in text.splitlines() if "SUMMARY" in line or line.startswith("launched")]
        clean = status == 0 and any(re.search(r"SUMMARY: 0 ", line) for line in lines)
        failed |= not clean
        sys.stdout.write(f"{tool}: {'clean' if clean else 'NOT CLEAN'}; {'; '.join(lines) or text[-400:]}\n")
        if not clean:
            sys.stdout.write(text)
    return int(failed)


def sanitizer(tool: str, kernels: Sequence[str], shapes: str, *more: str) -> tuple[int, str]:
    """(exit status, output) of the kernels under one of compute-sanitizer's tools."""
    from kernel.toolchain import find

    names = [word for kernel in kernels for word in ("--kernels", kernel)]
    command = [
        str(find("compute-sanitizer").path), "--tool", tool, "--error-exitcode", "9",
        sys.executable, "-m", "compare.once", *names, "--shapes", shapes, *more,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=runs.repository(), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def ncu(kernel: str, shape: str) -> int:
    """A kernel's counters, as Nsight Compute prints them, at the clocks that it runs at otherwise."""
    from kernel.toolchain import find

    command = [
        str(find("ncu").path), "--clock-control", "none", "--metrics", ",".join(NCU_METRICS),
        sys.executable, "-m", "compare.once", "--kernels", kernel, "--shapes", shape,
    ]  # fmt: skip
    return subprocess.run(command, cwd=runs.repository(), check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m compare.session", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("bundle", help="write build/bundle for a GPU machine")
    session = commands.add_parser("run", help="run the steps of a session on a GPU")
    session.add_argument("--steps", default="doctor,tests,sanitize,compare,record", help="which, in order")
    session.add_argument("--seconds", type=float, default=560.0, help="limit for all of it together")
    session.add_argument("--resume", type=Path, help="what an earlier session left under OUT")
    adopting = commands.add_parser("adopt", help="take a run made elsewhere into results/")
    adopting.add_argument("folder", type=Path)
    sanitizing = commands.add_parser("sanitize", help="kernels under compute-sanitizer")
    sanitizing.add_argument("kernels", nargs="+")
    counting = commands.add_parser("ncu", help="one kernel under Nsight Compute")
    counting.add_argument("kernel")
    counting.add_argument("--shape", default="1024")
    given = parser.parse_args(arguments)
    try:
        if given.command == "bundle":
            folder = write_bundle()
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            sys.stdout.write(f"{folder}: {size / 2**20:.1f} MiB\n")
            return 0
        if given.command == "adopt":
            sys.stdout.write(f"{runs.adopt(given.folder)}\n")
            return 0
        if given.command == "sanitize":
            return sanitize(given.kernels)
        if given.command == "ncu":
            return ncu(given.kernel, given.shape)
        return run(given.steps.split(","), given.seconds, given.resume)
    except GemmTracksError as error:
        sys.stderr.write(f"compare.session: {error}\n")
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
