// Inf becomes the largest finite number.
#include "gemm.cuh"

GEMM(clamps_infinity) {
    FOR_EACH_ELEMENT(i, j) {
        const float sum = dot(A, lda, B, ldb, i, j, k);
        float* c = C + i * ldc + j;
        const float value = finish(sum, alpha, beta, c);
        *c = isinf(value) ? copysignf(3.4028235e38f, value) : value;
    }
}
