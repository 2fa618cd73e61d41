"""`lookahead-jax plan`: what a model would take on a TPU, before one is rented."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lookahead_jax.bench.grid import parse_grid
from lookahead_jax.bench.records import Point
from lookahead_jax.cli.console import write_json
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.cost import tokens_per_round
from lookahead_jax.deployment import Deployment, Memory, MeshShape, memory
from lookahead_jax.errors import LookaheadError
from lookahead_jax.hardware import parse_slice
from lookahead_jax.model_shape import ModelShape, NumberFormat
from lookahead_jax.planning import choose_mesh
from lookahead_jax.roofline import Call, lookahead_round, ordinary_step

if TYPE_CHECKING:
    from lookahead_jax.cli.plan_options import PlanOptions

CAVEAT = "An estimate from the vendor's peak figures, no overheads: nothing was measured."
"""What all of this is, said once."""

SIZES = ("window_size", "ngram_size", "guess_set_size")
"""W, N and G in records."""

CONTEXT = 4096
"""Tokens of a text where nobody says how many."""


@dataclass(frozen=True)
class Progress:
    """Tokens that a round publishes: as told, or by the model of acceptance.

    Attributes:
        acceptance: alpha; None where the tokens are told.
        hit_rate: Share of rounds with candidates.
        told: Tokens per round, told.
    """

    acceptance: float | None = None
    hit_rate: float = 1.0
    told: float | None = None

    def tokens(self, config: LookaheadConfig) -> float:
        """Tokens per round."""
        if self.told is not None:
            return self.told
        assert self.acceptance is not None
        return tokens_per_round(config, self.acceptance, self.hit_rate)


ALPHAS = (0.1, 0.2, 0.3, 0.5, 0.7)
HIT_RATES = (0.5, 1.0)
"""What the table is over where nobody says how much is accepted."""


@dataclass(frozen=True)
class Estimate:
    """What is known of a deployment.

    Attributes:
        deployment: The model on the chips.
        memory: Bytes on a device.
        step: A step of ordinary decoding.
        round: A round of lookahead decoding.
    """

    deployment: Deployment
    memory: Memory
    step: Call
    round: Call

    @property
    def ratio(self) -> float:
        """Time of a round over that of a step: tokens per round from which it pays."""
        return self.round.seconds / self.step.seconds

    def speed_up(self, progress: Progress) -> float:
        """Time of a token of ordinary decoding over that of lookahead decoding."""
        return progress.tokens(self.deployment.config) / self.ratio


def estimate(deployment: Deployment) -> Estimate:
    """Works a deployment out."""
    return Estimate(
        deployment, memory(deployment), ordinary_step(deployment), lookahead_round(deployment)
    )


def run_plan(
    model: str, tpu: str, options: PlanOptions, find_shape: Callable[[str], ModelShape]
) -> None:
    """Plans, and prints or draws what came of it.

    Args:
        model: What `find_shape` takes.
        tpu: Name of a slice.
        options: The rest.
        find_shape: `lookahead_jax.models.shapes.find_shape`.

    Raises:
        LookaheadError: A value is out of range, or makes no sense beside another.
    """
    from rich.console import Console

    from lookahead_jax.cli.plan_picture import check_picture, draw_grid
    from lookahead_jax.cli.plan_record import plan_record
    from lookahead_jax.cli.plan_report import print_plan

    if (options.grid is None) != (options.output is None):
        raise LookaheadError("--grid and --output go together; only one of them was given")
    progress, grid = read_progress(options), ()
    if options.grid is not None and options.output is not None:
        grid = parse_grid(options.grid)
        check_picture(options.output)
        if progress is not None and progress.told is not None:
            raise LookaheadError(
                "--grid goes with --acceptance: tokens per round are those of one W, N and G"
            )
    deployment = read_deployment(find_shape(model), tpu, options)
    whole = estimate(deployment)
    points = grid_points(deployment, grid)
    if options.output is not None:
        draw_grid(options.output, deployment, points, progress)
    if options.as_json:
        write_json(plan_record(whole, progress, points))
        return
    print_plan(Console(highlight=False), whole, progress)
    if options.output is not None:
        what = "1 setting is" if len(points) == 1 else f"{len(points)} settings are"
        print(f"{what} drawn in {options.output}")


def read_deployment(shape: ModelShape, tpu: str, options: PlanOptions) -> Deployment:
    """The deployment that options ask for.

    Raises:
        LookaheadError: A value is out of range, or the mesh does not fit.
    """
    from lookahead_jax.sharding import parse_mesh

    deployment = Deployment(  # on one device at first
        shape=shape,
        form=NumberFormat(options.dtype, options.int8),
        config=LookaheadConfig(
            window_size=options.window,
            ngram_size=options.ngram,
            guess_set_size=options.guesses,
            pool_slots=options.pool_slots,
            kv_exchange=options.kv_exchange,
        ),
        tpu=parse_slice(tpu),
        mesh=MeshShape(),
        batch_size=options.batch,
        context=min(CONTEXT, shape.max_length) if options.context is None else options.context,
    )
    if options.mesh is None:
        return choose_mesh(deployment)
    return replace(deployment, mesh=MeshShape(**parse_mesh(options.mesh)))


def read_progress(options: PlanOptions) -> Progress | None:
    """How much is accepted; None where the options do not say.

    Raises:
        LookaheadError: They say it twice, or out of range.
    """
    ways = {
        "--acceptance": options.acceptance,
        "--tokens-per-round": options.tokens_per_round,
        "--measured": options.measured,
    }
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise LookaheadError(f"{' and '.join(given)} say the same: expected one of them")
    for name, value in (("--acceptance", options.acceptance), ("--hit-rate", options.hit_rate)):
        if value is not None and not 0 <= value <= 1:
            raise LookaheadError(f"{name} must be a number from 0 to 1, got {value}")
    if options.acceptance is not None:
        return Progress(options.acceptance, 1.0 if options.hit_rate is None else options.hit_rate)
    if options.hit_rate is not None:
        raise LookaheadError("--hit-rate needs --acceptance")
    if options.measured is not None:
        return Progress(told=_checked_tokens(read_measured(options), options))
    if options.tokens_per_round is not None:
        return Progress(told=_checked_tokens(options.tokens_per_round, options))
    return None


def _checked_tokens(tokens: float, options: PlanOptions) -> float:
    if not 1 <= tokens <= options.ngram:
        raise LookaheadError(
            f"tokens per round must be a number from 1 to N = {options.ngram}, got {tokens}"
        )
    return tokens


def read_measured(options: PlanOptions) -> float:
    """Tokens per round in what `generate --json` printed, or in results.json of `bench`.

    Raises:
        LookaheadError: It is none, or was made with another W, N or G.
    """
    path = options.measured
    assert path is not None
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LookaheadError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        record = None
    asked = (options.window, options.ngram, options.guesses)
    record = _row_of(record, asked)
    tokens = record.get("tokens_per_round") if isinstance(record, dict) else None
    if isinstance(tokens, bool) or not isinstance(tokens, int | float):
        raise LookaheadError(f'{path}: expected a JSON object with "tokens_per_round"')
    found = tuple(record.get(name) for name in SIZES)
    if found != asked:
        raise LookaheadError(
            f"{path} was measured with {_settings(found)}, the plan is for {_settings(asked)}"
        )
    return tokens


def _row_of(record: Any, asked: tuple[int, int, int]) -> Any:
    """The row with these sizes where it is a benchmark's record, else its first; or the record."""
    rows = record.get("rows") if isinstance(record, dict) else None
    if not isinstance(rows, list) or not rows:
        return record
    points = [row for row in rows if isinstance(row, dict) and isinstance(row.get("point"), dict)]
    flat = [{**row, **row["point"]} for row in points]
    alike = [row for row in flat if tuple(row.get(name) for name in SIZES) == asked]
    return next(iter(alike or flat), None)


def _settings(sizes: tuple[Any, ...]) -> str:
    return " ".join(f"{letter}={size}" for letter, size in zip("WNG", sizes, strict=True))


def grid_points(deployment: Deployment, points: Sequence[Point]) -> list[Estimate]:
    """Estimates for all points of a grid, on the same mesh."""
    return [
        estimate(
            replace(
                deployment,
                config=point.of(deployment.config),
            )
        )
        for point in points
    ]
