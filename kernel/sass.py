"""Reads nvdisasm's text: instructions, control flow, loops, the main loop and what its issue slots are spent on.

A *math* instruction is one that does the GEMM's multiply-adds: FFMA, HMMA or HGMMA. *Product loops* are
the loops that do some and have no such loop inside. There may be several: one for whole tiles, one with
guards for tiles that reach beyond an edge or for the last ones of k, one that adds up parts. The *inner
loop* is the one of them with the most math, as written; :mod:`kernel.inspection` knows which one ran. The
*k loop* is the largest loop around it that stores nothing to global memory (a rolled inner loop walks one
block tile, the k loop walks all of them).
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernel.errors import UsageError

INSTRUCTION_BYTES = 16
"""Every instruction from sm_70 on."""

MATH = ("FFMA", "HMMA", "HGMMA")

CLASSES: tuple[tuple[str, str], ...] = (
    ("FFMA", r"FFMA2?"),
    ("HMMA", r"HMMA|IMMA|QMMA|OMMA"),
    ("HGMMA", r"HGMMA|IGMMA|QGMMA"),
    ("LDS", r"LDS"),
    ("LDSM", r"LDSM"),
    ("STS", r"STS|STSM"),
    ("LDGSTS", r"LDGSTS"),
    ("LDG", r"LDG|LD"),
    ("STG", r"STG|ST|RED|REDG|ATOM|ATOMG|REDUX"),
    ("TMA", r"UTMA\w+|UBLK\w+"),
    ("local", r"LDL|STL"),
    (
        "barrier",
        r"BAR|UCGABAR_\w+|SYNCS|LDGDEPBAR|DEPBAR|WARPGROUP|WARPSYNC|ARRIVES|FENCE|MEMBAR|ERRBAR|CGAERRBAR|CCTL\w*|ACQBULK",
    ),
    (
        "control",
        r"BRA|BRX|BRXU|JMP|EXIT|RET|CALL|BSSY|BSYNC|BREAK|BMOV|NOP|YIELD|NANOSLEEP|BPT|USETMAXREG|KILL|PREEXIT|ENDCOLLECTIVE",
    ),
    ("float", r"FADD|FMUL|FSEL|FSETP|FMNMX|MUFU|F2F|F2I|I2F|I2FP|F2FP|HADD2|HMUL2|HFMA2|HSETP2|FCHK|FRND|HMNMX2"),
)
"""Class names and the opcodes in them; everything else is address arithmetic ("integer")."""

LABEL = re.compile(r"^\s*([.$\w]+):\s*$")
CODE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.+?)\s*;")
GUARD = re.compile(r"^@(!?)(U?P\w+)\s+")
TARGET = re.compile(r"`\(([^)]+)\)")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction. ``predicate`` is the guard as written without the @, empty for none."""

    address: int
    predicate: str
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]

    @property
    def name(self) -> str:
        """Opcode with its modifiers, such as LDS.128."""
        return ".".join((self.opcode, *self.modifiers))

    @property
    def text(self) -> str:
        """As the disassembler wrote it."""
        guard = f"@{self.predicate} " if self.predicate else ""
        return f"{guard}{self.name} {', '.join(self.operands)}".rstrip()

    @property
    def kind(self) -> str:
        """The class that :data:`CLASSES` puts it in; what !PT guards only fills slots (ptxas pads cp.async so)."""
        return "control" if self.predicate in ("!PT", "!UPT") else _kind(self.opcode)

    @property
    def label(self) -> str:
        """Label that a branch, call or BSSY names, empty where there is none."""
        for operand in self.operands:
            match = TARGET.search(operand)
            if match:
                return match[1]
        return ""

    @property
    def width(self) -> int:
        """Bytes per lane that a load, store or copy moves; 4 where nothing else is said, 0 for other instructions."""
        if self.kind not in ("LDS", "STS", "LDGSTS", "LDG", "STG", "LDSM", "local"):
            return 0
        if self.opcode in ("LDSM", "STSM"):
            return 16
        for modifier in self.modifiers:
            if modifier in ("64", "128"):
                return int(modifier) // 8
            if modifier in ("U8", "S8"):
                return 1
            if modifier in ("U16", "S16"):
                return 2
        return 4

    @property
    def macs(self) -> int:
        """Multiply-adds of the whole warp (FFMA, HMMA) or warpgroup (HGMMA), 0 for other instructions."""
        if self.kind == "FFMA":
            return 64 if self.opcode == "FFMA2" else 32
        if self.kind == "HMMA":
            shape = next((m for m in self.modifiers if re.fullmatch(r"1?\d{3,5}", m)), "")
            return {"16816": 2048, "1688": 1024, "16832": 4096, "1684": 512, "884": 256}.get(shape, 0)
        if self.kind == "HGMMA":
            shape = next((m for m in self.modifiers if "x" in m), "")
            extents = [int(number) for number in shape.split("x")] if shape else []
            return extents[0] * extents[1] * extents[2] if len(extents) == 3 else 0
        return 0


