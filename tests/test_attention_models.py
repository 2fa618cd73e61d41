"""Whole models write the same text with every implementation of attention."""

from pathlib import Path

import pytest
import trace_files

from lookahead_jax import LookaheadConfig, LookaheadError, generate
from lookahead_jax.attention import Dense, PallasGPU, PallasTPU, Split
from lookahead_jax.models import load_model

CONFIG = LookaheadConfig(window_size=3, ngram_size=3, guess_set_size=3)
FAMILIES = Path(__file__).parent / "data" / "families"
MODELS = {"llama": trace_files.TINY_MODEL, "gemma2": FAMILIES / "gemma2"}
"""The second has layers of two kinds, sliding windows and soft-capped scores."""

PROMPTS = [[5, 9, 2, 7] * 6, [3, 1, 4]]


def write(model, attention):
    lm = load_model(MODELS[model], attention=attention, progress=lambda done, total: None)
    results = generate(lm, PROMPTS, config=CONFIG, max_new_tokens=24, stop_tokens=())
    return [result.tokens for result in results]


@pytest.mark.parametrize(
    ("model", "others"),
    [
        ("llama", [Split(24), PallasGPU(16, interpret=True)]),
        ("gemma2", [PallasTPU(interpret=True)]),
    ],
)
def test_the_text_is_that_of_the_reference(model, others):
    """A capacity of 64 is one block of the default's, so `Split` walks smaller ones here."""
    reference = write(model, Dense())
    assert len(reference[0]) == 24
    for other in others:
        assert write(model, other) == reference, f"{model} with {other}"


def test_a_choice_that_cannot_run_is_one_line():
    with pytest.raises(
        LookaheadError, match=r"^PallasTPU\(.*\) cannot run: expected a TPU, got cpu"
    ):
        write("llama", PallasTPU())
