"""Rows for tests of the report. Their numbers are invented, round, and belong to no GPU."""

from compare.rows import row

FP32_PEAK, FP16_PEAK = 100.0, 1000.0


def timed(name, family, track, tflops, *, shape=(4096, 4096, 4096), window="sustained", **more):
    m, n, k = shape
    cublas = {"fp32_simt": 50.0, "tf32_tensor": 300.0, "fp16_tensor": 600.0}[track]
    dtype = "float16" if track == "fp16_tensor" else "float32"
    peak = FP16_PEAK if track == "fp16_tensor" else FP32_PEAK
    ratio = tflops / cublas
    values = {
        "name": name, "variant": "", "family": family, "track": track, "m": m, "n": n, "k": k, "layout": "rr",
        "dtype_in": dtype, "dtype_acc": "float32", "dtype_out": "float32", "input": "uniform", "ok": True,
        "max_error": 1e-7, "error_bound": 4e-7, "time_us": 2e-6 * m * n * k / tflops, "samples": 20, "l2": "warm",
        "window": window, "tflops": tflops, "x_cublas": ratio, "x_cublas_lo": ratio - 0.002,
        "x_cublas_hi": ratio + 0.002, "x_cublas_sgemm": tflops / 50.0, "pct_track_peak": 100 * tflops / peak,
        "pct_fp16_peak": 100 * tflops / FP16_PEAK, "unstable": False, "kernel_name": name, "is_default": False,
    }  # fmt: skip
    return row(**{**values, **more})


def skipped(name, family, track, reason, shape=(4096, 4096, 4096)):
    m, n, k = shape
    return row(
        name=name, family=family, track=track, m=m, n=n, k=k, layout="rr", input="uniform", skipped_because=reason
    )


def failed(name, family, track, shape=(4096, 4096, 4096)):
    m, n, k = shape
    return row(
        name=name, family=family, track=track, m=m, n=n, k=k, layout="rr", input="uniform", ok=False,
        max_error=0.5, error_bound=4e-7, skipped_because="5 of 9 elements wrong",
    )  # fmt: skip


def full_run():
    """A run with every family: two windows, a default and a best CUTLASS kernel, one refusal, one failure."""
    rows = []
    for shape in ((1024, 1024, 1024), (4096, 4096, 4096)):
        for window in ("burst", "sustained"):
            if window == "sustained" and shape[0] == 1024:
                continue
            more = {"shape": shape, "window": window}
            rows += [
                timed("cublas_sgemm", "cublas", "fp32_simt", 50.0, kernel_name="sm80_sgemm_256x128", **more),
                timed("v0_naive", "handwritten", "fp32_simt", 5.0, **more),
                timed("v7_best", "handwritten", "fp32_simt", 49.0, **more),
                timed("cutlass_simt_a_default", "cutlass", "fp32_simt", 48.0, is_default=True, **more),
                timed("cutlass_simt_b", "cutlass", "fp32_simt", 49.5, **more),
                timed("cublas_fp16", "cublas", "fp16_tensor", 600.0, **more),
            ]
    rows.append(skipped("cutlass_fp16_c", "cutlass", "fp16_tensor", "n = 4095 is no multiple of 8"))
    rows.append(failed("v1_broken", "handwritten", "fp32_simt"))
    return rows
