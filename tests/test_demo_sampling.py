"""The demo model under a seed: the sampled text is the same with and without lookahead."""

from dataclasses import replace

import pytest

from lookahead_jax import LookaheadConfig, Sample, autoregressive, generate
from lookahead_jax.models import load_model

SMALL = LookaheadConfig(window_size=3, ngram_size=3, guess_set_size=3)
SAMPLE = Sample(temperature=0.7, top_p=0.9)
PROMPT = "Write a short list of five things that one can see at the sea."
NEW_TOKENS = 32
SEEDS = [1, 20]


@pytest.fixture(scope="module")
def demo():
    return load_model("smollm2-135m")


def hotter(lm, factor):
    """A model whose logits are smaller, which is sampling at another temperature.

    It spares the compilation of the programs for that temperature, most of this file's time.
    """
    norm = lm.params["final_norm"]
    params = {**lm.params, "final_norm": {"scale": norm["scale"] / factor}}
    return replace(lm, params=params)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_same_seed_gives_the_ordinary_samplers_text(temperature, demo):
    lm = hotter(demo, temperature / SAMPLE.temperature)
    prompts = [PROMPT] * len(SEEDS)
    options = {"sampling": SAMPLE, "seeds": SEEDS, "max_new_tokens": NEW_TOKENS}
    ahead = generate(lm, prompts, config=SMALL, **options)
    ordinary = autoregressive.generate(lm, prompts, **options)
    for result, single in zip(ahead, ordinary, strict=True):
        assert result.tokens == single.tokens
        assert result.text == single.text
    assert ahead[0].tokens != ahead[1].tokens
    assert sum(result.stats.rounds for result in ahead) < sum(
        len(result.tokens) for result in ahead
    )
