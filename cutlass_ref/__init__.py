"""Kernels that NVIDIA's CUTLASS packages emit, as contenders and as a GEMM to call (``cutlass_ref.gemm``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutlass_ref.call import gemm

__all__ = ["gemm"]


def __getattr__(name: str) -> Any:
    """Imports the call when it is first asked for: it brings NumPy, which reading the catalog does not need."""
    if name == "gemm":
        from cutlass_ref.call import gemm

        return gemm
    raise AttributeError(f"module 'cutlass_ref' has no attribute {name!r}")
