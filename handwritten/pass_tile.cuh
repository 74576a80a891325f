// What v18 and v20 share: the launch that transposes A, and the threads and stages of the product that
// follows. A stage is BLOCK_K rows of A transposed, then as many of B, as the copy engine brings them.
#pragma once
#include "early_tile.cuh"
#include "hopper.cuh"

#define PASTE(a, b) a##b
#define JOIN(a, b) PASTE(a, b)
#if !defined(PASS_THREADS) || !defined(PASS_TILE)
#error "the pass comes from handwritten/pass_tile.py"
#endif

// A block's threads: those that multiply, then a warpgroup of which one thread loads and the rest has ended.
constexpr int ALL_THREADS = THREADS + 128;
static_assert(THREADS == 256, "two warpgroups of 240 registers and one of 24 fill the register file");
constexpr int MULTIPLYING_REGISTERS = 240, LOADING_REGISTERS = 24;
constexpr uint32_t A_BYTES = 4 * BLOCK_K * BLOCK_M, STAGE_BYTES = A_BYTES + 4 * BLOCK_K * BLOCK_N;

// to[k][pitch] = A transposed, and the workspace's header zeroed. A block takes PASS_TILE rows of A and so
// many columns at a time, as many strips apart as there are blocks for its rows.
extern "C" __global__ void __launch_bounds__(PASS_THREADS)
    JOIN(ENTRY, _pass)(int* __restrict__ header, float* __restrict__ to, const float* __restrict__ A, int m,
                       int k, long long lda, long long pitch) {
    constexpr int ROWS = PASS_THREADS / PASS_TILE;
    static_assert(PASS_THREADS % PASS_TILE == 0 && PASS_TILE % ROWS == 0, "a step takes whole rows");
    __shared__ float tile[PASS_TILE][PASS_TILE + 1];
    if (blockIdx.x == 0) {
        for (int i = static_cast<int>(threadIdx.x); i < HEADER_BYTES / 4; i += PASS_THREADS) header[i] = 0;
    }
    const int along = static_cast<int>(threadIdx.x) % PASS_TILE;
    const int across = static_cast<int>(threadIdx.x) / PASS_TILE;
    const unsigned rows = static_cast<unsigned>(m - 1) / PASS_TILE + 1, strips = gridDim.x / rows;
    const long long row_0 = static_cast<long long>(blockIdx.x % rows) * PASS_TILE;
#pragma unroll 1
    for (long long col_0 = static_cast<long long>(blockIdx.x / rows) * PASS_TILE; col_0 < k;
         col_0 += static_cast<long long>(strips) * PASS_TILE) {
        float turned[PASS_TILE / ROWS];
#pragma unroll
        for (int step = 0; step < PASS_TILE / ROWS; ++step) {
            const long long row = row_0 + across + step * ROWS;
            const bool exists = row < m && col_0 + along < k;
            turned[step] = exists ? __ldg(A + row * lda + col_0 + along) : 0.0f;
        }
#pragma unroll
        for (int step = 0; step < PASS_TILE / ROWS; ++step) tile[along][across + step * ROWS] = turned[step];
        __syncthreads();
#pragma unroll
        for (int step = 0; step < PASS_TILE; step += ROWS) {
            const long long col = col_0 + across + step;
            if (row_0 + along < m && col < k) to[col * pitch + row_0 + along] = tile[across + step][along];
        }
        __syncthreads();
    }
}
