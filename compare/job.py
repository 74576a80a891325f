"""The main job, ``compare``: build, check, time, report; or, with no GPU, build, inspect and join what was recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import importlib.util
import os
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare import dispatch_tables, driver, report, runs
from compare.building import Built, build, built_rows, built_table, kernels_of, refused, runner_columns
from compare.contenders import Contender, contenders
from compare.credibility import without_impossible
from compare.groups import Group, Site, groups
from compare.scoring import measured_row, unmeasured_row, with_sgemm_ratio
from kernel.contract import Artifact
from kernel.errors import BuildError, CheckError, GemmTracksError, MissingToolError, NoDeviceError, UsageError

if TYPE_CHECKING:
    from compare.ceilings import Ceiling
    from compare.measure import Measurement, Settings
    from compare.own_kernels import OwnContender, OwnOptions
    from compare.shapes import Shape
    from compare.stopwatch import Stopwatch
    from compare.trials import Trials

DEFAULT_SHAPES = "default"
RECORD_HEADLINES = (4096, 8192)
"""Cubes at which ``--record`` times the default set of every track: bursts for all, sustained for the best of each.
At the first of them every rung of the ladders is timed, and cuBLAS against itself."""
RECORD_SQUARES = (1024, 2048)
"""Further cubes for the default set of FP32 SIMT, and for cuBLAS and the dispatcher of FP16 in both layouts."""
RECORD_TAIL = 4092
"""The cube that no tile divides; FP32 SIMT only, in default runs too: few Tensor Core kernels take it as it is."""
RECORD_LARGEST = 16384
"""The cube of ``--record`` for cuBLAS and dispatchers alone: an FP32 launch takes a sixth of a second there."""
RECORD_DISPATCHED = (256, 512, 768, 1536, 3072, 5120, 6144, 12288)
"""Further cubes of ``--record`` for cuBLAS and the dispatchers; FP16 from :data:`RECORD_FP16_FROM` on."""
RECORD_FP16_FROM = 1024
RECORD_COLD = (768, 1536)
"""Those of them whose bursts are taken with a cold L2, too."""
RECORD_LAYOUTS = ("rr", "rc")
"""Layouts that the FP16 dispatcher is judged in."""
RECORD_SETS = ("skinny", "transformer")
"""Sets of shapes of ``--record`` for cuBLAS and dispatchers, in bursts."""
FEWEST_FP16_ROWS = 2048
"""Shapes of the transformer set with fewer rows are FP32 SIMT only: what they measure there is memory."""
RECORD_ODD = (513, 1023, 2049, 4095, 4097)
"""Cubes of ``--record`` whose pitches no vector divides, for cuBLAS and dispatchers, in bursts; of the set tails, since
their ratios, four times those of aligned FP16, have no place in a mean over squares."""
RECORD_RECTANGLE = (8192, 4096, 6144)
"""m, n, k of a further shape of ``--record``: cuBLAS SGEMM against CUTLASS's SIMT tiles, one of which has its name."""
SELF_TESTS = "self_tests"
"""Where run.json keeps them."""
SELF_TEST = "A/A "
"""Begins the names of parts that time a contender against itself."""
SELF_TEST_REPEATS = 5
"""Sustained windows of each side: enough for an interval of a percent or so."""
WHOLE_SET_FROM = 4096
"""Cubes from which default runs time TF32, which lies between the two tracks that the comparison is about, and torch,
which calls cuBLAS."""
LONGEST_ENTRY = 40
"""Letters of an entry's name in the closing lines on a terminal; rows.csv, and a pipe, have the whole of it."""
OLDEST = (7, 5)
"""The oldest compute capability that the compiler builds the timer's own probes for."""
CEILINGS = "ceilings"
"""Name of the shard that holds them."""


@dataclass(frozen=True)
class Part:
    """One group to be measured, and how."""

    group: Group
    settings: Settings
    self_test: bool = False
    """Whether the group's only contender is timed against itself."""

    @property
    def name(self) -> str:
        """What tells it from every other part of a run."""
        return SELF_TEST * self.self_test + self.group.name


@dataclass(frozen=True)
class Request:
    """What was asked for, before anything is known about the machine."""

    patterns: tuple[str, ...]
    shapes: str
    record: bool
    own: tuple[OwnContender, ...] = ()
    """Kernels of the user's, compared besides."""

    def __str__(self) -> str:
        mode = "record" if self.record else "compare"
        text = f"{mode}; kernels {','.join(self.patterns) or 'default set'}; shapes {self.shapes or 'default'}"
        return "; ".join((text, *(contender.identity for contender in self.own)))

    def contenders(self) -> tuple[Contender, ...]:
        """Those that were named, else the default set; a recorded run has every rung and all of cuBLAS besides."""
        chosen = contenders(self.patterns, self.own)
        if self.patterns:
            return chosen
        always = ("handwritten", "cublas") if self.record else ()
        return tuple(contender for contender in chosen if contender.in_default_set or contender.family in always)


