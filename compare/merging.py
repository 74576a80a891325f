"""The command ``merge``: runs made on different GPUs or machines in one report with a column for each GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compare import cards, runs
from compare.cards import Card, Line, Merged
from compare.console import BETWEEN, EDGES, FOLDED, Head
from compare.folding import folded, terminal_width
from compare.report import BURST_MARK, TRACK_TITLES, Row, Shape, markdown_code, markdown_text, shape_of, shapes_in
from kernel.errors import RunFileError, UsageError
from kernel.whole_file import write_text

SHOWN = ("ok", "time_us", "tflops", "x_cublas", "x_cublas_lo", "x_cublas_hi", "sm_clock_mhz", "power_w", "window")
"""Columns of a card's cell in --json."""

DETAILS = ("rate and interval", "interval", "rate", "")
"""What a card's cell has beside its ratio; where room is short, the later ones."""
NAMED = 5
"""Places where cards disagree that a terminal is told."""

Run = tuple[str, Mapping[str, Any], Sequence[Row]]


def run_merge(given: Sequence[str], out: Path | None, *, as_json: bool) -> None:
    """Print runs side by side, and write the same as markdown where ``out`` is given.

    Raises:
        UsageError: fewer than two runs, or one twice.
        RunFileError: one cannot be read, or none holds a time.
    """
    from compare.console import answers, print_json, table_of

    folders = [runs.locate(one) for one in given]
    if len(folders) < 2 or len(set(folders)) < len(folders):
        raise UsageError("merge puts two or more different runs side by side: gemm-tracks merge RUN RUN ...")
    read = [(folder.name, *runs.read_run(folder)) for folder in folders]
    merged = cards.side_by_side(read)
    if not merged.lines:
        raise RunFileError(f"nothing was timed in {', '.join(given)}")
    if out is not None:
        write_text(out, markdown(merged, read))
    if as_json:
        print_json(as_record(merged, read))
        return
    console, wide = answers(), terminal_width()
    for text in origins(merged, read):
        console.print(folded(text, wide), soft_wrap=True)
    for title, lines in sections(merged):
        heads, texts, without = fitting(merged, lines, console.width)
        console.print(table_of(title, heads, [(text, "") for text in texts], console.width, without))
    for text in (*remarks(merged, read), *cards.verdicts(merged, None if wide is None else NAMED)):
        console.print(folded(text, wide), soft_wrap=True)
    if out is not None:
        console.print(f"written to {out}")


def origins(merged: Merged, read: Sequence[Run]) -> list[str]:
    """One line for each card: the runs that it has rows of, with date, revision and driver."""
    texts = []
    for card in merged.cards:
        of = [one for one in read if any(cards.card_of(row, one[1], one[0]) == card for row in one[2])]
        told = []
        for folder, run, _ in of:
            when = f"{str(run.get('date', ''))[:10]}, revision {run.get('revision')}"
            told.append(f"{folder}: {when}, driver {run.get('driver') or 'unknown'}")
        texts.append(f"{card.label}: {'; '.join(told)}")
    return texts


def remarks(merged: Merged, read: Sequence[Run]) -> list[str]:
    """What a reader has to know before holding columns against each other."""
    texts = []
    if any(line.row["window"] == "burst" for line in merged.lines):
        texts.append(f"{BURST_MARK} burst window; the others are sustained. A line is of one window on all its cards.")
    revisions = {str(run.get("revision")) for _, run, _ in read}
    if len(revisions) > 1:
        texts.append(f"The runs are of different revisions ({', '.join(sorted(revisions))}): kernels may differ.")
    if len(merged.models) > 1:
        texts.append("Different models stand side by side; no spread is stated between them, and nothing is averaged.")
    if merged.replaced:
        texts.append(f"{merged.replaced} rows were measured again on the same card; the later run is shown.")
    return texts


def sections(merged: Merged) -> list[tuple[str, list[Line]]]:
    """(title, lines) for each shape and track."""
    found = []
    for shape in shapes_in([line.row for line in merged.lines]):
        for track, title in TRACK_TITLES.items():
            inside = [line for line in merged.lines if of(line, shape, track)]
            if inside:
                found.append((f"{shape}  {title}", inside))
    return found


def of(line: Line, shape: Shape, track: str) -> bool:
    return shape_of(line.row) == shape and line.row["track"] == track


