"""The commands as a user meets them: help with examples, one-line errors, exit status, JSON."""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import re
import runpy
import signal
import struct
import subprocess
import sys
import termios

import pytest
import typer

from compare import claims, cli, contenders, driver, inspecting, runs
from compare.cli import app, main
from compare.inspecting import inspection_of
from kernel import toolchain
from kernel.errors import BuildError, MissingToolError, NoDeviceError, UsageError
from tests.rows_for_reports import full_run, timed
from tests.wrong_kernels.catalog import WRONG

ROOT = runs.repository()
COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands)


def gemm_tracks(*words, **environment):
    """Runs a command in a process of its own, from another folder."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-m", "compare", *words], cwd="/", env=env, capture_output=True, text=True, timeout=300
    )


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine whose driver reports no GPU, whatever this one has."""
    monkeypatch.setattr(driver, "query", lambda: driver.Driver(version="", devices=(), problem="no GPU: none"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_that_parses(command, capsys):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    examples = re.findall(rf"^\s+gemm-tracks {command}( .*)?$", text, re.MULTILINE)
    assert examples, text
    for options in re.findall(r"--[a-z-]+", " ".join(examples)):
        assert options in text


def test_commands_are_those_of_the_readme_and_nothing_is_a_stub(capsys):
    assert {"list", "compare", "check", "inspect", "doctor"} <= set(COMMANDS)
    assert main(["--help"]) == 0
    assert "Exit status" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["lisst"], 2, "list"),
        (["list", "--nonsense"], 2, "--nonsense"),
        (["list", "--kernels", "no_such_kernel"], 2, "no_such_kernel"),
        (["compare", "--shapes", "12xfish"], 2, "12xfish"),
        (["inspect", "no_such_kernel"], 2, "no_such_kernel"),
        (["inspect", "no_such_file.cu"], 2, "no_such_file.cu"),
        (["inspect", "no_such_file.cu", "--shape", "64"], 2, "a file has the one it has"),
        (["inspect", "v0_naive", "--shape", "squares"], 2, "--shape 'squares' is a set of 14 shapes, and one is"),
        (["inspect", "v0_naive", "--shape", "64,128"], 2, "--shape '64,128' is 2 shapes, and one is wanted"),
        (["inspect", "v0_naive", "--shape", "64xfish"], 2, "'64xfish' is neither MxNxK"),
        (["inspect", "cublas_sgemm", "--races"], 2, "cublas_sgemm"),
        (["run-cpu", "no_such_file.cu", "--grid", "1", "--block", "32"], 2, "no_such_file.cu"),
        (["run-cpu", __file__, "--grid", "1", "--block", "32"], 2, "neither a .cu nor a .ptx"),
        (["run-cpu", "no_such_file.cu", "--grid", "1,2", "--block", "32"], 2, "--grid '1,2'"),
        (["run-cpu", "no_such_file.cu", "--block", "32"], 2, "--grid"),
        (["check", "--device", "abacus"], 2, "abacus"),
        (["check", "--device", "gpu", "--kernels", "v0_naive"], 3, "no GPU: none; a GPU"),
        (["compare", "--record"], 3, "--record"),
        (["compare", "--record", "--kernels", "v*"], 2, "--record"),
    ],
)
def test_errors_are_one_line_with_their_exit_status(words, status, says, no_gpu, capsys):
    if status == 3 and driver.is_installed():
        pytest.skip("this machine has a GPU")
    assert main(words) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert captured.err.startswith("gemm-tracks: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("error", [UsageError("a\nb"), BuildError("x"), MissingToolError("y"), NoDeviceError("z")])
def test_typed_errors_end_with_their_own_status(error, monkeypatch, capsys):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(cli, "app", fails)
    assert main(["list"]) == error.exit_status
    assert capsys.readouterr().err.count("\n") == 1


def test_a_fault_of_ours_is_one_line_and_a_trace_only_on_request(monkeypatch, capsys):
    def fails(*_, **__):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(cli, "app", fails)
    monkeypatch.delenv("GEMM_TRACKS_DEBUG", raising=False)
    assert main(["list"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    monkeypatch.setenv("GEMM_TRACKS_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["list"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, typer.Abort])
def test_interrupting_says_so(error, monkeypatch, capsys):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(cli, "app", fails)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "gemm-tracks: stopped\n"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "MemoryError"),
        (MemoryError("no room for 9 GiB"), "no room for 9 GiB"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(2, "No such file or directory", "gone"), "gone: No such file or directory"),
    ],
)
def test_what_the_machine_refuses_is_one_line_without_pythons_numbers(error, says, monkeypatch, capsys):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(cli, "app", fails)
    assert main(["list"]) == 2
    assert capsys.readouterr().err == f"gemm-tracks: {says}\n"


def test_a_pipe_that_closes_while_a_command_answers_is_quiet(monkeypatch, tmp_path, capsys):
    def closed(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr(cli, "app", closed)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["list"]) == 0
        out.write("what Python still had to say")
    monkeypatch.undo()
    assert (tmp_path / "out").read_text() == ""
    assert capsys.readouterr().err == ""


def test_a_checkout_that_was_not_installed_has_a_revision_only(monkeypatch, capsys):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gemm-tracks of a checkout, revision {runs.revision()}\n"


@pytest.mark.parametrize(
    ("module", "words", "status"),
    [("compare.bootstrap", [], 2), ("compare.crosscheck", ["--help"], 0), ("compare.experiments", ["--help"], 0)],
)
def test_programs_that_are_modules_tell_their_usage(module, words, status, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [module, *words])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == status
    assert module in "".join(capsys.readouterr())


@pytest.mark.parametrize("words", [["list"], ["report", "latest"], ["report", "latest", "--markdown", "-"]])
def test_a_closed_pipe_is_quiet_whatever_was_still_to_be_written(words):
    line = f"{sys.executable} -m compare {' '.join(words)} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_stopping_while_the_command_line_is_imported_is_quiet(tmp_path):
    """typer's import, here a stand-in that waits, is what takes the first tenth of a second."""
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "compare", "list"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "gemm-tracks: stopped\n")


