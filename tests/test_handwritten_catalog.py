"""The ladder's catalog: names, launch arithmetic, parameters, variants, and the tiles it refuses."""

import dataclasses
import re
import struct
from fractions import Fraction
from math import ceil

import pytest

from handwritten.catalog import KERNELS, LADDER, get
from handwritten.kernel import FOLDER
from handwritten.pass_tile import LOADING_THREADS, PackingPassKernel, TransposingPassKernel
from handwritten.split_tile import BlockSplitKernel, StreamRowsKernel
from handwritten.stream_tile import ClusterSplitKernel, StreamKTileKernel, StreamTileKernel
from handwritten.wide_tile import SM_COUNT, StreamKKernel
from kernel.contract import MAX_GRID_X, Pointers, Problem
from kernel.errors import CatalogError, RejectedError
from kernel.plan import arguments, plan

NAMES = [kernel.name for kernel in LADDER]
EXTENTS = (1, 127, 128, 129, 4092, 2**31 - 1)
BLOCK_TILED = [kernel for kernel in LADDER if kernel.tile.WARP_M]
STREAM_K = [kernel for kernel in LADDER if isinstance(kernel, StreamKKernel)]
STREAM_TILE = [kernel for kernel in LADDER if isinstance(kernel, StreamTileKernel)]
STREAM_K_TILE = [kernel for kernel in LADDER if isinstance(kernel, StreamKTileKernel)]
SPLIT = [kernel for kernel in LADDER if isinstance(kernel, ClusterSplitKernel)]
CLUSTER_SPLIT = [kernel for kernel in SPLIT if type(kernel) is ClusterSplitKernel]
BLOCK_SPLIT = [kernel for kernel in SPLIT if isinstance(kernel, BlockSplitKernel)]
STREAM_ROWS = [kernel for kernel in SPLIT if isinstance(kernel, StreamRowsKernel)]
PASSES = [kernel for kernel in LADDER if type(kernel) is TransposingPassKernel]
PACKING = [kernel for kernel in LADDER if isinstance(kernel, PackingPassKernel)]
every_kernel = pytest.mark.parametrize("kernel", LADDER, ids=NAMES)


def test_every_source_is_in_the_catalog_and_every_entry_has_a_source():
    names = [kernel.name for kernel in KERNELS]
    sources = {unit.source.stem for kernel in KERNELS for unit in kernel.units()}
    assert {path.stem for path in FOLDER.glob("*.cu")} == sources
    assert sources <= set(names)
    assert len(set(names)) == len(names)


@every_kernel
def test_file_stem_is_entry_symbol(kernel):
    text = kernel.source.read_text(encoding="utf-8")
    renamed = re.search(rf'#define (\w+) {kernel.name}\n#include "\1\.cu"', text)
    included = renamed or re.search(r'^#include "(\w+)\.cu"$', text, re.MULTILINE)
    body = (FOLDER / f"{included[1]}.cu").read_text(encoding="utf-8") if included else text
    symbols = re.findall(r'extern "C" __global__ void __launch_bounds__\([^;{]*?\)\s+(\w+)\(const [f_]', body)
    if kernel in STREAM_TILE:  # one source for several entries: the symbol comes with the build
        assert symbols == ["ENTRY"]
        *_, launch = kernel.launches(Problem(m=64, n=63, k=64) if kernel in PACKING else Problem(m=64, n=64, k=64))
        assert launch.entry == kernel.entry
        assert f"-DENTRY={kernel.entry}" in launch.unit.flags
        return
    assert symbols == [renamed[1] if renamed else kernel.name]
    assert kernel.entry == kernel.name


