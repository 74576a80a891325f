// The PTX machine: runs one lowered kernel, thread block after thread block, on one CPU core.
//
// A warp is the unit of execution: every instruction is a loop over 32 lanes under a mask, and every
// lane keeps its own program counter, of which the smallest runs first (lowering puts blocks in an
// order in which that reconverges). Registers lie as [register][lane]. opcodes.inc is written by
// engine.py from the one list that lowering uses.
#pragma once

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "opcodes.inc"

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;

static constexpr u32 FULL = 0xffffffffu;
static constexpr u32 NAN32 = 0x7fffffffu;  // what NVIDIA's FP32 units answer for every NaN
static constexpr u64 NAN64 = 0xfff8000000000000ull;
static constexpr u64 SHARED_WINDOW = 0x01000000ull, LOCAL_WINDOW = 0x04000000ull,
                     PARAM_WINDOW = 0x06000000ull;
static constexpr u64 WINDOW_BYTES = 0x01000000ull;
static constexpr u32 SHARED_ORIGIN = 1024;  // what sm_90 reserves; an address of zero stays invalid
static constexpr i32 NO_OPERAND = INT32_MIN;
static constexpr int MAX_WARPS = 32;
static constexpr u16 NOBODY = 0xffff;
static constexpr u8 SEVERAL = 0xff;

enum Type : u8 { U8, S8, U16, S16, U32, S32, U64, S64, F16, BF16, F32, F64, PRED, F16X2, BF16X2, TF32, B128 };
enum Space : u8 { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };
enum Flag : i32 {
    GUARD_NEGATED = 1,
    ADDRESS_64 = 2,
    FTZ = 4,
    SAT = 8,
    DST_64 = 16,
    NEGATE_P = 32,
    YIELDS = 64,
    NAN_MODE = 128
};
enum Shadow : u8 { ADDRESSABLE = 1, INITIALISED = 2, WRITABLE = 4, WRITTEN = 8 };
enum Kind : i32 {
    GLOBAL_BOUNDS = 1,
    GLOBAL_MISALIGNED,
    GLOBAL_UNINITIALISED,
    GLOBAL_READ_ONLY,
    SHARED_BOUNDS,
    SHARED_MISALIGNED,
    SHARED_UNINITIALISED,
    RACE_READ_AFTER_WRITE,
    RACE_WRITE_AFTER_READ,
    RACE_WRITE_AFTER_WRITE,
    BARRIER_DIVERGENT,
    BARRIER_STUCK,
    ASYNC_READ_EARLY,
    ASYNC_OVERWRITTEN,
    UNSUPPORTED,
    LOCAL_BOUNDS,
    TRAP,
    ENDLESS,
    WARP_SYNC_STUCK,
    PARAM_BOUNDS,
    SHUFFLE_INACTIVE,
    BARRIER_EXITED,
    UNINITIALISED_STORED,
    UNINITIALISED_ADDRESS,
    UNINITIALISED_BRANCH,
    MBARRIER_MISSING,
    MBARRIER_STUCK,
    MBARRIER_FULL,
    ASYNC_UNFENCED,
    TENSOR_MAP_MISSING,
    STORE_OVERWRITTEN,
    STORE_NOT_WAITED,
    WARPGROUP_STUCK,
};
enum Check : u32 { CHECK_RACES = 1, CHECK_INIT = 2, COUNT = 4, STRICT_INIT = 8 };

struct Ins {
    u16 op;
    u8 ty, ty2, mod, vec, size, space;
    i32 guard, pool, target, flags;
    i64 imm;
};
struct Buf {
    u64 base, size;
    u8* data;
    u8* shadow;
};
struct FaultRec {
    i32 kind, ins, thread, other_ins, other_thread, size;
    i32 block[3];
    i32 extra;
    u64 address, count;
};
struct Count {
    u64 warps, lanes;             // executions by warps, active lanes
    u64 requests, passes, ideal;  // shared memory, as the instruction stands
    u64 passes64, ideal64, passes128,
        ideal128;                // the same lanes, if this were the first of 2 or 4 merged words
    u64 sectors, ideal_sectors;  // global memory
    u32 address_bits, pad;       // OR of all shared addresses: its zeros are the alignment
};
struct Trace {
    u32 ins;
    u16 block, thread;
    u64 address;
    u32 size, write;
    u32 value[4];
};
struct Program {
    const Ins* code;
    const i32* pool;
    const u32* consts;
    i32 n_code, n_words;  // n_words: 32-bit words of registers per warp
    const i32* special;   // word offset of each special register, or NO_OPERAND
};
struct TensorMapRec {
    i32 parameter;            // its offset among the parameters
    i32 item, rank, swizzle;  // bytes of an element, dimensions, bytes of the swizzle span
    i32 box[5], pad;
    u64 address, shape[5], stride[4];  // strides in bytes, of dimensions 1 and up
};
// Shared with another thread while a launch runs: what it has done, and whether it is to end.
struct Watch {
    i32 stop, pad;
    i64 executed;  // warp instructions, of all blocks
    i64 finished;  // blocks
};
struct LaunchArgs {
    i32 grid[3], block[3];
    i32 static_smem, dynamic_smem, local_bytes, param_bytes, granule;
    u32 checks;
    const u8* params;
    Buf* buffers;
    i32 n_buffers;
    i32 n_blocks;          // blocks to run
    const i64* block_ids;  // linear ids, or null for 0 .. n_blocks - 1
    i64 max_instructions;  // per block, in warp instructions
    i32 keep_going;
    i32 max_trace;
    const TensorMapRec* maps;
    i32 n_maps;
    Watch* watch;
};
struct Result {
    FaultRec* faults;
    i32 max_faults, n_faults;
    Count* counts;
    Trace* trace;
    i64 n_trace;
    i64 instructions;
    i64 unread_async;  // bytes that cp.async brought and nobody read
    i32 unread_async_ins;
    i64 blank_reads;  // shared bytes read before anybody wrote them
    i32 blank_reads_ins;
    i32 blocks_run;
};

