// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds a second, small tile to h6: the last rows of C are cut into 128 x 128 tiles, so many of them that the last
// wave of blocks is as full as the others. Limited by power. Refuses what h6 refuses.
#include "turned_epilogue.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(MMA_M) || !defined(MMA_N) || \
    !defined(MMA_K) || !defined(NUM_STAGES) || !defined(CLUSTER_N) || !defined(GROUP_M)
#error "tile extents and GROUP_M come from handwritten/tensor_catalog.py"
#endif
constexpr int WARPGROUP = 128;
constexpr int HALVES = 2;  // m64 parts of a warpgroup's columns
constexpr int GROUPS = BLOCK_N / (HALVES * MMA_M);
constexpr int THREADS = GROUPS * WARPGROUP;
constexpr int STEPS = BLOCK_K / MMA_K;
constexpr int SPAN = 64;                         // FP16 elements in the 128 bytes that the swizzle spans
constexpr int EIGHT_ROWS = 8 * SPAN * 2;         // bytes: the swizzle's period
constexpr int SLAB_BYTES = MMA_M * BLOCK_K * 2;  // B: 64 columns by a stage's k, whichever of them lies along the span
constexpr int B_BYTES = BLOCK_N * BLOCK_K * 2, A_BYTES = BLOCK_M * BLOCK_K * 2, STAGE_BYTES = B_BYTES + A_BYTES;
constexpr int A_STEP_BYTES = MMA_K * 2;                                      // k lies along the span ...
constexpr int B_STEP_BYTES = B_COLUMN_MAJOR ? MMA_K * 2 : MMA_K * SPAN * 2;  // ... or across its rows
constexpr int SHARE_M = BLOCK_M / CLUSTER_N;     // rows of A that each block of a cluster brings to all
constexpr int SMALL_EXTENT = 128, SMALL_SHARE = SMALL_EXTENT / CLUSTER_N;  // rows and columns of a small tile
constexpr int SMALL_BYTES = 2 * SMALL_EXTENT * BLOCK_K * 2;
constexpr int BOX_COLS = B_COLUMN_MAJOR ? 128 : SPAN;  // of B in one box
enum Place { NONE, SMALL, LARGE };                     // what kind of tile lies there
constexpr int PLACES = NUM_STAGES + 1;
static_assert(MMA_M == 64 && MMA_K == 16, "the shape of wgmma on FP16");
static_assert(BLOCK_N == 256, "two warpgroups with two halves each: 65,536 registers");
static_assert(BLOCK_M == MMA_N && BLOCK_M <= 224, "one wgmma spans the block tile, and 224 accumulators fit");
static_assert(BLOCK_K == SPAN && SHARE_M % 8 == 0, "a share is whole swizzle periods");
static_assert(GROUP_M % CLUSTER_N == 0, "a cluster's tiles lie in one group");
static_assert(NUM_STAGES >= 3, "one stage is multiplied, one waits, one is refilled");

// Tiles of clusters, whose blocks lie side by side: first large ones, then small ones below them. Counted by the
// host, since the registers are full.
struct Waves {
    unsigned large_rows, large_cols, small_rows, small_cols;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    h7_filled_waves(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                    const __grid_constant__ TensorMap c_map, Out* C, int m, int n, int k, long long ldc,
                    float alpha, float beta, const __grid_constant__ TensorMap a_small_map, Waves waves) {
    extern __shared__ unsigned char shared[];
    // The swizzle turns on address bits 7 to 9, so stages and store buffers start at multiples of 1,024.
    const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t stores = stages + NUM_STAGES * STAGE_BYTES;
    const uint32_t full = stores + GROUPS * STORE_BUFFERS * STORE_BYTES;  // the stage's bytes are there
    const uint32_t empty = full + NUM_STAGES * 8;                         // multiplied, in all blocks
    const uint32_t places = (empty + NUM_STAGES * 8 + 15) & ~15u;         // of tiles: see Place

    if (threadIdx.x == 0) {
        prefetch_map(&a_map), prefetch_map(&b_map), prefetch_map(&c_map), prefetch_map(&a_small_map);
        for (int s = 0; s < NUM_STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, GROUPS * CLUSTER_N);
        }
        fence_barrier_init();
    }
    sync_cluster();
    let_next_start();
    wait_for_launch_before();

