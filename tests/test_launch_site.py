"""From arrays to a launch on devices that are this host: every kind of operand, several GPUs, every error.

The stand-in (tests/host_gpu.py) runs what is launched on the PTX machine; the same calls on a real GPU are in the
tests marked gpu.
"""

import dataclasses
import json
import sys
import types

import numpy as np
import pytest

import cutlass_ref
from compare import launch_once, sanitize
from compare.check import GpuExecutor, check_shape, fuzz
from compare.contenders import KernelContender, contenders
from compare.shapes import parse
from cutlass_ref.call import choose
from handwritten import catalog
from kernel import launch
from kernel.contract import Kernel, Launch, Problem, TensorMap, Tile, Unit
from kernel.errors import (
    BuildError,
    CatalogError,
    DeviceError,
    DtypeError,
    LaunchError,
    LayoutError,
    MissingToolError,
    NoDeviceError,
    ProblemError,
    RejectedError,
    ShapeError,
)
from kernel.gemm import gemm
from kernel.launch import cupy_module, has_device
from tests import host_gpu
from tests.on_machine import lacking, need

pytestmark = pytest.mark.nvcc

LADDER = [kernel for kernel in catalog.LADDER if not kernel.entry_name_hint]
"""A hint in the entry's name changes the assembler's order, which no launch and no PTX sees."""
PLAIN = catalog.get("v2_block_tile")
HALF = catalog.get("h0_mma_sync")


@pytest.fixture
def gpu(monkeypatch):
    with host_gpu.installed(monkeypatch) as found:
        yield found


@pytest.fixture
def two(monkeypatch):
    with host_gpu.installed(monkeypatch, "90", "90") as found:
        yield found


def integers(seed, rows, columns, dtype="float32"):
    return np.random.default_rng(seed).integers(-4, 5, (rows, columns)).astype(dtype)


A, B = integers(1, 37, 29), integers(2, 29, 51)


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_host_arrays_go_there_and_back(gpu, kernel):
    need(kernel, Problem(m=37, n=51, k=29))
    result = gemm(kernel, A, B)
    assert type(result.c) is np.ndarray
    np.testing.assert_array_equal(result.c, A @ B)
    assert result.kernel == kernel.name
    assert result.copied == ("A", "B")
    c = np.full((37, 51), 3, np.float32)
    result = gemm(kernel, A, B, c, alpha=0.5, beta=2)
    assert result.c is c
    np.testing.assert_array_equal(c, 0.5 * (A @ B) + 6)
    assert gpu.launches[-1][0] == kernel.runner(Problem(m=37, n=51, k=29)).entry


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_device_arrays_are_used_where_they_lie(gpu, kernel):
    """Column slices, bases off by one element, a C with gaps: leading dimensions and alignment reach the kernel."""
    need(kernel, Problem(m=40, n=51, k=32))
    big = gpu.asarray(integers(3, 40, 64))
    flat = gpu.asarray(integers(4, 1, 32 * 51 + 1)).ravel()
    out = gpu.asarray(np.full((40, 60), 7, np.float32))
    for a, b, c in (
        (big[:, :32], gpu.asarray(integers(5, 32, 51)), out[:, :51]),
        (big[:, 3:35], flat[1:].reshape(32, 51), out[:, 1:52]),
    ):
        before = np.array(out)
        result = gemm(kernel, a, b, c)
        assert result.copied == ()
        assert result.c is c
        np.testing.assert_array_equal(np.array(c), np.array(a) @ np.array(b))
        outside = np.ones(out.shape, bool)
        offset = (c.ctypes.data - out.ctypes.data) // 4
        outside[:, offset : offset + 51] = False
        np.testing.assert_array_equal(np.array(out)[outside], before[outside])
    assert isinstance(gemm(kernel, big[:, :32], b).c, host_gpu.Array)


