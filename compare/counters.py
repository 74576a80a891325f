"""Nsight Compute's counters of a kernel beside what the bank model predicts for it: what ``inspect --ncu`` shows."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compare import driver
from compare.contenders import KernelContender, contenders
from kernel import inspection, profiler
from kernel.errors import UsageError
from kernel.plan import plan

Shape = tuple[int, int, int]
NO_GPU = "gpu: "


@dataclass(frozen=True)
class Line:
    """One quantity, predicted and measured; None where it is not."""

    what: str
    predicted: float | None
    measured: float | None
    note: str = ""


@dataclass(frozen=True)
class Counters:
    """What the profiler counted for one problem, or why it did not."""

    name: str
    shape: Shape
    lines: tuple[Line, ...]
    not_available: str = ""
    """Empty, or what is missing, starting with ``gpu``, ``permission`` or ``tool`` where it is one of those."""

    @property
    def lacks_gpu(self) -> str:
        """Why no GPU can be used here, or empty where that is not the reason."""
        return self.not_available.removeprefix(NO_GPU) if self.not_available.startswith(NO_GPU) else ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def counters(name: str, shape: Shape = (1024, 1024, 1024)) -> Counters:
    """Profile one kernel once. A machine without GPU, tool or permission gives an answer that says so.

    Raises:
        UsageError: the name is not one kernel of a catalog.
        RejectedError, BuildError, MissingToolError: the static part cannot be made.
    """
    (*_, contender) = contenders([name])
    if not isinstance(contender, KernelContender) or contender.name != name:
        raise UsageError(
            f"{name}: one kernel from a catalog is needed; libraries bring no code of ours to predict from"
        )
    predicted = predicted_counters(contender, shape)
    found = profile_contenders(shape, [name])
    measured = dict(found.launches[0][1]) if found.launches else {}
    lines = [
        Line("shared loads, requests", predicted["requests"], measured.get(profiler.LOAD_REQUESTS)),
        Line("shared loads, wavefronts", predicted["wavefronts"], measured.get(profiler.LOAD_WAVEFRONTS)),
        Line(
            "shared loads, bank conflicts",
            predicted["conflicts"],
            measured.get(profiler.LOAD_CONFLICTS),
            _verdict(predicted, measured),
        ),
        Line(
            "shared stores, bank conflicts", None, measured.get(profiler.STORE_CONFLICTS), "carries noise of about 10 k"
        ),
        Line("FMA pipe busy, %", None, measured.get(profiler.FMA_PIPE)),
        Line("issue slots busy, %", None, measured.get(profiler.ISSUE_SLOTS)),
        Line("warps active, %", None, measured.get(profiler.WARPS_ACTIVE)),
        Line(
            "duration, ns",
            None,
            measured.get(profiler.DURATION),
            "replayed, caches flushed, clock left alone: no ratio",
        ),
    ]
    return Counters(name, shape, tuple(lines), found.not_available)


NOISE = 0.005
"""Conflicts per request below which a kernel counts as free of them: the counter sees a few thousand on any kernel."""


def _verdict(predicted: dict[str, float], measured: dict[str, float]) -> str:
    """By wavefronts against requests at their ideal, not by the conflict counter's total alone."""
    requests, conflicts = measured.get(profiler.LOAD_REQUESTS), measured.get(profiler.LOAD_CONFLICTS)
    if not requests or conflicts is None:
        return ""
    if conflicts <= NOISE * requests:
        return "free of conflicts within the counter's noise"
    ideal = predicted["wavefronts"] - predicted["conflicts"]
    wavefronts = measured.get(profiler.LOAD_WAVEFRONTS, 0.0)
    return (
        f"{conflicts / requests:.2f} extra passes a request; {wavefronts / ideal:.2f} times the ideal wavefronts"
        if ideal
        else ""
    )


def predicted_counters(contender: KernelContender, shape: Shape) -> dict[str, float]:
    """Shared-load requests, wavefronts and conflicts of a whole GEMM, by the bank model on executed addresses.

    ``a_requests`` counts those requests whose instruction conflicts or, where none does, the loads of A.
    """
    problem = contender.problem(*shape)
    one = inspection.inspect_kernel(contender.kernel)
    whole = plan(contender.kernel, problem).main_launch
    assert whole is not None
    warp_steps = whole.blocks * (whole.threads // 32) * problem.k
    loads = [access for access in one.shared if access.kind == "load"]
    lane_map = one.lane_map
    of_a = sum(len(cells) for cells in lane_map.reads_a.values()) if lane_map else 0
    of_b = sum(len(cells) for cells in lane_map.reads_b.values()) if lane_map else 0
    requests = sum(access.per_k_step for access in loads)
    return {
        "requests": warp_steps * requests,
        "wavefronts": warp_steps * sum(access.per_k_step * access.passes for access in loads),
        "conflicts": warp_steps * sum(access.per_k_step * access.conflicts for access in loads),
        "a_requests": warp_steps * requests * of_a / (of_a + of_b) if of_a + of_b else 0.0,
    }


def profile_contenders(shape: Shape, names: Sequence[str]) -> profiler.Profile:
    """One launch of each contender under the profiler, in the order of ``names``, or why there is none."""
    problem = driver.query().problem
    if problem:
        return profiler.Profile(not_available=f"{NO_GPU}{problem}")
    command = [sys.executable, "-m", "compare.launch_once", "x".join(map(str, shape)), *names]
    found = profiler.profile(command)
    if found.not_available:
        return found
    records = [json.loads(line) for line in found.output.splitlines() if line.startswith("{")]
    by_name: dict[str, tuple[str, dict[str, float]]] = {}
    launched = iter(found.launches)
    for record in records:
        own = tuple(itertools.islice(launched, len(record["kernels"])))
        if len(own) < len(record["kernels"]):
            break
        # A library does not say which of several launches (clearing, reduction) multiplies: the longest is taken.
        main = record["main"]
        by_name[record["name"]] = (
            max(own, key=lambda one: one[1].get(profiler.DURATION, 0.0)) if main is None else own[main]
        )
    missing = [name for name in names if name not in by_name]
    if missing:
        return profiler.Profile(not_available=f"no counters came back for {', '.join(missing)}")
    return profiler.Profile(launches=tuple(by_name[name] for name in names), missing=found.missing)
