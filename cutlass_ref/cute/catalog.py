"""Every CuTe DSL kernel of the project, and how it is launched without the DSL."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from cutlass_ref.cute import emit
from cutlass_ref.cute.emit import Program
from kernel.contract import LAYOUTS, MAX_GRID_X, Argument, Kernel, Launch, Pointers, Problem, Tile, Unit, ceil_div
from kernel.errors import CatalogError

ARCH = "sm_90a"
MAX_OFFSET = 2**63 // 4
"""Elements: the first offset whose bytes no longer fit a signed 64-bit integer."""


@dataclass(frozen=True, kw_only=True)
class CuteKernel(Kernel):
    """A kernel that the CuTe DSL compiles to PTX and our ptxas to a cubin, one build a layout and access width."""

    family: str = "cute_dsl"
    arch: str = ARCH
    layouts: tuple[str, ...] = LAYOUTS

    def unit(self, program: Program, build: str) -> Unit:
        """The translation unit of one build, whose text is the program's PTX."""

        def attachments() -> Mapping[str, str]:
            return emit.emit(program).attachments()

        return Unit(
            name=f"{self.name}.{build}",
            arch=self.arch,
            source=functools.partial(_ptx, program),
            headers=program.headers,
            catalog=program.text(),
            language="ptx",
            attachments=attachments,
        )

    def programs(self) -> tuple[Program, ...]:
        """Every program that the kernel may be built from."""
        raise NotImplementedError


def _ptx(program: Program) -> str:
    return emit.emit(program).ptx


@dataclass(frozen=True, kw_only=True)
class CuteSgemm(CuteKernel):
    """``sgemm.py`` with its options. Parameters are those of the hand-written ladder, in the same order."""

    track: str = "fp32_simt"
    instruction: str = "ffma"
    order: str = "quads"
    copies_at: tuple[int, ...] = (0,)
    marked: bool = True
    """Whether the entry keeps the word that the DSL puts into it; see :class:`cutlass_ref.cute.emit.Program`."""
    threads: int = 256
    pad: int = 4
    """Elements between the k steps of a tile that was transposed on its way."""
    widths: tuple[int, ...] = (4, 1)

    def program(self, layout: str, width: int) -> Program:
        """What one build is compiled from."""
        options = {
            "layout": layout,
            "vector": width,
            "block_k": self.tile.BLOCK_K,
            "stages": self.tile.NUM_STAGES,
            "order": self.order,
            "copies_at": self.copies_at,
        }
        entry = f"{self.name}_{layout}_vec{width}"
        return Program(name="sgemm", entry=entry, options=tuple(options.items()), marked=self.marked)

    def programs(self) -> tuple[Program, ...]:
        return tuple(self.program(layout, width) for width in self.widths for layout in self.layouts)

    def units(self) -> tuple[Unit, ...]:
        return tuple(self._unit(layout, width) for width in self.widths for layout in self.layouts)

    def rejects(self, problem: Problem) -> str | None:
        reason = self.rejects_type_or_layout(problem)
        if reason is not None:
            return reason
        blocks = self._blocks(problem)
        if blocks > MAX_GRID_X:
            return (
                f"m = {problem.m}, n = {problem.n} take {blocks} thread blocks of "
                f"{self.tile.BLOCK_M} x {self.tile.BLOCK_N}; a grid ends at {MAX_GRID_X}"
            )
        for name in ("m", "n", "k"):
            if getattr(problem, name) > MAX_EXTENT:
                return f"{name} = {getattr(problem, name)}; it is rounded up in 32 bits, at most {MAX_EXTENT} is possible"
        for operand in "abc":
            if problem.extent(operand) > MAX_OFFSET:
                pitch = getattr(problem, f"ld{operand}")
                return f"ld{operand} = {pitch} puts the end of {operand.upper()} beyond 2**63 bytes"
        return None

    def variant(self, problem: Problem) -> str:
        return f"vec{self._width(problem)}"

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        layout, width = problem.layout, self._width(problem)
        return (
            Launch(
                unit=self._unit(layout, width),
                entry=self.program(layout, width).symbol,
                grid=(self._blocks(problem), 1, 1),
                block=(self.threads, 1, 1),
                dynamic_smem=self.dynamic_smem(layout),
            ),
        )

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        p = problem
        values = (
            *(struct.pack("<Q", address) for address in (pointers.a, pointers.b, pointers.c)),
            *(struct.pack("<i", extent) for extent in (p.m, p.n, p.k)),
            *(struct.pack("<q", pitch) for pitch in (p.lda, p.ldb, p.ldc)),
            *(struct.pack("<f", scalar) for scalar in (p.alpha, p.beta)),
        )
        return (tuple(Argument(data=value) for value in values),)

    def dynamic_smem(self, layout: str) -> int:
        """Bytes of shared memory of a block; an operand that is contiguous along k is padded."""
        t = self.tile
        pads = self.pad * ((layout[0] == "r") + (layout[1] == "c"))
        return 4 * t.NUM_STAGES * t.BLOCK_K * (t.BLOCK_M + t.BLOCK_N + pads)

    def _unit(self, layout: str, width: int) -> Unit:
        return self.unit(self.program(layout, width), f"{layout}_vec{width}")

    def _blocks(self, problem: Problem) -> int:
        return ceil_div(problem.m, self.tile.BLOCK_M) * ceil_div(problem.n, self.tile.BLOCK_N)

    def _width(self, problem: Problem) -> int:
        """4 where every 16-byte access is whole and aligned: those of C, and of operands not contiguous along k."""
        wide = [(problem.align_c, problem.ldc, problem.n)]
        if problem.layout[0] == "c":
            wide.append((problem.align_a, problem.lda, problem.m))
        if problem.layout[1] == "r":
            wide.append((problem.align_b, problem.ldb, problem.n))
        whole = all(base >= 16 and pitch % 4 == 0 and extent % 4 == 0 for base, pitch, extent in wide)
        return 4 if whole and 4 in self.widths else 1


MAX_EXTENT = 2**31 - 256
"""Extents are rounded up to the tile in 32-bit integers."""

SIMT_TILE = Tile(
    BLOCK_M=128, BLOCK_N=256, BLOCK_K=16, WARP_M=64, WARP_N=64, THREAD_M=8, THREAD_N=16, NUM_STAGES=3
)  # fmt: skip


def _simt(name: str, summary: str, *, block_k: int = 16, stages: int = 3, **fields: object) -> CuteSgemm:
    tile = dataclasses.replace(SIMT_TILE, BLOCK_K=block_k, NUM_STAGES=stages)
    return CuteSgemm(name=name, tile=tile, summary=summary, **fields)  # type: ignore[arg-type]


KERNELS: tuple[CuteKernel, ...] = (
    _simt("cute_sgemm", "8 x 16 thread tile split by a CuTe tiler, A transposed by its layout, cp.async in 3 stages"),
)


@functools.cache
def _by_name() -> dict[str, CuteKernel]:
    return {kernel.name: kernel for kernel in KERNELS}


def get(name: str) -> CuteKernel:
    """The entry of that name.

    Raises:
        CatalogError: no such entry; names the nearest.
    """
    known = _by_name()
    if name in known:
        return known[name]
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    raise CatalogError(f"no CuTe DSL kernel is called {name!r}; the nearest name is {nearest}")
