"""Every error that a caller can provoke, rooted at one class.

Each message says what was given, what is needed and what to do. All of them are raised before a
launch, except :class:`LaunchError` and :class:`MachineFault`, after which the process can go on.
``exit_status`` is what the command line exits with when the error ends a command.
"""

from __future__ import annotations


class GemmTracksError(Exception):
    """Root of every error this project raises on purpose."""

    exit_status = 2


class ProblemError(GemmTracksError, ValueError):
    """The GEMM that was asked for is not a GEMM, or not one that any kernel here could run."""


class ShapeError(ProblemError):
    """An extent is negative, too large, or disagrees with another operand's."""


class LayoutError(ProblemError):
    """Strides or a leading dimension do not describe the layout that was stated."""


class DtypeError(GemmTracksError, TypeError):
    """An operand or a scalar has a data type that the kernel does not take."""


class DeviceError(GemmTracksError, ValueError):
    """Operands lie on different devices, or on one that the kernel was not built for."""


class RejectedError(ProblemError):
    """The kernel cannot run this problem; the text is what ``Kernel.rejects`` answered."""


class CatalogError(GemmTracksError):
    """A kernel, tile or option name is unknown, or a catalog entry breaks one of its own rules."""


class UsageError(GemmTracksError):
    """A command was called with arguments that do not fit together."""


class RunFileError(GemmTracksError):
    """A recorded run cannot be read, or is not one."""


class TableError(GemmTracksError):
    """A dispatch table cannot be read, or is not one."""


class BuildError(GemmTracksError):
    """The compiler refused a kernel, or the static gate refused what it made; carries the log."""

    exit_status = 1

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class CheckError(GemmTracksError):
    """A kernel's result is wrong, or a measurement is not credible."""

    exit_status = 1


class MissingToolError(GemmTracksError):
    """A tool or package is not there; the text says where it was looked for and how to get it."""

    exit_status = 3


class NoDeviceError(GemmTracksError):
    """What was asked for runs on a GPU, and none can be used here."""

    exit_status = 3


class TimeLimitError(GemmTracksError):
    """The PTX machine was given a limit in time, which came before the kernel's end; a GPU would not need it."""

    exit_status = 3


class ClusterError(GemmTracksError):
    """Workers cannot make one run together, or have gone while they did."""

    exit_status = 3


class LaunchError(GemmTracksError):
    """The driver refused a launch; nothing ran."""

    exit_status = 1


class MachineFault(GemmTracksError):  # noqa: N818 - the PTX machine's word for what hardware calls a fault
    """The PTX machine stopped a kernel: bad access, race, divergent barrier, unknown opcode."""

    exit_status = 1


class UnsupportedError(MachineFault):
    """The PTX machine reached an opcode that it does not have, which says nothing against the kernel."""

    exit_status = 3
