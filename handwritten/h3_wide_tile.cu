// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds the largest tile whose accumulators fit: two warpgroups of two m64 halves, 224 of 255 registers, so a
// consumer's thread loads too. Fewer bytes reach shared memory per product; limited by power, then by the
// store of a tile, during which nobody multiplies. Refuses what h2 refuses (h0 runs those), rows of C that
// end inside 16 bytes, and row-major B whose n is no multiple of 32 (h2 runs those).
#include "wgmma_epilogue.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(MMA_M) || !defined(MMA_N) || \
    !defined(MMA_K) || !defined(NUM_STAGES) || !defined(CLUSTER_M) || !defined(GROUP_M)
#error "tile extents and GROUP_M come from handwritten/tensor_catalog.py"
#endif
constexpr int WARPGROUP = 128;
constexpr int HALVES = 2;  // m64 parts of a warpgroup's rows
constexpr int GROUPS = BLOCK_M / (HALVES * MMA_M);
constexpr int THREADS = GROUPS * WARPGROUP;
constexpr int STEPS = BLOCK_K / MMA_K;
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, STAGE_BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
constexpr int A_SPAN = 64;  // FP16 elements in the 128 bytes that A's swizzle spans, along k
constexpr int A_EIGHT_ROWS = 8 * A_SPAN * 2;
// Column-major B lies like A and is shared by columns. Row-major B comes as boxes of 32 columns (224 is no
// multiple of 64) by SHARE_K rows of k, shared by rows: a block's share is [BLOCK_N / 32][SHARE_K][32].
constexpr int B_SPAN = B_COLUMN_MAJOR ? 64 : 32;
constexpr int B_EIGHT_ROWS = 8 * B_SPAN * 2;
constexpr int SHARE_N = B_COLUMN_MAJOR ? BLOCK_N / CLUSTER_M : BLOCK_N;
constexpr int SHARE_K = B_COLUMN_MAJOR ? BLOCK_K : BLOCK_K / CLUSTER_M;
constexpr int SHARE_BYTES = SHARE_N * SHARE_K * 2;
static_assert(MMA_M == 64 && MMA_K == 16, "the shape of wgmma on FP16");
static_assert(BLOCK_M == 256, "two warpgroups with two halves each: 65,536 registers");
static_assert(BLOCK_N == MMA_N && BLOCK_N <= 224, "one wgmma spans the block tile, and 224 accumulators fit");
static_assert(BLOCK_K == A_SPAN && BLOCK_N % 32 == 0, "boxes fill the stage");
static_assert(SHARE_N % 8 == 0 && SHARE_K % MMA_K == 0, "a share is whole swizzle periods and whole steps");
static_assert(GROUP_M % CLUSTER_M == 0, "a cluster's tiles lie in one group");
static_assert(NUM_STAGES >= 3, "one stage is multiplied, one waits, one is refilled");

