// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, all row-major.
// Adds to v9's loop, on v8's tile and with its stream-K, warps that drift: their threads arrive at an
// mbarrier in the middle of a tile and ask at its end whether all others are that far, so that few wait for
// first fragments at once. Limited by loads of A that ptxas moves to their use. Refuses nothing but 2^31
// tiles.
#include "hopper.cuh"
#include "stream_tile.cuh"

// A tile is overwritten two tiles after it was read: who is past the middle of one has finished the one
// before.
struct Drift {
    static_assert(NUM_STAGES >= 4, "one tile is computed from, one still read by who is behind, two arrive");
    static constexpr int AHEAD = NUM_STAGES - 2;
    uint32_t barrier, parity = 0;

    __device__ __forceinline__ explicit Drift(uint64_t* memory) : barrier(shared_address(memory)) {
        if (threadIdx.x == 0) barrier_init(barrier, THREADS);
    }
    __device__ __forceinline__ void before_first() const {
        wait_for_copies();
        __syncthreads();
    }
    __device__ __forceinline__ void before_tile() const {}
    __device__ __forceinline__ void in_mid_tile() const {
        wait_for_copies<AHEAD - 1>();
        barrier_arrive(barrier);
    }
    __device__ __forceinline__ void after_tile() {
        barrier_wait_unseen(barrier, parity);
        parity ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    ENTRY(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n,
          int k, long long lda, long long ldb, long long ldc, float alpha, float beta, int* workspace,
          int whole_tiles) {
    __shared__ uint64_t memory;
    Drift order(&memory);
    run_items<false>(order, A, B, C, m, n, k, lda, ldb, ldc, alpha, beta, workspace, whole_tiles);
}
