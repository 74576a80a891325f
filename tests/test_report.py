"""The report is a pure function of rows: headline rule, visible refusals, and the two gaps in words and numbers."""

import io
import re

import pytest
from rich.console import Console

from compare import cards, console, job, merging, report
from tests.rows_for_reports import failed, full_run, skipped, timed


def text_of(rows):
    stream = io.StringIO()
    wide = Console(width=200, file=stream)
    for table in report.tables(rows):
        wide.print(table)
    return stream.getvalue()


def test_headline_prefers_sustained_and_keeps_burst_where_it_stands_alone():
    rows = [
        timed("a", "handwritten", "fp32_simt", 40.0, window="burst"),
        timed("a", "handwritten", "fp32_simt", 38.0, window="sustained"),
        timed("b", "handwritten", "fp32_simt", 30.0, window="burst"),
    ]
    for order in (rows, rows[::-1]):
        chosen = {row["name"]: row for row in report.headline(order)}
        assert chosen["a"]["window"] == "sustained"
        assert chosen["a"]["tflops"] == 38.0
        assert chosen["b"]["window"] == "burst"
    text = text_of(rows)
    assert re.search(r"b .*†", text)
    assert "† burst window" in text


def test_headline_leaves_out_cold_rows_and_other_inputs():
    rows = [
        timed("a", "handwritten", "fp32_simt", 40.0, l2="cold"),
        timed("b", "handwritten", "fp32_simt", 99.0, input="zeros"),
        timed("c", "handwritten", "fp32_simt", 30.0),
    ]
    assert [row["name"] for row in report.headline(rows)] == ["c"]
    assert "99" not in "".join(report.closing_lines(rows))


def test_no_table_mixes_tracks_or_shapes():
    titles = [table.title for table in report.tables(full_run())]
    assert titles == [
        "1024x1024x1024  FP32 SIMT",
        "1024x1024x1024  FP16 Tensor Core",
        "4096x4096x4096  FP32 SIMT",
        "4096x4096x4096  FP16 Tensor Core",
    ]


def test_refused_and_failed_contenders_stay_visible_without_a_time():
    text = text_of(full_run())
    assert "cutlass_fp16_c" in text
    assert "n = 4095 is no multiple of 8" in text
    line = next(line for line in text.splitlines() if "v1_broken" in line and "FAILED" in line)
    assert "5.0e-01" in line
    assert "FAILED and therefore not timed, v1_broken: 5 of 9 elements wrong" in text


def test_a_failed_row_never_enters_a_ratio_even_if_it_carries_a_time():
    wrong = {**timed("v9_wrong", "handwritten", "fp32_simt", 900.0), "ok": False}
    lines = report.closing_lines([*full_run(), wrong])
    assert "v9_wrong" not in " ".join(lines)
    assert "900.0" not in text_of([wrong])


def test_closing_lines_state_both_gaps():
    same, different = report.closing_lines(full_run())
    assert same == (
        "Same track (FP32 SIMT, 4096x4096x4096, sustained): the best hand-written kernel, v7_best, reaches "
        "49.0 TFLOP/s against 50.0 for cuBLAS SGEMM (sm80_sgemm_256x128): 0.980 times it, "
        "95 % interval 0.978 to 0.982; the gap is 2.0 %."
    )
    assert different == (
        "Different track (FP16 Tensor Core, 4096x4096x4096, sustained): the FP32 peak is 10.00 % of the FP16 peak "
        "(100.0 of 1000.0 TFLOP/s), 1 to 10.0; cuBLAS SGEMM is 8.33 % of cuBLAS FP16 (50.0 of 600.0 TFLOP/s), "
        "1 to 12.0."
    )


@pytest.mark.parametrize(
    ("tflops", "words"),
    [(51.0, "the gap is closed."), (50.0, "no gap beyond the noise."), (40.0, "the gap is 20.0 %.")],
)
def test_the_gap_in_words_follows_the_interval(tflops, words):
    rows = [
        timed("v7", "handwritten", "fp32_simt", tflops),
        timed("cublas_sgemm", "cublas", "fp32_simt", 50.0),
    ]
    assert report.closing_lines(rows)[0].endswith(words)