SIDE_BY_SIDE = {
    "A itself": ("A", lambda x, flat: (x[:32, :32], x[32:, :32], x[:32, :32])),
    "B itself": ("B", lambda x, flat: (x[:32, :32], x[32:, :32], x[32:, :32])),
    "A, one column over": ("A", lambda x, flat: (x[:32, :32], x[32:, :32], x[:32, 31:63])),
    "A's transpose": ("A", lambda x, flat: (x[:32, :32].T, x[32:, :32], x[:32, :32])),
    "one element of another pitch": ("B", lambda x, flat: (x[:32, :32], flat[: 32 * 47].reshape(32, 47)[:, :32],
                                                           flat[31 * 47 + 31 :][: 32 * 61].reshape(32, 61)[:, :32])),
    "columns side by side": ("", lambda x, flat: (x[:32, :32], x[32:, :32], x[:32, 32:])),
    "rows below": ("", lambda x, flat: (x[:32, :32], x[:32, 32:], x[32:, 10:42])),
    "behind the last element": ("", lambda x, flat: (x[:32, :32], flat[: 32 * 47].reshape(32, 47)[:, :32],
                                                     flat[31 * 47 + 32 :][: 32 * 61].reshape(32, 61)[:, :32])),
}  # fmt: skip


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_a_c_that_shares_elements_is_refused_and_one_beside_them_is_right(gpu, name):
    shared, views = SIDE_BY_SIDE[name]
    x, flat = gpu.asarray(integers(21, 64, 64)), gpu.asarray(integers(22, 1, 4096)).ravel()
    a, b, c = views(x, flat)
    before, expected = np.array(x), np.array(a) @ np.array(b)
    if not shared:
        np.testing.assert_array_equal(np.array(gemm(PLAIN, a, b, c).c), expected)
        return
    for call in (lambda: gemm(PLAIN, a, b, c), lambda: cutlass_ref.gemm(a, b, c)):
        with pytest.raises(LayoutError, match=f"C and {shared} share elements"):
            call()
    assert gpu.launches == []
    np.testing.assert_array_equal(np.array(x), before)


def test_host_operands_may_share_elements_and_empty_ones_have_none(gpu):
    square = integers(23, 32, 32)
    expected = square @ square
    np.testing.assert_array_equal(gemm(PLAIN, square, square, square).c, expected)
    x = gpu.asarray(integers(24, 32, 32))
    gemm(PLAIN, x[:0], x, x[:0])
    gemm(PLAIN, x, x[:, :0], x[:, :0])
    np.testing.assert_array_equal(np.array(gemm(PLAIN, x[:, :0], x[:0], x).c), 0)


TRANSPOSED = {
    "rr": lambda x, y: (x, y),
    "cr": lambda x, y: (np.asfortranarray(x), y),
    "rc": lambda x, y: (x, np.asfortranarray(y)),
    "cc": lambda x, y: (np.ascontiguousarray(x.T).T, np.ascontiguousarray(y.T).T),
}


@pytest.mark.parametrize("layout", TRANSPOSED)
def test_transposes_and_fortran_order_are_read_as_they_are_or_refused(gpu, layout):
    a, b = TRANSPOSED[layout](integers(6, 64, 32), integers(7, 32, 16))
    for kernel in LADDER:
        if layout in kernel.layouts and lacking(kernel, Problem(m=64, n=16, k=32)):
            continue
        if layout in kernel.layouts:
            np.testing.assert_array_equal(gemm(kernel, a, b).c, a @ b)
        else:
            with pytest.raises(RejectedError, match=f"layout is {layout}"):
                gemm(kernel, a, b)
    half = a.astype(np.float16), b.astype(np.float16)
    if layout in HALF.layouts:
        np.testing.assert_array_equal(gemm(HALF, *half).c, (half[0] @ half[1]).astype(np.float16))
    else:
        with pytest.raises(RejectedError, match=f"layout is {layout}"):
            gemm(HALF, *half)


