"""Tables out of recorded experiments, and medians out of nvbench's report."""

import json
import sys
import types
from pathlib import Path

import pytest

from compare import crosscheck, runs
from compare.crosscheck import Agreement, medians
from compare.experiments import EXPERIMENTS, RENDERERS, main, page_text, tables
from kernel.errors import LaunchError, MissingToolError

FOUND = {
    "run": {"gpu": {"name": "NVIDIA H200"}, "date": "2026-11-30T04:00:00"},
    "self_tests": [{"name": "cublas_sgemm", "window": "burst", "ratio": 1.0002, "lo": 0.999, "hi": 1.001, "ok": True}],
    "inputs": [
        {"name": "cublas_fp16", "size": 8192, "window": "burst", "input": name, "tflops": rate, "clock_mhz": 1500.0,
         "power_w": None}
        for name, rate in (("uniform", 760.0), ("zeros", 860.0))
    ],
    "sag": [
        {"name": "cublas_fp16", "size": 8192, "series": [
            {"at_s": t / 10, "tflops": 760.0 - t, "clock_mhz": 1600.0 - 10 * t, "nvml_clock_mhz": None}
            for t in range(30)
        ]}
    ],
    "mixing": [
        {"name": "cublas_fp16", "size": 8192, "solo_ratio": 1.14, "mixed_ratio": 1.02,
         "solo_clocks_mhz": [1300.0, 1500.0], "mixed_clocks_mhz": [1400.0, None], "solo_power_w": [690.0, 640.0]}
    ],
    "caches": [{"way": "back to back", "time_us": 58.0}],
    "timers": [{"size": 256, "way": "graph of 100 launches", "time_us": 2.345}],
    "orders": [{"name": "v2", "time_us": {"forwards": 10.0, "backwards": 10.1}, "moved": 0.01}],
}  # fmt: skip


def test_every_experiment_has_a_table():
    assert set(RENDERERS) == set(EXPERIMENTS) == set(tables(FOUND))
    for lines in tables(FOUND).values():
        assert len({line.count("|") for line in lines}) == 1


def test_what_was_not_measured_is_a_dash():
    made = tables(FOUND)
    assert "860.0 (1500 MHz)" in made["inputs"][2]
    assert "- (- MHz)" in made["inputs"][2]
    assert "1400 / -" in made["mixing"][2]
    assert made["sag"][-1].startswith("| cublas_fp16 | 2.9 | 731.0 | 1310 | - |")


def test_the_page_names_gpu_and_date_and_says_what_is_missing():
    page = "before\n<!-- caches:begin -->\nold\n<!-- caches:end -->\n<!-- sag:begin -->\n<!-- sag:end -->\nafter\n"
    text = page_text(page, {**FOUND, "sag": []})
    assert "| back to back | 58.0 |" in text
    assert "(NVIDIA H200, 2026-11-30)" in text
    assert "Not recorded yet." in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert page_text(text, {**FOUND, "sag": []}) == text


def test_the_page_that_ships_has_a_place_for_every_experiment():
    text = (runs.repository() / "docs" / "method.md").read_text()
    for name in EXPERIMENTS:
        assert text.count(f"<!-- {name}:begin -->") == text.count(f"<!-- {name}:end -->") == 1


def test_no_evidence_is_one_line(tmp_path, capsys):
    assert main(["page", "--from", str(tmp_path / "none.json")]) == 2
    assert "holds no evidence" in capsys.readouterr().err
    assert main(["run", "--only", "nonsense"]) == 2


def test_the_page_is_renewed_from_what_run_wrote_and_the_recorded_run(tmp_path, monkeypatch):
    source, page = tmp_path / "method.json", tmp_path / "docs" / "method.md"
    source.write_text(json.dumps(FOUND))
    page.parent.mkdir()
    text = "<!-- caches:begin -->\n<!-- caches:end -->\n<!-- self_tests:begin -->\n<!-- self_tests:end -->\n"
    page.write_text(text)
    monkeypatch.setattr(runs, "repository", lambda: tmp_path)
    monkeypatch.setattr(runs, "latest", lambda: None)
    assert main(["page", "--from", str(source)]) == 0
    assert page.read_text() == page_text(text, FOUND)
    recorded = {"gpu": {"name": "NVIDIA H200"}, "date": "2027-02-03", "self_tests": [{"why_not": "no time"}]}
    (tmp_path / runs.RUN_FILE).write_text(json.dumps(recorded))
    monkeypatch.setattr(runs, "latest", lambda: tmp_path)
    assert main(["page", "--from", str(source)]) == 0
    assert page.read_text() == page_text(text, FOUND, recorded) != page_text(text, FOUND)