#include "floats.h"

// ---------------------------------------------------------------- state

struct Pending {
    u32 dst;
    u16 thread;
    u8 size, real;  // real: brought bytes of memory, not only zeros
    i32 ins, group;
    u8 data[16];
};
struct Reader {
    u32 clock;
    i32 ins;
    u8 lane;
};
// BLANK was never written; UNDEFINED was written with a value that comes from such memory.
enum : u8 { BLANK = 0, READY = 1, PENDING = 2, UNDEFINED = 3 };
struct Granule {
    u32 wclock = 0, readers = 0;
    i32 wins = -1;
    u16 wthread = NOBODY;
    u8 state = BLANK, async = 0, draining = 0;  // draining: stores of the copy engine that read it
    u32 fences = 0;  // that its writer had made for the copy engine and the Tensor Cores; FULL: needs none
};
struct TensorCopy {
    const TensorMapRec* map;
    u32 to;
    i32 ins;
    u32 clock;
    u16 thread;
    i32 at[5];
};
struct BulkStore {
    u32 from, bytes;
    i32 ins, group;
    u8 lane;
};
// A phase completes when no arrival is pending and all bytes that were announced have come.
struct Mbarrier {
    u32 count = 0, pending = 0, phase = 0;
    i64 bytes = 0;
    u32 join[MAX_WARPS] = {},
        done[MAX_WARPS] = {};        // clocks of those who arrived in this phase, in all before
    std::vector<TensorCopy> copies;  // issued, and not yet there
};
enum Wait : u8 { RUNS, AT_BARRIER, AT_MBARRIER, AT_WARPGROUP, DONE };
struct Warp {
    u32* regs;
    int index;
    u32 exists, live, waiting;  // lane masks: there at all, not exited, held at a warp-wide instruction
    i32 pc[32];
    i32 at;       // program counter of the running group
    u32 group;    // its lanes
    i32 next_pc;  // smallest counter among the other lanes that can run
    Wait state;
    int barrier;
    i32 barrier_ins;
    u32 clock[MAX_WARPS];
    u32 carry;
    std::vector<Pending> pending;
    i32 committed[32];
    u32 held;  // lanes that wait for an mbarrier, among those that wait
    const Mbarrier* held_at[32];
    u32 held_parity[32];
    u32 fences[32];
    std::vector<BulkStore> stores;
    i32 stores_committed[32];
    i32 products_committed;  // groups of wgmma
    std::vector<u8> local;
    bool reported_exit;
    // Which lanes of each register hold a value that comes from memory nobody wrote; looked at only once
    // there is one. The first read that brought one in is kept for the message.
    bool tainted;
    std::vector<u32> taint;
    i32 taint_ins;
    u64 taint_address;
};
struct Barrier {
    int arrived = 0, expected = 0;
    u32 join[MAX_WARPS] = {};
    u32 waiting = 0, arrivers = 0;
    i32 ins = -1;
    u32 count_or = 0, count_and = 1, popc = 0;
};

struct Machine;
struct Block {
    i32 id[3];
    i64 linear;
    int n_warps, n_threads;
    // Who reads shared memory: the warps, then each warpgroup's Tensor Cores, whose clock is the number of
    // groups of products that have been waited for.
    int n_readers;
    std::vector<u32> regs;
    std::vector<Warp> warps;
    std::vector<u8> smem;
    std::vector<Granule> granules;
    std::vector<Reader> readers;
    Barrier barriers[16];
    std::unordered_map<u32, Mbarrier> mbarriers;  // by shared offset
    i64 executed = 0;
    int polls = 0;
    bool finished = false, stopped = false;
};

