"""Figures: drawn from rows, refused in words where there is nothing to draw."""

import itertools
import sys

import pytest

from compare import code_facts, plots, runs
from compare.cli import main
from kernel.errors import UsageError
from tests.rows_for_reports import full_run, skipped, timed

pytest.importorskip("matplotlib")


@pytest.fixture
def run(tmp_path):
    def record(rows):
        provenance = {"gpu": {"name": "Some GPU", "sm_count": 7}, "date": "2031-02-03", "revision": "r"}
        writer = runs.RunWriter(tmp_path / "run", provenance)
        writer.add("a", rows)
        writer.finish(complete=True)
        return str(tmp_path / "run")

    return record


def figure_of(what, rows):
    from matplotlib.figure import Figure

    figure = Figure()
    plots.FIGURES[what](plots.Source(rows, {"gpu": {"name": "NVIDIA H200"}}, {}), figure)
    return figure.axes


def with_tiles():
    return [{**row, "tile": "128x128x16"} for row in full_run()]


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_tracks_hold_every_family_the_peaks_and_the_gaps():
    (axes,) = figure_of("tracks", full_run())
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [
        "hand-written", "CUTLASS", "cuBLAS", "cuBLAS",
        "the ladder, v0 to v7", "same track, v7 to cuBLAS SGEMM", "next track, cuBLAS SGEMM to FP16",
    ]  # fmt: skip
    marks = [float(mark.get_offsets()[0][0]) for mark in axes.collections if len(mark.get_offsets())]
    assert sorted(round(mark, 1) for mark in marks if mark > 0) == [5.0, 48.0, 49.0, 49.5, 50.0, 600.0]
    assert axes.get_xscale() == "log"
    for text in ("peak 100.0", "peak 1000.0", "2.0 %", "12.0 x", "49.0  0.980 x"):
        assert text in words(axes)


def test_no_two_labels_of_the_recorded_roofline_overlap():
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    folder = runs.locate("latest")
    run, rows = runs.read_run(folder)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    plots.draw_roofline(plots.Source(rows, run, code_facts.read(folder)), figure)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = {(text.get_text(), text.get_position()): Text.get_window_extent(text) for text in axes.texts}
    assert len(boxes) > 20
    for (one, first), (other, second) in itertools.combinations(boxes.items(), 2):
        assert not first.overlaps(second), (one, other)
    shown = {name for text, _ in boxes for name in text.replace(", ", "\N{EN DASH}").split("\N{EN DASH}")}
    assert {"v0", "v1", "v11", "v17", "h0", "h5", "s1"} <= shown, shown
    assert shown & {"v20", "v21"}, "the fastest, alone or at an end of a range"
    assert not any("dispatch" in name for name in shown)


def test_a_label_without_room_is_left_out_and_one_further_off_has_a_line():
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure(figsize=(2, 2))
    axes = figure.add_subplot()
    crowd = [(0.5, 0.5, f"label {place}") for place in range(60)]
    plots._label_apart(figure, axes, crowd, [(0.5, 0.5)])
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without their lines
    assert 5 < len(boxes) < 60
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    led = [text for text in axes.texts if text.arrow_patch is not None]
    assert 0 < len(led) < len(boxes)


def test_a_figure_can_go_to_stdout(run, capfdbinary, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", open(1, "w", closefd=False))  # noqa: SIM115 - the process's own
    folder = run(with_tiles())
    before = sorted(tmp_path.iterdir())
    assert main(["plot", folder, "-w", "ladder", "-o", "-"]) == 0
    assert main(["plot", folder, "-w", "ladder", "-o", "-", "-f", "svg"]) == 0
    out = capfdbinary.readouterr().out
    assert out.startswith(b"\x89PNG")
    assert out.rstrip().endswith(b"</svg>")
    assert sorted(tmp_path.iterdir()) == before


def test_the_ladder_shows_fractions_of_cublas():
    (axes,) = figure_of("ladder", full_run())
    assert [round(bar.get_height(), 2) for bar in axes.patches] == [0.1, 0.98]


def test_sizes_have_a_panel_for_each_track_and_a_line_for_each_family():
    fp32, _fp16 = figure_of("sizes", full_run())
    _, labels = fp32.get_legend_handles_labels()
    assert labels == ["cuBLAS", "hand-written, fastest", "CUTLASS, fastest", "CUTLASS, default"]


def test_the_roofline_names_rungs_and_roofs():
    (axes,) = figure_of("roofline", with_tiles())
    assert {"v0", "v7", "FP32 SIMT peak 100.0", "FP16 Tensor Core peak 1000.0"} <= set(words(axes))


@pytest.mark.parametrize("what", plots.FIGURES)
@pytest.mark.parametrize("form", plots.FORMATS)
def test_every_figure_is_written_in_every_format(what, form, run, tmp_path, capsys):
    target = tmp_path / f"figure.{form}"
    assert main(["plot", run(with_tiles()), "--what", what, "--out", str(target)]) == 0
    head = target.read_bytes()[:200]
    assert {"png": b"PNG", "svg": b"<?xml", "pdf": b"%PDF"}[form] in head


@pytest.mark.parametrize("what", plots.FIGURES)
def test_nothing_to_draw_is_said_in_words(what):
    with pytest.raises(UsageError):
        figure_of(what, [skipped("v0", "handwritten", "fp32_simt", "no GPU")])


def test_a_run_without_the_ladder_or_with_an_unknown_figure_is_refused(run, capsys):
    with pytest.raises(UsageError):
        figure_of("ladder", [timed("cublas_sgemm", "cublas", "fp32_simt", 50.0)])
    assert main(["plot", "nowhere", "--what", "tracks"]) == 2
    assert main(["plot", "nowhere", "--what", "pie"]) == 2
    assert main(["plot", "nowhere", "--format", "gif"]) == 2


def test_a_ceiling_that_was_measured_is_a_dotted_line_beside_the_peak():
    from matplotlib.figure import Figure

    def dotted(run):
        figure = Figure()
        plots.FIGURES["tracks"](plots.Source(full_run(), {"gpu": {"name": "NVIDIA H200"}, **run}, {}), figure)
        lines = [one for one in figure.axes[0].collections if hasattr(one, "get_segments")]
        return [one.get_segments()[0][0][0] for one in lines if one.get_linewidth()[0] == 0.8]

    ceiling = {"track": "fp32_simt", "instruction": "ffma", "window": "sustained", "tflops": 57.5}
    assert 57.5 in dotted({"ceilings": [ceiling]})
    assert 57.5 not in dotted({})


def test_without_matplotlib_the_command_says_what_to_install(run, monkeypatch, capsys):
    folder = run(full_run())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", folder]) == 3
    assert "pip install 'gemm-tracks[plot]'" in capsys.readouterr().err


def test_two_formats_at_once_are_refused_and_an_unknown_ending_too(run, tmp_path, capsys):
    folder = run(full_run())
    assert main(["plot", folder, "--format", "svg", "--out", str(tmp_path / "x.png")]) == 2
    assert "disagree" in capsys.readouterr().err
    assert main(["plot", folder, "--out", str(tmp_path / "x.gif")]) == 2
    assert "known formats" in capsys.readouterr().err
    assert main(["plot", folder, "--format", "svg", "--out", str(tmp_path / "picture")]) == 0
    assert b"<?xml" in (tmp_path / "picture").read_bytes()[:99]