    const unsigned step_tiles = gridDim.x / CLUSTER_N;
    const int k_blocks = (k - 1) / BLOCK_K + 1;
    const int rank = cluster_rank(), group = threadIdx.x / WARPGROUP;

    // First row and column of this block's tile; groups are of columns here.
    unsigned index = blockIdx.x / CLUSTER_N;
    const auto place_of = [&](unsigned index) {
        const unsigned larges = waves.large_rows * waves.large_cols;
        if (index < larges) {
            const TileOrigin t = tile_of<GROUP_M / CLUSTER_N>(index, waves.large_cols, waves.large_rows);
            return TileOrigin{t.n * BLOCK_M, (t.m * CLUSTER_N + rank) * BLOCK_N};
        }
        const TileOrigin t = tile_of<2 * GROUP_M / CLUSTER_N>(index - larges, waves.small_cols, waves.small_rows);
        return TileOrigin{static_cast<int>(waves.large_rows) * BLOCK_M + t.n * SMALL_EXTENT,
                          (t.m * CLUSTER_N + rank) * SMALL_EXTENT};
    };
    const auto kind_of = [&](unsigned index) {
        const unsigned larges = waves.large_rows * waves.large_cols;
        return index < larges ? LARGE : index < larges + waves.small_rows * waves.small_cols ? SMALL : NONE;
    };

    // The loading thread is up to NUM_STAGES tiles ahead. Where tiles lie is worked out between them, when no
    // accumulators crowd the registers, and waits in shared memory; nobody else reads it.
    const auto put_place = [&](unsigned tile_number, unsigned at) {
        const TileOrigin tile = place_of(at);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %3};" ::"r"(places + tile_number % PLACES * 16), "r"(tile.m),
                     "r"(tile.n), "r"(static_cast<int>(kind_of(at)))
                     : "memory");
    };
    // Twice the k block that is loaded next, plus 1 on the way back: every other tile walks k backwards and
    // starts on what L2 still holds of the one before.
    int load_place = 0;
    unsigned load_number = 0;  // of the tile, among this block's
    auto load_stage = [&](Ring<NUM_STAGES> place, bool wait) {
        int row, col, kind;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %2}, [%3];"
                     : "=r"(row), "=r"(col), "=r"(kind)
                     : "r"(places + load_number % PLACES * 16)
                     : "memory");
        if (kind == NONE) return;
        const uint32_t b_stage = stages + place.index * STAGE_BYTES, a_stage = b_stage + B_BYTES;
        const uint32_t arrived = full + place.index * 8;
        if (wait) barrier_wait(empty + place.index * 8, place.parity);
        constexpr uint16_t ALL = (1 << CLUSTER_N) - 1;
        const int at_k = load_place / 2 * BLOCK_K;
        // All of A's bytes count here, whichever block asks for them; another block's may come first.
        if (kind == LARGE) {
            barrier_expect(arrived, STAGE_BYTES);
            copy_box_to_all(a_stage + rank * SHARE_M * BLOCK_K * 2, &a_map, arrived, at_k, row + rank * SHARE_M, ALL);
        } else {
            barrier_expect(arrived, SMALL_BYTES);
            copy_box_to_all(a_stage + rank * SMALL_SHARE * BLOCK_K * 2, &a_small_map, arrived, at_k,
                            row + rank * SMALL_SHARE, ALL);
        }
