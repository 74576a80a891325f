// Built with -ftz=true: denormals are taken as zero.
#include "gemm.cuh"

GEMM(flushes_denormals) {
    FOR_EACH_ELEMENT(i, j) {
        const float sum = dot(A, lda, B, ldb, i, j, k);
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
    }
}
