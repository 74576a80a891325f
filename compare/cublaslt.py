"""cublasLt through ctypes: the heuristics' first answers for an FP16 product, timed, and the fastest of them kept.

cublasGemmEx takes the first answer of heuristics of its own. Who tunes for one shape asks cublasLt for
several and times them, so this is the library at its best. Numbers of attributes are those of cublasLt.h
(CUDA 12 and 13): https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compare import cublas
from kernel.contract import MAX_KNOWN_ALIGNMENT, Pointers, Problem
from kernel.errors import LaunchError, MissingToolError

ANSWERS = 8
"""Algorithms that the heuristics are asked for."""
WARM_UPS, ROUNDS = 1, 5
"""Launches of each before it is timed, and timed ones, interleaved."""

DESC_TRANSPOSE_A, DESC_TRANSPOSE_B = 3, 4
PREFER_WORKSPACE, PREFER_REDUCTION = 1, 3
PREFER_ALIGNMENT = {"a": 5, "b": 6, "c": 7, "d": 8}
REDUCE_IN_COMPUTE_TYPE = 2
"""Split-K adds partial sums in FP32; the other schemes add them in the output's type."""


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t, opaque."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class Answer(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


INT, SIZE, POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
SIGNATURES: dict[str, list[Any]] = {
    "cublasLtCreate": [POINTER],
    "cublasLtMatmulDescCreate": [POINTER, INT, INT],
    "cublasLtMatmulDescSetAttribute": [POINTER, INT, POINTER, SIZE],
    "cublasLtMatmulDescDestroy": [POINTER],
    "cublasLtMatrixLayoutCreate": [POINTER, INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64],
    "cublasLtMatrixLayoutDestroy": [POINTER],
    "cublasLtMatmulPreferenceCreate": [POINTER],
    "cublasLtMatmulPreferenceSetAttribute": [POINTER, INT, POINTER, SIZE],
    "cublasLtMatmulPreferenceDestroy": [POINTER],
    "cublasLtMatmulAlgoGetHeuristic": [*[POINTER] * 7, INT, POINTER, POINTER],
    "cublasLtMatmul": [*[POINTER] * 14, SIZE, POINTER],
}


@functools.cache
def library() -> ctypes.CDLL:
    """The cublasLt that lies beside the cuBLAS in use.

    Raises:
        MissingToolError: it is not there.
    """
    beside = Path(cublas.library()[1])
    path = beside.with_name(beside.name.replace("libcublas.", "libcublasLt."))
    try:
        return cublas.declared(ctypes.CDLL(str(path)), SIGNATURES)
    except OSError as error:
        raise MissingToolError(f"cublasLt was not found beside cuBLAS ({error}); pip install nvidia-cublas") from None


def call(name: str, *values: Any) -> None:
    """Call a function of cublasLt.

    Raises:
        LaunchError: its status is not success.
    """
    cublas.require_success(name, getattr(library(), name)(*values))


@functools.cache
def handle(device: int) -> ctypes.c_void_p:
    """The handle of a device, which has to be the current one."""
    value = ctypes.c_void_p()
    call("cublasLtCreate", ctypes.byref(value))
    return value


