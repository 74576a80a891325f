"""The rungs on ``stream_tile.cuh``: how their work is cut along k, and what their entries are called."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from handwritten.kernel import MAX_DYNAMIC_SMEM, WARP, HandwrittenKernel
from kernel.contract import INT32_MAX, MAX_GRID_X, Argument, Launch, Pointers, Problem, Unit, ceil_div

SM_COUNT = 132
"""SMs of an H100 SXM or H200. A launch is planned without a device; on fewer SMs the blocks left over run
afterwards, and the result is the same."""
PITCH_PAD = 4
"""Elements between the columns of the transposed tile of A, beyond its rows."""
FULL_BLOCK = 256
"""Threads of up to 255 registers that fill an SM's register file."""
MAX_SLICES = 8
"""Blocks in a cluster that every device of the architecture can schedule."""


@dataclass(frozen=True, kw_only=True)
class StreamTileKernel(HandwrittenKernel):
    """A kernel on ``stream_tile.cuh``: any tile whose threads can share the copies, guarded outside the main loop.

    The vec4 build also needs n, and k where it loads A in fours, to be multiples of four: its loop has no place for
    part of an access.
    """

    group_m: int = 0
    """Rows of tiles that are taken together, column by column; 0 where tiles are taken row by row."""

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that the build leaves registers for on one SM."""
        return max(FULL_BLOCK // self.threads, 1)

    @property
    def dynamic_smem(self) -> int:
        t = self.tile
        return 4 * t.NUM_STAGES * t.BLOCK_K * (t.BLOCK_M + PITCH_PAD + t.BLOCK_N)

    def _width(self, problem: Problem) -> int:
        width = super()._width(problem)
        wide_a = "a" in self.vector_operands
        return width if problem.n % width == 0 and (not wide_a or problem.k % width == 0) else 1

    def _unit(self, width: int) -> Unit:
        unit = super()._unit(width)
        names = (f"-DENTRY={self.entry}", f"-DNAME_HINT={int(bool(self.entry_name_hint))}")
        groups = (f"-DGROUP_M={self.group_m}",) if self.group_m else ()
        return dataclasses.replace(unit, flags=(*unit.flags, *names, *groups))

    def _steps(self, problem: Problem) -> int:
        return ceil_div(problem.k, self.tile.BLOCK_K)

    def _copy_violations(self) -> Iterator[str]:
        t = self.tile
        if self.dynamic_smem > MAX_DYNAMIC_SMEM:
            yield f"the tiles need {self.dynamic_smem} bytes of shared memory; a block can have {MAX_DYNAMIC_SMEM}"
        fours = t.BLOCK_K // 4
        if t.BLOCK_K % 4 or self.threads % fours or t.BLOCK_M % (self.threads // fours):
            yield (
                f"{self.threads} threads cannot share the {t.BLOCK_M} x {t.BLOCK_K} tile of A evenly in fours "
                "(BLOCK_K % 4, threads % (BLOCK_K / 4), BLOCK_M % rows a step)"
            )
        for width in self.widths:
            runs = t.BLOCK_N // width
            runs_a_step = min(runs, self.threads)
            rows = self.threads // max(runs_a_step, 1)
            if t.BLOCK_N % width or runs % runs_a_step or self.threads % runs_a_step or t.BLOCK_K % max(rows, 1):
                yield (
                    f"{self.threads} threads cannot share the {t.BLOCK_K} x {t.BLOCK_N} tile of B evenly in runs "
                    f"of {width}: each step must bring in whole rows, or whole parts of one"
                )


class Cut(NamedTuple):
    """How stream-K cuts a problem."""

    blocks: int
    """Thread blocks; each takes whole tiles and one share."""
    whole_tiles: int
    """Tiles that one block computes from the first to the last step of k."""
    shared_steps: int
    """Steps of BLOCK_K in all the other tiles together; equal parts of them are the shares."""


@dataclass(frozen=True, kw_only=True)
class StreamKTileKernel(StreamTileKernel):
    """Persistent blocks; the tiles that do not fill a wave are cut along k into equal shares.

    The workspace holds a ticket and a flag for each warp of each share (zero at the launch), then a partial tile
    for each share.
    """

    header_bytes: int = 16384
    """Bytes of the workspace before the partial tiles."""
    least_steps: int = 4
    """Steps of BLOCK_K below which a share is not worth its partial tile."""

    def cut(self, problem: Problem) -> Cut:
        """The cut of a problem that is neither empty nor scale-only."""
        tiles, steps = self._blocks(problem), self._steps(problem)
        blocks = min(SM_COUNT * self.blocks_per_sm, ceil_div(tiles * steps, self.least_steps))
        rest = tiles % blocks
        whole = tiles if rest == 0 else max(tiles - rest - blocks, 0)
        if (tiles - whole) * steps > INT32_MAX:  # shares are counted in 32 bits; only k in the millions gets here
            whole = tiles
        return Cut(blocks=blocks, whole_tiles=whole, shared_steps=(tiles - whole) * steps)

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        cut = self.cut(problem)
        part = 4 * self.tile.BLOCK_M * self.tile.BLOCK_N
        launch = Launch(
            unit=self._unit(self._width(problem)),
            entry=self.entry,
            grid=(cut.blocks, 1, 1),
            block=(self.threads, 1, 1),
            dynamic_smem=self.dynamic_smem,
            workspace=self.header_bytes + cut.blocks * part if cut.shared_steps else 0,
            workspace_zeroed=4 * (1 + cut.blocks * self.threads // WARP) if cut.shared_steps else 0,
        )
        return (launch,)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        (values,) = super().pack(problem, pointers)
        cut = self.cut(problem)
        more = (struct.pack("<Q", pointers.workspace), struct.pack("<i", cut.whole_tiles))
        return ((*values, *(Argument(data=value) for value in more)),)


@dataclass(frozen=True, kw_only=True)
class ClusterSplitKernel(StreamTileKernel):
    """The blocks of a cluster take equal parts of one tile's k and add them through the cluster's shared memory."""

    slices: int = 0
    """Blocks that share a tile: 1, 2, 4 or 8; 0 lets the problem decide."""
    meeting_steps: int = 4
    """What a tile costs beside its steps, in steps of BLOCK_K: first loads, and the sum over the cluster."""

    @property
    def dynamic_smem(self) -> int:
        return max(super().dynamic_smem, 4 * self.tile.BLOCK_M * self.tile.BLOCK_N)

    def slices_for(self, problem: Problem) -> int:
        """Blocks a tile: the fewest whose steps, one after the other, are within a twentieth of the best."""
        if self.slices:
            return self.slices
        tiles, all_steps, at_once = self._blocks(problem), self._steps(problem), SM_COUNT * self.blocks_per_sm

        def length(slices: int) -> int:
            return ceil_div(tiles * slices, at_once) * (ceil_div(all_steps, slices) + self.meeting_steps)

        lengths = {slices: length(slices) for slices in (1, 2, 4, MAX_SLICES)}
        return next(slices for slices, steps in lengths.items() if 20 * steps <= 21 * min(lengths.values()))

    def rejects(self, problem: Problem) -> str | None:
        reason = self.rejects_type_or_layout(problem)
        blocks = self._blocks(problem) * MAX_SLICES
        if reason is None and blocks > MAX_GRID_X:
            return (
                f"m = {problem.m}, n = {problem.n} take up to {blocks} thread blocks, {MAX_SLICES} for each "
                f"{self.tile.BLOCK_M} x {self.tile.BLOCK_N} of C; a grid ends at {MAX_GRID_X}"
            )
        return reason or super().rejects(problem)

    def variant(self, problem: Problem) -> str:
        slices = self.slices_for(problem)
        return super().variant(problem) + (f"_split{slices}" if slices > 1 else "")

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        slices = self.slices_for(problem)
        launch = Launch(
            unit=self._unit(self._width(problem)),
            entry=self.entry,
            grid=(self._blocks(problem) * slices, 1, 1),
            block=(self.threads, 1, 1),
            dynamic_smem=self.dynamic_smem,
            cluster=(slices, 1, 1),
        )
        return (launch,)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        (values,) = super().pack(problem, pointers)
        return ((*values, Argument(data=struct.pack("<i", self.slices_for(problem)))),)
