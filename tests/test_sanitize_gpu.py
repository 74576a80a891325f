"""On a GPU: compute-sanitizer finds nothing in the ladder and finds every planted fault."""

import pytest

from compare.sanitize import TOOLS, sanitize

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("tool", TOOLS)
def test_ladder_is_clean_and_the_planted_fault_is_reported(tool, tmp_path):
    summary = sanitize("v*,s?_*", "130x130x35", [tool], tmp_path)
    assert summary["ok"], summary["sessions"]
