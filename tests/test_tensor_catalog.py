"""The Tensor Core kernels' catalog: builds, launch arithmetic, tensor maps, variants, fallbacks, refusals."""

import dataclasses
import re
import struct
from math import ceil, prod

import pytest

from compare.contenders import KernelContender, contenders
from compare.groups import groups
from compare.shapes import parse
from handwritten.catalog import KERNELS, LADDER, get
from handwritten.tensor_catalog import (
    COPY_LIMIT,
    FOLDER,
    H0,
    H1,
    H2,
    H3,
    H4,
    H5,
    H5_TILES,
    H6,
    H7,
    H8,
    H9,
    H9_TILES,
    H10,
    H10_TILES,
    PASS_BLOCKS,
    SM_COUNT,
    TurnedKernel,
)
from handwritten.tensor_catalog import KERNELS as TENSOR
from kernel.contract import MAX_GRID_X, Pointers, Problem
from kernel.errors import RejectedError
from kernel.plan import arguments, plan

NAMES = [kernel.name for kernel in TENSOR]
PACKED = (H9, *H9_TILES)
SPLIT = (H10, *H10_TILES)
WGMMA = (H1, H2, H3, H4, H5, *H5_TILES, H6, H7, H8, *SPLIT)
POINTERS = Pointers(a=2**47, b=2**40 + 256, c=4096, workspace=2**45)
every_kernel = pytest.mark.parametrize("kernel", TENSOR, ids=NAMES)
every_wgmma = pytest.mark.parametrize("kernel", WGMMA, ids=[kernel.name for kernel in WGMMA])
every_packed = pytest.mark.parametrize("kernel", PACKED, ids=[kernel.name for kernel in PACKED])


def half(m, n, k, **changes):
    return Problem(m=m, n=n, k=k, **{"dtype_in": "float16", "dtype_out": "float16", **changes})


def test_the_catalog_holds_the_ladder_and_then_these():
    assert (*LADDER, *TENSOR) == KERNELS
    assert all(get(name).name == name for name in NAMES)


@every_kernel
def test_file_stem_is_entry_symbol_and_the_header_opens_with_the_formula(kernel):
    text = (FOLDER / f"{kernel.entry}.cu").read_text(encoding="utf-8")
    assert re.findall(r"__launch_bounds__\([^)]*\)\s+(\w+)\(", text) == [
        kernel.entry,
        *[f"{kernel.entry}_sum"] * (kernel in SPLIT),
    ]
    assert kernel.entry == kernel.name or kernel.entry in NAMES
    first = "// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way."
    lines = text.splitlines()
    assert lines[0] == first
    assert 3 <= next(i for i, line in enumerate(lines) if not line.startswith("//")) <= 5


@every_kernel
def test_builds_differ_in_name_and_flags_and_the_widest_comes_first(kernel):
    units = kernel.units()
    assert len({unit.name for unit in units}) == len(units)
    assert len({(unit.source, unit.flags) for unit in units}) == len(units)
    assert units[0] == kernel.launches(half(256, 512, 64))[0].unit
    assert all(f"-D{name}={value}" in units[0].flags for name, value in kernel.tile.items())


@every_kernel
def test_every_launch_is_of_a_unit_that_the_kernel_declares(kernel):
    for layout in ("rr", "rc"):
        for out in ("float16", "float32"):
            for changes in ({}, {"align_a": 2}, {"align_b": 4}, {"ldc": 261}):
                problem = half(257, 261, 65, layout=layout, dtype_out=out, lda=72, ldb=264, ldc=264).replace(**changes)
                planned = plan(kernel, problem)
                launch = planned.main_launch
                assert all(one.unit in kernel.units() for one in planned.launches)
                if kernel in PACKED:
                    assert planned.launches.index(launch) == ("align_a" in changes or "align_b" in changes)
                assert f"-DB_COLUMN_MAJOR={int(layout == 'rc')}" in launch.unit.flags
                assert f"-DOUT_BYTES={2 if out == 'float16' else 4}" in launch.unit.flags


