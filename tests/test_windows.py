"""Rounds, slices, pairing, caps and orders, on a device that is arithmetic."""

import random
from collections import Counter

import pytest

from compare.statistics import StoppingRule, interval
from compare.timing import Job, Work
from compare.windows import (
    BurstSettings,
    SustainedSettings,
    _at,
    burst,
    pack,
    plan_sample,
    sustained,
)
from kernel.contract import Problem
from tests.simulated_bench import SimulatedBench, SimulatedContender, SimulatedOperands

PROBLEM = Problem(m=4096, n=4096, k=4096)
TWENTY = StoppingRule(min_rounds=20, max_rounds=40, half_width=0.005, cap_s=30.0)


def work(contender, sets=1, restore=None):
    operands = SimulatedOperands()
    prepared = tuple(contender.prepare(PROBLEM, operands.pointers(i), 0) for i in range(sets))
    return Work(contender.name, prepared, restore)


def contenders(count, seconds=1e-3, **changes):
    made = [SimulatedContender("cublas_sgemm", seconds, family="cublas", **changes)]
    return made + [SimulatedContender(f"v{i}", seconds * (1 + 0.1 * i), **changes) for i in range(1, count)]


def plans(bench, group, settings):
    return [plan_sample(bench, work(one), one.seconds, settings.sample_s) for one in group]


def run(group, settings, bench=None, **options):
    bench = bench or SimulatedBench()
    return bench, burst(bench, plans(bench, group, settings), 0, settings, **options)


def test_ratios_come_out_and_the_run_stops_at_the_least_number_of_rounds():
    _, result = run(contenders(4), BurstSettings(stop=TWENTY))
    assert result.rounds == 20
    assert "half-width within" in result.stopped_because
    cublas, third = result.series[0], result.series[3]
    ratios = [c / t for c, t in zip(cublas.seconds, third.seconds, strict=True)]
    assert interval(ratios).holds(1 / 1.3)


def test_noise_costs_rounds_until_the_cap():
    noisy = contenders(3, noise=0.05)
    _, result = run(noisy, BurstSettings(stop=TWENTY))
    assert result.rounds == 40
    assert result.stopped_because == "round cap of 40"
    _, result = run(noisy, BurstSettings(stop=StoppingRule(min_rounds=20, cap_s=3.0)))
    assert "time cap of 3 s" in result.stopped_because
    assert result.rounds >= 20


def test_every_slice_follows_an_idle_and_holds_at_most_its_limit():
    settings = BurstSettings(sample_s=0.003, stop=TWENTY)
    bench, result = run(contenders(5), settings)
    slices = [entry for entry in bench.log if entry != "forget"]
    assert bench.idles == [0.2] * len(slices)
    for entry in slices:
        spent = sum(
            (launches + lead) * (1e-3 * (1 + 0.1 * int(name[1:] if name[0] == "v" else 0)))
            for name, launches, _, lead in entry
        )
        assert spent <= 0.010 + 1e-9
    assert result.slice_s == 0.010
    assert len(slices) == 2 * result.rounds + (result.rounds if len(slices) > 2 * result.rounds else 0)


def test_a_launch_longer_than_a_slice_has_one_to_itself():
    assert pack([0, 1, 2, 3], [0.004, 0.02, 0.004, 0.004], 0.010) == [[0], [1], [2, 3]]
    assert pack([], [], 0.01) == []


def test_positions_rotate_over_rounds():
    bench, _ = run(contenders(4), BurstSettings(stop=TWENTY))
    first = Counter(entry[0][0] for entry in bench.log if len(entry) == 4)
    assert set(first.values()) == {5}


def test_long_slices_are_halved_while_the_clock_sags():
    settings = BurstSettings(long_slice_s=0.4, stop=TWENTY)
    group = contenders(6, seconds=0.02, watts=600.0)
    _, calm = run(group, settings, may_use_long_slices=True)
    assert calm.slice_s == 0.4
    assert calm.notes == ()
    bench, hot = run(group, settings, SimulatedBench(cap_w=500.0), may_use_long_slices=True)
    assert hot.slice_s == 0.025, "each of these launches then has a slice to itself"
    assert hot.notes[0].startswith("rounds in which the clock sagged by more than 1.5 %: 4; ")
    assert hot.rounds == 20
    assert all(len(series.taken) == len(series.clocks) == 20 for series in hot.series), "sagged rounds do not count"
    assert len(bench.log[-1]) == 1
    assert sum(bench.idles) == pytest.approx(hot.idle_s)
    _, tensor = run(group, settings)
    assert tensor.slice_s == 0.010