struct Machine {
    const Program& P;
    const LaunchArgs& L;
    Result& out;
    std::unordered_map<u64, int> seen;
    u32 smem_bytes;
    int shift;  // log2 of the bytes of a granule
    bool races, init, counting, has_wgmma = false;
    bool halt = false;
    u64 ticks = 0;

    Machine(const Program& p, const LaunchArgs& l, Result& r) : P(p), L(l), out(r) {
        smem_bytes = (u32)(l.static_smem + l.dynamic_smem);
        shift = l.granule == 1 ? 0 : l.granule == 2 ? 1 : 2;
        races = l.checks & CHECK_RACES;
        init = l.checks & CHECK_INIT;
        counting = l.checks & COUNT;
        for (i32 i = 0; i < p.n_code; i++) has_wgmma |= p.code[i].op == OP_wgmma;
        if (counting) {
            shared_patterns.resize(p.n_code);
            global_patterns.resize(p.n_code);
        }
    }

    void fault(Block& b, Kind kind, i32 ins, int thread, u64 address, int size, i32 other_ins = -1,
               int other_thread = -1, i32 extra = 0) {
        u64 key = ((u64)kind << 32) | (u32)ins;
        auto found = seen.find(key);
        if (found != seen.end()) {
            out.faults[found->second].count++;
            return;
        }
        if (out.n_faults >= out.max_faults) return;
        seen[key] = out.n_faults;
        FaultRec& f = out.faults[out.n_faults++];
        f = FaultRec{kind,  ins,     thread, other_ins, other_thread, size, {b.id[0], b.id[1], b.id[2]},
                     extra, address, 1};
    }

    // ------------------------------------------------------------ set-up of a block
    void start(Block& b, i64 linear) {
        b.linear = linear;
        b.id[0] = (i32)(linear % L.grid[0]);
        b.id[1] = (i32)(linear / L.grid[0] % L.grid[1]);
        b.id[2] = (i32)(linear / L.grid[0] / L.grid[1]);
        b.n_threads = L.block[0] * L.block[1] * L.block[2];
        b.n_warps = (b.n_threads + 31) / 32;
        b.regs.assign((size_t)P.n_words * b.n_warps, 0);
        b.warps.resize(b.n_warps);
        b.n_readers = b.n_warps + (has_wgmma ? (b.n_warps + 3) / 4 : 0);
        b.smem.assign(smem_bytes + 16, 0xff);  // a NaN pattern: what nobody wrote must not look like a number
        size_t n = ((size_t)smem_bytes >> shift) + 4;
        b.granules.assign(n, Granule());
        b.readers.assign(n * b.n_readers, Reader{0, -1, 0});
        b.mbarriers.clear();
        for (int w = 0; w < b.n_warps; w++) {
            Warp& W = b.warps[w];
            W.regs = b.regs.data() + (size_t)P.n_words * w;
            W.index = w;
            int lanes = b.n_threads - 32 * w;
            W.exists = W.live = W.group = lanes >= 32 ? FULL : (1u << lanes) - 1;
            W.waiting = 0;
            W.at = 0;
            W.next_pc = INT32_MAX;
            W.state = RUNS;
            W.carry = 0;
            W.reported_exit = false;
            W.tainted = false;
            W.taint.clear();
            memset(W.clock, 0, sizeof W.clock);
            W.clock[w] = 1;
            memset(W.committed, 0, sizeof W.committed);
            W.held = 0;
            memset(W.fences, 0, sizeof W.fences);
            W.stores.clear();
            memset(W.stores_committed, 0, sizeof W.stores_committed);
            W.products_committed = 0;
            W.local.assign((size_t)L.local_bytes * 32, 0xff);
            for (int i = 0; i < 32; i++) {
                W.pc[i] = 0;
                int t = 32 * w + i;
                u32 lane = i;
                const u32 values[] = {(u32)(t % L.block[0]),
                                      (u32)(t / L.block[0] % L.block[1]),
                                      (u32)(t / L.block[0] / L.block[1]),
                                      (u32)L.block[0],
                                      (u32)L.block[1],
                                      (u32)L.block[2],
                                      (u32)b.id[0],
                                      (u32)b.id[1],
                                      (u32)b.id[2],
                                      (u32)L.grid[0],
                                      (u32)L.grid[1],
                                      (u32)L.grid[2],
                                      lane,
                                      (u32)w,
                                      (u32)b.n_warps,
                                      1u << lane,
                                      (1u << lane) - 1,
                                      (u32)((2ull << lane) - 1),
                                      (u32) ~((2ull << lane) - 1),
                                      ~((1u << lane) - 1),
                                      0u,
                                      132u,
                                      (u32)L.dynamic_smem,
                                      smem_bytes + SHARED_ORIGIN,
                                      0u,
                                      1u};
                static_assert(sizeof values / 4 == N_SPECIAL, "opcodes.inc lists as many special registers");
                for (int s = 0; s < N_SPECIAL; s++)
                    if (P.special[s] != NO_OPERAND) W.regs[P.special[s] + i] = values[s];
            }
        }
    }

