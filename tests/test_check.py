"""The checker itself, on outputs made by NumPy: what it must reject, what it must not, and what it says."""

import dataclasses
import math
import random
import re

import numpy as np
import pytest

from compare import check
from compare.check import Verdict, check_all, check_baseline, check_contender, check_shape, draw, fuzz, shrink, verify
from compare.contenders import Contender
from compare.inputs import POISON, allocate, fill
from compare.shapes import SETS, Shape, parse
from kernel.contract import Problem
from kernel.errors import CatalogError, CheckError, LaunchError, NoDeviceError, RejectedError, UnsupportedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumpyGemm(Contender):
    """A contender whose arithmetic is NumPy's, with a fault put in."""

    name: str = "numpy"
    family: str = "handwritten"
    track: str = "fp32_simt"
    summary: str = "NumPy"
    fault: str = ""
    refuses_odd: bool = False

    def rejects(self, problem):
        if self.refuses_odd and problem.n % 2:
            return f"n = {problem.n} is odd"
        return self.rejects_type_or_layout(problem)

    def variant(self, problem):
        return "numpy"

    def needs(self):
        return ""

    def prepare(self, problem, pointers, stream):
        raise NoDeviceError("runs in NumPy only")


RIGHT = NumpyGemm()
HALF = NumpyGemm(name="half", track="fp16_tensor", dtype_in="float16", dtype_out="float16")


def in_type(values, dtype):
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def gemm(problem, a, b, c):
    """The right answer in float32 accumulation."""
    alpha, beta = np.float32(problem.alpha), np.float32(problem.beta)
    with np.errstate(all="ignore"):
        value = np.zeros(c.shape, np.float32) if problem.is_scale_only else alpha * (a.astype("f4") @ b.astype("f4"))
        return in_type(value + beta * c.astype("f4") if problem.beta else value, c.dtype)


class NumpyExecutor:
    xp = np

    def __init__(self, name="gpu"):
        self.name = name
        self.calls = 0
        self.kept = None

    def refuses(self, contender):
        return None

    def run(self, contender, problem, buffers):
        self.calls += 1
        fault, a, b, c = contender.fault, buffers.a, buffers.b, buffers.c
        if fault == "launch":
            raise LaunchError("the driver refused it")
        if fault == "rejects":
            raise RejectedError("only CuPy arrays of one device")
        if fault == "unsupported":
            raise UnsupportedError("the PTX machine lacks opcode wgmma, reached by thread 0")
        if fault == "sticky":
            raise CheckError("the GPU stopped")
        result = gemm(problem, a, b, c)
        if problem.is_empty:
            return "empty"
        if fault == "replay":
            if self.calls == 1:
                self.kept = result
            result = self.kept
        if fault == "tail":
            result[-1, -1] += 0.125
        if fault == "large_m" and problem.m > 20 and problem.beta:
            result[20] = 0
        c[...] = result
        if fault == "overrun":
            buffers.storage["c"][buffers.front["c"] + problem.extent("c")] = 0
        if fault == "underrun":
            buffers.storage["b"][0] = 0
        if fault == "changes":
            a[0, 0] += 1
        if fault == "unwritten":
            buffers.bits("c")[buffers.front["c"]] = POISON[problem.dtype_out]
        return "numpy"


def faulty(fault):
    return dataclasses.replace(RIGHT, fault=fault)


PROBLEM = Problem(m=35, n=79, k=19)


def output(problem=PROBLEM, distribution="uniform", seed=0):
    buffers = allocate(np, problem)
    fill(buffers, distribution, seed)
    before = buffers.c.copy()
    return buffers.a, buffers.b, gemm(problem, buffers.a, buffers.b, before), before


# Case 28: comparisons that let NaN through.


