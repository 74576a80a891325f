"""``tune`` over a cluster: every shape on one worker, with what is known from all the others by then."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from compare import tuning
from compare.cluster import Cluster, Lost, Outcome, Work, check_options, open_cluster, raise_if_lost, run_groups
from compare.cluster_builds import Model, Packed, build_over, pack, unpack
from compare.cluster_compare import archs_of, built_for, model_of
from compare.cluster_workers import Again, Here
from compare.contenders import KernelContender, contenders
from compare.groups import GpuSite, Site
from compare.timing import DeviceFacts
from compare.tuner import Bursts, Found, Target, Tuner, bursts_of, estimate_s
from handwritten.table import Entry
from kernel.errors import BuildError, CheckError, MissingToolError

if TYPE_CHECKING:
    from compare.building import Built
    from compare.driver import Device
    from handwritten.table import Table

FRESH_STARTS = 1
"""How often a shape that ended in an error is begun again in a fresh process: a fault may have spoilt the old one."""


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A shape on its way to a worker."""

    track: str
    target: Target
    make: Callable[[], Tuner]
    """Makes the tuner of a worker process."""
    known: tuple[Entry, ...] = ()
    """Entries that were there when it was sent."""
    bursts: Bursts | None = None
    """Its first half, where that was done before."""
    starts: int = 0
    """Fresh processes that it had."""


def tune_here(parcel: Parcel, here: Here) -> tuple[Found, dict[str, Any]]:
    """The entry of one shape, and the card that it was found on.

    Raises:
        Again: an error that a fresh process may not have.
        CheckError: no candidate could be timed.
    """
    tuner: Tuner = here.keep(("tuner", parcel.track), parcel.make)
    tuner.known = list(parcel.known)
    try:
        found = tuner.tune(
            parcel.target,
            lambda what: here.tell(0.0, what),
            bursts=parcel.bursts,
            keep=lambda bursts: here.note(bursts.record()),
        )
    except CheckError as error:
        if parcel.starts >= FRESH_STARTS:
            raise
        raise Again(str(error), dataclasses.replace(parcel, starts=parcel.starts + 1)) from None
    return found, tuner.bench.facts.card_columns()


def make_tuner(
    track: str, candidates: Sequence[Packed], baseline: Packed, broken: Mapping[str, str], site: Callable[[], Site]
) -> Tuner:
    """The tuner of this worker process.

    Raises:
        MissingToolError: none of the candidates can run here.
    """
    found = cast("list[KernelContender]", list(map(unpack, candidates)))
    usable = [one for one in found if not one.needs()]
    reference = unpack(baseline)
    if not usable or reference.needs():
        raise MissingToolError(f"none of the candidates can run here: {found[0].needs() or reference.needs()}")
    return tuning.tuner_for(track, usable, reference, site(), built_for(usable, broken))


# What runs where the command was given.


def tune_over_cluster(
    chosen: Mapping[str, Sequence[KernelContender]],
    wanted: Mapping[str, Sequence[Target]],
    out: Path | None,
    seconds: float,
    *,
    gpus: str,
    scheduler: str,
    as_json: bool,
) -> None:
    """Run the command on a cluster.

    Raises:
        GemmTracksError: nothing could be tuned, or a shape was given up; what was finished is in the journal.
        KeyboardInterrupt: it was stopped; likewise.
    """
    from compare.console import messages

    check_options(gpus, scheduler, cpu=False)
    deadline = time.monotonic() + seconds if seconds else None
    with open_cluster(gpus=gpus, scheduler=scheduler) as cluster:
        cluster.remarks = lambda text: messages().print(text)
        messages().print(f"{len(cluster.seats)} places: {', '.join(one.label for one in cluster.seated())}")
        model = model_of(cluster)
        (device, *_) = (one.device for one in cluster.seated() if one.device is not None)
        known = contenders()
        scopes = {
            name: tuning.scope_of(known, name, found, wanted[name], out, device) for name, found in chosen.items()
        }
        everyone = [one for scope in scopes.values() for one in scope.candidates]
        built = build_over(cluster, everyone, archs_of(cluster), model)

        def tune_track(name: str) -> tuning.Outcome:
            scope = scopes[name]
            tuner = described(name, scope.candidates, device, built)
            make = maker(name, scope.candidates, model, built)
            journal = tuning.journal_of(scope, tuner, built, device.slug)
            return spread(tuner, scope, journal, tuning.head(tuner, built), deadline, cluster, make)

        tuning.tune_and_write(scopes, tune_track, device.slug, out, seconds, as_json=as_json)


