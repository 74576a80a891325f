"""The ladder on the PTX machine: every kernel, small shapes of every kind, and random ones."""

import dataclasses

import pytest

from compare.check import CpuExecutor, check_shape, executor, fuzz
from compare.contenders import KernelContender, every_contender
from compare.shapes import parse
from handwritten.catalog import get
from handwritten.pass_tile import PackingPassKernel
from handwritten.split_tile import BlockSplitKernel
from handwritten.stream_tile import ClusterSplitKernel
from kernel.errors import MissingToolError, NoDeviceError
from kernel.launch import has_device

pytestmark = pytest.mark.nvcc

LADDER = [c for c in every_contender() if c.family == "handwritten" and c.track == "fp32_simt"]
CLUSTERS = ("v11_", "v16_", "v17_")
ON_A_GPU_ONLY = [c.name for c in LADDER if c.name.startswith(CLUSTERS)]
"""Kernels with clusters, which the machine does not have."""
PIPELINE_SHAPES = (
    "128x128x8,128x128x16,128x128x40,100x100x17,130x130x64@alpha=0.5@beta=3.0,129x67x35@align_a=4@align_b=4@align_c=4"
)

# Tiles that several shares have a part of, with tails in every extent and in both widths.
STREAM_K_SHAPES = (
    "300x520x77,129x257x331@align_a=4@align_b=4@align_c=4@beta=-1.0,1x1x513@alpha=0.5,128x512x512@beta=2.0"
)


ONE_ROW = [c for c in LADDER if c.tile.BLOCK_M == 1]
ROWS = 9
"""Of kernels whose blocks have one row of C: every further row is one more block that does the same."""


@pytest.mark.parametrize("contender", LADDER, ids=lambda c: c.name)
def test_ladder_kernel_is_right_on_small_shapes(contender):
    shapes = parse(f"small,{PIPELINE_SHAPES}")
    if contender in ONE_ROW:
        shapes = [shape.replace(m=min(shape.m, ROWS)) for shape in shapes]
    right_on(contender, shapes)


@pytest.mark.slow
@pytest.mark.parametrize("contender", ONE_ROW, ids=lambda c: c.name)
def test_kernels_of_one_row_are_right_on_many(contender):
    right_on(contender, parse(f"small,{PIPELINE_SHAPES}"))


def right_on(contender, shapes):
    for shape in shapes:
        verdict = check_shape(contender, shape, CpuExecutor())
        # A dispatcher hands over to one of them; its variant names it.
        handed = contender.variant(verdict.problem).startswith(CLUSTERS)
        if verdict.ok is None and (contender.name in ON_A_GPU_ONLY or handed):
            assert "the PTX machine lacks" in str(verdict)
            continue
        assert verdict.ok, verdict


TILES = [kernel for kernel in map(get, (c.name for c in LADDER)) if isinstance(kernel, ClusterSplitKernel)]
ADDED_LATER = [kernel for kernel in TILES if isinstance(kernel, BlockSplitKernel)]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", TILES, ids=lambda kernel: kernel.name)
def test_split_kernels_without_a_cluster_are_right_on_every_kind_of_ragged_k(kernel):
    contender = KernelContender.of(dataclasses.replace(kernel, slices=1))
    shapes = "33x35x37,20x24x36,65x68x40,130x132x52,17x300x44,300x17x61,16x16x64,5x3x97@alpha=0.5@beta=3.0"
    for shape in parse(f"{shapes},40x52x44@input=integers,36x20x28@pad_a=4@pad_b=4@pad_c=4"):
        verdict = check_shape(contender, shape, CpuExecutor())
        assert verdict.ok, verdict


@pytest.mark.parametrize(
    "kernel", [one for one in TILES if isinstance(one, BlockSplitKernel)], ids=lambda one: one.name
)
def test_a_second_launch_adds_the_parts_of_a_tile(kernel):
    contender = KernelContender.of(dataclasses.replace(kernel, parts=3))
    for shape in parse("33x36x300@alpha=0.5@beta=3.0,65x131x217@input=integers,5x3x20@pad_c=2,70x64x192@pad_c=4"):
        verdict = check_shape(contender, shape, CpuExecutor())
        assert verdict.ok, verdict
        assert contender.variant(verdict.problem).endswith("_parts3")


@pytest.mark.parametrize("name", ["v12_spread", "v12_spread_hint"])
@pytest.mark.parametrize("columns", [128, pytest.param(256, marks=pytest.mark.slow)])
def test_stream_k_tiles_add_the_shares_of_one_tile(name, columns):
    contender = KernelContender.of(get(name).with_tile(BLOCK_N=columns))
    for shape in parse(f"{STREAM_K_SHAPES},260x260x132,5x3x433,132x132x20"):
        verdict = check_shape(contender, shape, CpuExecutor())
        assert verdict.ok, verdict