def test_a_hint_is_in_the_entry_and_the_row_s_name_and_never_alone():
    hinted = [kernel for kernel in LADDER if kernel.entry_name_hint]
    assert hinted
    for kernel in hinted:
        assert kernel.entry == f"{kernel.name}_{kernel.entry_name_hint}"
        assert kernel.name.endswith("_hint")
        plain = get(kernel.name.removesuffix("_hint"))
        assert (plain.source, plain.tile, plain.entry_name_hint) == (kernel.source, kernel.tile, "")
        flags = set(kernel.units()[0].flags) ^ set(plain.units()[0].flags)
        assert {flag.split("=")[0] for flag in flags} == {"-DENTRY", "-DNAME_HINT"}


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
    if kernel in SPLIT:
        blocks *= 8  # so many at most
    if blocks <= 2**31 - 1:
        blocks = blocks // 8 if kernel in SPLIT else blocks
        assert kernel.rejects(problem) is None
        *_, launch = kernel.launches(problem)
        expected = blocks
        if kernel in STREAM_K:
            expected = min(ceil(Fraction(blocks, 4)), SM_COUNT)
        elif kernel in STREAM_K_TILE:
            expected = min(ceil(Fraction(blocks, 4)), SM_COUNT * kernel.blocks_per_sm)
        elif kernel in SPLIT:
            expected = blocks * launch.cluster[0]
        assert launch.grid == (expected, 1, 1)
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
    *_, launch = kernel.launches(Problem(m=1, n=1, k=1, ldb=4))
    tile = kernel.tile
    elements = tile.BLOCK_M * tile.BLOCK_N
    if kernel in BLOCK_SPLIT:
        elements *= kernel.k_groups  # as many threads hold each of them
    if kernel in STREAM_ROWS:
        lanes_along_k = 32 * tile.THREAD_N // tile.BLOCK_N
        elements *= kernel.k_warps * lanes_along_k
    threads = launch.threads - (LOADING_THREADS if kernel in (*PASSES, *PACKING) else 0)
    assert threads * max(tile.THREAD_M, 1) * max(tile.THREAD_N, 1) == elements


@pytest.mark.parametrize("kernel", [one for one in LADDER if one not in PACKING], ids=lambda kernel: kernel.name)
def test_parameters_have_their_sizes_and_order(kernel):
    problem = Problem(m=3, n=5, k=7, lda=2**33, ldb=6, ldc=2**31 + 1, alpha=0.5, beta=-3)
    (packed,) = arguments(kernel, problem, Pointers(a=2**47, b=2**40 + 4, c=12, workspace=2**41))
    if kernel in STREAM_K:
        *packed, workspace = packed
        assert workspace.data == struct.pack("<Q", 2**41)
    if kernel in STREAM_K_TILE:
        *packed, workspace, whole_tiles = packed
        assert workspace.data == struct.pack("<Q", 2**41)
        assert whole_tiles.data == struct.pack("<i", 1)
    if kernel in BLOCK_SPLIT:
        *packed, parts, workspace = packed
        assert parts.data == struct.pack("<i", 1)
        assert workspace.data == struct.pack("<Q", 2**41)
    if kernel in SPLIT:
        *packed, slices = packed
        assert slices.data == struct.pack("<i", kernel.slices_for(problem))
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
    if kernel in PACKING:
        assert kernel.variant(Problem(m=64, n=64, k=64).replace(**changes)) == (
            "vec4_packed" if aligned == "b" else f"{kernel.fallback.name}.vec{1 if aligned == 'c' else 4}"
        )
        return
    if kernel in PASSES:
        aligned = aligned if aligned in (True, "a", "c") else False
        if aligned is False:
            assert kernel.variant(Problem(m=64, n=64, k=64).replace(**changes)) == f"{kernel.fallback.name}.vec1"
            return
    elif kernel in STREAM_TILE and "n" in changes:
        aligned = False  # there extents matter too: the loop has no place for part of an access
    problem = Problem(m=64, n=64, k=64).replace(**changes)
    wide = aligned is True or (aligned is not False and aligned not in kernel.vector_operands)
    *_, launch = kernel.launches(problem)
    width = "vec4" if wide else "vec1"
    slices = launch.cluster[0]
    assert kernel.variant(problem) == width + (f"_split{slices}" if slices > 1 else "")
    assert launch.unit.name == f"{kernel.name}.{width}"
    assert f"-DVECTOR={4 if wide else 1}" in launch.unit.flags


