// Which block and which warp runs next, and the engine's way in.
#include "machine.h"

// Threads that have left a kernel count as arrived from Volta on, so the barrier opens; it is reported all
// the same, since they never reached it. True where a barrier was opened.
bool Machine::release_for_the_gone(Block& b) {
    for (Barrier& B : b.barriers) {
        if (!B.waiting || B.expected != 32 * b.n_warps) continue;
        int gone = -1;
        bool all_gone = true;
        for (Warp& W : b.warps) {
            if (B.arrivers >> W.index & 1) continue;
            all_gone &= W.state == DONE;
            gone = 32 * W.index;
        }
        if (!all_gone || gone < 0) continue;
        fault(b, BARRIER_EXITED, B.ins, 32 * __builtin_ctz(B.waiting), 0, 0, -1, gone);
        release(b, B);
        return true;
    }
    return false;
}

// No warp can run: names one that waits and one that it waits for.
void Machine::report_stuck(Block& b) {
    for (Warp& W : b.warps) {
        if (W.state != AT_WARPGROUP) continue;
        fault(b, WARPGROUP_STUCK, W.at, 32 * W.index, 0, 0);
        return;
    }
    for (Warp& W : b.warps) {
        if (W.state != AT_MBARRIER) continue;
        const int lane = __builtin_ctz(W.held);
        u32 offset = 0;
        for (auto& known : b.mbarriers)
            if (&known.second == W.held_at[lane]) offset = known.first;
        fault(b, MBARRIER_STUCK, W.pc[lane], 32 * W.index + lane, (u64)offset + SHARED_ORIGIN, 8, -1, -1,
              (i32)W.held_at[lane]->pending);
        return;
    }
    for (Warp& W : b.warps) {
        if (W.state != AT_BARRIER) continue;
        Barrier& B = b.barriers[W.barrier];
        for (Warp& V : b.warps) {
            if (B.arrivers >> V.index & 1) continue;
            i32 elsewhere = V.state == AT_BARRIER ? V.barrier_ins : -1;
            fault(b, BARRIER_STUCK, W.barrier_ins, 32 * W.index, 0, 0, elsewhere, 32 * V.index, B.arrived);
            return;
        }
        fault(b, BARRIER_STUCK, W.barrier_ins, 32 * W.index, 0, 0, -1, -1, B.arrived);
        return;
    }
}

bool Machine::told_to_stop() const {
    return __atomic_load_n(&L.watch->stop, __ATOMIC_RELAXED);
}

// Runs a block for about ``budget`` warp instructions; true where it is over.
bool Machine::run_block(Block& b, i64 budget) {
    i64 until = b.executed + budget;
    b.polls = 0;
    while (!b.stopped) {
        bool any = false, all_done = true;
        for (Warp& W : b.warps) {
            if (W.state == RUNS) {
                const i64 before = b.executed;
                run_warp(b, W, 50000);
                __atomic_fetch_add(&L.watch->executed, b.executed - before, __ATOMIC_RELAXED);
                any = true;
                if (b.stopped) return true;
                if (told_to_stop()) return false;
            }
            if (W.state != DONE) all_done = false;
        }
        if (all_done) return true;
        if (!any && !release_for_the_gone(b)) {
            report_stuck(b);
            b.stopped = true;
            return true;
        }
        if (b.executed > L.max_instructions) {
            Warp* W = nullptr;
            for (Warp& V : b.warps)
                if (V.state == RUNS) W = &V;
            fault(b, ENDLESS, W ? W->at : 0, W ? 32 * W->index : 0, 0, 0);
            b.stopped = true;
            return true;
        }
        if (b.executed >= until || b.polls > 2000) return false;
    }
    return true;
}

void Machine::finish(Block& b) {
    out.instructions += b.executed;
    out.blocks_run++;
    __atomic_fetch_add(&L.watch->finished, 1, __ATOMIC_RELAXED);
    ticks += (u64)b.executed;
    if (b.stopped) return;
    for (const Granule& G : b.granules)
        if (G.async && !G.readers && G.state == READY) note_unread(G);
    // The copy engine may still read shared memory that is then another block's.
    for (Warp& W : b.warps)
        if (!W.stores.empty())
            fault(b, STORE_NOT_WAITED, W.stores[0].ins, 32 * W.index + W.stores[0].lane,
                  (u64)W.stores[0].from + SHARED_ORIGIN, (int)W.stores[0].bytes);
}

extern "C" int machine_run(const Program* program, const LaunchArgs* launch, Result* result) {
    const int warps = (launch->block[0] * launch->block[1] * launch->block[2] + 31) / 32;
    if (warps > MAX_WARPS) return 1;
    fesetround(FE_TONEAREST);
    Machine M(*program, *launch, *result);
    if (M.has_wgmma && warps + (warps + 3) / 4 > MAX_WARPS) return 2;
    const i64 slice = 64000000;  // a block that runs longer, or polls, lets later blocks run too
    std::vector<std::unique_ptr<Block>> live;
    std::unique_ptr<Block> spare;
    i64 next = 0;
    size_t turn = 0;
    int start_faults = result->n_faults;
    while (true) {
        bool may_start = next < launch->n_blocks && live.size() < 512 &&
                         (launch->keep_going || result->n_faults == start_faults);
        Block* b = nullptr;
        if (may_start && (live.empty() || turn == live.size())) {
            std::unique_ptr<Block> fresh = spare ? std::move(spare) : std::make_unique<Block>();
            for (Barrier& B : fresh->barriers) B = Barrier();
            fresh->executed = 0;
            fresh->stopped = false;
            for (Warp& W : fresh->warps) W.pending.clear();
            M.start(*fresh, launch->block_ids ? launch->block_ids[next] : next);
            next++;
            live.push_back(std::move(fresh));
            turn = live.size() - 1;
        }
        if (live.empty() || M.told_to_stop()) break;
        if (turn >= live.size()) turn = 0;
        b = live[turn].get();
        if (M.run_block(*b, slice)) {
            M.finish(*b);
            spare = std::move(live[turn]);
            live.erase(live.begin() + turn);
            if (!launch->keep_going && result->n_faults != start_faults) break;
        } else {
            turn++;
        }
    }
    return 0;
}

extern "C" int machine_sizes(int which) {
    const int sizes[] = {sizeof(Ins),   sizeof(Buf),     sizeof(FaultRec),   sizeof(Count),  sizeof(Trace),
                         sizeof(Program), sizeof(LaunchArgs), sizeof(Result), sizeof(TensorMapRec), sizeof(Watch)};
    return which < 10 ? sizes[which] : 0;
}
