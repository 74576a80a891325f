"""On a GPU: the Tensor Core kernels on both layouts and output types, and what only hardware can show."""

import dataclasses

import pytest

from compare.check import GpuExecutor, check_contender
from compare.contenders import KernelContender
from compare.inputs import allocate, fill
from handwritten.tensor_catalog import H9, KERNELS, SplitKernel
from tests.repeats import assert_repeats_are_bit_identical

pytestmark = pytest.mark.gpu

CONTENDERS = [KernelContender.of(kernel) for kernel in KERNELS]
every_kernel = pytest.mark.parametrize("contender", CONTENDERS, ids=[contender.name for contender in CONTENDERS])
every_layout = pytest.mark.parametrize("layout", ["rr", "rc"])
OUTPUTS = ("float16", "float32")
SHARING = {kernel.name for kernel in KERNELS if kernel.shares and kernel is not H9}
OVERLAPPING = [contender for contender in CONTENDERS if getattr(contender.kernel, "overlaps", False)]


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem; pads are elements by which a pitch exceeds its width, whatever the layout makes of it."""

    m: int
    n: int
    k: int
    input: str = "uniform"
    alpha: float = 1.0
    beta: float = 0.0
    align: int = 256
    to: int = 1
    """Pitches are the next multiple of this."""
    c_to: int = 0
    """The same for C alone; 0 for the same as the others."""

    def problem(self, contender, layout, out):
        packed = contender.problem(self.m, self.n, self.k, layout=layout, dtype_out=out)
        size = 4 if out == "float32" else 2
        return packed.replace(
            alpha=self.alpha,
            beta=self.beta,
            lda=-(-packed.lda // self.to) * self.to,
            ldb=-(-packed.ldb // self.to) * self.to,
            ldc=-(-packed.ldc // (self.c_to or self.to)) * (self.c_to or self.to),
            align_a=self.align,
            align_b=self.align,
            align_c=max(self.align, size),
        )


CASES = (
    # One tile, several k blocks, more k blocks than stages; then tails along each axis and all of them.
    Case(128, 256, 64, "integers"), Case(256, 512, 128, "integers"), Case(256, 256, 2048, "integers"),
    Case(128, 256, 64), Case(1024, 1024, 1024), Case(1000, 1000, 1000), Case(200, 328, 136, "integers"),
    Case(200, 328, 136, alpha=0.5, beta=2.0), Case(3000, 520, 72), Case(4097, 264, 520, "integers"),
    # More tiles than SMs: a block walks several, forwards and backwards along k.
    Case(2304, 4352, 192, "integers"), Case(2048, 2048, 2048, alpha=1.5, beta=0.5),
    Case(8, 8, 8, "integers"), Case(16, 24, 8, "integers"), Case(1, 105, 107), Case(2, 4, 3, "integers"),
    # No tensor map describes these.
    Case(35, 79, 19, "integers"), Case(129, 130, 4092), Case(64, 64, 7, "integers", beta=1.0),
    Case(300, 264, 261, "integers"), Case(300, 261, 264, "integers", beta=2.0), Case(2301, 1029, 515, "integers"),
    Case(300, 261, 259, "integers", to=5), Case(300, 260, 260, "integers", to=2), Case(130, 130, 64, align=2),
    # Padded so that one does: k and rows of C end inside 16 bytes.
    Case(300, 264, 264, to=16), Case(257, 512, 65, beta=-1.0, to=16), Case(300, 261, 264, "integers", c_to=264),
    Case(300, 261, 264, "integers", to=264), Case(300, 264, 261, "integers", to=8), Case(300, 261, 261, to=8),
    Case(130, 257, 200, "integers", beta=2.0, to=8), Case(1500, 1285, 200, to=8), Case(300, 257, 136, to=8),
    # Special values on ragged tiles: a NaN or Inf must not spread through a tail.
    Case(300, 264, 136, "nan"), Case(300, 264, 136, "inf"), Case(257, 296, 200, "special"),
    Case(130, 261, 77, "special", to=8), Case(130, 264, 64, "denormal"), Case(257, 264, 1040, "vanish"),
)  # fmt: skip


@pytest.fixture(scope="module")
def executor():
    return GpuExecutor()


@pytest.fixture(autouse=True)
def _memory_is_given_back():
    yield
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()


@every_kernel
@every_layout
def test_every_case_is_right_and_none_is_refused(contender, layout, executor):
    # Another tile of a source that has run them all runs a third.
    for case in CASES[:: 3 if contender.name in SHARING else 1]:
        for out in OUTPUTS:
            problem = case.problem(contender, layout, out)
            verdict = check_contender(contender, problem, executor, distribution=case.input)
            assert verdict.ok, f"{verdict} ({verdict.variant})"


SPLIT = [kernel for kernel in KERNELS if isinstance(kernel, SplitKernel)]
SPLIT_CASES = (
    Case(131, 264, 1160, "integers", alpha=0.5, beta=2.0), Case(1, 64, 584, "integers"), Case(9, 136, 72, "integers"),
    Case(70, 261, 328, "integers", to=8), Case(65, 33, 200, "integers", beta=-1.0, to=8), Case(35, 8, 8, "integers"),
    Case(130, 72, 520, "special", to=8), Case(16, 40, 712, "nan"), Case(300, 1000, 2056, "integers"),
)  # fmt: skip


@pytest.mark.parametrize("kernel", SPLIT, ids=lambda kernel: kernel.name)
@every_layout
@pytest.mark.parametrize(("slices", "parts"), [(1, 1), (1, 5), (2, 1), (4, 1), (8, 1), (2, 3), (8, 9)], ids=str)
def test_every_cut_is_right_and_repeats_to_the_bit(kernel, layout, slices, parts, executor):
    """Clusters along k, parts in the workspace and both, in fewer blocks of k than shares too."""
    contender = KernelContender.of(dataclasses.replace(kernel, slices=slices, parts=parts))
    for case in SPLIT_CASES:
        for out in OUTPUTS:
            problem = case.problem(contender, layout, out)
            verdict = check_contender(contender, problem, executor, distribution=case.input)
            assert verdict.ok, f"{verdict} ({verdict.variant})"
    # More tiles than run at once, so that clusters walk and push again; and launches that follow each other.
    problem = contender.problem(300, 9000, 1544, layout=layout)
    assert_repeats_are_bit_identical(contender, problem, 20)


@pytest.fixture
def gemm():
    """Runs a contender on constant or filled operands; C as NumPy."""
    import cupy

    def run(contender, problem, a, b):
        buffers = allocate(cupy, problem)
        fill(buffers)
        buffers.a[...], buffers.b[...] = cupy.asarray(a, "float16"), cupy.asarray(b, "float16")
        buffers.poison_output()
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        contender.prepare(problem, buffers.pointers, stream.ptr).enqueue(stream.ptr)
        stream.synchronize()
        return cupy.asnumpy(buffers.c)

    return run


@every_kernel
@every_layout
def test_sums_are_kept_in_fp32(contender, layout, gemm):
    """2048 and 63 ones: an FP16 sum stays at 2048."""
    import numpy as np

    a = np.ones((128, 64), np.float16)
    a[:, 0] = 2048
    for out in OUTPUTS:
        c = gemm(contender, contender.problem(128, 256, 64, layout=layout, dtype_out=out), a, np.ones((64, 256)))
        np.testing.assert_array_equal(c, np.full((128, 256), 2048 + 63, out))


@every_kernel
@every_layout
def test_what_is_too_large_for_fp16_becomes_infinite_with_its_sign(contender, layout, gemm):
    import numpy as np

    a = np.full((128, 64), 64, np.float16)
    a[1::2] = -64
    b = np.full((64, 256), 64, np.float16)
    exact = np.broadcast_to(np.where(np.arange(128) % 2, -(64.0**3), 64.0**3)[:, None], (128, 256))
    c = gemm(contender, contender.problem(128, 256, 64, layout=layout, dtype_out="float32"), a, b)
    np.testing.assert_array_equal(c, exact)
    c = gemm(contender, contender.problem(128, 256, 64, layout=layout, dtype_out="float16"), a, b)
    np.testing.assert_array_equal(c, np.sign(exact) * np.inf)


@every_kernel
@every_layout
@pytest.mark.parametrize("extents", [(256, 512, 256), (2304, 2056, 520), (2301, 2053, 517)], ids=str)
def test_twenty_repeats_are_bit_identical(contender, layout, extents):
    assert_repeats_are_bit_identical(contender, contender.problem(*extents, layout=layout), 20)


@pytest.mark.parametrize("contender", OVERLAPPING, ids=[contender.name for contender in OVERLAPPING])
@pytest.mark.parametrize("size", [1024, 1023, 257])
def test_a_launch_that_starts_early_waits_for_what_the_one_before_writes(contender, size):
    """Forty products, each of the one before with a permutation, on one stream without a wait between them.

    At odd sizes h9 copies in a launch of its own, into a workspace that the product before still reads.
    """
    import cupy
    import numpy as np

    from kernel.contract import Pointers

    random = np.random.default_rng(5)
    order = random.permutation(size)
    start = random.integers(-8, 9, (size, size)).astype(np.float16)
    # numpy lays columns that are picked out by an index one after another; the kernels read rows.
    step = cupy.asarray(np.ascontiguousarray(np.eye(size, dtype=np.float16)[:, order]))
    here, there = cupy.asarray(start), cupy.empty((size, size), np.float16)
    problem = contender.problem(size, size, size)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    ways = [
        contender.prepare(problem, Pointers(a=a.data.ptr, b=step.data.ptr, c=c.data.ptr), stream.ptr)
        for a, c in ((here, there), (there, here))
    ]
    expected = start
    for launch in range(40):
        ways[launch % 2].enqueue(stream.ptr)
        expected = expected[:, order]
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(here), expected)
