"""Sessions on a GPU machine, with commands of our own in the place of GPU work; and what make and CI do."""

import importlib.util
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from compare import bootstrap, runs, session
from kernel.errors import UsageError
from tests.rows_for_reports import full_run

ROOT = runs.repository()


def step(code, **more):
    return session.Step("step", (sys.executable, "-u", "-c", code), 1.0, more)


def test_a_step_is_logged_and_its_last_line_and_status_are_kept(capsys):
    log = []
    outcome = session.run_step(step("print('one'); print('two'); raise SystemExit(3)"), 60, log.append)
    assert (outcome.status, outcome.last_line) == (3, "two")
    assert "one\n" in log
    assert "two" in capsys.readouterr().out


def test_a_step_beyond_its_limit_is_interrupted_and_keeps_what_it_prints_then(capsys):
    code = """
import time
try:
    print("begun")
    time.sleep(60)
except KeyboardInterrupt:
    print("kept what was finished")
"""
    began = time.monotonic()
    outcome = session.run_step(step(code), 1.0, lambda text: None)
    assert time.monotonic() - began < 30
    assert outcome.last_line == "interrupted at its limit; kept what was finished"


def test_steps_get_the_bundle_and_the_results_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = "import os; print(os.environ['GEMM_TRACKS_RESULTS'], os.environ['PYTHONPATH'])"
    outcome = session.run_step(step(code, GEMM_TRACKS_RESULTS=str(tmp_path)), 60, lambda text: None)
    assert outcome.last_line == f"{tmp_path} {ROOT}"


def test_a_bundle_that_is_there_is_used_unless_another_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    monkeypatch.setattr(runs, "repository", lambda: tmp_path)
    (tmp_path / session.BUNDLE).mkdir(parents=True)
    show = step("import os; print(os.environ['GEMM_TRACKS_BUNDLE'])")
    assert session.run_step(show, 60, lambda text: None).last_line == str(tmp_path / session.BUNDLE)
    monkeypatch.setenv("GEMM_TRACKS_BUNDLE", "another")
    assert session.run_step(show, 60, lambda text: None).last_line == "another"


def test_a_step_that_ignores_its_interrupt_is_killed(monkeypatch):
    monkeypatch.setattr(session, "GRACE_S", 0.01)
    done, killed = [], threading.Event()
    process = SimpleNamespace(send_signal=done.append, kill=killed.set)
    watch = session.Watch(process, time.monotonic())
    assert killed.wait(5)
    watch.stop()
    assert (done, watch.fired) == ([signal.SIGINT], True)


def test_tests_are_spread_over_processes_only_where_that_can_be(monkeypatch):
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: None)
    assert session.workers() == ()
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: object())
    assert session.workers()[0] == "-n"
    assert 1 <= int(session.workers()[1]) <= session.MOST_WORKERS


def test_kernels_of_the_dsl_travel_where_they_are_built_or_can_be(monkeypatch):
    from compare.contenders import every_contender
    from cutlass_ref.cute import emit
    from kernel import build

    one = next(c for c in every_contender() if c.family == "cute_dsl")
    monkeypatch.setattr(emit, "missing", lambda program: ("nvidia-cutlass-dsl",))
    monkeypatch.setattr(build, "lookup", lambda unit: None)
    assert session._can_travel(one) is False
    monkeypatch.setattr(build, "lookup", lambda unit: object())
    assert session._can_travel(one) is True
    monkeypatch.setattr(emit, "missing", lambda program: ())
    monkeypatch.setattr(build, "lookup", lambda unit: None)
    assert session._can_travel(one) is True


def test_what_cannot_travel_is_left_out_of_the_bundle_by_name(tmp_path, monkeypatch, capsys):
    from compare import contenders
    from cutlass_ref import catalog
    from kernel import build

    known = contenders.every_contender()
    dsl = [c for c in known if c.family == "cute_dsl"]
    own = next(c for c in known if c.name == "v0_naive")
    monkeypatch.setattr(contenders, "contenders", lambda: (own, *dsl))
    monkeypatch.setattr(session, "_can_travel", lambda contender: contender is not dsl[0])
    monkeypatch.setattr(contenders.KernelContender, "needs", lambda contender: "nvidia-cutlass-dsl")
    monkeypatch.setattr(catalog, "bundle_files", lambda kernels: {})
    monkeypatch.setenv("GEMM_TRACKS_REVISION", "0123456789")
    units = []

    def write(chosen, folder, files):
        units.extend(chosen)
        return tmp_path

    monkeypatch.setattr(build, "write_bundle", write)
    assert session.write_bundle(everything=True) == tmp_path
    assert capsys.readouterr().err == f"left out of the bundle: {dsl[0].name}: nvidia-cutlass-dsl is missing\n"
    names = {unit.name for unit in units}
    assert {unit.name for unit in own.kernel.units()} <= names
    assert not {unit.name for unit in dsl[0].kernel.units()} & names
    assert {unit.name for unit in dsl[1].kernel.units()} <= names
    assert (tmp_path / runs.REVISION_FILE).read_text() == "0123456789\n"


