"""Loads the recorded data in tests/data/traces (its README says what it is)."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
TRACES = DATA / "traces"
TINY_MODEL = DATA / "tiny_model"

Trace = dict[str, Any]
"""One recorded run: a header, `steps`, one per model call, and `final`."""


@functools.cache
def traces(model: str) -> dict[str, Trace]:
    """All traces of "tiny" or "smollm2" by id, in order of their ids."""
    with gzip.open(TRACES / f"{model}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return {trace["id"]: trace for trace in map(json.loads, lines)}


def trace(trace_id: str) -> Trace:
    """One trace; its id starts with the model's name."""
    return traces(trace_id.partition("_")[0])[trace_id]


def trace_ids(model: str, mode: str | None = None) -> list[str]:
    """Ids to parametrise a test with; `mode` is "greedy", "sample" or None for both."""
    return [key for key, value in traces(model).items() if mode in (None, value["mode"])]


@functools.cache
def _json(name: str) -> Any:
    return json.loads((TRACES / name).read_text(encoding="utf-8"))


def layout_calls() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(case, call) of every recorded packed call; the case has W, N and G."""
    return [(case, call) for case in _json("layouts.json")["cases"] for call in case["calls"]]


def forward_check(model: str) -> dict[str, Any]:
    """A plain causal forward pass of the "tiny" or the "smollm2" model."""
    return _json("forward_check.json")[model]


def prompts(model: str) -> dict[str, Any]:
    """Prompt ids ("tiny") or texts and ids ("smollm2") by name."""
    return _json("prompts.json")[model]


def compression() -> dict[str, dict[str, list[float]]]:
    """[tokens, model calls, ratio] by prompt and configuration, smollm2, greedy."""
    return _json("smollm2_compression.json")["rows"]


def tiny_logits() -> dict[str, Any]:
    """One tiny trace and the raw logits of five of its calls."""
    return _json("tiny_logits_p14_w5n4g4.json")
