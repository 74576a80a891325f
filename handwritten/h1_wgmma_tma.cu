// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds Hopper's own machinery to h0: one thread has the copy engine fill a ring of stages, two warpgroups
// multiply straight from shared memory with wgmma, persistent blocks run on into the next tile while the last
// one is stored. Limited by power; then by the tile's store, during which its warpgroup does not multiply.
// Refuses what a tensor map cannot describe: bases and row pitches that are no multiple of 16 bytes (h0 runs
// those).
#include "hopper.cuh"
#include "tensor_epilogue.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(MMA_M) || !defined(MMA_N) || \
    !defined(MMA_K) || !defined(NUM_STAGES) || !defined(STORE_BUFFERS) || !defined(GROUP_M)
#error "tile extents, STORE_BUFFERS and GROUP_M come from handwritten/tensor_catalog.py"
#endif
constexpr int STEPS = BLOCK_K / MMA_K;
constexpr int WARPGROUP = 128;
constexpr int CONSUMERS = BLOCK_M / MMA_M;            // warpgroups that multiply, 64 rows each
constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP;  // the first warpgroup only loads
constexpr int SPAN = 64;                              // FP16 elements in the 128 bytes of the swizzle
constexpr int BOX_BYTES = SPAN * SPAN * 2;            // 64 x 64 elements
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, B_BYTES = BLOCK_N * BLOCK_K * 2,
              STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int EIGHT_ROWS = 8 * SPAN * 2;  // bytes of eight rows of a span, the swizzle's period
constexpr int A_STEP_BYTES = MMA_K * 2;   // k lies along the span ...
constexpr int B_STEP_BYTES = B_COLUMN_MAJOR ? MMA_K * 2 : MMA_K * SPAN * 2;  // ... or across the rows
constexpr int STORE_COLS = 128 / OUT_BYTES;  // columns of C in one store buffer of 64 rows x 128 bytes
constexpr int STORE_BYTES = MMA_M * 128;
constexpr int STORES = BLOCK_N / STORE_COLS;
static_assert(BLOCK_M % MMA_M == 0 && CONSUMERS >= 1 && CONSUMERS <= 2,
              "registers suffice for two consumers");
static_assert(MMA_M == 64 && MMA_K == 16, "the shape of wgmma on FP16");
static_assert(BLOCK_N == MMA_N, "a warpgroup's wgmma spans the block tile");
static_assert(BLOCK_K == SPAN, "a row of a stage is one swizzle span");
static_assert(BLOCK_N % SPAN == 0, "row-major B comes in boxes of 64 columns, C leaves in boxes of 64 or 32");
static_assert(NUM_STAGES >= 2 && STORE_BUFFERS >= 1, "one stage is multiplied while the next arrives");

