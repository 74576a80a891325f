"""The command ``tune``: builds the candidates, times them shape by shape, and writes the dispatch table.

Each finished shape is a line of a journal in the cache, one for each GPU and track, and is not timed again while the
candidates' sources, the compiler and the device stay what they were.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare import driver, runs
from compare.building import TYPICAL, Built, build, main_launch, resident
from compare.contenders import Contender, KernelContender, choose, contenders
from compare.statistics import geometric_mean
from handwritten.table import VARIABLE, Entry, Table, Tuned, entry_of, file_name, fingerprint, read, record_of, write
from kernel.build import cache_root, digest
from kernel.errors import MissingToolError, NoDeviceError, RejectedError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from compare.groups import Site
    from compare.tuner import Target, Tuner

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
    built = build(one for found in chosen.values() for one in found)
    site = GpuSite()

    def tune_here(name: str) -> Outcome:
        usable = [one for one in chosen[name] if not one.needs()]
        baseline = baseline_of(name)
        if not usable or baseline.needs():
            raise MissingToolError(
                f"none of the candidates can run here: {chosen[name][0].needs() or baseline.needs()}"
            )
        tuner = tuner_for(name, usable, baseline, site, built)
        journal = Journal(journal_path(gpu.slug, name), sources(tuner, built))
        return tune_track(tuner, wanted[name], journal, head(tuner, built), share_of(deadline, name, wanted))

    tune_and_write(chosen, tune_here, gpu.slug, out, seconds, as_json=as_json)


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
        outcomes.append(outcome)
        if not outcome.table.entries:
            messages().print(f"{name}: no shape was reached within {seconds:g} s, so no table was written")
            continue
        path = out if out is not None and out.suffix == ".json" else (out or cache_root() / "tables")
        path = path if path.suffix == ".json" else path / file_name(slug, name)
        write(outcome.table, path)
        paths.append(path)
        if not as_json:
            print_outcome(outcome, path, answers())
    if as_json:
        print_json([as_record(outcome, path) for outcome, path in zip(outcomes, paths, strict=False)])
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
            launch = main_launch(one, one.problem(TYPICAL, TYPICAL, TYPICAL))
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


def sources(tuner: Tuner, built: Built) -> str:
    """What an entry of the journal must have been made from to count: device, compiler, candidates."""
    facts = tuner.bench.facts
    kernels = (f"{one.name} {fingerprint(one.kernel)}" for one in tuner.candidates)
    return digest(facts.name, str(facts.sms), compilers(built), *kernels)[:20]


def compilers(built: Built) -> str:
    from compare.job import toolkit

    return toolkit(built)


def head(tuner: Tuner, built: Built) -> Table:
    """The table without its entries."""
    import datetime

    facts = tuner.bench.facts
    return Table(
        track=tuner.track,
        gpu=facts.name,
        sm_count=facts.sms,
        toolkit=compilers(built),
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        revision=runs.revision(),
        method=f"gemm-tracks {' '.join(sys.argv[1:2])}: {len(tuner.candidates)} candidates; short pass, race beside "
        "cuBLAS, duel of the two fastest, check",
        kernels={one.name: Tuned(fingerprint(one.kernel), tuner.resident.get(one.name, 1)) for one in tuner.candidates},
        entries=(),
    )


class Journal:
    """Finished shapes of one GPU and track on disk, one JSON line each.

    It is a cache: what cannot be read, or was made from other sources, is as if it were not there.
    """

    def __init__(self, path: Path, made_from: str) -> None:
        self.path, self.made_from = path, made_from
        self.entries: dict[tuple[int, int, int, str, str, int], Entry] = {}
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            try:
                record = json.loads(line)
                if record["sources"] == made_from:
                    entry = entry_of(record["entry"])
                    self.entries[entry.key] = entry
            except (ValueError, KeyError, TypeError, RecursionError):
                continue

    def add(self, entry: Entry, left_out: Mapping[str, str], place: Mapping[str, Any] | None = None) -> None:
        """Keep a finished shape, and of several places the one that it was timed in; on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        record = {"sources": self.made_from, "entry": record_of(entry), "left_out": dict(left_out), **(place or {})}
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
        self.entries[entry.key] = entry


