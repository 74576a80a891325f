// scratch: wide tiles. P is the operand on wgmma's M side, Q the one on its N side.
#include "wgmma_epilogue.cuh"
#ifndef TURNED
#error "TURNED, GROUPS, HALVES, SHARE_P"
#endif
constexpr int WARPGROUP = 128;
constexpr int THREADS = GROUPS * WARPGROUP;
constexpr int STEPS = BLOCK_K / MMA_K;
constexpr int CLUSTER = 2;
constexpr int BLOCK_P = GROUPS * HALVES * MMA_M, BLOCK_Q = MMA_N;
constexpr bool P_ALONG_K = !(TURNED && !B_COLUMN_MAJOR), Q_ALONG_K = TURNED || B_COLUMN_MAJOR;
constexpr int P_BYTES = BLOCK_P * BLOCK_K * 2, STAGE_BYTES = P_BYTES + BLOCK_Q * BLOCK_K * 2;
constexpr int SLAB_BYTES = MMA_M * BLOCK_K * 2;  // 64 rows or columns of P by 64 of k
constexpr int Q_SPAN = Q_ALONG_K || BLOCK_Q % 64 == 0 ? 64 : 32;
constexpr int SHARE_Q_K = Q_ALONG_K || SHARE_P ? BLOCK_K : BLOCK_K / 2;
static_assert(BLOCK_K == 64, "");

__device__ constexpr int q_step(int step) {
    // Q along n: [share of k][spans][SHARE_Q_K rows][Q_SPAN] where shared, by 3D boxes
    return Q_ALONG_K ? step * MMA_K * 2
                     : step * MMA_K / SHARE_Q_K * (BLOCK_Q * SHARE_Q_K * 2) + step * MMA_K % SHARE_Q_K * Q_SPAN * 2;
}

// ---- epilogue of turned accumulators: rows of the fragment are columns of C ----
// A store buffer holds 32 rows of C by 64 columns (FP16) or two of 32 rows by 32 columns (FP32): 4 KB boxes.
constexpr int T_ROWS = 32, T_BYTES = T_ROWS * 128;
template <int FIRST, int COUNT>
__device__ __forceinline__ void store_turned(float (&d)[COUNT], const Destination& to, int row, int col,
                                             uint32_t buffers) {
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int id = 1 + threadIdx.x / 128;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) d[i] *= to.alpha;
    if (to.beta != 0.0f) {
        const int c_col = col + warp * 16 + lane / 4, c_row = row + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (c_row + j * 8 + e < to.m && c_col + h * 8 < to.n)
                        d[j * 4 + h * 2 + e] += to.beta * static_cast<float>(to.c[(c_row + j * 8 + e) * to.ldc + c_col + h * 8]);
    }
    const uint32_t first = buffers + (lane / 16 * 8 + lane % 8) * 128 + ((warp * 2 + lane / 8 % 2) ^ lane % 8) * 16;
    constexpr int BOXES = COUNT * 2 / T_ROWS, PARTS = OUT_BYTES / 2, BUFFERS = STORE_BUFFERS / PARTS;
    static_assert(BUFFERS >= 2, "");
#pragma unroll
    for (int i = 0; i < BOXES; ++i) {
        const int box = FIRST + i;
        const int offset = box % BUFFERS * PARTS * T_BYTES;
        if (box == 0) {
            if (thread == 0) wait_boxes_read<0>();
            sync_warpgroup(id);
        } else if (box >= BUFFERS) {
            if (thread == 0) wait_boxes_read<BUFFERS - 1>();
            sync_warpgroup(id);
        }
        const float* part = d + i * T_ROWS / 2;
        if constexpr (OUT_BYTES == 2) {
            // matrices: (8 columns h = 0), (h = 1), then 8 rows further the same; lane names row lane % 8 of lane / 8
#pragma unroll
            for (int j = 0; j < T_ROWS / 16; ++j) {
                uint32_t packed[4];
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    const __half2 pair = __floats2half2_rn(part[j * 8 + q * 2], part[j * 8 + q * 2 + 1]);
                    packed[q] = reinterpret_cast<const uint32_t&>(pair);
                }
                store_matrices<true>(first + offset + j * 2048, packed[0], packed[1], packed[2], packed[3]);
            }
        } else {
            // column c of 64: part c / 32, chunk c % 32 / 4
#pragma unroll
            for (int j = 0; j < T_ROWS / 8; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int at_row = j * 8 + lane % 4 * 2 + e, at_col = warp * 16 + h * 8 + lane / 4;
                        const uint32_t at = buffers + offset + at_col / 32 * T_BYTES + at_row * 128 +
                                            (at_col % 32 / 4 ^ (at_row & 7)) * 16 + at_col % 4 * 4;
                        asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(part[j * 4 + h * 2 + e]) : "memory");
                    }
        }
        fence_to_async();
        sync_warpgroup(id);
        if (thread == 0) {
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
                if (row + i * T_ROWS < to.m && col + p * 32 < to.n)
                    copy_box_out(to.map, buffers + offset + p * T_BYTES, col + p * 32, row + i * T_ROWS);
            commit_boxes();
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    h6_wide(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
            const __grid_constant__ TensorMap c_map, Out* C, int m, int n, int k, long long ldc, float alpha,
            float beta, int tall) {
    extern __shared__ unsigned char shared[];
    const uint32_t stages = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t stores = stages + NUM_STAGES * STAGE_BYTES;
    const uint32_t full = stores + GROUPS * STORE_TOTAL;
    const uint32_t empty = full + NUM_STAGES * 8;

    if (threadIdx.x == 0) {
        prefetch_map(&a_map), prefetch_map(&b_map), prefetch_map(&c_map);
        for (int s = 0; s < NUM_STAGES; ++s) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, GROUPS * CLUSTER);
        }
        fence_barrier_init();
    }
    sync_cluster();
    let_next_start();
    wait_for_launch_before();

    const TensorMap* const p_map = TURNED ? &b_map : &a_map;
    const TensorMap* const q_map = TURNED ? &a_map : &b_map;
    const int p_extent = TURNED ? n : m, q_extent = TURNED ? m : n;
    constexpr int CLUSTER_P = SHARE_P ? 1 : CLUSTER, CLUSTER_Q = SHARE_P ? CLUSTER : 1;
    // Tall tiles first, BLOCK_P of P; then short ones without the last group.
    const unsigned tiles_q = (q_extent - 1) / (BLOCK_Q * CLUSTER_Q) + 1;
