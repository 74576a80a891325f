"""The hand-written FP16 Tensor Core kernels: FP16 in, FP32 accumulate, FP16 or FP32 out.

One catalog entry is one row; the output type, the layout of B and the width of accesses choose among its builds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from handwritten.split_tile import Cut
from kernel.contract import (
    ITEMSIZE,
    MAX_GRID_X,
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

FOLDER = Path(__file__).parent
OUTPUTS = ("float16", "float32")
SWIZZLE_SPAN = 128
"""Bytes that the widest shared-memory swizzle spans."""
MAP_ALIGNMENT = 16
"""Bytes: bases and row pitches of a tensor map are multiples of this."""
PITCH_LIMIT = 2**40
"""Bytes: row pitches of a tensor map are below this."""
SM_COUNT = 132
"""Persistent blocks launched where there are as many tiles: one for each SM of an H100 SXM or H200. A launch is
planned without a device; on fewer SMs the blocks left over run afterwards, and the result is the same."""


@dataclass(frozen=True, kw_only=True)
class TensorKernel(Kernel):
    """What the family shares: both output types, both layouts of B, and the order of tiles."""

    family: str = "handwritten"
    track: str = "fp16_tensor"
    arch: str = "sm_90a"
    dtype_in: str = "float16"
    dtype_out: str = "float16"
    layouts: tuple[str, ...] = ("rr", "rc")
    group_m: int = 16
    """Rows of tiles that are walked together, so that blocks running at once touch a nearly square part of C."""
    shares: str = ""
    """The kernel whose source this one is another tile of; empty where the source is its own."""

    @property
    def entry(self) -> str:
        """File stem and entry symbol."""
        return self.shares or self.name

    def rejects_type_or_layout(self, problem: Problem) -> str | None:
        """As for every kernel, but either output type that a problem can have will do."""
        return super().rejects_type_or_layout(problem.replace(dtype_out=self.dtype_out))

    def rejects(self, problem: Problem) -> str | None:
        tiles = self.tiles(problem)
        if tiles > MAX_GRID_X:
            return (
                f"{problem.m} x {problem.n} is {tiles} tiles of {self.tile}; a launch has at most {MAX_GRID_X} blocks"
            )
        return None

    def tiles(self, problem: Problem) -> int:
        """Block tiles that cover C, in whole clusters."""
        rows, columns = max(self.tile.CLUSTER_M, 1), max(self.tile.CLUSTER_N, 1)
        down = ceil_div(problem.m, self.tile.BLOCK_M * rows) * rows
        return down * ceil_div(problem.n, self.tile.BLOCK_N * columns) * columns

    def build(self, suffix: str, layout: str, dtype_out: str, *extra: str) -> Unit:
        """One build of the kernel's source."""
        flags = (f"-DB_COLUMN_MAJOR={int(layout[1] == 'c')}", f"-DOUT_BYTES={ITEMSIZE[dtype_out]}")
        return Unit(
            name=f"{self.name}.{layout}_{dtype_out}{suffix}",
            arch=self.arch,
            source=FOLDER / f"{self.entry}.cu",
            flags=(*self.tile.defines(), f"-DGROUP_M={self.group_m}", *flags, *extra),
        )


def _scalars(problem: Problem) -> tuple[Argument, Argument]:
    return Argument(data=struct.pack("<f", problem.alpha)), Argument(data=struct.pack("<f", problem.beta))


def _extents(problem: Problem) -> tuple[Argument, ...]:
    return tuple(Argument(data=struct.pack("<i", extent)) for extent in (problem.m, problem.n, problem.k))


@dataclass(frozen=True, kw_only=True)
class MmaSyncKernel(TensorKernel):
    """Threads copy, so that any pitch and base will do."""

    instruction: str = "mma_sync"
    vectors: tuple[int, ...] = (8, 2, 1)
    """Elements in one access to A and B, widest first: 16 or 4 bytes by cp.async, 2 bytes through a register."""

    @property
    def threads(self) -> int:
        tile = self.tile
        return tile.BLOCK_M // tile.WARP_M * (tile.BLOCK_N // tile.WARP_N) * 32

    def vector(self, problem: Problem) -> int:
        """Widest access that both operands' bases and pitches allow; one element always does."""
        size = ITEMSIZE[self.dtype_in]
        places = (problem.lda * size, problem.ldb * size, problem.align_a, problem.align_b)
        return next(vector for vector in self.vectors if all(place % (vector * size) == 0 for place in places))

    def variant(self, problem: Problem) -> str:
        return f"vec{self.vector(problem)}"

    def unit(self, layout: str, dtype_out: str, vector: int) -> Unit:
        return self.build(f"_vec{vector}", layout, dtype_out, f"-DVECTOR={vector}")

    def units(self) -> tuple[Unit, ...]:
        return tuple(
            self.unit(layout, out, vector) for vector in self.vectors for layout in self.layouts for out in OUTPUTS
        )

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        tile, tiles = self.tile, self.tiles(problem)
        stage = (tile.BLOCK_M + tile.BLOCK_N) * tile.BLOCK_K * ITEMSIZE[self.dtype_in]
        launch = Launch(
            unit=self.unit(problem.layout, problem.dtype_out, self.vector(problem)),
            entry=self.entry,
            grid=(tiles, 1, 1),
            block=(self.threads, 1, 1),
            dynamic_smem=tile.NUM_STAGES * stage,
        )
        return (launch,)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        addresses = tuple(Argument(data=struct.pack("<Q", p)) for p in (pointers.a, pointers.b, pointers.c))
        pitches = tuple(Argument(data=struct.pack("<q", p)) for p in (problem.lda, problem.ldb, problem.ldc))
        return ((*addresses, *_extents(problem), *pitches, *_scalars(problem)),)