def tune_track(
    tuner: Tuner, wanted: Sequence[Target], journal: Journal, empty: Table, deadline: float | None = None
) -> Outcome:
    """Tune what the journal lacks, until the deadline (seconds of :func:`time.monotonic`); the table has it all.

    Raises:
        CheckError: a shape on which no candidate could be timed; what was finished is in the journal.
        KeyboardInterrupt: the user stopped it; likewise.
    """
    from compare.console import progress
    from compare.tuner import estimate_s

    outcome, todo = what_is_left(tuner, wanted, journal, empty)
    costs = [estimate_s(target) for target in todo]
    with progress(f"tuning {tuner.track}", sum(costs)) as advance:
        done = 0.0
        for number, (target, cost) in enumerate(zip(todo, costs, strict=True)):
            if deadline is not None and time.monotonic() + cost > deadline:
                outcome.missing = len(todo) - number
                break

            def tell(what: str, done: float = done, target: Target = target) -> None:
                advance(done, f"{target.name}: {what}")

            found = tuner.tune(target, tell)
            journal.add(found.entry, found.left_out)
            outcome.left_out[target.name] = dict(found.left_out)
            done += cost
    return tuned(tuner, wanted, journal, outcome)


def what_is_left(
    tuner: Tuner, wanted: Sequence[Target], journal: Journal, empty: Table, places: int = 1
) -> tuple[Outcome, list[Target]]:
    """An outcome with what the journal has, which the tuner then knows, and the targets it lacks, in order."""
    from compare.console import messages
    from compare.tuner import estimate_s, ordered

    outcome = Outcome(empty, {target.key: target.shape_set for target in wanted})
    tuner.known += [journal.entries[target.key] for target in wanted if target.key in journal.entries]
    outcome.reused = len(tuner.known)
    todo = ordered(target for target in wanted if target.key not in journal.entries)
    seconds = sum(map(estimate_s, todo)) / places
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
    there = [journal.entries[target.key] for target in wanted if target.key in journal.entries]
    outcome.table = merged(outcome.table, there)
    return outcome


def print_outcome(outcome: Outcome, path: Path, console: Console) -> None:
    """Every shape with its kernel, the margin to the next, and the ratio to cuBLAS."""
    from rich.table import Table as Grid

    table = outcome.table
    grid = Grid(title=f"{table.track} on {table.gpu}", title_justify="left", title_style="bold")
    for name in ("shape", "layout", "kernel", "us", "TFLOP/s", "x cuBLAS", "next", "slower by"):
        grid.add_column(name, justify="right" if name in ("us", "TFLOP/s", "x cuBLAS", "slower by") else "left")
    for entry in table.entries:
        times = list(entry.times_us.items())
        us = times[0][1]
        second = (times[1][0], f"{100 * (times[1][1] / us - 1):.1f} %") if len(times) > 1 else ("", "")
        ratio = "" if entry.cublas_us is None else f"{entry.cublas_us / us:.3f}"
        rate = f"{2e-6 * entry.m * entry.n * entry.k / us:.2f}"
        shape = f"{entry.m}x{entry.n}x{entry.k}"
        grid.add_row(shape, entry.layout, entry.kernel, f"{us:.4g}", rate, ratio, *second)
    console.print(grid)
    for line in mean_lines(outcome):
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


def mean_lines(outcome: Outcome) -> list[str]:
    """Geometric means of cuBLAS over the chosen kernel, by shape set; short races, so an orientation."""
    by_set: dict[str, list[float | None]] = {}
    for entry in outcome.table.entries:
        ratio = None if entry.cublas_us is None else entry.cublas_us / entry.times_us[entry.kernel]
        by_set.setdefault(outcome.shape_sets.get(entry.key) or "given", []).append(ratio)
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
        "entries": [record_of(entry) for entry in table.entries],
        "reused": outcome.reused,
        "missing": outcome.missing,
        "left_out": outcome.left_out,
    }
