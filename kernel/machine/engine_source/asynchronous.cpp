// What runs beside the threads: mbarriers, the copy engine's tensor copies, and wgmma.
#include "machine.h"

// ---------------------------------------------------------------- mbarriers
// Address within shared memory of a lane's operand, -1 after a fault.
i64 Machine::shared_offset(Block& b, Warp& W, int lane, u64 address, u32 bytes, i32 ins) {
    if (address >= SHARED_WINDOW && address < SHARED_WINDOW + WINDOW_BYTES) address -= SHARED_WINDOW;
    return shared_ok(b, W, lane, address, bytes, ins) ? (i64)(address - SHARED_ORIGIN) : -1;
}

// The mbarrier that a lane names. Its initialisation is an ordinary write: who uses it must come after.
Mbarrier* Machine::mbarrier_at(Block& b, Warp& W, int lane, u64 address, i32 ins) {
    i64 off = shared_offset(b, W, lane, address, 8, ins);
    if (off < 0) return nullptr;
    auto found = b.mbarriers.find((u32)off);
    if (found == b.mbarriers.end()) {
        fault(b, MBARRIER_MISSING, ins, 32 * W.index + lane, (u64)off + SHARED_ORIGIN, 8);
        return nullptr;
    }
    check_read(b, W, lane, (u32)off, 8, ins);
    return &found->second;
}

void Machine::complete_if_done(Block& b, Mbarrier& M) {
    if (M.pending || M.bytes) return;
    M.phase++;
    M.pending = M.count;
    for (int o = 0; o < b.n_readers; o++) {
        M.done[o] = std::max(M.done[o], M.join[o]);
        M.join[o] = 0;
    }
    for (Warp& W : b.warps)
        for (u32 m = W.held; m; m &= m - 1) {
            int i = __builtin_ctz(m);
            if (W.held_at[i] != &M || (M.phase & 1) == W.held_parity[i]) continue;
            W.held &= ~(1u << i);
            W.waiting &= ~(1u << i);
            W.next_pc = std::min(W.next_pc, W.pc[i]);
            if (W.state == AT_MBARRIER) W.state = RUNS;
        }
}

void Machine::join_clock(Block& b, Warp& W, Mbarrier& M) {
    for (int o = 0; o < b.n_readers; o++) M.join[o] = std::max(M.join[o], W.clock[o]);
}

void Machine::mbarrier_init(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    u64 address[32];
    addresses(W, I, o, exec, address);
    for (u32 m = exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        i64 off = shared_offset(b, W, i, address[i], 8, ins);
        if (off < 0) continue;
        check_write(b, W, i, (u32)off, 8, ins, READY);
        Mbarrier& M = b.mbarriers[(u32)off];
        M = Mbarrier();
        M.count = M.pending = at(W, o[1])[i];
    }
}

void Machine::mbarrier_arrive(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    // o: address, bytes to expect (or none), arrivals (or none for one), where the state goes (or none)
    u64 address[32];
    addresses(W, I, o, exec, address);
    for (u32 m = exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        Mbarrier* M = mbarrier_at(b, W, i, address[i], ins);
        if (!M) continue;
        if (o[3] != NO_OPERAND) at64(W, o[3])[i] = M->phase;
        if (o[1] != NO_OPERAND) M->bytes += at(W, o[1])[i];
        u32 arrivals = o[2] == NO_OPERAND ? 1 : at(W, o[2])[i];
        if (arrivals > M->pending) {
            fault(b, MBARRIER_FULL, ins, 32 * W.index + i, address[i], 8);
            continue;
        }
        join_clock(b, W, *M);
        M->pending -= arrivals;
        complete_if_done(b, *M);
    }
    W.clock[W.index]++;
}

