"""The interpreter of address arithmetic: instructions against Python's integers, divergence, unknowns."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel import sass
from kernel.contract import Argument, Problem, TensorMap
from kernel.errors import UsageError
from kernel.lanes import Block, constant_bank, parameter_alignments
from kernel.mapping import from_run, shared_layout

WORD = st.integers(0, 2**32 - 1)


def run(*lines, constants=None, threads=32, arch="sm_90a"):
    text = "\n".join(
        line if line.endswith(":") else f"        /*{16 * n:04x}*/                   {line} ;"
        for n, line in _numbered([*lines, "EXIT"])
    )
    block = Block(sass.parse(text), arch, (threads, 1, 1), constants or {})
    seen = block.execute()
    return block, seen


def _numbered(lines):
    n = 0
    for line in lines:
        yield n, line
        n += not line.endswith(":")


def value(block, register):
    number = int(register[1:])
    assert block.known["R"][number][:32].all()
    return int(block.value["R"][number][0])


def signed(x):
    return x - 2**32 if x >> 31 else x


@settings(max_examples=60, deadline=None)
@given(WORD, WORD, WORD, st.integers(0, 31), st.integers(0, 255))
def test_integer_instructions_agree_with_python(a, b, c, shift, table):
    constants = {0x210: a, 0x214: b, 0x218: c}
    block, _ = run(
        "LDC R1, c[0x0][0x210]",
        "MOV R2, c[0x0][0x214]",
        "IMAD.MOV.U32 R3, RZ, RZ, c[0x0][0x218]",
        "IADD3 R4, R1, R2, R3",
        "IADD3 R5, R1, -R2, RZ",
        "IMAD R6, R1, R2, R3",
        "IMAD.HI.U32 R7, R1, R2, RZ",
        "IMAD.WIDE R8, R1, R2, RZ",
        f"SHF.L.U32 R10, R1, 0x{shift:x}, RZ",
        f"SHF.R.S32.HI R11, RZ, 0x{shift:x}, R1",
        f"SHF.R.U32.HI R12, RZ, 0x{shift:x}, R1",
        f"LOP3.LUT R13, R1, R2, R3, 0x{table:x}, !PT",
        f"LEA R14, R1, R2, 0x{shift:x}",
        "PRMT R15, R1, 0x5410, R2",
        "ISETP.LT.AND P0, PT, R1, R2, PT",
        "SEL R16, R1, R2, P0",
        "ISETP.GE.U32.AND P1, PT, R1, R2, P0",
        "SEL R17, RZ, 0x1, !P1",
        "IABS R18, R1",
        "VIADDMNMX R19, R1, R2, R3, PT",
        "IADD3 R20, P2, R1, R2, RZ",
        "IADD3.X R21, R3, RZ, RZ, P2, !PT",
        "IADD3 R22, P3, R1, -R2, RZ",
        "IADD3.X R23, R3, ~RZ, RZ, P3, !PT",
        constants=constants,
    )
    low = 2**32 - 1
    assert value(block, "R4") == (a + b + c) & low
    assert value(block, "R5") == (a - b) & low
    assert value(block, "R6") == (a * b + c) & low
    assert value(block, "R7") == a * b >> 32
    product = signed(a) * signed(b) & (2**64 - 1)
    assert (value(block, "R8"), value(block, "R9")) == (product & low, product >> 32)
    assert value(block, "R10") == a << shift & low
    assert value(block, "R11") == signed(a) >> shift & low
    assert value(block, "R12") == a >> shift
    bits = sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))
    assert value(block, "R13") == bits
    assert value(block, "R14") == ((a << shift) + b) & low
    assert value(block, "R15") == (b & 0xFFFF) << 16 | a & 0xFFFF
    assert value(block, "R16") == (a if signed(a) < signed(b) else b)
    assert value(block, "R17") == int(a >= b and signed(a) < signed(b))
    assert value(block, "R18") == abs(signed(a)) & low
    total = signed((a + b) & low)
    assert value(block, "R19") == min(total, signed(c)) & low
    both = (c << 32 | a) + b
    assert (value(block, "R20"), value(block, "R21")) == (both & low, both >> 32 & low)
    both = (c << 32 | a) - b
    assert (value(block, "R22"), value(block, "R23")) == (both & low, both >> 32 & low)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2**20), st.integers(1, 2**12))
def test_the_compilers_division_by_a_runtime_number_comes_out_right(a, b):
    block, _ = run(
        "LDC R20, c[0x0][0x210]",
        "LDC R5, c[0x0][0x214]",
        "I2F.U32.RP R11, R5",
        "IADD3 R4, RZ, -R5, RZ",
        "MUFU.RCP R11, R11",
        "IADD3 R12, R11, 0xffffffe, RZ",
        "F2I.FTZ.U32.TRUNC.NTZ R9, R12",
        "MOV R8, RZ",
        "IMAD R7, R4, R9, RZ",
        "IMAD.HI.U32 R7, R9, R7, R8",
        "IMAD.HI.U32 R7, R7, R20, RZ",
        "IADD3 R9, -R7, RZ, RZ",
        "IMAD R10, R5, R9, R20",
        "ISETP.GE.U32.AND P0, PT, R10, R5, PT",
        "@P0 IMAD.IADD R10, R10, 0x1, -R5",
        "@P0 IADD3 R7, R7, 0x1, RZ",
        "ISETP.GE.U32.AND P1, PT, R10, R5, PT",
        "@P1 IADD3 R7, R7, 0x1, RZ",
        constants={0x210: a, 0x214: b},
    )
    assert value(block, "R7") == a // b


@settings(max_examples=40, deadline=None)
@given(WORD, WORD)
def test_rarer_instructions_agree_with_python(a, b):
    block, seen = run(
        "LDC R1, c[0x0][0x210]",
        "FLO.U32 R2, R1",
        "FLO.U32.SH R3, R1",
        "POPC R4, R1",
        "SHL R5, R1, 0x4",
        "SHR R6, R1, 0x4",
        "SHR.U32 R7, R1, 0x4",
        "LDC.U8 R8, c[0x0][0x211]",
        "LDC.S16 R9, c[0x0][0x212]",
        "LDC.64 R10, c[0x0][0x210]",
        "MOV.64 R12, R10",
        "IMAD.MOV.U32 R14, RZ, RZ, 0x210",
        "LDC R15, c[0x0][R14+0x4]",
        "CS2R R16, SRZ",
        "HFMA2.MMA R18, -RZ, RZ, 1.5, -2",
        constants={0x210: a, 0x214: b},
    )
    top = a.bit_length() - 1
    sixteen = a >> 16
    expected = {
        "R2": top % 2**32,
        "R3": 31 - top if a else 2**32 - 1,
        "R4": a.bit_count(),
        "R5": a << 4 & 0xFFFFFFFF,
        "R6": (signed(a) >> 4) % 2**32,
        "R7": a >> 4,
        "R8": a >> 8 & 0xFF,
        "R9": (sixteen - (sixteen >> 15 << 16)) % 2**32,
        "R10": a,
        "R11": b,
        "R12": a,
        "R13": b,
        "R15": b,
        "R16": 0,
        "R17": 0,
        "R18": 0x3E00C000,
    }
    assert {name: value(block, name) for name in expected} == expected
    assert not seen.unsupported


@pytest.mark.parametrize(
    "line",
    [
        "FLO R2, R1",
        "SHFL.ROTATE PT, R2, R1, 0x1, 0x1f",
        "ISETP.NEARLY.AND P0, PT, R1, R1, PT",
        "S2R R2, SR_NEVER_HEARD_OF",
        "MOV R2, c[0x3][0x10]",
        "MOV c[0x0][0x10], R1",
        "LDC R2, c[0x0][R1]",
        "HFMA2.MMA R2, R1, RZ, 1, 1",
        "HFMA2.MMA R2, -RZ, RZ, one, 1",
        "LDC.64 R2, c[0x3][0x10]",
        "LDSM.16.M88.4 R2, R1",
        "MUFU.SQRT R2, R1",
        "IMAD.WIDE P2, R1, 0x4, R2",
        "FSETP.GT.OR P0, PT, R1, 1, P3",
        "CALL.REL.NOINC `(somewhere_else)",
    ],
)
def test_what_is_not_known_is_counted_and_forgotten(line):
    block, seen = run("IMAD.MOV.U32 R2, RZ, RZ, 0x7", "S2R R1, SR_TID.X", line, "IMAD.MOV.U32 R3, RZ, RZ, 0x9")
    assert sum(seen.unsupported.values()) <= 1
    assert line.startswith(("ISETP", "MOV c", "IMAD", "FSETP", "CALL")) or not block.known["R"][2].any()
    assert value(block, "R3") == 9, "what follows is computed"


def test_what_is_not_known_is_named():
    _, seen = run("FLO R2, R1", "FLO R3, R1", "CALL.REL.NOINC `(somewhere_else)")
    assert seen.unsupported == {"FLO": 2, "CALL.REL.NOINC": 1}


@pytest.mark.parametrize("jump", ["BRX R1 0x20", "RET.REL.NODEC R1 0x0"])
def test_a_jump_to_nowhere_known_ends_the_walk(jump):
    block, _ = run("S2R R1, SR_TID.X", jump, "IMAD.MOV.U32 R3, RZ, RZ, 0x9")
    assert not (block.value["R"][3][:32] == 9).any()


def test_diverged_lanes_meet_again_and_keep_their_own_values():
    block, seen = run(
        "S2R R0, SR_TID.X",
        "ISETP.GE.AND P0, PT, R0, 0x10, PT",
        "@P0 BRA `(.L_x_1)",
        "MOV R1, 0x5",
        "BRA `(.L_x_2)",
        ".L_x_1:",
        "MOV R1, 0x7",
        ".L_x_2:",
        "IADD3 R2, R1, R0, RZ",
    )
    assert seen.finished
    assert block.value["R"][2][:32].tolist() == [5 + i if i < 16 else 7 + i for i in range(32)]
    assert seen.executed[6 * 16] == 1  # the meeting point is executed once


def test_a_counted_loop_runs_its_count():
    _, seen = run(
        "MOV R1, RZ",
        ".L_x_1:",
        "IADD3 R1, R1, 0x1, RZ",
        "ISETP.NE.AND P0, PT, R1, 0x10, PT",
        "@P0 BRA `(.L_x_1)",
    )
    assert seen.executed[0x10] == 16
    assert not seen.guessed


def test_what_comes_from_memory_is_unknown_and_spreads_but_its_origin_is_kept():
    block, seen = run(
        "S2R R0, SR_TID.X",
        "LDC.64 R2, c[0x0][0x210]",
        "IMAD.WIDE R2, R0, 0x4, R2",
        "LDG.E R4, desc[UR4][R2.64]",
        "IADD3 R5, R4, 0x1, RZ",
        "SHF.L.U32 R6, R0, 0x2, RZ",
        "STS [R6+0x400], R4",
        "LDS R7, [R6+0x400]",
        constants={0x210: 0x1000, 0x214: 0x1},
    )
    assert not block.known["R"][5][:32].any()
    origins = [0x1_0000_1000 + 4 * i for i in range(32)]
    assert block.origin[7][:32].tolist() == origins
    load = seen.accesses[7 * 16][0]
    assert load.addresses[:32].tolist() == [0x400 + 4 * i for i in range(32)]
    assert load.origins[0][:32].tolist() == origins


def test_an_unknown_predicate_does_not_become_known_by_a_select():
    block, _ = run(
        "LDC R1, c[0x0][0x300]",
        "ISETP.GE.AND P0, PT, R1, 0x4, PT",
        "SEL R2, RZ, 0x1, !P0",
        "@P0 MOV R3, 0x1",
        "LOP3.LUT R4, R1, RZ, RZ, 0xc0, !PT",
        "IMAD R5, R1, RZ, 0x3",
    )
    for number in (1, 2, 3):
        assert not block.known["R"][number][:32].any()
    assert block.known["R"][4][:32].all()  # anything and zero is zero
    assert value(block, "R5") == 3


def test_both_results_of_a_comparison_and_its_ways_to_join():
    block, _ = run(
        "S2R R0, SR_TID.X",
        "ISETP.LT.AND P0, P1, R0, 0x8, PT",
        "ISETP.LT.AND P2, P3, R0, 0x10, P0",
        "ISETP.LT.XOR P4, PT, R0, 0x4, P0",
        "VOTE.ANY R1, PT, P0",
        *(f"SEL R{10 + i}, RZ, 0x1, !P{i}" for i in range(5)),
    )
    lanes = np.arange(32)
    expected = [lanes < 8, lanes >= 8, lanes < 8, np.zeros(32), (lanes >= 4) & (lanes < 8)]
    for i, flag in enumerate(expected):
        assert block.value["R"][10 + i][:32].tolist() == flag.astype(int).tolist(), f"P{i}"
    assert value(block, "R1") == 0xFF


def test_wide_sums_take_negative_words_and_leave_their_carry_unknown():
    block, _ = run(
        "LDC.64 R2, c[0x0][0x210]",
        "IADD.64 R4, R2, 0xfffffff0",
        "IADD.64 R6, P0, R2, R2",
        "SEL R8, RZ, 0x1, !P0",
        "IADD3 R9, R2.H0_H0, 0x1, RZ",
        "IMAD R10, P1, R2, 0x2, R2",
        "SEL R11, RZ, 0x1, !P1",
        constants={0x210: 0x20008, 0x214: 0x5},
    )
    assert (value(block, "R4"), value(block, "R5")) == (0x1FFF8, 0x5)
    assert (value(block, "R6"), value(block, "R7")) == (0x40010, 0xA)
    assert (value(block, "R9"), value(block, "R10")) == (0x9, 0x60018)
    assert not block.known["R"][8][:32].any()
    assert not block.known["R"][11][:32].any()


def test_scaled_addresses_and_results_that_nobody_gets():
    block, seen = run(
        "S2R R1, SR_TID.X",
        "MOV R2, 0x7",
        "STS [R1.X4+0x100], R2",
        "LDS RZ, [R1.X8]",
        "FFMA RZ, R2, R2, R2",
        "LDS R3, [R1.X4+0x100]",
    )
    places = {at // 16: kept[0].addresses[:32].tolist() for at, kept in seen.accesses.items()}
    scaled = [0x100 + 4 * i for i in range(32)]
    assert places == {2: scaled, 3: [8 * i for i in range(32)], 5: scaled}
    assert value(block, "R3") == 7
    assert seen.lane_fmas == 0


@pytest.mark.parametrize(("right", "owned"), [("R4", 0), ("R5", 1)])
def test_products_that_are_none_of_a_and_b_make_no_map(right, owned):
    problem = Problem(m=1, n=1, k=1)
    _, seen = run(
        "LDC.64 R2, c[0x0][0x210]",
        "LDG.E R4, desc[UR4][R2.64]",
        "LDG.E R5, desc[UR4][R2.64+0x100]",
        f"FFMA R6, R4, {right}, R6",
        constants={0x210: 0x1000, 0x214: 0},
    )
    found = from_run("mine", seen, problem, (0x1000, 0x1100), 8)
    assert (found is not None) == bool(owned)
    assert found is None or found.owns[7] == ((0, 0),)


@pytest.mark.parametrize(
    ("place", "layout"),
    [
        (lambda m, k: 17 * m + k, "row-wise, pitch 17 words"),
        (lambda m, k: m + 20 * k, "transposed, pitch 20 words"),
        (lambda m, k: 2 * m + 40 * k, "2 words along m, 40 along k"),
        (lambda m, k: 16 * m + (k ^ m), "row-wise, swizzled"),
        (lambda m, k: (m ^ k) + 16 * k, "transposed, swizzled"),
        (lambda m, k: (16 * m + k) * 37 % 257, "scattered"),
    ],
)
def test_layouts_in_shared_memory_are_told_apart(place, layout):
    words = {(m, k): place(m, k) for m in range(16) for k in range(16)}
    assert shared_layout(words, "m", "k", ("transposed", "row-wise")) == layout


def test_predicates_travel_through_registers():
    block, _ = run(
        "S2R R0, SR_TID.X",
        "ISETP.GE.AND P0, PT, R0, 0x8, PT",
        "ISETP.GE.AND P2, PT, R0, 0x10, PT",
        "MOV R1, 0xff00",
        "P2R R2, PR, R1, 0x7",
        "R2P PR, R2, 0x4",
        "SEL R3, RZ, 0x1, !P2",
    )
    lanes = np.arange(32)
    expected = 0xFF00 | (lanes >= 8).astype(int) | (lanes >= 16).astype(int) << 2
    # P1 was never set, so what it would put into the register is not known.
    assert not block.known["R"][2][:32].any()
    assert (block.value["R"][2][:32] & ~2).tolist() == (expected & ~2).tolist()


def test_shuffle_reads_another_lane():
    block, _ = run("S2R R0, SR_TID.X", "SHFL.IDX PT, R1, R0, 0x3, 0x1f", "SHFL.BFLY PT, R2, R0, 0x1, 0x1f")
    assert block.value["R"][1][:32].tolist() == [3] * 32
    assert block.value["R"][2][:32].tolist() == [i ^ 1 for i in range(32)]


def test_any_cubin_ends():
    _, seen = run(".L_x_1:", "BRA `(.L_x_1)")
    assert not seen.finished


def test_parameters_lie_at_their_declared_alignment():
    ptx = """
