"""A run against a run: noise is no change, a planted slowdown is found, clocks are nobody's fault."""

import copy
import dataclasses
import gzip
import json
import random
from pathlib import Path

import pytest

from compare import runs
from compare.diff import diff_rows, diff_runs, key_of
from compare.measure import Settings, measure_group
from compare.rows import row
from compare.statistics import StoppingRule, median
from compare.windows import BurstSettings, SustainedSettings
from kernel.contract import Problem
from kernel.errors import RunFileError, UsageError
from tests.simulated_bench import SimulatedBench, SimulatedContender, SimulatedOperands

SETTINGS = Settings(
    burst=BurstSettings(stop=StoppingRule(min_rounds=20, max_rounds=20)),
    sustained=SustainedSettings(stop=StoppingRule(min_rounds=3, max_rounds=3)),
)


def recorded(seed, slowdown=1.0, noise=0.003, **bench):
    """(rows, samples) of a run of three kernels in both windows; v6 is slower by ``slowdown``."""
    group = [
        SimulatedContender("cublas_sgemm", 2.7e-3, family="cublas", noise=noise),
        SimulatedContender("v2_block_tile", 1.0e-2, noise=noise),
        SimulatedContender("v6_transposed_split", 3.4e-3 * slowdown, noise=noise),
    ]
    problem = Problem(m=4096, n=4096, k=4096)
    found = measure_group(group, problem, SimulatedOperands(), SETTINGS, bench=SimulatedBench(seed=seed, **bench))
    rows = [
        row(
            name=one.name, family="cublas" if one.name == "cublas_sgemm" else "handwritten", track="fp32_simt",
            variant=None, m=4096, n=4096, k=4096, layout="rr", dtype_in="float32", dtype_out="float32", input="uniform",
            window=one.window, l2=one.l2, ok=True, time_us=1e6 * one.median_s, x_cublas=one.x_cublas.value,
            sm_clock_mhz=one.clock_mhz,
        )
        for one in found
    ]  # fmt: skip
    return rows, [one.samples() for one in found]


def verdicts(diff, window=None):
    return {c.name: c.verdict for c in diff.changes if window is None or c.key["window"] == window}


def test_a_run_against_a_repeat_of_itself():
    for seed in range(5):
        found = diff_rows(*recorded(seed), *recorded(seed + 100))
        assert set(verdicts(found).values()) <= {"same"}, found.lines()
        assert found.exit_status == 0


def test_a_run_against_itself_is_the_same_however_far_its_samples_lie_apart():
    rows, samples = recorded(3)
    samples = [{**one, "time_us": [100.0, 110.0, 120.0, 130.0, 140.0], "window_us": []} for one in samples]
    found = diff_rows(rows, samples, rows, samples)
    assert {change.verdict for change in found.changes} == {"same"}
    assert max(one.widest_pct or 0 for one in found.windows) > 2
    others = [{**one, "time_us": [101.0, 110.0, 120.0, 130.0, 140.0]} for one in samples]
    assert "unclear" in {change.verdict for change in diff_rows(rows, samples, rows, others).changes}
    latest = diff_runs("latest", "latest")
    assert {change.verdict for change in latest.changes} == {"same"}


def test_a_planted_slowdown_of_five_percent_is_found_and_named():
    found = diff_rows(*recorded(1), *recorded(2, slowdown=1.05))
    for window in ("burst", "sustained"):
        assert verdicts(found, window) == {
            "cublas_sgemm": "same", "v2_block_tile": "same", "v6_transposed_split": "slower",
        }  # fmt: skip
    slower = found.regressions[0]
    assert slower.ratio == pytest.approx(1.05, abs=0.01)
    assert slower.confirmed_by == "cycles+cublas"
    assert found.exit_status == 1
    assert "slower   v6_transposed_split 4096x4096x4096" in found.lines()[0]


def test_the_same_found_the_other_way_round():
    found = diff_rows(*recorded(1, slowdown=1.05), *recorded(2))
    assert verdicts(found)["v6_transposed_split"] == "faster"
    assert found.exit_status == 0


