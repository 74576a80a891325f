"""Many kernels: contenders, check, measure, peaks, report, claims, and the command line.

``compare.load_run(run)`` gives a recorded run as a DataFrame; see :func:`compare.runs.load_run`.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Imports :mod:`compare.runs` when it is first asked for: the command line must start without it."""
    if name == "load_run":
        from compare.runs import load_run

        return load_run
    raise AttributeError(f"module 'compare' has no attribute {name!r}")
