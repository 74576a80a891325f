"""The dispatch tables behind a run: what its provenance keeps of them, and what a reader has to be told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from compare.contenders import Contender, KernelContender
from handwritten.dispatch import DispatchKernel


def dispatchers(contenders: Iterable[Contender]) -> list[DispatchKernel]:
    """The dispatchers among contenders."""
    kernels = (one.kernel for one in contenders if isinstance(one, KernelContender))
    return [kernel for kernel in kernels if isinstance(kernel, DispatchKernel)]


def used(contenders: Iterable[Contender]) -> list[dict[str, Any]]:
    """One record for each dispatcher: its table's file, hash and origin, and kernels that have changed since.

    Raises:
        TableError: a table is damaged.
    """
    found = []
    for one in dispatchers(contenders):
        table = one.table()
        record: dict[str, Any] = {"dispatcher": one.name, "file": None, "sha256": None}
        if table is not None and table.path is not None:
            record |= {
                "file": table.path.name, "sha256": table.sha256, "gpu": table.gpu, "sm_count": table.sm_count,
                "date": table.date, "revision": table.revision, "toolkit": table.toolkit, "method": table.how,
                "entries": len(table.entries), "stale": table.stale(one.candidates),
            }  # fmt: skip
        found.append(record)
    return found


def remarks(contenders: Iterable[Contender]) -> list[str]:
    """What should be known before a dispatcher's rows are believed: no table, another device's, or a stale one.

    Raises:
        TableError: a table is damaged.
    """
    lines = []
    for one in dispatchers(contenders):
        table = one.table()
        if table is None:
            lines.append(f"{one.name}: no table was found; {one.defaults[0]} runs everything (see gemm-tracks tune)")
            continue
        if one.sm_count and (one.gpu, one.sm_count) != (table.gpu, table.sm_count):
            lines.append(
                f"{one.name}: tuned on {table.gpu} ({table.sm_count} SMs), this is {one.gpu} ({one.sm_count}); "
                "`gemm-tracks tune` writes a table for it"
            )
        stale = table.stale(one.candidates)
        for what, then in (("changed", "its times may be another's"), ("removed", "the next fastest takes its place")):
            names = sorted(name for name, became in stale.items() if became == what)
            if names:
                lines.append(f"{one.name}: {', '.join(names)} {what} since the table was tuned, so {then}; tune again")
    return lines
