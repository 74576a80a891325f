// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Adds to h8 that blocks begin their tiles together: blocks at work read the same rows and columns, and only
// those at the same k find them in L2. Without it they drift apart from tile to tile, and what one has read
// is gone when another needs it. Limited by power. Refuses what h8 refuses; h8 writes FP32.
#include "refill_tile.cuh"

#if !defined(PATIENCE)
#error "PATIENCE comes from handwritten/tensor_catalog.py: looks at the count before a block goes on alone"
#endif

// The place of each cluster of the launch in an order that keeps those of a GPC together
// (kernel/placement.py).
struct Order {
    unsigned char of[132];
};

__device__ __forceinline__ void add_one(unsigned* count) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
// Looks at the count until it has come to all, PATIENCE times at most. One piece, since hardly a register is
// left over.
__device__ __forceinline__ void await(const unsigned* count, unsigned all) {
    asm volatile(
        "{\n"
        ".reg .pred enough, more;\n"
        ".reg .u32 value, looks;\n"
        "mov.u32 looks, %2;\n"
        "LOOK:\n"
        "ld.relaxed.gpu.global.u32 value, [%0];\n"
        "setp.ge.u32 enough, value, %1;\n"
        "@enough bra SEEN;\n"
        "sub.u32 looks, looks, 1;\n"
        "setp.ne.u32 more, looks, 0;\n"
        "@more bra LOOK;\n"
        "SEEN:\n"
        "}\n" ::"l"(count),
        "r"(all), "n"(PATIENCE)
        : "memory");
}

// begun: zero before the launch; counts the blocks that have asked for all of a tile, of all tiles so far.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    h11_in_step(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                const __grid_constant__ TensorMap c_map, Out* C, int m, int n, int k, long long ldc,
                float alpha, float beta, const __grid_constant__ Order order, unsigned* begun) {
    __shared__ unsigned awaited;
    const auto first = [&] { return order.of[blockIdx.x / CLUSTER_N]; };
    const auto before_loads = [] {};
    if (threadIdx.x == 0) awaited = 0;
    // Another tile follows this one, so every block of the launch has this one. A matter of speed alone:
    // where a block has not come after all, because others hold its SM, nobody waits for long.
    const auto between_tiles = [&] {
        add_one(begun);
        const unsigned all = awaited + gridDim.x;
        awaited = all;
        await(begun, all);
    };
    multiply_turned(&a_map, &b_map, &c_map, C, m, n, k, ldc, alpha, beta, before_loads, first, between_tiles);
}
