// The main loop of the stream-K kernels whose thread tile is 8 x 16, and what surrounds it: a block's share
// of the work, the pipeline, the fix-up. A is transposed on its way through registers, B comes by cp.async.
// Nothing in the loop looks at an edge: rows and columns beyond C repeat the last one and are never stored,
// and a ragged k comes first, filled up with zeros, so that all that follows is whole.
#pragma once
#include "thread_tile.cuh"

#if !defined(ENTRY) || !defined(NAME_HINT)
#error "the entry's name comes from handwritten/catalog.py"
#endif
static_assert(NUM_STAGES >= 3, "a tile is stored to while another is computed from and a third arrives");
static_assert(BLOCK_K % 4 == 0, "fragments alternate between two sets of registers; A comes in fours");
constexpr int WARPS = BLOCK_M / WARP_M * (BLOCK_N / WARP_N), THREADS = WARPS * 32;
// Eight warps of up to 255 registers fill the register file.
constexpr int BLOCKS_PER_SM = THREADS >= 256 ? 1 : 256 / THREADS;

constexpr int HEADER_BYTES = 16384;  // of the workspace: the ticket, then a flag for each warp of each share
constexpr int PART =
    BLOCK_M * BLOCK_N;  // elements of a share's partial tile, in the order of threads' registers

// One step of k. With the hint in the entry's name ptxas (13.0) keeps the order written here: 2 x 2 blocks,
// down one pair of columns and up the next, 1.52 register reads an FFMA. Without it ptxas sorts the FFMAs
// anew; what it makes of a walk down one column and up the next is the best found, 1.96 reads.
__device__ __forceinline__ void multiply(ThreadTile& acc, const Fragments& f) {
    constexpr int BLOCK = NAME_HINT ? 2 : 1;
#pragma unroll
    for (int j = 0; j < THREAD_N; j += BLOCK)
#pragma unroll
        for (int t = 0; t < THREAD_M; t += BLOCK) {
            const int i = j / BLOCK % 2 ? THREAD_M - BLOCK - t : t;
            acc.value[i][j] = fmaf(f.a[i], f.b[j], acc.value[i][j]);
            if constexpr (NAME_HINT) {
                acc.value[i + 1][j] = fmaf(f.a[i + 1], f.b[j], acc.value[i + 1][j]);
                acc.value[i + 1][j + 1] = fmaf(f.a[i + 1], f.b[j + 1], acc.value[i + 1][j + 1]);
                acc.value[i][j + 1] = fmaf(f.a[i], f.b[j + 1], acc.value[i][j + 1]);
            }
        }
}

struct Item {
    int tile, first, last;  // steps of BLOCK_K
};

// The work of a block: whole tiles, then an equal share of the steps of all tiles from whole_tiles on.
struct Work {
    int steps, whole_tiles, share, quota, extra;

    __device__ __forceinline__ Work(int m, int n, int k, int whole_tiles, int* workspace)
        : steps((k - 1) / BLOCK_K + 1), whole_tiles(whole_tiles), share(static_cast<int>(blockIdx.x)) {
        const int blocks = static_cast<int>(gridDim.x);
        const int shared = ((m - 1) / BLOCK_M + 1) * ((n - 1) / BLOCK_N + 1) - whole_tiles;
        quota = shared * steps / blocks;
        extra = shared * steps % blocks;
        if (shared == 0) return;
        // Shares go out in the order in which blocks start, the last share first: a block waits only for
        // later shares, hence for blocks that have started and need nothing from it.
        __shared__ int ticket;
        if (threadIdx.x == 0) ticket = atomicAdd(workspace, 1);
        __syncthreads();
        share = blocks - 1 - ticket;
    }

    // First step of a share, counted from the first step of tile whole_tiles.
    __device__ __forceinline__ int start(int share_index) const {
        return share_index * quota + min(share_index, extra);
    }

    // The index-th item of this block; false after the last.
    __device__ __forceinline__ bool item(int index, Item& found) const {
        const int from = start(share), to = start(share + 1);
        const int tile = from / steps;
        const int parts = from < to ? (to - 1) / steps - tile + 1 : 0;
        const int blocks = static_cast<int>(gridDim.x);
        // Whole tiles first: all blocks then walk along k together, and share rows and columns in L2.
        const int whole = share < whole_tiles ? (whole_tiles - 1 - share) / blocks + 1 : 0;
        if (index < whole) {
            found = {share + index * blocks, 0, steps};
            return true;
        }
        const int part = index - whole, base = (tile + part) * steps;
        found = {whole_tiles + tile + part, max(from - base, 0), min(to - base, steps)};
        return part < parts;
    }
};

