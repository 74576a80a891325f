"""cuBLAS and torch as contenders: the same problem, the same memory, a library's choice of kernel.

A row-major C is computed as its transpose, C^T = B^T A^T, which is what a column-major library sees
in the same memory; no operand is copied. Problems with alpha = 0 or k = 0 take the scale-only launch
that all families share.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib.util
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import cublas, cublaslt
from compare.contenders import Contender, Prepared, is_installed, settled_variant
from kernel.contract import INT32_MAX, ITEMSIZE, LAYOUTS, Argument, Kernel, Launch, Pointers, Problem, Tile, Unit
from kernel.errors import LaunchError, MissingToolError, RejectedError
from kernel.plan import scale_unit


@dataclass(frozen=True, kw_only=True)
class ScaleOnly(Kernel):
    """The kernel behind a library's alpha = 0 and k = 0; :func:`kernel.plan.plan` settles its launches."""

    def units(self) -> tuple[Unit, ...]:
        return (scale_unit(self.arch),)

    def rejects(self, problem: Problem) -> str | None:
        return "only problems with alpha = 0 or k = 0 are scaled"

    def variant(self, problem: Problem) -> str:
        return settled_variant(problem)

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        return ()

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class LibraryContender(Contender):
    """A GEMM call of a library; subclasses bind it."""

    layouts: tuple[str, ...] = LAYOUTS
    is_default: bool = True

    def rejects(self, problem: Problem) -> str | None:
        reason = self.rejects_type_or_layout(problem)
        if reason is not None:
            return reason
        largest = max(problem.lda, problem.ldb, problem.ldc)
        if largest > INT32_MAX:
            return f"a leading dimension of {largest} elements; {self.name} takes 32-bit ones"
        return None

    def variant(self, problem: Problem) -> str:
        return settled_variant(problem)

    def prepare(self, problem: Problem, pointers: Pointers, stream: int) -> Prepared:
        reason = self.rejects(problem)
        if reason is not None:
            raise RejectedError(f"{self.name}: {reason}")
        from kernel import launch

        cupy = launch.cupy_module()
        if settled_variant(problem):
            number = cupy.cuda.Device().compute_capability
            kernel = ScaleOnly(
                name=self.name,
                family=self.family,
                track=self.track,
                instruction="",
                arch="sm_90a" if number == "90" else f"sm_{number}",
                tile=Tile(),
                summary=self.summary,
                layouts=self.layouts,
                dtype_in=self.dtype_in,
                dtype_acc=self.dtype_acc,
                dtype_out=self.dtype_out,
            )
            return launch.prepare(kernel, problem, pointers)
        return LibraryCall(self.bind(problem, pointers, stream))

    @abstractmethod
    def bind(self, problem: Problem, pointers: Pointers, stream: int) -> Callable[[int], None]:
        """A function that enqueues the call on a stream; problems with empty C or alpha k = 0 never get here."""


class LibraryCall:
    """A bound library call. Its kernels' names are read from a graph, without running anything."""

    variant = ""

    def __init__(self, enqueue: Callable[[int], None]) -> None:
        self._enqueue = enqueue

    def enqueue(self, stream: int) -> None:
        """Put the GEMM on a stream and return at once."""
        self._enqueue(stream)

    @functools.cached_property
    def kernel_names(self) -> tuple[str, ...]:
        """What the library launches, memsets among it; read by capturing one call."""
        return captured_names(self._enqueue)


def _driver_call(name: str, *values: Any) -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingToolError(
            f"cuda.bindings cannot be imported ({error}); pip install 'gemm-tracks[gpu]' brings it"
        ) from None
    status, *results = getattr(driver, name)(*values)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"{name} answered {status.name}")
    return results[0] if len(results) == 1 else tuple(results)


