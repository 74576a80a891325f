// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds to h5 split-K: blocks of a cluster share a tile along k and push their sums into each other's shared
// memory; parts beyond that go through the workspace to a second launch. Both add in a fixed order. For C of
// few tiles; limited by memory or, where k is short, by launches and sums. Refuses what h1 refuses (h0).
#include "wgmma_epilogue.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(MMA_M) || !defined(MMA_N) || \
    !defined(MMA_K) || !defined(NUM_STAGES) || !defined(GROUP_M) || !defined(B_AT_ONCE) ||               \
    !defined(SUM_THREADS)
#error "tile extents, GROUP_M, B_AT_ONCE and SUM_THREADS come from handwritten/tensor_catalog.py"
#endif
constexpr int WARPGROUP = 128;
constexpr int CONSUMERS = BLOCK_M / MMA_M;            // warpgroups that multiply, 64 rows of the tile each
constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP;  // the first warpgroup only loads
constexpr int STEPS = BLOCK_K / MMA_K;
constexpr int SPAN = 64;                        // FP16 elements in the 128 bytes that the swizzle spans
constexpr int EIGHT_ROWS = 8 * SPAN * 2;        // bytes: the swizzle's period
constexpr int SLAB_BYTES = SPAN * BLOCK_K * 2;  // row-major B: BLOCK_K rows of 64 columns
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2, STAGE_BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
constexpr int A_STEP_BYTES = MMA_K * 2;                                      // k lies along the span ...
constexpr int B_STEP_BYTES = B_COLUMN_MAJOR ? MMA_K * 2 : MMA_K * SPAN * 2;  // ... or across its rows
constexpr int FOURS = MMA_N / 8;  // of a thread's accumulators: rows r and r + 8 by two of eight columns
constexpr int WARP_ROWS = 16;
constexpr int ROUND_BYTES = CONSUMERS * WARPGROUP * 16;  // one four of every thread
constexpr int EXCHANGE_BYTES = FOURS * ROUND_BYTES;      // the tile, from all blocks of a cluster a part each
static_assert(MMA_M == 64 && MMA_K == 16, "the shape of wgmma on FP16");
static_assert(CONSUMERS == 1 || CONSUMERS == 2, "registers suffice for two warpgroups that multiply");
static_assert(BLOCK_N == MMA_N, "one wgmma spans the block tile");
static_assert(BLOCK_N % SPAN == 0 && BLOCK_K == SPAN, "a row of a stage is one swizzle span");
static_assert(FOURS % 8 == 0 && (FOURS & (FOURS - 1)) == 0,
              "up to eight blocks take equal parts of the tile's columns");
static_assert(CONSUMERS * STORE_BUFFERS * STORE_BYTES <= EXCHANGE_BYTES, "either use of the memory fits");
static_assert(!B_AT_ONCE || !B_COLUMN_MAJOR, "one copy of all spans of row-major B");
static_assert(NUM_STAGES >= 2, "one stage is multiplied while the next arrives");
constexpr bool MOVES_REGISTERS = CONSUMERS == 2;  // one fits without

// Four floats into the shared memory of a block of the cluster, and their bytes to a barrier there.
__device__ __forceinline__ void push_four(uint32_t to, uint32_t barrier, uint32_t rank, const float* four) {
    asm volatile(
        "{\n"
        ".reg .b32 there, arrived;\n"
        "mapa.shared::cluster.u32 there, %0, %2;\n"
        "mapa.shared::cluster.u32 arrived, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, "
        "[arrived];\n"
        "}" ::"r"(to),
        "r"(barrier), "r"(rank), "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3])
        : "memory");
}

__device__ __forceinline__ void write_pair(Out* c, float2 value, bool both) {
    if (both) {
        OutPair pair;
        from_float2(pair, value);
        *reinterpret_cast<OutPair*>(c) = pair;
    } else {
        *c = static_cast<Out>(value.x);
    }
}

// What the blocks that share a tile have left of it.
struct Shared {
    int parts;
    int pitch;     // floats in a row of a part: n and up to three more, which are zeros
    float* floor;  // of this part in the workspace
};

