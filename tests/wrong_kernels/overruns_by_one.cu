// The element behind the last one is written too.
#include "gemm.cuh"

GEMM(overruns_by_one) {
    FOR_EACH_ELEMENT(i, j) {
        const float sum = dot(A, lda, B, ldb, i, j, k);
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
        if (i == m - 1 && j == n - 1) c[1] = *c;
    }
}
