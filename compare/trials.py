"""What a check needs of one problem, made once for everyone who is checked on it: values and float64 products.

A group's contenders all get the same A, B and C. Hashing them and multiplying them in float64 again for every
contender would cost more than everything else in a check, and most on cards that have few float64 units.
What is kept can be written over by a kernel that goes astray, so no contender fails by it alone: a result that
disagrees is compared once more, with products made anew from the operands that the kernel was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compare.inputs import DISTRIBUTIONS, allocate, array_module, fill
from compare.reference import Reference
from kernel.contract import ITEMSIZE, Problem

Block = tuple[slice, Any, Any]
"""Rows, reference and scale, as :meth:`compare.reference.Reference.blocks` gives them."""

ROUND_SEED = 1_000_003
HOST_BYTES = 1 << 30
"""Most that is kept in a host's memory; of a GPU's, half of what is free."""


def kept_products(problem: Problem, distribution: str, a: Any, b: Any, c_before: Any) -> list[Block] | None:
    """The float64 products of operands, or None where there is no room for all of them at once."""
    if problem.is_empty or not fits(array_module(a), product_bytes(problem)):
        return None
    return products(problem, distribution, a, b, c_before)


def products(problem: Problem, distribution: str, a: Any, b: Any, c_before: Any) -> list[Block]:
    """The float64 products of operands, all of them."""
    return list(Reference(problem, a, b, c_before, DISTRIBUTIONS[distribution].nonfinite).blocks())


def product_bytes(problem: Problem) -> int:
    """Bytes that the float64 products of a problem take: reference and scale."""
    return 2 * 8 * problem.m * problem.n


def fits(xp: Any, size: int) -> bool:
    """Whether so many bytes may be kept in the memory of an array module."""
    if not hasattr(xp, "cuda"):
        return size <= HOST_BYTES
    pool = xp.get_default_memory_pool()
    return bool(size <= (xp.cuda.runtime.memGetInfo()[0] + pool.free_bytes()) // 2)


class Trials:
    """Operands of one problem, filled with the values of one turn after the other.

    Args:
        xp: the module ``numpy`` or ``cupy``.
        problem: not changed while contenders are checked on it.
        distribution: key of :data:`compare.inputs.DISTRIBUTIONS`.
        seed: of turn 0; later turns have others.
        turns: how many there are.
        shared: whether more than one contender will be checked, so that values and products are worth keeping.
    """

    def __init__(self, xp: Any, problem: Problem, distribution: str, seed: int, turns: int, shared: bool) -> None:
        self.problem, self.distribution, self.seed = problem, distribution, seed
        self.buffers = allocate(xp, problem)
        sizes = (problem.m * problem.k, problem.k * problem.n, problem.m * problem.n * (problem.beta != 0.0))
        self._keeps = shared and fits(
            xp, turns * (product_bytes(problem) + ITEMSIZE[problem.dtype_in] * sum(sizes)) + product_bytes(problem)
        )
        self._values: dict[int, dict[str, Any]] = {}
        self._products: dict[int, Sequence[Block]] = {}

    def seed_of(self, turn: int) -> int:
        """The seed of a turn's values."""
        return self.seed + turn * ROUND_SEED

    def begin(self, turn: int) -> None:
        """Fill the operands with a turn's values, and the output and all guards with poison."""
        if not self._restored(turn):
            buffers = self.buffers
            buffers.poison_inputs()
            fill(buffers, self.distribution, self.seed_of(turn))
            if self._keeps:
                names = ("a", "b", "c") if self.problem.beta != 0.0 else ("a", "b")
                self._values[turn] = {name: buffers.storage[name].copy() for name in names}

    def _restored(self, turn: int) -> bool:
        """Whether a turn's values could be copied from what is kept; false where that has been written over."""
        if turn not in self._values:
            return False
        buffers = self.buffers
        buffers.poison_output()
        for name, values in self._values[turn].items():
            # As bits, since a copy of values could touch a NaN's.
            buffers.bits(name)[...] = values.view(buffers.bits(name).dtype)
        if buffers.damaged_guards():
            self.forget()
            return False
        return True

    def kept(self, turn: int, c_before: Any) -> Sequence[Block] | None:
        """A turn's products, made at the first call; None where they are not kept. Call it before a contender runs."""
        if not self._keeps or self.problem.is_empty:
            return None
        if turn not in self._products:
            a, b = self.buffers.a, self.buffers.b
            self._products[turn] = products(self.problem, self.distribution, a, b, c_before)
        return self._products[turn]

    def forget(self) -> None:
        """Drop what is kept: something has written over it."""
        self._values.clear()
        self._products.clear()
