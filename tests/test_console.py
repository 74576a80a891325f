"""Tables in a terminal of any width: numbers are whole or not there, texts fold, and what was left out is named."""

import io
import json
import math
import time

import pytest
from rich.console import Console

from compare import console
from compare.console import Head, progress, table_of

HEADS = (
    Head("kernel", folds=True),
    Head("tile", goes=2),
    Head("regs", right=True, goes=1),
    Head("TFLOP/s", right=True),
    Head("remark", folds=True),
)
LINES = [
    (
        ("a_kernel_with_a_name_longer_than_half_a_terminal", "128x256x16", "255", "1234567.89", "some words about it"),
        "",
    ),
    (("short", "64x64", "40", "5.1", ""), "red"),
]


def printed(width, heads=HEADS, lines=LINES):
    stream = io.StringIO()
    Console(width=width or 400, file=stream).print(table_of("a title", heads, lines, width, ["a remark"]))
    return stream.getvalue()


@pytest.mark.parametrize("width", range(36, 130, 7))
def test_numbers_are_whole_and_nothing_is_cut_at_any_width(width):
    text = printed(width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert "1234567.89" in text
    body = "".join(line[1:][: line[1:].find("  ")] for line in text.splitlines()[4:])
    assert "a_kernel_with_a_name_longer_than_half_a_terminal" in body.replace(" ", "")


def test_columns_go_in_their_order_and_are_named():
    assert "left out" not in printed(None)
    assert "left out" not in printed(120)
    assert "left out for want of width: regs" in " ".join(printed(78).split())
    assert "128x256x16" in printed(78)
    narrow = " ".join(printed(48).split())
    assert "left out for want of width: tile, regs" in narrow
    assert "128x256x16" not in narrow


def test_a_table_without_lines_has_its_heads():
    text = printed(60, lines=[])
    assert all(head.text in text for head in HEADS)


@pytest.mark.parametrize("takes_s", [0.0, 0.5])
def test_a_bar_comes_up_only_where_there_is_something_to_wait_for(takes_s, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(console, "messages", lambda: Console(file=stream, force_terminal=True, width=100))
    with progress("working", 4, after_s=0.1) as advance:
        advance(1, "on the first")
        time.sleep(takes_s)
    assert ("working" in stream.getvalue()) == (takes_s > 0.1)
    assert ("on the first" in stream.getvalue()) == (takes_s > 0.1)
    if not takes_s:
        assert stream.getvalue() == ""


def test_numbers_that_json_does_not_have_become_text(capsys):
    console.print_json({"worst": math.inf, "all": [1.5, (math.nan, -math.inf)], "none": None})
    assert json.loads(capsys.readouterr().out) == {"worst": "inf", "all": [1.5, ["nan", "-inf"]], "none": None}
