"""``compare`` over a cluster: every comparison group on one worker, rows and samples into one run.

The unit that moves is the group, because ratios are paired within it. What a group needs travels as names and
plain data; kernels come from the worker's own sources, artifacts from its cache or the bundle it was sent.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare import dispatch_tables, runs
from compare.building import Built, refused, units_of
from compare.cluster import (
    Cluster,
    Lost,
    Outcome,
    Work,
    check_options,
    engine,
    open_cluster,
    raise_if_lost,
    run_groups,
)
from compare.cluster_builds import Model, Packed, build_over, pack, suited, unpack
from compare.cluster_workers import Again, Here, Member
from compare.contenders import Contender
from compare.groups import GpuSite, Group, Site
from compare.job import (
    FaultError,
    Part,
    Request,
    begun,
    conclude,
    cost_of,
    expected_s,
    faults_in,
    kept_in,
    parts,
    require_some,
    run_part,
    say_how_long,
    shard_of_fault,
    toolkit,
)
from compare.scoring import checked_row, unmeasured_row
from kernel.contract import Problem
from kernel.errors import BuildError, ClusterError, GemmTracksError, MissingToolError, UsageError

if TYPE_CHECKING:
    from compare.ceilings import Ceiling
    from compare.driver import Device
    from compare.measure import Settings
    from compare.shapes import Shape

CEILINGS_OF = "ceilings of "
"""Begins the names of the shards that hold each card's ceilings."""
PTX_MACHINE = {"name": "PTX machine", "slug": "ptx-machine", "sm_count": None}
NOT_TIMED = "checked on the PTX machine, which has no times"
CPU_SECONDS_PER_FMA = 2e-6
"""What the PTX machine takes for one multiply-add, roughly: for the order of groups and the progress only."""


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A :class:`compare.job.Part` on its way to a worker."""

    shape: Shape
    track: str
    problem: Problem
    contenders: tuple[Packed, ...]
    baselines: tuple[Packed, ...]
    """What everything is divided by in this run: checked once in every process before anything is timed."""
    settings: Settings
    self_test: bool = False
    faults: frozenset[str] = frozenset()
    """Contenders that ended an earlier process; their rows are written down already."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """Units that could not be built, with the reason."""
    ceilings: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Ceilings that are known, by card."""
    site: Callable[[], Site]
    """Makes what a worker process measures on."""

    @property
    def group(self) -> Group:
        """The group, of this process' contenders."""
        members = tuple(map(unpack, self.contenders))
        return Group(shape=self.shape, track=self.track, problem=self.problem, contenders=members)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a group gave."""

    rows: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What it took, by phase."""
    card: str = ""
    """Where its ceilings were measured, if they were."""
    ceilings: Sequence[Mapping[str, Any]] = ()


# What runs on workers.


def measure_here(parcel: Parcel, here: Here) -> Result:
    """Check and time one group on this worker's GPU.

    Raises:
        Again: a kernel ended this process' use of the GPU; the group goes on without it.
    """
    from compare.check import check_baseline

    site: Site = here.keep("site", parcel.site)
    group = parcel.group
    here.keep("baseline", lambda: check_baseline(site.executor, list(map(unpack, parcel.baselines))))
    facts = site.bench.facts
    card = facts.uuid_hash or str(facts.index)
    known = parcel.ceilings.get(card)
    measured = [] if known is not None else here.keep("ceilings", lambda: _ceilings(site, here))
    try:
        rows, samples, seconds = run_part(
            Part(group, parcel.settings, parcel.self_test),
            built_for(group.contenders, parcel.broken),
            site,
            parcel.faults,
            _as_ceilings(measured if known is None else known),
            here.tell,
        )
    except FaultError as fault:
        row = {**fault.row, **facts.card_columns()}
        without = dataclasses.replace(parcel, faults=parcel.faults | {fault.contender})
        raise Again(str(fault), without, (fault.contender, row)) from None
    rows = [{**row, **facts.card_columns()} for row in rows]
    card = "" if known is not None else card
    return Result(rows=rows, samples=samples, seconds=seconds, card=card, ceilings=measured)


def check_here(parcel: Parcel, here: Here) -> Result:
    """Check one group on the PTX machine of this worker; nothing is timed."""
    from compare.check import CpuExecutor, check_contender

    group, rows = parcel.group, []
    built, machine = built_for(group.contenders, parcel.broken), CpuExecutor()
    for number, contender in enumerate(group.contenders):
        here.tell(number / len(group.contenders), f"checking {contender.name}")
        reason = machine.refuses(contender) or refused(contender, group.problem, built)
        if reason is not None:
            rows.append(unmeasured_row(contender, group, built, reason))
            continue
        try:
            verdict = check_contender(
                contender, group.problem, machine, distribution=group.shape.input, seed=group.shape.seed
            )
        except GemmTracksError as error:
            rows.append(unmeasured_row(contender, group, built, str(error)))
            continue
        if verdict.ok:
            rows.append(checked_row(contender, group, built, verdict, NOT_TIMED))
        else:
            reason = verdict.skipped_because or f"failed the check: {verdict.reason}"
            rows.append(unmeasured_row(contender, group, built, reason, verdict))
    return Result(rows=rows, samples=[])


