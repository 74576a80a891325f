"""Runs side by side: a column for each GPU, the spread of equal cards, and never a mean over different models."""

import io
import json
import re

import pytest
from rich.console import Console

from compare import cards, merging, runs
from compare.cli import main
from compare.console import table_of
from compare.rows import ADDED
from tests.rows_for_reports import timed


def on(card, index, rows, model="NVIDIA H200"):
    return [{**row, "gpu_name": model, "gpu_index": index, "gpu_uuid_hash": card} for row in rows]


def ratio(name, value, half=0.002, window="sustained", track="fp32_simt", **more):
    family = "cublas" if name.startswith("cublas") else "handwritten"
    row = timed(name, family, track, 50.0 * value, window=window, **more)
    return {**row, "x_cublas": value, "x_cublas_lo": value - half, "x_cublas_hi": value + half}


FIRST = on("aaaaaaaaaaaa", 0, [ratio("cublas_sgemm", 1.0), ratio("v6", 0.950), ratio("v7", 0.990)])
SECOND = on("bbbbbbbbbbbb", 1, [ratio("cublas_sgemm", 1.0), ratio("v6", 0.955), ratio("v7", 0.960)])
OTHER = on("cccccccccccc", 0, [ratio("cublas_sgemm", 1.0), ratio("v6", 0.700)], "NVIDIA L4")


def run(date="2031-01-01", model="NVIDIA H200", **more):
    return {"date": date, "revision": "0123456789", "gpu": {"name": model}, "driver": "580.1", **more}


def merged(*parts):
    return cards.side_by_side([(f"run{i}", run(f"2031-01-0{i + 1}"), rows) for i, rows in enumerate(parts)])


def test_every_gpu_has_its_own_column_and_equal_cards_a_spread():
    both = merged(FIRST, SECOND)
    assert [card.label for card in both.cards] == ["NVIDIA H200 0 (aaaaaa)", "NVIDIA H200 1 (bbbbbb)"]
    heads, texts = merging.cells(both, both.lines)
    assert len(heads) == 4
    by_name = {text[0]: text[1:] for text in texts}
    assert by_name["v6"] == ["47.50, 0.950 [0.948, 0.952]", "47.75, 0.955 [0.953, 0.957]", "0.52 %"]
    assert by_name["v7"][2] == "3.08 % !"
    (text,) = cards.verdicts(both)
    assert "3 rows on several of its 2 cards" in text
    assert "at most 3.08 % apart (v7 4096x4096x4096 rr sustained)" in text
    assert text.endswith("intervals: v7 4096x4096x4096 rr sustained.")


FAR = [ratio("cutlass_simt_128x128x16_of_a_long_name_that_folds", 0.955), ratio("v6", 0.955), ratio("v7", 0.960)]


@pytest.mark.parametrize("width", [50, 60, 80, 100, 140, 180])
def test_a_table_of_many_cards_fits_and_no_number_is_cut(width):
    many = merged(*(on(letter * 12, place, FAR) for place, letter in enumerate("abcd")))
    ((title, lines),) = merging.sections(many)
    heads, texts, without = merging.fitting(many, lines, width)
    table = table_of(title, heads, [(text, "") for text in texts], width, without)
    page = io.StringIO()
    Console(width=width, file=page, highlight=False).print(table)
    shown = page.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert "v6 " in shown
    kept = len(table.columns) - 1
    assert kept >= (4 if width > 80 else 1)
    assert shown.count("0.955") == 2 * (kept - 1) or kept == 1
    assert all(part.endswith("]") for part in re.findall(r"\[0\.\d{3}, \S*", shown))
    assert ("left out" in shown) == (width < 180 or kept < 5)


def test_a_card_without_a_row_of_a_section_has_no_column_there():
    other = on("cccccccccccc", 2, [ratio("v8", 0.7, shape=(8192, 8192, 8192))])
    three = merged(FIRST, SECOND, other)
    for title, lines in merging.sections(three):
        heads, _ = merging.cells(three, lines)
        assert len(heads) == (4 if title.startswith("4096") else 2)


def test_a_terminal_is_told_the_places_that_lie_furthest_apart():
    both = merged(
        on("aaaaaaaaaaaa", 0, [ratio(f"v{place}", 0.9) for place in range(9)]),
        on("bbbbbbbbbbbb", 1, [ratio(f"v{place}", 0.9 + 0.02 * place) for place in range(9)]),
    )
    (text,) = cards.verdicts(both, 2)
    assert re.search(r"intervals: v8 \S+ rr sustained, v7 \S+ rr sustained, and 6 more, which --json and --out", text)
    (text,) = cards.verdicts(both)
    assert text.count("rr sustained") == 9


def test_equal_cards_without_a_row_in_common_have_no_spread():
    both = merged(on("aaaaaaaaaaaa", 0, [ratio("v6", 0.95)]), on("bbbbbbbbbbbb", 1, [ratio("v7", 0.96)]))
    assert cards.verdicts(both) == [
        "NVIDIA H200: its 2 cards have no row in common, so nothing is said of their spread."
    ]


def test_ratios_within_their_intervals_are_not_called_different():
    wide = merged(
        on("aaaaaaaaaaaa", 0, [ratio("v7", 0.990, half=0.02)]), on("bbbbbbbbbbbb", 1, [ratio("v7", 0.960, half=0.02)])
    )
    assert not wide.lines[0].apart("NVIDIA H200")


