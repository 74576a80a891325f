"""Runs one launch on the machine: buffers and parameters in, faults and counters out."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernel.contract import MAX_GRID_X, MAX_GRID_YZ, Argument, Launch
from kernel.errors import MachineFault, TimeLimitError, UnsupportedError
from kernel.machine.engine import (
    COUNT,
    FAULT,
    MAP,
    TRACE,
    BufferRecord,
    LaunchRecord,
    ProgramRecord,
    ResultRecord,
    WatchRecord,
    engine,
)
from kernel.machine.faults import describe, unread_copies
from kernel.machine.lower import BF16X2, F16X2, Program, lower, opcodes
from kernel.machine.memory import Buffer, place
from kernel.machine.merge import merged_accesses
from kernel.machine.ptx import Module, parse
from kernel.machine.report import Counters, InstructionCount, Report
from kernel.machine.shape import Checks, Shape

MOST_WGMMA_THREADS = 800
"""Each warpgroup takes one of the engine's 32 places beside its warps: 25 warps and 7."""
MAX_FAULTS = 64
MAP_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "tfloat32": 4}
"""Bytes of an element of each type that a tensor map can have."""
MAX_SHARED = 232448
"""Bytes of shared memory that one block can have on sm_90."""
LOOKED_AT_S = 0.2
"""How often a launch that runs is looked at."""


@dataclass(frozen=True)
class Attention:
    """What becomes of a launch while it runs."""

    limit_s: float = 0.0
    """Seconds after which it is ended; 0: none."""
    told: Callable[[int, int, int], None] | None = None
    """Called a few times a second: blocks that are done, blocks to run, warp instructions so far."""


@functools.lru_cache(maxsize=32)
def _module(text: str) -> Module:
    return parse(text)


@functools.lru_cache(maxsize=64)
def _program(text: str, entry: str) -> Program:
    return lower(_module(text), entry)


def program(ptx: str | Path, entry: str) -> Program:
    """The lowered entry; read and lowered once for each text."""
    return _program(ptx.read_text(encoding="utf-8") if isinstance(ptx, Path) else ptx, entry)


def impossible(code: Program, launch: Launch | Shape) -> str | None:
    """Why no GPU of compute capability 9.0 could launch this, or None."""
    threads = math.prod(launch.block)
    if not 1 <= threads <= 1024 or min(launch.block) < 1 or launch.block[2] > 64:
        return f"a block of {launch.block} threads; 1 to 1024 are possible, at most 64 of them along z"
    if code.function.max_threads and threads > math.prod(code.function.max_threads):
        bound = math.prod(code.function.max_threads)
        return f"{threads} threads a block, but it was compiled for at most {bound}"
    if min(launch.grid) < 1:
        return f"a grid of {launch.grid} blocks; every extent must be at least 1"
    if launch.grid[0] > MAX_GRID_X or max(launch.grid[1:]) > MAX_GRID_YZ:
        return f"a grid of {launch.grid} blocks; it ends at {MAX_GRID_X} along x, at {MAX_GRID_YZ} along y and z"
    if code.static_smem + launch.dynamic_smem > MAX_SHARED:
        total = f"{launch.dynamic_smem} + {code.static_smem} static bytes of shared memory"
        return f"{total}; a block can have {MAX_SHARED}"
    return None


