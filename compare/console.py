"""Where text goes: answers to stdout, progress and remarks to stderr, so that answers can be piped."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

SAY_EVERY_S = 15.0
PIPED_WIDTH = 180
"""Columns where stdout is no terminal: room for a table's full width."""


def answers() -> Console:
    """Stdout."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False, markup=False)


def messages() -> Console:
    """Stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout; numbers that JSON does not have become text: inf, -inf and nan."""
    sys.stdout.write(json.dumps(finite(value), indent=1, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The same with every float that is not finite as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, (list, tuple)) else value


@contextlib.contextmanager
def progress(label: str, total: float) -> Iterator[Callable[[float, str], None]]:
    """A bar on stderr while the block runs; call what it gives with (how much is done of total, what is being done).

    Where stderr is no terminal, a line now and then takes the bar's place.
    """
    console = messages()
    if not console.is_terminal:
        said = time.monotonic()

        def say(done: float, text: str) -> None:
            nonlocal said
            if time.monotonic() - said >= SAY_EVERY_S:
                said = time.monotonic()
                console.print(f"{label}, {100 * done / max(total, 1e-9):.0f} %: {text}")

        yield say
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(label),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("", total=max(total, 1e-9))
        yield lambda done, text: display.update(task, completed=done, description=text)
