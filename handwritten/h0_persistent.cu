// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds overlap across tiles to h0: one block an SM walks over tiles and loads the first stages of the next
// while it stores one; its warps meet at an mbarrier, arrive early and wait late, instead of stopping
// together. Runs on sm_80 and later. Limited by shared-memory bandwidth and by mma.sync itself, whose ceiling
// on Hopper lies below that of wgmma. Refuses nothing but a grid of 2^31 blocks.
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
#ifndef LOAD_EVERY
#define LOAD_EVERY 3
#endif
#ifndef WAIT_AT
#define WAIT_AT 12
#endif
#ifndef LOAD_EVERY_LAST
#define LOAD_EVERY_LAST 2
#endif
static_assert(WAIT_AT + LOAD_EVERY_LAST * (TILES_M + TILES_N / 2 - 1) < TILES_M * TILES_N,
              "all loads have a turn");
#ifndef COPY_FROM
#define COPY_FROM 2
#endif
#ifndef COPY_EVERY
#define COPY_EVERY 7
#endif
static_assert(COPY_FROM + COPY_EVERY * (COPIES_A_STEP - 1) < WARP_M / 16 * (WARP_N / 8),
              "all copies have a turn");
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
// A warp's rows of C leave a few at a time, through shared memory of its own behind the stages, while the
// next tile's first stages arrive.
constexpr int SLICE_ROWS = 32 / OUT_BYTES, SLICE_BYTES = SLICE_ROWS * ROW_BYTES;
constexpr int WARPS = THREADS / 32;

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

// ---- an mbarrier of warps ----
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
// Returns once the phase of this parity has completed.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!done);
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

constexpr int LOADS = TILES_M + TILES_N / 2;  // of ldmatrix in a step

// One of the LOADS that a step's fragments take; those that the step's first products need come first.
__device__ __forceinline__ void load_fragment(Fragments& to, const FragmentPlace& place, uint32_t stage,
                                              int step, int load) {
    if (load == 0 || load > TILES_N / 2) {
        const int i = load == 0 ? 0 : load - TILES_N / 2;
        load_matrices(to.a[i], stage + (place.a ^ step * STEP_K * 2) + i * 16 * BLOCK_K * 2);
    } else {
        const int j = load - 1;
        if constexpr (B_COLUMN_MAJOR)
            load_matrices(to.b[j], stage + (place.b[0] ^ step * STEP_K * 2) + j * 16 * B_COLS * 2);
        else
            load_matrices_transposed(to.b[j], stage + place.b[j] + step * STEP_K * B_COLS * 2);
    }
}

