"""What is launched and what is looked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Extents of a launch: blocks, threads, bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_smem: int = 0


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What is looked for beside bounds, alignment and barriers, which are always checked."""

    races: bool = True
    initialised: bool = True
    """A value from shared memory that nobody wrote is a fault where it reaches global memory, an address or
    a branch. Output memory that nobody wrote is a fault where it is read."""
    strict: bool = False
    """Makes the read itself of such shared memory a fault. CUTLASS's SIMT main loops read it for rows and
    columns beyond the edge, whose results they drop. Likewise for data that cp.async brought and nobody read:
    a drain of the wrong buffer leaves some, and so does a pipeline that copies tiles beyond the last."""
    counting: bool = True
