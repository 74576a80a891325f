"""Every CuTe DSL kernel of the project, and how it is launched without the DSL."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import struct
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from cutlass_ref.cute import emit
from cutlass_ref.cute.emit import Program
from kernel.contract import (
    LAYOUTS,
    MAX_GRID_YZ,
    Argument,
    Kernel,
    Launch,
    Pointers,
    Problem,
    TensorMap,
    Tile,
    Unit,
    ceil_div,
)
from kernel.errors import CatalogError
from kernel.sgemm import arguments, beyond_grid, beyond_offsets, tiles_of

ARCH = "sm_90a"


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

    @abstractmethod
    def programs(self) -> tuple[Program, ...]:
        """Every program that the kernel may be built from."""


def _ptx(program: Program) -> str:
    return emit.emit(program).ptx


COPIES_ELSEWHERE = {("rc", 4): 2, ("rc", 1): 1}
"""Step of the copies by layout and width where both operands are transposed: at others ptxas 13.0 spills there."""


@dataclass(frozen=True, kw_only=True)
class CuteSgemm(CuteKernel):
    """``sgemm.py`` with its options. Parameters are those of the hand-written ladder, in the same order."""

    track: str = "fp32_simt"
    instruction: str = "ffma"
    order: str = "quads"
    copy_at: int = 0
    """Step of a tile at which the copies of a later one are issued; see also :data:`COPIES_ELSEWHERE`."""
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
            "copy_at": COPIES_ELSEWHERE.get((layout, width), self.copy_at),
        }
        entry = f"{self.name}_{layout}_vec{width}"
        return Program(name="sgemm", entry=entry, options=tuple(options.items()), marked=self.marked)

    def programs(self) -> tuple[Program, ...]:
        return tuple(self.program(layout, width) for width in self.widths for layout in self.layouts)

    def units(self) -> tuple[Unit, ...]:
        return tuple(self._unit(layout, width) for width in self.widths for layout in self.layouts)

    def rejects(self, problem: Problem) -> str | None:
        reason = self.rejects_type_or_layout(problem) or beyond_grid(problem, self.tile) or extent_rule(problem)
        return reason or beyond_offsets(problem)

    def variant(self, problem: Problem) -> str:
        return f"vec{self._width(problem)}"

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        layout, width = problem.layout, self._width(problem)
        return (
            Launch(
                unit=self._unit(layout, width),
                entry=self.program(layout, width).symbol,
                grid=(tiles_of(problem, self.tile), 1, 1),
                block=(self.threads, 1, 1),
                dynamic_smem=self.dynamic_smem(layout),
            ),
        )

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        return (arguments(problem, pointers),)

    def dynamic_smem(self, layout: str) -> int:
        """Bytes of shared memory of a block; an operand that is contiguous along k is padded."""
        t = self.tile
        pads = self.pad * ((layout[0] == "r") + (layout[1] == "c"))
        return 4 * t.NUM_STAGES * t.BLOCK_K * (t.BLOCK_M + t.BLOCK_N + pads)

    def _unit(self, layout: str, width: int) -> Unit:
        return self.unit(self.program(layout, width), f"{layout}_vec{width}")

    def _width(self, problem: Problem) -> int:
        """4 where every 16-byte access is whole and aligned; cp.async brings what is contiguous along k by elements."""
        wide = [(problem.align_c, problem.ldc, problem.n)]
        if problem.layout[0] == "c":
            wide.append((problem.align_a, problem.lda, problem.a_width))
        if problem.layout[1] == "r":
            wide.append((problem.align_b, problem.ldb, problem.b_width))
        whole = all(base >= 16 and pitch % 4 == 0 and extent % 4 == 0 for base, pitch, extent in wide)
        return 4 if whole and 4 in self.widths else 1


@dataclass(frozen=True, kw_only=True)
class NvidiaHgemm(CuteKernel):
    """One of NVIDIA's own kernels (``hgemm.py``): C = A @ B, FP16 with FP32 accumulators, one build a layout."""

    track: str = "fp16_tensor"
    dtype_in: str = "float16"
    dtype_out: str = "float16"

    @abstractmethod
    def program(self, layout: str) -> Program:
        """What one build is compiled from."""

    def programs(self) -> tuple[Program, ...]:
        return tuple(self.program(layout) for layout in self.layouts)

    def units(self) -> tuple[Unit, ...]:
        return tuple(self.unit(self.program(layout), layout) for layout in self.layouts)


