"""The machine computes FP32 kernels to the bit as the recorded GPU does: hashes of outputs are the test data."""

from __future__ import annotations

import json

import pytest

from kernel.errors import MissingToolError
from kernel.machine import simulate
from tests.h200_hashes import CASES, RECORDED, digest, kernels

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]


def recorded() -> dict[str, dict[str, str]]:
    if not RECORDED.is_file():
        pytest.skip(f"no {RECORDED.name}: run python -m tests.h200_hashes on the GPU")
    return json.loads(RECORDED.read_text(encoding="utf-8"))["hashes"]


@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.name)
def test_same_bits_as_the_gpu(kernel):
    hashes = recorded().get(kernel.name)
    if hashes is None:
        pytest.skip(f"{kernel.name} was not recorded")
    different = []
    for case in CASES:
        if case.name not in hashes:
            continue
        problem = case.problem(kernel)
        a, b, c = case.inputs()
        try:
            outcome = simulate(kernel, problem, a, b, c)
        except MissingToolError as error:
            pytest.skip(str(error))
        assert outcome.faults == [], (case.name, str(outcome.faults[0]))
        if digest(outcome.c) != hashes[case.name]:
            different.append(case.name)
    assert not different


def test_recorded_shapes_are_enough():
    """At least ten shapes of each family, random and special values among them."""
    by_family: dict[str, set[str]] = {}
    hashes = recorded()
    for kernel in kernels():
        by_family.setdefault(kernel.family, set()).update(hashes.get(kernel.name, ()))
    for family, names in by_family.items():
        assert len(names) >= 10, family
        assert any("special" in name for name in names)
        assert any("special" not in name for name in names)
