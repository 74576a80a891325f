"""Two recorded runs, row by row: same, faster, slower or unclear, with the noise of both taken into account.

Times of two runs differ for reasons that are no kernel's fault: another card, another clock, another
temperature. So a change in time is believed only where something that such reasons leave alone agrees: the
cycles that a launch takes, or the ratio to cuBLAS that was paired within each run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compare import runs
from compare.rows import KEY
from compare.statistics import Interval, median, ratio_of_medians
from kernel.errors import UsageError

THRESHOLD = 0.02
"""A change of less than this is none: the same kernel moves by up to 1 % between two sessions."""
CONFIRMATION = 0.5
"""The part of the threshold that cycles or the paired ratio must move by, in the same direction."""

WINDOW_WORDS = {"burst": "in bursts", "sustained": "in sustained windows"}
"""The windows that a run can have, as lines name them."""

Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One row of both runs. ``ratio`` is time after over time before, so above 1 is slower."""

    key: dict[str, Any]
    verdict: str
    """same, faster, slower, unclear; broken where it ran before and does not now."""
    before_us: float | None = None
    after_us: float | None = None
    ratio: float | None = None
    ratio_lo: float | None = None
    ratio_hi: float | None = None
    cycles_ratio: float | None = None
    """Cycles of a launch after over before; None where a clock is missing."""
    x_cublas_ratio: float | None = None
    """Paired ratio to cuBLAS before over after, so above 1 is slower; None for cuBLAS itself."""
    confirmed_by: str = ""
    """cycles, cublas, both joined by +, or empty."""
    note: str = ""

    @property
    def name(self) -> str:
        return str(self.key["name"])


@dataclass(frozen=True, kw_only=True)
class Compared:
    """How many rows of one window were compared, and how closely: half the length of their intervals, in percent."""

    window: str
    rows: int
    median_pct: float | None
    widest_pct: float | None
    without_interval: int
    """Rows of which a run kept fewer than two samples."""

    def __str__(self) -> str:
        text = f"{self.rows} {WINDOW_WORDS.get(self.window, self.window)}"
        parts = []
        if self.median_pct is not None:
            parts.append(f"intervals of ± {self.median_pct:.1f} %, the widest ± {self.widest_pct:.1f} %")
        if self.without_interval:
            parts.append(f"{self.without_interval} without samples for an interval")
        return f"{text} ({'; '.join(parts)})" if parts else text


@dataclass(frozen=True, kw_only=True)
class Diff:
    """What became of every row."""

    changes: tuple[Change, ...]
    only_before: tuple[dict[str, Any], ...]
    only_after: tuple[dict[str, Any], ...]
    threshold: float

    @property
    def regressions(self) -> tuple[Change, ...]:
        """Rows that got slower, or broke."""
        return tuple(change for change in self.changes if change.verdict in ("slower", "broken"))

    @property
    def exit_status(self) -> int:
        """1 where something regressed."""
        return 1 if self.regressions else 0

    @property
    def windows(self) -> tuple[Compared, ...]:
        """What was compared, by window; a window that no row of both runs has is there with none."""
        by_window: dict[str, list[Change]] = {window: [] for window in WINDOW_WORDS}
        for change in self.changes:
            if change.ratio is not None:
                by_window.setdefault(str(change.key["window"]), []).append(change)
        found = []
        for window, changes in by_window.items():
            reach = [
                50 * (change.ratio_hi - change.ratio_lo)
                for change in changes
                if change.ratio_hi is not None and change.ratio_lo is not None
            ]
            found.append(
                Compared(
                    window=window,
                    rows=len(changes),
                    median_pct=median(reach) if reach else None,
                    widest_pct=max(reach, default=None),
                    without_interval=len(changes) - len(reach),
                )
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "threshold": self.threshold,
            "counts": dict(Counter(change.verdict for change in self.changes)),
            "windows": [asdict(one) for one in self.windows],
            "regressions": [change.name for change in self.regressions],
            "rows": [asdict(change) for change in self.changes],
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
        }

    def lines(self) -> list[str]:
        """For people: what changed, then how many rows did not."""
        shown = [change for change in self.changes if change.verdict != "same"]
        shown.sort(key=lambda change: (ORDER.index(change.verdict), change.name))
        out = [_line(change) for change in shown]
        counts = Counter(change.verdict for change in self.changes)
        summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (*ORDER, "same") if counts[verdict])
        out.append(f"{len(self.changes)} rows: {summary or 'none in common'} (threshold {100 * self.threshold:g} %)")
        out.append(f"compared: {', '.join(str(one) for one in self.windows if one.rows) or 'no time'}")
        for one in self.windows:
            if not one.rows:
                out.append(
                    f"no row {WINDOW_WORDS[one.window]} was timed in both runs, so nothing is said of that window"
                )
        for which, keys in (("first", self.only_before), ("second", self.only_after)):
            if keys:
                out.append(f"{len(keys)} rows are in the {which} run only{_by_window(keys)}")
        return out