// Lanes whose phase has completed; copies that the barrier waits for are delivered now, not before. The phase
// is given by its parity, or by the state that an arrival answered (ty): the number of phases before it.
u32 Machine::mbarrier_ready(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    u64 address[32];
    addresses(W, I, o, exec, address);
    u32 ready = 0;
    for (u32 m = exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        Mbarrier* M = mbarrier_at(b, W, i, address[i], ins);
        const u32 parity = (I.ty ? (u32)at64(W, o[1])[i] : at(W, o[1])[i]) & 1;
        if (M && (M->phase & 1) == parity) deliver(b, *M);
        if (!M || (M->phase & 1) != parity) {
            ready |= 1u << i;
            if (M)
                for (int w = 0; w < b.n_readers; w++)
                    if (w != W.index) W.clock[w] = std::max(W.clock[w], M->done[w]);
        } else {
            W.held_at[i] = M;
            W.held_parity[i] = parity;
        }
    }
    return ready;
}

// ---------------------------------------------------------------- tensor copies
const TensorMapRec* Machine::tensor_map(Block& b, Warp& W, int lane, u64 address, i32 ins) {
    for (i32 i = 0; i < L.n_maps; i++)
        if (address == PARAM_WINDOW + (u64)L.maps[i].parameter) return &L.maps[i];
    fault(b, TENSOR_MAP_MISSING, ins, 32 * W.index + lane, address, 128);
    return nullptr;
}

static u32 swizzled(u32 address, i32 span) {
    const u32 mask = span == 128 ? 7 : span == 64 ? 3 : span == 32 ? 1 : 0;
    return address ^ (address >> 7 & mask) << 4;
}

static u32 box_bytes(const TensorMapRec& T) {
    u32 bytes = (u32)T.item;
    for (int d = 0; d < T.rank; d++) bytes *= (u32)T.box[d];
    return bytes;
}

// Calls what(offset in the box, global address, bytes) for every row of a box, a piece at a time; a piece
// is 16 bytes or what is left of the row. Address 0: beyond the tensor.
template <class What>
static void for_pieces(const TensorMapRec& T, const i32* at, bool whole_pieces, What what) {
    i64 rows = 1;
    for (int d = 1; d < T.rank; d++) rows *= T.box[d];
    const u32 row_bytes = (u32)(T.box[0] * T.item);
    for (i64 row = 0; row < rows; row++) {
        i64 left = row;
        u64 address = T.address;
        bool inside = true;
        for (int d = 1; d < T.rank; d++) {
            const i64 index = at[d] + left % T.box[d];
            left /= T.box[d];
            inside &= index >= 0 && (u64)index < T.shape[d];
            address += (u64)index * T.stride[d - 1];
        }
        for (u32 piece = 0; piece < row_bytes; piece += 16) {
            const u32 bytes = std::min(16u, row_bytes - piece);
            const i64 first = at[0] + (i64)piece / T.item, count = bytes / T.item;
            const i64 from = std::max<i64>(first, 0), to = std::min<i64>(first + count, (i64)T.shape[0]);
            const u32 skip = (u32)((from - first) * T.item);
            if (!inside || from >= to)
                what((u32)(row * row_bytes) + piece, 0ull, 0u, 0u, bytes);
            else
                what((u32)(row * row_bytes) + piece, address + (u64)(from * T.item), skip,
                     whole_pieces ? bytes - skip : (u32)((to - from) * T.item), bytes);
        }
    }
}

static bool is_waited_for(const Block& b, const Mbarrier& M) {
    for (const Warp& W : b.warps)
        for (u32 m = W.held; m; m &= m - 1)
            if (W.held_at[__builtin_ctz(m)] == &M) return true;
    return false;
}

// Where a tensor map's box lies in shared memory, or -1 after the fault that says why it cannot lie there.
i64 Machine::box_offset(Block& b, Warp& W, const Ins& I, int lane, u64 address, const TensorMapRec& T, i32 ins) {
    if (T.rank != I.vec || address & 127) {
        fault(b, SHARED_MISALIGNED, ins, 32 * W.index + lane, address, 128);
        return -1;
    }
    const i64 off = shared_offset(b, W, lane, address, 16, ins);
    if (off < 0 || shared_offset(b, W, lane, address + box_bytes(T) - 16, 16, ins) < 0) return -1;
    return off;
}

