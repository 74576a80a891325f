"""Building what contenders need, in parallel, with a progress display; and what was built, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from compare.contenders import Contender, KernelContender
from kernel.contract import Artifact, Unit
from kernel.errors import BuildError, MissingToolError
from kernel.plan import scale_unit

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Built = Mapping[str, "Artifact | BuildError | MissingToolError"]
"""By unit name: what was built, or why it was not."""


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


def build(contenders: Iterable[Contender], console: Console) -> Built:
    """Build them all. What is there already costs a look-up; a failure is a value, reported by the caller."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from kernel.build import BuildEvent, build_all

    units = units_of(contenders)
    columns = (TextColumn("building"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("", total=len(units))

        def show(event: BuildEvent) -> None:
            display.update(task, completed=event.done, description=event.unit)
            if event.error is not None:
                display.console.print(f"{event.unit} was not built: {_first_line(event.error)}", style="red", markup=False)

        return build_all(units, progress=show)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class BuiltRow(NamedTuple):
    """What one unit's entry needs, as read from its cubin; ``problem`` where there is none."""

    name: str
    unit: str
    family: str
    track: str
    tile: str
    stages: int
    registers: int | None
    spill_bytes: int | None
    static_smem: int | None
    compiler: str
    problem: str


def built_rows(contenders: Iterable[Contender], built: Built) -> list[BuiltRow]:
    """One row per unit of each contender."""
    rows = []
    for contender in kernels_of(contenders):
        for unit in contender.kernel.units():
            result = built[unit.name]
            shared = (contender.name, unit.name, contender.family, contender.track, str(contender.tile))
            stages = contender.tile.NUM_STAGES
            if not isinstance(result, Artifact):
                rows.append(BuiltRow(*shared, stages, None, None, None, "", _first_line(result)))
                continue
            for entry, needs in result.resources.items():
                problem = "spills, and its catalog entry does not allow it" if needs.spill_bytes and not unit.allow_spills else ""
                name = unit.name if len(result.resources) == 1 else f"{unit.name}:{entry}"
                rows.append(
                    BuiltRow(
                        contender.name, name, contender.family, contender.track, str(contender.tile), stages,
                        needs.registers, needs.spill_bytes, needs.static_smem, result.compiler, problem,
                    )
                )  # fmt: skip
    return rows


def built_table(rows: Iterable[BuiltRow]) -> Table:
    """What was built here, one line per unit."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Built and inspected here", title_justify="left", title_style="bold")
    for heading in ("build", "track", "tile", "regs", "spills", "static smem", "compiler"):
        table.add_column(heading, justify="right" if heading in ("regs", "spills", "static smem") else "left")
    for row in rows:
        if row.registers is None:
            table.add_row(row.unit, row.track, row.tile, "", "", "", Text(row.problem, style="red"))
            continue
        tile = f"{row.tile} s{row.stages}" if row.stages else row.tile
        numbers = (str(row.registers), str(row.spill_bytes), str(row.static_smem))
        table.add_row(row.unit, row.track, tile, *numbers, row.compiler, style="red" if row.problem else "")
    return table