@pytest.mark.cppgen
@pytest.mark.slow
@pytest.mark.parametrize("layout", TRANSPOSED)
def test_cutlass_takes_every_layout_and_says_what_ran(gpu, layout):
    a, b = TRANSPOSED[layout](integers(6, 64, 32), integers(7, 32, 16))
    gpu.stream = 0x4444
    result = cutlass_ref.gemm(a, b, alpha=2)
    assert set(gpu.streams) == {gpu.stream}
    assert result.kernel == f"cutlass_simt_128x256x5_s1_{layout}"
    np.testing.assert_array_equal(result.c, 2 * (a @ b))
    with pytest.raises(CatalogError, match=r"wrap_count.*warp_count"):
        cutlass_ref.gemm(a, b, tile={"threadblock_shape": [128, 128, 8], "wrap_count": [4, 2, 1], "stages": 2})


@pytest.mark.parametrize("kernel", [*LADDER, HALF], ids=lambda kernel: kernel.name)
def test_launches_and_clearings_go_to_the_callers_stream(gpu, kernel):
    """Case 86. On a GPU the results say so; here every call to the driver does."""
    m, n, k = (264, 520, 136) if kernel.name == "v8_stream_k" else (40, 48, 32)
    need(kernel, Problem(m=m, n=n, k=k, dtype_in=kernel.dtype_in, dtype_out=kernel.dtype_out))
    a, b = (gpu.asarray(integers(9, *extents, kernel.dtype_in)) for extents in ((m, k), (k, n)))
    for gpu.stream in (0x4444, 0x8888):
        gpu.streams.clear()
        c = gemm(kernel, a, b).c
        np.testing.assert_array_equal(np.array(c), (np.array(a, np.float64) @ np.array(b, np.float64)))
        assert set(gpu.streams) == {gpu.stream}
    assert len(gpu.streams) >= 1 + (kernel.name == "v8_stream_k")


