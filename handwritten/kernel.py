"""What every hand-written SGEMM has in common: its builds, its launch, its parameters and the rules of its tile.

The source of kernel ``name`` is ``name.cu`` beside this file, and its entry symbol is ``name``.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kernel.contract import Argument, Kernel, Launch, Pointers, Problem, Tile, Unit
from kernel.errors import CatalogError
from kernel.sgemm import arguments, beyond_grid, beyond_offsets, tiles_of

FOLDER = Path(__file__).parent
WARP = 32
MAX_THREADS = 1024
MAX_STATIC_SMEM = 48 * 1024
"""Bytes of shared memory that a block may have without asking for more at launch."""
MAX_DYNAMIC_SMEM = 227 * 1024
"""Bytes of shared memory that a block of sm_90 can have."""
IN_FLIGHT = 8
"""Elements that ``TileShare::copy`` keeps in registers at a time."""


class Rule(NamedTuple):
    """One thing a tile must satisfy. ``text`` is what the error says, with its reason."""

    holds: Callable[[Tile], bool]
    text: str


@dataclass(frozen=True, kw_only=True)
class HandwrittenKernel(Kernel):
    """A kernel of the ladder: one .cu file, one build for each access width.

    Raises:
        CatalogError: the tile breaks a rule of the kernel; the text names the rule.
    """

    family: str = "handwritten"
    track: str = "fp32_simt"
    instruction: str = "ffma"
    arch: str = "sm_90a"
    widths: tuple[int, ...] = (4, 1)
    """Elements in one access to global memory, one build each, widest first. The last needs no alignment."""
    vector_operands: str = "abc"
    """Operands that a build wider than 1 reaches with wide accesses, and whose alignment it therefore needs."""
    rules: tuple[Rule, ...] = ()
    """What the tile must satisfy beyond what every kernel with the same levels needs."""
    stem: str = ""
    """Stem of the .cu file where another entry has the same source; empty for the kernel's own name."""
    entry_name_hint: str = ""
    """What the entry symbol carries beyond the kernel's name because ptxas looks for it; empty for nothing.

    ptxas 13.0 keeps FFMAs in their written order if the symbol contains ``cutlass``. Undocumented, so such a build is
    an entry of its own beside the plain one, and a test tells whether the toolkit at hand still does so.
    """

    def __post_init__(self) -> None:
        for text in self._violations():
            extents = ", ".join(f"{name}={value}" for name, value in self.tile.items())
            raise CatalogError(f"{self.name} cannot have the tile {extents}: {text}")

    @property
    def source(self) -> Path:
        """The kernel's .cu file."""
        return FOLDER / f"{self.stem or self.name}.cu"

    @property
    def entry(self) -> str:
        """The entry symbol: the kernel's name, and the hint where it has one."""
        return f"{self.name}_{self.entry_name_hint}" if self.entry_name_hint else self.name

    @property
    def threads(self) -> int:
        """Threads in a block: enough thread tiles, or warps, to fill the block tile."""
        t = self.tile
        if t.WARP_M:
            return (t.BLOCK_M // t.WARP_M) * (t.BLOCK_N // t.WARP_N) * WARP
        return (t.BLOCK_M // max(t.THREAD_M, 1)) * (t.BLOCK_N // max(t.THREAD_N, 1))

    @property
    def dynamic_smem(self) -> int:
        """Bytes of shared memory a block is given at launch; 0 where it is all static."""
        return 0

    def with_tile(self, **extents: int) -> HandwrittenKernel:
        """The same kernel with other extents; the tuner's way in.

        Raises:
            CatalogError: an extent the kernel does not have (with the nearest one it has), or a broken rule.
        """
        known = [name for name, _ in self.tile.items()]
        for name in extents:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise CatalogError(f"{self.name} has no extent {name} (it has {', '.join(known)}){hint}")
        return dataclasses.replace(self, tile=dataclasses.replace(self.tile, **extents))

    def units(self) -> tuple[Unit, ...]:
        return tuple(self._unit(width) for width in self.widths)

    def rejects(self, problem: Problem) -> str | None:
        return self.rejects_type_or_layout(problem) or beyond_grid(problem, self.tile) or beyond_offsets(problem)

    def variant(self, problem: Problem) -> str:
        return self._variant(self._width(problem))

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        launch = Launch(
            unit=self._unit(self._width(problem)),
            entry=self.entry,
            grid=(self._blocks(problem), 1, 1),
            block=(self.threads, 1, 1),
            dynamic_smem=self.dynamic_smem,
        )
        return (launch,)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        return (arguments(problem, pointers),)

    def _blocks(self, problem: Problem) -> int:
        return tiles_of(problem, self.tile)

    def _width(self, problem: Problem) -> int:
        """The widest access that every base pointer and leading dimension allows; extents never matter."""

        def fits(width: int) -> bool:
            return all(
                getattr(problem, f"align_{operand}") >= 4 * width and getattr(problem, f"ld{operand}") % width == 0
                for operand in self.vector_operands
            )

        return next(width for width in self.widths if width == 1 or fits(width))

    def _variant(self, width: int) -> str:
        return f"vec{width}" if len(self.widths) > 1 else ""

    def _unit(self, width: int) -> Unit:
        variant = self._variant(width)
        return Unit(
            name=f"{self.name}.{variant}" if variant else self.name,
            arch=self.arch,
            source=self.source,
            flags=(*self.tile.defines(), f"-DVECTOR={width}"),
        )

    def _violations(self) -> Iterator[str]:
        """Texts of broken rules, the plainest first: what follows from one is not worth reading."""
        t = self.tile
        if t.WARP_M:
            yield from self._warp_violations()
        elif t.BLOCK_M % max(t.THREAD_M, 1) or t.BLOCK_N % max(t.THREAD_N, 1):
            yield "thread tiles must fill the block tile (BLOCK_M % THREAD_M, BLOCK_N % THREAD_N)"
        if self.threads % WARP or not 0 < self.threads <= MAX_THREADS:
            yield f"a block must be whole warps and at most {MAX_THREADS} threads; this one has {self.threads}"
        for rule in self.rules:
            if not rule.holds(t):
                yield rule.text
        if t.BLOCK_K:
            yield from self._copy_violations()

    def _warp_violations(self) -> Iterator[str]:
        t = self.tile
        area, lanes = t.WARP_M * t.WARP_N, WARP * t.THREAD_M * t.THREAD_N
        if area != lanes:
            yield (
                f"the warp tile must hold 32 thread tiles (WARP_M * WARP_N = 32 * THREAD_M * THREAD_N); "
                f"{t.WARP_M} * {t.WARP_N} = {area}, 32 * {t.THREAD_M} * {t.THREAD_N} = {lanes}"
            )
        if t.WARP_M % t.THREAD_M or t.WARP_N % t.THREAD_N:
            yield "thread tiles must fill the warp tile (WARP_M % THREAD_M, WARP_N % THREAD_N)"
        if t.BLOCK_M % t.WARP_M or t.BLOCK_N % t.WARP_N:
            yield "warp tiles must fill the block tile (BLOCK_M % WARP_M, BLOCK_N % WARP_N)"
        if t.THREAD_N % 4:
            yield "a thread reads B four columns at a time (THREAD_N % 4)"

    def _copy_violations(self) -> Iterator[str]:
        t = self.tile
        stages = max(t.NUM_STAGES, 1)
        smem = 4 * stages * (t.BLOCK_M * t.BLOCK_K + t.BLOCK_K * t.BLOCK_N)
        if self.dynamic_smem > MAX_DYNAMIC_SMEM:
            yield f"the tiles need {self.dynamic_smem} bytes of shared memory; a block can have {MAX_DYNAMIC_SMEM}"
        if not self.dynamic_smem and smem > MAX_STATIC_SMEM:
            yield f"the tiles need {smem} bytes of shared memory; static shared memory ends at {MAX_STATIC_SMEM}"
        for operand, rows, cols in (("a", t.BLOCK_M, t.BLOCK_K), ("b", t.BLOCK_K, t.BLOCK_N)):
            for widest in self.widths:
                width = widest if operand in self.vector_operands else 1
                runs = max(cols // width, 1)
                if cols % width or self.threads % runs or rows % max(self.threads // runs, 1):
                    yield (
                        f"{self.threads} threads cannot share the {rows} x {cols} tile of {operand.upper()} evenly "
                        f"in runs of {width}: each step must bring in whole rows, and the steps the whole tile"
                    )
                steps = rows * cols // width // self.threads
                if not t.NUM_STAGES and steps * width > IN_FLIGHT and steps % (IN_FLIGHT // width):
                    yield f"{steps} steps of a copy are no multiple of the {IN_FLIGHT // width} that are in flight"
