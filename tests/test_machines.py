"""Machines that differ from this one: no toolkit, two toolkits, old GPUs, several GPUs, slices of one."""

import dataclasses
import json
import stat

import numpy as np
import pytest

from compare import doctor, driver, job
from compare.checking import choose_executor
from compare.cli import main
from handwritten import catalog
from kernel import build, toolchain
from kernel.contract import Unit
from kernel.errors import MissingToolError, NoDeviceError, UsageError
from kernel.gemm import gemm
from kernel.machine.engine import engine
from tests import host_gpu

SOURCE = 'extern "C" __global__ void __launch_bounds__(64) twice(float* p) { p[threadIdx.x] *= 2.0f; }\n'


def device(ordinal=0, name="NVIDIA H200", capability=(9, 0)):
    return driver.Device(
        ordinal=ordinal, name=name, compute_capability=capability, sm_count=132, memory_bytes=2**37, l2_bytes=2**25
    )


def machine(*devices, problem=""):
    return driver.Driver(version="13.0", devices=devices, problem=problem)


H200, V100 = device(), device(name="Tesla V100-SXM2-16GB", capability=(7, 0))
PAIR = machine(V100, device(ordinal=1))


@pytest.fixture
def fresh_tools():
    """Tools are looked for anew in the test, and anew after it."""
    searches = toolchain.find, toolchain.architectures
    for search in searches:
        search.cache_clear()
    yield
    for search in searches:
        search.cache_clear()


def toolkit(folder, version):
    """A toolkit whose nvcc states a version and compiles nothing."""
    (folder / "bin").mkdir(parents=True)
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {version[:4]}, V{version}"\n')
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.nvcc
def test_without_a_toolkit_what_is_built_runs_and_the_rest_has_a_cure(monkeypatch, tmp_path, fresh_tools):
    kernel = catalog.get("v2_block_tile")
    for unit in kernel.units():
        build.artifact(unit)
    engine()
    build._memo.clear()
    toolchain.find.cache_clear()
    monkeypatch.setattr(toolchain, "candidates", lambda name: iter(()))
    a, b = np.eye(9, dtype=np.float32), np.ones((9, 5), np.float32)
    with host_gpu.installed(monkeypatch):
        np.testing.assert_array_equal(gemm(kernel, a, b).c, b)
        monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path))
        build._memo.clear()
        with pytest.raises(MissingToolError, match=r"nvcc was not found.*pip install nvidia-cuda-nvcc"):
            gemm(kernel, a, b)
        monkeypatch.delenv("GEMM_TRACKS_CACHE")
        np.testing.assert_array_equal(gemm(kernel, a, b).c, b)
    monkeypatch.setattr(driver, "query", lambda: machine(H200))
    first = doctor.examine().first_failing
    assert first.check in ("g++", "nvcc")
    assert "install" in first.cure


@pytest.mark.nvcc
def test_of_two_toolkits_the_one_in_use_is_named_and_their_builds_are_kept_apart(monkeypatch, tmp_path, fresh_tools):
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "twice.cu").write_text(SOURCE)
    unit = Unit(name="twice", arch="sm_90a", source=tmp_path / "twice.cu")
    built = build.artifact(unit)
    wheel = toolchain.find("nvcc")
    home, other = toolkit(tmp_path / "cuda-12.4", "12.4.131"), toolkit(tmp_path / "cuda-11.8", "11.8.89")
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setenv("PATH", f"{other / 'bin'}:/usr/bin:/bin")
    toolchain.find.cache_clear()
    assert toolchain.find("nvcc") == wheel, "the wheel's compiler is the one that the cubins were seen to load from"
    original = toolchain.candidates
    for absent, version, origin in ((("wheel",), "12.4.131", "CUDA_HOME"), (("wheel", "CUDA_HOME"), "11.8.89", "PATH")):
        monkeypatch.setattr(
            toolchain, "candidates", lambda name, absent=absent: (c for c in original(name) if c[0] not in absent)
        )
        toolchain.find.cache_clear()
        found = toolchain.find("nvcc")
        assert (found.version, found.origin) == (version, origin)
        build._memo.clear()
        assert build.lookup(unit) is None, "an artifact of another compiler must not be taken for this one's"
        assert version in doctor._tool("nvcc", doctor.BASE).found
    monkeypatch.setattr(toolchain, "candidates", original)
    toolchain.find.cache_clear()
    build._memo.clear()
    assert build.lookup(unit) == built


