"""What a cluster does about workers and units that go wrong, told by a scheduler that is a dictionary."""

import dataclasses
import errno
import io
import os
import sys
import time
import zipfile
from types import SimpleNamespace

import pytest

from compare import cluster, cluster_builds, cluster_compare, cluster_tune, cluster_workers, driver, tuning
from compare.cluster import Cluster, Lost, Work, run_groups
from compare.cluster_workers import SEAT, Again, describe, set_seat
from compare.contenders import KernelContender, contenders
from compare.driver import Device, Driver
from compare.groups import groups
from compare.libraries import CublasContender
from compare.measure import record
from compare.shapes import parse
from compare.statistics import StoppingRule
from compare.tuner import targets
from compare.windows import BurstSettings, SustainedSettings
from kernel import build
from kernel.errors import (
    BuildError,
    CheckError,
    ClusterError,
    LaunchError,
    MissingToolError,
    NoDeviceError,
    RejectedError,
)

pytest.importorskip("distributed")

from tests.test_job import CUBLAS, HostExecutor, HostSite, fp32
from tests.test_tuner import NoOperands, tuner

A, B = "tcp://10.0.0.1:1", "tcp://10.0.0.2:2"


class Future:
    """What became of one call: a value, or an error; ``forgotten`` where Dask knows nothing of it any more."""

    def __init__(self, key, outcome, forgotten=False, pending=False):
        self.key, self.outcome, self.forgotten, self.pending = key, outcome, forgotten, pending
        self.status = "lost" if forgotten else "pending" if pending else "finished"
        self.asked = 0

    def cancelled(self):
        return False

    def done(self):
        """Not at once, so that what its worker reports is heard first."""
        self.asked += 1
        return not self.pending and (self.asked > 1 or self.key == "describe")

    def release(self):
        pass

    def exception(self):
        return self.outcome if isinstance(self.outcome, Exception) else None

    def result(self, timeout=None):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def said(address, model="NVIDIA H200", others=0, cpu=False, revision=None):
    """What a worker says of itself."""
    asked = Driver(
        version="13.0", problem="",
        devices=(
            Device(ordinal=0, name=model, compute_capability=(9, 0), sm_count=132, memory_bytes=1, l2_bytes=1,
                   index=int(address[-1]), uuid_hash=f"hash{address[-1]}"),
        ),
    )  # fmt: skip
    return {
        "address": address, "host": "here", "threads": 1, "revision": revision or cluster.program(), "compiler": "",
        "driver": {**dataclasses.asdict(asked), "devices": [dataclasses.asdict(one) for one in asked.devices]},
        "others": others, "cpu": cpu,
    }  # fmt: skip


class Dask:
    """A client whose workers answer at once what ``says`` and ``units`` hold for them."""

    def __init__(self, *addresses, **units):
        self.workers = {address: {"resources": {}} for address in addresses}
        self.says = {address: said(address) for address in addresses}
        self.units = units
        self.status, self.scheduler = "running", SimpleNamespace(address="tcp://10.0.0.9:9")
        self.sent, self.cancelled, self.stuck = [], [], []

    def scheduler_info(self, n_workers):
        return {"workers": self.workers}

    def submit(self, function, *arguments, key="", workers=None, **options):
        if function is describe:
            return Future("describe", self.says[workers[0]])
        _, name, payload, *_ = arguments
        self.sent.append((name, payload, workers))
        answers = self.units[name]
        future = answers(key) if callable(answers) else Future(key, answers)
        if not future.pending:
            place = next(address for address, one in self.workers.items() if one["resources"].get(SEAT))
            self.hear((0.0, {"what": "began", "name": name, "address": place}))
        return future

    def run(self, function, *arguments, workers=None, on_error=None):
        if function is set_seat:
            self.workers[workers[0]]["resources"][SEAT] = arguments[0]

    def run_on_scheduler(self, function):
        return self.stuck

    def cancel(self, futures, force):
        self.cancelled += futures

    def restart_workers(self, addresses, timeout):
        for address in addresses:
            self.workers[address] = {"resources": {}}

    def subscribe_topic(self, topic, handler):
        self.hear = handler

    def unsubscribe_topic(self, topic):
        pass


