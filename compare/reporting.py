"""The command ``report``: a recorded run as an HTML page, as markdown or LaTeX, or as tables here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compare import code_facts, runs
from compare.report import latex, markdown, origin
from kernel.whole_file import write_text


def run_report(run: str, *, html: Path | None, markdown: Path | None, latex: Path | None, inspect_here: bool) -> None:
    """Run the command.

    Raises:
        RunFileError: there is no such run, or one of its files cannot be read.
        MissingToolError: --inspect, and there is no compiler.
    """
    from compare.console import messages

    folder = runs.locate(run)
    provenance, rows = runs.read_run(folder)
    if inspect_here:
        inspect_kernels(folder, rows)
    wanted = {"html": html, "markdown": markdown, "latex": latex}
    makers = {"html": page_of, "markdown": markdown_of, "latex": latex_of}
    for form, target in wanted.items():
        if target is None:
            continue
        text = makers[form](folder)
        if str(target) == "-":
            sys.stdout.write(text)
        else:
            write_text(target, text)
            messages().print(f"wrote {target}")
    if not any(wanted.values()):
        from compare.job import print_rows

        print_rows(rows, origin(provenance, recorded=True))


def inspect_kernels(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Build and inspect every kernel that the rows name, and keep what its code says beside them."""
    from compare.console import messages, progress

    names = {row["name"] for row in rows if row["registers"] is not None}
    with progress("inspecting", len(names)) as advance:
        facts, without = code_facts.collect(rows, advance)
    messages().print(f"wrote {code_facts.write(folder, facts)}: {len(facts)} kernels")
    for name, reason in without.items():
        messages().print(f"nothing on {name}: {reason}")


def summaries() -> Mapping[str, str]:
    """What each contender is or adds, by name."""
    from compare.contenders import every_contender

    return {contender.name: contender.summary for contender in every_contender()}


def page_of(folder: Path) -> str:
    """The HTML page of a run."""
    from compare.html import render

    run, rows = runs.read_run(folder)
    # A run may travel without its samples; clock and power are medians then.
    samples = runs.read_samples(folder) if (folder / runs.SAMPLES_FILE).is_file() else ()
    return render(rows, run, samples=samples, code=code_facts.read(folder), summaries=summaries())


def markdown_of(folder: Path) -> str:
    """The tables of a run as markdown."""
    run, rows = runs.read_run(folder)
    return markdown(rows, run, summaries()) + "\n"


def latex_of(folder: Path) -> str:
    """The tables of a run as LaTeX."""
    run, rows = runs.read_run(folder)
    return latex(rows, run, summaries()) + "\n"
