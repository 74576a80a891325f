"""Memory of runs on the PTX machine: what they need is what they take, and too much of it is refused and not begun."""

import subprocess
import sys

import pytest

from compare import room
from compare.cli import main
from compare.contenders import contenders
from compare.shapes import parse

PEAK = """
import re, sys
from pathlib import Path
from compare import room
from compare.check import CpuExecutor, check_shape
from compare.contenders import contenders
from compare.shapes import parse
(contender,), shape = contenders([sys.argv[1]]), parse(sys.argv[2])[0]
assert check_shape(contender, parse("64")[0], CpuExecutor()).ok
# Of this program alone: what getrusage calls a peak is that of the process that started it, where that was larger.
def peak(): return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
assert check_shape(contender, shape, CpuExecutor()).ok
taken = peak() - before
print(room.needed(contender, shape.problem(contender)) / taken)
"""


def needed(name, shape, **options):
    (contender,) = contenders([name])
    return room.needed(contender, parse(shape)[0].problem(contender), **options)


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("shape", ["3000x3000x1", "1x5000x5000", "5000x1x5000"])
def test_what_is_said_to_be_needed_is_what_a_check_takes(shape):
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "v2_block_tile", shape], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert 0.85 < float(done.stdout) < 1.3


def test_every_operand_and_a_workspace_count():
    c = 4 * 70000**2
    assert room.COPIES * c < needed("v2_block_tile", "70000x70000x1") < 1.1 * room.COPIES * c
    assert needed("v2_block_tile", "70000x70000x1@beta=2") > needed("v2_block_tile", "70000x70000x1") + c / 2
    assert needed("v2_block_tile", "1x70000x70000") > room.COPIES * c
    assert needed("v2_block_tile", "70000x1x70000") > room.COPIES * c
    assert needed("v2_block_tile", "0x70000x70000") < 2 * c
    assert needed("v2_block_tile", "4000x4000x1", compared=False) < needed("v2_block_tile", "4000x4000x1") / 3
    packed = needed("h9_packed", "4000x4000x4001", compared=False)
    assert packed > room.COPIES * 2 * (4000 * 4000 + 2 * 4000 * 4001) + room.WORKSPACE_COPIES * 2 * 4000 * 4001


@pytest.mark.parametrize(
    "words",
    [["check", "--device", "cpu", "--kernels", "v2_block_tile"], ["inspect", "v2_block_tile", "--races"]],
    ids=["check", "inspect --races"],
)
@pytest.mark.nvcc
def test_too_much_memory_is_refused_before_any_is_taken(capsys, monkeypatch, words):
    monkeypatch.setattr(room, "available", lambda: 22 * 10**9)
    monkeypatch.setattr("compare.inputs.allocate", pytest.fail)
    assert main([*words, "--shape" + "s" * (words[0] == "check"), "70000x70000x1"]) == 3
    assert "about 98 GB of memory on the PTX machine, and 22 GB are free here" in capsys.readouterr().err


@pytest.mark.nvcc
def test_races_of_a_problem_that_takes_hours_are_refused_and_of_minutes_announced(capsys, monkeypatch):
    monkeypatch.setattr(room, "available", lambda: None)
    assert main(["inspect", "v2_block_tile", "--races", "--shape", "20000"]) == 3
    assert "h on the PTX machine, and 0.5 h is the limit" in capsys.readouterr().err
    monkeypatch.setattr("compare.checking.WORTH_SAYING_S", 0.0)
    assert main(["inspect", "v2_block_tile", "--races", "--shape", "64"]) == 0
    assert "v2_block_tile, 64: about 0.5 min on the PTX machine" in capsys.readouterr().err


def test_a_group_of_processes_with_a_limit_has_no_more_than_that(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "CGROUP", tmp_path)
    whole = room.available()
    assert whole > 0
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 400\ninactive_file 300\n")
    assert room.available() > 10_000
    (tmp_path / "memory.max").write_text("1000\n")
    assert room.available() == 600


def test_what_is_free_is_asked_of_the_system_where_there_is_no_meminfo(monkeypatch):
    read = room.Path.read_text

    def nowhere(path, *args, **options):
        if str(path) == "/proc/meminfo":
            raise OSError("no such file")
        return read(path, *args, **options)

    known = room.available()
    monkeypatch.setattr(room.Path, "read_text", nowhere)
    assert known is not None
    assert 0 < room.available() <= 2 * known
