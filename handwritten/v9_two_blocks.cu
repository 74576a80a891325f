// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v7 half the block tile at two blocks an SM, which drift apart and cover each other's barriers, and
// a main loop without a guard: rows and columns beyond C repeat the last, a ragged k comes first. Limited by
// boundaries between tiles and by idle SMs in the last wave. Refuses nothing but a grid of 2^31 blocks.
#include "stream_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
          int k, long long lda, long long ldb, long long ldc, float alpha, float beta) {
    extern __shared__ __align__(16) float smem[];
    const Origin origin = block_origin<BLOCK_M, BLOCK_N>(n);
    ThreadTile acc = {};
    Meeting order;
    accumulate<Meeting, false>(acc, smem, order, A, B, m, n, k, lda, ldb, origin,
                               {0, 0, (k - 1) / BLOCK_K + 1});
    write_tile(acc, C, m, n, ldc, origin, alpha, beta);
}
