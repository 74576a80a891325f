// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v14's stream-K a first launch that transposes A into the workspace, so that the copy engine brings
// both operands as fragments want them: one thread loads through mbarriers, eight warps only multiply.
// Limited by waits for fragments at the ends of tiles, by the pass where n is small. Refuses nothing but 2^31
// tiles: a base or pitch of B that is no multiple of 16 bytes goes to v14.
#include "pass_tile.cuh"

// The step of a tile after which the stage of the tile before is given back.
constexpr int RELEASE_STEP = 1;

// Arrives if there is a barrier, without a branch around it.
__device__ __forceinline__ void arrive_if(uint32_t barrier) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.u32 p, %0, 0;\n"
        "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n"
        "}" ::"r"(barrier)
        : "memory");
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
    ENTRY(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
          float* __restrict__ C, int m, int n, int k, long long ldc, float alpha, float beta, int* workspace,
          int whole_tiles) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ uint64_t barriers[2 * NUM_STAGES];
    // full: the stage's bytes are in. empty: every multiplying warp has read them.
    const uint32_t stages = shared_address(shared), full = shared_address(barriers),
                   empty = full + 8 * NUM_STAGES;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < NUM_STAGES; ++stage) {
            barrier_init(full + 8 * stage, 1);
            barrier_init(empty + 8 * stage, WARPS);
        }
        fence_barrier_init();
    }
    // In shared memory: the main loop needs the registers. Behind a branch: else ptxas (13.0) keeps the
    // grid's size, which this reads first and items read again, from here on, and spills it.
    __shared__ __align__(8) unsigned char work_memory[sizeof(Work)];
    const Work& work = *reinterpret_cast<const Work*>(work_memory);
    int always;
    asm volatile("mov.u32 %0, 1;" : "=r"(always));
    if (always) {
        const Work found(m, n, k, whole_tiles, workspace);
        if (threadIdx.x == 0) *reinterpret_cast<Work*>(work_memory) = found;
    }
    __syncthreads();
    const auto origin_of = [n](int tile) {
        const int tiles_n = (n - 1) / BLOCK_N + 1;
        return Origin{tile / tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N};
    };
    Item at;
    Ring<NUM_STAGES> ring;
    if (threadIdx.x >= THREADS) {
        give_registers<LOADING_REGISTERS>();
        if (threadIdx.x > THREADS) return;
        for (int index = 0; work.item(index, at); ++index) {
            const Origin origin = origin_of(at.tile);
            for (int t = at.first; t < at.last; ++t, ring.advance()) {
                const uint32_t stage = stages + ring.index * STAGE_BYTES, arrived = full + 8 * ring.index;
                barrier_wait(empty + 8 * ring.index, ring.parity ^ 1);
                barrier_expect(arrived, STAGE_BYTES);
                copy_box_in(stage, &a_map, arrived, origin.row, t * BLOCK_K);
                copy_box_in(stage + A_BYTES, &b_map, arrived, origin.col, t * BLOCK_K);
            }
        }
        return;
    }
    take_registers<MULTIPLYING_REGISTERS>();
    const Origin mine = thread_origin();
    const uint32_t a_mine = stages + 4 * mine.row, b_mine = stages + A_BYTES + 4 * mine.col;
    const bool first_lane = threadIdx.x % 32 == 0;
    for (int index = 0; work.item(index, at); ++index) {
        ThreadTile acc = {};
        Fragments fragments[2];
        barrier_wait_unseen(full + 8 * ring.index, ring.parity);
        read_step(fragments[0], a_mine + ring.index * STAGE_BYTES, b_mine + ring.index * STAGE_BYTES);
        uint32_t before = 0;  // where to give back the stage of the tile before; 0 for nobody's
#pragma unroll 1
        for (int t = at.last - at.first; t > 0; --t) {
            const uint32_t here = ring.index * STAGE_BYTES, emptied = empty + 8 * ring.index;
            Ring<NUM_STAGES> next = ring;
            next.advance();
            // After the last tile its own first step is read again, for nobody: that takes no branch.
            const int follow = t > 1 ? next.index : ring.index;
            const uint32_t parity = t > 1 ? next.parity : ring.parity;
#pragma unroll
            for (int kk = 0; kk < BLOCK_K; ++kk) {
                if (kk + 1 < BLOCK_K) {
                    read_step(fragments[(kk + 1) % 2], a_mine + here + (kk + 1) * (4 * BLOCK_M),
                              b_mine + here + (kk + 1) * (4 * BLOCK_N));
                } else {
                    barrier_wait_unseen(full + 8 * follow, parity);
                    read_step(fragments[0], a_mine + follow * STAGE_BYTES, b_mine + follow * STAGE_BYTES);
                }
                multiply_step(acc, fragments[kk % 2]);
                // Without this ptxas (13.0) keeps less of the order: 1.70 register reads an FFMA, with
                // it 1.55.
                if (kk == 0) keep_here(acc);
                // A load may still be under way when the instruction after it runs, so the stage of a tile is
                // given back in the next one: by then all that was read from it has been multiplied.
                if (kk == RELEASE_STEP) arrive_if(before);
            }
            before = first_lane ? emptied : 0;
            ring = next;
        }
        __syncwarp();
        arrive_if(before);
        work.item(index, at);
        const Origin origin = origin_of(at.tile);
        finish(acc, work, at, workspace, C, m, n, ldc, origin, alpha, beta);
    }
}
