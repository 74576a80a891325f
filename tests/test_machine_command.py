"""run-cpu on anybody's file: arguments, entries, saved output, and the texts a terminal shows."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from compare.cli import main
from cutlass_ref.cute.catalog import KERNELS as CUTE
from handwritten.catalog import get
from kernel.contract import Problem, Tile
from kernel.errors import MachineFault, TimeLimitError, UsageError
from kernel.machine import command
from kernel.machine.execute import Attention
from kernel.machine.ptx import Variable, parse
from tests.wrong_kernels.catalog import WRONG

SOURCE = Path(__file__).parent / "machine_kernels" / "double_buffer.cu"
GRID, BLOCK = (2, 2, 1), (16, 16, 1)
pytestmark = pytest.mark.nvcc
FOREVER = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry forever(.param .u64 x)
{
 .reg .u32 %r<3>;
 .reg .u64 %d<2>;
 .reg .pred %p<2>;
 mov.u32 %r1, %ctaid.x;
 setp.ne.u32 %p1, %r1, 0;
 @%p1 bra $again;
 ld.param.u64 %d1, [x];
 st.global.u32 [%d1+4], %r1;
$again:
 add.u32 %r1, %r1, 1;
 bra $again;
}
"""
"""The first block writes the second element of x; every block then runs until it is ended."""


@pytest.fixture
def forever(tmp_path):
    path = tmp_path / "forever.ptx"
    path.write_text(FOREVER, encoding="utf-8")
    return path


def test_a_file_with_its_arguments_in_words(tmp_path):
    a = np.random.default_rng(1).uniform(-1, 1, (50, 20)).astype(np.float32)
    np.save(tmp_path / "a.npy", a)
    saved = tmp_path / "c.npy"
    arguments = [f"in:{tmp_path / 'a.npy'}", "random:f32:20x40:7", f"out:f32:50x40:{saved}", "50", "i32:40", "0x14"]
    done = command.run_file(SOURCE, "gemm", GRID, BLOCK, arguments)
    assert done.report.faults == []
    assert done.saved == (saved,)
    b = np.random.default_rng(7).uniform(-1, 1, (20, 40)).astype(np.float32)
    np.testing.assert_array_equal(done.buffers[1], b)
    np.testing.assert_allclose(done.buffers[2], a.astype(np.float64) @ b, atol=1e-5)
    np.testing.assert_array_equal(np.load(saved), done.buffers[2])
    assert "gemm: no faults; 4 of 4 blocks" in command.report_text(done.report)


def test_faults_are_shown_with_instruction_and_source_line():
    arguments = ["random:f32:50x20", "random:f32:20x40", "out:f32:50x39", "50", "40", "20"]
    text = command.report_text(command.run_file(SOURCE, "gemm", GRID, BLOCK, arguments).report)
    assert "write of 4 bytes out of bounds by thread" in text
    assert "past the end of argument 2" in text
    assert "st.global.f32" in text
    assert f"({SOURCE.name}:" in text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"symbol": "nobody"}, "entries of the file: beyond, copy4, gemm"),
        ({"symbol": ""}, "there are 5 entries; name one"),
        ({"arguments": ["1"]}, "takes 6 parameters of 8, 8, 8, 4, 4, 4 bytes; 1 were given"),
        ({"arguments": ["seven"] * 6}, "neither a number nor a buffer"),
        ({"arguments": ["random:f33:4"] * 6}, "no type 'f33'"),
        ({"arguments": ["zeros:f32:4y"] * 6}, "are no extents"),
        ({"arguments": ["random:f32:4:x"] * 6}, "the seed 'x' is no number"),
        ({"arguments": ["zeros:f32:99999999999999"] * 6}, "argument 'zeros:f32:99999999999999': Unable to allocate"),
        ({"arguments": ["zeros:f32:9999999999x9999999999"] * 6}, "argument 'zeros:f32:9999999999x9999999999'"),
        ({"arguments": ["out:f32"] * 6}, "a type and extents are needed"),
        ({"arguments": ["in:/nowhere.npy"] * 6}, "cannot be read as a .npy file"),
        ({"arguments": ["f32:1"] * 6}, "has 4 bytes; parameter 0 of gemm has 8"),
        ({"path": SOURCE.with_name("nothing.cu")}, "is not a file"),
        ({"path": Path(__file__)}, "neither a .cu nor a .ptx file"),
    ],
)
def test_what_does_not_fit_is_a_usage_error(changed, message):
    given = {"path": SOURCE, "symbol": "gemm", "grid": GRID, "block": BLOCK, "arguments": ["0"] * 6, **changed}
    with pytest.raises(UsageError, match=message):
        command.run_file(**given)