def test_a_record_is_told_when_its_lease_ends(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(
        session, "run_step", lambda one, limit, write: ran.append((one, limit)) or session.Outcome(one.name, 0, 1.0, "")
    )
    assert session.run(["doctor", "record"], 540, None) == 0
    (doctor, _), (record, limit) = ran
    assert "--seconds" not in doctor.command
    assert record.command[-2] == "--seconds"
    assert limit - 11 <= float(record.command[-1]) <= limit - 9
    assert limit == pytest.approx(540 - session.GRACE_S, abs=5)


def test_unknown_steps_are_refused_and_the_table_has_a_line_each(tmp_path):
    with pytest.raises(UsageError, match="recrod"):
        session.steps(["recrod"], tmp_path)
    names = ["doctor", "tests", "slow", "timing", "sanitize", "compare", "evidence", "experiments", "tune", "record"]
    found = session.steps(names, tmp_path)
    assert [s.name for s in found] == names
    for module in {s.command[s.command.index("-m") + 1] for s in found}:
        assert importlib.util.find_spec(module), module
    watched = {step.name for step in found if step.environment.get("GEMM_TRACKS_LINES") == str(tmp_path / "lines")}
    assert watched == {step.name for step in found if "pytest" in step.command}
    assert {"tests", "slow", "timing"} <= watched
    lines = session.table([session.Outcome("tests", 0, 12.3, "5 passed")])
    assert len(lines) == 2
    assert "5 passed" in lines[1]


def test_a_run_made_elsewhere_is_adopted_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GEMM_TRACKS_RESULTS", str(tmp_path / "results"))
    gpu = {"name": "NVIDIA H200", "slug": "nvidia-h200"}
    writer = runs.RunWriter(tmp_path / "carried", {"gpu": gpu, "date": "2031-02-03", "revision": "r"})
    writer.add("a", full_run())
    writer.finish(complete=True)
    assert session.main(["adopt", str(tmp_path / "carried")]) == 0
    assert (tmp_path / "results" / "nvidia-h200" / "latest" / "rows.csv").is_file()
    assert session.main(["adopt", str(tmp_path / "carried")]) == 2


def test_a_tree_without_history_takes_its_revision_from_the_bundle(tmp_path, monkeypatch):
    monkeypatch.delenv("GEMM_TRACKS_REVISION", raising=False)
    monkeypatch.setenv("GEMM_TRACKS_BUNDLE", str(tmp_path))
    monkeypatch.setattr(runs, "repository", lambda: tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert runs.revision() == "unknown"
    (tmp_path / runs.REVISION_FILE).write_text("0123456789\n")
    assert runs.revision() == "0123456789"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_alone_lists_every_target():
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split()) - {"help"}
    assert {
        "setup",
        "compare",
        "test",
        "test-slow",
        "lint",
        "gpu-session",
        "sass",
        "ncu",
        "sanitize",
        "clean",
    } <= targets
    for target in targets:
        assert re.search(rf"make {target} +\S", listed), target


def test_every_recipe_of_the_makefile_only_calls_a_program():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("\t") and "awk" not in line:
            assert not re.search(r"\b(if|for|while|case)\b|&&|;", line), line


def test_setup_refuses_a_python_that_is_too_old(tmp_path, monkeypatch):
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 1, "final", 0))
    assert "3.10 to 3.13" in bootstrap.make(tmp_path / "venv")
    assert not (tmp_path / "venv").exists()


def test_ci_runs_lint_and_both_kinds_of_tests():
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for target in ("make setup", "make lint", "make test ", "make test-slow "):
        assert target in text
