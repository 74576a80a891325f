"""What a cluster's worker is, and what runs on it: how it describes itself, and how it runs one unit of work."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import driver, runs
from compare.driver import Device, Driver
from kernel.errors import MissingToolError

SEAT = "gemm-tracks-seat"
"""Dask resource that a unit of work takes: a worker has one where it is the one worker of a usable GPU."""
TELL_EVERY_S = 0.5


class Stopped(Exception):  # noqa: N818 - no error: the user stopped the run
    """Raised inside a unit of work, on its worker, when the run that it belongs to was stopped."""


class Again(Exception):  # noqa: N818 - a request, which worker functions raise
    """Raised by a worker function: this process is spent; run the unit once more, with ``payload``, in another.

    Args:
        reason: why, for the record.
        payload: what the unit is to be run with next.
        note: handed to ``on_again`` before that.
    """

    def __init__(self, reason: str, payload: Any = None, note: Any = None) -> None:
        super().__init__(reason, payload, note)
        self.reason, self.payload, self.note = reason, payload, note


@dataclass(frozen=True, kw_only=True)
class Member:
    """A worker process, as it described itself."""

    address: str
    host: str
    threads: int
    revision: str
    driver: Driver
    compiler: str
    """Version of its nvcc; empty where it cannot build."""
    others: int | None
    """Other processes that use its GPU; None where NVML cannot tell."""
    cpu: bool
    """Units run on the PTX machine there, whatever GPU it has."""

    @property
    def device(self) -> Device | None:
        """The GPU that it measures on: the first that it sees."""
        return None if self.cpu or self.driver.problem else self.driver.devices[0]

    @property
    def seat(self) -> str:
        """What at most one worker may measure on: the card, or without one the process itself. Empty for neither."""
        if self.cpu:
            return self.address
        if self.device is None:
            return ""
        return self.device.uuid_hash or f"{self.host} {self.device.index}"

    @property
    def label(self) -> str:
        """Its place in words."""
        if self.device is None:
            return f"worker {self.address}"
        return f"GPU {self.device.index} ({self.device.uuid_hash[:6] or self.address})"


_STOPPED: set[str] = set()
"""Runs that were stopped while this process worked for them."""
_KEPT: dict[Any, Any] = {}


def describe(cpu: bool) -> dict[str, Any]:
    """What a worker process is, in plain values, so that a worker of another version can still be understood."""
    from distributed import get_worker

    worker = get_worker()
    asked = driver.query()
    return {
        "address": worker.address,
        "host": worker.address.rpartition(":")[0].rpartition("/")[2],
        "threads": worker.state.nthreads,
        "revision": program(),
        "driver": {**dataclasses.asdict(asked), "devices": [dataclasses.asdict(one) for one in asked.devices]},
        "compiler": compiler(),
        "others": None if cpu or asked.problem else driver.other_processes(asked.devices[0]),
        "cpu": cpu,
    }


def compiler() -> str:
    """Version of this machine's nvcc, or empty where nothing can be built."""
    from kernel.toolchain import find

    try:
        find("g++")
        return find("nvcc").version
    except MissingToolError:
        return ""


def member_of(said: Mapping[str, Any]) -> Member:
    asked = said["driver"]
    devices = (Device(**{**one, "compute_capability": tuple(one["compute_capability"])}) for one in asked["devices"])
    return Member(**{**said, "driver": Driver(**{**asked, "devices": tuple(devices)})})


def program() -> str:
    """What two processes must share to be one program."""
    try:
        version = importlib.metadata.version("gemm-tracks")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    return f"{version}, revision {runs.revision()}"


class Here:
    """Where a unit of work runs, as its worker function sees it.

    Args:
        run: the run's identifier.
        name: the unit's name.
        cpu: whether it runs on the PTX machine.
    """

    def __init__(self, run: str, name: str, cpu: bool) -> None:
        self.run, self.name, self.cpu = run, name, cpu
        self._told = 0.0

    def tell(self, fraction: float, text: str) -> None:
        """Report how much of the unit is done, and what is being done.

        Raises:
            Stopped: the run was stopped; let it pass.
        """
        if self.run in _STOPPED:
            raise Stopped(self.run)
        if time.monotonic() - self._told >= TELL_EVERY_S:
            self._told = time.monotonic()
            _report(self.run, "at", self.name, fraction=fraction, text=text)

    def note(self, value: Any) -> None:
        """Hand over something that is worth keeping before the unit is finished: plain values, as JSON has them."""
        _report(self.run, "note", self.name, value=value)

    def keep(self, key: Any, make: Callable[[], Any]) -> Any:
        """What this process keeps for later units of the same run: made when it is first asked for."""
        full = (self.run, key)
        if full not in _KEPT:
            _KEPT[full] = make()
        return _KEPT[full]


def _report(run: str, what: str, name: str, **more: Any) -> None:
    from distributed import get_worker

    worker = get_worker()
    worker.log_event(topic_of(run), {"what": what, "name": name, "address": worker.address, **more})


def topic_of(run: str) -> str:
    return f"gemm-tracks-{run}"


def attempt(worker_fn: Callable[[Any, Here], Any], name: str, payload: Any, run: str, cpu: bool) -> Any:
    """One unit on this worker. Gives (value, None), or (None, Again) where the process is spent."""
    here = Here(run, name, cpu)
    _report(run, "began", name)
    here.tell(0.0, "waiting for the GPU")
    with contextlib.nullcontext() if cpu else _alone():
        try:
            return worker_fn(payload, here), None
        except Again as again:
            return None, again


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold this worker's GPU against other runs of this project on the same machine."""
    try:
        import fcntl
    except ImportError:  # no POSIX: one user, and a note in the docs
        yield
        return
    devices = driver.query().devices
    if not devices:
        yield
        return
    device = devices[0]
    path = Path(tempfile.gettempdir()) / f"gemm-tracks-{device.uuid_hash or device.index}.lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # another user's file, where the system protects those
        handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def dask_setup(worker: Any) -> None:
    """Called by Dask in a worker of a local cluster: Ctrl-C reaches it too, and is the command's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def stop_run(run: str) -> None:
    _STOPPED.add(run)


async def set_seat(quantity: float, dask_worker: Any) -> None:
    await dask_worker.set_resources(**{SEAT: quantity})


def unrunnable(dask_scheduler: Any) -> list[str]:
    return [task.key for task in dask_scheduler.unrunnable]