// What one thread brings in of each tile, from pointers that move along k.
struct Loader {
    static constexpr int A_RUNS = BLOCK_K / 4, A_ROWS = THREADS / A_RUNS, A_STEPS = BLOCK_M / A_ROWS;
    static constexpr int B_COLS =
        BLOCK_N / VECTOR > THREADS ? BLOCK_N / VECTOR / THREADS : 1;  // runs of a row
    static constexpr int B_RUNS = BLOCK_N / VECTOR / B_COLS, B_ROWS = THREADS / B_RUNS;
    static constexpr int B_STEPS = BLOCK_K / B_ROWS;
    static_assert(THREADS % A_RUNS == 0 && BLOCK_M % A_ROWS == 0,
                  "every thread takes equally many fours of A");
    static_assert(BLOCK_N == B_RUNS * B_COLS * VECTOR && THREADS % B_RUNS == 0 && BLOCK_K % B_ROWS == 0,
                  "a step brings in whole rows of B");

    const float* a[A_STEPS];
    const float* b;
    int a_at = 0;  // columns from a[] to the tile that is loaded next
    long long b_step;
    int b_right[B_COLS];  // from this thread's first run of a row to its others, 0 first

    // Rows and columns beyond the operands repeat the last ones.
    __device__ __forceinline__ Loader(const float* A, const float* B, int m, int n, long long lda,
                                      long long ldb, Origin origin, int k_first) {
        const int last_row = m - 1 - origin.row, last_run = n - VECTOR - origin.col;
#pragma unroll
        for (int i = 0; i < A_STEPS; ++i) {
            const int row = min(static_cast<int>(threadIdx.x) / A_RUNS + i * A_ROWS, last_row);
            a[i] = A + (origin.row + row) * lda + k_first + a_col();
        }
        b = B + (k_first + static_cast<long long>(b_row())) * ldb + origin.col + min(b_left(), last_run);
#pragma unroll
        for (int j = 0; j < B_COLS; ++j) {
            b_right[j] = min(b_left() + j * B_RUNS * VECTOR, last_run) - min(b_left(), last_run);
        }
        b_step = B_ROWS * ldb;
    }
    __device__ __forceinline__ static int a_col() { return static_cast<int>(threadIdx.x) % A_RUNS * 4; }
    __device__ __forceinline__ static int b_row() { return static_cast<int>(threadIdx.x) / B_RUNS; }
    __device__ __forceinline__ static int b_left() { return static_cast<int>(threadIdx.x) % B_RUNS * VECTOR; }

    // k_exist columns of A count, a multiple of VECTOR.
    __device__ __forceinline__ void load_a(int i, float (&value)[4], int k_exist) {
#pragma unroll
        for (int j = 0; j < 4; j += VECTOR) {
            const int exist = a_col() + j < k_exist ? VECTOR : 0;
            load_run<VECTOR>(reinterpret_cast<float (&)[VECTOR]>(value[j]), a[i] + j, exist);
        }
    }
    __device__ __forceinline__ static void store_a(int i, float* tile, const float (&value)[4]) {
        float* const to = tile + a_col() * A_PITCH + static_cast<int>(threadIdx.x) / A_RUNS + i * A_ROWS;
#pragma unroll
        for (int j = 0; j < 4; ++j) to[j * A_PITCH] = value[j];
    }
    __device__ __forceinline__ float* b_place(int i, int j, float* tile) const {
        return tile + (b_row() + i * B_ROWS) * BLOCK_N + b_left() + j * B_RUNS * VECTOR;
    }
    __device__ __forceinline__ const float* b_run(int j) const { return B_COLS == 1 ? b : b + b_right[j]; }
    // k_exist rows of B count; the others are zeros, and b moves on by as many as count.
    __device__ __forceinline__ void copy_b_part(float* tile, int k_exist, long long ldb) {
#pragma unroll
        for (int i = 0; i < B_STEPS; ++i) {
            const bool exists = b_row() + i * B_ROWS < k_exist;
#pragma unroll
            for (int j = 0; j < B_COLS; ++j) {
                const float* const from = exists ? b_run(j) + i * b_step : b_run(j);
                copy_run_async<VECTOR>(b_place(i, j, tile), from, exists ? VECTOR : 0);
            }
        }
        b += k_exist * ldb;
    }
    // A whole tile's part.
    __device__ __forceinline__ void load_a(int i, float (&value)[4]) {
#pragma unroll
        for (int j = 0; j < 4; j += VECTOR) {
            load_run<VECTOR>(reinterpret_cast<float (&)[VECTOR]>(value[j]), a[i] + a_at + j, VECTOR);
        }
    }
    __device__ __forceinline__ void copy_b(int i, float* tile) {
#pragma unroll
        for (int j = 0; j < B_COLS; ++j) copy_run_async<VECTOR>(b_place(i, j, tile), b_run(j));
        b += b_step;
    }
    // The same if the tile exists, else zeros.
    __device__ __forceinline__ void copy_b(int i, float* tile, bool exists) {
#pragma unroll
        for (int j = 0; j < B_COLS; ++j) {
            copy_run_async<VECTOR>(b_place(i, j, tile), b_run(j), exists ? VECTOR : 0);
        }
        b += b_step;
    }
};

