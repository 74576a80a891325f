"""The table of docs/simt.md, from the recorded run that ships."""

from __future__ import annotations

from compare import runs
from compare.contenders import every_contender
from compare.report import against_sgemm, headline, is_timed

BEGIN, END = "<!-- simt:begin -->", "<!-- simt:end -->"
SIZE = 4096


def evolution_table() -> str:
    """The FP32 ladder at 4096 cubed in the recorded run, one row a rung, those it does not hold named as such."""
    folder = runs.latest()
    _, rows = runs.read_run(folder) if folder else ({}, [])
    timed = {
        row["name"]: row
        for row in headline(rows)
        if is_timed(row) and row["m"] == row["n"] == row["k"] == SIZE and row["track"] == "fp32_simt"
    }
    lines = [
        "| kernel | what it adds | TFLOP/s | x cuBLAS SGEMM | registers | window |",
        "|---|---|---:|---:|---:|---|",
    ]
    for contender in every_contender():
        if contender.family != "handwritten" or contender.track != "fp32_simt":
            continue
        row = timed.get(contender.name)
        found = "not recorded yet | | | |"
        if row is not None:
            ratio = against_sgemm(row)
            shown = "" if ratio is None else f"{ratio:.3f}"
            found = f"{row['tflops']:.1f} | {shown} | {row['registers']} | {row['window']} |"
        lines.append(f"| {contender.name} | {contender.summary} | {found}")
    return "\n".join(lines)
