"""The command ``tune``: builds the candidates, times them shape by shape, and writes the dispatch table.

Each finished shape is a line of a journal in the cache, one for each GPU and track, and is not timed again while the
candidates' sources, the compiler and the device stay what they were. So is a shape whose bursts are done and whose
sustained final is not.

The table grows: what is there already (the file that is written, else what the dispatchers use on this device) keeps
the entries of every other shape, and its kernels for these shapes race beside those that ``--kernels`` names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare import driver, runs
from compare.building import TYPICAL, Built, build, resident
from compare.contenders import Contender, KernelContender, choose, contenders
from compare.statistics import geometric_mean
from handwritten.table import (
    VARIABLE,
    Entry,
    Table,
    Tuned,
    entry_of,
    file_name,
    fingerprint,
    nearest,
    read,
    record_of,
    tables,
    write,
)
from kernel.build import cache_root, digest
from kernel.errors import CatalogError, MissingToolError, NoDeviceError, RejectedError, TableError, UsageError
from kernel.plan import plan

if TYPE_CHECKING:
    from rich.console import Console

    from compare.driver import Device
    from compare.groups import Site
    from compare.tuner import Bursts, Target, Tuner

TRACKS = {"simt": "fp32_simt", "fp16": "fp16_tensor"}
BASELINES = {"fp32_simt": "cublas_sgemm", "fp16_tensor": "cublas_fp16"}
DEFAULT_SHAPES = "squares,tails,skinny,transformer"
"""What the shipped tables cover."""


@dataclass
class Outcome:
    """What the tuning of one track gave."""

    table: Table
    shape_sets: dict[tuple[int, int, int, str, str, int], str]
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    """By shape, candidates without a time and why; shapes of this session only."""
    reused: int = 0
    """Entries that the journal had."""
    missing: int = 0
    """Shapes that the budget did not reach."""
    base: Table | None = None
    """The table that this one grew from."""
    reached: frozenset[tuple[int, int, int, str, str, int]] = frozenset()
    """Keys of the shapes that were asked for and have an entry."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Entries of those shapes; the table may hold more."""
        return tuple(entry for entry in self.table.entries if entry.key in self.reached)


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What is tuned on one track, and what is there already."""

    track: str
    asked: tuple[KernelContender, ...]
    """Candidates that were asked for."""
    beside: tuple[KernelContender, ...] = ()
    """Kernels that the table has for some of the shapes and that were not asked for."""
    wanted: tuple[Target, ...]
    """The shapes, each with the holder of its place."""
    base: Table | None = None

    @property
    def candidates(self) -> tuple[KernelContender, ...]:
        return self.asked + self.beside


def scope_of(
    known: Sequence[Contender],
    track: str,
    asked: Sequence[KernelContender],
    wanted: Sequence[Target],
    out: Path | None,
    device: Device,
) -> Scope:
    """What is tuned of a track on a device: the table that is there, and who holds its places."""
    base = base_of(table_path(out, device.slug, track), track, device)
    everyone = {one.name: one for one in candidates(known, track, None, required=False)}

    def holder(target: Target) -> str:
        entry = base.by_key.get(target.key) if base is not None else None
        return next((name for name in entry.times_us if name in everyone), "") if entry is not None else ""

    held = tuple(replace(target, holder=holder(target)) for target in wanted)
    names = dict.fromkeys(target.holder for target in held if target.holder)
    there = {one.name for one in asked}
    beside = tuple(everyone[name] for name in names if name not in there)
    return Scope(track=track, asked=tuple(asked), beside=beside, wanted=held, base=base)


def table_path(out: Path | None, slug: str, track: str) -> Path:
    """The file that a table is written to; ``out`` is it, or its folder, or None for the cache."""
    if out is not None and out.suffix == ".json":
        return out
    return (out or cache_root() / "tables") / file_name(slug, track)


def base_of(path: Path, track: str, device: Device) -> Table | None:
    """The table at a path, else the one that the dispatchers use, if it is of this track and kind of device.

    A file at the path that cannot be grown is named and then written anew.
    """
    from compare.console import messages

    try:
        found = read(path) if path.exists() else nearest(tables(track), device.name, device.sm_count)
    except TableError as error:
        messages().print(f"{error}; nothing of it is kept")
        return None
    if found is None or (found.track, found.gpu, found.sm_count) == (track, device.name, device.sm_count):
        return found
    if path.exists():
        messages().print(f"{path} is of {found.gpu} ({found.sm_count} SMs), {found.track}; it is replaced")
    return None


def run_tune(
    track: str,
    shapes: str,
    patterns: Sequence[str] | None,
    out: Path | None,
    seconds: float,
    *,
    as_json: bool,
    gpus: str = "",
    scheduler: str = "",
) -> None:
    """Run the command; ``gpus`` and ``scheduler`` spread its shapes as :func:`compare.cluster.open_cluster` says.

    Raises:
        GemmTracksError: nothing could be tuned; NoDeviceError where there is no GPU.
    """
    from compare.groups import GpuSite

    if track and track not in TRACKS:
        raise UsageError(f"--track {track}: {' or '.join(TRACKS)} is needed; left out, both")
    tracks = [TRACKS[track]] if track else list(TRACKS.values())
    if out is not None and out.suffix == ".json" and len(tracks) > 1:
        raise UsageError(f"--out {out} is one table; give --track, or a folder for the tables of both tracks")
    known = contenders()
    chosen = {name: candidates(known, name, patterns, required=bool(track)) for name in tracks}
    chosen = {name: found for name, found in chosen.items() if found}
    wanted = {name: targets_of(shapes or DEFAULT_SHAPES, found[0]) for name, found in chosen.items()}
    if gpus or scheduler:
        from compare.cluster_tune import tune_over_cluster

        tune_over_cluster(chosen, wanted, out, seconds, gpus=gpus, scheduler=scheduler, as_json=as_json)
        return
    asked = driver.query()
    if asked.problem:
        raise NoDeviceError(f"{asked.problem}; tune times kernels, which needs a GPU of compute capability 9.0")
    gpu = asked.devices[0]
    deadline = time.monotonic() + seconds if seconds else None
    scopes = {name: scope_of(known, name, found, wanted[name], out, gpu) for name, found in chosen.items()}
    built = build(one for scope in scopes.values() for one in scope.candidates)
    site = GpuSite()

    def tune_here(name: str) -> Outcome:
        scope = scopes[name]
        usable = [one for one in scope.candidates if not one.needs()]
        baseline = baseline_of(name)
        if not usable or baseline.needs():
            raise MissingToolError(
                f"none of the candidates can run here: {scope.candidates[0].needs() or baseline.needs()}"
            )
        tuner = tuner_for(name, usable, baseline, site, built)
        journal = journal_of(scope, tuner, built, gpu.slug)
        until = share_of(deadline, name, wanted)
        return tune_track(tuner, scope.wanted, journal, head(tuner, built), until, scope.base)

    tune_and_write(scopes, tune_here, gpu.slug, out, seconds, as_json=as_json)


def baseline_of(track: str) -> Contender:
    """cuBLAS on a track."""
    (found,) = choose(contenders(), [BASELINES[track]])
    return found


def journal_path(slug: str, track: str) -> Path:
    """Where the finished shapes of a kind of GPU are kept."""
    return cache_root() / "tune" / f"{slug}.{track}.jsonl"


def tune_and_write(
    tracks: Iterable[str],
    tune: Callable[[str], Outcome],
    slug: str,
    out: Path | None,
    seconds: float,
    *,
    as_json: bool,
) -> None:
    """Tune one track after the other, write its table, and print what was found."""
    from compare.console import answers, messages, print_json

    outcomes: list[Outcome] = []
    paths: list[Path] = []
    for name in tracks:
        outcome = tune(name)
        if not outcome.entries:
            messages().print(f"{name}: no shape was reached within {seconds:g} s, so no table was written")
            continue
        path = table_path(out, slug, name)
        write(outcome.table, path)
        outcomes.append(outcome)
        paths.append(path)
        if not as_json:
            print_outcome(outcome, path, answers())
    if as_json:
        print_json([as_record(outcome, path) for outcome, path in zip(outcomes, paths, strict=True)])
    elif paths:
        messages().print(f"the dispatchers use it with {VARIABLE}={os.path.relpath(paths[0].parent)}")


def share_of(deadline: float | None, track: str, wanted: Mapping[str, Sequence[Target]]) -> float | None:
    """When a track has to end so that those after it get their part of the time, by what they are estimated to take."""
    from compare.tuner import estimate_s

    if deadline is None:
        return None
    names = list(wanted)
    costs = [sum(map(estimate_s, wanted[name])) for name in names[names.index(track) :]]
    now = time.monotonic()
    return now + (deadline - now) * costs[0] / sum(costs)


def candidates(
    known: Sequence[Contender], track: str, patterns: Sequence[str] | None, *, required: bool
) -> tuple[KernelContender, ...]:
    """Hand-written kernels of a track, those outside the default set among them, dispatchers not.

    Raises:
        CatalogError: a pattern matches nothing in any track.
        UsageError: nothing of this track was asked for, though it is ``required``.
    """
    chosen = choose(known, patterns)
    found = tuple(
        one
        for one in chosen
        if isinstance(one, KernelContender)
        and one.family == "handwritten"
        and one.track == track
        and not one.is_dispatcher
    )
    if not found and required:
        raise UsageError(f"--kernels {','.join(patterns or ())}: no hand-written kernel of the track {track}")
    return found


def targets_of(shapes: str, kernel: Contender) -> tuple[Target, ...]:
    from compare.tuner import targets

    return targets(shapes, kernel)


def tuner_for(track: str, usable: Sequence[KernelContender], baseline: Contender, site: Site, built: Built) -> Tuner:
    """The tuner of a track on a device."""
    from compare.operand_sets import OperandSets
    from compare.tuner import Tuner

    facts = site.bench.facts
    bound = tuple(one.on(facts.name, facts.sms) for one in usable)
    blocks = {}
    for one in bound:
        try:
            launch = plan(one.kernel, one.problem(TYPICAL, TYPICAL, TYPICAL)).main_launch
        except RejectedError:
            continue
        filled = resident(launch, built) if launch is not None else None
        if filled is not None:
            blocks[one.name] = max(filled[1].blocks, 1)
    return Tuner(
        track=track,
        candidates=bound,
        baseline=baseline,
        bench=site.bench,
        resident=blocks,
        operands=lambda problem: OperandSets(site.executor.xp, problem, "uniform", 0, site.bench.stream),
    )


def sources(tuner: Tuner, built: Built, beside: Collection[str] = ()) -> str:
    """What an entry of the journal must have been made from to count: device, compiler, rule, candidates asked for.

    Not those ``beside`` them: who holds a place changes with every table that is written.
    """
    from compare.tuner import SUSTAINED, SUSTAINED_FROM_S

    facts = tuner.bench.facts
    rule = f"sustained from {SUSTAINED_FROM_S} s: {SUSTAINED}"
    kernels = (f"{one.name} {fingerprint(one.kernel)}" for one in tuner.candidates if one.name not in beside)
    return digest(facts.name, str(facts.sms), compilers(built), rule, *kernels)[:20]


def journal_of(scope: Scope, tuner: Tuner, built: Built, slug: str) -> Journal:
    """The journal of a track on a kind of GPU."""
    beside = {one.name: Tuned(fingerprint(one.kernel), tuner.resident.get(one.name, 1)) for one in scope.beside}
    return Journal(journal_path(slug, scope.track), sources(tuner, built, beside), beside)


def compilers(built: Built) -> str:
    from compare.job import toolkit

    return toolkit(built)


def head(tuner: Tuner, built: Built) -> Table:
    """The table without its entries."""
    import datetime

    from compare.tuner import SUSTAINED_FROM_S

    facts = tuner.bench.facts
    return Table(
        track=tuner.track,
        gpu=facts.name,
        sm_count=facts.sms,
        toolkit=compilers(built),
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        revision=runs.revision(),
        method=f"gemm-tracks {' '.join(sys.argv[1:2])}: {len(tuner.candidates)} candidates; short pass, race beside "
        f"cuBLAS, duel of the two fastest or, from {1e3 * SUSTAINED_FROM_S:g} ms a launch, sustained windows; check",
        kernels={one.name: Tuned(fingerprint(one.kernel), tuner.resident.get(one.name, 1)) for one in tuner.candidates},
        entries=(),
    )


class Journal:
    """Shapes of one GPU and track on disk, finished or with their bursts done, one JSON line each.

    It is a cache: what cannot be read, or was made from other sources, is as if it were not there.

    Args:
        path: the file.
        made_from: :func:`sources`.
        beside: candidates that were not asked for.
    """

    def __init__(self, path: Path, made_from: str, beside: Mapping[str, Tuned] | None = None) -> None:
        self.path, self.made_from, self.beside = path, made_from, dict(beside or {})
        self.kernels = dict(self.beside)
        """Whoever raced beside the candidates that were asked for, in any of the shapes here."""
        self.entries: dict[tuple[int, int, int, str, str, int], Entry] = {}
        self._bursts: dict[tuple[int, int, int, str, str, int], tuple[Bursts, str]] = {}
        self._beaten: dict[tuple[int, int, int, str, str, int], str] = {}
        """By finished shape, who held the place before; as the text beside the bursts."""
        self._read()

    def _read(self) -> None:
        from compare.tuner import bursts_of

        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            try:
                record = json.loads(line)
                beside = {
                    name: Tuned(one["source"], int(one["blocks_per_sm"]))
                    for name, one in record.get("beside", {}).items()
                }
                if record["sources"] != self.made_from or not _as_they_were(beside):
                    continue
                self.kernels |= beside
                holder = str(record.get("holder", ""))
                if "burst" in record:
                    bursts = bursts_of(record)
                    self._bursts[bursts.entry.key] = bursts, holder
                else:
                    entry = entry_of(record["entry"])
                    self.entries[entry.key], self._beaten[entry.key] = entry, holder
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue

    def finished(self, target: Target) -> Entry | None:
        """The entry of a shape, if whoever holds its place now was in it."""
        entry = self.entries.get(target.key)
        if entry is None or target.holder in ("", *entry.times_us, self._beaten.get(target.key, "")):
            return entry
        return None

    def halfway(self, target: Target) -> Bursts | None:
        """The bursts of a shape whose final is missing, if whoever holds its place was in them."""
        bursts, holder = self._bursts.get(target.key, (None, ""))
        if bursts is None or target.holder in ("", *bursts.entry.times_us, holder):
            return bursts
        return None

    def add(
        self, entry: Entry, left_out: Mapping[str, str], place: Mapping[str, Any] | None = None, holder: str = ""
    ) -> None:
        """Keep a finished shape, and of several places the one that it was timed in; on disk when this returns."""
        self._write({"entry": record_of(entry), "left_out": dict(left_out), "holder": holder, **(place or {})})
        self.entries[entry.key], self._beaten[entry.key] = entry, holder
        self._bursts.pop(entry.key, None)

    def add_bursts(self, bursts: Bursts, holder: str = "") -> None:
        """Keep the first half of a shape; likewise."""
        self._write({**bursts.record(), "holder": holder})
        self._bursts[bursts.entry.key] = bursts, holder

    def _write(self, what: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = {
            name: {"source": one.fingerprint, "blocks_per_sm": one.blocks_per_sm} for name, one in self.beside.items()
        }
        record = {"sources": self.made_from, **what, "beside": beside}
        # A line that was cut off when a session died must not swallow this one.
        with self.path.open("ab+") as stream:
            stream.seek(0, os.SEEK_END)
            if stream.tell():
                stream.seek(-1, os.SEEK_END)
                if stream.read(1) != b"\n":
                    stream.write(b"\n")
            stream.write(json.dumps(record).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


def _as_they_were(beside: Mapping[str, Tuned]) -> bool:
    """Whether kernels, by name, are still in the catalog with these fingerprints."""
    from handwritten.catalog import get

    try:
        return all(fingerprint(get(name)) == one.fingerprint for name, one in beside.items())
    except CatalogError:
        return False


def tune_track(
    tuner: Tuner,
    wanted: Sequence[Target],
    journal: Journal,
    empty: Table,
    deadline: float | None = None,
    base: Table | None = None,
) -> Outcome:
    """Tune what the journal lacks, until the deadline (seconds of :func:`time.monotonic`); the table has it all.

    Raises:
        CheckError: a shape on which no candidate could be timed; what was finished is in the journal.
        KeyboardInterrupt: the user stopped it; likewise.
    """
    from compare.console import progress
    from compare.tuner import estimate_s

    outcome, todo = what_is_left(tuner, wanted, journal, empty, base)
    costs = [estimate_s(target, journal.halfway(target)) for target in todo]
    with progress(f"tuning {tuner.track}", sum(costs)) as advance:
        done = 0.0
        for number, (target, cost) in enumerate(zip(todo, costs, strict=True)):
            if deadline is not None and time.monotonic() + cost > deadline:
                outcome.missing = len(todo) - number
                break

            def tell(what: str, done: float = done, target: Target = target) -> None:
                advance(done, f"{target.name}: {what}")

            def keep(bursts: Bursts, target: Target = target) -> None:
                journal.add_bursts(bursts, target.holder)

            found = tuner.tune(target, tell, bursts=journal.halfway(target), keep=keep)
            journal.add(found.entry, found.left_out, holder=target.holder)
            outcome.left_out[target.name] = dict(found.left_out)
            done += cost
    return tuned(tuner, wanted, journal, outcome)


def what_is_left(
    tuner: Tuner,
    wanted: Sequence[Target],
    journal: Journal,
    empty: Table,
    base: Table | None = None,
    places: int = 1,
) -> tuple[Outcome, list[Target]]:
    """An outcome with what the journal has, which the tuner then knows, and the targets it lacks, in order."""
    from compare.console import messages
    from compare.tuner import estimate_s, ordered

    outcome = Outcome(empty, {target.key: target.shape_set for target in wanted}, base=base)
    tuner.known += [entry for target in wanted if (entry := journal.finished(target)) is not None]
    outcome.reused = len(tuner.known)
    todo = ordered(target for target in wanted if journal.finished(target) is None)
    seconds = sum(estimate_s(target, journal.halfway(target)) for target in todo) / places
    text = f"{tuner.track}: {len(tuner.candidates)} candidates, {len(todo)} shapes to tune, about {seconds:.0f} s"
    messages().print(text + (f"; {outcome.reused} are in {journal.path}" if outcome.reused else ""))
    return outcome, todo


def tuned(tuner: Tuner, wanted: Sequence[Target], journal: Journal, outcome: Outcome) -> Outcome:
    """The outcome with its table, of everything that the journal has by now."""
    from compare.console import messages
    from compare.tuner import merged

    if outcome.missing:
        messages().print(
            f"{tuner.track}: --seconds ended it with {outcome.missing} shapes left; the same command goes on from there"
        )
    there = [entry for target in wanted if (entry := journal.finished(target)) is not None]
    # An entry of an earlier session may name who held its place then.
    known = replace(outcome.table, kernels={**journal.kernels, **outcome.table.kernels})
    outcome.table = merged(known, there, outcome.base)
    outcome.reached = frozenset(entry.key for entry in there)
    return outcome


def print_outcome(outcome: Outcome, path: Path, console: Console) -> None:
    """Every shape with its kernel, the margin to the next, and the ratio to cuBLAS."""
    from rich.table import Table as Grid

    table = outcome.table
    grid = Grid(title=f"{table.track} on {table.gpu}", title_justify="left", title_style="bold")
    for name in ("shape", "layout", "window", "kernel", "us", "TFLOP/s", "x cuBLAS", "next", "slower by"):
        grid.add_column(name, justify="right" if name in ("us", "TFLOP/s", "x cuBLAS", "slower by") else "left")
    for entry in outcome.entries:
        times = list(entry.deciding_us.items())
        us = times[0][1]
        second = (times[1][0], f"{100 * (times[1][1] / us - 1):.1f} %") if len(times) > 1 else ("", "")
        ratio = "" if entry.x_cublas is None else f"{entry.x_cublas:.3f}"
        rate = f"{2e-6 * entry.m * entry.n * entry.k / us:.2f}"
        shape = f"{entry.m}x{entry.n}x{entry.k}"
        grid.add_row(shape, entry.layout, entry.window, entry.kernel, f"{us:.4g}", rate, ratio, *second)
    console.print(grid)
    for line in [*overturned(outcome), *mean_lines(outcome)]:
        console.print(line)
    failed = {
        f"{name}: {reason}"
        for reasons in outcome.left_out.values()
        for name, reason in reasons.items()
        if reason.startswith("wrong result")
    }
    for line in sorted(failed):
        console.print(f"left out, {line}", style="red")
    console.print(
        f"{path}: {len(table.entries)} entries, {len(table.kernels)} kernels, sha256 {read(path).sha256[:12]}"
    )
    if len(table.entries) > len(outcome.entries) and outcome.base is not None:
        count = len(table.entries) - len(outcome.entries)
        console.print(f"{count} of the entries are kept as they were: {outcome.base.origin}")


def overturned(outcome: Outcome) -> list[str]:
    """Where sustained windows chose another kernel than bursts would have."""
    lines = []
    for entry in outcome.entries:
        first = min(entry.times_us, key=lambda name: entry.times_us[name])
        if entry.window == "sustained" and first != entry.kernel and first in entry.sustained_us:
            ahead = 100 * (entry.times_us[entry.kernel] / entry.times_us[first] - 1)
            lost = 100 * (entry.sustained_us[first] / entry.sustained_us[entry.kernel] - 1)
            lines.append(
                f"{entry.m}x{entry.n}x{entry.k} {entry.layout}: {first} was {ahead:.1f} % ahead of {entry.kernel} in "
                f"bursts and is {lost:.1f} % behind it sustained"
            )
    return lines


def mean_lines(outcome: Outcome) -> list[str]:
    """Geometric means of cuBLAS over the chosen kernel, by shape set; few samples, so an orientation."""
    by_set: dict[str, list[float | None]] = {}
    for entry in outcome.entries:
        by_set.setdefault(outcome.shape_sets.get(entry.key) or "given", []).append(entry.x_cublas)
    return [
        f"geometric mean of x cuBLAS, {name} ({len(of)} shapes): {geometric_mean(of)}" for name, of in by_set.items()
    ]


def as_record(outcome: Outcome, path: Path) -> dict[str, Any]:
    """An outcome as JSON holds it."""
    table = outcome.table
    return {
        "table": str(path),
        "sha256": read(path).sha256,
        "track": table.track,
        "gpu": table.gpu,
        "entries": [record_of(entry) | {"window": entry.window} for entry in outcome.entries],
        "kept": len(table.entries) - len(outcome.entries),
        "reused": outcome.reused,
        "missing": outcome.missing,
        "left_out": outcome.left_out,
    }
