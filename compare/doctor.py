"""What this machine can do: tools, packages, driver; the first check that fails and its cure.

Packages are looked up, never imported: importing some of them opens files or touches the driver.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compare import driver
from kernel.errors import GemmTracksError, MissingToolError

BASE, GPU, EXTRA = "base", "gpu", "extra"
"""Needed everywhere; needed to run on a GPU; needed by one feature."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check's answer."""

    check: str
    need: str
    """base, gpu or extra."""
    ok: bool
    found: str
    cure: str = ""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Every finding, and the first that stands in the way of what this machine is meant to do."""

    findings: tuple[Finding, ...]
    driver: driver.Driver

    @property
    def first_failing(self) -> Finding | None:
        """A base check anywhere; a GPU check where the machine has a driver. Extras never count."""
        needed = {BASE, GPU} if driver.is_installed() or self.driver.version else {BASE}
        return next((f for f in self.findings if not f.ok and f.need in needed), None)


def examine() -> Diagnosis:
    """Run every check, in the order in which their failures should be cured."""
    asked = driver.query()
    checks: list[Callable[[], Finding]] = [
        _python,
        lambda: _tool("g++", BASE),
        lambda: _tool("nvcc", BASE),
        lambda: _tool("ptxas", BASE),
        lambda: _tool("cuobjdump", BASE),
        lambda: _tool("nvdisasm", BASE),
        *(lambda name=name: _package(name, BASE, "pip install gemm-tracks") for name in BASE_PACKAGES),
        _cache,
        _cutlass,
        lambda: _driver(asked),
        *(lambda name=name: _package(name, GPU, "pip install 'gemm-tracks[gpu]'") for name in GPU_PACKAGES),
        _cupy,
        lambda: _bindings(asked),
        lambda: _toolkit_against_driver(asked),
        _one_cuda_major,
        lambda: _tool("ncu", EXTRA),
        lambda: _tool("compute-sanitizer", EXTRA),
        _dsl,
        lambda: _package("distributed", EXTRA, "pip install 'gemm-tracks[cluster]' (for --gpus and --scheduler)"),
    ]
    return Diagnosis(findings=tuple(check() for check in checks), driver=asked)


BASE_PACKAGES = ("numpy", "pandas", "rich", "typer", "numba")
GPU_PACKAGES = ("nvidia-ml-py", "torch")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else 0


def _python() -> Finding:
    ok = (3, 10) <= sys.version_info[:2] <= (3, 13)
    found = f"{platform.python_version()} at {sys.executable}"
    return Finding(check="Python", need=BASE, ok=ok, found=found, cure="use Python 3.10 to 3.13")


def _tool(name: str, need: str) -> Finding:
    from kernel.toolchain import find

    try:
        tool = find(name)
    except MissingToolError as error:
        return Finding(check=name, need=need, ok=False, found="not found", cure=str(error))
    return Finding(check=name, need=need, ok=True, found=f"{tool.version} ({tool.origin}) at {tool.path}")


def _package(distribution: str, need: str, cure: str) -> Finding:
    found = _version(distribution)
    return Finding(check=distribution, need=need, ok=bool(found), found=found or "not installed", cure=cure)


def _cache() -> Finding:
    from kernel.build import cache_root

    cure = "set GEMM_TRACKS_CACHE to a folder that can be written"
    try:
        root = cache_root()
        with tempfile.TemporaryFile(dir=root):
            pass
        free = shutil.disk_usage(root).free
    except (OSError, GemmTracksError) as error:
        return Finding(check="build cache", need=BASE, ok=False, found=str(error), cure=cure)
    return Finding(check="build cache", need=BASE, ok=True, found=f"{root}, {free / 2**30:.0f} GiB free")


def _cutlass() -> Finding:
    """The package that emits CUTLASS kernels is nvidia-cutlass (cutlass_cppgen); the DSL's wheel is another."""
    found, dsl = _version("nvidia-cutlass"), _version("nvidia-cutlass-dsl")
    present = importlib.util.find_spec("cutlass_cppgen") is not None
    if found and present:
        return Finding(check="nvidia-cutlass", need=EXTRA, ok=True, found=f"{found} (cutlass_cppgen)")
    text = "not installed"
    if found:
        text = f"{found}, without cutlass_cppgen"
    elif dsl:
        text = f"not installed (nvidia-cutlass-dsl {dsl} is another package and cannot stand in for it)"
    cure = "pip install nvidia-cutlass==4.2.0.0, or carry a bundle written by `make bundle` (GEMM_TRACKS_BUNDLE)"
    return Finding(
        check="nvidia-cutlass", need=EXTRA, ok=bool(os.environ.get("GEMM_TRACKS_BUNDLE")), found=text, cure=cure
    )


