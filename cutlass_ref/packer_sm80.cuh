// Packing for the templates of CUTLASS 2 (SIMT and mma.sync).
#pragma once

#include "packer.cuh"

namespace gemm_tracks {

template <class Kernel, class = void>
struct IsStreamK : std::false_type {};
template <class Kernel>
struct IsStreamK<Kernel, std::void_t<decltype(std::declval<typename Kernel::Params&>().barrier_workspace)>>
    : std::true_type {};

template <class Kernel>
typename Kernel::Arguments arguments(Query const& q) {
    using Compute = typename Kernel::EpilogueOutputOp::ElementCompute;
    typename Kernel::EpilogueOutputOp::Params epilogue{Compute(q.alpha), Compute(q.beta)};
    cutlass::gemm::GemmCoord problem{int(q.m), int(q.n), int(q.k)};
    auto const* a = reinterpret_cast<void const*>(q.a);
    auto const* b = reinterpret_cast<void const*>(q.b);
    auto* c = reinterpret_cast<void*>(q.c);
    using cutlass::gemm::GemmUniversalMode;
    auto with = [&](auto... further) {
        return typename Kernel::Arguments(GemmUniversalMode::kGemm, problem, q.split_k, epilogue, a, b, c, c,
                                          0, 0, 0, 0, q.lda, q.ldb, q.ldc, q.ldc, further...);
    };
    if constexpr (IsStreamK<Kernel>::value) {
        return with(-1);  // all multiprocessors
    } else {
        return with();
    }
}

template <class Kernel>
int pack(Query const& q, Answer* answer, unsigned char* out, int capacity) {
    using Params = typename Kernel::Params;
    static_assert(std::is_trivially_destructible_v<Params>, "parameters are handed over as bytes");
    if (int(sizeof(Params)) > capacity) return 1;
    auto const args = arguments<Kernel>(q);
    begin_recording();
    alignas(alignof(Params)) unsigned char storage[sizeof(Params)] = {};
    // Stream-K spreads its tiles over one block per multiprocessor, which is what its large tiles allow.
    auto* params = new (storage) Params(args, q.multiprocessors, 1);
    answer->workspace = params->get_workspace_size();
    if constexpr (IsStreamK<Kernel>::value) {
        uint64_t const workspace = q.workspace ? q.workspace : SAMPLE_WORKSPACE;
        params->init_workspace(reinterpret_cast<void*>(workspace), nullptr);
        locate_clear(answer, workspace);
    } else {
        params->semaphore = reinterpret_cast<int*>(q.workspace);
        answer->clear_offset = 0;
        answer->clear_bytes = answer->workspace;
    }
    store(answer->grid, params->get_grid_dims());
    store(answer->block, dim3(Kernel::kThreadCount, 1, 1));
    store(answer->cluster, dim3(1, 1, 1));
    answer->params = int(sizeof(Params));
    answer->dynamic_smem = int(sizeof(typename Kernel::SharedStorage));
    answer->maps = 0;
    std::memcpy(out, storage, sizeof(Params));
    return 0;
}

template <class Shape>
void extents(int32_t (&out)[3]) {
    out[0] = Shape::kM;
    out[1] = Shape::kN;
    out[2] = Shape::kK;
}

template <class Warp, class = void>
struct ThreadTile {
    static void get(int32_t (&)[3]) {}
};
template <class Warp>
struct ThreadTile<Warp, std::void_t<typename Warp::ThreadMma::Shape>> {
    static void get(int32_t (&out)[3]) { extents<typename Warp::ThreadMma::Shape>(out); }
};

template <class Warp, class = void>
struct Instruction {
    static void get(int32_t (&)[3]) {}
};
template <class Warp>
struct Instruction<Warp, std::void_t<typename Warp::ArchMmaOperator::Shape>> {
    static void get(int32_t (&out)[3]) { extents<typename Warp::ArchMmaOperator::Shape>(out); }
};

template <class Kernel>
void traits(Traits* out) {
    using Mma = typename Kernel::Mma;
    using Warp = typename Mma::Operator;
    *out = {};
    extents<typename Mma::Shape>(out->block);
    extents<typename Warp::Shape>(out->warp);
    if (std::is_same_v<typename Warp::OperatorClass, cutlass::arch::OpClassSimt>) {
        ThreadTile<Warp>::get(out->thread);
    } else {
        Instruction<Warp>::get(out->mma);
    }
    out->stages = Mma::kStages;
    out->cluster[0] = out->cluster[1] = 1;
    out->api = 2;
    out->params = int(sizeof(typename Kernel::Params));
    out->dynamic_smem = int(sizeof(typename Kernel::SharedStorage));
}

}  // namespace gemm_tracks
