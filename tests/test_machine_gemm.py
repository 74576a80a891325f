"""Kernels of the catalogs on the machine: to the bit against ordered FMAs, views, bases, unwritten output, speed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from handwritten.catalog import LADDER, get
from handwritten.stream_tile import ClusterSplitKernel, StreamKTileKernel
from kernel.contract import Kernel, Launch, Problem, Unit
from kernel.errors import DtypeError, MachineFault, RejectedError, ShapeError
from kernel.machine import run_kernel, simulate
from kernel.machine.command import mapping, races

pytestmark = pytest.mark.nvcc


def in_one_go(kernel):
    """The kernel with one block a tile, which adds its products in the order of k.

    A split over a cluster, which the machine does not have, and stream-K's shares add partial sums instead.
    """
    if isinstance(kernel, ClusterSplitKernel):
        return dataclasses.replace(kernel, slices=1)
    return dataclasses.replace(kernel, least_steps=1000) if isinstance(kernel, StreamKTileKernel) else kernel


def numbers(problem: Problem, seed=0, special=False):
    generator = np.random.default_rng(seed)
    a, b, c = (
        generator.uniform(-1, 1, shape).astype(np.float32)
        for shape in ((problem.m, problem.k), (problem.k, problem.n), (problem.m, problem.n))
    )
    if special:
        values = np.array([np.nan, np.inf, -np.inf, 1e-42, -1e-40, 3e38, -3e38, 0.0, -0.0], np.float32)
        for array in (a, b, c):
            at = generator.random(array.shape) < 0.02
            array[at] = generator.choice(values, int(at.sum()))
    return a, b, c


def fma(x, y, z):
    """x * y + z in FP32 with one rounding: the sum is made odd before the second rounding, as 2Sum allows."""
    with np.errstate(all="ignore"):
        product, addend = x.astype(np.float64) * y, z.astype(np.float64)
        total = product + addend
        virtual = total - product
        error = (product - (total - virtual)) + (addend - virtual)
        bits = total.view(np.int64)
        odd = np.where((error > 0) == (total > 0), bits + 1, bits - 1)
        fix = (error != 0) & (bits % 2 == 0) & np.isfinite(total)
        return np.where(fix, odd, bits).view(np.float64).astype(np.float32)


def in_order(problem, a, b, c):
    """What a kernel computes that adds one product after the other, k ascending, from zero."""
    acc = np.zeros((problem.m, problem.n), np.float32)
    for k in range(problem.k):
        acc = fma(*np.broadcast_arrays(a[:, k : k + 1], b[k : k + 1, :]), acc)
    with np.errstate(all="ignore"):
        out = np.float32(problem.alpha) * acc
        if problem.beta:
            out = fma(np.full_like(c, problem.beta), c, out)
    return out


def bits(values):
    return np.where(np.isnan(values), np.uint32(0x7FFFFFFF), values.view(np.uint32))


IN_ORDER = [k for k in LADDER if max(getattr(k, "k_warps", 1), getattr(k, "k_groups", 1)) == 1]
"""v16 and v17 deal k out to warps of one block, whatever they are told: integers say whether those are right."""


@pytest.mark.parametrize("special", [False, True], ids=["random", "special"])
@pytest.mark.parametrize("kernel", IN_ORDER, ids=lambda kernel: kernel.name)
def test_ladder_is_ordered_fmas_to_the_bit(kernel, special):
    problem = Problem(m=67, n=130, k=35)
    a, b, c = numbers(problem, special=special)
    got = run_kernel(in_one_go(kernel), problem, a, b)
    np.testing.assert_array_equal(got.view(np.uint32), bits(in_order(problem, a, b, c)))


@pytest.mark.parametrize("name", ["v0_naive", "v3_double_buffer", "v6_transposed_split"])
def test_alpha_and_beta_to_the_bit(name):
    problem = Problem(m=33, n=68, k=20, alpha=0.37, beta=-1.25)
    a, b, c = numbers(problem, 1)
    got = run_kernel(get(name), problem, a, b, c)
    wanted = in_order(problem, a, b, c)
    # Where the scalar build reads C only if beta counts, nvcc fuses alpha's product instead of beta's.
    with np.errstate(all="ignore"):
        product = np.float32(problem.beta) * c
        acc = in_order(problem.replace(alpha=1.0, beta=0.0), a, b, c)
        other = fma(np.full_like(c, problem.alpha), acc, product)
    assert ((got == wanted) | (got == other)).all()


def test_pitches_and_bases_are_honoured():
    problem = Problem(m=37, n=29, k=19, lda=24, ldb=33, ldc=31, align_a=4, align_b=8, align_c=4)
    a, b, _ = numbers(problem, 2)
    wide = np.full((37, 40), np.nan, np.float32)
    wide[:, 3:22] = a
    outcome = simulate(get("v3_double_buffer"), problem, wide[:, 3:22], b)
    assert outcome.variant == "vec1"
    assert outcome.faults == []
    np.testing.assert_allclose(outcome.c, a.astype(np.float64) @ b, atol=1e-5)


def test_layouts_and_scale_only():
    problem = Problem(m=20, n=30, k=0, beta=2.0, ldc=37)
    c = np.arange(600, dtype=np.float32).reshape(20, 30)
    nothing = np.zeros((20, 0), np.float32), np.zeros((0, 30), np.float32)
    outcome = simulate(get("v2_block_tile"), problem, *nothing, c)
    assert outcome.variant == "scale_only"
    assert outcome.faults == []
    np.testing.assert_array_equal(outcome.c, 2 * c)
    empty = simulate(
        get("v2_block_tile"), Problem(m=0, n=30, k=5), np.zeros((0, 5), np.float32), np.zeros((5, 30), np.float32)
    )
    assert empty.c.shape == (0, 30)
    assert empty.reports == []


def test_wrong_shapes_and_rejected_problems_are_typed_errors():
    a, b, _ = numbers(Problem(m=4, n=5, k=6))
    with pytest.raises(ShapeError, match=r"B has the shape \(5, 6\)"):
        run_kernel(get("v0_naive"), Problem(m=4, n=5, k=6), a, b.T)
    with pytest.raises(ShapeError, match="needs the old C"):
        run_kernel(get("v0_naive"), Problem(m=4, n=5, k=6, beta=1.0), a, b)
    with pytest.raises(RejectedError, match="layout"):
        run_kernel(get("v0_naive"), Problem(m=4, n=5, k=6, layout="rc"), a, b)
    for wrong, words in (
        (a.tolist(), "A is a list"), ("text", "A is a str"), (a * 1j, "complex64"), (a.astype(str), "<U"),
        (a.astype(object), "object"), (np.ma.masked_array(a, a > 0), "mask"),
    ):  # fmt: skip
        with pytest.raises(DtypeError, match=words):
            run_kernel(get("v0_naive"), Problem(m=4, n=5, k=6), wrong, b)
    with pytest.raises(DtypeError, match="C has elements of complex"):
        run_kernel(get("v0_naive"), Problem(m=4, n=5, k=6, beta=1.0), a, b, np.zeros((4, 5), complex))
    with pytest.raises(ShapeError, match="m = -4"):
        run_kernel(get("v0_naive"), Problem(m=-4, n=5, k=6), a, b)


class Altered(Kernel):
    """A kernel of the catalog with a changed launch: what a host-side mistake would make of it."""

    def __init__(self, kernel, change):
        for field in dataclasses.fields(Kernel):
            object.__setattr__(self, field.name, getattr(kernel, field.name))
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "change", change)

    def units(self) -> tuple[Unit, ...]:
        return self.kernel.units()

    def rejects(self, problem):
        return self.kernel.rejects(problem)

    def variant(self, problem):
        return self.kernel.variant(problem)

    def launches(self, problem) -> tuple[Launch, ...]:
        return tuple(self.change(launch) for launch in self.kernel.launches(problem))

    def pack(self, problem, pointers):
        return self.kernel.pack(problem, pointers)


def test_floored_grid_is_output_never_written():
    problem = Problem(m=130, n=64, k=16)
    floored = Altered(get("v2_block_tile"), lambda launch: dataclasses.replace(launch, grid=(1, 1, 1)))
    a, b, _ = numbers(problem)
    with pytest.raises(
        MachineFault, match=r"128 elements of the output were never written, from C\[128, 0\] to C\[129, 63\]"
    ):
        run_kernel(floored, problem, a, b)


def test_wide_build_on_a_narrow_base_is_misaligned():
    kernel = get("v3_double_buffer")
    wide = kernel.units()[0]
    forced = Altered(kernel, lambda launch: dataclasses.replace(launch, unit=wide))
    problem = Problem(m=64, n=64, k=32, align_a=4)
    a, b, _ = numbers(problem)
    with pytest.raises(MachineFault, match="misaligned access of 16 bytes by thread"):
        run_kernel(forced, problem, a, b)


def test_reads_between_rows_are_out_of_bounds():
    """A grid and extents for 64 columns of B, but B has 60 with a pitch of 64: the wide build runs over."""
    kernel = get("v2_block_tile")
    problem = Problem(m=32, n=60, k=16, ldb=64, ldc=64)
    wider = problem.replace(n=64, ldb=64, ldc=64)

    class Wider(Altered):
        def pack(self, problem, pointers):
            return self.kernel.pack(wider, pointers)

    a, b, _ = numbers(problem)
    with pytest.raises(MachineFault, match=r"out of bounds by thread .* between the rows of B"):
        run_kernel(Wider(kernel, lambda launch: launch), problem, a, b)


@pytest.mark.parametrize("name", ["v2_block_tile", "v6_transposed_split", "h0_mma_sync"])
def test_map_of_lanes_from_executed_addresses(name):
    kernel = get(name)
    found = mapping(kernel)
    cells = [cell for owned in found.owns.values() for cell in owned]
    tile = kernel.tile
    assert len(cells) == len(set(cells))
    if kernel.instruction == "ffma":
        assert len(cells) == tile.WARP_M * tile.WARP_N
        assert sorted(found.owns) == list(range(32))
    if name == "v2_block_tile":
        assert found.groups(5, 0) == ((8, 8),)
        assert found.groups(5, 1) == ((8, 8),)
        assert found.a_layout == "row-wise, pitch 16 words"
        assert found.reads_b[5][0] == ((0, 8), (0, 9), (0, 10), (0, 11))
    if name == "v6_transposed_split":
        assert found.groups(5, 0) == ((4, 4), (36, 4))
        assert found.groups(5, 1) == ((4, 4), (20, 4))
        assert found.a_layout.startswith("transposed")


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_no_races_and_nothing_that_ptxas_may_fuse(kernel):
    """A product and a sum without a rounding would be listed in the notes."""
    outcome = races(dataclasses.replace(kernel, slices=1) if isinstance(kernel, ClusterSplitKernel) else kernel)
    assert outcome.faults == []
    assert outcome.notes == []


@pytest.mark.parametrize("name", ["v2_block_tile", "v6_transposed_split"])
def test_a_ragged_problem_takes_less_than_five_seconds(name):
    problem = Problem(m=130, n=130, k=35)
    a, b, _ = numbers(problem)
    outcome = simulate(get(name), problem, a, b)
    assert outcome.faults == []
    assert sum(report.seconds for report in outcome.reports) < 5


@pytest.mark.slow
def test_512_takes_less_than_a_minute():
    problem = Problem(m=512, n=512, k=512)
    a, b, _ = numbers(problem)
    outcome = simulate(get("v6_transposed_split"), problem, a, b)
    assert outcome.faults == []
    assert outcome.reports[0].counters.fma == 512**3
    assert outcome.reports[0].seconds < 60


def test_half_precision_tensor_core_kernel():
    kernel = get("h0_mma_sync")
    problem = Problem(m=256, n=256, k=96, dtype_in="float16", dtype_out=kernel.dtype_out, layout=kernel.layouts[0])
    generator = np.random.default_rng(4)
    a, b = (generator.integers(-3, 4, shape).astype(np.float16) for shape in ((256, 96), (96, 256)))
    got = run_kernel(kernel, problem, a, b)
    np.testing.assert_array_equal(got.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64))
