"""Claims that a recorded run or a file of measured evidence answers."""

from __future__ import annotations

import math
from typing import Any

from compare.claims.arithmetic import QUOTED_SHARES
from compare.claims.record import (
    CONDITION,
    DIFFERS,
    HOLDS,
    Claim,
    Evidence,
    Finding,
    Recorded,
    Unavailable,
    verdict,
)

SIZE = 4096
CUBLAS = "cublas_sgemm"
LARGE = 8192


def share(evidence: Evidence, name: str, size: int = SIZE) -> tuple[float, str]:
    """Fraction of cuBLAS that a kernel reaches at size^3 and the window it was measured in."""
    found = evidence.recorded.best_window(name, size, "x_cublas")
    if found is None:
        raise Unavailable(f"{evidence.recorded.run} has no checked row of {name} at {size}^3 beside cuBLAS")
    return found


def rate(evidence: Evidence, name: str, size: int) -> tuple[float, str]:
    """TFLOP/s at size^3 and the window."""
    found = evidence.recorded.best_window(name, size, "tflops")
    if found is None:
        raise Unavailable(f"{evidence.recorded.run} has no checked row of {name} at {size}^3")
    return found


def told(evidence: Evidence, *names: str, size: int = SIZE) -> str:
    """Shares of several kernels as text."""
    parts = []
    for name in names:
        fraction, window = share(evidence, name, size)
        parts.append(f"{name} {100 * fraction:.1f} % of cuBLAS ({window})")
    return f"{', '.join(parts)}, {size}^3, {evidence.recorded.gpu}"


def naive_gap(evidence: Evidence) -> Finding:
    fraction, _ = share(evidence, "v0_naive")
    value = told(evidence, "v0_naive")
    if fraction <= 0.1:
        return Finding(HOLDS, value, evidence.recorded.run)
    condition = f"a factor of {1 / fraction:.1f} here"
    return verdict(fraction < 0.125, value, condition, evidence.recorded.run)


def seventy_percent(evidence: Evidence) -> Finding:
    fraction, _ = share(evidence, "v2_block_tile")
    value = f"{told(evidence, 'v2_block_tile')}; {QUOTED_SHARES['2D blocktiling']} % quoted for an A6000"
    return verdict(fraction > 0.6, value, run=evidence.recorded.run)


def smem_alone(evidence: Evidence) -> Finding:
    first, second, third = (share(evidence, name)[0] for name in ("s1_smem_only", "s2_thread_column", "v2_block_tile"))
    value = told(evidence, "v0_naive", "s1_smem_only", "s2_thread_column", "v2_block_tile")
    return verdict(first < second < third and first < 0.25, value, run=evidence.recorded.run)


def overlap(evidence: Evidence) -> Finding:
    before, after = share(evidence, "v2_block_tile")[0], share(evidence, "v3_double_buffer")[0]
    value = f"{told(evidence, 'v2_block_tile', 'v3_double_buffer')}: {100 * (after / before - 1):+.1f} %"
    condition = "bank conflicts, not load latency, are what limits both" if after / before < 1.1 else ""
    return verdict(after >= before, value, condition, evidence.recorded.run)


def staging(evidence: Evidence) -> Finding:
    copied, staged = share(evidence, "v3_double_buffer")[0], share(evidence, "s3_register_staged")[0]
    value = told(evidence, "s3_register_staged", "v3_double_buffer")
    condition = "" if copied >= staged else "here the copies through registers are the faster ones"
    return verdict(copied >= staged * 0.97, value, condition, evidence.recorded.run)


def conflict_free_slower(evidence: Evidence) -> Finding:
    padded, swizzled = share(evidence, "v4_pad")[0], share(evidence, "v4_swizzle")[0]
    value = told(evidence, "v3_double_buffer", "v4_pad", "v4_swizzle")
    return verdict(swizzled < padded, f"{value}; only v4_swizzle has no conflicts", run=evidence.recorded.run)


def fix_pays(evidence: Evidence) -> Finding:
    before = share(evidence, "v3_double_buffer")[0]
    after = max(share(evidence, name)[0] for name in ("v4_pad", "v4_swizzle"))
    value = told(evidence, "v3_double_buffer", "v4_pad", "v4_swizzle")
    return verdict(after > before, value, run=evidence.recorded.run)


