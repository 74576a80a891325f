"""Sets up a virtual environment for ``make``: standard library only, since nothing is installed yet.

    python3 -m compare.bootstrap .venv

installs this checkout with its ``dev`` extra, and with ``gpu`` too where the machine has an NVIDIA driver.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from compare.driver import is_installed

OLDEST, NEWEST = (3, 10), (3, 13)


def interpreter(folder: Path) -> Path:
    """The Python of a virtual environment."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def make(folder: Path) -> str:
    """Create the environment if needed and install into it; returns an error for the user, or nothing."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        wanted = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
        return f"this is Python {sys.version.split()[0]}; {wanted} is needed: make PYTHON=/path/to/python3.11 …"
    if not interpreter(folder).exists():
        if importlib.util.find_spec("ensurepip") is None:
            return "this Python cannot make virtual environments; install its venv package (Debian: python3-venv)"
        if subprocess.run([sys.executable, "-m", "venv", str(folder)], check=False).returncode:
            return f"{folder} could not be made; the lines above say why"
    extras = "dev,gpu" if is_installed() else "dev"
    repository = Path(__file__).resolve().parent.parent
    command = [str(interpreter(folder)), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    if subprocess.run([*command, "--editable", f"{repository}[{extras}]"], check=False).returncode:
        return "pip could not install gemm-tracks; the lines above say why"
    return ""


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python3 -m compare.bootstrap FOLDER\n")
        return 2
    problem = make(Path(sys.argv[1]).absolute())
    if problem:
        sys.stderr.write(f"setup: {problem}\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
