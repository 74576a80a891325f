"""The float64 reference, and how far from it a right result may be.

Every element is checked at every size, row block by row block; nothing is sampled. On an H200 the
reference runs on the GPU at the speed of its float64 Tensor Cores, so 8192 cubed costs tens of
milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from compare.inputs import DISTRIBUTIONS, array_module, integer_limit, widen
from kernel.contract import Problem

BLOCK_ELEMENTS = 2**25
"""Elements of C that are compared at a time; 256 MiB in float64."""

ROUNDOFF = 2.0**-24
"""Unit roundoff of float32."""

LARGEST = {"float32": 3.4028234663852886e38, "float16": 65504.0}
HALF_STEP = {"float32": (2.0**-24, 2.0**-150), "float16": (2.0**-11, 2.0**-25)}
"""Half a step of the output type: relative, and absolute among denormals."""

SHORTEST_SLICE = 8
"""Steps of k: no kernel here cuts k finer."""

EXACT_SUM = 2**24
"""Below this, sums of integers are exact in float32 in any order."""


def single(value: float) -> float:
    """alpha or beta as the kernels get it: rounded to float32."""
    return float(np.float32(value))


def error_bound(problem: Problem, track: str, distribution: str) -> float:
    """Largest |C - reference| / scale of a right result before C is rounded to its type.

    The scale is |alpha| |A| @ |B| + |beta| |C|. 0 means that the result has to agree to the bit.

    - FP32, zero-mean data: 8 * 2**-24 at every k. Partial sums of independent entries grow with the
      square root of k while the scale grows with k, so the bound need not grow; a TF32 result fails it.
      Beyond 2**24 elements the farthest of them lies farther out: the logarithm of their number scales it
      (one element of 12288 squared was at 8.05).
    - FP32, other data: (k + 3) * 2**-24, the textbook bound: k roundings, then alpha, beta and their sum.
    - TF32: each operand may be cut to 10 bits, 2**-10 of it, so 2**-9 of a product at worst. On
      zero-mean data the cuts average out: 2**-10 at k = 64, falling as 8 / sqrt(k), never above 2**-9.
    - FP16 inputs: products are exact; Tensor Cores cut the running sum to 24 bits once every 16 steps,
      so ceil(k / 16) * 2**-23. On zero-mean data the running sum is about sqrt(k) / 3 against a scale of
      k / 4, so (4 + sqrt(k) / 2) * 2**-23 where that is less.
    """
    if is_exact(problem, track, distribution):
        return 0.0
    k, zero_mean = problem.k, DISTRIBUTIONS[distribution].zero_mean
    if problem.is_scale_only:
        return ROUNDOFF
    epilogue = 3 * ROUNDOFF
    if track == "fp32_simt":
        elements = problem.m * problem.n
        return 8 * max(1.0, math.log2(elements) / 24) * ROUNDOFF if zero_mean else (k + 3) * ROUNDOFF
    if track == "tf32_tensor":
        cut = min(2.0**-9, 2.0**-10 * 8 / math.sqrt(k)) if zero_mean else 2.0**-9
        return cut + epilogue + math.ceil(k / 8) * 2.0**-23 * (0.25 if zero_mean else 1.0)
    steps = math.ceil(k / 16)
    return (min(steps, 4 + math.sqrt(k) / 2) if zero_mean else steps) * 2.0**-23 + epilogue


def output_roundoff(problem: Problem) -> tuple[float, float]:
    """What rounding to the output type adds to the bound: relative to the value, and absolute.

    Above the denormals the bound of float32 holds its output's rounding already. Among them every product with
    alpha and beta is rounded to whole steps, and a kernel that splits k scales each slice: at most ceil(k / 8).
    """
    relative, absolute = HALF_STEP[problem.dtype_out]
    if problem.dtype_out == "float16":
        return relative, 2 * absolute
    return 0.0, (2 + math.ceil(problem.k / SHORTEST_SLICE)) * absolute


def is_exact(problem: Problem, track: str, distribution: str) -> bool:
    """Whether a right result is known to the bit: every sum, in any order, is exact in float32.

    The output is then the reference rounded once to the output type.
    """
    if problem.is_scale_only:
        return problem.dtype_out == "float32"
    k = problem.k
    limit = integer_limit(problem)
    total, unit_bits = {
        "zeros": (0, 0),
        "integers": (k * limit * limit, 0),
        "denormal": (k * limit * limit, 0),
        "vanish": (2048 + k // 16, 0),
        "identity": (2049, 1),
        "nan": (k, 0),
        "inf": (k, 0),
    }.get(distribution, (EXACT_SUM, 0))
    if distribution == "identity" and track != "fp32_simt":
        return False
    alpha, beta = single(problem.alpha), single(problem.beta)
    if not (math.isfinite(alpha) and math.isfinite(beta)):
        return False
    fraction_bits = unit_bits + (0 if alpha == int(alpha) and beta == int(beta) else 3)
    if distribution == "denormal" and fraction_bits:
        return False
    if (alpha * 8) % 1 or (beta * 8) % 1:
        return False
    c_limit = 1 if distribution in ("nan", "inf") else limit
    return bool((max(total, total * abs(alpha)) + abs(beta) * c_limit) * 2**fraction_bits < EXACT_SUM)


class Reference:
    """alpha * A @ B + beta * C in float64, by row blocks, with the scale that errors are divided by.

    Args:
        problem: not empty.
        a: m x k, NumPy or CuPy.
        b: k x n.
        c: C before the call, m x n; None where beta is 0.
        nonfinite: whether A, B or C hold NaN or Inf.
    """

    def __init__(self, problem: Problem, a: Any, b: Any, c: Any, nonfinite: bool) -> None:
        self.problem, self._a, self._c = problem, a, c
        self._nonfinite = nonfinite
        self._xp = array_module(a)
        if not problem.is_scale_only:
            self._b64 = widen(b)

    def blocks(self) -> Iterator[tuple[slice, Any, Any]]:
        """(rows, reference, scale), both float64, for consecutive row blocks that cover C."""
        step = max(1, BLOCK_ELEMENTS // max(self.problem.n, self.problem.k, 1))
        for begin in range(0, self.problem.m, step):
            rows = slice(begin, min(begin + step, self.problem.m))
            with np.errstate(all="ignore"):
                yield rows, *self._block(rows)

    def _block(self, rows: slice) -> tuple[Any, Any]:
        xp, problem = self._xp, self.problem
        alpha, beta = single(problem.alpha), single(problem.beta)
        shape = (rows.stop - rows.start, problem.n)
        if problem.is_scale_only:
            value, scale = xp.zeros(shape), xp.zeros(shape)
        else:
            a64 = widen(self._a[rows])
            value, scale = self._product(a64)
            value, scale = value * alpha, scale * abs(alpha)
        if beta != 0.0:
            c64 = widen(self._c[rows])
            value, scale = value + beta * c64, scale + abs(beta) * xp.where(xp.isfinite(c64), abs(c64), 0.0)
        return value, scale

    def _product(self, a: Any) -> tuple[Any, Any]:
        """(A @ B, |A| @ |B|); NaN and Inf are settled by counting, so that no BLAS can lose one."""
        xp, b = self._xp, self._b64
        if not self._nonfinite:
            return a @ b, abs(a) @ abs(b)
        finite_a, finite_b = (xp.where(xp.isfinite(x), x, 0.0) for x in (a, b))
        value, scale = finite_a @ finite_b, abs(finite_a) @ abs(finite_b)

        def count(left: Any, right: Any) -> Any:
            return left.astype("float64") @ right.astype("float64")

        infinite_a, infinite_b = xp.isinf(a), xp.isinf(b)
        some_a, some_b = xp.ones_like(infinite_a), xp.ones_like(infinite_b)
        nan = count(xp.isnan(a), some_b) + count(some_a, xp.isnan(b))
        nan += count(infinite_a, b == 0) + count(a == 0, infinite_b)
        positive = count(infinite_a & (a > 0), b > 0) + count(infinite_a & (a < 0), b < 0)
        positive += count(a > 0, infinite_b & (b > 0)) + count(a < 0, infinite_b & (b < 0))
        negative = count(infinite_a & (a > 0), b < 0) + count(infinite_a & (a < 0), b > 0)
        negative += count(a > 0, infinite_b & (b < 0)) + count(a < 0, infinite_b & (b > 0))
        value = xp.where(positive > 0, math.inf, value)
        value = xp.where(negative > 0, -math.inf, value)
        return xp.where((nan > 0) | ((positive > 0) & (negative > 0)), math.nan, value), scale
