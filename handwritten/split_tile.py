"""The rungs whose blocks split k among their own warps: v16_stream_rows and v17_block_split."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from handwritten.kernel import MAX_DYNAMIC_SMEM, WARP
from handwritten.stream_tile import MAX_SLICES, PITCH_PAD, SM_COUNT, ClusterSplitKernel
from kernel.contract import Argument, Launch, Pointers, Problem, Unit, ceil_div

SUM_THREADS, SUM_LANES = 128, 4
"""Threads in a block of the launch that adds the parts, and how many of them share a run of C."""
STRANDED = 5
"""A fifth of the SMs may be out of reach of clusters of more than two blocks, which lie within one GPC."""
A_COLUMNS = 8
"""Steps of k in the run of a row of A that a warp copies at once."""


class Cut(NamedTuple):
    """How many thread blocks share a tile."""

    slices: int
    """Blocks of a cluster, added through its shared memory."""
    parts: int
    """Blocks, or clusters, whose sums a second launch adds from the workspace."""

    @property
    def shares(self) -> int:
        return self.slices * self.parts


@dataclass(frozen=True, kw_only=True)
class BlockSplitKernel(ClusterSplitKernel):
    """Groups of warps share a block tile and take parts of each of its stages; a cluster may share it besides."""

    vector_operands: str = "bc"
    k_groups: int
    """Groups of warps; each multiplies BLOCK_K / k_groups steps of a stage."""
    resident: int = 1
    """Blocks that the build leaves registers for on one SM."""
    parts: int = 0
    """Blocks or clusters that share a tile through the workspace; 0, beside slices = 0, lets the problem decide."""
    cluster_stages: float = 1.0
    """What adding the blocks of a cluster costs, in stages."""
    sum_stages: float = 3.0
    """What the second launch costs, in stages."""

    @property
    def threads(self) -> int:
        return super().threads * self.k_groups

    @property
    def blocks_per_sm(self) -> int:
        return self.resident

    @property
    def dynamic_smem(self) -> int:
        t = self.tile
        stages = t.NUM_STAGES * t.BLOCK_K * (t.BLOCK_M + PITCH_PAD + t.BLOCK_N)
        return 4 * max(stages, self.k_groups * t.BLOCK_M * t.BLOCK_N)

    def cut(self, problem: Problem) -> Cut:
        """The cut of a problem that is neither empty nor scale-only: the least of blocks whose stages, one after the
        other, and what joining them costs are within a fiftieth of the best."""
        if self.slices or self.parts:
            return Cut(self.slices or 1, self.parts or 1)
        tiles, stages = self._blocks(problem), self._steps(problem)
        at_once = SM_COUNT * self.resident

        def length(cut: Cut) -> float:
            room = at_once - (at_once // STRANDED if cut.slices > 2 else 0)
            joining = 1.0 + (self.cluster_stages if cut.slices > 1 else 0.0) + (self.sum_stages if cut.parts > 1 else 0)
            return ceil_div(tiles * cut.shares, room) * (ceil_div(stages, cut.shares) + joining)

        cuts = [Cut(slices, 1) for slices in (1, 2, 4, MAX_SLICES) if slices <= stages or slices == 1]
        cuts += [Cut(1, parts) for parts in range(2, min(stages, at_once // tiles) + 1)]
        lengths = {cut: length(cut) for cut in cuts}
        return next(cut for cut, stages in lengths.items() if 50 * stages <= 51 * min(lengths.values()))

    def slices_for(self, problem: Problem) -> int:
        return self.cut(problem).slices

    def variant(self, problem: Problem) -> str:
        parts = self.cut(problem).parts
        return super().variant(problem) + (f"_parts{parts}" if parts > 1 else "")

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        (launch,) = super().launches(problem)
        cut = self.cut(problem)
        launch = dataclasses.replace(launch, grid=(self._blocks(problem) * cut.shares, 1, 1), overlaps=True)
        if cut.parts == 1:
            return (launch,)
        workspace = 4 * cut.parts * problem.m * problem.n
        threads = ceil_div(problem.m * problem.n, self._width(problem)) * SUM_LANES
        adding = Launch(
            unit=launch.unit,
            entry=f"{self.entry}_sum",
            grid=(ceil_div(threads, SUM_THREADS), 1, 1),
            block=(SUM_THREADS, 1, 1),
            multiplies=False,
            overlaps=True,
            workspace=workspace,
        )
        return (dataclasses.replace(launch, workspace=workspace), adding)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        ((*values, slices),) = super().pack(problem, pointers)
        parts, workspace = (
            Argument(data=struct.pack("<i", self.cut(problem).parts)),
            Argument(data=struct.pack("<Q", pointers.workspace)),
        )
        product = (*values, slices, parts, workspace)
        if self.cut(problem).parts == 1:
            return (product,)
        _, _, c, m, n, _, _, _, ldc, _, beta = values
        return (product, (c, m, n, ldc, beta, parts, workspace))

    def _unit(self, width: int) -> Unit:
        unit = super()._unit(width)
        more = {
            "K_GROUPS": self.k_groups,
            "BLOCKS_PER_SM": self.resident,
            "SUM_THREADS": SUM_THREADS,
            "SUM_LANES": SUM_LANES,
        }
        return dataclasses.replace(unit, flags=(*unit.flags, *(f"-D{name}={value}" for name, value in more.items())))

    def _copy_violations(self) -> Iterator[str]:
        t = self.tile
        if self.dynamic_smem > MAX_DYNAMIC_SMEM:
            yield f"the tiles need {self.dynamic_smem} bytes of shared memory; a block can have {MAX_DYNAMIC_SMEM}"
        if t.BLOCK_K % self.k_groups or t.BLOCK_K // self.k_groups % 2:
            yield f"{self.k_groups} groups cannot take equal, even parts of the {t.BLOCK_K} steps of a stage"
        rows = self.threads // A_COLUMNS
        if t.BLOCK_K % A_COLUMNS or t.BLOCK_M % rows:
            yield (
                f"{self.threads} threads cannot share the {t.BLOCK_M} x {t.BLOCK_K} tile of A evenly: {A_COLUMNS} "
                "columns of it side by side, and whole steps (BLOCK_K % 8, BLOCK_M % (threads / 8))"
            )
        for width in self.widths:
            runs = t.BLOCK_N // width
            if t.BLOCK_N % width or self.threads % runs or t.BLOCK_K % (self.threads // runs):
                yield (
                    f"{self.threads} threads cannot share the {t.BLOCK_K} x {t.BLOCK_N} tile of B evenly in runs "
                    f"of {width}: each step must bring in whole rows"
                )


@dataclass(frozen=True, kw_only=True)
class StreamRowsKernel(ClusterSplitKernel):
    """Warps that share a few rows of A and a strip of B's columns, and each stream their own steps of k."""

    vector_operands: str = "bc"
    k_warps: int
    """Warps of a block; each takes every k_warps-th batch of BLOCK_K steps."""
    resident: int
    """Blocks that the build leaves registers for on one SM."""
    prefetched: int = 0
    """Batches a warp asks L2 for before the launch ahead has ended."""
    enough_blocks: int = SM_COUNT
    """Blocks whose copies keep device memory busy; a tile is split no further where there are as many."""
    most_slices: int = MAX_SLICES

    @property
    def threads(self) -> int:
        return WARP * self.k_warps

    @property
    def blocks_per_sm(self) -> int:
        return self.resident

    @property
    def dynamic_smem(self) -> int:
        t = self.tile
        pitch = 1 if t.BLOCK_M == 1 else t.BLOCK_M + PITCH_PAD
        ring = t.NUM_STAGES * t.BLOCK_K * (t.BLOCK_N + pitch)
        return 4 * self.k_warps * max(ring, t.BLOCK_M * t.BLOCK_N)

    def slices_for(self, problem: Problem) -> int:
        """Blocks a tile: the fewest that are enough."""
        if self.slices:
            return self.slices
        tiles = self._blocks(problem)
        rounds = ceil_div(problem.k, self.tile.BLOCK_K * self.k_warps)
        choices = [slices for slices in (1, 2, 4, MAX_SLICES) if slices <= self.most_slices]
        return next((s for s in choices if tiles * s >= self.enough_blocks or s >= rounds), choices[-1])

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        return tuple(dataclasses.replace(launch, overlaps=True) for launch in super().launches(problem))

    def _unit(self, width: int) -> Unit:
        unit = super()._unit(width)
        more = (f"-DK_WARPS={self.k_warps}", f"-DBLOCKS_PER_SM={self.resident}", f"-DPREFETCH={self.prefetched}")
        return dataclasses.replace(unit, flags=(*unit.flags, *more))

    def _warp_violations(self) -> Iterator[str]:
        if self.tile.THREAD_N % 4:
            yield "a thread reads B four columns at a time (THREAD_N % 4)"

    def _copy_violations(self) -> Iterator[str]:
        t = self.tile
        if self.dynamic_smem > MAX_DYNAMIC_SMEM:
            yield f"the rings need {self.dynamic_smem} bytes of shared memory; a block can have {MAX_DYNAMIC_SMEM}"
        n_lanes = t.BLOCK_N // t.THREAD_N
        if n_lanes * t.THREAD_N != t.BLOCK_N or WARP % max(n_lanes, 1) or t.BLOCK_K * n_lanes % (4 * WARP):
            yield (
                "the lanes that are not needed along n take rows of B, four or a multiple each of a batch "
                "(BLOCK_N / THREAD_N divides 32, BLOCK_K % (4 * 32 / that))"
            )
        if t.BLOCK_M != 1 and t.BLOCK_M % 4:
            yield "a thread reads one row of A, or four at a time (BLOCK_M = 1 or BLOCK_M % 4)"
        if (t.BLOCK_M, t.BLOCK_N) != (t.WARP_M, t.WARP_N) or t.BLOCK_M != t.THREAD_M:
            yield "the warps of a block share its tile, and a thread has all rows of its columns"
