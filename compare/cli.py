"""The command line: ``gemm-tracks`` and ``python -m compare``.

Every command imports what it needs inside its own function, so that ``--help`` and ``list`` stay instant
and touch neither a driver nor torch, CuPy, pandas or NumPy.

Exit status: 0 done; 1 a check or gate failed; 2 bad usage; 3 a GPU or tool that is not there.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernel.errors import GemmTracksError

if TYPE_CHECKING:
    from compare.contenders import Contender
    from compare.doctor import Diagnosis

NAME = "gemm-tracks"
STOPPED = 130
"""Exit status of a command that was interrupted."""
app = typer.Typer(
    name=NAME,
    help=(
        "How far is a hand-written GEMM kernel from cuBLAS on the same track, and how far is the next track?\n\n"
        "Exit status: 0 done; 1 a check or gate failed; 2 bad usage; 3 what was asked needs a GPU or tool "
        "that is not there."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Kernels = Annotated[
    list[str] | None,
    typer.Option("--kernels", "-k", help="Names or globs, comma-separated or repeated, such as 'v*,cublas_*'."),
]
Shapes = Annotated[
    str, typer.Option("--shapes", "-s", help="A set's name, or MxNxK,... such as 4096x4096x4096,35x79x19.")
]
Gpus = Annotated[
    str,
    typer.Option("--gpus", help="Spread it over GPUs of this machine: all, or 0,1. Needs gemm-tracks[cluster]."),
]
Scheduler = Annotated[
    str,
    typer.Option(
        "--scheduler", metavar="ADDRESS", help="Spread it over a Dask cluster that runs, such as tcp://host:8786."
    ),
]
With = Annotated[
    Path | None,
    typer.Option(
        "--with", metavar="FILE", help="A .cu file with an SGEMM of yours that joins in: docs/own_kernels.md."
    ),
]
Symbol = Annotated[str, typer.Option("--symbol", help="With --with: the kernel's name; the file's only one.")]
OwnTile = Annotated[
    str, typer.Option("--tile", help="With --with: what a block computes, as 128x128x16 or 16x16 (m, n, step in k).")
]
Threads = Annotated[
    str, typer.Option("--threads", help="With --with: threads of a block, as 256 or 16x16; its launch bound, else 256.")
]
OwnGrid = Annotated[
    str, typer.Option("--grid", help="With --with: xy has blockIdx.x along n, y along m; yx the reverse; linear is 1D.")
]
Smem = Annotated[int, typer.Option("--smem", min=0, help="With --with: bytes of dynamic shared memory.")]
Multiples = Annotated[
    str, typer.Option("--multiples", help="With --with: take only m, n, k that these divide, as 128x128x16.")
]
Align = Annotated[int, typer.Option("--align", min=1, help="With --with: bytes that A, B and C must be aligned to.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def _version(asked: bool) -> None:
    if asked:
        import importlib.metadata

        from compare import runs

        try:
            version = importlib.metadata.version(NAME)
        except importlib.metadata.PackageNotFoundError:  # a checkout that was not installed
            version = "of a checkout"
        typer.echo(f"{NAME} {version}, revision {runs.revision()}")
        raise typer.Exit


@app.callback()
def _all(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Version and revision, then exit.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_(
    kernels: Kernels = None,
    as_json: AsJson = False,
) -> None:
    """Every contender: family, track, tile, and what it needs that is not installed.

    Looks up files only: no driver, no torch.

    \b
    Example:
      gemm-tracks list --kernels 'v*'
    """
    from compare.console import Head, answers, print_json, table_of
    from compare.contenders import contenders

    found = contenders(kernels)
    if as_json:
        print_json([describe(contender) for contender in found])
        return
    heads = ("name", "family", "track", "tile", "stages", "layouts", "needs")
    lines = [
        (c.name, c.family, c.track, str(c.tile), str(c.tile.NUM_STAGES or "-"), ",".join(c.layouts), c.needs() or "-")
        for c in found
    ]
    widths = [max(len(line[i]) for line in (heads, *lines)) for i in range(len(heads))]
    wide = sum(widths) + 2 * (len(widths) - 1)
    if sys.stdout.isatty() and (console := answers()).width < wide:
        goes = {"layouts": 1, "family": 2, "stages": 3}
        folding = [Head(head, folds=head in ("name", "needs"), goes=goes.get(head, 0)) for head in heads]
        console.print(table_of("", folding, [(line, "") for line in lines], console.width))
    else:
        for line in (heads, *lines):
            typer.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    typer.echo(f"{len(lines)} contender{'' if len(lines) == 1 else 's'}")


def describe(contender: Contender) -> dict[str, Any]:
    """A contender's catalog entry as JSON holds it."""
    return {
        "name": contender.name,
        "family": contender.family,
        "track": contender.track,
        "instruction": contender.instruction,
        "arch": contender.arch,
        "tile": dict(contender.tile.items()),
        "dtype_in": contender.dtype_in,
        "dtype_acc": contender.dtype_acc,
        "dtype_out": contender.dtype_out,
        "layouts": list(contender.layouts),
        "swizzle": contender.swizzle,
        "is_default": contender.is_default,
        "in_default_set": contender.in_default_set,
        "largest_timed": contender.largest_timed,
        "summary": contender.summary,
        "needs": contender.needs(),
    }


