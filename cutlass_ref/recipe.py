"""What is asked of nvidia-cutlass: the description of one kernel, and the rules it must keep.

A recipe is data. The emitter turns it into C++; everything a catalog entry says about its tile is
computed here from the same numbers, and a test holds it against the emitted C++ types.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernel.contract import ITEMSIZE, LAYOUTS, Tile
from kernel.errors import CatalogError

WARP = 32
SIMT_LANES = (4, 8)
"""How the lanes of a warp lie on its tile, along m and n, in the package's cp.async SIMT main loop."""
MAX_THREADS = 1024
MAX_SMEM = 232_448
"""Bytes of shared memory that one block of a Hopper GPU can have, 227 KiB."""
MAX_ACCUMULATORS = 224
"""Registers of 255 that accumulators may take; operands and addresses need the rest."""
SWIZZLES = (1, 2, 4, 8)

SCHEDULES = {
    "auto": ("ScheduleAuto", "ScheduleAuto"),
    "cooperative": ("TmaWarpSpecializedCooperative", "TmaWarpSpecializedCooperative"),
    "cooperativenosmem": ("TmaWarpSpecializedCooperative", "NoSmemWarpSpecialized"),
    "cooperativetransposed": ("TmaWarpSpecializedCooperative", "EpilogueTransposed"),
    "pingpong": ("TmaWarpSpecializedPingpong", "TmaWarpSpecialized"),
    "pingpongnosmem": ("TmaWarpSpecializedPingpong", "NoSmemWarpSpecialized"),
    "pingpongtransposed": ("TmaWarpSpecializedPingpong", "EpilogueTransposed"),
    "autotransposed": ("ScheduleAuto", "EpilogueTransposed"),
}
"""Main-loop and epilogue schedule behind each schedule token of a name, in the package's words."""

SCHEDULERS = {"persistent": "Default", "streamk": "StreamK"}
"""Tile schedulers of sm90 kernels, in the package's words."""

TILE_KEYS = ("threadblock_shape", "warp_count", "stages", "cluster_shape")
"""Keys of a tile dictionary, as nvidia-cutlass spells them."""

