"""What can be said about a kernel without running it: resources, occupancy, main loop, banks, intensity, lane map.

Everything starts from the cubin, so it holds for every family and for a user's own file. The address
arithmetic of one thread block is executed (:mod:`kernel.lanes`) on a problem of one block tile, which
gives counts per k step whatever the unrolling, and the addresses behind the bank model.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel import banks, build, disassemble, lanes, mapping, occupancy, sass
from kernel.contract import Argument, Artifact, Kernel, Launch, Pointers, Problem, Resources, Tile, Unit, ceil_div
from kernel.errors import BuildError, CatalogError, GemmTracksError, UsageError
from kernel.intensity import Intensity, Roof, of_tile
from kernel.plan import arguments, plan
from kernel.toolchain import find

ADDRESSES = Pointers(a=1 << 40, b=2 << 40, c=3 << 40, workspace=4 << 40)
"""Where the operands of the executed problem are said to lie: far apart, aligned to anything."""

TILES_EXECUTED = 4
"""k tiles of the executed problem beyond the stages that a pipeline fills first."""

ELF = b"\x7fELF"
"""What a cubin begins with."""

ISSUE_PER_CYCLE = 4
"""Warp instructions an SM issues per cycle, and warp-wide FFMAs it can finish (sm_86 and later; sm_80 does half)."""
FFMA_PER_CYCLE = {80: 2, 86: 4, 89: 4, 90: 4, 100: 4, 120: 4}
TENSOR_MACS_PER_CYCLE = {80: 1024, 90: 2048}
"""Dense FP16 multiply-adds an SM's Tensor Cores finish per cycle, where the published peak tells it."""


@dataclass(frozen=True, kw_only=True)
class SharedAccess:
    """One shared-memory instruction of the k loop, and what the bank model makes of its addresses."""

    address: int
    text: str
    kind: str
    """load, store, copy (cp.async) or matrix (LDSM)."""
    width: int
    """Bytes per lane."""
    passes: float
    """Mean over the warps and iterations that were seen, per execution."""
    ideal: float
    degree: int
    """Worst conflict: 8 is 8-way."""
    per_k_step: float
    """Executions per warp and k step."""
    known: bool
    """False where an address depends on memory contents, so that nothing is predicted."""

    @property
    def conflicts(self) -> float:
        """Extra passes per execution."""
        return self.passes - self.ideal


@dataclass(frozen=True, kw_only=True)
class ProductLoop:
    """One of a kernel's loops with products."""

    header: int
    """Address of its first instruction."""
    instructions: int
    macs_written: int
    """Multiply-adds in one pass of a warp (warpgroup for wgmma)."""
    macs_run: float
    """Multiply-adds of all warps of the executed block, 0 where it did not come here."""


