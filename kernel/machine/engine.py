"""Builds the engine with g++ (once per machine, cached) and calls it through ctypes."""

from __future__ import annotations

import ctypes
import functools
import platform
import subprocess
from pathlib import Path

import numpy as np

from kernel.build import content_folder, refusal
from kernel.errors import BuildError
from kernel.machine.lower import INSTRUCTION, SPECIAL, engine_source, opcodes
from kernel.toolchain import find

FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off")
"""No contraction and no fast-math: the engine's float arithmetic is the kernel's."""
HOST_FLAGS = (*FLAGS, "-march=native", "-fPIC", "-w")

FAULT = np.dtype(
    [
        *((name, "<i4") for name in ("kind", "ins", "thread", "other_ins", "other_thread", "size")),
        ("block", "<i4", (3,)),
        ("extra", "<i4"),
        ("address", "<u8"),
        ("count", "<u8"),
    ]
)
COUNT = np.dtype(
    [
        *((name, "<u8") for name in ("warps", "lanes", "requests", "passes", "ideal")),
        *((name, "<u8") for name in ("passes64", "ideal64", "passes128", "ideal128", "sectors", "ideal_sectors")),
        ("address_bits", "<u4"),
        ("pad", "<u4"),
    ]
)
TRACE = np.dtype(
    [
        ("ins", "<u4"),
        ("block", "<u2"),
        ("thread", "<u2"),
        ("address", "<u8"),
        ("size", "<u4"),
        ("write", "<u4"),
        ("value", "<u4", (4,)),
    ]
)
"""One lane's access; shared addresses count from the start of the block's shared memory."""


class BufferRecord(ctypes.Structure):
    """A piece of global memory: device address, bytes, host data and one shadow byte per byte."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        ("shadow", ctypes.c_void_p),
    )


MAP = np.dtype(
    [
        *((name, "<i4") for name in ("parameter", "item", "rank", "swizzle")),
        ("box", "<i4", (5,)),
        ("pad", "<i4"),
        ("address", "<u8"),
        ("shape", "<u8", (5,)),
        ("stride", "<u8", (4,)),
    ]
)
"""A tensor map, at its offset among the kernel's parameters; strides in bytes, of dimension 1 and up."""


class WatchRecord(ctypes.Structure):
    """What another thread may look at while a launch runs, and set: ``stop`` ends it within milliseconds."""

    _fields_ = (
        ("stop", ctypes.c_int32),
        ("pad", ctypes.c_int32),
        ("executed", ctypes.c_int64),
        ("finished", ctypes.c_int64),
    )


class ProgramRecord(ctypes.Structure):
    """Lowered code, as the engine reads it."""

    _fields_ = (
        ("code", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("consts", ctypes.c_void_p),
        ("n_code", ctypes.c_int32),
        ("n_words", ctypes.c_int32),
        ("special", ctypes.c_void_p),
    )


class LaunchRecord(ctypes.Structure):
    """Grid, block, memory sizes, parameters, buffers and what to check."""

    _fields_ = (
        ("grid", ctypes.c_int32 * 3),
        ("block", ctypes.c_int32 * 3),
        *((name, ctypes.c_int32) for name in ("static_smem", "dynamic_smem", "local_bytes", "param_bytes", "granule")),
        ("checks", ctypes.c_uint32),
        ("params", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("n_buffers", ctypes.c_int32),
        ("n_blocks", ctypes.c_int32),
        ("block_ids", ctypes.c_void_p),
        ("max_instructions", ctypes.c_int64),
        ("keep_going", ctypes.c_int32),
        ("max_trace", ctypes.c_int32),
        ("maps", ctypes.c_void_p),
        ("n_maps", ctypes.c_int32),
        ("watch", ctypes.c_void_p),
    )


class ResultRecord(ctypes.Structure):
    """Where the engine writes what it found."""

    _fields_ = (
        ("faults", ctypes.c_void_p),
        ("max_faults", ctypes.c_int32),
        ("n_faults", ctypes.c_int32),
        ("counts", ctypes.c_void_p),
        ("trace", ctypes.c_void_p),
        ("n_trace", ctypes.c_int64),
        ("instructions", ctypes.c_int64),
        ("unread_async", ctypes.c_int64),
        ("unread_async_ins", ctypes.c_int32),
        ("blank_reads", ctypes.c_int64),
        ("blank_reads_ins", ctypes.c_int32),
        ("blocks_run", ctypes.c_int32),
    )


def _host() -> str:
    """What decides the code that -march=native makes: the processor's model and features."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in text.splitlines() if line.startswith(wanted)))


def _all_of(calls: list[list[str]], folder: Path) -> None:
    """Run compiler calls side by side; BuildError with what the first refusal said."""
    running = [
        subprocess.Popen(call, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for call in calls
    ]
    logs = [process.communicate()[1] for process in running]
    for process, log in zip(running, logs, strict=True):
        if process.returncode != 0:
            raise refusal("the PTX machine's engine", "g++ refused it", log, folder)


@functools.cache
def engine() -> ctypes.CDLL:
    """The loaded engine.

    Raises:
        MissingToolError: there is no g++.
        BuildError: g++ refused the engine.
    """
    compiler = find("g++")
    names = opcodes()
    table = "enum Op {\n" + "".join(f"  OP_{name} = {number},\n" for name, number in names.items()) + "};\n"
    table += f"enum {{ N_SPECIAL = {len(SPECIAL)} }};\n"
    sources = engine_source()

    def make(folder: Path) -> None:
        for name, text in {**sources, "opcodes.inc": table}.items():
            (folder / name).write_text(text, encoding="utf-8")
        units = [name for name in sources if name.endswith(".cpp")]
        calls = [[str(compiler.path), *HOST_FLAGS, "-c", name, "-o", f"{name}.o"] for name in units]
        _all_of(calls, folder)
        objects = [f"{name}.o" for name in units]
        _all_of([[str(compiler.path), "-shared", *objects, "-o", "engine.so"]], folder)
        for name in objects:
            (folder / name).unlink()

    key = "\n".join((*sources.values(), table, compiler.version, " ".join(HOST_FLAGS), _host()))
    library = ctypes.CDLL(str(content_folder("machine", key, make) / "engine.so"))
    library.machine_run.restype = ctypes.c_int
    library.machine_sizes.restype = ctypes.c_int
    sizes = (
        *(INSTRUCTION.itemsize, ctypes.sizeof(BufferRecord), FAULT.itemsize, COUNT.itemsize, TRACE.itemsize),
        *(ctypes.sizeof(record) for record in (ProgramRecord, LaunchRecord, ResultRecord)),
        MAP.itemsize,
        ctypes.sizeof(WatchRecord),
    )
    stated = tuple(library.machine_sizes(which) for which in range(len(sizes)))
    if stated != sizes:
        raise BuildError(f"the engine's records are {stated} bytes, {sizes} are expected")
    return library
