"""Operands to check and time with: named distributions, guard bands, poison.

Values come from a counter-based hash of (seed, operand, row, column), so that NumPy and CuPy make the
same matrices bit for bit (``normal`` aside, whose logarithm and cosine may differ in the last place)
and an element does not depend on layout, leading dimension or extents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel.contract import ITEMSIZE, MAX_KNOWN_ALIGNMENT, Pointers, Problem

GUARD_BYTES = 1024
"""Memory before and behind every operand that nothing may read or write; a multiple of 256."""

POISON = {"float32": 0x7FC5A5A5, "float16": 0x7E5A}
"""Bits of the quiet NaN that fills guards, the gaps between rows and an output that nothing has written.
Arithmetic never makes it: NVIDIA's units answer 0x7FFFFFFF, and no input carries it."""

BITS = {"float32": "uint32", "float16": "uint16"}
CHUNK_ELEMENTS = 2**24
SUM_ELEMENTS = 2**28
INTEGER_LIMIT = 8
"""Integers are drawn from [-8, 8], fewer where k is so large that sums would leave the exact range."""


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """How A, B and, where beta is not 0, C are filled."""

    name: str
    meaning: str
    zero_mean: bool = False
    """Independent entries with mean 0: rounding errors then grow far slower than k."""
    nonfinite: bool = False
    """Holds NaN or Inf."""


DISTRIBUTIONS: dict[str, Distribution] = {
    d.name: d
    for d in (
        Distribution(name="uniform", meaning="U[-1, 1)", zero_mean=True),
        Distribution(name="normal", meaning="N(0, 1)", zero_mean=True),
        Distribution(name="integers", meaning="integers from -8 to 8; results are exact"),
        Distribution(name="zeros", meaning="zeros; results are exact"),
        Distribution(name="positive", meaning="U[0, 1): sums do not cancel"),
        Distribution(name="identity", meaning="A = 1024.5, B = identity: TF32 cannot hold 1024.5"),
        Distribution(name="vanish", meaning="A = 2048 and ones, B = 1: FP16 accumulation loses the ones"),
        Distribution(name="denormal", meaning="A = small integers times the smallest denormal; results are exact"),
        Distribution(name="nan", meaning="row 0 of A is 1, every other row NaN, B = 1", nonfinite=True),
        Distribution(name="inf", meaning="row 0 of A is 1, every other row Inf, B = 1", nonfinite=True),
        Distribution(name="special", meaning="U[-1, 1) with a few NaN, Inf and -Inf", nonfinite=True),
    )
}
"""Every way to fill operands; ``uniform`` is the default, ``zeros`` and ``integers`` never make a headline."""


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """Operands of one problem: views for arithmetic, and the flat memory that holds them and their guards.

    ``a``, ``b`` and ``c`` are m x k, k x n and m x n views with the problem's layout and leading
    dimensions. Everything of ``storage`` outside them is poison.
    """

    problem: Problem
    a: Any
    b: Any
    c: Any
    storage: dict[str, Any]
    front: dict[str, int]
    """Elements of ``storage`` before the operand's first."""

    @property
    def pointers(self) -> Pointers:
        """Device addresses; of a NumPy array, host addresses."""
        return Pointers(**{name: _address(self.storage[name]) + self._front_bytes(name) for name in ("a", "b", "c")})

    def _front_bytes(self, name: str) -> int:
        return self.front[name] * int(self.storage[name].itemsize)

    def bits(self, name: str) -> Any:
        """Flat storage as unsigned integers."""
        storage = self.storage[name]
        return storage.view(BITS[str(storage.dtype)])

    def poison_output(self) -> None:
        """Fill C and everything around it with poison."""
        self._poison("c")

    def poison_inputs(self) -> None:
        """Fill A, B and everything around them with poison."""
        self._poison("a")
        self._poison("b")

    def _poison(self, name: str) -> None:
        self.bits(name)[...] = POISON[str(self.storage[name].dtype)]

    def damaged_guards(self) -> dict[str, int]:
        """Elements outside each operand that no longer hold poison, by operand; empty if all do."""
        found: dict[str, int] = {}
        for name, rows, width, pitch in _spans(self.problem):
            bits, poison = self.bits(name), POISON[str(self.storage[name].dtype)]
            begin = self.front[name]
            end = begin + self.problem.extent(name)
            damaged = int((bits[:begin] != poison).sum()) + int((bits[end:] != poison).sum())
            if rows > 1 and width and pitch > width:
                gaps = _strided(bits[begin + width :], (rows - 1, pitch - width), (pitch, 1))
                damaged += int((gaps != poison).sum())
            if damaged:
                found[name] = damaged
        return found

    def input_sums(self) -> tuple[int, int]:
        """Sums of the bits of A and B, which a kernel must leave as they were."""
        return self._sum("a"), self._sum("b")

    def _sum(self, name: str) -> int:
        begin, end = self.front[name], self.front[name] + self.problem.extent(name)
        bits = self.bits(name)
        chunks = (bits[at : min(at + SUM_ELEMENTS, end)] for at in range(begin, end, SUM_ELEMENTS))
        return sum(int(chunk.sum(dtype="uint64")) for chunk in chunks)