def _by_window(keys: Iterable[Mapping[str, Any]]) -> str:
    """How many of the rows are of which window, in brackets; empty where none is of any."""
    counts = Counter(str(key["window"]) for key in keys if key["window"])
    parts = (f"{count} {WINDOW_WORDS.get(window, window)}" for window, count in counts.items())
    return f" ({', '.join(parts)})" if counts else ""


ORDER = ("broken", "slower", "unclear", "faster")


def _line(change: Change) -> str:
    key = change.key
    where = f"{key['name']} {key['m']}x{key['n']}x{key['k']} {key['layout']} {key['input']} {key['window']} {key['l2']}"
    if change.ratio is None:
        return f"{change.verdict:8} {where}: {change.note}"
    span = "" if change.ratio_lo is None else f" [{change.ratio_lo:.3f}, {change.ratio_hi:.3f}]"
    cycles = "" if change.cycles_ratio is None else f", cycles x {change.cycles_ratio:.3f}"
    against = "" if change.x_cublas_ratio is None else f", against cuBLAS x {change.x_cublas_ratio:.3f}"
    note = f" ({change.note})" if change.note else ""
    return f"{change.verdict:8} {where}: time x {change.ratio:.3f}{span}{cycles}{against}{note}"


def diff_runs(before: str | Path, after: str | Path, threshold: float = THRESHOLD) -> Diff:
    """Compare two recorded runs.

    Raises:
        RunFileError: one of them cannot be read.
        UsageError: they have no row in common, or the threshold is none.
    """
    if not 0.0 <= threshold < 1.0:
        raise UsageError(f"--threshold {threshold:g}: a fraction from 0 to below 1 is needed, such as {THRESHOLD:g}")
    (_, rows_before), (_, rows_after) = runs.read_run(before), runs.read_run(after)
    found = diff_rows(rows_before, runs.read_samples(before), rows_after, runs.read_samples(after), threshold)
    if not found.changes:
        raise UsageError(
            f"{before} and {after} have no timed row in common ({len(rows_before)} and {len(rows_after)} rows; "
            f"a row is told by {', '.join(KEY)}), so nothing can be compared"
        )
    return found


def key_of(row: Mapping[str, Any]) -> Key:
    """What tells a row, or a set of samples, from every other of its run; empty and None are the same."""
    return tuple(row.get(name) or None for name in KEY)


def diff_rows(
    rows_before: Iterable[Mapping[str, Any]],
    samples_before: Iterable[Mapping[str, Any]],
    rows_after: Iterable[Mapping[str, Any]],
    samples_after: Iterable[Mapping[str, Any]],
    threshold: float = THRESHOLD,
) -> Diff:
    """The same from rows and samples in memory."""
    first, second = ({key_of(row): row for row in rows} for rows in (rows_before, rows_after))
    kept = tuple({key_of(one): one for one in samples} for samples in (samples_before, samples_after))
    changes = []
    for key in first:
        if key in second:
            change = _change(key, first[key], second[key], kept[0].get(key), kept[1].get(key), threshold)
            if change is not None:
                changes.append(change)
    return Diff(
        changes=tuple(changes),
        only_before=tuple(_named(key) for key in first if key not in second),
        only_after=tuple(_named(key) for key in second if key not in first),
        threshold=threshold,
    )


