"""The rungs with a 128 x 256 block tile, whose shared memory is dynamic, and stream-K's share of the work."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from handwritten.kernel import HandwrittenKernel
from kernel.contract import Argument, Launch, Pointers, Problem, ceil_div

SM_COUNT = 132
"""Blocks of a persistent launch: one for each SM of an H100 SXM or H200. A launch is planned without a device; on
fewer SMs the blocks left over run afterwards, and the result is the same."""
PITCH_PAD = 4
"""Elements between the columns of the transposed tile of A, beyond its rows."""


@dataclass(frozen=True, kw_only=True)
class WideTileKernel(HandwrittenKernel):
    """A kernel on ``wide_tile.cuh``: A transposed and padded in shared memory, NUM_STAGES tiles deep."""

    @property
    def dynamic_smem(self) -> int:
        t = self.tile
        return 4 * t.NUM_STAGES * t.BLOCK_K * (t.BLOCK_M + PITCH_PAD + t.BLOCK_N)


class Shares(NamedTuple):
    """How stream-K cuts a problem."""

    blocks: int
    """Thread blocks; each takes one share, then whole tiles."""
    whole_tiles: int
    """Tiles that one block computes from the first to the last step of k."""
    shared_steps: int
    """Steps of BLOCK_K in all the other tiles together; equal parts of them are the shares."""


@dataclass(frozen=True, kw_only=True)
class StreamKKernel(WideTileKernel):
    """One block an SM; the last wave's tiles and those that do not fill a wave are cut along k into equal shares.

    The workspace holds a ticket and a flag for each share (zero at the launch), then a partial tile for each.
    """

    header_bytes: int = 4096
    """Bytes of the workspace before the partial tiles."""
    least_steps: int = 4
    """Steps of BLOCK_K below which a share is not worth its partial tile."""

    def shares(self, problem: Problem) -> Shares:
        """The cut of a problem that is neither empty nor scale-only."""
        tiles, steps = self._blocks(problem), ceil_div(problem.k, self.tile.BLOCK_K)
        blocks = min(SM_COUNT, ceil_div(tiles * steps, self.least_steps))
        rest = tiles % blocks
        whole = tiles if rest == 0 else max(tiles - rest - blocks, 0)
        return Shares(blocks=blocks, whole_tiles=whole, shared_steps=(tiles - whole) * steps)

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        shares = self.shares(problem)
        part = 4 * self.tile.BLOCK_M * self.tile.BLOCK_N
        launch = Launch(
            unit=self._unit(self._width(problem)),
            entry=self.name,
            grid=(shares.blocks, 1, 1),
            block=(self.threads, 1, 1),
            dynamic_smem=self.dynamic_smem,
            workspace=self.header_bytes + shares.blocks * part if shares.shared_steps else 0,
            workspace_zeroed=4 * (1 + shares.blocks) if shares.shared_steps else 0,
        )
        return (launch,)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        (values,) = super().pack(problem, pointers)
        return ((*values, Argument(data=struct.pack("<Q", pointers.workspace))),)