void Machine::tensor_load(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    // o: shared address, tensor map, mbarrier, coordinates (vec of them)
    u64 address[32];
    addresses(W, I, o, exec, address);
    for (u32 m = exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        const TensorMapRec* T = tensor_map(b, W, i, at64(W, o[1])[i], ins);
        Mbarrier* M = mbarrier_at(b, W, i, at(W, o[2])[i], ins);
        if (!T || !M) continue;
        const u32 bytes = box_bytes(*T);
        const i64 off = box_offset(b, W, I, i, address[i], *T, ins);
        if (off < 0) continue;
        check_write(b, W, i, (u32)off, bytes, ins, PENDING);
        for (u32 g = (u32)off >> shift; g <= ((u32)off + bytes - 1) >> shift; g++)
            b.granules[g].fences = FULL;
        TensorCopy copy{T, (u32)off, ins, W.clock[W.index], (u16)(32 * W.index + i), {}};
        for (int d = 0; d < T->rank; d++) copy.at[d] = (i32)at(W, o[3 + d])[i];
        M->copies.push_back(copy);
        join_clock(b, W, *M);
        if (is_waited_for(b, *M)) deliver(b, *M);
    }
    W.clock[W.index]++;
}

// Brings what this barrier waits for.
void Machine::deliver(Block& b, Mbarrier& M) {
    std::vector<TensorCopy> copies;
    copies.swap(M.copies);
    for (const TensorCopy& copy : copies) {
        const TensorMapRec& T = *copy.map;
        Warp& W = b.warps[copy.thread >> 5];
        const u32 bytes = box_bytes(T);
        std::vector<u8> real(bytes / 16 + 1, 0);
        for_pieces(T, copy.at, false, [&](u32 box, u64 from, u32 skip, u32 count, u32 piece) {
            u8 data[16] = {};
            if (count) {
                const u8* source = nullptr;
                if (count == 16 && !(from & 15)) {
                    source = global_at(b, W, copy.thread & 31, from, 16, copy.ins, true, false);
                    if (source) memcpy(data, source, 16);
                } else {
                    for (u32 k = 0; k < count; k += T.item)
                        if ((source =
                                 global_at(b, W, copy.thread & 31, from + k, T.item, copy.ins, true, false)))
                            memcpy(data + skip + k, source, T.item);
                }
                real[box / 16] = 1;
            }
            const u32 to = swizzled(copy.to + SHARED_ORIGIN + box, T.swizzle) - SHARED_ORIGIN;
            memcpy(b.smem.data() + to, data, piece);
        });
        for (u32 g = copy.to >> shift; g <= (copy.to + bytes - 1) >> shift; g++) {
            Granule& G = b.granules[g];
            if (G.state != PENDING || G.wthread != copy.thread) continue;
            G.state = READY;
            G.wclock = copy.clock;
            G.async = 0;
        }
        for (u32 box = 0; box < bytes; box += 16)
            if (real[box / 16]) {
                const u32 to = swizzled(copy.to + SHARED_ORIGIN + box, T.swizzle) - SHARED_ORIGIN;
                for (u32 g = to >> shift; g <= (to + 15) >> shift; g++) b.granules[g].async = 1;
            }
        M.bytes -= bytes;
    }
    if (!copies.empty()) complete_if_done(b, M);
}

