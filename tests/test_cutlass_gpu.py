"""CUTLASS kernels on a GPU: right numbers on awkward problems, refusals without faults, the Python call.

Artifacts come from the bundle (GEMM_TRACKS_BUNDLE) or the cache; a kernel that is in neither, on a
machine that cannot emit, is skipped by name. The default set must be there.
"""

from __future__ import annotations

import numpy as np
import pytest

import cutlass_ref
from cutlass_ref import emit
from cutlass_ref.catalog import KERNELS, get
from kernel.build import artifact, lookup
from kernel.contract import Pointers, Problem, pointer_alignment
from kernel.errors import DtypeError, LayoutError, RejectedError
from kernel.launch import prepare

pytestmark = pytest.mark.gpu

SIMT = tuple(k for k in KERNELS if k.track == "fp32_simt" and k.recipe.swizzle == 1 and k.name == k.base)
DEFAULT_SET = tuple(k for k in KERNELS if k.in_default_set)
TENSOR = tuple(k for k in KERNELS if k.track != "fp32_simt" and k.raster == "heuristic")
VARIANTS = tuple(k for k in KERNELS if k.name != k.base or (k.track == "fp32_simt" and k.recipe.swizzle > 1))
GUARD = 256
"""Elements of poison before and after every operand."""
SWEPT = "cutlass_fp16_sm90_128x256x64_2x1_cooperative_persistent_rr"

SIMT_SHAPES = ((1, 1, 1), (4, 5, 1), (35, 79, 19), (129, 257, 17), (130, 130, 35), (128, 128, 2040), (300, 17, 100))
TENSOR_SHAPES = ((8, 8, 8), (136, 264, 72), (128, 256, 64), (264, 520, 136), (1000, 96, 2040))


@pytest.fixture(scope="module")
def cp():
    return pytest.importorskip("cupy")


def need(kernel):
    """Skip where the kernel neither came along nor can be built here."""
    if any(lookup(unit) is None for unit in kernel.units()) and emit.missing():
        pytest.skip(f"{kernel.name} is not in the bundle and nvidia-cutlass is not installed")


def place(cp, values, layout, pitch, shift=0):
    """``values`` on the device in a layout, with NaN between rows and around; (buffer, address, start)."""
    stored = values if layout == "r" else values.T
    rows, width = stored.shape
    padded = np.full((rows, pitch), np.nan, stored.dtype)
    padded[:, :width] = stored
    start = GUARD + shift
    flat = np.full(start + padded.size + GUARD, np.nan, stored.dtype)
    flat[start : start + padded.size] = padded.ravel()
    buffer = cp.asarray(flat)
    return buffer, int(buffer.data.ptr) + start * stored.dtype.itemsize, start


def run(cp, kernel, a, b, c=None, *, alpha=1.0, beta=0.0, pads=(0, 0, 0), shifts=(0, 0, 0), repeats=1):
    """C of one problem; fails if anything outside C's elements was written."""
    (m, k), n, layout = a.shape, b.shape[1], kernel.layouts[0]
    pitches = (
        (k if layout[0] == "r" else m) + pads[0],
        (n if layout[1] == "r" else k) + pads[1],
        n + pads[2],
    )
    old = np.full((m, n), np.nan, kernel.dtype_out) if c is None else c.astype(kernel.dtype_out)
    placed_a = place(cp, a.astype(kernel.dtype_in), layout[0], pitches[0], shifts[0])
    placed_b = place(cp, b.astype(kernel.dtype_in), layout[1], pitches[1], shifts[1])
    results = []
    for _ in range(repeats):
        buffer, address, start = place(cp, old, "r", pitches[2], shifts[2])
        problem = Problem(
            m=m,
            n=n,
            k=k,
            dtype_in=kernel.dtype_in,
            dtype_out=kernel.dtype_out,
            layout=layout,
            lda=pitches[0],
            ldb=pitches[1],
            ldc=pitches[2],
            alpha=alpha,
            beta=beta,
            align_a=pointer_alignment(placed_a[1]),
            align_b=pointer_alignment(placed_b[1]),
            align_c=pointer_alignment(address),
        )
        pointers = Pointers(a=placed_a[1], b=placed_b[1], c=address)
        prepare(kernel, problem, pointers).enqueue(cp.cuda.get_current_stream().ptr)
        cp.cuda.get_current_stream().synchronize()
        flat = cp.asnumpy(buffer)
        body = flat[start : start + m * pitches[2]].reshape(m, pitches[2])
        assert np.isnan(flat[:start]).all(), "wrote before C"
        assert np.isnan(flat[start + m * pitches[2] :]).all(), "wrote behind C"
        assert np.isnan(body[:, n:]).all(), "wrote between C's rows"
        results.append(body[:, :n].copy())
    for other in results[1:]:
        assert np.array_equal(results[0], other, equal_nan=True), "repeats differ"
    return results[0]