def run(
    ptx: str | Path,
    entry: str,
    launch: Launch | Shape,
    arguments: Sequence[Argument | bytes | Buffer],
    *,
    buffers: Sequence[Buffer] = (),
    checks: Checks | None = None,
    blocks: Sequence[int] | None = None,
    keep_going: bool = False,
    max_instructions: int = 20_000_000_000,
    trace: int = 0,
    attention: Attention | None = None,
) -> Report:
    """Run one launch; Ctrl-C ends it within milliseconds.

    Args:
        ptx: PTX text, or the path of a file that holds it.
        launch: grid, block and dynamic shared memory.
        arguments: one for each kernel parameter: its bytes, or a buffer whose address is passed.
        buffers: further memory that the parameters' bytes point to.
        blocks: linear ids of the thread blocks to run; None runs the grid.
        keep_going: run all blocks even after a fault (a fault otherwise ends the run with its block).
        max_instructions: warp instructions after which a block counts as endless.
        trace: how many lane accesses to record into ``Report.trace``.
        attention: a limit in time, and whom to tell how far it is.

    Raises:
        MachineFault: the launch itself is impossible (parameters, extents, shared memory), or the
            kernel reached an opcode the machine lacks. What the kernel does wrong is in ``Report.faults``.
        TimeLimitError: the limit came first, and no fault before it; with one, a note says how far it got.
    """
    code = program(ptx, entry)
    checks = checks or Checks()
    count = math.prod(launch.grid)
    reason = impossible(code, launch)
    if reason is not None:
        raise MachineFault(f"{entry}: {reason}")
    if blocks is not None and any(not 0 <= block < count for block in blocks):
        raise MachineFault(f"{entry}: blocks {list(blocks)} are not all in a grid of {count}")
    memory = [*buffers, *(argument for argument in arguments if isinstance(argument, Buffer))]
    memory = list({id(buffer): buffer for buffer in memory}.values())
    place(memory)
    parameters = _parameters(code, arguments)
    module_buffers = [
        Buffer(
            name=variable.name,
            data=np.frombuffer(variable.content or bytes(variable.size), np.uint8).copy(),
            address=address,
            writable=variable.space == "global",
        )
        for variable, address in code.module_data
        if variable.size
    ]
    everything = [*memory, *module_buffers]
    engine()  # built once per machine: not part of the run's time
    began = time.monotonic()
    attention = attention or Attention()
    faults, counts, result, accesses, stopped = _call(
        *(code, launch, parameters, _tensor_maps(code, arguments), everything),
        *(checks, blocks, keep_going, max_instructions),
        trace,
        attention,
    )
    seconds = time.monotonic() - began
    found = [describe(code, launch, everything, fault) for fault in faults]
    unsupported = next((fault for fault in found if fault.kind == "unsupported"), None)
    if unsupported is not None:
        raise UnsupportedError(str(unsupported))
    ended = f"ended after {attention.limit_s:g} s with {result.blocks_run} of {count} blocks run" if stopped else ""
    if stopped and not found:
        raise TimeLimitError(
            f"{entry}: {ended} and no fault until then; give it longer, fewer blocks or less work, or a GPU"
        )
    report = Report(
        kernel=entry,
        faults=found,
        count=functools.partial(_counters, code, counts, result.blocks_run, count),
        seconds=seconds,
        warp_instructions=result.instructions,
        trace=accesses,
    )
    if stopped:
        report.notes.append(ended)
    if code.contractible:
        lines = ", ".join(f"{a}+{b}" for a, b in code.contractible[:5])
        report.notes.append(f"mul.f32 and add.f32 without a rounding, which an assembler may fuse: PTX lines {lines}")
    if result.blank_reads and not checks.strict and not any(f.kind.startswith("uninitialised") for f in found):
        text = code.text(result.blank_reads_ins)
        report.notes.append(
            f"{result.blank_reads} bytes of shared memory read that were never written; no result depends on them; "
            f"first: {text}"
        )
    if result.unread_async:
        found_unread = unread_copies(code, result.unread_async, result.unread_async_ins)
        if checks.strict:
            report.faults.append(found_unread)
        else:
            report.notes.append(str(found_unread))
    return report


def _parameters(code: Program, arguments: Sequence[Argument | bytes | Buffer]) -> bytes:
    if len(arguments) != len(code.parameters):
        raise MachineFault(f"{code.name}: {len(arguments)} arguments given, it takes {len(code.parameters)}")
    data = bytearray(max(code.parameter_bytes, 1))
    for number, (argument, (offset, size)) in enumerate(zip(arguments, code.parameters, strict=True)):
        if isinstance(argument, Buffer):
            value = argument.address.to_bytes(8, "little")
        elif isinstance(argument, Argument):
            value = argument.data
        else:
            value = argument
        if len(value) != size:
            raise MachineFault(f"{code.name}: argument {number} has {len(value)} bytes, the parameter has {size}")
        data[offset : offset + size] = value
    return bytes(data)


