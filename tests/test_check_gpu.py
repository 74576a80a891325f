"""On a GPU: the ladder on every shape of its bar, and what only hardware can show."""

import numpy as np
import pytest

from compare.check import GpuExecutor, check_contender, check_shape, fuzz, shared_trials
from compare.contenders import contenders, every_contender
from compare.inputs import allocate, fill
from compare.shapes import parse
from kernel.errors import MissingToolError
from tests.repeats import assert_repeats_are_bit_identical

pytestmark = pytest.mark.gpu

HANDWRITTEN = [c for c in every_contender() if c.family == "handwritten"]
LADDER = [c for c in HANDWRITTEN if c.track == "fp32_simt"]
EMITTED = [c for c in every_contender() if c.family in ("cutlass", "cute_dsl") and c.in_default_set]

MANY_BLOCKS = "8388481x4x8,4x2097153x8"
BEYOND_INT32 = "65536x32768x1,65537x32768x1,12347x4x174000"


def ids(many):
    return [contender.name for contender in many]


@pytest.fixture(scope="module")
def executor():
    return GpuExecutor()


@pytest.fixture(autouse=True)
def _memory_is_given_back():
    yield
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("contender", LADDER, ids=ids(LADDER))
def test_ladder_passes_every_shape_and_refuses_none(contender, executor):
    for shape in parse("ladder"):
        verdict = check_shape(contender, shape, executor)
        assert verdict.ok, verdict


@pytest.mark.parametrize("text", ["513x260x129", "130x130x64@alpha=0.5@beta=3.0@pad_a=3@pad_c=2", "1024"])
def test_operands_and_products_that_are_shared_change_no_verdict(text, executor):
    (shape,) = parse(text)
    members = contenders(["v2_block_tile,v6_transposed_split,cublas_sgemm"])
    problem = shape.problem(members[0])
    trials = shared_trials(executor, problem, shape.input, shape.seed)
    for contender in (*members, *members):
        together = check_contender(contender, problem, executor, trials=trials)
        assert together.ok, together
        assert together == check_contender(contender, problem, executor)
    (_, value, _), *_ = trials.kept(1, trials.buffers.c.copy() if problem.beta else None)
    value[0, 0] += 1e6
    assert check_contender(members[0], problem, executor, trials=trials).ok, "no one fails by what is kept alone"


TENSOR = [c for c in HANDWRITTEN if c not in LADDER]


@pytest.mark.parametrize("contender", [*TENSOR, *EMITTED], ids=ids([*TENSOR, *EMITTED]))
def test_tensor_and_emitted_kernels_pass_or_refuse_with_a_reason(contender, executor):
    ran = 0
    for shape in parse("ladder,256x256x256,512x384x128,2048x1024x512,256x128x4096"):
        try:
            verdict = check_shape(contender, shape, executor)
        except MissingToolError as error:
            pytest.skip(str(error))
        assert verdict.ok is not False, verdict
        ran += verdict.ok is True
    assert ran >= 5


@pytest.mark.parametrize("contender", LADDER, ids=ids(LADDER))
def test_k_tails_vary_independently_of_m_and_n(contender, executor):
    extents = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 100, 1000, 2048)
    for k in extents:
        verdict = check_contender(contender, contender.problem(100, 100, k), executor)
        assert verdict.ok, verdict


@pytest.mark.parametrize("contender", LADDER, ids=ids(LADDER))
@pytest.mark.parametrize("shape", parse(MANY_BLOCKS), ids=str)
def test_more_blocks_than_a_grid_axis_holds(contender, shape, executor):
    verdict = check_shape(contender, shape, executor)
    assert verdict.ok, verdict


@pytest.mark.slow
@pytest.mark.parametrize("contender", LADDER, ids=ids(LADDER))
@pytest.mark.parametrize("shape", parse(BEYOND_INT32), ids=str)
def test_operands_beyond_two_to_the_31_elements(contender, shape, executor):
    verdict = check_shape(contender, shape, executor)
    assert verdict.ok, verdict


@pytest.mark.parametrize("contender", LADDER, ids=ids(LADDER))
@pytest.mark.parametrize("side", [256, 1024])
def test_a_hundred_repeats_are_bit_identical(contender, side, executor):
    assert_repeats_are_bit_identical(contender, contender.problem(side, side, side), 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simt_dispatch", "fp16_dispatch"])
def test_a_thousand_launches_at_8192_are_bit_identical(name):
    """What the tables name at 8192 cubed: stream-K and whatever else meets other blocks on the way."""
    (contender,) = contenders([name])
    assert_repeats_are_bit_identical(contender, contender.problem(8192, 8192, 8192), 1000)


def test_values_on_the_device_are_those_of_the_host():
    import cupy

    problem = LADDER[0].problem(300, 70, 1000, beta=1.0)
    host, device = allocate(np, problem), allocate(cupy, problem)
    for distribution in ("uniform", "integers", "positive", "special"):
        fill(host, distribution, 5)
        fill(device, distribution, 5)
        for name in ("a", "b", "c"):
            np.testing.assert_array_equal(getattr(host, name), cupy.asnumpy(getattr(device, name)))


def test_fuzz_refuses_nothing_on_the_ladder(executor):
    report = fuzz(LADDER, 300, 2024, executor)
    assert not report.failures, report.failures[0]
    assert report.ran == 300


def test_fuzz_of_everything_runs_most_draws(executor):
    able = []
    for contender in [*HANDWRITTEN, *EMITTED, *contenders(["cublas*", "torch*"])]:
        try:
            check_contender(contender, contender.problem(128, 128, 128), executor)
        except MissingToolError:
            continue
        able.append(contender)
    report = fuzz(able, 300, 2025, executor)
    assert not report.failures, report.failures[0]
    assert report.share_run >= 0.7, report.refused
    simt = {c.name for c in able if c.track == "fp32_simt"}
    assert not [key for key in report.refused if key[0] in simt], report.refused
