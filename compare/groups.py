"""Comparison groups: who is timed against whom, on which buffers, and the check after timing.

A group holds contenders of one track that are given the very same problem: extents, layout, types.
Libraries take every layout, so they join each group whose layout and types they can run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from compare.contenders import Contender, KernelContender, Prepared
from kernel.contract import TRACKS, Pointers, Problem

if TYPE_CHECKING:
    from compare.check import Executor
    from compare.inputs import Buffers
    from compare.shapes import Shape
    from compare.timing import Bench

CHANGED_SEED = 7_000_003
"""Added to the seed for the check after timing, so that inputs differ from those that were timed."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Contenders of one track on one problem."""

    shape: Shape
    track: str
    problem: Problem
    contenders: tuple[Contender, ...]

    @property
    def name(self) -> str:
        """What tells it from every other group of a run."""
        types = f"{self.problem.dtype_in}-{self.problem.dtype_out}"
        return f"{self.shape} {self.track} {self.problem.layout} {types}"


def groups(contenders: Iterable[Contender], shape: Shape) -> tuple[Group, ...]:
    """The groups that contenders fall into on one shape, in the order of tracks.

    A kernel that takes several layouts is timed in its first, unless the shape states one.
    """
    known = tuple(contenders)
    found: dict[tuple[str, str, str, str, str], list[Contender]] = {}
    problems: dict[tuple[str, str, str, str, str], Problem] = {}
    for contender in known:
        problem = shape.problem(contender)
        key = (contender.track, problem.layout, problem.dtype_in, problem.dtype_acc, problem.dtype_out)
        found.setdefault(key, []).append(contender)
        # Contenders may differ in how they state the same problem only by the order of their layouts.
        problems.setdefault(key, problem)
    for key, members in found.items():
        for contender in known:
            is_library = not isinstance(contender, KernelContender)
            if is_library and contender.track == key[0] and contender not in members:
                if contender.rejects_type_or_layout(problems[key]) is None:
                    members.append(contender)
        members.sort(key=known.index)
    ordered = sorted(found, key=lambda key: TRACKS.index(key[0]))
    return tuple(
        Group(shape=shape, track=key[0], problem=problems[key], contenders=tuple(found[key])) for key in ordered
    )


class Site(Protocol):
    """Where a job runs: a GPU, or what tests put in its place."""

    bench: Bench
    executor: Executor
    stream: int
    """CUstream on which contenders do what they need beforehand, and which the check after timing uses."""

    def synchronise(self) -> None:
        """Wait until everything queued has run."""


class GpuSite:
    """The current CUDA device.

    Raises:
        NoDeviceError, MissingToolError: none can be used here.
    """

    def __init__(self) -> None:
        from compare.check import GpuExecutor
        from compare.timing import GpuBench

        self.executor: Executor = GpuExecutor()
        bench = GpuBench()
        self.bench: Bench = bench
        self.stream = int(bench.stream.ptr)

    def synchronise(self) -> None:
        self.executor.xp.cuda.Device().synchronize()


class OperandSets:
    """Device buffers of one group. Sets hold equal values in distinct memory.

    Args:
        xp: NumPy or CuPy.
        problem: what the buffers are for.
        distribution: how A and B are filled.
        seed: fixes the values.
    """

    def __init__(self, xp: Any, problem: Problem, distribution: str, seed: int) -> None:
        from compare.inputs import allocate, fill

        self._xp, self._problem = xp, problem
        self._distribution, self._seed = distribution, seed
        self._allocate, self._fill = allocate, fill
        self._sets: list[Buffers] = [allocate(xp, problem)]
        fill(self.first, distribution, seed)
        self._c_before = self.first.storage["c"].copy() if problem.beta != 0.0 else None
        self._changed = False

    @property
    def first(self) -> Buffers:
        """The set that contenders are bound to where L2 is warm."""
        return self._sets[0]

    def pointers(self, index: int = 0) -> Pointers:
        """Addresses of operand set ``index``."""
        return self._sets[index].pointers

    def grow(self, sets: int) -> None:
        """Make sure that there are so many sets.

        Raises:
            MemoryError: there is no room for them.
        """
        while len(self._sets) < sets:
            more = self._allocate(self._xp, self._problem)
            for name in ("a", "b", "c"):
                more.bits(name)[...] = self.first.bits(name)
            self._sets.append(more)

    def restore_c(self, stream: int, index: int = 0) -> None:
        """Queue a copy that puts C of a set back to what it was at first."""
        if self._c_before is None:
            return
        target = self._sets[index].storage["c"]
        if self._xp.__name__ == "cupy":
            device_to_device = 3
            self._xp.cuda.runtime.memcpyAsync(
                target.data.ptr, self._c_before.data.ptr, target.nbytes, device_to_device, stream
            )
        else:
            target[...] = self._c_before

    def change(self) -> None:
        """Put other values into A and B of the first set, and poison into C (fresh values where beta is not 0)."""
        if not self._changed or self._problem.beta != 0.0:
            self._fill(self.first, self._distribution, self._seed + CHANGED_SEED)
            self._changed = True
        else:
            self.first.poison_output()


def reverifier(group: Group, operands: OperandSets, site: Site) -> Callable[[Contender, Prepared], str | None]:
    """The check after timing: what was timed, once more, on changed inputs, against a fresh reference."""
    from compare.check import verify

    def reverify(contender: Contender, prepared: Prepared) -> str | None:
        operands.change()
        buffers = operands.first
        before = buffers.c.copy() if group.problem.beta != 0.0 else None
        site.synchronise()
        prepared.enqueue(site.stream)
        site.synchronise()
        verdict = verify(
            group.problem, group.track, group.shape.input, buffers.a, buffers.b, buffers.c, before,
            contender=contender.name,
        )  # fmt: skip
        if not verdict.ok:
            return verdict.reason
        damaged = buffers.damaged_guards()
        return f"elements outside the operands were written: {damaged}" if damaged else None

    return reverify
