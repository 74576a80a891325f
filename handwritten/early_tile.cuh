// The main loop of v14: sixteen steps a tile in 34 KB of straight code. A comes through registers as in v9,
// loaded by loads that ptxas cannot move past the barrier behind them; B by cp.async. Else as
// stream_tile.cuh has it: no edge in the loop, a ragged k first.
#pragma once
#include <cstdint>
#include "quads.cuh"
#include "stream_tile.cuh"

// Not load_run: ptxas (13.0) moves a load through the read-only path to right before its use, a thousand
// cycles too late. This one stays on its side of a barrier.
template <int WIDTH>
__device__ __forceinline__ void load_here(float* value, const float* from) {
    if constexpr (WIDTH == 4) {
        asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
                     : "l"(from)
                     : "memory");
    } else {
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(value[0]) : "l"(from) : "memory");
    }
}

// Four adjacent floats by a 32-bit address, in the order written.
__device__ __forceinline__ void read_four_at(float* value, uint32_t from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
                 : "r"(from));
}

// Fragments of one step, from the addresses of this thread's first row and column in it.
__device__ __forceinline__ void read_step(Fragments& f, uint32_t a_step, uint32_t b_step) {
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 4) read_four_at(&f.a[i], a_step + 4 * tile_row(i));
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) read_four_at(&f.b[j], b_step + 4 * tile_col(j));
}

// One step of k. Without the hint in the entry's name ptxas (13.0) sorts the FFMAs anyway, and multiply()'s
// order is the better start.
template <bool DOWN = false>
__device__ __forceinline__ void multiply_step(ThreadTile& acc, const Fragments& f) {
    if constexpr (!NAME_HINT) {
        multiply(acc, f);
    } else if constexpr (DOWN) {
        multiply_down(acc, f);
    } else {
        multiply_quads(acc, f);
    }
}

// cp.async by a 32-bit address of shared memory. exists = false reads nothing and writes zeros.
template <int WIDTH>
__device__ __forceinline__ void copy_run_to(uint32_t to, const float* from, bool exists) {
    const int bytes = exists ? 4 * WIDTH : 0;
    if constexpr (WIDTH == 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
                     : "memory");
    }
}

// What one thread brings in of each tile. A stage is a tile of A, transposed, then one of B; it is named by
// its distance in bytes from the first.
struct EarlyLoader {
    static constexpr int A_RUNS = BLOCK_K / 4, A_ROWS = THREADS / A_RUNS, A_STEPS = BLOCK_M / A_ROWS;
    static constexpr int B_RUNS = BLOCK_N / VECTOR, B_ROWS = THREADS / B_RUNS, B_STEPS = BLOCK_K / B_ROWS;
    static_assert(THREADS % A_RUNS == 0 && BLOCK_M % A_ROWS == 0,
                  "every thread takes equally many fours of A");
    static_assert(THREADS % B_RUNS == 0 && BLOCK_K % B_ROWS == 0, "a step brings in whole rows of B");

    const float* a[A_STEPS];
    const float* b;
    long long b_step;
    uint32_t a_to, b_to;  // in the first stage
    float staged[A_STEPS][4];

