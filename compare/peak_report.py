"""The command ``peaks``: published peaks, ceilings, and where the roofline bends, with the formulas."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compare import driver, runs
from compare.folding import folded, terminal_width
from compare.peaks import DEVICES, crossover, peak
from compare.report import TRACK_TITLES, origin
from kernel.errors import UsageError
from kernel.intensity import BANDWIDTH

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_DEVICE = "NVIDIA H200"


def run_peaks(gpu: str, *, as_json: bool) -> None:
    """Run the command.

    Raises:
        UsageError: a device that is not in the table was named.
    """
    from compare.console import answers, print_json

    asked = driver.query()
    if gpu and gpu not in DEVICES:
        raise UsageError(f"--gpu {gpu!r}: no published peaks are known here; known: {', '.join(DEVICES)}")
    measured: Sequence[Mapping[str, Any]] = ()
    copy: float | None = None
    source = ""
    if not gpu and asked.devices and importlib.util.find_spec("cupy") is not None:
        device, sms = asked.devices[0].name, asked.devices[0].sm_count
        measured, copy = measured_here()
        source = "Measured here"
    else:
        device, sms = gpu or DEFAULT_DEVICE, 0
        folder = runs.latest()
        run = runs.read_run(folder)[0] if folder else {}
        if (run.get("gpu") or {}).get("name") == device:
            measured, source = run.get("ceilings", ()), origin(run, recorded=True)
    answer = peaks_of(device, sms, measured, copy, source)
    print_json(answer) if as_json else print_peaks(answer, answers())


def measured_here() -> tuple[list[dict[str, Any]], float]:
    """(ceilings, copied bytes per second) of the current device."""
    from dataclasses import asdict

    from compare.ceilings import copy_bandwidth, measure_ceilings
    from compare.timing import GpuBench

    bench = GpuBench()
    return [asdict(one) for one in measure_ceilings(bench)], copy_bandwidth(bench)


def peaks_of(
    device: str, sms: int, measured: Sequence[Mapping[str, Any]], copy: float | None, source: str
) -> dict[str, Any]:
    """Everything the command answers, as JSON holds it. Rates in TFLOP/s, bandwidths in bytes per second."""
    published = BANDWIDTH.get(device)
    bandwidth = copy or (published * 1e12 if published else None)
    tracks = []
    for track in TRACK_TITLES:
        found = peak(device, track, sms or None)
        ceilings = []
        for one in measured:
            if one["track"] != track:
                continue
            at_clock = found.at_clock(one["clock_mhz"])
            ceilings.append(
                {
                    "instruction": one["instruction"],
                    "window": one["window"],
                    "tflops": one["tflops"],
                    "clock_mhz": one["clock_mhz"],
                    "peak_at_clock_tflops": at_clock,
                    "pct_of_peak_at_clock": 100 * one["tflops"] / at_clock if at_clock else None,
                    "formula": found.formula(one["clock_mhz"]),
                }
            )
        tracks.append(
            {
                "track": track,
                "datasheet_tflops": found.datasheet,
                "physical_tflops": found.physical,
                "note": found.note,
                "crossover_flop_per_byte": crossover(found.datasheet, bandwidth)
                if found.datasheet and bandwidth
                else None,
                "ceilings": ceilings,
            }
        )
    return {
        "device": device,
        "source_of_ceilings": source,
        "bandwidth_bytes_per_s": bandwidth,
        "bandwidth_from": "copy, read plus written, measured here" if copy else "datasheet" if published else "",
        "tracks": tracks,
    }


def print_peaks(answer: Mapping[str, Any], console: Console) -> None:
    """The answer for people."""
    width = terminal_width()

    def say(text: str) -> None:
        console.print(folded(text, width), soft_wrap=True)

    console.print(answer["device"], style="bold")
    if answer["source_of_ceilings"]:
        say(f"ceilings: {answer['source_of_ceilings']}")
    if answer["bandwidth_bytes_per_s"]:
        say(f"memory: {answer['bandwidth_bytes_per_s'] / 1e12:.2f} TB/s ({answer['bandwidth_from']})")
    for track in answer["tracks"]:
        console.print(f"\n{TRACK_TITLES[track['track']]}", style="bold")
        if track["datasheet_tflops"] is None:
            say(f"  {track['note']}")
        else:
            say(f"  datasheet {track['datasheet_tflops']:.1f} TFLOP/s, dense {track['note']}".rstrip())
        if track["physical_tflops"]:
            say(f"  at the highest clock {track['physical_tflops']:.1f} TFLOP/s")
        if track["crossover_flop_per_byte"]:
            say(f"  roofline crossover {track['crossover_flop_per_byte']:.1f} FLOP/byte = datasheet peak / bandwidth")
        for one in track["ceilings"]:
            share = one["pct_of_peak_at_clock"]
            against = f", {share:.1f} % of the peak at that clock: {one['formula']}" if share else ""
            say(f"  ceiling, {one['instruction']} loop, {one['window']}: {one['tflops']:.1f} TFLOP/s{against}")
