"""Runs Nsight Compute over a command and reads its counters; says why where it cannot.

Counters are asked for with the clock left alone. A duration that comes with them belongs to a replayed,
flushed kernel and must not feed a ratio.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel.errors import MissingToolError
from kernel.toolchain import find

LOAD_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
STORE_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
LOAD_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
STORE_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"
LOAD_REQUESTS = "smsp__inst_executed_op_shared_ld.sum"
FMA_PIPE = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
ISSUE_SLOTS = "smsp__issue_active.avg.pct_of_peak_sustained_active"
WARPS_ACTIVE = "sm__warps_active.avg.pct_of_peak_sustained_active"
INSTRUCTIONS = "smsp__inst_executed.sum"
FFMA_THREADS = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
DURATION = "gpu__time_duration.sum"

METRICS = (
    LOAD_CONFLICTS,
    STORE_CONFLICTS,
    LOAD_WAVEFRONTS,
    STORE_WAVEFRONTS,
    LOAD_REQUESTS,
    FMA_PIPE,
    ISSUE_SLOTS,
    WARPS_ACTIVE,
    INSTRUCTIONS,
    FFMA_THREADS,
    DURATION,
)


@dataclass(frozen=True)
class Profile:
    """Counters of every profiled launch in order, or the reason there are none."""

    launches: tuple[tuple[str, dict[str, float]], ...] = ()
    """(kernel name, metric to value)."""
    missing: tuple[str, ...] = ()
    """Metrics that this version of the tool or this GPU does not have."""
    not_available: str = ""
    """Empty, or ``permission``, ``tool`` or what the tool said."""
    output: str = ""
    """What the profiled command printed."""


def profile(command: Sequence[str], metrics: Sequence[str] = METRICS, timeout_s: float = 120.0) -> Profile:
    """Run ``command`` under Nsight Compute; it marks what to profile by cudaProfilerStart and Stop.

    Never raises for a missing tool, permission or metric: the answer says so.
    """
    try:
        tool = find("ncu")
    except MissingToolError as error:
        return Profile(not_available=f"tool: {error}")
    wanted, missing = list(metrics), []
    with tempfile.TemporaryDirectory(prefix="gemm-tracks-ncu-") as scratch:
        log = Path(scratch) / "counters.csv"
        while True:
            arguments = [
                str(tool.path),
                "--csv",
                "--print-units=base",
                "--clock-control=none",
                "--profile-from-start=off",
                "--target-processes=all",
                f"--log-file={log}",
                f"--metrics={','.join(wanted)}",
                *command,
            ]
            try:
                done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, check=False)
            except subprocess.TimeoutExpired:
                return Profile(not_available=f"{tool} did not finish within {timeout_s:g} s")
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            said = text + done.stdout + done.stderr
            unknown = [m for m in wanted if re.search(rf"(?i)failed to find metric.*{re.escape(m)}", said)]
            if not unknown:
                break
            missing += unknown
            wanted = [metric for metric in wanted if metric not in unknown]
    if "ERR_NVGPUCTRPERM" in said:
        return Profile(not_available="permission: the driver does not let this user read performance counters")
    launches = parse(text)
    if not launches:
        reason = next((line for line in said.splitlines() if "==ERROR==" in line), said.strip()[-300:])
        return Profile(not_available=reason or f"{tool} profiled nothing", output=done.stdout)
    return Profile(launches=launches, missing=tuple(missing), output=done.stdout)


def parse(text: str) -> tuple[tuple[str, dict[str, float]], ...]:
    """(kernel name, metric to value) per launch, from ``ncu --csv`` text."""
    table = "\n".join(line for line in text.splitlines() if line.startswith('"'))
    found: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        name, value = row.get("Metric Name"), (row.get("Metric Value") or "").replace(",", "")
        if name and re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", value):
            found.setdefault(row["ID"], (row.get("Kernel Name", ""), {}))[1][name] = float(value)
    return tuple(found.values())
