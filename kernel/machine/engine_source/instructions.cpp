// One warp's run through the code, and what every instruction computes.
#include "machine.h"

template <class T>
static u32 compare(const T* a, const T* b, int how) {
    u32 m = 0;
#define CMP(e)                                       \
    for (int i = 0; i < 32; i++) m |= (u32)(e) << i; \
    break;
    switch (how) {
        case 0:
            CMP(a[i] == b[i])
        case 1:
            CMP(a[i] != b[i])
        case 2:
            CMP(a[i] < b[i])
        case 3:
            CMP(a[i] <= b[i])
        case 4:
            CMP(a[i] > b[i])
        case 5:
            CMP(a[i] >= b[i])
        case 6:
            CMP(!(a[i] < b[i]) && !(a[i] > b[i]))  // equ, for floats
        case 7:
            CMP(!(a[i] == b[i]))  // neu
        case 8:
            CMP(!(a[i] >= b[i]))  // ltu
        case 9:
            CMP(!(a[i] > b[i]))  // leu
        case 10:
            CMP(!(a[i] <= b[i]))  // gtu
        case 11:
            CMP(!(a[i] < b[i]))  // geu
        case 12:
            CMP(a[i] == a[i] && b[i] == b[i])  // num
        case 13:
            CMP(a[i] != a[i] || b[i] != b[i])  // nan
    }
#undef CMP
    return m;
}
// A float compare for "not equal" that is ordered: NaN answers false.
template <class T>
static u32 compare_float(const T* a, const T* b, int how) {
    if (how == 1) {
        u32 m = 0;
        for (int i = 0; i < 32; i++) m |= (u32)(a[i] < b[i] || a[i] > b[i]) << i;
        return m;
    }
    return compare(a, b, how);
}

static float float_op(int op, float a, float b, float c, int mod) {
    Rounding keep(mod);
    volatile float x = a, y = b, z = c, r = 0;
    switch (op) {
        case OP_add_f32:
            r = x + y;
            break;
        case OP_sub_f32:
            r = x - y;
            break;
        case OP_mul_f32:
            r = x * y;
            break;
        case OP_fma_f32:
            r = fmaf(x, y, z);
            break;
        case OP_div_f32:
            r = x / y;
            break;
        case OP_sqrt_f32:
            r = sqrtf(x);
            break;
    }
    return r;
}
static double double_op(int op, double a, double b, double c, int mod) {
    Rounding keep(mod);
    volatile double x = a, y = b, z = c, r = 0;
    switch (op) {
        case OP_add_f64:
            r = x + y;
            break;
        case OP_sub_f64:
            r = x - y;
            break;
        case OP_mul_f64:
            r = x * y;
            break;
        case OP_fma_f64:
            r = fma(x, y, z);
            break;
        case OP_div_f64:
            r = x / y;
            break;
        case OP_sqrt_f64:
            r = sqrt(x);
            break;
    }
    return r;
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
        // clang-format off: one instruction a line, as a table
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
      // ---- what runs beside the threads
      case OP_mbarrier_init: mbarrier_init(b, W, I, ins, exec, o); break;
      case OP_mbarrier_arrive: mbarrier_arrive(b, W, I, ins, exec, o); break;
      case OP_mbarrier_wait: {  // o: address, parity, p; mod: 1 answers at once, 0 holds the lanes until it is true
        const u32 ready = mbarrier_ready(b, W, I, ins, exec, o);
        u32* p = at(W, o[2]);
        *p = (*p & ~exec) | ready;
        if (ready == exec) break;
        if (I.mod) {  // a loop that asks again: others run first
          W.at++;
          b.executed += done;
          b.polls++;
          return;
        }
        const u32 held = exec & ~ready;
        for (u32 m = W.group; m; m &= m - 1) { int i = __builtin_ctz(m); W.pc[i] = W.at + !(held >> i & 1); }
        W.held |= held;
        W.waiting |= held;
        W.group = 0;
        if (!choose(W)) { stuck(b, W); b.executed += done; return; }
        continue;
      }
      case OP_tensor_load: tensor_load(b, W, I, ins, exec, o); break;
      case OP_tensor_store: tensor_store(b, W, I, ins, exec, o); break;
      case OP_bulk_commit: for (u32 m = exec; m; m &= m - 1) W.stores_committed[__builtin_ctz(m)]++; break;
      case OP_bulk_wait: stores_read(b, W, exec, (int)I.imm); break;
      case OP_fence_async: for (u32 m = exec; m; m &= m - 1) W.fences[__builtin_ctz(m)]++; break;
      case OP_wgmma:
        if (!gather(W, W.live)) { if (!choose(W)) { stuck(b, W); b.executed += done; return; } continue; }
        wgmma(b, W, I, ins, o);
        exec = W.group;
        break;
      case OP_wgmma_commit:
        W.products_committed++;
        for (int v = W.index & ~3; v < std::min((W.index & ~3) + 4, b.n_warps); v++)
          if (b.warps[v].state == AT_WARPGROUP) b.warps[v].state = RUNS;
        break;
      case OP_wgmma_wait:
        if (!gather(W, W.live)) { if (!choose(W)) { stuck(b, W); b.executed += done; return; } continue; }
        if (!wgmma_wait(b, W, (int)I.imm)) { W.state = AT_WARPGROUP; b.executed += done; return; }
        exec = W.group;
        break;
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
        // clang-format on
        if (__builtin_expect(W.tainted, 0)) propagate(b, W, I, ins, exec, o);
        W.at++;
    }
    b.executed += done;
}

