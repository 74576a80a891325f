"""What a build says of kernels before they run: columns, the static gate, and the table of what was built."""

import types

import pytest
from rich.console import Console

from compare import code_facts, contenders
from compare.building import built_rows, built_table, refused, static_columns
from kernel import inspection
from kernel.contract import Artifact, Resources
from kernel.errors import BuildError

(V1,) = contenders.contenders(["v1_thread_tile"])


@pytest.fixture
def made(tmp_path):
    """A build that never was, of one kernel's first launch at 256 cubed, with the resources given."""
    from kernel.plan import plan

    (launch,) = plan(V1.kernel, V1.problem(256, 256, 256)).launches

    def make(**resources):
        needs = Resources(**{"registers": 40, "spill_bytes": 0, "static_smem": 1024, **resources})
        artifact = Artifact(
            unit=launch.unit.name,
            key="0",
            arch="sm_90a",
            compiler="nvcc 13.0",
            folder=tmp_path,
            resources={launch.entry: needs},
        )
        return {launch.unit.name: artifact}

    return make


def test_what_was_not_built_has_no_columns(made):
    problem = V1.problem(256, 256, 256)
    assert static_columns(V1, problem, {}) == {}
    assert static_columns(V1, problem, made())["registers"] == 40
    assert static_columns(V1, problem, made())["compiler"] == "nvcc 13.0"


def test_the_static_gate_names_every_objection(made):
    problem = V1.problem(256, 256, 256)
    assert refused(V1, problem, made()) is None
    reason = refused(V1, problem, made(spill_bytes=8, max_threads=32))
    assert reason.startswith("static gate: ")
    assert "spills 8 bytes, and its catalog entry does not allow it; " in reason
    assert "was bounded to 32 threads" in reason
    assert refused(V1, problem, {}).endswith(" was not built")


def test_the_table_keeps_a_line_for_what_could_not_be_built(made):
    rows = built_rows([V1], {name: BuildError("nvcc failed\nfor many reasons") for name in made()})
    console = Console(width=120)
    with console.capture() as captured:
        console.print(built_table([*rows, *built_rows([V1], made())], 120))
    text = captured.get()
    assert text.count("v1_thread_tile") >= 3
    assert "was not built: nvcc failed" in " ".join(text.split())
    assert "for many reasons" not in text
    assert "1024" in text


def a_row(name, registers):
    return {"name": name, "registers": registers}


def test_a_kernel_that_cannot_be_inspected_here_has_its_reason_for_facts(monkeypatch):
    def fails(kernel):
        raise BuildError("nvcc failed")

    monkeypatch.setattr(inspection, "inspect_kernel", fails)
    told = []
    rows = [a_row("v1_thread_tile", 40), a_row("gone", 8), a_row("cublas_sgemm", None)]
    assert code_facts.collect(rows, lambda done, name: told.append(name)) == (
        {},
        {"v1_thread_tile": "nvcc failed", "gone": "in no catalog here"},
    )
    assert told == ["v1_thread_tile", "gone"]


def test_facts_hold_the_bound_that_binds_and_what_does_not_add_up():
    loop = types.SimpleNamespace(
        math_share=0.8765, bound_issue=None, bound_shared=1.5, warning="", per_k_step={"FFMA": 64.0, "LDS": 0.33333}
    )
    found = types.SimpleNamespace(
        threads=256,
        occupancy=types.SimpleNamespace(blocks=2, limited_by=("registers", "shared memory")),
        intensity=(types.SimpleNamespace(level="global", value=32.0),),
        loop=loop,
    )
    free = code_facts.facts_of(found)
    assert free["per_k_step"] == {"FFMA": 64.0, "LDS": 0.333}
    assert free["intensity_global"] == 32.0
    assert free["facts"] == {
        "threads a block": 256,
        "blocks an SM": 2,
        "limited by": "registers, shared memory",
        "math share of issue slots, %": 87.6,
        "FLOP/byte, global": 32.0,
    }
    loop.bound_shared, loop.bound_issue, loop.warning = 0.5, 0.9, "63 multiply-adds, not 64"
    bound = code_facts.facts_of(found)["facts"]
    assert bound["bound by shared memory, % of peak"] == 50.0
    assert bound["bound by issue slots, % of peak"] == 90.0
    assert bound["warning"] == "63 multiply-adds, not 64"
    found.loop = None
    assert code_facts.facts_of(found)["per_k_step"] == {}
