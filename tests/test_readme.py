"""The README's table is what the recorded run says, and its commands and links exist."""

import re
import shlex

import pytest

from compare import api_page, behind, readme, runs, simt_page
from compare.cli import app
from compare.contenders import contenders
from handwritten.catalog import LADDER
from kernel.errors import RunFileError
from tests.rows_for_reports import timed

PAGE = (runs.repository() / "README.md").read_text(encoding="utf-8")


def test_the_table_is_the_recorded_runs_own():
    assert readme.rewrite(PAGE, readme.current_table()) == PAGE


@pytest.mark.parametrize(("name", "language"), [("README.md", "en"), (str(readme.CHINESE), "zh")])
def test_the_list_of_what_is_behind_is_the_recorded_runs_own_and_whole(name, language):
    page = (runs.repository() / name).read_text(encoding="utf-8")
    table = readme.current_behind(language)
    assert readme.rewrite(page, table, behind.BEGIN, behind.END) == page, "run `make readme`"
    _, rows = runs.read_run("latest")
    lost = [
        f"{behind.placed(row)} ({row['x_cublas']:.3f})"
        for row in rows
        if row["name"].endswith("_dispatch") and row["x_cublas"] and row["x_cublas"] < 0.9995 and row["l2"] != "cold"
    ]
    assert [one for one in lost if one not in table] == []


def dispatched(name, tflops, window, size=4096, **more):
    return timed(name, "handwritten", "fp16_tensor", tflops, window=window, shape=(size,) * 3, **more)


def test_every_loss_of_a_dispatcher_is_named_and_nothing_else():
    half = {"dtype_out": "float16"}
    rows = [
        dispatched("fp16_dispatch", 540.0, "burst", **half),
        dispatched("fp16_dispatch", 570.0, "burst", size=1024, layout="rc", **half),
        dispatched("fp16_dispatch", 599.9, "burst", size=2048, **half),
        dispatched("fp16_dispatch", 606.0, "sustained", **half),
        {**timed("cublaslt_fp16", "cublas", "fp16_tensor", 612.0, **half)},
        dispatched("h7_short_refill", 60.0, "burst", **half),
        dispatched("fp16_dispatch", 60.0, "burst", **half, l2="cold"),
        dispatched("fp16_dispatch", 594.0, "burst", size=8192),
    ]
    assert behind.behind_table(rows).splitlines()[2:] == [
        "| FP16 Tensor Core | sustained | 1 | 1.010 (4096) | nowhere | 4096 (0.990) |",
        "| FP16 Tensor Core | burst | 4 | 0.900 (4096) | 1024 rc (0.950), 4096 (0.900), "
        "8192 rr, FP32 out (0.990) | nowhere |",
    ]
    assert "无" in behind.behind_table(rows, "zh")
    assert behind.behind_table([]) == "Nothing is recorded yet."


def test_the_pattern_of_a_rung_is_of_that_rung_alone():
    (pattern,) = re.findall(r"--device cpu --kernels '([^']+)'", PAGE)
    assert {one.name.partition("_")[0] for one in contenders([pattern])} == {"v2"}


def test_the_simt_page_s_table_is_the_recorded_runs_own():
    page = (runs.repository() / "docs/simt.md").read_text(encoding="utf-8")
    assert readme.rewrite(page, simt_page.evolution_table(), simt_page.BEGIN, simt_page.END) == page
    for rung in LADDER:
        assert f"| {rung.name} |" in page


def test_pages_print_one_ratio_to_cublas_sgemm():
    """On its own track it is the paired one, wherever it stands."""
    page = (runs.repository() / "docs/simt.md").read_text(encoding="utf-8")
    found = dict(re.findall(r"^\| (\w+) \| [^|]+ \| [\d.]+ \| ([\d.]+) \|", page, re.MULTILINE))
    ladder = PAGE.partition("**The ladder.**")[2].partition("**The tracks.**")[0]
    shown = re.findall(r"^\| `(\w+)`[^|]* \| [^|]+ \| [\d.]+ \| ([\d.]+) \|", ladder, re.MULTILINE)
    both = [(name, ratio) for name, ratio in shown if name in found]
    assert len(both) > 10
    assert both == [(name, found[name]) for name, _ in both]
    tracks = PAGE.partition("**The tracks.**")[2].partition("**The dispatchers.**")[0]
    ratios = re.findall(r"^\| FP32 SIMT \| [^|]+ \| [\d.]+ \| ([\d.]+) \| ([\d.]+) \|", tracks, re.MULTILINE)
    assert ratios
    assert all(same == sgemm for same, sgemm in ratios)


