"""The sanitizer sessions, with a stand-in for compute-sanitizer: what counts as clean and what does not."""

import ctypes
import json
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from compare import sanitize as module
from compare.contenders import KernelContender, contenders, every_contender
from compare.sanitize import (
    DEFAULT_SHAPES,
    FOUND,
    PLANTED_IN,
    Outcome,
    choose,
    deal,
    main,
    planted_unit,
    problems_of,
    reported,
    sanitize,
)
from kernel.contract import Pointers, Problem
from kernel.errors import LaunchError, MissingToolError, UsageError
from kernel.toolchain import Tool
from tests.test_job import fp32

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
        tool="memcheck", planted=planted, kernels=("v0",), findings=findings, runs=runs, wrong=wrong, seconds=1.0,
        log="memcheck.log",
    )  # fmt: skip
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
        "    names = arguments[arguments.index('--kernels') + 1].split(',')\n"
        "    runs = [{'kernel': n, 'problem': '1x1x1', **run} for n in names for run in told['results']]\n"
        "    text = ''.join(json.dumps(run) + chr(10) for run in runs)\n"
        "    pathlib.Path(arguments[arguments.index('--out') + 1]).write_text(text)\n"
        "print('said on the way')\n"
        f"sys.exit({FOUND} if planted else told['status'])\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    tool = Tool(name="compute-sanitizer", path=script, version="2025.3.1", origin="PATH")
    monkeypatch.setattr(module, "find", lambda name: tool)
    monkeypatch.setattr(KernelContender, "needs", lambda self: "")

    def tell(plain=CLEAN, planted=DIRTY, results=({"reason": "it did not end"}, {"reason": ""}), status=0):
        told = {"plain": plain, "planted": planted, "results": results, "status": status}
        (tmp_path / "told.json").write_text(json.dumps(told))

    tell()
    return tell


def test_clean_session_writes_its_summary(stand_in, tmp_path, capsys):
    assert main(["--kernels", "v2_block_tile", "--tools", "memcheck,racecheck", "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "sanitize.json").read_text())
    assert summary["ok"] is True
    assert summary["kernels"] == ["v2_block_tile"]
    assert summary["families"] == {"handwritten": 1}
    assert {entry["kernels"][0] for entry in summary["sessions"] if entry["planted"]} == {PLANTED_IN}
    assert all("SUMMARY" in entry["report"] for entry in summary["sessions"])
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
        ({"planted": CLEAN.replace("0", "zero"), "results": None}, "v0_naive: none of the shapes ran"),
        ({"results": None, "status": 1}, "the process ended with 1 at v0_naive on nothing yet: said on the way"),
        ({"results": [{"reason": "it did not end"}], "status": -11}, "v0_naive on 1x1x1: it did not end"),
        ({"results": [{"reason": "wrong"}]}, "v0_naive on 1x1x1: wrong"),
    ],
)
def test_a_finding_or_a_wrong_result_exits_with_1(stand_in, tmp_path, capsys, told, said):
    stand_in(**told)
    assert main(["--kernels", "v0_naive", "--tools", "memcheck", "--out", str(tmp_path / "out")]) == 1
    assert said in capsys.readouterr().out


def test_unknown_tool_and_missing_tool_are_typed(tmp_path, monkeypatch, capsys):
    with pytest.raises(UsageError, match="memchek"):
        sanitize("v*", "1", ["memchek"], tmp_path)

    def missing(name):
        raise MissingToolError(f"{name} was not found")

    monkeypatch.setattr(module, "find", missing)
    assert main(["--tools", "memcheck", "--out", str(tmp_path)]) == 3
    assert "compute-sanitizer was not found" in capsys.readouterr().err


class HostMemory:
    """As much of CuPy as :func:`compare.sanitize.run_under_tool` touches, in this process' memory."""

    def __init__(self):
        self.runtime = SimpleNamespace(memcpy=self.copy, memcpyHostToDevice=1, memcpyDeviceToHost=2)
        self.cuda = SimpleNamespace(runtime=self.runtime, alloc=self.alloc, Stream=self.stream, set_allocator=print)

    @staticmethod
    def copy(target, source, size, kind):
        ctypes.memmove(target, source, size)

    @staticmethod
    def alloc(size):
        memory = ctypes.create_string_buffer(size + 256)
        address = ctypes.addressof(memory)
        return SimpleNamespace(memory=memory, ptr=address + -address % 256)

    @staticmethod
    def stream(non_blocking):
        return SimpleNamespace(ptr=0, synchronize=lambda: None)