def test_stopping_a_command_says_so(tmp_path):
    """A command that waits: it reads a run from a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "rows.csv")
    (tmp_path / "run.json").write_text('{"format": 1}')
    command = [sys.executable, "-m", "compare", "report", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        writer = os.open(tmp_path / "rows.csv", os.O_WRONLY)  # opens once the command has come to read
        process.send_signal(signal.SIGINT)
        try:
            _, error = process.communicate(timeout=30)
        finally:
            process.kill()  # where SIGINT is ignored, as in a job that a script put in the background
            os.close(writer)
    assert (process.returncode, error) == (130, "gemm-tracks: stopped\n")


def test_without_a_command_the_help_is_the_answer(capsys):
    assert main([]) == 2
    text = "".join(capsys.readouterr())
    assert text.startswith("Usage: gemm-tracks ")
    assert "doctor" in text


def test_list_as_json_names_every_contender_and_its_tile():
    done = gemm_tracks("list", "--json", "--kernels", "v2_block_tile")
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(done.stdout)
    assert entry["name"] == "v2_block_tile"
    assert entry["tile"]["BLOCK_M"] == 128
    assert entry["family"] == "handwritten"


def on_terminal(columns, *words):
    """What a command prints on a terminal of so many columns, without colours."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    env |= {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    command = [sys.executable, "-m", "compare", *words]
    with subprocess.Popen(command, cwd="/", env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        parts = []
        with contextlib.suppress(OSError):  # how Linux says that the other end of a terminal was closed
            while part := os.read(ours, 65536):
                parts.append(part)
    os.close(ours)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(parts).decode()).replace("\r", "")


