// Right: the control, which no check may reject.
#include "gemm.cuh"

GEMM(right) {
    FOR_EACH_ELEMENT(i, j) {
        const float sum = dot(A, lda, B, ldb, i, j, k);
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
    }
}