def run_compare(
    patterns: Sequence[str] | None,
    shapes: str,
    out: Path | None,
    *,
    record: bool,
    as_json: bool,
    device: int | None = None,
    gpus: str = "",
    scheduler: str = "",
    cpu: bool = False,
    own: OwnOptions | None = None,
    seconds: float = 0.0,
) -> bool:
    """Run the command; true where a check or gate failed. ``device`` counts the visible GPUs from 0.

    ``gpus`` and ``scheduler`` spread it over a cluster: see :func:`compare.cluster.open_cluster`; with ``cpu`` that
    checks on the workers' CPUs and times nothing. ``own`` names a kernel of the user's that joins the others.
    No group is begun that would end later than ``seconds`` from now; 0 for no limit.

    Raises:
        GemmTracksError: nothing could be compared.
    """
    from compare.shapes import parse

    parse(shapes or DEFAULT_SHAPES)
    with_own = own is not None and own.given
    if with_own and (record or gpus or scheduler):
        raise UsageError("--with is for one GPU of this machine; leave out --record, --gpus and --scheduler")
    request = Request(tuple(patterns or ()), shapes, record, own.contenders() if own is not None else ())
    if record and (request.patterns or shapes):
        raise UsageError("--record runs everything; with --kernels or --shapes use --out, which keeps a run too")
    if seconds and (gpus or scheduler):
        raise UsageError(
            "--seconds is for one GPU; a cluster's run is stopped with Ctrl-C and goes on by the same command"
        )
    if gpus or scheduler:
        from compare.cluster_compare import over_cluster

        if device is not None:
            raise UsageError(
                "--device is for one GPU; --gpus takes several, and --scheduler those that its workers see"
            )
        return over_cluster(request, out, gpus=gpus, scheduler=scheduler, cpu=cpu, as_json=as_json)
    if cpu:
        raise UsageError("--cpu is for the workers of --scheduler; on this machine use `gemm-tracks check`")
    asked = driver.query()
    problem = asked.problem
    if not problem and importlib.util.find_spec("cupy") is None:
        problem = f"{asked.devices[0].name} is here, but CuPy is not installed (pip install 'gemm-tracks[gpu]')"
    if not problem:
        asked = driver.chosen(asked, device or 0)
        problem = too_old(asked.devices[0], request.contenders())
    if problem:
        if record or out is not None:
            raise NoDeviceError(f"{problem}; --record and --out keep measurements, and none can be made here")
        if device is not None:
            raise NoDeviceError(f"{problem}; --device {device} names a GPU to measure on")
        return without_gpu(request, problem, as_json=as_json)
    return with_gpu(request, asked, out, as_json=as_json, seconds=seconds)


def too_old(device: driver.Device, chosen: Sequence[Contender]) -> str:
    """Why a device can run none of the kernels that were chosen, or empty; libraries alone run on more."""
    from kernel.launch import runs_on

    major, minor = device.compute_capability
    archs = sorted({contender.arch for contender in kernels_of(chosen)})
    if device.compute_capability >= OLDEST and (not archs or any(runs_on(arch, f"{major}{minor}") for arch in archs)):
        return ""
    built = ", ".join(archs) or f"compute capability {OLDEST[0]}.{OLDEST[1]} and newer"
    return (
        f"device {device.ordinal}, {device.name}, has compute capability {major}.{minor}; kernels here are for {built}"
    )