@functools.cache
def _kind(opcode: str) -> str:
    return next((name for name, pattern in CLASSES if re.fullmatch(pattern, opcode)), "integer")


@dataclass(frozen=True)
class Loop:
    """A natural loop: header block, the blocks in it, and its place among the others."""

    header: int
    """Address of the first instruction of its header."""
    addresses: frozenset[int]
    """Addresses of every instruction in it."""
    back_edges: tuple[int, ...]
    """Addresses of the branches that close it."""


@dataclass(frozen=True)
class Listing:
    """One function: its instructions in address order, and where its labels point."""

    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]

    @functools.cached_property
    def index(self) -> dict[int, int]:
        """Address to position."""
        return {instruction.address: i for i, instruction in enumerate(self.instructions)}

    def target(self, instruction: Instruction) -> int | None:
        """Address that a branch or call goes to, if the text names it."""
        return self.labels.get(instruction.label)

    def successors(self, position: int) -> tuple[int, ...]:
        """Positions that can follow the instruction at ``position``; calls are taken to return."""
        instruction = self.instructions[position]
        following = (position + 1,) if position + 1 < len(self.instructions) else ()
        if instruction.opcode in ("EXIT", "RET", "KILL"):
            return following if instruction.predicate else ()
        if instruction.opcode in ("BRA", "JMP"):
            target = self.target(instruction)
            taken = (self.index[target],) if target in self.index else ()
            conditional = bool(instruction.predicate) or len(instruction.operands) > 1
            return taken + following if conditional else taken
        if instruction.opcode in ("BRX", "BRXU"):
            return following if instruction.predicate else ()
        return following

    @functools.cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Every natural loop, one per header, outermost first."""
        return _natural_loops(self)

    @functools.cached_property
    def product_loops(self) -> tuple[Loop, ...]:
        """The loops that do math and hold no other that does: the most math first, of equals the shortest.

        Of two loops with the same products the longer one spends the rest on guards.
        """
        mathy = [loop for loop in self.loops if self.math(loop)]
        innermost = [a for a in mathy if not any(b.addresses < a.addresses for b in mathy)]
        return tuple(sorted(innermost, key=lambda loop: (-self.math(loop), len(loop.addresses))))

    @property
    def inner_loop(self) -> Loop | None:
        """The product loop with the most math as written, None where no loop does any."""
        return next(iter(self.product_loops), None)

    def k_loop(self, inner: Loop) -> Loop:
        """The largest loop around a product loop that stores nothing to global memory."""
        around = [loop for loop in self.loops if inner.addresses <= loop.addresses and not self._stores(loop)]
        return max(around, key=lambda loop: len(loop.addresses), default=inner)

    def loop_at(self, header: int) -> Loop:
        """The loop whose first instruction is at this address; KeyError where there is none."""
        return {loop.header: loop for loop in self.loops}[header]

    def math(self, loop: Loop) -> int:
        """Multiply-adds written in a loop, counted once whatever its trip count."""
        return sum(i.macs or (i.kind in MATH) for i in self.within(loop))

    def within(self, loop: Loop) -> tuple[Instruction, ...]:
        """The instructions of a loop in address order."""
        return tuple(i for i in self.instructions if i.address in loop.addresses)

    def _stores(self, loop: Loop) -> bool:
        return any(i.kind == "STG" or i.name.startswith(("UTMASTG", "UTMAREDG")) for i in self.within(loop))

    def counts(self, addresses: Iterable[int] | None = None) -> Counter[str]:
        """How often each instruction name occurs, in all of the function or at these addresses."""
        chosen = set(addresses) if addresses is not None else None
        return Counter(i.name for i in self.instructions if chosen is None or i.address in chosen)


def parse(text: str) -> Listing:
    """A function's listing from ``nvdisasm -c`` text.

    Raises:
        UsageError: the text holds no machine instruction (PTX, for one).
    """
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    pending: list[str] = []
    for line in text.splitlines():
        label = LABEL.match(line)
        if label:
            pending.append(label[1])
            continue
        code = CODE.search(line)
        if not code:
            continue
        address, body = int(code[1], 16), code[2]
        for name in pending:
            labels[name] = address
        pending.clear()
        guard = GUARD.match(body)
        if guard:
            body = body[guard.end() :]
        head, _, rest = body.partition(" ")
        opcode, *modifiers = head.split(".")
        instructions.append(
            Instruction(
                address=address,
                predicate=f"{guard[1]}{guard[2]}" if guard else "",
                opcode=opcode,
                modifiers=tuple(modifiers),
                operands=_operands(rest),
            )
        )
    if not instructions:
        raise UsageError("no machine instructions in this text; a listing by nvdisasm is needed (PTX is not one)")
    return Listing(instructions=tuple(instructions), labels=labels)


def _operands(text: str) -> tuple[str, ...]:
    parts: list[str] = []
    depth, current = 0, ""
    for character in text:
        depth += (character in "[({") - (character in "])}")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    if current.strip():
        parts.append(current.strip())
    return tuple(parts)


def _natural_loops(listing: Listing) -> tuple[Loop, ...]:
    """Loops by back edges to a dominator, over blocks of straight-line code."""
    count = len(listing.instructions)
    leaders = {0}
    for position in range(count):
        following = listing.successors(position)
        if following != (position + 1,):
            leaders.update(following)
            if position + 1 < count:
                leaders.add(position + 1)
    starts = sorted(leaders)
    ends = dict(zip(starts, [*starts[1:], count], strict=True))
    follow = {start: listing.successors(ends[start] - 1) for start in starts}
    order = _reverse_postorder(follow)
    dominator = _immediate_dominators(follow, order)

    def dominates(a: int, b: int) -> bool:
        while b != a:
            above = dominator[b]
            if above == b:
                return False
            b = above
        return True

    before: dict[int, list[int]] = {start: [] for start in order}
    for start in order:
        for following_block in follow[start]:
            before[following_block].append(start)
    bodies: dict[int, set[int]] = {}
    closers: dict[int, list[int]] = {}
    for tail in order:
        for header in follow[tail]:
            if dominates(header, tail):
                body = bodies.setdefault(header, {header})
                closers.setdefault(header, []).append(listing.instructions[ends[tail] - 1].address)
                stack = [tail]
                while stack:
                    block = stack.pop()
                    if block not in body:
                        body.add(block)
                        stack.extend(before[block])
    loops = [
        Loop(
            header=listing.instructions[header].address,
            addresses=frozenset(listing.instructions[i].address for block in body for i in range(block, ends[block])),
            back_edges=tuple(sorted(closers[header])),
        )
        for header, body in bodies.items()
    ]
    return tuple(sorted(loops, key=lambda loop: (-len(loop.addresses), loop.header)))


def _reverse_postorder(follow: Mapping[int, Sequence[int]]) -> list[int]:
    seen, order = {0}, []
    stack: list[tuple[int, int]] = [(0, 0)]
    while stack:
        block, child = stack.pop()
        if child < len(follow[block]):
            stack.append((block, child + 1))
            successor = follow[block][child]
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, 0))
        else:
            order.append(block)
    return order[::-1]


def _immediate_dominators(follow: Mapping[int, Sequence[int]], order: Sequence[int]) -> dict[int, int]:
    rank = {block: i for i, block in enumerate(order)}
    before: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for successor in follow[block]:
            before[successor].append(block)
    dominator = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [p for p in before[block] if p in dominator]
            best = known[0]
            for other in known[1:]:
                while best != other:
                    if rank[best] > rank[other]:
                        best = dominator[best]
                    else:
                        other = dominator[other]
            if dominator.get(block) != best:
                dominator[block] = best
                changed = True
    return dominator


def accumulators(instructions: Sequence[Instruction], kind: str = "FFMA") -> int:
    """Accumulators per thread that FFMAs in a loop body add to, whatever registers they rotate through.

    An FFMA whose addend was written by an earlier FFMA of the body continues a chain; any other starts
    one. The number of chains is the number of C elements the thread works on, for any unrolling. With
    ``kind`` HMMA it is the number of 16 x 8 tiles of C that the warp works on.
    """
    produced: set[str] = set()
    chains = 0
    for instruction in instructions:
        if instruction.kind == kind and len(instruction.operands) >= 4:
            result, addend = register(instruction.operands[0]), register(instruction.operands[3])
            chains += addend not in produced
            produced.add(result)
        elif instruction.operands:
            produced.discard(register(instruction.operands[0]))
    return chains


def register(operand: str) -> str:
    """Register name of an operand without sign, reuse flag or suffix; the operand itself where it names none."""
    match = re.match(r"[-~|!]*(U?R(?:\d+|Z))", operand)
    return match[1] if match else operand


def register_reads_per_ffma(instructions: Sequence[Instruction]) -> float:
    """Register-file reads per FFMA: source registers less those that the previous instruction kept by .reuse.

    0 where there are no FFMAs. An operand is kept per source slot, for the next instruction of the warp.
    """
    reads = count = 0
    kept: dict[int, str] = {}
    for instruction in instructions:
        sources = instruction.operands[1:4]
        if instruction.kind == "FFMA":
            count += 1
            for slot, operand in enumerate(sources):
                name = register(operand)
                if re.fullmatch(r"R\d+", name) and kept.get(slot) != name:
                    reads += 1
        kept = {slot: register(operand) for slot, operand in enumerate(sources) if ".reuse" in operand}
    return reads / count if count else 0.0


@dataclass(frozen=True)
class OperandReads:
    """What the FFMAs of a listing ask of the register file; a model, checked against times on an H200.

    Registers lie in two banks, even and odd numbers, each with one read a cycle. ``.reuse`` keeps an operand for later
    instructions of the warp, one register for each source slot and bank.
    """

    ffmas: int
    reads: int
    """Source registers that no reuse cache held."""
    cycles: int
    """The fuller bank's reads, at least one cycle, summed over the FFMAs."""
    clashes: int
    """FFMAs that take more than one cycle so."""
    reused: int
    """Source operands that carry ``.reuse``."""
    in_squares: int
    """FFMAs that share a factor with the one before and another with the one before that: a walk in 2 x 2 squares."""

    @property
    def reads_per_ffma(self) -> float:
        return self.reads / self.ffmas if self.ffmas else 0.0

    @property
    def cycles_per_ffma(self) -> float:
        return self.cycles / self.ffmas if self.ffmas else 0.0


