"""Building what contenders need, in parallel, with a progress display; and what was built, as columns and a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from compare.contenders import Contender, KernelContender
from compare.rows import row
from kernel.contract import Artifact, Launch, Problem, Unit
from kernel.errors import BuildError, MissingToolError
from kernel.gate import objections
from kernel.occupancy import Occupancy, occupancy_of
from kernel.plan import plan, scale_unit

if TYPE_CHECKING:
    from rich.table import Table

Built = Mapping[str, "Artifact | BuildError | MissingToolError"]
"""By unit name: what was built, or why it was not."""

TYPICAL = 4096
"""Extent of the cube at which a kernel's launch is described where no problem is given."""


def kernels_of(contenders: Iterable[Contender]) -> tuple[KernelContender, ...]:
    """Those contenders that have a kernel of ours to build; libraries bring their own."""
    return tuple(contender for contender in contenders if isinstance(contender, KernelContender))


def units_of(contenders: Iterable[Contender]) -> tuple[Unit, ...]:
    """Every translation unit that the contenders may launch from, the scale-only ones included, each once."""
    kernels = kernels_of(contenders)
    found = {unit.name: unit for contender in kernels for unit in contender.kernel.units()}
    for arch in sorted({contender.arch for contender in kernels}):
        found.setdefault(scale_unit(arch).name, scale_unit(arch))
    return tuple(found.values())


def build(contenders: Iterable[Contender]) -> Built:
    """Build them all, showing progress. What is there already costs a look-up; a failure is a value and a message."""
    from compare.console import progress
    from kernel.build import BuildEvent, build_all

    units = units_of(contenders)
    with progress("building", len(units)) as advance:

        def show(event: BuildEvent) -> None:
            advance(event.done, event.unit)

        built = build_all(units, progress=show)
    say_what_failed(built)
    return built


def say_what_failed(built: Built) -> None:
    """One message for each reason that units were not built for: a missing package is one reason for many."""
    from compare.console import messages

    found: dict[str, list[str]] = {}
    for name, result in built.items():
        if not isinstance(result, Artifact):
            found.setdefault(first_line(result), []).append(name)
    for reason, names in found.items():
        one = f"{names[0]} was" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more were"
        messages().print(f"{one} not built: {reason}", style="red")


def first_line(error: Exception) -> str:
    """The first line of an error's text."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def resident(launch: Launch, built: Built) -> tuple[Artifact, Occupancy] | None:
    """What runs a launch, and how it fills an SM; None where it was not built."""
    artifact = built.get(launch.unit.name)
    if not isinstance(artifact, Artifact) or launch.entry not in artifact.resources:
        return None
    needs = artifact.resources[launch.entry]
    return artifact, occupancy_of(artifact.arch, needs, threads=launch.threads, dynamic_smem=launch.dynamic_smem)


def static_columns(contender: Contender, problem: Problem, built: Built) -> dict[str, Any]:
    """Columns that are known without running: resources, occupancy, entry symbols, compiler; empty for libraries.

    Raises:
        RejectedError: the contender cannot run the problem.
    """
    if not isinstance(contender, KernelContender):
        return {}
    planned = plan(contender.kernel, problem)
    launch = planned.main_launch
    found = resident(launch, built) if launch is not None else None
    if launch is None or found is None:
        return {}
    artifact, filled = found
    needs = artifact.resources[launch.entry]
    return {
        **runner_columns(contender, problem),
        "registers": needs.registers,
        "spill_bytes": needs.spill_bytes,
        "smem_bytes": needs.static_smem + launch.dynamic_smem,
        "occupancy_pct": filled.percent,
        "kernel_name": "+".join(step.entry for step in planned.launches),
        "compiler": artifact.compiler,
    }


def runner_columns(contender: Contender, problem: Problem) -> dict[str, Any]:
    """Columns of a catalog entry that are another kernel's where the contender hands the problem over to it."""
    if not isinstance(contender, KernelContender) or problem.is_scale_only:
        return {}
    runner = contender.kernel.runner(problem)
    if runner is contender.kernel:
        return {}
    return {
        "instruction": runner.instruction,
        "tile": str(runner.tile),
        "stages": runner.tile.NUM_STAGES or None,
        "swizzle": runner.swizzle or None,
    }


def catalog_columns(contender: Contender) -> dict[str, Any]:
    """Columns that a contender's catalog entry fixes."""
    return {
        "name": contender.name,
        "family": contender.family,
        "track": contender.track,
        "instruction": contender.instruction or None,
        "arch": contender.arch or None,
        "tile": str(contender.tile) if contender.tile.items() else None,
        "stages": contender.tile.NUM_STAGES or None,
        "swizzle": contender.swizzle or None,
        "dtype_in": contender.dtype_in,
        "dtype_acc": contender.dtype_acc,
        "dtype_out": contender.dtype_out,
        "is_default": contender.is_default,
    }


def refused(contender: Contender, problem: Problem, built: Built) -> str | None:
    """Why the problem may not be timed: the contender's own refusal, a failed build, or the static gate."""
    reason = contender.rejects(problem)
    if reason is not None or not isinstance(contender, KernelContender):
        return reason
    for launch in plan(contender.kernel, problem).launches:
        artifact = built.get(launch.unit.name)
        if artifact is None:
            return f"{launch.unit.name} was not built"
        if not isinstance(artifact, Artifact):
            return f"{launch.unit.name} was not built: {first_line(artifact)}"
        found = objections(launch, artifact)
        if found:
            return f"static gate: {'; '.join(found)}"
    return None


def built_rows(contenders: Iterable[Contender], built: Built) -> list[dict[str, Any]]:
    """One row per kernel as it was built here, described at a cube of :data:`TYPICAL`; nothing in it was run."""
    rows = []
    for contender in kernels_of(contenders):
        problem = contender.problem(TYPICAL, TYPICAL, TYPICAL)
        reason = refused(contender, problem, built)
        values = {"skipped_because": reason} if reason else static_columns(contender, problem, built)
        variant = "" if reason else contender.variant(problem)
        shape = {"m": problem.m, "n": problem.n, "k": problem.k, "layout": problem.layout, "variant": variant}
        rows.append(row(**{**catalog_columns(contender), **shape, **values}))
    return rows


def built_table(rows: Iterable[Mapping[str, Any]], width: int | None = None) -> Table:
    """What was built here, one line per kernel; ``width`` is the room that it has, in columns of text."""
    from compare.console import Head, table_of

    heads = {
        "name": Head("kernel", folds=True),
        "track": Head("track", goes=3),
        "tile": Head("tile", goes=4),
        "stages": Head("stages", right=True, goes=2),
        "registers": Head("regs", right=True),
        "spill_bytes": Head("spilled\nB", right=True),
        "smem_bytes": Head("smem\nB", right=True),
        "occupancy_pct": Head("occupancy\n%", right=True),
        "compiler": Head("compiler", goes=1),
    }
    lines, remarks = [], []
    for line in rows:
        if line["skipped_because"]:
            lines.append(([line["name"], line["track"], *("" for _ in range(len(heads) - 2))], "red"))
            remarks.append(f"{line['name']}: {line['skipped_because']}")
            continue
        cells = {name: "" if line[name] is None else str(line[name]) for name in heads}
        cells["occupancy_pct"] = "" if line["occupancy_pct"] is None else f"{line['occupancy_pct']:.1f}"
        lines.append(([*cells.values()], ""))
    return table_of("Built and inspected here", [*heads.values()], lines, width, remarks)
