"""The device under measurement: what it runs, how long that took, and in which state.

:class:`Bench` is the seam. :class:`GpuBench` is the real one, with events, graphs and the probes of
probes.cu; tests put a simulated device in its place, so that every rule above it runs without a GPU.

How a slice is timed: a gate kernel holds the stream while the host queues everything, so that between two
events there is device work and nothing else. Each sample is bracketed by readings of all SMs' cycle
counters; cycles over time between them is the SM clock while the sample ran.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from compare import driver
from compare.statistics import median
from compare.telemetry import Nvml, Sample, State, Telemetry, open_nvml, summarise
from kernel import build
from kernel.contract import Unit
from kernel.errors import GemmTracksError, LaunchError, NoDeviceError

PROBES = Path(__file__).with_name("probes.cu")
HOLD_LIMIT_S = 1.0
MOST_QUEUED = 400
"""Launches queued behind the gate before it is opened; a stream takes about a thousand before it blocks."""
MIN_CLOCK_WINDOW_S = 150e-6
"""Shortest interval whose clock is stated: the global timer may tick in microseconds."""
POLL_S = 0.003
"""The energy counter is timed by when a poll sees it move, so polls must be far shorter than a power window."""
WAITED_S = 0.0005
"""Queueing a part takes microseconds unless it has to wait for room."""


class Enqueues(Protocol):
    """One whole GEMM, put on a stream and not waited for."""

    def enqueue(self, stream: int) -> None: ...


@dataclass(frozen=True, eq=False)
class Work:
    """What one contender runs.

    ``prepared`` holds one GEMM per set of operands: one where L2 is warm, several that are used in turn
    where it must be cold. ``restore`` puts C back before every launch (where beta is not zero) and is left
    out of the time.
    """

    name: str
    prepared: tuple[Enqueues, ...]
    restore: Callable[[int], None] | None = None

    def enqueue(self, stream: int, index: int) -> None:
        """Put the GEMM of operand set ``index`` (modulo their number) on a stream."""
        self.prepared[index % len(self.prepared)].enqueue(stream)


@dataclass(frozen=True, eq=False)
class Job:
    """One sample to take: so many launches of a work between two events.

    ``lead_in`` launches run just before, untimed: they bring the caches to the state that is asked for.
    """

    work: Work
    launches: int
    timer: Literal["events", "graph"] = "events"
    lead_in: int = 0


@dataclass(frozen=True)
class Reading:
    """One sample: seconds of a launch, and the SM clock while it was taken (None where too short)."""

    seconds: float
    clock_mhz: float | None = None


@dataclass(frozen=True)
class SliceReading:
    """What one slice gave: a reading per job, None where the host could not keep ahead of the device."""

    readings: tuple[Reading | None, ...]
    throttle_mask: int | None = None


@dataclass(frozen=True)
class WindowReading:
    """A sustained window's counted part: seconds of a launch in each sample of it, and the state."""

    seconds: tuple[float, ...]
    began: float
    """When the counted part began and ended, seconds of :meth:`Bench.now`."""
    ended: float
    total_s: float
    """The whole window, its uncounted lead included."""
    clock_mhz: float | None = None
    state: State = field(default_factory=State)
    launches: int = 0
    """Launches counted."""
    timer: str = "events"

    @property
    def middle(self) -> float:
        return (self.began + self.ended) / 2


def arch_of(compute_capability: tuple[int, int]) -> str:
    """Architecture that probes and ceilings are built for: sm_90a on Hopper, sm_80 on every 8.x."""
    major, minor = compute_capability
    return {9: "sm_90a", 8: "sm_80"}.get(major, f"sm_{major}{minor}")


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """What the driver says about the device."""

    name: str
    sms: int
    l2_bytes: int
    compute_capability: tuple[int, int]
    max_mhz: float | None = None
    power_limit_w: float | None = None
    notes: tuple[str, ...] = ()
    index: int | None = None
    uuid_hash: str = ""
    """Index and hash of the UUID, as in :class:`compare.driver.Device`."""

    def card_columns(self) -> dict[str, Any]:
        """The columns of a row that say which card it was measured on."""
        return {"gpu_name": self.name, "gpu_index": self.index, "gpu_uuid_hash": self.uuid_hash or None}

    @property
    def arch(self) -> str:
        """What probes and ceilings are built for here."""
        return arch_of(self.compute_capability)


