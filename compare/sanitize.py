"""compute-sanitizer over kernels, with a planted fault that each tool must report in the same session.

Operands get memory of exactly their size from an allocator that pools nothing, so that one element
beyond the end is an error and not a neighbour. Values are made and compared on the host: nothing but
the kernels under test runs on the device. Where beta is 0, C is never written beforehand, so a kernel
that reads it is caught by initcheck.

``python -m compare.sanitize --out DIR`` runs on the GPU machine and exits with 1 on a finding, on a
wrong result, or if a planted fault went unreported.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compare.check import verify
from compare.contenders import Contender, contenders
from compare.inputs import Buffers, allocate, fill
from compare.shapes import parse
from kernel.contract import ITEMSIZE, MAX_KNOWN_ALIGNMENT, Pointers, Problem, Unit
from kernel.errors import CheckError, GemmTracksError, UsageError
from kernel.toolchain import find

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
DEFAULT_SHAPES = "130x130x35,35x79x19@align_a=4@align_b=4@align_c=4@pad_a=1@pad_b=2@pad_c=3"
PLANTED_THREADS = 128
FOUND = 9
"""Exit status that compute-sanitizer is told to use when it found something."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one tool said about one session."""

    tool: str
    planted: bool
    """True for the session that holds nothing but the planted fault."""
    findings: int
    """Errors or hazards reported."""
    runs: int
    """Kernels times shapes that ran."""
    wrong: tuple[str, ...]
    """Results that were wrong, or kernels that could not run, in words."""
    seconds: float
    log: str
    """File name of the tool's own report."""

    @property
    def ok(self) -> bool:
        """Clean, or, for the planted session, not clean."""
        return self.findings > 0 if self.planted else self.findings == 0 and not self.wrong and self.runs > 0


class ExactMemory:
    """Device copies of operands, each allocation no larger than the operand and its offset."""

    def __init__(self, cupy: Any, buffers: Buffers, *, short: int = 0, unwritten: str = "") -> None:
        """``short`` elements are left off C's end; the operand ``unwritten`` is allocated but not filled."""
        self._runtime = cupy.cuda.runtime
        self._buffers = buffers
        problem = buffers.problem
        self._held: dict[str, tuple[Any, int, int]] = {}
        for name in ("a", "b", "c"):
            array = getattr(buffers, name)
            offset = getattr(problem, f"align_{name}")
            offset = offset if offset < MAX_KNOWN_ALIGNMENT else 0
            size = (problem.extent(name) - (short if name == "c" else 0)) * array.itemsize
            memory = cupy.cuda.alloc(max(offset + size, 1))
            self._held[name] = (memory, memory.ptr + offset, size)
            if name != unwritten and size and (name != "c" or problem.beta != 0.0):
                self._runtime.memcpy(memory.ptr + offset, array.ctypes.data, size, self._runtime.memcpyHostToDevice)

    @property
    def pointers(self) -> Pointers:
        """Device addresses of the operands."""
        return Pointers(**{name: held[1] for name, held in self._held.items()})

    def fetch(self) -> None:
        """Copy C back over the host's buffer, row by row: the gaps between rows were never written."""
        address, c = self._held["c"][1], self._buffers.c
        for row in range(c.shape[0] if c.size else 0):
            offset = row * c.strides[0]
            self._runtime.memcpy(
                c.ctypes.data + offset, address + offset, c.shape[1] * c.itemsize, self._runtime.memcpyDeviceToHost
            )


def run_under_tool(contender: Contender, problem: Problem, distribution: str) -> str:
    """Run one kernel on exact memory; why the result is wrong, or empty."""
    import cupy

    buffers = allocate(np, problem)
    fill(buffers, distribution)
    before = buffers.c.copy()
    memory = ExactMemory(cupy, buffers)
    stream = cupy.cuda.Stream(non_blocking=True)
    contender.prepare(problem, memory.pointers, stream.ptr).enqueue(stream.ptr)
    stream.synchronize()
    memory.fetch()
    return verify(problem, contender.track, distribution, buffers.a, buffers.b, buffers.c, before).reason


def plant(tool: str, contender: Contender) -> None:
    """Commit the fault that ``tool`` is there to find."""
    import cupy

    problem = contender.problem(130, 130, 35)
    stream = cupy.cuda.Stream(non_blocking=True)
    if tool in ("memcheck", "initcheck"):
        buffers = allocate(np, problem)
        fill(buffers)
        short, unwritten = (1, "") if tool == "memcheck" else (0, "a")
        memory = ExactMemory(cupy, buffers, short=short, unwritten=unwritten)
        contender.prepare(problem, memory.pointers, stream.ptr).enqueue(stream.ptr)
    else:
        from kernel.build import artifact
        from kernel.launch import load

        entry = "planted_race" if tool == "racecheck" else "planted_divergence"
        function = load(artifact(planted_unit(contender.arch)), entry)
        out = cupy.cuda.alloc(PLANTED_THREADS * ITEMSIZE["float32"])
        with stream:
            function((1,), (PLANTED_THREADS,), (np.uintp(out.ptr),))
    stream.synchronize()