@functools.cache
def capture_stream(device: int) -> Any:
    """The stream on which calls are captured on a device, which must be the current one."""
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def captured_names(enqueue: Callable[[int], None]) -> tuple[str, ...]:
    """Names of the kernels that a call would launch, in graph order; ``memset`` and ``memcpy`` for those nodes.

    The call is captured on :func:`capture_stream` and never runs.

    Raises:
        LaunchError: the call cannot be captured.
    """
    import cupy
    from cuda.bindings import driver

    stream = capture_stream(int(cupy.cuda.runtime.getDevice()))
    raw = driver.CUstream(stream.ptr)
    _driver_call("cuStreamBeginCapture", raw, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        enqueue(stream.ptr)
    finally:
        graph = _driver_call("cuStreamEndCapture", raw)
    try:
        return tuple(_names_in(graph))
    finally:
        _driver_call("cuGraphDestroy", graph)


def _names_in(graph: Any) -> Iterator[str]:
    from cuda.bindings import driver

    kinds = driver.CUgraphNodeType
    _, count = _driver_call("cuGraphGetNodes", graph)
    nodes, _ = _driver_call("cuGraphGetNodes", graph, count)
    for node in nodes:
        kind = _driver_call("cuGraphNodeGetType", node)
        if kind == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
            parameters = _driver_call("cuGraphKernelNodeGetParams", node)
            if int(parameters.func):
                yield _driver_call("cuFuncGetName", parameters.func).decode()
            else:
                yield _driver_call("cuKernelGetName", parameters.kern).decode()
        elif kind == kinds.CU_GRAPH_NODE_TYPE_MEMSET:
            yield "memset"
        elif kind == kinds.CU_GRAPH_NODE_TYPE_MEMCPY:
            yield "memcpy"
        elif kind == kinds.CU_GRAPH_NODE_TYPE_GRAPH:
            yield from _names_in(_driver_call("cuGraphChildGraphNodeGetGraph", node))


def rounds_twice(problem: Problem) -> bool:
    """Whether a library may round alpha * A @ B to FP16 before it adds beta * C.

    cuBLAS 13.0 and cublasLt were seen doing so at 1x24x8, 16x72x8, 33x64x8 and 64x168x8, where 0.27246 came for
    0.27269. At 35x79x19 they round once: no rule for it is published, so no extent is trusted.
    """
    return problem.dtype_out == "float16" and problem.beta != 0.0 and not problem.is_scale_only


def twice_rounded(what: str, problem: Problem) -> str:
    return f"beta is {problem.beta:g}; {what} in FP16 may round alpha * A @ B before it adds beta * C"


@dataclass(frozen=True, kw_only=True)
class CublasContender(LibraryContender):
    """cublasSgemm or cublasGemmEx, whose heuristics pick the kernel."""

    family: str = "cublas"
    compute: int = cublas.COMPUTE_32F
    math_mode: int = cublas.DEFAULT_MATH

    def rejects(self, problem: Problem) -> str | None:
        if rounds_twice(problem):
            return twice_rounded("cuBLAS", problem)
        return LibraryContender.rejects(self, problem)

    def needs(self) -> str:
        missing = [
            name
            for module, name in (("cupy", "cupy-cuda13x"), ("cuda.bindings", "cuda-bindings"))
            if not is_installed(module)
        ]
        if not _has_cublas():
            missing.append("nvidia-cublas")
        return ", ".join(missing)

    def bind(self, problem: Problem, pointers: Pointers, stream: int) -> Callable[[int], None]:
        handle = cublas.handle()
        transpose = {"r": cublas.NO_TRANSPOSE, "c": cublas.TRANSPOSE}
        alpha, beta = ctypes.c_float(problem.alpha), ctypes.c_float(problem.beta)
        extents = (
            handle.value,
            transpose[problem.layout[1]],
            transpose[problem.layout[0]],
            problem.n,
            problem.m,
            problem.k,
            ctypes.byref(alpha),
        )
        if self.track == "fp32_simt":
            name = "cublasSgemm_v2"
            values: tuple[Any, ...] = (
                *extents, pointers.b, problem.ldb, pointers.a, problem.lda,
                ctypes.byref(beta), pointers.c, problem.ldc,
            )  # fmt: skip
        else:
            name = "cublasGemmEx"
            kind_in, kind_out = cublas.DATA_TYPE[problem.dtype_in], cublas.DATA_TYPE[problem.dtype_out]
            values = (
                *extents, pointers.b, kind_in, problem.ldb, pointers.a, kind_in, problem.lda,
                ctypes.byref(beta), pointers.c, kind_out, problem.ldc, self.compute, cublas.DEFAULT_ALGORITHM,
            )  # fmt: skip

        def enqueue(stream: int) -> None:
            handle.bind(stream, self.math_mode)
            cublas.call(name, *values)

        return enqueue


@dataclass(frozen=True, kw_only=True)
class CublasLtContender(CublasContender):
    """cublasLtMatmul with the fastest of the algorithms that its heuristics name first."""

    is_default: bool = False

    def bind(self, problem: Problem, pointers: Pointers, stream: int) -> Callable[[int], None]:
        product, answer = cublaslt.tuned(problem, pointers)
        return functools.partial(product.enqueue, answer, pointers)


@functools.cache
def _has_cublas() -> bool:
    return next(cublas.library_files(), None) is not None


class _DeviceArray:
    """Device memory as torch and CuPy can wrap it without a copy."""

    def __init__(self, address: int, dtype: str, shape: tuple[int, int], steps: tuple[int, int]) -> None:
        item = ITEMSIZE[dtype]
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": f"<f{item}",
            "data": (address, False),
            "strides": (steps[0] * item, steps[1] * item),
            "stream": None,
        }