    // Rows and columns beyond the operands repeat the last ones.
    __device__ __forceinline__ EarlyLoader(const float* A, const float* B, int m, int n, long long lda,
                                           long long ldb, Origin origin, int k_first, uint32_t stages)
        : b_step(B_ROWS * ldb) {
        const int thread = static_cast<int>(threadIdx.x), b_col = thread % B_RUNS * VECTOR;
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i) {
            const int row = min(origin.row + thread / A_RUNS + i * A_ROWS, m - 1);
            a[i] = A + row * lda + k_first + a_col();
        }
        b = B + (k_first + static_cast<long long>(b_row())) * ldb + min(origin.col + b_col, n - VECTOR);
        a_to = stages + 4 * (a_col() * A_PITCH + thread / A_RUNS);
        b_to = stages + 4 * (A_STAGE + b_row() * BLOCK_N + b_col);
    }
    __device__ __forceinline__ static int a_col() { return static_cast<int>(threadIdx.x) % A_RUNS * 4; }
    __device__ __forceinline__ static int b_row() { return static_cast<int>(threadIdx.x) / B_RUNS; }

    // A tile of k_exist columns; the others are zeros.
    __device__ __forceinline__ void load_a(int k_exist) {
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i) {
#pragma unroll
            for (int j = 0; j < 4; j += VECTOR) {
                const int exist = a_col() + j < k_exist ? VECTOR : 0;
                load_run<VECTOR>(reinterpret_cast<float (&)[VECTOR]>(staged[i][j]), a[i] + j, exist);
            }
            a[i] += k_exist;
        }
    }
    __device__ __forceinline__ void copy_b(int k_exist, long long ldb) {
#pragma unroll
        for (int i = 0; i < B_STEPS; ++i) {
            const bool exists = b_row() + i * B_ROWS < k_exist;
            copy_run_to<VECTOR>(b_to + i * (4 * B_ROWS * BLOCK_N), exists ? b + i * b_step : b, exists);
        }
        b += k_exist * ldb;
        commit_copies();
    }
    // A whole tile. In place of one that does not exist the last one of A is loaded again, and zeros of B:
    // that takes less than a branch, and a choice between two pointers made ptxas (13.0) spill.
    template <bool STAYS>
    __device__ __forceinline__ void load_a(bool exists) {
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i) {
            const float* const from = a[i] - (exists ? 0 : BLOCK_K);
#pragma unroll
            for (int j = 0; j < 4; j += VECTOR) {
                const float* const one = VECTOR == 1 && !exists ? from : from + j;
                if constexpr (STAYS) {
                    load_here<VECTOR>(&staged[i][j], one);
                } else {
                    load_run<VECTOR>(reinterpret_cast<float (&)[VECTOR]>(staged[i][j]), one, VECTOR);
                }
            }
            a[i] += exists ? BLOCK_K : 0;
        }
    }
    // Where there is no whole tile to load again: A's first elements stand in for it.
    __device__ __forceinline__ void end_a(const float* A) {
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i) a[i] = A + BLOCK_K;
    }
    __device__ __forceinline__ void copy_b(uint32_t stage, bool exists) {
#pragma unroll
        for (int i = 0; i < B_STEPS; ++i) {
            copy_run_to<VECTOR>(b_to + stage + i * (4 * B_ROWS * BLOCK_N), b, exists);
            b += b_step;
        }
        commit_copies();
    }
    __device__ __forceinline__ void store_a(uint32_t stage) const {
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(a_to + stage + 4 * (j * A_PITCH + i * A_ROWS)),
                             "f"(staged[i][j])
                             : "memory");
            }
    }
};

// As accumulate() in stream_tile.cuh, which says what is given and left. EARLY loads A before a tile's
// barrier; else it is loaded with B's copies, and ptxas may move the load to where its value is stored.
// DOWN takes a step's FFMAs down the columns.
template <bool EARLY, bool DOWN = false>
__device__ __forceinline__ void accumulate_early(ThreadTile& acc, float* smem, const float* A, const float* B,
                                                 int m, int n, int k, long long lda, long long ldb,
                                                 Origin origin, const Item& item) {
    constexpr int AHEAD = NUM_STAGES - 1;
    constexpr uint32_t STAGE = 4 * (A_STAGE + B_STAGE);
    // Steps of a tile at which a later tile's part of B is asked for, and its part of A stored.
    constexpr int COPY_STEP = 1, STORE_STEP = BLOCK_K - BLOCK_K / 4;
    const uint32_t stages = static_cast<uint32_t>(__cvta_generic_to_shared(smem));
    const int ragged = (k - 1) % BLOCK_K + 1;
    const int k_first = item.first == 0 ? 0 : ragged + (item.first - 1) * BLOCK_K;
    const int tiles = item.last - item.first, exist = item.first == 0 ? ragged : BLOCK_K;
    EarlyLoader loader(A, B, m, n, lda, ldb, origin, k_first, stages);
    loader.load_a(exist);
    loader.copy_b(exist, ldb);
    loader.store_a(0);
    if (tiles == 1) loader.end_a(A);
#pragma unroll
    for (int stage = 1; stage < AHEAD; ++stage) {
        loader.load_a<EARLY>(stage < tiles);
        loader.copy_b(stage * STAGE, stage < tiles);
        loader.store_a(stage * STAGE);
    }
    const Origin mine = thread_origin();
    const uint32_t a_mine = stages + 4 * mine.row, b_mine = stages + 4 * (A_STAGE + mine.col);
    uint32_t stage = 0, fill = AHEAD * STAGE;
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
        const uint32_t a_step = a_mine + stage, b_step = b_mine + stage;
        if constexpr (EARLY) loader.load_a<true>(t + AHEAD < tiles);
        wait_for_copies<AHEAD - 1>();
        __syncthreads();
        Fragments fragments[2];
        read_step(fragments[0], a_step, b_step);
#pragma unroll
        for (int kk = 0; kk < BLOCK_K; ++kk) {
            if (kk + 1 < BLOCK_K) {
                read_step(fragments[(kk + 1) % 2], a_step + (kk + 1) * (4 * A_PITCH),
                          b_step + (kk + 1) * (4 * BLOCK_N));
            }
            if (kk == COPY_STEP) {
                if constexpr (!EARLY) loader.load_a<false>(t + AHEAD < tiles);
                loader.copy_b(fill, t + AHEAD < tiles);
            }
            multiply_step<DOWN>(acc, fragments[kk % 2]);
            if (kk == STORE_STEP) loader.store_a(fill);
        }
        fill = stage;
        stage = stage == (NUM_STAGES - 1) * STAGE ? 0 : stage + STAGE;
    }
}
