"""Work over several workers: each unit exactly once whatever dies, on a scheduler and workers started by hand."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from compare import cluster, cluster_compare, cluster_tune, driver, runs
from compare.cli import main
from compare.cluster import Work, chosen_devices, open_cluster, run_groups
from compare.contenders import contenders
from compare.driver import Device, Driver
from compare.rows import KEY
from compare.tuner import bursts_of, targets
from kernel.errors import ClusterError, MissingToolError, NoDeviceError, UsageError

pytest.importorskip("distributed")

from tests import cluster_payloads
from tests.test_job import CUBLAS, FP16, fp32, machine  # noqa: F401 - machine is a fixture

ROOT = runs.repository()


class Hands:
    """A scheduler and workers as a person starts them: commands of Dask, nothing of ours."""

    def __init__(self, folder):
        self.folder, self.processes = folder, []
        file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
        deadline = time.monotonic() + 60
        while not file.exists() or not file.read_text().strip():
            assert time.monotonic() < deadline, "the scheduler did not start"
            time.sleep(0.1)
        self.address = json.loads(file.read_text())["address"]

    def worker(self, *more, **environment):
        return self._start("worker", self.address, "--nthreads", "1", "--memory-limit", "0", *more, **environment)

    def _start(self, what, *words, **environment):
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *words, "--no-dashboard"]
        more = {"PYTHONPATH": str(ROOT), "GEMM_TRACKS_TEST_MARKER": str(self.folder / "marker"), **environment}
        log = (self.folder / "dask.log").open("a")
        process = subprocess.Popen(
            command, env={**os.environ, **more}, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
        )
        self.processes.append(process)
        return process

    def stop(self):
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(15)


@pytest.fixture
def hands(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "TICK_S", 0.1)
    monkeypatch.setenv("GEMM_TRACKS_REVISION", "0123456789")
    started = Hands(tmp_path)
    yield started
    started.stop()


def run_logged(hands, tmp_path, what, *, places=2, seconds=0.3, units=6):
    """Runs units of which ``what`` says how some misbehave; (outcomes, lost, log lines, notes of those begun again)."""
    log, done, again, remarks = tmp_path / "log", [], [], []
    log.touch()
    numbers = reversed(range(units))
    work = [Work(name=f"u{i}", payload=(str(log), seconds, what.get(i, "")), cost_s=1 + i) for i in numbers]
    with open_cluster(scheduler=hands.address, cpu=True) as workers:
        deadline = time.monotonic() + 60
        while len(workers.refresh()) < places or len(workers.seats) < places:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        workers.remarks = remarks.append
        lost = run_groups(
            workers, work, cluster_payloads.logged, on_done=done.append,
            on_again=lambda name, note: again.append((name, note)),
        )  # fmt: skip
    return done, lost, log.read_text().splitlines(), again, remarks


@pytest.mark.slow
def test_units_run_once_each_one_at_a_time_on_a_place_in_the_order_given(hands, tmp_path):
    hands.worker("--nthreads", "3")
    hands.worker()
    done, lost, log, _, _ = run_logged(hands, tmp_path, {})
    assert sorted(one.name for one in done) == [f"u{i}" for i in range(6)]
    assert not lost
    assert [one.failures for one in done] == [()] * 6
    assert {line.split()[1] for line in log[:2]} == {"u5", "u4"}
    busy = {}
    for line in log:
        what, name, where = line.split()
        if what == "began":
            assert where not in busy
            busy[where] = name
        else:
            assert busy.pop(where) == name
    assert len({line.split()[2] for line in log}) == 2


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_and_a_unit_that_fails_lose_nothing(hands, tmp_path):
    hands.worker("--no-nanny")
    hands.worker("--no-nanny")
    hands.worker()
    done, lost, log, _, remarks = run_logged(hands, tmp_path, {2: "dies once", 4: "fails once"}, places=3)
    assert Counter(one.name for one in done) == Counter(f"u{i}" for i in range(6))
    assert not lost
    failures = {one.name: one.failures for one in done if one.failures}
    assert set(failures) == {"u2", "u4"}
    assert "worker died" in failures["u2"][0]
    assert "the launch was refused" in failures["u4"][0]
    began = {name: [line.split()[2] for line in log if line.startswith(f"began {name} ")] for name in ("u2", "u4")}
    assert [len(set(places)) for places in began.values()] == [2, 2]
    assert Counter(line.split()[1] for line in log if line.startswith("ended")) == Counter(f"u{i}" for i in range(6))
    assert any("begun again elsewhere" in text for text in remarks)


@pytest.mark.slow
def test_a_spent_process_is_started_afresh_and_what_always_fails_is_given_up(hands, tmp_path):
    hands.worker()
    done, lost, log, again, _ = run_logged(hands, tmp_path, {0: "always fails", 3: "spent once"}, places=1, units=4)
    assert sorted(one.name for one in done) == ["u1", "u2", "u3"]
    assert [one.name for one in lost] == ["u0"]
    assert "the launch was refused" in lost[0].failures[0]
    assert sum(line.startswith("began u0 ") for line in log) == cluster.TRIES
    assert again == [("u3", "note")]
    began = [line.split()[2] for line in log if line.startswith("began u3 ")]
    assert len(set(began)) == 2
    assert next(one for one in done if one.name == "u3").retried_because.endswith("a kernel stopped the GPU")


SHAPES = "17,33x18x17,24x16x8,16x33x5"
KERNELS = "v0_naive,v2_block_tile,v6_transposed_split"


def command(hands, folder, *more):
    words = ["compare", "--scheduler", hands.address, "--cpu"]
    return [*words, "--kernels", KERNELS, "--shapes", SHAPES, "--out", str(folder), *more]


@pytest.mark.nvcc
@pytest.mark.slow
def test_the_command_on_hand_started_workers_loses_nothing_to_a_kill(hands, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cluster_compare, "check_here", cluster_payloads.check_and_die)
    hands.worker("--no-nanny")
    hands.worker("--no-nanny")
    wait_for_workers(hands, 2)
    assert main(command(hands, tmp_path / "run")) == 0
    run, rows = runs.read_run(tmp_path / "run")
    assert (tmp_path / "marker").exists()
    assert run["complete"] is True
    assert run["gpu"]["name"] == "PTX machine"
    assert Counter((row["name"], row["m"]) for row in rows) == Counter(
        (name, m) for name in KERNELS.split(",") for m in (17, 33, 24, 16)
    )
    assert all(row["ok"] and 0 <= row["max_error"] <= row["error_bound"] and row["time_us"] is None for row in rows)
    retried = {row["m"]: row["retried_because"] for row in rows if row["retried_because"]}
    assert set(retried) == {33}
    assert "worker died" in retried[33]
    assert hands.address not in json.dumps(run)
    captured = capsys.readouterr()
    assert "right, not timed" in captured.out
    assert "begun again elsewhere" in captured.err


def wait_for_workers(hands, count):
    from distributed import Client

    with Client(hands.address) as client:
        client.wait_for_workers(count, timeout=60)


@pytest.mark.nvcc
@pytest.mark.slow
def test_a_stopped_run_leaves_the_workers_idle_and_goes_on_by_the_same_command(hands, tmp_path, monkeypatch, capsys):
    hands.worker()
    hands.worker()
    wait_for_workers(hands, 2)
    original, added = runs.RunWriter.add, []

    def stopping(writer, shard, *rest):
        original(writer, shard, *rest)
        added.append(shard)
        if len(added) == 2:
            threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT)).start()  # Ctrl-C

    monkeypatch.setattr(runs.RunWriter, "add", stopping)
    monkeypatch.setattr(cluster_compare, "check_here", cluster_payloads.check_slowly)
    assert main(command(hands, tmp_path / "run")) == 130
    assert "the same command goes on from there" in capsys.readouterr().err
    assert runs.read_run(tmp_path / "run")[0]["complete"] is False
    assert 2 <= len(added) < 4
    assert idle_within(hands, 5.0)
    assert main(command(hands, tmp_path / "run")) == 0
    assert "going on with" in capsys.readouterr().err
    assert len(added) == len(set(added)) == 4
    run, rows = runs.read_run(tmp_path / "run")
    assert run["complete"] is True
    assert [row["m"] for row in rows] == [m for m in (17, 33, 24, 16) for _ in range(3)]


def idle_within(hands, seconds):
    """Whether no worker executes anything any more, at the latest after so long."""
    from distributed import Client

    def executing(dask_worker):
        return len(dask_worker.state.executing)

    with Client(hands.address) as client:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not any(client.run(executing).values()):
                return True
            time.sleep(0.1)
    return False


H200S = tuple(
    Device(ordinal=i, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132, memory_bytes=1, l2_bytes=1, index=i)
    for i in range(4)
)


@pytest.mark.slow
def test_a_cluster_of_this_machines_gpus_shows_each_worker_one_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_REVISION", "0123456789")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setattr(driver, "query", lambda: Driver(version="13.0", devices=H200S, problem=""))
    monkeypatch.setattr(cluster, "describe", cluster_payloads.describe_by_environment)
    monkeypatch.setattr(cluster, "TICK_S", 0.1)
    log = tmp_path / "log"
    log.touch()
    work = [Work(name=f"u{i}", payload=(str(log), 0.8, "")) for i in range(4)]
    done, texts = [], []
    with open_cluster(gpus="3,1") as local:
        assert [one.device.index for one in local.seated()] == [5, 7]
        assert len(local.members) == 3
        processes = list(local.client.run(os.getpid).values())
        assert not run_groups(
            local, work, cluster_payloads.logged, on_done=done.append,
            advance=lambda fraction, text: texts.append(text),
        )  # fmt: skip
    assert {one.place[:5] for one in done} == {"GPU 5", "GPU 7"}
    assert any("GPU 5" in text and "GPU 7" in text and "working" in text for text in texts)
    assert sorted(one.name for one in done) == [f"u{i}" for i in range(4)]
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < deadline, "a worker outlived its cluster"
        time.sleep(0.1)


@pytest.mark.slow
def test_ctrl_c_reaches_the_whole_process_group_and_only_the_command_answers(tmp_path):
    words = ["compare", "--gpus", "all", "--shapes", "32,48,64", "--out", str(tmp_path / "run")]
    code = f"import sys; from tests.cluster_payloads import compare_on_two_cards as f; sys.exit(f({words!r}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GEMM_TRACKS_REVISION": "0123456789"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said = [process.stdout.readline(), process.stdout.readline()]
        assert "2 places" in said[0]
        assert "3 groups to measure over 2 places" in said[1]
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert "the same command goes on from there" in rest
    assert "Traceback" not in rest


@pytest.mark.nvcc
@pytest.mark.slow
def test_a_scheduler_that_goes_away_ends_the_command_and_keeps_what_was_finished(hands, tmp_path, monkeypatch, capsys):
    hands.worker()
    wait_for_workers(hands, 1)
    original = runs.RunWriter.add

    def killing(writer, *entry):
        original(writer, *entry)
        hands.scheduler.kill()

    monkeypatch.setattr(runs.RunWriter, "add", killing)
    monkeypatch.setattr(cluster_compare, "check_here", cluster_payloads.check_slowly)
    began = time.monotonic()
    assert main(command(hands, tmp_path / "run")) == ClusterError.exit_status
    assert time.monotonic() - began < 60
    said = capsys.readouterr().err
    assert "the scheduler is gone" in said
    assert f"kept in {tmp_path / 'run'}; the same command goes on from there" in said
    assert len((tmp_path / "run" / runs.JOURNAL_FILE).read_text().splitlines()) == 2


@pytest.fixture
def cards(hands, machine, monkeypatch):  # noqa: F811 - the fixture of that name
    """Two workers that say they are an H200 each, on which simulated contenders are measured."""
    monkeypatch.setattr(cluster, "describe", cluster_payloads.describe_as_h200)
    monkeypatch.setattr(cluster_compare, "GpuSite", cluster_payloads.CardSite)
    monkeypatch.setattr(cluster_compare, "build_over", lambda workers, chosen, archs, model: {})
    hands.worker()
    hands.worker()
    wait_for_workers(hands, 2)
    root, contenders = machine
    return root, contenders


@pytest.mark.slow
def test_a_record_of_two_cards_has_the_rows_of_one(cards, hands, monkeypatch, capsys):
    root, _ = cards
    assert main(["compare", "--record", "--scheduler", hands.address]) == 0
    out = capsys.readouterr().out
    run, rows = runs.read_run("latest")
    assert run["complete"] is True
    hashes = {row["gpu_uuid_hash"] for row in rows}
    assert len(hashes) == 2
    assert {card["uuid_hash"] for card in run["gpus"]} == hashes
    assert all(card["ceilings"] for card in run["gpus"])
    groups = {}
    for row in rows:
        key = (row["m"], row["n"], row["k"], row["track"], row["layout"], row["dtype_out"])
        groups.setdefault(key, set()).add((row["gpu_uuid_hash"], row["gpu_index"], row["gpu_name"]))
    assert all(len(places) == 1 for places in groups.values())
    assert all(f"{row['gpu_index']} ({row['gpu_uuid_hash'][:6]})" in out for row in rows)
    assert "Ceiling fp32_simt ffma burst: GPU" in out
    assert {one["name"] for one in run["self_tests"]} == {"cublas_sgemm", "cublas_fp16"}
    monkeypatch.setenv("GEMM_TRACKS_RESULTS", str(root / "alone"))
    assert main(["compare", "--record"]) == 0
    _, alone = runs.read_run("latest")
    assert [tuple(row[name] for name in KEY) for row in rows] == [tuple(row[name] for name in KEY) for row in alone]


@pytest.mark.slow
def test_a_kernel_that_stops_a_gpu_keeps_its_row_and_the_group_goes_on(cards, hands, tmp_path, capsys):
    _, contenders = cards
    contenders.append(fp32("v9", 1e-3, behaviour="faults"))
    folder = tmp_path / "kept"
    assert main(["compare", "--shapes", "32,48", "--scheduler", hands.address, "--out", str(folder)]) == 1
    _, rows = runs.read_run(folder)
    faulty = [row for row in rows if row["name"] == "v9"]
    assert [(row["m"], row["ok"]) for row in faulty] == [(32, False), (48, False)]
    assert all("illegal address" in row["skipped_because"] for row in faulty)
    beside = [row for row in rows if row["name"] == "v2" and row["window"] == "burst"]
    assert all(row["time_us"] and "illegal address" in row["retried_because"] for row in beside)
    assert [row["m"] for row in beside] == [32, 48]


def test_a_worker_takes_up_a_shape_after_its_bursts_and_hands_them_over_before(monkeypatch):
    from tests.test_tuner import FAST, THRIFTY, under_a_cap

    notes = []
    one = under_a_cap()
    here = SimpleNamespace(keep=lambda key, make: one, tell=lambda share, what: None, note=notes.append)
    (target,) = targets("4096", one.candidates[0])
    parcel = cluster_tune.Parcel(track="fp32_simt", target=target, make=under_a_cap)
    found, _ = cluster_tune.tune_here(parcel, here)
    (record,) = json.loads(json.dumps(notes))
    assert record["raced"][:2] == [FAST, THRIFTY]
    one = under_a_cap()
    again, _ = cluster_tune.tune_here(dataclasses.replace(parcel, bursts=bursts_of(record)), here)
    assert again.entry.kernel == found.entry.kernel == THRIFTY
    assert len(notes) == 1
    assert not any(isinstance(entry, list) and len(entry) > 1 for entry in one.bench.log), "no race is run again"


TUNED = "4096,1024,512,2048,256,16x4096x4096"


@pytest.mark.slow
def test_tune_spreads_its_shapes_keeps_each_once_and_learns_from_all(hands, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GEMM_TRACKS_TABLES", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(cluster, "describe", cluster_payloads.describe_as_h200)
    monkeypatch.setattr(cluster_tune, "build_over", lambda workers, chosen, archs, model: {})
    monkeypatch.setattr(cluster_tune, "maker", lambda track, candidates, model, built: cluster_payloads.make_tuner)
    hands.worker("--no-nanny")
    hands.worker("--no-nanny")
    wait_for_workers(hands, 2)
    words = ["tune", "--track", "simt", "--shapes", TUNED, "--scheduler", hands.address, "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    wanted = [target.key[:4] for target in targets(TUNED, contenders(["v7_wide_tile"])[0])]
    assert Counter((one["m"], one["n"], one["k"], one["layout"]) for one in answer["entries"]) == Counter(wanted)
    lines = [json.loads(line) for line in (tmp_path / "cache" / "tune" / "nvidia-h200.fp32_simt.jsonl").open()]
    halves = [line["burst"]["m"] for line in lines if "burst" in line]
    assert halves == [4096], "bursts are kept before the sustained final"
    lines = [line for line in lines if "entry" in line]
    assert len(lines) == len(wanted)
    assert {line["entry"]["m"] for line in lines if line["retried_because"]} == {512}
    assert len({line["gpu_uuid_hash"] for line in lines}) == 2
    later = lines[-1]["left_out"]
    assert any("predicted" in reason for reason in later.values()), "what others found is known"
    assert main([*words, "--json"]) == 0
    (again,) = json.loads(capsys.readouterr().out)
    assert again["reused"] == len(wanted)
    assert again["entries"] == answer["entries"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (cluster_payloads.describe_as_other_program, "a run is made by one program"),
        (cluster_payloads.describe_as_two_models, "different GPUs"),
    ],
)
def test_workers_that_do_not_fit_together_are_refused(hands, monkeypatch, said, words):
    monkeypatch.setattr(cluster, "describe", said)
    hands.worker(MODEL="0")
    hands.worker(MODEL="1")
    wait_for_workers(hands, 2)
    with pytest.raises(ClusterError, match=words), open_cluster(scheduler=hands.address):
        pass


@pytest.mark.slow
def test_workers_without_a_gpu_and_a_scheduler_without_workers_are_named(hands, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_S", 2.0)
    with pytest.raises(NoDeviceError, match="dask worker"), open_cluster(scheduler=hands.address):
        pass
    hands.worker()
    wait_for_workers(hands, 1)
    with pytest.raises(NoDeviceError, match="--cpu"), open_cluster(scheduler=hands.address):
        pass
    with pytest.raises(NoDeviceError, match="dask scheduler"), open_cluster(scheduler="tcp://127.0.0.1:9"):
        pass


def test_gpus_are_named_by_ordinal():
    assert chosen_devices("all", H200S) == H200S
    assert chosen_devices("2, 0", H200S) == (H200S[2], H200S[0])


@pytest.mark.parametrize("text", ["", "x", "0,0", "-1", "4", "0,,1"])
def test_gpus_that_are_not_there_are_bad_usage(text):
    with pytest.raises(UsageError, match="--gpus"):
        chosen_devices(text, H200S)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--gpus", "0", "--scheduler", "tcp://127.0.0.1:9"], 2),
        (["--gpus", "first"], 2),
        (["--gpus", "0", "--cpu"], 2),
        (["--cpu"], 2),
        (["--gpus", "0", "--device", "1"], 2),
        (["--record", "--scheduler", "tcp://127.0.0.1:9", "--cpu"], 2),
    ],
)
def test_options_that_do_not_fit_together_are_bad_usage(words, status, capsys):
    assert main(["compare", *words]) == status
    assert "gemm-tracks:" in capsys.readouterr().err


WITHOUT_DASK = """
import sys
sys.modules["distributed"] = sys.modules["dask"] = None
from compare.cli import main
status = main({words!r})
assert not [name for name in sys.modules if name.partition(".")[0] == "dask" and sys.modules[name]]
sys.exit(status)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "--gpus", "all"],
        ["compare", "--scheduler", "tcp://127.0.0.1:9"],
        ["compare", "--record", "--gpus", "0"],
        ["tune", "--gpus", "all"],
    ],
)
def test_without_the_extra_the_options_say_what_to_install(words):
    code = WITHOUT_DASK.format(words=words)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == MissingToolError.exit_status, done.stderr
    assert "pip install 'gemm-tracks[cluster]'" in done.stderr


