"""The engine's fault records in words: which kernel, instruction, thread and address, and what is wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from kernel.contract import Launch
from kernel.machine.lower import SHARED_ORIGIN, Program
from kernel.machine.memory import ADDRESSABLE, Buffer
from kernel.machine.report import Fault
from kernel.machine.shape import Shape

UNORDERED = "with no barrier between them"
FROM_BLANK = "a value from shared memory never written ({other_at})"
WORDS = {
    1: ("out of bounds", "{verb} of {size} bytes out of bounds by {who}: {where}"),
    2: ("misaligned", "misaligned access of {size} bytes by {who}: address {address:#x}, {where}"),
    3: ("uninitialised read", "{who} reads {size} bytes that were never written: {where}"),
    4: ("write to read-only memory", "{who} writes {size} bytes to read-only memory: {where}"),
    5: ("shared out of bounds", "access of {size} bytes out of bounds by {who}: {shared}; the block has {smem} bytes"),
    6: ("shared misaligned", "misaligned access of {size} bytes by {who}: {shared}"),
    7: ("uninitialised shared read", "{who} reads {size} bytes that were never written: {shared}"),
    8: ("race", "race: {who} reads {shared}, which {other} writes ({other_at}) " + UNORDERED),
    9: ("race", "race: {who} writes {shared}, which {other} reads ({other_at}) " + UNORDERED),
    10: ("race", "race: {who} writes {shared}, which {other} writes too ({other_at}) " + UNORDERED),
    11: ("divergent barrier", "barrier in divergent code: {who} waits and its whole warp never arrives{elsewhere}"),
    12: ("barrier not reached", "barrier that not all threads reach: {who} waits, {extra} threads arrived{elsewhere}"),
    13: (
        "async copy read early",
        "{who} reads {shared} before the cp.async of {other} was waited for ({other_at})",
    ),
    14: ("async copy overwritten", "{who} overwrites {shared} while a cp.async of {other} is under way ({other_at})"),
    15: ("unsupported", "the PTX machine lacks {lacking}, reached by {who}"),
    16: ("local out of bounds", "local access of {size} bytes out of bounds by {who}: offset {address} of {local}"),
    17: ("trap", "trap or failed assertion in {who}"),
    18: ("endless", "{who} does not come to an end"),
    19: ("warp synchronisation not reached", "{who} waits at a warp-wide instruction that not all of its lanes reach"),
    20: ("parameter out of bounds", "parameter access of {size} bytes out of bounds by {who}: offset {address}"),
    21: ("shuffle from inactive lane", "{who} shuffles from {other}, which does not take part"),
    22: ("barrier not reached", "barrier that not all threads reach: {who} waits, {other} has left the kernel"),
    23: ("uninitialised value stored", "{who} stores to {where} " + FROM_BLANK),
    24: ("uninitialised value used as an address", "{who} uses as an address " + FROM_BLANK),
    25: ("uninitialised value branched on", "{who} branches on " + FROM_BLANK),
    26: ("mbarrier not initialised", "{who} uses an mbarrier at {shared} that nobody has initialised"),
    27: (
        "mbarrier not completed",
        "{who} waits at the mbarrier at {shared} whose phase never completes: arrivals still pending: {extra}",
    ),
    28: ("mbarrier over-arrived", "{who} arrives at the mbarrier at {shared}, whose phase has all its arrivals"),
    29: (
        "missing proxy fence",
        "the copy engine or Tensor Core of {who} reads {shared}, which {other} writes ({other_at}) with no "
        "fence.proxy.async behind it",
    ),
    30: ("no tensor map", "{who} names a tensor map at {address:#x}, where no parameter holds one"),
    31: ("bulk store overwritten", "{who} overwrites {shared} while a tensor store may still read it"),
    32: ("bulk store not waited for", "{who} ends while its tensor store may still read {size} bytes at {shared}"),
    33: (
        "warpgroup not together",
        "{who} waits for products of its warpgroup that not all of its warps have issued",
    ),
}
"""Kind and message by the engine's number (enum Kind in engine_source/machine.h)."""
OUTPUT_NOT_WRITTEN = "output not written"
"""Kind of the fault that is found after a GEMM."""
COPY_NOT_READ = "async copy never read"
"""Kind of the fault that is found after a launch, where checks are strict."""


