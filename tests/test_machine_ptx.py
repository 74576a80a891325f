"""PTX as text: declarations, odd statements and what cannot be read or run, each with what its reader is told."""

from __future__ import annotations

import platform
import re

import numpy as np
import pytest

from kernel.contract import Argument, TensorMap
from kernel.errors import BuildError, MachineFault, MissingToolError, UnsupportedError
from kernel.machine import Buffer, Shape, engine, run
from kernel.machine.execute import program
from kernel.machine.ptx import parse
from kernel.toolchain import find

try:
    find("g++")
except MissingToolError as error:
    pytest.skip(str(error), allow_module_level=True)

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
WARP = Shape(grid=(1, 1, 1), block=(32, 1, 1))


def entry(body: str, before: str = "", parameters: str = ".param .u64 out") -> str:
    """An entry ``test`` whose %p is the address of the thread's own word of its parameter ``out``."""
    return f"""{HEAD}{before}
.visible .entry test({parameters})
{{
  .reg .b64 %p, %w, %v; .reg .b32 %t, %d, %u; .reg .f32 %f; .reg .pred %q; .reg .b16 %h;
  .shared .align 16 .b8 box[1024];
  ld.param.u64 %p, [out]; mov.u32 %t, %tid.x; mad.wide.u32 %p, %t, 4, %p;
  {body}
}}
"""


def words(body: str, before: str = "") -> np.ndarray:
    """The 32 words that ``body`` stores."""
    target = Buffer.from_array("out", np.zeros(32, np.uint32), initialised=False)
    report = run(entry(body, before), "test", WARP, [target])
    assert report.faults == []
    return target.array(np.uint32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".visible .entry half() { ret;", "the PTX text ends inside a brace; is the file whole?"),
        ("\n.visible .entry () { ret; }", "PTX line 5: an entry without a name"),
        (".global .u32 a, b;", "PTX line 4: this declaration is not understood: '.global .u32 a, b;'"),
        (".visible .entry k() { ret }", "PTX line 4: a statement without an end: 'ret '"),
        (".visible .entry k() {\n ret;\n @%p 77;\n}", "PTX line 6: no opcode in '@%p 77'"),
    ],
)
def test_what_is_no_ptx_is_refused_by_its_line(text, message):
    with pytest.raises(MachineFault, match=re.escape(message)):
        parse(HEAD + text)


def test_declared_and_defined_functions_are_passed_over():
    module = parse(
        f"{HEAD}.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);\n"
        ".func helper(.param .b32 x)\n{ .reg .b32 %r; { add.u32 %r, %r, 1; } ret; }\n"
        ".visible .entry only() {\n ;\n ret; }"
    )
    assert list(module.entries) == ["only"]
    assert [(one.line, one.text) for one in module.entries["only"].statements] == [(9, "ret")]


def test_vectors_and_floats_in_declarations_have_their_size_and_content():
    module = parse(
        f"{HEAD}.global .align 16 .v4 .f32 quads[3];\n.const .f32 pi[2] = {{0f40490FDB, 0fBF800000}};\n"
        ".const .f64 half = 0d3FE0000000000000;"
    )
    quads, pi, half = module.variables
    assert (quads.size, quads.align) == (48, 16)
    np.testing.assert_array_equal(np.frombuffer(pi.content, np.float32), np.float32([np.pi, -1]))
    assert np.frombuffer(half.content, np.float64) == 0.5


@pytest.mark.parametrize(
    "ending",
    [
        "st.global.u32 [%p], 7;",
        "st.global.u32 [%p], 7; bra END; st.global.u32 [%p], 8; END:",
        "setp.lt.u32 %q, %t, 99; st.global.u32 [%p], 7; @%q bra END; st.global.u32 [%p], 8; ret; END:",
        "st.global.u32 [%p], 7; nanosleep.u32 20; ret;",
        "mov.b64 %w, 0d401C000000000000; cvt.rni.u32.f64 %d, %w; st.global.u32 [%p], %d; ret;",
        "mov.f32 %f, 0f40400000; mad.rn.f32 %f, %f, 0f40000000, 0f3F800000; cvt.u32.f32 %d, %f;"
        "st.global.u32 [%p], %d; ret;",
        "createpolicy.fractional.L2::evict_last.b64 %w, 0f3F800000; st.global.u32 [%p], 7; ret;",
    ],
)
def test_ways_to_end_and_rarer_instructions(ending):
    assert (words(ending) == 7).all()


def test_the_clock_goes_on():
    read = "mov.u32 %u, %clock; mov.u32 %d, %clock; sub.u32 %d, %d, %u; st.global.u32 [%p], %d; ret;"
    assert (words(read).view(np.int32) > 0).all()
    wide = "mov.u64 %w, %clock64; mov.u64 %v, %clock64; sub.u64 %w, %v, %w; cvt.u32.u64 %d, %w;"
    assert (words(f"{wide} st.global.u32 [%p], %d; ret;").view(np.int32) > 0).all()


