"""What the machine code of a run's kernels says, kept beside its rows: main-loop mix, bounds, bytes a block loads.

Rows hold what was measured; this is read off the builds of this checkout, by :mod:`kernel.inspection`, without a GPU.
A kernel whose build here has other registers than its rows is another kernel by now, and is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel.errors import GemmTracksError, RunFileError
from kernel.whole_file import write_text

if TYPE_CHECKING:
    from kernel.inspection import Inspection

FORMAT = 1
FILE = "code.json"


def collect(
    rows: Sequence[Mapping[str, Any]], advance: Callable[[float, str], None] = lambda done, text: None
) -> tuple[dict[str, Any], dict[str, str]]:
    """(facts by kernel name, why a kernel has none by name) of every kernel of a catalog that the rows name.

    ``advance`` is told how many are done and which is next. Builds what is not built.
    """
    from compare.contenders import KernelContender, every_contender
    from kernel.inspection import inspect_kernel

    registers: dict[str, set[int]] = {}
    for row in rows:
        if row["registers"] is not None:
            registers.setdefault(str(row["name"]), set()).add(int(row["registers"]))
    known = {c.name: c.kernel for c in every_contender() if isinstance(c, KernelContender)}
    facts: dict[str, Any] = {}
    without: dict[str, str] = {}
    for done, (name, expected) in enumerate(registers.items()):
        advance(done, name)
        if name not in known:
            without[name] = "in no catalog here"
            continue
        try:
            found = inspect_kernel(known[name])
        except GemmTracksError as error:
            without[name] = str(error)
            continue
        if found.resources.registers not in expected:
            without[name] = f"built here with {found.resources.registers} registers, recorded with {sorted(expected)}"
        else:
            facts[name] = facts_of(found)
    return facts, without


def facts_of(found: Inspection) -> dict[str, Any]:
    """The part of an inspection that the report shows. Counts are instructions of a warp in a step of k."""
    levels = {level.level: level.value for level in found.intensity}
    facts: dict[str, Any] = {
        "threads a block": found.threads,
        "blocks an SM": found.occupancy.blocks,
        "limited by": ", ".join(found.occupancy.limited_by),
    }
    loop = found.loop
    if loop is not None:
        facts["math share of issue slots, %"] = round(100 * loop.math_share, 1)
        if loop.bound_issue is not None:
            facts["bound by issue slots, % of peak"] = round(100 * loop.bound_issue, 1)
        if loop.bound_shared is not None and loop.bound_shared < 1:
            facts["bound by shared memory, % of peak"] = round(100 * loop.bound_shared, 1)
        if loop.warning:
            facts["warning"] = loop.warning
    for level, value in levels.items():
        facts[f"FLOP/byte, {level}"] = round(value, 2)
    return {
        "per_k_step": {name: round(count, 3) for name, count in loop.per_k_step.items()} if loop else {},
        "intensity_global": levels.get("global"),
        "facts": facts,
    }


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON's")


def write(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Keep them beside a run's rows; what was kept before goes."""
    path = folder / FILE
    write_text(path, json.dumps({"format": FORMAT, "kernels": facts}, indent=1) + "\n")
    return path


def read(folder: Path) -> dict[str, Any]:
    """Facts by kernel name; empty where the run has none.

    Raises:
        RunFileError: the file is not of this format.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError) as error:
        raise RunFileError(f"{path}: cannot be read: {error}") from error
    kernels = record.get("kernels") if isinstance(record, dict) else None
    if not isinstance(kernels, dict) or record.get("format") != FORMAT:
        raise RunFileError(f"{path}: not of format {FORMAT}")
    if not all(isinstance(facts, dict) for facts in kernels.values()):
        raise RunFileError(f"{path}: every kernel's facts must be an object")
    return kernels
