"""What the compiler makes of the Tensor Core kernels: registers, spills, and the instructions each is about."""

import dataclasses
import functools
import re
from collections import Counter

import pytest

from handwritten.tensor_catalog import (
    H0,
    H1,
    H2,
    H4,
    H5,
    H5_TILES,
    H9,
    H9_TILES,
    KERNELS,
    PASS_ROWS,
    SplitKernel,
    WgmmaKernel,
)
from kernel.build import artifact, build_all
from kernel.contract import Problem
from kernel.disassemble import sass
from kernel.errors import BuildError
from kernel.gate import objections
from kernel.sass import parse, register

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]

PASS = H9.packing_unit()
OWN = [
    (kernel, unit)
    for kernel in KERNELS
    for unit in kernel.units()
    if unit.name.startswith(f"{kernel.name}.") and not unit.name.endswith(".pass")
]
every_build = pytest.mark.parametrize(("kernel", "unit"), OWN, ids=[unit.name for _, unit in OWN])
WGMMA_WIDTHS = {H4: {192, 128}}


@pytest.fixture(scope="module", autouse=True)
def built():
    """Every build at once, so that a cold cache costs one parallel build."""
    failed = {name: r for name, r in build_all([PASS, *(unit for _, unit in OWN)]).items() if isinstance(r, Exception)}
    assert not failed


@functools.cache
def opcodes(unit, entry):
    """How often each opcode with its modifiers occurs."""
    return Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ )?([A-Z][\w.]*)", sass(artifact(unit).cubin, entry)))


def total(found, prefix):
    return sum(count for opcode, count in found.items() if opcode.startswith(prefix))


@every_build
def test_no_spills_no_local_memory_and_no_warning(kernel, unit):
    built = artifact(unit)
    adds = [f"{kernel.entry}_sum"] if isinstance(kernel, SplitKernel) else []
    assert sorted(built.resources) == [kernel.entry, *adds]
    for resources in built.resources.values():
        assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)
    found = opcodes(unit, kernel.entry)
    assert not [opcode for opcode in found if re.match(r"(LDL|STL)\b", opcode)]
    # C7510 and its kin: wgmma was serialised; C7602: setmaxnreg was ignored.
    assert not re.findall(r"C7[0-9]{3}|warning", built.log.read_text(encoding="utf-8"))


@every_build
def test_threads_and_registers_fit_one_sm(kernel, unit):
    resources = artifact(unit).resources[kernel.entry]
    assert resources.max_threads * resources.registers <= 65536
    for out in ("float16", "float32"):
        (launch,) = kernel.launches(Problem(m=256, n=512, k=64, dtype_in="float16", dtype_out=out))
        assert launch.threads == resources.max_threads
        assert objections(launch, artifact(launch.unit)) == ()


@every_build
def test_products_are_those_of_the_kernel(kernel, unit):
    found = opcodes(unit, kernel.entry)
    if kernel is H0:
        assert found["HMMA.16816.F32"] > 0
        assert total(found, "LDSM.16.M88.4") > 0
        assert (found["LDSM.16.MT88.4"] > 0) == ("-DB_COLUMN_MAJOR=0" in unit.flags)
        assert total(found, "HGMMA") == 0
        copies = {"-DVECTOR=8": "LDGSTS.E.BYPASS.", "-DVECTOR=2": "LDGSTS.E.", "-DVECTOR=1": "LDG.E.U16"}
        assert total(found, next(copies[flag] for flag in unit.flags if flag in copies)) > 0
    else:
        assert {opcode for opcode in found if opcode.startswith("HGMMA")} == {
            f"HGMMA.64x{width}x16.F32" for width in WGMMA_WIDTHS.get(kernel, {kernel.tile.MMA_N})
        }
        assert total(found, "HMMA") == 0
        assert total(found, "UTMALDG") > 0
        assert (total(found, "UTMASTG") > 0) == ("-DC_BY_ELEMENT=1" not in unit.flags)
        # stmatrix moves 8 x 8 matrices of 16 bits; FP32 goes through ordinary stores.
        assert (total(found, "STSM") > 0) == ("-DOUT_BYTES=2" in unit.flags)


@pytest.mark.parametrize(
    "unit", [unit for unit in H0.units() if "-DVECTOR=8" in unit.flags], ids=lambda unit: unit.name
)
def test_products_without_guards_add_in_place_and_their_loads_are_spread_among_them(unit):
    """Where the source interleaves loads with products, ptxas moves sums between registers: 6 % of the time at 4096."""
    listing = parse(sass(artifact(unit).cubin, H0.entry))
    products = H0.tile.BLOCK_K // H0.tile.MMA_K * (H0.tile.WARP_M // H0.tile.MMA_M) * (H0.tile.WARP_N // H0.tile.MMA_N)
    loops = [listing.within(loop) for loop in listing.loops]
    body = min((found for found in loops if sum(i.opcode == "HMMA" for i in found) == products), key=len)
    assert sum(i.opcode == "LDGSTS" for i in body) == 12
    sums = [i for i in body if i.opcode == "HMMA"]
    assert [register(i.operands[0]) for i in sums] == [register(i.operands[3]) for i in sums]
    runs = "".join("L" if i.opcode == "LDSM" else "H" for i in body if i.opcode in ("LDSM", "HMMA"))
    assert "LLL" not in runs


