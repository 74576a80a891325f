"""On a GPU: cuBLAS and torch are right on every layout, use the precision they claim, and can be captured."""

import os
import subprocess
import sys

import pytest

from compare.check import BASELINE_SHAPES, GpuExecutor, check_baseline, check_shape
from compare.contenders import is_installed
from compare.inputs import allocate, fill
from compare.libraries import LIBRARIES, captured_names
from compare.shapes import parse

pytestmark = pytest.mark.gpu

INSTALLED = [c for c in LIBRARIES if c.family == "cublas" or is_installed("torch")]
NAMES = [c.name for c in INSTALLED]
SHAPES = (
    f"{BASELINE_SHAPES},1,35x79x19,1x105x107,105x1x107,64x64x7,2x4x3,128x130x128,130x130x64@alpha=0.5@beta=3.0,"
    "35x79x19@alpha=-2@beta=1@pad_a=2@pad_b=1@pad_c=3,128@align_a=4,128@align_b=4,128@align_c=4,"
    "129x67x35@align_a=4@align_b=4@align_c=4@pad_a=1@pad_b=1@pad_c=1,0x64x64,64x0x64,64x64x0,64x64x0@beta=2,"
    "130x130x64@alpha=0@beta=2,130x128x33@input=nan,130x128x33@input=inf,130x130x67@input=special,"
    "128x128x1024@input=vanish,257x129x300@input=integers,1024x512x2048,4092,256x256x16384"
)


@pytest.fixture(scope="module")
def executor():
    return GpuExecutor()


def bound(contender, shape):
    """A call on memory that is kept alive, and the memory."""
    import cupy

    problem = shape.problem(contender)
    buffers = allocate(cupy, problem)
    fill(buffers, shape.input)
    cupy.cuda.get_current_stream().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    return contender.prepare(problem, buffers.pointers, stream.ptr), buffers, stream


@pytest.mark.parametrize("layout", ["rr", "rc", "cr", "cc"])
@pytest.mark.parametrize("contender", INSTALLED, ids=NAMES)
def test_library_is_right_on_every_layout(contender, layout, executor):
    for shape in parse(SHAPES):
        verdict = check_shape(contender, shape.replace(layout=layout), executor)
        if contender.dtype_out == "float16" and shape.beta != 0.0 and shape.alpha != 0.0 and shape.k:
            assert "round" in verdict.skipped_because, verdict
        else:
            assert verdict.ok, verdict


def test_baseline_passes_before_anything_is_scored(executor):
    assert len(check_baseline(executor, INSTALLED)) == 4 * 3


@pytest.mark.parametrize("contender", INSTALLED, ids=NAMES)
def test_kernel_names_come_from_a_graph(contender):
    prepared, _, stream = bound(contender, parse("512x384x256")[0])
    prepared.enqueue(stream.ptr)
    stream.synchronize()
    names = prepared.kernel_names
    assert [name for name in names if name != "memset"]
    assert all(isinstance(name, str) and name for name in names)


def test_a_captured_call_does_not_run():
    contender = next(c for c in INSTALLED if c.name == "cublas_sgemm")
    prepared, buffers, stream = bound(contender, parse("256x128x64")[0])
    captured_names(prepared.enqueue)
    stream.synchronize()
    assert bool((buffers.c != buffers.c).all())


@pytest.mark.parametrize("contender", INSTALLED, ids=NAMES)
def test_a_graph_of_the_call_gives_the_right_answer(contender, executor):
    class GraphExecutor(GpuExecutor):
        def run(self, contender, problem, buffers):
            self._cupy.cuda.get_current_stream().synchronize()
            prepared = contender.prepare(problem, buffers.pointers, self._stream.ptr)
            with self._stream:
                self._stream.begin_capture()
                prepared.enqueue(self._stream.ptr)
                graph = self._stream.end_capture()
                graph.launch(self._stream)
            self._stream.synchronize()
            return prepared.variant

    for shape in parse("130x130x64,512x256x4096,1024x1024x1024"):
        verdict = check_shape(contender, shape, GraphExecutor())
        assert verdict.ok, verdict


def test_sgemm_is_fp32_and_tf32_is_not():
    import cupy

    shape = parse("128@input=identity")[0]
    for contender in INSTALLED:
        if contender.dtype_in == "float32":
            prepared, buffers, stream = bound(contender, shape)
            prepared.enqueue(stream.ptr)
            stream.synchronize()
            exact = bool((buffers.c == cupy.float32(1024.5)).all())
            assert exact is (contender.track == "fp32_simt"), contender.name


def test_sgemm_stays_fp32_where_the_environment_asks_cupy_for_tf32():
    code = (
        "from compare.check import *; from compare.contenders import contenders; e = GpuExecutor();"
        "[print(check_shape(c, s, e)) for c in contenders(['cublas_sgemm']) for s in parse('128@input=identity')]"
    )
    environment = {**os.environ, "CUPY_TF32": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "ok, exact" in done.stdout, done.stdout


@pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")
def test_torch_switches_are_put_back():
    import torch

    from compare.libraries import _precision

    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision, matmul.allow_fp16_reduced_precision_reduction
    prepared, _, stream = bound(next(c for c in INSTALLED if c.name == "torch_tf32"), parse("64")[0])
    prepared.enqueue(stream.ptr)
    assert (matmul.fp32_precision, matmul.allow_fp16_reduced_precision_reduction) == before
    with _precision(True):
        assert matmul.fp32_precision == "tf32"
    assert (matmul.fp32_precision, matmul.allow_fp16_reduced_precision_reduction) == before
