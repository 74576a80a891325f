// The body of h7 and h8. They differ in whether launches overlap and in the tile that a cluster begins with.
#pragma once
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
constexpr int SPAN = 64;                  // FP16 elements in the 128 bytes that the swizzle spans
constexpr int EIGHT_ROWS = 8 * SPAN * 2;  // bytes: the swizzle's period
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = BLOCK_N * BLOCK_K * 2,
              STAGE_BYTES = B_BYTES + A_BYTES;
constexpr int SLAB_BYTES =
    MMA_M * BLOCK_K * 2;                 // B: 64 columns by a stage's k, whichever lies along the span
constexpr int A_STEP_BYTES = MMA_K * 2;  // k lies along the span ...
constexpr int B_STEP_BYTES = B_COLUMN_MAJOR ? MMA_K * 2 : MMA_K * SPAN * 2;  // ... or across its rows
constexpr int SHARE_M = BLOCK_M / CLUSTER_N;  // rows of A that each block of a cluster brings to all
static_assert(MMA_M == 64 && MMA_K == 16, "the shape of wgmma on FP16");
static_assert(BLOCK_N == 256, "two warpgroups with two halves each: 65,536 registers");
static_assert(BLOCK_M == MMA_N && BLOCK_M <= 224, "one wgmma spans the block tile, and 224 accumulators fit");
static_assert(BLOCK_K == SPAN && SHARE_M % 8 == 0, "a share is whole swizzle periods");
static_assert(GROUP_M % CLUSTER_N == 0, "a cluster's tiles lie in one group");
static_assert(NUM_STAGES >= 3, "one stage is multiplied, one waits, one is refilled");
static_assert(B_BYTES % 1024 == 0 && STAGE_BYTES % 1024 == 0, "stages start where the swizzle's period does");

