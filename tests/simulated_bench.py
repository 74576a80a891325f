"""A device that exists only as arithmetic: known times, noise, a power cap, and every way to go wrong.

Stands behind :class:`compare.timing.Bench`, so that everything above it is tested without a GPU. A
contender here is a :class:`SimulatedContender`; its GEMM really computes (small NumPy matrices), so that
checks after timing see what a cheating kernel would leave.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

import numpy as np

from compare.telemetry import State
from compare.timing import DeviceFacts, Reading, SliceReading, WindowReading
from kernel.contract import Pointers, Tile
from kernel.errors import LaunchError


@dataclass(eq=False)
class SimulatedPrepared:
    contender: SimulatedContender
    problem: object
    operands: SimulatedOperands
    index: int = 0
    calls: int = 0
    variant: str = ""
    memory: dict = field(default_factory=dict)

    @property
    def kernel_names(self):
        return (f"{self.contender.name}_kernel",)

    def enqueue(self, stream):
        if self.contender.refuses_launch:
            raise LaunchError(f"{self.contender.name}: too much shared memory")
        self.calls += 1
        self.contender.compute(self, self.operands)


def honest(prepared, operands):
    p = prepared.problem
    operands.c = (p.alpha * operands.a @ operands.b + (p.beta * operands.c if p.beta else 0)).astype(np.float32)


@dataclass(eq=False)
class SimulatedContender:
    """``seconds``: of one launch at full clock; ``watts`` what it draws there."""

    name: str
    seconds: float
    family: str = "handwritten"
    track: str = "fp32_simt"
    watts: float = 400.0
    noise: float = 0.001
    instruction: str = "ffma"
    arch: str = "sm_90a"
    tile: Tile = field(default_factory=Tile)
    dtype_in: str = "float32"
    dtype_acc: str = "float32"
    dtype_out: str = "float32"
    layouts: tuple = ("rr",)
    swizzle: str = ""
    is_default: bool = False
    is_dispatcher: bool = False
    largest_timed: int = 0
    refuses: str = ""
    refuses_launch: bool = False
    no_graphs: bool = False
    unsynchronised: bool = False
    compute: object = staticmethod(honest)

    def rejects(self, problem):
        return self.refuses or None

    def prepare(self, problem, pointers, stream):
        assert isinstance(pointers, Pointers)
        return SimulatedPrepared(self, problem, SimulatedOperands.current)

    def __replace__(self, **changes):
        return replace(self, **changes)


class SimulatedOperands:
    """Sixteen by sixteen, whatever the problem says: the sums are what matters."""

    current = None
    distribution = "uniform"

    def __init__(self, seed=0):
        SimulatedOperands.current = self
        self.sets, self.restored = 1, 0
        self.redraw(seed)

    def redraw(self, seed):
        rng = np.random.default_rng(seed)
        self.a, self.b, self.first_c = (rng.uniform(-1, 1, (16, 16)).astype(np.float32) for _ in range(3))
        self.c = self.first_c.copy()

    def pointers(self, index=0):
        return Pointers(a=4096 * (index + 1), b=8192 * (index + 1), c=16384 * (index + 1))

    def grow(self, sets):
        self.sets = max(self.sets, sets)

    def restore_c(self, stream, index=0):
        self.restored += 1
        self.c = self.first_c.copy()


class SimulatedBench:
    """Time passes only when something runs. A cap, if any, lowers the clock by the recent average power."""

    def __init__(self, name="NVIDIA H200", cap_w=math.inf, seed=0, overhead=2e-6, facts=None):
        self.stream = 0
        self.facts = facts or DeviceFacts(
            name=name, sms=132, l2_bytes=60 << 20, compute_capability=(9, 0), max_mhz=1980.0
        )
        self.timer_overhead_s = overhead
        self.cap_w = cap_w
        self.rng = random.Random(seed)
        self.clock = 0.0
        self.average_w = 100.0
        self.log = []
        self.idles = []

    def now(self):
        return self.clock

    def idle(self, seconds):
        self.clock += seconds
        self.idles.append(seconds)
        self._draw(100.0, seconds)

    def _draw(self, watts, seconds):
        """Average over 20 ms, as a power controller would."""
        keep = math.exp(-seconds / 0.02)
        self.average_w = keep * self.average_w + (1 - keep) * watts

    def _run(self, job):
        """(seconds of a launch, clock) of a job under the cap."""
        contender = job.work.prepared[0].contender
        for index in range(min(job.launches, 12)):
            if job.work.restore:
                job.work.restore(0)
            job.work.enqueue(0, index)
        span = contender.seconds * job.launches
        keep = math.exp(-span / 0.02)
        drawn = keep * self.average_w + (1 - keep) * contender.watts
        share = min(1.0, self.cap_w / drawn) ** 0.5
        seconds = contender.seconds / share * math.exp(self.rng.gauss(0, contender.noise))
        self._draw(contender.watts * share, seconds * job.launches)
        self.clock += seconds * job.launches
        if contender.unsynchronised:
            seconds = 5e-6 / job.launches
        return seconds, 1980.0 * share

    def pilot(self, work):
        from compare.timing import Job

        self.slice([Job(work, 2)])
        once = self.slice([Job(work, 4)]).readings[0].seconds
        return once, self.slice([Job(work, 8)]).readings[0].seconds

    def slice(self, jobs):
        self.log.append([(job.work.name, job.launches, job.timer, job.lead_in) for job in jobs])
        return SliceReading(tuple(Reading(*self._run(job)) for job in jobs), 0)

    def window(self, job, seconds, lead_s=None):
        lead_s = seconds / 2 if lead_s is None else lead_s
        self.log.append([("window", job.work.name, job.launches, job.timer)])
        parts, began = [], self.clock
        while self.clock - began < seconds:
            middle = self.clock
            parts.append((middle, *self._run(job)))
        counted = [part for part in parts if part[0] >= began + lead_s] or parts[-1:]
        state = State(power_w=min(job.work.prepared[0].contender.watts, self.cap_w), power_from="energy", throttle=())
        return WindowReading(
            seconds=tuple(part[1] for part in counted),
            began=counted[0][0],
            ended=self.clock,
            total_s=self.clock - began,
            clock_mhz=counted[-1][2],
            state=state,
            launches=len(counted) * job.launches,
            timer=job.timer,
        )

    def captures(self, work):
        return "it synchronises" if work.prepared[0].contender.no_graphs else ""

    def forget(self):
        self.log.append("forget")
