"""What the command line asks of the machine: any file's kernel, and banks, mapping and races of a catalog's kernel.

Every function answers with records; the ``*_text`` functions turn them into lines for a terminal.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import zipfile
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
from kernel.machine.ptx import TYPE_BYTES, Module, Variable, parse, with_source
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
INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")
FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|inf|nan)")
SMALL = 9
"""Random integers lie from -SMALL to SMALL, from 0 where the type has no sign: their products are exact."""
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
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no CUDA source: it is not UTF-8 text (byte {error.start})") from None
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
    if not re.fullmatch(r"[0-9]+(x[0-9]+)*", text):
        raise UsageError(f"argument {argument!r}: {text!r} are no extents; write 64x32 or 100")
    return tuple(int(part) for part in text.split("x"))


def _dtype(name: str, argument: str) -> np.dtype[Any]:
    if name not in DTYPES:
        raise UsageError(f"argument {argument!r}: no type {name!r}; known: {', '.join(DTYPES)}")
    return np.dtype(DTYPES[name])


def _number(text: str, dtype: np.dtype[Any], argument: str) -> bytes:
    """A number as bytes of a type; it must be one, and the type must hold it."""
    if dtype.kind == "f":
        if INTEGER.fullmatch(text) is None and FLOAT.fullmatch(text) is None:
            raise UsageError(f"argument {argument!r} is neither a number nor a buffer; {FORMS}")
        value = float(int(text, 16)) if "x" in text.lower() else float(text)
        with np.errstate(over="ignore"):
            held = np.array([value]).astype(dtype)
        if math.isfinite(value) and not np.isfinite(held[0]):
            raise UsageError(f"argument {argument!r} is beyond what {dtype.name} holds")
        return bytes(held.tobytes())
    if INTEGER.fullmatch(text) is None:
        known = (
            "a float where the kernel takes an integer" if FLOAT.fullmatch(text) else "neither a number nor a buffer"
        )
        raise UsageError(f"argument {argument!r} is {known}; {FORMS}")
    whole, limits = int(text, 16 if "x" in text.lower() else 10), np.iinfo(dtype)
    if not limits.min <= whole <= limits.max:
        raise UsageError(f"argument {argument!r} is beyond what {dtype.name} holds: {limits.min} to {limits.max}")
    return bytes(np.array([whole], dtype).tobytes())


def _scalar(text: str, parameter: Variable, argument: str) -> bytes:
    """A number as the parameter's type has it, or as the type that is stated before it."""
    kind, _, number = text.rpartition(":")
    if kind:
        return _number(number, _dtype(kind, argument), argument)
    if INTEGER.fullmatch(text) is None and FLOAT.fullmatch(text) is None:
        raise UsageError(f"argument {argument!r} is neither a number nor a buffer; {FORMS}")
    kind = parameter.kind
    if (kind not in DTYPES and kind.replace("s", "i") not in DTYPES) or TYPE_BYTES[kind] != parameter.size:
        raise UsageError(
            f"argument {argument!r}: the PTX does not say what this parameter of {parameter.size} bytes is; "
            f"state the type, as in i32:{text}; known: {', '.join(DTYPES)}"
        )
    if kind[0] == "u" and text.startswith("-"):  # nvcc declares every integer as one without sign
        kind = f"i{kind[1:]}"
    return _number(text, np.dtype(DTYPES[kind.replace("s", "i")]), argument)


def _loaded(path: str, argument: str) -> npt.NDArray[Any]:
    """The array of a .npy file, as little-endian numbers of a type that kernels have."""
    try:
        array = np.load(path)
    except (OSError, ValueError, EOFError, SyntaxError, MemoryError, zipfile.BadZipFile) as error:
        raise UsageError(f"argument {argument!r}: {path} cannot be read as a .npy file ({error})") from None
    if not isinstance(array, np.ndarray):
        raise UsageError(
            f"argument {argument!r}: {path} holds several arrays; save the one that is meant as a .npy file"
        )
    if array.dtype == np.bool_:
        array = array.astype("<u1")
    native = array.dtype.newbyteorder("<")
    if native not in {np.dtype(known) for known in DTYPES.values()}:
        known = ", ".join(np.dtype(one).name for one in DTYPES.values())
        raise UsageError(f"argument {argument!r}: {path} holds {array.dtype}; known: {known}")
    return np.asarray(array, native)


