// Inputs are cut to the 10 bits of TF32.
#include "gemm.cuh"

__device__ float cut(float x) {
    return __uint_as_float(__float_as_uint(x) & 0xFFFFE000u);
}

GEMM(rounds_to_tf32) {
    FOR_EACH_ELEMENT(i, j) {
        float sum = 0.0f;
        for (int kk = 0; kk < k; ++kk) sum = fmaf(cut(A[i * lda + kk]), cut(B[kk * ldb + j]), sum);
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
    }
}