@pytest.mark.nvcc
def test_without_the_extra_the_command_is_what_it_was():
    code = WITHOUT_DASK.format(words=["compare", "--kernels", "v0_naive", "--shapes", "4096", "--json"])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["built"]


def test_the_command_is_recorded_without_the_address_of_a_network():
    words = ["compare", "--scheduler", "tcp://10.1.2.3:8786", "--scheduler=tcp://10.1.2.3:8786", "--record"]
    assert cluster_compare.without_address(words) == [
        "compare", "--scheduler", "ADDRESS", "--scheduler=ADDRESS", "--record"
    ]  # fmt: skip


def test_contenders_travel_by_name_where_the_catalog_has_them():
    from compare.cluster_builds import pack, suited, unpack
    from compare.contenders import contenders

    h200 = ("NVIDIA H200", 132)
    for name in ("v4_swizzle", "fp16_dispatch", "cublas_sgemm"):
        (mine,) = suited(contenders([name]), h200)
        packed = pack(mine, h200)
        assert packed.itself is None
        assert unpack(packed) == mine
    assert unpack(pack(CUBLAS, h200)) is CUBLAS


@pytest.mark.nvcc
def test_an_artifact_travels_and_is_kept_only_for_its_own_source(tmp_path, monkeypatch):
    import dataclasses

    from compare.building import units_of
    from compare.contenders import contenders
    from kernel import build
    from kernel.errors import BuildError

    unit = next(unit for unit in units_of(contenders(["v0_naive"])) if unit.name.startswith("v0"))
    files = build.packed(build.artifact(unit))
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path))
    assert build.lookup(unit) is None
    kept = build.keep(unit, files)
    assert kept.cubin.read_bytes() == files["kernel.cubin"]
    build._memo.clear()
    assert build.lookup(unit) == kept
    with pytest.raises(BuildError, match="another source"):
        build.keep(dataclasses.replace(unit, catalog="changed"), files)


