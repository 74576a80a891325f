"""Every hand-written kernel: the FP32 ladder, in the order in which one rung builds on the other, then the Tensor
Core kernels of handwritten/tensor_catalog.py.

Adding a rung is one .cu file and one entry here. Tile extents have no other home: they reach the
source as -D macros, and the source refuses to build without them. Dispatchers have no source: they pick among the rest.
"""

from __future__ import annotations

import difflib

from handwritten import tensor_catalog
from handwritten.dispatch import DispatchKernel
from handwritten.kernel import HandwrittenKernel, Rule
from handwritten.pass_tile import PackingPassKernel, TransposingPassKernel
from handwritten.split_tile import BlockSplitKernel, StreamRowsKernel
from handwritten.stream_tile import ClusterSplitKernel, StreamKTileKernel, StreamTileKernel
from handwritten.tensor_catalog import TensorKernel
from handwritten.wide_tile import StreamKKernel, WideTileKernel
from kernel.contract import Tile
from kernel.errors import CatalogError

BLOCK_TILE = Tile(BLOCK_M=128, BLOCK_N=128, BLOCK_K=16, WARP_M=64, WARP_N=32, THREAD_M=8, THREAD_N=8)
TWO_STAGES = Tile(
    BLOCK_M=128, BLOCK_N=128, BLOCK_K=16, WARP_M=64, WARP_N=32, THREAD_M=8, THREAD_N=8, NUM_STAGES=2
)  # fmt: skip
WIDE_TILE = Tile(
    BLOCK_M=128, BLOCK_N=256, BLOCK_K=16, WARP_M=64, WARP_N=64, THREAD_M=8, THREAD_N=16, NUM_STAGES=3
)  # fmt: skip

