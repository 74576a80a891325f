"""What commands and the pages' programs answer on a terminal and into files, without a GPU."""

import io
import shutil
import subprocess
import sys

import pytest

from compare import bootstrap, console, readme, runs, session, three_ways
from compare.cli import main
from kernel.errors import BuildError, CatalogError, GemmTracksError
from kernel.machine import engine

PLAIN = """extern "C" __global__ void twice(float* p) { p[threadIdx.x] *= 2.0f; }
"""


def test_peaks_in_words(capsys):
    assert main(["peaks", "--gpu", "NVIDIA H200"]) == 0
    text = capsys.readouterr().out
    assert "memory: 4.80 TB/s (datasheet)" in text
    assert "datasheet 66.9 TFLOP/s" in text
    assert "datasheet 989.4 TFLOP/s" in text
    assert "roofline crossover" in text
    assert "ceiling, ffma loop" in text
    assert main(["peaks", "--gpu", "Tesla T4"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Tesla T4")
    assert "ceiling" not in text


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("view", "says"),
    [
        ("--sass", "EXIT"),
        ("--loop", "no loop with FFMA, HMMA or HGMMA was found"),
        ("--mapping", "its lane map is not known"),
        ("--layouts", "only kernels of the CuTe DSL state layouts"),
        ("--ncu", "counters are read for kernels of a catalog only"),
    ],
)
def test_views_of_a_file_that_is_no_gemm(tmp_path, capsys, view, says):
    (tmp_path / "twice.cu").write_text(PLAIN)
    assert main(["inspect", str(tmp_path / "twice.cu"), view]) == 0
    assert says in capsys.readouterr().out


@pytest.mark.nvcc
def test_views_of_ptx_and_of_a_cubin_without_it(tmp_path, capsys):
    from kernel.build import artifact
    from kernel.contract import Unit

    (tmp_path / "twice.cu").write_text(PLAIN)
    built = artifact(Unit(name="file_twice", arch="sm_90a", source=tmp_path / "twice.cu"))
    shutil.copy(built.ptx, tmp_path / "twice.ptx")
    shutil.copy(built.cubin, tmp_path / "alone.cubin")
    assert main(["inspect", str(tmp_path / "twice.ptx"), "--sass"]) == 0
    assert "EXIT" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "alone.cubin"), "--ptx"]) == 2
    assert "there is no PTX beside it" in capsys.readouterr().err


@pytest.mark.nvcc
def test_banks_in_words(capsys):
    assert main(["inspect", "v4_pad", "--banks"]) == 0
    text = capsys.readouterr().out
    assert "LDS" in text
    assert "ideal" in text


class Commands:
    """Stands in for subprocess.run: notes what is called, fails where told to, and makes what venv would make."""

    def __init__(self, folder, refuses=""):
        self.folder, self.refuses, self.called = folder, refuses, []

    def __call__(self, command, **options):
        word = "venv" if "venv" in command else "pip"
        self.called.append(command)
        if word == "venv" and self.refuses != "venv":
            bootstrap.interpreter(self.folder).parent.mkdir(parents=True)
            bootstrap.interpreter(self.folder).touch()
        return subprocess.CompletedProcess(command, int(word == self.refuses))


@pytest.mark.parametrize(("driver", "extras"), [(False, "[dev]"), (True, "[dev,gpu]")])
def test_setup_makes_an_environment_once_and_installs_what_the_machine_can_use(tmp_path, monkeypatch, driver, extras):
    run = Commands(tmp_path / "venv")
    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    monkeypatch.setattr(bootstrap, "is_installed", lambda: driver)
    monkeypatch.setattr(sys, "argv", ["bootstrap", str(tmp_path / "venv")])
    assert bootstrap.main() == 0
    assert bootstrap.main() == 0
    assert ["venv" in command for command in run.called] == [True, False, False]
    assert run.called[1][0] == str(bootstrap.interpreter(tmp_path / "venv"))
    assert run.called[1][-1].endswith(extras)


@pytest.mark.parametrize(
    ("refuses", "says"),
    [("venv", "could not be made"), ("pip", "pip could not install"), ("ensurepip", "python3-venv")],
)
def test_setup_says_what_failed(tmp_path, monkeypatch, capsys, refuses, says):
    monkeypatch.setattr(bootstrap.subprocess, "run", Commands(tmp_path / "venv", refuses))
    if refuses == "ensurepip":
        monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["bootstrap", str(tmp_path / "venv")])
    assert bootstrap.main() == 1
    assert says in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["bootstrap"])
    assert bootstrap.main() == 2


