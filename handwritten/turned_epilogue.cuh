// How a warpgroup writes 64 columns of C whose accumulators are turned: rows of the fragment are columns of
// C.
#pragma once
#include "hopper.cuh"
#include "tensor_epilogue.cuh"

#if !defined(STORE_COLS) || !defined(STORE_ROWS) || !defined(STORE_BUFFERS)
#error "STORE_COLS, STORE_ROWS and STORE_BUFFERS come from handwritten/tensor_catalog.py"
#endif
// A box is STORE_ROWS rows of C by the 128 bytes of a swizzle span; 64 columns of FP32 are two of them.
constexpr int STORE_BYTES = STORE_ROWS * 128;
constexpr int PARTS = OUT_BYTES / 2;
static_assert(STORE_COLS * OUT_BYTES == 128, "one swizzle span");
static_assert(STORE_BUFFERS % PARTS == 0 && STORE_BUFFERS / PARTS >= 2,
              "one is written while another is read");

struct Destination {
    const TensorMap* map;
    Out* c;  // read where beta is not 0
    long long ldc;
    int m;
    int n;
    float alpha;
    float beta;
};

// C[row : row + 2 * COUNT, col : col + 64] = alpha * d^T + beta * C, by one warpgroup; buffers are its own.
// FIRST numbers the call's first box among those that the tile has stored; a tile starts at 0 on empty
// buffers.
template <int FIRST, int COUNT>
__device__ __forceinline__ void store_columns_of_c(float (&d)[COUNT], const Destination& to, int row, int col,
                                                   uint32_t buffers) {
    static_assert(COUNT * 2 % STORE_ROWS == 0, "boxes cover the tile");
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int id = 1 + threadIdx.x / 128;  // of the warpgroup's barrier; 0 belongs to __syncthreads
    if (to.alpha != 1.0f) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) d[i] *= to.alpha;
    }
    if (to.beta != 0.0f) {
        const int c_col = col + warp * 16 + lane / 4, c_row = row + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int at_row = c_row + i / 4 * 8 + i % 2, at_col = c_col + i / 2 % 2 * 8;
            if (at_row < to.m && at_col < to.n)
                d[i] += to.beta * static_cast<float>(to.c[at_row * to.ldc + at_col]);
        }
    }
    // Where the lane writes first. Chunk c (16 bytes) of a row lies at c ^ (row mod 8), so that the chunks
    // that are written together fall into all 32 banks once. FP16: row lane % 8 of matrix lane / 8; matrices
    // 0 and 1 are 16 columns of the same eight rows, 2 and 3 the next eight rows, and the transposing store
    // makes rows of C of them. FP32: row lane % 4 * 2, column lane / 4; further rows and columns are a
    // constant or a turned bit away.
    const int at_row = OUT_BYTES == 2 ? lane / 16 * 8 + lane % 8 : lane % 4 * 2;
    const int at_byte = OUT_BYTES == 2 ? warp * 32 + lane / 8 % 2 * 16 : warp % 2 * 64 + lane / 4 * 4;
    const uint32_t first =
        buffers + (OUT_BYTES == 2 ? 0 : warp / 2 * STORE_BYTES) + at_row * 128 + (at_byte ^ at_row % 8 * 16);
    constexpr int BUFFERS = STORE_BUFFERS / PARTS;
#pragma unroll
    for (int i = 0; i < COUNT * 2 / STORE_ROWS; ++i) {
        const int box = FIRST + i, offset = box % BUFFERS * PARTS * STORE_BYTES;
        // The copy engine has to have read what was in this buffer.
        if (box == 0) {
            if (thread == 0) wait_boxes_read<0>();
            sync_warpgroup(id);
        } else if (box >= BUFFERS) {
            if (thread == 0) wait_boxes_read<BUFFERS - 1>();
            sync_warpgroup(id);
        }
        const float* part = d + i * STORE_ROWS / 2;
        if constexpr (OUT_BYTES == 2) {
#pragma unroll
            for (int j = 0; j < STORE_ROWS / 16; ++j) {
                uint32_t packed[4];
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    const __half2 pair = __floats2half2_rn(part[j * 8 + q * 2], part[j * 8 + q * 2 + 1]);
                    packed[q] = reinterpret_cast<const uint32_t&>(pair);
                }
                store_matrices<true>(first + offset + j * 16 * 128, packed[0], packed[1], packed[2],
                                     packed[3]);
            }
        } else {
#pragma unroll
            for (int j = 0; j < STORE_ROWS / 2; ++j) {
                const int odd_row = j % 2, right = j / 2 % 2;  // of its pair of rows; eight columns further
                const uint32_t at =
                    (first ^ right * 32 ^ odd_row * 16) + odd_row * 128 + offset + j / 4 * 8 * 128;
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(part[j]) : "memory");
            }
        }
        fence_to_async();
        sync_warpgroup(id);
        if (thread == 0) {
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                if (row + i * STORE_ROWS < to.m && col + p * STORE_COLS < to.n)
                    copy_box_out(to.map, buffers + offset + p * STORE_BYTES, col + p * STORE_COLS,
                                 row + i * STORE_ROWS);
            }
            commit_boxes();  // empty where nothing was stored, so that the waits count boxes
        }
    }
}
