"""The loss curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.training.run import Loss

SMOOTH = 20
"""Steps that a point of the training curve is the mean of."""


def plot_losses(path: Path, losses: Sequence[Loss], bytes_per_step: int) -> None:
    """Draws training and held-out loss over the bytes that were read.

    Args:
        path: A .png file.
        losses: One for each step.
        bytes_per_step: Of text.

    Raises:
        LookaheadError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LookaheadError(
            "plotting needs matplotlib: pip install 'lookahead-jax[plot]'"
        ) from error
    figure = Figure(figsize=(7, 4), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    bits = [loss.training / math.log(2) for loss in losses]
    means = [sum(bits[max(0, i - SMOOTH) : i]) / min(i, SMOOTH) for i in range(1, len(bits) + 1)]
    read = [loss.step * bytes_per_step / 1e6 for loss in losses]
    axes.plot(read, means, label=f"training, mean of {SMOOTH} steps", linewidth=1.5)
    held_out = [(at, x.held_out) for at, x in zip(read, losses, strict=True) if x.held_out]
    if held_out:
        at, values = zip(*held_out, strict=True)
        axes.plot(at, [x / math.log(2) for x in values], "o-", label="held out", markersize=4)
        axes.annotate(
            f"{values[-1] / math.log(2):.2f}",
            (at[-1], values[-1] / math.log(2)),
            textcoords="offset points",
            xytext=(-4, 10),
            ha="right",
        )
    axes.set_xlabel("text read, millions of bytes")
    axes.set_ylabel("loss, bits per byte")
    axes.set_ylim(0, None)
    axes.set_xlim(0, None)
    axes.set_title("Training of tiny-bytes on the Python standard library")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path)
