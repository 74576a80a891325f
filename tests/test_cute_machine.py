"""CuTe DSL kernels on the PTX machine: the product to the bit on awkward shapes, without a GPU and without a fault."""

import numpy as np
import pytest

from cutlass_ref.cute.catalog import get
from kernel.contract import LAYOUTS, Problem
from kernel.machine import run_kernel, simulate
from kernel.machine.command import banks
from kernel.machine.execute import Checks

pytestmark = [pytest.mark.cute, pytest.mark.nvcc, pytest.mark.slow]

SGEMM = get("cute_sgemm")
AMPERE = get("cute_fp16_sm80_128x128x32_4stages")
PERSISTENT = get("cute_fp16_sm90_128x256x64_1x1_persistent")
SHAPES = (
    # m, n, k, alpha, beta, gap between rows
    (1, 1, 1, 1.0, 0.0, 0),
    (130, 130, 35, 1.0, 0.0, 0),
    (257, 260, 17, 0.5, 3.0, 4),
    (7, 5, 33, 2.0, 1.0, 1),
    (132, 516, 100, 1.0, 0.5, 4),
    (4, 4, 64, -1.0, 0.0, 0),
    (260, 8, 4, 1.0, 0.0, 0),
    (129, 257, 48, 1.0, 0.0, 3),
)
MMA_CHECKS = Checks(initialised=False)
"""As for CUTLASS's mma.sync kernels: rows beyond the edge feed accumulators that nobody stores."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sgemm_gives_integers_to_the_bit(layout, shape):
    m, n, k, alpha, beta, gap = shape
    rng = np.random.default_rng(7)
    a, b, c = (rng.integers(-8, 9, extents).astype(np.float32) for extents in ((m, k), (k, n), (m, n)))
    problem = Problem(m=m, n=n, k=k, layout=layout, alpha=alpha, beta=beta)
    problem = problem.replace(lda=problem.lda + gap, ldb=problem.ldb + gap, ldc=problem.ldc + gap)
    expected = alpha * (a.astype(np.float64) @ b) + beta * c
    got = run_kernel(SGEMM, problem, a, b, c if beta else None)
    assert np.array_equal(got, expected.astype(np.float32))


def test_sgemm_keeps_fp32():
    a, identity = np.full((64, 64), 1024.5, np.float32), np.eye(64, dtype=np.float32)
    assert np.array_equal(run_kernel(SGEMM, Problem(m=64, n=64, k=64), a, identity), a)


def test_nan_outside_the_problem_stays_outside():
    a, b = np.ones((5, 3), np.float32), np.ones((3, 6), np.float32)
    problem = Problem(m=5, n=6, k=3, lda=8, ldb=9, ldc=7)  # what lies between rows is NaN, and out of bounds
    assert np.array_equal(run_kernel(SGEMM, problem, a, b), a @ b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(128, 128, 32, 0), (136, 264, 40, 0), (8, 16, 72, 8), (264, 136, 200, 8)], ids=str)
def test_the_ampere_kernel_gives_integers_to_the_bit(layout, shape):
    m, n, k, gap = shape
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-3, 4, extents).astype(np.float16) for extents in ((m, k), (k, n)))
    problem = Problem(m=m, n=n, k=k, layout=layout, dtype_in="float16", dtype_out="float16")
    problem = problem.replace(lda=problem.lda + gap, ldb=problem.ldb + gap, ldc=problem.ldc + gap)
    expected = (a.astype(np.float64) @ b).astype(np.float16)
    assert np.array_equal(run_kernel(AMPERE, problem, a, b, checks=MMA_CHECKS), expected)


@pytest.mark.parametrize("layout", PERSISTENT.layouts)
@pytest.mark.parametrize(
    "shape",
    # One k tile, fewer and more than the four stages; an edge everywhere; more tiles (137) than blocks (132).
    [(128, 256, 64, 0), (64, 64, 136, 8), (264, 520, 392, 8), (8, 8, 8, 0), (136, 272, 320, 16), (8, 34824, 72, 0)],
    ids=str,
)
def test_the_persistent_kernel_gives_integers_to_the_bit(layout, shape):
    m, n, k, gap = shape
    rng = np.random.default_rng(9)
    a, b = (rng.integers(-3, 4, extents).astype(np.float16) for extents in ((m, k), (k, n)))
    problem = Problem(m=m, n=n, k=k, layout=layout, dtype_in="float16", dtype_out="float16")
    problem = problem.replace(lda=problem.lda + gap, ldb=problem.ldb + gap, ldc=problem.ldc + gap)
    outcome = simulate(PERSISTENT, problem, a, b)
    assert not outcome.faults, outcome.faults[0]
    assert np.array_equal(outcome.c, (a.astype(np.float64) @ b).astype(np.float16))


def test_no_access_of_the_public_ampere_example_is_predicted_to_conflict():
    """M-major A, K-major B, 2048 x 2048 x 1024: the case that a user saw conflicts in, the epilogue included."""
    problem = Problem(m=2048, n=2048, k=1024, layout="cc", dtype_in="float16", dtype_out="float16")
    counted = banks(AMPERE, problem)
    assert counted.shared_loads()["conflicts"] == 0
    assert counted.shared_stores()["conflicts"] == 0
    assert counted.shared_loads()["requests"] > 2000
