// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v13's stream-K four warps that only load, one a scheduler: eight others multiply, with the
// registers that the four give back, and meet nobody but at two mbarriers a stage. What limits it is not
// measured yet. Refuses nothing but 2^31 tiles.
#include "hopper.cuh"
#include "stream_tile.cuh"

constexpr int LOADERS = 128, LOADER_REGISTERS = 72, MULTIPLIER_REGISTERS = 216;
static_assert(THREADS == 256, "registers are dealt out for eight warps that multiply and four that load");
static_assert((NUM_STAGES & (NUM_STAGES - 1)) == 0, "a count of tiles tells stage and parity by its bits");

// What one loading thread brings in of each tile: fours of A's rows through registers, which transpose them,
// and runs of B's by cp.async.
struct TileLoader {
    static constexpr int A_RUNS = BLOCK_K / 4, A_ROWS = LOADERS / A_RUNS, A_STEPS = BLOCK_M / A_ROWS;
    static constexpr int B_COLS = BLOCK_N / VECTOR > LOADERS ? BLOCK_N / VECTOR / LOADERS : 1;
    static constexpr int B_RUNS = BLOCK_N / VECTOR / B_COLS, B_ROWS = LOADERS / B_RUNS;
    static constexpr int B_STEPS = BLOCK_K / B_ROWS;
    static_assert(LOADERS % A_RUNS == 0 && BLOCK_M % A_ROWS == 0,
                  "every loading thread takes equally many fours of A");
    static_assert(BLOCK_N == B_RUNS * B_COLS * VECTOR && LOADERS % B_RUNS == 0 && BLOCK_K % B_ROWS == 0,
                  "a step brings in whole rows of B");
    using Fours = float[A_STEPS][4];

    const float* a[A_STEPS];
    const float* b[B_COLS];
    long long b_step;

    // Rows and columns beyond the operands repeat the last ones.
    __device__ __forceinline__ TileLoader(const float* A, const float* B, int m, int n, long long lda,
                                          long long ldb, Origin origin, int k_first)
        : b_step(B_ROWS * ldb) {
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i) {
            const int row = min(thread() / A_RUNS + i * A_ROWS, m - 1 - origin.row);
            a[i] = A + (origin.row + row) * lda + k_first + a_col();
        }
#pragma unroll
        for (int j = 0; j < B_COLS; ++j) {
            const int col = min(b_col(j), n - VECTOR - origin.col);
            b[j] = B + (k_first + static_cast<long long>(b_row())) * ldb + origin.col + col;
        }
    }
    __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x) - THREADS; }
    __device__ __forceinline__ static int a_col() { return thread() % A_RUNS * 4; }
    __device__ __forceinline__ static int b_row() { return thread() / B_RUNS; }
    __device__ __forceinline__ static int b_col(int j) { return (thread() % B_RUNS + j * B_RUNS) * VECTOR; }

    // k_exist columns of A count, the others are zeros.
    __device__ __forceinline__ void load_a(Fours& to, int k_exist) {
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i) {
#pragma unroll
            for (int j = 0; j < 4; j += VECTOR) {
                const int exist = a_col() + j < k_exist ? VECTOR : 0;
                load_run<VECTOR>(reinterpret_cast<float (&)[VECTOR]>(to[i][j]), a[i] + j, exist);
            }
            a[i] += k_exist;
        }
    }
    __device__ __forceinline__ void load_a(Fours& to) {
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i) {
#pragma unroll
            for (int j = 0; j < 4; j += VECTOR) {
                load_run<VECTOR>(reinterpret_cast<float (&)[VECTOR]>(to[i][j]), a[i] + j, VECTOR);
            }
            a[i] += BLOCK_K;
        }
    }
    __device__ __forceinline__ static void store_a(float* tile, const Fours& from) {
        float* const to = tile + a_col() * A_PITCH + thread() / A_RUNS;
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) to[j * A_PITCH + i * A_ROWS] = from[i][j];
    }
    // k_exist rows of B count, the others are zeros.
    __device__ __forceinline__ void copy_b(float* tile, int k_exist, long long ldb) {
        if (k_exist == BLOCK_K) {
#pragma unroll
            for (int i = 0; i < B_STEPS; ++i)
#pragma unroll
                for (int j = 0; j < B_COLS; ++j) {
                    copy_run_async<VECTOR>(tile + (b_row() + i * B_ROWS) * BLOCK_N + b_col(j), b[j]);
                    b[j] += b_step;
                }
            return;
        }
#pragma unroll
        for (int i = 0; i < B_STEPS; ++i) {
            const bool exists = b_row() + i * B_ROWS < k_exist;
#pragma unroll
            for (int j = 0; j < B_COLS; ++j) {
                const float* const from = exists ? b[j] + i * b_step : b[j];
                float* const to = tile + (b_row() + i * B_ROWS) * BLOCK_N + b_col(j);
                copy_run_async<VECTOR>(to, from, exists ? VECTOR : 0);
            }
        }
#pragma unroll
        for (int j = 0; j < B_COLS; ++j) b[j] += k_exist * ldb;
    }
};

