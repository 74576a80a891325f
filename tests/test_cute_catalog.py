"""The CuTe DSL family without the DSL: launches, parameters, refusals, and each missing package named as itself."""

import ast
import dataclasses
import io
import json
import random
import struct
import sys
import types

import pytest

from compare import contenders as registry
from compare.contenders import contenders
from cutlass_ref.cute import emit
from cutlass_ref.cute.catalog import KERNELS, CuteHgemm, CuteSgemm, divisor, get
from cutlass_ref.cute.emit import Program
from kernel.contract import LAYOUTS, Pointers, Problem
from kernel.errors import BuildError, CatalogError, MissingToolError
from kernel.plan import arguments, plan

AT = Pointers(a=0x7F0000010000, b=0x7F0000020000, c=0x7F0000030000)
SGEMM = get("cute_sgemm")
HOPPER = get("cute_fp16_sm90_128x256x64_2x1_persistent")
AMPERE = get("cute_fp16_sm80_128x128x32_4stages")


def fp16(m, n, k, **fields):
    return Problem(m=m, n=n, k=k, dtype_in="float16", dtype_out="float16", **fields)


@pytest.fixture
def distributions(monkeypatch):
    """Replaces what is installed by a dictionary of distributions and versions."""

    def put(**versions):
        named = {name.replace("_", "-"): version for name, version in versions.items()}
        monkeypatch.setattr(emit, "_installed", lambda name: named.get(name, ""))

    return put


def test_every_kernel_is_a_contender_with_builds_of_its_own():
    names = {contender.name for contender in contenders(["cute_*"])}
    assert names == {kernel.name for kernel in KERNELS}
    units = [unit.name for kernel in KERNELS for unit in kernel.units()]
    assert len(units) == len(set(units))
    symbols = [program.symbol for kernel in KERNELS for program in kernel.programs()]
    assert len(symbols) == len(set(symbols))
    with pytest.raises(CatalogError, match="nearest name is cute_sgemm"):
        get("cute_sgem")


def test_the_builds_of_a_kernel_cover_every_layout():
    for kernel in KERNELS:
        wanted = kernel.layouts
        assert {unit.name.partition(".")[2][:2] for unit in kernel.units()} == set(wanted)
    assert SGEMM.layouts == HOPPER.layouts == AMPERE.layouts == LAYOUTS


@pytest.mark.parametrize(
    ("installed", "missing", "words"),
    [
        ({}, ["nvidia-cutlass-dsl", "nvidia-cutlass-operators"], "nvidia-cutlass-dsl .import name cutlass. is not"),
        ({"nvidia_cutlass": "4.2.0.0"}, ["nvidia-cutlass-dsl", "nvidia-cutlass-operators"], "nvidia-cutlass-dsl"),
        ({"nvidia_cutlass_dsl": "4.8.1"}, ["nvidia-cutlass-operators"], "^nvidia-cutlass-operators is not installed"),
        ({"nvidia_cutlass_operators": "0.3.0"}, ["nvidia-cutlass-dsl"], "cutlass_cppgen, is another package"),
        ({"nvidia_cutlass_dsl": "4.3.0", "nvidia_cutlass_operators": "0.3.0"}, [], "4.3.0 is installed.*for 4.8.1"),
    ],
)
def test_each_missing_package_is_named_as_itself(distributions, installed, missing, words):
    distributions(**installed)
    program = HOPPER.programs()[0]
    assert list(emit.missing(program)) == missing
    with pytest.raises(MissingToolError, match=words):
        emit.require(program)


def test_our_own_program_does_not_need_nvidias_kernels(distributions):
    distributions(nvidia_cutlass_dsl="4.8.1")
    emit.require(SGEMM.programs()[0])
    assert emit.missing(SGEMM.programs()[0]) == ()


def test_without_the_extra_the_kernels_are_listed_with_what_they_need(distributions, monkeypatch):
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    distributions()
    by_name = {contender.name: contender for contender in contenders(["cute_*", "cutlass_simt_128x128x5_s1_rr"])}
    assert "nvidia-cutlass-dsl" in by_name["cute_sgemm"].needs()
    assert "nvidia-cutlass-operators" not in by_name["cute_sgemm"].needs()
    assert "nvidia-cutlass-dsl, nvidia-cutlass-operators" in by_name[HOPPER.name].needs()
    assert "dsl" not in by_name["cutlass_simt_128x128x5_s1_rr"].needs()


def test_without_the_extra_a_build_says_why_and_the_rest_goes_on(distributions, monkeypatch, tmp_path):
    from compare.building import refused
    from kernel import build

    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path))
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    distributions()
    built = build.build_all(SGEMM.units(), jobs=1)
    assert all(isinstance(result, MissingToolError) for result in built.values())
    (contender,) = contenders(["cute_sgemm"])
    reason = refused(contender, contender.problem(256, 256, 256), built)
    assert "nvidia-cutlass-dsl (import name cutlass) is not installed" in reason


