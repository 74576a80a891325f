"""The static gate: what a built kernel must satisfy before it may be timed."""

from __future__ import annotations

from kernel.contract import Artifact, Launch

REGISTERS_PER_SM = 65536
REGISTERS_PER_THREAD = 255
REGISTER_GRANULARITY = 8


def objections(launch: Launch, built: Artifact) -> tuple[str, ...]:
    """Reasons not to launch: spills that the catalog did not allow, a block the kernel was not built for, registers."""
    resources = built.resources.get(launch.entry)
    if resources is None:
        known = ", ".join(built.resources) or "none"
        return (f"{built.unit} has no entry {launch.entry} (entries: {known})",)
    reasons: list[str] = []
    if resources.spill_bytes and not launch.unit.allow_spills:
        reasons.append(f"{launch.entry} spills {resources.spill_bytes} bytes, and its catalog entry does not allow it")
    if resources.max_threads and launch.threads > resources.max_threads:
        reasons.append(f"{launch.entry} was bounded to {resources.max_threads} threads, {launch.threads} are launched")
    rounded = -(-resources.registers // REGISTER_GRANULARITY) * REGISTER_GRANULARITY
    if rounded * launch.threads > REGISTERS_PER_SM:
        reasons.append(
            f"{launch.entry} needs {resources.registers} registers x {launch.threads} threads, "
            f"more than the {REGISTERS_PER_SM} of an SM"
        )
    return tuple(reasons)