// A read by the copy engine or the Tensor Cores on behalf of a warp, noted for ``reader`` at ``clock``. What
// threads wrote, their fences have to have made visible. True where some of it was never written.
bool Machine::check_async_read(Block& b, Warp& W, int lane, u32 off, u32 bytes, i32 ins, int reader,
                               u32 clock) {
    const int thread = 32 * W.index + lane;
    bool blank = false;
    for (u32 g = off >> shift; g <= (off + bytes - 1) >> shift; g++) {
        Granule& G = b.granules[g];
        const u64 where = ((u64)g << shift) + SHARED_ORIGIN;
        if (G.state == PENDING) {
            fault(b, ASYNC_READ_EARLY, ins, thread, where, bytes, G.wins, G.wthread);
        } else if (G.state != READY) {
            blank = init;
            if (G.state == BLANK) note_blank(b, ins, thread, where, bytes);
        }
        if (G.state != PENDING && G.wthread != NOBODY) {
            if (races && !ordered(b, W, thread, G.wthread, G.wclock))
                fault(b, RACE_READ_AFTER_WRITE, ins, thread, where, bytes, G.wins, G.wthread);
            else if (G.fences != FULL && b.warps[G.wthread >> 5].fences[G.wthread & 31] <= G.fences)
                fault(b, ASYNC_UNFENCED, ins, thread, where, bytes, G.wins, G.wthread);
        }
        Reader& R = b.readers[(size_t)g * b.n_readers + reader];
        R = Reader{clock, ins, (u8)lane};
        G.readers |= 1u << reader;
    }
    return blank;
}

void Machine::tensor_store(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    // o: shared address, tensor map, coordinates. Data leave at once; the bytes count as being read until
    // they are waited for.
    u64 address[32];
    addresses(W, I, o, exec, address);
    for (u32 m = exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        const TensorMapRec* T = tensor_map(b, W, i, at64(W, o[1])[i], ins);
        if (!T) continue;
        const u32 bytes = box_bytes(*T);
        const i64 off = box_offset(b, W, I, i, address[i], *T, ins);
        if (off < 0) continue;
        i32 where[5] = {};
        for (int d = 0; d < T->rank; d++) where[d] = (i32)at(W, o[2 + d])[i];
        // The copy engine writes whole pieces, also where a row of the tensor ends within one.
        for_pieces(*T, where, true, [&](u32 box, u64 to, u32 skip, u32 count, u32) {
            if (!count) return;
            const u32 from = swizzled((u32)off + SHARED_ORIGIN + box, T->swizzle) - SHARED_ORIGIN;
            if (check_async_read(b, W, i, from, 16, ins, W.index, W.clock[W.index])) {
                if (!W.tainted) W.taint_ins = ins;
                fault(b, UNINITIALISED_STORED, ins, 32 * W.index + i, to, 0, W.taint_ins, -1);
            }
            for (u32 k = 0; k < count; k += T->item)
                if (u8* target = global_at(b, W, i, to + k, T->item, ins, false, true))
                    memcpy(target, b.smem.data() + from + skip + k, T->item);
        });
        for (u32 g = (u32)off >> shift; g <= ((u32)off + bytes - 1) >> shift; g++) b.granules[g].draining++;
        W.stores.push_back({(u32)off, bytes, ins, W.stores_committed[i], (u8)i});
    }
}

// Ends the draining of stores of these lanes, all but the last ``leave`` groups.
void Machine::stores_read(Block& b, Warp& W, u32 exec, int leave) {
    size_t kept = 0;
    for (size_t k = 0; k < W.stores.size(); k++) {
        const BulkStore s = W.stores[k];
        if (!(exec >> s.lane & 1) || s.group >= W.stores_committed[s.lane] - leave) {
            W.stores[kept++] = s;
            continue;
        }
        for (u32 g = s.from >> shift; g <= (s.from + s.bytes - 1) >> shift; g++) b.granules[g].draining--;
    }
    W.stores.resize(kept);
}

// ---------------------------------------------------------------- wgmma
// Address of eight neighbours along the operand's contiguous axis: row mn, k .. k + 7, or mn .. mn + 7 at k.
static u32 operand_chunk(u64 descriptor, int mn, int k, bool transposed) {
    static const int spans[] = {0, 128, 64, 32};
    const u32 start = (u32)(descriptor & 0x3fff) << 4, leading = (u32)(descriptor >> 16 & 0x3fff) << 4,
              stride = (u32)(descriptor >> 32 & 0x3fff) << 4;
    const int span = spans[descriptor >> 62];
    u32 off;
    if (!transposed)
        off =
            span ? mn / 8 * stride + mn % 8 * span + k * 2 : mn / 8 * stride + k / 8 * leading + mn % 8 * 16;
    else
        off = span ? mn * 2 / span * leading + k / 8 * stride + k % 8 * span + mn * 2 % span
                   : mn / 8 * leading + k / 8 * stride + k % 8 * 16;
    return swizzled(start + off, span);
}

