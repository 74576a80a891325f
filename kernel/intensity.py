"""Arithmetic intensity, FLOP per byte, and where it puts a kernel under a device's roofline.

Two ways to count bytes: by formula, from the tile, and by execution, from the loads that a thread block
was seen to make. Both count what is asked of a level of memory, not what a cache lets through.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.contract import ITEMSIZE, Problem, Tile

FLOP_PER_FMA = 2

BANDWIDTH: dict[str, float] = {
    "NVIDIA A100-SXM4-40GB": 1.555,
    "NVIDIA A100-SXM4-80GB": 2.039,
    "NVIDIA RTX A6000": 0.768,
    "NVIDIA H100 80GB HBM3": 3.35,
    "NVIDIA H100 PCIe": 2.0,
    "NVIDIA H200": 4.8,
    "NVIDIA B200": 8.0,
    "NVIDIA GeForce RTX 4090": 1.008,
    "NVIDIA GeForce RTX 5090": 1.792,
}
"""Published device-memory bandwidth in TB/s, by the name the driver reports. Source: the device's datasheet."""


@dataclass(frozen=True)
class Roof:
    """A device's two limits."""

    device: str
    tflops: float
    """Peak rate, TFLOP/s."""
    terabytes_per_s: float
    """Device-memory bandwidth, TB/s."""

    @property
    def crossover(self) -> float:
        """FLOP per byte above which arithmetic, not memory, is the limit."""
        return self.tflops / self.terabytes_per_s

    def attainable(self, intensity: float) -> float:
        """TFLOP/s that the roofline allows at an intensity in FLOP per byte."""
        return min(self.tflops, intensity * self.terabytes_per_s)


@dataclass(frozen=True)
class Intensity:
    """FLOP per byte at one level of memory, and what was counted."""

    level: str
    """global (what the block asks of L2 and device memory) or shared."""
    flop: float
    bytes: float
    method: str

    @property
    def value(self) -> float:
        """FLOP per byte."""
        return self.flop / self.bytes


def naive(itemsize: int = 4) -> Intensity:
    """One element a thread, nothing kept: two loads for each multiply-add."""
    return Intensity("global", FLOP_PER_FMA, 2 * itemsize, "two loads per multiply-add")


def thread_tile(THREAD_M: int, THREAD_N: int, itemsize: int = 4) -> Intensity:
    """A thread that loads THREAD_M + THREAD_N numbers for THREAD_M * THREAD_N multiply-adds."""
    flop = FLOP_PER_FMA * THREAD_M * THREAD_N
    return Intensity("shared", flop, itemsize * (THREAD_M + THREAD_N), "fragments of one k step")


def block_tile(BLOCK_M: int, BLOCK_N: int, itemsize: int = 4) -> Intensity:
    """A block that loads a column of BLOCK_M and a row of BLOCK_N numbers per k step."""
    flop = FLOP_PER_FMA * BLOCK_M * BLOCK_N
    return Intensity("global", flop, itemsize * (BLOCK_M + BLOCK_N), "block tiles of one k step")


def loads_per_fma(THREAD_M: int, THREAD_N: int) -> float:
    """Scalar loads for each multiply-add of a thread tile: 2 for one element, 1/2 for 4 x 4."""
    return (THREAD_M + THREAD_N) / (THREAD_M * THREAD_N)


def of_tile(tile: Tile, dtype_in: str) -> tuple[Intensity, ...]:
    """What the extents of a tile alone say, for each level that the tile has."""
    found = []
    if tile.BLOCK_M and tile.BLOCK_N:
        found.append(block_tile(tile.BLOCK_M, tile.BLOCK_N, ITEMSIZE[dtype_in]))
    if tile.THREAD_M and tile.THREAD_N:
        found.append(thread_tile(tile.THREAD_M, tile.THREAD_N, ITEMSIZE[dtype_in]))
    return tuple(found)


def compulsory(problem: Problem) -> Intensity:
    """The whole GEMM with A and B read once and C written once: 2mnk over bytes that must move."""
    return Intensity("global", float(problem.flop), float(problem.bytes_min), "every element moved once")
