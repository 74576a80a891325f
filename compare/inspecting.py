"""The command ``inspect``: one kernel or file, or two side by side, from machine code alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compare.contenders import KernelContender, contenders
from compare.folding import folded, terminal_width
from compare.own_kernels import block_of
from kernel.errors import CatalogError, NoDeviceError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from compare.counters import Counters
    from kernel.inspection import Inspection
    from kernel.intensity import Roof

PROFILED_SHAPE = "1024x1024x1024"
ROOFLINE_GPU = "NVIDIA H200"
"""The device whose roofline is shown where none is named: the one that the recorded runs come from."""
FILE_SUFFIXES = (".cu", ".ptx", ".cubin")


def run_inspect(
    what: Sequence[str],
    shape: str,
    views: Sequence[str],
    *,
    as_json: bool,
    gpu: str = "",
    svg: Path | None = None,
    layout: str = "",
    symbol: str = "",
    threads: str = "",
) -> bool:
    """Run the command; true where the view ``races`` found a fault.

    ``gpu`` names the device of the roofline; ``svg`` is a file for the picture of the lane maps; ``layout`` is that of
    A and B, a kernel's first where it is left out. ``symbol`` and ``threads`` name a file's kernel and its block.

    Raises:
        GemmTracksError: a name is unknown, a build failed, or a tool is missing; after what needs no GPU was printed,
            that counters were asked for and there is none.
    """
    from compare.console import answers, print_json
    from compare.machine_runs import print_races, races_as_json, races_of

    if len(what) > 2 and not views and not as_json and svg is None:
        raise UsageError(f"{len(what)} names were given; one, or two for side by side, are needed without a view")
    found = [inspection_of(name, shape, gpu, layout, symbol, threads) for name in what]
    if svg is not None:
        write_picture(found, svg)
    outcomes = [races_of(name, shape) for name in what] if "races" in views else []
    failed = any(outcome.faults for outcome in outcomes)
    counted = [counters_of(one, shape or PROFILED_SHAPE) for one in found] if "ncu" in views else []
    lacking = "" if failed else next((one.lacks_gpu for one in counted if one is not None and one.lacks_gpu), "")
    if as_json:
        records = [one.to_dict() for one in found]
        for record, outcome in zip(records, outcomes, strict=False):
            record["races"] = races_as_json(outcome)
        for record, counts in zip(records, counted, strict=False):
            record["counters"] = counts.to_dict() if counts is not None else None
        print_json(records[0] if len(records) == 1 else records)
        need_gpu(lacking)
        return failed
    console = answers()
    if views:
        for number, one in enumerate(found):
            for view in views:
                if view == "races":
                    print_races(one.name, outcomes[number], console)
                elif view == "ncu":
                    print_summary(one, console)
                    print_ncu(one, counted[number], console, shape or PROFILED_SHAPE)
                else:
                    VIEWS[view](one, console)
    elif len(found) == 2:
        print_side_by_side(found[0], found[1], console)
    elif len(found) == 1:
        print_summary(found[0], console)
    need_gpu(lacking)
    return failed


def need_gpu(lacking: str) -> None:
    """End a command whose counters are wanting for the want of a GPU, which ``lacking`` says.

    Raises:
        NoDeviceError: it says something.
    """
    if lacking:
        raise NoDeviceError(f"{lacking}; --ncu needs a GPU and Nsight Compute (ncu). What needs neither stands above")


def counters_of(one: Inspection, shape: str) -> Counters | None:
    """Counters of one launch beside their prediction; None for a file's kernel.

    Raises:
        UsageError: the shape is not MxNxK.
    """
    from compare.counters import counters
    from compare.shapes import parse_one

    if one.family == "file":
        return None
    problem = parse_one(shape, "--shape")
    return counters(one.name, (problem.m, problem.n, problem.k))


def write_picture(found: Sequence[Inspection], path: Path) -> None:
    """Write the lane maps side by side as one SVG.

    Raises:
        UsageError: none of them has a lane map.
    """
    from compare.console import messages
    from kernel.mapping import svg
    from kernel.whole_file import write_text

    maps = [one.lane_map for one in found if one.lane_map is not None]
    if not maps:
        raise UsageError(f"{', '.join(one.name for one in found)}: no lane map is known, so there is nothing to draw")
    write_text(path, svg(maps))
    messages().print(f"wrote {path}")


def roof_of(gpu: str, track: str) -> Roof | None:
    """The roofline of a device for a track, None where a published figure is not known.

    Raises:
        CatalogError: no bandwidth is known for a device of that name.
    """
    from compare.peaks import peak
    from kernel.intensity import BANDWIDTH, Roof

    if gpu not in BANDWIDTH:
        raise CatalogError(f"the memory bandwidth of {gpu!r} is not known; known devices: {', '.join(BANDWIDTH)}")
    published = peak(gpu, track).datasheet
    return Roof(gpu, published, BANDWIDTH[gpu]) if published else None


def inspection_of(
    name: str, shape: str, gpu: str = "", layout: str = "", symbol: str = "", threads: str = ""
) -> Inspection:
    """The inspection of a kernel by name, or of a file, whose kernel ``symbol`` then names and ``threads`` sizes.

    Raises:
        UsageError: the name is a library's, which has no code of ours; a symbol or block for one of a catalog, a shape
            or layout for a file.
        LayoutError, RejectedError: no such layout, or the kernel does not take it.
        CatalogError: an unknown device or kernel.
    """
    from compare.shapes import parse_one
    from kernel.inspection import inspect_file, inspect_kernel, problem_for

    if not name.strip():
        raise UsageError(f"{name!r} is no name; give a kernel's, as gemm-tracks list prints it, or a file")
    if name.endswith(FILE_SUFFIXES):
        if shape or layout:
            raise UsageError(f"{name}: --shape and --layout choose among a catalog's builds; a file has the one it has")
        roof = roof_of(gpu, "fp32_simt") if gpu else None
        block = block_of(threads) if threads else None
        return inspect_file(Path(name), entry=symbol or None, block=block, roof=roof)
    if symbol or threads:
        raise UsageError(f"{name}: --symbol and --threads are for a kernel from a file")
    try:
        (*_, contender) = contenders([name])
    except CatalogError:
        if name and Path(name).exists():
            known = ", ".join(FILE_SUFFIXES)
            raise UsageError(f"{name} is neither a kernel's name nor a file that ends in {known}") from None
        raise
    if not isinstance(contender, KernelContender) or contender.name != name:
        raise UsageError(f"{name}: one kernel from a catalog, or a .cu, .ptx or .cubin file, can be inspected")
    problem = parse_one(shape, "--shape").problem(contender) if shape else None
    if layout:
        problem = (problem or problem_for(contender.kernel)).replace(layout=layout, lda=0, ldb=0)
    return inspect_kernel(contender.kernel, problem, roof=roof_of(gpu or ROOFLINE_GPU, contender.track))


def print_summary(one: Inspection, console: Console) -> None:
    """An inspection, a line for each thing people compare, then opcodes and remarks."""
    from kernel.inspection import summary

    console.print(one.name, style="bold")
    opcodes = ", ".join(f"{count} {name}" for name, count in list(one.opcodes.items())[:16])
    lines = {**summary(one), "instructions, as written": f"{sum(one.opcodes.values())}: {opcodes}"}
    width, wide = max(map(len, lines)), terminal_width()
    for what, text in lines.items():
        console.print(folded(f"  {what.ljust(width)}  {text}", wide, indent=width + 4), soft_wrap=True)
    for note in one.notes:
        console.print(folded(f"  note: {note}", wide), soft_wrap=True)


def print_side_by_side(left: Inspection, right: Inspection, console: Console) -> None:
    """Two inspections line by line; lines that differ stand out."""
    from compare.console import Head, table_of
    from kernel.inspection import side_by_side

    lines = [
        ((line.what, line.left, line.right), "bold" if line.differs else "dim") for line in side_by_side(left, right)
    ]
    heads = tuple(Head(text, folds=True) for text in ("", left.name, right.name))
    console.print(table_of("", heads, lines, console.width))


def print_source(one: Inspection, console: Console) -> None:
    """The text that was compiled.

    Raises:
        UsageError: the file that was given is machine code.
    """
    if one.source.endswith(".cubin"):
        raise UsageError(f"{one.source} is machine code and brings no source; --sass prints what it holds")
    console.file.write(Path(one.source).read_text(encoding="utf-8"))


def print_layouts(one: Inspection, console: Console) -> None:
    """The CuTe layouts of a DSL kernel, shape:stride, as the DSL states them."""
    layouts = Path(one.source).with_name("layouts.txt")
    if not layouts.is_file():
        console.print(f"{one.name}: only kernels of the CuTe DSL state layouts; --mapping shows who holds what")
        return
    console.file.write(layouts.read_text(encoding="utf-8"))


def print_ptx(one: Inspection, console: Console) -> None:
    """The PTX beside the cubin.

    Raises:
        UsageError: the file that was given brings none.
    """
    ptx = Path(one.cubin).with_suffix(".ptx")
    if not ptx.is_file():
        raise UsageError(f"{one.cubin}: there is no PTX beside it; give a kernel's name or a .cu file")
    console.file.write(ptx.read_text(encoding="utf-8"))


def print_sass(one: Inspection, console: Console) -> None:
    """The disassembler's listing of the entry."""
    console.file.write(listing_of(one))


