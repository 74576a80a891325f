"""What each kernel of this folder gets wrong, where that does not show, and how the check catches it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from compare.contenders import KernelContender
from kernel.contract import Argument, Kernel, Launch, Pointers, Problem, Tile, Unit, ceil_div

FOLDER = Path(__file__).parent
SIDE = 16
MOST_ROW_BLOCKS = 65535
WRONG_VALUES = "elements wrong"
UNWRITTEN = "never written"
# What comes second is how the PTX machine puts it: it sees the access itself, a GPU only what came of it.
OUTSIDE = "outside the operands were written|write of 4 bytes out of bounds"
READ_ELSEWHERE = "elements wrong|read of 4 bytes out of bounds"
READ_UNWRITTEN = "elements wrong|reads 4 bytes that were never written: C"
CHANGED = "A or B was changed|elements wrong|to read-only memory: A"
RACE = "elements wrong|race: "


@dataclass(frozen=True, kw_only=True)
class PlainKernel(Kernel):
    """A kernel of this folder: 16 x 16 threads, one element each."""

    flags: tuple[str, ...] = ()

    def unit(self) -> Unit:
        return Unit(name=f"wrong.{self.name}", arch=self.arch, source=FOLDER / f"{self.name}.cu", flags=self.flags)

    def units(self) -> tuple[Unit, ...]:
        return (self.unit(),)

    def rejects(self, problem: Problem) -> str | None:
        return None

    def variant(self, problem: Problem) -> str:
        return ""

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        grid = (ceil_div(problem.n, SIDE), min(ceil_div(problem.m, SIDE), MOST_ROW_BLOCKS), 1)
        return (Launch(unit=self.unit(), entry=self.name, grid=grid, block=(SIDE, SIDE, 1)),)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        values = (
            *(struct.pack("<Q", pointers.a), struct.pack("<q", problem.lda)),
            *(struct.pack("<Q", pointers.b), struct.pack("<q", problem.ldb)),
            *(struct.pack("<Q", pointers.c), struct.pack("<q", problem.ldc)),
            *(struct.pack("<i", extent) for extent in (problem.m, problem.n, problem.k)),
            *(struct.pack("<f", scalar) for scalar in (problem.alpha, problem.beta)),
        )
        return (tuple(Argument(data=value) for value in values),)


def _kernel(name: str, flags: tuple[str, ...] = (), half: bool = False) -> PlainKernel:
    first_line = (FOLDER / f"{name}.cu").read_text(encoding="utf-8").splitlines()[0]
    dtype = "float16" if half else "float32"
    return PlainKernel(
        name=name,
        family="handwritten",
        track="fp16_tensor" if half else "fp32_simt",
        instruction="ffma",
        arch="sm_90a",
        tile=Tile(BLOCK_M=SIDE, BLOCK_N=SIDE, THREAD_M=1, THREAD_N=1),
        summary=first_line.removeprefix("// "),
        dtype_in=dtype,
        dtype_out=dtype,
        flags=flags,
    )


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A wrong kernel and what is expected of the check."""

    kernel: PlainKernel
    seems_right_on: str
    """A shape where a check finds nothing, because the fault does not show there; empty if it always shows."""
    caught_on: str
    """A shape whose check must fail."""
    because: str
    """Pattern that the verdict's reason must match."""
    gpu_only: str = ""
    """Why the PTX machine is not asked, or empty."""

    @property
    def contender(self) -> KernelContender:
        return KernelContender.of(self.kernel)


RIGHT = _kernel("right")


def _wrong(
    name: str,
    because: str,
    caught_on: str,
    seems_right_on: str = "",
    *,
    gpu_only: str = "",
    flags: tuple[str, ...] = (),
    half: bool = False,
) -> Wrong:
    return Wrong(
        kernel=_kernel(name, flags, half),
        seems_right_on=seems_right_on,
        caught_on=caught_on,
        because=because,
        gpu_only=gpu_only,
    )


WRONG: tuple[Wrong, ...] = (
    _wrong("leaves_a_tile", UNWRITTEN, "33x18x20"),
    _wrong("writes_nan", WRONG_VALUES, "35x79x19"),
    _wrong("off_by_an_eighth", "^1 of", "35x79x19"),
    _wrong("transposes_the_result", WRONG_VALUES, "32x32x16"),
    _wrong("exchanges_blocks", UNWRITTEN, "48x16x16", "32x32x16"),
    _wrong("drops_the_k_tail", WRONG_VALUES, "35x79x19", "35x79x20"),
    _wrong("drains_the_wrong_buffer", WRONG_VALUES, "16x16x24", "16x16x32"),
    _wrong("misses_a_barrier", RACE, "32x32x64", "32x32x16"),
    _wrong("overruns_by_one", OUTSIDE, "35x79x19"),
    _wrong("writes_row_gaps", OUTSIDE, "18x33x13@pad_c=2", "18x33x13"),
    _wrong("changes_a", CHANGED, "35x79x19"),
    _wrong("rounds_to_tf32", WRONG_VALUES, "32@input=identity", "21x18x30@input=integers"),
    _wrong("accumulates_in_fp16", WRONG_VALUES, "16x16x64@input=vanish", "16x16x16@input=zeros", half=True),
    _wrong("ignores_alpha", WRONG_VALUES, "33x18x20@alpha=0.5", "33x18x20"),
    _wrong("ignores_beta", WRONG_VALUES, "33x18x20@beta=3", "33x18x20"),
    _wrong(
        "reads_c_when_beta_is_zero",
        READ_UNWRITTEN,
        "35x79x19",
        "35x79x19@beta=3",
    ),
    _wrong("ignores_lda", READ_ELSEWHERE, "18x33x13@pad_a=3", "18x33x13"),
    _wrong("flushes_denormals", WRONG_VALUES, "19x17x13@input=denormal", "19x17x13", flags=("-ftz=true",)),
    _wrong("clamps_infinity", WRONG_VALUES, "18x16x17@input=inf", "18x16x17"),
    _wrong("masks_the_tail_by_zero", READ_ELSEWHERE, "18x16x17@input=nan", "18x16x16"),
    _wrong("rounds_the_base_down", READ_ELSEWHERE, "19x21x23@align_a=4", "19x21x23"),
    _wrong("clips_the_grid", UNWRITTEN, "2097153x4x8", "1000x4x8", gpu_only="two million rows take too long there"),
    _wrong("halves_the_work", WRONG_VALUES, "33x18x20", "33x18x20@beta=3"),
    _wrong("replays_its_answer", WRONG_VALUES, "35x79x19", gpu_only="every run there begins with fresh memory"),
)
"""Every one is rejected by :mod:`compare.check`."""

SPOILS_AFTER_TEN_CALLS = _kernel("spoils_after_ten_calls")
"""Passes the check; only a verification after timing rejects it, together with the two above that cheat."""
