// The base of A is taken as if it were aligned to 16 bytes.
#include "gemm.cuh"

GEMM(rounds_the_base_down) {
    const float* aligned = reinterpret_cast<const float*>(reinterpret_cast<unsigned long long>(A) & ~15ull);
    FOR_EACH_ELEMENT(i, j) {
        const float sum = dot(aligned, lda, B, ldb, i, j, k);
        float* c = C + i * ldc + j;
        *c = finish(sum, alpha, beta, c);
    }
}
