"""Figures: drawn from rows, refused in words where there is nothing to draw."""

import pytest

from compare import plots, runs
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
    plots.FIGURES[what](rows, figure)
    return figure.axes[0]


def test_tracks_hold_the_fastest_of_each_family_and_the_peaks():
    axes = figure_of("tracks", full_run())
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [label.split("  ")[0] for label in labels] == [
        "cublas_sgemm", "v7_best", "cutlass_simt_b", "datasheet peak", "cublas_fp16", "datasheet peak",
    ]  # fmt: skip
    assert [round(bar.get_width(), 1) for bar in axes.patches] == [50.0, 49.0, 49.5, 100.0, 600.0, 1000.0]
    assert axes.get_xscale() == "log"


def test_the_ladder_shows_fractions_of_cublas():
    axes = figure_of("ladder", full_run())
    assert [round(bar.get_height(), 2) for bar in axes.patches] == [0.1, 0.98]


def test_sizes_have_a_line_for_everything_timed_at_two_sizes():
    axes = figure_of("sizes", full_run())
    _, labels = axes.get_legend_handles_labels()
    assert "v7_best" in labels
    assert "cutlass_fp16_c" not in labels


@pytest.mark.parametrize("what", plots.FIGURES)
@pytest.mark.parametrize("form", plots.FORMATS)
def test_every_figure_is_written_in_every_format(what, form, run, tmp_path, capsys):
    target = tmp_path / f"figure.{form}"
    assert main(["plot", run(full_run()), "--what", what, "--format", form, "--out", str(target)]) == 0
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
