"""The tuner on a device that is arithmetic: who is pruned, who wins, what a dead session leaves, what it costs."""

import dataclasses
import json
import time
from types import SimpleNamespace

import pytest

from compare import tuning
from compare.cli import main
from compare.contenders import KernelContender
from compare.libraries import LIBRARIES
from compare.timing import DeviceFacts
from compare.tuner import FINALISTS, KEPT_TIMES, Tuner, estimate_s, ordered, targets
from compare.tuning import Journal, candidates, head, mean_lines, tune_track
from handwritten.catalog import KERNELS, get
from handwritten.dispatch import slot_work
from handwritten.table import Entry, read, write
from kernel.errors import CheckError, LaunchError, UsageError
from tests.simulated_bench import SimulatedBench

RATES = {"fp32_simt": 50e12, "fp16_tensor": 700e12}


def share_of_peak(name):
    """Invented, different for each kernel, and in no order of the catalog."""
    return 0.2 + 0.75 * (sum(map(ord, name)) * 37 % 101) / 101


def seconds_of(kernel, problem):
    """Waves times k of a tile, at an invented rate; never less than two microseconds."""
    tile = kernel.tile
    area = max(tile.BLOCK_M, 1) * max(tile.BLOCK_N, 1)
    per_slot = RATES[kernel.track] / 132 * share_of_peak(kernel.name)
    return 2e-6 + 2 * area * slot_work(kernel, problem, 132) / per_slot


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedContender(KernelContender):
    """A catalog kernel whose launches take what :func:`seconds_of` says."""

    log: list = dataclasses.field(default_factory=list, compare=False)
    fails: str = ""

    def needs(self):
        return ""

    def prepare(self, problem, pointers, stream):
        if self.fails == "launch":
            raise LaunchError(f"{self.name}: too much shared memory")
        self.log.append((self.name, (problem.m, problem.n, problem.k)))
        seconds = 1e-12 if self.fails == "too fast" else seconds_of(self.kernel, problem)
        behaviour = SimpleNamespace(
            name=self.name, seconds=seconds, watts=400.0, noise=0.0005, no_graphs=False, unsynchronised=False
        )
        return SimpleNamespace(
            contender=behaviour, variant=self.name, kernel_names=(self.name,), enqueue=lambda stream: None
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedCublas(TimedContender):
    def prepare(self, problem, pointers, stream):
        found = super().prepare(problem, pointers, stream)
        found.contender.seconds = 2e-6 + problem.flop / RATES[self.track]
        return found


class NoOperands:
    """Buffers that nobody reads; ``wrong`` names the kernels whose results are."""

    distribution = "uniform"
    wrong = ()

    def __init__(self, problem):
        self.problem = problem

    def pointers(self, index=0):
        return SimpleNamespace(a=256, b=256, c=256)

    def restore_c(self, stream, index=0):
        pass

    def reverify(self, contender, prepared):
        return "5 of 9 elements wrong" if contender.name in self.wrong else None


def timed(kernel, log, fails=""):
    fields = {f.name: getattr(KernelContender.of(kernel), f.name) for f in dataclasses.fields(KernelContender)}
    return TimedContender(**fields, log=log, fails=fails)


def tuner(track="fp32_simt", names=None, fails=None, operands=NoOperands, sms=132):
    log = []
    chosen = [k for k in KERNELS if k.track == track and (names is None or k.name in names)]
    facts = DeviceFacts(name="NVIDIA H200", sms=sms, l2_bytes=1 << 20, compute_capability=(9, 0), max_mhz=1980.0)
    base = timed(get("v0_naive" if track == "fp32_simt" else "h0_mma_sync"), log)
    fields = {f.name: getattr(base, f.name) for f in dataclasses.fields(base)}
    cublas = TimedCublas(**{**fields, "name": tuning.BASELINES[track], "family": "cublas"})
    return Tuner(
        track=track,
        candidates=tuple(timed(k, log, (fails or {}).get(k.name, "")) for k in chosen),
        baseline=cublas,
        bench=SimulatedBench(facts=facts),
        resident={},
        operands=operands,
    )


def best(one, problem):
    able = [c for c in one.candidates if c.rejects(problem) is None]
    return min(able, key=lambda c: seconds_of(c.kernel, problem)).name


SHAPES = "4096,1024,512,2048,8192,16x4096x4096,4095,1x4096x4096,128x128x65536,8192x4096x14336"


@pytest.mark.parametrize("track", RATES)
def test_the_fastest_kernel_wins_although_most_are_pruned(track):
    one = tuner(track)
    wanted = targets(SHAPES, one.candidates[0])
    for number, target in enumerate(ordered(wanted)):
        one.candidates[0].log.clear()
        found = one.tune(target)
        chosen = seconds_of(get(found.entry.kernel), target.problem)
        able = [c for c in one.candidates if c.rejects(target.problem) is None
                and c.kernel.runner(target.problem) is c.kernel]  # fmt: skip
        quickest = min(seconds_of(c.kernel, target.problem) for c in able)
        assert chosen <= 1.003 * quickest, (target.name, found.entry)
        assert found.entry.key == target.key
        assert found.entry.cublas_us == pytest.approx(1e6 * (2e-6 + target.problem.flop / RATES[track]), rel=0.02)
        ran = {name for name, _ in one.candidates[0].log} - {one.baseline.name}
        assert ran | set(found.left_out) == {c.name for c in one.candidates}
        if number > 1 and target.problem.m >= 2048:
            assert len(ran) < len(one.candidates)
        if target.problem.flop > 2 * 4096**3 and track == "fp32_simt":
            assert len(ran) <= 3, "where a launch is dear, few are tried"
    assert one.bench.log.count("forget") == len(wanted)


def test_a_race_has_few_in_it_and_cublas_and_a_duel_follows():
    one = tuner()
    one.tune(targets("4096", one.candidates[0])[0])
    slices = [entry for entry in one.bench.log if isinstance(entry, list) and len(entry) > 1]
    sizes = {len({name for name, *_ in entry}) for entry in slices}
    assert max(sizes) <= FINALISTS + 1
    assert any(one.baseline.name in {name for name, *_ in entry} for entry in slices)


def test_who_hands_over_refuses_or_is_too_slow_is_not_tried():
    one = tuner("fp16_tensor")
    found = one.tune(targets("513x511x509", one.candidates[0])[0])
    assert found.entry.kernel == "h0_mma_sync"
    assert found.left_out["h1_wgmma_tma"] == "h0_mma_sync would run it"
    slow = tuner()
    assert "too slow above" in slow.tune(targets("8192", slow.candidates[0])[0]).left_out["v0_naive"]


def test_failures_cost_the_one_that_fails():
    names = ("v2_block_tile", "v6_transposed_split", "v7_wide_tile", "v8_stream_k")
    fails = {"v7_wide_tile": "launch", "v8_stream_k": "too fast"}
    one = tuner(names=names, fails=fails)
    found = one.tune(targets("1024", one.candidates[0])[0])
    assert set(found.left_out) == set(fails)
    assert "shared memory" in found.left_out["v7_wide_tile"]
    nobody = tuner(names=names[2:3], fails=fails)
    with pytest.raises(CheckError, match="too much shared memory"):
        nobody.tune(targets("1024", nobody.candidates[0])[0])
    assert nobody.known == []


def test_a_wrong_winner_loses_its_place_and_its_time():
    plain = tuner()
    first = plain.tune(targets("2048", plain.candidates[0])[0]).entry.kernel

    class Wrong(NoOperands):
        wrong = (first,)

    one = tuner(operands=Wrong)
    found = one.tune(targets("2048", one.candidates[0])[0])
    assert found.entry.kernel != first
    assert first not in found.entry.times_us
    assert "wrong result" in found.left_out[first]


def test_targets_are_the_sets_with_every_layout_at_squares():
    simt, half = (timed(get(name), []) for name in ("v7_wide_tile", "h3_wide_tile"))
    default = targets(tuning.DEFAULT_SHAPES, simt)
    assert len({target.key for target in default}) == len(default) >= 70
    layouts = {(t.problem.m, t.problem.layout) for t in targets("squares", half)}
    assert {(4096, "rr"), (4096, "rc")} <= layouts
    assert {t.problem.layout for t in targets("skinny", half)} == {"rr"}
    assert [t.problem.layout for t in targets("512x256x128@layout=rc", half)] == ["rc"]
    assert [t.key[-1] for t in targets("512@pad_a=1,512@align_b=8,512", simt)] == [4, 8, 16]
    for wrong, words in {
        "64x64x0": "nothing to multiply",
        "64@beta=1.0": "alpha, beta",
        "64@layout=cc": "layouts",
    }.items():
        with pytest.raises(UsageError, match=words):
            targets(wrong, simt)


def test_both_tracks_of_the_shipped_tables_fit_their_time():
    """200 s for both; what the device would be kept for, host work apart."""
    total = 0.0
    for track in RATES:
        one = tuner(track)
        began = one.bench.now()
        for target in ordered(targets(tuning.DEFAULT_SHAPES, one.candidates[0])):
            one.tune(target)
        spent = one.bench.now() - began
        estimate = sum(estimate_s(target) for target in targets(tuning.DEFAULT_SHAPES, one.candidates[0]))
        assert spent < estimate
        total += spent
    assert total < 120, total


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Tunes shapes with a journal in tmp_path; answers the outcome."""
    monkeypatch.setenv("GEMM_TRACKS_REVISION", "0123456789")

    def go(shapes, one=None, made_from="sources", deadline=None):
        one = one or tuner()
        journal = Journal(tmp_path / "j.jsonl", made_from)
        return tune_track(one, targets(shapes, one.candidates[0]), journal, head(one, {}), deadline)

    return go


def test_an_interrupted_session_goes_on_where_it_stopped(session, tmp_path):
    class Interrupts(NoOperands):
        def __init__(self, problem):
            if problem.m == 2048:
                raise KeyboardInterrupt
            super().__init__(problem)

    with pytest.raises(KeyboardInterrupt):
        session("4096,1024,512,2048,256", tuner(operands=Interrupts))
    assert len((tmp_path / "j.jsonl").read_text().splitlines()) == 3
    with (tmp_path / "j.jsonl").open("a") as stream:
        stream.write('{"sources": "sources", "entry": {"m": 20')
    again = tuner()
    found = session("4096,1024,512,2048,256", again)
    assert {shape for _, shape in again.candidates[0].log} == {(2048,) * 3, (256,) * 3}
    assert found.reused == 3
    assert [entry.m for entry in found.table.entries] == [4096, 1024, 512, 2048, 256]
    third = tuner()
    assert session("4096,1024,512,2048,256", third).reused == 5
    assert third.candidates[0].log == []


def test_tables_are_written_and_told(session, tmp_path, capsys):
    outcome = session("512,1024")
    empty = session("256", deadline=time.monotonic() - 1)
    assert not empty.table.entries

    def go(as_json):
        found = {"simt": outcome, "fp16": empty}
        tuning.tune_and_write(found, found.get, "nvidia-h200", tmp_path / "out", 5.0, as_json=as_json)
        return capsys.readouterr()

    told = go(as_json=False)
    (path,) = (tmp_path / "out").iterdir()
    assert [entry.kernel for entry in read(path).entries] == [entry.kernel for entry in outcome.table.entries]
    for entry in outcome.table.entries:
        assert f"{entry.m}x{entry.n}x{entry.k}" in told.out
        assert entry.kernel in told.out
    assert f"{path}: 2 entries" in told.out
    assert "fp16: no shape was reached within 5 s" in told.err
    assert "the dispatchers use it with" in told.err
    assert len(json.loads(go(as_json=True).out)) == 1


def test_other_sources_make_the_journal_as_if_it_were_not_there(session, tmp_path):
    session("512")
    one = tuner()
    assert session("512", one, made_from="others").reused == 0
    assert one.candidates[0].log
    for junk in ("null", "[]", '{"sources": "others", "entry": {"m": -1}}', "[" * 50_000, "\xff"):
        with (tmp_path / "j.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(junk + "\n")
    assert session("512", made_from="others").reused == 1


def test_sources_follow_device_candidates_and_compiler():
    a, b, c = tuner(), tuner(names=("v7_wide_tile",)), tuner(sms=114)
    assert len({tuning.sources(one, {}) for one in (a, b, c)}) == 3
    assert tuning.sources(a, {}) == tuning.sources(tuner(), {})


def test_the_budget_ends_a_session_before_a_shape_that_it_could_not_finish(session):
    found = session(
        "4096,1024,512", deadline=time.monotonic() + estimate_s(targets("1024", tuner().candidates[0])[0]) / 2
    )
    assert (found.missing, found.table.entries) == (3, ())
    found = session("1024,512", deadline=time.monotonic() + 3600)
    assert found.missing == 0


def test_tracks_share_the_time_by_what_they_are_estimated_to_take(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    wanted = {track: targets(tuning.DEFAULT_SHAPES, tuner(track).candidates[0]) for track in RATES}
    costs = {track: sum(map(estimate_s, found)) for track, found in wanted.items()}
    first = tuning.share_of(1100.0, "fp32_simt", wanted)
    assert first == pytest.approx(1000 + 100 * costs["fp32_simt"] / sum(costs.values()))
    assert tuning.share_of(1100.0, "fp16_tensor", wanted) == 1100.0, "the last has what is left"
    assert tuning.share_of(None, "fp16_tensor", wanted) is None


def test_the_table_is_what_was_found_and_dispatch_reads_it(session, tmp_path, monkeypatch):
    again = tuner()
    found = session("4096,1024", again)
    path = tmp_path / "tables" / "nvidia-h200.fp32_simt.json"
    write(found.table, path)
    back = read(path)
    assert back.gpu == "NVIDIA H200"
    assert (back.sm_count, back.revision, len(back.entries)) == (132, "0123456789", 2)
    assert all(len(entry.times_us) <= KEPT_TIMES for entry in back.entries)
    assert max(len(entry.times_us) for entry in again.known) > KEPT_TIMES, "the journal and the model keep them all"
    assert set(back.kernels) == {name for entry in back.entries for name in entry.times_us}
    assert back.stale(KERNELS) == {}
    monkeypatch.setenv("GEMM_TRACKS_TABLES", str(path.parent))
    dispatch = get("simt_dispatch")
    for entry in back.entries:
        assert dispatch.choose(entry.problem("float32")).kernel.name == entry.kernel
    assert mean_lines(found)[0].startswith("geometric mean of x cuBLAS, given (2 shapes): ")


def test_candidates_are_the_tracks_own_kernels_without_dispatchers():
    from compare.contenders import every_contender

    found = candidates(every_contender(), "fp32_simt", None, required=True)
    assert {one.name for one in found} == {k.name for k in KERNELS if k.track == "fp32_simt"}
    assert [one.name for one in candidates(every_contender(), "fp16_tensor", ["h1*,v7*"], required=True)] == [
        "h1_wgmma_tma"
    ]
    assert candidates(every_contender(), "fp16_tensor", ["v7*"], required=False) == ()
    with pytest.raises(UsageError, match="fp16_tensor"):
        candidates(every_contender(), "fp16_tensor", ["v7*"], required=True)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([], 3),
        (["--track", "tf32"], 2),
        (["--out", "x.json"], 2),
        (["--track", "simt", "--kernels", "h1*"], 2),
        (["--track", "simt", "--kernels", "zzz"], 2),
        (["--shapes", "64x64x0"], 2),
    ],
)
def test_bad_usage_and_no_gpu_have_their_exit_statuses(arguments, status, monkeypatch, capsys):
    from compare import driver

    monkeypatch.setattr(driver, "query", lambda: driver.Driver(version="", devices=(), problem="no NVIDIA driver"))
    assert main(["tune", *arguments]) == status
    assert capsys.readouterr().err.startswith("gemm-tracks: ")


def test_the_baselines_are_cublas_on_the_same_track():
    for track, name in tuning.BASELINES.items():
        (library,) = [one for one in LIBRARIES if one.name == name]
        assert (library.track, library.family) == (track, "cublas")


def test_an_entry_survives_the_journal_to_five_digits(tmp_path):
    journal = Journal(tmp_path / "new" / "j.jsonl", "x")
    entry = Entry(1, 2, 3, "rr", "float32", 4, {"v0_naive": 1.23456789}, None)
    journal.add(entry, {"v1_thread_tile": "slow"})
    (found,) = Journal(journal.path, "x").entries.values()
    assert found.times_us == {"v0_naive": 1.2346}
    assert json.loads(journal.path.read_text())["left_out"] == {"v1_thread_tile": "slow"}
