"""Reading nvdisasm text: instructions, loops, classes, accumulator chains."""

from __future__ import annotations

import pytest

from kernel import sass
from kernel.errors import UsageError

LISTING = """
//--------------------- .text.sample             --------------------------
sample:
.text.sample:
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   LDC R8, c[0x0][0x230] ;
.L_x_2:
        /*0020*/                   LDG.E R4, desc[UR4][R2.64+0x10] ;
        /*0030*/                   STS [R0+UR4], R4 ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_1:
        /*0050*/              @!PT LDS RZ, [RZ] ;
        /*0060*/                   LDS.128 R12, [R6+-0x10] ;
        /*0070*/                   FFMA R20, R12.reuse, R13, R20 ;
        /*0080*/                   FFMA R21, R12, R14, R21 ;
        /*0090*/                   FFMA R22, R15, R13, R20 ;
        /*00a0*/                   IADD3 R7, R7, 0x1, RZ ;
        /*00b0*/                   ISETP.NE.AND P0, PT, R7, 0x10, PT ;
        /*00c0*/               @P0 BRA `(.L_x_1) ;
        /*00d0*/                   ISETP.GE.AND P1, PT, R9, R8, PT ;
        /*00e0*/              @!P1 BRA `(.L_x_2) ;
.L_x_3:
        /*00f0*/                   STG.E desc[UR4][R2.64], R20 ;
        /*0100*/               @P2 BRA `(.L_x_3) ;
        /*0110*/                   EXIT ;
.L_x_4:
        /*0120*/                   BRA `(.L_x_4);
        /*0130*/                   NOP;
"""


@pytest.fixture
def listing():
    return sass.parse(LISTING)


def test_instructions_are_taken_apart(listing):
    load = listing.instructions[2]
    assert (load.name, load.kind, load.width) == ("LDG.E", "LDG", 4)
    assert load.operands == ("R4", "desc[UR4][R2.64+0x10]")
    wide = listing.instructions[6]
    assert (wide.name, wide.kind, wide.width) == ("LDS.128", "LDS", 16)
    branch = listing.instructions[12]
    assert (branch.predicate, branch.label, listing.target(branch)) == ("P0", ".L_x_1", 0x50)
    assert branch.text == "@P0 BRA `(.L_x_1)"


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("LDS.U8 R0, [R1]", 1),
        ("LDG.E.S8 R0, desc[UR4][R2.64]", 1),
        ("STG.E.U16 desc[UR4][R2.64], R0", 2),
        ("LDS.S16 R0, [R1]", 2),
        ("LDL.64 R0, [R1]", 8),
        ("LDSM.16.M88.4 R0, [R1]", 16),
        ("FFMA R0, R1, R2, R0", 0),
    ],
)
def test_bytes_that_a_lane_moves(name, width):
    instruction = sass.parse(f"        /*0000*/                   {name} ;").instructions[0]
    assert (instruction.width, instruction.label) == (width, "")


def test_what_is_never_executed_only_fills_slots(listing):
    assert listing.instructions[5].kind == "control"


def test_loops_and_the_main_one(listing):
    # What nothing reaches (the branch to itself behind EXIT) is no loop.
    assert [loop.header for loop in listing.loops] == [0x20, 0x50, 0xF0]
    assert listing.inner_loop.header == 0x50
    assert listing.inner_loop.back_edges == (0xC0,)
    assert listing.k_loop(listing.inner_loop).header == 0x20
    assert listing.counts(listing.inner_loop.addresses)["FFMA"] == 3


def test_of_loops_with_the_same_products_the_one_without_guards_comes_first():
    guarded = [".L_x_1:", "FFMA R0, R2, R4, R0", "@P1 LDG.E R9, [R6]", "@P0 BRA `(.L_x_1)"]
    plain = [".L_x_2:", "FFMA R0, R2, R4, R0", "@P0 BRA `(.L_x_2)"]
    adding = [".L_x_3:", "FFMA R0, R2, R4, R0", "FFMA R1, R2, R4, R1", "@P0 BRA `(.L_x_3)", "EXIT"]
    lines, address = [], 0
    for line in [*guarded, *plain, *adding]:
        lines.append(line if line.endswith(":") else f"/*{address:04x}*/ {line} ;")
        address += 0 if line.endswith(":") else 16
    listing = sass.parse("\n".join(lines))
    assert [loop.header for loop in listing.product_loops] == [0x50, 0x30, 0x00]
    assert listing.inner_loop == listing.loop_at(0x50)


