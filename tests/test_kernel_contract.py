"""Problem, operands and plans: what is accepted, what is refused, and the sizes that overflow 32 bits."""

import dataclasses
import re
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.contract import LAYOUTS, Launch, Problem, Tile, Unit, ceil_div, pointer_alignment, unaligned
from kernel.errors import DeviceError, DtypeError, GemmTracksError, LayoutError, ShapeError
from kernel.launch import runs_on
from kernel.operands import HOST, Operand, describe, operand, overlap, scalar
from kernel.plan import Plan

EXTENT = st.integers(0, 2**31 - 1)


@given(EXTENT, EXTENT, EXTENT, st.sampled_from(LAYOUTS))
def test_packed_extents_are_exact_products(m, n, k, layout):
    problem = Problem(m=m, n=n, k=k, layout=layout)
    assert problem.extent("a") == m * k
    assert problem.extent("b") == k * n
    assert problem.extent("c") == m * n
    assert problem.flop == 2 * m * n * k


@given(st.integers(0, 2**70), st.integers(1, 2**40))
def test_ceil_div_is_exact_in_any_expression(a, b):
    assert 2 * ceil_div(a, b) == 2 * ((a + b - 1) // b)


@pytest.mark.parametrize("bad", [-1, 2**31, 1.0, True, "8", None])
def test_extents_that_are_no_extents(bad):
    with pytest.raises(ShapeError, match="m"):
        Problem(m=bad, n=1, k=1)


@pytest.mark.parametrize(
    ("layout", "field", "least"),
    [("rr", "lda", 5), ("cr", "lda", 3), ("rr", "ldb", 4), ("rc", "ldb", 5), ("cc", "ldc", 4)],
)
def test_leading_dimensions_span_the_contiguous_extent(layout, field, least):
    assert getattr(Problem(m=3, n=4, k=5, layout=layout, **{field: least}), field) == least
    with pytest.raises(LayoutError, match=field):
        Problem(m=3, n=4, k=5, layout=layout, **{field: least - 1})


def test_pitch_counts_all_rows_but_the_last():
    assert Problem(m=3, n=4, k=5, lda=9).extent("a") == 2 * 9 + 5
    assert Problem(m=3, n=4, k=5, layout="cr", lda=9).extent("a") == 4 * 9 + 3


@pytest.mark.parametrize(("address", "expected"), [(0, 256), (4, 4), (16, 16), (48, 16), (2, 2), (4096, 256), (6, 2)])
def test_alignment_of_an_address(address, expected):
    assert pointer_alignment(address) == expected


def test_tile_names_are_the_macros():
    assert Tile(BLOCK_M=128, NUM_STAGES=2).defines() == ("-DBLOCK_M=128", "-DNUM_STAGES=2")


def test_operand_reads_views_as_they_lie():
    big = np.zeros((256, 160), np.float32)
    sliced = operand(big[:, :128], "A")
    assert (sliced.layout, sliced.pitch, sliced.rows, sliced.columns) == ("r", 160, 256, 128)
    turned = operand(big.T, "A")
    assert (turned.layout, turned.pitch, turned.rows, turned.columns) == ("c", 160, 160, 256)
    fortran = operand(np.asfortranarray(big), "A")
    assert (fortran.layout, fortran.pitch) == ("c", 256)


def test_a_narrowed_view_keeps_its_real_alignment():
    buffer = np.zeros(128 * 128 + 64, np.float32)
    start = (-buffer.ctypes.data // 4) % 64
    view = buffer[start + 1 : start + 1 + 128 * 128].reshape(128, 128)
    assert view.flags.c_contiguous
    assert operand(view, "A").alignment == 4


@pytest.mark.parametrize(
    ("array", "error", "word"),
    [
        (np.zeros((4, 4)), DtypeError, "float64"),
        (np.zeros((4, 4), np.int32), DtypeError, "int32"),
        ([[1.0]], DtypeError, "list"),
        (np.zeros(4, np.float32), ShapeError, "two dimensions"),
        (np.zeros((8, 8), np.float32)[::2, ::2], LayoutError, "strides"),
        (np.zeros((8, 8), np.float32)[::-1], LayoutError, "strides"),
        (np.broadcast_to(np.zeros((1, 8), np.float32), (8, 8)), LayoutError, "strides"),
    ],
)
def test_operands_that_are_refused(array, error, word):
    with pytest.raises(error, match=word):
        operand(array, "A")


def test_a_transposed_b_is_caught_by_its_extents():
    a, b, c = (operand(np.zeros(s, np.float32), n) for s, n in (((8, 64), "A"), ((96, 64), "B"), ((8, 96), "C")))
    with pytest.raises(ShapeError, match=r"8x64 and B is 96x64.*B\.T"):
        describe(a, b, c)
    turned = operand(np.zeros((96, 64), np.float32).T, "B")
    problem, _ = describe(a, turned, c)
    assert (problem.m, problem.n, problem.k, problem.layout, problem.ldb) == (8, 96, 64, "rc", 64)


def test_devices_and_types_must_agree():
    a, b, c = (operand(np.zeros((4, 4), np.float32), n) for n in "ABC")
    with pytest.raises(DtypeError, match="A holds float32 and B holds float16"):
        describe(a, operand(np.zeros((4, 4), np.float16), "B"), c)
    with pytest.raises(DeviceError, match="B on GPU 1"):
        describe(dataclasses.replace(a, device=0), dataclasses.replace(b, device=1), dataclasses.replace(c, device=0))
    with pytest.raises(LayoutError, match="row-major"):
        describe(a, b, operand(np.zeros((4, 4), np.float32).T[:, :], "C"))


@st.composite
def placed(draw):
    """An operand somewhere in a small address space."""
    rows, columns, layout = draw(st.integers(0, 5)), draw(st.integers(0, 5)), draw(st.sampled_from("rc"))
    dtype, pad = draw(st.sampled_from(["float32", "float16"])), draw(st.integers(0, 9))
    return Operand(
        name="X",
        pointer=1024 + 2 * draw(st.integers(0, 40)),
        rows=rows,
        columns=columns,
        layout=layout,
        pitch=max(columns if layout == "r" else rows, 1) + pad,
        dtype=dtype,
        device=0,
        owner=None,
    )


@given(placed(), placed())
@settings(max_examples=1500, deadline=None)
def test_overlap_is_exact(x, y):
    def occupied(one):
        count, width, step = one.lines
        return {one.pointer + line * step + byte for line in range(count) for byte in range(width)}

    assert overlap(x, y) == overlap(y, x) == bool(occupied(x) & occupied(y))


def test_overlap_of_large_operands_takes_no_walk_over_their_rows():
    huge = Operand(
        name="X",
        pointer=1 << 40,
        rows=2**31 - 1,
        columns=64,
        layout="r",
        pitch=128,
        dtype="float32",
        device=0,
        owner=None,
    )
    assert not overlap(huge, dataclasses.replace(huge, pointer=huge.pointer + 256))
    assert overlap(huge, dataclasses.replace(huge, pointer=huge.pointer + 252))
    assert overlap(huge, dataclasses.replace(huge, pointer=huge.pointer + 256, pitch=129))


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.float64(2), np.array(2.0)])
def test_scalars_of_every_kind_mean_the_same(value):
    assert scalar(value, "alpha") == 2.0


