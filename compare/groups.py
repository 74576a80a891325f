"""Comparison groups: who is timed against whom, and where.

A group holds contenders of one track that are given the very same problem: extents, layout, types.
Libraries take every layout, so they join each group whose layout and types they can run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from compare.contenders import Contender, KernelContender
from kernel.contract import TRACKS, Problem

if TYPE_CHECKING:
    from compare.ceilings import Ceiling
    from compare.check import Executor
    from compare.shapes import Shape
    from compare.timing import Bench


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
            may_join = not isinstance(contender, KernelContender) and contender.track == key[0]
            if may_join and contender not in members and contender.rejects_type_or_layout(problems[key]) is None:
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

    def ceilings(self) -> list[Ceiling]:
        """How fast each instruction runs there when nothing is in its way, in both windows."""


class GpuSite:
    """A CUDA device, by its number among the visible ones; it becomes the current one.

    Raises:
        NoDeviceError, MissingToolError: it cannot be used here.
    """

    def __init__(self, ordinal: int = 0) -> None:
        from compare.check import GpuExecutor
        from compare.timing import GpuBench

        self.executor: Executor = GpuExecutor(ordinal)
        self.bench: Bench = GpuBench(ordinal)

    def ceilings(self) -> list[Ceiling]:
        from compare.ceilings import measure_ceilings

        return measure_ceilings(self.bench)
