// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Deals h7's tiles to blocks so that SMs of one GPC work on neighbouring tiles: blocks come to GPCs in turn,
// so block numbers say the opposite. What this saves is bytes from DRAM, a quarter of h7's at 16384. Limited
// by power. Refuses what h7 refuses.
#include "refill_tile.cuh"

// The place of each cluster of the launch in an order that keeps those of a GPC together
// (kernel/placement.py).
struct Order {
    unsigned char of[132];
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    h8_gpc_order(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                 const __grid_constant__ TensorMap c_map, Out* C, int m, int n, int k, long long ldc,
                 float alpha, float beta, const __grid_constant__ Order order) {
    const auto first = [&] { return order.of[blockIdx.x / CLUSTER_N]; };
    const auto before_loads = [] {};
    multiply_turned(&a_map, &b_map, &c_map, C, m, n, k, ldc, alpha, beta, before_loads, first);
}