def listing_of(one: Inspection) -> str:
    """nvdisasm's text for the entry; a .ptx or .cu file that was given is built first."""
    from kernel.disassemble import assemble, sass

    cubin = Path(one.cubin)
    if cubin.suffix == ".cubin":
        return sass(cubin, one.entry)
    import tempfile

    from kernel.build import artifact
    from kernel.contract import Unit

    if cubin.suffix == ".cu":
        unit = Unit(name=f"file.{cubin.stem}", arch=one.arch, source=cubin.absolute(), allow_spills=True)
        return sass(artifact(unit).cubin, one.entry)
    with tempfile.TemporaryDirectory(prefix="gemm-tracks-inspect-") as scratch:
        assembled = Path(scratch) / f"{cubin.stem}.cubin"
        assemble(cubin, one.arch, assembled)
        return sass(assembled, one.entry)


def print_loop(one: Inspection, console: Console) -> None:
    """The main loop: its instructions, and what a step of k costs."""
    from kernel import sass
    from kernel.inspection import which_loop

    if one.loop is None:
        console.print(f"{one.name}: no loop with FFMA, HMMA or HGMMA was found")
        return
    which = which_loop(one.loop)
    if which:
        console.print(folded(f"{one.name}: {which}", terminal_width()), soft_wrap=True)
    listing = sass.parse(listing_of(one))
    for instruction in listing.within(listing.loop_at(one.loop.inner_header)):
        console.print(f"/*{instruction.address:04x}*/  {instruction.text}", soft_wrap=True)
    console.print(f"per k step and warp, {one.loop.counted}:")
    for name, count in one.loop.by_name.items():
        console.print(f"  {count:8g} {name}")


