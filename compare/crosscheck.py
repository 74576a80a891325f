"""Our times against NVIDIA's nvbench, through its Python package cuda-bench, on the same machine.

    python -m compare.crosscheck [--kernels NAMES] [--size N] [--out FILE]

nvbench flushes L2 before every launch and takes the median of single launches, so ours is the burst with a
cold L2. Exit status 1 where a median differs by more than 2 %, 3 where cuda-bench is not installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import runs
from kernel.errors import GemmTracksError, LaunchError, MissingToolError
from kernel.whole_file import write_text

TOLERANCE = 0.02
KERNELS = "cublas_sgemm,v2_block_tile,v4_pad,v6_transposed_split,cutlass_simt_256x128x5_s1_rr"
MEDIAN_TAG = "nv/cold/time/gpu/median"
FILE = "crosscheck.json"


@dataclass(frozen=True)
class Agreement:
    """One kernel timed by both."""

    name: str
    ours_us: float
    nvbench_us: float

    @property
    def difference(self) -> float:
        """Ours over theirs, less one."""
        return self.ours_us / self.nvbench_us - 1

    @property
    def ok(self) -> bool:
        """Within the tolerance."""
        return abs(self.difference) <= TOLERANCE


def nvbench_medians(prepared: Mapping[str, Any], device: int = 0) -> dict[str, float]:
    """Median device time of one launch of each, microseconds, by nvbench's cold measurement.

    Raises:
        MissingToolError: cuda-bench is not installed.
        LaunchError: nvbench skipped a kernel or gave no median.
    """
    try:
        import cuda.bench as bench

        run_all = bench.run_all_benchmarks  # loads the compiled part, which needs the driver
    except ImportError as error:
        raise MissingToolError(f"cuda-bench cannot be imported ({error}); pip install cuda-bench") from None
    for name, one in prepared.items():

        def benchmark(state: Any, one: Any = one) -> None:
            state.exec(lambda launch: one.enqueue(launch.get_stream().addressof()), batched=False)

        bench.register(benchmark).set_name(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nvbench.json"
        run_all(["nvbench", "--devices", str(device), "--json", str(path)])
        return medians(json.loads(path.read_text(encoding="utf-8")), list(prepared))


def medians(report: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """Medians in microseconds out of nvbench's JSON report.

    Raises:
        LaunchError: a kernel has none.
    """
    found: dict[str, float] = {}
    for benchmark in report["benchmarks"]:
        for state in benchmark["states"]:
            for summary in state.get("summaries") or ():
                if summary["tag"] == MEDIAN_TAG:
                    found[benchmark["name"]] = 1e6 * float(summary["data"][0]["value"])
    missing = [name for name in names if name not in found]
    if missing:
        raise LaunchError(f"nvbench gave no median for {', '.join(missing)}")
    return found


def crosscheck(names: Sequence[str], size: int, rounds: int = 20) -> list[Agreement]:
    """Time kernels of the FP32 track at one cube with both; needs a GPU and cuda-bench."""
    from compare.contenders import contenders
    from compare.measure import Settings, measure_group
    from compare.operand_sets import OperandSets
    from compare.statistics import StoppingRule
    from compare.timing import GpuBench
    from compare.windows import BurstSettings
    from kernel.launch import cupy_module

    cupy = cupy_module()
    bench = GpuBench()
    chosen = contenders(names)
    problem = chosen[0].problem(size, size, size)
    operands = OperandSets(cupy, problem, stream=bench.stream)
    burst = BurstSettings(long_slice_s=0.4, stop=StoppingRule(min_rounds=rounds, max_rounds=rounds))
    settings = Settings(burst=burst, sustained=None, cold=True, leave_out_slow=False)
    found = measure_group(chosen, problem, operands, settings, bench=bench, reverify=operands.reverify)
    ours = {one.name: 1e6 * one.median_s for one in found if one.l2 == "cold" and one.median_s is not None}
    prepared = {one.name: one.prepare(problem, operands.pointers(), bench.stream) for one in chosen if one.name in ours}
    theirs = nvbench_medians(prepared)
    return [Agreement(name, ours[name], theirs[name]) for name in ours]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m compare.crosscheck", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", default=KERNELS, help="names or globs of FP32 contenders")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--out", type=Path, help=f"file to write (default: {FILE} under OUT, else build/)")
    given = parser.parse_args(arguments)
    try:
        found = crosscheck(given.kernels.split(","), given.size)
    except GemmTracksError as error:
        sys.stderr.write(f"compare.crosscheck: {error}\n")
        return error.exit_status
    path = given.out or Path(os.environ.get("OUT") or runs.repository() / "build") / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [{**dataclasses.asdict(one), "difference": one.difference, "ok": one.ok} for one in found]
    write_text(path, json.dumps({"size": given.size, "kernels": kept}, indent=1) + "\n")
    for one in found:
        sys.stdout.write(
            f"{one.name:<45} ours {one.ours_us:10.2f} us, nvbench {one.nvbench_us:10.2f} us, "
            f"{100 * one.difference:+.2f} %{'' if one.ok else '  DIFFERS'}\n"
        )
    return int(not found or any(not one.ok for one in found))


if __name__ == "__main__":
    sys.exit(main())
