"""Every way to ask for something that is not there, or not possible: one line that names it, exit status 2 or 3."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from compare import checking, contenders, driver, pace, runs
from compare.check import CPU_LIMIT_S, CpuExecutor, check_shape, cpu_seconds
from compare.cli import main
from compare.contenders import KernelContender
from compare.shapes import parse
from handwritten import catalog
from handwritten.kernel import HandwrittenKernel
from kernel.errors import CatalogError, UsageError

TWICE = """extern "C" __global__ void twice(float* p, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] *= 2;
}
"""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(driver, "query", lambda: driver.Driver(version="", devices=(), problem="no GPU: none"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to stand in, with a kernel that is right, one that does not compile, and text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.cu").write_text(TWICE)
    (tmp_path / "bad.cu").write_text('extern "C" __global__ void bad(float* p) {\n  nonsense;\n}\n')
    (tmp_path / "text.txt").write_text("hello\n")
    (tmp_path / "v0_naive").mkdir()
    return tmp_path


def error_of(words, capsys):
    """(exit status, the one line on stderr)."""
    status = main(words)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert "fault of ours" not in captured.err
    return status, lines[0]


RUN = ["run-cpu", "twice.cu", "--arg", "ones:f32:10", "--arg", "10"]


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--grid", "0", "--block", "32"], "every extent must be at least 1"),
        (["--grid", "４", "--block", "32"], "one to three numbers are needed"),
        (["--grid", "1", "--block", "3_2"], "one to three numbers are needed"),
        (["--grid", "1x0", "--block", "32"], "every extent must be at least 1"),
        (["--grid", "99999999999", "--block", "32"], "ends at 2147483647 along x"),
        (["--grid", "1x70000", "--block", "32"], "65535 along y and z"),
        (["--grid", "1", "--block", "2000"], "1 to 1024 are possible"),
        (["--grid", "1", "--block", "0"], "1 to 1024 are possible"),
        (["--grid", "1", "--block", "1x1x128"], "at most 64 of them along z"),
        (["--grid", "1", "--block", "32", "--smem", "999999"], "a block can have 232448"),
        (["--grid", "1", "--block", "32", "--arch", "sm_12"], "builds for sm_75"),
        (["--grid", "1", "--block", "32", "--arch", "sm_70"], "--arch sm_70"),
        (["--grid", "1", "--block", "32", "--arch", "nonsense"], "--arch nonsense"),
        (["--grid", "1", "--block", "32", "--symbol", "thrice"], "entries of the file: twice"),
    ],
)
def test_a_launch_that_no_gpu_could_make_is_bad_usage(folder, capsys, words, says):
    status, line = error_of([*RUN, *words], capsys)
    assert status == 2
    assert says in line
    assert main([*RUN, "--grid", "1", "--block", "32"]) == 0


@pytest.mark.nvcc
@pytest.mark.parametrize("command", [["run-cpu", "bad.cu", "--grid", "1", "--block", "32"], ["inspect", "bad.cu"]])
def test_the_compiler_names_the_file_that_the_user_knows(folder, capsys, command):
    status, line = error_of(command, capsys)
    assert status == 1
    assert 'bad.cu(2): error: identifier "nonsense" is undefined' in line
    assert ".making-" not in line
    assert "/tmp" not in line


@pytest.mark.nvcc
def test_inspecting_what_is_no_kernel(folder, capsys):
    assert error_of(["inspect", "text.txt"], capsys) == (
        2,
        "gemm-tracks: text.txt is neither a kernel's name nor a file that ends in .cu, .ptx, .cubin",
    )
    status, line = error_of(["inspect", str(folder)], capsys)
    assert (status, "neither a kernel's name" in line) == (2, True)
    status, line = error_of(["inspect", ""], capsys)
    assert (status, line) == (
        2,
        "gemm-tracks: '' is no name; give a kernel's, as gemm-tracks list prints it, or a file",
    )
    assert main(["inspect", "v0_naive"]) == 0, "a folder of a kernel's name does not hide the kernel"
    capsys.readouterr()
    cubin = contenders.contenders(["v0_naive"])[0].kernel.units()[0]
    from kernel.build import artifact

    status, line = error_of(["inspect", str(artifact(cubin).cubin), "--source"], capsys)
    assert status == 2
    assert "machine code and brings no source; --sass" in line


@pytest.mark.parametrize(
    "words",
    [["compare", "--gpus", ""], ["compare", "--shapes", "", "--json"], ["check", "--device="], ["tune", "-t", ""]],
)
def test_an_option_whose_value_is_empty_is_not_the_default(capsys, words):
    """As from a shell variable that is not set."""
    status, line = error_of(words, capsys)
    assert status == 2
    assert "has an empty value" in line


@pytest.mark.parametrize("given", [",", " , "])
@pytest.mark.parametrize("command", [["list"], ["check", "--device", "cpu"], ["compare"]])
def test_no_name_is_not_every_kernel(capsys, command, given):
    status, line = error_of([*command, "--kernels", given], capsys)
    assert status == 2
    assert "names no kernel" in line


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("v2", "did you mean v2_block_tile?"),
        ("v1", "did you mean v1_thread_tile?"),
        ("v2_blo", "did you mean v2_block_tile?"),
        ("v2_blok_tile", "did you mean v2_block_tile"),
        ("cutlass_simt", "did you mean cutlass_simt_"),
        ("zzz", "see `gemm-tracks list`"),
    ],
)
def test_a_name_that_is_nearly_right_is_told(capsys, given, says):
    status, line = error_of(["list", "--kernels", given], capsys)
    assert status == 2
    assert f"no contender is called '{given}'; {says}" in line


def test_files_that_cannot_be_written_are_named_without_pythons_numbers(folder, capsys):
    (folder / "taken").mkdir()
    for target, says in (("taken", "taken: Is a directory"), ("gone/x.html", "gone/x.html: No such file or directory")):
        assert error_of(["report", "latest", "--html", target], capsys) == (2, f"gemm-tracks: {says}")


@pytest.mark.nvcc
def test_a_cache_that_cannot_be_is_named_by_its_variable(folder, capsys, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(folder / "text.txt"))
    status, line = error_of(["check", "--device", "cpu", "--kernels", "v0_naive", "--shapes", "4"], capsys)
    assert status == 2
    assert "GEMM_TRACKS_CACHE is" in line
    assert "name another, or unset it" in line


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_is_not_unicode_gets_an_answer(encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C", "PYTHONPATH": str(runs.repository())}
    words = [sys.executable, "-m", "compare", "report", "latest"]
    done = subprocess.run(words, env=environment, capture_output=True, check=True)
    assert b"cublas_sgemm" in done.stdout
    assert done.stderr == b""


@pytest.mark.nvcc
def test_files_without_a_kernel(folder, capsys):
    run = ["--grid", "1", "--block", "32"]
    (folder / "empty.cu").write_text("\n")
    (folder / "empty.ptx").write_text(".version 8.0\n.target sm_90a\n.address_size 64\n")
    (folder / "binary.ptx").write_bytes(bytes(range(256)))
    for name in ("empty.cu", "empty.ptx"):
        status, line = error_of(["run-cpu", name, *run], capsys)
        assert (status, "the file has no kernel" in line) == (2, True)
    status, line = error_of(["run-cpu", "binary.ptx", *run], capsys)
    assert (status, "binary.ptx is no text" in line) == (2, True)


def test_the_version_and_revision_are_told(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"gemm-tracks (\d\S*|of a checkout), revision \S+\n", capsys.readouterr().out)


def test_a_draw_and_a_shape_do_not_go_together(capsys):
    status, line = error_of(["check", "--device", "cpu", "--fuzz", "3", "--shapes", "4"], capsys)
    assert status == 2
    assert "--fuzz draws its own problems" in line


@pytest.mark.nvcc
def test_hours_on_the_cpu_are_refused_at_once_and_minutes_announced(capsys, monkeypatch):
    monkeypatch.setattr("compare.room.available", lambda: 2**40)
    assert main(["check", "--device", "cpu", "--kernels", "v2_block_tile", "--shapes", "20000"]) == 3
    captured = capsys.readouterr()
    assert "nothing was checked: about" in captured.err
    assert "h on the PTX machine" in captured.err
    monkeypatch.setattr(checking, "WORTH_SAYING_S", 0.0)
    assert main(["check", "--device", "cpu", "--kernels", "v2_block_tile", "--shapes", "4,20000"]) == 0
    captured = capsys.readouterr()
    assert "2 checks on the CPU" not in captured.err
    assert "1 checks on the CPU, about 0.5 min" in captured.err
    assert "1 of 1 checks passed, 1 refused" in captured.out


@pytest.mark.parametrize(
    "contender", [c for c in contenders.every_contender() if isinstance(c, KernelContender)], ids=lambda c: c.name
)
def test_what_is_expected_on_the_cpu_grows_with_whole_tiles(contender, monkeypatch):
    monkeypatch.setattr(pace, "multiply_add_s", lambda: 2e-9)
    small, large = (contender.problem(side, side, side) for side in (8, 20000))
    assert cpu_seconds(contender, small) < CPU_LIMIT_S < cpu_seconds(contender, large)
    assert cpu_seconds(contender, contender.problem(0, 8, 8)) == 0
    tile = contender.tile
    m, n, k = (max(block, 1) * -(-8 // max(block, 1)) for block in (tile.BLOCK_M, tile.BLOCK_N, tile.BLOCK_K))
    element = pace.ELEMENT if (m, n) == (8, 8) else pace.ELEMENT_OF_EDGE
    expected = 2e-9 * 2 * (m * n * (pace.ratio(contender) * k + element) + pace.ROUND)
    assert cpu_seconds(contender, small) == pytest.approx(expected)
    assert 0.5 < pace.ratio(contender) < 25
    monkeypatch.setattr(pace, "multiply_add_s", lambda: 4e-9)
    assert cpu_seconds(contender, small) == pytest.approx(2 * expected)


@pytest.mark.nvcc
def test_a_catalog_entry_without_its_file_fails_alone_and_by_name(monkeypatch, capsys):
    sound = catalog.get("v1_thread_tile")
    fields = {f.name: getattr(sound, f.name) for f in dataclasses.fields(HandwrittenKernel)}
    missing = KernelContender.of(HandwrittenKernel(**(fields | {"name": "v99_missing"})))
    verdict = check_shape(missing, parse("4")[0], CpuExecutor())
    assert verdict.ok is False
    assert "v99_missing: its source handwritten/v99_missing.cu cannot be read (No such file" in verdict.reason
    both = (KernelContender.of(sound), missing)
    monkeypatch.setattr("compare.checking.contenders", lambda *_: both)
    assert main(["check", "--device", "cpu", "--kernels", "v*", "--shapes", "4"]) == 1
    captured = capsys.readouterr()
    assert "1 of 2 checks passed" in captured.out
    assert "v99_missing.cu cannot be read" in captured.err + captured.out
    monkeypatch.setattr("compare.job.contenders", lambda *_: both)
    assert main(["compare", "--kernels", "v*", "--shapes", "4096", "--json"]) == 1
    built = {row["name"]: row for row in json.loads(capsys.readouterr().out)["built"]}
    assert "cannot be read" in built["v99_missing"]["skipped_because"]
    assert built["v1_thread_tile"]["registers"] > 0


def test_three_names_without_a_view_are_too_many(capsys):
    words = ["inspect", "v0_naive", "v1_thread_tile", "v2_block_tile"]
    status, line = error_of(words, capsys)
    assert status == 2
    assert "3 names were given; one, or two for side by side" in line


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mine.cu", "mine.cu: --races runs a kernel of a catalog; gemm-tracks run-cpu runs a file's"),
        ("cublas_sgemm", "cublas_sgemm: --races runs a kernel of a catalog; a library has no PTX to run"),
    ],
)
def test_races_are_looked_for_in_kernels_of_the_catalog_only(name, says):
    from compare.machine_runs import races_of

    with pytest.raises(UsageError) as caught:
        races_of(name, "")
    assert str(caught.value) == says


def test_pictures_of_what_has_no_lane_map_and_roofs_of_unknown_devices_are_refused(tmp_path, capsys):
    from compare.inspecting import roof_of, write_picture

    nothing = [SimpleNamespace(name=name, lane_map=None) for name in ("a.cubin", "b.cubin")]
    with pytest.raises(UsageError, match=r"a\.cubin, b.cubin: no lane map is known, so there is nothing to draw"):
        write_picture(nothing, tmp_path / "maps.svg")
    assert not (tmp_path / "maps.svg").exists()
    with pytest.raises(
        CatalogError, match=r"the memory bandwidth of 'NVIDIA H300' is not known; known devices: .*H200"
    ):
        roof_of("NVIDIA H300", "fp32_simt")
    assert roof_of("NVIDIA H200", "fp32_simt").tflops == 66.9
