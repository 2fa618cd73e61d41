"""The picture of `lookahead-jax plan --grid`: a map over W and G for every N."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lookahead_jax import heat_map
from lookahead_jax.cli.plan import Estimate, Progress
from lookahead_jax.deployment import Deployment
from lookahead_jax.errors import LookaheadError


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
    cells = [_cell(point, progress) for point in points]
    label = "round time / step time" if progress is None else "speed-up (times)"
    scale = heat_map.Scale(label, higher_is_better=progress is not None)
    figure = heat_map.draw(cells, scale)
    figure.suptitle("\n".join(_title(deployment, cells, progress)), fontsize=10)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise LookaheadError(f"cannot write {path}: {error.strerror}") from None


def _cell(point: Estimate, progress: Progress | None) -> heat_map.Cell:
    """A setting's speed-up, or round over step, and the rows that a device computes."""
    config, fits = point.deployment.config, point.memory.fits
    value = point.ratio if progress is None else point.speed_up(progress)
    lines = (f"{value:.2f}", f"{point.round.rows} rows", *(() if fits else ("no room",)))
    place = (config.window_size, config.ngram_size, config.guess_set_size)
    return heat_map.Cell(place, value, lines, is_marked=not fits)


def _title(
    deployment: Deployment, cells: Sequence[heat_map.Cell], progress: Progress | None
) -> list[str]:
    what = "Time of a round over an ordinary step's (the best in bold), and rows on a device"
    if progress is not None:
        what = (
            f"Speed-up over ordinary decoding (the best in bold), and rows on a device,\n"
            f"at acceptance {progress.acceptance:g} whatever W, N and G, candidates in "
            f"{progress.hit_rate:.0%} of rounds"
        )
    where = f"{deployment.shape.name}, {deployment.form}, {deployment.tpu.name}, {deployment.mesh}"
    lines = [what, where]
    if any(cell.is_marked for cell in cells):
        lines.append("hatched: does not fit the memory")
    return [*lines, "estimated from the vendor's peak figures, not measured"]