    // ------------------------------------------------------------ shared memory and its order
    inline bool ordered(const Block& b, const Warp& W, int thread, u16 other, u32 clock) const {
        if (other == NOBODY || other == thread) return true;
        int o = other >> 5;
        return o == W.index ? clock < W.clock[o] : W.clock[o] >= clock;
    }
    // Checks and notes a read; true where some of it was never written.
    inline bool check_read(Block& b, Warp& W, int lane, u32 off, u32 bytes, i32 ins) {
        int thread = 32 * W.index + lane;
        bool blank = false;
        for (u32 g = off >> shift; g <= (off + bytes - 1) >> shift; g++) {
            Granule& G = b.granules[g];
            if (__builtin_expect(G.state != READY, 0)) {
                u64 where = ((u64)g << shift) + SHARED_ORIGIN;
                if (G.state == PENDING) {
                    fault(b, ASYNC_READ_EARLY, ins, thread, where, bytes, G.wins, G.wthread);
                } else {
                    blank = init;
                    if (G.state == BLANK) note_blank(b, ins, thread, where, bytes);
                }
            }
            if (G.state != PENDING && races && !ordered(b, W, thread, G.wthread, G.wclock)) {
                fault(b, RACE_READ_AFTER_WRITE, ins, thread, ((u64)g << shift) + SHARED_ORIGIN, bytes, G.wins,
                      G.wthread);
            }
            Reader& R = b.readers[(size_t)g * b.n_readers + W.index];
            u32 now = W.clock[W.index];
            if (R.clock == now && (G.readers >> W.index & 1)) {
                if (R.lane != lane) R.lane = SEVERAL;
            } else {
                R = Reader{now, ins, (u8)lane};
            }
            G.readers |= 1u << W.index;
        }
        return blank;
    }
    void note_blank(Block& b, i32 ins, int thread, u64 where, u32 bytes) {
        if (!init) return;
        if (L.checks & STRICT_INIT) fault(b, SHARED_UNINITIALISED, ins, thread, where, bytes);
        out.blank_reads += 1 << shift;
        if (out.blank_reads_ins < 0) out.blank_reads_ins = ins;
    }
    bool is_defined(const Block& b, u32 off, u32 bytes) const {
        for (u32 g = off >> shift; g <= (off + bytes - 1) >> shift; g++)
            if (b.granules[g].state == BLANK || b.granules[g].state == UNDEFINED) return false;
        return true;
    }
    void begin_taint(Warp& W, i32 ins, u64 address) {
        if (W.tainted) return;
        W.tainted = true;
        W.taint.assign(P.n_words, 0);
        W.taint_ins = ins;
        W.taint_address = address;
    }
    // Lanes of an operand that hold something undefined.
    inline u32 taint_of(const Warp& W, i32 o) const { return W.tainted && o >= 0 ? W.taint[o] : 0; }
    inline void set_taint(Warp& W, i32 o, u32 lanes, u32 exec) {
        if (W.tainted && o >= 0) W.taint[o] = (W.taint[o] & ~exec) | (lanes & exec);
    }
    void report_taint(Block& b, Warp& W, Kind kind, i32 ins, u32 lanes, u64 address) {
        if (lanes)
            fault(b, kind, ins, 32 * W.index + __builtin_ctz(lanes), address ? address : W.taint_address, 0,
                  W.taint_ins, -1);
    }
    void propagate(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    inline void check_write(Block& b, Warp& W, int lane, u32 off, u32 bytes, i32 ins, u8 state) {
        int thread = 32 * W.index + lane;
        for (u32 g = off >> shift; g <= (off + bytes - 1) >> shift; g++) {
            Granule& G = b.granules[g];
            u64 where = ((u64)g << shift) + SHARED_ORIGIN;
            if (G.state == PENDING) {
                fault(b, ASYNC_OVERWRITTEN, ins, thread, where, bytes, G.wins, G.wthread);
            } else if (races) {
                if (!ordered(b, W, thread, G.wthread, G.wclock))
                    fault(b, RACE_WRITE_AFTER_WRITE, ins, thread, where, bytes, G.wins, G.wthread);
                for (u32 m = G.readers; m; m &= m - 1) {
                    int o = __builtin_ctz(m);
                    const Reader& R = b.readers[(size_t)g * b.n_readers + o];
                    bool fine =
                        o == W.index ? (R.clock < W.clock[o] || R.lane == lane) : W.clock[o] >= R.clock;
                    if (!fine)
                        fault(b, RACE_WRITE_AFTER_READ, ins, thread, where, bytes, R.ins,
                              o < b.n_warps ? 32 * o + (R.lane == SEVERAL ? 0 : R.lane)
                                            : 128 * (o - b.n_warps));
                }
            }
            if (G.async && !G.readers && G.state == READY) note_unread(G);
            if (__builtin_expect(G.draining, 0)) fault(b, STORE_OVERWRITTEN, ins, thread, where, bytes);
            G.fences = W.fences[lane];
            G.readers = 0;
            G.wthread = (u16)thread;
            G.wclock = W.clock[W.index];
            G.wins = ins;
            G.state = state;
            G.async = 0;
        }
    }
    void note_unread(const Granule& G) {
        out.unread_async += 1 << shift;
        if (out.unread_async_ins < 0) out.unread_async_ins = G.wins;
    }
    // True where the access can be made; reports and answers false otherwise.
    inline bool shared_ok(Block& b, Warp& W, int lane, u64 address, u32 bytes, i32 ins) {
        int thread = 32 * W.index + lane;
        if (address & (bytes - 1)) {
            fault(b, SHARED_MISALIGNED, ins, thread, address, bytes);
            return false;
        }
        if (address < SHARED_ORIGIN || address - SHARED_ORIGIN + bytes > smem_bytes) {
            fault(b, SHARED_BOUNDS, ins, thread, address, bytes);
            return false;
        }
        return true;
    }

    // ------------------------------------------------------------ global memory
    int last_buffer = 0;
    inline Buf* find_buffer(u64 address, u32 bytes) {
        Buf* B = &L.buffers[last_buffer];
        if (L.n_buffers && address >= B->base && address - B->base + bytes <= B->size) return B;
        for (int i = 0; i < L.n_buffers; i++) {
            B = &L.buffers[i];
            if (address >= B->base && address - B->base + bytes <= B->size) {
                last_buffer = i;
                return B;
            }
        }
        return nullptr;
    }
    inline bool shadow_has(const u8* s, u32 bytes, u8 need) {
        if (bytes == 4) {
            u32 v, n = need * 0x01010101u;
            memcpy(&v, s, 4);
            return (v & n) == n;
        }
        for (u32 i = 0; i < bytes; i++)
            if ((s[i] & need) != need) return false;
        return true;
    }
    inline u8* global_at(Block& b, Warp& W, int lane, u64 address, u32 bytes, i32 ins, bool reads,
                         bool writes) {
        int thread = 32 * W.index + lane;
        if (address & (bytes - 1)) {
            fault(b, GLOBAL_MISALIGNED, ins, thread, address, bytes);
            return nullptr;
        }
        Buf* B = find_buffer(address, bytes);
        if (!B) {
            fault(b, GLOBAL_BOUNDS, ins, thread, address, bytes, -1, -1, writes);
            return nullptr;
        }
        u8* s = B->shadow + (address - B->base);
        if (!shadow_has(s, bytes, ADDRESSABLE)) {
            fault(b, GLOBAL_BOUNDS, ins, thread, address, bytes, -1, -1, writes);
            return nullptr;
        }
        if (reads && init && !shadow_has(s, bytes, INITIALISED))
            fault(b, GLOBAL_UNINITIALISED, ins, thread, address, bytes);
        if (writes) {
            if (!shadow_has(s, bytes, WRITABLE)) {
                fault(b, GLOBAL_READ_ONLY, ins, thread, address, bytes);
                return nullptr;
            }
            for (u32 i = 0; i < bytes; i++) s[i] |= INITIALISED | WRITTEN;
        }
        return B->data + (address - B->base);
    }

    // ------------------------------------------------------------ counting
    // Passes of one warp access: 4-byte accesses in one phase, 8-byte in halves, 16-byte in quarters; for
    // loads, phases merge in pairs where lanes i and i^1 (or i and i^2) read the same bytes throughout.
    static void bank_passes(const u64* address, u32 mask, u32 bytes, bool load, u64& passes, u64& ideal) {
        u32 phase_lanes = bytes >= 16 ? 8 : bytes == 8 ? 16 : 32;
        if (load && phase_lanes < 32) {
            for (int step = 1; step <= 2; step++) {
                bool same = true;
                for (int i = 0; i < 32 && same; i++) {
                    int j = i ^ step;
                    if ((mask >> i & 1) && (mask >> j & 1) && address[i] != address[j]) same = false;
                }
                if (same) {
                    phase_lanes *= 2;
                    break;
                }
            }
        }
        u64 total = 0, phases = 0;
        for (u32 first = 0; first < 32; first += phase_lanes) {
            u32 active = mask >> first & (phase_lanes == 32 ? FULL : (1u << phase_lanes) - 1);
            if (!active) continue;
            phases++;
            u32 words[32][8], many[32] = {};
            u32 worst = 0;
            for (u32 m = active; m; m &= m - 1) {
                u64 a = address[first + __builtin_ctz(m)];
                for (u64 word = a >> 2; word <= (a + bytes - 1) >> 2; word++) {
                    u32 bank = word & 31, k = 0, n = many[bank];
                    u32 stored = n < 8 ? n : 8;
                    while (k < stored && words[bank][k] != (u32)word) k++;
                    if (k < stored) continue;
                    if (n < 8)
                        words[bank][n] = (u32)word;
                    else if (overflow_has(address, first, active, m, word, bytes))
                        continue;
                    many[bank] = n + 1;
                    if (n + 1 > worst) worst = n + 1;
                }
            }
            total += worst;
        }
        passes += total;
        ideal += phases;
    }
    // Beyond eight distinct words in a bank: whether an earlier lane of the phase touches this word.
    static bool overflow_has(const u64* address, u32 first, u32 active, u32 rest, u64 word, u32 bytes) {
        for (u32 m = active & ~rest; m; m &= m - 1) {
            u64 a = address[first + __builtin_ctz(m)];
            if (word >= a >> 2 && word <= (a + bytes - 1) >> 2) return true;
        }
        return false;
    }
    // What an instruction's last access came to. Passes do not change when every address moves by the same
    // distance, sectors do not when it moves by whole sectors, and most accesses of an instruction differ by
    // no more.
    struct Pattern {
        u32 mask = 0, low = 0;
        u32 delta[32];
        u64 passes, ideal, passes64, ideal64, passes128, ideal128, sectors;
    };
    std::vector<Pattern> shared_patterns, global_patterns;
    static bool same_pattern(const Pattern& T, const u64* address, u32 mask, u32 first) {
        if (T.mask != mask) return false;
        u32 different = 0;
        if (mask == FULL) {
            for (int i = 0; i < 32; i++) different |= T.delta[i] ^ ((u32)address[i] - first);
        } else {
            for (u32 m = mask; m; m &= m - 1)
                different |= T.delta[__builtin_ctz(m)] ^ ((u32)address[__builtin_ctz(m)] - first);
        }
        return !different;
    }
    static void keep_pattern(Pattern& T, const u64* address, u32 mask, u32 first) {
        T.mask = mask;
        for (int i = 0; i < 32; i++) T.delta[i] = (u32)address[i] - first;
    }
    void count_shared(i32 ins, const u64* address, u32 mask, u32 bytes, bool load) {
        if (!counting || !mask) return;
        Count& C = out.counts[ins];
        Pattern& T = shared_patterns[ins];
        u32 first = (u32)address[__builtin_ctz(mask)];
        if (!same_pattern(T, address, mask, first)) {
            keep_pattern(T, address, mask, first);
            T.passes = T.ideal = T.passes64 = T.ideal64 = T.passes128 = T.ideal128 = 0;
            bank_passes(address, mask, bytes, load, T.passes, T.ideal);
            if (bytes == 4) bank_passes(address, mask, 8, load, T.passes64, T.ideal64);
            if (bytes <= 8) bank_passes(address, mask, 16, load, T.passes128, T.ideal128);
            T.low = 0;
            for (u32 m = mask; m; m &= m - 1) T.low |= (u32)address[__builtin_ctz(m)] - first;
        }
        C.requests++;
        C.passes += T.passes;
        C.ideal += T.ideal;
        C.passes64 += T.passes64;
        C.ideal64 += T.ideal64;
        C.passes128 += T.passes128;
        C.ideal128 += T.ideal128;
        C.address_bits |= T.low | first;  // all aligned exactly where the first is and all distances are
    }
    void count_global(i32 ins, const u64* address, u32 mask, u32 bytes) {
        if (!counting || !mask) return;
        Count& C = out.counts[ins];
        C.requests++;
        Pattern& T = global_patterns[ins];
        u64 first = address[__builtin_ctz(mask)];
        if (T.low == (first & 31) && same_pattern(T, address, mask, (u32)first)) {
            C.sectors += T.sectors;
            C.ideal_sectors += ((u32)__builtin_popcount(mask) * bytes + 31) / 32;
            return;
        }
        u64 sectors[64];
        u32 n = 0, lanes = 0;
        u64 previous = ~0ull;
        for (u32 m = mask; m; m &= m - 1, lanes++) {
            u64 a = address[__builtin_ctz(m)];
            for (u64 s = a >> 5; s <= (a + bytes - 1) >> 5; s++) {
                if (s == previous) continue;
                previous = s;
                u32 k = 0;
                while (k < n && sectors[k] != s) k++;
                if (k == n && n < 64) sectors[n++] = s;
            }
        }
        keep_pattern(T, address, mask, (u32)first);
        T.low = first & 31;
        T.sectors = n;
        C.sectors += n;
        C.ideal_sectors += (lanes * bytes + 31) / 32;
    }
    void trace(Block& b, Warp& W, int lane, i32 ins, u64 address, u32 size, bool write, const u8* data) {
        if (out.n_trace >= L.max_trace) {
            out.n_trace++;
            return;
        }
        Trace& T = out.trace[out.n_trace++];
        T = Trace{(u32)ins, (u16)b.linear, (u16)(32 * W.index + lane), address, size, write, {0, 0, 0, 0}};
        memcpy(T.value, data, size < 16 ? size : 16);
    }

    // ------------------------------------------------------------ execution of one warp
    inline u32* at(Warp& W, i32 o) const {
        return o >= 0 ? W.regs + o : const_cast<u32*>(P.consts) + (-1 - (i64)o);
    }
    inline u64* at64(Warp& W, i32 o) const { return reinterpret_cast<u64*>(at(W, o)); }

    void split(Warp& W, u32 taken, i32 target) {
        for (u32 m = W.group; m; m &= m - 1) {
            int i = __builtin_ctz(m);
            W.pc[i] = (taken >> i & 1) ? target : W.at + 1;
        }
        W.group = 0;
    }
    // Puts the running group's counter back into its lanes.
    void settle(Warp& W) {
        for (u32 m = W.group; m; m &= m - 1) W.pc[__builtin_ctz(m)] = W.at;
        W.group = 0;
    }
    // Chooses the lanes with the smallest counter; false where no lane can run.
    bool choose(Warp& W) {
        u32 ready = W.live & ~W.waiting;
        if (!ready) return false;
        i32 low = INT32_MAX;
        for (u32 m = ready; m; m &= m - 1) low = std::min(low, W.pc[__builtin_ctz(m)]);
        u32 group = 0;
        i32 next = INT32_MAX;
        for (u32 m = ready; m; m &= m - 1) {
            int i = __builtin_ctz(m);
            if (W.pc[i] == low)
                group |= 1u << i;
            else
                next = std::min(next, W.pc[i]);
        }
        W.at = low;
        W.group = group;
        W.next_pc = next;
        return true;
    }
    // Holds the group at a warp-wide instruction until every lane of ``needed`` is there.
    bool gather(Warp& W, u32 needed) {
        for (u32 m = W.waiting; m; m &= m - 1) {
            int i = __builtin_ctz(m);
            if (W.pc[i] == W.at) {
                W.waiting &= ~(1u << i);
                W.group |= 1u << i;
            }
        }
        if (((needed & W.live) & ~W.group) == 0) return true;
        u32 group = W.group;
        settle(W);
        W.waiting |= group;
        return false;
    }
    // Nothing in the warp can run: it is over, or its lanes wait for each other in different places.
    void stuck(Block& b, Warp& W) {
        if (!W.live) {
            W.state = DONE;
            return;
        }
        if (W.held) {
            W.state = AT_MBARRIER;
            return;
        }
        int first = __builtin_ctz(W.live);
        i32 ins = W.pc[first];
        int other = -1;
        for (u32 m = W.live; m; m &= m - 1)
            if (W.pc[__builtin_ctz(m)] != ins) other = __builtin_ctz(m);
        bool barrier = P.code[ins].op == OP_bar;
        if (!barrier && other >= 0 && P.code[W.pc[other]].op == OP_bar) {
            std::swap(first, other);
            ins = W.pc[first];
            barrier = true;
        }
        fault(b, barrier ? BARRIER_DIVERGENT : WARP_SYNC_STUCK, ins, 32 * W.index + first, 0, 0,
              other >= 0 ? W.pc[other] : -1, other >= 0 ? 32 * W.index + other : -1);
        b.stopped = true;
    }
    bool arrive(Block& b, Warp& W, const Ins& I, i32 ins, int id, int count, bool waits, u32 predicate) {
        Barrier& B = b.barriers[id & 15];
        if (!B.arrived) {
            B = Barrier();
            B.ins = ins;
        }
        B.expected = count ? count : 32 * b.n_warps;
        u32 lanes = W.group;
        if (!count && lanes != W.exists && !W.reported_exit) {
            W.reported_exit = true;
            u32 gone = W.exists & ~lanes;
            fault(b, BARRIER_EXITED, ins, 32 * W.index + __builtin_ctz(lanes), 0, 0, -1,
                  32 * W.index + __builtin_ctz(gone));
        }
        B.arrived += 32;
        B.popc += __builtin_popcount(predicate & lanes);
        B.count_or |= (predicate & lanes) != 0;
        B.count_and &= (predicate & lanes) == lanes;
        for (int o = 0; o < b.n_readers; o++) B.join[o] = std::max(B.join[o], W.clock[o]);
        B.arrivers |= 1u << W.index;
        W.clock[W.index]++;
        if (waits) {
            W.state = AT_BARRIER;
            W.barrier = id & 15;
            W.barrier_ins = ins;
            B.waiting |= 1u << W.index;
        }
        if (B.arrived >= B.expected) release(b, B);
        return !waits || W.state == RUNS;
    }
    void release(Block& b, Barrier& B) {
        for (u32 m = B.waiting; m; m &= m - 1) {
            Warp& W = b.warps[__builtin_ctz(m)];
            for (int o = 0; o < b.n_readers; o++)
                if (o != W.index) W.clock[o] = std::max(W.clock[o], B.join[o]);
            W.state = RUNS;
            const Ins& I = P.code[W.barrier_ins];
            const i32* o = P.pool + I.pool;
            if (I.mod == 1)
                for (u32 l = W.group; l; l &= l - 1) at(W, o[3])[__builtin_ctz(l)] = B.popc;
            if (I.mod == 2) *at(W, o[3]) = B.count_and ? FULL : 0;
            if (I.mod == 3) *at(W, o[3]) = B.count_or ? FULL : 0;
            W.at++;
        }
        B.arrived = 0;
        B.waiting = 0;
    }
    void finish_copy(Block& b, Warp& W, const Pending& p) {
        memcpy(b.smem.data() + p.dst, p.data, p.size);
        for (u32 g = p.dst >> shift; g <= (p.dst + p.size - 1) >> shift; g++) {
            Granule& G = b.granules[g];
            if (G.state == PENDING && G.wthread == p.thread) {
                G.state = READY;
                G.wclock = W.clock[W.index];
                G.async = p.real;
            }
        }
    }
    void deliver_all(Block& b, Warp& W, u32 exec, int leave, bool uncommitted_too) {
        if (W.pending.empty()) return;
        size_t kept = 0;
        for (size_t i = 0; i < W.pending.size(); i++) {
            Pending& p = W.pending[i];
            int lane = p.thread & 31;
            i32 below = uncommitted_too ? INT32_MAX : W.committed[lane] - leave;
            if (!(exec >> lane & 1) || p.group >= below) {
                if (kept != i) W.pending[kept] = p;
                kept++;
                continue;
            }
            finish_copy(b, W, p);
        }
        W.pending.resize(kept);
    }

    void run_warp(Block& b, Warp& W, i64 budget);
    void memory(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    template <bool LOAD, bool IN_SHARED>
    void memory_words(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    void atomic(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    void async_copy(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    void matrix_load(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    void matrix_multiply(Warp& W, const Ins& I, const i32* o);
    void convert(Warp& W, const Ins& I, u32 exec, const i32* o);
    void shuffle(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    i64 shared_offset(Block& b, Warp& W, int lane, u64 address, u32 bytes, i32 ins);
    Mbarrier* mbarrier_at(Block& b, Warp& W, int lane, u64 address, i32 ins);
    void complete_if_done(Block& b, Mbarrier& M);
    void join_clock(Block& b, Warp& W, Mbarrier& M);
    void mbarrier_init(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    void mbarrier_arrive(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    u32 mbarrier_ready(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    const TensorMapRec* tensor_map(Block& b, Warp& W, int lane, u64 address, i32 ins);
    i64 box_offset(Block& b, Warp& W, const Ins& I, int lane, u64 address, const TensorMapRec& T, i32 ins);
    void tensor_load(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    void deliver(Block& b, Mbarrier& M);
    bool check_async_read(Block& b, Warp& W, int lane, u32 off, u32 bytes, i32 ins, int reader, u32 clock);
    void tensor_store(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o);
    void stores_read(Block& b, Warp& W, u32 exec, int leave);
    void wgmma(Block& b, Warp& W, const Ins& I, i32 ins, const i32* o);
    bool wgmma_wait(Block& b, Warp& W, int leave);
    bool told_to_stop() const;
    bool run_block(Block& b, i64 budget);
    bool release_for_the_gone(Block& b);
    void report_stuck(Block& b);
    void finish(Block& b);
    void addresses(Warp& W, const Ins& I, const i32* o, u32 exec, u64* address) {
        if (o[0] == NO_OPERAND) {
            for (int i = 0; i < 32; i++) address[i] = (u64)I.imm;
        } else if (I.flags & ADDRESS_64) {
            const u64* a = at64(W, o[0]);
            for (int i = 0; i < 32; i++) address[i] = a[i] + (u64)I.imm;
        } else {
            const u32* a = at(W, o[0]);
            for (int i = 0; i < 32; i++) address[i] = (u32)(a[i] + (u32)I.imm);
        }
    }
};

// clang-format off
#define LANES(...)                                                    \
  if (exec == FULL) {                                                 \
    _Pragma("GCC ivdep") for (int i = 0; i < 32; i++) { __VA_ARGS__; } \
  } else {                                                            \
    for (u32 m_ = exec; m_; m_ &= m_ - 1) {                           \
      int i = __builtin_ctz(m_);                                      \
      __VA_ARGS__;                                                    \
    }                                                                 \
  }

// clang-format on
