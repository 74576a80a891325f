"""What the PTX machine cannot run yet, found by asking it: such kernels are skipped here by name, and run on a GPU."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from kernel.errors import UnsupportedError
from kernel.machine.gemm import run_kernel


@functools.cache
def lacking(kernel, problem):
    """The opcode that a run of the problem reaches and the machine lacks, in words; empty where it has them all."""
    generator = np.random.default_rng(0)
    a = generator.uniform(-1, 1, (problem.m, problem.k)).astype(problem.dtype_in)
    b = generator.uniform(-1, 1, (problem.k, problem.n)).astype(problem.dtype_in)
    try:
        run_kernel(kernel, problem.replace(beta=0.0), a, b)
    except UnsupportedError as error:
        return str(error).partition(", reached by")[0]
    return ""


def need(kernel, problem):
    """Skips a test whose kernel the machine cannot run; only clusters and the copy engine may be missing."""
    reason = lacking(kernel, problem)
    if reason:
        assert any(word in reason for word in ("cluster", "mbarrier", "wgmma", "cp.async.bulk", "setmaxnreg")), reason
        pytest.skip(reason)
