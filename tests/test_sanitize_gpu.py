"""On a GPU: compute-sanitizer finds nothing in any family's kernels and finds every planted fault."""

import pytest

from compare.contenders import contenders
from compare.sanitize import DEFAULT_SHAPES, TOOLS, choose, lines, sanitize

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

FEW = "v2_block_tile,v8_stream_k,h?_*,cutlass_*,cublas_*"
"""The whole of it is a step of its own in a session (python -m compare.sanitize)."""


@pytest.mark.parametrize("tool", TOOLS)
def test_kernels_of_every_family_are_clean_and_the_planted_fault_is_reported(tool, tmp_path):
    chosen, _ = choose("")
    names = [contender.name for contender in contenders([FEW]) if contender.in_default_set]
    summary = sanitize(",".join(set(names) & set(chosen)), DEFAULT_SHAPES, [tool], tmp_path)
    assert summary["ok"], lines(summary)
