"""Dispatchers: no problem that one of their kernels takes is refused, every choice is one that accepts, and why."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.building import runner_columns
from compare.contenders import KernelContender, contenders
from compare.dispatch_tables import remarks, used
from compare.runs import identity
from handwritten.catalog import DISPATCHERS, KERNELS, get
from handwritten.dispatch import distance, predictions, slot_work
from handwritten.table import Entry, Table, Tuned, fingerprint, write
from kernel.contract import Pointers, Problem
from kernel.errors import RejectedError, TableError
from kernel.plan import arguments, plan

SIMT, HALF = DISPATCHERS
every_dispatcher = pytest.mark.parametrize("dispatcher", DISPATCHERS, ids=lambda d: d.name)
POINTERS = Pointers(a=2**40, b=2**41, c=2**42, workspace=2**43)


def problem_of(dispatcher, m, n, k, **changes):
    types = {"dtype_in": dispatcher.dtype_in, "dtype_out": dispatcher.dtype_out}
    return Problem(m=m, n=n, k=k, **{**types, **changes})


extents = st.one_of(
    st.integers(1, 300), st.integers(1, 2**31 - 1), st.sampled_from([1, 16, 4092, 4096, 8191, 2**31 - 1])
)


@st.composite
def problems(draw, dispatcher):
    m, n, k = draw(extents), draw(extents), draw(extents)
    layout = draw(st.sampled_from(dispatcher.layouts))
    out = draw(st.sampled_from(["float16", "float32"])) if dispatcher is HALF else "float32"
    size = {"float16": 2, "float32": 4}
    base = problem_of(dispatcher, m, n, k, layout=layout, dtype_out=out)
    pads = [draw(st.sampled_from([0, 0, 1, 2, 4, 8, 2**33])) for _ in range(3)]
    aligns = [draw(st.sampled_from([256, 256, 16, 8, 4, 2])) for _ in range(3)]
    return base.replace(
        lda=base.lda + pads[0], ldb=base.ldb + pads[1], ldc=base.ldc + pads[2],
        align_a=max(aligns[0], size[base.dtype_in]), align_b=max(aligns[1], size[base.dtype_in]),
        align_c=max(aligns[2], size[out]),
        alpha=draw(st.sampled_from([1.0, 0.5, -2.0])), beta=draw(st.sampled_from([0.0, 1.0, 3.0])),
    )  # fmt: skip


DEVICES = st.sampled_from([("", 0), ("NVIDIA H200", 132), ("NVIDIA H100 PCIe", 114), ("NVIDIA H20", 78), ("x", 1)])


@every_dispatcher
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_choice_always_accepts_and_only_what_all_refuse_is_refused(dispatcher, data):
    problem = data.draw(problems(dispatcher))
    bound = dispatcher.on(*data.draw(DEVICES))
    able = [k for k in bound.pool() if k.rejects_type_or_layout(problem) is None and k.rejects(problem) is None]
    reason = bound.rejects(problem)
    assert (reason is None) == bool(able)
    if reason is not None:
        with pytest.raises(RejectedError):
            plan(bound, problem)
        return
    chosen = bound.choose(problem).kernel
    assert chosen in able
    planned = plan(bound, problem)
    assert planned == dataclasses.replace(plan(chosen, problem), variant=planned.variant)
    assert planned.variant.partition(".")[0] == chosen.name
    assert all(launch.unit in bound.units() for launch in planned.launches)
    if problem.lda < 2**31 and problem.ldb < 2**31 and problem.ldc < 2**31:
        assert arguments(bound, problem, POINTERS) == arguments(chosen, problem, POINTERS)
    assert bound.choose(problem) == bound.choose(problem)
    assert bound.runner(problem) == chosen.runner(problem)


@every_dispatcher
def test_shapes_up_to_31_bits_are_total(dispatcher):
    for m, n, k in ((2**31 - 1, 1, 1), (1, 2**31 - 1, 1), (1, 1, 2**31 - 1), (2**31 - 1, 128, 1024), (1, 1, 1)):
        assert dispatcher.rejects(problem_of(dispatcher, m, n, k)) is None
    assert "takes" in dispatcher.rejects_type_or_layout(problem_of(dispatcher, 4, 4, 4, layout="cc"))
    assert dispatcher.name in dispatcher.rejects_type_or_layout(problem_of(dispatcher, 4, 4, 4, layout="cc"))
    beyond = dispatcher.rejects(problem_of(dispatcher, 2**31 - 1, 2**31 - 1, 1))
    assert str(2**31 - 1) in beyond


def table(entries, track="fp32_simt", sm_count=132, gpu="NVIDIA H200", resident=1):
    names = {name for entry in entries for name in entry.times_us}
    marks = {kernel.name: fingerprint(kernel) for kernel in KERNELS if kernel.name in names}
    return Table(
        track=track, gpu=gpu, sm_count=sm_count, toolkit="", date="2026-01-02", revision="r", method="",
        kernels={name: Tuned(marks.get(name, ""), resident) for name in sorted(names)}, entries=tuple(entries),
    )  # fmt: skip


def entry(m, n, k, times, layout="rr", dtype_out="float32", align=16):
    return Entry(m, n, k, layout, dtype_out, align, times)


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """Puts a table where the dispatchers look."""
    monkeypatch.setenv("GEMM_TRACKS_TABLES", str(tmp_path))

    def put(*entries, **more):
        found = table(entries, **more)
        write(found, tmp_path / f"{found.gpu.replace(' ', '-').lower()}.{found.track}.json")
        return found

    return put


def name_of(dispatcher, problem):
    return dispatcher.choose(problem).kernel.name


def test_an_exact_entry_decides_whatever_the_model_would_say(tuned):
    tuned(entry(4096, 4096, 4096, {"s4_block64": 9.0, "v7_wide_tile": 1.0}))
    problem = Problem(m=4096, n=4096, k=4096)
    assert SIMT.variant(problem) == "s4_block64.vec4"
    assert SIMT.why(problem) == "s4_block64: tuned on NVIDIA H200 (132 SMs), 2026-01-02, revision r"
    assert name_of(SIMT, problem.replace(alpha=0.5, beta=2.0)) == "s4_block64"
    # Another alignment class or extent is another problem, which the model answers.
    assert name_of(SIMT, problem.replace(align_a=4)) == "v7_wide_tile"
    assert "modelled" in SIMT.why(Problem(m=4097, n=4096, k=4096))


def test_another_output_type_takes_the_entry_of_the_same_problem(tuned):
    tuned(entry(512, 512, 512, {"h0_mma_sync": 5.0}, dtype_out="float16"), track="fp16_tensor")
    half = problem_of(HALF, 512, 512, 512, dtype_out="float32")
    assert "tuned on" in HALF.why(half)


def test_a_removed_kernel_gives_way_to_the_runner_up(tuned):
    tuned(entry(512, 512, 512, {"v99_gone": 1.0, "v4_pad": 2.0}))
    assert name_of(SIMT, Problem(m=512, n=512, k=512)) == "v4_pad"
    assert name_of(SIMT, Problem(m=513, n=512, k=512)) == "v4_pad"


def test_wave_fill_decides_between_tiles(tuned):
    """One 128x256 tile takes a little less than two 128x128 ones; on 132 SMs 4 x 33 of them are one wave or two."""
    times = {"v7_wide_tile": 100.0, "v6_transposed_split": 104.0}
    tuned(entry(128 * 132, 256, 1024, times))
    full = Problem(m=128 * 132, n=256, k=2048)
    assert name_of(SIMT, full) == "v7_wide_tile"
    # Half as wide: still one wave of 128x256 tiles, half of each for nothing, and half the waves of 128x128 ones.
    assert name_of(SIMT, full.replace(n=128, ldb=128, ldc=128)) == "v6_transposed_split"


def test_the_nearest_shapes_rates_count(tuned):
    tuned(
        entry(8192, 8192, 8192, {"v7_wide_tile": 100.0, "v6_transposed_split": 120.0}),
        entry(1, 4096, 4096, {"v6_transposed_split": 1.0, "v7_wide_tile": 9.0}),
    )
    assert name_of(SIMT, Problem(m=2, n=4096, k=4096)) == "v6_transposed_split"
    assert name_of(SIMT, Problem(m=8000, n=8192, k=8192)) == "v7_wide_tile"


def test_another_device_uses_rates_with_its_own_waves(tuned):
    times = {"v7_wide_tile": 200.0, "v6_transposed_split": 190.0}
    found = tuned(entry(132 * 128, 256, 1024, times))
    problem = Problem(m=132 * 128, n=256, k=1024)
    same = SIMT.on("NVIDIA GH200", 132)
    assert "tuned on" in same.why(problem)
    smaller = SIMT.on("NVIDIA H100 PCIe", 114)
    assert "modelled" in smaller.why(problem)
    here = predictions(problem, found, {k.name: k for k in SIMT.candidates}, 114)
    # 132 wide tiles take two waves of 114 blocks; 264 square ones three, not twice the two that they took.
    assert here["v7_wide_tile"].us == pytest.approx(2 * 200)
    assert here["v6_transposed_split"].us == pytest.approx(3 / 2 * 190)
    assert name_of(smaller, problem) == "v6_transposed_split"


def test_without_a_table_the_default_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_TABLES", str(tmp_path))
    for dispatcher in DISPATCHERS:
        problem = problem_of(dispatcher, 1000, 1000, 1000)
        assert name_of(dispatcher, problem) == dispatcher.defaults[0]
        assert "default" in dispatcher.why(problem)
        assert {unit.name.partition(".")[0] for unit in dispatcher.units()} >= {dispatcher.defaults[0]}


def test_a_damaged_table_is_said_not_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_TABLES", str(tmp_path))
    (tmp_path / "x.fp32_simt.json").write_text("{", encoding="utf-8")
    with pytest.raises(TableError, match=r"x\.fp32_simt\.json"):
        SIMT.variant(Problem(m=4, n=4, k=4))


def test_a_kernel_that_would_hand_over_is_not_modelled_by_its_own_rate(tuned):
    fast = {"h1_wgmma_tma": 1.0, "h0_mma_sync": 3.0}
    tuned(entry(4096, 4096, 4096, fast, dtype_out="float16"), track="fp16_tensor")
    odd = problem_of(HALF, 4096, 4096, 4095)
    assert name_of(HALF, odd) == "h0_mma_sync"
    assert HALF.variant(odd) == "h0_mma_sync.vec1"


def test_an_unaligned_problem_is_modelled_by_those_who_win_at_unaligned_shapes(tuned):
    """However many aligned shapes are nearer: h5 would run those, and h0 copies 16 bytes at once there."""
    aligned = {"h5_overlapped_launch": 24.0, "h0_mma_sync": 45.0}
    near = [entry(m, 2048, 2048, aligned, dtype_out="float16") for m in (1024, 1536, 2048, 3072, 4096)]
    odd = {"h9_packed": 12.0, "h0_mma_sync": 40.0}
    tuned(*near, entry(511, 511, 511, odd, dtype_out="float16", align=2), track="fp16_tensor")
    problem = problem_of(HALF, 2048, 2047, 2048)
    assert name_of(HALF, problem) == "h9_packed"
    assert "511x511x511" in HALF.why(problem)
    assert HALF.variant(problem) == "h9_packed.tma_packed_b_c_by_element"
    assert name_of(HALF, problem_of(HALF, 2048, 2056, 2048)) == "h5_overlapped_launch"


ODD = entry(4097, 4097, 4097, {"v21_packed_hint": 2600.0, "v14_early_loads_hint": 3700.0}, align=4)


def test_odd_problems_are_asked_of_odd_entries_however_far(tuned):
    """Aligned shapes lie all around, and v21, which leaves those to v20, has its rate from far away."""
    times = {"v20_one_barrier_hint": 151e3, "v19_down_columns_hint": 154e3, "v14_early_loads_hint": 160e3}
    around = [entry(m, n, 16384, times) for m in (16384, 16512) for n in (16384, 16640)]
    tuned(*around, ODD)
    for size in (4095, 8191, 16383):
        odd = Problem(m=size, n=size, k=size)
        assert all(distance(one, odd) < distance(ODD, odd) for one in around) == (size > 8191)
        assert SIMT.variant(odd) == "v21_packed_hint.vec1_packed"
        assert "its rate at 4097x4097x4097" in SIMT.why(odd)
    assert SIMT.variant(Problem(m=16383, n=16384, k=16380)) == "v20_one_barrier_hint.vec4"
    # One row is no square's business, aligned or not.
    tuned(*around, ODD, entry(1, 4096, 4096, {"v16_row_32": 16.0, "v16_row_64": 17.0}))
    assert name_of(SIMT, Problem(m=1, n=4095, k=4095)) == "v16_row_32"


def test_a_rate_of_wide_accesses_is_no_rate_of_narrow_ones(tuned):
    names = ("v14_early_loads_hint", "v1_thread_tile")
    found = tuned(entry(4096, 4096, 4096, dict.fromkeys(names, 100.0)))
    kernels = {kernel.name: kernel for kernel in SIMT.candidates}
    problem = Problem(m=4096, n=4096, k=4096)
    # v1 has one build for all.
    for narrow, factors in (({}, (1, 1)), ({"align_b": 4}, (1.2, 1))):
        here = predictions(problem.replace(**narrow), found, kernels, 132)
        assert [here[name].us for name in names] == [pytest.approx(100 * factor) for factor in factors]
    # Odd shapes know the narrow build themselves, and tell nothing better of the wide one.
    found = tuned(ODD)
    assert predictions(Problem(m=4097, n=4097, k=4097, align_b=4), found, kernels, 132)[names[0]].us == 3700
    wide = predictions(Problem(m=4097, n=4100, k=4100), found, kernels, 132)
    assert wide[names[0]].us == pytest.approx(3700, rel=0.01)


def test_slot_work_counts_waves_and_whole_steps():
    v7, v8 = get("v7_wide_tile"), get("v8_stream_k")
    assert slot_work(v7, Problem(m=128, n=256, k=16), 132) == 16
    assert slot_work(v7, Problem(m=128, n=256, k=17), 132) == 32
    assert slot_work(v7, Problem(m=128 * 133, n=256, k=16), 132) == 32
    # A tile that four blocks of a cluster share takes a quarter of k each, and four times the blocks.
    split = dataclasses.replace(get("v11_cluster_split"), slices=4)
    tile = split.tile
    assert slot_work(split, Problem(m=tile.BLOCK_M, n=tile.BLOCK_N, k=1600), 132) == 400
    assert slot_work(split, Problem(m=tile.BLOCK_M * 34, n=tile.BLOCK_N, k=1600), 132) == 2 * 400
    # A pass before the product shares nothing along k, whatever its workspace and however many blocks it has.
    h9, odd = get("h9_packed"), problem_of(HALF, 128 * 133, 255, 1600)
    assert [launch.workspace > 0 for launch in h9.launches(odd)] == [True, False]
    assert slot_work(h9, odd, 132) == 2 * 1600
    # Clusters of two that walk over 160 tiles: 66 at a time.
    deep = dataclasses.replace(get("h10_64x64"), slices=2)
    assert slot_work(deep, problem_of(HALF, 1, 64 * 160, 1600), 132) == 3 * 800
    assert slot_work(deep, problem_of(HALF, 1, 64 * 66, 1600), 132) == 800
    # Work that is shared along k fills the blocks evenly.
    assert slot_work(v8, Problem(m=128 * 198, n=256, k=1600), 132) == pytest.approx(1.5 * 1600)


def test_distance_is_in_doublings_and_counts_layout_alignment_and_output():
    here = entry(1024, 1024, 1024, {"a": 1.0}, dtype_out="float16")
    same = problem_of(HALF, 1024, 1024, 1024)
    assert distance(here, same) == 0
    assert distance(here, problem_of(HALF, 2048, 1024, 1024)) == 1
    assert distance(here, problem_of(HALF, 1024, 1024, 1024, layout="rc")) == 1
    assert distance(here, same.replace(align_a=4)) == 1 + 8
    odd = dataclasses.replace(here, align=2)
    assert distance(odd, same.replace(align_a=4)) == 0.5
    simt = Problem(m=1024, n=1024, k=1024, align_b=4)
    assert distance(dataclasses.replace(here, dtype_out="float32"), simt) == 1
    assert distance(here, same.replace(dtype_out="float32")) == 0.25


def test_rows_and_inspection_show_the_kernel_that_runs(tuned):
    tuned(entry(4096, 4096, 4096, {"v7_wide_tile": 1.0}))
    (contender,) = contenders(["simt_dispatch"])
    assert isinstance(contender, KernelContender)
    problem = contender.problem(4096, 4096, 4096)
    columns = runner_columns(contender, problem)
    assert columns == {"instruction": "ffma", "tile": "128x256x16", "stages": 3, "swizzle": None}
    assert plan(contender.kernel, problem).main_launch.entry == "v7_wide_tile"
    assert runner_columns(contender, problem.replace(alpha=0.0)) == {}
    assert plan(contender.kernel, problem.replace(alpha=0.0)).main_launch.entry == "scale_only_float32"
    assert contender.variant(problem.replace(alpha=0.0)) == "scale_only"


@pytest.mark.parametrize(
    "name",
    [
        "v17_block_split",
        "v18_transposing_pass",
        "v20_one_barrier_hint",
        "v21_packed_hint",
        "h10_split_k",
        "h10_128x128",
    ],
)
def test_rows_show_the_launch_that_multiplies_and_not_its_pass_copy_or_sum(name):
    (contender,) = contenders([name])
    assert isinstance(contender, KernelContender)
    for extents in ((128, 128, 65536), (4096, 4096, 4096)):
        problem = contender.problem(*extents, **({"align_b": 4} if name == "v21_packed_hint" else {}))
        assert plan(contender.kernel, problem).main_launch.entry == contender.kernel.entry


@pytest.mark.nvcc
def test_inspect_shows_the_chosen_kernel():
    from kernel.inspection import inspect_kernel

    problem = Problem(m=4096, n=4096, k=64)
    found = inspect_kernel(SIMT, problem)
    chosen = SIMT.choose(problem).kernel
    assert found.entry == chosen.name
    assert found.tile == dict(chosen.tile.items())
    assert any(chosen.name in note and "NVIDIA H200" in note for note in found.notes)


def test_a_run_keeps_the_hash_and_origin_of_the_tables(tuned, tmp_path):
    import hashlib

    tuned(entry(4096, 4096, 4096, {"v7_wide_tile": 1.0, "v4_pad": 2.0}))
    chosen = contenders(["simt_dispatch", "v7_wide_tile", "cublas_sgemm"])
    (record,) = used(chosen)
    data = (tmp_path / record["file"]).read_bytes()
    assert record["sha256"] == hashlib.sha256(data).hexdigest()
    assert (record["dispatcher"], record["gpu"], record["entries"], record["stale"]) == (
        "simt_dispatch", "NVIDIA H200", 1, {},
    )  # fmt: skip
    assert remarks(chosen) == []
    # A run that goes on with another table would mix two of them.
    run = {"revision": "r", "gpu": {"name": "g", "sm_count": 1}, "request": "x"}
    other = {**record, "sha256": "0" * 64}
    assert identity({**run, "dispatch_tables": [record]}) != identity({**run, "dispatch_tables": [other]})
    assert identity(run) == identity({**run, "dispatch_tables": []})


def test_stale_kernels_other_devices_and_missing_tables_are_said(tuned, tmp_path):
    found = tuned(entry(4096, 4096, 4096, {"v7_wide_tile": 1.0, "v99_gone": 2.0}))
    kernels = {"v7_wide_tile": Tuned("0" * 16), "v99_gone": Tuned("0" * 16)}
    path = tmp_path / "nvidia-h200.fp32_simt.json"
    write(dataclasses.replace(found, kernels=kernels), path)
    (contender,) = contenders(["simt_dispatch"])
    lines = remarks([contender.on("NVIDIA H100 PCIe", 114)])
    assert len(lines) == 3
    assert "tuned on NVIDIA H200 (132 SMs), this is NVIDIA H100 PCIe (114)" in lines[0]
    assert "v7_wide_tile changed since" in lines[1]
    assert "v99_gone removed since" in lines[2]
    assert "tune again" in SIMT.why(Problem(m=4096, n=4096, k=4096))
    path.unlink()
    assert "no table" in remarks([contender])[0]
    assert used([contender]) == [{"dispatcher": "simt_dispatch", "file": None, "sha256": None}]
