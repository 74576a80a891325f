"""Kernels of the user's by ``--with``: right ones pass like a catalog's, everything else gets one clear line."""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from compare import driver, job, runs
from compare.building import build, built_rows
from compare.cli import main
from compare.contenders import contenders
from compare.own_kernels import GRIDS, PITCHED, PLAIN, WORDS, OwnOptions, plain_name, takes_pitches
from kernel.contract import FAMILIES, Problem
from kernel.errors import GemmTracksError, UsageError

SMALL = Path(__file__).parent / "own_kernels" / "small.cu"
PAGE = runs.repository() / "docs/own_kernels.md"
SHAPES = "35x79x19,9x48x16@alpha=0.5@beta=3.0,18x33x13@pad_a=3@pad_b=1@pad_c=2"

pytestmark = pytest.mark.nvcc


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(driver, "query", lambda: driver.Driver(version="", devices=(), problem="no GPU: none"))


def own(symbol, **options):
    (contender,) = OwnOptions(SMALL, symbol, **{"tile": "16x16", **options}).contenders()
    return contender


def check(capsys, symbol, *words, shapes=SHAPES):
    """Exit status and verdicts of a check on the PTX machine."""
    chosen = ["--with", str(SMALL), "--symbol", symbol, "--tile", "16x16"]
    status = main(["check", "-d", "cpu", "--json", "-s", shapes, *chosen, *words])
    return status, json.loads(capsys.readouterr().out)


def refusal(capsys, *words):
    """Exit status of a check and the one line it prints."""
    status = main(["check", "-d", "cpu", "-s", "35x79x19", *map(str, words)])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return status, captured.err


@pytest.mark.parametrize(
    ("symbol", "words"),
    [
        ("plain_sgemm", ["--threads", "16x16"]),
        ("turned_sgemm", ["--grid", "yx"]),
        ("_Z12turned_sgemmPKfS0_Pfiiiff", ["--grid", "yx"]),
    ],
)
def test_a_right_kernel_without_pitches_passes_and_refuses_gaps_by_name(symbol, words, capsys):
    status, verdicts = check(capsys, symbol, *words)
    assert status == 0
    assert [verdict["ok"] for verdict in verdicts] == [True, True, None]
    assert verdicts[2]["skipped_because"].startswith("lda = 16; ")
    assert "13 is needed" in verdicts[2]["skipped_because"]


def test_a_right_kernel_with_pitches_passes_everywhere_beside_others(capsys):
    status, verdicts = check(capsys, "pitched_sgemm", "--grid", "linear", "--kernels", "v0_naive")
    assert status == 0
    assert [verdict["ok"] for verdict in verdicts] == [True] * 6
    assert {verdict["contender"] for verdict in verdicts} == {"pitched_sgemm", "v0_naive"}


def test_the_whole_small_set_passes(capsys):
    status, verdicts = check(capsys, "pitched_sgemm", "--grid", "linear", shapes="small")
    assert status == 0
    assert all(verdict["ok"] for verdict in verdicts)


def test_a_wrong_grid_is_wrong(capsys):
    status, verdicts = check(capsys, "pitched_sgemm", "--grid", "xy", shapes="35x79x19")
    assert status == 1
    assert verdicts[0]["ok"] is False


def test_a_transposed_result_and_a_missing_tail_are_wrong(capsys):
    status, verdicts = check(capsys, "transposed", shapes="35x79x19")
    assert (status, verdicts[0]["ok"]) == (1, False)
    assert verdicts[0]["first_bad"] == [0, 1]
    status, verdicts = check(capsys, "without_tail")
    assert status == 1
    assert [verdict["ok"] for verdict in verdicts] == [False, True, None]


def test_multiples_and_alignment_that_are_stated_are_refused_rather_than_wrong(capsys):
    status, verdicts = check(capsys, "without_tail", "--multiples", "1x1x16", "--align", "16")
    assert status == 0
    assert [verdict["ok"] for verdict in verdicts[:2]] == [None, True]
    assert "k = 19 is no multiple of 16" in verdicts[0]["skipped_because"]
    aligned = own("without_tail", align=16)
    assert "--align" in aligned.rejects(aligned.problem(16, 16, 16, align_b=8))


