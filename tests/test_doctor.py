"""What the doctor says on machines that differ, with drivers and packages stood in for."""

import functools
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from compare import cli, doctor, driver
from compare.cli import main
from kernel import toolchain
from kernel.errors import MissingToolError

SOURCE = Path(__file__).with_name("fake_driver.cpp")


@pytest.fixture(scope="session")
def fake(tmp_path_factory):
    """Builds a driver library that answers as told."""

    @functools.cache
    def build(status=0, devices=1, version=13000, minor=0):
        library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
        macros = {"INIT_STATUS": status, "DEVICES": devices, "VERSION": version, "MINOR": minor}
        flags = [f"-D{name}={value}" for name, value in macros.items()]
        try:
            compiler = toolchain.find("g++").path
        except MissingToolError as error:
            pytest.skip(str(error))
        subprocess.run([compiler, "-shared", "-fPIC", *flags, SOURCE, "-o", library], check=True)
        return str(library)

    return build


def test_a_good_driver_is_described(fake):
    found = driver.query(fake())
    assert (found.version, found.problem) == ("13.0", "")
    (device,) = found.devices
    assert (device.name, device.slug) == ("NVIDIA Test-GPU 9", "nvidia-test-gpu-9")
    assert (device.compute_capability, device.sm_count, device.l2_bytes) == ((9, 0), 7, 2**20)


def test_no_gpu_is_said_only_when_the_driver_reports_none(fake, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert driver.query("libcuda-that-is-not-there.so.1").problem.startswith("no NVIDIA driver")
    assert driver.query(fake(status=100)).problem == "no GPU: the driver reports none"
    assert driver.query(fake(devices=0)).problem == "no GPU: the driver reports none"
    refused = driver.query(fake(status=803)).problem
    assert "no GPU" not in refused
    assert "803" in refused
    assert "CUDA_ERROR_TEST" in refused


def test_an_error_that_the_driver_cannot_name_is_unknown():
    nameless = types.SimpleNamespace(cuGetErrorName=lambda status, where: 1)
    assert driver._error_name(nameless, 12345) == "unknown error"


@pytest.mark.parametrize("value", ["", "7", "MIG-0b1c", "GPU-0b1c"])
def test_hidden_devices_are_named_as_the_reason(fake, monkeypatch, value):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert f"CUDA_VISIBLE_DEVICES={value!r}" in driver.query(fake(status=100)).problem
    assert not driver.query(fake()).problem


@pytest.fixture
def packages(monkeypatch):
    """Stands in for what is installed."""

    def set_to(**versions):
        named = {name.replace("_", "-"): version for name, version in versions.items()}
        monkeypatch.setattr(doctor, "_version", lambda name: named.get(name, ""))

    return set_to


def test_bindings_newer_than_the_driver_are_named(packages, fake):
    packages(cuda_bindings="13.4.4")
    finding = doctor._bindings(driver.query(fake(version=12040)))
    assert not finding.ok
    assert "cuda-bindings<13" in finding.cure
    assert doctor._bindings(driver.query(fake(version=13000))).ok
    packages(cuda_bindings="12.6.0")
    assert doctor._bindings(driver.query(fake(version=13000))).ok


def test_the_dsl_never_stands_in_for_nvidia_cutlass(packages, monkeypatch):
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    packages(nvidia_cutlass_dsl="4.8.0")
    finding = doctor._cutlass()
    assert not finding.ok
    assert "another package" in finding.found
    assert "nvidia-cutlass==" in finding.cure


def test_nvidia_cutlass_without_its_module_is_not_enough(packages, monkeypatch):
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    packages(nvidia_cutlass="4.2.0.0")
    finding = doctor._cutlass()
    assert (finding.ok, finding.found) == (False, "4.2.0.0, without cutlass_cppgen")


def test_missing_bindings_are_named(packages, fake):
    packages()
    finding = doctor._bindings(driver.query(fake()))
    assert (finding.ok, finding.found) == (False, "not installed")
    assert "gemm-tracks[gpu]" in finding.cure


def test_a_cache_that_cannot_be_written_is_named_with_its_cure(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "file"))
    finding = doctor._cache()
    assert not finding.ok
    assert str(tmp_path / "file") in finding.found
    assert finding.cure == "set GEMM_TRACKS_CACHE to a folder that can be written"
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path))
    assert doctor._cache().ok


