"""Runs on disk: the format of rows.csv, resuming, latest, provenance."""

import gzip
import json
from pathlib import Path

import pytest

import compare
from compare import runs
from compare.driver import Device, Driver
from compare.rows import COLUMNS, NAMES, row
from kernel.errors import RunFileError
from tests.rows_for_reports import full_run, timed

H200 = Driver(
    version="13.0",
    devices=(
        Device(
            ordinal=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132, memory_bytes=2**37, l2_bytes=2**25
        ),
    ),
    problem="",
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMM_TRACKS_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("GEMM_TRACKS_REVISION", "0123456789")
    return tmp_path / "results"


def provenance():
    return runs.provenance(["gemm-tracks", "compare", "--record"], H200, "nvcc 13.0.88")


def test_rows_survive_the_round_trip_with_their_types():
    given = [
        *full_run(),
        row(
            name='odd, "quoted"',
            family="cute_dsl",
            track="tf32_tensor",
            layout="cc",
            m=1,
            n=2,
            k=0,
            ok=True,
            stages=3,
            spill_bytes=0,
            time_us=1234567.0,
            skipped_because="a\nb",
        ),
    ]
    back = runs.parse_rows(runs.format_rows(given), "memory")
    assert [r["name"] for r in back] == [r["name"] for r in given]
    for before, after in zip(given, back, strict=True):
        for column in COLUMNS:
            a, b = before[column.name], after[column.name]
            if column.type == "float" and a is not None:
                assert b == pytest.approx(a, rel=1e-6), column.name
            else:
                assert (b or None) == (a or None) if column.type == "str" else b == a, column.name


def test_cells_are_written_as_the_design_says():
    head, line = runs.format_rows([timed("v0", "handwritten", "fp32_simt", 5.0, registers=40)]).splitlines()
    assert tuple(head.split(",")) == NAMES
    cells = dict(zip(NAMES, line.split(","), strict=True))
    assert cells["registers"] == "40"
    assert cells["ok"] == "true"
    assert cells["unstable"] == "false"
    assert cells["sm_clock_mhz"] == ""
    assert cells["m"] == "4096"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("name,m\nv0,1\n", "columns missing"),
        (",".join(NAMES) + ",more\n", "unknown: ['more']"),
        (",".join(NAMES) + "\n" + ",".join("yes" if n == "ok" else "" for n in NAMES) + "\n", "line 2"),
        (",".join(NAMES) + "\n" + ",".join("1.5" if n == "m" else "" for n in NAMES) + "\n", "line 2"),
        (",".join(NAMES) + "\nv0\n", "line 2"),
        (",".join(NAMES) + "\n" + "," * len(NAMES) + "\n", "line 2: the line has more cells than columns"),
        ("x" * 200_000 + "\n", "rows.csv: field larger than field limit"),
    ],
)
def test_a_damaged_table_is_refused_with_its_place(text, what):
    with pytest.raises(RunFileError) as caught:
        runs.parse_rows(text, "rows.csv")
    assert what in str(caught.value)


def test_an_interrupted_run_resumes_and_loses_only_the_unfinished_shard(root):
    folder = root / "nvidia-h200" / "x"
    writer = runs.RunWriter(folder, provenance())
    writer.add("a", [timed("v0", "handwritten", "fp32_simt", 5.0)], [{"name": "v0", "times_us": [1.0, 2.0]}])
    with (folder / "journal.jsonl").open("a") as stream:
        stream.write('{"shard": "b", "rows": [{"na')  # the power went
    again = runs.RunWriter(folder, provenance())
    assert again.finished == {"a"}
    again.add("b", [timed("v1", "handwritten", "fp32_simt", 6.0)])
    again.finish(complete=True)
    run, rows = runs.read_run(folder)
    assert [r["name"] for r in rows] == ["v0", "v1"]
    assert run["complete"] is True
    assert run["gpu"]["sm_count"] == 132
    assert not (folder / "journal.jsonl").exists()
    samples = json.loads(gzip.decompress((folder / "samples.json.gz").read_bytes()))
    assert samples == [{"name": "v0", "times_us": [1.0, 2.0]}]
    with pytest.raises(RunFileError, match="finished run"):
        runs.RunWriter(folder, provenance())


def test_a_partial_run_can_be_read_and_still_resumes(root):
    folder = root / "nvidia-h200" / "x"
    writer = runs.RunWriter(folder, provenance())
    writer.add("a", [timed("v0", "handwritten", "fp32_simt", 5.0)])
    writer.finish(complete=False)
    run, rows = runs.read_run(folder)
    assert (run["complete"], len(rows)) == (False, 1)
    assert runs.RunWriter(folder, provenance()).finished == {"a"}


def test_a_run_never_goes_on_with_another_revision_or_gpu(root, monkeypatch):
    folder = root / "nvidia-h200" / "x"
    runs.RunWriter(folder, provenance())
    monkeypatch.setenv("GEMM_TRACKS_REVISION", "ffffffffff")
    with pytest.raises(RunFileError, match="revision"):
        runs.RunWriter(folder, provenance())


def test_only_complete_runs_move_latest(root):
    writer = runs.RunWriter(root / "nvidia-h200" / "2031-01-01-a", provenance())
    writer.add("a", full_run())
    partial = writer.finish(complete=False)
    with pytest.raises(RunFileError, match="partial"):
        runs.make_latest(partial)
    assert runs.latest() is None
    complete = writer.finish(complete=True)
    link = runs.make_latest(complete)
    assert str(link.readlink()) == "2031-01-01-a"  # relative, so that the folder can be moved and committed
    assert runs.latest() == complete.resolve()
    newer = runs.RunWriter(root / "nvidia-h200" / "2031-01-02-b", provenance())
    newer.finish(complete=True)
    runs.make_latest(newer.folder)
    assert runs.latest() == newer.folder.resolve()
    link.unlink()  # as in an installed package
    assert runs.latest() == newer.folder.resolve()
    assert runs.locate("latest") == newer.folder.resolve()


