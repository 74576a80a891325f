"""The PTX machine: runs any kernel on a CPU, checks every access and counts what it does (docs/machine.md).

    from kernel.machine import Buffer, Shape, run
    report = run(ptx, "scale", Shape(grid=(4, 1, 1), block=(256, 1, 1)), [buffer, struct.pack("<i", 1000)])
    report.raise_faults()

:func:`run` takes any PTX and any buffers, :func:`run_kernel` a kernel of a catalog and a GEMM.
"""

from kernel.machine.execute import run
from kernel.machine.gemm import Outcome, run_kernel, simulate
from kernel.machine.memory import Buffer
from kernel.machine.report import Counters, Fault, InstructionCount, Report
from kernel.machine.shape import Checks, Shape

__all__ = [
    "Buffer",
    "Checks",
    "Counters",
    "Fault",
    "InstructionCount",
    "Outcome",
    "Report",
    "Shape",
    "run",
    "run_kernel",
    "simulate",
]