def print_banks(one: Inspection, console: Console) -> None:
    """Every access to shared memory: passes a warp takes, and the fewest that its width allows."""
    from compare.console import Head, table_of

    heads = (
        Head("address", goes=1),
        Head("access", goes=2),
        Head("instruction", folds=True),
        *(Head(text, right=True) for text in ("bytes\na lane", "passes", "ideal", "per\nk step")),
    )
    lines = []
    for access in one.shared:
        passes = (f"{access.passes:g}", f"{access.ideal:g}") if access.known else ("not known", "")
        cells = (
            f"{access.address:04x}",
            access.kind,
            access.text,
            str(access.width),
            *passes,
            f"{access.per_k_step:g}",
        )
        lines.append((cells, ""))
    console.print(table_of("", heads, lines, console.width))


def print_mapping(one: Inspection, console: Console) -> None:
    """Which lane holds which elements of the block tile."""
    if one.lane_map is None:
        console.print(f"{one.name}: its lane map is not known")
        return
    from kernel.mapping import text

    console.print(text(one.lane_map), soft_wrap=True)


def print_ncu(one: Inspection, found: Counters | None, console: Console, shape: str) -> None:
    """Nsight Compute's counters for one launch, beside what the bank model predicts; or why there are none."""
    from compare.console import Head, table_of

    if found is None:
        console.print(f"{one.name}: counters are read for kernels of a catalog only")
        return
    if found.not_available:
        console.print(f"{one.name}: counters not available: {found.not_available}", soft_wrap=True)
    lines = []
    for line in found.lines:
        numbers = ("" if number is None else f"{number:,.6g}" for number in (line.predicted, line.measured))
        lines.append(((line.what, *numbers, line.note), ""))
    heads = (Head("", folds=True), Head("predicted", right=True), Head("measured", right=True), Head("", folds=True))
    console.print(table_of(f"{one.name} on {shape}", heads, lines, console.width))


VIEWS = {
    "source": print_source,
    "layouts": print_layouts,
    "ptx": print_ptx,
    "sass": print_sass,
    "loop": print_loop,
    "banks": print_banks,
    "mapping": print_mapping,
}
"""By option name; ``ncu`` and ``races`` run a problem and are apart."""
