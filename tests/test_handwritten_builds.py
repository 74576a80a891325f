"""What the compiler makes of the ladder: registers, spills, and the instructions that each rung is about."""

import dataclasses
import functools
import re
from collections import Counter

import pytest

from handwritten.catalog import LADDER, get
from handwritten.pass_tile import PackingPassKernel, TransposingPassKernel
from handwritten.split_tile import BlockSplitKernel
from handwritten.stream_tile import StreamTileKernel
from kernel.build import artifact, build_all
from kernel.contract import Problem
from kernel.disassemble import sass
from kernel.errors import BuildError
from kernel.gate import objections
from kernel.plan import plan
from kernel.sass import operand_reads, parse

pytestmark = pytest.mark.nvcc

NAMES = [kernel.name for kernel in LADDER]
REGISTERS_PER_SM = 65536


@pytest.fixture(scope="module", autouse=True)
def built():
    """Every build at once, so that a cold cache costs one parallel build."""
    failed = {n: r for n, r in build_all([u for k in LADDER for u in k.units()]).items() if isinstance(r, Exception)}
    assert not failed


@functools.cache
def opcodes(name, width):
    """How often each opcode with its modifiers occurs; instructions that are never executed (@!PT) left out."""
    unit = next(unit for unit in get(name).units() if f"-DVECTOR={width}" in unit.flags)
    instructions = re.findall(
        r"/\*[0-9a-f]{4,}\*/\s+((?:@!?\w+ )?)([A-Z][\w.]*)", sass(artifact(unit).cubin, get(name).entry)
    )
    return Counter(opcode for predicate, opcode in instructions if predicate.strip() != "@!PT")


@pytest.mark.parametrize("kernel", LADDER, ids=NAMES)
def test_symbol_bound_registers_and_spills(kernel):
    for unit in (unit for unit in kernel.units() if unit.source == kernel.source):
        built = artifact(unit)
        adding = {f"{kernel.entry}_sum"} if isinstance(kernel, BlockSplitKernel) else set()
        turning = {f"{kernel.entry}_pass"} if isinstance(kernel, TransposingPassKernel) else set()
        copying = {f"{kernel.entry}_copy"} if isinstance(kernel, PackingPassKernel) else set()
        assert set(built.resources) == {kernel.entry, *adding, *turning, *copying}
        assert all(built.resources[one].spill_bytes == 0 for one in (*turning, *copying))
        resources = built.resources[kernel.entry]
        assert resources.spill_bytes == 0
        assert resources.stack_bytes == 0
        assert resources.max_threads == kernel.threads
        if isinstance(kernel, StreamTileKernel):
            assert kernel.blocks_per_sm * kernel.threads * resources.registers <= REGISTERS_PER_SM
            continue
        blocks = 2 if kernel.tile.THREAD_M * kernel.tile.THREAD_N <= 64 else 1
        assert blocks * kernel.threads * resources.registers <= REGISTERS_PER_SM
        assert resources.registers <= 128 or blocks == 1
    for n in (132, 131):
        for launch in kernel.launches(Problem(m=129, n=n, k=17)):
            assert objections(launch, artifact(launch.unit)) == ()


@pytest.mark.parametrize("name", ["v2_block_tile", "v3_double_buffer", "v4_pad", "v4_swizzle", "s3_register_staged"])
@pytest.mark.parametrize("width", [4, 1])
def test_a_step_reads_a_by_eight_scalars_and_b_by_two_vectors(name, width):
    found = opcodes(name, width)
    assert found["LDS"] == 8
    assert found["LDS.128"] == 2
    assert found["FFMA"] >= 64  # the loop's, and the write-out's for beta


@pytest.mark.parametrize("name", ["v3_double_buffer", "v5_register_block", "v5_chunk_swizzle"])
def test_copies_are_asynchronous_and_pass_the_registers_by(name):
    found = opcodes(name, 4)
    assert found["LDGSTS.E.BYPASS.128"] == 8  # first tile and next tile, two runs of A and two of B
    assert found["LDGSTS.E.BYPASS.128.ZFILL"] == 8  # the same with a size, for tiles at an edge
    assert found["LDGDEPBAR"] >= 2
    assert sum(n for opcode, n in found.items() if opcode.startswith("DEPBAR")) >= 2
    assert not any(opcode.startswith("STS") for opcode in found)


@pytest.mark.parametrize("name", ["v5_register_block", "v5_chunk_swizzle"])
@pytest.mark.parametrize("width", [4, 1])
def test_four_steps_take_sixteen_vector_loads(name, width):
    found = opcodes(name, width)
    assert found["LDS.128"] == 16
    assert found["LDS"] == 0
    assert found["FFMA"] >= 4 * 64


@pytest.mark.parametrize("name", ["v6_transposed_split", "v6_transposed_contiguous"])
@pytest.mark.parametrize("width", [4, 1])
def test_transposed_tiles_are_read_by_vectors_only(name, width):
    found = opcodes(name, width)
    assert found["LDS.128"] == 16 * 4
    assert [opcode for opcode in found if re.fullmatch(r"LDS(\.\w+)*", opcode)] == ["LDS.128"]
    assert found["FFMA"] >= 16 * 64


