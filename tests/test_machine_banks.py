"""Bank passes from executed addresses against Nsight Compute's counters on an H200 at 1024 (FACTS, 2026)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from handwritten.catalog import get
from kernel import banks as model
from kernel.build import artifact
from kernel.contract import Problem, Unit
from kernel.machine import Buffer, Checks, Shape, run
from kernel.machine.command import banks, banks_text

SOURCE = Path(__file__).parent / "machine_kernels" / "chapter.cu"
N = 1024
pytestmark = pytest.mark.nvcc

# Requests, load wavefronts and conflicts of the whole launch; None where it was not recorded.
LADDER = {
    "v2_block_tile": (5_242_880, 37_748_736, 29_360_128),
    "v4_pad": (5_242_880, 12_582_912, 4_194_304),
    "v4_swizzle": (5_242_880, 8_388_608, 0),
    "v5_register_block": (2_097_152, 12_582_912, 6_291_456),
    "v6_transposed_split": (2_097_152, 6_291_456, 0),
}
CHAPTER = {
    (): (5_242_880, 37_748_736, 29_360_128),
    ("PAD",): (5_242_880, 12_582_912, 4_194_304),
    ("SWIZZLE",): (5_242_880, 8_388_608, 0),
    ("AHEAD=4",): (2_097_152, 12_582_912, 6_291_456),
    ("SWIZZLE", "AHEAD=4"): (5_242_880, 8_388_608, 0),
}


def whole(counters):
    factor = counters.scaled()
    loads = {name: round(value * factor) for name, value in counters.shared_loads().items()}
    return loads["requests"], loads["passes"], loads["conflicts"]


@pytest.mark.parametrize("name", LADDER)
def test_ladder_counters(name):
    assert whole(banks(get(name), Problem(m=N, n=N, k=N))) == LADDER[name]


@pytest.mark.parametrize("macros", CHAPTER, ids=lambda macros: "+".join(macros) or "plain")
def test_chapter_counters(macros):
    name = "_".join(("test_chapter", *macros)).lower().replace("=", "")
    unit = Unit(name=name, arch="sm_90a", source=SOURCE, flags=tuple(f"-D{m}" for m in macros), allow_spills=True)
    buffers = [Buffer.from_array(n, np.zeros((N, N), np.float32)) for n in "ABC"]
    extents = [struct.pack("<i", N)] * 3
    shape = Shape(grid=(8, 8, 1), block=(256, 1, 1))
    checks = Checks(races=False, initialised=False)
    report = run(artifact(unit).ptx, "chapter", shape, [*buffers, *extents], blocks=[9], checks=checks)
    assert report.faults == []
    assert whole(report.counters) == CHAPTER[macros]
    assert report.counters.fma == 128 * 128 * N


def test_the_count_of_fmas_and_the_table():
    counters = banks(get("v2_block_tile"), Problem(m=256, n=128, k=64))
    assert counters.fma == 128 * 128 * 64
    assert counters.blocks_in_grid == 2
    text = banks_text(counters)
    assert "ld.shared" in text
    assert "conflicts" in text
    assert "8.00" in text


PATTERNS = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry pattern(.param .u64 pattern_param_0)
{
  .shared .align 16 .b8 box[32768];
  .reg .b64 %p; .reg .b32 %t, %a, %u; .reg .f32 %f<5>; .reg .b64 %w<3>;
  ld.param.u64 %p, [pattern_param_0];
  mov.u32 %t, %tid.x;
  mad.wide.u32 %p, %t, 4, %p;
  ld.global.u32 %a, [%p];
  mov.u32 %u, box;
  add.u32 %a, %a, %u;
  LOAD
  ret;
}
"""
LOADS = {
    4: "ld.shared.f32 %f1, [%a];",
    8: "ld.shared.v2.f32 {%f1, %f2}, [%a];",
    16: "ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%a];",
}


@pytest.mark.parametrize("width", LOADS)
def test_the_engine_counts_as_the_model_does(width):
    generator = np.random.default_rng(width)
    for turn in range(60):
        spread = int(generator.choice([1, 4, 32, 64, 512, 2048]))
        address = generator.integers(0, spread, 32) * width
        if turn % 3 == 1:
            address = np.repeat(address[:16], 2)
        if turn % 3 == 2:
            address = (
                np.arange(32) // int(generator.choice([1, 2, 4])) * width * int(generator.choice([1, 2, 3, 8, 33]))
            )
            address %= 32768 - 32768 % width
        source = Buffer.from_array("at", address.astype(np.uint32))
        checks = Checks(races=False, initialised=False)
        report = run(
            PATTERNS.replace("LOAD", LOADS[width]),
            "pattern",
            Shape(grid=(1, 1, 1), block=(32, 1, 1)),
            [source],
            checks=checks,
        )
        row = next(row for row in report.counters.instructions if row.space == "shared")
        wanted = model.passes([int(at) for at in address], width)
        assert (row.passes, row.ideal) == (wanted.passes, wanted.ideal), address
