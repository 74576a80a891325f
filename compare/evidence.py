"""Measures what the recorded rows do not hold, on the GPU of this machine, for ``gemm-tracks claims``.

    python -m compare.evidence [--out FOLDER] [--only counters,three_ways,occupancy,tails,numerics]

Writes results/<gpu>/evidence/*.json, one file a part, each with date, revision, GPU and command:

- counters.json: Nsight Compute's shared-memory counters of the ladder at 1024^3 beside what the bank model
  predicts; pipe and issue utilisation at 4096^3; address patterns put to the hardware one by one.
- occupancy.json: resident blocks as the driver answers, for every kernel and for made-up cases.
- tails.json: guard, mask, padding and fast path with tail, timed.
- three_ways.json: conflicts of shared loads of two of docs/three_ways.md's kernels, counted at 1024^3.
- numerics.json: which kernels agree to the bit, and how error grows with k.

Counters need permission; without it the file says so and the other parts are whole.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compare.claims.record import BANK_PROBE, FOLDER, PLAIN, TAILS
from compare.contenders import Contender, KernelContender, contenders
from compare.counters import predicted_counters, profile_contenders
from compare.three_ways import WAYS
from kernel import banks, build, launch, profiler
from kernel.contract import Pointers, Problem, Unit, ceil_div, pointer_alignment
from kernel.errors import CheckError, GemmTracksError, UsageError
from kernel.occupancy import occupancy_of
from kernel.plan import plan
from kernel.whole_file import write_text

COUNTED = (
    "v2_block_tile",
    "v3_double_buffer",
    "v4_pad",
    "v4_swizzle",
    "v5_register_block",
    "v5_chunk_swizzle",
    "v6_transposed_split",
    "v6_transposed_contiguous",
)
COUNTED_SIZE = 1024
USED = ("v2_block_tile", "v4_pad", "v6_transposed_split", "cublas_sgemm")
USED_SIZE = 4096

PROBE_REPEATS = 1000
PROBE_RUNS = 3
Pattern = tuple[str, int, list[int]]


def probe_patterns() -> list[Pattern]:
    """(name, bytes a lane, byte offset per lane): textbook cases and those that tell how phases merge."""
    lanes = range(32)
    return [
        ("row of floats", 4, [4 * i for i in lanes]),
        ("one word", 4, [64] * 32),
        ("column, pitch 32", 4, [128 * i for i in lanes]),
        ("column, pitch 33", 4, [132 * i for i in lanes]),
        ("column, pitch 2", 4, [8 * i for i in lanes]),
        ("A of v2", 4, [512 * (i // 4) for i in lanes]),
        ("A of v2 padded", 4, [4 * 17 * 8 * (i // 4) for i in lanes]),
        ("row of float2", 8, [8 * i for i in lanes]),
        ("float2, pairs of lanes alike", 8, [8 * (i // 2) for i in lanes]),
        ("float2, lanes i and i^2 alike", 8, [8 * (i % 2 + i // 4 * 2) for i in lanes]),
        ("float2, halves alike", 8, [8 * (i % 16) for i in lanes]),
        ("float2, pitch 32 words", 8, [128 * i for i in lanes]),
        ("row of float4", 16, [16 * i for i in lanes]),
        ("float4, pitch 132 words", 16, [528 * i for i in lanes]),
        ("float4, pitch 32 words", 16, [128 * i for i in lanes]),
        ("float4, pairs of lanes alike", 16, [16 * (i // 2) for i in lanes]),
        ("float4, lanes i and i^2 alike", 16, [16 * (i % 2 + i // 4 * 2) for i in lanes]),
        ("float4, four lanes alike", 16, [16 * (i // 4) for i in lanes]),
        ("float4, four lanes alike, 32 bytes apart", 16, [32 * (i // 4) for i in lanes]),
        ("float4, four lanes alike, 64 bytes apart", 16, [64 * (i // 4) for i in lanes]),
        ("float4, lanes i and i^4 alike", 16, [16 * (i % 4) for i in lanes]),
        ("float4 of v5's A", 16, [512 * (i // 4) for i in lanes]),
        ("float4 of v2's B", 16, [32 * (i % 4) for i in lanes]),
        ("float4, quarters alike", 16, [16 * (i % 8) for i in lanes]),
    ]


# --- counters ----------------------------------------------------------------------------------------


def measure_counters() -> dict[str, Any]:
    """Counters of the ladder, utilisation, probes; or why there are none."""
    found = profile_contenders((COUNTED_SIZE,) * 3, COUNTED)
    if found.not_available:
        return {"not_available": found.not_available}
    kernels = {}
    for (_, values), name in zip(found.launches, COUNTED, strict=True):
        (contender,) = contenders([name])
        assert isinstance(contender, KernelContender)
        kernels[name] = {
            "requests": values.get(profiler.LOAD_REQUESTS),
            "conflicts": values[profiler.LOAD_CONFLICTS],
            "wavefronts": values[profiler.LOAD_WAVEFRONTS],
            "store_conflicts": values.get(profiler.STORE_CONFLICTS),
            "issue_pct": values.get(profiler.ISSUE_SLOTS),
            "fma_pipe_pct": values.get(profiler.FMA_PIPE),
            "predicted": predicted_counters(contender, (COUNTED_SIZE,) * 3),
        }
    return {
        "size": COUNTED_SIZE,
        "kernels": kernels,
        "missing_metrics": list(found.missing),
        "utilisation": _utilisation(),
        "probes": _probes(),
    }


def measure_three_ways() -> dict[str, Any]:
    """Counters of the CUDA C++ and the CUTLASS kernel that docs/three_ways.md compares; or why there are none."""
    names = [way.kernel for way in WAYS if way.title != "CuTe DSL"]
    found = profile_contenders((COUNTED_SIZE,) * 3, names)
    if found.not_available:
        return {"not_available": found.not_available}
    wanted = {
        "requests": profiler.LOAD_REQUESTS,
        "conflicts": profiler.LOAD_CONFLICTS,
        "wavefronts": profiler.LOAD_WAVEFRONTS,
        "store_conflicts": profiler.STORE_CONFLICTS,
    }
    kernels = {
        name: {what: values.get(metric) for what, metric in wanted.items()}
        for name, (_, values) in zip(names, found.launches, strict=True)
    }
    return {"size": COUNTED_SIZE, "kernels": kernels, "missing_metrics": list(found.missing)}


def _utilisation() -> dict[str, dict[str, Any]]:
    names = [name for name in USED if any(c.name == name and not c.needs() for c in contenders())]
    found = profile_contenders((USED_SIZE,) * 3, names)
    if found.not_available:
        return {}
    return {
        name: {"kernel": launched, **values} for name, (launched, values) in zip(names, found.launches, strict=True)
    }


def _probes() -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "compare.evidence", "--launch-probes"]
    wanted = (profiler.LOAD_CONFLICTS, profiler.LOAD_WAVEFRONTS, profiler.LOAD_REQUESTS)
    found = profiler.profile(command, wanted)
    patterns = probe_patterns()
    if found.not_available or len(found.launches) != len(patterns) * PROBE_RUNS:
        return []
    records = []
    for number, (name, width, offsets) in enumerate(patterns):
        runs = [values for _, values in found.launches[number * PROBE_RUNS : (number + 1) * PROBE_RUNS]]
        # By what was executed, not by what was written: an assembler may keep a load out of the loop.
        conflicts = [values[profiler.LOAD_CONFLICTS] / values[profiler.LOAD_REQUESTS] for values in runs]
        model = banks.passes(offsets, width)
        records.append(
            {
                "name": name,
                "bytes": width,
                "conflicts_per_access": statistics.median(conflicts),
                "spread": max(conflicts) - min(conflicts),
                "accesses": statistics.median(values[profiler.LOAD_REQUESTS] for values in runs),
                "wavefronts_per_access": statistics.median(
                    values[profiler.LOAD_WAVEFRONTS] / values[profiler.LOAD_REQUESTS] for values in runs
                ),
                "predicted": model.conflicts,
                "predicted_wavefronts": model.passes,
            }
        )
    return records


def launch_probes() -> None:
    """What the profiler is pointed at: every pattern, several times."""
    cupy = launch.cupy_module()
    out = cupy.zeros(32, cupy.float32)
    built = build.artifact(BANK_PROBE)
    prepared = []
    for _, width, offsets in probe_patterns():
        function = launch.load(built, f"bank_probe_{width}")
        prepared.append((function, cupy.asarray(np.array(offsets, np.int32))))
    cupy.cuda.runtime.deviceSynchronize()
    cupy.cuda.profiler.start()
    for function, offsets_device in prepared:
        for _ in range(PROBE_RUNS):
            function((1,), (32,), (offsets_device, out, np.int32(PROBE_REPEATS)))
    cupy.cuda.runtime.deviceSynchronize()
    cupy.cuda.profiler.stop()


# --- occupancy ---------------------------------------------------------------------------------------

PRESSED = tuple(
    Unit(
        name=f"claims.plain.sm_90a-maxrregcount{registers}",
        arch="sm_90a",
        source=FOLDER / "plain.cu",
        flags=(f"-maxrregcount={registers}",),
        allow_spills=True,
    )
    for registers in (41, 43, 100)
)
"""The plain kernel pressed into register counts that tell one rounding rule from another."""


def measure_occupancy() -> dict[str, Any]:
    """Resident blocks per SM: the driver's answer beside kernel.occupancy's."""
    cupy = launch.cupy_module()
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    cases: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}

    def ask(name: str, built: Any, entry: str, threads: int, dynamic: int) -> None:
        resources = built.resources[entry]
        function = launch.load(built, entry)
        if dynamic and resources.static_smem + dynamic > launch.DEFAULT_SMEM_LIMIT:
            function.max_dynamic_shared_size_bytes = max(function.max_dynamic_shared_size_bytes, dynamic)
        computed = occupancy_of(arch, resources, threads=threads, dynamic_smem=dynamic)
        cases.append(
            {
                "name": name,
                "registers": resources.registers,
                "threads": threads,
                "static_smem": resources.static_smem,
                "dynamic_smem": dynamic,
                "barriers": resources.barriers,
                "driver": driver_blocks(function, threads, dynamic),
                "computed": computed.blocks,
                "limited_by": list(computed.limited_by),
            }
        )

    seen = set()
    for contender in contenders():
        if not isinstance(contender, KernelContender):
            continue
        try:
            for one in plan(contender.kernel, contender.problem(4096, 4096, 4096)).launches:
                built = build.lookup(one.unit) or (None if contender.family == "cutlass" else build.artifact(one.unit))
                if built is None:
                    skipped[contender.name] = "not built here"
                    continue
                key = (built.key, one.entry, one.threads, one.dynamic_smem)
                if key not in seen:
                    seen.add(key)
                    ask(contender.name, built, one.entry, one.threads, one.dynamic_smem)
        except GemmTracksError as error:
            skipped[contender.name] = str(error).splitlines()[0]
    for ahead in (1, 4):
        ask(f"plain_{ahead}", build.artifact(PLAIN), f"plain_{ahead}", 256, 0)
    for unit in PRESSED:
        built = build.artifact(unit)
        for threads in (32, 96, 160, 256, 288):
            registers = built.resources["plain_4"].registers
            ask(f"{registers} registers x {threads} threads", built, "plain_4", threads, 0)
    copies = build.artifact(TAILS)
    for dynamic in (57 * 1024, 113 * 1024, 114 * 1024, 48 * 1024, 227 * 1024):
        ask(f"{dynamic} bytes dynamic", copies, "pad_copy", 256, dynamic)
    for dynamic in (16, 40 * 1024, 41 * 1024 - 16, 211 * 1024):
        ask(f"16384 static + {dynamic} dynamic", build.artifact(PLAIN), "plain_1", 128, dynamic)
    return {"arch": arch, "cases": cases, "skipped": skipped}


def driver_blocks(function: Any, threads: int, dynamic_smem: int) -> int:
    """cuOccupancyMaxActiveBlocksPerMultiprocessor for a CuPy function.

    Raises:
        CheckError: the driver refused the question.
    """
    from cuda.bindings import driver

    handle = driver.CUfunction(int(function.kernel.ptr))
    status, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, threads, dynamic_smem)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CheckError(f"cuOccupancyMaxActiveBlocksPerMultiprocessor answered {status.name}")
    return int(blocks)


# --- tails -------------------------------------------------------------------------------------------

TAIL_CASES = ((35, 16), (129, 128), (4092, 128))
"""(m = n = k, block tile)."""
TAIL_ROUNDS = 15
STRATEGIES = ("guard", "mask", "padding", "fast path with tail")


def measure_tails() -> dict[str, Any]:
    """Median device time of each strategy, rounds interleaved, each result checked first."""
    return {"strategies": list(STRATEGIES), "cases": [_tail_case(size, tile) for size, tile in TAIL_CASES]}


def _tail_case(size: int, tile: int) -> dict[str, Any]:
    cupy = launch.cupy_module()
    built = build.artifact(TAILS)
    stream = cupy.cuda.Stream(non_blocking=True)
    random = cupy.random.RandomState(seed=1)
    with stream:
        a, b = (random.random_sample((size, size), dtype=cupy.float32) * 2 - 1 for _ in range(2))
        c = cupy.empty((size, size), cupy.float32)
        padded = ceil_div(size, max(tile, 16)) * max(tile, 16)
        pa, pb, pc = (cupy.zeros((padded, padded), cupy.float32) for _ in range(3))
        reference = a.astype(cupy.float64) @ b.astype(cupy.float64)
        scale = cupy.abs(a).astype(cupy.float64) @ cupy.abs(b).astype(cupy.float64)
    stream.synchronize()
    blocks = ceil_div(size, tile)
    copy = launch.load(built, "pad_copy")

    def gemm(name: str, x: Any, y: Any, z: Any, extent: int, grid: int) -> None:
        arguments = (x, y, z, *(np.int32(extent) for _ in range(6)))
        launch.load(built, f"{name}_{tile}")((grid, grid), (256,), arguments)

    def copied(source: Any, target: Any, inside: int, outside: int) -> None:
        extents = (inside, inside, inside, outside, outside, outside)
        copy((min(ceil_div(outside * outside, 256), 4096),), (256,), (source, target, *map(np.int32, extents)))

    def padding() -> None:
        copied(a, pa, size, padded)
        copied(b, pb, size, padded)
        gemm("exact", pa, pb, pc, padded, padded // tile)
        # Cropping reads the padded C with its own pitch.
        extents = (size, size, padded, size, size, size)
        copy((min(ceil_div(size * size, 256), 4096),), (256,), (pc, c, *map(np.int32, extents)))

    runs: dict[str, Callable[[], None]] = {
        "guard": lambda: gemm("guard", a, b, c, size, blocks),
        "mask": lambda: gemm("mask", a, b, c, size, blocks),
        "padding": padding,
        "fast path with tail": lambda: gemm("fast", a, b, c, size, blocks),
    }
    errors = {}
    for name, run in runs.items():
        c.fill(cupy.nan)
        cupy.cuda.runtime.deviceSynchronize()
        with stream:
            run()
        stream.synchronize()
        worst = float((cupy.abs(c.astype(cupy.float64) - reference) / scale).max())
        if not worst <= 2.0**-20:
            raise CheckError(f"tail strategy {name} at {size}^3 is wrong: error {worst:g} of |A| |B|")
        errors[name] = worst
    timed = {**runs, "unchecked": lambda: gemm("exact", pa, pb, pc, padded, padded // tile)}
    times = _interleaved(stream, timed, launches=100 if size < 1024 else 2)
    unchecked = times.pop("unchecked")
    return {
        "size": size,
        "tile": tile,
        "padded": padded,
        "time_us": times,
        "unchecked_us": unchecked,
        "max_error": errors,
        "rounds": TAIL_ROUNDS,
    }


def _interleaved(stream: Any, runs: dict[str, Callable[[], None]], launches: int) -> dict[str, float]:
    """Median microseconds of each run, from graphs of ``launches`` repetitions, order rotating by round."""
    cupy = launch.cupy_module()
    graphs = {}
    for name, run in runs.items():
        with stream:
            stream.begin_capture()
            for _ in range(launches):
                run()
            graphs[name] = stream.end_capture()
    samples: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for name in names:
        graphs[name].launch(stream)
    for turn in range(TAIL_ROUNDS):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            began, ended = cupy.cuda.Event(), cupy.cuda.Event()
            began.record(stream)
            graphs[name].launch(stream)
            ended.record(stream)
            ended.synchronize()
            samples[name].append(1000.0 * cupy.cuda.get_elapsed_time(began, ended) / launches)
    return {name: statistics.median(values) for name, values in samples.items()}


# --- numerics ----------------------------------------------------------------------------------------

IDENTITY_SHAPE = (512, 384, 1024)
GROWTH_KERNELS = ("v2_block_tile", "cublas_sgemm", "cublas_fp16_f32out")
GROWTH_LENGTHS = (256, 1024, 4096, 16384)


def measure_numerics() -> dict[str, Any]:
    """Groups of FP32 kernels that agree to the bit, and the power of k that error grows with."""
    digests: dict[str, list[str]] = {}
    skipped: dict[str, str] = {}
    m, n, k = IDENTITY_SHAPE
    for contender in contenders():
        if contender.track != "fp32_simt" or not contender.in_default_set or "rr" not in contender.layouts:
            continue
        if contender.needs():
            skipped[contender.name] = f"needs {contender.needs()}"
            continue
        try:
            c = _result(contender, m, n, k, low=-1.0)[0]
        except GemmTracksError as error:
            skipped[contender.name] = str(error).splitlines()[0]
            continue
        digests.setdefault(hashlib.sha256(c.tobytes()).hexdigest(), []).append(contender.name)
    growth = []
    for name in GROWTH_KERNELS:
        (contender,) = contenders([name])
        if contender.needs():
            continue
        for label, low in (("zero-mean", -1.0), ("positive", 0.0)):
            means = []
            for length in GROWTH_LENGTHS:
                c, a, b = _result(contender, 128, 128, length, low=low)
                exact, scale = a @ b, np.abs(a) @ np.abs(b)
                means.append(float((np.abs(c.astype(np.float64) - exact) / scale).mean()))
            power = float(np.polyfit(np.log(GROWTH_LENGTHS), np.log(means), 1)[0])
            growth.append({"name": name, "input": label, "power": power, "mean_error": means})
    return {
        "shape": f"{m}x{n}x{k}",
        "bit_identical_groups": sorted(digests.values(), key=len, reverse=True),
        "growth": growth,
        "growth_k": list(GROWTH_LENGTHS),
        "skipped": skipped,
    }


def _result(contender: Contender, m: int, n: int, k: int, low: float) -> tuple[Any, Any, Any]:
    """C as the contender computes it, and A and B in float64 after rounding to its input type."""
    cupy = launch.cupy_module()
    random = np.random.default_rng(5)
    a, b = (random.uniform(low, 1, shape).astype(contender.dtype_in) for shape in ((m, k), (k, n)))
    device_a, device_b = cupy.asarray(a), cupy.asarray(b)
    c = cupy.full((m, n), cupy.nan, contender.dtype_out)
    stream = cupy.cuda.get_current_stream()
    problem: Problem = contender.problem(
        m,
        n,
        k,
        layout="rr",
        align_a=pointer_alignment(device_a.data.ptr),
        align_b=pointer_alignment(device_b.data.ptr),
        align_c=pointer_alignment(c.data.ptr),
    )
    prepared = contender.prepare(problem, Pointers(a=device_a.data.ptr, b=device_b.data.ptr, c=c.data.ptr), stream.ptr)
    prepared.enqueue(stream.ptr)
    stream.synchronize()
    return cupy.asnumpy(c), a.astype(np.float64), b.astype(np.float64)


# --- command -----------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "occupancy": measure_occupancy,
    "numerics": measure_numerics,
    "tails": measure_tails,
    "counters": measure_counters,
    "three_ways": measure_three_ways,
}
UNITS = (PLAIN, TAILS, BANK_PROBE, *PRESSED)
"""What has to be in a bundle where the GPU machine has no nvcc."""


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or the error's own."""
    parser = argparse.ArgumentParser(prog="python -m compare.evidence", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder to write to; by default results/<gpu>/evidence")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas: %(default)s")
    parser.add_argument("--launch-probes", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        if options.launch_probes:
            launch_probes()
            return 0
        chosen = [name for name in options.only.split(",") if name]
        unknown = sorted(set(chosen) - set(PARTS))
        if unknown:
            raise UsageError(f"no part is called {', '.join(unknown)}; parts: {', '.join(PARTS)}")
        for name in chosen:
            path = write(name, PARTS[name](), options.out)
            sys.stdout.write(f"{path}\n")
    except GemmTracksError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0


def write(name: str, content: dict[str, Any], folder: Path | None) -> Path:
    """Write one part with its provenance and return its path."""
    from compare import driver, runs

    here = driver.query()
    facts = runs.provenance(["python", "-m", "compare.evidence", "--only", name], here)
    slug = here.devices[0].slug if here.devices else "unknown-gpu"
    target = (folder or runs.results_root() / slug / "evidence") / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    kept = {key: facts[key] for key in ("date", "revision", "command", "gpu", "driver", "packages") if key in facts}
    write_text(target, json.dumps({**kept, **content}, indent=1, allow_nan=False) + "\n")
    return target


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