// A four of the tile: sums over all of k go to C, those of one part to the workspace. Rows and columns are
// even, and C has a tensor map, so pairs are aligned.
__device__ __forceinline__ void write_four(const float* sum, const Destination& to, const Shared& shared,
                                           int row, int col) {
#pragma unroll
    for (int half = 0; half < 2; ++half, row += 8) {
        if (row >= to.m) return;
        float2 value = {sum[half * 2], sum[half * 2 + 1]};
        const bool both = col + 1 < to.n;
        if (shared.parts > 1) {
            if (col >= shared.pitch) return;
            if (!both) value.y = 0.0f;
            if (col >= to.n) value.x = 0.0f;
            *reinterpret_cast<float2*>(shared.floor + static_cast<long long>(row) * shared.pitch + col) =
                value;
        } else if (col < to.n) {
            Out* const c = to.c + row * to.ldc + col;
            value.x *= to.alpha, value.y *= to.alpha;
            if (to.beta != 0.0f) {
                const float2 old = read_pair(c, true, both);
                value.x += to.beta * old.x, value.y += to.beta * old.y;
            }
            write_pair(c, value, both);
        }
    }
}

// Blocks of a launch: clusters of "slices" that walk over items, a tile and a part of k each; a cluster's
// blocks share the part. Items of the same part follow each other: they read the same rows of B at a time.
struct Items {
    unsigned tiles_m, tiles_n, tiles;
    int k_blocks, slices, parts;

    struct Item {
        int part, row, col, first, count;
    };
    __device__ __forceinline__ unsigned count() const { return tiles * parts; }
    // Where there are more shares than blocks of k, the last ones multiply one beyond it: zeros.
    __device__ __forceinline__ Item at(unsigned index, int rank) const {
        const int part = index / tiles;
        const TileOrigin tile = tile_of<GROUP_M>(index % tiles, tiles_m, tiles_n);
        const int shares = parts * slices, share = part * slices + rank;
        const int quota = k_blocks / shares, extra = k_blocks % shares;
        return {part, tile.m * BLOCK_M, tile.n * BLOCK_N, share * quota + min(share, extra),
                max(quota + (share < extra), 1)};
    }
};

// Rows of A and columns of B in a box, of a matrix with so many: zeros beyond it would take as long to come
// as data. The same in tensor_catalog.py.
__device__ __forceinline__ int box_rows(int rows, int block) {
    return rows < block ? (rows + 7) / 8 * 8 : block;
}

