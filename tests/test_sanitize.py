"""The sanitizer sessions, with a stand-in for compute-sanitizer: what counts as clean and what does not."""

import json
import stat
import sys
from pathlib import Path

import pytest

from compare import sanitize as module
from compare.sanitize import FOUND, Outcome, main, planted_unit, reported, sanitize
from kernel.errors import MissingToolError, UsageError
from kernel.toolchain import Tool

CLEAN = "========= ERROR SUMMARY: 0 errors\n"
DIRTY = "========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 17 errors\n"


def test_reports_are_counted():
    assert reported(CLEAN, 0) == 0
    assert reported(DIRTY, FOUND) == 17
    assert reported("========= RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)\n", FOUND) == 3
    assert reported("", FOUND) == 1
    assert reported("", 0) == 0


@pytest.mark.parametrize(
    ("planted", "findings", "runs", "wrong", "ok"),
    [
        (False, 0, 4, (), True),
        (False, 1, 4, (), False),
        (False, 0, 0, (), False),
        (False, 0, 4, ("v0 on 1x1x1: wrong",), False),
        (True, 1, 0, (), True),
        (True, 0, 0, (), False),
    ],
)
def test_clean_means_silent_about_kernels_and_loud_about_the_planted_fault(planted, findings, runs, wrong, ok):
    outcome = Outcome(
        tool="memcheck", planted=planted, findings=findings, runs=runs, wrong=wrong, seconds=1.0, log="memcheck.log"
    )
    assert outcome.ok is ok


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A script in place of compute-sanitizer that reports as told by files beside it and runs nothing."""
    script = tmp_path / "compute-sanitizer"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, sys, pathlib\n"
        "arguments = sys.argv[1:]\n"
        "planted = '--plant' in arguments\n"
        "told = json.loads((pathlib.Path(__file__).parent / 'told.json').read_text())\n"
        "log = pathlib.Path(arguments[arguments.index('--log-file') + 1])\n"
        "log.write_text(told['planted' if planted else 'plain'])\n"
        "if told['results'] is not None:\n"
        "    pathlib.Path(arguments[arguments.index('--out') + 1]).write_text(json.dumps(told['results']))\n"
        "print('said on the way')\n"
        f"sys.exit({FOUND} if planted else 0)\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    tool = Tool(name="compute-sanitizer", path=script, version="2025.3.1", origin="PATH")
    monkeypatch.setattr(module, "find", lambda name: tool)

    def tell(plain=CLEAN, planted=DIRTY, results=({"kernel": "v0_naive", "problem": "1x1x1", "reason": ""},)):
        told = {"plain": plain, "planted": planted, "results": results}
        (tmp_path / "told.json").write_text(json.dumps(told))

    tell()
    return tell


def test_clean_session_writes_its_summary(stand_in, tmp_path, capsys):
    assert main(["--kernels", "cublas_sgemm", "--tools", "memcheck,racecheck", "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "sanitize.json").read_text())
    assert summary["ok"] is True
    assert summary["kernels"] == ["cublas_sgemm"]
    assert [(entry["tool"], entry["planted"], entry["ok"]) for entry in summary["sessions"]] == [
        ("memcheck", True, True),
        ("memcheck", False, True),
        ("racecheck", True, True),
        ("racecheck", False, True),
    ]
    assert "17 findings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"plain": DIRTY}, "17 findings, NOT as it should be"),
        ({"planted": CLEAN.replace("0", "zero"), "results": None}, "the process ended with 0"),
        ({"results": [{"kernel": "v0_naive", "problem": "1x1x1", "reason": "wrong"}]}, "v0_naive on 1x1x1: wrong"),
    ],
)
def test_a_finding_or_a_wrong_result_exits_with_1(stand_in, tmp_path, capsys, told, said):
    stand_in(**told)
    assert main(["--kernels", "cublas_sgemm", "--tools", "memcheck", "--out", str(tmp_path / "out")]) == 1
    assert said in capsys.readouterr().out


def test_unknown_tool_and_missing_tool_are_typed(tmp_path, monkeypatch, capsys):
    with pytest.raises(UsageError, match="memchek"):
        sanitize("v*", "1", ["memchek"], tmp_path)

    def missing(name):
        raise MissingToolError(f"{name} was not found")

    monkeypatch.setattr(module, "find", missing)
    assert main(["--tools", "memcheck", "--out", str(tmp_path)]) == 3
    assert "compute-sanitizer was not found" in capsys.readouterr().err


@pytest.mark.nvcc
def test_planted_faults_build():
    from kernel.build import artifact

    assert set(artifact(planted_unit("sm_90a")).resources) == {"planted_race", "planted_divergence"}
    assert Path(module.__file__).with_name("planted_faults.cu").is_file()
