"""The Tensor Core kernels on the PTX machine: h0 on every path, and a reason where the machine lacks an instruction."""

import pytest

from compare.check import CpuExecutor, check_contender, check_shape
from compare.contenders import KernelContender
from compare.shapes import parse
from handwritten.tensor_catalog import H0, KERNELS, WgmmaKernel

pytestmark = pytest.mark.nvcc

MMA_SYNC = KernelContender.of(H0)
WGMMA = [kernel for kernel in KERNELS if isinstance(kernel, WgmmaKernel)]
ALONE = [
    pytest.param(KernelContender.of(kernel), marks=[pytest.mark.slow] if kernel.shares else [], id=kernel.name)
    for kernel in WGMMA
    if kernel.cluster == 1
]
CLUSTERED = [KernelContender.of(kernel) for kernel in WGMMA if kernel.cluster > 1]


@pytest.mark.parametrize("layout", ["rr", "rc"])
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_mma_sync_is_right_in_every_width_and_in_its_loop_without_guards(layout, out):
    """Races, bounds and unwritten output are looked for too. Of seven k tiles, five take the loop without guards."""
    whole = MMA_SYNC.problem(128, 256, 448, layout=layout, dtype_out=out)
    assert MMA_SYNC.variant(whole) == "vec8"
    ragged = MMA_SYNC.problem(131, 261, 77, layout=layout, dtype_out=out, lda=80, ldb=264, ldc=264, beta=2.0)
    for problem in (whole, ragged, ragged.replace(ldc=261), ragged.replace(align_b=4), ragged.replace(align_a=2)):
        verdict = check_contender(MMA_SYNC, problem, CpuExecutor())
        assert verdict.ok, verdict


@pytest.mark.parametrize("contender", ALONE)
@pytest.mark.parametrize("layout", ["rr", "rc"])
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_kernels_without_clusters_are_right_on_the_machine(contender, layout, out):
    """Several tiles that end inside the block tile, and more k blocks than some have stages."""
    problem = contender.problem(131, 261, 328, layout=layout, dtype_out=out, beta=2.0)
    width = -(-(problem.b_width) // 8) * 8
    problem = problem.replace(ldb=width, ldc=264)
    assert contender.variant(problem) == "tma"
    verdict = check_contender(contender, problem, CpuExecutor())
    assert verdict.ok, verdict


@pytest.mark.parametrize("contender", CLUSTERED, ids=[contender.name for contender in CLUSTERED])
def test_what_the_machine_lacks_is_a_reason_and_what_goes_to_mma_sync_runs(contender):
    here, elsewhere = (check_shape(contender, shape, CpuExecutor()) for shape in parse("64x64x64,18x33x13"))
    assert here.ok is None
    assert "the PTX machine lacks" in here.skipped_because
    assert elsewhere.ok
    assert elsewhere.variant == "h0_mma_sync.vec1"
