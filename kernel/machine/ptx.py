"""Reads PTX text: entries, their parameters, variables, registers and statements, with line numbers.

What PTX means is not decided here: a statement is its guard, its opcode split at the dots, and its
operands as text. :mod:`kernel.machine.lower` gives them meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernel.errors import MachineFault

TYPE_BYTES = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    "f16": 2,
    "bf16": 2,
    "f16x2": 4,
    "bf16x2": 4,
    "tf32": 4,
    "f32": 4,
    "f64": 8,
    "b128": 16,
    "pred": 1,
}
"""Bytes of each fundamental type; a predicate counts as one."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One PTX instruction. ``guard`` is a register name, with ``!`` in front where it is negated."""

    line: int
    text: str
    guard: str
    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    source: tuple[int, int] = (0, 0)
    """(file number, line) of the last ``.loc`` before it; zeros where the PTX carries none."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A named variable of the module or of one function, sizes and alignment in bytes."""

    name: str
    space: str
    size: int
    align: int
    dynamic: bool = False
    """True for an unsized shared array, which starts where the static ones end."""
    content: bytes = b""
    kind: str = ""
    """Type as PTX writes it, such as ``u64`` or ``f32``; empty where the declaration has none."""
    pointer: bool = False
    """True for a parameter that the compiler marked as a pointer."""


@dataclass(slots=True)
class Function:
    """One entry, its statements in source order and its labels (name to index of a statement).

    A name that is declared between braces ends with ``#`` and a number: inline assembly may declare the same
    one in every expansion.
    """

    name: str
    parameters: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    """Register name to type."""
    families: dict[str, tuple[str, int]] = field(default_factory=dict)
    """``.reg .f32 %f<9>`` as prefix to (type, count)."""
    variables: list[Variable] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    max_threads: tuple[int, ...] = ()


@dataclass(slots=True)
class Module:
    """Everything read from one PTX text."""

    target: str = ""
    entries: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)


_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_SPACE = re.compile(r"\s*")
_LABEL = re.compile(r"([$%A-Za-z_][\w$]*)\s*:(?!:)")
_STATEMENT = re.compile(r"[^;]*;")
_LINE = re.compile(r"[^\n]*")
_GUARD = re.compile(r"@(!?)\s*([$%\w]+)\s*")
_OPCODE = re.compile(r"[a-z_][\w.:]*")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_COPY = re.compile(r'(\.file\s+\d+\s+)"[^"]*kernel\.cu"')
_ENTRY = re.compile(r"(?:\.(?:visible|weak|extern)\s+)*\.(entry|func)\b")
_REG = re.compile(r"\.reg\s+\.(\w+)\s+(.*);", re.DOTALL)
_FAMILY = re.compile(r"([$%\w]+)<(\d+)>")
_VARIABLE = re.compile(
    r"(?:\.(?:visible|weak|extern|common)\s+)*\.(global|const|shared|local|param)\s*"
    r"((?:\.(?:align\s+\d+|attribute\([^)]*\)|ptr|v[24]|global|const|shared|local|[busf]\d+|pred|b128)\s*)*)"
    r"([$%\w]+)\s*((?:\[\s*\d*\s*\])*)\s*(?:=\s*(.*))?$",
    re.DOTALL,
)
_WORD = re.compile(r"%?[A-Za-z_$][\w$]*")


def with_source(text: str, source: object) -> str:
    """PTX of a build with the name of its source file, where it has one, instead of the copy's that was compiled."""
    if not isinstance(source, Path):
        return text
    return _COPY.sub(lambda found: f'{found[1]}"{source.name}"', text)


def split_operands(text: str) -> tuple[str, ...]:
    """Operands at the top level of commas: braces, brackets and parentheses keep theirs together."""
    if not any(mark in text for mark in "{[("):
        return tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    parts: list[str] = []
    depth = start = 0
    for position, mark in enumerate(text):
        if mark in "{[(":
            depth += 1
        elif mark in "}])":
            depth -= 1
        elif mark == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return tuple(parts)


