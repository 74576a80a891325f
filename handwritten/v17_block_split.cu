// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v13's loop split-K inside a block: groups of warps share the stages of one small tile and multiply
// steps of their own; shared memory, that of a cluster, then a second launch add what they have, in order.
// Limited by issue slots and, at 512 and below, by first loads and sums. Refuses nothing but a grid of 2^31.
#include "quads.cuh"
#include "split_sum.cuh"

#if !defined(K_GROUPS) || !defined(BLOCKS_PER_SM) || !defined(SUM_THREADS) || !defined(SUM_LANES) || \
    !defined(ENTRY) || !defined(NAME_HINT)
#error "K_GROUPS and what follows it, and the entry's name, come from handwritten/split_tile.py"
#endif
constexpr int GROUP_THREADS = BLOCK_M / WARP_M * (BLOCK_N / WARP_N) * 32, THREADS = K_GROUPS * GROUP_THREADS;
constexpr int STEPS = BLOCK_K / K_GROUPS;  // of each group in a stage
constexpr int AHEAD = NUM_STAGES - 1;
constexpr int STAGE = A_STAGE + B_STAGE, PART = BLOCK_M * BLOCK_N;
constexpr int FOURS = THREAD_M * THREAD_N / 4;  // of a thread's tile
static_assert(NUM_STAGES >= 3,
              "a stage is computed from, the next one's first fragments are read, one arrives");
static_assert(BLOCK_K % K_GROUPS == 0 && STEPS % 2 == 0, "fragments alternate between two sets of registers");

// What one thread copies of each stage, from pointers that move along k. Rows and columns beyond the operands
// repeat others. A is copied element by element, so that it arrives transposed: 4 rows x 8 steps a
// warp, which with a pitch of 4 modulo 32 are stored to 32 banks.
struct Copier {
    static constexpr int A_ROWS = THREADS / 8, A_STEPS = BLOCK_M / A_ROWS, A_CHUNKS = BLOCK_K / 8;
    static constexpr int B_RUNS = BLOCK_N / VECTOR, B_ROWS = THREADS / B_RUNS, B_STEPS = BLOCK_K / B_ROWS;
    static_assert(BLOCK_K % 8 == 0 && BLOCK_M % A_ROWS == 0, "every thread takes equally many rows of A");
    static_assert(THREADS % B_RUNS == 0 && BLOCK_K % B_ROWS == 0, "a step brings in whole rows of B");

    const float* a[A_STEPS];
    const float* b;
    int a_to, b_to;

    __device__ __forceinline__ Copier(const float* A, const float* B, int m, int n, long long lda,
                                      long long ldb, Origin origin, int k_first) {
        const int row = static_cast<int>(threadIdx.x) / 8;
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i) {
            a[i] = A + existing(origin.row, row + i * A_ROWS, m - 1) * lda + k_first + a_col();
        }
        const int left = static_cast<int>(threadIdx.x) % B_RUNS * VECTOR;
        b = B + (k_first + static_cast<long long>(b_row())) * ldb + existing(origin.col, left, n - VECTOR);
        a_to = a_col() * A_PITCH + row;
        b_to = A_STAGE + b_row() * BLOCK_N + left;
    }
    __device__ __forceinline__ static int a_col() { return static_cast<int>(threadIdx.x) % 8; }
    __device__ __forceinline__ static int b_row() { return static_cast<int>(threadIdx.x) / B_RUNS; }

    // k_exist columns of A and rows of B count; the others are zeros.
    __device__ __forceinline__ void copy_part(float* stage, int k_exist, long long ldb) {
#pragma unroll
        for (int c = 0; c < A_CHUNKS; ++c)
#pragma unroll
            for (int i = 0; i < A_STEPS; ++i) {
                const bool exists = a_col() + c * 8 < k_exist;
                copy_run_async<1>(stage + a_to + c * (8 * A_PITCH) + i * A_ROWS, a[i] + c * 8, exists);
            }
#pragma unroll
        for (int i = 0; i < B_STEPS; ++i) {
            const bool exists = b_row() + i * B_ROWS < k_exist;
            copy_run_async<VECTOR>(stage + b_to + i * (B_ROWS * BLOCK_N), b + i * B_ROWS * ldb,
                                   exists ? VECTOR : 0);
        }
        advance(k_exist, ldb);
    }
    // A whole stage, or zeros in its place: that takes less than a branch.
    __device__ __forceinline__ void copy(float* stage, bool exists, long long ldb) {
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i)
#pragma unroll
            for (int c = 0; c < A_CHUNKS; ++c) {
                copy_run_async<1>(stage + a_to + c * (8 * A_PITCH) + i * A_ROWS, a[i] + c * 8, exists);
            }
