// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// The Tensor Core track begins: mma.sync on fragments that ldmatrix reads from swizzled shared memory, which
// cp.async fills NUM_STAGES - 1 tiles ahead. Runs on sm_80 and later.
// Limited by mma.sync itself, whose ceiling on Hopper lies below that of wgmma, and by shared-memory
// bandwidth. Refuses nothing but a grid of 2^31 blocks.
#include "mma_sync_tile.cuh"

static_assert(BLOCK_M * BLOCK_N * OUT_BYTES <= NUM_STAGES * STAGE_BYTES, "C passes through the stages");

extern "C" __global__ void __launch_bounds__(THREADS)
    h0_mma_sync(const __half* __restrict__ A, const __half* __restrict__ B, Out* __restrict__ C, int m, int n,
                int k, long long lda, long long ldb, long long ldc, float alpha, float beta) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t stages = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;

    const TileOrigin tile = tile_of<GROUP_M>(blockIdx.x, (m - 1) / BLOCK_M + 1, (n - 1) / BLOCK_N + 1);
    const int block_m = tile.m * BLOCK_M, block_n = tile.n * BLOCK_N;
    const __half* a_rows = A + block_m * lda;
    const __half* b_cols = B + (B_COLUMN_MAJOR ? block_n * ldb : block_n);
    const int k_tiles = (k - 1) / BLOCK_K + 1;

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
    const bool inside = block_m + BLOCK_M <= m && block_n + BLOCK_N <= n;
    const __half* a_piece = a_rows + a_copier.row * lda + a_copier.col;
    const __half* b_piece = b_cols + b_copier.row * ldb + b_copier.col;
    const long long b_step = B_COLUMN_MAJOR ? BLOCK_K : BLOCK_K * ldb;
    const uint32_t a_first = a_copier.first(), b_first = A_BYTES + b_copier.first();
    // Brings pieces of the tile at a_piece and b_piece, which is whole.
    auto copy_pieces = [&](uint32_t to, const __half*& a, const __half*& b, int first, int count) {
#pragma unroll
        for (int piece = first; piece < min(first + count, COPIES); ++piece) {
            if (piece < a_copier.PIECES) {
                a_copier.copy_inner(to + a_first, a, piece);
                a += a_copier.ROW_STEP * lda;
            } else {
                b_copier.copy_inner(to + b_first, b, piece - a_copier.PIECES);
                b += b_copier.ROW_STEP * ldb;
            }
        }
    };
#pragma unroll
    for (int s = 0; s < NUM_STAGES - 1; ++s) {
        if (VECTOR == CHUNK && inside && (s + 1) * BLOCK_K <= k) {
            const __half *a = a_piece, *b = b_piece;
            copy_pieces(stages + s * STAGE_BYTES, a, b, 0, COPIES);
        } else if (s < k_tiles) {
            copy_guarded(s);
        }
        a_piece += BLOCK_K;
        b_piece += b_step;
        commit_copies();
    }
    wait_copies<NUM_STAGES - 2>();
    __syncthreads();

    float acc[TILES_M][TILES_N][4] = {};
    Fragments fragments[2];
    const FragmentPlace place(warp_m, warp_n);
    load_fragments(fragments[0], place, stages, 0);

    // Multiplies one tile, and brings on the way the tile NUM_STAGES - 1 further. A step's products read what
    // was loaded during the step before. Loads, products and copies stand in blocks of their own: ptxas
    // spreads loads and copies between the products, and does it worse where the source does it first.
    uint32_t now = stages;
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
            if (step + 1 < STEPS)
                load_fragments(fragments[(step + 1) % 2], place, now, step + 1);
            else if (INNER || k_tile + 1 < k_tiles)
                load_fragments(fragments[0], place, next, 0);