def test_division_flushes_denormals_where_it_says_so_even_if_approximate():
    divide = "mov.f32 %f, 0f00400000; div.{}.f32 %f, %f, 0f3F800000; st.global.f32 [%p], %f; ret;"
    assert words(divide.format("rn"))[0] == 0x00400000
    assert words(divide.format("rn.ftz"))[0] == 0
    assert words(divide.format("full"))[0] == 0x00400000


STAGED = "cvta.to.global.u64 %v, %w; mov.u32 %u, box; mad.lo.u32 %u, %t, 4, %u; mov.u64 %w, numbers;"
STAGED += "mad.wide.u32 %w, %t, 4, %w;"


@pytest.mark.parametrize(
    ("copy", "expected"),
    [
        ("cp.async.ca.shared.global [%u], [%w], 4;", lambda t: t + 100),
        ("cp.async.ca.shared.global.L2::cache_hint [%u], [%w], 4, %v;", lambda t: t + 100),
        ("setp.lt.u32 %q, %t, 5; cp.async.ca.shared.global [%u], [%w], 4, %q;", lambda t: np.where(t < 5, 0, t + 100)),
        ("setp.lt.u32 %q, %t, 5; cp.async.ca.shared.global [%u], [%w], 4, !%q;", lambda t: np.where(t < 5, t + 100, 0)),
    ],
)
def test_asynchronous_copies_take_a_policy_or_a_predicate_that_ignores_the_source(copy, expected):
    numbers = f".global .align 4 .u32 numbers[32] = {{{', '.join(str(100 + i) for i in range(32))}}};"
    policy = "createpolicy.fractional.L2::evict_first.b64 %w, 0f3F800000;"
    after = "cp.async.wait_all; ld.shared.u32 %d, [%u]; st.global.u32 [%p], %d; ret;"
    given = words(f"{policy} {STAGED} {copy} {after}", numbers)
    np.testing.assert_array_equal(given, expected(np.arange(32)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (".reg .b128 %x; cvt.u64.u32 %x, %t;", r"opcode cvt.u64.u32 \(registers of type .b128\)"),
        (
            "mov.u32 %u, box; cp.async.ca.shared.global [%u], [0x100000000], 4;",
            r"opcode cp.async.ca.shared.global \(an absolute global address\)",
        ),
        ("vote.ballot.b32 %d, 1;", "opcode vote.ballot.b32"),
        ("redux.sync.add.f32 %f, %f, -1;", "opcode redux.sync.add.f32"),
        (
            "mov.u32 %u, box; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%u], %d;",
            r"opcode stmatrix.\S+ \(operand %d is no vector\)",
        ),
        ("call.uni helper, ();", r"opcode call.uni \(a call that was not inlined\)"),
    ],
)
def test_what_the_machine_lacks_is_named_when_it_is_reached(body, message):
    target = Buffer.from_array("out", np.zeros(32, np.uint32))
    with pytest.raises(UnsupportedError, match=message):
        run(entry(f"{body} ret;"), "test", WARP, [target])
    assert run(entry(f"bra OVER; {body} OVER: ret;"), "test", WARP, [target]).faults == []


@pytest.mark.parametrize("ending", ["trap;", "call.uni __assertfail, (%p, %p, %d, %p, %p);"])
def test_traps_and_failed_assertions_are_faults_of_the_thread(ending):
    target = Buffer.from_array("out", np.zeros(32, np.uint32))
    report = run(entry(f"setp.eq.u32 %q, %t, 3; @%q bra BAD; ret; BAD: {ending} ret;"), "test", WARP, [target])
    (fault,) = report.faults
    assert fault.kind == "trap"
    assert fault.thread == (3, 0, 0)
    with pytest.raises(MachineFault, match=r"thread \(3, 0, 0\) of block \(0, 0, 0\)"):
        report.raise_faults()


def test_a_report_without_faults_raises_nothing():
    report = run(entry("ret;"), "test", WARP, [Buffer.from_array("out", np.zeros(32, np.uint32))])
    report.raise_faults()


def test_an_address_in_no_buffer_is_told_as_a_number():
    text = f"{HEAD}.visible .entry test() {{ .reg .b32 %d; ld.global.u32 %d, [8192]; ret; }}"
    (fault,) = run(text, "test", WARP, []).faults
    assert fault.address == 8192
    assert "address 0x2000" in str(fault)


