"""Dispatch tables: which kernel was fastest on which shape, measured by ``gemm-tracks tune`` on one GPU.

A table is one JSON file. Reading it runs nothing: names in it are looked up in the catalog, numbers are checked,
and what does not fit is a :class:`kernel.errors.TableError` that names the file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel.build import catalog_hash, digest, source_hash
from kernel.contract import INT32_MAX, ITEMSIZE, LAYOUTS, TRACKS, Kernel, Problem
from kernel.errors import TableError
from kernel.whole_file import replacing

SHIPPED = Path(__file__).parent / "tables"
VARIABLE = "GEMM_TRACKS_TABLES"
"""Environment variable: a folder whose tables are read instead of the shipped ones."""
FORMAT = 1
MAX_BYTES = 4 << 20
WIDEST = 16
"""Bytes of the widest access; alignments beyond it change nothing."""


def alignment_class(problem: Problem) -> int:
    """Largest power of two, in bytes and at most 16, that divides every base pointer and row pitch."""
    size_in, size_out = ITEMSIZE[problem.dtype_in], ITEMSIZE[problem.dtype_out]
    pitches = (problem.lda * size_in, problem.ldb * size_in, problem.ldc * size_out)
    return math.gcd(WIDEST, problem.align_a, problem.align_b, problem.align_c, *pitches)


def fingerprint(kernel: Kernel) -> str:
    """What a kernel's own builds are made from: sources, headers, tiles and flags, as a short hash."""
    own = [unit for unit in kernel.units() if unit.name.partition(".")[0] == kernel.name]
    return digest(*(f"{unit.name} {catalog_hash(unit)} {source_hash(unit)}" for unit in own))[:16]


@dataclass(frozen=True)
class Entry:
    """One tuned shape: every kernel that was timed there, the chosen one first."""

    m: int
    n: int
    k: int
    layout: str
    dtype_out: str
    align: int
    """:func:`alignment_class` of the problem, bytes."""
    times_us: Mapping[str, float]
    """Microseconds of one GEMM by kernel, in bursts, by place; those pruned early carry a rougher time."""
    cublas_us: float | None = None
    sustained_us: Mapping[str, float] = field(default_factory=dict)
    """Microseconds in sustained windows of the kernels that met in them, by place; empty where bursts decided."""
    cublas_sustained_us: float | None = None
    kept_from: str = ""
    """Date and revision of the earlier table that it was taken over from; empty where this table's tuning timed it."""

    @property
    def kernel(self) -> str:
        """Name of the chosen kernel."""
        return next(iter(self.times_us))

    @property
    def window(self) -> str:
        """The window that decided: ``sustained`` or ``burst``."""
        return "sustained" if self.kernel in self.sustained_us else "burst"

    @property
    def deciding_us(self) -> Mapping[str, float]:
        """Microseconds by kernel in the window that decided."""
        return self.sustained_us if self.window == "sustained" else self.times_us

    @property
    def x_cublas(self) -> float | None:
        """cuBLAS over the chosen kernel in the window that decided; None where cuBLAS has no time in it."""
        cublas = self.cublas_sustained_us if self.window == "sustained" else self.cublas_us
        return None if cublas is None else cublas / self.deciding_us[self.kernel]

    @property
    def key(self) -> tuple[int, int, int, str, str, int]:
        return (self.m, self.n, self.k, self.layout, self.dtype_out, self.align)

    def problem(self, dtype_in: str, dtype_acc: str = "float32") -> Problem:
        """The problem that was timed: packed rows, base pointers no better aligned than the class says."""
        base = 256 if self.align >= WIDEST else max(self.align, ITEMSIZE[dtype_in], ITEMSIZE[self.dtype_out])
        return Problem(
            m=self.m, n=self.n, k=self.k, layout=self.layout,
            dtype_in=dtype_in, dtype_acc=dtype_acc, dtype_out=self.dtype_out,
            align_a=base, align_b=base, align_c=base,
        )  # fmt: skip


@dataclass(frozen=True)
class Tuned:
    """What a table knows of one kernel beside its times."""

    fingerprint: str
    """:func:`fingerprint` of the kernel that was timed."""
    blocks_per_sm: int = 1
    """Thread blocks that are resident on an SM at once."""


