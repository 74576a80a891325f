"""Source to Artifact: the build cache, parallel builds, and the bundle that travels to a GPU machine.

An artifact's key is the hash of everything that decides its bytes: source, the headers beside it,
flags, what the include folders hold, architecture and compiler version. A build happens in a
temporary folder that is renamed into place, so a killed build leaves nothing that could be used and
two processes that build the same unit both end with a whole one.
"""

from __future__ import annotations

import errno
import getpass
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernel.contract import Artifact, Resources, Unit
from kernel.errors import BuildError, MissingToolError, UsageError
from kernel.toolchain import Tool, find

FORMAT = 1
"""Raised when what a build folder holds changes; older folders are then left alone and rebuilt."""

BASE_FLAGS = ("-std=c++17", "-O3", "-Xptxas", "-v")
ABANDONED_S = 24 * 3600.0
"""Age in seconds at which an unfinished build counts as killed."""
NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|File too large|File size limit exceeded")
"""What compilers say where a disk is full, if they say it."""
LEAST_ROOM = 1 << 18
"""Bytes free below which a disk counts as full whatever a compiler says."""
RECORD = "artifact.json"
FILES = ("kernel.cu", "kernel.cubin", "kernel.ptx", "build.log")
MANIFEST = "manifest.json"
COMPILERS = {"cuda": "nvcc", "ptx": "ptxas"}
"""The tool that a unit's text is handed to."""

_memo: dict[tuple[Unit, str], Artifact] = {}
_memo_lock = threading.Lock()


def digest(*parts: str) -> str:
    """SHA-256 over parts that cannot run into each other, as hex."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def cache_root() -> Path:
    """Folder of everything built: GEMM_TRACKS_CACHE, else the user's cache folder, else a temporary one.

    The last is taken where the home folder cannot be written; it is private to the user.

    Raises:
        UsageError: GEMM_TRACKS_CACHE cannot be a folder.
        BuildError: neither home nor the temporary folder can be written.
    """
    given = os.environ.get("GEMM_TRACKS_CACHE")
    if given:
        root = Path(given).expanduser().absolute()
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"GEMM_TRACKS_CACHE is {given}, where no folder can be made ({error.strerror or error}); "
                "name another, or unset it"
            ) from None
        return root
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "gemm-tracks"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            return home
    except OSError:
        fallback = Path(tempfile.gettempdir()) / f"gemm-tracks-{getpass.getuser()}"
        fallback.mkdir(mode=0o700, exist_ok=True)
        if hasattr(os, "getuid") and fallback.stat().st_uid != os.getuid():
            raise BuildError(
                f"{home} cannot be written and {fallback} belongs to another user; set GEMM_TRACKS_CACHE"
            ) from None
        return fallback


def content_folder(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """The cached folder for ``key``, made by ``make(temporary_folder)`` if it is not there yet.

    The folder's name is built from ``kind`` (a path below the cache, ours) and the hash of ``key``.
    A folder whose files are not what ``make`` left (a torn disk, an editor) is discarded and made again.

    Raises:
        BuildError: the cache cannot be written, the disk is full for one; what ``make`` raises.
    """
    folder = cache_root() / f"{kind}-{digest(key)[:20]}"
    if _is_whole(folder):
        return folder
    temporary: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
        make(temporary)
        sums = {p.name: _sum(p) for p in sorted(temporary.iterdir()) if p.is_file()}
        (temporary / ".complete").write_text(json.dumps(sums), encoding="utf-8")
        temporary.chmod(0o755)
        _put_in_place(temporary, folder)
    except OSError as error:
        raise BuildError(
            f"{folder.name} could not be written to the build cache {cache_root()} ({error.strerror or error}); "
            "make room there, or set GEMM_TRACKS_CACHE to another folder"
        ) from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _sweep(parent: Path) -> None:
    """Remove what killed builds left behind, once no build can be at it any more."""
    for left in parent.glob(".making-*"):
        try:
            if time.time() - left.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # another process swept it first
            continue


def _put_in_place(temporary: Path, folder: Path) -> None:
    """Rename a finished folder into place; a whole one that another process put there first stays."""
    for _ in range(8):
        try:
            temporary.rename(folder)
            return
        except OSError:
            if _is_whole(folder):
                return
            discarded = folder.with_name(f".discarded-{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}")
            try:
                folder.rename(discarded)
            except OSError:
                continue
            shutil.rmtree(discarded, ignore_errors=True)
    raise BuildError(f"{folder} could not be put in place; check that the cache folder can be written")


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_whole(folder: Path) -> bool:
    try:
        sums: dict[str, str] = json.loads((folder / ".complete").read_text(encoding="utf-8"))
        return all(_sum(folder / name) == value for name, value in sums.items())
    except (OSError, ValueError, AttributeError):
        return False


def local_headers(unit: Unit, text: str) -> dict[str, str]:
    """Headers that the source includes by quotes from its own folder, with their text, transitively."""
    if not isinstance(unit.source, Path):
        return {}
    folder, found, queue = unit.source.parent, dict[str, str](), [text]
    while queue:
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', queue.pop(), re.MULTILINE):
            path = folder / name
            if name not in found and path.is_file():
                found[name] = path.read_text(encoding="utf-8")
                queue.append(found[name])
    return found


def catalog_hash(unit: Unit) -> str:
    """What a manifest knows a unit by: everything but its source text and the compiler."""
    return digest(unit.name, unit.arch, *unit.flags, unit.headers, unit.catalog, str(FORMAT))


def source_hash(unit: Unit) -> str:
    """Hash of a unit's source and local headers, or empty where the source has to be emitted."""
    if not isinstance(unit.source, Path):
        return ""
    text = unit.text()
    return digest(text, json.dumps(local_headers(unit, text), sort_keys=True))


