// Two buffers; the last k tile is always read from the second, which is right for an even number of tiles.
#include "gemm.cuh"

#define STEP 8

GEMM(drains_the_wrong_buffer) {
    __shared__ float a_tile[2][SIDE][STEP];
    __shared__ float b_tile[2][STEP][SIDE];
    const int x = threadIdx.x, y = threadIdx.y;
    const long long i = (long long)blockIdx.y * SIDE + y;
    const int j = blockIdx.x * SIDE + x, tiles = (k + STEP - 1) / STEP;
    // Initialised, so that draining it is a wrong answer and no accident of what memory held.
    if (x < STEP) a_tile[1][y][x] = 0.0f;
    if (y < STEP) b_tile[1][y][x] = 0.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int t = 0; t < tiles; ++t) {
        const int a_column = t * STEP + x, b_row = t * STEP + y;
        if (x < STEP) a_tile[t & 1][y][x] = i < m && a_column < k ? A[i * lda + a_column] : 0.0f;
        if (y < STEP) b_tile[t & 1][y][x] = b_row < k && j < n ? B[b_row * ldb + j] : 0.0f;
        __syncthreads();
        const int drained = t == tiles - 1 ? 1 : t & 1;
        for (int kk = 0; kk < STEP; ++kk) sum = fmaf(a_tile[drained][y][kk], b_tile[drained][kk][x], sum);
        __syncthreads();
    }
    if (i < m && j < n) {
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
    }
}