def _driver(asked: driver.Driver) -> Finding:
    if asked.problem:
        cure = (
            "a GPU is needed only to run kernels; building, inspecting and recorded results work without. "
            "To run: a machine with an NVIDIA GPU of compute capability 9.0 and driver 580 or newer"
        )
        found = asked.problem + (f" (CUDA {asked.version})" if asked.version else "")
        return Finding(check="driver and GPU", need=GPU, ok=False, found=found, cure=cure)
    gpus = "; ".join(
        f"{d.name}, cc {d.compute_capability[0]}.{d.compute_capability[1]}, {d.sm_count} SMs" for d in asked.devices
    )
    ok = asked.devices[0].compute_capability == (9, 0)
    cure = "kernels here are built for sm_90a, which runs on compute capability 9.0 alone"
    able = next((d.ordinal for d in asked.devices if d.compute_capability == (9, 0)), None)
    if able:
        cure += f"; device {able} is one: gemm-tracks compare --device {able}, or CUDA_VISIBLE_DEVICES={able}"
    return Finding(check="driver and GPU", need=GPU, ok=ok, found=f"CUDA {asked.version}: {gpus}", cure=cure)


def _cupy() -> Finding:
    names = sorted(
        name
        for distribution in importlib.metadata.distributions()
        if (name := (distribution.metadata["Name"] or "").lower()).startswith("cupy")
    )
    names = list(dict.fromkeys(names))
    found = ", ".join(f"{name} {_version(name)}" for name in names) or "not installed"
    cure = "pip install 'gemm-tracks[gpu]'"
    if len(names) > 1:
        cure = f"keep one: pip uninstall {' '.join(name for name in names if name != 'cupy-cuda13x')}"
    return Finding(check="CuPy", need=GPU, ok=len(names) == 1, found=found, cure=cure)


def _bindings(asked: driver.Driver) -> Finding:
    """cuda.bindings reaches the driver; its major must not be newer than the driver's."""
    found = _version("cuda-bindings") or _version("cuda-python")
    if not found:
        return Finding(
            check="cuda-bindings", need=GPU, ok=False, found="not installed", cure="pip install 'gemm-tracks[gpu]'"
        )
    limit = _major(asked.version)
    ok = not limit or _major(found) <= limit
    cure = f"the driver supports CUDA {asked.version}: pip install 'cuda-bindings<{limit + 1}', or a newer driver"
    return Finding(check="cuda-bindings", need=GPU, ok=ok, found=found, cure=cure)


def _toolkit_against_driver(asked: driver.Driver) -> Finding:
    """A cubin of a newer minor than the driver's loads within one major; of a newer major it does not."""
    from kernel.toolchain import find

    try:
        nvcc = find("nvcc").version
    except MissingToolError:
        nvcc = ""
    if not nvcc or not asked.version:
        return Finding(check="nvcc against driver", need=GPU, ok=True, found="nothing to compare")
    return Finding(
        check="nvcc against driver",
        need=GPU,
        ok=_major(nvcc) <= _major(asked.version),
        found=f"nvcc {nvcc}, driver CUDA {asked.version}",
        cure=f"use an nvcc of CUDA {_major(asked.version)}, or a newer driver",
    )


UNSUFFIXED = ("nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "nvidia-cublas")
"""Libraries whose wheels bear no major in their names from CUDA 13 on, and whose version is the toolkit's."""


def _one_cuda_major() -> Finding:
    """Wheels of two CUDA majors beside each other: which one a process gets depends on import order."""
    majors: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name.startswith("nvidia-cutlass-dsl"):
            continue  # its -libs-cu12 is the DSL's own runtime, which no kernel here is launched with
        if name in UNSUFFIXED:
            majors.setdefault(distribution.version.partition(".")[0], name)
        for major in ("11", "12", "13"):
            if name.startswith(("nvidia-cu", "cupy-")) and name.endswith((f"-cu{major}", f"-cuda{major}x")):
                majors.setdefault(major, name)
    found = ", ".join(f"CUDA {major} ({name})" for major, name in sorted(majors.items())) or "no CUDA library in wheels"
    cure = "use one environment per CUDA major: remove the wheels of the one that the driver does not match"
    return Finding(check="one CUDA major", need=GPU, ok=len(majors) <= 1, found=found, cure=cure)


def _dsl() -> Finding:
    """The DSL (import name cutlass) and NVIDIA's kernels written in it; nvidia-cutlass is neither."""
    found = {name: _version(name) for name in ("nvidia-cutlass-dsl", "nvidia-cutlass-operators")}
    text = ", ".join(f"{name} {version}" if version else f"{name} not installed" for name, version in found.items())
    cure = "pip install 'gemm-tracks[cute]' (CuTe DSL kernels only), or carry a bundle (GEMM_TRACKS_BUNDLE)"
    ready = all(found.values()) or bool(os.environ.get("GEMM_TRACKS_BUNDLE"))
    return Finding(check="CuTe DSL", need=EXTRA, ok=ready, found=text, cure=cure)


def visible_devices() -> str:
    """CUDA_VISIBLE_DEVICES as it is set, for the report; UUIDs of GPUs and MIG slices are left as they are."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "not set" if value is None else repr(value)


def bundle() -> str:
    """The bundle of artifacts in use, for the report."""
    value = os.environ.get("GEMM_TRACKS_BUNDLE")
    if not value:
        return "none"
    return value if (Path(value).expanduser() / "manifest.json").is_file() else f"{value} (no manifest.json there)"