def test_different_models_are_never_put_into_one_number():
    both = merged(FIRST, OTHER)
    heads, texts = merging.cells(both, both.lines)
    assert [head.text.partition("\n")[0] for head in heads] == ["kernel", *(card.label for card in both.cards)]
    assert {text[0]: text[1:] for text in texts}["v7"] == ["49.50, 0.990 [0.988, 0.992]", ""]
    assert cards.verdicts(both) == []
    record = merging.as_record(both, [("run0", run(), FIRST), ("run1", run(), OTHER)])
    assert all(line["spread_of_x_cublas"] == {"NVIDIA H200": None, "NVIDIA L4": None} for line in record["lines"])
    three = merged(FIRST, SECOND, OTHER)
    v6 = next(line for line in three.lines if line.row["name"] == "v6")
    assert cards.spread(v6.values("x_cublas", "NVIDIA H200")) == pytest.approx(0.005 / 0.9525)
    assert any("different models" in text.lower() for text in merging.remarks(three, []))


def test_lines_of_bursts_are_marked_and_a_time_without_a_ratio_stands_alone():
    alone = {**timed("v0", "handwritten", "fp32_simt", 5.0, window="burst"), "x_cublas": None}
    read = [("a", run(), on("aaaaaaaaaaaa", 0, [alone, ratio("v6", 0.95)]))]
    both = cards.side_by_side(read)
    (text,) = merging.remarks(both, read)
    assert text.startswith(f"{merging.BURST_MARK} burst window; the others are sustained.")
    _, texts = merging.cells(both, both.lines)
    assert {found[0]: found[1] for found in texts} == {
        f"v0{merging.BURST_MARK}": "5.00",
        "v6": "47.50, 0.950 [0.948, 0.952]",
    }
    steady = [("a", run(), FIRST)]
    assert merging.remarks(cards.side_by_side(steady), steady) == []
    assert merging.cell(None) == ""


def test_a_line_is_of_one_window_on_all_its_cards():
    sustained = on("aaaaaaaaaaaa", 0, [ratio("v6", 0.95), ratio("v6", 0.97, window="burst")])
    burst = on("bbbbbbbbbbbb", 1, [ratio("v6", 0.98, window="burst")])
    (line,) = merged(sustained, burst).lines
    assert {row["window"] for row in line.by_card.values()} == {"burst"}
    assert len(line.by_card) == 2


def test_the_later_run_of_one_card_is_shown_and_that_is_said():
    later = on("aaaaaaaaaaaa", 0, [ratio("v6", 0.96)])
    both = merged(FIRST, later)
    assert len(both.cards) == 1
    v6 = next(line for line in both.lines if line.row["name"] == "v6")
    assert [row["x_cublas"] for row in v6.by_card.values()] == [0.96]
    assert any("1 rows were measured again" in text for text in merging.remarks(both, []))


def test_runs_recorded_before_rows_named_their_card_stand_for_one_each():
    old = [{**row, **dict.fromkeys(ADDED)} for row in FIRST]
    both = merged(old, old)
    assert [card.label for card in both.cards] == ["NVIDIA H200 (run0)", "NVIDIA H200 (run1)"]


def test_the_cards_of_one_run_are_held_against_each_other_by_their_ceilings():
    def card(index, digits, rate):
        ceiling = {"track": "fp32_simt", "instruction": "ffma", "window": "burst", "tflops": rate}
        return {"index": index, "uuid_hash": digits * 12, "ceilings": [ceiling]}

    (line,) = cards.ceiling_lines({"gpus": [card(0, "a", 64.0), card(3, "b", 65.0)]})
    assert line == ("Ceiling fp32_simt ffma burst: GPU 0 (aaaaaa) 64.0, GPU 3 (bbbbbb) 65.0 TFLOP/s; 1.55 % apart.")
    assert cards.ceiling_lines({"gpus": [card(0, "a", 64.0)]}) == []
    assert cards.ceiling_lines({}) == []


def kept(folder, rows, **more):
    writer = runs.RunWriter(folder, run(**more))
    writer.add("all", rows)
    writer.finish(complete=True)
    return str(folder)


def test_the_command_prints_writes_and_answers(tmp_path, capsys):
    first, second = kept(tmp_path / "first", FIRST), kept(tmp_path / "second", SECOND, revision="fedcba9876")
    page = tmp_path / "merged.md"
    assert main(["merge", first, second, "--out", str(page)]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA H200 1 (bbbbbb): second: 2031-01-01, revision fedcba9876, driver 580.1" in out
    assert "0.955 [0.953, 0.957]" in out
    assert "different revisions" in out
    text = page.read_text()
    assert "| `v6` | 47.50, 0.950 [0.948, 0.952] | 47.75, 0.955 [0.953, 0.957] | 0.52 % |" in text
    assert main(["merge", first, second, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [card["index"] for card in answer["cards"]] == [0, 1]
    assert answer["lines"][1]["spread_of_x_cublas"]["NVIDIA H200"] == pytest.approx(0.00525, rel=0.01)


def test_one_run_or_one_twice_is_bad_usage_and_a_run_without_times_says_so(tmp_path, capsys):
    first = kept(tmp_path / "first", FIRST)
    empty = [{**row, "time_us": None, "ok": None} for row in FIRST]
    second = kept(tmp_path / "second", empty)
    third = kept(tmp_path / "third", empty)
    assert main(["merge", first]) == 2
    assert main(["merge", first, first]) == 2
    assert main(["merge", second, third]) == 2
    assert "nothing was timed" in capsys.readouterr().err
    assert main(["merge", first, str(tmp_path / "none")]) == 2


def test_the_recorded_run_can_be_read_although_its_rows_lack_later_columns():
    if runs.latest() is None:
        pytest.skip("no recorded run ships yet")
    _, rows = runs.read_run("latest")
    assert all(name in rows[0] for name in ADDED)
