"""Rewrites the README's result table, between its markers, from the recorded run that ships."""

from __future__ import annotations

import sys
from pathlib import Path

from compare import runs
from compare.contenders import every_contender
from compare.report import markdown
from kernel.errors import GemmTracksError, RunFileError

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


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
    return markdown(rows, run, {contender.name: contender.summary for contender in every_contender()})


def main(path: Path | None = None) -> int:
    page = path or runs.repository() / "README.md"
    try:
        page.write_text(rewrite(page.read_text(encoding="utf-8"), current_table()), encoding="utf-8")
    except GemmTracksError as error:
        sys.stderr.write(f"{page.name}: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
