"""How long a comparison takes: what is said before it starts, held to a simulated device and to recorded runs."""

import pytest

from compare import runs
from compare.contenders import contenders
from compare.job import Request, expected_s, parts
from compare.measure import estimate_s, measure_group, record
from compare.statistics import median
from compare.windows import GRAPH_BELOW_S, GRAPH_LAUNCHES, LEAD_IN_BELOW_S, pack
from tests.simulated_bench import SimulatedBench, SimulatedContender, SimulatedOperands

RECORDED = sorted({path.parent.name for path in runs.results_root().glob("nvidia-h200/2*/run.json")})


def recorded_ratios():
    """x_cublas in bursts, by name and cube, of the recorded run."""
    return {
        (row["name"], row["m"]): row["x_cublas"]
        for row in runs.read_run(runs.latest())[1]
        if row["window"] == "burst" and row["l2"] == "warm" and row["m"] == row["n"] == row["k"] and row["x_cublas"]
    }


def simulated_s(part, recorded):
    """Seconds that a group takes on the simulated device at recorded rates: launches, idling and windows alone.

    The power limit holds on the tensor tracks, so that their sustained windows are the long ones.
    """
    rates = {"fp32_simt": 51e12, "tf32_tensor": 400e12, "fp16_tensor": 750e12}
    bench = SimulatedBench(cap_w=700.0)
    problem = part.group.problem
    members = [
        SimulatedContender(
            one.name,
            problem.flop / rates[one.track] / recorded.get((one.name, problem.m), 1.0) + 2e-6,
            family=one.family, track=one.track, noise=0.004, is_default=one.is_default,
            is_dispatcher=one.is_dispatcher, largest_timed=one.largest_timed,
            watts=600.0 if one.track == "fp32_simt" else 900.0,
            refuses=one.rejects(problem) or "",
        )
        for one in part.group.contenders
    ]  # fmt: skip
    measure_group(members, problem, SimulatedOperands(), part.settings, bench=bench)
    return bench.now()


def test_the_default_comparison_fits_its_four_minutes():
    """The default set as it is: what is expected of it, checks and starting included."""
    recorded = recorded_ratios()
    chosen = [one for one in contenders() if one.in_default_set]
    expected, simulated = {}, {}
    for part in parts(Request((), "", False), chosen):
        expected[part.group.name] = estimate_s(part.group.contenders, part.group.problem, part.settings)
        simulated[part.group.name] = simulated_s(part, recorded)
    for name, seconds in simulated.items():
        assert 0.85 * seconds < expected[name] < 1.8 * seconds + 2.5, (name, seconds, expected[name])
    assert expected_s(expected.values(), None, "sm_90a") < 225, expected
    assert sum(simulated.values()) < sum(expected.values())


def recorded_groups(run):
    """What the samples of a recorded run must have taken at least, by (cube, track): (members, settings, seconds)."""
    known = {one.name: one for one in contenders()}
    found = {}
    for entry in runs.read_samples(run):
        one = known.get(entry["name"])
        if one is not None and entry["l2"] == "warm" and entry["m"] == entry["n"] == entry["k"]:
            found.setdefault((entry["m"], one.track, entry["layout"], entry["dtype_out"]), []).append((one, entry))
    return found


def test_what_is_expected_of_groups_is_what_recorded_ones_took():
    """The samples that were kept say how many rounds and windows were taken; the settings, how long each is.

    Groups whose slices were cut when the clock sagged are left out: that cost more then.
    """
    expected = took = 0.0
    groups = recorded_groups("2026-11-30-48d16088cf")
    compared = 0
    for (size, track, *_), entries in groups.items():
        bursts = [entry for _, entry in entries if entry["window"] == "burst"]
        if len(bursts) < 10 or any("sagged" in note for entry in bursts for note in entry["notes"]):
            continue
        settings = record()
        members = list(dict.fromkeys(one for one, _ in entries))
        launches = [1e-6 * median(entry["time_us"]) for entry in bursts]
        cost = [
            seconds
            * (max(GRAPH_LAUNCHES if seconds < GRAPH_BELOW_S else 1, int(1e-3 / seconds)) + (seconds < LEAD_IN_BELOW_S))
            for seconds in launches
        ]
        limit = settings.burst.long_slice_s if track == "fp32_simt" else settings.burst.slice_s
        slices = len(pack(range(len(cost)), cost, limit))
        seconds = max(len(entry["time_us"]) for entry in bursts) * (slices * settings.burst.idle_s + sum(cost))
        window_s = settings.sustained.window_s if track == "fp32_simt" else settings.sustained.capped_s
        windows = sum(len(entry["window_us"]) for _, entry in entries if entry["window"] == "sustained")
        seconds += 1.05 * window_s * windows
        estimate = estimate_s(members, members[0].problem(size, size, size), settings)
        assert seconds < estimate < 1.7 * seconds, (size, track, seconds, estimate)
        expected, took, compared = expected + estimate, took + seconds, compared + 1
    assert compared >= 4
    assert expected < 1.5 * took


@pytest.mark.parametrize("run", RECORDED)
def test_runs_that_kept_their_seconds_took_what_was_expected(run):
    """What ``compare`` said it would take, against what it took, group by group and in all."""
    provenance, _ = runs.read_run(run)
    kept = {name: spent for name, spent in provenance.get("seconds", {}).items() if "estimate" in spent}
    took = {name: sum(spent.values()) - spent["estimate"] for name, spent in kept.items()}
    for name, spent in kept.items():
        assert 0.4 * spent["estimate"] - 5 < took[name] < 2.0 * spent["estimate"] + 5, name
    if kept:
        assert 0.7 < sum(took.values()) / sum(spent["estimate"] for spent in kept.values()) < 1.3
