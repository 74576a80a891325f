"""docs/three_ways.md: its table comes from builds and records, and says where nothing was recorded."""

import json

import pytest

from compare import runs, three_ways
from compare.three_ways import BEGIN, END, NOT_RECORDED, WAYS, code_lines, counted, kept_times, of_cublas, written

PAGE = runs.repository() / three_ways.PAGE


def test_lines_of_code_leave_out_what_is_not_code():
    cuda = "// a\n\nint a = 1;  // b\n/* c\nd */\nint b;\n"
    python = '"""doc\n\nmore"""\n\nx = 1  # why\n\n\ndef f(\n    a,\n):\n    """What."""\n    # no\n'
    python += '    return """two\nlines"""\n'
    assert code_lines(cuda, python=False) == 2
    assert code_lines(python, python=True) == 1 + 3 + 2


def test_each_way_names_a_contender_and_its_files_are_there():
    from compare.contenders import contenders

    for way in WAYS:
        (contender,) = contenders([way.kernel])
        assert contender.track == "fp32_simt"
        assert int(written(way, PAGE.read_text(encoding="utf-8"))) > 0


def test_the_page_has_its_markers_and_a_table_with_one_column_a_way():
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    assert len(table) > 8
    assert {line.count("|") for line in table} == {len(WAYS) + 2}
    times = kept_times(text)
    assert len(times) == len(WAYS)
    assert all(float(time) > 0 for time in times)


def test_what_was_not_recorded_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "results_root", lambda: tmp_path)
    monkeypatch.setattr(runs, "latest", lambda: None)
    assert counted("cute_sgemm") == of_cublas("cute_sgemm") == NOT_RECORDED


def test_counters_come_from_the_recorded_evidence(tmp_path, monkeypatch):
    folder = tmp_path / runs.RECORDED_GPU / "evidence"
    folder.mkdir(parents=True)
    (folder / "three_ways.json").write_text(json.dumps({"kernels": {"v7_wide_tile": {"conflicts": 1234.0}}}))
    hardware = {"conflicts_all": 10.0, "conflicts_loads": 1.0, "conflicts_stores": 2.0}
    run = {"kernel": "cute_sgemm", "layout": "rr", "m": 1024, "hardware": hardware}
    (folder / "cute_conflicts.json").write_text(json.dumps({"runs": [run]}))
    monkeypatch.setattr(runs, "results_root", lambda: tmp_path)
    assert counted("v7_wide_tile") == "1,234"
    assert counted("cute_sgemm") == "1; cp.async 7"
    assert counted("cutlass_simt_128x256x5_s1_rr") == NOT_RECORDED


def test_the_recorded_conflicts_hold_what_the_page_says():
    found = json.loads((runs.results_root() / runs.RECORDED_GPU / "evidence" / "cute_conflicts.json").read_text())
    example = next(run for run in found["runs"] if run["layout"] == "cc" and run["m"] == 2048)
    for name, one in example["by_instruction"].items():
        if not name.startswith("LDGSTS"):
            assert one["wavefronts"] == one["ideal"], name
    block = next(run for run in found["runs"] if run["m"] == 128)
    assert block["hardware"]["conflicts_all"] == 0


@pytest.mark.cute
@pytest.mark.cppgen
@pytest.mark.nvcc
@pytest.mark.slow
def test_the_table_can_be_renewed():
    text = PAGE.read_text(encoding="utf-8")
    table = three_ways.table(text, kept_times(text))
    assert "| kernel | `v7_wide_tile` | `cutlass_simt_128x256x5_s1_rr` | `cute_sgemm` |" in table
    assert "128 FFMA, 6 LDS" in table
