"""Ceilings: how fast an instruction runs on this device today when nothing else is in its way.

Register-only loops (wgmma reads shared memory, as it must) on data that stays random, timed through the
same bench and in the same windows as the contenders. Beside them the copy bandwidth, for the roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from compare import peaks
from compare.statistics import StoppingRule, median
from compare.timing import Bench, DeviceFacts, GpuBench, Job, Work
from compare.windows import BurstSettings, Plan, SustainedSettings, burst
from kernel.build import artifact
from kernel.contract import Unit
from kernel.errors import LaunchError, NoDeviceError

FOLDER = Path(__file__).parent
THREADS = 256
BLOCKS_PER_SM = {"ffma": 2, "mma_sync": 2, "wgmma": 1}
CHAINS, STEPS = 32, 16
MMA_TILES = 4
STAGES = 4
STAGE_BYTES = (128 + 256) * 128
LAUNCH_S = 0.001
"""Length that a launch of a loop is tuned to."""
BURST_ROUNDS = 5
PILOTS_S = 0.2
"""What tuning a loop takes."""
COPY_BYTES = 1 << 30


@dataclass(frozen=True)
class Loop:
    """One loop: what it issues, and the operations of one launch."""

    track: str
    instruction: str
    unit: Unit
    entry: str
    block_flop: Callable[[int], int]
    """Floating-point operations of one block for a number of iterations."""
    shared_bytes: int = 0

    @property
    def name(self) -> str:
        return f"ceiling_{self.track}_{self.instruction}"

    def blocks(self, sms: int) -> int:
        """Blocks that fill the device exactly once."""
        return BLOCKS_PER_SM[self.instruction] * sms

    def flop(self, sms: int, iterations: int) -> int:
        """Operations of one launch."""
        return self.blocks(sms) * self.block_flop(iterations)


def ffma_flop(iterations: int) -> int:
    return 2 * THREADS * CHAINS * STEPS * iterations


def mma_flop(depth: int) -> Callable[[int], int]:
    """A pass is TILES ** 3 products of 16 x 8 x depth in each of the block's warps."""
    one_pass = 2 * 16 * 8 * depth * MMA_TILES**3 * (THREADS // 32)
    return lambda iterations: one_pass * (2 * iterations + 1)


def wgmma_flop(depth: int) -> Callable[[int], int]:
    """A pass is STAGES x 4 products of 64 x 256 x depth in each of two warpgroups."""
    one_pass = 2 * 64 * 256 * depth * STAGES * 4 * 2
    return lambda iterations: one_pass * (2 * iterations + 1)


def loops(arch: str) -> tuple[Loop, ...]:
    """The loops that an architecture has instructions for; wgmma on sm_90a only."""
    number = int("".join(filter(str.isdigit, arch)))

    def unit(name: str, source: str, *flags: str) -> Unit:
        return Unit(name=f"{name}.{arch}", arch=arch, source=FOLDER / source, flags=flags)

    threads = f"-DTHREADS={THREADS}"
    found = [
        Loop(
            "fp32_simt",
            "ffma",
            unit("ceiling_ffma", "ceiling_ffma.cu", threads, f"-DCHAINS={CHAINS}", f"-DSTEPS={STEPS}"),
            "ceiling_ffma",
            ffma_flop,
        )
    ]
    if number >= 80:
        half = unit("ceiling_mma_fp16", "ceiling_mma.cu", threads)
        tf32 = unit("ceiling_mma_tf32", "ceiling_mma.cu", threads, "-DTF32")
        found.append(Loop("fp16_tensor", "mma_sync", half, "ceiling_mma", mma_flop(16)))
        found.append(Loop("tf32_tensor", "mma_sync", tf32, "ceiling_mma", mma_flop(8)))
    if arch == "sm_90a":
        stages, shared = f"-DSTAGES={STAGES}", STAGES * STAGE_BYTES + 1024
        half = unit("ceiling_wgmma_fp16", "ceiling_wgmma.cu", stages)
        tf32 = unit("ceiling_wgmma_tf32", "ceiling_wgmma.cu", stages, "-DTF32")
        found.append(Loop("fp16_tensor", "wgmma", half, "ceiling_wgmma", wgmma_flop(16), shared))
        found.append(Loop("tf32_tensor", "wgmma", tf32, "ceiling_wgmma", wgmma_flop(8), shared))
    return tuple(found)


def units(arch: str) -> tuple[Unit, ...]:
    """Everything to build before ceilings can be measured, the timer's probes included."""
    from compare.timing import probe_unit

    return (probe_unit(arch), *(loop.unit for loop in loops(arch)))


class _Stream(NamedTuple):
    """A stream of somebody else's, as a launch wants it: CuPy 14 warns of ExternalStream, and 13 has nothing newer."""

    ptr: int


class LoopLaunch:
    """A loop on the current device, ready to run; enqueues like any contender."""

    def __init__(self, loop: Loop, sms: int, iterations: int, checked_blocks: int = 0) -> None:
        import cupy
        import numpy as np

        from kernel.launch import load

        self.loop, self.sms, self.iterations = loop, sms, iterations
        self._function = load(artifact(loop.unit), loop.entry)
        if loop.shared_bytes > self._function.max_dynamic_shared_size_bytes:
            self._function.max_dynamic_shared_size_bytes = loop.shared_bytes
        per_thread = 1 if loop.instruction == "ffma" else 4 * MMA_TILES**2 if loop.instruction == "mma_sync" else 128
        blocks = loop.blocks(sms) if loop.instruction == "ffma" else max(checked_blocks, 1)
        self.out = cupy.zeros((blocks * THREADS, per_thread), dtype=np.float32)
        arguments: list[Any] = [self.out, np.int32(iterations)]
        if loop.instruction != "ffma":
            arguments.append(np.int32(checked_blocks))
        self._arguments = tuple(arguments)

    def enqueue(self, stream: int) -> None:
        """Put one launch on a stream."""
        grid, shared = (self.loop.blocks(self.sms),), self.loop.shared_bytes
        self._function(grid, (THREADS,), self._arguments, shared_mem=shared, stream=_Stream(stream))


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """One loop in one window."""

    track: str
    instruction: str
    window: str
    tflops: float
    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.track, self.instruction, self.window


LaunchFactory = Callable[[Loop, int, int], Any]


def measure_ceilings(
    bench: Bench,
    sustained: bool = True,
    tracks: Sequence[str] | None = None,
    launch: LaunchFactory = LoopLaunch,
) -> list[Ceiling]:
    """Every loop of the device's architecture in the burst window and, if asked, the sustained one.

    Each loop has slices and windows to itself, since none of them is compared with another.

    Raises:
        CheckError: a loop seems to run faster than the device can.
    """
    facts, found = bench.facts, []
    for loop in loops(facts.arch):
        if tracks is not None and loop.track not in tracks:
            continue
        bound = peaks.peak(facts.name, loop.track, facts.sms, facts.max_mhz)
        work, launch_s, flop = _tuned(bench, loop, facts, launch)
        found.append(_burst_ceiling(bench, loop, work, launch_s, flop))
        peaks.percent_of_peak(found[-1].tflops, bound, found[-1].clock_mhz)
        if sustained:
            launches = max(1, int(SustainedSettings().part_s / launch_s))
            timer: Any = "graph" if not bench.captures(work) else "events"
            window = bench.window(Job(work, launches, timer), SustainedSettings().window_s)
            rate = flop / (sum(window.seconds) / len(window.seconds)) * 1e-12
            state = window.state
            found.append(
                Ceiling(
                    track=loop.track,
                    instruction=loop.instruction,
                    window="sustained",
                    tflops=rate,
                    clock_mhz=window.clock_mhz,
                    power_w=state.power_w,
                    temperature_c=state.temperature_c,
                    throttle=state.throttle,
                )
            )
            peaks.percent_of_peak(rate, bound, window.clock_mhz)
    bench.forget()
    return found


def estimate_s(arch: str) -> float:
    """Seconds that :func:`measure_ceilings` takes, roughly: resting before bursts, and sustained windows."""
    each = BURST_ROUNDS * (BurstSettings().idle_s + 0.01) + 1.1 * SustainedSettings().window_s + PILOTS_S
    return len(loops(arch)) * each


def _tuned(bench: Bench, loop: Loop, facts: DeviceFacts, launch: LaunchFactory) -> tuple[Work, float, int]:
    """A launch of about :data:`LAUNCH_S`: (work, its seconds, its operations)."""
    trial = 64
    _, seconds = bench.pilot(Work(loop.name, (launch(loop, facts.sms, trial),)))
    iterations = max(trial, int(trial * LAUNCH_S / seconds))
    work = Work(loop.name, (launch(loop, facts.sms, iterations),))
    _, seconds = bench.pilot(work)
    return work, seconds, loop.flop(facts.sms, iterations)


def _burst_ceiling(bench: Bench, loop: Loop, work: Work, launch_s: float, flop: int) -> Ceiling:
    rule = StoppingRule(min_rounds=BURST_ROUNDS, max_rounds=BURST_ROUNDS)
    launches = max(1, int(0.004 / launch_s))
    result = burst(bench, [Plan(work, launch_s, launches, "events", 0)], None, BurstSettings(stop=rule))
    series = result.series[0]
    if not series.taken:
        raise LaunchError(f"{loop.name}: {series.failed or 'no sample could be taken'}")
    clocks = [clock for clock in series.clocks if clock is not None]
    return Ceiling(
        track=loop.track,
        instruction=loop.instruction,
        window="burst",
        tflops=flop / median(series.taken) * 1e-12,
        clock_mhz=median(clocks) if clocks else None,
        throttle=result.throttle,
    )


def ceiling_of(
    found: Sequence[Ceiling], track: str, instruction: str, window: str, compute_capability: tuple[int, int]
) -> Ceiling | None:
    """The ceiling that a row is measured against; None where it was not measured.

    A library does not say which instruction it uses: its rows get the track's fastest instruction.
    """
    best = {"fp32_simt": "ffma"}.get(track, "wgmma" if compute_capability[0] == 9 else "mma_sync")
    key = (track, instruction or best, window)
    return next((one for one in found if one.key == key), None)


def copy_bandwidth(bench: GpuBench, repeats: int = 10) -> float:
    """Device-to-device copy, bytes read plus bytes written per second: the median over repeats."""
    import cupy

    from compare.operand_sets import copy_async

    try:
        source = cupy.empty(COPY_BYTES, dtype=cupy.uint8)
        target = cupy.empty(COPY_BYTES, dtype=cupy.uint8)
    except cupy.cuda.memory.OutOfMemoryError:
        raise NoDeviceError(f"two buffers of {COPY_BYTES >> 20} MiB do not fit on the device") from None
    # Random bits: a memory system may compress what is all alike.
    source.view("uint32")[...] = cupy.arange(COPY_BYTES // 4, dtype="uint32") * 2654435761

    class Copy:
        def enqueue(self, stream: int) -> None:
            copy_async(cupy, target, source, stream)

    work = Work("copy", (Copy(),))
    bench.pilot(work)
    readings = [bench.slice([Job(work, 4, lead_in=1)]).readings[0] for _ in range(repeats)]
    return 2 * COPY_BYTES / median([reading.seconds for reading in readings if reading is not None])
