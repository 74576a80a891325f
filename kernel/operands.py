"""Arrays of three libraries turned into pointers, extents and a layout; everything is checked here.

NumPy arrays, CuPy arrays and torch tensors are accepted wherever an operand is. Raw kernels ignore
strides, so nothing reaches a launch that has not come through :func:`operand`.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel.contract import ITEMSIZE, Pointers, Problem, pointer_alignment
from kernel.errors import DeviceError, DtypeError, LayoutError, MissingToolError, ProblemError, ShapeError

HOST = -1
"""Device ordinal of an array in host memory."""


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A two-dimensional array as a GEMM sees it. ``owner`` keeps the memory alive."""

    name: str
    pointer: int
    rows: int
    columns: int
    layout: str
    """``r`` where columns are contiguous, ``c`` where rows are."""
    pitch: int
    """Leading dimension, elements."""
    dtype: str
    device: int
    """CUDA ordinal, or HOST."""
    owner: Any

    @property
    def alignment(self) -> int:
        """Largest power of two that divides the base pointer, bytes."""
        return pointer_alignment(self.pointer)

    @property
    def lines(self) -> tuple[int, int, int]:
        """What it occupies: lines of contiguous elements, bytes of each, and bytes from one's begin to the next's."""
        item = ITEMSIZE[self.dtype]
        count, width = (self.rows, self.columns) if self.layout == "r" else (self.columns, self.rows)
        return count, width * item, self.pitch * item


