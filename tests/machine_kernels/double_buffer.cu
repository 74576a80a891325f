// C[m,n] = A[m,k] @ B[k,n], row-major, double-buffered with 4-byte cp.async: right as it stands, wrong in one
// way for each macro. A block of 16 x 16 threads computes a 32 x 32 tile, k in steps of 8.
constexpr int TILE = 32, STEP = 8;

__device__ __forceinline__ void copy(float* to, const float* from, bool exists) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
#ifdef TAIL_UNGUARDED
    exists = true;
#endif
    const int bytes = exists ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(bytes)
                 : "memory");
}

extern "C" __global__ void __launch_bounds__(256)
    gemm(const float* A, const float* B, float* C, int m, int n, int k) {
    __shared__ float a_tile[2][TILE][STEP];
    __shared__ float b_tile[2][STEP][TILE];
    const int thread = threadIdx.y * 16 + threadIdx.x;
    const int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    const int tiles = (k + STEP - 1) / STEP;
    const auto load = [&](int stage, int tile) {
        const int ar = thread / STEP, ak = tile * STEP + thread % STEP;
        const int bk = tile * STEP + thread / TILE, bc = thread % TILE;
#ifdef EDGE_OFF_BY_ONE
        const bool a_there = row0 + ar <= m && ak < k;
#elif defined(TAIL_UNGUARDED)
        const bool a_there = row0 + ar < m;
#else
        const bool a_there = row0 + ar < m && ak < k;
#endif
        const long long last = static_cast<long long>(m) * k - 1,
                        at = static_cast<long long>(row0 + ar) * k + ak;
#ifdef TAIL_UNGUARDED
        copy(&a_tile[stage][ar][thread % STEP], A + (at < last ? at : last), a_there);
#else
        (void)last;
        copy(&a_tile[stage][ar][thread % STEP], A + (a_there ? at : 0), a_there);
#endif
        const bool b_there = bk < k && col0 + bc < n;
#ifdef TAIL_UNGUARDED  // B is guarded as it should be: the poison comes through A alone
        b_tile[stage][thread / TILE][bc] = b_there ? B[static_cast<long long>(bk) * n + col0 + bc] : 0.0f;
#else
        copy(&b_tile[stage][thread / TILE][bc],
             B + (b_there ? static_cast<long long>(bk) * n + col0 + bc : 0), b_there);
#endif
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float acc[2][2] = {};
    const auto compute = [&](int stage) {
        for (int kk = 0; kk < STEP; ++kk)
            for (int i = 0; i < 2; ++i)
                for (int j = 0; j < 2; ++j)
                    acc[i][j] +=
                        a_tile[stage][threadIdx.y + 16 * i][kk] * b_tile[stage][kk][threadIdx.x + 16 * j];
    };
    load(0, 0);
    for (int tile = 1; tile < tiles; ++tile) {
        load(tile & 1, tile);
#ifdef WAIT_TOO_LATE
        asm volatile("cp.async.wait_group 2;" ::: "memory");
#else
        asm volatile("cp.async.wait_group 1;" ::: "memory");
#endif
#ifndef NO_FILL_BARRIER
        __syncthreads();
#endif
        compute((tile & 1) ^ 1);
#ifndef NO_FREE_BARRIER
        __syncthreads();
#endif
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
#ifdef WRONG_DRAIN
    compute(1);
#else
    compute((tiles - 1) & 1);
#endif
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) {
            const int r = row0 + threadIdx.y + 16 * i, c = col0 + threadIdx.x + 16 * j;
#ifdef BARRIER_IN_BRANCH
            if (r < m) __syncthreads();
#endif
            if (r < m && c < n) C[static_cast<long long>(r) * n + c] = acc[i][j];
        }
}

// Copies float4 by float4, whatever the alignment of its operands.
extern "C" __global__ void copy4(const float4* from, float4* to, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = from[i];
}

// Sums 64 numbers of each block through shared memory.
extern "C" __global__ void reduce(const float* from, float* to) {
    extern __shared__ float part[];
    part[threadIdx.x] = from[blockIdx.x * blockDim.x + threadIdx.x];
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
#ifndef NO_REDUCE_BARRIER
        __syncthreads();
#endif
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) to[blockIdx.x] = part[0];
}

// Reads what no thread wrote: shared memory beyond the threads, or the output itself.
extern "C" __global__ void unwritten(float* to, int shared) {
    __shared__ float box[256];
    if (threadIdx.x < 64) box[threadIdx.x] = threadIdx.x;
    __syncthreads();
    to[threadIdx.x] = shared ? box[threadIdx.x] : to[threadIdx.x] + 1.0f;
}

// One thread reaches past the end of shared memory.
extern "C" __global__ void beyond(float* to, int step) {
    __shared__ float box[32];
    box[threadIdx.x * step] = 1.0f;
    __syncthreads();
    to[threadIdx.x] = box[threadIdx.x];
}
