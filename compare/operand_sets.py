"""The buffers that all contenders of a group share, and the check that follows timing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from compare.check import Verdict, trusting, verify
from compare.inputs import Buffers, allocate, fill
from compare.trials import Block, kept_products
from kernel.contract import Pointers, Problem
from kernel.errors import LaunchError

if TYPE_CHECKING:
    from compare.contenders import Contender, Prepared

CHANGED_SEED = 7_368_787
"""Added to the seed for the inputs that nobody has seen before timing."""


def copy_async(cupy: Any, target: Any, source: Any, stream: int) -> None:
    """Queue a copy of one CuPy array's memory to another's on a CUstream."""
    runtime = cupy.cuda.runtime
    runtime.memcpyAsync(target.data.ptr, source.data.ptr, source.nbytes, runtime.memcpyDeviceToDevice, stream)


class OperandSets:
    """Operand sets of one problem on the current device; see :class:`compare.measure.Operands`.

    Set 0 is what warm timing runs on; more are copies of it in memory of their own, for cold timing.

    Args:
        xp: CuPy (NumPy in tests).
        problem: extents, layouts, leading dimensions and alignments.
        distribution: key of :data:`compare.inputs.DISTRIBUTIONS`.
        seed: fixes the values.
        stream: CUstream that contenders run on.
    """

    def __init__(
        self, xp: Any, problem: Problem, distribution: str = "uniform", seed: int = 0, stream: int = 0
    ) -> None:
        self._xp, self.problem, self.distribution, self._seed, self._stream = xp, problem, distribution, seed, stream
        self.sets: list[Buffers] = [allocate(xp, problem)]
        fill(self.sets[0], distribution, seed)
        self._first_c = self._keep_c()
        self._changed = False
        self._products: list[Block] | None = None
        self._synchronise()

    def pointers(self, index: int = 0) -> Pointers:
        """Addresses of set ``index``."""
        return self.sets[index].pointers

    def grow(self, sets: int) -> None:
        """Allocate copies until there are so many sets.

        Raises:
            MemoryError: the device has no room for them.
        """
        try:
            while len(self.sets) < sets:
                more = allocate(self._xp, self.problem)
                for name, storage in more.storage.items():
                    storage[...] = self.sets[0].storage[name]
                self.sets.append(more)
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
                raise MemoryError(str(error)) from None
            raise
        self._synchronise()

    def restore_c(self, stream: int, index: int = 0) -> None:
        """Queue a copy that puts C of a set back to what it was before the first launch."""
        if self._first_c is None:
            return
        target = self.sets[index].storage["c"]
        if hasattr(self._xp, "cuda"):
            copy_async(self._xp, target, self._first_c, stream)
        else:
            target[...] = self._first_c

    def reverify(self, contender: Contender, prepared: Prepared) -> str | None:
        """Run what was timed once more on inputs it has not seen, on a poisoned C, and check the result.

        Returns:
            Why the result is wrong, or None. See :data:`compare.measure.Reverify`.
        """
        verdict = self.verify_again(contender, prepared)
        return None if verdict.ok else verdict.reason

    def verify_again(self, contender: Contender, prepared: Prepared) -> Verdict:
        """The verdict behind :meth:`reverify`."""
        buffers = self.sets[0]
        if not self._changed:
            fill(buffers, self.distribution, self._seed + CHANGED_SEED)
            self._first_c = self._keep_c()
            self._changed = True
            before = None if self._first_c is None else buffers.c.copy()
            self._products = kept_products(self.problem, self.distribution, buffers.a, buffers.b, before)
        if self._first_c is None:
            buffers.poison_output()
        else:
            buffers.storage["c"][...] = self._first_c
        before = None if self._first_c is None else buffers.c.copy()
        self._synchronise()
        try:
            prepared.enqueue(self._stream)
            self._synchronise()
        except Exception as error:
            reason = str(error) if isinstance(error, LaunchError) else f"the launch failed: {error}"
            return Verdict(
                contender=contender.name,
                problem=self.problem,
                input=self.distribution,
                seed=self._seed,
                ok=False,
                reason=reason,
            )

        def against(products: Iterable[Block] | None) -> Verdict:
            operands = (buffers.a, buffers.b, buffers.c, before)
            identity = (self.problem, contender.track, self.distribution)
            return verify(*identity, *operands, contender=contender.name, products=products)

        def forget() -> None:
            self._products = None

        return trusting(self._products, against, forget)

    def _keep_c(self) -> Any:
        """A copy of C's memory, or None where beta is 0 and C is never read."""
        return None if self.problem.beta == 0.0 else self.sets[0].storage["c"].copy()

    def _synchronise(self) -> None:
        if hasattr(self._xp, "cuda"):
            self._xp.cuda.Device().synchronize()
