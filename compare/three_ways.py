"""Rewrites the table of docs/three_ways.md: one SGEMM idea in CUDA C++, in CUTLASS C++ through Python, in the CuTe DSL.

    python -m compare.three_ways [--keep-times]

What machine code says is read from the builds, fractions of cuBLAS and counters from what was recorded. Compile times
are measured anew, each kernel from an empty cache, unless ``--keep-times`` takes them from the page as it is.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare import runs
from compare.contenders import KernelContender, contenders
from compare.readme import rewrite
from kernel.errors import GemmTracksError

PAGE = "docs/three_ways.md"
BEGIN, END = "<!-- three-ways:begin -->", "<!-- three-ways:end -->"
SIZE, COUNTED = 4096, 1024
NOT_RECORDED = "not recorded yet"


@dataclass(frozen=True)
class Way:
    """One of the three: a kernel of the catalog, and the text that a person wrote for it."""

    title: str
    kernel: str
    files: tuple[str, ...]
    """What a person wrote, relative to the checkout; empty where it is the page's own snippet."""


WAYS = (
    Way(
        "CUDA C++",
        "v7_wide_tile",
        (
            "handwritten/v7_wide_tile.cu",
            "handwritten/wide_tile.cuh",
            "handwritten/thread_tile.cuh",
            "handwritten/tile_io.cuh",
        ),
    ),
    Way("CUTLASS C++ through Python", "cutlass_simt_128x256x5_s1_rr", ()),
    Way("CuTe DSL", "cute_sgemm", ("cutlass_ref/cute/sgemm.py",)),
)


def code_lines(text: str, python: bool) -> int:
    """Lines that hold code: no blank ones, comments or docstrings."""
    if not python:
        bare = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        return sum(1 for line in bare.splitlines() if line.split("//")[0].strip())
    lines: set[int] = set()
    previous = tokenize.NEWLINE
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        docstring = token.type == tokenize.STRING and previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type not in (*skipped, tokenize.ENDMARKER) and not docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            previous = token.type
    return len(lines)


def written(way: Way, page: str) -> str:
    """How many lines of code a person wrote."""
    if way.files:
        texts = [(name, (runs.repository() / name).read_text(encoding="utf-8")) for name in way.files]
        return str(sum(code_lines(text, name.endswith(".py")) for name, text in texts))
    snippet = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    return str(code_lines(snippet[1], True)) if snippet else "0"


def compile_seconds(kernel: str) -> float:
    """Processor seconds from nothing to the cubin of the kernel's first build: emission, imports and assembly.

    Processor time, since what else the machine does must not decide.

    Raises:
        GemmTracksError: it cannot be built here; the text is the child's.
    """
    code = (
        "import sys; from compare.contenders import contenders; from kernel.build import artifact; "
        "(c,) = contenders([sys.argv[1]]); artifact(c.kernel.units()[0])"
    )
    with tempfile.TemporaryDirectory(prefix="gemm-tracks-three-ways-") as cache:
        environment = {name: value for name, value in os.environ.items() if name != "GEMM_TRACKS_BUNDLE"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", code, kernel],
            cwd=runs.repository(),
            env={**environment, "GEMM_TRACKS_CACHE": cache},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise GemmTracksError(f"{kernel} cannot be built here: {last}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def machine_code(kernel: str) -> dict[str, str]:
    """Lines of the table that the build states."""
    from kernel.inspection import inspect_kernel

    (contender,) = contenders([kernel])
    assert isinstance(contender, KernelContender)
    found = inspect_kernel(contender.kernel)
    loads = [access for access in found.shared if access.kind == "load"]
    copies = [access for access in found.shared if access.kind in ("store", "copy")]
    loop = found.loop
    assert loop is not None
    mix = ", ".join(f"{count:g} {name}" for name, count in loop.per_k_step.items() if count >= 0.005)

    def conflicts(accesses: Sequence[Any]) -> str:
        return f"{sum(access.conflicts * access.per_k_step for access in accesses):g}"

    return {
        "registers, spilled bytes": f"{found.resources.registers}, {found.resources.spill_bytes}",
        "shared memory of a block, bytes": str(found.resources.static_smem + found.dynamic_smem),
        "instructions of a warp and step of k": mix,
        "FFMA of all issued": f"{100 * loop.math_share:.1f} %",
        "predicted conflicts of a warp and step of k, loads": conflicts(loads),
        "predicted conflicts of a warp and step of k, stores and copies": conflicts(copies),
    }


def counted(kernel: str) -> str:
    """Bank conflicts of shared loads that Nsight Compute counted at 1024 cubed, in a recorded run."""
    folder = runs.results_root() / runs.RECORDED_GPU / "evidence"
    for name in ("three_ways.json", "counters.json"):
        found = _read(folder / name).get("kernels", {}).get(kernel)
        if found is not None:
            return f"{found['conflicts']:,.0f}"
    for run in _read(folder / "cute_conflicts.json").get("runs", ()):
        if (run["kernel"], run["layout"], run["m"]) == (kernel, "rr", COUNTED):
            hardware = run["hardware"]
            copies = hardware["conflicts_all"] - hardware["conflicts_loads"] - hardware["conflicts_stores"]
            return f"{hardware['conflicts_loads']:,.0f}; cp.async {copies:,.0f}"
    return NOT_RECORDED


def _read(path: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def of_cublas(kernel: str) -> str:
    """The headline ratio at 4096 cubed in the recorded run."""
    from compare.report import headline

    folder = runs.latest()
    rows = headline(runs.read_run(folder)[1]) if folder else []
    for row in rows:
        if row["name"] == kernel and (row["m"], row["n"], row["k"]) == (SIZE,) * 3 and row["x_cublas"]:
            return f"{row['x_cublas']:.3f} ({row['window']}, {row['tflops']:.1f} TFLOP/s)"
    return NOT_RECORDED


def kept_times(page: str) -> list[str] | None:
    """The compile times that the page states, one a way, or None."""
    line = re.search(r"^\| compile time[^|]*\|(.*)\|$", page, re.MULTILINE)
    return [cell.strip() for cell in line[1].split("|")] if line else None


def table(page: str, times: Sequence[str]) -> str:
    """The table in Markdown."""
    columns: list[dict[str, str]] = []
    for way, seconds in zip(WAYS, times, strict=True):
        columns.append(
            {
                "kernel": f"`{way.kernel}`",
                "lines of code a person writes": written(way, page),
                "compile time, one build from an empty cache, processor seconds": seconds,
                **machine_code(way.kernel),
                f"conflicts of shared loads counted on an H200, {COUNTED} cubed": counted(way.kernel),
                f"fraction of cuBLAS SGEMM, {SIZE} cubed, recorded": of_cublas(way.kernel),
            }
        )
    head = "| | " + " | ".join(way.title for way in WAYS) + " |"
    lines = [head, "|---|" + "---|" * len(WAYS)]
    lines += [f"| {name} | " + " | ".join(column[name] for column in columns) + " |" for name in columns[0]]
    return "\n".join(lines)


def main(arguments: Sequence[str] = ()) -> int:
    """Exit status: 0, or the error's own."""
    path = runs.repository() / PAGE
    try:
        page = path.read_text(encoding="utf-8")
        times = kept_times(page) if "--keep-times" in arguments else None
        if times is None:
            times = [f"{compile_seconds(way.kernel):.1f}" for way in WAYS]
        path.write_text(rewrite(page, table(page, times), BEGIN, END), encoding="utf-8")
    except GemmTracksError as error:
        sys.stderr.write(f"{path.name}: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
