// Rows are written up to a multiple of 16 columns, into the gap that ldc leaves.
#include "gemm.cuh"

GEMM(writes_row_gaps) {
    const int j = blockIdx.x * SIDE + threadIdx.x;
    for (long long i = (long long)blockIdx.y * SIDE + threadIdx.y; i < m && j < ldc;
         i += (long long)gridDim.y * SIDE) {
        float* c = C + i * ldc + j;
        *c = j < n ? finish(dot(A, lda, B, ldb, i, j, k), alpha, beta, c) : 0.0f;
    }
}
