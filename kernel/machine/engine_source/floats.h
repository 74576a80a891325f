// Bits and floats as NVIDIA's units treat them: canonical NaN, one rounding, the 16-bit formats.
#pragma once

static inline u32 bits(float x) {
    u32 r;
    memcpy(&r, &x, 4);
    return r;
}
static inline u64 bits(double x) {
    u64 r;
    memcpy(&r, &x, 8);
    return r;
}
static inline float flt(u32 x) {
    float r;
    memcpy(&r, &x, 4);
    return r;
}
static inline double dbl(u64 x) {
    double r;
    memcpy(&r, &x, 8);
    return r;
}
static inline u32 canon(float x) {
    return x == x ? bits(x) : NAN32;
}
static inline u64 canon(double x) {
    return x == x ? bits(x) : NAN64;
}
static inline float ftz(float x) {
    u32 b = bits(x);
    return (b & 0x7f800000u) ? x : flt(b & 0x80000000u);
}

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
struct HalfTable {
    float value[65536];
    HalfTable() {
        for (u32 i = 0; i < 65536; i++) value[i] = (float)half_to_double(i);
    }
};
inline const HalfTable half_table;
static inline float half_to_float(u32 h) {
    return half_table.value[h & 0xffff];
}
static inline float bf16_to_float(u32 h) {
    return flt((h & 0xffff) << 16);
}
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
static int fe_mode(int mod) {
    return mod == 1 ? FE_TOWARDZERO : mod == 2 ? FE_DOWNWARD : mod == 3 ? FE_UPWARD : FE_TONEAREST;
}
struct Rounding {
    int old;
    explicit Rounding(int mod) : old(fegetround()) { fesetround(fe_mode(mod)); }
    ~Rounding() { fesetround(old); }
};

static inline u64 mask_of(u8 ty) {
    switch (ty) {
        case U8:
        case S8:
            return 0xff;
        case U16:
        case S16:
        case F16:
        case BF16:
            return 0xffff;
        case U64:
        case S64:
        case F64:
            return ~0ull;
        default:
            return 0xffffffffu;
    }
}
static inline bool is_wide(u8 ty) {
    return ty == U64 || ty == S64 || ty == F64;
}
static inline i64 sign_extend(u64 v, u8 ty) {
    switch (ty) {
        case S8:
            return (int8_t)v;
        case S16:
            return (i16)v;
        case S32:
            return (i32)v;
        case U8:
            return (u8)v;
        case U16:
            return (u16)v;
        case U32:
            return (u32)v;
        default:
            return (i64)v;
    }
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
        case 0:
            r = add_to_odd(x, y);
            break;
        case 1:
            r = add_to_odd(x, -y);
            break;
        case 2:
            r = x * y;
            break;
        case 3:
            r = add_to_odd(x * y, z);
            break;
        case 4:
            r = min_max((float)x, (float)y, false, false);
            break;
        case 5:
            r = min_max((float)x, (float)y, true, false);
            break;
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
