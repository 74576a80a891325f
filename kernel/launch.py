"""The launch site: the one place where our kernels and CUTLASS's reach a GPU.

Cubins are loaded through CuPy; the launch itself goes through the driver, which alone knows clusters.
Nothing here touches a driver until :func:`prepare` is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any

from kernel import placement
from kernel.build import artifact
from kernel.contract import Argument, Artifact, Kernel, Launch, Pointers, Problem, TensorMap
from kernel.errors import BuildError, LaunchError, MissingToolError, NoDeviceError
from kernel.gate import objections
from kernel.plan import arguments, plan

DEFAULT_SMEM_LIMIT = 48 * 1024
"""Dynamic shared memory above this many bytes needs the function attribute raised."""

_functions: dict[tuple[int, str, str], tuple[Any, Any]] = {}


def cupy_module() -> Any:
    """CuPy, once a device is known to be usable.

    Raises:
        MissingToolError: CuPy is not installed.
        NoDeviceError: no driver, or it reports no device.
    """
    try:
        import cupy
    except ImportError as error:
        raise MissingToolError(
            f"CuPy cannot be imported ({error}); pip install 'gemm-tracks[gpu]' brings it (cupy-cuda13x)"
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise NoDeviceError(f"the CUDA driver cannot be used ({error}); a GPU and its driver are needed") from None
    if count == 0:
        raise NoDeviceError("the CUDA driver reports no device (see CUDA_VISIBLE_DEVICES); a GPU is needed")
    return cupy


def has_device() -> bool:
    """True where a launch could be made: CuPy is there and the driver reports a device."""
    try:
        cupy_module()
    except (MissingToolError, NoDeviceError):
        return False
    return True


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingToolError(
            f"cuda.bindings cannot be imported ({error}); pip install 'gemm-tracks[gpu]' brings it"
        ) from None
    return driver


def _call(name: str, *values: Any) -> Any:
    """Call a driver function by name; its result, or LaunchError with the driver's own word."""
    driver = _driver()
    status, *results = getattr(driver, name)(*values)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"{name} answered {status.name}")
    return results[0] if len(results) == 1 else tuple(results)


def runs_on(arch: str, compute_capability: str) -> bool:
    """Whether a cubin for ``arch`` (sm_90a) loads on a device of ``compute_capability`` (90).

    A suffix binds it to that very number; without one it runs on later minor versions of its major.
    """
    digits = arch.removeprefix("sm_")
    number = digits.rstrip("af")
    if number != digits:
        return number == compute_capability
    return number[:-1] == compute_capability[:-1] and int(number) <= int(compute_capability)


def load(built: Artifact, entry: str) -> Any:
    """The CuPy function for an entry on the current device; loaded once per device and artifact."""
    cupy = cupy_module()
    key = (cupy.cuda.runtime.getDevice(), built.key, entry)
    if key not in _functions:
        present = cupy.cuda.Device().compute_capability
        if not runs_on(built.arch, present):
            raise NoDeviceError(
                f"{built.unit} was built for {built.arch} and the current device is sm_{present}; "
                "build it for that architecture, or choose another kernel"
            )
        try:
            module = cupy.RawModule(path=str(built.cubin))
            _functions[key] = (module, module.get_function(entry))
        except Exception as error:
            raise LaunchError(f"{built.unit}: the driver refused its cubin ({error})") from None
    return _functions[key][1]


