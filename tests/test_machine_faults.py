"""Every planted fault is caught, at the right instruction, with the right words; the right kernel is clean."""

from __future__ import annotations

import re
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kernel.build import artifact
from kernel.contract import Unit
from kernel.errors import MachineFault
from kernel.machine import Buffer, Checks, Shape, run
from kernel.machine.command import races
from kernel.machine.faults import WORDS
from kernel.machine.lower import ENGINE_FOLDER
from tests.wrong_kernels.catalog import WRONG

SOURCE = Path(__file__).parent / "machine_kernels" / "double_buffer.cu"
pytestmark = pytest.mark.nvcc


@cache
def ptx(*macros: str) -> str:
    name = "_".join(("test_double_buffer", *(macro.lower() for macro in macros)))
    flags = ("-lineinfo", *(f"-D{macro}" for macro in macros))
    unit = Unit(name=name, arch="sm_90a", source=SOURCE, flags=flags, allow_spills=True)
    return artifact(unit).ptx.read_text(encoding="utf-8")


def word(value: int) -> bytes:
    return struct.pack("<i", value)


def gemm(*macros, m=50, n=40, k=35, grid=None, a=None, keep_going=True, checks=None):
    generator = np.random.default_rng(1)
    a = generator.uniform(-1, 1, (m, k)).astype(np.float32) if a is None else a
    b = generator.uniform(-1, 1, (k, n)).astype(np.float32)
    buffers = [
        Buffer.from_array("A", a, writable=False),
        Buffer.from_array("B", b, writable=False),
        Buffer.from_array("C", np.full((m, n), np.nan, np.float32), initialised=False),
    ]
    grid = grid or (-(-n // 32), -(-m // 32), 1)
    shape = Shape(grid=grid, block=(16, 16, 1))
    report = run(
        ptx(*macros), "gemm", shape, [*buffers, word(m), word(n), word(k)], keep_going=keep_going, checks=checks
    )
    c = buffers[2].array("<f4").reshape(m, n)
    return report, c, a.astype(np.float64) @ b


def first(report, kind):
    """The text of the first fault of a kind; a fault of one kind often brings others in its wake."""
    assert kind in {fault.kind for fault in report.faults}, [str(fault) for fault in report.faults]
    return next(str(fault) for fault in report.faults if fault.kind == kind)


def only(report, kind):
    assert {fault.kind for fault in report.faults} == {kind}, [str(fault) for fault in report.faults]
    return str(report.faults[0])


@pytest.mark.parametrize("k", [1, 7, 8, 9, 16, 17, 24, 35])
def test_the_right_kernel_is_clean(k):
    report, c, reference = gemm(k=k, checks=Checks(strict=True))
    assert report.faults == []
    assert report.notes == []
    np.testing.assert_allclose(c, reference, atol=1e-5)


def test_missing_barrier_after_filling():
    report, _, _ = gemm("NO_FILL_BARRIER")
    # A copy of another warp's thread may not even have been waited for by that thread yet.
    assert {fault.kind for fault in report.faults} == {"race", "async copy read early"}
    text = first(report, "race")
    assert "reads shared address" in text
    assert "_tile+" in text
    assert "no barrier between" in text
    assert "ld.shared" in text
    assert "cp.async.ca.shared.global" in text
    assert "(kernel.cu:" in text


def test_missing_barrier_before_refilling():
    text = first(gemm("NO_FREE_BARRIER")[0], "race")
    assert "writes shared address" in text
    assert "which thread" in text
    assert "cp.async" in text


def test_race_names_both_threads_and_the_address():
    report, _, _ = gemm("NO_FREE_BARRIER")
    fault = next(fault for fault in report.faults if fault.kind == "race")
    assert fault.kernel == "gemm"
    assert fault.line > 0
    assert fault.address >= 1024
    assert fault.count > 1
    assert str(fault.thread) in fault.message
    assert str(fault.block) in fault.message


def test_wait_group_one_too_late():
    text = first(gemm("WAIT_TOO_LATE")[0], "async copy read early")
    assert "before the cp.async of thread" in text
    assert "ld.shared" in text


def test_floored_grid_leaves_output_unwritten():
    m, n = 50, 40
    report, c, _ = gemm(m=m, n=n, grid=(n // 32, m // 32, 1))
    assert report.faults == []
    assert np.isnan(c[32:, :]).all()
    assert np.isnan(c[:, 32:]).all()
    assert np.isfinite(c[:32, :32]).all()


def test_index_off_by_one_at_the_edge():
    text = only(gemm("EDGE_OFF_BY_ONE")[0], "out of bounds")
    assert "read of 4 bytes out of bounds" in text
    assert "0 bytes past the end of A" in text
    assert "cp.async" in text


@pytest.mark.parametrize("offset", [4, 8])
def test_float4_on_a_base_that_is_not_aligned(offset):
    source = Buffer.from_array("x", np.ones(65, np.float32), writable=False)
    target = Buffer.from_array("y", np.zeros(64, np.float32))
    target.address, source.address = 0x20_0000_0000, 0x40_0000_0000 + offset
    shape = Shape(grid=(1, 1, 1), block=(32, 1, 1))
    text = only(run(ptx(), "copy4", shape, [source, target, word(16)]), "misaligned")
    assert "misaligned access of 16 bytes" in text
    assert "ld.global" in text
    assert "thread (0, 0, 0)" in text


def test_poisoned_row_read_through_an_unguarded_tail():
    """The read stays inside A, so only the values can tell: row 0 becomes NaN. Between pitched rows it is a fault."""
    m, k = 40, 33
    a = np.full((m, k), np.nan, np.float32)
    a[0] = 1
    report, clean, reference = gemm(m=m, k=k, a=a)
    assert report.faults == []
    assert np.isfinite(clean[0]).all()
    assert np.isnan(clean[1:]).all()
    np.testing.assert_allclose(clean[0], reference[0], atol=1e-5)
    _, c, _ = gemm("TAIL_UNGUARDED", m=m, k=k, a=a)
    assert np.isnan(c[0]).all()


def test_reading_on_behind_a_row_is_out_of_bounds_between_pitched_rows():
    """The same mistake in a kernel with leading dimensions, as the default problem of ``races`` has them."""
    outcome = races(next(wrong.kernel for wrong in WRONG if wrong.kernel.name == "masks_the_tail_by_zero"))
    text = next(str(fault) for fault in outcome.faults if fault.kind == "out of bounds")
    assert "read of 4 bytes out of bounds" in text
    assert "between the rows of A" in text


@pytest.mark.parametrize("tiles", [1, 3, 5])
def test_wrong_buffer_drained_at_an_odd_number_of_tiles(tiles):
    report, c, reference = gemm("WRONG_DRAIN", k=8 * tiles)
    if tiles == 1:
        assert "from shared memory never written" in only(report, "uninitialised value stored")
    else:
        assert report.faults == []
        assert any("copied by cp.async were never read, as where the wrong buffer" in note for note in report.notes)
        text = only(gemm("WRONG_DRAIN", k=8 * tiles, checks=Checks(strict=True))[0], "async copy never read")
        # The last tiles without what is zero-filled: A for two columns of blocks, B for two rows of them.
        assert f"gemm: {4 * 2 * 8 * (50 + 40)} bytes copied by cp.async were never read" in text
        assert "at PTX line" in text
        assert "(kernel.cu:" in text
        assert not np.allclose(c, reference, atol=1e-3)


@pytest.mark.parametrize("tiles", [2, 4])
def test_wrong_drain_is_right_at_an_even_number_of_tiles(tiles):
    report, c, reference = gemm("WRONG_DRAIN", k=8 * tiles)
    assert report.faults == []
    assert report.notes == []
    np.testing.assert_allclose(c, reference, atol=1e-5)


def test_barrier_in_divergent_code():
    report, _, _ = gemm("BARRIER_IN_BRANCH", m=49)
    text = only(report, "divergent barrier")
    assert "its whole warp never arrives" in text
    assert "bar.sync" in text


def test_barrier_that_whole_warps_skip():
    """From Volta on the hardware opens it once the others have left: the values are right, the report is there."""
    report, c, reference = gemm("BARRIER_IN_BRANCH", m=40)
    assert "has left the kernel" in only(report, "barrier not reached")
    np.testing.assert_allclose(c, reference, atol=1e-5)


def test_barrier_that_waits_for_more_threads_than_there_are():
    text = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry waits() { .reg .pred %p; .reg .b32 %t; mov.u32 %t, %tid.x; setp.ge.u32 %p, %t, 32;
  @%p bra OTHER; bar.sync 1, 96; ret;
OTHER: bar.sync 2, 64; ret; }
"""
    fault = first(run(text, "waits", Shape(grid=(1, 1, 1), block=(64, 1, 1)), []), "barrier not reached")
    assert "32 threads arrived" in fault
    assert "is at line" in fault
    assert "bar.sync 2, 64" in fault


def reduce(*macros, threads=64):
    source = Buffer.from_array("x", np.arange(threads * 2, dtype=np.float32), writable=False)
    target = Buffer.from_array("sum", np.zeros(2, np.float32), initialised=False)
    shape = Shape(grid=(2, 1, 1), block=(threads, 1, 1), dynamic_smem=4 * threads)
    return run(ptx(*macros), "reduce", shape, [source, target]), target.array("<f4")


def test_reduction_through_dynamic_shared_memory():
    report, sums = reduce()
    assert report.faults == []
    assert sums.tolist() == [sum(range(64)), sum(range(64, 128))]


def test_reduction_without_its_barrier_races():
    report, _ = reduce("NO_REDUCE_BARRIER")
    assert "with no barrier between them" in first(report, "race")


def test_too_little_dynamic_shared_memory_is_out_of_bounds():
    source = Buffer.from_array("x", np.zeros(64, np.float32), writable=False)
    target = Buffer.from_array("sum", np.zeros(1, np.float32), initialised=False)
    report = run(ptx(), "reduce", Shape(grid=(1, 1, 1), block=(64, 1, 1), dynamic_smem=128), [source, target])
    assert any(
        fault.kind == "shared out of bounds" and "the block has 128 bytes" in str(fault) for fault in report.faults
    )


def test_shared_memory_never_written_is_reported_where_it_matters():
    target = Buffer.from_array("y", np.zeros(128, np.float32), initialised=False)
    shape = Shape(grid=(1, 1, 1), block=(128, 1, 1))
    text = only(run(ptx(), "unwritten", shape, [target, word(1)]), "uninitialised value stored")
    assert re.search(r"stores to y\[(64|96)\]", text)
    assert "ld.shared" in text
    strict = run(ptx(), "unwritten", shape, [target, word(1)], checks=Checks(strict=True))
    assert "uninitialised shared read" in {fault.kind for fault in strict.faults}


def test_output_read_before_it_is_written():
    target = Buffer.from_array("y", np.zeros(128, np.float32), initialised=False)
    text = only(
        run(ptx(), "unwritten", Shape(grid=(1, 1, 1), block=(128, 1, 1)), [target, word(0)]), "uninitialised read"
    )
    assert re.search(r"reads 4 bytes that were never written: y\[\d+\]", text)


def test_access_beyond_shared_memory():
    target = Buffer.from_array("y", np.zeros(32, np.float32))
    report = run(ptx(), "beyond", Shape(grid=(1, 1, 1), block=(32, 1, 1)), [target, word(2)])
    fault = next(fault for fault in report.faults if fault.kind == "shared out of bounds")
    assert fault.thread == (16, 0, 0)
    assert "the block has 128 bytes" in str(fault)


def test_null_pointer_and_read_only_memory():
    target = Buffer.from_array("y", np.zeros(64, np.float32), writable=False)
    shape = Shape(grid=(1, 1, 1), block=(32, 1, 1))
    nothing = struct.pack("<Q", 0)
    texts = [str(fault) for fault in run(ptx(), "copy4", shape, [nothing, target, word(4)]).faults]
    assert any("read of 16 bytes out of bounds" in text and "a null pointer" in text for text in texts)
    text = str(run(ptx(), "copy4", shape, [target, target, word(4)]).faults[0])
    assert "writes 16 bytes to read-only memory: y[0]" in text


def test_every_fault_of_the_engine_has_its_words():
    header = (ENGINE_FOLDER / "machine.h").read_text(encoding="utf-8")
    names = re.search(r"enum Kind : i32 \{(.*?)\}", header, re.DOTALL)[1].replace("= 1", "")
    assert len([name for name in names.split(",") if name.strip()]) == len(WORDS)
    assert list(WORDS) == list(range(1, len(WORDS) + 1))


def test_impossible_launches_are_refused_before_they_run():
    target = Buffer.from_array("y", np.zeros(64, np.float32))
    with pytest.raises(MachineFault, match="takes 3"):
        run(ptx(), "copy4", Shape(grid=(1, 1, 1), block=(32, 1, 1)), [target])
    with pytest.raises(MachineFault, match="compiled for at most 256"):
        run(ptx(), "gemm", Shape(grid=(1, 1, 1), block=(512, 1, 1)), [target, target, target, *[word(1)] * 3])
    with pytest.raises(MachineFault, match="has no entry"):
        run(ptx(), "nobody", Shape(grid=(1, 1, 1), block=(32, 1, 1)), [])
    with pytest.raises(MachineFault, match="argument 2 has 8 bytes"):
        run(ptx(), "copy4", Shape(grid=(1, 1, 1), block=(32, 1, 1)), [target, target, target])
    with pytest.raises(MachineFault, match="a block can have"):
        run(ptx(), "reduce", Shape(grid=(1, 1, 1), block=(64, 1, 1), dynamic_smem=300000), [target, target])
