// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// v0 with its operands in shared memory: each element of a tile is read BLOCK_M or BLOCK_N times from there.
// Limited by shared-memory instructions: still more than one load for each FFMA.
// Refuses nothing but a grid of 2^31 blocks.
#include "tile_io.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K)
#error "tile extents come from handwritten/catalog.py"
#endif
constexpr int THREADS = BLOCK_M * BLOCK_N;
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is whole warps, at most 1,024 threads");

extern "C" __global__ void __launch_bounds__(THREADS)
    s1_smem_only(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m,
                 int n, int k, long long lda, long long ldb, long long ldc, float alpha, float beta) {
    __shared__ float a_tile[BLOCK_M][BLOCK_K];
    __shared__ float b_tile[BLOCK_K][BLOCK_N];

    const Origin origin = block_origin<BLOCK_M, BLOCK_N>(n);
    const int rows_left = m - origin.row, cols_left = n - origin.col;
    const int row = threadIdx.x / BLOCK_N, col = threadIdx.x % BLOCK_N;
    const TileShare<BLOCK_M, BLOCK_K, 1, THREADS> a_share;
    const TileShare<BLOCK_K, BLOCK_N, 1, THREADS> b_share;
    A += (origin.row + static_cast<long long>(a_share.row)) * lda + a_share.col;
    B += b_share.row * ldb + origin.col + b_share.col;

    float acc = 0.0f;
    for (int k_left = k; k_left > 0; k_left -= BLOCK_K) {
        a_share.copy(A, lda, rows_left, k_left, [&](int r, int c) { return &a_tile[r][c]; });
        b_share.copy(B, ldb, k_left, cols_left, [&](int r, int c) { return &b_tile[r][c]; });
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < BLOCK_K; ++kk) acc += a_tile[row][kk] * b_tile[kk][col];
        __syncthreads();
        A += BLOCK_K;
        B += BLOCK_K * ldb;
    }

    if (row < rows_left && col < cols_left) {
        float* c = C + (origin.row + static_cast<long long>(row)) * ldc + origin.col + col;
        *c = alpha * acc + (beta != 0.0f ? beta * *c : 0.0f);
    }
}