@pytest.mark.parametrize("kernel", LADDER[:3], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("beta", [0, 1.5])
def test_scalars_of_every_kind_give_the_same_bits(gpu, kernel, beta):
    rng = np.random.default_rng(8)
    a, b, c = (rng.uniform(-1, 1, (64, 64)).astype(np.float32) for _ in range(3))
    results = []
    for alpha in (0.5, np.float64(0.5), np.float32(0.5), np.array(0.5), gpu.asarray(0.5)):
        out = c.copy()
        gemm(kernel, a, b, out, alpha=alpha, beta=type(alpha)(beta) if isinstance(alpha, np.floating) else beta)
        results.append(out)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    np.testing.assert_array_equal(gemm(kernel, a, b, alpha=2).c, gemm(kernel, a, b, alpha=2.0).c)


@pytest.mark.parametrize("shape", [(0, 64, 64), (64, 0, 64), (0, 0, 0), (64, 64, 0)], ids=str)
@pytest.mark.parametrize("kernel", [*LADDER, HALF], ids=lambda kernel: kernel.name)
def test_empty_operands_have_no_pointer_and_need_none(gpu, kernel, shape):
    m, n, k = shape
    a, b = (gpu.empty(extents, kernel.dtype_in) for extents in ((m, k), (k, n)))
    c = gpu.asarray(np.full((m, n), np.nan, kernel.dtype_out))
    result = gemm(kernel, a, b, c)
    assert result.variant == ("empty" if m * n == 0 else "scale_only")
    assert not np.array(c).any()
    assert len(gpu.launches) == (m * n > 0)
    c[...] = 3
    gemm(kernel, a, b, c, beta=2)
    assert (np.array(c) == 6).all()


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_alpha_zero_never_reads_a_and_beta_zero_never_reads_c(gpu, kernel):
    need(kernel, Problem(m=130, n=130, k=64))
    bad = np.full((130, 64), np.nan, np.float32)
    c = np.full((130, 130), 3, np.float32)
    assert gemm(kernel, bad, bad.T.copy(), c, alpha=0, beta=2).variant == "scale_only"
    assert (c == 6).all()
    for old in (np.nan, np.inf):
        c[...] = old
        gemm(kernel, np.ones((130, 64), np.float32), np.ones((64, 130), np.float32), c)
        assert (c == 64).all()


# ---------------------------------------------------------------------- several devices


def test_the_devices_of_the_arrays_run_it_whichever_is_current(two):
    """A kernel loaded for one device is loaded again for the other, and the current device stays what it was."""
    with two.cupy().cuda.Device(1):
        a, b = two.asarray(A), two.asarray(B)
    on_first = gemm(PLAIN, two.asarray(A), two.asarray(B))
    result = gemm(PLAIN, a, b)
    assert two.current == 0
    assert (on_first.c.device.id, result.c.device.id) == (0, 1)
    np.testing.assert_array_equal(np.array(result.c), A @ B)
    assert [ordinal for ordinal, _ in two.loaded] == [0, 1]
    gemm(PLAIN, a, b)
    assert len(two.loaded) == 2


@pytest.mark.parametrize("odd", ["A", "B", "C"])
def test_operands_on_two_devices_are_refused_by_name(two, odd):
    places = {name: two.cupy().cuda.Device(int(name == odd)) for name in "ABC"}
    made = {}
    for name, value in (("A", A), ("B", B), ("C", np.zeros((37, 51), np.float32))):
        with places[name]:
            made[name] = two.asarray(value)
    with pytest.raises(DeviceError, match=f"{odd} on GPU 1"):
        gemm(PLAIN, made["A"], made["B"], made["C"])
    assert two.launches == []
    np.testing.assert_array_equal(gemm(PLAIN, A, B).c, A @ B)


def test_host_arrays_use_the_current_device(two):
    with two.cupy().cuda.Device(1):
        np.testing.assert_array_equal(gemm(PLAIN, A, B).c, A @ B)
    assert [ordinal for ordinal, _ in two.loaded] == [1]


@pytest.mark.parametrize("capability", ["70", "80", "89", "100", "120"])
def test_another_architecture_is_a_reason_and_not_a_fault(monkeypatch, capability):
    with host_gpu.installed(monkeypatch, capability, "90") as found:
        with pytest.raises(NoDeviceError, match=f"built for sm_90a and the current device is sm_{capability}"):
            gemm(PLAIN, A, B)
        with found.cupy().cuda.Device(1):
            np.testing.assert_array_equal(gemm(PLAIN, A, B).c, A @ B)


def test_a_checker_runs_on_the_device_it_is_told(two):
    (contender,) = contenders(["v1_thread_tile"])
    verdict = check_shape(contender, parse("35x79x19")[0], GpuExecutor(1))
    assert verdict.ok
    assert [ordinal for ordinal, _ in two.loaded] == [1]
    with pytest.raises(NoDeviceError, match="device 2 cannot be used"):
        GpuExecutor(2)


def test_no_module_and_no_device_are_told_apart(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingToolError, match="gemm-tracks\\[gpu\\]"):
        cupy_module()
    assert not has_device()
    with host_gpu.installed(monkeypatch) as found:
        assert has_device()
        found.capabilities = ()
        with pytest.raises(NoDeviceError, match="CUDA_VISIBLE_DEVICES"):
            gemm(PLAIN, A, B)
        with pytest.raises(NoDeviceError):
            gemm(PLAIN, A, B)
        found.capabilities = ("90",)
        np.testing.assert_array_equal(gemm(PLAIN, A, B).c, A @ B)


def test_a_tensor_map_that_the_driver_refuses_is_named_with_its_extents(monkeypatch):
    record = TensorMap(
        address=0, dtype="float16", shape=(64, 64), strides=(130,), box=(64, 8), element_strides=(1, 1), swizzle=128
    )
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(MissingToolError, match=r"cuda.bindings cannot be imported .* pip install 'gemm-tracks\[gpu\]'"):
        launch.encode(record)
    monkeypatch.undo()
    pytest.importorskip("cuda.bindings.driver")

    def refuse(name, *values):
        raise LaunchError(f"{name}: CUDA_ERROR_INVALID_VALUE")

    monkeypatch.setattr(launch, "_call", refuse)
    with pytest.raises(
        LaunchError, match=r"cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE for TensorMap\(.*\(130,\)"
    ):
        launch.encode(record)


# ---------------------------------------------------------------------- every error, then a good call

F16 = np.float16
MISPLACED = np.frombuffer(bytearray(37 * 29 * 4 + 2), np.uint8)[2:].view(np.float32).reshape(37, 29)


def read_only(shape):
    c = np.zeros(shape, np.float32)
    c.flags.writeable = False
    return c


ERRORS = {
    "shapes disagree": (ShapeError, r"B\.T", lambda: gemm(PLAIN, A, A)),
    "C of another shape": (ShapeError, "C is 2x2", lambda: gemm(PLAIN, A, B, np.zeros((2, 2), np.float32))),
    "a vector": (ShapeError, "two dimensions", lambda: gemm(PLAIN, A[0], B)),
    "float64": (DtypeError, "float64", lambda: gemm(PLAIN, A.astype("float64"), B)),
    "int32": (DtypeError, "int32", lambda: gemm(PLAIN, A, B.astype("int32"))),
    "other byte order": (DtypeError, "byte order", lambda: gemm(PLAIN, A.astype(">f4"), B)),
    "a list": (DtypeError, "list", lambda: gemm(PLAIN, A.tolist(), B)),
    "two types": (DtypeError, "A holds float32 and B holds float16", lambda: gemm(PLAIN, A, B.astype(F16))),
    "a type of another kernel": (RejectedError, "float16", lambda: gemm(PLAIN, A.astype(F16), B.astype(F16))),
    "beta without C": (DtypeError, "beta", lambda: gemm(PLAIN, A, B, beta=1.0)),
    "alpha that is text": (DtypeError, "alpha", lambda: gemm(PLAIN, A, B, alpha="2")),
    "a slice of a slice": (LayoutError, "strides", lambda: gemm(PLAIN, A[::2, ::2], B)),
    "a mask": (LayoutError, "masked", lambda: gemm(PLAIN, np.ma.masked_array(A, A > 0), B)),
    "an element across two words": (LayoutError, "multiple", lambda: gemm(PLAIN, MISPLACED, B)),
    "C in columns": (LayoutError, "row-major", lambda: gemm(PLAIN, A, B, np.zeros((51, 37), np.float32).T)),
    "A in columns": (RejectedError, "layout is cr", lambda: gemm(PLAIN, np.asfortranarray(A), B)),
    "a C that can only be read": (LayoutError, "C can only be read", lambda: gemm(PLAIN, A, B, read_only((37, 51)))),
    "an alpha beyond floats": (ProblemError, "alpha is beyond", lambda: gemm(PLAIN, A, B, alpha=10**400)),
    "a name for a kernel": (CatalogError, "entry of a catalog", lambda: gemm("v2_block_tile", A, B)),
    "a number for a kernel": (CatalogError, "kernel is 5", lambda: cutlass_ref.gemm(A, B, kernel=5)),
    "a type that CUTLASS lacks": (CatalogError, "float64.*float32, float16", lambda: choose("float64", "rr")),
    "no such kernel": (CatalogError, "v2_block_tile", lambda: catalog.get("v2_blok_tile")),
    "impossible tile": (CatalogError, "warp tile", lambda: PLAIN.with_tile(WARP_N=256)),
    "no such tile key": (CatalogError, "WARP_N", lambda: PLAIN.with_tile(WRAP_N=2)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_typed_launches_nothing_and_the_next_call_works(gpu, name):
    error, words, call = ERRORS[name]
    with pytest.raises(error, match=words):
        call()
    assert gpu.launches == []
    np.testing.assert_array_equal(gemm(PLAIN, A, B).c, A @ B)


@pytest.mark.parametrize("name", ["a list", "shapes disagree", "a C that can only be read", "beta without C"])
def test_operands_are_looked_at_before_a_gpu_is_asked_for(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "cupy", None)
    error, words, call = ERRORS[name]
    with pytest.raises(error, match=words):
        call()


def test_an_array_of_a_device_that_nothing_here_can_ask_is_typed(monkeypatch):
    interface = {"shape": (4, 4), "typestr": "<f4", "strides": None, "data": (256, False), "version": 3}
    array = types.SimpleNamespace(__cuda_array_interface__=interface)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingToolError, match="CuPy, which could, cannot be imported"):
        gemm(PLAIN, array, array)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Odd(Kernel):
    """A kernel of one launch that a test describes."""

    launch: Launch

    def units(self):
        return (self.launch.unit,)

    def rejects(self, problem):
        return None

    def variant(self, problem):
        return ""

    def launches(self, problem):
        return (self.launch,)

    def pack(self, problem, pointers):
        return ((),)


def odd(tmp_path, text, **launch):
    source = tmp_path / "odd.cu"
    source.write_text(text)
    unit = Unit(name="odd", arch="sm_90a", source=source)
    fields = {"family": "handwritten", "track": "fp32_simt", "instruction": "ffma", "arch": "sm_90a", "summary": ""}
    whole = Launch(**{"unit": unit, "entry": "odd", "grid": (1, 1, 1), "block": (64, 1, 1), **launch})
    return Odd(name="odd", tile=Tile(), launch=whole, **fields)


SMALL = 'extern "C" __global__ void __launch_bounds__(64) odd() {}'
STATIC = (
    'extern "C" __global__ void odd() { __shared__ volatile float s[4]; s[threadIdx.x % 4] = 1; '
    "extern __shared__ float more[]; if (s[1] > 2) more[0] = s[2]; }"
)
LAUNCH_ERRORS = {
    "does not compile": (BuildError, "odd.cu.1.: error", "nonsense;", {}),
    "no such entry": (LaunchError, "no entry other", SMALL, {"entry": "other"}),
    "more threads than bounded": (LaunchError, "bounded to 64", SMALL, {"block": (96, 1, 1)}),
    "more shared memory than a block has": (
        LaunchError, r"232448 bytes of dynamic and 16 of static.*232448 in all", STATIC, {"dynamic_smem": 232448}
    ),
    "no source": (BuildError, r"its source .*/odd.cu cannot be read \(No such file", None, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCH_ERRORS)
def test_what_cannot_be_launched_is_typed_and_the_next_call_works(gpu, name, tmp_path, monkeypatch):
    error, words, text, launch = LAUNCH_ERRORS[name]
    kernel = odd(tmp_path, text or "", **launch)
    if text is None:
        (tmp_path / "odd.cu").unlink()
    with pytest.raises(error, match=words) as caught:
        gemm(kernel, A, B)
    assert "\n" not in str(caught.value)
    assert ".making-" not in str(caught.value)
    assert gpu.launches == []
    np.testing.assert_array_equal(gemm(PLAIN, A, B).c, A @ B)


@pytest.mark.parametrize("smem", [98304, 49152, 232448 - 16])
def test_shared_memory_above_48_kib_is_asked_for(gpu, tmp_path, smem):
    kernel = odd(tmp_path, STATIC, dynamic_smem=smem)
    gemm(kernel, A, B)
    assert gpu.launches[-1][0] == "odd"
    (function,) = gpu.functions.values()
    assert function.max_dynamic_shared_size_bytes == smem


def test_a_driver_that_refuses_a_launch_ends_that_call_alone(gpu):
    gpu.refuses = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    with pytest.raises(LaunchError, match="cuLaunchKernel answered CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        gemm(PLAIN, A, B)
    np.testing.assert_array_equal(gemm(PLAIN, A, B).c, A @ B)


def test_a_cubin_that_the_driver_refuses_is_typed(gpu, monkeypatch):
    def refuse(self, entry):
        raise host_gpu.Error("CUDA_ERROR_NO_BINARY_FOR_GPU")

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["cupy"].RawModule, "get_function", refuse)
        with pytest.raises(LaunchError, match="refused its cubin"):
            gemm(PLAIN, A, B)
    np.testing.assert_array_equal(gemm(PLAIN, A, B).c, A @ B)


# ---------------------------------------------------------------------- check, sanitizer and profiler reach it too


def test_the_checker_passes_right_kernels_there(gpu):
    chosen = contenders(["v0_naive", "v4_pad", "v8_stream_k"])
    for contender in chosen:
        for shape in parse("17x33x9,0x8x8,9x7x0@beta=2.0,18x33x13@pad_a=3@pad_b=1@pad_c=2@alpha=0.5@beta=3"):
            verdict = check_shape(contender, shape, GpuExecutor())
            assert verdict.ok, verdict


def test_a_fault_ends_the_process_use_of_the_device(gpu, tmp_path):
    faulty = KernelContender.of(odd(tmp_path, 'extern "C" __global__ void odd() { *(volatile float*)64 = 1; }'))
    sound = contenders(["v0_naive"])[0]
    executor, shape = GpuExecutor(), parse("5")[0]
    assert check_shape(sound, shape, executor).ok
    for contender in (faulty, sound):
        verdict = check_shape(contender, shape, executor)
        assert (verdict.ok, verdict.fatal) == (False, True)
        assert "cannot use it any more" in verdict.reason
    report = fuzz([sound], 5, 1, executor)
    assert report.drawn == 1
    assert report.failures[0].smallest == report.failures[0].drawn


def test_launching_once_reports_what_ran(gpu, capsys):
    assert launch_once.main(["37x29x51", "v2_block_tile", "v8_stream_k"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["name"] for record in records] == ["v2_block_tile", "v8_stream_k"]
    assert records[0]["kernels"] == ["v2_block_tile"]
    assert records[0]["main"] == 0
    assert records[0]["variant"] in ("vec4", "vec1")
    for words, status in (([], 2), (["4x4", "v0_naive"], 2), (["axbxc", "v0_naive"], 2), (["4x4x4", "v99"], 2)):
        assert launch_once.main(words) == status
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("contender", [KernelContender.of(kernel) for kernel in LADDER], ids=lambda c: c.name)
def test_exact_memory_is_enough_for_every_rung(gpu, contender):
    need(contender.kernel, Problem(m=35, n=79, k=19))
    shapes = "35x79x19@align_a=4@align_b=4@align_c=4@pad_c=3,9x5x7@beta=2.0"
    for problem, distribution in sanitize.problems_of(contender, shapes):
        assert sanitize.run_under_tool("memcheck", contender, problem, distribution) == ""
    assert gpu.stuck == ""


@pytest.mark.parametrize("tool", sanitize.TOOLS)
def test_planted_faults_are_faults(gpu, tool):
    """memcheck's lies one element behind C, which the stand-in sees; the others need their tool to be seen."""
    import contextlib

    with contextlib.suppress(host_gpu.Error):
        sanitize.plant(tool, contenders([sanitize.PLANTED_IN])[0])
    assert bool(gpu.stuck) == (tool in ("memcheck", "synccheck"))


def test_the_watched_process_writes_every_run_down(gpu, tmp_path, capsys):
    results = tmp_path / "runs.jsonl"
    words = ["--inside", "memcheck", "--kernels", "v0_naive,v4_pad", "--shapes", "9x5x7,5x9x7", "--out", str(results)]
    assert sanitize.main(words) == 0
    runs = [json.loads(line) for line in results.read_text().splitlines()]
    assert [run["reason"] for run in runs] == ["it did not end", ""] * 4
    assert sanitize._runs(results)[0]["kernel"] == "v0_naive"
