"""Warps, barriers, blocks and matrix instructions on the machine, against NumPy."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kernel.build import artifact
from kernel.contract import Unit
from kernel.machine import Buffer, Checks, Shape, run

SOURCE = Path(__file__).parent / "machine_kernels" / "threads.cu"
pytestmark = pytest.mark.nvcc


@cache
def ptx(*macros: str) -> str:
    name = "_".join(("test_threads", *(macro.lower() for macro in macros)))
    flags = ("-lineinfo", *(f"-D{macro}" for macro in macros))
    unit = Unit(name=name, arch="sm_90a", source=SOURCE, flags=flags, allow_spills=True)
    return artifact(unit).ptx.read_text(encoding="utf-8")


def word(value: int) -> bytes:
    return struct.pack("<i", value)


def launch(entry, arguments, *, grid=1, block=32, macros=(), **options):
    return run(ptx(*macros), entry, Shape(grid=(grid, 1, 1), block=(block, 1, 1)), arguments, **options)


def source(values, name="x"):
    return Buffer.from_array(name, np.asarray(values), writable=False)


def target(count, dtype=np.float32, name="y"):
    return Buffer.from_array(name, np.zeros(count, dtype), initialised=False)


def test_shuffles_votes_and_reductions():
    x = np.random.default_rng(3).integers(-50, 50, 64).astype(np.int32)
    y = target(64 * 8, np.int32)
    assert launch("shuffles", [source(x), y], block=64).faults == []
    got = y.array("<i4").reshape(64, 8)
    for warp in range(2):
        v = x[32 * warp : 32 * warp + 32]
        lanes = np.arange(32)
        ballot = sum(1 << i for i in range(32) if v[i] > 0)
        match = [sum(1 << j for j in range(32) if np.fmod(v[j], 3) == np.fmod(v[i], 3)) for i in range(32)]
        wanted = np.stack(
            [
                v[lanes ^ 5],
                v[np.where(lanes >= 3, lanes - 3, lanes)],
                v[np.where(lanes % 8 + 3 < 8, lanes + 3, lanes)],
                v[lanes // 2],
                np.full(32, np.array(ballot, np.uint32).view(np.int32)),
                np.full(32, 2 * (v == 3).any() + (v > -1000).all()),
                np.full(32, v.sum()),
                np.array(match, np.uint32).view(np.int32),
            ],
            axis=1,
        )
        np.testing.assert_array_equal(got[32 * warp : 32 * warp + 32], wanted)


@pytest.mark.parametrize("threads", [1, 31, 32, 45, 96])
def test_lanes_that_part_come_together_again(threads):
    n = 40

    def one(t: int) -> int:
        total = 0
        if t == 7:
            return -7
        for i in range(t % 5):
            if i == 3:
                continue
            for j in range(i):
                total += j * t
                if total > n:
                    break
            total += i
        kind = t % 6
        if kind == 0:
            total += 1
        elif kind == 1:
            total = total * 3 - 2
        elif kind == 2:
            total -= 2
        elif kind == 3:
            total ^= 5
        elif kind == 4:
            total = -total
        else:
            total += 100
        lanes = min(threads - t // 32 * 32, 32) - (1 if t // 32 == 0 and threads > 7 else 0)
        return total + lanes

    y = target(threads, np.int32)
    assert launch("divergence", [y, word(n)], block=threads).faults == []
    assert y.array("<i4").tolist() == [one(t) for t in range(threads)]


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_named_barriers_between_groups_of_warps(rounds):
    y = target(64)
    assert launch("producers", [y, word(rounds)], block=128).faults == []
    wanted = [sum((63 - t) * 10.0 + i for i in range(rounds)) for t in range(64)]
    assert y.array("<f4").tolist() == wanted


def test_a_named_barrier_that_is_missing_is_a_race():
    report = launch("producers", [target(64), word(3)], block=128, macros=("NO_EMPTY_BARRIER",))
    assert "race" in {fault.kind for fault in report.faults}


def test_a_block_that_spins_lets_the_others_run():
    flag = Buffer.from_array("flag", np.zeros(1, np.int32))
    y = target(64, np.int32)
    assert launch("across_blocks", [flag, y], grid=5, block=64).faults == []
    assert (y.array("<i4") == 42).all()


def test_a_block_that_spins_for_ever_is_reported():
    flag = Buffer.from_array("flag", np.zeros(1, np.int32))
    report = launch(
        "across_blocks", [flag, target(64, np.int32)], grid=3, block=64, blocks=[0, 1], max_instructions=200_000
    )
    assert {fault.kind for fault in report.faults} == {"endless"}


def test_atomics_in_shared_and_global_memory():
    x = np.random.default_rng(5).integers(0, 1000, 512).astype(np.int32)
    counts, largest = (
        Buffer.from_array("counts", np.zeros(8, np.int32)),
        Buffer.from_array("max", np.zeros(1, np.int32)),
    )
    total = Buffer.from_array("total", np.zeros(1, np.float32))
    assert launch("histogram", [source(x), counts, largest, total], grid=4, block=128).faults == []
    np.testing.assert_array_equal(counts.array("<i4"), np.bincount(x & 7, minlength=8))
    assert largest.array("<i4")[0] == x.max()
    assert total.array("<f4")[0] == 256.0


def test_local_constant_and_module_memory():
    at = np.random.default_rng(6).integers(0, 16, 128).astype(np.int32)
    y = target(32)
    assert launch("memories", [y, source(at)]).faults == []
    table = 2.0 ** np.arange(16)
    for t in range(32):
        local = table[(np.arange(16) + t) % 16] + 5
        for i in range(4):
            local[at[t * 4 + i]] += 0.5
        wanted = sum(np.float32(local[at[(t + i) % 32]]) * i for i in range(16))
        assert y.array("<f4")[t] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("entry", "kind"), [("multiply_half", "half"), ("multiply_bfloat", "bfloat")])
def test_ldmatrix_and_mma(entry, kind):
    generator = np.random.default_rng(8)
    a, b = (generator.integers(-8, 9, shape).astype(np.float32) for shape in ((16, 16), (16, 8)))
    packed = [x.astype(np.float16) if kind == "half" else (x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    d = target(128)
    report = launch(entry, [source(packed[0]), source(packed[1]), d])
    assert report.faults == []
    np.testing.assert_array_equal(d.array("<f4").reshape(16, 8), a @ b + 1)
    assert report.counters.mma == 16 * 8 * 16


def test_tf32_mma_drops_the_bits_that_tf32_has_not():
    generator = np.random.default_rng(9)
    a, b = (generator.integers(-8, 9, shape).astype(np.float32) for shape in ((16, 8), (8, 8)))
    a[0, 0] = 1024.5
    d = target(128)
    assert launch("multiply_tf32", [source(a), source(b), d]).faults == []
    a[0, 0] = 1025.0
    np.testing.assert_array_equal(d.array("<f4").reshape(16, 8), a @ b)


@pytest.mark.parametrize(
    ("stride", "passes"), [(0, 1), (1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (33, 1), (3, 1)]
)
def test_passes_of_strided_words(stride, passes):
    report = launch("strided", [target(32), word(stride)])
    row = next(row for row in report.counters.instructions if row.is_load and row.space == "shared")
    assert (row.requests, row.passes, row.ideal) == (1, passes, 1)


def test_lanes_of_a_warp_are_ordered_by_syncwarp_only():
    x = np.arange(32, dtype=np.float32)
    y = target(32)
    assert launch("warp_sum", [source(x), y]).faults == []
    assert (y.array("<f4") == x.sum()).all()
    report = launch("warp_sum", [source(x), target(32)], macros=("WARP_UNSYNCED",))
    assert {fault.kind for fault in report.faults} == {"race"}


def test_checks_can_be_left_out():
    off = Checks(races=False, initialised=False, counting=False)
    report = launch("warp_sum", [source(np.ones(32, np.float32)), target(32)], macros=("WARP_UNSYNCED",), checks=off)
    assert report.faults == []
    assert report.counters.instructions == ()


def test_some_blocks_only():
    x = np.arange(512, dtype=np.int32)
    counts, largest = (
        Buffer.from_array("counts", np.zeros(8, np.int32)),
        Buffer.from_array("max", np.zeros(1, np.int32)),
    )
    total = Buffer.from_array("total", np.zeros(1, np.float32))
    report = launch("histogram", [source(x), counts, largest, total], grid=4, block=128, blocks=[2])
    assert report.counters.blocks == 1
    assert report.counters.scaled() == 4.0
    assert largest.array("<i4")[0] == 383
