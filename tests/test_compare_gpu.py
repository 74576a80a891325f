"""The commands on a real GPU, small and quick: every seam between check, measure, rows and report is crossed once."""

import json

import pytest

from compare import report, runs
from compare.cli import main
from kernel.errors import MissingToolError
from kernel.toolchain import find

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "small"
    kernels = "v0_naive,v2_block_tile,cublas_sgemm,cublas_fp16,torch_sgemm"
    status = main(["compare", "--kernels", kernels, "--shapes", "256x192x128,1024", "--out", str(folder)])
    return status, folder, *runs.read_run(folder)


def test_every_contender_is_checked_timed_and_divided_by_cublas(run):
    status, _, provenance, rows = run
    assert status == 0, [(row["name"], row["skipped_because"]) for row in rows if row["ok"] is not True]
    assert {row["name"] for row in rows} == {"v0_naive", "v2_block_tile", "cublas_sgemm", "cublas_fp16", "torch_sgemm"}
    assert all(row["ok"] and row["time_us"] > 0 and row["max_error"] <= row["error_bound"] for row in rows)
    large = {row["name"]: row for row in rows if row["m"] == 1024 and row["window"] == "burst"}
    assert 0.02 < large["v0_naive"]["x_cublas"] < 1
    assert large["v0_naive"]["x_cublas_lo"] <= large["v0_naive"]["x_cublas"] <= large["v0_naive"]["x_cublas_hi"]
    assert large["cublas_fp16"]["x_cublas_sgemm"] > 2
    assert large["v2_block_tile"]["registers"] > 64
    assert large["cublas_sgemm"]["kernel_name"]
    assert provenance["gpu"]["sm_count"] > 0
    assert provenance["ceilings"]


def test_closing_lines_and_tables_come_from_those_rows(run):
    rows = run[3]
    same, different = report.closing_lines(rows)
    assert "v2_block_tile" in same
    assert "cuBLAS FP16" in different
    assert report.tables(rows)


def test_a_run_has_no_regression_against_itself(run, capsys):
    assert main(["diff", str(run[1]), str(run[1]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["regressions"] == []


def test_check_reports_every_shape(capsys):
    shapes = "1,35x79x19,130x130x64@alpha=0.5@beta=3.0,129x67x35@align_a=4@align_b=4@align_c=4"
    assert main(["check", "--device", "gpu", "--kernels", "v2_block_tile", "--shapes", shapes, "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)
    assert [verdict["ok"] for verdict in verdicts] == [True] * 4


def test_counters_or_a_reason_why_there_are_none(capsys):
    try:
        find("ncu")
    except MissingToolError as error:
        pytest.skip(str(error))
    assert main(["inspect", "v2_block_tile", "--ncu"]) == 0
    text = capsys.readouterr().out
    assert "bank conflicts" in text or "not available" in text


def test_the_doctor_finds_the_gpu(capsys):
    main(["doctor", "--json"])
    answer = json.loads(capsys.readouterr().out)
    (found,) = [finding for finding in answer["findings"] if finding["check"] == "driver and GPU"]
    assert found["ok"], found
