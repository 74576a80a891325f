"""The list of lines that ran: what is noted, and what is left when two sessions are put together."""

import json
import os
import subprocess
import sys

import pytest

from tests.lines_run import ROOT, digest, expand, main, nowhere, spans


def test_spans_and_back():
    assert spans([7, 1, 2, 3]) == "1-3, 7"
    assert expand("1-3, 7") == [1, 2, 3, 7]
    assert spans([]) == ""
    assert expand("") == []


def test_what_one_of_two_sessions_ran_is_not_missing(tmp_path, capsys):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("y = 1\n")
    report = {
        "files": {name: {"missing_lines": [1, 2, 3]} for name in ("a.py", "b.py", "c.py")},
        "totals": {"num_statements": 20},
    }
    ran = {
        "a.py": {"digest": digest(tmp_path / "a.py"), "lines": [2]},
        "b.py": {"digest": "another", "lines": [1, 2, 3]},
    }
    assert nowhere(report, ran, tmp_path) == ({"a.py": "1, 3", "c.py": "1-3"}, ["b.py"])
    name = "kernel/gate.py"
    (tmp_path / "report.json").write_text(
        json.dumps({"files": {name: {"missing_lines": [1]}}, "totals": {"num_statements": 9}})
    )
    (tmp_path / "ran.json").write_text(json.dumps({name: {"digest": digest(ROOT / name), "lines": []}}))
    assert main([str(tmp_path / "report.json"), str(tmp_path / "ran.json")]) == 0
    assert capsys.readouterr().out == "kernel/gate.py: 1\n1 of 9 lines were run by neither session\n"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 counts lines by itself")
def test_a_session_writes_what_it_ran(tmp_path):
    target = tmp_path / "lines.json"
    words = ["-q", "-p", "no:cacheprovider", "tests/test_banks.py", "-k", "broadcast"]
    environment = {**os.environ, "GEMM_TRACKS_LINES": str(target), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment, check=True, capture_output=True)
    assert json.loads(target.read_text())["kernel/banks.py"]["lines"]
