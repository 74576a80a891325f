// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v8 a warpgroup that only loads: the other warps read fragments and multiply, and meet nobody but the
// loaders, at mbarriers. Eight lanes along m read A and B with 12 wavefronts a step where v7 took 20. Guards for
// ragged tiles are the loaders' alone. Limited by issue slots (94 % busy). Refuses nothing but 2^31 tiles.
#include "hopper.cuh"
#include "tile_io.cuh"

#if !defined(ENTRY) || !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(WARP_M) || \
    !defined(WARP_N) || !defined(THREAD_M) || !defined(THREAD_N) || !defined(NUM_STAGES)
#error "tile extents and the entry's name come from handwritten/catalog.py"
#endif
static_assert(THREAD_M == 8 && THREAD_N == 16 && WARP_M == 64 && WARP_N == 64,
              "the lane map below is for 8 x 4 lanes of 8 x 16 elements");
static_assert(BLOCK_M % 64 == 0 && BLOCK_K % 8 == 0, "a step of the loaders is 64 rows x 8 columns of A");
static_assert(BLOCK_K % 2 == 0, "fragments alternate between two sets of registers");

constexpr int WARPS = BLOCK_M / WARP_M * (BLOCK_N / WARP_N), LOADERS = 4;
constexpr int THREADS = 32 * (WARPS + LOADERS), BLOCKS_PER_SM = WARPS == 8 ? 1 : 2;
static_assert(WARPS == 8 || WARPS == 4, "registers are handed over by whole warpgroups");
// What a loader gives, a multiplier takes; together all that a block's threads were given at the launch. Fewer
// for the loaders and ptxas (13.0) presses values that both roles use into their range, and ports clash.
constexpr int LOADER_REGISTERS = WARPS == 8 ? 72 : 56, MULTIPLIER_REGISTERS = WARPS == 8 ? 216 : 200;

constexpr int A_PITCH = BLOCK_M + 4;  // 16 rows x 2 chunks of k, stored at once, then meet no bank twice
constexpr int A_STAGE = BLOCK_K * A_PITCH, STAGE = A_STAGE + BLOCK_K * BLOCK_N;
constexpr int HEADER_BYTES = 8192;       // of the workspace: the ticket, then a flag for each warp of each share
constexpr int PART = BLOCK_M * BLOCK_N;  // elements of a share's partial tile, in the order of threads' registers

// The work of a block: equal shares of the steps of all tiles from whole_tiles on, then whole tiles.
struct Work {
    int steps, whole_tiles, share, quota, extra;

    __device__ __forceinline__ int start(int share_index) const {
        return share_index * quota + min(share_index, extra);
    }
};
struct Item {
    int tile, first, last;  // steps of BLOCK_K
};

// The index-th item of this block; false after the last. Both roles walk the same list.
__device__ __forceinline__ bool item(const Work& work, int index, Item& found) {
    const int start = work.start(work.share), end = work.start(work.share + 1);
    const int tile = start / work.steps;
    const int parts = start < end ? (end - 1) / work.steps - tile + 1 : 0;
    if (index < parts) {
        const int base = (tile + index) * work.steps;
        found = {work.whole_tiles + tile + index, max(start - base, 0), min(end - base, work.steps)};
        return true;
    }
    found = {work.share + (index - parts) * static_cast<int>(gridDim.x), 0, work.steps};
    return found.tile < work.whole_tiles;
}

// This thread's share of the tiles that the loaders bring in: A transposed through registers, B by cp.async.
struct Loader {
    static constexpr int ROW_STEPS = BLOCK_M / 64, CHUNK_STEPS = BLOCK_K / 8;
    static constexpr int RUNS = BLOCK_N / VECTOR;  // of a row of B
    static constexpr int COL_STEPS = RUNS > 32 * LOADERS ? RUNS / (32 * LOADERS) : 1;
    static constexpr int B_ROWS = 32 * LOADERS * COL_STEPS / RUNS, B_STEPS = BLOCK_K / B_ROWS;
    static_assert(BLOCK_K % B_ROWS == 0, "a step brings in whole rows of B");

    const int loader = static_cast<int>(threadIdx.x) - 32 * WARPS;
    const int a_row = loader / 2, a_col = loader % 2 * 4;
    const int b_row = loader / (RUNS / COL_STEPS), b_col = loader % (RUNS / COL_STEPS) * VECTOR;
    float staged[ROW_STEPS][CHUNK_STEPS][4];

