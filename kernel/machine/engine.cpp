// The PTX machine: runs one lowered kernel, thread block after thread block, on one CPU core.
//
// A warp is the unit of execution: every instruction is a loop over 32 lanes under a mask, and every
// lane keeps its own program counter, of which the smallest runs first (lowering puts blocks in an
// order in which that reconverges). Registers lie as [register][lane]. opcodes.inc is written by
// engine.py from the one list that lowering uses.

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
static constexpr u64 SHARED_WINDOW = 0x01000000ull, LOCAL_WINDOW = 0x04000000ull, PARAM_WINDOW = 0x06000000ull;
static constexpr u64 WINDOW_BYTES = 0x01000000ull;
static constexpr u32 SHARED_ORIGIN = 1024;  // what sm_90 reserves; an address of zero stays invalid
static constexpr i32 NO_OPERAND = INT32_MIN;
static constexpr int MAX_WARPS = 32;
static constexpr u16 NOBODY = 0xffff;
static constexpr u8 SEVERAL = 0xff;

enum Type : u8 { U8, S8, U16, S16, U32, S32, U64, S64, F16, BF16, F32, F64, PRED, F16X2, BF16X2, TF32, B128 };
enum Space : u8 { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };
enum Flag : i32 { GUARD_NEGATED = 1, ADDRESS_64 = 2, FTZ = 4, SAT = 8, DST_64 = 16, NEGATE_P = 32, YIELDS = 64, NAN_MODE = 128, ADDRESS_CONST = 256 };
enum Shadow : u8 { ADDRESSABLE = 1, INITIALISED = 2, WRITABLE = 4, WRITTEN = 8 };
enum Kind : i32 {
  GLOBAL_BOUNDS = 1, GLOBAL_MISALIGNED, GLOBAL_UNINITIALISED, GLOBAL_READ_ONLY, SHARED_BOUNDS, SHARED_MISALIGNED,
  SHARED_UNINITIALISED, RACE_READ_AFTER_WRITE, RACE_WRITE_AFTER_READ, RACE_WRITE_AFTER_WRITE, BARRIER_DIVERGENT,
  BARRIER_STUCK, ASYNC_READ_EARLY, ASYNC_OVERWRITTEN, UNSUPPORTED, LOCAL_BOUNDS, TRAP, ENDLESS, WARP_SYNC_STUCK,
  PARAM_BOUNDS, SHUFFLE_INACTIVE, BARRIER_EXITED, UNINITIALISED_STORED, UNINITIALISED_ADDRESS, UNINITIALISED_BRANCH,
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
  u64 warps, lanes;               // executions by warps, active lanes
  u64 requests, passes, ideal;    // shared memory, as the instruction stands
  u64 passes64, ideal64, passes128, ideal128;  // the same lanes, if this were the first of 2 or 4 merged words
  u64 sectors, ideal_sectors;     // global memory
  u32 address_bits, pad;          // OR of all shared addresses: its zeros are the alignment
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
struct LaunchArgs {
  i32 grid[3], block[3];
  i32 static_smem, dynamic_smem, local_bytes, param_bytes, granule;
  u32 checks;
  const u8* params;
  Buf* buffers;
  i32 n_buffers;
  i32 n_blocks;         // blocks to run
  const i64* block_ids;  // linear ids, or null for 0 .. n_blocks - 1
  i64 max_instructions;  // per block, in warp instructions
  i32 keep_going;
  i32 max_trace;
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
  i64 blank_reads;       // shared bytes read before anybody wrote them
  i32 blank_reads_ins;
  i32 blocks_run;
};

// ---------------------------------------------------------------- floating point

static inline u32 bits(float x) { u32 r; memcpy(&r, &x, 4); return r; }
static inline u64 bits(double x) { u64 r; memcpy(&r, &x, 8); return r; }
static inline float flt(u32 x) { float r; memcpy(&r, &x, 4); return r; }
static inline double dbl(u64 x) { double r; memcpy(&r, &x, 8); return r; }
static inline u32 canon(float x) { return x == x ? bits(x) : NAN32; }
static inline u64 canon(double x) { return x == x ? bits(x) : NAN64; }
static inline float ftz(float x) { u32 b = bits(x); return (b & 0x7f800000u) ? x : flt(b & 0x80000000u); }

static u32 half_from_double(double x, bool toward_zero = false) {
  u64 b = bits(x);
  u32 sign = (u32)(b >> 48) & 0x8000u;
  double mag = dbl(b & 0x7fffffffffffffffull);
  if (mag != mag) return 0x7fff;
  if (mag >= 65520.0) return mag == INFINITY || !toward_zero ? sign | 0x7c00 : sign | 0x7bff;
  if (mag >= 65504.0) return sign | 0x7bff;
  int e;
  frexp(mag, &e);
  int quantum = (e - 11 < -24) ? -24 : e - 11;  // exponent of the last mantissa bit
  double scaled = ldexp(mag, -quantum);
  double whole = toward_zero ? trunc(scaled) : nearbyint(scaled);
  double back = ldexp(whole, quantum);
  if (back == 0) return sign;
  frexp(back, &e);
  if (e < -13) return sign | (u32)ldexp(back, 24);
  return sign | (u32)((e + 14) << 10) | ((u32)ldexp(back, 11 - e) & 0x3ffu);
}
static inline double half_to_double(u32 h) {
  int e = (h >> 10) & 31;
  u32 m = h & 0x3ff;
  double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024.0 + m, e - 25) : ldexp((double)m, -24);
  return (h & 0x8000) ? -v : v;
}
static struct HalfTable {
  float value[65536];
  HalfTable() { for (u32 i = 0; i < 65536; i++) value[i] = (float)half_to_double(i); }
} half_table;
static inline float half_to_float(u32 h) { return half_table.value[h & 0xffff]; }
static inline float bf16_to_float(u32 h) { return flt((h & 0xffff) << 16); }
static u32 bf16_from_float(float x, bool toward_zero = false) {
  u32 b = bits(x);
  if (x != x) return 0x7fff;
  if (!toward_zero) b += 0x7fff + ((b >> 16) & 1);
  return b >> 16;
}
// A double that rounds like the exact value: the sum's error goes into its last bit (round to odd).
static double add_to_odd(double p, double c) {
  double s = p + c;
  if (!std::isfinite(s)) return s;
  double bv = s - p, err = (p - (s - bv)) + (c - bv);
  if (err != 0) {
    u64 b = bits(s);
    if (!(b & 1)) {
      bool away = (err > 0) == (s > 0);
      b = away ? b + 1 : b - 1;
      if (s == 0) return err;
      return dbl(b);
    }
  }
  return s;
}
static int fe_mode(int mod) { return mod == 1 ? FE_TOWARDZERO : mod == 2 ? FE_DOWNWARD : mod == 3 ? FE_UPWARD : FE_TONEAREST; }
struct Rounding {
  int old;
  explicit Rounding(int mod) : old(fegetround()) { fesetround(fe_mode(mod)); }
  ~Rounding() { fesetround(old); }
};

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
  u8 state = BLANK, async = 0;
};
enum Wait : u8 { RUNS, AT_BARRIER, DONE };
struct Warp {
  u32* regs;
  int index;
  u32 exists, live, waiting;  // lane masks: there at all, not exited, held at a warp-wide instruction
  i32 pc[32];
  i32 at;        // program counter of the running group
  u32 group;     // its lanes
  i32 next_pc;   // smallest counter among the other lanes that can run
  Wait state;
  int barrier;
  i32 barrier_ins;
  u32 clock[MAX_WARPS];
  u32 carry;
  std::vector<Pending> pending;
  i32 committed[32];
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
  std::vector<u32> regs;
  std::vector<Warp> warps;
  std::vector<u8> smem;
  std::vector<Granule> granules;
  std::vector<Reader> readers;
  Barrier barriers[16];
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
  bool races, init, counting;
  bool halt = false;
  u64 ticks = 0;

  Machine(const Program& p, const LaunchArgs& l, Result& r) : P(p), L(l), out(r) {
    smem_bytes = (u32)(l.static_smem + l.dynamic_smem);
    shift = l.granule == 1 ? 0 : l.granule == 2 ? 1 : 2;
    races = l.checks & CHECK_RACES;
    init = l.checks & CHECK_INIT;
    counting = l.checks & COUNT;
    if (counting) {
      shared_patterns.resize(p.n_code);
      global_patterns.resize(p.n_code);
    }
  }

