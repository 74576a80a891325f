"""The rungs whose blocks split k among their own warps: v16_stream_rows and v17_block_split."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from handwritten.kernel import MAX_DYNAMIC_SMEM, WARP
from handwritten.stream_tile import MAX_SLICES, PITCH_PAD, SM_COUNT, ClusterSplitKernel
from kernel.contract import Launch, Problem, Unit, ceil_div

A_COLUMNS = 8
"""Steps of k in the run of a row of A that a warp copies at once."""


@dataclass(frozen=True, kw_only=True)
class BlockSplitKernel(ClusterSplitKernel):
    """Groups of warps share a block tile and take parts of each of its stages; a cluster may share it besides."""

    vector_operands: str = "bc"
    k_groups: int
    """Groups of warps; each multiplies BLOCK_K / k_groups steps of a stage."""
    resident: int = 1
    """Blocks that the build leaves registers for on one SM."""

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

    def slices_for(self, problem: Problem) -> int:
        """Blocks a tile: the fewest whose stages, one after the other, are within a fiftieth of the best."""
        if self.slices:
            return self.slices
        tiles, stages, at_once = self._blocks(problem), self._steps(problem), SM_COUNT * self.blocks_per_sm

        def length(slices: int) -> int:
            meeting = self.meeting_steps if slices > 1 else self.meeting_steps // 2
            return ceil_div(tiles * slices, at_once) * (ceil_div(stages, slices) + meeting)

        lengths = {slices: length(slices) for slices in range(1, MAX_SLICES + 1)}
        return next(slices for slices, steps in lengths.items() if 50 * steps <= 51 * min(lengths.values()))

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        return tuple(dataclasses.replace(launch, overlaps=True) for launch in super().launches(problem))

    def _unit(self, width: int) -> Unit:
        unit = super()._unit(width)
        more = (f"-DK_GROUPS={self.k_groups}", f"-DBLOCKS_PER_SM={self.resident}")
        return dataclasses.replace(unit, flags=(*unit.flags, *more))

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
    enough_blocks: int = 2 * SM_COUNT - 8
    """Blocks whose copies keep device memory busy; a tile is split no further where there are as many."""

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
        batches = max(problem.k // (self.tile.BLOCK_K * self.k_warps), 1)
        return next((s for s in (1, 2, 4) if tiles * s >= self.enough_blocks or s >= batches), MAX_SLICES)

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        return tuple(dataclasses.replace(launch, overlaps=True) for launch in super().launches(problem))

    def _unit(self, width: int) -> Unit:
        unit = super()._unit(width)
        more = (f"-DK_WARPS={self.k_warps}", f"-DBLOCKS_PER_SM={self.resident}")
        return dataclasses.replace(unit, flags=(*unit.flags, *more))

    def _copy_violations(self) -> Iterator[str]:
        t = self.tile
        if self.dynamic_smem > MAX_DYNAMIC_SMEM:
            yield f"the rings need {self.dynamic_smem} bytes of shared memory; a block can have {MAX_DYNAMIC_SMEM}"
        if t.BLOCK_K % 4 or (t.BLOCK_M != 1 and t.BLOCK_M % 4):
            yield "A is read four elements at a time (BLOCK_K % 4, and BLOCK_M = 1 or BLOCK_M % 4)"
        if (t.BLOCK_M, t.BLOCK_N) != (t.WARP_M, t.WARP_N) or t.BLOCK_M != t.THREAD_M:
            yield "the warps of a block share its tile, and a thread has all rows of its columns"
