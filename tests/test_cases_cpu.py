"""The small cases of docs/cases.md on the PTX machine: every kernel that it can run, with each case's neighbours.

Kernels join by being in a catalog. What the machine cannot run (wgmma, TMA) is here by its fallback, and on a GPU in
tests/test_cases_gpu.py.
"""

import numpy as np
import pytest

from compare.check import CpuExecutor, check_contender, check_shape
from compare.contenders import KernelContender, every_contender
from compare.inputs import allocate, fill
from compare.shapes import parse
from handwritten import catalog
from kernel.errors import CatalogError
from kernel.machine.gemm import run_kernel
from kernel.plan import plan
from tests.on_machine import lacking, need
from tests.test_properties import cover

pytestmark = pytest.mark.nvcc

OURS = [c for c in every_contender() if c.family == "handwritten"]
SIMT = [c for c in OURS if c.track == "fp32_simt"]
HALF = [c for c in OURS if c.track == "fp16_tensor"]
EMITTED = [
    pytest.param(
        c, marks=[pytest.mark.cppgen if c.family == "cutlass" else pytest.mark.cute, pytest.mark.slow], id=c.name
    )
    for c in every_contender()
    if c.family in ("cutlass", "cute_dsl") and c.in_default_set
]
EVERY = [*(pytest.param(c, id=c.name) for c in OURS), *EMITTED]
EVERY_SLOWLY = [*(pytest.param(c, marks=[pytest.mark.slow], id=c.name) for c in OURS), *EMITTED]

K_TAILS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 100)
CASES = {
    "1 small and not square": "35x79x19,34x79x19,35x80x19,35x79x20,79x35x19,19x79x35",
    "4 tails of k alone": ",".join(f"{side}x{side}x{k}" for side in (100, 96) for k in K_TAILS),
    "6 odd numbers of k tiles": "128x128x8,128x128x16,128x128x24,128x128x40,128x128x48,128x128x72",
    "7 not square, whole tiles": "256x128x64,128x256x64,384x128x32",
    "8 and 9 edges of a tile": "127x129x8,128x127x9,129x128x7,1x128x8,128x1x8",
    "10 odd everything": "2x4x3,1x105x107,64x64x7,16x20x12,128x130x128",
    "12 bases off by one": ",".join(
        f"64x64x{k}@align_{name}={size}" for k in (64, 13) for name in "abc" for size in (4, 8)
    ),
    "16 empty": "0x64x64,64x0x64,64x64x0,0x0x0,0x0x5,5x0x0,0x5x0,64x64x0@beta=2,64x64x0@beta=-1@pad_c=3",
    "17 slices": "64x48x32@pad_a=32,64x48x32@pad_b=1,64x48x32@pad_c=5,65x47x31@pad_a=7@pad_b=3@pad_c=2",
    "25 scalars": ",".join(
        f"130x130x24@alpha={alpha}@beta={beta}" for alpha in (0, 1, 0.5, -2) for beta in (0, 1, 2, -0.5)
    ),
    "26 NaN beyond the edge": ",".join(
        f"{m}x128x33@input={kind}" for m in (130, 2) for kind in ("nan", "inf", "special")
    ),
    "29 TF32 would round": "128@input=identity,65x63x64@input=identity",
    "32 values that cancel or do not": (
        "64x64x1024,64x64x1024@input=positive,64x64x1024@input=normal,48x40x300@input=integers"
    ),
    "34 small addends": "128x128x256@input=vanish,17x16x1024@input=vanish",
    "denormals": "67x45x31@input=denormal",
}  # fmt: skip


def refusal_is_sound(contender, verdict):
    """A refusal names the operand or extent, or what the PTX machine lacks; SIMT kernels refuse nothing."""
    reason = verdict.skipped_because
    assert contender.track != "fp32_simt" or "the PTX machine lacks" in reason, verdict
    assert any(
        word in reason for word in ("A:", "B:", "C:", "k =", "alpha", "beta", "the PTX machine lacks", "TF32")
    ), reason


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("contender", EVERY_SLOWLY)
def test_case_and_neighbours_are_right_or_refused_by_name(contender, case):
    for shape in parse(CASES[case]):
        for layout in contender.layouts:
            verdict = check_shape(contender, shape.replace(layout=layout), CpuExecutor())
            assert verdict.ok is not False, verdict
            if verdict.ok is None:
                refusal_is_sound(contender, verdict)


@pytest.mark.parametrize("contender", [*(pytest.param(c, id=c.name) for c in HALF), *EMITTED])
def test_a_refusal_leaves_the_next_call_alone(contender):
    """Case 10: sizes and bases that vector accesses cannot take, then one that everybody takes."""
    executor = CpuExecutor()
    for shape in parse("2x4x3,1x105x107,64x64x7,128x130x128@align_a=2@align_b=2@align_c=2"):
        assert check_shape(contender, shape, executor).ok is not False
    verdict = check_contender(contender, contender.problem(64, 128, 64), executor)
    assert verdict.ok or "the PTX machine lacks" in verdict.skipped_because


