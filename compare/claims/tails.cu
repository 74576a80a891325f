// C[m,n] = A[m,k] @ B[k,n], row-major with leading dimensions; four ways to treat tiles that stick out.
// guard branches around each load, mask loads from a clamped address and selects zero, exact checks nothing
// (its operands are padded by pad_copy first), fast takes exact's path where a tile is whole, else guard's.
// Kept as evidence for what the second text says of tails. Limited by bank conflicts, like plain.cu.
// exact refuses ragged extents (it would read past the end); the others refuse nothing.

enum Strategy { GUARD, MASK, EXACT, FAST };

template <Strategy STRATEGY>
__device__ __forceinline__ float element(const float* X, int r, int c, int rows, int cols, int pitch) {
    if (STRATEGY == EXACT) return X[r * pitch + c];
    const bool inside = r < rows && c < cols;
    if (STRATEGY == MASK) {
        const float x = X[min(r, rows - 1) * pitch + min(c, cols - 1)];
        return inside ? x : 0.0f;
    }
    return inside ? X[r * pitch + c] : 0.0f;
}

template <int BLOCK, int BLOCK_K, int THREAD, int THREADS>
struct Tiles {
    float A[BLOCK][BLOCK_K];
    float B[BLOCK_K][BLOCK];

    template <Strategy STRATEGY>
    __device__ __forceinline__ void step(const float* gA, const float* gB, int m0, int n0, int k0, int m,
                                         int n, int k, int lda, int ldb, float (&acc)[THREAD][THREAD],
                                         int row, int col) {
#pragma unroll
        for (int e = threadIdx.x; e < BLOCK * BLOCK_K; e += THREADS)
            A[e / BLOCK_K][e % BLOCK_K] =
                element<STRATEGY>(gA, m0 + e / BLOCK_K, k0 + e % BLOCK_K, m, k, lda);
#pragma unroll
        for (int e = threadIdx.x; e < BLOCK_K * BLOCK; e += THREADS)
            B[e / BLOCK][e % BLOCK] = element<STRATEGY>(gB, k0 + e / BLOCK, n0 + e % BLOCK, k, n, ldb);
        __syncthreads();
        for (int kk = 0; kk < BLOCK_K; ++kk) {
            float a[THREAD], b[THREAD];
#pragma unroll
            for (int i = 0; i < THREAD; ++i) a[i] = A[row + i][kk];
#pragma unroll
            for (int j = 0; j < THREAD; ++j) b[j] = B[kk][col + j];
#pragma unroll
            for (int i = 0; i < THREAD; ++i)
#pragma unroll
                for (int j = 0; j < THREAD; ++j) acc[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }
};

template <Strategy STRATEGY, int BLOCK, int BLOCK_K, int THREAD>
__device__ __forceinline__ void gemm(const float* A, const float* B, float* C, int m, int n, int k, int lda,
                                     int ldb, int ldc) {
    constexpr int SIDE = BLOCK / THREAD, THREADS = SIDE * SIDE;
    static_assert(BLOCK % THREAD == 0 && THREADS <= 1024, "thread tiles fill the block tile");
    __shared__ Tiles<BLOCK, BLOCK_K, THREAD, THREADS> tiles;
    const int m0 = blockIdx.y * BLOCK, n0 = blockIdx.x * BLOCK;
    const int row = threadIdx.x / SIDE * THREAD, col = threadIdx.x % SIDE * THREAD;
    float acc[THREAD][THREAD] = {};
    int k0 = 0;
    const bool whole = m0 + BLOCK <= m && n0 + BLOCK <= n;
    if (STRATEGY == FAST && whole)
        for (; k0 + BLOCK_K <= k; k0 += BLOCK_K)
            tiles.template step<EXACT>(A, B, m0, n0, k0, m, n, k, lda, ldb, acc, row, col);
    for (; k0 < k; k0 += BLOCK_K)
        tiles.template step<STRATEGY == FAST ? GUARD : STRATEGY>(A, B, m0, n0, k0, m, n, k, lda, ldb, acc,
                                                                 row, col);
#pragma unroll
    for (int i = 0; i < THREAD; ++i)
#pragma unroll
        for (int j = 0; j < THREAD; ++j) {
            const int r = m0 + row + i, c = n0 + col + j;
            if (STRATEGY == EXACT || (r < m && c < n)) C[r * ldc + c] = acc[i][j];
        }
}

#define TAIL_KERNEL(NAME, STRATEGY)                                                                 \
    extern "C" __global__ void __launch_bounds__(256) NAME##_16(                                    \
        const float* A, const float* B, float* C, int m, int n, int k, int lda, int ldb, int ldc) { \
        gemm<STRATEGY, 16, 16, 1>(A, B, C, m, n, k, lda, ldb, ldc);                                 \
    }                                                                                               \
    extern "C" __global__ void __launch_bounds__(256) NAME##_128(                                   \
        const float* A, const float* B, float* C, int m, int n, int k, int lda, int ldb, int ldc) { \
        gemm<STRATEGY, 128, 16, 8>(A, B, C, m, n, k, lda, ldb, ldc);                                \
    }

TAIL_KERNEL(guard, GUARD)
TAIL_KERNEL(mask, MASK)
TAIL_KERNEL(exact, EXACT)
TAIL_KERNEL(fast, FAST)

// Y[rows_out, cols_out] = X[rows_in, cols_in] with zeros beyond; pitches in elements. Pads and crops.
extern "C" __global__ void __launch_bounds__(256)
    pad_copy(const float* X, float* Y, int rows_in, int cols_in, int pitch_in, int rows_out, int cols_out,
             int pitch_out) {
    for (int e = blockIdx.x * 256 + threadIdx.x; e < rows_out * cols_out; e += gridDim.x * 256) {
        const int r = e / cols_out, c = e % cols_out;
        Y[r * pitch_out + c] = r < rows_in && c < cols_in ? X[r * pitch_in + c] : 0.0f;
    }
}
