import pytest

from compare import credibility
from compare.credibility import SelfTest, check_rate, check_repeats, check_scaling, check_times, check_types
from compare.peaks import peak
from compare.statistics import Interval
from kernel.contract import Problem
from kernel.errors import CheckError

CUBE = Problem(m=1024, n=1024, k=1024)
H200 = peak("NVIDIA H200", "fp32_simt", 132)


@pytest.mark.parametrize("value", [0.0, -1e-6, float("nan"), float("inf")])
def test_a_time_is_positive_and_finite(value):
    with pytest.raises(CheckError, match="sample 1"):
        check_times("v1", [1e-3, value])


def test_times_grow_with_the_launches():
    check_repeats("v1", 1e-4, 0.95e-4)
    with pytest.raises(CheckError, match="does not grow with the work"):
        check_repeats("v1", 1e-4, 0.5e-4)


def test_times_grow_with_the_operations():
    flops = [2 * size**3 for size in (1024, 2048, 4096, 8192)]
    check_scaling("cublas", list(zip(flops, [58e-6, 342e-6, 2.69e-3, 21.5e-3], strict=True)))
    check_scaling("latency bound", [(2 * 256**3, 5e-6), (2 * 512**3, 5.5e-6)])
    with pytest.raises(CheckError, match="512 times the operations take"):
        check_scaling("not waited for", [(flops[0], 55e-6), (flops[3], 57e-6)])


def test_a_row_that_did_not_take_longer_for_more_work_loses_its_time():
    from compare.rows import row

    def timed(name, size, time_us):
        return row(
            name=name, m=size, n=size, k=size, layout="rr", dtype_in="float32", dtype_out="float32",
            input="uniform", window="burst", l2="warm", ok=True, time_us=time_us, tflops=1.0, x_cublas=1.0,
        )  # fmt: skip

    rows = [timed("v1", 4096, 2700.0), timed("v1", 1024, 58.0), timed("v1", 8192, 60.0), timed("v2", 8192, 60.0)]
    # Another code path, which is slow where vectors do not divide a row, says nothing of those where they do.
    for slow, more, ok in ((4095, 8192, True), (4095, 16383, False)):
        _, larger = credibility.without_impossible([timed("v1", slow, 21e3), timed("v1", more, 21.5e3)])
        assert larger["ok"] is ok
    rows.append(row(name="v3", m=4096, n=4096, k=4096, skipped_because="why"))
    kept = credibility.without_impossible(rows)
    assert [one["time_us"] for one in kept] == [2700.0, 58.0, None, 60.0, None]
    assert kept[2]["ok"] is False
    assert kept[2]["x_cublas"] is kept[2]["tflops"] is None
    assert "times the operations" in kept[2]["skipped_because"]
    assert kept[4] == rows[4]


def test_a_tenfold_rate_is_an_error_that_names_device_type_and_clock():
    honest = CUBE.flop / 40e12
    assert check_rate("v1", CUBE, honest, H200, 1900.0) == pytest.approx(40.0)
    with pytest.raises(CheckError, match=r"v1 at 1024x1024x1024.*fp32_simt on NVIDIA H200"):
        check_rate("v1", CUBE, honest / 10, H200, 1900.0)
    with pytest.raises(CheckError, match="1000 MHz"):
        check_rate("v1", CUBE, honest, H200, 1000.0)


def test_no_work_has_no_rate():
    assert check_rate("v1", Problem(m=8, n=8, k=0), 1e-6, H200, None) is None
    assert check_rate("v1", Problem(m=0, n=8, k=8), 1e-6, H200, None) is None


def test_a_table_holds_one_type():
    check_types("v1", "tf32_tensor", CUBE)
    with pytest.raises(CheckError, match="float16 with float32 accumulation does not belong"):
        check_types("h0", "fp32_simt", CUBE.replace(dtype_in="float16"))
    with pytest.raises(CheckError, match="float16 accumulation"):
        check_types("h0", "fp16_tensor", CUBE.replace(dtype_in="float16", dtype_acc="float16"))
    with pytest.raises(CheckError, match="does not belong"):
        check_rate("h0", CUBE.replace(dtype_in="float16"), 1e-3, H200, None)


@pytest.mark.parametrize(
    ("interval", "ok"),
    [
        (Interval(1.0, 0.999, 1.001), True),
        (Interval(1.002, 0.9995, 1.003), True),
        (Interval(1.002, 1.0015, 1.003), False),
        (Interval(1.004, 0.99, 1.02), False),
        (Interval(0.99, 0.985, 0.995), False),
    ],
)
def test_self_test_verdicts(interval, ok):
    assert SelfTest("cublas", interval, "burst").ok is ok
    assert credibility.AA_TOLERANCE == 0.003
