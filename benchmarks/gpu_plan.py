"""What gpu_check.py does, in order of worth."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.campaign import Part, Step
from benchmarks.gpu_exactness import Case, exactness_steps, precision, prompts_of, verdict
from benchmarks.gpu_rounds import Conditions, Point, round_steps, thresholds
from lookahead_jax.attention import Dense, PallasGPU, Split
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.models import load_model
from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.models.huggingface import read_config
from lookahead_jax.models.shapes import KNOWN_SHAPES, known_config
from lookahead_jax.sampling import Greedy, Sample

SEVEN, SMALL = LookaheadConfig(7, 5, 7), LookaheadConfig(4, 3, 4)
HOW = (Greedy(), Sample(temperature=0.8, top_k=50, top_p=0.95, seed=7))

GRID = tuple(
    LookaheadConfig(w, n, w)
    for w, n in ((7, 5), (15, 5), (4, 3), (30, 5), (7, 3), (10, 5), (2, 3), (20, 5), (1, 3), (4, 5))
)
"""56, 120, 16, 240, 28, 80, 8, 160, 4 and 32 rows: cut short, it still spans the range."""

COMPARED = GRID[:2]
"""Rounds at which implementations of attention are compared."""

PRECISION = "precision of products"

# The texts are shorter than a block of the default attention, which then walks through nothing.
WALKING = Split(64)


@dataclass(frozen=True)
class Plan:
    """What is checked; in each tuple the most worthwhile first.

    Attributes:
        model: Whose text must be exact: what `load_model` takes.
        max_new_tokens: Of each of its texts.
        cases: Comparisons of texts.
        shapes: Models whose rounds are timed: names of `KNOWN_SHAPES`, or directories with
            config.json.
        conditions: Of the times.
        grid: Rounds, for all shapes.
        compared: Rounds that compare implementations of attention, for the first shape.
        kernel_cases: Comparisons that could fail and take the process along: they come last.
        kernel_rounds: Likewise, for all shapes.
    """

    model: str = "smollm2-135m"
    max_new_tokens: int = 64
    cases: tuple[Case, ...] = tuple(
        Case(way, how, config)
        for way, config in ((None, SEVEN), (WALKING, SEVEN), (None, SMALL))
        for how in HOW
    )
    shapes: tuple[str, ...] = ("llama-3.2-1b", "llama-3.1-8b")
    conditions: Conditions = field(default_factory=Conditions)
    grid: tuple[Point, ...] = tuple(Point(config) for config in GRID)
    compared: tuple[Point, ...] = tuple(
        Point(config, way) for config in COMPARED for way in (None, Dense(), Split(128))
    )
    kernel_cases: tuple[Case, ...] = tuple(Case(PallasGPU(), how, SEVEN) for how in HOW)
    kernel_rounds: tuple[Point, ...] = tuple(
        Point(config, way) for config in COMPARED for way in (None, PallasGPU())
    )


def parts_of(plan: Plan) -> tuple[Part, ...]:
    """The work, the most worthwhile first; times are guesses for one recent GPU.

    Raises:
        LookaheadError: A shape is unknown, or a text does not fit its capacity.
    """
    points = (*plan.grid, *plan.compared, *plan.kernel_rounds)
    plan.conditions.check([point.config for point in points])
    shapes = {name: _shape(name) for name in plan.shapes}
    parts = [_exactness("exactness", plan, plan.cases)]
    if plan.grid:
        parts += [_rounds("rounds", plan, *shape, plan.grid) for shape in shapes.items()]
    if plan.compared:
        parts += [_rounds("attention", plan, *x, plan.compared) for x in list(shapes.items())[:1]]
    if plan.kernel_cases:
        parts.append(_exactness("exactness of kernels", plan, plan.kernel_cases, optional=True))
    if plan.kernel_rounds:
        parts += [
            _rounds("kernels", plan, *shape, plan.kernel_rounds, optional=True)
            for shape in shapes.items()
        ]
    return tuple(parts)


def _shape(name: str) -> DecoderConfig:
    if name in KNOWN_SHAPES or not Path(name).is_dir():
        return known_config(name)
    return read_config(Path(name))


def _exactness(name: str, plan: Plan, cases: Sequence[Case], *, optional: bool = False) -> Part:
    def open_steps() -> list[Step]:
        lm = load_model(plan.model, dtype="float32", progress=lambda done, total: None)
        steps = exactness_steps(lm, prompts_of(lm), cases, plan.max_new_tokens)
        return steps if optional else [Step(PRECISION, lambda: precision(lm)), *steps]

    return Part(name, 15.0, 40.0, open_steps, verdict, optional)


def _rounds(
    name: str,
    plan: Plan,
    shape: str,
    config: DecoderConfig,
    points: Sequence[Point],
    *,
    optional: bool = False,
) -> Part:
    # Compiling takes most of the time, and goes by the layers.
    seconds = 10.0 + config.num_hidden_layers
    make = functools.partial(round_steps, config, points, plan.conditions)
    return Part(f"{name}, {shape}", 1.5 * seconds, seconds, make, thresholds, optional)