@pytest.mark.parametrize("value", ["2", None, 2j, True, np.zeros(1)])
def test_scalars_that_are_refused(value):
    with pytest.raises(DtypeError, match="alpha"):
        scalar(value, "alpha")


@pytest.mark.torch
def test_torch_tensors_are_read_by_their_strides():
    torch = pytest.importorskip("torch")
    plain = operand(torch.zeros(3, 5), "A")
    turned = operand(torch.zeros(3, 5).T, "A")
    assert (plain.layout, plain.pitch, plain.device) == ("r", 5, HOST)
    assert (turned.rows, turned.columns, turned.layout, turned.pitch) == (5, 3, "c", 5)
    with pytest.raises(DtypeError, match="bfloat16"):
        operand(torch.zeros(3, 5, dtype=torch.bfloat16), "A")
    with pytest.raises(LayoutError):
        operand(torch.zeros(8, 8)[::2, ::2], "A")
    with pytest.raises(LayoutError, match=r"A is a torch.sparse_coo tensor; a dense \(strided\) one is needed"):
        operand(torch.zeros(3, 5).to_sparse(), "A")
    with pytest.raises(LayoutError, match=r"A is a lazy conjugate or negative view; call .resolve_conj"):
        operand(torch._neg_view(torch.zeros(3, 5)), "A")
    with pytest.raises(DeviceError, match="A is on meta; a CUDA or CPU tensor is needed"):
        operand(torch.zeros(3, 5, device="meta"), "A")


