"""The check rejects every wrong kernel by name and for the right reason, and rejects no right one."""

import re

import pytest

from compare.check import CpuExecutor, GpuExecutor, check_contender, check_shape, fuzz
from compare.contenders import KernelContender
from compare.shapes import parse
from tests.wrong_kernels.catalog import FOLDER, RIGHT, SPOILS_AFTER_TEN_CALLS, WRONG

NAMES = [wrong.kernel.name for wrong in WRONG]
ON_CPU = [wrong for wrong in WRONG if not wrong.gpu_only]


def test_folder_and_catalog_hold_the_same_kernels():
    assert sorted(path.stem for path in FOLDER.glob("*.cu")) == sorted(
        [*NAMES, RIGHT.name, SPOILS_AFTER_TEN_CALLS.name]
    )
    assert len(WRONG) >= 15
    assert len({wrong.kernel.summary for wrong in WRONG}) == len(WRONG)


def assert_caught(wrong, executor):
    if wrong.seems_right_on:
        (shape,) = parse(wrong.seems_right_on)
        verdict = check_shape(wrong.contender, shape, executor)
        assert verdict.ok, f"expected to look right there: {verdict}"
    (shape,) = parse(wrong.caught_on)
    verdict = check_shape(wrong.contender, shape, executor)
    assert verdict.ok is False
    assert re.search(wrong.because, verdict.reason), verdict.reason
    assert wrong.kernel.name in str(verdict)


@pytest.mark.nvcc
@pytest.mark.parametrize("wrong", ON_CPU, ids=[wrong.kernel.name for wrong in ON_CPU])
def test_wrong_kernel_is_caught_by_the_ptx_machine(wrong):
    assert_caught(wrong, CpuExecutor())


@pytest.mark.nvcc
def test_right_kernel_passes_and_200_random_problems_on_the_ptx_machine():
    executor, contender = CpuExecutor(), KernelContender.of(RIGHT)
    for shape in parse("small"):
        verdict = check_shape(contender, shape, executor)
        assert verdict.ok, verdict
    report = fuzz([contender], 200, 7, executor)
    assert report.ran == 200
    assert not report.failures, report.failures[0].verdict


@pytest.mark.nvcc
def test_small_shapes_catch_every_wrong_kernel_whatever_it_was_written_for():
    missed = {
        wrong.kernel.name
        for wrong in ON_CPU
        if all(check_shape(wrong.contender, shape, CpuExecutor()).ok is not False for shape in parse("small"))
    }
    assert missed == set()


@pytest.mark.nvcc
def test_fuzz_finds_and_shrinks_a_wrong_kernel():
    wrong = next(wrong for wrong in WRONG if wrong.kernel.name == "drops_the_k_tail")
    report = fuzz([wrong.contender], 20, 3, CpuExecutor(), most_failures=1)
    failure = report.failures[0]
    smallest = failure.smallest
    assert (smallest.m, smallest.n) == (1, 1)
    assert 1 <= smallest.k <= 3
    assert report.failures[0].command.startswith(
        "gemm-tracks check --device cpu --kernels drops_the_k_tail --shapes '1x1x"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("wrong", WRONG, ids=NAMES)
def test_wrong_kernel_is_caught_on_a_gpu(wrong):
    assert_caught(wrong, GpuExecutor())


@pytest.mark.gpu
@pytest.mark.parametrize("wrong", WRONG, ids=NAMES)
def test_ladder_shapes_catch_it_too(wrong):
    executor = GpuExecutor()
    verdicts = (
        check_shape(wrong.contender, shape.replace(input=chosen), executor)
        for shape in parse("ladder,128x128x24,48x16x16")
        for chosen in dict.fromkeys((shape.input, "uniform"))
        if shape.k < 4000
    )
    assert any(verdict.ok is False for verdict in verdicts)


@pytest.mark.gpu
def test_right_kernel_passes_the_ladder_and_200_random_problems_on_a_gpu():
    executor, contender = GpuExecutor(), KernelContender.of(RIGHT)
    for shape in parse("ladder"):
        verdict = check_shape(contender, shape, executor)
        assert verdict.ok, verdict
    report = fuzz([contender], 200, 7, executor)
    assert report.ran == 200
    assert not report.failures, report.failures[0].verdict


@pytest.mark.gpu
def test_kernel_that_spoils_its_answer_later_is_what_a_check_alone_cannot_see():
    executor, contender = GpuExecutor(), KernelContender.of(SPOILS_AFTER_TEN_CALLS)
    problem = contender.problem(64, 48, 33)
    verdicts = [check_contender(contender, problem, executor).ok for _ in range(7)]
    assert verdicts[-1] is False