def planted(rows, samples, name, factor):
    """A recorded run in which one kernel's launches took longer, to the last sample."""
    rows, samples = copy.deepcopy((rows, samples))
    for one in samples:
        if one["name"] == name:
            for what in ("time_us", "window_us"):
                one[what] = [factor * value for value in one[what]]
            one["x_cublas"] = [value / factor for value in one["x_cublas"]]
    for one in rows:
        if one["name"] == name and one["time_us"]:
            one["time_us"] *= factor
            one["x_cublas"] = one["x_cublas"] and one["x_cublas"] / factor
    return rows, samples


def test_a_slowdown_planted_into_recorded_samples():
    """On the run that ships, if there is one here, else on a simulated one."""
    folder = runs.latest()
    if folder is None:
        rows, samples = recorded(3)
        name = "v6_transposed_split"
    else:
        rows, samples = runs.read_run(folder)[1], runs.read_samples(folder)
        counted = {one["name"] for one in samples if len(one["time_us"]) >= 20 and one["window"] == "burst"}
        name = next(r["name"] for r in rows if r["name"] in counted and r["family"] == "handwritten" and r["time_us"])
    found = diff_rows(rows, samples, *planted(rows, samples, name, 1.05))
    assert name in {change.name for change in found.regressions}
    assert {change.name for change in found.regressions} == {name}
    assert diff_rows(rows, samples, rows, samples).exit_status == 0


def test_a_slower_clock_is_not_a_slower_kernel():
    rows, samples = recorded(1)
    later, later_samples = planted(*recorded(2), "v2_block_tile", 1.08)
    for name in ("v6_transposed_split", "cublas_sgemm"):
        later, later_samples = planted(later, later_samples, name, 1.08)
    for one in later:
        one["sm_clock_mhz"] /= 1.08
        if one["name"] != "cublas_sgemm":
            one["x_cublas"] *= 1.08
    found = diff_rows(rows, samples, later, later_samples)
    assert set(verdicts(found).values()) == {"unclear"}
    assert "% time in -0.1 % cycles" in found.lines()[0]
    assert found.exit_status == 0


def test_a_hungrier_kernel_under_a_cap_is_slower_by_its_paired_ratio():
    """Same cycles, lower clock, while cuBLAS of the same run kept its own: the power limit made it slower."""
    rows, samples = recorded(1)
    later, later_samples = planted(*recorded(2), "v6_transposed_split", 1.06)
    for one in later:
        if one["name"] == "v6_transposed_split":
            one["sm_clock_mhz"] /= 1.06
    found = diff_rows(rows, samples, later, later_samples)
    slower = {change.confirmed_by for change in found.regressions}
    assert slower == {"cublas"}


def test_without_a_clock_or_a_ratio_nothing_is_confirmed():
    rows, samples = recorded(1)
    later, later_samples = planted(*recorded(2), "v2_block_tile", 1.2)
    for one in (*rows, *later):
        one["sm_clock_mhz"] = one["x_cublas"] = None
    found = diff_rows(rows, samples, later, later_samples)
    assert verdicts(found)["v2_block_tile"] == "unclear"


def test_noise_makes_it_unclear():
    found = diff_rows(*recorded(1, noise=0.08), *recorded(2, noise=0.08, slowdown=1.03))
    burst = verdicts(found, "burst")["v6_transposed_split"]
    assert burst == "unclear"


def test_a_kernel_that_no_longer_runs_is_a_regression():
    rows, samples = recorded(1)
    later, later_samples = recorded(2)
    later = [
        {**one, "ok": False, "time_us": None, "skipped_because": "failed the check"}
        if one["name"].startswith("v2") else one
        for one in later
    ]  # fmt: skip
    found = diff_rows(rows, samples, later, later_samples)
    assert verdicts(found)["v2_block_tile"] == "broken"
    assert found.exit_status == 1
    assert "failed the check" in found.lines()[0]
    back = diff_rows(later, later_samples, rows, samples)
    assert "v2_block_tile" not in verdicts(back)


def test_rows_of_one_run_only_are_listed():
    rows, samples = recorded(1)
    found = diff_rows(rows, samples, rows[:-2], samples[:-2])
    assert len(found.only_before) == 2
    assert "in the first run only" in found.lines()[-1]


