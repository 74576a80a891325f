// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds to h5 a launch before its product: this one, which copies operands that no tensor map describes into
// the workspace, at pitches that one can have. h5's source is the product; it writes such a C by element.
// Limited by the copies' bytes, then as h5. Refuses what h5 and h0 refuse; copies beyond 2^40 bytes go to h0.
#include "hopper.cuh"

#if !defined(PASS_THREADS) || !defined(PASS_ROWS) || !defined(PASS_STRIP)
#error "PASS_THREADS, PASS_ROWS and PASS_STRIP come from handwritten/tensor_catalog.py"
#endif
constexpr int WARPS = PASS_THREADS / 32;
static_assert(PASS_STRIP == 64, "a lane copies two elements of a row");

// Rows that are copied; pitches in elements. A row of the copy ends with zeros, and with a whole word.
struct Rows {
    const uint16_t* from;
    uint16_t* to;
    int count;
    int width;
    long long pitch;
    long long to_pitch;
};

// Warps that follow each other take strips of the same PASS_ROWS rows. All loads of a strip are in flight at
// once: what lies beyond the matrix repeats its last column or row, so that nothing is guarded but the
// stores.
__device__ __forceinline__ void copy_rows(const Rows& rows, unsigned block, unsigned blocks) {
    const unsigned strips = static_cast<unsigned>((rows.to_pitch - 1) / PASS_STRIP) + 1;
    const unsigned warp = block * WARPS + threadIdx.x / 32;
    const unsigned groups = blocks * WARPS / strips, group = warp / strips;
    const long long col = static_cast<long long>(warp % strips) * PASS_STRIP + threadIdx.x % 32 * 2;
    if (group >= groups || col >= rows.to_pitch) return;
    const int last = rows.width - 1;
    const bool two = col < last;
    const uint16_t* const first = rows.from + min(col, static_cast<long long>(last));
    const uint32_t exist = two ? 0xFFFFFFFF : col == last ? 0xFFFF : 0;
#pragma unroll 1
    for (long long row = static_cast<long long>(group) * PASS_ROWS; row < rows.count;
         row += static_cast<long long>(groups) * PASS_ROWS) {
        const int count = static_cast<int>(min(rows.count - row, static_cast<long long>(PASS_ROWS)));
        uint32_t low[PASS_ROWS], high[PASS_ROWS];
        const uint16_t* from = first + row * rows.pitch;
#pragma unroll
        for (int i = 0; i < PASS_ROWS; ++i) {
            low[i] = from[0];
            high[i] = two ? from[1] : 0;
            if (i + 1 < count) from += rows.pitch;
        }
        uint16_t* to = rows.to + row * rows.to_pitch + col;
#pragma unroll
        for (int i = 0; i < PASS_ROWS; ++i, to += rows.to_pitch) {
            if (i < count) *reinterpret_cast<uint32_t*>(to) = (low[i] | high[i] << 16) & exist;
        }
    }
}

// The first a_blocks blocks copy A, the others B; either may have none.
extern "C" __global__ void __launch_bounds__(PASS_THREADS)
    h9_packed_pass(const Rows a, const Rows b, unsigned a_blocks) {
    let_next_start();
    // The launch before may write an operand, or be the product of another call, which reads the copies.
    wait_for_launch_before();
    if (blockIdx.x < a_blocks) {
        copy_rows(a, blockIdx.x, a_blocks);
    } else {
        copy_rows(b, blockIdx.x - a_blocks, gridDim.x - a_blocks);
    }
}