    __device__ __forceinline__ void fetch_a(const float* __restrict__ from, long long lda, int rows_left,
                                            int k_left) {
        const bool inside = rows_left >= BLOCK_M && k_left >= BLOCK_K;
#pragma unroll
        for (int i = 0; i < ROW_STEPS; ++i)
#pragma unroll
            for (int c = 0; c < CHUNK_STEPS; ++c) {
                const float* run = from + 64 * i * lda + 8 * c;
                const int exist = inside                       ? 4
                                  : a_row + 64 * i < rows_left ? min(max(k_left - a_col - 8 * c, 0), 4)
                                                               : 0;
                if constexpr (VECTOR == 4) {
                    load_run<4>(staged[i][c], run, exist);
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e) staged[i][c][e] = e < exist ? __ldg(run + e) : 0.0f;
                }
            }
    }

    __device__ __forceinline__ void store_a(float* stage) const {
#pragma unroll
        for (int i = 0; i < ROW_STEPS; ++i)
#pragma unroll
            for (int c = 0; c < CHUNK_STEPS; ++c)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    stage[(a_col + 8 * c + e) * A_PITCH + a_row + 64 * i] = staged[i][c][e];
    }

    __device__ __forceinline__ void copy_b(float* stage, const float* from, long long ldb, int k_left,
                                           int cols_left) const {
        const bool inside = k_left >= BLOCK_K && cols_left >= BLOCK_N;
#pragma unroll
        for (int i = 0; i < B_STEPS; ++i) {
#pragma unroll
            for (int j = 0; j < COL_STEPS; ++j) {
                const int col = b_col + j * (BLOCK_N / COL_STEPS);
                float* to = stage + A_STAGE + (b_row + i * B_ROWS) * BLOCK_N + col;
                const float* run = from + j * (BLOCK_N / COL_STEPS);
                if (inside) {
                    copy_run_async<VECTOR>(to, run);
                } else {
                    copy_run_async<VECTOR>(
                        to, run, b_row + i * B_ROWS < k_left ? min(max(cols_left - col, 0), VECTOR) : 0);
                }
            }
            from += B_ROWS * ldb;
        }
    }
};

struct Fragments {
    float a[THREAD_M], b[THREAD_N];

    __device__ __forceinline__ void read(const float* a_step, const float* b_step) {
#pragma unroll
        for (int i = 0; i < THREAD_M; i += 4) read_four(&a[i], a_step + i / 4 * 32);
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) read_four(&b[j], b_step + j / 4 * 16);
    }
};

// One step of k in the order that reads fewest registers: with NAME_HINT ptxas keeps the order as written, 2 x 2
// blocks with 1.52 reads an FFMA; without it sorts them, and takes a walk down one column and up the next best.
__device__ __forceinline__ void multiply(float (&acc)[THREAD_M][THREAD_N], const Fragments& f) {
#if NAME_HINT
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 2)
#pragma unroll
        for (int t = 0; t < THREAD_N; t += 2) {
            const int j = i % 4 ? THREAD_N - 2 - t : t;
            acc[i][j] = fmaf(f.a[i], f.b[j], acc[i][j]);
            acc[i][j + 1] = fmaf(f.a[i], f.b[j + 1], acc[i][j + 1]);
            acc[i + 1][j + 1] = fmaf(f.a[i + 1], f.b[j + 1], acc[i + 1][j + 1]);
            acc[i + 1][j] = fmaf(f.a[i + 1], f.b[j], acc[i + 1][j]);
        }
