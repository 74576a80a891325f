"""Dispatch tables: what is written reads back, damage is a typed error, and stale kernels are named."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handwritten import table as tables
from handwritten.catalog import DISPATCHERS, KERNELS, get
from handwritten.table import SHIPPED, Entry, Table, Tuned, alignment_class, fingerprint, nearest, read, write
from kernel.contract import Problem
from kernel.errors import TableError

ENTRY = Entry(1024, 1024, 512, "rr", "float32", 16, {"v7_wide_tile": 10.0, "v2_block_tile": 12.5}, 9.5)


def made(**changes):
    values = {
        "track": "fp32_simt", "gpu": "NVIDIA H200", "sm_count": 132, "toolkit": "nvcc 13.0.88", "date": "2026-01-02",
        "revision": "abc", "method": "by hand",
        "kernels": {name: Tuned(fingerprint(get(name)), 2) for name in ("v7_wide_tile", "v2_block_tile")},
        "entries": (ENTRY,),
    }  # fmt: skip
    return Table(**{**values, **changes})


def test_what_is_written_reads_back(tmp_path):
    path = tmp_path / "new" / "nvidia-h200.fp32_simt.json"
    write(made(), path)
    found = read(path)
    assert dataclasses.replace(found, path=None, sha256="") == made()
    assert len(found.sha256) == 64
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    # The chosen kernel stays first even where another one's time is shorter: a duel may have settled it.
    swapped = dataclasses.replace(ENTRY, times_us={"v2_block_tile": 12.5, "v7_wide_tile": 10.0})
    write(made(entries=(swapped,)), path)
    assert list(read(path).entries[0].times_us) == ["v2_block_tile", "v7_wide_tile"]


def test_sustained_times_read_back_and_tables_without_them_stay_what_they_are(tmp_path):
    steady = dataclasses.replace(
        ENTRY, sustained_us={"v7_wide_tile": 10.5, "v2_block_tile": 13.0}, cublas_sustained_us=9.75
    )
    path = tmp_path / "nvidia-h200.fp32_simt.json"
    write(made(entries=(steady,)), path)
    (found,) = read(path).entries
    assert found == steady
    assert (found.window, found.x_cublas) == ("sustained", 9.75 / 10.5)
    assert (ENTRY.window, ENTRY.x_cublas) == ("burst", 0.95)
    kept = dataclasses.replace(steady, kept_from="2026-01-02 (revision old)")
    write(made(entries=(kept,)), path)
    assert read(path).entries == (kept,)
    # What was written before there were such windows: the same to the byte, so no hash changes.
    assert "sustained" not in made().text()
    for shipped in SHIPPED.glob("*.json"):
        assert read(shipped).text() == shipped.read_text(encoding="utf-8")


def damage(change):
    value = json.loads(made().text())
    change(value)
    return json.dumps(value)


DAMAGE = {
    "empty": "",
    "cut off": made().text()[:200],
    "a list": "[]",
    "another format": damage(lambda v: v.update(format=2)),
    "no entries": damage(lambda v: v.pop("entries")),
    "a track that is none": damage(lambda v: v.update(track="fp64")),
    "a kernel nobody listed": damage(lambda v: v["entries"][0]["us"].update(v9=1.0)),
    "a chosen kernel without a time": damage(lambda v: v["entries"][0].update(kernel="v9")),
    "no kernel at all": damage(lambda v: v["entries"][0].update(us={})),
    "a negative time": damage(lambda v: v["entries"][0]["us"].update(v7_wide_tile=-1)),
    "a time that is text": damage(lambda v: v["entries"][0]["us"].update(v7_wide_tile="__import__('os')")),
    "sustained times that are no object": damage(lambda v: v["entries"][0].update(sustained_us=[1.0])),
    "a sustained time of a kernel without another": damage(lambda v: v["entries"][0].update(sustained_us={"v9": 1.0})),
    "a sustained time below zero": damage(lambda v: v["entries"][0].update(sustained_us={"v7_wide_tile": -1.0})),
    "a sustained time of cuBLAS that is text": damage(lambda v: v["entries"][0].update(cublas_sustained_us="1")),
    "infinity": made().text().replace("10.0", "Infinity"),
    "nan": made().text().replace("10.0", "NaN"),
    "an extent of zero": damage(lambda v: v["entries"][0].update(m=0)),
    "an extent beyond 31 bits": damage(lambda v: v["entries"][0].update(m=2**31)),
    "an extent of many digits": made().text().replace("1024", "9" * 5000),
    "true for a number": damage(lambda v: v["entries"][0].update(m=True)),
    "an alignment of three": damage(lambda v: v["entries"][0].update(align=3)),
    "a layout that is none": damage(lambda v: v["entries"][0].update(layout="xy")),
    "the same problem twice": damage(lambda v: v["entries"].append(v["entries"][0])),
    "an origin that is no text": damage(lambda v: v["entries"][0].update(kept_from=3)),
    "no SMs": damage(lambda v: v.update(sm_count=0)),
    "nesting without end": "[" * 100_000,
    "a date that is a number": damage(lambda v: v.update(date=3)),
}


@pytest.mark.parametrize("text", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_a_typed_error_that_names_it(tmp_path, text):
    path = tmp_path / "nvidia-h200.fp32_simt.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TableError, match=r"nvidia-h200\.fp32_simt\.json"):
        read(path)


def test_bytes_that_are_no_text_and_files_that_are_too_large_or_missing(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(TableError, match="gemm-tracks tune"):
        read(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError):
        read(path)
    path.write_bytes(b" " * (tables.MAX_BYTES + 1))
    with pytest.raises(TableError, match="larger"):
        read(path)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_file_content_raises_anything_else(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(data)
    with pytest.raises(TableError):
        read(path)


def test_a_failed_write_leaves_the_old_table(tmp_path):
    path = tmp_path / "nvidia-h200.fp32_simt.json"
    write(made(), path)
    before = path.read_bytes()
    with pytest.raises(TableError):
        write(made(sm_count=0), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_changed_and_removed_kernels_are_told_apart():
    kernels = {**made().kernels, "v99_gone": Tuned("0" * 16), "v4_pad": Tuned("0" * 16)}
    assert made().stale(KERNELS) == {}
    assert made(kernels=kernels).stale(KERNELS) == {"v99_gone": "removed", "v4_pad": "changed"}


def test_a_fingerprint_follows_source_header_tile_and_nothing_else(tmp_path, monkeypatch):
    from handwritten import kernel as module

    (tmp_path / "v2_block_tile.cu").write_text('#include "part.cuh"\nint x;', encoding="utf-8")
    (tmp_path / "part.cuh").write_text("int y;", encoding="utf-8")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    kernel = get("v2_block_tile")
    first = fingerprint(kernel)
    assert fingerprint(dataclasses.replace(kernel, summary="another")) == first
    assert fingerprint(kernel.with_tile(BLOCK_K=32)) != first
    (tmp_path / "part.cuh").write_text("int z;", encoding="utf-8")
    second = fingerprint(kernel)
    (tmp_path / "v2_block_tile.cu").write_text("int x;", encoding="utf-8")
    assert len({first, second, fingerprint(kernel)}) == 3


def test_a_fallbacks_source_is_not_part_of_a_kernels_own(monkeypatch):
    h3 = get("h3_wide_tile")
    assert fingerprint(dataclasses.replace(h3, fallbacks=h3.fallbacks[-1:])) == fingerprint(h3)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, 16), ({"align_b": 8}, 8), ({"lda": 66}, 8), ({"ldc": 65}, 4), ({"align_a": 4, "ldb": 65}, 4)],
)
def test_alignment_class_is_the_least_of_bases_and_pitches(changes, expected):
    assert alignment_class(Problem(m=64, n=64, k=64).replace(**changes)) == expected


def test_alignment_class_of_half_precision():
    half = {"dtype_in": "float16", "dtype_out": "float16"}
    assert alignment_class(Problem(m=64, n=63, k=64, **half)) == 2
    assert alignment_class(Problem(m=64, n=64, k=62, **half)) == 4


@pytest.mark.parametrize("align", [16, 8, 4])
def test_an_entrys_problem_has_the_entrys_key(align):
    extents = {16: 64, 8: 66, 4: 65}[align]
    for entry in (Entry(64, 64, 64, "rr", "float32", align, {"a": 1.0}),
                  Entry(extents, extents, extents, "rr", "float32", align, {"a": 1.0})):  # fmt: skip
        problem = entry.problem("float32")
        assert (problem.m, problem.n, problem.k, problem.layout) == entry.key[:4]
        assert alignment_class(problem) == align


def test_the_nearest_table_is_the_devices_own_then_one_with_as_many_sms():
    own, twin, small = made(), made(gpu="NVIDIA H100", entries=()), made(gpu="NVIDIA H20", sm_count=78)
    assert nearest([small, twin, own], "NVIDIA H200", 132) is own
    assert nearest([small, twin], "NVIDIA GH200", 132) is twin
    assert nearest([own, small], "NVIDIA H100 PCIe", 114) is own
    assert nearest([own, small], "NVIDIA L20Y", 80) is small
    assert nearest([twin, own], "", 0) is own
    assert nearest([], "NVIDIA H200", 132) is None


def test_the_folder_is_the_variables_or_the_shipped_one_and_changes_are_seen(tmp_path, monkeypatch):
    assert {path.name for path in SHIPPED.glob("*.json")} == {f"nvidia-h200.{d.track}.json" for d in DISPATCHERS}
    monkeypatch.setenv("GEMM_TRACKS_TABLES", str(tmp_path / "none"))
    with pytest.raises(TableError, match="GEMM_TRACKS_TABLES"):
        tables.tables("fp32_simt")
    monkeypatch.delenv("GEMM_TRACKS_TABLES")
    monkeypatch.setattr(tables, "SHIPPED", tmp_path / "none")
    assert tables.tables("fp32_simt") == ()
    monkeypatch.setenv("GEMM_TRACKS_TABLES", str(tmp_path))
    assert tables.tables("fp32_simt") == ()
    path = tmp_path / "nvidia-h200.fp32_simt.json"
    write(made(), path)
    assert [t.revision for t in tables.tables("fp32_simt")] == ["abc"]
    write(made(revision="another"), path)
    assert [t.revision for t in tables.tables("fp32_simt")] == ["another"]
    path.rename(tmp_path / "nvidia-h200.fp16_tensor.json")
    with pytest.raises(TableError, match="its name says fp16_tensor"):
        tables.tables("fp16_tensor")


@pytest.mark.parametrize("dispatcher", DISPATCHERS, ids=lambda d: d.name)
def test_the_shipped_table_names_kernels_of_the_catalog(dispatcher):
    (shipped,) = tables.tables(dispatcher.track)
    assert shipped.gpu == "NVIDIA H200"
    assert shipped.sm_count == 132
    removed = [name for name, what in shipped.stale(dispatcher.candidates).items() if what == "removed"]
    assert not removed
    assert all(entry.dtype_out == dispatcher.dtype_out for entry in shipped.entries)