def _named(key: Key) -> dict[str, Any]:
    return dict(zip(KEY, key, strict=True))


def _timed(row: Mapping[str, Any]) -> bool:
    return row["ok"] is True and row["time_us"] is not None


def _change(
    key: Key,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    samples_before: Mapping[str, Any] | None,
    samples_after: Mapping[str, Any] | None,
    threshold: float,
) -> Change | None:
    """The verdict on one row; None where there was no time to compare with."""
    if not _timed(before):
        return None
    named = _named(key)
    if not _timed(after):
        reason = after["skipped_because"] or "it has no time now"
        return Change(key=named, verdict="broken", before_us=before["time_us"], note=str(reason))
    ratio = after["time_us"] / before["time_us"]
    cycles = _over(after["sm_clock_mhz"], before["sm_clock_mhz"])
    cycles = None if cycles is None else cycles * ratio
    own = key[KEY.index("name")]
    is_baseline = before["family"] == "cublas"
    against = None if is_baseline else _over(before["x_cublas"], after["x_cublas"])
    span = _interval(samples_before, samples_after)
    confirmed = _confirmations(ratio, cycles, against, threshold)
    verdict, note = _verdict(ratio, span, confirmed, threshold)
    if samples_before == samples_after and before["time_us"] == after["time_us"]:
        verdict, note = "same", ""  # one measurement against itself, however far its samples lie apart
    if verdict == "unclear" and not note and cycles is not None:
        note = f"{own} takes {100 * (ratio - 1):+.1f} % time in {100 * (cycles - 1):+.1f} % cycles"
    return Change(
        key=named,
        verdict=verdict,
        before_us=before["time_us"],
        after_us=after["time_us"],
        ratio=ratio,
        ratio_lo=None if span is None else span.lo,
        ratio_hi=None if span is None else span.hi,
        cycles_ratio=cycles,
        x_cublas_ratio=against,
        confirmed_by="+".join(confirmed),
        note=note,
    )


def _over(a: float | None, b: float | None) -> float | None:
    return None if not a or not b else a / b


def _interval(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Interval | None:
    """Interval of time after over time before: of the means of windows where there are any, else of samples.

    Parts of one window follow one another too closely to count as independent; windows do not.
    """
    if before is None or after is None:
        return None
    name = "window_us" if before.get("window_us") and after.get("window_us") else "time_us"
    return ratio_of_medians(before.get(name) or (), after.get(name) or ())


def _confirmations(ratio: float, cycles: float | None, against: float | None, threshold: float) -> list[str]:
    """Which of cycles and paired ratio moved the same way as the time, by half the threshold or more."""
    direction = math.copysign(1.0, ratio - 1.0)
    return [
        name
        for name, moved in (("cycles", cycles), ("cublas", against))
        if moved is not None and direction * (moved - 1.0) >= CONFIRMATION * threshold
    ]


def _verdict(ratio: float, span: Interval | None, confirmed: Sequence[str], threshold: float) -> tuple[str, str]:
    """(verdict, note)."""
    if span is None:
        return ("same", "") if abs(ratio - 1) <= threshold / 2 else ("unclear", "too few samples for an interval")
    if span.lo >= 1 - threshold and span.hi <= 1 + threshold:
        return "same", ""
    if span.lo > 1 + threshold:
        return ("slower", "") if confirmed else ("unclear", "")
    if span.hi < 1 - threshold:
        return ("faster", "") if confirmed else ("unclear", "")
    return "unclear", "the interval reaches across the threshold"
