// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds to h3 a region that fills the SMs of 4096 x 4096: 256 x 512 a block, in passes over k of MMA_N columns
// and a last one of what remains, while the ring of stages runs on. 17 % fewer bytes reach shared memory than
// in h2's four tiles of as many products. Limited by power, then by the store of a pass. Refuses what h2
// refuses (h0 runs those), and rows of C that end inside 16 bytes (h2 runs those).
#include <type_traits>
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
constexpr int SPAN = 64;                  // FP16 elements in the 128 bytes that the swizzle spans
constexpr int EIGHT_ROWS = 8 * SPAN * 2;  // bytes: the swizzle's period
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, STAGE_BYTES = A_BYTES + MMA_N * BLOCK_K * 2;
constexpr int FULL_PASSES = BLOCK_N / MMA_N, LAST_WIDTH = BLOCK_N % MMA_N;
// B comes in boxes of 4 KB: SPAN of k by 32 columns, or SPAN columns by a block's share of k.
constexpr int BOX_ROWS = 32, BOX_BYTES = BOX_ROWS * SPAN * 2;
constexpr int SLAB_BYTES = SPAN * BLOCK_K * 2;  // row-major B: SPAN columns, all of k
constexpr int A_STEP_BYTES = MMA_K * 2;
constexpr int B_STEP_BYTES = B_COLUMN_MAJOR ? MMA_K * 2 : MMA_K * SPAN * 2;
static_assert(MMA_M == 64 && MMA_K == 16, "the shape of wgmma on FP16");
static_assert(BLOCK_M == 256 && MMA_N <= 192, "two warpgroups with two halves each: 65,536 registers");
static_assert(LAST_WIDTH > 0 && LAST_WIDTH % 64 == 0 && MMA_N % 64 == 0, "passes are whole swizzle spans");
static_assert(BLOCK_K == SPAN && CLUSTER_M == 2 && BLOCK_K / CLUSTER_M == BOX_ROWS, "a share is whole boxes");
static_assert(GROUP_M % CLUSTER_M == 0, "a cluster's tiles lie in one group");
static_assert(NUM_STAGES >= 3, "one stage is multiplied, one waits, one is refilled");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    h4_column_passes(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
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

    // Regions of clusters: every block of one walks the same way, also where its own rows lie below the
    // matrix.
    const unsigned tiles_m = (m - 1) / (BLOCK_M * CLUSTER_M) + 1, tiles_n = (n - 1) / BLOCK_N + 1;
    const unsigned tiles = tiles_m * tiles_n, step_tiles = gridDim.x / CLUSTER_M;
    const int k_blocks = (k - 1) / BLOCK_K + 1;
    const int rank = cluster_rank();

    // What the loading thread brings next: it is NUM_STAGES k blocks ahead, often in the next pass.
    unsigned load_tile = blockIdx.x / CLUSTER_M;
    int load_start = 0;
    // Twice the k block, plus 1 on the way back: every other pass walks k backwards and starts on what L2
    // still holds.
    int load_place = 0;
    auto load_stage = [&](int stage) {
        constexpr uint16_t ALL = (1 << CLUSTER_M) - 1;
        const TileOrigin tile = tile_of<GROUP_M / CLUSTER_M>(load_tile, tiles_m, tiles_n);
        const int row = (tile.m * CLUSTER_M + rank) * BLOCK_M, col = tile.n * BLOCK_N + load_start;
        const int width = min(BLOCK_N - load_start, MMA_N);
        const uint32_t a_stage = stages + stage * STAGE_BYTES, b_stage = a_stage + A_BYTES;
        const uint32_t arrived = full + stage * 8;
        const int at_k = load_place / 2 * BLOCK_K;
        // All of B's bytes count here, whichever block asks for them; another block's may come first.
        barrier_expect(arrived, A_BYTES + width * BLOCK_K * 2);
        copy_box_in(a_stage, &a_map, arrived, at_k, row);
        if constexpr (B_COLUMN_MAJOR) {
            const int share = rank * width / CLUSTER_M;
            for (int i = 0; i < width / CLUSTER_M; i += BOX_ROWS)
                copy_box_to_all(b_stage + (share + i) * SPAN * 2, &b_map, arrived, at_k, col + share + i,
                                ALL);
        } else {
            for (int i = 0; i < width / SPAN; ++i)
                copy_box_to_all(b_stage + i * SLAB_BYTES + rank * BOX_BYTES, &b_map, arrived, col + i * SPAN,
                                at_k + rank * BOX_ROWS, ALL);
        }
        if (load_place / 2 != (load_place & 1 ? 0 : k_blocks - 1)) {
            load_place += load_place & 1 ? -2 : 2;
            return;
        }
        load_place ^= 1;
        load_start += MMA_N;
        if (load_start >= BLOCK_N || tile.n * BLOCK_N + load_start >= n) {
            load_start = 0;
            load_tile += step_tiles;
        }
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < NUM_STAGES && load_tile < tiles; ++s) load_stage(s);
    }

    const Destination destination = {&c_map, C, ldc, m, n, alpha, beta};
    // A descriptor's lowest field is its address in units of 16 bytes; stages lie too low to carry out of it.
    constexpr int HALF_BYTES = MMA_M * SPAN * 2;
    const int group = threadIdx.x / WARPGROUP;
    const uint64_t a_first = matrix_descriptor(stages + group * HALVES * HALF_BYTES, 0, EIGHT_ROWS);
    const uint64_t b_first = matrix_descriptor(stages + A_BYTES, B_COLUMN_MAJOR ? 0 : SLAB_BYTES, EIGHT_ROWS);

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
    // One pass of WIDTH columns over all of k, and its store.
    float acc[HALVES][MMA_N / 2];
    auto run_pass = [&](auto columns, int row, int col) {
        constexpr int WIDTH = decltype(columns)::value;
        using Part = float (&)[WIDTH / 2];
        for (int block = 0; block < k_blocks; ++block) {
            barrier_wait(full + ring.index * 8, ring.parity);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
#pragma unroll
                for (int half = 0; half < HALVES; ++half) {
                    const uint64_t a =
                        a_first + (ring.index * STAGE_BYTES + half * HALF_BYTES + step * A_STEP_BYTES) / 16;
                    const uint64_t b = b_first + (ring.index * STAGE_BYTES + step * B_STEP_BYTES) / 16;
                    Wgmma<WIDTH, !B_COLUMN_MAJOR>::run(reinterpret_cast<Part>(acc[half]), a, b,
                                                       block + step != 0);
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
        const uint32_t own_stores = stores + group * STORE_BUFFERS * STORE_BYTES;
        store_rows<0, false>(reinterpret_cast<Part>(acc[0]), destination, row, col, own_stores);
        store_rows<WIDTH / STORE_COLS, false>(reinterpret_cast<Part>(acc[1]), destination, row + MMA_M, col,
                                              own_stores);
    };
    for (unsigned index = blockIdx.x / CLUSTER_M; index < tiles; index += step_tiles) {
        const TileOrigin tile = tile_of<GROUP_M / CLUSTER_M>(index, tiles_m, tiles_n);
        const int row = (tile.m * CLUSTER_M + rank) * BLOCK_M + group * HALVES * MMA_M;
        int col = tile.n * BLOCK_N;
        for (int pass = 0; pass < FULL_PASSES && col < n; ++pass, col += MMA_N)
            run_pass(std::integral_constant<int, MMA_N>(), row, col);
        if (col < n) run_pass(std::integral_constant<int, LAST_WIDTH>(), row, col);
    }
    if (threadIdx.x % WARPGROUP == 0) wait_boxes_read<0>();  // shared memory outlives its readers
    sync_cluster();                                          // and its remote arrivals
}
