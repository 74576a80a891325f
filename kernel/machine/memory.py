"""Global memory as the machine sees it: buffers at made-up device addresses, one shadow byte per byte."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

ADDRESSABLE, INITIALISED, WRITABLE, WRITTEN = 1, 2, 4, 8

FIRST_ADDRESS = 0x20_0000_0000
SPACING = 0x10_0000_0000
"""Distance between buffers, 64 GiB: what misses one buffer never lands in another."""


@dataclass(kw_only=True, eq=False)
class Buffer:
    """A piece of global memory.

    ``data`` is a flat uint8 array that kernels read and write in place. ``address`` is the device
    address of its first byte; 0 lets :func:`place` choose one. ``shadow`` says of each byte whether
    it may be touched, holds a value, and may be written; left out, it follows from the other fields.
    """

    name: str
    data: npt.NDArray[np.uint8]
    address: int = 0
    writable: bool = True
    initialised: bool = True
    """False where the kernel must write a byte before it reads it."""
    shadow: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    itemsize: int = 4
    """Bytes of an element, for messages."""
    width: int = 0
    """Elements from one row to the next, for messages; 0 for a flat buffer."""

    def __post_init__(self) -> None:
        if self.data.dtype != np.uint8 or self.data.ndim != 1 or not self.data.flags.c_contiguous:
            self.data = np.ascontiguousarray(self.data).reshape(-1).view(np.uint8)
        if self.shadow.size != self.data.size:
            state = ADDRESSABLE | (INITIALISED if self.initialised else 0) | (WRITABLE if self.writable else 0)
            self.shadow = np.full(self.data.size, state, np.uint8)

    @classmethod
    def from_array(cls, name: str, array: npt.NDArray[np.generic], **options: object) -> Buffer:
        """A buffer with a copy of ``array``; 2-D arrays keep their width for messages."""
        flat = np.array(array, order="C").reshape(-1).view(np.uint8)
        width = array.shape[-1] if array.ndim > 1 else 0
        return cls(name=name, data=flat, itemsize=array.itemsize, width=width, **options)  # type: ignore[arg-type]

    def array(self, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        """The bytes as a flat array of ``dtype`` (no copy)."""
        return self.data.view(dtype)

    def where(self, address: int) -> str:
        """An address in words: element, row and column, or how far outside."""
        offset = address - self.address
        if offset < 0:
            return f"{-offset} bytes before {self.name}"
        if offset >= self.data.size:
            return f"{offset - self.data.size} bytes past the end of {self.name} ({self.data.size} bytes)"
        element = offset // self.itemsize
        place = f"[{element // self.width}, {element % self.width}]" if self.width else f"[{element}]"
        return f"{self.name}{place}"


def place(buffers: list[Buffer]) -> None:
    """Give every buffer without an address one of its own, far from the others, 256-byte aligned."""
    taken = {buffer.address // SPACING for buffer in buffers if buffer.address}
    slot = FIRST_ADDRESS // SPACING
    for buffer in buffers:
        if not buffer.address:
            while slot in taken:
                slot += 1
            buffer.address = slot * SPACING
            taken.add(slot)