# Both widths of C, pitches that n leaves room in, ragged k; several tiles a block, whole ones and shares.
PASS_SHAPES = (
    "129x260x331@align_a=4@align_c=4@beta=-1.0,1x4x513@alpha=0.5,300x517x77@pad_a=1@pad_b=3@alpha=0.5@beta=3.0,"
    "129x257x331@pad_b=3@pad_c=1@align_a=4@input=integers,5x3x433@pad_b=1,1280x256x16,1410x260x33@input=integers"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [f"{rung}{hint}" for rung in ("v18_transposing_pass", "v20_one_barrier") for hint in ("", "_hint")]
)
def test_a_pass_and_its_product_are_right_and_hand_over_what_tensor_maps_cannot_describe(name):
    (contender,) = [c for c in LADDER if c.name == name]
    for shape in parse(f"{PASS_SHAPES},128x512x512@beta=2.0,33x64x20@align_b=4,33x66x20"):
        verdict = check_shape(contender, shape, CpuExecutor())
        assert verdict.ok, verdict
        handed = shape.align_b == 4 or verdict.problem.ldb % 4 != 0
        assert contender.variant(verdict.problem).startswith("v14_early_loads" if handed else "vec")


# B off 16 bytes by its base, by its pitch, by both; n under, at and past what a block of the copy takes, k that its
# rows do not divide; one column, one row, C by fours and one by one.
PACKED_SHAPES = (
    "129x257x331@align_a=4@align_c=4@beta=-1.0,1x1x1,1x3x513@alpha=0.5,300x517x77@pad_a=1@pad_b=3@pad_c=2@beta=3.0,"
    "129x260x40@align_b=4@beta=2.0,65x66x17@align_b=8@pad_c=1,5x1x433@pad_b=1@input=integers,33x255x9@input=nan,"
    "33x257x33@input=inf,1280x255x16,1410x259x33@input=integers@alpha=0.5@beta=3.0,40x256x24@pad_b=1@align_b=8"
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v21_packed", "v21_packed_hint"])
def test_a_copy_of_b_and_the_product_behind_it_are_right(name):
    (contender,) = [c for c in LADDER if c.name == name]
    for shape in parse(f"{PACKED_SHAPES},33x64x20"):
        verdict = check_shape(contender, shape, CpuExecutor())
        assert verdict.ok, verdict
        packed = shape.align_b == 4 or verdict.problem.align_b < 16 or verdict.problem.ldb % 4 != 0
        variant = contender.variant(verdict.problem)
        assert variant.endswith("_packed") if packed else variant.startswith("v20_one_barrier")


class FewStrips(PackingPassKernel):
    """Whose copy has blocks for 16 rows of B, as at the end of a grid: they go on with the rows after those."""

    def launches(self, problem):
        turning, copying, product = super().launches(problem)
        few = dataclasses.replace(copying, grid=(2 * -(-problem.n // 256), 1, 1))
        return turning, few, product


def test_blocks_of_the_copy_go_on_with_rows_that_nobody_takes():
    fields = {field.name: getattr(get("v21_packed"), field.name) for field in dataclasses.fields(PackingPassKernel)}
    contender = KernelContender.of(FewStrips(**fields))
    for shape in parse("33x259x77@input=integers,5x1x33"):
        verdict = check_shape(contender, shape, CpuExecutor())
        assert verdict.ok, verdict


def test_stream_k_adds_the_shares_of_one_tile():
    (contender,) = [c for c in LADDER if c.name == "v8_stream_k"]
    for shape in parse(STREAM_K_SHAPES):
        verdict = check_shape(contender, shape, CpuExecutor())
        assert verdict.ok, verdict


@pytest.mark.slow
def test_hundred_random_problems_on_the_ladder():
    report = fuzz(LADDER, 100, 1, CpuExecutor())
    assert not report.failures, report.failures[0]
    for name, reason in report.refused:
        assert f"{name}: the PTX machine lacks" in reason.replace("_cutlass:", ":"), report.refused
    assert report.ran >= 80


def test_libraries_are_refused_and_a_gpu_is_asked_for_by_name():
    cublas = next(c for c in every_contender() if c.name == "cublas_sgemm")
    verdict = check_shape(cublas, parse("4")[0], CpuExecutor())
    assert verdict.ok is None
    assert "GPU only" in verdict.skipped_because
    if not has_device():
        with pytest.raises((NoDeviceError, MissingToolError)):  # the latter where CuPy is missing too
            executor("gpu")
        assert executor().name == "cpu"
    assert executor("cpu").name == "cpu"