// Zeros where no box comes to, in every stage; they are multiplied for rows and columns beyond C. By all
// warpgroups that multiply, while the first boxes are on their way.
__device__ __forceinline__ void clear_beyond_boxes(uint32_t stages, int a_rows, int b_rows) {
    if (a_rows == BLOCK_M && b_rows == BLOCK_N) return;
    constexpr int ROW_BYTES = SPAN * 2;
    const auto clear = [](uint32_t from, uint32_t to) {
        for (uint32_t at = from + (threadIdx.x - WARPGROUP) * 16; at < to; at += CONSUMERS * WARPGROUP * 16) {
            asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
        }
    };
    for (int s = 0; s < NUM_STAGES; ++s) {
        const uint32_t a = stages + s * STAGE_BYTES, b = a + A_BYTES;
        clear(a + a_rows * ROW_BYTES, b);
        clear(b + b_rows * ROW_BYTES, a + STAGE_BYTES);
    }
    fence_to_async();
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS * WARPGROUP) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    h10_split_k(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                const __grid_constant__ TensorMap c_map, Out* C, int m, int n, int k, long long ldc,
                float alpha, float beta, int slices, int parts, int pitch, float* workspace) {
    extern __shared__ unsigned char shared[];
    // The swizzle turns on address bits 7 to 9, so stages and store buffers start at multiples of 1,024.
    const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t exchange = stages + NUM_STAGES * STAGE_BYTES;
    const uint32_t full = exchange + EXCHANGE_BYTES;  // the stage's bytes are there
    const uint32_t empty = full + NUM_STAGES * 8;     // the stage has been multiplied
    const uint32_t landed = empty + NUM_STAGES * 8;   // all blocks' sums for this one's columns are there
    const uint32_t drained = landed + 8;              // all blocks have read what was pushed

    if (threadIdx.x == 0) {
        prefetch_map(&a_map), prefetch_map(&b_map), prefetch_map(&c_map);
        for (int s = 0; s < NUM_STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, CONSUMERS);
        }
        barrier_init(landed, 1);
        barrier_init(drained, CONSUMERS * slices);
        fence_barrier_init();
    }
    if (slices > 1)
        sync_cluster();
    else
        __syncthreads();
    let_next_start();

    const unsigned tiles_m = (m - 1) / BLOCK_M + 1, tiles_n = (n - 1) / BLOCK_N + 1;
    const Items items = {tiles_m, tiles_n, tiles_m * tiles_n, (k - 1) / BLOCK_K + 1, slices, parts};
    const unsigned first_item = blockIdx.x / slices, step_items = gridDim.x / slices;
    const int rank = blockIdx.x % slices;
    const int group = threadIdx.x / WARPGROUP;
    const int a_rows = box_rows(m, BLOCK_M), b_rows = B_COLUMN_MAJOR ? box_rows(n, BLOCK_N) : BLOCK_N;
    Ring<NUM_STAGES> ring;

    if (group == 0) {
        if constexpr (MOVES_REGISTERS) give_registers<40>();
        if (threadIdx.x == 0) {
            // What does not touch memory comes before the wait for the launch before: each stage's first
            // bytes are announced here, and no stage has to become empty for them.
            const int stage_bytes = (a_rows + b_rows) * BLOCK_K * 2;
            int fresh = min(NUM_STAGES, items.at(first_item, rank).count);
            for (int stage = 0; stage < fresh; ++stage) barrier_expect(full + stage * 8, stage_bytes);
            for (unsigned index = first_item; index < items.count(); index += step_items) {
                const Items::Item item = items.at(index, rank);
                if (index == first_item) wait_for_launch_before();
                for (int block = 0; block < item.count; ++block, ring.advance()) {
                    const int at_k = (item.first + block) * BLOCK_K;
                    const uint32_t a_stage = stages + ring.index * STAGE_BYTES, b_stage = a_stage + A_BYTES;
                    const uint32_t arrived = full + ring.index * 8;
                    if (fresh > 0) {
                        --fresh;
                    } else {
                        barrier_wait(empty + ring.index * 8, ring.parity ^ 1);
                        barrier_expect(arrived, stage_bytes);
                    }
                    copy_box_in(a_stage, &a_map, arrived, at_k, item.row);
                    if constexpr (B_AT_ONCE) {
                        copy_boxes_in(b_stage, &b_map, arrived, 0, at_k, item.col / SPAN);
                    } else {
#pragma unroll
                        for (int i = 0; i < (B_COLUMN_MAJOR ? 1 : BLOCK_N / SPAN); ++i) {
                            const int x = B_COLUMN_MAJOR ? at_k : item.col + i * SPAN,
                                      y = B_COLUMN_MAJOR ? item.col : at_k;
                            copy_box_in(b_stage + i * SLAB_BYTES, &b_map, arrived, x, y);
                        }
                    }
                }
            }
        }
    } else {
        if constexpr (MOVES_REGISTERS) take_registers<232>();
        const Destination destination = {&c_map, C, ldc, m, n, alpha, beta};
        const int consumer = group - 1, thread = threadIdx.x % WARPGROUP;
        const int warp_row = consumer * MMA_M + thread / 32 * WARP_ROWS, lane = thread % 32;
        const uint32_t mine = exchange + (threadIdx.x - WARPGROUP) * 16;
        const int piece_log = __ffs(FOURS / slices) - 1, piece = 1 << piece_log;  // fours that a block adds
        uint32_t round = 0;                                                       // parity of the exchange
        bool before = false;                                                      // whether there was one
        // A descriptor's lowest field is its address in units of 16 bytes; stages lie too low to carry out of
        // it.
        const uint64_t a_first = matrix_descriptor(stages + consumer * MMA_M * SPAN * 2, 0, EIGHT_ROWS);
        const uint64_t b_first =
            matrix_descriptor(stages + A_BYTES, B_COLUMN_MAJOR ? 0 : SLAB_BYTES, EIGHT_ROWS);
        float acc[MMA_N / 2];

        clear_beyond_boxes(stages, a_rows, b_rows);
        wait_for_launch_before();  // over by the time that a stage is full; C and the workspace are written
        for (unsigned index = first_item; index < items.count(); index += step_items) {
            const Items::Item item = items.at(index, rank);
            int previous = 0;
            for (int block = 0; block < item.count; ++block, ring.advance()) {
                barrier_wait(full + ring.index * 8, ring.parity);
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    const uint64_t a = a_first + (ring.index * STAGE_BYTES + step * A_STEP_BYTES) / 16;
                    const uint64_t b = b_first + (ring.index * STAGE_BYTES + step * B_STEP_BYTES) / 16;
                    Wgmma<MMA_N, !B_COLUMN_MAJOR>::run(acc, a, b, block + step != 0);
                }
                wgmma_commit();
                // These products stay in flight; those of the block before are done, and the stage can be
                // refilled.
                wgmma_wait<1>();
                if (block > 0 && thread == 0) barrier_arrive(empty + previous * 8);
                previous = ring.index;
            }
            wgmma_wait<0>();
            if (thread == 0) barrier_arrive(empty + previous * 8);
            if (slices == 1 && parts == 1) {
                store_rows<0, true>(acc, destination, item.row + consumer * MMA_M, item.col,
                                    exchange + consumer * STORE_BUFFERS * STORE_BYTES);
                continue;
            }
            const Shared left = {parts, pitch, workspace + static_cast<long long>(item.part) * m * pitch};
            const int row = item.row + warp_row + lane / 4, col = item.col + lane % 4 * 2;
            const bool exists = item.row + warp_row < m;  // for the whole warp
            if (slices == 1) {
                if (exists) {
#pragma unroll
                    for (int j = 0; j < FOURS; ++j) {
                        write_four(acc + j * 4, destination, left, row, col + j * 8);
                    }
                }
                continue;
            }
            // Every block adds the columns of its own rank, over all ranks in order.
            if (consumer == 0 && thread == 0) {
                const int warps = min((m - item.row - 1) / WARP_ROWS + 1, BLOCK_M / WARP_ROWS);
                barrier_expect(landed, warps * FOURS * 512);
            }
            if (before) barrier_wait(drained, round ^ 1);
            before = true;
            if (exists) {
#pragma unroll
                for (int j = 0; j < FOURS; ++j) {
                    const int slot = rank * piece + (j & (piece - 1));
                    push_four(mine + slot * ROUND_BYTES, landed, j >> piece_log, acc + j * 4);
                }
            }
            barrier_wait(landed, round);
            if (exists) {
#pragma unroll 1
                for (int j = 0; j < piece; ++j) {
                    float sum[4] = {};
#pragma unroll 4
                    for (int from = 0; from < slices; ++from) {
                        float4 part;
                        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                                     : "=f"(part.x), "=f"(part.y), "=f"(part.z), "=f"(part.w)
                                     : "r"(mine + (from * piece + j) * ROUND_BYTES)
                                     : "memory");
                        sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
                    }
                    write_four(sum, destination, left, row, col + (rank * piece + j) * 8);
                }
            }
            sync_warpgroup(1 + group);
            if (thread < slices) barrier_arrive_in(drained, thread);
            round ^= 1;
        }
        if (thread == 0) wait_boxes_read<0>();  // shared memory outlives its readers
    }
    if (slices > 1) sync_cluster();  // and what others push or arrive at
}

