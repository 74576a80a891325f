// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds overlap across tiles to h0: one block an SM walks over tiles and loads the first stages of the next
// while it stores one; its warps meet at an mbarrier, arrive early and wait late, instead of stopping
// together. Runs on sm_80 and later. Limited by shared-memory bandwidth and by mma.sync itself, whose ceiling
// on Hopper lies below that of wgmma. Refuses nothing but a grid of 2^31 blocks.
#include "mma_sync_tile.cuh"

#ifndef WAIT_AT
#define WAIT_AT 12
#endif
#ifndef LOAD_EVERY_LAST
#define LOAD_EVERY_LAST 2
#endif
static_assert(WAIT_AT + LOAD_EVERY_LAST * (TILES_M + TILES_N / 2 - 1) < TILES_M * TILES_N,
              "all loads have a turn");
static_assert(COPY_FROM + COPY_EVERY * (COPIES_A_STEP - 1) < WARP_M / 16 * (WARP_N / 8),
              "all copies have a turn");

// A warp's rows of C leave a few at a time, through shared memory of its own behind the stages, while the
// next tile's first stages arrive.
constexpr int SLICE_ROWS = 32 / OUT_BYTES, SLICE_BYTES = SLICE_ROWS * ROW_BYTES;
constexpr int WARPS = THREADS / 32;

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
