"""The page as text: stands alone, holds every row, escapes what rows hold, and survives runs that lack things."""

import base64
import hashlib
import html as entities
import itertools
import json
import re

import pytest

from compare import code_facts, html, readme, runs
from compare.cli import main
from compare.report import is_dispatcher
from compare.rows import NAMES
from kernel.errors import RunFileError
from tests.rows_for_reports import full_run, skipped, timed

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}"
RUN = {
    "gpu": {"name": "Some GPU", "sm_count": 7, "memory_bytes": 150109880320, "l2_bytes": 62914560},
    "date": "2031-02-03T00:00:00",
    "revision": "abc",
    "command": ["gemm-tracks", "compare"],
    "cublas_kernels": {"4096 rr": "some_kernel"},
    "ceilings": [{"track": "fp32_simt", "window": "sustained", "instruction": "ffma", "tflops": 64.0, "clock_mhz": 1}],
    "packages": {"numpy": "9"},
}


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def record(folder, rows, run=RUN, samples=()):
    writer = runs.RunWriter(folder, run)
    writer.add("a", rows, samples)
    writer.finish(complete=True)
    return folder


def test_the_page_says_both_gaps_and_where_they_come_from():
    page = html.render(full_run(), RUN)
    text = entities.unescape(page)
    assert "2.0 %" in text
    assert "12.0 ×" in text
    assert "the best hand-written kernel, v7_best, reaches 49.0 TFLOP/s" in text
    assert "cuBLAS SGEMM is 8.33 % of cuBLAS FP16" in text
    for fact in ("Some GPU", "2031-02-03", "139.8 GiB", "60 MiB", "gemm-tracks compare", "some_kernel", "64.0"):
        assert fact in text, fact


def test_rows_of_one_kernel_are_told_apart():
    rows = [
        timed("fp16_dispatch", "handwritten", "fp16_tensor", 600.0 + place, layout=layout, dtype_out=out)
        for place, (layout, out) in enumerate((("rr", "float16"), ("rc", "float16"), ("rr", "float32")))
    ]
    heads = [column.title for column in html.TABLE_COLUMNS]
    cells = [[cell.text for cell in line["cells"]] for line in html._table(rows)["lines"]]
    assert {line[heads.index("layout")] for line in cells} == {"rr", "rc", "rr, FP32 out"}
    _, recorded = runs.read_run("latest")
    lines = html._table(recorded)["lines"]
    assert all(len(line["cells"]) == len(heads) for line in lines)
    whose = [tuple(cell.text for cell in line["cells"][: heads.index("window") + 1]) for line in lines]
    assert len(set(whose)) == len(whose)


def test_every_row_and_every_column_is_in_the_page():
    rows = full_run()
    page = html.render(rows, RUN)
    assert page.count("<tr data-row=") == len(rows)
    data = data_of(page)
    assert data["columns"] == list(NAMES)
    assert len(data["rows"]) == len(rows)
    shown = list(itertools.chain.from_iterable(names for _, names in html.DETAILS))
    assert sorted(shown) == sorted(NAMES)
    assert set(data["meanings"]) == set(NAMES)


def test_rows_that_did_not_run_or_failed_keep_their_place_without_numbers():
    page = html.render(full_run(), RUN)
    assert re.search(r'data-window="not run"[^>]*class="absent"', page)
    assert re.search(r'data-window="failed"[^>]*class="failed"', page)


def test_the_page_asks_nothing_of_the_network_and_forbids_it():
    page = html.render(full_run(), RUN)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<link|<iframe|src=", page)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    policy = entities.unescape(policy)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert not re.search(r"<[^>]* (style|on\w+)=", page)


def test_whatever_rows_and_provenance_hold_is_text():
    rows = [
        timed(EVIL, "handwritten", "fp32_simt", 40.0, variant=EVIL, kernel_name=EVIL, tile=EVIL, throttle=EVIL),
        timed("cublas_sgemm", "cublas", "fp32_simt", 50.0, kernel_name=EVIL, power_w=600.0),
        timed("cublas_fp16", "cublas", "fp16_tensor", 500.0),
        skipped(EVIL, "cutlass", "fp32_simt", EVIL),
    ]
    run = dict.fromkeys(("date", "revision", "toolkit", "command", "driver"), EVIL)
    run |= {"gpu": {"name": EVIL, "sm_count": EVIL}, "packages": {EVIL: EVIL}, "environment": {EVIL: EVIL}}
    run |= {"ceilings": [{"track": EVIL, "instruction": EVIL, "window": EVIL, "tflops": 1.0}]}
    run |= {"cublas_kernels": {EVIL: EVIL}}
    code = {EVIL: {"per_k_step": {EVIL: 1.0}, "facts": {EVIL: EVIL}}}
    page = html.render(rows, run, code=code, summaries={EVIL: EVIL})
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "alert(2)>&#34;&#39;&amp;49" not in page  # what looks like a template's expression is not one
    assert page.count("<script") == 2
    data = data_of(page)
    assert data["rows"][-1][data["columns"].index("name")] == EVIL
    assert data["code"][EVIL]["facts"] == {EVIL: EVIL}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [skipped("v0", "handwritten", "fp32_simt", "no GPU")],
        [timed("cublas_fp16", "cublas", "fp16_tensor", 500.0, shape=(64, 128, 256), window="burst")],
        [timed("v0", "handwritten", "fp32_simt", 5.0, x_cublas=None, pct_track_peak=None, max_error=None)],
    ],
)
def test_runs_that_lack_things_say_so(rows):
    page = html.render(rows, {})
    assert 'class="absent"' in page
    assert "unknown GPU" in page
    assert data_of(page)["rows"] == [[row[name] for name in NAMES] for row in rows]