def test_a_bundle_without_its_manifest_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    assert doctor.bundle() == "none"
    monkeypatch.setenv("GEMM_TRACKS_BUNDLE", str(tmp_path))
    assert doctor.bundle() == f"{tmp_path} (no manifest.json there)"
    (tmp_path / "manifest.json").write_text("{}")
    assert doctor.bundle() == str(tmp_path)


def test_an_nvcc_of_a_newer_major_than_the_driver_is_named(fake, monkeypatch):
    tool = toolchain.Tool(name="nvcc", path=Path("nvcc"), version="13.0.88", origin="PATH")
    same, older = driver.query(fake(version=13000)), driver.query(fake(version=12080))
    monkeypatch.setattr(toolchain, "find", lambda name: tool)
    assert doctor._toolkit_against_driver(same).ok
    assert not doctor._toolkit_against_driver(older).ok


class Distribution:
    def __init__(self, name, version="1"):
        self.metadata = {"Name": name}
        self.version = version


def test_two_cuda_majors_side_by_side_are_named(monkeypatch):
    both = [Distribution("nvidia-cublas-cu12"), Distribution("nvidia-cublas-cu11"), Distribution("numpy")]
    monkeypatch.setattr(doctor.importlib.metadata, "distributions", lambda: both)
    finding = doctor._one_cuda_major()
    assert not finding.ok
    assert "CUDA 11 (nvidia-cublas-cu11), CUDA 12 (nvidia-cublas-cu12)" in finding.found


def test_libraries_without_a_major_in_their_names_have_one_in_their_version(monkeypatch):
    found = [Distribution("nvidia-cuda-runtime", "13.0.96"), Distribution("nvidia-cuda-nvcc", "12.9")]
    monkeypatch.setattr(doctor.importlib.metadata, "distributions", lambda: found)
    assert doctor._one_cuda_major().found == "CUDA 13 (nvidia-cuda-runtime)"
    found.append(Distribution("nvidia-cublas-cu12"))
    assert not doctor._one_cuda_major().ok
    found.clear()
    assert doctor._one_cuda_major().found == "no CUDA library in wheels"


def test_the_last_line_is_a_sentence(monkeypatch, capsys):
    absent = driver.Driver(version="", devices=(), problem="no NVIDIA driver: it is not there")
    monkeypatch.setattr(driver, "is_installed", lambda: False)
    cli.print_diagnosis(doctor.Diagnosis(findings=(finding("a", "base", True),), driver=absent))
    assert capsys.readouterr().out.endswith("is here. No NVIDIA driver: it is not there.\n")


def test_of_two_cupys_one_is_to_be_kept(monkeypatch, packages):
    both = [Distribution("cupy-cuda12x"), Distribution("CuPy-CUDA13x"), Distribution("numpy")]
    monkeypatch.setattr(doctor.importlib.metadata, "distributions", lambda: both)
    packages(cupy_cuda12x="13.0", cupy_cuda13x="14.2")
    found = doctor._cupy()
    assert (found.ok, found.found) == (False, "cupy-cuda12x 13.0, cupy-cuda13x 14.2")
    assert found.cure == "keep one: pip uninstall cupy-cuda12x"


def finding(check, need, ok):
    return doctor.Finding(check=check, need=need, ok=ok, found="")


def test_gpu_checks_count_only_where_a_driver_is_installed(monkeypatch):
    findings = (finding("a", "base", True), finding("b", "gpu", False), finding("c", "extra", False))
    absent, present = (
        driver.Driver(version="", devices=(), problem="x"),
        driver.Driver(version="13.0", devices=(), problem="x"),
    )
    monkeypatch.setattr(driver, "is_installed", lambda: False)
    assert doctor.Diagnosis(findings=findings, driver=absent).first_failing is None
    assert doctor.Diagnosis(findings=findings, driver=present).first_failing.check == "b"
    worse = (*findings[1:], finding("d", "base", False))
    assert doctor.Diagnosis(findings=worse, driver=absent).first_failing.check == "d"


