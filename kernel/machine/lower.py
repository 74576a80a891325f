"""PTX statements to the engine's instruction records: operand slots, types, control flow order.

The engine's opcodes are the ``OP_`` names in engine_source/; an opcode that has no lowering here becomes
``unsupported`` and is an error that names it only if it is reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kernel.errors import MachineFault
from kernel.machine.ptx import TYPE_BYTES, Function, Module, Statement, Variable

ENGINE_FOLDER = Path(__file__).with_name("engine_source")
NO_OPERAND = -(2**31)
SHARED_ORIGIN = 1024
SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW = 0x01000000, 0x04000000, 0x06000000
MODULE_BASE = 0x1_0000_0000
"""Where module variables in global and constant space start."""

SPECIAL = (
    *("%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z"),
    *("%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z"),
    *("%laneid", "%warpid", "%nwarpid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge"),
    *("%smid", "%nsmid", "%dynamic_smem_size", "%total_smem_size", "%cluster_ctarank", "%cluster_nctarank"),
)
"""Special registers, in the order in which the engine fills them."""
ALIASES = {
    **{f"%clusterid.{axis}": f"%ctaid.{axis}" for axis in "xyz"},
    **{f"%nclusterid.{axis}": f"%nctaid.{axis}" for axis in "xyz"},
    **{f"%cluster_ctaid.{axis}": "%cluster_ctarank" for axis in "xyz"},
    **{f"%cluster_nctaid.{axis}": "%cluster_nctarank" for axis in "xyz"},
    "%is_explicit_cluster": "%cluster_ctarank",
    "%gridid": "%cluster_ctarank",
}

U8, S8, U16, S16, U32, S32, U64, S64, F16, BF16, F32, F64, PRED, F16X2, BF16X2, TF32, B128 = range(17)
TYPES = {
    "u8": U8,
    "s8": S8,
    "b8": U8,
    "u16": U16,
    "s16": S16,
    "b16": U16,
    "u32": U32,
    "s32": S32,
    "b32": U32,
    "u64": U64,
    "s64": S64,
    "b64": U64,
    "f16": F16,
    "bf16": BF16,
    "f32": F32,
    "f64": F64,
    "pred": PRED,
    "f16x2": F16X2,
    "bf16x2": BF16X2,
    "tf32": TF32,
    "b128": B128,
}
GENERIC, GLOBAL, SHARED, LOCAL, PARAM = range(5)
GUARD_NEGATED, ADDRESS_64, FTZ, SAT, DST_64, NEGATE_P, YIELDS, NAN_MODE = (1 << bit for bit in range(8))
ROUNDING = {"rn": 0, "rz": 1, "rm": 2, "rp": 3, "rna": 4, "rni": 8, "rzi": 9, "rmi": 10, "rpi": 11}
COMPARE = {
    "eq": 0,
    "ne": 1,
    "lt": 2,
    "le": 3,
    "gt": 4,
    "ge": 5,
    "lo": 2,
    "ls": 3,
    "hi": 4,
    "hs": 5,
    "equ": 6,
    "neu": 7,
    "ltu": 8,
    "leu": 9,
    "gtu": 10,
    "geu": 11,
    "num": 12,
    "nan": 13,
}
BOOLEAN = {"and": 1, "or": 2, "xor": 3}
SUFFIX = {U16: "16", S16: "16", U32: "", S32: "", U64: "64", S64: "64"}
SIGNED_SUFFIX = {U16: "u16", S16: "s16", U32: "u32", S32: "s32", U64: "u64", S64: "s64", F32: "f32", F64: "f64"}
SMALL = (F16, BF16, F16X2, BF16X2)
WIDE = (U64, S64, F64)

INSTRUCTION = np.dtype(
    [
        ("op", "<u2"),
        ("ty", "u1"),
        ("ty2", "u1"),
        ("mod", "u1"),
        ("vec", "u1"),
        ("size", "u1"),
        ("space", "u1"),
        ("guard", "<i4"),
        ("pool", "<i4"),
        ("target", "<i4"),
        ("flags", "<i4"),
        ("imm", "<i8"),
    ]
)

SEAMS = {
    "wgmma": "another warpgroup matrix multiply than FP16 from shared memory",
    "mbarrier": "this form of mbarrier",
    "cp.async.bulk": "bulk copies other than tensor copies of one block",
    "tcgen05": "fifth-generation Tensor Core instructions",
}
"""Opcodes that are known and have no engine yet, with the words an error uses for them."""


@cache
def engine_source() -> dict[str, str]:
    """The engine's C++ files by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(ENGINE_FOLDER.glob("*.*"))}


@cache
def opcodes() -> dict[str, int]:
    """Number of every engine opcode, from the names the engine's source uses."""
    names = sorted({name for text in engine_source().values() for name in re.findall(r"\bOP_(\w+)", text)})
    return {name: number for number, name in enumerate(names)}


@dataclass(slots=True)
class Lowered:
    """One instruction before it is packed."""

    op: str = "nop"
    ty: int = 0
    ty2: int = 0
    mod: int = 0
    vec: int = 1
    size: int = 0
    space: int = 0
    guard: int = -1
    operands: list[int] = field(default_factory=list)
    target: int = 0
    flags: int = 0
    imm: int = 0
    label: str = ""
    statement: int = -1


@dataclass(kw_only=True)
class Program:
    """A kernel ready for the engine. ``statements[i]`` is the statement behind instruction i, -1 for none."""

    name: str
    function: Function
    module: Module
    code: npt.NDArray[np.void]
    pool: npt.NDArray[np.int32]
    constants: npt.NDArray[np.uint32]
    words: int
    special: npt.NDArray[np.int32]
    statements: list[int]
    parameters: tuple[tuple[int, int], ...]
    """(offset, bytes) of each parameter."""
    parameter_bytes: int
    shared: dict[str, tuple[int, int]]
    """(offset, bytes) of each shared variable; dynamic ones start at ``static_smem``."""
    static_smem: int
    local_bytes: int
    granule: int
    """Bytes at which shared memory is checked: the narrowest access in the kernel, at most 4."""
    module_data: tuple[tuple[Variable, int], ...]
    unsupported: dict[int, str]
    contractible: tuple[tuple[int, int], ...]
    """(line of mul.f32, line of add.f32) that an assembler may fuse: neither states a rounding."""

    def text(self, instruction: int) -> str:
        """The PTX text of an instruction, empty for one that lowering made."""
        index = self.statements[instruction] if 0 <= instruction < len(self.statements) else -1
        return self.function.statements[index].text if index >= 0 else ""

    def line(self, instruction: int) -> int:
        """Its line in the PTX text, 0 where it has none."""
        index = self.statements[instruction] if 0 <= instruction < len(self.statements) else -1
        return self.function.statements[index].line if index >= 0 else 0

    def source(self, instruction: int) -> str:
        """``file:line`` of the source it came from, empty where the PTX has no line information."""
        index = self.statements[instruction] if 0 <= instruction < len(self.statements) else -1
        if index < 0:
            return ""
        file, line = self.function.statements[index].source
        return f"{Path(self.module.files.get(file, '')).name}:{line}" if line else ""


