"""On a GPU: tuning two shapes over three kernels writes a table, goes on from its journal, and dispatch follows it."""

import dataclasses
import json
import time

import numpy as np
import pytest

from compare import tuner
from compare.check import GpuExecutor, check_contender
from compare.cli import main
from compare.contenders import contenders
from handwritten.catalog import get
from handwritten.table import read
from kernel.gemm import gemm

pytestmark = pytest.mark.gpu

KERNELS = {"simt": "v6_transposed_split,v7_wide_tile,v8_stream_k", "fp16": "h0_mma_sync,h1_wgmma_tma,h3_wide_tile"}
NAMES = {"simt": ("simt_dispatch", "fp32_simt", "float32"), "fp16": ("fp16_dispatch", "fp16_tensor", "float16")}


@pytest.mark.parametrize("track", KERNELS)
def test_a_tuned_table_is_what_dispatch_follows(track, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("GEMM_TRACKS_TABLES", str(tmp_path / "none"))
    name, long_track, dtype = NAMES[track]
    command = ["tune", "--track", track, "--shapes", "512,384x1000x264", "--kernels", KERNELS[track], "--json"]
    command += ["--out", str(tmp_path / "tables")]
    assert main(command) == 0
    (first,) = json.loads(capsys.readouterr().out)
    assert (first["reused"], first["missing"], first["track"]) == (0, 0, long_track)
    table = read(next((tmp_path / "tables").glob(f"*.{long_track}.json")))
    assert table.sha256 == first["sha256"]
    layouts = 1 if track == "simt" else 2
    assert len(table.entries) == 1 + layouts, "the square in every layout"
    for entry in table.entries:
        assert set(entry.times_us) <= set(KERNELS[track].split(","))
        assert entry.cublas_us is not None
        assert 0.5 < entry.cublas_us < 1e4

    began = time.monotonic()
    assert main(command) == 0
    (again,) = json.loads(capsys.readouterr().out)
    assert again["reused"] == 1 + layouts
    assert again["entries"] == first["entries"]
    assert time.monotonic() - began < 10

    monkeypatch.setenv("GEMM_TRACKS_TABLES", str(tmp_path / "tables"))
    (contender,) = contenders([name])
    for entry in table.entries:
        problem = entry.problem(dtype)
        verdict = check_contender(contender, problem, GpuExecutor())
        assert verdict.ok, verdict.reason
        assert verdict.variant.partition(".")[0] == entry.kernel
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape).astype(dtype) for shape in ((512, 512), (512, 512)))
    done = gemm(get(name), a, b)
    chosen = next(entry.kernel for entry in table.entries if entry.m == 512 and entry.layout == "rr")
    assert done.variant.partition(".")[0] == chosen
    assert np.abs(done.c - a.astype(np.float64) @ b.astype(np.float64)).max() < 1e-1


def test_a_sustained_final_and_a_holder_that_was_not_asked_for(tmp_path, monkeypatch, capsys):
    """The final at a small shape, in windows of 50 ms; then one new kernel against the table that is there."""
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("GEMM_TRACKS_TABLES", str(tmp_path / "none"))
    monkeypatch.setattr(tuner, "SUSTAINED_FROM_S", 0.0)
    monkeypatch.setattr(tuner, "SUSTAINED_SLACK", tuner.FINAL_SLACK)
    monkeypatch.setattr(tuner, "SUSTAINED", dataclasses.replace(tuner.SUSTAINED, window_s=0.05, capped_s=0.05))
    command = ["tune", "--track", "simt", "--shapes", "1024", "--json", "--out", str(tmp_path / "tables"), "--kernels"]
    assert main([*command, "v17_block_split,v17_block_split_hint"]) == 0
    (first,) = json.loads(capsys.readouterr().out)
    (entry,) = first["entries"]
    assert entry["window"] == "sustained"
    assert set(entry["sustained_us"]) == set(entry["us"]) == {"v17_block_split", "v17_block_split_hint"}
    assert all(0.8 < us / entry["us"][name] < 1.6 for name, us in entry["sustained_us"].items())
    assert entry["cublas_sustained_us"] > 0
    assert main([*command, "v6_transposed_split"]) == 0
    (second,) = json.loads(capsys.readouterr().out)
    assert second["entries"][0]["kernel"] == entry["kernel"], "v6 does not take the place of what beats it"


def test_the_shipped_tables_choose_what_runs_on_every_kind_of_problem():
    for name in ("simt_dispatch", "fp16_dispatch"):
        (contender,) = contenders([name])
        for m, n, k in ((1, 4096, 512), (16, 1000, 513), (129, 127, 65), (1024, 1024, 1024), (35, 79, 19)):
            problem = contender.problem(m, n, k, alpha=0.5, beta=2.0)
            verdict = check_contender(contender, problem, GpuExecutor())
            assert verdict.ok, f"{problem}: {verdict.reason}"
