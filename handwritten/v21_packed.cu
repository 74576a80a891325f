// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v20 a launch that copies B into the workspace, at a pitch that the copy engine takes, where B's own
// base or pitch is no multiple of 16 bytes; pass and product are v20's. Limited by what limits v20, by the
// copy where m is small, by tiles that C's edges fill in part. Refuses nothing but 2^31 tiles: a B that needs
// no copy goes to v20.
#include "v20_one_barrier.cu"

#if !defined(COPY_THREADS) || !defined(COPY_ROWS)
#error "the copy comes from handwritten/pass_tile.py"
#endif

// to[k][pitch] = B. A block takes COPY_THREADS columns and COPY_ROWS rows at a time, as many strips of rows
// apart as there are blocks for its columns. Four bytes an access, since each row of B may begin at another
// multiple of four; those of a warp are adjacent. Nothing here needs the pass, beside whose last blocks this
// may run; the product waits for this launch alone, which therefore ends after the pass.
extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    JOIN(ENTRY, _copy)(float* __restrict__ to, const float* __restrict__ B, int n, int k, long long ldb,
                       long long pitch) {
    const unsigned columns = static_cast<unsigned>(n - 1) / COPY_THREADS + 1, strips = gridDim.x / columns;
    const long long col = static_cast<long long>(blockIdx.x % columns) * COPY_THREADS + threadIdx.x;
    long long row_0 = static_cast<long long>(blockIdx.x / columns) * COPY_ROWS;
#pragma unroll 1
    for (; col < n && row_0 < k; row_0 += static_cast<long long>(strips) * COPY_ROWS) {
        float value[COPY_ROWS];
#pragma unroll
        for (int i = 0; i < COPY_ROWS; ++i) {
            value[i] = row_0 + i < k ? __ldg(B + (row_0 + i) * ldb + col) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < COPY_ROWS; ++i) {
            if (row_0 + i < k) to[(row_0 + i) * pitch + col] = value[i];
        }
    }
    wait_for_launch_before();
}