def read_ahead(evidence: Evidence) -> Finding:
    before, after = share(evidence, "v3_double_buffer")[0], share(evidence, "v5_register_block")[0]
    return verdict(after > before, told(evidence, "v3_double_buffer", "v5_register_block"), run=evidence.recorded.run)


def evolution(evidence: Evidence) -> Finding:
    ladder = ("v0_naive", "v1_thread_tile", "v2_block_tile", "v3_double_buffer", "v4_pad", "v5_register_block")
    shares = [share(evidence, name)[0] for name in ladder]
    drops = [ladder[i + 1] for i in range(len(ladder) - 1) if shares[i + 1] < shares[i]]
    value = told(evidence, *ladder)
    if not drops:
        return Finding(HOLDS, value, evidence.recorded.run)
    condition = f"not a step forward by itself: {', '.join(drops)}"
    return verdict(len(drops) <= 2, value, condition, evidence.recorded.run)


def sgemm_is_ffma(evidence: Evidence) -> Finding:
    names = sorted({str(r["kernel_name"]) for r in evidence.recorded.rows if r["name"] == CUBLAS and r["kernel_name"]})
    if not names:
        raise Unavailable(f"{evidence.recorded.run} records no kernel name of {CUBLAS}")
    tensor = [name for name in names if any(word in name for word in ("tf32", "tensorop", "s1688", "gmma", "h16816"))]
    return verdict(not tensor, f"{CUBLAS} ran {', '.join(names)}", run=evidence.recorded.run)


def approaches(evidence: Evidence) -> Finding:
    best = ("", 0.0)
    for row in evidence.recorded.rows:
        if row["family"] == "handwritten" and row["track"] == "fp32_simt" and row["m"] == row["n"] == row["k"] == SIZE:
            found = evidence.recorded.best_window(str(row["name"]), SIZE, "x_cublas")
            if found and found[0] > best[1]:
                best = (str(row["name"]), found[0])
    if not best[0]:
        raise Unavailable(f"{evidence.recorded.run} has no hand-written FP32 kernel at {SIZE}^3 beside cuBLAS")
    return verdict(best[1] >= 0.9, told(evidence, best[0]), run=evidence.recorded.run)


def track_gap(evidence: Evidence) -> Finding:
    fp32, window32 = rate(evidence, CUBLAS, LARGE)
    fp16, window16 = rate(evidence, "cublas_fp16", LARGE)
    ratio = fp16 / fp32
    value = f"cuBLAS FP16 {fp16:.0f} ({window16}) / FP32 {fp32:.1f} TFLOP/s ({window32}) = {ratio:.1f}, {LARGE}^3"
    condition = "of the peaks, a factor of 15; under load the FP16 track is held back by power"
    return verdict(ratio > 8, value, "" if abs(ratio - 15) < 1 else condition, evidence.recorded.run)


def occupancy_not_all(evidence: Evidence) -> Finding:
    best: dict[str, tuple[float, float]] = {}
    for row in evidence.recorded.rows:
        if row["track"] == "fp32_simt" and row["m"] == row["n"] == row["k"] == SIZE and row["occupancy_pct"]:
            found = evidence.recorded.best_window(str(row["name"]), SIZE, "tflops")
            if found:
                best[str(row["name"])] = (float(row["occupancy_pct"]), found[0])
    if len(best) < 2:
        raise Unavailable(f"{evidence.recorded.run} has fewer than two FP32 kernels with an occupancy at {SIZE}^3")
    fullest = max(best, key=lambda name: best[name][0])
    fastest = max(best, key=lambda name: best[name][1])
    value = ", ".join(
        f"{name}: {best[name][0]:.0f} % occupancy, {best[name][1]:.1f} TFLOP/s" for name in (fullest, fastest)
    )
    return verdict(best[fastest][0] < best[fullest][0], f"{value}, {SIZE}^3", run=evidence.recorded.run)