def bound(kernel, k):
    """Largest |C - reference| / (|A| @ |B|) that a right kernel of the track shows on zero-mean data."""
    if kernel.track == "fp32_simt" or kernel.recipe.three_pass:
        return 8 * 2.0**-24 if kernel.track == "fp32_simt" else 32 * 2.0**-24
    if kernel.track == "tf32_tensor":
        return 2.0**-9
    return (k / 16 + 1) * 2.0**-23


def assert_right(kernel, out, a, b, c=None, *, alpha=1.0, beta=0.0):
    a, b = a.astype(kernel.dtype_in).astype(np.float64), b.astype(kernel.dtype_in).astype(np.float64)
    reference = alpha * (a @ b)
    size = abs(alpha) * (np.abs(a) @ np.abs(b))
    allowed = bound(kernel, a.shape[1]) * size
    if beta != 0.0:
        old = c.astype(kernel.dtype_out).astype(np.float64)
        reference = reference + beta * old
        allowed = allowed + 2 * 2.0**-24 * np.abs(beta * old)
    if kernel.dtype_out == "float16":
        allowed = allowed + 2.0**-11 * np.abs(reference) + 2.0**-25
    assert np.isfinite(out).all(), f"{np.count_nonzero(~np.isfinite(out))} elements are not finite"
    excess = np.abs(out.astype(np.float64) - reference) - allowed
    assert excess.max() <= 0, f"largest excess {excess.max():g} at {np.unravel_index(excess.argmax(), excess.shape)}"


def uniform(rng, *shape):
    return rng.uniform(-1.0, 1.0, shape).astype(np.float32)


def integers(rng, *shape):
    return rng.integers(-4, 5, shape).astype(np.float32)


def test_the_default_set_came_along():
    missing = [k.name for k in DEFAULT_SET if lookup(k.units()[0]) is None]
    if missing and not emit.missing():
        pytest.skip("nothing came along, and everything can be built here")
    assert missing == []


@pytest.mark.parametrize("kernel", SIMT, ids=lambda kernel: kernel.name)
def test_simt_kernels_are_right_on_every_shape(cp, kernel):
    need(kernel)
    rng = np.random.default_rng(1)
    for m, n, k in SIMT_SHAPES:
        a, b = uniform(rng, m, k), uniform(rng, k, n)
        assert_right(kernel, run(cp, kernel, a, b), a, b)
        a, b, c = integers(rng, m, k), integers(rng, k, n), integers(rng, m, n)
        out = run(cp, kernel, a, b, c, alpha=2.0, beta=-3.0, pads=(3, 5, 7), shifts=(1, 3, 1))
        assert np.array_equal(out, 2.0 * (a @ b) - 3.0 * c)


@pytest.mark.parametrize("kernel", TENSOR, ids=lambda kernel: kernel.name)
def test_tensor_kernels_are_right_on_every_shape_they_take(cp, kernel):
    need(kernel)
    rng = np.random.default_rng(2)
    for m, n, k in TENSOR_SHAPES:
        a, b = uniform(rng, m, k), uniform(rng, k, n)
        assert_right(kernel, run(cp, kernel, a, b, repeats=2), a, b)
        c = uniform(rng, m, n)
        out = run(cp, kernel, a, b, c, alpha=-1.5, beta=0.5, pads=(8, 16, 24), shifts=(8, 16, 8))
        assert_right(kernel, out, a, b, c, alpha=-1.5, beta=0.5)


@pytest.mark.parametrize("kernel", DEFAULT_SET, ids=lambda kernel: kernel.name)
def test_integers_agree_to_the_bit(cp, kernel):
    need(kernel)
    rng = np.random.default_rng(3)
    a, b = rng.integers(-2, 3, (264, 136)), rng.integers(-2, 3, (136, 520))
    assert np.array_equal(run(cp, kernel, a, b), (a @ b).astype(kernel.dtype_out))


@pytest.mark.parametrize("kernel", [*SIMT, *(k for k in TENSOR if k.track == "tf32_tensor")], ids=lambda k: k.name)
def test_single_pass_tf32_alone_rounds_its_operands(cp, kernel):
    need(kernel)
    a, identity = np.full((128, 128), 1024.5, np.float32), np.eye(128, dtype=np.float32)
    exact = np.array_equal(run(cp, kernel, a, identity), a)
    assert exact == (kernel.track == "fp32_simt" or kernel.recipe.three_pass)


