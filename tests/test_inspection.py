"""Inspection end to end: every kernel's main loop is found, counts are right, losses are flagged, files work."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest

from compare.claims.record import PLAIN, plain_kernel
from cutlass_ref import catalog as cutlass_catalog
from handwritten import catalog
from handwritten.pass_tile import TransposingPassKernel
from handwritten.stream_tile import StreamKTileKernel
from kernel import build, inspection, lanes, mapping, sass, toolchain
from kernel.contract import Launch, Problem, Tile
from kernel.errors import CatalogError, MissingToolError, UsageError
from kernel.inspection import inspect_file, inspect_kernel, side_by_side, summary
from kernel.intensity import Roof
from kernel.machine.command import ptx_of
from kernel.plan import plan

pytestmark = pytest.mark.nvcc

SIMT = [k.name for k in catalog.KERNELS if k.instruction == "ffma" and k.tile.THREAD_M * k.tile.THREAD_N > 1]


@pytest.fixture(scope="module")
def plain():
    return {ahead: inspect_kernel(plain_kernel(ahead)) for ahead in (1, 4)}


@pytest.fixture(scope="module")
def found():
    cache = {}

    def of(name):
        if name not in cache:
            cache[name] = inspect_kernel(catalog.get(name))
        return cache[name]

    return of


def test_the_chapters_kernel(plain):
    one, four = plain[1], plain[4]
    assert (one.resources.registers, four.resources.registers) == (96, 128)
    assert one.static_smem == 16384
    assert one.occupancy.blocks == four.occupancy.blocks == 2
    assert one.loop.k_steps == 1
    assert four.loop.k_steps == 4
    assert one.loop.by_name["LDS"] == 8
    assert one.loop.by_name["LDS.128"] == 2
    assert four.loop.by_name["LDS.128"] == 4
    assert "LDS" not in four.loop.by_name


def test_counts_per_k_step_do_not_depend_on_unrolling(plain):
    assert plain[1].loop.per_k_step["FFMA"] == plain[4].loop.per_k_step["FFMA"] == 64


def test_multiply_adds_match_the_tile_rolled_or_not(plain):
    for one in plain.values():
        assert one.loop.counted == "executed"
        assert one.loop.fma_found == one.loop.fma_expected == 128 * 128 * 16 / 256
        assert one.loop.accumulators == 64
        assert one.loop.warning == ""


def test_conflicts_of_each_access(plain):
    degrees = {(a.text.split()[0], a.degree, a.passes, a.ideal) for a in plain[1].shared if a.kind == "load"}
    assert degrees == {("LDS", 8, 8.0, 1.0), ("LDS.128", 1, 4.0, 4.0)}
    ahead = {(a.degree, a.passes, a.ideal) for a in plain[4].shared if a.kind == "load"}
    assert ahead == {(4, 8.0, 2.0), (1, 4.0, 4.0)}


def test_intensities_by_executed_loads(plain):
    assert {i.level: round(i.value, 6) for i in plain[1].intensity} == {"global": 32.0, "shared": 2.0}


def test_a_kernel_that_lost_half_its_multiply_adds_is_flagged(tmp_path):
    text = PLAIN.source.read_text()
    assert text.count("acc[THREAD_M][THREAD_N] = {}") == 1
    # The slip of CASES 83: the accumulator array is half as long as the loops over it, so that the
    # compiler drops what can only be undefined.
    broken = text.replace("acc[THREAD_M][THREAD_N] = {}", "acc[THREAD_M / 2][THREAD_N] = {}")
    broken = broken.replace("for (int i = 0; i < THREAD_M; ++i) {", "for (int i = 0; i < THREAD_M / 2; ++i) {")
    broken = re.sub(
        r"for \(int i = 0; i < THREAD_M; \+\+i\)\n#pragma unroll\n(\s+)for \(int j = 0; j < THREAD_N; \+\+j\) acc",
        r"for (int i = 0; i < THREAD_M / 2; ++i)\n#pragma unroll\n\1for (int j = 0; j < THREAD_N; ++j) acc",
        broken,
    )
    assert broken.count("THREAD_M / 2") == 3
    source = tmp_path / "half.cu"
    source.write_text(broken)

    class Half(type(plain_kernel(1))):
        def launches(self, problem):
            (launch,) = super().launches(problem)
            unit = build.Unit(name="half", arch="sm_90a", source=source)
            return (type(launch)(unit=unit, entry=launch.entry, grid=launch.grid, block=launch.block),)

    whole = plain_kernel(1)
    half = Half(**{name: getattr(whole, name) for name in whole.__dataclass_fields__})
    one = inspect_kernel(half)
    assert one.loop.accumulators == 32
    assert "FMA count 512 per thread and k tile, expected 1024" in one.loop.warning
    assert "32 accumulators per thread, 64 expected" in one.loop.warning
    assert "warning" in summary(one)


@pytest.mark.parametrize("name", ["v2_block_tile", "v4_pad", "v4_swizzle", "v5_register_block", "v6_transposed_split"])
def test_counters_of_the_ladder_are_predicted(found, name):
    """The kernels themselves, by the addresses they execute, against Nsight Compute on an H200, per warp and k step."""
    recorded = {
        "v2_block_tile": (10, 72, 56),
        "v4_pad": (10, 24, 8),
        "v4_swizzle": (10, 16, 0),
        "v5_register_block": (4, 24, 12),
        "v6_transposed_split": (4, 12, 0),
    }
    loads = [a for a in found(name).shared if a.kind == "load"]
    assert all(a.known for a in loads)
    requests = sum(a.per_k_step for a in loads)
    passes = sum(a.per_k_step * a.passes for a in loads)
    conflicts = sum(a.per_k_step * a.conflicts for a in loads)
    assert (requests, passes, conflicts) == recorded[name]


@pytest.mark.parametrize("ahead", [1, 4])
def test_the_ptx_machine_counts_the_same_multiply_adds_and_passes(plain, ahead):
    """Two implementations, one on PTX and one on SASS, of what a block does."""
    import numpy as np

    from kernel.machine import simulate

    kernel, one = plain_kernel(ahead), plain[ahead]
    problem = Problem(m=128, n=128, k=64)
    ones = np.ones((128, 64), np.float32)
    counters = simulate(kernel, problem, ones, ones.T.copy()).reports[0].counters
    warp_steps = 8 * problem.k
    assert counters.fma == one.loop.per_k_step["FFMA"] * 32 * warp_steps
    loads = [access for access in one.shared if access.kind == "load"]
    assert counters.shared_loads()["passes"] == warp_steps * sum(a.per_k_step * a.passes for a in loads)
    assert counters.shared_loads()["ideal"] == warp_steps * sum(a.per_k_step * a.ideal for a in loads)


@pytest.mark.slow
@pytest.mark.parametrize("name", [k.name for k in catalog.KERNELS])
def test_main_loop_is_found_in_every_hand_written_kernel(found, name):
    one = found(name)
    assert one.loop is not None, one.notes
    # Which tile steps a block of these takes depends on a ticket in device memory, which nothing has computed here.
    by_ticket = isinstance(catalog.get(name), StreamKTileKernel)
    if not isinstance(catalog.get(name), TransposingPassKernel):  # work by way of shared memory: either, by the build
        assert one.loop.counted == ("written" if by_ticket else "executed")
    assert not one.loop.warning
    assert 0 < one.loop.math_share < 1
    if name in SIMT:
        tile = catalog.get(name).tile
        assert one.loop.per_k_step["FFMA"] == pytest.approx(tile.THREAD_M * tile.THREAD_N)
    json.dumps(one.to_dict(), allow_nan=False)


CUTLASS = list({kernel.units()[0].name: kernel for kernel in reversed(cutlass_catalog.KERNELS)}.values())
"""One kernel of each translation unit: variants that only differ at launch share their code."""


@pytest.mark.slow
@pytest.mark.cppgen
@pytest.mark.parametrize("kernel", CUTLASS, ids=lambda kernel: kernel.name)
def test_main_loop_is_found_in_every_cutlass_kernel_that_is_built(kernel):
    if build.lookup(kernel.units()[0]) is None:
        pytest.skip("not built here; gemm-tracks compare builds it")
    one = inspect_kernel(kernel)
    assert one.loop is not None, one.notes
    assert not one.loop.warning
    assert one.loop.counted == "executed"
    math = {"ffma": "FFMA", "mma_sync": "HMMA", "wgmma": "HGMMA"}[kernel.instruction]
    assert one.loop.per_k_step[math] > 0
    if kernel.instruction == "ffma":
        assert one.loop.per_k_step["FFMA"] == kernel.tile.THREAD_M * kernel.tile.THREAD_N
        assert one.lane_map is not None
        assert all(access.known for access in one.shared)


def test_lane_maps_tell_contiguous_from_split_rows_and_layouts_of_a(found):
    plain, split = found("v2_block_tile").lane_map, found("v6_transposed_split").lane_map
    assert plain.groups(0, 0) == ((0, 8),)
    assert [length for _, length in split.groups(0, 0)] == [4, 4]
    assert split.groups(0, 0)[1][0] == 32
    assert plain.a_layout.startswith("row-wise")
    assert split.a_layout.startswith("transposed")
    for lane_map in (plain, split):
        owned = [cell for cells in lane_map.owns.values() for cell in cells]
        assert len(owned) == len(set(owned)) == 64 * 32


def test_a_map_in_words_says_what_lanes_own_and_read(found):
    lines = mapping.text(found("v2_block_tile").lane_map, lanes=(5,)).splitlines()
    assert lines[0].startswith("v2_block_tile, warp 0 (")
    assert lines[1].startswith("A in shared memory: row-wise, pitch ")
    assert lines[2] == "lane  5 owns rows 8..15 x columns 8..15"
    assert lines[3].startswith("        reads A[8,0]")
    assert lines[4].startswith("        reads B[0,8] B[0,9] B[0,10] B[0,11]; B[0,12]")
    assert lines[3].endswith(" …")
    assert lines[5] == "lane numbers, every 4th row and column of C:"


def test_what_is_not_known_of_a_kernel_is_in_its_notes(monkeypatch):
    def no_packer(*_):
        raise MissingToolError("no library that packs")

    monkeypatch.setattr(inspection, "arguments", no_packer)
    monkeypatch.delitem(lanes.HANDLERS, "LOP3")
    notes = inspect_kernel(catalog.get("v0_naive"), Problem(m=16, n=16, k=8)).notes
    assert any(note.startswith("parameters are unknown (no library that packs); branches") for note in notes)
    assert any(re.match(r"taken as unknown: .*LOP3\.LUT \(\d+\)", note) for note in notes), notes


def test_lost_accumulators_are_flagged_where_no_block_could_be_executed():
    listing = sass.parse(
        ".L_x_1:\n/*0000*/ FFMA R0, R2, R4, R0 ;\n/*0010*/ FFMA R1, R2, R5, R1 ;\n/*0020*/ @P0 BRA `(.L_x_1) ;"
    )
    launch = Launch(unit=PLAIN, entry="plain_1", grid=(1, 1, 1), block=(16, 16, 1))
    tile = Tile(BLOCK_M=32, BLOCK_N=32, BLOCK_K=8, THREAD_M=2, THREAD_N=2)
    given = (lanes.Run(threads=256), listing, listing.inner_loop, launch, tile, None)
    assert inspection._fma_balance(*given, 2, False) == (
        *(16.0, 32.0),
        "2 accumulators per thread, 4 expected; FMA count 16 per thread and k tile, expected 32",
    )
    assert inspection._fma_balance(*given, 4, False) == (None, 32.0, "")


TWO_LOOPS = sass.parse(
    ".L_x_1:\n/*0000*/ FFMA R0, R2, R4, R0 ;\n/*0010*/ FFMA R1, R2, R5, R1 ;\n/*0020*/ @P0 BRA `(.L_x_1) ;\n"
    ".L_x_2:\n/*0030*/ FFMA R0, R2, R4, R0 ;\n/*0040*/ @P0 BRA `(.L_x_2) ;\n/*0050*/ EXIT ;"
)
"""The first has more products as written."""


@pytest.mark.parametrize(
    ("first", "second", "finished", "guessed", "main"),
    [
        (4, 8, True, set(), 0x00),  # 4 passes of two products are no fewer than 8 of one
        (3, 8, True, set(), 0x30),
        (0, 1, True, set(), 0x30),
        (0, 0, True, set(), 0x00),
        (0, 1, False, set(), 0x00),
        (0, 1, True, {0x20}, 0x00),
    ],
)
def test_the_main_loop_is_the_one_that_ran_where_that_is_certain(first, second, finished, guessed, main):
    run = lanes.Run(threads=32, finished=finished, guessed=guessed)
    run.executed.update({0x00: first, 0x10: first, 0x30: second})
    found = inspection._product_loops(TWO_LOOPS, run)
    assert found[0].header == main
    assert {loop.header: (loop.instructions, loop.macs_written, loop.macs_run) for loop in found} == {
        0x00: (3, 64, 64.0 * first),
        0x30: (2, 32, 32.0 * second),
    }


@pytest.mark.parametrize("layout", ["rr", "rc"])
def test_h0s_main_loop_is_that_of_whole_tiles_and_not_the_one_with_guards(layout):
    kernel = catalog.get("h0_mma_sync")
    problem = inspection.problem_for(kernel).replace(layout=layout, lda=0, ldb=0)
    one = inspect_kernel(kernel, problem)
    main, guarded = one.loop.product_loops
    assert (main.header, one.loop.chosen) == (one.loop.inner_header, "executed")
    assert main.macs_written == guarded.macs_written
    assert main.instructions < guarded.instructions
    # Its last NUM_STAGES - 1 tiles copy nothing any more: the loop with guards has them.
    tiles = kernel.tile.NUM_STAGES + inspection.TILES_EXECUTED
    assert main.macs_run / (main.macs_run + guarded.macs_run) == pytest.approx((tiles - 2) / tiles)
    # A whole tile of A and of B in pieces of 16 bytes and a warp's 32 lanes, by 8 warps and 64 steps of k.
    copies = (128 + 256) * 64 * 2 / 16 / 32 / 8
    assert one.loop.per_k_step["LDGSTS"] == pytest.approx(copies / 64)
    assert "LDGSTS" in {access.text.partition(".")[0] for access in one.shared}
    assert "loops with products the one at" in summary(one)["main loop, instructions"]
    alone = inspect_file(build.artifact(plan(kernel, problem).main_launch.unit).cubin)
    assert alone.loop.inner_header == one.loop.inner_header


def test_the_issue_bound_is_left_open_where_no_rate_is_published():
    weights = Counter({"FFMA": 8})
    assert inspection._bound_issue(weights, (), lanes.Run(threads=256), False, "sm_75") is None
    assert inspection._bound_issue(weights, (), lanes.Run(threads=256), False, "sm_90a") == 1.0


def test_two_side_by_side(plain):
    lines = {line.what: line for line in side_by_side(plain[1], plain[4])}
    assert (lines["registers"].left, lines["registers"].right) == ("96", "128")
    assert lines["registers"].differs
    assert not lines["architecture"].differs


def test_json_has_everything_people_compare(plain):
    record = json.loads(json.dumps(plain[1].to_dict(), allow_nan=False))
    assert record["occupancy"]["percent"] == 25.0
    assert record["loop"]["per_k_step"]["FFMA"] == 64
    assert record["threads"] == 256
    assert {entry["level"] for entry in record["intensity"]} == {"global", "shared"}


def test_roofline_of_a_named_device():
    one = inspect_kernel(plain_kernel(1), roof=Roof("NVIDIA H200", 66.9, 4.8))
    assert one.attainable_tflops == pytest.approx(66.9)
    assert one.roof.crossover == pytest.approx(13.94, abs=0.01)


def test_an_empty_problem_has_nothing_to_inspect():
    with pytest.raises(UsageError, match="nothing"):
        inspect_kernel(plain_kernel(1), Problem(m=0, n=4, k=4))


# --- files -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built():
    return build.artifact(PLAIN)


def test_a_cubin_alone_gives_loop_occupancy_and_conflicts(built, tmp_path, plain):
    cubin = tmp_path / "mine.cubin"
    shutil.copyfile(built.cubin, cubin)
    one = inspect_file(cubin, entry="plain_1", block=(16, 16, 1))
    assert one.resources.registers == 96
    assert one.static_smem == 16384
    assert one.occupancy.blocks == 2
    assert one.loop.per_k_step["FFMA"] == 64
    loads = {(a.text.split()[0], a.passes) for a in one.shared if a.kind == "load" and a.known}
    assert loads == {("LDS", 8.0), ("LDS.128", 4.0)}
    assert one.arch == "sm_90a"


def test_ptx_is_assembled_first_and_source_is_built_first(built, tmp_path):
    ptx = tmp_path / "mine.ptx"
    shutil.copyfile(built.ptx, ptx)
    from_ptx = inspect_file(ptx, entry="plain_4")
    from_source = inspect_file(PLAIN.source, entry="plain_4")
    assert from_ptx.resources.registers == from_source.resources.registers == 128
    assert from_ptx.opcodes == from_source.opcodes
    assert from_source.compiler.startswith("nvcc ")
    assert from_ptx.compiler.startswith("ptxas ")
    assert inspect_file(built.cubin, entry="plain_4").compiler == "not stated in the file"


def test_what_is_no_kernel_is_a_typed_error(tmp_path, built):
    with pytest.raises(UsageError, match=r"plain_1, plain_4|plain_4, plain_1"):
        inspect_file(built.cubin)
    with pytest.raises(UsageError, match="not a file"):
        inspect_file(tmp_path / "none.cubin")
    (tmp_path / "empty.cu").write_text("__device__ int alone;\n")
    with pytest.raises(UsageError, match=r"empty\.cu has no kernel: neither a __global__ function nor an \.entry"):
        inspect_file(tmp_path / "empty.cu")
    with pytest.raises(UsageError, match=r"\.cubin, \.ptx or \.cu"):
        inspect_file(shutil.copyfile(built.ptx, tmp_path / "kernel.txt"))
    damaged = tmp_path / "damaged.cubin"
    damaged.write_bytes(built.cubin.read_bytes()[:300])
    with pytest.raises(UsageError, match=f"refused {damaged}") as caught:
        inspect_file(damaged)
    assert "gemm-tracks-inspect-" not in str(caught.value)
    for name, data, what in (
        ("junk.cubin", b"\x00" * 3000, "no cubin"),
        ("void.cubin", b"", "no cubin"),
        ("bin.ptx", built.cubin.read_bytes(), "no PTX: it is not UTF-8"),
        ("latin.cu", b"// \xe9\n", "no CUDA source: it is not UTF-8 text .byte 3."),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError, match=f"{tmp_path / name} is {what}"):
            inspect_file(tmp_path / name)
    with pytest.raises(UsageError, match=r"latin\.cu is no CUDA source"):
        ptx_of(tmp_path / "latin.cu")
    fake = tmp_path / "ptx_in_disguise.cubin"
    shutil.copyfile(built.ptx, fake)
    with pytest.raises(UsageError, match="no cubin"):
        inspect_file(fake)
    with pytest.raises(CatalogError, match=r"cuobjdump reports no resources for plain_9 in kernel.cubin"):
        inspection.cubin_resources(built.cubin, "plain_9", "sm_90a")


def test_a_kernel_without_a_loop_has_no_main_loop_but_everything_else(tmp_path):
    path = tmp_path / "stores.ptx"
    body = "ld.param.u64 %p, [at]; st.global.u32 [%p], 7; ret;"
    path.write_text(
        ".version 8.0\n.target sm_90a\n.address_size 64\n"
        f".visible .entry stores(.param .u64 at) {{ .reg .b64 %p; {body} }}\n"
    )
    one = inspect_file(path, entry="stores")
    assert one.loop is None
    assert "no loop with FFMA, HMMA or HGMMA was found" in one.notes
    assert one.opcodes["STG.E"] == 1
    assert one.resources.registers > 0


def test_a_tensor_core_cubin_alone_tells_its_warps_share(found):
    kernel = catalog.get("h0_mma_sync")
    alone = inspect_file(build.artifact(kernel.units()[0]).cubin)
    assert alone.loop.macs_per_k_step == kernel.tile.WARP_M * kernel.tile.WARP_N
    assert alone.loop.k_steps == kernel.tile.BLOCK_K


def test_without_a_disassembler_the_error_names_tool_and_package(monkeypatch, plain):
    def nowhere(name):
        return iter(())

    monkeypatch.setattr(toolchain, "candidates", nowhere)
    toolchain.find.cache_clear()
    try:
        with pytest.raises(MissingToolError, match="nvidia-cuda-nvdisasm"):
            inspect_kernel(plain_kernel(1))
    finally:
        monkeypatch.undo()
        toolchain.find.cache_clear()


def test_inspection_is_quick_once_built():
    """Under five seconds; the best of three, since a machine that also builds is no clock."""
    import time

    kernel = catalog.get("v6_transposed_split")
    inspect_kernel(kernel)
    taken = []
    for _ in range(3):
        began = time.monotonic()
        inspect_kernel(kernel)
        taken.append(time.monotonic() - began)
        if taken[-1] < 5:
            break
    assert min(taken) < 5


def test_svg_of_two_maps_is_well_formed(found):
    import xml.etree.ElementTree as ElementTree

    maps = [found(name).lane_map for name in ("v2_block_tile", "v6_transposed_split")]
    root = ElementTree.fromstring(mapping.svg(maps))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"v2_block_tile", "v6_transposed_split"} <= set(texts)
    assert any("row-wise" in (text or "") for text in texts)
    assert any("transposed" in (text or "") for text in texts)
    # Every element of C is covered once: 64 x 32 elements of CELL pixels, per map.
    regions = [
        r for r in root.iter() if r.tag.endswith("rect") and int(r.get("height", "1").rstrip("%")) % mapping.CELL == 0
    ]
    covered = sum(int(r.get("width")) * int(r.get("height")) for r in regions) // mapping.CELL**2
    assert covered == 2 * 64 * 32


def test_tile_of_the_default_problem_matches_the_kernel():
    problem = inspection.problem_for(plain_kernel(1))
    assert (problem.m, problem.n, problem.k % 16) == (128, 128, 0)
    assert Tile(BLOCK_M=128).items() == (("BLOCK_M", 128),)


def test_which_of_several_loops_was_taken_is_said_where_only_the_listing_tells():
    loops = tuple(SimpleNamespace(header=at, instructions=10, macs_run=0) for at in (0x20, 0x90))
    told = inspection.which_loop(SimpleNamespace(product_loops=loops, chosen="written"))
    assert (
        told
        == "of 2 loops with products the one at 0020, which has the most as written; the rest: 0090 (10 instructions)"
    )
    assert inspection.which_loop(SimpleNamespace(product_loops=loops[:1], chosen="written")) == ""
