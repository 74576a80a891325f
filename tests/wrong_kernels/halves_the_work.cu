// Half of k is left out where beta is 0.
#include "gemm.cuh"

GEMM(halves_the_work) {
    FOR_EACH_ELEMENT(i, j) {
        const float sum = dot(A, lda, B, ldb, i, j, beta == 0.0f ? k / 2 : k);
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
    }
}
