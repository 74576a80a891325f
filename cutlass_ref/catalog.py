"""Every CUTLASS kernel of the project, and how its names, flags and rules follow from its recipe."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutlass_ref import packers
from cutlass_ref.emit import HEADERS, emit, include_folders
from cutlass_ref.packers import Group, Packed
from cutlass_ref.recipe import SWIZZLES, Recipe, Shape3
from kernel.contract import (
    INT32_MAX,
    ITEMSIZE,
    LAYOUTS,
    MAX_GRID_YZ,
    Argument,
    Kernel,
    Launch,
    Pointers,
    Problem,
    Unit,
    ceil_div,
)
from kernel.errors import CatalogError

ARCH = "sm_90a"
OUR_FLAGS = ("-DNDEBUG", "--expt-relaxed-constexpr")
"""Without NDEBUG the asserts of the sm90 main loops stay in, and ptxas serializes wgmma around them (C7510)."""
PACKAGE_FLAGS = ("--expt-relaxed-constexpr", "-Xcudafe", "--diag_suppress=esa_on_defaulted_function_ignored")
"""What nvidia-cutlass passes to nvcc when it compiles a plan itself."""
ASSUMED_MULTIPROCESSORS = 132
"""SMs of an H100 SXM or H200: what persistent grids are laid out for where no GPU can be asked."""
MAX_EXTENT = 2**31 - 512
"""The templates round extents up to the tile in 32-bit integers."""
MAX_K_SM80 = 2**30
"""The largest k for which the host code of the sm80 generation (SIMT kernels are of it) lays out a grid: beyond it,
its round-up wraps and the grid's z extent becomes -1."""
TILE_GROUP = 16
"""Tiles that a persistent grid is rounded up to along m and n: at most two of a cluster times eight of a swizzle."""
CLEAR_SOURCE = Path(__file__).with_name("clear_flags.cu")
CLEAR_ENTRY = "cutlass_clear_flags"
CLEAR_THREADS = 128
RASTERS = {"heuristic": 0, "along_m": 1, "along_n": 2}


