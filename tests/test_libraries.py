"""What is handed to cuBLAS, run by a NumPy stand-in that reads the same arguments as a column-major BLAS."""

import ctypes
import functools
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from compare import cublas
from compare.check import check_shape
from compare.libraries import (
    LIBRARIES,
    CublasContender,
    ScaleOnly,
    TorchContender,
    _driver_call,
    _names_in,
    _torch_cuda,
)
from compare.shapes import parse
from kernel.contract import Pointers, Tile
from kernel.errors import LaunchError, MissingToolError
from kernel.plan import plan

CUBLAS = [c for c in LIBRARIES if type(c) is CublasContender]
SHAPES = (
    "128x96x64,7x5x3,1,1x9x7,9x1x7,35x79x19@alpha=0.5@beta=3,"
    "35x79x19@alpha=-2@beta=1@pad_a=2@pad_b=1@pad_c=3,33x18x20@align_a=4@align_b=4@align_c=4,130x128x33@input=nan"
)


def matrix(address, kind, rows, columns, pitch):
    """The column-major rows x columns matrix at an address, as cuBLAS sees it."""
    dtype = {0: np.float32, 2: np.float16}[kind]
    count = (columns - 1) * pitch + rows
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)).view(
        dtype
    )
    steps = (flat.itemsize, pitch * flat.itemsize)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), steps)


class ColumnMajorBlas:
    """Interprets the calls that :mod:`compare.libraries` makes."""

    def __init__(self):
        self.value = "handle"
        self.bound = []
        self.computes = []

    def bind(self, stream, math_mode):
        self.bound.append((stream, math_mode))

    def call(self, name, handle, *values):
        assert handle == "handle"
        assert len(values) + 1 == len(cublas.SIGNATURES[name])
        if name == "cublasSgemm_v2":
            trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = values
            kind_a = kind_b = kind_c = 0
        else:
            trans_a, trans_b, m, n, k, alpha, a, kind_a, lda, b, kind_b, ldb, beta, c, kind_c, ldc, compute, algo = (
                values
            )
            self.computes.append((compute, algo))
        alpha, beta = np.float32(alpha._obj.value), np.float32(beta._obj.value)
        assert lda >= (k if trans_a else m)
        assert ldb >= (n if trans_b else k)
        assert ldc >= m
        left = matrix(a, kind_a, k, m, lda).T if trans_a else matrix(a, kind_a, m, k, lda)
        right = matrix(b, kind_b, n, k, ldb).T if trans_b else matrix(b, kind_b, k, n, ldb)
        out = matrix(c, kind_c, m, n, ldc)
        with np.errstate(all="ignore"):
            value = alpha * (left.astype(np.float32) @ right.astype(np.float32))
            out[...] = value + beta * out.astype(np.float32) if beta else value


class HostExecutor:
    name = "gpu"
    xp = np

    def refuses(self, contender):
        return None

    def run(self, contender, problem, buffers):
        contender.bind(problem, buffers.pointers, 5)(5)
        return ""


@pytest.fixture
def blas(monkeypatch):
    stand_in = ColumnMajorBlas()
    monkeypatch.setattr(cublas, "handle", lambda: stand_in)
    monkeypatch.setattr(cublas, "call", stand_in.call)
    return stand_in


@pytest.mark.parametrize("layout", ["rr", "rc", "cr", "cc"])
@pytest.mark.parametrize("contender", CUBLAS, ids=lambda c: c.name)
def test_row_major_c_comes_out_of_a_column_major_blas(contender, layout, blas):
    for shape in parse(SHAPES):
        verdict = check_shape(contender, shape.replace(layout=layout), HostExecutor())
        assert verdict.ok or (shape.beta != 0.0 and "may round" in verdict.skipped_because), verdict
    assert {stream for stream, _ in blas.bound} == {5}


