"""The loops that serve as ceilings: what they issue (from their SASS), and that they compute what they claim."""

import re
import struct
import sys
import types

import numpy as np
import pytest

from compare import ceilings
from compare.ceilings import COPY_BYTES, Ceiling, ceiling_of, copy_bandwidth, loops, measure_ceilings, units
from compare.timing import DeviceFacts
from kernel import build
from kernel.disassemble import sass
from kernel.errors import CheckError, LaunchError, NoDeviceError
from kernel.machine.execute import Shape, run
from kernel.machine.memory import Buffer
from tests.ceiling_references import check_output, ffma_reference
from tests.simulated_bench import SimulatedBench, SimulatedContender, SimulatedOperands

HOPPER = {f"{loop.track}-{loop.instruction}": loop for loop in loops("sm_90a")}


def test_every_track_has_a_ceiling():
    assert {loop.track for loop in HOPPER.values()} == {"fp32_simt", "tf32_tensor", "fp16_tensor"}
    assert {loop.instruction for loop in loops("sm_80")} == {"ffma", "mma_sync"}
    assert [loop.instruction for loop in loops("sm_75")] == ["ffma"]
    assert len({unit.name for unit in units("sm_90a")}) == 6


def main_loop(text, opcode):
    """Instructions of the innermost loop that issues ``opcode``: between a backward branch and its target."""
    labels, lines = {}, []
    for line in text.splitlines():
        label = re.match(r"\s*(\.L_x_\d+):", line)
        if label:
            labels[label[1]] = len(lines)
        found = re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);", line)
        if found:
            lines.append(found[1])
    for number, line in enumerate(lines):
        target = re.search(r"BRA `\((\.L_x_\d+)\)", line)
        if target and labels.get(target[1], len(lines)) < number:
            body = lines[labels[target[1]] : number + 1]
            if any(opcode in one for one in body):
                return body
    raise AssertionError(f"no loop with {opcode}")


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("name", HOPPER)
def test_the_loop_issues_what_its_operation_count_says(name):
    loop = HOPPER[name]
    built = build.artifact(loop.unit)
    assert built.resources[loop.entry].spill_bytes == 0
    opcode, flop, warps = {
        "ffma": ("FFMA", 2 * 32, 8),
        "mma_sync": ("HMMA", 2 * 16 * 8 * (16 if loop.track == "fp16_tensor" else 8), 8),
        # A wgmma belongs to a warpgroup; each of its four warps issues one.
        "wgmma": ("HGMMA", 2 * 64 * 256 * (16 if loop.track == "fp16_tensor" else 8) // 4, 8),
    }[loop.instruction]
    body = main_loop(sass(built.cubin, loop.entry), opcode)
    issued = sum(opcode in line for line in body)
    per_iteration = loop.block_flop(2) - loop.block_flop(1)
    passes = 2 if loop.instruction == "mma_sync" else 1  # its loop holds one of an iteration's two passes
    assert passes * issued * flop * warps == per_iteration
    assert not any(re.search(r"\b(LDS|LDG|LDL|STL|STS)\b", line) for line in body)
    if loop.instruction == "ffma":
        assert len(body) <= 1.02 * issued


@pytest.mark.nvcc
@pytest.mark.slow
def test_no_ffma_of_the_ceiling_can_meet_a_bank_conflict():
    """Two distinct registers at most: a conflict needs three from one bank."""
    loop = HOPPER["fp32_simt-ffma"]
    text = sass(build.artifact(loop.unit).cubin, loop.entry)
    for line in main_loop(text, "FFMA"):
        if "FFMA" in line:
            sources = re.findall(r"\bR\d+", line)[1:]
            assert len(sources) == 3
            assert len(set(sources)) == 2


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HOPPER if not name.endswith("wgmma")])
def test_the_loops_compute_what_they_claim(name):
    """On the PTX machine, one block of one iteration; wgmma needs a GPU."""
    loop = HOPPER[name]
    registers = 1 if loop.instruction == "ffma" else 64
    out = Buffer.from_array("out", np.zeros((256, registers), dtype=np.float32))
    arguments = [out, struct.pack("<i", 1)] + ([] if loop.instruction == "ffma" else [struct.pack("<i", 1)])
    report = run(build.artifact(loop.unit).ptx, loop.entry, Shape(grid=(1, 1, 1), block=(256, 1, 1)), arguments)
    assert not report.faults
    check_output(loop, out.array(np.float32).reshape(256, registers))


def test_the_ffma_chain_stays_random():
    """Neither converges nor collapses into few values, which would draw the power of constants."""
    late = ffma_reference(512, 256, 300)
    assert np.isfinite(late).all()
    assert len(np.unique(late)) > 0.9 * late.size
    assert late.std() > 1.0
    assert abs(late).max() <= 2.0


class LoopOnPaper:
    """Stands in for a launch: as fast as the instruction's rate at 1980 MHz, times ``speed``."""

    speed = 0.97

    def __init__(self, loop, sms, iterations):
        rate = {"fp32_simt": 66.9e12, "tf32_tensor": 494.7e12, "fp16_tensor": 989.4e12}[loop.track] * self.speed
        self.contender = SimulatedContender(loop.name, loop.flop(sms, iterations) / rate, compute=lambda *_: None)

    def enqueue(self, stream):
        pass


