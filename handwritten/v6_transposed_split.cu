// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds a transposed A tile and a split thread tile: four rows, then four more half a warp tile below (columns
// alike), so that every fragment is LDS.128 and the lanes of each load lie end to end. A is transposed on its
// way through registers. Limited by issue slots and register ports: 64 FFMAs share them with 4 loads a step,
// at 16 warps an SM. Refuses nothing but a grid of 2^31 blocks.
#include "tile_io.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(WARP_M) || !defined(WARP_N) || \
    !defined(THREAD_M) || !defined(THREAD_N) || !defined(NUM_STAGES)
#error "tile extents come from handwritten/catalog.py"
#endif
static_assert(WARP_M * WARP_N == 32 * THREAD_M * THREAD_N, "32 lanes' thread tiles fill the warp tile");
static_assert(WARP_M % THREAD_M == 0 && WARP_N % THREAD_N == 0, "the lanes form a grid");
static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warp tiles fill the block tile");
static_assert(THREAD_M % 4 == 0 && THREAD_N % 4 == 0, "a thread reads fragments four elements at a time");
static_assert(BLOCK_K == 16 && BLOCK_M % 32 == 0,
              "the swizzle spreads four chunks of a row of A over 32 banks");
constexpr int THREADS = BLOCK_M / WARP_M * (BLOCK_N / WARP_N) * 32;
static_assert(THREADS <= 1024, "a block has at most 1,024 threads");
static_assert(NUM_STAGES == 2, "one buffer is computed from while the other is filled");

// Elements from one group of four rows (columns) of a thread to its next, and from a lane to its neighbour.
#ifdef ADJACENT_ROWS  // v6_transposed_contiguous
constexpr int GROUP_ROWS = 4, LANE_ROWS = THREAD_M;
#else
constexpr int GROUP_ROWS = WARP_M / (THREAD_M / 4), LANE_ROWS = 4;
#endif
constexpr int GROUP_COLS = WARP_N / (THREAD_N / 4), LANE_COLS = 4;

// Where a row of A lies in step kk of its transposed tile. A warp stores 8 rows x 4 chunks of k at once:
// without the XOR the chunks of one row would meet in one bank, with it the 32 words lie in 32 banks. Groups
// of four stay whole.
__device__ __forceinline__ int swizzle(int row, int kk) {
    return row ^ (kk / 4 & 3) << 3;
}

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    v6_transposed_split(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C,
                        int m, int n, int k, long long lda, long long ldb, long long ldc, float alpha,
                        float beta) {
    __shared__ alignas(16) float a_tile[NUM_STAGES][BLOCK_K][BLOCK_M];
    __shared__ alignas(16) float b_tile[NUM_STAGES][BLOCK_K][BLOCK_N];

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / (BLOCK_N / WARP_N) * WARP_M + lane / (WARP_N / THREAD_N) * LANE_ROWS;
    const int col = warp % (BLOCK_N / WARP_N) * WARP_N + lane % (WARP_N / THREAD_N) * LANE_COLS;

    const Origin origin = block_origin<BLOCK_M, BLOCK_N>(n);
    const int rows_left = m - origin.row, cols_left = n - origin.col;
    const TileShare<BLOCK_M, BLOCK_K, VECTOR, THREADS> a_share;
    const TileShare<BLOCK_K, BLOCK_N, VECTOR, THREADS> b_share;
    A += (origin.row + static_cast<long long>(a_share.row)) * lda + a_share.col;
    B += b_share.row * ldb + origin.col + b_share.col;

    float a_staged[a_share.STEPS][VECTOR];
    const auto load = [&](int stage, int k_left) {
        a_share.load(a_staged, A, lda, rows_left, k_left);
        b_share.copy_async(B, ldb, k_left, cols_left, [&](int r, int c) { return &b_tile[stage][r][c]; });
        commit_copies();
    };
    const auto store_a = [&](int stage) {
        a_share.store(a_staged, [&](int r, int kk, const auto& run) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) a_tile[stage][kk + j][swizzle(r, kk + j)] = run[j];
        });
    };

    float acc[THREAD_M][THREAD_N] = {};
    load(0, k);
    store_a(0);
    wait_for_copies();
    __syncthreads();
    int stage = 0;
    for (int k_left = k; k_left > 0; k_left -= BLOCK_K) {
        const bool more = k_left > BLOCK_K;
        if (more) {
            A += BLOCK_K;
            B += BLOCK_K * ldb;
            load(stage ^ 1, k_left - BLOCK_K);
        }
#pragma unroll
        for (int kk = 0; kk < BLOCK_K; ++kk) {
            float a_frag[THREAD_M], b_frag[THREAD_N];
#pragma unroll
            for (int i = 0; i < THREAD_M; i += 4) {
                read_four(&a_frag[i], &a_tile[stage][kk][swizzle(row + i / 4 * GROUP_ROWS, kk)]);
            }
#pragma unroll
            for (int j = 0; j < THREAD_N; j += 4) {
                read_four(&b_frag[j], &b_tile[stage][kk][col + j / 4 * GROUP_COLS]);
            }
            // Down one column, up the next: in row order ptxas (13.0) places the accumulators so that,
            // counted in the SASS, an FFMA takes 1.7 cycles to read its operands from two register banks, in
            // this order 1.17.
#pragma unroll
            for (int j = 0; j < THREAD_N; ++j)
#pragma unroll
                for (int t = 0; t < THREAD_M; ++t) {
                    const int i = j % 2 == 0 ? t : THREAD_M - 1 - t;
                    acc[i][j] += a_frag[i] * b_frag[j];
                }
        }
        if (more) store_a(stage ^ 1);
        wait_for_copies();
        __syncthreads();  // the other buffer is filled and nobody reads this one any more
        stage ^= 1;
    }

#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const int r = row + i / 4 * GROUP_ROWS + i % 4;
        float* c = C + (origin.row + static_cast<long long>(r)) * ldc + origin.col + col;
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) {
            const int right = j / 4 * GROUP_COLS;
            if (r < rows_left) write_out<4>(c + right, &acc[i][j], cols_left - col - right, alpha, beta);
        }
    }
}
