// Each of 32 lanes reads `repeat` times from its own byte offset in shared memory: 4, 8 or 16 bytes a lane.
// Any pattern of lane addresses can be put to the hardware this way; the bank model is held against it.
// Limited by design. Refuses offsets beyond 32 KB (undefined).

extern "C" __global__ void __launch_bounds__(32) bank_probe_4(const int* offsets, float* out, int repeat) {
    __shared__ alignas(16) float words[8192];
    for (int i = threadIdx.x; i < 8192; i += 32) words[i] = static_cast<float>(i);
    __syncwarp();
    const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(words)) + offsets[threadIdx.x];
    float total = 0.0f;
    for (int i = 0; i < repeat; ++i) {
        float x;
        asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(x) : "r"(place));
        total += x;
    }
    out[threadIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(32) bank_probe_8(const int* offsets, float* out, int repeat) {
    __shared__ alignas(16) float words[8192];
    for (int i = threadIdx.x; i < 8192; i += 32) words[i] = static_cast<float>(i);
    __syncwarp();
    const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(words)) + offsets[threadIdx.x];
    float total = 0.0f;
    for (int i = 0; i < repeat; ++i) {
        float x, y;
        asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(place));
        total += x + y;
    }
    out[threadIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(32) bank_probe_16(const int* offsets, float* out, int repeat) {
    __shared__ alignas(16) float words[8192];
    for (int i = threadIdx.x; i < 8192; i += 32) words[i] = static_cast<float>(i);
    __syncwarp();
    const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(words)) + offsets[threadIdx.x];
    float total = 0.0f;
    for (int i = 0; i < repeat; ++i) {
        float x, y, z, w;
        asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
                     : "r"(place));
        total += x + y + z + w;
    }
    out[threadIdx.x] = total;
}
