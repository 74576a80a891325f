"""Skips what this machine cannot run, and says at the end how much that was and why.

Builds go to the user's cache, so that a second session builds nothing; a test that damages a cache
takes its own folder.
"""

from __future__ import annotations

import functools
import importlib.util
from collections import Counter

import pytest

from tests.lines_run import watch


@functools.cache
def _absent(mark: str) -> str:
    """Why tests with this mark cannot run here, or nothing."""
    if mark == "gpu":
        from compare import driver

        problem = driver.query().problem
        if not problem and importlib.util.find_spec("cupy") is None:
            problem = "CuPy is not installed"
        return problem
    if mark == "nvcc":
        from kernel.errors import MissingToolError
        from kernel.toolchain import find

        try:
            for tool in ("nvcc", "g++", "nvdisasm", "cuobjdump"):
                find(tool)
        except MissingToolError as error:
            return str(error)
    if mark == "cppgen" and importlib.util.find_spec("cutlass_cppgen") is None:
        return "the package nvidia-cutlass is not installed"
    if mark == "cute":
        from cutlass_ref.cute.catalog import KERNELS
        from cutlass_ref.cute.emit import missing

        absent = dict.fromkeys(name for kernel in KERNELS for name in missing(kernel.programs()[0]))
        return f"{', '.join(absent)}: not installed (gemm-tracks[cute])" if absent else ""
    if mark == "torch" and importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    return ""


MARKS = ("gpu", "nvcc", "cppgen", "cute", "torch")
SKIPPED: Counter[tuple[str, str]] = Counter()


def pytest_collection_modifyitems(items):
    for item in items:
        for mark in MARKS:
            if item.get_closest_marker(mark) and (reason := _absent(mark)):
                item.add_marker(pytest.mark.skip(reason=f"{mark}: {reason}"))
                break


RECORDER = watch()


def pytest_sessionfinish():
    if RECORDER is not None:
        RECORDER.write_own()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        mark, _, why = reason.removeprefix("Skipped: ").partition(": ")
        SKIPPED[(mark, why) if mark in MARKS else ("other", reason.removeprefix("Skipped: "))] += 1
    for (mark, why), count in sorted(SKIPPED.items()):
        terminalreporter.write_line(f"skipped {count} marked {mark}: {why}")