// Byte offset of a k16 step within a stage's B.
__device__ constexpr int b_step(int step) {
    return B_COLUMN_MAJOR ? step * MMA_K * 2
                          : step * MMA_K / SHARE_K * SHARE_BYTES + step * MMA_K % SHARE_K * B_SPAN * 2;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    h3_wide_tile(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                 const __grid_constant__ TensorMap c_map, Out* C, int m, int n, int k, long long ldc,
                 float alpha, float beta) {
    extern __shared__ unsigned char shared[];
    // The swizzle turns on address bits 7 to 9, so stages and store buffers start at multiples of 1,024.
    const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t stores = stages + NUM_STAGES * STAGE_BYTES;
    const uint32_t full = stores + GROUPS * STORE_BUFFERS * STORE_BYTES;  // the stage's bytes are there
    const uint32_t empty = full + NUM_STAGES * 8;                         // multiplied, in all blocks

    if (threadIdx.x == 0) {
        for (int s = 0; s < NUM_STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, GROUPS * CLUSTER_M);
        }
        fence_barrier_init();
    }
    sync_cluster();

    // Tiles of clusters: every block of one walks the same way, also where its own rows lie below the matrix.
    const unsigned tiles_m = (m - 1) / (BLOCK_M * CLUSTER_M) + 1, tiles_n = (n - 1) / BLOCK_N + 1;
    const unsigned tiles = tiles_m * tiles_n, step_tiles = gridDim.x / CLUSTER_M;
    const int k_blocks = (k - 1) / BLOCK_K + 1;
    const int rank = cluster_rank();

    // What the loading thread brings next: it is NUM_STAGES k blocks ahead, often in the next tile.
    unsigned load_tile = blockIdx.x / CLUSTER_M;
    // Twice the k block, plus 1 on the way back: every other tile walks k backwards and starts on what L2
    // still holds.
    int load_place = 0;
    auto load_stage = [&](int stage) {
        const TileOrigin tile = tile_of<GROUP_M / CLUSTER_M>(load_tile, tiles_m, tiles_n);
        const int row = (tile.m * CLUSTER_M + rank) * BLOCK_M, col = tile.n * BLOCK_N;
        const uint32_t a_stage = stages + stage * STAGE_BYTES, arrived = full + stage * 8;
        const uint32_t b_share = a_stage + A_BYTES + rank * SHARE_BYTES;
        constexpr uint16_t ALL = (1 << CLUSTER_M) - 1;
        // All of B's bytes count here, whichever block asks for them; another block's may come first.
        const int at_k = load_place / 2 * BLOCK_K;
        barrier_expect(arrived, STAGE_BYTES);
        copy_box_in(a_stage, &a_map, arrived, at_k, row);
        if constexpr (B_COLUMN_MAJOR) {
            copy_box_to_all(b_share, &b_map, arrived, at_k, col + rank * SHARE_N, ALL);
        } else {
            copy_boxes_to_all(b_share, &b_map, arrived, 0, at_k + rank * SHARE_K, col / B_SPAN, ALL);
        }
        if (load_place / 2 == (load_place & 1 ? 0 : k_blocks - 1)) {
            load_place ^= 1;
            load_tile += step_tiles;
        } else {
            load_place += load_place & 1 ? -2 : 2;
        }
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < NUM_STAGES && load_tile < tiles; ++s) load_stage(s);
    }

    const Destination destination = {&c_map, C, ldc, m, n, alpha, beta};
    // A descriptor's lowest field is its address in units of 16 bytes; stages lie too low to carry out of it.
    constexpr int HALF_BYTES = MMA_M * A_SPAN * 2;
    const uint64_t a_first =
        matrix_descriptor(stages + threadIdx.x / WARPGROUP * HALVES * HALF_BYTES, 0, A_EIGHT_ROWS);
    const uint64_t b_first = matrix_descriptor<B_SPAN * 2>(
        stages + A_BYTES, B_COLUMN_MAJOR ? 0 : SHARE_K * B_SPAN * 2, B_EIGHT_ROWS);
    float acc[HALVES][MMA_N / 2];

    // A stage that all of this block's and its neighbours' warpgroups have multiplied is filled again.
    auto release = [&](Ring<NUM_STAGES> place) {
        const int thread = threadIdx.x;
        if (thread % WARPGROUP < CLUSTER_M) barrier_arrive_in(empty + place.index * 8, thread % WARPGROUP);
        if (thread == 0 && load_tile < tiles) {
            barrier_wait(empty + place.index * 8, place.parity);
            load_stage(place.index);
        }
    };

    Ring<NUM_STAGES> ring;
    for (unsigned index = blockIdx.x / CLUSTER_M; index < tiles; index += step_tiles) {
        for (int block = 0; block < k_blocks; ++block) {
            barrier_wait(full + ring.index * 8, ring.parity);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
#pragma unroll
                for (int half = 0; half < HALVES; ++half) {
                    const uint64_t a =
                        a_first + (ring.index * STAGE_BYTES + half * HALF_BYTES + step * MMA_K * 2) / 16;
                    const uint64_t b = b_first + (ring.index * STAGE_BYTES + b_step(step)) / 16;
                    Wgmma<MMA_N, !B_COLUMN_MAJOR>::run(acc[half], a, b, block + step != 0);
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

        const TileOrigin tile = tile_of<GROUP_M / CLUSTER_M>(index, tiles_m, tiles_n);
        const int group = threadIdx.x / WARPGROUP;
        const int row = (tile.m * CLUSTER_M + rank) * BLOCK_M + group * HALVES * MMA_M,
                  col = tile.n * BLOCK_N;
        const uint32_t own_stores = stores + group * STORE_BUFFERS * STORE_BYTES;
        store_rows<0, false>(acc[0], destination, row, col, own_stores);
        store_rows<BLOCK_N / STORE_COLS, false>(acc[1], destination, row + MMA_M, col, own_stores);
    }
    if (threadIdx.x % WARPGROUP == 0) wait_boxes_read<0>();  // shared memory outlives its readers
    sync_cluster();                                          // and its remote arrivals
}