def test_a_compiler_that_does_not_run_is_named(monkeypatch, tmp_path, fresh_tools):
    broken = tmp_path / "nvcc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(toolchain, "candidates", lambda name: iter([("PATH", broken)]))
    with pytest.raises(MissingToolError, match=f"Found but not runnable: {broken}"):
        toolchain.find("nvcc")
    monkeypatch.setattr(
        toolchain, "find", lambda name: toolchain.Tool(name=name, path=broken, version="1.2.3", origin="")
    )
    with pytest.raises(MissingToolError, match="list-gpu-code failed"):
        toolchain.architectures()


@pytest.mark.parametrize("capability", [(7, 0), (8, 0), (8, 9), (10, 0), (12, 0)])
def test_another_architecture_is_a_reason_with_recorded_results_beside_it(monkeypatch, capability, capsys):
    old = dataclasses.replace(V100, compute_capability=capability)
    monkeypatch.setattr(driver, "query", lambda: machine(old))
    monkeypatch.setattr(job.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(job, "build", lambda chosen: {})
    assert main(["compare", "--kernels", "v0_naive", "--shapes", "4096", "--json"]) == 0
    captured = capsys.readouterr()
    assert f"has compute capability {capability[0]}.{capability[1]}; kernels here are for sm_90a" in captured.err
    assert json.loads(captured.out)["recorded"] is True
    for words in (["--record"], ["--out", "somewhere"], ["--device", "0"]):
        assert main(["compare", *words]) == 3
        assert "sm_90a" in capsys.readouterr().err
    finding = doctor._driver(machine(old))
    assert not finding.ok
    assert "9.0 alone" in finding.cure


def test_a_gpu_too_old_for_the_timers_own_kernels_is_a_reason_even_for_libraries():
    from compare.contenders import contenders

    assert "7.0" in job.too_old(V100, contenders(["cublas_sgemm"]))
    assert job.too_old(dataclasses.replace(V100, compute_capability=(8, 0)), contenders(["cublas_sgemm"])) == ""
    assert job.too_old(H200, contenders(["cublas_sgemm", "v0_naive"])) == ""


def test_of_several_gpus_one_is_chosen_by_number(monkeypatch, capsys):
    assert driver.chosen(PAIR, 1).devices == (device(ordinal=1),)
    finding = doctor._driver(PAIR)
    assert not finding.ok
    assert "--device 1" in finding.cure
    assert "Tesla V100" in finding.found
    assert "NVIDIA H200" in finding.found
    monkeypatch.setattr(driver, "query", lambda: PAIR)
    monkeypatch.setattr(job.importlib.util, "find_spec", lambda name: object())
    seen = []
    monkeypatch.setattr(job, "with_gpu", lambda request, asked, *_, **more: seen.append(asked.devices) or False)
    assert main(["compare", "--device", "1"]) == 0
    assert seen == [(device(ordinal=1),)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    for words in (["compare", "--device", "2"], ["check", "--device", "gpu:2"]):
        assert main(words) == 2
        text = capsys.readouterr().err
        assert "there is no device 2; the driver shows 0 (Tesla V100-SXM2-16GB), 1 (NVIDIA H200)" in text
        assert "CUDA_VISIBLE_DEVICES='1,0'" in text


@pytest.mark.parametrize("given", ["gpu:", "gpu:x", "gpu:-1", "cpu:0", "0", "cuda", "GPU"])
def test_a_device_is_gpu_with_a_number_or_cpu(given):
    with pytest.raises(UsageError, match="gpu:1"):
        choose_executor(given)


@pytest.mark.parametrize("visible", ["MIG-0b1c2d3e-0000-1111-2222-333344445555", "GPU-0b1c", "", "7", "1,0"])
def test_whatever_is_visible_is_counted_from_0_and_shown_as_it_was_set(monkeypatch, visible, capsys):
    """UUIDs of GPUs and slices are the driver's to read; nothing here takes the variable for a number."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert doctor.visible_devices() == repr(visible)
    sliced = dataclasses.replace(H200, name="NVIDIA H200 MIG 1g.18gb", sm_count=16)
    assert driver.chosen(machine(sliced), 0).devices == (sliced,)
    assert sliced.slug == "nvidia-h200-mig-1g-18gb"
    monkeypatch.setattr(driver, "query", lambda: machine(problem="no GPU: the driver reports none"))
    with pytest.raises(NoDeviceError, match="the driver reports none"):
        choose_executor("gpu")
    assert main(["compare", "--device", "0"]) == 3
    assert "the driver reports none" in capsys.readouterr().err