def test_one_sag_costs_one_round_and_not_the_length_of_all_that_follow():
    class SagsOnce(SimulatedBench):
        def _run(self, job):
            seconds, clock = super()._run(job)
            return seconds, clock * (0.97 if len(self.log) == 12 and job.work.name == "v3" else 1.0)

    bench, result = run(
        contenders(8, seconds=0.003), BurstSettings(long_slice_s=0.4, stop=TWENTY), SagsOnce(), may_use_long_slices=True
    )
    assert (result.rounds, result.slice_s) == (20, 0.2)
    assert "sagged by more than 1.5 %: 1" in result.notes[0]
    assert len(bench.log) == 21
    clocks = [clock for series in result.series for clock in series.clocks]
    assert min(clocks) > 0.985 * max(clocks)


def test_interleaving_under_a_cap_is_why_slices_are_short():
    """A thrifty kernel and a hungry one: back to back they share the clock, after idling they do not."""
    thrifty = SimulatedContender("thrifty", 1e-3, watts=450.0)
    hungry = SimulatedContender("hungry", 1e-3, family="cublas", watts=800.0)
    bench = SimulatedBench(cap_w=500.0)
    jobs = [Job(work(hungry), 20), Job(work(thrifty), 20)]
    for _ in range(10):
        mixed = bench.slice(jobs)
    alone = [SimulatedBench(cap_w=500.0).window(job, 1.0) for job in jobs]
    mixed_ratio = mixed.readings[0].seconds / mixed.readings[1].seconds
    alone_ratio = alone[0].seconds[-1] / alone[1].seconds[-1]
    assert alone_ratio > 1.02 * mixed_ratio


def test_short_launches_go_into_graphs_and_sets_are_used_in_turn():
    bench = SimulatedBench()
    short = SimulatedContender("v1", 8e-6)
    plan = plan_sample(bench, work(short), 8e-6, 0.001)
    assert (plan.timer, plan.launches, plan.lead_in) == ("graph", 125, 1)
    plan = plan_sample(bench, work(short), 30e-6, 0.001)
    assert (plan.timer, plan.launches) == ("graph", 100)
    plan = plan_sample(bench, work(short, sets=16), 8e-6, 0.001)
    assert (plan.launches % 16, plan.lead_in) == (0, 15)
    long = plan_sample(bench, work(short), 5e-3, 0.001)
    assert (long.timer, long.launches, long.lead_in) == ("events", 1, 0)
    assert plan_sample(bench, work(short), 3e-4, 0.001).launches == 3


def test_a_slow_timer_moves_the_limit_up():
    slow = SimulatedBench(overhead=30e-6)
    assert plan_sample(slow, work(SimulatedContender("v1", 2e-4)), 2e-4, 0.001).timer == "graph"


def test_a_ratio_is_withheld_where_neither_timer_will_do():
    bench = SimulatedBench(overhead=5e-6)
    stubborn = SimulatedContender("v1", 8e-6, no_graphs=True)
    filled = plan_sample(bench, work(stubborn), 8e-6, 0.001)
    assert (filled.timer, filled.note) == ("events", ""), "many launches between two events share their cost"
    restoring = plan_sample(bench, work(stubborn, restore=lambda stream: None), 8e-6, 0.001)
    assert "ratio withheld" in restoring.note


def test_a_failing_launch_costs_its_contender_only():
    group = [*contenders(3), SimulatedContender("broken", 1e-3)]
    bench = SimulatedBench()
    made = plans(bench, group, BurstSettings())
    group[3].refuses_launch = True
    result = burst(bench, made, 0, BurstSettings(stop=TWENTY))
    assert "too much shared memory" in result.series[3].failed
    assert result.series[3].taken == []
    assert all(len(series.taken) == 20 for series in result.series[:3])


def test_nobody_left():
    group = contenders(1)
    bench = SimulatedBench()
    made = plans(bench, group, BurstSettings())
    group[0].refuses_launch = True
    assert burst(bench, made, 0, BurstSettings(stop=TWENTY)).stopped_because == "every contender failed"


STEADY = SustainedSettings(stop=StoppingRule(min_rounds=3, max_rounds=6, half_width=0.01, cap_s=60))