@app.command()
def check(
    kernels: Kernels = None,
    shapes: Shapes = "",
    device: Annotated[
        str,
        typer.Option(
            "--device", "-d", help="gpu (gpu:1 is the second), or cpu for the PTX machine; else a GPU if there is one."
        ),
    ] = "",
    fuzz: Annotated[int, typer.Option("--fuzz", min=0, help="Draw so many problems at random instead.")] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Fixes the draws of --fuzz.")] = 0,
    with_file: With = None,
    symbol: Symbol = "",
    tile: OwnTile = "",
    threads: Threads = "",
    grid: OwnGrid = "",
    smem: Smem = 0,
    multiples: Multiples = "",
    align: Align = 4,
    as_json: AsJson = False,
) -> None:
    """Numerical agreement with float64, nothing timed. Exit status 1 if any check fails.

    Shapes default to the set 'ladder' on a GPU and 'small' on the CPU; kernels to every default one, or to that of
    --with alone.

    \b
    Examples:
      gemm-tracks check --kernels v2_block_tile --shapes 35x79x19,4092
      gemm-tracks check --device cpu --kernels 'v*' --fuzz 50
      gemm-tracks check --device cpu --with mine.cu --symbol mine --tile 64x64x8
    """
    from compare.checking import run_checks
    from compare.own_kernels import OwnOptions

    own = OwnOptions(with_file, symbol, tile, threads, grid, smem, multiples, align)
    failed = run_checks(kernels, shapes, device, fuzz=fuzz, seed=seed, as_json=as_json, own=own)
    if failed:
        raise typer.Exit(1)


@app.command("compare")
def compare_(
    kernels: Kernels = None,
    shapes: Shapes = "",
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Keep the run in this folder; a run that was interrupted there goes on."),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Run everything for results/, sharded and resumable.")
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, help="Begin no group that would end later than this; no limit.")
    ] = 0.0,
    gpus: Gpus = "",
    scheduler: Scheduler = "",
    cpu: Annotated[
        bool, typer.Option("--cpu", help="With --scheduler: check on the workers' CPUs and time nothing.")
    ] = False,
    device: Annotated[
        int | None, typer.Option("--device", "-d", min=0, help="Which of the visible GPUs, from 0; else the first.")
    ] = None,
    with_file: With = None,
    symbol: Symbol = "",
    tile: OwnTile = "",
    threads: Threads = "",
    grid: OwnGrid = "",
    smem: Smem = 0,
    multiples: Multiples = "",
    align: Align = 4,
    as_json: AsJson = False,
) -> None:
    """The main job: build, check, time and report.

    With no GPU it builds and inspects here and joins the recorded run that ships, labelled as recorded.
    Default: each family's default set in burst at 1024, 2048, 4096 and 8192 cubed (TF32 and torch from 4096 on; the
    faster FP32 SIMT kernels at 4092 too), then sustained at 4096 and 8192 for cuBLAS, the dispatchers and each
    family's best and default; torch, which calls cuBLAS, in burst only. About three and a half minutes on an H200.

    \b
    Examples:
      gemm-tracks compare
      gemm-tracks compare --kernels 'v*,cublas_sgemm' --shapes 1024,4096 --out build/run
      gemm-tracks compare --record --gpus all
      gemm-tracks compare --with mine.cu --symbol mine --tile 128x128x16 --kernels 'v6*,cublas_sgemm'
    """
    from compare.job import run_compare
    from compare.own_kernels import OwnOptions

    failed = run_compare(
        kernels,
        shapes,
        out_folder,
        record=record,
        as_json=as_json,
        device=device,
        gpus=gpus,
        scheduler=scheduler,
        cpu=cpu,
        own=OwnOptions(with_file, symbol, tile, threads, grid, smem, multiples, align),
        seconds=seconds,
    )
    if failed:
        raise typer.Exit(1)