// The work of a block, in shared memory because the main loop needs the registers.
struct SharedWork {
    int blocks, tiles_n;
    Work work;

    // As Work::item, with what this block is asked about again and again.
    __device__ __forceinline__ bool item(int index, Item& found) const {
        const int from = work.start(work.share), to = work.start(work.share + 1);
        const int tile = from / work.steps;
        const int parts = from < to ? (to - 1) / work.steps - tile + 1 : 0;
        const int whole =
            work.share < work.whole_tiles ? (work.whole_tiles - 1 - work.share) / blocks + 1 : 0;
        if (index < whole) {
            found = {work.share + index * blocks, 0, work.steps};
            return true;
        }
        const int part = index - whole, base = (tile + part) * work.steps;
        found = {work.whole_tiles + tile + part, max(from - base, 0), min(to - base, work.steps)};
        return part < parts;
    }
    __device__ __forceinline__ Origin origin(int tile) const {
        return {tile / tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N};
    }
};

// The barriers of a stage: full when its tile is there, empty when the tile has been read. A count of tiles
// from the start of the block says which stage it is, and in which round.
struct Stages {
    uint32_t full, empty;

    __device__ __forceinline__ static uint32_t stage(uint32_t tile) { return tile % NUM_STAGES; }
    __device__ __forceinline__ static uint32_t round(uint32_t tile) { return tile / NUM_STAGES & 1; }
    __device__ __forceinline__ uint32_t full_of(uint32_t tile) const { return full + 8 * stage(tile); }
    __device__ __forceinline__ uint32_t empty_of(uint32_t tile) const { return empty + 8 * stage(tile); }
};

__device__ __forceinline__ void load_items(const SharedWork& shared, const Stages& stages, float* smem,
                                           const float* A, const float* B, int m, int n, int k, long long lda,
                                           long long ldb) {
    const int ragged = (k - 1) % BLOCK_K + 1;
    uint32_t tile = 0;
    Item at;
    for (int index = 0; shared.item(index, at); ++index) {
        // The first step takes what k leaves over after whole ones.
        int exist = at.first == 0 ? ragged : BLOCK_K;
        const int k_first = at.first == 0 ? 0 : ragged + (at.first - 1) * BLOCK_K;
        TileLoader loader(A, B, m, n, lda, ldb, shared.origin(at.tile), k_first);
        TileLoader::Fours staged;
        loader.load_a(staged, exist);
#pragma unroll 1
        for (int left = at.last - at.first; left > 0; ++tile) {
            float* const stage = smem + stages.stage(tile) * (A_STAGE + B_STAGE);
            barrier_wait(stages.empty_of(tile), stages.round(tile) ^ 1);
            loader.copy_b(stage + A_STAGE, exist, ldb);
            commit_copies();
            loader.store_a(stage, staged);
            exist = BLOCK_K;
            if (--left > 0) loader.load_a(staged);
            // The tile before is whole now that its part of B is there too.
            wait_for_copies<1>();
            if (tile > 0) barrier_arrive(stages.full_of(tile - 1));
        }
    }
    wait_for_copies();
    if (tile > 0) barrier_arrive(stages.full_of(tile - 1));
}

// Rows [FROM, TO) of one step of k, as cute_sgemm has it: 2 x 2 blocks, forth along one pair of rows and back
// along the next. ptxas (13.0) keeps that order under the hint only.
template <int FROM, int TO>
__device__ __forceinline__ void multiply_rows(ThreadTile& acc, const Fragments& f) {
#pragma unroll
    for (int i = FROM; i < TO; i += 2)
#pragma unroll
        for (int t = 0; t < THREAD_N; t += 2) {
            const int j = i / 2 % 2 ? THREAD_N - 2 - t : t;
            acc.value[i][j] = fmaf(f.a[i], f.b[j], acc.value[i][j]);
            acc.value[i][j + 1] = fmaf(f.a[i], f.b[j + 1], acc.value[i][j + 1]);
            acc.value[i + 1][j + 1] = fmaf(f.a[i + 1], f.b[j + 1], acc.value[i + 1][j + 1]);
            acc.value[i + 1][j] = fmaf(f.a[i + 1], f.b[j], acc.value[i + 1][j]);
        }
}