def test_nan_everywhere_fails():
    a, b, c, _ = output()
    c[...] = np.nan
    verdict = verify(PROBLEM, "fp32_simt", "uniform", a, b, c)
    assert verdict.ok is False
    assert verdict.bad == 35 * 79
    assert verdict.first_bad == (0, 0)
    assert verdict.max_error == math.inf


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("track", ["fp32_simt", "tf32_tensor", "fp16_tensor"])
@pytest.mark.parametrize("distribution", ["uniform", "integers"])
def test_one_bad_element_fails_with_index_and_count(value, track, distribution):
    a, b, c, _ = output(distribution=distribution)
    c[34, 78] = value
    verdict = verify(PROBLEM, track, distribution, a, b, c)
    assert verdict.ok is False
    assert verdict.bad == 1
    assert verdict.first_bad == (34, 78)
    assert "1 of 2765" in verdict.reason
    assert "C[34, 78]" in verdict.reason
    assert not verdict.margin <= 1.0


@pytest.mark.parametrize("distribution", ["nan", "special"])
def test_nan_is_right_only_where_the_reference_is_nan(distribution):
    a, b, c, _ = output(distribution=distribution)
    assert np.isnan(c).any()
    assert verify(PROBLEM, "fp32_simt", distribution, a, b, c).ok
    row, column = np.argwhere(np.isnan(c))[0]
    c[row, column] = 1.0
    verdict = verify(PROBLEM, "fp32_simt", distribution, a, b, c)
    assert verdict.first_bad == (row, column)
    assert math.isnan(verdict.expected)


def test_inf_needs_its_sign():
    a, b, c, _ = output(distribution="special")
    row, column = np.argwhere(np.isinf(c))[0]
    c[row, column] *= -1
    assert verify(PROBLEM, "fp32_simt", "special", a, b, c).first_bad == (row, column)


# Case 31: TF32 against the FP32 bound; case 29: 1024.5.


