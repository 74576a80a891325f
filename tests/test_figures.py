"""What figures show, as data: the right kernels, gaps and intervals; and the parts that they are drawn with."""

import math
import xml.etree.ElementTree as ET

import pytest

from compare import charts, figures
from compare.drawing import Drawing, decades, grouped, linear, logarithmic, round_steps
from compare.report import Shape
from tests.rows_for_reports import full_run, skipped, timed

RUN = {"gpu": {"name": "NVIDIA H200"}, "ceilings": [{"track": "fp32_simt", "window": "sustained", "tflops": 64.0}]}
CUBE = Shape(4096, 4096, 4096)


def test_the_track_picture_has_every_kernel_its_peak_and_its_ceiling():
    picture = figures.track_picture(full_run(), CUBE, RUN)
    fp32, fp16 = picture.lanes
    assert [strip.family for strip in fp32.strips] == ["handwritten", "cutlass", "cublas"]
    assert {row["name"] for row in picture.rows} == {
        "v0_naive", "v7_best", "cutlass_simt_a_default", "cutlass_simt_b", "cublas_sgemm", "cublas_fp16",
    }  # fmt: skip
    assert fp32.peak == pytest.approx(100.0)
    assert fp32.ceiling == 64.0
    assert fp16.ceiling is None
    assert picture.window == "sustained"


def test_the_gaps_are_those_of_the_fastest_rows():
    ladder, same, following = figures.track_picture(full_run(), CUBE, RUN).gaps
    assert (ladder.start["name"], ladder.end["name"], ladder.size) == ("v0_naive", "v7_best", "9.8 x")
    assert (same.end["name"], same.size) == ("cublas_sgemm", "2.0 %")
    assert (following.end["name"], following.size) == ("cublas_fp16", "12.0 x")


def test_a_kernel_ahead_of_cublas_is_called_ahead():
    rows = [timed("cublas_sgemm", "cublas", "fp32_simt", 50.0), timed("v9_fast", "handwritten", "fp32_simt", 51.0)]
    (gap,) = figures.track_picture(rows, CUBE, RUN).gaps
    assert gap.size == "2.0 % ahead"


def test_a_burst_never_stands_for_a_family_that_was_timed_sustained():
    rows = [
        timed("h1", "handwritten", "fp16_tensor", 900.0, window="burst"),
        timed("h2", "handwritten", "fp16_tensor", 700.0, window="sustained"),
    ]
    (strip,) = figures.track_picture(rows, CUBE, RUN).lanes[0].strips
    assert strip.best["name"] == "h2"
    (panel,) = figures.sizes(rows)
    assert [point.row["name"] for line in panel.lines for point in line.points] == ["h2"]
    assert len(strip.rows) == 2


def test_ceilings_that_are_not_of_their_form_are_passed_over():
    odd = [None, 5, {"track": "x"}, {"track": "fp32_simt", "window": "sustained", "tflops": "fast"}]
    odd.append({"track": "fp32_simt", "window": "sustained", "tflops": math.inf})
    assert figures.ceilings_of({"ceilings": odd}) == {}
    assert figures.device_of({"gpu": "H200"}) == ""


def test_the_ladder_runs_from_v0_to_the_fastest_with_side_rungs_apart():
    rows = [*full_run(), timed("s1_aside", "handwritten", "fp32_simt", 9.0)]
    data = figures.ladder(rows)
    assert [row["name"] for row in data.rungs] == ["v0_naive", "v7_best"]
    assert [row["name"] for row in data.side] == ["s1_aside"]
    assert [row["name"] for row in data.references] == ["cutlass_simt_a_default", "cutlass_simt_b", "cublas_sgemm"]
    assert data.best["name"] == "v7_best"
    assert data.cublas == 50.0
    assert figures.ladder([timed("cublas_sgemm", "cublas", "fp32_simt", 50.0)]) is None


def test_sizes_have_intervals_from_the_percentiles_and_leave_tails_out():
    more = {"time_us_p10": None, "time_us_p90": None}
    rows = [timed("cublas_sgemm", "cublas", "fp32_simt", 50.0, shape=(n, n, n), **more) for n in (1024, 4092, 4096)]
    rows[0] = {**rows[0], "time_us_p10": 0.5 * rows[0]["time_us"], "time_us_p90": 2 * rows[0]["time_us"]}
    (panel,) = figures.sizes(rows)
    assert panel.sizes == (1024, 4096)
    first, second = panel.lines[0].points
    assert (first.lo, first.hi) == (25.0, 100.0)
    assert (second.lo, second.hi) == (50.0, 50.0)


def test_a_package_s_default_has_a_line_of_its_own_where_it_is_not_the_fastest():
    titles = [line.title for line in figures.sizes(full_run())[0].lines]
    assert titles == ["cuBLAS", "hand-written, fastest", "CUTLASS, fastest", "CUTLASS, default"]


