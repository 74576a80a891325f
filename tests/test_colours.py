"""Colours of families: seen on their ground, told apart by colour-blind readers, the same in every kind of figure."""

import itertools
import re

import pytest

from compare import charts, figures, plots
from compare.drawing import outline
from compare.html import chart_style
from kernel.contract import FAMILIES

# Linear-RGB matrices of dichromats by Vienot, Brettel and Mollon (1999), and of tritanopes by Brettel's projection.
DICHROMATS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1)),
    "deutan": ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1)),
}


def palettes():
    style = chart_style()
    light, dark = style.split("@media")[:2]
    return {
        mode: dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", text)) for mode, text in (("light", light), ("dark", dark))
    }


def linear(colour):
    values = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]


def luminance(colour):
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one, other):
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def lab(rgb):
    matrix = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(weight * value for weight, value in zip(line, rgb, strict=True)) for line in matrix]
    f = [max(value / white, 1e-9) for value, white in zip(xyz, (0.9505, 1.0, 1.089), strict=True)]
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in f)
    return (116 * y - 16, 500 * (x - y), 200 * (y - z))


def distance(one, other, matrix):
    seen = [lab([sum(w * v for w, v in zip(line, linear(c), strict=True)) for line in matrix]) for c in (one, other)]
    return sum((a - b) ** 2 for a, b in zip(*seen, strict=True)) ** 0.5


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_marks_and_words_are_seen_on_their_ground(mode):
    palette = palettes()[mode]
    for family in FAMILIES:
        for ground in ("card", "lane"):
            assert contrast(palette[family], palette[ground]) >= 3, (family, ground)
    for ground in ("card", "lane", "paper"):
        assert contrast(palette["ink"], palette[ground]) >= 7
        assert contrast(palette["soft"], palette[ground]) >= 4.5
    assert contrast(palette["handwritten"], palette["card"]) >= 3


@pytest.mark.parametrize("sight", DICHROMATS)
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_families_can_be_told_apart(mode, sight):
    palette = palettes()[mode]
    for one, other in itertools.combinations(FAMILIES, 2):
        assert distance(palette[one], palette[other], DICHROMATS[sight]) > 12, (one, other)


def test_figures_for_papers_have_the_page_s_colours():
    light = palettes()["light"]
    assert {family: colour.lower() for family, colour in plots.COLOURS.items()} == {f: light[f] for f in FAMILIES}
    assert set(plots.MARKERS) == set(FAMILIES)
    assert len(set(plots.MARKERS.values())) == len(FAMILIES)


def test_every_family_has_a_title_a_place_a_mark_and_its_colours():
    assert set(figures.FAMILY_TITLES) == set(figures.STRIP_ORDER) == set(charts.DRAWN) == set(FAMILIES)
    assert len({outline(family, 0, 0, 5) for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        for rule in (f".mark.{family}", f".bar.{family}", f".curve.{family}", f".interval.{family}"):
            assert rule in chart_style(), rule
