// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v7's tile and v12's stream-K a loop that waits once a tile, at its top, and loads of A that stay
// before that wait: ptxas then places registers without clashes, and no load waits for memory. Limited by the
// FMA pipe, and by where shares stand in k, which costs L2. Refuses nothing but 2^31 tiles.
#include "early_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
          int k, long long lda, long long ldb, long long ldc, float alpha, float beta, int* workspace,
          int whole_tiles) {
    extern __shared__ __align__(16) float smem[];
    const auto products = [&](ThreadTile& acc, Origin origin, const Item& at) {
        accumulate_early<true>(acc, smem, A, B, m, n, k, lda, ldb, origin, at);
    };
    for_items(products, C, m, n, k, ldc, alpha, beta, workspace, whole_tiles);
}
