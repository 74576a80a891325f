"""Single PTX instructions on the machine against NumPy and exact arithmetic, to the bit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from kernel.errors import MachineFault, MissingToolError
from kernel.machine import Buffer, Shape, run
from kernel.toolchain import find

try:
    find("g++")
except MissingToolError as error:
    pytest.skip(str(error), allow_module_level=True)

THREADS = 256
GENERATOR = np.random.default_rng(7)
SPECIAL32 = np.array(
    [
        *(0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000),  # zeros, denormals, the smallest normal number
        *(0x3F800000, 0xBF800000, 0x33800000, 0x34000000, 0x4B800000, 0x4B7FFFFF),  # one, and where ulps change
        *(0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001),  # largest, Inf, NaN
    ],
    np.uint32,
)


def kernel(body: str, inputs: int, wide: bool = False, wide_out: bool = False, registers: str = "") -> str:
    """An entry that loads ``inputs`` words a thread into %x, %y, %z, runs ``body`` and stores %d."""
    kind, size = ("b64", 8) if wide else ("b32", 4)
    out_kind, out_size = ("b64", 8) if wide_out else ("b32", 4)
    loads = "".join(
        f"ld.param.u64 %p, [test_param_{i}]; mad.wide.u32 %p, %t, {size}, %p; ld.global.{kind} %{name}, [%p];\n"
        for i, name in zip(range(inputs), "xyz", strict=False)
    )
    parameters = ", ".join(f".param .u64 test_param_{i}" for i in range(inputs + 1))
    return f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry test({parameters})
{{
  .reg .b64 %p; .reg .b32 %t; .reg .{kind} %x, %y, %z; .reg .{out_kind} %d;
  .reg .pred %q, %q1; .reg .b16 %h, %h1, %h2; .reg .b32 %u, %u1; .reg .b64 %w;
  {registers}
  mov.u32 %t, %tid.x;
  {loads}
  {body}
  ld.param.u64 %p, [test_param_{inputs}]; mad.wide.u32 %p, %t, {out_size}, %p; st.global.{out_kind} [%p], %d;
  ret;
}}
"""


def execute(body: str, *inputs: np.ndarray, dtype=np.uint32, out=np.uint32, **options) -> np.ndarray:
    """Run ``body`` on arrays of THREADS words, which are repeated or cut to length."""
    arrays = [np.resize(np.asarray(values).astype(dtype, copy=False), THREADS) for values in inputs]
    wide, wide_out = np.dtype(dtype).itemsize == 8, np.dtype(out).itemsize == 8
    buffers = [Buffer.from_array(f"in{i}", values, writable=False) for i, values in enumerate(arrays)]
    target = Buffer.from_array("out", np.zeros(THREADS, out), initialised=False)
    text = kernel(body, len(arrays), wide=wide, wide_out=wide_out, **options)
    report = run(text, "test", Shape(grid=(1, 1, 1), block=(THREADS, 1, 1)), [*buffers, target])
    assert report.faults == []
    return target.array(out)


def words(count: int = THREADS) -> np.ndarray:
    """Random bits, with the corners of every range among them."""
    values = GENERATOR.integers(0, 2**32, count, dtype=np.uint32)
    corners = np.array([0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE], np.uint32)
    values[: len(corners)] = GENERATOR.permutation(corners)
    return values


def floats(count: int = THREADS) -> np.ndarray:
    """Bits of floats: random patterns, numbers near one, and every special value."""
    values = GENERATOR.integers(0, 2**32, count, dtype=np.uint32)
    values[::2] = GENERATOR.uniform(-2, 2, len(values[::2])).astype(np.float32).view(np.uint32)
    at = GENERATOR.permutation(count)[: len(SPECIAL32)]
    values[at] = SPECIAL32
    return values


def canonical(values: np.ndarray) -> np.ndarray:
    """Bits with every NaN as NVIDIA's units give it."""
    values = np.asarray(values, np.float32)
    return np.where(np.isnan(values), np.uint32(0x7FFFFFFF), values.view(np.uint32))


