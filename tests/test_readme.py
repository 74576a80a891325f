"""The README's table is what the recorded run says, and its commands and links exist."""

import re
import shlex

import pytest

from compare import api_page, readme, runs, simt_page
from compare.cli import app
from handwritten.catalog import LADDER
from kernel.errors import RunFileError

PAGE = (runs.repository() / "README.md").read_text(encoding="utf-8")


def test_the_table_is_the_recorded_runs_own():
    assert readme.rewrite(PAGE, readme.current_table()) == PAGE


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
