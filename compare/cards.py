"""Several cards in one report: which card a row is of, and how far equal cards lie apart. Pure functions of rows.

Ratios are paired on one card and stay apart here: nothing in this module averages over cards, and cards of
different models are never held against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare.report import DEFAULT_INPUT, FAMILY_ORDER, IDENTITY, Row, is_timed
from compare.statistics import median

HASH_SHOWN = 6
AGREE = 0.01
"""Ratios of equal cards that lie further apart are pointed out."""


@dataclass(frozen=True)
class Card:
    """One GPU. Where a run was made before rows said which, the run stands for its card."""

    model: str
    index: int | None
    identity: str

    @property
    def label(self) -> str:
        """Model, index and the beginning of the UUID's hash."""
        index = "" if self.index is None else f" {self.index}"
        return f"{self.model}{index} ({self.identity[:HASH_SHOWN] if self.index is not None else self.identity})"


def card_of(row: Row, run: Mapping[str, Any], folder: str) -> Card:
    """The card that a row was measured on."""
    if row["gpu_uuid_hash"]:
        return Card(str(row["gpu_name"]), row["gpu_index"], str(row["gpu_uuid_hash"]))
    return Card(str((run.get("gpu") or {}).get("name", "unknown GPU")), None, folder)


def spread(values: Sequence[float]) -> float | None:
    """(largest - smallest) / median; None for fewer than two values."""
    return (max(values) - min(values)) / median(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Line:
    """One thing that was run, in one window, on every card that has it."""

    row: Row
    """Any one of them, for what they share."""
    by_card: Mapping[Card, Row]

    def values(self, column: str, model: str) -> list[float]:
        """A column on the cards of one model."""
        rows = (row for card, row in self.by_card.items() if card.model == model)
        return [float(row[column]) for row in rows if row[column] is not None]

    def apart(self, model: str) -> bool:
        """Whether the ratios of a model's cards lie more than :data:`AGREE` apart, and further than their intervals."""
        rows = [r for card, r in self.by_card.items() if card.model == model and r["x_cublas"] is not None]
        between = spread([float(row["x_cublas"]) for row in rows])
        if between is None or between <= AGREE:
            return False
        known = [row for row in rows if row["x_cublas_lo"] is not None and row["x_cublas_hi"] is not None]
        return len(known) < len(rows) or max(r["x_cublas_lo"] for r in known) > min(r["x_cublas_hi"] for r in known)


@dataclass(frozen=True)
class Merged:
    """Rows of several runs side by side."""

    cards: tuple[Card, ...]
    lines: tuple[Line, ...]
    replaced: int
    """Rows that a later run measured again on the same card; the later one is shown."""

    @property
    def models(self) -> dict[str, list[Card]]:
        """Cards by model."""
        found: dict[str, list[Card]] = {}
        for card in self.cards:
            found.setdefault(card.model, []).append(card)
        return found


def side_by_side(runs: Sequence[tuple[str, Mapping[str, Any], Sequence[Row]]]) -> Merged:
    """Join runs, given as (folder, provenance, rows).

    Of each thing the sustained window is shown, or the burst one where more cards have that; warm L2 and the default
    input only.
    """
    found: dict[tuple[Any, ...], dict[str, dict[Card, Row]]] = {}
    cards: dict[Card, None] = {}
    replaced = 0
    for folder, run, rows in sorted(runs, key=lambda one: str(one[1].get("date", ""))):
        for row in rows:
            if not is_timed(row) or row["l2"] == "cold" or row["input"] not in (DEFAULT_INPUT, None):
                continue
            card = card_of(row, run, folder)
            cards[card] = None
            here = found.setdefault(tuple(row[name] for name in IDENTITY), {}).setdefault(str(row["window"]), {})
            replaced += card in here
            here[card] = row
    ordered = sorted(cards, key=lambda card: (card.model, card.index is None, card.index or 0, card.identity))
    lines = []
    for windows in found.values():
        by_card = max(windows.values(), key=len)
        if len(windows.get("sustained", ())) >= len(by_card):
            by_card = windows["sustained"]
        lines.append(Line(next(iter(by_card.values())), {card: by_card[card] for card in ordered if card in by_card}))
    lines.sort(key=lambda line: FAMILY_ORDER.index(str(line.row["family"])))
    return Merged(tuple(ordered), tuple(lines), replaced)


def verdicts(merged: Merged, most: int | None = None) -> list[str]:
    """For each model with several cards: how far their ratios lie apart, and where they do not agree.

    Of the places, ``most`` are named, those furthest apart first; None: all.
    """
    texts = []
    for model, cards in merged.models.items():
        if len(cards) < 2:
            continue
        between_cards = ((line, spread(line.values("x_cublas", model))) for line in merged.lines)
        both = [(line, between) for line, between in between_cards if between is not None]
        if not both:
            texts.append(f"{model}: its {len(cards)} cards have no row in common, so nothing is said of their spread.")
            continue
        line, between = max(both, key=lambda one: one[1])
        text = f"{model}: {len(both)} rows on several of its {len(cards)} cards; ratios to cuBLAS lie at most "
        text += f"{100 * between:.2f} % apart ({called(line.row)})"
        apart = sorted((pair for pair in both if pair[0].apart(model)), key=lambda pair: -pair[1])
        if apart:
            text += f"; beyond {100 * AGREE:.0f} % and their intervals: "
            text += ", ".join(called(one.row) for one, _ in apart[:most])
            if most is not None and len(apart) > most:
                text += f", and {len(apart) - most} more, which --json and --out name"
        texts.append(text + ".")
    return texts


def called(row: Row) -> str:
    """A row in words."""
    return f"{row['name']} {row['m']}x{row['n']}x{row['k']} {row['layout']} {row['window']}"


def ceiling_lines(run: Mapping[str, Any]) -> list[str]:
    """How far the cards of one run lie apart in what none of its kernels had a part in: their ceilings."""
    cards = [card for card in run.get("gpus", ()) if card.get("ceilings")]
    if len(cards) < 2:
        return []
    rates: dict[tuple[str, str, str], list[tuple[str, float]]] = {}
    for card in cards:
        for one in card["ceilings"]:
            key = (str(one["track"]), str(one["instruction"]), str(one["window"]))
            rates.setdefault(key, []).append((f"GPU {card['index']} ({card['uuid_hash'][:HASH_SHOWN]})", one["tflops"]))
    texts = []
    for (track, instruction, window), found in rates.items():
        between = spread([rate for _, rate in found])
        if between is not None:
            listed = ", ".join(f"{label} {rate:.1f}" for label, rate in found)
            texts.append(f"Ceiling {track} {instruction} {window}: {listed} TFLOP/s; {100 * between:.2f} % apart.")
    return texts
