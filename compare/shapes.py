"""Shapes as text: ``4096``, ``35x79x19``, names of sets, and options that fix everything else.

A shape is ``MxNxK`` or one number for a cube, followed by options that each begin with ``@``:
``130x130x64@layout=rc@pad_a=3@alpha=0.5@beta=3@align_b=4@input=integers@seed=7``. Several are
separated by commas. What :func:`str` prints of a :class:`Shape`, :func:`parse` reads back.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass

from compare.contenders import Contender
from compare.inputs import DISTRIBUTIONS
from kernel.contract import INT32_MAX, ITEMSIZE, LAYOUTS, MAX_KNOWN_ALIGNMENT, Problem
from kernel.errors import ShapeError, UsageError


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What to compute, without saying who computes it.

    ``layout`` empty means the contender's first; ``pad_*`` are elements by which a leading dimension
    exceeds the width; ``align_*`` are bytes, the exact alignment that the operand's base gets.
    """

    m: int
    n: int
    k: int
    layout: str = ""
    pad_a: int = 0
    pad_b: int = 0
    pad_c: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    align_a: int = MAX_KNOWN_ALIGNMENT
    align_b: int = MAX_KNOWN_ALIGNMENT
    align_c: int = MAX_KNOWN_ALIGNMENT
    input: str = "uniform"
    seed: int = 0
    shape_set: str = dataclasses.field(default="", compare=False)
    """Set that it was drawn from; empty where it was given as numbers."""

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            if not 0 <= getattr(self, name) <= INT32_MAX:
                raise ShapeError(f"{name} = {getattr(self, name)}; extents from 0 to 2**31 - 1 are supported")
        if self.layout and self.layout not in LAYOUTS:
            raise UsageError(f"layout={self.layout}: known layouts are {', '.join(LAYOUTS)} (A, then B)")
        for name in ("pad_a", "pad_b", "pad_c", "seed"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}={getattr(self, name)}: 0 or more is needed")
        for name in ("align_a", "align_b", "align_c"):
            value = getattr(self, name)
            if value < 2 or value > MAX_KNOWN_ALIGNMENT or value & (value - 1):
                raise UsageError(f"{name}={value}: a power of two from 2 to {MAX_KNOWN_ALIGNMENT} bytes is needed")
        for name in ("alpha", "beta"):
            if not math.isfinite(getattr(self, name)):
                raise UsageError(f"{name}={getattr(self, name)}: a finite number is needed")
        if self.input not in DISTRIBUTIONS:
            raise UsageError(f"input={self.input}: known inputs are {', '.join(DISTRIBUTIONS)}")

    def problem(self, contender: Contender) -> Problem:
        """The problem that a contender is given.

        Alignments finer than an element are raised to one element.
        """
        item = ITEMSIZE[contender.dtype_in]
        packed = contender.problem(
            self.m,
            self.n,
            self.k,
            **({"layout": self.layout} if self.layout else {}),
            alpha=self.alpha,
            beta=self.beta,
            align_a=max(self.align_a, item),
            align_b=max(self.align_b, item),
            align_c=max(self.align_c, ITEMSIZE[contender.dtype_out]),
        )
        return packed.replace(lda=packed.lda + self.pad_a, ldb=packed.ldb + self.pad_b, ldc=packed.ldc + self.pad_c)

    @property
    def is_plain(self) -> bool:
        """Whether every option but layout and input is at its default: what a row of a run does not hold."""
        return all(getattr(self, name) == default for name, default in OPTIONS.items() if name not in HELD_BY_ROWS)

    def replace(self, **changes: int | float | str) -> Shape:
        """The same shape with fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        text = f"{self.m}x{self.n}x{self.k}"
        for name, default in OPTIONS.items():
            if getattr(self, name) != default:
                text += f"@{name}={getattr(self, name)}"
        return text


MAX_DIGITS = 12
OPTIONS: dict[str, int | float | str] = {
    field.name: field.default  # type: ignore[misc]
    for field in dataclasses.fields(Shape)
    if field.name not in ("m", "n", "k", "shape_set")
}
"""Every option and its default."""
HELD_BY_ROWS = ("layout", "input")
"""Options that are columns of a run's rows."""

TAIL_SQUARES = (127, 129, 255, 257, 511, 513, 1023, 1025, 2047, 2049, 4092, 4095, 4097)
TOKENS = (1, 16, 128, 2048, 8192)
PROJECTIONS = {
    "Llama 3 8B": ((6144, 4096), (4096, 4096), (14336, 4096), (4096, 14336)),
    "Llama 3 70B": ((10240, 8192), (8192, 8192), (28672, 8192), (8192, 28672)),
}
"""(n, k) of QKV, attention output, FFN up and FFN down; 8 key-value heads of 128 in both models."""

