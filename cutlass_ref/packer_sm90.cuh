// Packing for the templates of CUTLASS 3 (TMA, wgmma, persistent blocks).
#pragma once

#include "packer.cuh"

namespace gemm_tracks {

// A stride of CUTLASS 3 has one static 1; the leading dimension goes to the other mode.
template <class Stride>
Stride with_leading_dimension(int64_t leading) {
    Stride stride{};
    if constexpr (cute::is_static_v<std::decay_t<decltype(cute::get<0>(stride))>>) {
        cute::get<1>(stride) = leading;
    } else {
        cute::get<0>(stride) = leading;
    }
    return stride;
}

template <class Kernel>
typename Kernel::Arguments arguments(Query const& q) {
    typename Kernel::Arguments args{};
    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    args.problem_shape = {int(q.m), int(q.n), int(q.k), 1};
    args.mainloop.ptr_A = reinterpret_cast<decltype(args.mainloop.ptr_A)>(q.a);
    args.mainloop.ptr_B = reinterpret_cast<decltype(args.mainloop.ptr_B)>(q.b);
    args.mainloop.dA = with_leading_dimension<decltype(args.mainloop.dA)>(q.lda);
    args.mainloop.dB = with_leading_dimension<decltype(args.mainloop.dB)>(q.ldb);
    args.epilogue.thread.alpha = q.alpha;
    args.epilogue.thread.beta = q.beta;
    args.epilogue.ptr_C = reinterpret_cast<decltype(args.epilogue.ptr_C)>(q.c);
    args.epilogue.ptr_D = reinterpret_cast<decltype(args.epilogue.ptr_D)>(q.c);
    args.epilogue.dC = with_leading_dimension<decltype(args.epilogue.dC)>(q.ldc);
    args.epilogue.dD = with_leading_dimension<decltype(args.epilogue.dD)>(q.ldc);
    args.hw_info.sm_count = q.multiprocessors;
    args.scheduler.max_swizzle_size = q.max_swizzle;
    args.scheduler.raster_order = static_cast<decltype(args.scheduler.raster_order)>(q.raster);
    return args;
}

template <class Kernel>
int pack(Query const& q, Answer* answer, unsigned char* out, int capacity) {
    using Params = typename Kernel::Params;
    static_assert(std::is_trivially_destructible_v<Params>, "parameters are handed over as bytes");
    if (int(sizeof(Params)) > capacity) return 1;
    auto const args = arguments<Kernel>(q);
    begin_recording();
    uint64_t const workspace = q.workspace ? q.workspace : SAMPLE_WORKSPACE;
    alignas(alignof(Params)) unsigned char storage[sizeof(Params)] = {};
    auto* params =
        new (storage) Params(Kernel::to_underlying_arguments(args, reinterpret_cast<void*>(workspace)));
    answer->workspace = Kernel::get_workspace_size(args);
    Kernel::initialize_workspace(args, reinterpret_cast<void*>(workspace), nullptr, nullptr);
    locate_clear(answer, workspace);
    store(answer->grid, Kernel::get_grid_shape(*params));
    store(answer->block, Kernel::get_block_shape());
    using Cluster = typename Kernel::DispatchPolicy::ClusterShape;
    store(answer->cluster, dim3(cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), 1));
    answer->params = int(sizeof(Params));
    answer->dynamic_smem = int(Kernel::SharedStorageSize);
    locate_maps(answer, storage);
    std::memcpy(out, storage, sizeof(Params));
    return 0;
}

template <class Epilogue, class = void>
struct StoresByTma : std::false_type {};
template <class Epilogue>
struct StoresByTma<Epilogue, std::void_t<typename Epilogue::CopyOpS2G>> : std::true_type {};

template <class Kernel>
void traits(Traits* out) {
    *out = {};
    using Tile = typename Kernel::TileShape;
    using Cluster = typename Kernel::DispatchPolicy::ClusterShape;
    using Schedule = typename Kernel::DispatchPolicy::Schedule;
    out->block[0] = cute::size<0>(Tile{});
    out->block[1] = cute::size<1>(Tile{});
    out->block[2] = cute::size<2>(Tile{});
    using Atom = typename Kernel::TiledMma::AtomShape_MNK;
    out->mma[0] = cute::size<0>(Atom{});
    out->mma[1] = cute::size<1>(Atom{});
    out->mma[2] = cute::size<2>(Atom{});
    out->stages = Kernel::DispatchPolicy::Stages;
    out->cluster[0] = cute::size<0>(Cluster{});
    out->cluster[1] = cute::size<1>(Cluster{});
    out->api = 3;
    out->cooperative = std::is_base_of_v<cutlass::gemm::KernelTmaWarpSpecializedCooperative, Schedule>;
    out->pingpong = std::is_base_of_v<cutlass::gemm::KernelTmaWarpSpecializedPingpong, Schedule>;
    out->tma_epilogue = StoresByTma<typename Kernel::CollectiveEpilogue>::value;
    out->params = int(sizeof(typename Kernel::Params));
    out->dynamic_smem = int(Kernel::SharedStorageSize);
}

}  // namespace gemm_tracks
