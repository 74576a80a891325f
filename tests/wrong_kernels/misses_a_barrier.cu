// No barrier between reading a tile and overwriting it. The first warp is held up, so that the race is always
// lost.
#include "gemm.cuh"

GEMM(misses_a_barrier) {
    __shared__ float a_tile[SIDE][SIDE];
    __shared__ float b_tile[SIDE][SIDE];
    const int x = threadIdx.x, y = threadIdx.y;
    const long long i = (long long)blockIdx.y * SIDE + y;
    const int j = blockIdx.x * SIDE + x;
    float sum = 0.0f;
    for (int t = 0; t < k; t += SIDE) {
        a_tile[y][x] = i < m && t + x < k ? A[i * lda + t + x] : 0.0f;
        b_tile[y][x] = t + y < k && j < n ? B[(t + y) * ldb + j] : 0.0f;
        __syncthreads();
        float delay = 1.0f;
#pragma unroll 1
        for (int spin = 0; spin < (y < 2 ? 4000 : 0); ++spin) delay = fmaf(delay, 0.999f, 0.001f);
        sum += delay > 100.0f ? 1.0f : 0.0f;
        for (int kk = 0; kk < SIDE; ++kk) sum = fmaf(a_tile[y][kk], b_tile[kk][x], sum);
    }
    if (i < m && j < n) {
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
    }
}
