"""Marks in a picture, one for each setting, and words beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lookahead_jax.bench.records import Row
from lookahead_jax.bench.selection import best

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

Place = tuple[float, float]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
"""The palette of Okabe and Ito, which the colour-blind can tell apart."""
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "p")
"""One for each N, so that colour is never all that tells them apart."""
CROWD = 24
"""With more marks than this only a few are labelled."""
LABELLED = 10
"""How many, in a crowd."""


@dataclass(frozen=True)
class Mark:
    """One setting in a picture.

    Attributes:
        row: What it shows.
        at: x and y.
        bar: Both ends of a bar from quartile to quartile, along one of the axes.
    """

    row: Row
    at: Place
    bar: tuple[Place, Place]


def draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Draws a series for each N, a ring around the best, and a cross where texts differ."""
    lengths = sorted({mark.row.point.ngram_size for mark in marks})
    for i, length in enumerate(lengths):
        series = [mark for mark in marks if mark.row.point.ngram_size == length]
        reach = [
            [
                [mark.at[k] - mark.bar[0][k] for mark in series],
                [mark.bar[1][k] - mark.at[k] for mark in series],
            ]
            for k in range(2)
        ]
        across, upright = (r if any(map(any, r)) else None for r in reach)
        axes.errorbar(
            [mark.at[0] for mark in series],
            [mark.at[1] for mark in series],
            upright,
            across,
            fmt=SHAPES[i % len(SHAPES)],
            color=COLOURS[i % len(COLOURS)],
            markersize=7,
            markeredgecolor="white",
            markeredgewidth=0.6,
            elinewidth=1,
            capsize=2,
            zorder=3,
            label=f"N = {length} tokens",
        )
    top = _best(marks)
    if len(marks) > 1:
        ring = {"markersize": 13, "fillstyle": "none", "color": "black", "zorder": 4}
        axes.plot(*top.at, "o", **ring, linestyle="none", label="the fastest")
    wrong = [mark.at for mark in marks if mark.row.identical is False]
    if wrong:
        axes.plot(
            [x for x, _ in wrong],
            [y for _, y in wrong],
            "x",
            color="black",
            markersize=9,
            markeredgewidth=1.6,
            zorder=4,
            linestyle="none",
            label="wrote other texts: not exact",
        )


def label_marks(axes: Axes, marks: Sequence[Mark], others: Sequence[Place] = ()) -> int:
    """Writes (W, G) beside marks wherever that covers neither a mark, nor a bar, nor other words.

    The layout of the figure is fixed by this; call it last.

    Args:
        axes: Whose limits are final.
        marks: Those of the fastest settings come first; the best one is always labelled.
        others: What else is not to be covered.

    Returns:
        How many labels were written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer = canvas.get_renderer()
    frame = axes.get_window_extent(renderer)
    pixels = figure.dpi / 72
    half = 4.5 * pixels
    taken: list[Bbox] = []
    for x, y in axes.transData.transform([*(mark.at for mark in marks), *others]):
        taken.append(Bbox.from_extents(x - half, y - half, x + half, y + half))
    for mark in marks:
        (x0, y0), (x1, y1) = axes.transData.transform(mark.bar)
        taken.append(Bbox.from_extents(x0 - 1, y0 - 1, x1 + 1, y1 + 1))
    written = 0
    top = _best(marks)
    order = sorted(marks, key=lambda mark: (mark is not top, -mark.row.speed_up.median))
    for mark in order:
        if len(order) > CROWD and written == LABELLED:
            break
        point = mark.row.point
        words = axes.annotate(
            f"({point.window_size}, {point.guess_set_size})",
            mark.at,
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=8,
            weight="bold" if mark is top else "normal",
            parse_math=False,
            path_effects=[withStroke(linewidth=2, foreground="white")],
            zorder=5,
        )
        words.set_in_layout(False)
        size = words.get_window_extent(renderer)
        place: tuple[int, tuple[float, float], Bbox] | None = None
        gap = 8.0 if mark is top else 5.5
        for dx, dy in _offsets(size.width / pixels, size.height / pixels, gap):
            box = size.translated(dx * pixels, dy * pixels).padded(1)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1
            if not (inside and frame.y0 <= box.y0 and box.y1 <= frame.y1):
                continue
            covered = sum(box.overlaps(other) for other in taken)
            if place is None or covered < place[0]:
                place = (covered, (dx, dy), box)
        if place is None or (place[0] and written):
            words.remove()
            continue
        words.set_position(place[1])
        taken.append(place[2])
        written += 1
    return written


def _best(marks: Sequence[Mark]) -> Mark:
    top = best([mark.row for mark in marks])
    return next(mark for mark in marks if mark.row is top)


def _offsets(width: float, height: float, gap: float) -> list[tuple[float, float]]:
    """Lower left corners of words around a mark, in points from it; the best places first."""
    middle, centre = -0.35 * height, -width / 2
    return [
        (gap, middle),
        (centre, gap),
        (-gap - width, middle),
        (centre, -gap - 0.8 * height),
        (gap, gap / 2),
        (gap, -gap / 2 - 0.8 * height),
        (-gap - width, gap / 2),
        (-gap - width, -gap / 2 - 0.8 * height),
    ]
