"""What the NVIDIA driver says about itself and its devices, through ctypes: no CuPy, no torch, no context.

``No GPU`` is said only where the driver itself reports none; a missing library, a refused start and an
empty CUDA_VISIBLE_DEVICES are each named as what they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernel.errors import UsageError

CUDA_ERROR_NO_DEVICE = 100
MULTIPROCESSOR_COUNT = 16
L2_CACHE_SIZE = 38
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
NVML = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
HASH_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class Device:
    """One visible GPU; ordinal 0 is the first of CUDA_VISIBLE_DEVICES."""

    ordinal: int
    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    memory_bytes: int
    l2_bytes: int
    index: int | None = None
    """Index as nvidia-smi counts, which CUDA_VISIBLE_DEVICES does not change; the ordinal where NVML cannot tell."""
    uuid_hash: str = ""
    """Hash of the UUID: tells one card from another without naming it. Empty where the driver does not give one."""

    @property
    def slug(self) -> str:
        """The name as a folder: ``NVIDIA H200`` is nvidia-h200."""
        return "-".join("".join(c if c.isalnum() else " " for c in self.name.lower()).split()) or "unnamed-gpu"


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The driver's answer; ``problem`` is empty exactly where at least one device can be used."""

    version: str
    """CUDA version that the driver supports, such as 13.0; empty where it could not be asked."""
    devices: tuple[Device, ...]
    problem: str


def is_installed() -> bool:
    """Whether this machine looks as if it had an NVIDIA driver; file look-ups only."""
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None


def query(library: str = LIBRARY) -> Driver:
    """Ask the driver. Never raises for what a machine lacks: that is the answer's ``problem``."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return Driver(version="", devices=(), problem=f"no NVIDIA driver: {library} is not on the library path")
    number = ctypes.c_int(0)
    version = ""
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    status = int(cuda.cuInit(0))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hint = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible!r}"
    if status == CUDA_ERROR_NO_DEVICE:
        return Driver(version=version, devices=(), problem=f"no GPU: the driver reports none{hint}")
    if status:
        text = f"the driver refused to start (cuInit returned {status}: {_error_name(cuda, status)}){hint}"
        return Driver(version=version, devices=(), problem=text)
    if cuda.cuDeviceGetCount(ctypes.byref(number)) or not number.value:
        return Driver(version=version, devices=(), problem=f"no GPU: the driver reports none{hint}")
    devices = tuple(_device(cuda, ordinal) for ordinal in range(number.value))
    return Driver(version=version, devices=devices, problem="")


def chosen(asked: Driver, ordinal: int) -> Driver:
    """The same answer with one device alone: number ``ordinal`` of those that are visible.

    Raises:
        UsageError: there is no such device.
    """
    if not 0 <= ordinal < len(asked.devices):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible!r}"
        names = ", ".join(f"{device.ordinal} ({device.name})" for device in asked.devices) or "none"
        raise UsageError(f"there is no device {ordinal}; the driver shows {names}{hint}")
    return dataclasses.replace(asked, devices=(asked.devices[ordinal],))


def _error_name(cuda: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    if cuda.cuGetErrorName(status, ctypes.byref(text)) or not text.value:
        return "unknown error"
    return text.value.decode()


def _device(cuda: ctypes.CDLL, ordinal: int) -> Device:
    handle, number, size = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_size_t(0)
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(handle), ordinal)
    cuda.cuDeviceGetName(name, len(name), handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), handle)

    def attribute(which: int) -> int:
        cuda.cuDeviceGetAttribute(ctypes.byref(number), which, handle)
        return number.value

    identifier = (ctypes.c_ubyte * 16)()
    known = hasattr(cuda, "cuDeviceGetUuid_v2") and cuda.cuDeviceGetUuid_v2(identifier, handle) == 0
    written = f"GPU-{uuid.UUID(bytes=bytes(identifier))}" if known else ""
    index = _nvml_index(written) if written else None
    return Device(
        ordinal=ordinal,
        name=name.value.decode(errors="replace"),
        compute_capability=(attribute(COMPUTE_CAPABILITY_MAJOR), attribute(COMPUTE_CAPABILITY_MINOR)),
        sm_count=attribute(MULTIPROCESSOR_COUNT),
        memory_bytes=size.value,
        l2_bytes=attribute(L2_CACHE_SIZE),
        index=ordinal if index is None else index,
        uuid_hash=hashlib.sha256(written.encode()).hexdigest()[:HASH_DIGITS] if written else "",
    )


@contextlib.contextmanager
def _nvml(library: str = NVML) -> Iterator[ctypes.CDLL | None]:
    """NVML, started for the block; None where it cannot be used."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        yield None
        return
    if nvml.nvmlInit_v2():
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _nvml_index(written: str) -> int | None:
    """Index that NVML gives the GPU with this UUID, or None where it cannot be asked (a MIG slice has none)."""
    handle, number = ctypes.c_void_p(), ctypes.c_uint(0)
    with _nvml() as nvml:
        if nvml is None or nvml.nvmlDeviceGetHandleByUUID(written.encode(), ctypes.byref(handle)):
            return None
        return None if nvml.nvmlDeviceGetIndex(handle, ctypes.byref(number)) else int(number.value)


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of the _v3 calls."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


MOST_PROCESSES = 256


def other_processes(device: Device) -> int | None:
    """How many processes besides this one compute on a GPU; None where NVML cannot tell.

    From inside a container this process' number is not the one NVML knows, so it must not have begun to compute.
    """
    handle, count = ctypes.c_void_p(), ctypes.c_uint(MOST_PROCESSES)
    found = (_ProcessInfo * MOST_PROCESSES)()
    with _nvml() as nvml:
        if nvml is None or device.index is None:
            return None
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(device.index), ctypes.byref(handle)):
            return None
        if not hasattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3"):
            return None
        if nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found):
            return None
    return len([one for one in found[: count.value] if one.pid != os.getpid()])