def test_precision_is_what_each_name_says(blas):
    for contender in CUBLAS:
        blas.bound.clear()
        blas.computes.clear()
        check_shape(contender, parse("4")[0], HostExecutor())
        math_mode = cublas.NO_REDUCED_PRECISION_REDUCTION if contender.dtype_in == "float16" else cublas.DEFAULT_MATH
        assert {mode for _, mode in blas.bound} == {math_mode}
        compute = {"cublas_tf32": cublas.COMPUTE_32F_FAST_TF32}.get(contender.name, cublas.COMPUTE_32F)
        assert set(blas.computes) == (set() if contender.name == "cublas_sgemm" else {(compute, -1)})


def test_a_status_becomes_words(monkeypatch):
    class Library:
        cublasSetMathMode = staticmethod(lambda *values: values[0])

    monkeypatch.setattr(cublas, "library", lambda: (Library, "libcublas.so"))
    cublas.call("cublasSetMathMode", 0)
    with pytest.raises(LaunchError, match="CUBLAS_STATUS_NOT_SUPPORTED"):
        cublas.call("cublasSetMathMode", 15)
    with pytest.raises(LaunchError, match="status 99"):
        cublas.call("cublasSetMathMode", 99)


def test_files_are_looked_for_where_they_can_be(monkeypatch, tmp_path):
    (tmp_path / "lib64").mkdir()
    library = tmp_path / "lib64" / "libcublas.so.13"
    library.touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert library in list(cublas.library_files())


def test_missing_cublas_is_a_typed_error(monkeypatch):
    pathfinder = pytest.importorskip("cuda.pathfinder")

    def absent(name):
        raise RuntimeError(f"no {name}")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", absent)
    monkeypatch.setattr(cublas, "library_files", lambda: iter(()))
    with pytest.raises(MissingToolError, match="no cublas"):
        cublas.library.__wrapped__()


def test_torch_without_cuda_is_told_apart_without_importing_it(monkeypatch, tmp_path):
    class Spec:
        origin = str(tmp_path / "__init__.py")

    monkeypatch.setattr("compare.libraries.importlib.util.find_spec", lambda name: Spec)
    for text, expected in (
        ("cuda: Optional[str] = None\n", False),
        ("cuda: Optional[str] = '13.0'\n", True),
        ("", False),
    ):
        (tmp_path / "version.py").write_text(f"__version__ = '2.11.0'\n{text}hip = None\n")
        assert _torch_cuda.__wrapped__() is expected
    (tmp_path / "version.py").unlink()
    assert _torch_cuda.__wrapped__() is False
    monkeypatch.setattr("compare.libraries.importlib.util.find_spec", lambda name: None)
    assert _torch_cuda.__wrapped__() is False


@pytest.mark.torch
def test_torch_switches_are_put_back_even_after_an_error():
    import torch

    from compare.libraries import _precision

    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision, matmul.allow_fp16_reduced_precision_reduction

    def failing():
        with _precision(True):
            assert matmul.fp32_precision == "tf32"
            assert matmul.allow_fp16_reduced_precision_reduction is False
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        failing()
    assert (matmul.fp32_precision, matmul.allow_fp16_reduced_precision_reduction) == before


@pytest.mark.parametrize("name", ["cublas_fp16", "cublaslt_fp16"])
def test_fp16_output_with_beta_is_refused_since_it_may_be_rounded_twice(name):
    (half,) = [contender for contender in LIBRARIES if contender.name == name]
    for extents in ((2, 72, 8), (33, 64, 8), (4096, 4096, 4096)):
        assert "may round alpha * A @ B" in half.rejects(half.problem(*extents, beta=1.0))
        assert half.rejects(half.problem(*extents, alpha=0.5)) is None
    assert "may round" not in (half.rejects(half.problem(33, 64, 8, beta=1.0).replace(dtype_out="float32")) or "")
    assert half.rejects(half.problem(33, 64, 0, beta=1.0)) is None


