import itertools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.statistics import (
    BOOTSTRAP_FROM,
    StoppingRule,
    disagreement,
    geometric_mean,
    interval,
    paired_ratios,
    percentile,
    ratio_of_medians,
    round_order,
    spread,
)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 11, 12, 31])
def test_round_order_is_balanced(count):
    """Every contender at every position, and behind every other one, equally often."""
    rounds = count if count % 2 == 0 else 2 * count
    positions, neighbours = Counter(), Counter()
    for number in range(rounds):
        order = round_order(count, number)
        assert sorted(order) == list(range(count))
        positions.update(enumerate(order))
        neighbours.update(itertools.pairwise(order))
    assert set(positions.values()) == {rounds // count}
    if count > 1:
        assert len(neighbours) == count * (count - 1)
        assert len(set(neighbours.values())) == 1


def test_round_order_of_nobody():
    assert round_order(0, 3) == ()


def test_ratios_are_paired_within_rounds():
    # The device slows down by a factor of two on the way; an unpaired ratio of means would say otherwise.
    cublas, kernel = [1.0, 2.0, 4.0, None], [2.0, 4.0, None, 3.0]
    assert paired_ratios(cublas, kernel) == (0.5, 0.5)
    with pytest.raises(ValueError, match="not paired"):
        paired_ratios([1.0], [1.0, 2.0])


@pytest.mark.parametrize("samples", [3, 5, 6, 20, 60])
def test_intervals_hold_the_truth_about_as_often_as_they_say(samples):
    rng = random.Random(samples)
    held = sum(
        interval([1.1 * np.exp(rng.gauss(0, 0.01)) for _ in range(samples)], seed=trial).holds(1.1)
        for trial in range(300)
    )
    assert held >= 0.90 * 300


def test_small_sets_get_no_narrow_interval():
    three = interval([1.0, 1.001, 0.999])
    assert three.half_width > 0.0015  # the range alone would say 0.001
    assert interval([1.0]) is None
    assert interval([]) is None
    assert BOOTSTRAP_FROM == 6


def test_interval_of_equal_ratios():
    one = interval([1.0] * 20)
    assert (one.value, one.lo, one.hi) == (1.0, 1.0, 1.0)
    assert one.half_width == 0.0


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=40))
def test_interval_is_ordered_and_reproducible(ratios):
    found = interval(ratios)
    assert found.lo <= found.hi
    assert found == interval(ratios)
    if len(ratios) >= BOOTSTRAP_FROM:
        assert min(ratios) <= found.lo <= found.value <= found.hi <= max(ratios)


def test_ratio_of_medians_of_two_runs():
    rng = random.Random(1)
    before = [100 * np.exp(rng.gauss(0, 0.005)) for _ in range(30)]
    after = [105 * np.exp(rng.gauss(0, 0.005)) for _ in range(25)]
    found = ratio_of_medians(before, after)
    assert found.holds(1.05)
    assert not found.holds(1.0)
    assert ratio_of_medians(before[:1], after) is None
    few = ratio_of_medians(before[:3], after[:3])
    assert few.holds(1.05)
    assert few.hi - few.lo > found.hi - found.lo


def test_disagreement_sees_a_drift_and_not_noise():
    rng = random.Random(2)
    steady = [np.exp(rng.gauss(0, 0.01)) for _ in range(40)]
    assert disagreement(steady) < 0.01
    assert disagreement(steady[:20] + [1.05 * value for value in steady[20:]]) > 0.03
    assert disagreement([1.0, 2.0, 3.0]) == 0.0
    assert spread([1.0, 1.05, 0.98]) == pytest.approx(0.07)


def test_stopping_rule():
    rule = StoppingRule(min_rounds=20, max_rounds=100, half_width=0.005, cap_s=10, hard_cap_s=60)
    assert rule.decide(19, 0.1, [0.0001]) is None, "never before the least number of rounds"
    assert rule.decide(19, 59, [0.0001]) is None, "nor because of the soft cap"
    assert "half-width within 0.5 %" in rule.decide(20, 0.1, [0.004, 0.005])
    assert rule.decide(20, 0.1, [0.004, 0.006]) is None
    assert rule.decide(20, 0.1, [0.004, None]) is None
    assert rule.decide(20, 0.1, [0.004, float("nan")]) is None
    assert "time cap of 10 s after 30 rounds" in rule.decide(30, 10, [0.1])
    assert "round cap" in rule.decide(100, 1, [0.1])
    assert "hard time cap of 60 s after 3 rounds" in rule.decide(3, 60, [0.1])
    assert "nothing to compare" in rule.decide(20, 1, [])


def test_geometric_mean_shows_what_is_missing():
    assert geometric_mean([0.5, 2.0]).value == pytest.approx(1.0)
    assert str(geometric_mean([0.5, 2.0])) == "1.000"
    assert str(geometric_mean([0.5, None, 2.0])) == "1.000 over 2 of 3"
    assert geometric_mean([None]).value is None


def test_percentile_interpolates():
    assert percentile([1.0, 2.0], 90) == pytest.approx(1.9)
