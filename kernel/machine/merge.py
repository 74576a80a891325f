"""Which neighbouring shared accesses the assembler merges into one wider instruction.

nvcc leaves ``a[i..i+3]`` as four 4-byte loads in PTX; ptxas makes one LDS.128 of them where they have
one base register, consecutive offsets and a provable alignment. What ptxas proves is read here from
what ran: the OR of all addresses the group's first load ever had. Counters then speak of the merged
instruction, as the profiler does.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from kernel.machine.lower import ADDRESS_64, NO_OPERAND, SHARED, Program, opcodes

ENDS = ("bra", "brx", "goto", "exit", "bar", "warp_sync", "cp_wait", "cp_commit", "atom", "unsupported")
"""Engine opcodes across which nothing is merged."""


def merged_accesses(code: Program, counts: npt.NDArray[np.void]) -> tuple[set[int], dict[int, int]]:
    """(instructions that went into an earlier one, {first instruction: how many it stands for})."""
    numbers = opcodes()
    ends = {numbers[name] for name in ENDS}
    load, store = numbers["ld"], numbers["st"]
    names = ("op", "target", "space", "pool", "size", "vec", "guard", "flags", "imm")
    ops, jumps, spaces, pools, sizes, vectors, guards, flags, immediates = (code.code[name].tolist() for name in names)
    pool: list[int] = code.pool.tolist()
    targets = {jump for op, jump in zip(ops, jumps, strict=True) if op in ends and jump}
    skip: set[int] = set()
    merged: dict[int, int] = {}
    version: dict[int, int] = defaultdict(int)
    groups: dict[tuple[int, ...], dict[int, int]] = {}

    def close(which: int | None = None) -> None:
        for key in [key for key in groups if which is None or key[0] == which]:
            _merge(groups.pop(key), code, counts, skip, merged)

    for i, op in enumerate(ops):
        if i in targets or op in ends:
            close()
        if op in (load, store) and spaces[i] == SHARED:
            if op == store:
                close(load)
            else:
                close(store)
            base = pool[pools[i]]
            if sizes[i] == 4 and vectors[i] == 1:
                key = (op, base, version[base], guards[i], flags[i] & ~ADDRESS_64)
                groups.setdefault(key, {}).setdefault(immediates[i], i)
            if op == load:
                for destination in pool[pools[i] + 1 : pools[i] + 1 + vectors[i]]:
                    version[destination] += 1
        elif pools[i] < len(pool) and op not in ends:
            destination = pool[pools[i]]
            if destination != NO_OPERAND:
                version[destination] += 1
    close()
    return skip, merged


def _merge(
    offsets: dict[int, int], code: Program, counts: npt.NDArray[np.void], skip: set[int], merged: dict[int, int]
) -> None:
    for words in (4, 2):
        for offset in sorted(offsets):
            members = [offsets.get(offset + 4 * k) for k in range(words)]
            if any(member is None or member in skip or member in merged for member in members):
                continue
            first = members[0]
            assert first is not None
            if not counts["requests"][first] or int(counts["address_bits"][first]) & (4 * words - 1):
                continue
            merged[first] = words
            skip.update(member for member in members[1:] if member is not None)
