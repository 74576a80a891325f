"""Everything that can be compared, as one kind of record, whatever wrote the kernel.

Collecting contenders reads catalogs only: no driver, no torch, no CuPy, nothing is built.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import functools
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from handwritten.dispatch import DispatchKernel
from kernel import build, toolchain
from kernel.contract import FAMILIES, Kernel, Pointers, Problem, Tile, unaligned
from kernel.errors import CatalogError
from kernel.plan import SCALE_VARIANT, plan

if TYPE_CHECKING:
    from compare.shapes import Shape

NO_TILE = Tile()


class Prepared(Protocol):
    """A problem that is ready to run; :class:`kernel.launch.Prepared` is one."""

    @property
    def variant(self) -> str:
        """Name of the build that runs."""

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Entry symbols, in the order they run."""

    def enqueue(self, stream: int) -> None:
        """Put the whole GEMM on a stream (a CUstream as an integer) and return at once."""


@dataclass(frozen=True, kw_only=True)
class Contender(ABC):
    """One row of the table: a kernel of ours, one that CUTLASS emits, or a library call.

    Fields mean what they mean in :class:`kernel.contract.Kernel`; ``arch`` and ``instruction`` are
    empty where a library decides them by itself.
    """

    name: str
    family: str
    track: str
    summary: str
    instruction: str = ""
    arch: str = ""
    tile: Tile = NO_TILE
    dtype_in: str = "float32"
    dtype_acc: str = "float32"
    dtype_out: str = "float32"
    layouts: tuple[str, ...] = ("rr",)
    swizzle: str = ""
    is_default: bool = False
    in_default_set: bool = True
    largest_timed: int = 0

    @property
    def is_dispatcher(self) -> bool:
        """Whether it picks one of our kernels for each problem rather than being one."""
        return False

    @property
    def selected_by(self) -> str:
        """Options of ``check`` and ``compare`` that choose this contender alone."""
        return f"--kernels {self.name}"

    @abstractmethod
    def rejects(self, problem: Problem) -> str | None:
        """Why the problem cannot be run (operand, extent, rule), or None if it can."""

    @abstractmethod
    def variant(self, problem: Problem) -> str:
        """Name of the build that runs the problem; ``empty`` and ``scale_only`` for those two kinds."""

    @abstractmethod
    def needs(self) -> str:
        """What is not installed, as a phrase; empty where nothing is missing. File look-ups only."""

    @abstractmethod
    def prepare(self, problem: Problem, pointers: Pointers, stream: int) -> Prepared:
        """Bind the problem to device memory on the current device.

        Args:
            problem: what to compute.
            pointers: device addresses of A, B and C; the workspace is the contender's own.
            stream: CUstream that work needed beforehand (never the GEMM itself) may use.

        Raises:
            RejectedError: :meth:`rejects` gives a reason.
            NoDeviceError, MissingToolError, BuildError, LaunchError: it cannot run here.
        """

    def on(self, gpu: str, sm_count: int) -> Contender:
        """This contender as it plans for a device, by the name its driver reports; most plan alike for all."""
        return self

    def problem(self, m: int, n: int, k: int, **changes: Any) -> Problem:
        """A problem of this contender's types, in its first layout unless another is given."""
        types = {"dtype_in": self.dtype_in, "dtype_acc": self.dtype_acc, "dtype_out": self.dtype_out}
        return Problem(m=m, n=n, k=k, **{"layout": self.layouts[0], **types, **changes})

    def nearest(self, shape: Shape) -> Shape:
        """What ``check --fuzz`` takes in place of a shape it drew; another one where this would only be refused."""
        return shape

    def rejects_type_or_layout(self, problem: Problem) -> str | None:
        """The part of :meth:`rejects` that is common to all families."""
        given = (problem.dtype_in, problem.dtype_acc, problem.dtype_out)
        needed = (self.dtype_in, self.dtype_acc, self.dtype_out)
        if given != needed:
            return f"data types (in, accumulator, out) are {', '.join(given)}; {self.name} takes {', '.join(needed)}"
        if problem.layout not in self.layouts:
            return f"layout is {problem.layout} (A, B); {self.name} takes {', '.join(self.layouts)}"
        return unaligned(problem)


