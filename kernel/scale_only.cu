// C[m,n] = beta * C[m,n], C row-major with pitch ldc >= n.
// The path for alpha = 0 and for k = 0: A and B are never read, and beta = 0 never reads C.
// Limited by memory: one read and one write of C.
#include <cuda_fp16.h>

#ifndef THREADS
#error "THREADS comes from kernel/plan.py"
#endif

template <typename T>
__device__ void scale(T* C, long long ldc, long long m, long long n, float beta) {
    const long long total = m * n;
    const long long stride = (long long)gridDim.x * THREADS;
    for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < total; i += stride) {
        T* c = C + (i / n) * ldc + i % n;
        *c = beta == 0.0f ? T(0.0f) : T(beta * float(*c));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scale_only_float32(float* C, long long ldc, long long m, long long n, float beta) {
    scale(C, ldc, m, n, beta);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scale_only_float16(__half* C, long long ldc, long long m, long long n, float beta) {
    scale(C, ldc, m, n, beta);
}
