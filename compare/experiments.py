"""Evidence for the method: experiments that show why numbers are taken as they are. About two minutes on a GPU.

    python -m compare.experiments run [--only NAME,...] [--out FILE]    # on a GPU; writes method.json
    python -m compare.experiments page [--from FILE]                    # rewrites the tables of docs/method.md

Every experiment goes through the bench that contenders are timed with, and keeps what it read.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compare import runs
from compare.measure import Measurement, Settings, cold_sets, measure_group, self_test
from compare.operand_sets import OperandSets, copy_async
from compare.readme import rewrite
from compare.statistics import StoppingRule, median
from compare.timing import GpuBench, Job, Work
from compare.windows import BurstSettings, SustainedSettings, plan_sample
from kernel.contract import Problem
from kernel.errors import CatalogError, GemmTracksError, RunFileError, UsageError
from kernel.whole_file import write_text

FILE = "method.json"
INPUTS = ("uniform", "normal", "integers", "zeros")
SAG_S = 3.0
MIX_S = 2.0
BURST = BurstSettings(long_slice_s=0.4, stop=StoppingRule(min_rounds=20, max_rounds=40, cap_s=8.0))
SUSTAINED = SustainedSettings(stop=StoppingRule(min_rounds=3, max_rounds=3))


class Lab:
    """The device and what experiments need of it."""

    def __init__(self) -> None:
        import cupy

        self.bench = GpuBench()
        self.cupy = cupy

    def contender(self, name: str) -> Any | None:
        """A contender that can run here, or None."""
        from compare.contenders import contenders

        try:
            (found,) = contenders([name])
        except CatalogError:
            return None
        return None if found.needs() else found

    def operands(self, problem: Problem, distribution: str = "uniform") -> Any:
        """Fresh buffers."""
        return OperandSets(self.cupy, problem, distribution, stream=self.bench.stream)

    def work(self, contender: Any, problem: Problem, distribution: str = "uniform") -> Work:
        """A contender on buffers of its own, warmed up. The buffers live as long as the work."""
        operands = self.operands(problem, distribution)
        prepared = contender.prepare(problem, operands.pointers(), self.bench.stream)

        class Kept:
            buffers = operands

            def enqueue(self, stream: int) -> None:
                prepared.enqueue(stream)

        work = Work(contender.name, (Kept(),))
        self.bench.pilot(work)
        return work

    def groups(self, track: str, size: int) -> tuple[list[Any], Problem]:
        """cuBLAS of a track, and one hand-written kernel beside it where there is one, with their problem."""
        names = {"fp32_simt": ("cublas_sgemm", "simt_dispatch", "v6_transposed_split")}.get(
            track, ("cublas_fp16", "fp16_dispatch", "h1_wgmma_tma")
        )
        found = [one for one in map(self.contender, names) if one is not None][:2]
        problem = found[0].problem(size, size, size)
        return [one for one in found if one.rejects(problem) is None], problem


Result = dict[str, Any]


def summary(one: Measurement) -> Result:
    """What a table shows of a measurement."""
    return {
        "name": one.name,
        "window": one.window,
        "l2": one.l2,
        "tflops": one.tflops,
        "clock_mhz": one.clock_mhz,
        "nvml_clock_mhz": one.nvml_clock_mhz,
        "power_w": one.power_w,
        "x_cublas": None if one.x_cublas is None else dataclasses.astuple(one.x_cublas),
        "why_not": one.skipped_because or one.rejected_because,
    }


def self_tests(lab: Lab) -> list[Result]:
    """Is a library as fast as itself? A/A at 4096 on the FP32 and the FP16 track."""
    found = []
    settings = Settings(
        burst=BURST, sustained=SustainedSettings(stop=StoppingRule(min_rounds=5, max_rounds=5, half_width=1e-9))
    )
    for track in ("fp32_simt", "fp16_tensor"):
        (cublas, *_), problem = lab.groups(track, 4096)
        for test in self_test(cublas, problem, lab.operands(problem), settings, bench=lab.bench):
            i = test.interval
            found.append(
                {"name": test.name, "window": test.window, "ratio": i.value, "lo": i.lo, "hi": i.hi, "ok": test.ok}
            )
    return found


def inputs(lab: Lab) -> list[Result]:
    """What does the data change? Four inputs, both windows, the clock beside them."""
    found = []
    for track, size in (("fp32_simt", 4096), ("fp16_tensor", 8192)):
        contenders, problem = lab.groups(track, size)
        settings = Settings(burst=BURST, sustained=SUSTAINED, leave_out_slow=False)
        for distribution in INPUTS:
            operands = lab.operands(problem, distribution)
            measured = measure_group(
                contenders, problem, operands, settings, bench=lab.bench, reverify=operands.reverify
            )
            found += [{"input": distribution, "size": size, **summary(one)} for one in measured]
    return found


def sag(lab: Lab) -> list[Result]:
    """How does the clock fall under load? cuBLAS at 8192 from a cool start, a tenth of a second at a time."""
    found = []
    for track in ("fp32_simt", "fp16_tensor"):
        (cublas, *_), problem = lab.groups(track, 8192)
        work = lab.work(cublas, problem)
        _, seconds = lab.bench.pilot(work)
        lab.bench.idle(2.0)
        began = lab.bench.now()
        series = []
        while lab.bench.now() - began < SAG_S:
            window = lab.bench.window(Job(work, max(1, int(0.02 / seconds))), 0.1)
            series.append(
                {
                    "at_s": window.middle - began,
                    "tflops": problem.flop / median(window.seconds) * 1e-12,
                    "clock_mhz": window.clock_mhz,
                    "nvml_clock_mhz": window.state.nvml_clock_mhz,
                }
            )
        found.append({"name": cublas.name, "size": 8192, "series": series})
    return found


def mixing(lab: Lab) -> list[Result]:
    """What do interleaved samples measure under a power cap? One kernel on random data and on zeros, and both.

    The kernel on zeros draws less. Alone it may clock higher; in a mix of 20 ms samples both share one clock.
    Where nothing is near the cap (FP32 at 4096), solo and mix agree.
    """
    found = []
    for track, size in (("fp32_simt", 4096), ("fp16_tensor", 8192)):
        (cublas, *_), problem = lab.groups(track, size)
        works = [lab.work(cublas, problem, "uniform"), lab.work(cublas, problem, "zeros")]
        _, seconds = lab.bench.pilot(works[0])
        jobs = [Job(work, max(1, round(0.02 / seconds))) for work in works]
        alone = [lab.bench.window(job, 1.0) for job in jobs]
        began, mixed = lab.bench.now(), []
        while lab.bench.now() - began < MIX_S:
            readings = lab.bench.slice(jobs).readings
            if lab.bench.now() - began > MIX_S / 2:
                mixed.append(readings)
        pairs = [(a, b) for a, b in mixed if a is not None and b is not None]
        found.append(
            {
                "name": cublas.name,
                "size": size,
                "solo_ratio": median(alone[0].seconds) / median(alone[1].seconds),
                "mixed_ratio": median([a.seconds / b.seconds for a, b in pairs]),
                "solo_clocks_mhz": [window.clock_mhz for window in alone],
                "mixed_clocks_mhz": [_clock([pair[i].clock_mhz for pair in pairs]) for i in range(2)],
                "solo_power_w": [window.state.power_w for window in alone],
            }
        )
    return found


def _clock(seen: Sequence[float | None]) -> float | None:
    known = [clock for clock in seen if clock is not None]
    return median(known) if known else None


def caches(lab: Lab) -> list[Result]:
    """Which way of cooling L2 cools it? 1024 cubed in FP32, whose operands fit: flush, refill, back to back, rotate."""
    bench, cupy = lab.bench, lab.cupy
    (cublas, *_), problem = lab.groups("fp32_simt", 1024)
    operands = lab.operands(problem)
    prepared = cublas.prepare(problem, operands.pointers(), bench.stream)
    junk = cupy.empty(3 * bench.facts.l2_bytes, dtype=cupy.uint8)
    kept = {name: operands.sets[0].storage[name].copy() for name in ("a", "b")}

    def flush(stream: int) -> None:
        cupy.cuda.runtime.memsetAsync(junk.data.ptr, 0, junk.nbytes, stream)

    def refill(stream: int) -> None:
        for name, source in kept.items():
            copy_async(cupy, operands.sets[0].storage[name], source, stream)

    sets = cold_sets(problem, bench.facts.l2_bytes)
    operands.grow(sets)
    rotating = (prepared, *(cublas.prepare(problem, operands.pointers(i), bench.stream) for i in range(1, sets)))
    works = {
        "flush then run": Work("flush", (prepared,), flush),
        "fill again then run": Work("fill", (prepared,), refill),
        "back to back": Work("warm", (prepared,)),
        "rotating sets": Work("rotating", rotating),
    }
    found = []
    for way, work in works.items():
        _, seconds = bench.pilot(work)
        job = plan_sample(bench, work, seconds, 0.002).job()
        readings = [bench.slice([job]).readings[0] for _ in range(15)]
        taken = [reading.seconds for reading in readings if reading is not None]
        found.append({"way": way, "time_us": 1e6 * median(taken), "timer": job.timer, "launches": job.launches})
    return [{**one, "l2_bytes": bench.facts.l2_bytes, "operand_bytes": problem.bytes_min} for one in found]


def timers(lab: Lab) -> list[Result]:
    """What does timing cost at small sizes? A pair of events a launch, many launches between two, and graphs."""
    found = []
    (cublas, *_), _ = lab.groups("fp16_tensor", 256)
    for size in (256, 512, 768):
        problem = cublas.problem(size, size, size)
        work = lab.work(cublas, problem)
        single = Work(cublas.name, work.prepared, lambda stream: None)
        ways = {
            "a pair of events a launch": Job(single, 20, lead_in=1),
            "events around 90 launches": Job(work, 90, lead_in=1),
            "graph of 100 launches": Job(work, 100, "graph", lead_in=1),
        }
        for way, job in ways.items():
            readings = [lab.bench.slice([job]).readings[0] for _ in range(15)]
            taken = [reading.seconds for reading in readings if reading is not None]
            found.append({"size": size, "way": way, "time_us": 1e6 * median(taken)})
    return [{**one, "overhead_us": 1e6 * lab.bench.timer_overhead_s} for one in found]


def orders(lab: Lab) -> list[Result]:
    """Does the order of contenders or the number of rounds matter? Forwards and backwards, 20 and 37 rounds."""
    contenders, problem = lab.groups("fp32_simt", 4096)
    others = [lab.contender(name) for name in ("v2_block_tile", "v4_pad", "v6_transposed_contiguous")]
    contenders += [one for one in others if one is not None]
    times: dict[str, dict[str, float]] = {}
    for label, listed, rounds in (
        ("forwards", contenders, 20),
        ("backwards", contenders[::-1], 20),
        ("37 rounds", contenders, 37),
    ):
        rule = StoppingRule(min_rounds=rounds, max_rounds=rounds)
        settings = Settings(burst=dataclasses.replace(BURST, stop=rule), sustained=None)
        operands = lab.operands(problem)
        for one in measure_group(listed, problem, operands, settings, bench=lab.bench, reverify=operands.reverify):
            if one.median_s is not None:
                times.setdefault(one.name, {})[label] = 1e6 * one.median_s
    return [
        {"name": name, "time_us": by_way, "moved": max(by_way.values()) / min(by_way.values()) - 1}
        for name, by_way in times.items()
    ]


EXPERIMENTS: dict[str, Callable[[Lab], list[Result]]] = {
    one.__name__: one for one in (self_tests, sag, mixing, caches, timers, orders, inputs)
}
"""In the order they run; what a table of docs/method.md shows comes from the one of its name."""


def run(names: Sequence[str], path: Path) -> int:
    """Run experiments and write what they found after each, so that an interrupted run keeps the earlier ones."""
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise UsageError(f"unknown experiments: {', '.join(unknown)}; known: {', '.join(EXPERIMENTS)}")
    from compare import driver

    lab = Lab()
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    found["run"] = runs.provenance(["python", "-m", "compare.experiments", *sys.argv[1:]], driver.query())
    found["device"] = dataclasses.asdict(lab.bench.facts)
    for name in names:
        began = lab.bench.now()
        try:
            found[name] = EXPERIMENTS[name](lab)
        except GemmTracksError as error:
            found[name] = []
            sys.stderr.write(f"{name}: {error}\n")
        lab.bench.forget()
        lab.cupy.get_default_memory_pool().free_all_blocks()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(found, indent=1) + "\n")
        sys.stdout.write(f"{name}: {lab.bench.now() - began:.1f} s\n")
        for line in tables(found).get(name, []):
            sys.stdout.write(line + "\n")
    return int(any(not found[name] for name in names))


# Reading it: pure functions of what was kept.


def tables(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """Markdown tables by experiment; experiments that are missing have none."""
    return {name: render(found[name]) for name, render in RENDERERS.items() if found.get(name)}


def _self_tests_table(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (t["name"], t["window"], f"{t['ratio']:.4f}", f"{t['lo']:.4f} to {t['hi']:.4f}", "yes" if t["ok"] else "NO")
        for t in tests
    ]
    return _table(("kernel against itself", "window", "ratio", "95 % interval", "holds 1.00"), rows)


def _sag_table(runs_: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for one in runs_:
        for moment in (0.0, 0.5, 1.0, 2.0, SAG_S):
            at = min(one["series"], key=lambda point: abs(point["at_s"] - moment))
            clocks = (_n(at["clock_mhz"]), _n(at["nvml_clock_mhz"]))
            rows.append((one["name"], f"{at['at_s']:.1f}", _n(at["tflops"], 1), *clocks))
    return _table(("kernel at 8192", "s", "TFLOP/s", "MHz in the kernel", "MHz by NVML"), rows)


def _mixing_table(mixes: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (
            f"{one['name']} at {one['size']}",
            f"{one['solo_ratio']:.3f}",
            f"{one['mixed_ratio']:.3f}",
            " / ".join(_n(clock) for clock in one["solo_clocks_mhz"]),
            " / ".join(_n(clock) for clock in one["mixed_clocks_mhz"]),
        )
        for one in mixes
    ]
    return _table(("random over zeros", "solo windows", "20 ms samples in turn", "MHz solo", "MHz in turn"), rows)


def _caches_table(ways: Sequence[Mapping[str, Any]]) -> list[str]:
    return _table(("1024 cubed, FP32", "us"), [(one["way"], f"{one['time_us']:.1f}") for one in ways])


def _timers_table(ways: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [(one["size"], one["way"], f"{one['time_us']:.2f}") for one in ways]
    return _table(("cuBLAS FP16, cube", "way", "us a launch"), rows)


def _orders_table(kernels: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (one["name"], *(f"{value:.1f}" for value in one["time_us"].values()), f"{100 * one['moved']:.2f} %")
        for one in kernels
    ]
    return _table(("kernel at 4096, us", *kernels[0]["time_us"], "moved"), rows)


def _inputs_table(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    by_kernel: dict[tuple[str, int, str], dict[str, Mapping[str, Any]]] = {}
    for one in measured:
        by_kernel.setdefault((one["name"], one["size"], one["window"]), {})[one["input"]] = one
    rows = []
    for (name, size, window), by_input in by_kernel.items():
        cells = []
        for distribution in INPUTS:
            one = by_input.get(distribution, {})
            power = f", {_n(one['power_w'])} W" if one.get("power_w") else ""
            cells.append(f"{_n(one.get('tflops'), 1)} ({_n(one.get('clock_mhz'))} MHz{power})")
        rows.append((name, size, window, *cells))
    return _table(("kernel", "cube", "window", *INPUTS), rows)


def _n(value: float | None, digits: int = 0) -> str:
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def _table(heads: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


RENDERERS: dict[str, Callable[[Sequence[Mapping[str, Any]]], list[str]]] = {
    "self_tests": _self_tests_table,
    "inputs": _inputs_table,
    "sag": _sag_table,
    "mixing": _mixing_table,
    "caches": _caches_table,
    "timers": _timers_table,
    "orders": _orders_table,
}


def page_text(text: str, found: Mapping[str, Any], recorded: Mapping[str, Any] | None = None) -> str:
    """``text`` with every table between its markers, ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``, renewed.

    ``recorded`` is run.json of a recorded run; its A/A self-tests come first, since they belong to the rows it ships.
    """
    made = tables(found)
    run = found.get("run") or {}
    where = f"{(run.get('gpu') or {}).get('name', 'unknown GPU')}, {str(run.get('date', ''))[:10]}"
    for name in EXPERIMENTS:
        if name == "self_tests" and recorded and recorded.get("self_tests"):
            made[name] = _self_tests_table([one for one in recorded["self_tests"] if "ratio" in one])
            place = f"{recorded['gpu']['name']}, {str(recorded['date'])[:10]}"
        else:
            place = where
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if begin in text:
            lines = made.get(name)
            body = "Not recorded yet." if lines is None else "\n".join([*lines, "", f"({place})"])
            text = rewrite(text, body, begin, end)
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m compare.experiments", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run experiments on this machine's GPU")
    running.add_argument("--only", default=",".join(EXPERIMENTS), help="which, comma-separated")
    running.add_argument("--out", type=Path, help=f"file to write (default: {FILE} under OUT, else build/)")
    paging = commands.add_parser("page", help="renew the tables of docs/method.md")
    paging.add_argument("--from", dest="source", type=Path, help="what run wrote (default: the recorded one)")
    given = parser.parse_args(arguments)
    try:
        if given.command == "run":
            folder = Path(os.environ.get("OUT") or runs.repository() / "build")
            return run(given.only.split(","), given.out or folder / FILE)
        source = given.source or runs.results_root() / runs.RECORDED_GPU / FILE
        page = runs.repository() / "docs" / "method.md"
        try:
            found = json.loads(source.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunFileError(f"{source} holds no evidence: {error}") from error
        newest = runs.latest()
        recorded = runs.read_json(newest / runs.RUN_FILE) if newest is not None else None
        page.write_text(page_text(page.read_text(encoding="utf-8"), found, recorded), encoding="utf-8")
    except GemmTracksError as error:
        sys.stderr.write(f"compare.experiments: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