// C = alpha * the sum of all parts + beta * C. So many threads as "lanes", a power of two up to four, share a
// run of four columns: each adds every lanes-th part, in order.
extern "C" __global__ void __launch_bounds__(SUM_THREADS)
    h10_split_k_sum(Out* C, int m, int n, long long ldc, float alpha, float beta, int parts, int pitch,
                    int lanes, const float* __restrict__ workspace) {
    let_next_start();
    const long long run =
        (static_cast<long long>(blockIdx.x) * SUM_THREADS + static_cast<int>(threadIdx.x)) / lanes;
    const int lane = static_cast<int>(threadIdx.x) % lanes;
    const long long at = run * 4, size = static_cast<long long>(m) * pitch;
    wait_for_launch_before();
    float sum[4] = {};
    if (at < size) {
#pragma unroll 4
        for (int part = lane; part < parts; part += lanes) {
            const float4 more = __ldcg(reinterpret_cast<const float4*>(workspace + part * size + at));
            sum[0] += more.x, sum[1] += more.y, sum[2] += more.z, sum[3] += more.w;
        }
    }
    for (int apart = 1; apart < lanes; apart *= 2)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] += __shfl_xor_sync(~0u, sum[e], apart);
    if (at >= size || lane > 0) return;
    const int col = static_cast<int>(at % pitch);
    Out* const c = C + at / pitch * ldc + col;
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
        if (col + e >= n) return;
        const bool both = col + e + 1 < n;
        float2 value = {alpha * sum[e], alpha * sum[e + 1]};
        if (beta != 0.0f) {
            const float2 old = read_pair(c + e, true, both);
            value.x += beta * old.x, value.y += beta * old.y;
        }
        write_pair(c + e, value, both);
    }
}
