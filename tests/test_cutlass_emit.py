"""Emission: reproducible, from any folder, with any cuda-python, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_ref import emit as emitter
from cutlass_ref.catalog import FP16_DEFAULTS, KERNELS, TF32_DEFAULTS, get
from cutlass_ref.emit import default_facts, emit, include_folders, run_child
from kernel.errors import BuildError, MissingToolError

pytestmark = pytest.mark.cppgen

SIMT = get("cutlass_simt_128x128x5_s1_rr").recipe
ROOT = Path(__file__).resolve().parents[1]


def emitted_in_a_fresh_process(recipes, *, seed="0", cwd=None, path=()):
    """What a child of its own answers, without the cache."""
    code = (
        "import json, sys; from dataclasses import asdict; from cutlass_ref import emit; "
        "from cutlass_ref.recipe import Recipe; "
        "wanted = json.loads(sys.stdin.read()); "
        "print(json.dumps(emit.run_child({'do': 'emit', 'recipes': wanted})))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT)]),
        "PYTHONHASHSEED": seed,
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([vars(recipe) for recipe in recipes]),
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_every_entry_is_emitted_with_the_words_of_its_recipe():
    for kernel in KERNELS:
        emitted = emit(kernel.recipe)
        m, n, k = kernel.recipe.block
        assert f"struct {emitted.name}_type" in emitted.type_text
        if kernel.recipe.arch == 90:
            assert f"cute::Shape<cute::_{m}, cute::_{n}, cute::_{k}>" in emitted.type_text
            assert f"cute::Shape<cute::_{kernel.tile.CLUSTER_M},cute::_{kernel.tile.CLUSTER_N},cute::_1>" in (
                emitted.type_text
            )
            assert "__launch_bounds__" in emitted.kernel_text
        else:
            assert f"GemmShape<{m}, {n}, {k}>" in emitted.type_text
            if kernel.recipe.swizzle:
                assert f"GemmIdentityThreadblockSwizzle<{kernel.recipe.swizzle}>" in emitted.type_text
        assert ("OpClassSimt" in emitted.type_text) == (kernel.track == "fp32_simt")
        assert ("simt_sgemm" in emitted.name) == (kernel.track == "fp32_simt")
        assert ("OpMultiplyAddFastF32" in emitted.type_text) == kernel.recipe.three_pass
        assert ("cutlass::half_t" in emitted.type_text) == (kernel.dtype_in == "float16")


def test_swizzles_differ_in_text_though_the_package_gives_them_one_symbol():
    texts = [emit(SIMT.replace(swizzle=swizzle)) for swizzle in (1, 2, 4, 8)]
    assert len({text.name for text in texts}) == 1
    assert len({text.source for text in texts}) == 4


@pytest.mark.slow
def test_source_is_the_same_whatever_the_hash_seed_folder_and_cache():
    recipes = [SIMT, FP16_DEFAULTS[0], FP16_DEFAULTS[1]]
    answers = emitted_in_a_fresh_process(recipes, seed="1", cwd="/")
    for recipe, answer in zip(recipes, answers, strict=True):
        assert answer["type_text"] == emit(recipe).type_text
        assert answer["kernel_text"] == emit(recipe).kernel_text


@pytest.mark.slow
def test_emission_leaves_nothing_and_needs_no_writable_folder(tmp_path):
    here = tmp_path / "cwd"
    here.mkdir()
    emitted_in_a_fresh_process([SIMT], cwd=here)
    assert list(here.iterdir()) == []
    # The kernel's own file system refuses every write, for root too.
    assert emitted_in_a_fresh_process([SIMT], cwd="/proc")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["absent", "13", "12"])
def test_emission_works_with_cuda_python_absent_12_or_13(tmp_path, version):
    package = tmp_path / "cuda"
    package.mkdir()
    if version == "absent":
        (package / "__init__.py").write_text("raise ImportError('no cuda-python')\n")
    else:
        (package / "__init__.py").write_text(f"__version__ = '{version}.0.0'\n" if version == "12" else "")
        if version == "12":
            for name in ("cuda", "cudart", "nvrtc"):
                (package / f"{name}.py").write_text("")
    answer = emitted_in_a_fresh_process([SIMT], path=[tmp_path])
    assert answer[0]["type_text"] == emit(SIMT).type_text


@pytest.mark.slow
def test_two_processes_emit_at_once():
    code = (
        "from cutlass_ref.emit import run_child; from cutlass_ref.catalog import get; "
        "run_child({'do': 'emit', 'recipes': [vars(get('cutlass_simt_64x64x5_s1_rr').recipe)]})"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]


@pytest.mark.slow
def test_the_package_defaults_are_catalog_entries():
    simt = default_facts("float32", simt=True)
    assert (simt["block"], simt["stages"]) == ([256, 128, 8], 5)
    assert simt["source"] == emit(get("cutlass_simt_256x128x5_s1_rr").recipe).type_text
    for dtype, defaults in (("float16", FP16_DEFAULTS), ("float32", TF32_DEFAULTS)):
        known = {emit(recipe).type_text for recipe in defaults}
        # Which of the two it is changes from run to run, with a fixed hash seed too.
        seen = {default_facts(dtype)["source"] for _ in range(2)}
        assert seen <= known, f"{dtype}: the package picked a kernel that the catalog does not mark as default"


def test_a_plain_float32_plan_is_a_tensor_core_kernel_and_ours_is_not():
    plain = emit(TF32_DEFAULTS[0])
    assert "tf32gemm" in plain.name
    assert get("cutlass_tf32_sm90_128x256x32_2x1_autotransposed_persistent_rr_default").track == "tf32_tensor"
    assert "simt_sgemm" in emit(SIMT).name


def test_a_missing_package_is_named_and_not_confused_with_the_dsl(monkeypatch):
    monkeypatch.setattr(emitter.importlib.metadata, "version", _raise_not_found)
    emitter.package_folder.cache_clear()
    try:
        with pytest.raises(MissingToolError, match=r"nvidia-cutlass .*pip install nvidia-cutlass==4.2.0.0.*dsl"):
            include_folders()
        assert "cutlass_cppgen" in emitter.missing()
    finally:
        monkeypatch.undo()
        emitter.package_folder.cache_clear()
    assert emitter.missing() == ""


def test_another_version_or_half_of_a_package_is_named(monkeypatch):
    monkeypatch.setattr(emitter.importlib.util, "find_spec", lambda name: None)
    for version, words in (
        ("4.3.0", "nvidia-cutlass 4.3.0 is installed; the catalog was written for 4.2.0.0: pip install"),
        ("4.2.0.0", "nvidia-cutlass 4.2.0.0 is installed, but cutlass_cppgen cannot be found; pip install"),
    ):
        monkeypatch.setattr(emitter.importlib.metadata, "version", lambda name, version=version: version)
        emitter.package_folder.cache_clear()
        try:
            assert emitter.missing().startswith(words)
        finally:
            emitter.package_folder.cache_clear()


def _raise_not_found(name):
    raise emitter.importlib.metadata.PackageNotFoundError(name)


def test_what_the_package_refuses_comes_back_in_its_own_words():
    broken = {**vars(FP16_DEFAULTS[0]), "schedule": "pingpong", "scheduler": "streamk"}
    with pytest.raises(BuildError, match="streamk needs a cooperative"):
        run_child({"do": "emit", "recipes": [broken]})
