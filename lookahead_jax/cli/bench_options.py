"""The options of `lookahead-jax bench`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from lookahead_jax.cli.options import (
    LogitOptions,
    MaxNewTokensOption,
    MeshOptions,
    ModelOptions,
    PlainOption,
    PoolSlotsOption,
    SamplingOptions,
    TextOptions,
)

_MEASURING = "Measuring"


@dataclass(frozen=True)
class GridOptions:
    """What is measured, on which texts, and where to."""

    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Where measurements, results.json, report.md and pictures go. The same command "
            "continues there.",
            show_default=False,
            rich_help_panel=_MEASURING,
        ),
    ]
    grid: Annotated[
        str,
        typer.Option(
            "--grid",
            "-g",
            metavar="SIZES",
            help="The W, N and G to measure: all combinations.",
            rich_help_panel=_MEASURING,
        ),
    ] = "W=3,7 N=3,5 G=3,7"
    prompts: Annotated[
        str,
        typer.Option(
            "--prompts",
            "-p",
            metavar="FILE",
            help="builtin, or a JSONL file: of Spec-Bench, of HumanEval, or with a prompt (or id, "
            "category and turns) on each line.",
            rich_help_panel=_MEASURING,
        ),
    ] = "builtin"
    per_category: Annotated[
        int | None,
        typer.Option(
            "--per-category",
            metavar="K",
            help="Only the first K prompts of each category.",
            show_default="all",
            rich_help_panel=_MEASURING,
        ),
    ] = None
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats",
            "-r",
            help="How often each text is written by either decoder; more show the spread better.",
            rich_help_panel=_MEASURING,
        ),
    ] = 3
    batch_size: Annotated[
        int,
        typer.Option(
            "--batch-size",
            "-b",
            help="Texts decoded together, by both decoders.",
            rich_help_panel=_MEASURING,
        ),
    ] = 1
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="DIR",
            help="Also write a profiler trace of each setting there, and tell which part of a "
            "round takes which share of the time.",
            show_default=False,
            rich_help_panel=_MEASURING,
        ),
    ] = None
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the contents of results.json in the place of a table.",
            rich_help_panel=_MEASURING,
        ),
    ] = False


@dataclass(frozen=True)
class LengthOptions:
    """What the texts are."""

    max_new_tokens: MaxNewTokensOption = 128
    pool_slots: PoolSlotsOption = None
    no_chat_template: PlainOption = False


@dataclass(frozen=True)
class BenchOptions(
    MeshOptions, LogitOptions, SamplingOptions, LengthOptions, ModelOptions, GridOptions
):
    """All of these. The last class named comes first in the help."""

    def text_options(self) -> TextOptions:
        """The same as options for texts, with W, N and G at their defaults."""
        mine = {field.name for field in fields(self)}
        shared = [field.name for field in fields(TextOptions) if field.name in mine]
        return TextOptions(**{name: getattr(self, name) for name in shared})