// Fragments hold pairs of a row; C is written in whole rows of the warp tile, SLICE_ROWS of them at a time.
__device__ __forceinline__ void store_tile(const float (&acc)[TILES_M][TILES_N][4], Out* __restrict__ C,
                                           uint32_t staged, int block_m, int block_n, int m, int n,
                                           long long ldc, float alpha, float beta) {
    const int lane = threadIdx.x % 32;
    const bool pairs = ldc % 2 == 0 && reinterpret_cast<uintptr_t>(C) % sizeof(OutPair) == 0;
    const bool chunks = ldc * OUT_BYTES % 16 == 0 && reinterpret_cast<uintptr_t>(C) % 16 == 0;
    constexpr int ROW_CHUNKS = ROW_BYTES / 16, PER_CHUNK = 16 / OUT_BYTES;
#pragma unroll
    for (int slice = 0; slice < WARP_M / SLICE_ROWS; ++slice) {
        const int slice_m = block_m + slice * SLICE_ROWS;
#pragma unroll
        for (int eight = 0; eight < SLICE_ROWS / 8; ++eight) {
            const int of_warp = slice * (SLICE_ROWS / 8) + eight, i = of_warp / 2, half = of_warp % 2;
            const int row = eight * 8 + lane / 4;
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                const int col = j * 8 + lane % 4 * 2;
                float2 value = {alpha * acc[i][j][half * 2], alpha * acc[i][j][half * 2 + 1]};
                const int c_row = slice_m + row, c_col = block_n + col;
                if (beta != 0.0f && c_row < m && c_col < n) {
                    const float2 old = read_pair(C + c_row * ldc + c_col, pairs, c_col + 1 < n);
                    value.x += beta * old.x;
                    value.y += beta * old.y;
                }
                OutPair pair;
                from_float2(pair, value);
                *static_cast<OutPair*>(__cvta_shared_to_generic(
                    staged + staged_chunk(row, col * OUT_BYTES / 16) + col * OUT_BYTES % 16)) = pair;
            }
        }
        __syncwarp();
#pragma unroll PIECES_UNROLLED
        for (int at = lane; at < SLICE_ROWS * ROW_CHUNKS; at += 32) {
            const int row = at / ROW_CHUNKS, chunk = at % ROW_CHUNKS;
            const int c_row = slice_m + row, c_col = block_n + chunk * PER_CHUNK;
            if (c_row >= m || c_col >= n) continue;
            const void* from = __cvta_shared_to_generic(staged + staged_chunk(row, chunk));
            Out* to = C + c_row * ldc + c_col;
            if (chunks && c_col + PER_CHUNK <= n) {
                *reinterpret_cast<uint4*>(to) = *static_cast<const uint4*>(from);
            } else {
                for (int i = 0; i < min(PER_CHUNK, n - c_col); ++i) to[i] = static_cast<const Out*>(from)[i];
            }
        }
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    h0_persistent(const __half* __restrict__ A, const __half* __restrict__ B, Out* __restrict__ C, int m,
                  int n, int k, long long lda, long long ldb, long long ldc, float alpha, float beta) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t stages = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;

    const uint32_t staged = stages + NUM_STAGES * STAGE_BYTES + warp * SLICE_BYTES;
    const uint32_t all_arrived = stages + NUM_STAGES * STAGE_BYTES + WARPS * SLICE_BYTES;  // an mbarrier
    if (threadIdx.x == 0) barrier_init(all_arrived, WARPS);
    uint32_t parity = 0;

    const unsigned tiles_m = (m - 1) / BLOCK_M + 1, tiles_n = (n - 1) / BLOCK_N + 1,
                   tiles = tiles_m * tiles_n;
    const int k_tiles = (k - 1) / BLOCK_K + 1;
    int block_m, block_n;
    const __half *a_rows, *b_cols;
    auto go_to = [&](unsigned index) {
        const TileOrigin tile = tile_of<GROUP_M>(index, tiles_m, tiles_n);
        block_m = tile.m * BLOCK_M, block_n = tile.n * BLOCK_N;
        a_rows = A + block_m * lda;
        b_cols = B + (B_COLUMN_MAJOR ? block_n * ldb : block_n);
    };

    const Copier<BLOCK_M, BLOCK_K> a_copier;
    const Copier<B_ROWS, B_COLS> b_copier;
    auto copy_guarded = [&](int k_tile) {
        const uint32_t to = stages + k_tile % NUM_STAGES * STAGE_BYTES;
        const int from_k = k_tile * BLOCK_K;
        a_copier.copy_guarded(to, a_rows + from_k, lda, m - block_m, k - from_k);
        if constexpr (B_COLUMN_MAJOR) {
            b_copier.copy_guarded(to + A_BYTES, b_cols + from_k, ldb, n - block_n, k - from_k);
        } else {
            b_copier.copy_guarded(to + A_BYTES, b_cols + from_k * ldb, ldb, k - from_k, n - block_n);
        }
    };
    auto begin_tile = [&](unsigned index) {
        go_to(index);
        for (int s = 0; s < NUM_STAGES - 1; ++s) {
            if (s < k_tiles) copy_guarded(s);
            commit_copies();
        }
    };

    float acc[TILES_M][TILES_N][4];
    Fragments fragments[2];
    const FragmentPlace place(warp_m, warp_n);

    // Multiplies one tile, and brings on the way the tile NUM_STAGES - 1 further. Loads and copies stand
    // between the products, so that neither they nor the Tensor Cores wait in a queue behind the other.
    const __half *a_piece = A, *b_piece = B;
    const uint32_t a_first = a_copier.first(), b_first = A_BYTES + b_copier.first();
    uint32_t now;
    auto multiply_tile = [&](int k_tile, auto inner) {
        constexpr bool INNER = decltype(inner)::value;
        const uint32_t next =
            now + STAGE_BYTES == stages + NUM_STAGES * STAGE_BYTES ? stages : now + STAGE_BYTES;
        const uint32_t to = now == stages ? stages + (NUM_STAGES - 1) * STAGE_BYTES : now - STAGE_BYTES;
        const __half *a_next = a_piece, *b_next = b_piece;
        if (!INNER && k_tile + NUM_STAGES - 1 < k_tiles) copy_guarded(k_tile + NUM_STAGES - 1);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const Fragments& f = fragments[step % 2];
            if (step + 1 == STEPS) {
                // An empty group where nothing was left to copy keeps the count of the wait.
                commit_copies();
                wait_copies<NUM_STAGES - 2>();
                // This warp's part of the next tile is there, and it has read the last of this one.
                __syncwarp();
                if (lane == 0) barrier_arrive(all_arrived);
            }
#pragma unroll
            for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
                for (int snake = 0; snake < TILES_N; ++snake) {
                    const int j = i % 2 ? TILES_N - 1 - snake : snake;
                    multiply_add(acc[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
                    const int product = i * TILES_N + snake;
                    if (step + 1 < STEPS) {
                        if (product % LOAD_EVERY == 0 && product / LOAD_EVERY < LOADS)
                            load_fragment(fragments[(step + 1) % 2], place, now, step + 1,
                                          product / LOAD_EVERY);
                    } else {
                        // The slowest warp is waited for as late as the loads allow.
                        if (product == WAIT_AT) {
                            barrier_wait(all_arrived, parity);
                            parity ^= 1;
                        }
                        const int turn = product - WAIT_AT;
                        if (turn >= 0 && turn % LOAD_EVERY_LAST == 0 && turn / LOAD_EVERY_LAST < LOADS)
                            load_fragment(fragments[0], place, next, 0, turn / LOAD_EVERY_LAST);
                    }
                    if constexpr (INNER) {
                        const int turn = product - COPY_FROM;
                        if (step + 1 < STEPS && turn >= 0 && turn % COPY_EVERY == 0) {
                            const int piece = step * COPIES_A_STEP + turn / COPY_EVERY;
                            if (turn / COPY_EVERY < COPIES_A_STEP && piece < a_copier.PIECES) {
                                a_copier.copy_inner(to + a_first, a_next, piece);
                                a_next += a_copier.ROW_STEP * lda;
                            } else if (turn / COPY_EVERY < COPIES_A_STEP &&
                                       piece < a_copier.PIECES + b_copier.PIECES) {
                                b_copier.copy_inner(to + b_first, b_next, piece - a_copier.PIECES);
                                b_next += b_copier.ROW_STEP * ldb;
                            }
                        }
                    }
                }
            }
        }
        a_piece += BLOCK_K;
        b_piece += B_COLUMN_MAJOR ? BLOCK_K : BLOCK_K * ldb;
        now = next;
    };
    if (blockIdx.x < tiles) begin_tile(blockIdx.x);
    __syncthreads();  // the barrier is initialised
    for (unsigned index = blockIdx.x; index < tiles; index += gridDim.x) {
        wait_copies<NUM_STAGES - 2>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILES_M * TILES_N * 4; ++i) acc[i / (TILES_N * 4)][i / 4 % TILES_N][i % 4] = 0.0f;
#pragma unroll
        for (int load = 0; load < LOADS; ++load) load_fragment(fragments[0], place, stages, 0, load);
        now = stages;
        a_piece = a_rows + (NUM_STAGES - 1) * BLOCK_K + a_copier.row * lda + a_copier.col;
        b_piece = b_cols + (NUM_STAGES - 1) * (B_COLUMN_MAJOR ? BLOCK_K : BLOCK_K * ldb) +
                  b_copier.row * ldb + b_copier.col;
        int k_tile = 0;
        if (VECTOR == CHUNK && block_m + BLOCK_M <= m && block_n + BLOCK_N <= n) {
            // The tile that is copied here is whole along k too.
            for (; (k_tile + NUM_STAGES) * BLOCK_K <= k; ++k_tile) multiply_tile(k_tile, std::true_type());
        }
        for (; k_tile < k_tiles; ++k_tile) multiply_tile(k_tile, std::false_type());

        const int c_block_m = block_m + warp_m, c_block_n = block_n + warp_n;
        __syncthreads();  // nobody reads the stages of this tile any more
        if (index + gridDim.x < tiles) begin_tile(index + gridDim.x);
        store_tile(acc, C, staged, c_block_m, c_block_n, m, n, ldc, alpha, beta);
    }
}