def test_kernels_without_vectors_have_one_build_and_no_variant():
    for name in ("v0_naive", "v1_thread_tile", "s1_smem_only", "s2_thread_column"):
        kernel = get(name)
        assert len(kernel.units()) == 1
        assert kernel.variant(Problem(m=64, n=64, k=64)) == ""


@every_kernel
def test_tile_reaches_the_source_as_macros(kernel):
    own = [unit for unit in kernel.units() if unit.source == kernel.source]
    assert len(own) == len(kernel.widths)
    for unit in own:
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
        ("v2_block_tile", {"WARP_N": 256, "THREAD_M": 128, "THREAD_N": 4}, r"fill the warp tile \(WARP_M % THREAD_M"),
        ("v2_block_tile", {"BLOCK_M": 192, "BLOCK_K": 24}, "3 steps of a copy are no multiple of the 2 .* in flight"),
        ("v3_double_buffer", {"NUM_STAGES": 3}, "NUM_STAGES = 2"),
        ("v3_double_buffer", {"BLOCK_K": 64}, "shared memory"),
        ("v4_swizzle", {"BLOCK_K": 4}, "BLOCK_K % 8"),
        ("v4_swizzle", {"THREAD_M": 4, "THREAD_N": 16}, "THREAD_M = 8"),
        ("v5_chunk_swizzle", {"BLOCK_K": 8}, "BLOCK_K % 16"),
        ("v6_transposed_split", {"BLOCK_K": 8}, "BLOCK_K = 16"),
        ("v7_wide_tile", {"NUM_STAGES": 1}, "NUM_STAGES >= 2"),
        ("v7_wide_tile", {"NUM_STAGES": 10}, "a block can have 232448"),
        ("v8_stream_k", {"NUM_STAGES": 2}, "where the tiles were"),
        ("v9_two_blocks", {"NUM_STAGES": 2}, "NUM_STAGES >= 3"),
        ("v9_two_blocks", {"BLOCK_K": 6}, r"BLOCK_K % 4"),
        ("v10_drift", {"NUM_STAGES": 3}, "NUM_STAGES >= 4"),
        ("v10_drift", {"NUM_STAGES": 10}, "a block can have 232448"),
        ("v11_few_columns", {"BLOCK_M": 256}, "tile of B evenly"),
        ("v18_transposing_pass", {"NUM_STAGES": 10}, "a block can have 232448"),
        ("v18_transposing_pass", {"BLOCK_M": 64}, "256 threads of 240 registers"),
        ("v18_transposing_pass", {"BLOCK_M": 512, "BLOCK_N": 64}, "a box of a tensor map ends at 256"),
        ("v18_transposing_pass", {"BLOCK_K": 6}, r"two sets of registers, .* \(BLOCK_K % 4\)"),
        ("v17_block_split", {"BLOCK_K": 128}, "the tiles need 401408 bytes of shared memory; a block can have 232448"),
        ("v17_block_split", {"BLOCK_K": 12}, "4 groups cannot take equal, even parts of the 12 steps"),
        ("v17_block_split", {"BLOCK_M": 16, "BLOCK_K": 8, "WARP_M": 16, "WARP_N": 64, "THREAD_N": 4},
         "256 threads cannot share the 16 x 8 tile of A evenly"),
        ("v17_block_split", {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 8, "WARP_M": 32, "WARP_N": 32, "THREAD_N": 4},
         "128 threads cannot share the 8 x 32 tile of B evenly in runs of 4"),
        ("v16_stream_rows", {"THREAD_N": 2}, r"reads B four columns at a time \(THREAD_N % 4\)"),
        ("v16_stream_rows", {"NUM_STAGES": 90}, "the rings need 5114880 bytes of shared memory"),
        ("v16_stream_rows", {"BLOCK_K": 3}, "the lanes that are not needed along n take rows of B"),
        ("v16_stream_rows", {"BLOCK_M": 6}, "a thread reads one row of A, or four at a time"),
        ("v16_stream_rows", {"WARP_M": 4}, "the warps of a block share its tile"),
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


