"""Kernels of the user's (``--with FILE``): one SGEMM from a .cu file, made a contender without touching this tree.

Everything that can be wrong with the file or its options is found here, before anything is checked or timed.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compare.contenders import KernelContender, every_contender
from kernel.build import artifact, source_hash
from kernel.contract import (
    MAX_GRID_X,
    MAX_GRID_YZ,
    Argument,
    Artifact,
    Kernel,
    Launch,
    Pointers,
    Problem,
    Tile,
    Unit,
    ceil_div,
)
from kernel.errors import UsageError
from kernel.gate import objections
from kernel.sgemm import arguments

if TYPE_CHECKING:
    from compare.shapes import Shape
    from kernel.machine.ptx import Function, Module, Variable

ARCH = "sm_90a"
GRIDS = ("xy", "yx", "linear")
DEFAULT_THREADS = 256
MAX_THREADS = 1024
MAX_THREADS_Z = 64
MAX_SMEM = 227 * 1024
"""Bytes of shared memory that a block of sm_90 can have, static and dynamic together."""
MAX_TILE = 4096
"""Elements along one side of a block tile: far beyond what a block's registers hold."""
PLAIN = ("pointer",) * 3 + ("int",) * 3 + ("float",) * 2
PITCHED = ("pointer",) * 3 + ("int",) * 3 + ("long long",) * 3 + ("float",) * 2
ACCEPTED = (
    "(const float* A, const float* B, float* C, int m, int n, int k, float alpha, float beta) and "
    "(const float* A, const float* B, float* C, int m, int n, int k, "
    "long long lda, long long ldb, long long ldc, float alpha, float beta)"
)
WORDS = {"u32": "int", "s32": "int", "b32": "int", "u64": "long long", "s64": "long long", "b64": "long long"}
WORDS |= {"f32": "float", "f64": "double"}


@dataclass(frozen=True, kw_only=True)
class OwnKernel(Kernel):
    """A row-major SGEMM from a file of the user's. The tile is what the user says of it: it decides the grid."""

    source: Path
    entry: str
    block: tuple[int, int, int]
    grid: str
    """xy: blockIdx.x along n, blockIdx.y along m; yx: the reverse; linear: blockIdx.x over tiles, row by row."""
    pitched: bool
    """Whether it takes lda, ldb and ldc; without them rows must follow each other without a gap."""
    smem: int = 0
    """Dynamic shared memory, bytes."""
    multiples: tuple[int, int, int] = (1, 1, 1)
    """What must divide m, n and k."""
    align: int = 4
    """Bytes that the bases of A, B and C must be multiples of."""

    @property
    def unit(self) -> Unit:
        return unit_of(self.source)

    def units(self) -> tuple[Unit, ...]:
        return (self.unit,)

    def rejects(self, problem: Problem) -> str | None:
        reason = self.rejects_type_or_layout(problem)
        if reason is not None:
            return reason
        p = problem
        if not self.pitched:
            for name, value, width in (("lda", p.lda, p.k), ("ldb", p.ldb, p.n), ("ldc", p.ldc, p.n)):
                if value != width:
                    return f"{name} = {value}; {self.name} takes no leading dimensions, so {width} is needed"
        for name, extent, multiple in zip("mnk", (p.m, p.n, p.k), self.multiples, strict=True):
            if extent % multiple:
                return f"{name} = {extent} is no multiple of {multiple} (--multiples)"
        for operand in "abc":
            base = getattr(p, f"align_{operand}")
            if base < self.align:
                return f"{operand.upper()}: its base is a multiple of {base} bytes; {self.align} are needed (--align)"
        x, y, _ = self._grid(p)
        if x > MAX_GRID_X or y > MAX_GRID_YZ:
            return f"a grid of {x} x {y} blocks; it ends at {MAX_GRID_X} along x and {MAX_GRID_YZ} along y"
        return None

    def variant(self, problem: Problem) -> str:
        return ""

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        launch = Launch(
            unit=self.unit,
            entry=self.entry,
            grid=self._grid(problem),
            block=self.block,
            dynamic_smem=self.smem,
        )
        return (launch,)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        return (arguments(problem, pointers, pitched=self.pitched),)

    def _grid(self, problem: Problem) -> tuple[int, int, int]:
        along_m = ceil_div(problem.m, self.tile.BLOCK_M)
        along_n = ceil_div(problem.n, self.tile.BLOCK_N)
        if self.grid == "linear":
            return (along_m * along_n, 1, 1)
        return (along_n, along_m, 1) if self.grid == "xy" else (along_m, along_n, 1)


