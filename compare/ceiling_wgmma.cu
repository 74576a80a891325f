// wgmma m64n256 as fast as it issues: two warpgroups, operands in shared memory, nothing loaded in the loop.
// D[64,256] += A[64,K] @ B[256,K]^T, K = 16 (FP16) or 8 (TF32, -DTF32); FP32 accumulators.
// STAGES random stages of A (128 x 128 bytes) and B (256 x 128 bytes) are read in turn, K-major with the
// 128-byte swizzle; every second pass runs with A negated, so that accumulators keep moving and never
// drift. One more pass at the end leaves a sum to check.
#include "ceiling_operands.cuh"

#ifndef STAGES
#error "STAGES comes from compare/ceilings.py"
#endif
constexpr int THREADS = 256;
constexpr int ROW_BYTES = 128;
constexpr int A_BYTES = 128 * ROW_BYTES;
constexpr int STAGE_BYTES = A_BYTES + 256 * ROW_BYTES;
constexpr int STEP_BYTES = 32;  // 16 halves or 8 TF32 along K

// K-major, 128-byte swizzle: groups of 8 rows lie 1024 bytes apart; the leading offset is not used.
__device__ __forceinline__ uint64_t descriptor(uint32_t address) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (1ull << 16) | ((uint64_t)(1024 >> 4) << 32) | (1ull << 62);
}

template <int SIGN>
__device__ __forceinline__ void wgmma(float (&d)[128], uint64_t a, uint64_t b) {
#ifdef TF32
#define SHAPE "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 "
#define MAJOR ""
#else
#define SHAPE "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
#define MAJOR ", 0, 0"
#endif
    // clang-format off
    asm volatile(SHAPE "{"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, 1, %130, 1" MAJOR ";"
        :
          "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "n"(SIGN));
    // clang-format on
}

template <int SIGN>
__device__ __forceinline__ void pass(float (&d)[128], uint32_t a, uint32_t b) {
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
#pragma unroll
        for (int step = 0; step < ROW_BYTES / STEP_BYTES; ++step) {
            const uint32_t at = stage * STAGE_BYTES + step * STEP_BYTES;
            wgmma<SIGN>(d, descriptor(a + at), descriptor(b + at));
        }
    }
}

__device__ __forceinline__ void finish() {
    asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// out[checked_blocks * THREADS][128], for the first blocks only.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ceiling_wgmma(float* out, int iterations, int checked_blocks) {
    extern __shared__ uint8_t raw[];
    const uint32_t base = ((uint32_t)__cvta_generic_to_shared(raw) + 1023) & ~1023u;
    for (uint32_t i = threadIdx.x; i < STAGES * STAGE_BYTES / 4; i += THREADS) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(base + 4 * i), "r"(draw(i)) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();

    // Read from lane 0, which tells the compiler that it is the same for the whole warp.
    const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const uint32_t a = base + group * (A_BYTES / 2);
    const uint32_t b = base + A_BYTES;
    float d[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) d[i] = 0.0f;
#pragma unroll 1
    for (int iteration = 0; iteration < iterations; ++iteration) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        pass<1>(d, a, b);
        pass<-1>(d, a, b);
        finish();
    }
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    pass<1>(d, a, b);
    finish();
    if ((int)blockIdx.x >= checked_blocks) return;
    float* row = out + (uint64_t)(blockIdx.x * THREADS + threadIdx.x) * 128;
#pragma unroll
    for (int i = 0; i < 128; ++i) row[i] = d[i];
}
