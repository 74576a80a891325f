"""The device's state while something runs: power, temperature, throttle reasons, NVML's clock.

Read through NVML, without root. On a machine without NVML, or on a MIG slice (whose readings belong to
the whole GPU), every reading is None and ``note`` says why; nothing here raises.

Two traps that the readings avoid (both seen on an H200): the plain power reading is an average over a
second, so the instant field or the energy counter is used, over at least 200 ms; NVML's clock lags and
reported 1980 MHz in bursts that ran at 1550, so it is a cross-check on the in-kernel clock, no more.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from compare.statistics import median

MIN_POWER_WINDOW_S = 0.2
"""Shortest window over which a power is stated."""

THROTTLE_BITS = {
    0x0002: "applications_clocks",
    0x0004: "sw_power_cap",
    0x0008: "hw_slowdown",
    0x0010: "sync_boost",
    0x0020: "sw_thermal",
    0x0040: "hw_thermal",
    0x0080: "hw_power_brake",
    0x0100: "display_clocks",
}
"""NVML's clock event reasons; bit 0 (the GPU is idle) is none of ours."""


def throttle_names(mask: int) -> tuple[str, ...]:
    """Names of the reasons in an NVML mask; unknown bits keep their number."""
    known = tuple(name for bit, name in THROTTLE_BITS.items() if mask & bit)
    rest = mask & ~1 & ~sum(THROTTLE_BITS)
    return (*known, f"unknown_{rest:#x}") if rest else known


@dataclass(frozen=True)
class Sample:
    """One reading; ``at`` in seconds of the caller's clock. None where the device does not tell."""

    at: float
    energy_j: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    throttle_mask: int | None = None


@dataclass(frozen=True)
class State:
    """What a window's samples say together."""

    power_w: float | None = None
    power_from: str = ""
    """``energy`` or ``instant``."""
    temperature_c: float | None = None
    nvml_clock_mhz: float | None = None
    throttle: tuple[str, ...] | None = None
    """None where the device did not tell, () where nothing throttled."""


class Telemetry(Protocol):
    """A source of samples."""

    note: str
    """Why readings are missing, empty where none are."""

    def sample(self, at: float) -> Sample: ...

    def throttle_mask(self) -> int | None:
        """The throttle reasons alone, which cost one call of the five."""


class NoTelemetry:
    """Stands in where NVML cannot be used."""

    def __init__(self, note: str) -> None:
        self.note = note

    def sample(self, at: float) -> Sample:
        return Sample(at=at)

    def throttle_mask(self) -> int | None:
        return None


class Nvml:
    """NVML's readings of one GPU. A reading that the device refuses is None from then on."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._refused: set[str] = set()
        self.note = ""

    def _read(self, what: str, *arguments: Any) -> Any:
        if what in self._refused:
            return None
        try:
            return getattr(self._nvml, what)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError) as error:
            self._refused.add(what)
            self.note = "; ".join(part for part in (self.note, f"{what}: {error}") if part)
            return None

    def _instant_watts(self) -> float | None:
        field = getattr(self._nvml, "NVML_FI_DEV_POWER_INSTANT", None)
        values = None if field is None else self._read("nvmlDeviceGetFieldValues", [field])
        if not values or values[0].nvmlReturn != 0:
            return None
        return float(values[0].value.uiVal) / 1000

    def sample(self, at: float) -> Sample:
        """One reading of everything; about a millisecond."""
        nvml = self._nvml
        energy = self._read("nvmlDeviceGetTotalEnergyConsumption")
        return Sample(
            at=at,
            energy_j=None if energy is None else energy / 1000,
            power_w=self._instant_watts(),
            temperature_c=self._read("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            sm_clock_mhz=self._read("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            throttle_mask=self.throttle_mask(),
        )

    def throttle_mask(self) -> int | None:
        mask = self._read("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if mask is None else int(mask)

    def max_sm_clock_mhz(self) -> float | None:
        """Highest SM clock the device can be set to, MHz."""
        clock = self._read("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_SM)
        return None if clock is None else float(clock)

    def power_limit_w(self) -> float | None:
        """Enforced power limit, W."""
        limit = self._read("nvmlDeviceGetEnforcedPowerLimit")
        return None if limit is None else limit / 1000


def open_nvml(pci_bus_id: str, device_name: str) -> Telemetry:
    """Telemetry of the GPU at a PCI bus id, as the CUDA driver writes it.

    The bus id, not an ordinal: CUDA_VISIBLE_DEVICES renumbers CUDA's devices and not NVML's.
    """
    if " MIG " in device_name:
        return NoTelemetry("a MIG slice: NVML's power, clock and throttle reasons belong to the whole GPU")
    try:
        import pynvml
    except ImportError:
        return NoTelemetry("no power, temperature or throttle reasons: the package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
        with contextlib.suppress(pynvml.NVMLError):
            if pynvml.nvmlDeviceGetMigMode(handle)[0]:
                return NoTelemetry("MIG is on: NVML's readings belong to the whole GPU")
        return Nvml(pynvml, handle)
    except pynvml.NVMLError as error:
        return NoTelemetry(f"no power, temperature or throttle reasons: NVML says {error}")


def summarise(samples: Sequence[Sample], since: float, until: float) -> State:
    """State over [since, until], seconds of the samples' clock.

    Power is energy over time between two updates of the energy counter, which ticks every 20 to 100 ms: the
    first and the last update inside the window, at least :data:`MIN_POWER_WINDOW_S` apart. Where the counter
    is missing, the mean of the instant readings over as long a time. Where the window is too short, None.
    """
    inside = [sample for sample in samples if since <= sample.at <= until]
    power, source = _power_from_energy(inside), "energy"
    if power is None:
        power, source = _power_from_instant(inside), "instant"
    masks = [sample.throttle_mask for sample in inside if sample.throttle_mask is not None]
    mask = 0
    for one in masks:
        mask |= one
    temperatures = [sample.temperature_c for sample in inside if sample.temperature_c is not None]
    clocks = [sample.sm_clock_mhz for sample in inside if sample.sm_clock_mhz is not None]
    return State(
        power_w=power,
        power_from=source if power is not None else "",
        temperature_c=max(temperatures, default=None),
        nvml_clock_mhz=median(clocks) if clocks else None,
        throttle=throttle_names(mask) if masks else None,
    )


def _power_from_energy(samples: Sequence[Sample]) -> float | None:
    readings = [(sample.at, sample.energy_j) for sample in samples if sample.energy_j is not None]
    updates = [after for before, after in itertools.pairwise(readings) if after[1] > before[1]]
    if len(updates) < 2 or updates[-1][0] - updates[0][0] < MIN_POWER_WINDOW_S:
        return None
    return (updates[-1][1] - updates[0][1]) / (updates[-1][0] - updates[0][0])


def _power_from_instant(samples: Sequence[Sample]) -> float | None:
    readings = [(sample.at, sample.power_w) for sample in samples if sample.power_w is not None]
    if len(readings) < 2 or readings[-1][0] - readings[0][0] < MIN_POWER_WINDOW_S:
        return None
    return sum(power for _, power in readings) / len(readings)
