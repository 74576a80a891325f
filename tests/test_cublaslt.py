"""What is handed to cublasLt, run by a stand-in that reads the same calls as a column-major BLAS."""

import ctypes

import numpy as np
import pytest

from compare import cublas, cublaslt
from compare.check import check_shape
from compare.libraries import LIBRARIES
from compare.shapes import parse
from kernel.contract import Pointers, Problem
from kernel.errors import LaunchError, MissingToolError
from tests.test_libraries import SHAPES, HostExecutor, matrix

(LT,) = [contender for contender in LIBRARIES if contender.name == "cublaslt_fp16"]


class StandIn:
    """Keeps what is created under numbers; an algorithm's first word is its place among the answers."""

    def __init__(self, states=(0, 15, 0)):
        self.states, self.kept, self.wishes, self.alive = states, {}, [], 0

    def call(self, name, *values):
        assert len(values) == len(cublaslt.SIGNATURES[name])
        if name.endswith("Create"):
            number = len(self.kept) + 1
            self.kept[number] = {"kind": name, "values": values[1:]}
            values[0]._obj.value = number
            self.alive += 1
        elif name.endswith("Destroy"):
            self.alive -= 1
        elif name.endswith("SetAttribute"):
            where, attribute, value, size = values
            assert size == ctypes.sizeof(value._obj)
            self.kept[where.value][attribute] = value._obj.value
        elif name == "cublasLtMatmulAlgoGetHeuristic":
            *_, wish, asked, found, count = values
            self.wishes.append(self.kept[wish.value])
            assert asked >= len(self.states)
            for place, state in enumerate(self.states):
                found._obj[place].state, found._obj[place].algorithm.data[0] = state, place
            count._obj.value = len(self.states)
        else:
            self.multiply(*values)

    def multiply(self, handle, operation, alpha, a, a_as, b, b_as, beta, c, c_as, d, d_as, *_):
        assert (c, c_as) == (d, d_as)
        flags = self.kept[operation.value]

        def read(address, described, transposed):
            kind, rows, columns, pitch = self.kept[described.value]["values"]
            found = matrix(address, kind, rows, columns, pitch)
            return found.T if transposed else found

        left, right = read(a, a_as, flags[cublaslt.DESC_TRANSPOSE_A]), read(b, b_as, flags[cublaslt.DESC_TRANSPOSE_B])
        out = read(c, c_as, 0)
        scale, keep = np.float32(alpha._obj.value), np.float32(beta._obj.value)
        with np.errstate(all="ignore"):
            value = scale * (left.astype(np.float32) @ right.astype(np.float32))
            out[...] = value + keep * out.astype(np.float32) if keep else value


@pytest.fixture
def stand_in(monkeypatch):
    blas = StandIn()
    monkeypatch.setattr(cublaslt, "call", blas.call)

    def tuned(problem, pointers):
        product = cublaslt.Matmul(problem, ctypes.c_void_p(7), 4096)
        return product, product.answers()[-1]

    monkeypatch.setattr(cublaslt, "tuned", tuned)
    return blas


@pytest.mark.parametrize("layout", ["rr", "rc", "cr", "cc"])
def test_row_major_c_comes_out_of_cublaslt(layout, stand_in):
    for shape in parse(SHAPES):
        verdict = check_shape(LT, shape.replace(layout=layout), HostExecutor())
        assert verdict.ok or (shape.beta != 0.0 and "may round" in verdict.skipped_because), verdict
    assert stand_in.alive == 0


def test_heuristics_are_asked_for_this_alignment_and_for_sums_in_float32(stand_in):
    problem = LT.problem(64, 48, 32).replace(align_a=8, align_b=64, align_c=1024 // 2)
    product = cublaslt.Matmul(problem, ctypes.c_void_p(7), 4096)
    usable = product.answers()
    assert [answer.algorithm.data[0] for answer in usable] == [0, 2]
    (wish,) = stand_in.wishes
    assert wish[cublaslt.PREFER_REDUCTION] == cublaslt.REDUCE_IN_COMPUTE_TYPE
    assert wish[cublaslt.PREFER_WORKSPACE] == cublas.WORKSPACE_BYTES
    assert [wish[cublaslt.PREFER_ALIGNMENT[name]] for name in "abcd"] == [64, 8, 256, 256]


def test_no_answer_is_a_typed_error(monkeypatch):
    monkeypatch.setattr(cublaslt, "call", StandIn(states=(15,)).call)
    product = cublaslt.Matmul(Problem(m=4, n=4, k=4), ctypes.c_void_p(7), 4096)
    with pytest.raises(LaunchError, match="no algorithm for 4x4x4"):
        product.answers()


def test_the_fastest_is_told_by_its_best_round():
    times = {"a": iter([9, 5, 5, 5, 5, 5]), "b": iter([1, 7, 7, 4, 7, 7]), "c": iter([0, 6, 6, 6, 6, 6])}
    candidates = [lambda name=name: next(times[name]) for name in times]
    assert cublaslt.fastest(candidates, lambda run: run()) == 1


def test_a_status_and_a_missing_library_become_words(monkeypatch, tmp_path):
    class Library:
        cublasLtCreate = staticmethod(lambda value: value)

    monkeypatch.setattr(cublaslt, "library", lambda: Library)
    cublaslt.call("cublasLtCreate", 0)
    with pytest.raises(LaunchError, match="CUBLAS_STATUS_NOT_SUPPORTED"):
        cublaslt.call("cublasLtCreate", 15)
    monkeypatch.undo()
    monkeypatch.setattr(cublas, "library", lambda: (None, str(tmp_path / "libcublas.so.13")))
    with pytest.raises(MissingToolError, match="beside cuBLAS"):
        cublaslt.library.__wrapped__()


@pytest.mark.gpu
def test_one_algorithm_is_chosen_for_a_problem_and_used_on_any_operands():
    import cupy

    problem = LT.problem(256, 512, 128)
    a, b = cupy.ones((256, 128), cupy.float16), cupy.ones((128, 512), cupy.float16)
    outputs = [cupy.zeros((256, 512), cupy.float16) for _ in range(2)]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    for c in outputs:
        pointers = Pointers(a=a.data.ptr, b=b.data.ptr, c=c.data.ptr)
        LT.prepare(problem, pointers, stream.ptr).enqueue(stream.ptr)
    stream.synchronize()
    assert all(bool((c == 128).all()) for c in outputs)
    assert cublaslt.tuned(problem, pointers) is cublaslt.tuned(problem, pointers)
