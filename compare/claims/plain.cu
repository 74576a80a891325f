// C[m,n] = A[m,k] @ B[k,n], all row-major and packed; the structure of the chapter's section 11.3 kernel
// (template tiles, 32-bit offsets, no leading dimensions, alpha or beta), kept as evidence for its claims.
// Adds to the naive kernel: block, warp and thread tiles over shared memory. AHEAD k steps are read
// into registers before their FMAs (1 as in section 11.3, 4 as in 11.6). Limited by shared loads.
// Refuses nothing: any m, n, k that 32-bit offsets can address.

template <int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARP_M, int WARP_N, int THREAD_M, int THREAD_N,
          int AHEAD>
__device__ __forceinline__ void plain(const float* A, const float* B, float* C, int m, int n, int k) {
    constexpr int LANES_N = WARP_N / THREAD_N;
    constexpr int WARPS_N = BLOCK_N / WARP_N;
    static_assert(WARP_M * WARP_N == 32 * THREAD_M * THREAD_N, "a warp tile is what its 32 lanes own");
    static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "whole warp tiles fill the block tile");
    static_assert(BLOCK_K % AHEAD == 0, "the read-ahead divides the k extent of the block tile");

    __shared__ float A_smem[BLOCK_M][BLOCK_K];
    __shared__ float B_smem[BLOCK_K][BLOCK_N];

    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int warp = thread / 32, lane = thread % 32;
    const int row = (warp / WARPS_N) * WARP_M + (lane / LANES_N) * THREAD_M;
    const int col = (warp % WARPS_N) * WARP_N + (lane % LANES_N) * THREAD_N;
    const int m0 = blockIdx.y * BLOCK_M, n0 = blockIdx.x * BLOCK_N;

    float acc[THREAD_M][THREAD_N] = {};

    for (int k0 = 0; k0 < k; k0 += BLOCK_K) {
#pragma unroll
        for (int e = thread; e < BLOCK_M * BLOCK_K; e += blockDim.x * blockDim.y) {
            const int r = e / BLOCK_K, c = e % BLOCK_K;
            A_smem[r][c] = m0 + r < m && k0 + c < k ? A[(m0 + r) * k + k0 + c] : 0.0f;
        }
#pragma unroll
        for (int e = thread; e < BLOCK_K * BLOCK_N; e += blockDim.x * blockDim.y) {
            const int r = e / BLOCK_N, c = e % BLOCK_N;
            B_smem[r][c] = k0 + r < k && n0 + c < n ? B[(k0 + r) * n + n0 + c] : 0.0f;
        }
        __syncthreads();

        for (int kk = 0; kk < BLOCK_K; kk += AHEAD) {
            float a[AHEAD][THREAD_M], b[AHEAD][THREAD_N];
#pragma unroll
            for (int s = 0; s < AHEAD; ++s) {
#pragma unroll
                for (int i = 0; i < THREAD_M; ++i) a[s][i] = A_smem[row + i][kk + s];
#pragma unroll
                for (int j = 0; j < THREAD_N; ++j) b[s][j] = B_smem[kk + s][col + j];
            }
#pragma unroll
            for (int s = 0; s < AHEAD; ++s)
#pragma unroll
                for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
                    for (int j = 0; j < THREAD_N; ++j) acc[i][j] += a[s][i] * b[s][j];
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            const int r = m0 + row + i, c = n0 + col + j;
            if (r < m && c < n) C[r * n + c] = acc[i][j];
        }
    }
}

extern "C" __global__ void plain_1(const float* A, const float* B, float* C, int m, int n, int k) {
    plain<128, 128, 16, 64, 32, 8, 8, 1>(A, B, C, m, n, k);
}
extern "C" __global__ void plain_4(const float* A, const float* B, float* C, int m, int n, int k) {
    plain<128, 128, 16, 64, 32, 8, 8, 4>(A, B, C, m, n, k);
}
