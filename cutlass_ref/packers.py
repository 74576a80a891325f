"""Host code built from the emitted types: parameter bytes, grid, shared memory and workspace of a launch.

One shared library serves a group of kernels. It needs neither a GPU nor a CUDA runtime, so it packs on
any machine; where it cannot be built (no nvidia-cutlass on the GPU machine) it comes with the bundle.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutlass_ref.emit import HEADERS, emit, include_folders
from cutlass_ref.recipe import Recipe
from kernel.build import bundled_file, content_folder, digest
from kernel.contract import TensorMap
from kernel.errors import BuildError
from kernel.toolchain import find

HERE = Path(__file__).parent
SOURCES = ("packer.cuh", "packer_sm80.cuh", "packer_sm90.cuh", "packer_runtime.cpp")
MAX_MAPS = 8
MAX_PARAMS = 16384
"""Bytes; the kernels here take 368 to about 1,200, the hardware limit is 32,764."""

MAP_DTYPES = {1: "float16", 2: "float32", 6: "float16", 7: "float32", 9: "bfloat16", 11: "tfloat32"}
"""CUtensorMapDataType to our names. CUTLASS stores C as unsigned integers of its width (1 and 2): the bits are
copied as they are, and a float map without NaN fill does just that."""
MAP_SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}
MAP_PROMOTIONS = {0: 0, 1: 64, 2: 128, 3: 256}


_one_at_a_time = threading.Lock()
"""Threads that need one library wait for its build, rather than build it each."""


class _Query(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "lda", "ldb", "ldc")),
        *((name, ctypes.c_uint64) for name in ("a", "b", "c", "workspace")),
        *((name, ctypes.c_float) for name in ("alpha", "beta")),
        *((name, ctypes.c_int32) for name in ("multiprocessors", "split_k", "raster", "max_swizzle")),
    )


class _MapRecord(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("shape", ctypes.c_uint64 * 5),
        ("strides", ctypes.c_uint64 * 4),
        ("box", ctypes.c_uint32 * 5),
        ("steps", ctypes.c_uint32 * 5),
        *(
            (name, ctypes.c_int32)
            for name in ("rank", "dtype", "interleave", "swizzle", "l2_promotion", "oob_fill", "offset", "unused")
        ),
    )


class _Answer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("workspace", "clear_offset", "clear_bytes")),
        ("params", ctypes.c_int32),
        ("dynamic_smem", ctypes.c_int32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("maps", ctypes.c_int32),
        ("map", _MapRecord * MAX_MAPS),
    )


class _Traits(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32 * 3) for name in ("block", "warp", "thread", "mma")),
        ("stages", ctypes.c_int32),
        ("cluster", ctypes.c_int32 * 2),
        *(
            (name, ctypes.c_int32)
            for name in ("api", "cooperative", "pingpong", "tma_epilogue", "params", "dynamic_smem")
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One launch as CUTLASS's host code lays it out."""

    params: bytes
    """The kernel's one parameter; zeros where the tensor maps go."""
    tensor_maps: tuple[tuple[int, TensorMap], ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem: int
    """Bytes."""
    workspace: int
    """Bytes."""
    clear_offset: int
    clear_bytes: int
    """The part of the workspace that must be zero when the kernel starts, bytes."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What the emitted C++ types say about a kernel: extents in elements, sizes in bytes, 0 for what does not apply."""

    block: tuple[int, int, int]
    warp: tuple[int, int, int]
    thread: tuple[int, int, int]
    mma: tuple[int, int, int]
    stages: int
    cluster: tuple[int, int]
    api: int
    """Template generation: 2 (sm80) or 3 (sm90)."""
    cooperative: bool
    pingpong: bool
    tma_epilogue: bool
    """Whether C leaves through TMA; if not, each thread stores its own elements one by one."""
    params: int
    dynamic_smem: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """Kernels that share one packer library: (symbol, recipe) pairs in catalog order."""

    name: str
    members: tuple[tuple[str, Recipe], ...]

    @property
    def file_name(self) -> str:
        """The library's name in a bundle; it changes with every recipe and with the packer's own sources."""
        sources = [(HERE / name).read_text(encoding="utf-8") for name in SOURCES]
        recipes = [f"{symbol} {recipe.text()}" for symbol, recipe in self.members]
        return f"cutlass_packer_{self.name}-{digest(HEADERS, *sources, *recipes)[:16]}.so"


def library_path(group: Group) -> Path:
    """The group's library: from the bundle, from the cache, or built now.

    Raises:
        MissingToolError: it has to be built, and nvidia-cutlass, nvcc or g++ is not there.
        BuildError: a compiler refused it.
    """
    name = group.file_name
    bundled = bundled_file(name)
    if bundled is not None:
        return bundled

    def make(folder: Path) -> None:
        _build(group, folder / name)

    return content_folder(f"packers/{group.name}", name, make) / name


def _function(group: Group, kind: str, symbol: str) -> Any:
    """An exported function of the group's library."""
    scope = os.environ.get("GEMM_TRACKS_BUNDLE", ""), os.environ.get("GEMM_TRACKS_CACHE", "")
    with _one_at_a_time:
        library = _library(group, scope)
    return getattr(library, f"gemm_tracks_{kind}_{symbol}")


@functools.cache
def _library(group: Group, scope: tuple[str, str]) -> ctypes.CDLL:
    """The loaded library; ``scope`` is where it was looked for, so that another bundle is looked at again."""
    return ctypes.CDLL(str(library_path(group)), mode=ctypes.RTLD_LOCAL)


def entry(group: Group, symbol: str) -> str:
    """The kernel's entry symbol in its cubin, as the package chose it."""
    function = _function(group, "entry", symbol)
    function.restype = ctypes.c_char_p
    return str(function().decode())


def pack(
    group: Group,
    symbol: str,
    *,
    extents: tuple[int, int, int],
    pitches: tuple[int, int, int],
    addresses: tuple[int, int, int],
    workspace: int,
    alpha: float,
    beta: float,
    multiprocessors: int,
    split_k: int = 1,
    raster: int = 0,
    max_swizzle: int = 1,
) -> Packed:
    """Ask the emitted type for one launch.

    Args:
        group: the library that holds ``symbol``.
        symbol: a kernel of the group.
        extents: m, n, k.
        pitches: leading dimensions of A, B and C in elements.
        addresses: device addresses of A, B and C.
        workspace: address of the scratch memory, 0 while its size is only asked for.
        alpha: factor of A @ B.
        beta: factor of C.
        multiprocessors: SMs that persistent blocks are spread over.
        split_k: slices along k (sm80 kernels).
        raster: 0 the package's choice, 1 along m, 2 along n (sm90 kernels).
        max_swizzle: largest swizzle of the tile order (sm90 kernels).

    Raises:
        BuildError: the parameters outgrew the buffer, or a tensor map was not found in them.
    """
    query = _Query(
        *extents, *pitches, *addresses, workspace, alpha, beta, multiprocessors, split_k, raster, max_swizzle
    )
    answer, buffer = _Answer(), ctypes.create_string_buffer(MAX_PARAMS)
    function = _function(group, "pack", symbol)
    if function(ctypes.byref(query), ctypes.byref(answer), buffer, MAX_PARAMS):
        raise BuildError(f"{symbol}: its parameters take more than {MAX_PARAMS} bytes")
    maps = tuple(_tensor_map(symbol, answer.map[i]) for i in range(answer.maps))
    return Packed(
        params=buffer.raw[: answer.params],
        tensor_maps=tuple(pair for pair in maps if pair is not None),
        grid=tuple(answer.grid),
        block=tuple(answer.block),
        cluster=tuple(answer.cluster),
        dynamic_smem=answer.dynamic_smem,
        workspace=answer.workspace,
        clear_offset=answer.clear_offset,
        clear_bytes=answer.clear_bytes,
    )


def _tensor_map(symbol: str, record: _MapRecord) -> tuple[int, TensorMap] | None:
    """A recorded encoding as (offset, map); None for one that did not end up in the parameters."""
    if record.offset < 0:
        return None
    if record.interleave or record.oob_fill or record.dtype not in MAP_DTYPES:
        raise BuildError(
            f"{symbol}: a tensor map of type {record.dtype}, interleave {record.interleave} and fill "
            f"{record.oob_fill} cannot be described"
        )
    rank = record.rank
    described = TensorMap(
        address=record.address,
        dtype=MAP_DTYPES[record.dtype],
        shape=tuple(record.shape[:rank]),
        strides=tuple(record.strides[: rank - 1]),
        box=tuple(record.box[:rank]),
        element_strides=tuple(record.steps[:rank]),
        swizzle=MAP_SWIZZLES[record.swizzle],
        l2_promotion=MAP_PROMOTIONS[record.l2_promotion],
    )
    return record.offset, described


def traits(group: Group, symbol: str) -> Traits:
    """What the emitted types of one kernel say; see :class:`Traits`."""
    raw = _Traits()
    _function(group, "traits", symbol)(ctypes.byref(raw))
    return Traits(
        block=tuple(raw.block),
        warp=tuple(raw.warp),
        thread=tuple(raw.thread),
        mma=tuple(raw.mma),
        stages=raw.stages,
        cluster=tuple(raw.cluster),
        api=raw.api,
        cooperative=bool(raw.cooperative),
        pingpong=bool(raw.pingpong),
        tma_epilogue=bool(raw.tma_epilogue),
        params=raw.params,
        dynamic_smem=raw.dynamic_smem,
    )


def unit_text(generation: int, members: Iterable[tuple[str, Recipe]]) -> str:
    """One translation unit with the packers of every member of a template generation (80 or 90)."""
    includes: dict[str, None] = {}
    bodies: list[str] = []
    for symbol, recipe in members:
        emitted = emit(recipe)
        includes.update(dict.fromkeys(emitted.includes))
        # Swizzles share the package's symbol, so each type gets a namespace of its own.
        bodies.append(
            f"namespace {symbol} {{\n{emitted.type_text}\nusing Kernel = {emitted.name}_type;\n}}\n"
            f'GEMM_TRACKS_PACKER({symbol}, ::{symbol}::Kernel, "{emitted.name}")\n'
        )
    head = "".join(f"#include <{include}>\n" for include in includes)
    # No kernel is in here, so the device pass, half of the compile time, is given nothing to parse.
    return (
        "#if !defined(__CUDA_ARCH__)\n#include <cuda.h>\n"
        f'{head}#include "packer_sm{generation}.cuh"\n\n' + "\n".join(bodies) + "#endif\n"
    )


def _build(group: Group, target: Path) -> None:
    """Compile a group's packers, the two template generations side by side, and link them."""
    nvcc, host = find("nvcc"), find("g++")
    folders = [HERE, *include_folders()]
    toolkit = nvcc.path.parent.parent / "include"
    with tempfile.TemporaryDirectory(prefix="gemm-tracks-packer-") as name:
        scratch = Path(name)
        runtime = [
            *(str(host.path), "-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", f"-I{toolkit}", f"-I{HERE}"),
            *("-c", str(HERE / "packer_runtime.cpp"), "-o", str(scratch / "runtime.o")),
        ]
        commands = [runtime]
        objects = [scratch / "runtime.o"]
        for generation in (80, 90):
            members = [(symbol, recipe) for symbol, recipe in group.members if recipe.arch == generation]
            if not members:
                continue
            source, built = scratch / f"packers_sm{generation}.cu", scratch / f"packers_sm{generation}.o"
            source.write_text(unit_text(generation, members), encoding="utf-8")
            objects.append(built)
            commands.append(
                [
                    *(str(nvcc.path), "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", f"-ccbin={host.path}"),
                    *("--expt-relaxed-constexpr", "-DNDEBUG", "-DCUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL", "-w"),
                    *("-Xcompiler=-fPIC,-O1,-w,-fvisibility=hidden", *(f"-I{folder}" for folder in folders)),
                    *("-c", str(source), "-o", str(built)),
                ]
            )
        with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
            list(pool.map(lambda command: _run(group, command), commands))
        link = [
            *(str(host.path), "-shared", "-s", "-static-libstdc++", "-static-libgcc"),
            # Hidden answers only: an undefined symbol here would be looked up in whatever runs beside it.
            *("-Wl,--exclude-libs,ALL", "-Wl,-z,defs", "-o", str(target), *(str(built) for built in objects)),
        ]
        _run(group, link)


def _run(group: Group, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        log = done.stdout + done.stderr
        first = next((line for line in log.splitlines() if "error" in line), log.strip()[-400:])
        raise BuildError(f"packers of {group.name}: {Path(command[0]).name} refused them: {first}", log)