def gathered(dask, **options):
    told = []
    found = Cluster(dask, remarks=told.append, **options)
    found.gather()
    return found, told


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(cluster, "TICK_S", 0.0)
    monkeypatch.setattr("distributed.wait", lambda futures, timeout, return_when: None)


def run_all(found, names, **options):
    done = []
    work = [Work(name=name, payload=name) for name in names]
    lost = run_groups(found, work, print, on_done=lambda one: done.append((one.name, one.value)), **options)
    return done, lost


def test_a_worker_that_cannot_run_the_program_is_named_and_not_used():
    dask = Dask(A, B)
    dask.says[B] = ModuleNotFoundError("No module named 'compare'\nmore")
    found, told = gathered(dask)
    assert list(found.members) == [A]
    why = "it cannot run gemm-tracks (ModuleNotFoundError: No module named 'compare')"
    assert told == [f"worker {B}: {why}; install the same version there"]
    dask.says[A] = dask.says[B]
    with pytest.raises(ClusterError) as caught:
        gathered(dask)
    assert str(caught.value) == f"none of the workers of tcp://10.0.0.9:9 can be used: {A}: {why}; {B}: {why}"


def test_a_worker_that_goes_before_it_has_answered_is_not_waited_for():
    dask = Dask(A)
    found, _ = gathered(dask)
    dask.workers[B] = {"resources": {}}
    dask.says[B] = said(B)
    submit = dask.submit
    dask.submit = lambda *given, **more: Future("describe", None, pending=True)
    found.refresh()
    assert B in found._asking
    del dask.workers[B]
    assert found.refresh() == {A}
    assert not found._asking
    dask.submit = submit
    dask.workers[B] = {"resources": {}}
    found.refresh()
    assert set(found.members) == {A, B}


@pytest.mark.parametrize(("more", "words"), [({"revision": "other, revision x"}, "other, revision x"),
                                             ({"model": "NVIDIA L4"}, "NVIDIA L4")])  # fmt: skip
def test_a_worker_that_comes_late_and_does_not_fit_gets_no_seat(more, words):
    dask = Dask(A)
    found, told = gathered(dask)
    dask.workers[B] = {"resources": {}}
    dask.says[B] = said(B, **more)
    found.refresh()
    assert list(found.seats.values()) == [A]
    (text,) = told
    assert text.startswith(f"worker {B}: it came late and does not fit: ")
    assert words in text


def test_other_processes_on_a_card_are_told():
    dask = Dask(A)
    dask.says[A] = said(A, others=2)
    found, told = gathered(dask)
    assert told == ["GPU 1 (hash1): 2 other processes use it; times there mean nothing until they end"]
    assert list(found.seats.values()) == [A]


def test_a_worker_that_cannot_be_made_ready_gets_no_seat_and_the_others_go_on():
    dask = Dask(A)
    found, told = gathered(dask)

    def prepare(member):
        raise OSError("no space left\nat all")

    found.on_join.append(prepare)
    dask.workers[B] = {"resources": {}}
    dask.says[B] = said(B)
    found.refresh()
    assert told == ["GPU 2 (hash2): it could not be made ready (no space left)"]
    assert list(found.seats.values()) == [A]


def test_a_scheduler_that_is_gone_ends_the_run():
    dask = Dask(A, u=("value", None))
    found, _ = gathered(dask)
    dask.status = "closed"
    with pytest.raises(ClusterError, match="the scheduler is gone"):
        run_all(found, ["u"])


def test_without_a_seat_for_long_the_run_ends(monkeypatch):
    dask = Dask(A, u=("value", None))
    found, _ = gathered(dask)
    monkeypatch.setattr(cluster, "JOIN_S", 0.0)
    dask.workers.clear()
    with pytest.raises(ClusterError, match=r"no worker is left, and none came back within 0 s"):
        run_all(found, ["u"])


def test_work_that_the_scheduler_has_forgotten_ends_the_run():
    dask = Dask(A, u=lambda key: Future(key, None, forgotten=True))
    found, _ = gathered(dask)
    with pytest.raises(ClusterError, match="the scheduler has forgotten its work; was it restarted"):
        run_all(found, ["u"])


