"""Work spread over GPUs and machines by Dask: who the workers are, and units of work that move between them.

Dask schedules, moves data, notices dead workers and starts their work again elsewhere. What is added here is
what measuring needs: one unit of work at a time on a GPU and nothing else of ours there meanwhile, one kind
of GPU and one program in a run, a record of where a unit was begun before it was finished, progress of
everything together, and a stop that leaves no work behind.

    with open_cluster(gpus="all") as cluster:
        lost = run_groups(cluster, work, worker_fn, on_done=keep)

``worker_fn(payload, here)`` runs on a worker; ``here`` is a :class:`compare.cluster_workers.Here`, which keeps
what the process needs again, and reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import logging
import os
import queue
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compare import driver
from compare.cluster_workers import (
    SEAT,
    Here,
    Member,
    attempt,
    describe,
    member_of,
    program,
    set_seat,
    stop_run,
    topic_of,
    unrunnable,
)
from compare.driver import Device
from kernel.errors import CheckError, ClusterError, GemmTracksError, MissingToolError, NoDeviceError, UsageError

EVERYTHING = "all"
"""The scheduler's own topic, in which it says which workers it lost, with what they were doing."""
TRIES = 3
"""Places where a unit of work is begun before it is given up."""
TICK_S = 0.5
JOIN_S = 60.0
"""Longest wait for the first worker, and for workers that come back after all have gone."""
CONNECT_S = 15.0
INSTALL = "pip install 'gemm-tracks[cluster]'"

Tell = Callable[[float, str], None]


@dataclass(frozen=True, kw_only=True)
class Work:
    """A unit that moves: all of it runs in one place. ``name`` is its own in a run; ``cost_s`` a rough guess."""

    name: str
    payload: Any
    cost_s: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished unit."""

    name: str
    value: Any
    place: str
    """Where it was finished, as :attr:`Member.label`."""
    failures: tuple[str, ...] = ()
    """Where it was begun before, and why it was not finished there."""

    @property
    def retried_because(self) -> str | None:
        """The failures as a row holds them."""
        return "; ".join(self.failures) or None


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A unit that was given up after :data:`TRIES` attempts."""

    name: str
    failures: tuple[str, ...]


def require_extra() -> None:
    """
    Raises:
        MissingToolError: Dask is not installed; the text says how to get it.
    """
    if importlib.util.find_spec("distributed") is None:
        raise MissingToolError(
            f"--gpus and --scheduler run on Dask, and the package distributed is not installed: {INSTALL}"
        )


def ordinals(gpus: str) -> tuple[int, ...] | None:
    """What ``--gpus`` names: None for ``all``, else ordinals among the devices that CUDA sees, as ``0,1``.

    Raises:
        UsageError: it is neither, or names one twice.
    """
    if gpus == "all":
        return None
    words = [word.strip() for word in gpus.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"--gpus {gpus}: give all, or ordinals such as 0,1")
    if len({int(word) for word in words}) < len(words):
        raise UsageError(f"--gpus {gpus}: a GPU is named twice")
    return tuple(int(word) for word in words)


