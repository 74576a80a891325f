"""What experiments, the cross-check and the measured peaks need of a device, on one: each once, and short."""

import json

import pytest

from compare import crosscheck
from compare.cli import main
from compare.experiments import Lab
from compare.timing import Job

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def test_a_laboratory_on_a_device():
    lab = Lab()
    assert lab.contender("no_such_kernel") is None
    contender = lab.contender("v2_block_tile")
    problem = contender.problem(512, 384, 256)
    work = lab.work(contender, problem, "zeros")
    (reading,) = lab.bench.slice([Job(work, 20, lead_in=2)]).readings
    assert 1e-6 < reading.seconds < 1e-2
    assert float(abs(work.prepared[0].buffers.sets[0].a).max()) == 0.0


def test_ours_and_the_other_timer_get_the_same_launches(monkeypatch):
    given = {}

    def medians(prepared):
        given.update(prepared)
        for one in prepared.values():
            one.enqueue(0)
        return dict.fromkeys(prepared, 50.0)

    monkeypatch.setattr(crosscheck, "nvbench_medians", medians)
    found = crosscheck.crosscheck(["v2_block_tile", "cublas_sgemm"], 1024, rounds=3)
    assert {one.name for one in found} == set(given) == {"v2_block_tile", "cublas_sgemm"}
    assert all(1 < one.ours_us < 10_000 for one in found)


def test_peaks_of_this_device_are_measured(capsys):
    assert main(["peaks", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["source_of_ceilings"] == "Measured here"
    assert answer["bandwidth_from"].startswith("copy")
    assert answer["bandwidth_bytes_per_s"] > 1e11
    assert any(track["ceilings"] for track in answer["tracks"])
