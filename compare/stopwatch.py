"""Where the time of a group goes: checking, preparing, each window, checking again, idling.

A run keeps it for every group, beside what had been estimated, so that estimates can be held to it.
"""

from __future__ import annotations

from collections.abc import Callable

PHASES = ("check", "prepare", "burst", "cold", "sustained", "verify", "idle")
"""Everything that a group's seconds are told apart by; idling is part of no other phase."""


class Stopwatch:
    """Seconds by phase. Exactly one phase runs at a time.

    Args:
        now: seconds of a steady clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._since = now, now()
        self._running = ""
        self._spent: dict[str, float] = {}

    def enter(self, phase: str) -> None:
        """End the phase that runs, and begin another."""
        moment = self._now()
        self._spend(self._running, moment - self._since)
        self._running, self._since = phase, moment

    def idled(self, seconds: float) -> None:
        """So much of the phase that runs was idling."""
        self._spend(self._running, -seconds)
        self._spend("idle", seconds)

    def seconds(self) -> dict[str, float]:
        """End the phase that runs; seconds by phase, to the millisecond, without what took none."""
        self.enter("")
        rounded = {phase: round(self._spent.get(phase, 0.0), 3) for phase in PHASES}
        return {phase: spent for phase, spent in rounded.items() if spent}

    def _spend(self, phase: str, seconds: float) -> None:
        if phase:
            self._spent[phase] = self._spent.get(phase, 0.0) + seconds
