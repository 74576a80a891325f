"""What measuring evidence answers where a GPU, its counters or a kernel are not to be had."""

import types

import numpy as np
import pytest

from compare import evidence
from compare.evidence import main
from kernel import profiler
from kernel.errors import CheckError, LaunchError, NoDeviceError

NO_PERMISSION = profiler.Profile(not_available="permission: no")


def test_without_counters_each_part_says_why(monkeypatch):
    monkeypatch.setattr(evidence, "profile_contenders", lambda shape, names: NO_PERMISSION)
    assert evidence.measure_counters() == {"not_available": "permission: no"}
    assert evidence.measure_three_ways() == {"not_available": "permission: no"}
    assert evidence._utilisation() == {}


@pytest.mark.parametrize("answer", [NO_PERMISSION, profiler.Profile(launches=(("bank_probe", {}),))])
def test_probes_that_were_not_all_counted_are_none(answer, monkeypatch):
    monkeypatch.setattr(profiler, "profile", lambda command, wanted: answer)
    assert evidence._probes() == []


@pytest.mark.parametrize("status", ["CUDA_SUCCESS", "CUDA_ERROR_INVALID_HANDLE"])
def test_the_drivers_occupancy_is_its_answer_or_its_refusal(status, monkeypatch):
    results = {name: types.SimpleNamespace(name=name) for name in ("CUDA_SUCCESS", status)}
    driver = types.SimpleNamespace(
        CUfunction=lambda address: address,
        CUresult=types.SimpleNamespace(**results),
        cuOccupancyMaxActiveBlocksPerMultiprocessor=lambda handle, threads, smem: (results[status], handle // threads),
    )
    bindings = types.SimpleNamespace(driver=driver)
    for name, module in (("cuda", types.SimpleNamespace(bindings=bindings)), ("cuda.bindings", bindings)):
        monkeypatch.setitem(evidence.sys.modules, name, module)
    function = types.SimpleNamespace(kernel=types.SimpleNamespace(ptr=512))
    if status == "CUDA_SUCCESS":
        assert evidence.driver_blocks(function, 256, 0) == 2
    else:
        with pytest.raises(CheckError, match="answered CUDA_ERROR_INVALID_HANDLE"):
            evidence.driver_blocks(function, 256, 0)


class Stream:
    def __init__(self, non_blocking):
        assert non_blocking

    def synchronize(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_a_tail_strategy_that_writes_nothing_is_an_error_and_has_no_time(monkeypatch):
    def drawn(seed):
        return types.SimpleNamespace(random_sample=np.random.default_rng(seed).random)

    runtime = types.SimpleNamespace(deviceSynchronize=lambda: None)
    cupy = types.SimpleNamespace(
        **{name: getattr(np, name) for name in ("abs", "empty", "zeros", "nan", "float32", "float64")},
        random=types.SimpleNamespace(RandomState=drawn),
        cuda=types.SimpleNamespace(Stream=Stream, runtime=runtime),
    )
    launched = []
    monkeypatch.setattr(evidence.launch, "cupy_module", lambda: cupy)
    monkeypatch.setattr(evidence.build, "artifact", lambda unit: unit)
    monkeypatch.setattr(evidence.launch, "load", lambda built, entry: lambda *_: launched.append(entry))
    with pytest.raises(CheckError, match=r"tail strategy guard at 35\^3 is wrong: error nan of \|A\| \|B\|"):
        evidence.measure_tails()
    assert launched == ["guard_16"]


def test_kernels_that_cannot_run_are_skipped_by_name_and_the_rest_is_grouped(monkeypatch):
    def contender(name, needs="", **more):
        fields = {"track": "fp32_simt", "in_default_set": True, "layouts": ("rr",), **more}
        return types.SimpleNamespace(name=name, needs=lambda: needs, **fields)

    every = (
        contender("first"),
        contender("alike"),
        contender("other"),
        contender("lacks", needs="nvcc"),
        contender("refuses"),
        contender("aside", in_default_set=False),
        contender("half", track="fp16_tensor"),
    )

    def result(one, m, n, k, low):
        if one.name == "refuses":
            raise LaunchError("the driver refused it\nsecond line")
        return (np.full((2, 2), 1.0 if one.name == "other" else 0.0),)

    monkeypatch.setattr(evidence, "contenders", lambda names=None: every[3:4] if names else every)
    monkeypatch.setattr(evidence, "_result", result)
    found = evidence.measure_numerics()
    assert found["bit_identical_groups"] == [["first", "alike"], ["other"]]
    assert found["skipped"] == {"lacks": "needs nvcc", "refuses": "the driver refused it"}
    assert found["growth"] == []


def test_the_program_refuses_parts_that_it_has_not_and_ends_with_an_errors_status(monkeypatch, tmp_path, capsys):
    assert main(["--only", "tails,nonsense"]) == 2
    assert capsys.readouterr().err == (
        "no part is called nonsense; parts: occupancy, numerics, tails, counters, three_ways\n"
    )

    def no_gpu():
        raise NoDeviceError("no GPU: none")

    monkeypatch.setitem(evidence.PARTS, "tails", no_gpu)
    assert main(["--only", "tails", "--out", str(tmp_path)]) == NoDeviceError("").exit_status == 3
    assert capsys.readouterr().err == "no GPU: none\n"
    assert list(tmp_path.iterdir()) == []