Shape3 = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One kernel that nvidia-cutlass can be asked for.

    ``block`` is the tile of one thread block (the package's own tile of an sm90 plan is that of the
    whole cluster), ``warps`` the warps along m, n and k of an sm80 kernel. ``stages`` is 0 where the
    package fits as many as shared memory holds. ``swizzle`` is the threadblock swizzle of an sm80
    kernel (0: stream-K), ``alignment`` what A, B and C must keep, in elements.

    Raises:
        CatalogError: a rule of the kernel templates is broken; the text names it.
    """

    opclass: str
    """simt or tensorop."""
    arch: int
    """Generation of the kernel's template: 80 or 90. All of them are compiled for sm_90a."""
    block: Shape3
    warps: Shape3 = (0, 0, 0)
    stages: int = 0
    cluster: tuple[int, int] = (1, 1)
    schedule: str = ""
    scheduler: str = ""
    swizzle: int = 1
    layout: str = "rr"
    dtype_in: str = "float32"
    dtype_out: str = "float32"
    three_pass: bool = False
    """TF32 with three products per element, which keeps FP32's accuracy (the package's fast_f32)."""
    alignment: int = 1
    alignment_c: int = 1

    def __post_init__(self) -> None:
        objection = self.objection()
        if objection is not None:
            raise CatalogError(objection)

    @property
    def threads(self) -> int:
        """Threads per block of an sm80 kernel."""
        return WARP * self.warps[0] * self.warps[1] * self.warps[2]

    @property
    def warp_tile(self) -> Shape3:
        """Extents that one warp of an sm80 kernel computes."""
        return (
            self.block[0] // max(self.warps[0], 1),
            self.block[1] // max(self.warps[1], 1),
            self.block[2] // max(self.warps[2], 1),
        )

    @property
    def is_stream_k(self) -> bool:
        """Whether blocks share output tiles, so that partial sums and flags go through a workspace."""
        return self.scheduler == "streamk" or (self.arch == 80 and self.swizzle == 0)

    def objection(self) -> str | None:
        """The first rule that the recipe breaks, or None."""
        if self.opclass not in ("simt", "tensorop"):
            return f"opclass is {self.opclass!r}; simt or tensorop is needed"
        if self.layout not in LAYOUTS:
            return f"layout is {self.layout!r}; known: {', '.join(LAYOUTS)}"
        for name, shape in (("threadblock_shape", self.block), ("warp_count", self.warps)):
            if len(shape) != 3 or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in shape):
                return f"{name} is {list(shape)}; three positive integers (m, n, k) are needed"
        if min(self.block) < 1:
            return f"threadblock_shape is {list(self.block)}; three positive integers (m, n, k) are needed"
        return self._objection_sm80() if self.arch == 80 else self._objection_sm90()

    def _objection_sm80(self) -> str | None:
        m, n, k = self.block
        named = f"threadblock_shape {list(self.block)} with warp_count {list(self.warps)}"
        if min(self.warps) < 1:
            return f"warp_count is {list(self.warps)}; three positive integers (m, n, k) are needed"
        for extent, warps, axis in zip(self.block, self.warps, "mnk", strict=True):
            if extent % warps:
                return f"{named}: {axis} extent {extent} is not divisible by its {warps} warps"
        if self.warps[2] != 1:
            return f"{named}: warps along k would split the sum; 1 is needed"
        if self.threads > MAX_THREADS:
            return f"{named}: {self.threads} threads; a block has at most {MAX_THREADS}"
        if not 3 <= self.stages <= 16:
            return f"stages is {self.stages}; 3 to 16 are supported by the cp.async main loops"
        if self.swizzle not in (0, *SWIZZLES):
            return f"swizzle is {self.swizzle}; known: {', '.join(map(str, SWIZZLES))} (0 is stream-K)"
        if self.swizzle == 0 and self.opclass == "simt":
            return "stream-K (swizzle 0) exists for Tensor Core kernels only"
        accumulators = m * n // self.threads
        if accumulators > MAX_ACCUMULATORS:
            return f"{named}: {accumulators} accumulators per thread; at most {MAX_ACCUMULATORS} fit into registers"
        stage = (m + n) * k * ITEMSIZE[self.dtype_in]
        if stage * self.stages > MAX_SMEM:
            return f"{named}: {self.stages} stages take {stage * self.stages} bytes of shared memory of {MAX_SMEM}"
        return self._objection_simt(named) if self.opclass == "simt" else self._objection_mma(named)

    def _objection_simt(self, named: str) -> str | None:
        m, n, k = self.block
        if k not in (4, 8, 16):
            return f"{named}: k extent {k}; 4, 8 or 16 is needed (shared memory is padded for those)"
        for extent, lanes, axis in zip(self.warp_tile[:2], SIMT_LANES, "mn", strict=True):
            if extent % (lanes * 4) and extent // lanes not in (1, 2):
                return (
                    f"{named}: the warp tile's {axis} extent {extent} must be a multiple of {lanes * 4} "
                    f"({lanes} lanes of 4 elements), or {lanes} or {lanes * 2}"
                )
            if extent & (extent - 1):
                return f"{named}: the warp tile's {axis} extent {extent} is not a power of two"
        for extent, axis in ((m, "m"), (n, "n")):
            if (extent * k) % self.threads:
                return (
                    f"{named}: a stage's {extent}x{k} elements ({axis}, k) do not divide among {self.threads} threads"
                )
        return None

    def _objection_mma(self, named: str) -> str | None:
        step = 16 if self.dtype_in == "float16" else 8
        if self.block[2] % step:
            return f"{named}: k extent {self.block[2]} is not a multiple of the instruction's {step}"
        for extent, unit, axis in zip(self.warp_tile[:2], (16, 8), "mn", strict=True):
            if extent % unit:
                return f"{named}: the warp tile's {axis} extent {extent} is not a multiple of the instruction's {unit}"
        return None

    def _objection_sm90(self) -> str | None:
        m, n, k = self.block
        if self.opclass != "tensorop":
            return "the package has no sm90 SIMT template; use its sm80 one"
        if self.warps != (0, 0, 0):
            return "warp_count does not apply to sm90 kernels: their schedule fixes it"
        if self.schedule not in SCHEDULES or self.scheduler not in SCHEDULERS:
            known = f"schedules {', '.join(SCHEDULES)}; schedulers {', '.join(SCHEDULERS)}"
            return f"schedule {self.schedule!r} with scheduler {self.scheduler!r}; known: {known}"
        if self.scheduler == "streamk" and not self.schedule.startswith("cooperative"):
            return f"scheduler streamk needs a cooperative schedule, not {self.schedule}"
        if m % 64:
            return f"block {m}x{n}x{k}: m must be a multiple of 64, the rows of one wgmma (32 do not compile)"
        if self.schedule.startswith("cooperative") and m % 128:
            return f"block {m}x{n}x{k}: a cooperative schedule gives two warpgroups 64 rows each; m of 128 is needed"
        if n % 8 or n > 256:
            return f"block {m}x{n}x{k}: n must be a multiple of 8 and at most 256"
        if min(self.cluster) < 1 or self.cluster[0] * self.cluster[1] > 8:
            return f"cluster {self.cluster[0]}x{self.cluster[1]}: 1 to 8 blocks are portable"
        return None

    def tile(self) -> Tile:
        """The compile-time extents in the project's vocabulary; stages that the package fits itself stay 0."""
        m, n, k = self.block
        if self.arch == 90:
            return Tile(
                BLOCK_M=m,
                BLOCK_N=n,
                BLOCK_K=k,
                WARP_M=0,
                MMA_M=64,
                MMA_N=n,
                MMA_K=16 if self.dtype_in == "float16" else 8,
                NUM_STAGES=self.stages,
                CLUSTER_M=self.cluster[0],
                CLUSTER_N=self.cluster[1],
            )
        warp_m, warp_n, _ = self.warp_tile
        common = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "WARP_M": warp_m, "WARP_N": warp_n}
        if self.opclass == "simt":
            lanes_m, lanes_n = SIMT_LANES
            return Tile(**common, THREAD_M=warp_m // lanes_m, THREAD_N=warp_n // lanes_n, NUM_STAGES=self.stages)
        step = 16 if self.dtype_in == "float16" else 8
        return Tile(**common, MMA_M=16, MMA_N=8, MMA_K=step, NUM_STAGES=self.stages)

    def text(self) -> str:
        """The recipe as text that changes with every field: the key of what is emitted from it."""
        return ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self))

    def replace(self, **changes: Any) -> Recipe:
        """The same recipe with fields changed, checked again."""
        return dataclasses.replace(self, **changes)


