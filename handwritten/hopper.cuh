// The Hopper instructions that the wgmma kernels are made of, one function each. Addresses are 32-bit
// shared-memory addresses; barriers are mbarriers of 8 bytes.
#pragma once
#include <cstdint>

// The 128 bytes that cuTensorMapEncodeTiled fills; a kernel takes it as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarriers: a phase completes when all arrivals and all announced bytes are in ----

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the cluster; a barrier of threads must follow.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives once this thread's cp.async so far have arrived: one of the arrivals that the barrier was given.
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Arrives and announces bytes that the copy engine will bring.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Returns once the phase of this parity has completed. A fresh barrier counts as having completed parity 1.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!done);
}

// The same with the loop inside the assembly: a loop that ptxas sees in the main loop of a SIMT kernel makes
// it sort the FFMAs around it anew (13.0), and they then read a third more registers.
__device__ __forceinline__ void barrier_wait_unseen(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "AGAIN_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra AGAIN_%=;\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// A place in a ring of buffers: index, and the parity that its barriers have in this round.
template <int COUNT>
struct Ring {
    int index = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance() {
        if (++index == COUNT) {
            index = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ Ring before() const {
        return index == 0 ? Ring{COUNT - 1, parity ^ 1} : Ring{index - 1, parity};
    }
};

// ---- the copy engine: boxes of a tensor map, zeros beyond its extents, nothing stored there ----

__device__ __forceinline__ void copy_box_in(uint32_t to, const TensorMap* map, uint32_t barrier, int x,
                                            int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
}

// The same for a box of three dimensions.
__device__ __forceinline__ void copy_boxes_in(uint32_t to, const TensorMap* map, uint32_t barrier, int x,
                                              int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}

__device__ __forceinline__ void copy_box_out(const TensorMap* map, uint32_t from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y)
                 : "memory");
}

__device__ __forceinline__ void commit_boxes() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Returns once all but PENDING of this thread's stores have read their shared memory.
template <int PENDING>
__device__ __forceinline__ void wait_boxes_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Makes this thread's ordinary writes to shared memory visible to the copy engine and the Tensor Cores.
__device__ __forceinline__ void fence_to_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- clusters: blocks that run together and reach each other's shared memory ----

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Barrier of all threads of the cluster.
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Arrives at the barrier that lies at this address in the shared memory of another block, or of this one.
__device__ __forceinline__ void barrier_arrive_in(uint32_t barrier, uint32_t rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

// Brings one box to the same address in every block of the mask, and its bytes to the same barrier there.
__device__ __forceinline__ void copy_box_to_all(uint32_t to, const TensorMap* map, uint32_t barrier, int x,
                                                int y, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(blocks)
        : "memory");
}

// The same for a box of three dimensions.
__device__ __forceinline__ void copy_boxes_to_all(uint32_t to, const TensorMap* map, uint32_t barrier, int x,
                                                  int y, int z, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks)
        : "memory");
}

// ---- launches that overlap: no-ops where the launch was not asked to ----

// Lets the next launch's blocks start where there is room, which they do up to their own wait.
__device__ __forceinline__ void let_next_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Returns once the launch before has completed and what it wrote is visible.
__device__ __forceinline__ void wait_for_launch_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- threads ----

// Barrier of one warpgroup; id 0 belongs to __syncthreads.
__device__ __forceinline__ void sync_warpgroup(int id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Four 8 x 8 matrices of FP16; lane l names the row l % 8 of matrix l / 8.
template <bool TRANSPOSED = false>
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    if constexpr (TRANSPOSED) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                     "r"(a), "r"(b), "r"(c), "r"(d)
                     : "memory");
        return;
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// ---- wgmma ----

// A matrix in shared memory, swizzled over SPAN bytes; the swizzle's period is eight rows of SPAN bytes.
// K-major: rows of SPAN bytes along k; stride leads to the next eight rows.
// MN-major: rows of SPAN bytes along m or n; stride leads to the next eight k, leading to the next SPAN
// bytes.
template <int SPAN = 128>
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
    static_assert(SPAN == 128 || SPAN == 64, "other swizzles are not used");
    constexpr uint64_t MODE = SPAN == 128 ? 1 : 2;
    return MODE << 62 | static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(leading >> 4) << 16 |
           (address & 0x3FFFF) >> 4;
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Operand lists of the instruction: %i in the text, accumulators in the constraints.
#define WGMMA_REGISTERS_32                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_REGISTERS_64                                                             \
    WGMMA_REGISTERS_32                                                                 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_REGISTERS_96                                                             \
    WGMMA_REGISTERS_64                                                                 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_REGISTERS_112 \
    WGMMA_REGISTERS_96      \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_REGISTERS_128 \
    WGMMA_REGISTERS_112     \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D16(i) WGMMA_D4(i), WGMMA_D4(i + 4), WGMMA_D4(i + 8), WGMMA_D4(i + 12)