def chosen_devices(gpus: str, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that ``--gpus`` names.

    Raises:
        UsageError: see :func:`ordinals`; or one is not there.
    """
    named = ordinals(gpus)
    if named is None:
        return tuple(devices)
    if max(named) >= len(devices):
        raise UsageError(f"--gpus {gpus}: {len(devices)} can be seen on this machine, numbered from 0")
    return tuple(devices[one] for one in named)


def check_options(gpus: str, scheduler: str, *, cpu: bool) -> None:
    """
    Raises:
        UsageError: the options do not fit together.
        MissingToolError: the extra is not installed.
    """
    if gpus and scheduler:
        raise UsageError("--gpus starts a cluster on this machine and --scheduler uses one that runs; give one of them")
    if gpus and cpu:
        raise UsageError("--gpus takes GPUs, and --cpu takes none; with --cpu give --scheduler")
    if gpus:
        ordinals(gpus)
    require_extra()


@contextlib.contextmanager
def open_cluster(*, gpus: str = "", scheduler: str = "", cpu: bool = False) -> Iterator[Cluster]:
    """A cluster on this machine's GPUs, started here and stopped with the block, or one that runs already.

    Args:
        gpus: ``all`` or ordinals, as :func:`chosen_devices` takes them.
        scheduler: address of a scheduler, such as tcp://10.0.0.1:8786.
        cpu: units run on the PTX machine; workers need no GPU.

    Raises:
        UsageError, MissingToolError: see :func:`check_options`.
        NoDeviceError: no GPU, no scheduler at that address, or no worker that could be used.
        ClusterError: the workers are of several programs or kinds of GPU.
    """
    check_options(gpus, scheduler, cpu=cpu)
    import dask
    from distributed import Client

    # A sampling profiler and its like belong on no process that times anything.
    quiet = {
        "distributed.worker.profile.enabled": False,
        "distributed.admin.system-monitor.interval": "10s",
        "distributed.comm.timeouts.connect": f"{CONNECT_S}s",
    }
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with dask.config.set(quiet), contextlib.ExitStack() as stack:
        if gpus:
            address: Any = stack.enter_context(_local(chosen_here(gpus)))
        else:
            address = scheduler
        try:
            if scheduler:
                _ask(scheduler)
            client = stack.enter_context(Client(address, timeout=CONNECT_S))
        except (OSError, ValueError) as error:
            raise NoDeviceError(
                f"no Dask scheduler answers at {scheduler} ({_line(error)}); start one with `dask scheduler`"
            ) from None
        cluster = Cluster(client, cpu=cpu)
        cluster.gather()
        yield cluster


def _ask(scheduler: str) -> None:
    """Ask once whether Dask answers there: its client asks again and again, and of anything else waits for ever.

    Raises:
        OSError: nothing answers within ``CONNECT_S``, or what does is no Dask.
    """
    import asyncio

    from distributed.comm import connect

    async def connected() -> None:
        comm = await asyncio.wait_for(connect(scheduler, timeout=CONNECT_S), CONNECT_S)
        comm.abort()

    try:
        asyncio.run(connected())
    except Exception as error:  # what is no Dask can be read as anything
        raise OSError(_line(error)) from None


def chosen_here(gpus: str) -> tuple[Device, ...]:
    """
    Raises:
        NoDeviceError: there is no GPU here.
    """
    asked = driver.query()
    if asked.problem:
        raise NoDeviceError(f"{asked.problem}; --gpus needs at least one on this machine, --scheduler takes others'")
    return chosen_devices(gpus, asked.devices)


@contextlib.contextmanager
def _local(devices: Sequence[Device]) -> Iterator[Any]:
    """A scheduler, one worker for each GPU that sees no other, and one that builds and sees none."""
    from distributed import Nanny, Scheduler, SpecCluster

    inherited = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]

    def worker(threads: int, visible: str, folder: str) -> dict[str, Any]:
        options = {
            "nthreads": threads,
            "memory_limit": 0,
            "dashboard": False,
            "local_directory": folder,
            "silence_logs": logging.CRITICAL,
            "preload": ["compare.cluster_workers"],
            "env": {"CUDA_VISIBLE_DEVICES": visible},
        }
        return {"cls": Nanny, "options": options}

    with tempfile.TemporaryDirectory(prefix="gemm-tracks-cluster-") as folder:
        workers = {
            f"gpu{device.ordinal}": worker(1, inherited[device.ordinal] if inherited else str(device.ordinal), folder)
            for device in devices
        }
        workers["builds"] = worker(os.cpu_count() or 1, "", folder)
        scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard": False}}
        with SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.CRITICAL) as cluster:
            yield cluster


@dataclass(eq=False)
class Cluster:
    """Workers that have joined, and the seats among them.

    Args:
        client: a ``distributed.Client``.
        cpu: units run on the PTX machine; every worker has a seat.
    """

    client: Any
    cpu: bool = False
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    members: dict[str, Member] = field(default_factory=dict)
    """Live workers that can be used, by address."""
    seats: dict[str, str] = field(default_factory=dict)
    """Address of the worker that has it, by seat."""
    on_join: list[Callable[[Member], None]] = field(default_factory=list)
    """Called with every worker before it gets a seat; given to those that are there when it is added."""
    remarks: Callable[[str], None] = lambda text: None
    """Told what a user should know about a worker."""
    _known: dict[str, Member] = field(default_factory=dict)
    _asking: dict[str, Any] = field(default_factory=dict)
    _unusable: dict[str, str] = field(default_factory=dict)
    _gathered: bool = False
    _benched: dict[str, str] = field(default_factory=dict)
    """By seat: the unit that was lost there and has not been begun elsewhere yet."""

    def gather(self) -> None:
        """Wait for the workers that are there to describe themselves, and give them seats.

        Raises:
            NoDeviceError, ClusterError: none can be used, or they do not fit together.
        """
        deadline = time.monotonic() + JOIN_S
        while time.monotonic() < deadline:
            here = self.refresh()
            if here and not self._asking:
                break
            if not here and time.monotonic() > deadline - JOIN_S + CONNECT_S:
                break
            time.sleep(0.1)
        self._gathered = True
        address = self.client.scheduler.address
        if not self.members:
            reasons = "; ".join(f"{where}: {why}" for where, why in self._unusable.items())
            if reasons:
                raise ClusterError(f"none of the workers of {address} can be used: {reasons}")
            raise NoDeviceError(f"{address} has no workers; start some with `dask worker {address} --nthreads 1`")
        others = {member.revision: member.address for member in self.members.values() if member.revision != program()}
        if others:
            listed = "; ".join(f"{where} runs {what}" for what, where in others.items())
            raise ClusterError(f"a run is made by one program, and this is {program()}: {listed}")
        if not self.seats:
            problems = sorted({member.driver.problem for member in self.members.values()})
            raise NoDeviceError(
                f"none of the {len(self.members)} workers of {address} has a GPU ({'; '.join(problems)}); "
                "--cpu checks on their CPUs instead, and times nothing"
            )
        models = self.models()
        if len(models) > 1:
            listed = "; ".join(f"{name}: {', '.join(places)}" for name, places in models.items())
            raise ClusterError(
                f"the workers have different GPUs, and a run is of one kind ({listed}); run a scheduler for each kind "
                "and put the runs side by side with `gemm-tracks merge`"
            )

    def models(self) -> dict[str, list[str]]:
        """Workers with a seat by the model of their GPU."""
        found: dict[str, list[str]] = {}
        for member in self.seated():
            if member.device is not None:
                found.setdefault(member.device.name, []).append(member.address)
        return found

    def seated(self) -> list[Member]:
        """Workers that have a seat, in the order of hosts and cards."""
        found = [self.members[address] for address in self.seats.values() if address in self.members]
        return sorted(found, key=lambda one: (one.host, one.device.index if one.device else 0, one.address))

    def refresh(self) -> frozenset[str]:
        """Take note of workers that came and went, and give seats; addresses of live workers."""
        workers = self._workers()
        here = frozenset(workers)
        for address in set(self.members) - here:
            del self.members[address]
        for address in set(self._unusable) - here:
            del self._unusable[address]
        for seat, address in list(self.seats.items()):
            # A worker may come back under its old address: what it was given is gone with its process then.
            if not workers.get(address, {}).get("resources", {}).get(SEAT):
                del self.seats[seat]
                self.members.pop(address, None)
        for address in sorted(here - set(self.members) - set(self._asking) - set(self._unusable)):
            self._asking[address] = self.submit(describe, self.cpu, workers=[address])
        for address, asked in list(self._asking.items()):
            if address not in here:
                del self._asking[address]
            elif asked.done():
                del self._asking[address]
                self._welcome(address, asked)
        self._give_seats()
        return here

    def submit(self, function: Callable[..., Any], *arguments: Any, workers: Sequence[str] | None = None) -> Any:
        """A future of a call on one of the workers (on any of them by default); failures are not repeated there."""
        where = {} if workers is None else {"workers": list(workers), "allow_other_workers": False}
        return self.client.submit(function, *arguments, pure=False, retries=0, **where)

    def label(self, address: str) -> str:
        """A worker's place in words, also after it has gone."""
        return self._known[address].label if address in self._known else f"worker {address}"

    def bench(self, address: str, unit: str) -> None:
        """Leave a card without a seat until the unit that was lost there has been begun on another."""
        if address in self._known:
            self._benched[self._known[address].seat] = unit

    def unbench(self, unit: str) -> None:
        """The unit runs elsewhere, or has been given up."""
        self._benched = {seat: lost for seat, lost in self._benched.items() if lost != unit}

    def renew(self, address: str) -> None:
        """Start a worker's process afresh; where nobody watches over it, it loses its seat instead."""
        self.seats = {seat: holder for seat, holder in self.seats.items() if holder != address}
        self.members.pop(address, None)
        try:
            self.client.restart_workers([address], timeout=CONNECT_S)
        except Exception as error:  # Dask: no nanny, timed out, gone already
            self._unusable[address] = f"its process is spent and was not started again ({_line(error)})"
            self.remarks(f"{self.label(address)}: {self._unusable[address]}")
            with contextlib.suppress(Exception):
                self.client.run(set_seat, 0, workers=[address])

    def stop(self) -> None:
        """Ask every worker to leave what it does for this run."""
        with contextlib.suppress(Exception):
            self.client.run(stop_run, self.run, on_error="ignore")

    def _workers(self) -> Mapping[str, Mapping[str, Any]]:
        """What the scheduler says of its workers, by address."""
        if self.client.status != "running":
            raise ClusterError("the scheduler is gone")
        found: Mapping[str, Mapping[str, Any]] = self.client.scheduler_info(n_workers=-1)["workers"]
        return found

    def _welcome(self, address: str, asked: Any) -> None:
        error = asked.exception()
        if error is not None:
            self._unusable[address] = f"it cannot run gemm-tracks ({type(error).__name__}: {_line(error)})"
            self.remarks(f"worker {address}: {self._unusable[address]}; install the same version there")
            return
        member = member_of(asked.result())
        self._known[address] = member
        others = {one.revision for one in self.members.values()} - {member.revision}
        kinds = set(self.models()) - {member.device.name if member.device else ""}
        if self._gathered and (others or (member.device and kinds)):
            self._unusable[address] = f"it came late and does not fit: {member.revision}, {member.device}"
            self.remarks(f"worker {address}: {self._unusable[address]}")
            return
        if member.others:
            self.remarks(
                f"{member.label}: {member.others} other processes use it; times there mean nothing until they end"
            )
        try:
            for prepare in self.on_join:
                prepare(member)
        except Exception as error:
            self._unusable[address] = f"it could not be made ready ({_line(error)})"
            self.remarks(f"{member.label}: {self._unusable[address]}")
            return
        self.members[address] = member

    def _give_seats(self) -> None:
        """One worker for each card. A card whose worker was lost waits, unless no other is left."""
        for benched_too in (False, True):
            if benched_too and self.seats:
                break
            for member in self.members.values():
                free = member.seat and member.seat not in self.seats
                if free and (benched_too or member.seat not in self._benched):
                    self.client.run(set_seat, 1, workers=[member.address])
                    self.seats[member.seat] = member.address


def _line(error: BaseException | None) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


@dataclass(eq=False)
class _Flight:
    """A unit on its way."""

    work: Work
    failures: list[str] = field(default_factory=list)
    avoid: set[str] = field(default_factory=set)
    """Seats where it failed."""
    address: str = ""
    """Where it was last seen to begin."""
    fraction: float = 0.0
    text: str = ""
    future: Any = None
    allowed: tuple[str, ...] = ()
    """Workers that it is limited to; empty for all."""


def run_groups(
    cluster: Cluster,
    work: Iterable[Work],
    worker_fn: Callable[[Any, Here], Any],
    *,
    on_done: Callable[[Outcome], None],
    on_again: Callable[[str, Any], None] | None = None,
    advance: Callable[[float, str], None] | None = None,
    fresh: Callable[[Work], Any] | None = None,
    on_note: Callable[[Any], None] | None = None,
    tries: int = TRIES,
) -> tuple[Lost, ...]:
    """Run every unit once, each in one place, at most one at a time on a card; they begin in the order given.

    A unit whose worker dies, or whose function raises, is begun again elsewhere while there is an elsewhere.

    Args:
        cluster: where.
        work: the units; their names differ. With the longest first, places end at about the same time.
        worker_fn: a function of a module that workers can import; called with a unit's payload and a :class:`Here`.
        on_done: called here, one at a time, with each finished unit, as soon as it is.
        on_again: called here with (name, note) when a unit is begun again because its function raised :class:`Again`.
        advance: told (seconds' worth of ``cost_s`` that is done, what is being done everywhere).
        fresh: called here with a unit that is about to begin; gives the payload to begin it with, or None where it
            is not to begin any more.
        on_note: called here with what a unit handed to :meth:`Here.note`; a unit that ends at once may outrun it.
        tries: attempts before a unit is given up; ten times as many where its function asks for them by :class:`Again`.

    Returns:
        Units that were given up.

    Raises:
        ClusterError: the scheduler has gone, or all workers have and none came back.
        KeyboardInterrupt: passed on after the workers were told to stop.
    """
    pending = deque(_Flight(one) for one in work)
    run = _Run(cluster, worker_fn, pending, on_done, on_again, advance, fresh, on_note, tries)
    try:
        return run.everything()
    except BaseException:
        cluster.stop()
        with contextlib.suppress(Exception):
            cluster.client.cancel([flight.future for flight in run.flying], force=True)
        raise


class _Run:
    """The loop of :func:`run_groups`."""

    def __init__(
        self,
        cluster: Cluster,
        worker_fn: Callable[[Any, Here], Any],
        pending: deque[_Flight],
        on_done: Callable[[Outcome], None],
        on_again: Callable[[str, Any], None] | None,
        advance: Callable[[float, str], None] | None,
        fresh: Callable[[Work], Any] | None,
        on_note: Callable[[Any], None] | None,
        tries: int,
    ) -> None:
        self.cluster, self.worker_fn, self.pending, self.tries = cluster, worker_fn, pending, tries
        self.on_done, self.on_again, self.advance, self.fresh = on_done, on_again, advance, fresh
        self.on_note = on_note
        self.flying: list[_Flight] = []
        self.lost: list[Lost] = []
        self.done_s = 0.0
        self.events: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self.unseated_since: float | None = None

    def everything(self) -> tuple[Lost, ...]:
        """Until nothing is left."""
        client, topic = self.cluster.client, topic_of(self.cluster.run)
        for one in (topic, EVERYTHING):
            client.subscribe_topic(one, lambda event: self.events.put(event[1]))
        try:
            while self.pending or self.flying:
                self._hear()
                self.cluster.refresh()
                self._wake()
                self._submit()
                self._require_a_seat()
                for flight in self._landed():
                    self._settle(flight)
                self._show()
        finally:
            for one in (topic, EVERYTHING):
                with contextlib.suppress(Exception):
                    client.unsubscribe_topic(one)
        return tuple(self.lost)

    def _submit(self) -> None:
        """Keep as many units on their way as there are seats, so that every unit goes to a seat that is free."""
        while self.pending and len(self.flying) < len(self.cluster.seats):
            flight = self.pending.popleft()
            payload = flight.work.payload if self.fresh is None else self.fresh(flight.work)
            if payload is not None or self.fresh is None:
                flight.work = dataclasses.replace(flight.work, payload=payload)
                self._send(flight)

    def _send(self, flight: _Flight) -> None:
        elsewhere = tuple(address for seat, address in self.cluster.seats.items() if seat not in flight.avoid)
        flight.allowed = elsewhere if flight.avoid else ()
        where: dict[str, Any] = {}
        if flight.allowed:
            where = {"workers": list(flight.allowed), "allow_other_workers": False}
        one = flight.work
        flight.address, flight.fraction, flight.text = "", 0.0, ""
        flight.future = self.cluster.client.submit(
            attempt, self.worker_fn, one.name, one.payload, self.cluster.run, self.cluster.cpu,
            key=f"gemm-tracks-{self.cluster.run}-{one.name}-{uuid.uuid4().hex[:6]}",
            pure=False, retries=0, resources={SEAT: 1}, **where,
        )  # fmt: skip
        self.flying.append(flight)

    def _hear(self) -> None:
        """What workers reported of their units, and which of them the scheduler has lost."""
        names = {flight.work.name: flight for flight in self.flying}
        while not self.events.empty():
            event = self.events.get()
            if event.get("action") == "remove-worker":
                gone = {*event.get("processing-tasks", ()), *event.get("lost-computed-tasks", ())}
                for flight in [flight for flight in self.flying if flight.future.key in gone]:
                    self._died(flight, str(event["worker"]))
            told = names.get(str(event.get("name")))
            if told is None:
                continue
            if event["what"] == "began":
                told.address = str(event["address"])
                self.cluster.unbench(told.work.name)
            elif event["what"] == "note":
                if self.on_note is not None:
                    self.on_note(event["value"])
            elif event["address"] == told.address:
                told.fraction, told.text = float(event["fraction"]), str(event["text"])

    def _died(self, flight: _Flight, address: str) -> None:
        """Dask begins the unit again; the card gets no seat until that was on another."""
        flight.failures.append(f"{self.cluster.label(address)}: its worker died")
        self.cluster.remarks(f"{flight.work.name}: {flight.failures[-1]}; begun again elsewhere")
        self.cluster.bench(address, flight.work.name)
        flight.address, flight.fraction, flight.text = "", 0.0, ""

    def _wake(self) -> None:
        """Send units again that have nowhere to go: Dask does not look at them anew when a worker gets a seat."""
        if not self.cluster.seats or all(flight.address for flight in self.flying):
            return
        stuck = set(self.cluster.client.run_on_scheduler(unrunnable))
        for flight in [flight for flight in self.flying if flight.future.key in stuck]:
            self.flying.remove(flight)
            self.cluster.client.cancel([flight.future], force=True)
            self._send(flight)

    def _require_a_seat(self) -> None:
        if self.cluster.seats:
            self.unseated_since = None
            return
        self.unseated_since = self.unseated_since or time.monotonic()
        if time.monotonic() - self.unseated_since > JOIN_S:
            raise ClusterError(f"no worker is left, and none came back within {JOIN_S:.0f} s")

    def _landed(self) -> list[_Flight]:
        """Those that have ended, after a wait of at most a tick for the first of them."""
        import distributed

        if not self.flying:
            time.sleep(TICK_S)
            return []
        try:
            distributed.wait([flight.future for flight in self.flying], timeout=TICK_S, return_when="FIRST_COMPLETED")
        except TimeoutError:
            return []
        except Exception:  # what a future's loss looks like depends on how; the futures themselves say
            if self.cluster.client.status != "running":
                raise ClusterError("the scheduler is gone") from None
        return [flight for flight in self.flying if flight.future.done()]

    def _settle(self, flight: _Flight) -> None:
        """Hand out what came of a unit, or begin it again."""
        self.flying.remove(flight)
        future, one = flight.future, flight.work
        if future.cancelled() or future.status == "lost":
            raise ClusterError("the scheduler has forgotten its work; was it restarted?")
        error = future.exception()
        if error is None:
            value, again = future.result()
            # What Dask still holds when a worker dies it makes again.
            future.release()
            if again is None:
                self.cluster.unbench(one.name)
                self.done_s += one.cost_s
                place = self.cluster.label(flight.address) if flight.address else "a worker"
                self.on_done(Outcome(name=one.name, value=value, place=place, failures=tuple(flight.failures)))
                return
            flight.failures.append(f"{self.cluster.label(flight.address)}: {again.reason}")
            if self.on_again is not None:
                self.on_again(one.name, again.note)
            self.cluster.renew(flight.address)
            if len(flight.failures) >= 10 * self.tries:
                self._give_up(flight)
                return
            flight.work = dataclasses.replace(one, payload=again.payload)
            self.pending.appendleft(flight)
            return
        text = f"{type(error).__name__}: {_line(error)}" if not isinstance(error, GemmTracksError) else _line(error)
        if type(error).__name__ == "KilledWorker":
            text = "workers kept dying with it"
            flight.failures += [text] * self.tries
        else:
            flight.failures.append(f"{self.cluster.label(flight.address)}: {text}")
            flight.avoid |= {seat for seat, address in self.cluster.seats.items() if address == flight.address}
        if len(flight.failures) >= self.tries:
            self._give_up(flight)
            return
        self.cluster.remarks(f"{one.name}: {flight.failures[-1]}; begun again elsewhere")
        self.pending.appendleft(flight)

    def _give_up(self, flight: _Flight) -> None:
        self.cluster.unbench(flight.work.name)
        self.done_s += flight.work.cost_s
        self.lost.append(Lost(name=flight.work.name, failures=tuple(dict.fromkeys(flight.failures))))

    def _show(self) -> None:
        if self.advance is None:
            return
        running = [flight for flight in self.flying if flight.address]
        at = self.done_s + sum(flight.fraction * flight.work.cost_s for flight in running)
        text = "; ".join(
            f"{self.cluster.label(one.address)} {one.work.name}{': ' if one.text else ''}{one.text}" for one in running
        )
        self.advance(at, text or "waiting for workers")


def lost_text(lost: Sequence[Lost]) -> str:
    """What was given up, and why."""
    return "; ".join(f"{one.name} ({', '.join(one.failures)})" for one in lost)


def raise_if_lost(lost: Sequence[Lost], kept: str) -> None:
    """
    Raises:
        CheckError: something was given up; ``kept`` says where the rest is.
    """
    if lost:
        raise CheckError(f"given up after {TRIES} attempts each: {lost_text(lost)}. {kept}")


def engine() -> str:
    """What spreads the work, with its version, for a run's provenance."""
    return f"dask.distributed {importlib.metadata.version('distributed')}, Python {sys.version.split()[0]}"
