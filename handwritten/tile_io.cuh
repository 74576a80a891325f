// What the block-tile kernels share: where a block works, guarded copies into shared memory, the write-out.
// "exist" is how many of the next elements lie inside the operand: the rest are zeros that nothing reads.
#pragma once

#if !defined(VECTOR)
#error "VECTOR comes from handwritten/catalog.py: elements in one access to global memory, 4 or 1"
#endif
static_assert(VECTOR == 4 || VECTOR == 1, "an access is 16 bytes wide or 4");

struct Origin {
    int row;
    int col;
};

// origin + offset, or, beyond last, the same place of the first tile: neighbours stay neighbours, for
// asynchronous copies of one word to many places of shared memory take turns.
__device__ __forceinline__ int existing(int origin, int offset, int last) {
    return offset <= last - origin ? origin + offset : min(offset, last);
}

// Blocks are numbered along n first, on grid.x alone: the other axes end at 65,535.
template <int TILE_M, int TILE_N>
__device__ __forceinline__ Origin block_origin(int n) {
    const unsigned blocks_n = static_cast<unsigned>(n - 1) / TILE_N + 1;
    return {static_cast<int>(blockIdx.x / blocks_n) * TILE_M,
            static_cast<int>(blockIdx.x % blocks_n) * TILE_N};
}

template <int WIDTH>
__device__ __forceinline__ void load_run(float (&value)[WIDTH], const float* __restrict__ from, int exist) {
    if constexpr (WIDTH == 4) {
        if (exist == 4) {
            const float4 four = __ldg(reinterpret_cast<const float4*>(from));
            value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
            return;
        }
    }
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) value[j] = j < exist ? __ldg(from + j) : 0.0f;
}

template <int WIDTH>
__device__ __forceinline__ void copy_run_async(float* to_shared, const float* from) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
    const size_t source = __cvta_generic_to_global(from);
    if constexpr (WIDTH == 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(source) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(source) : "memory");
    }
}

// The bytes past exist are written as zeros and not read (src-size); exist = 0 reads nothing.
template <int WIDTH>
__device__ __forceinline__ void copy_run_async(float* to_shared, const float* from, int exist) {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
    const size_t source = __cvta_generic_to_global(from);
    const int bytes = exist * 4;
    if constexpr (WIDTH == 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source), "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(source), "r"(bytes)
                     : "memory");
    }
}

__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
// All but the newest PENDING groups of this thread's copies have arrived.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

template <int WIDTH>
__device__ __forceinline__ void put_run(float* to, const float (&run)[WIDTH]) {
    if constexpr (WIDTH == 4) {
        *reinterpret_cast<float4*>(to) = make_float4(run[0], run[1], run[2], run[3]);
    } else {
        *to = run[0];
    }
}

// One thread's share of a ROWS x COLS tile that THREADS threads bring in, in runs of WIDTH: neighbours take
// neighbouring runs of a row, and each thread steps down its column, so one pointer and one distance find it
// all. Every "from" points at this thread's first run; rows_left and cols_left count from the tile's first
// element. "place(row, col)" is where a run goes in shared memory.
template <int ROWS, int COLS, int WIDTH, int THREADS>
struct TileShare {
    static constexpr int RUNS = COLS / WIDTH;
    static constexpr int STRIDE = THREADS / RUNS;
    static constexpr int STEPS = ROWS / STRIDE;
    static_assert(COLS % WIDTH == 0, "a row of the tile is a whole number of accesses");
    static_assert(THREADS % RUNS == 0, "a step brings in whole rows");
    static_assert(ROWS % STRIDE == 0, "every thread takes equally many steps");

    const int row = static_cast<int>(threadIdx.x / RUNS);
    const int col = static_cast<int>(threadIdx.x % RUNS) * WIDTH;

    __device__ __forceinline__ int exist(int step, int rows_left, int cols_left) const {
        return row + step * STRIDE < rows_left ? min(max(cols_left - col, 0), WIDTH) : 0;
    }

