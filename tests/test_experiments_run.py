"""Every experiment on a simulated device: real code from the question to the table, invented times."""

import json
import sys
import types

import numpy as np
import pytest

from compare import driver, experiments
from compare.experiments import EXPERIMENTS, Lab, run
from compare.timing import Work
from kernel.contract import Problem
from kernel.errors import CatalogError, LaunchError, UsageError
from tests.simulated_bench import SimulatedBench, SimulatedContender, SimulatedOperands

SECONDS = {"cublas_sgemm": 2.7e-3, "cublas_fp16": 2e-4, "simt_dispatch": 2.8e-3, "v2_block_tile": 1e-2, "v4_pad": 4e-3}
SECONDS |= {"fp16_dispatch": 2.1e-4}


class Contender(SimulatedContender):
    """Its time follows the problem from 4096 cubed."""

    def problem(self, m, n, k):
        types_ = {"dtype_in": "float16", "dtype_out": "float16"} if self.track == "fp16_tensor" else {}
        return Problem(m=m, n=n, k=k, **types_)

    def prepare(self, problem, pointers, stream):
        prepared = super().prepare(problem, pointers, stream)
        scaled = Contender(**(vars(self) | {"seconds": self.seconds * problem.flop / (2 * 4096**3)}))
        prepared.contender = scaled
        return prepared


class Operands(SimulatedOperands):
    def __init__(self):
        super().__init__()
        self.sets = [types.SimpleNamespace(storage={"a": np.zeros(8), "b": np.zeros(8)})]

    def grow(self, sets):
        self.sets = [*self.sets, *(self.sets[:1] * (sets - len(self.sets)))]

    def reverify(self, contender, prepared):
        return None


class SimulatedLab(Lab):
    def __init__(self):
        self.bench = SimulatedBench(cap_w=700.0)
        runtime = types.SimpleNamespace(memsetAsync=lambda *_: None)
        self.cupy = types.SimpleNamespace(
            empty=lambda size, dtype: types.SimpleNamespace(data=types.SimpleNamespace(ptr=0), nbytes=size),
            uint8="uint8",
            cuda=types.SimpleNamespace(runtime=runtime),
            get_default_memory_pool=lambda: types.SimpleNamespace(free_all_blocks=lambda: None),
        )

    def contender(self, name):
        if name not in SECONDS:
            return None
        track = "fp16_tensor" if "fp16" in name else "fp32_simt"
        family = "cublas" if name.startswith("cublas") else "handwritten"
        return Contender(name, SECONDS[name], family=family, track=track, is_default=family == "cublas", watts=650.0)

    def operands(self, problem, distribution="uniform"):
        return Operands()

    def work(self, contender, problem, distribution="uniform"):
        prepared = contender.prepare(problem, Operands().pointers(), self.bench.stream)
        if distribution == "zeros":
            prepared.contender.watts = 500.0
        return Work(contender.name, (prepared,))


@pytest.fixture
def lab(monkeypatch):
    monkeypatch.setattr(experiments, "Lab", SimulatedLab)
    monkeypatch.setattr(experiments, "copy_async", lambda *_: None)
    monkeypatch.setattr(driver, "query", lambda: driver.Driver(version="13.0", devices=(), problem=""))


def test_every_experiment_answers_its_question(lab, tmp_path, capsys):
    path = tmp_path / "method.json"
    assert run(list(EXPERIMENTS), path) == 0
    found = json.loads(path.read_text())
    assert set(EXPERIMENTS) < set(found)
    out = capsys.readouterr().out
    assert all(f"{name}: " in out for name in EXPERIMENTS)
    assert {test["ok"] for test in found["self_tests"]} == {True}
    assert {test["name"] for test in found["self_tests"]} == {"cublas_sgemm", "cublas_fp16"}
    assert {row["input"] for row in found["inputs"]} == set(experiments.INPUTS)
    assert [way["way"] for way in found["caches"]] == [
        "flush then run", "fill again then run", "back to back", "rotating sets",
    ]  # fmt: skip
    assert {row["size"] for row in found["timers"]} == {256, 512, 768}
    orders = {row["name"]: row["moved"] for row in found["orders"]}
    assert set(orders) >= {"cublas_sgemm", "v2_block_tile", "v4_pad"}
    assert max(orders.values()) < 0.02


def test_a_capped_device_sags_and_mixing_hides_it(lab, tmp_path):
    assert run(["sag", "mixing"], tmp_path / "method.json") == 0
    found = json.loads((tmp_path / "method.json").read_text())
    for series in found["sag"]:
        assert len(series["series"]) > 10
        assert series["series"][0]["tflops"] > 0
    for mix in found["mixing"]:
        assert mix["solo_ratio"] == pytest.approx(mix["mixed_ratio"], rel=0.5)


def test_an_interrupted_run_keeps_the_earlier_ones_and_unknown_ones_are_refused(lab, tmp_path):
    path = tmp_path / "method.json"
    run(["timers"], path)
    before = json.loads(path.read_text())["timers"]
    run(["orders"], path)
    assert json.loads(path.read_text())["timers"] == before
    with pytest.raises(UsageError, match="nonsense"):
        run(["nonsense"], path)


def test_an_experiment_that_fails_is_named_and_the_others_are_kept(lab, tmp_path, monkeypatch, capsys):
    def fails(lab):
        raise LaunchError("the driver refused it")

    path = tmp_path / "method.json"
    monkeypatch.setitem(EXPERIMENTS, "sag", fails)
    assert run(["sag", "timers"], path) == 1
    found = json.loads(path.read_text())
    assert found["sag"] == []
    assert found["timers"]
    assert "sag: the driver refused it" in capsys.readouterr().err


def test_a_lab_takes_contenders_that_can_run_and_keeps_their_buffers(monkeypatch):
    made, queued = [], []

    def operands(cupy, problem, distribution, stream):
        made.append((problem, distribution, stream))
        return types.SimpleNamespace(pointers=lambda: "pointers")

    class Runs:
        name, seconds, watts, noise, unsynchronised = "v2_block_tile", 1e-3, 400.0, 0.0, False

        def needs(self):
            return ""

        def prepare(self, problem, pointers, stream):
            assert (pointers, stream) == ("pointers", 7)
            return types.SimpleNamespace(enqueue=queued.append)

    class Lacks(Runs):
        def needs(self):
            return "nvcc"

    def contenders(names):
        if names == ["gone"]:
            raise CatalogError("no contender is called 'gone'")
        return (Lacks() if names == ["lacks"] else Runs(),)

    class Bench(SimulatedBench):
        def _run(self, job):
            job.work.enqueue(self.stream, 0)
            return 1e-3, 1980.0

    def bench():
        found = Bench()
        found.stream = 7
        return found

    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace())
    monkeypatch.setattr(experiments, "GpuBench", bench)
    monkeypatch.setattr(experiments, "OperandSets", operands)
    monkeypatch.setattr("compare.contenders.contenders", contenders)
    lab = Lab()
    assert lab.contender("gone") is None
    assert lab.contender("lacks") is None
    problem = Problem(m=8, n=8, k=8)
    work = lab.work(lab.contender("v2_block_tile"), problem, "zeros")
    assert made == [(problem, "zeros", 7)]
    assert work.name == "v2_block_tile"
    assert work.prepared[0].buffers is not None
    assert queued == [7] * 3
