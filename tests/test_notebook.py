"""docs/notebook.ipynb runs from top to bottom without a GPU."""

import json

import pytest

from compare import runs


@pytest.mark.slow
@pytest.mark.nvcc
def test_every_cell_runs_in_order_and_the_kernel_is_right():
    book = json.loads((runs.repository() / "docs/notebook.ipynb").read_text(encoding="utf-8"))
    names = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert 0 < names["error"] <= 1e-6
    assert len(names["square"]) > 10