// How the warps of a block agree that a tile is there and that another may be overwritten. Barrier: all meet
// before each tile.
struct Meeting {
    static constexpr int AHEAD = NUM_STAGES - 1;  // tiles loaded before the one that is computed from

    __device__ __forceinline__ void before_first() const {}
    __device__ __forceinline__ void before_tile() const {
        wait_for_copies<AHEAD - 1>();
        __syncthreads();
    }
    __device__ __forceinline__ void in_mid_tile() const {}
    __device__ __forceinline__ void after_tile() {}
};

// acc = A[BLOCK_M rows from origin.row, k_length] @ B[k_length, BLOCK_N columns from origin.col] for the
// steps of an item. All threads take part. Shared memory (NUM_STAGES tiles of A, then of B) is free when it
// starts, and nobody reads it any more after the next barrier of the block when it ends.
template <class Order, bool SPREAD>
__device__ __forceinline__ void accumulate(ThreadTile& acc, float* smem, Order& order, const float* A,
                                           const float* B, int m, int n, int k, long long lda, long long ldb,
                                           Origin origin, const Item& at) {
    constexpr int AHEAD = Order::AHEAD;
    float* const b_tiles = smem + NUM_STAGES * A_STAGE;
    // The first step takes what k leaves over after whole ones: 1 to BLOCK_K columns.
    const int ragged = (k - 1) % BLOCK_K + 1;
    const int k_first = at.first == 0 ? 0 : ragged + (at.first - 1) * BLOCK_K, tiles = at.last - at.first;
    Loader loader(A, B, m, n, lda, ldb, origin, k_first);
    {
        float staged[AHEAD][Loader::A_STEPS][4];
        const int exist = at.first == 0 ? ragged : BLOCK_K;
#pragma unroll
        for (int i = 0; i < Loader::A_STEPS; ++i) loader.load_a(i, staged[0][i], exist);
        loader.copy_b_part(b_tiles, exist, ldb);
        commit_copies();
        loader.a_at = exist;
#pragma unroll
        for (int stage = 1; stage < AHEAD; ++stage) {
            if (stage < tiles) {
                if (stage > 1) loader.a_at += BLOCK_K;
#pragma unroll
                for (int i = 0; i < Loader::A_STEPS; ++i) loader.load_a(i, staged[stage][i]);
#pragma unroll
                for (int i = 0; i < Loader::B_STEPS; ++i) loader.copy_b(i, b_tiles + stage * B_STAGE);
            }
            commit_copies();
        }
#pragma unroll
        for (int stage = 0; stage < AHEAD; ++stage) {
#pragma unroll
            for (int i = 0; i < Loader::A_STEPS; ++i) {
                if (stage < tiles) loader.store_a(i, smem + stage * A_STAGE, staged[stage][i]);
            }
        }
    }
    const Origin mine = thread_origin();
    if (SPREAD &&
        tiles == 1) {  // perhaps there is no whole tile anywhere that the loop below could load again
        wait_for_copies();
        __syncthreads();
        Fragments fragments;
#pragma unroll 1
        for (int kk = 0; kk < BLOCK_K; ++kk) {
            fragments.read(smem + kk * A_PITCH + mine.row, b_tiles + kk * BLOCK_N + mine.col);
            multiply(acc, fragments);
        }
        return;
    }
    order.before_first();
    // Steps at which A is loaded from, over how many that is spread, and from which A is stored.
    constexpr int LOAD_STEP = 1, LOAD_STEPS = BLOCK_K / 4, STORE_STEP = BLOCK_K - BLOCK_K / 4;
    float staged[Loader::A_STEPS][4];
    int stage = 0, fill = AHEAD;
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
        order.before_tile();
        const bool more = t + AHEAD < tiles;
        if constexpr (SPREAD) {
            // Past the last tile the last one is loaded again, for nobody: a branch would cut the loop in
            // pieces.
            loader.a_at += more ? BLOCK_K : 0;
            loader.b -= more ? 0 : BLOCK_K * ldb;
        } else {
            if (more) {
                loader.a_at += BLOCK_K;
#pragma unroll
                for (int i = 0; i < Loader::A_STEPS; ++i) loader.load_a(i, staged[i]);
#pragma unroll
                for (int i = 0; i < Loader::B_STEPS; ++i) loader.copy_b(i, b_tiles + fill * B_STAGE);
            }
            commit_copies();
        }
        const float* const a_step = smem + stage * A_STAGE + mine.row;
        const float* const b_step = b_tiles + stage * B_STAGE + mine.col;
        Fragments fragments[2];
        fragments[0].read(a_step, b_step);
#pragma unroll
        for (int kk = 0; kk < BLOCK_K; ++kk) {
            if constexpr (SPREAD) {
#pragma unroll
                for (int i = 0; i < Loader::A_STEPS; ++i) {
                    if (kk == LOAD_STEP + i * LOAD_STEPS / Loader::A_STEPS) loader.load_a(i, staged[i]);
                }
                if (kk == LOAD_STEP + LOAD_STEPS) {
#pragma unroll
                    for (int i = 0; i < Loader::B_STEPS; ++i) loader.copy_b(i, b_tiles + fill * B_STAGE);
                    commit_copies();
                }
            }
            if (kk + 1 < BLOCK_K) {
                fragments[(kk + 1) % 2].read(a_step + (kk + 1) * A_PITCH, b_step + (kk + 1) * BLOCK_N);
            }
            multiply(acc, fragments[kk % 2]);
            if (kk == BLOCK_K / 2 - 1) order.in_mid_tile();
            if constexpr (SPREAD) {
#pragma unroll
                for (int i = 0; i < Loader::A_STEPS; ++i) {
                    if (kk == STORE_STEP + i * (BLOCK_K - STORE_STEP) / Loader::A_STEPS) {
                        loader.store_a(i, smem + fill * A_STAGE, staged[i]);
                    }
                }
            }
        }
        if (!SPREAD && more) {
#pragma unroll
            for (int i = 0; i < Loader::A_STEPS; ++i) loader.store_a(i, smem + fill * A_STAGE, staged[i]);
        }
        order.after_tile();
        stage = stage + 1 == NUM_STAGES ? 0 : stage + 1;
        fill = fill + 1 == NUM_STAGES ? 0 : fill + 1;
    }
}

