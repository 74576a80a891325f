// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// v18's pass and copies, v19's order of FFMAs, and one barrier a tile: the warp that loads meets the eight
// that multiply, hands over what has arrived and takes back the stage of the tile before. Limited by the FMA
// pipe, by the pass where n is small. Refuses nothing but 2^31 tiles: a base or pitch of B that is no
// multiple of 16 bytes goes to v14.
#include "pass_tile.cuh"
#include "tile_order.cuh"

#if !defined(GROUP_M)
#error "GROUP_M comes from handwritten/catalog.py: rows of tiles that are taken together"
#endif
static_assert(NUM_STAGES >= 3, "one stage is read, one has arrived, one is on its way");

// Barrier of those that multiply and of the warp that loads; 0 belongs to __syncthreads. Not bar.sync: the
// two roles meet by different instructions, which the aligned form is reported for (synccheck).
__device__ __forceinline__ void meet() {
    asm volatile("barrier.sync 1, %0;" ::"n"(THREADS + 32) : "memory");
}

// The warp that loads: tiles in the order of items, NUM_STAGES - 1 ahead of the one that is multiplied.
struct Supply {
    const TensorMap *a_map, *b_map;
    // The first stage, and the first of the barriers that say that a stage's bytes are in.
    uint32_t stages, full;
    bool asks;  // one lane does
    Ring<NUM_STAGES> filled = {}, next = {};
    int waiting = 0;  // tiles that were asked for and not handed over

    __device__ __forceinline__ void hand_over() {
        barrier_wait(full + 8 * next.index, next.parity);
        meet();
        next.advance();
        --waiting;
    }
    __device__ __forceinline__ void ask(Origin origin, int step) {
        // Past the meeting the stage of the tile before the one that was handed over is free.
        if (waiting == NUM_STAGES - 1) hand_over();
        if (asks) {
            const uint32_t stage = stages + filled.index * STAGE_BYTES, arrived = full + 8 * filled.index;
            barrier_expect(arrived, STAGE_BYTES);
            copy_box_in(stage, a_map, arrived, origin.row, step * BLOCK_K);
            copy_box_in(stage + A_BYTES, b_map, arrived, origin.col, step * BLOCK_K);
        }
        __syncwarp();
        filled.advance();
        ++waiting;
    }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
    ENTRY(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
          float* __restrict__ C, int m, int n, int k, long long ldc, float alpha, float beta, int* workspace,
          int whole_tiles) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ uint64_t barriers[NUM_STAGES];
    const uint32_t stages = shared_address(shared), full = shared_address(barriers);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < NUM_STAGES; ++stage) barrier_init(full + 8 * stage, 1);
        fence_barrier_init();
    }
    const Work work(m, n, k, whole_tiles, workspace);
    __syncthreads();
    const auto origin_of = [m, n](int index) {
        const TileOrigin tile = tile_of<GROUP_M>(index, (m - 1) / BLOCK_M + 1, (n - 1) / BLOCK_N + 1);
        return Origin{tile.m * BLOCK_M, tile.n * BLOCK_N};
    };
    Item at;
    if (threadIdx.x >= THREADS) {
        give_registers<LOADING_REGISTERS>();
        if (threadIdx.x >= THREADS + 32) return;
        Supply supply = {&a_map, &b_map, stages, full, threadIdx.x == THREADS};
        for (int index = 0; work.item(index, at); ++index) {
            const Origin origin = origin_of(at.tile);
            for (int step = at.first; step < at.last; ++step) supply.ask(origin, step);
        }
        while (supply.waiting > 0) supply.hand_over();
        return;
    }
    take_registers<MULTIPLYING_REGISTERS>();
    const Origin mine = thread_origin();
    const uint32_t a_mine = stages + 4 * mine.row, b_mine = stages + A_BYTES + 4 * mine.col;
    uint32_t stage = 0;
    for (int index = 0; work.item(index, at); ++index) {
        ThreadTile acc = {};
#pragma unroll 1
        for (int t = at.last - at.first; t > 0; --t) {
            meet();
            const uint32_t a_step = a_mine + stage, b_step = b_mine + stage;
            Fragments fragments[2];
            read_step(fragments[0], a_step, b_step);
#pragma unroll
            for (int kk = 0; kk < BLOCK_K; ++kk) {
                if (kk + 1 < BLOCK_K) {
                    read_step(fragments[(kk + 1) % 2], a_step + (kk + 1) * (4 * BLOCK_M),
                              b_step + (kk + 1) * (4 * BLOCK_N));
                }
                multiply_step<true>(acc, fragments[kk % 2]);
            }
            stage = stage == (NUM_STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
        }
        finish(acc, work, at, workspace, C, m, n, ldc, origin_of(at.tile), alpha, beta);
    }
}
