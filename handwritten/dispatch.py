"""Dispatchers: contenders that pick one of our kernels for each problem, from a table tuned beforehand.

The rule, in order; the first kernel that accepts the problem is taken:

1. *tuned*: the table has the very problem (extents, layout, alignment class) for as many SMs as there are; its
   kernels in the order in which they finished.
2. *modelled*: every kernel that was timed at one of the tuned shapes nearest in (log m, log n, log k) is predicted
   for the problem, and the quickest is taken. A kernel's time is waves x k x its own rate: waves are block tiles over
   resident blocks, rounded up (not for kernels that cut work along k), and the rate is what it took per wave and k
   at the nearest of those shapes. So wave fill decides between tiles, and measurement says how good a tile is.
   As many shapes of the problem's own alignment class are asked, however far they are: narrow accesses are another
   build, or the business of a kernel that the others never run.
3. *default*: the kernels named in the catalog entry, in order, where there is no table at all.

A plan needs no device: without one it is made for the table's own GPU. On another GPU (:meth:`DispatchKernel.on`)
entries count where the number of SMs is the same; elsewhere the model is asked, with that device's waves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from handwritten.table import WIDEST, Entry, Table, alignment_class, fingerprint, nearest, tables
from kernel.contract import Argument, Kernel, Launch, Pointers, Problem, Unit, ceil_div

NEIGHBOURS = 4
"""Tuned shapes whose kernels are considered for a problem between them."""
NARROWER = 1.2
"""How much longer a build is taken to run than the one whose rate is known, where that is for better aligned problems:
a tile of v14's takes 1.10 times as long at 4095 as at 4096, 1.36 times at 4097, since it copies by four bytes."""
LAYOUT_STEP, ALIGNMENT_STEP, OUTPUT_STEP = 1.0, 0.5, 0.25
"""Distances, in doublings of an extent: another layout, half the alignment, another output type."""
MAP_STEP = 8.0
"""The same, of FP16 operands that tensor maps describe from others: other kernels run those, and h0 at a fifth of its
rate, so that a shape of the other kind counts only where there is none of its own."""


class Choice(NamedTuple):
    """The kernel for a problem, and how it was found."""

    kernel: Kernel
    reason: str


def slot_work(kernel: Kernel, problem: Problem, slots: int) -> float:
    """Waves times k: how much of k one resident block works through, of ``slots`` resident at once.

    Whole waves, and whole steps of the block tile along k. Where a launch has more blocks than there are tiles, each
    tile is cut along k into that many, and where blocks of a cluster do not share operands, they share k; kernels that
    share tiles along k, which is what the workspace of a launch that multiplies is for, fill their blocks evenly
    instead.
    """
    tile = kernel.runner(problem).tile
    rows, columns = (max(t, 1) * max(c, 1) for t, c in ((tile.BLOCK_M, tile.CLUSTER_M), (tile.BLOCK_N, tile.CLUSTER_N)))
    clusters = ceil_div(problem.m, rows) * ceil_div(problem.n, columns)
    tiles = clusters * max(tile.CLUSTER_M, 1) * max(tile.CLUSTER_N, 1)
    step = max(tile.BLOCK_K, 1)
    depth = ceil_div(max(problem.k, 1), step) * step
    launches = kernel.launches(problem)
    multiplying = [launch for launch in launches if launch.multiplies]
    if any(launch.workspace for launch in multiplying):
        return max(tiles * depth / min(slots, max(launch.blocks for launch in launches)), step)
    blocks = max(launch.blocks for launch in multiplying)
    slices = math.prod(multiplying[0].cluster) // (max(tile.CLUSTER_M, 1) * max(tile.CLUSTER_N, 1))
    if slices > 1:
        return ceil_div(tiles * slices, min(slots, blocks)) * max(depth / slices, step)
    if blocks > tiles:
        parts = blocks / tiles
        return ceil_div(blocks, slots) * max(depth / parts, step)
    return float(ceil_div(tiles, slots) * depth)


def distance(entry: Entry, problem: Problem) -> float:
    """How far a tuned shape is from a problem, in doublings of an extent."""
    extents = ((entry.m, problem.m), (entry.n, problem.n), (entry.k, problem.k))
    apart = math.dist(*zip(*((math.log2(a), math.log2(max(b, 1))) for a, b in extents), strict=True))
    apart += LAYOUT_STEP * sum(a != b for a, b in zip(entry.layout, problem.layout, strict=True))
    align = alignment_class(problem)
    apart += ALIGNMENT_STEP * abs(math.log2(entry.align / align))
    apart += MAP_STEP * (problem.dtype_in == "float16" and (entry.align < WIDEST) != (align < WIDEST))
    return apart + OUTPUT_STEP * (entry.dtype_out != problem.dtype_out)


class Prediction(NamedTuple):
    """What the model expects of a kernel, and the tuned shape whose rate it rests on."""

    us: float
    entry: Entry