#pragma unroll
        for (int i = 0; i < B_STEPS; ++i) {
            copy_run_async<VECTOR>(stage + b_to + i * (B_ROWS * BLOCK_N), b + i * B_ROWS * ldb,
                                   exists ? VECTOR : 0);
        }
        advance(BLOCK_K, ldb);
    }

   private:
    __device__ __forceinline__ void advance(int by, long long ldb) {
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i) a[i] += by;
        b += by * ldb;
    }
};

// One step of k. Without the hint in the entry's name ptxas (13.0) sorts the FFMAs anew; a walk down one
// column and up the next is the best start found.
__device__ __forceinline__ void multiply(ThreadTile& acc, const Fragments& f) {
#if NAME_HINT
    multiply_quads(acc, f);
#else
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j)
#pragma unroll
        for (int t = 0; t < THREAD_M; ++t) {
            const int i = j % 2 ? THREAD_M - 1 - t : t;
            acc.value[i][j] = fmaf(f.a[i], f.b[j], acc.value[i][j]);
        }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
          int k, long long lda, long long ldb, long long ldc, float alpha, float beta, int slices, int parts,
          float* workspace) {
    extern __shared__ __align__(16) float smem[];
    let_next_start();
    const int group = static_cast<int>(threadIdx.x) / GROUP_THREADS;
    const int place = static_cast<int>(threadIdx.x) % GROUP_THREADS, warp = place / 32, lane = place % 32;
    const Origin mine = {warp / (BLOCK_N / WARP_N) * WARP_M + lane / (WARP_N / THREAD_N) * 4,
                         warp % (BLOCK_N / WARP_N) * WARP_N + lane % (WARP_N / THREAD_N) * 4};
    const int tiles_n = (n - 1) / BLOCK_N + 1, stages = (k - 1) / BLOCK_K + 1;
    const int rank = static_cast<int>(blockIdx.x) % slices, cluster = static_cast<int>(blockIdx.x) / slices;
    const int part = cluster % parts, tile = cluster / parts;
    const Origin origin = {tile / tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N};
    const int share = part * slices + rank, quota = stages / (parts * slices),
              extra = stages % (parts * slices);
    const int first = share * quota + min(share, extra), count = quota + (share < extra);
    if (parts > 1) {  // C is then what sum_parts adds up
        C = workspace + static_cast<long long>(part) * m * n;
        ldc = n, beta = 0.0f;
    }

    // The first stage of all takes what k leaves over after whole ones: 1 to BLOCK_K columns.
    const int ragged = (k - 1) % BLOCK_K + 1;
    Copier copier(A, B, m, n, lda, ldb, origin, first == 0 ? 0 : ragged + (first - 1) * BLOCK_K);
    wait_for_launch_before();
    ThreadTile acc = {};
    if (count > 0) {
        copier.copy_part(smem, first == 0 ? ragged : BLOCK_K, ldb);
        commit_copies();
#pragma unroll
        for (int s = 1; s < AHEAD; ++s) {
            copier.copy(smem + s * STAGE, s < count, ldb);
            commit_copies();
        }
        const float* const a_mine = smem + group * (STEPS * A_PITCH) + mine.row;
        const float* const b_mine = smem + A_STAGE + group * (STEPS * BLOCK_N) + mine.col;
        Fragments fragments[2];
        wait_for_copies<AHEAD - 1>();
        __syncthreads();
        fragments[0].read(a_mine, b_mine);
        int stage = 0, fill = AHEAD;
#pragma unroll 1
        for (int s = 0; s < count; ++s) {
            const int following = stage + 1 == NUM_STAGES ? 0 : stage + 1;
            const float* const a_step = a_mine + stage * STAGE;
            const float* const b_step = b_mine + stage * STAGE;
#pragma unroll
            for (int kk = 0; kk < STEPS; ++kk) {
                if (kk + 1 < STEPS) {
                    fragments[(kk + 1) % 2].read(a_step + (kk + 1) * A_PITCH, b_step + (kk + 1) * BLOCK_N);
                } else {
                    // After this barrier nobody reads this stage any more, and the next one is there.
                    wait_for_copies<AHEAD - 1>();
                    __syncthreads();
                    fragments[0].read(a_mine + following * STAGE, b_mine + following * STAGE);
                }
                if (kk == 0) {
                    copier.copy(smem + fill * STAGE, s + AHEAD < count, ldb);
                    commit_copies();
                }
                multiply(acc, fragments[kk % 2]);
                // nvcc (13.0) would sink a stage's first step, whose fragments the stage before has read,
                // among the second's.
                if (NAME_HINT && kk == 0) keep_here(acc);
            }
            fill = stage;
            stage = following;
        }
        wait_for_copies();
        __syncthreads();  // shared memory is free
    }

    const int rows_left = m - origin.row - mine.row, cols_left = n - origin.col - mine.col;
    float* const c = C + (origin.row + static_cast<long long>(mine.row)) * ldc + origin.col + mine.col;
    const auto write = [&](int four, const float (&sum)[4]) {
        const int i = tile_row(four / (THREAD_N / 4)), j = tile_col(four % (THREAD_N / 4) * 4);
        if (i < rows_left) write_out<4>(c + i * ldc + j, sum, cols_left - j, 1.0f, beta);
    };
    float* const shared_part = smem + place * 4;
#pragma unroll
    for (int four = 0; four < FOURS; ++four) {
        float scaled[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            scaled[e] = alpha * acc.value[four / (THREAD_N / 4)][four % (THREAD_N / 4) * 4 + e];
        }
        if (K_GROUPS == 1 && slices == 1)
            write(four, scaled);
        else
            put_run<4>(shared_part + group * PART + four * (4 * GROUP_THREADS), scaled);
    }
    if (K_GROUPS == 1 && slices == 1) return;
    if constexpr (K_GROUPS > 1) {
        __syncthreads();
#pragma unroll 4
        for (int four = group; four < FOURS; four += K_GROUPS) {
            float* const at = shared_part + four * (4 * GROUP_THREADS);
            float sum[4] = {};
#pragma unroll
            for (int g = 0; g < K_GROUPS; ++g) {
                float part[4];
                read_four(part, at + g * PART);
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[e] += part[e];
            }
            if (slices == 1)
                write(four, sum);
            else
                put_run<4>(at, sum);
        }
        if (slices == 1) return;
    }
    sync_cluster();
#pragma unroll 2
    for (int four = rank + group * slices; four < FOURS; four += K_GROUPS * slices) {
        float sum[4];
        sum_over_cluster(sum, shared_part + four * (4 * GROUP_THREADS), slices);
        write(four, sum);
    }
    sync_cluster();  // nobody leaves while others read its shared memory
}