def _tensor_maps(code: Program, arguments: Sequence[Argument | bytes | Buffer]) -> npt.NDArray[np.void]:
    """The arguments' tensor maps, unencoded, by where the parameters hold them."""
    places = [
        (start + offset, record)
        for argument, (start, _) in zip(arguments, code.parameters, strict=True)
        if isinstance(argument, Argument)
        for offset, record in argument.tensor_maps
    ]
    maps = np.zeros(len(places), MAP)
    for entry, (place_of_map, record) in zip(maps, places, strict=True):
        if any(step != 1 for step in record.element_strides):
            raise MachineFault(f"{code.name}: the PTX machine reads tensor maps of element strides 1 only: {record}")
        rank = len(record.shape)
        entry["parameter"], entry["item"], entry["rank"] = place_of_map, MAP_ITEMSIZE[record.dtype], rank
        entry["swizzle"], entry["address"] = record.swizzle, record.address
        entry["box"][:rank], entry["shape"][:rank], entry["stride"][: rank - 1] = (
            record.box,
            record.shape,
            record.strides,
        )
    return maps


def _call(
    code: Program,
    launch: Launch | Shape,
    parameters: bytes,
    maps: npt.NDArray[np.void],
    buffers: list[Buffer],
    checks: Checks,
    blocks: Sequence[int] | None,
    keep_going: bool,
    max_instructions: int,
    trace: int,
    attention: Attention,
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void], ResultRecord, npt.NDArray[np.void] | None, bool]:
    """Faults, counts, the result, accesses, and whether the limit ended it."""
    records = (BufferRecord * max(len(buffers), 1))()
    for record, buffer in zip(records, buffers, strict=False):
        record.base, record.size = buffer.address, buffer.data.size
        record.data, record.shadow = buffer.data.ctypes.data, buffer.shadow.ctypes.data
    program_record = ProgramRecord(
        code.code.ctypes.data,
        code.pool.ctypes.data,
        code.constants.ctypes.data,
        len(code.code),
        code.words,
        code.special.ctypes.data,
    )
    held = ctypes.create_string_buffer(parameters, max(len(parameters), 1))
    ids = np.array(blocks if blocks is not None else [], np.int64)
    launch_record = LaunchRecord()
    launch_record.grid[:] = launch.grid
    launch_record.block[:] = launch.block
    launch_record.static_smem, launch_record.dynamic_smem = code.static_smem, launch.dynamic_smem
    launch_record.local_bytes, launch_record.param_bytes = code.local_bytes, code.parameter_bytes
    launch_record.granule = code.granule
    launch_record.checks = checks.races | checks.initialised << 1 | checks.counting << 2 | checks.strict << 3
    launch_record.params = ctypes.cast(held, ctypes.c_void_p)
    launch_record.buffers = ctypes.cast(records, ctypes.c_void_p)
    launch_record.n_buffers = len(buffers)
    launch_record.n_blocks = len(ids) if blocks is not None else math.prod(launch.grid)
    launch_record.block_ids = ids.ctypes.data if blocks is not None else None
    launch_record.max_instructions = max_instructions
    launch_record.keep_going, launch_record.max_trace = keep_going, trace
    launch_record.maps, launch_record.n_maps = maps.ctypes.data, len(maps)
    faults = np.zeros(MAX_FAULTS, FAULT)
    counts = np.zeros(len(code.code), COUNT)
    accesses = np.zeros(max(trace, 1), TRACE)
    result = ResultRecord(faults.ctypes.data, MAX_FAULTS, 0, counts.ctypes.data, accesses.ctypes.data)
    result.unread_async_ins = result.blank_reads_ins = -1
    watch = WatchRecord()
    launch_record.watch = ctypes.addressof(watch)
    run_it = functools.partial(
        engine().machine_run, ctypes.byref(program_record), ctypes.byref(launch_record), ctypes.byref(result)
    )
    status, stopped = _attended(run_it, watch, launch_record.n_blocks, attention)
    if status:
        # A block of more than 1,024 threads was refused before: this is the engine's other limit.
        raise MachineFault(
            f"{code.name}: {math.prod(launch.block)} threads a block; the PTX machine runs blocks of at most "
            f"{MOST_WGMMA_THREADS} where the kernel uses wgmma"
        )
    if trace and result.n_trace > trace:
        raise MachineFault(f"{code.name}: {result.n_trace} accesses, {trace} can be recorded; run fewer blocks")
    return faults[: result.n_faults], counts, result, accesses[: result.n_trace] if trace else None, stopped