@pytest.mark.parametrize("name", ["v7_wide_tile", "v8_stream_k"])
@pytest.mark.parametrize("width", [4, 1])
def test_wide_tiles_are_read_by_vectors_and_stored_transposed(name, width):
    found = opcodes(name, width)
    steps = 16 + 1  # the tile's, unrolled, and the one step of what is left of k
    assert found["LDS.128"] >= 6 * steps
    assert found["FFMA"] >= 128 * steps
    assert found["STS"] >= 8  # A's eight elements a thread, one by one
    copies = sum(n for opcode, n in found.items() if opcode.startswith("LDGSTS") and "ZFILL" not in opcode)
    assert copies >= 2 * (16 // width)  # first tiles and next tiles
    assert found["BAR.SYNC.DEFER_BLOCKING"] <= (2 if name == "v7_wide_tile" else 8)


def test_stream_k_takes_its_share_by_an_atomic_and_publishes_by_a_release():
    found = opcodes("v8_stream_k", 4)
    assert sum(n for opcode, n in found.items() if opcode.startswith("ATOMG")) == 1
    assert sum(n for opcode, n in found.items() if opcode.startswith("LD") and "STRONG.GPU" in opcode) >= 1
    assert sum(n for opcode, n in found.items() if opcode.startswith("ST") and "STRONG.GPU" in opcode) == 1
    assert not any(opcode.startswith(("ATOM", "RED", "MEMBAR")) for opcode in opcodes("v7_wide_tile", 4))


def test_no_kernel_copies_asynchronously_that_should_not():
    for name in ("v2_block_tile", "s3_register_staged", "s4_block64", "s1_smem_only", "s2_thread_column"):
        widths = (4, 1) if len(get(name).units()) > 1 else (1,)
        for width in widths:
            assert not any(opcode.startswith("LDGSTS") for opcode in opcodes(name, width))


@pytest.mark.parametrize("kernel", LADDER, ids=NAMES)
def test_sources_refuse_to_build_without_a_tile(kernel):
    unit = dataclasses.replace(kernel.units()[0], name=f"{kernel.name}.without_tile", flags=("-DVECTOR=1",))
    with pytest.raises(BuildError) as caught:
        artifact(unit)
    assert "tile extents come from handwritten/catalog.py" in caught.value.log


def test_static_assert_names_a_broken_relation():
    unit = get("v2_block_tile").units()[0]
    flags = tuple("-DTHREAD_M=4" if flag.startswith("-DTHREAD_M=") else flag for flag in unit.flags)
    with pytest.raises(BuildError) as caught:
        artifact(dataclasses.replace(unit, name="v2_block_tile.broken", flags=flags))
    assert "32 lanes' thread tiles fill the warp tile" in caught.value.log


SEVERAL = [k for k in LADDER if isinstance(k, (BlockSplitKernel, TransposingPassKernel))]


@pytest.mark.parametrize("kernel", SEVERAL, ids=lambda kernel: kernel.name)
def test_the_launch_that_says_it_multiplies_is_the_one_whose_loops_hold_the_products(kernel):
    packs = isinstance(kernel, PackingPassKernel)
    planned = plan(kernel, Problem(m=128, n=127 if packs else 128, k=65536))
    assert len(planned.launches) == 2 + packs
    products = []
    for launch in planned.launches:
        listing = parse(sass(artifact(launch.unit).cubin, launch.entry))
        products.append(max((listing.math(loop) for loop in listing.loops), default=0))
    assert [launch.multiplies for launch in planned.launches] == [count == max(products) for count in products]
    assert planned.main_launch.entry == kernel.entry


@functools.cache
def main_loop(name):
    """The main loop of a kernel's vec4 build, and what its FFMAs read."""
    kernel = get(name)
    listing = parse(sass(artifact(kernel.units()[0]).cubin, kernel.entry))
    inside = listing.within(listing.inner_loop)
    return inside, operand_reads(inside)


HINTED = [kernel.name for kernel in LADDER if kernel.entry_name_hint]
HALF_KEPT = ("v13_async_k8_hint", "v13_async_k8_grid_hint")
"""Builds in which ptxas keeps the written order of a part of the FFMAs only."""


@pytest.mark.parametrize("name", HALF_KEPT)
def test_the_hint_in_v13_s_name_keeps_some_of_the_order_on_this_toolkit(name):
    """Less than for the others: it reads fewer registers, and by the model of the banks takes no fewer cycles."""
    _, hinted = main_loop(name)
    _, plain = main_loop(name.removesuffix("_hint"))
    tile = get(name).tile
    assert hinted.ffmas == plain.ffmas == tile.BLOCK_K * tile.THREAD_M * tile.THREAD_N
    assert 0.4 * hinted.ffmas < hinted.in_squares
    assert 2 * plain.in_squares < hinted.in_squares
    assert hinted.reads < plain.reads


@pytest.mark.parametrize("name", [name for name in HINTED if name not in HALF_KEPT])
def test_the_hint_in_the_entry_s_name_still_keeps_the_order_on_this_toolkit(name):
    """Fails where a toolkit no longer looks at the name: the hinted rows are then nothing but the plain ones."""
    _, hinted = main_loop(name)
    _, plain = main_loop(name.removesuffix("_hint"))
    tile, groups = get(name).tile, getattr(get(name), "k_groups", 1)
    assert hinted.ffmas == plain.ffmas == tile.BLOCK_K // groups * tile.THREAD_M * tile.THREAD_N
    assert hinted.in_squares > 0.45 * hinted.ffmas
    assert hinted.reads_per_ffma < 1.65 < 1.8 < plain.reads_per_ffma
    assert hinted.cycles_per_ffma < 1.04 < plain.cycles_per_ffma


def opcodes_inside(name):
    """How often each opcode stands in a main loop, without what never executes; and its FFMAs' reads."""
    inside, reads = main_loop(name)
    return Counter(instruction.opcode for instruction in inside if instruction.predicate != "!PT"), reads


NOT_IN_A_LOOP_WITHOUT_COPIES = {"LDG", "STS", "LDGSTS", "LDL", "STL"}


@pytest.mark.parametrize("hint", ["", "_hint"])
def test_v18_s_warps_read_multiply_and_wait_and_nothing_else(hint):
    """Copies, their addresses and A's stores are gone from the loop; two barriers a tile are what is left."""
    found, reads = opcodes_inside(f"v18_transposing_pass{hint}")
    assert found["LDS"] == 16 * 6
    assert not {*NOT_IN_A_LOOP_WITHOUT_COPIES, "BAR"} & set(found)
    assert found["SYNCS"] == 3  # one to arrive, two tries of a wait
    assert found.total() < 1.07 * reads.ffmas
    assert found.total() * 16 < 36 * 1024  # bytes of code


@pytest.mark.parametrize("hint", ["", "_hint"])
def test_v20_s_warps_read_multiply_and_meet_once_a_tile(hint):
    found, reads = opcodes_inside(f"v20_one_barrier{hint}")
    assert found["LDS"] == 16 * 6
    assert found["BAR"] == 1
    assert not {*NOT_IN_A_LOOP_WITHOUT_COPIES, "SYNCS"} & set(found)
    assert found.total() < 1.06 * reads.ffmas


@pytest.mark.parametrize("part", ["", "_pass"])
@pytest.mark.parametrize("hint", ["", "_hint"])
def test_v21_s_pass_and_product_are_v20_s_to_the_letter(hint, part):
    listings = []
    for kernel in (get(f"v20_one_barrier{hint}"), get(f"v21_packed{hint}")):
        for unit in kernel.units()[:2]:
            text = sass(artifact(unit).cubin, kernel.entry + part).replace(kernel.entry, "entry")
            labels = {}
            text = re.sub(r"\.L_x_\d+", lambda found: labels.setdefault(found[0], f"label {len(labels)}"), text)  # noqa: B023
            listings.append([" ".join(line.split()) for line in text.splitlines()])
    assert listings[:2] == listings[2:]
    assert len(listings[0]) > 100


def test_v21_s_copy_has_eight_loads_in_flight():
    kernel = get("v21_packed_hint")
    found = [one.kind for one in parse(sass(artifact(kernel.units()[0]).cubin, f"{kernel.entry}_copy")).instructions]
    assert found.count("LDG") == found.count("STG") == 8
    assert "STG" not in found[: len(found) - found[::-1].index("LDG")]


V14 = ["v14_early_loads", "v14_early_loads_grid"]


@pytest.mark.parametrize(
    "name",
    [
        *("v9_two_blocks", "v10_drift", "v11_cluster_split", "v12_spread", *V14, "v15_late_loads_grid"),
        *("v19_down_columns", "v20_one_barrier"),
    ],
)
@pytest.mark.parametrize("hint", ["", "_hint"])
def test_the_main_loop_has_six_loads_a_step_and_little_else(name, hint):
    inside, reads = main_loop(name + hint)
    names = Counter(instruction.name for instruction in inside if instruction.predicate != "!PT")
    assert names["LDS.128"] == 16 * 6
    assert sum(count for opcode, count in names.items() if opcode.startswith(("LDL", "STL"))) == 0
    assert len(inside) < 1.10 * reads.ffmas
    assert len(inside) * 16 < 36 * 1024  # bytes of code


@pytest.mark.parametrize("name", V14)
@pytest.mark.parametrize("hint", ["", "_hint"])
def test_v14_loads_a_most_of_a_tile_before_it_stores_it_and_never_branches(name, hint):
    """A load through the read-only path would stand 250 FFMAs before its store, in the builds with stream-K."""
    inside, reads = main_loop(name + hint)
    places = {kind: [i for i, x in enumerate(inside) if x.kind == kind] for kind in ("LDG", "STS")}
    assert len(places["LDG"]) == 2
    assert len(places["STS"]) == 8
    # From the load on to the store, around the back edge where the listing does not open with the loop's top.
    between = [(places["STS"][0] - load) % len(inside) for load in places["LDG"]]
    assert min(between) > reads.ffmas / 2
    assert [x.opcode for x in inside if x.opcode in ("BRA", "BSSY", "BSYNC")] == ["BRA"]