  void fault(Block& b, Kind kind, i32 ins, int thread, u64 address, int size, i32 other_ins = -1, int other_thread = -1,
             i32 extra = 0) {
    u64 key = ((u64)kind << 32) | (u32)ins;
    auto found = seen.find(key);
    if (found != seen.end()) {
      out.faults[found->second].count++;
      return;
    }
    if (out.n_faults >= out.max_faults) return;
    seen[key] = out.n_faults;
    FaultRec& f = out.faults[out.n_faults++];
    f = FaultRec{kind, ins, thread, other_ins, other_thread, size, {b.id[0], b.id[1], b.id[2]}, extra, address, 1};
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
    b.smem.assign(smem_bytes + 16, 0xff);  // a NaN pattern: what nobody wrote must not look like a number
    size_t n = ((size_t)smem_bytes >> shift) + 4;
    b.granules.assign(n, Granule());
    b.readers.assign(n * b.n_warps, Reader{0, -1, 0});
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
      W.local.assign((size_t)L.local_bytes * 32, 0xff);
      for (int i = 0; i < 32; i++) {
        W.pc[i] = 0;
        int t = 32 * w + i;
        u32 lane = i;
        const u32 values[] = {(u32)(t % L.block[0]), (u32)(t / L.block[0] % L.block[1]), (u32)(t / L.block[0] / L.block[1]),
                              (u32)L.block[0], (u32)L.block[1], (u32)L.block[2],
                              (u32)b.id[0], (u32)b.id[1], (u32)b.id[2],
                              (u32)L.grid[0], (u32)L.grid[1], (u32)L.grid[2],
                              lane, (u32)w, (u32)b.n_warps, 1u << lane, (1u << lane) - 1, (u32)((2ull << lane) - 1),
                              (u32)~((2ull << lane) - 1), ~((1u << lane) - 1), 0u, 132u,
                              (u32)L.dynamic_smem, smem_bytes + SHARED_ORIGIN, 0u, 1u};
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
        fault(b, RACE_READ_AFTER_WRITE, ins, thread, ((u64)g << shift) + SHARED_ORIGIN, bytes, G.wins, G.wthread);
      }
      Reader& R = b.readers[(size_t)g * b.n_warps + W.index];
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
    if (lanes) fault(b, kind, ins, 32 * W.index + __builtin_ctz(lanes), address ? address : W.taint_address, 0, W.taint_ins, -1);
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
          const Reader& R = b.readers[(size_t)g * b.n_warps + o];
          bool fine = o == W.index ? (R.clock < W.clock[o] || R.lane == lane) : W.clock[o] >= R.clock;
          if (!fine) fault(b, RACE_WRITE_AFTER_READ, ins, thread, where, bytes, R.ins, 32 * o + (R.lane == SEVERAL ? 0 : R.lane));
        }
      }
      if (G.async && !G.readers && G.state == READY) note_unread(G);
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
  inline u8* global_at(Block& b, Warp& W, int lane, u64 address, u32 bytes, i32 ins, bool reads, bool writes) {
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
    if (reads && init && !shadow_has(s, bytes, INITIALISED)) fault(b, GLOBAL_UNINITIALISED, ins, thread, address, bytes);
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
          if (n < 8) words[bank][n] = (u32)word;
          else if (overflow_has(address, first, active, m, word, bytes)) continue;
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
  // distance, sectors do not when it moves by whole sectors, and most accesses of an instruction differ by no more.
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
      for (u32 m = mask; m; m &= m - 1) different |= T.delta[__builtin_ctz(m)] ^ ((u32)address[__builtin_ctz(m)] - first);
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
  inline u32* at(Warp& W, i32 o) const { return o >= 0 ? W.regs + o : const_cast<u32*>(P.consts) + (-1 - (i64)o); }
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
      if (W.pc[i] == low) group |= 1u << i;
      else next = std::min(next, W.pc[i]);
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
      fault(b, BARRIER_EXITED, ins, 32 * W.index + __builtin_ctz(lanes), 0, 0, -1, 32 * W.index + __builtin_ctz(gone));
    }
    B.arrived += 32;
    B.popc += __builtin_popcount(predicate & lanes);
    B.count_or |= (predicate & lanes) != 0;
    B.count_and &= (predicate & lanes) == lanes;
    for (int o = 0; o < b.n_warps; o++) B.join[o] = std::max(B.join[o], W.clock[o]);
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
      for (int o = 0; o < b.n_warps; o++)
        if (o != W.index) W.clock[o] = std::max(W.clock[o], B.join[o]);
      W.state = RUNS;
      const Ins& I = P.code[W.barrier_ins];
      const i32* o = P.pool + I.pool;
      if (I.mod == 1) for (u32 l = W.group; l; l &= l - 1) at(W, o[3])[__builtin_ctz(l)] = B.popc;
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
  bool run_block(Block& b, i64 budget);
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

#define LANES(...)                                                    \
  if (exec == FULL) {                                                 \
    _Pragma("GCC ivdep") for (int i = 0; i < 32; i++) { __VA_ARGS__; } \
  } else {                                                            \
    for (u32 m_ = exec; m_; m_ &= m_ - 1) {                           \
      int i = __builtin_ctz(m_);                                      \
      __VA_ARGS__;                                                    \
    }                                                                 \
  }

template <class T> static u32 compare(const T* a, const T* b, int how) {
  u32 m = 0;
#define CMP(e) for (int i = 0; i < 32; i++) m |= (u32)(e) << i; break;
  switch (how) {
    case 0: CMP(a[i] == b[i])
    case 1: CMP(a[i] != b[i])
    case 2: CMP(a[i] < b[i])
    case 3: CMP(a[i] <= b[i])
    case 4: CMP(a[i] > b[i])
    case 5: CMP(a[i] >= b[i])
    case 6: CMP(!(a[i] < b[i]) && !(a[i] > b[i]))    // equ, for floats
    case 7: CMP(!(a[i] == b[i]))                      // neu
    case 8: CMP(!(a[i] >= b[i]))                      // ltu
    case 9: CMP(!(a[i] > b[i]))                       // leu
    case 10: CMP(!(a[i] <= b[i]))                     // gtu
    case 11: CMP(!(a[i] < b[i]))                      // geu
    case 12: CMP(a[i] == a[i] && b[i] == b[i])        // num
    case 13: CMP(a[i] != a[i] || b[i] != b[i])        // nan
  }
#undef CMP
  return m;
}
// A float compare for "not equal" that is ordered: NaN answers false.
template <class T> static u32 compare_float(const T* a, const T* b, int how) {
  if (how == 1) {
    u32 m = 0;
    for (int i = 0; i < 32; i++) m |= (u32)(a[i] < b[i] || a[i] > b[i]) << i;
    return m;
  }
  return compare(a, b, how);
}

static inline u64 mask_of(u8 ty) {
  switch (ty) {
    case U8: case S8: return 0xff;
    case U16: case S16: case F16: case BF16: return 0xffff;
    case U64: case S64: case F64: return ~0ull;
    default: return 0xffffffffu;
  }
}
static inline bool is_wide(u8 ty) { return ty == U64 || ty == S64 || ty == F64; }
static inline i64 sign_extend(u64 v, u8 ty) {
  switch (ty) {
    case S8: return (int8_t)v;
    case S16: return (i16)v;
    case S32: return (i32)v;
    case U8: return (u8)v;
    case U16: return (u16)v;
    case U32: return (u32)v;
    default: return (i64)v;
  }
}

static float float_op(int op, float a, float b, float c, int mod) {
  Rounding keep(mod);
  volatile float x = a, y = b, z = c, r = 0;
  switch (op) {
    case OP_add_f32: r = x + y; break;
    case OP_sub_f32: r = x - y; break;
    case OP_mul_f32: r = x * y; break;
    case OP_fma_f32: r = fmaf(x, y, z); break;
    case OP_div_f32: r = x / y; break;
    case OP_sqrt_f32: r = sqrtf(x); break;
  }
  return r;
}
static double double_op(int op, double a, double b, double c, int mod) {
  Rounding keep(mod);
  volatile double x = a, y = b, z = c, r = 0;
  switch (op) {
    case OP_add_f64: r = x + y; break;
    case OP_sub_f64: r = x - y; break;
    case OP_mul_f64: r = x * y; break;
    case OP_fma_f64: r = fma(x, y, z); break;
    case OP_div_f64: r = x / y; break;
    case OP_sqrt_f64: r = sqrt(x); break;
  }
  return r;
}
static float min_max(float a, float b, bool greater, bool nan_mode) {
  if (a != a || b != b) {
    if (nan_mode || (a != a && b != b)) return flt(NAN32);
    return a != a ? b : a;
  }
  if (a == 0 && b == 0) return greater ? (std::signbit(a) ? b : a) : (std::signbit(a) ? a : b);
  return greater ? (a > b ? a : b) : (a < b ? a : b);
}
static double min_max(double a, double b, bool greater) {
  if (a != a || b != b) return a != a && b != b ? dbl(NAN64) : a != a ? b : a;
  if (a == 0 && b == 0) return greater ? (std::signbit(a) ? b : a) : (std::signbit(a) ? a : b);
  return greater ? (a > b ? a : b) : (a < b ? a : b);
}
// Half and bfloat arithmetic, one rounding. op: 0 add, 1 sub, 2 mul, 3 fma, 4 min, 5 max, 6 neg, 7 abs.
static u32 small_op(int op, u32 a, u32 b, u32 c, bool brain) {
  if (op == 6) return a ^ 0x8000;
  if (op == 7) return a & 0x7fff;
  double x = brain ? bf16_to_float(a) : half_to_float(a), y = brain ? bf16_to_float(b) : half_to_float(b);
  double z = brain ? bf16_to_float(c) : half_to_float(c), r = 0;
  switch (op) {
    case 0: r = add_to_odd(x, y); break;
    case 1: r = add_to_odd(x, -y); break;
    case 2: r = x * y; break;
    case 3: r = add_to_odd(x * y, z); break;
    case 4: r = min_max((float)x, (float)y, false, false); break;
    case 5: r = min_max((float)x, (float)y, true, false); break;
  }
  if (!brain) return half_from_double(r);
  if (r != r) return 0x7fff;
  float f = (float)r;  // towards odd first, so that the second rounding is the only one that counts
  if (std::isfinite(f) && (double)f != r) {
    u32 t = bits(f);
    if (((double)fabsf(f)) > fabs(r)) t--;
    f = flt(t | 1);
  }
  return bf16_from_float(f);
}

