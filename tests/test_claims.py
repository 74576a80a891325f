"""Claims: each computes, each verdict follows from its evidence, and one that stops holding fails the command."""

from __future__ import annotations

import importlib.util
import json

import pytest

from compare import claims, rows
from compare.claims import arithmetic, machine_code, measured
from compare.claims.record import (
    CONDITION,
    DIFFERS,
    HOLDS,
    NOT_HERE,
    VERDICTS,
    Claim,
    Evidence,
    Finding,
    Recorded,
    Unavailable,
)
from compare.cli import main
from kernel.errors import CatalogError

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