_TARGETS = {
    **dict.fromkeys(("unpack64", "unpack32", "setp"), (2, 0)),
    **dict.fromkeys(("nop", "bra", "brx", "goto", "exit", "bar", "trap", "warp_sync", "unsupported"), (0, 0)),
    **dict.fromkeys(("cp_commit", "cp_wait", "poll"), (0, 0)),
    "mbarrier_arrive": (1, 3),
    **dict.fromkeys(("mbarrier_init", "tensor_load", "tensor_store"), (0, 0)),
    **dict.fromkeys(("bulk_commit", "bulk_wait", "fence_async", "wgmma_commit", "wgmma_wait"), (0, 0)),
    "mbarrier_wait": (1, 2),
    "mma": (4, 0),
    "shfl": (2, 1),
    "vote": (1, 1),
    "redux": (1, 1),
    "match": (1, 1),
    "elect": (2, 1),
}
"""(operands that an engine opcode writes, index of the first); (1, 0) where it is not listed."""


class _Unsupported(Exception):  # noqa: N818 - it says what becomes of the instruction
    pass


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of ``alignment`` that is not below ``value``."""
    return -(-value // alignment) * alignment


def _lane_words(kind: int) -> int:
    """Words that a lane of a register takes; none for a predicate, which is a bit of one word."""
    return 0 if kind == PRED else 2 if kind in WIDE else 1


class Lowering:
    """Turns one function into a :class:`Program`."""

    def __init__(self, module: Module, function: Function) -> None:
        self.module, self.function = module, function
        self.slots: dict[str, tuple[int, int]] = {}
        self.words = 0
        self.constant_slots: dict[tuple[int, int], int] = {}
        self.constant_words: list[npt.NDArray[np.uint32]] = []
        self.constant_size = 0
        self.special = np.full(len(SPECIAL), NO_OPERAND, np.int32)
        self.unsupported: dict[int, str] = {}
        self.narrowest = 4
        self.out: list[Lowered] = []
        self._register_types: dict[str, int] = {}
        self._lay_out_variables()

    # ------------------------------------------------------------------ variables
    def _lay_out_variables(self) -> None:
        offset = 0
        self.parameter_places: list[tuple[int, int]] = []
        self.symbols: dict[str, tuple[str, int]] = {}
        for parameter in self.function.parameters:
            offset = align_up(offset, parameter.align)
            self.parameter_places.append((offset, parameter.size))
            self.symbols[parameter.name] = ("param", offset)
            offset += parameter.size
        self.parameter_bytes = offset
        self.shared: dict[str, tuple[int, int]] = {}
        shared = local = 0
        dynamic: list[Variable] = []
        module_at = MODULE_BASE
        self.module_data: list[tuple[Variable, int]] = []
        body = "\n".join(statement.text for statement in self.function.statements)
        for variable in (*self.module.variables, *self.function.variables):
            if variable.space == "shared":
                if variable.dynamic:
                    dynamic.append(variable)
                elif variable in self.function.variables or variable.name in body:
                    shared = align_up(shared, variable.align)
                    self.shared[variable.name] = (shared, variable.size)
                    self.symbols[variable.name] = ("shared", SHARED_ORIGIN + shared)
                    shared += variable.size
            elif variable.space == "local":
                local = align_up(local, variable.align)
                self.symbols[variable.name] = ("local", local)
                local += variable.size
            elif variable.space in ("global", "const"):
                module_at = align_up(module_at, max(variable.align, 256))
                self.symbols[variable.name] = (variable.space, module_at)
                self.module_data.append((variable, module_at))
                module_at += variable.size + 256
        alignment = max((variable.align for variable in dynamic), default=1)
        start = align_up(shared, alignment) if dynamic else shared
        for variable in dynamic:
            self.shared[variable.name] = (start, 0)
            self.symbols[variable.name] = ("shared", SHARED_ORIGIN + start)
        self.static_smem = start
        self.local_bytes = align_up(local, 16)

    # ------------------------------------------------------------------ operands
    def register_type(self, name: str) -> int:
        """The declared type of a register."""
        known = self._register_types.get(name)
        if known is not None:
            return known
        declared = self.function.registers.get(name)
        if declared is None:
            family = re.match(r"([$%A-Za-z_]+(?:\d+[A-Za-z_]+)*)\d+$", name)
            entry = self.function.families.get(family[1]) if family else None
            if entry is None:
                raise _Unsupported(f"register {name} is not declared")
            declared = entry[0]
        kind = TYPES.get(declared)
        if kind is None or kind == B128:
            raise _Unsupported(f"registers of type .{declared}")
        self._register_types[name] = kind
        return kind

    def register(self, name: str) -> int:
        """Word offset of a register's lanes (of its mask, for a predicate)."""
        slot = self.slots.get(name)
        if slot is None:
            kind = self.register_type(name)
            words = 1 if kind == PRED else 32 * _lane_words(kind)
            if words > 1:
                self.words = align_up(self.words, 16)
            slot = (self.words, kind)
            self.words += words
            self.slots[name] = slot
        return slot[0]

    def is_register(self, name: str) -> bool:
        """Whether a name is a declared register."""
        try:
            self.register_type(name)
        except _Unsupported:
            return False
        return True

    def special_register(self, name: str) -> int:
        """Word offset of a special register."""
        index = SPECIAL.index(ALIASES.get(name, name))
        if self.special[index] == NO_OPERAND:
            self.words = align_up(self.words, 16)
            self.special[index] = self.words
            self.words += 32
        return int(self.special[index])

    def constant(self, value: int, wide: bool = False) -> int:
        """Operand of a constant, the same in all lanes."""
        value &= 0xFFFFFFFFFFFFFFFF if wide else 0xFFFFFFFF
        place = self.constant_slots.get((value, wide))
        if place is None:
            place = self.constant_size
            self.constant_slots[(value, wide)] = place
            if wide:
                words = np.tile(np.array([value & 0xFFFFFFFF, value >> 32], np.uint32), 32)
            else:
                words = np.full(32, value, np.uint32)
            self.constant_words.append(words)
            self.constant_size += len(words)
        return -1 - place

    @staticmethod
    def literal(text: str, kind: int) -> int | None:
        """Bits of a literal operand read as ``kind``, None where the text is not one."""
        first = text[0]
        if not (first.isdigit() or first in "-+"):
            return None
        prefix = text[:2].lower()
        if prefix == "0f" and len(text) == 10:
            bits = int(text[2:], 16)
            if kind == F64:
                return int(np.array([np.array([bits], np.uint32).view(np.float32)[0]], np.float64).view(np.uint64)[0])
            return bits
        if prefix == "0d" and len(text) == 18:
            bits = int(text[2:], 16)
            if kind == F32:
                return int(np.array([np.array([bits], np.uint64).view(np.float64)[0]], np.float32).view(np.uint32)[0])
            return bits
        if "." in text or (("e" in text or "E" in text) and prefix != "0x"):
            number = float(text)
            if kind == F32:
                return int(np.array([number], np.float32).view(np.uint32)[0])
            return int(np.array([number], np.float64).view(np.uint64)[0])
        digits = text.rstrip("Uu")
        negative = digits.startswith("-")
        digits = digits.lstrip("+-")
        value = int(digits, 8) if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit() else int(digits, 0)
        value = -value if negative else value
        if kind == F32 and prefix != "0x":
            return int(np.array([value], np.float32).view(np.uint32)[0])
        if kind == F64 and prefix != "0x":
            return int(np.array([value], np.float64).view(np.uint64)[0])
        return value

    def operand(self, text: str, kind: int) -> int:
        """Operand slot of a register, special register, literal or symbol, read as ``kind``."""
        if text == "_":
            return NO_OPERAND
        if text[0] == "%" and (text in SPECIAL or text in ALIASES):
            return self.special_register(text)
        value = self.literal(text, kind)
        if value is not None:
            if kind == PRED:
                return self.constant(-1 if value else 0)
            if kind in (U16, S16, F16, BF16):
                value &= 0xFFFF
            return self.constant(value, kind in WIDE)
        if self.is_register(text):
            declared = self.register_type(text)
            if _lane_words(declared) != _lane_words(kind):
                raise _Unsupported(f"register {text} is not as wide as the type")
            return self.register(text)
        symbol = self.symbol(text)
        if symbol is not None:
            return self.constant(symbol[1], kind in WIDE)
        raise _Unsupported(f"operand {text}")

    def narrowed(self, text: str, kind: int) -> int:
        """Operand slot of a source of cvt: of a register wider than ``kind``, its low bits, taken just before."""
        if not self.is_register(text) or _lane_words(self.register_type(text)) <= _lane_words(kind):
            return self.operand(text, kind)
        low = f"{text} low"
        if low not in self.slots:
            self.words = align_up(self.words, 16)
            self.slots[low] = self.words, U32
            self.words += 32
        slot = self.slots[low][0]
        self.out.append(Lowered(op="cvt", ty=U32, ty2=U64, operands=[slot, self.register(text)]))
        return slot

    def symbol(self, text: str) -> tuple[str, int] | None:
        """(space, address) of ``name`` or ``name+offset``, None where it is no variable."""
        match = re.match(r"([$%\w]+)\s*(?:\+\s*(-?\w+))?$", text)
        if match is None or match[1] not in self.symbols:
            return None
        space, address = self.symbols[match[1]]
        return space, address + (int(match[2], 0) if match[2] else 0)

    def address(self, text: str, out: Lowered) -> tuple[int, int]:
        """(operand, offset) of ``[register+offset]`` or ``[symbol+offset]``; notes a 64-bit register in the flags."""
        inside = text.strip()
        if not inside.startswith("["):
            raise _Unsupported(f"address {text}")
        inside = inside[1 : inside.rindex("]")].strip()
        symbol = self.symbol(inside)
        if symbol is not None:
            return NO_OPERAND, symbol[1]
        match = re.match(r"([$%\w#]+)\s*(?:\+\s*(-?\w+))?$", inside) or re.match(r"([$%\w#]+)\s*(-\s*\w+)$", inside)
        if match is None:
            raise _Unsupported(f"address {text}")
        literal = self.literal(match[1], U64)
        offset = int(match[2].replace(" ", ""), 0) if match[2] else 0
        if literal is not None:
            return NO_OPERAND, literal + offset
        if self.register_type(match[1]) in WIDE:
            out.flags |= ADDRESS_64
        return self.register(match[1]), offset

    def vector(self, text: str, kind: int) -> list[int]:
        """Operand slots of ``{a, b, …}``; a single operand needs braces too, as for ptxas."""
        if not text.startswith("{"):
            raise _Unsupported(f"operand {text} is no vector")
        return [self.operand(part.strip(), kind) for part in text[1:-1].split(",")]

    def predicate(self, text: str, out: Lowered) -> int:
        """Slot of a predicate; a ``!`` is noted in the flags."""
        if text.startswith("!"):
            out.flags |= NEGATE_P
            text = text[1:].strip()
        return self.operand(text, PRED)

    # ------------------------------------------------------------------ the whole function
    def run(self) -> Program:
        """Lower every statement, order the blocks and pack the records."""
        function = self.function
        blocks = _Blocks(function)
        starts: dict[int, int] = {}
        for position, block in enumerate(blocks.order):
            first, last = blocks.extent[block]
            starts[block] = len(self.out)
            for index in range(first, last):
                self._lower(index)
            following = blocks.falls_to[block]
            if following is None and not blocks.ends(block):
                self.out.append(Lowered(op="exit"))
            elif following is not None:
                after = blocks.order[position + 1] if position + 1 < len(blocks.order) else None
                if following != after:
                    self.out.append(Lowered(op="goto", target=following))
        self.out.append(Lowered(op="exit"))
        numbers = opcodes()
        code = np.zeros(len(self.out), INSTRUCTION)
        pool: list[int] = []
        for i, ins in enumerate(self.out):
            target = ins.target
            if ins.op == "goto":
                target = starts[target]
            elif ins.op == "bra":
                target = starts[blocks.block_of_label(ins.label)] if ins.label else target
            elif ins.op == "brx":
                table = function.tables[ins.label]
                ins.operands += [starts[blocks.block_of_label(label)] for label in table]
                target = len(table)
            targets, first = _TARGETS.get(ins.op, (1, 0))
            flags = ins.flags | min(len(ins.operands), 63) << 16 | targets << 24 | first << 28
            code[i] = (
                *(numbers[ins.op], ins.ty, ins.ty2, ins.mod, ins.vec, ins.size, ins.space),
                *(ins.guard, len(pool), target, flags, ins.imm),
            )
            pool += ins.operands
        constants = np.concatenate(self.constant_words) if self.constant_words else np.zeros(64, np.uint32)
        return Program(
            name=function.name,
            function=function,
            module=self.module,
            code=code,
            pool=np.array([*pool, *[NO_OPERAND] * 8], np.int64).astype(np.int32),
            constants=constants,
            words=align_up(self.words + 16, 64),
            special=self.special,
            statements=[ins.statement for ins in self.out],
            parameters=tuple(self.parameter_places),
            parameter_bytes=self.parameter_bytes,
            shared=self.shared,
            static_smem=self.static_smem,
            local_bytes=self.local_bytes,
            granule=self.narrowest,
            module_data=tuple(self.module_data),
            unsupported=self.unsupported,
            contractible=_contractible(function),
        )

    def _lower(self, index: int) -> None:
        statement = self.function.statements[index]
        out = Lowered(statement=index)
        try:
            if statement.guard:
                name = statement.guard.lstrip("!")
                out.guard = self.register(name)
                if statement.guard.startswith("!"):
                    out.flags |= GUARD_NEGATED
            handler = _HANDLERS.get(statement.opcode[0])
            if handler is None:
                raise _Unsupported("")
            handler(self, statement, out)
        except (_Unsupported, KeyError, IndexError, ValueError) as error:
            out = Lowered(statement=index, op="unsupported", guard=out.guard, flags=out.flags & GUARD_NEGATED)
            opcode = ".".join(statement.opcode)
            seam = next((words for prefix, words in SEAMS.items() if opcode.startswith(prefix)), "")
            reason = f" ({seam})" if seam else f" ({error})" if isinstance(error, _Unsupported) and str(error) else ""
            self.unsupported[len(self.out)] = f"opcode {opcode}{reason}"
        self.out.append(out)


