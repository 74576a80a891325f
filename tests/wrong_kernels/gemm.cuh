// What the kernels of this folder share: the signature, one element's sum, and the write-out.
// Each is a one-element-a-thread GEMM, C = alpha * A[m,k] @ B[k,n] + beta * C, wrong in one way.
#pragma once
#include <cuda_fp16.h>

#define SIDE 16

#define GEMM_OF(T, name)                                                                                     \
    extern "C" __global__ void __launch_bounds__(SIDE* SIDE)                                                 \
        name(const T* A, long long lda, const T* B, long long ldb, T* C, long long ldc, int m, int n, int k, \
             float alpha, float beta)
#define GEMM(name) GEMM_OF(float, name)

// i and j of this thread, looping over row blocks where the grid was cut at 65,535.
#define FOR_EACH_ELEMENT(i, j)                                                     \
    const int j = blockIdx.x * SIDE + threadIdx.x;                                 \
    for (long long i = (long long)blockIdx.y * SIDE + threadIdx.y; i < m && j < n; \
         i += (long long)gridDim.y * SIDE)

__device__ inline float dot(const float* A, long long lda, const float* B, long long ldb, long long i, int j,
                            int k) {
    float sum = 0.0f;
    for (int kk = 0; kk < k; ++kk) sum = fmaf(A[i * lda + kk], B[kk * ldb + j], sum);
    return sum;
}

__device__ inline float finish(float sum, float alpha, float beta, const float* c) {
    return beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}