// Writes one store buffer's columns of the warpgroup's tile, from accumulators scaled by alpha (and beta *
// C). Row r, 16-byte chunk c lies at chunk c ^ (r mod 8), which is the tensor map's 128-byte swizzle.
__device__ __forceinline__ void stage_columns(uint32_t buffer, const float* d, int warp, int lane) {
    if constexpr (OUT_BYTES == 2) {
        const int row = warp * 16 + lane % 16;
#pragma unroll
        for (int j = 0; j < STORE_COLS / 16; ++j) {
            uint32_t packed[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const __half2 pair = __floats2half2_rn(d[j * 8 + i * 2], d[j * 8 + i * 2 + 1]);
                packed[i] = reinterpret_cast<const uint32_t&>(pair);
            }
            store_matrices(buffer + row * 128 + ((j * 2 + lane / 16) ^ (row & 7)) * 16, packed[0], packed[1],
                           packed[2], packed[3]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < STORE_COLS / 8; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp * 16 + half * 8 + lane / 4, chunk = j * 2 + lane % 4 / 2;
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                                 buffer + row * 128 + (chunk ^ (row & 7)) * 16 + lane % 2 * 8),
                             "f"(d[j * 4 + half * 2]), "f"(d[j * 4 + half * 2 + 1])
                             : "memory");
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    h1_wgmma_tma(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                 const __grid_constant__ TensorMap c_map, const Out* __restrict__ C, int m, int n, int k,
                 long long ldc, float alpha, float beta) {
    extern __shared__ unsigned char shared[];
    // The swizzle is a function of address bits 4..9, so stages and store buffers start at multiples of
    // 1,024.
    const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t stores = stages + NUM_STAGES * STAGE_BYTES;
    const uint32_t full = stores + CONSUMERS * STORE_BUFFERS * STORE_BYTES;  // stage's bytes are there
    const uint32_t empty = full + NUM_STAGES * 8;                            // stage has been multiplied

    if (threadIdx.x == 0) {
        for (int s = 0; s < NUM_STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, CONSUMERS);
        }
        fence_barrier_init();
    }
    __syncthreads();

    const unsigned tiles_m = (m - 1) / BLOCK_M + 1, tiles_n = (n - 1) / BLOCK_N + 1,
                   tiles = tiles_m * tiles_n;
    const int k_blocks = (k - 1) / BLOCK_K + 1;
    const int group = threadIdx.x / WARPGROUP;
    Ring<NUM_STAGES> ring;

    if (group == 0) {
        give_registers<40>();
        if (threadIdx.x == 0) {
            for (unsigned index = blockIdx.x; index < tiles; index += gridDim.x) {
                const TileOrigin tile = tile_of<GROUP_M>(index, tiles_m, tiles_n);
                const int row = tile.m * BLOCK_M, col = tile.n * BLOCK_N;
                for (int block = 0; block < k_blocks; ++block) {
                    const uint32_t a_stage = stages + ring.index * STAGE_BYTES, b_stage = a_stage + A_BYTES;
                    const uint32_t arrived = full + ring.index * 8;
                    barrier_wait(empty + ring.index * 8, ring.parity ^ 1);
                    barrier_expect(arrived, STAGE_BYTES);  // zeros beyond the operands count as bytes
                    copy_box_in(a_stage, &a_map, arrived, block * BLOCK_K, row);
                    if constexpr (B_COLUMN_MAJOR) {
                        copy_box_in(b_stage, &b_map, arrived, block * BLOCK_K, col);
                    } else {
#pragma unroll
                        for (int i = 0; i < BLOCK_N / SPAN; ++i)
                            copy_box_in(b_stage + i * BOX_BYTES, &b_map, arrived, col + i * SPAN,
                                        block * BLOCK_K);
                    }
                    ring.advance();
                }
            }
        }
    } else {
        take_registers<CONSUMERS == 2 ? 232 : 240>();
        const int consumer = group - 1, thread = threadIdx.x % WARPGROUP, warp = thread / 32,
                  lane = thread % 32;
        const bool leader = thread == 0;
        const uint32_t own_stores = stores + consumer * STORE_BUFFERS * STORE_BYTES;
        // A descriptor holds its address in units of 16 bytes, lowest; shared memory is too small for a carry
        // out of it.
        const uint64_t a_first = matrix_descriptor(stages + consumer * MMA_M * BLOCK_K * 2, 0, EIGHT_ROWS);
        const uint64_t b_first =
            matrix_descriptor(stages + A_BYTES, B_COLUMN_MAJOR ? 0 : BOX_BYTES, EIGHT_ROWS);
        float acc[BLOCK_N / 2];

        for (unsigned index = blockIdx.x; index < tiles; index += gridDim.x) {
            int previous = 0;
            for (int block = 0; block < k_blocks; ++block) {
                barrier_wait(full + ring.index * 8, ring.parity);
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    const uint64_t a = a_first + (ring.index * STAGE_BYTES + step * A_STEP_BYTES) / 16;
                    const uint64_t b = b_first + (ring.index * STAGE_BYTES + step * B_STEP_BYTES) / 16;
                    Wgmma<MMA_N, !B_COLUMN_MAJOR>::run(acc, a, b, block + step != 0);
                }
                wgmma_commit();
                // This block's products stay in flight; the one before has finished, so its stage can be
                // refilled.
                wgmma_wait<1>();
                if (leader && block > 0) barrier_arrive(empty + previous * 8);
                previous = ring.index;
                ring.advance();
            }
            wgmma_wait<0>();
            if (leader) barrier_arrive(empty + previous * 8);

            const TileOrigin tile = tile_of<GROUP_M>(index, tiles_m, tiles_n);
            const int row = tile.m * BLOCK_M + consumer * MMA_M, col = tile.n * BLOCK_N;
#pragma unroll
            for (int store = 0; store < STORES; ++store) {
                float* d = acc + store * (STORE_COLS / 2);
                const int first = col + store * STORE_COLS;
#pragma unroll
                for (int i = 0; i < STORE_COLS / 2; ++i) d[i] *= alpha;
                if (beta != 0.0f) {
#pragma unroll
                    for (int i = 0; i < STORE_COLS / 2; i += 2) {
                        const int c_row = row + warp * 16 + i / 2 % 2 * 8 + lane / 4,
                                  c_col = first + i / 4 * 8 + lane % 4 * 2;
                        if (c_row < m && c_col < n) {
                            const float2 old = read_pair(C + c_row * ldc + c_col, true, c_col + 1 < n);
                            d[i] += beta * old.x;
                            d[i + 1] += beta * old.y;
                        }
                    }
                }
                const uint32_t buffer = own_stores + store % STORE_BUFFERS * STORE_BYTES;
                if (leader) wait_boxes_read<STORE_BUFFERS - 1>();  // the buffer's last store has read it
                sync_warpgroup(group);
                stage_columns(buffer, d, warp, lane);
                fence_to_async();
                sync_warpgroup(group);
                if (leader) {
                    if (first < n && row < m) copy_box_out(&c_map, buffer, first, row);
                    commit_boxes();
                }
            }
        }
        if (leader) wait_boxes_read<0>();  // shared memory outlives its readers
    }
}