def test_the_gap_by_hand_stands_beside_the_clocks_that_explain_it():
    rows = [
        timed("v7", "handwritten", "fp32_simt", 50.0, sm_clock_mhz=1950.0, power_w=700.0, pct_track_peak_at_clock=50.0),
        timed("cublas_sgemm", "cublas", "fp32_simt", 50.0),
        timed("cublas_fp16", "cublas", "fp16_tensor", 600.0),
        timed(
            "h7", "handwritten", "fp16_tensor", 650.0, sm_clock_mhz=1300.0, power_w=690.0, pct_track_peak_at_clock=90.0
        ),
        timed("fp16_dispatch", "handwritten", "fp16_tensor", 655.0),
    ]
    different = report.closing_lines(rows)[1]
    assert "by hand, v7 against h7, 50.0 of 650.0 TFLOP/s, 1 to 13.0" in different
    assert different.endswith(
        "they ran at 1950 and 1300 MHz (700 W and 690 W), and at those clocks the peaks are 1 to 7.2."
    )
    rows[3]["sm_clock_mhz"] = None
    assert report.closing_lines(rows)[1].endswith("1 to 13.0.")


def test_a_dispatcher_alone_does_not_set_the_scene():
    large = {"shape": (16384, 16384, 16384)}
    rows = [
        timed("v7", "handwritten", "fp32_simt", 50.0),
        timed("cublas_sgemm", "cublas", "fp32_simt", 50.0),
        timed("simt_dispatch", "handwritten", "fp32_simt", 56.0, **large),
        timed("cublas_sgemm", "cublas", "fp32_simt", 53.0, **large),
    ]
    assert report.scene(rows).shape.m == 4096
    assert report.scene(rows[2:]).shape.m == 16384


def test_the_ladder_shows_one_build_and_no_crowd():
    rates = {
        "v1": 10.0,
        "v4_a": 20.0,
        "v4_b": 21.0,
        "v9": 30.0,
        "v9_hint": 29.0,
        "v11_a": 40.0,
        "v11_b": 45.0,
        "v11_c": 44.0,
    }
    rows = [timed(name, "handwritten", "fp32_simt", rate) for name, rate in rates.items()]
    text = report.markdown([*rows, timed("cublas_sgemm", "cublas", "fp32_simt", 50.0)], {})
    ladder = text[text.index("**The ladder.**") :].split("**The tracks.**")[0]
    assert [name for name in rates if f"| `{name}` |" in ladder] == ["v1", "v4_a", "v4_b", "v9", "v11_b"]


def test_windows_are_never_mixed_in_a_closing_line():
    rows = [
        timed("v7", "handwritten", "fp32_simt", 49.0, window="burst"),
        timed("cublas_sgemm", "cublas", "fp32_simt", 50.0, window="burst"),
        timed("cublas_sgemm", "cublas", "fp32_simt", 45.0, window="sustained"),
    ]
    same = report.closing_lines(rows)[0]
    assert "burst" in same
    assert "50.0" in same


def test_unknown_peaks_are_left_out_and_nothing_timed_says_so():
    rows = [
        timed("v7", "handwritten", "fp32_simt", 49.0, pct_track_peak=None, pct_fp16_peak=None),
        timed("cublas_sgemm", "cublas", "fp32_simt", 50.0, pct_track_peak=None, pct_fp16_peak=None),
    ]
    assert "no gap is stated" in report.closing_lines(rows)[1]
    for line in report.closing_lines([skipped("v0", "handwritten", "fp32_simt", "no GPU")]):
        assert "no gap is stated" in line