void Machine::run_warp(Block& b, Warp& W, i64 budget) {
  if (!W.group && !choose(W)) return stuck(b, W);
  i64 done = 0;
  const Ins* code = P.code;
  while (true) {
    if (__builtin_expect(W.at >= W.next_pc, 0)) {
      settle(W);
      choose(W);
    }
    if (done >= budget) break;
    const i32 ins = W.at;
    const Ins& I = code[ins];
    const i32* o = P.pool + I.pool;
    u32 exec = W.group;
    if (I.guard >= 0) {
      u32 p = *at(W, I.guard);
      exec &= (I.flags & GUARD_NEGATED) ? ~p : p;
    }
    done++;
    if (counting) {
      Count& C = out.counts[ins];
      C.warps++;
      C.lanes += __builtin_popcount(exec);
    }
    if (!exec && I.op != OP_bra && I.op != OP_goto) {
      W.at++;
      continue;
    }
#define D32 u32* d = at(W, o[0])
#define A32 const u32* a = at(W, o[1])
#define B32 const u32* y = at(W, o[2])
#define C32 const u32* z = at(W, o[3])
#define D64 u64* d = at64(W, o[0])
#define A64 const u64* a = at64(W, o[1])
#define B64 const u64* y = at64(W, o[2])
#define C64 const u64* z = at64(W, o[3])
#define BIN32(name, expr) case name: { D32; A32; B32; LANES(d[i] = (u32)(expr)) } break;
#define BIN64(name, expr) case name: { D64; A64; B64; LANES(d[i] = (u64)(expr)) } break;
#define UN32(name, expr) case name: { D32; A32; LANES(d[i] = (u32)(expr)) } break;
#define UN64(name, expr) case name: { D64; A64; LANES(d[i] = (u64)(expr)) } break;
#define TER32(name, expr) case name: { D32; A32; B32; C32; LANES(d[i] = (u32)(expr)) } break;
#define S(x) ((i32)(x))
#define SL(x) ((i64)(x))
    switch (I.op) {
      case OP_nop: break;
      case OP_goto: W.at = I.target; continue;
      case OP_bra: {
        if (W.tainted && I.guard >= 0) report_taint(b, W, UNINITIALISED_BRANCH, ins, taint_of(W, I.guard) & W.group, 0);
        if (exec == W.group) {
          W.at = I.target;
        } else if (!exec) {
          W.at++;
        } else {
          split(W, exec, I.target);
          choose(W);
        }
        continue;
      }
      case OP_brx: {
        u32* index = at(W, o[0]);
        for (u32 m = W.group; m; m &= m - 1) {
          int i = __builtin_ctz(m);
          W.pc[i] = (exec >> i & 1) ? o[1 + std::min<u32>(index[i], I.vec ? I.target - 1 : 0)] : W.at + 1;
        }
        W.group = 0;
        choose(W);
        continue;
      }
      case OP_exit: {
        u32 rest = W.group & ~exec;
        W.at++;
        W.group = rest;
        W.live &= ~exec;
        settle(W);
        if (!choose(W)) {
          if (W.live) stuck(b, W);
          else W.state = DONE;
          b.executed += done;
          return;
        }
        continue;
      }
      case OP_mov: { D32; A32; LANES(d[i] = a[i]) } break;
      case OP_mov64: { D64; A64; LANES(d[i] = a[i]) } break;
      case OP_pack64: { D64; A32; B32; u64 t[32]; for (int i = 0; i < 32; i++) t[i] = (u64)y[i] << 32 | a[i]; LANES(d[i] = t[i]) } break;
      case OP_unpack64: {
        const u64* a = at64(W, o[2]);
        u64 t[32];
        memcpy(t, a, sizeof t);
        if (o[0] != NO_OPERAND) { D32; LANES(d[i] = (u32)t[i]) }
        if (o[1] != NO_OPERAND) { u32* d = at(W, o[1]); LANES(d[i] = (u32)(t[i] >> 32)) }
      } break;
      case OP_pack32: { D32; A32; B32; LANES(d[i] = y[i] << 16 | (a[i] & 0xffff)) } break;
      case OP_unpack32: {
        const u32* a = at(W, o[2]);
        u32 t[32];
        memcpy(t, a, sizeof t);
        if (o[0] != NO_OPERAND) { D32; LANES(d[i] = t[i] & 0xffff) }
        if (o[1] != NO_OPERAND) { u32* d = at(W, o[1]); LANES(d[i] = t[i] >> 16) }
      } break;
      case OP_clock: { D32; u32 t = (u32)(ticks + done); LANES(d[i] = t) } break;
      case OP_clock64: { D64; u64 t = ticks + done; LANES(d[i] = t) } break;
      BIN32(OP_add, a[i] + y[i])
      BIN32(OP_sub, a[i] - y[i])
      BIN32(OP_mul_lo, a[i] * y[i])
      TER32(OP_mad_lo, a[i] * y[i] + z[i])
      BIN64(OP_add64, a[i] + y[i])
      BIN64(OP_sub64, a[i] - y[i])
      BIN64(OP_mul_lo64, a[i] * y[i])
      case OP_mad_lo64: { D64; A64; B64; C64; LANES(d[i] = a[i] * y[i] + z[i]) } break;
      case OP_add_sat: { D32; A32; B32; LANES(i64 t = (i64)S(a[i]) + S(y[i]); d[i] = (u32)(t > INT32_MAX ? INT32_MAX : t < INT32_MIN ? INT32_MIN : t)) } break;
      BIN32(OP_add16, (a[i] + y[i]) & 0xffff)
      BIN32(OP_sub16, (a[i] - y[i]) & 0xffff)
      BIN32(OP_mul_lo16, (a[i] * y[i]) & 0xffff)
      TER32(OP_mad_lo16, (a[i] * y[i] + z[i]) & 0xffff)
      BIN32(OP_mul_hi_u32, (u64)a[i] * y[i] >> 32)
      BIN32(OP_mul_hi_s32, (i64)S(a[i]) * S(y[i]) >> 32)
      TER32(OP_mad_hi_u32, ((u64)a[i] * y[i] >> 32) + z[i])
      TER32(OP_mad_hi_s32, (u32)((i64)S(a[i]) * S(y[i]) >> 32) + z[i])
      BIN64(OP_mul_hi_u64, (unsigned __int128)a[i] * y[i] >> 64)
      BIN64(OP_mul_hi_s64, (__int128)SL(a[i]) * SL(y[i]) >> 64)
      case OP_mul_wide_u32: { D64; A32; B32; u64 t[32]; for (int i = 0; i < 32; i++) t[i] = (u64)a[i] * y[i]; LANES(d[i] = t[i]) } break;
      case OP_mul_wide_s32: { D64; A32; B32; u64 t[32]; for (int i = 0; i < 32; i++) t[i] = (u64)((i64)S(a[i]) * S(y[i])); LANES(d[i] = t[i]) } break;
      case OP_mad_wide_u32: { D64; A32; B32; C64; u64 t[32]; for (int i = 0; i < 32; i++) t[i] = (u64)a[i] * y[i] + z[i]; LANES(d[i] = t[i]) } break;
      case OP_mad_wide_s32: { D64; A32; B32; C64; u64 t[32]; for (int i = 0; i < 32; i++) t[i] = (u64)((i64)S(a[i]) * S(y[i])) + z[i]; LANES(d[i] = t[i]) } break;
      BIN32(OP_mul_wide_u16, (a[i] & 0xffff) * (y[i] & 0xffff))
      BIN32(OP_mul_wide_s16, (i32)(i16)a[i] * (i16)y[i])
      TER32(OP_mad_wide_u16, (a[i] & 0xffff) * (y[i] & 0xffff) + z[i])
      TER32(OP_mad_wide_s16, (u32)((i32)(i16)a[i] * (i16)y[i]) + z[i])
      BIN32(OP_div_u32, y[i] ? a[i] / y[i] : FULL)
      BIN32(OP_div_s32, y[i] ? (u32)((i64)S(a[i]) / S(y[i])) : FULL)
      BIN32(OP_rem_u32, y[i] ? a[i] % y[i] : a[i])
      BIN32(OP_rem_s32, y[i] ? (u32)((i64)S(a[i]) % S(y[i])) : a[i])
      BIN64(OP_div_u64, y[i] ? a[i] / y[i] : ~0ull)
      BIN64(OP_div_s64, y[i] ? (u64)((__int128)SL(a[i]) / SL(y[i])) : ~0ull)
      BIN64(OP_rem_u64, y[i] ? a[i] % y[i] : a[i])
      BIN64(OP_rem_s64, y[i] ? (u64)((__int128)SL(a[i]) % SL(y[i])) : a[i])
      BIN32(OP_div_u16, (y[i] & 0xffff) ? (a[i] & 0xffff) / (y[i] & 0xffff) : 0xffff)
      BIN32(OP_rem_u16, (y[i] & 0xffff) ? (a[i] & 0xffff) % (y[i] & 0xffff) : a[i])
      BIN32(OP_div_s16, ((i16)y[i] ? (i32)(i16)a[i] / (i16)y[i] : -1) & 0xffff)
      BIN32(OP_rem_s16, ((i16)y[i] ? (i32)(i16)a[i] % (i16)y[i] : (i16)a[i]) & 0xffff)
      BIN32(OP_and, a[i] & y[i])
      BIN32(OP_or, a[i] | y[i])
      BIN32(OP_xor, a[i] ^ y[i])
      UN32(OP_not, ~a[i])
      UN32(OP_not16, ~a[i] & 0xffff)
      UN32(OP_cnot, a[i] == 0)
      BIN64(OP_and64, a[i] & y[i])
      BIN64(OP_or64, a[i] | y[i])
      BIN64(OP_xor64, a[i] ^ y[i])
      UN64(OP_not64, ~a[i])
      BIN32(OP_shl, y[i] > 31 ? 0 : a[i] << (y[i] & 31))
      BIN32(OP_shr_u32, y[i] > 31 ? 0 : a[i] >> (y[i] & 31))
      BIN32(OP_shr_s32, S(a[i]) >> (y[i] > 31 ? 31 : y[i]))
      BIN32(OP_shl16, y[i] > 15 ? 0 : (a[i] << y[i]) & 0xffff)
      BIN32(OP_shr_u16, y[i] > 15 ? 0 : (a[i] & 0xffff) >> y[i])
      BIN32(OP_shr_s16, (u32)((i32)(i16)a[i] >> (y[i] > 15 ? 15 : y[i])) & 0xffff)
      case OP_shl64: { D64; A64; B32; LANES(d[i] = y[i] > 63 ? 0 : a[i] << (y[i] & 63)) } break;
      case OP_shr_u64: { D64; A64; B32; LANES(d[i] = y[i] > 63 ? 0 : a[i] >> (y[i] & 63)) } break;
      case OP_shr_s64: { D64; A64; B32; LANES(d[i] = (u64)(SL(a[i]) >> (y[i] > 63 ? 63 : y[i]))) } break;
      case OP_shf_l: { D32; A32; B32; C32; LANES(u32 n = I.mod ? std::min<u32>(z[i], 32) : z[i] & 31; d[i] = (u32)(((u64)y[i] << 32 | a[i]) << n >> 32)) } break;
      case OP_shf_r: { D32; A32; B32; C32; LANES(u32 n = I.mod ? std::min<u32>(z[i], 32) : z[i] & 31; d[i] = (u32)(((u64)y[i] << 32 | a[i]) >> n)) } break;
      BIN32(OP_min_u32, std::min(a[i], y[i]))
      BIN32(OP_max_u32, std::max(a[i], y[i]))
      BIN32(OP_min_s32, std::min(S(a[i]), S(y[i])))
      BIN32(OP_max_s32, std::max(S(a[i]), S(y[i])))
      BIN64(OP_min_u64, std::min(a[i], y[i]))
      BIN64(OP_max_u64, std::max(a[i], y[i]))
      BIN64(OP_min_s64, std::min(SL(a[i]), SL(y[i])))
      BIN64(OP_max_s64, std::max(SL(a[i]), SL(y[i])))
      BIN32(OP_min_u16, std::min(a[i] & 0xffff, y[i] & 0xffff))
      BIN32(OP_max_u16, std::max(a[i] & 0xffff, y[i] & 0xffff))
      BIN32(OP_min_s16, (u32)std::min((i16)a[i], (i16)y[i]) & 0xffff)
      BIN32(OP_max_s16, (u32)std::max((i16)a[i], (i16)y[i]) & 0xffff)
      UN32(OP_abs_s32, S(a[i]) < 0 ? 0u - a[i] : a[i])
      UN32(OP_neg_s32, 0u - a[i])
      UN32(OP_abs_s16, ((i16)a[i] < 0 ? 0u - a[i] : a[i]) & 0xffff)
      UN32(OP_neg_s16, (0u - a[i]) & 0xffff)
      UN64(OP_abs_s64, SL(a[i]) < 0 ? 0ull - a[i] : a[i])
      UN64(OP_neg_s64, 0ull - a[i])
      case OP_popc: { D32; A32; LANES(d[i] = __builtin_popcount(a[i])) } break;
      case OP_popc64: { D32; A64; u32 t[32]; for (int i = 0; i < 32; i++) t[i] = __builtin_popcountll(a[i]); LANES(d[i] = t[i]) } break;
      case OP_clz: { D32; A32; LANES(d[i] = a[i] ? __builtin_clz(a[i]) : 32) } break;
      case OP_clz64: { D32; A64; u32 t[32]; for (int i = 0; i < 32; i++) t[i] = a[i] ? __builtin_clzll(a[i]) : 64; LANES(d[i] = t[i]) } break;
      case OP_bfind_u32: { D32; A32; LANES(d[i] = a[i] ? (I.mod ? __builtin_clz(a[i]) : 31 - __builtin_clz(a[i])) : FULL) } break;
      case OP_bfind_s32: { D32; A32; LANES(u32 v = S(a[i]) < 0 ? ~a[i] : a[i]; d[i] = v ? (I.mod ? __builtin_clz(v) : 31 - __builtin_clz(v)) : FULL) } break;
      case OP_brev: { D32; A32; LANES(u32 v = a[i]; u32 r = 0; for (int k = 0; k < 32; k++) r |= (v >> k & 1) << (31 - k); d[i] = r) } break;
      case OP_bfe_u32: { D32; A32; B32; C32; LANES(u32 p = y[i] & 255; u32 n = z[i] & 255; u64 v = p > 31 ? 0 : (u64)a[i] >> p; d[i] = n > 31 ? (u32)v : (u32)(v & ((1ull << n) - 1))) } break;
      case OP_bfe_s32: { D32; A32; B32; C32; LANES(u32 p = y[i] & 255; u32 n = z[i] & 255; i64 v = (i64)S(a[i]) >> std::min<u32>(p, 63); d[i] = n == 0 ? 0 : n > 31 ? (u32)v : (u32)((i32)((u32)v << (32 - n)) >> (32 - n))) } break;
      case OP_bfi: {
        D32; A32; B32; C32;
        const u32* n4 = at(W, o[4]);
        LANES(u32 p = z[i] & 255; u32 n = n4[i] & 255; u64 mk = p > 31 ? 0 : (((n > 31 ? (1ull << 32) : (1ull << n)) - 1) << p); d[i] = (u32)((y[i] & ~mk) | (((u64)a[i] << std::min<u32>(p, 32)) & mk)))
      } break;
      case OP_prmt: {
        D32; A32; B32; C32;
        LANES(u64 v = (u64)y[i] << 32 | a[i]; u32 sel = z[i]; u32 r = 0;
              if (I.mod) sel = I.mod == 1 ? 0x3210 + 0x1111 * (sel & 3) : I.mod == 2 ? (sel & 3) * 0x1111 : (sel & 1) * 0x2222 + 0x1010;
              for (int k = 0; k < 4; k++) { u32 s = sel >> (4 * k) & 15; u32 v8 = (u32)(v >> (8 * (s & 7))) & 255; if (s & 8) v8 = (v8 & 128) ? 255 : 0; r |= v8 << (8 * k); }
              d[i] = r)
      } break;
      case OP_lop3: {
        D32; A32; B32; C32;
        u32 lut = (u32)I.imm;
        LANES(u32 r = 0; for (int k = 0; k < 8; k++) if (lut >> k & 1) r |= ((k & 4) ? a[i] : ~a[i]) & ((k & 2) ? y[i] : ~y[i]) & ((k & 1) ? z[i] : ~z[i]); d[i] = r)
      } break;
      case OP_dp4a: {
        D32; A32; B32; C32;
        LANES(i32 sum = 0; for (int k = 0; k < 4; k++) { u32 p = a[i] >> (8 * k) & 255; u32 q = y[i] >> (8 * k) & 255; sum += ((I.mod & 1) ? (i32)(int8_t)p : (i32)p) * ((I.mod & 2) ? (i32)(int8_t)q : (i32)q); } d[i] = z[i] + (u32)sum)
      } break;
      // Carry chains: the carry is one bit per lane. mod: 1 reads it, 2 writes it, 4 subtracts.
      case OP_carry: case OP_carry64: {
        for (u32 m = exec; m; m &= m - 1) {
          int i = __builtin_ctz(m);
          bool wide = I.op == OP_carry64;
          u64 x = wide ? at64(W, o[1])[i] : at(W, o[1])[i], v = wide ? at64(W, o[2])[i] : at(W, o[2])[i];
          u64 in = (I.mod & 1) ? (W.carry >> i & 1) : (I.mod & 4) ? 1 : 0;
          if (I.mod & 4) v = wide ? ~v : (u32)~v;
          unsigned __int128 r = (unsigned __int128)x + v + in;
          if (wide) at64(W, o[0])[i] = (u64)r; else at(W, o[0])[i] = (u32)r;
          if (I.mod & 2) W.carry = (W.carry & ~(1u << i)) | ((u32)(r >> (wide ? 64 : 32)) & 1) << i;
        }
      } break;
      case OP_mad_carry: {  // ty2: 0 low half, 1 high half; 32-bit
        for (u32 m = exec; m; m &= m - 1) {
          int i = __builtin_ctz(m);
          u64 p = I.ty == S32 ? (u64)((i64)S(at(W, o[1])[i]) * S(at(W, o[2])[i])) : (u64)at(W, o[1])[i] * at(W, o[2])[i];
          u64 r = (u64)(I.ty2 ? (u32)(p >> 32) : (u32)p) + at(W, o[3])[i] + ((I.mod & 1) ? (W.carry >> i & 1) : 0);
          at(W, o[0])[i] = (u32)r;
          if (I.mod & 2) W.carry = (W.carry & ~(1u << i)) | ((u32)(r >> 32) & 1) << i;
        }
      } break;
      // ---- predicates: one word per warp
      case OP_mov_pred: { u32* d = at(W, o[0]); u32 v = *at(W, o[1]); if (I.flags & NEGATE_P) v = ~v; *d = (*d & ~exec) | (v & exec); } break;
      case OP_and_pred: case OP_or_pred: case OP_xor_pred: {
        u32* d = at(W, o[0]);
        u32 x = *at(W, o[1]), v = *at(W, o[2]);
        u32 r = I.op == OP_and_pred ? x & v : I.op == OP_or_pred ? x | v : x ^ v;
        *d = (*d & ~exec) | (r & exec);
      } break;
      case OP_not_pred: { u32* d = at(W, o[0]); *d = (*d & ~exec) | (~*at(W, o[1]) & exec); } break;
      case OP_setp: {  // o: p, q, a, b, c; ty; mod: compare | boolean << 4
        const u32 *x = at(W, o[2]), *y = at(W, o[3]);
        int how = I.mod & 15;
        u32 r = 0;
        switch (I.ty) {
          case U32: r = compare(x, y, how); break;
          case S32: r = compare((const i32*)x, (const i32*)y, how); break;
          case U64: r = compare((const u64*)x, (const u64*)y, how); break;
          case S64: r = compare((const i64*)x, (const i64*)y, how); break;
          case F64: r = compare_float((const double*)x, (const double*)y, how); break;
          case F32: {
            if (I.flags & FTZ) {
              float f[32], g[32];
              for (int i = 0; i < 32; i++) f[i] = ftz(flt(x[i])), g[i] = ftz(flt(y[i]));
              r = compare_float(f, g, how);
            } else {
              r = compare_float((const float*)x, (const float*)y, how);
            }
          } break;
          case U16: { u32 f[32], g[32]; for (int i = 0; i < 32; i++) f[i] = x[i] & 0xffff, g[i] = y[i] & 0xffff; r = compare(f, g, how); } break;
          case S16: { i32 f[32], g[32]; for (int i = 0; i < 32; i++) f[i] = (i16)x[i], g[i] = (i16)y[i]; r = compare(f, g, how); } break;
          case F16: { float f[32], g[32]; for (int i = 0; i < 32; i++) f[i] = half_to_float(x[i]), g[i] = half_to_float(y[i]); r = compare_float(f, g, how); } break;
          case BF16: { float f[32], g[32]; for (int i = 0; i < 32; i++) f[i] = bf16_to_float(x[i]), g[i] = bf16_to_float(y[i]); r = compare_float(f, g, how); } break;
        }
        u32 q = ~r;
        if (o[4] != NO_OPERAND) {
          u32 c = *at(W, o[4]);
          if (I.flags & NEGATE_P) c = ~c;
          int boolean = I.mod >> 4;
          r = boolean == 1 ? r & c : boolean == 2 ? r | c : r ^ c;
          q = boolean == 1 ? q & c : boolean == 2 ? q | c : q ^ c;
        }
        if (o[0] != NO_OPERAND) { u32* d = at(W, o[0]); *d = (*d & ~exec) | (r & exec); }
        if (o[1] != NO_OPERAND) { u32* d = at(W, o[1]); *d = (*d & ~exec) | (q & exec); }
      } break;
      case OP_selp: { D32; A32; B32; u32 p = *at(W, o[3]); if (I.flags & NEGATE_P) p = ~p; LANES(d[i] = (p >> i & 1) ? a[i] : y[i]) } break;
      case OP_selp64: { D64; A64; B64; u32 p = *at(W, o[3]); if (I.flags & NEGATE_P) p = ~p; LANES(d[i] = (p >> i & 1) ? a[i] : y[i]) } break;
      case OP_selp_pred: { u32* d = at(W, o[0]); u32 p = *at(W, o[3]); if (I.flags & NEGATE_P) p = ~p; u32 r = (*at(W, o[1]) & p) | (*at(W, o[2]) & ~p); *d = (*d & ~exec) | (r & exec); } break;
      case OP_set_mask: { D32; u32 p = *at(W, o[1]); u32 one = (u32)I.imm; LANES(d[i] = (p >> i & 1) ? one : 0) } break;
      case OP_slct_s32: { D32; A32; B32; C32; LANES(d[i] = S(z[i]) >= 0 ? a[i] : y[i]) } break;
      case OP_slct_f32: { D32; A32; B32; C32; LANES(d[i] = flt(z[i]) >= 0 ? a[i] : y[i]) } break;
      // ---- FP32
      case OP_fma_f32: {
        D32; A32; B32; C32;
        if (__builtin_expect(!(I.mod | (I.flags & (FTZ | SAT))), 1)) { LANES(d[i] = canon(__builtin_fmaf(flt(a[i]), flt(y[i]), flt(z[i])))) break; }
        LANES(bool f = I.flags & FTZ; float p = flt(a[i]); float q = flt(y[i]); float s = flt(z[i]); if (f) { p = ftz(p); q = ftz(q); s = ftz(s); }
              float r = float_op(OP_fma_f32, p, q, s, I.mod); if (f) r = ftz(r); d[i] = (I.flags & SAT) ? (r != r ? 0 : bits(r < 0 ? 0.f : r > 1 ? 1.f : r + 0.f)) : canon(r))
      } break;
#define FLOAT2(name, expr)                                                                                            \
  case name: {                                                                                                        \
    D32; A32; B32;                                                                                                    \
    if (!(I.mod | (I.flags & (FTZ | SAT)))) { LANES(d[i] = canon(expr)) break; }                                      \
    LANES(bool f = I.flags & FTZ; float p = flt(a[i]); float q = flt(y[i]); if (f) { p = ftz(p); q = ftz(q); }        \
          float r = float_op(name, p, q, 0, I.mod); if (f) r = ftz(r); d[i] = (I.flags & SAT) ? (r != r ? 0 : bits(r < 0 ? 0.f : r > 1 ? 1.f : r + 0.f)) : canon(r)) \
  } break;
      FLOAT2(OP_add_f32, flt(a[i]) + flt(y[i]))
      FLOAT2(OP_sub_f32, flt(a[i]) - flt(y[i]))
      FLOAT2(OP_mul_f32, flt(a[i]) * flt(y[i]))
      FLOAT2(OP_div_f32, flt(a[i]) / flt(y[i]))
      case OP_sqrt_f32: { D32; A32; LANES(float p = flt(a[i]); if (I.flags & FTZ) p = ftz(p); float r = float_op(OP_sqrt_f32, p, 0, 0, I.mod); if (I.flags & FTZ) r = ftz(r); d[i] = canon(r)) } break;
      case OP_rcp_f32: { D32; A32; LANES(float p = flt(a[i]); if (I.flags & FTZ) p = ftz(p); float r = float_op(OP_div_f32, 1.0f, p, 0, I.mod); if (I.flags & FTZ) r = ftz(r); d[i] = canon(r)) } break;
      case OP_approx_f32: {  // mod: 0 rcp, 1 sqrt, 2 rsqrt, 3 ex2, 4 lg2, 5 sin, 6 cos, 7 tanh
        D32; A32;
        LANES(float p = flt(a[i]); if (I.flags & FTZ) p = ftz(p); double x = p; double r = 0;
              switch (I.mod) { case 0: r = 1 / x; break; case 1: r = sqrt(x); break; case 2: r = 1 / sqrt(x); break; case 3: r = exp2(x); break;
                               case 4: r = log2(x); break; case 5: r = sin(x); break; case 6: r = cos(x); break; case 7: r = tanh(x); break; }
              float s = (float)r; if (I.flags & FTZ) s = ftz(s); d[i] = canon(s))
      } break;
      case OP_min_f32: case OP_max_f32: { D32; A32; B32; LANES(float p = flt(a[i]); float q = flt(y[i]); if (I.flags & FTZ) { p = ftz(p); q = ftz(q); } d[i] = bits(min_max(p, q, I.op == OP_max_f32, I.flags & NAN_MODE))) } break;
      case OP_neg_f32: { D32; A32; LANES(float p = -flt(a[i]); if (I.flags & FTZ) p = ftz(p); d[i] = canon(p)) } break;
      case OP_abs_f32: { D32; A32; LANES(float p = fabsf(flt(a[i])); if (I.flags & FTZ) p = ftz(p); d[i] = canon(p)) } break;
      case OP_copysign_f32: { D32; A32; B32; LANES(d[i] = (a[i] & 0x80000000u) | (y[i] & 0x7fffffffu)) } break;
      case OP_testp_f32: {
        u32 r = 0;
        const u32* a = at(W, o[1]);
        for (int i = 0; i < 32; i++) {
          float x = flt(a[i]);
          bool v = I.mod == 0 ? std::isfinite(x) : I.mod == 1 ? std::isinf(x) : I.mod == 2 ? x == x : I.mod == 3 ? x != x : I.mod == 4 ? std::isnormal(x) : std::fpclassify(x) == FP_SUBNORMAL;
          r |= (u32)v << i;
        }
        u32* d = at(W, o[0]);
        *d = (*d & ~exec) | (r & exec);
      } break;
      // ---- FP64
#define DOUBLE2(name, expr) case name: { D64; A64; B64; if (!I.mod) { LANES(d[i] = canon(expr)) } else { LANES(d[i] = canon(double_op(name, dbl(a[i]), dbl(y[i]), 0, I.mod))) } } break;
      DOUBLE2(OP_add_f64, dbl(a[i]) + dbl(y[i]))
      DOUBLE2(OP_sub_f64, dbl(a[i]) - dbl(y[i]))
      DOUBLE2(OP_mul_f64, dbl(a[i]) * dbl(y[i]))
      DOUBLE2(OP_div_f64, dbl(a[i]) / dbl(y[i]))
      case OP_fma_f64: { D64; A64; B64; C64; LANES(d[i] = canon(double_op(OP_fma_f64, dbl(a[i]), dbl(y[i]), dbl(z[i]), I.mod))) } break;
      case OP_sqrt_f64: { D64; A64; LANES(d[i] = canon(double_op(OP_sqrt_f64, dbl(a[i]), 0, 0, I.mod))) } break;
      case OP_rcp_f64: { D64; A64; LANES(d[i] = canon(double_op(OP_div_f64, 1.0, dbl(a[i]), 0, I.mod))) } break;
      BIN64(OP_min_f64, bits(min_max(dbl(a[i]), dbl(y[i]), false)))
      BIN64(OP_max_f64, bits(min_max(dbl(a[i]), dbl(y[i]), true)))
      UN64(OP_neg_f64, a[i] ^ 0x8000000000000000ull)
      UN64(OP_abs_f64, a[i] & 0x7fffffffffffffffull)
      // ---- 16-bit floats: mod is the operation of small_op, ty says which format and whether two at once
      case OP_small: {
        u32 *d = at(W, o[0]), *x = at(W, o[1]), *y = o[2] == NO_OPERAND ? x : at(W, o[2]), *z = o[3] == NO_OPERAND ? x : at(W, o[3]);
        bool brain = I.ty == BF16 || I.ty == BF16X2, two = I.ty == F16X2 || I.ty == BF16X2;
        LANES(u32 r = small_op(I.mod, x[i] & 0xffff, y[i] & 0xffff, z[i] & 0xffff, brain); if (two) r |= small_op(I.mod, x[i] >> 16, y[i] >> 16, z[i] >> 16, brain) << 16; d[i] = r)
      } break;
      case OP_cvt: convert(W, I, exec, o); break;
      case OP_cvt_pack: {  // d = {a: high, b: low}
        D32; A32; B32;
        bool rz = I.mod == 1, relu = I.flags & SAT;
        LANES(float p = flt(a[i]); float q = flt(y[i]); if (relu) { if (p < 0) p = 0; if (q < 0) q = 0; }
              d[i] = I.ty == BF16X2 ? bf16_from_float(p, rz) << 16 | bf16_from_float(q, rz) : half_from_double(p, rz) << 16 | half_from_double(q, rz))
      } break;
      // ---- memory
      case OP_ld: case OP_st:
        if (I.flags & YIELDS) b.polls++;
        memory(b, W, I, ins, exec, o);
        break;
      case OP_atom: atomic(b, W, I, ins, exec, o); break;
      case OP_cp_async: async_copy(b, W, I, ins, exec, o); break;
      case OP_cp_commit: for (u32 m = exec; m; m &= m - 1) W.committed[__builtin_ctz(m)]++; break;
      case OP_cp_wait: deliver_all(b, W, exec, (int)I.imm, I.mod); break;
      case OP_ldmatrix: case OP_stmatrix:
        if (!gather(W, W.live)) { if (!choose(W)) { stuck(b, W); b.executed += done; return; } continue; }
        matrix_load(b, W, I, ins, W.group, o);
        break;
      case OP_mma:
        if (!gather(W, W.live)) { if (!choose(W)) { stuck(b, W); b.executed += done; return; } continue; }
        matrix_multiply(W, I, o);
        exec = W.group;
        break;
      case OP_poll: b.polls += 16; break;
      // ---- warp-wide
      case OP_warp_sync: case OP_shfl: case OP_vote: case OP_match: case OP_redux: case OP_elect: {
        const u32* member = at(W, o[0]);
        u32 needed = member[__builtin_ctz(exec)];
        if (!gather(W, needed)) { if (!choose(W)) { stuck(b, W); b.executed += done; return; } continue; }
        exec = W.group;
        if (I.guard >= 0) { u32 p = *at(W, I.guard); exec &= (I.flags & GUARD_NEGATED) ? ~p : p; }
        if (I.op == OP_warp_sync) W.clock[W.index]++;
        else shuffle(b, W, I, ins, exec, o);
      } break;
      case OP_activemask: { D32; u32 v = W.group; LANES(d[i] = v) } break;
      case OP_bar: {
        if (!gather(W, W.live)) {
          if (!choose(W)) { stuck(b, W); b.executed += done; return; }
          continue;
        }
        int lane = __builtin_ctz(exec);
        int id = (int)at(W, o[0])[lane], count = o[1] == NO_OPERAND ? 0 : (int)at(W, o[1])[lane];
        u32 predicate = o[2] == NO_OPERAND ? 0 : *at(W, o[2]);
        if (I.flags & NEGATE_P) predicate = ~predicate;
        bool waits = I.mod != 4;
        bool on = arrive(b, W, I, ins, id, count, waits, predicate);
        if (!on) { b.executed += done; return; }
        if (!waits) W.at++;
        continue;
      }
      case OP_trap:
        fault(b, TRAP, ins, 32 * W.index + __builtin_ctz(exec), 0, 0);
        b.stopped = true;
        b.executed += done;
        return;
      case OP_unsupported:
        fault(b, UNSUPPORTED, ins, 32 * W.index + __builtin_ctz(exec), 0, 0);
        b.stopped = true;
        b.executed += done;
        return;
      default:
        fault(b, UNSUPPORTED, ins, 32 * W.index + __builtin_ctz(exec), 0, 0);
        b.stopped = true;
        b.executed += done;
        return;
    }
    if (__builtin_expect(W.tainted, 0)) propagate(b, W, I, ins, exec, o);
    W.at++;
  }
  b.executed += done;
}

