"""The bank model: textbook cases, and every counter recorded on an H200 for 1024^3."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.banks import passes
from kernel.errors import UsageError

LANES = range(32)


def test_float4_row_takes_four_passes_and_that_is_the_ideal():
    found = passes([16 * lane for lane in LANES], 16)
    assert (found.passes, found.ideal, found.conflicts) == (4, 4, 0)


def test_float4_rows_of_132_floats_take_four_passes():
    found = passes([4 * 132 * lane for lane in LANES], 16)
    assert (found.passes, found.ideal) == (4, 4)


def test_scalar_column_of_stride_32_is_32_way():
    found = passes([4 * 32 * lane for lane in LANES], 4)
    assert (found.passes, found.ideal, found.degree) == (32, 1, 32)


def test_scalar_column_of_stride_33_is_free():
    assert passes([4 * 33 * lane for lane in LANES], 4).passes == 1


def test_one_word_for_all_is_a_broadcast():
    for width, ideal in ((4, 1), (8, 1), (16, 2)):
        found = passes([64] * 32, width)
        assert (found.passes, found.ideal) == (ideal, ideal)


def test_float2_row_takes_two_passes():
    found = passes([8 * lane for lane in LANES], 8)
    assert (found.passes, found.ideal) == (2, 2)


def test_inactive_lanes_take_no_part():
    addresses = [4 * 32 * lane if lane < 4 else None for lane in LANES]
    assert passes(addresses, 4).passes == 4
    assert passes([None] * 32, 4).passes == 0
    assert passes([16 * lane if lane < 8 else None for lane in LANES], 16).ideal == 1


@pytest.mark.parametrize("pitch", range(16, 65))
def test_no_row_padding_beats_two_way_at_eight_rows_a_thread(pitch):
    assert passes([4 * pitch * 8 * (lane // 4) for lane in LANES], 4).degree >= 2


def test_nonsense_is_a_typed_error():
    with pytest.raises(UsageError, match="multiple"):
        passes([2] * 32, 4)
    with pytest.raises(UsageError):
        passes([0] * 31, 4)
    with pytest.raises(UsageError):
        passes([0] * 32, 12)


@given(st.lists(st.integers(0, 511), min_size=32, max_size=32), st.sampled_from([4, 8, 16]), st.permutations(range(8)))
def test_passes_lie_between_the_ideal_and_one_a_lane(places, width, order):
    found = passes([width * place for place in places], width)
    assert found.ideal <= found.passes <= 32
    assert found.degree <= found.passes
    # Renaming lanes inside a quarter-warp of a 4-byte access changes nothing.
    if width == 4:
        renamed = [width * places[8 * (lane // 8) + order[lane % 8]] for lane in LANES]
        assert passes(renamed, 4).passes == found.passes


# --- counters of FACTS.md: 1024^3, 64 blocks x 8 warps x 1024 k steps --------------------------------

WARP_STEPS = 64 * 8 * 1024


def loads_of_a(pitch, swizzle=lambda row, column: column):
    """Eight scalar loads a k step of A[row][kk], averaged over kk."""
    for i, kk in itertools.product(range(8), range(16)):
        rows = [lane // 4 * 8 + i for lane in LANES]
        yield [4 * (row * pitch + swizzle(row, kk)) for row in rows], 4, 1 / 16


def loads_of_b():
    """Two float4 loads a k step: eight columns a thread, four lanes along n."""
    for half in range(2):
        yield [32 * (lane % 4) + 16 * half for lane in LANES], 16, 1


def loads_ahead():
    """Four k steps of a row of A in one float4: eight loads for four steps."""
    for i in range(8):
        yield [4 * (lane // 4 * 8 + i) * 16 for lane in LANES], 16, 1 / 4


def loads_transposed(contiguous):
    """Two float4 loads a k step of A transposed: eight adjacent rows, or four and four."""
    for half in range(2):
        yield [32 * (lane // 4) + 16 * half if contiguous else 16 * (lane // 4) + 128 * half for lane in LANES], 16, 1
    for half in range(2):
        yield [16 * (lane % 4) + 64 * half for lane in LANES], 16, 1


def totals(*groups):
    requests = wavefronts = conflicts = 0.0
    for addresses, width, times in itertools.chain(*groups):
        found = passes(addresses, width)
        requests += times * WARP_STEPS
        wavefronts += found.passes * times * WARP_STEPS
        conflicts += found.conflicts * times * WARP_STEPS
    return requests, wavefronts, conflicts


def xor_bits_3_to_5(row, column):
    return column ^ (row >> 3 & 7)


@pytest.mark.parametrize(
    ("name", "groups", "requests", "wavefronts", "conflicts"),
    [
        ("v2", (loads_of_a(16), loads_of_b()), 5_242_880, 37_748_736, 29_360_128),
        ("padding", (loads_of_a(17), loads_of_b()), 5_242_880, 12_582_912, 4_194_304),
        ("swizzle", (loads_of_a(16, xor_bits_3_to_5), loads_of_b()), 5_242_880, 8_388_608, 0),
        ("read-ahead", (loads_ahead(), loads_of_b()), 2_097_152, 12_582_912, 6_291_456),
        ("transposed split", (loads_transposed(contiguous=False),), 2_097_152, 6_291_456, 0),
    ],
)
def test_reproduces_the_recorded_counters(name, groups, requests, wavefronts, conflicts):
    assert totals(*groups) == (requests, wavefronts, conflicts), name


def test_transposed_without_the_split_is_predicted_free_of_conflicts():
    assert totals(loads_transposed(contiguous=True))[2] == 0
