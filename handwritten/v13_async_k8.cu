// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v12's stream-K the main loop of cute_sgemm: five stages of eight steps, A transposed by 4-byte
// cp.async, and the next tile's first fragments read before a tile's last FFMAs. Limited by issue slots,
// which copies of 4 bytes take. Refuses nothing but 2^31 tiles.
#include "async_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
          int k, long long lda, long long ldb, long long ldc, float alpha, float beta, int* workspace,
          int whole_tiles) {
    extern __shared__ __align__(16) float smem[];
    const auto products = [&](ThreadTile& acc, Origin origin, const Item& at) {
        accumulate_async(acc, smem, A, B, m, n, k, lda, ldb, origin, at);
    };
    for_items(products, C, m, n, k, ldc, alpha, beta, workspace, whole_tiles);
}
