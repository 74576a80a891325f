"""A whole comparison group on the simulated device: who runs, what is refused, what is caught."""

import dataclasses

import numpy as np
import pytest

from compare.measure import (
    Measurement,
    Settings,
    cold_sets,
    estimate_s,
    measure_group,
    quick,
    record,
    self_test,
)
from compare.statistics import StoppingRule
from compare.windows import BurstSettings, SustainedSettings
from kernel.contract import Problem
from kernel.errors import CheckError, LaunchError
from tests.simulated_bench import SimulatedBench, SimulatedContender, SimulatedOperands, honest

PROBLEM = Problem(m=2048, n=2048, k=2048)
FAST = Settings(
    burst=BurstSettings(stop=StoppingRule(min_rounds=20, max_rounds=20)),
    sustained=SustainedSettings(stop=StoppingRule(min_rounds=3, max_rounds=3, half_width=0.01)),
)


def cublas(**changes):
    return SimulatedContender("cublas_sgemm", 3.4e-4, family="cublas", is_default=True, **changes)


def reverify_with(operands):
    """What compare.operand_sets does on a GPU, on sixteen by sixteen."""

    def reverify(contender, prepared):
        operands.redraw(seed=99)
        before = operands.c.copy()
        if not prepared.problem.beta:
            operands.c = np.full_like(operands.c, np.nan)
        prepared.enqueue(0)
        p = prepared.problem
        want = p.alpha * operands.a.astype(np.float64) @ operands.b + (p.beta * before if p.beta else 0)
        wrong = int((~(np.abs(operands.c - want) <= 1e-5)).sum())
        return f"{wrong} of {want.size} elements wrong" if wrong else None

    return reverify


def measure(group, problem=PROBLEM, settings=FAST, bench=None, **options):
    operands = SimulatedOperands()
    return measure_group(
        group, problem, operands, settings, bench=bench or SimulatedBench(),
        reverify=reverify_with(operands), **options,
    )  # fmt: skip


def by(found, window="burst", l2="warm"):
    return {one.name: one for one in found if one.window == window and one.l2 == l2}


def test_a_group_in_both_windows():
    found = measure([cublas(), SimulatedContender("v1", 6.8e-4)])
    for window in ("burst", "sustained"):
        v1, reference = by(found, window)["v1"], by(found, window)["cublas_sgemm"]
        assert v1.x_cublas.holds(0.5)
        assert v1.tflops == pytest.approx(2 * 2048**3 / 6.8e-4 * 1e-12, rel=0.01)
        assert reference.x_cublas.value == 1.0
        assert v1.clock_mhz == pytest.approx(1980.0)
        assert v1.unstable is False
        assert v1.stopped_because
    assert by(found, "sustained")["v1"].power_w == 400.0
    assert by(found, "burst")["v1"].power_w is None, "too short a window for a power"
    steady = by(found, "sustained")["v1"]
    assert len(steady.window_seconds) == 3
    assert steady.samples()["window_power_w"] == [400.0, 400.0, 400.0]
    assert by(found)["v1"].kernel_names == ("v1_kernel",)


def test_samples_are_kept_in_plain_types():
    import json

    one = by(measure([cublas(), SimulatedContender("v1", 6.8e-4)]))["v1"]
    kept = json.loads(json.dumps(one.samples()))
    assert len(kept["time_us"]) == len(one.seconds) == 20
    assert kept["time_us"][0] == pytest.approx(680, rel=0.02)
    assert len(kept["x_cublas"]) == 20


def test_nobody_vanishes():
    group = [
        cublas(),
        SimulatedContender("refuses", 1e-3, refuses="k is no multiple of 64"),
        SimulatedContender("slow", 1e-3, largest_timed=1024),
        SimulatedContender("broken", 1e-3, refuses_launch=True),
        SimulatedContender("fp16", 1e-3, track="fp16_tensor"),
    ]
    found = measure(group)
    assert [one.name for one in found] == [name for one in group for name in [one.name] * 2]
    burst = by(found)
    assert burst["refuses"].skipped_because == "k is no multiple of 64"
    assert "too slow to be timed above 1024" in burst["slow"].skipped_because
    assert "too much shared memory" in burst["broken"].skipped_because
    assert "does not belong on the track fp16_tensor" in burst["fp16"].rejected_because
    assert all(not burst[name].seconds for name in ("refuses", "slow", "broken", "fp16"))
    assert burst["cublas_sgemm"].seconds


def test_slow_contenders_run_when_asked_for():
    found = measure(
        [cublas(), SimulatedContender("slow", 1e-3, largest_timed=64)],
        settings=dataclasses.replace(FAST, leave_out_slow=False),
    )
    assert by(found)["slow"].seconds


def test_without_cublas_there_are_times_and_no_ratios():
    one = by(measure([SimulatedContender("v1", 1e-3)]))["v1"]
    assert one.x_cublas is None
    assert one.seconds
    assert "cuBLAS is not among the contenders" in one.notes[0]