@dataclass(frozen=True, kw_only=True)
class CutlassKernel(Kernel):
    """A kernel emitted by nvidia-cutlass, with the run-time options its host code takes."""

    recipe: Recipe
    group: str
    """Which packer library holds its host code."""
    base: str
    """The entry whose source and packer it shares; its own name for most."""
    package_flags: bool = False
    """Compiled as the package itself would compile it."""
    raster: str = "heuristic"
    """Order of tiles of an sm90 kernel: heuristic, along_m or along_n."""
    max_swizzle: int = 1
    """Largest swizzle of that order; 1 is what the package's plans pass."""
    spills: bool = False
    """Whether its code is known to spill registers; only a kernel that the package picks itself may."""
    split_k: int = 1
    """Slices along k of an sm80 kernel; they add up in turn, guarded by semaphores in the workspace."""

    def units(self) -> tuple[Unit, ...]:
        """The kernel's unit, which sweeps share with their base entry, and stream-K's clearing of flags."""
        if self.recipe.arch == 90 and self.arch != ARCH:
            raise CatalogError(
                f"{self.name} for {self.arch}: wgmma and TMA exist for {ARCH} only; for another architecture the "
                "template compiles into a kernel that prints a message and writes nothing"
            )
        name = f"{self.base}_pkgflags" if self.package_flags else self.base
        own = Unit(
            name=name,
            arch=self.arch,
            source=functools.partial(_source, self.recipe),
            flags=PACKAGE_FLAGS if self.package_flags else OUR_FLAGS,
            include_dirs=include_folders,
            headers=HEADERS,
            catalog=self.recipe.text(),
            # The package's flags and defaults are measured as they are, spills included.
            allow_spills=self.package_flags or self.spills,
        )
        return (own, clear_unit(self.arch)) if self.recipe.is_stream_k else (own,)

    def rejects(self, problem: Problem) -> str | None:
        """Alignment (Tensor Core kernels) and extents that the templates' 32-bit rounding cannot take."""
        wrong = self.rejects_type_or_layout(problem)
        if wrong is not None:
            return wrong
        for name in ("m", "n", "k"):
            extent = getattr(problem, name)
            if extent > MAX_EXTENT:
                return f"{name} = {extent}; CUTLASS rounds extents up in 32 bits, at most {MAX_EXTENT} is possible"
        if self.recipe.arch == 80 and problem.k > MAX_K_SM80:
            return f"k = {problem.k}; CUTLASS 2 counts slices of k in 32 bits, at most {MAX_K_SM80} is possible"
        if self.recipe.arch == 90 or self.recipe.is_stream_k:
            down, across = (
                ceil_div(ceil_div(extent, block), TILE_GROUP) * TILE_GROUP
                for extent, block in zip((problem.m, problem.n), self.recipe.block, strict=False)
            )
            if down * across > INT32_MAX:
                return (
                    f"m = {problem.m}, n = {problem.n} take {down * across} tiles; "
                    f"CUTLASS counts them in 32 bits, at most {INT32_MAX} are possible"
                )
        if self.recipe.opclass == "simt":
            return None
        operands = (
            ("A", problem.align_a, "lda", problem.lda, problem.a_width, self.recipe.alignment, self.dtype_in),
            ("B", problem.align_b, "ldb", problem.ldb, problem.b_width, self.recipe.alignment, self.dtype_in),
            ("C", problem.align_c, "ldc", problem.ldc, problem.n, self.recipe.alignment_c, self.dtype_out),
        )
        contiguous = {"A": "k" if problem.layout[0] == "r" else "m", "B": "n" if problem.layout[1] == "r" else "k"}
        for operand, base, pitch_name, pitch, width, elements, dtype in operands:
            size = elements * ITEMSIZE[dtype]
            rule = f"its {size}-byte accesses need a multiple of {elements}"
            if pitch % elements:
                return f"{operand}: {pitch_name} = {pitch} elements of {dtype}; {rule}"
            # TMA clips each element at the edge; the vector loads of sm80 kernels are guarded as a whole.
            if self.recipe.arch == 80 and width % elements:
                axis = contiguous.get(operand, "n")
                return f"{operand}: its contiguous extent {axis} = {width} elements of {dtype}; {rule}"
            if base % size:
                return f"{operand}: its base address is a multiple of {base} bytes; {size} are needed"
        return None

    def variant(self, problem: Problem) -> str:
        """Empty, or ``columns_by_<count>`` where one grid cannot hold C's columns."""
        parts = len(self._parts(problem))
        return f"columns_by_{parts}" if parts > 1 else ""

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        """One launch, or several over ranges of columns where the grid's y extent would pass its limit."""
        unit, entry = self.units()[0], self.entry()
        launches = []
        for start, count in self._parts(problem):
            packed = self._packed(problem, Pointers(a=0, b=0, c=0), start, count)
            leading = packed.clear_offset == 0
            if packed.clear_bytes and not leading:
                launches.append(
                    Launch(
                        unit=clear_unit(self.arch),
                        entry=CLEAR_ENTRY,
                        grid=(ceil_div(packed.clear_bytes // 4, CLEAR_THREADS), 1, 1),
                        block=(CLEAR_THREADS, 1, 1),
                        multiplies=False,
                        workspace=packed.workspace,
                    )
                )
            launches.append(
                Launch(
                    unit=unit,
                    entry=entry,
                    grid=packed.grid,
                    block=packed.block,
                    dynamic_smem=packed.dynamic_smem,
                    cluster=packed.cluster,
                    workspace=packed.workspace,
                    workspace_zeroed=packed.clear_bytes if leading else 0,
                )
            )
        return tuple(launches)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        """The Params struct of each launch, with the tensor maps it holds."""
        values: list[tuple[Argument, ...]] = []
        for start, count in self._parts(problem):
            packed = self._packed(problem, pointers, start, count)
            if packed.clear_bytes and packed.clear_offset:
                address = struct.pack("<Q", pointers.workspace + packed.clear_offset)
                values.append((Argument(data=address), Argument(data=struct.pack("<q", packed.clear_bytes // 4))))
            values.append((Argument(data=packed.params, tensor_maps=packed.tensor_maps),))
        return tuple(values)

    def entry(self) -> str:
        """The entry symbol, which the package chooses: it leaves out swizzle, schedule and block tile."""
        return packers.entry(self.packer_group(), self.base)

    def traits(self) -> packers.Traits:
        """What the emitted C++ types say about tile, stages and schedule."""
        return packers.traits(self.packer_group(), self.base)

    def packer_group(self) -> Group:
        """The packer library that holds the kernel; one of its own for a tile that is not in the catalog."""
        known = group(self.group)
        if known.members:
            return known
        return Group(name=self.base, members=((self.base, self.recipe),))

    def _parts(self, problem: Problem) -> tuple[tuple[int, int], ...]:
        """(first column, columns) of each launch."""
        block_n = self.recipe.block[1]
        if self.recipe.arch == 90 or ceil_div(problem.n, block_n) <= MAX_GRID_YZ:
            return ((0, problem.n),)
        most = MAX_GRID_YZ * block_n
        return tuple((start, min(most, problem.n - start)) for start in range(0, problem.n, most))

    def _packed(self, problem: Problem, pointers: Pointers, start: int, count: int) -> Packed:
        step = ITEMSIZE[problem.dtype_in] * (1 if problem.layout[1] == "r" else problem.ldb)
        return packers.pack(
            self.packer_group(),
            self.base,
            extents=(problem.m, count, problem.k),
            pitches=(problem.lda, problem.ldb, problem.ldc),
            addresses=(
                pointers.a,
                pointers.b + start * step,
                pointers.c + start * ITEMSIZE[problem.dtype_out],
            ),
            workspace=pointers.workspace,
            alpha=problem.alpha,
            beta=problem.beta,
            multiprocessors=multiprocessors(),
            split_k=self.split_k,
            raster=RASTERS[self.raster],
            max_swizzle=self.max_swizzle,
        )


def clear_unit(arch: str) -> Unit:
    """The unit that clears stream-K's flags."""
    return Unit(name=f"{CLEAR_ENTRY}.{arch}", arch=arch, source=CLEAR_SOURCE, flags=(f"-DTHREADS={CLEAR_THREADS}",))


def _source(recipe: Recipe) -> str:
    return emit(recipe).source


def multiprocessors() -> int:
    """SMs of the current device if CuPy is in use and sees one, else those of an H200."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return ASSUMED_MULTIPROCESSORS
    try:
        return int(cupy.cuda.Device().attributes["MultiProcessorCount"])
    except cupy.cuda.runtime.CUDARuntimeError:
        return ASSUMED_MULTIPROCESSORS


SIMT_TILES: tuple[tuple[int, int, Shape3, int], ...] = (
    (256, 128, (4, 2, 1), 5),
    (128, 256, (2, 4, 1), 5),
    (256, 128, (4, 2, 1), 4),
    (128, 256, (2, 4, 1), 4),
    (128, 128, (4, 2, 1), 5),
    (128, 128, (4, 2, 1), 4),
    (128, 64, (2, 2, 1), 5),
    (64, 128, (2, 2, 1), 5),
    (64, 64, (2, 1, 1), 5),
    (128, 32, (2, 1, 1), 5),
    (32, 128, (1, 2, 1), 5),
)
"""Every FP32 SIMT tile that the package lists: block m, block n (block k is 8), warps, stages."""

SLOW_TILES = ((128, 64), (64, 64), (128, 32))
"""Tiles (block m, block n) below 0.82 of cuBLAS at 8192; default runs leave them out above 4096."""

SIMT_DEFAULT = (256, 128, 5)
"""The tile (block m, block n, stages) of the plan that the package picks for SIMT, in every run."""

SWIZZLED_TILES = SIMT_TILES[:5]
"""Tiles large enough for the order of blocks to matter: few of them, each with much to share in L2."""


def _simt_recipe(m: int, n: int, warps: Shape3, stages: int, swizzle: int, layout: str) -> Recipe:
    return Recipe(opclass="simt", arch=80, block=(m, n, 8), warps=warps, stages=stages, swizzle=swizzle, layout=layout)


def _simt_entry(recipe: Recipe, *, suffix: str = "", **fields: Any) -> CutlassKernel:
    m, n, k = recipe.block
    listed = k == 8 and (m, n, recipe.warps, recipe.stages) in SIMT_TILES
    further = "" if listed else f"_k{k}_w{recipe.warps[0]}x{recipe.warps[1]}"
    base = f"cutlass_simt_{m}x{n}x{recipe.stages}{further}_s{recipe.swizzle}_{recipe.layout}"
    in_default_set = listed and not suffix and recipe.swizzle == 1 and recipe.layout == "rr"
    values: dict[str, Any] = {
        "summary": f"CUTLASS 2 SIMT, {m}x{n}x{k} blocks, {recipe.stages} stages of cp.async, swizzle {recipe.swizzle}",
        "group": f"simt_{recipe.layout}" if recipe.swizzle == 1 else "simt_swizzled",
        "is_default": listed and not suffix and recipe.swizzle == 1 and (m, n, recipe.stages) == SIMT_DEFAULT,
        "in_default_set": in_default_set,
        "largest_timed": 4096 if (m, n) in SLOW_TILES else 0,
    }
    return CutlassKernel(
        name=base + suffix,
        base=base,
        recipe=recipe,
        family="cutlass",
        track="fp32_simt",
        instruction="ffma",
        arch=ARCH,
        tile=recipe.tile(),
        layouts=(recipe.layout,),
        swizzle=f"threadblock {recipe.swizzle}",
        **{**values, **fields},
    )


def _simt() -> tuple[CutlassKernel, ...]:
    entries = [_simt_entry(_simt_recipe(*tile, 1, layout)) for layout in LAYOUTS for tile in SIMT_TILES]
    entries += [_simt_entry(_simt_recipe(*tile, swizzle, "rr")) for swizzle in SWIZZLES[1:] for tile in SWIZZLED_TILES]
    for tile in SIMT_TILES[:2]:
        recipe = _simt_recipe(*tile, 1, "rr")
        summary = f"{tile[0]}x{tile[1]}x8, {tile[3]} stages, compiled with the package's own flags (no NDEBUG)"
        entries.append(_simt_entry(recipe, suffix="_pkgflags", package_flags=True, summary=summary))
    for tile in SIMT_TILES[2:4]:
        recipe = _simt_recipe(*tile, 1, "rr")
        summary = f"{tile[0]}x{tile[1]}x8, {tile[3]} stages, two slices along k added up through semaphores"
        entries.append(_simt_entry(recipe, suffix="_splitk2", split_k=2, summary=summary))
    return tuple(entries)


def _track(recipe: Recipe) -> tuple[str, str]:
    """(word of the name, track) of a Tensor Core recipe."""
    if recipe.dtype_in == "float16":
        return "fp16", "fp16_tensor"
    return ("tf32x3" if recipe.three_pass else "tf32"), "tf32_tensor"


def _tensor_entry(recipe: Recipe, *, default: bool = False, suffix: str = "", **fields: Any) -> CutlassKernel:
    word, track = _track(recipe)
    m, n, k = recipe.block
    if recipe.arch == 90:
        place = f"{recipe.cluster[0]}x{recipe.cluster[1]}_{recipe.schedule}_{recipe.scheduler}"
        told = f"cluster {recipe.cluster[0]}x{recipe.cluster[1]}, {recipe.schedule}, {recipe.scheduler} blocks"
    else:
        order = f"s{recipe.swizzle}" if recipe.swizzle else "streamk"
        place = f"{recipe.stages}stages_multistage_{order}"
        told = f"{recipe.stages} stages of cp.async, " + (f"swizzle {recipe.swizzle}" if recipe.swizzle else "stream-K")
    base = f"cutlass_{word}_sm{recipe.arch}_{m}x{n}x{k}_{place}_{recipe.layout}" + ("_default" if default else "")
    generation = "3, wgmma and TMA" if recipe.arch == 90 else "2, mma.sync"
    passes = ", three TF32 products per element" if recipe.three_pass else ""
    values: dict[str, Any] = {
        "summary": f"CUTLASS {generation}, {m}x{n}x{k} blocks, {told}{passes}",
        "group": f"{word}_sm{recipe.arch}",
        "is_default": default and not suffix,
        "in_default_set": False,
    }
    return CutlassKernel(
        name=base + suffix,
        base=base,
        recipe=recipe,
        family="cutlass",
        track=track,
        instruction="wgmma" if recipe.arch == 90 else "mma_sync",
        arch=ARCH,
        tile=recipe.tile(),
        layouts=(recipe.layout,),
        dtype_in=recipe.dtype_in,
        dtype_out=recipe.dtype_out,
        swizzle=f"threadblock {recipe.swizzle}" if recipe.arch == 80 and recipe.swizzle else "",
        **{**values, **fields},
    )


def _sm90(
    dtype: str,
    block: Shape3,
    cluster: tuple[int, int],
    schedule: str,
    scheduler: str = "persistent",
    layout: str = "rr",
) -> Recipe:
    elements = 16 // ITEMSIZE[dtype]
    return Recipe(
        opclass="tensorop",
        arch=90,
        block=block,
        cluster=cluster,
        schedule=schedule,
        scheduler=scheduler,
        layout=layout,
        dtype_in=dtype,
        dtype_out=dtype,
        alignment=elements,
        alignment_c=elements,
    )


def _sm80(
    dtype: str,
    block: Shape3,
    warps: Shape3,
    stages: int,
    swizzle: int = 1,
    layout: str = "rr",
    three_pass: bool = False,
) -> Recipe:
    elements = 16 // ITEMSIZE[dtype]
    return Recipe(
        opclass="tensorop",
        arch=80,
        block=block,
        warps=warps,
        stages=stages,
        swizzle=swizzle,
        layout=layout,
        dtype_in=dtype,
        dtype_out=dtype,
        three_pass=three_pass,
        alignment=elements,
        alignment_c=elements,
    )


FP16_DEFAULTS = (
    _sm90("float16", (128, 256, 64), (2, 1), "auto"),
    _sm90("float16", (256, 128, 64), (1, 2), "auto"),
)
"""The two kernels that the package picks for row-major FP16; which one changes from run to run."""

FP16_TIMED = (
    _sm90("float16", (128, 256, 64), (2, 1), "cooperative"),
    _sm90("float16", (128, 128, 64), (2, 1), "pingpong"),
    _sm80("float16", (128, 256, 64), (2, 4, 1), 3),
)
"""FP16 kernels of the default set beside the defaults: the main loop and the tile each vary once."""

FP16_BEST_ORDER = ("along_n", 8)
"""Raster and largest swizzle that the first of them is timed with by default too; the fastest of the sweep at 8192."""

FP16_FURTHER = (
    _sm90("float16", (256, 128, 64), (1, 2), "cooperative"),
    _sm90("float16", (128, 256, 64), (2, 1), "cooperative", "streamk"),
    _sm90("float16", (128, 256, 64), (2, 1), "cooperativenosmem"),
    _sm80("float16", (256, 128, 64), (4, 2, 1), 3),
    _sm90("float16", (128, 256, 64), (1, 1), "cooperative"),
    _sm90("float16", (128, 256, 64), (1, 2), "cooperative"),
    _sm90("float16", (256, 128, 64), (1, 1), "cooperative"),
    _sm90("float16", (256, 128, 64), (2, 1), "cooperative"),
    _sm90("float16", (256, 128, 64), (2, 1), "cooperative", "streamk"),
    _sm90("float16", (128, 128, 64), (1, 1), "cooperative"),
    _sm90("float16", (128, 128, 64), (2, 1), "cooperative"),
    _sm90("float16", (128, 128, 64), (2, 1), "cooperative", "streamk"),
    _sm90("float16", (128, 128, 64), (1, 1), "pingpong"),
    _sm90("float16", (128, 128, 64), (1, 2), "pingpong"),
    _sm90("float16", (64, 256, 64), (1, 1), "pingpong"),
    _sm90("float16", (64, 256, 64), (2, 1), "pingpong"),
    _sm90("float16", (64, 128, 64), (2, 1), "pingpong"),
    _sm90("float16", (64, 128, 64), (1, 2), "pingpong"),
    _sm80("float16", (256, 128, 32), (4, 2, 1), 3),
    _sm80("float16", (128, 256, 32), (2, 4, 1), 3),
    _sm80("float16", (128, 128, 64), (2, 2, 1), 4),
    _sm80("float16", (128, 128, 32), (2, 2, 1), 5),
    _sm80("float16", (64, 64, 64), (2, 2, 1), 5),
    _sm80("float16", (256, 128, 64), (4, 2, 1), 3, swizzle=8),
    _sm80("float16", (128, 256, 64), (2, 4, 1), 3, swizzle=8),
    _sm80("float16", (256, 128, 64), (4, 2, 1), 3, swizzle=0),
    *(
        recipe
        for layout in ("rc", "cr", "cc")
        for recipe in (
            _sm90("float16", (128, 256, 64), (2, 1), "cooperative", layout=layout),
            _sm90("float16", (256, 128, 64), (1, 2), "cooperative", layout=layout),
            _sm90("float16", (128, 128, 64), (2, 1), "pingpong", layout=layout),
            _sm80("float16", (256, 128, 64), (4, 2, 1), 3, layout=layout),
        )
    ),
)
"""FP16 kernels that run when they are asked for by name."""

SWEPT = (*FP16_DEFAULTS, FP16_TIMED[0], FP16_FURTHER[0])
"""sm90 kernels whose tile order (raster, max_swizzle) is swept; the code is the same, only arguments differ."""

TF32_DEFAULTS = (
    _sm90("float32", (128, 256, 32), (2, 1), "autotransposed"),
    _sm90("float32", (256, 128, 32), (1, 2), "autotransposed"),
)
"""What the package picks for float32 where the opcode class is left open, again one of two."""

TF32_FURTHER = (
    _sm90("float32", (128, 256, 32), (2, 1), "cooperativetransposed"),
    _sm90("float32", (128, 128, 32), (2, 1), "pingpongtransposed"),
    _sm90("float32", (128, 256, 32), (2, 1), "cooperative", layout="rc"),
    _sm90("float32", (128, 128, 32), (2, 1), "pingpong", layout="rc"),
    _sm80("float32", (256, 128, 32), (4, 2, 1), 3),
    _sm80("float32", (128, 256, 32), (2, 4, 1), 3),
    _sm80("float32", (128, 128, 32), (2, 2, 1), 4),
    _sm80("float32", (256, 128, 32), (4, 2, 1), 3, layout="rc"),
)

TF32X3 = (
    _sm80("float32", (128, 128, 32), (4, 2, 1), 3, three_pass=True),
    _sm80("float32", (128, 128, 16), (4, 2, 1), 4, three_pass=True),
    _sm80("float32", (256, 64, 32), (4, 2, 1), 3, three_pass=True),
    _sm80("float32", (64, 256, 32), (2, 4, 1), 3, three_pass=True),
    _sm80("float32", (128, 64, 32), (2, 2, 1), 3, three_pass=True),
    _sm80("float32", (128, 128, 32), (4, 2, 1), 3, layout="rc", three_pass=True),
)
"""Three-pass TF32; the first is what the package picks for fast_f32."""


def _tensor() -> tuple[CutlassKernel, ...]:
    entries = [_tensor_entry(recipe, default=True, in_default_set=True) for recipe in FP16_DEFAULTS]
    entries += [_tensor_entry(recipe, in_default_set=True) for recipe in FP16_TIMED]
    entries += [_tensor_entry(recipe) for recipe in FP16_FURTHER]
    entries += [
        _tensor_entry(
            recipe,
            default=True,
            in_default_set=recipe is TF32_DEFAULTS[0],
            # 200 bytes by nvcc 13.0: TF32 wgmma reads shared memory along k only and B lies along n, so an operand
            # goes through registers.
            spills=recipe is TF32_DEFAULTS[1],
        )
        for recipe in TF32_DEFAULTS
    ]
    entries += [_tensor_entry(recipe) for recipe in TF32_FURTHER]
    entries += [_tensor_entry(recipe, in_default_set=recipe is TF32X3[0], largest_timed=4096) for recipe in TF32X3]
    for recipe in (*FP16_DEFAULTS, FP16_TIMED[0]):
        entries.append(
            _tensor_entry(
                recipe,
                default=recipe in FP16_DEFAULTS,
                suffix="_pkgflags",
                package_flags=True,
                summary="the same kernel compiled with the package's own flags (no NDEBUG)",
            )
        )
    for recipe in SWEPT:
        for raster, letter in (("along_m", "m"), ("along_n", "n")):
            for swizzle in SWIZZLES:
                entries.append(
                    _tensor_entry(
                        recipe,
                        default=recipe in FP16_DEFAULTS,
                        in_default_set=recipe is FP16_TIMED[0] and (raster, swizzle) == FP16_BEST_ORDER,
                        suffix=f"_raster{letter}{swizzle}",
                        raster=raster,
                        max_swizzle=swizzle,
                        summary=f"the same code, tiles in order {raster} with swizzle up to {swizzle}",
                    )
                )
    return tuple(entries)


def _grouped(entries: tuple[CutlassKernel, ...]) -> tuple[CutlassKernel, ...]:
    """Entries whose base is timed by default share one packer library, so that one file travels for them."""
    default = {entry.base for entry in entries if entry.in_default_set}
    return tuple(dataclasses.replace(entry, group="default") if entry.base in default else entry for entry in entries)


KERNELS: tuple[CutlassKernel, ...] = _grouped((*_simt(), *_tensor()))
"""Every entry, SIMT first, then FP16, TF32 and the variants of flags and tile order."""


@functools.cache
def _by_name() -> dict[str, CutlassKernel]:
    return {kernel.name: kernel for kernel in KERNELS}


def get(name: str) -> CutlassKernel:
    """The entry of that name; ``<name>_default`` also finds the SIMT entry that is the package's default.

    Raises:
        CatalogError: no such entry; names the nearest.
    """
    known = _by_name()
    plain = known.get(name) or known.get(name.removesuffix("_default"))
    if plain is not None and (plain.name == name or plain.is_default):
        return plain
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    raise CatalogError(f"no CUTLASS kernel is called {name!r}; the nearest name is {nearest}")


def entry_for(recipe: Recipe) -> CutlassKernel:
    """The catalog entry of a recipe, or an entry like those of the catalog for a tile that is not in it."""
    for kernel in KERNELS:
        if kernel.recipe == recipe and kernel.name == kernel.base:
            return kernel
    made = _simt_entry(recipe) if recipe.opclass == "simt" else _tensor_entry(recipe)
    base = made.base
    if base in _by_name():
        base += f"_w{recipe.warps[0]}x{recipe.warps[1]}"
    return dataclasses.replace(made, name=base, base=base, group=f"custom_{base}", in_default_set=False)


@functools.cache
def recipes() -> tuple[Recipe, ...]:
    """Every distinct recipe of the catalog, in its order."""
    return tuple(dict.fromkeys(kernel.recipe for kernel in KERNELS))


@functools.cache
def group(name: str) -> Group:
    """The packer library of that name with its members, in catalog order."""
    members = {kernel.base: kernel.recipe for kernel in KERNELS if kernel.group == name}
    return Group(name=name, members=tuple(members.items()))


def bundle_files(kernels: Iterable[CutlassKernel]) -> dict[str, Path]:
    """The packer libraries that ``kernels`` need where nothing can be built, for ``write_bundle``'s ``files``."""
    groups = dict.fromkeys(kernel.group for kernel in kernels)
    return {group(name).file_name: packers.library_path(group(name)) for name in groups}