def test_an_unfinished_record_run_of_this_revision_is_taken_up_again(root):
    fresh = runs.record_folder(provenance())
    assert fresh.parent == root / "nvidia-h200"
    assert fresh.name.endswith("-0123456789")
    begun = root / "nvidia-h200" / "2030-12-31-0123456789"
    runs.RunWriter(begun, provenance())
    assert runs.record_folder(provenance()) == begun


def test_runs_made_elsewhere_are_adopted(root, tmp_path):
    writer = runs.RunWriter(tmp_path / "carried", provenance())
    writer.add("a", full_run())
    writer.finish(complete=True)
    target = runs.adopt(tmp_path / "carried")
    assert target.parent == root / "nvidia-h200"
    assert runs.latest() == target.resolve()
    with pytest.raises(RunFileError, match="there already"):
        runs.adopt(tmp_path / "carried")


def test_a_partial_run_that_is_adopted_says_what_it_lacks(root, tmp_path):
    writer = runs.RunWriter(tmp_path / "carried", provenance())
    writer.add("a", full_run())
    writer.finish(complete=False)
    target = runs.adopt(tmp_path / "carried", "FP16 above 8192")
    assert runs.latest() == target.resolve()
    assert runs.read_run(target)[0]["partial"] == "FP16 above 8192"
    assert runs.read_run(tmp_path / "carried")[0]["complete"] is False


def test_a_folder_below_a_file_cannot_be_a_run_and_says_so(root, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFileError, match=r"file/run cannot be written \(Not a directory\); 0 finished groups"):
        runs.RunWriter(tmp_path / "file" / "run", provenance())


def test_a_journal_of_another_format_is_left_as_it_is(root, tmp_path):
    journal = tmp_path / "run" / runs.JOURNAL_FILE
    journal.parent.mkdir()
    text = json.dumps({"format": runs.FORMAT + 1, "run": {}}) + "\n"
    journal.write_text(text)
    with pytest.raises(RunFileError, match=f"not a journal of format {runs.FORMAT}; remove it to start over"):
        runs.RunWriter(journal.parent, provenance())
    assert journal.read_text() == text


@pytest.mark.parametrize("text", ["{}", "[1]", "null"])
def test_samples_that_are_no_list_of_sets_are_refused(root, text):
    writer = runs.RunWriter(root / "nvidia-h200" / "x", provenance())
    writer.add("a", full_run(), [{"name": "v0", "times_us": [1.0]}])
    folder = writer.finish(complete=True)
    assert runs.read_samples(folder) == [{"name": "v0", "times_us": [1.0]}]
    (folder / runs.SAMPLES_FILE).write_bytes(gzip.compress(text.encode()))
    with pytest.raises(RunFileError, match="a list of samples is needed"):
        runs.read_samples(folder)


def test_an_installed_copy_reads_the_runs_that_ship_with_it(tmp_path, monkeypatch):
    monkeypatch.delenv("GEMM_TRACKS_RESULTS", raising=False)
    assert runs.results_root() == runs.repository() / "results"
    monkeypatch.setattr(runs, "repository", lambda: tmp_path)
    assert runs.results_root() == Path(runs.__file__).parent / "recorded"


def test_a_row_has_the_columns_there_are_and_no_others():
    assert tuple(row(name="v0")) == NAMES
    with pytest.raises(KeyError, match="no such column: gflops, nmae"):
        row(nmae="v0", gflops=1.0)


def test_a_missing_run_says_where_it_was_looked_for(root):
    with pytest.raises(RunFileError) as caught:
        runs.read_run("latest")
    assert str(root / "nvidia-h200" / "latest") in str(caught.value)


def test_load_run_gives_a_frame_with_typed_columns(root):
    pandas = pytest.importorskip("pandas")
    writer = runs.RunWriter(root / "nvidia-h200" / "2031-01-01-a", provenance())
    writer.add("a", full_run())
    runs.make_latest(writer.finish(complete=True))
    frame = compare.load_run()
    assert tuple(frame.columns) == NAMES
    assert frame["m"].dtype == "Int64"
    assert frame["ok"].dtype == "boolean"
    assert pandas.isna(frame.loc[frame["name"] == "cutlass_fp16_c", "ok"]).all()
    assert frame.attrs["run"]["gpu"]["name"] == "NVIDIA H200"
    assert frame.query("name == 'v7_best' and window == 'sustained'")["tflops"].tolist() == [49.0]


def test_provenance_names_everything_a_reader_needs_and_no_folder_of_this_machine(root, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1234")
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(Path.home() / "somewhere"))
    found = provenance()
    assert found["gpu"]["slug"] == "nvidia-h200"
    assert found["driver_cuda"] == "13.0"
    assert found["toolkit"] == "nvcc 13.0.88"
    assert found["revision"] == "0123456789"
    assert found["packages"]["numpy"]
    assert found["environment"]["CUDA_VISIBLE_DEVICES"] == "GPU-1234"
    assert found["environment"]["GEMM_TRACKS_CACHE"] == "~/somewhere"
    assert str(Path.home()) not in json.dumps(found)


def test_revision_of_a_checkout_is_gits(monkeypatch):
    monkeypatch.delenv("GEMM_TRACKS_REVISION", raising=False)
    if not (runs.repository() / ".git").exists():
        pytest.skip("not a git checkout")
    head = runs.revision()
    assert len(head.removesuffix("-dirty")) == 10
    int(head.removesuffix("-dirty"), 16)
