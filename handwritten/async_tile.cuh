// The main loop of v13: both operands come by cp.async, A element by element so that it arrives transposed,
// and a tile's first fragments are read before the FFMAs of the last step of the tile before. Else as
// stream_tile.cuh has it: no edge in the loop, a ragged k first.
#pragma once
#include "stream_tile.cuh"

// What one thread copies of each tile of A. A warp takes 32 / BLOCK_K rows: with 8 steps and a pitch of
// 4 modulo 32 it stores to 32 banks, and reads whole sectors.
struct ColumnsOfA {
    static constexpr int ROWS = THREADS / BLOCK_K, COPIES = BLOCK_M / ROWS;
    static_assert(BLOCK_K == 8, "4 rows x 8 steps of A are stored to 32 banks at once");
    static_assert(THREADS % BLOCK_K == 0 && BLOCK_M % ROWS == 0, "every thread takes equally many rows of A");

    const float* row[COPIES];
    int at = 0;  // columns from row[] to the tile that is copied next

    // Rows beyond A repeat the last one.
    __device__ __forceinline__ ColumnsOfA(const float* A, int m, long long lda, Origin origin, int k_first) {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int r = min(static_cast<int>(threadIdx.x) / BLOCK_K + i * ROWS, m - 1 - origin.row);
            row[i] = A + (origin.row + r) * lda + k_first + col();
        }
    }
    __device__ __forceinline__ static int col() { return static_cast<int>(threadIdx.x) % BLOCK_K; }

    // k_exist columns count; the others are zeros, and at moves on by as many as count.
    __device__ __forceinline__ void copy(float* tile, int k_exist) {
        float* const to = tile + col() * A_PITCH + static_cast<int>(threadIdx.x) / BLOCK_K;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            copy_run_async<1>(to + i * ROWS, row[i] + at, col() < k_exist ? 1 : 0);
        }
        at += k_exist;
    }
};

// As accumulate() in stream_tile.cuh, which says what is given and left.
__device__ __forceinline__ void accumulate_async(ThreadTile& acc, float* smem, const float* A, const float* B,
                                                 int m, int n, int k, long long lda, long long ldb,
                                                 Origin origin, const Item& item) {
    constexpr int AHEAD = NUM_STAGES - 1;
    float* const b_tiles = smem + NUM_STAGES * A_STAGE;
    const int ragged = (k - 1) % BLOCK_K + 1;
    const int k_first = item.first == 0 ? 0 : ragged + (item.first - 1) * BLOCK_K;
    const int tiles = item.last - item.first;
    ColumnsOfA a(A, m, lda, origin, k_first);
    Loader b(A, B, m, n, lda, ldb, origin, k_first);

    // Copies of a whole tile. Past the item's last one they are of nothing, which takes less than a branch.
    const auto copy_tile = [&](int stage, bool exists) {
        a.copy(smem + stage * A_STAGE, exists ? BLOCK_K : 0);
#pragma unroll
        for (int i = 0; i < Loader::B_STEPS; ++i) b.copy_b(i, b_tiles + stage * B_STAGE, exists);
        commit_copies();
    };
    const int exist = item.first == 0 ? ragged : BLOCK_K;
    a.copy(smem, exist);
    b.copy_b_part(b_tiles, exist, ldb);
    commit_copies();
#pragma unroll
    for (int stage = 1; stage < AHEAD; ++stage) copy_tile(stage, stage < tiles);

    const Origin mine = thread_origin();
    const float* const a_mine = smem + mine.row;
    const float* const b_mine = b_tiles + mine.col;
    Fragments fragments[2];
    wait_for_copies<AHEAD - 1>();
    __syncthreads();
    fragments[0].read(a_mine, b_mine);
    int stage = 0, fill = AHEAD;
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
        const int following = stage + 1 == NUM_STAGES ? 0 : stage + 1;
        const float* const a_step = a_mine + stage * A_STAGE;
        const float* const b_step = b_mine + stage * B_STAGE;
#pragma unroll
        for (int kk = 0; kk < BLOCK_K; ++kk) {
            if (kk + 1 < BLOCK_K) {
                fragments[(kk + 1) % 2].read(a_step + (kk + 1) * A_PITCH, b_step + (kk + 1) * BLOCK_N);
            } else {
                // After this barrier nobody reads the stage of this tile any more, and the next one is there.
                wait_for_copies<AHEAD - 1>();
                __syncthreads();
                fragments[0].read(a_mine + following * A_STAGE, b_mine + following * B_STAGE);
            }
            if (kk == 0) copy_tile(fill, t + AHEAD < tiles);
            multiply(acc, fragments[kk % 2]);
        }
        fill = stage;
        stage = following;
    }
}
