"""Claims: each computes, each verdict follows from its evidence, and one that stops holding fails the command."""

from __future__ import annotations

import importlib.util
import json
import types

import pytest

from compare import claims, rows, runs
from compare.claims import arithmetic, machine_code, measured
from compare.claims.record import (
    CONDITION,
    DIFFERS,
    HOLDS,
    NOT_HERE,
    PLAIN,
    VERDICTS,
    Claim,
    Evidence,
    Finding,
    Recorded,
    Unavailable,
    plain_kernel,
)
from compare.cli import main
from kernel.contract import Problem
from kernel.errors import CatalogError, MissingToolError

SIZE = measured.SIZE


def a_row(name, x, tflops, **more):
    return rows.row(
        name=name,
        family=more.pop("family", "handwritten"),
        track=more.pop("track", "fp32_simt"),
        m=more.get("size", SIZE),
        n=more.get("size", SIZE),
        k=more.pop("size", SIZE),
        ok=True,
        l2="warm",
        window=more.pop("window", "sustained"),
        x_cublas=x,
        tflops=tflops,
        **more,
    )


@pytest.fixture
def recorded(tmp_path):
    """A run that never was, with every row that checks ask for."""
    shares = {
        "v0_naive": 0.1, "v1_thread_tile": 0.2, "v2_block_tile": 0.25, "v3_double_buffer": 0.26, "v4_pad": 0.5,
        "v4_swizzle": 0.45, "v5_register_block": 0.48, "s1_smem_only": 0.12, "s2_thread_column": 0.2,
        "s3_register_staged": 0.25, "s4_block64": 0.2, "v6_transposed_split": 0.97,
    }  # fmt: skip
    table = [a_row(name, x, 51 * x, occupancy_pct=100.0 if name == "v0_naive" else 25.0) for name, x in shares.items()]
    table.append(a_row("cublas_sgemm", 1.0, 51.0, family="cublas", kernel_name="sgemm_128x128_nn"))
    table.append(a_row("cublas_sgemm", 1.0, 51.0, family="cublas", size=8192))
    table.append(a_row("cublas_fp16", 1.0, 640.0, family="cublas", track="fp16_tensor", size=8192))
    evidence = Evidence(results=tmp_path)
    evidence.__dict__["recorded"] = Recorded(run="nvidia-h200/made-up", gpu="NVIDIA H200", rows=tuple(table))
    return evidence


def test_there_are_enough_claims_with_names_of_their_own_and_from_both_texts():
    every = claims.every_claim()
    assert len(every) >= 40
    assert len({claim.id for claim in every}) == len(every)
    assert {claim.section.split()[0] for claim in every} == {"chapter", "explained"}
    assert all(claim.method and claim.statement for claim in every)


@pytest.mark.parametrize("claim", arithmetic.CLAIMS, ids=lambda claim: claim.id)
def test_arithmetic_needs_nothing_and_holds(claim):
    found = claim.check(Evidence())
    assert found.verdict in (HOLDS, CONDITION), found.value
    assert any(character.isdigit() for character in found.value)


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize("claim", machine_code.CLAIMS, ids=lambda claim: claim.id)
def test_machine_code_is_read_here(claim, shared_evidence):
    if claim.id.startswith("cutlass") and importlib.util.find_spec("cutlass_cppgen") is None:
        pytest.skip("nvidia-cutlass is not installed")
    found = claim.check(shared_evidence)
    assert found.verdict in VERDICTS
    expected = DIFFERS if claim.id == "transposed-contiguous" else (HOLDS, CONDITION)
    assert found.verdict in expected, found.value


@pytest.fixture(scope="module")
def shared_evidence():
    return Evidence()


@pytest.mark.nvcc
def test_chapters_registers_and_loop_are_computed(shared_evidence):
    for name in ("registers-96", "loop-mix", "loads-40-to-16", "registers-128", "blocks-registers-2"):
        (result,) = claims.check([name], shared_evidence)
        assert result.finding.verdict == HOLDS, result.finding.value