void Machine::convert(Warp& W, const Ins& I, u32 exec, const i32* o) {
  u8 to = I.ty, from = I.ty2;
  bool from_float = from >= F16 && from <= F64 || from == TF32, to_float = to >= F16 && to <= F64 || to == TF32;
  for (u32 m = exec; m; m &= m - 1) {
    int i = __builtin_ctz(m);
    u64 raw = is_wide(from) ? at64(W, o[1])[i] : at(W, o[1])[i] & mask_of(from);
    u64 r = 0;
    if (!from_float && !to_float) {
      i64 v = sign_extend(raw, from);
      if (I.flags & SAT) {
        __int128 w = from == U64 ? (__int128)(u64)v : (__int128)v, low = 0, high = 0;
        bool is_signed = to == S8 || to == S16 || to == S32 || to == S64;
        int n = to == U8 || to == S8 ? 8 : to == U16 || to == S16 ? 16 : to == U32 || to == S32 ? 32 : 64;
        high = ((__int128)1 << (is_signed ? n - 1 : n)) - 1;
        low = is_signed ? -((__int128)1 << (n - 1)) : 0;
        v = (i64)(w < low ? low : w > high ? high : w);
      }
      r = (u64)v;
    } else if (!from_float) {
      Rounding keep(I.mod);
      volatile i64 s = sign_extend(raw, from);
      volatile u64 u = raw;
      if (to == F64) { volatile double t = from == U64 ? (double)u : (double)s; r = bits((double)t); }
      else if (to == F32) { volatile float t = from == U64 ? (float)u : (float)s; r = bits((float)t); }
      else { double t = from == U64 ? (double)u : (double)s; r = to == F16 ? half_from_double(t, I.mod == 1) : bf16_from_float((float)t, I.mod == 1); }
    } else {
      double x = from == F64 ? dbl(raw) : from == F16 ? half_to_float((u32)raw) : from == BF16 ? bf16_to_float((u32)raw) : flt((u32)raw);
      if ((I.flags & FTZ) && from == F32) x = ftz((float)x);
      if (I.mod >= 8) {  // rounding to an integer value: rni 8, rzi 9, rmi 10, rpi 11
        double t = I.mod == 8 ? nearbyint(x) : I.mod == 9 ? trunc(x) : I.mod == 10 ? floor(x) : ceil(x);
        if (to_float) {
          r = to == F64 ? canon(t) : to == F32 ? canon((float)t) : to == F16 ? half_from_double(t) : bf16_from_float((float)t);
        } else {
          bool is_signed = to == S8 || to == S16 || to == S32 || to == S64;
          int n = to == U8 || to == S8 ? 8 : to == U16 || to == S16 ? 16 : to == U32 || to == S32 ? 32 : 64;
          double low = is_signed ? -ldexp(1.0, n - 1) : 0.0, high = ldexp(1.0, is_signed ? n - 1 : n);
          if (t != t) r = n == 64 ? 0x8000000000000000ull : 0;
          else if (t <= low) r = is_signed ? (u64)(-((__int128)1 << (n - 1))) : 0;
          else if (t >= high) r = (u64)(((unsigned __int128)1 << (is_signed ? n - 1 : n)) - 1);
          else r = is_signed ? (u64)(i64)t : (u64)t;
        }
      } else if (to == F64) {
        r = canon(x);
      } else if (to == F32) {
        Rounding keep(I.mod);
        volatile double v = x;
        volatile float t = (float)v;
        float f = t;
        if (I.flags & FTZ) f = ftz(f);
        r = (I.flags & SAT) ? (f != f ? 0 : bits(f < 0 ? 0.f : f > 1 ? 1.f : f + 0.f)) : canon(f);
      } else if (to == TF32) {
        u32 v = bits((float)x);
        if (x != x) v = NAN32;
        else if (std::isfinite(x)) v = I.mod == 4 ? v + 0x1000 : I.mod == 1 ? v : v + 0xfff + ((v >> 13) & 1);
        r = x != x ? v : v & ~0x1fffu;
      } else if (to == F16) {
        if (I.flags & SAT) x = x != x ? 0 : x < 0 ? 0 : x > 1 ? 1 : x;
        r = half_from_double(x, I.mod == 1);
      } else {
        r = bf16_from_float((float)x, I.mod == 1);
      }
    }
    if (I.flags & DST_64) at64(W, o[0])[i] = is_wide(to) || to == S8 || to == S16 || to == S32 ? r : r & mask_of(to);
    else if (to == S8 || to == S16) at(W, o[0])[i] = I.size == 2 ? (u32)sign_extend(r, to) & 0xffff : (u32)sign_extend(r, to);
    else at(W, o[0])[i] = (u32)(r & mask_of(to));
  }
}