@pytest.mark.parametrize("extents", [(1, 1), (128, 256), (129, 257), (1024, 1024), (4096, 4096), (8191, 4097)])
@every_kernel
def test_grid_covers_c_in_whole_clusters_and_persistent_blocks_fill_the_device_once(kernel, extents):
    m, n = extents
    # Aligned whatever n is, so that the kernel itself runs it.
    problem = half(m, ceil(n / 64) * 64, 64)
    tile, down, across = kernel.tile, max(kernel.tile.CLUSTER_M, 1), max(kernel.tile.CLUSTER_N, 1)
    cluster = down * across
    tiles = ceil(m / (tile.BLOCK_M * down)) * ceil(problem.n / (tile.BLOCK_N * across)) * cluster
    (launch,) = plan(kernel, problem).launches
    assert launch.entry == kernel.entry
    assert launch.grid == (tiles if kernel is H0 else min(tiles, SM_COUNT), 1, 1)
    assert launch.cluster == (cluster, 1, 1)
    assert launch.blocks % cluster == 0
    assert launch.dynamic_smem <= 227 * 1024


def test_threads_and_shared_memory():
    problem = half(4096, 4096, 4096)
    kernels = (H0, H1, H2, H3, H4, H5, H6, H7)
    launches = [kernel.launches(problem)[0] for kernel in kernels]
    assert [launch.threads for launch in launches] == [256, 384, 384, 256, 256, 384, 256, 256]
    stages = [3 * 384, 4 * 384, 4 * 384, 3 * (256 + 224), 3 * (256 + 192), 3 * 384, *[3 * (224 + 256)] * 2]
    # Two warpgroups with buffers of 64 rows, turned ones of 32; h7 keeps two numbers besides.
    stores = [0, 2 * 2 * 8192, 2 * 2 * 8192, 2 * 5 * 4096, 2 * 3 * 8192, 2 * 4 * 8192, 2 * 4 * 4096, 2 * 4 * 4096 + 8]
    for launch, rows, store, kernel in zip(launches, stages, stores, kernels, strict=True):
        own = rows * 64 * 2 + store
        assert launch.dynamic_smem == own + {H0: 0}.get(kernel, 1024 + 16 * kernel.tile.NUM_STAGES)


def test_only_the_kernels_that_wait_for_the_launch_before_may_overlap_it():
    for kernel in TENSOR:
        (launch,) = kernel.launches(half(512, 512, 64))
        waits = "wait_for_launch_before()" in (FOLDER / f"{kernel.entry}.cu").read_text(encoding="utf-8")
        assert launch.overlaps == waits == (kernel in (H5, *H5_TILES, H6, H7, *PACKED, *SPLIT))
        elsewhere = kernel.launches(half(512, 512, 64, align_a=2))
        assert all(launch.overlaps == (kernel in PACKED) for launch in elsewhere)


@pytest.mark.parametrize(
    "kernel", [k for k in WGMMA if not isinstance(k, TurnedKernel)], ids=lambda kernel: kernel.name
)
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_store_buffers_fit_their_bytes_and_divide_the_tile(kernel, out):
    size = 2 if out == "float16" else 4
    columns = kernel.store_columns(out)
    assert columns * size in (64, 128)
    assert kernel.tile.BLOCK_N % columns == 0
    buffer = 64 * columns * size
    assert kernel.store_buffers(out) >= 2
    assert 0 <= kernel.store_bytes - kernel.store_buffers(out) * buffer < buffer
    assert f"-DSTORE_COLS={columns}" in kernel.unit("rr", out).flags


@pytest.mark.parametrize("kernel", SPLIT, ids=lambda kernel: kernel.name)
def test_a_cut_shares_deep_tiles_and_leaves_full_ones_alone(kernel):
    """Few tiles keep a third of the SMs busy and more; many are not cut; no part is without a block of k."""
    for m, n, k in ((128, 128, 65536), (256, 256, 16384), (512, 512, 8192), (1024, 128, 16384), (1, 4096, 14336)):
        problem = half(m, n, k)
        cut = kernel.cut(problem)
        launch, *_ = kernel.launches(problem)
        assert cut.shares > 1
        assert SM_COUNT // 3 <= launch.blocks <= SM_COUNT
        assert kernel.length(problem, cut) <= 1.02 * min(
            kernel.length(problem, type(cut)(slices, parts)) for slices in (1, 2) for parts in range(1, 20)
        )
    for shape in ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 128, 64), (128, 256, 64)):
        assert kernel.cut(half(*shape)).shares == 1
        assert kernel.variant(half(*shape)) == "tma"
    assert kernel.cut(half(64, 64, 100)).shares <= 2
    assert kernel.cut(half(1, 8, 2**31 - 1)).shares > 1


