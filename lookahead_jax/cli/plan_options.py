"""The options of `lookahead-jax plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from lookahead_jax.cli.options import (
    GuessesOption,
    KVExchangeOption,
    NgramOption,
    PoolSlotsOption,
    WindowOption,
)

_ACCEPTANCE = "Acceptance"
_GRID = "Grid"


@dataclass(frozen=True)
class PlanOptions:
    """How the model decodes, on which part of the chips, and what is asked."""

    window: WindowOption = 7
    ngram: NgramOption = 5
    guesses: GuessesOption = 7
    pool_slots: PoolSlotsOption = None
    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh",
            metavar="AXES",
            help="How the chips are used, as data=1,lookahead=4,model=2: groups that share the "
            "batch, copies of the model that share a round's rows, devices that share a copy's "
            "weights. Else: the smallest model that fits, the rest lookahead.",
            rich_help_panel="Several devices",
            show_default=False,
        ),
    ] = None
    kv_exchange: KVExchangeOption = "broadcast"
    batch: Annotated[
        int, typer.Option("--batch", "-b", help="Sequences decoded together, over all chips.")
    ] = 1
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            "-c",
            help="Tokens of the longest text, prompt and output.",
            show_default="4096, or what the model takes",
        ),
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option("--dtype", metavar="NAME", help="Of weights, activations and cache."),
    ] = "bfloat16"
    int8: Annotated[
        bool, typer.Option("--int8", help="Matrices as int8 with a scale for each output channel.")
    ] = False
    acceptance: Annotated[
        float | None,
        typer.Option(
            "--acceptance",
            "-a",
            metavar="ALPHA",
            help="Probability that a candidate's token is accepted, given those before it. Else: "
            "a table over several.",
            rich_help_panel=_ACCEPTANCE,
            show_default=False,
        ),
    ] = None
    hit_rate: Annotated[
        float | None,
        typer.Option(
            "--hit-rate",
            metavar="SHARE",
            help="Share of rounds that find candidates in the pool.",
            rich_help_panel=_ACCEPTANCE,
            show_default="1",
        ),
    ] = None
    tokens_per_round: Annotated[
        float | None,
        typer.Option(
            "--tokens-per-round",
            metavar="X",
            help="Tokens that a round publishes, measured elsewhere.",
            rich_help_panel=_ACCEPTANCE,
            show_default=False,
        ),
    ] = None
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            metavar="FILE",
            help="The same, out of what `generate --json` printed with the same W, N and G, or of "
            "the results.json of `bench`.",
            rich_help_panel=_ACCEPTANCE,
            show_default=False,
        ),
    ] = None
    grid: Annotated[
        str | None,
        typer.Option(
            "--grid",
            metavar="SIZES",
            help='Several W, N and G, as "W=3,5,7,15 N=3,5 G=3,7,15": the speed-up for each with '
            "--acceptance, else how many steps a round takes.",
            rich_help_panel=_GRID,
            show_default=False,
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.png",
            help="Draws --grid (needs matplotlib: the extra plot).",
            rich_help_panel=_GRID,
            show_default=False,
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
