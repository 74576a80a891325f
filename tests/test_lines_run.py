"""The list of lines that ran: what is noted, and what is left when two sessions are put together."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from kernel.banks import passes
from kernel.intensity import naive
from tests.lines_run import ROOT, Block, blocks, digest, main, merged

SOURCE = """def outer(x):
    if x:
        y = [
            1,
        ]
        return y

    def inner():
        return 2

    return inner


def other():
    return 3
"""


def report_of(tmp_path):
    """coverage.py's own report of a program of which outer(0) was called."""
    from coverage import Coverage

    (tmp_path / "a.py").write_text(SOURCE)
    watch = Coverage(data_file=None, include=[str(tmp_path / "a.py")], config_file=False)
    with watch.collect():
        names = {}
        exec(compile(SOURCE, str(tmp_path / "a.py"), "exec"), names)
        names["outer"](0)
    watch.json_report(outfile=str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    return {**report, "files": {"a.py": next(iter(report["files"].values()))}}


def test_blocks_end_where_a_statement_ran_and_name_their_function(tmp_path):
    report = report_of(tmp_path)
    assert [str(block) for block in blocks(report)] == [
        "a.py:3-6 outer, 2 lines",
        "a.py:9 outer.inner, 1 lines",
        "a.py:15 other, 1 lines",
    ]
    assert blocks(report, {"a.py": [3, 15]}) == [Block("a.py", "outer", (6,)), Block("a.py", "outer.inner", (9,))]


def test_what_one_of_the_sessions_ran_is_not_missing(tmp_path, capsys):
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "b.py").write_text("y = 1\n")
    here = {"a.py": {"digest": digest(tmp_path / "a.py"), "lines": [4, 15]}}  # 4: within the statement of 3
    other = {"b.py": {"digest": "another", "lines": [1]}, "a.py": {**here["a.py"], "lines": [6]}}
    assert merged([here, other], tmp_path) == ({"a.py": {3, 6, 15}}, ["b.py"])


def test_files_of_many_processes_become_one(tmp_path, capsys):
    folder = tmp_path / "lines"
    folder.mkdir()
    for number, lines in enumerate(([1, 5], [2, 5], [])):
        content = {"a.py": {"digest": "d", "lines": lines}, f"{number}.py": {"digest": "e", "lines": [7]}}
        (folder / f"{number}.json").write_text(json.dumps(content))
    assert main(["--join", str(folder), str(tmp_path / "one.json")]) == 0
    assert "3 processes" in capsys.readouterr().out
    one = json.loads((tmp_path / "one.json").read_text())
    assert one["a.py"] == {"digest": "d", "lines": [1, 2, 5]}
    assert list(one) == ["0.py", "1.py", "2.py", "a.py"]


def test_what_nobody_ran_is_an_exit_status(tmp_path, capsys):
    name = "kernel/intensity.py"
    region = {"executed_lines": [1], "missing_lines": [8]}
    report = {"files": {name: {"functions": {"": region}}}, "totals": {"num_statements": 9}}
    (tmp_path / "report.json").write_text(json.dumps(report))

    def status(line, version=""):
        ran = {name: {"digest": version or digest(ROOT / name), "lines": [line]}}
        (tmp_path / "ran.json").write_text(json.dumps(ran))
        return main([str(tmp_path / "report.json"), str(tmp_path / "ran.json")])

    assert main([str(tmp_path / "report.json")]) == 0
    first = f"{name}:8 (module), 1 lines\n1 blocks, 1 of 9 lines, "
    assert capsys.readouterr().out == f"{first}were not run without a GPU\n"
    assert status(1) == 1
    assert capsys.readouterr().out == f"{first}were run by no session\n"
    assert status(8) == 0
    assert status(8, "another") == 1
    assert "not judged" in capsys.readouterr().out
    (tmp_path / "nothing").mkdir()
    for words in (
        [],
        [str(tmp_path / "absent.json")],
        [__file__],
        [str(tmp_path / "report.json"), str(tmp_path / "nothing")],
    ):
        assert main(words) == 2
        assert "make coverage" in capsys.readouterr().err


INNER = """
import subprocess, sys
from kernel.intensity import naive

def test_here_and_in_a_process_of_its_own():
    naive()
    code = "import kernel.banks as banks; banks.passes(list(range(0, 128, 4)), 4)"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 counts lines by itself")
@pytest.mark.parametrize("more", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_every_process_of_a_session_writes_what_it_ran(tmp_path, more):
    if more and importlib.util.find_spec("xdist") is None:
        pytest.skip("pytest-xdist is not installed")
    folder, own = tmp_path / "lines", tmp_path / "tests"
    own.mkdir()
    (own / "conftest.py").write_text("from tests.conftest import *\n")
    (own / "test_inner.py").write_text(INNER)
    words = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "--rootdir", str(tmp_path), str(own), *more]
    environment = {**os.environ, "GEMM_TRACKS_LINES": str(folder), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment, check=True)
    sessions = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    ran, changed = merged(sessions)
    assert not changed
    for name, function in (("kernel/intensity.py", naive), ("kernel/banks.py", passes)):
        code = function.__code__
        body = {line for *_, line in code.co_lines() if line is not None and line > code.co_firstlineno}
        assert ran[name] & body, name
    assert len(sessions) >= 2
