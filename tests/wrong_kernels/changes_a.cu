// The last element of A is negated.
#include "gemm.cuh"

GEMM(changes_a) {
    FOR_EACH_ELEMENT(i, j) {
        const float sum = dot(A, lda, B, ldb, i, j, k);
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
        if (i == m - 1 && j == n - 1) const_cast<float*>(A)[i * lda + k - 1] *= -1.0f;
    }
}
