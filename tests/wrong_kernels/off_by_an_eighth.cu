// One element is off by 0.125.
#include "gemm.cuh"

GEMM(off_by_an_eighth) {
    FOR_EACH_ELEMENT(i, j) {
        const float sum = dot(A, lda, B, ldb, i, j, k);
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c) + (i == m / 2 && j == n / 2 ? 0.125f : 0.0f);
    }
}