@dataclass(frozen=True, kw_only=True)
class CuteHgemm(NvidiaHgemm):
    """NVIDIA's persistent Hopper kernel (``hgemm.py``): C = A @ B, FP16 with FP32 accumulators, wgmma and TMA.

    Its parameters, in the order of the DSL: tensor map and extents of A, of B, of C; the MMA; the tile scheduler, with
    its divisors. What the kernel never reads is passed as zeros.
    """

    instruction: str = "wgmma"
    store_tile: tuple[int, int] = (128, 32)
    store_stages: int = 4

    def program(self, layout: str) -> Program:
        t = self.tile
        cluster = (t.CLUSTER_M, t.CLUSTER_N)
        options = {"arch": 90, "layout": layout, "tile": (t.BLOCK_M, t.BLOCK_N), "cluster": cluster}
        return Program(name="hgemm", entry=f"{self.name}_{layout}", options=tuple(options.items()))

    def rejects(self, problem: Problem) -> str | None:
        reason = self.rejects_type_or_layout(problem) or operand_rules(problem)
        if reason is not None:
            return reason
        if problem.n % 8:
            # Written through TMA, a row that ends inside 16 bytes would lose what lies behind it.
            return f"n = {problem.n}; rows of C leave in pieces of 16 bytes, so a multiple of 8 is needed"
        return None

    def variant(self, problem: Problem) -> str:
        return ""

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        t = self.tile
        cluster = (t.CLUSTER_M, t.CLUSTER_N, 1)
        clusters_m, clusters_n = self._clusters(problem)
        resident = SM_COUNT // (t.CLUSTER_M * t.CLUSTER_N)
        return (
            Launch(
                unit=self.unit(self.program(problem.layout), problem.layout),
                entry=self.program(problem.layout).symbol,
                grid=(t.CLUSTER_M, t.CLUSTER_N, min(clusters_m * clusters_n, resident)),
                block=(self.threads, 1, 1),
                dynamic_smem=self.dynamic_smem,
                cluster=cluster,
            ),
        )

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        p, t = problem, self.tile
        clusters_m, clusters_n = self._clusters(p)
        a, b, c = self.tensor_maps(p, pointers)
        values = (
            _with_map(a),
            Argument(data=struct.pack("<ii", p.m, p.k)),
            _with_map(b),
            Argument(data=struct.pack("<ii", p.n, p.k)),
            _with_map(c),
            Argument(data=struct.pack("<ii", p.m, p.n)),
            Argument(data=bytes(1)),
            Argument(data=struct.pack("<i", ceil_div(p.m, t.BLOCK_M))),
            Argument(data=struct.pack("<i", ceil_div(p.n, t.BLOCK_N))),
            Argument(data=divisor(clusters_m)),
            Argument(data=divisor(clusters_n)),
            *(Argument(data=bytes(size)) for size in (4, 4, 12, 12)),
        )
        return (values,)

    def tensor_maps(self, problem: Problem, pointers: Pointers) -> tuple[TensorMap, TensorMap, TensorMap]:
        """The maps of A, B and C."""
        p, (box_a, box_b, box_c) = problem, self.boxes(problem.layout)
        shape_a, shape_b = (p.k, p.m) if p.layout[0] == "r" else (p.m, p.k), (p.n, p.k)
        if p.layout[1] == "c":
            shape_b = (p.k, p.n)
        return (
            _map(pointers.a, shape_a, p.lda, box_a, 128),
            _map(pointers.b, shape_b, p.ldb, box_b, 128),
            _map(pointers.c, (p.n, p.m), p.ldc, box_c, 64),
        )

    def boxes(self, layout: str) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Elements of one copy of A, B and C, innermost first; a multicast tile is brought in equal parts."""
        t = self.tile
        a = (t.BLOCK_K, t.BLOCK_M) if layout[0] == "r" else (64, t.BLOCK_K)
        b = (64, t.BLOCK_K) if layout[1] == "r" else (t.BLOCK_K, t.BLOCK_N)
        rows, columns = self.store_tile
        return (a[0], a[1] // t.CLUSTER_N), (b[0], b[1] // t.CLUSTER_M), (columns, rows)

    @property
    def threads(self) -> int:
        """A warpgroup of producers, and one of consumers for each 64 rows."""
        return 128 * (1 + self.tile.BLOCK_M // self.tile.WARP_M)

    @property
    def dynamic_smem(self) -> int:
        """Bytes of shared memory: barriers, stages of A and B, tiles of C on their way out."""
        t = self.tile
        stage = 2 * t.BLOCK_K * (t.BLOCK_M + t.BLOCK_N)
        return 1024 + t.NUM_STAGES * stage + self.store_stages * 2 * self.store_tile[0] * self.store_tile[1]

    def _clusters(self, problem: Problem) -> tuple[int, int]:
        t = self.tile
        blocks_m, blocks_n = ceil_div(problem.m, t.BLOCK_M), ceil_div(problem.n, t.BLOCK_N)
        return ceil_div(blocks_m, t.CLUSTER_M), ceil_div(blocks_n, t.CLUSTER_N)


@dataclass(frozen=True, kw_only=True)
class CuteAmpere(NvidiaHgemm):
    """NVIDIA's Ampere kernel (``hgemm.py``), the public example: C = A @ B, FP16, mma.sync, ldmatrix, cp.async."""

    instruction: str = "mma_sync"
    threads: int = 128

    def program(self, layout: str) -> Program:
        return Program(name="hgemm", entry=f"{self.name}_{layout}", options=(("arch", 80), ("layout", layout)))

    def rejects(self, problem: Problem) -> str | None:
        reason = self.rejects_type_or_layout(problem) or operand_rules(problem)
        if reason is not None:
            return reason
        widths = (("A", "k" if problem.layout[0] == "r" else "m"), ("B", "n" if problem.layout[1] == "r" else "k"))
        for operand, axis in (*widths, ("C", "n")):
            if getattr(problem, axis) % 8:
                extent = getattr(problem, axis)
                return f"{operand}: its contiguous extent {axis} = {extent}; its 16-byte accesses need a multiple of 8"
        if self._grid(problem)[1] > MAX_GRID_YZ:
            return f"n = {problem.n} takes {self._grid(problem)[1]} rows of blocks; a grid's y ends at {MAX_GRID_YZ}"
        return None

    def variant(self, problem: Problem) -> str:
        return ""

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        t = self.tile
        return (
            Launch(
                unit=self.unit(self.program(problem.layout), problem.layout),
                entry=self.program(problem.layout).symbol,
                grid=self._grid(problem),
                block=(self.threads, 1, 1),
                dynamic_smem=2 * t.NUM_STAGES * t.BLOCK_K * (t.BLOCK_M + t.BLOCK_N),
            ),
        )

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        p = problem
        tensors = ((pointers.a, p.m, p.k, p.lda), (pointers.b, p.n, p.k, p.ldb), (pointers.c, p.m, p.n, p.ldc))
        return (
            (
                *(Argument(data=struct.pack("<Qiiq", *tensor)) for tensor in tensors),
                Argument(data=struct.pack("<i", self._raster(p))),
            ),
        )

    def _raster(self, problem: Problem) -> int:
        """Columns of blocks that are worked on side by side, as the package's host code chooses them."""
        columns = ceil_div(problem.n, self.tile.BLOCK_N)
        return 8 if columns > 5 else 4 if columns > 2 else 2 if columns > 1 else 1

    def _grid(self, problem: Problem) -> tuple[int, int, int]:
        raster = self._raster(problem)
        rows, columns = ceil_div(problem.m, self.tile.BLOCK_M), ceil_div(problem.n, self.tile.BLOCK_N)
        return rows * raster, ceil_div(columns, raster), 1


