"""Has the CuTe DSL compile a program to PTX: the only file that starts what imports ``cutlass``.

Two packages carry similar names. nvidia-cutlass (import name cutlass_cppgen) emits C++ and is part of the base install;
nvidia-cutlass-dsl (import name cutlass) is the optional one that this file needs. Importing it takes half a second and
brings its own MLIR, so it runs in a child process: for sm_90a, with no GPU visible and no cache of its own.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernel.build import content_folder, digest
from kernel.errors import BuildError, MissingToolError

PACKAGE, VERSION = "nvidia-cutlass-dsl", "4.8.1"
OPERATORS, OPERATORS_VERSION = "nvidia-cutlass-operators", "0.3.0"
EXTRA = "gemm-tracks[cute]"
HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Program:
    """One PTX text to ask the DSL for: which program of this folder, and what it is told.

    ``entry`` begins the name of the PTX's one entry. The DSL puts ``cutlass`` behind it unless ``marked`` is false;
    ptxas keeps the order of FFMAs as written in entries whose name holds that word, so it is a property of the build.
    """

    name: str
    """sgemm or hgemm."""
    entry: str
    options: tuple[tuple[str, Any], ...]
    marked: bool = True

    @property
    def symbol(self) -> str:
        """The entry symbol; the DSL numbers its kernels from 0."""
        return f"{self.entry}_cutlass_0" if self.marked else f"{self.entry}_0"

    @property
    def path(self) -> Path:
        """The program's file."""
        return HERE / f"{self.name}.py"

    @property
    def packages(self) -> tuple[tuple[str, str], ...]:
        """(distribution, version) of everything the program needs beyond the base install."""
        needed = ((PACKAGE, VERSION),)
        return (*needed, (OPERATORS, OPERATORS_VERSION)) if self.name == "hgemm" else needed

    @property
    def headers(self) -> str:
        """The packages in words, as a build's record and key state them."""
        return ", ".join(f"{name} {version}" for name, version in self.packages)

    def text(self) -> str:
        """What is asked for, in full: two programs with one text give one PTX."""
        return json.dumps([asdict(self), self.headers, digest(self.path.read_text(encoding="utf-8"))])


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """What the DSL made of a program."""

    ptx: str
    python: str
    """The program that a person wrote: ours, or the file of NVIDIA's package that holds the kernel."""
    layouts: str
    """The CuTe layouts that the kernel uses, one a line."""
    facts: Mapping[str, Any]
    """What the DSL computed and the catalog has to know too, such as bytes of shared memory."""
    seconds: float
    """Compilation to PTX and to the DSL's own cubin, without the import of the package."""

    def attachments(self) -> dict[str, str]:
        """The files kept beside the artifact."""
        facts = {**self.facts, "dsl_seconds": self.seconds}
        return {"kernel.py": self.python, "layouts.txt": self.layouts, "facts.json": json.dumps(facts, indent=1)}


def missing(program: Program) -> tuple[str, ...]:
    """Distributions that the program needs and that are not installed; file look-ups only."""
    return tuple(name for name, _ in program.packages if not _installed(name))


@functools.cache
def _installed(distribution: str) -> str:
    """Version of an installed distribution, or empty."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def require(program: Program) -> None:
    """Raise unless everything the program needs is installed, in the version the catalog was written for.

    Raises:
        MissingToolError: names each distribution, its import name where two could be confused, and the cure.
    """
    cure = f"pip install '{EXTRA}'"
    for name, version in program.packages:
        found = _installed(name)
        what = f"{name} (import name cutlass)" if name == PACKAGE else name
        if not found:
            other = " (nvidia-cutlass, import name cutlass_cppgen, is another package)" if name == PACKAGE else ""
            raise MissingToolError(f"{what} is not installed; {cure} brings it{other}")
        if found != version:
            raise MissingToolError(f"{what} {found} is installed; the catalog was written for {version}: {cure}")


def emit(program: Program) -> Emitted:
    """The PTX of a program, compiled once and then read from the cache.

    Raises:
        MissingToolError: a package is not installed and the program was never compiled here.
        BuildError: the DSL refused the program; says with what words.
    """
    key = f"{program.text()}\n{Path(__file__).read_text(encoding='utf-8')}"

    def make(folder: Path) -> None:
        (folder / "emitted.json").write_text(json.dumps(_run_child(program), indent=1), encoding="utf-8")

    folder = content_folder(f"emitted/{program.entry}", key, make)
    return Emitted(**json.loads((folder / "emitted.json").read_text(encoding="utf-8")))


def _run_child(program: Program) -> dict[str, Any]:
    """Run :func:`child` on a program in a process of its own; its answer."""
    require(program)
    places = [str(Path(place).absolute()) for place in sys.path if place]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUTE_DSL_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *places]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "CUTE_DSL_ARCH": "sm_90a",
        "CUTE_DSL_DISABLE_FILE_CACHING": "1",
    }
    with tempfile.TemporaryDirectory(prefix="gemm-tracks-cute-") as scratch:
        answer = Path(scratch) / "answer.json"
        done = subprocess.run(
            [sys.executable, "-c", "from cutlass_ref.cute import emit; emit.child()"],
            input=json.dumps({"program": asdict(program), "answer": str(answer)}),
            capture_output=True,
            text=True,
            cwd=scratch,
            env=environment,
            check=False,
        )
        if done.returncode != 0 or not answer.exists():
            words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            last = next((line for line in reversed(words) if "rror" in line), words[-1] if words else "no message")
            raise BuildError(f"{program.headers} refused {program.entry}: {last}", done.stderr)
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def child() -> None:
    """Entry of the child process: a program on standard input, the answer in the file it names."""
    import importlib

    request = json.loads(sys.stdin.read())
    fields = request["program"]
    options = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in fields.pop("options"))
    program = Program(options=options, **fields)
    module = importlib.import_module(f"cutlass_ref.cute.{program.name}")
    with tempfile.TemporaryDirectory(prefix="gemm-tracks-cute-") as scratch:
        began = time.monotonic()
        emitted = module.compile_program(program, scratch)
        seconds = time.monotonic() - began
    if f".entry {program.symbol}(" not in emitted["ptx"]:
        raise RuntimeError(f"the DSL's PTX has no entry {program.symbol}")
    Path(request["answer"]).write_text(json.dumps({**emitted, "seconds": round(seconds, 3)}), encoding="utf-8")
