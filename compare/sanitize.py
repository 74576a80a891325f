"""compute-sanitizer over kernels of every family, with a planted fault that each tool must report in the same session.

Operands get memory of exactly their size from an allocator that pools nothing, so that one element
beyond the end is an error and not a neighbour. Values are made and compared on the host: nothing but
the kernels under test runs on the device. Where beta is 0, C is never written beforehand, so a kernel
that reads it is caught by initcheck.

Kernels are dealt out over several processes, each under one tool, that share the GPU.

``python -m compare.sanitize --out DIR`` runs on the GPU machine and exits with 1 on a finding, on a
wrong result, if a kernel ran nothing, or if a planted fault went unreported.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compare.check import verify
from compare.contenders import Contender, KernelContender, contenders
from compare.inputs import Buffers, allocate, fill
from compare.shapes import parse
from kernel.contract import ITEMSIZE, MAX_KNOWN_ALIGNMENT, Pointers, Problem, Unit
from kernel.errors import CheckError, GemmTracksError, MissingToolError, UsageError
from kernel.plan import arguments
from kernel.toolchain import find

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
DEFAULT_SHAPES = (
    "130x130x35,35x79x19@align_a=4@align_b=4@align_c=4@pad_a=1@pad_b=2@pad_c=3,"
    "136x264x72@pad_a=8@pad_b=16@pad_c=8@beta=0.5,72x136x328"
)
"""Tails on every axis: two that every SIMT kernel takes, two whose extents and pitches 16-byte copies and TMA take."""
PER_PROCESS = 12
"""Contenders that one process runs: loading a library or a context costs a second under a tool."""
LIMIT_S = 300.0
"""Seconds after which a process is ended."""
EXCERPT = 1500
"""Characters of a tool's report that the summary keeps."""
PLANTED_IN = "v0_naive"
PLANTED_THREADS = 128
FOUND = 9
"""Exit status that compute-sanitizer is told to use when it found something."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one tool said about one process."""

    tool: str
    planted: bool
    """True for the process that holds nothing but the planted fault."""
    kernels: tuple[str, ...]
    """Contenders that it ran."""
    findings: int
    """Errors or hazards reported."""
    runs: int
    """Contenders times shapes and layouts that ran."""
    wrong: tuple[str, ...]
    """Results that were wrong, or kernels that could not run, in words."""
    seconds: float
    log: str
    """File name of the tool's own report."""
    report: str = ""
    """The beginning of that report."""

    @property
    def ok(self) -> bool:
        """Clean, or, for the planted fault, not clean."""
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


def stores_unseen(contender: Contender, problem: Problem, pointers: Pointers) -> bool:
    """Whether C is written in a way that initcheck does not see: by the copy engine, or perhaps so, in a library."""
    if not isinstance(contender, KernelContender):
        return True
    packed = arguments(contender.kernel, problem, pointers)
    maps = [described for launch in packed for one in launch for _, described in one.tensor_maps]
    return any(described.address == pointers.c for described in maps)


def run_under_tool(tool: str, contender: Contender, problem: Problem, distribution: str) -> str:
    """Run one kernel on exact memory; why the result is wrong, or empty.

    initcheck takes what the copy engine wrote for never written, so such a C is left to the other tools' runs.
    """
    import cupy

    buffers = allocate(np, problem)
    fill(buffers, distribution)
    before = buffers.c.copy()
    memory = ExactMemory(cupy, buffers)
    stream = cupy.cuda.Stream(non_blocking=True)
    contender.prepare(problem, memory.pointers, stream.ptr).enqueue(stream.ptr)
    stream.synchronize()
    if tool == "initcheck" and stores_unseen(contender, problem, memory.pointers):
        return ""
    memory.fetch()
    return verify(problem, contender.track, distribution, buffers.a, buffers.b, buffers.c, before).reason


def plant(tool: str, contender: Contender) -> None:
    """Commit the fault that ``tool`` is there to find."""
    import cupy

    # initcheck reports every read of what was never written, one by one: a large problem would take a minute.
    problem = contender.problem(8, 8, 4) if tool == "initcheck" else contender.problem(130, 130, 35)
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


