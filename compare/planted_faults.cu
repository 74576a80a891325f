// Faults that a sanitizer has to report, so that its silence about other kernels means something.
#ifndef THREADS
#error "THREADS comes from compare/sanitize.py"
#endif

extern "C" __global__ void __launch_bounds__(THREADS) planted_race(float* out) {
    __shared__ float tile[THREADS];
    tile[threadIdx.x] = (float)threadIdx.x;
    // No barrier: the neighbour's element belongs to another warp at every warp's edge.
    out[threadIdx.x] = tile[(threadIdx.x + 32) % THREADS];
}

extern "C" __global__ void __launch_bounds__(THREADS) planted_divergence(float* out) {
    // Half of the last warp never reaches the barrier.
    if (threadIdx.x < THREADS - 16) __syncthreads();
    out[threadIdx.x] = 1.0f;
}