def to_tf32(x, truncate):
    bits = x.view(np.uint32)
    return ((bits if truncate else bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("k", [16, 1024, 65536])
def test_tf32_inputs_fail_fp32_and_pass_tf32(k, truncate):
    problem = Problem(m=24, n=24, k=k)
    a, b, c, _ = output(problem)
    assert verify(problem, "fp32_simt", "uniform", a, b, c).ok
    cut = to_tf32(np.ascontiguousarray(a), truncate) @ to_tf32(np.ascontiguousarray(b), truncate)
    assert verify(problem, "fp32_simt", "uniform", a, b, cut).ok is False
    assert verify(problem, "tf32_tensor", "uniform", a, b, cut).ok


def test_tf32_fails_on_1024_and_a_half_times_identity():
    problem = Problem(m=128, n=128, k=128)
    a, b, c, _ = output(problem, "identity")
    assert (c == 1024.5).all()
    assert verify(problem, "fp32_simt", "identity", a, b, c).ok
    assert verify(problem, "fp32_simt", "identity", a, b, np.full_like(c, 1025)).ok is False
    assert verify(problem, "tf32_tensor", "identity", a, b, np.full_like(c, 1025)).ok


# Case 32: tolerances that fit every k.


def test_sequential_fp32_sums_pass_at_every_k():
    for k in (1, 2, 3, 7, 64, 1000, 16384):
        problem = Problem(m=24, n=24, k=k)
        a, b, _, _ = output(problem)
        total = np.zeros((24, 24), np.float32)
        for step in range(k):
            total += np.outer(a[:, step], b[step])
        verdict = verify(problem, "fp32_simt", "uniform", a, b, total)
        assert verdict.ok, verdict
        assert verdict.margin < 0.8


def tensor_core_sum(a, b):
    """FP16 inputs as Tensor Cores add them: sums of 16 products, cut towards zero to 24 bits each time."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for step in range(0, a.shape[1], 16):
        total += a[:, step : step + 16].astype(float) @ b[step : step + 16].astype(float)
        mantissa, exponent = np.frexp(total)
        total = np.ldexp(np.trunc(mantissa * 2**24), exponent - 24)
    return total


@pytest.mark.parametrize("dtype_out", ["float16", "float32"])
@pytest.mark.parametrize("k", [32, 1024, 7168, 16384])
def test_fp16_passes_and_planted_errors_are_caught_at_every_k(k, dtype_out):
    problem = Problem(m=96, n=96, k=k, dtype_in="float16", dtype_out=dtype_out)
    a, b, _, _ = output(problem)
    right = tensor_core_sum(a, b)
    verdict = verify(problem, "fp16_tensor", "uniform", a, b, in_type(right, dtype_out))
    assert verdict.ok, verdict
    small = np.unravel_index(np.abs(right).argmin(), right.shape)
    shifted = right.copy()
    shifted[small] += 0.125
    caught = verify(problem, "fp16_tensor", "uniform", a, b, in_type(shifted, dtype_out))
    assert caught.ok is False
    assert caught.first_bad == small
    dropped = right - a[:, -16:].astype(float) @ b[-16:].astype(float)
    assert verify(problem, "fp16_tensor", "uniform", a, b, in_type(dropped, dtype_out)).bad > 0.5 * 96 * 96


@pytest.mark.parametrize("k", [8, 64, 4096])
def test_tf32_passes_and_a_dropped_k_tile_is_caught(k):
    problem = Problem(m=96, n=96, k=k)
    a, b, _, _ = output(problem)
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    right = tensor_core_sum(to_tf32(a, True), to_tf32(b, True))
    verdict = verify(problem, "tf32_tensor", "uniform", a, b, in_type(right, "float32"))
    assert verdict.ok, verdict
    dropped = right - a[:, -8:].astype(float) @ b[-8:].astype(float)
    assert verify(problem, "tf32_tensor", "uniform", a, b, in_type(dropped, "float32")).bad > 8000


# Case 34: an FP16 accumulator.


def test_fp16_accumulation_is_caught():
    problem = Problem(m=16, n=16, k=1024, dtype_in="float16", dtype_out="float16")
    a, b, c, _ = output(problem, "vanish")
    assert (c == 2112).all()
    assert verify(problem, "fp16_tensor", "vanish", a, b, c).ok
    assert verify(problem, "fp16_tensor", "vanish", a, b, np.full_like(c, 2048)).ok is False
    a, b, _, _ = output(problem)
    total = np.zeros((16, 16), np.float16)
    for step in range(1024):
        total += np.outer(a[:, step], b[step])
    assert verify(problem, "fp16_tensor", "uniform", a, b, total).ok is False


def test_integers_agree_to_the_bit():
    problem = PROBLEM.replace(alpha=0.5, beta=3.0)
    a, b, c, before = output(problem, "integers")
    assert verify(problem, "fp32_simt", "integers", a, b, c, before).ok
    c[3, 4] = np.nextafter(c[3, 4], np.float32(np.inf))
    verdict = verify(problem, "fp32_simt", "integers", a, b, c, before)
    assert verdict.ok is False
    assert verdict.first_bad == (3, 4)
    assert verdict.error_bound == 0.0


def test_fp16_output_may_overflow_to_inf_only_where_it_must():
    problem = Problem(m=2, n=2, k=4, dtype_in="float16", dtype_out="float16")
    a, b = np.full((2, 4), 200, np.float16), np.full((4, 2), 100, np.float16)
    b[:, 1] = 10
    c = np.array([[np.inf, 8000]] * 2, np.float16)
    assert verify(problem, "fp16_tensor", "positive", a, b, c).ok
    assert verify(problem, "fp16_tensor", "positive", a, b, -c).bad == 4
    c[1, 1] = np.inf
    assert verify(problem, "fp16_tensor", "positive", a, b, c).first_bad == (1, 1)


# check_contender: what surrounds the numbers.


@pytest.mark.parametrize("name", ["small", "ladder"])
@pytest.mark.parametrize("contender", [RIGHT, HALF], ids=["float32", "float16"])
def test_right_arithmetic_passes_every_shape(name, contender):
    for shape in parse(name):
        if shape.m * shape.n * shape.k < 1e7:
            verdict = check_shape(contender, shape, NumpyExecutor())
            assert verdict.ok, verdict


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("tail", "elements wrong"),
        ("replay", "elements wrong"),
        ("unwritten", "never written"),
        ("overrun", "1 around C"),
        ("underrun", "1 around B"),
        ("changes", "elements wrong|changed"),
        ("launch", "refused"),
    ],
)
@pytest.mark.parametrize("shape", ["35x79x19", "18x33x13@pad_a=3@pad_b=1@pad_c=2@alpha=0.5@beta=3"])
def test_faults_are_caught(fault, reason, shape):
    verdict = check_shape(faulty(fault), parse(shape)[0], NumpyExecutor())
    assert verdict.ok is False
    assert re.search(reason, verdict.reason), verdict.reason
    assert not verdict.fatal
    assert "FAILED" in str(verdict)


def test_unwritten_element_is_no_nan_that_happens_to_be_right():
    verdict = check_contender(faulty("unwritten"), PROBLEM, NumpyExecutor(), distribution="special")
    assert verdict.ok is False
    a, b, c, _ = output(distribution="nan")
    c.view(np.uint32)[5, 6] = POISON["float32"]
    assert verify(PROBLEM, "fp32_simt", "nan", a, b, c).unwritten == 1


def test_refusal_is_neither_pass_nor_failure():
    picky = dataclasses.replace(RIGHT, refuses_odd=True)
    verdict = check_contender(picky, PROBLEM, NumpyExecutor())
    assert verdict.ok is None
    assert verdict.skipped_because == "n = 79 is odd"
    assert "not run" in str(verdict)
    verdict = check_contender(faulty("unsupported"), PROBLEM, NumpyExecutor())
    assert verdict.ok is None
    assert verdict.skipped_because == "the PTX machine lacks opcode wgmma"
    tf32 = NumpyGemm(name="cutlass_tf32x3_a", track="tf32_tensor")
    for distribution in ("denormal", "inf", "special"):
        assert check_contender(tf32, PROBLEM, NumpyExecutor(), distribution=distribution).ok is None


def test_what_only_running_it_refuses_is_a_refusal_too():
    verdict = check_contender(faulty("rejects"), PROBLEM, NumpyExecutor())
    assert verdict.ok is None
    assert verdict.skipped_because == "only CuPy arrays of one device"


def test_the_machine_runs_kernels_alone():
    cpu = check.CpuExecutor()
    assert cpu.refuses(RIGHT) == "handwritten runs on a GPU only"
    with pytest.raises(NoDeviceError, match="numpy runs on a GPU only"):
        cpu.run(RIGHT, PROBLEM, allocate(np, PROBLEM))


def test_too_little_memory_is_a_refusal(monkeypatch):
    def full(xp, problem):
        raise MemoryError("1 TiB asked for")

    monkeypatch.setattr("compare.trials.allocate", full)
    verdict = check_contender(RIGHT, PROBLEM, NumpyExecutor())
    assert verdict.ok is None
    assert "1 TiB" in verdict.skipped_because


SHARED = [PROBLEM, Problem(m=18, n=33, k=13, lda=16, ldb=34, ldc=35, alpha=0.5, beta=3.0)]


@pytest.mark.parametrize("problem", SHARED, ids=str)
@pytest.mark.parametrize("room", [1 << 30, 0], ids=["kept", "no room"])
def test_operands_that_are_shared_change_no_verdict(problem, room, monkeypatch):
    monkeypatch.setattr("compare.trials.HOST_BYTES", room)
    members = [RIGHT, *map(faulty, ("tail", "replay", "overrun", "underrun", "changes", "unwritten", "launch")), RIGHT]
    trials = check.shared_trials(NumpyExecutor(), problem, seed=5)
    for contender in members:
        alone = check_contender(contender, problem, NumpyExecutor(), seed=5)
        together = check_contender(contender, problem, NumpyExecutor(), seed=5, trials=trials)
        if contender.fault == "changes":  # products of the operands as they were do agree
            assert (together.ok, alone.ok) == (False, False)
        else:
            assert str(together) == str(alone)
    assert together.ok


def test_products_are_made_once_for_all_who_are_right(monkeypatch):
    made = []
    original = check.Reference.blocks

    def counting(reference):
        made.append(reference)
        return original(reference)

    monkeypatch.setattr(check.Reference, "blocks", counting)
    trials = check.shared_trials(NumpyExecutor(), PROBLEM)
    assert all(check_contender(RIGHT, PROBLEM, NumpyExecutor(), trials=trials).ok for _ in range(5))
    assert len(made) == check.ROUNDS
    assert check_contender(faulty("tail"), PROBLEM, NumpyExecutor(), trials=trials).ok is False
    assert len(made) == check.ROUNDS + 1, "no one fails by what is kept alone"


def test_nobody_fails_by_products_that_another_kernel_wrote_over():
    trials = check.shared_trials(NumpyExecutor(), PROBLEM)
    assert check_contender(RIGHT, PROBLEM, NumpyExecutor(), trials=trials).ok
    (_, value, _), *_ = trials.kept(0, None)
    value[3, 4] = 1e9
    trials._values[1]["a"][500:] = 7.0
    assert check_contender(RIGHT, PROBLEM, NumpyExecutor(), trials=trials).ok
    (_, value, _), *_ = trials.kept(0, None)
    assert value[3, 4] != 1e9


def test_values_whose_guards_were_written_over_are_drawn_anew():
    trials = check.shared_trials(NumpyExecutor(), PROBLEM)
    assert check_contender(RIGHT, PROBLEM, NumpyExecutor(), trials=trials).ok
    trials.kept(0, None)
    right = trials._values[1]["a"].copy()
    trials._values[1]["a"][0] = 7.0
    trials.begin(1)
    assert not trials.buffers.damaged_guards()
    assert trials._values[1]["a"].tobytes() == right.tobytes()
    assert list(trials._values) == [1], "what else was kept is no more to be trusted"
    assert not trials._products


def test_products_without_room_are_not_kept_and_the_result_is_checked_all_the_same(monkeypatch):
    from compare.trials import kept_products

    a, b, _, _ = output()
    assert kept_products(PROBLEM, "uniform", a, b, None)
    assert kept_products(PROBLEM.replace(m=0), "uniform", a, b, None) is None
    monkeypatch.setattr("compare.trials.HOST_BYTES", 0)
    assert kept_products(PROBLEM, "uniform", a, b, None) is None


def test_all_stops_after_a_fault_that_ends_the_process():
    found = list(check_all([RIGHT, faulty("sticky"), RIGHT], parse("4,5"), NumpyExecutor()))
    assert [verdict.ok for _, verdict in found] == [True, False]
    assert found[-1][1].fatal


def test_baseline_must_be_right_before_anything_is_scored():
    right = dataclasses.replace(RIGHT, name="cublas_sgemm")
    verdicts = check_baseline(NumpyExecutor(), [right, RIGHT])
    assert [(v.problem.m, v.problem.n, v.problem.k) for v in verdicts][:2] == [(128, 256, 64), (7, 5, 3)]
    with pytest.raises(CheckError, match="baseline is wrong"):
        check_baseline(NumpyExecutor(), [dataclasses.replace(right, fault="tail")])


# Fuzzing.


def test_fuzz_of_right_arithmetic_finds_nothing_and_counts_refusals():
    picky = dataclasses.replace(RIGHT, name="picky", refuses_odd=True)
    report = fuzz([RIGHT, HALF, picky], 150, 11, NumpyExecutor("cpu"))
    assert report.failures == ()
    assert report.drawn == 150
    assert report.ran + sum(report.refused.values()) == 150
    assert set(report.refused) == {("picky", "n = # is odd")}
    assert 0.6 < report.share_run < 1.0
    assert set(report.worst) == {"numpy", "half", "picky"}


def test_fuzz_shrinks_and_its_command_repeats_the_failure():
    report = fuzz([faulty("large_m")], 60, 5, NumpyExecutor(), most_failures=2)
    assert len(report.failures) == 2
    for failure in report.failures:
        shape = failure.smallest
        assert (shape.m, shape.n, shape.k) == (21, 1, 1)
        assert (shape.pad_a, shape.align_a, shape.alpha) == (0, 256, 1.0)
        assert shape.beta != 0.0
        text = failure.command.split("--shapes ")[1].strip("'")
        assert parse(text) == (shape,)
        assert check_shape(faulty("large_m"), shape, NumpyExecutor()).ok is False
        assert "--kernels numpy" in failure.command


def test_refusals_for_one_reason_are_counted_together():
    reasons = [
        "v11_small: 3 blocks, alpha = -0.5",
        "v11_small: 14 blocks, alpha = 2",
        "v11_small: 1 blocks, alpha = 1e-05",
    ]
    assert {check.NUMBERS.sub("#", reason) for reason in reasons} == {"v11_small: # blocks, alpha = #"}
    assert check.NUMBERS.sub("#", "its 16-byte accesses of sm_90a") == "its #-byte accesses of sm_90a"


def test_draws_repeat_alone_and_cover_what_they_should():
    shapes = [draw(RIGHT, random.Random(seed), small=False) for seed in range(600)]
    assert draw(RIGHT, random.Random(17), small=False) == shapes[17]
    assert {shape.input for shape in shapes} == set(check.DISTRIBUTIONS)
    assert any(shape.m == 0 for shape in shapes)
    assert any(shape.k == 0 for shape in shapes)
    assert any(max(shape.m, shape.n, shape.k) > 1000 for shape in shapes)
    assert any(shape.align_a == 4 for shape in shapes)
    assert any(shape.pad_c for shape in shapes)
    assert {bool(shape.beta) for shape in shapes} == {True, False}
    small = [draw(RIGHT, random.Random(seed), small=True) for seed in range(200)]
    assert max(max(s.m, s.n, s.k) for s in small) <= 100
    one, many = [], []
    fuzz([RIGHT], 1, 23, NumpyExecutor(), progress=lambda index, verdict: one.append(verdict.problem))
    fuzz([RIGHT], 4, 20, NumpyExecutor(), progress=lambda index, verdict: many.append(verdict.problem))
    assert one[0] == many[3]


def test_fuzz_stops_at_a_fatal_fault_without_shrinking():
    executor = NumpyExecutor()
    report = fuzz([faulty("sticky")], 50, 0, executor)
    assert len(report.failures) == 1
    assert executor.calls == 1
    assert report.failures[0].smallest == report.failures[0].drawn


def test_fuzz_needs_someone_who_can_run():
    with pytest.raises(CatalogError, match="can run"):
        fuzz([], 1, 0, NumpyExecutor())


def test_shrinking_ends_even_where_everything_fails():
    shape = Shape(m=400, n=300, k=200, alpha=0.5, input="normal")
    verdict = Verdict(contender="numpy", problem=PROBLEM, input="normal", seed=0, ok=False)
    smallest, _ = shrink(faulty("tail"), shape, verdict, NumpyExecutor())
    assert (smallest.m, smallest.n, smallest.k) == (1, 1, 1)
    assert "small" in SETS


def test_shrinking_gives_up_after_so_many_tries(monkeypatch):
    monkeypatch.setattr(check, "MOST_SHRINKS", 3)
    shape = Shape(m=400, n=300, k=200)
    verdict = Verdict(contender="numpy", problem=PROBLEM, input="normal", seed=0, ok=False)
    executor = NumpyExecutor()
    assert shrink(RIGHT, shape, verdict, executor) == (shape, verdict)
    assert executor.calls == 3 * check.ROUNDS
    smaller, found = shrink(faulty("tail"), shape, verdict, NumpyExecutor())
    assert (smaller.m, smaller.n, smaller.k) == (1, 1, 1)
    assert found.problem == smaller.problem(RIGHT)
