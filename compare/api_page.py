"""docs/api.md: the calls that other programs are meant to make, from their own docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

ENTRIES = (
    "handwritten.catalog.get",
    "cutlass_ref.gemm",
    "cutlass_ref.call.choose",
    "kernel.gemm.gemm",
    "kernel.inspection.inspect_kernel",
    "kernel.machine.run_kernel",
    "kernel.machine.simulate",
    "compare.contenders.contenders",
    "compare.load_run",
)
"""Import paths, in the order of the page."""


def text() -> str:
    """The page, in Markdown."""
    lines = [
        "# Calls from Python",
        "",
        "Written by `make readme` from the docstrings. `gemm` needs a GPU; the rest does not. Errors are classes of",
        "`kernel.errors`.",
    ]
    for path in ENTRIES:
        lines += ["", *_entry(path)]
    return "\n".join(lines) + "\n"


def _entry(path: str) -> list[str]:
    module, _, name = path.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    source = function.__module__.replace(".", "/")
    return [
        f"## {path}",
        "",
        f"`{_signature(name, function)}`, in `{source}.py`",
        "",
        *_markdown(inspect.getdoc(function) or ""),
    ]


def _signature(name: str, function: Any) -> str:
    """Annotations are strings there, and print without their quotes, alike in every Python."""
    parts: list[str] = []
    starred = False
    signature = inspect.signature(function)
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        default = "" if one.default is one.empty else f" = {one.default!r}"
        parts.append(f"{one.name}: {one.annotation}{default}")
    return f"{name}({', '.join(parts)}) -> {signature.return_annotation}"


def _markdown(doc: str) -> list[str]:
    """A docstring's sections as headed lists, its examples as code."""
    doc = re.sub(r":\w+:`([^`]+)`", r"`\1`", doc).replace("``", "`")
    lines: list[str] = []
    section = ""
    for line in doc.splitlines():
        opened = re.fullmatch(r"(Args|Raises|Example)(:+)", line)
        if opened:
            if section:
                _close(lines, section)
            section = opened[1]
            title = {"Args": "Arguments", "Raises": "Errors", "Example": "Example"}[section]
            lines += [f"{title}:", "", *(["```python"] if section == "Example" else [])]
            continue
        if section and line and not line.startswith(" "):
            section = _close(lines, section)
        if lines and lines[-1] == "```python" and not line:
            continue
        if section == "Example":
            lines.append(line.removeprefix("    "))
        elif section:
            item = re.fullmatch(r"    (\w[\w, ]*): (.*)", line)
            lines.append(f"- `{item[1]}`: {item[2]}" if item else line.replace("        ", "  ", 1))
        else:
            lines.append(line)
    _close(lines, section)
    lines.pop()
    return lines


def _close(lines: list[str], section: str) -> str:
    """Ends an example's code block, and any section."""
    while lines and not lines[-1]:
        lines.pop()
    lines.extend(["```", ""] if section == "Example" else [""])
    return ""