def _spans(problem: Problem) -> tuple[tuple[str, int, int, int], ...]:
    """(operand, rows in memory, contiguous elements, pitch) of each operand."""
    return (
        ("a", problem.m if problem.layout[0] == "r" else problem.k, problem.a_width, problem.lda),
        ("b", problem.k if problem.layout[1] == "r" else problem.n, problem.b_width, problem.ldb),
        ("c", problem.m, problem.n, problem.ldc),
    )


def array_module(array: Any) -> Any:
    """NumPy or CuPy, whichever the array is of."""
    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def _strided(flat: Any, shape: tuple[int, int], steps: tuple[int, int]) -> Any:
    """A two-dimensional view of a flat array, steps in elements."""
    item = flat.itemsize
    strides = (steps[0] * item, steps[1] * item)
    return array_module(flat).lib.stride_tricks.as_strided(flat, shape, strides)


def allocate(xp: Any, problem: Problem) -> Buffers:
    """Poisoned memory for a problem; each operand's base has exactly the alignment the problem states.

    Args:
        xp: the module ``numpy`` or ``cupy``; CuPy allocates on the current device.
        problem: extents, layouts, leading dimensions and alignments.
    """
    dtypes = {"a": problem.dtype_in, "b": problem.dtype_in, "c": problem.dtype_out}
    aligns = {"a": problem.align_a, "b": problem.align_b, "c": problem.align_c}
    storage, front, views = {}, {}, {}
    for name, rows, width, pitch in _spans(problem):
        item = ITEMSIZE[dtypes[name]]
        offset = aligns[name] // item if aligns[name] < MAX_KNOWN_ALIGNMENT else 0
        front[name] = GUARD_BYTES // item + offset
        slack = MAX_KNOWN_ALIGNMENT // item
        flat = xp.empty(slack + front[name] + problem.extent(name) + GUARD_BYTES // item, dtype=dtypes[name])
        skip = -_address(flat) % MAX_KNOWN_ALIGNMENT // item
        flat = flat[skip : flat.size - slack + skip]
        flat.view(BITS[dtypes[name]])[...] = POISON[dtypes[name]]
        storage[name] = flat
        view = _strided(flat[front[name] :], (rows, width), (pitch, 1))
        views[name] = view.T if name != "c" and problem.layout["ab".index(name)] == "c" else view
    return Buffers(problem=problem, storage=storage, front=front, **views)


def fill(buffers: Buffers, distribution: str = "uniform", seed: int = 0) -> None:
    """Fill A and B, and C where beta is not 0; where beta is 0, C is left poisoned.

    Guards and gaps keep their poison. The same arguments give the same values.
    """
    problem = buffers.problem
    buffers.poison_output()
    _fill_matrix(buffers.a, "a", distribution, seed, problem)
    _fill_matrix(buffers.b, "b", distribution, seed, problem)
    if problem.beta != 0.0:
        _fill_matrix(buffers.c, "c", distribution, seed, problem)


def _fill_matrix(view: Any, name: str, distribution: str, seed: int, problem: Problem) -> None:
    rows, columns = view.shape
    if rows == 0 or columns == 0:
        return
    key = _mix_int(_mix_int(seed & 0xFFFFFFFF) ^ _mix_int(seed >> 32) ^ {"a": 0xA, "b": 0xB, "c": 0xC}[name])
    if distribution in ("nan", "inf"):
        view[...] = 1
        if name == "a":
            view[1:] = math.nan if distribution == "nan" else math.inf
        return
    if distribution == "zeros":
        view[...] = 0
        return
    if distribution == "identity" and name != "c":
        view[...] = 1024.5 if name == "a" else 0
        if name == "b":
            xp = array_module(view)
            diagonal = xp.arange(min(rows, columns))
            view[diagonal, diagonal] = 1
        return
    if distribution == "vanish" and name != "c":
        view[...] = 0 if name == "a" else 1
        if name == "a":
            view[:, ::16] = 1
            view[:, 0] = 2048
        return
    step = max(1, CHUNK_ELEMENTS // columns)
    draw = _drawing(distribution, name, problem)
    for begin in range(0, rows, step):
        view[begin : begin + step] = draw(array_module(view), key, begin, min(step, rows - begin), columns)
    if distribution == "special":
        _place_specials(view, name)


def _drawing(distribution: str, name: str, problem: Problem) -> Callable[[Any, int, int, int, int], Any]:
    """The function (module, key, first row, rows, columns) -> values of a random distribution."""
    if distribution == "normal":
        return _normal
    if distribution == "positive":
        return _positive
    if distribution in ("integers", "denormal", "identity", "vanish"):
        limit = integer_limit(problem)
        unit = smallest_denormal(problem.dtype_in) if distribution == "denormal" and name != "b" else 1.0

        def integers(xp: Any, key: int, begin: int, rows: int, columns: int) -> Any:
            whole = (_hash(xp, key, begin, rows, columns) % np.uint32(2 * limit + 1)).astype("int32") - limit
            if unit == 1.0:
                return whole.astype("float64")
            # Written as bits: CuPy's arithmetic flushes denormals of float32.
            kind = BITS[problem.dtype_in]
            sign = (whole < 0).astype(kind) << np.dtype(kind).type(8 * ITEMSIZE[problem.dtype_in] - 1)
            return (abs(whole).astype(kind) | sign).view(problem.dtype_in)

        return integers
    return _uniform


def _uniform(xp: Any, key: int, begin: int, rows: int, columns: int) -> Any:
    """U[-1, 1) on a grid of 2**-23, which float32 holds exactly."""
    high = _hash(xp, key, begin, rows, columns) >> np.uint32(8)
    return high.astype("float32") * np.float32(2.0**-23) - np.float32(1.0)


def _positive(xp: Any, key: int, begin: int, rows: int, columns: int) -> Any:
    high = _hash(xp, key, begin, rows, columns) >> np.uint32(8)
    return high.astype("float32") * np.float32(2.0**-24)


def _normal(xp: Any, key: int, begin: int, rows: int, columns: int) -> Any:
    """Box-Muller from two independent draws."""
    first = (_hash(xp, key, begin, rows, columns) >> np.uint32(8)).astype("float32")
    second = (_hash(xp, _mix_int(key ^ 0x5DEECE66), begin, rows, columns) >> np.uint32(8)).astype("float32")
    radius = xp.sqrt(np.float32(-2.0) * xp.log((first + np.float32(1.0)) * np.float32(2.0**-24)))
    return radius * xp.cos(second * np.float32(math.tau * 2.0**-24))


def _place_specials(view: Any, name: str) -> None:
    """A few non-finite entries: most rows and columns of the product stay finite wherever there are several."""
    rows, columns = view.shape
    if name == "a":
        view[rows - 1, columns - 1] = math.nan
        view[rows // 2, columns // 2] = math.inf
        view[rows // 3, columns // 3] = -math.inf
    elif name == "b":
        view[rows - 1, columns // 2] = -math.inf
        view[0, columns - 1] = math.nan
    else:
        view[rows - 1, 0] = math.inf


def widen(array: Any) -> Any:
    """A float16 or float32 array in float64, denormals included: CuPy's own conversion flushes those of float32."""
    wide = array.astype("float64")
    if isinstance(array, np.ndarray) or array.dtype != np.float32:
        return wide
    import cupy

    bits = cupy.ascontiguousarray(array).view("uint32")
    magnitude = bits & np.uint32(0x7FFFFFFF)
    small = magnitude.astype("float64") * 2.0**-149
    return cupy.where(magnitude < 0x00800000, cupy.where(bits >> np.uint32(31) != 0, -small, small), wide)


def integer_limit(problem: Problem) -> int:
    """Largest magnitude of the integers drawn for a problem, at least 1."""
    room = 2.0**20 / max(problem.k, 1)
    return max(1, min(INTEGER_LIMIT, math.isqrt(int(room))))


def smallest_denormal(dtype: str) -> float:
    """The smallest positive value of a data type."""
    return 2.0**-149 if dtype == "float32" else 2.0**-24


def _hash(xp: Any, key: int, begin: int, rows: int, columns: int) -> Any:
    """rows x columns independent 32-bit integers, a function of key, row and column alone."""
    row = _mix(xp.arange(begin, begin + rows, dtype="uint32") ^ np.uint32(key))
    column = xp.arange(columns, dtype="uint32") * np.uint32(0x9E3779B9)
    return _mix(row[:, None] + column[None, :])


def _mix(x: Any) -> Any:
    """A bijective 32-bit finaliser (Wellons' lowbias32), in place."""
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def _mix_int(x: int) -> int:
    return int(_mix(np.array([x & 0xFFFFFFFF], dtype=np.uint32))[0])
