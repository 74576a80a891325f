// One step of k in the order that cute_sgemm has, for builds whose entry's name makes ptxas (13.0) keep it.
#pragma once
#include "thread_tile.cuh"

// 2 x 2 blocks of FFMAs, forth along one pair of rows and back along the next.
__device__ __forceinline__ void multiply_quads(ThreadTile& acc, const Fragments& f) {
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 2)
#pragma unroll
        for (int t = 0; t < THREAD_N; t += 2) {
            const int j = i / 2 % 2 ? THREAD_N - 2 - t : t;
            acc.value[i][j] = fmaf(f.a[i], f.b[j], acc.value[i][j]);
            acc.value[i][j + 1] = fmaf(f.a[i], f.b[j + 1], acc.value[i][j + 1]);
            acc.value[i + 1][j + 1] = fmaf(f.a[i + 1], f.b[j + 1], acc.value[i + 1][j + 1]);
            acc.value[i + 1][j] = fmaf(f.a[i + 1], f.b[j], acc.value[i + 1][j]);
        }
}
