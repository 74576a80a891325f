"""Finds the compiler and the disassemblers: wheels first, then CUDA_HOME, then PATH.

Nothing is run or read at import. A look-up is remembered for the life of the process.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel.errors import MissingToolError

WHEELS = {
    "nvcc": "nvidia-cuda-nvcc",
    "ptxas": "nvidia-cuda-nvcc",
    "cuobjdump": "nvidia-cuda-cuobjdump",
    "nvdisasm": "nvidia-cuda-nvdisasm",
}
"""The wheel that brings each CUDA tool."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """An executable that was found, with the version it states about itself."""

    name: str
    path: Path
    version: str
    origin: str
    """wheel, CUDA_HOME or PATH."""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def candidates(name: str) -> Iterator[tuple[str, Path]]:
    """(origin, path) of every executable of that name, in the order they are preferred."""
    if name in WHEELS:
        spec = importlib.util.find_spec("nvidia")
        for root in (spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(root).glob(f"*/bin/{name}"), reverse=True):
                yield "wheel", path
        for variable in ("CUDA_HOME", "CUDA_PATH"):
            if os.environ.get(variable):
                path = Path(os.environ[variable]) / "bin" / name
                if path.is_file():
                    yield "CUDA_HOME", path
    on_path = shutil.which(name)
    if on_path:
        yield "PATH", Path(on_path)


def stated_version(path: Path) -> str:
    """The version a tool prints about itself, such as 13.0.88; empty where it prints none."""
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r"V(\d+\.\d+\.\d+)", text) or re.search(r"(\d+\.\d+\.\d+)", text)
    return match.group(1) if match else ""


@functools.cache
def architectures() -> tuple[str, ...]:
    """What the compiler builds machine code for, such as sm_80; those bound to one GPU (sm_90a) are not listed.

    Raises:
        MissingToolError: there is no nvcc, or it does not answer.
    """
    nvcc = find("nvcc")
    try:
        done = subprocess.run([nvcc.path, "--list-gpu-code"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingToolError(f"{nvcc.path} --list-gpu-code failed ({error}); install the toolkit again") from None
    return tuple(word for word in done.stdout.split() if word.startswith("sm_"))


@functools.cache
def find(name: str) -> Tool:
    """The tool to use for ``name``: nvcc, ptxas, cuobjdump, nvdisasm, g++, ncu, compute-sanitizer …

    Raises:
        MissingToolError: none was found, or none runs; says where it was looked for and how to get it.
    """
    broken: list[str] = []
    for origin, path in candidates(name):
        version = stated_version(path)
        if version:
            return Tool(name=name, path=path, version=version, origin=origin)
        broken.append(str(path))
    if name in WHEELS:
        cure = f"pip install {WHEELS[name]} (part of the base install of gemm-tracks), or set CUDA_HOME"
        places = "the nvidia wheels beside this Python, CUDA_HOME/bin and PATH"
    elif name == "g++":
        cure = "install a C++ compiler, for instance the package g++"
        places = "PATH"
    else:
        cure = "install the CUDA toolkit's package that brings it and put it on PATH"
        places = "PATH"
    found = f" Found but not runnable: {', '.join(broken)}." if broken else ""
    raise MissingToolError(f"{name} was not found in {places}.{found} To get it: {cure}.")