def built_for(chosen: Iterable[Contender], broken: Mapping[str, str]) -> Built:
    """What this process finds of contenders' units; never builds."""
    from kernel.build import lookup

    found: dict[str, Any] = {}
    for unit in units_of(chosen):
        there = None if unit.name in broken else lookup(unit)
        found[unit.name] = there or BuildError(broken.get(unit.name, f"{unit.name} did not reach this worker"))
    return found


def _ceilings(site: Site, here: Here) -> list[dict[str, Any]]:
    here.tell(0.0, "measuring ceilings")
    return [dataclasses.asdict(one) for one in site.ceilings()]


def _as_ceilings(kept: Sequence[Mapping[str, Any]]) -> list[Ceiling]:
    from compare.ceilings import Ceiling

    return [Ceiling(**{**one, "throttle": None if one["throttle"] is None else tuple(one["throttle"])}) for one in kept]


def provenance_here() -> dict[str, Any]:
    """What a run's provenance says of this worker."""
    from compare import driver

    return runs.provenance((), driver.query())


# What runs where the command was given.


def over_cluster(request: Request, out: Path | None, *, gpus: str, scheduler: str, cpu: bool, as_json: bool) -> bool:
    """Run the command on a cluster; true where a check failed.

    Raises:
        GemmTracksError: nothing could be compared, or a group was given up.
        KeyboardInterrupt: it was stopped; what was finished is kept.
    """
    from compare.console import messages

    check_options(gpus, scheduler, cpu=cpu)
    if request.record and cpu:
        raise UsageError("--record keeps measurements, and --cpu makes none")
    with open_cluster(gpus=gpus, scheduler=scheduler, cpu=cpu) as cluster:
        cluster.remarks = lambda text: messages().print(text)
        messages().print(f"{len(cluster.seats)} places: {', '.join(one.label for one in cluster.seated())}")
        model = model_of(cluster)
        chosen = suited(request.contenders(), model)
        if not cpu:
            # Which packages there are is the workers' affair; those of one run have the same ones.
            require_some_there(cluster, chosen)
        built = build_over(cluster, chosen, archs_of(cluster), model)
        writer = begun(request, provenance_of(cluster, request, toolkit(built)), out)
        planned = parts(request, chosen)
        return spread(request, planned, built, cluster, writer, out, as_json=as_json, site=GpuSite)


def require_some_there(cluster: Cluster, chosen: Sequence[Contender]) -> None:
    """:func:`compare.job.require_some` as a worker answers it.

    Raises:
        MissingToolError: none of the contenders can run there.
    """
    names = [pack(contender, model_of(cluster)) for contender in chosen]
    cluster.submit(_require_some, names, workers=[cluster.seated()[0].address]).result()


def _require_some(names: Sequence[Packed]) -> None:
    require_some(list(map(unpack, names)))


def model_of(cluster: Cluster) -> Model:
    """The kind of GPU that the run is of."""
    devices = [one.device for one in cluster.seated() if one.device is not None]
    return (devices[0].name, devices[0].sm_count) if devices else ("", 0)


def archs_of(cluster: Cluster) -> list[str]:
    """Architectures that the seats' ceilings and probes are built for."""
    from compare.timing import arch_of

    found = {one.device.compute_capability for one in cluster.seated() if one.device is not None}
    return sorted(map(arch_of, found))