@pytest.mark.parametrize(
    ("slices", "parts", "variant"),
    [(1, 1, "tma"), (4, 1, "tma_cluster4"), (1, 12, "tma_parts12"), (8, 3, "tma_cluster8_parts3")],
)
@pytest.mark.parametrize("kernel", SPLIT, ids=lambda kernel: kernel.name)
def test_a_cut_decides_grid_cluster_workspace_and_parameters(kernel, slices, parts, variant):
    kernel = dataclasses.replace(kernel, slices=slices, parts=parts)
    problem = half(300, 461, 4096, ldb=464, ldc=464, alpha=0.5, beta=2)
    tiles = ceil(300 / kernel.tile.BLOCK_M) * ceil(461 / kernel.tile.BLOCK_N)
    product, *adding = kernel.launches(problem)
    assert kernel.variant(problem) == variant
    most = {1: 132, 2: 66, 4: 32, 8: 16}[slices]
    assert product.grid == (min(tiles * parts, most) * slices, 1, 1)
    assert (product.cluster, product.overlaps) == ((slices, 1, 1), True)
    workspace = 4 * parts * 300 * 464 if parts > 1 else 0
    assert [launch.workspace for launch in (product, *adding)] == [workspace] * (2 if parts > 1 else 1)
    pointers = Pointers(a=2**47, b=2**40 + 256, c=4096, workspace=2**45)
    values, *sums = arguments(kernel, problem, pointers)
    assert struct.unpack("<iiiQ", b"".join(value.data for value in values[10:])) == (slices, parts, 464, 2**45)
    for launch, more in zip(adding, sums, strict=True):
        assert launch.entry == "h10_split_k_sum"
        assert launch.overlaps
        lanes = 4 if parts >= 8 else 1
        assert launch.blocks * launch.threads >= 300 * 116 * lanes > (launch.blocks - 1) * launch.threads
        expected = (4096, 300, 461, 464, 0.5, 2.0, parts, 464, lanes, 2**45)
        assert struct.unpack("<QiiqffiiiQ", b"".join(value.data for value in more)) == expected