    // A tile inside its operand takes copies without sizes: those cost instructions that FFMAs could use.
    template <class Place>
    __device__ __forceinline__ void copy_async(const float* from, long long pitch, int rows_left,
                                               int cols_left, Place place) const {
        if (rows_left >= ROWS && cols_left >= COLS) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                copy_run_async<WIDTH>(place(row + step * STRIDE, col), from);
                from += STRIDE * pitch;
            }
        } else {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                copy_run_async<WIDTH>(place(row + step * STRIDE, col), from,
                                      exist(step, rows_left, cols_left));
                from += STRIDE * pitch;
            }
        }
    }

    // Through registers, eight elements in flight at a time: more would push the accumulators out of theirs.
    template <class Place>
    __device__ __forceinline__ void copy(const float* __restrict__ from, long long pitch, int rows_left,
                                         int cols_left, Place place) const {
        constexpr int BATCH = STEPS * WIDTH <= 8 ? STEPS : 8 / WIDTH;
        static_assert(STEPS % BATCH == 0, "the steps are whole batches");
#pragma unroll 1
        for (int first = 0; first < STEPS; first += BATCH) {
            float value[BATCH][WIDTH];
#pragma unroll
            for (int step = 0; step < BATCH; ++step) {
                load_run<WIDTH>(value[step], from, exist(first + step, rows_left, cols_left));
                from += STRIDE * pitch;
            }
#pragma unroll
            for (int step = 0; step < BATCH; ++step) {
                put_run<WIDTH>(place(row + (first + step) * STRIDE, col), value[step]);
            }
        }
    }

    // The two halves of copy, for a kernel that computes in between; with and without guards as above.
    __device__ __forceinline__ void load(float (&value)[STEPS][WIDTH], const float* __restrict__ from,
                                         long long pitch, int rows_left, int cols_left) const {
        if (rows_left >= ROWS && cols_left >= COLS) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                load_run<WIDTH>(value[step], from, WIDTH);
                from += STRIDE * pitch;
            }
        } else {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                load_run<WIDTH>(value[step], from, exist(step, rows_left, cols_left));
                from += STRIDE * pitch;
            }
        }
    }

    // put(row, col, run) stores a run.
    template <class Put>
    __device__ __forceinline__ void store(const float (&value)[STEPS][WIDTH], Put put) const {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) put(row + step * STRIDE, col, value[step]);
    }
};

// Four adjacent floats of shared memory, 16-byte aligned.
__device__ __forceinline__ void read_four(float* value, const float* from) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
}

// C[0, COUNT) = alpha * acc + beta * C where the column exists. beta = 0 never reads C: it may hold NaN.
template <int COUNT>
__device__ __forceinline__ void write_out(float* __restrict__ c, const float* acc, int cols_left, float alpha,
                                          float beta) {
    static_assert(COUNT % VECTOR == 0, "a thread's columns are a whole number of accesses");
#pragma unroll
    for (int j = 0; j < COUNT; j += VECTOR) {
        if (VECTOR == 4 && cols_left - j >= 4) {
            float4 out =
                make_float4(alpha * acc[j], alpha * acc[j + 1], alpha * acc[j + 2], alpha * acc[j + 3]);
            if (beta != 0.0f) {
                const float4 old = *reinterpret_cast<const float4*>(c + j);
                out.x = fmaf(beta, old.x, out.x), out.y = fmaf(beta, old.y, out.y);
                out.z = fmaf(beta, old.z, out.z), out.w = fmaf(beta, old.w, out.w);
            }
            *reinterpret_cast<float4*>(c + j) = out;
            continue;
        }
#pragma unroll
        for (int e = j; e < j + VECTOR; ++e) {
            if (e < cols_left) c[e] = alpha * acc[e] + (beta != 0.0f ? beta * c[e] : 0.0f);
        }
    }
}
