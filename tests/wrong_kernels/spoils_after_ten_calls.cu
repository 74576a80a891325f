// Right for ten calls of an element, wrong afterwards: only a check after timing sees it.
#include "gemm.cuh"

#define COUNTED (1 << 22)
__device__ unsigned char calls[COUNTED];

GEMM(spoils_after_ten_calls) {
    FOR_EACH_ELEMENT(i, j) {
        const bool spoilt = ++calls[(i * n + j) % COUNTED] > 10;
        float* c = C + i * ldc + j;
        *c = finish(dot(A, lda, B, ldb, i, j, k), alpha, beta, c) + (spoilt ? 1.0f : 0.0f);
    }
}