def _attended(run_it: Callable[[], int], watch: WatchRecord, blocks: int, attention: Attention) -> tuple[int, bool]:
    """The engine's status, and whether the limit ended it. It works in a thread, so that this can be interrupted."""
    statuses: list[int] = []
    worker = threading.Thread(target=lambda: statuses.append(run_it()), daemon=True)
    began = time.monotonic()
    worker.start()
    stopped = False
    try:
        while worker.is_alive():
            left = began + attention.limit_s - time.monotonic() if attention.limit_s else math.inf
            worker.join(max(0.0, min(left, LOOKED_AT_S)))
            if not worker.is_alive():
                break
            if left <= 0:
                stopped, watch.stop = True, 1
                worker.join()
            elif attention.told is not None:
                attention.told(watch.finished, blocks, watch.executed)
    except BaseException:
        watch.stop = 1
        worker.join()
        raise
    return statuses[0], stopped and watch.finished < blocks


# ---------------------------------------------------------------------- counters


def _counters(code: Program, counts: npt.NDArray[np.void], blocks: int, grid: int) -> Counters:
    numbers = opcodes()
    spaces = {1: "global", 2: "shared", 0: "shared"}
    memory_ops = {numbers[name] for name in ("ld", "st", "atom", "cp_async", "ldmatrix", "stmatrix")}
    mix: dict[str, int] = {}
    rows: list[InstructionCount] = []
    fma = mma = 0
    skip, merged = merged_accesses(code, counts)
    for i in np.flatnonzero(counts["warps"]).tolist():
        index, warps = code.statements[i], int(counts["warps"][i])
        if index < 0:
            continue
        statement = code.function.statements[index]
        words = [word for word in statement.opcode if not word.startswith(("L1:", "L2:"))]
        mix[".".join(words)] = mix.get(".".join(words), 0) + warps
        record = code.code[i]
        op, lanes = int(record["op"]), int(counts["lanes"][i])
        if op in (numbers["fma_f32"], numbers["fma_f64"]):
            fma += lanes
        elif op == numbers["small"] and record["mod"] == 3:
            fma += lanes * (2 if record["ty"] in (F16X2, BF16X2) else 1)
        elif op == numbers["mma"]:
            mma += warps * 16 * 8 * int(record["vec"])
        elif op == numbers["wgmma"]:
            mma += warps * 16 * (8 * int(record["vec"])) * 16
        if op not in memory_ops or i in skip or not counts["requests"][i]:
            continue
        sectors, passes = int(counts["sectors"][i]), int(counts["passes"][i])
        ideal, width = int(counts["ideal"][i]), int(record["size"]) * int(record["vec"])
        together = merged.get(i, 1)
        if together > 1:
            suffix = {8: "64", 16: "128"}[width * together]
            passes, ideal = int(counts[f"passes{suffix}"][i]), int(counts[f"ideal{suffix}"][i])
        space = spaces.get(int(record["space"]), "shared")
        if op in (numbers["ldmatrix"], numbers["stmatrix"]):
            width = 4 * int(record["vec"])
        if int(record["space"]) == 0 and sectors:
            space = "global"
        rows.append(
            InstructionCount(
                line=statement.line,
                text=statement.text,
                source=code.source(i),
                executed=warps,
                lanes=lanes,
                space=space,
                width=width * together,
                merged=together,
                requests=int(counts["requests"][i]),
                passes=passes,
                ideal=ideal,
                sectors=sectors,
                ideal_sectors=int(counts["ideal_sectors"][i]),
            )
        )
    rows.sort(key=lambda row: row.line)
    return Counters(blocks=blocks, blocks_in_grid=grid, instructions=tuple(rows), mix=mix, fma=fma, mma=mma)
