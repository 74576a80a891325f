"""docs/tutorial.md works as printed, in a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compare import runs

ROOT = runs.repository()
PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
SKIPPED = ("make ", "git ", "export PATH=")
"""What makes the environment, or puts it on PATH: the test has an environment already."""


def commands():
    lines = "\n".join(re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)).splitlines()
    return [line for line in lines if line and not line.startswith(SKIPPED)]


@pytest.mark.slow
@pytest.mark.nvcc
def test_every_command_works_in_order_and_ends_with_an_own_kernel_and_a_report(tmp_path):
    copy = tmp_path / "copy"
    left_out = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True)
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "gemm-tracks"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m compare "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    dropped = {"GEMM_TRACKS_BUNDLE", "GEMM_TRACKS_RESULTS", "GEMM_TRACKS_REVISION"}
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment["PYTHONPATH"] = str(copy)
    environment["PATH"] = os.pathsep.join((str(folder), str(Path(sys.executable).parent), os.environ["PATH"]))
    said = {}
    for line in commands():
        done = subprocess.run(
            ["sh", "-c", line], cwd=copy, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        said[line] = done.stdout
    assert "v99_mine" in said["gemm-tracks list --kernels 'v99*'"]
    assert "20 of 20 checks passed" in said["gemm-tracks check --device cpu --kernels v99_mine"]
    assert (copy / "report.html").stat().st_size > 100_000
