"""The CUTLASS catalog by itself: names, rules, refusals. Needs no compiler, no package, no GPU."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

import cutlass_ref
from cutlass_ref import packers
from cutlass_ref.call import choose
from cutlass_ref.catalog import KERNELS, SIMT_TILES, entry_for, get, group, recipes
from cutlass_ref.recipe import Recipe, with_tile
from kernel.contract import LAYOUTS, Problem
from kernel.errors import BuildError, CatalogError, DtypeError, LayoutError, RejectedError, ShapeError
from kernel.plan import plan

SIMT = get("cutlass_simt_128x128x5_s1_rr")
FP16 = get("cutlass_fp16_sm90_128x256x64_2x1_cooperative_persistent_rr")
FP16_SM80 = get("cutlass_fp16_sm80_256x128x64_3stages_multistage_s1_rr")


def test_names_are_unique_identifiers_and_variants_share_their_base():
    names = [kernel.name for kernel in KERNELS]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
    for kernel in KERNELS:
        base = get(kernel.base)
        assert kernel.recipe == base.recipe
        assert kernel.group == base.group
        if kernel.name != kernel.base:
            assert kernel.name.startswith(kernel.base)
            assert not kernel.is_default


def test_all_simt_tiles_exist_in_all_layouts():
    for m, n, _, stages in SIMT_TILES:
        for layout in LAYOUTS:
            kernel = get(f"cutlass_simt_{m}x{n}x{stages}_s1_{layout}")
            assert kernel.layouts == (layout,)
            assert kernel.track == "fp32_simt"
            assert kernel.instruction == "ffma"


def test_default_set_is_what_the_project_times_by_default():
    timed = [kernel for kernel in KERNELS if kernel.in_default_set]
    assert [kernel.track for kernel in timed].count("fp32_simt") == len(SIMT_TILES)
    assert all(kernel.layouts == ("rr",) for kernel in timed)
    assert [kernel.track for kernel in timed].count("fp16_tensor") <= 10
    assert [kernel.track for kernel in timed].count("tf32_tensor") == 2
    defaults = {kernel.name for kernel in timed if kernel.is_default}
    assert {
        "cutlass_simt_256x128x5_s1_rr",
        "cutlass_fp16_sm90_128x256x64_2x1_auto_persistent_rr_default",
        "cutlass_fp16_sm90_256x128x64_1x2_auto_persistent_rr_default",
    } <= defaults
    assert {kernel.group for kernel in timed} == {"default"}


def test_package_flags_exist_for_simt_and_sm90():
    flagged = [kernel for kernel in KERNELS if kernel.package_flags]
    assert sum(kernel.instruction == "ffma" for kernel in flagged) >= 1
    assert sum(kernel.instruction == "wgmma" for kernel in flagged) >= 2
    for kernel in flagged:
        assert "-DNDEBUG" not in kernel.units()[0].flags
        assert "-DNDEBUG" in get(kernel.base).units()[0].flags
        assert kernel.units()[0].name == kernel.name


def test_only_a_default_of_the_package_may_spill():
    spilling = [kernel for kernel in KERNELS if kernel.spills]
    assert [kernel.name for kernel in spilling] == [
        "cutlass_tf32_sm90_256x128x32_1x2_autotransposed_persistent_rr_default"
    ]
    assert all(kernel.is_default for kernel in spilling)
    for kernel in KERNELS:
        assert kernel.units()[0].allow_spills == (kernel.spills or kernel.package_flags)


def test_sweeps_share_the_code_of_their_base():
    swept = [kernel for kernel in KERNELS if kernel.raster != "heuristic"]
    assert {(kernel.raster, kernel.max_swizzle) for kernel in swept} == {
        (raster, swizzle) for raster in ("along_m", "along_n") for swizzle in (1, 2, 4, 8)
    }
    for kernel in swept:
        assert kernel.units() == get(kernel.base).units()


def test_every_kernel_belongs_to_one_packer_library():
    for kernel in KERNELS:
        assert (kernel.base, kernel.recipe) in group(kernel.group).members
    assert len(recipes()) == len({kernel.base for kernel in KERNELS})


def test_default_alias_and_unknown_names():
    assert get("cutlass_simt_256x128x5_s1_rr_default") is get("cutlass_simt_256x128x5_s1_rr")
    with pytest.raises(CatalogError, match="cutlass_simt_128x128x5_s1_rr"):
        get("cutlass_simt_128x128x5_s1_r")
    with pytest.raises(CatalogError):
        get("cutlass_simt_128x128x5_s1_rr_default")


@pytest.mark.parametrize(
    ("tile", "words"),
    [
        ({"threadblock_shape": [128, 128, 8], "wrap_count": [4, 2, 1], "stages": 2}, ["wrap_count", "warp_count"]),
        ({"threadblock_shape": [100, 100, 7], "warp_count": [4, 2, 1], "stages": 4}, ["[100, 100, 7]", "k extent 7"]),
        ({"threadblock_shape": [512, 512, 8], "warp_count": [4, 2, 1], "stages": 4}, ["accumulators per thread"]),
        ({"threadblock_shape": [128, 128, 8], "warp_count": [3, 2, 1], "stages": 4}, ["not divisible by its 3 warps"]),
        ({"threadblock_shape": [96, 128, 8], "warp_count": [4, 2, 1]}, ["warp tile's m extent 24", "multiple of 16"]),
        ({"threadblock_shape": [128, 128, 8], "warp_count": [8, 8, 1]}, ["2048 threads"]),
        ({"threadblock_shape": [128, 128, 8], "warp_count": [2, 2, 2]}, ["warps along k"]),
        ({"threadblock_shape": [128, 128, 7]}, ["k extent 7"]),
        ({"threadblock_shape": [64, 64, 32]}, ["k extent 32", "4, 8 or 16"]),
        ({"threadblock_shape": [128, 128, 16], "stages": 16}, ["shared memory"]),
        ({"stages": 2}, ["3 to 16"]),
        ({"stages": 2.5}, ["integers"]),
        ({"threadblock_shape": [128, 128]}, ["3 integers"]),
        ({"cluster_shape": [2, 1, 1]}, ["no clusters"]),
    ],
)
def test_impossible_simt_tiles_are_refused_with_the_rule(tile, words):
    with pytest.raises(CatalogError) as caught:
        choose("float32", "rr", tile=tile)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("tile", "words"),
    [
        ({"threadblock_shape": [64, 256, 64], "cluster_shape": [2, 1, 1]}, ["multiple of 64"]),
        ({"threadblock_shape": [128, 256, 64], "cluster_shape": [2, 1, 1]}, ["cooperative"]),
        ({"threadblock_shape": [256, 1024, 64], "cluster_shape": [2, 1, 1]}, ["at most 256"]),
        ({"cluster_shape": [4, 4, 1]}, ["1 to 8 blocks"]),
        ({"warp_count": [4, 2, 1]}, ["warp_count does not apply"]),
        ({"cluster_shape": [2, 1, 2]}, ["cluster_shape is [2, 1, 2]", "third extent must be 1"]),
        (
            {"threadblock_shape": [129, 256, 64], "cluster_shape": [2, 1, 1]},
            ["threadblock_shape [129, 256, 64] does not divide among a cluster of [2, 1]"],
        ),
    ],
)
def test_impossible_sm90_tiles_are_refused_with_the_rule(tile, words):
    with pytest.raises(CatalogError) as caught:
        choose("float16", "rr", tile=tile)
    for word in words:
        assert word in str(caught.value)


TURNED = {"warp_count": [4, 2, 1]}
"""The same warps as in the catalog, but more of them along m than along n."""


def test_a_listed_tile_is_its_catalog_entry_and_another_gets_a_name_of_its_own():
    listed = choose("float32", "rc", tile={"threadblock_shape": [64, 64, 8], "warp_count": [2, 1, 1], "stages": 5})
    assert listed is get("cutlass_simt_64x64x5_s1_rc")
    other = choose("float32", "rr", tile={"threadblock_shape": [128, 128, 16], "warp_count": [4, 2, 1], "stages": 4})
    assert other.name == "cutlass_simt_128x128x4_k16_w4x2_s1_rr"
    assert other.packer_group().members == ((other.name, other.recipe),)
    assert not other.in_default_set
    fewer = choose("float16", "rr", kernel=FP16_SM80.name, tile={"stages": 4, "threadblock_shape": [128, 128, 32]})
    assert fewer.name not in {kernel.name for kernel in KERNELS}
    turned = choose("float16", "rr", kernel="cutlass_fp16_sm80_128x256x64_3stages_multistage_s1_rr", tile=TURNED)
    assert turned.name == "cutlass_fp16_sm80_128x256x64_3stages_multistage_s1_rr_w4x2"
    assert turned.recipe.warps == (4, 2, 1)


def test_sm90_tile_dictionaries_state_the_cluster_as_the_package_does():
    recipe = with_tile(FP16.recipe, {"threadblock_shape": [256, 256, 64], "cluster_shape": [2, 1, 1]})
    assert recipe.block == (128, 256, 64)
    assert entry_for(recipe) is FP16


def test_catalog_recipes_keep_their_own_rules():
    for recipe in recipes():
        assert recipe.objection() is None
    with pytest.raises(CatalogError, match="stream-K"):
        SIMT.recipe.replace(swizzle=0)
    with pytest.raises(CatalogError, match="streamk needs a cooperative"):
        Recipe(opclass="tensorop", arch=90, block=(64, 128, 64), schedule="pingpong", scheduler="streamk")


MMA = {"opclass": "tensorop", "dtype_in": "float16", "warps": (2, 2, 1)}
SM90 = {"arch": 90, "warps": (0, 0, 0), "stages": 0, "opclass": "tensorop", "schedule": "pingpong"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"opclass": "tensor"}, "simt or tensorop is needed"),
        ({"layout": "xx"}, "known: rr"),
        ({"block": (128, 128)}, "threadblock_shape is [128, 128]; three positive integers"),
        ({"warps": (4, True, 1)}, "warp_count is [4, True, 1]; three positive integers"),
        ({"block": (0, 128, 8)}, "threadblock_shape is [0, 128, 8]; three positive integers"),
        ({"warps": (0, 2, 1)}, "warp_count is [0, 2, 1]; three positive integers"),
        ({"block": (100, 128, 8), "warps": (3, 2, 1)}, "m extent 100 is not divisible by its 3 warps"),
        ({"warps": (2, 1, 2)}, "warps along k would split the sum"),
        ({"block": (256, 256, 8), "warps": (8, 8, 1)}, "a block has at most 1024"),
        ({"stages": 2}, "3 to 16 are supported"),
        ({"swizzle": 3}, "swizzle is 3; known"),
        ({"block": (512, 512, 8), "warps": (4, 2, 1)}, "accumulators per thread"),
        ({"block": (256, 128, 16), "stages": 16}, "bytes of shared memory"),
        ({"block": (128, 128, 32)}, "k extent 32; 4, 8 or 16 is needed"),
        ({"block": (80, 128, 8)}, "the warp tile's m extent"),
        ({"block": (192, 128, 8), "warps": (4, 2, 1)}, "48 is not a power of two"),
        ({"block": (32, 64, 4), "warps": (8, 2, 1)}, "elements (m, k) do not divide among 512 threads"),
        ({**MMA, "block": (128, 128, 24)}, "k extent 24 is not a multiple of the instruction's 16"),
        ({**MMA, "block": (120, 128, 32)}, "the warp tile's m extent 60 is not a multiple of the instruction's 16"),
        ({**SM90, "opclass": "simt"}, "no sm90 SIMT template"),
        ({**SM90, "warps": (4, 1, 1)}, "warp_count does not apply to sm90"),
        ({**SM90, "scheduler": "round robin"}, "known: schedules"),
        ({**SM90, "scheduler": "persistent", "block": (96, 128, 64)}, "m must be a multiple of 64"),
        (
            {**SM90, "scheduler": "persistent", "schedule": "cooperative", "block": (64, 128, 64)},
            "m of 128 is needed",
        ),
        ({**SM90, "scheduler": "persistent", "block": (64, 260, 64)}, "n must be a multiple of 8 and at most 256"),
        ({**SM90, "scheduler": "persistent", "block": (64, 128, 64), "cluster": (4, 4)}, "1 to 8 blocks are portable"),
    ],
    ids=str,
)
def test_each_rule_of_the_templates_is_named(changes, words):
    with pytest.raises(CatalogError) as raised:
        get("cutlass_simt_128x128x5_s1_rr").recipe.replace(**changes)
    assert words in str(raised.value)


def fp16(m, n, k, **fields):
    return Problem(m=m, n=n, k=k, dtype_in="float16", dtype_out="float16", **fields)


@pytest.mark.parametrize("shape", [(1, 1, 1), (35, 79, 19), (128, 130, 7), (4092, 17, 3)])
def test_simt_refuses_no_shape_pitch_or_alignment(shape):
    m, n, k = shape
    assert SIMT.rejects(Problem(m=m, n=n, k=k)) is None
    assert (
        SIMT.rejects(Problem(m=m, n=n, k=k, lda=k + 3, ldb=n + 1, ldc=n + 5, align_a=4, align_b=4, align_c=4)) is None
    )


@pytest.mark.parametrize("kernel", [FP16, FP16_SM80], ids=["sm90", "sm80"])
@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (fp16(64, 64, 7), ["A", "lda = 7", "multiple of 8"]),
        (fp16(1, 105, 107), ["A", "lda = 107"]),
        (fp16(128, 130, 128), ["B", "ldb = 130"]),
        (fp16(128, 128, 4092), ["A", "lda = 4092"]),
        (fp16(128, 128, 128, ldc=132), ["C", "ldc = 132"]),
        (fp16(128, 128, 128, align_a=8), ["A", "base address", "16"]),
        (fp16(128, 128, 128, align_b=2), ["B", "base address"]),
        (fp16(128, 128, 128, align_c=4), ["C", "base address"]),
    ],
)
def test_tensor_kernels_refuse_misalignment_by_operand_and_rule(kernel, problem, words):
    with pytest.raises(RejectedError) as caught:
        plan(kernel, problem)
    for word in words:
        assert word in str(caught.value)


def test_padded_rows_let_tma_clip_what_vector_loads_cannot():
    odd_k = fp16(64, 64, 7, lda=8)
    assert FP16.rejects(odd_k) is None
    assert "k = 7" in FP16_SM80.rejects(odd_k)


def test_types_and_layouts_are_refused_before_anything_is_packed():
    assert "layout is rc" in SIMT.rejects(Problem(m=8, n=8, k=8, layout="rc"))
    assert "float16" in SIMT.rejects(fp16(8, 8, 8))
    assert "32 bits" in SIMT.rejects(Problem(m=2**31 - 1, n=1, k=1))


def test_empty_and_scale_only_problems_never_reach_the_kernel():
    assert plan(FP16, fp16(0, 64, 64)).launches == ()
    assert plan(FP16, fp16(64, 64, 0)).variant == "scale_only"
    assert plan(SIMT, Problem(m=3, n=5, k=7, alpha=0.0, beta=2.0)).variant == "scale_only"


def test_sm90_kernels_exist_for_sm_90a_only():
    with pytest.raises(CatalogError, match="sm_90a"):
        dataclasses.replace(FP16, arch="sm_90").units()


def test_gemm_checks_operands_before_it_looks_for_a_gpu():
    a, b = np.zeros((8, 64), np.float16), np.zeros((96, 64), np.float16)
    with pytest.raises(ShapeError, match=r"8x64.*96x64"):
        cutlass_ref.gemm(a, b)
    with pytest.raises(DtypeError, match="float64"):
        cutlass_ref.gemm(np.zeros((64, 64)), np.zeros((64, 64), np.float32))
    with pytest.raises(TypeError, match="int32"):
        cutlass_ref.gemm(np.zeros((64, 64), np.int32), np.zeros((64, 64), np.float32))
    with pytest.raises(LayoutError, match="strides"):
        cutlass_ref.gemm(np.zeros((64, 128), np.float32)[:, ::2], np.zeros((64, 64), np.float32))
    with pytest.raises(CatalogError, match="wrap_count"):
        cutlass_ref.gemm(a, b.T, tile={"wrap_count": [4, 2, 1]})


def test_layout_decides_the_kernel_where_none_is_named():
    assert choose("float32", "cr").name == "cutlass_simt_128x256x5_s1_cr"
    assert choose("float16", "rc").layouts == ("rc",)
    for layout in LAYOUTS:
        assert choose("float32", layout).track == "fp32_simt"
        assert choose("float16", layout).dtype_acc == "float32"


def test_parameters_and_tensor_maps_that_cannot_be_described_are_build_errors(monkeypatch):
    given = dict.fromkeys(("extents", "pitches", "addresses"), (8, 8, 8))
    monkeypatch.setattr(packers, "_function", lambda group, kind, name: lambda *call: 1)
    with pytest.raises(BuildError, match=f"mine: its parameters take more than {packers.MAX_PARAMS} bytes"):
        packers.pack(SIMT.packer_group(), "mine", **given, workspace=0, alpha=1.0, beta=0.0, multiprocessors=1)
    assert packers._tensor_map("mine", packers._MapRecord(offset=-1)) is None
    for odd in ({"dtype": 3}, {"dtype": 7, "interleave": 1}, {"dtype": 7, "oob_fill": 1}):
        with pytest.raises(
            BuildError, match=r"mine: a tensor map of type \d, interleave \d and fill \d cannot be desc"
        ):
            packers._tensor_map("mine", packers._MapRecord(**odd))


def test_importing_touches_neither_the_package_nor_a_gpu_library():
    code = (
        "import sys, cutlass_ref, cutlass_ref.catalog; "
        "print([m for m in ('cutlass_cppgen','cutlass_library','cutlass','cupy','torch','pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
