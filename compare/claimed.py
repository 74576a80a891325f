"""The command ``claims``."""

from __future__ import annotations

from collections.abc import Sequence

from compare import runs
from kernel.errors import UsageError


def run_claims(ids: Sequence[str], *, write_docs: bool, accept: bool, as_json: bool) -> bool:
    """Check claims and print what came of it; true where one that used to hold no longer does.

    Raises:
        CatalogError: an unknown id.
        UsageError: the page was to be rewritten from some claims only.
    """
    from compare import claims
    from compare.console import answers, messages, print_json, progress

    if write_docs and ids:
        raise UsageError("--write-docs needs every claim; give no ids with it")
    with progress("checking claims", 1.0) as advance:
        results = claims.check(list(ids) or None, progress=advance)
    if accept:
        claims.accept(results)
    broken = claims.stopped_holding(results)
    if as_json:
        print_json(claims.to_json(results))
    else:
        console = answers()
        console.print(claims.table(results))
        console.print(claims.tally(results))
    if write_docs:
        messages().print(f"wrote {claims.write_docs(runs.repository() / 'docs' / 'claims.md', results)}")
    for result in broken:
        messages().print(f"used to hold and no longer does: {result.claim.id}: {result.finding.value}", style="red")
    return bool(broken)