def session(tool: str, names: Sequence[str], shapes: str, folder: Path, number: int | None) -> Outcome:
    """One process under one tool; ``number`` tells it from the tool's other ones, None is the planted fault.

    Raises:
        MissingToolError: compute-sanitizer is not there.
    """
    planted = number is None
    label = f"{tool}_planted" if planted else f"{tool}_{number}"
    report, results = folder / f"{label}.log", folder / f"{label}.jsonl"
    results.unlink(missing_ok=True)
    command = [
        str(find("compute-sanitizer").path), "--tool", tool, "--error-exitcode", str(FOUND),
        "--report-api-errors", "no", "--print-limit", "20", "--log-file", str(report),
        sys.executable, "-m", "compare.sanitize", "--inside", tool, "--kernels", ",".join(names), "--shapes", shapes,
        "--out", str(results), *(["--plant"] if planted else []),
    ]  # fmt: skip
    # torch keeps memory of its own unless told not to; a pool would hide what lies behind an allocation.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment, errors="replace"
        )
        status, said = done.returncode, (done.stderr or done.stdout).strip()[-400:]
    except subprocess.TimeoutExpired:
        status, said = -1, f"ended after {LIMIT_S:g} s"
    seconds = time.monotonic() - began
    text = report.read_text(encoding="utf-8", errors="replace") if report.is_file() else ""
    runs = _runs(results)
    wrong = [f"{run['kernel']} on {run['problem']}: {run['reason']}" for run in runs if run["reason"]]
    if not planted:
        if status not in (0, FOUND):
            begun = runs[-1] if runs else {"kernel": names[0], "problem": "nothing yet"}
            wrong.append(f"the process ended with {status} at {begun['kernel']} on {begun['problem']}: {said}")
        ran = {run["kernel"] for run in runs}
        wrong += [f"{name}: none of the shapes ran" for name in names if name not in ran]
    return Outcome(
        tool=tool,
        planted=planted,
        kernels=tuple(names),
        findings=reported(text, status),
        runs=len(runs),
        wrong=tuple(wrong),
        seconds=round(seconds, 1),
        log=report.name,
        report=text[:EXCERPT],
    )