def test_what_workers_die_of_is_given_up_and_the_rest_is_finished():
    killed = type("KilledWorker", (Exception,), {})
    dask = Dask(A, bad=killed("bad"), good=("value", None))
    found, _ = gathered(dask)
    done, lost = run_all(found, ["bad", "good"])
    assert done == [("good", "value")]
    assert lost == (Lost(name="bad", failures=("workers kept dying with it",)),)
    with pytest.raises(CheckError) as caught:
        cluster.raise_if_lost(lost, "The rest is there.")
    tries = cluster.TRIES
    assert str(caught.value) == (
        f"given up after {tries} attempts each: bad (workers kept dying with it). The rest is there."
    )


def test_what_asks_for_a_fresh_process_again_and_again_is_given_up_after_ten_times_the_tries():
    dask = Dask(A, u=(None, Again("the GPU stopped", "next", "a note")))
    found, _ = gathered(dask)
    notes = []
    done, lost = run_all(found, ["u"], tries=1, on_again=lambda name, note: notes.append((name, note)))
    assert (done, notes) == ([], [("u", "a note")] * 10)
    assert [payload for _, payload, _ in dask.sent] == ["u", *["next"] * 9]
    (one,) = lost
    assert one.failures == ("GPU 1 (hash1): the GPU stopped",)


def test_a_unit_that_has_nowhere_to_go_is_sent_again():
    dask = Dask(A)
    sent = []

    def answer(key):
        sent.append(key)
        if len(sent) == 1:
            dask.stuck = [key]
            return Future(key, None, pending=True)
        dask.stuck = []
        return Future(key, ("value", None))

    dask.units["u"] = answer
    found, _ = gathered(dask)
    assert run_all(found, ["u"]) == ([("u", "value")], ())
    assert [future.key for future in dask.cancelled] == sent[:1]
    assert len(set(sent)) == 2


def test_gpus_of_a_machine_without_one_name_the_other_option(monkeypatch):
    monkeypatch.setattr(driver, "query", lambda: Driver(version="", devices=(), problem="no NVIDIA driver"))
    with pytest.raises(NoDeviceError, match=r"no NVIDIA driver; --gpus needs .*, --scheduler takes others'"):
        cluster.chosen_here("all")


def test_a_locks_file_of_another_user_still_holds_the_gpu(tmp_path, monkeypatch):
    import fcntl
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(driver, "query", lambda: SimpleNamespace(devices=(SimpleNamespace(uuid_hash="abc", index=0),)))
    lock = tmp_path / "gemm-tracks-abc.lock"
    lock.touch()
    real = os.open

    def protected(path, flags, *mode):
        if str(path) == str(lock) and flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "protected", str(path))
        return real(path, flags, *mode)

    monkeypatch.setattr(cluster_workers.os, "open", protected)
    with cluster_workers._alone(), lock.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_without_file_locks_a_unit_still_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setattr(driver, "query", lambda: pytest.fail("nothing is held"))
    with cluster_workers._alone():
        pass


def test_a_program_that_is_not_installed_is_one_by_its_revision(monkeypatch):
    def missing(name):
        raise cluster_workers.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cluster_workers.importlib.metadata, "version", missing)
    monkeypatch.setenv("GEMM_TRACKS_REVISION", "0123456789")
    assert cluster_workers.program() == "not installed, revision 0123456789"


# What a worker does with a group of a comparison, and with a shape of a tuning.


class Here:
    """A place that keeps nothing for later and tells nobody."""

    def tell(self, fraction, text):
        pass

    def keep(self, key, make):
        return make()


def parcel_of(*chosen):
    (group,) = groups(chosen, parse("64x48x32")[0])
    packed = tuple(cluster_builds.Packed(one.name, ("", 0), one) for one in group.contenders)
    short = StoppingRule(min_rounds=3, max_rounds=3)
    settings = dataclasses.replace(
        record(), burst=BurstSettings(stop=short), sustained=SustainedSettings(window_s=0.02, stop=short)
    )
    return cluster_compare.Parcel(
        shape=group.shape, track=group.track, problem=group.problem, contenders=packed, baselines=packed[:1],
        settings=settings, site=HostSite,
    )  # fmt: skip


