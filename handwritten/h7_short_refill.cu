// C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C, FP16 in, FP32 accumulate, A and C row-major, B either way.
// Shortens h6's refill of a stage, which stands between two products of the thread that does it: the tile's
// place is worked out once a tile and kept in shared memory, and one instruction brings all of B, in either
// layout. Limited by power, then by the store of a tile, during which nobody multiplies. Refuses what h6
// refuses, and row-major B whose n is no multiple of 64 (h6 runs those).
#include "refill_tile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    h7_short_refill(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                    const __grid_constant__ TensorMap c_map, Out* C, int m, int n, int k, long long ldc,
                    float alpha, float beta) {
    const auto first = [&] { return blockIdx.x / CLUSTER_N; };
    const auto before_loads = [] {
        let_next_start();
        wait_for_launch_before();
    };
    multiply_turned(&a_map, &b_map, &c_map, C, m, n, k, ldc, alpha, beta, before_loads, first);
}