@dataclass(frozen=True, kw_only=True)
class MainLoop:
    """The k loop, counted per thread (per warp for matrix instructions) and per k step.

    Of several loops with products it is the one that did the most of the executed block, which is whole where the
    problem is :func:`problem_for`'s. Where a branch depends on what is not computed, what ran may be a guess, and the
    choice is by what is written: :attr:`kernel.sass.Listing.product_loops`.
    """

    header: int
    """Address of the loop's first instruction."""
    inner_header: int
    """Address of the first instruction of the product loop in it (the same where that is not nested)."""
    product_loops: tuple[ProductLoop, ...]
    """All loops with products, the one that all counts here are of first."""
    chosen: str
    """How it was told from the others: executed, or written."""
    k_steps: float
    """k steps in one pass of the inner loop."""
    counted: str
    """executed, or written where the loop could not be executed and each instruction counts once."""
    macs_per_k_step: float
    """Multiply-adds of one warp (warpgroup for wgmma) in a k step."""
    per_k_step: dict[str, float]
    """Instructions by class, per warp and k step."""
    by_name: dict[str, float]
    """Instructions by full name, per warp and k step."""
    math_share: float
    """Issue slots of the loop that are math, 0 to 1."""
    bound_issue: float | None
    """Largest fraction of the track's peak that the issue slots leave, None where the rate is not known."""
    bound_shared: float | None
    """The same for passes through shared memory (loads, stores and copies), None where they are not all known."""
    reads_per_ffma: float
    """Register reads per FFMA, operand reuse taken off; 0 for other instructions."""
    operand_reads: sass.OperandReads
    """The FFMAs' reads with reuse kept by source slot and register bank, and the cycles they take by that model."""
    accumulators: int
    """Accumulator chains found in the inner loop, per thread; 0 where the math is not FFMA."""
    fma_found: float | None
    """Multiply-adds per thread and block tile of k (BLOCK_K), by what executed; None where that is not certain."""
    fma_expected: float
    """What the tile needs: BLOCK_M * BLOCK_N * BLOCK_K over the threads; 0 where the tile is unknown."""
    warning: str = ""
    """What does not add up, empty where everything does."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Everything about one build of one kernel."""

    name: str
    family: str
    track: str
    instruction: str
    arch: str
    variant: str
    entry: str
    unit: str
    tile: dict[str, int]
    compiler: str
    source: str
    """Path of the source text."""
    cubin: str
    resources: Resources
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_smem: int
    occupancy: occupancy.Occupancy
    loop: MainLoop | None
    shared: tuple[SharedAccess, ...]
    intensity: tuple[Intensity, ...]
    roof: Roof | None
    lane_map: mapping.LaneMap | None
    problem: str
    """The problem whose one block was executed."""
    notes: tuple[str, ...]
    opcodes: dict[str, int]
    """Every instruction of the function by full name, as written."""

    @property
    def static_smem(self) -> int:
        """Bytes."""
        return self.resources.static_smem

    @property
    def threads(self) -> int:
        """Threads per block."""
        return math.prod(self.block)

    @property
    def attainable_tflops(self) -> float | None:
        """What the roofline allows at the block's intensity, TFLOP/s; None without a device or an intensity."""
        levels = [found for found in self.intensity if found.level == "global"]
        return self.roof.attainable(levels[0].value) if self.roof and levels else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: every field, plus the derived numbers that people compare."""
        record = dataclasses.asdict(self)
        record["threads"] = self.threads
        record["occupancy"]["percent"] = self.occupancy.percent
        record["attainable_tflops"] = self.attainable_tflops
        record["intensity"] = [dataclasses.asdict(i) | {"value": i.value} for i in self.intensity]
        record["shared"] = [dataclasses.asdict(s) | {"conflicts": s.conflicts} for s in self.shared]
        if self.roof:
            record["roof"] = dataclasses.asdict(self.roof) | {"crossover": self.roof.crossover}
        return record


def problem_for(kernel: Kernel) -> Problem:
    """A problem of one block tile, with enough k tiles that a pipeline reaches its steady state."""
    tile = kernel.tile
    block_k = tile.BLOCK_K or 16
    return Problem(
        m=tile.BLOCK_M or 128,
        n=tile.BLOCK_N or 128,
        k=block_k * (tile.NUM_STAGES + TILES_EXECUTED),
        dtype_in=kernel.dtype_in,
        dtype_acc=kernel.dtype_acc,
        dtype_out=kernel.dtype_out,
        layout=kernel.layouts[0],
    )


def inspect_kernel(kernel: Kernel, problem: Problem | None = None, *, roof: Roof | None = None) -> Inspection:
    """Inspect the build of ``kernel`` that runs ``problem`` (by default one block tile).

    Raises:
        RejectedError: the kernel cannot run the problem.
        BuildError, MissingToolError: there is no artifact and none can be made, or no disassembler.
    """
    problem = problem or problem_for(kernel)
    planned = plan(kernel, problem)
    position = planned.main
    if position is None:
        raise UsageError(f"{problem} launches nothing, so there is nothing to inspect; give m, n and k of at least 1")
    notes: list[str] = []
    runner = kernel if problem.is_scale_only else kernel.runner(problem)
    if runner is not kernel:
        notes.append(f"{runner.name} runs it ({kernel.why(problem)})")
    launch = planned.launches[position]
    built = build.artifact(launch.unit)
    listing = sass.parse(disassemble.sass(built.cubin, launch.entry))
    if len(planned.launches) > 1:
        others = ", ".join(one.entry for i, one in enumerate(planned.launches) if i != position)
        notes.append(f"the problem takes {len(planned.launches)} launches; the others are {others}")
    packed: tuple[Argument, ...] = ()
    try:
        packed = arguments(kernel, problem, ADDRESSES)[position]
    except GemmTracksError as error:
        notes.append(f"parameters are unknown ({error}); branches on them are taken towards the main loop")
    return _inspection(
        listing=listing,
        built=built,
        launch=launch,
        packed=packed,
        problem=problem,
        tile=runner.tile,
        identity={
            "name": kernel.name,
            "family": kernel.family,
            "track": kernel.track,
            "instruction": runner.instruction,
            "variant": planned.variant,
        },
        roof=roof,
        notes=notes,
    )


def _inspection(
    *,
    listing: sass.Listing,
    built: Artifact,
    launch: Launch,
    packed: Sequence[Argument],
    problem: Problem | None,
    tile: Tile,
    identity: dict[str, str],
    roof: Roof | None,
    notes: list[str],
) -> Inspection:
    resources = built.resources[launch.entry]
    alignments = lanes.parameter_alignments(built.ptx.read_text(encoding="utf-8"), launch.entry) if packed else ()
    bank = lanes.constant_bank(built.arch, launch.block, launch.grid, packed, alignments)
    run = lanes.Block(listing, built.arch, launch.block, bank).execute()
    if not run.finished:
        notes.append("the block was not executed to its end; counts cover what ran")
    if packed and run.guessed:
        notes.append(f"{len(run.guessed)} branches depend on what is not computed and were taken towards the main loop")
    if run.unsupported:
        notes.append(f"taken as unknown: {', '.join(f'{name} ({count})' for name, count in run.unsupported.items())}")
    products = _product_loops(listing, run)
    loop = _main_loop(listing, products, run, launch, tile, problem, built.arch)
    if loop is None:
        notes.append("no loop with FFMA, HMMA or HGMMA was found")
    shared = _shared_accesses(listing, run, loop)
    if loop is not None:
        loop = dataclasses.replace(loop, bound_shared=_bound_shared(loop, shared, built.arch))
    lane_map = None
    if problem is not None and identity["instruction"] == "ffma" and packed:
        addresses = (ADDRESSES.a, ADDRESSES.b)
        lane_map = mapping.from_run(identity["name"], run, problem, addresses, tile.BLOCK_K or problem.k)
    elif identity["instruction"] in ("mma_sync", "wgmma"):
        lane_map = mapping.of_instruction(identity["name"], identity["instruction"])
    return Inspection(
        **identity,
        arch=built.arch,
        entry=launch.entry,
        unit=built.unit,
        tile=dict(tile.items()),
        compiler=built.compiler,
        source=str(built.source),
        cubin=str(built.cubin),
        resources=resources,
        grid=launch.grid,
        block=launch.block,
        dynamic_smem=launch.dynamic_smem,
        occupancy=occupancy.occupancy_of(
            built.arch, resources, threads=launch.threads, dynamic_smem=launch.dynamic_smem
        ),
        loop=loop,
        shared=shared,
        intensity=_intensities(listing, run, loop, shared, tile, problem),
        roof=roof,
        lane_map=lane_map,
        problem=str(problem) if problem is not None else "",
        notes=tuple(notes),
        opcodes=dict(listing.counts().most_common()),
    )


def _is_certain(run: lanes.Run) -> bool:
    """Whether what ran is what runs: to its end, and by branches that were all computed."""
    return run.finished and not run.guessed


def _product_loops(listing: sass.Listing, run: lanes.Run) -> tuple[ProductLoop, ...]:
    """The loops with products, the main one first: see :class:`MainLoop`."""
    found = [
        ProductLoop(
            header=loop.header,
            instructions=len(loop.addresses),
            macs_written=sum(i.macs for i in listing.within(loop)),
            macs_run=sum(_macs(i) * run.executed[i.address] for i in listing.within(loop)),
        )
        for loop in listing.product_loops
    ]
    if _is_certain(run):
        found.sort(key=lambda loop: -loop.macs_run)
    return tuple(found)


def _main_loop(
    listing: sass.Listing,
    products: tuple[ProductLoop, ...],
    run: lanes.Run,
    launch: Launch,
    tile: Tile,
    problem: Problem | None,
    arch: str,
) -> MainLoop | None:
    if not products:
        return None
    inner = listing.loop_at(products[0].header)
    around = listing.k_loop(inner)
    body = listing.within(inner)
    chains = sass.accumulators(body)
    ran = any(run.executed[i.address] for i in body if i.kind in sass.MATH)
    weights: Counter[str] = Counter()
    names: Counter[str] = Counter()
    chosen = listing.within(around if ran else inner)
    for instruction in chosen:
        weight = run.executed[instruction.address] if ran else 1
        weights[instruction.kind] += weight
        names[instruction.name] += weight
    math_names = [i for i in body if i.kind in sass.MATH]
    macs_written = sum(i.macs for i in math_names)
    macs_loop = sum(i.macs * (run.executed[i.address] if ran else 1) for i in chosen if i.kind in sass.MATH)
    group = 4 if any(i.kind == "HGMMA" for i in math_names) else 1
    per_step = _macs_per_k_step(tile, chains, group, math_names)
    steps_inner = macs_written / per_step if per_step else 0.0
    # k steps that ran, counted once for each warp (the four warps of a warpgroup take each one together).
    steps = macs_loop / per_step if per_step else 0.0
    total = sum(weights.values())
    math_count = sum(weights[kind] for kind in sass.MATH)
    by_class = {name: round(count / steps, 4) for name, count in weights.most_common() if steps and count}
    found, expected, warning = _fma_balance(run, listing, inner, launch, tile, problem, chains, ran)
    return MainLoop(
        header=around.header,
        inner_header=inner.header,
        product_loops=products,
        chosen="executed" if _is_certain(run) else "written",
        k_steps=steps_inner,
        counted="executed" if ran else "written",
        macs_per_k_step=per_step,
        per_k_step=by_class,
        by_name={name: round(count / steps, 4) for name, count in names.most_common() if steps and count},
        math_share=math_count / total if total else 0.0,
        bound_issue=_bound_issue(weights, chosen, run, ran, arch),
        bound_shared=None,
        reads_per_ffma=sass.register_reads_per_ffma(body),
        operand_reads=sass.operand_reads(body),
        accumulators=chains,
        fma_found=found,
        fma_expected=expected,
        warning=warning,
    )


def _macs_per_k_step(tile: Tile, chains: int, group: int, math_instructions: Sequence[sass.Instruction]) -> float:
    """Multiply-adds that one warp (or warpgroup) does for one k step."""
    if math_instructions and math_instructions[0].kind == "FFMA":
        return 32.0 * (tile.THREAD_M * tile.THREAD_N or chains)
    if tile.WARP_M and tile.WARP_N and group == 1:
        return float(tile.WARP_M * tile.WARP_N)
    if group == 4 and math_instructions:
        # One k step of a warpgroup is every accumulator it holds: distinct destinations times their extent.
        extents = {}
        for instruction in math_instructions:
            shape = next((m for m in instruction.modifiers if "x" in m), "")
            numbers = [int(number) for number in shape.split("x")]
            if len(numbers) == 3:
                extents[instruction.operands[0]] = numbers[0] * numbers[1]
        return float(sum(extents.values()))
    return float(sass.accumulators(math_instructions, "HMMA") * 16 * 8)


def _fma_balance(
    run: lanes.Run,
    listing: sass.Listing,
    inner: sass.Loop,
    launch: Launch,
    tile: Tile,
    problem: Problem | None,
    chains: int,
    ran: bool,
) -> tuple[float | None, float, str]:
    """(found, expected, warning): multiply-adds per thread and k tile against what the tile needs."""
    if not (tile.BLOCK_M and tile.BLOCK_N and tile.BLOCK_K):
        return None, 0.0, ""
    expected = tile.BLOCK_M * tile.BLOCK_N * tile.BLOCK_K / launch.threads
    warnings = []
    needed = tile.THREAD_M * tile.THREAD_N
    is_ffma = any(i.kind == "FFMA" for i in listing.within(inner))
    if is_ffma and needed and chains < needed:
        warnings.append(f"{chains} accumulators per thread, {needed} expected")
    guessed = bool(run.guessed & listing.k_loop(inner).addresses)
    if not (ran and run.finished and problem is not None) or guessed:
        if not warnings:
            return None, expected, ""
        found = expected * chains / needed
        warnings.append(f"FMA count {found:g} per thread and k tile, expected {expected:g}")
        return found, expected, "; ".join(warnings)
    if is_ffma:
        done = float(run.traced_fmas)
        if done < expected * launch.threads * problem.k / tile.BLOCK_K:
            # Where a loaded value came from is not always followed to its FMA; what executed counts then.
            done = float(run.lane_fmas)
    else:
        done = sum(_macs(i) * run.executed[i.address] for i in listing.instructions if i.kind in sass.MATH)
    found = done / launch.threads / (problem.k / tile.BLOCK_K)
    if found < expected * 0.999:
        tiles = ceil_div(problem.m, tile.BLOCK_M) * ceil_div(problem.n, tile.BLOCK_N)
        if launch.blocks > tiles and not warnings:
            # Blocks share tiles along k (stream-K, split-K): one block need not do all of one.
            return None, expected, ""
        warnings.append(f"FMA count {found:g} per thread and k tile, expected {expected:g}")
    return found, expected, "; ".join(warnings)


def _macs(instruction: sass.Instruction) -> float:
    """Multiply-adds per warp that executes it; the four warps of a warpgroup share an HGMMA."""
    return instruction.macs / (4 if instruction.kind == "HGMMA" else 1)


def _number(arch: str) -> int:
    match = re.match(r"sm_(\d+)", arch)
    return int(match[1]) if match else 0


def _bound_issue(
    weights: Counter[str], chosen: Sequence[sass.Instruction], run: lanes.Run, ran: bool, arch: str
) -> float | None:
    """Cycles the math needs over cycles the loop needs to issue, per SM, at most 1."""
    total = sum(weights.values())
    number = _number(arch)
    if weights["FFMA"]:
        rate = FFMA_PER_CYCLE.get(number)
        math_cycles = weights["FFMA"] / rate if rate else None
    else:
        rate = TENSOR_MACS_PER_CYCLE.get(number)
        macs = sum(_macs(i) * (run.executed[i.address] if ran else 1) for i in chosen if i.kind in sass.MATH)
        math_cycles = macs / rate if rate else None
    if math_cycles is None:
        return None
    return min(1.0, math_cycles / max(total / ISSUE_PER_CYCLE, math_cycles))


def _bound_shared(loop: MainLoop, shared: Sequence[SharedAccess], arch: str) -> float | None:
    """Cycles the FFMAs need over cycles the shared-memory passes need, per SM, at most 1."""
    rate = FFMA_PER_CYCLE.get(_number(arch))
    ffmas = loop.per_k_step.get("FFMA", 0.0)
    used = [access for access in shared if access.per_k_step]
    if not rate or not ffmas or not all(access.known for access in used):
        return None
    passes = sum(access.passes * access.per_k_step for access in used)
    return min(1.0, ffmas / rate / passes) if passes else 1.0


EXECUTIONS_COUNTED = 8
"""Executions of one instruction whose addresses go through the bank model; later ones repeat them by stage."""
KINDS = {"LDS": "load", "STS": "store", "LDGSTS": "copy", "LDSM": "matrix"}


def _shared_accesses(listing: sass.Listing, run: lanes.Run, loop: MainLoop | None) -> tuple[SharedAccess, ...]:
    if loop is None:
        return ()
    around = listing.loop_at(loop.header)
    steps = _steps_run(listing, run, loop)
    found = []
    for instruction in listing.within(around):
        if instruction.kind not in KINDS or (loop.counted == "executed" and not run.executed[instruction.address]):
            continue
        executions = run.accesses.get(instruction.address, [])[:EXECUTIONS_COUNTED]
        counts: list[banks.Passes] = []
        for access in executions:
            for first in range(0, len(access.addresses), 32):
                if not access.active[first : first + 32].any():
                    continue
                counts.append(banks.passes(_lane_addresses(access, first), instruction.width))
        seen = bool(counts)
        found.append(
            SharedAccess(
                address=instruction.address,
                text=instruction.text,
                kind=KINDS[instruction.kind],
                width=instruction.width,
                passes=sum(c.passes for c in counts) / len(counts) if seen else 0.0,
                ideal=sum(c.ideal for c in counts) / len(counts) if seen else 0.0,
                degree=max((c.degree for c in counts), default=0),
                per_k_step=round(run.executed[instruction.address] / steps, 4) if steps else 0.0,
                known=seen and all(access.complete for access in executions),
            )
        )
    return tuple(found)


def _lane_addresses(access: lanes.Access, first: int) -> list[int | None]:
    """Addresses of one warp as the bank model takes them; LDSM reads one row per lane that gives an address."""
    on = access.active[first : first + 32]
    addresses: list[int | None] = [
        int(address) if active else None
        for address, active in zip(access.addresses[first : first + 32], on, strict=True)
    ]
    if access.instruction.opcode == "LDSM":
        matrices = next((int(m) for m in access.instruction.modifiers if m in ("1", "2", "4")), 1)
        addresses[8 * matrices :] = [None] * (32 - 8 * matrices)
    return addresses


def _steps_run(listing: sass.Listing, run: lanes.Run, loop: MainLoop) -> float:
    executed = sum(run.executed[i.address] for i in listing.within(listing.loop_at(loop.header)))
    per_step = sum(loop.per_k_step.values())
    return executed / per_step if per_step else 0.0


def _bytes_loaded(run: lanes.Run, instruction: sass.Instruction) -> float:
    """Bytes that a global load or copy brought to the block; a copy that was told to read nothing brings none."""
    executions = run.accesses.get(instruction.address, [])
    if not executions:
        return 0.0
    threads = 0
    for access in executions:
        reading = access.active
        if access.origins is not None and run.sources_known:
            reading = access.active & (access.origins[0] != lanes.NO_ORIGIN)
        threads += int(reading.sum())
    warps = sum(int(access.active.reshape(-1, 32).any(axis=1).sum()) for access in executions)
    return instruction.width * threads / max(warps, 1) * run.executed[instruction.address]


def _intensities(
    listing: sass.Listing,
    run: lanes.Run,
    loop: MainLoop | None,
    shared: Sequence[SharedAccess],
    tile: Tile,
    problem: Problem | None,
) -> tuple[Intensity, ...]:
    """By execution where the block ran, by formula where the tile is known and loads were not seen."""
    found: list[Intensity] = []
    if loop is not None and loop.counted == "executed":
        per_step = loop.macs_per_k_step
        # Over the whole block, since a pipeline's first tiles are loaded ahead of the loop.
        loaded = sum(_bytes_loaded(run, i) for i in listing.instructions if i.kind in ("LDG", "LDGSTS"))
        macs = float(run.traced_fmas) or sum(_macs(i) * run.executed[i.address] for i in listing.instructions)
        by_tma = any(i.kind == "TMA" for i in listing.instructions)
        if loaded and macs and run.finished and not by_tma:
            found.append(Intensity("global", 2.0 * macs, loaded, "global loads of one block, executed"))
        lanes_reading = 128 if any(i.kind == "HGMMA" for i in listing.instructions) else 32
        reads = lanes_reading * sum(
            access.width * access.per_k_step for access in shared if access.kind in ("load", "matrix")
        )
        if reads and per_step:
            found.append(Intensity("shared", 2.0 * per_step, reads, "shared loads of the k loop, executed"))
    levels = {entry.level for entry in found}
    if problem is not None:
        found += [entry for entry in of_tile(tile, problem.dtype_in) if entry.level not in levels]
    return tuple(sorted(found, key=lambda entry: entry.level))


# --- files -----------------------------------------------------------------------------------------


def inspect_file(
    path: Path,
    *,
    entry: str | None = None,
    arch: str = "sm_90a",
    block: tuple[int, int, int] | None = None,
    roof: Roof | None = None,
) -> Inspection:
    """Inspect a user's ``.cubin``, ``.ptx`` (assembled first) or ``.cu`` (built first).

    Args:
        path: the file.
        entry: which entry, needed where the file has several.
        arch: what a .ptx or .cu is built for.
        block: threads per block as (x, y, z); by default the bound the kernel was compiled with, else 256.
        roof: device limits for the roofline, or None.

    Raises:
        UsageError: no such file, a suffix that is none of the three or not what the file is, or several entries and
            none named.
        CatalogError: no such entry.
        BuildError, MissingToolError: a compiler refused it, or a tool is missing.
    """
    if not path.is_file():
        raise UsageError(f"{path} is not a file; a .cubin, .ptx or .cu is needed")
    suffix = path.suffix.lower()
    if suffix not in (".cubin", ".ptx", ".cu"):
        raise UsageError(f"{path.name} ends in {suffix or 'nothing'}; a .cubin, .ptx or .cu is needed")
    _refuse_another_kind(path, suffix)
    if suffix == ".cu":
        stem = re.sub(r"\W", "_", path.stem)
        unit = Unit(name=f"file.{stem}", arch=arch, source=path.absolute(), allow_spills=True)
        made = build.artifact(unit)
        return _of_cubin(made.cubin, path, entry, block, roof, made.compiler)
    with tempfile.TemporaryDirectory(prefix="gemm-tracks-inspect-") as scratch:
        if suffix == ".ptx":
            cubin = Path(scratch) / f"{path.stem}.cubin"
            disassemble.assemble(path, arch, cubin)
            compiler = str(find("ptxas"))
        else:
            cubin = Path(shutil.copyfile(path, Path(scratch) / path.name))
            compiler = "not stated in the file"
        try:
            return _of_cubin(cubin, path, entry, block, roof, compiler)
        except BuildError as error:  # of the user's file, not of the copy that a tool was given
            raise UsageError(str(error).replace(str(cubin), str(path))) from None


def _refuse_another_kind(path: Path, suffix: str) -> None:
    """Raise UsageError for a file that is not what its suffix says."""
    if suffix == ".cubin":
        with path.open("rb") as stream:
            if stream.read(len(ELF)) != ELF:
                raise UsageError(f"{path} is no cubin: it does not begin as an ELF file does")
        return
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        what = "PTX" if suffix == ".ptx" else "CUDA source"
        raise UsageError(f"{path} is no {what}: it is not UTF-8 text (byte {error.start})") from None


def _of_cubin(
    cubin: Path, given: Path, entry: str | None, block: tuple[int, int, int] | None, roof: Roof | None, compiler: str
) -> Inspection:
    present = disassemble.entries(cubin)
    if not present:
        raise UsageError(f"{given.name} has no kernel: neither a __global__ function nor an .entry")
    if entry is None:
        if len(present) != 1:
            raise UsageError(f"{given.name} has the entries {', '.join(present)}; name one of them")
        entry = present[0]
    whole = disassemble.sass(cubin)
    target = re.search(r"\.target\s+(sm_\w+)", whole)
    arch = target[1] if target else "sm_90a"
    listing = sass.parse(disassemble.sass(cubin, entry))
    resources = cubin_resources(cubin, entry, arch)
    notes = []
    if block is None:
        block = (resources.max_threads, 1, 1) if resources.max_threads else (256, 1, 1)
        bound = "the bound it was compiled with" if resources.max_threads else "assumed, as the file states no bound"
        notes.append(f"{block[0]} threads a block: {bound}")
    notes.append("parameters are unknown; branches on them are taken towards the main loop")
    known = {entry: resources}
    built = Artifact(unit=given.name, key="", arch=arch, compiler=compiler, folder=cubin.parent, resources=known)
    launch = Launch(unit=Unit(name=given.name, arch=arch, source=given), entry=entry, grid=(1, 1, 1), block=block)
    instruction = {"FFMA": "ffma", "HMMA": "mma_sync", "HGMMA": "wgmma"}
    inner = listing.inner_loop
    kinds = Counter(i.kind for i in listing.within(inner) if i.kind in sass.MATH) if inner else Counter()
    found = _inspection(
        listing=listing,
        built=built,
        launch=launch,
        packed=(),
        problem=None,
        tile=Tile(),
        identity={
            "name": entry,
            "family": "file",
            "track": "",
            "instruction": instruction[kinds.most_common(1)[0][0]] if kinds else "",
            "variant": "",
        },
        roof=roof,
        notes=notes,
    )
    return dataclasses.replace(found, source=str(given), cubin=str(given))


def cubin_resources(cubin: Path, entry: str, arch: str) -> Resources:
    """Resources of an entry as the cubin states them.

    cuobjdump counts the 1,024 reserved bytes as shared memory from sm_90 on; they are taken off here.
    Spills are not stated, so local memory beyond the stack stands for them.
    """
    report = subprocess.run(
        [str(find("cuobjdump").path), "-res-usage", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    match = re.search(
        rf"Function {re.escape(entry)}:\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)(?: CONSTANT\[0\]:(\d+))?",
        report,
    )
    if not match:
        raise CatalogError(f"cuobjdump reports no resources for {entry} in {cubin.name}")
    registers, stack, shared, local, constant = (int(number or 0) for number in match.groups())
    reserved = occupancy.RESERVED_SMEM if _number(arch) >= 90 and shared >= occupancy.RESERVED_SMEM else 0
    elf = subprocess.run(
        [str(find("cuobjdump").path), "-elf", str(cubin)], capture_output=True, text=True, check=False
    ).stdout
    threads = _attribute(elf, entry, "MAX_THREADS|REQNTID")
    barriers = _attribute(elf, entry, "NUM_BARRIERS")
    return Resources(
        registers=registers,
        spill_bytes=local,
        static_smem=shared - reserved,
        stack_bytes=stack,
        constant_bytes=constant,
        max_threads=math.prod(threads) if threads else 0,
        barriers=barriers[0] if barriers else 0,
    )


def _section(elf: str, name: str) -> str:
    """The part of a ``cuobjdump -elf`` dump that describes one section."""
    match = re.search(rf"^{re.escape(name)}\b(.*?)(?=^\.\S)", elf + "\n.end\n", re.MULTILINE | re.DOTALL)
    return match[1] if match else ""


def _attribute(elf: str, entry: str, names: str) -> list[int]:
    """Numbers of an attribute of the entry's .nv.info section, empty where it is not stated."""
    found = re.search(
        rf"EIATTR_(?:{names})\b.*?Value:\s*((?:0x[0-9a-f]+\s*)+)", _section(elf, f".nv.info.{entry}"), re.DOTALL
    )
    return [int(number, 0) for number in found[1].split()] if found else []


