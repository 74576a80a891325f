// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// v14's grid build with the FFMAs of a step in another order: down pairs of columns, so that a step begins as
// soon as A's fragment and a quarter of B's are there. Tiles go out in groups of rows, which keeps L2's part
// of A and B nearly square. Limited by idle SMs in the last wave. Refuses nothing but a grid of 2^31 blocks.
#include "early_tile.cuh"
#include "tile_order.cuh"

#if !defined(GROUP_M)
#error "GROUP_M comes from handwritten/catalog.py: rows of tiles that are taken together"
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
          int k, long long lda, long long ldb, long long ldc, float alpha, float beta) {
    extern __shared__ __align__(16) float smem[];
    const TileOrigin tile = tile_of<GROUP_M>(blockIdx.x, (m - 1) / BLOCK_M + 1, (n - 1) / BLOCK_N + 1);
    const Origin origin = {tile.m * BLOCK_M, tile.n * BLOCK_N};
    ThreadTile acc = {};
    accumulate_early<true, true>(acc, smem, A, B, m, n, k, lda, ldb, origin, {0, 0, (k - 1) / BLOCK_K + 1});
    write_tile(acc, C, m, n, ldc, origin, alpha, beta);
}
