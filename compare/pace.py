"""How long checks on the PTX machine take: their work, counted in multiply-adds of a loop that is timed here first.

Ratios between kernels are the same on every host, since all of them are the engine's instructions; its speed is not.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING

from compare.contenders import Contender, KernelContender
from compare.statistics import median
from kernel.contract import ceil_div

if TYPE_CHECKING:
    from kernel.contract import Problem

THREADS, STEPS, FMAS, TIMES = 256, 1000, 16, 3
PTX = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry pace(.param .u32 steps)
{{
    .reg .f32 %f<12>;
    .reg .u32 %r<4>;
    .reg .pred %p<2>;
    .shared .align 16 .b8 own[{bytes}];
    mov.u32 %r1, %tid.x;
    shl.b32 %r1, %r1, 4;
    mov.u32 %r2, own;
    add.u32 %r1, %r1, %r2;
    ld.param.u32 %r3, [steps];
    {starts}
    st.shared.v4.f32 [%r1], {{%f0, %f1, %f2, %f3}};
$step:
    ld.shared.v4.f32 {{%f0, %f1, %f2, %f3}}, [%r1];
    {products}
    sub.u32 %r3, %r3, 1;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra $step;
    ret;
}}
""".format(
    bytes=16 * THREADS,
    starts=" ".join(f"mov.f32 %f{number}, 0f3F000000;" for number in range(12)),
    products=" ".join(
        f"fma.rn.f32 %f{4 + number % 8}, %f{number % 4}, %f{(number + 1) % 4}, %f{4 + number % 8};"
        for number in range(FMAS)
    ),
)
"""What a SIMT kernel's main loop does, without a kernel: each thread reads its own 16 bytes and multiplies."""

BASE, BY_READS = 0.45, 4.0
"""Cost of a SIMT kernel's multiply-add in those of the loop: ``BASE``, and ``BY_READS`` for each element it reads.
Fitted to every FP32 kernel of the catalogs at 256x256x512 with all checks on, 2026-11-30: within a third of 0.45 + 4 u
for thread tiles from 1x1 to 16x8, u = (m + n) / (m n)."""
ONE_ROW = 2.5
"""How much more it is for kernels whose block has one row of C: there most is adding up what threads hold."""
BY_TENSOR_CORES = {"fp16_tensor": 0.95, "tf32_tensor": 1.35}
"""The same for a matrix instruction's multiply-add, which is not interpreted lane by lane."""
PASSES = {"tf32x3": 3}
"""Multiply-adds in place of one, by a part of the name of kernels that split their operands."""
RATIO_OF_A_DISPATCHER = 1.25
"""Whatever it picks, it is a large tile where there is much to do."""
ELEMENT, ELEMENT_OF_EDGE = 60.0, 120.0
"""What is added for each element of C that a block computes: filling the pipeline, writing it out, and in blocks that
reach beyond C, the guards."""
ROUND, READING = 6e5, 4e7
"""What is added for a round (operands, reference, comparing), and once for a kernel's PTX."""


def work(contender: Contender, problem: Problem) -> float:
    """Multiply-adds of the loop that one round takes as long as; whole tiles are executed, whatever their part in C.

    0 for what is not executed: empty problems, and libraries.
    """
    if problem.is_empty or not isinstance(contender, KernelContender):
        return 0.0
    tile = contender.tile
    block_m, block_n, block_k = (max(block, 1) for block in (tile.BLOCK_M, tile.BLOCK_N, tile.BLOCK_K))
    computed = ceil_div(problem.m, block_m) * block_m * ceil_div(problem.n, block_n) * block_n
    whole = problem.m // block_m * block_m * (problem.n // block_n * block_n)
    products = ratio(contender) * computed * ceil_div(problem.k, block_k) * block_k
    return products + ELEMENT * whole + ELEMENT_OF_EDGE * (computed - whole) + ROUND


def ratio(contender: Contender) -> float:
    """Time of one of its multiply-adds over that of the loop's."""
    if contender.is_dispatcher:
        return RATIO_OF_A_DISPATCHER
    if contender.track in BY_TENSOR_CORES:
        passes = next((count for part, count in PASSES.items() if part in contender.name), 1)
        return passes * BY_TENSOR_CORES[contender.track]
    m, n = max(contender.tile.THREAD_M, 1), max(contender.tile.THREAD_N, 1)
    return (BASE + BY_READS * (m + n) / (m * n)) * (ONE_ROW if contender.tile.BLOCK_M == 1 else 1)


@functools.cache
def multiply_add_s() -> float:
    """Seconds that one multiply-add of the loop takes on this host, as busy as it is: the middle of three runs.

    Raises:
        MissingToolError, BuildError: the machine's engine cannot be built.
    """
    from kernel.machine.execute import run
    from kernel.machine.shape import Shape

    launch = Shape(grid=(1, 1, 1), block=(THREADS, 1, 1))
    times = [run(PTX, "pace", launch, [struct.pack("<I", STEPS)]).seconds for _ in range(TIMES)]
    return median(times) / (THREADS * STEPS * FMAS)
