"""The bench's host side on a CuPy that exists only in tests: queueing, gates, graphs, clocks, failures."""

import sys
import time
import types

import pytest

from compare import timing
from compare.telemetry import NoTelemetry, Sample
from compare.timing import GpuBench, Job, Work
from kernel.errors import LaunchError, NoDeviceError
from tests import fake_cupy


@pytest.fixture
def device():
    return fake_cupy.Device()


@pytest.fixture
def bench(device, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.make(device))
    monkeypatch.setattr(timing.build, "artifact", lambda unit: types.SimpleNamespace(cubin="probes.cubin"))
    monkeypatch.setattr(timing, "open_nvml", lambda bus, name: NoTelemetry("none here"))
    monkeypatch.setattr(GpuBench, "_forbid_persisting_lines", lambda self: device.log.append("reset L2"))
    return GpuBench()


class Kernel:
    def __init__(self, device, seconds, what="kernel", fails=None):
        self.device, self.seconds, self.what, self.fails = device, seconds, what, fails

    def enqueue(self, stream):
        assert stream == 77
        if self.fails is not None:
            raise self.fails
        self.device.do(self.what, lambda: self.device.spend(self.seconds))


def work(device, seconds=1e-3, sets=1, restore=None, **options):
    return Work("k", tuple(Kernel(device, seconds, f"kernel{i}", **options) for i in range(sets)), restore)


def test_facts_and_overhead(bench):
    assert bench.facts.name == "NVIDIA H200"
    assert bench.facts.arch == "sm_90a"
    assert bench.facts.notes == ("none here",)
    assert bench.timer_overhead_s == pytest.approx(2e-6)
    assert bench.stream == 77


def test_a_slice_reads_seconds_of_a_launch_and_the_clock(bench, device):
    one, two = work(device, 1e-3), work(device, 3e-4)
    reading = bench.slice([Job(one, 2), Job(two, 5, lead_in=1)])
    assert [r.seconds for r in reading.readings] == pytest.approx([1e-3, 3e-4])
    assert [r.clock_mhz for r in reading.readings] == pytest.approx([1500.0] * 2, rel=1e-3)
    assert reading.throttle_mask is None


def test_the_order_of_what_is_queued(bench, device):
    device.log.clear()
    bench.slice([Job(work(device), 2, lead_in=1)])
    assert device.log == ["reset L2", "hold", "kernel0", "read_clocks", "kernel0", "kernel0", "read_clocks"]


def test_short_samples_have_no_clock(bench, device):
    (reading,) = bench.slice([Job(work(device, 2e-6), 10)]).readings
    assert reading.clock_mhz is None


def test_graphs_are_captured_once_and_replayed(bench, device):
    short = work(device, 5e-6, sets=3)
    job = Job(short, 6, "graph", 2)
    for _ in range(3):
        (reading,) = bench.slice([job]).readings
        assert reading.seconds == pytest.approx(5e-6)
    assert len(device.graphs) == 1
    assert [what for what, _ in device.graphs[1]] == ["kernel0", "kernel1", "kernel2"] * 2
    bench.forget()
    assert device.log[-1] == "destroyed"
    bench.slice([job])
    assert len(device.graphs) == 2


def test_what_cannot_be_captured_says_why(bench, device):
    illegal = Work("lib", (Kernel(device, 1e-5, "illegal"),))
    assert "Invalidated" in bench.captures(illegal)
    assert bench.captures(illegal) == bench.captures(illegal)
    assert device.captured is None
    with pytest.raises(LaunchError, match="cannot be captured"):
        bench.slice([Job(illegal, 4, "graph")])
    assert bench.captures(work(device)) == ""
    assert "restored" in bench.captures(work(device, restore=lambda stream: None))


def test_restoring_c_stays_out_of_the_time(bench, device):
    def restore(stream):
        device.do("restore", lambda: device.spend(5e-3))

    (reading,) = bench.slice([Job(work(device, 1e-3, restore=restore), 4)]).readings
    assert reading.seconds == pytest.approx(1e-3)
    assert device.log.count("restore") == 4


def test_a_host_that_waits_for_the_device_gives_no_reading(bench, device):
    device.blocks_on_hold = True
    assert bench.slice([Job(work(device), 1)]).readings == (None,)
    with pytest.raises(LaunchError, match="waits for the device"):
        bench.pilot(work(device))


def test_a_refused_launch_opens_the_gate(bench, device):
    broken = Work("broken", (Kernel(device, 1e-3, fails=ValueError("too much shared memory")),))
    with pytest.raises(LaunchError, match="broken: the launch was refused: too much shared memory"):
        bench.slice([Job(work(device), 1), Job(broken, 1)])
    assert device.gate[0] == 1
    assert bench.slice([Job(work(device), 1)]).readings[0].seconds == pytest.approx(1e-3)


def test_the_gate_opens_before_the_queue_is_full(bench, device):
    seen = []

    class Watching(Kernel):
        def enqueue(self, stream):
            seen.append(int(device.gate[0]))
            super().enqueue(stream)

    bench.slice([Job(Work("many", (Watching(device, 1e-4),)), 300)])
    assert seen[0] == 0
    assert seen[-1] == 1
    assert 50 < seen.index(1) < 150


