"""What a GPU test asks of a kernel that is run over and over."""

from __future__ import annotations

from compare.contenders import Contender
from compare.inputs import allocate, fill
from kernel.contract import Problem


def assert_repeats_are_bit_identical(contender: Contender, problem: Problem, repeats: int) -> None:
    """Run a problem so often, C poisoned before each, and compare every bit with the first; every element is finite."""
    import cupy

    buffers = allocate(cupy, problem)
    fill(buffers)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    prepared = contender.prepare(problem, buffers.pointers, stream.ptr)
    first = None
    with stream:
        for _ in range(repeats):
            buffers.poison_output()
            prepared.enqueue(stream.ptr)
            bits = buffers.c.view(f"uint{8 * buffers.c.itemsize}")
            first = bits.copy() if first is None else first
            assert bool((bits == first).all())
        assert bool(cupy.isfinite(buffers.c).all())
