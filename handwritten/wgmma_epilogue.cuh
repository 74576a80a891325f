// How a wgmma kernel's warpgroup writes 64 rows of C: from accumulators through store buffers to the copy
// engine.
#pragma once
#include "hopper.cuh"
#include "tensor_epilogue.cuh"

#if !defined(STORE_COLS) || !defined(STORE_BUFFERS)
#error "STORE_COLS and STORE_BUFFERS come from handwritten/tensor_catalog.py"
#endif
constexpr int STORE_ROW_BYTES = STORE_COLS * OUT_BYTES;  // a row of a store buffer, which is C's swizzle span
constexpr int STORE_BYTES = 64 * STORE_ROW_BYTES;
static_assert(STORE_ROW_BYTES == 128 || STORE_ROW_BYTES == 64, "one swizzle span");

struct Destination {
    const TensorMap* map;
    const Out* c;  // read where beta is not 0
    long long ldc;
    int m;
    int n;
    float alpha;
    float beta;
};

// The map's swizzle: eight rows' chunks of 16 bytes at one column fall into all 32 banks once.
__device__ __forceinline__ uint32_t store_offset(int row, int chunk) {
    const int turned = STORE_ROW_BYTES == 128 ? chunk ^ (row & 7) : chunk ^ (row / 2 & 3);
    return row * STORE_ROW_BYTES + turned * 16;
}

// STORE_COLS columns of the warpgroup's accumulators (layout: see Wgmma) into one store buffer.
__device__ __forceinline__ void stage_columns(uint32_t buffer, const float* d, int warp, int lane) {
    if constexpr (OUT_BYTES == 2) {
#pragma unroll
        for (int j = 0; j < STORE_COLS / 16; ++j) {
            uint32_t packed[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const __half2 pair = __floats2half2_rn(d[j * 8 + i * 2], d[j * 8 + i * 2 + 1]);
                packed[i] = reinterpret_cast<const uint32_t&>(pair);
            }
            store_matrices(buffer + store_offset(warp * 16 + lane % 16, j * 2 + lane / 16), packed[0],
                           packed[1], packed[2], packed[3]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < STORE_COLS / 8; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp * 16 + half * 8 + lane / 4, chunk = j * 2 + lane % 4 / 2;
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(buffer + store_offset(row, chunk) +
                                                                      lane % 2 * 8),
                             "f"(d[j * 4 + half * 2]), "f"(d[j * 4 + half * 2 + 1])
                             : "memory");
            }
        }
    }
}

// Adds beta * C to STORE_COLS columns of accumulators, for elements that exist.
__device__ __forceinline__ void add_old(float* d, const Destination& to, int row, int col, int warp,
                                        int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int c_row = row + warp * 16 + half * 8 + lane / 4;
        if (c_row >= to.m) continue;
        const Out* c = to.c + c_row * to.ldc;
#pragma unroll
        for (int j = 0; j < STORE_COLS / 8; ++j) {
            const int c_col = col + j * 8 + lane % 4 * 2;
            if (c_col >= to.n) continue;
            const float2 old = read_pair(c + c_col, true, c_col + 1 < to.n);
            d[j * 4 + half * 2] += to.beta * old.x;
            d[j * 4 + half * 2 + 1] += to.beta * old.y;
        }
    }
}

// C[row : row + 64, col : col + 2 * COUNT] = alpha * d + beta * C, by the 128 threads that share named
// barrier id. FIRST numbers the call's first box among those that the tile has stored; a tile starts at 0 on
// empty buffers.
template <int FIRST, int COUNT>
__device__ __forceinline__ void store_rows(float (&d)[COUNT], const Destination& to, int row, int col,
                                           uint32_t buffers, int id) {
    static_assert(COUNT % (STORE_COLS / 2) == 0, "boxes cover the tile");
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < COUNT / (STORE_COLS / 2); ++i) {
        float* columns = d + i * (STORE_COLS / 2);
        const int first_col = col + i * STORE_COLS, box = FIRST + i;
        const uint32_t buffer = buffers + box % STORE_BUFFERS * STORE_BYTES;
#pragma unroll
        for (int j = 0; j < STORE_COLS / 2; ++j) columns[j] *= to.alpha;
        if (to.beta != 0.0f) add_old(columns, to, row, first_col, warp, lane);

        if (box == 0 || box >= STORE_BUFFERS) {
            // The copy engine has read what was in this buffer.
            if (thread == 0) {
                if (box == 0) {
                    wait_boxes_read<0>();
                } else {
                    wait_boxes_read<STORE_BUFFERS - 1>();
                }
            }
            sync_warpgroup(id);
        }
        stage_columns(buffer, columns, warp, lane);
        fence_to_async();
        sync_warpgroup(id);
        if (thread == 0) {
            if (row < to.m && first_col < to.n) copy_box_out(to.map, buffer, first_col, row);
            commit_boxes();  // empty where nothing was stored, so that the waits count boxes
        }
    }
}
