// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v8 half the block tile at two blocks an SM, which drift apart and cover each other's barriers; a fix-up
// without shared memory or barriers; and no guard in the main loop. Limited by issue slots. Refuses nothing but
// 2^31 tiles.
#include "stream_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
          long long lda, long long ldb, long long ldc, float alpha, float beta, int* workspace,
          int whole_tiles) {
    Meeting order;
    run_items(order, A, B, C, m, n, k, lda, ldb, ldc, alpha, beta, workspace, whole_tiles);
}