def planted_unit(arch: str) -> Unit:
    """The unit of the planted race and the planted divergent barrier."""
    source = Path(__file__).with_name("planted_faults.cu")
    return Unit(name="planted_faults", arch=arch, source=source, flags=(f"-DTHREADS={PLANTED_THREADS}",))


def session(tool: str, names: str, shapes: str, planted: bool, folder: Path) -> Outcome:
    """One process under one tool.

    Raises:
        MissingToolError: compute-sanitizer is not there.
    """
    label = f"{tool}_planted" if planted else tool
    report, results = folder / f"{label}.log", folder / f"{label}.json"
    results.unlink(missing_ok=True)
    command = [
        str(find("compute-sanitizer").path), "--tool", tool, "--error-exitcode", str(FOUND),
        "--report-api-errors", "no", "--print-limit", "20", "--log-file", str(report),
        sys.executable, "-m", "compare.sanitize", "--inside", tool, "--kernels", names, "--shapes", shapes,
        "--out", str(results), *(["--plant"] if planted else []),
    ]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    text = report.read_text(encoding="utf-8", errors="replace") if report.is_file() else ""
    findings = reported(text, done.returncode)
    runs: list[dict[str, str]] = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else []
    wrong = tuple(f"{run['kernel']} on {run['problem']}: {run['reason']}" for run in runs if run["reason"])
    if not results.is_file() and not planted:
        wrong = (f"the process ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}",)
    return Outcome(
        tool=tool,
        planted=planted,
        findings=findings,
        runs=len(runs),
        wrong=wrong,
        seconds=round(seconds, 1),
        log=report.name,
    )


def reported(text: str, status: int) -> int:
    """Errors and hazards that a report counts; at least 1 where the status says that there were some."""
    counts = [int(number) for number in re.findall(r"ERROR SUMMARY: (\d+) error", text)]
    counts += [int(number) for number in re.findall(r"RACECHECK SUMMARY: (\d+) hazard", text)]
    return max([*counts, 1 if status == FOUND else 0])


def sanitize(names: str, shapes: str, tools: Sequence[str], folder: Path) -> dict[str, Any]:
    """Every tool over every kernel, each with its planted fault; writes and returns the summary."""
    unknown = sorted(set(tools) - set(TOOLS))
    if unknown:
        raise UsageError(f"no such tool: {', '.join(unknown)}; known: {', '.join(TOOLS)}")
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = [session(tool, names, shapes, planted, folder) for tool in tools for planted in (True, False)]
    chosen = [contender.name for contender in contenders([names])]
    summary = {
        "ok": all(outcome.ok for outcome in outcomes),
        "compute_sanitizer": find("compute-sanitizer").version,
        "kernels": chosen,
        "shapes": [str(shape) for shape in parse(shapes)],
        "sessions": [{**asdict(outcome), "ok": outcome.ok} for outcome in outcomes],
    }
    (folder / "sanitize.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def _inside(tool: str, names: str, shapes: str, planted: bool, results: Path) -> None:
    """The process that compute-sanitizer watches."""
    from kernel.launch import cupy_module

    cupy = cupy_module()
    cupy.cuda.set_allocator(None)
    runs = []
    chosen = contenders([names])
    if planted:
        plant(tool, chosen[0])
    for contender in chosen if not planted else ():
        for shape in parse(shapes):
            problem = shape.problem(contender)
            refusal = contender.rejects(problem)
            if refusal is None:
                try:
                    reason = run_under_tool(contender, problem, shape.input)
                except GemmTracksError as error:
                    reason = str(error)
                runs.append({"kernel": contender.name, "problem": str(problem), "reason": reason})
    results.write_text(json.dumps(runs), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module; exit status 0 clean, 1 not, 2 or 3 as everywhere."""
    parser = argparse.ArgumentParser(prog="python -m compare.sanitize", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kernels", default="v*,s?_*", help="names or globs, separated by commas")
    parser.add_argument("--shapes", default=DEFAULT_SHAPES, help="shapes as in `gemm-tracks check`")
    parser.add_argument("--tools", default=",".join(TOOLS), help="which of " + ", ".join(TOOLS))
    parser.add_argument("--out", type=Path, required=True, help="folder for the summary and the tools' reports")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    parser.add_argument("--plant", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    try:
        if given.inside:
            _inside(given.inside, given.kernels, given.shapes, given.plant, given.out)
            return 0
        summary = sanitize(given.kernels, given.shapes, given.tools.split(","), given.out)
        for entry in summary["sessions"]:
            what = "planted fault" if entry["planted"] else f"{entry['runs']} runs"
            state = "as it should be" if entry["ok"] else "NOT as it should be"
            sys.stdout.write(f"{entry['tool']}, {what}: {entry['findings']} findings, {state} ({entry['seconds']} s)\n")
            sys.stdout.writelines(f"  {text}\n" for text in entry["wrong"])
        if not summary["ok"]:
            raise CheckError(f"not clean; see {given.out / 'sanitize.json'}")
    except GemmTracksError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