def described(track: str, candidates: Sequence[KernelContender], device: Device, built: Built) -> Tuner:
    """The tuner as it is for a device that is elsewhere: it can be asked, and cannot time."""
    facts = DeviceFacts(
        name=device.name,
        sms=device.sm_count,
        l2_bytes=device.l2_bytes,
        compute_capability=device.compute_capability,
    )
    nowhere = SimpleNamespace(bench=SimpleNamespace(facts=facts), executor=None)
    return tuning.tuner_for(track, candidates, tuning.baseline_of(track), cast("Site", nowhere), built)


def maker(track: str, candidates: Sequence[KernelContender], model: Model, built: Built) -> Callable[[], Tuner]:
    """What makes a worker's tuner."""
    broken = {name: str(result) for name, result in built.items() if isinstance(result, BuildError | MissingToolError)}
    # As the catalogs have them: the tuner itself suits them to its device.
    packed = [pack(one, ("", 0)) for one in candidates]
    return functools.partial(make_tuner, track, packed, pack(tuning.baseline_of(track), model), broken, GpuSite)


def spread(
    tuner: Tuner,
    scope: tuning.Scope,
    journal: tuning.Journal,
    empty: Table,
    deadline: float | None,
    cluster: Cluster,
    make: Callable[[], Tuner],
) -> tuning.Outcome:
    """Tune over the cluster what the journal lacks; the counterpart of :func:`compare.tuning.tune_track`."""
    from compare.console import progress

    outcome, todo = tuning.what_is_left(tuner, scope.wanted, journal, empty, scope.base, len(cluster.seats))
    holders = {target.key: target.holder for target in todo}
    work = [
        Work(
            name=f"{tuner.track} {number} {target.name}",
            payload=Parcel(track=tuner.track, target=target, make=make),
            cost_s=estimate_s(target, journal.halfway(target)),
        )
        for number, target in enumerate(todo)
    ]

    finished: set[tuple[int, int, int, str, str, int]] = set()

    def fresh(one: Work) -> Parcel | None:
        if deadline is not None and time.monotonic() + one.cost_s > deadline:
            outcome.missing += 1
            return None
        parcel: Parcel = one.payload
        return dataclasses.replace(parcel, known=tuple(tuner.known), bursts=journal.halfway(parcel.target))

    def note(record: Any) -> None:
        bursts = bursts_of(record)
        # Events come in their own time: the shape may be finished by then.
        if bursts.entry.key not in finished:
            journal.add_bursts(bursts, holders[bursts.entry.key])

    def keep(done: Outcome) -> None:
        found, card = done.value
        place = {**card, "retried_because": done.retried_because}
        finished.add(found.entry.key)
        journal.add(found.entry, found.left_out, place, holders[found.entry.key])
        tuner.known.append(found.entry)
        outcome.left_out[f"{found.entry.m}x{found.entry.n}x{found.entry.k} {found.entry.layout}"] = dict(found.left_out)

    lost: tuple[Lost, ...]
    with progress(f"tuning {tuner.track}", sum(one.cost_s for one in work)) as advance:
        lost = run_groups(cluster, work, tune_here, on_done=keep, advance=advance, fresh=fresh, on_note=note)
    raise_if_lost(lost, f"What was finished is in {journal.path}; the same command tries the rest again")
    return tuning.tuned(tuner, scope.wanted, journal, outcome)
