"""Where text goes: answers to stdout, progress and remarks to stderr, so that answers can be piped."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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


FOLDED, LEAST_FOLDED = 24, 8
"""Room that texts which fold are given before a column is left out, and in any case."""
BETWEEN, EDGES = 3, 2
"""What rich puts between two columns, and at both ends together."""


class Head(NamedTuple):
    """A column of a table: its heading, and what becomes of it where room is short."""

    text: str
    right: bool = False
    folds: bool = False
    """Texts that may run over several lines, such as a kernel's name; a number never does."""
    goes: int = 0
    """Its turn to be left out, the lowest first; 0: it stays."""


def table_of(
    title: str,
    heads: Sequence[Head],
    lines: Sequence[tuple[Sequence[str], str]],
    width: int | None = None,
    remarks: Sequence[str] = (),
) -> Table:
    """A table of texts, each line with its style, in which a number is whole or not there.

    Where ``width`` columns do not hold it, texts are folded and columns left out, as the caption then says.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    natural = {place: _natural_width(head, [cells[place] for cells, _ in lines]) for place, head in enumerate(heads)}
    least = {place: min(wide, FOLDED) if heads[place].folds else wide for place, wide in natural.items()}
    kept = list(natural)

    def too_wide() -> bool:
        needed = sum(least[place] for place in kept) + BETWEEN * (len(kept) - 1) + EDGES
        return width is not None and needed > width

    for place in sorted((place for place in kept if heads[place].goes), key=lambda place: heads[place].goes):
        if too_wide():
            kept.remove(place)
    room = None if width is None else width - BETWEEN * (len(kept) - 1) - EDGES
    given = _shares(room, {place: natural[place] for place in kept}, heads)
    table = Table(
        title=title or None, title_justify="left", title_style="bold", caption_justify="left", box=SIMPLE_HEAD,
        pad_edge=False,
    )  # fmt: skip
    for place in kept:
        head = heads[place]
        justify: Literal["left", "right"] = "right" if head.right else "left"
        table.add_column(Text(head.text), justify=justify, no_wrap=not head.folds, overflow="fold", width=given[place])
    for cells, style in lines:
        table.add_row(*(Text(cells[place]) for place in kept), style=style)
    absent = [" ".join(head.text.split()) for place, head in enumerate(heads) if place not in kept]
    said = [*remarks, *([f"left out for want of width: {', '.join(absent)}"] if absent else [])]
    table.caption = Text("\n".join(said)) if said else None
    return table


def _natural_width(head: Head, cells: Sequence[str]) -> int:
    return max(len(word) for text in (head.text, *cells) for word in text.split("\n"))


def _shares(room: int | None, natural: Mapping[int, int], heads: Sequence[Head]) -> dict[int, int]:
    """Widths of columns: what does not fold has its own; the others share what is left, none more than it needs."""
    given = dict(natural)
    if room is None:
        return given
    room -= sum(width for place, width in natural.items() if not heads[place].folds)
    folding = sorted((place for place in natural if heads[place].folds), key=lambda place: natural[place])
    for count, place in enumerate(folding):
        given[place] = max(LEAST_FOLDED, min(natural[place], room // (len(folding) - count)))
        room -= given[place]
    return given


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
def progress(label: str, total: float, after_s: float = 0.0) -> Iterator[Callable[[float, str], None]]:
    """A bar on stderr while the block runs; call what it gives with (how much is done of total, what is being done).

    The bar comes up after ``after_s``, so that what is over sooner shows none. Where stderr is no terminal, a line now
    and then takes the bar's place.
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
    display = Progress(*columns, console=console, transient=True)
    task = display.add_task("", total=max(total, 1e-9))
    begin = threading.Timer(after_s, display.start)
    if after_s > 0:
        begin.daemon = True
        begin.start()
    else:
        display.start()
    try:
        yield lambda done, text: display.update(task, completed=done, description=text)
    finally:
        if after_s > 0:
            begin.cancel()
            begin.join()
        if display.live.is_started:
            display.stop()