class Matmul:
    """One product, described once and enqueued often.

    Row-major C = A @ B is column-major C^T = B^T A^T, so B comes first, as in :mod:`compare.libraries`.
    """

    def __init__(self, problem: Problem, handle: ctypes.c_void_p, workspace: int) -> None:
        """``workspace`` is the device address of ``cublas.WORKSPACE_BYTES`` bytes."""
        self._problem, self._handle, self._workspace = problem, handle, workspace
        self._alpha, self._beta = ctypes.c_float(problem.alpha), ctypes.c_float(problem.beta)
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        self._operation = self._create("cublasLtMatmulDesc", cublas.COMPUTE_32F, cublas.DATA_TYPE["float32"])
        for attribute, letter in ((DESC_TRANSPOSE_A, problem.layout[1]), (DESC_TRANSPOSE_B, problem.layout[0])):
            value = ctypes.c_int32(cublas.TRANSPOSE if letter == "c" else cublas.NO_TRANSPOSE)
            self._set("cublasLtMatmulDesc", self._operation, attribute, value)
        kind_in, kind_out = cublas.DATA_TYPE[problem.dtype_in], cublas.DATA_TYPE[problem.dtype_out]
        m, n, k = problem.m, problem.n, problem.k
        self._b = self._matrix(kind_in, (n, k) if problem.layout[1] == "r" else (k, n), problem.ldb)
        self._a = self._matrix(kind_in, (k, m) if problem.layout[0] == "r" else (m, k), problem.lda)
        self._c = self._matrix(kind_out, (n, m), problem.ldc)

    def __del__(self) -> None:
        for kind, value in reversed(self._made):
            call(f"{kind}Destroy", value)

    def _create(self, kind: str, *values: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        call(f"{kind}Create", ctypes.byref(made), *values)
        self._made.append((kind, made))
        return made

    def _matrix(self, kind: int, extents: tuple[int, int], pitch: int) -> ctypes.c_void_p:
        return self._create("cublasLtMatrixLayout", kind, *extents, pitch)

    def _set(self, kind: str, where: ctypes.c_void_p, attribute: int, value: Any) -> None:
        call(f"{kind}SetAttribute", where, attribute, ctypes.byref(value), ctypes.sizeof(value))

    def answers(self) -> list[Answer]:
        """Algorithms that the heuristics name for these extents, pitches and alignments, best first.

        Raises:
            LaunchError: there is none.
        """
        problem = self._problem
        wish = self._create("cublasLtMatmulPreference")
        kind = "cublasLtMatmulPreference"
        self._set(kind, wish, PREFER_WORKSPACE, ctypes.c_uint64(cublas.WORKSPACE_BYTES))
        self._set(kind, wish, PREFER_REDUCTION, ctypes.c_uint32(REDUCE_IN_COMPUTE_TYPE))
        # cublasLt's A is our B, and its D is its C.
        aligned = {"a": problem.align_b, "b": problem.align_a, "c": problem.align_c, "d": problem.align_c}
        for name, attribute in PREFER_ALIGNMENT.items():
            self._set(kind, wish, attribute, ctypes.c_uint32(min(aligned[name], MAX_KNOWN_ALIGNMENT)))
        found, count = (Answer * ANSWERS)(), ctypes.c_int()
        call(
            "cublasLtMatmulAlgoGetHeuristic",
            self._handle, self._operation, self._b, self._a, self._c, self._c, wish,
            ANSWERS, ctypes.byref(found), ctypes.byref(count),
        )  # fmt: skip
        usable = [answer for answer in found[: count.value] if answer.state == 0]
        if not usable:
            raise LaunchError(f"cublasLt's heuristics know no algorithm for {problem}")
        return usable

    def enqueue(self, answer: Answer, pointers: Pointers, stream: int) -> None:
        """Launch with one algorithm; C is read and written in place."""
        call(
            "cublasLtMatmul",
            self._handle, self._operation,
            ctypes.byref(self._alpha), pointers.b, self._b, pointers.a, self._a,
            ctypes.byref(self._beta), pointers.c, self._c, pointers.c, self._c,
            ctypes.byref(answer.algorithm), self._workspace, cublas.WORKSPACE_BYTES, stream,
        )  # fmt: skip


def fastest(candidates: Sequence[Callable[[], object]], timed: Callable[[Callable[[], object]], float]) -> int:
    """Index of the candidate with the least time over rounds that take turns.

    Args:
        candidates: what to run.
        timed: runs one and returns its time, in any unit.
    """
    for _ in range(WARM_UPS):
        for candidate in candidates:
            timed(candidate)
    best = [min(times) for times in zip(*([timed(one) for one in candidates] for _ in range(ROUNDS)), strict=True)]
    return best.index(min(best))


_chosen: dict[tuple[int, Problem], tuple[Matmul, Answer]] = {}


def tuned(problem: Problem, pointers: Pointers) -> tuple[Matmul, Answer]:
    """The product and its fastest algorithm on the current device; timed once a problem, on these A and B.

    C of the timing is memory of its own.
    """
    import cupy

    device = int(cupy.cuda.runtime.getDevice())
    if (device, problem) not in _chosen:
        product = Matmul(problem, handle(device), cublas.handle().workspace)
        answers = product.answers()
        scratch = cupy.zeros(problem.extent("c"), problem.dtype_out)  # whose base is aligned as well as any
        instead = Pointers(a=pointers.a, b=pointers.b, c=scratch.data.ptr)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()

        def timed(run: Callable[[], object]) -> float:
            begin.record(stream)
            run()
            end.record(stream)
            end.synchronize()
            return float(cupy.cuda.get_elapsed_time(begin, end))

        runs = [functools.partial(product.enqueue, answer, instead, stream.ptr) for answer in answers]
        _chosen[device, problem] = product, answers[fastest(runs, timed)]
    return _chosen[device, problem]