def test_random_problems_are_those_that_it_takes_and_a_failure_can_be_repeated(capsys):
    words = ["check", "-d", "cpu", "--json", "--with", str(SMALL), "--tile", "16x16", "--fuzz", "8", "--symbol"]
    assert main([*words, "without_tail", "--multiples", "1x1x16"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]["without_tail"] >= 4
    assert main([*words, "transposed"]) == 1
    failures = json.loads(capsys.readouterr().out)["failures"]
    command = shlex.split(failures[0]["command"])
    assert main(command[1:]) == 1
    assert "FAILED" in capsys.readouterr().out
    words.remove("--json")
    assert main([*words, "transposed"]) == 1
    told = capsys.readouterr().out
    assert f"and failed {len(failures)}x, transposed: largest error" in told
    assert told.endswith(f"{len(failures)} failures\n")
    commands = [line.removeprefix("  repeat with: ") for line in told.splitlines() if line.startswith("  repeat with")]
    assert sorted(commands) == sorted({failure["command"] for failure in failures})


@pytest.mark.parametrize(
    ("symbol", "words", "says"),
    [
        ("scalars_first", [], ["takes (int, int, int, float,", "long long lda, long long ldb, long long ldc, float"]),
        ("in_doubles", [], ["int, double, double)", "int k, float alpha, float beta) and"]),
        ("missing", [], ["small.cu", "'missing'", "plain_sgemm", "without_tail"]),
        (" ", [], ["--symbol ' '", "a kernel's name is needed"]),
        ("", [], ["--symbol has an empty value"]),
        ("plain sgemm()", [], ["--symbol 'plain sgemm()'"]),
        ("v0_naive", [], ["v0_naive is the name of a kernel in the catalog"]),
        ("dynamic", [], ["--smem"]),
        ("dynamic", ["--smem", "999999"], ["--smem 999999", "232448"]),
        ("pitched_sgemm", ["--threads", "512"], ["bounded to 256 threads, 512"]),
        ("plain_sgemm", ["--threads", "2000"], ["--threads 2000", "1024"]),
        ("plain_sgemm", ["--threads", "1x1x128"], ["64 along z"]),
        ("plain_sgemm", ["--threads", "0"], ["--threads '0'"]),
        ("plain_sgemm", ["--tile", "0x16"], ["--tile '0x16'"]),
        ("plain_sgemm", ["--tile", "16"], ["--tile '16'", "128x128x16"]),
        ("plain_sgemm", ["--tile", "16x9999"], ["4096"]),
        ("plain_sgemm", ["--grid", "zz"], ["--grid zz", "linear"]),
        ("plain_sgemm", ["--multiples", "16"], ["--multiples '16'"]),
        ("plain_sgemm", ["--align", "12"], ["--align 12", "power of two"]),
    ],
)
def test_what_cannot_be_is_one_line_with_status_2(symbol, words, says, capsys):
    status, line = refusal(capsys, "--with", SMALL, "--tile", "16x16", "--symbol", symbol, *words)
    assert status == 2
    for text in says:
        assert text in line


def test_the_file_itself_may_be_what_is_wrong(tmp_path, capsys):
    bad = tmp_path / "crooked.cu"
    bad.write_text('extern "C" __global__ void crooked(float* p) {\n  nonsense;\n}\n')
    status, line = refusal(capsys, "--with", bad, "--tile", "16x16")
    assert status == 1
    assert "crooked.cu(2): error" in line
    assert refusal(capsys, "--with", tmp_path / "absent.cu", "--tile", "16x16")[0] == 2
    assert "a .cu file" in refusal(capsys, "--with", __file__, "--tile", "16x16")[1]
    assert "--tile" in refusal(capsys, "--with", SMALL, "--symbol", "plain_sgemm")[1]
    empty = tmp_path / "empty.cu"
    empty.write_text("// nothing\n")
    status, line = refusal(capsys, "--with", empty, "--tile", "16x16")
    assert (status, "the file has no kernel" in line) == (2, True)


def test_options_without_a_file_and_commands_for_many_machines_are_refused(capsys):
    assert refusal(capsys, "--symbol", "mine")[0] == 2
    for word in (["--record"], ["--gpus", "all"], ["--scheduler", "tcp://host:1"]):
        assert main(["compare", "--with", str(SMALL), "--symbol", "plain_sgemm", "--tile", "16x16", *word]) == 2
        assert "--with" in capsys.readouterr().err


def test_pointers_may_be_marked_as_such_and_a_kernel_may_not_turn_a_layout():
    def function(words):
        kinds = {word: kind for kind, word in WORDS.items()}
        return SimpleNamespace(
            parameters=[SimpleNamespace(pointer=w == "pointer", kind=kinds.get(w, ""), size=8) for w in words]
        )

    assert takes_pitches(SMALL, "x", function(PLAIN)) is False
    assert takes_pitches(SMALL, "x", function(PITCHED)) is True
    with pytest.raises(UsageError, match=r"small.cu: x takes \(pointer, 8 bytes\); accepted are "):
        takes_pitches(SMALL, "x", function(["pointer", "struct"]))
    contender = own("plain_sgemm", threads="16x16")
    assert contender.kernel.rejects(Problem(m=16, n=16, k=16, layout="rc")).startswith("layout is rc (A, B); ")


def test_it_is_a_contender_like_any_other():
    contender = own("plain_sgemm", threads="16x16", tile="16x16x1")
    assert contender.family in FAMILIES
    assert contender in contenders(["cublas_sgemm"], [contender])
    assert [c.name for c in contenders(["plain_*"], [contender])] == ["plain_sgemm"]
    with pytest.raises(GemmTracksError):
        contenders(["plain_*"])
    assert contender not in contenders()
    (row,) = built_rows([contender], build([contender]))
    assert (row["name"], row["family"], row["track"], row["tile"]) == (
        "plain_sgemm", "handwritten", "fp32_simt", "16x16x1",
    )  # fmt: skip
    assert row["registers"] > 0
    assert row["occupancy_pct"] > 0
    assert row["kernel_name"] == "plain_sgemm"


def test_grids_cover_c_by_the_stated_rule():
    problem = Problem(m=33, n=100, k=8)
    grids = {grid: own("plain_sgemm", grid=grid, tile="16x32").kernel.launches(problem)[0].grid for grid in GRIDS}
    assert grids == {"xy": (4, 3, 1), "yx": (3, 4, 1), "linear": (12, 1, 1)}
    assert "65535" in own("plain_sgemm", tile="1x1").rejects(Problem(m=70000, n=1, k=1))
    assert own("plain_sgemm", tile="1x1", grid="yx").rejects(Problem(m=70000, n=1, k=1)) is None


def test_the_block_is_what_was_said_else_the_launch_bound_else_256():
    def block(symbol, threads=""):
        return own(symbol, threads=threads).kernel.launches(Problem(m=1, n=1, k=1))[0].block

    assert block("plain_sgemm") == (256, 1, 1)
    assert block("plain_sgemm", "16x16") == (16, 16, 1)
    assert block("pitched_sgemm", "128") == (128, 1, 1)
    assert block("pitched_sgemm") == (256, 1, 1)


def test_a_run_goes_on_only_with_the_same_file_and_options(tmp_path):
    file = tmp_path / "mine.cu"
    file.write_text(SMALL.read_text(encoding="utf-8"), encoding="utf-8")

    def request(tile="16x16"):
        options = OwnOptions(file, "plain_sgemm", tile)
        return str(job.Request((), "", False, options.contenders()))

    first = request()
    assert str(tmp_path) not in first
    assert request() == first
    assert request("8x8") != first
    file.write_text(file.read_text(encoding="utf-8") + "// edited\n", encoding="utf-8")
    assert request() != first


def test_names_come_without_mangling():
    assert plain_name("plain") == "plain"
    assert plain_name("_Z12turned_sgemmPKfS0_Pfiiiff") == "turned_sgemm"
    with pytest.raises(UsageError):
        OwnOptions(symbol="mine").contenders()


def test_the_page_s_example_works_as_printed(tmp_path, monkeypatch, no_gpu, capsys):
    page = PAGE.read_text(encoding="utf-8")
    (source,) = re.findall(r"```cuda\n(.*?)```", page, re.DOTALL)
    commands = [
        shlex.split(line) for text in re.findall(r"```console\n(.*?)```", page, re.DOTALL) for line in text.splitlines()
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.cu").write_text(source)
    assert [words[1] for words in commands] == ["check", "check", "compare", "inspect"]
    for words in commands:
        assert main(words[1:]) == 0
        assert "my_sgemm" in capsys.readouterr().out


def test_one_kernel_of_a_file_is_inspected_by_its_symbol_and_block(capsys):
    assert main(["inspect", str(SMALL), "--json", "--symbol", "plain_sgemm", "--threads", "8x8"]) == 0
    assert '"plain_sgemm"' in capsys.readouterr().out
    for words, says in (
        (["inspect", str(SMALL)], "name one of them"),
        (["inspect", str(SMALL), "--symbol", "missing"], "missing"),
        (["inspect", str(SMALL), "--symbol", "plain_sgemm", "--threads", "2000"], "1024"),
        (["inspect", "v0_naive", "--symbol", "v0_naive"], "from a file"),
    ):
        assert main(words) == 2
        assert says in capsys.readouterr().err


@pytest.mark.gpu
def test_on_a_gpu_right_ones_pass_and_wrong_ones_fail(capsys):
    words = ["check", "-d", "gpu", "-s", "35x79x19,256", "--with", str(SMALL), "--tile", "16x16", "--symbol"]
    assert main([*words, "plain_sgemm", "--threads", "16x16"]) == 0
    assert main([*words, "pitched_sgemm", "--grid", "linear"]) == 0
    assert main([*words, "without_tail"]) == 1
    capsys.readouterr()
