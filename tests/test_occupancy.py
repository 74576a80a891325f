"""Occupancy: values worked out by hand, NVIDIA's header as an oracle, and the driver where there is a GPU."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kernel import toolchain
from kernel.errors import CatalogError, MissingToolError, UsageError
from kernel.occupancy import LIMITS, occupancy, registers_per_block, sm_limits

KB = 1024


def blocks(**resources):
    return occupancy("sm_90a", **resources).blocks


def test_registers_come_in_units_of_256_a_warp_and_warps_in_fours():
    # 100 x 32 = 3200 -> 3328 a warp; a partition of 16384 holds 4, an SM 16 warps; 16 / 5 = 3 blocks.
    # Without the rounding it would be 65536 / 16000 = 4.
    assert blocks(registers=100, threads=160) == 3


@pytest.mark.parametrize(("registers", "expected"), [(40, 6), (41, 5), (43, 5), (48, 5), (49, 4)])
def test_registers_between_two_units_count_as_the_larger(registers, expected):
    # 41 and 43 x 32 = 1312 and 1376 -> 1536; 10 warps a partition, 40 an SM; 40 / 8 = 5. 40 registers: 1280, 12, 48, 6.
    assert blocks(registers=registers, threads=256) == expected


@pytest.mark.parametrize(
    ("static", "dynamic", "expected"),
    [
        (0, 57 * KB, 3),  # 228 / 58 = 3.9; without the reserved kilobyte 228 / 57 = 4
        (0, 113 * KB, 2),  # 228 / 114 = 2 exactly
        (0, 114 * KB, 1),
        (16 * KB, 0, 13),  # 228 / 17
        (16, 48 * KB, 4),  # 50,192 -> 50,304 in units of 128; 233,472 / 50,304 = 4.6
        (16 * KB, 40 * KB, 4),  # 228 / 57
        (16 * KB + 1, 40 * KB, 4 - 1),  # one byte more takes another 128
    ],
)
def test_shared_memory_counts_static_dynamic_and_a_reserved_kilobyte(static, dynamic, expected):
    assert blocks(registers=32, threads=32, static_smem=static, dynamic_smem=dynamic) == expected


def test_the_chapters_kernel():
    found = occupancy("sm_90a", registers=96, threads=256, static_smem=16 * KB)
    assert (found.blocks, found.warps, found.percent) == (2, 16, 25.0)
    assert found.by_resource == {"registers": 2, "shared memory": 13, "warps": 8, "blocks": 32, "barriers": 64}
    assert found.limited_by == ("registers",)


def test_largest_shared_memory_of_a_block_fits_and_one_byte_more_does_not():
    assert blocks(registers=32, threads=32, dynamic_smem=232_448) == 1
    found = occupancy("sm_90a", registers=32, threads=32, static_smem=16, dynamic_smem=232_448)
    assert found.blocks == 0
    assert "232448" in found.why_none
    assert "16 of static" in found.why_none


def test_what_cannot_launch_says_why():
    assert "threads" in occupancy("sm_90", registers=32, threads=1025).why_none
    assert "256 registers a thread, at most 255" in occupancy("sm_90", registers=256, threads=32).why_none
    assert "registers a block" in occupancy("sm_90", registers=255, threads=512).why_none
    # 5 warps are charged as 8: 8 x 8192 = 65536 fits, 9 warps are charged as 12.
    assert blocks(registers=255, threads=160) == 1
    assert blocks(registers=255, threads=288) == 0


def test_named_barriers_are_a_resource_on_hopper_only():
    assert occupancy("sm_90", registers=16, threads=32, barriers=16).blocks == 4
    assert occupancy("sm_80", registers=16, threads=32, barriers=16).blocks == 32


@pytest.mark.parametrize(
    ("arch", "threads", "slots"), [("sm_80", 2048, 32), ("sm_86", 1536, 16), ("sm_89", 1536, 24), ("sm_120", 1536, 24)]
)
def test_slots_by_architecture(arch, threads, slots):
    assert occupancy(arch, registers=16, threads=32).by_resource["blocks"] == slots
    assert occupancy(arch, registers=16, threads=1024).by_resource["warps"] == threads // 1024


def test_unknown_architecture_and_nonsense_are_typed_errors():
    with pytest.raises(CatalogError, match="sm_75"):
        sm_limits("sm_75")
    with pytest.raises(CatalogError):
        sm_limits("hopper")
    with pytest.raises(UsageError):
        occupancy("sm_90", registers=32, threads=0)
    with pytest.raises(UsageError):
        occupancy("sm_90", registers=-1, threads=32)


def test_registers_of_a_block():
    assert registers_per_block(96, 256) == 24576
    assert registers_per_block(32, 256) == 8192
    assert registers_per_block(128, 256) == 32768


ORACLE = r"""
#include <cuda_occupancy.h>
#include <climits>
#include <cstdio>
int main() {
    int major, minor, threads_sm, registers, threads, barriers;
    size_t smem_sm, fixed, dynamic;
    while (std::scanf("%d %d %d %zu %d %d %zu %zu %d", &major, &minor, &threads_sm, &smem_sm, &registers, &threads,
                      &fixed, &dynamic, &barriers) == 9) {
        cudaOccDeviceProp device;
        device.computeMajor = major; device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024; device.maxThreadsPerMultiprocessor = threads_sm;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536; device.warpSize = 32; device.numSms = 1;
        device.sharedMemPerBlock = 48 * 1024; device.sharedMemPerMultiprocessor = smem_sm;
        device.sharedMemPerBlockOptin = smem_sm - 1024; device.reservedSharedMemPerBlock = 1024;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024; kernel.numRegs = registers; kernel.sharedSizeBytes = fixed;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF; kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = dynamic; kernel.numBlockBarriers = barriers;
        cudaOccDeviceState state;
        state.cacheConfig = CACHE_PREFER_SHARED; state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        cudaOccError error =
            cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, dynamic);
        std::printf("%d\n", error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1);
    }
}
"""


def cuda_include():
    nvcc = toolchain.find("nvcc").path
    for folder in (nvcc.parent.parent / "include", *nvcc.parent.parent.glob("targets/*/include")):
        if (folder / "cuda_occupancy.h").is_file():
            return folder
    pytest.skip("cuda_occupancy.h is not beside this nvcc")


@pytest.mark.nvcc
def test_equal_to_nvidias_header_on_every_architecture(tmp_path):
    try:
        compiler = toolchain.find("g++").path
    except MissingToolError:
        pytest.skip("no g++")
    source = tmp_path / "oracle.cpp"
    source.write_text(ORACLE)
    subprocess.run([compiler, "-O1", "-w", f"-I{cuda_include()}", source, "-o", tmp_path / "oracle"], check=True)
    pick = random.Random(0)
    cases = []
    for number, limits in LIMITS.items():
        edges = itertools.product((1, 32, 41, 100, 255), (1, 33, 160, 1024), (0, 16 * KB), (0, 57 * KB, 98 * KB), (1,))
        more = (
            (pick.randint(1, 255), pick.randint(1, 1024), pick.randrange(0, 48 * KB), pick.randrange(0, 229 * KB), 16)
            for _ in range(600)
        )
        cases += [(number, limits, case) for case in (*edges, *more)]
    lines = [
        f"{number // 10} {number % 10} {limits.threads} {limits.smem} " + " ".join(map(str, case))
        for number, limits, case in cases
    ]
    answer = subprocess.run(
        [tmp_path / "oracle"], input="\n".join(lines), capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(answer) == len(cases)
    for told, (_, limits, (registers, threads, static, dynamic, barriers)) in zip(answer, cases, strict=True):
        ours = occupancy(
            limits.arch,
            registers=registers,
            threads=threads,
            static_smem=static,
            dynamic_smem=dynamic,
            barriers=barriers,
        ).blocks
        # The header answers -1 where more shared memory is asked for than any carve-out holds.
        assert ours == max(int(told), 0), (limits.arch, registers, threads, static, dynamic, barriers)


@pytest.mark.gpu
def test_equal_to_the_driver_for_every_kernel_and_case(tmp_path):
    """compare.evidence asks the driver; every answer must be what this module computes."""
    done = subprocess.run(
        [sys.executable, "-m", "compare.evidence", "--only", "occupancy", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    import json

    cases = json.loads((tmp_path / "occupancy.json").read_text())["cases"]
    assert len(cases) >= 20
    assert {case["name"] for case in cases if case["driver"] != case["computed"]} == set()
