// Operands of the Tensor Core ceilings: U[-1, 1) like the default input, made from a counter.
#pragma once
#include <cstdint>
#include <cuda_fp16.h>

__device__ __forceinline__ uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// Four bytes of operand: two halves, or (-DTF32) one float whose low 13 bits are zero.
__device__ __forceinline__ uint32_t draw(uint32_t seed) {
    const uint32_t bits = mix(seed);
#ifdef TF32
    return __float_as_uint(((int)(bits >> 8) - 0x800000) * 0x1p-23f) & 0xffffe000u;
#else
    const float low = ((int)(bits & 0xffffu) - 0x8000) * 0x1p-15f;
    const float high = ((int)(bits >> 16) - 0x8000) * 0x1p-15f;
    const __half2 pair = __floats2half2_rn(low, high);
    return *(const uint32_t*)&pair;
#endif
}
