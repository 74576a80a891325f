"""CUTLASS kernels on the PTX machine: one tile on every kind of small shape."""

import pytest

from compare.check import CpuExecutor, check_shape
from compare.contenders import contenders
from compare.shapes import parse

pytestmark = [pytest.mark.nvcc, pytest.mark.cppgen, pytest.mark.slow]


@pytest.mark.parametrize("name", ["cutlass_simt_128x128x5_s1_rr", "cutlass_simt_64x64x5_s1_rr"])
def test_cutlass_simt_is_right_and_refuses_nothing(name):
    (contender,) = contenders([name])
    for shape in parse("small,64,128x128x64,130x130x35,256x128x128"):
        verdict = check_shape(contender, shape, CpuExecutor())
        assert verdict.ok, verdict
