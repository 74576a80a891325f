// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// s1 with THREAD_M rows of one column a thread: an element of B in a register serves THREAD_M FFMAs.
// Limited by shared-memory instructions: an element of A still serves one FFMA.
// Refuses nothing but a grid of 2^31 blocks.
#include "tile_io.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(THREAD_M)
#error "tile extents come from handwritten/catalog.py"
#endif
static_assert(BLOCK_M % THREAD_M == 0, "thread columns fill the block tile");
constexpr int THREADS = BLOCK_M / THREAD_M * BLOCK_N;
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is whole warps, at most 1,024 threads");

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    s2_thread_column(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m,
                     int n, int k, long long lda, long long ldb, long long ldc, float alpha, float beta) {
    __shared__ float a_tile[BLOCK_M][BLOCK_K];
    __shared__ float b_tile[BLOCK_K][BLOCK_N];

    const Origin origin = block_origin<BLOCK_M, BLOCK_N>(n);
    const int rows_left = m - origin.row, cols_left = n - origin.col;
    const int row = threadIdx.x / BLOCK_N * THREAD_M, col = threadIdx.x % BLOCK_N;
    const TileShare<BLOCK_M, BLOCK_K, 1, THREADS> a_share;
    const TileShare<BLOCK_K, BLOCK_N, 1, THREADS> b_share;
    A += (origin.row + static_cast<long long>(a_share.row)) * lda + a_share.col;
    B += b_share.row * ldb + origin.col + b_share.col;

    float acc[THREAD_M] = {};
    for (int k_left = k; k_left > 0; k_left -= BLOCK_K) {
        a_share.copy(A, lda, rows_left, k_left, [&](int r, int c) { return &a_tile[r][c]; });
        b_share.copy(B, ldb, k_left, cols_left, [&](int r, int c) { return &b_tile[r][c]; });
        __syncthreads();
#pragma unroll 4
        for (int kk = 0; kk < BLOCK_K; ++kk) {
            const float b = b_tile[kk][col];
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i) acc[i] += a_tile[row + i][kk] * b;
        }
        __syncthreads();
        A += BLOCK_K;
        B += BLOCK_K * ldb;
    }

    float* c = C + (origin.row + static_cast<long long>(row)) * ldc + origin.col + col;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        if (row + i < rows_left && col < cols_left) *c = alpha * acc[i] + (beta != 0.0f ? beta * *c : 0.0f);
        c += ldc;
    }
}
