"""Runs on disk: written shard by shard so that an interrupted one resumes, found, read, and made ``latest``.

A run is a folder with run.json (provenance), rows.csv (the table of :mod:`compare.rows`) and
samples.json.gz (every sample behind every median). While it is being written, journal.jsonl holds one
line per finished shard; a run that stopped early keeps it and goes on from there.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import importlib.metadata
import io
import json
import math
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.possible import refuse_row, refuse_run
from compare.rows import ADDED, COLUMNS, NAMES
from kernel.errors import RunFileError
from kernel.whole_file import write_bytes

if TYPE_CHECKING:
    import pandas

    from compare.driver import Driver

FORMAT = 1
RUN_FILE = "run.json"
ROWS_FILE = "rows.csv"
SAMPLES_FILE = "samples.json.gz"
MOST_SAMPLES_BYTES = 2**28
"""What samples may unpack to; the largest recorded run has a hundredth of it."""
JOURNAL_FILE = "journal.jsonl"
REVISION_FILE = "REVISION"
"""In a bundle: the revision of the checkout that it was written from."""
LATEST = "latest"
VARIABLE = "GEMM_TRACKS_RESULTS"
"""Names the folder of recorded runs."""
RECORDED_GPU = "nvidia-h200"
"""The GPU whose recorded run ships with the project."""

PACKAGES = (
    "numpy", "pandas", "cupy-cuda13x", "cupy-cuda12x", "torch", "cuda-bindings", "nvidia-ml-py", "numba",
    "nvidia-cutlass", "nvidia-cutlass-dsl", "nvidia-cutlass-operators", "nvidia-cuda-nvcc", "nvidia-cublas",
    "nvidia-cublas-cu12",
)  # fmt: skip
"""Distributions whose versions a run records where they are installed."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that steer a terminal rather than say something; a line end and a tab are text."""

ENVIRONMENT_PREFIXES = ("GEMM_TRACKS_", "CUDA_", "CUBLAS", "CUPY_", "NVIDIA_TF32", "TORCH_", "PYTHONHASHSEED")


def repository() -> Path:
    """The folder that holds this project's packages."""
    return Path(__file__).resolve().parent.parent


def results_root() -> Path:
    """Where recorded runs live: GEMM_TRACKS_RESULTS, else the checkout's results/, else the installed copy."""
    override = os.environ.get(VARIABLE)
    if override:
        return Path(override).expanduser()
    checkout = repository() / "results"
    if (repository() / "pyproject.toml").is_file():
        return checkout
    return Path(__file__).resolve().parent / "recorded"


def latest(gpu: str = RECORDED_GPU) -> Path | None:
    """Folder of the recorded run on a GPU that stands for it, or None where there is none yet.

    An installed package has lost the link; the newest run by name that may be latest then takes its place.
    """
    root = results_root() / gpu
    if (root / LATEST / RUN_FILE).is_file():
        return (root / LATEST).resolve()
    for run in sorted(root.glob(f"*/{RUN_FILE}"), reverse=True):
        try:
            found = read_json(run)
        except RunFileError:  # what somebody else left there is no reason not to find a good one
            continue
        if found.get("complete") or found.get("partial"):
            return run.parent.resolve()
    return None


def locate(run: str | Path) -> Path:
    """Folder of a run given as a path, as <gpu>/<run>, or as the word ``latest``.

    Raises:
        RunFileError: there is no run.json there; the text lists where it was looked for.
    """
    text = str(run)
    if text == LATEST and (newest := latest()) is not None:
        return newest
    candidates = [Path(run).expanduser(), results_root() / text, results_root() / RECORDED_GPU / text]
    for folder in candidates:
        if (folder / RUN_FILE).is_file():
            return folder.resolve()
    looked = ", ".join(dict.fromkeys(str(folder) for folder in candidates))
    raise RunFileError(f"no recorded run {text!r}: no {RUN_FILE} in {looked}")