_ENDS = ("bra", "brx", "ret", "exit", "trap")


class _Blocks:
    """Basic blocks of a function and an order of them in which the smallest-counter rule reconverges.

    The order is a reverse postorder in which, at each branch, the way that stays in the most loops
    comes before the way that leaves them.
    """

    def __init__(self, function: Function) -> None:
        statements = function.statements
        self.function = function
        leaders = {0, len(statements)} | set(function.labels.values())
        for index, statement in enumerate(statements):
            if statement.opcode[0] in _ENDS:
                leaders.add(index + 1)
        cuts = sorted(cut for cut in leaders if cut <= len(statements))
        self.starts = cuts[:-1] if len(cuts) > 1 else [0]
        self.extent = {
            number: (start, cuts[number + 1] if number + 1 < len(cuts) else len(statements))
            for number, start in enumerate(self.starts)
        }
        self._by_start = {start: number for number, start in enumerate(self.starts)}
        # A label behind the last statement marks the end: a block without statements.
        end_labels = [name for name, at in function.labels.items() if at == len(statements)]
        if end_labels:
            self._by_start[len(statements)] = len(self.starts)
            self.extent[len(self.starts)] = (len(statements), len(statements))
        self.count = len(self.extent)
        self.falls_to: dict[int, int | None] = {}
        self.successors: list[list[int]] = []
        for number in range(self.count):
            first, last = self.extent[number]
            final = statements[last - 1] if last > first else None
            following = number + 1 if number + 1 < self.count else None
            successors: list[int] = []
            falls = following
            if final is not None:
                kind = final.opcode[0]
                if kind == "bra":
                    successors.append(self.block_of_label(final.operands[0]))
                elif kind == "brx":
                    successors += [self.block_of_label(label) for label in function.tables[final.operands[1]]]
                if kind in _ENDS and not final.guard:
                    falls = None
            self.falls_to[number] = falls
            if falls is not None:
                successors.append(falls)
            self.successors.append(list(dict.fromkeys(successors)))
        self.order = self._order()

    def ends(self, block: int) -> bool:
        """Whether a block's last statement never falls through."""
        first, last = self.extent[block]
        return last > first and self.function.statements[last - 1].opcode[0] in _ENDS

    def block_of_label(self, label: str) -> int:
        """The block that a label starts."""
        return self._by_start[self.function.labels[label.strip()]]

    def _order(self) -> list[int]:
        depth_sets = self._loops()
        post: list[int] = []
        seen = {0}
        stack = [(0, iter(self._leaving_first(0, depth_sets)))]
        while stack:
            block, successors = stack[-1]
            for successor in successors:
                if successor not in seen:
                    seen.add(successor)
                    stack.append((successor, iter(self._leaving_first(successor, depth_sets))))
                    break
            else:
                post.append(block)
                stack.pop()
        return post[::-1]

    def _leaving_first(self, block: int, loops: list[set[int]]) -> list[int]:
        mine = loops[block]
        return sorted(self.successors[block], key=lambda s: (len(mine & loops[s]), len(loops[s])))

    def _loops(self) -> list[set[int]]:
        """For each block, the headers of the loops it lies in."""
        predecessors: list[list[int]] = [[] for _ in range(self.count)]
        for block, successors in enumerate(self.successors):
            for successor in successors:
                predecessors[successor].append(block)
        state = [0] * self.count
        back: list[tuple[int, int]] = []
        stack = [(0, iter(self.successors[0]))]
        state[0] = 1
        while stack:
            block, successors_left = stack[-1]
            for successor in successors_left:
                if state[successor] == 1:
                    back.append((block, successor))
                elif state[successor] == 0:
                    state[successor] = 1
                    stack.append((successor, iter(self.successors[successor])))
                    break
            else:
                state[block] = 2
                stack.pop()
        loops: list[set[int]] = [set() for _ in range(self.count)]
        for latch, header in back:
            members, work = {header}, [latch]
            while work:
                block = work.pop()
                if block not in members:
                    members.add(block)
                    work += predecessors[block]
            for block in members:
                loops[block].add(header)
        return loops


