"""Nsight Compute's answer: read where there is one, and a reason where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compare import driver
from compare.contenders import contenders
from compare.counters import _verdict, counters, predicted_counters, profile_contenders
from kernel import profiler, toolchain
from kernel.errors import UsageError
from kernel.inspection import inspect_kernel
from kernel.plan import plan

CSV = """==PROF== Connected to process 1
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1","python","here","v2_block_tile","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","Command line profiler metrics","l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum","","29360128"
"0","1","python","here","v2_block_tile","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","Command line profiler metrics","smsp__inst_executed_op_shared_ld.sum","inst","5,242,880"
"1","1","python","here","v4_pad","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","Command line profiler metrics","l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum","","n/a"
"1","1","python","here","v4_pad","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","Command line profiler metrics","smsp__inst_executed_op_shared_ld.sum","inst","1.5e+06"
"""  # noqa: E501


def test_csv_is_read_per_launch():
    (first, values), (second, others) = profiler.parse(CSV)
    assert (first, second) == ("v2_block_tile", "v4_pad")
    assert values == {profiler.LOAD_CONFLICTS: 29360128.0, profiler.LOAD_REQUESTS: 5242880.0}
    assert others == {profiler.LOAD_REQUESTS: 1.5e6}


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    """A profiler that says what a test wants it to say."""

    def install(body):
        path = tmp_path / "ncu"
        find_log = "log = [a.split('=', 1)[1] for a in sys.argv if a.startswith('--log-file=')]"
        path.write_text(f"#!{sys.executable}\nimport sys\n{find_log}\n{body}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        toolchain.find.cache_clear()

    yield install
    toolchain.find.cache_clear()


VERSION = "if '--version' in sys.argv:\n    print('Version 2025.3.0'); sys.exit(0)\n"


def test_without_the_tool_the_answer_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    toolchain.find.cache_clear()
    try:
        assert profiler.profile(["true"]).not_available.startswith("tool")
    finally:
        toolchain.find.cache_clear()


def test_without_permission_the_answer_says_so(fake_ncu):
    fake_ncu(VERSION + "open(log[0], 'w').write('==ERROR== ERR_NVGPUCTRPERM - no permission')\nsys.exit(1)")
    assert profiler.profile(["true"]).not_available.startswith("permission")


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("==PROF== Connected\n==ERROR== Failed to profile\n", "==ERROR== Failed to profile"),
        ("the last that was said", "the last that was said"),
    ],
)
def test_without_a_launch_the_answer_is_what_the_tool_said(fake_ncu, said, answer):
    fake_ncu(VERSION + f"open(log[0], 'w').write({said!r})\nsys.exit(1)")
    found = profiler.profile(["true"])
    assert (found.not_available, found.launches) == (answer, ())


def test_a_tool_that_says_nothing_profiled_nothing(fake_ncu):
    fake_ncu(VERSION)
    assert profiler.profile(["true"]).not_available.endswith(" profiled nothing")


def test_a_tool_that_takes_too_long_is_ended(fake_ncu):
    fake_ncu(VERSION + "sys.stdin.readline()\nimport signal; signal.pause()")
    assert profiler.profile(["true"], timeout_s=0.05).not_available.endswith(" did not finish within 0.05 s")


def test_a_metric_that_is_not_there_is_dropped_and_named(fake_ncu):
    fake_ncu(
        VERSION + f"metrics = [a for a in sys.argv if a.startswith('--metrics=')][0]\n"
        f"if '{profiler.FMA_PIPE}' in metrics:\n"
        f"    print('==ERROR== Failed to find metric {profiler.FMA_PIPE}'); sys.exit(1)\n"
        f"open(log[0], 'w').write({CSV!r})\nprint('said by the command')"
    )
    found = profiler.profile(["true"])
    assert found.missing == (profiler.FMA_PIPE,)
    assert len(found.launches) == 2
    assert "said by the command" in found.output


@pytest.mark.nvcc
def test_predictions_stand_where_counters_cannot_be_read(monkeypatch):
    monkeypatch.setattr(
        "compare.counters.profile_contenders", lambda *_: profiler.Profile(not_available="permission: no")
    )
    found = counters("v4_pad")
    lines = {line.what: line for line in found.lines}
    assert found.not_available == "permission: no"
    assert lines["shared loads, bank conflicts"].predicted == 4_194_304
    assert lines["shared loads, wavefronts"].predicted == 12_582_912
    assert lines["shared loads, bank conflicts"].measured is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_counters_are_of_one_kernel_of_a_catalog():
    for name in ("cublas_sgemm", "v4_*"):
        with pytest.raises(UsageError, match="one kernel from a catalog is needed"):
            counters(name)


def test_conflicts_within_the_noise_are_none():
    def verdict(requests, conflicts, wavefronts):
        names = (profiler.LOAD_REQUESTS, profiler.LOAD_CONFLICTS, profiler.LOAD_WAVEFRONTS)
        measured = dict(zip(names, (requests, conflicts, wavefronts), strict=True))
        return _verdict({"wavefronts": 1500.0, "conflicts": 500.0}, measured)

    assert verdict(1000.0, 5.0, 1005.0) == "free of conflicts within the counter's noise"
    assert verdict(1000.0, 500.0, 1500.0) == "0.50 extra passes a request; 1.50 times the ideal wavefronts"
    assert verdict(0.0, 5.0, 5.0) == ""


def test_a_contender_that_left_no_counters_is_named(monkeypatch):
    output = (
        'said\n{"name": "v2", "kernels": ["clear", "gemm"], "main": null}\n'
        '{"name": "v4", "kernels": ["gemm"], "main": 0}\n'
    )
    launches = (("clear", {profiler.DURATION: 1.0}), ("gemm", {profiler.DURATION: 9.0}))
    answer = profiler.Profile(launches=launches, output=output)
    monkeypatch.setattr(driver, "query", lambda: driver.Driver(version="13.0", devices=(), problem=""))
    monkeypatch.setattr(profiler, "profile", lambda command: answer)
    assert profile_contenders((8, 8, 8), ["v2", "v4"]).not_available == "no counters came back for v4"
    assert profile_contenders((8, 8, 8), ["v2"]).launches == launches[1:]


def test_counters_are_of_the_launch_that_says_it_multiplies_even_where_another_takes_longer(monkeypatch):
    output = '{"name": "v17", "kernels": ["gemm", "sum"], "main": 0}\n{"name": "v2", "kernels": ["v2"], "main": 0}\n'
    launches = tuple((name, {profiler.DURATION: us}) for name, us in (("gemm", 3.0), ("sum", 9.0), ("v2", 1.0)))
    monkeypatch.setattr(driver, "query", lambda: driver.Driver(version="13.0", devices=(), problem=""))
    monkeypatch.setattr(profiler, "profile", lambda command: profiler.Profile(launches=launches, output=output))
    assert profile_contenders((8, 8, 8), ["v17", "v2"]).launches == (launches[0], launches[2])


@pytest.mark.nvcc
def test_predictions_count_the_blocks_that_multiply_and_not_those_that_add_up():
    (contender,) = contenders(["v17_small"])
    shape = (128, 128, 65536)
    product, adding = plan(contender.kernel, contender.problem(*shape)).launches
    assert (product.blocks, product.threads) != (adding.blocks, adding.threads)
    loads = [access for access in inspect_kernel(contender.kernel).shared if access.kind == "load"]
    steps = product.blocks * product.threads // 32 * shape[2]
    requests = predicted_counters(contender, shape)["requests"]
    assert requests == steps * sum(access.per_k_step for access in loads) > 0


@pytest.mark.gpu
def test_predicted_counters_are_what_the_hardware_counts(tmp_path):
    """Skips where counters may not be read."""
    done = subprocess.run(
        [sys.executable, "-m", "compare.evidence", "--only", "counters", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "counters.json").read_text())
    if "not_available" in found:
        pytest.skip(found["not_available"])
    for name, one in found["kernels"].items():
        assert one["conflicts"] == pytest.approx(one["predicted"]["conflicts"], rel=0.01, abs=0.01 * one["requests"]), (
            name
        )
        assert one["wavefronts"] == pytest.approx(one["predicted"]["wavefronts"], rel=0.01), name
        # The counter also counts cp.async, one and a half a copy on the H200; loads alone are what is predicted.
        more = 1.1 if name not in ("v2_block_tile", "s3_register_staged", "s4_block64") else 1.01
        assert one["predicted"]["requests"] * 0.99 <= one["requests"] <= one["predicted"]["requests"] * more, name
    for probe in found["probes"]:
        assert probe["conflicts_per_access"] == pytest.approx(probe["predicted"], abs=0.02), probe["name"]
        assert probe["wavefronts_per_access"] == pytest.approx(probe["predicted_wavefronts"], abs=0.02), probe["name"]


@pytest.mark.gpu
@pytest.mark.parametrize("part", ["tails", "numerics"])
def test_evidence_of_tails_and_numerics_can_be_measured(part, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "compare.evidence", "--only", part, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / f"{part}.json").read_text())
    if part == "tails":
        for case in found["cases"]:
            assert set(case["time_us"]) == {"guard", "mask", "padding", "fast path with tail"}
            assert all(0 < value < 1e6 for value in case["time_us"].values())
    else:
        assert sum(map(len, found["bit_identical_groups"])) >= 10
        assert found["growth"]


@pytest.mark.gpu
def test_conflicts_of_two_of_the_three_ways_are_counted(tmp_path):
    """Skips where counters may not be read."""
    done = subprocess.run(
        [sys.executable, "-m", "compare.evidence", "--only", "three_ways", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "three_ways.json").read_text())
    if "not_available" in found:
        pytest.skip(found["not_available"])
    assert set(found["kernels"]) == {"v7_wide_tile", "cutlass_simt_128x256x5_s1_rr"}
    assert all(one["conflicts"] is not None and one["wavefronts"] > 0 for one in found["kernels"].values())