@pytest.mark.nvcc
def test_without_the_extra_a_check_leaves_them_out_and_checks_the_others(distributions, monkeypatch, tmp_path, capsys):
    from compare.cli import main

    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path))
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    distributions()
    asked = ["check", "--device", "cpu", "--shapes", "8x8x8", "--kernels"]
    assert main([*asked, "cute_sgemm,v0_naive"]) == 0
    assert "left out, as nothing here can make them: cute_sgemm" in capsys.readouterr().err
    assert main([*asked, "cute_sgemm"]) == 3


def test_a_program_that_the_dsl_refuses_is_a_build_error(monkeypatch, tmp_path, distributions):
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path))
    distributions(nvidia_cutlass_dsl="4.8.1")
    monkeypatch.setattr(emit.sys, "executable", "/bin/false")
    with pytest.raises(BuildError, match="refused cute_sgemm_rr_vec4"):
        emit.emit(SGEMM.program("rr", 4))


def test_ptx_without_the_programs_entry_is_refused_in_the_child(monkeypatch, tmp_path):
    program = Program(name="odd", entry="odd_rr", options=(("layout", "rr"),))
    given = {"program": dataclasses.asdict(program), "answer": str(tmp_path / "answer")}
    compiled = types.SimpleNamespace(compile_program=lambda program, scratch: {"ptx": ".entry another() { ret; }"})
    monkeypatch.setitem(sys.modules, "cutlass_ref.cute.odd", compiled)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(given)))
    with pytest.raises(RuntimeError, match=f"the DSL's PTX has no entry {program.symbol}"):
        emit.child()
    assert not (tmp_path / "answer").exists()


def test_the_word_in_an_entrys_name_is_a_recorded_property():
    assert SGEMM.program("rr", 4).symbol == "cute_sgemm_rr_vec4_cutlass_0"
    plain = get("cute_sgemm_plain").program("rr", 4)
    assert plain.symbol == "cute_sgemm_plain_rr_vec4_0"
    assert "cutlass" not in plain.symbol
    assert dict(plain.options) == dict(SGEMM.program("rr", 4).options)


def test_a_program_is_known_by_everything_that_decides_its_ptx(tmp_path, monkeypatch):
    program = SGEMM.program("rr", 4)
    assert program.text() != SGEMM.program("rr", 1).text()
    other = Program(name=program.name, entry=program.entry, options=program.options, marked=False)
    assert other.text() != program.text()
    (tmp_path / "sgemm.py").write_text(program.path.read_text() + "\n# changed\n")
    before = program.text()
    monkeypatch.setattr(emit, "HERE", tmp_path)
    assert program.text() != before


def test_programs_are_python_that_need_not_be_imported_to_be_read():
    for name in ("sgemm", "hgemm"):
        path = Program(name=name, entry="x", options=()).path
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


# --- launches and parameters ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "layout", "changes", "variant"),
    [
        ((128, 256, 8), "rr", {}, "vec4"),
        ((130, 130, 35), "rr", {}, "vec1"),
        ((130, 132, 35), "rr", {}, "vec4"),
        ((130, 132, 35), "cr", {}, "vec1"),
        ((132, 132, 35), "cc", {}, "vec4"),
        ((128, 256, 8), "rr", {"ldb": 257}, "vec1"),
        ((128, 256, 8), "rr", {"lda": 9}, "vec4"),
        ((128, 256, 8), "rr", {"align_c": 8}, "vec1"),
        ((128, 256, 8), "rr", {"align_a": 4}, "vec4"),
        ((128, 256, 8), "cr", {"align_a": 4}, "vec1"),
        ((128, 256, 8), "rc", {"align_b": 4}, "vec4"),
    ],
)
def test_sixteen_byte_accesses_are_taken_where_all_of_them_are_whole(shape, layout, changes, variant):
    m, n, k = shape
    problem = Problem(m=m, n=n, k=k, layout=layout, **changes)
    assert SGEMM.variant(problem) == variant
    (launch,) = SGEMM.launches(problem)
    assert launch.unit.name == f"cute_sgemm.{layout}_{variant}"
    assert launch.entry == f"cute_sgemm_{layout}_{variant}_cutlass_0"


def test_sgemm_launches_one_block_a_tile_and_refuses_nothing_but_size():
    (launch,) = SGEMM.launches(Problem(m=257, n=513, k=7))
    assert (launch.grid, launch.block) == ((3 * 3, 1, 1), (256, 1, 1))
    assert launch.dynamic_smem == 4 * 5 * 8 * (128 + 4 + 256)
    assert SGEMM.rejects(Problem(m=1, n=1, k=1, alpha=0.5, beta=2)) is None
    assert "grid" in SGEMM.rejects(Problem(m=2**31 - 1000, n=2**31 - 1000, k=1))
    assert "32 bits" in SGEMM.rejects(Problem(m=1, n=1, k=2**31 - 1))
    assert "data types" in SGEMM.rejects(fp16(8, 8, 8))