@pytest.mark.nvcc
def test_a_wrong_statement_of_the_same_kind_differs(shared_evidence, monkeypatch):
    """The checks can fail: against another kernel the same questions get another answer."""
    four = shared_evidence.plain[4]
    other = Evidence()
    other.__dict__["plain"] = {1: four, 4: four}
    for name in ("registers-96", "registers-128", "conflict-8-way"):
        claim = next(c for c in claims.every_claim() if c.id == name)
        try:
            verdict = claim.check(other).verdict
        except Unavailable:
            continue
        assert verdict == DIFFERS, name
    monkeypatch.setattr(arithmetic, "THREADS", 128)
    assert arithmetic.threads_per_block(other).verdict == DIFFERS
    assert arithmetic.block_tile(other).verdict == DIFFERS


@pytest.mark.parametrize("claim", measured.CLAIMS, ids=lambda claim: claim.id)
def test_measured_claims_say_what_is_missing(claim, tmp_path):
    with pytest.raises(Unavailable, match=r"record|evidence"):
        claim.check(Evidence(results=tmp_path))


def test_measured_claims_follow_the_rows(recorded):
    verdicts = {r.claim.id: r.finding for r in claims.check([c.id for c in measured.CLAIMS], recorded)}
    assert verdicts["naive-gap"].verdict == HOLDS
    assert verdicts["share-69"].verdict == DIFFERS
    assert verdicts["conflict-free-slower"].verdict == HOLDS
    assert verdicts["approaches-cublas"].verdict == HOLDS
    assert verdicts["sgemm-ffma"].verdict == HOLDS
    assert verdicts["track-gap"].verdict in (HOLDS, CONDITION)
    assert verdicts["occupancy-not-all"].verdict == HOLDS
    assert verdicts["evolution"].verdict == CONDITION
    assert verdicts["block-128"].verdict == HOLDS
    runs_named = {key: f.run for key, f in verdicts.items() if f.verdict != NOT_HERE}
    assert set(runs_named.values()) == {"nvidia-h200/made-up"}, runs_named


def test_what_the_driver_and_the_probes_answered_is_held_against_the_claims(tmp_path):
    folder = tmp_path / "nvidia-h200" / "evidence"
    folder.mkdir(parents=True)

    def given(name, **content):
        (folder / f"{name}.json").write_text(json.dumps({"date": "2026-01-01", **content}))
        return Evidence(results=tmp_path)

    def probe(name, predicted, counted):
        return {"name": name, "predicted": predicted, "conflicts_per_access": counted}

    assert measured.counted_model(given("counters", probes=[probe("row", 0, 0.001)])).verdict == HOLDS
    wrong = measured.counted_model(given("counters", probes=[probe("row", 0, 0.0), probe("column", 31, 15.5)]))
    assert wrong.verdict == DIFFERS
    assert wrong.value == "2 address patterns on the hardware, 1 off the model: column"
    with pytest.raises(Unavailable, match="permission"):
        measured.counted_model(given("counters", not_available="permission"))

    def kernels(contiguous):
        names = {"v6_transposed_contiguous": contiguous, "v6_transposed_split": 0}
        return {n: {"requests": 1000, "conflicts": c, "wavefronts": 1000 + c} for n, c in names.items()}

    assert measured.counted_contiguous(given("counters", kernels=kernels(1000))).verdict == HOLDS
    assert measured.counted_contiguous(given("counters", kernels=kernels(20))).verdict == DIFFERS

    def case(name, driver, computed):
        return {"name": name, "driver": driver, "computed": computed, "threads": 256, "registers": 128}

    assert measured.driver_occupancy(given("occupancy", cases=[case("plain_1", 2, 2)])).verdict == HOLDS
    assert measured.driver_plain(given("occupancy", cases=[case("plain_1", 2, 2)])).verdict == HOLDS
    assert measured.driver_plain(given("occupancy", cases=[case("plain_1", 3, 3)])).verdict == DIFFERS
    other = measured.driver_occupancy(given("occupancy", cases=[case("plain_1", 2, 2), case("v2", 1, 2)]))
    assert (other.verdict, other.value.endswith(": v2")) == (DIFFERS, True)
    with pytest.raises(Unavailable, match="plain_1"):
        measured.driver_plain(given("occupancy", cases=[]))

    def groups(*names):
        return given("numerics", shape="8x8x8", bit_identical_groups=list(names), growth=[])

    assert measured.bit_identity(groups(["a", "b"])).verdict == DIFFERS
    assert measured.bit_identity(groups(["a", "b"], ["c"])).verdict == CONDITION
    assert measured.bit_identity(groups(["a"], ["b"])).verdict == HOLDS

    def grows(positive, centred):
        entries = [("positive", positive), ("zero-mean", centred)]
        return given("numerics", growth=[{"name": "v2", "input": kind, "power": power} for kind, power in entries])

    assert measured.measured_growth(grows(0.5, 0.0)).verdict == CONDITION
    assert measured.measured_growth(grows(0.0, 0.0)).verdict == DIFFERS


