"""A map over W and G for every N: a colour and a few words for each setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
"""Pixels per inch of the pictures."""


@dataclass(frozen=True)
class Cell:
    """One setting.

    Attributes:
        place: W, N and G.
        value: What the colour shows.
        lines: Words in the cell, a line each.
        is_marked: Hatched, and not the best as long as another cell is not marked.
    """

    place: tuple[int, int, int]
    value: float
    lines: tuple[str, ...]
    is_marked: bool = False


@dataclass(frozen=True)
class Scale:
    """What the colours mean.

    Attributes:
        label: Beside the bar of colours, with the unit.
        higher_is_better: Which values are blue, and which red.
        covers: Values that the colours reach to even where no cell has them. If these, or the
            cells' values, lie on both sides of 1, two colours part there.
    """

    label: str
    higher_is_better: bool = True
    covers: tuple[float, ...] = ()


@dataclass(frozen=True)
class Form:
    """Sizes, in inches but for the number of panels.

    Attributes:
        panels: Most panels side by side.
        widest: Fewer are, where the picture would become wider than this.
        cell_width: Of a cell.
        cell_height: Of a cell.
        narrowest: Least width of the picture.
        headroom: For a title above the panels.
    """

    panels: int = 3
    widest: float = math.inf
    cell_width: float = 0.75
    cell_height: float = 0.6
    narrowest: float = 7.0
    headroom: float = 1.3


def draw(cells: Sequence[Cell], scale: Scale, form: Form | None = None) -> Figure:
    """Draws one panel for each N, with W to the right and G upwards; the best cell is bold.

    Args:
        cells: At least one, values finite and no place twice.
        scale: What the colours mean.
        form: Sizes.

    Returns:
        A figure without a title.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    form = form or Form()
    widths, lengths, guesses = (sorted({cell.place[i] for cell in cells}) for i in range(3))
    able = [cell for cell in cells if not cell.is_marked] or cells
    best = (max if scale.higher_is_better else min)(able, key=lambda cell: cell.value)
    values = [cell.value for cell in cells]
    colours = ScalarMappable(*_colours([*values, *scale.covers], scale.higher_is_better))
    panel = 0.8 + form.cell_width * len(widths)
    fitting = max(1, math.floor(min(form.panels, (form.widest - 1.2) / panel)))
    down = -(-len(lengths) // fitting)
    across = -(-len(lengths) // down)
    size = (
        max(form.narrowest, 1.2 + across * panel),
        form.headroom + down * (0.9 + form.cell_height * len(guesses)),
    )
    figure = Figure(size, DPI, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).reshape(-1)
    for axis in axes[len(lengths) :]:
        axis.set_visible(False)
    shades = colours.to_rgba(np.array(values))
    for axis, length in zip(axes, lengths, strict=False):
        for cell, shade in zip(cells, shades, strict=True):
            if cell.place[1] == length:
                x, y = widths.index(cell.place[0]), guesses.index(cell.place[2])
                _draw_cell(axis, x, y, cell, shade, cell is best)
        axis.set_xlim(-0.5, len(widths) - 0.5)
        axis.set_ylim(-0.5, len(guesses) - 0.5)
        axis.set_xticks(range(len(widths)), [str(size) for size in widths])
        axis.set_yticks(range(len(guesses)), [str(size) for size in guesses])
        axis.tick_params(length=0)
        axis.set_title(f"N = {length} tokens", fontsize=10)
        axis.set_xlabel("W, columns of the window")
        axis.set_ylabel("G, candidates a round")
    figure.colorbar(colours, ax=list(axes), pad=0.02, label=scale.label)
    return figure


def _colours(values: Sequence[float], higher_is_better: bool) -> tuple[Any, str]:
    """Two colours that part at 1 where there are values on both sides of it, else one."""
    from matplotlib.colors import Normalize, TwoSlopeNorm

    least, most = min(values), max(values)
    if least < 1 < most:
        return TwoSlopeNorm(1.0, least, most), "RdBu" if higher_is_better else "RdBu_r"
    room = 0.02 * least if most == least else 0.0
    return Normalize(least - room, most + room), "Blues" if higher_is_better else "Reds"


def _draw_cell(axis: Axes, x: int, y: int, cell: Cell, shade: Any, is_best: bool) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(
        Rectangle(
            (x - 0.5, y - 0.5),
            1,
            1,
            facecolor=shade,
            edgecolor="0.4" if cell.is_marked else "white",
            hatch="//" if cell.is_marked else None,
            linewidth=1,
        )
    )
    red, green, blue, _ = shade
    is_dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
    axis.text(
        x,
        y,
        "\n".join(cell.lines),
        ha="center",
        va="center",
        fontsize=8,
        color="white" if is_dark else "black",
        weight="bold" if is_best else "normal",
        # Words on hatching are hard to read.
        bbox={"facecolor": shade, "edgecolor": "none", "pad": 1} if cell.is_marked else None,
    )