class Submits:
    """A cluster whose one worker is this process: what is submitted runs at once, in a cache of its own."""

    def __init__(self, folder, monkeypatch, compiler):
        import concurrent.futures

        from compare import cluster_builds

        self.folder, self.monkeypatch, self.done = folder, monkeypatch, concurrent.futures.Future
        member = SimpleNamespace(address="tcp://worker", compiler=compiler)
        self.members, self.on_join, self.called = {"tcp://worker": member}, [], []
        self.client = SimpleNamespace(cancel=lambda futures, force: None)
        monkeypatch.setattr("distributed.get_worker", lambda: member)
        monkeypatch.setattr("distributed.as_completed", list)
        monkeypatch.setattr(cluster_builds, "compiler", lambda: compiler)

    def submit(self, function, *arguments, workers):
        from kernel import build

        assert workers == ["tcp://worker"]
        self.called.append(function.__name__)
        future = self.done()
        bundle = os.environ.get("GEMM_TRACKS_BUNDLE")
        with self.monkeypatch.context() as there:
            there.setenv("GEMM_TRACKS_CACHE", str(self.folder / "worker"))
            build._memo.clear()
            try:
                future.set_result(function(*arguments))
            except Exception as error:
                future.set_exception(error)
            self.worker_bundle = os.environ.get("GEMM_TRACKS_BUNDLE")
        build._memo.clear()
        if bundle is None:
            os.environ.pop("GEMM_TRACKS_BUNDLE", None)
        return future


