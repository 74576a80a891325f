// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// One thread an element of C: every reuse is left to the caches.
// Limited by load instructions: two for each FFMA, 0.25 FLOP a byte.
// Refuses nothing but a grid of 2^31 blocks.
#if !defined(BLOCK_M) || !defined(BLOCK_N)
#error "tile extents come from handwritten/catalog.py"
#endif
static_assert(BLOCK_M * BLOCK_N % 32 == 0 && BLOCK_M * BLOCK_N <= 1024,
              "a block is whole warps, at most 1,024 threads");

extern "C" __global__ void __launch_bounds__(BLOCK_M* BLOCK_N)
    v0_naive(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
             int k, long long lda, long long ldb, long long ldc, float alpha, float beta) {
    const unsigned blocks_n = static_cast<unsigned>(n - 1) / BLOCK_N + 1;
    // Unsigned: the last block of an extent near 2^31 reaches past it.
    const unsigned row = blockIdx.x / blocks_n * BLOCK_M + threadIdx.x / BLOCK_N;
    const unsigned col = blockIdx.x % blocks_n * BLOCK_N + threadIdx.x % BLOCK_N;
    if (row >= m || col >= n) return;

    const float* a = A + row * lda;  // A(row, 0)
    const float* b = B + col;        // B(0, col)
    float acc = 0.0f;
    for (int kk = 0; kk < k; ++kk) {
        acc += a[kk] * *b;
        b += ldb;
    }

    float* c = C + row * ldc + col;
    *c = alpha * acc + (beta != 0.0f ? beta * *c : 0.0f);
}
