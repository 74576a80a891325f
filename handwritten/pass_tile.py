"""The rungs with a pass before their product: v18 and v20, and v21, which copies B as well."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from handwritten.kernel import MAX_DYNAMIC_SMEM, HandwrittenKernel
from handwritten.stream_tile import FULL_BLOCK, StreamKTileKernel
from handwritten.tensor_catalog import MAP_ALIGNMENT, PITCH_LIMIT
from kernel.contract import MAX_GRID_X, Argument, Launch, Pointers, Problem, TensorMap, Unit, ceil_div

LOADING_THREADS = 128
"""The warpgroup of the thread that loads: registers are moved between warpgroups."""
MAX_BOX = 256
"""Elements that a box of a tensor map can have in each dimension."""
PASS_THREADS, PASS_TILE = 256, 64
"""Threads in a block of the pass, and rows and columns of A that it turns at a time."""
PASS_STRIPS = 64
"""Blocks of the pass that share PASS_TILE rows of A at most."""
COPY_THREADS, COPY_ROWS = 256, 8
"""Columns of B that a block of the copy takes, one a thread, and rows that a thread has in flight."""


@dataclass(frozen=True, kw_only=True)
class TransposingPassKernel(StreamKTileKernel):
    """A first launch writes A transposed into the workspace; then the copy engine brings both operands.

    The workspace is stream-K's, whose header the first launch zeroes, and then A's copy: k rows, each of m elements
    and what makes that a multiple of four. ``vec4`` and ``vec1`` say how C is reached.
    """

    vector_operands: str = "c"
    fallback: StreamKTileKernel
    """Runs what no tensor map of B describes."""

    @property
    def threads(self) -> int:
        return super().threads + LOADING_THREADS

    @property
    def dynamic_smem(self) -> int:
        t = self.tile
        return 4 * t.NUM_STAGES * t.BLOCK_K * (t.BLOCK_M + t.BLOCK_N)

    def beyond_tensor_map(self, problem: Problem) -> str | None:
        """Why the copy engine cannot bring B, or None if it can."""
        pitch = 4 * problem.ldb
        if problem.align_b % MAP_ALIGNMENT:
            return f"B's base is a multiple of {problem.align_b} bytes only; a tensor map needs {MAP_ALIGNMENT}"
        if pitch % MAP_ALIGNMENT:
            return f"B's pitch is {pitch} bytes; a tensor map needs a multiple of {MAP_ALIGNMENT}"
        if pitch >= PITCH_LIMIT:
            return f"B's pitch is {pitch} bytes; a tensor map needs less than {PITCH_LIMIT}"
        return None

    def runner(self, problem: Problem) -> StreamKTileKernel:
        return self.fallback if self.beyond_tensor_map(problem) else self

    def why(self, problem: Problem) -> str:
        return self.beyond_tensor_map(problem) or ""

    def rejects(self, problem: Problem) -> str | None:
        runner = self.runner(problem)
        return super().rejects(problem) if runner is self else runner.rejects(problem)

    def variant(self, problem: Problem) -> str:
        runner = self.runner(problem)
        return super().variant(problem) if runner is self else f"{runner.name}.{runner.variant(problem)}"

    def units(self) -> tuple[Unit, ...]:
        return (*super().units(), *self.fallback.units())

    def pitch(self, problem: Problem) -> int:
        """Elements from one row of A's copy to the next."""
        return ceil_div(problem.m, 4) * 4

    def copy_offset(self, problem: Problem) -> int:
        """Bytes of the workspace before A's copy: header and partial tiles."""
        cut = self.cut(problem)
        parts = 4 * cut.blocks * self.tile.BLOCK_M * self.tile.BLOCK_N if cut.shared_steps else 0
        return self.header_bytes + parts

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        if self.runner(problem) is not self:
            return self.fallback.launches(problem)
        (product,) = super().launches(problem)
        workspace = self.copy_offset(problem) + 4 * problem.k * self.pitch(problem)
        rows = ceil_div(problem.m, PASS_TILE)
        strips = min(ceil_div(problem.k, PASS_TILE), PASS_STRIPS, MAX_GRID_X // rows)
        turning = Launch(
            unit=product.unit,
            entry=f"{self.entry}_pass",
            grid=(rows * strips, 1, 1),
            block=(PASS_THREADS, 1, 1),
            multiplies=False,
            workspace=workspace,
        )
        return (turning, dataclasses.replace(product, workspace=workspace, workspace_zeroed=0))

    def maps(self, problem: Problem, pointers: Pointers) -> Iterator[TensorMap]:
        """Tensor maps of A's copy and of B; extents innermost first, zeros beyond them."""
        t, copy = self.tile, pointers.workspace + self.copy_offset(problem)
        for address, width, pitch, box in (
            (copy, problem.m, self.pitch(problem), t.BLOCK_M),
            (pointers.b, problem.n, problem.ldb, t.BLOCK_N),
        ):
            yield TensorMap(
                address=address,
                dtype="float32",
                shape=(width, problem.k),
                strides=(4 * pitch,),
                box=(box, t.BLOCK_K),
                element_strides=(1, 1),
                l2_promotion=128,
            )

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        if self.runner(problem) is not self:
            return self.fallback.pack(problem, pointers)
        ((a, _, c, m, n, k, lda, _, *rest),) = super().pack(problem, pointers)
        maps = (Argument(data=bytes(128), tensor_maps=((0, record),)) for record in self.maps(problem, pointers))
        header, copy, pitch = (
            Argument(data=struct.pack(form, value))
            for form, value in (
                ("<Q", pointers.workspace),
                ("<Q", pointers.workspace + self.copy_offset(problem)),
                ("<q", self.pitch(problem)),
            )
        )
        return ((header, copy, a, m, k, lda, pitch), (*maps, c, m, n, k, *rest))

    def _width(self, problem: Problem) -> int:
        return HandwrittenKernel._width(self, problem)  # only C is reached by accesses of threads, and guarded

    def _unit(self, width: int) -> Unit:
        unit = super()._unit(width)
        more = (f"-DPASS_THREADS={PASS_THREADS}", f"-DPASS_TILE={PASS_TILE}")
        return dataclasses.replace(unit, flags=(*unit.flags, *more))

    def _copy_violations(self) -> Iterator[str]:
        t = self.tile
        if self.dynamic_smem > MAX_DYNAMIC_SMEM:
            yield f"the tiles need {self.dynamic_smem} bytes of shared memory; a block can have {MAX_DYNAMIC_SMEM}"
        if self.threads - LOADING_THREADS != FULL_BLOCK:
            yield (
                f"{FULL_BLOCK} threads of 240 registers multiply beside the one that loads; this tile takes "
                f"{self.threads - LOADING_THREADS}"
            )
        if t.BLOCK_K % 4:
            yield "fragments alternate between two sets of registers, and v14's header is shared (BLOCK_K % 4)"
        if max(t.BLOCK_M, t.BLOCK_N) > MAX_BOX:
            yield f"a box of a tensor map ends at {MAX_BOX} (BLOCK_M, BLOCK_N <= {MAX_BOX})"


@dataclass(frozen=True, kw_only=True)
class PackingPassKernel(TransposingPassKernel):
    """A second launch copies B into the workspace behind A's copy; what needs no such copy goes to ``fallback``.

    B's copy has k rows of n elements and what makes that a multiple of four. It may run beside the last blocks of the
    pass, and ends after it.
    """

    def runner(self, problem: Problem) -> StreamKTileKernel:
        return self if self.beyond_tensor_map(problem) else self.fallback

    def why(self, problem: Problem) -> str:
        return "" if self.beyond_tensor_map(problem) else "the copy engine brings B as it is"

    def variant(self, problem: Problem) -> str:
        return super().variant(problem) + ("_packed" if self.runner(problem) is self else "")

    def packed_pitch(self, problem: Problem) -> int:
        """Elements from one row of B's copy to the next."""
        return ceil_div(problem.n, 4) * 4

    def packed_offset(self, problem: Problem) -> int:
        """Bytes of the workspace before B's copy: all that v20 has there."""
        return self.copy_offset(problem) + 4 * problem.k * self.pitch(problem)

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        launches = super().launches(problem)
        if self.runner(problem) is not self:
            return launches
        columns = ceil_div(problem.n, COPY_THREADS)
        strips = min(ceil_div(problem.k, COPY_ROWS), MAX_GRID_X // columns)
        turning, product = (
            dataclasses.replace(
                launch, workspace=self.packed_offset(problem) + 4 * problem.k * self.packed_pitch(problem)
            )
            for launch in launches
        )
        copying = dataclasses.replace(
            turning,
            entry=f"{self.entry}_copy",
            grid=(columns * strips, 1, 1),
            block=(COPY_THREADS, 1, 1),
            overlaps=True,
        )
        return (turning, copying, product)

    def maps(self, problem: Problem, pointers: Pointers) -> Iterator[TensorMap]:
        return super().maps(
            problem.replace(ldb=self.packed_pitch(problem)),
            dataclasses.replace(pointers, b=pointers.workspace + self.packed_offset(problem)),
        )

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        parameters = super().pack(problem, pointers)
        if self.runner(problem) is not self:
            return parameters
        turning, product = parameters
        copying = (
            Argument(data=struct.pack(form, value))
            for form, value in (
                ("<Q", pointers.workspace + self.packed_offset(problem)),
                ("<Q", pointers.b),
                ("<i", problem.n),
                ("<i", problem.k),
                ("<q", problem.ldb),
                ("<q", self.packed_pitch(problem)),
            )
        )
        return (turning, tuple(copying), product)

    def _unit(self, width: int) -> Unit:
        unit = super()._unit(width)
        more = (f"-DCOPY_THREADS={COPY_THREADS}", f"-DCOPY_ROWS={COPY_ROWS}")
        return dataclasses.replace(unit, flags=(*unit.flags, *more))
