// What the FP16 Tensor Core kernels share: the output type, the order of tiles, and a pair of C through
// registers.
#pragma once
#include <cuda_fp16.h>

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

struct TileOrigin {
    int m;
    int n;
};

// Tile number -> block tile, in groups of GROUP rows of tiles: a group walks along n, column by column, so
// that the blocks that run together touch a nearly square part of C. Odd groups walk back, which finds in L2
// the columns of B that the group before ended on.
template <int GROUP>
__device__ __forceinline__ TileOrigin tile_of(unsigned index, unsigned tiles_m, unsigned tiles_n) {
    const unsigned in_group = GROUP * tiles_n;
    const unsigned group = index / in_group, within = index % in_group;
    const unsigned rows = min(tiles_m - group * GROUP, static_cast<unsigned>(GROUP));
    const unsigned column = within / rows;
    return {static_cast<int>(group * GROUP + within % rows),
            static_cast<int>(group & 1 ? tiles_n - 1 - column : column)};
}

// Two neighbours of a row of C; WIDE says that the pair's address is a multiple of its size.
__device__ __forceinline__ float2 read_pair(const Out* c, bool wide, bool both) {
    if (wide && both) return to_float2(*reinterpret_cast<const OutPair*>(c));
    return {static_cast<float>(c[0]), both ? static_cast<float>(c[1]) : 0.0f};
}