def block_128(evidence: Evidence) -> Finding:
    large, small = share(evidence, "v2_block_tile")[0], share(evidence, "s4_block64")[0]
    value = f"{told(evidence, 'v2_block_tile', 's4_block64')}; predicted 32 against 16 FLOP/byte"
    if large > 1.02 * small:
        return Finding(HOLDS, value, evidence.recorded.run)
    condition = "both are limited by bank conflicts, so the intensity does not decide here"
    return verdict(large > 0.9 * small, value, condition, evidence.recorded.run)


# --- counters ----------------------------------------------------------------------------------------


def counters(evidence: Evidence, name: str) -> dict[str, Any]:
    measured = evidence.measured("counters")
    found = measured.get("kernels", {}).get(name)
    if not found:
        reason = measured.get("not_available") or f"{name} is not in it"
        raise Unavailable(f"{evidence.gpu}/evidence/counters.json: {reason}")
    return dict(found)


def counted(evidence: Evidence, name: str, extra_per_request: float) -> Finding:
    """Whether conflicts per request that conflicts at all are what is claimed, with a noise floor of 1 %."""
    found = counters(evidence, name)
    requests, conflicts = found["requests"], found["conflicts"]
    predicted = found["predicted"]["conflicts"]
    value = f"{name}: {conflicts:.0f} conflicts in {requests:.0f} requests at 1024^3, predicted {predicted:.0f}"
    wanted = extra_per_request * found["predicted"]["a_requests"]
    good = abs(conflicts - wanted) <= 0.01 * max(requests, wanted)
    return verdict(good, value, run=evidence.evidence_run("counters"))


def counted_plain(evidence: Evidence) -> Finding:
    return counted(evidence, "v2_block_tile", 7)


def counted_padded(evidence: Evidence) -> Finding:
    return counted(evidence, "v4_pad", 1)


def counted_swizzled(evidence: Evidence) -> Finding:
    return counted(evidence, "v4_swizzle", 0)


def counted_contiguous(evidence: Evidence) -> Finding:
    """The claim is a 2-way conflict: one extra pass for each load of A."""
    found = counters(evidence, "v6_transposed_contiguous")
    value = (
        f"v6_transposed_contiguous: {found['conflicts']:.0f} conflicts in {found['requests']:.0f} requests, "
        f"{found['wavefronts']:.0f} wavefronts; v6_transposed_split: "
        f"{counters(evidence, 'v6_transposed_split')['conflicts']:.0f} conflicts"
    )
    return verdict(found["conflicts"] > 0.25 * found["requests"], value, run=evidence.evidence_run("counters"))


def counted_model(evidence: Evidence) -> Finding:
    measured = evidence.measured("counters")
    probes = measured.get("probes", [])
    if not probes:
        raise Unavailable(
            f"{evidence.gpu}/evidence/counters.json: {measured.get('not_available') or 'no probes in it'}"
        )
    wrong = [p["name"] for p in probes if abs(p["conflicts_per_access"] - p["predicted"]) > 0.02]
    value = f"{len(probes)} address patterns on the hardware, {len(wrong)} off the model"
    if wrong:
        value += f": {', '.join(wrong)}"
    return verdict(not wrong, value, run=evidence.evidence_run("counters"))


def driver_occupancy(evidence: Evidence) -> Finding:
    measured = evidence.measured("occupancy")
    cases = measured["cases"]
    wrong = [case["name"] for case in cases if case["driver"] != case["computed"]]
    value = f"{len(cases)} kernels and cases, {len(wrong)} where the driver answers otherwise"
    if wrong:
        value += f": {', '.join(wrong)}"
    return verdict(not wrong, value, run=evidence.evidence_run("occupancy"))


def driver_plain(evidence: Evidence) -> Finding:
    cases = {case["name"]: case for case in evidence.measured("occupancy")["cases"]}
    found = cases.get("plain_1")
    if found is None:
        raise Unavailable("occupancy.json has no case plain_1")
    value = f"driver: {found['driver']} blocks of {found['threads']} threads at {found['registers']} registers"
    return verdict(found["driver"] == 2, value, run=evidence.evidence_run("occupancy"))


# --- tails and numerics ------------------------------------------------------------------------------