@pytest.mark.parametrize("contender", EVERY)
@pytest.mark.parametrize("old", [np.nan, np.inf, -np.inf])
def test_beta_zero_ignores_what_c_held_and_alpha_zero_what_a_held(contender, old):
    """Case 25. The machine gives C as NaN where beta is 0, so a read of it is a fault or shows."""
    for m, n, k, alpha, beta in ((130, 130, 16, 0.0, 2.0), (130, 136, 64, 0.0, 0.0), (33, 40, 0, 1.0, 2.0)):
        problem = contender.problem(m, n, k, alpha=alpha, beta=beta)
        if contender.rejects(problem) or lacking(contender.kernel, problem):
            continue
        buffers = allocate(np, problem)
        fill(buffers, "integers")
        buffers.a[...] = old
        c = run_kernel(contender.kernel, problem, buffers.a, buffers.b, buffers.c if beta else None)
        np.testing.assert_array_equal(c, beta * buffers.c.astype(c.dtype) if beta else np.zeros_like(c))


@pytest.mark.parametrize("contender", [pytest.param(c, id=c.name) for c in SIMT])
def test_a_whole_row_of_ones_stays_exact_beside_rows_of_nan(contender):
    """Case 26: row 0 is exactly k everywhere, all others NaN."""
    problem = contender.problem(70, 40, 33)
    need(contender.kernel, problem)
    a, b = np.full((70, 33), np.nan, np.float32), np.ones((33, 40), np.float32)
    a[0] = 1
    c = run_kernel(contender.kernel, problem, a, b)
    assert (c[0] == 33).all()
    assert np.isnan(c[1:]).all()


@pytest.mark.slow
def test_1024_and_a_half_comes_back_to_the_bit():
    """Case 29 by hand: TF32 would give 1025 or 1024."""
    a = np.full((128, 128), 1024.5, np.float32)
    for contender in SIMT:
        if lacking(contender.kernel, contender.problem(128, 128, 128)):
            continue
        c = run_kernel(contender.kernel, contender.problem(128, 128, 128), a, np.eye(128, dtype=np.float32))
        assert (c == 1024.5).all(), contender.name


@pytest.mark.parametrize("contender", [pytest.param(c, id=c.name) for c in HALF])
def test_small_addends_survive_an_fp32_accumulator(contender):
    """Case 34: 2048 and 63 ones; an FP16 sum stays at 2048."""
    problem = (
        contender.problem(7, 9, 1024, dtype_out="float32")
        if "float32" in getattr(contender.kernel, "outputs", ())
        else contender.problem(7, 9, 1024)
    )
    a, b = np.zeros((7, 1024), np.float16), np.ones((1024, 9), np.float16)
    a[0, ::16] = 1
    a[0, 0] = 2048
    c = run_kernel(contender.kernel, problem.replace(align_a=2, align_b=2, align_c=2), a, b)
    assert set(c[0].tolist()) <= {2111.0, 2112.0}
    assert not c[1:].any()


def test_a_tile_that_breaks_a_rule_is_refused_and_its_neighbour_runs():
    """Case 13: a warp tile that 32 thread tiles do not fill, then one that they do."""
    kernel = catalog.get("v2_block_tile")
    with pytest.raises(CatalogError, match=r"32 \* 256 = 8192, 32 \* 8 \* 4 = 1024"):
        kernel.with_tile(BLOCK_M=128, BLOCK_N=256, BLOCK_K=8, WARP_M=32, WARP_N=256, THREAD_M=8, THREAD_N=4)
    other = KernelContender.of(
        kernel.with_tile(BLOCK_M=64, BLOCK_N=64, BLOCK_K=16, WARP_M=32, WARP_N=32, THREAD_M=4, THREAD_N=8)
    )
    for shape in parse("256x256x32,65x63x17"):
        assert check_shape(other, shape, CpuExecutor()).ok


@pytest.mark.parametrize("contender", EVERY)
def test_the_grid_is_the_ceiling(contender):
    """Cases 8 and 9: 1000 by 32 is 32 blocks, not 31; the property tests go on to 2**31."""
    for m in (1, 127, 128, 129, 1000, 4092):
        for n in (8, 120, 128, 136, 1000, 4096):
            problem = contender.problem(m if contender.layouts[0][0] == "r" else 8 * m, n, 64)
            if contender.rejects(problem) is None:
                cover(contender.kernel, problem, plan(contender.kernel, problem).launches)


@pytest.mark.slow
def test_more_row_blocks_than_a_grid_axis_but_x_holds():
    """Case 14 at its size, on the rung whose tiles waste least."""
    (contender,) = [c for c in SIMT if c.name == "v0_naive"]
    verdict = check_shape(contender, parse("2097153x4x8")[0], CpuExecutor())
    assert verdict.ok, verdict
