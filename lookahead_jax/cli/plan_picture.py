"""The picture of `lookahead-jax plan --grid`: a map over W and G for every N."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lookahead_jax.cli.plan import Estimate, Progress
from lookahead_jax.deployment import Deployment
from lookahead_jax.errors import LookaheadError

PANELS = 3
"""Side by side."""


def check_picture(path: Path) -> None:
    """Refuses a picture that cannot be drawn, before anything is worked out.

    Raises:
        LookaheadError: matplotlib is not installed, or the name is not that of a .png file in a
            directory that exists.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise LookaheadError("--grid needs matplotlib: pip install 'lookahead-jax[plot]'") from None
    if path.suffix.lower() != ".png":
        raise LookaheadError(f"--output must name a .png file, got {path}")
    if not path.absolute().parent.is_dir():
        raise LookaheadError(f"--output {path}: there is no directory {path.absolute().parent}")


def draw_grid(
    path: Path, deployment: Deployment, points: Sequence[Estimate], progress: Progress | None
) -> None:
    """Draws how much faster each setting would be, or how long its round takes.

    Args:
        path: A .png file.
        deployment: What the points have in common.
        points: All W, N and G of a grid.
        progress: How much is accepted: the picture shows speed-ups. None: rounds over steps.

    Raises:
        LookaheadError: The file cannot be written.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

    cells = [_cell(point, progress) for point in points]
    widths, lengths, guesses = (sorted({cell.place[i] for cell in cells}) for i in range(3))
    values = [cell.value for cell in cells]
    able = [cell for cell in cells if cell.fits] or cells
    best = (min if progress is None else max)(able, key=lambda cell: cell.value)
    colours = ScalarMappable(*_scale(values, higher_is_better=progress is not None))
    down = -(-len(lengths) // PANELS)
    across = -(-len(lengths) // down)
    width = max(7.0, 1.2 + across * (0.8 + 0.75 * len(widths)))
    figure = Figure((width, 1.3 + down * (0.9 + 0.6 * len(guesses))), 120, layout="constrained")
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
    label = "round time / step time" if progress is None else "speed-up (times)"
    figure.colorbar(colours, ax=list(axes), pad=0.02, label=label)
    figure.suptitle("\n".join(_title(deployment, cells, progress)), fontsize=10)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise LookaheadError(f"cannot write {path}: {error.strerror}") from None


@dataclass(frozen=True)
class Cell:
    """One setting.

    Attributes:
        place: W, N and G.
        value: Speed-up, or round over step.
        rows: Rows that a device computes.
        fits: Whether it fits the memory.
    """

    place: tuple[int, int, int]
    value: float
    rows: int
    fits: bool


def _cell(point: Estimate, progress: Progress | None) -> Cell:
    config = point.deployment.config
    return Cell(
        (config.window_size, config.ngram_size, config.guess_set_size),
        point.ratio if progress is None else point.speed_up(progress),
        point.round.rows,
        point.memory.fits,
    )


def _scale(values: Sequence[float], *, higher_is_better: bool) -> tuple[Any, str]:
    """Two colours that part at 1 where there are values on both sides of it, else one."""
    from matplotlib.colors import Normalize, TwoSlopeNorm

    least, most = min(values), max(values)
    if least < 1 < most:
        return TwoSlopeNorm(1.0, least, most), "RdBu" if higher_is_better else "RdBu_r"
    room = 0.02 * least if most == least else 0.0
    return Normalize(least - room, most + room), "Blues" if higher_is_better else "Reds"


def _draw_cell(axis: Any, x: int, y: int, cell: Cell, shade: Any, is_best: bool) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(
        Rectangle(
            (x - 0.5, y - 0.5),
            1,
            1,
            facecolor=shade,
            edgecolor="0.4" if not cell.fits else "white",
            hatch=None if cell.fits else "//",
            linewidth=1,
        )
    )
    red, green, blue, _ = shade
    is_dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
    text = f"{cell.value:.2f}\n{cell.rows} rows" + ("" if cell.fits else "\nno room")
    weight = "bold" if is_best else "normal"
    ink = "white" if is_dark else "black"
    box = None if cell.fits else {"facecolor": shade, "edgecolor": "none", "pad": 1}
    axis.text(x, y, text, ha="center", va="center", fontsize=8, color=ink, weight=weight, bbox=box)


def _title(deployment: Deployment, cells: Sequence[Cell], progress: Progress | None) -> list[str]:
    what = "Time of a round over an ordinary step's (the best in bold), and rows on a device"
    if progress is not None:
        what = (
            f"Speed-up over ordinary decoding (the best in bold), and rows on a device,\n"
            f"at acceptance {progress.acceptance:g} whatever W, N and G, candidates in "
            f"{progress.hit_rate:.0%} of rounds"
        )
    where = f"{deployment.shape.name}, {deployment.form}, {deployment.tpu.name}, {deployment.mesh}"
    lines = [what, where]
    if not all(cell.fits for cell in cells):
        lines.append("hatched: does not fit the memory")
    return [*lines, "estimated from the vendor's peak figures, not measured"]
