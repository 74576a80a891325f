// What the mma.sync kernels have in common: the swizzle of their stages, cp.async copies into them, fragments
// by ldmatrix, and the product. Tile extents come from handwritten/tensor_catalog.py.
#pragma once
#include <cstdint>
#include <type_traits>
#include "tensor_epilogue.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(WARP_M) || !defined(WARP_N) || \
    !defined(NUM_STAGES) || !defined(VECTOR) || !defined(GROUP_M)
#error "tile extents, VECTOR and GROUP_M come from handwritten/tensor_catalog.py"
#endif
constexpr int PIECES_UNROLLED = 4;  // more, and the narrow variants spill
constexpr int CHUNK = 8;            // elements in 16 bytes, the unit of ldmatrix and of the swizzle
constexpr int STEP_K = 16;
constexpr int STEPS = BLOCK_K / STEP_K;
constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int THREADS = BLOCK_M / WARP_M * WARPS_N * 32;
constexpr int TILES_M = WARP_M / 16, TILES_N = WARP_N / 8;
constexpr int B_ROWS = B_COLUMN_MAJOR ? BLOCK_N : BLOCK_K, B_COLS = B_COLUMN_MAJOR ? BLOCK_K : BLOCK_N;
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, STAGE_BYTES = A_BYTES + B_ROWS * B_COLS * 2;
constexpr int COPIES = STAGE_BYTES / 16 / THREADS, COPIES_A_STEP = (COPIES + STEPS - 2) / (STEPS - 1);
static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "warp tiles fill the block tile");
static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "ldmatrix.x4 brings 16 rows of A, or 16 columns of B");
static_assert(BLOCK_K % 64 == 0 && BLOCK_N % 64 == 0, "the swizzle permutes eight chunks of a row");
static_assert(STEPS % 2 == 0,
              "fragments alternate between two register buffers, and a tile ends on the second");
static_assert(NUM_STAGES >= 3, "one stage is read, one has arrived, one is on its way");
static_assert(VECTOR == 8 || VECTOR == 2 || VECTOR == 1,
              "cp.async copies 16 or 4 bytes; an element goes by register");

// Chunk c of a row lies at chunk c ^ (row mod 8): the eight rows that an ldmatrix phase reads at one column,
// and the eight chunks that a copy writes to one row, each fall into all 32 banks once.
template <int COLS>
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
    return (row * (COLS / CHUNK) + (chunk ^ (row & 7))) * 16;
}

constexpr int ROW_BYTES = WARP_N * OUT_BYTES;  // of the warp tile of C on its way out
static_assert(ROW_BYTES % 128 == 0, "a row is whole swizzle periods");

// Where chunk c of a row of C lies: the pairs of eight rows that a warp writes fall into all banks once
// (FP32: those of four rows, since a pair takes half a chunk).
__device__ __forceinline__ uint32_t staged_chunk(int row, int chunk) {
    return row * ROW_BYTES + (chunk ^ (OUT_BYTES == 2 ? row & 7 : (row & 3) * 2)) * 16;
}

// Bytes past exist are written as zeros and not read; exist = 0 reads nothing.
__device__ __forceinline__ void copy_piece(uint32_t to, const __half* from, int exist) {
    if constexpr (VECTOR == 8) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exist * 2)
                     : "memory");
    } else if constexpr (VECTOR == 2) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(exist * 2)
                     : "memory");
    } else {
        const unsigned short bits = exist ? __ldg(reinterpret_cast<const unsigned short*>(from)) : 0;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(bits) : "memory");
    }
}

// One thread's share of an operand's tiles: every ROW_STEP-th row at one column.
template <int ROWS, int COLS>
struct Copier {
    static constexpr int PER_ROW = COLS / VECTOR, ROW_STEP = THREADS / PER_ROW, PIECES = ROWS / ROW_STEP;
    static_assert(THREADS % PER_ROW == 0 && ROWS % ROW_STEP == 0, "each pass copies whole rows");
    int row = threadIdx.x / PER_ROW;
    int col = threadIdx.x % PER_ROW * VECTOR;

    // Copies the tile at from, of which rows_left x cols_left elements exist.
    __device__ __forceinline__ void copy_guarded(uint32_t to, const __half* from, long long pitch,
                                                 int rows_left, int cols_left) const {
        const __half* piece = from + row * pitch + col;
        const int exist = min(max(cols_left - col, 0), VECTOR);
#pragma unroll PIECES_UNROLLED
        for (int i = 0; i < PIECES; ++i) {
            const int at = row + i * ROW_STEP;
            copy_piece(to + swizzled<COLS>(at, col / CHUNK) + col % CHUNK * 2, piece,
                       at < rows_left ? exist : 0);
            piece += ROW_STEP * pitch;
        }
    }

    // Where this thread's first piece lies in a stage; the others lie whole swizzle periods further.
    __device__ __forceinline__ uint32_t first() const { return swizzled<COLS>(row, col / CHUNK); }
    __device__ __forceinline__ void copy_inner(uint32_t first, const __half* piece, int index) const {
        static_assert(VECTOR != CHUNK || ROW_STEP % 8 == 0, "pieces lie whole swizzle periods apart");
        copy_piece(first + index * ROW_STEP * COLS * 2, piece, VECTOR);
    }
};

__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&value)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&value)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct Fragments {
    uint32_t a[TILES_M][4];      // 16 x 16 of A: rows g and g + 8 at k, the same at k + 8
    uint32_t b[TILES_N / 2][4];  // 16 x 16 of B: columns 0..7 at k and k + 8, columns 8..15 likewise
};

// Where a lane reads its fragments: offsets within a stage at step 0. A step of k is 32 bytes to the right in
// A and in column-major B, which is ^ step * 32 under the swizzle, and 16 rows down in row-major B.
struct FragmentPlace {
    uint32_t a;
    uint32_t b[B_COLUMN_MAJOR ? 1 : TILES_N / 2];

    __device__ __forceinline__ FragmentPlace(int warp_m, int warp_n) {
        const int lane = threadIdx.x % 32;
        a = swizzled<BLOCK_K>(warp_m + lane % 16, lane / 16);
        if constexpr (B_COLUMN_MAJOR) {
            b[0] = A_BYTES + swizzled<B_COLS>(warp_n + lane % 8 + lane / 16 * 8, lane / 8 % 2);
        } else {
#pragma unroll
            for (int j = 0; j < TILES_N / 2; ++j)
                b[j] = A_BYTES + swizzled<B_COLS>(lane % 16, warp_n / CHUNK + j * 2 + lane / 16);
        }
    }
};

// The fragments of one step.
__device__ __forceinline__ void load_fragments(Fragments& to, const FragmentPlace& place, uint32_t stage,
                                               int step) {
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
        load_matrices(to.a[i], stage + (place.a ^ step * STEP_K * 2) + i * 16 * BLOCK_K * 2);
#pragma unroll
    for (int j = 0; j < TILES_N / 2; ++j) {
        if constexpr (B_COLUMN_MAJOR)
            load_matrices(to.b[j], stage + (place.b[0] ^ step * STEP_K * 2) + j * 16 * B_COLS * 2);
        else
            load_matrices_transposed(to.b[j], stage + place.b[j] + step * STEP_K * B_COLS * 2);
    }
}
