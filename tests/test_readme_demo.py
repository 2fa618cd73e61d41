"""The README's first Python, which runs the demo model; apart, because it must be optimised."""

import pytest
from test_readme import BLOCKS


@pytest.mark.slow
def test_the_first_example_runs(capsys):
    (block,) = [block for block in BLOCKS if "Greedy" in block]
    given = {}
    exec(block, given)
    printed = capsys.readouterr().out
    assert printed.count(given["result"].text) == 2  # printed whole, then streamed
    assert len(given["results"]) == 2
