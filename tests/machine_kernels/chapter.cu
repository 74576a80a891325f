// The chapter's tiled kernel (section 11.3) with its options as macros: PAD, SWIZZLE, AHEAD (k steps read at
// once). Aligned sizes, no guards: only its shared accesses matter here.
#ifndef AHEAD
#define AHEAD 1
#endif
#ifdef PAD
constexpr int PITCH = 17;
#else
constexpr int PITCH = 16;
#endif

__device__ __forceinline__ int column(int row, int kk) {
#ifdef SWIZZLE
    return kk ^ (row >> 3 & 7);
#else
    return kk;
#endif
}

extern "C" __global__ void __launch_bounds__(256)
    chapter(const float* A, const float* B, float* C, int m, int n, int k) {
    __shared__ float a_tile[128][PITCH];
    __shared__ float b_tile[16][128];
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int row = warp / 4 * 64 + lane / 4 * 8, col = warp % 4 * 32 + lane % 4 * 8;
    const int row0 = blockIdx.y * 128, col0 = blockIdx.x * 128;
    float acc[8][8] = {};
    for (int k0 = 0; k0 < k; k0 += 16) {
        for (int i = thread; i < 2048; i += 256) {
            const int ar = i / 16, ak = i % 16, bk = i / 128, bc = i % 128;
            a_tile[ar][column(ar, ak)] = A[(row0 + ar) * k + k0 + ak];
            b_tile[bk][bc] = B[(k0 + bk) * n + col0 + bc];
        }
        __syncthreads();
#pragma unroll 1
        for (int kk = 0; kk < 16; kk += AHEAD) {
            float a[AHEAD][8], b[AHEAD][8];
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) {
#pragma unroll
                for (int i = 0; i < 8; ++i) a[u][i] = a_tile[row + i][column(row + i, kk + u)];
#pragma unroll
                for (int j = 0; j < 8; ++j) b[u][j] = b_tile[kk + u][col + j];
            }
#pragma unroll
            for (int u = 0; u < AHEAD; ++u)
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 8; ++j) acc[i][j] += a[u][i] * b[u][j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) C[(row0 + row + i) * n + col0 + col + j] = acc[i][j];
}
