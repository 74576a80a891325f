// FFMA as fast as it issues: CHAINS independent x <- x * x + c per thread, nothing else in the loop.
// The map is chaotic for c near -1.9 and stays in [-2, 2], so operands stay random however long it runs
// (a converging chain would draw the power of constants). An FFMA that reads two distinct registers can
// meet no register bank conflict: only issue slots limit it, 3 of 515 of which go to the loop itself.
#ifndef THREADS
#error "THREADS, CHAINS and STEPS come from compare/ceilings.py"
#endif

// A starting point in (-1, 1), another for every thread and chain.
__device__ __forceinline__ float start(unsigned int i) {
    i = (i ^ 61u ^ (i >> 16)) * 9u;
    i = (i ^ (i >> 4)) * 0x27d4eb2du;
    i ^= i >> 15;
    return __int2float_rn((int)(i & 0xffffffu) - 0x800000) * 1.19e-7f;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) ceiling_ffma(float* out, int iterations) {
    const unsigned int thread = blockIdx.x * THREADS + threadIdx.x;
    // Differs by thread, so that it lies in an ordinary register as a GEMM's operands do.
    const float c = -1.9f - 1e-5f * threadIdx.x;
    float x[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) x[i] = start(thread * CHAINS + i);
#pragma unroll 1
    for (int iteration = 0; iteration < iterations; ++iteration) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int i = 0; i < CHAINS; ++i) x[i] = fmaf(x[i], x[i], c);
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) sum += x[i];
    out[thread] = sum;
}
