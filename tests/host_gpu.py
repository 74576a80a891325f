"""As much of CuPy and of the driver's bindings as the launch site touches, over host memory and the PTX machine.

A launch runs the artifact's PTX at once. Memory is NumPy's, each allocation on one of the devices; a kernel that
is handed another device's memory, or memory that nobody allocated, stops with a fault that sticks, as on a GPU.
What the driver would check (shared memory, architecture, extents) is checked here too.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import types
import weakref
from pathlib import Path

import numpy as np

from kernel.contract import Argument
from kernel.machine.execute import impossible, program, run
from kernel.machine.memory import Buffer
from kernel.machine.shape import Checks, Shape

DEFAULT_SMEM = 48 * 1024
OPTIN_SMEM = 232448


class Error(RuntimeError):
    """What CuPy calls CUDARuntimeError."""


class Array(np.ndarray):
    """Memory of one device: NumPy's arithmetic, CuPy's interface."""

    ordinal = 0
    gpu = None

    def __array_finalize__(self, other):
        self.ordinal, self.gpu = getattr(other, "ordinal", 0), getattr(other, "gpu", None)

    def astype(self, dtype, **options):
        """What arithmetic made is NumPy's; converted, it is the device's again."""
        return self.gpu.asarray(super().astype(dtype, **options))

    @property
    def device(self):
        return types.SimpleNamespace(id=self.ordinal)

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data)

    @property
    def __cuda_array_interface__(self):
        pointer = 0 if self.size == 0 else self.ctypes.data
        return {"shape": self.shape, "typestr": self.dtype.str, "strides": self.strides, "data": (pointer, False)}


class Memory:
    """A bare allocation, gone when it is dropped."""

    def __init__(self, array):
        self.array = array
        self.ptr = array.ctypes.data


class Function:
    def __init__(self, gpu, path, entry):
        self.ptx, self.entry = path.with_suffix(".ptx"), entry
        program(self.ptx, entry)
        self.device = gpu.current
        self.max_dynamic_shared_size_bytes = DEFAULT_SMEM
        self.kernel = types.SimpleNamespace(ptr=0x1000 + 16 * len(gpu.functions))
        gpu.functions[self.kernel.ptr] = self
        self._gpu = gpu

    def __call__(self, grid, block, arguments):
        values = [int(value).to_bytes(8, "little") for value in arguments]
        self._gpu.execute(self, (*grid, 1, 1)[:3], (*block, 1, 1)[:3], 0, values)


class HostGpu:
    """Devices that are this host. ``capabilities`` has one entry for each, such as ``90``."""

    def __init__(self, *capabilities):
        self.capabilities = capabilities or ("90",)
        self.current = 0
        self.stuck = ""
        self.functions = {}
        self.loaded = []
        self.launches = []
        self.stream = 0x99
        """The current one."""
        self.streams = []
        """Where each launch and each clearing was put."""
        self.refuses = ""
        """Status that the next launch is answered with, instead of running."""
        self._memory = []
        self._maps = {}

    def encode(self, tensor_map):
        """128 bytes by which a launch finds the map again."""
        data = b"map" + len(self._maps).to_bytes(125, "little")
        self._maps[data] = tensor_map
        return data

    def allocate(self, size):
        """Bytes on the current device, aligned as CuPy's are."""
        flat = np.empty(size + 512, np.uint8)
        skip = -flat.ctypes.data % 512
        base = flat[skip : skip + size].view(Array)
        base.ordinal, base.gpu = self.current, self
        self._memory.append((weakref.ref(flat), flat.ctypes.data + skip, size, self.current))
        return base

    def empty(self, shape, dtype=float, order="C"):
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self.allocate(size).view(dtype).reshape(shape, order=order)

    def asarray(self, value, dtype=None, order="C"):
        host = np.asarray(value, dtype)
        out = self.empty(host.shape, host.dtype, order)
        out[...] = host
        return out

    def execute(self, function, grid, block, smem, values):
        if self.stuck:
            raise Error(self.stuck)
        if function.device != self.current:
            raise Error("invalid resource handle: the function belongs to another device")
        code = program(function.ptx, function.entry)
        shape = Shape(grid=grid, block=block, dynamic_smem=smem)
        if impossible(code, shape):
            raise Error(impossible(code, shape))
        self._memory = [entry for entry in self._memory if entry[0]() is not None]
        here = []
        for held, address, size, ordinal in self._memory:
            flat = held()
            if ordinal == self.current and size:
                begin = address - flat.ctypes.data
                here.append(Buffer(name=f"memory at {address:#x}", data=flat[begin : begin + size], address=address))
        values = [
            Argument(data=bytes(128), tensor_maps=((0, self._maps[value]),)) if value in self._maps else value
            for value in values
        ]
        report = run(
            function.ptx, function.entry, shape, values, buffers=here, checks=Checks(races=False, initialised=False)
        )
        self.launches.append((function.entry, grid, block))
        if report.faults:
            self.stuck = "cudaErrorIllegalAddress: an illegal memory access was encountered"

    def cupy(self):
        """A module that stands in for cupy."""
        gpu = self

        class Device:
            def __init__(self, ordinal=None):
                self.id = gpu.current if ordinal is None else ordinal
                if not 0 <= self.id < len(gpu.capabilities):
                    raise Error("cudaErrorInvalidDevice: invalid device ordinal")
                self.compute_capability = gpu.capabilities[self.id]
                self.attributes = {"MaxSharedMemoryPerBlockOptin": OPTIN_SMEM, "MultiProcessorCount": 132}
                self._before = []

            def use(self):
                gpu.current = self.id

            def synchronize(self):
                if gpu.stuck:
                    raise Error(gpu.stuck)

            def __enter__(self):
                self._before.append(gpu.current)
                gpu.current = self.id

            def __exit__(self, *_):
                gpu.current = self._before.pop()

        class Stream:
            def __init__(self, non_blocking=False, ptr=0):
                self.ptr = ptr or 0x77

            def synchronize(self):
                Device().synchronize()

            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

        class RawModule:
            def __init__(self, path):
                gpu.loaded.append((gpu.current, Path(path)))
                self._path = Path(path)

            def get_function(self, entry):
                return Function(gpu, self._path, entry)

        class RandomState:
            def __init__(self, seed):
                self._generator = np.random.default_rng(seed)

            def random_sample(self, size, dtype):
                return gpu.asarray(self._generator.random(size, dtype))

        runtime = types.SimpleNamespace(
            CUDARuntimeError=Error,
            getDeviceCount=lambda: len(gpu.capabilities),
            getDevice=lambda: gpu.current,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            memcpy=lambda to, source, size, kind: ctypes.memmove(to, source, size),
        )
        module = types.ModuleType("cupy")
        module.cuda = types.SimpleNamespace(
            runtime=runtime,
            Device=Device,
            Stream=Stream,
            get_current_stream=lambda: Stream(ptr=gpu.stream),
            alloc=lambda size: Memory(gpu.allocate(size)),
            set_allocator=lambda allocator: None,
            profiler=types.SimpleNamespace(start=lambda: None, stop=lambda: None),
        )
        module.random = types.SimpleNamespace(RandomState=RandomState)
        module.RawModule = RawModule
        module.empty, module.asarray, module.asnumpy = gpu.empty, gpu.asarray, lambda array: np.array(array)
        module.float32, module.float16, module.lib = np.float32, np.float16, np.lib
        return module

    def driver(self):
        """A module that stands in for cuda.bindings.driver."""
        gpu = self

        class CUresult(enum.Enum):
            CUDA_SUCCESS = 0
            CUDA_ERROR_INVALID_VALUE = 1
            CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701

        def launch(function, gx, gy, gz, bx, by, bz, smem, stream, arguments, extra):
            gpu.streams.append(stream)
            if gpu.refuses:
                status, gpu.refuses = gpu.refuses, ""
                return (CUresult[status],)
            found = gpu.functions[function]
            if smem > found.max_dynamic_shared_size_bytes:
                return (CUresult.CUDA_ERROR_INVALID_VALUE,)
            sizes = [size for _, size in program(found.ptx, found.entry).parameters]
            addresses = (ctypes.c_void_p * len(sizes)).from_address(arguments)
            values = [ctypes.string_at(at, size) for at, size in zip(addresses, sizes, strict=True)]
            gpu.execute(found, (gx, gy, gz), (bx, by, bz), smem, values)
            return (CUresult.CUDA_SUCCESS,)

        def launch_with_attributes(config, function, arguments, extra):
            grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
            block = (config.blockDimX, config.blockDimY, config.blockDimZ)
            return launch(function, *grid, *block, config.sharedMemBytes, config.hStream, arguments, extra)

        def fill(address, value, size, stream):
            gpu.streams.append(stream)
            ctypes.memset(address, value, size)
            return (CUresult.CUDA_SUCCESS,)

        module = types.ModuleType("cuda.bindings.driver")
        module.CUresult = CUresult
        module.CUstream = module.CUfunction = int
        module.CUlaunchConfig = types.SimpleNamespace
        module.CUlaunchAttributeID = enum.Enum(
            "CUlaunchAttributeID",
            ["CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"],
        )
        module.CUlaunchAttribute = lambda: types.SimpleNamespace(
            value=types.SimpleNamespace(clusterDim=types.SimpleNamespace())
        )
        module.cuLaunchKernel, module.cuLaunchKernelEx, module.cuMemsetD8Async = launch, launch_with_attributes, fill
        return module


@contextlib.contextmanager
def installed(monkeypatch, *capabilities):
    """A HostGpu in the place of CuPy and the driver while the block runs."""
    import sys

    from kernel import launch

    gpu = HostGpu(*capabilities)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cupy", gpu.cupy())
        patch.setattr(launch, "_driver", gpu.driver)
        patch.setattr(launch, "_functions", {})
        patch.setattr(launch, "encode", gpu.encode)
        yield gpu