NARROW_TILE = Tile(
    BLOCK_M=128, BLOCK_N=128, BLOCK_K=16, WARP_M=64, WARP_N=64, THREAD_M=8, THREAD_N=16, NUM_STAGES=3
)  # fmt: skip
DRIFT_TILE = Tile(
    BLOCK_M=128, BLOCK_N=256, BLOCK_K=16, WARP_M=64, WARP_N=64, THREAD_M=8, THREAD_N=16, NUM_STAGES=4
)  # fmt: skip
ASYNC_TILE = Tile(
    BLOCK_M=128, BLOCK_N=256, BLOCK_K=8, WARP_M=64, WARP_N=64, THREAD_M=8, THREAD_N=16, NUM_STAGES=5
)  # fmt: skip
PASS_TILE = Tile(
    BLOCK_M=128, BLOCK_N=256, BLOCK_K=16, WARP_M=64, WARP_N=64, THREAD_M=8, THREAD_N=16, NUM_STAGES=6
)  # fmt: skip
SMALL_TILE = Tile(
    BLOCK_M=64, BLOCK_N=64, BLOCK_K=16, WARP_M=32, WARP_N=32, THREAD_M=4, THREAD_N=8, NUM_STAGES=4
)  # fmt: skip
FEW_ROWS_TILE = Tile(
    BLOCK_M=16, BLOCK_N=256, BLOCK_K=16, WARP_M=16, WARP_N=128, THREAD_M=8, THREAD_N=8, NUM_STAGES=4
)  # fmt: skip
FEW_COLUMNS_TILE = Tile(
    BLOCK_M=128, BLOCK_N=16, BLOCK_K=16, WARP_M=64, WARP_N=16, THREAD_M=8, THREAD_N=4, NUM_STAGES=4
)  # fmt: skip
STREAMED_ROWS_TILE = Tile(
    BLOCK_M=16, BLOCK_N=128, BLOCK_K=8, WARP_M=16, WARP_N=128, THREAD_M=16, THREAD_N=4, NUM_STAGES=4
)  # fmt: skip
CLUSTERED_ROWS_TILE = Tile(
    BLOCK_M=16, BLOCK_N=128, BLOCK_K=4, WARP_M=16, WARP_N=128, THREAD_M=16, THREAD_N=4, NUM_STAGES=4
)  # fmt: skip
ROW_128_TILE = Tile(
    BLOCK_M=1, BLOCK_N=128, BLOCK_K=8, WARP_M=1, WARP_N=128, THREAD_M=1, THREAD_N=4, NUM_STAGES=3
)  # fmt: skip
ROW_256_TILE = Tile(
    BLOCK_M=1, BLOCK_N=256, BLOCK_K=8, WARP_M=1, WARP_N=256, THREAD_M=1, THREAD_N=8, NUM_STAGES=3
)  # fmt: skip
ROW_64_TILE = Tile(
    BLOCK_M=1, BLOCK_N=64, BLOCK_K=16, WARP_M=1, WARP_N=64, THREAD_M=1, THREAD_N=4, NUM_STAGES=3
)  # fmt: skip
ROW_32_TILE = Tile(
    BLOCK_M=1, BLOCK_N=32, BLOCK_K=32, WARP_M=1, WARP_N=32, THREAD_M=1, THREAD_N=4, NUM_STAGES=3
)  # fmt: skip
ROW_32_DEEP_TILE = Tile(
    BLOCK_M=1, BLOCK_N=32, BLOCK_K=32, WARP_M=1, WARP_N=32, THREAD_M=1, THREAD_N=4, NUM_STAGES=5
)  # fmt: skip
SPLIT_TILE = Tile(
    BLOCK_M=64, BLOCK_N=128, BLOCK_K=32, WARP_M=64, WARP_N=64, THREAD_M=8, THREAD_N=16, NUM_STAGES=4
)  # fmt: skip
SPLIT_SMALL_TILE = Tile(
    BLOCK_M=32, BLOCK_N=64, BLOCK_K=64, WARP_M=32, WARP_N=64, THREAD_M=8, THREAD_N=8, NUM_STAGES=4
)  # fmt: skip
SPLIT_HALF_TILE = Tile(
    BLOCK_M=32, BLOCK_N=64, BLOCK_K=32, WARP_M=32, WARP_N=64, THREAD_M=8, THREAD_N=8, NUM_STAGES=4
)  # fmt: skip
SPLIT_SQUARE_TILE = Tile(
    BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, WARP_M=64, WARP_N=32, THREAD_M=8, THREAD_N=8, NUM_STAGES=5
)  # fmt: skip
SPLIT_TALL_TILE = Tile(
    BLOCK_M=128, BLOCK_N=64, BLOCK_K=32, WARP_M=64, WARP_N=64, THREAD_M=8, THREAD_N=16, NUM_STAGES=4
)  # fmt: skip
SPLIT_COLUMNS_TILE = Tile(
    BLOCK_M=64, BLOCK_N=16, BLOCK_K=64, WARP_M=64, WARP_N=16, THREAD_M=8, THREAD_N=4, NUM_STAGES=3
)  # fmt: skip
HINT = "cutlass"
"""The word in an entry symbol that ptxas 13.0 looks for; see ``HandwrittenKernel.entry_name_hint``."""

SCALAR_ONLY = (1,)
"""Widths of kernels that make no use of wider accesses; such kernels have one build and an empty variant."""

TWO_BUFFERS = Rule(
    lambda t: t.NUM_STAGES == 2, "one buffer is computed from while the other is filled (NUM_STAGES = 2)"
)
ODD_PITCH = Rule(lambda t: t.BLOCK_K % 2 == 0, "a row padded by one must have an odd pitch (BLOCK_K even)")
EIGHT_ROWS = Rule(lambda t: t.THREAD_M == 8, "the swizzle takes its row bits from 3 up (THREAD_M = 8)")
EIGHT_COLUMNS = Rule(lambda t: t.BLOCK_K % 8 == 0, "a swizzled column must stay inside its row (BLOCK_K % 8)")
FOUR_STEPS = Rule(lambda t: t.BLOCK_K % 4 == 0, "four steps of k are read at once (BLOCK_K % 4)")
FOUR_CHUNKS = Rule(lambda t: t.BLOCK_K % 16 == 0, "a swizzled chunk must stay inside its row (BLOCK_K % 16)")
FOUR_ROWS = Rule(lambda t: t.THREAD_M % 4 == 0, "a thread reads A four rows at a time (THREAD_M % 4)")
TRANSPOSABLE = Rule(
    lambda t: t.BLOCK_K == 16 and t.BLOCK_M % 32 == 0,
    "the swizzle spreads the four chunks of a row of A over 32 banks (BLOCK_K = 16, BLOCK_M % 32)",
)
WIDE_RULES = (
    FOUR_ROWS,
    Rule(lambda t: t.NUM_STAGES >= 2, "one tile is computed from while others arrive (NUM_STAGES >= 2)"),
)
STREAM_RULES = (
    FOUR_ROWS,
    Rule(
        lambda t: t.NUM_STAGES >= 3, "a tile is stored to while one is computed from and one arrives (NUM_STAGES >= 3)"
    ),
)
ASYNC_RULES = (
    *STREAM_RULES,
    Rule(lambda t: t.BLOCK_K == 8, "a warp stores 4 rows x 8 steps of A to 32 banks at once (BLOCK_K = 8)"),
)
SPLIT_RULES = (
    FOUR_ROWS,
    Rule(
        lambda t: t.NUM_STAGES >= 3,
        "the next stage is read from before this one is done, and one arrives (NUM_STAGES >= 3)",
    ),
)
DRIFT_RULES = (
    *STREAM_RULES,
    Rule(lambda t: t.NUM_STAGES >= 4, "a tile may be read by who is behind while two arrive (NUM_STAGES >= 4)"),
)
STAGED_WRITE = Rule(
    lambda t: t.BLOCK_M * 4 // t.THREAD_M * (t.BLOCK_N + 4) <= t.NUM_STAGES * t.BLOCK_K * (t.BLOCK_M + 4 + t.BLOCK_N),
    "a group of rows on its way to C must fit where the tiles were (NUM_STAGES, BLOCK_K)",
)