@pytest.mark.parametrize("kernel", SPLIT, ids=lambda kernel: kernel.name)
def test_boxes_end_where_the_matrix_does(kernel):
    """Whole periods of the swizzle, eight rows; columns of row-major B lie along the span and stay whole."""
    rows, columns = kernel.tile.BLOCK_M, kernel.tile.BLOCK_N
    for m, n, layout, a_rows, b_rows in (
        (1, 8, "rr", 8, 64), (1, 8, "rc", 8, 8), (9, 33, "rc", 16, 40), (rows, columns, "rc", rows, columns),
        (2**31 - 1, 8, "rc", rows, 8), (rows - 1, columns - 1, "rc", rows, columns),
    ):  # fmt: skip
        problem = half(m, n, 64, layout=layout, ldb=-(-n // 8) * 8 if layout == "rr" else 64, ldc=-(-n // 8) * 8)
        a, b, _ = kernel.maps(problem, POINTERS)
        assert (a.box, b.box[:2]) == ((64, a_rows), (64, b_rows))


def test_b_comes_at_once_where_n_is_whole_spans():
    kernel = next(tile for tile in H5_TILES if tile.at_once)
    assert (kernel.tile.BLOCK_M, kernel.tile.BLOCK_N) == (64, 128)
    for n, layout, rank in ((448, "rr", 3), (456, "rr", 2), (448, "rc", 2)):
        problem = half(300, n, 136, layout=layout, ldb=456 if layout == "rr" else 136)
        (launch,) = kernel.launches(problem)
        assert kernel.variant(problem) == "tma"
        assert f"-DB_AT_ONCE={int(rank == 3)}" in launch.unit.flags
        assert launch.unit in kernel.units()
        ((_, b_argument, *_),) = arguments(kernel, problem, POINTERS)
        ((_, b_map),) = b_argument.tensor_maps
        assert (len(b_map.shape), len(b_map.box)) == (rank, rank)


def test_mma_sync_takes_pointers_extents_pitches_and_scalars():
    problem = half(3, 5, 7, lda=2**33, ldb=6, ldc=2**31 + 1, alpha=0.5, beta=-3)
    (packed,) = arguments(H0, problem, POINTERS)
    data = b"".join(argument.data for argument in packed)
    expected = (2**47, 2**40 + 256, 4096, 3, 5, 7, 2**33, 6, 2**31 + 1, 0.5, -3.0)
    assert struct.unpack("<QQQiiiqqqff", data) == expected
    assert not any(argument.tensor_maps for argument in packed)


@every_wgmma
@pytest.mark.parametrize("layout", ["rr", "rc"])
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_wgmma_takes_three_maps_that_the_driver_can_encode(kernel, layout, out):
    problem = half(300, 448, 136, layout=layout, dtype_out=out, lda=144, ldb=456, ldc=512, alpha=0.5, beta=2)
    assert kernel.variant(problem) == "tma"
    (packed,) = arguments(kernel, problem, POINTERS)
    assert [len(argument.data) for argument in packed[:10]] == [128, 128, 128, 8, 4, 4, 4, 8, 4, 4]
    more = [True] * (kernel is H8) + [False] * 4 * (kernel in SPLIT)
    assert [argument.order for argument in packed] == [False] * 10 + more
    data = b"".join(argument.data for argument in packed[3:10])
    assert struct.unpack("<Qiiiqff", data) == (4096, 300, 448, 136, 512, 0.5, 2.0)
    maps = [argument.tensor_maps[0][1] for argument in packed[:3]]
    assert [record.address for record in maps] == [POINTERS.a, POINTERS.b, POINTERS.c]
    assert maps[0].shape == (136, 300)
    assert maps[0].box == (64, kernel.tile.BLOCK_M // max(kernel.tile.CLUSTER_N, 1))
    assert prod(maps[1].shape) == 448 * 136
    assert maps[2].shape == (448, 300)
    for record in maps:
        size = 4 if record.dtype == "float32" else 2
        assert record.box[0] * size == record.swizzle
        assert all(1 <= extent <= 256 for extent in record.box)
        assert all(stride % 16 == 0 and stride < 2**40 for stride in record.strides)
        assert record.address % 16 == 0
    assert maps[2].dtype == out
    assert maps[2].box[1] == (32 if isinstance(kernel, TurnedKernel) else 64)


@every_wgmma
@pytest.mark.parametrize("layout", ["rr", "rc"])
def test_boxes_of_b_make_up_what_the_blocks_of_a_cluster_share(kernel, layout):
    """Elements in one box times boxes asked for, over all blocks of a cluster: BLOCK_K x MMA_N, or a part of it."""
    problem = half(512, 448, 128, layout=layout)
    (packed,) = arguments(kernel, problem, POINTERS)
    box = packed[1].tensor_maps[0][1].box
    stage = (kernel.tile.BLOCK_N if isinstance(kernel, TurnedKernel) else kernel.tile.MMA_N) * kernel.tile.BLOCK_K
    share = stage // max(kernel.tile.CLUSTER_M, 1)
    assert share % prod(box) == 0


@pytest.mark.parametrize(
    ("changes", "vector"),
    [
        ({}, 8),
        ({"lda": 66}, 2),
        ({"ldb": 258}, 2),
        ({"ldc": 257}, 8),
        ({"lda": 65}, 1),
        ({"ldb": 257}, 1),
        ({"align_a": 8}, 2),
        ({"align_b": 4}, 2),
        ({"align_a": 2}, 1),
        ({"align_b": 2}, 1),
        ({"align_c": 2}, 8),
    ],
)
def test_mma_sync_copies_as_wide_as_both_operands_allow(changes, vector):
    problem = half(128, 256, 64).replace(**changes)
    assert H0.variant(problem) == f"vec{vector}"
    (launch,) = H0.launches(problem)
    assert launch.unit.name == f"h0_mma_sync.rr_float16_vec{vector}"
    assert f"-DVECTOR={vector}" in launch.unit.flags


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lda": 65}, "A's pitch is 130 bytes"),
        ({"ldb": 260}, "B's pitch is 520 bytes"),
        ({"ldc": 257}, "C's pitch is 514 bytes"),
        ({"align_a": 8}, "A's base is a multiple of 8 bytes"),
        ({"align_b": 2}, "B's base is a multiple of 2 bytes"),
        ({"align_c": 8}, "C's base is a multiple of 8 bytes"),
        ({"lda": 2**39}, "less than"),
    ],
)
@every_wgmma
def test_what_a_tensor_map_cannot_describe_goes_to_mma_sync(kernel, changes, reason):
    problem = half(128, 256, 64).replace(**changes)
    assert reason in kernel.beyond_tensor_maps(problem)
    assert kernel.rejects(problem) is None
    assert kernel.variant(problem) == f"h0_mma_sync.{H0.variant(problem)}"
    assert kernel.launches(problem) == H0.launches(problem)
    assert kernel.pack(problem, POINTERS) == H0.pack(problem, POINTERS)


@pytest.mark.parametrize(
    ("n", "out", "inside"),
    [
        (257, "float16", True), (260, "float16", True), (261, "float16", True), (264, "float16", False),
        (257, "float32", True), (261, "float32", True), (260, "float32", False), (264, "float32", False),
    ],
)  # fmt: skip
def test_rows_of_c_that_end_inside_sixteen_bytes(n, out, inside):
    """The copy engine writes whole 16-byte pieces: h1, h2 and h5 write such a row's end, the others leave it."""
    problem = half(300, n, 264, layout="rc", dtype_out=out, ldc=264)
    assert {kernel.variant(problem) for kernel in (H1, H2, H5, *H5_TILES)} == {"tma"}
    for kernel in (H6, H7, H8):
        assert kernel.variant(problem) == ("h5_overlapped_launch.tma" if inside else "tma")
    for kernel in (H3, H4):
        assert kernel.variant(problem) == ("h2_cluster_multicast.tma" if inside else "tma")


@pytest.mark.parametrize("kernel", SPLIT, ids=lambda kernel: kernel.name)
def test_a_sum_of_more_blocks_than_a_grid_has_is_refused(kernel):
    cut = dataclasses.replace(kernel, parts=2)
    assert "in 2 parts" in cut.rejects(half(2**20, 2**20, 4096))
    assert cut.rejects(half(2**20, 2**19, 4096)) is None


def test_row_major_b_in_spans_of_32_or_64_columns_needs_whole_spans():
    narrow, whole = half(300, 264, 264), half(300, 320, 264)
    assert H3.variant(narrow) == "h2_cluster_multicast.tma"
    assert {kernel.variant(narrow) for kernel in (H7, H8)} == {"h6_turned_tile.tma"}
    for kernel in (H3, H7, H8):
        assert kernel.variant(narrow.replace(layout="rc", ldb=264)) == "tma"
    assert {kernel.variant(whole) for kernel in WGMMA} == {"tma"}
    assert {kernel.variant(narrow) for kernel in WGMMA if kernel not in (H3, H7, H8)} == {"tma"}


PACKING = pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({"lda": 65}, "tma_packed_a"),
        ({"ldb": 260}, "tma_packed_b"),
        ({"ldc": 257}, "tma_c_by_element"),
        ({"align_a": 8, "align_b": 2}, "tma_packed_ab"),
        ({"align_b": 2, "align_c": 8}, "tma_packed_b_c_by_element"),
        ({"lda": 66, "ldb": 258, "ldc": 260}, "tma_packed_ab_c_by_element"),
        ({"lda": 2**39}, "tma_packed_a"),
        ({"ldc": 2**39}, "tma_c_by_element"),
    ],
)