@pytest.mark.parametrize("kernel", STREAM_K_TILE, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("size", [1, 128, 1000, 1024, 3072, 4096, 8192])
def test_a_cut_covers_every_step_once_and_whole_tiles_come_in_whole_waves(kernel, size):
    problem = Problem(m=size, n=size, k=size)
    tile, cut = kernel.tile, kernel.cut(problem)
    tiles = ceil(Fraction(size, tile.BLOCK_M)) * ceil(Fraction(size, tile.BLOCK_N))
    steps = ceil(Fraction(size, tile.BLOCK_K))
    assert cut.blocks <= SM_COUNT * kernel.blocks_per_sm
    assert cut.whole_tiles % cut.blocks == 0 or cut.whole_tiles == tiles
    assert cut.whole_tiles * steps + cut.shared_steps == tiles * steps
    *_, launch = kernel.launches(problem)
    if kernel in (*PASSES, *PACKING):
        return  # its workspace has a test of its own
    part = 4 * tile.BLOCK_M * tile.BLOCK_N
    assert launch.workspace == (kernel.header_bytes + cut.blocks * part if cut.shared_steps else 0)
    flags = cut.blocks * kernel.threads // 32
    assert launch.workspace_zeroed == (4 + 4 * flags if cut.shared_steps else 0)
    assert launch.workspace_zeroed <= kernel.header_bytes


@pytest.mark.parametrize("kernel", PASSES, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 4, 1), (130, 260, 1000), (4096, 4096, 4096), (33, 16896, 65)])
def test_a_pass_zeroes_the_flags_and_turns_a_into_the_workspace_behind_them(kernel, m, n, k):
    problem = Problem(m=m, n=n, k=k, lda=k + 3, align_a=4)
    turning, product = kernel.launches(problem)
    tile, cut = kernel.tile, kernel.cut(problem)
    parts = 4 * tile.BLOCK_M * tile.BLOCK_N * (cut.blocks if cut.shared_steps else 0)
    pitch = ceil(Fraction(m, 4)) * 4
    assert turning.workspace == product.workspace == kernel.header_bytes + parts + 4 * k * pitch
    assert turning.workspace_zeroed == product.workspace_zeroed == 0
    assert 4 + 4 * cut.blocks * kernel.threads // 32 <= kernel.header_bytes
    rows = ceil(Fraction(m, 64))
    assert turning.grid == (rows * min(ceil(Fraction(k, 64)), 64), 1, 1)
    assert (turning.entry, turning.unit) == (f"{kernel.entry}_pass", product.unit)
    first, second = arguments(kernel, problem, Pointers(a=4, b=2 << 40, c=3 << 40, workspace=4 << 40))
    values = struct.unpack("<QQQiiqq", b"".join(argument.data for argument in first))
    copy = (4 << 40) + kernel.header_bytes + parts
    assert values == (4 << 40, copy, 4, m, k, k + 3, pitch)
    (a,), (b,) = (argument.tensor_maps for argument in second[:2])
    assert (a[1].address, a[1].shape, a[1].strides, a[1].box) == (copy, (m, k), (4 * pitch,), (128, 16))
    assert (b[1].address, b[1].shape, b[1].strides, b[1].box) == (2 << 40, (n, k), (4 * n,), (256, 16))
    assert {one[1].swizzle for one in (a, b)} == {0}


@pytest.mark.parametrize("kernel", PASSES, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("changes", "why"),
    [({"ldb": 65}, "pitch is 260"), ({"align_b": 8}, "multiple of 8 bytes"), ({"ldb": 2**38}, "less than")],
)
def test_what_no_tensor_map_of_b_describes_goes_to_v14(kernel, changes, why):
    problem = Problem(m=64, n=64, k=64).replace(**changes)
    assert kernel.runner(problem) is kernel.fallback
    assert kernel.fallback.name == "v14_early_loads" + ("_hint" if kernel.entry_name_hint else "")
    assert why in kernel.why(problem)
    assert kernel.variant(problem) == f"{kernel.fallback.name}.{kernel.fallback.variant(problem)}"
    assert kernel.launches(problem) == kernel.fallback.launches(problem)
    pointers = Pointers(a=1 << 40, b=2 << 40, c=3 << 40, workspace=4 << 40)
    assert kernel.pack(problem, pointers) == kernel.fallback.pack(problem, pointers)
    assert set(kernel.fallback.units()) < set(kernel.units())
    whole = Problem(m=1, n=1, k=1, ldb=4, align_a=4, align_c=4)
    assert (kernel.runner(whole), kernel.why(whole), kernel.variant(whole)) == (kernel, "", "vec1")