@dataclass(frozen=True, kw_only=True)
class TorchContender(LibraryContender):
    """torch.mm, or addmm_ where alpha or beta are not 1 and 0."""

    family: str = "torch"

    def rejects(self, problem: Problem) -> str | None:
        if rounds_twice(problem):
            return twice_rounded("torch.addmm", problem)
        return LibraryContender.rejects(self, problem)

    def needs(self) -> str:
        missing = [] if is_installed("cupy") else ["cupy-cuda13x"]
        if not _torch_cuda():
            missing.append("torch with CUDA" if is_installed("torch") else "torch")
        return ", ".join(missing)

    def bind(self, problem: Problem, pointers: Pointers, stream: int) -> Callable[[int], None]:
        try:
            import torch
        except ImportError as error:
            raise MissingToolError(f"torch cannot be imported ({error}); pip install torch") from None
        if not torch.cuda.is_available():
            raise MissingToolError(f"torch {torch.__version__} cannot use this GPU; install a CUDA build of torch")
        import cupy

        device = torch.device("cuda", int(cupy.cuda.runtime.getDevice()))

        def tensor(address: int, dtype: str, shape: tuple[int, int], pitch: int, layout: str) -> Any:
            steps = (pitch, 1) if layout == "r" else (1, pitch)
            return torch.as_tensor(_DeviceArray(address, dtype, shape, steps), device=device)

        a = tensor(pointers.a, problem.dtype_in, (problem.m, problem.k), problem.lda, problem.layout[0])
        b = tensor(pointers.b, problem.dtype_in, (problem.k, problem.n), problem.ldb, problem.layout[1])
        c = tensor(pointers.c, problem.dtype_out, (problem.m, problem.n), problem.ldc, "r")
        plain = problem.alpha == 1.0 and problem.beta == 0.0
        tf32 = self.track == "tf32_tensor"

        def enqueue(stream: int) -> None:
            with torch.no_grad(), torch.cuda.stream(_torch_stream(stream, device)), _precision(tf32):
                if plain:
                    torch.mm(a, b, out=c)
                else:
                    c.addmm_(a, b, beta=problem.beta, alpha=problem.alpha)

        # torch allocates its workspace per stream at the first GEMM there, which must not fall into a capture.
        for used in (stream, capture_stream(device.index).ptr):
            with torch.no_grad(), torch.cuda.stream(_torch_stream(used, device)), _precision(tf32):
                small = torch.ones((16, 16), dtype=a.dtype, device=device)
                torch.mm(small, small)
        return enqueue


@functools.lru_cache(maxsize=64)
def _torch_stream(stream: int, device: Any) -> Any:
    import torch

    return torch.cuda.ExternalStream(stream, device=device)


@contextmanager
def _precision(tf32: bool) -> Iterator[None]:
    """torch's matmul switches set for one call and put back: TF32 as asked, no reduction in FP16."""
    import torch

    matmul = torch.backends.cuda.matmul
    # torch 2.9 renamed the switch, and complains where both names are used in one process.
    name, value = ("fp32_precision", "tf32" if tf32 else "ieee") if _has_new_switch() else ("allow_tf32", tf32)
    before = getattr(matmul, name), matmul.allow_fp16_reduced_precision_reduction
    setattr(matmul, name, value)
    matmul.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        setattr(matmul, name, before[0])
        matmul.allow_fp16_reduced_precision_reduction = before[1]


@functools.cache
def _has_new_switch() -> bool:
    import torch

    return hasattr(torch.backends.cuda.matmul, "fp32_precision")


@functools.cache
def _torch_cuda() -> bool:
    """Whether torch is installed with CUDA, from the text of its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    found = re.search(r"^cuda\b[^=\n]*=\s*(.+)$", text, re.MULTILINE)
    return found is not None and found.group(1).strip() != "None"


def _track(track: str) -> dict[str, Any]:
    half = track == "fp16_tensor"
    return {"track": track, "dtype_in": "float16" if half else "float32", "dtype_out": "float16" if half else "float32"}


_SGEMM = CublasContender(
    name="cublas_sgemm", instruction="ffma", summary="cublasSgemm, TF32 off", **_track("fp32_simt")
)
_FP16 = CublasContender(
    name="cublas_fp16",
    summary="cublasGemmEx, FP16 in and out, FP32 accumulation and reduction",
    math_mode=cublas.NO_REDUCED_PRECISION_REDUCTION,
    **_track("fp16_tensor"),
)

LIBRARIES: tuple[LibraryContender, ...] = (
    _SGEMM,
    CublasContender(
        name="cublas_tf32",
        summary="cublasGemmEx, FP32 in and out, TF32 products",
        compute=cublas.COMPUTE_32F_FAST_TF32,
        **_track("tf32_tensor"),
    ),
    _FP16,
    dataclasses.replace(
        _FP16,
        name="cublas_fp16_f32out",
        summary="cublasGemmEx, FP16 in, FP32 out, FP32 accumulation",
        dtype_out="float32",
        # No kernel of the default set writes FP32 from FP16, so it would stand alone in its groups.
        in_default_set=False,
    ),
    CublasLtContender(
        name="cublaslt_fp16",
        summary=f"cublasLtMatmul, the fastest of its heuristics' first {cublaslt.ANSWERS} answers; as cublas_fp16",
        # cublasGemmEx is what users call, and what ratios are made with; this is the library tuned for one shape.
        in_default_set=False,
        **_track("fp16_tensor"),
    ),
    TorchContender(name="torch_sgemm", instruction="ffma", summary="torch.mm on FP32, TF32 off", **_track("fp32_simt")),
    TorchContender(name="torch_tf32", summary="torch.mm on FP32, TF32 allowed", **_track("tf32_tensor")),
    TorchContender(
        name="torch_fp16", summary="torch.mm on FP16, FP32 accumulation and reduction", **_track("fp16_tensor")
    ),
)