def rounded(exact: Fraction, mode: str = "rn", zero_sign: float = 1.0) -> float:
    """A rational number rounded once to FP32."""
    if exact == 0:
        return math.copysign(0.0, zero_sign)
    magnitude = abs(exact)
    exponent = max(math.floor(math.log2(magnitude)) if magnitude else -126, -126)
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while exponent > -126 and magnitude < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (exponent - 23)
    whole, rest = divmod(magnitude, quantum)
    negative = exact < 0
    up = {
        "rn": rest * 2 > quantum or (rest * 2 == quantum and whole % 2 == 1),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    result = (whole + up) * quantum
    if result >= Fraction(2) ** 128:
        result_float = (
            math.inf if mode == "rn" or ((mode == "rm") == negative and mode != "rz") else 3.4028234663852886e38
        )
    else:
        result_float = float(result)
    return -result_float if negative else result_float


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fma_rounds_once(mode):
    x, y, z = (floats() for _ in range(3))
    # Products whose low half only the exact sum can see: float64 would round twice here.
    x[::3] = (1 + GENERATOR.integers(1, 2**23, len(x[::3])) * 2.0**-23).astype(np.float32).view(np.uint32)
    y[::3] = (1 + GENERATOR.integers(1, 2**23, len(y[::3])) * 2.0**-23).astype(np.float32).view(np.uint32)
    z[::3] = (2.0 ** GENERATOR.integers(20, 55, len(z[::3]))).astype(np.float32).view(np.uint32)
    got = execute(f"fma.{mode}.f32 %d, %x, %y, %z;", x, y, z)
    for xb, yb, zb, result in zip(x, y, z, got, strict=True):
        a, b, c = (float(np.array([bits], np.uint32).view(np.float32)[0]) for bits in (xb, yb, zb))
        if all(map(math.isfinite, (a, b, c))):
            exact = Fraction(a) * Fraction(b) + Fraction(c)
            if exact == 0:
                continue
            wanted = np.float32(rounded(exact, mode))
        else:
            with np.errstate(all="ignore"):
                wanted = np.float32(np.float64(a) * np.float64(b) + np.float64(c))
        assert result == canonical(np.array([wanted]))[0], (a, b, c)


@pytest.mark.parametrize(
    ("operation", "reference"),
    [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div.rn", np.divide), ("add.rn", np.add)],
)
def test_float_arithmetic_and_its_nan(operation, reference):
    x, y = floats(), floats()
    with np.errstate(all="ignore"):
        wanted = canonical(reference(x.view(np.float32), y.view(np.float32)))
    np.testing.assert_array_equal(execute(f"{operation}.f32 %d, %x, %y;", x, y), wanted)


def test_denormals_are_kept_unless_the_instruction_flushes_them():
    x = np.array([1, 0x80000001, 0x007FFFFF, 0x00800000], np.uint32)
    one = np.array([0x3F800000], np.uint32)
    half = np.array([0x3F000000], np.uint32)
    np.testing.assert_array_equal(execute("mul.f32 %d, %x, %y;", x, one)[:4], x)
    np.testing.assert_array_equal(execute("mul.ftz.f32 %d, %x, %y;", x, one)[:4], [0, 0x80000000, 0, 0x00800000])
    assert execute("mul.ftz.f32 %d, %x, %y;", x[3:], half)[0] == 0
    assert execute("mul.f32 %d, %x, %y;", x[3:], half)[0] == 0x00400000
    np.testing.assert_array_equal(execute("fma.rn.ftz.f32 %d, %x, %y, %x;", x, one)[:3], [0, 0x80000000, 0])


@pytest.mark.parametrize("operation", ["sqrt.rn", "rcp.rn"])
def test_roots_and_reciprocals(operation):
    x = floats()
    values = x.view(np.float32)
    with np.errstate(all="ignore"):
        wanted = canonical(np.sqrt(values) if "sqrt" in operation else np.float32(1) / values)
    np.testing.assert_array_equal(execute(f"{operation}.f32 %d, %x;", x), wanted)


def test_min_and_max_drop_one_nan_and_order_zeros():
    x = np.array([0x7FC00000, 0x3F800000, 0x7FC00000, 0x80000000, 0, 0x40000000], np.uint32)
    y = np.array([0x3F800000, 0x7FC00000, 0x7FC00000, 0, 0x80000000, 0xC0000000], np.uint32)
    small = execute("min.f32 %d, %x, %y;", x, y)[:6]
    large = execute("max.f32 %d, %x, %y;", x, y)[:6]
    np.testing.assert_array_equal(small, [0x3F800000, 0x3F800000, 0x7FFFFFFF, 0x80000000, 0x80000000, 0xC0000000])
    np.testing.assert_array_equal(large, [0x3F800000, 0x3F800000, 0x7FFFFFFF, 0, 0, 0x40000000])
    assert execute("max.NaN.f32 %d, %x, %y;", x, y)[0] == 0x7FFFFFFF


SIGNED = np.int32
INTEGER = [
    ("add.s32 %d, %x, %y;", lambda x, y: x + y),
    ("sub.s32 %d, %x, %y;", lambda x, y: x - y),
    ("mul.lo.s32 %d, %x, %y;", lambda x, y: x * y),
    ("mul.hi.u32 %d, %x, %y;", lambda x, y: (x.astype(np.uint64) * y >> np.uint64(32)).astype(np.uint32)),
    ("mul.hi.s32 %d, %x, %y;", lambda x, y: (s(x).astype(np.int64) * s(y) >> 32).astype(np.uint32)),
    ("min.s32 %d, %x, %y;", lambda x, y: np.minimum(s(x), s(y)).view(np.uint32)),
    ("max.u32 %d, %x, %y;", lambda x, y: np.maximum(x, y)),
    ("and.b32 %d, %x, %y;", lambda x, y: x & y),
    ("or.b32 %d, %x, %y;", lambda x, y: x | y),
    ("xor.b32 %d, %x, %y;", lambda x, y: x ^ y),
    ("not.b32 %d, %x;", lambda x, y: ~x),
    ("neg.s32 %d, %x;", lambda x, y: 0 - x),
    ("abs.s32 %d, %x;", lambda x, y: np.where(s(x) < 0, 0 - x, x)),
    ("shl.b32 %d, %x, %y;", lambda x, y: np.where(y > 31, 0, x << (y & 31))),
    ("shr.u32 %d, %x, %y;", lambda x, y: np.where(y > 31, 0, x >> (y & 31))),
    ("shr.s32 %d, %x, %y;", lambda x, y: (s(x) >> np.minimum(y, 31).astype(np.int32)).view(np.uint32)),
    ("popc.b32 %d, %x;", lambda x, y: np.bitwise_count(x).astype(np.uint32)),
    ("clz.b32 %d, %x;", lambda x, y: np.array([32 - int(v).bit_length() for v in x], np.uint32)),
    ("brev.b32 %d, %x;", lambda x, y: np.array([int(f"{int(v):032b}"[::-1], 2) for v in x], np.uint32)),
    ("mad.lo.s32 %d, %x, %y, %x;", lambda x, y: x * y + x),
    ("mul.wide.u16 %d, %h, %h1;", lambda x, y: (x & 0xFFFF) * (y & 0xFFFF)),
    ("lop3.b32 %d, %x, %y, %x, 0x96;", lambda x, y: x ^ y ^ x),
    ("prmt.b32 %d, %x, %y, 0x5410;", lambda x, y: (x & 0xFFFF) | (y << 16)),
    ("bfe.u32 %d, %x, 5, 7;", lambda x, y: x >> 5 & 127),
    ("bfe.s32 %d, %x, 5, 7;", lambda x, y: (s(x << 20) >> 25).view(np.uint32)),
    ("bfi.b32 %d, %x, %y, 8, 4;", lambda x, y: (y & ~np.uint32(0xF00)) | (x & 15) << 8),
    ("shf.l.wrap.b32 %d, %x, %y, 9;", lambda x, y: y << 9 | x >> 23),
    ("shf.r.wrap.b32 %d, %x, %y, 9;", lambda x, y: x >> 9 | y << 23),
    ("setp.lt.s32 %q, %x, %y; selp.b32 %d, 1, 2, %q;", lambda x, y: np.where(s(x) < s(y), 1, 2)),
    ("setp.hi.u32 %q|%q1, %x, %y; selp.b32 %d, 1, 2, %q1;", lambda x, y: np.where(x > y, 2, 1)),
    ("setp.ne.s32 %q, %x, 0; setp.gt.and.s32 %q1, %x, %y, !%q; selp.u32 %d, 7, 8, %q1;",
     lambda x, y: np.where((s(x) > s(y)) & (x == 0), 7, 8)),
    ("cvt.u32.u8 %d, %x;", lambda x, y: x & 255),
    ("cvt.s32.s8 %d, %x;", lambda x, y: x.astype(np.uint8).view(np.int8).astype(np.int32).view(np.uint32)),
    ("cvt.s32.s16 %d, %x;", lambda x, y: x.astype(np.uint16).view(np.int16).astype(np.int32).view(np.uint32)),
    ("cvt.rn.f32.s32 %d, %x;", lambda x, y: s(x).astype(np.float32).view(np.uint32)),
    ("cvt.rn.f32.u32 %d, %x;", lambda x, y: x.astype(np.float32).view(np.uint32)),
    ("mov.b32 {%h, %h1}, %x; mov.b32 %d, {%h1, %h};", lambda x, y: x << 16 | x >> 16),
    ("mov.b64 %w, {%x, %y}; mov.b64 {%u, %u1}, %w; xor.b32 %d, %u, %u1;", lambda x, y: x ^ y),
    ("add.cc.u32 %u, %x, %y; addc.u32 %d, 0, 0;", lambda x, y: x.astype(np.uint64) + y >> np.uint64(32)),
    ("sub.cc.u32 %u, %x, %y; subc.u32 %d, 5, 0;", lambda x, y: np.where(x < y, 4, 5)),
    ("mad.lo.cc.u32 %u, %x, %y, %x; madc.hi.u32 %d, %x, %y, 0;",
     lambda x, y: (x.astype(np.uint64) * y + x >> np.uint64(32)).astype(np.uint32)),
]  # fmt: skip


def s(values: np.ndarray) -> np.ndarray:
    return values.view(np.int32)


@pytest.mark.parametrize(("body", "reference"), INTEGER, ids=[body.split(";")[-2].strip() for body, _ in INTEGER])
def test_integer_instruction(body, reference):
    x, y = words(), words()
    if ".u16" in body:
        body = "cvt.u16.u32 %h, %x; cvt.u16.u32 %h1, %y; " + body
    with np.errstate(all="ignore"):
        wanted = reference(x, y).astype(np.uint32)
    np.testing.assert_array_equal(execute(body, x, y), wanted)


@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_division(kind):
    x, y = words(), words()
    y[y == 0] = 3
    a, b = (x, y) if kind == "u32" else (s(x), s(y))
    quotient = [
        int(math.copysign(1, int(p) * int(q))) * (abs(int(p)) // abs(int(q))) for p, q in zip(a, b, strict=True)
    ]
    wanted = np.array([q % 2**32 for q in quotient], np.uint32)
    np.testing.assert_array_equal(execute(f"div.{kind} %d, %x, %y;", x, y), wanted)
    rest = np.array([(int(p) - q * int(v)) % 2**32 for p, q, v in zip(a, quotient, b, strict=True)], np.uint32)
    np.testing.assert_array_equal(execute(f"rem.{kind} %d, %x, %y;", x, y), rest)


def test_wide_products_and_64_bit_sums():
    x, y = words(), words()
    wanted = s(x).astype(np.int64) * s(y)
    got = execute("mul.wide.s32 %w, %x, %y; mov.b64 %d, %w;", x, y, out=np.uint64)
    np.testing.assert_array_equal(got, wanted.view(np.uint64))
    a, b = (GENERATOR.integers(0, 2**63, THREADS, dtype=np.uint64) * np.uint64(2) + np.uint64(1) for _ in range(2))
    for body, reference in (
        ("add.s64 %d, %x, %y;", a + b),
        ("mul.lo.u64 %d, %x, %y;", a * b),
        ("shr.u64 %d, %x, 13;", a >> np.uint64(13)),
        ("shr.s64 %d, %x, 13;", (a.view(np.int64) >> 13).view(np.uint64)),
        ("max.s64 %d, %x, %y;", np.maximum(a.view(np.int64), b.view(np.int64)).view(np.uint64)),
    ):
        np.testing.assert_array_equal(execute(body, a, b, dtype=np.uint64, out=np.uint64), reference, body)


def test_conversions_from_float():
    x = floats()
    with np.errstate(invalid="ignore"):
        values = x.view(np.float32).astype(np.float64)
    for instruction, rounding in (("rzi", np.trunc), ("rni", np.rint), ("rmi", np.floor), ("rpi", np.ceil)):
        whole = np.where(np.isnan(values), 0, rounding(values))
        wanted = np.clip(whole, -(2.0**31), 2.0**31 - 1).astype(np.int64).astype(np.int32)
        np.testing.assert_array_equal(execute(f"cvt.{instruction}.s32.f32 %d, %x;", x).view(np.int32), wanted)
        with np.errstate(all="ignore"):
            kept = canonical(rounding(x.view(np.float32)))
        np.testing.assert_array_equal(execute(f"cvt.{instruction}.f32.f32 %d, %x;", x), kept)
    wanted = np.clip(np.where(np.isnan(values), 0, np.trunc(values)), 0, 2.0**32 - 1).astype(np.uint32)
    np.testing.assert_array_equal(execute("cvt.rzi.u32.f32 %d, %x;", x), wanted)


def test_half_and_bfloat_conversions():
    x = floats()
    x[:64] = (GENERATOR.uniform(-1, 1, 64) * 2.0 ** GENERATOR.integers(-26, 17, 64)).astype(np.float32).view(np.uint32)
    values = x.view(np.float32)
    with np.errstate(all="ignore"):
        half = values.astype(np.float16)
    bits = np.where(np.isnan(half), 0x7FFF, half.view(np.uint16)).astype(np.uint32)
    np.testing.assert_array_equal(execute("cvt.rn.f16.f32 %h, %x; cvt.u32.u16 %d, %h;", x), bits)
    packed = execute("cvt.rn.f16x2.f32 %d, %x, %y;", x, x[::-1].copy())
    np.testing.assert_array_equal(packed, bits << 16 | bits[::-1])
    every = np.arange(THREADS, dtype=np.uint32) * 257 & 0xFFFF
    back = every.astype(np.uint16).view(np.float16).astype(np.float32)
    got = execute("cvt.u16.u32 %h, %x; cvt.f32.f16 %d, %h;", every)
    np.testing.assert_array_equal(got, canonical(back))
    near = (x.astype(np.uint64) + 0x7FFF + (x >> 16 & 1) >> np.uint64(16)).astype(np.uint32)
    wanted = np.where(np.isnan(values), 0x7FFF, near)
    np.testing.assert_array_equal(execute("cvt.rn.bf16.f32 %h, %x; cvt.u32.u16 %d, %h;", x), wanted)
    tf32 = np.where(np.isnan(values), 0x7FFFFFFF, np.where(np.isinf(values), x, x + 0x1000 & 0xFFFFE000))
    np.testing.assert_array_equal(execute("cvt.rna.tf32.f32 %d, %x;", x), tf32)


def test_half_fma_rounds_once():
    a, b, c = (GENERATOR.integers(0, 2**16, THREADS, dtype=np.uint32) for _ in range(3))
    body = (
        "cvt.u16.u32 %h, %x; cvt.u16.u32 %h1, %y; cvt.u16.u32 %h2, %z; fma.rn.f16 %h, %h, %h1, %h2; cvt.u32.u16 %d, %h;"
    )
    got = execute(body, a, b, c)
    for x, y, z, result in zip(a, b, c, got, strict=True):
        p, q, r = (float(np.array([v], np.uint16).view(np.float16)[0]) for v in (x, y, z))
        if not all(map(math.isfinite, (p, q, r))):
            continue
        exact = Fraction(p) * Fraction(q) + Fraction(r)
        nearest = min(
            (int(bits) for bits in (result, (int(result) + 1) & 0xFFFF, (int(result) - 1) & 0xFFFF)),
            key=lambda bits: abs(Fraction(_half(bits)) - exact) if math.isfinite(_half(bits)) else Fraction(10) ** 9,
        )
        if math.isfinite(_half(int(result))):
            assert abs(Fraction(_half(int(result))) - exact) == abs(Fraction(_half(nearest)) - exact)
        else:
            assert abs(exact) >= 65520


def _half(bits: int) -> float:
    return float(np.array([bits], np.uint16).view(np.float16)[0])


def test_double_precision():
    x, y = (GENERATOR.uniform(-2, 2, THREADS) for _ in range(2))
    for body, wanted in (
        ("add.f64 %d, %x, %y;", x + y),
        ("mul.f64 %d, %x, %y;", x * y),
        ("div.rn.f64 %d, %x, %y;", x / y),
    ):
        got = execute(body, x, y, dtype=np.float64, out=np.float64)
        np.testing.assert_array_equal(got, wanted, body)
    got = execute("fma.rn.f64 %d, %x, %y, %x;", x, y, dtype=np.float64, out=np.float64)
    exact = [float(Fraction(a) * Fraction(b) + Fraction(a)) for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(got, exact)


def test_an_opcode_that_is_missing_is_named_with_its_line():
    text = kernel("tcgen05.alloc.sync %d, %x;", 1)
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "tcgen05" in row)
    source = Buffer.from_array("x", np.zeros(THREADS, np.uint32))
    with pytest.raises(MachineFault, match=rf"lacks opcode tcgen05\.alloc\.sync.*PTX line {line}"):
        run(text, "test", Shape(grid=(1, 1, 1), block=(THREADS, 1, 1)), [source, source])


@pytest.mark.parametrize(
    "opcode",
    [
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%d, %d, %d, %d}, %x, %x, 1",
        "mbarrier.pending_count.b64 %d, %x",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%x], [%x], 16, [%x]",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%x], [%w], [%x]",
        "cp.async.bulk.tensor.2d.global.global.bulk_group [%w, {%x, %x}], [%x]",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%w], [%x], 16",
        "cp.async.ca.shared.global [%x], [%x], 16",
        "mov.b64 {%h, %h1, %h2, %h}, %w",
        "mov.b64 %w, {%h, %h1, %h2, %h}",
        "mov.b32 %d, %nothing",
        "mov.b32 %d, nowhere",
        "sub.sat.s32 %d, %x, %x",
        "add.sat.f16x2 %d, %x, %x",
        "mul.hi.u16 %h, %h1, %h2",
        "mad.lo.cc.u64 %w, %w, %w, %w",
        "mad.hi.sat.s32 %d, %x, %x, %x",
        "rcp.approx.ftz.f64 %w, %w",
        "ex2.approx.f16 %h, %h1",
        "min.xorsign.abs.f32 %d, %x, %x",
        "copysign.f64 %w, %w, %w",
        "testp.finite.f64 %q, %w",
        "cnot.b16 %h, %h1",
        "bfind.u64 %d, %w",
        "brev.b64 %w, %w",
        "lop3.or.b32 %d|%q, %x, %x, %x, 1, %q",
        "prmt.b32.f4e %d, %x, %x, %x",
        "bfe.u64 %w, %w, %u, %u",
        "setp.eq.f16x2 %q|%q1, %x, %x",
        "slct.b64.s32 %w, %w, %w, %u",
        "cvt.pack.sat.s16.s32.b32 %d, %x, %x, %x",
        "cvt.rn.relu.f16.f32 %h, %x",
        "cvt.rn.f16x2.f32 %d, %x",
        "cvt.rn.sat.f16x2.f32 %d, %x, %x",
        "cvt.u64.u32 %d, %x",
        "ld.global.b128 %w, [%w]",
        "ld.global.v8.b64 {%w, %w, %w, %w, %w, %w, %w, %w}, [%w]",
        "ld.global.b32 %d, [%x+%y]",
        "ld.global.b32 %d, %x",
        "ld.shared::cluster.b32 %d, [%x]",
        "atom.global.v2.f32.add {%d, %d}, [%w], {%x, %x}",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%d, %d, %d, %d}, {%x, %x, %x, %x}, %w, %q, 1, 1, 0",
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%d, %d, %d, %d}, %w, %w, %q, 1, 1, 0, 0",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%d, %d}, [%x]",
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%d, %d}, {%x, %x, %x, %x}, {%x, %x}, {%d, %d}",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%d, %d}, {%x, %x}, {%x, %x}, {%d, %d}",
        "shfl.up.b32 %d, %x, 1, 0",
    ],
)
def test_opcodes_with_a_seam_say_what_they_are(opcode):
    source = Buffer.from_array("x", np.zeros(THREADS, np.uint32))
    with pytest.raises(MachineFault, match="the PTX machine lacks"):
        run(kernel(f"{opcode};", 1), "test", Shape(grid=(1, 1, 1), block=(32, 1, 1)), [source, source])