def test_the_command_answers_on_this_machine():
    done = subprocess.run(
        [sys.executable, "-m", "compare", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    answer = json.loads(done.stdout)
    assert done.returncode == (3 if answer["first_failing"] else 0)
    checks = [f["check"] for f in answer["findings"]]
    assert {"Python", "g++", "nvcc", "driver and GPU", "cuda-bindings"} <= set(checks)
    assert all(f["cure"] for f in answer["findings"] if not f["ok"])


@pytest.mark.parametrize(
    ("ok", "problem", "status", "says"),
    [
        (False, "no GPU: none", 3, "\nFirst failing check: nvcc: not found\nCure: pip install it\n"),
        (True, "no GPU: none", 0, "\nAll that is needed without a GPU is here. No GPU: none.\n"),
        (True, "", 0, "\nAll checks passed: kernels can be built and run here.\n"),
    ],
)
def test_the_command_ends_with_what_to_do_first(ok, problem, status, says, monkeypatch, capsys):
    one = doctor.Finding(check="nvcc", need="base", ok=ok, found="13.0" if ok else "not found", cure="pip install it")
    asked = driver.Driver(version="", devices=(), problem=problem)
    monkeypatch.setattr(doctor, "examine", lambda: doctor.Diagnosis(findings=(one,), driver=asked))
    assert main(["doctor"]) == status
    answer = capsys.readouterr().out
    assert answer.startswith("ok   nvcc  13.0\n" if ok else "FAIL nvcc  not found\n")
    assert answer.endswith(says)


NVML_SOURCE = """
#include <cstring>
struct Process { unsigned pid; unsigned long long used; unsigned gpu, compute; };
extern "C" {
int nvmlInit_v2() { return INIT; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
    *handle = (void*)1;
    return std::strcmp(uuid, "GPU-known");
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) { *handle = (void*)1; return index > 3; }
int nvmlDeviceGetIndex(void*, unsigned* index) { *index = 3; return 0; }
#ifdef PROCESSES
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* found) {
    for (unsigned i = 0; i < 3; i++) found[i] = Process{i ? 1000000000 + i : SELF, 1, 0, 0};
    *count = 3;
    return PROCESSES;
}
#endif
}
"""


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    """Puts a management library that answers as told into the real one's place."""

    def build(**macros):
        library, source = tmp_path / f"nvml{len(list(tmp_path.iterdir()))}.so", tmp_path / "nvml.cpp"
        source.write_text(NVML_SOURCE)
        flags = [f"-D{name}={value}" for name, value in {"INIT": 0, "SELF": os.getpid(), **macros}.items()]
        compiler = toolchain.find("g++").path
        subprocess.run([compiler, "-shared", "-fPIC", *flags, source, "-o", library], check=True)
        monkeypatch.setattr(driver, "_nvml", functools.partial(WHOLE_NVML, str(library)))

    return build


WHOLE_NVML = driver._nvml


def device(index):
    return driver.Device(
        ordinal=0, name="made up", compute_capability=(9, 0), sm_count=1, memory_bytes=1, l2_bytes=1, index=index
    )


def test_who_else_computes_on_a_gpu_is_counted_where_the_driver_tells(nvml):
    nvml(PROCESSES=0)
    assert driver.other_processes(device(0)) == 2
    assert driver.other_processes(device(9)) is None
    assert driver.other_processes(device(None)) is None
    assert driver._nvml_index("GPU-known") == 3
    assert driver._nvml_index("MIG-slice") is None
    for macros in ({"PROCESSES": 1}, {}, {"INIT": 9}):
        nvml(**macros)
        assert driver.other_processes(device(0)) is None


def test_no_management_library_is_no_answer(monkeypatch):
    monkeypatch.setattr(driver, "_nvml", functools.partial(WHOLE_NVML, "libnvml-that-is-nowhere.so"))
    assert driver.other_processes(device(0)) is None
    assert driver._nvml_index("GPU-known") is None