def tails(evidence: Evidence) -> Finding:
    measured = evidence.measured("tails")
    parts, winners = [], set()
    for case in measured["cases"]:
        times = case["time_us"]
        if any(not math.isfinite(value) for value in times.values()):
            return Finding(DIFFERS, f"{case['size']}^3: a strategy has no time", evidence.evidence_run("tails"))
        winner = min(times, key=lambda name: times[name])
        winners.add(winner)
        listed = ", ".join(f"{name} {value:.2f}" for name, value in times.items())
        parts.append(f"{case['size']}^3, tile {case['tile']}: {listed} us, {winner} first")
    value = "; ".join(parts)
    run = evidence.evidence_run("tails")
    if len(winners) > 1:
        return Finding(HOLDS, value, run)
    return Finding(CONDITION, f"{value}; on these sizes one strategy always wins", run)


def guard_costs(evidence: Evidence) -> Finding:
    parts: list[str] = []
    dearer: list[str] = []
    cheaper: list[str] = []
    for case in evidence.measured("tails")["cases"]:
        without = case.get("unchecked_us")
        if without:
            ratio = case["time_us"]["guard"] / without
            (dearer if ratio > 1.0 else cheaper).append(f"{case['size']}^3")
            parts.append(f"{case['size']}^3: {100 * (ratio - 1):+.1f} % against no checks on padded operands")
    if not parts:
        raise Unavailable("tails.json holds no time without checks")
    but = f"not at {', '.join(cheaper)}, where the kernel with checks is the faster one" if cheaper else ""
    return verdict(bool(dearer), "; ".join(parts), but, run=evidence.evidence_run("tails"))


def bit_identity(evidence: Evidence) -> Finding:
    measured = evidence.measured("numerics")
    groups = measured["bit_identical_groups"]
    run = evidence.evidence_run("numerics")
    value = f"{measured['shape']}: {len(groups)} distinct results: " + "; ".join(" = ".join(group) for group in groups)
    if len(groups) < 2:
        return Finding(DIFFERS, value, run)
    largest = max(len(group) for group in groups)
    condition = "kernels that add up in the same order of k agree to the bit, whatever their tiles"
    return Finding(CONDITION, f"{value}; {condition}", run) if largest > 1 else Finding(HOLDS, value, run)


def measured_growth(evidence: Evidence) -> Finding:
    measured = evidence.measured("numerics")
    powers = measured["growth"]
    value = ", ".join(f"{entry['name']}, {entry['input']}: k^{entry['power']:.2f}" for entry in powers)
    positive = [entry["power"] for entry in powers if entry["input"] == "positive"]
    centred = [entry["power"] for entry in powers if entry["input"] == "zero-mean"]
    condition = "of error / (|A| |B|): it grows on data of one sign, not on zero-mean data"
    holds = max(positive) > 0.1 and max(centred) < max(positive)
    return verdict(holds, value, condition, evidence.evidence_run("numerics"))


RECORDED, COUNTED = "recorded run", "Nsight Compute, 1024^3"

