"""C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C in FP32 on CUDA cores, written in the CuTe DSL.

One program for the four layouts of A and B: only strides and the shape of the copies change. A block computes
128 x 256 with 256 threads. A and B lie in shared memory with m and n innermost, whatever they are in global memory:
where k is innermost there, cp.async carries single elements and the layout transposes them. A thread's 8 x 16 elements
are split into groups of 4 x 4 across its warp's 64 x 64, so that every fragment is read by LDS.128; that split is the
tiler handed to the MMA, and nothing else in the program knows about it.

Runs in the child process of ``emit.py`` only: importing it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, const_expr, range_constexpr
from cutlass.cute.runtime import make_ptr

from cutlass_ref.cute.emit import Program

BLOCK_M, BLOCK_N, THREADS = 128, 256, 256
WARPS_M, WARPS_N = 2, 4
LANES_M, LANES_N = 8, 4
GROUP = 4
"""Adjacent rows, and columns, of a thread: one 16-byte access."""
PAD = 4
"""Elements between the k steps of a transposed tile: a warp's 4 rows x 8 steps then store to 32 banks."""


class Sgemm:
    """The kernel for one layout and access width; every attribute is a compile-time constant.

    ``vector`` is the elements in one access to global memory where an operand is contiguous along m or n: 4 or 1.
    At step ``copy_at`` of a tile the copies of a later one are issued.
    """

    def __init__(self, *, layout: str, vector: int, block_k: int, stages: int, order: str, copy_at: int) -> None:
        self.a_along_k, self.b_along_k = layout[0] == "r", layout[1] == "c"
        self.vector, self.block_k, self.stages = vector, block_k, stages
        self.order, self.copy_at = order, copy_at
        self.a_pitch = BLOCK_M + (PAD if self.a_along_k else 0)
        self.b_pitch = BLOCK_N + (PAD if self.b_along_k else 0)
        self.smem_bytes = 4 * stages * block_k * (self.a_pitch + self.b_pitch)

    # --- layouts -----------------------------------------------------------------------------------

    def a_smem(self) -> Any:
        """(m, k, stage) of A in shared memory."""
        return cute.make_layout(
            (BLOCK_M, self.block_k, self.stages), stride=(1, self.a_pitch, self.a_pitch * self.block_k)
        )

    def b_smem(self) -> Any:
        """(n, k, stage) of B in shared memory."""
        return cute.make_layout(
            (BLOCK_N, self.block_k, self.stages), stride=(1, self.b_pitch, self.b_pitch * self.block_k)
        )

    def copy_shape(self, along_k: bool) -> tuple[Any, Any, int]:
        """(threads, values, elements an access) of the copy of one operand's tile, as (row, k) layouts.

        Along k a warp takes 4 rows of 8 elements: 32 bytes of each row from global memory, 32 banks to shared memory.
        """
        if along_k:
            return cute.make_layout((THREADS // 8, 8), stride=(8, 1)), cute.make_layout((1, 1)), 1
        runs = THREADS // self.block_k if self.vector == 4 else 32
        threads = cute.make_layout((runs, THREADS // runs), stride=(1, runs))
        return threads, cute.make_layout((self.vector, 1)), self.vector

    def tiled_copy(self, along_k: bool) -> Any:
        threads, values, width = self.copy_shape(along_k)
        modes = cute.nvgpu.LoadCacheMode
        operation = cute.nvgpu.cpasync.CopyG2SOp(modes.GLOBAL if width == 4 else modes.ALWAYS)
        atom = cute.make_copy_atom(operation, Float32, num_bits_per_copy=32 * width)
        return cute.make_tiled_copy_tv(atom, threads, values)

    def mma_shape(self) -> tuple[Any, Any, Any]:
        """(threads, tiler of m, tiler of n) of the MMA. A tiler's second mode is what one thread holds."""
        threads = cute.make_layout(
            ((LANES_M, WARPS_M), (LANES_N, WARPS_N), 1), stride=((LANES_N, 32 * WARPS_N), (1, 32), 0)
        )
        rows = cute.make_layout(
            ((LANES_M, WARPS_M), (GROUP, 2)), stride=((GROUP, BLOCK_M // WARPS_M), (1, LANES_M * GROUP))
        )
        columns = cute.make_layout(
            ((LANES_N, WARPS_N), (GROUP, 4)), stride=((GROUP, BLOCK_N // WARPS_N), (1, LANES_N * GROUP))
        )
        return threads, rows, columns

    def tiled_mma(self) -> Any:
        threads, rows, columns = self.mma_shape()
        operation = cute.nvgpu.MmaUniversalOp(Float32)
        return cute.make_tiled_mma(operation, threads, permutation_mnk=(rows, columns, None))

    def described(self) -> dict[str, Any]:
        """Every layout by what it is of, for ``inspect --layouts``."""
        threads, rows, columns = self.mma_shape()
        found = {"A in shared memory (m, k, stage)": self.a_smem(), "B in shared memory (n, k, stage)": self.b_smem()}
        for operand, row, along_k in (("A", "m", self.a_along_k), ("B", "n", self.b_along_k)):
            lanes, values, width = self.copy_shape(along_k)
            found[f"copy of {operand}: threads over ({row}, k)"] = lanes
            found[f"copy of {operand}: elements of one cp.async over ({row}, k), {4 * width} bytes"] = values
        found["MMA: threads over (m, n, k)"] = threads
        found["MMA: tiler of m (thread, its rows)"] = rows
        found["MMA: tiler of n (thread, its columns)"] = columns
        return found

    # --- host and device ---------------------------------------------------------------------------

    @cute.jit
    def __call__(
        self,
        a: cute.Pointer,
        b: cute.Pointer,
        c: cute.Pointer,
        m: Int32,
        n: Int32,
        k: Int32,
        lda: Int64,
        ldb: Int64,
        ldc: Int64,
        alpha: Float32,
        beta: Float32,
    ) -> None:
        """What the DSL compiles. The launch is never made from here: the catalog has its own arithmetic."""
        self.kernel(a, b, c, m, n, k, lda, ldb, ldc, alpha, beta).launch(
            grid=[1, 1, 1], block=[THREADS, 1, 1], smem=self.smem_bytes, min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(
        self,
        a: cute.Pointer,
        b: cute.Pointer,
        c: cute.Pointer,
        m: Int32,
        n: Int32,
        k: Int32,
        lda: Int64,
        ldb: Int64,
        ldc: Int64,
        alpha: Float32,
        beta: Float32,
    ) -> None:
        steps, stages = self.block_k, self.stages
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks_n = (n + (BLOCK_N - 1)) // BLOCK_N
        block_m, block_n = block // blocks_n, block % blocks_n
        rows_left, columns_left = m - block_m * BLOCK_M, n - block_n * BLOCK_N
        tiles = (k + (steps - 1)) // steps
        # The ragged tile of k comes first, aligned to its end, so that the main loop asks nothing about k.
        absent = tiles * steps - k

        if const_expr(not self.a_along_k):
            lda = cute.assume(lda, divby=self.vector)
        if const_expr(not self.b_along_k):
            ldb = cute.assume(ldb, divby=self.vector)
        ldc = cute.assume(ldc, divby=self.vector)
        a_strides = (lda, 1) if const_expr(self.a_along_k) else (1, lda)
        b_strides = (ldb, 1) if const_expr(self.b_along_k) else (1, ldb)
        whole_a = cute.domain_offset((0, -absent), cute.make_tensor(a, cute.make_layout((m, k), stride=a_strides)))
        whole_b = cute.domain_offset((0, -absent), cute.make_tensor(b, cute.make_layout((n, k), stride=b_strides)))
        whole_c = cute.make_tensor(c, cute.make_layout((m, n), stride=(ldc, 1)))
        if const_expr(not self.a_along_k):
            whole_a = cute.make_tensor(whole_a.iterator.align(4 * self.vector), whole_a.layout)
        if const_expr(not self.b_along_k):
            whole_b = cute.make_tensor(whole_b.iterator.align(4 * self.vector), whole_b.layout)
        a_tiles = cute.local_tile(whole_a, (BLOCK_M, steps), (block_m, None))
        b_tiles = cute.local_tile(whole_b, (BLOCK_N, steps), (block_n, None))
        c_tile = cute.local_tile(whole_c, (BLOCK_M, BLOCK_N), (block_m, block_n))

        allocator = cutlass.memory.SmemAllocator()
        a_shared = allocator.allocate_tensor(Float32, self.a_smem(), 16)
        b_shared = allocator.allocate_tensor(Float32, self.b_smem(), 16)

        copy_a, copy_b = self.tiled_copy(self.a_along_k), self.tiled_copy(self.b_along_k)
        share_a, share_b = copy_a.get_slice(thread), copy_b.get_slice(thread)
        from_a, to_a = share_a.partition_S(a_tiles), share_a.partition_D(a_shared)
        from_b, to_b = share_b.partition_S(b_tiles), share_b.partition_D(b_shared)
        at_a = share_a.partition_S(cute.make_identity_tensor((BLOCK_M, steps)))
        at_b = share_b.partition_S(cute.make_identity_tensor((BLOCK_N, steps)))

        mma = self.tiled_mma()
        mine = mma.get_slice(thread)
        a_read, b_read = mine.partition_A(a_shared), mine.partition_B(b_shared)
        c_mine, c_at = mine.partition_C(c_tile), mine.partition_C(cute.make_identity_tensor((BLOCK_M, BLOCK_N)))
        thread_m, thread_n = cute.size(a_read, mode=[1]), cute.size(b_read, mode=[1])
        # Two steps of fragments: one is multiplied while the next is read.
        a_frag = cute.make_rmem_tensor((1, thread_m, 2), Float32)
        b_frag = cute.make_rmem_tensor((1, thread_n, 2), Float32)
        acc = cute.make_rmem_tensor((1, thread_m, thread_n), Float32)
        acc.fill(0.0)

        for tile in range_constexpr(stages - 1):
            rows = rows_left if tile < tiles else Int32(0)
            columns = columns_left if tile < tiles else Int32(0)
            gap = absent if tile == 0 else 0
            self.bring(copy_a, from_a[None, None, None, tile], to_a[None, None, None, tile], at_a, rows, gap)
            self.bring(copy_b, from_b[None, None, None, tile], to_b[None, None, None, tile], at_b, columns, gap)
            cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(stages - 2)
        cute.arch.sync_threads()
        cute.autovec_copy(a_read[None, None, 0, 0], a_frag[None, None, 0])
        cute.autovec_copy(b_read[None, None, 0, 0], b_frag[None, None, 0])

        stage, fill = Int32(0), Int32(stages - 1)
        for tile in cutlass.range(tiles, unroll=1):
            following = stage + 1 if stage + 1 < stages else Int32(0)
            ahead = tile + (stages - 1)
            # Beyond the last tile every copy is of nothing: a predicate costs less than a branch around the copies.
            rows = rows_left if ahead < tiles else Int32(0)
            columns = columns_left if ahead < tiles else Int32(0)
            for step in range_constexpr(steps):
                if const_expr(step + 1 < steps):
                    cute.autovec_copy(a_read[None, None, step + 1, stage], a_frag[None, None, (step + 1) % 2])
                    cute.autovec_copy(b_read[None, None, step + 1, stage], b_frag[None, None, (step + 1) % 2])
                else:
                    # The next tile's first fragments are on their way before this tile's last FFMAs. After the
                    # barrier nobody reads this tile's stage any more, so the next round of copies may fill it.
                    cute.arch.cp_async_wait_group(stages - 2)
                    cute.arch.sync_threads()
                    cute.autovec_copy(a_read[None, None, 0, following], a_frag[None, None, (step + 1) % 2])
                    cute.autovec_copy(b_read[None, None, 0, following], b_frag[None, None, (step + 1) % 2])
                if const_expr(step == self.copy_at):
                    self.bring(copy_a, from_a[None, None, None, ahead], to_a[None, None, None, fill], at_a, rows, 0)
                    self.bring(copy_b, from_b[None, None, None, ahead], to_b[None, None, None, fill], at_b, columns, 0)
                    cute.arch.cp_async_commit_group()
                self.multiply(mma, acc, a_frag[None, None, step % 2], b_frag[None, None, step % 2])
            fill = stage
            stage = following

        self.write(c_mine, c_at, acc, rows_left, columns_left, alpha, beta)

    @cute.jit
    def bring(
        self,
        copy: cute.TiledCopy,
        source: cute.Tensor,
        target: cute.Tensor,
        at: cute.Tensor,
        rows: Int32,
        gap: Int32,
    ) -> None:
        """This thread's copies of one tile: of its first ``rows`` rows, without its first ``gap`` steps of k.

        What is left out arrives as zeros.
        """
        exists = cute.make_rmem_tensor((1,), Boolean)
        for j in range_constexpr(target.shape[2]):
            for i in range_constexpr(target.shape[1]):
                row, step = at[0, i, j][0], at[0, i, j][1]
                inside = row < rows
                if const_expr(not isinstance(gap, int)):
                    inside = inside & (step >= gap)
                exists[0] = inside
                cute.copy(copy, source[None, i, j], target[None, i, j], pred=exists)

    @cute.jit
    def multiply(self, mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor) -> None:
        """One step of k: 128 FFMAs a thread.

        ``quads`` goes through 2 x 2 blocks of adjacent rows and columns, forth along one pair of rows and back along
        the next, so that most operands are in the reuse cache. ``rows`` leaves the order to the DSL: row by row.
        """
        if const_expr(self.order == "rows"):
            cute.gemm(mma, acc, a, b, acc)
        else:
            pairs = acc.shape[2] // 2
            for i in range_constexpr(acc.shape[1] // 2):
                for place in range_constexpr(pairs):
                    j = pairs - 1 - place if i % 2 else place
                    for row, column in ((0, 0), (0, 1), (1, 1), (1, 0)):
                        one = acc[None, 2 * i + row, 2 * j + column]
                        cute.gemm(mma, one, a[None, 2 * i + row], b[None, 2 * j + column], one)

    @cute.jit
    def write(
        self,
        c: cute.Tensor,
        at: cute.Tensor,
        acc: cute.Tensor,
        rows_left: Int32,
        columns_left: Int32,
        alpha: Float32,
        beta: Float32,
    ) -> None:
        """C = alpha * acc + beta * C where C exists; beta = 0 never reads C."""
        width = self.vector
        for i in range_constexpr(acc.shape[1]):
            if at[0, i, 0][0] < rows_left:
                for j in range_constexpr(0, acc.shape[2], width):
                    inner, group = j % GROUP, j // GROUP
                    if at[0, i, (inner, group)][1] < columns_left:
                        run = cute.make_tensor(c[0, i, (None, group)].iterator + inner, cute.make_layout(width))
                        out = cute.make_rmem_tensor(width, Float32)
                        for v in range_constexpr(width):
                            out[v] = acc[0, i, j + v] * alpha
                        if beta != 0.0:
                            old = cute.make_rmem_tensor(width, Float32)
                            cute.autovec_copy(run, old)
                            for v in range_constexpr(width):
                                out[v] = out[v] + beta * old[v]
                        cute.autovec_copy(out, run)


def compile_program(program: Program, scratch: str) -> dict[str, Any]:
    """PTX, program text, layouts and facts of one build; see :class:`cutlass_ref.cute.emit.Emitted`."""
    options = dict(program.options)
    sgemm = Sgemm(**options)
    Sgemm.kernel.set_name_prefix(program.entry, remove_cutlass_symbol=not program.marked, keep_mangled_name=False)

    def pointer(vectored: bool) -> Any:
        align = 4 * sgemm.vector if vectored else 4
        return make_ptr(Float32, 16, cute.AddressSpace.gmem, assumed_align=align)

    lines: list[str] = []

    @cute.jit
    def show() -> None:
        lines.extend(f"{what}: {layout}" for what, layout in sgemm.described().items())

    compiled = cute.compile(
        sgemm,
        *(pointer(not sgemm.a_along_k), pointer(not sgemm.b_along_k), pointer(True)),
        *(Int32(1), Int32(1), Int32(1), Int64(1), Int64(1), Int64(1), Float32(1), Float32(0)),
        options=f"--keep-ptx --dump-dir={scratch} --gpu-arch=sm_90a",
    )
    cute.compile(show, options=f"--dump-dir={scratch} --gpu-arch=sm_90a")
    return {
        "ptx": compiled.__ptx__,
        "python": program.path.read_text(encoding="utf-8"),
        "layouts": "\n".join(lines) + "\n",
        "facts": {"dynamic_smem": sgemm.smem_bytes},
    }
