"""The small cases of docs/cases.md on a GPU: every kernel that came along, and what only hardware shows."""

import dataclasses
import time

import numpy as np
import pytest

from compare.check import GpuExecutor, check_contender, check_shape
from compare.contenders import KernelContender, contenders, every_contender
from compare.shapes import parse
from handwritten import catalog
from kernel.build import bundle_root, lookup
from kernel.errors import DeviceError, DtypeError, LaunchError, LayoutError, RejectedError, ShapeError
from kernel.gemm import gemm
from tests.test_cases_cpu import CASES, refusal_is_sound
from tests.test_launch_site import STATIC, odd

pytestmark = pytest.mark.gpu

HANDWRITTEN = [c for c in every_contender() if c.family == "handwritten"]
LADDER = [c for c in HANDWRITTEN if c.track == "fp32_simt"]
EVERY = [c for c in every_contender() if c.in_default_set]
BEYOND_INT32 = "65544x32768x8"
"""C alone has more than 2**31 elements; extents and pitches suit 16-byte copies and TMA."""


def named(many):
    return [pytest.param(contender, id=contender.name) for contender in many]


@pytest.fixture(scope="module")
def executor():
    return GpuExecutor()


@pytest.fixture(scope="module")
def cp():
    return pytest.importorskip("cupy")


@pytest.fixture(autouse=True)
def _memory_is_given_back():
    yield
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()


def need(contender):
    """Skips a kernel that neither came along nor can be built here."""
    missing = contender.needs()
    if isinstance(contender, KernelContender) and bundle_root() is not None:
        missing = missing or ", ".join(u.name for u in contender.kernel.units() if lookup(u) is None)
    if missing and contender.family != "handwritten":
        pytest.skip(f"{contender.name} needs {missing}")


@pytest.mark.parametrize("contender", named(EVERY))
def test_every_case_is_right_or_refused_by_name(contender, executor):
    """All shapes of the table in docs/cases.md, in the contender's first layout."""
    need(contender)
    for case, shapes in CASES.items():
        for shape in parse(shapes):
            verdict = check_shape(contender, shape, executor)
            assert verdict.ok is not False, f"{case}: {verdict}"
            if verdict.ok is None and contender.family not in ("cublas", "torch"):
                refusal_is_sound(contender, verdict)


@pytest.mark.parametrize("contender", named(c for c in EVERY if c not in LADDER))
def test_operands_beyond_two_to_the_31_elements(contender, executor):
    """Case 15; the ladder has its own in tests/test_check_gpu.py."""
    need(contender)
    (shape,) = parse(BEYOND_INT32)
    verdict = check_shape(contender, shape, executor)
    assert verdict.ok is not False, verdict
    if verdict.ok is None:
        assert "memory" in verdict.skipped_because or "round" in verdict.skipped_because, verdict


def integers(cp, seed, *shape, dtype="float32"):
    return cp.asarray(np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype))


@pytest.mark.parametrize("kernel", [c.kernel for c in HANDWRITTEN], ids=lambda kernel: kernel.name)
def test_views_are_read_as_they_lie_or_refused(cp, kernel):
    """Cases 12, 17 and 18: slices, narrowed bases, transposes and C-order copies of all of them agree."""
    half = kernel.dtype_in
    big, wide = integers(cp, 1, 96, 160, dtype=half), integers(cp, 2, 128, 64, dtype=half)
    flat = integers(cp, 3, 128 * 64 + 1, dtype=half)
    lefts = {
        "r": (big[:, :128], big[:, 3:131]),
        "c": (cp.asfortranarray(big[:, :128]), integers(cp, 4, 128, 96, dtype=half).T),
    }
    rights = {
        "r": (wide[:, :48], flat[1:].reshape(128, 64)),
        "c": (cp.asfortranarray(wide), integers(cp, 5, 48, 128, dtype=half).T),
    }
    for first, many in lefts.items():
        for second, others in rights.items():
            for a, b in zip(many, others, strict=True):
                if first + second not in kernel.layouts:
                    with pytest.raises(RejectedError, match="layout is"):
                        gemm(kernel, a, b)
                    continue
                result = gemm(kernel, a, b)
                assert result.copied == ()
                reference = a.astype("float64") @ b.astype("float64")
                assert bool((result.c.astype("float64") == reference.astype(kernel.dtype_out).astype("float64")).all())


@pytest.mark.parametrize("kernel", [c.kernel for c in LADDER], ids=lambda kernel: kernel.name)
def test_scalars_of_every_kind_give_the_same_bits(cp, kernel):
    """Case 84."""
    rng = np.random.default_rng(8)
    a, b, c = (cp.asarray(rng.uniform(-1, 1, (64, 64)).astype(np.float32)) for _ in range(3))
    results = []
    for alpha in (0.5, np.float64(0.5), np.float32(0.5), cp.asarray(0.5)):
        out = c.copy()
        gemm(kernel, a, b, out, alpha=alpha, beta=np.float64(2))
        results.append(cp.asnumpy(out))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    np.testing.assert_array_equal(
        cp.asnumpy(gemm(kernel, a, b, alpha=2).c), cp.asnumpy(gemm(kernel, a, b, alpha=2.0).c)
    )


@pytest.mark.parametrize("kernel", [c.kernel for c in HANDWRITTEN], ids=lambda kernel: kernel.name)
def test_calls_run_on_the_callers_stream(cp, kernel):
    """Case 86: operands that are still being made when the call is queued."""
    size, steps = 1024, 8
    ones = cp.ones((size, size), kernel.dtype_in)
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        found = []
        for step in range(steps):
            a = ones
            for _ in range(30):
                a = a * ones
            found.append(gemm(kernel, a * a.dtype.type(step), ones).c)
        for step, c in enumerate(found):
            assert float(c.min()) == float(c.max()) == step * size


