"""Operands: the values are a function of their index, the guards are where they should be and notice damage."""

import numpy as np
import pytest

from compare.inputs import DISTRIBUTIONS, GUARD_BYTES, POISON, allocate, fill, integer_limit
from kernel.contract import Problem, pointer_alignment

PLAIN = Problem(m=7, n=5, k=3)
AWKWARD = Problem(m=35, n=79, k=19, layout="cr", lda=37, ldb=80, ldc=83, align_a=4, align_b=8, align_c=4, beta=1.0)


def filled(problem, distribution="uniform", seed=0):
    buffers = allocate(np, problem)
    fill(buffers, distribution, seed)
    return buffers


@pytest.mark.parametrize("problem", [PLAIN, AWKWARD, AWKWARD.replace(dtype_in="float16", dtype_out="float16")])
def test_views_have_the_stated_layout_and_alignment(problem):
    buffers = filled(problem)
    item = buffers.a.itemsize
    assert (buffers.a.shape, buffers.b.shape, buffers.c.shape) == (
        (problem.m, problem.k),
        (problem.k, problem.n),
        (problem.m, problem.n),
    )
    steps = {"r": (problem.lda, 1), "c": (1, problem.lda)}[problem.layout[0]]
    assert buffers.a.strides == (steps[0] * item, steps[1] * item)
    assert buffers.c.strides == (problem.ldc * item, item)
    pointers = buffers.pointers
    for name in ("a", "b", "c"):
        assert pointer_alignment(getattr(pointers, name)) == getattr(problem, f"align_{name}")
        assert getattr(pointers, name) == getattr(buffers, name).ctypes.data
        assert buffers.front[name] * item >= GUARD_BYTES


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_values_do_not_depend_on_layout_pitch_or_base(distribution):
    plain = filled(Problem(m=35, n=79, k=19, beta=1.0), distribution, seed=3)
    odd = filled(AWKWARD, distribution, seed=3)
    for name in ("a", "b", "c"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(odd, name))


def test_seeds_and_operands_differ_and_repeat():
    problem = Problem(m=64, n=64, k=64, beta=1.0)
    one, again, other = filled(problem, seed=1), filled(problem, seed=1), filled(problem, seed=2**33 + 1)
    np.testing.assert_array_equal(one.a, again.a)
    assert (one.a != other.a).mean() > 0.99
    assert (one.a != one.b).mean() > 0.99
    assert (one.b != one.c).mean() > 0.99


def test_distributions_have_their_moments():
    problem = Problem(m=400, n=8, k=500)
    uniform = filled(problem).a.astype("float64")
    assert uniform.min() >= -1.0
    assert uniform.max() < 1.0
    assert abs(uniform.mean()) < 0.01
    assert abs(uniform.var() - 1 / 3) < 0.01
    assert len(np.unique(uniform)) > 0.98 * uniform.size
    columns = np.corrcoef(uniform[:, :-1].ravel(), uniform[:, 1:].ravel())[0, 1]
    rows = np.corrcoef(uniform[:-1].ravel(), uniform[1:].ravel())[0, 1]
    assert abs(columns) < 0.01
    assert abs(rows) < 0.01
    normal = filled(problem, "normal").a.astype("float64")
    assert np.isfinite(normal).all()
    assert abs(normal.mean()) < 0.01
    assert abs(normal.var() - 1.0) < 0.02
    positive = filled(problem, "positive").a
    assert 0.0 <= positive.min() < positive.max() < 1.0
    integers = filled(problem, "integers").a
    assert set(np.unique(integers)) == set(range(-8, 9))
    assert not filled(problem, "zeros").a.any()


def test_integers_shrink_so_that_sums_stay_exact():
    for k in (1, 1000, 2**14, 2**15, 2**20, 2**24):
        limit = integer_limit(Problem(m=1, n=1, k=k))
        assert 1 <= limit <= 8
        assert limit == 1 or k * limit * limit <= 2**20


def test_special_inputs_hold_what_they_say():
    nan = filled(Problem(m=4, n=3, k=5), "nan")
    assert (nan.a[0] == 1).all()
    assert np.isnan(nan.a[1:]).all()
    assert (nan.b == 1).all()
    special = filled(Problem(m=9, n=9, k=9), "special")
    assert np.isnan(special.a).any()
    assert np.isposinf(special.a).any()
    assert np.isneginf(special.a).any()
    assert np.isfinite(special.a).sum() == 78
    denormal = filled(Problem(m=9, n=9, k=9), "denormal").a
    assert 0 < abs(denormal[denormal != 0]).max() < np.finfo(np.float32).tiny
    vanish = filled(Problem(m=2, n=2, k=64), "vanish").a
    assert vanish[0].sum() == 2048 + 3


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_output_and_surroundings_are_poison_and_damage_is_counted(dtype):
    problem = AWKWARD.replace(dtype_in=dtype, dtype_out=dtype, beta=0.0)
    buffers = filled(problem)
    assert (buffers.bits("c") == POISON[dtype]).all()
    assert np.isnan(buffers.c).all()
    assert buffers.damaged_guards() == {}
    buffers.c[...] = 0
    assert buffers.damaged_guards() == {}
    begin, end = buffers.front["c"], buffers.front["c"] + problem.extent("c")
    for index in (0, begin - 1, end, -1, begin + problem.n, end - problem.ldc):
        kept = buffers.storage["c"][index].copy()
        in_gap_or_guard = (
            not begin <= index % buffers.storage["c"].size < end or (index - begin) % problem.ldc >= problem.n
        )
        buffers.bits("c")[index] ^= 1
        assert buffers.damaged_guards() == ({"c": 1} if in_gap_or_guard else {}), index
        buffers.storage["c"][index] = kept
    buffers.storage["a"][0] = 0
    assert buffers.damaged_guards()["a"] == 1


def test_a_changed_input_shows():
    buffers = filled(PLAIN)
    before = buffers.input_sums()
    buffers.b[2, 4] *= -1
    assert buffers.input_sums()[0] == before[0]
    assert buffers.input_sums()[1] != before[1]


@pytest.mark.parametrize("problem", [Problem(m=0, n=5, k=3), Problem(m=7, n=0, k=3), Problem(m=7, n=5, k=0)])
def test_empty_operands_keep_their_guards(problem):
    buffers = filled(problem)
    assert buffers.damaged_guards() == {}
    assert buffers.input_sums() == filled(problem).input_sums()
