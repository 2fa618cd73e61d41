"""Recorded runs grouped by the configuration of the package that they are held against."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import trace_files

from lookahead_jax import LookaheadConfig

CORRECT = {"wrong_history": False, "commit_overshoot": False}
"""Changes to the oracle's official schedule that make it what the product is meant to be."""

CAPACITY = 384
"""Tokens that the longest recorded run and its overhang fit into."""


def config_of(trace: trace_files.Trace) -> LookaheadConfig:
    return LookaheadConfig.pinned(
        trace["W"], trace["N"], trace["G"], pool_from_prompt=bool(trace["pool_from_prompt"])
    )


def label(config: LookaheadConfig) -> str:
    return "w{window_size}n{ngram_size}g{guess_set_size}-pool{pool_from_prompt:d}".format_map(
        vars(config)
    )


def greedy_by_config(model: str, *, quick: frozenset[str] | None = None) -> list[Any]:
    """(config, trace ids) to parametrise a test with; all but the `quick` ones are slow."""
    groups = defaultdict(list)
    for name in trace_files.trace_ids(model, "greedy"):
        groups[config_of(trace_files.trace(name))].append(name)
    return [
        pytest.param(
            config,
            names,
            id=label(config),
            marks=[] if quick is None or label(config) in quick else [pytest.mark.slow],
        )
        for config, names in groups.items()
    ]