class Bench(Protocol):
    """A device that can be measured."""

    facts: DeviceFacts
    stream: int
    """CUstream that everything runs on, as an integer."""
    timer_overhead_s: float
    """What a pair of events reads with nothing but an empty launch between."""

    def now(self) -> float:
        """Seconds of a steady clock."""

    def idle(self, seconds: float) -> None:
        """Leave the device alone."""

    def pilot(self, work: Work) -> tuple[float, float]:
        """Warm up; seconds of one launch as seen over n launches, and over 2n of them (the last is kept)."""

    def slice(self, jobs: Sequence[Job]) -> SliceReading:
        """Run jobs back to back, each timed by itself."""

    def window(self, job: Job, seconds: float, lead_s: float | None = None) -> WindowReading:
        """Run one job over and over for at least ``seconds``; what follows the first ``lead_s`` (half) is counted."""

    def captures(self, work: Work) -> str:
        """Why the work cannot be captured in a graph, or nothing."""

    def forget(self) -> None:
        """Drop graphs made so far."""


def probe_unit(arch: str) -> Unit:
    """The unit of the timer's own kernels."""
    return Unit(name=f"probes.{arch}", arch=arch, source=PROBES)


def clock_mhz(before: Any, after: Any) -> float | None:
    """SM clock in MHz between two readings of shape [sms, 2] (nanoseconds, cycles); the median over SMs.

    SMs that a reading missed hold zeros and are left out. None where the interval is too short to tell.
    """
    seen = [
        (int(c1) - int(c0), int(t1) - int(t0))
        for (t0, c0), (t1, c1) in zip(before, after, strict=True)
        if t0 and t1 and t1 > t0 and c1 > c0
    ]
    if not seen or median([ns for _, ns in seen]) < MIN_CLOCK_WINDOW_S * 1e9:
        return None
    return median([1e3 * cycles / ns for cycles, ns in seen])