@pytest.mark.parametrize(
    "run", [{"gpu": "a GPU"}, {"gpu": None, "ceilings": 5 * [None]}, {"packages": [1], "command": 5}]
)
def test_provenance_of_another_form_does_no_harm(run):
    assert "GEMM Tracks" in html.render(full_run(), run)


def test_the_command_writes_a_page_and_tables(tmp_path, capsys):
    folder = record(tmp_path / "run", full_run())
    page, latex = tmp_path / "page.html", tmp_path / "tables.tex"
    assert main(["report", str(folder), "--html", str(page), "--latex", str(latex), "--markdown", "-"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("- Same track (FP32 SIMT, 4096x4096x4096, sustained)")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    text = latex.read_text(encoding="utf-8")
    assert text.count(r"\begin{tabular}") == text.count(r"\bottomrule") == 3
    assert r"\texttt{v0\_naive} &" in text
    assert r"\% of FP16 peak" in text


def test_without_options_the_command_prints_tables(tmp_path, capsys):
    assert main(["report", str(record(tmp_path / "run", full_run()))]) == 0
    out = capsys.readouterr().out
    assert "RECORDED, not measured here: Some GPU" in out
    assert "v7_best" in out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("samples.json.gz", "no gzip"),
        ("code.json", "[]"),
        ("code.json", '{"format": 1, "kernels": {"a": 5}}'),
        ("code.json", '{"format": 1, "kernels": {"a": {"intensity_global": NaN}}}'),
        ("code.json", "{"),
    ],
)
def test_a_broken_file_beside_the_rows_is_one_clear_line(name, text, tmp_path, capsys):
    folder = record(tmp_path / "run", full_run())
    (folder / name).write_text(text, encoding="utf-8")
    assert main(["report", str(folder), "--html", str(tmp_path / "page.html")]) == 2
    error = capsys.readouterr().err
    assert name in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("column", "cell"), [("track", "fp8"), ("family", ""), ("tflops", "nan"), ("time_us", "inf"), ("m", "")]
)
def test_rows_that_no_figure_could_show_are_refused_with_their_line(column, cell, tmp_path):
    folder = record(tmp_path / "run", full_run())
    lines = (folder / runs.ROWS_FILE).read_text(encoding="utf-8").splitlines()
    cells = lines[1].split(",")
    cells[NAMES.index(column)] = cell
    lines[1] = ",".join(cells)
    (folder / runs.ROWS_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(RunFileError, match="line 2"):
        runs.read_run(folder)


@pytest.mark.nvcc
def test_inspecting_keeps_the_main_loop_of_kernels_that_are_still_the_same(tmp_path, capsys):
    rows = [
        timed("v0_naive", "handwritten", "fp32_simt", 5.0, registers=32),
        timed("v1_thread_tile", "handwritten", "fp32_simt", 13.0, registers=7),
        timed("v99_gone", "handwritten", "fp32_simt", 13.0, registers=7),
        timed("cublas_sgemm", "cublas", "fp32_simt", 50.0),
    ]
    folder = record(tmp_path / "run", rows)
    page = tmp_path / "page.html"
    assert main(["report", str(folder), "--inspect", "--html", str(page)]) == 0
    said = capsys.readouterr().err
    assert "v1_thread_tile: built here with" in said
    assert "v99_gone: in no catalog here" in said
    (name, facts) = next(iter(code_facts.read(folder).items()))
    assert name == "v0_naive"
    assert facts["per_k_step"]["FFMA"] == 1.0
    assert facts["intensity_global"] == 0.25
    assert "FFMA" in page.read_text(encoding="utf-8")


def test_the_shipped_page_and_picture_are_the_recorded_runs_own():
    folder = runs.latest()
    page = (folder / readme.PAGE).read_text(encoding="utf-8")
    assert len(page.encode()) < 5_000_000
    assert page == html_of(folder), "run `make readme`"
    assert (runs.repository() / readme.PICTURE).read_text(encoding="utf-8") == readme.current_picture()


def html_of(folder):
    from compare.reporting import page_of

    return page_of(folder)


def test_facts_of_the_shipped_run_cover_the_hand_written_kernels():
    """Those of another run may be of kernels that changed since: `gemm-tracks report latest --inspect` renews them."""
    folder = runs.latest()
    _, rows = runs.read_run(folder)
    ours = {row["name"] for row in rows if row["family"] == "handwritten" and not is_dispatcher(row)}
    assert ours <= set(code_facts.read(folder))


def test_load_run_documents_its_columns(tmp_path):
    import compare

    frame = compare.load_run(record(tmp_path / "run", full_run()))
    assert list(frame.columns) == list(NAMES) == list(frame.attrs["columns"])
    assert frame.attrs["run"]["revision"] == "abc"
    assert "TFLOP/s" in frame.attrs["columns"]["tflops"]
    assert str(frame.dtypes["m"]) == "Int64"


def test_a_figure_has_as_many_tabs_as_the_style_can_show_and_those_of_the_most_kernels():
    style = (html.PAGE / "report.css").read_text(encoding="utf-8")
    assert {int(number) for number in re.findall(r"\.tab-(\d+):checked", style)} == set(range(html.MOST_VIEWS))
    run, rows = runs.read_run("latest")
    page = html.render(rows, run)
    tabs = re.findall(r'<input type="radio" name="tracks-view" id="tracks-(\d+)"[^>]*?( checked)?>', page)
    assert [int(number) for number, _ in tabs] == list(range(html.MOST_VIEWS))
    assert [bool(checked) for _, checked in tabs].count(True) == 1
    assert {"4096³", "8192³"} <= set(re.findall(r'<label for="tracks-\d+">([^<]*)</label>', page))
