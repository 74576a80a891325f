"""What cluster tests run on workers: pickled by name, so it lives in a module that workers can import."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import time
from pathlib import Path

from compare import cluster_workers
from compare.cluster_compare import check_here
from compare.cluster_workers import Again
from compare.driver import Device, Driver
from kernel.errors import LaunchError
from tests.test_job import HostSite


def hash_of(address):
    return hashlib.sha256(address.encode()).hexdigest()[:12]


def here_address():
    from distributed import get_worker

    return get_worker().address


def device(address, name="NVIDIA H200"):
    return Device(
        ordinal=0, name=name, compute_capability=(9, 0), sm_count=132, memory_bytes=1, l2_bytes=1,
        index=int(address.rpartition(":")[2]), uuid_hash=hash_of(address),
    )  # fmt: skip


def describe_as_h200(cpu, name="NVIDIA H200"):
    """A worker that says it has a GPU of its own; its index is its port."""
    said = cluster_workers.describe(cpu)
    asked = Driver(version="13.0", devices=(device(said["address"], name),), problem="")
    plain = {**dataclasses.asdict(asked), "devices": [dataclasses.asdict(one) for one in asked.devices]}
    return {**said, "driver": plain}


def describe_as_two_models(cpu):
    odd = int(hash_of(here_address()), 16) % 2 if not os.environ.get("MODEL") else int(os.environ["MODEL"])
    return describe_as_h200(cpu, ("NVIDIA H200", "NVIDIA L4")[odd])


def describe_as_other_program(cpu):
    return {**cluster_workers.describe(cpu), "revision": "0.0.1, revision ffffffffff"}


class CardSite(HostSite):
    """The simulated device of the job's tests, as one card among several."""

    def __init__(self):
        super().__init__()
        card = device(here_address())
        self.bench.facts = dataclasses.replace(self.bench.facts, index=card.index, uuid_hash=card.uuid_hash)


def logged(payload, here):
    """Appends its name and worker to a file when it begins and when it ends; payload: (file, seconds, what)."""
    path, seconds, what = payload
    note(path, f"began {here.name} {here_address()}")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        here.tell(1 - (until - time.monotonic()) / seconds, "working")
        time.sleep(0.02)
    earlier = Path(path).read_text().count(f"began {here.name} ") - 1
    if what == "dies once" and earlier == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "fails once" and earlier == 0:
        raise LaunchError("the launch was refused")
    if what == "always fails":
        raise LaunchError("the launch was refused")
    if what == "spent once" and earlier == 0:
        raise Again("a kernel stopped the GPU", (path, seconds, ""), "note")
    note(path, f"ended {here.name} {here_address()}")
    return f"{here.name} done"


def note(path, line):
    with Path(path).open("a") as stream:
        stream.write(line + "\n")


def check_and_die(parcel, here):
    """The real check of a group on the PTX machine; the worker that is first at 33x18x17 is killed in the middle."""
    marker = Path(os.environ["GEMM_TRACKS_TEST_MARKER"])
    if parcel.shape.m == 33 and not marker.exists():
        marker.touch()
        here.tell(0.5, "about to be killed")
        os.kill(os.getpid(), signal.SIGKILL)
    return check_here(parcel, here)


def describe_by_environment(cpu):
    """A worker of a local cluster: it has the GPU that CUDA_VISIBLE_DEVICES leaves it, if any."""
    said = cluster_workers.describe(cpu)
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    if not visible:
        return said
    one = dataclasses.replace(device("card:" + visible), index=int(visible))
    plain = {"version": "13.0", "devices": [dataclasses.asdict(one)], "problem": ""}
    return {**said, "driver": plain}


def check_slowly(parcel, here):
    """The real check of a group, after two seconds in which it can be stopped."""
    for step in range(100):
        here.tell(step / 100, "waiting")
        time.sleep(0.02)
    return check_here(parcel, here)


def make_tuner():
    """The tuner's tests' own, on the card of this worker; it dies once, where a marker says so, at 512."""
    from tests import test_tuner

    class Dies(test_tuner.NoOperands):
        def __init__(self, problem):
            marker = Path(os.environ["GEMM_TRACKS_TEST_MARKER"])
            if problem.m == 512 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            super().__init__(problem)

    one = test_tuner.tuner(operands=Dies)
    window = one.bench.window

    def takes_time(*arguments):
        """As a real one does, so that the bursts are heard of while the final is on."""
        time.sleep(0.3)
        return window(*arguments)

    one.bench.window = takes_time
    card = device(here_address())
    one.bench.facts = dataclasses.replace(one.bench.facts, index=card.index, uuid_hash=card.uuid_hash)
    return one


def wait_long(parcel, here):
    """A group that takes ten minutes unless it is stopped."""
    for step in range(30_000):
        here.tell(step / 30_000, "waiting")
        time.sleep(0.02)


def compare_on_two_cards(words):
    """The command on a local cluster of two cards that are not there, whose groups take ten minutes."""
    from compare import cluster, cluster_compare, driver, job
    from compare.cli import main
    from tests import test_job

    cards = tuple(dataclasses.replace(device(f"card:{i}"), ordinal=i, index=i) for i in range(2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    driver.query = lambda: Driver(version="13.0", devices=cards, problem="")
    cluster.describe = describe_by_environment
    cluster_compare.measure_here = wait_long
    cluster_compare.build_over = lambda workers, chosen, archs, model: {}
    job.contenders = lambda *given: (test_job.CUBLAS,)
    return main(words)
