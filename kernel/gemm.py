"""Call one kernel on arrays: the same checks and the same launch site for every family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernel.contract import Kernel, Problem
from kernel.errors import CatalogError, DtypeError
from kernel.launch import cupy_module, prepare
from kernel.operands import HOST, agree, describe, operand, scalar


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a call did: the array that holds C, and which kernel and build ran."""

    c: Any
    kernel: str
    variant: str
    problem: Problem
    copied: tuple[str, ...]
    """Operands that were copied between host and device; never part of a kernel's time."""


def gemm(kernel: Kernel, a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0) -> Result:
    """C = alpha * A @ B + beta * C with one kernel, on the arrays' device and its current stream.

    Args:
        kernel: a catalog entry.
        a: m x k, NumPy, CuPy or torch, in a layout and type that the kernel takes.
        b: k x n, likewise.
        c: m x n, row-major, updated in place; left out, a new array of A's library (beta must then be 0). On a device
            no element of it may be one of A or B: column slices that lie side by side in one array are apart.
        alpha: real number or 0-d array.
        beta: likewise.

    Raises:
        CatalogError: ``kernel`` is no catalog entry.
        ShapeError, LayoutError, DtypeError, DeviceError: operands do not state a GEMM.
        ProblemError: a scalar is too large for a float32.
        RejectedError: the kernel cannot run it; the text says why.
        NoDeviceError, MissingToolError: no GPU, or CuPy or the compiler is missing.
    """
    if not isinstance(kernel, Kernel):
        raise CatalogError(
            f"kernel is {kernel!r}; an entry of a catalog is needed, such as handwritten.catalog.get('v2_block_tile')"
        )
    alpha, beta = scalar(alpha, "alpha"), scalar(beta, "beta")
    if c is None and beta != 0.0:
        raise DtypeError("beta is not 0 and C was not given; pass the C that beta scales")
    first = operand(a, "A")
    agree(first, operand(b, "B"), None if c is None else operand(c, "C", written=True))
    cupy = cupy_module()
    device = cupy.cuda.runtime.getDevice() if first.device == HOST else first.device
    copied: list[str] = []

    def on_device(array: Any, name: str) -> Any:
        if operand(array, name).device != HOST:
            return array
        copied.append(name)
        return _to_device(cupy, array)

    with cupy.cuda.Device(device):
        device_a, device_b = on_device(a, "A"), on_device(b, "B")
        if c is None:
            shape = (first.rows, operand(b, "B").columns)
            device_c = cupy.empty(shape, dtype=kernel.dtype_out)
        else:
            device_c = on_device(c, "C")
        operands = (operand(device_a, "A"), operand(device_b, "B"), operand(device_c, "C"))
        problem, pointers = describe(*operands, alpha=alpha, beta=beta, dtype_acc=kernel.dtype_acc)
        ready = prepare(kernel, problem, pointers)
        ready.enqueue(cupy.cuda.get_current_stream().ptr if not _is_torch(a) else _torch_stream(device))
        result = _hand_back(cupy, a, first.device == HOST, c, device_c)
    return Result(c=result, kernel=kernel.name, variant=ready.variant, problem=problem, copied=tuple(copied))


def _is_torch(array: Any) -> bool:
    return type(array).__module__.split(".")[0] == "torch"


def _torch_stream(device: int) -> int:
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)


def _to_device(cupy: Any, array: Any) -> Any:
    """A device copy of a host array that keeps its layout."""
    host = array.detach().numpy() if _is_torch(array) else array
    order = "F" if host.flags.f_contiguous and not host.flags.c_contiguous else "C"
    return cupy.asarray(host, order=order)


def _hand_back(cupy: Any, a: Any, from_host: bool, c: Any, device_c: Any) -> Any:
    """C in the caller's library; a host C is filled in place."""
    if c is None:
        if _is_torch(a):
            import torch

            tensor = torch.from_dlpack(device_c)
            return tensor.cpu() if from_host else tensor
        return cupy.asnumpy(device_c) if from_host else device_c
    if device_c is c:
        return c
    host = c.detach().numpy() if _is_torch(c) else c
    host[...] = cupy.asnumpy(device_c)
    return c