# --- comparing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """One line of a two-column comparison."""

    what: str
    left: str
    right: str

    @property
    def differs(self) -> bool:
        """Whether the two columns say different things."""
        return self.left != self.right


def side_by_side(left: Inspection, right: Inspection) -> tuple[Difference, ...]:
    """Two inspections line by line, in a fixed order; lines that neither has are left out."""
    first, second = summary(left), summary(right)
    names = list(dict.fromkeys([*first, *second]))
    return tuple(Difference(name, first.get(name, "-"), second.get(name, "-")) for name in names)


def summary(found: Inspection) -> dict[str, str]:
    """An inspection as lines of text, the ones that people compare."""
    resources, fits = found.resources, found.occupancy
    lines = {
        "family": found.family,
        "track": found.track or "-",
        "architecture": found.arch,
        "compiler": found.compiler or "-",
        "entry": found.entry,
        "variant": found.variant or "-",
        "tile": " ".join(f"{name}={value}" for name, value in found.tile.items()) or "-",
        "threads": str(found.threads),
        "registers": str(resources.registers),
        "spilled bytes": str(resources.spill_bytes),
        "static shared memory, bytes": str(resources.static_smem),
        "dynamic shared memory, bytes": str(found.dynamic_smem),
        "barriers": str(resources.barriers),
        "blocks per SM": f"{fits.blocks} (limited by {', '.join(fits.limited_by)})",
        "occupancy": f"{fits.warps} of {fits.max_warps} warps, {fits.percent:.1f} %",
    }
    loop = found.loop
    if loop is not None:
        lines["main loop, instructions"] = str(loop.product_loops[0].instructions)
        if len(loop.product_loops) > 1:
            lines["main loop, instructions"] += f"; {which_loop(loop)}"
        lines |= {f"{name} per k step": f"{count:g}" for name, count in loop.per_k_step.items()}
        lines["math share of issue slots"] = f"{100 * loop.math_share:.1f} %"
        if loop.bound_issue is not None:
            lines["bound by issue slots"] = f"{100 * loop.bound_issue:.0f} % of peak"
        if loop.bound_shared is not None:
            lines["bound by shared memory"] = f"{100 * loop.bound_shared:.0f} % of peak"
        if loop.reads_per_ffma:
            lines["register reads per FFMA"] = f"{loop.reads_per_ffma:.2f}"
            ports = loop.operand_reads
            lines["the same, reuse kept by slot and bank"] = (
                f"{ports.reads_per_ffma:.2f}; {ports.cycles_per_ffma:.3f} cycles an FFMA, "
                f"{ports.clashes} of {ports.ffmas} clash in a bank, {ports.reused} operands marked for reuse"
            )
        if loop.fma_expected:
            counted = "not counted, needed" if loop.fma_found is None else f"{loop.fma_found:g} of"
            lines["multiply-adds per thread and k tile"] = f"{counted} {loop.fma_expected:g}"
        if loop.warning:
            lines["warning"] = loop.warning
    loads = [access for access in found.shared if access.kind in ("load", "matrix")]
    if loads:
        lines["shared loads"] = _grouped(loads)
    stores = [access for access in found.shared if access.kind in ("store", "copy")]
    if stores:
        lines["shared stores and copies"] = _grouped(stores)
    for entry in found.intensity:
        lines[f"intensity, {entry.level}"] = f"{entry.value:.3g} FLOP/byte"
    if found.roof:
        lines["crossover"] = f"{found.roof.crossover:.1f} FLOP/byte on {found.roof.device}"
    if found.lane_map:
        if found.lane_map.a_layout:
            lines["A in shared memory"] = found.lane_map.a_layout
        rows = found.lane_map.groups(0, 0)
        lines["rows of lane 0"] = mapping.spans(rows)
    return lines


def which_loop(loop: MainLoop) -> str:
    """Which of several loops with products is the main one, and by what it was told from the others; else empty."""
    main, *others = loop.product_loops
    if not others:
        return ""
    text = f"of {1 + len(others)} loops with products the one at {main.header:04x}"
    listed = ", ".join(f"{other.header:04x} ({other.instructions} instructions)" for other in others)
    if loop.chosen == "written":
        return f"{text}, which has the most as written; the rest: {listed}"
    share = 100 * main.macs_run / sum(one.macs_run for one in loop.product_loops)
    return f"{text}, which did {share:.3g} % of the executed block's multiply-adds; the rest: {listed}"


def _grouped(accesses: Sequence[SharedAccess]) -> str:
    """Accesses of one instruction name and one conflict degree together."""
    groups: Counter[str] = Counter()
    for access in accesses:
        name = access.text.split()[0] if not access.text.startswith("@") else access.text.split()[1]
        verdict = f"{access.passes:g} passes, ideal {access.ideal:g}" if access.known else "addresses not known"
        groups[f"{name}: {verdict}"] += 1
    return "; ".join(f"{count} x {text}" for text, count in groups.items())