H0 = MmaSyncKernel(
    name="h0_mma_sync",
    tile=Tile(
        BLOCK_M=128,
        BLOCK_N=256,
        BLOCK_K=64,
        WARP_M=64,
        WARP_N=64,
        MMA_M=16,
        MMA_N=8,
        MMA_K=16,
        NUM_STAGES=3,
    ),
    swizzle="chunk ^ row % 8",
    summary="mma.sync on fragments from swizzled shared memory, three cp.async stages",
)


@dataclass(frozen=True, kw_only=True)
class WgmmaKernel(TensorKernel):
    """Persistent blocks fed by the copy engine; what its tensor maps cannot describe goes to a fallback."""

    instruction: str = "wgmma"
    fallbacks: tuple[TensorKernel, ...] = (H0,)
    """Kernels of ours that are asked, in order, where this one's tensor maps fail; the last refuses nothing."""
    halves: int = 1
    """m64 parts that one warpgroup multiplies."""
    b_box: int = 0
    """Columns (column-major B) or rows of k (row-major B) in one box of B; 0 where a box fills a block's share."""
    overlaps: bool = False
    """True where blocks may start before the launch ahead of theirs has ended."""
    any_width: bool = True
    """True where rows of C may end within 16 bytes, of which the copy engine only writes all."""
    has_producer: bool = True
    """True where a warpgroup of its own does the loading."""
    store_bytes: int = 2 * 64 * SWIZZLE_SPAN
    """Bytes of shared memory through which each warpgroup stores its part of C, in buffers of 64 rows."""

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.tile.BLOCK_M // (self.tile.MMA_M * self.halves)

    @property
    def cluster(self) -> int:
        """Thread blocks that share operands."""
        return max(self.tile.CLUSTER_M, 1) * max(self.tile.CLUSTER_N, 1)

    @property
    def b_columns(self) -> int:
        """Columns in one swizzle span of row-major B: 64, or 32 where 64 do not divide the tile."""
        return math.gcd(SWIZZLE_SPAN // ITEMSIZE[self.dtype_in], self.tile.BLOCK_N)

    @property
    def b_is_three_dimensional(self) -> bool:
        """True where one copy brings all spans of row-major B: {column in span, k, span}."""
        return self.b_columns * ITEMSIZE[self.dtype_in] < SWIZZLE_SPAN

    def beyond_tensor_maps(self, problem: Problem) -> str | None:
        """Why the operands cannot be described by tensor maps, or None if they can."""
        size_out = ITEMSIZE[problem.dtype_out]
        for reason in _without_map(problem).values():
            return reason
        if not self.any_width and problem.n * size_out % MAP_ALIGNMENT:
            return f"a row of C is {problem.n * size_out} bytes; {self.name} writes multiples of {MAP_ALIGNMENT}"
        if problem.layout[1] == "r" and self.b_is_three_dimensional and problem.n % self.b_columns:
            return f"n = {problem.n}; {self.name} copies row-major B in whole spans of {self.b_columns} columns"
        return None

    def runner(self, problem: Problem) -> TensorKernel:
        """The kernel that runs the problem: this one, or the first fallback that can; the last needs no tensor map."""
        chain: tuple[TensorKernel, ...] = (self, *self.fallbacks)
        return next(one for one in chain if not (isinstance(one, WgmmaKernel) and one.beyond_tensor_maps(problem)))

    def why(self, problem: Problem) -> str:
        return self.beyond_tensor_maps(problem) or ""

    def rejects(self, problem: Problem) -> str | None:
        runner = self.runner(problem)
        return super().rejects(problem) if runner is self else runner.rejects(problem)

    def variant(self, problem: Problem) -> str:
        runner = self.runner(problem)
        return "tma" if runner is self else f"{runner.name}.{runner.variant(problem)}"

    def unit(self, layout: str, dtype_out: str) -> Unit:
        columns, buffers = self.store_columns(dtype_out), self.store_buffers(dtype_out)
        return self.build("", layout, dtype_out, f"-DSTORE_COLS={columns}", f"-DSTORE_BUFFERS={buffers}")

    def unit_for(self, problem: Problem) -> Unit:
        """The build that runs a problem which tensor maps can describe."""
        return self.unit(problem.layout, problem.dtype_out)

    def store_columns(self, dtype_out: str) -> int:
        """Columns of C in one store buffer: as many as a swizzle span holds and the tile is a multiple of."""
        return math.gcd(SWIZZLE_SPAN // ITEMSIZE[dtype_out], self.tile.BLOCK_N)

    def store_buffers(self, dtype_out: str) -> int:
        """Store buffers of each warpgroup."""
        return self.store_bytes // (self.tile.MMA_M * self.store_columns(dtype_out) * ITEMSIZE[dtype_out])

    def units(self) -> tuple[Unit, ...]:
        own = [self.unit(layout, out) for layout in self.layouts for out in OUTPUTS]
        return tuple(dict.fromkeys([*own, *(unit for kernel in self.fallbacks for unit in kernel.units())]))

    @property
    def stage_rows(self) -> int:
        """Rows of A and columns of B that a stage holds."""
        return self.tile.BLOCK_M + self.tile.MMA_N

    @property
    def dynamic_smem(self) -> int:
        """Bytes: stages and store buffers, the way to the first multiple of 1,024, and two barriers a stage."""
        tile = self.tile
        stage = self.stage_rows * tile.BLOCK_K * ITEMSIZE[self.dtype_in]
        return 1024 + tile.NUM_STAGES * stage + self.consumers * self.store_bytes + 2 * 8 * tile.NUM_STAGES

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        runner = self.runner(problem)
        if runner is not self:
            return runner.launches(problem)
        launch = Launch(
            unit=self.unit_for(problem),
            entry=self.entry,
            grid=(min(self.tiles(problem), SM_COUNT // self.cluster * self.cluster), 1, 1),
            block=((self.consumers + self.has_producer) * 128, 1, 1),
            dynamic_smem=self.dynamic_smem,
            cluster=(self.cluster, 1, 1),
            overlaps=self.overlaps,
        )
        return (launch,)

    def spans_of_b(self, problem: Problem, pointers: Pointers, share: int = 1) -> TensorMap:
        """Row-major B as {column in span, k, span}; ``share`` blocks bring a part of the rows each."""
        columns, tile = self.b_columns, self.tile
        shape = (columns, problem.k, problem.n // columns)
        box = (columns, tile.BLOCK_K // share, tile.BLOCK_N // columns)
        return _tensor_map(pointers.b, self.dtype_in, shape, (problem.ldb, columns), box)

    def maps(self, problem: Problem, pointers: Pointers) -> Iterator[TensorMap]:
        """Tensor maps of A, B and C; extents innermost first, zeros beyond them, nothing stored there."""
        m, n, k, tile = problem.m, problem.n, problem.k, self.tile
        share, a_share = max(tile.CLUSTER_M, 1), max(tile.CLUSTER_N, 1)  # blocks that bring a part of B, of A
        span, columns = SWIZZLE_SPAN // ITEMSIZE[self.dtype_in], self.b_columns
        store_box = (self.store_columns(problem.dtype_out), tile.MMA_M)
        yield _tensor_map(pointers.a, self.dtype_in, (k, m), (problem.lda,), (span, tile.BLOCK_M // a_share))
        if problem.layout[1] == "c":
            rows = self.b_box or tile.BLOCK_N // share
            yield _tensor_map(pointers.b, self.dtype_in, (k, n), (problem.ldb,), (span, rows))
        elif self.b_is_three_dimensional:
            yield self.spans_of_b(problem, pointers, share)
        else:
            by_rows = tile.BLOCK_N // columns % share != 0  # too few spans of columns to share those
            rows = self.b_box or tile.BLOCK_K // (share if by_rows else 1)
            yield _tensor_map(pointers.b, self.dtype_in, (n, k), (problem.ldb,), (columns, rows))
        yield _tensor_map(pointers.c, problem.dtype_out, (n, m), (problem.ldc,), store_box)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        runner = self.runner(problem)
        if runner is not self:
            return runner.pack(problem, pointers)
        maps = tuple(Argument(data=bytes(128), tensor_maps=((0, record),)) for record in self.maps(problem, pointers))
        c = Argument(data=struct.pack("<Q", pointers.c))
        pitch = Argument(data=struct.pack("<q", problem.ldc))
        return ((*maps, c, *_extents(problem), pitch, *_scalars(problem)),)


def _without_map(problem: Problem) -> dict[str, str]:
    """Operands (A, B, C) whose base or pitch no tensor map can have, each with the reason."""
    size_in, size_out = ITEMSIZE[problem.dtype_in], ITEMSIZE[problem.dtype_out]
    found = {}
    for name, align, pitch in (
        ("A", problem.align_a, problem.lda * size_in),
        ("B", problem.align_b, problem.ldb * size_in),
        ("C", problem.align_c, problem.ldc * size_out),
    ):
        if align % MAP_ALIGNMENT:
            found[name] = f"{name}'s base is a multiple of {align} bytes only; a tensor map needs {MAP_ALIGNMENT}"
        elif pitch % MAP_ALIGNMENT:
            found[name] = f"{name}'s pitch is {pitch} bytes; a tensor map needs a multiple of {MAP_ALIGNMENT}"
        elif pitch >= PITCH_LIMIT:
            found[name] = f"{name}'s pitch is {pitch} bytes; a tensor map needs less than {PITCH_LIMIT}"
    return found


def _tensor_map(
    address: int, dtype: str, shape: tuple[int, ...], pitches: tuple[int, ...], box: tuple[int, ...]
) -> TensorMap:
    """A map whose box rows fill one swizzle span; pitches in elements."""
    return TensorMap(
        address=address,
        dtype=dtype,
        shape=shape,
        strides=tuple(pitch * ITEMSIZE[dtype] for pitch in pitches),
        box=box,
        element_strides=(1,) * len(shape),
        swizzle=box[0] * ITEMSIZE[dtype],
        l2_promotion=128,
    )


H1 = WgmmaKernel(
    name="h1_wgmma_tma",
    tile=Tile(
        BLOCK_M=128,
        BLOCK_N=256,
        BLOCK_K=64,
        MMA_M=64,
        MMA_N=256,
        MMA_K=16,
        NUM_STAGES=4,
    ),
    swizzle="128 bytes",
    summary="TMA on mbarriers feeds wgmma; persistent blocks, a producer warpgroup, TMA stores",
)

H2 = WgmmaKernel(
    name="h2_cluster_multicast",
    tile=Tile(
        BLOCK_M=128,
        BLOCK_N=256,
        BLOCK_K=64,
        MMA_M=64,
        MMA_N=256,
        MMA_K=16,
        NUM_STAGES=4,
        CLUSTER_M=2,
        CLUSTER_N=1,
    ),
    swizzle="128 bytes",
    summary="clusters of two blocks share B by multicast; every other tile walks k backwards",
)

H3 = WgmmaKernel(
    name="h3_wide_tile",
    tile=Tile(
        BLOCK_M=256,
        BLOCK_N=224,
        BLOCK_K=64,
        MMA_M=64,
        MMA_N=224,
        MMA_K=16,
        NUM_STAGES=3,
        CLUSTER_M=2,
        CLUSTER_N=1,
    ),
    fallbacks=(H2, H0),
    halves=2,
    any_width=False,
    has_producer=False,
    group_m=8,
    store_bytes=5 * 64 * 64,
    swizzle="128 and 64 bytes",
    summary="256 x 224 tiles in two warpgroups of 224 accumulators a thread; a consumer's thread loads",
)

H4 = WgmmaKernel(
    name="h4_column_passes",
    tile=Tile(
        BLOCK_M=256,
        BLOCK_N=512,
        BLOCK_K=64,
        MMA_M=64,
        MMA_N=192,
        MMA_K=16,
        NUM_STAGES=3,
        CLUSTER_M=2,
        CLUSTER_N=1,
    ),
    fallbacks=(H2, H0),
    halves=2,
    b_box=32,
    any_width=False,
    has_producer=False,
    store_bytes=3 * 64 * SWIZZLE_SPAN,
    swizzle="128 bytes",
    in_default_set=False,  # 0.84 to 0.86 of cuBLAS from 4096 on, below what it was to improve (NOTES.md)
    summary="256 x 512 a block in passes of 192, 192 and 128 columns, which fill the SMs at 4096",
)


@dataclass(frozen=True, kw_only=True)
class OverlappedKernel(WgmmaKernel):
    """h5 in its tiles: launches overlap, and row-major B may come in one copy a stage."""

    overlaps: bool = True
    at_once: bool = False
    """Whether one copy of three dimensions brings row-major B where n is a multiple of a swizzle span."""

    def brings_b_at_once(self, problem: Problem) -> bool:
        """Whether this problem's B comes in one copy: what lies beyond n in the last span would be read."""
        return self.at_once and problem.layout[1] == "r" and problem.n % self.b_columns == 0

    def unit(self, layout: str, dtype_out: str, at_once: bool = False) -> Unit:
        columns, buffers = self.store_columns(dtype_out), self.store_buffers(dtype_out)
        flags = (f"-DSTORE_COLS={columns}", f"-DSTORE_BUFFERS={buffers}", f"-DB_AT_ONCE={int(at_once)}")
        return self.build("_at_once" if at_once else "", layout, dtype_out, *flags)

    def unit_for(self, problem: Problem) -> Unit:
        return self.unit(problem.layout, problem.dtype_out, self.brings_b_at_once(problem))

    def units(self) -> tuple[Unit, ...]:
        own = [self.unit("rr", out, at_once=True) for out in OUTPUTS if self.at_once]
        return tuple(dict.fromkeys([*own, *super().units()]))

    def maps(self, problem: Problem, pointers: Pointers) -> Iterator[TensorMap]:
        """Tensor maps of A, B and C; extents innermost first, zeros beyond them, nothing stored there."""
        a, b, c = super().maps(problem, pointers)
        yield from (a, self.spans_of_b(problem, pointers) if self.brings_b_at_once(problem) else b, c)


def _tile_of_h5(block_m: int, block_n: int, stages: int, boxes: int, cluster_m: int = 1) -> OverlappedKernel:
    """h5 with another tile. ``boxes``: store buffers of 64 rows by 128 bytes that each warpgroup has."""
    cluster = f"_{cluster_m}x1" if cluster_m > 1 else ""
    return OverlappedKernel(
        name=f"h5_{block_m}x{block_n}{cluster}",
        shares="h5_overlapped_launch",
        in_default_set=(block_m, block_n) == (64, 128),
        largest_timed=1024 if block_m == 64 else 0,
        tile=Tile(
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=64,
            MMA_M=64,
            MMA_N=block_n,
            MMA_K=16,
            NUM_STAGES=stages,
            CLUSTER_M=cluster_m,
            CLUSTER_N=1,
        ),
        at_once=(block_m, block_n) == (64, 128),
        store_bytes=boxes * 64 * SWIZZLE_SPAN,
        swizzle="128 bytes",
        summary=f"h5 with tiles of {block_m} x {block_n}" + (" in clusters that share B" if cluster else ""),
    )


H5 = dataclasses.replace(
    _tile_of_h5(128, 256, 3, 4),
    name="h5_overlapped_launch",
    shares="",
    in_default_set=True,
    summary="blocks set up while the launch before still runs; four store buffers",
)
H5_TILES = (
    _tile_of_h5(128, 256, 4, 2, 2),
    _tile_of_h5(128, 192, 4, 3),
    _tile_of_h5(128, 128, 6, 2),
    _tile_of_h5(64, 256, 4, 4),
    _tile_of_h5(64, 128, 7, 2),
    _tile_of_h5(64, 64, 8, 2),
)


@dataclass(frozen=True, kw_only=True)
class TurnedKernel(WgmmaKernel):
    """C^T = B^T A^T: columns of C on wgmma's M side, rows on its N side; a cluster shares A along n."""

    halves: int = 2
    any_width: bool = False
    has_producer: bool = False
    overlaps: bool = True
    store_rows: int = 32
    """Rows of C in one store box, which is a swizzle span wide."""

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.tile.BLOCK_N // (self.tile.MMA_M * self.halves)

    @property
    def stage_rows(self) -> int:
        """Rows of A and columns of B that a stage holds."""
        return self.tile.BLOCK_M + self.tile.BLOCK_N

    @property
    def b_is_three_dimensional(self) -> bool:
        """Never: 64 columns divide the tile."""
        return False

    def unit(self, layout: str, dtype_out: str) -> Unit:
        buffers = self.store_bytes // (self.store_rows * SWIZZLE_SPAN)
        columns = SWIZZLE_SPAN // ITEMSIZE[dtype_out]
        extra = (f"-DSTORE_COLS={columns}", f"-DSTORE_ROWS={self.store_rows}", f"-DSTORE_BUFFERS={buffers}")
        return self.build("", layout, dtype_out, *extra)

    def maps(self, problem: Problem, pointers: Pointers) -> Iterator[TensorMap]:
        """Tensor maps of A, B and C; extents innermost first, zeros beyond them, nothing stored there."""
        m, n, k, tile = problem.m, problem.n, problem.k, self.tile
        span = SWIZZLE_SPAN // ITEMSIZE[self.dtype_in]
        yield _tensor_map(pointers.a, self.dtype_in, (k, m), (problem.lda,), (span, tile.BLOCK_M // tile.CLUSTER_N))
        if problem.layout[1] == "c":
            yield _tensor_map(pointers.b, self.dtype_in, (k, n), (problem.ldb,), (span, tile.BLOCK_N))
        else:
            yield _tensor_map(pointers.b, self.dtype_in, (n, k), (problem.ldb,), (span, tile.BLOCK_K))
        box = (SWIZZLE_SPAN // ITEMSIZE[problem.dtype_out], self.store_rows)
        yield _tensor_map(pointers.c, problem.dtype_out, (n, m), (problem.ldc,), box)


H6 = TurnedKernel(
    name="h6_turned_tile",
    tile=Tile(
        BLOCK_M=224,
        BLOCK_N=256,
        BLOCK_K=64,
        MMA_M=64,
        MMA_N=224,
        MMA_K=16,
        NUM_STAGES=3,
        CLUSTER_N=2,
    ),
    fallbacks=(H5, H0),
    group_m=8,
    swizzle="128 bytes",
    in_default_set=False,  # h7 is the same with a shorter way to a refill
    summary="C^T = B^T A^T in tiles of 224 x 256, so that either layout of B comes in whole lines",
)


@dataclass(frozen=True, kw_only=True)
class ShortRefillKernel(TurnedKernel):
    """Turned tiles whose loading thread keeps the tile's place in shared memory and brings B in one copy."""

    @property
    def b_is_three_dimensional(self) -> bool:
        """True: one copy brings all spans of row-major B."""
        return True

    @property
    def dynamic_smem(self) -> int:
        """Bytes: as before, and the place of the tile that is loaded."""
        return super().dynamic_smem + 8

    def maps(self, problem: Problem, pointers: Pointers) -> Iterator[TensorMap]:
        """Tensor maps of A, B and C; extents innermost first, zeros beyond them, nothing stored there."""
        a, b, c = super().maps(problem, pointers)
        yield from (a, self.spans_of_b(problem, pointers) if problem.layout[1] == "r" else b, c)


H7 = ShortRefillKernel(
    name="h7_short_refill",
    tile=H6.tile,
    fallbacks=(H6, H5, H0),
    group_m=H6.group_m,
    swizzle=H6.swizzle,
    summary="h6 with less between two products of the thread that also loads",
)


@dataclass(frozen=True, kw_only=True)
class OrderedKernel(ShortRefillKernel):
    """Tiles by a launch's order of clusters, which holds where blocks land on an idle GPU: launches do not overlap."""

    overlaps: bool = False

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        (arguments,) = super().pack(problem, pointers)
        if self.runner(problem) is not self:
            return (arguments,)
        return ((*arguments, Argument(data=bytes(range(SM_COUNT)), order=True)),)


H8 = OrderedKernel(
    name="h8_gpc_order",
    tile=H7.tile,
    fallbacks=(H6, H5, H0),
    group_m=H7.group_m,
    swizzle=H7.swizzle,
    in_default_set=False,  # ahead of h7 from 12288 on only, which a default run does not time
    summary="h7 whose neighbouring tiles run on SMs of one GPC, which spares bytes from DRAM",
)

PASS_THREADS, PASS_ROWS, PASS_STRIP = 256, 8, 64
"""Threads in a block of the pass; rows, and elements of each, that a warp copies at a time."""
PASS_BLOCKS = 2**22
"""Blocks that copy one operand at most; from there on a warp takes several strips."""
COPY_ALIGNMENT = 256
"""Bytes: copies begin at multiples of this in the workspace."""
COPY_LIMIT = 2**40
"""Bytes of the workspace beyond which operands are not copied."""


@dataclass(frozen=True, kw_only=True)
class PackedKernel(OverlappedKernel):
    """h5 on copies: a first launch gives A and B pitches that tensor maps can have, and C is written by element.

    Either is done only where an operand needs it. The workspace is A's copy, then B's. ``tma_packed_ab`` says which
    are copied, ``_c_by_element`` after it, or alone, that C has no tensor map.
    """

    unpacked: OverlappedKernel
    """Runs what tensor maps describe as it is."""

    def lacking(self, problem: Problem) -> str:
        """Operands that no tensor map describes: letters of ``abc``."""
        return "".join(_without_map(problem)).lower()

    def copied_rows(self, problem: Problem) -> dict[str, tuple[int, int]]:
        """Rows and elements in each of every operand that is copied."""
        rows = {"a": problem.m, "b": problem.n if problem.layout[1] == "c" else problem.k}
        width = {"a": problem.a_width, "b": problem.b_width}
        return {name: (rows[name], width[name]) for name in self.lacking(problem) if name in rows}

    @staticmethod
    def copy_pitch(width: int) -> int:
        """Elements from one row of a copy to the next: whole lines where a row has one, else whole 16 bytes."""
        step = PASS_STRIP if width > PASS_STRIP else MAP_ALIGNMENT // 2
        return ceil_div(width, step) * step

    def copy_offsets(self, problem: Problem) -> tuple[dict[str, int], int]:
        """Bytes of the workspace before each copy, and in all."""
        offsets, end = {}, 0
        for name, (rows, width) in self.copied_rows(problem).items():
            offsets[name] = end
            size = ITEMSIZE[self.dtype_in] * rows * self.copy_pitch(width)
            end += ceil_div(size, COPY_ALIGNMENT) * COPY_ALIGNMENT
        return offsets, end

    def beyond_tensor_maps(self, problem: Problem) -> str | None:
        """Why not even copies can be described by tensor maps, or None if they can."""
        _, size = self.copy_offsets(problem)
        if size > COPY_LIMIT:
            return f"copies of A and B would take {size} bytes; {self.name} takes at most {COPY_LIMIT}"
        return None

    def runner(self, problem: Problem) -> TensorKernel:
        return super().runner(problem) if self.lacking(problem) else self.unpacked.runner(problem)

    def why(self, problem: Problem) -> str:
        return super().why(problem) if self.lacking(problem) else "tensor maps describe A, B and C as they are"

    def variant(self, problem: Problem) -> str:
        if self.runner(problem) is not self:
            return super().variant(problem)
        copied, by_element = "".join(self.copied_rows(problem)), "c" in self.lacking(problem)
        return "tma" + (f"_packed_{copied}" if copied else "") + ("_c_by_element" if by_element else "")

    def brings_b_at_once(self, problem: Problem) -> bool:
        """As in h5; a copy has zeros beyond n."""
        copied = self.copied_rows(problem).get("b")
        if not copied or not self.at_once or problem.layout[1] == "c":
            return super().brings_b_at_once(problem)
        return self.copy_pitch(copied[1]) % self.b_columns == 0

    def packing_unit(self) -> Unit:
        """The build that copies."""
        flags = (f"-DPASS_THREADS={PASS_THREADS}", f"-DPASS_ROWS={PASS_ROWS}", f"-DPASS_STRIP={PASS_STRIP}")
        return Unit(name=f"{self.name}.pass", arch=self.arch, source=FOLDER / "h9_packed.cu", flags=flags)

    def unit(self, layout: str, dtype_out: str, at_once: bool = False, by_element: bool = False) -> Unit:
        unit = super().unit(layout, dtype_out, at_once)
        name = unit.name + ("_c_by_element" if by_element else "")
        return dataclasses.replace(unit, name=name, flags=(*unit.flags, f"-DC_BY_ELEMENT={int(by_element)}"))

    def unit_for(self, problem: Problem) -> Unit:
        at_once = self.brings_b_at_once(problem)
        return self.unit(problem.layout, problem.dtype_out, at_once, "c" in self.lacking(problem))

    def units(self) -> tuple[Unit, ...]:
        own = [
            self.unit(layout, out, at_once, by_element)
            for by_element in (False, True)
            for layout in self.layouts
            for at_once in ((True, False) if self.at_once and layout[1] == "r" else (False,))
            for out in OUTPUTS
        ]
        others = (self.unpacked, *self.fallbacks)
        first, *more = (unit for kernel in others for unit in kernel.units())
        return tuple(dict.fromkeys([first, *own, self.packing_unit(), *more]))

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        if self.runner(problem) is not self or not self.copied_rows(problem):
            return super().launches(problem)
        (product,) = super().launches(problem)
        _, workspace = self.copy_offsets(problem)
        packing = Launch(
            unit=self.packing_unit(),
            entry="h9_packed_pass",
            grid=(sum(self.packing_blocks(problem).values()), 1, 1),
            block=(PASS_THREADS, 1, 1),
            multiplies=False,
            overlaps=True,
            workspace=workspace,
        )
        return (packing, product)

    def packing_blocks(self, problem: Problem) -> dict[str, int]:
        """Blocks that copy each operand: a warp for each strip of rows."""
        blocks = {}
        for name, (rows, width) in self.copied_rows(problem).items():
            strips = ceil_div(self.copy_pitch(width), PASS_STRIP)
            at_least, wanted = (ceil_div(32 * n, PASS_THREADS) for n in (strips, strips * ceil_div(rows, PASS_ROWS)))
            blocks[name] = max(at_least, min(wanted, PASS_BLOCKS))
        return blocks

    def on_copies(self, problem: Problem, pointers: Pointers) -> tuple[Problem, Pointers]:
        """The problem, and where its operands are, once the first launch is done."""
        changes: dict[str, int] = {}
        places: dict[str, int] = {}
        offsets, _ = self.copy_offsets(problem)
        for name, (_, width) in self.copied_rows(problem).items():
            changes[f"ld{name}"] = self.copy_pitch(width)
            places[name] = pointers.workspace + offsets[name]
        return problem.replace(**changes), dataclasses.replace(pointers, **places)

    def spans_of_b(self, problem: Problem, pointers: Pointers, share: int = 1) -> TensorMap:
        """As in h5, and of a copy the zeros beyond n too."""
        spans = ceil_div(problem.n, self.b_columns)
        record = super().spans_of_b(problem, pointers, share)
        return dataclasses.replace(record, shape=(*record.shape[:2], spans))

    def maps(self, problem: Problem, pointers: Pointers) -> Iterator[TensorMap]:
        """Tensor maps of A, B and C, of copies where there are any; C's is of no use where it is written by element."""
        copies, places = self.on_copies(problem, pointers)
        a, b, c = WgmmaKernel.maps(self, copies, places)
        yield from (a, self.spans_of_b(copies, places) if self.brings_b_at_once(problem) else b, c)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        packed = super().pack(problem, pointers)
        if self.runner(problem) is not self:
            return packed
        (product,) = packed
        if "c" in self.lacking(problem):
            product = (*product[:2], Argument(data=bytes(128)), *product[3:])
        blocks = self.packing_blocks(problem)
        if not blocks:
            return (product,)
        (copies, places), rows = self.on_copies(problem, pointers), self.copied_rows(problem)
        moved = (
            (pointers.a, places.a, *rows.get("a", (0, 0)), problem.lda, copies.lda),
            (pointers.b, places.b, *rows.get("b", (0, 0)), problem.ldb, copies.ldb),
        )
        copied = tuple(Argument(data=struct.pack("<QQiiqq", *one)) for one in moved)
        return ((*copied, Argument(data=struct.pack("<I", blocks.get("a", 0)))), product)


def _packed(unpacked: OverlappedKernel) -> PackedKernel:
    """h9 in the tile of one of h5's kernels."""
    return PackedKernel(
        name=unpacked.name.replace("h5_overlapped_launch", "h9_packed").replace("h5_", "h9_packed_"),
        unpacked=unpacked,
        shares=unpacked.entry,
        tile=unpacked.tile,
        at_once=unpacked.at_once,
        store_bytes=unpacked.store_bytes,
        swizzle=unpacked.swizzle,
        in_default_set=False,  # h5 itself wherever tensor maps describe all operands
        largest_timed=unpacked.largest_timed,
        summary=f"{unpacked.name} on copies where A or B is unaligned, and C by element where that is",
    )


H9 = _packed(H5)
H9_TILES = tuple(_packed(kernel) for kernel in H5_TILES if kernel.tile.BLOCK_M == 64 and kernel.tile.BLOCK_N <= 128)


SUM_THREADS, MOST_LANES = 128, 4
"""Threads in a block of h10's second launch, and the most of them that share a run of C."""
SLICES = (1, 2)
"""Blocks of a cluster along k that a problem may get. Clusters of 4 and 8 run, but joining them took 7 to 9 us."""
CLUSTERS_AT_ONCE = {1: SM_COUNT, 2: SM_COUNT // 2, 4: 32, 8: 16}
"""Clusters of so many blocks, one an SM, that run at once: they lie within GPCs of 16 or 18 SMs."""
WARM_BYTES = 40 << 20
"""Operands of fewer bytes stay in the 50 MB of an H200's L2."""
ROUNDS = 4
"""A tile is cut into no more shares than give every SM so many."""


@dataclass(frozen=True, kw_only=True)
class SplitKernel(OverlappedKernel):
    """h10 in its tiles: blocks share a tile along k, where C has few. What a cut costs is modelled in nanoseconds,
    fitted to forced cuts on an H200 (batches/2026-11-30-five-2.txt); another device gets the same cut."""

    slices: int = 0
    """Blocks of a cluster that share a tile; 0, beside parts = 0, lets the problem decide."""
    parts: int = 0
    stage_ns: float
    """From one stage to the next where memory does not hold the loop up."""
    cluster_ns: float = 800.0
    """What a cluster adds to a launch, beside :attr:`exchange_ns` for each of its tiles."""
    second_ns: float = 500.0
    """What a second launch, which overlaps with the first, costs beside its bytes."""

    @property
    def exchange_bytes(self) -> int:
        """Bytes of shared memory that take a tile's sums, FP32."""
        return 4 * self.tile.BLOCK_M * self.tile.BLOCK_N

    @property
    def exchange_ns(self) -> float:
        """What a cluster's sum of one tile costs, at 12 bytes a nanosecond."""
        return self.exchange_bytes / 12

    @property
    def dynamic_smem(self) -> int:
        """Bytes: as h5, with memory for sums in place of store buffers, and two barriers for them."""
        return super().dynamic_smem - self.consumers * self.store_bytes + self.exchange_bytes + 2 * 8

    def depth(self, problem: Problem) -> int:
        """Blocks of k."""
        return ceil_div(problem.k, self.tile.BLOCK_K)

    def cut(self, problem: Problem) -> Cut:
        """The cut of a problem that is neither empty nor scale-only: the least of blocks among those within a
        fiftieth of the shortest."""
        if self.slices or self.parts:
            return Cut(self.slices or 1, self.parts or 1)
        return _shortest_cut(self, problem)

    def length(self, problem: Problem, cut: Cut) -> float:
        """Modelled time of a cut, ns: rounds of items, or memory, and what joining them costs."""
        items, at_once = self.tiles(problem) * cut.parts, CLUSTERS_AT_ONCE[cut.slices]
        stages = ceil_div(self.depth(problem), cut.shares) * self.stage_ns
        # Bytes a nanosecond to all SMs and to one: from device memory, or from L2 where the operands fit.
        to_all, to_one = (4000, 84) if problem.bytes_min < WARM_BYTES else (4100, 40)

        def walk(clusters: int) -> float:
            """A round of so many clusters, one item each."""
            arrive = problem.bytes_min * clusters / items
            return max(stages, arrive / min(to_all, to_one * clusters * cut.slices))

        length = items // at_once * walk(at_once)
        if items % at_once:
            length += walk(items % at_once)
        if cut.slices > 1:
            length += self.cluster_ns + ceil_div(items, at_once) * self.exchange_ns
        if cut.parts > 1:
            length += self.second_ns + 2 * self.workspace(problem, cut) / 2100
        return length

    @staticmethod
    def pitch(problem: Problem) -> int:
        """Floats in a row of a part in the workspace."""
        return ceil_div(problem.n, 4) * 4

    def workspace(self, problem: Problem, cut: Cut) -> int:
        """Bytes of all parts of C, FP32."""
        return 4 * cut.parts * problem.m * self.pitch(problem) if cut.parts > 1 else 0

    def boxes(self, problem: Problem) -> tuple[int, int]:
        """Rows of A and columns of B that arrive for a stage: of a matrix of fewer than a tile has, no more than that,
        in whole periods of the swizzle. Zeros beyond it would take as long as data."""
        columns = self.tile.BLOCK_N
        if problem.layout[1] == "c":
            columns = min(columns, ceil_div(problem.n, 8) * 8)
        return min(self.tile.BLOCK_M, ceil_div(problem.m, 8) * 8), columns

    def unit(self, layout: str, dtype_out: str, at_once: bool = False) -> Unit:
        unit = super().unit(layout, dtype_out, at_once)
        return dataclasses.replace(unit, flags=(*unit.flags, f"-DSUM_THREADS={SUM_THREADS}"))

    def rejects(self, problem: Problem) -> str | None:
        reason = super().rejects(problem)
        if reason is None and self.runner(problem) is self:
            cut = self.cut(problem)
            if max(self.tiles(problem) * cut.parts, *(launch.blocks for launch in self.launches(problem))) > MAX_GRID_X:
                return f"{problem.m} x {problem.n} in {cut.parts} parts; a launch has at most {MAX_GRID_X} blocks"
        return reason

    def variant(self, problem: Problem) -> str:
        name = super().variant(problem)
        if self.runner(problem) is not self:
            return name
        cut = self.cut(problem)
        name += f"_cluster{cut.slices}" if cut.slices > 1 else ""
        return name + (f"_parts{cut.parts}" if cut.parts > 1 else "")

    def lanes(self, cut: Cut) -> int:
        """Threads that share a run of C in the second launch."""
        return 1 if cut.parts < 2 * MOST_LANES else MOST_LANES

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        (launch,) = super().launches(problem)
        if self.runner(problem) is not self:
            return (launch,)
        cut = self.cut(problem)
        clusters = min(self.tiles(problem) * cut.parts, CLUSTERS_AT_ONCE[cut.slices])
        workspace = self.workspace(problem, cut)
        product = dataclasses.replace(
            launch,
            grid=(clusters * cut.slices, 1, 1),
            cluster=(cut.slices, 1, 1),
            workspace=workspace,
        )
        if cut.parts == 1:
            return (product,)
        runs = problem.m * self.pitch(problem) // 4
        adding = Launch(
            unit=launch.unit,
            entry=f"{self.entry}_sum",
            grid=(ceil_div(runs * self.lanes(cut), SUM_THREADS), 1, 1),
            block=(SUM_THREADS, 1, 1),
            overlaps=True,
            workspace=workspace,
            multiplies=False,
        )
        return (product, adding)

    def maps(self, problem: Problem, pointers: Pointers) -> Iterator[TensorMap]:
        """Tensor maps of A, B and C; extents innermost first, zeros beyond them, nothing stored there."""
        a, b, c = super().maps(problem, pointers)
        rows, columns = self.boxes(problem)
        yield dataclasses.replace(a, box=(a.box[0], rows))
        yield dataclasses.replace(b, box=(b.box[0], columns)) if problem.layout[1] == "c" else b
        yield c

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        (values,) = super().pack(problem, pointers)
        if self.runner(problem) is not self:
            return (values,)
        cut = self.cut(problem)
        slices, parts, pitch, lanes = (
            Argument(data=struct.pack("<i", value)) for value in (*cut, self.pitch(problem), self.lanes(cut))
        )
        workspace = Argument(data=struct.pack("<Q", pointers.workspace))
        product = (*values, slices, parts, pitch, workspace)
        if cut.parts == 1:
            return (product,)
        _, _, _, c, m, n, _, ldc, alpha, beta = values
        return (product, (c, m, n, ldc, alpha, beta, parts, pitch, lanes, workspace))


@functools.lru_cache(maxsize=4096)
def _shortest_cut(kernel: SplitKernel, problem: Problem) -> Cut:
    """See :meth:`SplitKernel.cut`: some hundred cuts are compared, and a plan asks a dozen times."""
    tiles, depth = kernel.tiles(problem), kernel.depth(problem)
    cuts = [
        Cut(slices, parts)
        for slices in SLICES
        for parts in range(1, max(ROUNDS * SM_COUNT // (tiles * slices), 1) + 1)
        if slices * parts <= depth
    ]
    lengths = {cut: kernel.length(problem, cut) for cut in cuts}
    shortest = min(lengths.values())
    return min((cut for cut, ns in lengths.items() if 50 * ns <= 51 * shortest), key=lambda cut: cut.shares)


def _tile_of_h10(block_m: int, block_n: int, stages: int, stage_ns: float) -> SplitKernel:
    """h10 with another tile."""
    return SplitKernel(
        name=f"h10_{block_m}x{block_n}",
        shares="h10_split_k",
        in_default_set=False,  # the cubes of a default run have tiles enough, and h5 does not cut them
        largest_timed=1024,
        tile=Tile(
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=64,
            MMA_M=64,
            MMA_N=block_n,
            MMA_K=16,
            NUM_STAGES=stages,
        ),
        at_once=block_n == 128,
        stage_ns=stage_ns,
        swizzle="128 bytes",
        summary=f"h10 with tiles of {block_m} x {block_n}",
    )


H10 = dataclasses.replace(
    _tile_of_h10(64, 128, 7, 290.0),
    name="h10_split_k",
    shares="",
    summary="split-K: clusters along k add through shared memory, a second launch adds what is left",
)
H10_TILES = (
    _tile_of_h10(64, 64, 12, 190.0),
    _tile_of_h10(128, 128, 5, 280.0),
    _tile_of_h10(64, 256, 4, 450.0),
)


KERNELS: tuple[TensorKernel, ...] = (H0, H1, H2, H3, H4, H5, *H5_TILES, H6, H7, H8, H9, *H9_TILES, H10, *H10_TILES)
