"""What SGEMM kernels with the ladder's parameters share, whoever wrote them: those parameters, and their limits.

The parameters are A, B, C, m, n, k, lda, ldb, ldc, alpha, beta: pointers, 32-bit extents, 64-bit leading dimensions,
floats.
"""

from __future__ import annotations

import struct

from kernel.contract import MAX_GRID_X, Argument, Pointers, Problem, Tile, ceil_div

MAX_OFFSET = 2**63 // 4
"""Elements: the first offset whose bytes no longer fit a signed 64-bit integer."""


def arguments(problem: Problem, pointers: Pointers, *, pitched: bool = True) -> tuple[Argument, ...]:
    """The parameters' values; without ``pitched`` the leading dimensions are left out."""
    p = problem
    values = (
        *(struct.pack("<Q", address) for address in (pointers.a, pointers.b, pointers.c)),
        *(struct.pack("<i", extent) for extent in (p.m, p.n, p.k)),
        *(struct.pack("<q", pitch) for pitch in (p.lda, p.ldb, p.ldc) if pitched),
        *(struct.pack("<f", scalar) for scalar in (p.alpha, p.beta)),
    )
    return tuple(Argument(data=value) for value in values)


def tiles_of(problem: Problem, tile: Tile) -> int:
    """Block tiles that cover C."""
    return ceil_div(problem.m, tile.BLOCK_M) * ceil_div(problem.n, tile.BLOCK_N)


def beyond_grid(problem: Problem, tile: Tile) -> str | None:
    """Why one block a tile is more than a grid holds, or None."""
    blocks = tiles_of(problem, tile)
    if blocks <= MAX_GRID_X:
        return None
    return (
        f"m = {problem.m}, n = {problem.n} take {blocks} thread blocks of {tile.BLOCK_M} x {tile.BLOCK_N}; "
        f"a grid ends at {MAX_GRID_X}"
    )


def beyond_offsets(problem: Problem) -> str | None:
    """Which operand ends beyond what a signed 64-bit byte offset reaches, or None."""
    for operand in "abc":
        if problem.extent(operand) > MAX_OFFSET:
            pitch = getattr(problem, f"ld{operand}")
            return f"ld{operand} = {pitch} puts the end of {operand.upper()} beyond 2**63 bytes"
    return None