EARLY_LOADS = StreamKTileKernel(
    name="v14_early_loads",
    tile=WIDE_TILE,
    summary="v7's tile with v12's stream-K: one wait a tile at the loop's top, loads of A kept before it",
    in_default_set=False,
    rules=STREAM_RULES,
    largest_timed=4096,
)
EARLY_LOADS_HINT = StreamKTileKernel(
    name="v14_early_loads_hint",
    stem="v14_early_loads",
    entry_name_hint=HINT,
    tile=WIDE_TILE,
    summary="one wait a tile at the loop's top, loads of A kept before it, stream-K; entry name hints ptxas",
    rules=STREAM_RULES,
)
ONE_BARRIER = TransposingPassKernel(
    name="v20_one_barrier",
    tile=PASS_TILE,
    group_m=32,
    summary="v18 with v19's order, and one barrier a tile of those that multiply and the warp that loads",
    fallback=EARLY_LOADS,
    in_default_set=False,
    rules=STREAM_RULES,
    largest_timed=4096,
)
ONE_BARRIER_HINT = TransposingPassKernel(
    name="v20_one_barrier_hint",
    stem="v20_one_barrier",
    entry_name_hint=HINT,
    tile=PASS_TILE,
    group_m=32,
    summary="v18 with v19's order and one barrier a tile for all; entry name hints ptxas",
    fallback=EARLY_LOADS_HINT,
    rules=STREAM_RULES,
)


