"""Rotary embeddings that depend on the length of the text, beyond the original length."""

import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trace_files

from lookahead_jax import Chat, LookaheadConfig, autoregressive, completions, generate
from lookahead_jax.kv_cache import Extent, init_cache
from lookahead_jax.models import load_model
from lookahead_jax.models.config import DynamicScaling, LongRopeScaling, Norm, Rope
from lookahead_jax.models.huggingface import read_config
from lookahead_jax.models.layers import Normalise
from lookahead_jax.models.rope import Reading, frequencies, rotation

NAMES = ["phi3_longrope", "llama_dynamic"]
DIRECTORY = trace_files.DATA / "families"
CONFIG = LookaheadConfig(3, 3, 3)
ORIGINAL = 24
"""Original length of both checkpoints."""

TOLERANCE = 1e-4
"""Float32 sums in another order; see test_families."""


@pytest.fixture(scope="module", params=NAMES)
def family(request):
    golden = json.loads((DIRECTORY / request.param / "golden.json").read_text(encoding="utf-8"))
    return load_model(DIRECTORY / request.param, progress=lambda done, total: None), golden


def test_logits_of_a_long_text_are_those_of_transformers(family):
    """One forward pass over the whole text, each row rotated for the text's length."""
    lm, golden = family
    tokens = jnp.array([golden["prompt"] + golden["decode"]], jnp.int32)
    length = tokens.shape[1]
    rows = jnp.arange(length)[None]
    extent = Extent(jnp.array([length]), jnp.array([length + 1]))
    cache = init_cache(lm.cache_spec, 1, 1, extent)
    mask = jnp.tril(jnp.ones((1, length, length), bool))
    call = jax.jit(lm.forward)
    logits, _ = call(lm.params, tokens, rows, mask, cache, rows)
    positions, expected = golden["whole"]["positions"], np.array(golden["whole"]["logits"])
    np.testing.assert_allclose(np.asarray(logits)[0, positions], expected, atol=TOLERANCE, rtol=0)
    short = Extent(jnp.array([1]), jnp.array([2]))
    logits, _ = call(lm.params, tokens, rows, mask, replace(cache, extent=short), rows)
    assert np.abs(np.asarray(logits)[0, positions] - expected).max() > 0.1  # the extent matters


def test_text_after_a_long_prompt_is_that_of_transformers(family):
    """Ordinary and lookahead decoding, in a batch with a short text, which is as alone."""
    lm, golden = family
    long, short = golden["beyond"]["prompt"], golden["prompt"][:6]
    limits = {"max_new_tokens": 16, "stop_tokens": ()}
    gap = golden["beyond"]["gap"]
    (alone,) = generate(lm, [short], config=CONFIG, **limits)
    for decode in (generate, autoregressive.generate):
        options = {**limits, **({"config": CONFIG} if decode is generate else {})}
        results = decode(lm, [long, short], **options)
        assert list(results[0].tokens) == golden["beyond"]["decode"][:16], f"gap {gap}"
        assert results[1].tokens == alone.tokens


def test_a_slot_is_refilled_with_a_text_of_another_length(family):
    lm, golden = family
    prompts = [golden["prompt"][:6], golden["beyond"]["prompt"], golden["prompt"][:5]]
    limits = {"max_new_tokens": 12, "stop_tokens": ()}
    found = dict(completions(lm, prompts, config=CONFIG, batch_size=1, **limits))
    for i, prompt in enumerate(prompts):
        (alone,) = autoregressive.generate(lm, [prompt], **limits)
        assert found[i].tokens == alone.tokens


class Numbers:
    """Tokens as numbers, and conversations that are their messages one after the other."""

    has_chat_template = True

    def encode(self, text):
        return [int(word) for word in text.split()]

    def encode_chat(self, messages):
        return [token for message in messages for token in self.encode(message["content"])]

    def decode(self, tokens):
        return "".join(f"{token} " for token in tokens)


def test_a_conversation_is_read_anew_where_its_keys_have_become_wrong(family):
    lm, golden = family
    lm = replace(lm, tokenizer=Numbers(), stop_tokens=())
    chat = Chat(lm, config=CONFIG, max_new_tokens=6)
    read = []
    for start in range(0, 20, 4):
        message = " ".join(map(str, golden["prompt"][start : start + 4]))
        for _ in chat.send(message):
            pass
        turn = chat.turns[-1]
        whole = autoregressive.generate(
            lm, turn.result.prompt_tokens, max_new_tokens=6, chat_template=False
        )
        assert turn.result.tokens == whole.tokens, (start, turn.prompt_tokens)
        read.append((turn.prompt_tokens, turn.read_tokens))
    # Prompts of 4, 14, 24, 34 and 44 tokens: what is new, and the last token of the answer.
    if golden["model_type"] == "phi3":  # with 24 + 6 tokens it has become a long one
        assert read == [(4, 4), (14, 5), (24, 24), (34, 5), (44, 5)]
    else:  # every prompt beyond 24 tokens has frequencies of its own
        assert read == [(4, 4), (14, 5), (24, 5), (34, 34), (44, 44)]


# The formulas

LONG = LongRopeScaling((1.0, 2.0), (3.0, 5.0), ORIGINAL, 1.25)


