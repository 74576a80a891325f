"""How many blocks of a kernel fit an SM, by the allocation rules of the hardware, and what stops the next one.

The rules are those of NVIDIA's cuda_occupancy.h: registers are handed out per warp in units of 256,
each of the four partitions of an SM holds whole warps only (so warps per SM come in fours), shared
memory is handed out in units of 128 bytes after 1,024 reserved per block, and blocks, warps and
barriers have slots. A test compares this module with that header, a GPU test with the driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernel.contract import Resources, ceil_div
from kernel.errors import CatalogError, UsageError

WARP = 32
PARTITIONS = 4
REGISTERS = 65536
"""32-bit registers of an SM, and the most that one block may take."""
REGISTER_UNIT = 256
"""Registers are handed to a warp in multiples of this."""
REGISTERS_PER_THREAD = 255
"""What an instruction can name; ptxas never assigns more."""
SMEM_UNIT = 128
RESERVED_SMEM = 1024
"""Bytes of shared memory that the system takes from every block, sm_80 and later."""
THREADS_PER_BLOCK = 1024
DEFAULT_SMEM = 48 * 1024
"""Bytes of shared memory a block may have without opting in to more."""


@dataclass(frozen=True, kw_only=True)
class SmLimits:
    """What one SM of an architecture holds."""

    arch: str
    threads: int
    blocks: int
    smem: int
    """Bytes of shared memory at the largest carve-out."""
    barriers: int
    """Named-barrier slots, 0 where the rule does not apply (before sm_90)."""

    @property
    def warps(self) -> int:
        """Warp slots."""
        return self.threads // WARP

    @property
    def smem_per_block(self) -> int:
        """Most bytes one block may ask for, static plus dynamic, after opting in."""
        return self.smem - RESERVED_SMEM


LIMITS = {
    80: SmLimits(arch="sm_80", threads=2048, blocks=32, smem=164 * 1024, barriers=0),
    86: SmLimits(arch="sm_86", threads=1536, blocks=16, smem=100 * 1024, barriers=0),
    89: SmLimits(arch="sm_89", threads=1536, blocks=24, smem=100 * 1024, barriers=0),
    90: SmLimits(arch="sm_90", threads=2048, blocks=32, smem=228 * 1024, barriers=64),
    100: SmLimits(arch="sm_100", threads=2048, blocks=32, smem=228 * 1024, barriers=64),
    120: SmLimits(arch="sm_120", threads=1536, blocks=24, smem=100 * 1024, barriers=24),
}
"""By compute capability; a suffix (sm_90a) does not change what an SM holds."""


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Blocks of one kernel that are resident on an SM at once."""

    arch: str
    blocks: int
    warps: int
    max_warps: int
    by_resource: dict[str, int]
    """Blocks that each resource alone would allow: registers, shared memory, warps, blocks, barriers."""
    limited_by: tuple[str, ...]
    """The resources that stop one more block."""
    why_none: str = ""
    """Where no block fits: what was asked for and what there is."""

    @property
    def percent(self) -> float:
        """Resident warps over warp slots, 0 to 100."""
        return 100.0 * self.warps / self.max_warps


def sm_limits(arch: str) -> SmLimits:
    """What an SM of ``arch`` (sm_90a, sm_90 or 90) holds.

    Raises:
        CatalogError: an architecture whose limits are not known here.
    """
    match = re.fullmatch(r"(?:sm_|compute_)?(\d+)[af]?", arch)
    found = LIMITS.get(int(match[1])) if match else None
    if found is None:
        known = ", ".join(limits.arch for limits in LIMITS.values())
        raise CatalogError(f"the limits of {arch!r} are not known; known architectures: {known}")
    return found


def registers_per_block(registers: int, threads: int) -> int:
    """Registers that a block occupies, ``registers`` per thread rounded up per warp."""
    return ceil_div(registers * WARP, REGISTER_UNIT) * REGISTER_UNIT * ceil_div(threads, WARP)


def occupancy(
    arch: str,
    *,
    registers: int,
    threads: int,
    static_smem: int = 0,
    dynamic_smem: int = 0,
    barriers: int = 1,
) -> Occupancy:
    """Resident blocks per SM of a kernel with these resources per thread (registers) and per block (the rest).

    Shared memory is in bytes, without the reserved 1,024, at the largest carve-out and with the
    opt-in for more than 48 KB taken.

    Raises:
        UsageError: no threads, or a negative resource.
        CatalogError: an architecture whose limits are not known.
    """
    limits = sm_limits(arch)
    if threads < 1 or min(registers, static_smem, dynamic_smem, barriers) < 0:
        raise UsageError(
            f"{threads} threads, {registers} registers, {static_smem} + {dynamic_smem} bytes of shared memory and "
            f"{barriers} barriers: at least one thread and nothing negative is needed"
        )
    warps = ceil_div(threads, WARP)
    smem = static_smem + dynamic_smem
    per_warp = ceil_div(registers * WARP, REGISTER_UNIT) * REGISTER_UNIT
    # The launch check charges whole groups of four warps, though the allocation itself does not.
    charged = per_warp * ceil_div(warps, PARTITIONS) * PARTITIONS
    smem_taken = ceil_div(smem + RESERVED_SMEM, SMEM_UNIT) * SMEM_UNIT

    objections = []
    if threads > THREADS_PER_BLOCK:
        objections.append(f"{threads} threads a block, at most {THREADS_PER_BLOCK}")
    if registers > REGISTERS_PER_THREAD:
        objections.append(f"{registers} registers a thread, at most {REGISTERS_PER_THREAD}")
    elif charged > REGISTERS:
        objections.append(f"{charged} registers a block (warps in fours), at most {REGISTERS}")
    if smem > limits.smem_per_block:
        objections.append(
            f"{dynamic_smem} bytes of dynamic and {static_smem} of static shared memory, "
            f"at most {limits.smem_per_block} together on {limits.arch}"
        )

    by_resource = {
        "registers": REGISTERS // PARTITIONS // per_warp * PARTITIONS // warps if per_warp else limits.blocks,
        "shared memory": limits.smem // smem_taken,
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
    }
    if limits.barriers and barriers:
        by_resource["barriers"] = limits.barriers // barriers
    blocks = 0 if objections else min(by_resource.values())
    return Occupancy(
        arch=limits.arch,
        blocks=blocks,
        warps=blocks * warps,
        max_warps=limits.warps,
        by_resource=by_resource,
        limited_by=tuple(name for name, count in by_resource.items() if count == min(by_resource.values())),
        why_none="; ".join(objections),
    )


def occupancy_of(arch: str, resources: Resources, *, threads: int, dynamic_smem: int) -> Occupancy:
    """Resident blocks per SM of a built kernel in a launch; what it raises is :func:`occupancy`'s."""
    return occupancy(
        arch,
        registers=resources.registers,
        threads=threads,
        static_smem=resources.static_smem,
        dynamic_smem=dynamic_smem,
        barriers=resources.barriers,
    )