def _runs(results: Path) -> list[dict[str, str]]:
    """What a process wrote down, one line when a run begins and one when it ends; the last word on each run."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    lines = results.read_text(encoding="utf-8").splitlines() if results.is_file() else []
    for line in lines:
        run: dict[str, str] = json.loads(line)
        found[run["kernel"], run["problem"]] = run
    return list(found.values())


def reported(text: str, status: int) -> int:
    """Errors and hazards that a report counts; at least 1 where the status says that there were some."""
    counts = [int(number) for number in re.findall(r"ERROR SUMMARY: (\d+) error", text)]
    counts += [int(number) for number in re.findall(r"RACECHECK SUMMARY: (\d+) hazard", text)]
    return max([*counts, 1 if status == FOUND else 0])


def choose(names: str) -> tuple[list[str], dict[str, str]]:
    """(contenders to run, why each of the others is left out).

    Left empty, ``names`` means the default set and everything else that is built already.

    Raises:
        CatalogError: a name is unknown.
    """
    from kernel.build import bundle_root, lookup

    chosen: list[str] = []
    left_out: dict[str, str] = {}
    for contender in contenders([names] if names else None):
        needs = contender.needs()
        units = contender.kernel.units() if isinstance(contender, KernelContender) else ()
        built = all(lookup(unit) is not None for unit in units)
        if needs:
            left_out[contender.name] = f"not installed: {needs}"
        elif not built and bundle_root() is not None:
            left_out[contender.name] = "not in the bundle"
        elif not built and not names and not contender.in_default_set:
            left_out[contender.name] = "not built, and not in the default set"
        else:
            chosen.append(contender.name)
    return chosen, left_out


def deal(names: Sequence[str], size: int = PER_PROCESS) -> list[list[str]]:
    """Names in hands of at most ``size``, neighbours (which cost alike) apart."""
    hands = -(-len(names) // size)
    return [list(names[start::hands]) for start in range(hands)]


def sanitize(names: str, shapes: str, tools: Sequence[str], folder: Path, jobs: int = 0) -> dict[str, Any]:
    """Every tool over every kernel, each with its planted fault; writes and returns the summary.

    Args:
        names: names or globs separated by commas; empty as :func:`choose` says.
        shapes: as in ``gemm-tracks check``; those that a contender refuses are left out, but not all of them.
        tools: which of :data:`TOOLS`.
        folder: where the summary and the tools' reports go.
        jobs: processes at a time; 0 for three quarters of the cores.

    Raises:
        UsageError: an unknown tool; MissingToolError: compute-sanitizer is not there.
    """
    unknown = sorted(set(tools) - set(TOOLS))
    if unknown:
        raise UsageError(f"no such tool: {', '.join(unknown)}; known: {', '.join(TOOLS)}")
    version = find("compute-sanitizer").version
    folder.mkdir(parents=True, exist_ok=True)
    chosen, left_out = choose(names)
    if not chosen:
        raise MissingToolError(f"nothing to run: {'; '.join(f'{name}, {why}' for name, why in left_out.items())}")
    hands = deal(chosen)
    # The slowest tool begins first, so that nothing is waited for in the end.
    order = sorted(tools, key=lambda tool: tool != "racecheck")
    work: list[tuple[str, list[str], int | None]]
    work = [(tool, hand, number) for tool in order for number, hand in enumerate(hands)]
    work += [(tool, [PLANTED_IN], None) for tool in order]
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=jobs or max(1, 3 * (os.cpu_count() or 1) // 4)) as pool:
        outcomes = list(pool.map(lambda one: session(one[0], one[1], shapes, folder, one[2]), work))
    outcomes.sort(key=lambda outcome: (TOOLS.index(outcome.tool), not outcome.planted))
    summary = {
        "ok": all(outcome.ok for outcome in outcomes),
        "compute_sanitizer": version,
        "kernels": chosen,
        "families": dict(Counter(contender.family for contender in contenders(chosen))),
        "left_out": left_out,
        "shapes": [str(shape) for shape in parse(shapes)],
        "seconds": round(time.monotonic() - began, 1),
        "sessions": [{**asdict(outcome), "ok": outcome.ok} for outcome in outcomes],
    }
    (folder / "sanitize.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def problems_of(contender: Contender, shapes: str) -> Iterable[tuple[Problem, str]]:
    """(problem, distribution) for every shape in every layout that the contender takes."""
    for shape in parse(shapes):
        for layout in (shape.layout,) if shape.layout else contender.layouts:
            if layout in contender.layouts:
                problem = shape.replace(layout=layout).problem(contender)
                if contender.rejects(problem) is None:
                    yield problem, shape.input


def _inside(tool: str, names: str, shapes: str, planted: bool, results: Path) -> None:
    """The process that compute-sanitizer watches."""
    from kernel.launch import cupy_module

    cupy = cupy_module()
    cupy.cuda.set_allocator(None)
    chosen = contenders([names])
    if planted:
        plant(tool, chosen[0])
        return
    with results.open("w", encoding="utf-8") as stream:

        def write(contender: Contender, problem: Problem, reason: str) -> None:
            run = {"kernel": contender.name, "problem": str(problem), "reason": reason}
            stream.write(json.dumps(run) + "\n")
            stream.flush()

        for contender in chosen:
            for problem, distribution in problems_of(contender, shapes):
                write(contender, problem, "it did not end")
                try:
                    reason = run_under_tool(tool, contender, problem, distribution)
                except GemmTracksError as error:
                    reason = str(error)
                write(contender, problem, reason)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of this module; exit status 0 clean, 1 not, 2 or 3 as everywhere."""
    parser = argparse.ArgumentParser(prog="python -m compare.sanitize", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kernels", default="", help="names or globs, separated by commas; else all that is built")
    parser.add_argument("--shapes", default=DEFAULT_SHAPES, help="shapes as in `gemm-tracks check`")
    parser.add_argument("--tools", default=",".join(TOOLS), help="which of " + ", ".join(TOOLS))
    parser.add_argument("--jobs", type=int, default=0, help="processes at a time; else three quarters of the cores")
    parser.add_argument("--out", type=Path, required=True, help="folder for the summary and the tools' reports")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    parser.add_argument("--plant", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    try:
        if given.inside:
            _inside(given.inside, given.kernels, given.shapes, given.plant, given.out)
            return 0
        summary = sanitize(given.kernels, given.shapes, given.tools.split(","), given.out, given.jobs)
        for line in lines(summary):
            sys.stdout.write(line + "\n")
        if not summary["ok"]:
            raise CheckError(f"not clean; see {given.out / 'sanitize.json'}")
    except GemmTracksError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


def lines(summary: dict[str, Any]) -> list[str]:
    """The summary for people: a line for each tool and its planted fault, then what is not as it should be."""
    found = []
    for tool in dict.fromkeys(entry["tool"] for entry in summary["sessions"]):
        mine = [entry for entry in summary["sessions"] if entry["tool"] == tool]
        for planted in (True, False):
            part = [entry for entry in mine if entry["planted"] is planted]
            what = "planted fault" if planted else f"{sum(entry['runs'] for entry in part)} runs"
            state = "as it should be" if all(entry["ok"] for entry in part) else "NOT as it should be"
            findings = sum(entry["findings"] for entry in part)
            seconds = sum(entry["seconds"] for entry in part)
            found.append(f"{tool}, {what}: {findings} findings, {state} ({seconds:.1f} s in {len(part)} processes)")
        found += [f"  {text}" for entry in mine for text in entry["wrong"]]
        found += [
            f"  {entry['log']}: {entry['findings']} findings" for entry in mine if not (entry["planted"] or entry["ok"])
        ]
    families = ", ".join(f"{count} {family}" for family, count in summary["families"].items())
    found.append(f"{len(summary['kernels'])} contenders ({families}), {summary['seconds']} s")
    reasons = Counter(summary["left_out"].values())
    found += [f"left out: {count} contenders, {why}" for why, count in reasons.items()]
    return found


if __name__ == "__main__":
    sys.exit(main())
