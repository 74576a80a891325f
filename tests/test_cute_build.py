"""CuTe DSL kernels built without a GPU: what the DSL, the assembler and the machine code say about them."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cutlass_ref.cute.catalog import COPIES_ELSEWHERE, KERNELS, CuteAmpere, CuteHgemm, CuteSgemm, get
from cutlass_ref.cute.emit import emit
from kernel import sass
from kernel.build import artifact, write_bundle
from kernel.contract import LAYOUTS, Pointers, Problem
from kernel.disassemble import sass as listing
from kernel.gate import objections
from kernel.inspection import inspect_kernel, problem_for
from kernel.plan import plan

pytestmark = [pytest.mark.cute, pytest.mark.nvcc, pytest.mark.slow]

AT = Pointers(a=0x7F0000010000, b=0x7F0000020000, c=0x7F0000030000)
SGEMM = get("cute_sgemm")
AMPERE = get("cute_fp16_sm80_128x128x32_4stages")
HOPPER = get("cute_fp16_sm90_128x256x64_2x1_persistent")
BUILDS = [
    *((SGEMM, layout, {"align_c": align}) for layout in LAYOUTS for align in (256, 4)),
    (get("cute_sgemm_plain"), "rr", {}),
    *((kernel, layout, {}) for kernel in (AMPERE, HOPPER) for layout in LAYOUTS),
]


def of(kernel, layout, **changes):
    """(problem of one tile, its launch, the artifact behind it)."""
    problem = problem_for(kernel).replace(layout=layout, lda=0, ldb=0, **changes)
    (launch,) = plan(kernel, problem).launches
    return problem, launch, artifact(launch.unit)


def opcodes(built, entry):
    return Counter(instruction.kind for instruction in sass.parse(listing(built.cubin, entry)).instructions)


@pytest.mark.parametrize(
    ("kernel", "layout", "changes"), BUILDS, ids=lambda value: getattr(value, "name", None) or str(value)
)
def test_a_build_is_what_the_catalog_says(kernel, layout, changes):
    _, launch, built = of(kernel, layout, **changes)
    resources = built.resources[launch.entry]
    assert list(built.resources) == [launch.entry]
    assert resources.spill_bytes == resources.stack_bytes == 0
    assert resources.max_threads == launch.threads
    assert objections(launch, built) == ()
    facts = json.loads((built.folder / "facts.json").read_text())
    assert facts["dsl_seconds"] > 0
    if isinstance(kernel, CuteSgemm):
        assert facts["dynamic_smem"] == launch.dynamic_smem
    if isinstance(kernel, CuteAmpere):
        tile = [kernel.tile.BLOCK_M, kernel.tile.BLOCK_N, kernel.tile.BLOCK_K]
        assert (facts["tile"], facts["stages"], facts["threads"]) == (tile, kernel.tile.NUM_STAGES, launch.threads)
    if isinstance(kernel, CuteHgemm):
        assert (facts["stages"], facts["store_stages"]) == (kernel.tile.NUM_STAGES, kernel.store_stages)
        assert (facts["threads"], tuple(facts["store_tile"])) == (launch.threads, kernel.store_tile)
        shares = (kernel.tile.CLUSTER_N, kernel.tile.CLUSTER_M, 1)
        whole = [(box[0], box[1] * share) for box, share in zip(kernel.boxes(layout), shares, strict=True)]
        assert [tuple(stated["box"]) for stated in facts["tensor_maps"]] == whole


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_parameters_that_are_packed_are_those_of_the_ptx(kernel):
    problem, launch, built = of(kernel, kernel.layouts[0])
    text = built.ptx.read_text()
    head = re.search(rf"\.entry {re.escape(launch.entry)}\((.*?)\)", text, re.DOTALL)[1]
    bits = {"u64": 8, "b64": 8, "u32": 4, "b32": 4, "f32": 4}
    sizes = []
    for line in filter(None, map(str.strip, head.splitlines())):
        array = re.search(r"\[(\d+)\]", line)
        sizes.append(int(array[1]) if array else bits[re.search(r"\.param \.(\w+)", line)[1]])
    (values,) = kernel.pack(problem, AT)
    assert [len(value.data) for value in values] == sizes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("align", [256, 4])
def test_sgemm_is_ffma_alone(layout, align):
    _, launch, built = of(SGEMM, layout, align_c=align)
    found = opcodes(built, launch.entry)
    assert not {"HMMA", "HGMMA", "STL", "LDL", "CALL"} & set(found)
    tile = SGEMM.tile
    assert found["FFMA"] >= tile.THREAD_M * tile.THREAD_N * tile.BLOCK_K
    assert found["LDGSTS"] > 0


def test_the_tensor_kernels_use_their_instruction():
    _, launch, built = of(AMPERE, "rr")
    found = opcodes(built, launch.entry)
    assert found["HMMA"] > 0
    assert not {"HGMMA", "STL", "LDL"} & set(found)
    _, launch, built = of(HOPPER, "rr")
    found = opcodes(built, launch.entry)
    assert found["HGMMA"] > 0
    assert not {"HMMA", "STL", "LDL"} & set(found)
    assert "C7510" not in built.log.read_text()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_shared_load_of_sgemm_is_predicted_free_of_conflicts(layout):
    problem, _, _ = of(SGEMM, layout)
    found = inspect_kernel(SGEMM, problem)
    loads = [access for access in found.shared if access.kind == "load"]
    assert found.loop.by_name["LDS.128"] == 6
    assert found.loop.fma_found == found.loop.fma_expected == 8 * 16 * 8
    assert loads
    assert all(access.known and access.conflicts == 0 and access.width == 16 for access in loads)


def test_the_public_ampere_example_is_predicted_free_of_conflicts_for_m_major_a_and_k_major_b():
    problem, _, _ = of(AMPERE, "cc")
    found = inspect_kernel(AMPERE, problem)
    kinds = Counter(access.kind for access in found.shared)
    assert kinds["matrix"] == 16
    assert kinds["copy"] == 8
    assert all(access.known and access.conflicts == 0 for access in found.shared)


def test_the_split_tiler_is_in_the_lane_map():
    lane_map = inspect_kernel(SGEMM).lane_map
    assert lane_map.groups(0, 0) == ((0, 4), (32, 4))
    assert lane_map.groups(0, 1) == ((0, 4), (16, 4), (32, 4), (48, 4))


def test_the_word_in_the_entrys_name_still_changes_the_order_of_ffmas():
    """Undocumented by ptxas, so it may vanish: then cute_sgemm_plain is the same kernel, and this test says so."""
    pair = (SGEMM, get("cute_sgemm_plain"))
    texts = [of(kernel, "rr")[2].ptx.read_text() for kernel in pair]
    bodies = [re.sub(r"cute_sgemm\w*", "entry", text) for text in texts]
    assert bodies[0] == bodies[1], "the two builds must differ in the entry's name alone"
    reads = [inspect_kernel(kernel).loop.reads_per_ffma for kernel in pair]
    assert reads[0] != pytest.approx(reads[1], abs=0.01), "ptxas orders both alike: the effect is gone"


def test_builds_that_transpose_both_operands_need_their_copies_elsewhere():
    assert set(COPIES_ELSEWHERE) == {("rc", 4), ("rc", 1)}


def test_source_and_layouts_are_the_dsls():
    from compare.cli import main

    _, _, built = of(SGEMM, "rr")
    assert built.source.name == "kernel.py"
    assert "import cutlass.cute as cute" in built.source.read_text()
    assert "MMA: tiler of m (thread, its rows): ((8,2),(4,2)):((4,64),(1,32))" in built.layouts.read_text()
    _, _, nvidia = of(HOPPER, "rr")
    assert "class Sm90StaticPersistentGemmKernel" in nvidia.source.read_text()
    assert "S<3,4,3>" in nvidia.layouts.read_text()
    assert main(["inspect", "cute_sgemm", "--layouts"]) == 0


def test_layouts_follow_the_operands(capsys):
    from compare.cli import main

    assert main(["inspect", "cute_sgemm", "--layout", "cr", "--layouts"]) == 0
    text = capsys.readouterr().out
    assert "A in shared memory (m, k, stage): (128,8,5):(1,128,1024)" in text
    assert main(["inspect", "v2_block_tile", "--layouts"]) == 0
    assert "only kernels of the CuTe DSL" in capsys.readouterr().out


def test_a_bundle_serves_a_machine_without_the_dsl(tmp_path):
    kernels = (SGEMM, HOPPER)
    units = [of(kernel, "rr")[1].unit for kernel in kernels]
    write_bundle(units, tmp_path / "bundle")
    code = """