def _random(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> npt.NDArray[Any]:
    generator = np.random.default_rng(seed)
    if dtype.kind == "f":
        return generator.uniform(-1, 1, shape).astype(dtype)
    return generator.integers(-SMALL if dtype.kind == "i" else 0, SMALL, shape, dtype, endpoint=True)


def _refuse_unwritable(path: str, argument: str) -> None:
    """Whether a result can be saved is known before the kernel has run for an hour."""
    target = Path(path)
    if target.suffix != ".npy":
        raise UsageError(f"argument {argument!r}: the file to save to must end in .npy, and {path} does not")
    try:
        if target.exists() and not (target.is_file() and os.access(target, os.W_OK)):
            raise UsageError(f"argument {argument!r}: {path} cannot be written")
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"argument {argument!r}: {path} cannot be written ({reason})") from None


def read_argument(
    argument: str, number: int, parameter: Variable
) -> tuple[bytes | Buffer, np.dtype[Any], tuple[int, ...], str]:
    """One ``--arg``: its bytes or buffer, the buffer's element type and extents, and the file to save it to.

    Raises:
        UsageError: the text is none of the forms that gemm-tracks run-cpu --help lists, the parameter's type does not
            hold it, or its file cannot be read or written.
    """
    kind, _, rest = argument.partition(":")
    name = f"argument {number}"
    if kind in ("in", "inout"):
        array = _loaded(rest, argument)
        return Buffer.from_array(name, array, writable=kind == "inout"), array.dtype, array.shape, ""
    if kind in ("random", "zeros", "ones", "out"):
        parts = rest.split(":", 2)
        if len(parts) < 2:
            raise UsageError(f"argument {argument!r}: a type and extents are needed, as in {kind}:f32:64x64")
        dtype, shape = _dtype(parts[0], argument), _extents(parts[1], argument)
        last = parts[2] if len(parts) > 2 else ""
        if kind == "random" and not re.fullmatch(r"[0-9]*", last):
            raise UsageError(f"argument {argument!r}: the seed {last!r} is no number")
        try:
            if kind == "random":
                return Buffer.from_array(name, _random(shape, dtype, int(last or 0)), writable=False), dtype, shape, ""
            fill: Any = {"zeros": 0, "ones": 1, "out": np.nan if dtype.kind == "f" else -1}[kind]
            array = np.full(shape, fill).astype(dtype)
            buffer = Buffer.from_array(name, array, initialised=kind != "out")
        except (MemoryError, ValueError) as error:  # too large for this machine, or for any
            raise UsageError(f"argument {argument!r}: {error}") from None
        if last:
            _refuse_unwritable(last, argument)
        return buffer, dtype, shape, last
    return _scalar(argument, parameter, argument), np.dtype("u1"), (), ""


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
    for number, (argument, parameter) in enumerate(zip(arguments, code.function.parameters, strict=True)):
        value, dtype, shape, save = read_argument(argument, number, parameter)
        length = 8 if isinstance(value, Buffer) else len(value)
        if length != parameter.size:
            raise UsageError(
                f"argument {argument!r} has {length} bytes; parameter {number} of {entry} has {parameter.size}"
            )
        if isinstance(value, Buffer) and parameter.kind == "f64":
            raise UsageError(f"argument {argument!r} is a buffer; parameter {number} of {entry} is a double")
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
            # Header, then bytes: np.save loses the reason where the disk is full.
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
