"""Claims that are read out of machine code: built kernels, executed address arithmetic, the bank model."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from compare.claims.record import (
    ASYNC_COPY,
    CONDITION,
    DIFFERS,
    HOLDS,
    PLAIN,
    PLAIN_TILE,
    SPILLING,
    Claim,
    Evidence,
    Finding,
    Unavailable,
    needs_tools,
    plain_kernel,
    verdict,
)
from kernel import banks, disassemble, occupancy
from kernel.contract import Problem
from kernel.errors import BuildError
from kernel.inspection import Inspection, SharedAccess

T = PLAIN_TILE
LANES = range(32)


def plain(evidence: Evidence, ahead: int = 1) -> Inspection:
    return evidence.plain[ahead]


def loads(found: Inspection, name: str = "LDS") -> list[SharedAccess]:
    """Shared loads whose instruction is called exactly ``name``."""
    return [access for access in found.shared if access.text.split()[0] == name]


def a_loads(found: Inspection) -> list[SharedAccess]:
    """Loads of A in kernels that load A by single words and B by four."""
    return loads(found, "LDS")


def inner_counts(evidence: Evidence, ahead: int) -> Counter[str]:
    listing = evidence.listing(PLAIN, f"plain_{ahead}")
    inner = listing.inner_loop
    return listing.counts(inner.addresses) if inner else Counter()


# --- resources and occupancy -------------------------------------------------------------------------


def static_shared_memory(evidence: Evidence) -> Finding:
    smem = plain(evidence).static_smem
    return verdict(smem == 16 * 1024, f"{smem} bytes of static shared memory in the cubin")


def blocks_by_shared_memory(evidence: Evidence) -> Finding:
    fits = plain(evidence).occupancy.by_resource["shared memory"]
    limits = occupancy.sm_limits("sm_90a")
    return verdict(fits == 13, f"{limits.smem // 1024} KB / (16 + 1) KB: {fits} blocks")


def blocks_by_threads(evidence: Evidence) -> Finding:
    fits = plain(evidence).occupancy.by_resource["warps"]
    return verdict(fits == 8, f"{occupancy.sm_limits('sm_90a').threads} / 256 threads: {fits} blocks")


def plain_registers(evidence: Evidence) -> Finding:
    found = plain(evidence)
    return verdict(found.resources.registers == 96, f"{found.resources.registers} registers, {found.compiler}")


def block_registers(evidence: Evidence) -> Finding:
    found = plain(evidence)
    taken = occupancy.registers_per_block(found.resources.registers, found.threads)
    return verdict(taken == 24576, f"{taken} registers a block")


def blocks_by_registers(evidence: Evidence) -> Finding:
    fits = plain(evidence).occupancy
    value = f"{fits.blocks} blocks, limited by {', '.join(fits.limited_by)}"
    return verdict(fits.blocks == 2 and fits.limited_by == ("registers",), value)


def spilling(evidence: Evidence) -> Finding:
    built = evidence.artifact(SPILLING)
    listing = evidence.listing(SPILLING, "plain_1")
    local = sum(count for name, count in listing.counts().items() if name.startswith(("LDL", "STL")))
    spilled = built.resources["plain_1"].spill_bytes
    value = f"plain kernel held to 64 registers: {spilled} bytes spilled, {local} loads and stores of local memory"
    return verdict(spilled > 0 and local > 0, value)


# --- main loop ---------------------------------------------------------------------------------------


def loop_mix(evidence: Evidence) -> Finding:
    counts = inner_counts(evidence, 1)
    wanted = (counts["LDS"], counts["LDS.128"], counts["FFMA"])
    value = f"{wanted[0]} LDS + {wanted[1]} LDS.128 + {wanted[2]} FFMA per k step, {plain(evidence).compiler}"
    return verdict(wanted == (8, 2, 64), value)


def loop_mix_ahead(evidence: Evidence) -> Finding:
    counts, before = inner_counts(evidence, 4), inner_counts(evidence, 1)
    earlier = 4 * (before["LDS"] + before["LDS.128"])
    value = f"{earlier} shared loads per 4 k steps before, {counts['LDS.128']} LDS.128 and {counts['LDS']} LDS after"
    return verdict(earlier == 40 and (counts["LDS.128"], counts["LDS"]) == (16, 0), value)


def registers_ahead(evidence: Evidence) -> Finding:
    first, second = (plain(evidence, ahead).resources.registers for ahead in (1, 4))
    return verdict((first, second) == (96, 128), f"{first} registers, then {second}, {plain(evidence).compiler}")


def blocks_ahead(evidence: Evidence) -> Finding:
    fits = plain(evidence, 4).occupancy
    return verdict(fits.blocks == 2, f"{fits.blocks} blocks of {plain(evidence, 4).resources.registers} registers")


def same_bytes(evidence: Evidence) -> Finding:
    moved = [sum(a.width * a.per_k_step for a in plain(evidence, ahead).shared if a.kind == "load") for ahead in (1, 4)]
    return verdict(moved[0] == moved[1] == 64, f"{moved[0]:g} and {moved[1]:g} bytes per thread and k step")


def merged_along_k(evidence: Evidence) -> Finding:
    lane_map = plain(evidence, 4).lane_map
    if lane_map is None:
        return Finding(DIFFERS, "no lane map was found")
    first = lane_map.reads_a[0][0]
    wanted = tuple((first[0][0], first[0][1] + step) for step in range(4))
    return verdict(first == wanted, "one load of lane 0 brings " + " ".join(f"A[{m},{k}]" for m, k in first))


def thread_intensity(evidence: Evidence) -> Finding:
    found = plain(evidence)
    moved = sum(access.width * access.per_k_step for access in found.shared if access.kind == "load")
    flop = 2 * (found.loop.per_k_step["FFMA"] if found.loop else 0)
    value = f"{flop:g} FLOP for {moved:g} bytes of shared loads per thread and k step: {flop / moved:g}"
    return verdict((flop, moved) == (128, 64), value)


def naive_intensity(evidence: Evidence) -> Finding:
    found = evidence.kernel("v0_naive")
    level = next(entry for entry in found.intensity if entry.level == "global")
    return verdict(abs(level.value - 0.25) < 1e-6, f"{level.value:g} FLOP/byte over the loads that v0_naive executes")


def quarter_executed(evidence: Evidence) -> Finding:
    per_fma = []
    for name in ("v0_naive", "v1_thread_tile"):
        loop = evidence.kernel(name).loop
        if loop is None:
            return Finding(DIFFERS, f"{name}: no main loop was found")
        per_fma.append(loop.per_k_step["LDG"] / loop.per_k_step["FFMA"])
    return verdict(per_fma[1] / per_fma[0] == 0.25, f"{per_fma[0]:g} and {per_fma[1]:g} loads per FFMA, executed")


def block_intensity(evidence: Evidence) -> Finding:
    level = next(entry for entry in plain(evidence).intensity if entry.level == "global")
    return verdict(abs(level.value - 32) < 1e-6, f"{level.value:g} FLOP/byte over the loads that a block executes")


def work_unchanged(evidence: Evidence) -> Finding:
    loop = plain(evidence).loop
    if loop is None or loop.fma_found is None:
        return Finding(DIFFERS, "no main loop was found, or it was not executed")
    value = f"{loop.fma_found:g} multiply-adds per thread and k tile executed, {loop.fma_expected:g} in the formula"
    return verdict(loop.fma_found == loop.fma_expected, value)


def copies_per_thread(evidence: Evidence) -> Finding:
    found = plain(evidence)
    stores = sum(access.per_k_step for access in found.shared if access.kind == "store") * T.BLOCK_K
    value = f"{stores:g} elements a thread and k tile are stored to shared memory, half of them A's"
    return verdict(stores == 16, value)


def lane_map_matches(evidence: Evidence) -> Finding:
    lane_map = plain(evidence).lane_map
    if lane_map is None:
        return Finding(DIFFERS, "no lane map was found")
    cells = {cell for owned in lane_map.owns.values() for cell in owned}
    rows, columns = ({cell[axis] for cell in cells} for axis in (0, 1))
    each = {len(owned) for owned in lane_map.owns.values()}
    value = f"a warp owns {len(rows)} x {len(columns)} = {len(cells)} elements, a lane {sorted(each)}"
    return verdict((len(rows), len(columns), len(cells), each) == (64, 32, 2048, {64}), value)


def ragged(evidence: Evidence) -> Finding:
    """Runs the kernel on the PTX machine, every access checked, on integers that FP32 adds exactly."""
    from kernel.machine import simulate

    evidence.artifact(PLAIN)
    wrong = faults = 0
    shapes = ((35, 79, 19), (1, 1, 1), (129, 130, 33))
    for m, n, k in shapes:
        random = np.random.default_rng(0)
        a = random.integers(-4, 5, (m, k)).astype(np.float32)
        b = random.integers(-4, 5, (k, n)).astype(np.float32)
        outcome = simulate(plain_kernel(1), Problem(m=m, n=n, k=k), a, b)
        wrong += int(np.count_nonzero(outcome.c != a @ b))
        faults += len(outcome.faults)
    told = ", ".join("x".join(map(str, shape)) for shape in shapes)
    return verdict(not wrong and not faults, f"{told}: {wrong} elements differ, {faults} faults")


# --- cp.async ----------------------------------------------------------------------------------------


def async_names(evidence: Evidence, arch: str) -> Counter[str]:
    listing = evidence.listing(ASYNC_COPY[arch], "async_copy")
    return listing.counts()


def async_copies(evidence: Evidence) -> Finding:
    found = {arch: sorted({n for n in async_names(evidence, arch) if n.startswith("LDGSTS")}) for arch in ASYNC_COPY}
    value = "; ".join(f"{arch}: {', '.join(names)}" for arch, names in found.items())
    return verdict(all(names == ["LDGSTS.E.BYPASS.128"] for names in found.values()), value)


def async_commit(evidence: Evidence) -> Finding:
    found = {arch: async_names(evidence, arch)["LDGDEPBAR"] for arch in ASYNC_COPY}
    return verdict(all(found.values()), "; ".join(f"{arch}: {count} LDGDEPBAR" for arch, count in found.items()))


def async_wait(evidence: Evidence) -> Finding:
    found = {}
    for arch, unit in ASYNC_COPY.items():
        listing = evidence.listing(unit, "async_copy")
        found[arch] = sorted({i.text for i in listing.instructions if i.opcode == "DEPBAR"})
    value = "; ".join(f"{arch}: {', '.join(texts) or 'none'}" for arch, texts in found.items())
    return verdict(all(any(t.startswith("DEPBAR.LE SB0") for t in texts) for texts in found.values()), value)


def no_registers_between(evidence: Evidence) -> Finding:
    copied, staged = evidence.kernel("v3_double_buffer"), evidence.kernel("s3_register_staged")
    if copied.loop is None or staged.loop is None:
        return Finding(DIFFERS, "no main loop was found")
    first = {kind: copied.loop.per_k_step.get(kind, 0) for kind in ("LDGSTS", "LDG", "STS")}
    second = {kind: staged.loop.per_k_step.get(kind, 0) for kind in ("LDGSTS", "LDG", "STS")}
    value = f"v3_double_buffer per k step {first}, s3_register_staged {second}"
    good = first["LDGSTS"] > 0 and not first["LDG"] and not first["STS"] and second["LDG"] > 0 and second["STS"] > 0
    return verdict(good, value)


PROBE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry probe(.param .u64 source) {{
  .reg .u64 %address; .reg .u32 %place;
  .shared .align 16 .b8 buffer[64];
  ld.param.u64 %address, [source]; cvta.to.global.u64 %address, %address;
  mov.u32 %place, buffer;
  cp.async.{kind}.shared.global [%place], [%address], {size};
  cp.async.wait_all;
  ret;
}}
"""