def artifact(unit: Unit) -> Artifact:
    """The unit's artifact: from the bundle, from the cache, or built now.

    Raises:
        BuildError: the compiler refused it; ``log`` holds what it said.
        MissingToolError: it is not built yet and there is no compiler, or nothing to emit it with.
    """
    found = lookup(unit)
    if found is not None:
        return found
    compiler = find(COMPILERS[unit.language])
    text = unit.text()
    make = _compile if unit.language == "cuda" else _assemble
    built = content_folder(
        f"artifacts/{unit.name}", _key(unit, text, compiler.version), lambda folder: make(unit, text, folder)
    )
    return _remember(unit, _read(built, unit))


def lookup(unit: Unit) -> Artifact | None:
    """The unit's artifact if it is in the bundle or the cache, without building or emitting anything."""
    memo = _memo.get((unit, _memo_scope()))
    if memo is not None and memo.cubin.exists() and _still_current(unit, memo):
        return memo
    return _from_bundle(unit) or _from_cache(unit)


def _still_current(unit: Unit, built: Artifact) -> bool:
    """Whether the source on disk is what the artifact was made from; emitted sources do not change."""
    if not isinstance(unit.source, Path):
        return True
    record = json.loads((built.folder / RECORD).read_text(encoding="utf-8"))
    return bool(record["source"] == source_hash(unit))


def _memo_scope() -> str:
    return f"{os.environ.get('GEMM_TRACKS_CACHE', '')}|{os.environ.get('GEMM_TRACKS_BUNDLE', '')}"


def _remember(unit: Unit, built: Artifact) -> Artifact:
    with _memo_lock:
        _memo[(unit, _memo_scope())] = built
    return built


def _key(unit: Unit, text: str, compiler_version: str) -> str:
    headers = json.dumps(local_headers(unit, text), sort_keys=True)
    return digest(catalog_hash(unit), text, headers, compiler_version, *BASE_FLAGS)


