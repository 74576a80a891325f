"""What a killed process, a full disk, a read-only home and hostile files leave behind: nothing lost, nothing stale."""

import errno
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from compare import runs
from compare.checking import run_checks
from compare.cli import main
from compare.rows import row
from kernel import build
from kernel.contract import Unit
from kernel.errors import BuildError, RunFileError
from kernel.machine import engine as engines
from kernel.machine.engine import engine
from kernel.whole_file import replacing, write_text

ROOT = runs.repository()
SOURCE = 'extern "C" __global__ void __launch_bounds__(64) twice(float* p) { p[threadIdx.x] *= 2.0f; }\n'
GOOD = row(name="v0", family="cublas", track="fp32_simt", layout="rr", m=1, n=1, k=1, ok=True, time_us=1.0)
PROVENANCE = {
    "revision": "0123456789",
    "date": "2031-02-03T00:00:00",
    "request": "r",
    "gpu": {"name": "G", "slug": "g"},
}


@pytest.fixture
def unit(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    (tmp_path / "twice.cu").write_text(SOURCE)
    return Unit(name="twice", arch="sm_90a", source=tmp_path / "twice.cu")


def environment(**changes):
    """Without coverage.py in the process: it writes files of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


BUILD = (
    "import sys; from pathlib import Path; from kernel.build import artifact; from kernel.contract import Unit;"
    "print(artifact(Unit(name='twice', arch='sm_90a', source=Path(sys.argv[1]))).cubin)"
)


@pytest.mark.nvcc
def test_a_build_that_is_killed_leaves_nothing_that_is_used(unit, tmp_path):
    """SIGKILL while the compiler runs: no handler, no clean-up."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(unit.source)], env=environment(), start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("cache/artifacts/.making-*/kernel.cu")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert build.lookup(unit) is None
    (left,) = tmp_path.glob("cache/artifacts/.making-*")
    built = build.artifact(unit)
    assert built.cubin.is_file()
    assert left.exists(), "a build that may still be running must not be swept"
    os.utime(left, (1, 1))
    (tmp_path / "twice.cu").write_text(SOURCE.replace("2.0f", "3.0f"))
    assert build.artifact(unit).key != built.key
    assert not left.exists()


def no_room(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.nvcc
@pytest.mark.parametrize("step", ["mkdtemp", "write_text", "write_bytes"])
def test_a_full_disk_fails_that_build_by_name_and_the_next_one_works(unit, tmp_path, monkeypatch, step):
    def make(folder):
        (folder / "kernel.cubin").write_bytes(b"x")

    with monkeypatch.context() as patch:
        patch.setattr(*((build.tempfile, step) if step == "mkdtemp" else (Path, step)), no_room)
        with pytest.raises(BuildError, match=r"No space left on device.*GEMM_TRACKS_CACHE"):
            build.content_folder("artifacts/thing", "key", make)
        results = build.build_all([unit])
        if step != "write_bytes":
            assert isinstance(results["twice"], BuildError)
    assert not list(tmp_path.glob("cache/artifacts/thing-*"))
    assert not list(tmp_path.glob("cache/artifacts/.making-*"))
    assert build.content_folder("artifacts/thing", "key", make).is_dir()
    assert build.artifact(unit).cubin.is_file()


@pytest.mark.parametrize(
    ("log", "free", "says"),
    [
        ("when writing output to : No space left on device", {}, "room to build it in {cache} .No space left.*_CACHE"),
        ("x.s: No space left on device", {"tmp": 0}, "room to build it in {tmp} .No space left on device.*set TMPDIR"),
        ("Failed to preprocess host compiler properties.", {"tmp": 4096}, "room to build it in {tmp} .No space left"),
        ("", {"cache": 0}, "room to build it in {cache} .No space left"),
        ("g++: File size limit exceeded signal terminated", {}, "room to build it in {cache} .File size limit"),
        ("twice.cu(3): error: no such thing", {}, "twice: nvcc refused it: twice.cu.3.: error: no such thing"),
        ("", {}, "twice: nvcc refused it: without a word"),
    ],
)
def test_a_full_disk_is_no_fault_of_the_compiler(tmp_path, monkeypatch, log, free, says):
    places = {name: tmp_path / name for name in ("cache", "tmp")}
    (places["cache"] / "artifacts").mkdir(parents=True)
    places["tmp"].mkdir()
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(places["cache"]))
    monkeypatch.setenv("TMPDIR", str(places["tmp"]))

    def usage(path):
        name = next(name for name, place in places.items() if path.is_relative_to(place))
        return SimpleNamespace(free=free.get(name, 1 << 40))

    monkeypatch.setattr(build.shutil, "disk_usage", usage)
    with pytest.raises(BuildError, match=says.format(**places)) as caught:
        raise build.refusal("twice", "nvcc refused it", log, places["cache"] / "artifacts")
    assert caught.value.log == log


def test_the_machine_s_engine_names_a_full_disk_too(tmp_path):
    call = [sys.executable, "-c", "import sys; sys.exit('a.s: Fatal error: a.o: No space left on device')"]
    with pytest.raises(BuildError, match=r"PTX machine's engine: there is no room to build it in .*No space left"):
        engines._all_of([call], tmp_path)


@pytest.mark.nvcc
def test_a_build_keeps_its_scratch_where_the_next_one_sweeps(unit, tmp_path, monkeypatch):
    seen = []
    run = subprocess.run

    def watched(command, **options):
        seen.append(Path(options["cwd"]))
        return run(command, **options)

    monkeypatch.setattr(build.subprocess, "run", watched)
    built = build.artifact(unit)
    assert [place.parent.name.startswith(".making-") for place in seen] == [True]
    assert seen[0].is_relative_to(tmp_path / "cache")
    assert [path for path in built.folder.rglob("*") if path.is_dir()] == []


@pytest.mark.nvcc
@pytest.mark.slow
def test_a_compiler_that_runs_out_of_room_is_one_line(unit, tmp_path):
    """Files end at 2 kB, for the compiler too: its own complaint is passed on, and nothing half written is kept."""
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); from compare.cli import main;"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = ["run-cpu", str(unit.source), "--grid", "1", "--block", "64", "--arg", "ones:f32:64"]
    full = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert full.returncode in (1, 2)
    assert full.stderr.count("\n") == 1, full.stderr
    assert "Traceback" not in full.stderr
    assert not [path for path in tmp_path.glob("cache/artifacts/*") if (path / ".complete").exists()]
    again = subprocess.run(
        [sys.executable, "-m", "compare", *words], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert again.returncode == 0, again.stderr


def test_a_full_disk_keeps_what_a_run_has_and_says_how_to_go_on(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    writer = runs.RunWriter(folder, PROVENANCE)
    writer.add("first", [GOOD])
    with monkeypatch.context() as patch:
        patch.setattr(runs.os, "fsync", no_room)
        with pytest.raises(RunFileError, match=r"No space left.*1 finished groups.*the same command goes on"):
            writer.add("second", [GOOD])
    again = runs.RunWriter(folder, PROVENANCE)
    assert "first" in again.finished
    again.add("third", [GOOD])
    with monkeypatch.context() as patch:
        patch.setattr(runs.Path, "write_bytes", no_room)
        with pytest.raises(RunFileError, match="No space left"):
            again.finish(complete=True)
    assert (folder / runs.JOURNAL_FILE).is_file()
    assert not list(folder.glob("*.partial"))
    runs.RunWriter(folder, PROVENANCE).finish(complete=True)
    assert len(runs.read_run(folder)[1]) >= 2


@pytest.fixture
def kernel_file(tmp_path):
    (tmp_path / "fill.ptx").write_text(
        ".version 7.0\n.target sm_90\n.address_size 64\n.visible .entry fill(.param .u64 p) { ret; }\n"
    )
    return str(tmp_path / "fill.ptx")


WRITERS = {
    "report --html": lambda out, _: ["report", "latest", "--html", out],
    "report --markdown": lambda out, _: ["report", "latest", "--markdown", out],
    "report --latex": lambda out, _: ["report", "latest", "--latex", out],
    "merge": lambda out, run: ["merge", "latest", run, "--out", out],
    "plot": lambda out, _: ["plot", "latest", "--format", "svg", "--out", out + ".svg"],
    "inspect --svg": lambda out, _: ["inspect", "v2_block_tile", "--svg", out],
    "run-cpu": lambda out, _: ["run-cpu", "FILE", "--grid", "1", "--block", "32", "--arg", f"out:f32:8192:{out}.npy"],
}


@pytest.mark.nvcc
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_older_output_as_it_was(tmp_path, capsys, kernel_file, name):
    """Files end at 4 kB; what is written is longer."""
    recorded = runs.latest()
    other = tmp_path / "other"
    other.mkdir()
    for part in (runs.RUN_FILE, runs.ROWS_FILE):
        (other / part).write_bytes((recorded / part).read_bytes())
    words = WRITERS[name](str(tmp_path / "older"), str(other))
    words = [kernel_file if word == "FILE" else word for word in words]
    older = tmp_path / {"plot": "older.svg", "run-cpu": "older.npy"}.get(name, "older")
    older.write_text("what was here before")
    if name == "plot":
        pytest.importorskip("matplotlib")
    if name == "run-cpu":
        engine()
    before = sorted(tmp_path.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        status = main(words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = capsys.readouterr().err
    assert (status, older.read_text()) == (2, "what was here before"), said
    assert f"{older}: File too large" in said
    assert sorted(tmp_path.iterdir()) == before
    assert main(words) == 0
    assert older.stat().st_size > 4096


def test_a_file_is_replaced_with_its_mode_and_through_a_link_and_a_pipe_is_written_to(tmp_path):
    file, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_text(link, "new")
    assert (file.read_text(), file.stat().st_mode & 0o777, link.is_symlink()) == ("new", 0o640, True)
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    write_text(pipe, "through")
    assert reader.communicate(timeout=20)[0] == "through"
    assert pipe.is_fifo()
    with pytest.raises(OSError, match="no/folder/file") as caught:
        write_text(tmp_path / "no/folder/file", "text")
    assert caught.value.filename == str(tmp_path / "no/folder/file")


def test_a_process_killed_before_its_first_line_blocks_nobody(tmp_path):
    for text in ("", '{"format": 1, "ru'):
        (tmp_path / runs.JOURNAL_FILE).write_text(text)
        assert runs.RunWriter(tmp_path, PROVENANCE).finished == frozenset()
    assert runs.RunWriter(tmp_path, PROVENANCE).finished == frozenset()


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("home", ["/proc/self/no-such-home", "/dev/null"])
def test_a_read_only_home_and_an_unwritable_folder_are_no_obstacle(tmp_path, home):
    clean = {name: value for name, value in os.environ.items() if name not in ("GEMM_TRACKS_CACHE", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-m", "compare", "check", "--device", "cpu", "--kernels", "v0_naive", "--shapes", "5"],
        env={**clean, "HOME": home, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd="/proc",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "1 of 1 checks passed" in done.stdout


# ---------------------------------------------------------------------- files from others


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


def written(folder, **changes):
    runs.RunWriter(folder, {**PROVENANCE, **changes}).finish(complete=True, rows=[GOOD])
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": {"slug": "../../outside", "name": "G"}},
        {"gpu": {"slug": "..", "name": "G"}},
        {"gpu": {"slug": "", "name": "G"}},
        {"gpu": {"name": "G"}},
        {"gpu": "text"},
        {"gpu": None},
        {"revision": "../../../outside"},
        {"revision": "/etc"},
        {"date": "../../x/y/z"},
        {"date": None},
    ],
    ids=str,
)
def test_a_run_from_elsewhere_cannot_name_a_place_outside_results(tmp_path, results, changes):
    folder = written(tmp_path / "sent")
    run = json.loads((folder / runs.RUN_FILE).read_text())
    (folder / runs.RUN_FILE).write_text(json.dumps(run | changes))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunFileError, match=r"names of folders|gpu is 'text'; an object is needed"):
        runs.adopt(folder)
    assert sorted(tmp_path.rglob("*")) == before
    assert runs.adopt(written(tmp_path / "good")).is_relative_to(results.resolve())


@pytest.mark.parametrize("text", ["\x1b[2J", "\x07", "a\x00b", "\x9b31m"])
def test_texts_that_steer_a_terminal_are_refused(tmp_path, text):
    folder = written(tmp_path / "sent")
    run = json.loads((folder / runs.RUN_FILE).read_text())
    (folder / runs.RUN_FILE).write_text(json.dumps(run | {"gpu": {"name": f"H200{text}"}}))
    with pytest.raises(RunFileError, match="control characters"):
        runs.read_run(folder)
    other = written(tmp_path / "other")
    table = (other / runs.ROWS_FILE).read_text().replace("v0", f"v0{text}")
    (other / runs.ROWS_FILE).write_text(table, encoding="utf-8")
    with pytest.raises(RunFileError, match=r"control characters|line contains NUL"):
        runs.read_run(other)


NO_RUNS = [b"\xff\xfe", b"{", b"[]", b"null", b"3", b"[" * 100_000, b'{"format": 1e999}', b'{"format": "1"}']


@pytest.mark.parametrize("content", NO_RUNS, ids=lambda content: repr(content[:20]))
def test_a_file_that_is_no_run_is_one_line(tmp_path, content, capsys):
    folder = written(tmp_path / "sent")
    (folder / runs.RUN_FILE).write_bytes(content)
    for words in (["diff", str(folder), str(folder)], ["plot", str(folder)]):
        assert main(words) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        assert "fault of ours" not in text


CUBE = {"m": 64, "n": 64, "k": 64, "tflops": 1.0, "window": "sustained", "l2": "warm", "input": "uniform"}
ODD_ROWS = [
    {"m": 0, "n": 0, "k": 0},
    {"m": 0},
    {"max_error": -1},
    {"error_bound": -1},
    {"pct_track_peak": -1e308},
    {"pct_fp16_peak": 0},
    {"power_w": -3},
    {"tflops": 1e300},
    {"tflops": 1e-300},
    {"time_us": 1e300},
    {"time_us_p10": -1},
    {"x_cublas_lo": -1},
    {"sm_clock_mhz": 1e300},
    {"occupancy_pct": 101},
    {"registers": -1},
]
ODD_RUNS = [
    {"gpu": "x"},
    {"gpu": ["x"]},
    {"gpu": {"name": ["x"]}},
    {"gpu": {"sm_count": "many"}},
    {"gpu": {"memory_bytes": True}},
    {"date": 3},
    {"partial": {}},
    {"packages": []},
    {"ceilings": {}},
    {"ceilings": ["x"]},
    {"ceilings": [{"track": "fp32_simt"}]},
    {"ceilings": [{"track": "fp32_simt", "instruction": "ffma", "window": "burst", "tflops": 1e308}]},
    {"gpus": [{"index": 0}]},
    {"gpus": [3]},
]
READERS = [
    ["report", "RUN"],
    ["report", "RUN", "--markdown", "-"],
    ["report", "RUN", "--latex", "-"],
    ["report", "RUN", "--html", "OUT/page.html"],
    ["diff", "RUN", "RUN"],
    ["merge", "RUN", "latest"],
    ["plot", "RUN", "-w", "roofline", "-o", "OUT/figure.png"],
]


@pytest.mark.parametrize(
    ("what", "changes"), [*(("row", odd) for odd in ODD_ROWS), *(("run", odd) for odd in ODD_RUNS)], ids=str
)
def test_what_no_run_holds_is_refused_on_reading_by_every_command(tmp_path, what, changes, capsys):
    folder = tmp_path / "sent"
    row_changes, run_changes = ({**changes}, {}) if what == "row" else ({}, changes)
    runs.RunWriter(folder, PROVENANCE).finish(complete=True, rows=[GOOD | CUBE, GOOD | CUBE | row_changes])
    run = json.loads((folder / runs.RUN_FILE).read_text())
    (folder / runs.RUN_FILE).write_text(json.dumps(run | run_changes))
    for words in READERS:
        assert main([word.replace("RUN", str(folder)).replace("OUT", str(tmp_path)) for word in words]) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        assert "fault of ours" not in text
        column = next(iter(changes)) if what == "run" or changes.get("m") != 0 else "nothing to multiply"
        assert column in text
        assert f"{runs.ROWS_FILE}, line 3: v0: " in text or what == "run"


def test_a_product_of_nothing_has_a_row_but_no_rate():
    empty = row(name="v0", family="cublas", track="fp32_simt", layout="rr", m=0, n=0, k=0, ok=True, max_error=0)
    assert runs.parse_rows(runs.format_rows([empty]), "rows.csv")[0]["m"] == 0


@pytest.mark.parametrize("cell", ["６", "1_0", "inf", "nan"])
@pytest.mark.parametrize("column", ["m", "time_us"])
def test_a_cell_that_only_python_would_read_is_no_number(cell, column):
    heads, cells = runs.format_rows([GOOD]).splitlines()
    words = cells.split(",")
    words[heads.split(",").index(column)] = cell
    with pytest.raises(RunFileError, match="line 2: "):
        runs.parse_rows(f"{heads}\n{','.join(words)}\n", "rows.csv")


def test_every_recorded_run_is_possible():
    folders = [path.parent for path in runs.results_root().glob(f"*/*/{runs.RUN_FILE}")]
    assert folders
    for folder in folders:
        assert runs.read_run(folder)[1]


def test_a_run_file_that_cannot_be_read_is_one_line(tmp_path, capsys):
    folder = written(tmp_path / "sent")
    (folder / runs.ROWS_FILE).unlink()
    (folder / runs.ROWS_FILE).mkdir()
    assert main(["diff", str(folder), str(folder)]) == 2
    assert "cannot be read as a run" in capsys.readouterr().err
    if os.getuid() != 0:
        (folder / runs.ROWS_FILE).rmdir()
        written(tmp_path / "locked")
        (tmp_path / "locked" / runs.ROWS_FILE).chmod(0)
        assert main(["diff", str(tmp_path / "locked"), str(folder)]) == 2
        assert "Permission denied" in capsys.readouterr().err


def test_one_bad_neighbour_does_not_hide_the_latest_run(results):
    good = written(results / "nvidia-h200" / "2031-02-03-a")
    (results / "nvidia-h200" / "2031-02-04-b").mkdir(parents=True)
    for content in (b"{", b"[" * 100_000, b"3"):
        (results / "nvidia-h200" / "2031-02-04-b" / runs.RUN_FILE).write_bytes(content)
        assert runs.latest() == good.resolve()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "v0_naive/../../x", "v0_naive;id", "$(id)", "[", "a\nb"]
)
def test_kernel_names_are_looked_up_and_never_opened_or_run(name, capsys):
    for words in (["inspect", name], ["check", "--device", "cpu", "--kernels", name], ["list", "--kernels", name]):
        assert main(words) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        assert "root:" not in text


class Payload:
    def __reduce__(self):
        return os.system, ("touch ran-it",)


@pytest.mark.nvcc
def test_an_argument_file_that_would_run_code_does_not(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.cu").write_text(SOURCE)
    array = np.empty(1, object)
    array[0] = Payload()
    np.save(tmp_path / "evil.npy", array, allow_pickle=True)
    (tmp_path / "plain.npy").write_bytes(pickle.dumps(Payload()))
    for file in ("evil.npy", "plain.npy"):
        assert main(["run-cpu", "twice.cu", "--grid", "1", "--block", "64", "--arg", f"in:{file}"]) == 2
        assert "cannot be read as a .npy file" in capsys.readouterr().err
    assert not (tmp_path / "ran-it").exists()


def test_markup_in_a_name_is_shown_and_not_obeyed(tmp_path, capsys):
    folder = tmp_path / "sent"
    odd = "[bold]v0[/bold]|<script>alert(1)</script>"
    rows = [GOOD | {"name": odd, "window": "burst", "l2": "warm", "input": "uniform", "tflops": 1.0}]
    runs.RunWriter(folder, PROVENANCE).finish(complete=True, rows=rows)
    assert main(["diff", str(folder), str(folder)]) == 0
    assert main(["diff", str(folder), str(folder), "--json"]) == 0
    assert odd in capsys.readouterr().out


@pytest.mark.nvcc
def test_ctrl_c_in_a_check_prints_what_is_done(monkeypatch, capsys):
    from compare import check

    original, calls = check.check_shape, []

    def stopping(*arguments, **options):
        calls.append(1)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(check, "check_shape", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_checks(["v0_naive"], "1,2,3,4,5", "cpu", fuzz=0, seed=0, as_json=False)
    captured = capsys.readouterr()
    assert "3 of 3 checks passed" in captured.out
    assert "stopped after 3 of 5 checks" in captured.err
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        run_checks(["v0_naive"], "", "cpu", fuzz=9, seed=0, as_json=True)
    captured = capsys.readouterr()
    assert json.loads(captured.out)["drawn"] == 3
    assert json.loads(captured.out)["stopped"] is True
    assert "stopped after 3 of 9 problems" in captured.err


def test_an_error_without_a_system_reason_names_the_file_too(tmp_path):
    with pytest.raises(OSError, match=r"kept\.txt: the writer gave up"), replacing(tmp_path / "kept.txt"):
        raise OSError("the writer gave up")
    assert list(tmp_path.iterdir()) == []