def test_cutlass_is_named_as_default_and_as_best():
    lines = report.cutlass_lines(full_run())
    assert len(lines) == 2
    assert "default" in lines[0]
    assert "cutlass_simt_a_default" in lines[0]
    assert "0.960 of cuBLAS SGEMM" in lines[0]
    assert "best measured" in lines[1]
    assert "cutlass_simt_b" in lines[1]
    assert "0.990 of cuBLAS SGEMM" in lines[1]


def test_every_fp32_row_shows_both_fractions():
    line = next(line for line in text_of([r for r in full_run() if r["m"] == 4096]).splitlines() if "v7_best" in line)
    assert "0.980 [0.978, 0.982]" in line
    assert "4.90" in line  # per cent of the FP16 peak


def test_the_ratio_to_cublas_sgemm_is_the_paired_one_on_its_own_track():
    rows = [
        timed("cublas_sgemm", "cublas", "fp32_simt", 50.0),
        timed("v7", "handwritten", "fp32_simt", 49.0, x_cublas=0.981, x_cublas_sgemm=0.975),
        timed("v6", "handwritten", "fp32_simt", 45.0, x_cublas=None, x_cublas_sgemm=0.9),
        timed("h7", "handwritten", "fp16_tensor", 600.0, x_cublas=1.01, x_cublas_sgemm=12.0),
    ]
    assert [report.against_sgemm(row) for row in rows] == [1.0, 0.981, 0.9, 12.0]
    ladder, tracks = report.result_tables(rows, {})[:2]
    assert [line[4] for line in ladder.lines if line[0] == "v7"] == ["0.981"]
    assert [line[4:6] for line in tracks.lines if line[1] in ("v7", "h7")] == [("0.981", "0.981"), ("1.010", "12.000")]


def test_reports_of_empty_runs_do_not_fail():
    assert report.tables([]) == []
    assert report.cutlass_lines([]) == []
    assert report.markdown([], {}) == report.NOTHING_TIMED
    assert report.tables([failed("v1", "handwritten", "fp32_simt")])


def test_recorded_rows_are_labelled_with_gpu_and_date():
    run = {"gpu": {"name": "Some GPU", "sm_count": 7}, "date": "2031-02-03T04:05:06+00:00", "revision": "abc"}
    text = report.origin(run, recorded=True)
    assert text == "RECORDED, not measured here: Some GPU (7 SMs), 2031-02-03, revision abc"


def test_markdown_has_every_timed_row_of_the_scene():
    text = report.markdown(full_run(), {"gpu": {"name": "Some GPU", "sm_count": 7}, "date": "2031-02-03"})
    for name in ("cublas_sgemm", "v0_naive", "v7_best", "cutlass_simt_a_default", "cutlass_simt_b", "cublas_fp16"):
        assert f"| `{name}" in text, name
    ladder, tracks = text.split("**Over the squares.**")[0].split("**The ladder.**")[1].split("**The tracks.**")
    assert ladder.count("| `v0_naive`") == tracks.count("| `v0_naive`") == 1
    assert "`cublas_fp16`" not in ladder
    assert "Same track" in text
    assert "Different track" in text


SQUARES = ((1024,) * 3, (2048,) * 3, (4096,) * 3)


def dispatched():
    """A dispatcher that picks the best at two of three squares, beside kernels of which one refuses a size."""
    rows = []
    for shape in SQUARES:
        for window in ("burst", "sustained"):
            more = {"shape": shape, "window": window}
            rows.append(timed("cublas_sgemm", "cublas", "fp32_simt", 50.0, **more))
            rows.append(timed("v7_wide", "handwritten", "fp32_simt", 55.0 if shape[0] > 1024 else 20.0, **more))
            if shape[0] < 4096:
                rows.append(timed("v3_small", "handwritten", "fp32_simt", 40.0, **more))
            pick, rate = ("v3_small.vec4", 39.8) if shape[0] < 4096 else ("v7_wide.vec4", 55.0)
            rows.append(timed("simt_dispatch", "handwritten", "fp32_simt", rate, variant=pick, **more))
    refusal = skipped("v3_small", "handwritten", "fp32_simt", "too slow", shape=SQUARES[2])
    rows.append({**refusal, "dtype_out": "float32"})
    return rows