def _variable(text: str, line: int) -> Variable:
    match = _VARIABLE.match(text.strip().rstrip(";").strip())
    if match is None:
        raise MachineFault(f"PTX line {line}: this declaration is not understood: {text.strip()[:120]!r}")
    space, attributes, name, extents, initial = match.groups()
    align = re.search(r"\.align\s+(\d+)", attributes)
    kinds = re.findall(r"\.(v[24]|[busf]\d+|pred)\b", attributes)
    element = TYPE_BYTES[kinds[-1]] if kinds else 1
    for kind in kinds[:-1]:
        element *= int(kind[1:])
    sizes = re.findall(r"\[\s*(\d*)\s*\]", extents)
    size = element
    for extent in sizes:
        size *= int(extent) if extent else 0
    content = b""
    if initial is not None:
        integral = bool(kinds) and kinds[-1][0] != "f"
        numbers = re.findall(r"0[fFdD][0-9A-Fa-f]+|-?(?:0[xX][0-9A-Fa-f]+|\d+)", initial)
        for number in numbers:
            if number[:2].lower() in ("0f", "0d"):
                content += int(number[2:], 16).to_bytes(element, "little")
            elif integral:
                content += (int(number, 0) & ((1 << (8 * element)) - 1)).to_bytes(element, "little")
        content = content.ljust(size, b"\0")
    elif space in ("global", "const"):
        content = bytes(size)
    return Variable(
        name=name,
        space=space,
        size=size,
        align=int(align[1]) if align else max(element, 1),
        dynamic=space == "shared" and any(not extent for extent in sizes),
        content=content,
        kind=kinds[-1] if kinds else "",
        pointer=bool(re.search(r"\.ptr\b", attributes)),
    )


def parse(text: str) -> Module:
    """The module that ``text`` describes; bodies of device functions are skipped.

    Raises:
        MachineFault: a declaration cannot be read; names the line.
    """
    text = _COMMENT.sub(lambda found: "\n" * found[0].count("\n") or " ", text)
    module = Module()
    at, line, end = 0, 1, len(text)
    while True:
        skipped = _SPACE.match(text, at)
        assert skipped is not None
        line += text.count("\n", at, skipped.end())
        at = skipped.end()
        if at >= end:
            return module
        entry = _ENTRY.match(text, at)
        if entry is not None:
            stop, next_line = _function(text, at, line, entry[1], module)
            at, line = stop, next_line
            continue
        if text.startswith((".version", ".target", ".address_size", ".file", ".loc ", ".loc\t"), at):
            found = _LINE.match(text, at)
            assert found is not None
            if found[0].startswith(".target"):
                module.target = found[0].split()[1].rstrip(",")
            file = _FILE.match(found[0])
            if file is not None:
                module.files[int(file[1])] = file[2]
            at = found.end()
            continue
        if text.startswith(".section", at):
            stop = _matching_brace(text, text.index("{", at)) + 1
        else:
            semicolon = text.find(";", at)
            stop = (semicolon if semicolon >= 0 else end - 1) + 1
            declaration = text[at:stop]
            if re.match(r"(?:\.(?:visible|weak|extern|common)\s+)*\.(?:global|const|shared)", declaration):
                module.variables.append(_variable(declaration, line))
        line += text.count("\n", at, stop)
        at = stop


def _matching_brace(text: str, at: int) -> int:
    depth = 0
    for found in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.start()
    raise MachineFault("the PTX text ends inside a brace; is the file whole?")


def _function(text: str, at: int, line: int, kind: str, module: Module) -> tuple[int, int]:
    """Read one entry (or skip a device function); the position and line after it."""
    brace, semicolon = text.find("{", at), text.find(";", at)
    if semicolon >= 0 and (brace < 0 or semicolon < brace):
        return semicolon + 1, line + text.count("\n", at, semicolon + 1)
    stop = _matching_brace(text, brace)
    after = line + text.count("\n", at, stop + 1)
    if kind == "func":
        return stop + 1, after
    header = text[at:brace]
    name = re.search(r"\.entry\s+([$\w]+)", header)
    if name is None:
        raise MachineFault(f"PTX line {line}: an entry without a name")
    function = Function(name=name[1])
    opening = header.find("(")
    if opening >= 0:
        for parameter in split_operands(header[opening + 1 : header.index(")", opening)]):
            if parameter:
                function.parameters.append(_variable(parameter, line))
    bound = re.search(r"\.(?:maxntid|reqntid)\s+([\d\s,]+)", header)
    if bound is not None:
        function.max_threads = tuple(int(number) for number in bound[1].split(","))
    _body(text, brace + 1, stop, line + text.count("\n", at, brace + 1), function)
    module.entries[function.name] = function
    return stop + 1, after


