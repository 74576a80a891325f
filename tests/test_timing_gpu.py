"""On a GPU: the timer against itself, the ceilings against NumPy, cheats against the check after timing."""

import dataclasses
import math

import numpy as np
import pytest

from compare import peaks
from compare.ceilings import LoopLaunch, copy_bandwidth, loops, measure_ceilings
from compare.check import check_contender
from compare.contenders import contenders
from compare.measure import Settings, measure_group, self_test
from compare.operand_sets import OperandSets
from compare.statistics import StoppingRule, median
from compare.timing import GpuBench, Job, Work
from compare.windows import BurstSettings, SustainedSettings
from kernel.contract import Problem
from kernel.errors import CheckError
from tests.ceiling_references import check_output
from tests.wrong_kernels import catalog as wrong

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

BURST = BurstSettings(stop=StoppingRule(min_rounds=20, max_rounds=20))
QUICK_BURST = Settings(
    burst=BurstSettings(idle_s=0.01, stop=StoppingRule(min_rounds=6, max_rounds=6)),
    sustained=None,
    leave_out_slow=False,
)


@pytest.fixture(scope="module")
def bench():
    return GpuBench()


@pytest.fixture(scope="module")
def cublas():
    (one,) = contenders(["cublas_sgemm"])
    return one


def operands_of(bench, problem, **options):
    import cupy

    return OperandSets(cupy, problem, stream=bench.stream, **options)


def cube(size, **changes):
    return Problem(m=size, n=size, k=size, **changes)


def test_the_timer_costs_microseconds_and_reads_a_clock(bench):
    assert 0 < bench.timer_overhead_s < 30e-6
    loop = loops(bench.facts.arch)[0]
    work = Work("ffma", (LoopLaunch(loop, bench.facts.sms, 2000),))
    bench.pilot(work)
    reading = bench.slice([Job(work, 1), Job(work, 2)])
    one, two = reading.readings
    assert two.seconds == pytest.approx(one.seconds, rel=0.05), "seconds are of one launch, however many there are"
    assert 300 < one.clock_mhz < 3500
    if bench.facts.max_mhz:
        assert one.clock_mhz <= 1.01 * bench.facts.max_mhz


def test_events_and_graphs_agree(bench, cublas):
    problem = cube(2048)
    operands = operands_of(bench, problem)
    work = Work("sgemm", (cublas.prepare(problem, operands.pointers(), bench.stream),))
    bench.pilot(work)
    assert bench.captures(work) == ""
    taken = {"events": [], "graph": []}
    for _ in range(10):
        readings = bench.slice([Job(work, 8, timer, 1) for timer in taken]).readings
        for timer, reading in zip(taken, readings, strict=True):
            taken[timer].append(reading.seconds)
    assert median(taken["graph"]) == pytest.approx(median(taken["events"]), rel=0.03)


def test_a_slice_queued_at_once_takes_no_host_time(bench):
    """Forty short launches between two events: queued behind the gate they take what they take in a graph."""
    loop = loops(bench.facts.arch)[0]
    work = Work("ffma", (LoopLaunch(loop, bench.facts.sms, 60),))
    bench.pilot(work)
    by_events = median([bench.slice([Job(work, 40)]).readings[0].seconds for _ in range(9)])
    by_graph = median([bench.slice([Job(work, 40, "graph")]).readings[0].seconds for _ in range(9)])
    assert by_events < 1.15 * by_graph + 2e-6


def test_work_on_another_stream_is_not_believed(bench, cublas):
    import cupy

    problem = cube(1024)
    operands = operands_of(bench, problem)
    elsewhere = cupy.cuda.Stream(non_blocking=True)

    class Escapes:
        family, name = "handwritten", "escapes"

        def __getattr__(self, name):
            return getattr(cublas, name)

        def prepare(self, problem, pointers, stream):
            inner = cublas.prepare(problem, pointers, stream)
            return type("P", (), {
                "variant": "", "kernel_names": (), "enqueue": lambda self, stream: inner.enqueue(elsewhere.ptr),
            })()  # fmt: skip

    (found,) = measure_group([Escapes()], problem, operands, QUICK_BURST, bench=bench)
    elsewhere.synchronize()
    assert "does not grow with the work" in found.rejected_because or "peak" in found.rejected_because
    assert found.median_s is None


@pytest.mark.slow
def test_a_library_against_itself(bench, cublas):
    problem = cube(4096)
    settings = Settings(
        burst=BURST, sustained=SustainedSettings(stop=StoppingRule(min_rounds=5, max_rounds=5, half_width=1e-9))
    )
    for result in self_test(cublas, problem, operands_of(bench, problem), settings, bench=bench):
        assert result.ok, str(result)
        assert abs(result.interval.value - 1.0) <= 0.003, str(result)


