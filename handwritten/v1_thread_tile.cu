// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds a thread tile: THREAD_M + THREAD_N loads feed THREAD_M * THREAD_N FFMAs, a quarter of v0's loads.
// Limited by loads still: half of one for each FFMA, each waiting on a cache.
// Refuses nothing but a grid of 2^31 blocks.
#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(THREAD_M) || !defined(THREAD_N)
#error "tile extents come from handwritten/catalog.py"
#endif
static_assert(BLOCK_M % THREAD_M == 0 && BLOCK_N % THREAD_N == 0, "thread tiles fill the block tile");
constexpr int THREADS_N = BLOCK_N / THREAD_N;
constexpr int THREADS = BLOCK_M / THREAD_M * THREADS_N;
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is whole warps, at most 1,024 threads");

extern "C" __global__ void __launch_bounds__(THREADS)
    v1_thread_tile(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m,
                   int n, int k, long long lda, long long ldb, long long ldc, float alpha, float beta) {
    const unsigned blocks_n = static_cast<unsigned>(n - 1) / BLOCK_N + 1;
    const unsigned row = blockIdx.x / blocks_n * BLOCK_M + threadIdx.x / THREADS_N * THREAD_M;
    const unsigned col = blockIdx.x % blocks_n * BLOCK_N + threadIdx.x % THREADS_N * THREAD_N;
    if (row >= m || col >= n) return;

    // Rows and columns past the edge repeat the last one: loads stay inside, and nothing is written for them.
    const float* a[THREAD_M];
    const float* b[THREAD_N];
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) a[i] = A + min(row + i, m - 1u) * lda;
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) b[j] = B + min(col + j, n - 1u);

    float acc[THREAD_M][THREAD_N] = {};
    long long b_row = 0;
    for (int kk = 0; kk < k; ++kk) {
        float a_frag[THREAD_M], b_frag[THREAD_N];
#pragma unroll
        for (int i = 0; i < THREAD_M; ++i) a_frag[i] = a[i][kk];
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) b_frag[j] = b[j][b_row];
#pragma unroll
        for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
            for (int j = 0; j < THREAD_N; ++j) acc[i][j] += a_frag[i] * b_frag[j];
        b_row += ldb;
    }

#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        float* c = C + (row + i) * ldc + col;
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            if (row + i < m && col + j < n) c[j] = alpha * acc[i][j] + (beta != 0.0f ? beta * c[j] : 0.0f);
        }
    }
}
