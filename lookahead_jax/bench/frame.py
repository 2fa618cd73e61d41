"""What the pictures of a benchmark have in common: size and heading."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lookahead_jax.bench.records import Conditions
from lookahead_jax.bench.wording import condition_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 9.0
"""Inches."""
FASTER = "#DCEBF7"
"""Behind the marks on the side where lookahead decoding is faster."""


def add_heading(figure: Figure, title: str, notes: Sequence[str], conditions: Conditions) -> None:
    """Makes room above a figure in constrained layout, and writes there what it shows.

    Args:
        figure: Grows by the heading's height.
        title: One line.
        notes: How to read it, each short enough for a line.
        conditions: Their lines are broken where they are too long.
    """
    width, height = figure.get_size_inches()
    told = condition_lines(conditions)
    letters = int(width * 14.5)  # of 8 points
    where = [
        f"{told['model']}; {told['device']}",
        *([f"sampling {told['sampling']}"] if conditions.policy else []),
        f"{told['prompts']}; {told['date'][:10]}",
    ]
    small = [line for text in [*notes, *where] for line in textwrap.wrap(text, letters)]
    room = 0.42 + 0.155 * len(small)
    figure.set_size_inches(width, height + room)
    figure.set_layout_engine("constrained", rect=(0, 0, 1, height / (height + room)))

    def write(inches: float, text: str, **style: Any) -> None:
        y = 1 - inches / (height + room)
        figure.text(0.5, y, text, ha="center", va="top", parse_math=False, **style)

    write(0.1, title, fontsize=12, weight="bold")
    write(0.36, "\n".join(small), fontsize=8, color="0.25", linespacing=1.3)
