"""The main job on a device that is simulated: real buffers, real checks, invented times."""

import ctypes
import dataclasses
import json
import shutil
from dataclasses import dataclass

import numpy as np
import pytest

from compare import job, measure, report, runs
from compare.ceilings import Ceiling
from compare.check import check_contender
from compare.cli import main
from compare.contenders import Contender, every_contender
from compare.driver import Device, Driver
from compare.groups import Group, groups
from compare.rows import NAMES
from compare.scoring import base_columns, measured_row, with_sgemm_ratio
from compare.shapes import Shape, parse
from compare.statistics import StoppingRule
from compare.stopwatch import Stopwatch
from compare.timing import DeviceFacts
from compare.windows import BurstSettings, SustainedSettings
from kernel.contract import Tile
from kernel.errors import BuildError, CheckError, DeviceError, LaunchError, MissingToolError, UsageError
from tests.rows_for_reports import full_run
from tests.simulated_bench import SimulatedBench

DRIVER = Driver(
    version="13.0",
    devices=(
        Device(ordinal=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132, memory_bytes=1, l2_bytes=1),
    ),
    problem="",
)


def view(address, dtype, shape, layout, pitch):
    """Memory at an address as a matrix, of which ``pitch`` elements lie between rows (or columns)."""
    item = np.dtype(dtype).itemsize
    rows = shape if layout == "r" else shape[::-1]
    length = (rows[0] - 1) * pitch + rows[1]
    memory = np.frombuffer((ctypes.c_char * (length * item)).from_address(address), dtype=dtype)
    matrix = np.lib.stride_tricks.as_strided(memory, rows, (pitch * item, item))
    return matrix if layout == "r" else matrix.T


@dataclass(frozen=True, kw_only=True)
class HostContender(Contender):
    """A GEMM by NumPy; ``seconds`` is what the simulated device takes for it."""

    seconds: float
    watts: float = 400.0
    noise: float = 0.001
    no_graphs: bool = False
    unsynchronised: bool = False
    refuses: str = ""
    behaviour: str = "right"
    lacks: str = ""
    arch: str = "sm_90a"

    @property
    def is_dispatcher(self):
        return self.name.endswith("_dispatch")

    def rejects(self, problem):
        return self.rejects_type_or_layout(problem) or self.refuses or None

    def variant(self, problem):
        return "vec4"

    def needs(self):
        return self.lacks

    def prepare(self, problem, pointers, stream):
        if self.behaviour == "launch fails":
            raise LaunchError(f"{self.name}: too much shared memory")
        return HostPrepared(self, problem, pointers)


class HostPrepared:
    variant = "vec4"

    def __init__(self, contender, problem, pointers):
        self.contender, self.problem, self.pointers = contender, problem, pointers
        self.kernel_names = (f"{contender.name}_kernel",)
        self.answer = None

    def enqueue(self, stream):
        p = self.problem
        a = view(self.pointers.a, p.dtype_in, (p.m, p.k), p.layout[0], p.lda)
        b = view(self.pointers.b, p.dtype_in, (p.k, p.n), p.layout[1], p.ldb)
        c = view(self.pointers.c, p.dtype_out, (p.m, p.n), "r", p.ldc)
        product = a.astype(np.float32) @ b.astype(np.float32)
        if self.contender.behaviour == "replays" and self.answer is not None:
            product = self.answer
        self.answer = product
        if self.contender.behaviour == "wrong":
            product = product + 1
        c[...] = (p.alpha * product + (p.beta * c if p.beta else 0)).astype(p.dtype_out)


class HostExecutor:
    name = "gpu"
    xp = np

    def refuses(self, contender):
        return None

    def run(self, contender, problem, buffers):
        if contender.behaviour == "other device":
            raise DeviceError("built for sm_90a, and this device is sm_80")
        if contender.behaviour == "faults":
            raise CheckError("the GPU stopped with an illegal address; this process cannot use it any more")
        contender.prepare(problem, buffers.pointers, 0).enqueue(0)
        return "vec4"


class HostSite:
    def __init__(self, ordinal=0):
        assert ordinal == 0
        # An L2 of 16 KiB: cold timing then needs a few operand sets, not thousands.
        facts = DeviceFacts(name="NVIDIA H200", sms=132, l2_bytes=1 << 14, compute_capability=(9, 0), max_mhz=1980.0)
        self.bench, self.executor = SimulatedBench(facts=facts), HostExecutor()

    def ceilings(self):
        return [
            Ceiling(track="fp32_simt", instruction="ffma", window="burst", tflops=50.0, throttle=()),
            Ceiling(track="fp16_tensor", instruction="wgmma", window="burst", tflops=800.0),
        ]


