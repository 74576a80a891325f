"""Renews what follows from other files: both READMEs, docs/simt.md, rows.md and api.md, tracks.svg, a run's page."""

from __future__ import annotations

import sys
from pathlib import Path

from compare import api_page, behind, runs, simt_page
from compare.report import markdown
from compare.reporting import page_of, summaries
from compare.rows import COLUMNS
from kernel.errors import GemmTracksError, RunFileError

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
CHINESE = Path("README.zh-CN.md")
PICTURE = Path("docs/tracks.svg")
ROWS_PAGE = Path("docs/rows.md")
API_PAGE = Path("docs/api.md")
SIMT_PAGE = Path("docs/simt.md")
PAGE = "report.html"
"""The page of a recorded run, in its folder."""


def rewrite(text: str, table: str, begin_mark: str = BEGIN, end_mark: str = END) -> str:
    """``text`` with what stands between the markers replaced.

    Raises:
        RunFileError: the markers are missing or out of order.
    """
    before, begin, rest = text.partition(begin_mark)
    _, end, after = rest.partition(end_mark)
    if not begin or not end:
        raise RunFileError(f"the page lacks the markers {begin_mark} and {end_mark}, in this order")
    return f"{before}{begin_mark}\n{table}\n{end_mark}{after}"


def current_table() -> str:
    """The table of results/nvidia-h200/latest, or a sentence where there is no recorded run."""
    folder = runs.latest()
    run, rows = runs.read_run(folder) if folder else ({}, [])
    return markdown(rows, run, summaries())


def current_behind(language: str) -> str:
    """Where the dispatchers of that run are behind cuBLAS."""
    folder = runs.latest()
    return behind.behind_table(runs.read_run(folder)[1] if folder else [], language)


def current_picture() -> str:
    """The tracks of that run as an SVG that stands alone, for light and dark pages.

    Raises:
        RunFileError: there is no recorded run, or nothing in it was timed.
    """
    from compare import charts, figures
    from compare.html import chart_style
    from compare.report import ladder_scene, origin

    folder = runs.latest()
    run, rows = runs.read_run(folder) if folder else ({}, [])
    steps = ladder_scene(rows)
    picture = figures.track_picture(rows, steps.shape, run) if steps else None
    if picture is None:
        raise RunFileError("no recorded run has a ladder to draw")
    source = origin(run, recorded=False).partition(": ")[2]
    heading = f"{source}. {picture.shape}, {picture.window}, warm L2"
    return charts.tracks(picture, charts.WIDE, heading).svg(chart_style())


def columns_page() -> str:
    """docs/rows.md: every column with its type and unit."""
    lines = [
        "# Rows",
        "",
        "A run's `rows.csv` has one row for each kernel, variant, problem, window and L2 state. As a pandas DataFrame:",
        "",
        "```python",
        "import compare",
        "",
        'frame = compare.load_run("latest")  # or a run\'s folder',
        'frame[frame.window == "sustained"].nlargest(5, "tflops")[["name", "m", "tflops", "x_cublas"]]',
        'frame.attrs["columns"]["power_w"]  # what a column means, with its unit',
        'frame.attrs["run"]["gpu"]["name"]  # run.json: where the rows come from',
        "```",
        "",
        "Integers and booleans are pandas' nullable types, and what was not measured stays empty. This page is written",
        "by `make readme` from `compare/rows.py`.",
        "",
        "| column | type | meaning |",
        "|---|---|---|",
    ]
    for column in COLUMNS:
        lines.append(f"| `{column.name}` | {column.type} | {column.meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def main(path: Path | None = None) -> int:
    page = path or runs.repository() / "README.md"
    try:
        table = current_table()
        for front in (page, page.parent / CHINESE):
            if front == page or front.exists():
                text = rewrite(front.read_text(encoding="utf-8"), table)
                losses = current_behind("zh" if front.name == CHINESE.name else "en")
                front.write_text(rewrite(text, losses, behind.BEGIN, behind.END), encoding="utf-8")
        (page.parent / PICTURE).write_text(current_picture(), encoding="utf-8")
        (page.parent / ROWS_PAGE).write_text(columns_page(), encoding="utf-8")
        (page.parent / API_PAGE).write_text(api_page.text(), encoding="utf-8")
        simt = page.parent / SIMT_PAGE
        if simt.exists():
            text = rewrite(
                simt.read_text(encoding="utf-8"), simt_page.evolution_table(), simt_page.BEGIN, simt_page.END
            )
            simt.write_text(text, encoding="utf-8")
        folder = runs.latest()
        if folder is not None:
            (folder / PAGE).write_text(page_of(folder), encoding="utf-8")
    except GemmTracksError as error:
        sys.stderr.write(f"{page.name}: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