def test_sgemm_takes_the_parameters_of_the_ladder():
    problem = Problem(m=3, n=5, k=7, layout="cr", alpha=0.5, beta=2.0, lda=11, ldb=13, ldc=17)
    (values,) = arguments(SGEMM, problem, AT)
    assert [len(value.data) for value in values] == [8, 8, 8, 4, 4, 4, 8, 8, 8, 4, 4]
    packed = struct.unpack("<QQQiiiqqqff", b"".join(value.data for value in values))
    assert packed == (AT.a, AT.b, AT.c, 3, 5, 7, 11, 13, 17, 0.5, 2.0)


def test_a_divisor_divides_exactly():
    generator = random.Random(3)
    for number in [*range(1, 600), 2**30, 2**31 - 1, 12345677]:
        stated, multiplier, first, second = struct.unpack("<iIBBxx", divisor(number))
        assert stated == number
        for n in [0, 1, number - 1, number, number + 1, 2**31 - 1, *(generator.getrandbits(31) for _ in range(8))]:
            high = n * multiplier >> 32
            assert (high + (n - high >> first)) >> second == n // number


def test_the_hopper_kernel_is_persistent_and_its_maps_name_the_operands():
    (launch,) = HOPPER.launches(fp16(4096, 4096, 4096))
    assert (launch.grid, launch.cluster, launch.block) == ((2, 1, 66), (2, 1, 1), (384, 1, 1))
    (small,) = HOPPER.launches(fp16(300, 264, 64))
    assert small.grid == (2, 1, 2 * 2)
    problem = fp16(136, 264, 72, layout="rc", lda=80, ldb=88, ldc=272)
    (values,) = HOPPER.pack(problem, AT)
    a, b, c = (values[i].tensor_maps[0][1] for i in (0, 2, 4))
    assert (a.address, a.shape, a.strides, a.box, a.swizzle) == (AT.a, (72, 136), (160,), (64, 128), 128)
    assert (b.address, b.shape, b.strides, b.box, b.swizzle) == (AT.b, (72, 264), (176,), (64, 128), 128)
    assert (c.address, c.shape, c.strides, c.box, c.swizzle) == (AT.c, (264, 136), (544,), (32, 128), 64)
    assert [len(value.data) for value in values] == [128, 8, 128, 8, 128, 8, 1, 4, 4, 12, 12, 4, 4, 12, 12]
    assert struct.unpack("<ii", values[1].data) == (136, 72)


def test_boxes_are_shared_among_the_blocks_of_a_cluster():
    wide = get("cute_fp16_sm90_128x256x64_1x2_persistent")
    assert HOPPER.boxes("rr") == ((64, 128), (64, 32), (32, 128))
    assert HOPPER.boxes("cc") == ((64, 64), (64, 128), (32, 128))
    assert wide.boxes("rr") == ((64, 64), (64, 64), (32, 128))


@pytest.mark.parametrize("kernel", [HOPPER, AMPERE], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (fp16(64, 64, 64, alpha=2.0), "alpha = 2"),
        (fp16(64, 64, 64, beta=1.0), "beta = 1"),
        (fp16(64, 64, 61), "lda = 61"),
        (fp16(64, 60, 64, ldb=64, ldc=64), "n = 60"),
        (fp16(64, 64, 64, align_b=8), "B: its base address"),
        (Problem(m=64, n=64, k=64), "data types"),
        (fp16(2**31 - 8, 64, 64), "m = 2147483640; it is rounded up in 32 bits, at most"),
    ],
)
def test_nvidias_kernels_refuse_with_operand_and_rule(kernel, problem, words):
    assert words in kernel.rejects(problem)


def test_the_ampere_kernel_takes_tensors_and_its_own_raster():
    problem = fp16(2048, 2048, 1024, layout="cc")
    (launch,) = AMPERE.launches(problem)
    assert (launch.grid, launch.block, launch.dynamic_smem) == ((16 * 8, 2, 1), (128, 1, 1), 65536)
    (values,) = AMPERE.pack(problem, AT)
    assert [struct.unpack("<Qiiq", value.data) for value in values[:3]] == [
        (AT.a, 2048, 1024, 2048),
        (AT.b, 2048, 1024, 1024),
        (AT.c, 2048, 2048, 2048),
    ]
    assert struct.unpack("<i", values[3].data) == (8,)
    assert "k = 36" in AMPERE.rejects(fp16(64, 64, 36, lda=40))
    assert AMPERE.rejects(fp16(64, 65535 * 8 * 128, 64)) is None
    assert AMPERE.rejects(fp16(64, 65536 * 8 * 128, 64)) == (
        "n = 67108864 takes 65536 rows of blocks; a grid's y ends at 65535"
    )


def test_empty_and_scale_only_problems_never_need_the_dsl(distributions):
    distributions()
    assert plan(SGEMM, Problem(m=0, n=4, k=4)).launches == ()
    (launch,) = plan(SGEMM, Problem(m=4, n=4, k=4, alpha=0.0)).launches
    assert launch.unit.language == "cuda"


def test_the_registry_asks_packages_by_file_look_ups(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(emit.subprocess, "run", refuse)
    for contender in registry.contenders(["cute_*"]):
        contender.needs()
    assert all(isinstance(kernel, (CuteSgemm, CuteHgemm, type(AMPERE))) for kernel in KERNELS)