def fp32(name, seconds, family="handwritten", **more):
    tile = Tile(BLOCK_M=128, BLOCK_N=128, BLOCK_K=16)
    return HostContender(
        name=name, family=family, track="fp32_simt", summary="", tile=tile, instruction="ffma", seconds=seconds, **more
    )


def fp16(name, seconds, family="cublas", **more):
    more = {"dtype_in": "float16", "dtype_out": "float16", **more}
    return HostContender(name=name, family=family, track="fp16_tensor", summary="", seconds=seconds, **more)


CUBLAS = fp32("cublas_sgemm", 1e-3, "cublas", layouts=("rr", "rc", "cr", "cc"))
FP16 = fp16("cublas_fp16", 1e-4, layouts=("rr", "rc", "cr", "cc"))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the job over contenders; gives rows by (name, window)."""
    monkeypatch.setenv("GEMM_TRACKS_REVISION", "0123456789")

    def go(contenders, shapes="64x48x32", folder="run", record=False):
        request = job.Request(("*",), shapes, record)
        provenance = runs.provenance(["gemm-tracks"], DRIVER, "", str(request))
        writer = runs.RunWriter(tmp_path / folder, provenance)
        complete = job.measure(request, contenders, {}, writer, HostSite())
        rows = with_sgemm_ratio(writer.rows)
        writer.finish(complete=complete, rows=rows)
        return runs.read_run(tmp_path / folder)

    return go


def by_name(rows, window="burst"):
    return {row["name"]: row for row in rows if row["window"] in (window, None)}


def test_rows_carry_checks_times_and_ratios(run):
    provenance, rows = run([CUBLAS, fp32("v2", 2e-3), FP16])
    found = by_name(rows)
    row = found["v2"]
    assert tuple(row) == NAMES
    assert row["ok"] is True
    assert 0 < row["max_error"] <= row["error_bound"]
    assert row["time_us"] == pytest.approx(2000, rel=0.02)
    assert row["time_us_p10"] <= row["time_us"] <= row["time_us_p90"]
    assert row["samples"] >= 20
    assert row["x_cublas"] == pytest.approx(0.5, rel=0.02)
    assert row["x_cublas_lo"] <= row["x_cublas"] <= row["x_cublas_hi"]
    assert row["x_cublas_sgemm"] == pytest.approx(0.5, rel=0.02)
    assert row["tflops"] == pytest.approx(2 * 64 * 48 * 32 / row["time_us"] * 1e-6)
    assert row["pct_track_peak"] == pytest.approx(100 * row["tflops"] / 66.9)
    assert row["pct_fp16_peak"] == pytest.approx(100 * row["tflops"] / 989.4)
    assert row["ceiling_tflops"] == 50.0
    assert row["pct_ceiling"] == pytest.approx(2 * row["tflops"])
    assert found["cublas_fp16"]["ceiling_tflops"] == 800.0
    assert row["kernel_name"] == "v2_kernel"
    assert (row["m"], row["n"], row["k"], row["layout"], row["variant"]) == (64, 48, 32, "rr", "vec4")
    assert found["cublas_fp16"]["x_cublas_sgemm"] == pytest.approx(10, rel=0.02)
    assert provenance["complete"] is True


def test_where_the_time_of_a_group_went_is_kept_beside_what_was_expected(run, monkeypatch):
    benches = []

    class Watched(HostSite):
        def __init__(self):
            super().__init__()
            benches.append(self.bench)

    monkeypatch.setattr("tests.test_job.HostSite", Watched)
    provenance, _ = run([CUBLAS, fp32("v2", 2e-3)], shapes="64x48x32,4096x4x4")
    spent = provenance["seconds"]
    assert set(spent[job.CEILINGS]) == {"start", "ceilings"}
    groups_of = {name: seconds for name, seconds in spent.items() if name != job.CEILINGS}
    assert len(groups_of) == 2
    for seconds in groups_of.values():
        assert seconds["estimate"] > 0
        assert seconds["idle"] >= 20 * 0.2 - 1e-6
        assert seconds["burst"] > 0
    (bench,) = benches
    told = sum(value for seconds in groups_of.values() for phase, value in seconds.items() if phase != "estimate")
    assert told == pytest.approx(bench.now(), abs=0.01)


def test_a_wrong_kernel_keeps_its_row_and_gets_no_time(run):
    _, rows = run([CUBLAS, fp32("v2", 2e-3, behaviour="wrong"), fp32("v3", 2e-3, behaviour="replays")])
    wrong, replays = by_name(rows)["v2"], by_name(rows)["v3"]
    assert wrong["ok"] is False
    assert wrong["time_us"] is None
    assert wrong["max_error"] > wrong["error_bound"]
    assert "failed the check" in wrong["skipped_because"]
    assert replays["ok"] is False
    assert replays["time_us"] is None
    assert by_name(rows)["cublas_sgemm"]["time_us"]


def test_refusals_and_launch_errors_stay_visible_and_others_run(run):
    refusing = fp32("v4", 1e-3, refuses="n = 48 is no multiple of 64")
    _, rows = run([CUBLAS, refusing, fp32("v5", 1e-3, behaviour="launch fails"), fp32("v6", 1e-3)])
    found = by_name(rows)
    assert (found["v4"]["ok"], found["v4"]["skipped_because"]) == (None, "n = 48 is no multiple of 64")
    assert found["v5"]["time_us"] is None
    assert "too much shared memory" in found["v5"]["skipped_because"]
    assert found["v6"]["time_us"]


def test_a_rate_that_no_device_has_is_refused(run):
    _, rows = run([CUBLAS, fp32("v7", 1e-9)])
    row = by_name(rows)["v7"]
    assert row["ok"] is False
    assert row["time_us"] is None


def test_an_interrupted_job_goes_on_where_it_stopped(run, monkeypatch):
    measured = []
    original = job.run_part

    def counting(part, *rest):
        if len(measured) == 1 and not getattr(counting, "stopped", False):
            counting.stopped = True
            raise KeyboardInterrupt
        measured.append(part.group.name)
        return original(part, *rest)

    monkeypatch.setattr(job, "run_part", counting)
    provenance, rows = run([CUBLAS, fp32("v2", 2e-3)], shapes="64x48x32,32,48")
    assert provenance["complete"] is False
    assert {(row["m"], row["n"]) for row in rows} == {(64, 48)}
    provenance, rows = run([CUBLAS, fp32("v2", 2e-3)], shapes="64x48x32,32,48")
    assert provenance["complete"] is True
    assert [row["m"] for row in by_name(rows).values()]
    assert {(row["m"], row["n"]) for row in rows} == {(64, 48), (32, 32), (48, 48)}
    assert len(measured) == 3


def test_a_gpu_fault_ends_the_process_and_resuming_leaves_the_kernel_out(run):
    contenders = [CUBLAS, fp32("v2", 2e-3, behaviour="faults"), fp32("v3", 2e-3)]
    with pytest.raises(CheckError, match="v2"):
        run(contenders)
    _, rows = run(contenders)
    found = by_name(rows)
    assert found["v2"]["ok"] is False
    assert "illegal address" in found["v2"]["skipped_because"]
    assert found["v3"]["time_us"]


def test_a_wrong_baseline_stops_everything(run):
    with pytest.raises(CheckError, match="baseline"):
        run([dataclasses.replace(CUBLAS, behaviour="wrong"), fp32("v2", 2e-3)])


def test_libraries_join_the_group_of_every_layout_and_type_that_is_timed():
    rc = fp32("cutlass_rc", 1e-3, "cutlass", layouts=("rc",))
    wide = fp16("cublas_fp16_f32out", 1e-4, dtype_out="float32", layouts=("rr", "rc", "cr", "cc"))
    (shape,) = parse("64x48x32")
    found = {g.name: [c.name for c in g.contenders] for g in groups([CUBLAS, rc, fp32("v2", 1e-3), FP16, wide], shape)}
    assert list(found) == [
        "64x48x32 fp32_simt rr float32-float32",
        "64x48x32 fp32_simt rc float32-float32",
        "64x48x32 fp16_tensor rr float16-float16",
        "64x48x32 fp16_tensor rr float16-float32",
    ]
    assert found["64x48x32 fp32_simt rr float32-float32"] == ["cublas_sgemm", "v2"]
    assert found["64x48x32 fp32_simt rc float32-float32"] == ["cublas_sgemm", "cutlass_rc"]
    assert found["64x48x32 fp16_tensor rr float16-float32"] == ["cublas_fp16_f32out"]


def test_slow_rungs_are_left_out_visibly_unless_asked_for(run):
    slow = fp32("v0", 1e-3, largest_timed=32)
    (shape,) = parse("64")
    (group,) = groups([CUBLAS, slow], shape)
    from compare.measure import quick

    part = job.Part(group, quick())
    assert "too slow" in job.too_slow(slow, part)
    asked = dataclasses.replace(quick(), leave_out_slow=False)
    assert job.too_slow(slow, job.Part(group, asked)) is None


def recorded(contenders):
    return job.parts(job.Request((), "", True), contenders)


WIDE = fp16("cublas_fp16_f32out", 2e-4, dtype_out="float32", layouts=("rr", "rc", "cr", "cc"), in_default_set=False)
SECOND = fp16("cublaslt_fp16", 1e-4, layouts=("rr", "rc", "cr", "cc"), in_default_set=False)
RUNG = fp32("v9", 2e-3, in_default_set=False)
FP16_DISPATCH = fp16("fp16_dispatch", 1e-4, "handwritten", layouts=("rr", "rc"), dtype_out="float16")
EVERYONE = [CUBLAS, fp32("v2", 2e-3), RUNG, fp32("simt_dispatch", 1e-3), FP16, SECOND, WIDE, FP16_DISPATCH]


def test_record_times_everyone_at_some_cubes_and_dispatchers_on_every_shape():
    planned = recorded(EVERYONE)

    def timed_at(size, layout="rr"):
        cubes = [part for part in planned if part.group.shape.m == part.group.shape.n == part.group.shape.k == size]
        found = [part for part in cubes if part.group.problem.layout == layout and not part.self_test]
        return {c.name for part in found for c in part.group.contenders}

    fp16_names = {"cublas_fp16", "cublaslt_fp16", "fp16_dispatch"}
    assert timed_at(16384) == {"cublas_sgemm", "simt_dispatch", *fp16_names}
    assert timed_at(16384, "rc") == fp16_names
    assert timed_at(3072) == {"cublas_sgemm", "simt_dispatch", *fp16_names}
    assert timed_at(512) == {"cublas_sgemm", "simt_dispatch"}
    assert timed_at(4092) == {"cublas_sgemm", "v2", "simt_dispatch"}
    assert timed_at(4096) == {c.name for c in EVERYONE}, "every rung"
    assert timed_at(8192) == {c.name for c in EVERYONE} - {"v9"}
    for size in job.RECORD_SQUARES:
        assert timed_at(size) == {"cublas_sgemm", "v2", "simt_dispatch", *fp16_names}
        assert timed_at(size, "rc") == fp16_names
    sets = {shape.shape_set for part in planned for shape in [part.group.shape]}
    assert {"skinny", "transformer"} <= sets
    for size in job.RECORD_ODD:
        assert timed_at(size) == {"cublas_sgemm", "simt_dispatch", *fp16_names}
    assert len({part.name for part in planned}) == len(planned)


def test_what_a_record_cannot_do_without_comes_first():
    planned = recorded(EVERYONE)
    order = [part.name for part in planned]
    sustained = [part for part in planned if part.settings.wants_sustained(part.group.problem)]
    for size in (4096, 8192, 16384):
        for contender in (CUBLAS, FP16):
            (part,) = [
                part for part in sustained
                if contender in part.group.contenders and part.group.shape == job.cube(size) and not part.self_test
            ]  # fmt: skip
            assert order.index(part.name) < 16, part.name
    assert order[0].startswith("4096x4096x4096 fp32_simt")
    assert [part.group.contenders[0].name for part in planned if part.self_test] == ["cublas_sgemm", "cublas_fp16"]
    (wide,) = [
        p
        for p in planned
        if p.group.problem.dtype_out == "float32" and p.group.shape.m == 8192 and WIDE in p.group.contenders
    ]
    assert wide.group.problem.dtype_in == "float16"
    cold = {part.group.shape.m for part in planned if part.settings.cold}
    assert cold == {*job.RECORD_SQUARES, *job.RECORD_COLD}


def test_a_record_fits_two_leases():
    """By what is expected of it, with half a minute for what comes besides: starting twice, ceilings, the bundle."""
    from compare.contenders import contenders

    request = job.Request((), "", True)
    costs = {part.name: job.cost_of(part) for part in job.parts(request, request.contenders())}
    assert all(cost < 70 for cost in costs.values()), "a lease that ends must not cost much"
    assert job.expected_s(costs.values(), None, "sm_90a") < 2 * 540 - 240, costs
    assert len(contenders()) > len(request.contenders())
    wide = [part.group for part in job.parts(request, request.contenders()) if "float16-float32" in part.name]
    assert [[c.name for c in group.contenders] for group in wide] == [["cublas_fp16_f32out", "fp16_dispatch"]] * 2


def test_what_lacks_a_package_keeps_its_row_and_nothing_left_is_an_error(run):
    lacking = fp32("v9", 1e-3, lacks="cupy-cuda13x")
    _, rows = run([CUBLAS, lacking])
    assert by_name(rows)["v9"]["skipped_because"] == "not installed: cupy-cuda13x"
    job.require_some([CUBLAS, lacking])
    with pytest.raises(MissingToolError, match="cupy-cuda13x"):
        job.require_some([lacking])


def test_a_contender_that_this_machine_cannot_run_costs_no_other_its_row(run):
    _, rows = run([CUBLAS, fp32("v5", 1e-3, behaviour="other device"), fp32("v6", 1e-3)])
    assert "sm_90a" in by_name(rows)["v5"]["skipped_because"]
    assert by_name(rows)["v6"]["time_us"]


def test_recorded_rows_are_joined_by_name_and_shape():
    rows = [
        {"name": name, "family": family, "m": size, "n": size, "k": size, "layout": layout, "input": "uniform"}
        for name, family in (("cublas_sgemm", "cublas"), ("v2_block_tile", "handwritten"), ("v3", "handwritten"))
        for size in (1024, 4096)
        for layout in ("rr", "rc")[: 1 + (family == "cublas")]
    ]
    chosen = job.recorded_rows(job.Request(("v2*",), "4096", False), rows)
    assert [(row["name"], row["m"]) for row in chosen] == [*[("cublas_sgemm", 4096)] * 2, ("v2_block_tile", 4096)]
    assert job.recorded_rows(job.Request((), "", False), rows) == rows
    assert job.not_recorded(job.Request((), "", False), rows) == []
    for options, layouts in (
        ("@layout=rc", ["rc"]), ("@layout=rr", ["rr", "rr", "rr"]), ("@input=uniform", ["rr", "rc", "rr", "rr"]),
        ("@input=zeros", []), ("@beta=2", []), ("@alpha=0.5@layout=rr", []), ("@pad_a=3", []), ("@align_c=4", []),
    ):  # fmt: skip
        asked = job.Request((), f"4096{options}", False)
        found = job.recorded_rows(asked, rows)
        assert sorted(row["layout"] for row in found) == sorted(layouts), options
        assert {row["m"] for row in found} <= {4096}
        assert bool(job.not_recorded(asked, rows)) == (not layouts), options


def test_another_register_count_than_recorded_is_named():
    here = [{"name": "v2", "variant": "vec4", "registers": 106}, {"name": "v3", "variant": "", "registers": 90}]
    recorded = [{"name": "v2", "variant": "vec4", "registers": 110}, {"name": "v3", "variant": None, "registers": 90}]
    assert job.differences(here, recorded) == ["v2 106 (recorded 110)"]


def test_the_kernels_that_cublas_picked_are_part_of_the_provenance(run):
    _, rows = run([CUBLAS, fp32("v2", 2e-3)])
    assert job.cublas_kernels(rows) == {"64x48x32 rr cublas_sgemm": "cublas_sgemm_kernel"}


def test_record_cannot_be_narrowed():
    with pytest.raises(UsageError):
        job.run_compare(["v*"], "", None, record=True, as_json=False)


def test_the_closing_lines_of_a_simulated_run_state_both_gaps(run):
    _, rows = run([CUBLAS, fp32("v2", 2e-3), FP16], shapes="48")
    same, different = report.closing_lines(rows)
    assert "v2" in same
    assert "1 to 10" in different
    json.dumps(rows, allow_nan=False)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with a simulated GPU, host contenders and an empty results folder."""
    contenders = [CUBLAS, fp32("v2", 2e-3), fp32("v0", 1e-2, largest_timed=50), FP16]
    monkeypatch.setenv("GEMM_TRACKS_REVISION", "0123456789")
    monkeypatch.setenv("GEMM_TRACKS_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("compare.driver.query", lambda: DRIVER)
    monkeypatch.setattr(job.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr("compare.groups.GpuSite", HostSite)
    monkeypatch.setattr(job, "contenders", lambda *_: tuple(contenders))
    monkeypatch.setattr(job, "build", lambda chosen: {})
    short = StoppingRule(min_rounds=3, max_rounds=3)
    settings = dataclasses.replace(
        measure.record(), burst=BurstSettings(stop=short), sustained=SustainedSettings(window_s=0.02, stop=short)
    )
    monkeypatch.setattr("compare.measure.record", lambda: settings)
    monkeypatch.setattr(job, "RECORD_HEADLINES", (64,))
    monkeypatch.setattr(job, "RECORD_SQUARES", (40,))
    monkeypatch.setattr(job, "RECORD_SETS", ())
    monkeypatch.setattr(job, "RECORD_ODD", ())
    monkeypatch.setattr(job, "RECORD_TAIL", 35)
    monkeypatch.setattr(job, "RECORD_LARGEST", 48)
    monkeypatch.setattr(job, "RECORD_DISPATCHED", (44,))
    monkeypatch.setattr(job, "RECORD_COLD", (44,))
    monkeypatch.setattr(job, "RECORD_RECTANGLE", (64, 48, 40))
    return tmp_path, contenders


def test_a_gpu_without_cupy_is_said_and_the_recorded_run_answers(machine, monkeypatch):
    told = []
    monkeypatch.setattr(job.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(job, "without_gpu", lambda request, problem, as_json: told.append(problem))
    assert main(["compare"]) == 0
    assert told == ["NVIDIA H200 is here, but CuPy is not installed (pip install 'gemm-tracks[gpu]')"]


def test_what_should_be_known_of_a_dispatch_table_is_said_before_anything_is_timed(machine, monkeypatch, capsys):
    monkeypatch.setattr(job.dispatch_tables, "remarks", lambda chosen: ["simt_dispatch: no table was found"])
    assert main(["compare", "--shapes", "32"]) == 0
    assert "simt_dispatch: no table was found" in capsys.readouterr().err


def without_gpu(monkeypatch, rows, built):
    """As on a machine without a GPU, with ``rows`` in the recorded run and ``built`` as what was built here."""
    found = Driver(version="", devices=(), problem="no NVIDIA driver")
    monkeypatch.setattr("compare.driver.query", lambda: found)
    writer = runs.RunWriter(runs.results_root() / "nvidia-h200" / "2031-02-03-r", runs.provenance((), DRIVER))
    writer.add("a", rows)
    runs.make_latest(writer.finish(complete=True))
    monkeypatch.setattr(job, "build", lambda chosen: built)


def test_without_a_gpu_what_differs_from_the_record_is_said(machine, monkeypatch, capsys):
    without_gpu(monkeypatch, full_run(), {})
    monkeypatch.setattr(job.dispatch_tables, "remarks", lambda chosen: ["simt_dispatch: no table was found"])
    here = {"name": "v0_naive", "variant": None, "registers": 41}
    (there, *_) = ({**one, "registers": 40} for one in full_run() if one["name"] == "v0_naive")
    assert job.differences([here], [there]) == ["v0_naive 41 (recorded 40)"]
    assert job.differences([here], [{**there, "registers": 41}]) == []
    monkeypatch.setattr(job, "differences", lambda here, rows: ["v0_naive 41 (recorded 40)"])
    assert main(["compare", "--kernels", "v0_naive"]) == 0
    told = capsys.readouterr()
    assert "simt_dispatch: no table was found" in told.err
    assert "Built here with other registers than when it was recorded: v0_naive 41 (recorded 40)" in told.out


def test_without_a_gpu_and_without_a_recorded_row_the_command_says_what_it_needs(machine, monkeypatch, capsys):
    without_gpu(monkeypatch, full_run(), {})
    assert main(["compare", "--shapes", "77"]) == 3
    assert "the recorded run has nothing of these kernels at these shapes; that needs a GPU" in capsys.readouterr().err


def test_without_a_compiler_nothing_was_built_and_the_command_says_so(machine, monkeypatch, capsys):
    without_gpu(monkeypatch, full_run(), {"v0": MissingToolError("nvcc was not found"), "v1": MissingToolError("nvcc")})
    assert main(["compare"]) == 3
    assert "nvcc was not found" in capsys.readouterr().err
    monkeypatch.setattr(job, "build", lambda chosen: {"v0": BuildError("v0: no room left")})
    assert main(["compare"]) == 1


@pytest.mark.parametrize(
    "first", ["", "{", "null", "[]", "{}", '{"run": []}', '{"run": {"dispatch_tables": [1]}}', "\xff"]
)
def test_a_damaged_journal_in_the_cache_is_passed_over(first, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path))
    wanted = runs.provenance((), DRIVER)
    for name in ("2030-01-01-a", "2032-01-01-a"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / runs.JOURNAL_FILE).write_text(first + "\n", encoding="latin-1")
    assert job.default_folder(wanted).name.endswith(wanted["revision"])
    runs.RunWriter(tmp_path / "runs" / "2031-01-01-a", wanted)
    assert job.default_folder(wanted).name == "2031-01-01-a"


def test_a_group_in_which_nobody_is_right_or_can_run_has_rows_with_reasons(run, monkeypatch):
    def refuses(executor, contender):
        return "no tensor cores here" if contender.name == "v7" else None

    monkeypatch.setattr(HostExecutor, "refuses", refuses)
    _, rows = run([fp32("v6", 1e-3, behaviour="wrong"), fp32("v7", 1e-3)])
    found = {row["name"]: row for row in rows}
    assert found["v6"]["ok"] is False
    assert found["v6"]["skipped_because"].startswith("failed the check: ")
    assert (found["v7"]["ok"], found["v7"]["skipped_because"]) == (None, "no tensor cores here")
    assert len(rows) == 2


def test_a_self_test_that_cannot_run_says_why(machine):
    request = job.Request(("*",), "", True)
    broken = dataclasses.replace(CUBLAS, behaviour="launch fails")
    part = next(one for one in job.parts(request, [broken]) if one.self_test)
    (found,) = job.self_tests(part, HostSite(), Stopwatch(lambda: 0.0))
    assert found["why_not"].endswith("too much shared memory")
    lines = job.self_test_lines({job.SELF_TESTS: [found]})
    assert lines == [f"A/A cublas_sgemm at 64x64x64: not measured, {found['why_not']}"]


def test_record_keeps_a_complete_run_and_makes_it_latest(machine, capsys):
    root, _ = machine
    assert main(["compare", "--record"]) == 0
    folder = runs.latest()
    assert folder is not None
    assert folder.parent == root / "results" / "nvidia-h200"
    run, rows = runs.read_run("latest")
    assert run["complete"] is True
    assert run["request"] == "record; kernels default set; shapes default"
    assert run["cublas_kernels"]
    assert run["ceilings"]
    timed = [row for row in rows if row["time_us"]]
    assert {(row["m"], row["window"]) for row in timed if row["m"] == row["n"]} == {
        (size, window) for size in (35, 40, 44, 48, 64) for window in ("burst", "sustained")
    }
    assert {row["name"] for row in timed if row["m"] != row["n"]} == {"cublas_sgemm"}
    slow = [row for row in rows if row["name"] == "v0" and row["m"] == 64]
    assert all("too slow" in row["skipped_because"] for row in slow)
    out = capsys.readouterr().out
    assert "Measured here: NVIDIA H200 (132 SMs)" in out
    assert "Same track (FP32 SIMT, 64x64x64, sustained)" in out
    assert "Different track (FP16 Tensor Core, 64x64x64, sustained)" in out
    tested = {(one["name"], one["m"], one["window"]): one for one in run[job.SELF_TESTS]}
    assert set(tested) == {
        (name, 64, f"{window}, warm L2")
        for name in ("cublas_sgemm", "cublas_fp16")
        for window in ("burst", "sustained")
    }
    assert all(abs(one["ratio"] - 1) <= 0.003 and one["ok"] for one in tested.values())
    assert "A/A cublas_sgemm at 64x64x64, sustained, warm L2: 1.000" in out
    assert not any("again" in row["name"] for row in rows)
    assert set(run["seconds"]) >= {job.CEILINGS, "A/A 64x64x64 fp32_simt rr float32-float32"}


def test_a_record_goes_on_in_a_second_lease_though_latest_has_moved(machine, monkeypatch, tmp_path, capsys):
    """Interrupted there, carried over as it lies, and gone on with another day; nothing is measured twice."""
    root, _ = machine
    measured, original = [], job.run_part

    def until_the_lease_ends(part, *rest):
        if len(measured) == 4:
            raise KeyboardInterrupt
        measured.append(part.name)
        return original(part, *rest)

    monkeypatch.setattr(job, "run_part", until_the_lease_ends)
    assert main(["compare", "--record"]) == 130
    assert runs.latest() is None
    (left,) = (root / "results" / "nvidia-h200").iterdir()
    assert runs.read_run(left)[0]["complete"] is False

    second = tmp_path / "second"
    shutil.copytree(root / "results", second)
    other = second / "nvidia-h200" / "2027-01-01-aaaaaaaaaa"
    shutil.copytree(left, other)
    for name, value in (("partial", "the rest"), ("revision", "aaaaaaaaaa")):
        run = json.loads((other / runs.RUN_FILE).read_text())
        (other / runs.RUN_FILE).write_text(json.dumps({**run, name: value}))
    (other / runs.JOURNAL_FILE).unlink()
    runs.make_latest(other)
    monkeypatch.setenv("GEMM_TRACKS_RESULTS", str(second))
    assert runs.latest() == other.resolve()

    def counting(part, *rest):
        measured.append(part.name)
        return original(part, *rest)

    monkeypatch.setattr(job, "run_part", counting)
    monkeypatch.setattr(
        runs,
        "provenance",
        lambda *given, before=runs.provenance: {**before(*given), "date": "2027-01-02T00:00:00+00:00"},
    )
    capsys.readouterr()
    assert main(["compare", "--record"]) == 0
    assert "5 groups are done" in capsys.readouterr().err, "ceilings and four parts"
    assert len(measured) == len(set(measured))
    newest = runs.latest()
    assert newest is not None
    assert newest.name == left.name
    run, _ = runs.read_run(newest)
    assert run["complete"] is True
    assert set(run["seconds"]) == {job.CEILINGS, *measured}
    assert len(run[job.SELF_TESTS]) == 4
    assert not (newest / runs.JOURNAL_FILE).exists()


def test_what_would_end_too_late_is_left_to_the_same_command(machine, monkeypatch, capsys):
    root, _ = machine
    costs = {"32x32x32": 5.0, "48x48x48": 1e6, "40x40x40": 5.0}
    monkeypatch.setattr(job, "cost_of", lambda part: costs[str(part.group.shape)])
    words = ["compare", "--shapes", "32,48,40"]
    assert main([*words, "--seconds", "1000"]) == 0
    assert "--seconds ended it with 2 groups left; the same command goes on" in capsys.readouterr().err
    (folder,) = (root / "cache" / "runs").iterdir()
    run, rows = runs.read_run(folder)
    assert run["complete"] is False
    assert {row["m"] for row in rows} == {32, 40}, "what is short enough fills the rest"
    assert main(words) == 0
    run, rows = runs.read_run(folder)
    assert run["complete"] is True
    assert {row["m"] for row in rows} == {32, 40, 48}
    assert main(["compare", "--seconds", "9", "--gpus", "all"]) == 2
    assert "--seconds" in capsys.readouterr().err


def test_a_run_without_a_folder_is_kept_in_the_cache_and_a_failure_exits_with_1(machine, capsys):
    root, contenders = machine
    assert main(["compare", "--shapes", "32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recorded"] is False
    assert len(list((root / "cache" / "runs").glob("*/rows.csv"))) == 1
    contenders.append(fp32("v9", 1e-3, behaviour="wrong"))
    assert main(["compare", "--shapes", "32", "--out", str(root / "kept")]) == 1
    assert "FAILED and therefore not timed, v9" in capsys.readouterr().out
    assert runs.read_run(root / "kept")[0]["complete"] is True
    assert runs.latest() is None


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(machine, monkeypatch, capsys):
    root, _ = machine
    original, calls = job.run_part, []

    def stopping(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(job, "run_part", stopping)
    words = ["compare", "--shapes", "32,48"]
    assert main(words) == 130
    captured = capsys.readouterr()
    assert "the same command goes on from there" in captured.err
    assert "32x32x32" in captured.out
    assert main(words) == 0
    assert "going on with" in capsys.readouterr().err
    (folder,) = (root / "cache" / "runs").iterdir()
    assert {row["m"] for row in runs.read_run(folder)[1]} == {32, 48}


def test_a_measurement_without_a_sample_and_a_kernel_that_refuses_have_rows_that_say_so():
    (group,) = groups([CUBLAS], parse("64x48x32")[0])
    facts = HostSite().bench.facts
    verdict = check_contender(CUBLAS, group.problem, HostExecutor())
    nothing = measure.Measurement(name=CUBLAS.name, problem=group.problem, window="burst", l2="warm")
    found = measured_row(CUBLAS, group, {}, verdict, nothing, facts, None)
    assert (found["ok"], found["time_us"], found["skipped_because"]) == (True, None, "no sample was taken")
    picky = next(one for one in every_contender() if one.family == "cutlass" and one.track == "fp16_tensor")
    odd = Shape(m=64, n=49, k=32)
    columns = base_columns(
        picky, Group(shape=odd, track=picky.track, problem=odd.problem(picky), contenders=(picky,)), {}
    )
    assert picky.rejects(odd.problem(picky))
    assert (columns["name"], columns["n"], columns.get("registers")) == (picky.name, 49, None)


def test_where_no_run_is_recorded_the_variable_that_hides_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv(runs.VARIABLE, str(tmp_path))
    assert all(word in job.no_run() for word in (runs.VARIABLE, str(tmp_path)))
    monkeypatch.delenv(runs.VARIABLE)
    assert job.no_run().startswith("No recorded run ships")
