"""The command ``run-cpu`` and the view ``inspect --races``: kernels on the PTX machine, with what it found in words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from kernel.machine.command import FileRun
    from kernel.machine.gemm import Outcome
    from kernel.machine.report import Report

SHOWN = 8
"""Elements of a buffer that are printed."""
QUIET_S = 1.5
"""A run that is over by then needs no progress."""


def extents(text: str, option: str) -> tuple[int, int, int]:
    """``4``, ``4x2`` or ``4x2x1`` as x, y and z.

    Raises:
        UsageError: it is none of these.
    """
    if not re.fullmatch(r"[0-9]+(x[0-9]+){0,2}", text):
        raise UsageError(f"{option} {text!r}: one to three numbers are needed, such as 4, 4x2 or 4x2x1")
    x, y, z = (*(int(part) for part in text.split("x")), 1, 1)[:3]
    return x, y, z


def run_cpu(
    path: Path,
    symbol: str,
    grid: str,
    block: str,
    arguments: Sequence[str],
    *,
    smem: int,
    arch: str,
    strict: bool,
    keep_going: bool,
    seconds: float,
    as_json: bool,
) -> bool:
    """Run the command; true where the machine found a fault. ``seconds`` end it; 0: no limit.

    Raises:
        GemmTracksError: file, symbol, extents or arguments do not fit, it cannot be built, or the machine lacks an
            opcode that was reached; or the seconds were over.
    """
    from compare.console import answers, print_json, progress
    from kernel.machine import Checks
    from kernel.machine.command import report_text, run_file
    from kernel.machine.execute import Attention

    blocks = extents(grid, "--grid")
    with progress("running", math.prod(blocks), after_s=QUIET_S) as advance:

        def told(finished: int, of: int, executed: int) -> None:
            advance(finished, f"{finished} of {of} blocks, {executed:,} warp instructions")

        done = run_file(
            path,
            symbol,
            blocks,
            extents(block, "--block"),
            arguments,
            dynamic_smem=smem,
            arch=arch,
            checks=Checks(strict=strict),
            keep_going=keep_going,
            attention=Attention(seconds, told),
        )
    if as_json:
        print_json(file_run_as_json(done))
    else:
        console = answers()
        console.print(report_text(done.report), soft_wrap=True)
        for number, buffer in done.buffers.items():
            first = " ".join(f"{value:g}" for value in buffer.reshape(-1)[:SHOWN])
            shape = "x".join(map(str, buffer.shape))
            more = " …" if buffer.size > SHOWN else ""
            console.print(f"argument {number}, {buffer.dtype} {shape}: {first}{more}", soft_wrap=True)
        for saved in done.saved:
            console.print(f"wrote {saved}", soft_wrap=True)
    return bool(done.report.faults)


def report_as_json(report: Report) -> dict[str, Any]:
    """A launch's report as JSON holds it: faults, notes, and what every instruction did."""
    from dataclasses import asdict

    counters = report.counters
    return {
        "kernel": report.kernel,
        "faults": [{**asdict(fault), "text": str(fault)} for fault in report.faults],
        "notes": report.notes,
        "blocks": counters.blocks,
        "blocks_in_grid": counters.blocks_in_grid,
        "seconds": report.seconds,
        "warp_instructions": report.warp_instructions,
        "mix": counters.mix,
        "fma": counters.fma,
        "mma": counters.mma,
        "shared_loads": counters.shared_loads(),
        "shared_stores": counters.shared_stores(),
        "instructions": [asdict(row) for row in counters.instructions],
    }


def file_run_as_json(done: FileRun) -> dict[str, Any]:
    """A run of a file as JSON holds it; of each buffer, the SHA-256 of its bytes and its first elements."""
    import hashlib

    buffers = [
        {
            "argument": number,
            "dtype": str(buffer.dtype),
            "shape": list(buffer.shape),
            "sha256": hashlib.sha256(buffer.tobytes()).hexdigest(),
            "first": [v if math.isfinite(v) else str(v) for v in buffer.reshape(-1)[:SHOWN].tolist()],
        }
        for number, buffer in done.buffers.items()
    ]
    return {**report_as_json(done.report), "buffers": buffers, "saved": [str(path) for path in done.saved]}


def races_of(name: str, shape: str) -> Outcome:
    """A whole small ragged problem, or ``shape``, of a catalog's kernel with every check on.

    Raises:
        UsageError: the name is a file or a library's.
        NoDeviceError: the machine would need hours for ``shape``, or more memory than there is.
        RejectedError, BuildError, MissingToolError, MachineFault: the machine cannot run it.
    """
    from compare.check import cpu_seconds, too_much
    from compare.checking import WORTH_SAYING_S, minutes
    from compare.console import messages, progress
    from compare.contenders import KernelContender, contenders
    from compare.shapes import parse_one
    from kernel.errors import NoDeviceError
    from kernel.machine.command import races
    from kernel.machine.execute import Attention

    if Path(name).suffix in (".cu", ".ptx", ".cubin"):
        raise UsageError(f"{name}: --races runs a kernel of a catalog; gemm-tracks run-cpu runs a file's")
    (*_, contender) = contenders([name])
    if not isinstance(contender, KernelContender):
        raise UsageError(f"{name}: --races runs a kernel of a catalog; a library has no PTX to run")
    if not shape:
        return races(contender.kernel)
    problem = parse_one(shape, "--shape").problem(contender)
    if contender.rejects(problem) is None:
        if reason := too_much(contender, problem, rounds=1, compared=False):
            raise NoDeviceError(f"{name}, {shape}: {reason}")
        if (seconds := cpu_seconds(contender, problem, rounds=1)) > WORTH_SAYING_S:
            messages().print(f"{name}, {shape}: about {minutes(seconds)} on the PTX machine; Ctrl-C ends it")
    with progress("looking for races", 1.0, after_s=QUIET_S) as advance:

        def told(finished: int, of: int, executed: int) -> None:
            advance(finished / max(of, 1), f"{finished} of {of} blocks, {executed:,} warp instructions")

        return races(contender.kernel, problem, attention=Attention(told=told))


def races_as_json(outcome: Outcome) -> dict[str, Any]:
    """What :func:`races_of` found as JSON holds it, without the counters."""
    from dataclasses import asdict

    return {
        "m": outcome.c.shape[0],
        "n": outcome.c.shape[1],
        "variant": outcome.variant,
        "faults": [{**asdict(fault), "text": str(fault)} for fault in outcome.faults],
        "notes": outcome.notes,
        "launches": [report.kernel for report in outcome.reports],
    }


def print_races(name: str, outcome: Outcome, console: Console) -> None:
    """Every fault, every note, and one line that sums them up."""
    for fault in outcome.faults:
        console.print(str(fault), soft_wrap=True)
    for note in outcome.notes:
        console.print(f"note: {note}", soft_wrap=True)
    found = {fault.kind for fault in outcome.faults}
    kinds = ", ".join(sorted(found)) or "no race, no fault of any other kind"
    blocks = sum(report.counters.blocks for report in outcome.reports)
    rows, columns = outcome.c.shape
    ran = f"{name}, {outcome.variant}" if outcome.variant else name
    console.print(f"{ran}, C of {rows}x{columns}, {blocks} blocks: {kinds}", soft_wrap=True)