// Loads and stores of 32-bit words in a stated space: most of what a GEMM does.
template <bool LOAD, bool IN_SHARED>
void Machine::memory_words(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
  u64 address[32];
  addresses(W, I, o, exec, address);
  const u32 vec = I.vec, bytes = 4 * vec;
  u32* reg[8];
  u32 nowhere[32], undefined[8] = {};
  for (u32 k = 0; k < vec; k++) reg[k] = o[1 + k] == NO_OPERAND ? nowhere : at(W, o[1 + k]);
  for (u32 m = exec; m; m &= m - 1) {
    const int i = __builtin_ctz(m);
    const u64 a = address[i];
    u8* memory = nullptr;
    if (IN_SHARED) {
      if (shared_ok(b, W, i, a, bytes, ins)) {
        const u32 off = (u32)a - SHARED_ORIGIN;
        memory = b.smem.data() + off;
        if (!LOAD) {
          check_write(b, W, i, off, bytes, ins, READY);
        } else if (__builtin_expect(check_read(b, W, i, off, bytes, ins), 0)) {
          begin_taint(W, ins, a);
          for (u32 k = 0; k < vec; k++)
            if (!is_defined(b, off + 4 * k, 4)) undefined[k] |= 1u << i;
        }
      }
    } else {
      memory = global_at(b, W, i, a, bytes, ins, LOAD, !LOAD);
    }
    for (u32 k = 0; k < vec; k++) {
      if (LOAD && memory) memcpy(reg[k] + i, memory + 4 * k, 4);
      else if (LOAD) reg[k][i] = FULL;
      else if (memory) memcpy(memory + 4 * k, reg[k] + i, 4);
    }
  }
  if (LOAD && W.tainted)
    for (u32 k = 0; k < vec; k++) set_taint(W, o[1 + k], undefined[k], exec);
  if (IN_SHARED) count_shared(ins, address, exec, bytes, LOAD);
  else count_global(ins, address, exec, bytes);
}