def report(median="1.25e-3"):
    summary = {"tag": crosscheck.MEDIAN_TAG, "data": [{"name": "value", "type": "float64", "value": median}]}
    other = {"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "type": "float64", "value": "9"}]}
    return {
        "benchmarks": [
            {"name": "v2", "states": [{"summaries": [other, summary]}]},
            {"name": "skipped", "states": [{"is_skipped": True, "summaries": None}]},
        ]
    }


def test_medians_of_an_nvbench_report():
    assert medians(json.loads(json.dumps(report())), ["v2"]) == {"v2": pytest.approx(1250.0)}
    with pytest.raises(LaunchError, match="no median for skipped"):
        medians(report(), ["v2", "skipped"])


def test_agreement_is_two_percent():
    assert Agreement("v2", 101.9, 100.0).ok
    assert not Agreement("v2", 97.9, 100.0).ok
    assert not Agreement("v2", float("nan"), 100.0).ok


def test_nvbench_times_what_it_is_given_and_its_report_is_read(monkeypatch):
    """A stand-in for cuda-bench: registers, runs each once, and writes nvbench's report where it is told to."""
    registered, streams = {}, []

    class Registered:
        def __init__(self, benchmark):
            self.benchmark = benchmark

        def set_name(self, name):
            registered[name] = self.benchmark

    class Launch:
        def get_stream(self):
            return types.SimpleNamespace(addressof=lambda: 0x77)

    def run_all(words):
        assert words[:3] == ["nvbench", "--devices", "1"]
        for benchmark in registered.values():
            benchmark(types.SimpleNamespace(exec=lambda once, batched: once(Launch())))
        Path(words[-1]).write_text(json.dumps(report()))

    bench = types.SimpleNamespace(register=Registered, run_all_benchmarks=run_all)
    cuda = types.ModuleType("cuda")
    cuda.bench = bench
    monkeypatch.setitem(sys.modules, "cuda", cuda)
    monkeypatch.setitem(sys.modules, "cuda.bench", bench)
    prepared = {"v2": types.SimpleNamespace(enqueue=streams.append)}
    assert crosscheck.nvbench_medians(prepared, device=1) == {"v2": pytest.approx(1250.0)}
    assert streams == [0x77]


@pytest.mark.parametrize(("ours", "status"), [(100.5, 0), (105.0, 1)])
def test_the_cross_check_is_written_and_told(monkeypatch, tmp_path, capsys, ours, status):
    monkeypatch.setattr(crosscheck, "crosscheck", lambda names, size: [Agreement(name, ours, 100.0) for name in names])
    words = ["--kernels", "v2,v4", "--size", "512", "--out", str(tmp_path / "deep" / "found.json")]
    assert crosscheck.main(words) == status
    told = capsys.readouterr().out
    assert told.count("DIFFERS") == 2 * status
    kept = json.loads((tmp_path / "deep" / "found.json").read_text())
    assert kept["size"] == 512
    assert [(one["name"], one["ok"]) for one in kept["kernels"]] == [("v2", not status), ("v4", not status)]


def test_a_missing_package_is_said_so(capsys):
    if crosscheck.main(["--size", "64"]) != 3:
        pytest.skip("cuda-bench or a GPU is here")
    assert "compare.crosscheck:" in capsys.readouterr().err


def test_self_tests_of_the_recorded_run_come_before_the_experiment():
    page = "<!-- self_tests:begin -->\n<!-- self_tests:end -->\n"
    one = {"name": "cublas_sgemm", "window": "burst, warm L2", "ratio": 1.0004, "lo": 0.9996, "hi": 1.001, "ok": True}
    failed = {"name": "cublas_fp16", "why_not": "it could not be timed"}
    run = {"gpu": {"name": "NVIDIA H200"}, "date": "2027-02-03T04:05:06", "self_tests": [one, failed]}
    text = page_text(page, FOUND, run)
    assert "| cublas_sgemm | burst, warm L2 | 1.0004 | 0.9996 to 1.0010 | yes |\n\n(NVIDIA H200, 2027-02-03)" in text
    assert page_text(page, FOUND, {**run, "self_tests": []}) == page_text(page, FOUND)


def test_the_cross_check_holds_our_cold_medians_against_theirs(monkeypatch):
    class Contender:
        def __init__(self, name):
            self.name = name

        def problem(self, m, n, k):
            return (m, n, k)

        def prepare(self, problem, pointers, stream):
            return (self.name, problem, pointers, stream)

    def measured(chosen, problem, operands, settings, bench, reverify):
        assert settings.cold
        assert settings.sustained is None
        one = types.SimpleNamespace
        return [
            one(name="v2", l2="warm", median_s=1e-6),
            one(name="v2", l2="cold", median_s=2e-6),
            one(name="v4", l2="cold", median_s=None),
        ]

    prepared = {}

    def theirs(given):
        prepared.update(given)
        return dict.fromkeys(given, 2.5)

    operands = types.SimpleNamespace(reverify=None, pointers=lambda: "pointers")
    monkeypatch.setattr("kernel.launch.cupy_module", lambda: None)
    monkeypatch.setattr("compare.timing.GpuBench", lambda: types.SimpleNamespace(stream=7))
    monkeypatch.setattr("compare.contenders.contenders", lambda names: [Contender(name) for name in names])
    monkeypatch.setattr("compare.operand_sets.OperandSets", lambda cupy, problem, stream: operands)
    monkeypatch.setattr("compare.measure.measure_group", measured)
    monkeypatch.setattr(crosscheck, "nvbench_medians", theirs)
    assert crosscheck.crosscheck(["v2", "v4"], 64) == [Agreement("v2", pytest.approx(2.0), 2.5)]
    assert prepared == {"v2": ("v2", (64, 64, 64), "pointers", 7)}


def test_without_cuda_bench_the_cross_check_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bench", None)
    with pytest.raises(MissingToolError, match="pip install cuda-bench"):
        crosscheck.nvbench_medians({})