def test_hindsight_stands_beside_what_a_dispatcher_picked():
    found = report.hindsight(dispatched())
    assert [(one.picked["m"], one.picked["variant"], one.best["name"]) for one in found] == [
        (1024, "v3_small.vec4", "v3_small"),
        (2048, "v3_small.vec4", "v7_wide"),
        (4096, "v7_wide.vec4", "v7_wide"),
    ]
    assert {one.picked["window"] for one in found} == {one.best["window"] for one in found} == {"sustained"}
    assert [round(one.share, 3) for one in found] == [0.995, 0.724, 1.0]
    table = report.hindsight_table(dispatched())
    assert "in hindsight" in table.title
    assert table.row_count == 3
    assert report.hindsight_table(full_run()) is None


def test_a_dispatcher_is_held_against_the_best_way_to_call_cublas():
    where = {"window": "sustained"}
    rows = [
        timed("cublas_fp16", "cublas", "fp16_tensor", 640.0, x_cublas=1.0, **where),
        timed("cublaslt_fp16", "cublas", "fp16_tensor", 660.0, x_cublas=1.03, **where),
        timed("fp16_dispatch", "handwritten", "fp16_tensor", 653.0, x_cublas=1.02, variant="h6", **where),
    ]
    (one,) = report.hindsight(rows)
    assert one.library["name"] == "cublaslt_fp16"
    assert one.x_library == pytest.approx(1.02 / 1.03)
    (alone,) = report.hindsight([rows[0], rows[2]])
    assert alone.x_library == pytest.approx(1.02)
    (neither,) = report.hindsight([rows[2]])
    assert neither.x_library is None


def test_hindsight_without_a_rival_in_the_same_window_says_so():
    rows = [
        timed("simt_dispatch", "handwritten", "fp32_simt", 50.0, window="sustained", variant="v7"),
        timed("v7", "handwritten", "fp32_simt", 60.0, window="burst"),
        timed("v7", "handwritten", "fp32_simt", 60.0, window="sustained", layout="rc"),
        failed("v8", "handwritten", "fp32_simt"),
    ]
    (one,) = report.hindsight(rows)
    assert one.best is None
    assert one.share is None
    assert report.hindsight_table(rows).row_count == 1


def test_the_closing_line_names_a_kernel_and_then_what_the_dispatcher_ran():
    same, _ = report.closing_lines([row for row in dispatched() if row["m"] == 4096])
    assert "the best hand-written kernel, v7_wide," in same
    assert same.endswith("simt_dispatch, by its table, ran v7_wide.vec4: 1.100 times cuBLAS.")


def test_geometric_means_count_every_shape_and_show_the_missing_ones():
    means = {one.row["name"]: one.of for one in report.geometric_means(dispatched())["squares"]}
    assert set(means) == {"v7_wide", "v3_small", "simt_dispatch"}
    whole, part = means["v7_wide"]["sustained"], means["v3_small"]["burst"]
    assert whole.value == pytest.approx((0.4 * 1.1 * 1.1) ** (1 / 3))
    assert (whole.counted, whole.total) == (3, 3)
    assert part.value == pytest.approx(0.8)
    assert str(part) == "0.800 over 2 of 3"
    text = report.markdown(dispatched(), {"gpu": {"name": "Some GPU", "sm_count": 7}, "date": "2031-02-03"})
    over = text.split("**Over the squares.**")[1]
    assert "| FP32 SIMT | `v3_small` | 0.800 over 2 of 3 | 0.800 over 2 of 3 |" in over
    assert "FP32 SIMT 1024, 2048, 4096" in over
    assert "`cublas_sgemm`" not in over
    assert (
        "| `simt_dispatch` | 2048 | rr, sustained | `v3_small.vec4` | 0.796 | 0.796 | `v7_wide` | 1.100 | 0.724 |"
        in text
    )


