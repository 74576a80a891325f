"""Runs a kernel of any family on the machine as a GEMM: operands in NumPy arrays, C out, faults as errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kernel.build import artifact
from kernel.contract import ITEMSIZE, MAX_KNOWN_ALIGNMENT, Kernel, Pointers, Problem
from kernel.errors import DtypeError, MachineFault, ShapeError
from kernel.machine.execute import Attention, run
from kernel.machine.faults import OUTPUT_NOT_WRITTEN
from kernel.machine.memory import ADDRESSABLE, INITIALISED, WRITABLE, WRITTEN, Buffer, place
from kernel.machine.ptx import with_source
from kernel.machine.report import Fault, Report
from kernel.machine.shape import Checks
from kernel.plan import arguments, plan

Array = npt.NDArray[np.generic]


@dataclass(kw_only=True)
class Outcome:
    """What one GEMM on the machine gave: C, one report a launch, and every fault."""

    variant: str
    c: Array
    reports: list[Report] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    address_c: int = 0
    """Device address that C had."""

    @property
    def notes(self) -> list[str]:
        """Notes of all launches."""
        return [note for report in self.reports for note in report.notes]


def _laid_out(name: str, problem: Problem, array: Array | None, writable: bool) -> Buffer:
    """A buffer that holds an operand as the problem lays it out; what lies between its rows is out of bounds."""
    rows, width, pitch, dtype = {
        "A": (problem.m if problem.layout[0] == "r" else problem.k, problem.a_width, problem.lda, problem.dtype_in),
        "B": (problem.k if problem.layout[1] == "r" else problem.n, problem.b_width, problem.ldb, problem.dtype_in),
        "C": (problem.m, problem.n, problem.ldc, problem.dtype_out),
    }[name]
    size = ITEMSIZE[dtype]
    count = problem.extent(name.lower())
    padded = np.full(rows * pitch, np.nan, dtype)
    state = np.zeros(rows * pitch, np.uint8)
    if rows and width:
        grid = padded.reshape(rows, pitch)
        allowed = state.reshape(rows, pitch)
        allowed[:, :width] = ADDRESSABLE | (WRITABLE if writable else 0)
        if array is not None:
            grid[:, :width] = array
            allowed[:, :width] |= INITIALISED
    return Buffer(
        name=name,
        data=padded[:count].view(np.uint8).copy(),
        shadow=np.repeat(state[:count], size),
        writable=writable,
        itemsize=size,
        width=pitch,
    )


def _check(name: str, array: Array, shape: tuple[int, int]) -> Array:
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise DtypeError(f"{name} is a {type(array).__name__}; a NumPy array without a mask is needed")
    if array.dtype.kind not in "fiu":
        raise DtypeError(f"{name} has elements of {array.dtype}; real numbers are needed")
    if array.shape != shape:
        raise ShapeError(f"{name} has the shape {array.shape}; the problem needs {shape}")
    return array


def simulate(
    kernel: Kernel,
    problem: Problem,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    checks: Checks | None = None,
    blocks: Sequence[int] | None = None,
    keep_going: bool = False,
    trace: int = 0,
    attention: Attention | None = None,
) -> Outcome:
    """Run ``problem`` on the machine and report, without raising for what the kernel does wrong.

    Args:
        a, b: A (m x k) and B (k x n) as NumPy arrays of real numbers, whatever their strides; they are copied into
            buffers with the problem's types, layout, leading dimensions and alignment.
        c: the old C (m x n); needed where beta is not zero. Where beta is zero C starts as NaN and may
            not be read.
        blocks: linear ids of the blocks to run, of every launch; None runs them all and then looks for
            output that nobody wrote.
        attention: a limit in time for each launch, and whom to tell how far it is.

    Raises:
        ShapeError, DtypeError: an array has not the problem's extents, or is none of real numbers.
        RejectedError: the kernel cannot run the problem.
        BuildError, MissingToolError: its PTX is not there and cannot be made.
        MachineFault: it reached an opcode the machine lacks.
    """
    reads_c = problem.beta != 0.0
    a = _check("A", a, (problem.m, problem.k))
    b = _check("B", b, (problem.k, problem.n))
    if reads_c and c is None:
        raise ShapeError(f"beta = {problem.beta:g} needs the old C")
    if c is not None:
        c = _check("C", c, (problem.m, problem.n))
    steps = plan(kernel, problem)
    buffers = [
        _laid_out("A", problem, a if problem.layout[0] == "r" else a.T, False),
        _laid_out("B", problem, b if problem.layout[1] == "r" else b.T, False),
        _laid_out("C", problem, c if reads_c else None, True),
    ]
    if steps.workspace:
        scratch = np.full(steps.workspace, 0xFF, np.uint8)
        buffers.append(Buffer(name="workspace", data=scratch, initialised=False))
    place(buffers)
    for buffer, align in zip(buffers, (problem.align_a, problem.align_b, problem.align_c), strict=False):
        buffer.address += align % MAX_KNOWN_ALIGNMENT
    address = {buffer.name: buffer.address for buffer in buffers}
    pointers = Pointers(a=address["A"], b=address["B"], c=address["C"], workspace=address.get("workspace", 0))
    empty = np.empty((problem.m, problem.n), problem.dtype_out)
    outcome = Outcome(variant=steps.variant, c=empty, address_c=pointers.c)
    for launch, values in zip(steps.launches, arguments(kernel, problem, pointers), strict=True):
        if launch.workspace_zeroed:
            cleared = next(buffer for buffer in buffers if buffer.name == "workspace")
            cleared.data[: launch.workspace_zeroed] = 0
            cleared.shadow[: launch.workspace_zeroed] |= INITIALISED
        report = run(
            with_source(artifact(launch.unit).ptx.read_text(encoding="utf-8"), launch.unit.source),
            launch.entry,
            launch,
            values,
            buffers=buffers,
            checks=checks,
            blocks=blocks,
            keep_going=keep_going,
            trace=trace,
            attention=attention,
        )
        outcome.reports.append(report)
        outcome.faults += report.faults
        if report.faults and not keep_going:
            break
    output = buffers[2]
    if blocks is None and not outcome.faults:
        outcome.faults += _unwritten(kernel, output)
    if output.data.size:
        padded = np.full(problem.m * problem.ldc, np.nan, problem.dtype_out)
        values_out = output.data.view(problem.dtype_out)
        padded[: values_out.size] = values_out
        outcome.c = padded.reshape(problem.m, problem.ldc)[:, : problem.n].copy()
    return outcome


def _unwritten(kernel: Kernel, output: Buffer) -> list[Fault]:
    missing = np.flatnonzero((output.shadow & (ADDRESSABLE | WRITTEN)) == ADDRESSABLE)
    if not missing.size:
        return []
    first, last = (output.where(output.address + int(at)) for at in (missing[0], missing[-1]))
    count = missing.size // output.itemsize
    message = f"{count} elements of the output were never written, from {first} to {last}"
    return [Fault(kind=OUTPUT_NOT_WRITTEN, message=message, kernel=kernel.name, count=1)]


def run_kernel(
    kernel: Kernel,
    problem: Problem,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    checks: Checks | None = None,
) -> Array:
    """C of ``problem`` as ``kernel`` computes it, m x n; everything is checked on the way.

    Takes the arguments of :func:`simulate`.

    Raises:
        MachineFault: the kernel did something wrong; the text names instruction, thread and address.
        ShapeError, DtypeError, RejectedError, BuildError, MissingToolError: as for :func:`simulate`.
    """
    outcome = simulate(kernel, problem, a, b, c, checks=checks)
    if outcome.faults:
        raise MachineFault("\n".join(str(fault) for fault in outcome.faults))
    return outcome.c