def test_an_array_that_names_no_device_is_asked_for_by_its_pointer(monkeypatch):
    """Numba's arrays have the interface and no ``device``; the runtime knows where an address lies."""

    class Foreign:
        __cuda_array_interface__ = types.MappingProxyType(
            {"data": (0x7000, False), "shape": (3, 5), "typestr": "<f4", "strides": (32, 4), "version": 3}
        )

    asked = []
    runtime = types.SimpleNamespace(
        pointerGetAttributes=lambda pointer: asked.append(pointer) or types.SimpleNamespace(device=2)
    )
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime)))
    found = operand(Foreign(), "A")
    assert (found.device, found.pitch, found.dtype, found.layout) == (2, 8, "float32", "r")
    assert asked == [0x7000]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"align_a": 2}, "A: its base address is a multiple of 2 bytes; an element of float32 has 4"),
        ({"align_c": 1}, "C: its base address is a multiple of 1 bytes; an element of float32 has 4"),
        (
            {"align_b": 1, "dtype_in": "float16"},
            "B: its base address is a multiple of 1 bytes; an element of float16 has 2",
        ),
        ({}, None),
    ],
)
def test_no_kernel_may_touch_an_element_across_two_words(changes, reason):
    assert unaligned(Problem(m=4, n=4, k=4, **changes)) == reason


@pytest.mark.parametrize(
    ("arch", "present", "runs"),
    [
        ("sm_90a", "90", True),
        ("sm_90a", "100", False),
        ("sm_80", "86", True),
        ("sm_86", "80", False),
        ("sm_80", "90", False),
    ],
)
def test_where_a_cubin_loads(arch, present, runs):
    assert runs_on(arch, present) is runs


def test_one_root_for_all_errors():
    for error in (ShapeError, LayoutError, DtypeError, DeviceError):
        assert issubclass(error, GemmTracksError)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"m": True}, ShapeError, "m is True; an integer is needed"),
        ({"n": 4.0}, ShapeError, "n is 4.0; an integer is needed"),
        ({"k": 2**31}, ShapeError, "extents from 0 to 2"),
        ({"dtype_in": "int8"}, DtypeError, "dtype_in is 'int8'; known data types"),
        ({"layout": "zz"}, LayoutError, "known: rr"),
        ({"lda": 3}, LayoutError, "lda = 3; an integer of at least 4"),
        ({"ldc": True}, LayoutError, "ldc = True; an integer"),
        ({"align_b": 12}, LayoutError, "align_b = 12; a power of two"),
        ({"alpha": "2"}, DtypeError, "alpha is '2'; a real number"),
        ({"beta": 1j}, DtypeError, "beta is 1j; a real number"),
    ],
    ids=str,
)
def test_problems_that_cannot_be_are_refused_with_what_is_needed(fields, error, words):
    with pytest.raises(error, match=re.escape(words)):
        Problem(**{"m": 4, "n": 4, "k": 4, **fields})
    assert Problem(m=4, n=4, k=4).lda == 4


@pytest.mark.parametrize(
    ("blocks", "multiplies", "main"),
    [
        ((), (), None),
        ((8,), (False,), 0),
        ((900, 8), (False, True), 1),
        ((8, 900), (True, False), 0),
        ((65535, 65535, 7), (True, True, True), 0),
        ((900, 7, 8, 900), (False, True, True, False), 2),
    ],
)
def test_a_plans_main_launch_is_the_one_that_says_it_multiplies_however_large_the_others_are(blocks, multiplies, main):
    unit = Unit(name="odd", arch="sm_90a", source=str)
    launches = tuple(
        Launch(unit=unit, entry=f"step_{i}", grid=(count, 1, 1), block=(32, 1, 1), multiplies=does)
        for i, (count, does) in enumerate(zip(blocks, multiplies, strict=True))
    )
    planned = Plan(variant="", launches=launches)
    assert planned.main == main
    assert planned.main_launch is (None if main is None else launches[main])