__device__ __forceinline__ void write_shared(uint32_t to, int value) {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ __forceinline__ int read_shared(uint32_t from) {
    int value;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
    return value;
}

// before_loads() runs between the barriers' setup and the first load; first() is the cluster's first tile.
template <class BeforeLoads, class First>
__device__ __forceinline__ void multiply_turned(const TensorMap* a_map, const TensorMap* b_map,
                                                const TensorMap* c_map, Out* C, int m, int n, int k,
                                                long long ldc, float alpha, float beta,
                                                const BeforeLoads& before_loads, const First& first) {
    extern __shared__ unsigned char shared[];
    // The swizzle turns on address bits 7 to 9, so stages and store buffers start at multiples of 1,024.
    const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t stores = stages + NUM_STAGES * STAGE_BYTES;
    const uint32_t full = stores + GROUPS * STORE_BUFFERS * STORE_BYTES;  // the stage's bytes are there
    const uint32_t empty = full + NUM_STAGES * 8;                         // multiplied, in all blocks
    const uint32_t load_at = empty + NUM_STAGES * 8;  // row and column of the tile that is loaded

    if (threadIdx.x == 0) {
        prefetch_map(a_map), prefetch_map(b_map), prefetch_map(c_map);
        for (int s = 0; s < NUM_STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, GROUPS * CLUSTER_N);
        }
        fence_barrier_init();
    }
    sync_cluster();
    before_loads();

    // Tiles of clusters: every block of one walks the same way, also where its own columns lie beside the
    // matrix. The groups that tile_of makes are of columns here.
    const unsigned tiles_m = (m - 1) / BLOCK_M + 1, tiles_n = (n - 1) / (BLOCK_N * CLUSTER_N) + 1;
    const unsigned tiles = tiles_m * tiles_n, step_tiles = gridDim.x / CLUSTER_N;
    const int k_blocks = (k - 1) / BLOCK_K + 1;
    const int rank = cluster_rank();
    const auto place_of = [&](unsigned index) {
        const TileOrigin t = tile_of<GROUP_M / CLUSTER_N>(index, tiles_n, tiles_m);
        return TileOrigin{t.n * BLOCK_M, (t.m * CLUSTER_N + rank) * BLOCK_N};
    };
    constexpr uint16_t ALL = (1 << CLUSTER_N) - 1;

    // What the loading thread brings next: it is NUM_STAGES k blocks ahead, often in the next tile.
    const unsigned first_tile = first();
    unsigned load_tile = first_tile;
    // Twice the k block, plus 1 on the way back: every other tile walks k backwards and starts on what L2
    // still holds.
    int load_place = 0;
    const auto keep_place = [&] {  // divisions, and no register is left to hold what they give
        const TileOrigin tile = place_of(load_tile);
        write_shared(load_at, tile.m);
        write_shared(load_at + 4, tile.n);
    };
    const auto load_stage = [&](int stage) {
        const int row = read_shared(load_at) + rank * SHARE_M, col = read_shared(load_at + 4);
        const uint32_t b_stage = stages + stage * STAGE_BYTES, arrived = full + stage * 8;
        const uint32_t a_share = b_stage + B_BYTES + rank * SHARE_M * BLOCK_K * 2;
        const int at_k = load_place / 2 * BLOCK_K;
        // All of A's bytes count here, whichever block asks for them; another block's may come first.
        barrier_expect(arrived, STAGE_BYTES);
        copy_box_to_all(a_share, a_map, arrived, at_k, row, ALL);
        if constexpr (B_COLUMN_MAJOR)
            copy_box_in(b_stage, b_map, arrived, at_k, col);
        else
            copy_boxes_in(b_stage, b_map, arrived, 0, at_k, col / SPAN);
        if (load_place / 2 == (load_place & 1 ? 0 : k_blocks - 1)) {
            load_place ^= 1;
            load_tile += step_tiles;
            if (load_tile < tiles) keep_place();
        } else {
            load_place += load_place & 1 ? -2 : 2;
        }
    };
    if (threadIdx.x == 0) {
        keep_place();
        for (int s = 0; s < NUM_STAGES && load_tile < tiles; ++s) load_stage(s);
    }

    // The product is C^T = B^T A^T: columns of C on wgmma's M side, where both layouts of B have 128-byte
    // lines, rows on its N side. A descriptor's lowest field is its address in units of 16 bytes; stages lie
    // too low to carry out of it.
    const Destination destination = {c_map, C, ldc, m, n, alpha, beta};
    const int group = threadIdx.x / WARPGROUP;
    const uint64_t b_first = matrix_descriptor(stages + group * HALVES * SLAB_BYTES, SLAB_BYTES, EIGHT_ROWS);
    const uint64_t a_first = matrix_descriptor(stages + B_BYTES, 0, EIGHT_ROWS);
    float acc[HALVES][MMA_N / 2];

    // A stage that all of this block's and its neighbours' warpgroups have multiplied is filled again.
    const auto release = [&](Ring<NUM_STAGES> place) {
        const int thread = threadIdx.x;
        if (thread % WARPGROUP < CLUSTER_N) barrier_arrive_in(empty + place.index * 8, thread % WARPGROUP);
        if (thread == 0 && load_tile < tiles) {
            barrier_wait(empty + place.index * 8, place.parity);
            load_stage(place.index);
        }
    };

    Ring<NUM_STAGES> ring;
    for (unsigned index = first_tile; index < tiles; index += step_tiles) {
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
                    Wgmma<MMA_N, 0, !B_COLUMN_MAJOR>::run(acc[half], b, a, block + step != 0);
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
        const int col = tile.n + group * HALVES * MMA_M;
        const uint32_t own_stores = stores + group * STORE_BUFFERS * STORE_BYTES;
        store_columns_of_c<0>(acc[0], destination, tile.m, col, own_stores);
        store_columns_of_c<BLOCK_M / STORE_ROWS>(acc[1], destination, tile.m, col + MMA_M, own_stores);
    }
    if (threadIdx.x % WARPGROUP == 0) wait_boxes_read<0>();  // shared memory outlives its readers
    sync_cluster();                                          // and its remote arrivals
}