def spread(
    request: Request,
    planned: Sequence[Part],
    built: Built,
    cluster: Cluster,
    writer: runs.RunWriter,
    out: Path | None,
    *,
    as_json: bool,
    site: Callable[[], Site],
) -> bool:
    """Measure what is not done yet over the cluster's seats, and conclude the run; see :func:`over_cluster`.

    ``site`` makes what a worker measures on.
    """
    from compare.console import progress

    everyone = {contender.name: contender for part in planned for contender in part.group.contenders}
    broken = {name: str(result) for name, result in built.items() if isinstance(result, BuildError | MissingToolError)}
    model = model_of(cluster)
    baselines = tuple(pack(contender, model) for contender in everyone.values() if contender.family == "cublas")
    ceilings = ceilings_in(writer)
    work = []
    for part in planned:
        group = part.group
        if part.name in writer.finished:
            continue
        cost = cpu_cost_s(group) if cluster.cpu else cost_of(part)
        parcel = Parcel(
            shape=group.shape,
            track=group.track,
            problem=group.problem,
            contenders=tuple(pack(contender, model) for contender in group.contenders),
            baselines=baselines,
            settings=part.settings,
            self_test=part.self_test,
            faults=faults_in(writer, group),
            broken=broken,
            ceilings=ceilings,
            site=site,
        )
        work.append(Work(name=part.name, payload=parcel, cost_s=cost))
    work.sort(key=lambda one: -one.cost_s)
    costs = {one.name: one.cost_s for one in work}
    before = 0.0 if cluster.cpu else max((expected_s((), None, arch) for arch in archs_of(cluster)), default=0.0)
    places = len(cluster.seats)
    say_how_long(len(work), sum(costs.values()) + places * before, places)  # every place measures its own ceilings

    def keep(outcome: Outcome) -> None:
        result: Result = outcome.value
        if result.ceilings and CEILINGS_OF + result.card not in writer.finished:
            writer.add(CEILINGS_OF + result.card, (), result.ceilings)
        rows = [{**row, "retried_because": outcome.retried_because} for row in result.rows]
        seconds = {**result.seconds, "estimate": round(costs[outcome.name], 3)} if result.seconds else {}
        writer.add(outcome.name, rows, result.samples, seconds)

    def keep_fault(name: str, note: tuple[str, dict[str, Any]]) -> None:
        contender, row = note
        writer.add(shard_of_fault(name, contender), [row])

    function = check_here if cluster.cpu else measure_here
    stopped = False
    lost: tuple[Lost, ...] = ()
    try:
        with progress("comparing", sum(one.cost_s for one in work)) as advance:
            lost = run_groups(cluster, work, function, on_done=keep, on_again=keep_fault, advance=advance)
    except KeyboardInterrupt:
        stopped = True
    except ClusterError as error:
        raise ClusterError(f"{error}. {kept_in(writer)} from there") from None
    ceilings = ceilings_in(writer)
    writer.provenance["gpus"] = with_ceilings(writer.provenance.get("gpus", ()), ceilings)
    failed = conclude(
        request,
        writer,
        out,
        complete=not (stopped or lost),
        as_json=as_json,
        stopped=stopped,
        rows=rows_in_order(planned, writer),
        ceilings=next(iter(ceilings.values()), ()),
    )
    raise_if_lost(lost, f"What was finished is kept in {writer.folder}; the same command tries the rest again")
    return failed


def cpu_cost_s(group: Group) -> float:
    problem = group.problem
    return CPU_SECONDS_PER_FMA * problem.m * problem.n * problem.k * len(group.contenders)


def rows_in_order(planned: Sequence[Part], writer: runs.RunWriter) -> list[dict[str, Any]]:
    """The run's rows as one GPU would have written them, whatever the order in which groups ended."""
    rows = []
    for part in planned:
        name = part.name
        for contender in part.group.contenders:
            rows += writer.rows_of(shard_of_fault(name, contender.name))
        rows += writer.rows_of(name)
    return rows


def ceilings_in(writer: runs.RunWriter) -> dict[str, list[dict[str, Any]]]:
    """Ceilings that the run has already, by card."""
    shards = (name for name in sorted(writer.finished) if name.startswith(CEILINGS_OF))
    return {name.removeprefix(CEILINGS_OF): writer.samples_of(name) for name in shards}


def provenance_of(cluster: Cluster, request: Request, built_with: str) -> dict[str, Any]:
    """The run's provenance: one worker's for what all share, and every card's own."""
    seated = cluster.seated()
    said = cluster.submit(provenance_here, workers=[seated[0].address]).result()
    mine = runs.provenance(["gemm-tracks", *without_address(sys.argv[1:])], seated[0].driver, built_with, str(request))
    hosts = list(dict.fromkeys(member.host for member in seated))
    shared = {key: said[key] for key in ("driver", "packages")}
    place = {"gpu": PTX_MACHINE} if cluster.cpu else {}
    chosen = request.contenders()
    if seated[0].device is not None:
        chosen = tuple(one.on(seated[0].device.name, seated[0].device.sm_count) for one in chosen)
    tables = dispatch_tables.used(chosen)
    cards = [card_of(member, member.device, hosts) for member in seated if member.device is not None]
    here = {"gpus": cards, "hosts": len(hosts), "places": len(seated), "engine": engine()}
    return {**mine, **shared, **place, "dispatch_tables": tables, **here}


def without_address(words: Sequence[str]) -> list[str]:
    """A command line without the scheduler's address, which belongs to one network."""
    found = list(words)
    for number, word in enumerate(words):
        if word == "--scheduler" and number + 1 < len(words):
            found[number + 1] = "ADDRESS"
        elif word.startswith("--scheduler="):
            found[number] = "--scheduler=ADDRESS"
    return found


def card_of(member: Member, device: Device, hosts: Sequence[str]) -> dict[str, Any]:
    """A card as a run names it; machines are numbered, not named."""
    return {
        "host": hosts.index(member.host),
        "index": device.index,
        "uuid_hash": device.uuid_hash,
        "name": device.name,
        "other_processes": member.others,
    }


def with_ceilings(
    cards: Sequence[Mapping[str, Any]], ceilings: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Cards with what was measured on each."""
    return [{**card, "ceilings": list(ceilings.get(card["uuid_hash"] or str(card["index"]), ()))} for card in cards]