def test_the_roofline_takes_what_was_executed_before_the_tile():
    rows = [
        timed("v2_tile", "handwritten", "fp32_simt", 13.0, tile="128x128x16"),
        timed("v0_naive", "handwritten", "fp32_simt", 5.0, tile="16x16"),
        timed("v1_seen", "handwritten", "fp32_simt", 6.0, tile="64x64"),
    ]
    data = figures.roofline(rows, RUN, {"v1_seen": {"intensity_global": 1.0}})
    found = {point.row["name"]: (point.intensity, point.method) for point in data.points}
    assert found == {"v2_tile": (32.0, "block tile"), "v1_seen": (1.0, "loads of one block, as executed")}
    assert data.bandwidth == 4.8
    assert data.compulsory == {"fp32_simt": pytest.approx(4096 * 2 / 12)}
    assert figures.roofline(rows[1:2], RUN) is None
    assert figures.roofline(rows, {"gpu": {"name": "another"}}).bandwidth is None


def test_accuracy_shows_the_shape_with_most_tracks():
    rows = [*full_run(), *(timed(f"x{n}", "cutlass", "fp32_simt", 30.0, shape=(512, 512, 512)) for n in range(30))]
    assert figures.accuracy(rows).shape in (CUBE, Shape(1024, 1024, 1024))
    assert figures.accuracy([skipped("v0", "handwritten", "fp32_simt", "no GPU")]) is None


def test_clocks_come_window_by_window_from_the_samples():
    rows = [timed("cublas_sgemm", "cublas", "fp32_simt", 50.0, sm_clock_mhz=1900.0, power_w=600.0)]
    sample = {**{name: rows[0][name] for name in ("name", "variant", "m", "n", "k", "layout", "dtype_in", "dtype_out")}}
    sample |= {"input": "uniform", "window": "sustained", "l2": "warm", "clock_mhz": [1980.0, 1900.0, "x", math.nan]}
    shape, (slot,) = figures.clocks(rows, [sample])
    assert shape == CUBE
    assert slot.clocks_mhz == (1980.0, 1900.0)
    assert slot.powers_w == (600.0,)
    assert figures.clocks(rows, [])[1][0].clocks_mhz == (1900.0,)
    assert figures.clocks([], []) == (None, ())


def test_labels_of_neighbours_are_shared():
    rows = [timed(f"v{n}_x", "handwritten", "fp32_simt", tflops) for n, tflops in enumerate((5.0, 13.0, 13.4, 50.0))]
    assert [text for _, text in charts.clusters(rows, logarithmic(1, 100, 0, 500), 30)] == ["v0", "v1–v2", "v3"]
    assert charts.span(["v3", "s3", "v2"]) == "v2–v3, s3"
    assert grouped([(0, 0, "a"), (1, 1, "b"), (50, 0, "c")], 10, 10) == [(1, 0.5, ["a", "b"]), (50, 0.0, ["c"])]


def test_scales_and_ticks():
    assert logarithmic(1, 100, 0, 10)(10) == pytest.approx(5)
    assert linear(0, 4, 100, 0)(1) == 75
    assert decades(4, 60) == [5, 10, 20, 50]
    assert round_steps(0, 66.9, 8) == [0, 10, 20, 30, 40, 50, 60]
    assert round_steps(5, 5, 3) == [5]


def test_power_of_ten():
    assert [charts.power_of_ten(value) for value in (1e-7, 5e-6, 2e-5)] == ["10⁻⁷", "5·10⁻⁶", "2·10⁻⁵"]


@pytest.mark.parametrize("width", [charts.WIDE, charts.NARROW])
def test_every_chart_is_one_image_with_words_and_stays_inside_its_width(width):
    rows = [{**row, "tile": "128x128x16", "sm_clock_mhz": 1900.0} for row in full_run()]
    shape, slots = figures.clocks(rows, [])
    drawn = [
        charts.tracks(figures.track_picture(rows, CUBE, RUN), width),
        charts.ladder(figures.ladder(rows), {}, width),
        charts.sizes(figures.sizes(rows), width),
        charts.roofline(figures.roofline(rows, RUN), width),
        charts.accuracy(figures.accuracy(rows), width),
        charts.clocks(slots, shape, width),
    ]
    for drawing in drawn:
        root = ET.fromstring(drawing.svg())
        assert root.get("role") == "img"
        assert len(root.get("aria-label")) > 40
        for text in root.iter("text"):
            assert -1 <= float(text.get("x")) <= width + 1, text.text
        assert "NaN" not in drawing.svg()


def test_text_from_rows_is_escaped_by_construction():
    drawing = Drawing(10, 10, '<script>"&')
    drawing.text(0, 0, "</svg><script>alert(1)</script>")
    drawing.mark(1, 1, "cublas", "<img src=x onerror=alert(1)>")
    assert "<script" not in drawing.svg()
    assert "<img" not in drawing.svg()
    ET.fromstring(drawing.svg())