// No FFMA before this is moved behind it, as nvcc (13.0) would move those whose fragments an earlier tile
// read.
__device__ __forceinline__ void keep_here(ThreadTile& acc) {
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) asm volatile("" : "+f"(acc.value[i][j]));
}

// By 32-bit addresses and in the order written: from pointers nvcc (13.0) makes more of the loop's registers.
__device__ __forceinline__ void read_four_at(float* value, uint32_t from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
                 : "r"(from));
}

__device__ __forceinline__ void read_fragments(Fragments& f, uint32_t a_step, uint32_t b_step) {
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 4) read_four_at(&f.a[i], a_step + 4 * tile_row(i));
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) read_four_at(&f.b[j], b_step + 4 * tile_col(j));
}

// Address 0 is no barrier's: nobody arrives there. A branch would part the FFMAs around it.
__device__ __forceinline__ void arrive_unless_zero(uint32_t barrier) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.u32 p, %0, 0;\n"
        "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n"
        "}" ::"r"(barrier)
        : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS + LOADERS, 1)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
          int k, long long lda, long long ldb, long long ldc, float alpha, float beta, int* workspace,
          int whole_tiles) {
    extern __shared__ __align__(16) float smem[];
    __shared__ uint64_t barriers[2 * NUM_STAGES];
    __shared__ __align__(8) unsigned char work_memory[sizeof(SharedWork)];
    SharedWork& shared = *reinterpret_cast<SharedWork*>(work_memory);
    const Stages stages = {shared_address(barriers), shared_address(barriers + NUM_STAGES)};
    const Work found(m, n, k, whole_tiles, workspace);
    if (threadIdx.x == 0) {
        shared = {static_cast<int>(gridDim.x), (n - 1) / BLOCK_N + 1, found};
#pragma unroll 1
        for (int stage = 0; stage < NUM_STAGES; ++stage) {
            barrier_init(stages.full_of(stage), LOADERS);
            barrier_init(stages.empty_of(stage), WARPS);
        }
    }
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        give_registers<LOADER_REGISTERS>();
        load_items(shared, stages, smem, A, B, m, n, k, lda, ldb);
        return;
    }
    take_registers<MULTIPLIER_REGISTERS>();
    const Origin mine = thread_origin();
    const uint32_t a_mine = shared_address(smem + mine.row),
                   b_mine = shared_address(smem + A_STAGE + mine.col);
    const bool speaks = threadIdx.x % 32 == 0;  // for its warp
    const auto offset = [](uint32_t tile) { return Stages::stage(tile) * (4 * (A_STAGE + B_STAGE)); };
    uint32_t tile = 0;
    Item at;
    for (int index = 0; shared.item(index, at); ++index) {
        ThreadTile acc = {};
        Fragments fragments[2];
        barrier_wait_unseen(stages.full_of(tile), stages.round(tile));
        read_fragments(fragments[0], a_mine + offset(tile), b_mine + offset(tile));
        uint32_t done = 0;  // the barrier of the tile before
#pragma unroll 1
        for (const uint32_t end = tile + (at.last - at.first); tile != end; ++tile) {
            const uint32_t a_step = a_mine + offset(tile), b_step = b_mine + offset(tile);
            // After the last tile it is read once more, for nobody.
            const uint32_t next = min(tile + 1, end - 1);
#pragma unroll
            for (int kk = 0; kk < BLOCK_K; ++kk) {
                if (kk + 1 < BLOCK_K) {
                    read_fragments(fragments[(kk + 1) % 2], a_step + 4 * (kk + 1) * A_PITCH,
                                   b_step + 4 * (kk + 1) * BLOCK_N);
                } else {
                    read_fragments(fragments[0], a_mine + offset(next), b_mine + offset(next));
                }
                if (kk == BLOCK_K - 2) {
                    // In mid-step, where fragments that were read before have arrived: ptxas waits for all.
                    multiply_rows<0, THREAD_M / 2>(acc, fragments[kk % 2]);
                    arrive_unless_zero(done);
                    barrier_wait_unseen(stages.full_of(next), stages.round(next));
                    multiply_rows<THREAD_M / 2, THREAD_M>(acc, fragments[kk % 2]);
                } else {
                    multiply_rows<0, THREAD_M>(acc, fragments[kk % 2]);
                }
                if (kk == 0) keep_here(acc);
            }
            // Arrived at a tile later: by then all of the warp's reads have returned.
            done = speaks ? stages.empty_of(tile) : 0;
        }
        __syncwarp();
        arrive_unless_zero(done);
        shared.item(index, at);  // again: it was not worth registers in the loop
        finish(acc, shared.work, at, workspace, C, m, n, ldc, shared.origin(at.tile), alpha, beta);
    }
}
