// FP16 inputs are summed in FP16 although the record says FP32.
#include "gemm.cuh"

GEMM_OF(__half, accumulates_in_fp16) {
    FOR_EACH_ELEMENT(i, j) {
        __half sum = __float2half(0.0f);
        for (int kk = 0; kk < k; ++kk) sum = __hfma(A[i * lda + kk], B[kk * ldb + j], sum);
        __half* c = C + i * ldc + j;
        const float before = beta == 0.0f ? 0.0f : __half2float(*c);
        *c = __float2half(finish(__half2float(sum), alpha, beta, &before));
    }
}
