// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v11 that warps share nothing while they multiply: each streams rows of B, and of A beside them,
// through a ring of its own in shared memory. The warps of a block, then a cluster's blocks, are added in
// order. Bound by reading B once. Refuses nothing but a grid of 2^31 blocks.
#include "split_sum.cuh"
#include "tile_io.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(WARP_M) || !defined(WARP_N) || \
    !defined(THREAD_M) || !defined(THREAD_N) || !defined(K_WARPS) || !defined(ENTRY)
#error "tile extents come from handwritten/catalog.py"
#endif
static_assert(BLOCK_M == WARP_M && BLOCK_N == WARP_N, "the warps of a block share its tile, and split k");
static_assert(THREAD_M == BLOCK_M && THREAD_N % 4 == 0 && BLOCK_N % THREAD_N == 0,
              "a thread has all rows of its columns");
static_assert(BLOCK_M == 1 || BLOCK_M % 4 == 0, "a thread reads one row of A, or four at a time");
static_assert(NUM_STAGES >= 2, "one batch is multiplied while the next arrives");

constexpr int THREADS = K_WARPS * 32, AHEAD = NUM_STAGES - 1;
constexpr int N_LANES = BLOCK_N / THREAD_N;  // lanes side by side along n; the others have other rows of B
constexpr int K_LANES = 32 / N_LANES, STEPS = BLOCK_K / K_LANES;  // rows of a thread in a batch, adjacent
constexpr int RUNS = THREAD_N / VECTOR;                           // accesses of a thread to a row of B
static_assert(N_LANES * K_LANES == 32 && STEPS * K_LANES == BLOCK_K, "the lanes form a grid");
static_assert(STEPS % 4 == 0, "one row of A is read four steps at a time");
// A is transposed, with four more elements a step: a warp that copies 4 rows x 8 steps stores to 32 banks.
constexpr int A_PITCH = BLOCK_M == 1 ? 1 : BLOCK_M + 4, A_BATCH = BLOCK_K * A_PITCH;
constexpr int BATCH = BLOCK_K * BLOCK_N + A_BATCH;
constexpr int FOURS = BLOCK_M * BLOCK_N / 4;  // of the tile

// Column in the tile of the first element of this thread's run r.
__device__ __forceinline__ int column(int r) {
    return (r * N_LANES + static_cast<int>(threadIdx.x) % N_LANES) * VECTOR;
}

