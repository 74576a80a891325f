"""CUTLASS kernels on the PTX machine: packed parameters and emitted code give the right product without a GPU.

The agreement suite runs one tile on many shapes; here each kind of launch is run once, with padding,
scalars and integer data that must come out to the bit.
"""

from __future__ import annotations

import numpy as np
import pytest

from cutlass_ref.catalog import KERNELS, get
from kernel.contract import LAYOUTS, Problem
from kernel.machine.execute import Checks
from kernel.machine.gemm import run_kernel

pytestmark = [pytest.mark.cppgen, pytest.mark.nvcc, pytest.mark.slow]

MMA_CHECKS = Checks(initialised=False)
"""Rows beyond m of a tile stay unfilled from the second stage on. The machine follows what was never written
through mma.sync by whole instructions, not by rows, so it would object to the rows that are stored too."""

KINDS = [
    *(kernel.name for kernel in KERNELS if kernel.in_default_set and kernel.instruction != "wgmma"),
    *(f"cutlass_simt_128x128x5_s1_{layout}" for layout in LAYOUTS[1:]),
    "cutlass_simt_256x128x4_s1_rr_splitk2",
]


@pytest.mark.parametrize("name", KINDS)
def test_integers_come_out_to_the_bit(name):
    kernel = get(name)
    pad = kernel.recipe.alignment
    m, n, k = (131, 137, 35) if pad == 1 else (136, 264, 72)
    rng = np.random.default_rng(12)
    layout = kernel.layouts[0]
    problem = Problem(
        m=m,
        n=n,
        k=k,
        layout=layout,
        lda=(k if layout[0] == "r" else m) + pad,
        ldb=(n if layout[1] == "r" else k) + 3 * pad,
        ldc=n + kernel.recipe.alignment_c,
        alpha=2.0,
        beta=-1.0,
        dtype_in=kernel.dtype_in,
        dtype_out=kernel.dtype_out,
    )
    a = rng.integers(-3, 4, (m, k)).astype(kernel.dtype_in)
    b = rng.integers(-3, 4, (k, n)).astype(kernel.dtype_in)
    c = rng.integers(-3, 4, (m, n)).astype(kernel.dtype_out)
    expected = 2 * (a.astype(np.int64) @ b.astype(np.int64)) - c.astype(np.int64)
    checks = MMA_CHECKS if kernel.instruction == "mma_sync" else None
    assert np.array_equal(run_kernel(kernel, problem, a, b, c, checks=checks), expected)


def test_three_pass_tf32_keeps_what_one_pass_rounds_away():
    kernel = get("cutlass_tf32x3_sm80_128x128x32_3stages_multistage_s1_rr")
    a, identity = np.full((128, 128), 1024.5, np.float32), np.eye(128, dtype=np.float32)
    problem = Problem(m=128, n=128, k=128)
    assert np.array_equal(run_kernel(kernel, problem, a, identity), a)


def test_fp16_operands_are_accumulated_in_fp32():
    kernel = get("cutlass_fp16_sm80_256x128x64_3stages_multistage_s1_rr")
    a = np.zeros((8, 1024), np.float16)
    a[0, 0], a[0, 16 : 16 * 64 : 16] = 2048, 1
    b = np.ones((1024, 128), np.float16)
    problem = Problem(m=8, n=128, k=1024, dtype_in="float16", dtype_out="float16")
    out = run_kernel(kernel, problem, a, b, checks=MMA_CHECKS)
    assert (out[0] == np.float16(2111)).all()