def extent_rule(problem: Problem) -> str | None:
    """Why an extent is too large for 32-bit arithmetic, or None."""
    for name in ("m", "n", "k"):
        extent = getattr(problem, name)
        if extent > MAX_EXTENT:
            return f"{name} = {extent}; it is rounded up in 32 bits, at most {MAX_EXTENT} is possible"
    return None


def operand_rules(problem: Problem) -> str | None:
    """Why NVIDIA's FP16 kernels cannot take a problem: their epilogue, 32-bit extents, 16-byte alignment."""
    if (problem.alpha, problem.beta) != (1.0, 0.0):
        return f"alpha = {problem.alpha:g}, beta = {problem.beta:g}; NVIDIA's kernel computes A @ B alone"
    reason = extent_rule(problem)
    if reason is not None:
        return reason
    for operand, base, pitch in (
        ("A", problem.align_a, problem.lda),
        ("B", problem.align_b, problem.ldb),
        ("C", problem.align_c, problem.ldc),
    ):
        if pitch % 8:
            return (
                f"{operand}: ld{operand.lower()} = {pitch} elements of float16; 16-byte accesses need a multiple of 8"
            )
        if base % 16:
            return f"{operand}: its base address is a multiple of {base} bytes; 16 are needed"
    return None


def _with_map(tensor_map: TensorMap) -> Argument:
    return Argument(data=bytes(128), tensor_maps=((0, tensor_map),))