@pytest.mark.parametrize("name", ["cublas_sgemm", "cublas_fp16", "torch_sgemm"])
def test_libraries_run_on_the_stream_they_are_given(cp, name):
    (contender,) = contenders([name])
    need(contender)
    from compare.inputs import allocate

    problem = contender.problem(1024, 1024, 1024)
    buffers = allocate(cp, problem)
    stream = cp.cuda.Stream(non_blocking=True)
    prepared = contender.prepare(problem, buffers.pointers, stream.ptr)
    cp.cuda.Device().synchronize()
    with stream:
        for step in range(20):
            buffers.a[...] = 1
            for _ in range(20):
                buffers.a[...] *= 1
            buffers.b[...] = step
            prepared.enqueue(stream.ptr)
            assert float(buffers.c.min()) == float(buffers.c.max()) == 1024 * step


ERRORS = {
    "float64": (DtypeError, lambda cp, a: (a.astype("float64"), a)),
    "int32": (DtypeError, lambda cp, a: (a, a.astype("int32"))),
    "two types": (DtypeError, lambda cp, a: (a, a.astype("float16"))),
    "another kernel's type": (RejectedError, lambda cp, a: (a.astype("float16"), a.astype("float16"))),
    "every other column": (LayoutError, lambda cp, a: (a[:, ::2], a)),
    "shapes": (ShapeError, lambda cp, a: (a, a[:32])),
    "columns": (RejectedError, lambda cp, a: (cp.asfortranarray(a[:32]), a)),
    "a vector": (ShapeError, lambda cp, a: (a[0], a)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_raised_before_a_launch_and_the_next_call_works(cp, name):
    error, operands = ERRORS[name]
    kernel, a = catalog.get("v2_block_tile"), integers(cp, 6, 64, 64)
    with pytest.raises(error):
        gemm(kernel, *operands(cp, a))
    cp.cuda.Device().synchronize()
    assert bool((gemm(kernel, a, a).c == a @ a).all())


@pytest.mark.parametrize(
    ("smem", "fits"), [(98304, True), (49152, True), (232448 - 16, True), (232448, False), (232449, False)]
)
def test_shared_memory_above_48_kib(cp, tmp_path, smem, fits):
    """Case 74: the opt-in is asked for; 16 static bytes count too."""
    kernel, a = odd(tmp_path, STATIC, dynamic_smem=smem), integers(cp, 7, 64, 64)
    if fits:
        gemm(kernel, a, a)
    else:
        with pytest.raises(LaunchError, match=f"{smem} bytes of dynamic and 16 of static.*232448 in all"):
            gemm(kernel, a, a)
    cp.cuda.Device().synchronize()
    sound = catalog.get("v0_naive")
    assert bool((gemm(sound, a, a).c == a @ a).all())


def test_a_driver_that_refuses_a_launch_leaves_the_process_usable(cp, tmp_path):
    """More threads than the registers allow, past our own gate: the driver's word comes back as LaunchError."""
    text = 'extern "C" __global__ void odd() {}'
    kernel, a = odd(tmp_path, text, grid=(1, 1, 1), block=(64, 1, 1), cluster=(64, 1, 1)), integers(cp, 8, 64, 64)
    with pytest.raises(LaunchError, match="cuLaunchKernelEx answered"):
        gemm(kernel, a, a)
    sound = catalog.get("v0_naive")
    assert bool((gemm(sound, a, a).c == a @ a).all())


@pytest.mark.alone
def test_first_call_warm_call_and_device_time_are_three_numbers(cp):
    """Case 39: the device's time is what is left when Python's is taken off, and does not know the repeats."""
    kernel = dataclasses.replace(catalog.get("v6_transposed_split"))
    a = integers(cp, 9, 2048, 2048)
    walls = []
    for _ in range(4):
        cp.cuda.Device().synchronize()
        began = time.perf_counter()
        gemm(kernel, a, a)
        cp.cuda.Device().synchronize()
        walls.append(time.perf_counter() - began)
    from compare.timing import GpuBench, Job, Work

    bench = GpuBench()
    from compare.inputs import allocate, fill

    (contender,) = contenders([kernel.name])
    problem = contender.problem(2048, 2048, 2048)
    buffers = allocate(cp, problem)
    fill(buffers)
    work = Work(kernel.name, (contender.prepare(problem, buffers.pointers, bench.stream),))
    bench.pilot(work)
    few, many = (bench.slice([Job(work, launches, lead_in=2)]).readings[0].seconds for launches in (7, 20))
    assert few == pytest.approx(many, rel=0.1)
    assert 0 < many < min(walls[1:])


def test_two_devices(cp):
    """Case 68."""
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU is here")
    kernel = catalog.get("v2_block_tile")
    here = integers(cp, 10, 64, 64)
    gemm(kernel, here, here)
    with cp.cuda.Device(1):
        there = integers(cp, 11, 64, 64)
        expected = cp.asnumpy(there @ there)
    result = gemm(kernel, there, there)
    assert result.c.device.id == 1
    np.testing.assert_array_equal(cp.asnumpy(result.c), expected)
    with pytest.raises(DeviceError, match="A on GPU 0, B on GPU 1"):
        gemm(kernel, here, there)
    assert bool((gemm(kernel, here, here).c == here @ here).all())
    (contender,) = contenders(["v2_block_tile"])
    assert check_contender(contender, contender.problem(35, 79, 19), GpuExecutor(1)).ok
    cp.cuda.Device(0).use()