@dataclass(frozen=True)
class Table:
    """Everything that one tuning of one track on one GPU found."""

    track: str
    gpu: str
    sm_count: int
    toolkit: str
    date: str
    revision: str
    method: str
    """How the times were taken, in one line, but for entries that are kept from an earlier table: see :attr:`how`."""
    kernels: Mapping[str, Tuned]
    entries: tuple[Entry, ...]
    path: Path | None = None
    sha256: str = ""
    """Of the file's bytes."""

    @property
    def origin(self) -> str:
        """Where the table comes from, in one line."""
        return f"{self.gpu} ({self.sm_count} SMs), {self.date[:10]}, revision {self.revision}"

    @property
    def how(self) -> str:
        """:attr:`method`, and how many of the entries here are older than it, from where."""
        older = Counter(entry.kept_from for entry in self.entries if entry.kept_from)
        kept = (
            f"{count} of {len(self.entries)} entries kept from the table of {where}" for where, count in older.items()
        )
        return "; ".join((self.method, *kept))

    @functools.cached_property
    def by_key(self) -> dict[tuple[int, int, int, str, str, int], Entry]:
        return {entry.key: entry for entry in self.entries}

    def exact(self, problem: Problem) -> Entry | None:
        """The entry of exactly this problem, else of the same one with another output type, else None."""
        p, align = problem, alignment_class(problem)
        outputs = (p.dtype_out, *(name for name in ITEMSIZE if name != p.dtype_out))
        found = (self.by_key.get((p.m, p.n, p.k, p.layout, out, align)) for out in outputs)
        return next((entry for entry in found if entry is not None), None)

    def stale(self, kernels: Iterable[Kernel]) -> dict[str, str]:
        """By name: what has become of kernels that the table was tuned with, ``changed`` or ``removed``."""
        present = {kernel.name: kernel for kernel in kernels}
        found = {}
        for name, tuned in self.kernels.items():
            if name not in present:
                found[name] = "removed"
            elif fingerprint(present[name]) != tuned.fingerprint:
                found[name] = "changed"
        return found

    def text(self) -> str:
        """The file's text: one line per kernel and per entry, so that a change shows as the lines it touches."""
        head = {
            "format": FORMAT, "track": self.track, "gpu": self.gpu, "sm_count": self.sm_count, "toolkit": self.toolkit,
            "date": self.date, "revision": self.revision, "method": self.method,
        }  # fmt: skip
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        kernels = [
            f"  {json.dumps(name)}: {json.dumps({'source': tuned.fingerprint, 'blocks_per_sm': tuned.blocks_per_sm})}"
            for name, tuned in self.kernels.items()
        ]
        entries = [f"  {json.dumps(record_of(entry))}" for entry in self.entries]
        body = [
            *lines,
            ' "kernels": {\n' + ",\n".join(kernels) + "\n }",
            ' "entries": [\n' + ",\n".join(entries) + "\n ]",
        ]
        return "{\n" + ",\n".join(body) + "\n}\n"


def record_of(entry: Entry) -> dict[str, Any]:
    """An entry as the file holds it, times to five digits; those of sustained windows only where there are any."""
    record = {
        "m": entry.m, "n": entry.n, "k": entry.k, "layout": entry.layout, "dtype_out": entry.dtype_out,
        "align": entry.align, "kernel": entry.kernel, "us": {name: _five(us) for name, us in entry.times_us.items()},
        "cublas_us": None if entry.cublas_us is None else _five(entry.cublas_us),
    }  # fmt: skip
    if entry.sustained_us:
        record["sustained_us"] = {name: _five(us) for name, us in entry.sustained_us.items()}
    if entry.cublas_sustained_us is not None:
        record["cublas_sustained_us"] = _five(entry.cublas_sustained_us)
    if entry.kept_from:
        record["kept_from"] = entry.kept_from
    return record


def _five(us: float) -> float:
    return float(f"{us:.5g}")


def file_name(slug: str, track: str) -> str:
    """Name of the table of a GPU (its slug, such as nvidia-h200) and track."""
    return f"{slug}.{track}.json"


def folder() -> Path:
    """Where tables are read from: GEMM_TRACKS_TABLES, else those that ship."""
    given = os.environ.get(VARIABLE)
    return Path(given).expanduser() if given else SHIPPED


