"""The table of docs/cases.md against the tests that there are; and the cases that need no kernel."""

import ast
import functools
import random
import re

import pytest

from compare import counters, inspecting, runs
from compare.check import draw, inapplicable
from compare.contenders import every_contender
from compare.rows import COLUMNS
from compare.shapes import SETS, parse
from handwritten import catalog
from kernel import profiler
from kernel.build import artifact
from kernel.contract import Unit

TESTS = runs.repository() / "tests"
PAGE = (runs.repository() / "docs" / "cases.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)

CASES = (
    *(1, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16),
    *(17, 18, 20, 21, 23),
    *(25, 26, 28, 29, 30, 31, 32, 34, 38),
    *(39, 40, 41, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 54, 55),
    *(56, 57, 58, 60, 61, 63, 64, 66, 68, 69, 70),
    *(74, 75, 76, 77, 79, 80, 82, 83),
    *(84, 85, 86),
)


def test_every_case_is_in_the_table_once():
    assert [int(number) for number, _, _ in LINES] == list(CASES)


@functools.cache
def marks_of(file):
    """Every test of a file, with the marks that it has for itself or for being there."""
    tree = ast.parse((TESTS / f"{file}.py").read_text(encoding="utf-8"))
    shared = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return {
        node.name: set(re.findall(r"mark\.(\w+)", " ".join(map(ast.unparse, [*shared, *node.decorator_list]))))
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("number", CASES)
def test_the_tests_of_a_case_exist_and_some_run_without_a_gpu(number):
    (tests,) = [tests for found, _, tests in LINES if int(found) == number]
    assert not all(list(needs_a_gpu(tests)))


def needs_a_gpu(tests):
    """Of each test in a cell of the page, which has to exist and to be able to fail."""
    named = re.findall(r"`(test_\w+)::(test_\w+)`", tests)
    assert len(named) == len(tests.split(", ")), "a test is written as `file::name`"
    for file, name in named:
        assert name in marks_of(file), f"{file}::{name}"
        marks = marks_of(file)[name]
        assert not marks & {"skip", "xfail"}, f"{file}::{name} never fails"
        assert "gpu" in marks or not file.endswith("_gpu"), f"{file}::{name}"
        yield "gpu" in marks


def test_damage_is_tested_without_a_gpu():
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (`[^|]+) \|$", PAGE.partition("## Damage")[2], re.MULTILINE)
    assert len(rows) == 8
    for what, tests in rows:
        assert not any(list(needs_a_gpu(tests))), what


def test_random_data_is_what_is_timed_unless_another_input_is_named():
    """Case 43: every row states its input, and no set that compare times by default holds another."""
    assert "input" in {column.name for column in COLUMNS}
    for name in ("default", "squares", "tails", "skinny", "transformer"):
        assert {shape.input for shape in parse(name)} == {"uniform"}
    assert set(SETS) > {"default"}


def test_the_recorded_ladder_is_shown_as_measured_and_not_sorted():
    """Case 55: rungs stand in the order in which they build on each other, also where one is slower than the last."""
    readme = (runs.repository() / "README.md").read_text(encoding="utf-8")
    ladder = readme.partition("**The ladder.**")[2].partition("**The tracks.**")[0]
    shown = re.findall(r"^\| `(v\d\w*)`[^|]* \| [^|]+ \| ([\d.]+) \|", ladder, re.MULTILINE)
    order = [kernel.name for kernel in catalog.LADDER]
    places = [order.index(name) for name, _ in shown]
    assert places == sorted(places)
    assert len(shown) >= 10
    rates = [float(rate) for _, rate in shown]
    assert rates != sorted(rates), "the recorded run has slower later rungs; a table without any was rearranged"


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
def test_the_inspector_states_the_architecture_that_is_in_the_cubin(arch, tmp_path, capsys):
    """Case 63."""
    source = tmp_path / "twice.cu"
    source.write_text('extern "C" __global__ void twice(float* p) { p[threadIdx.x] *= 2.0f; }\n')
    built = artifact(Unit(name="file_twice", arch=arch, source=source))
    found = inspecting.inspection_of(str(built.cubin), "")
    assert found.arch.removesuffix("a") == arch.removesuffix("a")


def test_a_profilers_duration_is_labelled_and_is_no_time_of_ours():
    """Case 80: no column is filled from it, and its line says under which caches and clock it was taken."""
    assert profiler.DURATION in profiler.METRICS
    lines = counters.counters("v2_block_tile", (256, 256, 256)).lines
    (duration,) = [line for line in lines if line.what.startswith("duration")]
    assert "replayed" in duration.note
    assert "clock" in duration.note
    assert "no ratio" in duration.note
    assert not [column for column in COLUMNS if "profiler" in column.meaning]


def test_most_random_problems_run_and_fp32_simt_refuses_none():
    """What `check --fuzz 2000` will draw on a GPU, asked of the kernels without running any."""
    able = [contender for contender in every_contender() if contender.in_default_set]
    refused = 0
    for index in range(2000):
        contender = random.Random(str(index)).choice(able)
        shape = draw(contender, random.Random(f"{index} {contender.name}"), small=False)
        reason = contender.rejects(shape.problem(contender)) or inapplicable(contender, shape.input)
        assert reason is None or contender.track != "fp32_simt", f"{contender.name}: {reason}"
        refused += reason is not None
    assert refused < 0.3 * 2000