@pytest.mark.nvcc
def test_a_worker_builds_what_is_fetched_and_is_sent_what_it_lacks(tmp_path, monkeypatch):
    from compare import ceilings, cluster_builds
    from kernel import build
    from kernel.contract import Artifact

    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "here"))
    monkeypatch.setattr(ceilings, "units", lambda arch: [])
    build._memo.clear()
    hands = Submits(tmp_path, monkeypatch, cluster_builds.compiler())
    chosen = contenders(["v0_naive"])
    found = cluster_builds.build_over(hands, chosen, ["sm_90a"], ("", 0))
    assert all(isinstance(one, Artifact) for one in found.values())
    assert {"build_here", "fetch_here", "lacking_here"} == set(hands.called)
    assert hands.called.count("fetch_here") == len(found)
    assert all(str(tmp_path / "here") in str(one.folder) for one in found.values())

    import shutil

    shutil.rmtree(tmp_path / "worker")
    hands.called.clear()
    (supply,) = hands.on_join
    supply(hands.members["tcp://worker"])
    assert hands.called == ["lacking_here", "install_here"]
    assert str(tmp_path / "worker" / "bundles") in hands.worker_bundle

    again = cluster_builds.build_over(hands, chosen, ["sm_90a"], ("", 0))
    assert set(again) == set(found)
    assert hands.called.count("build_here") == 0, "what is here is not built again"