def test_a_mean_of_half_the_shapes_or_fewer_is_not_stated():
    rows = [row for row in dispatched() if row["name"] != "v3_small" or row["m"] == 1024]
    text = report.markdown(rows, {"gpu": {}, "date": "2031-02-03"})
    means = text.partition("Over the squares")[2]
    assert "`v7_wide`" in means
    assert "`v3_small`" not in means


def test_a_shape_that_only_cublas_was_asked_for_counts_for_nobody():
    rows = [*dispatched(), timed("cublas_sgemm", "cublas", "fp32_simt", 50.0, shape=(16384,) * 3)]
    means = {one.row["name"]: one.of for one in report.geometric_means(rows)["squares"]}
    assert means["v7_wide"]["sustained"].total == 3


def test_sets_have_means_of_their_own_and_cold_or_other_inputs_none():
    rows = []
    for m in (1, 16):
        for name, family, rate in (("cublas_sgemm", "cublas", 50.0), ("v7", "handwritten", 25.0)):
            rows.append(timed(name, family, "fp32_simt", rate, shape=(m, 4096, 4096), shape_set="skinny"))
            rows.append(timed(name, family, "fp32_simt", 1.0, shape=(m, 4096, 4096), shape_set="skinny", l2="cold"))
            rows.append(timed(name, family, "fp32_simt", 1.0, shape=(m, 4096, 4096), shape_set="skinny", input="zeros"))
    found = report.geometric_means([*rows, *dispatched()])
    assert set(found) == {"skinny", "squares"}
    (one,) = found["skinny"]
    assert one.of["sustained"].value == pytest.approx(0.5)
    assert [table.title for table in report.means_tables(rows)] == [
        "Geometric means of x cuBLAS, same track, over the shapes of skinny"
    ]
    assert report.geometric_means([row for row in dispatched() if row["m"] == 1024]) == {}


def test_dispatchers_are_known_by_the_end_of_their_names():
    from compare.contenders import every_contender

    for one in every_contender():
        assert one.is_dispatcher == one.name.endswith(report.DISPATCHER_SUFFIX)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_numbers_are_whole_at_any_width_and_what_had_to_go_is_named(width):
    import io

    rows = [{**row, "registers": 255, "tile": "128x256x16", "sm_clock_mhz": 1980.0} for row in full_run()]
    stream = io.StringIO()
    console = Console(width=width, file=stream)
    for table in report.tables(rows, width):
        console.print(table)
    lines = stream.getvalue().splitlines()
    assert "\N{HORIZONTAL ELLIPSIS}" not in stream.getvalue()
    assert max(len(line.rstrip()) for line in lines) <= width
    for number in ("0.980 [0.978, 0.982]", "49.00", "600.00"):
        assert any(number in line for line in lines), number
    if width < 120:
        assert any("left out for want of width: " in line for line in lines)


EVIL = "G`|<script>alert(1)</script>\n![x](http://elsewhere/y.png) & co"


def test_markdown_shows_what_a_run_brings_and_obeys_none_of_it():
    run = {"gpu": {"name": EVIL}, "date": "2031-02-03", "revision": "r", "partial": EVIL}
    rows = [{**row, "name": f"{row['name']}{EVIL}", "kernel_name": EVIL} for row in full_run()]
    card = [{**row, "gpu_name": EVIL, "gpu_index": 0, "gpu_uuid_hash": "a" * 12} for row in rows]
    read = [("a", run, card)]
    for text in (report.markdown(rows, run), merging.markdown(cards.side_by_side(read), read)):
        outside = re.sub(r"(`+) .*?[^`] \1(?!`)", "", text)
        assert outside != text
        assert "<script" not in outside
        assert "](http" not in outside
        assert "&lt;script" in outside
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("| `")}
        heads = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|---")}
        assert cells <= heads
    assert report.markdown_text("a\\`b\\|c") == r"a\\\`b\\\|c"
    assert report.markdown_code("v0_naive") == "`v0_naive`"
    assert report.markdown_code("a``b") == "``` a``b ```"


