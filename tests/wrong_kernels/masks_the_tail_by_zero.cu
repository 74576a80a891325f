// k is rounded up to a multiple of 4 and what lies behind it is multiplied by 0.
#include "gemm.cuh"

GEMM(masks_the_tail_by_zero) {
    FOR_EACH_ELEMENT(i, j) {
        float sum = 0.0f;
        for (int kk = 0; kk < (k + 3) / 4 * 4; ++kk)
            sum = fmaf(A[i * lda + kk], B[min(kk, k - 1) * ldb + j] * (kk < k ? 1.0f : 0.0f), sum);
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
    }
}
