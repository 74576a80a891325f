"""The ladder's catalog: names, launch arithmetic, parameters, variants, and the tiles it refuses."""

import re
import struct
from fractions import Fraction
from math import ceil

import pytest

from handwritten.catalog import KERNELS, LADDER, get
from handwritten.kernel import FOLDER
from handwritten.wide_tile import SM_COUNT, StreamKKernel
from kernel.contract import MAX_GRID_X, Pointers, Problem
from kernel.errors import CatalogError, RejectedError
from kernel.plan import arguments, plan

NAMES = [kernel.name for kernel in LADDER]
EXTENTS = (1, 127, 128, 129, 4092, 2**31 - 1)
BLOCK_TILED = [kernel for kernel in LADDER if kernel.tile.WARP_M]
STREAM_K = [kernel for kernel in LADDER if isinstance(kernel, StreamKKernel)]
every_kernel = pytest.mark.parametrize("kernel", LADDER, ids=NAMES)


def test_every_source_is_in_the_catalog_and_every_entry_has_a_source():
    names = [kernel.name for kernel in KERNELS]
    assert {path.stem for path in FOLDER.glob("*.cu")} == {getattr(kernel, "entry", kernel.name) for kernel in KERNELS}
    assert len(set(names)) == len(names)


@every_kernel
def test_file_stem_is_entry_symbol(kernel):
    text = kernel.source.read_text(encoding="utf-8")
    renamed = re.search(rf'#define (\w+) {kernel.name}\n#include "\1\.cu"', text)
    body = (FOLDER / f"{renamed[1]}.cu").read_text(encoding="utf-8") if renamed else text
    symbols = re.findall(r'extern "C" __global__ void __launch_bounds__\([^;{]*?\)\s+(\w+)\(const float\*', body)
    assert symbols == [renamed[1] if renamed else kernel.name]


@every_kernel
def test_header_is_at_most_five_lines_and_opens_with_the_formula(kernel):
    lines = kernel.source.read_text(encoding="utf-8").splitlines()
    header = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    assert 3 <= header <= 5
    assert lines[0] == "// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major."


def test_an_unknown_name_gives_the_nearest():
    with pytest.raises(CatalogError, match="v2_block_tile"):
        get("v2_blok_tile")
    with pytest.raises(CatalogError):
        get("")


@every_kernel
@pytest.mark.parametrize("m", EXTENTS)
@pytest.mark.parametrize("n", EXTENTS)
def test_grid_is_the_exact_ceiling_or_a_reason_with_count_and_limit(kernel, m, n):
    tile = kernel.tile
    blocks = ceil(Fraction(m, tile.BLOCK_M)) * ceil(Fraction(n, tile.BLOCK_N))
    problem = Problem(m=m, n=n, k=8)
    if blocks <= 2**31 - 1:
        assert kernel.rejects(problem) is None
        (launch,) = kernel.launches(problem)
        assert launch.grid == (min(ceil(Fraction(blocks, 4)), SM_COUNT) if kernel in STREAM_K else blocks, 1, 1)
    else:
        reason = kernel.rejects(problem)
        assert reason is not None
        assert str(blocks) in reason
        assert str(MAX_GRID_X) in reason
        with pytest.raises(RejectedError, match=str(blocks)):
            plan(kernel, problem)


@every_kernel
def test_more_blocks_than_a_grid_axis_but_x_holds_run(kernel):
    for problem in (Problem(m=2_097_153, n=4, k=8), Problem(m=4, n=8_388_481, k=8)):
        assert kernel.rejects(problem) is None
        assert kernel.launches(problem)[0].grid[1:] == (1, 1)


@every_kernel
def test_a_block_has_as_many_threads_as_thread_tiles(kernel):
    (launch,) = kernel.launches(Problem(m=1, n=1, k=1))
    tile = kernel.tile
    assert launch.threads * max(tile.THREAD_M, 1) * max(tile.THREAD_N, 1) == tile.BLOCK_M * tile.BLOCK_N


