"""The build cache: what its key sees, and that damage and rivals never leave a stale or torn artifact."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kernel import build, disassemble, gate, toolchain
from kernel.contract import Launch, Unit
from kernel.disassemble import entries, sass
from kernel.errors import BuildError, CatalogError, MissingToolError

pytestmark = pytest.mark.nvcc

SOURCE = """
#include "part.cuh"
extern "C" __global__ void __launch_bounds__(64) twice(float* p) { p[threadIdx.x] = FACTOR * p[threadIdx.x]; }
"""


@pytest.fixture
def unit(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    (tmp_path / "twice.cu").write_text(SOURCE)
    (tmp_path / "part.cuh").write_text("#define FACTOR 2.0f\n")
    return Unit(name="twice", arch="sm_90a", source=tmp_path / "twice.cu")


def folders(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "cache" / "artifacts").iterdir())


def test_a_build_leaves_everything_that_is_needed_later(unit, tmp_path):
    assert build.lookup(unit) is None
    built = build.artifact(unit)
    assert built.resources["twice"].registers > 0
    assert built.resources["twice"].max_threads == 64
    assert built.source.read_text() == SOURCE
    assert ".entry twice" in built.ptx.read_text()
    assert "Used" in built.log.read_text()
    assert entries(built.cubin) == ("twice",)
    assert "STG" in sass(built.cubin, "twice")
    with pytest.raises(CatalogError, match=r"thrice.*twice"):
        sass(built.cubin, "thrice")
    assert len(folders(tmp_path)) == 1


def test_machine_code_is_listed_once_and_again_where_it_cannot_be_kept(unit, tmp_path, monkeypatch):
    built = build.artifact(unit)
    first = sass(built.cubin)
    (kept,) = (tmp_path / "cache" / "sass").iterdir()
    listed = []
    run = disassemble._run
    monkeypatch.setattr(disassemble, "_run", lambda *words: listed.append(words) or run(*words))
    assert sass(built.cubin) == first
    assert "STG" in sass(built.cubin, "twice")
    copy = tmp_path / "copy.cubin"
    copy.write_bytes(built.cubin.read_bytes())
    assert sass(copy) == first
    assert not listed
    (kept / disassemble.KEPT).write_bytes(b"torn")
    assert sass(built.cubin) == first
    assert len(listed) == 1
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "sass").write_text("where a folder should be")
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "blocked"))
    assert sass(built.cubin) == first
    assert len(listed) == 2
    copy.write_bytes(b"no cubin")
    with pytest.raises(BuildError, match=r"nvdisasm.* refused .*copy.cubin"):
        sass(copy)
    with pytest.raises(BuildError, match=r"nvdisasm.* refused .*none.cubin"):
        sass(tmp_path / "none.cubin")


def test_a_second_look_compiles_nothing(unit, monkeypatch):
    first = build.artifact(unit)
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    build._memo.clear()
    assert build.artifact(unit) == first


def test_a_changed_header_flag_or_architecture_is_another_artifact(unit, tmp_path):
    keys = {build.artifact(unit).key}
    (tmp_path / "part.cuh").write_text("#define FACTOR 3.0f\n")
    assert build.lookup(unit) is None, "the memo must not serve a source that has changed"
    keys.add(build.artifact(unit).key)
    keys.add(build.artifact(Unit(name="twice", arch="sm_90a", source=unit.source, flags=("-DX=1",))).key)
    keys.add(build.artifact(Unit(name="twice", arch="sm_80", source=unit.source)).key)
    assert len(keys) == 4


@pytest.mark.parametrize("damage", ["truncate", "delete", "garbage", "mark"])
def test_a_damaged_entry_is_built_again(unit, damage):
    built = build.artifact(unit)
    good = built.cubin.read_bytes()
    build._memo.clear()
    if damage == "truncate":
        built.cubin.write_bytes(good[: len(good) // 2])
    elif damage == "delete":
        built.ptx.unlink()
    elif damage == "garbage":
        built.cubin.write_bytes(b"x" * len(good))
    else:
        (built.folder / ".complete").write_text("{")
    assert build.lookup(unit) is None
    again = build.artifact(unit)
    assert again.cubin.read_bytes() == good
    assert again.ptx.exists()


def test_a_build_that_dies_leaves_nothing(unit, tmp_path, monkeypatch):
    real = build._compile

    def killed(unit, text, folder):
        real(unit, text, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "_compile", killed)
    with pytest.raises(KeyboardInterrupt):
        build.artifact(unit)
    assert folders(tmp_path) == []
    monkeypatch.setattr(build, "_compile", real)
    assert build.artifact(unit).cubin.exists()


def test_rivals_both_end_with_a_whole_artifact(unit):
    code = (
        "import sys; from pathlib import Path; from kernel.build import artifact; from kernel.contract import Unit;"
        f"print(artifact(Unit(name='twice', arch='sm_90a', source=Path({str(unit.source)!r}))).cubin)"
    )
    rivals = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {process.communicate()[0].strip() for process in rivals}
    assert [process.returncode for process in rivals] == [0, 0, 0]
    assert len(paths) == 1
    assert Path(paths.pop()).exists()


def test_threads_share_one_build(unit):
    results = []
    threads = [threading.Thread(target=lambda: results.append(build.artifact(unit).key)) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(results) == 3
    assert len(set(results)) == 1


def test_a_refused_source_carries_the_compilers_word(unit, tmp_path):
    (tmp_path / "twice.cu").write_text("nonsense;")
    with pytest.raises(BuildError, match=r"twice: nvcc .* refused it: .*error") as caught:
        build.artifact(unit)
    assert "nonsense" in caught.value.log
    events = []
    results = build.build_all([unit], progress=events.append)
    assert isinstance(results["twice"], BuildError)
    assert events[0].error is results["twice"]


def test_a_bundle_rules_where_there_is_no_compiler(unit, tmp_path, monkeypatch):
    built = build.artifact(unit)
    extra = tmp_path / "library.so"
    extra.write_bytes(b"library")
    bundle = build.write_bundle([unit], tmp_path / "bundle", {"library.so": extra})
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("GEMM_TRACKS_BUNDLE", str(bundle))

    def absent(name):
        raise MissingToolError(name)

    monkeypatch.setattr(build, "find", absent)
    found = build.artifact(unit)
    assert found.cubin.read_bytes() == built.cubin.read_bytes()
    assert found.folder.is_relative_to(bundle)
    assert build.bundled_file("library.so").read_bytes() == b"library"
    (tmp_path / "part.cuh").write_text("#define FACTOR 5.0f\n")
    with pytest.raises(MissingToolError):
        build.artifact(unit)


def test_a_damaged_bundle_is_named(unit, tmp_path, monkeypatch):
    bundle = build.write_bundle([unit], tmp_path / "bundle")
    monkeypatch.setenv("GEMM_TRACKS_BUNDLE", str(bundle))
    (cubin,) = bundle.glob("twice-*/kernel.cubin")
    cubin.unlink()
    build._memo.clear()
    with pytest.raises(BuildError, match=r"twice-\w+ is damaged; write the bundle again"):
        build.lookup(unit)
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE")
    assert build.write_bundle([unit], bundle) == bundle
    monkeypatch.setenv("GEMM_TRACKS_BUNDLE", str(bundle))
    build._memo.clear()
    assert build.lookup(unit).folder.parent == bundle
    build._memo.clear()
    (bundle / "manifest.json").write_text("{")
    with pytest.raises(BuildError, match="manifest"):
        build.lookup(unit)


def test_nothing_is_kept_of_an_artifact_with_a_file_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    unit = Unit(name="sent", arch="sm_90a", source=lambda: SOURCE)
    with pytest.raises(BuildError, match="sent came with a file outside its folder; nothing of it was kept"):
        build.keep(unit, {build.RECORD: b"{}", "../kernel.cubin": b""})
    assert not list(tmp_path.rglob("kernel.cubin"))


def test_ptx_that_the_assembler_refuses_carries_its_word(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    text = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry odd() { never.heard.of; ret; }\n"
    unit = Unit(name="odd", arch="sm_90a", source=lambda: text, language="ptx", headers="a compiler 1.0")
    with pytest.raises(
        BuildError, match=r"odd: ptxas \S+ .*refused the PTX of a compiler 1.0: .*line 4; error"
    ) as raised:
        build.artifact(unit)
    assert "never" in raised.value.log
    assert not list((tmp_path / "cache" / "artifacts").glob("*"))


def test_an_emitted_source_is_found_without_emitting_it_again(unit, tmp_path):
    emitted = Unit(
        name="emitted", arch="sm_90a", source=lambda: SOURCE.replace('#include "part.cuh"', "#define FACTOR 1")
    )
    built = build.artifact(emitted)
    build._memo.clear()
    silent = Unit(name="emitted", arch="sm_90a", source=lambda: pytest.fail("emitted again"))
    assert build.lookup(silent) == built


def test_the_record_says_what_was_built(unit):
    record = json.loads((build.artifact(unit).folder / build.RECORD).read_text())
    assert record["compiler"] == str(toolchain.find("nvcc"))
    assert record["arch"] == "sm_90a"
    assert record["seconds"] > 0


def test_the_gate_refuses_what_must_not_be_timed(unit):
    built = build.artifact(unit)

    def objections(threads, entry="twice"):
        return gate.objections(Launch(unit=unit, entry=entry, grid=(1, 1, 1), block=(threads, 1, 1)), built)

    assert objections(64) == ()
    assert "bounded to 64" in objections(65)[0]
    assert "no entry other" in objections(64, "other")[0]
    greedy = dataclasses.replace(built.resources["twice"], registers=250, max_threads=0)
    built = dataclasses.replace(built, resources={"twice": greedy})
    assert objections(256) == ()
    assert objections(288) == ("twice needs 250 registers x 288 threads, more than the 65536 of an SM",)


def test_spills_are_read_and_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "spill.cu"
    source.write_text("""
    extern "C" __global__ void __launch_bounds__(1024) spill(float* p) {
        float r[200];
        #pragma unroll
        for (int i = 0; i < 200; ++i) r[i] = p[i * 1024 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 200; ++i) p[(199 - i) * 1024 + threadIdx.x] = r[i] * r[(i * 7) % 200];
    }""")
    unit = Unit(name="spill", arch="sm_90a", source=source)
    built = build.artifact(unit)
    assert built.resources["spill"].spill_bytes > 0
    launch = Launch(unit=unit, entry="spill", grid=(1, 1, 1), block=(1024, 1, 1))
    assert "spills" in gate.objections(launch, built)[0]


def test_a_missing_tool_says_where_it_was_looked_for_and_how_to_get_it(monkeypatch):
    monkeypatch.setattr(toolchain, "candidates", lambda name: iter(()))
    toolchain.find.cache_clear()
    try:
        with pytest.raises(
            MissingToolError, match=r"nvdisasm.*CUDA_HOME/bin and PATH.*pip install nvidia-cuda-nvdisasm"
        ):
            toolchain.find("nvdisasm")
    finally:
        toolchain.find.cache_clear()


def test_a_read_only_home_falls_back_to_a_private_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("GEMM_TRACKS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no-such-place")
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))
    root = build.cache_root()
    assert root.parent == tmp_path
    assert root.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(build.os, "getuid", lambda: root.stat().st_uid + 1)
    with pytest.raises(
        BuildError, match=r"no-such-place\S* cannot be written and .* belongs to another user; set GEMM"
    ):
        build.cache_root()


def test_what_killed_builds_left_is_swept_and_rivals_keep_the_whole_folder(tmp_path, monkeypatch):
    from kernel import build

    (tmp_path / ".making-gone").symlink_to(tmp_path / "swept by another process")
    old, fresh = tmp_path / ".making-old", tmp_path / ".making-fresh"
    for folder in (old, fresh):
        folder.mkdir()
    os.utime(old, (0, 0))
    build._sweep(tmp_path)
    assert (old.exists(), fresh.exists()) == (False, True)

    torn = tmp_path / "torn"
    (torn / "part").mkdir(parents=True)
    (fresh / "kernel.cubin").write_bytes(b"whole")
    build._put_in_place(fresh, torn)
    assert (torn / "kernel.cubin").read_bytes() == b"whole"
    assert not list(tmp_path.glob(".discarded-*"))

    late = tmp_path / ".making-late"
    late.mkdir()
    monkeypatch.setattr(build, "_is_whole", lambda folder: True)
    build._put_in_place(late, torn)
    assert (torn / "kernel.cubin").read_bytes() == b"whole", "who was first stays"
    monkeypatch.setattr(build, "_is_whole", lambda folder: False)
    with pytest.raises(BuildError, match="could not be put in place"):
        build._put_in_place(tmp_path / "gone", tmp_path / "nowhere")