def test_a_measured_groups_rows_name_the_card_and_bring_its_ceilings_once():
    parcel = parcel_of(CUBLAS, fp32("v2", 2e-3))
    found = cluster_compare.measure_here(parcel, Here())
    assert {row["name"] for row in found.rows} == {"cublas_sgemm", "v2"}
    assert {row["gpu_name"] for row in found.rows} == {"NVIDIA H200"}
    assert all(row["time_us"] for row in found.rows if row["window"] == "burst")
    assert found.card
    assert [one["tflops"] for one in found.ceilings] == [50.0, 800.0]
    assert found.seconds
    known = dataclasses.replace(parcel, ceilings={found.card: found.ceilings})
    again = cluster_compare.measure_here(known, Here())
    assert (again.card, list(again.ceilings)) == ("", [])
    assert {row["ceiling_tflops"] for row in again.rows if row["window"] == "burst"} == {50.0}


def test_checks_on_the_ptx_machine_give_every_contender_a_row_with_its_reason(monkeypatch):
    monkeypatch.setattr("compare.check.CpuExecutor", HostExecutor)
    chosen = (
        CUBLAS, fp32("refusing", 1e-3, refuses="k is odd"), fp32("elsewhere", 1e-3, behaviour="other device"),
        fp32("wrong", 1e-3, behaviour="wrong"),
    )  # fmt: skip
    rows = {row["name"]: row for row in cluster_compare.check_here(parcel_of(*chosen), Here()).rows}
    assert len(rows) == len(chosen)
    assert rows["cublas_sgemm"]["ok"] is True
    assert rows["cublas_sgemm"]["skipped_because"] == cluster_compare.NOT_TIMED
    assert rows["refusing"]["skipped_because"] == "k is odd"
    assert "built for sm_90a" in rows["elsewhere"]["skipped_because"]
    assert rows["wrong"]["ok"] is False
    assert rows["wrong"]["skipped_because"].startswith("failed the check: ")
    assert all(row["time_us"] is None for row in rows.values())


def test_a_shape_that_ends_in_an_error_is_begun_once_more_in_a_fresh_process():
    class Wrong(NoOperands):
        wrong = ("v7_wide_tile",)

    one = tuner(names=("v7_wide_tile",), operands=Wrong)
    (target,) = targets("1024", one.candidates[0])
    parcel = cluster_tune.Parcel(track="fp32_simt", target=target, make=lambda: one)
    with pytest.raises(Again, match="no candidate is right") as caught:
        cluster_tune.tune_here(parcel, Here())
    assert caught.value.payload == dataclasses.replace(parcel, starts=1)
    with pytest.raises(CheckError, match="no candidate is right"):
        cluster_tune.tune_here(caught.value.payload, Here())


def test_a_workers_tuner_has_the_candidates_that_run_there(monkeypatch):
    monkeypatch.setattr(KernelContender, "needs", lambda one: "cupy" if one.name == "v8_stream_k" else "")
    monkeypatch.setattr(CublasContender, "needs", lambda one: "")
    monkeypatch.setattr(cluster_tune, "GpuSite", HostSite)
    chosen = contenders(["v7_wide_tile", "v8_stream_k"])
    unit = "v7_wide_tile_vec4"
    built = {unit: BuildError("no room left"), "v0": MissingToolError("no nvcc")}
    make = cluster_tune.maker("fp32_simt", chosen, ("NVIDIA H200", 132), built)
    assert make.args[3] == {unit: "no room left", "v0": "no nvcc"}
    found = make()
    assert [one.name for one in found.candidates] == ["v7_wide_tile"]
    assert (found.baseline.name, found.track) == (tuning.BASELINES["fp32_simt"], "fp32_simt")
    assert found.bench.facts.name == "NVIDIA H200"
    monkeypatch.setattr(KernelContender, "needs", lambda one: "cupy-cuda13x")
    with pytest.raises(MissingToolError, match="none of the candidates can run here: cupy-cuda13x"):
        make()


def test_a_tuner_leaves_out_the_occupancy_of_who_refuses_the_typical_shape(monkeypatch):
    def refuses(kernel, problem):
        raise RejectedError(f"{kernel.name}: not this one")

    monkeypatch.setattr(tuning, "plan", refuses)
    (one,) = contenders(["v7_wide_tile"])
    found = tuning.tuner_for("fp32_simt", [one], CUBLAS, HostSite(), {})
    assert dict(found.resident) == {}
    assert [c.name for c in found.candidates] == ["v7_wide_tile"]