def test_a_launch_of_a_loop_goes_to_the_stream_it_is_given(monkeypatch):
    """Through what CuPy 13 and 14 both have: a launch's own argument, and no stream of CuPy's around it."""
    launched = []

    class Function:
        max_dynamic_shared_size_bytes = 1 << 20

        def __call__(self, grid, block, arguments, **options):
            launched.append((grid, block, len(arguments), options["shared_mem"], options["stream"].ptr))

    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(zeros=np.zeros))
    monkeypatch.setattr("kernel.launch.load", lambda *_: Function())
    monkeypatch.setattr(ceilings, "artifact", lambda unit: unit)
    for loop in loops("sm_90a"):
        ceilings.LoopLaunch(loop, 3, 10).enqueue(77)
        assert launched.pop() == (
            (loop.blocks(3),), (256,), 2 if loop.instruction == "ffma" else 3, loop.shared_bytes, 77
        )  # fmt: skip


def test_ceilings_in_both_windows():
    SimulatedOperands()
    found = measure_ceilings(SimulatedBench(), launch=LoopOnPaper)
    assert len(found) == 10
    ffma = ceiling_of(found, "fp32_simt", "ffma", "sustained", (9, 0))
    assert ffma.tflops == pytest.approx(0.97 * 66.9, rel=0.01)
    assert ffma.power_w == 400.0
    assert ceiling_of(found, "fp16_tensor", "", "burst", (9, 0)).instruction == "wgmma"
    assert ceiling_of(found, "fp16_tensor", "", "burst", (8, 0)).instruction == "mma_sync"
    assert ceiling_of(found, "fp16_tensor", "wgmma", "cold", (9, 0)) is None
    assert len(measure_ceilings(SimulatedBench(), sustained=False, tracks=["fp32_simt"], launch=LoopOnPaper)) == 1


def test_a_ceiling_above_the_peak_is_an_error():
    class TooFast(LoopOnPaper):
        speed = 1.2

    with pytest.raises(CheckError, match="peak"):
        measure_ceilings(SimulatedBench(), tracks=["fp32_simt"], launch=TooFast)


def test_an_older_device_has_no_wgmma_ceiling():
    facts = DeviceFacts(name="NVIDIA A100-SXM4-40GB", sms=108, l2_bytes=40 << 20, compute_capability=(8, 0))
    assert facts.arch == "sm_80"

    class Ampere(LoopOnPaper):
        speed = 0.25

    found = measure_ceilings(SimulatedBench(facts=facts), sustained=False, launch=Ampere)
    assert {one.instruction for one in found} == {"ffma", "mma_sync"}
    assert isinstance(found[0], Ceiling)


def test_a_ceiling_of_which_no_sample_was_taken_is_an_error():
    class Stops(SimulatedBench):
        """Refuses everything after the pilots of one loop."""

        def slice(self, jobs):
            if len(self.log) >= 6:
                raise LaunchError("the device went away")
            return super().slice(jobs)

    with pytest.raises(LaunchError, match=r"fp32_simt.*: the device went away"):
        measure_ceilings(Stops(), tracks=["fp32_simt"], launch=LoopOnPaper)


class FullDevice(Exception):
    pass


def copying(monkeypatch, room):
    """Stands in for CuPy with ``room`` bytes of memory; returns the copies that were queued."""
    copied = []
    left = [room]

    class Memory:
        def __init__(self, count):
            self.nbytes, self.data = count, types.SimpleNamespace(ptr=count + left[0])

        def view(self, dtype):
            return {}

    def allocate(count, dtype):
        left[0] -= count
        if left[0] < 0:
            raise FullDevice
        return Memory(count)

    runtime = types.SimpleNamespace(memcpyAsync=lambda *words: copied.append(words), memcpyDeviceToDevice=3)
    cuda = types.SimpleNamespace(memory=types.SimpleNamespace(OutOfMemoryError=FullDevice), runtime=runtime)
    monkeypatch.setitem(
        sys.modules, "cupy", types.SimpleNamespace(empty=allocate, uint8="u1", arange=lambda *_, **__: 1, cuda=cuda)
    )
    return copied


class CopyBench(SimulatedBench):
    """Every launch takes a millisecond."""

    def _run(self, job):
        for index in range(job.launches):
            job.work.enqueue(7, index)
        return 1e-3, 1980.0


def test_the_bandwidth_of_a_copy_counts_what_is_read_and_what_is_written(monkeypatch):
    copied = copying(monkeypatch, room=2 * COPY_BYTES)
    assert copy_bandwidth(CopyBench(), repeats=3) == 2 * COPY_BYTES / 1e-3
    assert {words[2:] for words in copied} == {(COPY_BYTES, 3, 7)}
    assert all(target != source for target, source, *_ in copied)


def test_a_copy_that_does_not_fit_says_how_much_it_needs(monkeypatch):
    copying(monkeypatch, room=2 * COPY_BYTES - 1)
    with pytest.raises(NoDeviceError, match=f"two buffers of {COPY_BYTES >> 20} MiB do not fit on the device"):
        copy_bandwidth(CopyBench())