def test_an_opcode_that_is_never_reached_does_no_harm():
    x = np.arange(THREADS, dtype=np.uint32)
    got = execute("mov.u32 %d, 5; setp.lt.u32 %q, %x, 1000; @%q bra DONE; tcgen05.alloc.sync %d, %x; DONE:", x)
    assert (got == 5).all()


def top_bit(values):
    return np.where(values == 0, -1, np.floor(np.log2(np.maximum(values, 1).astype(np.float64)))).astype(np.int64)


def bytes_of(values, kind):
    return values.view(np.int8 if kind == "s" else np.uint8).reshape(-1, 4).astype(np.int64)


def halves(values):
    return values.view(np.float16).astype(np.float64)


@pytest.mark.parametrize(
    ("body", "reference"),
    [
        ("bfind.u32 %d, %x;", lambda x, y, z: top_bit(x)),
        ("bfind.s32 %d, %x;", lambda x, y, z: top_bit(np.where(x >> 31, ~x, x))),
        ("bfind.shiftamt.u32 %d, %x;", lambda x, y, z: np.where(x == 0, -1, 31 - top_bit(x))),
        ("cnot.b32 %d, %x;", lambda x, y, z: x == 0),
        ("slct.u32.s32 %d, %x, %y, %z;", lambda x, y, z: np.where(z.view(np.int32) >= 0, x, y)),
        ("slct.b32.f32 %d, %x, %y, %z;", lambda x, y, z: np.where(z.view(np.float32) >= 0, x, y)),
        (
            "dp4a.u32.u32 %d, %x, %y, %z;",
            lambda x, y, z: (bytes_of(x, "u") * bytes_of(y, "u")).sum(1) + z.astype(np.int64),
        ),
        (
            "dp4a.s32.u32 %d, %x, %y, %z;",
            lambda x, y, z: (bytes_of(x, "s") * bytes_of(y, "u")).sum(1) + z.astype(np.int64),
        ),
        (
            "add.sat.s32 %d, %x, %y;",
            lambda x, y, z: np.clip(
                x.view(np.int32).astype(np.int64) + y.view(np.int32).astype(np.int64), -(2**31), 2**31 - 1
            ),
        ),
        ("mad.hi.u32 %d, %x, %y, %z;", lambda x, y, z: (x.astype(np.uint64) * y >> np.uint64(32)) + z),
        ("mov.u32 %d, 010;", lambda x, y, z: np.full(len(x), 8)),
        ("mov.f32 %d, 1.5;", lambda x, y, z: np.full(len(x), 0x3FC00000)),
        ("mov.f32 %d, 0d3FF8000000000000;", lambda x, y, z: np.full(len(x), 0x3FC00000)),
        ("mov.f32 %d, 3;", lambda x, y, z: np.full(len(x), 0x40400000)),
        ("mov.f64 %w, 0f3FC00000; cvt.rn.f32.f64 %d, %w;", lambda x, y, z: np.full(len(x), 0x3FC00000)),
        ("mov.f64 %w, 2.5; cvt.rn.f32.f64 %d, %w;", lambda x, y, z: np.full(len(x), 0x40200000)),
        ("mov.f64 %w, 3; cvt.rn.f32.f64 %d, %w;", lambda x, y, z: np.full(len(x), 0x40400000)),
    ],
)
def test_rarer_instructions_and_forms_of_literals(body, reference):
    x, y, z = (words() for _ in range(3))
    expected = np.asarray(reference(x, y, z)).astype(np.int64) & 0xFFFFFFFF
    np.testing.assert_array_equal(execute(body, x, y, z), expected.astype(np.uint32))


