"""Call a CUTLASS kernel on arrays: choose it, or take the caller's, check everything, say what ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cutlass_ref.catalog import CutlassKernel, entry_for, get
from cutlass_ref.recipe import with_tile
from kernel.errors import CatalogError, ShapeError

if TYPE_CHECKING:
    from kernel.gemm import Result

CHOICES = {
    "float32": "cutlass_simt_128x256x5_s1_{layout}",
    "float16": "cutlass_fp16_sm90_128x256x64_2x1_cooperative_persistent_{layout}",
}
"""What runs where the caller names no kernel, by the operands' type: FP32 stays FP32, never TF32."""


def choose(
    dtype: str,
    layout: str,
    *,
    kernel: str | CutlassKernel | None = None,
    tile: Mapping[str, Any] | None = None,
    swizzle: int | None = None,
) -> CutlassKernel:
    """The kernel for operands of a type and layout.

    Args:
        dtype: float32 or float16, of A and B.
        layout: of A and B, such as ``rc``.
        kernel: a catalog name or entry; left out, the one of :data:`CHOICES`.
        tile: threadblock_shape, warp_count, stages, cluster_shape in nvidia-cutlass's form; what is
            left out stays as the kernel has it.
        swizzle: threadblock swizzle of an sm80 or SIMT kernel: 1, 2, 4 or 8.

    Raises:
        CatalogError: an unknown kernel, type or tile key, or a tile that breaks a rule of the templates.
    """
    if kernel is None and dtype not in CHOICES:
        raise CatalogError(f"no CUTLASS kernel takes {dtype!r}; types of A and B are {', '.join(CHOICES)}")
    name = CHOICES[dtype].format(layout=layout) if kernel is None else kernel
    chosen = get(name) if isinstance(name, str) else name
    if not isinstance(chosen, CutlassKernel):
        raise CatalogError(f"kernel is {kernel!r}; a name or entry of cutlass_ref.catalog is needed")
    if tile is None and swizzle is None:
        return chosen
    if chosen.name != chosen.base:
        raise CatalogError(f"{chosen.name} is a variant of {chosen.base}; state tile or swizzle for that one")
    recipe = chosen.recipe if tile is None else with_tile(chosen.recipe, tile)
    if swizzle is not None:
        if recipe.arch == 90:
            raise CatalogError(f"swizzle applies to sm80 and SIMT kernels; {chosen.name} has raster and max_swizzle")
        recipe = recipe.replace(swizzle=swizzle)
    return entry_for(recipe)


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    kernel: str | CutlassKernel | None = None,
    tile: Mapping[str, Any] | None = None,
    swizzle: int | None = None,
) -> Result:
    """C = alpha * A @ B + beta * C by a kernel that nvidia-cutlass emitted, on the arrays' current stream.

    The result names the kernel that ran. Types, shapes, layouts, alignment and devices are checked
    before anything is built; the package itself checks none of them.

    Args:
        a: m x k, CuPy, torch or NumPy, float32 or float16, either layout, any leading dimension.
        b: k x n, likewise.
        c: m x n, row-major, updated in place; left out, a new array (beta must then be 0). On a device no element of
            it may be one of A or B: column slices that lie side by side in one array are apart.
        alpha: real number or 0-d array, of any type.
        beta: likewise.
        kernel: a catalog name or entry; see :func:`choose`.
        tile: a tile in nvidia-cutlass's form; see :func:`choose`.
        swizzle: threadblock swizzle; see :func:`choose`.

    Raises:
        CatalogError: an unknown kernel, tile key or impossible tile.
        ShapeError, LayoutError, DtypeError, DeviceError: operands do not state a GEMM.
        ProblemError: a scalar is too large for a float32.
        RejectedError: the kernel cannot run it; names operand, extent and rule.
        NoDeviceError, MissingToolError: no GPU, or a package or compiler is missing.
    """
    from kernel.gemm import gemm as run
    from kernel.operands import operand

    first, second = operand(a, "A"), operand(b, "B")
    if first.columns != second.rows:
        raise ShapeError(
            f"A is {first.rows}x{first.columns} and B is {second.rows}x{second.columns}: A's columns and B's rows "
            "are both k and must agree (pass B.T if B is stored transposed)"
        )
    chosen = choose(first.dtype, first.layout + second.layout, kernel=kernel, tile=tile, swizzle=swizzle)
    return run(chosen, a, b, c, alpha=alpha, beta=beta)
