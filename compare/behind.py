"""Where the dispatchers are behind cuBLAS in the recorded run: every such problem, as a table of the READMEs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from compare.report import TRACK_ORDER, TRACK_TITLES, WINDOWS, Row, Shape, against_cublas, form_of, hindsight, shape_of

BEGIN, END = "<!-- behind:begin -->", "<!-- behind:end -->"
HEADS = {
    "en": ("track", "window", "problems", "least", "behind cuBLAS", "behind its best call alone"),
    "zh": ("赛道", "窗口", "问题数", "最小比值", "落后于 cuBLAS", "仅落后于其最佳调用"),
}
NOWHERE = {"en": "nowhere", "zh": "无"}
NOT_RECORDED = {"en": "Nothing is recorded yet.", "zh": "尚无记录。"}


class Place(NamedTuple):
    """A problem of a dispatcher, with its time against cuBLAS and against the fastest of cuBLAS's calls."""

    row: Row
    ratio: float
    x_library: float | None

    def __str__(self) -> str:
        return placed(self.row)


def placed(row: Row) -> str:
    """A problem in short: a cube by its side, layout and output type where they are not the usual ones."""
    shape = shape_of(row)
    text = str(shape.m) if shape == Shape(shape.m, shape.m, shape.m) else " x ".join(map(str, shape))
    return text if form_of(row) == "rr" else f"{text} {form_of(row)}"


def is_behind(ratio: float | None) -> bool:
    """Whether a ratio is below 1.000 as it is printed."""
    return ratio is not None and round(ratio, 3) < 1.0


def places(rows: Sequence[Row], track: str, window: str) -> list[Place]:
    """Every problem of a track that its dispatcher was timed on in a window, beside cuBLAS."""
    found = []
    for one in hindsight([row for row in rows if row["window"] == window and row["track"] == track]):
        ratio = against_cublas(one.picked)
        if ratio is not None:
            found.append(Place(one.picked, ratio, one.x_library))
    return found


def behind_table(rows: Sequence[Row], language: str = "en") -> str:
    """The table: for each track and window how many problems, the least ratio, and every one below 1.000."""
    lines = []
    for track in TRACK_ORDER:
        for window in WINDOWS:
            found = places(rows, track, window)
            if not found:
                continue
            least = min(found, key=lambda place: place.ratio)
            behind = [f"{place} ({place.ratio:.3f})" for place in found if is_behind(place.ratio)]
            alone = [
                f"{place} ({place.x_library:.3f})"
                for place in found
                if is_behind(place.x_library) and not is_behind(place.ratio)
            ]
            cells = (
                TRACK_TITLES[track].partition(" (")[0],
                window,
                str(len(found)),
                f"{least.ratio:.3f} ({least})",
                ", ".join(behind) or NOWHERE[language],
                ", ".join(alone) or NOWHERE[language],
            )
            lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return NOT_RECORDED[language]
    return "\n".join([f"| {' | '.join(HEADS[language])} |", "|---|---|---:|---:|---|---|", *lines])
