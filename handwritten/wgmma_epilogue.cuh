// How a wgmma kernel's warpgroup writes 64 rows of C: from accumulators through store buffers to the copy
// engine.
#pragma once
#include "hopper.cuh"
#include "tensor_epilogue.cuh"

#if !defined(STORE_COLS) || !defined(STORE_BUFFERS)
#error "STORE_COLS and STORE_BUFFERS come from handwritten/tensor_catalog.py"
#endif
#if !defined(C_BY_ELEMENT)
#define C_BY_ELEMENT 0  // 1 where C has no tensor map, which handwritten/tensor_catalog.py asks of h9 alone
#endif
constexpr int STORE_ROW_BYTES = STORE_COLS * OUT_BYTES;  // a row of a store buffer, which is C's swizzle span
constexpr int STORE_BYTES = 64 * STORE_ROW_BYTES;
static_assert(STORE_ROW_BYTES == 128 || STORE_ROW_BYTES == 64, "one swizzle span");
static_assert(!C_BY_ELEMENT || STORE_ROW_BYTES == 128, "a row of a store buffer is a word for each lane");

struct Destination {
    const TensorMap* map;
    Out* c;  // read where beta is not 0, written where a row ends within 16 bytes
    long long ldc;
    int m;
    int n;
    float alpha;
    float beta;
};

// Where a thread writes its first elements in a store buffer under the map's swizzle, which lets eight rows'
// 16-byte chunks at one column fall into all 32 banks once. Buffers start at multiples of the swizzle's
// period, so what belongs two chunks further right lies at this address ^ 32, and further buffers are a
// constant away.
__device__ __forceinline__ uint32_t store_address(uint32_t buffer, int warp, int lane) {
    const int row = warp * 16 + (OUT_BYTES == 2 ? lane % 16 : lane / 4);
    const int chunk = OUT_BYTES == 2 ? lane / 16 : lane % 4 / 2;
    const int turned = chunk ^ (STORE_ROW_BYTES == 128 ? row & 7 : row / 2 & 3);
    return buffer + row * STORE_ROW_BYTES + turned * 16 + (OUT_BYTES == 2 ? 0 : lane % 2 * 8);
}

// STORE_COLS columns of the warpgroup's accumulators (layout: see Wgmma) into the store buffer offset bytes
// on.
__device__ __forceinline__ void stage_columns(uint32_t first, int offset, const float* d) {
    if constexpr (OUT_BYTES == 2) {
#pragma unroll
        for (int j = 0; j < STORE_COLS / 16; ++j) {
            uint32_t packed[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const __half2 pair = __floats2half2_rn(d[j * 8 + i * 2], d[j * 8 + i * 2 + 1]);
                packed[i] = reinterpret_cast<const uint32_t&>(pair);
            }
            store_matrices((first ^ j * 32) + offset, packed[0], packed[1], packed[2], packed[3]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < STORE_COLS / 8; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t to = (first ^ j * 32) + offset + half * 8 * STORE_ROW_BYTES;
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(d[j * 4 + half * 2]),
                             "f"(d[j * 4 + half * 2 + 1])
                             : "memory");
            }
        }
    }
}

// d += beta * C for the elements of these 64 rows that exist; pairs are aligned where C has a tensor map.
template <int COUNT>
__device__ __forceinline__ void add_old(float (&d)[COUNT], const Destination& to, int row, int col) {
    const int thread = threadIdx.x % 128;
    const int c_row = row + thread / 32 * 16 + thread % 32 / 4, c_col = col + thread % 4 * 2;
    const Out* c[2] = {to.c + c_row * to.ldc + c_col, to.c + (c_row + 8) * to.ldc + c_col};
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (c_row + half * 8 < to.m && c_col + j * 8 < to.n) {
                const float2 old = read_pair(c[half] + j * 8, !C_BY_ELEMENT, c_col + j * 8 + 1 < to.n);
                d[j * 4 + half * 2] += to.beta * old.x;
                d[j * 4 + half * 2 + 1] += to.beta * old.y;
            }
        }
    }
}

// The copy engine writes whole 16-byte pieces, also where a row of C ends within one. Such a row's last box
// is therefore written element by element, from the store buffer.
__device__ __forceinline__ bool ends_within_piece(int n, int box_col) {
    return n - box_col < STORE_COLS && n % (16 / OUT_BYTES) != 0;
}

__device__ __forceinline__ void write_box(const Destination& to, uint32_t buffer, int row, int col) {
    const int thread = threadIdx.x % 128, at = thread / 2;  // two threads a row
    if (row + at >= to.m) return;
    Out* c = to.c + (row + at) * to.ldc + col;
    const int turn = STORE_ROW_BYTES == 128 ? at & 7 : at / 2 & 3;
    for (int i = thread % 2; i < to.n - col; i += 2) {
        const uint32_t from =
            buffer + at * STORE_ROW_BYTES + ((i * OUT_BYTES / 16 ^ turn) * 16 | i * OUT_BYTES % 16);
        c[i] = *static_cast<const Out*>(__cvta_shared_to_generic(from));
    }
}