@pytest.mark.parametrize("kernel", [k for k in TENSOR if k.track == "fp16_tensor"], ids=lambda k: k.name)
def test_fp16_kernels_accumulate_in_fp32(cp, kernel):
    need(kernel)
    a = np.zeros((128, 1024), np.float32)
    a[0, 0] = 2048
    a[0, 16 : 16 * 64 : 16] = 1
    out = run(cp, kernel, a, np.ones((1024, 128), np.float32))
    # 2111, which FP16 rounds to 2112; an FP16 accumulator would stay at 2048.
    assert (out[0] == np.float16(2111)).all()
    assert (out[1:] == 0).all()


@pytest.mark.parametrize("kernel", DEFAULT_SET, ids=lambda kernel: kernel.name)
def test_nan_and_old_c_stay_where_they_belong(cp, kernel):
    need(kernel)
    m, n, k = 136, 264, 40
    a, b = np.full((m, k), np.nan, np.float32), np.ones((k, n), np.float32)
    a[0] = 1
    out = run(cp, kernel, a, b, pads=(8, 8, 8))
    assert (out[0] == k).all()
    assert np.isnan(out[1:]).all()
    clean = np.ones((m, k), np.float32)
    for old in (np.nan, np.inf):
        assert (run(cp, kernel, clean, b, np.full((m, n), old)) == k).all()
    assert (run(cp, kernel, a, b, np.full((m, n), 3.0), alpha=0.0, beta=2.0) == 6).all()
    assert (run(cp, kernel, clean[:, :0], b[:0], np.full((m, n), np.nan)) == 0).all()


@pytest.mark.parametrize("kernel", VARIANTS, ids=lambda kernel: kernel.name)
def test_variants_of_flags_order_and_slices_are_right(cp, kernel):
    need(kernel)
    rng = np.random.default_rng(4)
    m, n, k = 776, 1032, 264
    a, b = uniform(rng, m, k), uniform(rng, k, n)
    out = run(cp, kernel, a, b, repeats=3 if kernel.split_k > 1 else 1)
    assert_right(kernel, out, a, b)
    base = get(kernel.base)
    if kernel.name != kernel.base and kernel.split_k == 1:
        assert np.array_equal(out, run(cp, base, a, b)), f"{kernel.name} and {base.name} differ"


@pytest.mark.parametrize("kernel", [k for k in TENSOR if k.recipe.is_stream_k], ids=lambda kernel: kernel.name)
def test_stream_k_is_right_where_tiles_are_shared(cp, kernel):
    need(kernel)
    rng = np.random.default_rng(5)
    size = 3072
    a, b = integers(rng, size, size), integers(rng, size, size)
    out = run(cp, kernel, a, b, repeats=3)
    expected = cp.asnumpy(cp.asarray(a) @ cp.asarray(b))
    assert np.array_equal(out, expected.astype(np.float16))


def test_columns_beyond_one_grid(cp):
    kernel = get("cutlass_simt_128x32x5_s1_rr")
    need(kernel)
    rng = np.random.default_rng(6)
    a, b = integers(rng, 4, 8), integers(rng, 8, 65535 * 32 + 5)
    assert np.array_equal(run(cp, kernel, a, b), a @ b)


def test_more_rows_than_a_grid_dimension_of_y_holds(cp):
    kernel = get("cutlass_simt_32x128x5_s1_rr")
    need(kernel)
    rng = np.random.default_rng(7)
    a, b = integers(rng, 2_097_153, 8), integers(rng, 8, 4)
    assert np.array_equal(run(cp, kernel, a, b), a @ b)


@pytest.mark.parametrize("name", [SWEPT, "cutlass_fp16_sm80_256x128x64_3stages_multistage_s1_rr"])
def test_misaligned_fp16_is_refused_and_the_next_call_works(cp, name):
    kernel = get(name)
    need(kernel)
    rng = np.random.default_rng(8)
    for (m, n, k), word in (((2, 4, 3), "lda = 3"), ((1, 105, 107), "lda = 107"), ((128, 130, 128), "ldb = 130")):
        with pytest.raises(RejectedError, match=word):
            run(cp, kernel, uniform(rng, m, k), uniform(rng, k, n))
    a, b = uniform(rng, 128, 64), uniform(rng, 64, 128)
    with pytest.raises(RejectedError, match="A: its base address"):
        run(cp, kernel, a, b, shifts=(1, 0, 0))
    assert_right(kernel, run(cp, kernel, a, b), a, b)