def overlap(x: Operand, y: Operand) -> bool:
    """Whether some byte belongs to an element of both: exact for every pair of pitches, in a handful of steps."""
    count, width, step = x.lines
    lines, size, pitch = y.lines
    if not (count and width and lines and size):
        return False
    # Byte offsets from x's first element. Line j of y begins at start = gap + j * pitch and meets line i of x where
    # start - width < i * step < start + size, so that lines of x beyond its first or last bound j alone.
    gap = y.pointer - x.pointer
    first = max(0, -((gap + size - 1) // pitch))
    last = min(lines - 1, ((count - 1) * step + width - 1 - gap) // pitch)
    if first > last:
        return False
    begin, number = gap + first * pitch, last - first + 1
    return _floors(number, step, pitch, begin + size - 1) > _floors(number, step, pitch, begin - width)


def _floors(number: int, divisor: int, factor: int, offset: int) -> int:
    """The sum of floor((factor * j + offset) / divisor) over j from 0 to number - 1, by Euclid's algorithm."""
    total = 0
    while number > 0:
        total += factor // divisor * (number * (number - 1) // 2) + offset // divisor * number
        factor, offset = factor % divisor, offset % divisor
        number, offset = divmod(factor * number + offset, divisor)
        factor, divisor = divisor, factor
        if divisor == 0:
            break
    return total


def operand(array: Any, name: str, *, written: bool = False) -> Operand:
    """Read an array's memory layout.

    Args:
        array: two-dimensional NumPy array, CuPy array or torch tensor (CPU or CUDA).
        name: what errors call it: A, B or C.
        written: whether it is to be written to.

    Raises:
        DtypeError: not an array, or an element type other than float32 and float16.
        ShapeError: not two-dimensional.
        LayoutError: neither rows nor columns are contiguous, rows overlap, an element is not aligned, or it is
            ``written`` and can only be read.
        MissingToolError: it does not say on which GPU it lies, and CuPy is not there to ask.
    """
    read_only = False
    if type(array).__module__.split(".")[0] == "torch":
        if array.is_sparse or array.layout.__str__() != "torch.strided":
            raise LayoutError(f"{name} is a {array.layout} tensor; a dense (strided) one is needed")
        if array.is_conj() or array.is_neg():
            raise LayoutError(f"{name} is a lazy conjugate or negative view; call .resolve_conj() or .resolve_neg()")
        pointer = array.data_ptr()
        device = array.device.index if array.device.type == "cuda" else HOST
        if array.device.type not in ("cuda", "cpu"):
            raise DeviceError(f"{name} is on {array.device}; a CUDA or CPU tensor is needed")
        shape, dtype = tuple(array.shape), str(array.dtype).removeprefix("torch.")
        steps = tuple(float(step) for step in array.stride())
    elif hasattr(array, "__cuda_array_interface__"):
        interface = array.__cuda_array_interface__
        (pointer, read_only), device = interface["data"], _device_of(array)
        shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"]).name
        item = np.dtype(interface["typestr"]).itemsize
        strides = interface.get("strides")
        steps = tuple(step / item for step in strides) if strides else _packed_steps(shape)
    elif isinstance(array, np.ndarray):
        if isinstance(array, np.ma.MaskedArray):
            raise LayoutError(f"{name} is a masked array; a GEMM knows no mask, so fill it first")
        if not array.dtype.isnative:
            raise DtypeError(f"{name} is in the other byte order; call .astype('{array.dtype.name}')")
        pointer, device, read_only = array.ctypes.data, HOST, not array.flags.writeable
        shape, dtype = array.shape, array.dtype.name
        steps = tuple(step / array.itemsize for step in array.strides)
    else:
        raise DtypeError(f"{name} is a {type(array).__name__}; a NumPy array, CuPy array or torch tensor is needed")
    if dtype not in ITEMSIZE:
        raise DtypeError(f"{name} has elements of {dtype}; {' or '.join(ITEMSIZE)} is needed, so convert it first")
    if len(shape) != 2:
        raise ShapeError(f"{name} has shape {tuple(shape)}; a matrix of two dimensions is needed")
    if written and read_only:
        raise LayoutError(f"{name} can only be read, and the result is written to it; pass an array of your own")
    if pointer % ITEMSIZE[dtype]:
        size = ITEMSIZE[dtype]
        raise LayoutError(f"{name} begins at {pointer:#x}; a multiple of an element's {size} bytes is needed")
    layout, pitch = _layout(name, (int(shape[0]), int(shape[1])), (steps[0], steps[1]))
    return Operand(
        name=name,
        pointer=int(pointer),
        rows=int(shape[0]),
        columns=int(shape[1]),
        layout=layout,
        pitch=pitch,
        dtype=dtype,
        device=device,
        owner=array,
    )


def _device_of(array: Any) -> int:
    device = getattr(array, "device", None)
    ordinal = getattr(device, "id", None)
    if ordinal is not None:
        return int(ordinal)
    try:
        import cupy
    except ImportError as error:
        raise MissingToolError(
            f"an array on a GPU does not say on which, and CuPy, which could, cannot be imported ({error}); "
            "pip install 'gemm-tracks[gpu]' brings it"
        ) from None
    return int(cupy.cuda.runtime.pointerGetAttributes(array.__cuda_array_interface__["data"][0]).device)


def _packed_steps(shape: tuple[int, ...]) -> tuple[float, ...]:
    steps, step = [], 1.0
    for extent in reversed(shape):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def _layout(name: str, shape: tuple[int, int], steps: tuple[float, float]) -> tuple[str, int]:
    """Layout letter and pitch from shape and strides, both in elements."""
    rows, columns = shape
    if rows == 0 or columns == 0:
        return "r", max(columns, 1)
    row_step, column_step = steps
    fits_row = column_step == 1 or columns == 1
    fits_column = row_step == 1 or rows == 1
    if fits_row and (rows == 1 or (row_step >= columns and row_step == int(row_step))):
        return "r", columns if rows == 1 else int(row_step)
    if fits_column and (columns == 1 or (column_step >= rows and column_step == int(column_step))):
        return "c", rows if columns == 1 else int(column_step)
    raise LayoutError(
        f"{name} of shape {rows}x{columns} has strides ({row_step:g}, {column_step:g}) elements; one stride must be 1 "
        "and the other at least the contiguous extent (pass a contiguous copy)"
    )


def scalar(value: Any, name: str) -> float:
    """alpha or beta as a float, from a Python or NumPy number or a 0-d array (read from the device).

    Raises:
        DtypeError: not a real number.
        ProblemError: larger than any float.
    """
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise DtypeError(f"{name} is {value!r}; a real number is needed")
    try:
        return float(value)
    except OverflowError:
        raise ProblemError(f"{name} is beyond 1.8e308; kernels take it as a float32, at most 3.4e38") from None


def agree(a: Operand, b: Operand, c: Operand | None = None) -> None:
    """Refuse operands that state no GEMM wherever they lie; :func:`describe` looks at the rest.

    Raises:
        ShapeError: extents disagree.
        DtypeError: A and B differ in type.
        LayoutError: C is not row-major.
    """
    if a.columns != b.rows:
        raise ShapeError(
            f"A is {a.rows}x{a.columns} and B is {b.rows}x{b.columns}: A's columns and B's rows are both k and must "
            "agree (pass B.T if B is stored transposed)"
        )
    if c is not None and (c.rows, c.columns) != (a.rows, b.columns):
        raise ShapeError(f"C is {c.rows}x{c.columns}; A @ B is {a.rows}x{b.columns}")
    if a.dtype != b.dtype:
        raise DtypeError(f"A holds {a.dtype} and B holds {b.dtype}; both must have one type")
    if c is not None and c.layout != "r":
        raise LayoutError("C is column-major; C must be row-major (compute C.T = B.T @ A.T to get the other)")


def describe(
    a: Operand,
    b: Operand,
    c: Operand,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    dtype_acc: str = "float32",
) -> tuple[Problem, Pointers]:
    """The GEMM that three operands state: C = alpha * A @ B + beta * C.

    Raises:
        ShapeError: extents disagree.
        DtypeError: A and B differ in type.
        DeviceError: operands lie on different devices.
        LayoutError: C is not row-major, or an element of it is one of A or B.
    """
    agree(a, b, c)
    if not a.device == b.device == c.device:
        places = ", ".join(f"{o.name} on {'the host' if o.device == HOST else f'GPU {o.device}'}" for o in (a, b, c))
        raise DeviceError(f"operands lie on different devices ({places}); move them to one")
    for read in (a, b):
        if overlap(c, read):
            raise LayoutError(
                f"C and {read.name} share elements, and {read.name} is read while C is written; pass another array as "
                f"C, or a copy of {read.name}"
            )
    problem = Problem(
        m=a.rows,
        n=b.columns,
        k=a.columns,
        dtype_in=a.dtype,
        dtype_acc=dtype_acc,
        dtype_out=c.dtype,
        layout=a.layout + b.layout,
        lda=a.pitch,
        ldb=b.pitch,
        ldc=c.pitch,
        alpha=scalar(alpha, "alpha"),
        beta=scalar(beta, "beta"),
        align_a=a.alignment,
        align_b=b.alignment,
        align_c=c.alignment,
    )
    return problem, Pointers(a=a.pointer, b=b.pointer, c=c.pointer)