LADDER: tuple[HandwrittenKernel, ...] = (
    HandwrittenKernel(
        name="v0_naive",
        tile=Tile(BLOCK_M=16, BLOCK_N=16),
        summary="one thread an element, every reuse left to the caches",
        widths=SCALAR_ONLY,
        largest_timed=4096,
    ),
    HandwrittenKernel(
        name="v1_thread_tile",
        tile=Tile(BLOCK_M=64, BLOCK_N=64, THREAD_M=4, THREAD_N=4),
        summary="4 x 4 elements a thread: a quarter of the loads",
        widths=SCALAR_ONLY,
        largest_timed=4096,
    ),
    HandwrittenKernel(
        name="v2_block_tile",
        tile=BLOCK_TILE,
        summary="block tile in shared memory, warp tile, 8 x 8 thread tile",
        largest_timed=4096,
    ),
    HandwrittenKernel(
        name="v3_double_buffer",
        tile=TWO_STAGES,
        summary="two buffers, cp.async fills one while the other is computed from",
        rules=(TWO_BUFFERS,),
        largest_timed=4096,
    ),
    HandwrittenKernel(
        name="v4_pad",
        tile=TWO_STAGES,
        summary="A's rows padded by one column: 8-way conflicts become 2-way",
        vector_operands="bc",
        rules=(TWO_BUFFERS, ODD_PITCH),
        largest_timed=4096,
    ),
    HandwrittenKernel(
        name="v4_swizzle",
        tile=TWO_STAGES,
        summary="A's columns XORed with row bits 3 to 5: no conflicts",
        swizzle="column ^ row[5:3]",
        vector_operands="bc",
        rules=(TWO_BUFFERS, EIGHT_ROWS, EIGHT_COLUMNS),
        largest_timed=4096,
    ),
    HandwrittenKernel(
        name="v5_register_block",
        tile=TWO_STAGES,
        summary="four k steps read ahead: A along k by LDS.128",
        rules=(TWO_BUFFERS, FOUR_STEPS),
        largest_timed=4096,
    ),
    HandwrittenKernel(
        name="v5_chunk_swizzle",
        tile=TWO_STAGES,
        summary="v5 with A's 16-byte chunks XORed with row bits 3 and 4: no conflicts",
        swizzle="chunk ^ row[4:3]",
        rules=(TWO_BUFFERS, EIGHT_ROWS, FOUR_CHUNKS),
        largest_timed=4096,
    ),
    HandwrittenKernel(
        name="v6_transposed_split",
        tile=TWO_STAGES,
        summary="A transposed in shared memory, thread rows split 4 + 4 across the warp tile",
        swizzle="row[4:3] ^ chunk",
        rules=(TWO_BUFFERS, FOUR_ROWS, TRANSPOSABLE),
    ),
    HandwrittenKernel(
        name="v6_transposed_contiguous",
        tile=TWO_STAGES,
        summary="v6 with eight adjacent rows a thread",
        swizzle="row[4:3] ^ chunk",
        rules=(TWO_BUFFERS, FOUR_ROWS, TRANSPOSABLE),
        largest_timed=4096,
    ),
    WideTileKernel(
        name="v7_wide_tile",
        tile=WIDE_TILE,
        summary="8 x 16 thread tile in a 128 x 256 block tile, three stages, one barrier a tile",
        rules=WIDE_RULES,
    ),
    StreamKKernel(
        name="v8_stream_k",
        largest_timed=4096,
        tile=WIDE_TILE,
        summary="v7 with the tiles of the last two waves cut along k, so that no SM idles",
        rules=(*WIDE_RULES, STAGED_WRITE),
    ),
    StreamTileKernel(
        name="v9_two_blocks",
        tile=NARROW_TILE,
        summary="v7 with half the tile at two blocks an SM, and no guard in the main loop",
        in_default_set=False,
        rules=STREAM_RULES,
        largest_timed=4096,
    ),
    StreamTileKernel(
        name="v9_two_blocks_hint",
        stem="v9_two_blocks",
        entry_name_hint=HINT,
        tile=NARROW_TILE,
        summary="half of v7's tile at two blocks an SM, no guard in the main loop; entry name hints ptxas",
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    StreamKTileKernel(
        name="v10_drift",
        tile=DRIFT_TILE,
        summary="v9's loop on 128 x 256 with warps that drift: an mbarrier in mid-tile instead of a barrier",
        in_default_set=False,
        rules=DRIFT_RULES,
        largest_timed=4096,
    ),
    StreamKTileKernel(
        name="v10_drift_hint",
        stem="v10_drift",
        entry_name_hint=HINT,
        tile=DRIFT_TILE,
        summary="v7's tile with stream-K and warps that drift: an mbarrier in mid-tile; entry name hints ptxas",
        in_default_set=False,
        rules=DRIFT_RULES,
    ),
    ClusterSplitKernel(
        name="v11_cluster_split",
        tile=NARROW_TILE,
        summary="v9's tile split along k over a cluster, summed through its shared memory",
        in_default_set=False,
        rules=STREAM_RULES,
        largest_timed=4096,
    ),
    ClusterSplitKernel(
        name="v11_cluster_split_hint",
        stem="v11_cluster_split",
        entry_name_hint=HINT,
        tile=NARROW_TILE,
        summary="v9's tile split along k over a cluster, summed in shared memory; entry name hints ptxas",
        in_default_set=False,
        largest_timed=4096,
        rules=STREAM_RULES,
    ),
    ClusterSplitKernel(
        name="v11_small",
        stem="v11_cluster_split",
        tile=SMALL_TILE,
        summary="v11 with a 64 x 64 tile, for C that few tiles cover",
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    ClusterSplitKernel(
        name="v11_small_hint",
        stem="v11_cluster_split",
        entry_name_hint=HINT,
        tile=SMALL_TILE,
        summary="v11_small; entry name hints ptxas",
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    ClusterSplitKernel(
        name="v11_few_rows",
        stem="v11_cluster_split",
        tile=FEW_ROWS_TILE,
        summary="v11 with a 16 x 256 tile, for m up to 16",
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    ClusterSplitKernel(
        name="v11_few_columns",
        stem="v11_cluster_split",
        tile=FEW_COLUMNS_TILE,
        summary="v11 with a 128 x 16 tile, for n up to 16",
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    StreamKTileKernel(
        name="v12_spread",
        tile=NARROW_TILE,
        summary="v9 with stream-K, and its loads spread over a tile's steps without a branch",
        in_default_set=False,
        rules=STREAM_RULES,
        largest_timed=4096,
    ),
    StreamKTileKernel(
        name="v12_spread_hint",
        stem="v12_spread",
        entry_name_hint=HINT,
        tile=NARROW_TILE,
        summary="v9 with stream-K behind whole tiles, loads spread over a tile's steps; entry name hints ptxas",
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    StreamKTileKernel(
        name="v13_async_k8",
        tile=ASYNC_TILE,
        summary="v12's stream-K, 8 steps a tile, A by 4-byte cp.async, first fragments read a step early",
        vector_operands="bc",
        rules=ASYNC_RULES,
    ),
    StreamKTileKernel(
        name="v13_async_k8_hint",
        stem="v13_async_k8",
        entry_name_hint=HINT,
        tile=ASYNC_TILE,
        summary="the same code as v13_async_k8; entry name hints ptxas",
        in_default_set=False,
        vector_operands="bc",
        largest_timed=4096,
        rules=ASYNC_RULES,
    ),
    StreamTileKernel(
        name="v13_async_k8_grid",
        tile=ASYNC_TILE,
        summary="v13 with one block a tile, for grids of whole waves",
        vector_operands="bc",
        in_default_set=False,
        rules=ASYNC_RULES,
    ),
    StreamTileKernel(
        name="v13_async_k8_grid_hint",
        stem="v13_async_k8_grid",
        entry_name_hint=HINT,
        tile=ASYNC_TILE,
        summary="v13_grid; entry name hints ptxas",
        vector_operands="bc",
        in_default_set=False,
        rules=ASYNC_RULES,
    ),
    EARLY_LOADS,
    EARLY_LOADS_HINT,
    StreamTileKernel(
        name="v14_early_loads_grid",
        tile=WIDE_TILE,
        summary="v14 with one block a tile, for grids of whole waves",
        in_default_set=False,
        rules=STREAM_RULES,
        largest_timed=4096,
    ),
    StreamTileKernel(
        name="v14_early_loads_grid_hint",
        stem="v14_early_loads_grid",
        entry_name_hint=HINT,
        tile=WIDE_TILE,
        summary="v14 with one block a tile; entry name hints ptxas",
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    StreamTileKernel(
        name="v15_late_loads_grid",
        tile=WIDE_TILE,
        summary="v14's grid build with loads of A beside B's copies, after the barrier",
        in_default_set=False,
        rules=STREAM_RULES,
        largest_timed=4096,
    ),
    StreamTileKernel(
        name="v15_late_loads_grid_hint",
        stem="v15_late_loads_grid",
        entry_name_hint=HINT,
        tile=WIDE_TILE,
        summary="v14's grid build with loads of A after the barrier; entry name hints ptxas",
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    StreamRowsKernel(
        name="v16_stream_rows",
        tile=STREAMED_ROWS_TILE,
        k_warps=12,
        resident=1,
        enough_blocks=80,
        most_slices=2,
        summary="each warp streams rows of B through a ring of its own past 16 rows of A, for m up to 16",
        in_default_set=False,
    ),
    StreamRowsKernel(
        name="v16_rows_clustered",
        stem="v16_stream_rows",
        tile=CLUSTERED_ROWS_TILE,
        k_warps=8,
        resident=2,
        enough_blocks=192,
        summary="v16 at two blocks an SM, in clusters of up to eight",
        in_default_set=False,
    ),
    StreamRowsKernel(
        name="v16_row_128",
        stem="v16_stream_rows",
        tile=ROW_128_TILE,
        k_warps=16,
        resident=1,
        slices=1,
        summary="v16 with one row, a block for each 128 columns",
        in_default_set=False,
    ),
    StreamRowsKernel(
        name="v16_row_128_pair",
        stem="v16_stream_rows",
        tile=ROW_128_TILE,
        k_warps=16,
        resident=1,
        slices=2,
        summary="v16 with one row, two blocks for each 128 columns",
        in_default_set=False,
    ),
    StreamRowsKernel(
        name="v16_row_256",
        stem="v16_stream_rows",
        tile=ROW_256_TILE,
        k_warps=8,
        resident=2,
        enough_blocks=96,
        summary="v16 with one row, clusters for each 256 columns",
        in_default_set=False,
    ),
    StreamRowsKernel(
        name="v16_row_64",
        stem="v16_stream_rows",
        tile=ROW_64_TILE,
        k_warps=8,
        resident=2,
        slices=1,
        prefetched=2,
        summary="v16 with one row, a block for each 64 columns; half of a warp takes other rows of B",
        in_default_set=False,
    ),
    StreamRowsKernel(
        name="v16_row_32",
        stem="v16_stream_rows",
        tile=ROW_32_TILE,
        k_warps=8,
        resident=2,
        slices=1,
        prefetched=2,
        summary="v16 with one row, a block for each 32 columns; a quarter of a warp goes along n",
        in_default_set=False,
    ),
    StreamRowsKernel(
        name="v16_row_32_deep",
        stem="v16_stream_rows",
        tile=ROW_32_DEEP_TILE,
        k_warps=8,
        resident=1,
        slices=1,
        prefetched=2,
        summary="v16_row_32 at one block an SM, with twice as much of B in flight in each",
        in_default_set=False,
    ),
    BlockSplitKernel(
        name="v17_block_split",
        tile=SPLIT_TILE,
        k_groups=4,
        summary="v13's loop on a 64 x 128 tile that four groups of warps share, each with steps of its own",
        in_default_set=False,
        rules=SPLIT_RULES,
        largest_timed=4096,
    ),
    BlockSplitKernel(
        name="v17_block_split_hint",
        stem="v17_block_split",
        entry_name_hint=HINT,
        tile=SPLIT_TILE,
        k_groups=4,
        summary="v13's loop on 64 x 128, four groups of warps with steps of their own; entry name hints ptxas",
        rules=SPLIT_RULES,
        largest_timed=2048,
    ),
    BlockSplitKernel(
        name="v17_small",
        stem="v17_block_split",
        tile=SPLIT_SMALL_TILE,
        k_groups=8,
        summary="v17 with a 32 x 64 tile and eight groups of one warp",
        in_default_set=False,
        rules=SPLIT_RULES,
    ),
    BlockSplitKernel(
        name="v17_small_hint",
        stem="v17_block_split",
        entry_name_hint=HINT,
        tile=SPLIT_SMALL_TILE,
        k_groups=8,
        summary="v17_small; entry name hints ptxas",
        in_default_set=False,
        rules=SPLIT_RULES,
    ),
    BlockSplitKernel(
        name="v17_half",
        stem="v17_block_split",
        tile=SPLIT_HALF_TILE,
        k_groups=4,
        resident=2,
        summary="v17_small with four groups, at two blocks an SM",
        in_default_set=False,
        rules=SPLIT_RULES,
    ),
    BlockSplitKernel(
        name="v17_square",
        stem="v17_block_split",
        tile=SPLIT_SQUARE_TILE,
        k_groups=4,
        summary="v17 with a 64 x 64 tile",
        in_default_set=False,
        rules=SPLIT_RULES,
    ),
    BlockSplitKernel(
        name="v17_tall",
        stem="v17_block_split",
        tile=SPLIT_TALL_TILE,
        k_groups=4,
        summary="v17 with a 128 x 64 tile, for C of few columns",
        in_default_set=False,
        rules=SPLIT_RULES,
    ),
    BlockSplitKernel(
        name="v17_few_columns",
        stem="v17_block_split",
        tile=SPLIT_COLUMNS_TILE,
        k_groups=8,
        resident=2,
        summary="v17 with a 64 x 16 tile, for n up to 16",
        in_default_set=False,
        rules=SPLIT_RULES,
    ),
    TransposingPassKernel(
        name="v18_transposing_pass",
        tile=PASS_TILE,
        summary="A transposed by a launch before, then TMA for both operands by one thread, and v14's stream-K",
        fallback=EARLY_LOADS,
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    TransposingPassKernel(
        name="v18_transposing_pass_hint",
        stem="v18_transposing_pass",
        entry_name_hint=HINT,
        tile=PASS_TILE,
        summary="A transposed by a launch before, TMA for both operands, stream-K; entry name hints ptxas",
        fallback=EARLY_LOADS_HINT,
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    StreamTileKernel(
        name="v19_down_columns",
        tile=WIDE_TILE,
        group_m=8,
        summary="v14's grid build whose FFMAs go down pairs of columns, tiles in groups of eight rows",
        in_default_set=False,
        rules=STREAM_RULES,
        largest_timed=4096,
    ),
    StreamTileKernel(
        name="v19_down_columns_hint",
        stem="v19_down_columns",
        entry_name_hint=HINT,
        tile=WIDE_TILE,
        group_m=8,
        summary="v14_grid with FFMAs down pairs of columns, tiles in groups; entry name hints ptxas",
        rules=STREAM_RULES,
    ),
    ONE_BARRIER,
    ONE_BARRIER_HINT,
    PackingPassKernel(
        name="v21_packed",
        tile=PASS_TILE,
        group_m=32,
        summary="v20 with B copied to a pitch that the copy engine takes, where its own is none",
        fallback=ONE_BARRIER,
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    PackingPassKernel(
        name="v21_packed_hint",
        stem="v21_packed",
        entry_name_hint=HINT,
        tile=PASS_TILE,
        group_m=32,
        summary="v20 with B copied to a pitch for the copy engine, where needed; entry name hints ptxas",
        fallback=ONE_BARRIER_HINT,
        in_default_set=False,
        rules=STREAM_RULES,
    ),
    HandwrittenKernel(
        name="s1_smem_only",
        tile=Tile(BLOCK_M=32, BLOCK_N=32, BLOCK_K=32),
        summary="v0 with its operands in shared memory",
        widths=SCALAR_ONLY,
        largest_timed=4096,
    ),
    HandwrittenKernel(
        name="s2_thread_column",
        tile=Tile(BLOCK_M=64, BLOCK_N=64, BLOCK_K=8, THREAD_M=8, THREAD_N=1),
        summary="s1 with eight rows of one column a thread",
        widths=SCALAR_ONLY,
        largest_timed=4096,
        rules=(Rule(lambda t: t.THREAD_N == 1, "a thread has rows of one column (THREAD_N = 1)"),),
    ),
    HandwrittenKernel(
        name="s3_register_staged",
        tile=TWO_STAGES,
        summary="v3 with registers instead of cp.async on the way to shared memory",
        rules=(TWO_BUFFERS,),
        largest_timed=4096,
    ),
    HandwrittenKernel(
        name="s4_block64",
        tile=Tile(BLOCK_M=64, BLOCK_N=64, BLOCK_K=16, WARP_M=64, WARP_N=32, THREAD_M=8, THREAD_N=8),
        summary="v2 with a 64 x 64 block tile: half the reuse",
        largest_timed=4096,
    ),
)

KERNELS: tuple[HandwrittenKernel | TensorKernel, ...] = (*LADDER, *tensor_catalog.KERNELS)


DISPATCHERS: tuple[DispatchKernel, ...] = (
    DispatchKernel(
        name="simt_dispatch",
        track="fp32_simt",
        instruction="ffma",
        arch="sm_90a",
        tile=Tile(),
        summary="the kernel of this ladder that a table tuned beforehand names for the shape",
        candidates=LADDER,
        defaults=("v7_wide_tile",),
    ),
    DispatchKernel(
        name="fp16_dispatch",
        track="fp16_tensor",
        instruction="wgmma",
        arch="sm_90a",
        tile=Tile(),
        dtype_in="float16",
        dtype_out="float16",
        layouts=("rr", "rc"),
        summary="the Tensor Core kernel that a table tuned beforehand names for the shape",
        candidates=tensor_catalog.KERNELS,
        defaults=("h3_wide_tile",),
    ),
)


def get(name: str) -> HandwrittenKernel | TensorKernel | DispatchKernel:
    """The kernel or dispatcher called ``name``.

    Raises:
        CatalogError: there is none; the text gives the nearest name.
    """
    known = {kernel.name: kernel for kernel in (*KERNELS, *DISPATCHERS)}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise CatalogError(f"no hand-written kernel is called {name!r}; the nearest is {near[0]}")
    return known[name]