.visible .entry k(
	.param .u64 k_param_0,
	.param .u32 k_param_1,
	.param .align 64 .b8 k_param_2[128],
	.param .f32 k_param_3
)
"""
    assert parameter_alignments(ptx, "k") == (8, 4, 64, 4)
    assert parameter_alignments(ptx, "other") == ()
    tensor_map = TensorMap(address=0, dtype="float16", shape=(8,), strides=(), box=(8,), element_strides=(1,))
    arguments = [
        Argument(data=struct.pack("<Q", 0x1122334455667788)),
        Argument(data=struct.pack("<i", 7)),
        Argument(data=bytes(range(128)), tensor_maps=((0, tensor_map),)),
        Argument(data=struct.pack("<f", 1.0)),
    ]
    words = constant_bank("sm_90a", (32, 1, 1), (5, 6, 1), arguments, parameter_alignments(ptx, "k"))
    assert (words[0x240], words[0x244], words[0x248]) == (0x55667788, 0x11223344, 7)
    assert words[0x280] == 0x03020100
    assert words[0x300] == 0x3F800000
    assert [words[4 * i] for i in range(6)] == [32, 1, 1, 5, 6, 1]
    assert 0x210 in constant_bank("sm_90a", (32, 1, 1), (1, 1, 1), arguments[:2], (8, 4))
    assert 0x160 in constant_bank("sm_80", (32, 1, 1), (1, 1, 1), arguments[:2], (8, 4))


def test_an_architecture_without_known_parameter_place_is_a_typed_error():
    with pytest.raises(UsageError, match="sm_62"):
        constant_bank("sm_62", (1, 1, 1), (1, 1, 1))
