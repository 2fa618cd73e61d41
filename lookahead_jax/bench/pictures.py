"""The pictures of a benchmark."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lookahead_jax import heat_map
from lookahead_jax.bench.frame import WIDTH, add_heading
from lookahead_jax.bench.marks import COLOURS
from lookahead_jax.bench.records import Conditions, Row
from lookahead_jax.bench.scatter import rounds, speedup_by_rows
from lookahead_jax.bench.selection import chosen, is_measured
from lookahead_jax.bench.wording import number, percent
from lookahead_jax.errors import LookaheadError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 3
"""Panels side by side in the picture of accepted lengths."""


def why_not() -> str | None:
    """Why no picture can be drawn here, in a line; None: it can."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return "pictures need matplotlib: pip install 'lookahead-jax[plot]'"
    return None


def draw_all(directory: Path, rows: Sequence[Row], conditions: Conditions) -> list[Path]:
    """Draws all pictures of a benchmark.

    Args:
        directory: Where to; it exists.
        rows: What was measured. Rows without times (texts of one token) are left out.
        conditions: What they have in common.

    Returns:
        The files, in the order in which they are best looked at; none if there is nothing to draw.

    Raises:
        LookaheadError: matplotlib is not installed, or a file cannot be written.
    """
    problem = why_not()
    if problem is not None:
        raise LookaheadError(problem)
    drawn = [row for row in rows if is_measured(row)]
    if not drawn:
        return []
    pictures: dict[str, Callable[[Sequence[Row], Conditions], Figure]] = {
        "speedup_map.png": speedup_map,
        "speedup_by_rows.png": speedup_by_rows,
        "rounds.png": rounds,
        "accepted.png": accepted,
    }
    paths = []
    for name, draw in pictures.items():
        path = directory / name
        figure = draw(drawn, conditions)
        try:
            figure.savefig(path, format="png")
        except OSError as error:
            raise LookaheadError(f"cannot write {path}: {error.strerror}") from None
        paths.append(path)
    return paths


def speedup_map(rows: Sequence[Row], conditions: Conditions) -> Figure:
    """Speed-up over W and G for every N.

    Args:
        rows: At least one, all numbers finite.
        conditions: What they have in common.
    """
    cells = [
        heat_map.Cell(
            (row.point.window_size, row.point.ngram_size, row.point.guess_set_size),
            row.speed_up.median,
            (
                f"{number(row.speed_up.median)}x",
                f"{number(row.tokens_per_round)} tokens",
                *(("other texts",) if row.identical is False else ()),
            ),
            is_marked=row.identical is False,
        )
        for row in rows
    ]
    # So that a few percent on either side of 1 do not look like much.
    scale = heat_map.Scale("speed-up (times)", covers=(0.67, 1.5))
    form = heat_map.Form(widest=10.0, cell_width=0.85, narrowest=7.5, headroom=0.4)
    figure = heat_map.draw(cells, scale, form)
    notes = ["above 1 (blue) lookahead decoding is faster; the fastest in bold; tokens: per round"]
    if any(cell.is_marked for cell in cells):
        notes.append("hatched: wrote other texts than ordinary decoding, not exact")
    add_heading(figure, "Speed-up over ordinary decoding", notes, conditions)
    return figure


def accepted(rows: Sequence[Row], conditions: Conditions) -> Figure:
    """Share of rounds by the number of accepted candidate tokens, for a few settings.

    Args:
        rows: At least one, all numbers finite.
        conditions: What they have in common.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    shown = chosen(rows)
    down = -(-len(shown) // ACROSS)
    across = -(-len(shown) // down)
    figure = Figure((WIDTH, 0.5 + 2.9 * down), heat_map.DPI, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False, sharey=True).reshape(-1)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for axes, (why, row) in zip(panels, shown.items(), strict=False):
        in_all = sum(row.accepted_histogram)
        shares = [amount / in_all for amount in row.accepted_histogram]
        bars = axes.bar(range(len(shares)), shares, color=COLOURS[0], width=0.8)
        axes.bar_label(bars, [percent(share) for share in shares], fontsize=8, padding=1)
        axes.set_xticks(range(len(shares)))
        axes.set_ylim(0, 1.1)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        words = f"{why}{'; other texts' if row.identical is False else ''}"
        told = textwrap.wrap(words, 132 // across)
        gain = f"{number(row.tokens_per_round)} tokens per round; hit rate {percent(row.hit_rate)}"
        axes.set_title("\n".join([str(row.point), *told, gain]), fontsize=8.5)
        axes.set_xlabel("accepted candidate tokens", fontsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for axes in panels[::across]:
        axes.set_ylabel("share of the rounds", fontsize=9)
    notes = ["a round writes one token more than it accepts"]
    if len(rows) > 1:
        notes = [f"{len(shown)} of {len(rows)} settings; {notes[0]}"]
    add_heading(figure, "How many candidate tokens a round accepts", notes, conditions)
    return figure