void Machine::convert(Warp& W, const Ins& I, u32 exec, const i32* o) {
    u8 to = I.ty, from = I.ty2;
    bool from_float = from >= F16 && from <= F64 || from == TF32,
         to_float = to >= F16 && to <= F64 || to == TF32;
    for (u32 m = exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        u64 raw = is_wide(from) ? at64(W, o[1])[i] : at(W, o[1])[i] & mask_of(from);
        u64 r = 0;
        if (!from_float && !to_float) {
            i64 v = sign_extend(raw, from);
            if (I.flags & SAT) {
                __int128 w = from == U64 ? (__int128)(u64)v : (__int128)v, low = 0, high = 0;
                bool is_signed = to == S8 || to == S16 || to == S32 || to == S64;
                int n = to == U8 || to == S8     ? 8
                        : to == U16 || to == S16 ? 16
                        : to == U32 || to == S32 ? 32
                                                 : 64;
                high = ((__int128)1 << (is_signed ? n - 1 : n)) - 1;
                low = is_signed ? -((__int128)1 << (n - 1)) : 0;
                v = (i64)(w < low ? low : w > high ? high : w);
            }
            r = (u64)v;
        } else if (!from_float) {
            Rounding keep(I.mod);
            volatile i64 s = sign_extend(raw, from);
            volatile u64 u = raw;
            if (to == F64) {
                volatile double t = from == U64 ? (double)u : (double)s;
                r = bits((double)t);
            } else if (to == F32) {
                volatile float t = from == U64 ? (float)u : (float)s;
                r = bits((float)t);
            } else {
                double t = from == U64 ? (double)u : (double)s;
                r = to == F16 ? half_from_double(t, I.mod == 1) : bf16_from_float((float)t, I.mod == 1);
            }
        } else {
            double x = from == F64    ? dbl(raw)
                       : from == F16  ? half_to_float((u32)raw)
                       : from == BF16 ? bf16_to_float((u32)raw)
                                      : flt((u32)raw);
            if ((I.flags & FTZ) && from == F32) x = ftz((float)x);
            if (I.mod >= 8) {  // rounding to an integer value: rni 8, rzi 9, rmi 10, rpi 11
                double t = I.mod == 8    ? nearbyint(x)
                           : I.mod == 9  ? trunc(x)
                           : I.mod == 10 ? floor(x)
                                         : ceil(x);
                if (to_float) {
                    r = to == F64   ? canon(t)
                        : to == F32 ? canon((float)t)
                        : to == F16 ? half_from_double(t)
                                    : bf16_from_float((float)t);
                } else {
                    bool is_signed = to == S8 || to == S16 || to == S32 || to == S64;
                    int n = to == U8 || to == S8     ? 8
                            : to == U16 || to == S16 ? 16
                            : to == U32 || to == S32 ? 32
                                                     : 64;
                    double low = is_signed ? -ldexp(1.0, n - 1) : 0.0,
                           high = ldexp(1.0, is_signed ? n - 1 : n);
                    if (t != t)
                        r = n == 64 ? 0x8000000000000000ull : 0;
                    else if (t <= low)
                        r = is_signed ? (u64)(-((__int128)1 << (n - 1))) : 0;
                    else if (t >= high)
                        r = (u64)(((unsigned __int128)1 << (is_signed ? n - 1 : n)) - 1);
                    else
                        r = is_signed ? (u64)(i64)t : (u64)t;
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
                if (x != x)
                    v = NAN32;
                else if (std::isfinite(x))
                    v = I.mod == 4 ? v + 0x1000 : I.mod == 1 ? v : v + 0xfff + ((v >> 13) & 1);
                r = x != x ? v : v & ~0x1fffu;
            } else if (to == F16) {
                if (I.flags & SAT) x = x != x ? 0 : x < 0 ? 0 : x > 1 ? 1 : x;
                r = half_from_double(x, I.mod == 1);
            } else {
                r = bf16_from_float((float)x, I.mod == 1);
            }
        }
        if (I.flags & DST_64)
            at64(W, o[0])[i] = is_wide(to) || to == S8 || to == S16 || to == S32 ? r : r & mask_of(to);
        else if (to == S8 || to == S16)
            at(W, o[0])[i] = I.size == 2 ? (u32)sign_extend(r, to) & 0xffff : (u32)sign_extend(r, to);
        else
            at(W, o[0])[i] = (u32)(r & mask_of(to));
    }
}

// What an instruction computes from something undefined is undefined. Loads and stores see to themselves.
void Machine::propagate(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    switch (I.op) {
        case OP_ld:
        case OP_st:
        case OP_atom:
        case OP_cp_async:
        case OP_ldmatrix:
        case OP_stmatrix:
        case OP_mma:
        case OP_wgmma:
        case OP_shfl:
            return;
        case OP_selp:
        case OP_selp64:
        case OP_selp_pred: {
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
    if (t && (I.op == OP_vote || I.op == OP_redux || I.op == OP_match)) t = FULL;
    for (int k = first; k < first + targets; k++) set_taint(W, o[k], t, exec);
}

void Machine::shuffle(Block& b, Warp& W, const Ins& I, i32 ins, u32 exec, const i32* o) {
    if (I.op == OP_vote) {  // o: mask, d, predicate; mod: 0 all, 1 any, 2 uni, 3 ballot
        u32 p = *at(W, o[2]);
        if (I.flags & NEGATE_P) p = ~p;
        u32 member = at(W, o[0])[__builtin_ctz(exec)] & exec;
        p &= member;
        if (I.mod == 3) {
            u32* d = at(W, o[1]);
            LANES(d[i] = p) return;
        }
        bool v = I.mod == 0 ? p == member : I.mod == 1 ? p != 0 : p == 0 || p == member;
        u32* d = at(W, o[1]);
        *d = v ? *d | exec : *d & ~exec;
        return;
    }
    if (I.op == OP_elect) {  // o: mask, d, p
        u32 member = at(W, o[0])[__builtin_ctz(exec)] & exec;
        u32 leader = __builtin_ctz(member ? member : exec);
        if (o[1] != NO_OPERAND) {
            u32* d = at(W, o[1]);
            LANES(d[i] = leader)
        }
        if (o[2] != NO_OPERAND) {
            u32* d = at(W, o[2]);
            *d = (*d & ~exec) | (exec & 1u << leader);
        }
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
        if (I.mod == 0) {
            LANES(d[i] = r[i])
        } else {
            LANES(d[i] = all ? member : 0) if (o[3] != NO_OPERAND) {
                u32* p = at(W, o[3]);
                *p = all ? *p | exec : *p & ~exec;
            }
        }
        return;
    }
    if (I.op == OP_redux) {  // o: mask, d, value; mod: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor
        u32 member = at(W, o[0])[__builtin_ctz(exec)] & exec;
        const u32* a = at(W, o[2]);
        u32 r = 0;
        bool first = true;
        for (u32 m = member; m; m &= m - 1) {
            u32 v = a[__builtin_ctz(m)];
            if (first) {
                r = v;
                first = false;
                continue;
            }
            switch (I.mod) {
                case 0:
                    r += v;
                    break;
                case 1:
                    r = I.ty == S32 ? (u32)std::min((i32)r, (i32)v) : std::min(r, v);
                    break;
                case 2:
                    r = I.ty == S32 ? (u32)std::max((i32)r, (i32)v) : std::max(r, v);
                    break;
                case 3:
                    r &= v;
                    break;
                case 4:
                    r |= v;
                    break;
                case 5:
                    r ^= v;
                    break;
            }
        }
        u32* d = at(W, o[1]);
        LANES(d[i] = r)
        return;
    }
    // shfl. o: mask, d, p, a, b, c; mod: 0 up, 1 down, 2 bfly, 3 idx
    u32 source[32], result[32], from[32], valid = 0;
    memcpy(source, at(W, o[3]), sizeof source);
    const u32 *bs = at(W, o[4]), *cs = at(W, o[5]);
    for (u32 m = exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        int bval = bs[i] & 31, cval = cs[i] & 31, segmask = cs[i] >> 8 & 31;
        int max_lane = (i & segmask) | (cval & ~segmask), min_lane = i & segmask;
        int j = 0;
        bool p = true;
        switch (I.mod) {
            case 0:
                j = i - bval;
                p = j >= max_lane;
                break;
            case 1:
                j = i + bval;
                p = j <= max_lane;
                break;
            case 2:
                j = i ^ bval;
                p = j <= max_lane;
                break;
            case 3:
                j = min_lane | (bval & ~segmask);
                p = j <= max_lane;
                break;
        }
        if (!p) j = i;
        if (!(W.group >> j & 1))
            fault(b, SHUFFLE_INACTIVE, ins, 32 * W.index + i, 0, 0, -1, 32 * W.index + j);
        result[i] = source[j];
        from[i] = j;
        valid |= (u32)p << i;
    }
    if (W.tainted) {
        u32 lanes = 0, before = taint_of(W, o[3]), where = taint_of(W, o[4]);
        for (u32 m = exec; m; m &= m - 1) {
            int i = __builtin_ctz(m);
            lanes |= ((before >> from[i] | where >> i) & 1) << i;
        }
        set_taint(W, o[1], lanes, exec);
        set_taint(W, o[2], where, exec);
    }
    u32* d = at(W, o[1]);
    LANES(d[i] = result[i])
    if (o[2] != NO_OPERAND) {
        u32* p = at(W, o[2]);
        *p = (*p & ~exec) | (valid & exec);
    }
}
