// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds overlap with the launch before: blocks start, set up their barriers and fetch their tensor maps while its
// last blocks still run, and wait only before they read. Tiles and clusters of any shape that fits, sharing A along
// n and B along m. Refuses what a tensor map cannot describe: bases or pitches that 16 bytes do not divide (h0).
#include "wgmma_epilogue.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(MMA_M) || !defined(MMA_N) || \
    !defined(MMA_K) || !defined(NUM_STAGES) || !defined(CLUSTER_M) || !defined(CLUSTER_N) ||             \
    !defined(GROUP_M) || !defined(HALVES) || !defined(BLOCKS_PER_SM)
#error "tile extents, GROUP_M, HALVES and BLOCKS_PER_SM come from handwritten/tensor_catalog.py"
#endif
constexpr int WARPGROUP = 128;
constexpr int CONSUMERS = BLOCK_M / (HALVES * MMA_M);  // warpgroups that multiply
constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP;   // the first warpgroup only loads
constexpr int STEPS = BLOCK_K / MMA_K;
constexpr int SPAN = 64;                       // FP16 elements in the 128 bytes that the swizzle spans
constexpr int EIGHT_ROWS = 8 * SPAN * 2;       // bytes: the swizzle's period
constexpr int SLAB_BYTES = SPAN * BLOCK_K * 2;  // row-major B: BLOCK_K rows of 64 columns
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, STAGE_BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
constexpr int A_STEP_BYTES = MMA_K * 2;                                      // k lies along the span ...
constexpr int B_STEP_BYTES = B_COLUMN_MAJOR ? MMA_K * 2 : MMA_K * SPAN * 2;  // ... or across its rows
constexpr int SPLITS = 2;                                  // blocks that share a tile, each with half of k
constexpr int HALF = BLOCK_N / SPLITS;                     // columns that a block finishes
constexpr int EXCHANGE_BYTES = BLOCK_M * HALF * 4;         // partial sums of them, from the other block
constexpr int SENT = HALF / 2 * HALVES;                    // of a thread
static_assert(MMA_M == 64 && MMA_K == 16, "the shape of wgmma on FP16");
static_assert(CONSUMERS == 1 || CONSUMERS == 2, "registers suffice for two warpgroups that multiply");
static_assert(BLOCK_N == MMA_N, "one wgmma spans the block tile");
static_assert(BLOCK_N % SPAN == 0 && BLOCK_K == SPAN, "a row of a stage is one swizzle span");
static_assert(NUM_STAGES >= 2, "one stage is multiplied while the next arrives");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    h8_split(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
             const __grid_constant__ TensorMap c_map, Out* C, int m, int n, int k, long long ldc,
             float alpha, float beta) {
    extern __shared__ unsigned char shared[];
    // The swizzle turns on address bits 7 to 9, so stages and store buffers start at multiples of 1,024.
    const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t stores = stages + NUM_STAGES * STAGE_BYTES;
    const uint32_t full = stores + CONSUMERS * STORE_BUFFERS * STORE_BYTES;  // the stage's bytes are there
    const uint32_t empty = full + NUM_STAGES * 8;  // the stage has been multiplied
    const uint32_t exchange = (empty + NUM_STAGES * 8 + 15) & ~15u;

    if (threadIdx.x == 0) {
        prefetch_map(&a_map), prefetch_map(&b_map), prefetch_map(&c_map);
        for (int s = 0; s < NUM_STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, CONSUMERS);
        }
        fence_barrier_init();
    }
    sync_cluster();
    let_next_start();
    wait_for_launch_before();

    const unsigned tiles_m = (m - 1) / BLOCK_M + 1, tiles_n = (n - 1) / BLOCK_N + 1;
    const int rank = cluster_rank();
    const TileOrigin tile = tile_of<GROUP_M>(blockIdx.x / SPLITS, tiles_m, tiles_n);
    const int all_blocks = (k - 1) / BLOCK_K + 1, first_half = (all_blocks + 1) / 2;
    const int first = rank ? first_half : 0, k_blocks = rank ? all_blocks - first_half : first_half;
    const int group = threadIdx.x / WARPGROUP;
    Ring<NUM_STAGES> ring;
    float acc[HALVES][MMA_N / 2];

    if (group == 0) {
        if (threadIdx.x == 0) {
            for (int block = 0; block < k_blocks; ++block, ring.advance()) {
                const uint32_t a_stage = stages + ring.index * STAGE_BYTES, b_stage = a_stage + A_BYTES;
                const uint32_t arrived = full + ring.index * 8;
                const int at_k = (first + block) * BLOCK_K;
                barrier_wait(empty + ring.index * 8, ring.parity ^ 1);
                barrier_expect(arrived, STAGE_BYTES);
                copy_box_in(a_stage, &a_map, arrived, at_k, tile.m * BLOCK_M);
                if constexpr (B_COLUMN_MAJOR) {
                    copy_box_in(b_stage, &b_map, arrived, at_k, tile.n * BLOCK_N);
                } else {
#pragma unroll
                    for (int i = 0; i < BLOCK_N / SPAN; ++i)
                        copy_box_in(b_stage + i * SLAB_BYTES, &b_map, arrived, tile.n * BLOCK_N + i * SPAN, at_k);
                }
            }
        }
        sync_cluster();
        return;
    }
    const int consumer = group - 1, thread = threadIdx.x % WARPGROUP;
    constexpr int HALF_BYTES = MMA_M * SPAN * 2;
    const uint64_t a_first = matrix_descriptor(stages + consumer * HALVES * HALF_BYTES, 0, EIGHT_ROWS);
    const uint64_t b_first = matrix_descriptor(stages + A_BYTES, B_COLUMN_MAJOR ? 0 : SLAB_BYTES, EIGHT_ROWS);
    int previous = 0;
    for (int block = 0; block < k_blocks; ++block, ring.advance()) {
        barrier_wait(full + ring.index * 8, ring.parity);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                const uint64_t a =
                    a_first + (ring.index * STAGE_BYTES + half * HALF_BYTES + step * A_STEP_BYTES) / 16;
                const uint64_t b = b_first + (ring.index * STAGE_BYTES + step * B_STEP_BYTES) / 16;
                Wgmma<MMA_N, !B_COLUMN_MAJOR>::run(acc[half], a, b, block + step != 0);
            }
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (block > 0 && thread == 0) barrier_arrive(empty + previous * 8);
        previous = ring.index;
    }
    wgmma_wait<0>();
    if (k_blocks == 0) {
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
#pragma unroll
            for (int i = 0; i < MMA_N / 2; ++i) acc[half][i] = 0.0f;
    }
    // A block finishes half of the columns; what it has of the others goes to the other block.
    float mine[HALVES][HALF / 2];
    uint32_t there;
    const uint32_t slot = exchange + (consumer * SENT / 4 * WARPGROUP + thread) * 16;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(slot), "r"(rank ^ 1));
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
#pragma unroll
        for (int i = 0; i < HALF / 2; i += 4) {
            float out[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float low = acc[half][i + e], high = acc[half][HALF / 2 + i + e];
                mine[half][i + e] = rank ? high : low;
                out[e] = rank ? low : high;
            }
            asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                             there + (half * HALF / 8 + i / 4) * WARPGROUP * 16),
                         "f"(out[0]), "f"(out[1]), "f"(out[2]), "f"(out[3])
                         : "memory");
        }
    sync_cluster();
#pragma unroll
    for (int half = 0; half < HALVES; ++half)
#pragma unroll
        for (int i = 0; i < HALF / 2; i += 4) {
            float in[4];
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(in[0]), "=f"(in[1]), "=f"(in[2]), "=f"(in[3])
                         : "r"(slot + (half * HALF / 8 + i / 4) * WARPGROUP * 16)
                         : "memory");
#pragma unroll
            for (int e = 0; e < 4; ++e) mine[half][i + e] += in[e];
        }
    const Destination destination = {&c_map, C, ldc, m, n, alpha, beta};
    const int row = tile.m * BLOCK_M + consumer * HALVES * MMA_M, col = tile.n * BLOCK_N + rank * HALF;
    const uint32_t own_stores = stores + consumer * STORE_BUFFERS * STORE_BYTES;
    store_rows<0, true>(mine[0], destination, row, col, own_stores);
    if constexpr (HALVES == 2) store_rows<HALF / STORE_COLS, true>(mine[1], destination, row + MMA_M, col, own_stores);
    if (thread == 0) wait_boxes_read<0>();  // shared memory outlives its readers
}
