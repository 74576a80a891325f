"""The ladder on the PTX machine: every kernel, small shapes of every kind, and random ones."""

import pytest

from compare.check import CpuExecutor, check_shape, executor, fuzz
from compare.contenders import every_contender
from compare.shapes import parse
from kernel.errors import MissingToolError, NoDeviceError
from kernel.launch import has_device

pytestmark = pytest.mark.nvcc

LADDER = [c for c in every_contender() if c.family == "handwritten" and c.track == "fp32_simt"]
PIPELINE_SHAPES = (
    "128x128x8,128x128x16,128x128x40,100x100x17,130x130x64@alpha=0.5@beta=3.0,129x67x35@align_a=4@align_b=4@align_c=4"
)

# Tiles that several shares have a part of, with tails in every extent and in both widths.
STREAM_K_SHAPES = (
    "300x520x77,129x257x331@align_a=4@align_b=4@align_c=4@beta=-1.0,1x1x513@alpha=0.5,128x512x512@beta=2.0"
)


@pytest.mark.parametrize("contender", LADDER, ids=lambda c: c.name)
def test_ladder_kernel_is_right_on_small_shapes(contender):
    for shape in parse(f"small,{PIPELINE_SHAPES}"):
        verdict = check_shape(contender, shape, CpuExecutor())
        assert verdict.ok, verdict


def test_stream_k_adds_the_shares_of_one_tile():
    (contender,) = [c for c in LADDER if c.name == "v8_stream_k"]
    for shape in parse(STREAM_K_SHAPES):
        verdict = check_shape(contender, shape, CpuExecutor())
        assert verdict.ok, verdict


@pytest.mark.slow
def test_hundred_random_problems_on_the_ladder():
    report = fuzz(LADDER, 100, 1, CpuExecutor())
    assert not report.failures, report.failures[0]
    assert report.ran == 100


def test_libraries_are_refused_and_a_gpu_is_asked_for_by_name():
    cublas = next(c for c in every_contender() if c.name == "cublas_sgemm")
    verdict = check_shape(cublas, parse("4")[0], CpuExecutor())
    assert verdict.ok is None
    assert "GPU only" in verdict.skipped_because
    if not has_device():
        with pytest.raises((NoDeviceError, MissingToolError)):  # the latter where CuPy is missing too
            executor("gpu")
        assert executor().name == "cpu"
    assert executor("cpu").name == "cpu"