def test_what_only_scales_c_is_planned_as_such_and_multiplies_nothing():
    for contender in LIBRARIES:
        kernel = ScaleOnly(
            name=contender.name, family=contender.family, track=contender.track, instruction="", arch="sm_90a",
            tile=Tile(), summary="", dtype_in=contender.dtype_in, dtype_acc=contender.dtype_acc,
            dtype_out=contender.dtype_out,
        )  # fmt: skip
        scaled = plan(kernel, contender.problem(7, 5, 3, alpha=0.0, beta=2.0))
        assert scaled.variant == kernel.variant(contender.problem(7, 5, 0, beta=2.0)) == "scale_only"
        assert {launch.unit for launch in scaled.launches} == set(kernel.units())
        multiplied = contender.problem(7, 5, 3)
        assert kernel.rejects(multiplied) == "only problems with alpha = 0 or k = 0 are scaled"
        assert kernel.launches(multiplied) == kernel.pack(multiplied, Pointers(a=256, b=256, c=256)) == ()


def driver_stand_in(**answers):
    """cuda.bindings with calls that answer as CUDA's do: a status first."""
    kinds = ("KERNEL", "MEMSET", "MEMCPY", "GRAPH", "EMPTY")
    driver = SimpleNamespace(
        CUresult=SimpleNamespace(CUDA_SUCCESS=0),
        CUgraphNodeType=SimpleNamespace(**{f"CU_GRAPH_NODE_TYPE_{kind}": kind for kind in kinds}),
        **answers,
    )
    return SimpleNamespace(driver=driver)


def test_a_driver_call_that_fails_is_named_and_one_without_bindings_says_what_to_install(monkeypatch):
    refused = SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE")
    monkeypatch.setitem(
        sys.modules,
        "cuda.bindings",
        driver_stand_in(cuFails=lambda: (refused,), cuOne=lambda x: (0, x), cuTwo=lambda x: (0, x, x)),
    )
    assert _driver_call("cuOne", 3) == 3
    assert _driver_call("cuTwo", 3) == (3, 3)
    with pytest.raises(LaunchError, match="cuFails answered CUDA_ERROR_INVALID_VALUE"):
        _driver_call("cuFails")
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MissingToolError, match=r"cuda.bindings cannot be imported .*gemm-tracks\[gpu\]"):
        _driver_call("cuOne", 3)


def test_every_kind_of_node_of_a_captured_call_is_named_in_graph_order(monkeypatch):
    """A graph here is a list of nodes, a node (kind, what it holds)."""
    inner = [("KERNEL", SimpleNamespace(func=0, kern=b"split_sum"))]
    graph = [
        ("MEMSET", None), ("KERNEL", SimpleNamespace(func=5, kern=None)), ("EMPTY", None), ("GRAPH", inner),
        ("MEMCPY", None),
    ]  # fmt: skip
    bindings = driver_stand_in(
        cuGraphGetNodes=lambda graph, count=0: (0, graph[:count], len(graph)),
        cuGraphNodeGetType=lambda node: (0, node[0]),
        cuGraphKernelNodeGetParams=lambda node: (0, node[1]),
        cuFuncGetName=lambda function: (0, b"gemm%d" % function),
        cuKernelGetName=lambda kernel: (0, kernel),
        cuGraphChildGraphNodeGetGraph=lambda node: (0, node[1]),
    )
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    assert tuple(_names_in(graph)) == ("memset", "gemm5", "split_sum", "memcpy")


def test_torch_that_is_missing_or_cannot_use_the_gpu_is_told_apart(monkeypatch):
    torch = next(one for one in LIBRARIES if isinstance(one, TorchContender))
    bind = functools.partial(torch.bind, torch.problem(7, 5, 3), Pointers(a=256, b=256, c=256), 5)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingToolError, match="torch cannot be imported"):
        bind()
    without = SimpleNamespace(__version__="2.11.0+cpu", cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", without)
    with pytest.raises(MissingToolError, match=r"torch 2.11.0\+cpu cannot use this GPU; install a CUDA build"):
        bind()
