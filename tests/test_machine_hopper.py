"""mbarriers, tensor copies and wgmma on the PTX machine: h1 agrees with the reference, broken copies of it fault."""

import re
import types

import numpy as np
import pytest

import kernel.machine.gemm as machine_gemm
from handwritten.tensor_catalog import H1
from kernel.build import artifact
from kernel.contract import Problem
from kernel.machine import Checks, simulate

pytestmark = pytest.mark.nvcc


def half(m, n, k, **changes):
    return Problem(m=m, n=n, k=k, **{"dtype_in": "float16", "dtype_out": "float16", **changes})


def operands(problem, seed=7):
    random = np.random.default_rng(seed)
    shapes = ((problem.m, problem.k), (problem.k, problem.n), (problem.m, problem.n))
    a, b, c = (random.integers(-4, 5, shape).astype(np.float16) for shape in shapes)
    return a, b, c.astype(problem.dtype_out)


def expected(problem, a, b, c):
    product = problem.alpha * (a.astype(np.float64) @ b.astype(np.float64)) + problem.beta * c.astype(np.float64)
    return product.astype(problem.dtype_out)


@pytest.mark.parametrize("layout", ["rr", "rc"])
@pytest.mark.parametrize("out", ["float16", "float32"])
@pytest.mark.parametrize(
    "problem",
    [
        half(256, 256, 128),
        # More k blocks than stages, so that barriers go through several phases; then a tile that ends everywhere.
        half(128, 256, 640),
        half(200, 328, 136, alpha=0.5, beta=2.0),
        # Rows of C that end inside 16 bytes: written by element, the padding behind them is out of bounds.
        half(130, 261, 72, lda=72, ldb=264, ldc=264),
    ],
    ids=str,
)
def test_h1_agrees_on_integers_to_the_bit(problem, layout, out):
    width = -(-(problem.n if layout == "rr" else problem.k) // 8) * 8
    problem = problem.replace(layout=layout, dtype_out=out, ldb=width)
    a, b, c = operands(problem)
    outcome = simulate(H1, problem, a, b, c if problem.beta else None)
    assert outcome.variant == "tma"
    assert not outcome.faults, outcome.faults[0]
    np.testing.assert_array_equal(outcome.c, expected(problem, a, b, c))


def test_products_and_every_copied_byte_are_accounted_for():
    problem = half(128, 256, 128)
    a, b, _ = operands(problem)
    outcome = simulate(H1, problem, a, b, checks=Checks(strict=True))
    assert not outcome.faults
    assert outcome.reports[0].counters.mma == 128 * 256 * 128


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """Runs h1 with its PTX changed by a function; the kinds of fault that come of it."""

    def run(change, problem):
        text = artifact(H1.unit("rr", "float16")).ptx.read_text(encoding="utf-8")
        changed = change(text)
        assert changed != text
        path = tmp_path / "changed.ptx"
        path.write_text(changed, encoding="utf-8")
        monkeypatch.setattr(machine_gemm, "artifact", lambda _: types.SimpleNamespace(ptx=path))
        a, b, _ = operands(problem)
        outcome = simulate(H1, problem, a, b, keep_going=True)
        return {fault.kind for fault in outcome.faults}

    return run


def without(pattern, count=0):
    return lambda text: re.sub(pattern, "", text, count=count)


def instead(old, new):
    return lambda text: text.replace(old, new)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        pytest.param(without(r"fence\.proxy\.async\.shared::cta;"), "missing proxy fence", id="no proxy fence"),
        pytest.param(
            instead("wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 7;"),
            "race",
            id="stage released while products read it",
        ),
        pytest.param(
            instead("cp.async.bulk.wait_group.read 0;", ""), "bulk store not waited for", id="ends before its store"
        ),
        pytest.param(
            instead("cp.async.bulk.wait_group.read 1;", "cp.async.bulk.wait_group.read 3;"),
            "bulk store overwritten",
            id="store buffer reused too early",
        ),
        pytest.param(
            lambda text: re.sub(r"(mbarrier\.init\.shared::cta\.b64 \[%r\d+\]), %r\d+;", r"\1, 3;", text),
            "mbarrier not completed",
            id="more arrivals expected than come",
        ),
        pytest.param(
            lambda text: re.sub(r"(mbarrier\.init\.shared::cta\.b64 \[%r\d+\]), %r\d+;", r"\1, 1;", text),
            "mbarrier not completed",
            id="two arrivals are two phases",
        ),
        pytest.param(
            lambda text: re.sub(r"(mbarrier\.arrive\.expect_tx[^;]*;)", r"\1 \1", text),
            "mbarrier over-arrived",
            id="the loader arrives twice",
        ),
        pytest.param(without(r"mbarrier\.init[^;]*;", count=1), "mbarrier not initialised", id="never initialised"),
    ],
)
def test_broken_copies_are_found(broken, change, kind):
    assert kind in broken(change, half(128, 256, 640))


def test_a_stage_read_before_it_has_arrived_is_found(broken):
    """Consumers that do not wait for the full barrier: the first wait of the file is theirs."""

    def skip_first_wait(text):
        first = text.index("mbarrier.try_wait.parity")
        return text[:first] + re.sub(r"mbarrier[^;]*;", "setp.eq.u32 p, 0, 0;", text[first:], count=1)

    assert "async copy read early" in broken(skip_first_wait, half(128, 256, 64))