def without_gpu(request: Request, problem: str, *, as_json: bool) -> bool:
    """Build and inspect here, and join the recorded run, labelled as recorded."""
    from compare.console import answers, messages, print_json

    chosen = request.contenders()
    messages().print(f"{problem}: building and inspecting here; times come from the recorded run")
    for line in dispatch_tables.remarks(chosen):
        messages().print(line)
    built = build(chosen)
    here = built_rows(chosen, built)
    folder = runs.latest()
    run, rows = runs.read_run(folder) if folder is not None else ({}, [])
    rows = recorded_rows(request, rows)
    unknown = not_recorded(request, rows) if folder is not None else []
    if unknown and (rows or as_json):
        messages().print(f"not recorded with these options, so a GPU is needed: {', '.join(unknown)}")
    differ = differences(here, rows)
    if as_json:
        print_json(
            {"recorded": True, "run": run, "rows": rows, "built": here, "closing": list(report.closing_lines(rows))}
        )
    else:
        console = answers()
        console.print(built_table(here, console.width))
        if folder is None:
            console.print(f"\n{no_run()}, so there are no times to show.", soft_wrap=True)
        else:
            if unknown and not rows:
                raise NoDeviceError(f"not recorded with these options: {', '.join(unknown)}; that needs a GPU")
            if not rows:
                raise NoDeviceError("the recorded run has nothing of these kernels at these shapes; that needs a GPU")
            print_rows(rows, report.origin(run, recorded=True))
            recorded = {row["name"] for row in rows}
            named = chosen if request.patterns else request.own
            absent = [contender.name for contender in named if contender.name not in recorded]
            if absent:
                console.print(f"\nNot in the recorded run at these shapes, so a GPU is needed: {', '.join(absent)}")
            if differ:
                console.print("\nBuilt here with other registers than when it was recorded: " + "; ".join(differ))
    failures = [result for result in built.values() if not isinstance(result, Artifact)]
    missing = [result for result in failures if isinstance(result, MissingToolError)]
    if missing and len(failures) == len(built):
        raise MissingToolError(str(missing[0]))
    return any(isinstance(result, BuildError) for result in failures) or any(
        str(row["skipped_because"]).startswith("static gate") for row in here
    )


def no_run() -> str:
    """That there is no recorded run, and where it was looked for if the user says where."""
    if os.environ.get(runs.VARIABLE):
        place = f"{runs.RECORDED_GPU}/ of {runs.results_root()}"
        return f"No recorded run is in {place}, which {runs.VARIABLE} names (unset it for the one that ships)"
    return "No recorded run ships with this version yet"


