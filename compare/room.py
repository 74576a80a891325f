"""What memory a run on the PTX machine needs, and what this host has left: said before the system ends the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from compare.contenders import Contender, KernelContender
from compare.reference import BLOCK_ELEMENTS
from kernel.contract import ITEMSIZE
from kernel.plan import plan

if TYPE_CHECKING:
    from kernel.contract import Problem

COPIES = 5
"""For each byte of an operand: the caller's, the machine's, its shadow, and two while it is laid out or read back.
This and the next were measured as peaks of whole checks at 16 to 121 million elements, 2026-11-30: within 5 %."""
COMPARED = 72
"""Bytes for each element of C that is compared with float64 at once."""
WORKSPACE_COPIES = 2
SURELY_SMALL = 1 << 24
"""Bytes of operands for which every host has room enough."""
CGROUP = Path("/sys/fs/cgroup")
CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
"""Limit and use of this process's group, and what the use consists of, in either version of cgroups."""


def needed(contender: Contender, problem: Problem, *, compared: bool = True) -> int:
    """Bytes at the peak of a run on the PTX machine; ``compared``: with the float64 reference of a check after it."""
    operands = _operand_bytes(problem)
    before = problem.m * problem.n * ITEMSIZE[problem.dtype_out] if problem.beta != 0.0 else 0
    if problem.is_empty:
        return operands
    machine = COPIES * operands + before
    if isinstance(contender, KernelContender):
        machine += WORKSPACE_COPIES * plan(contender.kernel, problem).workspace
    if not compared:
        return machine
    rows = min(problem.m, max(1, BLOCK_ELEMENTS // max(problem.n, problem.k, 1)))
    wide = 2 * 8 * problem.k * (problem.n + rows)  # A's rows and all of B in float64, and their magnitudes
    return max(machine, operands + before + wide + COMPARED * rows * problem.n)


def _operand_bytes(problem: Problem) -> int:
    sizes = {"a": problem.dtype_in, "b": problem.dtype_in, "c": problem.dtype_out}
    return sum(problem.extent(name) * ITEMSIZE[dtype] for name, dtype in sizes.items())


def available() -> int | None:
    """Bytes that could be had now without swapping, within the limits of this process's group; None if not known."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        if "SC_AVPHYS_PAGES" in os.sysconf_names:
            found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit, used, parts in CGROUP_FILES:
        try:
            left = int((CGROUP / limit).read_text()) - int((CGROUP / used).read_text())
            # Pages of files count as used and are given up when others want them.
            kept = dict(line.split() for line in (CGROUP / parts).read_text().splitlines())
            found.append(left + int(kept.get("total_inactive_file", kept.get("inactive_file", 0))))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return max(0, min(found)) if found else None


def too_large(contender: Contender, problem: Problem, *, compared: bool = True) -> str | None:
    """Why a problem is not run on the PTX machine, or None; ``contender`` must not reject it."""
    if _operand_bytes(problem) <= SURELY_SMALL:
        return None
    need, there = needed(contender, problem, compared=compared), available()
    if there is None or need <= there:
        return None
    return (
        f"about {need / 1e9:.2g} GB of memory on the PTX machine, and {there / 1e9:.2g} GB are free here; "
        "check it on a GPU, or a smaller problem with the same tails"
    )