CLAIMS = (
    Claim(
        "naive-gap",
        "chapter 11.1",
        "The naive kernel is more than an order of magnitude behind cuBLAS",
        RECORDED,
        naive_gap,
    ),
    Claim(
        "driver-blocks-2",
        "chapter 11.2",
        "2 blocks of the plain kernel are resident",
        "the driver's occupancy answer",
        driver_plain,
    ),
    Claim(
        "share-69",
        "chapter 11.3",
        "With 8x8 thread tiles a kernel reaches about 70 % of cuBLAS",
        RECORDED,
        seventy_percent,
    ),
    Claim(
        "smem-not-enough",
        "chapter 11.3",
        "Shared memory alone is not enough, thread tiles make the step",
        RECORDED,
        smem_alone,
    ),
    Claim("overlap-helps", "chapter 11.4", "Overlapping copies and arithmetic saves time", RECORDED, overlap),
    Claim(
        "async-against-staged",
        "chapter 11.4",
        "cp.async is the better way to double-buffer than staging in registers",
        RECORDED,
        staging,
    ),
    Claim(
        "conflict-fix-pays",
        "chapter 11.7",
        "Removing conflicts keeps shared-memory reads from serialising",
        RECORDED,
        fix_pays,
    ),
    Claim(
        "conflict-free-slower",
        "chapter 11.5.2",
        "A kernel without conflicts can be the slower one",
        RECORDED,
        conflict_free_slower,
    ),
    Claim(
        "counted-8-way", "chapter 11 exercise 2", "The counter shows an 8-way conflict for v2", COUNTED, counted_plain
    ),
    Claim("counted-2-way", "chapter 11 exercise 2", "It shows a 2-way conflict with padding", COUNTED, counted_padded),
    Claim("counted-0", "chapter 11 exercise 2", "It shows none with the swizzle", COUNTED, counted_swizzled),
    Claim(
        "counted-contiguous",
        "chapter 11.5.2",
        "Transposed A with 8 contiguous rows a thread shows a 2-way conflict",
        COUNTED,
        counted_contiguous,
    ),
    Claim(
        "bank-model",
        "chapter 11.5",
        "Conflicts count per instruction over the 32 lanes, same words being shared",
        f"{COUNTED}, probes",
        counted_model,
    ),
    Claim("read-ahead-helps", "chapter 11.6", "Reading four k steps ahead hides latency better", RECORDED, read_ahead),
    Claim("evolution", "chapter 11.7", "Each step v0 to v5 is faster than the one before", RECORDED, evolution),
    Claim(
        "sgemm-ffma",
        "chapter 11.7",
        "cuBLAS SGEMM runs on FFMA, not on Tensor Cores",
        "kernel names of the recorded run",
        sgemm_is_ffma,
    ),
    Claim(
        "approaches-cublas", "chapter 11.7", "Hand-written SIMT can come close to cuBLAS SGEMM", RECORDED, approaches
    ),
    Claim("track-gap", "chapter 11.7", "The whole FP32 track lies far below the FP16 track", RECORDED, track_gap),
    Claim("block-128", "chapter 11 exercise 3", "128x128 block tiles beat 64x64 ones", RECORDED, block_128),
    Claim("occupancy-not-all", "explained 7", "Higher occupancy is not always faster", RECORDED, occupancy_not_all),
    Claim(
        "driver-occupancy",
        "explained 8.2",
        "Resident blocks follow from registers, shared memory and slots",
        "the driver's answer for every kernel",
        driver_occupancy,
    ),
    Claim(
        "tails-four",
        "explained 11",
        "Which tail strategy is fastest depends on the shape",
        "guard, mask, padding and fast path timed",
        tails,
    ),
    Claim(
        "guard-costs",
        "explained 11",
        "Bounds checks cost control overhead",
        "guard against no checks, timed",
        guard_costs,
    ),
    Claim(
        "bit-identity",
        "explained 12",
        "Results may differ in the last bit before and after optimisation",
        "results compared bit by bit",
        bit_identity,
    ),
    Claim(
        "error-growth-measured",
        "explained 12",
        "Error may grow with the length of k",
        "kernels against float64",
        measured_growth,
    ),
)


def evolution_rows(recorded: Recorded | None) -> list[tuple[str, str, str, str, str]]:
    """(rung, what it adds, A6000 share quoted, our share, our TFLOP/s) for the chapter's table."""
    quoted = {
        "v0_naive": "8.5 %",
        "s1_smem_only": "12.8 %",
        "s2_thread_column": "36.5 %",
        "v2_block_tile": "68.7 %",
        CUBLAS: "100 %",
    }
    from handwritten import catalog

    order = [
        kernel for kernel in catalog.KERNELS if kernel.track == "fp32_simt" and not kernel.name.startswith("simt_")
    ]
    order.sort(key=lambda kernel: (kernel.name[0] != "v", kernel.name))
    lines = []
    for name, adds in [*((k.name, k.summary) for k in order), (CUBLAS, "the library")]:
        ours, theirs = "not recorded", ""
        if recorded is not None:
            fraction = recorded.best_window(name, SIZE, "x_cublas")
            speed = recorded.best_window(name, SIZE, "tflops")
            if name == CUBLAS:
                fraction = (1.0, speed[1]) if speed else None
            if fraction and speed:
                ours, theirs = f"{100 * fraction[0]:.1f} % ({fraction[1]})", f"{speed[0]:.1f}"
        lines.append((name, adds, quoted.get(name, ""), ours, theirs))
    return lines