void Machine::memory(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
  if (I.size == 4 && (I.space == SHARED || I.space == GLOBAL) && !(I.flags & DST_64) && !L.max_trace && !W.tainted) {
    if (I.op == OP_ld) return I.space == SHARED ? memory_words<true, true>(b, W, I, ins, exec, o) : memory_words<true, false>(b, W, I, ins, exec, o);
    return I.space == SHARED ? memory_words<false, true>(b, W, I, ins, exec, o) : memory_words<false, false>(b, W, I, ins, exec, o);
  }
  u64 address[32];
  addresses(W, I, o, exec, address);
  const bool load = I.op == OP_ld;
  const u32 size = I.size, vec = I.vec, bytes = size * vec;
  u8 data[32];
  u32 in_shared = 0, in_global = 0, undefined[8] = {};
  if (W.tainted) {
    report_taint(b, W, UNINITIALISED_ADDRESS, ins, taint_of(W, o[0]) & exec, 0);
    if (I.guard >= 0) report_taint(b, W, UNINITIALISED_BRANCH, ins, taint_of(W, I.guard) & W.group, 0);
  }
  for (u32 m = exec; m; m &= m - 1) {
    int i = __builtin_ctz(m);
    int thread = 32 * W.index + i;
    u64 a = address[i];
    u8 space = I.space;
    if (space == GENERIC) {
      if (a >= SHARED_WINDOW && a < SHARED_WINDOW + WINDOW_BYTES) space = SHARED, a -= SHARED_WINDOW;
      else if (a >= LOCAL_WINDOW && a < LOCAL_WINDOW + WINDOW_BYTES) space = LOCAL, a -= LOCAL_WINDOW;
      else if (a >= PARAM_WINDOW && a < PARAM_WINDOW + WINDOW_BYTES) space = PARAM, a -= PARAM_WINDOW;
      else space = GLOBAL;
      address[i] = a;
    }
    u8* at_memory = nullptr;
    if (space == SHARED) {
      in_shared |= 1u << i;
      if (shared_ok(b, W, i, a, bytes, ins)) {
        u32 off = (u32)a - SHARED_ORIGIN;
        if (load) {
          if (__builtin_expect(check_read(b, W, i, off, bytes, ins), 0)) {
            begin_taint(W, ins, a);
            for (u32 k = 0; k < vec; k++)
              if (!is_defined(b, off + k * size, size)) undefined[k] |= 1u << i;
          }
        } else {
          check_write(b, W, i, off, bytes, ins, READY);
          if (W.tainted)
            for (u32 k = 0; k < vec; k++)
              if (taint_of(W, o[1 + k]) >> i & 1)
                for (u32 g = (off + k * size) >> shift; g <= (off + (k + 1) * size - 1) >> shift; g++) b.granules[g].state = UNDEFINED;
        }
        at_memory = b.smem.data() + off;
      }
    } else if (space == GLOBAL) {
      in_global |= 1u << i;
      at_memory = global_at(b, W, i, a, bytes, ins, load, !load);
      if (!load && W.tainted)
        for (u32 k = 0; k < vec; k++) report_taint(b, W, UNINITIALISED_STORED, ins, taint_of(W, o[1 + k]) & 1u << i, a);
    } else if (space == LOCAL) {
      if (a % bytes || a + bytes > (u64)L.local_bytes) fault(b, LOCAL_BOUNDS, ins, thread, a, bytes);
      else at_memory = W.local.data() + (size_t)L.local_bytes * i + a;
    } else {
      if (a % size || a + bytes > (u64)L.param_bytes || !load) fault(b, PARAM_BOUNDS, ins, thread, a, bytes);
      else at_memory = const_cast<u8*>(L.params) + a;
    }
    if (load) {
      if (at_memory) memcpy(data, at_memory, bytes);
      else memset(data, 0xff, bytes);
      for (u32 k = 0; k < vec; k++) {
        if (o[1 + k] == NO_OPERAND) continue;
        u64 v = 0;
        memcpy(&v, data + k * size, size);
        if (I.flags & DST_64) at64(W, o[1 + k])[i] = (u64)sign_extend(v, I.ty);
        else if (I.ty == S8 || I.ty == S16) at(W, o[1 + k])[i] = (u32)sign_extend(v, I.ty) & (I.ty2 ? 0xffffu : FULL);
        else at(W, o[1 + k])[i] = (u32)v;
      }
    } else {
      for (u32 k = 0; k < vec; k++) {
        u64 v = (I.flags & DST_64) ? at64(W, o[1 + k])[i] : at(W, o[1 + k])[i];
        memcpy(data + k * size, &v, size);
      }
      if (at_memory) memcpy(at_memory, data, bytes);
    }
    if (L.max_trace && at_memory && space != PARAM && space != LOCAL) trace(b, W, i, ins, space == SHARED ? a - SHARED_ORIGIN : a, bytes, !load, data);
  }
  if (load && W.tainted)
    for (u32 k = 0; k < vec; k++) set_taint(W, o[1 + k], undefined[k], exec);
  if (in_shared) count_shared(ins, address, in_shared, bytes, load);
  if (in_global) count_global(ins, address, in_global, bytes);
}

