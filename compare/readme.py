"""Renews what the recorded run says: the README's table between its markers, its picture, and the run's own page."""

from __future__ import annotations

import sys
from pathlib import Path

from compare import runs
from compare.report import markdown
from compare.reporting import page_of, summaries
from kernel.errors import GemmTracksError, RunFileError

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
PICTURE = Path("docs/tracks.svg")
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


def main(path: Path | None = None) -> int:
    page = path or runs.repository() / "README.md"
    try:
        page.write_text(rewrite(page.read_text(encoding="utf-8"), current_table()), encoding="utf-8")
        (page.parent / PICTURE).write_text(current_picture(), encoding="utf-8")
        folder = runs.latest()
        if folder is not None:
            (folder / PAGE).write_text(page_of(folder), encoding="utf-8")
    except GemmTracksError as error:
        sys.stderr.write(f"{page.name}: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
