"""Runs the address arithmetic of one thread block's SASS, to see which lane touches which byte.

Integer instructions, predicates, branches and shared memory are executed for every thread of one
block; floating-point results are not computed. What a load brings is not a number but the global
address it came from (its *origin*), which shared memory keeps, so that an FFMA's operands tell which
elements of A and B they hold. Whatever depends on memory contents is *unknown* and spreads as such.

Threads that have diverged run lowest address first, so they meet again where the compiler laid the
paths together; a barrier needs nothing beyond that. An unknown branch goes towards the main loop until
that has run ``Run.iterations`` times, then away from it. Not modelled: data that passes between warps
by polling, local memory, and instructions of other than integer kind.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.contract import Argument
from kernel.errors import UsageError
from kernel.sass import Instruction, Listing, register

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
MASK32 = 0xFFFFFFFF
RZ, PT = 255, 7
NO_ORIGIN = -1
SMEM_WORDS = 256 * 1024 // 4
"""Words of the shared window that are kept, more than any SM has."""
STEP_LIMIT = 60_000
"""Instructions (each for all threads at one address) after which a run ends, so that any cubin ends."""

PARAMETER_BASE = {7: 0x160, 8: 0x160, 9: 0x210, 10: 0x380, 12: 0x380}
"""Offset of the first kernel parameter in constant bank 0, by major architecture."""
LAUNCH_BASE = {7: 0x0, 8: 0x0, 9: 0x0, 10: 0x360, 12: 0x360}
"""Offset of the block extents (three words) and grid extents (three) in constant bank 0."""


@dataclass(frozen=True)
class Access:
    """One execution of a memory instruction by every thread of the block that took part."""

    instruction: Instruction
    addresses: Ints
    """Byte address per thread: shared for LDS, STS and LDSM, global for LDG and STG, shared for LDGSTS."""
    active: Bools
    """Threads that took part and whose address is known."""
    complete: bool
    """False where an active thread's address is unknown."""
    origins: Ints | None = None
    """LDS and LDGSTS, words x threads: global byte address each word came from, NO_ORIGIN where unknown."""


@dataclass
class Run:
    """What a run saw."""

    threads: int
    accesses: dict[int, list[Access]] = field(default_factory=dict)
    """By instruction address, the first :attr:`keep` executions."""
    executed: Counter[int] = field(default_factory=Counter)
    """Warp-level executions per instruction address, whole block."""
    factors: list[tuple[Ints, Ints]] = field(default_factory=list)
    """Origins of both factors per thread, of the first FFMAs that multiplied two loaded numbers."""
    lane_fmas: int = 0
    """FFMAs executed, counted per thread."""
    traced_fmas: int = 0
    """Those of them whose two factors were both loaded from global memory (epilogues multiply by constants)."""
    sources_known: bool = False
    """True where some asynchronous copy's global address was known, so that one without reads nothing."""
    guessed: set[int] = field(default_factory=set)
    """Addresses of branches whose direction was not known; counts of a loop that holds one are not exact."""
    finished: bool = False
    """True where every thread reached its end; false where the step limit or an unknown call stopped the run."""
    unsupported: Counter[str] = field(default_factory=Counter)
    """Instruction names whose result was taken as unknown although they may be address arithmetic."""
    keep: int = 64
    keep_factors: int = 2048


