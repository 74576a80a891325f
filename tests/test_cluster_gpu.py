"""A cluster on real GPUs: one card gives what the plain command gives; two take at most 0.6 of the time of one."""

import time

import pytest

from compare import cards, driver, runs
from compare.cli import main
from compare.rows import KEY

pytest.importorskip("distributed")
pytestmark = [pytest.mark.gpu, pytest.mark.alone]

SMALL = ("v2_block_tile,cublas_sgemm", "1024")
BAR = 0.6


def compare(asked, folder, *more):
    """(exit status, seconds, provenance, rows) of a run kept in a folder; kernels and shapes, or the default run."""
    chosen = ["--kernels", asked[0], "--shapes", asked[1]] if asked else []
    began = time.monotonic()
    status = main(["compare", *chosen, "--out", str(folder), *more])
    return status, time.monotonic() - began, *runs.read_run(folder)


def keys(rows):
    return [tuple(row[name] for name in KEY) for row in rows]


def test_a_cluster_of_one_gives_the_rows_of_the_plain_command_and_names_the_card(tmp_path):
    status, _, provenance, rows = compare(SMALL, tmp_path / "cluster", "--gpus", "0")
    assert status == 0, [(row["name"], row["skipped_because"]) for row in rows if row["ok"] is not True]
    (card,) = provenance["gpus"]
    assert card["name"] == driver.query().devices[0].name
    assert len(card["uuid_hash"]) == driver.HASH_DIGITS
    assert card["ceilings"]
    assert provenance["ceilings"] == card["ceilings"]
    assert all(row["gpu_uuid_hash"] == card["uuid_hash"] and row["gpu_index"] == card["index"] for row in rows)
    assert all(row["time_us"] > 0 and row["pct_ceiling"] > 0 for row in rows)
    status, _, _, alone = compare(SMALL, tmp_path / "alone")
    assert status == 0
    assert keys(rows) == keys(alone)
    assert {row["gpu_uuid_hash"] for row in alone} == {card["uuid_hash"]}
    for one, other in zip(rows, alone, strict=True):
        assert one["x_cublas"] == pytest.approx(other["x_cublas"], rel=0.02), one["name"]


@pytest.mark.slow
def test_two_equal_cards_take_at_most_six_tenths_of_the_time_of_one(tmp_path):
    names = [device.name for device in driver.query().devices]
    if len(names) < 2 or names[0] != names[1]:
        pytest.skip(f"gpu: two GPUs of one model are needed, and this machine shows {', '.join(names) or 'none'}")
    compare(SMALL, tmp_path / "warm", "--gpus", "0,1")  # builds, and both cards' libraries, are not what is timed
    status, alone_s, _, alone = compare((), tmp_path / "alone", "--gpus", "0")
    assert status == 0
    status, both_s, provenance, both = compare((), tmp_path / "both", "--gpus", "0,1")
    assert status == 0
    assert keys(both) == keys(alone)
    assert len({row["gpu_uuid_hash"] for row in both}) == 2
    assert both_s <= BAR * alone_s, f"{both_s:.0f} s on two cards, {alone_s:.0f} s on one"
    merged = cards.side_by_side([("alone", provenance, alone), ("both", provenance, both)])
    print(*cards.verdicts(merged), sep="\n")  # noqa: T201 - the difference is to be shown
    apart = [line for line in merged.lines if line.apart(names[0])]
    shown = "\n".join(cards.verdicts(merged))
    assert all(cards.called(line.row) in shown for line in apart)
    assert any(len(line.by_card) == 2 for line in merged.lines)
