// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds overlap with the launch before to h1: blocks set up barriers, fetch tensor maps and work out their
// place while its last blocks still run, and wait before they read. Tiles of many shapes share the source.
// Limited by power, at small sizes by launch and first loads. Refuses what h1 refuses (h0 runs those).
#include "wgmma_epilogue.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(MMA_M) || !defined(MMA_N) || \
    !defined(MMA_K) || !defined(NUM_STAGES) || !defined(CLUSTER_M) || !defined(CLUSTER_N) ||             \
    !defined(GROUP_M) || !defined(B_AT_ONCE)
#error "tile extents, GROUP_M and B_AT_ONCE come from handwritten/tensor_catalog.py"
#endif
constexpr int WARPGROUP = 128;
constexpr int CONSUMERS = BLOCK_M / MMA_M;            // warpgroups that multiply, 64 rows of the tile each
constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP;  // the first warpgroup only loads
constexpr int STEPS = BLOCK_K / MMA_K;
constexpr int SPAN = 64;                        // FP16 elements in the 128 bytes that the swizzle spans
constexpr int EIGHT_ROWS = 8 * SPAN * 2;        // bytes: the swizzle's period
constexpr int SLAB_BYTES = SPAN * BLOCK_K * 2;  // row-major B: BLOCK_K rows of 64 columns
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, STAGE_BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
constexpr int A_STEP_BYTES = MMA_K * 2;                                      // k lies along the span ...
constexpr int B_STEP_BYTES = B_COLUMN_MAJOR ? MMA_K * 2 : MMA_K * SPAN * 2;  // ... or across its rows
constexpr int BLOCKS = CLUSTER_M * CLUSTER_N;
constexpr int PARTNERS = CLUSTER_M + CLUSTER_N - 1;  // blocks that write to a block's stages
// Row-major B is shared by columns where there are enough spans of them, else by rows of k.
constexpr bool BY_ROWS = !B_COLUMN_MAJOR && BLOCK_N / SPAN % CLUSTER_M != 0;
constexpr int SHARE_M = BLOCK_M / CLUSTER_N;
constexpr int SHARE_N = BY_ROWS ? BLOCK_N : BLOCK_N / CLUSTER_M;
constexpr int SHARE_K = BY_ROWS ? BLOCK_K / CLUSTER_M : BLOCK_K;
static_assert(MMA_M == 64 && MMA_K == 16, "the shape of wgmma on FP16");
static_assert(CONSUMERS == 1 || CONSUMERS == 2, "registers suffice for two warpgroups that multiply");
static_assert(BLOCK_N == MMA_N, "one wgmma spans the block tile");
static_assert(BLOCK_N % SPAN == 0 && BLOCK_K == SPAN, "a row of a stage is one swizzle span");
static_assert(SHARE_M % 8 == 0 && SHARE_N % 8 == 0 && SHARE_K % 8 == 0, "a share is whole swizzle periods");
static_assert(GROUP_M % CLUSTER_M == 0, "a cluster's tiles lie in one group");
static_assert(!B_AT_ONCE || (!B_COLUMN_MAJOR && BLOCKS == 1),
              "one copy of all spans of row-major B, unshared");