CHEATS = {
    one.kernel.name: one.contender
    for one in wrong.WRONG
    if one.kernel.name in ("replays_its_answer", "halves_the_work")
}
CHEATS["spoils_after_ten_calls"] = wrong.KernelContender.of(wrong.SPOILS_AFTER_TEN_CALLS)


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_are_rejected_after_timing(bench, name):
    problem = cube(256)
    right = wrong.KernelContender.of(wrong.RIGHT)
    operands = operands_of(bench, problem)
    found = measure_group(
        [CHEATS[name], right], problem, operands, QUICK_BURST, bench=bench, reverify=operands.reverify
    )
    by_name = {one.name: one for one in found}
    assert "wrong after timing" in by_name[name].rejected_because
    assert by_name[name].seconds == ()
    assert by_name["right"].rejected_because == ""
    assert by_name["right"].median_s > 0


def test_c_is_what_it_was_before_every_launch(bench, cublas):
    """beta = 3 over hundreds of launches would overflow if C were left as it comes out."""
    problem = cube(256, alpha=0.5, beta=3.0)
    operands = operands_of(bench, problem)
    (found,) = measure_group([cublas], problem, operands, QUICK_BURST, bench=bench, reverify=operands.reverify)
    assert found.rejected_because == ""
    assert found.timer == "events"
    first = operands._first_c
    operands.restore_c(bench.stream)
    bench._stream.synchronize()
    assert bool((operands.sets[0].storage["c"].view("uint32") == first.view("uint32")).all())


def test_a_cold_cache_is_no_faster_than_a_warm_one(bench, cublas):
    problem = cube(1024)
    operands = operands_of(bench, problem)
    settings = dataclasses.replace(QUICK_BURST, cold=True)
    found = measure_group([cublas], problem, operands, settings, bench=bench, reverify=operands.reverify)
    times = {one.l2: one.median_s for one in found}
    assert len(operands.sets) > 2
    assert times["cold"] > 0.98 * times["warm"]


def test_no_contender_may_pin_lines_in_l2(bench):
    from cuda.bindings import driver

    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    driver.cuCtxSetLimit(limit, 1 << 20)
    bench._forbid_persisting_lines()
    assert driver.cuCtxGetLimit(limit)[1] == 0


def test_state_of_a_sustained_window(bench, cublas):
    problem = cube(4096)
    operands = operands_of(bench, problem)
    work = Work("sgemm", (cublas.prepare(problem, operands.pointers(), bench.stream),))
    bench.pilot(work)
    window = bench.window(Job(work, 3, "graph"), 0.6)
    assert window.total_s >= 0.6
    assert window.ended - window.began == pytest.approx(window.total_s / 2, rel=0.15)
    assert math.isfinite(window.clock_mhz)
    if not bench.facts.notes:
        assert window.state.throttle is not None
        assert 50 < window.state.power_w < 1.15 * (bench.facts.power_limit_w or 1500)


# The ceilings compute what they claim, and nothing passes them.


@pytest.mark.parametrize("name", [f"{loop.track}-{loop.instruction}" for loop in loops("sm_90a")])
def test_ceilings_compute_what_they_claim(bench, name):
    found = {f"{loop.track}-{loop.instruction}": loop for loop in loops(bench.facts.arch)}
    if name not in found:
        pytest.skip(f"{bench.facts.arch} has no {name}")
    loop = found[name]
    launch = LoopLaunch(loop, bench.facts.sms, 1, checked_blocks=1)
    launch.enqueue(bench.stream)
    bench._stream.synchronize()
    out = launch.out.get()
    assert np.isfinite(out).all()
    check_output(loop, out)


@pytest.mark.slow
def test_no_gemm_beats_its_ceiling(bench, cublas):
    found = {one.key: one for one in measure_ceilings(bench)}
    ffma = found["fp32_simt", "ffma", "burst"]
    bound = peaks.peak(bench.facts.name, "fp32_simt", bench.facts.sms, bench.facts.max_mhz)
    if bound.per_sm_clock and ffma.clock_mhz:
        assert ffma.tflops > 0.95 * bound.at_clock(ffma.clock_mhz)
    if bench.facts.name == "NVIDIA H200":
        assert ffma.tflops > 63.0
        assert found["fp16_tensor", "wgmma", "burst"].tflops > 750
    problem = cube(4096)
    operands = operands_of(bench, problem)
    (sgemm,) = measure_group(
        [cublas], problem, operands, Settings(burst=BURST, sustained=None), bench=bench, reverify=operands.reverify
    )
    assert sgemm.tflops < ffma.tflops


def test_copy_bandwidth_is_plausible(bench):
    bandwidth = copy_bandwidth(bench)
    assert 1e11 < bandwidth < 1.2e13
    if bench.facts.name == "NVIDIA H200":
        assert bandwidth > 3.5e12


def test_the_control_passes_its_check(bench):
    from compare.check import GpuExecutor

    verdict = check_contender(wrong.KernelContender.of(wrong.RIGHT), cube(256), GpuExecutor())
    assert verdict.ok


def test_a_time_of_nothing_is_no_time(bench):
    with pytest.raises(CheckError):
        peaks.percent_of(1e9, 1.0, "anything")
