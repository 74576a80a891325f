// What the FP16 Tensor Core kernels share: the output type, the order of tiles, and a pair of C through
// registers.
#pragma once
#include <cuda_fp16.h>
#include "tile_order.cuh"

#if !defined(OUT_BYTES) || !defined(B_COLUMN_MAJOR)
#error "OUT_BYTES (2 or 4) and B_COLUMN_MAJOR (0 or 1) come from handwritten/tensor_catalog.py"
#endif

template <int BYTES>
struct OutputType;
template <>
struct OutputType<2> {
    using Element = __half;
    using Pair = __half2;
};
template <>
struct OutputType<4> {
    using Element = float;
    using Pair = float2;
};
using Out = OutputType<OUT_BYTES>::Element;
using OutPair = OutputType<OUT_BYTES>::Pair;

__device__ __forceinline__ float2 to_float2(__half2 pair) {
    return __half22float2(pair);
}
__device__ __forceinline__ float2 to_float2(float2 pair) {
    return pair;
}
__device__ __forceinline__ void from_float2(__half2& pair, float2 value) {
    pair = __float22half2_rn(value);
}
__device__ __forceinline__ void from_float2(float2& pair, float2 value) {
    pair = value;
}

// Two neighbours of a row of C; WIDE says that the pair's address is a multiple of its size.
__device__ __forceinline__ float2 read_pair(const Out* c, bool wide, bool both) {
    if (wide && both) return to_float2(*reinterpret_cast<const OutPair*>(c));
    return {static_cast<float>(c[0]), both ? static_cast<float>(c[1]) : 0.0f};
}