// C = alpha * acc + beta * C, from the registers.
__device__ __forceinline__ void write_tile(const ThreadTile& acc, float* __restrict__ C, int m, int n,
                                           long long ldc, Origin origin, float alpha, float beta) {
    const Origin mine = thread_origin();
    const int rows_left = m - origin.row - mine.row, cols_left = n - origin.col - mine.col;
    float* const c = C + (origin.row + static_cast<long long>(mine.row)) * ldc + origin.col + mine.col;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        if (tile_row(i) >= rows_left) continue;
#pragma unroll
        for (int j = 0; j < THREAD_N; j += 4) {
            // Scaled first: a vector store of the accumulators themselves would bind them to aligned fours,
            // and ptxas could not spread them over the register banks as the main loop wants.
            float scaled[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) scaled[e] = alpha * acc.value[i][j + e];
            write_out<4>(c + tile_row(i) * ldc + tile_col(j), scaled, cols_left - tile_col(j), 1.0f, beta);
        }
    }
}

// What becomes of an item's products: who started the tile adds what later shares leave in the workspace, in
// the order of k, and writes C; the others leave theirs. Warps need nothing of each other.
__device__ __forceinline__ void finish(const ThreadTile& acc, const Work& work, const Item& at,
                                       int* workspace, float* __restrict__ C, int m, int n, long long ldc,
                                       Origin origin, float alpha, float beta) {
    int* const flags = workspace + 1 + static_cast<int>(threadIdx.x) / 32;
    float* const part = reinterpret_cast<float*>(workspace) + HEADER_BYTES / 4 +
                        static_cast<long long>(work.share) * PART + threadIdx.x * 4;
    const bool owner = at.first == 0;
    int peers = 0;  // later shares with a part of this tile
    if (owner && at.last < work.steps) {
        const int tile_end = (at.tile - work.whole_tiles + 1) * work.steps;
#pragma unroll 1
        while (work.start(work.share + 1 + peers) < tile_end) {
            ++peers;
            int flag;
            do {
                asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                             : "=r"(flag)
                             : "l"(flags + (work.share + peers) * WARPS)
                             : "memory");
            } while (flag == 0);
        }
    }
    const Origin mine = thread_origin();
    const int rows_left = m - origin.row - mine.row, cols_left = n - origin.col - mine.col;
    float* const c = C + (origin.row + static_cast<long long>(mine.row)) * ldc + origin.col + mine.col;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        float scaled[THREAD_N / 4][4];  // first, as in write_tile
