// The CUDA symbols that a packer library refers to, answered inside the library.
//
// CUTLASS's host code asks the driver to encode tensor maps; here the call is recorded and the map is
// filled with a pattern, so that its place in the parameters can be found without any driver. All of
// these symbols are hidden: a real driver or runtime in the same process is neither used nor shadowed.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "packer.cuh"

#define HIDDEN extern "C" __attribute__((visibility("hidden")))

namespace gemm_tracks {

static thread_local MapRecord recorded[MAX_MAPS];
static thread_local int count = 0;

static thread_local uint64_t clear_begin = 0, clear_end = 0;

void begin_recording() {
    count = 0;
    clear_begin = clear_end = 0;
}

void recorded_clear(uint64_t* address, uint64_t* bytes) {
    *address = clear_begin;
    *bytes = clear_end - clear_begin;
}

int recorded_maps(MapRecord* out, int capacity) {
    int const known = count < capacity ? count : capacity;
    std::memcpy(out, recorded, sizeof(MapRecord) * known);
    return known;
}

void map_pattern(int index, unsigned char* pattern) {
    uint32_t state = 0x9e3779b9u * uint32_t(index + 1);
    for (int i = 0; i < 128; ++i) {
        state = state * 1664525u + 1013904223u;
        pattern[i] = static_cast<unsigned char>(state >> 24);
    }
}

}  // namespace gemm_tracks

HIDDEN CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType dtype, cuuint32_t rank,
                                       void* address, cuuint64_t const* shape, cuuint64_t const* strides,
                                       cuuint32_t const* box, cuuint32_t const* steps,
                                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    using gemm_tracks::count;
    if (count >= gemm_tracks::MAX_MAPS || rank < 1 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
    gemm_tracks::MapRecord& record = gemm_tracks::recorded[count];
    record = {};
    record.address = reinterpret_cast<uint64_t>(address);
    for (cuuint32_t i = 0; i < rank; ++i) {
        record.shape[i] = shape[i];
        record.box[i] = box[i];
        record.steps[i] = steps[i];
        if (i + 1 < rank) record.strides[i] = strides[i];
    }
    record.rank = int(rank);
    record.dtype = int(dtype);
    record.interleave = int(interleave);
    record.swizzle = int(swizzle);
    record.l2_promotion = int(promotion);
    record.oob_fill = int(fill);
    gemm_tracks::map_pattern(count, reinterpret_cast<unsigned char*>(map));
    ++count;
    return CUDA_SUCCESS;
}

// Reached only where a caller leaves the multiprocessor count open, which packers.py never does.
HIDDEN cudaError_t cudaGetDevice(int*) {
    return cudaErrorNoDevice;
}
HIDDEN cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int) {
    return cudaErrorNoDevice;
}
// Stream-K clears its flags through this; the launch clears them instead, where it is told.
HIDDEN cudaError_t cudaMemsetAsync(void* address, int, size_t bytes, cudaStream_t) {
    using namespace gemm_tracks;
    uint64_t const begin = reinterpret_cast<uint64_t>(address), end = begin + bytes;
    bool const first = clear_begin == clear_end;
    clear_begin = first || begin < clear_begin ? begin : clear_begin;
    clear_end = first || end > clear_end ? end : clear_end;
    return cudaSuccess;
}
HIDDEN cudaError_t cudaGetLastError() {
    return cudaSuccess;
}
HIDDEN char const* cudaGetErrorString(cudaError_t) {
    return "no CUDA runtime in a packer";
}

// nvcc's host code registers a fat binary that holds no kernel.
HIDDEN void** __cudaRegisterFatBinary(void*) {
    static void* handle = nullptr;
    return &handle;
}
HIDDEN void __cudaRegisterFatBinaryEnd(void**) {}
HIDDEN void __cudaUnregisterFatBinary(void**) {}
HIDDEN void __cudaRegisterVar(void**, char*, char*, char const*, int, size_t, int, int) {}
