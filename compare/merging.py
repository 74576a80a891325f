"""The command ``merge``: runs made on different GPUs or machines in one report with a column for each GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compare import cards, runs
from compare.cards import Card, Line, Merged
from compare.report import BURST_MARK, TRACK_TITLES, Row, Shape, shape_of, shapes_in
from kernel.errors import RunFileError, UsageError
from kernel.whole_file import write_text

SHOWN = ("ok", "time_us", "tflops", "x_cublas", "x_cublas_lo", "x_cublas_hi", "sm_clock_mhz", "power_w", "window")
"""Columns of a card's cell in --json."""

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
    console = answers()
    for text in origins(merged, read):
        console.print(text, soft_wrap=True)
    for title, lines in sections(merged):
        heads, texts = cells(merged, lines)
        console.print(table_of(title, heads, [(text, "") for text in texts], console.width))
    for text in (*remarks(merged, read), *cards.verdicts(merged)):
        console.print(text, soft_wrap=True)
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


def cells(merged: Merged, lines: Sequence[Line]) -> tuple[list[Any], list[list[str]]]:
    """Headings and texts: the kernel, each card's rate and ratio, and the spread of each model with several cards."""
    from compare.console import Head

    plural = [model for model, members in merged.models.items() if len(members) > 1]
    heads = [Head("kernel", folds=True)]
    heads += [Head(f"{card.label}\nTFLOP/s, x cuBLAS [95 %]", right=True) for card in merged.cards]
    heads += [Head(f"{model}\nspread of x cuBLAS", right=True) for model in plural]
    texts = []
    for line in lines:
        mark = BURST_MARK if line.row["window"] == "burst" else ""
        layout = "" if line.row["layout"] in (None, "rr") else f" {line.row['layout']}"
        text = [f"{line.row['name']}{layout}{mark}"]
        text += [cell(line.by_card.get(card)) for card in merged.cards]
        for model in plural:
            between = cards.spread(line.values("x_cublas", model))
            text.append("" if between is None else f"{100 * between:.2f} %{' !' if line.apart(model) else ''}")
        texts.append(text)
    return heads, texts


def cell(row: Row | None) -> str:
    """One card's rate and ratio; empty where it has none."""
    if row is None:
        return ""
    text = f"{row['tflops']:.2f}"
    if row["x_cublas"] is None:
        return text
    low, high = row["x_cublas_lo"], row["x_cublas_hi"]
    return f"{text}, {row['x_cublas']:.3f}" + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")


def markdown(merged: Merged, read: Sequence[Run]) -> str:
    """The report as one page of markdown."""
    lines = ["# Runs side by side", "", *(f"- {text}" for text in origins(merged, read))]
    for title, inside in sections(merged):
        heads, texts = cells(merged, inside)
        lines += ["", f"## {title}", "", f"| {' | '.join(head.text.replace(chr(10), '<br>') for head in heads)} |"]
        lines += [f"|{'|'.join('---:' if head.right else '---' for head in heads)}|"]
        lines += [f"| {' | '.join([f'`{text[0]}`', *text[1:]])} |" for text in texts]
    closing = [*remarks(merged, read), *cards.verdicts(merged)]
    return "\n".join([*lines, "", *(f"- {text}" for text in closing)]) + "\n"


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