@pytest.mark.parametrize(
    "unit",
    [unit for kernel in H5_TILES for unit in kernel.units() if "h5_64x128.rr" in unit.name],
    ids=lambda u: u.name,
)
def test_b_comes_in_one_copy_or_in_one_for_each_span(unit):
    found = opcodes(unit, H5.entry)
    at_once = "-DB_AT_ONCE=1" in unit.flags
    assert (total(found, "UTMALDG.2D"), total(found, "UTMALDG.3D")) == ((1, 1) if at_once else (3, 0))


@every_build
def test_registers_move_to_the_warpgroups_that_multiply_only_where_one_loads(kernel, unit):
    moves = total(opcodes(unit, kernel.entry), "USETMAXREG")
    # A single warpgroup that multiplies has registers enough without.
    one_loads = kernel in (H1, H2, H5, *H5_TILES, H9, *H9_TILES) or isinstance(kernel, SplitKernel)
    loads_apart = one_loads and kernel.consumers == 2
    assert moves == (2 if loads_apart else 0)


@every_build
def test_operands_are_multicast_in_clusters_only(kernel, unit):
    multicasts = sum(n for opcode, n in opcodes(unit, kernel.entry).items() if re.match(r"UTMALDG.*MULTICAST", opcode))
    assert (multicasts > 0) == (max(kernel.tile.CLUSTER_M, kernel.tile.CLUSTER_N) > 1)


@every_build
def test_launches_overlap_where_the_catalog_says_so(kernel, unit):
    """The wait for the launch before, and the word that the next may start."""
    found = opcodes(unit, kernel.entry)
    overlaps = isinstance(kernel, WgmmaKernel) and kernel.overlaps
    assert (total(found, "ACQBULK") > 0, total(found, "PREEXIT") > 0) == (overlaps, overlaps)


def test_a_pass_waits_before_it_reads_and_has_all_loads_of_a_strip_in_flight():
    built = artifact(PASS)
    assert list(built.resources) == ["h9_packed_pass"]
    resources = built.resources["h9_packed_pass"]
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)
    assert not re.findall(r"warning", built.log.read_text(encoding="utf-8"))
    listing = parse(sass(built.cubin, "h9_packed_pass"))
    order = [i.opcode for i in listing.instructions if i.opcode in ("PREEXIT", "ACQBULK", "LDG", "STG")]
    strip = ["LDG"] * (2 * PASS_ROWS) + ["STG"] * PASS_ROWS
    assert order == ["PREEXIT", "ACQBULK", *strip, *strip]


BY_ELEMENT = [(kernel, unit) for kernel, unit in OWN if "-DC_BY_ELEMENT=1" in unit.flags]


@pytest.mark.parametrize(("kernel", "unit"), BY_ELEMENT, ids=[unit.name for _, unit in BY_ELEMENT])
def test_rows_of_c_by_element_leave_in_words(kernel, unit):
    """Sixteen rows of a warp and what is left over at their ends, for each box of a tile."""
    found = opcodes(unit, kernel.entry)
    out = 2 if "-DOUT_BYTES=2" in unit.flags else 4
    boxes = kernel.tile.BLOCK_N * out // 128
    assert (found["STG.E"], found["STG.E.U16"]) == (16 * boxes, boxes if out == 2 else 0)


@every_build
def test_no_barrier_of_the_whole_gpu_in_the_main_loop(kernel, unit):
    """Releasing a stage to the cluster needs no MEMBAR.ALL.GPU; the two there are begin and end the kernel."""
    clustered = max(kernel.tile.CLUSTER_M, kernel.tile.CLUSTER_N) > 1 or isinstance(kernel, SplitKernel)
    assert opcodes(unit, kernel.entry)["MEMBAR.ALL.GPU"] == (2 if clustered else 0)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_sources_refuse_to_build_without_a_tile(kernel):
    flags = tuple(flag for flag in kernel.units()[0].flags if not flag.startswith("-DBLOCK_M="))
    with pytest.raises(BuildError) as caught:
        artifact(dataclasses.replace(kernel.units()[0], name=f"{kernel.name}.without_tile", flags=flags))
    assert "come from handwritten/tensor_catalog.py" in caught.value.log


def test_a_pass_refuses_to_build_without_its_rows():
    flags = tuple(flag for flag in PASS.flags if not flag.startswith("-DPASS_ROWS="))
    with pytest.raises(BuildError) as caught:
        artifact(dataclasses.replace(PASS, name="h9_packed.without_rows", flags=flags))
    assert "come from handwritten/tensor_catalog.py" in caught.value.log
