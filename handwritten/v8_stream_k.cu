// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds stream-K to v7: one block an SM; the tiles of the last two waves are cut along k into one equal share
// a block, so that no SM idles in a last wave. Who starts a tile adds what later shares leave in the
// workspace, in the order of k. Limited by what limits v7. Refuses nothing but 2^31 tiles.
#include "wide_tile.cuh"

constexpr int PART = BLOCK_M * BLOCK_N;  // elements of a share's partial tile in the workspace
constexpr int HEADER_BYTES = 4096;       // before the partial tiles: the ticket, then a flag for each share
constexpr int OUT_ROWS =
    BLOCK_M / (THREAD_M / 4);  // rows of the tile that are staged for the write-out at once
constexpr int OUT_PITCH = BLOCK_N + 4;
static_assert(GROUP_ROWS * (BLOCK_M / WARP_M) == OUT_ROWS,
              "one group of rows of every warp is staged at once");
static_assert(OUT_ROWS * OUT_PITCH <= NUM_STAGES * (A_STAGE + B_STAGE),
              "the write-out reuses the tiles' memory");
static_assert(THREADS % (BLOCK_N / 4) == 0 && OUT_ROWS % (THREADS / (BLOCK_N / 4)) == 0,
              "the write-out takes whole rows in each step");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    v8_stream_k(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
                int k, long long lda, long long ldb, long long ldc, float alpha, float beta, int* workspace) {
    extern __shared__ __align__(16) float smem[];
    __shared__ int shared_ticket;
    int* const flags = workspace + 1;
    float* const parts = reinterpret_cast<float*>(workspace) + HEADER_BYTES / 4;

    const int blocks = static_cast<int>(gridDim.x), tid = static_cast<int>(threadIdx.x);
    const int tiles_n = (n - 1) / BLOCK_N + 1, tiles = ((m - 1) / BLOCK_M + 1) * tiles_n;
    const int steps = (k - 1) / BLOCK_K + 1;  // a tile's, in units of BLOCK_K
    // Whole waves but the last are given out tile by tile; the last one and the rest are shared.
    const int rest = tiles % blocks;
    const int whole_tiles = rest == 0 ? tiles : tiles < blocks ? 0 : tiles - rest - blocks;
    const long long total = static_cast<long long>(tiles - whole_tiles) * steps;
    // Shares go out in the order in which blocks start, the last share first: a block waits only for later
    // shares, hence for blocks that have started and need nothing from it.
    int share = static_cast<int>(blockIdx.x);
    if (total > 0) {
        if (tid == 0) shared_ticket = atomicAdd(workspace, 1);
        __syncthreads();
        share = blocks - 1 - shared_ticket;
    }
    long long at = total * share / blocks;
    const long long at_end = total * (share + 1) / blocks;

    for (int whole_tile = share;;) {
        int tile, first = 0, last = steps;
        if (at < at_end) {
            const long long tile_start = at / steps * steps;
            const long long until = min(tile_start + steps, at_end);
            tile = whole_tiles + static_cast<int>(tile_start / steps);
            first = static_cast<int>(at - tile_start);
            last = static_cast<int>(until - tile_start);
            at = until;
        } else if (whole_tile < whole_tiles) {
            tile = whole_tile;
            whole_tile += blocks;
        } else {
            break;
        }
        const Origin origin = {tile / tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N};
        const int k_first = first * BLOCK_K;
        ThreadTile acc = {};
        accumulate(acc, smem, A + k_first, B + k_first * ldb, lda, ldb, origin, m - origin.row,
                   n - origin.col, (last == steps ? k : last * BLOCK_K) - k_first);

        const bool owner = first == 0;
        int peers = 0;  // later shares with a part of this tile
        if (owner && last < steps) {
            const long long tile_end = static_cast<long long>(tile - whole_tiles + 1) * steps;
            while (total * (share + 1 + peers) / blocks < tile_end) ++peers;
            for (int peer = share + 1 + tid; peer <= share + peers; peer += THREADS) {
                int flag;
                do {
                    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                                 : "=r"(flag)
                                 : "l"(flags + peer)
                                 : "memory");
                } while (flag == 0);
            }
        }
        float* const part = parts + static_cast<long long>(share) * PART;
        const Origin mine = thread_origin();
        const int col = tid % (BLOCK_N / 4) * 4;
#pragma unroll
        for (int group = 0; group < THREAD_M; group += 4) {
            __syncthreads();
            // Scaled here and not when C is written: else STS.128 would bind the accumulators to aligned
            // fours, and ptxas could not spread them over the register banks as the main loop wants.
            float* const put =
                smem + (mine.row / WARP_M * GROUP_ROWS + mine.row % WARP_M) * OUT_PITCH + mine.col;
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < THREAD_N; j += 4) {
                    float scaled[4];
#pragma unroll
                    for (int e = 0; e < 4; ++e) scaled[e] = alpha * acc.value[group + i][j + e];
                    put_run<4>(put + i * OUT_PITCH + tile_col(j), scaled);
                }
            __syncthreads();
#pragma unroll 4
            for (int r = tid / (BLOCK_N / 4); r < OUT_ROWS; r += THREADS / (BLOCK_N / 4)) {
                const int row = r / GROUP_ROWS * WARP_M + group / 4 * GROUP_ROWS + r % GROUP_ROWS;
                float value[4];
                read_four(value, smem + r * OUT_PITCH + col);
                if (!owner) {
                    put_run<4>(part + row * BLOCK_N + col, value);
                } else if (row < m - origin.row) {
#pragma unroll 1
                    for (int peer = 1; peer <= peers; ++peer) {
                        const float4 more = __ldcg(reinterpret_cast<const float4*>(
                            part + static_cast<long long>(peer) * PART + row * BLOCK_N + col));
                        value[0] += more.x, value[1] += more.y, value[2] += more.z, value[3] += more.w;
                    }
                    write_out<4>(C + (origin.row + static_cast<long long>(row)) * ldc + origin.col + col,
                                 value, n - origin.col - col, 1.0f, beta);
                }
            }
        }
        __syncthreads();  // the whole part is written, and shared memory is free for the next tile
        if (!owner && tid == 0) {
            asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flags + share), "r"(1) : "memory");
        }
    }
}