@pytest.mark.parametrize("kernel", PACKING, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({"n": 63}, "vec1_packed"),
        ({"align_b": 4}, "vec4_packed"),
        ({"align_b": 8, "align_c": 8}, "vec1_packed"),
        ({"n": 62, "ldb": 62, "ldc": 64}, "vec4_packed"),
        ({"n": 1, "k": 100_000}, "vec1_packed"),
        ({"m": 4097, "n": 4097, "k": 4097}, "vec1_packed"),
        ({"ldb": 2**38}, "vec4_packed"),  # a pitch beyond a tensor map's
    ],
)
def test_b_is_copied_into_the_workspace_behind_all_that_v20_has_there(kernel, changes, variant):
    problem = Problem(**{"m": 130, "n": 64, "k": 77, **changes})
    n, k = problem.n, problem.k
    assert (kernel.runner(problem), kernel.why(problem), kernel.variant(problem)) == (kernel, "", variant)
    turning, copying, product = kernel.launches(problem)
    # The pass and the product are those that v20 would have, if only B's copy were B.
    pitch = ceil(Fraction(n, 4)) * 4
    whole = problem.replace(ldb=pitch, align_b=256)
    assert kernel.fallback.runner(whole) is kernel.fallback
    behind = kernel.fallback.launches(whole)[0].workspace
    assert {one.workspace for one in kernel.launches(problem)} == {behind + 4 * k * pitch}
    for mine, theirs in zip((turning, product), kernel.fallback.launches(whole), strict=True):
        assert mine.entry == theirs.entry.replace(kernel.fallback.entry, kernel.entry)
        assert dataclasses.replace(theirs, unit=mine.unit, entry=mine.entry, workspace=mine.workspace) == mine
    assert (copying.entry, copying.unit, copying.overlaps) == (f"{kernel.entry}_copy", product.unit, True)
    assert (copying.grid, copying.block) == ((ceil(Fraction(n, 256)) * ceil(Fraction(k, 8)), 1, 1), (256, 1, 1))
    pointers = Pointers(a=4, b=2 << 40, c=3 << 40, workspace=4 << 40)
    copy = (4 << 40) + behind
    first, second, third = arguments(kernel, problem, pointers)
    values = struct.unpack("<QQiiqq", b"".join(argument.data for argument in second))
    assert values == (copy, 2 << 40, n, k, problem.ldb, pitch)
    assert (first, third) == kernel.fallback.pack(whole, dataclasses.replace(pointers, b=copy))
    assert copy % 16 == 0


@pytest.mark.parametrize("kernel", PACKING, ids=lambda kernel: kernel.name)
def test_a_b_that_needs_no_copy_goes_to_v20(kernel):
    problem = Problem(m=4096, n=4096, k=4096)
    assert kernel.fallback.name == kernel.name.replace("v21_packed", "v20_one_barrier")
    assert kernel.runner(problem) is kernel.fallback
    assert "as it is" in kernel.why(problem)
    assert kernel.variant(problem) == f"{kernel.fallback.name}.vec4"
    assert kernel.launches(problem) == kernel.fallback.launches(problem)
    pointers = Pointers(a=1 << 40, b=2 << 40, c=3 << 40, workspace=4 << 40)
    assert kernel.pack(problem, pointers) == kernel.fallback.pack(problem, pointers)
    assert set(kernel.fallback.units()) < set(kernel.units())


@pytest.mark.parametrize("kernel", PACKING, ids=lambda kernel: kernel.name)
def test_blocks_of_the_copy_go_on_where_a_grid_ends(kernel):
    problem = Problem(m=1, n=2**31 - 1, k=2**10 + 1)
    _, copying, _ = kernel.launches(problem)
    assert copying.grid == (2**23 * 129, 1, 1)
    _, copying, _ = kernel.launches(problem.replace(k=2**20, lda=2**20))
    assert copying.grid == (2**23 * 255, 1, 1)  # 256 strips are one block too many


