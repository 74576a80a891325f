"""Operands that are timed on: copies for cold timing, C put back, and a last run on values nobody has seen."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from compare import operand_sets
from compare.operand_sets import OperandSets, copy_async
from kernel.contract import Problem
from kernel.errors import LaunchError
from tests.test_job import fp32

PLAIN = Problem(m=24, n=16, k=8)
ADDING = PLAIN.replace(beta=0.5)


def prepared(sets, contender):
    return contender.prepare(sets.problem, sets.pointers(), 0)


def test_more_sets_are_copies_in_memory_of_their_own():
    sets = OperandSets(np, PLAIN)
    sets.grow(3)
    assert len({sets.pointers(index).a for index in range(3)}) == 3
    for name, storage in sets.sets[0].storage.items():
        for more in sets.sets[1:]:
            assert more.storage[name].tobytes() == storage.tobytes()


@pytest.mark.parametrize(
    ("raised", "caught"),
    [
        (MemoryError("80 GiB asked for"), MemoryError),
        (type("OutOfMemoryError", (Exception,), {})("80 GiB asked for"), MemoryError),
        (ValueError("80 GiB asked for"), ValueError),
    ],
)
def test_no_room_for_more_sets_is_a_memory_error_whoever_says_so(raised, caught, monkeypatch):
    def full(xp, problem):
        raise raised

    sets = OperandSets(np, PLAIN)
    monkeypatch.setattr(operand_sets, "allocate", full)
    with pytest.raises(caught, match="80 GiB asked for"):
        sets.grow(2)
    assert len(sets.sets) == 1


def test_c_is_put_back_where_it_is_read_and_left_alone_where_not():
    sets = OperandSets(np, ADDING)
    sets.grow(2)
    before = sets.sets[1].c.copy()
    for one in sets.sets:
        one.c[...] = 7.0
    sets.restore_c(0, 1)
    np.testing.assert_array_equal(sets.sets[1].c, before)
    assert (sets.sets[0].c == 7.0).all()
    plain = OperandSets(np, PLAIN)
    plain.sets[0].c[...] = 7.0
    plain.restore_c(0)
    assert (plain.sets[0].c == 7.0).all()


def test_on_a_device_c_is_put_back_by_a_copy_on_the_stream():
    queued = []

    def copy(target, source, size, kind, stream):
        queued.append((kind, stream))
        ctypes.memmove(target, source, size)

    runtime = SimpleNamespace(memcpyAsync=copy, memcpyDeviceToDevice=3)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    source, target = (
        SimpleNamespace(data=SimpleNamespace(ptr=array.ctypes.data), nbytes=array.nbytes, array=array)
        for array in (np.arange(5.0), np.zeros(5))
    )
    copy_async(cupy, target, source, 77)
    assert queued == [(3, 77)]
    np.testing.assert_array_equal(target.array, np.arange(5.0))


def test_sets_on_a_device_queue_that_copy_on_the_stream_they_are_given(monkeypatch):
    queued = []
    sets = OperandSets(np, ADDING)
    before, cupy = sets.sets[0].c.copy(), SimpleNamespace(cuda=None)
    sets._xp = cupy

    def copy(module, target, source, stream):
        queued.append((module, stream))
        target[...] = source

    monkeypatch.setattr(operand_sets, "copy_async", copy)
    sets.sets[0].c[...] = 7.0
    sets.restore_c(77)
    assert queued == [(cupy, 77)]
    np.testing.assert_array_equal(sets.sets[0].c, before)


@pytest.mark.parametrize("problem", [PLAIN, ADDING], ids=["plain", "adding"])
def test_the_last_run_is_on_other_values_and_can_be_repeated(problem):
    sets = OperandSets(np, problem)
    first = sets.sets[0].a.copy()
    right, wrong = fp32("right", 1e-3), fp32("wrong", 1e-3, behaviour="wrong")
    for _ in range(2):
        assert sets.reverify(right, prepared(sets, right)) is None
        assert "elements wrong" in sets.reverify(wrong, prepared(sets, wrong))
    assert not np.array_equal(sets.sets[0].a, first)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LaunchError("too much shared memory"), "too much shared memory"),
        (RuntimeError("illegal address"), "the launch failed: illegal address"),
    ],
)
def test_a_last_run_that_is_refused_is_no_right_result(error, reason):
    def enqueue(stream):
        raise error

    sets = OperandSets(np, PLAIN)
    verdict = sets.verify_again(fp32("v2", 1e-3), SimpleNamespace(enqueue=enqueue))
    assert (verdict.ok, verdict.reason, verdict.contender) == (False, reason, "v2")
    assert sets.reverify(fp32("v2", 1e-3), SimpleNamespace(enqueue=enqueue)) == reason
