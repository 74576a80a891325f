"""CuTe DSL kernels on a GPU, from the bundle: no DSL is needed there."""

import numpy as np
import pytest

from cutlass_ref.cute.catalog import KERNELS, get
from cutlass_ref.cute.emit import missing
from kernel.build import lookup
from kernel.contract import LAYOUTS, Pointers, Problem, pointer_alignment
from kernel.errors import RejectedError
from kernel.launch import prepare

pytestmark = pytest.mark.gpu

SGEMM = get("cute_sgemm")
FP16 = tuple(kernel for kernel in KERNELS if kernel.track == "fp16_tensor")
SGEMM_SHAPES = (
    (1, 1, 1, 1.0, 0.0, 0),
    (130, 130, 35, 1.0, 0.0, 0),
    (257, 260, 17, 0.5, 3.0, 4),
    (1023, 769, 100, 1.0, 0.0, 1),
    (7, 4, 4097, 2.0, 1.0, 0),
    (1024, 1024, 1024, 1.0, 0.0, 0),
    (3000, 2056, 12, 1.0, 2.0, 0),
)
FP16_SHAPES = ((128, 256, 64, 0), (136, 264, 40, 0), (8, 16, 72, 8), (1000, 520, 200, 8), (2048, 2056, 136, 0))


@pytest.fixture(scope="module")
def cp():
    return pytest.importorskip("cupy")


def need(kernel):
    """Skip where the kernel neither came along nor can be built here."""
    absent = [name for program in kernel.programs() for name in missing(program)]
    if absent and any(lookup(unit) is None for unit in kernel.units()):
        pytest.skip(f"{kernel.name} is not in the bundle and {absent[0]} is not installed")


def place(cp, values, layout, gap):
    """(device array with NaN between its rows, leading dimension)."""
    stored = values if layout == "r" else values.T
    padded = np.full((stored.shape[0], stored.shape[1] + gap), np.nan, values.dtype)
    padded[:, : stored.shape[1]] = stored
    return cp.asarray(padded), padded.shape[1]


def run(cp, kernel, layout, a, b, c=None, *, alpha=1.0, beta=0.0, gap=0):
    (m, k), n = a.shape, b.shape[1]
    old = np.full((m, n), np.nan, kernel.dtype_out) if c is None else c.astype(kernel.dtype_out)
    (da, lda), (db, ldb), (dc, ldc) = (
        place(cp, a.astype(kernel.dtype_in), layout[0], gap),
        place(cp, b.astype(kernel.dtype_in), layout[1], gap),
        place(cp, old, "r", gap),
    )
    problem = Problem(
        m=m,
        n=n,
        k=k,
        layout=layout,
        dtype_in=kernel.dtype_in,
        dtype_out=kernel.dtype_out,
        lda=lda,
        ldb=ldb,
        ldc=ldc,
        alpha=alpha,
        beta=beta,
        align_a=pointer_alignment(da.data.ptr),
        align_b=pointer_alignment(db.data.ptr),
        align_c=pointer_alignment(dc.data.ptr),
    )
    stream = cp.cuda.get_current_stream()
    prepare(kernel, problem, Pointers(a=da.data.ptr, b=db.data.ptr, c=dc.data.ptr)).enqueue(stream.ptr)
    stream.synchronize()
    found = cp.asnumpy(dc)
    assert np.isnan(found[:, n:]).all(), "wrote between C's rows"
    return found[:, :n]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SGEMM_SHAPES, ids=str)
def test_sgemm_gives_integers_to_the_bit(cp, layout, shape):
    need(SGEMM)
    m, n, k, alpha, beta, gap = shape
    rng = np.random.default_rng(5)
    a, b, c = (rng.integers(-8, 9, extents).astype(np.float32) for extents in ((m, k), (k, n), (m, n)))
    expected = alpha * (a.astype(np.float64) @ b) + beta * c
    got = run(cp, SGEMM, layout, a, b, c if beta else None, alpha=alpha, beta=beta, gap=gap)
    assert np.array_equal(got, expected.astype(np.float32))


def test_sgemm_keeps_fp32(cp):
    need(SGEMM)
    a, identity = np.full((512, 512), 1024.5, np.float32), np.eye(512, dtype=np.float32)
    assert np.array_equal(run(cp, SGEMM, "rr", a, identity), a)


@pytest.mark.parametrize("kernel", FP16, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nvidias_kernels_give_integers_to_the_bit(cp, kernel, layout):
    need(kernel)
    rng = np.random.default_rng(6)
    for m, n, k, gap in FP16_SHAPES:
        a, b = (rng.integers(-3, 4, extents).astype(np.float16) for extents in ((m, k), (k, n)))
        expected = (a.astype(np.float64) @ b).astype(np.float16)
        assert np.array_equal(run(cp, kernel, layout, a, b, gap=gap), expected), (m, n, k, gap)


@pytest.mark.parametrize("kernel", FP16, ids=lambda kernel: kernel.name)
def test_a_refused_problem_launches_nothing(cp, kernel):
    need(kernel)
    a, b = np.ones((16, 13), np.float16), np.ones((13, 16), np.float16)
    with pytest.raises(RejectedError, match="lda = 13"):
        run(cp, kernel, "rr", a, b)
