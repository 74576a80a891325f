"""Launches kernels once, for tools that watch a process: compute-sanitizer and Nsight Compute.

    compute-sanitizer --tool memcheck python -m compare.once --kernels 'v*' --shapes 130x130x35

Operands lie in allocations of exactly their size and CuPy's memory pool is off, so that an access one
element too far is an access to memory that nobody owns. ``--overrun`` allocates C one row short: a tool
that does not report that would not have reported anything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from compare.contenders import Contender, contenders
from compare.shapes import Shape, parse
from kernel.contract import Pointers, Problem
from kernel.errors import GemmTracksError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m compare.once", description=__doc__)
    parser.add_argument("--kernels", action="append", required=True, help="names or globs")
    parser.add_argument("--shapes", required=True, help="MxNxK,...")
    parser.add_argument("--overrun", action="store_true", help="allocate C one row short")
    given = parser.parse_args(arguments)
    try:
        launched = run(contenders(given.kernels), parse(given.shapes), overrun=given.overrun)
    except GemmTracksError as error:
        sys.stderr.write(f"compare.once: {error}\n")
        return error.exit_status
    sys.stdout.write(f"launched {launched} problems\n")
    return 0


def run(chosen: Sequence[Contender], shapes: Sequence[Shape], *, overrun: bool = False) -> int:
    """Launch every contender on every shape that it takes; how many that were.

    Raises:
        NoDeviceError, MissingToolError, LaunchError: it cannot be run here.
    """
    from kernel.launch import cupy_module

    cupy = cupy_module()
    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
    launched = 0
    stream = cupy.cuda.Stream(non_blocking=True)
    for shape in shapes:
        for contender in chosen:
            problem = shape.problem(contender)
            if contender.rejects(problem) is not None:
                continue
            arrays = [exact(cupy, problem, operand, short=overrun and operand == "c") for operand in "abc"]
            addresses = Pointers(**{operand: array.data.ptr for operand, array in zip("abc", arrays, strict=True)})
            cupy.cuda.Device().synchronize()
            contender.prepare(problem, addresses, stream.ptr).enqueue(stream.ptr)
            stream.synchronize()
            launched += 1
    return launched


def exact(xp: Any, problem: Problem, operand: str, *, short: bool) -> Any:
    """Memory for an operand and not an element more; ``short``: a row less. Ones, so that nothing is denormal."""
    elements = problem.extent(operand)
    if short:
        elements -= getattr(problem, f"ld{operand}")
    return xp.ones(max(elements, 1), dtype=problem.dtype_out if operand == "c" else problem.dtype_in)


if __name__ == "__main__":
    sys.exit(main())
