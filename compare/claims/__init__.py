"""Every statement of the two texts that a machine can check, each computed anew, and what became of it.

The texts are "Tiled GEMM" (a chapter 11) and "GEMM tiling explained". Statements are given in our words.
A claim that used to hold and no longer does fails the command; what used to hold is in expectations.json.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernel.errors import CatalogError

if TYPE_CHECKING:
    from rich.table import Table

    from compare.claims.record import Claim, Evidence, Finding

EXPECTATIONS = Path(__file__).with_name("expectations.json")


@dataclass(frozen=True)
class Result:
    """A claim and what its check found."""

    claim: Claim
    finding: Finding

    def to_dict(self) -> dict[str, str]:
        """One entry of the JSON answer."""
        return {
            "id": self.claim.id,
            "section": self.claim.section,
            "verdict": self.finding.verdict,
            "value": self.finding.value,
            "method": self.claim.method,
            "run": self.finding.run,
            "statement": self.claim.statement,
        }


def every_claim() -> tuple[Claim, ...]:
    """All claims in the order of the texts.

    Raises:
        CatalogError: two claims have one id.
    """
    from compare.claims import arithmetic, machine_code, measured

    claims = [*arithmetic.CLAIMS, *machine_code.CLAIMS, *measured.CLAIMS]
    twice = [name for name, count in Counter(claim.id for claim in claims).items() if count > 1]
    if twice:
        raise CatalogError(f"several claims are called {', '.join(twice)}")
    return tuple(sorted(claims, key=lambda claim: _place(claim.section)))


def _place(section: str) -> tuple[str, float, str]:
    text, _, number = section.partition(" ")
    parts = number.split(".")
    if not parts[-1].isdigit():
        return text, 99.0, number
    return text, sum(int(part) / 100.0**i for i, part in enumerate(parts)), number


def check(
    ids: Sequence[str] | None = None,
    evidence: Evidence | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> tuple[Result, ...]:
    """Check all claims, or those named. ``progress`` is called before each with the share that is done, and its id.

    Raises:
        CatalogError: an unknown id.
    """
    from compare.claims.record import NOT_HERE, Evidence, Finding, Unavailable

    shared = evidence or Evidence()
    claims = every_claim()
    if ids:
        unknown = sorted(set(ids) - {claim.id for claim in claims})
        if unknown:
            raise CatalogError(f"no claim is called {', '.join(unknown)}; gemm-tracks claims --json lists their ids")
        claims = tuple(claim for claim in claims if claim.id in ids)
    results = []
    for number, claim in enumerate(claims):
        if progress is not None:
            progress(number / len(claims), claim.id)
        try:
            finding = claim.check(shared)
        except Unavailable as missing:
            finding = Finding(NOT_HERE, str(missing))
        results.append(Result(claim, finding))
    return tuple(results)


def stopped_holding(results: Iterable[Result], path: Path = EXPECTATIONS) -> tuple[Result, ...]:
    """Results that contradict what is expected to hold. What cannot be checked here contradicts nothing."""
    from compare.claims.record import CONDITION, DIFFERS, HOLDS

    expected = json.loads(path.read_text(encoding="utf-8"))
    held = {name for name, verdict in expected.items() if verdict in (HOLDS, CONDITION)}
    return tuple(r for r in results if r.claim.id in held and r.finding.verdict == DIFFERS)


def accept(results: Iterable[Result], path: Path = EXPECTATIONS) -> None:
    """Make these verdicts the expectation; what could not be checked keeps the one it had."""
    from compare.claims.record import NOT_HERE

    expected: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = {claim.id for claim in every_claim()}
    expected = {name: verdict for name, verdict in expected.items() if name in known}
    for result in results:
        if result.finding.verdict != NOT_HERE:
            expected[result.claim.id] = result.finding.verdict
    path.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def to_json(results: Iterable[Result]) -> dict[str, list[dict[str, str]]]:
    """The command's JSON answer."""
    return {"claims": [result.to_dict() for result in results]}


STYLES = {"holds": "green", "holds with a condition": "yellow", "differs": "red", "not checkable here": "dim"}


def table(results: Iterable[Result]) -> Table:
    """The command's answer for people."""
    from rich.table import Table

    found = Table(title="Claims of the two texts", show_lines=False)
    for heading in ("section", "claim", "verdict", "evidence"):
        found.add_column(heading, overflow="fold")
    for result in results:
        verdict = result.finding.verdict
        found.add_row(
            result.claim.section, result.claim.statement, verdict, result.finding.value, style=STYLES[verdict]
        )
    return found


def tally(results: Iterable[Result]) -> str:
    """How many of each verdict, in words."""
    counts = Counter(result.finding.verdict for result in results)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in STYLES if counts[verdict])


def document(results: Sequence[Result], evidence: Evidence | None = None) -> str:
    """docs/claims.md: all results by section, then the chapter's evolution table with our column."""
    from compare.claims.measured import SIZE, evolution_rows
    from compare.claims.record import Evidence, Unavailable

    shared = evidence or Evidence()
    try:
        recorded = shared.recorded
    except Unavailable:
        recorded = None
    names = {"chapter": "Tiled GEMM, chapter 11", "explained": "GEMM tiling explained"}
    lines = [
        "# Claims",
        "",
        "Generated by `gemm-tracks claims --write-docs`; do not edit.",
        "",
        "Every statement of the two texts that a machine can check, in our words. Each verdict is computed when the",
        f"command runs: {tally(results)}.",
        "Measured values come from the recorded run that is named beside them. A claim about the chapter's plain",
        "kernel (registers, occupancy, loads) is checked on compare/claims/plain.cu, our wording of that kernel.",
    ]
    for text, title in names.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| section | claim | verdict | evidence | how | id |",
            "|---|---|---|---|---|---|",
        ]
        for result in results:
            if result.claim.section.startswith(text):
                section = result.claim.section.partition(" ")[2]
                value = result.finding.value + (f" [{result.finding.run}]" if result.finding.run else "")
                cells = (section, result.claim.statement, result.finding.verdict, value, result.claim.method)
                lines.append("| " + " | ".join(_cell(cell) for cell in cells) + f" | `{result.claim.id}` |")
    where = f"{recorded.gpu}, {recorded.run}" if recorded else "no run recorded yet"
    lines += [
        "",
        "## The chapter's evolution table, filled",
        "",
        f"Section 11.7 quotes an RTX A6000 (4092^3) and leaves the H100 column open. Ours: {where}, {SIZE}^3.",
        "Rungs named s are the side rungs that the chapter cites.",
        "",
        "| rung | adds | A6000, quoted, of cuBLAS | here, of cuBLAS | here, TFLOP/s |",
        "|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in evolution_rows(recorded)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def write_docs(path: Path, results: Sequence[Result] | None = None, evidence: Evidence | None = None) -> Path:
    """Write docs/claims.md; checks everything first unless results are given."""
    from compare.claims.record import Evidence

    shared = evidence or Evidence()
    path.write_text(document(results or check(evidence=shared), shared), encoding="utf-8")
    return path