def _map(address: int, shape: tuple[int, int], pitch: int, box: tuple[int, int], swizzle: int) -> TensorMap:
    return TensorMap(
        address=address,
        dtype="float16",
        shape=shape,
        strides=(2 * pitch,),
        box=box,
        element_strides=(1, 1),
        swizzle=swizzle,
        l2_promotion=128,
    )


def divisor(number: int) -> bytes:
    """A divisor as the DSL's kernels take it: itself, a multiplier and two shifts (Granlund and Montgomery), 12 bytes.

    n // number = (mulhi(n, multiplier) + ((n - mulhi(n, multiplier)) >> first)) >> second, for 32-bit n.
    """
    bits = (number - 1).bit_length()
    multiplier = (2**32 * (2**bits - number)) // number + 1
    return struct.pack("<iIBBxx", number, multiplier, min(bits, 1), max(bits - 1, 0))


MAX_EXTENT = 2**31 - 512
"""Extents are rounded up to the tile in 32-bit integers."""
SM_COUNT = 132
"""Blocks of a persistent launch: one for each SM of an H100 SXM or H200."""

SIMT_TILE = Tile(
    BLOCK_M=128, BLOCK_N=256, BLOCK_K=8, WARP_M=64, WARP_N=64, THREAD_M=8, THREAD_N=16, NUM_STAGES=5
)  # fmt: skip


def _simt(name: str, summary: str, *, block_k: int = 8, stages: int = 5, **fields: object) -> CuteSgemm:
    tile = dataclasses.replace(SIMT_TILE, BLOCK_K=block_k, NUM_STAGES=stages)
    return CuteSgemm(name=name, tile=tile, summary=summary, **fields)  # type: ignore[arg-type]


def _hopper(cluster: tuple[int, int], **fields: object) -> CuteHgemm:
    tile = Tile(
        BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, WARP_M=64, WARP_N=256, MMA_M=64, MMA_N=256, MMA_K=16, NUM_STAGES=4,
        CLUSTER_M=cluster[0], CLUSTER_N=cluster[1],
    )  # fmt: skip
    return CuteHgemm(
        name=f"cute_fp16_sm90_128x256x64_{cluster[0]}x{cluster[1]}_persistent",
        tile=tile,
        summary=f"NVIDIA's own DSL kernel, wgmma and TMA, persistent, cluster {cluster[0]}x{cluster[1]}",
        **fields,  # type: ignore[arg-type]
    )


KERNELS: tuple[CuteKernel, ...] = (
    _simt("cute_sgemm", "thread tile split by a CuTe tiler, A transposed by its layout, cp.async in 5 stages"),
    _simt(
        "cute_sgemm_plain",
        "the same PTX without the DSL's word in the entry's name: ptxas then orders the FFMAs itself",
        marked=False,
        layouts=("rr",),
        in_default_set=False,
    ),
    CuteAmpere(
        name="cute_fp16_sm80_128x128x32_4stages",
        tile=Tile(
            BLOCK_M=128, BLOCK_N=128, BLOCK_K=32, WARP_M=64, WARP_N=64, MMA_M=16, MMA_N=8, MMA_K=16, NUM_STAGES=4
        ),
        summary="NVIDIA's own DSL kernel, the public Ampere example: mma.sync and 4 stages of cp.async",
        in_default_set=False,
    ),
    _hopper((1, 1)),
    _hopper((2, 1), in_default_set=False),
    _hopper((1, 2), in_default_set=False),
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
