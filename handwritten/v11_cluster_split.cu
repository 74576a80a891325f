// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v9 split-K without a workspace: a cluster's blocks take equal parts of one tile's k, and each adds
// one part of the tile over all of them, in the order of k, through their shared memory. For C of fewer
// tiles than SMs; limited by first loads and sums there. Refuses nothing but a grid of 2^31 blocks.
#include "split_sum.cuh"
#include "stream_tile.cuh"

constexpr int FOURS = THREAD_M * THREAD_N / 4;  // of a thread's tile

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
          int k, long long lda, long long ldb, long long ldc, float alpha, float beta, int slices) {
    extern __shared__ __align__(16) float smem[];
    const int tiles_n = (n - 1) / BLOCK_N + 1, steps = (k - 1) / BLOCK_K + 1;
    const int rank = static_cast<int>(blockIdx.x) % slices, tile = static_cast<int>(blockIdx.x) / slices;
    const Origin origin = {tile / tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N};
    const int quota = steps / slices, extra = steps % slices;
    const int first = rank * quota + min(rank, extra);
    const Item at = {tile, first, first + quota + (rank < extra)};

    ThreadTile acc = {};
    Meeting order;
    if (at.first < at.last) {
        accumulate<Meeting, false>(acc, smem, order, A, B, m, n, k, lda, ldb, origin, at);
    }

    if (slices == 1) {
        write_tile(acc, C, m, n, ldc, origin, alpha, beta);
        return;
    }
    const Origin mine = thread_origin();
    const int rows_left = m - origin.row - mine.row, cols_left = n - origin.col - mine.col;
    float* const c = C + (origin.row + static_cast<long long>(mine.row)) * ldc + origin.col + mine.col;
    __syncthreads();  // nobody reads the tiles any more
    float* const own = smem + threadIdx.x * 4;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) {
            float scaled[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) scaled[e] = alpha * acc.value[i][j + e];
            put_run<4>(own + (i * (THREAD_N / 4) + j / 4) * (4 * THREADS), scaled);
        }
    sync_cluster();
#pragma unroll 4
    for (int four = rank; four < FOURS; four += slices) {
        float sum[4];
        sum_over_cluster(sum, own + four * (4 * THREADS), slices);
        const int i = four / (THREAD_N / 4), j = four % (THREAD_N / 4) * 4;
        if (tile_row(i) < rows_left) {
            write_out<4>(c + tile_row(i) * ldc + tile_col(j), sum, cols_left - tile_col(j), 1.0f, beta);
        }
    }
    sync_cluster();  // nobody leaves while others read its shared memory
}
