"""What a claim is, what checking one gives, and the evidence that checks draw on.

Evidence is made when a check first asks for it: builds of the chapter's kernels, inspections of catalog
kernels, the recorded run. A check that lacks its evidence raises :class:`Unavailable`, which becomes the
verdict *not checkable here*; nothing else does.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel import build, disassemble, inspection, sass
from kernel.contract import Argument, Artifact, Kernel, Launch, Pointers, Problem, Tile, Unit, ceil_div
from kernel.errors import GemmTracksError

HOLDS = "holds"
CONDITION = "holds with a condition"
DIFFERS = "differs"
NOT_HERE = "not checkable here"
VERDICTS = (HOLDS, CONDITION, DIFFERS, NOT_HERE)

CHAPTER = "chapter"
"""tiled_gemm_chapter.txt, chapter 11; sections as numbered there."""
EXPLAINED = "explained"
"""gemm_tiling_explained.txt; sections as numbered there."""

FOLDER = Path(__file__).parent
CHAPTER_GPU = "NVIDIA H100 80GB HBM3"
"""The device that the chapter means by H100 SXM5."""


class Unavailable(Exception):  # noqa: N818 - a verdict, not a failure
    """The evidence a check needs is not here; the text says what is missing and what brings it."""


@dataclass(frozen=True)
class Finding:
    """What one check computed."""

    verdict: str
    value: str
    """The evidence itself, in numbers; for a condition or a difference also what it is."""
    run: str = ""
    """Recorded run that measured values come from, empty where nothing was measured."""


@dataclass(frozen=True)
class Claim:
    """One checkable statement of a text, in our words."""

    id: str
    section: str
    """Text and section, such as ``chapter 11.5.1``."""
    statement: str
    method: str
    """How it is checked, in one line."""
    check: Callable[[Evidence], Finding]


def verdict(holds: bool, value: str, condition: str = "", run: str = "") -> Finding:
    """Holds (with the condition, where one is given) or differs."""
    if not holds:
        return Finding(DIFFERS, value, run)
    return Finding(CONDITION, f"{value}; {condition}", run) if condition else Finding(HOLDS, value, run)


PLAIN_TILE = Tile(BLOCK_M=128, BLOCK_N=128, BLOCK_K=16, WARP_M=64, WARP_N=32, THREAD_M=8, THREAD_N=8)


@dataclass(frozen=True, kw_only=True)
class PlainKernel(Kernel):
    """The chapter's kernel in our wording, one entry of plain.cu: six plain parameters, 16 x 16 threads."""

    def units(self) -> tuple[Unit, ...]:
        return (PLAIN,)

    def rejects(self, problem: Problem) -> str | None:
        elements = max(problem.extent(operand) for operand in "abc")
        return f"{elements} elements; 32-bit offsets end at 2**31 - 1" if elements >= 2**31 else None

    def variant(self, problem: Problem) -> str:
        return ""

    def launches(self, problem: Problem) -> tuple[Launch, ...]:
        grid = (ceil_div(problem.n, self.tile.BLOCK_N), ceil_div(problem.m, self.tile.BLOCK_M), 1)
        return (Launch(unit=PLAIN, entry=self.name, grid=grid, block=(16, 16, 1)),)

    def pack(self, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
        addresses = (pointers.a, pointers.b, pointers.c)
        extents = (problem.m, problem.n, problem.k)
        values = [*(a.to_bytes(8, "little") for a in addresses), *(e.to_bytes(4, "little") for e in extents)]
        return (tuple(Argument(data=value) for value in values),)


def _unit(stem: str, arch: str = "sm_90a", flags: tuple[str, ...] = (), *, spills: bool = False) -> Unit:
    name = f"claims.{stem}.{arch}" + "".join(flag.replace("=", "") for flag in flags)
    return Unit(name=name, arch=arch, source=FOLDER / f"{stem}.cu", flags=flags, allow_spills=spills)


PLAIN = _unit("plain")
TAILS = _unit("tails")
BANK_PROBE = _unit("bank_probe")
ASYNC_COPY = {arch: _unit("async_copy", arch) for arch in ("sm_80", "sm_90a")}
SPILLING = _unit("plain", flags=("-maxrregcount=64",), spills=True)
"""The same kernel with fewer registers than it needs; built to show spilling, never launched."""

UNITS = (PLAIN, TAILS, BANK_PROBE, *ASYNC_COPY.values(), SPILLING)
"""Everything that claims build; those that go to a GPU (plain, tails, bank_probe) belong into the bundle."""


def plain_kernel(ahead: int) -> PlainKernel:
    """The plain kernel that reads 1 or 4 k steps ahead."""
    return PlainKernel(
        name=f"plain_{ahead}",
        family="handwritten",
        track="fp32_simt",
        instruction="ffma",
        arch="sm_90a",
        tile=PLAIN_TILE,
        summary="the chapter's kernel as it stands, kept as evidence",
        in_default_set=False,
    )


@dataclass(frozen=True)
class Recorded:
    """The recorded run: its name and rows."""

    run: str
    gpu: str
    rows: tuple[dict[str, Any], ...]

    def best_window(self, name: str, size: int, column: str) -> tuple[float, str] | None:
        """A number of a contender at size^3 and the window it comes from: sustained, else burst."""
        for window in ("sustained", "burst"):
            for row in self.rows:
                same = row["name"] == name and (row["m"], row["n"], row["k"]) == (size, size, size)
                if same and row["window"] == window and row["l2"] == "warm" and row[column] is not None and row["ok"]:
                    return float(row[column]), window
        return None


class Evidence:
    """Everything checks may ask for, each made once."""

    def __init__(self, results: Path | None = None, gpu: str = "nvidia-h200") -> None:
        self.results, self.gpu = results, gpu

    @functools.cached_property
    def plain(self) -> dict[int, inspection.Inspection]:
        """Inspections of the plain kernel by read-ahead."""
        return {ahead: self._inspect(plain_kernel(ahead)) for ahead in (1, 4)}

    @functools.cache  # noqa: B019 - one Evidence lives as long as one command
    def kernel(self, name: str) -> inspection.Inspection:
        """Inspection of a hand-written kernel of the catalog."""
        from handwritten import catalog

        return self._inspect(catalog.get(name))

    @functools.cached_property
    def cutlass(self) -> inspection.Inspection:
        """Inspection of CUTLASS's SIMT kernel with the chapter's block and thread tile, row-major operands."""
        from cutlass_ref import catalog

        wanted = {"BLOCK_M": 128, "BLOCK_N": 128, "THREAD_M": 8, "THREAD_N": 8}
        for kernel in catalog.KERNELS:
            if (
                kernel.track == "fp32_simt"
                and "rr" in kernel.layouts
                and wanted.items() <= dict(kernel.tile.items()).items()
            ):
                return self._inspect(kernel)
        raise Unavailable(
            "the catalog holds no CUTLASS SIMT kernel with a 128x128 tile, 8x8 a thread, row-major operands"
        )

    def _inspect(self, kernel: Kernel) -> inspection.Inspection:
        with needs_tools():
            return inspection.inspect_kernel(kernel)

    @functools.cache  # noqa: B019
    def artifact(self, unit: Unit) -> Artifact:
        """A built unit."""
        with needs_tools():
            return build.artifact(unit)

    @functools.cache  # noqa: B019
    def listing(self, unit: Unit, entry: str) -> sass.Listing:
        """Machine code of a built entry."""
        with needs_tools():
            return sass.parse(disassemble.sass(self.artifact(unit).cubin, entry))

    @functools.cached_property
    def recorded(self) -> Recorded:
        """The newest complete recorded run on :attr:`gpu`."""
        from compare import runs

        folder = (self.results or runs.results_root()) / self.gpu / "latest"
        try:
            provenance, rows = runs.read_run(folder)
        except GemmTracksError:
            raise Unavailable(
                f"there is no complete recorded run on {self.gpu}; gemm-tracks compare --record makes one"
            ) from None
        name = f"{self.gpu}/{folder.resolve().name}"
        return Recorded(run=name, gpu=str(provenance.get("gpu", {}).get("name", self.gpu)), rows=tuple(rows))

    @functools.cache  # noqa: B019
    def measured(self, name: str) -> dict[str, Any]:
        """A file of results/<gpu>/evidence, as ``python -m compare.evidence`` writes it."""
        from compare import runs

        path = (self.results or runs.results_root()) / self.gpu / "evidence" / f"{name}.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise Unavailable(
                f"there is no readable {self.gpu}/evidence/{name}.json; python -m compare.evidence makes it on a GPU"
            ) from None
        return found

    def evidence_run(self, name: str) -> str:
        """How a measured file names itself in the table."""
        return f"{self.gpu}/evidence/{name}.json ({str(self.measured(name).get('date', ''))[:10]})"


class needs_tools:  # noqa: N801 - reads as a statement: with needs_tools()
    """Turns missing tools and packages into :class:`Unavailable`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        from kernel.errors import MissingToolError

        if isinstance(error, MissingToolError):
            raise Unavailable(str(error)) from None