def test_without_a_recorded_ladder_there_is_no_picture(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_RESULTS", str(tmp_path))
    with pytest.raises(RunFileError, match="no recorded run has a ladder to draw"):
        readme.current_picture()


def test_only_what_stands_between_the_markers_is_rewritten():
    text = f"before {readme.BEGIN}\nold\n{readme.END} after"
    assert readme.rewrite(text, "new") == f"before {readme.BEGIN}\nnew\n{readme.END} after"
    assert readme.rewrite(readme.rewrite(text, "a"), "b") == readme.rewrite(text, "b")
    for broken in (readme.BEGIN, readme.END, f"{readme.END}{readme.BEGIN}", ""):
        with pytest.raises(RunFileError):
            readme.rewrite(broken, "new")


def test_the_page_on_columns_is_their_own_and_its_example_runs():
    page = (runs.repository() / readme.ROWS_PAGE).read_text(encoding="utf-8")
    assert page == readme.columns_page(), "run `make readme`"
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(example, {})


def test_the_page_on_the_api_is_the_docstrings_own():
    page = (runs.repository() / readme.API_PAGE).read_text(encoding="utf-8")
    assert page == api_page.text(), "run `make readme`"
    for path in api_page.ENTRIES:
        assert f"## {path}\n" in page


def test_text_after_a_docstrings_sections_is_text_again():
    doc = "What.\n\nExample:\n    one = 1\n\nMore of ``it``.\n\nArgs:\n    a: rows.\n\nThe end."
    example = ["Example:", "", "```python", "one = 1", "```", ""]
    assert api_page._markdown(doc) == [
        "What.", "", *example, "More of `it`.", "", "Arguments:", "", "- `a`: rows.", "", "The end."
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["README.md", "docs/tutorial.md", "docs/adding_a_kernel.md", "docs/reading_the_report.md"]
)
def test_links_and_pictures_lead_somewhere(name):
    page = runs.repository() / name
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_chinese_page_has_the_same_tables_headings_commands_and_links():
    chinese = (runs.repository() / readme.CHINESE).read_text(encoding="utf-8")
    block = re.compile(f"{readme.BEGIN}.*?{readme.END}", re.DOTALL)
    assert block.findall(chinese) == block.findall(PAGE), "run `make readme`"
    lists = [re.findall(r"^\| FP.*\d\.\d{3}", readme.current_behind(one), re.MULTILINE) for one in ("en", "zh")]
    assert [re.findall(r"[\d.]+", line) for line in lists[0]] == [re.findall(r"[\d.]+", line) for line in lists[1]]
    both = [block.sub("", text) for text in (PAGE, chinese)]
    for what in (r"^#+(?= )", r"^```.*?^```$"):
        ours, theirs = (re.findall(what, text, re.MULTILINE | re.DOTALL) for text in both)
        assert ours == theirs
    ours, theirs = (re.findall(r"^\| (`[^`]+`|---)", text, re.MULTILINE) for text in both)
    assert ours == theirs
    ours, theirs = (re.findall(r"\]\(([^)#]+)\)", text) for text in both)
    assert (ours[0], theirs[0]) == (readme.CHINESE.name, "README.md")
    assert ours[1:] == theirs[1:]


def test_every_command_named_in_the_readme_exists():
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    named = [shlex.split(line, comments=True)[1] for line in PAGE.splitlines() if line.startswith("gemm-tracks ")]
    assert named
    assert set(named) <= known
    makefile = (runs.repository() / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)", PAGE, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
