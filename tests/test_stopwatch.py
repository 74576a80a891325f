"""Seconds by phase: every moment belongs to one phase, and idling to none but its own."""

import pytest

from compare.stopwatch import PHASES, Stopwatch


class Clock:
    def __init__(self):
        self.at = 100.0

    def __call__(self):
        return self.at


def test_every_second_is_counted_once():
    clock = Clock()
    watch = Stopwatch(clock)
    clock.at += 5.0  # before any phase
    for phase, seconds, idle in (("check", 2.0, 0), ("burst", 4.5, 3.0), ("sustained", 1.25, 0), ("check", 0.5, 0)):
        watch.enter(phase)
        clock.at += seconds
        if idle:
            watch.idled(idle)
    found = watch.seconds()
    assert found == {"check": 2.5, "burst": 1.5, "sustained": 1.25, "idle": 3.0}
    assert sum(found.values()) == pytest.approx(8.25)
    assert set(found) <= set(PHASES)
    clock.at += 7.0
    assert watch.seconds() == found, "nothing runs any more"
