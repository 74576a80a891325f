"""Denominators: published peaks, the peak at a clock, and the roofline's crossover.

Published figures are dense rates, never those with structured sparsity, and are kept beside what makes
them up (SMs, operations per SM and clock, clock), so that a test can tell a wrong entry. A device that
is not in the table has no published peak here: the ratio is left out rather than guessed.

Sources: NVIDIA's architecture whitepapers and datasheets of the device named.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.errors import CheckError

TRACK_TYPES = {
    "fp32_simt": ("float32", "float32"),
    "tf32_tensor": ("float32", "float32"),
    "fp16_tensor": ("float16", "float32"),
}
"""Input type and accumulator whose rate a track is measured against."""

CLOCK_MARGIN = 0.01
"""How far a rate may pass the peak at the observed clock: the clock is sampled around the launches."""


@dataclass(frozen=True)
class Rate:
    """One published peak and what it is made of."""

    tflops: float | None
    """Dense TFLOP/s as published, None where no published figure is certain."""
    per_sm_clock: int
    """Floating-point operations per SM and clock; a multiply-add is two."""
    mhz: float
    """Clock at which the published figure holds."""


@dataclass(frozen=True)
class Device:
    """A device as published. ``rates`` by track; a track that the device has no unit for is absent."""

    sms: int
    max_mhz: float
    """Highest clock the part runs at; the physical peak is taken there."""
    rates: dict[str, Rate]


def _device(
    sms: int,
    fp32: tuple[float | None, int, float],
    tf32: tuple[float | None, int, float] | None,
    fp16: tuple[float | None, int, float] | None,
    max_mhz: float = 0.0,
) -> Device:
    given = {"fp32_simt": fp32, "tf32_tensor": tf32, "fp16_tensor": fp16}
    rates = {track: Rate(*values) for track, values in given.items() if values is not None}
    return Device(sms, max_mhz or max(rate.mhz for rate in rates.values()), rates)


_H100_SXM = _device(132, (66.9, 256, 1980), (494.7, 2048, 1830), (989.4, 4096, 1830))
_A100 = _device(108, (19.5, 128, 1410), (156.0, 1024, 1410), (312.0, 2048, 1410))

DEVICES: dict[str, Device] = {
    "Tesla V100-SXM2-16GB": _device(80, (15.7, 128, 1530), None, (125.0, 1024, 1530)),
    "Tesla V100-SXM2-32GB": _device(80, (15.7, 128, 1530), None, (125.0, 1024, 1530)),
    "Tesla T4": _device(40, (8.1, 128, 1590), None, (65.0, 1024, 1590)),
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
    "NVIDIA A10": _device(72, (31.2, 256, 1695), (62.5, 512, 1695), (125.0, 1024, 1695)),
    "NVIDIA A40": _device(84, (37.4, 256, 1740), (74.8, 512, 1740), (149.7, 1024, 1740)),
    "NVIDIA RTX A6000": _device(84, (38.7, 256, 1800), (77.4, 512, 1800), (154.8, 1024, 1800)),
    "NVIDIA GeForce RTX 3090": _device(82, (35.6, 256, 1695), (35.6, 256, 1695), (71.0, 512, 1695), 2100),
    "NVIDIA L4": _device(58, (30.3, 256, 2040), (60.5, 512, 2040), (121.0, 1024, 2040)),
    "NVIDIA L40S": _device(142, (91.6, 256, 2520), (183.0, 512, 2520), (362.05, 1024, 2490), 2520),
    "NVIDIA GeForce RTX 4090": _device(128, (82.6, 256, 2520), (82.6, 256, 2520), (165.2, 512, 2520), 3105),
    "NVIDIA H100 PCIe": _device(114, (51.2, 256, 1755), (378.0, 2048, 1620), (756.0, 4096, 1620)),
    "NVIDIA H100 80GB HBM3": _H100_SXM,
    "NVIDIA H200": _H100_SXM,
    "NVIDIA GH200 480GB": _H100_SXM,
    "NVIDIA GH200 120GB": _H100_SXM,
    "NVIDIA B200": _device(148, (None, 256, 1965), (1125.0, 4096, 1856), (2250.0, 8192, 1856), 1965),
    "NVIDIA GeForce RTX 5090": _device(170, (104.8, 256, 2407), (104.8, 256, 2407), (209.5, 512, 2407), 3090),
}
"""By the name the driver reports, to the letter: a name that merely resembles one is another device."""


@dataclass(frozen=True)
class Peak:
    """The peaks of one track on one device, in TFLOP/s; None where unknown, with the reason in ``note``."""

    device: str
    track: str
    sms: int
    datasheet: float | None
    physical: float | None
    """SMs x operations per SM and clock x highest clock: nothing can be faster than this."""
    per_sm_clock: int | None
    note: str = ""

    def at_clock(self, mhz: float | None) -> float | None:
        """Peak at an SM clock in MHz, TFLOP/s; None where clock or rate is unknown."""
        if mhz is None or self.per_sm_clock is None:
            return None
        return self.sms * self.per_sm_clock * mhz * 1e-6

    def formula(self, mhz: float | None = None) -> str:
        """How the peak at a clock comes about, in words for people."""
        if self.per_sm_clock is None or mhz is None:
            return self.note or "unknown"
        return f"{self.sms} SMs x {self.per_sm_clock} FLOP per SM and clock x {mhz:.0f} MHz = {self.at_clock(mhz):.1f}"


def peak(device: str, track: str, sms: int | None = None, max_mhz: float | None = None) -> Peak:
    """Peaks of ``track`` on the device of that name.

    ``sms`` and ``max_mhz`` are what the driver reports. A MIG slice, which has fewer SMs than the whole
    device, gets its share of the published figure; any other difference in SMs means that the name hides
    another part, and the published figure is withheld.
    """
    whole = device.split(" MIG ")[0]
    entry = DEVICES.get(whole)
    if entry is None or track not in entry.rates:
        what = "this device" if entry is None else f"{track} on this device"
        return Peak(device, track, sms or 0, None, None, None, f"peak unknown: no published figure for {what} here")
    rate = entry.rates[track]
    seen = sms or entry.sms
    published, note = rate.tflops, "" if rate.tflops is not None else "peak unknown: published figures disagree"
    if seen != entry.sms and published is not None:
        if whole != device:
            published, note = published * seen / entry.sms, f"scaled to {seen} of {entry.sms} SMs"
        else:
            published, note = None, f"peak withheld: {seen} SMs, published for {entry.sms}"
    top = max(entry.max_mhz, max_mhz or 0.0)
    physical = seen * rate.per_sm_clock * top * 1e-6
    return Peak(device, track, seen, published, physical, rate.per_sm_clock, note)


def percent_of(tflops: float, of: float | None, what: str, margin: float = 0.0) -> float | None:
    """``tflops`` as a percentage of a bound that physics sets; None where the bound is unknown.

    Raises:
        CheckError: the rate passes the bound by more than ``margin`` (a fraction), so one of them is wrong.
    """
    if of is None:
        return None
    fraction = tflops / of
    if not fraction <= 1.0 + margin:
        raise CheckError(
            f"{tflops:.1f} TFLOP/s is {100 * fraction:.1f} % of {what}, {of:.1f} TFLOP/s; no kernel can do that: "
            "look for a missing synchronisation, a wrong operation count or another data type"
        )
    return 100.0 * fraction


def percent_of_peak(tflops: float, bound: Peak, mhz: float | None) -> tuple[float | None, float | None]:
    """Percentages of the datasheet peak and of the peak at clock ``mhz`` (None where unknown).

    The datasheet's figure holds at one clock; a faster clock may pass it. The physical peak cannot be passed.

    Raises:
        CheckError: the rate is above the physical peak, or above the peak at the observed clock by more
            than :data:`CLOCK_MARGIN`.
    """
    where = f"of {bound.track} on {bound.device}"
    percent_of(tflops, bound.physical, f"the physical peak {where}")
    at_clock = percent_of(tflops, bound.at_clock(mhz), f"the peak {where} at {mhz or 0:.0f} MHz", CLOCK_MARGIN)
    datasheet = None if bound.datasheet is None else 100.0 * tflops / bound.datasheet
    return datasheet, at_clock


def crossover(tflops: float, bytes_per_second: float) -> float:
    """Arithmetic intensity, FLOP per byte, at which memory and arithmetic take equally long."""
    return tflops * 1e12 / bytes_per_second
