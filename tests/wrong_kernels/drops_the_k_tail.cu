// k is rounded down to a multiple of 4.
#include "gemm.cuh"

GEMM(drops_the_k_tail) {
    FOR_EACH_ELEMENT(i, j) {
        const float sum = dot(A, lda, B, ldb, i, j, k / 4 * 4);
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
    }
}