def test_one_contender_is_one(capsys):
    assert main(["list", "--kernels", "v0_naive"]) == 0
    assert capsys.readouterr().out.endswith("\n1 contender\n")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_list_fits_the_terminal_with_whole_cells(columns):
    every = contenders.contenders()
    lines = on_terminal(columns, "list").splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[-1] == f"{len(every)} contenders"
    head = next(line for line in lines if "name" in line)
    at = head.index("track")
    body = lines[lines.index(head) + 2 : -1]
    names = "".join(line[:at].strip().partition("  ")[0] for line in body)
    shown = [line for line in body if line[at : at + len("fp32_simt")].strip() and "left out" not in line]
    assert len(shown) == len(every)
    for line, contender in zip(shown, every, strict=True):
        cells = line[at:].split()
        assert cells[:2] == [contender.track, str(contender.tile)]
        assert contender.name in names
    assert ("layouts" in head) == (columns == 120)


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m compare list | head -n 1",
        shell=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("name")
    assert done.stderr == ""


@pytest.mark.nvcc
def test_without_a_gpu_compare_builds_and_joins_the_recorded_run(no_gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GEMM_TRACKS_RESULTS", str(tmp_path))
    assert main(["compare", "--kernels", "v0_naive,v1_thread_tile", "--shapes", "4096"]) == 0
    out = capsys.readouterr().out
    assert "v1_thread_tile" in out
    assert "No recorded run" in out
    assert f"nvidia-h200/ of {tmp_path}, which GEMM_TRACKS_RESULTS names" in out

    provenance = {
        "gpu": {"name": "Some GPU", "slug": "nvidia-h200", "sm_count": 7},
        "date": "2031-02-03",
        "revision": "r",
    }
    writer = runs.RunWriter(tmp_path / "nvidia-h200" / "2031-02-03-r", provenance)
    writer.add("a", full_run())
    runs.make_latest(writer.finish(complete=True))
    assert main(["compare", "--kernels", "v0_naive", "--shapes", "4096"]) == 0
    out = capsys.readouterr().out
    assert "RECORDED, not measured here: Some GPU (7 SMs), 2031-02-03" in out
    assert "v0_naive" in out
    assert "v7_best" not in out.partition("RECORDED")[2].partition("Same track")[0]
    assert main(["compare", "--kernels", "v0_naive", "--shapes", "4096@input=zeros@beta=2"]) == 3
    streams = capsys.readouterr()
    assert "not recorded with these options: 4096x4096x4096@beta=2.0@input=zeros; that needs a GPU" in streams.err
    assert "RECORDED" not in streams.out
    assert main(["compare", "--kernels", "v0_naive", "--shapes", "4096,4096@layout=rc"]) == 0
    streams = capsys.readouterr()
    assert "not recorded with these options, so a GPU is needed: 4096x4096x4096@layout=rc" in streams.err
    assert main(["compare", "--kernels", "v0_naive", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["recorded"] is True
    assert answer["run"]["gpu"]["name"] == "Some GPU"
    assert {row["name"] for row in answer["built"]} == {"v0_naive"}


@pytest.mark.nvcc
def test_inspect_says_which_of_several_loops_with_products_it_prints(capsys):
    assert main(["inspect", "h0_mma_sync", "--loop"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert re.match(
        r"h0_mma_sync: of 2 loops with products the one at (\w+), which did 71\.4 % of the executed block's", first
    )
    printed = [line for line in lines if line.startswith("/*")]
    assert printed[0].startswith(f"/*{first.split(' at ')[1].split(',')[0]}*/")
    assert sum("LDGSTS" in line for line in printed) == 12
    assert "@P" not in "".join(line for line in printed if "LDGSTS" in line)
    assert main(["inspect", "v6_transposed_split", "--loop"]) == 0
    assert capsys.readouterr().out.startswith("/*")


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("words", "shows"),
    [
        ([], ("registers", "spilled bytes", "static shared memory", "occupancy", "FFMA")),
        (["v1_thread_tile"], ("v0_naive", "v1_thread_tile", "registers")),
        (["--source"], ("__global__",)),
        (["--ptx"], (".visible .entry v0_naive", "fma.rn.f32")),
        (["--sass"], ("FFMA", "EXIT")),
        (["--loop"], ("FFMA", "per k step")),
        (["--mapping"], ("lane",)),
    ],
)
def test_inspect_shows_what_it_is_asked_for(words, shows, capsys):
    assert main(["inspect", "v0_naive", *words]) == 0
    text = capsys.readouterr().out
    for word in shows:
        assert word in text
    assert ("fma.rn.f32" in text) == ("--ptx" in words)


@pytest.mark.nvcc
def test_inspect_answers_in_json_and_without_a_profiler_still_exits_with_0(capsys, monkeypatch):
    assert main(["inspect", "v0_naive", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["resources"]["registers"] > 0
    monkeypatch.setattr(driver, "query", lambda: driver.Driver(version="13.0", devices=(), problem=""))
    monkeypatch.setenv("PATH", "/nowhere")
    toolchain.find.cache_clear()
    assert main(["inspect", "v0_naive", "--ncu"]) == 0
    toolchain.find.cache_clear()
    assert "not available: tool" in capsys.readouterr().out


@pytest.mark.nvcc
def test_counters_without_a_gpu_are_a_need_and_the_rest_is_shown(no_gpu, capsys):
    assert main(["inspect", "v0_naive", "--ncu"]) == 3
    captured = capsys.readouterr()
    assert "registers" in captured.out
    assert "shared loads, bank conflicts" in captured.out
    assert "v0_naive: counters not available: gpu: no GPU: none" in captured.out
    assert captured.err.startswith("gemm-tracks: no GPU: none; --ncu needs a GPU and Nsight Compute (ncu).")
    assert captured.err.count("\n") == 1
    assert main(["inspect", "v0_naive", "--ncu", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert answer["counters"]["not_available"] == "gpu: no GPU: none"
    assert answer["resources"]["registers"] > 0


COPY4 = ["--symbol", "copy4", "--grid", "1", "--block", "32x1"]
GEMM = ["--symbol", "gemm", "--grid", "2x2", "--block", "16x16"]


@pytest.mark.nvcc
def test_run_cpu_runs_a_file_and_exits_with_1_where_it_finds_a_fault(tmp_path, capsys):
    file = str(ROOT / "tests" / "machine_kernels" / "double_buffer.cu")
    arguments = [f"--arg={text}" for text in ("ones:f32:64", f"out:f32:64:{tmp_path / 'y.npy'}", "16")]
    assert main(["run-cpu", file, *COPY4, *arguments]) == 0
    text = capsys.readouterr().out
    assert "copy4: no faults; 1 of 1 blocks" in text
    assert "argument 1, float32 64: 1 1 1" in text
    assert (tmp_path / "y.npy").is_file()
    assert main(["run-cpu", file, *COPY4, "--arg", "ones:f32:63", "--arg", "out:f32:64", "--arg", "16"]) == 1
    text = capsys.readouterr().out
    assert "read of 16 bytes out of bounds by thread (15, 0, 0)" in text
    assert "PTX line" in text
    assert main(["run-cpu", file, *COPY4, "--arg", "1"]) == 2
    assert "takes 3 parameters of 8, 8, 4 bytes; 1 were given" in capsys.readouterr().err
    assert main(["run-cpu", file, *COPY4, "--arg", "-1", "--arg", "seven", "--arg", "16"]) == 2
    assert "'seven' is neither a number nor a buffer" in capsys.readouterr().err


@pytest.mark.nvcc
def test_run_cpu_answers_in_json(capsys):
    file = str(ROOT / "tests" / "machine_kernels" / "double_buffer.cu")
    good = [f"--arg={text}" for text in ("ones:f32:50x20", "ones:f32:20x40", "out:f32:50x40", "50", "40", "20")]
    assert main(["run-cpu", file, *GEMM, *good, "--json", "--strict"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["kernel"] == "gemm"
    assert answer["faults"] == []
    assert answer["blocks"] == answer["blocks_in_grid"] == 4
    assert answer["fma"] == 4 * 256 * 4 * 24
    assert answer["buffers"][2]["shape"] == [50, 40]
    assert answer["buffers"][2]["first"] == [20.0] * 8
    bad = [*good[:2], "--arg=out:f32:50x39", *good[3:]]
    assert main(["run-cpu", file, *GEMM, *bad, "--json"]) == 1
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert {fault["kind"] for fault in faults} == {"out of bounds"}
    assert all("st.global.f32" in fault["instruction"] for fault in faults)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize("words", ["report latest", "list --json", "inspect no_such_kernel"])
def test_a_stream_that_is_closed_from_the_start_is_no_fault(words, closed):
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m compare {words} {closed}"],
        capture_output=True, text=True, timeout=60, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    failing = words.startswith("inspect")
    assert done.returncode == (2 if failing else 0), done.stderr
    assert bool(done.stderr) == (failing and "2>&-" not in closed)
    assert bool(done.stdout) == (not failing and not closed.startswith(">"))


@pytest.mark.nvcc
@pytest.mark.parametrize("command", ["inspect", "run-cpu"])
def test_an_opcode_that_the_machine_lacks_is_a_need_and_no_fault(capsys, tmp_path, command):
    file = tmp_path / "odd.ptx"
    file.write_text(
        ".version 8.6\n.target sm_90a\n.address_size 64\n.visible .entry odd() { barrier.cluster.arrive; ret; }\n"
    )
    words = {
        "inspect": ["inspect", "v11_small", "--races"],
        "run-cpu": ["run-cpu", str(file), "--grid", "1", "--block", "32"],
    }[command]
    assert main(words) == 3
    assert "the PTX machine lacks opcode" in capsys.readouterr().err


@pytest.mark.nvcc
def test_inspect_races_runs_the_kernel_and_exits_with_1_on_a_fault(capsys, monkeypatch):
    assert main(["inspect", "v3_double_buffer", "--races"]) == 0
    assert "no race, no fault of any other kind" in capsys.readouterr().out
    assert main(["inspect", "v3_double_buffer", "--races", "--shape", "35x79x19", "--json"]) == 0
    races = json.loads(capsys.readouterr().out)["races"]
    assert (races["m"], races["n"], races["faults"]) == (35, 79, [])
    file = str(ROOT / "tests" / "machine_kernels" / "double_buffer.cu")
    assert main(["inspect", file, "--races"]) == 2

    wrong = next(wrong for wrong in WRONG if wrong.kernel.name == "misses_a_barrier")
    monkeypatch.setattr(inspecting, "inspection_of", lambda *_: inspection_of("v0_naive", ""))
    monkeypatch.setattr(contenders, "contenders", lambda *_: (wrong.contender,))
    assert main(["inspect", "misses_a_barrier", "--races"]) == 1
    assert "race: thread" in capsys.readouterr().out


@pytest.mark.nvcc
def test_what_the_machine_passed_over_is_noted_beside_its_verdict(capsys):
    from compare.console import answers
    from compare.machine_runs import print_races, races_of

    outcome = races_of("v0_naive", "5x4x3")
    outcome.reports[0].notes.append("L2 hints do nothing here")
    print_races("v0_naive", outcome, answers())
    note, verdict = capsys.readouterr().out.splitlines()
    assert note == "note: L2 hints do nothing here"
    assert verdict == "v0_naive, C of 5x4, 1 blocks: no race, no fault of any other kind"


def test_peaks_state_dense_rates_and_refuse_an_unknown_device(no_gpu, capsys):
    assert main(["peaks", "--json"]) == 0
    tracks = {track["track"]: track for track in json.loads(capsys.readouterr().out)["tracks"]}
    assert [round(tracks[name]["datasheet_tflops"], 1) for name in ("fp32_simt", "tf32_tensor", "fp16_tensor")] == [
        66.9,
        494.7,
        989.4,
    ]
    assert main(["peaks", "--gpu", "NVIDIA Imagined 9000"]) == 2
    assert "Imagined" in capsys.readouterr().err


def test_claims_answer_in_json_and_end_with_1_where_one_no_longer_holds(capsys, monkeypatch):
    assert main(["claims", "crossover", "smem-bytes", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [claim["id"] for claim in answer["claims"]] == ["crossover", "smem-bytes"]
    assert all({"section", "verdict", "value", "method", "run"} <= set(claim) for claim in answer["claims"])
    assert main(["claims", "no-such-claim"]) == 2
    assert main(["claims", "crossover", "--write-docs"]) == 2
    monkeypatch.setattr(claims, "stopped_holding", lambda results: tuple(results))
    assert main(["claims", "crossover"]) == 1
    assert "no longer does: crossover" in capsys.readouterr().err


def test_diff_exits_with_1_on_a_regression_only(tmp_path, capsys):
    def record(name, slower):
        writer = runs.RunWriter(tmp_path / name, {"gpu": {"name": "g"}, "date": "2031-02-03", "revision": name})
        key = {"name": "v2", "m": 64, "n": 64, "k": 64, "layout": "rr", "dtype_in": "float32", "dtype_out": "float32"}
        row = timed(
            "v2", "handwritten", "fp32_simt", 10.0 / slower, shape=(64, 64, 64), window="burst", sm_clock_mhz=1980.0
        )
        times = [row["time_us"] * (1 + 0.0001 * i) for i in range(20)]
        writer.add("a", [row], [{**key, "input": "uniform", "window": "burst", "l2": "warm", "time_us": times}])
        writer.finish(complete=True)
        return str(tmp_path / name)

    same, again, slow = record("a", 1.0), record("b", 1.0), record("c", 1.2)
    assert main(["diff", same, again]) == 0
    assert "1 same" in capsys.readouterr().out
    assert main(["diff", same, slow]) == 1
    assert "slower" in capsys.readouterr().out
    assert main(["diff", same, str(tmp_path / "none")]) == 2


def test_nothing_is_written_into_the_current_folder(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in (["list"], ["doctor"], ["--help"], ["inspect", "no_such"]):
        subprocess.run(
            [sys.executable, "-m", "compare", *words], cwd=tmp_path, env=env, capture_output=True, check=False
        )
    assert list(tmp_path.iterdir()) == []


def test_a_check_in_which_nothing_can_run_does_not_pass(capsys):
    assert main(["check", "--device", "cpu", "--kernels", "cublas*", "--shapes", "5x5x5"]) == 3
    assert "runs on a GPU only" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_bad_usage(tmp_path, capsys):
    missing = tmp_path / "no" / "such" / "lanes.svg"
    assert main(["inspect", "v4_pad", "--mapping", "--svg", str(missing)]) == 2
    text = capsys.readouterr().err
    assert str(missing) in text
    assert "fault of ours" not in text
    there = tmp_path / "lanes.svg"
    assert main(["inspect", "v4_pad", "--mapping", "--svg", str(there)]) == 0
    assert re.sub(r"\s", "", capsys.readouterr().err) == f"wrote{there}"
    assert there.read_text().startswith("<svg")


@pytest.mark.nvcc
def test_a_kernel_that_does_not_compile_fails_alone(tmp_path):
    import dataclasses

    from compare.check import CpuExecutor, check_contender
    from compare.contenders import contenders
    from kernel.contract import Unit

    (sound,) = contenders(["v1_thread_tile"])
    source = tmp_path / "broken.cu"
    source.write_text("nonsense;")
    unit = Unit(name="broken", arch="sm_90a", source=source)

    class Broken(type(sound.kernel)):
        def launches(self, problem):
            return tuple(dataclasses.replace(launch, unit=unit) for launch in super().launches(problem))

    fields = {f.name: getattr(sound.kernel, f.name) for f in dataclasses.fields(sound.kernel)}
    broken = dataclasses.replace(sound, kernel=Broken(**fields))
    verdict = check_contender(broken, broken.problem(5, 5, 5), CpuExecutor())
    assert verdict.ok is False
    assert "refused it" in verdict.reason
    assert check_contender(sound, sound.problem(5, 5, 5), CpuExecutor()).ok