def describe(code: Program, launch: Launch | Shape, buffers: Sequence[Buffer], record: np.void) -> Fault:
    """One engine record as a :class:`Fault`."""
    kind, message = WORDS[int(record["kind"])]
    ins, other_ins, other_thread = int(record["ins"]), int(record["other_ins"]), int(record["other_thread"])
    x, y, z = (int(index) for index in record["block"])
    thread = _thread(int(record["thread"]), launch.block)
    address = int(record["address"])
    other = f"thread {_thread(other_thread, launch.block)}" if other_thread >= 0 else ""
    other_at = f"line {code.line(other_ins)}: {code.text(other_ins)}" if other_ins >= 0 else ""
    elsewhere = f"; {other} {f'is at {other_at}' if other_at else 'is not there'}" if other else ""
    return Fault(
        kind=kind,
        message=message.format(
            who=f"thread {thread} of block {(x, y, z)}",
            verb="write" if record["extra"] else "read",
            size=int(record["size"]),
            address=address,
            where=_where(buffers, address),
            shared=f"shared address {address - SHARED_ORIGIN}{_variable(code, address - SHARED_ORIGIN)}",
            smem=code.static_smem + launch.dynamic_smem,
            local=code.local_bytes,
            lacking=code.unsupported.get(ins, "this opcode"),
            extra=int(record["extra"]),
            other=other,
            other_at=other_at,
            elsewhere=elsewhere,
        ),
        kernel=code.name,
        instruction=code.text(ins),
        line=code.line(ins),
        source=code.source(ins),
        block=(x, y, z),
        thread=thread,
        address=address,
        count=int(record["count"]),
    )


def unread_copies(code: Program, size: int, ins: int) -> Fault:
    """``size`` bytes that cp.async brought and no thread read before they were overwritten or the block ended."""
    return Fault(
        kind=COPY_NOT_READ,
        message=f"{size} bytes copied by cp.async were never read, as where the wrong buffer is drained; first copied",
        kernel=code.name,
        instruction=code.text(ins),
        line=code.line(ins),
        source=code.source(ins),
    )


def _thread(linear: int, block: tuple[int, int, int]) -> tuple[int, int, int]:
    return linear % block[0], linear // block[0] % block[1], linear // block[0] // block[1]


def _where(buffers: Sequence[Buffer], address: int) -> str:
    """A global address by the buffer it lies in or next to."""
    if address < 4096:
        return f"address {address:#x} (a null pointer)"
    if not buffers:
        return f"address {address:#x}"

    def distance(buffer: Buffer) -> int:
        return max(buffer.address - address, address - buffer.address - buffer.data.size + 1, 0)

    nearest = min(buffers, key=distance)
    if distance(nearest) >= 2**32:
        return f"address {address:#x}, in no buffer"
    offset = address - nearest.address
    between = 0 <= offset < nearest.data.size and not nearest.shadow[offset] & ADDRESSABLE
    return nearest.where(address) + (f", between the rows of {nearest.name}" if between else "")


def _variable(code: Program, offset: int) -> str:
    """The shared variable at an offset, where there is more than one."""
    for name, (start, size) in code.shared.items():
        if size and start <= offset < start + size and len(code.shared) > 1:
            return f" ({_plain(name)}+{offset - start})"
    return ""


def _plain(name: str) -> str:
    """A variable's name without the mangling of the function it is local to."""
    for found in re.finditer(r"E(\d+)(?=[A-Za-z_])", name):
        last = name[found.end() :]
        if len(last) == int(found[1]):
            return last
    return name
