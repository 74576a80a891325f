// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// v14's main loop with one block a tile: no ticket, no workspace, for grids of whole waves. Limited by idle
// SMs in the last wave. Refuses nothing but a grid of 2^31 blocks.
#include "early_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
          int k, long long lda, long long ldb, long long ldc, float alpha, float beta) {
    extern __shared__ __align__(16) float smem[];
    const Origin origin = block_origin<BLOCK_M, BLOCK_N>(n);
    ThreadTile acc = {};
    accumulate_early<true>(acc, smem, A, B, m, n, k, lda, ldb, origin, {0, 0, (k - 1) / BLOCK_K + 1});
    write_tile(acc, C, m, n, ldc, origin, alpha, beta);
}