SETS: dict[str, tuple[str, ...]] = {
    "default": ("1024", "2048", "4092", "4096", "8192"),
    "squares": (
        "256", "512", "768", "1024", "1536", "2048", "3072", "4092", "4096", "5120", "6144", "8192", "12288", "16384",
    ),
    "tails": (*map(str, TAIL_SQUARES), "1025x1023x1027", "4095x4097x4093", "2049x127x2047"),
    "skinny": (
        "16x4096x4096", "4096x16x4096", "4096x4096x16", "64x8192x8192", "8192x64x8192", "1x4096x4096",
        "128x128x65536", "256x256x16384", "512x512x8192", "1024x128x16384",
    ),
    "transformer": tuple(
        f"{tokens}x{n}x{k}" for shapes in PROJECTIONS.values() for n, k in shapes for tokens in TOKENS
    ),
    # What every kernel has to survive: tails on each axis, odd and single K tiles, more than 65,535 blocks
    # along an axis, empty extents, alpha and beta, sliced operands, bases off by one element, special values.
    "ladder": (
        "1", "35x79x19", "5x3x433", "100", "128x128x2040", "128x128x8", "256x128x256", "128x256x64",
        "130x130x64", "1000", "1152x1000x2187", "4092", "2097153x4x8",
        "0x64x64", "64x0x64", "64x64x0", "0x0x0", "64x64x0@beta=2.0",
        "130x130x64@alpha=0.5@beta=3.0", "35x79x19@alpha=0.5@beta=3.0@pad_c=2", "130x130x64@alpha=0.0@beta=2.0",
        "130x130x64@pad_a=32", "128x128x128@pad_a=1@pad_b=3@pad_c=5", "35x79x19@pad_a=2@pad_b=1@pad_c=1",
        "128@align_a=4", "128@align_b=4", "128@align_c=4", "129x67x35@align_a=4@align_b=4@align_c=4",
        "128@input=identity", "130x128x33@input=nan", "130x128x33@input=inf", "130x130x67@input=special",
        "128x128x1024@input=vanish", "67x45x31@input=denormal", "257x129x300@input=integers",
        "256x256x1024@input=positive", "256x256x1024@input=normal",
    ),
    # Enough to reject every kernel in tests/wrong_kernels, small enough for the PTX machine.
    "small": (
        "1", "17x33x9", "35x79x19", "16x16x8", "40x24x21",
        "0x8x8", "8x0x8", "9x7x0", "9x7x0@beta=2.0", "20x12x10@alpha=0.0@beta=2.0",
        "33x18x20@alpha=0.5@beta=3.0", "18x33x13@pad_a=3@pad_b=1@pad_c=2", "19x21x23@align_a=4@align_b=4@align_c=4",
        "32@input=identity", "18x16x17@input=nan", "18x16x17@input=inf", "19x17x13@input=special",
        "16x16x64@input=vanish", "19x17x13@input=denormal", "21x18x30@input=integers",
    ),
}  # fmt: skip
"""Named sets; ``default`` is what compare runs when nothing is given, ``ladder`` what check runs."""


def parse(text: str) -> tuple[Shape, ...]:
    """Shapes from text: set names, shapes, or both, separated by commas. Order is kept, repeats are dropped.

    Raises:
        UsageError: empty text, an unknown set or option, or a malformed number.
        ShapeError: an extent out of range.
    """
    shapes: dict[Shape, None] = {}
    for part in text.split(","):
        word = part.strip()
        if not word:
            continue
        if word in SETS:
            for member in SETS[word]:
                shapes.setdefault(dataclasses.replace(_one(member), shape_set=word))
        else:
            shapes.setdefault(_one(word))
    if not shapes:
        raise UsageError(f"no shape in {text!r}; give MxNxK, or one of {', '.join(SETS)}")
    return tuple(shapes)


def parse_one(text: str, option: str) -> Shape:
    """The one shape that ``option`` wants.

    Raises:
        UsageError, ShapeError: it is none, or it is a set or several.
    """
    found = parse(text)
    if len(found) > 1 or found[0].shape_set:
        what = f"a set of {len(found)} shapes" if text.strip() in SETS else f"{len(found)} shapes"
        raise UsageError(f"{option} {text!r} is {what}, and one is wanted; give MxNxK, such as {found[0]}")
    return found[0]


def _one(text: str) -> Shape:
    extents, *options = text.split("@")
    numbers = extents.lower().split("x")
    if len(numbers) not in (1, 3) or not all(part.strip().isascii() and part.strip().isdigit() for part in numbers):
        near = difflib.get_close_matches(text, SETS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{text!r} is neither MxNxK nor one of {', '.join(SETS)}{hint}")
    longest = max(numbers, key=len)
    if len(longest) > MAX_DIGITS:
        raise ShapeError(f"an extent of {len(longest)} digits; extents from 0 to 2**31 - 1 are supported")
    m, n, k = (int(part) for part in (numbers * 3 if len(numbers) == 1 else numbers))
    known = {name: type(default) for name, default in OPTIONS.items()}
    values: dict[str, int | float | str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if name in known and not equals:
            raise UsageError(f"{text!r}: option {name!r} has no value; write {name}={OPTIONS[name] or 'rr'}")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"{text!r}: unknown option {option!r}; known: {', '.join(known)}{hint}")
        try:
            if known[name] is not str and (not value.isascii() or "_" in value):  # digits to Python alone
                raise ValueError(value)
            values[name] = known[name](value)
        except ValueError:
            raise UsageError(f"{text!r}: {name}={value!r} is no {known[name].__name__}") from None
    return Shape(m=m, n=n, k=k, **values)  # type: ignore[arg-type]