def test_shapes_that_no_time_is_left_for_are_counted_and_not_begun(tmp_path):
    one = tuner(names=("v7_wide_tile",))
    wanted = targets("1024,512", one.candidates[0])
    scope = SimpleNamespace(wanted=wanted, base=None)
    journal = tuning.Journal(tmp_path / "j.jsonl", "x")
    found, _ = gathered(Dask(A))
    deadline = time.monotonic() + 1e-3
    outcome = cluster_tune.spread(one, scope, journal, tuning.head(one, {}), deadline, found, lambda: one)
    assert (outcome.missing, outcome.table.entries) == (len(wanted), ())
    assert found.client.sent == []


# Builds.


def test_a_worker_without_the_packers_compiler_says_what_it_lacks(monkeypatch):
    def no_packers(chosen):
        raise MissingToolError("g++ was not found")

    monkeypatch.setattr(build, "lookup", lambda unit: None)
    monkeypatch.setattr(cluster_builds, "packers_of", no_packers)
    chosen = contenders(["v0_naive"])
    orders = cluster_builds.orders_for(chosen, ["sm_90a"], ("", 0))
    ceilings = {order.unit for order in orders.values() if order.arch}
    assert ceilings
    assert all(order.resolve().name == name for name, order in orders.items())
    packed = [cluster_builds.pack(one, ("", 0)) for one in chosen]
    assert cluster_builds.lacking_here(list(orders.values()), packed) == [*orders, "g++ was not found"]


def test_what_no_worker_could_build_is_built_here_and_else_named(monkeypatch):
    there = SimpleNamespace()
    found, _ = gathered(Dask(A))
    monkeypatch.setattr(build, "lookup", lambda unit: None)
    monkeypatch.setattr(cluster_builds, "_supplier", lambda *given: lambda member: there)
    monkeypatch.setattr(cluster_builds, "compiler", lambda: "")
    chosen = contenders(["v0_naive"])
    answers = cluster_builds.build_over(found, chosen, [], ("", 0))
    assert answers
    for name, error in answers.items():
        assert str(error) == f"{name}: neither this machine nor any worker can build it"
    monkeypatch.setattr(cluster_builds, "compiler", lambda: "13.0.88")
    monkeypatch.setattr(build, "build_all", lambda units: {unit.name: BuildError("no room left") for unit in units})
    here = cluster_builds.build_over(found, chosen, [], ("", 0))
    assert {name: str(error) for name, error in here.items()} == dict.fromkeys(answers, "no room left")


def test_a_build_whose_worker_was_lost_is_left_to_others(monkeypatch):
    monkeypatch.setattr("distributed.as_completed", list)
    dask = Dask(A)
    dask.says[A]["compiler"] = "13.0.88"
    found, _ = gathered(dask)
    monkeypatch.setattr(cluster_builds, "compiler", lambda: "13.0.88")
    outcomes = iter([LaunchError("the worker died"), (A, BuildError("no room left"))])
    found.submit = lambda function, order, workers: Future(order.unit, next(outcomes))
    orders = {name: cluster_builds.Order(name) for name in ("one", "two")}
    ((name, error),) = cluster_builds._built_by_workers(found, orders, {})
    assert (name, str(error)) == ("two", "no room left")
    assert len(dask.cancelled) == 2


def test_a_bundle_without_packers_is_sent_all_the_same(tmp_path, monkeypatch):
    def no_packers(chosen):
        raise BuildError("g++ failed")

    def write_bundle(units, folder, files):
        assert (list(units), files) == ([], {})
        folder.mkdir()
        (folder / "manifest.json").write_text("{}")
        return folder

    monkeypatch.setattr(cluster_builds, "packers_of", no_packers)
    monkeypatch.setattr(build, "write_bundle", write_bundle)
    sent = []

    def submit(function, *arguments, workers):
        sent.append((function.__name__, arguments, workers))
        return Future("", ["g++ failed"] if function is cluster_builds.lacking_here else None)

    supply = cluster_builds._supplier(SimpleNamespace(submit=submit), [], [], ("", 0))
    supply(SimpleNamespace(address=A))
    supply(SimpleNamespace(address=B))
    installed = [arguments for name, arguments, _ in sent if name == "install_here"]
    with zipfile.ZipFile(io.BytesIO(installed[0][0])) as archive:
        assert archive.namelist() == ["manifest.json"]
    assert installed[0] is not installed[1]
    assert installed[0][0] is installed[1][0], "packed once"
    assert [workers for name, _, workers in sent if name == "install_here"] == [[A], [B]]
