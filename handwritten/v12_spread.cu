// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v9 stream-K, as v8 has it but with whole tiles first and a fix-up of warp to warp, and loads that
// are spread over the steps of a tile, without a branch, where v9 has them all before the first fragments.
// Limited by waits for loads of A, which ptxas moves to their use. Refuses nothing but 2^31 tiles.
#include "stream_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
          int k, long long lda, long long ldb, long long ldc, float alpha, float beta, int* workspace,
          int whole_tiles) {
    Meeting order;
    // With accesses of 4 bytes there are too many loads to spread: ptxas (13.0) runs out of registers.
    run_items<VECTOR == 4>(order, A, B, C, m, n, k, lda, ldb, ldc, alpha, beta, workspace, whole_tiles);
}