@pytest.mark.nvcc
def test_a_build_that_a_worker_refuses_is_that_units_answer(tmp_path, monkeypatch):
    from compare import ceilings, cluster_builds
    from kernel import build
    from kernel.errors import BuildError

    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "here"))
    monkeypatch.setattr(ceilings, "units", lambda arch: [])
    monkeypatch.setattr(build, "_compile", lambda *_: (_ for _ in ()).throw(BuildError("no room left")), raising=True)
    build._memo.clear()
    hands = Submits(tmp_path, monkeypatch, cluster_builds.compiler())
    found = cluster_builds.build_over(hands, contenders(["v0_naive"]), ["sm_90a"], ("", 0))
    assert all(isinstance(one, BuildError) for one in found.values())


def test_a_gpu_is_held_by_one_process_of_ours_at_a_time(tmp_path, monkeypatch):
    import fcntl
    import tempfile

    from compare import cluster_workers

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    card = SimpleNamespace(uuid_hash="abc", index=0)
    monkeypatch.setattr(driver, "query", lambda: SimpleNamespace(devices=(card,)))
    with cluster_workers._alone():
        (lock,) = tmp_path.glob("gemm-tracks-*.lock")
        with lock.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.chmod(0o444)
    with cluster_workers._alone():
        pass
    monkeypatch.setattr(driver, "query", lambda: SimpleNamespace(devices=()))
    lock.unlink()
    with cluster_workers._alone():
        assert not list(tmp_path.glob("*.lock"))


def test_what_makes_two_processes_one_program_and_what_can_build(monkeypatch):
    from compare import cluster_workers
    from kernel import toolchain

    assert re.fullmatch(r"(\d\S*|not installed), revision \S+", cluster_workers.program())

    def nothing(name):
        raise MissingToolError(f"{name} was not found")

    monkeypatch.setattr(toolchain, "find", nothing)
    assert cluster_workers.compiler() == ""
