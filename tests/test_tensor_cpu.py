"""The Tensor Core kernels on the PTX machine: h0 on every path, and a reason where the machine lacks an instruction."""

import dataclasses

import pytest

from compare.check import CpuExecutor, check_contender, check_shape
from compare.contenders import KernelContender
from compare.shapes import parse
from handwritten.tensor_catalog import H0, H9, KERNELS, PackedKernel, SplitKernel, WgmmaKernel

pytestmark = pytest.mark.nvcc

MMA_SYNC = KernelContender.of(H0)
WGMMA = [kernel for kernel in KERNELS if isinstance(kernel, WgmmaKernel) and not isinstance(kernel, PackedKernel)]
PACKED = [
    pytest.param(KernelContender.of(kernel), marks=[] if kernel is H9 else [pytest.mark.slow], id=kernel.name)
    for kernel in KERNELS
    if isinstance(kernel, PackedKernel)
]
ALONE = [
    pytest.param(KernelContender.of(kernel), marks=[pytest.mark.slow] if kernel.shares else [], id=kernel.name)
    for kernel in WGMMA
    if kernel.cluster == 1
]
SPLIT = [
    pytest.param(kernel, marks=[pytest.mark.slow] if kernel.shares else [], id=kernel.name)
    for kernel in WGMMA
    if isinstance(kernel, SplitKernel)
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
    assert contender.variant(problem).startswith("tma")
    verdict = check_contender(contender, problem, CpuExecutor())
    assert verdict.ok, verdict


@pytest.mark.parametrize("contender", PACKED)
@pytest.mark.parametrize("layout", ["rr", "rc"])
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_copies_and_rows_of_c_by_element_are_right_on_the_machine(contender, layout, out):
    """Odd everywhere, several k blocks; then each operand alone without a tensor map, by its pitch or its base."""
    odd = contender.problem(131, 261, 329, layout=layout, dtype_out=out, beta=2.0)
    assert contender.variant(odd) == "tma_packed_ab_c_by_element"
    size = 4 if out == "float32" else 2
    even = contender.problem(70, 264, 72, layout=layout, dtype_out=out, beta=-1.0, alpha=0.5)
    alone = (
        (even.replace(lda=73), "tma_packed_a"),
        (even.replace(align_b=2), "tma_packed_b"),
        (even.replace(ldb=even.ldb + 3, ldc=265), "tma_packed_b_c_by_element"),
        (even.replace(align_c=size), "tma_c_by_element"),
        (contender.problem(3, 5, 1, layout=layout, dtype_out=out), "tma_packed_ab_c_by_element"),
    )
    for problem, variant in ((odd, "tma_packed_ab_c_by_element"), (odd.replace(ldc=264), "tma_packed_ab"), *alone):
        assert contender.variant(problem) == variant
        verdict = check_contender(contender, problem, CpuExecutor())
        assert verdict.ok, verdict


@pytest.mark.slow
@pytest.mark.parametrize("contender", PACKED)
@pytest.mark.parametrize("layout", ["rr", "rc"])
def test_special_values_stay_in_their_rows_and_columns_on_copies(contender, layout):
    problem = contender.problem(130, 261, 77, layout=layout)
    for input_ in ("special", "nan", "inf"):
        verdict = check_contender(contender, problem, CpuExecutor(), distribution=input_)
        assert verdict.ok, verdict


@pytest.mark.slow
@pytest.mark.parametrize("contender", PACKED)
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_rows_of_c_begin_and_end_anywhere_in_a_word(contender, out):
    """Few columns and one more than boxes hold, at every pitch from n on."""
    for n in (1, 2, 3, 5, 31, 32, 33, 63, 64, 65, 130):
        for pad in (0, 1, 2):
            problem = contender.problem(9, n, 17, dtype_out=out)
            problem = problem.replace(ldc=n + pad, align_c=4 if out == "float32" else 2)
            verdict = check_contender(contender, problem, CpuExecutor())
            assert verdict.ok, verdict


# Every extent ends inside a tile, less than a tile and less than a period of the swizzle; k in unequal parts, in
# parts of one block of it, and in more parts than it has blocks; rows of C that end inside 16 bytes and inside four.
SPLIT_SHAPES = (
    "131x264x1160@input=integers@beta=2.0@alpha=0.5,1x64x584@input=integers,9x136x72,70x261x328@pad_b=3@pad_c=3,"
    "65x33x200@input=integers@pad_b=7@pad_c=7@beta=-1.0,35x8x1,130x72x520@input=special,16x40x712@input=nan"
)


@pytest.mark.parametrize("kernel", SPLIT)
@pytest.mark.parametrize("layout", ["rr", pytest.param("rc", marks=pytest.mark.slow)])
@pytest.mark.parametrize("out", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("parts", [3, pytest.param(9, marks=pytest.mark.slow)])
def test_a_second_launch_adds_the_parts_of_a_tile(kernel, layout, out, parts):
    contender = KernelContender.of(dataclasses.replace(kernel, parts=parts))
    for shape in parse(SPLIT_SHAPES):
        problem = dataclasses.replace(shape, layout=layout).problem(contender).replace(dtype_out=out)
        up = {name: -(-getattr(problem, name) // 8) * 8 for name in ("lda", "ldb", "ldc")}
        problem = problem.replace(**up)
        assert contender.variant(problem) == f"tma_parts{parts}"
        verdict = check_contender(contender, problem, CpuExecutor(), distribution=shape.input)
        assert verdict.ok, verdict


@pytest.mark.parametrize("kernel", SPLIT)
def test_blocks_walk_over_tiles_and_parts(kernel, monkeypatch):
    """Five blocks for items of several tiles and parts: stages are used again from one item to the next."""
    monkeypatch.setattr("handwritten.tensor_catalog.CLUSTERS_AT_ONCE", {1: 5})
    for parts in (1, 4):
        contender = KernelContender.of(dataclasses.replace(kernel, slices=1, parts=parts))
        problem = contender.problem(200, 520, 840, beta=3.0)
        (launch, *_) = contender.kernel.launches(problem)
        assert launch.blocks == 5
        verdict = check_contender(contender, problem, CpuExecutor(), distribution="integers")
        assert verdict.ok, verdict


@pytest.mark.parametrize("kernel", SPLIT)
def test_clusters_along_k_are_what_the_machine_lacks(kernel):
    contender = KernelContender.of(dataclasses.replace(kernel, slices=2))
    verdict = check_shape(contender, parse("64x64x256")[0], CpuExecutor())
    assert verdict.ok is None
    assert "the PTX machine lacks" in verdict.skipped_because


@pytest.mark.parametrize("contender", CLUSTERED, ids=[contender.name for contender in CLUSTERED])
def test_what_the_machine_lacks_is_a_reason_and_what_goes_to_mma_sync_runs(contender):
    here, elsewhere = (check_shape(contender, shape, CpuExecutor()) for shape in parse("64x64x64,18x33x13"))
    assert here.ok is None
    assert "the PTX machine lacks" in here.skipped_because
    assert elsewhere.ok
    assert elsewhere.variant == "h0_mma_sync.vec1"