@dataclass(eq=False)
class _Graphs:
    """Captured graphs by work and number of launches."""

    made: dict[tuple[int, int], int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    kept: list[Work] = field(default_factory=list)
    """Works whose id is a key; kept so that no other object takes the same id."""


class GpuBench:
    """The device that CuPy sees under an ordinal (of the visible devices).

    Raises:
        NoDeviceError: CuPy is missing or reports no such device.
    """

    def __init__(self, ordinal: int = 0) -> None:
        try:
            import cupy
        except ImportError as error:
            raise NoDeviceError(f"measuring needs CuPy, which cannot be imported ({error})") from None
        self._cp = cupy
        self._rt = cupy.cuda.runtime
        try:
            self._device = cupy.cuda.Device(ordinal)
            self._device.use()
            properties = self._rt.getDeviceProperties(ordinal)
        except self._rt.CUDARuntimeError as error:
            raise NoDeviceError(f"device {ordinal} cannot be used: {error}") from None
        name = properties["name"].decode()
        self.telemetry: Telemetry = open_nvml(self._rt.deviceGetPCIBusId(ordinal), name)
        nvml = self.telemetry if isinstance(self.telemetry, Nvml) else None
        card = next((one for one in driver.query().devices if one.ordinal == ordinal), None)
        self.facts = DeviceFacts(
            name=name,
            sms=properties["multiProcessorCount"],
            l2_bytes=properties["l2CacheSize"],
            compute_capability=(properties["major"], properties["minor"]),
            max_mhz=nvml.max_sm_clock_mhz() if nvml else None,
            power_limit_w=nvml.power_limit_w() if nvml else None,
            notes=(self.telemetry.note,) if self.telemetry.note else (),
            index=card.index if card else None,
            uuid_hash=card.uuid_hash if card else "",
        )
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.stream = int(self._stream.ptr)
        module = cupy.RawModule(path=str(build.artifact(probe_unit(self.facts.arch)).cubin))
        self._hold = module.get_function("hold")
        self._read_clocks = module.get_function("read_clocks")
        self._nothing = module.get_function("nothing")
        self._pinned = cupy.cuda.alloc_pinned_memory(64)
        self._gate = np.frombuffer(self._pinned, dtype=np.int32, count=2)
        self._graphs = _Graphs()
        self.timer_overhead_s = self._measure_overhead()

    def now(self) -> float:
        return time.perf_counter()

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)

    def pilot(self, work: Work) -> tuple[float, float]:
        """See :meth:`Bench.pilot`; about three milliseconds, or four launches of a longer kernel.

        Raises:
            LaunchError: the work cannot be queued, or its kernels fault.
        """
        # Once without the gate: the driver loads a kernel at its first launch and may wait for the device then.
        for index in range(len(work.prepared)):
            self._queue(work, index)
        self._synchronise(work.name)
        once = self._one_sample(Job(work, 1))
        count = max(1, min(64, int(1e-3 / max(once, 1e-6))))
        if count > 1:
            once = self._one_sample(Job(work, count, lead_in=1))
        twice = self._one_sample(Job(work, 2 * count))
        if twice < 0.9 * once:  # a device that was still waking up at first is not one that was not waited for
            once = self._one_sample(Job(work, count))
        return once, twice

    def slice(self, jobs: Sequence[Job]) -> SliceReading:
        for job in jobs:
            if job.timer == "graph":
                self._graph(job.work, job.launches)
        self._forbid_persisting_lines()
        clocks = self._clock_slots(2 * len(jobs))
        events: list[list[tuple[Any, Any]]] = []
        with self._gate_closed() as gate:
            for number, job in enumerate(jobs):
                for index in range(job.lead_in):
                    self._queue(job.work, index + 1)
                    gate.queued(4)
                self._probe(clocks, 2 * number)
                events.append(self._queue_timed(job, gate))
                self._probe(clocks, 2 * number + 1)
        mask = self.telemetry.throttle_mask()
        self._synchronise(jobs[-1].work.name if jobs else "")
        if self._gate[1]:
            return SliceReading(tuple(None for _ in jobs), mask)
        host = clocks.get()
        readings = tuple(
            Reading(self._elapsed(pairs) / job.launches, clock_mhz(host[2 * n], host[2 * n + 1]))
            for n, (job, pairs) in enumerate(zip(jobs, events, strict=True))
        )
        return SliceReading(readings, mask)

    def window(self, job: Job, seconds: float, lead_s: float | None = None) -> WindowReading:
        estimate = self._one_sample(Job(job.work, job.launches, job.timer))
        fraction = 0.5 if lead_s is None else lead_s / seconds
        for _ in range(3):
            parts = max(4, int(1.05 * seconds / (estimate * job.launches)) + 1)
            parts += parts % 2
            reading = self._window(job, parts, round(fraction * parts))
            if reading.total_s >= seconds:
                return reading
            estimate = reading.total_s / (parts * job.launches)
        return reading

    def captures(self, work: Work) -> str:
        if work.restore is not None:
            return "C is restored between launches"
        if id(work) not in self._graphs.refused:
            with contextlib.suppress(LaunchError):
                self._graph(work, 2 * len(work.prepared))
        return self._graphs.refused.get(id(work), "")

    def forget(self) -> None:
        for handle in self._graphs.made.values():
            self._rt.graphExecDestroy(handle)
        self._graphs = _Graphs()

    # What follows talks to the device.

    def _measure_overhead(self) -> float:
        """Median of what two events read around one empty launch, queued behind the gate."""
        with self._gate_closed() as gate:  # opened at once: these first launches load the probes
            gate.open()
            self._probe(self._clock_slots(1), 0)
            self._nothing((1,), (32,), (), stream=self._stream)
        self._stream.synchronize()
        pairs = []
        with self._gate_closed():
            for _ in range(64):
                begin, end = self._event(), self._event()
                begin.record(self._stream)
                self._nothing((1,), (32,), (), stream=self._stream)
                end.record(self._stream)
                pairs.append((begin, end))
        self._stream.synchronize()
        return median([self._elapsed([pair]) for pair in pairs])

    def _one_sample(self, job: Job) -> float:
        reading = self.slice([job]).readings[0]
        if reading is None:
            raise LaunchError(f"{job.work.name}: queueing it waits for the device, so it cannot be timed")
        return reading.seconds

    def _event(self) -> Any:
        return self._cp.cuda.Event()

    def _elapsed(self, pairs: Sequence[tuple[Any, Any]]) -> float:
        return float(sum(self._cp.cuda.get_elapsed_time(begin, end) for begin, end in pairs)) / 1e3

    def _queue(self, work: Work, index: int) -> None:
        try:
            work.enqueue(self.stream, index)
        except GemmTracksError:
            raise
        except Exception as error:
            raise LaunchError(f"{work.name}: the launch was refused: {error}") from error

    def _queue_timed(self, job: Job, gate: _Gate) -> list[tuple[Any, Any]]:
        """Queue a job's launches between events; one pair, or one per launch where C is restored between."""
        if job.work.restore is not None:
            pairs = []
            for index in range(job.launches):
                job.work.restore(self.stream)
                begin, end = self._event(), self._event()
                begin.record(self._stream)
                self._queue(job.work, index)
                end.record(self._stream)
                pairs.append((begin, end))
                gate.queued(8)
            return pairs
        begin, end = self._event(), self._event()
        begin.record(self._stream)
        if job.timer == "graph":
            self._rt.graphLaunch(self._graph(job.work, job.launches), self.stream)
            gate.queued(1)
        else:
            for index in range(job.launches):
                self._queue(job.work, index)
                gate.queued(4)
        end.record(self._stream)
        return [(begin, end)]

    def _graph(self, work: Work, launches: int) -> int:
        """Executable graph of so many launches, captured once."""
        key = (id(work), launches)
        if key in self._graphs.made:
            return self._graphs.made[key]
        stream = self.stream
        self._graphs.kept.append(work)
        self._rt.streamBeginCapture(stream, self._rt.streamCaptureModeThreadLocal)
        graph, failure = 0, ""
        try:
            for index in range(launches):
                self._queue(work, index)
        except GemmTracksError as error:
            failure = str(error)
        try:
            graph = self._rt.streamEndCapture(stream)
        except self._rt.CUDARuntimeError as error:
            failure = failure or str(error)
        if failure or not graph:
            self._graphs.refused[id(work)] = failure or "the capture came back empty"
            raise LaunchError(f"{work.name} cannot be captured in a graph: {self._graphs.refused[id(work)]}")
        handle = int(self._rt.graphInstantiate(graph))
        self._rt.graphDestroy(graph)
        self._rt.graphUpload(handle, stream)
        self._graphs.made[key] = handle
        return handle

    @contextlib.contextmanager
    def _gate_closed(self) -> Iterator[_Gate]:
        """Hold the stream while the body queues work; whatever happens, the stream is let go."""
        self._gate[0] = self._gate[1] = 0
        address = self._pinned.ptr
        limit = int(HOLD_LIMIT_S * 1e9)
        arguments = (np.uint64(address), np.uint64(address + 4), np.uint64(limit))
        self._hold((1,), (32,), arguments, stream=self._stream)
        gate = _Gate(self._gate)
        try:
            yield gate
        finally:
            gate.open()

    def _clock_slots(self, count: int) -> Any:
        with self._stream:
            return self._cp.zeros((max(count, 1), self.facts.sms, 2), dtype=np.uint64)

    def _probe(self, slots: Any, number: int) -> None:
        address = slots.data.ptr + number * self.facts.sms * 16
        self._read_clocks((self.facts.sms,), (32,), (np.uint64(address),), stream=self._stream)

    def _forbid_persisting_lines(self) -> None:
        """No contender may pin its data in L2: no room for persisting lines, and those there are let go."""
        with contextlib.suppress(Exception):
            from cuda.bindings import driver

            driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0)
            driver.cuCtxResetPersistingL2Cache()

    def _synchronise(self, name: str) -> None:
        try:
            self._stream.synchronize()
        except self._rt.CUDARuntimeError as error:
            raise LaunchError(f"{name}: a kernel in this slice failed: {error}") from error

    def _window(self, job: Job, parts: int, first_counted: int) -> WindowReading:
        """Run a job ``parts`` times without a pause and count those from ``first_counted`` on."""
        if job.timer == "graph":
            self._graph(job.work, job.launches)
        self._forbid_persisting_lines()
        clocks = self._clock_slots(2)
        gate = _Gate(self._gate)
        start, timed = self._event(), []
        marks: list[Any] = []
        samples: list[Sample] = []
        start.record(self._stream)
        for part in range(parts):
            if part == first_counted:
                self._probe(clocks, 0)
                marks.append(self._event())
                marks[0].record(self._stream)
            queued = self.now()
            timed.append(self._queue_timed(job, gate))
            # Where the queue is full, queueing waits: cuBLAS's graphs do for most of a window. There, and only
            # there, the device has enough to do while NVML is asked.
            at = self.now()
            if at - queued > WAITED_S and (not samples or at - samples[-1].at >= POLL_S):
                samples.append(self.telemetry.sample(at))
        finish = self._event()
        finish.record(self._stream)
        self._probe(clocks, 1)
        began = None
        while not finish.done:
            at = self.now()
            if began is None and marks[0].done:
                began = at
            samples.append(self.telemetry.sample(at))
            time.sleep(POLL_S)
        ended = self.now()
        self._synchronise(job.work.name)
        host = clocks.get()
        counted = timed[first_counted:]
        length = self._cp.cuda.get_elapsed_time(marks[0], finish) / 1e3
        return WindowReading(
            seconds=tuple(self._elapsed(pairs) / job.launches for pairs in counted),
            began=ended - length if began is None else began,
            ended=ended,
            total_s=self._cp.cuda.get_elapsed_time(start, finish) / 1e3,
            clock_mhz=clock_mhz(host[0], host[1]),
            state=summarise(samples, ended - length, ended),
            launches=len(counted) * job.launches,
            timer=job.timer,
        )


@dataclass
class _Gate:
    """Counts what is queued behind the gate and opens it before the stream's queue is full."""

    flag: Any
    count: int = 0

    def queued(self, launches: int) -> None:
        self.count += launches
        if self.count > MOST_QUEUED:
            self.open()

    def open(self) -> None:
        self.flag[0] = 1
