"""Which of our lines a test session ran, where coverage.py is not installed, as on the GPU machine.

``GEMM_TRACKS_LINES=FILE pytest -m gpu`` writes them (Python 3.12 and later); then

    python -m tests.lines_run build/coverage.json FILE

lists what neither that session nor the one that coverage.py watched (`coverage json`) has run. A file that has
changed in between is named and not judged.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernel", "handwritten", "cutlass_ref", "compare")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class Recorder:
    """Notes the first run of every line of our packages; later runs cost nothing."""

    def __init__(self) -> None:
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

    def write(self, target: Path) -> None:
        files = {
            str(Path(name).relative_to(ROOT)): {"digest": digest(Path(name)), "lines": sorted(lines)}
            for name, lines in sorted(self.lines.items())
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(files) + "\n", encoding="utf-8")


def spans(numbers: Iterable[int]) -> str:
    """``1-3, 7``."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def nowhere(report: dict, ran: dict, root: Path = ROOT) -> tuple[dict[str, str], list[str]]:
    """(lines that neither session ran, by file; files that changed in between)."""
    missing, changed = {}, []
    for name, entry in sorted(report["files"].items()):
        left = set(entry["missing_lines"])
        there = ran.get(name)
        if there is not None and there["digest"] != digest(root / name):
            changed.append(name)
        elif left := left - set(there["lines"] if there else ()):
            missing[name] = spans(left)
    return missing, changed


def main(arguments: list[str]) -> int:
    report, ran = (json.loads(Path(name).read_text(encoding="utf-8")) for name in arguments)
    missing, changed = nowhere(report, ran)
    for name, lines in missing.items():
        sys.stdout.write(f"{name}: {lines}\n")
    for name in changed:
        sys.stdout.write(f"{name}: not judged, it has changed since the GPU session\n")
    total, left = report["totals"]["num_statements"], sum(len(expand(lines)) for lines in missing.values())
    sys.stdout.write(f"{left} of {total} lines were run by neither session\n")
    return 0


def expand(text: str) -> list[int]:
    """The numbers of :func:`spans`."""
    pairs = (part.split("-") for part in text.split(", ") if part)
    return [number for pair in pairs for number in range(int(pair[0]), int(pair[-1]) + 1)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
