"""Rewrites the result tables of the README and of docs/simt.md, between their markers, from the recorded run that ships."""

from __future__ import annotations

import sys
from pathlib import Path

from compare import runs
from compare.contenders import every_contender
from compare.report import headline, is_timed, markdown
from kernel.errors import GemmTracksError, RunFileError

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
SIMT_BEGIN, SIMT_END = "<!-- simt:begin -->", "<!-- simt:end -->"
SIMT_SIZE = 4096


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


def evolution_table() -> str:
    """The FP32 ladder at 4096 cubed in the recorded run, one row a rung, those it does not hold named as such."""
    folder = runs.latest()
    _, rows = runs.read_run(folder) if folder else ({}, [])
    timed = {
        row["name"]: row
        for row in headline(rows)
        if is_timed(row) and row["m"] == row["n"] == row["k"] == SIMT_SIZE and row["track"] == "fp32_simt"
    }
    lines = ["| kernel | what it adds | TFLOP/s | x cuBLAS SGEMM | registers | window |", "|---|---|---:|---:|---:|---|"]
    for contender in every_contender():
        if contender.family != "handwritten" or contender.track != "fp32_simt":
            continue
        row = timed.get(contender.name)
        found = "not recorded yet | | | |"
        if row is not None:
            found = f"{row['tflops']:.1f} | {row['x_cublas_sgemm']:.3f} | {row['registers']} | {row['window']} |"
        lines.append(f"| {contender.name} | {contender.summary} | {found}")
    return "\n".join(lines)


def main(root: Path | None = None) -> int:
    folder = root or runs.repository()
    for name, table, marks in (
        ("README.md", current_table, (BEGIN, END)),
        ("docs/simt.md", evolution_table, (SIMT_BEGIN, SIMT_END)),
    ):
        page = folder / name
        try:
            page.write_text(rewrite(page.read_text(encoding="utf-8"), table(), *marks), encoding="utf-8")
        except GemmTracksError as error:
            sys.stderr.write(f"{page.name}: {error}\n")
            return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
