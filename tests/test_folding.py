"""Lines in a terminal's width."""

import re
import sys

import pytest

from compare import driver, folding
from compare.cli import main
from compare.folding import folded

LONG = "  ceiling, ffma loop, sustained: " + "sixty-four TFLOP/s of what the datasheet says, " * 5


@pytest.mark.parametrize("width", [40, 80, 100])
def test_every_line_fits_and_no_word_is_lost(width):
    text = folded(LONG + "\n" + LONG, width)
    assert max(map(len, text.split("\n"))) <= width
    assert text.split() == (LONG + LONG).split()
    assert [line[:4] for line in text.split("\n")[:2]] == ["  ce", "    "]


def test_what_is_piped_is_one_line_and_a_word_is_never_broken():
    assert folded(LONG, None) == LONG
    name = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8"
    assert name in folded(f"cuBLAS ran {name} there", 40)
    assert folded("a\n\nb", 80) == "a\n\nb"
    assert folded("a " * 30, 40, indent=8).split("\n")[1].startswith(" " * 8 + "a")


def test_a_pipe_has_no_width(monkeypatch):
    assert folding.terminal_width() is None
    monkeypatch.setattr("sys.stdout", None)
    assert folding.terminal_width() is None


COMMANDS = [
    ["peaks"],
    ["doctor"],
    ["diff", "latest", "2026-11-30-ede6f0c3df"],
    pytest.param(["inspect", "simt_dispatch"], marks=[pytest.mark.nvcc, pytest.mark.slow]),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_what_a_command_says_fits_the_terminal(words, monkeypatch, capsys):
    monkeypatch.setattr(
        driver, "query", lambda: driver.Driver(version="", devices=(), problem="no NVIDIA driver: none")
    )
    main(words)
    piped = capsys.readouterr().out
    assert max(map(len, piped.splitlines())) > 100
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(words)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    # A path is one word, which stays whole so that it can be copied.
    assert all(len(line) <= 100 or len(line.split()) == 1 for line in shown.splitlines())
    assert "".join(shown.split()) == "".join(piped.split())
