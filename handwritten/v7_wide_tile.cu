// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds a thread tile of 8 x 16 in a block tile of 128 x 256: 128 FFMAs share 6 loads a step where v6 has 64
// on 4, at one block an SM. Copies run two tiles ahead and one barrier a tile is left. Limited by latency
// that two warps a scheduler cannot hide and by register ports. Refuses nothing but a grid of 2^31 blocks.
#include "wide_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    v7_wide_tile(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m,
                 int n, int k, long long lda, long long ldb, long long ldc, float alpha, float beta) {
    extern __shared__ __align__(16) float smem[];
    const Origin origin = block_origin<BLOCK_M, BLOCK_N>(n);
    const int rows_left = m - origin.row, cols_left = n - origin.col;

    ThreadTile acc = {};
    accumulate(acc, smem, A, B, lda, ldb, origin, rows_left, cols_left, k);

    const Origin mine = thread_origin();
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const int row = mine.row + tile_row(i);
        if (row >= rows_left) continue;
        float* c = C + (origin.row + static_cast<long long>(row)) * ldc + origin.col + mine.col;
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) {
            write_out<4>(c + tile_col(j), &acc.value[i][j], cols_left - mine.col - tile_col(j), alpha, beta);
        }
    }
}