def test_it_says_which_windows_were_compared_and_how_closely():
    rows, samples = recorded(1)
    found = diff_rows(rows, samples, *recorded(2))
    burst, sustained = found.windows
    assert [(one.window, one.rows, one.without_interval) for one in found.windows] == [
        ("burst", 3, 0), ("sustained", 3, 0)
    ]  # fmt: skip
    assert 0 < burst.median_pct <= burst.widest_pct < 1
    assert 0 < sustained.median_pct <= sustained.widest_pct < 2
    widest = max(50 * (c.ratio_hi - c.ratio_lo) for c in found.changes if c.key["window"] == "sustained")
    assert sustained.widest_pct == widest
    line = next(line for line in found.lines() if line.startswith("compared: "))
    assert line.startswith("compared: 3 in bursts (intervals of ± ")
    assert f"3 in sustained windows (intervals of ± {sustained.median_pct:.1f} %, the widest ± {widest:.1f} %)" in line
    assert [one["rows"] for one in found.to_dict()["windows"]] == [3, 3]

    noisy = diff_rows(*recorded(1, noise=0.05), *recorded(2, noise=0.05)).windows
    assert noisy[0].median_pct > 5 * burst.median_pct

    bursts = [one for one in rows if one["window"] == "burst"]
    alone = diff_rows(rows, samples, bursts, samples).lines()
    assert "no row in sustained windows was timed in both runs, so nothing is said of that window" in alone
    assert alone[-1] == "3 rows are in the first run only (3 in sustained windows)"
    bare = diff_rows(rows, [], rows, []).lines()
    assert "compared: 3 in bursts (3 without samples for an interval)" in bare[1]


def test_missing_samples_leave_only_what_is_obvious():
    rows, _ = recorded(1)
    found = diff_rows(rows, [], rows, [])
    assert set(verdicts(found).values()) == {"same"}
    later, _ = planted(rows, [], "v2_block_tile", 1.05)
    assert verdicts(diff_rows(rows, [], later, []))["v2_block_tile"] == "unclear"


def write(folder: Path, rows, samples):
    folder.mkdir()
    (folder / runs.RUN_FILE).write_text(json.dumps({"format": runs.FORMAT, "complete": True}))
    (folder / runs.ROWS_FILE).write_text(runs.format_rows(rows))
    (folder / runs.SAMPLES_FILE).write_bytes(gzip.compress(json.dumps(samples).encode()))
    return folder


def test_runs_on_disk(tmp_path):
    before = write(tmp_path / "a", *recorded(1))
    after = write(tmp_path / "b", *recorded(2, slowdown=1.05))
    found = diff_runs(before, after)
    assert found.exit_status == 1
    as_json = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert as_json["counts"] == {"same": 4, "slower": 2}
    assert as_json["rows"][0]["key"]["m"] == 4096
    (after / runs.SAMPLES_FILE).write_bytes(b"torn")
    with pytest.raises(RunFileError, match="samples cannot be read"):
        diff_runs(before, after)
    with pytest.raises(RunFileError, match="no recorded run"):
        diff_runs(before, tmp_path / "nowhere")


def test_samples_name_their_row():
    rows, samples = recorded(1)
    assert {key_of(one) for one in rows} == {key_of(one) for one in samples}


def test_thresholds_count():
    rng = random.Random(5)
    rows, samples = recorded(rng.randrange(100))
    later = planted(rows, samples, "v2_block_tile", 1.03)
    assert verdicts(diff_rows(rows, samples, *later, 0.02))["v2_block_tile"] == "slower"
    assert verdicts(diff_rows(rows, samples, *later, 0.05))["v2_block_tile"] == "same"
    assert dataclasses.asdict(diff_rows(rows, samples, *later, 0.02).changes[0])["ratio"]
    assert median([1.0, 2.0, 4.0]) == 2.0


def test_nothing_in_common_is_no_clean_bill(tmp_path):
    rows, samples = recorded(1)
    before = write(tmp_path / "a", rows, samples)
    after = write(tmp_path / "b", [one | {"m": 2048} for one in rows], [one | {"m": 2048} for one in samples])
    with pytest.raises(UsageError, match=r"no timed row in common \(6 and 6 rows"):
        diff_runs(before, after)
    for threshold in (-0.1, 1.0, float("nan")):
        with pytest.raises(UsageError, match="threshold"):
            diff_runs(before, before, threshold)


def test_samples_that_unpack_to_far_too_much_are_refused(tmp_path, monkeypatch):
    folder = write(tmp_path / "a", *recorded(1))
    monkeypatch.setattr("compare.runs.MOST_SAMPLES_BYTES", 100)
    with pytest.raises(RunFileError, match="more than 100 bytes"):
        diff_runs(folder, folder)
