"""cuBLAS through ctypes: what CuPy's own binding cannot do.

CuPy's binding sets the stream before every call, which makes cuBLAS forget a workspace it was given,
and it refuses to be captured into a graph. Handles here are ours alone, one per device, so modes set
on them never leak into CuPy or torch.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernel.errors import LaunchError, MissingToolError

WORKSPACE_BYTES = 32 * 2**20
"""What cuBLAS's manual advises for Hopper, and what it takes by itself there."""

NO_TRANSPOSE, TRANSPOSE = 0, 1
DATA_TYPE = {"float32": 0, "float16": 2}
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
DEFAULT_ALGORITHM = -1
DEFAULT_MATH = 0
NO_REDUCED_PRECISION_REDUCTION = 16
"""Math mode: partial sums are reduced in the accumulator's type, never in FP16."""

STATUS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
    16: "CUBLAS_STATUS_LICENSE_ERROR",
}

ENVIRONMENT = (
    "CUPY_TF32",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
)
"""Environment variables that change what cuBLAS or torch compute; provenance records those that are set."""


def library_files() -> Iterator[Path]:
    """Files that look like cuBLAS, from wheels, CUDA_HOME and the usual system folders; nothing is loaded."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    folders = [folder for root in roots for folder in sorted(root.glob("*/lib"), reverse=True)]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            folders += [Path(os.environ[variable]) / name for name in ("lib64", "lib")]
    folders += [Path(text) for text in os.environ.get("LD_LIBRARY_PATH", "").split(":") if text]
    folders += [Path("/usr/local/cuda/lib64"), Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64")]
    for folder in folders:
        yield from sorted(folder.glob("libcublas.so.1[23]"), reverse=True)


@functools.cache
def library() -> tuple[ctypes.CDLL, str]:
    """The loaded library and its path: the one that CuPy loads.

    Raises:
        MissingToolError: it was not found.
    """
    try:
        from cuda import pathfinder

        path = str(pathfinder.load_nvidia_dynamic_lib("cublas").abs_path)
    except Exception as error:
        path = next(map(str, library_files()), "")
        if not path:
            raise MissingToolError(
                f"cuBLAS was not found ({error}); pip install nvidia-cublas, or install the CUDA toolkit"
            ) from None
    return declared(ctypes.CDLL(path), SIGNATURES), path


def declared(library: ctypes.CDLL, signatures: Mapping[str, list[Any]]) -> ctypes.CDLL:
    """The library with the types of its functions' arguments set; each returns a status."""
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    return library


INT, POINTER = ctypes.c_int, ctypes.c_void_p
SIGNATURES: dict[str, list[Any]] = {
    "cublasCreate_v2": [POINTER],
    "cublasSetStream_v2": [POINTER, POINTER],
    "cublasSetWorkspace_v2": [POINTER, POINTER, ctypes.c_size_t],
    "cublasSetMathMode": [POINTER, INT],
    "cublasSgemm_v2": [
        POINTER, INT, INT, INT, INT, INT, POINTER, POINTER, INT, POINTER, INT, POINTER, POINTER, INT,
    ],
    "cublasGemmEx": [
        POINTER, INT, INT, INT, INT, INT, POINTER, POINTER, INT, INT, POINTER, INT, INT, POINTER,
        POINTER, INT, INT, INT, INT,
    ],
}  # fmt: skip


def call(name: str, *values: Any) -> None:
    """Call a cuBLAS function.

    Raises:
        LaunchError: its status is not success.
    """
    require_success(name, getattr(library()[0], name)(*values))


def require_success(name: str, status: int) -> None:
    """
    Raises:
        LaunchError: the status that a function of cuBLAS or cublasLt answered is not success.
    """
    if status != 0:
        raise LaunchError(f"{name} answered {STATUS.get(status, f'status {status}')}")


class Handle:
    """A cuBLAS handle on the current device with a workspace of its own."""

    def __init__(self) -> None:
        import cupy

        value = ctypes.c_void_p()
        call("cublasCreate_v2", ctypes.byref(value))
        self.value = value
        self._workspace = cupy.cuda.alloc(WORKSPACE_BYTES)

    @property
    def workspace(self) -> int:
        """Device address of ``WORKSPACE_BYTES`` bytes."""
        return int(self._workspace.ptr)

    def bind(self, stream: int, math_mode: int) -> None:
        """Set stream, workspace and math mode for the next call; the workspace must follow the stream."""
        call("cublasSetStream_v2", self.value, stream)
        call("cublasSetWorkspace_v2", self.value, self._workspace.ptr, WORKSPACE_BYTES)
        call("cublasSetMathMode", self.value, math_mode)


_handles: dict[int, Handle] = {}


def handle() -> Handle:
    """The handle of the current device. Calls through it must not run at the same time on two streams."""
    import cupy

    device = int(cupy.cuda.runtime.getDevice())
    if device not in _handles:
        _handles[device] = Handle()
    return _handles[device]
