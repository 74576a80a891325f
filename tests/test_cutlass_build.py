"""CUTLASS kernels built without a GPU: what the C++ types, the assembler and the packers say about them."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cutlass_ref import packers
from cutlass_ref.catalog import ASSUMED_MULTIPROCESSORS, KERNELS, bundle_files, get, group
from kernel.build import artifact, build_all, write_bundle
from kernel.contract import Pointers, Problem
from kernel.disassemble import sass
from kernel.gate import objections
from kernel.plan import plan

pytestmark = [pytest.mark.cppgen, pytest.mark.nvcc, pytest.mark.slow]

DEFAULT_SET = tuple(kernel for kernel in KERNELS if kernel.in_default_set)
SIMT = [get(f"cutlass_simt_{tile}_s1_rr") for tile in ("128x128x5", "256x128x5", "64x64x5", "32x128x5")]
SM90 = [
    get("cutlass_fp16_sm90_128x256x64_2x1_auto_persistent_rr_default"),
    get("cutlass_fp16_sm90_128x256x64_2x1_cooperative_persistent_rr"),
    get("cutlass_fp16_sm90_128x128x64_2x1_pingpong_persistent_rr"),
]
AT = Pointers(a=0x7F0000010000, b=0x7F0000020000, c=0x7F0000030000, workspace=0x7F0000040000)


def fp16(m, n, k, **fields):
    return Problem(m=m, n=n, k=k, dtype_in="float16", dtype_out="float16", **fields)


def problem_for(kernel, m=520, n=264, k=136, **fields):
    values = {"dtype_in": kernel.dtype_in, "dtype_out": kernel.dtype_out, "layout": kernel.layouts[0], **fields}
    return Problem(m=m, n=n, k=k, **values)


def opcodes(kernel):
    (unit,) = kernel.units()
    return re.findall(r"\b(FFMA|HMMA|HGMMA|STL|LDL)\b", sass(artifact(unit).cubin, kernel.entry()))


@pytest.mark.parametrize("kernel", SIMT, ids=lambda kernel: kernel.name)
def test_simt_kernels_use_ffma_alone_and_spill_nothing(kernel):
    found = opcodes(kernel)
    assert found.count("FFMA") >= kernel.tile.THREAD_M * kernel.tile.THREAD_N * kernel.tile.BLOCK_K
    assert not {"HMMA", "HGMMA", "STL", "LDL"} & set(found)
    built = artifact(kernel.units()[0])
    assert built.resources[kernel.entry()].spill_bytes == 0
    assert ".entry" in built.ptx.read_text()


@pytest.mark.parametrize("kernel", SM90, ids=lambda kernel: kernel.name)
def test_sm90_kernels_use_wgmma_and_our_flags_keep_it_asynchronous(kernel):
    found = opcodes(kernel)
    assert "HGMMA" in found
    assert "HMMA" not in found
    built = artifact(kernel.units()[0])
    assert built.resources[kernel.entry()].spill_bytes == 0
    assert "C7510" not in built.log.read_text()
    assert built.arch == "sm_90a"


def test_the_package_flags_serialize_wgmma_as_the_assembler_says():
    flagged = get("cutlass_fp16_sm90_128x256x64_2x1_auto_persistent_rr_default_pkgflags")
    assert "C7510" in artifact(flagged.units()[0]).log.read_text()
    assert flagged.entry() == get(flagged.base).entry()


@pytest.mark.parametrize("kernel", DEFAULT_SET, ids=lambda kernel: kernel.name)
def test_the_catalog_tile_is_what_the_emitted_types_say(kernel):
    types, tile = kernel.traits(), kernel.tile
    assert types.block == (tile.BLOCK_M, tile.BLOCK_N, tile.BLOCK_K)
    assert types.api == (3 if kernel.recipe.arch == 90 else 2)
    if kernel.recipe.arch == 90:
        assert types.cluster == (tile.CLUSTER_M, tile.CLUSTER_N)
        assert types.mma == (tile.MMA_M, tile.MMA_N, tile.MMA_K)
        assert types.stages >= 2
        schedule = kernel.recipe.schedule
        assert types.pingpong == schedule.startswith("pingpong")
        assert types.cooperative == (not types.pingpong)
        assert types.tma_epilogue == (schedule in ("cooperative", "pingpong"))
    else:
        assert types.warp[:2] == (tile.WARP_M, tile.WARP_N)
        assert types.stages == tile.NUM_STAGES
        if kernel.instruction == "ffma":
            assert types.thread[:2] == (tile.THREAD_M, tile.THREAD_N)
        else:
            assert types.mma == (tile.MMA_M, tile.MMA_N, tile.MMA_K)


@pytest.mark.parametrize("kernel", DEFAULT_SET, ids=lambda kernel: kernel.name)
def test_every_launch_passes_the_static_gate(kernel):
    (launch,) = kernel.launches(problem_for(kernel))
    assert objections(launch, artifact(launch.unit)) == ()


@pytest.mark.parametrize("tile", ["128x128x5", "32x128x5", "256x128x4"])
def test_simt_grid_covers_every_shape(tile):
    kernel = get(f"cutlass_simt_{tile}_s1_rr")
    for m, n in ((1, 1), (127, 128), (128, 129), (129, 127), (1000, 4092)):
        (launch,) = kernel.launches(Problem(m=m, n=n, k=8))
        tiles = -(-m // kernel.tile.BLOCK_M), -(-n // kernel.tile.BLOCK_N)
        assert launch.grid == (*tiles, 1)
        assert launch.threads == kernel.recipe.threads
        assert launch.workspace == 0


def test_simt_parameters_hold_pointers_pitches_and_scalars():
    kernel = SIMT[0]
    given = Problem(m=130, n=131, k=35, lda=41, ldb=1003, ldc=2005, alpha=-2.5, beta=0.75)
    ((argument,),) = kernel.pack(given, AT)
    data = argument.data
    assert len(data) == kernel.traits().params == 368
    assert struct.unpack_from("<3i", data) == (130, 131, 35)
    # The epilogue's pitch is in bytes, those of the operand loads in elements.
    for value in (AT.a, AT.b, AT.c, 41, 1003, 2005 * 4):
        assert struct.pack("<q", value) in data
    assert struct.pack("<2f", -2.5, 0.75) in data
    assert data.count(struct.pack("<Q", AT.c)) == 2
    assert argument.tensor_maps == ()


def test_columns_beyond_one_grid_become_further_launches():
    kernel = get("cutlass_simt_128x32x5_s1_rr")
    most = 65535 * 32
    given = Problem(m=4, n=most + 5, k=8, ldb=most + 7, ldc=most + 9)
    assert kernel.rejects(given) is None
    assert kernel.variant(given) == "columns_by_2"
    first, second = kernel.launches(given)
    assert first.grid == (1, 65535, 1)
    assert second.grid == (1, 1, 1)
    (one,), (two,) = kernel.pack(given, AT)
    assert struct.unpack_from("<3i", two.data) == (4, 5, 8)
    assert struct.pack("<Q", AT.b + 4 * most) in two.data
    assert struct.pack("<Q", AT.c + 4 * most) in two.data
    assert struct.pack("<Q", AT.b) in one.data
    column_b = kernel.recipe.replace(layout="rc")
    assert column_b.layout == "rc"
    columns = get("cutlass_simt_128x32x5_s1_rc")
    wide = Problem(m=4, n=most + 5, k=8, layout="rc", ldb=11)
    assert struct.pack("<Q", AT.b + 4 * 11 * most) in columns.pack(wide, AT)[1][0].data


def test_rows_may_exceed_the_y_limit():
    (launch,) = SIMT[0].launches(Problem(m=8_388_481, n=4, k=8))
    assert launch.grid == (65536, 1, 1)


@pytest.mark.parametrize("kernel", [k for k in DEFAULT_SET if k.instruction == "wgmma"], ids=lambda k: k.name)
def test_sm90_tensor_maps_describe_the_operands(kernel):
    given = problem_for(kernel, lda=152, ldb=280, ldc=296)
    size = 2 if kernel.dtype_in == "float16" else 4
    ((argument,),) = kernel.pack(given, AT)
    maps = {}
    for offset, described in argument.tensor_maps:
        assert offset % 64 == 0
        assert argument.data[offset : offset + 128] == bytes(128)
        maps.setdefault(described.address, described)
    a, b = maps[AT.a], maps[AT.b]
    assert a.shape[:2] == (given.k, given.m)
    assert a.strides[0] == 152 * size
    assert b.shape[:2] == (given.n, given.k)
    assert b.strides[0] == 280 * size
    assert (AT.c in maps) == kernel.traits().tma_epilogue
    if AT.c in maps:
        assert maps[AT.c].shape[:2] == (given.n, given.m)
        assert maps[AT.c].strides[0] == 296 * size
    for described in maps.values():
        assert described.dtype in ("float16", "float32", "tfloat32")
        assert np.prod(described.box[0]) * size <= max(described.swizzle, 128)


def test_persistent_grids_fill_the_multiprocessors_with_whole_clusters():
    kernel = get("cutlass_fp16_sm90_128x256x64_2x1_cooperative_persistent_rr")
    (launch,) = kernel.launches(fp16(8192, 8192, 8192))
    assert launch.blocks == ASSUMED_MULTIPROCESSORS
    assert launch.cluster == (2, 1, 1)
    (small,) = kernel.launches(fp16(512, 256, 64))
    assert small.grid[0] % 2 == 0
    assert launch.block == (384, 1, 1)


def test_raster_and_swizzle_reach_the_parameters():
    base = "cutlass_fp16_sm90_128x256x64_2x1_cooperative_persistent_rr"
    given = fp16(4096, 8192, 512)
    packed = {
        name: get(base + name).pack(given, AT)[0][0].data
        for name in ("", "_rasterm1", "_rastern1", "_rasterm8", "_rastern8")
    }
    assert len({*packed.values()}) >= 4
    assert {len(data) for data in packed.values()} == {get(base).traits().params}
    grids = {get(base + name).launches(given)[0].grid for name in ("_rasterm1", "_rastern1")}
    assert len(grids) == 2


def test_split_k_and_stream_k_ask_for_a_cleared_workspace():
    split = get("cutlass_simt_256x128x4_s1_rr_splitk2")
    (launch,) = split.launches(Problem(m=300, n=300, k=64))
    assert launch.grid == (2, 3, 2)
    assert launch.workspace_zeroed == launch.workspace == 4 * 6
    stream = get("cutlass_fp16_sm90_128x256x64_2x1_cooperative_streamk_rr")
    given = fp16(3072, 3072, 3072)
    clear, launch = stream.launches(given)
    assert launch.workspace > 2**20
    assert launch.workspace_zeroed == 0
    (address, count), _ = stream.pack(given, AT)
    flags = struct.unpack("<q", count.data)[0]
    assert struct.unpack("<Q", address.data)[0] + 4 * flags == AT.workspace + launch.workspace
    assert 0 < flags <= clear.grid[0] * clear.threads < 4096
    assert {clear.unit, launch.unit} == set(stream.units())
    assert len(stream.launches(fp16(4096, 4096, 4096))) == 1


def test_packing_is_a_function_of_its_arguments():
    for kernel in (SIMT[0], SM90[1]):
        given = problem_for(kernel)
        once = kernel.pack(given, AT)
        kernel.pack(given.replace(m=8), Pointers(a=256, b=512, c=1024))
        assert kernel.pack(given, AT)[0][0].tensor_maps == once[0][0].tensor_maps
        assert kernel.launches(given) == kernel.launches(given)
        assert plan(kernel, given).launches == kernel.launches(given)


def test_the_packer_library_refers_to_no_cuda_library():
    library = packers.library_path(group("default"))
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"NEEDED.*(cuda|nvrtc|stdc\+\+)", needed)
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"\b(cuda|cu[A-Z]|__cuda)\w+", symbols)
    assert symbols.count(" T gemm_tracks_pack_") == len({kernel.base for kernel in DEFAULT_SET})


def test_what_travels_for_the_default_set_is_small_and_enough(tmp_path):
    units = [unit for kernel in DEFAULT_SET for unit in kernel.units()]
    bundle = write_bundle(units, tmp_path / "bundle", bundle_files(DEFAULT_SET))
    assert sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) < 20 * 2**20
    code = (
        "import sys; sys.modules['cutlass_cppgen'] = None; import importlib.metadata as m; "
        "from cutlass_ref import emit; emit.package_folder = lambda: 1 / 0; "
        "from cutlass_ref.catalog import KERNELS; from kernel.build import artifact; "
        "from kernel.contract import Pointers, Problem; from kernel.plan import plan\n"
        "for k in KERNELS:\n"
        "    if k.in_default_set:\n"
        "        p = Problem(m=136, n=128, k=64, dtype_in=k.dtype_in, dtype_out=k.dtype_out)\n"
        "        launches = plan(k, p).launches; k.pack(p, Pointers(a=4096, b=8192, c=16384))\n"
        "        assert k.entry() in artifact(launches[0].unit).resources, k.name\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "GEMM_TRACKS_BUNDLE": str(bundle),
        "GEMM_TRACKS_CACHE": str(tmp_path / "empty"),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_second_build_of_the_default_set_builds_nothing():
    units = [unit for kernel in DEFAULT_SET for unit in kernel.units()]
    build_all(units)
    before = {unit.name: artifact(unit).cubin.stat().st_mtime_ns for unit in units}
    build_all(units)
    assert before == {unit.name: artifact(unit).cubin.stat().st_mtime_ns for unit in units}
