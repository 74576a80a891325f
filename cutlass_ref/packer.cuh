// Host side of a CUTLASS kernel, built from the emitted type: kernel parameters, grid and shared memory.
// Layout of these structs is mirrored in packers.py. Nothing here calls the CUDA runtime or a driver:
// packer_runtime.cpp answers the few symbols that CUTLASS refers to.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace gemm_tracks {

struct Query {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;  // elements
    uint64_t a, b, c, workspace;
    float alpha, beta;
    int32_t multiprocessors;
    int32_t split_k;      // slices along k of an sm80 kernel
    int32_t raster;       // sm90: 0 the package's heuristic, 1 along M, 2 along N
    int32_t max_swizzle;  // sm90: largest log-free swizzle of the tile order
};

// One cuTensorMapEncodeTiled call: its arguments, and where its result went.
struct MapRecord {
    uint64_t address;
    uint64_t shape[5];    // elements, innermost first
    uint64_t strides[4];  // bytes
    uint32_t box[5];
    uint32_t steps[5];
    int32_t rank;
    int32_t dtype;         // CUtensorMapDataType
    int32_t interleave;    // CUtensorMapInterleave
    int32_t swizzle;       // CUtensorMapSwizzle
    int32_t l2_promotion;  // CUtensorMapL2promotion
    int32_t oob_fill;      // CUtensorMapFloatOOBfill
    int32_t offset;        // bytes from the start of the parameters, -1 if the map is not among them
    int32_t unused;
};

constexpr int MAX_MAPS = 8;

struct Answer {
    uint64_t workspace;                  // bytes
    uint64_t clear_offset, clear_bytes;  // the part of the workspace that must be zero at the launch
    int32_t params;                      // bytes
    int32_t dynamic_smem;
    uint32_t grid[3], block[3], cluster[3];
    int32_t maps;
    MapRecord map[MAX_MAPS];
};

struct Traits {
    int32_t block[3], warp[3], thread[3], mma[3];
    int32_t stages;
    int32_t cluster[2];
    int32_t api;  // 2 or 3
    int32_t cooperative, pingpong;
    int32_t tma_epilogue;
    int32_t params, dynamic_smem;  // bytes
};

// packer_runtime.cpp: what CUTLASS's host code asked of CUDA since begin_recording: tensor maps and
// clearings.
void begin_recording();
void recorded_clear(uint64_t* address, uint64_t* bytes);
int recorded_maps(MapRecord* out, int capacity);
void map_pattern(int index, unsigned char* pattern);

// Find where each recorded map lies in the parameters, and leave zeros there.
inline void locate_maps(Answer* answer, unsigned char* params) {
    answer->maps = recorded_maps(answer->map, MAX_MAPS);
    for (int i = 0; i < answer->maps; ++i) {
        unsigned char pattern[128];
        map_pattern(i, pattern);
        answer->map[i].offset = -1;
        for (int at = 0; at + 128 <= answer->params; ++at) {
            if (std::memcmp(params + at, pattern, 128) == 0) {
                answer->map[i].offset = at;
                std::memset(params + at, 0, 128);
                break;
            }
        }
    }
}

// Where CUTLASS would clear the workspace itself, as an offset. Without one it is handed an address to speak
// of.
constexpr uint64_t SAMPLE_WORKSPACE = 256;

inline void locate_clear(Answer* answer, uint64_t workspace) {
    uint64_t address = 0;
    recorded_clear(&address, &answer->clear_bytes);
    answer->clear_offset = answer->clear_bytes ? address - workspace : 0;
}

inline void store(uint32_t (&out)[3], dim3 extents) {
    out[0] = extents.x;
    out[1] = extents.y;
    out[2] = extents.z;
}

}  // namespace gemm_tracks

// What a library exports for each kernel. pack<> and traits<> come from packer_sm80.cuh or packer_sm90.cuh.
#define GEMM_TRACKS_EXPORT extern "C" __attribute__((visibility("default")))
#define GEMM_TRACKS_PACKER(NAME, KERNEL, ENTRY)                                                           \
    GEMM_TRACKS_EXPORT int gemm_tracks_pack_##NAME(                                                       \
        gemm_tracks::Query const* query, gemm_tracks::Answer* answer, unsigned char* out, int capacity) { \
        return gemm_tracks::pack<KERNEL>(*query, answer, out, capacity);                                  \
    }                                                                                                     \
    GEMM_TRACKS_EXPORT void gemm_tracks_traits_##NAME(gemm_tracks::Traits* out) {                         \
        gemm_tracks::traits<KERNEL>(out);                                                                 \
    }                                                                                                     \
    GEMM_TRACKS_EXPORT char const* gemm_tracks_entry_##NAME() {                                           \
        return ENTRY;                                                                                     \
    }