def assembled(kind: str, size: int) -> str:
    """Name of the instruction that a single cp.async becomes, empty where ptxas refuses it."""
    with needs_tools(), tempfile.TemporaryDirectory(prefix="gemm-tracks-claim-") as scratch:
        source, cubin = Path(scratch) / "probe.ptx", Path(scratch) / "probe.cubin"
        source.write_text(PROBE.format(kind=kind, size=size), encoding="utf-8")
        try:
            disassemble.assemble(source, "sm_80", cubin)
        except BuildError:
            return ""
        from kernel import sass

        listing = sass.parse(disassemble.sass(cubin, "probe"))
        return next((i.name for i in listing.instructions if i.opcode == "LDGSTS"), "")


def cg_is_16_bytes(_: Evidence) -> Finding:
    found = {size: assembled("cg", size) for size in (4, 8, 16)}
    value = ", ".join(f"{size} bytes: {name or 'refused'}" for size, name in found.items())
    return verdict(not found[4] and not found[8] and bool(found[16]), f"cp.async.cg of {value}")


def cg_bypasses(_: Evidence) -> Finding:
    around, through = assembled("cg", 16), assembled("ca", 16)
    value = f".cg becomes {around}, .ca becomes {through}"
    return verdict("BYPASS" in around and bool(through) and "BYPASS" not in through, value)