template <int WIDTH>
__device__ __forceinline__ void get_run(float (&run)[WIDTH], const float* from) {
    if constexpr (WIDTH == 4) {
        read_four(run, from);
    } else {
        run[0] = *from;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
          int k, long long lda, long long ldb, long long ldc, float alpha, float beta, int slices) {
    extern __shared__ __align__(16) float smem[];
    let_next_start();
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int strips = (n - 1) / BLOCK_N + 1, batches = (k - 1) / BLOCK_K + 1;
    const int rank = static_cast<int>(blockIdx.x) % slices, tile = static_cast<int>(blockIdx.x) / slices;
    const Origin origin = {tile / strips * BLOCK_M, tile % strips * BLOCK_N};
    // This warp takes every stride-th batch: all warps of the grid go through B together, from its first row
    // to its last, and device memory is read in long runs.
    const int first = rank * K_WARPS + warp, stride = slices * K_WARPS;

    // Rows and columns beyond the operands repeat others, and are never stored.
    int b_col[RUNS];
#pragma unroll
    for (int r = 0; r < RUNS; ++r) b_col[r] = existing(origin.col, column(r), n - VECTOR);
    const int step_first = lane / N_LANES * STEPS;  // this thread's first row of a batch
    const float* b_from = B + (static_cast<long long>(first) * BLOCK_K + step_first) * ldb;
    const int last_row = m - 1 - origin.row;
    const float* const a_rows = A + origin.row * lda;
    float* const ring = smem + warp * (NUM_STAGES * BATCH);

#if PREFETCH
    // The first batches are asked for while the launch before still ends: whatever it writes to B, L2 has it.
#pragma unroll
    for (int s = 0; s < PREFETCH; ++s) {
        constexpr int LINES = BLOCK_N / 32;  // of 128 bytes in a row
#pragma unroll
        for (int i = lane; i < BLOCK_K * LINES; i += 32) {
            const int kk = (first + s * stride) * BLOCK_K + i / LINES;
            const float* const line = B + min(kk, k - 1) * ldb + min(origin.col + i % LINES * 32, n - 1);
            asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
        }
    }
#endif
    wait_for_launch_before();
    // Batches are copied in order. What the last one lacks is zeros; past it a group is still committed.
    const auto copy = [&](int index, int stage) {
        float* const to = ring + stage * BATCH;
        if (index < batches) {
            const int exist = k - index * BLOCK_K;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const float* const row = b_from + step * ldb;
#pragma unroll
                for (int r = 0; r < RUNS; ++r) {
                    copy_run_async<VECTOR>(to + (step_first + step) * BLOCK_N + column(r), row + b_col[r],
                                           step_first + step < exist ? VECTOR : 0);
                }
            }
            b_from += static_cast<long long>(stride) * BLOCK_K * ldb;
            float* const to_a = to + BLOCK_K * BLOCK_N;
#pragma unroll
            for (int i = 0; i < BLOCK_M * BLOCK_K; i += 32) {
                const int row = (i + lane) / BLOCK_K, kk = (i + lane) % BLOCK_K;
                if (row < BLOCK_M) {
                    copy_run_async<1>(to_a + kk * A_PITCH + row,
                                      a_rows + min(row, last_row) * lda + index * BLOCK_K + kk, kk < exist);
                }
            }
        }
        commit_copies();
    };

    float acc[BLOCK_M][RUNS][VECTOR] = {};
    const auto multiply = [&](int stage) {
        const float* const from_b = ring + stage * BATCH + step_first * BLOCK_N;
        const float* const from_a = ring + stage * BATCH + BLOCK_K * BLOCK_N + step_first * A_PITCH;
        float a[BLOCK_M == 1 ? STEPS : BLOCK_M];
        if constexpr (BLOCK_M == 1) {
#pragma unroll
            for (int step = 0; step < STEPS; step += 4) read_four(&a[step], from_a + step);
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if constexpr (BLOCK_M != 1) {
#pragma unroll
                for (int i = 0; i < BLOCK_M; i += 4) read_four(&a[i], from_a + step * A_PITCH + i);
            }
#pragma unroll
            for (int r = 0; r < RUNS; ++r) {
                float b[VECTOR];
                get_run<VECTOR>(b, from_b + step * BLOCK_N + column(r));
#pragma unroll
                for (int i = 0; i < BLOCK_M; ++i)
#pragma unroll
                    for (int e = 0; e < VECTOR; ++e) {
                        acc[i][r][e] = fmaf(a[BLOCK_M == 1 ? step : i], b[e], acc[i][r][e]);
                    }
            }
        }
    };

#pragma unroll
    for (int stage = 0; stage < AHEAD; ++stage) copy(first + stage * stride, stage);
    int stage = 0, fill = AHEAD;
#pragma unroll 1
    for (int index = first; index < batches; index += stride) {
        wait_for_copies<AHEAD - 1>();
        __syncwarp();  // this batch is there, and nobody reads the one before any more
        copy(index + AHEAD * stride, fill);
        multiply(stage);
        stage = stage + 1 == NUM_STAGES ? 0 : stage + 1;
        fill = fill + 1 == NUM_STAGES ? 0 : fill + 1;
    }
    wait_for_copies();
    __syncthreads();  // nobody reads A in shared memory any more

    float* const own = smem + warp * (BLOCK_M * BLOCK_N);
#pragma unroll
    for (int i = 0; i < BLOCK_M; ++i)
#pragma unroll
        for (int r = 0; r < RUNS; ++r) {
            float scaled[VECTOR];
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) {
                scaled[e] = alpha * acc[i][r][e];
#pragma unroll
                for (int apart = N_LANES; apart < 32; apart *= 2) {
                    scaled[e] += __shfl_xor_sync(~0u, scaled[e], apart);
                }
            }
            if (step_first == 0) put_run<VECTOR>(own + i * BLOCK_N + column(r), scaled);
        }
    __syncthreads();
    const int cols_left = n - origin.col;
    const auto write = [&](int four, const float (&sum)[4]) {
        const int row = four * 4 / BLOCK_N, col = four * 4 % BLOCK_N;
        if (row <= last_row) {
            write_out<4>(C + (origin.row + static_cast<long long>(row)) * ldc + origin.col + col, sum,
                         cols_left - col, 1.0f, beta);
        }
    };
#pragma unroll 1
    for (int four = static_cast<int>(threadIdx.x); four < FOURS; four += THREADS) {
        float sum[4] = {};
#pragma unroll
        for (int part = 0; part < K_WARPS; ++part) {
            float more[4];
            read_four(more, smem + part * (BLOCK_M * BLOCK_N) + four * 4);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[e] += more[e];
        }
        if (slices == 1)
            write(four, sum);
        else
            put_run<4>(smem + four * 4, sum);
    }
    if (slices == 1) return;
    sync_cluster();
#pragma unroll 1
    for (int four = rank + static_cast<int>(threadIdx.x) * slices; four < FOURS; four += THREADS * slices) {
        float sum[4];
        sum_over_cluster(sum, smem + four * 4, slices);
        write(four, sum);
    }
    sync_cluster();  // nobody leaves while others read its shared memory
}