@dataclass(frozen=True, kw_only=True)
class OwnContender(KernelContender):
    """The contender of an :class:`OwnKernel`."""

    options: OwnOptions

    @property
    def selected_by(self) -> str:
        return self.options.words()

    def nearest(self, shape: Shape) -> Shape:
        assert isinstance(self.kernel, OwnKernel)
        kernel, extents = self.kernel, (shape.m, shape.n, shape.k)
        m, n, k = (ceil_div(have, of) * of for have, of in zip(extents, kernel.multiples, strict=True))
        a, b, c = (max(align, kernel.align) for align in (shape.align_a, shape.align_b, shape.align_c))
        near = dataclasses.replace(shape, m=m, n=n, k=k, align_a=a, align_b=b, align_c=c)
        return near if kernel.pitched else dataclasses.replace(near, pad_a=0, pad_b=0, pad_c=0)

    @property
    def identity(self) -> str:
        """What it is, in a line: file, options and source, so that a run goes on only with the same kernel."""
        assert isinstance(self.kernel, OwnKernel)
        without_folder = dataclasses.replace(self.options, file=Path(self.kernel.source.name))
        return f"{without_folder.words()} (source {source_hash(self.kernel.unit)[:12]})"


@dataclass(frozen=True)
class OwnOptions:
    """The options behind ``--with``, as they were given; see docs/own_kernels.md."""

    file: Path | None = None
    symbol: str = ""
    tile: str = ""
    threads: str = ""
    grid: str = ""
    smem: int = 0
    multiples: str = ""
    align: int = 4

    @property
    def given(self) -> bool:
        """Whether there is a kernel of the user's."""
        return self.file is not None

    def words(self) -> str:
        """The options as a command line holds them."""
        values = {
            "--with": str(self.file or ""),
            "--symbol": self.symbol,
            "--tile": self.tile,
            "--threads": self.threads,
            "--grid": self.grid,
            "--smem": str(self.smem or ""),
            "--multiples": self.multiples,
            "--align": "" if self.align == OwnOptions.align else str(self.align),
        }
        return shlex.join(word for name, value in values.items() if value for word in (name, value))

    def contenders(self) -> tuple[OwnContender, ...]:
        """The one contender of the file, which is built here; none where no file was given.

        Raises:
            UsageError: an option, the symbol, its signature or its name does not fit.
            BuildError, MissingToolError: nvcc refused the file, or is not there.
        """
        if self.file is None:
            if self.words():
                raise UsageError(f"{self.words().split()[0]} describes a kernel of yours; give its file by --with")
            return ()
        return (self._contender(self.file),)

    def _contender(self, file: Path) -> OwnContender:
        from kernel.machine.ptx import parse

        if not file.is_file() or file.suffix != ".cu":
            raise UsageError(f"--with {file}: {'a .cu file is needed' if file.is_file() else 'there is no such file'}")
        tile, grid = self._tile(), self._grid()
        multiples = extents_of("--multiples", self.multiples, (3,), "128x128x16") if self.multiples else (1, 1, 1)
        if self.align & (self.align - 1) or not 4 <= self.align <= 256:
            raise UsageError(f"--align {self.align}: a power of two from 4 to 256 is needed")
        given_block = block_of(self.threads) if self.threads else None
        if not re.fullmatch(r"\w*", self.symbol):
            raise UsageError(f"--symbol {self.symbol!r}: a kernel's name is needed, without its parameters")
        built = artifact(unit_of(file))
        module = parse(built.ptx.read_text(encoding="utf-8"))
        function = self._function(file, module)
        name = plain_name(function.name)
        if name in {contender.name for contender in every_contender()}:
            raise UsageError(f"{file.name}: {name} is the name of a kernel in the catalog; give yours another one")
        pitched = takes_pitches(file, name, function)
        block = given_block or bound_of(function) or (DEFAULT_THREADS, 1, 1)
        kernel = OwnKernel(
            name=name,
            family="handwritten",
            track="fp32_simt",
            instruction="ffma",
            arch=ARCH,
            tile=tile,
            summary=f"a kernel of the user's, {file.name}",
            source=file.absolute(),
            entry=function.name,
            block=block,
            grid=grid,
            pitched=pitched,
            smem=self.smem,
            multiples=(multiples[0], multiples[1], multiples[2]),
            align=self.align,
        )
        self._fits(kernel, module, built)
        shared = {f.name: getattr(kernel, f.name) for f in dataclasses.fields(KernelContender) if f.name != "kernel"}
        return OwnContender(kernel=kernel, options=self, **shared)

    def _tile(self) -> Tile:
        if not self.tile:
            raise UsageError("--with needs --tile: what one block computes, such as 128x128x16 (m, n, step in k)")
        m, n, *k = extents_of("--tile", self.tile, (2, 3), "128x128x16 or 16x16")
        if max(m, n, *k) > MAX_TILE:
            raise UsageError(f"--tile {self.tile}: a side ends at {MAX_TILE}")
        return Tile(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k[0] if k else 0)

    def _grid(self) -> str:
        if self.grid and self.grid not in GRIDS:
            raise UsageError(f"--grid {self.grid}: one of {', '.join(GRIDS)} is needed")
        return self.grid or GRIDS[0]

    def _function(self, file: Path, module: Module) -> Function:
        from kernel.machine.command import entry_of

        try:
            return module.entries[entry_of(module, self.symbol)]
        except UsageError as error:
            raise UsageError(f"{file.name}: {error} (--symbol)") from None

    def _fits(self, kernel: OwnKernel, module: Module, built: Artifact) -> None:
        """Raise UsageError where no block of this kernel could be launched."""
        file, function, static = kernel.source.name, module.entries[kernel.entry], built.resources[kernel.entry]
        if static.static_smem + self.smem > MAX_SMEM:
            raise UsageError(
                f"--smem {self.smem}: with {static.static_smem} bytes of static shared memory that is more than the "
                f"{MAX_SMEM} that a block can have"
            )
        dynamic = [variable.name for variable in (*module.variables, *function.variables) if variable.dynamic]
        if not self.smem and any(name in statement.text for name in dynamic for statement in function.statements):
            raise UsageError(f"{file}: {kernel.name} uses dynamic shared memory; say how many bytes by --smem")
        (launch,) = kernel.launches(Problem(m=1, n=1, k=1))
        reasons = objections(launch, built)
        if reasons:
            raise UsageError(f"{file}: {'; '.join(reasons)} (--threads)")