#else
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j)
#pragma unroll
        for (int t = 0; t < THREAD_M; ++t) {
            const int i = j % 2 ? THREAD_M - 1 - t : t;
            acc[i][j] = fmaf(f.a[i], f.b[j], acc[i][j]);
        }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
          long long lda, long long ldb, long long ldc, float alpha, float beta, int* workspace,
          int whole_tiles) {
    extern __shared__ __align__(16) float smem[];
    __shared__ int shared_ticket;
    __shared__ uint64_t barriers[2 * NUM_STAGES];
    const uint32_t full = shared_address(barriers), empty = shared_address(barriers + NUM_STAGES);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int tiles_n = (n - 1) / BLOCK_N + 1, tiles = ((m - 1) / BLOCK_M + 1) * tiles_n;
    const int blocks = static_cast<int>(gridDim.x);

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < NUM_STAGES; ++stage) {
            barrier_init(full + 8 * stage, 32 * LOADERS + LOADERS);  // a loader's copies; a warp's stores of A
            barrier_init(empty + 8 * stage, WARPS);
        }
        // Shares go out in the order in which blocks start, the last share first: a block waits only for later
        // shares, hence for blocks that have started and need nothing from it.
        if (whole_tiles < tiles) shared_ticket = atomicAdd(workspace, 1);
    }
    __syncthreads();
    Work work;
    work.steps = (k - 1) / BLOCK_K + 1;
    work.whole_tiles = whole_tiles;
    work.share = whole_tiles < tiles ? blocks - 1 - shared_ticket : static_cast<int>(blockIdx.x);
    work.quota = (tiles - whole_tiles) * work.steps / blocks;
    work.extra = (tiles - whole_tiles) * work.steps % blocks;
    Ring<NUM_STAGES> ring;
    Item at;

    if (warp >= WARPS) {
        give_registers<LOADER_REGISTERS>();
        Loader loader;
        for (int index = 0; item(work, index, at); ++index) {
            const int row = at.tile / tiles_n * BLOCK_M, col = at.tile % tiles_n * BLOCK_N;
            const int k_first = at.first * BLOCK_K;
            const float* a = A + (row + static_cast<long long>(loader.a_row)) * lda + k_first + loader.a_col;
            const float* b = B + (k_first + static_cast<long long>(loader.b_row)) * ldb + col + loader.b_col;
#pragma unroll 1
            for (int step = at.first; step < at.last; ++step) {
                const int k_left = k - step * BLOCK_K;
                float* const stage = smem + ring.index * STAGE;
                loader.fetch_a(a, lda, m - row, k_left);
                barrier_wait(empty + 8 * ring.index, ring.parity ^ 1);
                loader.copy_b(stage, b, ldb, k_left, n - col);
                barrier_arrive_after_copies(full + 8 * ring.index);
                loader.store_a(stage);
                __syncwarp();
                if (lane == 0) barrier_arrive(full + 8 * ring.index);
                a += BLOCK_K;
                b += BLOCK_K * ldb;
                ring.advance();
            }
        }
        wait_for_copies();
        return;
    }

    take_registers<MULTIPLIER_REGISTERS>();
    // Lane bits 0 and 2 walk along n, the others along m: lanes i and i^1 then share A's rows, i and i^2 B's
    // columns, and both fragments take two wavefronts a load.
    const int my_row = warp / (BLOCK_N / WARP_N) * WARP_M + (lane / 2 % 2 + lane / 8 * 2) * 4;
    const int my_col = warp % (BLOCK_N / WARP_N) * WARP_N + (lane % 2 + lane / 4 % 2 * 2) * 4;
    int* const flags = workspace + 1;
    float* const parts = reinterpret_cast<float*>(workspace) + HEADER_BYTES / 4;

    for (int index = 0; item(work, index, at); ++index) {
        float acc[THREAD_M][THREAD_N] = {};
        uint32_t done = 0;
#pragma unroll 1
        for (int step = at.first; step < at.last; ++step) {
            const float* const a_step = smem + ring.index * STAGE + my_row;
            const float* const b_step = smem + ring.index * STAGE + A_STAGE + my_col;
            barrier_wait(full + 8 * ring.index, ring.parity);
            Fragments fragments[2];
            fragments[0].read(a_step, b_step);
#pragma unroll
            for (int kk = 0; kk < BLOCK_K; ++kk) {
                // The previous stage is given back only now: its last loads have been used, so they are over.
                if (kk == 1 && done && lane == 0) barrier_arrive(done);
                if (kk + 1 < BLOCK_K) {
                    fragments[(kk + 1) % 2].read(a_step + (kk + 1) * A_PITCH, b_step + (kk + 1) * BLOCK_N);
                }
                multiply(acc, fragments[kk % 2]);
            }
            done = empty + 8 * ring.index;
            ring.advance();
        }

        float scale = alpha;
        const bool owner = at.first == 0;
        if (owner && at.last < work.steps) {
            const int tile_end = (at.tile - whole_tiles + 1) * work.steps;
#pragma unroll 1
            for (int peer = work.share; work.start(peer + 1) < tile_end;) {
                ++peer;
                int flag;
                do {
                    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                                 : "=r"(flag)
                                 : "l"(flags + peer * WARPS + warp)
                                 : "memory");
                } while (flag == 0);
                const float4* from =
                    reinterpret_cast<const float4*>(parts + static_cast<long long>(peer) * PART) +
                    threadIdx.x;
#pragma unroll
                for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
                    for (int j = 0; j < THREAD_N; j += 4) {
                        const float4 more = __ldcg(from + (i * (THREAD_N / 4) + j / 4) * (32 * WARPS));
                        acc[i][j] = fmaf(scale, acc[i][j], more.x);
                        acc[i][j + 1] = fmaf(scale, acc[i][j + 1], more.y);
                        acc[i][j + 2] = fmaf(scale, acc[i][j + 2], more.z);
                        acc[i][j + 3] = fmaf(scale, acc[i][j + 3], more.w);
                    }
                scale = 1.0f;
            }
        }
        const int row = at.tile / tiles_n * BLOCK_M + my_row, col = at.tile % tiles_n * BLOCK_N + my_col;
        float* const c = C + static_cast<long long>(row) * ldc + col;
        float* const part = parts + static_cast<long long>(work.share) * PART + threadIdx.x * 4;
#pragma unroll
        for (int i = 0; i < THREAD_M; ++i) {
            const int down = i / 4 * 32 + i % 4;
            if (owner && row + down >= m) continue;
#pragma unroll
            for (int j = 0; j < THREAD_N; j += 4) {
                // Scaled first, also in a part: a vector store of the accumulators themselves would bind them
                // to aligned fours, and ptxas could not spread them over the register banks.
                float scaled[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) scaled[e] = scale * acc[i][j + e];
                if (owner) {
                    write_out<4>(c + down * ldc + j / 4 * 16, scaled, n - col - j / 4 * 16, 1.0f, beta);
                } else {
                    put_run<4>(part + (i * (THREAD_N / 4) + j / 4) * (4 * 32 * WARPS), scaled);
                }
            }
        }
        if (!owner) {
            __syncwarp();
            if (lane == 0) {
                asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flags + work.share * WARPS + warp),
                             "r"(1)
                             : "memory");
            }
        }
        if (lane == 0) barrier_arrive(done);
    }
}
