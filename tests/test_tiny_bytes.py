"""The model that the package carries: what it is, what it knows, and real acceptance."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lookahead_jax import LookaheadConfig, WindowAdvance, autoregressive, check, generate
from lookahead_jax.models import load_model
from lookahead_jax.models.named_models import BUNDLED_MODELS
from lookahead_jax.models.training.corpus import END
from lookahead_jax.models.training.loop import mean_loss

PROMPTS = [
    "def __init__(self, name, value=None):\n",
    "import os\nimport sys\n",
    "    for i in range(",
    "    if not isinstance(",
]
LENGTH = 96


@pytest.fixture(scope="module")
def lm():
    return load_model("tiny-bytes", progress=lambda done, total: None)


@pytest.fixture(scope="module")
def ordinary(lm):
    return autoregressive.generate(lm, PROMPTS, max_new_tokens=LENGTH)


def test_it_is_small(lm):
    assert BUNDLED_MODELS["tiny-bytes"].size < 6e6
    assert 1e6 < sum(x.size for x in jax.tree.leaves(lm.params)) < 3e6
    assert lm.stop_tokens == (END,)


def test_its_tokens_are_bytes(lm):
    text = "naïve = '東京'\n\tpass\0"
    assert lm.tokenizer.encode(text) == list(text.encode())
    assert lm.tokenizer.decode(list(text.encode())) == text


UNSEEN = '''class Counter:
    """Counts things."""

    def __init__(self, start=0):
        self.value = start

    def __len__(self):
        return len(self.value)

    def reset(self):
        if self.value is None:
            raise ValueError("no value")
        for key in self.keys():
            self.items[key] = None
        return self
'''
"""Code as people write it, and no file of the standard library."""


def test_it_has_learnt_python(lm):
    """An untrained model needs 8 bits for a byte, zlib 4.6 for this text."""
    tokens = jnp.array([list(UNSEEN.encode())], jnp.int32)
    loss = jax.jit(functools.partial(mean_loss, config=lm.forward.config))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        bits = float(loss(lm.params, tokens)) / math.log(2)
        shuffled = tokens[:, np.random.default_rng(0).permutation(tokens.shape[1])]
        assert bits < 2.0
        assert float(loss(lm.params, shuffled)) / math.log(2) > 4.0


CONFIGS = {
    "w3n3g3": LookaheadConfig(3, 3, 3),
    "w7n5g7": LookaheadConfig(7, 5, 7),
    "by_accepted": LookaheadConfig(4, 4, 3, advance=WindowAdvance.BY_ACCEPTED),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_lookahead_writes_the_same_text_in_fewer_calls(lm, ordinary, case):
    """As one batch, each text the ordinary one; and candidates are accepted, as on real text."""
    ours = generate(lm, PROMPTS, config=CONFIGS[case], max_new_tokens=LENGTH)
    assert [r.tokens for r in ours] == [r.tokens for r in ordinary]
    calls = sum(r.stats.rounds for r in ours)
    assert calls < 0.6 * sum(len(r.tokens) for r in ours)


def test_its_texts_hold_a_second_reading(lm, ordinary):
    for result in ordinary[:2]:
        assert check(lm, result).divergences == ()
