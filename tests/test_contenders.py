"""Contenders: what the catalogs become, how names are chosen, and that looking costs nothing."""

import subprocess
import sys

import pytest

from compare.contenders import KernelContender, choose, contenders, every_contender, settled_variant
from compare.libraries import LIBRARIES, captured_names
from kernel.contract import FAMILIES, LAYOUTS, TRACKS, Pointers
from kernel.errors import CatalogError, GemmTracksError, MissingToolError, NoDeviceError, RejectedError
from tests.wrong_kernels.catalog import RIGHT

SGEMM = next(c for c in LIBRARIES if c.name == "cublas_sgemm")
TORCH = next(c for c in LIBRARIES if c.name == "torch_sgemm")


def test_every_contender_is_complete_and_ordered_by_family():
    found = every_contender()
    assert [FAMILIES.index(c.family) for c in found] == sorted(FAMILIES.index(c.family) for c in found)
    assert len({c.name for c in found}) == len(found)
    for contender in found:
        assert contender.track in TRACKS
        assert set(contender.layouts) <= set(LAYOUTS)
        assert contender.layouts
        assert contender.summary
    assert {"handwritten", "cublas", "torch"} <= {c.family for c in found}


def test_libraries_cover_every_track_and_layout():
    assert {c.name for c in LIBRARIES} == {
        "cublas_sgemm", "cublas_tf32", "cublas_fp16", "cublas_fp16_f32out", "cublaslt_fp16",
        "torch_sgemm", "torch_tf32", "torch_fp16",
    }  # fmt: skip
    for contender in LIBRARIES:
        assert contender.layouts == LAYOUTS
        assert contender.dtype_acc == "float32"
        assert contender.problem(3, 4, 5).dtype_in == contender.dtype_in


def test_names_and_globs_choose_in_catalog_order():
    names = [c.name for c in contenders(["torch_*", "cublas_sgemm,cublas_tf32"])]
    assert names == ["cublas_sgemm", "cublas_tf32", "torch_sgemm", "torch_tf32", "torch_fp16"]
    assert [c.name for c in contenders("torch_tf*,cublas_sgemm")] == ["cublas_sgemm", "torch_tf32"]
    assert contenders(None) == contenders([]) == every_contender()
    assert [c.name for c in choose(LIBRARIES, ["cublas_fp16*"])] == ["cublas_fp16", "cublas_fp16_f32out"]


@pytest.mark.parametrize(
    ("pattern", "hint"), [("cublas_sgem", "cublas_sgemm"), ("torch_fp61", "torch_fp16"), ("zzzz", "gemm-tracks list")]
)
def test_unknown_name_is_an_error_with_the_nearest_ones(pattern, hint):
    with pytest.raises(CatalogError, match=hint):
        choose(LIBRARIES, ["cublas_sgemm", pattern])


def test_two_of_one_name_are_refused(monkeypatch):
    import compare.libraries

    monkeypatch.setattr(compare.libraries, "LIBRARIES", (*LIBRARIES, SGEMM))
    with pytest.raises(CatalogError, match="cublas_sgemm"):
        every_contender.__wrapped__()


def test_kernel_contender_answers_for_its_kernel():
    contender = KernelContender.of(RIGHT)
    assert (contender.name, contender.tile, contender.track) == (RIGHT.name, RIGHT.tile, RIGHT.track)
    problem = contender.problem(5, 4, 3)
    assert contender.rejects(problem) is None
    assert contender.variant(problem) == ""
    assert contender.variant(problem.replace(alpha=0.0)) == "scale_only"
    assert contender.variant(contender.problem(0, 4, 3)) == "empty"
    assert "layout" in contender.rejects(contender.problem(5, 4, 3, layout="cc"))
    assert "float16" in contender.rejects(problem.replace(dtype_in="float16"))


def test_library_rejects_what_it_cannot_take():
    problem = SGEMM.problem(5, 4, 3)
    assert SGEMM.rejects(problem) is None
    assert settled_variant(problem) == SGEMM.variant(problem) == ""
    assert SGEMM.variant(problem.replace(k=0, lda=3)) == "scale_only"
    assert "data types" in SGEMM.rejects(problem.replace(dtype_out="float16"))
    assert "leading dimension" in SGEMM.rejects(problem.replace(lda=2**31))
    with pytest.raises(RejectedError, match="data types"):
        SGEMM.prepare(problem.replace(dtype_in="float16"), Pointers(a=0, b=0, c=0), 0)


@pytest.mark.parametrize("contender", [SGEMM, TORCH, KernelContender.of(RIGHT)], ids=lambda c: c.name)
def test_without_a_gpu_running_is_a_typed_error(contender):
    from kernel.launch import has_device

    if has_device():
        pytest.skip("a GPU is here")
    with pytest.raises((NoDeviceError, MissingToolError)):
        contender.prepare(contender.problem(5, 4, 3), Pointers(a=256, b=256, c=256), 0)
    with pytest.raises(GemmTracksError):
        raise NoDeviceError("typed")


def test_needs_names_what_is_missing(monkeypatch):
    from compare import contenders as module

    kernel = KernelContender.of(RIGHT)
    monkeypatch.setattr(module, "is_installed", lambda name: name != "cupy")
    monkeypatch.setattr(module, "_has_tool", lambda name: False)
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    assert kernel.needs() == "cupy-cuda13x, nvcc"
    monkeypatch.setenv("GEMM_TRACKS_BUNDLE", "/nowhere")
    assert kernel.needs() == "cupy-cuda13x"
    monkeypatch.setattr(module, "is_installed", lambda name: True)
    assert kernel.needs() == ""


def test_packages_that_kernels_run_and_are_built_with_are_named(monkeypatch):
    from compare import contenders as module

    (cutlass,) = contenders(["cutlass_simt_128x128x5_s1_rr"])
    monkeypatch.setattr(module, "is_installed", lambda name: False)
    monkeypatch.setattr(module, "_has_tool", lambda name: True)
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    assert KernelContender.of(RIGHT).needs() == "cupy-cuda13x, cuda-bindings"
    assert cutlass.needs() == "cupy-cuda13x, cuda-bindings, nvidia-cutlass"


def test_a_module_of_a_package_that_is_not_there_is_not_installed():
    from compare.contenders import is_installed

    assert is_installed("json.decoder")
    assert not is_installed("no_such_package_of_anyone")
    assert not is_installed("no_such_package_of_anyone.part")


def test_listing_imports_no_heavy_package():
    code = (
        "import sys; from compare.contenders import contenders; [(c.name, c.needs()) for c in contenders()];"
        "import compare.check, compare.shapes, compare.inputs, compare.sanitize;"
        "print([m for m in ('cupy', 'torch', 'pandas', 'numba', 'cuda.bindings.driver', 'cutlass_cppgen') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_capture_is_written_against_the_installed_driver_binding():
    driver = pytest.importorskip("cuda.bindings.driver")
    assert callable(captured_names)
    for name in (
        "cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphGetNodes", "cuGraphNodeGetType",
        "cuGraphKernelNodeGetParams", "cuFuncGetName", "cuKernelGetName", "cuGraphDestroy",
    ):  # fmt: skip
        assert hasattr(driver, name)