// What an instruction computes from something undefined is undefined. Loads and stores see to themselves.
void Machine::propagate(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
  switch (I.op) {
    case OP_ld: case OP_st: case OP_atom: case OP_cp_async: case OP_ldmatrix: case OP_stmatrix: return;
    case OP_selp: case OP_selp64: case OP_selp_pred: {
      u32 p = *at(W, o[3]);
      if (I.flags & NEGATE_P) p = ~p;
      set_taint(W, o[0], (taint_of(W, o[1]) & p) | (taint_of(W, o[2]) & ~p) | taint_of(W, o[3]), exec);
      return;
    }
  }
  const int total = I.flags >> 16 & 255, targets = I.flags >> 24 & 15, first = I.flags >> 28 & 3;
  u32 t = 0;
  for (int k = 0; k < total; k++)
    if (k < first || k >= first + targets) t |= taint_of(W, o[k]);
  if (I.guard >= 0) t |= taint_of(W, I.guard), exec |= taint_of(W, I.guard) & W.group;
  if (t && (I.op == OP_mma || I.op == OP_shfl || I.op == OP_vote || I.op == OP_redux || I.op == OP_match)) t = FULL;
  for (int k = first; k < first + targets; k++) set_taint(W, o[k], t, exec);
}

void Machine::atomic(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
  // o: address, destination (or none), operand, second operand (cas); mod: the operation
  u64 address[32];
  addresses(W, I, o, exec, address);
  u32 in_global = 0, in_shared = 0;
  b.polls++;
  for (u32 m = exec; m; m &= m - 1) {
    int i = __builtin_ctz(m);
    u64 a = address[i];
    u8 space = I.space;
    if (space == GENERIC) {
      if (a >= SHARED_WINDOW && a < SHARED_WINDOW + WINDOW_BYTES) space = SHARED, a -= SHARED_WINDOW;
      else space = GLOBAL;
      address[i] = a;
    }
    u8* p = nullptr;
    if (space == SHARED) {
      in_shared |= 1u << i;
      if (shared_ok(b, W, i, a, I.size, ins)) {
        u32 off = (u32)a - SHARED_ORIGIN;
        p = b.smem.data() + off;
        for (u32 g = off >> shift; g <= (off + I.size - 1) >> shift; g++) {  // atomics order themselves: no race with each other
          Granule& G = b.granules[g];
          bool atomic_before = G.wins >= 0 && P.code[G.wins].op == OP_atom;
          if (G.state == PENDING) fault(b, ASYNC_READ_EARLY, ins, 32 * W.index + i, a, I.size, G.wins, G.wthread);
          else if (G.state == BLANK && init) fault(b, SHARED_UNINITIALISED, ins, 32 * W.index + i, a, I.size);
          else if (races && !atomic_before && !ordered(b, W, 32 * W.index + i, G.wthread, G.wclock))
            fault(b, RACE_WRITE_AFTER_WRITE, ins, 32 * W.index + i, a, I.size, G.wins, G.wthread);
          G.state = READY;
          G.wthread = (u16)(32 * W.index + i);
          G.wclock = W.clock[W.index];
          G.wins = ins;
        }
      }
    } else {
      in_global |= 1u << i;
      p = global_at(b, W, i, a, I.size, ins, true, true);
    }
    if (!p) continue;
    u64 old = 0, now = 0;
    memcpy(&old, p, I.size);
    bool wide = I.size == 8;
    u64 v = wide ? at64(W, o[2])[i] : at(W, o[2])[i];
    u64 swap = o[3] == NO_OPERAND ? 0 : wide ? at64(W, o[3])[i] : at(W, o[3])[i];
    i64 so = sign_extend(old, I.ty), sv = sign_extend(v, I.ty);
    switch (I.mod) {
      case 0:
        if (I.ty == F32) now = canon(flt((u32)old) + flt((u32)v));
        else if (I.ty == F64) now = canon(dbl(old) + dbl(v));
        else if (I.ty == F16X2 || I.ty == BF16X2) now = small_op(0, old & 0xffff, v & 0xffff, 0, I.ty == BF16X2) | small_op(0, old >> 16 & 0xffff, v >> 16 & 0xffff, 0, I.ty == BF16X2) << 16;
        else if (I.ty == F16 || I.ty == BF16) now = small_op(0, old, v & 0xffff, 0, I.ty == BF16);
        else now = old + v;
        break;
      case 1: now = (I.ty == S32 || I.ty == S64) ? (so < sv ? old : v) : std::min(old, v); break;
      case 2: now = (I.ty == S32 || I.ty == S64) ? (so > sv ? old : v) : std::max(old, v); break;
      case 3: now = v; break;
      case 4: now = old == v ? swap : old; break;
      case 5: now = old & v; break;
      case 6: now = old | v; break;
      case 7: now = old ^ v; break;
      case 8: now = old >= v ? 0 : old + 1; break;
      case 9: now = (old == 0 || old > v) ? v : old - 1; break;
    }
    memcpy(p, &now, I.size);
    if (o[1] != NO_OPERAND) { if (wide) at64(W, o[1])[i] = old; else at(W, o[1])[i] = (u32)old; }
  }
  if (in_shared) count_shared(ins, address, in_shared, I.size, false);
  if (in_global) count_global(ins, address, in_global, I.size);
}

void Machine::async_copy(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
  // o: shared address, global address, source size (or none), ignore-source predicate (or none);
  // imm: offset of the first, target: offset of the second, size: bytes copied
  u64 dst[32], src[32];
  addresses(W, I, o, exec, dst);
  const u64* s = o[1] == NO_OPERAND ? nullptr : at64(W, o[1]);
  u32 reads = 0;
  for (u32 m = exec; m; m &= m - 1) {
    int i = __builtin_ctz(m);
    int thread = 32 * W.index + i;
    if (dst[i] >= SHARED_WINDOW && (I.flags & ADDRESS_64)) dst[i] -= SHARED_WINDOW;
    src[i] = (s ? s[i] : 0) + (i64)I.target;
    u32 n = o[2] == NO_OPERAND ? I.size : at(W, o[2])[i];
    if (o[3] != NO_OPERAND && (((*at(W, o[3]) >> i & 1) != 0) != ((I.flags & NEGATE_P) != 0))) n = 0;
    if (n > I.size) n = I.size;
    Pending p{};
    p.thread = (u16)thread;
    p.size = I.size;
    p.ins = ins;
    p.group = W.committed[i];
    if (src[i] & (I.size - 1)) {
      fault(b, GLOBAL_MISALIGNED, ins, thread, src[i], I.size);
      n = 0;
    }
    if (n) {
      reads |= 1u << i;
      p.real = 1;
      const u8* from = nullptr;
      if ((n & (n - 1)) == 0) {
        from = global_at(b, W, i, src[i], n, ins, true, false);
        if (from) memcpy(p.data, from, n);
      } else {
        for (u32 k = 0; k < n; k++)
          if ((from = global_at(b, W, i, src[i] + k, 1, ins, true, false))) p.data[k] = *from;
      }
    }
    if (!shared_ok(b, W, i, dst[i], I.size, ins)) continue;
    p.dst = (u32)dst[i] - SHARED_ORIGIN;
    check_write(b, W, i, p.dst, I.size, ins, PENDING);
    if (L.max_trace) trace(b, W, i, ins, p.dst, I.size, true, p.data);
    W.pending.push_back(p);
  }
  if (counting) {
    count_shared(ins, dst, exec, I.size, false);
    u64 before = out.counts[ins].requests;
    count_global(ins, src, reads, I.size);
    out.counts[ins].requests = before;
  }
}

