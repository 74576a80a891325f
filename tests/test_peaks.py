import json
import re
from pathlib import Path

import pytest

from compare import peaks
from compare.peaks import DEVICES, crossover, peak, percent_of, percent_of_peak
from kernel.errors import CheckError

PINNED = {"fp32_simt": 66.9, "tf32_tensor": 494.7, "fp16_tensor": 989.4}


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
@pytest.mark.parametrize(("track", "tflops"), PINNED.items())
def test_pinned_datasheet_peaks(device, track, tflops):
    assert peak(device, track, 132).datasheet == tflops


def test_other_devices_to_the_letter():
    assert peak("NVIDIA A100-SXM4-80GB", "fp16_tensor").datasheet == 312.0
    assert peak("NVIDIA H100 PCIe", "fp32_simt").datasheet == 51.2
    assert peak("NVIDIA GeForce RTX 4090", "fp16_tensor").datasheet == 165.2


def test_no_sparse_figure_anywhere():
    values = {rate.tflops for device in DEVICES.values() for rate in device.rates.values()}
    assert not values & {1979.0, 1978.9, 1513.0, 624.0, 330.3, 733.0}
    assert not re.search(r"\b197[89]\b", Path(peaks.__file__).read_text())


@pytest.mark.parametrize("name", DEVICES)
def test_published_figures_follow_from_sms_rate_and_clock(name):
    device = DEVICES[name]
    for rate in device.rates.values():
        if rate.tflops is not None:
            made = device.sms * rate.per_sm_clock * rate.mhz * 1e-6
            assert made == pytest.approx(rate.tflops, rel=0.006)


def test_the_two_published_peaks_use_different_clocks():
    fp32, fp16 = peak("NVIDIA H200", "fp32_simt"), peak("NVIDIA H200", "fp16_tensor")
    assert fp16.datasheet / fp32.datasheet == pytest.approx(14.79, abs=0.01)
    assert fp16.at_clock(1500) / fp32.at_clock(1500) == pytest.approx(16.0)
    assert fp16.physical == pytest.approx(1070.5, abs=0.1)
    assert fp32.formula(1980) == "132 SMs x 256 FLOP per SM and clock x 1980 MHz = 66.9"


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 3090 Ti", "NVIDIA H300", "", "H200"])
def test_an_unknown_device_has_no_peak(name):
    unknown = peak(name, "fp32_simt", 80)
    assert unknown.datasheet is unknown.physical is unknown.at_clock(1500.0) is None
    assert "unknown" in unknown.note
    assert percent_of_peak(1e9, unknown, 1500.0) == (None, None)


def test_a_peak_that_is_not_known_at_a_clock_says_why():
    unknown = peak("NVIDIA H300", "fp32_simt", 80)
    assert unknown.formula(1980) == unknown.formula() == unknown.note
    assert peak("NVIDIA H200", "fp32_simt").formula() == "unknown"


def test_a_uncertain_figure_is_left_out_but_physics_holds():
    b200 = peak("NVIDIA B200", "fp32_simt", 148)
    assert b200.datasheet is None
    assert b200.physical is not None


def test_mig_slices_get_their_share_and_other_parts_nothing():
    mig = peak("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "fp16_tensor", 60)
    assert mig.datasheet == pytest.approx(989.4 * 60 / 132)
    assert "60 of 132" in mig.note
    other = peak("NVIDIA H200", "fp16_tensor", 114)
    assert other.datasheet is None
    assert "withheld" in other.note


def test_fractions_above_one_raise_and_name_the_device():
    fp32 = peak("NVIDIA H200", "fp32_simt", 132)
    assert percent_of_peak(51.2, fp32, 1980.0) == (pytest.approx(76.5, abs=0.1), pytest.approx(76.5, abs=0.1))
    with pytest.raises(CheckError, match="physical peak of fp32_simt on NVIDIA H200"):
        percent_of_peak(512.0, fp32, None)
    with pytest.raises(CheckError, match="at 1200 MHz"):
        percent_of_peak(51.2, fp32, 1200.0)
    with pytest.raises(CheckError):
        percent_of(float("nan"), 10.0, "anything")


def test_a_datasheet_peak_may_be_passed_by_a_faster_clock():
    fp16 = peak("NVIDIA H200", "fp16_tensor", 132)
    datasheet, at_clock = percent_of_peak(1000.0, fp16, 1950.0)
    assert datasheet > 100.0
    assert at_clock < 100.0


def test_the_driver_may_know_a_higher_clock():
    assert peak("NVIDIA RTX A6000", "fp32_simt", 84, 2100.0).physical == pytest.approx(45.16, abs=0.01)


def test_crossover():
    assert crossover(66.9, 4.26e12) == pytest.approx(15.7, abs=0.01)


def test_ceilings_of_the_gpu_that_is_here_stand_beside_its_peaks(monkeypatch, capsys):
    from compare import ceilings, peak_report, timing
    from compare.cli import main
    from compare.driver import Device, Driver

    card = Device(ordinal=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132, memory_bytes=1, l2_bytes=1)
    one = ceilings.Ceiling(
        track="fp32_simt", instruction="ffma", window="burst", tflops=60.0, clock_mhz=1980.0, throttle=()
    )
    bench = object()
    monkeypatch.setattr(peak_report.driver, "query", lambda: Driver(version="13.0", devices=(card,), problem=""))
    monkeypatch.setattr(peak_report.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(timing, "GpuBench", lambda: bench)
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda given: [one] if given is bench else [])
    monkeypatch.setattr(ceilings, "copy_bandwidth", lambda given: 4.2e12 if given is bench else 0.0)
    assert main(["peaks", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["device"], answer["source_of_ceilings"]) == ("NVIDIA H200", "Measured here")
    assert answer["bandwidth_bytes_per_s"] == 4.2e12
    (simt,) = (track for track in answer["tracks"] if track["track"] == "fp32_simt")
    (ceiling,) = simt["ceilings"]
    assert ceiling["pct_of_peak_at_clock"] == pytest.approx(100 * 60 / 66.9, abs=0.05)
    assert simt["crossover_flop_per_byte"] == pytest.approx(66.9 / 4.2, abs=0.01)
    assert main(["peaks"]) == 0
    told = capsys.readouterr().out
    assert "ceilings: Measured here" in told
    assert "memory: 4.20 TB/s (copy, read plus written, measured here)" in told
