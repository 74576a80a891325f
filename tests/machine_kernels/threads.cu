// What threads do together: shuffles, votes, named barriers, divergence, atomics, spinning, local and
// constant memory.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void shuffles(const int* x, int* y) {
    const int v = x[threadIdx.x], lane = threadIdx.x % 32;
    int* out = y + threadIdx.x * 8;
    out[0] = __shfl_xor_sync(~0u, v, 5);
    out[1] = __shfl_up_sync(~0u, v, 3);
    out[2] = __shfl_down_sync(~0u, v, 3, 8);
    out[3] = __shfl_sync(~0u, v, lane / 2);
    out[4] = __ballot_sync(~0u, v > 0);
    out[5] = __any_sync(~0u, v == 3) * 2 + __all_sync(~0u, v > -1000);
    out[6] = __reduce_add_sync(~0u, v);
    out[7] = __match_any_sync(~0u, v % 3);
}

// Lanes take different ways, loop different numbers of times, return early, and meet again.
extern "C" __global__ void divergence(int* y, int n) {
    const int t = threadIdx.x;
    int sum = 0;
    if (t == 7) {
        y[t] = -7;
        return;
    }
    for (int i = 0; i < t % 5; ++i) {
        if (i == 3) continue;
        for (int j = 0; j < i; ++j) {
            sum += j * t;
            if (sum > n) break;
        }
        sum += i;
    }
    switch (t % 6) {
        case 0:
            sum += 1;
            break;
        case 1:
            sum *= 3;
        case 2:
            sum -= 2;
            break;
        case 3:
            sum ^= 5;
            break;
        case 4:
            sum = -sum;
            break;
        default:
            sum += 100;
    }
    y[t] = sum + __popc(__activemask());
}

// Two groups of warps hand a value to and fro through named barriers.
extern "C" __global__ void producers(float* y, int rounds) {
    __shared__ float box[64];
    const int t = threadIdx.x;
    float sum = 0;
    if (t < 64) {
        for (int i = 0; i < rounds; ++i) {
#ifndef NO_EMPTY_BARRIER
            if (i) asm volatile("bar.sync 2, 128;" ::: "memory");
#endif
            box[t] = t * 10.0f + i;
            asm volatile("bar.arrive 1, 128;" ::: "memory");
        }
    } else {
        for (int i = 0; i < rounds; ++i) {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            sum += box[127 - t];
#ifndef NO_EMPTY_BARRIER
            if (i + 1 < rounds) asm volatile("bar.arrive 2, 128;" ::: "memory");
#endif
        }
        y[t - 64] = sum;
    }
}

// The first block waits for the last one: blocks that spin must let others run.
extern "C" __global__ void across_blocks(int* flag, int* y) {
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) {
            while (atomicAdd(flag, 0) == 0) {
            }
        }
        __syncthreads();
        y[threadIdx.x] = *reinterpret_cast<volatile int*>(flag);
    } else if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
        atomicExch(flag, 42);
    }
}

extern "C" __global__ void histogram(const int* x, int* counts, int* largest, float* total) {
    __shared__ int bins[8];
    if (threadIdx.x < 8) bins[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&bins[x[blockIdx.x * blockDim.x + threadIdx.x] & 7], 1);
    atomicMax(largest, x[blockIdx.x * blockDim.x + threadIdx.x]);
    atomicAdd(total, 0.5f);
    __syncthreads();
    if (threadIdx.x < 8) atomicAdd(&counts[threadIdx.x], bins[threadIdx.x]);
}

__constant__ float table[16] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
__device__ int tally = 5;

extern "C" __global__ void memories(float* y, const int* at) {
    float local[16];
    for (int i = 0; i < 16; ++i) local[i] = table[(i + threadIdx.x) & 15] + tally;
    for (int i = 0; i < 4; ++i) local[at[threadIdx.x * 4 + i]] += 0.5f;
    float sum = 0;
    for (int i = 0; i < 16; ++i) sum += local[at[(threadIdx.x + i) & 31]] * i;
    y[threadIdx.x] = sum;
}

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// One warp: D[16,8] = A[16,16] @ B[16,8] + C, A by ldmatrix, B by ldmatrix.trans from a row-major tile.
template <class T>
__device__ void multiply(const T* A, const T* B, float* D, const bool brain) {
    __shared__ alignas(16) T a[16][16];
    __shared__ alignas(16) T b[16][8];
    const int t = threadIdx.x;
    for (int i = t; i < 256; i += 32) a[i / 16][i % 16] = A[i];
    for (int i = t; i < 128; i += 32) b[i / 8][i % 8] = B[i];
    __syncthreads();
    unsigned fa[4], fb[2];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3])
                 : "r"(shared_address(&a[t % 16][t / 16 * 8])));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(fb[0]), "=r"(fb[1])
                 : "r"(shared_address(&b[t % 16][0])));
    float d[4] = {1, 1, 1, 1};
    if (brain) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    }
    for (int i = 0; i < 4; ++i) D[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[i];
}
extern "C" __global__ void multiply_half(const half* A, const half* B, float* D) {
    multiply(A, B, D, false);
}
extern "C" __global__ void multiply_bfloat(const __nv_bfloat16* A, const __nv_bfloat16* B, float* D) {
    multiply(A, B, D, true);
}

extern "C" __global__ void multiply_tf32(const float* A, const float* B, float* D) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    float d[4] = {};
    const auto bits = [](float x) {
        unsigned r;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
        return r;
    };
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(bits(A[g * 8 + t])), "r"(bits(A[(g + 8) * 8 + t])), "r"(bits(A[g * 8 + t + 4])),
          "r"(bits(A[(g + 8) * 8 + t + 4])), "r"(bits(B[t * 8 + g])), "r"(bits(B[(t + 4) * 8 + g])));
    for (int i = 0; i < 4; ++i) D[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
}

// Strided words of shared memory, to be counted.
extern "C" __global__ void strided(float* y, int stride) {
    __shared__ float box[32 * 33];
    for (int i = threadIdx.x; i < 32 * 33; i += 32) box[i] = i;
    __syncthreads();
    y[threadIdx.x] = box[threadIdx.x * stride];
}

// Warp-synchronous reduction: right only with the __syncwarp that WARP_UNSYNCED leaves out.
extern "C" __global__ void warp_sum(const float* x, float* y) {
    __shared__ float part[32];
    part[threadIdx.x] = x[threadIdx.x];
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
#ifndef WARP_UNSYNCED
        __syncwarp();
#endif
        const float other = part[threadIdx.x ^ half];
#ifndef WARP_UNSYNCED
        __syncwarp();
#endif
        part[threadIdx.x] += other;
    }
    y[threadIdx.x] = part[threadIdx.x];
}