def encode(tensor_map: TensorMap) -> bytes:
    """The 128 bytes that the driver makes of a tensor map.

    Raises:
        LaunchError: the driver refused it; names its extents and strides.
    """
    driver = _driver()
    kinds = driver.CUtensorMapDataType
    kind = {
        "float16": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        "float32": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        "tfloat32": kinds.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
        "bfloat16": kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    }[tensor_map.dtype]
    swizzles, promotions = driver.CUtensorMapSwizzle, driver.CUtensorMapL2promotion
    swizzle = {
        0: swizzles.CU_TENSOR_MAP_SWIZZLE_NONE,
        32: swizzles.CU_TENSOR_MAP_SWIZZLE_32B,
        64: swizzles.CU_TENSOR_MAP_SWIZZLE_64B,
        128: swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
    }[tensor_map.swizzle]
    promotion = {
        0: promotions.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        64: promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
        128: promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        256: promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
    }[tensor_map.l2_promotion]
    try:
        encoded = _call(
            "cuTensorMapEncodeTiled",
            kind,
            len(tensor_map.shape),
            tensor_map.address,
            [driver.cuuint64_t(extent) for extent in tensor_map.shape],
            [driver.cuuint64_t(stride) for stride in tensor_map.strides],
            [driver.cuuint32_t(extent) for extent in tensor_map.box],
            [driver.cuuint32_t(step) for step in tensor_map.element_strides],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            promotion,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    except LaunchError as error:
        raise LaunchError(f"{error} for {tensor_map}") from None
    return ctypes.string_at(encoded.getPtr(), 128)


def parameter(argument: Argument, launch: Launch) -> bytes:
    """An argument's bytes with its tensor maps encoded, and the order of a launch's clusters put, in place."""
    data = bytearray(argument.data)
    if argument.order:
        # It is right without, so what keeps it from being found out is no reason to refuse.
        with contextlib.suppress(BuildError, MissingToolError, LaunchError):
            places = placement.order_of(launch)
            data[: len(places)] = places
    for offset, tensor_map in argument.tensor_maps:
        data[offset : offset + 128] = encode(tensor_map)
    return bytes(data)


class _Ready:
    """One launch with everything resolved; parameters stay alive with it."""

    def __init__(self, launch: Launch, built: Artifact, values: tuple[Argument, ...], workspace: int) -> None:
        reasons = objections(launch, built)
        if reasons:
            raise LaunchError(f"{launch.unit.name}: {'; '.join(reasons)}")
        self.launch = launch
        self.workspace = workspace
        function = load(built, launch.entry)
        _allow_shared_memory(function, launch, built)
        self.function = int(function.kernel.ptr)
        self._buffers = [ctypes.create_string_buffer(parameter(value, launch), len(value.data)) for value in values]
        self._array = (ctypes.c_void_p * max(len(self._buffers), 1))(*(ctypes.addressof(b) for b in self._buffers))
        self._config = self._attributes_config() if launch.cluster != (1, 1, 1) or launch.overlaps else None

    def _attributes_config(self) -> Any:
        driver = _driver()
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self.launch.block
        config.sharedMemBytes = self.launch.dynamic_smem
        kinds, attributes = driver.CUlaunchAttributeID, []
        if self.launch.cluster != (1, 1, 1):
            shape = driver.CUlaunchAttribute()
            shape.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            shape.value.clusterDim.x, shape.value.clusterDim.y, shape.value.clusterDim.z = self.launch.cluster
            attributes.append(shape)
        if self.launch.overlaps:
            overlap = driver.CUlaunchAttribute()
            overlap.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            overlap.value.programmaticStreamSerializationAllowed = 1
            attributes.append(overlap)
        config.attrs = attributes
        config.numAttrs = len(attributes)
        return config

    def enqueue(self, stream: int) -> None:
        """Put the launch, and the clearing it needs, on a stream."""
        driver = _driver()
        if self.launch.workspace_zeroed:
            _call("cuMemsetD8Async", self.workspace, 0, self.launch.workspace_zeroed, driver.CUstream(stream))
        address = ctypes.addressof(self._array)
        if self._config is not None:
            self._config.hStream = driver.CUstream(stream)
            _call("cuLaunchKernelEx", self._config, driver.CUfunction(self.function), address, 0)
            return
        _call(
            "cuLaunchKernel",
            driver.CUfunction(self.function),
            *self.launch.grid,
            *self.launch.block,
            self.launch.dynamic_smem,
            driver.CUstream(stream),
            address,
            0,
        )


def run_now(launch: Launch, values: tuple[Argument, ...], stream: int) -> None:
    """Build or find, load and enqueue one launch of ours that is no GEMM."""
    _Ready(launch, artifact(launch.unit), values, 0).enqueue(stream)


def _allow_shared_memory(function: Any, launch: Launch, built: Artifact) -> None:
    """Raise the function's limit where the launch needs it; LaunchError where the device has less."""
    static = built.resources[launch.entry].static_smem
    if static + launch.dynamic_smem <= DEFAULT_SMEM_LIMIT:
        return
    limit = int(cupy_module().cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])
    if static + launch.dynamic_smem > limit:
        raise LaunchError(
            f"{launch.entry} asks for {launch.dynamic_smem} bytes of dynamic and {static} of static shared memory; "
            f"a block of this device can have {limit} in all"
        )
    if function.max_dynamic_shared_size_bytes < launch.dynamic_smem:
        function.max_dynamic_shared_size_bytes = launch.dynamic_smem


@functools.cache
def _identity(device: int) -> tuple[str, int]:
    """Name and number of SMs of a device."""
    properties = cupy_module().cuda.runtime.getDeviceProperties(device)
    return properties["name"].decode(), int(properties["multiProcessorCount"])


class Prepared:
    """A problem that is ready to run: enqueue it as often as wanted, on any stream of its device."""

    def __init__(self, kernel: Kernel, problem: Problem, pointers: Pointers) -> None:
        if type(kernel).on is not Kernel.on:
            kernel = kernel.on(*_identity(cupy_module().cuda.runtime.getDevice()))
        self.kernel = kernel
        self.problem = problem
        self.plan = plan(kernel, problem)
        self._scratch = cupy_module().cuda.alloc(self.plan.workspace) if self.plan.workspace else None
        address = int(self._scratch.ptr) if self._scratch is not None else 0
        placed = Pointers(a=pointers.a, b=pointers.b, c=pointers.c, workspace=address)
        packed = arguments(kernel, problem, placed)
        self.artifacts = tuple(artifact(launch.unit) for launch in self.plan.launches)
        self._ready = tuple(
            _Ready(launch, built, values, address)
            for launch, built, values in zip(self.plan.launches, self.artifacts, packed, strict=True)
        )

    @property
    def variant(self) -> str:
        """Name of the build that runs."""
        return self.plan.variant

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Entry symbols, in the order they run."""
        return tuple(launch.entry for launch in self.plan.launches)

    def enqueue(self, stream: int) -> None:
        """Put the whole GEMM on a stream (a CUstream as an integer) and return at once.

        Raises:
            LaunchError: the driver refused a launch.
        """
        for ready in self._ready:
            ready.enqueue(stream)


def prepare(kernel: Kernel, problem: Problem, pointers: Pointers) -> Prepared:
    """Build or find, load and bind everything for one problem on the current device.

    Raises:
        RejectedError: the kernel cannot run the problem.
        BuildError, MissingToolError: there is no artifact and none can be made.
        NoDeviceError: no device, or one of another architecture.
        LaunchError: the static gate or the driver refused it.
    """
    cupy_module()
    return Prepared(kernel, problem, pointers)