#define JOINED(a, b) a##b
#define JOIN(a, b) JOINED(a, b)

// C = the sum of all parts + beta * C. SUM_LANES threads share a run of VECTOR elements: each adds every
// SUM_LANES-th part, in order.
extern "C" __global__ void __launch_bounds__(SUM_THREADS)
    JOIN(ENTRY, _sum)(float* __restrict__ C, int m, int n, long long ldc, float beta, int parts,
                      const float* __restrict__ workspace) {
    let_next_start();
    const long long run = (static_cast<long long>(blockIdx.x) * SUM_THREADS + threadIdx.x) / SUM_LANES;
    const int lane = static_cast<int>(threadIdx.x) % SUM_LANES;
    const long long size = static_cast<long long>(m) * n, at = run * VECTOR;
    wait_for_launch_before();
    float sum[VECTOR] = {};
    if (at < size) {
#pragma unroll 4
        for (int part = lane; part < parts; part += SUM_LANES) {
            float more[VECTOR];
            if constexpr (VECTOR == 4) {
                const float4 four = __ldcg(reinterpret_cast<const float4*>(workspace + part * size + at));
                more[0] = four.x, more[1] = four.y, more[2] = four.z, more[3] = four.w;
            } else {
                more[0] = __ldcg(workspace + part * size + at);
            }
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) sum[e] += more[e];
        }
    }
#pragma unroll
    for (int apart = 1; apart < SUM_LANES; apart *= 2)
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) sum[e] += __shfl_xor_sync(~0u, sum[e], apart);
    if (at < size && lane == 0) {
        write_out<VECTOR>(C + at / n * ldc + at % n, sum, VECTOR, 1.0f, beta);
    }
}
