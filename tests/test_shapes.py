"""Shape strings: sets, options, errors, and that what is printed can be read back."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.inputs import DISTRIBUTIONS
from compare.libraries import LIBRARIES
from compare.shapes import OPTIONS, SETS, Shape, parse
from kernel.errors import GemmTracksError, ShapeError, UsageError

SGEMM = next(c for c in LIBRARIES if c.name == "cublas_sgemm")
HALF = next(c for c in LIBRARIES if c.name == "cublas_fp16")


def test_cubes_triples_sets_and_order():
    shapes = parse(" 64 , 35x79x19,64,default")
    assert [(s.m, s.n, s.k) for s in shapes[:2]] == [(64, 64, 64), (35, 79, 19)]
    assert [s.m for s in shapes[2:]] == [1024, 2048, 4092, 4096, 8192]
    assert {s.shape_set for s in shapes[2:]} == {"default"}
    assert shapes[0].shape_set == ""


@pytest.mark.parametrize("name", SETS)
def test_every_set_parses_and_holds_no_shape_twice(name):
    shapes = parse(name)
    assert len(shapes) == len(SETS[name])
    for shape in shapes:
        shape.problem(SGEMM)
        shape.problem(HALF)


def test_sets_hold_what_they_promise():
    squares = [s.m for s in parse("squares")]
    assert squares == sorted(squares)
    # Those that the bars of the dispatchers are about.
    assert set(squares) >= {1024, 1536, 2048, 3072, 4092, 4096, 5120, 6144, 8192, 12288, 16384, 256, 512, 768}
    assert len(parse("transformer")) == 2 * 4 * 5
    assert {s.m for s in parse("transformer")} == {1, 16, 128, 2048, 8192}
    ladder = {(s.m, s.n, s.k) for s in parse("ladder")}
    assert ladder >= {
        (1, 1, 1), (35, 79, 19), (5, 3, 433), (100, 100, 100), (128, 128, 2040), (256, 128, 256), (130, 130, 64),
        (1000, 1000, 1000), (1152, 1000, 2187), (4092, 4092, 4092), (2097153, 4, 8), (0, 64, 64), (64, 0, 64),
        (64, 64, 0),
    }  # fmt: skip
    assert max(s.m * s.n * s.k for s in parse("small")) < 60_000


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", UsageError, "no shape"),
        (",,", UsageError, "no shape"),
        ("squres", UsageError, "did you mean squares"),
        ("12x13", UsageError, "neither MxNxK"),
        ("1x2x3x4", UsageError, "neither MxNxK"),
        ("-1x2x3", UsageError, "neither MxNxK"),
        ("1.5", UsageError, "neither MxNxK"),
        ("١٢", UsageError, "neither MxNxK"),
        ("2147483648", ShapeError, "2\\*\\*31"),
        ("9" * 5000, ShapeError, "digits"),
        ("4@lay=rr", UsageError, "did you mean layout"),
        ("4@alpha", UsageError, "option .alpha. has no value; write alpha=1.0"),
        ("4@layout", UsageError, "write layout=rr"),
        ("4@alphe", UsageError, "did you mean alpha"),
        ("4@alpha=x", UsageError, "no float"),
        ("4@alpha=1_0", UsageError, "no float"),
        ("4@alpha=４", UsageError, "no float"),
        ("4@pad_a=1_0", UsageError, "no int"),
        ("4@alpha=nan", UsageError, "finite"),
        ("4@layout=rx", UsageError, "known layouts"),
        ("4@pad_a=-1", UsageError, "0 or more"),
        ("4@align_a=3", UsageError, "power of two"),
        ("4@align_a=512", UsageError, "power of two"),
        ("4@input=ones", UsageError, "known inputs"),
    ],
)
def test_malformed_text_is_a_typed_error(text, error, words):
    with pytest.raises(error, match=words):
        parse(text)


@given(st.text(max_size=40))
def test_no_text_escapes_the_error_family(text):
    with contextlib.suppress(GemmTracksError):
        parse(text)


extents = st.integers(0, 2**31 - 1)
scalars = st.floats(allow_nan=False, allow_infinity=False)
aligns = st.sampled_from([2, 4, 8, 16, 32, 64, 128, 256])
pads = st.integers(0, 10**6)


@given(
    st.builds(
        Shape,
        m=extents,
        n=extents,
        k=extents,
        layout=st.sampled_from(["", "rr", "rc", "cr", "cc"]),
        pad_a=pads,
        pad_b=pads,
        pad_c=pads,
        alpha=scalars,
        beta=scalars,
        align_a=aligns,
        align_b=aligns,
        align_c=aligns,
        input=st.sampled_from(sorted(DISTRIBUTIONS)),
        seed=st.integers(0, 2**40),
    )
)
def test_printed_shape_reads_back(shape):
    assert parse(str(shape)) == (shape,)


def test_problem_takes_the_contenders_types_and_layout():
    shape = parse("7x5x3@layout=cc@pad_a=2@pad_b=1@pad_c=4@alpha=0.5@beta=2@align_a=2")[0]
    problem = shape.problem(SGEMM)
    assert (problem.m, problem.n, problem.k) == (7, 5, 3)
    assert (problem.lda, problem.ldb, problem.ldc) == (9, 4, 9)
    assert (problem.alpha, problem.beta) == (0.5, 2.0)
    assert problem.align_a == 4
    assert shape.problem(HALF).align_a == 2
    assert shape.problem(HALF).dtype_in == "float16"
    assert parse("7x5x3")[0].problem(SGEMM).layout == "rr"
    assert "layout" in OPTIONS