def steady(group, settings=STEADY, bench=None, seed=0):
    bench = bench or SimulatedBench()
    times = {one.name: one.seconds for one in group}
    return bench, sustained(bench, [work(one) for one in group], times, 0, settings, seed=seed)


def test_sustained_windows_are_long_enough_and_surrounded_by_cublas():
    _, result = steady(contenders(6))
    assert result.repeats >= 3
    assert result.order[0] == result.order[-1] == "cublas_sgemm"
    between = 0
    for name in result.order:
        between = 0 if name == "cublas_sgemm" else between + 1
        assert between <= STEADY.baseline_every
    for one in result.steady:
        assert all(window.total_s >= 0.6 for window in one.windows)
        assert all(window.ended - window.began <= 0.55 * window.total_s for window in one.windows)
    assert interval(result.steady[5].ratios).value == pytest.approx(1 / 1.5, rel=0.01)


def test_windows_are_longer_where_the_clock_does_not_hold():
    group = contenders(3)
    for one in group:
        one.watts = 900.0
    bench, result = steady(group, bench=SimulatedBench(cap_w=500.0))
    assert all(window.total_s >= STEADY.capped_s for one in result.steady for window in one.windows)
    assert all(window.ended - window.began >= 0.95 for one in result.steady for window in one.windows)
    tried = [entry[0][1] for entry in bench.log if entry[0][0] == "window"]
    assert tried[:2] == ["cublas_sgemm"] * 2  # the short one that showed the cap counts for nothing
    assert tried[1:] == result.order


def test_sustained_order_is_random_and_reproducible():
    orders = [steady(contenders(6), seed=seed)[1].order for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    one = orders[0]
    third = len(one) // 3
    assert one[:third] != one[third : 2 * third]


def test_sustained_ratios_follow_a_drifting_baseline():
    """cuBLAS slows down by 10 % while others wait their turn; ratios refer to what it took then."""

    class Drifting(SimulatedBench):
        def _run(self, job):
            seconds, clock = super()._run(job)
            return seconds * (1 + 0.01 * self.clock), clock

    _, result = steady(contenders(4, noise=0.0), bench=Drifting())
    for number, one in enumerate(result.steady[1:], start=1):
        assert one.ratios == pytest.approx([1 / (1 + 0.1 * number)] * len(one.ratios), rel=2e-3)


def test_baseline_between_windows():
    points = [(0.0, 1.0), (10.0, 2.0)]
    assert [_at(points, moment) for moment in (-1.0, 0.0, 5.0, 12.0)] == [1.0, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("fails", [0, 2])
def test_a_contender_that_fails_in_its_window_has_no_other_and_the_rest_go_on(fails):
    group = contenders(4)
    times = {one.name: one.seconds for one in group}
    bench, works = SimulatedBench(), [work(one) for one in group]
    group[fails].refuses_launch = True
    settings = SustainedSettings(window_s=0.05, stop=StoppingRule(min_rounds=3, max_rounds=3))
    result = sustained(bench, works, times, 0, settings)
    failed = result.steady[fails]
    assert failed.failed == f"{group[fails].name}: too much shared memory"
    assert (failed.windows, failed.median_s) == ([], None)
    assert result.order.count(group[fails].name) == 1
    for steady in result.steady:
        if steady is not failed:
            assert len(steady.windows) >= 3
            assert bool(steady.ratios) == (fails != 0 and steady is not result.steady[0])


def test_wide_sustained_intervals_cost_repeats():
    rng_noise = contenders(3, noise=0.0)

    class Unsteady(SimulatedBench):
        def window(self, job, seconds, lead_s=None):
            reading = super().window(job, seconds, lead_s)
            shaken = tuple(value * random.Random(self.clock).uniform(0.9, 1.1) for value in reading.seconds[:1])
            return type(reading)(shaken, reading.began, reading.ended, reading.total_s)

    _, result = steady(rng_noise, bench=Unsteady())
    assert result.repeats == 6
    assert "round cap" in result.stopped_because


def test_parts_of_a_window_are_graphs_where_possible():
    bench, _ = steady([*contenders(2, seconds=2e-4), SimulatedContender("stubborn", 2e-4, no_graphs=True)])
    timers = {entry[0][1]: entry[0][2:] for entry in bench.log if entry[0][0] == "window"}
    assert timers["v1"] == (36, "graph")
    assert timers["stubborn"][1] == "events"