#pragma unroll
        for (int j = 0; j < THREAD_N; ++j) scaled[j / 4][j % 4] = alpha * acc.value[i][j];
        float* const row_part = part + i * (THREAD_N * THREADS);
#pragma unroll 1
        for (int peer = 1; peer <= peers; ++peer)
#pragma unroll
            for (int j = 0; j < THREAD_N / 4; ++j) {
                const float4 more = __ldcg(reinterpret_cast<const float4*>(
                    row_part + static_cast<long long>(peer) * PART + j * (4 * THREADS)));
                scaled[j][0] += more.x, scaled[j][1] += more.y, scaled[j][2] += more.z,
                    scaled[j][3] += more.w;
            }
#pragma unroll
        for (int j = 0; j < THREAD_N / 4; ++j) {
            if (!owner) {
                put_run<4>(row_part + j * (4 * THREADS), scaled[j]);
            } else if (tile_row(i) < rows_left) {
                write_out<4>(c + tile_row(i) * ldc + tile_col(4 * j), scaled[j], cols_left - tile_col(4 * j),
                             1.0f, beta);
            }
        }
    }
    if (owner) return;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flags + work.share * WARPS), "r"(1)
                     : "memory");
    }
}

// All items of this block. products(acc, origin, item) adds an item's products to acc, as accumulate() does.
template <class Products>
__device__ __forceinline__ void for_items(Products products, float* C, int m, int n, int k, long long ldc,
                                          float alpha, float beta, int* workspace, int whole_tiles) {
    const int tiles_n = (n - 1) / BLOCK_N + 1;
    const Work work(m, n, k, whole_tiles, workspace);
    Item at;
    for (int index = 0; work.item(index, at); ++index) {
        const Origin origin = {at.tile / tiles_n * BLOCK_M, at.tile % tiles_n * BLOCK_N};
        ThreadTile acc = {};
        products(acc, origin, at);
        finish(acc, work, at, workspace, C, m, n, ldc, origin, alpha, beta);
        wait_for_copies();
        __syncthreads();  // shared memory is free for the next item
    }
}

template <bool SPREAD, class Order>
__device__ __forceinline__ void run_items(Order& order, const float* A, const float* B, float* C, int m,
                                          int n, int k, long long lda, long long ldb, long long ldc,
                                          float alpha, float beta, int* workspace, int whole_tiles) {
    extern __shared__ __align__(16) float smem[];
    const auto products = [&](ThreadTile& acc, Origin origin, const Item& at) {
        accumulate<Order, SPREAD>(acc, smem, order, A, B, m, n, k, lda, ldb, origin, at);
    };
    for_items(products, C, m, n, k, ldc, alpha, beta, workspace, whole_tiles);
}
