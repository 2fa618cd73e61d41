"""Pictures with a mark for each setting: speed-up over rows, and tokens over time of a round."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lookahead_jax.bench.frame import FASTER, WIDTH, add_heading
from lookahead_jax.bench.marks import CROWD, Mark, draw_marks, label_marks
from lookahead_jax.bench.records import Conditions, Row
from lookahead_jax.bench.timing import Spread
from lookahead_jax.bench.wording import number
from lookahead_jax.heat_map import DPI

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 6.0
"""Where the largest value is more than so many times the least, an axis is logarithmic."""


def speedup_by_rows(rows: Sequence[Row], conditions: Conditions) -> Figure:
    """Speed-up against Q, the rows of a round.

    Args:
        rows: At least one, all numbers finite.
        conditions: What they have in common.
    """
    figure, axes = _start()
    sizes = [float(row.num_rows) for row in rows]
    low, high = min(sizes), max(sizes)
    if high > WIDE * low:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(low / 1.3, high * 1.3)
    else:
        axes.locator_params("x", integer=True)
        room = 0.12 * (high - low) or 0.2 * high
        axes.set_xlim(low - room, high + room)
    xs = _side_by_side(axes, rows)
    ends = [x for row in rows for x in (row.speed_up.low, row.speed_up.high)]
    least, most = min(1.0, *ends), max(1.0, *ends)
    room = 0.1 * (most - least) or 0.1
    axes.set_ylim(max(0.0, least - room), most + room)
    axes.axhspan(1, most + room, color=FASTER, zorder=0, label="lookahead decoding is faster")
    axes.axhline(
        1, color="black", linewidth=1.2, linestyle="--", label="ordinary decoding", zorder=1
    )
    axes.set_xlabel("Q, rows of a round")
    axes.set_ylabel("speed-up over ordinary decoding (times)")
    marks = [
        Mark(row, (x, row.speed_up.median), ((x, row.speed_up.low), (x, row.speed_up.high)))
        for x, row in zip(xs, rows, strict=True)
    ]
    draw_marks(axes, marks)
    notes = [_bars(rows, "speed-up")]
    if len(set(sizes)) < len(sizes):
        notes.append("settings with the same Q are drawn side by side")
    _finish(axes, marks, "Speed-up against the rows of a round", notes, conditions)
    return figure


def rounds(rows: Sequence[Row], conditions: Conditions) -> Figure:
    """Tokens per round against milliseconds per round, with the line where these break even.

    Args:
        rows: At least one, all numbers finite.
        conditions: What they have in common.
    """
    figure, axes = _start()
    steps = sorted(row.step_ms.median for row in rows)
    step = Spread.of(steps).median
    ends = [x for row in rows for x in (row.round_ms.low, row.round_ms.high)]
    longest = max(*ends, step)
    tokens = [row.tokens_per_round for row in rows]
    if longest > WIDE * step:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_yticks([0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 12, 16])
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        left, right = min(*ends, step) / 1.25, longest * 1.25
        bottom, top = 0.8 * min(*tokens, 1.0), 1.3 * max(*tokens, 1.0)
    else:
        # The line begins in the corner: there as many tokens as steps go into a round.
        corner = 0.7 * min(1.0, *tokens, *(x / step for x in ends))
        left, right = corner * step, longest * 1.06
        bottom, top = corner, 1.12 * max(*tokens, 1.0)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    line = [left, right]
    axes.fill_between(
        line,
        [x / step for x in line],
        top * 10,
        color=FASTER,
        zorder=0,
        label="lookahead decoding is faster",
    )
    if steps[-1] > 1.01 * steps[0]:
        axes.fill_between(
            line,
            [x / steps[-1] for x in line],
            [x / steps[0] for x in line],
            color="0.8",
            zorder=0.5,
            label=f"the line for steps of {number(steps[0])} to {number(steps[-1])} ms",
        )
    axes.plot(
        line,
        [x / step for x in line],
        color="black",
        linewidth=1.2,
        linestyle="--",
        zorder=1,
        label=f"break-even: tokens = ms / {number(step)} ms",
    )
    axes.plot(
        [step],
        [1],
        marker="*",
        markersize=13,
        color="black",
        linestyle="none",
        zorder=4,
        label="an ordinary step",
    )
    axes.set_xlabel("time of a round (ms)")
    axes.set_ylabel("tokens per round")
    marks = []
    for row in rows:
        y, time = row.tokens_per_round, row.round_ms
        marks.append(Mark(row, (time.median, y), ((time.low, y), (time.high, y))))
    draw_marks(axes, marks)
    title = "Tokens per round against the time of a round"
    _finish(axes, marks, title, [_bars(rows, "time")], conditions, others=[(step, 1.0)])
    return figure


def _start() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure((WIDTH, 5.6), DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _side_by_side(axes: Axes, rows: Sequence[Row]) -> list[float]:
    """Places on the x axis for Q, those of equal Q beside each other."""
    across = axes.transScale + axes.transLimits
    groups: dict[int, list[int]] = {}
    for index in sorted(range(len(rows)), key=lambda i: rows[i].point):
        groups.setdefault(rows[index].num_rows, []).append(index)
    places = {size: across.transform((size, 1.0))[0] for size in groups}
    order = sorted(places.values())
    gaps = [b - a for a, b in itertools.pairwise(order)] or [1.0]
    xs = [0.0] * len(rows)
    for size, members in groups.items():
        # All together take at most half of the narrowest gap between two sizes.
        apart = min(0.014, 0.5 * min(gaps) / len(members))
        for k, index in enumerate(members):
            shifted = places[size] + (k - (len(members) - 1) / 2) * apart
            xs[index] = float(across.inverted().transform((shifted, 0.5))[0])
    return xs


def _bars(rows: Sequence[Row], of: str) -> str:
    if all(row.repetitions == 1 for row in rows):
        return "measured once, so without spread"
    return f"bars: quartiles of the {of} over the repetitions"


def _finish(
    axes: Axes,
    marks: Sequence[Mark],
    title: str,
    notes: Sequence[str],
    conditions: Conditions,
    others: Sequence[tuple[float, float]] = (),
) -> None:
    """Legend, heading, and labels as far as there is room for them."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    which = "(W, G) beside a few" if len(marks) > CROWD else "(W, G) where there is room"
    add_heading(figure, title, ["; ".join([*notes, which])], conditions)
    label_marks(axes, marks, others)
