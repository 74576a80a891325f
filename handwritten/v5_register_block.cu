// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v3 four steps of k read ahead: along a row of A they are one LDS.128, 16 loads in all instead
// of 40. Limited by conflicts still: eight rows in one bank group, now for a quarter as many loads of A.
// Refuses nothing but a grid of 2^31 blocks.
#include "tile_io.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(WARP_M) || !defined(WARP_N) || \
    !defined(THREAD_M) || !defined(THREAD_N) || !defined(NUM_STAGES)
#error "tile extents come from handwritten/catalog.py"
#endif
static_assert(WARP_M * WARP_N == 32 * THREAD_M * THREAD_N, "32 lanes' thread tiles fill the warp tile");
static_assert(WARP_M % THREAD_M == 0 && WARP_N % THREAD_N == 0, "the lanes form a grid");
static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warp tiles fill the block tile");
static_assert(THREAD_N % 4 == 0, "a thread reads B four columns at a time");
static_assert(BLOCK_K % 4 == 0, "four steps of k are read at once");
constexpr int THREADS = BLOCK_M / WARP_M * (BLOCK_N / WARP_N) * 32;
static_assert(THREADS <= 1024, "a block has at most 1,024 threads");
static_assert(NUM_STAGES == 2, "one buffer is computed from while the other is filled");

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    v5_register_block(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m,
                      int n, int k, long long lda, long long ldb, long long ldc, float alpha, float beta) {
    __shared__ alignas(16) float a_tile[NUM_STAGES][BLOCK_M][BLOCK_K];
    __shared__ alignas(16) float b_tile[NUM_STAGES][BLOCK_K][BLOCK_N];

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / (BLOCK_N / WARP_N) * WARP_M + lane / (WARP_N / THREAD_N) * THREAD_M;
    const int col = warp % (BLOCK_N / WARP_N) * WARP_N + lane % (WARP_N / THREAD_N) * THREAD_N;

    const Origin origin = block_origin<BLOCK_M, BLOCK_N>(n);
    const int rows_left = m - origin.row, cols_left = n - origin.col;
    const TileShare<BLOCK_M, BLOCK_K, VECTOR, THREADS> a_share;
    const TileShare<BLOCK_K, BLOCK_N, VECTOR, THREADS> b_share;
    A += (origin.row + static_cast<long long>(a_share.row)) * lda + a_share.col;
    B += b_share.row * ldb + origin.col + b_share.col;

    // From where A and B point now, with k_left columns of A still to come.
    const auto load = [&](int stage, int k_left) {
        a_share.copy_async(A, lda, rows_left, k_left, [&](int r, int c) { return &a_tile[stage][r][c]; });
        b_share.copy_async(B, ldb, k_left, cols_left, [&](int r, int c) { return &b_tile[stage][r][c]; });
        commit_copies();
    };

    float acc[THREAD_M][THREAD_N] = {};
    load(0, k);
    wait_for_copies();
    __syncthreads();
    int stage = 0;
    for (int k_left = k; k_left > 0; k_left -= BLOCK_K) {
        if (k_left > BLOCK_K) {
            A += BLOCK_K;
            B += BLOCK_K * ldb;
            load(stage ^ 1, k_left - BLOCK_K);
        }

#pragma unroll 1
        for (int kk = 0; kk < BLOCK_K; kk += 4) {
            float a_frag[THREAD_M][4], b_frag[4][THREAD_N];
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i) read_four(a_frag[i], &a_tile[stage][row + i][kk]);
#pragma unroll
            for (int u = 0; u < 4; ++u)
#pragma unroll
                for (int j = 0; j < THREAD_N; j += 4)
                    read_four(&b_frag[u][j], &b_tile[stage][kk + u][col + j]);
#pragma unroll
            for (int u = 0; u < 4; ++u)
#pragma unroll
                for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
                    for (int j = 0; j < THREAD_N; ++j) acc[i][j] += a_frag[i][u] * b_frag[u][j];
        }

        wait_for_copies();
        __syncthreads();  // the other buffer is filled and nobody reads this one any more
        stage ^= 1;
    }

    float* c = C + (origin.row + static_cast<long long>(row)) * ldc + origin.col + col;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        if (row + i < rows_left) write_out<THREAD_N>(c, acc[i], cols_left - col, alpha, beta);
        c += ldc;
    }
}
