"""Arithmetic intensity by formula, and where a device's roofline bends."""

from __future__ import annotations

import pytest

from kernel import intensity
from kernel.contract import Problem, Tile


def test_the_chapters_numbers():
    assert intensity.naive().value == 0.25
    assert intensity.thread_tile(8, 8).value == 2
    assert intensity.thread_tile(4, 4).value == 1
    assert intensity.block_tile(128, 128).value == 32
    assert intensity.block_tile(64, 64).value == 16
    assert intensity.loads_per_fma(4, 4) / intensity.loads_per_fma(1, 1) == 0.25


def test_half_as_many_bytes_an_element_is_twice_the_intensity():
    assert intensity.block_tile(128, 256, 2).value == 2 * intensity.block_tile(128, 256, 4).value


def test_levels_that_a_tile_has():
    levels = intensity.of_tile(Tile(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64), "float16")
    assert [(i.level, round(i.value, 1)) for i in levels] == [("global", 85.3)]
    assert intensity.of_tile(Tile(), "float32") == ()


def test_compulsory_traffic_counts_c_twice_where_beta_reads_it():
    once = intensity.compulsory(Problem(m=64, n=64, k=64))
    twice = intensity.compulsory(Problem(m=64, n=64, k=64, beta=1.0))
    assert once.bytes == 4 * 3 * 64 * 64
    assert twice.bytes == 4 * 4 * 64 * 64


def test_roofline():
    roof = intensity.Roof("NVIDIA H100 80GB HBM3", 66.9, intensity.BANDWIDTH["NVIDIA H100 80GB HBM3"])
    assert roof.crossover == pytest.approx(20, abs=0.1)
    assert roof.attainable(10) == pytest.approx(33.5)
    assert roof.attainable(32) == 66.9