@pytest.mark.parametrize(
    ("test", "reference"),
    [
        ("finite", np.isfinite),
        ("infinite", np.isinf),
        ("number", lambda f: ~np.isnan(f)),
        ("notanumber", np.isnan),
        ("normal", lambda f: np.isfinite(f) & (np.abs(f) >= 2.0**-126)),
        ("subnormal", lambda f: (np.abs(f) < 2.0**-126) & (f != 0)),
    ],
)
def test_what_a_float_is(test, reference):
    x = floats()
    got = execute(f"testp.{test}.f32 %q, %x; selp.u32 %d, 1, 0, %q;", x)
    np.testing.assert_array_equal(got, reference(x.view(np.float32)).astype(np.uint32))


@pytest.mark.parametrize(
    ("opcode", "reference"),
    [
        ("rcp.approx.ftz", lambda f: 1 / f),
        ("sqrt.approx", np.sqrt),
        ("rsqrt.approx", lambda f: 1 / np.sqrt(f)),
        ("ex2.approx", np.exp2),
        ("lg2.approx", np.log2),
        ("sin.approx", np.sin),
        ("cos.approx", np.cos),
        ("tanh.approx", np.tanh),
    ],
)
def test_approximate_functions_are_close(opcode, reference):
    x = GENERATOR.uniform(0.01, 3, THREADS).astype(np.float32)
    got = execute(f"{opcode}.f32 %d, %x;", x.view(np.uint32)).view(np.float32)
    np.testing.assert_allclose(got, reference(x.astype(np.float64)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("opcode", "reference"),
    [
        ("mul.rn.f16x2 %d, %x, %y", lambda a, b: a * b),
        ("min.f16x2 %d, %x, %y", np.minimum),
        ("max.f16x2 %d, %x, %y", np.maximum),
        ("neg.f16x2 %d, %x", lambda a, b: -a),
        ("abs.f16x2 %d, %x", lambda a, b: np.abs(a)),
        ("fma.rn.f16x2 %d, %x, %y, %x", lambda a, b: a * b + a),
    ],
)
def test_two_halves_at_once(opcode, reference):
    a, b = (GENERATOR.uniform(-9, 9, 2 * THREADS).astype(np.float16).view(np.uint32) for _ in range(2))
    expected = reference(halves(a), halves(b)).astype(np.float16).view(np.uint32)
    np.testing.assert_array_equal(execute(f"{opcode};", a, b), expected)


def test_labels_between_braces_are_their_braces_own():
    """Inline assembly with a wait loop leaves the same two labels wherever it was expanded."""

    def loop(last, inner=""):
        skip = f"setp.lt.u32 p, %u, {last}; @!p bra DONE; {inner} bra.uni AGAIN;"
        return f"{{ .reg .pred p; AGAIN: add.u32 %u, %u, 1; {skip} DONE: }} mad.lo.u32 %d, %d, 100, %u;"

    x = np.arange(THREADS, dtype=np.uint32)
    nested = "{ setp.ne.u32 p, %u, 20; @p bra DONE; add.u32 %u, %u, 5; DONE: }"
    body = f"mov.u32 %d, 0; mov.u32 %u, 0; {loop(7)} {loop(12)} {loop(30, nested)} add.u32 %d, %d, %x;"
    assert (execute(body, x) == 71230 + x).all()


def test_tables_of_labels_between_braces_are_their_braces_own():
    def choose(*added):
        cases = "".join(f"L{i}: add.u32 %d, %d, {number}; bra END;" for i, number in enumerate(added))
        return f"{{ T: .branchtargets L0, L1, L2; brx.idx %u, T; {cases} END: }}"

    x = GENERATOR.integers(0, 3, THREADS).astype(np.uint32)
    got = execute(f"mov.u32 %d, 0; mov.u32 %u, %x; {choose(1, 2, 3)} {choose(10, 20, 30)}", x)
    assert (got == 11 * (x + 1)).all()


def test_a_family_of_registers_between_braces_is_its_braces_own():
    doubled = "{ .reg .b32 r<2>; add.u32 r0, %x, %x; mov.b32 r1, r0; mov.b32 %d, r1; }"
    wide = "{ .reg .b64 r<2>; mul.wide.u32 r0, %d, 3; shr.u64 r1, r0, 1; cvt.u32.u64 %d, r1; }"
    x = np.arange(THREADS, dtype=np.uint32)
    assert (execute(doubled + wide, x) == 3 * x).all()


@pytest.mark.parametrize(
    ("body", "out", "expected"),
    [
        ("cvt.s64.s32 %d, %x;", np.int64, lambda x: x.astype(np.int32).astype(np.int64)),
        ("cvt.u64.u32 %d, %x;", np.uint64, lambda x: x & 0xFFFFFFFF),
        ("cvt.s64.s16 %d, %x;", np.int64, lambda x: x.astype(np.int16).astype(np.int64)),
        ("cvt.u64.u8 %d, %x;", np.uint64, lambda x: x & 0xFF),
        ("cvt.u32.u16 %d, %x;", np.uint32, lambda x: (x & 0xFFFF).astype(np.uint32)),
        ("cvt.f64.f32 %d, %x;", np.float64, lambda x: x.astype(np.uint32).view(np.float32).astype(np.float64)),
        ("cvt.f32.f16 %d, %x;", np.float32, lambda x: x.astype(np.uint16).view(np.float16).astype(np.float32)),
        (
            "and.b64 %w, %x, 1; setp.ne.b64 %q, %w, 0; cvt.u64.u32 %d, %y; @%q cvt.s64.s32 %d, %x;",
            np.int64,
            lambda x: np.where(x & 1, x.astype(np.int32).astype(np.int64), 7),
        ),
    ],
)
def test_conversion_takes_the_low_bits_of_a_wider_register(body, out, expected):
    """PTX lets cvt, ld and st alone name registers wider than their type."""
    numbers = GENERATOR.integers(0, 2**64, THREADS, dtype=np.uint64)
    if out in (np.float64, np.float32):
        numbers &= np.uint64(0xFFFFFFFFBFFFBFFF)  # finite numbers
    given = execute(body, numbers, np.full(THREADS, (5 << 32) + 7, np.uint64), dtype=np.uint64, out=out)
    np.testing.assert_array_equal(given, expected(numbers).astype(out))


def test_packing_halves_takes_the_low_bits_of_wider_registers():
    floats32 = GENERATOR.uniform(-9, 9, (2, THREADS)).astype(np.float32)
    wide = [f.view(np.uint32).astype(np.uint64) | np.uint64(0xABCD << 32) for f in floats32]
    given = execute("cvt.rn.f16x2.f32 %d, %x, %y;", *wide, dtype=np.uint64)
    high, low = (f.astype(np.float16).view(np.uint16).astype(np.uint32) for f in floats32)
    np.testing.assert_array_equal(given, high << 16 | low)


@pytest.mark.parametrize(
    "body",
    [
        "add.u32 %d, %x, %u;",
        "mov.b32 %d, %x;",
        "fma.rn.f32 %d, %x, %u, %u;",
        "cvt.u64.u32 %d, %u;",
        "ld.param.u64 %d, [test_param_0];",
        "st.global.v2.b32 [%p], {%x, %u};",
        "selp.b32 %d, %x, %u, %u;",
    ],
)
def test_registers_of_another_width_are_refused_as_ptxas_does(body):
    with pytest.raises(MachineFault, match=r"opcode .* \(register.* (is|are) not as wide as the type"):
        execute(body, np.zeros(THREADS, np.uint64), np.zeros(THREADS, np.uint64), dtype=np.uint64)
