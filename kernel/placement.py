"""Which blocks of a launch run close together on the chip.

SMs come in GPCs (graphics processing clusters) of 16 or 18. Blocks that follow each other are dealt to GPCs in turn, so
neighbours in a kernel's order of tiles are far apart, and every line of an operand goes to all of them. A kernel that
takes a :attr:`kernel.contract.Argument.order` walks tiles by it instead of by block number.

No register names a block's GPC. But blocks of one thread block cluster share a GPC, so launching clusters of many
sizes shows which SMs do; and launches of one shape that follow each other land alike. After other work they may not: on
one H200 they did at every trial, on another hardly ever (results/nvidia-h200/evidence/placement.txt). What is found
is a matter of speed only: any order gives the right result.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from pathlib import Path

from kernel.contract import Argument, Launch, Unit

SOURCE = Path(__file__).with_name("placement.cu")
CLUSTERS = (2, 3, 5, 6, 7, 8)
"""Sizes of clusters whose blocks tell which SMs share a GPC; 8 is the most that every device allows."""
LAUNCHED = 400
"""Clusters of each size: several times what runs at once, so that they meet SMs in changing company."""
ALONE_BYTES = 160 * 1024
"""Dynamic shared memory that leaves no room for a second block on an SM of Hopper (228 KiB)."""


def unit() -> Unit:
    """The unit of the kernel that finds out."""
    return Unit(name="placement", arch="sm_90a", source=SOURCE)


def groups(sms: int, together: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """For each SM the smallest number among those that it was seen with, directly or by way of others."""
    group = list(range(sms))

    def root(sm: int) -> int:
        while group[sm] != sm:
            sm = group[sm]
        return sm

    for seen in together:
        for sm in seen[1:]:
            low, high = sorted((root(seen[0]), root(sm)))
            group[high] = low
    return tuple(root(sm) for sm in range(sms))


def ranks(sm_of_block: Sequence[int], cluster: int, group_of_sm: Sequence[int]) -> bytes:
    """For each cluster its place in an order that keeps a GPC's clusters together; the identity where SMs are shared.

    ``sm_of_block`` lists the SM of every block, cluster after cluster.
    """
    count = len(sm_of_block) // cluster
    if len(set(sm_of_block)) != len(sm_of_block):
        return bytes(range(count))
    first = [sm_of_block[number * cluster] for number in range(count)]
    order = sorted(range(count), key=lambda number: (group_of_sm[first[number]], first[number]))
    return bytes(order.index(number) for number in range(count))


def order_of(launch: Launch) -> bytes:
    """:func:`ranks` of a launch's clusters on the current device, by running two kernels there the first time.

    Raises:
        LaunchError, NoDeviceError, MissingToolError, BuildError: the kernel that finds out cannot be run.
    """
    from kernel.launch import cupy_module

    device = int(cupy_module().cuda.runtime.getDevice())
    return _order(device, launch.blocks, launch.cluster[0], launch.threads, launch.dynamic_smem)


@functools.cache
def _order(device: int, blocks: int, cluster: int, threads: int, smem: int) -> bytes:
    landed = _land(blocks, cluster, threads, smem, 100_000, 0)
    return ranks(landed, cluster, _groups(device, max(landed) + 1))


@functools.cache
def _groups(device: int, sms: int) -> tuple[int, ...]:
    together: list[tuple[int, ...]] = []
    for size in CLUSTERS:
        landed = _land(LAUNCHED * size, size, 128, ALONE_BYTES, 2_000, 300)
        together += (landed[at : at + size] for at in range(0, len(landed), size))
    return groups(max(sms, *(sm + 1 for seen in together for sm in seen)), together)


def _land(blocks: int, cluster: int, threads: int, smem: int, least: int, more: int) -> tuple[int, ...]:
    """The SM of each block of a launch on the current device."""
    from kernel.launch import cupy_module, run_now

    cupy = cupy_module()
    landed = cupy.empty(blocks, dtype=cupy.uint32)
    launch = Launch(
        unit=unit(),
        entry="place",
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        dynamic_smem=smem,
        cluster=(cluster, 1, 1),
    )
    values = (struct.pack("<Q", landed.data.ptr), struct.pack("<i", least), struct.pack("<i", more))
    stream = cupy.cuda.get_current_stream()
    run_now(launch, tuple(Argument(data=value) for value in values), stream.ptr)
    return tuple(landed.get().tolist())
