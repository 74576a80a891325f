"""Launches kernels once each between cudaProfilerStart and Stop: what Nsight Compute is pointed at.

    python -m compare.launch_once 1024x1024x1024 v2_block_tile v4_pad

Prints one JSON line per contender: its name, the entry symbols of what it launched, the place of the one that
multiplies (null where a library does not say), and its build.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from compare.contenders import contenders
from kernel.contract import Pointers, pointer_alignment
from kernel.errors import GemmTracksError, UsageError
from kernel.launch import Prepared, cupy_module


def launch(shape: tuple[int, int, int], names: Sequence[str]) -> list[dict[str, object]]:
    """Launch each contender once on uniform random data.

    Raises:
        CatalogError: no such contender.
        NoDeviceError, MissingToolError, BuildError, LaunchError, RejectedError: it cannot run here.
    """
    cupy = cupy_module()
    m, n, k = shape
    records: list[dict[str, object]] = []
    ready, kept = [], []
    stream = cupy.cuda.get_current_stream()
    random = cupy.random.RandomState(seed=0)
    for contender in contenders(names):
        a = (random.random_sample(m * k, dtype=cupy.float32) * 2 - 1).astype(contender.dtype_in)
        b = (random.random_sample(k * n, dtype=cupy.float32) * 2 - 1).astype(contender.dtype_in)
        c = cupy.empty(m * n, dtype=contender.dtype_out)
        kept.append((a, b, c))
        problem = contender.problem(
            m,
            n,
            k,
            align_a=pointer_alignment(a.data.ptr),
            align_b=pointer_alignment(b.data.ptr),
            align_c=pointer_alignment(c.data.ptr),
        )
        prepared = contender.prepare(problem, Pointers(a=a.data.ptr, b=b.data.ptr, c=c.data.ptr), stream.ptr)
        ready.append(prepared)
        records.append(
            {
                "name": contender.name,
                "kernels": list(prepared.kernel_names),
                "main": prepared.plan.main if isinstance(prepared, Prepared) else None,
                "variant": prepared.variant,
            }
        )
    stream.synchronize()
    cupy.cuda.profiler.start()
    for prepared in ready:
        prepared.enqueue(stream.ptr)
        stream.synchronize()
    cupy.cuda.profiler.stop()
    return records


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or the error's own."""
    try:
        if len(arguments) < 2:
            raise UsageError("usage: python -m compare.launch_once MxNxK NAME [NAME ...]")
        extents = [int(number) for number in arguments[0].split("x")]
        if len(extents) != 3:
            raise UsageError(f"{arguments[0]} is not MxNxK")
        for record in launch((extents[0], extents[1], extents[2]), arguments[1:]):
            sys.stdout.write(json.dumps(record) + "\n")
    except ValueError:
        sys.stderr.write(f"{arguments[0]} is not MxNxK\n")
        return UsageError.exit_status
    except GemmTracksError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
