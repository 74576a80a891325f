"""The row: one per kernel, variant, problem, window and L2 state. Names, types, units, meanings.

``pct_*`` run from 0 to 100. ``x_*`` is time of cuBLAS over time of the kernel, so above 1 is faster.
Empty means not measured.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Column(NamedTuple):
    """One column: its name, ``str``, ``int``, ``float`` or ``bool``, and what it holds."""

    name: str
    type: str
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("name", "str", "contender; for our kernels also the file stem, entry symbol and catalog key"),
    Column("variant", "str", "which build ran: vec4, vec1, scale_only, a fallback's name, or empty"),
    Column("family", "str", "handwritten, cutlass, cute_dsl, cublas or torch"),
    Column("track", "str", "fp32_simt, tf32_tensor or fp16_tensor"),
    Column("instruction", "str", "ffma, mma_sync or wgmma"),
    Column("arch", "str", "architecture the code was built for"),
    Column("tile", "str", "block tile, BLOCK_M x BLOCK_N x BLOCK_K in elements"),
    Column("stages", "int", "shared-memory stages"),
    Column("swizzle", "str", "threadblock or shared-memory swizzle, as the catalog states it"),
    Column("m", "int", "rows of A and C"),
    Column("n", "int", "columns of B and C"),
    Column("k", "int", "columns of A, rows of B"),
    Column("layout", "str", "A and B, r row-major or c column-major; C is row-major"),
    Column("dtype_in", "str", "type of A and B"),
    Column("dtype_acc", "str", "type of the accumulator"),
    Column("dtype_out", "str", "type of C"),
    Column("input", "str", "distribution of A and B: uniform is U[-1, 1]"),
    Column("shape_set", "str", "set that the shape was drawn from"),
    Column("ok", "bool", "whether the result passed the check; empty where it did not run"),
    Column("max_error", "float", "largest |C - reference| / (|A| @ |B|), reference in float64"),
    Column("error_bound", "float", "what max_error must not exceed, in the same unit"),
    Column("time_us", "float", "median device time of one GEMM, microseconds"),
    Column("time_us_p10", "float", "10th percentile of the samples, microseconds"),
    Column("time_us_p90", "float", "90th percentile of the samples, microseconds"),
    Column("samples", "int", "samples behind the median"),
    Column("timer", "str", "events or graph"),
    Column("l2", "str", "warm or cold"),
    Column("window", "str", "burst or sustained"),
    Column("tflops", "float", "2 m n k / time, TFLOP/s"),
    Column("x_cublas", "float", "median of paired ratios to cuBLAS, same track, layout and output type"),
    Column("x_cublas_lo", "float", "lower end of the 95 % bootstrap interval of x_cublas"),
    Column("x_cublas_hi", "float", "upper end of it"),
    Column("x_cublas_sgemm", "float", "ratio of medians to cuBLAS SGEMM at the same m, n, k"),
    Column("pct_track_peak", "float", "tflops as a percentage of the track's datasheet peak"),
    Column("pct_track_peak_at_clock", "float", "the same at the SM clock that was observed"),
    Column("pct_fp16_peak", "float", "tflops as a percentage of the FP16 Tensor Core datasheet peak"),
    Column("pct_ceiling", "float", "tflops as a percentage of ceiling_tflops"),
    Column("ceiling_tflops", "float", "register-only loop of the same instruction, same run and window"),
    Column("sm_clock_mhz", "float", "SM clock while the samples were taken"),
    Column("power_w", "float", "board power over a window of at least 200 ms"),
    Column("throttle", "str", "none, or NVML's reasons joined by +"),
    Column("unstable", "bool", "whether rounds disagreed by more than the method allows"),
    Column("registers", "int", "registers per thread of the kernel with the most work"),
    Column("spill_bytes", "int", "bytes spilled"),
    Column("smem_bytes", "int", "shared memory per block, static plus dynamic, bytes"),
    Column("occupancy_pct", "float", "resident warps over the most an SM can hold, percent"),
    Column("kernel_name", "str", "entry symbol that ran; several are joined by +"),
    Column("compiler", "str", "what built it"),
    Column("is_default", "bool", "whether a library picks this plan when nothing is specified"),
    Column("skipped_because", "str", "why the contender did not run the problem; such rows keep ok empty"),
    Column("gpu_name", "str", "device that the row's group was on, as its driver reports it"),
    Column("gpu_index", "int", "index of that GPU on its machine, as nvidia-smi counts"),
    Column("gpu_uuid_hash", "str", "hash of its UUID: tells equal cards apart without naming them"),
    Column("retried_because", "str", "where the group was begun before it was finished here, and why it was not there"),
)
"""Every column of rows.csv, in order."""

ADDED: frozenset[str] = frozenset({"gpu_name", "gpu_index", "gpu_uuid_hash", "retried_because"})
"""Columns that runs recorded before they existed lack; they are read as not measured."""

NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)

KEY: tuple[str, ...] = (
    "name", "variant", "m", "n", "k", "layout", "dtype_in", "dtype_out", "input", "window", "l2",
)  # fmt: skip
"""Columns that tell one row of a run from another."""


def row(**values: Any) -> dict[str, Any]:
    """A row with every column, None where no value is given.

    Raises:
        KeyError: a name that is no column.
    """
    unknown = sorted(set(values) - set(NAMES))
    if unknown:
        raise KeyError(f"no such column: {', '.join(unknown)}")
    return {name: values.get(name) for name in NAMES}
