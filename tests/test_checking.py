"""The command check around its checks: what it leaves out and says, on an executor that is NumPy."""

import dataclasses

import pytest

from compare import checking, driver
from compare.check import FuzzReport
from compare.checking import print_fuzz, run_checks
from compare.cli import main
from kernel.errors import MissingToolError
from tests.test_check import RIGHT, NumpyExecutor, NumpyGemm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lacking(NumpyGemm):
    """Needs a package that is not installed."""

    name: str = "lacking"

    def needs(self):
        return "cupy-cuda13x"


@pytest.fixture
def on_gpu(monkeypatch):
    """What a GPU would check: the contenders given, computed by NumPy."""

    def chosen(*contenders):
        monkeypatch.setattr(checking, "choose_executor", lambda device: NumpyExecutor("gpu"))
        monkeypatch.setattr(checking, "contenders", lambda patterns, mine: contenders)

    return chosen


def check(shapes):
    return run_checks(["*"], shapes, "", fuzz=0, seed=0, as_json=False)


def test_contenders_whose_packages_are_missing_are_left_out_by_name(on_gpu, capsys):
    on_gpu(RIGHT, Lacking())
    assert check("5x4x3") is False
    captured = capsys.readouterr()
    assert "left out for what is not installed: lacking (cupy-cuda13x)" in captured.err
    assert "1 of 1 checks passed, 0 refused" in captured.out


def test_where_every_contender_lacks_something_nothing_is_checked(on_gpu):
    on_gpu(Lacking(), Lacking(name="also"))
    with pytest.raises(MissingToolError) as missing:
        check("5x4x3")
    assert str(missing.value) == (
        "none of the contenders can run here; what each needs: lacking (cupy-cuda13x), also (cupy-cuda13x)"
    )


@pytest.mark.nvcc
def test_without_a_gpu_it_is_said_that_the_machine_stands_in(monkeypatch, capsys):
    from compare import check as checks

    monkeypatch.setattr(driver, "query", lambda: driver.Driver(version="", devices=(), problem="no GPU: none"))
    monkeypatch.setattr(checks, "GpuExecutor", lambda ordinal: (_ for _ in ()).throw(MissingToolError("no CuPy")))
    assert main(["check", "--kernels", "v0_naive", "--shapes", "4"]) == 0
    captured = capsys.readouterr()
    assert "no GPU: none: checking on the PTX machine, on the CPU" in " ".join(captured.err.split())
    assert "1 of 1 checks passed" in captured.out


def test_what_a_draw_refused_is_told_by_contender_and_reason(capsys):
    report = FuzzReport(
        seed=7,
        drawn=4,
        passed={"v2": 1},
        refused={("v2", "n = # is odd"): 2, ("v0", "k = #"): 1},
        worst={"v2": 0.25},
        failures=(),
    )
    print_fuzz(report)
    assert capsys.readouterr().out.splitlines() == [
        "seed 7: 4 problems drawn, 1 run (25 %), 3 refused",
        "  passed 1x, v2: largest error 0.25 of its bound",
        "  refused 1x, v0: k = #",
        "  refused 2x, v2: n = # is odd",
        "no failure",
    ]
