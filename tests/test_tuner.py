"""The tuner on a device that is arithmetic: who is pruned, who wins, what a dead session leaves, what it costs."""

import dataclasses
import json
import re
import time
from types import SimpleNamespace

import pytest

from compare import tuning
from compare.cli import main
from compare.contenders import KernelContender
from compare.libraries import LIBRARIES
from compare.timing import DeviceFacts
from compare.tuner import (
    FINALISTS,
    KEPT_TIMES,
    SUSTAINED,
    Bursts,
    Tuner,
    _refusal,
    bursts_of,
    estimate_s,
    merged,
    ordered,
    targets,
)
from compare.tuning import Journal, candidates, head, mean_lines, overturned, scope_of, tune_track
from handwritten.catalog import KERNELS, get
from handwritten.dispatch import slot_work
from handwritten.table import Entry, Table, Tuned, fingerprint, read, write
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
    seconds: float = 0.0
    watts: float = 400.0

    def needs(self):
        return ""

    def prepare(self, problem, pointers, stream):
        if self.fails == "launch":
            raise LaunchError(f"{self.name}: too much shared memory")
        self.log.append((self.name, (problem.m, problem.n, problem.k)))
        seconds = 1e-12 if self.fails == "too fast" else self.seconds or seconds_of(self.kernel, problem)
        behaviour = SimpleNamespace(
            name=self.name, seconds=seconds, watts=self.watts, noise=0.0005, no_graphs=False, unsynchronised=False
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
    assert found.entry.kernel == "h9_packed_64x64"
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
    """400 s for both; what the device would be kept for, host work apart. Two thirds of it are sustained finals."""
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
    assert total < 250, total


FAST, THRIFTY = "v14_early_loads_hint", "v15_late_loads_grid_hint"


def under_a_cap(**more):
    """At 4096: a kernel that leads by 1 % in bursts and draws too much, one that does not, and one that is slow."""
    one = tuner(names=(FAST, THRIFTY, "v6_transposed_split"), **more)
    are = {FAST: (2.50e-3, 620.0), THRIFTY: (2.52e-3, 450.0), "v6_transposed_split": (3.0e-3, 400.0)}
    one.candidates = tuple(dataclasses.replace(c, seconds=are[c.name][0], watts=are[c.name][1]) for c in one.candidates)
    one.bench.cap_w = 520.0
    return one


def windows(one):
    """Names in the order of their sustained windows."""
    return [entry[0][1] for entry in one.bench.log if isinstance(entry, list) and entry[0][0] == "window"]


def test_sustained_windows_decide_where_launches_are_long_and_overturn_bursts(session):
    one = under_a_cap()
    outcome = session("4096", one)
    (entry,) = outcome.table.entries
    assert entry.kernel == THRIFTY
    assert entry.window == "sustained"
    assert entry.times_us[FAST] < entry.times_us[THRIFTY], "bursts stay what they were"
    assert list(entry.times_us)[:2] == list(entry.sustained_us) == [THRIFTY, FAST]
    assert entry.sustained_us[FAST] > 1.05 * entry.sustained_us[THRIFTY]
    assert entry.x_cublas == pytest.approx(entry.cublas_sustained_us / entry.sustained_us[THRIFTY])
    ran = windows(one)
    assert ran[0] == ran[-1] == one.baseline.name
    assert set(ran) == {FAST, THRIFTY, one.baseline.name}, "who is more than 3 % behind has no window"
    assert min(map(ran.count, (FAST, THRIFTY))) >= SUSTAINED.stop.min_rounds >= 2
    (line,) = overturned(outcome)
    assert re.match(rf"4096x4096x4096 rr: {FAST} was 0\.\d % ahead of {THRIFTY} in bursts", line)


def test_short_launches_and_a_clear_lead_are_decided_in_bursts():
    short = tuner()
    found = short.tune(targets("1024", short.candidates[0])[0])
    assert (found.entry.window, found.entry.sustained_us, windows(short)) == ("burst", {}, [])
    clear = under_a_cap()
    clear.candidates = tuple(c for c in clear.candidates if c.name != THRIFTY)
    found = clear.tune(targets("4096", clear.candidates[0])[0])
    assert (found.entry.kernel, found.entry.window, windows(clear)) == (FAST, "burst", [])


def test_finalists_are_the_three_within_three_percent_and_the_holder():
    times = {"a": 1000.0, "b": 1010.0, "c": 1020.0, "d": 1025.0, "e": 1029.0, "f": 1110.0, "g": 1200.0}
    bursts = Bursts(Entry(64, 64, 64, "rr", "float32", 16, times), tuple(times))
    assert bursts.finalists() == bursts.finalists("b") == ("a", "b", "c")
    assert bursts.finalists("f") == ("a", "b", "c", "f")
    assert bursts.finalists("g") == ("a", "b", "c"), "far behind in bursts"
    assert Bursts(bursts.entry, ("a", "f")).finalists() == ()
    short = dataclasses.replace(bursts.entry, times_us={"a": 999.0, "b": 999.5})
    assert Bursts(short, ("a", "b")).finalists("b") == ()


def test_a_finalist_that_fails_or_is_wrong_loses_its_place():
    class Wrong(NoOperands):
        wrong = (THRIFTY,)

    one = under_a_cap(operands=Wrong)
    found = one.tune(targets("4096", one.candidates[0])[0])
    assert found.entry.kernel == FAST
    assert "wrong result" in found.left_out[THRIFTY]
    assert list(found.entry.sustained_us) == [FAST]


def test_a_session_that_stops_between_bursts_and_final_goes_on_with_the_final(session, tmp_path):
    def stop(*arguments):
        raise KeyboardInterrupt

    one = under_a_cap()
    one.bench.window = stop
    with pytest.raises(KeyboardInterrupt):
        session("4096", one)
    (line,) = map(json.loads, (tmp_path / "j.jsonl").read_text().splitlines())
    assert line["raced"][:2] == [FAST, THRIFTY]
    assert "entry" not in line

    again = under_a_cap()
    outcome = session("4096", again)
    assert {name for name, _ in again.candidates[0].log} == {FAST, THRIFTY, again.baseline.name}
    assert not any(isinstance(entry, list) and len(entry) > 1 for entry in again.bench.log), "no race is run again"
    assert outcome.reused == 0
    assert outcome.table.entries[0].kernel == THRIFTY
    assert outcome.table.entries[0].times_us[FAST] == line["burst"]["us"][FAST]
    third = under_a_cap()
    assert session("4096", third).reused == 1
    assert third.bench.log == []


def test_the_final_is_in_the_estimate_and_what_is_left_of_a_shape_is_less():
    (large,) = targets("8192", tuner().candidates[0])
    (small,) = targets("2048", tuner().candidates[0])
    times = Entry(8192, 8192, 8192, "rr", "float32", 16, {FAST: 20000.0, THRIFTY: 20100.0})
    left = estimate_s(large, Bursts(times, (FAST, THRIFTY)))
    assert SUSTAINED.window_s * 9 < left < estimate_s(large) < 20
    assert estimate_s(small) < 1


def base_table(**times):
    entry = Entry(4096, 4096, 4096, "rr", "float32", 16, times)
    other = Entry(640, 640, 640, "rr", "float32", 16, {"v7_wide_tile": 20.0})
    names = {*times, "v7_wide_tile"}
    return Table(
        track="fp32_simt", gpu="NVIDIA H200", sm_count=132, toolkit="nvcc 13.0.88", date="2026-01-02T03:04:05",
        revision="old", method="by hand", entries=(other, entry),
        kernels={name: Tuned(fingerprint(get(name)) if name in map(str, (k.name for k in KERNELS)) else "0", 2)
                 for name in names},
    )  # fmt: skip


H200 = SimpleNamespace(name="NVIDIA H200", sm_count=132, slug="nvidia-h200")


def test_holders_come_from_the_table_that_is_there_and_race_whatever_was_asked_for(tmp_path, monkeypatch):
    from compare.contenders import every_contender

    known = every_contender()
    asked = candidates(known, "fp32_simt", ["v6_transposed_split"], required=True)
    wanted = targets("4096,512", asked[0])
    write(base_table(v99_gone=1.0, **{THRIFTY: 2.0}), tmp_path / "out" / "nvidia-h200.fp32_simt.json")
    scope = scope_of(known, "fp32_simt", asked, wanted, tmp_path / "out", H200)
    assert [target.holder for target in scope.wanted] == [THRIFTY, ""]
    assert [one.name for one in scope.candidates] == ["v6_transposed_split", THRIFTY]
    assert scope.base.revision == "old"
    # Where nothing is at the path: what the dispatchers use on this device, and nothing of another's.
    monkeypatch.setenv("GEMM_TRACKS_TABLES", str(tmp_path / "out"))
    assert scope_of(known, "fp32_simt", asked, wanted, tmp_path / "new", H200).base.revision == "old"
    h100 = SimpleNamespace(name="NVIDIA H100", sm_count=132, slug="nvidia-h100")
    assert scope_of(known, "fp32_simt", asked, wanted, tmp_path / "new", h100).base is None
    assert scope_of(known, "fp32_simt", asked, wanted, None, h100).beside == ()
    # All kernels are candidates anyway: the holder still has to be beaten.
    everyone = candidates(known, "fp32_simt", None, required=True)
    scope = scope_of(known, "fp32_simt", everyone, wanted, tmp_path / "out", H200)
    assert (scope.wanted[0].holder, scope.beside) == (THRIFTY, ())


def test_a_damaged_table_and_another_devices_are_named_and_written_anew(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text("{", encoding="utf-8")
    assert tuning.base_of(path, "fp32_simt", H200) is None
    write(dataclasses.replace(base_table(**{FAST: 1.0}), gpu="NVIDIA H20", sm_count=78), path)
    assert tuning.base_of(path, "fp32_simt", H200) is None
    told = re.sub(r"\s+", " ", capsys.readouterr().err)
    assert "not a dispatch table" in told
    assert "NVIDIA H20 (78 SMs), fp32_simt; it is replaced" in told


def test_a_holder_is_tried_whatever_the_model_says_of_it():
    one = tuner()
    for target in ordered(targets("4096,1024,2048", one.candidates[0])):
        one.tune(target)
    (target,) = targets("8192", one.candidates[0])
    slow = next(name for name, why in tuner_copy(one).tune(target).left_out.items() if "predicted" in why)
    log = one.candidates[0].log
    log.clear()
    found = one.tune(dataclasses.replace(target, holder=slow))
    assert slow in found.entry.times_us
    assert len({name for name, _ in log} - {slow, one.baseline.name}) == 3, "it takes nobody's turn"
    assert found.entry.kernel != slow


def tuner_copy(one):
    again = tuner()
    again.known = list(one.known)
    return again


def test_a_table_grows_and_keeps_other_shapes_and_what_it_knew_of_their_kernels(session, tmp_path):
    base = base_table(**{THRIFTY: 2500.0})
    base = dataclasses.replace(base, kernels={**base.kernels, "v7_wide_tile": Tuned("f" * 16, 2)})
    outcome = session("4096", under_a_cap(), holder=THRIFTY, base=base)
    assert [entry.m for entry in outcome.table.entries] == [640, 4096]
    kept = dataclasses.replace(base.entries[0], kept_from="2026-01-02 (revision old)")
    assert outcome.table.entries[0] == kept
    assert [entry.m for entry in outcome.entries] == [4096]
    assert outcome.table.kernels["v7_wide_tile"].fingerprint == "f" * 16
    assert outcome.table.stale(KERNELS) == {"v7_wide_tile": "changed"}
    told = "1 of 2 entries kept from the table of 2026-01-02 (revision old)"
    assert outcome.table.how == f"{outcome.table.method}; {told}"
    write(outcome.table, tmp_path / "t.json")
    back = read(tmp_path / "t.json")
    assert (back.how, back.entries[0]) == (outcome.table.how, kept)
    assert back.entries[1].window == "sustained"
    assert back.by_key[outcome.entries[0].key].kernel == THRIFTY
    nothing = session("1536", deadline=time.monotonic() - 1, base=base)
    assert nothing.entries == ()
    assert [entry.key for entry in merged(head(tuner(), {}), (), base).entries] == [entry.key for entry in base.entries]


def test_what_a_table_says_of_kept_entries_is_what_it_holds_when_it_is_asked(tmp_path):
    base = base_table(**{THRIFTY: 2500.0})
    again = dataclasses.replace(head(tuner(), {}), date="2026-02-03T04:05:06", revision="new")
    once = merged(again, (), base)
    assert once.how.endswith("; 2 of 2 entries kept from the table of 2026-01-02 (revision old)")
    # Kept once more, an entry still says who timed it, and not who had it last.
    fresh = Entry(512, 512, 512, "rr", "float32", 16, {"v7_wide_tile": 9.0})
    twice = merged(again, (dataclasses.replace(once.entries[0], kept_from="", cublas_us=2.0), fresh), once)
    assert twice.how.endswith("; 1 of 3 entries kept from the table of 2026-01-02 (revision old)")
    thrice = merged(again, (), twice)
    assert thrice.how.endswith(
        "; 2 of 3 entries kept from the table of 2026-02-03 (revision new)"
        "; 1 of 3 entries kept from the table of 2026-01-02 (revision old)"
    )
    # Whoever takes entries out afterwards, in the file even, leaves no number behind that is not true.
    write(thrice, tmp_path / "t.json")
    record = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    record["entries"] = [one for one in record["entries"] if one["kept_from"].endswith("(revision new)")][:1]
    (tmp_path / "t.json").write_text(json.dumps(record), encoding="utf-8")
    left = read(tmp_path / "t.json")
    assert left.how == f"{left.method}; 1 of 1 entries kept from the table of 2026-02-03 (revision new)"
    assert "kept" not in left.method


def test_the_command_grows_the_table_and_new_kernels_have_to_beat_whoever_holds_a_place(tmp_path, monkeypatch, capsys):
    from compare import driver, groups

    h200 = driver.Device(
        ordinal=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132, memory_bytes=1 << 37, l2_bytes=1 << 25
    )
    made = []

    def tuner_for(track, usable, baseline, site, built):
        one = under_a_cap()
        one.candidates = tuple(c for c in one.candidates if c.name in {known.name for known in usable})
        made.append(one)
        return one

    for where, name, value in (
        (driver, "query", lambda: driver.Driver(version="13.0", devices=(h200,), problem="")),
        (groups, "GpuSite", SimpleNamespace),
        (tuning, "build", lambda wanted: {}),
        (tuning, "baseline_of", lambda track: SimpleNamespace(needs=lambda: "")),
        (tuning, "tuner_for", tuner_for),
        (KernelContender, "needs", lambda one: ""),
    ):
        monkeypatch.setattr(where, name, value)
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tables" / "nvidia-h200.fp32_simt.json"
    write(base_table(**{THRIFTY: 2500.0}), path)
    command = ["tune", "--track", "simt", "--shapes", "4096", "--json", "--out", str(path.parent), "--kernels"]

    def go(kernels):
        assert main([*command, kernels]) == 0
        (record,) = json.loads(capsys.readouterr().out)
        assert record["kept"] == 1
        assert [entry.m for entry in read(path).entries] == [640, 4096]
        return record["entries"][0]["kernel"], record["reused"]

    assert go("v6_transposed_split") == (THRIFTY, 0)
    assert [c.name for c in made[-1].candidates] == ["v6_transposed_split", THRIFTY]
    assert go(FAST) == (THRIFTY, 0)
    assert go(FAST) == (THRIFTY, 1), "the same command finds it in the journal"
    write(base_table(v6_transposed_split=3000.0), path)
    assert go(THRIFTY) == (THRIFTY, 0)
    assert go(THRIFTY) == (THRIFTY, 1), "it holds the place now"


def test_where_nothing_can_run_tune_says_what_is_missing(tmp_path, monkeypatch, capsys):
    from compare import driver, groups

    h200 = driver.Device(
        ordinal=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132, memory_bytes=1 << 37, l2_bytes=1 << 25
    )
    for where, name, value in (
        (driver, "query", lambda: driver.Driver(version="13.0", devices=(h200,), problem="")),
        (groups, "GpuSite", SimpleNamespace),
        (tuning, "build", lambda wanted: {}),
        (KernelContender, "needs", lambda one: "cupy-cuda13x"),
    ):
        monkeypatch.setattr(where, name, value)
    assert main(["tune", "--track", "simt", "--shapes", "512", "--kernels", "v7*", "--out", str(tmp_path)]) == 3
    assert "none of the candidates can run here: cupy-cuda13x" in re.sub(r"\s+", " ", capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_who_refuses_a_problem_is_left_out_with_its_own_words():
    one = timed(get("v7_wide_tile"), [])
    square = one.problem(64, 64, 64)
    assert _refusal(one, square) is None
    assert _refusal(one, square.replace(layout="rc")).startswith("layout is rc (A, B); v7_wide_tile takes rr")


def test_an_entry_of_the_journal_counts_only_where_the_holder_was_in_it(session):
    session("1024", tuner(names=("v6_transposed_split", "v7_wide_tile")), holder="v7_wide_tile")
    names = ("v6_transposed_split", "v8_stream_k")
    for holder, reused in (("", 1), ("v6_transposed_split", 1), ("v7_wide_tile", 1), ("v8_stream_k", 0)):
        assert session("1024", tuner(names=names), holder=holder).reused == reused, holder
    assert session("1024", tuner(names=names), holder="v8_stream_k").reused == 1


def test_a_kernel_raced_beside_those_asked_for_must_be_what_it_was(session):
    names = ("v6_transposed_split", "v7_wide_tile")
    now = fingerprint(get("v7_wide_tile"))
    session("1024", tuner(names=names), holder="v7_wide_tile", beside={"v7_wide_tile": Tuned(now, 2)})
    assert session("1024", tuner(names=names)).reused == 1, "who holds the place may change with the table"
    session("512", tuner(names=names), beside={"v7_wide_tile": Tuned("0" * 16)})
    assert session("512", tuner(names=names)).reused == 0
    session("256", tuner(names=names), beside={"v99_gone": Tuned(now)})
    assert session("256", tuner(names=names)).reused == 0
    a, b = tuner(names=names), tuner(names=names[:1])
    assert tuning.sources(a, {}, {"v7_wide_tile"}) == tuning.sources(b, {})


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Tunes shapes with a journal in tmp_path; answers the outcome."""
    monkeypatch.setenv("GEMM_TRACKS_REVISION", "0123456789")

    def go(shapes, one=None, made_from="sources", deadline=None, holder="", base=None, beside=None):
        one = one or tuner()
        journal = Journal(tmp_path / "j.jsonl", made_from, beside)
        wanted = [dataclasses.replace(target, holder=holder) for target in targets(shapes, one.candidates[0])]
        return tune_track(one, wanted, journal, head(one, {}), deadline, base)

    return go


def test_an_interrupted_session_goes_on_where_it_stopped(session, tmp_path):
    class Interrupts(NoOperands):
        def __init__(self, problem):
            if problem.m == 2048:
                raise KeyboardInterrupt
            super().__init__(problem)

    with pytest.raises(KeyboardInterrupt):
        session("4096,1024,512,2048,256", tuner(operands=Interrupts))
    assert sum('"entry"' in line for line in (tmp_path / "j.jsonl").read_text().splitlines()) == 3
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
    (record,) = json.loads(go(as_json=True).out)
    assert {one["window"] for one in record["entries"]} == {"burst"}
    assert record["kept"] == 0


def test_the_window_that_decided_is_told_and_so_is_what_was_kept(session, tmp_path, capsys):
    outcome = session("4096", under_a_cap(), base=base_table(**{THRIFTY: 2500.0}))
    tuning.tune_and_write(["simt"], lambda name: outcome, "nvidia-h200", tmp_path / "x.json", 5.0, as_json=False)
    told = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert f"rr sustained {THRIFTY}" in told
    assert f"{FAST} was" in told
    assert "640x640x640" not in told
    assert "1 of the entries are kept as they were: NVIDIA H200 (132 SMs), 2026-01-02, revision old" in told


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
    assert [one.name for one in candidates(every_contender(), "fp16_tensor", ["h1_*,v7*"], required=True)] == [
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


FEW = ("v6_transposed_split", "v7_wide_tile")


def few(*more, **options):
    """Kernels that are a tenth of a percent apart, in the order of their names given."""
    names = (*FEW, *more)
    one = tuner(names=names, **options)
    one.candidates = tuple(
        dataclasses.replace(c, seconds=1e-4 * (1 + 0.001 * names.index(c.name))) for c in one.candidates
    )
    return one


def windows_answer(monkeypatch, name, of):
    """Let what the tuner calls in compare.windows answer ``of(what it answers)``."""
    from compare import tuner as module

    real = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given, **more: of(real(*given, **more)))


def test_a_candidate_that_fails_in_the_race_is_left_out_with_its_reason(monkeypatch):
    def stops_one(result):
        for series in result.series:
            if series.plan.work.name == "v7_wide_tile":
                series.failed = "an illegal address"
        return result

    one = few()
    windows_answer(monkeypatch, "burst", stops_one)
    found = one.tune(targets("1024", one.candidates[0])[0])
    assert (found.entry.kernel, found.left_out["v7_wide_tile"]) == ("v6_transposed_split", "an illegal address")
    assert "v7_wide_tile" not in found.entry.times_us
    alone = tuner(names=("v7_wide_tile",))
    with pytest.raises(CheckError, match=r"no candidate finished the race on .*v7_wide_tile: an illegal address"):
        alone.tune(targets("1024", alone.candidates[0])[0])


def test_a_race_without_a_sample_or_with_an_unbelievable_one_gives_no_time(monkeypatch):
    def empties(result):
        for series in result.series:
            if series.plan.work.name == "v7_wide_tile":
                series.seconds[:] = [None] * len(series.seconds)
            elif series.plan.work.name == "v8_stream_k":
                series.seconds[:] = [1e-9] * len(series.seconds)
        return result

    one = few("v8_stream_k")
    windows_answer(monkeypatch, "burst", empties)
    found = one.tune(targets("1024", one.candidates[0])[0])
    assert found.left_out["v7_wide_tile"] == "no sample was taken"
    assert "peak" in found.left_out["v8_stream_k"]
    assert list(found.entry.times_us) == ["v6_transposed_split"]


def test_without_cublas_there_are_times_and_no_ratio():
    one = few()
    one.baseline = dataclasses.replace(one.baseline, fails="launch")
    found = one.tune(targets("1024", one.candidates[0])[0])
    assert found.entry.cublas_us is None
    assert "too much shared memory" in found.left_out[one.baseline.name]
    assert set(found.entry.times_us) <= set(FEW)
    assert found.entry.times_us


def test_a_finalist_that_is_no_candidate_any_more_gives_its_place_to_the_next():
    one = under_a_cap()
    one.candidates = tuple(c for c in one.candidates if c.name != THRIFTY)
    entry = Entry(4096, 4096, 4096, "rr", "float32", 16, {THRIFTY: 2500.0, FAST: 2510.0})
    found = one.tune(targets("4096", one.candidates[0])[0], bursts=Bursts(entry, (THRIFTY, FAST)))
    assert found.left_out[THRIFTY] == f"{THRIFTY} is no candidate here"
    assert list(found.entry.times_us) == list(found.entry.sustained_us) == [FAST]


def test_bursts_of_another_session_whose_kernels_are_gone_make_no_entry():
    one = under_a_cap()
    entry = Entry(4096, 4096, 4096, "rr", "float32", 16, {"v8_stream_k": 2500.0, FAST: 3500.0})
    bursts = Bursts(entry, ("v8_stream_k", FAST))
    assert bursts.finalists() == ()
    found = one.tune(targets("4096", one.candidates[0])[0], bursts=bursts)
    assert found.left_out["v8_stream_k"] == "v8_stream_k is no candidate here"
    assert list(found.entry.times_us) == [FAST]
    one.candidates = one.candidates[:0]
    with pytest.raises(CheckError, match=r"no candidate is right on .*v8_stream_k is no candidate here"):
        one.tune(targets("4096", tuner().candidates[0])[0], bursts=bursts)


def test_where_every_result_is_wrong_the_shape_has_no_entry():
    class Wrong(NoOperands):
        wrong = FEW

    one = few(operands=Wrong)
    with pytest.raises(CheckError, match=r"no candidate is right on .*: wrong result: 5 of 9 elements wrong"):
        one.tune(targets("1024", one.candidates[0])[0])
    assert one.known == []


def test_a_finalist_without_a_sustained_window_loses_its_time(monkeypatch):
    def stops_one(result):
        for steady in result.steady:
            if steady.work.name == THRIFTY:
                steady.windows.clear()
        return result

    one = under_a_cap()
    windows_answer(monkeypatch, "sustained", stops_one)
    found = one.tune(targets("4096", one.candidates[0])[0])
    assert (found.entry.kernel, found.left_out[THRIFTY]) == (FAST, "no sustained window was taken")
    assert THRIFTY not in found.entry.times_us


def test_a_duel_overturns_a_race_that_was_close(monkeypatch):
    calls = []

    def slower_the_second_time(result):
        calls.append([series.plan.work.name for series in result.series])
        if len(calls) == 2:
            result.series[0].seconds[:] = [2 * seconds for seconds in result.series[1].seconds]
        return result

    one = few()
    windows_answer(monkeypatch, "burst", slower_the_second_time)
    entry = one.tune(targets("1024", one.candidates[0])[0]).entry
    race, (first, second) = calls
    assert set(race) == {*FEW, one.baseline.name}
    assert (entry.kernel, list(entry.times_us)) == (second, [second, first])


@pytest.mark.parametrize("raced", [[], ["v7_wide_tile", "v8_stream_k"]])
def test_bursts_that_name_nobody_or_a_stranger_are_none(raced):
    entry = Entry(64, 64, 64, "rr", "float32", 16, {"v7_wide_tile": 2.0})
    record = Bursts(entry, ("v7_wide_tile",), {"v0_naive": "slow"}).record()
    again = bursts_of(json.loads(json.dumps(record)))
    assert (again.raced, again.left_out) == (("v7_wide_tile",), {"v0_naive": "slow"})
    with pytest.raises(ValueError, match="raced is"):
        bursts_of({**record, "raced": raced})


def test_bursts_of_a_journal_count_only_where_the_holder_was_in_them(tmp_path):
    journal = Journal(tmp_path / "j.jsonl", "x")
    (target,) = targets("4096", tuner().candidates[0])
    entry = Entry(4096, 4096, 4096, "rr", "float32", 16, {FAST: 2500.0, THRIFTY: 2510.0})
    journal.add_bursts(Bursts(entry, (FAST, THRIFTY)))
    assert journal.halfway(target).raced == (FAST, THRIFTY)
    assert journal.halfway(dataclasses.replace(target, holder=THRIFTY)) is not None
    assert journal.halfway(dataclasses.replace(target, holder="v8_stream_k")) is None


def test_a_wrong_result_is_told_with_its_kernel(session, tmp_path, capsys):
    class Wrong(NoOperands):
        wrong = ("v7_wide_tile", "v6_transposed_split")

    outcome = session("1024", few("v8_stream_k", operands=Wrong))
    tuning.tune_and_write(["simt"], lambda name: outcome, "nvidia-h200", tmp_path / "x.json", 5.0, as_json=False)
    told = re.sub(r"\s+", " ", capsys.readouterr().out)
    left_out = [name for reasons in outcome.left_out.values() for name, why in reasons.items() if "wrong result" in why]
    assert left_out
    for name in left_out:
        assert f"left out, {name}: wrong result: 5 of 9 elements wrong" in told
