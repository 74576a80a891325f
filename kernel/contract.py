"""The records that everything compared is turned into, whatever wrote it.

Vocabulary: A is m x k, B is k x n, C is m x n, and C = alpha * A @ B + beta * C. A layout is two
letters, A then B, each ``r`` (row-major) or ``c`` (column-major); C is always row-major. Leading
dimensions count elements, sizes count bytes unless a name says otherwise.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel.errors import BuildError, DtypeError, LayoutError, ProblemError, ShapeError

ITEMSIZE = {"float32": 4, "float16": 2}
"""Bytes per element of every data type an operand can have."""

LAYOUTS = ("rr", "rc", "cr", "cc")
TRACKS = ("fp32_simt", "tf32_tensor", "fp16_tensor")
FAMILIES = ("handwritten", "cutlass", "cute_dsl", "cublas", "torch")
INT32_MAX = 2**31 - 1
MAX_GRID_X = 2**31 - 1
MAX_GRID_YZ = 65535
MAX_KNOWN_ALIGNMENT = 256


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One GEMM: C[m,n] = alpha * A[m,k] @ B[k,n] + beta * C.

    Leading dimensions are in elements; left out, they are packed. ``align_*`` is the largest power
    of two, in bytes and at most 256, that divides the operand's base pointer.

    Raises:
        ShapeError: an extent is negative, not an integer, or at least 2**31.
        LayoutError: an unknown layout, or a leading dimension smaller than the width it spans.
        DtypeError: an unknown data type, or a scalar that is no real number.
        ProblemError: a scalar is too large for a float32.
    """

    m: int
    n: int
    k: int
    dtype_in: str = "float32"
    dtype_acc: str = "float32"
    dtype_out: str = "float32"
    layout: str = "rr"
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    align_a: int = MAX_KNOWN_ALIGNMENT
    align_b: int = MAX_KNOWN_ALIGNMENT
    align_c: int = MAX_KNOWN_ALIGNMENT

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ShapeError(f"{name} is {value!r}; an integer is needed")
            if not 0 <= value <= INT32_MAX:
                raise ShapeError(f"{name} = {value}; extents from 0 to 2**31 - 1 are supported")
        for name in ("dtype_in", "dtype_acc", "dtype_out"):
            if getattr(self, name) not in ITEMSIZE:
                known = ", ".join(ITEMSIZE)
                raise DtypeError(f"{name} is {getattr(self, name)!r}; known data types: {known}")
        if self.layout not in LAYOUTS:
            raise LayoutError(f"layout is {self.layout!r}; known: {', '.join(LAYOUTS)} (A, then B)")
        for name, width in (("lda", self.a_width), ("ldb", self.b_width), ("ldc", self.n)):
            value = getattr(self, name)
            if value == 0:
                object.__setattr__(self, name, max(width, 1))
            elif isinstance(value, bool) or not isinstance(value, int) or value < max(width, 1):
                raise LayoutError(f"{name} = {value!r}; an integer of at least {max(width, 1)} is needed")
        for name in ("align_a", "align_b", "align_c"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise LayoutError(f"{name} = {value!r}; a power of two, in bytes, is needed")
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise DtypeError(f"{name} is {value!r}; a real number is needed")
            try:
                single(float(value))
            except OverflowError:
                raise ProblemError(f"{name} = {value!r}; kernels take it as a float32, at most 3.4e38") from None

    @property
    def a_width(self) -> int:
        """Elements that are contiguous in A: k if A is row-major, else m."""
        return self.k if self.layout[0] == "r" else self.m

    @property
    def b_width(self) -> int:
        """Elements that are contiguous in B: n if B is row-major, else k."""
        return self.n if self.layout[1] == "r" else self.k

    @property
    def flop(self) -> int:
        """Floating-point operations, 2 * m * n * k."""
        return 2 * self.m * self.n * self.k

    @property
    def is_empty(self) -> bool:
        """True where C has no elements, so nothing is launched."""
        return self.m == 0 or self.n == 0

    @property
    def is_scale_only(self) -> bool:
        """True where the product does not count, so that C = beta * C (the BLAS rule)."""
        return single(self.alpha) == 0.0 or self.k == 0

    @property
    def bytes_min(self) -> int:
        """Fewest bytes through device memory: A and B read once, C written once (and read if beta)."""
        size_in, size_out = ITEMSIZE[self.dtype_in], ITEMSIZE[self.dtype_out]
        passes = 1 if self.beta == 0.0 else 2
        return size_in * (self.m * self.k + self.k * self.n) + size_out * passes * self.m * self.n

    def extent(self, operand: str) -> int:
        """Elements from an operand's base pointer to the end of its last row or column."""
        rows, width, pitch = {
            "a": (self.m if self.layout[0] == "r" else self.k, self.a_width, self.lda),
            "b": (self.k if self.layout[1] == "r" else self.n, self.b_width, self.ldb),
            "c": (self.m, self.n, self.ldc),
        }[operand]
        return (rows - 1) * pitch + width if rows and width else 0

    def replace(self, **changes: Any) -> Problem:
        """The same problem with fields changed; leading dimensions are kept unless given."""
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        text = f"{self.m}x{self.n}x{self.k} {self.layout} {self.dtype_in}"
        if (self.alpha, self.beta) != (1.0, 0.0):
            text += f" alpha={self.alpha:g} beta={self.beta:g}"
        packed = (max(self.a_width, 1), max(self.b_width, 1), max(self.n, 1))
        if (self.lda, self.ldb, self.ldc) != packed:
            text += f" ld={self.lda},{self.ldb},{self.ldc}"
        aligns = (self.align_a, self.align_b, self.align_c)
        if min(aligns) < 16:
            text += f" align={','.join(map(str, aligns))}"
        return text


def unaligned(problem: Problem) -> str | None:
    """Why no kernel may touch an operand of the problem, element by element even: its base; None where all are fine."""
    for name, dtype in (("a", problem.dtype_in), ("b", problem.dtype_in), ("c", problem.dtype_out)):
        base, size = getattr(problem, f"align_{name}"), ITEMSIZE[dtype]
        if base < size:
            return f"{name.upper()}: its base address is a multiple of {base} bytes; an element of {dtype} has {size}"
    return None


def single(value: float) -> float:
    """A scalar as kernels get it: rounded to float32.

    Raises:
        OverflowError: it is finite and too large.
    """
    return float(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def pointer_alignment(address: int) -> int:
    """Largest power of two, at most 256, that divides an address in bytes."""
    return MAX_KNOWN_ALIGNMENT if address == 0 else min(address & -address, MAX_KNOWN_ALIGNMENT)


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below a / b, exact for every size of integer."""
    return -(-a // b)


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A kernel's compile-time extents, in elements; 0 where the kernel has no such level.

    These are the only names for them: they are the -D macros, the catalog keys and the table's words.
    """

    BLOCK_M: int = 0
    BLOCK_N: int = 0
    BLOCK_K: int = 0
    WARP_M: int = 0
    WARP_N: int = 0
    THREAD_M: int = 0
    THREAD_N: int = 0
    MMA_M: int = 0
    MMA_N: int = 0
    MMA_K: int = 0
    NUM_STAGES: int = 0
    CLUSTER_M: int = 0
    CLUSTER_N: int = 0

    def items(self) -> tuple[tuple[str, int], ...]:
        """(name, value) of every extent the kernel has, in the order above."""
        pairs = ((f.name, int(getattr(self, f.name))) for f in dataclasses.fields(self))
        return tuple((name, value) for name, value in pairs if value)

    def defines(self) -> tuple[str, ...]:
        """Compiler options that hand the tile to a source file."""
        return tuple(f"-D{name}={value}" for name, value in self.items())

    def __str__(self) -> str:
        return "x".join(str(v) for v in (self.BLOCK_M, self.BLOCK_N, self.BLOCK_K) if v) or "-"


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One translation unit: what the compiler is given to make one Artifact.

    ``name`` is the kernel's name, or ``name.variant`` for a build of the same source with other
    flags. ``source`` is a file of ours or a function that emits the text (called only when a build
    or ``--source`` needs it; it may raise MissingToolError). ``catalog`` is the text of the catalog
    entry, hashed into the manifest, so that an artifact is found without emitting its source.
    """

    name: str
    arch: str
    source: Path | Callable[[], str] = field(compare=False)
    flags: tuple[str, ...] = ()
    include_dirs: Path | Callable[[], tuple[Path, ...]] | None = field(default=None, compare=False)
    """Folder or folders searched for ``<...>`` includes, beside the source's own folder."""
    headers: str = ""
    """What the include folders hold, such as ``nvidia-cutlass 4.2.0.0``: it stands for their content in the key."""
    catalog: str = ""
    allow_spills: bool = False
    """True only where the catalog entry says so, with its reason beside it."""
    language: str = "cuda"
    """``cuda``: the text is for nvcc. ``ptx``: another compiler, named by ``headers``, made PTX of a program; ptxas is
    all that is left to run."""
    attachments: Callable[[], Mapping[str, str]] | None = field(default=None, compare=False)
    """Texts kept beside the artifact by file name, such as the program behind a PTX text; called when it is built."""

    def text(self) -> str:
        """The source text, UTF-8.

        Raises:
            BuildError: the file cannot be read.
            MissingToolError: it has to be emitted, and what emits it is not installed.
        """
        if not isinstance(self.source, Path):
            return self.source()
        try:
            return self.source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            what = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise BuildError(
                f"{self.name}: its source {self.source.parent.name}/{self.source.name} cannot be read ({what})"
            ) from None

    def include_folders(self) -> tuple[Path, ...]:
        """The include folders, found now: they differ between machines and are in no key."""
        if self.include_dirs is None:
            return ()
        return (self.include_dirs,) if isinstance(self.include_dirs, Path) else self.include_dirs()


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel launch. ``grid`` counts thread blocks (never clusters), ``block`` threads."""

    unit: Unit
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_smem: int = 0
    """Dynamic shared memory, bytes."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Thread blocks per cluster, given at launch; (1, 1, 1) launches without the attribute."""
    overlaps: bool = False
    """True where blocks may start before the launch ahead of it on the stream has ended (programmatic dependent
    launch): the kernel itself waits before it touches memory that the other may write or read."""
    multiplies: bool = True
    """False where it does no products itself: it clears, transposes, scales, or adds up what another one multiplied."""
    workspace: int = 0
    """Bytes of scratch memory that this launch is handed; launches of one problem share the memory."""
    workspace_zeroed: int = 0
    """Leading bytes of the workspace that must be zero at this launch; the clearing is part of the timed work."""

    @property
    def blocks(self) -> int:
        """Thread blocks in the grid."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return math.prod(self.block)


@dataclass(frozen=True, kw_only=True)
class Pointers:
    """Device addresses of the operands and of the workspace (0 where there is none)."""

    a: int
    b: int
    c: int
    workspace: int = 0


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """A tensor map before encoding: on a GPU the driver encodes it, the PTX machine reads it as is.

    Extents are innermost first. ``strides`` has one entry fewer than ``shape``, in bytes.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int = 0
    """Bytes of the swizzle span: 0, 32, 64 or 128."""
    l2_promotion: int = 0
    """Bytes: 0, 64, 128 or 256."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One kernel parameter: its bytes, and the tensor maps to encode into them (offset, map)."""

    data: bytes
    tensor_maps: tuple[tuple[int, TensorMap], ...] = ()
    order: bool = False
    """True where byte i is the place of the launch's cluster i in an order of all. As given it is the identity; a
    launch site that knows the chip puts a permutation there (:mod:`kernel.placement`); any gives the same C."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one entry point needs, read from its cubin."""

    registers: int
    """Registers per thread."""
    spill_bytes: int
    """Bytes of spill stores plus spill loads, from the assembler's report."""
    static_smem: int
    """Static shared memory in bytes, without the 1,024 that sm_90 and later reserve."""
    stack_bytes: int = 0
    constant_bytes: int = 0
    max_threads: int = 0
    """Threads per block that the entry was bounded to, 0 where it has no bound."""
    barriers: int = 0


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A built unit on disk. The cubin that is inspected is the cubin that is launched."""

    unit: str
    key: str
    arch: str
    compiler: str
    """What built it, such as ``nvcc 13.0.88``."""
    folder: Path
    resources: dict[str, Resources]
    """By entry symbol."""

    @property
    def cubin(self) -> Path:
        return self.folder / "kernel.cubin"

    @property
    def ptx(self) -> Path:
        return self.folder / "kernel.ptx"

    @property
    def log(self) -> Path:
        return self.folder / "build.log"

    @property
    def source(self) -> Path:
        """What a person wrote: CUDA C++, or the Python program that the PTX comes from."""
        program = self.folder / "kernel.py"
        return program if program.is_file() else self.folder / "kernel.cu"

    @property
    def layouts(self) -> Path:
        """The CuTe layouts of a DSL kernel, one a line; absent for other kernels."""
        return self.folder / "layouts.txt"


@dataclass(frozen=True, kw_only=True)
class Kernel(ABC):
    """A GEMM kernel that can be built, inspected, launched and compared.

    Subclasses, one per family, answer for problems that are neither empty nor scale-only: those
    two are settled for every family alike by :func:`kernel.plan.plan`.
    """

    name: str
    """File stem, entry symbol (where we choose it), catalog key and table row."""
    family: str
    track: str
    instruction: str
    """ffma, mma_sync or wgmma."""
    arch: str
    """Such as ``sm_90a``."""
    tile: Tile
    summary: str
    """What it adds to its predecessor, in one line."""
    dtype_in: str = "float32"
    dtype_acc: str = "float32"
    dtype_out: str = "float32"
    layouts: tuple[str, ...] = ("rr",)
    swizzle: str = ""
    """Threadblock or shared-memory swizzle as the catalog states it, empty for none."""
    is_default: bool = False
    """True where this is the plan that a library picks when nothing is specified."""
    in_default_set: bool = True
    """True where ``compare`` times it without being asked for it by name."""
    largest_timed: int = 0
    """Cubic size above which a default run leaves the kernel out as too slow; 0 for no limit."""

    @abstractmethod
    def units(self) -> tuple[Unit, ...]:
        """Every translation unit the kernel may launch from, the widest variant first."""

    @abstractmethod
    def rejects(self, problem: Problem) -> str | None:
        """Why this kernel cannot run the problem (operand, extent, rule), or None if it can."""

    @abstractmethod
    def variant(self, problem: Problem) -> str:
        """Name of the build that runs the problem: vec4, vec1, or empty where there is only one."""

    @abstractmethod
    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        """Every launch the problem takes, in order. Clearing and reductions are among them."""

    @abstractmethod
    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        """The parameters of each launch, in the same order as :meth:`launches`."""

    def runner(self, problem: Problem) -> Kernel:
        """The kernel whose code runs the problem: this one, or one that it hands the problem over to."""
        return self

    def why(self, problem: Problem) -> str:
        """Why :meth:`runner` is who it is, in one phrase; empty where it is this kernel."""
        return ""

    def on(self, gpu: str, sm_count: int) -> Kernel:
        """This kernel as it plans for a device, by the name its driver reports; most plan alike for all."""
        return self

    def rejects_type_or_layout(self, problem: Problem) -> str | None:
        """The part of :meth:`rejects` that all families share: data types and layout."""
        given = (problem.dtype_in, problem.dtype_acc, problem.dtype_out)
        needed = (self.dtype_in, self.dtype_acc, self.dtype_out)
        if given != needed:
            return f"data types (in, accumulator, out) are {', '.join(given)}; {self.name} takes {', '.join(needed)}"
        if problem.layout not in self.layouts:
            return f"layout is {problem.layout} (A, B); {self.name} takes {', '.join(self.layouts)}"
        return unaligned(problem)