#if MIXED
    constexpr int SHORT_P = BLOCK_P - HALVES * MMA_M;
    const int short_from = tall * BLOCK_P * CLUSTER_P;
    const unsigned shorts = p_extent > short_from ? (p_extent - short_from - 1) / (SHORT_P * CLUSTER_P) + 1 : 0;
    const unsigned tall_tiles = tall * tiles_q, tiles = tall_tiles + shorts * tiles_q;
#else
    const unsigned tiles_p = (p_extent - 1) / (BLOCK_P * CLUSTER_P) + 1;
    const unsigned tiles = tiles_p * tiles_q;
#endif
    const unsigned step_tiles = gridDim.x / CLUSTER;
    const int k_blocks = (k - 1) / BLOCK_K + 1;
    const int rank = cluster_rank();
    const int group = threadIdx.x / WARPGROUP;

    // m of TileOrigin: first row on the P side; n: on the Q side
    auto place_of = [&](unsigned index) {
#if MIXED
        if (index >= tall_tiles) {
            const TileOrigin t = tile_of<GROUP_M / CLUSTER_P>(index - tall_tiles, shorts, tiles_q);
            return TileOrigin{short_from + (t.m * CLUSTER_P + (SHARE_P ? 0 : rank)) * SHORT_P,
                              (t.n * CLUSTER_Q + (SHARE_P ? rank : 0)) * BLOCK_Q};
        }
        const TileOrigin t = tile_of<GROUP_M / CLUSTER_P>(index, tall, tiles_q);
#else
        const TileOrigin t = tile_of<GROUP_M / CLUSTER_P>(index, tiles_p, tiles_q);
#endif
        return TileOrigin{(t.m * CLUSTER_P + (SHARE_P ? 0 : rank)) * BLOCK_P,
                          (t.n * CLUSTER_Q + (SHARE_P ? rank : 0)) * BLOCK_Q};
    };

    unsigned load_tile = blockIdx.x / CLUSTER;
    int load_place = 0;
    auto load_stage = [&](int stage) {
        const uint32_t p_stage = stages + stage * STAGE_BYTES, q_stage = p_stage + P_BYTES, arrived = full + stage * 8;
        const int at_k = load_place / 2 * BLOCK_K;
        const TileOrigin load_at = place_of(load_tile);
#if MIXED
        const bool is_short = load_tile >= tall_tiles;
        barrier_expect(arrived, is_short ? STAGE_BYTES - HALVES * SLAB_BYTES : STAGE_BYTES);
#else
        constexpr bool is_short = false;
        barrier_expect(arrived, STAGE_BYTES);
#endif
        if constexpr (SHARE_P) {
            // halves of P: each block brings one to both
            static_assert(!SHARE_P || (!MIXED && BLOCK_P % 128 == 0), "");
            const uint32_t share = p_stage + rank * P_BYTES / 2;
            if constexpr (P_ALONG_K) {
                copy_box_to_all(share, p_map, arrived, at_k, load_at.m + rank * BLOCK_P / 2, 3);
            } else {
#pragma unroll
                for (int s = 0; s < BLOCK_P / 128; ++s)
                    copy_box_to_all(share + s * SLAB_BYTES, p_map, arrived, load_at.m + rank * BLOCK_P / 2 + s * 64,
                                    at_k, 3);
            }
        } else if constexpr (MIXED) {
            copy_box_in(p_stage, p_map, arrived, at_k, load_at.m);
            copy_box_in(p_stage + SLAB_BYTES, p_map, arrived, at_k, load_at.m + 64);
            if (!is_short) copy_box_in(p_stage + 2 * SLAB_BYTES, p_map, arrived, at_k, load_at.m + 128);
        } else if constexpr (P_ALONG_K) {
            copy_box_in(p_stage, p_map, arrived, at_k, load_at.m);
        } else {
#pragma unroll
            for (int s = 0; s < BLOCK_P / 64; ++s)
                copy_box_in(p_stage + s * SLAB_BYTES, p_map, arrived, load_at.m + s * 64, at_k);
        }
        if constexpr (!SHARE_P) {
            if constexpr (Q_ALONG_K) {
                copy_box_to_all(q_stage + rank * (BLOCK_Q / 2) * BLOCK_K * 2, q_map, arrived, at_k,
                                load_at.n + rank * (BLOCK_Q / 2), 3);
            } else {
                copy_boxes_to_all(q_stage + rank * BLOCK_Q * SHARE_Q_K * 2, q_map, arrived, 0,
                                  at_k + rank * SHARE_Q_K, load_at.n / Q_SPAN, 3);
            }
        } else {
            if constexpr (Q_ALONG_K)
                copy_box_in(q_stage, q_map, arrived, at_k, load_at.n);
            else
                copy_boxes_in(q_stage, q_map, arrived, 0, at_k, load_at.n / Q_SPAN);
        }
        if (load_place / 2 == (load_place & 1 ? 0 : k_blocks - 1)) {
            load_place ^= 1;
            load_tile += step_tiles;
        } else {
            load_place += load_place & 1 ? -2 : 2;
        }
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < NUM_STAGES && load_tile < tiles; ++s) load_stage(s);
    }

    const Destination destination = {&c_map, C, ldc, m, n, alpha, beta};
    const uint64_t p_first = matrix_descriptor(stages + group * HALVES * SLAB_BYTES, P_ALONG_K ? 0 : SLAB_BYTES, 1024);
    const uint64_t q_first = matrix_descriptor<Q_SPAN * 2>(stages + P_BYTES, Q_ALONG_K ? 0 : SHARE_Q_K * Q_SPAN * 2,
                                                           8 * Q_SPAN * 2);
    float acc[HALVES][MMA_N / 2];

    auto release = [&](Ring<NUM_STAGES> place) {
        const int thread = threadIdx.x;
        if (thread % WARPGROUP < CLUSTER) barrier_arrive_in(empty + place.index * 8, thread % WARPGROUP);
        if (thread == 0 && load_tile < tiles) {
            barrier_wait(empty + place.index * 8, place.parity);
            load_stage(place.index);
        }
    };

    Ring<NUM_STAGES> ring;
    for (unsigned index = blockIdx.x / CLUSTER; index < tiles; index += step_tiles) {
#if MIXED
        if (group == GROUPS - 1 && index >= tall_tiles) {
            // This group has no part in a short tile; it keeps the count of the stages.
            for (int block = 0; block < k_blocks; ++block) {
                barrier_wait(full + ring.index * 8, ring.parity);
                release(ring);
                ring.advance();
            }
            continue;
        }
#endif
        for (int block = 0; block < k_blocks; ++block) {
            barrier_wait(full + ring.index * 8, ring.parity);
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
#pragma unroll
                for (int half = 0; half < HALVES; ++half) {
                    const uint64_t p = p_first + (ring.index * STAGE_BYTES + half * SLAB_BYTES +
                                                  step * (P_ALONG_K ? MMA_K * 2 : MMA_K * 128)) / 16;
                    const uint64_t q = q_first + (ring.index * STAGE_BYTES + q_step(step)) / 16;
                    Wgmma<MMA_N, !Q_ALONG_K, !P_ALONG_K>::run(acc[half], p, q, block + step != 0);
                }
            }
            wgmma_commit();
            wgmma_wait<1>();
            if (block > 0) release(ring.before());
            ring.advance();
        }
        wgmma_wait<0>();
        release(ring.before());

        const TileOrigin at = place_of(index);
        const uint32_t own_stores = stores + group * STORE_TOTAL;
        const int p_row = at.m + group * HALVES * MMA_M;
        if constexpr (TURNED) {
            store_turned<0>(acc[0], destination, at.n, p_row, own_stores);
            if constexpr (HALVES == 2)
                store_turned<BLOCK_Q / T_ROWS>(acc[1], destination, at.n, p_row + MMA_M, own_stores);
        } else {
            store_rows<0, false>(acc[0], destination, p_row, at.n, own_stores);
            if constexpr (HALVES == 2)
                store_rows<MMA_N / STORE_COLS, false>(acc[1], destination, p_row + MMA_M, at.n, own_stores);
        }
    }
    if (threadIdx.x % WARPGROUP == 0) wait_boxes_read<0>();
    sync_cluster();
}
