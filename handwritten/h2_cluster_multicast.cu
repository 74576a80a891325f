// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds clusters to h1: CLUSTER_M blocks on top of each other each load a share of their part of B and
// multicast it. Every other tile walks k backwards, which starts on what L2 still holds of the one before.
// Limited by power, then by the store of a tile, during which its warpgroup does not multiply.
// Refuses what a tensor map cannot describe: bases or pitches that 16 bytes do not divide (h0 runs those).
#include "wgmma_epilogue.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(MMA_M) || !defined(MMA_N) || \
    !defined(MMA_K) || !defined(NUM_STAGES) || !defined(CLUSTER_M) || !defined(GROUP_M)
#error "tile extents and GROUP_M come from handwritten/tensor_catalog.py"
#endif
constexpr int WARPGROUP = 128;
constexpr int CONSUMERS = BLOCK_M / MMA_M;            // warpgroups that multiply, 64 rows of the tile each
constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP;  // the first warpgroup only loads
constexpr int STEPS = BLOCK_K / MMA_K;
constexpr int SPAN = 64;                       // FP16 elements in the 128 bytes that the swizzle spans
constexpr int EIGHT_ROWS = 8 * SPAN * 2;       // bytes: the swizzle's period
constexpr int BOX_BYTES = SPAN * BLOCK_K * 2;  // row-major B: BLOCK_K rows of 64 columns
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, STAGE_BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
constexpr int A_STEP_BYTES = MMA_K * 2;                                      // k lies along the span ...
constexpr int B_STEP_BYTES = B_COLUMN_MAJOR ? MMA_K * 2 : MMA_K * SPAN * 2;  // ... or across its rows
static_assert(MMA_M == 64 && MMA_K == 16, "the shape of wgmma on FP16");
static_assert(BLOCK_M == 64 || BLOCK_M == 128, "registers suffice for two warpgroups that multiply");
static_assert(BLOCK_N == MMA_N, "one wgmma spans the block tile");
static_assert(BLOCK_N % SPAN == 0 && BLOCK_K == SPAN, "a row of a stage is one swizzle span");
static_assert(BLOCK_N % (SPAN * CLUSTER_M) == 0, "each block of a cluster loads as many columns of B");
static_assert(GROUP_M % CLUSTER_M == 0, "a cluster's tiles lie in one group");
static_assert(NUM_STAGES >= 2, "one stage is multiplied while the next arrives");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    h2_cluster_multicast(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                         const __grid_constant__ TensorMap c_map, Out* C, int m, int n, int k, long long ldc,
                         float alpha, float beta) {
    extern __shared__ unsigned char shared[];
    // The swizzle turns on address bits 7 to 9, so stages and store buffers start at multiples of 1,024.
    const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t stores = stages + NUM_STAGES * STAGE_BYTES;
    const uint32_t full = stores + CONSUMERS * STORE_BUFFERS * STORE_BYTES;  // the stage's bytes are there
    const uint32_t empty = full + NUM_STAGES * 8;  // the stage has been multiplied, in all blocks

    if (threadIdx.x == 0) {
        for (int s = 0; s < NUM_STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, CONSUMERS * CLUSTER_M);
        }
        fence_barrier_init();
    }
    sync_cluster();

    // Tiles of clusters: every block of one walks the same way, also where its own rows lie below the matrix.
    const unsigned tiles_m = (m - 1) / (BLOCK_M * CLUSTER_M) + 1, tiles_n = (n - 1) / BLOCK_N + 1;
    const unsigned tiles = tiles_m * tiles_n, first_tile = blockIdx.x / CLUSTER_M,
                   step_tiles = gridDim.x / CLUSTER_M;
    const int rank = cluster_rank();
    const int k_blocks = (k - 1) / BLOCK_K + 1;
    const int group = threadIdx.x / WARPGROUP;
    Ring<NUM_STAGES> ring;

    if (group == 0) {
        give_registers<40>();
        if (threadIdx.x == 0) {
            constexpr int SHARE = BLOCK_N / CLUSTER_M;
            constexpr uint16_t ALL = (1 << CLUSTER_M) - 1;
            bool backwards = false;
            for (unsigned index = first_tile; index < tiles; index += step_tiles, backwards = !backwards) {
                const TileOrigin tile = tile_of<GROUP_M / CLUSTER_M>(index, tiles_m, tiles_n);
                const int row = (tile.m * CLUSTER_M + rank) * BLOCK_M, col = tile.n * BLOCK_N + rank * SHARE;
                for (int block = 0; block < k_blocks; ++block, ring.advance()) {
                    const int at_k = (backwards ? k_blocks - 1 - block : block) * BLOCK_K;
                    const uint32_t a_stage = stages + ring.index * STAGE_BYTES;
                    const uint32_t b_share = a_stage + A_BYTES + rank * SHARE * BLOCK_K * 2;
                    const uint32_t arrived = full + ring.index * 8;
                    barrier_wait(empty + ring.index * 8, ring.parity ^ 1);
                    // All of B's bytes count here, whichever block asks for them; another block's may come
                    // first.
                    barrier_expect(arrived, STAGE_BYTES);
                    copy_box_in(a_stage, &a_map, arrived, at_k, row);
                    if constexpr (B_COLUMN_MAJOR) {
                        copy_box_to_all(b_share, &b_map, arrived, at_k, col, ALL);
                    } else {
#pragma unroll
                        for (int i = 0; i < SHARE / SPAN; ++i)
                            copy_box_to_all(b_share + i * BOX_BYTES, &b_map, arrived, col + i * SPAN, at_k,
                                            ALL);
                    }
                }
            }
        }
    } else {
        take_registers<232>();
        const Destination destination = {&c_map, C, ldc, m, n, alpha, beta};
        const int consumer = group - 1, thread = threadIdx.x % WARPGROUP;
        // A descriptor's lowest field is its address in units of 16 bytes; stages lie too low to carry out of
        // it.
        const uint64_t a_first = matrix_descriptor(stages + consumer * MMA_M * SPAN * 2, 0, EIGHT_ROWS);
        const uint64_t b_first =
            matrix_descriptor(stages + A_BYTES, B_COLUMN_MAJOR ? 0 : BOX_BYTES, EIGHT_ROWS);
        float acc[MMA_N / 2];

        for (unsigned index = first_tile; index < tiles; index += step_tiles) {
            int previous = 0;
            for (int block = 0; block < k_blocks; ++block, ring.advance()) {
                barrier_wait(full + ring.index * 8, ring.parity);
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    const uint64_t a = a_first + (ring.index * STAGE_BYTES + step * A_STEP_BYTES) / 16;
                    const uint64_t b = b_first + (ring.index * STAGE_BYTES + step * B_STEP_BYTES) / 16;
                    Wgmma<MMA_N, !B_COLUMN_MAJOR>::run(acc, a, b, block + step != 0);
                }
                wgmma_commit();
                // These products stay in flight; those of the block before are done, and the stage can be
                // refilled by every block that writes to it.
                wgmma_wait<1>();
                if (block > 0 && thread < CLUSTER_M) barrier_arrive_in(empty + previous * 8, thread);
                previous = ring.index;
            }
            wgmma_wait<0>();
            if (thread < CLUSTER_M) barrier_arrive_in(empty + previous * 8, thread);

            const TileOrigin tile = tile_of<GROUP_M / CLUSTER_M>(index, tiles_m, tiles_n);
            store_rows<0, true>(acc, destination, (tile.m * CLUSTER_M + rank) * BLOCK_M + consumer * MMA_M,
                                tile.n * BLOCK_N, stores + consumer * STORE_BUFFERS * STORE_BYTES);
        }
        if (thread == 0) wait_boxes_read<0>();  // shared memory outlives its readers
    }
    sync_cluster();  // and its remote arrivals
}