// The same for every box where C has no tensor map: a warp writes 16 rows in words of four bytes, all lanes
// along one row. A row of FP16 that begins between two words has an element before its first whole one, and
// may have one after its last; those of all 16 rows are written together.
__device__ __forceinline__ void write_box_in_words(const Destination& to, uint32_t buffer, int row, int col) {
    constexpr int ROWS = 16;
    const int lane = threadIdx.x % 32, first_row = threadIdx.x % 128 / 32 * ROWS;
    const int width = min(to.n - col, STORE_COLS), rows = min(to.m - row - first_row, ROWS);
    const uint32_t from = buffer + first_row * STORE_ROW_BYTES;
    Out* const first = to.c + static_cast<long long>(row + first_row) * to.ldc + col;
    const auto begins_between_words = [](const Out* c) {
        return OUT_BYTES == 2 ? static_cast<int>(reinterpret_cast<uintptr_t>(c) / 2 & 1) : 0;
    };
    Out* c = first;
#pragma unroll
    for (int i = 0; i < ROWS; ++i, c += to.ldc) {
        const uint32_t place = from + i * STORE_ROW_BYTES + (lane * 4 ^ (i & 7) * 16);
        uint32_t word = *static_cast<const uint32_t*>(__cvta_shared_to_generic(place));
        const int skipped = begins_between_words(c), at = lane * (4 / OUT_BYTES) + skipped;
        if constexpr (OUT_BYTES == 2) {
            const uint32_t next = __shfl_down_sync(0xFFFFFFFF, word, 1);
            word = __byte_perm(word, next, skipped ? 0x5432 : 0x3210);
        }
        if (i < rows && at + 4 / OUT_BYTES <= width) *reinterpret_cast<uint32_t*>(c + at) = word;
    }
    if constexpr (OUT_BYTES == 2) {
        const int i = lane / 2;  // lanes of even number take the start of a row, the others its end
        c = first + i * to.ldc;
        const int skipped = begins_between_words(c), at = lane % 2 ? width - 1 : 0;
        const bool left = lane % 2 ? (width - skipped) % 2 : skipped;
        if (i < rows && width > 0 && left) {
            const uint32_t place = from + i * STORE_ROW_BYTES + (at * 2 ^ (i & 7) * 16);
            c[at] = *static_cast<const Out*>(__cvta_shared_to_generic(place));
        }
    }
}

// C[row : row + 64, col : col + 2 * COUNT] = alpha * d + beta * C, by one warpgroup; buffers are its own.
// FIRST numbers the call's first box among those that the tile has stored; a tile starts at 0 on empty
// buffers. Where rows of C may end within a piece, ANY_WIDTH is needed.
template <int FIRST, bool ANY_WIDTH, int COUNT>
__device__ __forceinline__ void store_rows(float (&d)[COUNT], const Destination& to, int row, int col,
                                           uint32_t buffers) {
    static_assert(COUNT % (STORE_COLS / 2) == 0, "boxes cover the tile");
    if (to.alpha != 1.0f) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) d[i] *= to.alpha;
    }
    if (to.beta != 0.0f) add_old(d, to, row, col);
    const int thread = threadIdx.x % 128;
    const int id = 1 + threadIdx.x / 128;  // of the warpgroup's barrier; 0 belongs to __syncthreads
    const uint32_t first = store_address(buffers, thread / 32, thread % 32);
#pragma unroll
    for (int i = 0; i < COUNT / (STORE_COLS / 2); ++i) {
        const int box = FIRST + i, box_col = col + i * STORE_COLS;
        const int offset = box % STORE_BUFFERS * STORE_BYTES;
        // The copy engine, or every warp, has to have read what was in this buffer.
        if (box == 0) {
            if (!C_BY_ELEMENT && thread == 0) wait_boxes_read<0>();
            sync_warpgroup(id);
        } else if (box >= STORE_BUFFERS) {
            if (!C_BY_ELEMENT && thread == 0) wait_boxes_read<STORE_BUFFERS - 1>();
            sync_warpgroup(id);
        }
        stage_columns(first, offset, d + i * (STORE_COLS / 2));
        if constexpr (C_BY_ELEMENT) {
            sync_warpgroup(id);
            write_box_in_words(to, buffers + offset, row, box_col);
            continue;
        }
        fence_to_async();
        sync_warpgroup(id);
        const bool by_element = ANY_WIDTH && ends_within_piece(to.n, box_col);
        if (by_element) write_box(to, buffers + offset, row, box_col);
        if (thread == 0) {
            if (row < to.m && box_col < to.n && !by_element)
                copy_box_out(to.map, buffers + offset, box_col, row);
            commit_boxes();  // empty where nothing was stored, so that the waits count boxes
        }
    }
}
