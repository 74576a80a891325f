"""Which of our lines no test session ran, block by block.

    make coverage                                        # without a GPU: build/coverage/lines.json
    GEMM_TRACKS_LINES=FOLDER pytest -m gpu               # on a GPU (`make gpu-session` does): a file for each process
    python -m tests.lines_run build/coverage/lines.json [FOLDER or FILE ...]

lists the blocks that only a GPU can run, and, given what sessions on a GPU left, those that neither ran: exit status
1 where there are any. `python -m tests.lines_run --join FOLDER FILE` makes one file of a folder's. On the GPU machine
lines are noted by Python itself (3.12 and later), since coverage.py is not installed there. A file that has changed in
between is named and not judged.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernel", "handwritten", "cutlass_ref", "compare")


RECORDER = "_gemm_tracks_recorder"
"""Attribute of ``sys``: this module may be loaded twice, the recorder is one."""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class Recorder:
    """Notes the first run of every line of our packages; later runs cost nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._monitoring = sys.monitoring
        self._tool = self._monitoring.COVERAGE_ID
        self._prefixes = tuple(f"{ROOT / package}/" for package in PACKAGES)
        self.lines: dict[str, set[int]] = {}
        self._monitoring.use_tool_id(self._tool, "lines_run")
        self._monitoring.register_callback(self._tool, self._monitoring.events.LINE, self._note)
        self._monitoring.set_events(self._tool, self._monitoring.events.LINE)

    def _note(self, code, line):
        if code.co_filename.startswith(self._prefixes):
            self.lines.setdefault(code.co_filename, set()).add(line)
        return self._monitoring.DISABLE

    def write_own(self) -> None:
        """Leave what this process ran as a file of its own."""
        files = {
            str(Path(name).relative_to(ROOT)): {"digest": digest(Path(name)), "lines": sorted(lines)}
            for name, lines in sorted(self.lines.items())
        }
        if files:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{os.getpid()}.json").write_text(json.dumps(files) + "\n", encoding="utf-8")


def watch() -> Recorder | None:
    """Begin to note lines if GEMM_TRACKS_LINES asks for it, here and in what this process starts.

    A process has one recorder, whoever asked first: a worker of pytest-xdist is started like any other process.
    """
    folder = os.environ.get("GEMM_TRACKS_LINES")
    if not folder or sys.version_info < (3, 12):
        return None
    if not hasattr(sys, RECORDER):
        watched = str(ROOT / "tests" / "watched")
        given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != watched]
        os.environ["PYTHONPATH"] = os.pathsep.join([watched, *given])
        setattr(sys, RECORDER, Recorder(Path(folder).absolute()))
    return getattr(sys, RECORDER)


@dataclass(frozen=True)
class Block:
    """Statements of one function that follow one another, none of which ran."""

    file: str
    function: str
    """Empty for a module's own statements."""
    lines: tuple[int, ...]

    def __str__(self) -> str:
        first, last = self.lines[0], self.lines[-1]
        where = str(first) if first == last else f"{first}-{last}"
        return f"{self.file}:{where} {self.function or '(module)'}, {len(self.lines)} lines"


def blocks(report: Mapping, ran: Mapping[str, Iterable[int]] = {}) -> list[Block]:
    """The blocks that are missing from coverage.py's JSON report, without the lines that ran elsewhere."""
    found = []
    for name, file in sorted(report["files"].items()):
        elsewhere = set(ran.get(name, ()))
        of_file = []
        for function, region in file["functions"].items():
            known = {line: line in elsewhere for line in region["missing_lines"]}
            known |= dict.fromkeys(region["executed_lines"], True)
            together: list[int] = []
            for line, was_run in [*sorted(known.items()), (0, True)]:
                if not was_run:
                    together.append(line)
                elif together:
                    of_file.append(Block(name, function, tuple(together)))
                    together = []
        found += sorted(of_file, key=lambda block: block.lines)
    return found


def merged(sessions: Iterable[Mapping], root: Path = ROOT) -> tuple[dict[str, set[int]], list[str]]:
    """(first lines of the statements that any session ran, by file; files that have changed since)."""
    from coverage.parser import PythonParser

    ran: dict[str, set[int]] = {}
    changed = set()
    for session in sessions:
        for name, entry in session.items():
            path = root / name
            if not path.is_file() or digest(path) != entry["digest"]:
                changed.add(name)
                continue
            parser = PythonParser(filename=str(path))
            parser.parse_source()
            ran.setdefault(name, set()).update(parser.translate_lines(entry["lines"]))
    return ran, sorted(changed)


def joined(sessions: Iterable[Mapping]) -> dict[str, dict]:
    """Sessions of one state of the sources as one."""
    found: dict[str, dict] = {}
    for session in sessions:
        for name, entry in session.items():
            known = found.setdefault(name, {"digest": entry["digest"], "lines": []})
            known["lines"] = sorted({*known["lines"], *entry["lines"]})
    return dict(sorted(found.items()))


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--join"] and len(arguments) == 3:
        files = sorted(Path(arguments[1]).glob("*.json"))
        sessions = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        Path(arguments[2]).write_text(json.dumps(joined(sessions)) + "\n", encoding="utf-8")
        sys.stdout.write(f"{arguments[2]}: {len(files)} processes\n")
        return 0
    try:
        given = [Path(name) for name in arguments]
        files = [file for path in given for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
        report, *sessions = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        if len(given) > 1 and not sessions:
            raise ValueError(f"no .json files in {', '.join(arguments[1:])}")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n{__doc__}")
        return 2
    ran, changed = merged(sessions)
    left = [block for block in blocks(report, ran) if block.file not in changed]
    for block in left:
        sys.stdout.write(f"{block}\n")
    for name in changed:
        sys.stdout.write(f"{name}: not judged, it has changed since the GPU session\n")
    who = "were run by no session" if sessions else "were not run without a GPU"
    total, lines = report["totals"]["num_statements"], sum(len(block.lines) for block in left)
    sys.stdout.write(f"{len(left)} blocks, {lines} of {total} lines, {who}\n")
    return int(bool(sessions and (left or changed)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