def test_a_text_is_long_if_a_token_beyond_the_original_length_is_read():
    rope, positions = Rope(100.0, 4, LONG), jnp.zeros((3, 1), jnp.int32)
    extent = Extent(jnp.array([1, 1, 1]), jnp.array([ORIGINAL, ORIGINAL + 1, ORIGINAL + 2]))
    plain = np.array([1.0, 0.1])
    found = np.asarray(frequencies(rope, positions, extent))[:, 0]
    np.testing.assert_allclose(found[0], plain / (1, 2), rtol=1e-6)
    np.testing.assert_allclose(found[1], plain / (1, 2), rtol=1e-6)
    np.testing.assert_allclose(found[2], plain / (3, 5), rtol=1e-6)
    cosines, sines = rotation(rope, jnp.full((3, 1), 7), extent)
    turn = 7 * found
    np.testing.assert_allclose(cosines[:, 0], 1.25 * np.cos(turn), rtol=1e-5)
    np.testing.assert_allclose(sines[:, 0], 1.25 * np.sin(turn), rtol=1e-5)


@pytest.mark.parametrize(
    ("position", "prompt_length", "length"), [(3, 5, 24), (3, 40, 40), (39, 40, 40), (50, 40, 51)]
)
def test_dynamic_frequencies_are_those_of_the_length(position, prompt_length, length):
    rope = Rope(100.0, 8, DynamicScaling(2.0, ORIGINAL))
    theta = 100.0 * (2.0 * length / ORIGINAL - 1) ** (8 / 6)
    extent = Extent(jnp.array([prompt_length]), jnp.array([99]))
    found = frequencies(rope, jnp.array([[position]]), extent)
    np.testing.assert_allclose(found[0, 0], theta ** (-np.arange(4) / 4), rtol=1e-5)


def test_what_the_keys_depend_on():
    long, dynamic = Reading((LONG,)), Reading((DynamicScaling(2.0, ORIGINAL),))
    assert long(4, 24) == long(20, 25) != long(20, 26) == long(60, 70)
    assert dynamic(4, 24) == dynamic(24, 90) != dynamic(25, 26) != dynamic(26, 90)


# What files say


def phi3(tmp_path, **changes):
    config = json.loads((DIRECTORY / "phi3_longrope" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    return read_config(tmp_path)


def test_the_whole_context_is_there(tmp_path):
    config = phi3(tmp_path)
    scaling = config.layers[0].rope.scaling
    assert config.max_position_embeddings == 96
    assert scaling.long_factors == (1.1, 1.5, 2.0, 3.0, 4.0, 4.5)
    assert scaling.short_factors == (1.0, 1.05, 1.1, 1.2, 1.3, 1.5)
    expected = math.sqrt(1 + math.log(96 / 24) / math.log(24))
    assert scaling.attention_factor == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_early_names_of_long_rope(tmp_path, kind):
    """As the first Phi 3 files spelled it."""
    factors = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    rope = {"rope_parameters": None, "rope_scaling": {"type": kind, **factors}}
    scaling = phi3(tmp_path, rope_theta=500.0, **rope).layers[0].rope.scaling
    assert isinstance(scaling, LongRopeScaling)
    assert scaling.original_max_position_embeddings == 24


def test_the_original_length_of_the_top_level_wins(tmp_path):
    config = phi3(tmp_path, original_max_position_embeddings=48)
    assert config.layers[0].rope.scaling.original_max_position_embeddings == 48
    config = phi3(tmp_path, original_max_position_embeddings=None)  # Phi 3's own default
    assert config.layers[0].rope.scaling.original_max_position_embeddings == 4096


# When norms round


@pytest.mark.parametrize(
    ("name", "rounds_last", "offset"),
    [("llama", False, 0.0), ("gemma2", True, 1.0), ("olmo2", True, 0.0), ("gpt2", True, 0.0)],
)
def test_norms_round_when_transformers_does(name, rounds_last, offset):
    norm = read_config(DIRECTORY / name).norm
    assert (norm.rounds_last, norm.offset) == (rounds_last, offset)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("rounds_last", [False, True])
def test_norms_in_bfloat16(rounds_last, centered):
    rng = np.random.default_rng(0)
    x, scale, bias = (
        jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in ((64, 5), (64,), (64,))
    )
    module = Normalise(Norm(1e-5, centered=centered, rounds_last=rounds_last))
    params = {"scale": scale, "bias": bias} if centered else {"scale": scale}
    found = module.apply({"params": params}, x)
    wide = np.asarray(x, np.float64)
    wide = wide - wide.mean(0) * centered
    wide = wide / np.sqrt((wide**2).mean(0) + 1e-5)
    scale, bias = (np.asarray(v, np.float64)[:, None] for v in (scale, bias))
    last = wide * scale + bias * centered

    def rounded(values):
        return np.asarray(jnp.asarray(values, jnp.float32).astype(jnp.bfloat16), np.float64)

    early = rounded(rounded(rounded(wide) * scale) + bias * centered)
    expected, other = (rounded(last), early) if rounds_last else (early, rounded(last))
    assert found.dtype == jnp.bfloat16
    same = np.mean(np.asarray(found, np.float64) == expected)
    assert same > 0.99  # float32 sums may round the other way
    assert np.mean(np.asarray(found, np.float64) == other) < 0.9