def test_a_loop_over_tiles_that_stores_them_is_not_the_k_loop():
    # The branch behind the store now goes back to the top: a persistent kernel's loop over output tiles.
    persistent = LISTING.replace(".L_x_3:\n", "").replace("@P2 BRA `(.L_x_3)", "@P2 BRA `(.L_x_0)")
    persistent = persistent.replace(
        "        /*0010*/                   LDC", ".L_x_0:\n        /*0010*/                   LDC"
    )
    listing = sass.parse(persistent)
    assert [loop.header for loop in listing.loops] == [0x10, 0x20, 0x50]
    assert listing.k_loop(listing.inner_loop).header == 0x20


def test_accumulator_chains_count_elements_not_registers(listing):
    # R20, then R22 from R20, are one chain; R21 is another.
    assert sass.accumulators(listing.within(listing.inner_loop)) == 2


def test_register_reads_know_of_reuse(listing):
    body = listing.within(listing.inner_loop)
    # 3 + 2 (R12 kept in its slot) + 3 reads over three FFMAs.
    assert sass.register_reads_per_ffma(body) == pytest.approx(8 / 3)


@pytest.mark.parametrize(
    ("name", "kind", "macs"),
    [
        ("FFMA R0, R1, R2, R0", "FFMA", 32),
        ("HMMA.16816.F32 R4, R8, R12, R4", "HMMA", 2048),
        ("HMMA.1688.F32.TF32 R4, R8, R12, R4", "HMMA", 1024),
        ("HGMMA.64x256x16.F32 R24, gdesc[UR4], R24, gsb0", "HGMMA", 64 * 256 * 16),
        ("UTMALDG.2D [UR8], [UR4], desc[UR6]", "TMA", 0),
        ("LDGSTS.E.BYPASS.128 [R1], desc[UR4][R2.64]", "LDGSTS", 0),
        ("WARPGROUP.DEPBAR.LE gsb0, 0x0", "barrier", 0),
        ("IMAD.WIDE R2, R3, 0x4, R4", "integer", 0),
        ("BRA `(.L_x_0)", "control", 0),
    ],
)
def test_classes(name, kind, macs):
    instruction = sass.parse(f"        /*0000*/                   {name} ;").instructions[0]
    assert (instruction.kind, instruction.macs) == (kind, macs)


def test_ptx_is_not_taken_for_sass():
    with pytest.raises(UsageError, match="PTX"):
        sass.parse(".version 8.0\n.target sm_90a\n.visible .entry k() { ret; }")


def ffmas(*operands):
    return sass.parse("\n".join(f"/*{16 * i:04x}*/ FFMA {text} ;" for i, text in enumerate(operands))).instructions


def test_operands_in_one_bank_clash_and_reuse_cures_it():
    assert sass.operand_reads(ffmas("R0, R2, R4, R0")).cycles == 3
    assert sass.operand_reads(ffmas("R0, R2, R5, R0")).cycles == 2
    assert sass.operand_reads(ffmas("R0, R2, R2, R0")).reads == 2  # one register, read once
    kept = sass.operand_reads(ffmas("R1, R2.reuse, R5.reuse, R1", "R0, R2, R5, R0"))
    assert (kept.reads, kept.cycles, kept.clashes, kept.reused) == (4, 3, 1, 2)
    assert (
        sass.operand_reads(ffmas("R0, R2, c[0x0][0x210], R0", "R1, RZ, 2, UR4")).reads == 2
    )  # no registers but R2, R0


def test_reuse_is_kept_by_slot_and_bank_until_another_register_of_the_bank_comes():
    # R4 and R5 are kept side by side, R6 takes R4's place.
    walk = ffmas("R11, R4.reuse, R20, R11", "R13, R5.reuse, R20, R13", "R15, R4, R20, R15", "R17, R6, R20, R17")
    assert sass.operand_reads(walk).reads == 3 + 3 + 2 + 3
    back = ffmas("R11, R4.reuse, R20, R11", "R17, R6, R20, R17", "R15, R4, R20, R15")
    assert sass.operand_reads(back).reads == 3 + 3 + 3


def test_a_walk_in_squares_is_told_from_one_along_a_column():
    square = ffmas("R0, R4, R8, R0", "R1, R5, R8, R1", "R2, R5, R9, R2", "R3, R4, R9, R3")
    column = ffmas("R0, R4, R8, R0", "R1, R5, R8, R1", "R2, R6, R8, R2", "R3, R7, R8, R3")
    assert sass.operand_reads(square).in_squares == 2
    assert sass.operand_reads(column).in_squares == 0
    assert sass.operand_reads(()).cycles_per_ffma == 0.0