def predictions(
    problem: Problem, table: Table, kernels: Mapping[str, Kernel], sm_count: int, neighbours: int = NEIGHBOURS
) -> dict[str, Prediction]:
    """By name: predicted times of the kernels that run the problem themselves and were timed nearby.

    One that would hand the problem over is left to the kernel it hands it to, whose rates are its own. Beside the
    ``neighbours`` nearest shapes as many of the problem's own alignment class count. Where none of them has a kernel
    that runs it, the next ones are asked.
    """
    found: dict[str, Prediction] = {}
    runs = {name: _runs(kernel, problem) for name, kernel in kernels.items() if name in table.kernels}
    align = alignment_class(problem)
    near = sorted(table.entries, key=lambda entry: distance(entry, problem))
    alike = 0
    for number, entry in enumerate(near):
        near_enough = number < neighbours or (entry.align == align and alike < neighbours)
        alike += entry.align == align
        if not near_enough and found:
            continue
        tuned = entry.problem(problem.dtype_in, problem.dtype_acc)
        for name, us in entry.times_us.items():
            if name in found or not runs.get(name) or not _runs(kernels[name], tuned):
                continue
            resident = table.kernels[name].blocks_per_sm
            here = slot_work(kernels[name], problem, resident * sm_count)
            there = slot_work(kernels[name], tuned, resident * table.sm_count)
            narrower = entry.align > align and _units(kernels[name], problem) != _units(kernels[name], tuned)
            found[name] = Prediction(us / there * here * (NARROWER if narrower else 1.0), entry)
    return found


@dataclass(frozen=True, kw_only=True)
class DispatchKernel(Kernel):
    """Several kernels of one track under one name; each problem runs on one of them, which ``variant`` names."""

    family: str = "handwritten"
    candidates: tuple[Kernel, ...]
    """Kernels that a table may name, all of one track and with the same types."""
    defaults: tuple[str, ...]
    """Names of those taken in this order where no table helps; the last must refuse nothing that fits a GPU."""
    gpu: str = ""
    """Device that is planned for; empty for the table's own."""
    sm_count: int = 0

    def on(self, gpu: str, sm_count: int) -> DispatchKernel:
        return dataclasses.replace(self, gpu=gpu, sm_count=sm_count)

    def table(self) -> Table | None:
        """The table that is looked up; None where there is none.

        Raises:
            TableError: one of the tables is damaged.
        """
        return nearest(tables(self.track), self.gpu, self.sm_count)

    def pool(self) -> tuple[Kernel, ...]:
        """Kernels that may be chosen: those that the table names, and the defaults."""
        table = self.table()
        names = {*self.defaults, *(table.kernels if table else ())}
        return tuple(kernel for kernel in self.candidates if kernel.name in names)

    def choose(self, problem: Problem) -> Choice | None:
        """The kernel for a problem that is neither empty nor scale-only; None where every one refuses it."""
        table = self.table()
        known = {kernel.name: kernel for kernel in self.candidates}
        for name, reason in self._ranking(problem, table, known):
            kernel = known.get(name)
            if kernel is not None and _accepts(kernel, problem):
                return Choice(kernel, reason)
        return None

    def _ranking(self, problem: Problem, table: Table | None, known: Mapping[str, Kernel]) -> Iterator[tuple[str, str]]:
        """Names in the order in which they are asked, with the reason."""
        if table is not None:
            entry = table.exact(problem) if self.sm_count in (0, table.sm_count) else None
            if entry is not None:
                for name in entry.times_us:
                    yield name, f"tuned on {table.origin}"
            found = predictions(problem, table, known, self.sm_count or table.sm_count)
            for name in sorted(found, key=lambda name: found[name].us):
                at = found[name].entry
                yield name, f"modelled by waves and its rate at {at.m}x{at.n}x{at.k}, tuned on {table.origin}"
        for name in self.defaults:
            yield name, "the default, where no table helps"
        for kernel in self.pool():
            yield kernel.name, "the first that takes it"

    def _chosen(self, problem: Problem) -> Kernel:
        choice = self.choose(problem)
        assert choice is not None, "plan() asks for no launch that rejects() refuses"
        return choice.kernel

    def rejects_type_or_layout(self, problem: Problem) -> str | None:
        reason = self.candidates[-1].rejects_type_or_layout(problem)
        for kernel in self.candidates:
            if kernel.rejects_type_or_layout(problem) is None:
                return None
        return reason and reason.replace(self.candidates[-1].name, self.name)

    def rejects(self, problem: Problem) -> str | None:
        if self.choose(problem) is not None:
            return None
        last = next(kernel for kernel in self.candidates if kernel.name == self.defaults[-1])
        return last.rejects_type_or_layout(problem) or last.rejects(problem)

    def runner(self, problem: Problem) -> Kernel:
        """The chosen kernel, or the one that it hands the problem over to."""
        return self._chosen(problem).runner(problem)

    def why(self, problem: Problem) -> str:
        choice = self.choose(problem)
        assert choice is not None, "there is no reason for what is refused"
        table, name = self.table(), choice.kernel.name
        further = [choice.kernel.why(problem)]
        if (
            table is not None
            and name in table.kernels
            and table.kernels[name].fingerprint != fingerprint(choice.kernel)
        ):
            further.append("its source has changed since, so tune again")
        return "; ".join([f"{name}: {choice.reason}", *filter(None, further)])

    def units(self) -> tuple[Unit, ...]:
        return tuple(dict.fromkeys(unit for kernel in self.pool() for unit in kernel.units()))

    def variant(self, problem: Problem) -> str:
        kernel = self._chosen(problem)
        own = kernel.variant(problem)
        return f"{kernel.name}.{own}" if own else kernel.name

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        return self._chosen(problem).launches(problem)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        return self._chosen(problem).pack(problem, pointers)


def _runs(kernel: Kernel, problem: Problem) -> bool:
    return _accepts(kernel, problem) and kernel.runner(problem) is kernel


def _units(kernel: Kernel, problem: Problem) -> set[Unit]:
    return {launch.unit for launch in kernel.launches(problem)}


def _accepts(kernel: Kernel, problem: Problem) -> bool:
    return kernel.rejects_type_or_layout(problem) is None and kernel.rejects(problem) is None