SCALARS = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry scalars(.param .u64 out, .param .f32 x, .param .f64 y, .param .u32 n, .param .align 2 .b8 h[2])
{
 .reg .u32 %r<3>;
 .reg .u64 %d<3>;
 .reg .f32 %f<2>;
 .reg .f64 %g<2>;
 ld.param.u64 %d1, [out];
 ld.param.f32 %f1, [x];
 ld.param.f64 %g1, [y];
 ld.param.u32 %r1, [n];
 st.global.f64 [%d1], %g1;
 st.global.f32 [%d1+8], %f1;
 st.global.u32 [%d1+12], %r1;
 ret;
}
"""
"""Writes what it was given, so that a test sees the bytes that a kernel sees."""


@pytest.fixture
def scalars(tmp_path):
    path = tmp_path / "scalars.ptx"
    path.write_text(SCALARS, encoding="utf-8")

    def given(x="1", y="1", n="1", half="f16:1", out="zeros:u8:16"):
        return command.run_file(path, "", (1, 1, 1), (1, 1, 1), [out, x, y, n, half]).buffers[0].tobytes()

    return given


@pytest.mark.parametrize(
    ("texts", "seen"),
    [
        ({"x": "5", "y": "-2", "n": "7"}, (-2.0, 5.0, 7)),
        ({"x": "0.5", "y": "1e-3", "n": "0x10"}, (1e-3, 0.5, 16)),
        ({"x": "0x10", "y": "inf", "n": "4294967295"}, (np.inf, 16.0, 2**32 - 1)),
        ({"x": "u32:1084227584", "y": "f64:3", "n": "-1"}, (3.0, 5.0, 2**32 - 1)),
    ],
)
def test_a_number_is_of_the_type_that_the_ptx_states(scalars, texts, seen):
    assert struct.unpack("<dfI", scalars(**texts)) == seen


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"n": "99999999999"}, "beyond what uint32 holds: 0 to 4294967295"),
        ({"n": "-2147483649"}, "beyond what int32 holds"),
        ({"n": "7.0"}, "a float where the kernel takes an integer"),
        ({"n": "1_0"}, "neither a number nor a buffer"),
        ({"n": "４"}, "neither a number nor a buffer"),
        ({"x": "1_0.5"}, "neither a number nor a buffer"),
        ({"x": "1e39"}, "beyond what float32 holds"),
        ({"n": "i8:300"}, "beyond what int8 holds: -128 to 127"),
        ({"half": "f16:1e9"}, "beyond what float16 holds"),
        ({"half": "1"}, "the PTX does not say what this parameter of 2 bytes is; state the type"),
        ({"y": "zeros:f64:1"}, "is a buffer; parameter 2 of scalars is a double"),
        ({"out": "zeros:u8:４"}, "are no extents"),
    ],
)
def test_a_number_that_its_parameter_does_not_hold_is_refused(scalars, texts, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        scalars(**texts)


@pytest.mark.parametrize("dtype", [">f4", ">i2", "<f8", "?"])
def test_an_array_from_a_file_keeps_its_values_whatever_its_byte_order(scalars, tmp_path, dtype):
    values = np.array([[1, 0], [1, 1]]).astype(dtype)
    np.save(tmp_path / "a.npy", values)
    found, kind, shape, _ = command.read_argument(f"in:{tmp_path / 'a.npy'}", 0, Variable("x", "param", 8, 8))
    assert shape == (2, 2)
    assert kind == np.dtype(dtype).newbyteorder("<") or (dtype == "?" and kind == np.uint8)
    np.testing.assert_array_equal(found.array(kind).reshape(shape), values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.array(["text"]), "holds <U4"),
        (np.array([1j]), "holds complex128"),
        (np.array([1], "datetime64[s]"), "holds datetime64"),
        (np.array([(1, 2.0)], "i4,f4"), "known: float16"),
        (b"", "cannot be read as a .npy file"),
        (b"PK\3\4 and no more", "cannot be read as a .npy file"),
    ],
    ids=str,
)
def test_a_file_without_numbers_that_kernels_have_is_refused(scalars, tmp_path, content, message):
    path = tmp_path / "a.npy"
    np.save(path, content) if isinstance(content, np.ndarray) else path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        scalars(out=f"in:{path}")


def test_a_place_that_cannot_be_written_is_refused_before_the_run(scalars, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "run", lambda *_, **__: pytest.fail("it ran"))
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "dir.cu").write_text("source")
    for name, message in (
        ("dir.cu", "must end in .npy"),
        ("none/a.npy", "No such file or directory"),
        ("dir.cu/a.npy", "Not a directory"),
        ("folder.npy", "cannot be written"),
    ):
        with pytest.raises(UsageError, match=message):
            scalars(out=f"out:f32:4:{tmp_path / name}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dir.cu", "folder.npy", "scalars.ptx"]


def test_random_integers_are_not_all_zero():
    for kind, low in (("i32", -9), ("u8", 0)):
        found, dtype, _, _ = command.read_argument(f"random:{kind}:1000:3", 0, Variable("x", "param", 8, 8))
        values = found.array(dtype)
        assert (values.min(), values.max(), len(set(values.tolist()))) == (low, 9, 10 - low)


def test_mangled_names_are_found_by_their_plain_one():
    module = parse(".visible .entry _Z5scalePfi(.param .u64 a, .param .u32 b) { ret; } .entry other() { ret; }")
    assert command.entry_of(module, "scale") == "_Z5scalePfi"
    assert command.entry_of(module, "other") == "other"


def test_a_ptx_file_runs_as_it_is(tmp_path):
    path = tmp_path / "kernel.ptx"
    path.write_text(command.ptx_of(SOURCE), encoding="utf-8")
    done = command.run_file(path, "copy4", (1, 1, 1), (32, 1, 1), ["ones:f32:64", "out:f32:64", "16"])
    assert done.report.faults == []
    assert (done.buffers[1] == 1).all()


def test_races_of_a_catalog_kernel_and_its_table():
    outcome = command.races(get("v3_double_buffer"))
    assert outcome.faults == []
    table = command.banks_text(command.banks(get("v4_pad")))
    assert "cp.async" in table
    assert "shared loads: " in table


def test_a_kernel_that_does_wrong_has_no_counters_but_its_faults():
    wrong = next(one.kernel for one in WRONG if one.kernel.name == "overruns_by_one")
    with pytest.raises(MachineFault, match=r"write of 4 bytes out of bounds by thread .* of block \(0, 0, 0\)"):
        command.banks(wrong, Problem(m=16, n=16, k=4))


def test_races_are_looked_for_on_whole_tiles_where_ragged_ones_are_refused(monkeypatch):
    asked = []
    monkeypatch.setattr(command, "simulate", lambda kernel, problem, *more, **options: asked.append(problem))
    cute = next(kernel for kernel in CUTE if kernel.name.startswith("cute_fp16_sm80_128x128x32"))
    for kernel in (get("v4_pad"), cute):
        command.races(kernel)
    assert [(one.m, one.n, one.k) for one in asked] == [(130, 130, 35), (256, 256, 96)]
    assert [one.lda for one in asked] == [35 + command.ROW_GAP, 96 + command.ROW_GAP]


def test_a_map_of_lanes_needs_a_tile_of_numbers_that_its_type_holds():
    with pytest.raises(UsageError, match="h0_mma_sync states no block tile, so there is no map of one"):
        command.mapping(dataclasses.replace(get("h0_mma_sync"), tile=Tile()))
    half = Problem(m=512, n=128, k=64, dtype_in="float16", dtype_out="float16")
    with pytest.raises(UsageError, match="a tile of 512 x 64 halves has more elements than half-precision numbers"):
        command.mapping(get("h0_mma_sync"), half)


def test_a_map_of_lanes_leaves_out_what_fills_a_tile_beyond_the_operands():
    whole = command.mapping(get("v4_pad"))
    part = command.mapping(get("v4_pad"), Problem(m=128, n=6, k=16))
    for lane, owned in part.owns.items():
        assert set(owned) == {(row, column) for row, column in whole.owns[lane] if column < 6}


def test_a_warp_that_only_copies_owns_what_its_kernels_instruction_defines():
    found = command.mapping(get("h5_64x64"))
    assert found.source.startswith("PTX ISA: ")
    assert sorted(found.owns) == list(range(32))


def test_a_limit_ends_a_kernel_that_does_not_and_until_then_it_says_how_far_it_is(forever, capsys):
    seen = []
    attention = Attention(0.5, lambda *how_far: seen.append(how_far))
    began = time.monotonic()
    with pytest.raises(TimeLimitError, match=r"forever: ended after 0.5 s with 0 of 2 blocks run and no fault until"):
        command.run_file(forever, "", (2, 1, 1), (32, 1, 1), ["zeros:u32:2"], attention=attention)
    assert 0.5 <= time.monotonic() - began < 5
    assert [(finished, blocks) for finished, blocks, _ in seen] == [(0, 2)] * len(seen)
    executed = [number for *_, number in seen]
    assert executed == sorted(executed)
    assert executed[-1] > 0

    words = ["run-cpu", str(forever), "--grid", "2", "--block", "32", "--seconds", "0.3"]
    assert main([*words, "--arg", "zeros:u32:2"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("gemm-tracks: forever: ended after 0.3 s with 0 of 2 blocks run")
    assert captured.err.count("\n") == 1
    assert main([*words, "--arg", "zeros:u32:1", "--keep-going"]) == 1
    out = capsys.readouterr().out
    assert "write of 4 bytes out of bounds" in out
    assert "note: ended after 0.3 s with 0 of 2 blocks run" in out


def test_a_run_that_is_interrupted_ends_at_once_and_says_so(forever, capsys):
    began = time.monotonic()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    status = main(["run-cpu", str(forever), "--grid", "1", "--block", "32", "--arg", "zeros:u32:2"])
    timer.join()
    assert time.monotonic() - began < 10
    captured = capsys.readouterr()
    assert (status, captured.out, captured.err) == (130, "", "gemm-tracks: stopped\n")


def test_words_and_several_arrays_are_no_numbers(tmp_path):
    with pytest.raises(UsageError, match="neither a number nor a buffer"):
        command._number("seven", np.dtype("f4"), "seven")
    with (tmp_path / "several.npy").open("wb") as file:
        np.savez(file, a=np.zeros(2), b=np.zeros(2))
    with pytest.raises(UsageError, match="several arrays"):
        command._loaded(str(tmp_path / "several.npy"), "in:several.npy")