@dataclass(slots=True)
class _Scope:
    """What one pair of braces declares: the names as written, to the names as kept."""

    first: int
    """Index of its first statement."""
    names: dict[str, str] = field(default_factory=dict)
    """Registers, which are declared before they are used."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels and tables of labels, which may be used before they stand there."""

    def close(self, function: Function) -> None:
        """Settle the scope's branches. Inner scopes have closed before, so that theirs no longer match."""
        if not self.labels:
            return
        for i in range(self.first, len(function.statements)):
            statement = function.statements[i]
            if statement.opcode[0] in ("bra", "brx"):
                targets = tuple(self.labels.get(operand, operand) for operand in statement.operands)
                function.statements[i] = replace(statement, operands=targets)
        for table in set(self.labels.values()) & set(function.tables):
            function.tables[table] = tuple(self.labels.get(label, label) for label in function.tables[table])


def _body(text: str, at: int, end: int, line: int, function: Function) -> None:
    scopes: list[_Scope] = []
    count = 0  # of names between braces
    source = (0, 0)
    while True:
        skipped = _SPACE.match(text, at, end)
        assert skipped is not None
        line += text.count("\n", at, skipped.end())
        at = skipped.end()
        if at >= end:
            return
        first = text[at]
        if first == "{":
            scopes.append(_Scope(len(function.statements)))
            at += 1
            continue
        if first == "}":
            scopes.pop().close(function)
            at += 1
            continue
        if first == ";":
            at += 1
            continue
        if text.startswith((".loc ", ".loc\t"), at):
            found = _LINE.match(text, at, end)
            assert found is not None
            where = _LOC.match(found[0])
            if where is not None:
                source = (int(where[1]), int(where[2]))
            at = found.end()
            continue
        label = _LABEL.match(text, at, end)
        if label is not None:
            name = label[1]
            if scopes:
                count += 1
                scopes[-1].labels[name] = f"{name}#{count}"
                name = scopes[-1].labels[name]
            rest = _SPACE.match(text, label.end(), end)
            assert rest is not None
            if text.startswith((".branchtargets", ".calltargets", ".callprototype"), rest.end()):
                stop = text.index(";", at, end) + 1
                if text.startswith(".branchtargets", rest.end()):
                    targets = text[rest.end() + len(".branchtargets") : stop - 1]
                    function.tables[name] = tuple(part.strip() for part in targets.split(","))
                line += text.count("\n", at, stop)
                at = stop
                continue
            function.labels[name] = len(function.statements)
            at = label.end()
            continue
        found = _STATEMENT.match(text, at, end)
        if found is None:
            raise MachineFault(f"PTX line {line}: a statement without an end: {text[at : min(at + 60, end)]!r}")
        statement = found[0][:-1]
        if first == ".":
            register = _REG.match(found[0])
            if register is not None:
                for declared in split_operands(register[2]):
                    family = _FAMILY.match(declared)
                    if family is not None and not scopes:
                        function.families[family[1]] = (register[1], int(family[2]))
                        continue
                    for name in [f"{family[1]}{i}" for i in range(int(family[2]))] if family else [declared]:
                        if scopes:
                            count += 1
                            scopes[-1].names[name] = f"{name}#{count}"
                            name = f"{name}#{count}"
                        function.registers[name] = register[1]
            elif not statement.startswith((".pragma", ".file", ".section", ".noreturn")):
                function.variables.append(_variable(statement, line))
        else:
            function.statements.append(_statement(statement, line, scopes, source))
        line += text.count("\n", at, found.end())
        at = found.end()


def _statement(text: str, line: int, scopes: list[_Scope], source: tuple[int, int]) -> Statement:
    shown = " ".join(text.split())
    if any(scope.names for scope in scopes):

        def rename(found: re.Match[str]) -> str:
            for scope in reversed(scopes):
                if found[0] in scope.names:
                    return scope.names[found[0]]
            return found[0]

        # The opcode's own words are left alone: a register may be called p, an opcode never is.
        opcode_at = _GUARD.match(text.lstrip())
        lead = opcode_at.end() if opcode_at is not None else 0
        stripped = text.lstrip()
        opcode = _OPCODE.match(stripped, lead)
        cut = opcode.end() if opcode is not None else lead
        text = _WORD.sub(rename, stripped[:lead]) + stripped[lead:cut] + _WORD.sub(rename, stripped[cut:])
    text = text.strip()
    guard = ""
    guarded = re.match(r"@(!?)\s*([$%\w#]+)\s*", text)
    if guarded is not None:
        guard = guarded[1] + guarded[2]
        text = text[guarded.end() :]
    opcode = _OPCODE.match(text)
    if opcode is None:
        raise MachineFault(f"PTX line {line}: no opcode in {shown[:80]!r}")
    words = tuple(opcode[0].replace("::", ":").split("."))
    return Statement(line, shown, guard, words, split_operands(text[opcode.end() :].strip()), source)