def parameter_alignments(ptx: str, entry: str) -> tuple[int, ...]:
    """Alignment in bytes of each parameter of an entry, from its declaration in PTX; empty where it is not declared."""
    found = re.search(rf"\.entry\s+{re.escape(entry)}\s*\(([^)]*)\)", ptx)
    if not found:
        return ()
    declared = re.findall(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.([a-z])(\d+)", found[1])
    return tuple(int(aligned) if aligned else int(bits) // 8 for aligned, _, bits in declared)


def constant_bank(
    arch: str,
    block: tuple[int, int, int],
    grid: tuple[int, int, int],
    arguments: Sequence[Argument] = (),
    alignments: Sequence[int] = (),
) -> dict[int, int]:
    """Known words of constant bank 0 by offset: launch extents, and parameters at their alignments (bytes).

    The first parameter starts at a multiple of the strictest alignment. Parameters stay unknown where the
    number of alignments is another than theirs.
    """
    major = _major(arch)
    words = {LAUNCH_BASE[major] + 4 * i: extent for i, extent in enumerate((*block, *grid))}
    if not arguments or len(alignments) != len(arguments):
        return words
    strictest = max(alignments)
    place = -(-PARAMETER_BASE[major] // strictest) * strictest
    for argument, alignment in zip(arguments, alignments, strict=True):
        place = -(-place // alignment) * alignment
        padded = argument.data + bytes(-len(argument.data) % 4)
        for i in range(0, len(padded), 4):
            (value,) = struct.unpack_from("<I", padded, i)
            offset = place + i
            words[offset - offset % 4] = words.get(offset - offset % 4, 0) | value << offset % 4 * 8
        place += len(argument.data)
    return words


def _major(arch: str) -> int:
    match = re.fullmatch(r"sm_(\d+)\d[af]?", arch)
    if not match or int(match[1]) not in PARAMETER_BASE:
        raise UsageError(f"where {arch} keeps kernel parameters is not known; sm_80 to sm_120 are supported")
    return int(match[1])


class Unsupported(Exception):  # noqa: N818 - control flow inside this module
    """An instruction whose result is not computed."""


class Block:
    """The state of one thread block and the interpreter over it."""

    def __init__(
        self,
        listing: Listing,
        arch: str,
        block: tuple[int, int, int],
        constants: Mapping[int, int],
        block_index: tuple[int, int, int] = (0, 0, 0),
        iterations: int = 3,
    ) -> None:
        self.listing, self.constants, self.block_index, self.iterations = listing, constants, block_index, iterations
        self.extents = block
        count = block[0] * block[1] * block[2]
        self.padded = -(-count // 32) * 32
        self.run = Run(threads=count)
        lanes = np.arange(self.padded, dtype=np.int64)
        self.thread = lanes
        self.live = lanes < count
        shape = (256, self.padded)
        self.value: dict[str, Ints] = {kind: np.zeros(shape, np.int64) for kind in ("R", "UR")}
        self.known: dict[str, Bools] = {kind: np.zeros(shape, np.bool_) for kind in ("R", "UR")}
        self.origin = np.full(shape, NO_ORIGIN, np.int64)
        self.known["R"][RZ] = True
        self.known["UR"][RZ] = True
        self.flag: dict[str, Bools] = {kind: np.zeros((8, self.padded), np.bool_) for kind in ("P", "UP")}
        self.flag_known: dict[str, Bools] = {kind: np.zeros((8, self.padded), np.bool_) for kind in ("P", "UP")}
        for kind in ("P", "UP"):
            self.flag[kind][PT] = self.flag_known[kind][PT] = True
        self.smem_value = np.zeros(SMEM_WORDS, np.int64)
        self.smem_known = np.zeros(SMEM_WORDS, np.bool_)
        self.smem_origin = np.full(SMEM_WORDS, NO_ORIGIN, np.int64)
        self.pc = np.where(self.live, 0, len(listing.instructions)).astype(np.int64)
        loop = listing.inner_loop
        self.goal = listing.index[loop.header] if loop else None
        self.towards = self._distances(self.goal)
        self.away = self._distances_to_exit()

    def execute(self, step_limit: int = STEP_LIMIT) -> Run:
        """Run to the end or to the step limit."""
        end = len(self.listing.instructions)
        visits: Counter[int] = Counter()
        for _ in range(step_limit):
            position = int(self.pc.min())
            if position >= end:
                self.run.finished = True
                break
            active = self.pc == position
            instruction = self.listing.instructions[position]
            visits[position] += 1
            warps = np.count_nonzero(active.reshape(-1, 32).any(axis=1))
            self.run.executed[instruction.address] += int(warps)
            if not self._step(instruction, position, active, visits):
                break
        return self.run

    # --- control ---------------------------------------------------------------------------------

    def _distances(self, goal: int | None) -> dict[int, int]:
        if goal is None:
            return {}
        before: dict[int, list[int]] = {}
        for position in range(len(self.listing.instructions)):
            for following in self.listing.successors(position):
                before.setdefault(following, []).append(position)
        return _breadth_first([goal], before)

    def _distances_to_exit(self) -> dict[int, int]:
        before: dict[int, list[int]] = {}
        exits = []
        for position, instruction in enumerate(self.listing.instructions):
            if instruction.opcode == "EXIT":
                exits.append(position)
            for following in self.listing.successors(position):
                before.setdefault(following, []).append(position)
        return _breadth_first(exits, before)

    def _step(self, instruction: Instruction, position: int, active: Bools, visits: Counter[int]) -> bool:
        truth, sure = self._guard(instruction.predicate)
        opcode = instruction.opcode
        if opcode in ("BRA", "JMP", "EXIT", "RET", "CALL", "BRX", "BRXU"):
            return self._jump(instruction, position, active, truth, sure, visits)
        mask = active & (truth | ~sure)
        doubtful = active & ~sure
        if mask.any():
            try:
                self._compute(instruction, mask)
            except Unsupported:
                if instruction.kind == "integer":
                    self.run.unsupported[instruction.name] += 1
                self._forget(instruction, mask)
            if doubtful.any() and instruction.kind in ("integer", "control"):
                self._forget(instruction, doubtful)
        self.pc[active] = position + 1
        return True

    def _guard(self, predicate: str) -> tuple[Bools, Bools]:
        if not predicate:
            return self.flag["P"][PT], self.flag_known["P"][PT]
        return self._flag(predicate)

    def _jump(
        self,
        instruction: Instruction,
        position: int,
        active: Bools,
        truth: Bools,
        sure: Bools,
        visits: Counter[int],
    ) -> bool:
        end = len(self.listing.instructions)
        opcode = instruction.opcode
        for operand in instruction.operands:
            if re.fullmatch(r"!?U?P[\dT]", operand):
                more, more_sure = self._flag(operand)
                truth, sure = truth & more, sure & more_sure
        if "ANY" in instruction.modifiers:
            # Taken by the whole warp where any of its lanes would.
            truth = np.repeat((truth & active).reshape(-1, 32).any(axis=1), 32)
            sure = np.repeat((sure | ~active).reshape(-1, 32).all(axis=1), 32)
        if opcode == "EXIT":
            target = end
        elif opcode == "RET":
            name = register(instruction.operands[0]) if instruction.operands else ""
            number = int(name[1:]) if re.fullmatch(r"R\d+", name) else RZ
            back = self.value["R"][number]
            places = [self.listing.index.get(int(address)) for address in np.unique(back[active])]
            if not self.known["R"][number][active].all() or len(places) != 1 or places[0] is None:
                return False
            target = places[0]
        elif opcode in ("BRX", "BRXU"):
            return False
        else:
            address = self.listing.target(instruction)
            if address is None or address not in self.listing.index:
                self.run.unsupported[instruction.name] += 1
                self.pc[active] = position + 1
                return True
            target = self.listing.index[address]
        go = active & truth & sure
        doubtful = active & self.live & ~sure
        if doubtful.any():
            self.run.guessed.add(instruction.address)
            if self._prefers(target, position + 1, visits):
                go |= doubtful
        self.pc[active] = position + 1
        self.pc[go] = target
        return True

    def _prefers(self, target: int, following: int, visits: Counter[int]) -> bool:
        """Whether an unknown branch is taken."""
        far = 1 << 30
        reached = self.goal is None or visits[self.goal] >= self.iterations
        distances = self.away if reached else self.towards
        return distances.get(target, far) < distances.get(following, far)

    # --- operands --------------------------------------------------------------------------------

    def _flag(self, text: str) -> tuple[Bools, Bools]:
        negated = text.startswith("!")
        name = text.lstrip("!")
        kind = "UP" if name.startswith("UP") else "P"
        number = PT if name.endswith("T") else int(name[-1])
        truth = self.flag[kind][number]
        return (~truth if negated else truth), self.flag_known[kind][number]

    def _set_flag(self, text: str, truth: Bools, sure: Bools, mask: Bools) -> None:
        kind = "UP" if text.startswith("UP") else "P"
        if text.endswith("T"):
            return
        number = int(text[-1])
        self.flag[kind][number][mask] = truth[mask]
        self.flag_known[kind][number][mask] = sure[mask]

    def _read(self, text: str, wide: bool = False) -> tuple[Ints, Bools]:
        """An operand's value per thread, as an unsigned 32-bit (or 64-bit) number, and where it is known."""
        body = text.replace(".reuse", "")
        negative = body.startswith("-")
        inverted = body.startswith("~")
        body = body.lstrip("-~").strip("|")
        match = re.fullmatch(r"(U?R)(\d+|Z)((?:\.\w+)*)", body)
        if match:
            kind, number = match[1], RZ if match[2] == "Z" else int(match[2])
            value, known = self.value[kind][number], self.known[kind][number]
            if wide and number != RZ:
                value = value | self.value[kind][number + 1] << 32
                known = known & self.known[kind][number + 1]
            if match[3] == ".H0_H0":
                value = value & 0xFFFF
        elif re.fullmatch(r"(0x[0-9a-f]+|\d+)", body):
            value = np.full(self.padded, int(body, 0), np.int64)
            known = np.ones(self.padded, np.bool_)
            if wide and value[0] >> 31 & 1:
                value = value | ~np.int64(MASK32)
        elif re.fullmatch(r"[+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|INF|QNAN)", body):
            number = np.float32(float(body.replace("QNAN", "nan")))
            value = np.full(self.padded, int(number.view(np.uint32)), np.int64)
            known = np.ones(self.padded, np.bool_)
        else:
            constant = re.fullmatch(r"c\[(?:0x)?0\]\[0x([0-9a-f]+)\](?:\.\w+)?", body)
            if not constant:
                raise Unsupported(text)
            offset = int(constant[1], 16)
            value, sure = self._constant(offset)
            if wide:
                high, high_sure = self._constant(offset + 4)
                value, sure = value | high << 32, sure and high_sure
            value = np.full(self.padded, value, np.int64)
            known = np.full(self.padded, sure, np.bool_)
        if negative:
            value = -value
        if inverted:
            value = ~value
        return (value if wide else value & MASK32), known

    def _constant(self, offset: int) -> tuple[int, bool]:
        value = self.constants.get(offset - offset % 4)
        return (0, False) if value is None else (value >> (offset % 4 * 8), True)

    def _write(self, text: str, value: Ints, known: Bools, mask: Bools, origin: Ints | None = None) -> None:
        match = re.fullmatch(r"(U?R)(\d+|Z)", text)
        if not match:
            raise Unsupported(text)
        if match[2] == "Z":
            return
        kind, number = match[1], int(match[2])
        self.value[kind][number][mask] = value[mask] & MASK32
        self.known[kind][number][mask] = known[mask]
        if kind == "R":
            self.origin[number][mask] = NO_ORIGIN if origin is None else origin[mask]

    def _write_wide(self, text: str, value: Ints, known: Bools, mask: Bools) -> None:
        match = re.fullmatch(r"(U?R)(\d+|Z)", text)
        if not match:
            raise Unsupported(text)
        if match[2] != "Z":
            self._write(text, value & MASK32, known, mask)
            self._write(f"{match[1]}{int(match[2]) + 1}", value >> 32 & MASK32, known, mask)

    def _forget(self, instruction: Instruction, mask: Bools) -> None:
        """Make every register and predicate that the instruction may write unknown."""
        widths = {"64": 2, "128": 4, "WIDE": 2}
        span = max([widths.get(m, 1) for m in instruction.modifiers], default=1)
        for operand in instruction.operands[:3]:
            match = re.fullmatch(r"(U?R)(\d+)", operand)
            if match:
                for number in range(int(match[2]), min(int(match[2]) + span, 255)):
                    self.known[match[1]][number][mask] = False
                    if match[1] == "R":
                        self.origin[number][mask] = NO_ORIGIN
                break
            if re.fullmatch(r"U?P\d", operand):
                self.flag_known["UP" if operand[0] == "U" else "P"][int(operand[-1])][mask] = False

    def _address(self, text: str) -> tuple[Ints, Bools]:
        """Byte address that a bracketed operand stands for."""
        inner = re.search(r"\[([^\[\]]*)\]$", text)
        if not inner:
            raise Unsupported(text)
        total = np.zeros(self.padded, np.int64)
        sure = np.ones(self.padded, np.bool_)
        is_global = text.startswith("desc") or ".64" in inner[1]
        for sign, part in re.findall(r"([+-]?)([^+-]+)", inner[1]):
            base, _, suffix = part.partition(".")
            if re.fullmatch(r"U?R(\d+|Z)", base):
                wide = suffix == "64" or (is_global and base.startswith("UR"))
                value, known = self._read(base, wide=wide)
                if suffix in ("X4", "X8", "X16"):
                    value = value * int(suffix[1:])
            else:
                value, known = self._read(part)
            total = total - value if sign == "-" else total + value
            sure = sure & known
        return (total if is_global else total & MASK32), sure

    # --- instructions ----------------------------------------------------------------------------

    def _compute(self, instruction: Instruction, mask: Bools) -> None:
        opcode = instruction.opcode
        if instruction.kind == "FFMA":
            self._multiply_add(instruction, mask)
            return
        handler = HANDLERS.get(opcode)
        if handler is None and opcode.startswith("U"):
            handler = HANDLERS.get(opcode[1:])
        if handler is not None:
            handler(self, instruction, mask)
        elif instruction.kind not in ("control", "barrier", "TMA", "HGMMA"):
            raise Unsupported(opcode)

    def _multiply_add(self, instruction: Instruction, mask: Bools) -> None:
        result, left, right = (register(operand) for operand in instruction.operands[:3])
        if not re.fullmatch(r"R\d+", result):
            return
        number = int(result[1:])
        factors = None
        if re.fullmatch(r"R\d+", left) and re.fullmatch(r"R\d+", right):
            factors = self.origin[int(left[1:])].copy(), self.origin[int(right[1:])].copy()
        self.known["R"][number][mask] = False
        self.origin[number][mask] = NO_ORIGIN
        self.run.lane_fmas += int(np.count_nonzero(mask & self.live))
        if factors is not None:
            a, b = factors
            both = mask & self.live & (a != NO_ORIGIN) & (b != NO_ORIGIN)
            self.run.traced_fmas += int(np.count_nonzero(both))
            if len(self.run.factors) < self.run.keep_factors and both.any():
                self.run.factors.append((np.where(both, a, NO_ORIGIN), np.where(both, b, NO_ORIGIN)))

    def _note(
        self, instruction: Instruction, addresses: Ints, sure: Bools, mask: Bools, origins: Ints | None = None
    ) -> None:
        kept = self.run.accesses.setdefault(instruction.address, [])
        if len(kept) < self.run.keep:
            taking = mask & self.live
            kept.append(
                Access(
                    instruction=instruction,
                    addresses=addresses.copy(),
                    active=taking & sure,
                    complete=bool((sure | ~taking).all()),
                    origins=origins,
                )
            )

    def _load(self, instruction: Instruction, mask: Bools) -> None:
        place = next(i for i, operand in enumerate(instruction.operands) if operand.endswith("]"))
        addresses, sure = self._address(instruction.operands[place])
        shared = instruction.kind == "LDS"
        words = max(instruction.width // 4, 1)
        place_of = [np.clip((addresses + 4 * i) // 4, 0, SMEM_WORDS - 1) for i in range(words)]
        origins = np.stack([self.smem_origin[word] for word in place_of]) if shared else None
        self._note(instruction, addresses, sure, mask, origins)
        first = register(instruction.operands[place - 1])
        if not re.fullmatch(r"R\d+", first):
            return
        for i, word in enumerate(place_of):
            name = f"R{int(first[1:]) + i}"
            if shared:
                origin = np.where(sure, self.smem_origin[word], NO_ORIGIN)
                self._write(name, self.smem_value[word], sure & self.smem_known[word], mask, origin)
            else:
                origin = np.where(sure, addresses + 4 * i, NO_ORIGIN)
                self._write(name, np.zeros(self.padded, np.int64), np.zeros(self.padded, np.bool_), mask, origin)

    def _store(self, instruction: Instruction, mask: Bools) -> None:
        place = next(i for i, operand in enumerate(instruction.operands) if operand.endswith("]"))
        addresses, sure = self._address(instruction.operands[place])
        self._note(instruction, addresses, sure, mask)
        if instruction.opcode != "STS":
            return
        first = register(instruction.operands[place + 1])
        number = int(first[1:]) if re.fullmatch(r"R\d+", first) else RZ
        taking = mask & sure & self.live
        for i in range(max(instruction.width // 4, 1)):
            source = number if number == RZ else number + i
            word = np.clip((addresses[taking] + 4 * i) // 4, 0, SMEM_WORDS - 1)
            self.smem_value[word] = self.value["R"][source][taking]
            self.smem_known[word] = self.known["R"][source][taking]
            self.smem_origin[word] = self.origin[source][taking]

    def _copy(self, instruction: Instruction, mask: Bools) -> None:
        """LDGSTS [shared], desc[..][global] {, predicate that says whether anything is read}."""
        brackets = [operand for operand in instruction.operands if operand.endswith("]")]
        addresses, sure = self._address(brackets[0])
        sources, source_sure = self._address(brackets[1])
        for operand in instruction.operands:
            if re.fullmatch(r"!?P\w", operand):
                reads, reads_sure = self._flag(operand)
                source_sure = source_sure & reads & reads_sure
        self._note(instruction, addresses, sure, mask, np.where(source_sure, sources, NO_ORIGIN)[np.newaxis])
        self.run.sources_known |= bool((source_sure & mask & self.live).any())
        taking = mask & sure & self.live
        for i in range(max(instruction.width // 4, 1)):
            word = np.clip((addresses[taking] + 4 * i) // 4, 0, SMEM_WORDS - 1)
            self.smem_known[word] = False
            self.smem_origin[word] = np.where(source_sure, sources + 4 * i, NO_ORIGIN)[taking]

    def _matrix_load(self, instruction: Instruction, mask: Bools) -> None:
        addresses, sure = self._address(instruction.operands[-1])
        self._note(instruction, addresses, sure, mask)
        self._forget(instruction, mask)

    def _constant_load(self, instruction: Instruction, mask: Bools) -> None:
        source = instruction.operands[1]
        indexed = re.fullmatch(r"c\[(?:0x)?0\]\[(U?R\w+)(?:\+(-?0x[0-9a-f]+))?\]", source)
        if indexed:
            index, known = self._read(indexed[1])
            places = np.unique(index[mask])
            if len(places) != 1 or not known[mask].all():
                raise Unsupported(source)
            source = f"c[0x0][0x{(int(places[0]) + int(indexed[2] or '0', 0)) & MASK32:x}]"
        if instruction.opcode.endswith("LDCU") or "64" in instruction.modifiers or "128" in instruction.modifiers:
            for i in range({"64": 2, "128": 4}.get((*instruction.modifiers, "")[0], 1)):
                match = re.fullmatch(r"(U?R)(\d+)", instruction.operands[0])
                offset = re.fullmatch(r"c\[(?:0x)?0\]\[0x([0-9a-f]+)\]", source)
                if not match or not offset:
                    raise Unsupported(source)
                value, known = self._read(f"c[0x0][0x{int(offset[1], 16) + 4 * i:x}]")
                self._write(f"{match[1]}{int(match[2]) + i}", value, known, mask)
            return
        value, known = self._read(source)
        if instruction.modifiers and instruction.modifiers[0] in ("U8", "S8", "U16", "S16"):
            bits = int(instruction.modifiers[0][1:])
            value = value & ((1 << bits) - 1)
            if instruction.modifiers[0][0] == "S":
                value = value - (value >> (bits - 1) << bits)
        self._write(instruction.operands[0], value, known, mask)

    def _special(self, instruction: Instruction, mask: Bools) -> None:
        name = instruction.operands[1]
        x, y, _ = self.extents
        thread = self.thread
        values: dict[str, Any] = {
            "SR_TID.X": thread % x,
            "SR_TID.Y": thread // x % y,
            "SR_TID.Z": thread // (x * y),
            "SR_LANEID": thread % 32,
            "SR_CTAID.X": self.block_index[0],
            "SR_CTAID.Y": self.block_index[1],
            "SR_CTAID.Z": self.block_index[2],
            "SR_CgaCtaId": 0,
            "SRZ": 0,
            "SR_SWINHI": 0,
        }
        if name not in values:
            raise Unsupported(name)
        value = np.broadcast_to(np.asarray(values[name], np.int64), (self.padded,))
        known = np.ones(self.padded, np.bool_)
        self._write(instruction.operands[0], value, known, mask)
        if instruction.opcode == "CS2R" and "32" not in instruction.modifiers:
            match = re.fullmatch(r"R(\d+)", instruction.operands[0])
            if match:
                self._write(f"R{int(match[1]) + 1}", value, known, mask)

    def _move(self, instruction: Instruction, mask: Bools) -> None:
        result, source = instruction.operands[0], instruction.operands[1]
        if "64" in instruction.modifiers:
            value, known = self._read(source, wide=True)
            self._write_wide(result, value, known, mask)
            return
        value, known = self._read(source)
        name = register(source)
        origin = self.origin[int(name[1:])] if re.fullmatch(r"R\d+", name) else None
        self._write(result, value, known, mask, origin)

    def _to_uniform(self, instruction: Instruction, mask: Bools) -> None:
        """R2UR: the value of the warp's first active lane, in every lane."""
        place = 1 if not instruction.operands[0].startswith(("P", "UP")) else 2
        value, known = self._read(instruction.operands[place])
        first = _first_active(mask)
        self._write(instruction.operands[place - 1], value[first], known[first], mask)
        if place == 2:
            # The predicate tells the lanes whose own value is another; a loop then comes back for them.
            other, sure = value != value[first], known & known[first]
            if "OR" in instruction.modifiers:
                before, before_sure = self._flag(instruction.operands[0])
                other, sure = other | before, sure & before_sure
            self._set_flag(instruction.operands[0], other, sure, mask)

    def _integer_multiply_add(self, instruction: Instruction, mask: Bools) -> None:
        modifiers = instruction.modifiers
        operands = list(instruction.operands)
        if "MOV" in modifiers:
            value, known = self._read(operands[3])
            name = register(operands[3])
            origin = self.origin[int(name[1:])] if re.fullmatch(r"R\d+", name) else None
            self._write(operands[0], value, known, mask, origin)
            return
        carry_out = operands.pop(1) if re.fullmatch(r"U?P[\dT]", operands[1]) else None
        carry_in = operands.pop(4) if len(operands) > 4 else None
        wide, high = "WIDE" in modifiers, "HI" in modifiers
        unsigned = "U32" in modifiers
        a, a_known = self._read(operands[1])
        b, b_known = self._read(operands[2])
        c, c_known = self._read(operands[3], wide=wide or high)
        if (wide or high) and not unsigned:
            a, b = _signed(a), _signed(b)
        known = _product_known(a, a_known, b, b_known) & c_known
        value = _multiply_wrapping(a, b) + c
        if wide:
            self._write_wide(operands[0], value, known, mask)
        elif high:
            self._write(operands[0], _high_word(a, b, c), known, mask)
        else:
            if "X" in modifiers and carry_in:
                truth, sure = self._flag(carry_in)
                value, known = value + truth, known & sure
            self._write(operands[0], value, known, mask)
        if carry_out:
            self._set_flag(carry_out, np.zeros_like(known), np.zeros_like(known), mask)

    def _add(self, instruction: Instruction, mask: Bools) -> None:
        operands = list(instruction.operands)
        result = operands.pop(0)
        outs: list[str] = []
        while operands and re.fullmatch(r"U?P[\dT]", operands[0]):
            outs.append(operands.pop(0))
        flags = [o for o in operands if re.fullmatch(r"!?U?P[\dT]", o)]
        terms = [o for o in operands if o not in flags]
        if "64" in instruction.modifiers:
            value = np.zeros(self.padded, np.int64)
            known = np.ones(self.padded, np.bool_)
            for term in terms:
                read, sure = self._read(term, wide=True)
                value, known = value + read, known & sure
            self._write_wide(result, value, known, mask)
            for out in outs:
                self._set_flag(out, np.zeros_like(known), np.zeros_like(known), mask)
            return
        value = np.zeros(self.padded, np.int64)
        known = np.ones(self.padded, np.bool_)
        for term in terms:
            # A negated term is a complement plus one, so that subtracting zero carries as the hardware does.
            read, sure = self._read(term.lstrip("-"))
            value, known = value + ((1 << 32) - read if term.startswith("-") else read), known & sure
        if "X" in instruction.modifiers:
            # Negated terms of an extended add are complements: the carry chain supplies the one.
            value = np.zeros(self.padded, np.int64)
            for term in terms:
                read, _ = self._read("~" + term[1:] if term.startswith("-") else term)
                value = value + read
            for name in flags:
                truth, sure = self._flag(name)
                value, known = value + truth, known & sure
        self._write(result, value, known, mask)
        for position, out in enumerate(outs):
            self._set_flag(out, (value >> 32) > position, known, mask)

    def _shift_add(self, instruction: Instruction, mask: Bools) -> None:
        """LEA: (a << s) + b; .HI takes the upper word of {c, a} << s."""
        operands = list(instruction.operands)
        result = operands.pop(0)
        outs: list[str] = []
        while re.fullmatch(r"U?P[\dT]", operands[0]):
            outs.append(operands.pop(0))
        carry = operands.pop() if re.fullmatch(r"!?U?P[\dT]", operands[-1]) else None
        shift = int(operands.pop(), 0)
        a, a_known = self._read(operands[0])
        b, b_known = self._read(operands[1])
        known = a_known & b_known
        if "HI" in instruction.modifiers:
            if "SX32" in instruction.modifiers:
                above: Ints = np.where(a >> 31 & 1, MASK32, 0).astype(np.int64)
            else:
                above, above_known = self._read(operands[2]) if len(operands) > 2 else (np.zeros_like(a), a_known)
                known = known & above_known
            shifted = (above << shift | a >> (32 - shift)) & MASK32 if shift else above
        else:
            shifted = a << shift & MASK32
        value = shifted + b
        if "X" in instruction.modifiers and carry:
            truth, sure = self._flag(carry)
            value, known = value + truth, known & sure
        self._write(result, value, known, mask)
        for out in outs:
            self._set_flag(out, value >> 32 > 0, known, mask)

    def _logic(self, instruction: Instruction, mask: Bools) -> None:
        operands = list(instruction.operands)
        out = operands.pop(0) if re.fullmatch(r"U?P[\dT]", operands[0]) else None
        result = operands[0]
        reads = [self._read(operand) for operand in operands[1:4]]
        table = int(operands[4], 0)
        value = _three_input(table, *(read for read, _ in reads))
        known = np.logical_and.reduce([sure for _, sure in reads])
        if not known[mask].all():
            # Known after all where neither extreme of the unknown inputs changes the result.
            extremes = [(np.where(sure, read, 0), np.where(sure, read, MASK32)) for read, sure in reads]
            results = [_three_input(table, *inputs) for inputs in itertools.product(*extremes)]
            known = np.logical_and.reduce([one == results[0] for one in results])
            value = np.where(known, results[0], value)
        self._write(result, value, known, mask)
        if out:
            self._set_flag(out, value != 0, known, mask)

    def _predicate_logic(self, instruction: Instruction, mask: Bools) -> None:
        operands = instruction.operands
        flags = [self._flag(operand) for operand in operands[2:5]]
        table = int(operands[5], 0)
        truth = np.zeros(self.padded, np.bool_)
        for case in range(8):
            if table >> case & 1:
                term = np.ones(self.padded, np.bool_)
                for (value, _), bit in zip(flags, (4, 2, 1), strict=True):
                    term = term & (value if case & bit else ~value)
                truth = truth | term
        known = np.ones(self.padded, np.bool_)
        for (_, sure), bit in zip(flags, (4, 2, 1), strict=True):
            if _depends(table, bit):
                known = known & sure
        self._set_flag(operands[0], truth, known, mask)
        self._set_flag(operands[1], np.zeros_like(truth), np.zeros_like(truth), mask)

    def _shift(self, instruction: Instruction, mask: Bools) -> None:
        modifiers, operands = instruction.modifiers, instruction.operands
        low, low_known = self._read(operands[1])
        amount, amount_known = self._read(operands[2])
        if instruction.opcode.endswith(("SHL", "SHR")) and len(operands) == 3:
            amount = np.minimum(amount, 63)
            signed = "U32" not in modifiers and instruction.opcode.endswith("SHR")
            base = _signed(low) if signed else low
            value = low << amount if instruction.opcode.endswith("SHL") else base >> amount
            self._write(operands[0], value, low_known & amount_known, mask)
            return
        high, high_known = self._read(operands[3])
        signed = "S32" in modifiers or "S64" in modifiers
        wraps = "W" in modifiers
        limit = 63 if ("U64" in modifiers or "S64" in modifiers) else 31
        amount = amount & limit if wraps else np.minimum(amount, limit + 1)
        both = high << 32 | low
        upper = "HI" in modifiers
        known = amount_known & high_known & low_known
        if "R" in modifiers:
            if upper:
                base = _signed(high) if signed else high
                value = base >> amount if "U32" in modifiers or "S32" in modifiers else both >> amount >> 32
                known = amount_known & high_known
            else:
                value = _funnel_right(both, amount)
        elif upper:
            # Upper word of {high, low} << amount.
            value = high << np.minimum(amount, 32) & MASK32 | _shift_right(low, 32 - amount)
        else:
            value = low << amount & MASK32
            known = amount_known & low_known
        self._write(operands[0], value, known, mask)

    def _compare(self, instruction: Instruction, mask: Bools) -> None:
        modifiers, operands = instruction.modifiers, instruction.operands
        a, a_known = self._read(operands[2])
        b, b_known = self._read(operands[3])
        if "U32" not in modifiers:
            a, b = _signed(a), _signed(b)
        condition = modifiers[0]
        tests: dict[str, Callable[[], Bools]] = {
            "LT": lambda: a < b,
            "LE": lambda: a <= b,
            "GT": lambda: a > b,
            "GE": lambda: a >= b,
            "EQ": lambda: a == b,
            "NE": lambda: a != b,
        }
        if condition not in tests:
            raise Unsupported(instruction.name)
        truth, known = tests[condition](), a_known & b_known
        if "EX" in modifiers:
            # The upper words decide unless they are equal; then the comparison of the lower words does.
            lower, lower_known = self._flag(operands[5])
            truth = np.where(a == b, lower, truth)
            known = known & lower_known
        other, other_known = self._flag(operands[4])
        joined = {"AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor}
        join = next((joined[m] for m in modifiers if m in joined), np.logical_and)
        # A false term settles an AND, a true one an OR, whatever the unknown other one is.
        settled = np.zeros(self.padded, np.bool_)
        if join is np.logical_and:
            settled = (known & ~truth) | (other_known & ~other)
        elif join is np.logical_or:
            settled = (known & truth) | (other_known & other)
        sure = (known & other_known) | settled
        clean, other_clean = truth & known, other & other_known
        if join is np.logical_and:
            result = truth & other & known & other_known
        elif join is np.logical_or:
            result = clean | other_clean
        else:
            result = truth ^ other
        self._set_flag(operands[0], result, sure, mask)
        if operands[1] not in ("PT", "UPT"):
            self._set_flag(operands[1], join(~truth, other), known & other_known, mask)

    def _compare_floats(self, instruction: Instruction, mask: Bools) -> None:
        """FSETP on known bits (parameters, constants); NEU and its like are true where an operand is not a number."""
        operands = instruction.operands
        # An integer that stands where a float belongs is one: 1 means 1.0.
        texts = [f"{operand}.0" if re.fullmatch(r"[+-]?\d+", operand) else operand for operand in operands[2:4]]
        (a, a_known), (b, b_known) = (self._read(text) for text in texts)
        left, right = (bits.astype(np.uint32).view(np.float32) for bits in (a, b))
        condition = instruction.modifiers[0]
        tests = {"LT": left < right, "LE": left <= right, "GT": left > right, "GE": left >= right, "EQ": left == right}
        truth = tests.get(condition[:2], left != right)
        if condition.endswith("U"):
            truth = truth | np.isnan(left) | np.isnan(right)
        other, other_known = self._flag(operands[4])
        if operands[4] not in ("PT", "UPT") and "AND" not in instruction.modifiers:
            raise Unsupported(instruction.name)
        self._set_flag(operands[0], truth & other, a_known & b_known & other_known, mask)
        self._set_flag(operands[1], ~truth & other, a_known & b_known & other_known, mask)

    def _select(self, instruction: Instruction, mask: Bools) -> None:
        operands = instruction.operands
        truth, sure = self._flag(operands[3])
        wide = "64" in instruction.modifiers
        a, a_known = self._read(operands[1], wide=wide)
        b, b_known = self._read(operands[2], wide=wide)
        value, known = np.where(truth, a, b), sure & np.where(truth, a_known, b_known)
        (self._write_wide if wide else self._write)(operands[0], value, known, mask)

    def _minimum(self, instruction: Instruction, mask: Bools) -> None:
        operands = list(instruction.operands)
        flag = operands.pop()
        result, a_text, b_text = operands[0], operands[-2], operands[-1]
        a, a_known = self._read(a_text)
        b, b_known = self._read(b_text)
        if "U32" not in instruction.modifiers:
            a, b = _signed(a), _signed(b)
        truth, sure = self._flag(flag)
        self._write(result, np.where(truth, np.minimum(a, b), np.maximum(a, b)), a_known & b_known & sure, mask)

    def _add_minimum(self, instruction: Instruction, mask: Bools) -> None:
        """VIADDMNMX: the smaller (or larger, by the predicate) of a + b and c."""
        result, a_text, b_text, c_text, flag = instruction.operands
        reads = [self._read(text) for text in (a_text, b_text, c_text)]
        total, limit = (reads[0][0] + reads[1][0]) & MASK32, reads[2][0]
        if "U32" not in instruction.modifiers:
            total, limit = _signed(total), _signed(limit)
        truth, known = self._flag(flag)
        for _, sure in reads:
            known = known & sure
        self._write(result, np.where(truth, np.minimum(total, limit), np.maximum(total, limit)), known, mask)

    def _permute(self, instruction: Instruction, mask: Bools) -> None:
        operands = instruction.operands
        a, a_known = self._read(operands[1])
        selector, selector_known = self._read(operands[2])
        b, b_known = self._read(operands[3])
        both = b << 32 | a
        value = np.zeros(self.padded, np.int64)
        for byte in range(4):
            pick = selector >> (4 * byte) & 0xF
            piece = both >> ((pick & 7) * 8) & 0xFF
            value |= np.where(pick & 8, np.where(piece >> 7 & 1, 0xFF, 0), piece) << (8 * byte)
        self._write(operands[0], value, a_known & b_known & selector_known, mask)

    def _absolute(self, instruction: Instruction, mask: Bools) -> None:
        value, known = self._read(instruction.operands[1])
        self._write(instruction.operands[0], np.abs(_signed(value)), known, mask)

    def _shuffle(self, instruction: Instruction, mask: Bools) -> None:
        mode = instruction.modifiers[0]
        out, result, source, lane_text, _ = instruction.operands
        value, known = self._read(source)
        lane, lane_known = self._read(lane_text)
        own = self.thread % 32
        base = self.thread - own
        wanted = {"IDX": lane, "BFLY": own ^ lane, "DOWN": own + lane, "UP": own - lane}.get(mode)
        if wanted is None:
            raise Unsupported(instruction.name)
        inside = (wanted >= 0) & (wanted < 32)
        at = base + np.where(inside, wanted, own)
        self._write(result, value[at], known[at] & lane_known, mask)
        self._set_flag(out, inside, lane_known, mask)

    def _vote(self, instruction: Instruction, mask: Bools) -> None:
        operands = instruction.operands
        truth, sure = self._flag(operands[-1])
        ballot = (mask & truth).reshape(-1, 32)
        active = mask.reshape(-1, 32)
        weights = np.left_shift(np.int64(1), np.arange(32, dtype=np.int64))
        bits = np.repeat((ballot * weights).sum(axis=1), 32)
        certain = np.repeat((sure | ~mask).reshape(-1, 32).all(axis=1), 32)
        whole = ballot.any(axis=1) if "ANY" in instruction.modifiers else (ballot | ~active).all(axis=1)
        for operand in operands[:-1]:
            if re.fullmatch(r"U?R(\d+|Z)", operand):
                self._write(operand, bits, certain, mask)
            elif re.fullmatch(r"U?P[\dT]", operand):
                self._set_flag(operand, np.repeat(whole, 32), certain, mask)

    def _elect(self, instruction: Instruction, mask: Bools) -> None:
        chosen = np.zeros(self.padded, np.bool_)
        chosen[np.unique(_first_active(mask)[mask])] = True
        for operand in instruction.operands:
            if re.fullmatch(r"U?P[\dT]", operand):
                self._set_flag(operand, chosen, np.ones_like(chosen), mask)
                return

    def _try_wait(self, instruction: Instruction, mask: Bools) -> None:
        """Waiting on an mbarrier or for registers succeeds at once, since nothing here takes time."""
        for operand in instruction.operands:
            if re.fullmatch(r"U?P\d", operand):
                self._set_flag(operand, np.ones(self.padded, np.bool_), np.ones(self.padded, np.bool_), mask)
                return

    def _flags_to_register(self, instruction: Instruction, mask: Bools) -> None:
        """P2R: predicates under a mask into the low bits (or a byte) of a register, the rest from another one."""
        result, _, rest, chosen_text = instruction.operands
        chosen, shift = int(chosen_text, 0), _byte_shift(instruction)
        value, known = self._read(rest)
        value = value & ~np.int64(chosen << shift)
        kind = "UP" if instruction.opcode.startswith("U") else "P"
        for number in range(7):
            if chosen >> number & 1:
                value = value | self.flag[kind][number].astype(np.int64) << (number + shift)
                known = known & self.flag_known[kind][number]
        self._write(result, value, known, mask)

    def _register_to_flags(self, instruction: Instruction, mask: Bools) -> None:
        """R2P: the reverse."""
        _, source, chosen_text = instruction.operands
        chosen, shift = int(chosen_text, 0), _byte_shift(instruction)
        value, known = self._read(source)
        for number in range(7):
            if chosen >> number & 1:
                self._set_flag(f"P{number}", (value >> (number + shift) & 1).astype(np.bool_), known, mask)

    def _float_from_int(self, instruction: Instruction, mask: Bools) -> None:
        value, known = self._read(instruction.operands[1])
        signed = not any(m.startswith("U") for m in instruction.modifiers)
        number = (_signed(value) if signed else value).astype(np.float64)
        rounded = number.astype(np.float32)
        if "RP" in instruction.modifiers:
            below = rounded.astype(np.float64) < number
            rounded = np.where(below, np.nextafter(rounded, np.float32(np.inf)), rounded).astype(np.float32)
        self._write(instruction.operands[0], rounded.view(np.uint32).astype(np.int64), known, mask)

    def _int_from_float(self, instruction: Instruction, mask: Bools) -> None:
        value, known = self._read(instruction.operands[1])
        number = value.astype(np.uint32).view(np.float32).astype(np.float64)
        number = np.where(np.isfinite(number), number, 0.0)
        truncated = np.clip(np.trunc(number), -(2.0**31), 2.0**32 - 1).astype(np.int64)
        self._write(instruction.operands[0], truncated, known, mask)

    def _float_unary(self, instruction: Instruction, mask: Bools) -> None:
        if "RCP" not in instruction.modifiers:
            raise Unsupported(instruction.name)
        value, known = self._read(instruction.operands[1])
        number = value.astype(np.uint32).view(np.float32)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            inverse = (np.float32(1.0) / number).astype(np.float32)
        self._write(instruction.operands[0], inverse.view(np.uint32).astype(np.int64), known, mask)

    def _leading(self, instruction: Instruction, mask: Bools) -> None:
        value, known = self._read(instruction.operands[-1])
        if "U32" not in instruction.modifiers:
            raise Unsupported(instruction.name)
        place = np.where(value > 0, np.floor(np.log2(np.maximum(value, 1))), MASK32).astype(np.int64)
        if "SH" in instruction.modifiers:
            place = np.where(value > 0, 31 - place, MASK32)
        self._write(instruction.operands[0], place, known, mask)

    def _population(self, instruction: Instruction, mask: Bools) -> None:
        value, known = self._read(instruction.operands[-1])
        bits = np.array([bin(int(v)).count("1") for v in value], np.int64)
        self._write(instruction.operands[0], bits, known, mask)

    def _constant_half(self, instruction: Instruction, mask: Bools) -> None:
        """HFMA2.MMA Rd, -RZ, RZ, a, b: ptxas's way to load a constant on a free pipe."""
        left, right = (register(operand) for operand in instruction.operands[1:3])
        if (left, right) != ("RZ", "RZ") or len(instruction.operands) != 5:
            raise Unsupported(instruction.name)
        high, low = (_half_bits(text) for text in instruction.operands[3:5])
        value = np.full(self.padded, high << 16 | low, np.int64)
        self._write(instruction.operands[0], value, np.ones(self.padded, np.bool_), mask)


def _byte_shift(instruction: Instruction) -> int:
    """Bits below the byte that a .B1, .B2 or .B3 modifier names."""
    return 8 * next((int(m[1]) for m in instruction.modifiers if re.fullmatch(r"B[123]", m)), 0)


def _half_bits(text: str) -> int:
    match = re.fullmatch(r"(-?[\d.]+(?:e[-+]?\d+)?)", text)
    if not match:
        raise Unsupported(text)
    return int(np.float16(float(match[1])).view(np.uint16))


def _breadth_first(starts: Sequence[int], before: Mapping[int, Sequence[int]]) -> dict[int, int]:
    distance = dict.fromkeys(starts, 0)
    frontier = list(starts)
    while frontier:
        reached = []
        for position in frontier:
            for earlier in before.get(position, ()):
                if earlier not in distance:
                    distance[earlier] = distance[position] + 1
                    reached.append(earlier)
        frontier = reached
    return distance


def _signed(value: Ints) -> Ints:
    low = value & MASK32
    return low - (low >> 31 << 32)


def _multiply_wrapping(a: Ints, b: Ints) -> Ints:
    with np.errstate(over="ignore"):
        return a * b


def _high_word(a: Ints, b: Ints, c: Ints) -> Ints:
    """Upper 32 bits of the 64-bit product plus the upper word of c, exact for unsigned factors."""
    product = _multiply_wrapping(a, b)
    total = product.astype(np.uint64) + c.astype(np.uint64)
    high: Ints = (total >> np.uint64(32)).astype(np.int64)
    return high


def _three_input(table: int, a: Ints, b: Ints, c: Ints) -> Ints:
    """LOP3: bit by bit, the table's entry at (a, b, c)."""
    value = np.zeros_like(a)
    for case in range(8):
        if table >> case & 1:
            value |= (a if case & 4 else ~a) & (b if case & 2 else ~b) & (c if case & 1 else ~c)
    return value & MASK32


def _shift_right(value: Ints, amount: Ints) -> Ints:
    return np.where(amount >= 32, 0, value >> np.minimum(amount, 63))


def _funnel_right(both: Ints, amount: Ints) -> Ints:
    shifted: Ints = (both.astype(np.uint64) >> amount.astype(np.uint64)).astype(np.int64)
    return shifted & MASK32


def _product_known(a: Ints, a_known: Bools, b: Ints, b_known: Bools) -> Bools:
    """A product is known where both factors are, or where a known one is zero."""
    settled: Bools = (a_known & b_known) | (a_known & (a == 0)) | (b_known & (b == 0))
    return settled


def _depends(table: int, bit: int) -> bool:
    """Whether a three-input truth table depends on the input with this weight."""
    return any((table >> case & 1) != (table >> (case ^ bit) & 1) for case in range(8))


def _first_active(mask: Bools) -> Ints:
    """For each thread, the first active thread of its warp (its warp's first thread where none is)."""
    rows = mask.reshape(-1, 32)
    first = rows.argmax(axis=1) + 32 * np.arange(rows.shape[0])
    each: Ints = np.repeat(first, 32).astype(np.int64)
    return each


HANDLERS: dict[str, Callable[[Block, Instruction, Bools], None]] = {
    "S2R": Block._special,
    "S2UR": Block._special,
    "CS2R": Block._special,
    "MOV": Block._move,
    "R2UR": Block._to_uniform,
    "IMAD": Block._integer_multiply_add,
    "IADD3": Block._add,
    "IADD": Block._add,
    "VIADD": Block._add,
    "LEA": Block._shift_add,
    "LOP3": Block._logic,
    "PLOP3": Block._predicate_logic,
    "SHF": Block._shift,
    "SHL": Block._shift,
    "SHR": Block._shift,
    "ISETP": Block._compare,
    "FSETP": Block._compare_floats,
    "SEL": Block._select,
    "IMNMX": Block._minimum,
    "VIMNMX": Block._minimum,
    "VIADDMNMX": Block._add_minimum,
    "PRMT": Block._permute,
    "IABS": Block._absolute,
    "SHFL": Block._shuffle,
    "VOTE": Block._vote,
    "VOTEU": Block._vote,
    "ELECT": Block._elect,
    "SYNCS": Block._try_wait,
    "USETMAXREG": Block._try_wait,
    "I2F": Block._float_from_int,
    "I2FP": Block._float_from_int,
    "F2I": Block._int_from_float,
    "MUFU": Block._float_unary,
    "P2R": Block._flags_to_register,
    "R2P": Block._register_to_flags,
    "FLO": Block._leading,
    "POPC": Block._population,
    "HFMA2": Block._constant_half,
    "LDC": Block._constant_load,
    "ULDC": Block._constant_load,
    "LDCU": Block._constant_load,
    "LDS": Block._load,
    "LDG": Block._load,
    "LD": Block._load,
    "STS": Block._store,
    "STG": Block._store,
    "LDGSTS": Block._copy,
    "LDSM": Block._matrix_load,
}
"""Opcode to method; a uniform instruction (UIADD3) uses its plain namesake."""