def read(path: Path) -> Table:
    """The table in a file.

    Raises:
        TableError: it cannot be read, or is not a table; the text names the file and what is wrong.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror or error}); `gemm-tracks tune` writes one") from None
    if len(data) > MAX_BYTES:
        raise TableError(f"{path}: larger than {MAX_BYTES >> 20} MiB, so not a dispatch table")
    try:
        table = _parse(json.loads(data.decode("utf-8"), parse_constant=_no_constant))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"{type(error).__name__}: " if isinstance(error, (KeyError, RecursionError)) else ""
        raise TableError(
            f"{path}: not a dispatch table of format {FORMAT} ({what}{error}); write it again with `gemm-tracks tune`"
        ) from None
    return Table(**{**vars(table), "path": path, "sha256": hashlib.sha256(data).hexdigest()})


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no time")


def _parse(value: Any) -> Table:
    _require(isinstance(value, dict) and value.get("format") == FORMAT, f"format is not {FORMAT}")
    _require(value["track"] in TRACKS, f"track is {value['track']!r}")
    kernels = {}
    _require(isinstance(value["kernels"], dict), "kernels is no object")
    for name, record in value["kernels"].items():
        _require(isinstance(record, dict) and isinstance(record["source"], str), f"kernels: {name!r}")
        kernels[name] = Tuned(record["source"], _whole(record["blocks_per_sm"], 1, 64, "blocks_per_sm"))
    _require(isinstance(value["entries"], list), "entries is no list")
    entries = tuple(entry_of(one) for one in value["entries"])
    for entry in entries:
        unknown = sorted(set(entry.times_us) - set(kernels))
        _require(not unknown, f"entry {entry.m}x{entry.n}x{entry.k}: kernels does not list {', '.join(unknown)}")
    _require(len({entry.key for entry in entries}) == len(entries), "two entries are of one problem")
    texts = {name: value[name] for name in ("gpu", "toolkit", "date", "revision", "method")}
    _require(all(isinstance(text, str) for text in texts.values()), "gpu, toolkit, date, revision and method are texts")
    return Table(
        track=value["track"],
        sm_count=_whole(value["sm_count"], 1, 4096, "sm_count"),
        kernels=kernels,
        entries=entries,
        **texts,
    )


def entry_of(value: Any) -> Entry:
    """The entry that :func:`record_of` wrote.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    _require(isinstance(value, dict), "an entry is no object")
    m, n, k = (_whole(value[name], 1, INT32_MAX, name) for name in ("m", "n", "k"))
    where = f"entry {m}x{n}x{k}"
    _require(value["layout"] in LAYOUTS, f"{where}: layout is {value['layout']!r}")
    _require(value["dtype_out"] in ITEMSIZE, f"{where}: dtype_out is {value['dtype_out']!r}")
    align = _whole(value["align"], 1, WIDEST, "align")
    _require(align & (align - 1) == 0, f"{where}: align is {align}")
    _require(isinstance(value["us"], dict) and bool(value["us"]), f"{where}: us holds no kernel")
    times = {name: _time(us, where) for name, us in value["us"].items()}
    chosen = value["kernel"]
    _require(chosen in times, f"{where}: kernel is {chosen!r}, which us does not list")
    # Tables written before there were sustained windows have neither.
    steady, cublas_steady = value.get("sustained_us", {}), value.get("cublas_sustained_us")
    _require(isinstance(steady, dict) and set(steady) <= set(times), f"{where}: sustained_us names what us does not")
    cublas, kept_from = value["cublas_us"], value.get("kept_from", "")
    _require(isinstance(kept_from, str), f"{where}: kept_from is no text")
    return Entry(
        m=m, n=n, k=k, layout=value["layout"], dtype_out=value["dtype_out"], align=align,
        times_us={chosen: times[chosen], **times},
        cublas_us=None if cublas is None else _time(cublas, where),
        sustained_us={name: _time(us, where) for name, us in steady.items()},
        cublas_sustained_us=None if cublas_steady is None else _time(cublas_steady, where),
        kept_from=kept_from,
    )  # fmt: skip


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise ValueError(text)


def _whole(value: Any, least: int, most: int, name: str) -> int:
    _require(isinstance(value, int) and not isinstance(value, bool), f"{name} is {value!r}, no whole number")
    _require(least <= value <= most, f"{name} is {value}, outside {least} to {most}")
    return int(value)


def _time(value: Any, where: str) -> float:
    _require(isinstance(value, (int, float)) and not isinstance(value, bool), f"{where}: {value!r} is no time")
    _require(0 < value < 1e12, f"{where}: {value!r} us is no time")
    return float(value)


@functools.lru_cache(maxsize=64)
def _read_once(path: Path, _written: int, _size: int) -> Table:
    return read(path)


def tables(track: str) -> tuple[Table, ...]:
    """Every table of a track in :func:`folder`, by name of file; read again where a file has changed.

    Raises:
        TableError: the folder that GEMM_TRACKS_TABLES names is none, or a file in it is damaged.
    """
    where = folder()
    if not where.is_dir():
        if os.environ.get(VARIABLE):
            raise TableError(f"{VARIABLE} is {where}, which is no folder; give one, or unset it for the shipped tables")
        return ()
    found = []
    for path in sorted(where.glob(f"*.{track}.json")):
        status = path.stat()
        table = _read_once(path, status.st_mtime_ns, status.st_size)
        if table.track != track:
            raise TableError(f"{path}: holds the track {table.track}; its name says {track}")
        found.append(table)
    return tuple(found)


def nearest(found: Sequence[Table], gpu: str, sm_count: int) -> Table | None:
    """The table for a device: its own, else of as many SMs, else of the nearest number; None where there is none.

    With no device known (``gpu`` empty) the one with most entries.
    """
    if not gpu:
        return max(found, key=lambda table: len(table.entries), default=None)

    def distance(table: Table) -> tuple[bool, float]:
        return table.gpu != gpu or table.sm_count != sm_count, abs(math.log(table.sm_count / sm_count))

    return min(found, key=distance, default=None)


def write(table: Table, path: Path) -> None:
    """Write the file, whole or not at all; what is written reads back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(table.text(), encoding="utf-8")
        read(partial)
