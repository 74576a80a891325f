"""How a problem is run: the one place that settles empty and scale-only problems for all families."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from kernel.contract import MAX_GRID_X, Argument, Kernel, Launch, Pointers, Problem, Unit, ceil_div
from kernel.errors import RejectedError

SCALE_SOURCE = Path(__file__).with_name("scale_only.cu")
SCALE_THREADS = 256
SCALE_VARIANT = "scale_only"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be launched for one problem; no launches where C is empty."""

    variant: str
    launches: tuple[Launch, ...]

    @property
    def main(self) -> int | None:
        """Place of the launch that multiplies, the largest and then the first where several do (ranges of columns).

        Where none does (C is only scaled) it is the first; None where nothing is launched.
        """
        places = range(len(self.launches))
        multiplying = [place for place in places if self.launches[place].multiplies] or places[:1]
        sizes = {place: self.launches[place].blocks * self.launches[place].threads for place in multiplying}
        return max(sizes, key=sizes.__getitem__, default=None)

    @property
    def main_launch(self) -> Launch | None:
        """The launch at :attr:`main`; None where nothing is launched."""
        return None if self.main is None else self.launches[self.main]

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory that the launches share."""
        return max((launch.workspace for launch in self.launches), default=0)


def scale_unit(arch: str) -> Unit:
    """The unit behind every scale-only launch, built for the architecture of the kernel it serves."""
    return Unit(name=f"scale_only.{arch}", arch=arch, source=SCALE_SOURCE, flags=(f"-DTHREADS={SCALE_THREADS}",))


def plan(kernel: Kernel, problem: Problem) -> Plan:
    """Settle how ``kernel`` runs ``problem``.

    Raises:
        RejectedError: the kernel cannot run it, with the kernel's own reason.
    """
    reason = kernel.rejects_type_or_layout(problem)
    if reason is None and not (problem.is_empty or problem.is_scale_only):
        reason = kernel.rejects(problem)
    if reason is not None:
        raise RejectedError(f"{kernel.name}: {reason}")
    if problem.is_empty:
        return Plan(variant="empty", launches=())
    if problem.is_scale_only:
        blocks = min(ceil_div(problem.m * problem.n, SCALE_THREADS), MAX_GRID_X)
        launch = Launch(
            unit=scale_unit(kernel.arch),
            entry=f"scale_only_{problem.dtype_out}",
            grid=(blocks, 1, 1),
            block=(SCALE_THREADS, 1, 1),
            multiplies=False,
        )
        return Plan(variant=SCALE_VARIANT, launches=(launch,))
    return Plan(variant=kernel.variant(problem), launches=kernel.launches(problem))


def arguments(kernel: Kernel, problem: Problem, pointers: Pointers) -> tuple[tuple[Argument, ...], ...]:
    """Parameters of every launch of :func:`plan`, in its order."""
    if problem.is_empty:
        return ()
    if problem.is_scale_only:
        values = (
            struct.pack("<Q", pointers.c),
            struct.pack("<q", problem.ldc),
            struct.pack("<q", problem.m),
            struct.pack("<q", problem.n),
            struct.pack("<f", problem.beta),
        )
        return (tuple(Argument(data=value) for value in values),)
    return kernel.pack(problem, pointers)