@dataclass(frozen=True, kw_only=True)
class KernelContender(Contender):
    """A kernel from a catalog: built by nvcc, launched by us."""

    kernel: Kernel

    @classmethod
    def of(cls, kernel: Kernel) -> KernelContender:
        """The contender of a catalog entry, its fields copied."""
        shared = (f.name for f in dataclasses.fields(Contender))
        return cls(kernel=kernel, **{name: getattr(kernel, name) for name in shared})

    @property
    def is_dispatcher(self) -> bool:
        return isinstance(self.kernel, DispatchKernel)

    def on(self, gpu: str, sm_count: int) -> KernelContender:
        return dataclasses.replace(self, kernel=self.kernel.on(gpu, sm_count))

    def rejects(self, problem: Problem) -> str | None:
        reason = self.rejects_type_or_layout(problem)
        if reason is None and not (problem.is_empty or problem.is_scale_only):
            reason = self.kernel.rejects(problem)
        return reason

    def rejects_type_or_layout(self, problem: Problem) -> str | None:
        return self.kernel.rejects_type_or_layout(problem)

    def variant(self, problem: Problem) -> str:
        return plan(self.kernel, problem).variant

    def needs(self) -> str:
        missing = [] if is_installed("cupy") else ["cupy-cuda13x"]
        if not is_installed("cuda.bindings"):
            missing.append("cuda-bindings")
        if build.bundle_root() is None:
            if not _has_tool("nvcc"):
                missing.append("nvcc")
            if self.family == "cutlass" and not is_installed("cutlass_cppgen"):
                missing.append("nvidia-cutlass")
            if self.family == "cute_dsl":
                missing += _missing_for(self.kernel)
        return ", ".join(missing)

    def prepare(self, problem: Problem, pointers: Pointers, stream: int) -> Prepared:
        from kernel import launch

        return launch.prepare(self.kernel, problem, pointers)


def _missing_for(kernel: Kernel) -> list[str]:
    """Packages that a DSL kernel is compiled with and that are not installed."""
    from cutlass_ref.cute.catalog import CuteKernel
    from cutlass_ref.cute.emit import missing

    assert isinstance(kernel, CuteKernel)
    return list(dict.fromkeys(name for program in kernel.programs()[:1] for name in missing(program)))


def settled_variant(problem: Problem) -> str:
    """The variant of a problem that no GEMM kernel runs (``empty``, ``scale_only``), or empty."""
    if problem.is_empty:
        return "empty"
    return SCALE_VARIANT if problem.is_scale_only else ""


@functools.cache
def is_installed(module: str) -> bool:
    """Whether a module could be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@functools.cache
def _has_tool(name: str) -> bool:
    return next(iter(toolchain.candidates(name)), None) is not None


@functools.cache
def every_contender() -> tuple[Contender, ...]:
    """All of them, ordered by family; names are unique.

    Raises:
        CatalogError: two contenders have one name.
    """
    from compare.libraries import LIBRARIES
    from cutlass_ref import catalog as cutlass_catalog
    from cutlass_ref.cute import catalog as cute_catalog
    from handwritten import catalog as handwritten_catalog

    ours: tuple[Kernel, ...] = (*handwritten_catalog.KERNELS, *handwritten_catalog.DISPATCHERS)
    kernels: tuple[Kernel, ...] = (*ours, *cutlass_catalog.KERNELS, *cute_catalog.KERNELS)
    found: list[Contender] = [*map(KernelContender.of, kernels), *LIBRARIES]
    found.sort(key=lambda contender: FAMILIES.index(contender.family))
    names = [contender.name for contender in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CatalogError(f"several contenders are called {', '.join(twice)}; each needs a name of its own")
    return tuple(found)


def contenders(patterns: str | Sequence[str] | None = None, own: Sequence[Contender] = ()) -> tuple[Contender, ...]:
    """Contenders whose names match any of the patterns, in catalog order; all where none is given.

    Args:
        patterns: names or globs (``v?_*``), one text or several; each may hold several, separated by commas.
        own: contenders from files of the user's, which are chosen whatever the patterns; they follow their family.

    Raises:
        CatalogError: a pattern matches nothing (the text names the nearest ones), or there is no name in the texts.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not own:
        return choose(every_contender(), patterns)
    known = sorted((*every_contender(), *own), key=lambda contender: FAMILIES.index(contender.family))
    chosen = choose(known, patterns)
    return tuple(contender for contender in known if contender in own or contender in chosen)


def choose(among: Iterable[Contender], patterns: Sequence[str] | None) -> tuple[Contender, ...]:
    """The same for a given collection."""
    known = tuple(among)
    texts = [part.strip() for text in patterns or () for part in text.split(",")]
    wanted = [text for text in texts if text]
    if not wanted:
        if texts:
            raise CatalogError(
                f"{','.join(patterns or ())!r} names no kernel; give names or globs, or leave it out for all"
            )
        return known
    names = [contender.name for contender in known]
    chosen: set[str] = set()
    for pattern in wanted:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            begun = [name for name in names if name.startswith(pattern)]
            whole = [name for name in begun if name[len(pattern)] == "_"]  # v2 is no part of v20's number
            near = (whole or begun)[:3] or difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(near)}?" if near else "see `gemm-tracks list`"
            raise CatalogError(f"no contender is called {pattern!r}; {hint}")
        chosen.update(matched)
    return tuple(contender for contender in known if contender.name in chosen)
