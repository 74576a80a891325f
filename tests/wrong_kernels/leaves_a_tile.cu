// The last block never writes its tile.
#include "gemm.cuh"

GEMM(leaves_a_tile) {
    if (blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1) return;
    FOR_EACH_ELEMENT(i, j) {
        const float sum = dot(A, lda, B, ldb, i, j, k);
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
    }
}