def fitting(merged: Merged, lines: Sequence[Line], width: int) -> tuple[list[Head], list[list[str]], tuple[str, ...]]:
    """:func:`cells` in as much detail as ``width`` columns hold, and a remark on what is not there.

    Where ratios alone are too wide still, the table leaves cards out, the last first, and says which.
    """
    for detail in DETAILS:
        heads, texts = cells(merged, lines, detail)
        places = [place for place in range(1, len(heads)) if heads[place].goes]
        for turn, place in enumerate(reversed(places), start=1):
            heads[place] = heads[place]._replace(goes=turn)
        columns = zip(heads, zip(*texts, strict=True), strict=True)
        needed = [
            max(len(word) for text in (head.text, *column) for word in text.split("\n")) for head, column in columns
        ]
        if min(needed[0], FOLDED) + sum(needed[1:]) + BETWEEN * (len(needed) - 1) + EDGES <= width:
            break
    absent = [what for what, part in (("TFLOP/s", "rate"), ("intervals", "interval")) if part not in detail]
    return heads, texts, (f"left out of cells for want of width: {', '.join(absent)}",) if absent else ()


def cells(merged: Merged, lines: Sequence[Line], detail: str = DETAILS[0]) -> tuple[list[Head], list[list[str]]]:
    """Headings and texts: the kernel, each card's rate and ratio, and the spread of each model with several cards.

    Cards and models that have nothing here have no column.
    """
    shown = [card for card in merged.cards if any(card in line.by_card for line in lines)]
    spreads = {
        model: [cards.spread(line.values("x_cublas", model)) for line in lines]
        for model, members in merged.models.items()
        if len(members) > 1
    }
    plural = [model for model, found in spreads.items() if any(one is not None for one in found)]
    whole = detail == DETAILS[0]
    what = f"{'TFLOP/s, ' if 'rate' in detail else ''}x cuBLAS{' [95 %]' if 'interval' in detail else ''}"
    heads = [Head("kernel", folds=True)]
    for card in shown:
        label = card.label if whole else card.label.replace(f"{card.model} ", f"{card.model}\n", 1)
        heads.append(Head(f"{label}\n{what}", right=True, goes=1))
    between = "spread of x cuBLAS" if whole else "spread of\nx cuBLAS"
    heads += [Head(f"{model}\n{between}", right=True) for model in plural]
    texts = []
    for place, line in enumerate(lines):
        mark = BURST_MARK if line.row["window"] == "burst" else ""
        layout = "" if line.row["layout"] in (None, "rr") else f" {line.row['layout']}"
        text = [f"{line.row['name']}{layout}{mark}"]
        text += [cell(line.by_card.get(card), detail) for card in shown]
        for model in plural:
            found = spreads[model][place]
            text.append("" if found is None else f"{100 * found:.2f} %{' !' if line.apart(model) else ''}")
        texts.append(text)
    return heads, texts


def cell(row: Row | None, detail: str = DETAILS[0]) -> str:
    """One card's rate and ratio; empty where it has none."""
    if row is None:
        return ""
    rate = f"{row['tflops']:.2f}"
    if row["x_cublas"] is None:
        return rate if "rate" in detail else "-"
    low, high = row["x_cublas_lo"], row["x_cublas_hi"]
    text = f"{rate}, {row['x_cublas']:.3f}" if "rate" in detail else f"{row['x_cublas']:.3f}"
    return text if "interval" not in detail or low is None or high is None else f"{text} [{low:.3f}, {high:.3f}]"


def markdown(merged: Merged, read: Sequence[Run]) -> str:
    """The report as one page of markdown."""
    lines = ["# Runs side by side", "", *(f"- {markdown_text(text)}" for text in origins(merged, read))]
    for title, inside in sections(merged):
        heads, texts = cells(merged, inside)
        lines += [
            "",
            f"## {title}",
            "",
            f"| {' | '.join('<br>'.join(map(markdown_text, head.text.split(chr(10)))) for head in heads)} |",
        ]
        lines += [f"|{'|'.join('---:' if head.right else '---' for head in heads)}|"]
        lines += [f"| {' | '.join([markdown_code(text[0]), *text[1:]])} |" for text in texts]
    closing = [*remarks(merged, read), *cards.verdicts(merged)]
    return "\n".join([*lines, "", *(f"- {markdown_text(text)}" for text in closing)]) + "\n"


def as_record(merged: Merged, read: Sequence[Run]) -> dict[str, Any]:
    """The report as JSON holds it."""

    def card(one: Card) -> dict[str, Any]:
        return {"label": one.label, "model": one.model, "index": one.index, "identity": one.identity}

    lines = []
    for line in merged.lines:
        shared = {name: line.row[name] for name in ("name", "variant", "family", "track", "m", "n", "k", "layout")}
        values = {one.label: {name: row[name] for name in SHOWN} for one, row in line.by_card.items()}
        between = {model: cards.spread(line.values("x_cublas", model)) for model in merged.models}
        lines.append({**shared, "window": line.row["window"], "cards": values, "spread_of_x_cublas": between})
    return {
        "cards": [card(one) for one in merged.cards],
        "runs": [{"folder": name, "revision": run.get("revision"), "date": run.get("date")} for name, run, _ in read],
        "lines": lines,
        "remarks": [*remarks(merged, read), *cards.verdicts(merged)],
    }