@app.command()
def inspect(
    what: Annotated[
        list[str],
        typer.Argument(metavar="NAME [NAME]", help="A kernel, or a .cu, .ptx or .cubin file; two for side by side."),
    ],
    shape: Annotated[
        str, typer.Option("--shape", "-s", help="Problem that decides the build, as MxNxK; one block tile.")
    ] = "",
    layout: Annotated[
        str, typer.Option("--layout", help="Layout of A and B that decides the build: rr, rc, cr or cc.")
    ] = "",
    source: Annotated[
        bool, typer.Option("--source", help="Print the source: emitted C++ for CUTLASS, Python for the DSL.")
    ] = False,
    layouts: Annotated[bool, typer.Option("--layouts", help="Print the CuTe layouts of a DSL kernel.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="Print the PTX.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Print the machine code.")] = False,
    loop: Annotated[bool, typer.Option("--loop", help="Print the main loop's machine code and its counts.")] = False,
    banks: Annotated[bool, typer.Option("--banks", help="Print shared-memory accesses with predicted passes.")] = False,
    mapping: Annotated[bool, typer.Option("--mapping", help="Print which lane holds which elements.")] = False,
    races: Annotated[
        bool,
        typer.Option(
            "--races", help="Run it on the PTX machine, without a GPU, and print races and every other fault."
        ),
    ] = False,
    ncu: Annotated[
        bool, typer.Option("--ncu", help="On a GPU: Nsight Compute's counters beside what is predicted.")
    ] = False,
    gpu: Annotated[str, typer.Option("--gpu", help="Device of the roofline, by the name its driver reports.")] = "",
    svg: Annotated[
        Path | None,
        typer.Option("--svg", help="Also draw the lane maps, side by side, into this file."),
    ] = None,
    symbol: Annotated[str, typer.Option("--symbol", help="Which kernel of a file; its only one.")] = "",
    threads: Annotated[
        str, typer.Option("--threads", help="Threads of its block, as 256 or 16x16; its launch bound, else 256.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """What a kernel's machine code says, without a GPU: registers, spills, shared memory, occupancy, main loop, banks.

    Exit status 1 where --races found a fault; it runs a small ragged problem unless --shape states one. Exit status 3
    where --ncu was asked for and there is no GPU, or --races met an opcode that the PTX machine lacks.

    \b
    Examples:
      gemm-tracks inspect v2_block_tile
      gemm-tracks inspect v4_pad v4_swizzle
      gemm-tracks inspect v2_block_tile --sass
      gemm-tracks inspect v2_block_tile v6_transposed_split --mapping --svg lanes.svg
      gemm-tracks inspect v3_double_buffer --races
      gemm-tracks inspect cute_sgemm --layouts
    """
    from compare.inspecting import run_inspect

    wanted = {
        "source": source,
        "layouts": layouts,
        "ptx": ptx,
        "sass": sass,
        "loop": loop,
        "banks": banks,
        "mapping": mapping,
    }
    wanted |= {"races": races, "ncu": ncu}
    views = [name for name, on in wanted.items() if on]
    if run_inspect(
        what, shape, views, as_json=as_json, gpu=gpu, svg=svg, layout=layout, symbol=symbol, threads=threads
    ):
        raise typer.Exit(1)


@app.command("run-cpu")
def run_cpu_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .cu file, built here, or a .ptx file.")],
    grid: Annotated[str, typer.Option("--grid", help="Blocks, as X, XxY or XxYxZ.")],
    block: Annotated[str, typer.Option("--block", help="Threads of a block, as X, XxY or XxYxZ.")],
    symbol: Annotated[
        str, typer.Option("--symbol", help="The kernel, by its plain or mangled name; the file's only one.")
    ] = "",
    arguments: Annotated[
        list[str] | None, typer.Option("--arg", help="One for each parameter, in order; the forms are above.")
    ] = None,
    smem: Annotated[int, typer.Option("--smem", min=0, help="Bytes of dynamic shared memory.")] = 0,
    arch: Annotated[str, typer.Option("--arch", help="Architecture that a .cu file is built for.")] = "sm_90a",
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Also refuse reads of shared memory never written, and copies never read."),
    ] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Run all blocks although one had a fault.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="End it after so long; no limit.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Run anybody's kernel on the PTX machine, without a GPU, and say what it does wrong.

    Exit status 1 where it found a race, an access out of bounds, a value never written or another fault; 3 where
    --seconds were over before it ended and no fault was found until then, or the machine lacks an opcode.

    \b
    Forms of --arg:
      5, -1, 0x10        a number of the parameter's own type, which must hold it
      1.5, 1e-3          the same where that is a float or a double
      i64:5, f32:2       a scalar whose type is stated (f16 f32 f64 i8 ... u64), where the PTX does not tell it
      random:f32:64x32   a buffer of uniform numbers in [-1, 1) that may only be read; random:f32:64x32:7 sets the seed;
                         of integers, -9 to 9, or 0 to 9 without a sign
      zeros:f32:100      a buffer of zeros that may be read and written; ones: likewise
      out:f32:64x64      a buffer that must be written before it is read; out:f32:64x64:c.npy saves it afterwards
      in:a.npy           a buffer from a file that may only be read; inout:a.npy may be written too

    \b
    Example:
      gemm-tracks run-cpu scale.cu --grid 4 --block 256 --arg random:f32:1000 --arg out:f32:1000 --arg 1000
    """
    from compare.machine_runs import run_cpu

    failed = run_cpu(
        file,
        symbol,
        grid,
        block,
        arguments or (),
        smem=smem,
        arch=arch,
        strict=strict,
        keep_going=keep_going,
        seconds=seconds,
        as_json=as_json,
    )
    if failed:
        raise typer.Exit(1)


@app.command()
def peaks(
    gpu: Annotated[
        str, typer.Option("--gpu", help="A device by the name its driver reports, instead of this one.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Datasheet peak, peak at the observed clock, measured ceiling and roofline crossover, each with its formula.

    On a GPU the ceilings are measured; without one they come from the recorded run, labelled as recorded.

    \b
    Examples:
      gemm-tracks peaks
      gemm-tracks peaks --gpu 'NVIDIA H200'
    """
    from compare.peak_report import run_peaks

    run_peaks(gpu, as_json=as_json)


@app.command()
def claims(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Claims to check; all of them.")] = None,
    write_docs: Annotated[bool, typer.Option("--write-docs", help="Also rewrite docs/claims.md.")] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Make these verdicts what is expected to hold.")] = False,
    as_json: AsJson = False,
) -> None:
    """Every factual claim of the two source texts that a machine can check, computed anew.

    Exit status 1 if a claim that used to hold no longer does.

    \b
    Examples:
      gemm-tracks claims
      gemm-tracks claims --json
    """
    from compare.claimed import run_claims

    broken = run_claims(ids or (), write_docs=write_docs, accept=accept, as_json=as_json)
    if broken:
        raise typer.Exit(1)


@app.command()
def tune(
    track: Annotated[str, typer.Option("--track", "-t", help="simt or fp16; both.")] = "",
    shapes: Annotated[
        str, typer.Option("--shapes", "-s", help="Sets or MxNxK,...; squares,tails,skinny,transformer.")
    ] = "",
    kernels: Annotated[
        list[str] | None,
        typer.Option("--kernels", "-k", help="Candidates, by name or glob; every hand-written kernel of the track."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The table, NAME.json, or a folder for both tracks'; below the cache."),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, help="Begin no shape that would end later than this; no limit.")
    ] = 0,
    gpus: Gpus = "",
    scheduler: Scheduler = "",
    as_json: AsJson = False,
) -> None:
    """Find the fastest kernel for each shape and write the table that simt_dispatch and fp16_dispatch look up.

    Launches of 1 ms and more are decided under sustained load, shorter ones in bursts. A table that is there grows:
    entries of other shapes stay, and its kernels for these shapes race too, whatever --kernels says.

    Finished shapes are kept in the cache: the same command goes on where it stopped. Sources are never edited.
    The dispatchers read the shipped tables, or those of the folder in GEMM_TRACKS_TABLES.

    \b
    Examples:
      gemm-tracks tune
      gemm-tracks tune --track simt --shapes squares --kernels 'v6*,v7*,v8*' --out build/tables --seconds 120
      gemm-tracks tune --track simt --shapes 4096,8192 --kernels 'v15*'
      gemm-tracks tune --gpus all
    """
    from compare.tuning import run_tune

    run_tune(track, shapes, kernels, out, seconds, as_json=as_json, gpus=gpus, scheduler=scheduler)


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or a name below results/<gpu>/.")],
    after: Annotated[
        str, typer.Argument(metavar="RUN", help="The run to compare with it; 'latest' is the recorded one.")
    ],
    threshold: Annotated[
        float, typer.Option("--threshold", help="Smallest change in time that counts, as a fraction.")
    ] = 0.02,
    as_json: AsJson = False,
) -> None:
    """Noise-aware comparison of two recorded runs. Exit status 1 where something got slower or broke.

    \b
    Example:
      gemm-tracks diff latest build/run
    """
    from compare.console import print_json
    from compare.diff import diff_runs

    found = diff_runs(before, after, threshold)
    if as_json:
        print_json(found.to_dict())
    else:
        from compare.folding import folded, terminal_width

        wide = terminal_width()
        for line in found.lines():
            typer.echo(folded(line, wide))
    if found.exit_status:
        raise typer.Exit(found.exit_status)


@app.command("report")
def report_(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder; latest: the recorded one.")],
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one self-contained page; it opens without a network.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Write the tables as markdown; - is stdout.")
    ] = None,
    latex: Annotated[
        Path | None, typer.Option("--latex", help="Write the tables as LaTeX, with booktabs; - is stdout.")
    ] = None,
    inspect_here: Annotated[
        bool,
        typer.Option(
            "--inspect", help="First build and inspect the run's kernels, and keep code.json beside its rows."
        ),
    ] = False,
) -> None:
    """A recorded run for people: an HTML page, markdown or LaTeX tables; without options, tables here.

    \b
    Examples:
      gemm-tracks report latest
      gemm-tracks report latest --html report.html
      gemm-tracks report build/run --latex tables.tex
    """
    from compare.reporting import run_report

    run_report(run, html=html, markdown=markdown, latex=latex, inspect_here=inspect_here)


@app.command()
def merge(
    given: Annotated[list[str], typer.Argument(metavar="RUN RUN...", help="Folders of runs, or names below results/.")],
    out_file: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the report into this file, as markdown.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Runs made on different GPUs or machines in one report, with a column for each GPU.

    Equal cards get their spread; different models stand side by side, and nothing is averaged.

    \b
    Example:
      gemm-tracks merge latest build/run --out build/merged.md
    """
    from compare.merging import run_merge

    run_merge(given, out_file, as_json=as_json)


@app.command()
def plot(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder; latest: the recorded one.")],
    what: Annotated[str, typer.Option("--what", "-w", help="tracks, ladder, sizes, roofline or accuracy.")] = "tracks",
    form: Annotated[
        str, typer.Option("--format", "-f", help="png, svg or pdf; by default what --out ends in, else png.")
    ] = "",
    out_file: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to write it, - for stdout; gemm-tracks-WHAT.FORMAT here."),
    ] = None,
) -> None:
    """One figure of a recorded run, for papers and slides. Needs matplotlib (pip install 'gemm-tracks[plot]').

    \b
    Example:
      gemm-tracks plot latest --what ladder --format svg
    """
    from compare.plots import run_plot

    drawn = run_plot(run, what, form, out_file)
    if str(drawn) != "-":
        typer.echo(drawn)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """What this machine can do: driver, toolkit, packages, g++; the first failing check and its cure.

    Exit status 3 if a check fails that this machine needs; GPU checks count where a driver is installed.

    \b
    Example:
      gemm-tracks doctor
    """
    from compare.console import print_json
    from compare.doctor import examine

    diagnosis = examine()
    if as_json:
        print_json(diagnosis_as_json(diagnosis))
    else:
        print_diagnosis(diagnosis)
    if diagnosis.first_failing:
        raise typer.Exit(3)


def diagnosis_as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    from dataclasses import asdict

    first = diagnosis.first_failing
    return {
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "first_failing": first.check if first else None,
        "driver": asdict(diagnosis.driver),
    }


def print_diagnosis(diagnosis: Diagnosis) -> None:
    from compare.doctor import bundle, visible_devices
    from compare.folding import folded, terminal_width

    wide = terminal_width()
    width = max(len(finding.check) for finding in diagnosis.findings)
    for finding in diagnosis.findings:
        verdict = "ok  " if finding.ok else "FAIL" if finding.need == "base" else "-   "
        typer.echo(folded(f"{verdict} {finding.check.ljust(width)}  {finding.found}", wide, indent=width + 7))
    typer.echo(folded(f"     {'CUDA_VISIBLE_DEVICES'.ljust(width)}  {visible_devices()}", wide))
    typer.echo(folded(f"     {'GEMM_TRACKS_BUNDLE'.ljust(width)}  {bundle()}", wide))
    first = diagnosis.first_failing
    if first:
        typer.echo(folded(f"\nFirst failing check: {first.check}: {first.found}\nCure: {first.cure}", wide))
    elif problem := diagnosis.driver.problem:
        typer.echo(folded(f"\nAll that is needed without a GPU is here. {problem[:1].upper()}{problem[1:]}.", wide))
    else:
        typer.echo(folded("\nAll checks passed: kernels can be built and run here.", wide))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status. Errors of ours are one line on stderr, never a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: what is said goes nowhere, and what is done is done
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not Unicode gets question marks rather than no answer.
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="replace")
    words = sys.argv[1:] if arguments is None else list(arguments)
    if empty := without_value(words):
        return fail(f"{empty} has an empty value; give it one, or leave it out", 2)
    try:
        status = app(args=words, prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()  # what a closed pipe has to say, it says here and not at exit
    except GemmTracksError as error:
        return fail(str(error), error.exit_status)
    except KeyboardInterrupt:
        return fail("stopped", STOPPED)
    except BrokenPipeError:
        return quietly_closed()
    except (OSError, MemoryError, UnicodeDecodeError) as error:
        # What was named cannot be read, written or held: the caller's to mend.
        return fail(unusable(error), 2)
    except SystemExit as error:
        # rich ends the process by itself where the reader of a pipe went away.
        return quietly_closed() if isinstance(error.__context__, BrokenPipeError) else int(error.code or 0)
    except Exception as error:
        if hasattr(error, "exit_code") and hasattr(error, "format_message"):  # what typer raises for bad usage
            return fail_usage(error)
        if type(error).__name__ == "Abort":
            return fail("stopped", STOPPED)
        if os.environ.get("GEMM_TRACKS_DEBUG"):
            raise
        return fail(f"{type(error).__name__}: {error} (a fault of ours; GEMM_TRACKS_DEBUG=1 shows where)", 1)
    if status == STOPPED:  # typer says nothing of an interrupt
        return fail("stopped", STOPPED)
    return status if isinstance(status, int) else 0


def without_value(words: Sequence[str]) -> str:
    """The first option whose value is empty, as from a shell variable that is not set; else empty."""
    for option, value in itertools.pairwise([*words, "none"]):
        if option.startswith("--") and option.endswith("="):
            return option[:-1]
        if option.startswith("-") and not value:
            return option
    return ""


def unusable(error: OSError | MemoryError | UnicodeDecodeError) -> str:
    """What cannot be read, written or held, without Python's numbers."""
    if isinstance(error, OSError) and error.strerror:
        named = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return ": ".join([" -> ".join(named), error.strerror] if named else [error.strerror])
    return str(error) or type(error).__name__


def fail_usage(error: Any) -> int:
    """One line for a command line that cannot be: what is wrong with it, and where its help is."""
    if type(error).__name__ == "NoArgsIsHelpError":  # no command at all: the help is the answer
        error.show()
        return int(error.exit_code)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else NAME
    return fail(f"{error.format_message().rstrip('.')}; see {path} --help", int(error.exit_code))


def quietly_closed() -> int:
    """The reader of a pipe went away, as ``head`` does: Python must not complain again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def fail(text: str, status: int) -> int:
    """One line on stderr."""
    sys.stderr.write(f"gemm-tracks: {' '.join(text.split())}\n")
    return status