def test_what_ran_under_a_tool_is_checked_but_for_what_initcheck_cannot_see(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", HostMemory())
    right, wrong = fp32("right", 1e-3), fp32("wrong", 1e-3, behaviour="wrong")
    for problem in (Problem(m=35, n=79, k=19), Problem(m=18, n=33, k=13, ldc=35, alpha=0.5, beta=3.0)):
        assert module.run_under_tool("memcheck", right, problem, "uniform") == ""
        assert "elements wrong" in module.run_under_tool("memcheck", wrong, problem, "uniform")
        assert module.run_under_tool("initcheck", wrong, problem, "uniform") == "", "a library's stores are not seen"


def test_the_watched_process_writes_every_run_down_before_and_after(tmp_path, monkeypatch):
    chosen = (fp32("v6", 1e-3), fp32("v7", 1e-3))
    cupy = HostMemory()
    allocators = []
    cupy.cuda.set_allocator = allocators.append
    monkeypatch.setattr("kernel.launch.cupy_module", lambda: cupy)
    monkeypatch.setattr(module, "contenders", lambda names: chosen)

    def run_under_tool(tool, contender, problem, distribution):
        if contender.name == "v7":
            raise LaunchError("v7: too much shared memory")
        return ""

    monkeypatch.setattr(module, "run_under_tool", run_under_tool)
    results = tmp_path / "results"
    module._inside("memcheck", "v*", "35x79x19", False, results)
    runs = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(run["kernel"], run["reason"]) for run in runs] == [
        ("v6", "it did not end"), ("v6", ""), ("v7", "it did not end"), ("v7", "v7: too much shared memory"),
    ]  # fmt: skip
    planted = []
    monkeypatch.setattr(module, "plant", lambda tool, contender: planted.append((tool, contender.name)))
    results.unlink()
    module._inside("racecheck", "v*", "", True, results)
    assert planted == [("racecheck", "v6")]
    assert not results.exists()
    assert allocators == [None, None], "memory of a pool has no ends that a tool could watch"


def test_a_process_beyond_its_limit_is_ended_and_named(stand_in, tmp_path, monkeypatch):
    (tmp_path / "compute-sanitizer").write_text(f"#!{sys.executable}\nimport time; time.sleep(60)\n")
    monkeypatch.setattr(module, "LIMIT_S", 0.5)
    summary = sanitize("v0_naive", "1", ["memcheck"], tmp_path / "out")
    assert summary["ok"] is False
    assert "ended after 0.5 s" in summary["sessions"][1]["wrong"][0]


@pytest.mark.parametrize("contender", every_contender(), ids=lambda c: c.name)
def test_every_contender_takes_a_shape_with_tails_in_every_layout(contender):
    problems = [problem for problem, _ in problems_of(contender, DEFAULT_SHAPES)]
    assert {problem.layout for problem in problems} == set(contender.layouts)
    for extent, block in (("m", contender.tile.BLOCK_M), ("n", contender.tile.BLOCK_N), ("k", contender.tile.BLOCK_K)):
        assert block <= 1 or any(getattr(problem, extent) % block for problem in problems), extent


def test_everything_built_is_chosen_and_nothing_is_dealt_twice(stand_in, monkeypatch, tmp_path):
    chosen, left_out = choose("")
    names = [contender.name for contender in every_contender()]
    assert sorted([*chosen, *left_out]) == sorted(names)
    assert {c.name for c in every_contender() if c.in_default_set and c.family == "handwritten"} <= set(chosen)
    hands = deal(names, 12)
    assert sorted(name for hand in hands for name in hand) == sorted(names)
    assert max(map(len, hands)) == 12
    monkeypatch.setenv("GEMM_TRACKS_BUNDLE", str(tmp_path / "bundle"))
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "manifest.json").write_text('{"units": {}}')
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MissingToolError, match="v0_naive, not in the bundle"):
        sanitize("v0_naive", "1", ["memcheck"], tmp_path / "out")


@pytest.mark.nvcc
def test_planted_faults_build():
    from kernel.build import artifact

    assert set(artifact(planted_unit("sm_90a")).resources) == {"planted_race", "planted_divergence"}
    assert Path(module.__file__).with_name("planted_faults.cu").is_file()


@pytest.mark.parametrize(
    ("name", "unseen"),
    [
        ("v13_async_k8", False),
        ("h0_mma_sync", False),
        ("h1_wgmma_tma", True),
        ("h6_turned_tile", True),
        ("cublas_fp16", True),
    ],
)
def test_initcheck_leaves_alone_only_what_the_copy_engine_or_a_library_stores(name, unseen):
    (contender,) = contenders([name])
    problem = contender.problem(128, 256, 64)
    assert module.stores_unseen(contender, problem, Pointers(a=1 << 20, b=2 << 20, c=3 << 20)) is unseen