@pytest.mark.parametrize("seconds", [2e-6, 1e-4, 5e-3, 0.2])
def test_a_pilot_reads_over_n_and_over_2n(bench, device, seconds):
    once, twice = bench.pilot(work(device, seconds))
    assert once == pytest.approx(seconds, rel=0.01)
    assert twice == pytest.approx(seconds, rel=0.01)


def test_a_pilot_warms_up_without_the_gate_first(bench, device):
    device.log.clear()
    bench.pilot(work(device, 1e-2, sets=2))
    assert device.log[:3] == ["kernel0", "kernel1", "reset L2"]
    assert sum(what.startswith("kernel") for what in device.log) == 5


def test_a_device_that_was_waking_up_is_not_accused(bench, device):
    class Waking(Kernel):
        calls = 0

        def enqueue(self, stream):
            self.calls += 1
            self.seconds = 4e-2 if self.calls <= 2 else 2e-2
            super().enqueue(stream)

    once, twice = bench.pilot(Work("k", (Waking(device, 0.0),)))
    assert (once, twice) == pytest.approx((2e-2, 2e-2))


def test_a_window_counts_its_second_half(bench, device):
    job = Job(work(device, 1e-3), 10, "graph")
    reading = bench.window(job, 0.6)
    assert reading.total_s >= 0.6
    assert reading.total_s < 0.75
    assert reading.seconds == pytest.approx([1e-3] * len(reading.seconds))
    assert reading.launches == 10 * len(reading.seconds)
    assert reading.ended - reading.began == pytest.approx(reading.total_s / 2, rel=0.05)
    assert reading.clock_mhz == pytest.approx(1500.0, rel=1e-3)
    assert reading.state.power_w is None


def test_power_is_read_while_a_full_queue_holds_the_host(bench, device, monkeypatch):
    class Full(Kernel):
        def enqueue(self, stream):
            time.sleep(1e-3)
            super().enqueue(stream)

    class Watts:
        note = ""

        def sample(self, at):
            return Sample(at=at, power_w=500.0)

        def throttle_mask(self):
            return None

    monkeypatch.setattr(bench, "telemetry", Watts())
    reading = bench.window(Job(Work("k", (Full(device, 1e-3),)), 1), 0.6)
    assert reading.state.power_w == 500.0
    assert bench.window(Job(work(device, 1e-3), 10), 0.6).state.power_w is None


def test_a_window_of_one_long_launch_still_has_two_halves(bench, device):
    reading = bench.window(Job(work(device, 0.5), 1), 0.6)
    assert len(reading.seconds) == 2
    assert reading.total_s >= 0.6


def test_a_window_that_comes_out_short_is_taken_again(bench, device):
    class SpeedsUp(Kernel):
        calls = 0

        def enqueue(self, stream):
            self.calls += 1
            self.seconds = 1e-2 if self.calls == 1 else 1e-3
            super().enqueue(stream)

    reading = bench.window(Job(Work("k", (SpeedsUp(device, 1e-2),)), 1), 0.6)
    assert reading.total_s >= 0.6


def test_the_window_state_comes_from_polling(bench, device, monkeypatch):
    class Watts:
        note = ""

        def sample(self, at):
            return Sample(at=at, power_w=500.0, throttle_mask=4)

        def throttle_mask(self):
            return 4

    monkeypatch.setattr(bench, "telemetry", Watts())
    assert bench.slice([Job(work(device), 1)]).throttle_mask == 4


def test_no_cupy_is_no_device(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(NoDeviceError, match="CuPy"):
        GpuBench()


def test_a_device_that_cannot_be_used_is_named(device, monkeypatch):
    cupy = fake_cupy.make(device)

    def invalid(ordinal):
        raise cupy.cuda.runtime.CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceProperties", invalid)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(NoDeviceError, match="device 3 cannot be used: cudaErrorInvalidDevice"):
        GpuBench(3)


def test_a_kernel_that_fails_while_it_runs_is_named(bench, monkeypatch):
    def stops(stream):
        raise bench._rt.CUDARuntimeError("cudaErrorIllegalAddress")

    one = work(fake_cupy.Device())
    monkeypatch.setattr(type(bench._stream), "synchronize", stops)
    with pytest.raises(LaunchError, match="k: a kernel in this slice failed: cudaErrorIllegalAddress"):
        bench.slice([Job(one, 2)])


def test_a_typed_refusal_keeps_its_words_and_is_why_nothing_is_captured(bench, device):
    one = work(device, fails=LaunchError("k: the cluster is too large"))
    with pytest.raises(LaunchError, match=r"^k: the cluster is too large$"):
        bench.slice([Job(one, 2)])
    assert bench.captures(one) == "k: the cluster is too large"
    assert device.captured is None


def test_a_window_on_a_device_that_speeds_up_ends_after_three_tries(bench, device, monkeypatch):
    one, tries = work(device, 1e-3), []
    real = GpuBench._window

    def faster(self, job, parts, first_counted):
        tries.append(parts)
        for kernel in job.work.prepared:
            kernel.seconds /= 2
        return real(self, job, parts, first_counted)

    monkeypatch.setattr(GpuBench, "_window", faster)
    reading = bench.window(Job(one, 2), 0.1)
    assert len(tries) == 3
    assert reading.total_s < 0.1
    assert tries == sorted(tries)
