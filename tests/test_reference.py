"""The float64 reference and the bounds: against arithmetic done another way."""

import math
from fractions import Fraction

import numpy as np
import pytest

from compare import reference
from compare.inputs import allocate, fill
from compare.reference import Reference, error_bound, is_exact, output_roundoff
from kernel.contract import Problem

NONFINITE = [0.0, 1.0, -2.0, math.inf, -math.inf, math.nan]


def whole(problem, a, b, c=None, nonfinite=False):
    blocks = list(Reference(problem, a, b, c, nonfinite).blocks())
    return tuple(np.concatenate([block[i] for block in blocks]) for i in (1, 2))


def test_matches_exact_rationals():
    problem = Problem(m=3, n=4, k=5, alpha=0.1, beta=-3.0)
    buffers = allocate(np, problem)
    fill(buffers)
    value, scale = whole(problem, buffers.a, buffers.b, buffers.c)
    alpha = Fraction(float(np.float32(0.1)))
    for i in range(3):
        for j in range(4):
            products = [Fraction(float(buffers.a[i, q])) * Fraction(float(buffers.b[q, j])) for q in range(5)]
            exact = alpha * sum(products) - 3 * Fraction(float(buffers.c[i, j]))
            assert value[i, j] == pytest.approx(float(exact), abs=1e-14)
            size = alpha * sum(map(abs, products)) + 3 * abs(Fraction(float(buffers.c[i, j])))
            assert scale[i, j] == pytest.approx(float(size), rel=1e-14)


def test_blocks_cover_every_row_once(monkeypatch):
    problem = Problem(m=37, n=5, k=3)
    buffers = allocate(np, problem)
    fill(buffers)
    at_once = whole(problem, buffers.a, buffers.b)
    monkeypatch.setattr(reference, "BLOCK_ELEMENTS", 40)
    rows = [block[0] for block in Reference(problem, buffers.a, buffers.b, None, False).blocks()]
    assert [row.start for row in rows] == list(range(0, 37, 8))
    assert rows[-1].stop == 37
    np.testing.assert_allclose(whole(problem, buffers.a, buffers.b), at_once, rtol=1e-14)


@pytest.mark.parametrize("alpha", [1.0, -2.0])
def test_nan_and_inf_follow_ieee_for_every_pair(alpha):
    a = np.array([[x, y] for x in NONFINITE for y in NONFINITE], dtype=np.float32)
    b = np.ascontiguousarray(a.T)
    problem = Problem(m=36, n=36, k=2, alpha=alpha)
    value, scale = whole(problem, a, b, nonfinite=True)
    with np.errstate(all="ignore"):
        expected = alpha * (a[:, None, 0].astype(float) * b[None, 0] + a[:, None, 1].astype(float) * b[None, 1])
    np.testing.assert_array_equal(value, expected)
    assert np.isfinite(scale).all()


def test_scale_only_ignores_a_and_b():
    c = np.full((2, 3), 3.0, np.float32)
    a, b = np.full((2, 4), np.nan, np.float32), np.full((4, 3), np.inf, np.float32)
    value, _ = whole(Problem(m=2, n=3, k=4, alpha=0.0, beta=2.0), a, b, c)
    assert (value == 6.0).all()
    value, _ = whole(Problem(m=2, n=3, k=0), a[:, :0], b[:0])
    assert (value == 0.0).all()


def test_bounds_per_track():
    def bound(k, track, distribution="uniform", **types):
        return error_bound(Problem(m=2, n=2, k=k, **types), track, distribution)

    assert bound(64, "fp32_simt") == bound(65536, "fp32_simt") == bound(64, "fp32_simt", "normal") == 8 * 2.0**-24
    assert bound(1000, "fp32_simt", "positive") == pytest.approx(1000 * 2.0**-24, rel=0.01)
    largest = error_bound(Problem(m=16384, n=16384, k=64), "fp32_simt", "uniform")
    assert 9 * 2.0**-24 < largest < 10 * 2.0**-24
    half = {"dtype_in": "float16", "dtype_out": "float16"}
    assert bound(1024, "fp16_tensor", "positive", **half) == pytest.approx(64 * 2.0**-23, rel=0.05)
    assert bound(1024, "fp16_tensor", **half) < bound(1024, "fp16_tensor", "positive", **half)
    assert bound(64, "tf32_tensor") == pytest.approx(2.0**-10, rel=0.02)
    assert bound(64, "tf32_tensor") > bound(4096, "tf32_tensor") > 1e-4
    for track in ("fp32_simt", "tf32_tensor", "fp16_tensor"):
        assert bound(64, track, "integers") == 0.0


def test_denormal_results_may_be_rounded_once_a_slice_of_k():
    step = 2.0**-149
    assert output_roundoff(Problem(m=2, n=2, k=8)) == (0.0, 1.5 * step)
    assert output_roundoff(Problem(m=2, n=2, k=80)) == (0.0, 6 * step)
    half = Problem(m=2, n=2, k=80, dtype_in="float16", dtype_out="float16")
    assert output_roundoff(half) == (2.0**-11, 2.0**-24)


@pytest.mark.parametrize(
    ("changes", "distribution", "exact"),
    [
        ({}, "integers", True),
        ({}, "uniform", False),
        ({"alpha": 0.5, "beta": 3.0}, "integers", True),
        ({"alpha": 0.3}, "integers", False),
        ({"alpha": float("inf")}, "integers", False),
        ({"alpha": 2.0**20}, "integers", False),
        ({"beta": 2.0**30}, "integers", False),
        ({"k": 2**25}, "integers", False),
        ({"k": 2**25}, "zeros", True),
        ({}, "identity", True),
        ({"alpha": 0.5}, "denormal", False),
        ({"alpha": 0.0, "beta": 0.1}, "uniform", True),
    ],
)
def test_exactness_is_claimed_only_where_it_holds(changes, distribution, exact):
    problem = Problem(**{"m": 3, "n": 3, "k": 100, **changes})
    assert is_exact(problem, "fp32_simt", distribution) is exact
    if distribution == "identity":
        assert not is_exact(problem, "tf32_tensor", distribution)
