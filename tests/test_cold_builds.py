"""One build of each way from an empty cache, whatever earlier sessions have left in the user's."""

import sys

import pytest

from kernel.build import artifact
from kernel.contract import Problem
from kernel.errors import BuildError
from kernel.plan import plan

pytestmark = [pytest.mark.nvcc, pytest.mark.slow]


@pytest.fixture(autouse=True)
def cold(tmp_path, monkeypatch):
    monkeypatch.delenv("GEMM_TRACKS_BUNDLE", raising=False)
    monkeypatch.setenv("GEMM_TRACKS_CACHE", str(tmp_path / "cache"))


@pytest.mark.cute
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("cute_sgemm", "float32"),
        ("cute_fp16_sm80_128x128x32_4stages", "float16"),
        ("cute_fp16_sm90_128x256x64_1x1_persistent", "float16"),
    ],
)
@pytest.mark.parametrize("layout", ["rr", "cc"])
def test_a_dsl_kernel_is_compiled_and_assembled(name, dtype, layout):
    from cutlass_ref.cute.catalog import get

    problem = Problem(m=256, n=256, k=64, layout=layout, dtype_in=dtype, dtype_out=dtype)
    (launch,) = plan(get(name), problem).launches
    built = artifact(launch.unit)
    assert launch.entry in built.resources
    assert f".entry {launch.entry}(" in built.ptx.read_text(encoding="utf-8")
    assert built.resources[launch.entry].spill_bytes == 0


@pytest.mark.cppgen
def test_packers_are_compiled_and_answer():
    from cutlass_ref import packers
    from cutlass_ref.catalog import get

    kernel = get("cutlass_simt_64x64x5_s1_rr")
    group = packers.Group(name="one", members=((kernel.base, kernel.recipe),))
    library = packers.library_path(group)
    assert library.name == group.file_name
    began = library.stat().st_mtime_ns
    assert packers.library_path(group).stat().st_mtime_ns == began, "a second look compiles nothing"
    tile = kernel.tile
    assert packers.traits(group, kernel.base).block == (tile.BLOCK_M, tile.BLOCK_N, tile.BLOCK_K)
    assert packers.entry(group, kernel.base) == kernel.entry()


def test_a_compiler_that_refuses_packers_is_a_build_error():
    from cutlass_ref import packers

    words = [sys.executable, "-c", "import sys; sys.exit('note: first\\nx.cu(3): error: not like this')"]
    with pytest.raises(BuildError, match=r"packers of two: \S+ refused them: x.cu\(3\): error: not like this"):
        packers._run(packers.Group(name="two", members=()), words)