import sys
from cutlass_ref.cute import emit
emit._installed = lambda name: ""
from cutlass_ref.cute.catalog import get
from kernel.build import artifact
from kernel.contract import Pointers, Problem
from kernel.plan import arguments, plan
for name, dtype in (("cute_sgemm", "float32"), (sys.argv[1], "float16")):
    kernel = get(name)
    problem = Problem(m=256, n=256, k=256, dtype_in=dtype, dtype_out=dtype)
    (launch,) = plan(kernel, problem).launches
    built = artifact(launch.unit)
    assert launch.entry in built.resources
    assert built.cubin.is_file() and built.layouts.is_file() and built.source.name == "kernel.py"
    arguments(kernel, problem, Pointers(a=0, b=0, c=0))
"""
    environment = {
        **os.environ,
        "GEMM_TRACKS_BUNDLE": str(tmp_path / "bundle"),
        "GEMM_TRACKS_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, HOPPER.name],
        cwd=Path(__file__).resolve().parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_ptx_is_within_what_the_projects_assembler_reads():
    version = re.search(r"\.version (\d+)\.(\d+)", emit(SGEMM.program("rr", 4)).ptx)
    assert (int(version[1]), int(version[2])) <= (9, 0)


def test_a_problem_of_the_first_layout_is_the_default():
    assert problem_for(SGEMM) == Problem(m=128, n=256, k=8 * (5 + 4))