@every_kernel
def test_parameters_have_their_sizes_and_order(kernel):
    problem = Problem(m=3, n=5, k=7, lda=2**33, ldb=6, ldc=2**31 + 1, alpha=0.5, beta=-3)
    (packed,) = arguments(kernel, problem, Pointers(a=2**47, b=2**40 + 4, c=12, workspace=2**41))
    if kernel in STREAM_K:
        *packed, workspace = packed
        assert workspace.data == struct.pack("<Q", 2**41)
    data = b"".join(argument.data for argument in packed)
    values = struct.unpack("<QQQiiiqqqff", data)
    assert values == (2**47, 2**40 + 4, 12, 3, 5, 7, 2**33, 6, 2**31 + 1, 0.5, -3.0)
    assert [len(argument.data) for argument in packed] == [8, 8, 8, 4, 4, 4, 8, 8, 8, 4, 4]


def test_a_pitch_whose_bytes_pass_63_bits_is_refused_by_name():
    problem = Problem(m=3, n=4, k=4, lda=2**61)
    assert "lda" in (get("v2_block_tile").rejects(problem) or "")
    assert get("v2_block_tile").rejects(problem.replace(m=1)) is None


@pytest.mark.parametrize("kernel", BLOCK_TILED, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("changes", "aligned"),
    [
        ({}, True),
        ({"m": 1, "n": 3, "k": 2, "lda": 4, "ldb": 8, "ldc": 4}, True),  # extents never matter, pitches do
        ({"lda": 66}, "a"),
        ({"align_a": 4}, "a"),
        ({"align_a": 8}, "a"),
        ({"ldb": 65}, "b"),
        ({"align_b": 4}, "b"),
        ({"ldc": 67}, "c"),
        ({"align_c": 8}, "c"),
        ({"align_a": 16, "align_b": 16, "align_c": 16}, True),
    ],
)
def test_variant_follows_alignment_of_the_operands_that_are_reached_by_vectors(kernel, changes, aligned):
    problem = Problem(m=64, n=64, k=64).replace(**changes)
    wide = aligned is True or aligned not in kernel.vector_operands
    assert kernel.variant(problem) == ("vec4" if wide else "vec1")
    (launch,) = kernel.launches(problem)
    assert launch.unit.name == f"{kernel.name}.{kernel.variant(problem)}"
    assert f"-DVECTOR={4 if wide else 1}" in launch.unit.flags


def test_kernels_without_vectors_have_one_build_and_no_variant():
    for name in ("v0_naive", "v1_thread_tile", "s1_smem_only", "s2_thread_column"):
        kernel = get(name)
        assert len(kernel.units()) == 1
        assert kernel.variant(Problem(m=64, n=64, k=64)) == ""


@every_kernel
def test_tile_reaches_the_source_as_macros(kernel):
    for unit in kernel.units():
        for name, value in kernel.tile.items():
            assert f"-D{name}={value}" in unit.flags


@pytest.mark.parametrize(
    ("name", "extents", "rule"),
    [
        ("v2_block_tile", {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 8, "WARP_M": 32, "WARP_N": 256, "THREAD_N": 4},
         r"WARP_M \* WARP_N = 32 \* THREAD_M \* THREAD_N"),
        ("v2_block_tile", {"BLOCK_M": 100, "BLOCK_N": 100, "BLOCK_K": 7}, "fill the block tile"),
        ("v2_block_tile", {"BLOCK_M": 512, "BLOCK_N": 512, "BLOCK_K": 8}, "at most 1024 threads"),
        ("v2_block_tile", {"THREAD_M": 4}, r"32 thread tiles"),
        ("v2_block_tile", {"THREAD_N": 2, "THREAD_M": 32}, r"four columns"),
        ("v2_block_tile", {"BLOCK_K": 6}, "share the"),
        ("v3_double_buffer", {"NUM_STAGES": 3}, "NUM_STAGES = 2"),
        ("v3_double_buffer", {"BLOCK_K": 64}, "shared memory"),
        ("v4_swizzle", {"BLOCK_K": 4}, "BLOCK_K % 8"),
        ("v4_swizzle", {"THREAD_M": 4, "THREAD_N": 16}, "THREAD_M = 8"),
        ("v5_chunk_swizzle", {"BLOCK_K": 8}, "BLOCK_K % 16"),
        ("v6_transposed_split", {"BLOCK_K": 8}, "BLOCK_K = 16"),
        ("v7_wide_tile", {"NUM_STAGES": 1}, "NUM_STAGES >= 2"),
        ("v7_wide_tile", {"NUM_STAGES": 10}, "a block can have 232448"),
        ("v8_stream_k", {"NUM_STAGES": 2}, "where the tiles were"),
        ("s1_smem_only", {"BLOCK_M": 64}, "at most 1024 threads"),
        ("v1_thread_tile", {"THREAD_M": 3}, "fill the block tile"),
        ("v0_naive", {"BLOCK_M": 5}, "whole warps"),
    ],
)  # fmt: skip
def test_an_impossible_tile_is_refused_before_any_compiler_with_its_rule(name, extents, rule):
    with pytest.raises(CatalogError, match=rule) as caught:
        get(name).with_tile(**extents)
    assert name in str(caught.value)