def test_the_pages_are_renewed_as_they_stand(tmp_path, monkeypatch, capsys):
    """`make readme` on a copy changes nothing: the pages are those of the recorded run."""
    source = runs.repository()
    for name in ("README.md", str(readme.CHINESE), str(readme.SIMT_PAGE)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(source / name, tmp_path / name)
    kept = runs.latest()
    copied = tmp_path / "results" / "nvidia-h200"
    shutil.copytree(kept, copied / kept.name)
    (copied / "latest").symlink_to(kept.name)
    monkeypatch.setenv("GEMM_TRACKS_RESULTS", str(tmp_path / "results"))
    assert readme.main(tmp_path / "README.md") == 0
    for name in ("README.md", readme.CHINESE, readme.SIMT_PAGE, readme.ROWS_PAGE, readme.API_PAGE, readme.PICTURE):
        assert (tmp_path / name).read_text(encoding="utf-8") == (source / name).read_text(encoding="utf-8"), name
    assert (copied / "latest" / readme.PAGE).read_bytes() == (kept / readme.PAGE).read_bytes()
    (tmp_path / "README.md").write_text("no markers\n")
    assert readme.main(tmp_path / "README.md") == 2
    assert "lacks the markers" in capsys.readouterr().err


@pytest.mark.nvcc
@pytest.mark.cppgen
@pytest.mark.cute
@pytest.mark.slow
def test_the_page_of_three_ways_is_renewed_as_it_stands(tmp_path, monkeypatch, capsys):
    source = runs.repository() / three_ways.PAGE
    monkeypatch.setattr(three_ways, "PAGE", tmp_path / "page.md")
    shutil.copy(source, tmp_path / "page.md")
    assert three_ways.main(["--keep-times"]) == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == source.read_text(encoding="utf-8")
    (tmp_path / "page.md").write_text("no markers\n")
    assert three_ways.main(["--keep-times"]) != 0
    assert "page.md: " in capsys.readouterr().err


def test_a_session_runs_its_steps_within_its_time_and_keeps_what_they_leave(tmp_path, monkeypatch, capsys):
    def step(name, code, **more):
        return session.Step(name, (sys.executable, "-c", code), 1.0, {}, **more)

    left = tmp_path / "left.json"
    found = [
        step("good", f"open({str(left)!r}, 'w').write('7'); print('five passed')", keep=left),
        step("bad", "import sys; print('one failed'); sys.exit(3)"),
        step("ends", "import sys; print(sys.argv[1:])", ends_by_itself=True),
    ]
    monkeypatch.setattr(session, "steps", lambda names, out: found)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    (earlier / session.LOG).write_text("of before\n")
    words = ["run", "--steps", "good,bad,ends", "--resume", str(earlier)]
    assert session.main([*words, "--seconds", "100"]) == 1
    log = (tmp_path / "out" / session.LOG).read_text()
    assert log.startswith("of before\n")
    assert "=== good" in log
    assert "one failed" in log
    assert "['--seconds', '" in log
    assert (tmp_path / "out" / "left.json").read_text() == "7"
    rows = capsys.readouterr().out.splitlines()[-3:]
    assert [row.split()[:2] for row in rows] == [["good", "0"], ["bad", "3"], ["ends", "0"]]
    assert session.main([*words, "--seconds", "1"]) == 1
    assert capsys.readouterr().out.count("not begun: no time was left") == 3


@pytest.mark.nvcc
def test_a_bundle_is_written_with_its_revision(tmp_path, monkeypatch, capsys):
    from compare import contenders

    few = contenders.contenders(["v0_naive", "cublas_sgemm"])
    monkeypatch.setattr(contenders, "contenders", lambda *given: few)
    monkeypatch.setattr(session, "BUNDLE", tmp_path / "bundle")
    assert session.main(["bundle"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'bundle'}: ")
    assert (tmp_path / "bundle" / runs.REVISION_FILE).read_text().strip() == runs.revision()
    assert '"v0_naive' in (tmp_path / "bundle" / "manifest.json").read_text()


def test_a_compiler_that_refuses_the_engine_is_a_build_error(tmp_path):
    words = [sys.executable, "-c", "import sys; sys.exit('not like this')"]
    with pytest.raises(BuildError, match="the PTX machine's engine: g\\+\\+ refused it: ") as raised:
        engine._all_of([words], tmp_path)
    assert "not like this" in raised.value.log


@pytest.mark.nvcc
def test_the_time_of_a_build_from_nothing_is_taken_or_the_reason_told():
    assert 0.1 < three_ways.compile_seconds("v0_naive") < 120
    with pytest.raises(GemmTracksError, match="no_such_kernel cannot be built here"):
        three_ways.compile_seconds("no_such_kernel")


def test_a_terminal_gets_a_bar_and_a_pipe_a_line_now_and_then(monkeypatch):
    from rich.console import Console

    def told(terminal):
        out = io.StringIO()
        given = Console(file=out, force_terminal=terminal, width=100)
        monkeypatch.setattr(console, "messages", lambda: given)
        with console.progress("building", 4) as advance:
            advance(1, "v0_naive")
            advance(4, "v2_block_tile")
        return out.getvalue()

    assert "building" in told(terminal=True)
    assert told(terminal=False) == ""
    monkeypatch.setattr(console, "SAY_EVERY_S", 0.0)
    assert told(terminal=False) == "building, 25 %: v0_naive\nbuilding, 100 %: v2_block_tile\n"


def test_a_swizzle_is_asked_for_where_there_is_one():
    from cutlass_ref.call import choose

    chosen = choose("float32", "rr", swizzle=4)
    assert chosen.recipe.swizzle == 4
    with pytest.raises(CatalogError, match="swizzle applies to sm80 and SIMT kernels"):
        choose("float16", "rr", swizzle=4)
    variant = "cutlass_fp16_sm90_128x256x64_2x1_cooperative_persistent_rr_rastern8"
    with pytest.raises(CatalogError, match="is a variant of"):
        choose("float16", "rr", kernel=variant, tile={"stages": 3})
