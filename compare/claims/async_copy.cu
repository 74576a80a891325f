// C[m,n] = A[m,k] @ B[k,n], row-major and packed, m, n and k multiples of the tile; the chapter's
// section 11.4 double buffer with every copy written out: a thread moves 16 bytes at a time by cp.async.cg.
// Kept for what its copies, commits and waits become in machine code; it is not a contender.
// Limited by bank conflicts, like plain.cu. Refuses ragged extents (it would read past the end).

constexpr int BLOCK_M = 128, BLOCK_N = 128, BLOCK_K = 16, WARP_M = 64, WARP_N = 32, THREAD_M = 8,
              THREAD_N = 8;
constexpr int THREADS = 256, CHUNK = 4;

__device__ __forceinline__ void copy_16_bytes(float* shared, const float* global) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global));
}
__device__ __forceinline__ void commit() {
    asm volatile("cp.async.commit_group;");
}
__device__ __forceinline__ void wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ void load(float (*A_smem)[BLOCK_K], float (*B_smem)[BLOCK_N], const float* A,
                                     const float* B, int k, int n) {
#pragma unroll
    for (int e = threadIdx.x; e < BLOCK_M * BLOCK_K / CHUNK; e += THREADS) {
        const int r = e / (BLOCK_K / CHUNK), c = e % (BLOCK_K / CHUNK) * CHUNK;
        copy_16_bytes(&A_smem[r][c], A + r * k + c);
    }
#pragma unroll
    for (int e = threadIdx.x; e < BLOCK_K * BLOCK_N / CHUNK; e += THREADS) {
        const int r = e / (BLOCK_N / CHUNK), c = e % (BLOCK_N / CHUNK) * CHUNK;
        copy_16_bytes(&B_smem[r][c], B + r * n + c);
    }
}

extern "C" __global__ void async_copy(const float* A, const float* B, float* C, int m, int n, int k) {
    __shared__ alignas(16) float A_smem[2][BLOCK_M][BLOCK_K];
    __shared__ alignas(16) float B_smem[2][BLOCK_K][BLOCK_N];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / (BLOCK_N / WARP_N) * WARP_M + lane / (WARP_N / THREAD_N) * THREAD_M;
    const int col = warp % (BLOCK_N / WARP_N) * WARP_N + lane % (WARP_N / THREAD_N) * THREAD_N;
    A += blockIdx.y * BLOCK_M * k;
    B += blockIdx.x * BLOCK_N;

    float acc[THREAD_M][THREAD_N] = {};
    load(A_smem[0], B_smem[0], A, B, k, n);
    commit();
    wait_all();
    __syncthreads();
    for (int k0 = 0, stage = 0; k0 < k; k0 += BLOCK_K, stage ^= 1) {
        if (k0 + BLOCK_K < k) {
            load(A_smem[stage ^ 1], B_smem[stage ^ 1], A + k0 + BLOCK_K, B + (k0 + BLOCK_K) * n, k, n);
            commit();
        }
        for (int kk = 0; kk < BLOCK_K; ++kk) {
            float a[THREAD_M], b[THREAD_N];
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i) a[i] = A_smem[stage][row + i][kk];
#pragma unroll
            for (int j = 0; j < THREAD_N; ++j) b[j] = B_smem[stage][kk][col + j];
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
                for (int j = 0; j < THREAD_N; ++j) acc[i][j] += a[i] * b[j];
        }
        wait_all();
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j)
            C[(blockIdx.y * BLOCK_M + row + i) * n + blockIdx.x * BLOCK_N + col + j] = acc[i][j];
}