#pragma unroll
            for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
                for (int snake = 0; snake < TILES_N; ++snake) {
                    const int j = i % 2 ? TILES_N - 1 - snake : snake;
                    multiply_add(acc[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
                }
            }
            if constexpr (INNER) {
                if (step + 1 < STEPS) copy_pieces(to, a_next, b_next, step * COPIES_A_STEP, COPIES_A_STEP);
            }
            if (step + 2 == STEPS) {
                // An empty group where nothing was left to copy keeps the count of the wait.
                commit_copies();
                // Past this barrier the next tile is there for all, and nobody reads this one again.
                wait_copies<NUM_STAGES - 2>();
                __syncthreads();
            }
        }
        a_piece += BLOCK_K;
        b_piece += b_step;
        now = next;
    };
    int k_tile = 0;
    if (VECTOR == CHUNK && inside) {
        // The tile that is copied here is whole along k too.
        for (; (k_tile + NUM_STAGES) * BLOCK_K <= k; ++k_tile) multiply_tile(k_tile, std::true_type());
    }
    for (; k_tile < k_tiles; ++k_tile) multiply_tile(k_tile, std::false_type());

    // Fragments hold pairs of a row; C is written in whole rows of the warp tile, so the tile passes through
    // the stages, which nobody reads past the last tile's barrier. Each warp has its own part.
    const uint32_t staged = stages + warp * WARP_M * ROW_BYTES;
    if (alpha != 1.0f) {
#pragma unroll
        for (auto& row : acc) {
#pragma unroll
            for (auto& product : row) {
#pragma unroll
                for (float& element : product) element *= alpha;
            }
        }
    }
    if (beta != 0.0f) {
        const bool pairs = ldc % 2 == 0 && reinterpret_cast<uintptr_t>(C) % sizeof(OutPair) == 0;
#pragma unroll
        for (int i = 0; i < TILES_M * 2; ++i) {
            const int c_row = block_m + warp_m + i * 8 + lane / 4;
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                const int c_col = block_n + warp_n + j * 8 + lane % 4 * 2;
                if (c_row < m && c_col < n) {
                    const float2 old = read_pair(C + c_row * ldc + c_col, pairs, c_col + 1 < n);
                    acc[i / 2][j][i % 2 * 2] += beta * old.x;
                    acc[i / 2][j][i % 2 * 2 + 1] += beta * old.y;
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TILES_M * 2; ++i) {
        const int row = i * 8 + lane / 4;
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            const int col = j * 8 + lane % 4 * 2;
            OutPair pair;
            from_float2(pair, {acc[i / 2][j][i % 2 * 2], acc[i / 2][j][i % 2 * 2 + 1]});
            *static_cast<OutPair*>(__cvta_shared_to_generic(staged + staged_chunk(row, col * OUT_BYTES / 16) +
                                                            col * OUT_BYTES % 16)) = pair;
        }
    }
    __syncwarp();
    const bool chunks = ldc * OUT_BYTES % 16 == 0 && reinterpret_cast<uintptr_t>(C) % 16 == 0;
    constexpr int ROW_CHUNKS = ROW_BYTES / 16, PER_CHUNK = 16 / OUT_BYTES, ROWS = 32 / ROW_CHUNKS;
    if (inside && chunks) {
        const int row = lane / ROW_CHUNKS, chunk = lane % ROW_CHUNKS;
        Out* to = C + (block_m + warp_m + row) * ldc + block_n + warp_n + chunk * PER_CHUNK;
#pragma unroll
        for (int i = 0; i < WARP_M; i += ROWS) {
            *reinterpret_cast<uint4*>(to) =
                *static_cast<const uint4*>(__cvta_shared_to_generic(staged + staged_chunk(row + i, chunk)));
            to += ROWS * ldc;
        }
        return;
    }
#pragma unroll PIECES_UNROLLED
    for (int at = lane; at < WARP_M * ROW_CHUNKS; at += 32) {
        const int row = at / ROW_CHUNKS, chunk = at % ROW_CHUNKS;
        const int c_row = block_m + warp_m + row, c_col = block_n + warp_n + chunk * PER_CHUNK;
        if (c_row >= m || c_col >= n) continue;
        const void* from = __cvta_shared_to_generic(staged + staged_chunk(row, chunk));
        Out* to = C + c_row * ldc + c_col;
        if (chunks && c_col + PER_CHUNK <= n) {
            *reinterpret_cast<uint4*>(to) = *static_cast<const uint4*>(from);
        } else {
            for (int i = 0; i < min(PER_CHUNK, n - c_col); ++i) to[i] = static_cast<const Out*>(from)[i];
        }
    }
}