# --- banks -------------------------------------------------------------------------------------------


def degree_of_a(found: Inspection) -> tuple[int, str]:
    accesses = a_loads(found)
    known = [access for access in accesses if access.known]
    if not known or len(known) != len(accesses):
        raise Unavailable(f"{found.name}: the addresses of its loads of A could not be executed")
    degree = max(access.degree for access in known)
    passes = sorted({access.passes for access in known})
    return degree, f"{found.name}: {len(known)} loads of A, {', '.join(f'{p:g}' for p in passes)} passes each (ideal 1)"


def conflict_plain(evidence: Evidence) -> Finding:
    degree, value = degree_of_a(plain(evidence))
    return verdict(degree == 8, value)


def conflict_addresses(_: Evidence) -> Finding:
    addresses = [4 * (lane // 4 * T.THREAD_M * T.BLOCK_K) for lane in LANES]
    distinct = sorted(set(addresses))
    same_bank = {address // 4 % banks.BANKS for address in distinct}
    value = f"{len(distinct)} distinct addresses, {T.THREAD_M * T.BLOCK_K} floats apart, in {len(same_bank)} bank"
    return verdict(len(distinct) == 8 and len(same_bank) == 1, value)


def broadcast(_: Evidence) -> Finding:
    found = banks.passes([4 * (lane // 4) for lane in LANES], 4)
    return verdict(found.conflicts == 0, f"four lanes a word, eight words: {found.passes} pass")


def conflict_padded(evidence: Evidence) -> Finding:
    degree, value = degree_of_a(evidence.kernel("v4_pad"))
    return verdict(degree == 2, value)


def padding_cost(evidence: Evidence) -> Finding:
    before, after = (evidence.kernel(name).static_smem for name in ("v3_double_buffer", "v4_pad"))
    a_bytes = 2 * 4 * T.BLOCK_M * T.BLOCK_K
    share = (after - before) / a_bytes
    value = f"{after - before} bytes more for A's {a_bytes}: {100 * share:.2f} %"
    return verdict(abs(share - 1 / 16) < 1e-9, value)


def padding_floor(_: Evidence) -> Finding:
    degrees = {}
    for pitch in range(T.BLOCK_K, T.BLOCK_K + 33):
        addresses = [4 * (lane // 4 * T.THREAD_M * pitch) for lane in LANES]
        degrees[pitch] = banks.passes(addresses, 4).degree
    best = min(degrees.values())
    value = f"pitches 16 to 48: best {best}-way (17: {degrees[17]}-way, 16: {degrees[16]}-way)"
    return verdict(best == 2 and degrees[17] == 2, value)


def conflict_swizzled(evidence: Evidence) -> Finding:
    degree, value = degree_of_a(evidence.kernel("v4_swizzle"))
    return verdict(degree == 1, value)


def swizzled_degree(bits: int) -> int:
    """Worst degree over all i and kk where the column is XORed with row bits ``bits`` to ``bits + 2``."""
    worst = 0
    for i in range(T.THREAD_M):
        for kk in range(T.BLOCK_K):
            rows = [lane // 4 * T.THREAD_M + i for lane in LANES]
            addresses = [4 * (row * T.BLOCK_K + (kk ^ (row >> bits & 7))) for row in rows]
            worst = max(worst, banks.passes(addresses, 4).degree)
    return worst


def swizzle_bits(_: Evidence) -> Finding:
    right, wrong = swizzled_degree(3), swizzled_degree(0)
    return verdict((right, wrong) == (1, 8), f"XOR with row bits 3 to 5: {right}-way; with bits 0 to 2: {wrong}-way")


def swizzle_in_range(_: Evidence) -> Finding:
    columns = {column ^ (row >> 3 & 7) for row in range(T.BLOCK_M) for column in range(T.BLOCK_K)}
    one_to_one = all(
        len({column ^ (row >> 3 & 7) for column in range(T.BLOCK_K)}) == T.BLOCK_K for row in range(T.BLOCK_M)
    )
    return verdict(max(columns) < T.BLOCK_K and one_to_one, f"columns {min(columns)} to {max(columns)}, one to one")


def swizzle_is_free(evidence: Evidence) -> Finding:
    before, after = (evidence.kernel(name).static_smem for name in ("v3_double_buffer", "v4_swizzle"))
    return verdict(before == after, f"{before} and {after} bytes of shared memory")


def transposed_contiguous_model(evidence: Evidence) -> Finding:
    starts = [32 * (lane // 4) for lane in LANES]
    model = banks.passes(starts, 16)
    found = evidence.kernel("v6_transposed_contiguous")
    known = [access for access in found.shared if access.kind == "load" and access.known]
    if not known:
        raise Unavailable(f"{found.name}: the addresses of its loads could not be executed")
    extra = max(access.conflicts for access in known)
    value = (
        f"eight float4 32 bytes apart: {model.passes} passes, ideal {model.ideal}; "
        f"{found.name}: at most {extra:g} extra passes per load, by a model that fits every counter recorded"
    )
    return verdict(model.conflicts > 0 and extra > 0, value)


def split_contiguous_chunks(evidence: Evidence) -> Finding:
    found = evidence.kernel("v6_transposed_split")
    known = [access for access in found.shared if access.kind == "load" and access.known]
    if not known:
        raise Unavailable(f"{found.name}: the addresses of its loads could not be executed")
    extra = max(access.conflicts for access in known)
    return verdict(extra == 0, f"{found.name}: {len(known)} loads, at most {extra:g} extra passes")


# --- CUTLASS -----------------------------------------------------------------------------------------


def cutlass_layout(evidence: Evidence) -> Finding:
    found = evidence.cutlass
    if found.lane_map is None or not found.lane_map.a_layout:
        raise Unavailable(f"{found.name}: its lane map could not be executed")
    # A row-major C is computed as its transpose, so CUTLASS's A operand is our B there; both lie along m and n.
    value = f"{found.name}: A {found.lane_map.a_layout}; B {found.lane_map.b_layout}"
    return verdict(found.lane_map.a_layout.startswith("transposed"), value)


def cutlass_width(evidence: Evidence) -> Finding:
    found = evidence.cutlass
    names = Counter(access.text.split()[0] for access in found.shared if access.kind == "load")
    return verdict(set(names) == {"LDS.128"}, f"{found.name}: {dict(names)}")


def cutlass_split(evidence: Evidence) -> Finding:
    found = evidence.cutlass
    if found.lane_map is None:
        raise Unavailable(f"{found.name}: its lane map could not be executed")
    rows, columns = (found.lane_map.groups(0, axis) for axis in (0, 1))
    spans = [" + ".join(f"{first}..{first + length - 1}" for first, length in runs) for runs in (rows, columns)]
    good = all(len(runs) >= 2 and all(length == 4 for _, length in runs) for runs in (rows, columns))
    gap = rows[1][0] - rows[0][0] if len(rows) > 1 else 0
    lanes_m = len({runs[0][0] for runs in (found.lane_map.groups(lane, 0) for lane in LANES)})
    value = f"{found.name}: lane 0 owns rows {spans[0]} x columns {spans[1]}; the gap of {gap} is {lanes_m} lanes x 4"
    return verdict(good and gap == 4 * lanes_m, value)


def cutlass_conflicts(evidence: Evidence) -> Finding:
    found = evidence.cutlass
    known = [access for access in found.shared if access.kind == "load" and access.known]
    if not known:
        raise Unavailable(f"{found.name}: the addresses of its loads could not be executed")
    extra = max(access.conflicts for access in known)
    return verdict(extra == 0, f"{found.name}: {len(known)} loads, at most {extra:g} extra passes")


def cutlass_header(name: str) -> Path:
    import importlib.util

    spec = importlib.util.find_spec("cutlass_library")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(root).rglob(f"include/cutlass/gemm/{name}"):
            return path
    raise Unavailable("the package nvidia-cutlass, which brings CUTLASS's headers, is not installed")


def cited(name: str, line: int, words: tuple[str, ...]) -> Finding:
    """Whether the words stand on the cited line of a CUTLASS header, or elsewhere in it."""
    lines = cutlass_header(name).read_text(encoding="utf-8", errors="replace").splitlines()
    if line <= len(lines) and all(word in lines[line - 1] for word in words):
        return Finding(HOLDS, f"line {line}: {lines[line - 1].strip()}")
    places = [i + 1 for i, text in enumerate(lines) if all(word in text for word in words)]
    if places:
        near = min(places, key=lambda place: abs(place - line))
        return Finding(CONDITION, f"line {near}: {lines[near - 1].strip()}; not on line {line} in this version")
    return Finding(DIFFERS, f"no line of {name} has {' and '.join(words)}")


def header_layout(_: Evidence) -> Finding:
    return cited("threadblock/default_mma_core_simt.h", 308, ("SmemLayoutA", "ColumnMajor"))


def header_lane_m(_: Evidence) -> Finding:
    return cited("threadblock/default_mma_core_simt.h", 367, ("LaneM",))


def header_split(_: Evidence) -> Finding:
    return cited("warp/mma_simt_tile_iterator.h", 242, ("m * Policy::WarpShape::kRow",))


def header_staging(_: Evidence) -> Finding:
    text = cutlass_header("threadblock/mma_pipelined.h").read_text(encoding="utf-8", errors="replace")
    registers, async_copies = text.count("FragmentA tb_frag_A"), text.count("cp_async")
    value = f"{registers} register fragments of the global tile are declared, cp_async occurs {async_copies} times"
    return verdict(registers > 0 and async_copies == 0, value)


def header_outer_product(_: Evidence) -> Finding:
    text = cutlass_header("thread/mma_sm50.h").read_text(encoding="utf-8", errors="replace")
    loops = [text.find(f"for (int {axis} = 0; {axis} < Shape::k{axis.upper()}") for axis in ("k", "n", "m")]
    nested = all(place >= 0 for place in loops) and loops[0] < min(loops[1:])
    return verdict(nested, "k is the outer loop, m and n the inner ones" if nested else f"loops found at {loops}")


BUILT, EXECUTED, MODEL = "cubin built here", "address arithmetic of the cubin, executed for one block", "bank model"
HEADER = "text of the header in nvidia-cutlass"

CLAIMS = (
    Claim(
        "naive-intensity",
        "chapter 11.1",
        "The naive kernel has 0.25 FLOP per byte by its loads",
        EXECUTED,
        naive_intensity,
    ),
    Claim("static-smem", "chapter 11.2", "The kernel holds 16 KB of shared memory", BUILT, static_shared_memory),
    Claim(
        "blocks-smem-13",
        "chapter 11.2",
        "Shared memory alone would hold 13 blocks an SM (228 / 17)",
        "allocation rules, cubin",
        blocks_by_shared_memory,
    ),
    Claim(
        "blocks-threads-8",
        "chapter 11.2",
        "Threads alone would allow 8 blocks an SM",
        "allocation rules, cubin",
        blocks_by_threads,
    ),
    Claim("registers-96", "chapter 11.2", "nvcc gives the plain kernel 96 registers on sm_90a", BUILT, plain_registers),
    Claim(
        "registers-24576", "chapter 11.2", "A block takes 24576 registers", "allocation rules, cubin", block_registers
    ),
    Claim(
        "blocks-registers-2",
        "chapter 11.2",
        "Registers allow only 2 blocks an SM",
        "allocation rules, cubin",
        blocks_by_registers,
    ),
    Claim(
        "copies-8",
        "chapter 11.2.1",
        "Each thread loads 8 elements of each operand per k tile",
        EXECUTED,
        copies_per_thread,
    ),
    Claim("lane-map", "chapter 11.2.2", "A warp owns 64 x 32 elements, a lane 64 of them", EXECUTED, lane_map_matches),
    Claim(
        "thread-intensity-2",
        "chapter 11.2.2",
        "A thread does 128 FLOP for 64 bytes of shared loads per k step: 2",
        EXECUTED,
        thread_intensity,
    ),
    Claim(
        "block-intensity-executed",
        "chapter 11.8",
        "A block reaches 32 FLOP per byte of its global loads",
        EXECUTED,
        block_intensity,
    ),
    Claim(
        "work-unchanged", "explained 1", "Tiling does not change the number of multiply-adds", EXECUTED, work_unchanged
    ),
    Claim(
        "ragged-extents",
        "chapter 11.3",
        "Zero-filled loads and guarded stores make extents free that no tile divides",
        "plain kernel run on the PTX machine, integers, bit by bit",
        ragged,
    ),
    Claim(
        "ldgsts-bypass-128",
        "chapter 11.4",
        "16-byte cp.async becomes LDGSTS.E.BYPASS.128 on sm_80 and sm_90a",
        BUILT,
        async_copies,
    ),
    Claim("ldgdepbar", "chapter 11.4", "The commit becomes LDGDEPBAR on both", BUILT, async_commit),
    Claim("depbar-le-sb0", "chapter 11.4", "wait_all becomes DEPBAR.LE SB0 on both", BUILT, async_wait),
    Claim(
        "no-registers-between",
        "chapter 11.4",
        "cp.async needs no registers between global and shared memory, the older double buffer does",
        EXECUTED,
        no_registers_between,
    ),
    Claim("cg-16-bytes", "chapter 11.4", ".cg copies must be 16 bytes", "ptxas on single instructions", cg_is_16_bytes),
    Claim(
        "cg-bypass",
        "chapter 11.4",
        ".cg bypasses L1, which shows as BYPASS",
        "ptxas on single instructions",
        cg_bypasses,
    ),
    Claim(
        "cutlass-register-staging",
        "chapter 11.4",
        "CUTLASS's mma_pipelined.h stages through registers",
        HEADER,
        header_staging,
    ),
    Claim(
        "eight-addresses",
        "chapter 11.5",
        "A warp's load of A touches 8 addresses, 128 floats apart, in one bank",
        "formula",
        conflict_addresses,
    ),
    Claim("broadcast", "chapter 11.5", "Lanes that read the same word do not conflict", MODEL, broadcast),
    Claim(
        "conflict-8-way",
        "chapter 11.5",
        "Loads of A conflict 8-way",
        f"{MODEL} on addresses executed from the cubin",
        conflict_plain,
    ),
    Claim(
        "padding-2-way",
        "chapter 11.5.1",
        "+1 padding leaves a 2-way conflict",
        f"{MODEL} on addresses executed from the cubin",
        conflict_padded,
    ),
    Claim("padding-cost", "chapter 11.5.1", "Padding costs 1/16 of A's shared memory", BUILT, padding_cost),
    Claim("padding-floor", "chapter 11.5.1", "No row padding does better than 2-way at TM = 8", MODEL, padding_floor),
    Claim(
        "swizzle-0",
        "chapter 11.5.2",
        "XOR with row bits 3 to 5 removes the conflict",
        f"{MODEL} on addresses executed from the cubin",
        conflict_swizzled,
    ),
    Claim("swizzle-bits", "chapter 11.5.2", "XOR with row bits 0 to 2 does not help", MODEL, swizzle_bits),
    Claim(
        "swizzle-range",
        "chapter 11.5.2",
        "The XOR stays within columns 0 to 15",
        "all 128 x 16 places",
        swizzle_in_range,
    ),
    Claim("swizzle-free", "chapter 11.5.2", "The swizzle costs no shared memory", BUILT, swizzle_is_free),
    Claim(
        "transposed-contiguous",
        "chapter 11.5.2",
        "Transposing A without splitting TM leaves a 2-way conflict",
        f"{MODEL} on addresses executed from the cubin",
        transposed_contiguous_model,
    ),
    Claim(
        "transposed-split",
        "chapter 11.5.2",
        "Transposing A and splitting TM into 4 + 4 removes all conflicts",
        f"{MODEL} on addresses executed from the cubin",
        split_contiguous_chunks,
    ),
    Claim("cutlass-transposed", "chapter 11.5.2", "CUTLASS's SIMT GEMM stores A transposed", EXECUTED, cutlass_layout),
    Claim("cutlass-lds-128", "chapter 11.5.2", "It reads fragments with LDS.128", BUILT, cutlass_width),
    Claim(
        "cutlass-split",
        "chapter 11.5.2",
        "It splits TM = 8 into 4 + 4, the warp's extent apart",
        EXECUTED,
        cutlass_split,
    ),
    Claim(
        "cutlass-conflicts",
        "chapter 11.5.2",
        "Its fragment loads are free of conflicts",
        f"{MODEL} on addresses executed from the cubin",
        cutlass_conflicts,
    ),
    Claim(
        "cutlass-308",
        "chapter 11.5.2",
        "default_mma_core_simt.h:308 makes SmemLayoutA column-major",
        HEADER,
        header_layout,
    ),
    Claim("cutlass-367", "chapter 11.5.2", "default_mma_core_simt.h:367 sets LaneM", HEADER, header_lane_m),
    Claim(
        "cutlass-242",
        "chapter 11.5.2",
        "mma_simt_tile_iterator.h:242 steps by m * Policy::WarpShape::kRow",
        HEADER,
        header_split,
    ),
    Claim(
        "cutlass-outer-product", "chapter 11.6", "mma_sm50.h accumulates outer products", HEADER, header_outer_product
    ),
    Claim("loop-mix", "chapter 11.6", "A k step is 8 LDS + 2 LDS.128 + 64 FFMA", BUILT, loop_mix),
    Claim(
        "loads-40-to-16",
        "chapter 11.6",
        "Reading four k steps ahead turns 40 shared loads into 16 LDS.128",
        BUILT,
        loop_mix_ahead,
    ),
    Claim("registers-128", "chapter 11.6", "It raises registers from 96 to 128", BUILT, registers_ahead),
    Claim("blocks-still-2", "chapter 11.6", "Still 2 blocks are resident", "allocation rules, cubin", blocks_ahead),
    Claim("same-bytes", "chapter 11.6", "The bytes read stay the same", EXECUTED, same_bytes),
    Claim(
        "merged-along-k",
        "chapter 11.6",
        "One LDS.128 brings four neighbours along k of one row of A",
        EXECUTED,
        merged_along_k,
    ),
    Claim(
        "quarter-loads-executed",
        "chapter 11.7",
        "v1's 4x4 thread tile issues a quarter of the loads",
        EXECUTED,
        quarter_executed,
    ),
    Claim("spilling", "explained 8.2", "With too few registers, state spills to local memory", BUILT, spilling),
)