#define WGMMA_D64(i) WGMMA_D16(i), WGMMA_D16(i + 16), WGMMA_D16(i + 32), WGMMA_D16(i + 48)
#define WGMMA_TEXT(N, REGISTERS, A, B, FLAG, A_TRANSPOSED, B_TRANSPOSED)                    \
    "{\n.reg .pred p;\nsetp.ne.u32 p, %" #FLAG                                              \
    ", 0;\n"                                                                                \
    "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" REGISTERS "}, %" #A ", %" #B \
    ", "                                                                                    \
    "p, 1, 1, %" #A_TRANSPOSED ", %" #B_TRANSPOSED ";\n}"

// d[64 x N] = A[64 x 16] @ B[16 x N] (+ d if accumulate), asynchronous; TRANSPOSED says that an operand is
// MN-major. Thread t of the warpgroup holds in d[4 j + 2 h + e] the element of row 16 * (t / 32) + 8 * h +
// t % 32 / 4 and column 8 * j + t % 4 * 2 + e.
template <int N, int B_TRANSPOSED, int A_TRANSPOSED = 0>
struct Wgmma;

template <int B_TRANSPOSED, int A_TRANSPOSED>
struct Wgmma<64, B_TRANSPOSED, A_TRANSPOSED> {
    static __device__ __forceinline__ void run(float (&d)[32], uint64_t a, uint64_t b, uint32_t accumulate) {
        asm volatile(WGMMA_TEXT(64, WGMMA_REGISTERS_32, 32, 33, 34, 35, 36)
                     : WGMMA_D16(0), WGMMA_D16(16)
                     : "l"(a), "l"(b), "r"(accumulate), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
    }
};

template <int B_TRANSPOSED, int A_TRANSPOSED>
struct Wgmma<128, B_TRANSPOSED, A_TRANSPOSED> {
    static __device__ __forceinline__ void run(float (&d)[64], uint64_t a, uint64_t b, uint32_t accumulate) {
        asm volatile(WGMMA_TEXT(128, WGMMA_REGISTERS_64, 64, 65, 66, 67, 68)
                     : WGMMA_D64(0)
                     : "l"(a), "l"(b), "r"(accumulate), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
    }
};

template <int B_TRANSPOSED, int A_TRANSPOSED>
struct Wgmma<192, B_TRANSPOSED, A_TRANSPOSED> {
    static __device__ __forceinline__ void run(float (&d)[96], uint64_t a, uint64_t b, uint32_t accumulate) {
        asm volatile(WGMMA_TEXT(192, WGMMA_REGISTERS_96, 96, 97, 98, 99, 100)
                     : WGMMA_D64(0), WGMMA_D16(64), WGMMA_D16(80)
                     : "l"(a), "l"(b), "r"(accumulate), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
    }
};

template <int B_TRANSPOSED, int A_TRANSPOSED>
struct Wgmma<224, B_TRANSPOSED, A_TRANSPOSED> {
    static __device__ __forceinline__ void run(float (&d)[112], uint64_t a, uint64_t b, uint32_t accumulate) {
        asm volatile(WGMMA_TEXT(224, WGMMA_REGISTERS_112, 112, 113, 114, 115, 116)
                     : WGMMA_D64(0), WGMMA_D16(64), WGMMA_D16(80), WGMMA_D16(96)
                     : "l"(a), "l"(b), "r"(accumulate), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
    }
};

template <int B_TRANSPOSED, int A_TRANSPOSED>
struct Wgmma<256, B_TRANSPOSED, A_TRANSPOSED> {
    static __device__ __forceinline__ void run(float (&d)[128], uint64_t a, uint64_t b, uint32_t accumulate) {
        asm volatile(WGMMA_TEXT(256, WGMMA_REGISTERS_128, 128, 129, 130, 131, 132)
                     : WGMMA_D64(0), WGMMA_D64(64)
                     : "l"(a), "l"(b), "r"(accumulate), "n"(A_TRANSPOSED), "n"(B_TRANSPOSED));
    }
};