def test_tables_for_latex_escape_what_latex_reads():
    name = r"v9_a&b%c$d#e{f}~^\g"
    text = report.latex([*full_run(), timed(name, "handwritten", "fp32_simt", 40.0)], {"gpu": {"name": "50 % GPU_1"}})
    assert r"\texttt{v9\_a\&b\%c\$d\#e\{f\}\textasciitilde{}\textasciicircum{}\textbackslash{}g}" in text
    assert r"50 \% GPU\_1" in text
    assert report.latex([], {}) == f"% {report.NOTHING_TIMED}"


@pytest.mark.parametrize("width", [60, 80, 120, None])
def test_the_lines_below_fit_the_terminal_and_are_whole_in_a_pipe(width, monkeypatch):
    entry = "cutlass3x_sm90_simt_gemm_f32_f32_f32_f32_f32_256x128x8_1x1x1_0_ttt_align1_warpspecialized"
    rows = [
        {**row, "kernel_name": entry if row["family"] == "cutlass" else row["kernel_name"].replace("sgemm", entry)}
        if row["kernel_name"]
        else row
        for row in full_run()
    ]
    stream = io.StringIO()
    there = Console(file=stream, force_terminal=bool(width), width=width or 180, color_system=None, markup=False)
    monkeypatch.setattr(console, "answers", lambda: there)
    job.print_rows(rows, "somewhere")
    text = stream.getvalue()
    below = text[text.index("CUTLASS default") :].splitlines()
    assert [line.split()[0] for line in below if line[0] != " "] == ["CUTLASS", "CUTLASS", "Same", "Different"]
    if width is None:
        assert below == [*report.cutlass_lines(rows), *report.closing_lines(rows)]
        assert f"({entry})" in below[0]
        return
    assert max(map(len, below)) <= width
    assert len(below) > 4
    joined = " ".join(" ".join(below).split())
    assert "cutlass_simt_b (cutlass3x_sm90_simt_gemm_f32_f32_f32_f32…) 49.5 TFLOP/s" in joined
    assert "for cuBLAS SGEMM (sm80_cutlass3x_sm90_simt_gemm_f32_f32…): 0.980 times it" in joined


@pytest.mark.parametrize(
    ("entry", "longest", "shown"),
    [
        ("volta_sgemm_128x64_nn", None, "volta_sgemm_128x64_nn"),
        ("volta_sgemm_128x64_nn", 21, "volta_sgemm_128x64_nn"),
        ("volta_sgemm_128x64_nn", 18, "volta_sgemm_128x64…"),
        ("volta_sgemm_128x64_nn", 17, "volta_sgemm…"),
        ("ampereSgemm128x64", 6, "ampere…"),
    ],
)
def test_entries_are_cut_between_words(entry, longest, shown):
    rows = [timed("cublas_sgemm", "cublas", "fp32_simt", 50.0, kernel_name=entry)]
    rows.append(timed("v7", "handwritten", "fp32_simt", 49.0))
    assert f"SGEMM ({shown}):" in report.closing_lines(rows, longest_entry=longest)[0]
    assert "SGEMM: 0.980" in report.closing_lines(rows, longest_entry=0)[0]


def test_energy_stands_beside_the_rate_where_power_was_measured():
    row = timed("a", "handwritten", "fp16_tensor", 650.0, window="sustained", power_w=689.0)
    assert report.picojoules_a_flop(row) == pytest.approx(1.06)
    assert report.picojoules_a_flop({**row, "power_w": None}) is None
    assert report.picojoules_a_flop({**row, "ok": False}) is None
    assert "pJ/" in text_of([row])
    assert "1.06" in text_of([row])
    assert "pJ/" not in text_of([{**row, "power_w": None}])