void Machine::wgmma(Block& b, Warp& W, const Ins& I, i32 ins, const i32* o) {
    // o: d[4 vec], descriptor of A, of B, accumulate; vec: N / 8; mod: bit 0 A, bit 1 B is MN-major. Each
    // warp computes its 16 rows; products are exact in double, one rounding for 16 of k.
    const int N = 8 * I.vec, first_row = 16 * (W.index & 3), lane = __builtin_ctz(W.group);
    const i32* operands = o + 4 * I.vec;
    const int reader = b.n_warps + W.index / 4;
    const u64 a_descriptor = at64(W, operands[0])[lane], b_descriptor = at64(W, operands[1])[lane];
    u32 keep = *at(W, operands[2]);
    if (I.flags & NEGATE_P) keep = ~keep;
    std::vector<float> B((size_t)N * 16);
    float A[16][16];
    bool undefined = false;
    const auto eight = [&](u64 descriptor, int mn, int k, bool transposed, float* to, int step) {
        const u32 address = operand_chunk(descriptor, mn, k, transposed);
        float none = flt(NAN32);
        if (!shared_ok(b, W, lane, address, 16, ins)) {
            for (int e = 0; e < 8; e++) to[e * step] = none;
            return;
        }
        const u32 off = address - SHARED_ORIGIN;
        undefined |= check_async_read(b, W, lane, off, 16, ins, reader, (u32)W.products_committed + 1);
        u16 halves[8];
        memcpy(halves, b.smem.data() + off, 16);
        for (int e = 0; e < 8; e++) to[e * step] = half_to_float(halves[e]);
    };
    if (I.mod & 1) {
        for (int k = 0; k < 16; k++)
            for (int r = 0; r < 16; r += 8) eight(a_descriptor, first_row + r, k, true, &A[r][k], 16);
    } else {
        for (int r = 0; r < 16; r++)
            for (int k = 0; k < 16; k += 8) eight(a_descriptor, first_row + r, k, false, &A[r][k], 1);
    }
    if (I.mod & 2) {
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < N; n += 8) eight(b_descriptor, n, k, true, &B[(size_t)n * 16 + k], 16);
    } else {
        for (int n = 0; n < N; n++)
            for (int k = 0; k < 16; k += 8) eight(b_descriptor, n, k, false, &B[(size_t)n * 16 + k], 1);
    }
    for (int v = 0; v < 4 * I.vec; v++) {
        u32* d = at(W, o[v]);
        for (int i = 0; i < 32; i++) {
            const int row = i / 4 + (v & 2 ? 8 : 0), col = v / 4 * 8 + i % 4 * 2 + (v & 1);
            const float* right = &B[(size_t)col * 16];
            double sum = keep >> i & 1 ? flt(d[i]) : 0.0;
            for (int k = 0; k < 16; k++) sum += (double)A[row][k] * right[k];
            d[i] = canon((float)sum);
        }
    }
    if (undefined) begin_taint(W, ins, 0);
    for (int v = 0; W.tainted && v < 4 * I.vec; v++)
        set_taint(W, o[v], undefined ? FULL : taint_of(W, o[v]) & keep, FULL);
}

// Products of a warpgroup are of its four warps together: what one of them waits for, all have issued. False
// where the warp has to wait for that.
bool Machine::wgmma_wait(Block& b, Warp& W, int leave) {
    const i32 groups = W.products_committed - leave;
    const int first = W.index & ~3, reader = b.n_warps + W.index / 4;
    for (int v = first; v < std::min(first + 4, b.n_warps); v++)
        if (b.warps[v].products_committed < groups) return false;
    if (groups > 0) W.clock[reader] = std::max(W.clock[reader], (u32)groups);
    return true;
}
