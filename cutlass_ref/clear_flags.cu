// flags[0 .. count) = 0: stream-K's arrival counters, which lie behind its partial sums in the workspace.
// Clearing the counters alone is what CUTLASS's own host code does; the whole workspace would be megabytes.
#include <cstdint>

extern "C" __global__ void __launch_bounds__(THREADS) cutlass_clear_flags(uint32_t* flags, int64_t count) {
    int64_t const i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < count) flags[i] = 0;
}
