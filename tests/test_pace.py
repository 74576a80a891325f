"""What a check on the CPU is expected to take, against what runs of the machine take: ratios only, no host's speed."""

import numpy as np
import pytest

from compare import checking, console, pace
from compare.check import ROUNDS, CpuExecutor, cpu_seconds
from compare.contenders import contenders
from compare.shapes import parse
from kernel.machine.gemm import simulate

pytestmark = pytest.mark.nvcc
NAMES = ["v0_naive", "v1_thread_tile", "v2_block_tile", "v7_wide_tile", "h0_mma_sync", "h1_wgmma_tma"]


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_takes_what_its_work_says(name):
    """Within a factor of three, the quickest of three runs on both sides: other work on the host only adds."""
    (contender,) = contenders([name])
    problem = contender.problem(256, 256, 128)
    a, b = (np.ones(shape, problem.dtype_in) for shape in ((256, 128), (128, 256)))

    def seconds():
        return sum(report.seconds for report in simulate(contender.kernel, problem, a, b).reports)

    pace.multiply_add_s.cache_clear()
    speed = [pace.multiply_add_s.__wrapped__() for _ in range(3)]
    took = min(seconds() for _ in range(3))
    expected = min(speed) * (pace.work(contender, problem) - pace.ROUND)
    assert expected / 3 < took < 3 * expected, (took, expected)


def test_more_reads_for_each_product_cost_more():
    order = [
        pace.ratio(contenders([name])[0]) for name in ("v0_naive", "v1_thread_tile", "v2_block_tile", "v7_wide_tile")
    ]
    assert order == sorted(order, reverse=True)
    assert order[0] > 5 * order[-1]


def test_what_is_expected_of_checks_leaves_out_what_is_refused(monkeypatch):
    monkeypatch.setattr(pace, "multiply_add_s", lambda: 2e-9)
    chosen = contenders(["v2_block_tile", "cublas_sgemm", "v6_transposed_split"])
    names = [contender.name for contender in chosen]
    shapes = parse("64,0x8x8,20000,64x64x65")
    found = dict(
        zip(
            ((s, n) for s in map(str, shapes) for n in names),
            checking.expected_s(chosen, shapes, CpuExecutor()),
            strict=True,
        )
    )
    assert {name for (_, name), seconds in found.items() if seconds is None} == set(names)
    assert [shape for (shape, name), seconds in found.items() if name == "v2_block_tile" and seconds is None] == [
        "20000x20000x20000"
    ]
    assert found["0x8x8", "v2_block_tile"] == 0
    reading = pace.READING * 2e-9
    (v2,) = contenders(["v2_block_tile"])
    first, later = (v2.problem(64, 64, k) for k in (64, 65))
    assert found["64x64x64", "v2_block_tile"] == pytest.approx(cpu_seconds(v2, first) + reading)
    assert found["64x64x65", "v2_block_tile"] == pytest.approx(cpu_seconds(v2, later))
    assert cpu_seconds(v2, first) == pytest.approx(2e-9 * ROUNDS * pace.work(v2, first))


def test_the_bar_moves_by_what_a_check_takes(monkeypatch, capsys):
    """So that what is left follows from what finished checks took."""
    from compare.cli import main

    seen = []

    class Bar:
        def __init__(self, label, total, after_s=0.0):
            self.total, self.seen = total, seen if label == "checking" else []

        def __enter__(self):
            return lambda done, text: self.seen.append(done / self.total)

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(console, "progress", Bar)
    monkeypatch.setattr(pace, "multiply_add_s", lambda: 2e-9)
    assert main(["check", "--device", "cpu", "--kernels", "v0_naive", "--shapes", "4,96x96x96"]) == 0
    assert len(seen) == 2
    assert 0 < seen[0] < 1
    assert seen[1] == pytest.approx(1)