def operand_reads(instructions: Sequence[Instruction]) -> OperandReads:
    """Reads of the register file by the FFMAs among ``instructions``, in their order."""
    kept: dict[tuple[int, int], int] = {}
    ffmas = reads = cycles = clashes = reused = in_squares = 0
    before: list[tuple[str, str]] = []
    for instruction in instructions:
        if instruction.kind != "FFMA":
            continue
        ffmas += 1
        banks = [0, 0]
        fetched: set[int] = set()
        for slot, operand in enumerate(instruction.operands[1:4]):
            match = re.fullmatch(r"R(\d+)", register(operand))
            if match is None:
                continue
            number = int(match[1])
            place = (slot, number % 2)
            if kept.get(place) != number:
                if number not in fetched:
                    fetched.add(number)
                    banks[number % 2] += 1
                kept.pop(place, None)
            if ".reuse" in operand:
                kept[place] = number
                reused += 1
        reads += sum(banks)
        cycles += max(1, *banks)
        clashes += max(banks) > 1
        factors = (register(instruction.operands[1]), register(instruction.operands[2]))
        if len(before) == 2:
            last, earlier = before[1], before[0]
            shared = {slot for slot in (0, 1) if factors[slot] == last[slot]}
            shared_before = {slot for slot in (0, 1) if last[slot] == earlier[slot]}
            in_squares += len(shared) == 1 and len(shared_before) == 1 and shared != shared_before
        before = [*before[-1:], factors]
    return OperandReads(ffmas=ffmas, reads=reads, cycles=cycles, clashes=clashes, reused=reused, in_squares=in_squares)
