"""Kernels that NVIDIA's CUTLASS packages emit, as contenders and as a GEMM to call."""

from cutlass_ref.call import gemm

__all__ = ["gemm"]