def test_tma_clips_a_k_that_is_no_multiple_of_eight(cp):
    kernel = get(SWEPT)
    need(kernel)
    rng = np.random.default_rng(9)
    a, b = uniform(rng, 64, 7), uniform(rng, 7, 136)
    assert_right(kernel, run(cp, kernel, a, b, pads=(9, 0, 0)), a, b)


def test_gemm_takes_views_transposes_and_slices(cp):
    for layout in ("rr", "cr", "rc", "cc"):
        need(get(f"cutlass_simt_128x256x5_s1_{layout}"))
    rng = np.random.default_rng(10)
    big = cp.asarray(integers(rng, 96, 160))
    b = cp.asarray(integers(rng, 128, 48))
    cases = {
        "rr": (big[:, :128], b),
        "cr": (cp.asarray(integers(rng, 128, 96)).T, b),
        "rc": (big[:, 3:131], cp.asarray(integers(rng, 48, 128)).T),
        "cc": (cp.asfortranarray(big[:, :128]), cp.asfortranarray(b)),
    }
    for layout, (left, right) in cases.items():
        result = cutlass_ref.gemm(left, right)
        assert result.kernel == f"cutlass_simt_128x256x5_s1_{layout}"
        assert result.copied == ()
        assert (result.c == left @ right).all()
    flat = cp.asarray(integers(rng, 128 * 128 + 1, 1)).ravel()
    odd = flat[1:].reshape(128, 128)
    assert (cutlass_ref.gemm(odd, odd).c == odd @ odd).all()


def test_gemm_converts_scalars_and_refuses_types_and_layouts(cp):
    need(get("cutlass_simt_128x256x5_s1_rr"))
    rng = np.random.default_rng(11)
    a, b = cp.asarray(uniform(rng, 64, 64)), cp.asarray(uniform(rng, 64, 64))
    c = cp.asarray(uniform(rng, 64, 64))
    results = []
    for alpha in (0.5, np.float64(0.5), np.float32(0.5), cp.asarray(0.5)):
        out = c.copy()
        assert (
            cutlass_ref.gemm(a, b, out, alpha=alpha, beta=type(alpha)(2) if not hasattr(alpha, "shape") else 2).c is out
        )
        results.append(cp.asnumpy(out))
    assert all(np.array_equal(results[0], other) for other in results)
    assert cp.allclose(results[0], 0.5 * cp.asnumpy(a @ b) + 2 * cp.asnumpy(c), atol=1e-4)
    with pytest.raises(DtypeError, match="float64"):
        cutlass_ref.gemm(a.astype(cp.float64), b)
    with pytest.raises(LayoutError):
        cutlass_ref.gemm(a, b, cp.asfortranarray(c))
    with pytest.raises(RejectedError, match="layout is cr"):
        cutlass_ref.gemm(cp.asfortranarray(a), b, kernel="cutlass_simt_128x128x5_s1_rr")
    with pytest.raises(DtypeError, match="beta"):
        cutlass_ref.gemm(a, b, beta=1.0)


def test_gemm_runs_on_the_callers_stream(cp):
    need(get("cutlass_simt_128x256x5_s1_rr"))
    stream = cp.cuda.Stream(non_blocking=True)
    size = 2048
    ones = cp.ones((size, size), cp.float32)
    cp.cuda.Device().synchronize()
    with stream:
        for step in range(10):
            a = ones * np.float32(step)
            for _ in range(20):
                a = a * np.float32(1.0)
            out = cutlass_ref.gemm(a, ones).c
            assert float(out.min()) == float(out.max()) == step * size


@pytest.mark.torch
def test_gemm_takes_torch_tensors(cp):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    need(get(SWEPT))
    need(get("cutlass_simt_128x256x5_s1_rr"))
    a, b = torch.ones(64, 72, device="cuda"), torch.ones(72, 40, device="cuda")
    result = cutlass_ref.gemm(a, b)
    assert isinstance(result.c, torch.Tensor)
    assert bool((result.c == 72).all())
    half = cutlass_ref.gemm(a.half(), b.half())
    assert half.kernel == SWEPT
    assert bool((half.c == 72).all())


def test_what_is_launched_is_what_was_inspected(cp):
    for kernel in DEFAULT_SET:
        need(kernel)
        (unit, *_) = kernel.units()
        assert set(artifact(unit).resources) == {kernel.entry()}
