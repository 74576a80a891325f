"""What the command line asks of the machine: any file's kernel, and banks, mapping and races of a catalog's kernel.

Every function answers with records; the ``*_text`` functions turn them into lines for a terminal.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel.build import artifact
from kernel.contract import Kernel, Problem, Unit
from kernel.errors import MachineFault, UsageError
from kernel.machine.execute import Attention, impossible, program, run
from kernel.machine.gemm import Outcome, simulate
from kernel.machine.lower import Program
from kernel.machine.mapping import lane_map, tile_problem
from kernel.machine.memory import Buffer
from kernel.machine.ptx import Module, parse, with_source
from kernel.machine.report import Counters, Report
from kernel.machine.shape import Checks, Shape
from kernel.mapping import LaneMap
from kernel.toolchain import architectures, find
from kernel.whole_file import replacing

DTYPES = {
    "f16": "<f2",
    "f32": "<f4",
    "f64": "<f8",
    "i8": "<i1",
    "i16": "<i2",
    "i32": "<i4",
    "i64": "<i8",
    "u8": "<u1",
    "u16": "<u2",
    "u32": "<u4",
    "u64": "<u8",
}
ROW_GAP = 16
"""Elements between rows in :func:`races`: a multiple of every alignment, so that the build is that of tight rows."""
FORMS = "gemm-tracks run-cpu --help lists the forms of arguments"


@dataclass(kw_only=True)
class FileRun:
    """What ``run-cpu`` gives: the report, and every buffer after the run under its argument's number."""

    entry: str
    report: Report
    buffers: dict[int, npt.NDArray[Any]] = field(default_factory=dict)
    saved: tuple[Path, ...] = ()


def ptx_of(path: Path, arch: str = "sm_90a", flags: Sequence[str] = ()) -> str:
    """PTX text of a .ptx file, or of a .cu file built for ``arch`` (cached like every build).

    Raises:
        UsageError: no such file, neither of the two, or an architecture that the compiler does not know.
        BuildError, MissingToolError: nvcc refused it, or is not there.
    """
    if not path.is_file():
        raise UsageError(f"{path} is not a file; give a .cu or a .ptx file")
    if path.suffix == ".ptx":
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UsageError(f"{path} is no text, and PTX is; a .cubin cannot be run on the PTX machine") from None
    if path.suffix not in (".cu", ".cuh"):
        raise UsageError(f"{path.name} is neither a .cu nor a .ptx file")
    known = architectures()
    if not re.fullmatch(r"sm_\d+[af]?", arch) or arch.rstrip("af") not in known:
        raise UsageError(
            f"--arch {arch}: {find('nvcc')} builds for {', '.join(known)} (sm_90 and later also with an a)"
        )
    name = re.sub(r"\W", "_", path.stem)
    unit = Unit(name=f"file_{name}", arch=arch, source=path.absolute(), flags=("-lineinfo", *flags), allow_spills=True)
    return with_source(artifact(unit).ptx.read_text(encoding="utf-8"), path)


def entry_of(module: Module, symbol: str) -> str:
    """The entry that ``symbol`` names: exactly, by its name before mangling, or the only one if left empty.

    Raises:
        UsageError: none or several fit; the text lists the entries.
    """
    names = sorted(module.entries)
    if symbol in module.entries:
        return symbol
    fitting = [name for name in names if f"{len(symbol)}{symbol}" in name] if symbol else names
    if len(fitting) == 1:
        return fitting[0]
    if not names:
        raise UsageError("the file has no kernel: neither a __global__ function nor an .entry")
    listed = ", ".join(names)
    what = f"{symbol!r} fits {len(fitting)} entries" if symbol else f"there are {len(names)} entries; name one"
    raise UsageError(f"{what}; entries of the file: {listed}")