def test_an_unknown_extent_is_refused_with_the_nearest_one():
    with pytest.raises(CatalogError, match=r"WRAP_M.*did you mean WARP_M"):
        get("v2_block_tile").with_tile(WRAP_M=32)
    with pytest.raises(CatalogError, match="NUM_STAGES"):
        get("v2_block_tile").with_tile(NUM_STAGES=2)


def test_a_possible_tile_is_taken():
    kernel = get("v2_block_tile").with_tile(BLOCK_M=64, BLOCK_N=128, WARP_M=32, WARP_N=64)
    assert kernel.threads == 128
    assert kernel.launches(Problem(m=65, n=129, k=1))[0].grid == (4, 1, 1)


@pytest.mark.parametrize("kernel", STREAM_K, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("m", "n", "k", "blocks", "whole_tiles", "shared_tiles"),
    [
        (1, 1, 1, 1, 1, 0),
        (128, 256, 64, 1, 1, 0),
        (128, 256, 65, 2, 0, 1),  # five steps, shares of at least four
        (256, 256, 256, 8, 0, 2),
        (1024, 1024, 1024, 132, 0, 32),
        (132 * 128, 256, 64, 132, 132, 0),  # one whole wave: nothing to share
        (133 * 128, 256, 64, 132, 0, 133),
        (3072, 3072, 3072, 132, 132, 156),
        (4096, 4096, 4096, 132, 264, 248),
        (8192, 8192, 8192, 132, 1848, 200),
    ],
)
def test_stream_k_shares_the_tiles_of_the_last_two_waves(kernel, m, n, k, blocks, whole_tiles, shared_tiles):
    problem = Problem(m=m, n=n, k=k)
    tile = kernel.tile
    steps = ceil(Fraction(k, tile.BLOCK_K))
    assert kernel.shares(problem) == (blocks, whole_tiles, shared_tiles * steps)
    assert whole_tiles + shared_tiles == ceil(Fraction(m, tile.BLOCK_M)) * ceil(Fraction(n, tile.BLOCK_N))
    assert whole_tiles % blocks == 0
    (launch,) = kernel.launches(problem)
    assert launch.grid == (blocks, 1, 1)
    part = tile.BLOCK_M * tile.BLOCK_N * 4
    assert launch.workspace == (4096 + blocks * part if shared_tiles else 0)
    assert launch.workspace_zeroed == (4 + 4 * blocks if shared_tiles else 0)
    assert launch.workspace_zeroed <= 4096


def test_dynamic_shared_memory_is_every_stage_of_both_tiles_with_the_pad():
    (launch,) = get("v7_wide_tile").launches(Problem(m=64, n=64, k=64))
    assert launch.dynamic_smem == 3 * 16 * (128 + 4 + 256) * 4
    assert get("v7_wide_tile").with_tile(NUM_STAGES=4).dynamic_smem == 4 * 16 * (128 + 4 + 256) * 4
    assert get("v6_transposed_split").launches(Problem(m=64, n=64, k=64))[0].dynamic_smem == 0