def _read(folder: Path, unit: Unit) -> Artifact:
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    return Artifact(
        unit=unit.name,
        key=record["key"],
        arch=record["arch"],
        compiler=record["compiler"],
        folder=folder,
        resources={name: Resources(**values) for name, values in record["resources"].items()},
    )


def bundle_root() -> Path | None:
    """Folder of the bundle that GEMM_TRACKS_BUNDLE names, or None."""
    given = os.environ.get("GEMM_TRACKS_BUNDLE")
    return Path(given).expanduser().absolute() if given else None


def bundled_file(name: str) -> Path | None:
    """A further file that travels in the bundle (a host library, say), or None."""
    root = bundle_root()
    path = root / "files" / Path(name).name if root else None
    return path if path is not None and path.is_file() else None


def _from_bundle(unit: Unit) -> Artifact | None:
    root = bundle_root()
    if root is None:
        return None
    try:
        entry = json.loads((root / MANIFEST).read_text(encoding="utf-8"))["units"].get(unit.name)
    except (OSError, ValueError, KeyError) as error:
        raise BuildError(f"GEMM_TRACKS_BUNDLE is {root}, which holds no readable {MANIFEST} ({error})") from None
    if entry is None or entry["catalog"] != catalog_hash(unit) or entry["source"] != source_hash(unit):
        return None
    folder = root / Path(entry["folder"]).name
    if not _is_whole(folder):
        raise BuildError(f"{folder} is damaged; write the bundle again")
    return _remember(unit, _read(folder, unit))


def _from_cache(unit: Unit) -> Artifact | None:
    """By key where the compiler is known, else the newest whole folder made from the same catalog and source."""
    root = cache_root() / "artifacts"
    try:
        compiler = find(COMPILERS[unit.language])
        version, name = compiler.version, _compiler_name(unit, compiler)
    except MissingToolError:
        version = name = ""
    if version and isinstance(unit.source, Path):
        folder = root / f"{unit.name}-{digest(_key(unit, unit.text(), version))[:20]}"
        return _remember(unit, _read(folder, unit)) if _is_whole(folder) else None
    folders = sorted(root.glob(f"{unit.name}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    wanted = (catalog_hash(unit), source_hash(unit))
    for folder in folders:
        if _is_whole(folder):
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            same_compiler = not version or record["compiler"] == name
            if (record["catalog"], record["source"]) == wanted and same_compiler:
                return _remember(unit, _read(folder, unit))
    return None


def refusal(name: str, what: str, log: str, folder: Path) -> BuildError:
    """The error of a compiler that failed in ``folder``: its own first words, or that a disk is full.

    Call it while what the compiler left is still there.
    """
    places = {folder: "GEMM_TRACKS_CACHE", Path(os.environ.get("TMPDIR") or tempfile.gettempdir()): "TMPDIR"}
    free = {place: shutil.disk_usage(place).free for place in places if place.is_dir()}
    fullest = min(free, key=lambda place: free[place])
    said = NO_ROOM.search(log)
    if said or free[fullest] < LEAST_ROOM:
        shown = cache_root() if fullest == folder else fullest
        return BuildError(
            f"{name}: there is no room to build it in {shown} ({said[0] if said else os.strerror(errno.ENOSPC)}); make "
            f"room there, or set {places[fullest]} to another folder",
            log,
        )
    first = next((line for line in log.splitlines() if "error" in line), log.strip()[-400:])
    return BuildError(f"{name}: {what}: {first or 'without a word'}", log)


def _compile(unit: Unit, text: str, folder: Path) -> None:
    """One nvcc call in ``folder``: cubin, PTX, log and record."""
    nvcc, host = find("nvcc"), find("g++")
    source = folder / "kernel.cu"
    source.write_text(text, encoding="utf-8")
    own = (unit.source.parent,) if isinstance(unit.source, Path) else ()
    number = unit.arch.removeprefix("sm_")
    # Inside the folder: what a killed build leaves is swept with it.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command: list[str] = [
            str(nvcc.path),
            "-cubin",
            f"-gencode=arch=compute_{number},code=sm_{number}",
            f"-ccbin={host.path}",
            *BASE_FLAGS,
            *(f"-I{path}" for path in (*own, *unit.include_folders())),
            *unit.flags,
            "--keep",
            f"--keep-dir={scratch}",
            "-o",
            str(folder / "kernel.cubin"),
            str(source),
        ]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, cwd=scratch, check=False)
        seconds = time.monotonic() - began
        shown = unit.source.name if isinstance(unit.source, Path) else f"{unit.name}.cu"
        # The copy that is compiled lies in a folder that is gone by the time anybody reads this.
        log = (done.stdout + done.stderr).replace(str(source), shown).replace(f"{scratch}{os.sep}", "")
        if done.returncode != 0:
            raise refusal(unit.name, f"nvcc {nvcc.version} refused it", log, folder)
        shutil.copyfile(Path(scratch) / "kernel.ptx", folder / "kernel.ptx")
    (folder / "build.log").write_text(log, encoding="utf-8")
    _write_record(unit, text, nvcc, seconds, folder)