def _extents(text: str, argument: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise UsageError(f"argument {argument!r}: {text!r} are no extents; write 64x32 or 100")
    return tuple(int(part) for part in text.split("x"))


def _dtype(name: str, argument: str) -> np.dtype[Any]:
    if name not in DTYPES:
        raise UsageError(f"argument {argument!r}: no type {name!r}; known: {', '.join(DTYPES)}")
    return np.dtype(DTYPES[name])


def _scalar(text: str, size: int, argument: str) -> bytes:
    kind, _, number = text.rpartition(":")
    try:
        if kind:
            dtype = _dtype(kind, argument)
            value: int | float = float(number) if dtype.kind == "f" else int(number, 0)
            return bytes(np.array([value]).astype(dtype).tobytes())
        if re.fullmatch(r"[+-]?(0[xX][0-9a-fA-F]+|\d+)", number):
            return (int(number, 0) % (1 << 8 * size)).to_bytes(size, "little")
        return struct.pack("<d" if size == 8 else "<f", float(number))
    except (ValueError, OverflowError):
        raise UsageError(f"argument {argument!r} is neither a number nor a buffer; {FORMS}") from None


def read_argument(argument: str, number: int, size: int) -> tuple[bytes | Buffer, np.dtype[Any], tuple[int, ...], str]:
    """One ``--arg``: its bytes or buffer, the buffer's element type and extents, and the file to save it to.

    Raises:
        UsageError: the text is none of the forms that gemm-tracks run-cpu --help lists, or its file cannot be read.
    """
    kind, _, rest = argument.partition(":")
    name = f"argument {number}"
    if kind in ("in", "inout"):
        try:
            array = np.load(rest)
        except (OSError, ValueError) as error:
            raise UsageError(f"argument {argument!r}: {rest} cannot be read as a .npy file ({error})") from None
        return Buffer.from_array(name, array, writable=kind == "inout"), array.dtype, array.shape, ""
    if kind in ("random", "zeros", "ones", "out"):
        parts = rest.split(":", 2)
        if len(parts) < 2:
            raise UsageError(f"argument {argument!r}: a type and extents are needed, as in {kind}:f32:64x64")
        dtype, shape = _dtype(parts[0], argument), _extents(parts[1], argument)
        last = parts[2] if len(parts) > 2 else ""
        if kind == "random" and not re.fullmatch(r"\d*", last):
            raise UsageError(f"argument {argument!r}: the seed {last!r} is no number")
        try:
            if kind == "random":
                generator = np.random.default_rng(int(last or 0))
                array = generator.uniform(-1, 1, shape).astype(dtype)
                return Buffer.from_array(name, array, writable=False), dtype, shape, ""
            fill: Any = {"zeros": 0, "ones": 1, "out": np.nan if dtype.kind == "f" else -1}[kind]
            array = np.full(shape, fill).astype(dtype)
            return Buffer.from_array(name, array, initialised=kind != "out"), dtype, shape, last
        except (MemoryError, ValueError) as error:  # too large for this machine, or for any
            raise UsageError(f"argument {argument!r}: {error}") from None
    return _scalar(argument, size, argument), np.dtype("u1"), (), ""


def run_file(
    path: Path,
    symbol: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    arguments: Sequence[str],
    *,
    dynamic_smem: int = 0,
    arch: str = "sm_90a",
    flags: Sequence[str] = (),
    checks: Checks | None = None,
    keep_going: bool = False,
    attention: Attention | None = None,
) -> FileRun:
    """Run one kernel of a .cu or .ptx file on the machine.

    Args:
        arguments: one text for each parameter; ``gemm-tracks run-cpu --help`` lists the forms.
        dynamic_smem: bytes.
        attention: a limit in time, and whom to tell how far it is.

    Raises:
        UsageError: file, symbol or arguments do not fit, or no GPU could make the launch.
        BuildError, MissingToolError: it cannot be built.
        MachineFault: it reaches an opcode the machine lacks; what the kernel does wrong is in the report.
        TimeLimitError: the limit came first.
    """
    text = ptx_of(path, arch, flags)
    entry = entry_of(parse(text), symbol)
    code = program(text, entry)
    if len(arguments) != len(code.parameters):
        raise UsageError(
            f"{entry} takes {len(code.parameters)} parameters of {_sizes(code)} bytes; {len(arguments)} were given; "
            + FORMS
        )
    values: list[bytes | Buffer] = []
    shapes: dict[int, tuple[Buffer, np.dtype[Any], tuple[int, ...], str]] = {}
    for number, (argument, (_, size)) in enumerate(zip(arguments, code.parameters, strict=True)):
        value, dtype, shape, save = read_argument(argument, number, size)
        length = 8 if isinstance(value, Buffer) else len(value)
        if length != size:
            raise UsageError(f"argument {argument!r} has {length} bytes; parameter {number} of {entry} has {size}")
        values.append(value)
        if isinstance(value, Buffer):
            shapes[number] = (value, dtype, shape, save)
    launch = Shape(grid=grid, block=block, dynamic_smem=dynamic_smem)
    reason = impossible(code, launch)
    if reason is not None:
        raise UsageError(f"{entry} cannot be launched like this: {reason}")
    report = run(
        text,
        entry,
        launch,
        values,
        checks=checks,
        keep_going=keep_going,
        attention=attention,
    )
    result = FileRun(entry=entry, report=report)
    saved: list[Path] = []
    for number, (buffer, dtype, shape, save) in shapes.items():
        result.buffers[number] = buffer.data.view(dtype).reshape(shape)
        if save:
            # Header, then bytes: np.save adds an ending to a name without .npy, and loses the reason of a full disk.
            with replacing(Path(save)) as partial, partial.open("wb") as stream:
                header = np.lib.format.header_data_from_array_1_0(result.buffers[number])
                np.lib.format.write_array_header_1_0(stream, header)
                stream.write(buffer.data.data)
            saved.append(Path(save))
    result.saved = tuple(saved)
    return result


def _sizes(code: Program) -> str:
    return ", ".join(str(size) for _, size in code.parameters)


# ---------------------------------------------------------------------- a catalog's kernel


def banks(kernel: Kernel, problem: Problem | None = None) -> Counters:
    """Counters of one block of ``problem`` (one block tile, four k tiles deep, unless given).

    ``Counters.scaled()`` leads from the block to the grid, exact where all blocks do the same work.
    """
    if problem is None:
        problem = tile_problem(kernel)
        problem = problem.replace(k=4 * problem.k, lda=0, ldb=0, ldc=0)
    a = np.ones((problem.m, problem.k), problem.dtype_in)
    b = np.ones((problem.k, problem.n), problem.dtype_in)
    c = np.ones((problem.m, problem.n), problem.dtype_out) if problem.beta else None
    outcome = simulate(kernel, problem, a, b, c, blocks=[0], checks=Checks(races=False, initialised=False))
    _refuse(outcome)
    return outcome.reports[0].counters


def mapping(kernel: Kernel, problem: Problem | None = None) -> LaneMap:
    """Which C elements each lane of the first warp owns, and which of A and B it reads."""
    return lane_map(kernel, problem)


def races(kernel: Kernel, problem: Problem | None = None, attention: Attention | None = None) -> Outcome:
    """A run of the whole of a small ragged problem with every check on; look at ``faults`` and ``notes``.

    The default has a full and a partial block along m and n and an odd number of k tiles with a partial one. Its
    leading dimensions are wider than the rows, so that a read beyond a row's end is out of bounds there. ``attention``
    is told how far each launch is.
    """
    if problem is None:
        tile = tile_problem(kernel)
        problem = Problem(
            m=tile.m + 2,
            n=tile.n + 2,
            k=2 * tile.k + 3,
            dtype_in=kernel.dtype_in,
            dtype_acc=kernel.dtype_acc,
            dtype_out=kernel.dtype_out,
            layout=kernel.layouts[0],
        )
        if kernel.rejects(problem) is not None:
            problem = tile.replace(m=2 * tile.m, n=2 * tile.n, k=3 * tile.k, lda=0, ldb=0, ldc=0)
        pitched = problem.replace(lda=problem.lda + ROW_GAP, ldb=problem.ldb + ROW_GAP, ldc=problem.ldc + ROW_GAP)
        problem = problem if kernel.rejects(pitched) is not None else pitched
    generator = np.random.default_rng(0)
    a = generator.uniform(-1, 1, (problem.m, problem.k)).astype(problem.dtype_in)
    b = generator.uniform(-1, 1, (problem.k, problem.n)).astype(problem.dtype_in)
    c = generator.uniform(-1, 1, (problem.m, problem.n)).astype(problem.dtype_out) if problem.beta else None
    return simulate(kernel, problem, a, b, c, keep_going=True, attention=attention)


def _refuse(outcome: Outcome) -> None:
    if outcome.faults:
        raise MachineFault("\n".join(str(fault) for fault in outcome.faults))


def banks_text(counters: Counters) -> str:
    """One line for each shared and global access: requests, bank passes against the ideal, sectors."""
    head = f"{'PTX line':>8} {'space':6} {'bytes':>5} {'requests':>10} {'passes':>8} {'ideal':>8} {'x':>5}  instruction"
    lines = [f"{counters.blocks} of {counters.blocks_in_grid} blocks; passes of shared memory, sectors of global", head]
    for row in counters.instructions:
        shared = row.space == "shared"
        passes, ideal = (row.passes, row.ideal) if shared else (row.sectors, row.ideal_sectors)
        ratio = f"{passes / ideal:5.2f}" if ideal else "    -"
        joined = f"  (first of {row.merged} that ptxas merges)" if row.merged > 1 else ""
        where = f"  {row.source}" if row.source else ""
        lines.append(
            f"{row.line:8d} {row.space:6} {row.width:5d} {row.requests:10d} {passes:8d} {ideal:8d} {ratio}  "
            f"{row.text[:60]}{joined}{where}"
        )
    for name, total in (("loads", counters.shared_loads()), ("stores", counters.shared_stores())):
        lines.append(
            f"shared {name}: {total['requests']} requests, {total['passes']} passes, ideal {total['ideal']}, "
            f"conflicts {total['conflicts']}"
        )
    lines.append(
        f"{counters.fma} FMAs, {counters.mma} multiply-adds in mma, {counters.warp_instructions} warp instructions"
    )
    return "\n".join(lines)


def report_text(report: Report) -> str:
    """Faults, notes and what was executed, in words."""
    lines = [str(fault) for fault in report.faults]
    lines += [f"note: {note}" for note in report.notes]
    count = report.counters
    verdict = "no faults" if not report.faults else f"{len(report.faults)} faults"
    lines.append(
        f"{report.kernel}: {verdict}; {count.blocks} of {count.blocks_in_grid} blocks, "
        f"{report.warp_instructions} warp instructions, {report.seconds:.2f} s"
    )
    top = sorted(count.mix.items(), key=lambda item: -item[1])[:8]
    lines.append("mix: " + ", ".join(f"{name} {number}" for name, number in top))
    return "\n".join(lines)
