"""Lines of text that end where a terminal does. What is piped stays whole, one line a fact."""

from __future__ import annotations

import sys
import textwrap

LEAST = 40
"""Columns below which a terminal is taken for this wide."""


def terminal_width() -> int | None:
    """Columns of stdout; None where it is no terminal."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    from compare.console import answers

    return answers().width


def folded(text: str, width: int | None, indent: int | None = None) -> str:
    """Each line in ``width`` columns, broken between words alone; None: as it is.

    What a line goes on with stands two columns further in than it begins, or ``indent`` columns in.
    """
    if width is None:
        return text
    lines = []
    for line in text.split("\n"):
        begins = len(line) - len(line.lstrip())
        further = " " * (begins + 2 if indent is None else indent)
        wrapped = textwrap.wrap(
            line, max(width, LEAST), subsequent_indent=further, break_on_hyphens=False, break_long_words=False,
            drop_whitespace=True, replace_whitespace=False,
        )  # fmt: skip
        lines += wrapped or [line]
    return "\n".join(lines)