def _assemble(unit: Unit, text: str, folder: Path) -> None:
    """One ptxas call in ``folder`` on PTX that another compiler made: cubin, log, attachments and record."""
    ptxas = find("ptxas")
    (folder / "kernel.ptx").write_text(text, encoding="utf-8")
    command = [str(ptxas.path), "-v", "-O3", f"-arch={unit.arch}", *unit.flags, "-o", "kernel.cubin", "kernel.ptx"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    seconds = time.monotonic() - began
    log = done.stdout + done.stderr
    if done.returncode != 0:
        raise refusal(unit.name, f"{ptxas} refused the PTX of {unit.headers}", log, folder)
    (folder / "build.log").write_text(log, encoding="utf-8")
    for name, content in (unit.attachments() if unit.attachments else {}).items():
        (folder / name).write_text(content, encoding="utf-8")
    _write_record(unit, text, ptxas, seconds, folder)


def _compiler_name(unit: Unit, compiler: Tool) -> str:
    return str(compiler) if unit.language == "cuda" else f"{unit.headers}, {compiler}"


def _write_record(unit: Unit, text: str, compiler: Tool, seconds: float, folder: Path) -> None:
    """The record of a finished build, from its log and its PTX."""
    log = (folder / "build.log").read_text(encoding="utf-8")
    ptx = (folder / "kernel.ptx").read_text(encoding="utf-8")
    record: dict[str, Any] = {
        "format": FORMAT,
        "unit": unit.name,
        "arch": unit.arch,
        "flags": list(unit.flags),
        "compiler": _compiler_name(unit, compiler),
        "key": _key(unit, text, compiler.version),
        "catalog": catalog_hash(unit),
        "source": source_hash(unit),
        "seconds": round(seconds, 3),
        "resources": {name: asdict(value) for name, value in ptxas_resources(log, ptx).items()},
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")


def ptxas_resources(log: str, ptx: str = "") -> dict[str, Resources]:
    """Resources per entry from a ``ptxas -v`` report; the thread bound comes from the PTX."""
    bounds: dict[str, int] = {}
    entry = r"\.entry\s+([\w$]+)\s*\([^)]*\)[^{]*?\.(?:max|req)ntid\s+([\d\s,]+)"
    for name, extents in re.findall(entry, ptx):
        bounds[name] = math.prod(int(number) for number in extents.split(","))
    found: dict[str, Resources] = {}
    pattern = (
        r"Compiling entry function '([^']+)'.*?Function properties for \1\n"
        r"\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
        r".*?Used (\d+) registers([^\n]*)"
    )
    for name, stack, stores, loads, registers, rest in re.findall(pattern, log, re.DOTALL):
        used = {kind: int(number) for number, kind in re.findall(r"(\d+) bytes (smem|cmem\[0\])", rest)}
        barriers = re.search(r"used (\d+) barriers", rest)
        found[name] = Resources(
            registers=int(registers),
            spill_bytes=int(stores) + int(loads),
            static_smem=used.get("smem", 0),
            stack_bytes=int(stack),
            constant_bytes=used.get("cmem[0]", 0),
            max_threads=bounds.get(name, 0),
            barriers=int(barriers[1]) if barriers else 0,
        )
    return found


@dataclass(frozen=True, kw_only=True)
class BuildEvent:
    """One unit finished: how many of how many, and its error if it failed."""

    unit: str
    done: int
    total: int
    error: BuildError | MissingToolError | None = None


def build_all(
    units: Iterable[Unit],
    jobs: int | None = None,
    progress: Callable[[BuildEvent], None] | None = None,
) -> dict[str, Artifact | BuildError | MissingToolError]:
    """Build every unit, ``jobs`` at a time (default: one per core). A failure is a value, not an exception."""
    distinct = list({unit.name: unit for unit in units}.values())
    results: dict[str, Artifact | BuildError | MissingToolError] = {}
    lock = threading.Lock()

    def one(unit: Unit) -> None:
        result: Artifact | BuildError | MissingToolError
        try:
            result = artifact(unit)
        except (BuildError, MissingToolError) as error:
            result = error
        with lock:
            results[unit.name] = result
            if progress is not None:
                error_or_none = None if isinstance(result, Artifact) else result
                progress(BuildEvent(unit=unit.name, done=len(results), total=len(distinct), error=error_or_none))

    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count() or 1) as pool:
        list(pool.map(one, distinct))
    return results


def packed(built: Artifact) -> dict[str, bytes]:
    """An artifact's files by name, to be sent to another machine."""
    found = (path for path in sorted(built.folder.iterdir()) if path.is_file() and path.name != ".complete")
    return {path.name: path.read_bytes() for path in found}


def keep(unit: Unit, files: Mapping[str, bytes]) -> Artifact:
    """Put an artifact that was built elsewhere into this cache; one that is there already stays.

    Raises:
        BuildError: it was made from another catalog entry or source than this checkout holds.
    """
    record = json.loads(files[RECORD])
    if any(Path(name).name != name for name in files):
        raise BuildError(f"{unit.name} came with a file outside its folder; nothing of it was kept")
    if (record["catalog"], record["source"]) != (catalog_hash(unit), source_hash(unit)):
        raise BuildError(f"{unit.name} was built elsewhere from another source; bring the checkouts to one version")

    def write(folder: Path) -> None:
        for name, data in files.items():
            (folder / name).write_bytes(data)

    return _remember(unit, _read(content_folder(f"artifacts/{unit.name}", record["key"], write), unit))


def write_bundle(units: Iterable[Unit], folder: Path, files: Mapping[str, Path] | None = None) -> Path:
    """Write artifacts, their manifest and further ``files`` (name to path) into ``folder``; replaces what is there.

    The bundle travels to a machine that has another compiler or cannot emit the sources;
    GEMM_TRACKS_BUNDLE names it there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".bundle-", dir=folder.parent))
    entries: dict[str, dict[str, str]] = {}
    try:
        for unit in {unit.name: unit for unit in units}.values():
            built = artifact(unit)
            name = f"{unit.name}-{built.key[:20]}"
            shutil.copytree(built.folder, temporary / name)
            entries[unit.name] = {
                "folder": name,
                "catalog": catalog_hash(unit),
                "source": source_hash(unit),
                "key": built.key,
                "compiler": built.compiler,
            }
        (temporary / "files").mkdir()
        for name, path in (files or {}).items():
            shutil.copyfile(path, temporary / "files" / Path(name).name)
        manifest = {"format": FORMAT, "units": entries}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        temporary.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