def test_an_empty_problem_has_no_time():
    one = by(measure([cublas()], Problem(m=0, n=64, k=64)))["cublas_sgemm"]
    assert one.tflops is None
    assert "C is empty" in one.skipped_because


# Cheats. Each computes honestly until it can get away with less.


def stale(prepared, operands):
    if "answer" not in prepared.memory:
        honest(prepared, operands)
        prepared.memory["answer"] = operands.c.copy()
    operands.c = prepared.memory["answer"].copy()


def corrupt_after_ten(prepared, operands):
    honest(prepared, operands)
    if prepared.calls > 10:
        operands.c[0, 0] += 1.0


def half_when_beta_is_zero(prepared, operands):
    before = operands.c.copy()
    honest(prepared, operands)
    if prepared.problem.beta == 0.0:
        operands.c[8:] = before[8:]


@pytest.mark.parametrize("cheat", [stale, corrupt_after_ten, half_when_beta_is_zero])
def test_cheats_lose_their_times(cheat):
    found = measure([cublas(), SimulatedContender("cheat", 1e-4, compute=cheat), SimulatedContender("v1", 6e-4)])
    for window in ("burst", "sustained"):
        caught = by(found, window)["cheat"]
        assert "wrong after timing, on changed inputs" in caught.rejected_because
        assert (caught.seconds, caught.x_cublas, caught.tflops) == ((), None, None)
        assert by(found, window)["v1"].x_cublas is not None


def test_the_same_checks_pass_the_honest():
    assert all(not one.rejected_because for one in measure([cublas(), SimulatedContender("v1", 6e-4)]))


def test_rates_above_the_physical_peak_are_refused():
    one = by(measure([cublas(), SimulatedContender("v1", 1e-4)]))["v1"]
    assert "physical peak of fp32_simt on NVIDIA H200" in one.rejected_because
    assert one.median_s is None


def test_a_missing_synchronisation_is_noticed():
    one = by(measure([cublas(), SimulatedContender("v1", 6e-4, unsynchronised=True)]))["v1"]
    assert "does not grow with the work" in one.rejected_because


def test_c_is_restored_before_every_launch_where_beta_is_not_zero():
    operands = SimulatedOperands()
    grows = dataclasses.replace(PROBLEM, alpha=0.5, beta=3.0)
    found = measure_group(
        [cublas(), SimulatedContender("v1", 6.8e-4)], grows, operands, FAST,
        bench=SimulatedBench(), reverify=reverify_with(operands),
    )  # fmt: skip
    assert operands.restored > 40
    assert np.isfinite(operands.c).all()
    assert by(found)["v1"].x_cublas.holds(0.5)
    assert by(found)["v1"].timer == "events"
    assert not by(found)["v1"].rejected_because


def test_cold_runs_through_enough_operand_sets():
    small = Problem(m=1024, n=1024, k=1024)
    bench, operands = SimulatedBench(), SimulatedOperands()
    settings = dataclasses.replace(FAST, cold=True, sustained=None)
    found = measure_group([cublas()], small, operands, settings, bench=bench, reverify=reverify_with(operands))
    sets = cold_sets(small, bench.facts.l2_bytes)
    assert (sets - 1) * small.bytes_min >= 3 * bench.facts.l2_bytes
    assert operands.sets == sets == 16
    cold = by(found, l2="cold")["cublas_sgemm"]
    assert cold.seconds
    assert cold_sets(Problem(m=8192, n=8192, k=8192), 60 << 20) == 2


def test_cold_says_why_it_was_left_out():
    settings = dataclasses.replace(FAST, cold=True, sustained=None, max_cold_bytes=1 << 20)
    found = measure([cublas()], settings=settings)
    assert "operand sets" in by(found, l2="cold")["cublas_sgemm"].skipped_because
    beta = dataclasses.replace(PROBLEM, beta=1.0)
    found = measure([cublas()], beta, dataclasses.replace(settings, max_cold_bytes=1 << 40))
    assert "beta = 0 only" in by(found, l2="cold")["cublas_sgemm"].skipped_because


def test_cold_without_room_says_so_and_keeps_the_warm_times(monkeypatch):
    def full(self, sets):
        raise MemoryError("80 GiB asked for")

    monkeypatch.setattr(SimulatedOperands, "grow", full)
    settings = dataclasses.replace(FAST, cold=True, sustained=None, max_cold_bytes=1 << 40)
    found = measure([cublas()], Problem(m=512, n=512, k=512), settings)
    assert by(found)["cublas_sgemm"].seconds
    reason = by(found, l2="cold")["cublas_sgemm"].skipped_because
    assert reason.startswith("no room for ")
    assert reason.endswith(" operand sets: 80 GiB asked for")


class OncePrepared(SimulatedContender):
    """Refuses the second operand set."""

    def prepare(self, problem, pointers, stream):
        if pointers != SimulatedOperands.current.pointers(0):
            raise LaunchError(f"{self.name}: no memory for its workspace")
        return super().prepare(problem, pointers, stream)


