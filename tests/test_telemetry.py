import sys
import types

import pytest

from compare.telemetry import NoTelemetry, Nvml, Sample, open_nvml, summarise, throttle_names
from compare.timing import clock_mhz


def test_throttle_names():
    assert throttle_names(0) == throttle_names(1) == ()
    assert throttle_names(0x4 | 0x20 | 1) == ("sw_power_cap", "sw_thermal")
    assert throttle_names(0x4000) == ("unknown_0x4000",)


def energy_samples(period=0.1, watts=650.0, until=1.2, poll=0.01):
    """The counter moves every ``period`` seconds only."""
    return [
        Sample(at=i * poll, energy_j=watts * (i * poll // period) * period, power_w=100.0, throttle_mask=4)
        for i in range(int(until / poll))
    ]


def test_power_from_the_energy_counter_between_updates():
    state = summarise(energy_samples(), 0.55, 1.2)
    assert state.power_from == "energy"
    assert state.power_w == pytest.approx(650.0, rel=0.03)
    assert state.throttle == ("sw_power_cap",)


def test_no_power_for_a_short_window():
    assert summarise(energy_samples(), 0.55, 0.70).power_w is None
    assert summarise(energy_samples(), 0.55, 0.74).power_w is None


def test_instant_readings_stand_in_for_a_missing_counter():
    samples = [Sample(at=0.02 * i, power_w=600.0 + i % 2, temperature_c=50.0 + i) for i in range(20)]
    state = summarise(samples, 0.0, 1.0)
    assert (state.power_from, state.power_w) == ("instant", 600.5)
    assert state.temperature_c == 69.0
    assert state.throttle is None, "not told is not the same as none"


def test_only_samples_inside_the_window_count():
    samples = [Sample(at=float(i), power_w=100.0 if i < 5 else 500.0) for i in range(10)]
    assert summarise(samples, 5.0, 9.0).power_w == 500.0


def fake_nvml(**changes):
    class NVMLError(Exception):
        pass

    def fails(*_):
        raise NVMLError("Not Supported")

    value = types.SimpleNamespace(nvmlReturn=0, value=types.SimpleNamespace(uiVal=612000))
    answers = {
        "NVMLError": NVMLError,
        "NVML_FI_DEV_POWER_INSTANT": 186,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_CLOCK_SM": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByPciBusId": lambda bus: bus,
        "nvmlDeviceGetMigMode": fails,
        "nvmlDeviceGetFieldValues": lambda handle, fields: [value],
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 5_000_000,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 55,
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1755,
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 4,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
    }
    answers.update({name: fails if change == "fails" else change for name, change in changes.items()})
    return types.SimpleNamespace(**answers)


def test_nvml_readings_and_units():
    nvml = Nvml(fake_nvml(), "handle")
    sample = nvml.sample(3.0)
    assert sample == Sample(3.0, 5000.0, 612.0, 55, 1755, 4)
    assert (nvml.max_sm_clock_mhz(), nvml.power_limit_w()) == (1980.0, 700.0)
    assert nvml.note == ""


def test_a_refused_reading_is_a_note_and_is_not_asked_again():
    module = fake_nvml(nvmlDeviceGetTotalEnergyConsumption="fails", nvmlDeviceGetFieldValues="fails")
    nvml = Nvml(module, "handle")
    for _ in range(2):
        sample = nvml.sample(0.0)
        assert (sample.energy_j, sample.power_w, sample.temperature_c) == (None, None, 55)
    assert nvml.note.count("Not Supported") == 2


def test_an_older_nvml_without_the_instant_field():
    module = fake_nvml()
    del module.NVML_FI_DEV_POWER_INSTANT
    assert Nvml(module, "handle").sample(0.0).power_w is None


def test_missing_nvml_and_mig_are_notes(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    none = open_nvml("0000:01:00.0", "NVIDIA H200")
    assert isinstance(none, NoTelemetry)
    assert "nvidia-ml-py" in none.note
    assert none.sample(1.0) == Sample(at=1.0)
    assert "MIG" in open_nvml("0000:01:00.0", "NVIDIA A100-SXM4-40GB MIG 1g.5gb").note
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit="fails"))
    assert "NVML says" in open_nvml("0000:01:00.0", "NVIDIA H200").note
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetMigMode=lambda handle: (1, 1)))
    assert "MIG is on" in open_nvml("0000:01:00.0", "NVIDIA H200").note
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert isinstance(open_nvml("0000:01:00.0", "NVIDIA H200"), Nvml)


def test_clock_is_cycles_over_time_and_a_median_over_sms():
    before = [[1_000_000, 5_000], [1_000_000, 9_000], [0, 0], [1_000_000, 100]]
    after = [[2_000_000, 1_985_000], [2_000_000, 1_989_000], [2_000_000, 7], [2_000_000, 1_500_100]]
    assert clock_mhz(before, after) == pytest.approx(1980.0)


def test_no_clock_for_a_short_interval_or_without_readings():
    assert clock_mhz([[1000, 1]], [[101_000, 150_001]]) is None
    assert clock_mhz([[0, 0]], [[5, 5]]) is None