def _contractible(function: Function) -> tuple[tuple[int, int], ...]:
    """Pairs of mul.f32 and add/sub.f32, neither with a rounding, where one feeds the other directly."""
    products: dict[str, Statement] = {}
    uses: dict[str, int] = {}
    pairs = []
    for statement in function.statements:
        for operand in statement.operands[1:]:
            uses[operand] = uses.get(operand, 0) + 1
    for statement in function.statements:
        words = statement.opcode
        if words[-1] != "f32" or any(word in ROUNDING for word in words):
            continue
        if words[0] == "mul":
            products[statement.operands[0]] = statement
        elif words[0] in ("add", "sub"):
            for operand in statement.operands[1:]:
                if operand in products and uses.get(operand) == 1:
                    pairs.append((products[operand].line, statement.line))
    return tuple(pairs)


# ---------------------------------------------------------------------- one handler per opcode word

Handler = Callable[[Lowering, Statement, Lowered], None]
_HANDLERS: dict[str, Handler] = {}


def _handles(*words: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for word in words:
            _HANDLERS[word] = handler
        return handler

    return register


def _types(statement: Statement) -> list[int]:
    return [TYPES[word] for word in statement.opcode[1:] if word in TYPES]


def _float_flags(statement: Statement, out: Lowered) -> None:
    for word in statement.opcode[1:]:
        if word in ROUNDING:
            out.mod = ROUNDING[word]
        elif word == "ftz":
            out.flags |= FTZ
        elif word == "sat":
            out.flags |= SAT
        elif word == "NaN":
            out.flags |= NAN_MODE


def _all(low: Lowering, statement: Statement, kind: int) -> list[int]:
    return [low.operand(text, kind) for text in statement.operands]


@_handles("pragma", "prefetch", "prefetchu", "membar", "griddepcontrol")
@_handles("setmaxnreg", "discard", "applypriority", "brkpt")
def _nothing(low: Lowering, statement: Statement, out: Lowered) -> None:
    out.op = "nop"


@_handles("fence")
def _fence(low: Lowering, statement: Statement, out: Lowered) -> None:
    out.op = "fence_async" if statement.opcode[1:3] == ("proxy", "async") else "nop"


@_handles("nanosleep")
def _nanosleep(low: Lowering, statement: Statement, out: Lowered) -> None:
    out.op = "poll"


@_handles("createpolicy")
def _policy(low: Lowering, statement: Statement, out: Lowered) -> None:
    out.op, out.operands = "mov64", [low.operand(statement.operands[0], U64), low.constant(0, True)]


@_handles("mov")
def _mov(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    target, source = statement.operands
    if kind == PRED:
        out.op = "mov_pred"
        slot = low.predicate(source, out)
        out.operands = [low.operand(target, PRED), slot]
        return
    if source.startswith("{"):
        parts = [part.strip() for part in source[1:-1].split(",")]
        if len(parts) == 2 and kind in WIDE:
            out.op, out.operands = "pack64", [low.operand(target, U64), *(low.operand(p, U32) for p in parts)]
        elif len(parts) == 2:
            out.op, out.operands = "pack32", [low.operand(target, U32), *(low.operand(p, U16) for p in parts)]
        else:
            raise _Unsupported("packing of four parts")
        return
    if target.startswith("{"):
        parts = [part.strip() for part in target[1:-1].split(",")]
        if len(parts) == 2 and kind in WIDE:
            out.op, out.operands = "unpack64", [*(low.operand(p, U32) for p in parts), low.operand(source, U64)]
        elif len(parts) == 2:
            out.op, out.operands = "unpack32", [*(low.operand(p, U16) for p in parts), low.operand(source, U32)]
        else:
            raise _Unsupported("unpacking of four parts")
        return
    if source in ("%clock", "%clock_hi", "%globaltimer_lo"):
        out.op, out.operands = "clock", [low.operand(target, U32)]
    elif source in ("%clock64", "%globaltimer"):
        out.op, out.operands = "clock64", [low.operand(target, U64)]
    elif kind in WIDE:
        out.op, out.operands = "mov64", [low.operand(target, kind), low.operand(source, kind)]
    else:
        out.op, out.operands = "mov", [low.operand(target, kind), low.operand(source, kind)]


@_handles("cvta")
def _cvta(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    window = 0
    for space, base in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW), ("param", PARAM_WINDOW)):
        if any(word.split(":")[0] == space for word in words):
            window = base
    kind = _types(statement)[-1]
    target, source = (low.operand(text, kind) for text in statement.operands)
    if not window:
        out.op, out.operands = "mov64" if kind in WIDE else "mov", [target, source]
        return
    out.op = ("sub" if "to" in words else "add") + ("64" if kind in WIDE else "")
    out.operands = [target, source, low.constant(window, kind in WIDE)]


@_handles("add", "sub")
def _add(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    word = statement.opcode[0]
    if "cc" in statement.opcode:
        return _carry(low, statement, out)
    out.operands = _all(low, statement, kind)
    if kind in (F32, F64):
        _float_flags(statement, out)
        out.op = f"{word}_{SIGNED_SUFFIX[kind]}"
    elif kind in SMALL:
        _small(statement, out, kind, ("add", "sub").index(word))
    elif "sat" in statement.opcode:
        if word != "add":
            raise _Unsupported("")
        out.op = "add_sat"
    else:
        out.op = word + SUFFIX[kind]
    return None


def _small(statement: Statement, out: Lowered, kind: int, operation: int) -> None:
    if any(word in ("sat", "relu", "ftz", "NaN", "oob") for word in statement.opcode):
        raise _Unsupported("")
    out.op, out.ty, out.mod = "small", kind, operation
    out.operands += [NO_OPERAND] * (4 - len(out.operands))


@_handles("addc", "subc")
def _carry(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    word = statement.opcode[0]
    out.op = "carry64" if kind in WIDE else "carry"
    out.mod = 1 if word in ("addc", "subc") else 0
    out.mod |= (2 if "cc" in statement.opcode else 0) | (4 if word.startswith("sub") else 0)
    out.operands = _all(low, statement, kind)


@_handles("mul")
def _mul(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    words = statement.opcode
    if kind in (F32, F64):
        _float_flags(statement, out)
        out.op, out.operands = f"mul_{SIGNED_SUFFIX[kind]}", _all(low, statement, kind)
    elif kind in SMALL:
        out.operands = _all(low, statement, kind)
        _small(statement, out, kind, 2)
    elif "wide" in words:
        wide = {U16: U32, S16: S32, U32: U64, S32: S64}[kind]
        target, *sources = statement.operands
        out.op = f"mul_wide_{SIGNED_SUFFIX[kind]}"
        out.operands = [low.operand(target, wide), *(low.operand(text, kind) for text in sources)]
    elif "hi" in words:
        out.op, out.operands = f"mul_hi_{SIGNED_SUFFIX[kind]}", _all(low, statement, kind)
        if kind in (U16, S16):
            raise _Unsupported("")
    else:
        out.op, out.operands = "mul_lo" + SUFFIX[kind], _all(low, statement, kind)


@_handles("mad", "madc")
def _mad(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    words = statement.opcode
    if kind in (F32, F64, *SMALL):
        return _fma(low, statement, out)
    if "cc" in words or words[0] == "madc":
        if kind not in (U32, S32):
            raise _Unsupported("")
        out.op, out.ty, out.ty2 = "mad_carry", kind, 1 if "hi" in words else 0
        out.mod = (1 if words[0] == "madc" else 0) | (2 if "cc" in words else 0)
        out.operands = _all(low, statement, kind)
    elif "wide" in words:
        wide = {U16: U32, S16: S32, U32: U64, S32: S64}[kind]
        target, x, y, z = statement.operands
        out.op = f"mad_wide_{SIGNED_SUFFIX[kind]}"
        out.operands = [low.operand(target, wide), low.operand(x, kind), low.operand(y, kind), low.operand(z, wide)]
    elif "hi" in words:
        if kind not in (U32, S32) or "sat" in words:
            raise _Unsupported("")
        out.op, out.operands = f"mad_hi_{SIGNED_SUFFIX[kind]}", _all(low, statement, kind)
    else:
        out.op, out.operands = "mad_lo" + SUFFIX[kind], _all(low, statement, kind)
    return None


@_handles("fma")
def _fma(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    out.operands = _all(low, statement, kind)
    if kind in SMALL:
        _small(statement, out, kind, 3)
        return
    _float_flags(statement, out)
    out.op = f"fma_{SIGNED_SUFFIX[kind]}"


@_handles("div", "rem")
def _div(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    word = statement.opcode[0]
    out.operands = _all(low, statement, kind)
    if kind in (F32, F64):
        _float_flags(statement, out)
        if "approx" in statement.opcode or "full" in statement.opcode:
            out.flags &= ~FTZ
    out.op = f"{word}_{SIGNED_SUFFIX[kind]}"


@_handles("sqrt", "rcp")
def _root(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    _float_flags(statement, out)
    out.operands = _all(low, statement, kind)
    if "approx" in statement.opcode:
        if kind != F32:
            raise _Unsupported("")
        out.op, out.mod = "approx_f32", 0 if statement.opcode[0] == "rcp" else 1
    else:
        out.op = f"{statement.opcode[0]}_{SIGNED_SUFFIX[kind]}"


@_handles("rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def _approximate(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    if kind != F32:
        raise _Unsupported("")
    _float_flags(statement, out)
    out.op = "approx_f32"
    out.mod = {"rsqrt": 2, "ex2": 3, "lg2": 4, "sin": 5, "cos": 6, "tanh": 7}[statement.opcode[0]]
    out.operands = _all(low, statement, kind)


@_handles("min", "max")
def _min_max(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    word = statement.opcode[0]
    out.operands = _all(low, statement, kind)
    if len(out.operands) != 3 or set(statement.opcode) & {"xorsign", "abs", "relu"}:
        raise _Unsupported("")
    if kind in SMALL:
        _small(statement, out, kind, 4 if word == "min" else 5)
        return
    _float_flags(statement, out)
    out.op = f"{word}_{SIGNED_SUFFIX[kind]}"


@_handles("abs", "neg")
def _sign(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    word = statement.opcode[0]
    out.operands = _all(low, statement, kind)
    if kind in SMALL:
        _small(statement, out, kind, 6 if word == "neg" else 7)
        return
    _float_flags(statement, out)
    out.op = f"{word}_{SIGNED_SUFFIX[kind]}"


@_handles("copysign")
def _copysign(low: Lowering, statement: Statement, out: Lowered) -> None:
    if _types(statement)[-1] != F32:
        raise _Unsupported("")
    out.op, out.operands = "copysign_f32", _all(low, statement, F32)


@_handles("testp")
def _testp(low: Lowering, statement: Statement, out: Lowered) -> None:
    if _types(statement)[-1] != F32:
        raise _Unsupported("")
    out.op = "testp_f32"
    tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    out.mod = next(tests.index(word) for word in statement.opcode if word in tests)
    out.operands = [low.operand(statement.operands[0], PRED), low.operand(statement.operands[1], F32)]


@_handles("and", "or", "xor", "not")
def _logic(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    word = statement.opcode[0]
    out.operands = _all(low, statement, kind)
    if kind == PRED:
        out.op = f"{word}_pred"
    else:
        out.op = word + ("64" if kind in WIDE else "16" if kind in (U16, S16) and word == "not" else "")


@_handles("cnot")
def _cnot(low: Lowering, statement: Statement, out: Lowered) -> None:
    if _types(statement)[-1] != U32:
        raise _Unsupported("")
    out.op, out.operands = "cnot", _all(low, statement, U32)


@_handles("shl", "shr")
def _shift(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    target, value, amount = statement.operands
    out.operands = [low.operand(target, kind), low.operand(value, kind), low.operand(amount, U32)]
    if statement.opcode[0] == "shl":
        out.op = "shl" + SUFFIX[kind]
    else:
        out.op = f"shr_{SIGNED_SUFFIX[kind]}"


@_handles("shf")
def _funnel(low: Lowering, statement: Statement, out: Lowered) -> None:
    out.op = "shf_l" if "l" in statement.opcode else "shf_r"
    out.mod = 1 if "clamp" in statement.opcode else 0
    out.operands = _all(low, statement, U32)


@_handles("popc", "clz")
def _bits(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    out.op = statement.opcode[0] + ("64" if kind in WIDE else "")
    out.operands = [low.operand(statement.operands[0], U32), low.operand(statement.operands[1], kind)]


@_handles("bfind")
def _bfind(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    if kind in WIDE:
        raise _Unsupported("")
    out.op, out.mod = f"bfind_{SIGNED_SUFFIX[kind]}", 1 if "shiftamt" in statement.opcode else 0
    out.operands = _all(low, statement, kind)


@_handles("brev", "lop3", "prmt", "bfi")
def _bit_words(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    if kind in WIDE:
        raise _Unsupported("")
    word = statement.opcode[0]
    out.op = word
    operands = list(statement.operands)
    if word == "lop3":
        if len(operands) != 5:
            raise _Unsupported("")
        out.imm = low.literal(operands.pop(), U32) or 0
    if word == "prmt":
        modes = ("rc8", "ecl", "ecr", "f4e", "b4e", "rc16")
        mode = next((name for name in statement.opcode if name in modes), "")
        if mode not in ("", "rc8"):
            raise _Unsupported("")
        out.mod = 2 if mode == "rc8" else 0
    out.operands = [low.operand(text, U32) for text in operands]


@_handles("bfe")
def _bfe(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    if kind in WIDE:
        raise _Unsupported("")
    out.op, out.operands = f"bfe_{SIGNED_SUFFIX[kind]}", _all(low, statement, U32)


@_handles("dp4a")
def _dp4a(low: Lowering, statement: Statement, out: Lowered) -> None:
    first, second = _types(statement)[:2]
    out.op, out.mod = "dp4a", (1 if first == S32 else 0) | (2 if second == S32 else 0)
    out.operands = _all(low, statement, U32)


@_handles("setp")
def _setp(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    kind = _types(statement)[-1]
    if kind in (F16X2, BF16X2):
        raise _Unsupported("")
    out.op, out.ty = "setp", kind
    out.mod = COMPARE[words[1]]
    boolean = next((BOOLEAN[word] for word in words[2:] if word in BOOLEAN), 0)
    out.mod |= boolean << 4
    if "ftz" in words:
        out.flags |= FTZ
    targets = [part.strip() for part in statement.operands[0].split("|")]
    p = low.operand(targets[0], PRED)
    q = low.operand(targets[1], PRED) if len(targets) > 1 else NO_OPERAND
    x, y = (low.operand(text, kind) for text in statement.operands[1:3])
    c = low.predicate(statement.operands[3], out) if boolean else NO_OPERAND
    out.operands = [p, q, x, y, c]


@_handles("selp")
def _selp(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    target, x, y, p = statement.operands
    out.op = "selp_pred" if kind == PRED else "selp64" if kind in WIDE else "selp"
    out.operands = [low.operand(target, kind), low.operand(x, kind), low.operand(y, kind), low.predicate(p, out)]


@_handles("slct")
def _slct(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind, selector = _types(statement)[-2:]
    if kind in WIDE:
        raise _Unsupported("")
    target, x, y, z = statement.operands
    out.op = "slct_f32" if selector == F32 else "slct_s32"
    out.operands = [low.operand(target, kind), low.operand(x, kind), low.operand(y, kind), low.operand(z, selector)]


@_handles("cvt")
def _cvt(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    if "pack" in words or "scaled" in words:
        raise _Unsupported("")
    to, source = _types(statement)[-2:]
    _float_flags(statement, out)
    if "relu" in words:
        out.flags |= SAT
    if to in (F16X2, BF16X2):
        if source != F32 or len(statement.operands) != 3:
            raise _Unsupported("")
        out.op, out.ty = "cvt_pack", to
        if "sat" in words:
            raise _Unsupported("")
        sources = [low.narrowed(text, F32) for text in statement.operands[1:]]
        out.operands = [low.operand(statement.operands[0], U32), *sources]
        return
    if "relu" in words:
        raise _Unsupported("")
    target, value = statement.operands
    out.op, out.ty, out.ty2 = "cvt", to, source
    floats = (F16, BF16, F32, F64, TF32)
    if source in floats and to not in floats and out.mod < 8:
        out.mod = 8 | out.mod  # a conversion to an integer rounds to a whole number in any case
    if low.register_type(target) in WIDE:
        out.flags |= DST_64
    if low.register_type(target) in (U16, S16, F16, BF16):
        out.size = 2
    if _lane_words(low.register_type(target)) < _lane_words(to):
        raise _Unsupported(f"register {target} is not as wide as the type")
    out.operands = [low.register(target), low.narrowed(value, U32 if source == TF32 else source)]


def _space(statement: Statement) -> int:
    for word in statement.opcode[1:]:
        name = word.split(":")[0]
        if name in ("global", "const"):
            return GLOBAL
        if name == "shared":
            if word == "shared:cluster":
                raise _Unsupported("shared memory of another block")
            return SHARED
        if name == "local":
            return LOCAL
        if name == "param":
            return PARAM
    return GENERIC


def _vector_length(statement: Statement) -> int:
    return next((int(word[1:]) for word in statement.opcode if word in ("v2", "v4", "v8")), 1)


@_handles("ld", "ldu", "st")
def _memory(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    load = words[0] != "st"
    kind = _types(statement)[-1]
    if kind == B128:
        raise _Unsupported("")
    out.op = "ld" if load else "st"
    out.ty = kind
    out.space = _space(statement)
    out.size = TYPE_BYTES[next(word for word in reversed(words) if word in TYPES)]
    out.vec = _vector_length(statement)
    if out.size * out.vec > 32:
        raise _Unsupported("")
    if any(word in ("volatile", "acquire", "relaxed") for word in words):
        out.flags |= YIELDS
    data, place = statement.operands[:2] if load else statement.operands[1::-1]
    base, out.imm = low.address(place, out)
    names = [part.strip() for part in data[1:-1].split(",")] if data.startswith("{") else [data]
    registers = [name for name in names if low.is_register(name)]
    widths = {_lane_words(low.register_type(name)) for name in registers}
    if len(widths) > 1 or (widths and max(widths) < _lane_words(kind)):
        raise _Unsupported("registers that are not as wide as the type")
    if max(widths, default=_lane_words(kind)) == 2:
        out.flags |= DST_64
    if registers and low.register_type(registers[0]) in (U16, S16, F16, BF16):
        out.ty2 = 1
    literal_kind = U64 if out.flags & DST_64 else kind
    slots = [low.register(name) if low.is_register(name) else low.operand(name, literal_kind) for name in names]
    out.operands = [base, *slots]
    if out.space in (SHARED, GENERIC):
        low.narrowest = min(low.narrowest, max(out.size, 1))


ATOMIC = {"add": 0, "min": 1, "max": 2, "exch": 3, "cas": 4, "and": 5, "or": 6, "xor": 7, "inc": 8, "dec": 9}


@_handles("atom", "red")
def _atomic(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    if words[1:2] == ("async",) or _vector_length(statement) != 1:
        raise _Unsupported("")
    kind = _types(statement)[-1]
    out.op, out.ty = "atom", kind
    out.space = _space(statement)
    out.size = TYPE_BYTES[words[-1]]
    out.mod = next(ATOMIC[word] for word in words[1:] if word in ATOMIC)
    operands = list(statement.operands)
    target = low.operand(operands.pop(0), kind) if words[0] == "atom" else NO_OPERAND
    base, out.imm = low.address(operands[0], out)
    value = low.operand(operands[1], kind)
    swap = low.operand(operands[2], kind) if out.mod == ATOMIC["cas"] else NO_OPERAND
    out.operands = [base, target, value, swap]


@_handles("cp")
def _async(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    if words[1:3] == ("async", "bulk"):
        _bulk(low, statement, out)
        return
    if words[1] != "async" or "mbarrier" in words or "reduce" in words:
        raise _Unsupported("")
    if "commit_group" in words:
        out.op = "cp_commit"
        return
    if "wait_group" in words or "wait_all" in words:
        out.op, out.mod = "cp_wait", 1 if "wait_all" in words else 0
        out.imm = 0 if "wait_all" in words else low.literal(statement.operands[0], U32) or 0
        return
    shared, source, size, *rest = statement.operands
    out.op, out.space = "cp_async", SHARED
    base, out.imm = low.address(shared, out)
    probe = Lowered()
    origin, offset = low.address(source, probe)
    if origin != NO_OPERAND and not probe.flags & ADDRESS_64:
        raise _Unsupported("a 32-bit global address")
    if not -(2**31) <= offset < 2**31:
        raise _Unsupported("an absolute global address")
    out.target = offset
    out.size = low.literal(size, U32) or 0
    given = ignored = NO_OPERAND
    if rest and "L2:cache_hint" in words:
        rest = rest[:-1]
    if rest:
        if rest[0].startswith("!") or (low.is_register(rest[0]) and low.register_type(rest[0]) == PRED):
            ignored = low.predicate(rest[0], out)
        else:
            given = low.operand(rest[0], U32)
    out.operands = [base, origin, given, ignored]
    low.narrowest = min(low.narrowest, out.size)


def _bulk(low: Lowering, statement: Statement, out: Lowered) -> None:
    """Tensor copies of one block's shared memory, and the groups of those that store."""
    words = statement.opcode
    if "commit_group" in words:
        out.op = "bulk_commit"
        return
    if "wait_group" in words:
        out.op, out.imm = "bulk_wait", low.literal(statement.operands[0], U32) or 0
        return
    if words[3] != "tensor" or any(word.startswith(("multicast", "im2col", "cta_group")) for word in words):
        raise _Unsupported("")
    out.space, out.vec = SHARED, int(words[4][0])
    load = words[5] in ("shared:cluster", "shared:cta") and words[6] == "global"
    if not load and (words[5], words[6]) != ("global", "shared:cta"):
        raise _Unsupported("")
    shared, tensor = statement.operands[:2] if load else statement.operands[1::-1]
    found = re.fullmatch(r"\[([^,]+),\s*\{(.*)\}\s*\]", tensor, re.DOTALL)
    if found is None:
        raise _Unsupported(f"tensor operand {tensor}")
    base, out.imm = low.address(shared, out)
    coordinates = [low.operand(part.strip(), U32) for part in found[2].split(",")]
    operands = [base, low.operand(found[1].strip(), U64)]
    if load:
        operands.append(low.operand(statement.operands[2].strip()[1:-1].strip(), U32))
    out.op, out.operands = "tensor_load" if load else "tensor_store", [*operands, *coordinates]


@_handles("mbarrier")
def _mbarrier(low: Lowering, statement: Statement, out: Lowered) -> None:
    words, operands = statement.opcode, statement.operands
    if "shared:cluster" in words or "noComplete" in words or words[-1] != "b64":
        raise _Unsupported("")
    out.space = SHARED
    if words[1] == "init":
        base, out.imm = low.address(operands[0], out)
        out.op, out.operands = "mbarrier_init", [base, low.operand(operands[1], U32)]
    elif words[1] == "arrive":
        base, out.imm = low.address(operands[1], out)
        given = low.operand(operands[2], U32) if len(operands) > 2 else NO_OPERAND
        expects = "expect_tx" in words
        out.op = "mbarrier_arrive"
        state = low.operand(operands[0], U64)
        out.operands = [base, given if expects else NO_OPERAND, NO_OPERAND if expects else given, state]
    elif words[1] in ("try_wait", "test_wait"):
        base, out.imm = low.address(operands[1], out)
        # A try may take as long as the machine likes: it is held until it is true.
        out.op, out.mod = "mbarrier_wait", 1 if words[1] == "test_wait" else 0
        out.ty = 0 if "parity" in words else 1
        out.operands = [base, low.operand(operands[2], U64 if out.ty else U32), low.operand(operands[0], PRED)]
    else:
        raise _Unsupported("")


@_handles("wgmma")
def _wgmma(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    if words[1] == "fence":
        out.op = "nop"
        return
    if words[1] == "commit_group":
        out.op = "wgmma_commit"
        return
    if words[1] == "wait_group":
        out.op, out.imm = "wgmma_wait", low.literal(statement.operands[0], U32) or 0
        return
    shape = re.fullmatch(r"m64n(\d+)k16", next(word for word in words if word.startswith("m64")))
    if shape is None or words[-3:] != ("f32", "f16", "f16"):
        raise _Unsupported("")
    accumulators, a, b, keep, *rest = statement.operands
    scales_and_majors = [low.literal(text, U32) for text in rest]
    if a.startswith("{") or scales_and_majors[:2] != [1, 1] or len(scales_and_majors) != 4:
        raise _Unsupported("")
    out.op, out.vec, out.space = "wgmma", int(shape[1]) // 8, SHARED
    out.mod = (scales_and_majors[2] or 0) | (scales_and_majors[3] or 0) << 1
    descriptors = [low.operand(a, U64), low.operand(b, U64)]
    out.operands = [*low.vector(accumulators, U32), *descriptors, low.predicate(keep, out)]
    if len(out.operands) != 4 * out.vec + 3:
        raise _Unsupported("")


@_handles("ldmatrix", "stmatrix")
def _matrix(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    if "m8n8" not in words or words[-1] != "b16":
        raise _Unsupported("")
    out.op = words[0]
    out.vec = next(int(word[1:]) for word in words if word in ("x1", "x2", "x4"))
    out.mod = 1 if "trans" in words else 0
    data, place = statement.operands if words[0] == "ldmatrix" else statement.operands[::-1]
    base, out.imm = low.address(place, out)
    out.space = SHARED
    out.operands = [base, *low.vector(data, U32)]


@_handles("mma")
def _mma(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    shape = next(word for word in words if re.fullmatch(r"m\d+n\d+k\d+", word))
    types = [word for word in words if word in TYPES]
    known = {("m16n8k16", "f16"), ("m16n8k8", "f16"), ("m16n8k16", "bf16"), ("m16n8k8", "bf16")}
    known |= {("m16n8k8", "tf32"), ("m16n8k4", "tf32")}
    if len(types) != 4 or types[0] != "f32" or types[3] != "f32" or types[1] != types[2]:
        raise _Unsupported("")
    if (shape, types[1]) not in known or "sp" in words or "row" not in words or "col" not in words:
        raise _Unsupported("")
    out.op, out.ty, out.vec = "mma", TYPES[types[1]], int(shape.split("k")[1])
    out.operands = [slot for text in statement.operands for slot in low.vector(text, U32)]


@_handles("bar", "barrier")
def _bar(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    if "warp" in words:
        out.op, out.operands = "warp_sync", [low.operand(statement.operands[0], U32)]
        return
    if "cluster" in words:
        raise _Unsupported("clusters")
    out.op = "bar"
    operands = list(statement.operands)
    target = NO_OPERAND
    if "red" in words:
        kind = "popc" if "popc" in words else "and" if "and" in words else "or"
        out.mod = {"popc": 1, "and": 2, "or": 3}[kind]
        target = low.operand(operands.pop(0), U32 if kind == "popc" else PRED)
        p = low.predicate(operands.pop(), out)
        first = low.operand(operands[0], U32)
        out.operands = [first, low.operand(operands[1], U32) if len(operands) > 1 else NO_OPERAND, p, target]
        return
    if "arrive" in words:
        out.mod = 4
    first = low.operand(operands[0], U32) if operands else low.constant(0)
    out.operands = [first, low.operand(operands[1], U32) if len(operands) > 1 else NO_OPERAND, NO_OPERAND, target]


@_handles("shfl")
def _shfl(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    if "sync" not in words:
        raise _Unsupported("")
    out.op = "shfl"
    out.mod = ("up", "down", "bfly", "idx").index(next(word for word in words if word in ("up", "down", "bfly", "idx")))
    targets = [part.strip() for part in statement.operands[0].split("|")]
    target = low.operand(targets[0], U32)
    p = low.operand(targets[1], PRED) if len(targets) > 1 else NO_OPERAND
    a, lane, clamp, member = (low.operand(text, U32) for text in statement.operands[1:])
    out.operands = [member, target, p, a, lane, clamp]


@_handles("vote")
def _vote(low: Lowering, statement: Statement, out: Lowered) -> None:
    words = statement.opcode
    if "sync" not in words:
        raise _Unsupported("")
    mode = next(word for word in words if word in ("all", "any", "uni", "ballot"))
    out.op, out.mod = "vote", ("all", "any", "uni", "ballot").index(mode)
    target, p, member = statement.operands
    slot = low.operand(target, U32 if mode == "ballot" else PRED)
    out.operands = [low.operand(member, U32), slot, low.predicate(p, out)]


@_handles("activemask")
def _activemask(low: Lowering, statement: Statement, out: Lowered) -> None:
    out.op, out.operands = "activemask", [low.operand(statement.operands[0], U32)]


@_handles("match")
def _match(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    targets = [part.strip() for part in statement.operands[0].split("|")]
    out.op, out.mod, out.size = "match", 1 if "all" in statement.opcode else 0, 8 if kind in WIDE else 4
    p = low.operand(targets[1], PRED) if len(targets) > 1 else NO_OPERAND
    value, member = low.operand(statement.operands[1], kind), low.operand(statement.operands[2], U32)
    out.operands = [member, low.operand(targets[0], U32), value, p]


@_handles("redux")
def _redux(low: Lowering, statement: Statement, out: Lowered) -> None:
    kind = _types(statement)[-1]
    if kind not in (U32, S32):
        raise _Unsupported("")
    names = ("add", "min", "max", "and", "or", "xor")
    out.op, out.ty = "redux", kind
    out.mod = names.index(next(word for word in statement.opcode if word in names))
    target, value, member = statement.operands
    out.operands = [low.operand(member, U32), low.operand(target, U32), low.operand(value, U32)]


@_handles("elect")
def _elect(low: Lowering, statement: Statement, out: Lowered) -> None:
    targets = [part.strip() for part in statement.operands[0].split("|")]
    p = low.operand(targets[1], PRED) if len(targets) > 1 else NO_OPERAND
    out.op = "elect"
    out.operands = [low.operand(statement.operands[1], U32), low.operand(targets[0], U32), p]


@_handles("bra")
def _bra(low: Lowering, statement: Statement, out: Lowered) -> None:
    out.op, out.label = "bra", statement.operands[0]


@_handles("brx")
def _brx(low: Lowering, statement: Statement, out: Lowered) -> None:
    out.op, out.label = "brx", statement.operands[1]
    out.operands = [low.operand(statement.operands[0], U32)]


@_handles("ret", "exit")
def _exit(low: Lowering, statement: Statement, out: Lowered) -> None:
    out.op = "exit"


@_handles("trap")
def _trap(low: Lowering, statement: Statement, out: Lowered) -> None:
    out.op = "trap"


@_handles("call")
def _call(low: Lowering, statement: Statement, out: Lowered) -> None:
    if "__assertfail" in statement.text:
        out.op = "trap"
        return
    raise _Unsupported("a call that was not inlined")


def lower(module: Module, entry: str) -> Program:
    """The program of one entry.

    Raises:
        MachineFault: the module has no such entry; names those it has.
    """
    if entry not in module.entries:
        known = ", ".join(sorted(module.entries)) or "none"
        raise MachineFault(f"the PTX has no entry {entry!r}; its entries: {known}")
    return Lowering(module, module.entries[entry]).run()