def test_steps_beyond_32_bits_are_not_shared():
    kernel = get("v12_spread")
    assert kernel.cut(Problem(m=129, n=129, k=2**31 - 1)).shared_steps == 4 * 2**27
    wide = Problem(m=128 * 300, n=128, k=2**31 - 1)
    assert kernel.cut(wide).shared_steps == 0
    assert kernel.cut(wide).whole_tiles == 300


@pytest.mark.parametrize(
    "kernel", [one for one in SPLIT if type(one) is ClusterSplitKernel], ids=lambda kernel: kernel.name
)
def test_slices_fill_the_device_and_never_outnumber_a_cluster(kernel):
    deep = Problem(m=kernel.tile.BLOCK_M, n=kernel.tile.BLOCK_N, k=65536)
    assert kernel.slices_for(deep) == 8
    assert kernel.slices_for(deep.replace(k=1)) == 1
    assert kernel.slices_for(Problem(m=8192, n=8192, k=8192)) == 1
    (launch,) = kernel.launches(deep)
    assert launch.cluster == (8, 1, 1)
    assert launch.grid == (8, 1, 1)
    assert launch.dynamic_smem >= 4 * kernel.tile.BLOCK_M * kernel.tile.BLOCK_N


@pytest.mark.parametrize("kernel", BLOCK_SPLIT, ids=lambda kernel: kernel.name)
def test_parts_fill_the_device_and_a_second_launch_adds_them(kernel):
    tile = kernel.tile
    deep = Problem(m=tile.BLOCK_M, n=tile.BLOCK_N, k=65536, beta=2.0)
    cut = kernel.cut(deep)
    assert cut.slices == 1
    assert SM_COUNT // 2 < cut.parts <= SM_COUNT * kernel.resident
    assert kernel.cut(deep.replace(k=1)).shares == 1
    assert kernel.cut(Problem(m=8192, n=8192, k=8192)).shares <= 2
    product, adding = kernel.launches(deep)
    assert product.grid == (cut.parts, 1, 1)
    assert product.overlaps
    assert adding.overlaps
    assert product.workspace == adding.workspace == 4 * cut.parts * tile.BLOCK_M * tile.BLOCK_N
    assert product.workspace_zeroed == adding.workspace_zeroed == 0
    assert product.dynamic_smem >= 4 * kernel.k_groups * tile.BLOCK_M * tile.BLOCK_N
    assert adding.entry == f"{product.entry}_sum"
    assert adding.blocks * adding.threads >= tile.BLOCK_M * tile.BLOCK_N
    assert kernel.variant(deep) == f"vec4_parts{cut.parts}"
    first, second = arguments(kernel, deep, Pointers(a=1 << 40, b=2 << 40, c=3 << 40, workspace=4 << 40))
    assert b"".join(argument.data for argument in first[-3:]) == struct.pack("<iiQ", 1, cut.parts, 4 << 40)
    values = struct.unpack("<QiiqfiQ", b"".join(argument.data for argument in second))
    assert values == (3 << 40, tile.BLOCK_M, tile.BLOCK_N, tile.BLOCK_N, 2.0, cut.parts, 4 << 40)


@pytest.mark.parametrize("kernel", STREAM_ROWS, ids=lambda kernel: kernel.name)
def test_a_strip_is_split_over_a_cluster_only_where_strips_are_few(kernel):
    decided = dataclasses.replace(kernel, slices=0)
    assert decided.slices_for(Problem(m=1, n=64, k=2**20)) > 1
    assert decided.slices_for(Problem(m=1, n=2**20, k=4096)) == 1
    assert decided.slices_for(Problem(m=1, n=64, k=1)) == 1
    (launch,) = kernel.launches(Problem(m=1, n=4096, k=4096))
    assert launch.overlaps
    assert launch.blocks % launch.cluster[0] == 0