#pragma unroll
        for (int box = 0; box < BLOCK_N / BOX_COLS; ++box) {
            if (kind == LARGE || box < SMALL_EXTENT / BOX_COLS)
                copy_box_in(b_stage + box * BOX_COLS * BLOCK_K * 2, &b_map, arrived,
                            B_COLUMN_MAJOR ? at_k : col + box * BOX_COLS, B_COLUMN_MAJOR ? col + box * BOX_COLS : at_k);
        }
        if (load_place / 2 == (load_place & 1 ? 0 : k_blocks - 1)) {
            load_place ^= 1;
            ++load_number;
        } else {
            load_place += load_place & 1 ? -2 : 2;
        }
    };
    Ring<NUM_STAGES> ring;
    if (threadIdx.x == 0) {
        for (int t = 0; t < PLACES; ++t) put_place(t, index + t * step_tiles);
        for (int s = 0; s < NUM_STAGES; ++s) load_stage({s, 0}, false);
    }

    // A stage that all of this block's and its neighbours' warpgroups have multiplied is filled again.
    auto release = [&](Ring<NUM_STAGES> place) {
        const int thread = threadIdx.x;
        if (thread % WARPGROUP < CLUSTER_N) barrier_arrive_in(empty + place.index * 8, thread % WARPGROUP);
        if (thread == 0) load_stage(place, true);
    };

    const Destination destination = {&c_map, C, ldc, m, n, alpha, beta};
    const uint32_t own_stores = stores + group * STORE_BUFFERS * STORE_BYTES;
    // A descriptor's lowest field is its address in units of 16 bytes; stages lie too low to carry out of it.
    // The product is C^T = B^T A^T: columns of C on wgmma's M side, rows on its N side.
    const uint64_t b_base = matrix_descriptor(stages, SLAB_BYTES, EIGHT_ROWS);
    const uint64_t a_first = matrix_descriptor(stages + B_BYTES, 0, EIGHT_ROWS);
    unsigned number = 0;  // of the tile, among this block's

    for (; kind_of(index) == LARGE; index += step_tiles) {
        const uint64_t b_first = b_base + group * HALVES * SLAB_BYTES / 16;
        float acc[HALVES][BLOCK_M / 2];
        for (int block = 0; block < k_blocks; ++block) {
            barrier_wait(full + ring.index * 8, ring.parity);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
#pragma unroll
                for (int half = 0; half < HALVES; ++half) {
                    const uint64_t b =
                        b_first + (ring.index * STAGE_BYTES + half * SLAB_BYTES + step * B_STEP_BYTES) / 16;
                    const uint64_t a = a_first + (ring.index * STAGE_BYTES + step * A_STEP_BYTES) / 16;
                    Wgmma<BLOCK_M, 0, !B_COLUMN_MAJOR>::run(acc[half], b, a, block + step != 0);
                }
            }
            wgmma_commit();
            // These products stay in flight; those of the block before are done.
            wgmma_wait<1>();
            if (block > 0) release(ring.before());
            ring.advance();
        }
        wgmma_wait<0>();
        release(ring.before());
        const TileOrigin tile = place_of(index);
        if (threadIdx.x == 0) put_place(number, index + PLACES * step_tiles);
        ++number;
        const int col = tile.n + group * HALVES * MMA_M;
        store_columns_of_c<0>(acc[0], destination, tile.m, col, own_stores);
        store_columns_of_c<BLOCK_M / STORE_ROWS>(acc[1], destination, tile.m, col + MMA_M, own_stores);
    }
    for (; kind_of(index) == SMALL; index += step_tiles) {
        const uint64_t b_first = b_base + group * SLAB_BYTES / 16;
        float acc[SMALL_EXTENT / 2];
        for (int block = 0; block < k_blocks; ++block) {
            barrier_wait(full + ring.index * 8, ring.parity);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const uint64_t b = b_first + (ring.index * STAGE_BYTES + step * B_STEP_BYTES) / 16;
                const uint64_t a = a_first + (ring.index * STAGE_BYTES + step * A_STEP_BYTES) / 16;
                Wgmma<SMALL_EXTENT, 0, !B_COLUMN_MAJOR>::run(acc, b, a, block + step != 0);
            }
            wgmma_commit();
            wgmma_wait<1>();
            if (block > 0) release(ring.before());
            ring.advance();
        }
        wgmma_wait<0>();
        release(ring.before());
        const TileOrigin tile = place_of(index);
        if (threadIdx.x == 0) put_place(number, index + PLACES * step_tiles);
        ++number;
        store_columns_of_c<0>(acc, destination, tile.m, tile.n + group * MMA_M, own_stores);
    }
    if (threadIdx.x % WARPGROUP == 0) wait_boxes_read<0>();  // shared memory outlives its readers
    sync_cluster();                                          // and its remote arrivals
}
