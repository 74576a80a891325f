// Sums over the blocks of a cluster, read from their shared memory in the order of ranks.
#pragma once
#include "hopper.cuh"

// The four floats that lie at the address of "own" in the shared memory of each of the cluster's blocks,
// added.
__device__ __forceinline__ void sum_over_cluster(float (&sum)[4], const float* own, int blocks) {
    const uint32_t address = shared_address(own);
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] = 0.0f;
#pragma unroll 4
    for (int rank = 0; rank < blocks; ++rank) {
        float part[4];
        asm volatile(
            "{\n"
            ".reg .b32 there;\n"
            "mapa.shared::cluster.u32 there, %4, %5;\n"
            "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
            "}"
            : "=f"(part[0]), "=f"(part[1]), "=f"(part[2]), "=f"(part[3])
            : "r"(address), "r"(rank)
            : "memory");
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] += part[e];
    }
}
