"""How many passes a warp's shared-memory access takes, from the byte address of each lane.

Shared memory has 32 banks of 4 bytes. One pass delivers at most one word per bank; lanes that read
the same word share it. An access of 8 or 16 bytes a lane is served in phases, two half-warps or four
quarter-warps. Two neighbouring phases merge where lanes i and i^1, or i and i^2, read the same place
throughout the warp. This reproduces every Nsight Compute counter recorded for this project on an H200
(tests/test_banks.py lists them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel.errors import UsageError

BANKS = 32
WORD = 4
"""Bytes a bank delivers in one pass."""
LANES = 32
WIDTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """One warp-wide access: what it takes against what its width alone would take."""

    width: int
    """Bytes per lane."""
    passes: int
    """Wavefronts: trips through the shared-memory pipe."""
    ideal: int
    """Passes without any conflict: one per phase that has active lanes."""
    degree: int
    """Most distinct words that any one bank is asked for within a phase: 8 is an 8-way conflict."""

    @property
    def conflicts(self) -> int:
        """Extra passes, which is what the hardware counter of bank conflicts counts."""
        return self.passes - self.ideal


def phases(addresses: Sequence[int | None], width: int) -> list[range]:
    """Lanes that are served together, in order. ``None`` marks a lane that takes no part."""
    count = {16: 4, 8: 2}.get(width, 1)
    if count > 1 and (_paired(addresses, 1) or _paired(addresses, 2)):
        count //= 2
    size = LANES // count
    return [range(start, start + size) for start in range(0, LANES, size)]


def _paired(addresses: Sequence[int | None], distance: int) -> bool:
    pairs = ((addresses[lane], addresses[lane ^ distance]) for lane in range(LANES))
    return all(a is None or b is None or a == b for a, b in pairs)


def passes(addresses: Sequence[int | None], width: int) -> Passes:
    """Passes of one access by a whole warp.

    Args:
        addresses: 32 byte addresses, ``None`` for lanes that take no part.
        width: bytes per lane: 1, 2, 4, 8 or 16.

    Raises:
        UsageError: not 32 lanes, a width no instruction has, or an address that the width does not divide.
    """
    if len(addresses) != LANES or width not in WIDTHS:
        raise UsageError(f"{len(addresses)} lanes of {width} bytes; 32 lanes of 1, 2, 4, 8 or 16 bytes are needed")
    askew = [a for a in addresses if a is not None and a % width]
    if askew:
        raise UsageError(f"address {askew[0]} is not a multiple of the access width of {width} bytes")
    total = ideal = degree = 0
    for group in phases(addresses, width):
        words: dict[int, set[int]] = {}
        for lane in group:
            address = addresses[lane]
            if address is not None:
                for word in range(address // WORD, (address + width - 1) // WORD + 1):
                    words.setdefault(word % BANKS, set()).add(word)
        if words:
            deepest = max(len(distinct) for distinct in words.values())
            total += deepest
            ideal += 1
            degree = max(degree, deepest)
    return Passes(width=width, passes=total, ideal=ideal, degree=degree)
