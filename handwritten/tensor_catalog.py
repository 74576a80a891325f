"""The hand-written FP16 Tensor Core kernels: FP16 in, FP32 accumulate, FP16 or FP32 out.

One catalog entry is one row; the output type, the layout of B and the width of accesses choose among its builds.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
        """As for every kernel, but either output type will do."""
        if problem.dtype_out in OUTPUTS:
            return super().rejects_type_or_layout(problem.replace(dtype_out=self.dtype_out))
        return f"output is {problem.dtype_out}; {self.name} writes {' or '.join(OUTPUTS)}"

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
        """Widest access that both operands' bases and pitches allow."""
        size = ITEMSIZE[self.dtype_in]
        for vector in self.vectors:
            step = vector * size
            pitches = (problem.lda * size, problem.ldb * size)
            if all(value % step == 0 for value in (*pitches, problem.align_a, problem.align_b)):
                return vector
        return self.vectors[-1]

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
        size_in, size_out = ITEMSIZE[self.dtype_in], ITEMSIZE[problem.dtype_out]
        for name, align, pitch in (
            ("A", problem.align_a, problem.lda * size_in),
            ("B", problem.align_b, problem.ldb * size_in),
            ("C", problem.align_c, problem.ldc * size_out),
        ):
            if align % MAP_ALIGNMENT:
                return f"{name}'s base is a multiple of {align} bytes only; a tensor map needs {MAP_ALIGNMENT}"
            if pitch % MAP_ALIGNMENT:
                return f"{name}'s pitch is {pitch} bytes; a tensor map needs a multiple of {MAP_ALIGNMENT}"
            if pitch >= PITCH_LIMIT:
                return f"{name}'s pitch is {pitch} bytes; a tensor map needs less than {PITCH_LIMIT}"
        if not self.any_width and problem.n * size_out % MAP_ALIGNMENT:
            return f"a row of C is {problem.n * size_out} bytes; {self.name} writes multiples of {MAP_ALIGNMENT}"
        if problem.layout[1] == "r" and self.b_is_three_dimensional and problem.n % self.b_columns:
            return f"n = {problem.n}; {self.name} copies row-major B in whole spans of {self.b_columns} columns"
        return None

    def runner(self, problem: Problem) -> TensorKernel:
        """The kernel that runs the problem: this one, or the first fallback that can."""
        for kernel in (self, *self.fallbacks):
            if not (isinstance(kernel, WgmmaKernel) and kernel.beyond_tensor_maps(problem)):
                return kernel
        return self.fallbacks[-1]

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
    summary="h7 whose neighbouring tiles run on SMs of one GPC, which share address translation",
)


@dataclass(frozen=True, kw_only=True)
class InStepKernel(OrderedKernel):
    """Blocks that begin their tiles together, by a count in the workspace. It leaves FP32 output to another."""

    patience: int = 64
    """Looks at the count, of about a microsecond each, after which a block goes on alone."""

    def beyond_tensor_maps(self, problem: Problem) -> str | None:
        """Why another runs the problem, or None: what tensor maps cannot describe, and FP32 output."""
        if problem.dtype_out != self.dtype_out:
            return f"output is {problem.dtype_out}, whose stores leave {self.name} no register to wait with"
        return super().beyond_tensor_maps(problem)

    def unit(self, layout: str, dtype_out: str) -> Unit:
        unit = super().unit(layout, dtype_out)
        return dataclasses.replace(unit, flags=(*unit.flags, f"-DPATIENCE={self.patience}"))

    def units(self) -> tuple[Unit, ...]:
        unused = [self.unit(layout, out) for layout in self.layouts for out in OUTPUTS if out != self.dtype_out]
        return tuple(unit for unit in super().units() if unit not in unused)

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        launches = super().launches(problem)
        if self.runner(problem) is not self:
            return launches
        return tuple(dataclasses.replace(launch, workspace=4, workspace_zeroed=4) for launch in launches)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        (arguments,) = super().pack(problem, pointers)
        if self.runner(problem) is not self:
            return (arguments,)
        return ((*arguments, Argument(data=struct.pack("<Q", pointers.workspace))),)


H11 = InStepKernel(
    name="h11_in_step",
    tile=H7.tile,
    fallbacks=(H8, H6, H5, H0),
    group_m=H7.group_m,
    swizzle=H7.swizzle,
    in_default_set=False,  # for sizes that a default run does not time
    summary="h8 whose blocks begin their tiles together, so that they find each other's operands in L2",
)

KERNELS: tuple[TensorKernel, ...] = (H0, H1, H2, H3, H4, H5, *H5_TILES, H6, H7, H8, H11)