def test_counters_are_held_against_the_claim_with_a_noise_floor(tmp_path):
    folder = tmp_path / "nvidia-h200" / "evidence"
    folder.mkdir(parents=True)

    def counters(**conflicts):
        kernels = {
            name: {
                "requests": 5_242_880,
                "conflicts": value,
                "wavefronts": 8_388_608,
                "predicted": {"conflicts": 0, "a_requests": 4_194_304},
            }
            for name, value in conflicts.items()
        }
        (folder / "counters.json").write_text(json.dumps({"date": "2026-01-01", "kernels": kernels, "probes": []}))
        return Evidence(results=tmp_path)

    right = counters(v2_block_tile=29_360_128, v4_pad=4_194_304, v4_swizzle=9_000)
    assert measured.counted_plain(right).verdict == HOLDS
    assert measured.counted_padded(right).verdict == HOLDS
    assert measured.counted_swizzled(right).verdict == HOLDS
    wrong = counters(v2_block_tile=4_194_304, v4_pad=0, v4_swizzle=4_194_304)
    assert measured.counted_plain(wrong).verdict == DIFFERS
    assert measured.counted_padded(wrong).verdict == DIFFERS
    assert measured.counted_swizzled(wrong).verdict == DIFFERS
    (folder / "counters.json").write_text(json.dumps({"not_available": "permission: no"}))
    with pytest.raises(Unavailable, match="permission"):
        measured.counted_plain(Evidence(results=tmp_path))


def test_tail_times_decide_the_claim(tmp_path):
    folder = tmp_path / "nvidia-h200" / "evidence"
    folder.mkdir(parents=True)

    def case(size, **times):
        return {"size": size, "tile": 16, "time_us": times, "unchecked_us": 1.0}

    def tails(*cases):
        (folder / "tails.json").write_text(json.dumps({"date": "2026-01-01", "cases": list(cases)}))
        return Evidence(results=tmp_path)

    differing = tails(case(35, guard=2.0, mask=1.5), case(4092, guard=2.0, mask=2.5))
    assert measured.tails(differing).verdict == HOLDS
    assert measured.guard_costs(differing).verdict == HOLDS
    same = tails(case(35, guard=0.9, mask=1.5), case(4092, guard=0.9, mask=2.5))
    assert measured.tails(same).verdict == CONDITION
    assert measured.guard_costs(same).verdict == DIFFERS
    found = measured.guard_costs(tails(case(35, guard=1.1, mask=1), case(129, guard=0.67, mask=1)))
    assert found.verdict == CONDITION
    assert found.value.endswith(
        "-33.0 % against no checks on padded operands; not at 129^3, where the kernel with checks is the faster one"
    )


def test_json_has_the_promised_keys(recorded):
    answer = claims.to_json(claims.check(["smem-bytes", "naive-gap"], recorded))
    assert {"id", "section", "verdict", "value", "method", "run"} <= set(answer["claims"][0])
    assert [entry["id"] for entry in answer["claims"]] == ["naive-gap", "smem-bytes"]


def test_progress_names_the_claim_that_is_checked(recorded):
    said = []
    claims.check(["smem-bytes", "naive-gap"], recorded, progress=lambda done, text: said.append((done, text)))
    assert said == [(0.0, "naive-gap"), (0.5, "smem-bytes")]


def test_an_unknown_id_is_a_typed_error():
    with pytest.raises(CatalogError, match="no-such-claim"):
        claims.check(["no-such-claim"])


def test_a_claim_that_stops_holding_is_found_and_one_that_cannot_be_checked_is_not(tmp_path):
    def result(name, verdict):
        return claims.Result(
            Claim(name, "chapter 11.1", "x", "y", lambda _: Finding(verdict, "")), Finding(verdict, "1")
        )

    path = tmp_path / "expectations.json"
    path.write_text(json.dumps({"a": HOLDS, "b": CONDITION, "c": DIFFERS, "d": HOLDS}))
    results = [result("a", DIFFERS), result("b", HOLDS), result("c", DIFFERS), result("d", NOT_HERE)]
    assert [r.claim.id for r in claims.stopped_holding(results, path)] == ["a"]


