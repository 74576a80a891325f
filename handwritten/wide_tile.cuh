// The main loop of the kernels whose block tile is 128 x 256 and whose thread tile is 8 x 16 at 256 threads.
// A is transposed on its way through registers, B comes by cp.async, each some tiles ahead; a thread's rows
// and columns are split into groups of four so that every fragment is LDS.128.
#pragma once
#include "thread_tile.cuh"

static_assert(NUM_STAGES >= 2, "one tile is computed from while others arrive");
constexpr int THREADS = BLOCK_M / WARP_M * (BLOCK_N / WARP_N) * 32;
static_assert(THREADS <= 1024, "a block has at most 1,024 threads");

// 2 x 2 blocks of adjacent rows and columns, forth along one pair of rows and back along the next: an FFMA
// then shares a row or a column with the one before, and with reuse reads one and a half registers. ptxas
// (13.0) sorts the FFMAs anew and comes to 1.96.
__device__ __forceinline__ void multiply(ThreadTile& acc, const Fragments& f) {
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 2)
#pragma unroll
        for (int t = 0; t < THREAD_N; t += 2) {
            const int j = i % 4 ? THREAD_N - 2 - t : t;
            acc.value[i][j] = fmaf(f.a[i], f.b[j], acc.value[i][j]);
            acc.value[i][j + 1] = fmaf(f.a[i], f.b[j + 1], acc.value[i][j + 1]);
            acc.value[i + 1][j + 1] = fmaf(f.a[i + 1], f.b[j + 1], acc.value[i + 1][j + 1]);
            acc.value[i + 1][j] = fmaf(f.a[i + 1], f.b[j], acc.value[i + 1][j]);
        }
}

// acc += A[BLOCK_M rows from origin.row, k_length] @ B[k_length, BLOCK_N columns from origin.col], where A
// and B point at the first column of A and row of B that count, and rows_left and cols_left are those of C
// that exist from the origin. All threads take part; shared memory (NUM_STAGES tiles of A, then of B) is free
// when it starts, and nobody reads it any more after the next barrier when it ends.
__device__ __forceinline__ void accumulate(ThreadTile& acc, float* smem, const float* __restrict__ A,
                                           const float* __restrict__ B, long long lda, long long ldb,
                                           Origin origin, int rows_left, int cols_left, int k_length) {
    float* const a_tiles = smem;
    float* const b_tiles = smem + NUM_STAGES * A_STAGE;
    const Origin mine = thread_origin();
    const TileShare<BLOCK_M, BLOCK_K, VECTOR, THREADS> a_share;
    const TileShare<BLOCK_K, BLOCK_N, VECTOR, THREADS> b_share;
    A += (origin.row + static_cast<long long>(a_share.row)) * lda + a_share.col;
    B += b_share.row * ldb + origin.col + b_share.col;

    float a_staged[a_share.STEPS][VECTOR];
    const auto load = [&](int stage, int k_left) {
        a_share.load(a_staged, A, lda, rows_left, k_left);
        b_share.copy_async(B, ldb, k_left, cols_left,
                           [&](int r, int c) { return b_tiles + stage * B_STAGE + r * BLOCK_N + c; });
        A += BLOCK_K;
        B += BLOCK_K * ldb;
    };
    const auto store_a = [&](int stage) {
        a_share.store(a_staged, [&](int r, int kk, const auto& run) {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) a_tiles[stage * A_STAGE + (kk + j) * A_PITCH + r] = run[j];
        });
    };

    // Whole tiles go through the pipeline without a look at k; what is left of k follows by itself.
    const int whole = k_length / BLOCK_K;
#pragma unroll 1
    for (int stage = 0; stage < NUM_STAGES - 1; ++stage) {
        if (stage < whole) {
            load(stage, BLOCK_K);
            store_a(stage);
        }
        commit_copies();
    }
    int stage = 0, fill = NUM_STAGES - 1;
#pragma unroll 1
    for (int t = 0; t < whole; ++t) {
        wait_for_copies<NUM_STAGES - 2>();
        __syncthreads();  // this tile is there, and nobody reads the one that is filled next
        const bool more = t + NUM_STAGES - 1 < whole;
        if (more) load(fill, BLOCK_K);
        commit_copies();
        const float* a_step = a_tiles + stage * A_STAGE + mine.row;
        const float* b_step = b_tiles + stage * B_STAGE + mine.col;
        Fragments fragments[2];
        fragments[0].read(a_step, b_step);
#pragma unroll
        for (int kk = 0; kk < BLOCK_K; ++kk) {
            if (kk + 1 < BLOCK_K) {
                fragments[(kk + 1) % 2].read(a_step + (kk + 1) * A_PITCH, b_step + (kk + 1) * BLOCK_N);
            }
            multiply(acc, fragments[kk % 2]);
        }
        if (more) store_a(fill);
        stage = stage + 1 == NUM_STAGES ? 0 : stage + 1;
        fill = fill + 1 == NUM_STAGES ? 0 : fill + 1;
    }

    const int rest = k_length % BLOCK_K;
    if (rest == 0) return;
    load(stage, rest);  // read last NUM_STAGES tiles ago, before the last barrier
    store_a(stage);
    wait_for_copies();
    __syncthreads();
    Fragments fragments;
#pragma unroll 1
    for (int kk = 0; kk < rest; ++kk) {
        fragments.read(a_tiles + stage * A_STAGE + kk * A_PITCH + mine.row,
                       b_tiles + stage * B_STAGE + kk * BLOCK_N + mine.col);
        multiply(acc, fragments);
    }
}