def recorded_rows(request: Request, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The recorded rows that were asked for; cuBLAS stays, since the rest is divided by it."""
    from compare.shapes import parse

    names = [part.strip() for text in request.patterns for part in text.split(",") if part.strip()]
    wanted = parse(request.shapes) if request.shapes else None

    def asked_for(row: Mapping[str, Any]) -> bool:
        if wanted is not None and not any(recorded_as(shape, row) for shape in wanted):
            return False
        return not names or row["family"] == "cublas" or any(fnmatch.fnmatchcase(row["name"], n) for n in names)

    return [row for row in rows if asked_for(row)]


def recorded_as(shape: Shape, row: Mapping[str, Any]) -> bool:
    """Whether a row is of a shape, options included; rows are of packed and aligned operands, alpha 1 and beta 0."""
    return (
        shape.is_plain
        and (shape.m, shape.n, shape.k) == (row["m"], row["n"], row["k"])
        and shape.layout in ("", row["layout"])
        and row["input"] in (shape.input, None)
    )


def not_recorded(request: Request, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Shapes with options of which no row is."""
    from compare.shapes import parse

    shapes = [shape for shape in parse(request.shapes or DEFAULT_SHAPES) if "@" in str(shape)]
    return [str(shape) for shape in shapes if not any(recorded_as(shape, row) for row in rows)]


def differences(here: Sequence[Mapping[str, Any]], recorded: Sequence[Mapping[str, Any]]) -> list[str]:
    """Kernels whose registers, as built here, are not those of the recorded run: the source or compiler has changed."""
    before = {(row["name"], row["variant"] or ""): row["registers"] for row in recorded if row["registers"]}
    return [
        f"{row['name']} {row['registers']} (recorded {before[key]})"
        for row in here
        if (key := (row["name"], row["variant"] or "")) in before
        and row["registers"] is not None
        and before[key] != row["registers"]
    ]


def print_rows(rows: Sequence[Mapping[str, Any]], origin: str) -> None:
    """Tables, the CUTLASS lines and the two gaps, below where the rows come from."""
    from compare.console import answers

    console = answers()
    console.print()
    console.rule(origin, align="left")
    for table in report.tables(rows, console.width):
        console.print(table)
        console.print()
    beside = report.hindsight_table(rows, console.width)
    for table in (*([beside] if beside else []), *report.means_tables(rows, console.width)):
        console.print(table)
        console.print()
    longest = LONGEST_ENTRY if console.is_terminal else None
    lines = (*report.cutlass_lines(rows, longest_entry=longest), *report.closing_lines(rows, longest_entry=longest))
    if console.is_terminal:
        fitted = textwrap.TextWrapper(console.width, subsequent_indent="  ", break_on_hyphens=False)
        lines = tuple(map(fitted.fill, lines))
    for line in lines:
        console.print(line, soft_wrap=True)


def with_gpu(request: Request, asked: driver.Driver, out: Path | None, *, as_json: bool, seconds: float = 0.0) -> bool:
    """Build, check, time, report; every finished group is kept on disk. ``asked`` holds the one device to use."""
    from compare.console import messages
    from compare.groups import GpuSite

    budget = Budget(seconds)
    device = asked.devices[0]
    chosen = tuple(contender.on(device.name, device.sm_count) for contender in request.contenders())
    require_some(chosen)
    built = build(contender for contender in chosen if not contender.needs())
    provenance = runs.provenance(["gemm-tracks", *sys.argv[1:]], asked, toolkit(built), str(request))
    provenance |= {"dispatch_tables": dispatch_tables.used(chosen)}
    for line in dispatch_tables.remarks(chosen):
        messages().print(line)
    writer = begun(request, provenance, out)
    complete = measure(request, chosen, built, writer, GpuSite(device.ordinal), budget)
    failed = conclude(request, writer, out, complete=complete, as_json=as_json, stopped=budget.interrupted)
    if budget.left_out:
        messages().print(f"--seconds ended it with {budget.left_out} groups left; the same command goes on from there")
    return failed


def begun(request: Request, provenance: Mapping[str, Any], out: Path | None) -> runs.RunWriter:
    """The run's writer, in its folder: a new one, or one that was stopped and goes on."""
    from compare.console import messages

    folder = out or (runs.record_folder(provenance) if request.record else default_folder(provenance))
    writer = runs.RunWriter(folder, provenance)
    if writer.finished:
        messages().print(f"going on with {folder}: {len(writer.finished)} groups are done")
    return writer


def conclude(
    request: Request,
    writer: runs.RunWriter,
    out: Path | None,
    *,
    complete: bool,
    as_json: bool,
    stopped: bool = True,
    rows: Sequence[Mapping[str, Any]] | None = None,
    ceilings: Sequence[Mapping[str, Any]] | None = None,
) -> bool:
    """Write the run's files and print its report; true where a check failed.

    Args:
        stopped: an incomplete run was stopped by the user.
        rows: the run's, where they are not the writer's in its order.
        ceilings: likewise.

    Raises:
        KeyboardInterrupt: the user stopped it.
    """
    from compare.cards import ceiling_lines
    from compare.console import answers, messages, print_json

    rows = without_impossible(with_sgemm_ratio(writer.rows if rows is None else rows))
    kept = writer.samples_of(CEILINGS) if ceilings is None else ceilings
    writer.provenance |= {CEILINGS: list(kept), "cublas_kernels": cublas_kernels(rows)}
    tested = [one for name in sorted(writer.finished) if name.startswith(SELF_TEST) for one in writer.samples_of(name)]
    if tested:
        writer.provenance[SELF_TESTS] = tested
    writer.finish(complete=complete, rows=rows)
    if as_json:
        print_json(
            {"recorded": False, "run": writer.provenance, "rows": rows, "closing": list(report.closing_lines(rows))}
        )
    else:
        print_rows(rows, report.origin(writer.provenance, recorded=False))
        for line in (*ceiling_lines(writer.provenance), *self_test_lines(writer.provenance)):
            answers().print(line, soft_wrap=True)
    if not complete and stopped:
        kept_there = f"what was finished is kept in {writer.folder}"
        messages().print(f"stopped; {kept_there}, and the same command goes on from there")
        raise KeyboardInterrupt
    messages().print(f"kept in {writer.folder}")
    if complete and request.record and out is None:
        runs.make_latest(writer.folder)
    return any(row["ok"] is False for row in rows)


def cublas_kernels(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What cuBLAS ran, by shape, layout and contender: its own choice, which a later version may make differently."""
    return {
        f"{report.shape_of(row)} {row['layout']} {row['name']}": str(row["kernel_name"])
        for row in rows
        if row["family"] == "cublas" and row["kernel_name"]
    }


def require_some(chosen: Sequence[Contender]) -> None:
    """Say which contenders lack something here; their rows will say so too.

    Raises:
        MissingToolError: all of them do.
    """
    from compare.console import messages

    lacking = {contender.name: contender.needs() for contender in chosen if contender.needs()}
    text = ", ".join(f"{name} ({needs})" for name, needs in lacking.items())
    if len(lacking) == len(chosen):
        raise MissingToolError(f"none of the contenders can run here; what each needs: {text}")
    if lacking:
        messages().print(f"cannot run for what is not installed: {text}")


def toolkit(built: Built) -> str:
    """Compilers behind what was built."""
    return ", ".join(sorted({result.compiler for result in built.values() if isinstance(result, Artifact)}))


def default_folder(provenance: Mapping[str, Any]) -> Path:
    """Where a run goes that was given no folder: in the cache; an unfinished one of the same request first."""
    import json

    from kernel.build import cache_root

    root = cache_root() / "runs"
    for journal in sorted(root.glob(f"*/{runs.JOURNAL_FILE}"), reverse=True):
        try:
            with journal.open(encoding="utf-8") as stream:
                same = runs.identity(json.loads(stream.readline())["run"]) == runs.identity(provenance)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        if same:
            return journal.parent
    return root / f"{time.strftime('%Y-%m-%d-%H%M%S')}-{provenance['revision']}"


def parts(request: Request, chosen: Sequence[Contender]) -> list[Part]:
    """Everything to be measured, in the order in which it is."""
    from compare.measure import quick
    from compare.shapes import parse

    if request.record:
        return recorded_parts(chosen)
    settings = dataclasses.replace(quick(), leave_out_slow=not request.patterns)
    if request.patterns or request.shapes:
        return [
            Part(group, settings if request.patterns else _shortened(settings, group))
            for shape in parse(request.shapes or DEFAULT_SHAPES)
            for group in groups(chosen, shape)
        ]
    return [
        Part(group, _shortened(settings, group))
        for shape in parse(DEFAULT_SHAPES)
        for group in groups(_in_default_run(chosen, shape), shape)
    ]


def _in_default_run(chosen: Sequence[Contender], shape: Shape) -> list[Contender]:
    """Of the default set, what four minutes leave room for at a cube."""
    if shape.m == RECORD_TAIL:
        # Whoever is timed at every size, and CUTLASS's own choice: what a tail costs the others, --shapes 4092 says.
        return [
            c for c in chosen
            if c.track == "fp32_simt" and not c.largest_timed and (c.family != "cutlass" or c.is_default)
        ]  # fmt: skip
    if shape.m >= WHOLE_SET_FROM:
        return list(chosen)
    return [c for c in chosen if c.track != "tf32_tensor" and c.family != "torch"]


def recorded_parts(chosen: Sequence[Contender]) -> list[Part]:
    """What ``--record`` measures, the most wanted first, so that a run that is cut short has the headline."""
    from compare.measure import record
    from compare.shapes import parse
    from compare.statistics import StoppingRule
    from compare.windows import BurstSettings, SustainedSettings

    both = record()
    # On their own, cuBLAS and a dispatcher keep the GPU so little busy that 10 ms of idling rest it.
    brisk = dataclasses.replace(
        both,
        burst=dataclasses.replace(both.burst or BurstSettings(), idle_s=0.01),
        sustained=dataclasses.replace(
            both.sustained or SustainedSettings(), stop=StoppingRule(min_rounds=3, max_rounds=3, hard_cap_s=60.0)
        ),
    )
    in_bursts = dataclasses.replace(brisk, sustained=None)
    repeats = StoppingRule(min_rounds=SELF_TEST_REPEATS, max_rounds=SELF_TEST_REPEATS, hard_cap_s=60.0)
    against_itself = dataclasses.replace(
        both, sustained=dataclasses.replace(both.sustained or SustainedSettings(), stop=repeats)
    )
    whole = [c for c in chosen if c.dtype_out == c.dtype_in]
    default = [c for c in whole if c.in_default_set or c.family == "cublas"]
    dispatched = [c for c in whole if c.family == "cublas" or c.is_dispatcher]
    simt, fp16 = ([c for c in dispatched if c.track == track] for track in ("fp32_simt", "fp16_tensor"))
    first, largest = RECORD_HEADLINES[0], cube(RECORD_LARGEST)

    def in_layouts(size: int, layouts: Sequence[str], settings: Settings) -> list[Part]:
        shapes = [cube(size).replace(layout="" if layout == "rr" else layout) for layout in layouts]
        return [Part(group, settings) for shape in shapes for group in groups(fp16, shape)]

    found = []
    for size in RECORD_HEADLINES:
        members = whole if size == first else default
        found += [Part(group, _shortened(both, group)) for group in groups(members, cube(size))]
    found += [Part(group, against_itself, self_test=True) for group in _alone(dispatched, cube(first))]
    for size in RECORD_HEADLINES:
        found += in_layouts(size, RECORD_LAYOUTS[1:], brisk)
    found += [Part(group, brisk) for group in groups(dispatched, largest)]
    for size in RECORD_SQUARES:
        found += in_layouts(size, RECORD_LAYOUTS, dataclasses.replace(brisk, cold=True))
    found += in_layouts(RECORD_LARGEST, RECORD_LAYOUTS[1:], brisk)
    for size in RECORD_HEADLINES:
        found += [Part(group, brisk) for group in _in_other_outputs(chosen, cube(size))]
    for size in RECORD_DISPATCHED:
        settings = dataclasses.replace(brisk, cold=size in RECORD_COLD)
        found += [Part(group, settings) for group in groups(simt, cube(size))]
    by_hand = [c for c in default if c.family in ("cublas", "handwritten") and c.track == "fp32_simt"]
    found += [Part(group, both) for group in groups(by_hand, cube(RECORD_TAIL))]
    for size in RECORD_SQUARES:
        found += [Part(group, both) for group in groups([c for c in default if c.track == "fp32_simt"], cube(size))]
    odd = [dataclasses.replace(cube(size), shape_set="tails") for size in RECORD_ODD]
    for shape in (*odd, *(shape for name in RECORD_SETS for shape in parse(name))):
        with_fp16 = shape.shape_set != "transformer" or shape.m >= FEWEST_FP16_ROWS
        found += [Part(group, in_bursts) for group in groups([*simt, *(fp16 if with_fp16 else ())], shape)]
    for size in RECORD_DISPATCHED:
        if size >= RECORD_FP16_FROM:
            found += in_layouts(size, RECORD_LAYOUTS[:1], brisk)
    among_libraries = [c for c in default if c.track == "fp32_simt" and (is_reference(c) or c.family == "cutlass")]
    found += [Part(group, dataclasses.replace(both, sustained=None)) for group in groups(among_libraries, rectangle())]
    unique: dict[str, Part] = {}
    for part in found:  # a shape that two sets share is measured once
        unique.setdefault(part.name, part)
    return list(unique.values())


def _alone(members: Sequence[Contender], shape: Shape) -> list[Group]:
    """cuBLAS of FP32 SIMT and of FP16, each in a group of its own: what is timed against itself."""
    found = groups([c for c in members if c.family == "cublas" and c.track != "tf32_tensor"], shape)
    return [dataclasses.replace(group, contenders=group.contenders[:1]) for group in found]


def _in_other_outputs(members: Sequence[Contender], shape: Shape) -> list[Group]:
    """Groups of the libraries that write another type than they read, joined by the dispatchers that can, too."""
    found = []
    for library in members:
        if library.dtype_out != library.dtype_in:
            problem = shape.problem(library)
            joined = [c for c in members if c.is_dispatcher and c.track == library.track and c.rejects(problem) is None]
            contenders = (library, *joined)
            found.append(Group(shape=shape, track=library.track, problem=problem, contenders=contenders))
    return found


def _shortened(settings: Settings, group: Group) -> Settings:
    """On TF32, which lies between the two tracks that the comparison is about, cuBLAS alone is timed sustained."""
    if group.track != "tf32_tensor":
        return settings
    return dataclasses.replace(settings, sustained_without=(*settings.sustained_without, "cutlass"))


def rectangle() -> Shape:
    """The recorded shape that is no cube."""
    from compare.shapes import Shape

    m, n, k = RECORD_RECTANGLE
    return Shape(m=m, n=n, k=k, shape_set="rectangle")


def cube(size: int) -> Shape:
    """The square problem of one extent."""
    from compare.shapes import Shape

    return Shape(m=size, n=size, k=size, shape_set="squares")


def is_reference(contender: Contender) -> bool:
    """Libraries, what they pick by default, and dispatchers: timed at every size."""
    return contender.is_default or contender.family in ("cublas", "torch") or contender.is_dispatcher


def measure(
    request: Request,
    chosen: Sequence[Contender],
    built: Built,
    writer: runs.RunWriter,
    site: Site,
    budget: Budget | None = None,
) -> bool:
    """Check and time every part that is not done yet; false where the user or the budget stopped it.

    Raises:
        CheckError: a baseline is wrong, or a GPU fault has ended this process' use of the device.
    """
    from compare.check import check_baseline
    from compare.console import progress

    budget = budget or Budget()
    planned = parts(request, chosen)
    todo = [part for part in planned if part.name not in writer.finished]
    costs = {part.name: cost_of(part) for part in todo}
    say_how_long(len(todo), expected_s(costs.values(), writer, site.bench.facts.arch))
    check_baseline(site.executor, [contender for contender in chosen if not contender.needs()])
    ceilings = ceilings_of(writer, site, {"start": round(budget.spent_s, 3)})
    try:
        with progress("comparing", sum(costs.values())) as advance:
            done = 0.0
            for part in planned:
                name = part.name
                if name in writer.finished or not budget.allows(costs[name]):
                    continue

                def tell(fraction: float, text: str, base: float = done, name: str = name) -> None:
                    advance(base + fraction * costs[name], f"{name}: {text}")

                faults = faults_in(writer, part.group)
                try:
                    rows, samples, seconds = run_part(part, built, site, faults, ceilings, tell)
                except FaultError as fault:
                    card = site.bench.facts.card_columns()
                    writer.add(shard_of_fault(name, fault.contender), [{**fault.row, **card}])
                    raise CheckError(f"{fault}. {kept_in(writer)} without this kernel") from None
                seconds["estimate"] = round(costs[name], 3)
                writer.add(name, [{**row, **site.bench.facts.card_columns()} for row in rows], samples, seconds)
                done += costs[name]
    except KeyboardInterrupt:
        budget.interrupted = True
        return False
    return not budget.left_out


class Budget:
    """Seconds that a command may take, from now; 0 for no limit. What is too long for the rest is left for later."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._began, self._seconds = time.perf_counter(), seconds
        self.left_out = 0
        """Groups that were not begun."""
        self.interrupted = False
        """Whether the user stopped the command."""

    @property
    def spent_s(self) -> float:
        """Seconds since it was made."""
        return time.perf_counter() - self._began

    def allows(self, cost_s: float) -> bool:
        """Whether a group of such length would end in time; counts it as left out where not."""
        fits = not self._seconds or self.spent_s + cost_s <= self._seconds
        self.left_out += not fits
        return fits


def cost_of(part: Part) -> float:
    """Seconds that a part may take."""
    from compare.measure import estimate_s

    members = part.group.contenders * (2 if part.self_test else 1)
    return estimate_s(members, part.group.problem, part.settings)


START_S = 10.0
"""Importing CuPy and torch, and the first use of each of CuPy's own kernels from its cache."""


def expected_s(costs: Iterable[float], writer: runs.RunWriter | None, arch: str) -> float:
    """Seconds that a command takes in all: starting, the ceilings where they are not known yet, its groups."""
    from compare import ceilings

    known = writer is not None and CEILINGS in writer.finished
    return START_S + (0.0 if known else ceilings.estimate_s(arch)) + sum(costs)


def say_how_long(groups: int, seconds: float, places: int = 1) -> None:
    """The estimate that a command shows before it measures; the progress then corrects it."""
    from compare.console import messages

    spread = f" over {places} places" if places > 1 else ""
    if groups:
        messages().print(f"{groups} groups to measure{spread}, about {max(1, round(seconds / places / 60))} min")


def ceilings_of(writer: runs.RunWriter, site: Site, before: Mapping[str, float]) -> list[Ceiling]:
    """The run's ceilings: those it has, else measured now and kept; ``before`` is what was spent until here."""
    from compare.ceilings import Ceiling

    kept = writer.samples_of(CEILINGS)
    if CEILINGS not in writer.finished:
        began = site.bench.now()
        found = site.ceilings()
        kept = [dataclasses.asdict(one) for one in found]
        writer.add(CEILINGS, (), kept, {**before, CEILINGS: round(site.bench.now() - began, 3)})
    return [Ceiling(**{**one, "throttle": None if one["throttle"] is None else tuple(one["throttle"])}) for one in kept]


class FaultError(CheckError):
    """A kernel ended this process' use of its GPU; the same group without it can still be measured elsewhere."""

    def __init__(self, message: str, contender: str = "", row: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.contender = contender
        self.row: dict[str, Any] = row or {}
        """What is known of the contender."""


def faults_in(writer: runs.RunWriter, group: Group) -> frozenset[str]:
    """Contenders whose fault ended an earlier attempt at a group; their rows are written down already."""
    return frozenset(c.name for c in group.contenders if shard_of_fault(group.name, c.name) in writer.finished)


def kept_in(writer: runs.RunWriter) -> str:
    return f"What was finished is kept in {writer.folder}; the same command goes on"


def run_part(
    part: Part,
    built: Built,
    site: Site,
    faults: Collection[str],
    ceilings: Sequence[Ceiling],
    tell: Callable[[float, str], None],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, float]]:
    """Check every contender of a group but those in ``faults``, time those that passed.

    Answers rows, samples, and seconds by phase.

    Raises:
        FaultError: a GPU fault; the contender at fault is to be written down, so that resuming leaves it out.
    """
    from compare.ceilings import ceiling_of
    from compare.check import check_contender, shared_trials
    from compare.measure import Progress, measure_group
    from compare.operand_sets import OperandSets
    from compare.stopwatch import Stopwatch

    group, shape = part.group, part.group.shape
    verdicts, rows = {}, []
    watch = Stopwatch(site.bench.now)
    if part.self_test:
        return [], self_tests(part, site, watch), watch.seconds()
    watch.enter("check")
    trials: Trials | None = None
    for number, contender in enumerate(group.contenders):
        tell(0.3 * number / len(group.contenders), f"checking {contender.name}")
        if contender.name in faults:
            continue
        needs = contender.needs()
        reason = f"not installed: {needs}" if needs else refused(contender, group.problem, built)
        reason = reason or too_slow(contender, part)
        if reason is not None:
            rows.append(unmeasured_row(contender, group, built, reason))
            continue
        try:
            with contextlib.suppress(MemoryError):  # the check itself then says what there is no room for
                trials = trials or shared_trials(site.executor, group.problem, shape.input, shape.seed)
            verdict = check_contender(
                contender, group.problem, site.executor, distribution=shape.input, seed=shape.seed, trials=trials
            )
        except GemmTracksError as error:
            # One contender that this machine cannot run must not cost the others their rows.
            rows.append(unmeasured_row(contender, group, built, str(error)))
            continue
        if verdict.ok is None:
            rows.append(unmeasured_row(contender, group, built, verdict.skipped_because))
        elif not verdict.ok:
            rows.append(unmeasured_row(contender, group, built, f"failed the check: {verdict.reason}", verdict))
        else:
            verdicts[contender.name] = verdict
        if verdict.fatal:
            raise FaultError(f"{contender.name} on {group.problem}: {verdict.reason}", contender.name, rows[-1])
    del trials  # its memory is wanted for what follows
    passed = [contender for contender in group.contenders if contender.name in verdicts]
    if not passed:
        return rows, [], watch.seconds()
    watch.enter("prepare")
    operands = OperandSets(site.executor.xp, group.problem, shape.input, shape.seed, site.bench.stream)

    def show(progress: Progress) -> None:
        tell(0.3 + 0.7 * progress.fraction, progress.text)

    found: list[Measurement] = measure_group(
        passed, group.problem, operands, part.settings, show,
        bench=site.bench, reverify=operands.reverify, watch=watch,
    )  # fmt: skip
    facts = site.bench.facts
    by_name = {contender.name: contender for contender in passed}
    for one in found:
        contender = by_name[one.name]
        instruction = runner_columns(contender, group.problem).get("instruction", contender.instruction)
        ceiling = ceiling_of(ceilings, group.track, instruction, one.window, facts.compute_capability)
        rate = ceiling.tflops if ceiling else None
        rows.append(measured_row(contender, group, built, verdicts[one.name], one, facts, rate))
    order = {contender.name: number for number, contender in enumerate(group.contenders)}
    rows.sort(key=lambda row: order[row["name"]])
    samples = [{**one.samples(), "input": shape.input} for one in found if one.seconds]
    return rows, samples, watch.seconds()


def self_tests(part: Part, site: Site, watch: Stopwatch) -> list[dict[str, Any]]:
    """What a contender's ratio to itself came out as, one entry a window; why there is none where it could not run."""
    from compare.measure import self_test
    from compare.operand_sets import OperandSets

    (contender,), problem, shape = part.group.contenders, part.group.problem, part.group.shape
    watch.enter("prepare")
    operands = OperandSets(site.executor.xp, problem, shape.input, shape.seed, site.bench.stream)
    base = {"name": contender.name, "m": problem.m, "n": problem.n, "k": problem.k, "layout": problem.layout}
    try:
        found = self_test(contender, problem, operands, part.settings, bench=site.bench, watch=watch)
    except GemmTracksError as error:
        return [{**base, "why_not": str(error)}]
    return [
        {
            **base,
            "window": one.window,
            "ratio": one.interval.value,
            "lo": one.interval.lo,
            "hi": one.interval.hi,
            "ok": one.ok,
        }
        for one in found
    ]


def self_test_lines(run: Mapping[str, Any]) -> list[str]:
    """A run's A/A self-tests in words."""
    lines = []
    for one in run.get(SELF_TESTS, ()):
        what = f"A/A {one['name']} at {one['m']}x{one['n']}x{one['k']}"
        if "ratio" in one:
            verdict = "holds 1.00" if one["ok"] else "does NOT hold 1.00"
            lines.append(f"{what}, {one['window']}: {one['ratio']:.4f} [{one['lo']:.4f}, {one['hi']:.4f}] {verdict}")
        else:
            lines.append(f"{what}: not measured, {one['why_not']}")
    return lines


def shard_of_fault(group: str, contender: str) -> str:
    """Name of the shard that says that a contender's fault ended a process."""
    return f"fault of {contender} in {group}"


def too_slow(contender: Contender, part: Part) -> str | None:
    """Why a default run leaves the contender out, or None."""
    limit, problem = contender.largest_timed, part.group.problem
    if part.settings.leave_out_slow and limit and problem.m * problem.n * problem.k > limit**3:
        return f"too slow to be timed above {limit}x{limit}x{limit} unless asked for by name"
    return None