static_assert(NUM_STAGES >= 2, "one stage is multiplied while the next arrives");
constexpr bool MOVES_REGISTERS = CONSUMERS == 2;  // one fits without

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    h5_overlapped_launch(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                         const __grid_constant__ TensorMap c_map, Out* C, int m, int n, int k, long long ldc,
                         float alpha, float beta) {
    extern __shared__ unsigned char shared[];
    // The swizzle turns on address bits 7 to 9, so stages and store buffers start at multiples of 1,024.
    const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t stores = stages + NUM_STAGES * STAGE_BYTES;
    const uint32_t full = stores + CONSUMERS * STORE_BUFFERS * STORE_BYTES;  // the stage's bytes are there
    const uint32_t empty = full + NUM_STAGES * 8;  // the stage has been multiplied, in all blocks

    if (threadIdx.x == 0) {
        prefetch_map(&a_map), prefetch_map(&b_map);
        if constexpr (!C_BY_ELEMENT) prefetch_map(&c_map);
        for (int s = 0; s < NUM_STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, CONSUMERS * PARTNERS);
        }
        fence_barrier_init();
    }
    if constexpr (BLOCKS > 1)
        sync_cluster();
    else
        __syncthreads();
    let_next_start();

    // Tiles of clusters: every block of one walks the same way, also where its own tile lies outside the
    // matrix.
    const unsigned tiles_m = (m - 1) / (BLOCK_M * CLUSTER_M) + 1,
                   tiles_n = (n - 1) / (BLOCK_N * CLUSTER_N) + 1;
    const unsigned tiles = tiles_m * tiles_n, first_tile = blockIdx.x / BLOCKS,
                   step_tiles = gridDim.x / BLOCKS;
    const int rank = BLOCKS > 1 ? cluster_rank() : 0;
    const int rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;
    const int k_blocks = (k - 1) / BLOCK_K + 1;
    const int group = threadIdx.x / WARPGROUP;
    Ring<NUM_STAGES> ring;

    if (group == 0) {
        if constexpr (MOVES_REGISTERS) give_registers<40>();
        if (threadIdx.x == 0) {
            const uint16_t same_m = ((1 << BLOCKS) - 1) / ((1 << CLUSTER_M) - 1) << rank_m;
            const uint16_t same_n = ((1 << CLUSTER_M) - 1) << rank_n * CLUSTER_M;
            bool backwards = false;
            // What does not touch memory comes before the wait for the launch before: each stage's first
            // bytes are announced here, and no stage has to become empty for them.
            int fresh = min(NUM_STAGES, k_blocks);
            for (int stage = 0; stage < fresh; ++stage) barrier_expect(full + stage * 8, STAGE_BYTES);
            for (unsigned index = first_tile; index < tiles; index += step_tiles, backwards = !backwards) {
                const TileOrigin tile = tile_of<GROUP_M / CLUSTER_M>(index, tiles_m, tiles_n);
                const int row = (tile.m * CLUSTER_M + rank_m) * BLOCK_M + rank_n * SHARE_M;
                const int col = (tile.n * CLUSTER_N + rank_n) * BLOCK_N + (BY_ROWS ? 0 : rank_m * SHARE_N);
                if (index == first_tile) wait_for_launch_before();
                for (int block = 0; block < k_blocks; ++block, ring.advance()) {
                    const int at_k = (backwards ? k_blocks - 1 - block : block) * BLOCK_K;
                    const uint32_t a_share =
                        stages + ring.index * STAGE_BYTES + rank_n * SHARE_M * BLOCK_K * 2;
                    const uint32_t b_share = stages + ring.index * STAGE_BYTES + A_BYTES +
                                             rank_m * (BY_ROWS ? SHARE_K * SPAN : SHARE_N * BLOCK_K) * 2;
                    const uint32_t arrived = full + ring.index * 8;
                    if (fresh > 0) {
                        --fresh;
                    } else {
                        barrier_wait(empty + ring.index * 8, ring.parity ^ 1);
                        // All bytes count here, whichever block asks for them; another block's may come
                        // first.
                        barrier_expect(arrived, STAGE_BYTES);
                    }
                    if constexpr (CLUSTER_N > 1)
                        copy_box_to_all(a_share, &a_map, arrived, at_k, row, same_m);
                    else
                        copy_box_in(a_share, &a_map, arrived, at_k, row);
                    const int b_k = at_k + (BY_ROWS ? rank_m * SHARE_K : 0);
                    if constexpr (B_AT_ONCE) {
                        copy_boxes_in(b_share, &b_map, arrived, 0, b_k, col / SPAN);
                    } else {
#pragma unroll
                        for (int i = 0; i < (B_COLUMN_MAJOR ? 1 : SHARE_N / SPAN); ++i) {
                            const int x = B_COLUMN_MAJOR ? b_k : col + i * SPAN,
                                      y = B_COLUMN_MAJOR ? col : b_k;
                            if constexpr (CLUSTER_M > 1)
                                copy_box_to_all(b_share + i * SLAB_BYTES, &b_map, arrived, x, y, same_n);
                            else
                                copy_box_in(b_share + i * SLAB_BYTES, &b_map, arrived, x, y);
                        }
                    }
                }
            }
        }
    } else {
        if constexpr (MOVES_REGISTERS) take_registers<232>();
        const Destination destination = {&c_map, C, ldc, m, n, alpha, beta};
        const int consumer = group - 1, thread = threadIdx.x % WARPGROUP;
        // Blocks whose boxes land here: those of the same columns, then the others of the same rows.
        const int other = thread - CLUSTER_M + (thread - CLUSTER_M >= rank_n);
        const uint32_t partner =
            thread < CLUSTER_M ? rank_n * CLUSTER_M + thread : other * CLUSTER_M + rank_m;
        const auto release = [&](int stage) {
            if (thread < PARTNERS) {
                if constexpr (BLOCKS > 1)
                    barrier_arrive_in(empty + stage * 8, partner);
                else
                    barrier_arrive(empty + stage * 8);
            }
        };
        // A descriptor's lowest field is its address in units of 16 bytes; stages lie too low to carry out of
        // it.
        const uint64_t a_first = matrix_descriptor(stages + consumer * MMA_M * SPAN * 2, 0, EIGHT_ROWS);
        const uint64_t b_first =
            matrix_descriptor(stages + A_BYTES, B_COLUMN_MAJOR ? 0 : SLAB_BYTES, EIGHT_ROWS);
        float acc[MMA_N / 2];

        wait_for_launch_before();  // over by the time that a stage is full; C is read and written
        for (unsigned index = first_tile; index < tiles; index += step_tiles) {
            const TileOrigin tile = tile_of<GROUP_M / CLUSTER_M>(index, tiles_m, tiles_n);
            const int row = (tile.m * CLUSTER_M + rank_m) * BLOCK_M + consumer * MMA_M;
            const int col = (tile.n * CLUSTER_N + rank_n) * BLOCK_N;
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
                if (block > 0) release(previous);
                previous = ring.index;
            }
            wgmma_wait<0>();
            release(previous);
            store_rows<0, true>(acc, destination, row, col, stores + consumer * STORE_BUFFERS * STORE_BYTES);
        }
        if (!C_BY_ELEMENT && thread == 0) wait_boxes_read<0>();  // shared memory outlives its readers
    }
    if constexpr (BLOCKS > 1) sync_cluster();  // and its remote arrivals
}
