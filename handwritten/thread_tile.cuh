// The register tile of the kernels whose threads hold rows and columns in groups of four, spread over the
// warp tile: where a thread stands, its accumulators, and fragments that are LDS.128. A is transposed in
// shared memory.
#pragma once
#include "tile_io.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(WARP_M) || !defined(WARP_N) || \
    !defined(THREAD_M) || !defined(THREAD_N) || !defined(NUM_STAGES)
#error "tile extents come from handwritten/catalog.py"
#endif
static_assert(WARP_M * WARP_N == 32 * THREAD_M * THREAD_N, "32 lanes' thread tiles fill the warp tile");
static_assert(WARP_M % THREAD_M == 0 && WARP_N % THREAD_N == 0, "the lanes form a grid");
static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warp tiles fill the block tile");
static_assert(THREAD_M % 4 == 0 && THREAD_N % 4 == 0, "a thread reads fragments four elements at a time");

// Elements from one group of four rows (columns) of a thread to its next.
constexpr int GROUP_ROWS = WARP_M / (THREAD_M / 4), GROUP_COLS = WARP_N / (THREAD_N / 4);
// Four more than the rows: a warp stores 8 rows x 4 chunks of k at once, and with this pitch two of them meet
// in a bank, without it four.
constexpr int A_PITCH = BLOCK_M + 4;
constexpr int A_STAGE = BLOCK_K * A_PITCH, B_STAGE = BLOCK_K * BLOCK_N;

struct ThreadTile {
    float value[THREAD_M][THREAD_N];
};

// Where this thread's first row and column lie in the block tile. Four lanes along n come first.
__device__ __forceinline__ Origin thread_origin() {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    return {warp / (BLOCK_N / WARP_N) * WARP_M + lane / (WARP_N / THREAD_N) * 4,
            warp % (BLOCK_N / WARP_N) * WARP_N + lane % (WARP_N / THREAD_N) * 4};
}

// Row i of a thread's tile in the block tile, from its first; columns alike.
__device__ __forceinline__ constexpr int tile_row(int i) {
    return i / 4 * GROUP_ROWS + i % 4;
}
__device__ __forceinline__ constexpr int tile_col(int j) {
    return j / 4 * GROUP_COLS + j % 4;
}

struct Fragments {
    float a[THREAD_M], b[THREAD_N];

    // a_step and b_step point at this thread's first row and column in one step of k.
    __device__ __forceinline__ void read(const float* a_step, const float* b_step) {
#pragma unroll
        for (int i = 0; i < THREAD_M; i += 4) read_four(&a[i], a_step + tile_row(i));
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) read_four(&b[j], b_step + tile_col(j));
    }
};
