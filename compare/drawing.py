"""SVG by construction: elements that escape what they are given, scales, and marks.

Colours, fonts and strokes come from classes, so that one drawing serves light, dark and print.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from typing import Any

CHARACTER = 0.6
"""Mean width of a letter over the font's size: what labels are set apart by, a little generous."""

Scale = Callable[[float], float]


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """Maps [low, high], both above zero, to [start, end] by their logarithms."""
    span = math.log(high / low) or 1.0
    return lambda value: start + (end - start) * math.log(max(value, 1e-300) / low) / span


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """Maps [low, high] to [start, end]."""
    span = (high - low) or 1.0
    return lambda value: start + (end - start) * (value - low) / span


def decades(low: float, high: float, steps: Sequence[int] = (1, 2, 5)) -> list[float]:
    """Round numbers between the two on a log axis."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)]


def round_steps(low: float, high: float, most: int) -> list[float]:
    """At most ``most`` round numbers, evenly apart, between the two on a linear axis."""
    raw = (high - low) / max(most, 1) or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * (1 - 1e-9))
    return [step * count for count in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A tick's text: no more digits than it has."""
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:g}"


class Drawing:
    """One SVG of fixed extents, in CSS pixels at its natural size.

    Args:
        label: what a screen reader says in place of the picture.
    """

    def __init__(self, width: float, height: float, label: str, *classes: str) -> None:
        self.width, self.height = width, height
        self.root = ET.Element(
            "svg",
            {
                "viewBox": f"0 0 {width:g} {height:g}",
                "width": f"{width:g}",
                "height": f"{height:g}",
                "role": "img",
                "aria-label": label,
                "class": " ".join(("chart", *classes)),
            },
        )

    def add(self, tag: str, into: ET.Element | None = None, text: str = "", **attributes: Any) -> ET.Element:
        """One element; ``cls`` is its class, and an underscore in a name stands for a hyphen. None is left out."""
        names = {"cls": "class"}
        given = {
            names.get(name, name.replace("_", "-")): f"{value:.2f}".rstrip("0").rstrip(".")
            if isinstance(value, float)
            else str(value)
            for name, value in attributes.items()
            if value is not None
        }
        element = ET.SubElement(self.root if into is None else into, tag, given)
        if text:
            element.text = text
        return element

    def line(self, x1: float, y1: float, x2: float, y2: float, cls: str) -> ET.Element:
        return self.add("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), cls=cls)

    def text(self, x: float, y: float, text: str, cls: str = "", anchor: str = "start") -> ET.Element:
        return self.add("text", text=text, x=float(x), y=float(y), cls=cls or None, text_anchor=anchor)

    def mark(
        self, x: float, y: float, family: str, tip: str, *, size: float = 5.5, hollow: bool = False, faint: bool = False
    ) -> ET.Element:
        """A family's mark, told apart by shape as well as by colour; ``tip`` is what pointing at it says."""
        classes = " ".join(("mark", family, *(["hollow"] if hollow else []), *(["faint"] if faint else [])))
        d = outline(family, float(x), float(y), size)
        element = self.add("path", d=d, cls=classes, data_tip=tip)
        self.add("title", element, tip)
        return element

    def svg(self, style: str = "") -> str:
        """The text. With ``style`` it can stand alone as a file."""
        if not style:
            return ET.tostring(self.root, encoding="unicode")
        root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **self.root.attrib})
        sheet = ET.SubElement(root, "style")
        sheet.text = style
        root.extend(self.root)
        return ET.tostring(root, encoding="unicode") + "\n"


def outline(family: str, x: float, y: float, size: float) -> str:
    """The path of a family's mark around (x, y)."""
    if family == "handwritten":
        points = [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)]
    elif family == "cutlass":
        points = [(-0.95, -0.95), (0.95, -0.95), (0.95, 0.95), (-0.95, 0.95)]
    elif family == "cute_dsl":
        points = [(0, -1.2), (1.2, 0.9), (-1.2, 0.9)]
    elif family == "torch":
        thick, long = 0.38, 1.2
        points = [
            (-thick, -long), (thick, -long), (thick, -thick), (long, -thick), (long, thick), (thick, thick),
            (thick, long), (-thick, long), (-thick, thick), (-long, thick), (-long, -thick), (-thick, -thick),
        ]  # fmt: skip
    else:
        half = f"a{size:g} {size:g} 0 1 0"
        return f"M{x - size:.1f} {y:.1f}{half} {2 * size:g} 0{half} {-2 * size:g} 0z"
    return "M" + "L".join(f"{x + size * dx:.1f} {y + size * dy:.1f}" for dx, dy in points) + "z"


def width_of(text: str, size: float = 11.0) -> float:
    """About how wide a text is, in pixels."""
    return CHARACTER * size * len(text)


def grouped(
    points: Sequence[tuple[float, float, str]], near: float, close: float
) -> list[tuple[float, float, list[str]]]:
    """Labels for marks, so that those ``near`` across and ``close`` upwards share one: (rightmost x, mean y, names)."""
    found = []
    left = sorted(points)
    while left:
        x, y, _ = left[0]
        group = [point for point in left if abs(point[0] - x) < near and abs(point[1] - y) < close]
        left = [point for point in left if point not in group]
        mean = sum(point[1] for point in group) / len(group)
        found.append((max(point[0] for point in group), mean, [point[2] for point in group]))
    return found
