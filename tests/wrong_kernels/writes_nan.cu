// The last element is NaN.
#include "gemm.cuh"

GEMM(writes_nan) {
    FOR_EACH_ELEMENT(i, j) {
        const float sum = dot(A, lda, B, ldb, i, j, k);
        float* c = C + i * ldc + j;
        *c = i == m - 1 && j == n - 1 ? __int_as_float(0x7FFFFFFF) : finish(sum, alpha, beta, c);
    }
}