def with_tile(recipe: Recipe, tile: Mapping[str, Any]) -> Recipe:
    """``recipe`` with the tile that a caller states in nvidia-cutlass's own keys.

    The package takes any dictionary and any numbers, and only nvcc objects later; here a key it
    would ignore and a tile its templates cannot build are refused at once.

    Raises:
        CatalogError: an unknown key (with the nearest one), a value of the wrong form, a broken rule.
    """
    for key in tile:
        if key not in TILE_KEYS:
            nearest = difflib.get_close_matches(str(key), TILE_KEYS, n=1, cutoff=0.0)[0]
            raise CatalogError(
                f"tile key {key!r} is unknown (nvidia-cutlass would ignore it); did you mean {nearest!r}? "
                f"Known: {', '.join(TILE_KEYS)}"
            )
    changes: dict[str, Any] = {}
    for key, field, length in (("threadblock_shape", "block", 3), ("warp_count", "warps", 3)):
        if key in tile:
            changes[field] = _integers(key, tile[key], length)
    if "stages" in tile:
        (changes["stages"],) = _integers("stages", [tile["stages"]], 1)
    if "cluster_shape" in tile:
        m, n, k = _integers("cluster_shape", tile["cluster_shape"], 3)
        if k != 1:
            raise CatalogError(f"cluster_shape is {[m, n, k]}; its third extent must be 1")
        if recipe.arch == 80 and (m, n) != (1, 1):
            raise CatalogError(f"cluster_shape is {[m, n, k]}; sm80 kernels have no clusters, [1, 1, 1] is needed")
        changes["cluster"] = (m, n)
    if recipe.arch == 90 and "block" in changes:
        # nvidia-cutlass states the tile of the whole cluster; one block gets its share.
        cluster = changes.get("cluster", recipe.cluster)
        m, n, k = changes["block"]
        if m % cluster[0] or n % cluster[1]:
            raise CatalogError(f"threadblock_shape {[m, n, k]} does not divide among a cluster of {list(cluster)}")
        changes["block"] = (m // cluster[0], n // cluster[1], k)
    return recipe.replace(**changes)


def _integers(key: str, value: Any, length: int) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or len(value) != length:
        raise CatalogError(f"tile key {key} is {value!r}; {length} integers are needed")
    if any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        raise CatalogError(f"tile key {key} is {value!r}; integers are needed")
    return tuple(value)