def test_accepting_keeps_what_could_not_be_checked(tmp_path):
    path = tmp_path / "expectations.json"
    path.write_text(json.dumps({"naive-gap": HOLDS, "gone": HOLDS}))
    claims.accept(claims.check(["naive-gap", "smem-bytes"], Evidence(results=tmp_path)), path)
    assert json.loads(path.read_text()) == {"naive-gap": HOLDS, "smem-bytes": HOLDS}


def test_every_expectation_belongs_to_a_claim_and_most_claims_have_one():
    expected = json.loads(claims.EXPECTATIONS.read_text())
    ids = {claim.id for claim in claims.every_claim()}
    assert set(expected) <= ids
    assert set(expected.values()) <= {HOLDS, CONDITION, DIFFERS}
    assert {claim.id for claim in arithmetic.CLAIMS} <= set(expected)
    assert {claim.id for claim in machine_code.CLAIMS} <= set(expected)


@pytest.mark.nvcc
def test_the_command_fails_where_a_claim_stops_holding(monkeypatch, tmp_path, capsys):
    path = tmp_path / "expectations.json"
    path.write_text(json.dumps({"smem-bytes": HOLDS}))
    monkeypatch.setattr(claims, "EXPECTATIONS", path)
    monkeypatch.setattr(claims.stopped_holding, "__defaults__", (path,))
    assert main(["claims", "smem-bytes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claims"][0]["verdict"] == HOLDS
    monkeypatch.setattr(arithmetic, "FLOAT", 8)
    assert main(["claims", "smem-bytes", "--json"]) == 1


def test_the_document_lists_every_claim_and_the_evolution_table(recorded):
    results = claims.check([claim.id for claim in (*arithmetic.CLAIMS, *measured.CLAIMS)], recorded)
    text = claims.document(results, recorded)
    for result in results:
        assert f"`{result.claim.id}`" in text
    assert "| v2_block_tile |" in text
    assert "| 68.7 % | 25.0 % (sustained) |" in text
    assert "| cublas_sgemm | the library | 100 % | 100.0 % (sustained) | 51.0 |" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.count("|") - line.count("\\|") in (6, 7)


def test_two_claims_of_one_id_are_refused(monkeypatch):
    monkeypatch.setattr(arithmetic, "CLAIMS", (*arithmetic.CLAIMS, arithmetic.CLAIMS[0]))
    with pytest.raises(CatalogError, match=f"several claims are called {arithmetic.CLAIMS[0].id}$"):
        claims.every_claim()


def test_more_blocks_than_the_formula_gives_contradict_the_bound(monkeypatch):
    generous = types.SimpleNamespace(by_resource={"registers": 99})
    monkeypatch.setattr(arithmetic.occupancy, "occupancy", lambda *_, **__: generous)
    found = arithmetic.bound_by_minimum(Evidence())
    assert (found.verdict, found.value) == (DIFFERS, "16 registers x 64 threads: 99 blocks exceed 64")


def inspected(name="a_kernel", **more):
    """What an inspection says of a kernel whose addresses were not executed."""
    return types.SimpleNamespace(**{"name": name, "loop": None, "lane_map": None, "shared": (), **more})


def of_kernels(found):
    """Evidence that has one answer to every question about machine code."""
    return types.SimpleNamespace(plain={1: found, 4: found}, cutlass=found, kernel=lambda name: found)


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (machine_code.merged_along_k, "no lane map was found"),
        (machine_code.quarter_executed, "v0_naive: no main loop was found"),
        (machine_code.work_unchanged, "no main loop was found, or it was not executed"),
        (machine_code.lane_map_matches, "no lane map was found"),
        (machine_code.no_registers_between, "no main loop was found"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_kernel_of_ours_without_its_loop_or_lane_map_differs(check, says):
    found = check(of_kernels(inspected()))
    assert (found.verdict, found.value) == (DIFFERS, says)


def test_a_loop_that_was_not_executed_tells_nothing_of_the_work():
    loop = types.SimpleNamespace(fma_found=None, fma_expected=1024)
    assert machine_code.work_unchanged(of_kernels(inspected(loop=loop))).verdict == DIFFERS
    loop.fma_found = 1024.0
    assert machine_code.work_unchanged(of_kernels(inspected(loop=loop))).verdict == HOLDS


NOT_EXECUTED = types.SimpleNamespace(kind="load", known=False, conflicts=0, text="LDS.128 R4, [R2]")


@pytest.mark.parametrize(
    ("check", "missing"),
    [
        (machine_code.transposed_contiguous_model, "the addresses of its loads"),
        (machine_code.split_contiguous_chunks, "the addresses of its loads"),
        (machine_code.cutlass_conflicts, "the addresses of its loads"),
        (machine_code.cutlass_layout, "its lane map"),
        (machine_code.cutlass_split, "its lane map"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_addresses_that_could_not_be_executed_leave_a_claim_open(check, missing):
    with pytest.raises(Unavailable, match=f"^a_kernel: {missing} could not be executed$"):
        check(of_kernels(inspected(shared=(NOT_EXECUTED,))))


def test_headers_are_cited_by_line_and_say_where_they_are_instead(tmp_path, monkeypatch):
    header = tmp_path / "include" / "cutlass" / "gemm" / "warp" / "tile.h"
    header.parent.mkdir(parents=True)
    header.write_text("// one\nint LaneM = 4;\n// three\n")
    installed = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: installed)

    def cited(line, *words):
        found = machine_code.cited("warp/tile.h", line, words)
        return found.verdict, found.value

    assert cited(2, "LaneM") == (HOLDS, "line 2: int LaneM = 4;")
    assert cited(9, "LaneM") == (CONDITION, "line 2: int LaneM = 4;; not on line 9 in this version")
    assert cited(2, "LaneM", "LaneN") == (DIFFERS, "no line of warp/tile.h has LaneM and LaneN")
    with pytest.raises(Unavailable, match="nvidia-cutlass, which brings CUTLASS's headers, is not installed"):
        machine_code.cutlass_header("warp/other.h")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="nvidia-cutlass"):
        machine_code.cutlass_header("warp/tile.h")


def test_the_chapters_kernel_answers_like_one_of_a_catalog():
    kernel = plain_kernel(4)
    problem = Problem(m=129, n=256, k=16)
    (launch,) = kernel.launches(problem)
    assert kernel.units() == (launch.unit,) == (PLAIN,)
    assert (launch.entry, launch.grid) == ("plain_4", (2, 2, 1))
    assert kernel.variant(problem) == ""
    assert kernel.rejects(problem) is None
    assert kernel.rejects(Problem(m=2**16, n=8, k=2**15)).startswith("2147483648 elements; 32-bit offsets end at")


def of_rows(*table):
    evidence = Evidence()
    evidence.__dict__["recorded"] = Recorded(run="made-up", gpu="NVIDIA H200", rows=table)
    return evidence


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (measured.naive_gap, f"made-up has no checked row of v0_naive at {SIZE}^3 beside cuBLAS"),
        (measured.track_gap, f"made-up has no checked row of cublas_sgemm at {measured.LARGE}^3"),
        (measured.sgemm_is_ffma, "made-up records no kernel name of cublas_sgemm"),
        (measured.approaches, f"made-up has no hand-written FP32 kernel at {SIZE}^3 beside cuBLAS"),
        (measured.occupancy_not_all, f"made-up has fewer than two FP32 kernels with an occupancy at {SIZE}^3"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_run_without_the_rows_of_a_claim_says_which(check, says):
    unchecked = {**a_row("v0_naive", 0.1, 5.1, occupancy_pct=100.0), "ok": None}
    for table in ((), (unchecked,)):
        with pytest.raises(Unavailable) as missing:
            check(of_rows(*table))
        assert str(missing.value) == says


def test_a_naive_kernel_nearer_to_cublas_is_a_condition_and_then_a_difference():
    def gap(fraction):
        return measured.naive_gap(of_rows(a_row("v0_naive", fraction, 5.0)))

    near = gap(0.12)
    assert (near.verdict, near.value.endswith("; a factor of 8.3 here")) == (CONDITION, True)
    assert gap(0.2).verdict == DIFFERS


def test_a_ladder_without_a_step_back_holds_without_a_condition():
    ladder = ("v0_naive", "v1_thread_tile", "v2_block_tile", "v3_double_buffer", "v4_pad", "v5_register_block")
    rising = of_rows(*(a_row(name, (i + 1) / 10, i + 1.0) for i, name in enumerate(ladder)))
    assert measured.evolution(rising).verdict == HOLDS
    falling = of_rows(*(a_row(name, (9 - i) / 10, 9.0 - i) for i, name in enumerate(ladder)))
    assert measured.evolution(falling).verdict == DIFFERS


def test_a_large_block_that_gains_nothing_is_a_condition_and_one_that_loses_differs():
    def block(large):
        return measured.block_128(of_rows(a_row("v2_block_tile", large, 5.0), a_row("s4_block64", 0.2, 5.0)))

    assert block(0.202).verdict == CONDITION
    assert "bank conflicts" in block(0.202).value
    assert block(0.17).verdict == DIFFERS


def test_tails_without_times_are_no_evidence(tmp_path):
    folder = tmp_path / "nvidia-h200" / "evidence"
    folder.mkdir(parents=True)
    (folder / "tails.json").write_text(
        json.dumps({"date": "2026-01-01", "cases": [{"size": 35, "time_us": {"guard": 1.0, "mask": float("nan")}}]})
    )
    evidence = Evidence(results=tmp_path)
    found = measured.tails(evidence)
    assert (found.verdict, found.value) == (DIFFERS, "35^3: a strategy has no time")
    assert found.run == "nvidia-h200/evidence/tails.json (2026-01-01)"
    with pytest.raises(Unavailable, match=r"tails\.json holds no time without checks"):
        measured.guard_costs(evidence)


def test_the_recorded_run_is_the_one_that_latest_names(tmp_path, monkeypatch):
    newest = tmp_path / "nvidia-h200" / "2026-01-02"
    newest.mkdir(parents=True)
    (newest.parent / "latest").symlink_to(newest.name)
    table = [a_row("v0_naive", 0.1, 5.1)]
    monkeypatch.setattr(runs, "read_run", lambda folder: ({"gpu": {"name": "NVIDIA H200"}}, table))
    found = Evidence(results=tmp_path).recorded
    assert (found.run, found.gpu, found.rows) == ("nvidia-h200/2026-01-02", "NVIDIA H200", tuple(table))


def test_a_missing_tool_or_kernel_leaves_claims_open(monkeypatch):
    from cutlass_ref import catalog
    from kernel import inspection

    def needs_nvcc(kernel):
        raise MissingToolError("nvcc was not found")

    monkeypatch.setattr(inspection, "inspect_kernel", needs_nvcc)
    (result,) = claims.check(["registers-96"], Evidence())
    assert (result.finding.verdict, result.finding.value) == (NOT_HERE, "nvcc was not found")
    monkeypatch.setattr(catalog, "KERNELS", ())
    (result,) = claims.check(["cutlass-lds-128"], Evidence())
    assert result.finding.verdict == NOT_HERE
    assert result.finding.value.startswith("the catalog holds no CUTLASS SIMT kernel with a 128x128 tile")


def test_the_page_is_written_from_results_and_says_that_nothing_is_recorded(tmp_path):
    evidence = Evidence(results=tmp_path)
    results = claims.check(["smem-bytes", "naive-gap"], evidence)
    path = claims.write_docs(tmp_path / "claims.md", results, evidence)
    text = path.read_text(encoding="utf-8")
    assert text == claims.document(results, evidence)
    assert "1 holds, 1 not checkable here." in text
    assert f"Ours: no run recorded yet, {SIZE}^3." in text
    assert "| v2_block_tile |" in text
    assert "| 68.7 % | not recorded |  |" in text


def test_the_command_accepts_verdicts_and_writes_the_page(monkeypatch, tmp_path, capsys):
    results = claims.check(["smem-bytes"], Evidence(results=tmp_path))
    accepted = []
    monkeypatch.setattr(claims, "check", lambda ids, progress: results)
    monkeypatch.setattr(claims, "accept", accepted.append)
    monkeypatch.setattr(runs, "repository", lambda: tmp_path)
    (tmp_path / "docs").mkdir()
    assert main(["claims", "--accept", "--write-docs"]) == 0
    assert accepted == [results]
    captured = capsys.readouterr()
    assert "1 holds" in captured.out
    assert " ".join(captured.err.split()).startswith("wrote ")
    assert "`smem-bytes`" in (tmp_path / "docs" / "claims.md").read_text(encoding="utf-8")
