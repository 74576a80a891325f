"""What a run of the machine found: faults in words, and what every instruction did."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kernel.errors import MachineFault


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One wrong thing a kernel did, once for each instruction and kind."""

    kind: str
    message: str
    kernel: str
    instruction: str = ""
    """PTX text."""
    line: int = 0
    """Line in the PTX text."""
    source: str = ""
    """``file:line`` of the source, where the PTX has line information."""
    block: tuple[int, int, int] = (0, 0, 0)
    thread: tuple[int, int, int] = (0, 0, 0)
    address: int = 0
    count: int = 1
    """How often it happened."""

    def __str__(self) -> str:
        place = f" at PTX line {self.line}: {self.instruction}" if self.line else ""
        source = f" ({self.source})" if self.source else ""
        times = f" [{self.count} times]" if self.count > 1 else ""
        return f"{self.kernel}: {self.message}{place}{source}{times}"


@dataclass(frozen=True, kw_only=True)
class InstructionCount:
    """What one PTX instruction did, summed over the blocks that ran. Passes are bank passes of a warp.

    ``width`` is bytes per lane after the assembler's merging of neighbouring words (``merged`` is how
    many PTX instructions this row stands for). ``ideal`` is the fewest passes that the same lanes and
    widths could take.
    """

    line: int
    text: str
    source: str
    executed: int
    """Warps that executed it."""
    lanes: int
    """Lanes that executed it."""
    space: str = ""
    width: int = 0
    merged: int = 1
    requests: int = 0
    passes: int = 0
    ideal: int = 0
    sectors: int = 0
    """32-byte sectors of global memory."""
    ideal_sectors: int = 0

    @property
    def conflicts(self) -> int:
        """Bank passes beyond the ideal."""
        return self.passes - self.ideal

    @property
    def is_load(self) -> bool:
        """True for a plain shared or global load (atomics and asynchronous copies are neither)."""
        return self.text.split(None, 1)[-1 if self.text.startswith("@") else 0].startswith("ld")


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Everything counted in one launch, or in some of its blocks."""

    blocks: int
    """Thread blocks that ran."""
    blocks_in_grid: int
    instructions: tuple[InstructionCount, ...]
    mix: dict[str, int]
    """Warp instructions executed, by opcode."""
    fma: int
    """Floating-point multiply-adds of all lanes (FFMA, and HFMA2 as two)."""
    mma: int
    """Multiply-adds inside mma.sync."""

    @property
    def warp_instructions(self) -> int:
        """All warp instructions executed."""
        return sum(self.mix.values())

    def _shared(self, load: bool) -> Iterator[InstructionCount]:
        for row in self.instructions:
            if row.space == "shared" and row.is_load == load:
                yield row

    def shared_loads(self) -> dict[str, int]:
        """requests, passes (wavefronts), ideal and conflicts of shared loads."""
        return _total(self._shared(True))

    def shared_stores(self) -> dict[str, int]:
        """The same for shared stores, asynchronous copies among them."""
        return _total(self._shared(False))

    def scaled(self) -> float:
        """Factor from the blocks that ran to the whole grid; exact where all blocks do the same."""
        return self.blocks_in_grid / self.blocks if self.blocks else 0.0


def _total(rows: Iterator[InstructionCount]) -> dict[str, int]:
    total = {"requests": 0, "passes": 0, "ideal": 0, "conflicts": 0}
    for row in rows:
        total["requests"] += row.requests
        total["passes"] += row.passes
        total["ideal"] += row.ideal
        total["conflicts"] += row.conflicts
    return total


@dataclass(kw_only=True)
class Report:
    """Result of a run: faults (none for a clean kernel), counters and notes."""

    kernel: str
    faults: list[Fault]
    count: Callable[[], Counters] = field(repr=False)
    """Makes the counters of what the engine counted, which takes longer than a small launch."""
    seconds: float
    warp_instructions: int
    trace: npt.NDArray[np.void] | None = None
    notes: list[str] = field(default_factory=list)

    @functools.cached_property
    def counters(self) -> Counters:
        """What every instruction did; made when it is first asked for."""
        return self.count()

    def raise_faults(self) -> None:
        """Raise :class:`MachineFault` with every fault's text, if there is any."""
        if self.faults:
            raise MachineFault("\n".join(str(fault) for fault in self.faults))
