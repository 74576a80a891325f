// Row and column block offsets are exchanged, which squares do not notice.
#include "gemm.cuh"

GEMM(exchanges_blocks) {
    const long long i = (long long)blockIdx.x * SIDE + threadIdx.y;
    const int j = blockIdx.y * SIDE + threadIdx.x;
    if (i < m && j < n) {
        float* c = C + i * ldc + j;
        *c = finish(dot(A, lda, B, ldb, i, j, k), alpha, beta, c);
    }
}