void Machine::matrix_load(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
  // o: address, registers; vec: matrices; mod: transposed. Lanes 8 j .. 8 j + 7 give the rows of matrix j.
  u64 address[32];
  addresses(W, I, o, exec, address);
  const bool load = I.op == OP_ldmatrix;
  u16 tile[4][8][8];
  u32 blank = 0;  // matrices of which some was never written
  u32 used = I.vec == 4 ? FULL : (1u << (8 * I.vec)) - 1;
  for (int i = 0; i < 32; i++)
    if (I.flags & ADDRESS_64 && address[i] >= SHARED_WINDOW) address[i] -= SHARED_WINDOW;
  if (!load)
    for (int j = 0; j < I.vec; j++)
      for (int i = 0; i < 32; i++) {
        u32 v = at(W, o[1 + j])[i];
        int r = i / 4, c = 2 * (i % 4);
        if (I.mod) tile[j][c][r] = (u16)v, tile[j][c + 1][r] = (u16)(v >> 16);
        else tile[j][r][c] = (u16)v, tile[j][r][c + 1] = (u16)(v >> 16);
      }
  for (u32 m = used & exec; m; m &= m - 1) {
    int i = __builtin_ctz(m);
    memset(load ? tile[i / 8][i % 8] : nullptr, 0xff, load ? 16 : 0);
    if (!shared_ok(b, W, i, address[i], 16, ins)) continue;
    u32 off = (u32)address[i] - SHARED_ORIGIN;
    if (load) {
      if (check_read(b, W, i, off, 16, ins)) {
        begin_taint(W, ins, address[i]);
        blank |= 1u << i / 8;
      }
      memcpy(tile[i / 8][i % 8], b.smem.data() + off, 16);
    } else {
      check_write(b, W, i, off, 16, ins, READY);
      memcpy(b.smem.data() + off, tile[i / 8][i % 8], 16);
    }
    if (L.max_trace) trace(b, W, i, ins, off, 16, !load, (const u8*)tile[i / 8][i % 8]);
  }
  if (load && W.tainted)
    for (int j = 0; j < I.vec; j++) set_taint(W, o[1 + j], blank >> j & 1 ? FULL : 0, FULL);
  if (load)
    for (int j = 0; j < I.vec; j++)
      for (int i = 0; i < 32; i++) {
        int r = i / 4, c = 2 * (i % 4);
        at(W, o[1 + j])[i] = I.mod ? tile[j][c][r] | (u32)tile[j][c + 1][r] << 16 : tile[j][r][c] | (u32)tile[j][r][c + 1] << 16;
      }
  count_shared(ins, address, used & exec, 16, false);
}

void Machine::matrix_multiply(Warp& W, const Ins& I, const i32* o) {
  // m16n8kK, o: d[4], a[..], b[..], c[4]; ty: input format; vec: K. Products are exact in double, one
  // rounding at the end: the hardware's own order and truncation are not published (docs/machine.md).
  const int K = I.vec, per = I.ty == TF32 ? 1 : 2, groups = K / (4 * per);  // groups: k steps of four lanes
  double A[16][16], B[16][8];
  auto value = [&](u32 word, int half) -> double {
    if (I.ty == TF32) return flt(word & ~0x1fffu);
    u32 h = half ? word >> 16 : word & 0xffff;
    return I.ty == F16 ? half_to_float(h) : bf16_to_float(h);
  };
  for (int i = 0; i < 32; i++) {
    int g = i / 4, t = i % 4;
    for (int q = 0; q < groups; q++)
      for (int h = 0; h < per; h++) {
        int k = q * 4 * per + t * per + h;
        A[g][k] = value(at(W, o[4 + 2 * q])[i], h);
        A[g + 8][k] = value(at(W, o[4 + 2 * q + 1])[i], h);
        B[k][g] = value(at(W, o[4 + 2 * groups + q])[i], h);
      }
  }
  const i32* c = o + 4 + 3 * groups;
  u32 result[4][32];
  for (int i = 0; i < 32; i++)
    for (int v = 0; v < 4; v++) {
      int row = i / 4 + (v >= 2 ? 8 : 0), col = 2 * (i % 4) + (v & 1);
      double sum = 0;
      for (int k = 0; k < K; k++) sum += A[row][k] * B[k][col];
      result[v][i] = canon((float)(sum + (double)flt(at(W, c[v])[i])));
    }
  for (int v = 0; v < 4; v++)
    for (int i = 0; i < 32; i++)
      if (W.group >> i & 1) at(W, o[v])[i] = result[v][i];
}

void Machine::shuffle(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
  if (I.op == OP_vote) {  // o: mask, d, predicate; mod: 0 all, 1 any, 2 uni, 3 ballot
    u32 p = *at(W, o[2]);
    if (I.flags & NEGATE_P) p = ~p;
    u32 member = at(W, o[0])[__builtin_ctz(exec)] & exec;
    p &= member;
    if (I.mod == 3) { u32* d = at(W, o[1]); LANES(d[i] = p) return; }
    bool v = I.mod == 0 ? p == member : I.mod == 1 ? p != 0 : p == 0 || p == member;
    u32* d = at(W, o[1]);
    *d = v ? *d | exec : *d & ~exec;
    return;
  }
  if (I.op == OP_elect) {  // o: mask, d, p
    u32 member = at(W, o[0])[__builtin_ctz(exec)] & exec;
    u32 leader = __builtin_ctz(member ? member : exec);
    if (o[1] != NO_OPERAND) { u32* d = at(W, o[1]); LANES(d[i] = leader) }
    if (o[2] != NO_OPERAND) { u32* d = at(W, o[2]); *d = (*d & ~exec) | (exec & 1u << leader); }
    return;
  }
  if (I.op == OP_match) {  // o: mask, d, value, p; mod: 0 any, 1 all
    u32 member = at(W, o[0])[__builtin_ctz(exec)] & exec;
    u32 r[32];
    bool wide = I.size == 8, all = true;
    auto v = [&](int i) { return wide ? at64(W, o[2])[i] : (u64)at(W, o[2])[i]; };
    for (u32 m = exec; m; m &= m - 1) {
      int i = __builtin_ctz(m);
      r[i] = 0;
      for (u32 n = member; n; n &= n - 1) {
        int j = __builtin_ctz(n);
        if (v(i) == v(j)) r[i] |= 1u << j;
      }
      all &= r[i] == member;
    }
    u32* d = at(W, o[1]);
    if (I.mod == 0) { LANES(d[i] = r[i]) }
    else { LANES(d[i] = all ? member : 0) if (o[3] != NO_OPERAND) { u32* p = at(W, o[3]); *p = all ? *p | exec : *p & ~exec; } }
    return;
  }
  if (I.op == OP_redux) {  // o: mask, d, value; mod: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor
    u32 member = at(W, o[0])[__builtin_ctz(exec)] & exec;
    const u32* a = at(W, o[2]);
    u32 r = 0;
    bool first = true;
    for (u32 m = member; m; m &= m - 1) {
      u32 v = a[__builtin_ctz(m)];
      if (first) { r = v; first = false; continue; }
      switch (I.mod) {
        case 0: r += v; break;
        case 1: r = I.ty == S32 ? (u32)std::min((i32)r, (i32)v) : std::min(r, v); break;
        case 2: r = I.ty == S32 ? (u32)std::max((i32)r, (i32)v) : std::max(r, v); break;
        case 3: r &= v; break;
        case 4: r |= v; break;
        case 5: r ^= v; break;
      }
    }
    u32* d = at(W, o[1]);
    LANES(d[i] = r)
    return;
  }
  // shfl. o: mask, d, p, a, b, c; mod: 0 up, 1 down, 2 bfly, 3 idx
  u32 source[32], result[32], valid = 0;
  memcpy(source, at(W, o[3]), sizeof source);
  const u32 *bs = at(W, o[4]), *cs = at(W, o[5]);
  for (u32 m = exec; m; m &= m - 1) {
    int i = __builtin_ctz(m);
    int bval = bs[i] & 31, cval = cs[i] & 31, segmask = cs[i] >> 8 & 31;
    int max_lane = (i & segmask) | (cval & ~segmask), min_lane = i & segmask;
    int j = 0;
    bool p = true;
    switch (I.mod) {
      case 0: j = i - bval; p = j >= max_lane; break;
      case 1: j = i + bval; p = j <= max_lane; break;
      case 2: j = i ^ bval; p = j <= max_lane; break;
      case 3: j = min_lane | (bval & ~segmask); p = j <= max_lane; break;
    }
    if (!p) j = i;
    if (!(W.group >> j & 1)) fault(b, SHUFFLE_INACTIVE, ins, 32 * W.index + i, 0, 0, -1, 32 * W.index + j);
    result[i] = source[j];
    valid |= (u32)p << i;
  }
  u32* d = at(W, o[1]);
  LANES(d[i] = result[i])
  if (o[2] != NO_OPERAND) { u32* p = at(W, o[2]); *p = (*p & ~exec) | (valid & exec); }
}

// Runs a block for about ``budget`` warp instructions; true where it is over.
bool Machine::run_block(Block& b, i64 budget) {
  i64 until = b.executed + budget;
  b.polls = 0;
  while (!b.stopped) {
    bool any = false, all_done = true;
    for (Warp& W : b.warps) {
      if (W.state == RUNS) {
        run_warp(b, W, 50000);
        any = true;
        if (b.stopped) return true;
      }
      if (W.state != DONE) all_done = false;
    }
    if (all_done) return true;
    if (!any) {
      for (Warp& W : b.warps)
        if (W.state == AT_BARRIER) {
          Barrier& B = b.barriers[W.barrier];
          int other = -1;
          i32 other_ins = -1;
          for (Warp& V : b.warps)
            if (!(B.arrivers >> V.index & 1)) {
              other = 32 * V.index;
              other_ins = V.state == AT_BARRIER ? V.barrier_ins : -1;
              break;
            }
          fault(b, BARRIER_STUCK, W.barrier_ins, 32 * W.index, 0, 0, other_ins, other, B.arrived);
          break;
        }
      b.stopped = true;
      return true;
    }
    if (b.executed > L.max_instructions) {
      Warp* W = nullptr;
      for (Warp& V : b.warps) if (V.state == RUNS) W = &V;
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
  ticks += (u64)b.executed;
  if (!b.stopped)
    for (const Granule& G : b.granules)
      if (G.async && !G.readers && G.state == READY) note_unread(G);
}

extern "C" int machine_run(const Program* program, const LaunchArgs* launch, Result* result) {
  if ((launch->block[0] * launch->block[1] * launch->block[2] + 31) / 32 > MAX_WARPS) return 1;
  fesetround(FE_TONEAREST);
  Machine M(*program, *launch, *result);
  const i64 slice = 64000000;  // a block that runs longer, or polls, lets later blocks run too
  std::vector<std::unique_ptr<Block>> live;
  std::unique_ptr<Block> spare;
  i64 next = 0;
  size_t turn = 0;
  int start_faults = result->n_faults;
  while (true) {
    bool may_start = next < launch->n_blocks && live.size() < 512 && (launch->keep_going || result->n_faults == start_faults);
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
    if (live.empty()) break;
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
  const int sizes[] = {sizeof(Ins), sizeof(Buf), sizeof(FaultRec), sizeof(Count), sizeof(Trace), sizeof(Program), sizeof(LaunchArgs), sizeof(Result)};
  return which < 8 ? sizes[which] : 0;
}