def test_who_is_refused_on_a_further_operand_set_has_no_cold_time():
    settings = dataclasses.replace(FAST, cold=True, sustained=None)
    found = measure([cublas(), OncePrepared("v1", 6.8e-4)], Problem(m=512, n=512, k=512), settings)
    assert by(found)["v1"].seconds
    assert by(found, l2="cold")["cublas_sgemm"].seconds
    cold = by(found, l2="cold")["v1"]
    assert (cold.seconds, cold.skipped_because) == ((), "v1: no memory for its workspace")


def stops_after_the_pilot(prepared, operands):
    if prepared.calls > 20:
        raise LaunchError("v1: an illegal address")
    honest(prepared, operands)


def test_who_fails_within_a_burst_is_told_and_the_others_have_their_times():
    found = measure([cublas(), SimulatedContender("v1", 6.8e-4, compute=stops_after_the_pilot)])
    v1 = by(found)["v1"]
    assert (v1.seconds, v1.skipped_because) == ((), "v1: an illegal address")
    assert by(found)["cublas_sgemm"].seconds
    assert by(found, "sustained")["v1"].skipped_because == "v1: an illegal address"


def test_a_library_whose_call_cannot_be_captured_has_times_without_kernel_names():
    class Uncaptured(SimulatedContender):
        def prepare(self, problem, pointers, stream):
            found = super().prepare(problem, pointers, stream)

            class Nameless(type(found)):
                @property
                def kernel_names(self):
                    raise LaunchError("cuStreamEndCapture answered CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")

            found.__class__ = Nameless
            return found

    one = by(measure([cublas(), Uncaptured("v1", 6.8e-4)]))["v1"]
    assert one.kernel_names == ()
    assert one.seconds


def test_a_group_in_which_nobody_runs_takes_no_time():
    one = SimulatedContender("v1", 1e-3, refuses="k is odd")
    assert estimate_s([one], PROBLEM, FAST) == 0.0
    assert estimate_s([one, SimulatedContender("v2", 1e-3)], PROBLEM, FAST) > 0.0


def test_quick_sustains_cublas_best_and_default_only():
    group = [
        cublas(),
        SimulatedContender("v1", 9e-4),
        SimulatedContender("v6", 5e-4),
        SimulatedContender("cutlass_default", 4.5e-4, family="cutlass", is_default=True),
        SimulatedContender("cutlass_best", 4e-4, family="cutlass"),
        SimulatedContender("cutlass_other", 4.2e-4, family="cutlass"),
    ]
    problem = Problem(m=4096, n=4096, k=4096)
    for one in group:
        one.seconds *= 8
    found = measure(group, problem, quick())
    assert set(by(found, "sustained")) == {"cublas_sgemm", "v6", "cutlass_default", "cutlass_best"}
    assert by(measure(group, Problem(m=2048, n=2048, k=4096), quick()), "sustained") == {}


def test_record_takes_both_windows_of_the_best_and_bursts_of_everyone():
    group = [cublas(), SimulatedContender("v1", 9e-4), SimulatedContender("v2", 8e-4)]
    found = measure(group, Problem(m=1024, n=1024, k=8192), record())
    assert set(by(found, "sustained")) == {"cublas_sgemm", "v2"}
    assert set(by(found, "burst")) == {"cublas_sgemm", "v1", "v2"}


def test_bursts_with_a_cold_cache_are_taken_beside_warm_ones():
    settings = dataclasses.replace(record(), cold=True)
    found = measure([cublas(), SimulatedContender("v1", 9e-4)], Problem(m=1024, n=1024, k=8192), settings)
    assert set(by(found, l2="cold")) == {"cublas_sgemm", "v1"}


def test_progress_never_goes_back():
    seen = []
    measure([cublas(), SimulatedContender("v1", 9e-4)], progress=seen.append)
    fractions = [step.fraction for step in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)
    assert any("sustained v1" in step.text for step in seen)


def test_a_kernel_against_itself():
    bench = SimulatedBench()
    results = self_test(cublas(), PROBLEM, SimulatedOperands(), FAST, bench=bench)
    assert {result.window for result in results} == {"burst, warm L2", "sustained, warm L2"}
    for result in results:
        assert result.ok, str(result)
        assert abs(result.interval.value - 1) <= 0.003
    with pytest.raises(CheckError, match="gave no ratio"):
        self_test(cublas(refuses="no"), PROBLEM, SimulatedOperands(), FAST, bench=bench)


def test_a_biased_order_would_fail_the_self_test():
    class Biased(SimulatedBench):
        def _run(self, job):
            seconds, clock = super()._run(job)
            return seconds * (1.01 if job.work.name.endswith("again") else 1.0), clock

    results = self_test(cublas(), PROBLEM, SimulatedOperands(), FAST, bench=Biased())
    assert not any(result.ok for result in results)
    assert "does NOT hold" in str(results[0])


def test_measurement_without_samples():
    empty = Measurement(name="x", problem=PROBLEM, window="burst", skipped_because="why")
    assert (empty.median_s, empty.tflops, empty.clock_mhz) == (None, None, None)
