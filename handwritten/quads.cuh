// One step of k in 2 x 2 blocks of FFMAs, for builds whose entry's name makes ptxas (13.0) keep the order.
#pragma once
#include "thread_tile.cuh"

// One 2 x 2 block.
__device__ __forceinline__ void multiply_quad(ThreadTile& acc, const Fragments& f, int i, int j) {
    acc.value[i][j] = fmaf(f.a[i], f.b[j], acc.value[i][j]);
    acc.value[i][j + 1] = fmaf(f.a[i], f.b[j + 1], acc.value[i][j + 1]);
    acc.value[i + 1][j + 1] = fmaf(f.a[i + 1], f.b[j + 1], acc.value[i + 1][j + 1]);
    acc.value[i + 1][j] = fmaf(f.a[i + 1], f.b[j], acc.value[i + 1][j]);
}

// The order of cute_sgemm: forth along one pair of rows and back along the next.
__device__ __forceinline__ void multiply_quads(ThreadTile& acc, const Fragments& f) {
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 2)
#pragma unroll
        for (int t = 0; t < THREAD_N; t += 2) multiply_quad(acc, f, i, i / 2 % 2 ? THREAD_N - 2 - t : t);
}

// Down one pair of columns and up the next. Where a step begins this needs A's fragment and a quarter of B's,
// and the other order B's and half of A's.
__device__ __forceinline__ void multiply_down(ThreadTile& acc, const Fragments& f) {
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 2)
#pragma unroll
        for (int t = 0; t < THREAD_M; t += 2) multiply_quad(acc, f, j / 2 % 2 ? THREAD_M - 2 - t : t, j);
}

// No FFMA before this is moved behind it.
__device__ __forceinline__ void keep_here(ThreadTile& acc) {
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) asm volatile("" : "+f"(acc.value[i][j]));
}