def test_shared_variables_are_named_in_a_race_mangled_or_not():
    store = "st.shared.u32 [{}+4], %t; ret;"
    declared = ".shared .align 4 .b8 _ZZ4testPfE4tile[64]; .shared .align 4 .b8 plain[64];"
    for name, shown in (("_ZZ4testPfE4tile", "(tile+4)"), ("plain", "(plain+4)")):
        target = Buffer.from_array("out", np.zeros(64, np.uint32))
        shape = Shape(grid=(1, 1, 1), block=(64, 1, 1))
        faults = run(entry(f"{declared} {store.format(name)}"), "test", shape, [target]).faults
        assert any(shown in str(fault) for fault in faults), [str(fault) for fault in faults]


def test_counters_of_half_precision_and_of_generic_accesses():
    body = "mov.b32 %d, 0; mov.b16 %h, 0; fma.rn.f16x2 %d, %d, %d, %d; fma.rn.f16 %h, %h, %h, %h;"
    target = Buffer.from_array("out", np.zeros(32, np.uint32), initialised=False)
    counters = run(entry(f"{body} st.u32 [%p], %d; ret;"), "test", WARP, [target]).counters
    assert counters.fma == 32 * 2 + 32
    (store,) = counters.instructions
    assert (store.space, store.sectors, store.ideal_sectors) == ("global", 4, 4)


def test_only_loads_at_aligned_addresses_are_counted_as_the_wide_one_an_assembler_makes():
    load = "mov.u32 %u, box; mad.lo.u32 %u, %t, 16, %u; st.shared.u32 [%u+{0}], %t; st.shared.u32 [%u+{1}], %t;"
    target = Buffer.from_array("out", np.zeros(32, np.uint32))
    for offsets, widths in (((0, 4), [8]), ((4, 8), [4, 4])):
        rows = run(entry(f"{load.format(*offsets)} ret;"), "test", WARP, [target]).counters.instructions
        assert [row.width for row in rows if row.space == "shared"] == widths


def test_a_launch_is_refused_where_it_names_blocks_or_records_what_cannot_be():
    target = Buffer.from_array("out", np.zeros(32, np.uint32))
    with pytest.raises(MachineFault, match=r"test: blocks \[0, 1\] are not all in a grid of 1"):
        run(entry("ret;"), "test", WARP, [target], blocks=[0, 1])
    with pytest.raises(MachineFault, match="test: 32 accesses, 31 can be recorded; run fewer blocks"):
        run(entry("st.global.u32 [%p], %t; ret;"), "test", WARP, [target], trace=31)


def test_a_tensor_map_that_skips_elements_is_refused():
    record = TensorMap(
        dtype="float32", address=0, shape=(64, 64), strides=(256,), box=(8, 8), element_strides=(2, 1), swizzle=0
    )
    text = f"{HEAD}.visible .entry test(.param .align 64 .b8 map[128]) {{ ret; }}"
    with pytest.raises(MachineFault, match="reads tensor maps of element strides 1 only"):
        run(text, "test", WARP, [Argument(data=bytes(128), tensor_maps=((0, record),))])


def test_what_belongs_to_no_statement_has_no_source():
    assert program(entry("st.global.u32 [%p], 7;"), "test").source(10**6) == ""


def test_a_buffer_takes_any_array_as_its_bytes():
    given = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    buffer = Buffer(name="x", data=given)
    np.testing.assert_array_equal(buffer.array(np.float32), given.reshape(-1))


def test_what_has_no_room_for_its_warpgroups_readers_is_refused():
    """Tensor Cores read on behalf of a warpgroup, which the machine counts as a further reader beside its warps."""
    sums = ", ".join(f"%s{i}" for i in range(4))
    wgmma = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{{sums}}}, %w, %w, %q, 1, 1, 0, 0;"
    text = entry(f".reg .f32 {sums}; setp.lt.u32 %q, %t, 9999; @%q bra OVER; {wgmma} OVER: ret;")
    target = Buffer.from_array("out", np.zeros(1024, np.uint32))
    assert run(text, "test", Shape(grid=(1, 1, 1), block=(800, 1, 1)), [target]).faults == []
    with pytest.raises(MachineFault, match=r"test: 801 threads a block; .* at most 800 where the kernel uses wgmma"):
        run(text, "test", Shape(grid=(1, 1, 1), block=(801, 1, 1)), [target])


def test_an_engine_of_another_layout_is_refused_and_not_called(monkeypatch):
    monkeypatch.setattr(engine, "COUNT", np.dtype([("warps", np.int64)]))
    with pytest.raises(BuildError, match=r"the engine's records are \(.*\) bytes, \(.* 8, .*\) are expected"):
        engine.engine.__wrapped__()


def test_without_a_description_of_the_processor_its_name_decides(monkeypatch):
    def unreadable(*_: object, **__: object) -> str:
        raise FileNotFoundError("/proc/cpuinfo")

    assert "model name" in engine._host() or "CPU part" in engine._host()
    monkeypatch.setattr(engine.Path, "read_text", unreadable)
    assert engine._host() == platform.processor()