@every_packed
@PACKING
def test_what_a_tensor_map_cannot_describe_is_copied_or_written_by_element(kernel, changes, variant):
    problem = half(128, 256, 64).replace(**changes)
    assert H5.beyond_tensor_maps(problem)
    assert kernel.runner(problem) is kernel
    assert kernel.rejects(problem) is None
    assert (kernel.variant(problem), kernel.why(problem)) == (variant, "")
    *passes, product = kernel.launches(problem)
    assert len(passes) == ("packed" in variant)
    assert ("-DC_BY_ELEMENT=1" in product.unit.flags) == variant.endswith("c_by_element")
    assert product.entry == "h5_overlapped_launch"
    assert all(launch.overlaps for launch in (*passes, product))
    assert [launch.entry for launch in passes] == ["h9_packed_pass"] * len(passes)
    assert plan(kernel, problem).main_launch is not None
    assert plan(kernel, problem).main_launch.entry == product.entry


@every_packed
@pytest.mark.parametrize("lacking", ["a", "b", "c", "ab", "ac", "bc", "abc"])
@pytest.mark.parametrize("layout", ["rr", "rc"])
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_copies_lie_apart_in_the_workspace_at_pitches_that_tensor_maps_take(kernel, lacking, layout, out):
    m, n, k, b_rows, b_width = (300, 257, 65, 65, 257) if layout == "rr" else (300, 257, 65, 257, 65)
    pitches = {"a": 72, "b": 264 if layout == "rr" else 72, "c": 264}
    odd = {f"ld{name}": pitch + (name in lacking) for name, pitch in pitches.items()}
    problem = half(m, n, k, layout=layout, dtype_out=out, alpha=0.5, beta=2.0, **odd)
    assert kernel.lacking(problem) == lacking
    launches, packed = kernel.launches(problem), kernel.pack(problem, POINTERS)
    assert len(launches) == len(packed) == 1 + (lacking != "c")
    a_map, b_map = (argument.tensor_maps[0][1] for argument in packed[-1][:2])
    assert [one.address for one in (a_map, b_map)] == [
        (POINTERS.workspace + (letter == "b" and "a" in lacking) * 300 * 256) if letter in lacking else given
        for letter, given in (("a", POINTERS.a), ("b", POINTERS.b))
    ]
    sizes = {"a": m * 256, "b": b_rows * (640 if layout == "rr" else 256)}  # pitches of whole lines
    assert launches[0].workspace == sum(-(-size // 256) * 256 for letter, size in sizes.items() if letter in lacking)
    assert a_map.strides == ((256,) if "a" in lacking else (144,))
    assert b_map.strides[0] == (sizes["b"] // b_rows if "b" in lacking else 2 * pitches["b"])
    assert a_map.shape == (k, m)
    # A copy that comes at once is read with its zeros beyond n.
    spans = (64, k, 5) if layout == "rr" else (k, n)
    assert b_map.shape == (spans if kernel.at_once and "b" in lacking else (n, k) if layout == "rr" else (k, n))
    assert [one.address for _, one in packed[-1][2].tensor_maps] == ([] if "c" in lacking else [POINTERS.c])
    data = b"".join(argument.data for argument in packed[-1][2:])
    assert struct.unpack("<Qiiiqff", data[128:]) == (POINTERS.c, m, n, k, problem.ldc, 0.5, 2.0)
    if lacking == "c":
        return
    a, b, blocks = (argument.data for argument in packed[0])
    for letter, given, record, rows in (("a", a, a_map, (m, k)), ("b", b, b_map, (b_rows, b_width))):
        start, to, count, width, pitch, to_pitch = struct.unpack("<QQiiqq", given)
        assert (start, pitch) == (getattr(POINTERS, letter), getattr(problem, f"ld{letter}"))
        assert (to, 2 * to_pitch) == (record.address, record.strides[0])
        assert (count, width) == (rows if letter in lacking else (0, 0))
    (first,) = struct.unpack("<I", blocks)
    assert (first > 0, launches[0].grid[0] > first) == ("a" in lacking, "b" in lacking)


@every_packed
def test_where_tensor_maps_describe_all_h9_is_h5_and_beyond_memory_it_is_h0(kernel):
    tile = kernel.unpacked
    assert (tile.tile, tile.at_once, tile.store_bytes) == (kernel.tile, kernel.at_once, kernel.store_bytes)
    aligned = half(300, 448, 136)
    assert kernel.variant(aligned) == f"{tile.name}.tma"
    assert kernel.launches(aligned) == tile.launches(aligned)
    assert kernel.pack(aligned, POINTERS) == tile.pack(aligned, POINTERS)
    assert "as they are" in kernel.why(aligned)
    vast = half(2**22, 1, 2**18 - 1)
    assert kernel.variant(vast) == "h0_mma_sync.vec1"
    assert f"at most {COPY_LIMIT}" in kernel.why(vast)
    assert kernel.launches(vast) == H0.launches(vast)
    assert kernel.pack(vast, POINTERS) == H0.pack(vast, POINTERS)
    assert kernel.variant(half(2**20, 1, 2**18 - 1)) == "tma_packed_ab_c_by_element"


@every_packed
@pytest.mark.parametrize(
    ("m", "k"), [(1, 1), (8, 64), (9, 65), (4095, 4095), (7, 2**31 - 1), (2**31 - 1, 7), (2**20, 200_001)]
)
def test_a_pass_has_a_warp_for_each_strip_of_eight_rows_as_long_as_blocks_suffice(kernel, m, k):
    """By the arithmetic of the source: strips of 64 elements first, then groups of rows, eight warps a block."""
    problem = half(m, 8, k, layout="rc", lda=k + (k % 8 == 0), ldb=-(-k // 8) * 8)
    pitch = kernel.copy_pitch(k)
    assert pitch >= k
    assert pitch - k < (64 if k > 64 else 8)
    (blocks,) = kernel.packing_blocks(problem).values()
    strips, groups = -(-pitch // 64), -(-m // 8)
    assert 8 * blocks // strips >= min(groups, 1)
    assert 8 * blocks < 2**32
    if strips * groups <= 8 * PASS_BLOCKS:
        assert 8 * (blocks - 1) < strips * groups <= 8 * blocks


def test_a_copy_of_row_major_b_comes_at_once_whatever_n():
    (kernel,) = (one for one in PACKED if one.at_once)
    for n, changes, at_once in (
        (449, {}, True), (456, {"align_b": 2}, True), (456, {"align_a": 2}, False), (448, {"align_a": 2}, True),
        (449, {"layout": "rc"}, False), (33, {}, False),
    ):  # fmt: skip
        problem = half(300, n, 136, **changes)
        *_, product = kernel.launches(problem)
        assert f"-DB_AT_ONCE={int(at_once)}" in product.unit.flags
        assert product.unit in kernel.units()
        record = kernel.pack(problem, POINTERS)[-1][1].tensor_maps[0][1]
        assert len(record.shape) == (3 if at_once else 2)
        if at_once:
            assert record.shape == (64, 136, ceil(n / 64))


@every_kernel
@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (half(8, 8, 8, layout="cr"), "layout is cr"),
        (half(8, 8, 8, layout="cc"), "takes rr, rc"),
        (Problem(m=8, n=8, k=8), "data types"),
        (half(2**31 - 1, 2**31 - 1, 8), str(MAX_GRID_X)),
    ],
)
def test_refusals_name_what_is_wrong(kernel, problem, reason):
    with pytest.raises(RejectedError, match=reason) as caught:
        plan(kernel, problem)
    assert kernel.name in str(caught.value)


@every_kernel
def test_both_output_types_are_taken_and_scale_only_is_shared(kernel):
    contender = KernelContender.of(kernel)
    for out in ("float16", "float32"):
        problem = contender.problem(8, 8, 8, dtype_out=out)
        assert contender.rejects(problem) is None
        assert contender.variant(problem.replace(alpha=0.0)) == "scale_only"


def test_the_default_set_is_timed_with_fp16_output_against_cublas():
    default = [kernel.name for kernel in TENSOR if kernel.in_default_set]
    assert default == [kernel.name for kernel in (H0, H1, H2, H3, H5)] + ["h5_64x128", H7.name]
    chosen = contenders()
    for text, layout in (("4096", "rr"), ("4096@layout=rc", "rc")):
        found = [g for g in groups([c for c in chosen if c.in_default_set], parse(text)[0]) if g.track == "fp16_tensor"]
        mine = [g for g in found if any(c.name in NAMES for c in g.contenders)]
        assert len(mine) == 1
        assert mine[0].problem.layout == layout
        assert mine[0].problem.dtype_out == "float16"
        names = [c.name for c in mine[0].contenders]
        assert [name for name in names if name in NAMES] == default
        assert {"cublas_fp16", "torch_fp16"} <= set(names)