def read_run(run: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(provenance, rows) of a run; every row has every column, None where nothing was measured.

    Raises:
        RunFileError: a file is missing, is not of this format, lacks a column, or holds what no run can.
    """
    folder = locate(run)
    provenance = read_json(folder / RUN_FILE)
    if provenance.get("format") != FORMAT:
        raise RunFileError(f"{folder / RUN_FILE}: not a run of format {FORMAT}")
    try:
        refuse_run(provenance)
    except ValueError as error:
        raise RunFileError(f"{folder / RUN_FILE}: {error}") from None
    try:
        text = (folder / ROWS_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RunFileError(f"{folder}: cannot be read as a run: {error}") from error
    return provenance, parse_rows(text, str(folder / ROWS_FILE))


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file that anybody may have written; its texts can be shown on a terminal.

    Raises:
        RunFileError: it cannot be read, holds no JSON object, or hides control characters in a text.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        _refuse_control_characters(found)
    except (OSError, ValueError, RecursionError) as error:
        raise RunFileError(f"{path}: cannot be read as a run: {error}") from None
    if not isinstance(found, dict):
        raise RunFileError(f"{path}: an object is needed")
    return found


def _refuse_control_characters(value: Any) -> None:
    if isinstance(value, str):
        if CONTROL.search(value):
            raise ValueError(f"control characters in {value[:60]!r}")
    elif isinstance(value, dict):
        for name, part in value.items():
            _refuse_control_characters(name)
            _refuse_control_characters(part)
    elif isinstance(value, list):
        for part in value:
            _refuse_control_characters(part)


def load_run(run: str | Path = LATEST) -> pandas.DataFrame:
    """A recorded run as a DataFrame: columns, types and units as in :data:`compare.rows.COLUMNS`.

    Integers and booleans use pandas' nullable types, so that what was not measured stays empty.
    ``frame.attrs["run"]`` is the provenance, ``frame.attrs["columns"]`` says what each column means, with its unit.

    Example::

        frame = compare.load_run("latest")
        fast = frame[frame.window == "sustained"].nlargest(5, "tflops")[["name", "m", "tflops", "x_cublas"]]

    Raises:
        RunFileError: there is no such run, or it cannot be read.
    """
    import pandas

    provenance, rows = read_run(run)
    kinds: dict[str, Any] = {"str": "string", "int": "Int64", "float": "Float64", "bool": "boolean"}
    series = {c.name: pandas.Series([row[c.name] for row in rows], dtype=kinds[c.type]) for c in COLUMNS}
    frame: pandas.DataFrame = pandas.DataFrame(series)
    frame.attrs["run"] = provenance
    frame.attrs["columns"] = {column.name: column.meaning for column in COLUMNS}
    return frame


def parse_rows(text: str, where: str) -> list[dict[str, Any]]:
    """Rows from the text of a rows.csv.

    Raises:
        RunFileError: a column is missing or unknown, a cell is not of its column's type or holds control characters.
    """
    reader = csv.DictReader(io.StringIO(text))
    try:
        given = tuple(reader.fieldnames or ())
    except csv.Error as error:
        raise RunFileError(f"{where}: {error}") from None
    missing = [name for name in NAMES if name not in given and name not in ADDED]
    unknown = [name for name in given if name not in NAMES]
    if missing or unknown:
        raise RunFileError(f"{where}: columns missing: {missing or 'none'}; unknown: {unknown or 'none'}")
    rows: list[dict[str, Any]] = []
    try:
        for cells in reader:
            if None in cells:
                raise ValueError("the line has more cells than columns")
            rows.append({c.name: _parse(c.type, cells[c.name]) if c.name in given else None for c in COLUMNS})
            refuse_row(rows[-1])
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise RunFileError(f"{where}, line {reader.line_num}: {error}") from error
    return rows


def read_samples(run: str | Path) -> list[dict[str, Any]]:
    """Every set of samples of a run, as :meth:`compare.measure.Measurement.samples` wrote it.

    Raises:
        RunFileError: there is no such run, or its samples cannot be read.
    """
    path = locate(run) / SAMPLES_FILE
    try:
        with gzip.open(path) as stream:
            text = stream.read(MOST_SAMPLES_BYTES + 1)
        if len(text) > MOST_SAMPLES_BYTES:
            raise ValueError(f"more than {MOST_SAMPLES_BYTES} bytes")
        found = json.loads(text)
    except (OSError, ValueError, EOFError, RecursionError, zlib.error) as error:
        raise RunFileError(f"{path}: samples cannot be read: {error}") from error
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RunFileError(f"{path}: a list of samples is needed")
    return found


def format_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """The text of rows.csv: integers without decimals, true and false, empty where not measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(NAMES)
    for row in rows:
        writer.writerow(_format(column.type, row[column.name]) for column in COLUMNS)
    return out.getvalue()


def _parse(kind: str, cell: str | None) -> Any:
    if cell is None:
        raise ValueError("the line has fewer cells than columns")
    if kind == "str":
        if CONTROL.search(cell):
            raise ValueError(f"control characters in {cell[:60]!r}")
        return cell or None
    if not cell:
        return None
    if kind == "bool":
        if cell not in ("true", "false"):
            raise ValueError(f"{cell!r} is neither true nor false")
        return cell == "true"
    if not cell.isascii() or "_" in cell:  # which Python would read as digits
        raise ValueError(f"{cell!r} is no number")
    if kind == "int":
        return int(cell)
    value = float(cell)
    if not math.isfinite(value):
        raise ValueError(f"{cell!r} is not finite; what was not measured stays empty")
    return value


def _format(kind: str, value: Any) -> str:
    if value is None:
        return ""
    if kind == "bool":
        return "true" if value else "false"
    if kind == "int":
        return str(int(value))
    return f"{float(value):.7g}" if kind == "float" else str(value)


class RunWriter:
    """Writes one run. Every finished shard is on disk before the next one starts.

    Args:
        folder: the run's folder, created if needed; a journal in it is resumed.
        provenance: what :func:`provenance` answered.

    Raises:
        RunFileError: the folder holds a finished run, or a journal from another revision or GPU.
    """

    def __init__(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        self.folder = folder
        self.provenance = dict(provenance)
        self._shards: dict[str, dict[str, Any]] = {}
        journal = folder / JOURNAL_FILE
        if journal.is_file():
            self._resume(journal)
        elif (folder / RUN_FILE).exists():
            raise RunFileError(f"{folder} already holds a finished run; give another folder or remove it")
        else:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._unwritable(error) from None
            self._append({"format": FORMAT, "run": self.provenance})

    @property
    def finished(self) -> frozenset[str]:
        """Names of the shards that need not be run again."""
        return frozenset(self._shards)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of every finished shard, in the order in which shards were added."""
        return [row for shard in self._shards.values() for row in shard["rows"]]

    def rows_of(self, shard: str) -> list[dict[str, Any]]:
        """Rows of a finished shard; none where it is not finished."""
        return list(self._shards.get(shard, {"rows": ()})["rows"])

    def samples_of(self, shard: str) -> list[dict[str, Any]]:
        """What a finished shard holds beside rows; empty where it is not finished."""
        return list(self._shards.get(shard, {"samples": ()})["samples"])

    def add(
        self,
        shard: str,
        rows: Sequence[Mapping[str, Any]],
        samples: Sequence[Mapping[str, Any]] = (),
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Record a finished shard: its rows, and for each set of samples a mapping that names its row.

        ``seconds`` says what it took, by phase (:mod:`compare.stopwatch`), and under ``estimate`` what was expected.

        Raises:
            RunFileError: it cannot be written; what was added before is safe.
        """
        entry: dict[str, Any] = {
            "shard": shard,
            "rows": [dict(row) for row in rows],
            "samples": [dict(s) for s in samples],
        }
        if seconds:
            entry["seconds"] = dict(seconds)
        self._append(entry)
        self._shards[shard] = entry

    def finish(self, *, complete: bool, rows: Sequence[Mapping[str, Any]] | None = None) -> Path:
        """Write rows.csv, samples.json.gz and run.json; the journal goes only where the run is complete.

        ``rows`` replaces the shards' own, with columns filled in that need more than one shard.

        Raises:
            RunFileError: a file cannot be written; the journal still holds every shard.
        """
        table = self.rows if rows is None else rows
        samples = [entry for shard in self._shards.values() if shard["rows"] for entry in shard["samples"]]
        spent = {name: shard["seconds"] for name, shard in self._shards.items() if shard.get("seconds")}
        run = {"format": FORMAT, "complete": complete, **self.provenance, "rows": len(table)}
        if spent:
            run["seconds"] = spent
        try:
            write_bytes(self.folder / ROWS_FILE, format_rows(table).encode())
            # A fixed time stamp keeps the archive the same for the same samples.
            write_bytes(self.folder / SAMPLES_FILE, gzip.compress(json.dumps(samples).encode(), mtime=0))
            write_bytes(self.folder / RUN_FILE, (json.dumps(run, indent=1) + "\n").encode())
        except OSError as error:
            raise self._unwritable(error) from None
        if complete:
            (self.folder / JOURNAL_FILE).unlink(missing_ok=True)
        return self.folder

    def _append(self, entry: Mapping[str, Any]) -> None:
        try:
            with (self.folder / JOURNAL_FILE).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> RunFileError:
        return RunFileError(
            f"{self.folder} cannot be written ({error.strerror}); {len(self._shards)} finished groups are kept in it: "
            "once there is room, the same command goes on from there"
        )

    def _resume(self, journal: Path) -> None:
        entries: list[dict[str, Any]] = []
        try:
            lines = journal.read_text(encoding="utf-8").split("\n")
            for line in lines[:-1]:  # what follows the last line end was cut off while being written
                entries.append(json.loads(line))
            if not entries:  # killed before its first line was whole: nothing was begun
                journal.unlink()
                self._append({"format": FORMAT, "run": self.provenance})
                return
            if entries[0].get("format") != FORMAT:
                raise RunFileError(f"{journal}: not a journal of format {FORMAT}; remove it to start over")
            before, now = identity(entries[0]["run"]), identity(self.provenance)
            begun = str(entries[0]["run"].get("date", ""))
            shards = {str(entry["shard"]): {**entry, "rows": [*entry["rows"]]} for entry in entries[1:]}
            for shard in shards.values():
                for line_row in shard["rows"]:
                    format_rows([line_row])
                shard["samples"] = [dict(one) for one in shard["samples"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"line {len(entries) + 1}" if isinstance(error, ValueError) else "an entry"
            raise RunFileError(f"{journal}: {what} cannot be read ({error}); give another folder") from None
        if before != now:
            raise RunFileError(f"{journal} was begun by {before} and cannot go on with {now}; give another folder")
        self.provenance["resumed"] = self.provenance.get("date", "")
        self.provenance["date"] = begun
        self._shards = shards
        if lines[-1]:
            write_bytes(journal, ("\n".join(lines[:-1]) + "\n").encode())


def identity(run: Mapping[str, Any]) -> str:
    """What two sessions must share to be parts of one run: revision, kind of GPU, request and dispatch tables."""
    gpu = run.get("gpu") or {}
    tables = [f"{one['dispatcher']} {str(one['sha256'])[:12]}" for one in run.get("dispatch_tables", ())]
    text = f"revision {run.get('revision')} on {gpu.get('name')} ({gpu.get('sm_count')} SMs), {run.get('request')!r}"
    return text + (f", tables {', '.join(tables)}" if tables else "")


def record_folder(provenance: Mapping[str, Any]) -> Path:
    """Where a ``--record`` run goes: an unfinished one of the same revision, else <gpu>/<date>-<revision>."""
    gpu, revision = str(provenance["gpu"]["slug"]), str(provenance["revision"])
    root = results_root() / gpu
    for journal in sorted(root.glob(f"*-{revision}/{JOURNAL_FILE}"), reverse=True):
        return journal.parent
    return root / f"{str(provenance['date'])[:10]}-{revision}"


def make_latest(folder: Path) -> Path:
    """Point ``latest`` beside a run at it, as a relative link.

    Raises:
        RunFileError: the run is partial and does not say why that is accepted, or is not a run.
    """
    run, _ = read_run(folder)
    if not (run.get("complete") or run.get("partial")):
        raise RunFileError(f"{folder} is a partial run; latest is moved only by complete ones")
    link = folder.parent / LATEST
    partial = folder.parent / f".{LATEST}.partial"
    partial.unlink(missing_ok=True)
    partial.symlink_to(folder.name)
    partial.replace(link)
    return link


def adopt(folder: Path, partial: str = "") -> Path:
    """Copy a run that was made elsewhere into results/<gpu>/ and, if it is complete, make it latest.

    ``partial`` says what an unfinished run lacks, for everyone who is shown it; it then becomes latest too.

    Raises:
        RunFileError: the folder is no run, or a run of that name is there already.
    """
    folder = locate(folder)
    run, _ = read_run(folder)
    gpu = run.get("gpu")
    names = (gpu.get("slug") if isinstance(gpu, dict) else None, str(run.get("date"))[:10], run.get("revision"))
    dated = re.fullmatch(r"\d{4}-\d\d-\d\d", names[1])
    if not dated or not all(isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) for name in names):
        raise RunFileError(
            f"{folder / RUN_FILE}: GPU, date and revision become the names of folders, and these cannot: {names}"
        )
    slug, date, made_from = names
    target = results_root() / str(slug) / f"{date}-{made_from}"
    if target.exists():
        raise RunFileError(f"{target} is there already; remove it first if this run is to replace it")
    target.mkdir(parents=True)
    for name in (RUN_FILE, ROWS_FILE, SAMPLES_FILE):
        shutil.copyfile(folder / name, target / name)
    if partial and not run.get("complete"):
        write_bytes(target / RUN_FILE, (json.dumps({**run, "partial": partial}, indent=1) + "\n").encode())
    if run.get("complete") or partial:
        make_latest(target)
    return target


def provenance(command: Sequence[str], driver: Driver, toolkit: str = "", request: str = "") -> dict[str, Any]:
    """What a later reader needs to judge a run: GPU, driver, toolkit, packages, revision, date, command.

    ``request`` says in one line what was asked for; only a run of the same request goes on in its folder.

    Folders are written relative to the current and home folders, so that no machine's layout is recorded.
    """
    gpu: dict[str, Any] = {}
    if driver.devices:
        first = driver.devices[0]
        gpu = {
            "name": first.name,
            "slug": first.slug,
            "compute_capability": ".".join(map(str, first.compute_capability)),
            "sm_count": first.sm_count,
            "memory_bytes": first.memory_bytes,
            "l2_bytes": first.l2_bytes,
        }
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "revision": revision(),
        "command": [_portable(word) for word in command],
        "request": request,
        "gpu": gpu,
        "driver_cuda": driver.version,
        "driver": _driver_release(),
        "toolkit": toolkit,
        "packages": {name: version for name in PACKAGES if (version := _package_version(name))},
        "environment": {
            name: _portable(value)
            for name, value in sorted(os.environ.items())
            if name.startswith(ENVIRONMENT_PREFIXES)
        },
    }


def revision() -> str:
    """Git revision of the checkout, ten digits, with -dirty where tracked files differ from it.

    GEMM_TRACKS_REVISION comes first, then the bundle's: a copy of the tree that travelled with a bundle may have no
    history, or one that stops before the commit that the bundle was made from. An installed package is of its
    version, such as v0.1.0.
    """
    override = os.environ.get("GEMM_TRACKS_REVISION")
    if override:
        return override
    bundle = os.environ.get("GEMM_TRACKS_BUNDLE")
    written = Path(bundle).expanduser() / REVISION_FILE if bundle else None
    if written is not None and written.is_file():
        return written.read_text(encoding="utf-8").strip()

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *words], cwd=repository(), capture_output=True, text=True, check=True, timeout=30
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    head = git("rev-parse", "--short=10", "HEAD")
    if head is None or git("rev-parse", "--show-toplevel") != str(repository()):
        installed = "" if (repository() / "pyproject.toml").is_file() else _package_version("gemm-tracks")
        return f"v{installed}" if installed else "unknown"
    changes = git("status", "--porcelain", "--untracked-files=no")
    return f"{head}{'-dirty' if changes else ''}"


def _portable(text: str) -> str:
    for folder, name in ((Path.cwd(), "."), (repository(), "."), (Path.home(), "~")):
        if folder != Path(folder.anchor):
            text = text.replace(str(folder), name)
    return text


def _package_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _driver_release() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    words = text.split()
    numbers = [word for word in words if word[0].isdigit() and word.count(".") >= 1]
    return numbers[0] if numbers else ""