def unit_of(file: Path) -> Unit:
    """The translation unit of a user's file."""
    # Spills are shown in the row; whether they are worth it is the author's business, not the catalog's gate.
    return Unit(
        name=f"own.{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}", arch=ARCH, source=file.absolute(), allow_spills=True
    )


def extents_of(option: str, text: str, counts: tuple[int, ...], example: str) -> tuple[int, ...]:
    """``128x128x16`` as numbers.

    Raises:
        UsageError: it is none, one of them is 0, or there are too many or too few.
    """
    parts = text.split("x")
    if len(parts) not in counts or not all(re.fullmatch(r"[0-9]{1,9}", part) and int(part) for part in parts):
        raise UsageError(f"{option} {text!r}: numbers of at least 1 are needed, such as {example}")
    return tuple(int(part) for part in parts)


def block_of(threads: str) -> tuple[int, int, int]:
    """A block's extents from ``--threads``.

    Raises:
        UsageError: they are no extents, or no GPU has blocks of that size.
    """
    x, y, z = (*extents_of("--threads", threads, (1, 2, 3), "256 or 16x16"), 1, 1)[:3]
    if x * y * z > MAX_THREADS or z > MAX_THREADS_Z:
        raise UsageError(
            f"--threads {threads}: {x * y * z} threads; a block has at most {MAX_THREADS}, "
            f"and at most {MAX_THREADS_Z} along z"
        )
    return x, y, z


def plain_name(entry: str) -> str:
    """A kernel's name without C++ mangling."""
    mangled = re.match(r"_Z(?:N.*?)?(\d+)", entry)
    if mangled is None:
        return entry
    return entry[mangled.end() : mangled.end() + int(mangled[1])]


def bound_of(function: Function) -> tuple[int, int, int] | None:
    """The block that an entry was bounded to (``__launch_bounds__``), or None."""
    if not function.max_threads:
        return None
    x, y, z = (*function.max_threads, 1, 1)[:3]
    return x, y, z


def word_of(parameter: Variable) -> str:
    """A parameter's type in the words of the accepted signatures."""
    if parameter.pointer:
        return "pointer"
    return WORDS.get(parameter.kind, f"{parameter.size} bytes")


def takes_pitches(file: Path, name: str, function: Function) -> bool:
    """Which of the two accepted signatures an entry has: true for the one with leading dimensions.

    Raises:
        UsageError: it has another.
    """
    found = [word_of(parameter) for parameter in function.parameters]
    # A compiler that does not mark pointers declares them as 64-bit integers.
    unmarked = not any(parameter.pointer for parameter in function.parameters)
    for wanted in (PLAIN, PITCHED):
        as_declared = ["long long" if unmarked and word == "pointer" else word for word in wanted]
        if found == as_declared:
            return wanted is PITCHED
    if unmarked:
        found = ["pointer or long long" if word == "long long" else word for word in found]
    raise UsageError(f"{file.name}: {name} takes ({', '.join(found)}); accepted are {ACCEPTED}")
