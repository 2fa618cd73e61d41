"""Every family against transformers: tiny checkpoints that it made, logits and greedy text.

The goldens are from separate plain forward calls (make_families.py); here they come out of a
prefill, of packed branches over a cache, and of whole rounds of lookahead decoding.
"""

import functools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trace_files
from safetensors.numpy import load_file, save_file

from lookahead_jax import LookaheadConfig, LookaheadError, decoding
from lookahead_jax.kv_cache import commit
from lookahead_jax.models.families import FAMILIES
from lookahead_jax.models.huggingface import read_config
from lookahead_jax.models.loading import load_model
from lookahead_jax.sequences import Sequences, init_sequences

DIRECTORY = trace_files.DATA / "families"
NAMES = sorted(path.parent.name for path in DIRECTORY.glob("*/golden.json"))
CONFIG = LookaheadConfig(3, 3, 3, pool_from_prompt=False)
TOLERANCE = 1e-4
"""Float32 sums in another order; the logits are of size 10."""


@pytest.fixture(scope="module", params=NAMES)
def family(request):
    directory = DIRECTORY / request.param
    golden = json.loads((directory / "golden.json").read_text(encoding="utf-8"))
    return load_model(directory, progress=lambda done, total: None), golden


def test_there_is_a_checkpoint_of_every_family():
    golden = [json.loads((DIRECTORY / n / "golden.json").read_text("utf-8")) for n in NAMES]
    assert {entry["model_type"] for entry in golden} == set(FAMILIES)


def line_for(tmp_path, name, **changes):
    """The line that refuses a family's configuration with some changes."""
    config = json.loads((DIRECTORY / name / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(LookaheadError) as caught:
        read_config(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'config.json'}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("gemma2", {"layer_types": ["full_attention"]}, "layer_types must be full_attention or "),
        ("gemma2", {"layer_types": ["chunked"] * 3}, "layer_types must be full_attention or "),
        ("gemma2", {"sliding_window": 0}, "sliding_window must be a positive integer, got 0"),
        ("gemma2", {"hidden_activation": "relu"}, "must be one of silu, swish, gelu, gelu_new"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "false for text that is written"),
        ("mixtral", {"num_experts_per_tok": 9}, "at most the number of experts (4), got 9"),
        ("mixtral", {"num_local_experts": 2**40}, "num_local_experts must be at most 1000"),
        ("smollm3", {"no_rope_layers": [1]}, "a list with a 0 or 1 for each layer, got [1]"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "must be false, got True"),
        ("gpt2", {"n_layer": 2**60}, "n_layer must be at most 1000"),
        ("olmo2", {"hidden_size": None}, "hidden_size is missing"),
    ],
)
def test_what_the_decoder_does_not_have_is_refused_by_name(tmp_path, name, changes, expected):
    assert expected in line_for(tmp_path, name, **changes)


def test_long_rope_factors_must_fit_the_head(tmp_path):
    config = json.loads((DIRECTORY / "phi3_longrope" / "config.json").read_text(encoding="utf-8"))
    rope = config["rope_parameters"] | {"short_factor": [1.0]}
    message = line_for(tmp_path, "phi3_longrope", rope_parameters=rope)
    assert "short_factor must be a list of " in message


@pytest.mark.parametrize("name", ["phi3", "gpt2", "mixtral"])
def test_a_tensor_of_the_wrong_shape_is_named(tmp_path, name):
    """Also where it is a part of a larger matrix, turned around, or one of a stack."""
    tensors = load_file(DIRECTORY / name / "model.safetensors")
    ends = ("qkv_proj.weight", "c_attn.weight", "experts.3.w2.weight")
    broken = next(key for key in sorted(tensors) if key.endswith(ends))
    shape = tensors[broken].shape
    tensors[broken] = np.zeros((shape[0] + 1, *shape[1:]), np.float32)
    tensors = {key: np.asarray(array, np.float32) for key, array in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((DIRECTORY / name / "config.json").read_bytes())
    with pytest.raises(LookaheadError) as caught:
        load_model(tmp_path)
    assert f"tensor {broken} has shape {[shape[0] + 1, *shape[1:]]}" in str(caught.value)


def branch_block(branches):
    """Tokens, depths and mask of branches side by side, none of which sees another."""
    lengths = [len(branch["tokens"]) for branch in branches]
    tokens = [token for branch in branches for token in branch["tokens"]]
    depths = [depth for length in lengths for depth in range(length)]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    depths = np.array(depths)
    mask = (owner[:, None] == owner[None, :]) & (depths[:, None] >= depths[None, :])
    return np.array(tokens, np.int32), depths.astype(np.int32), mask


@functools.cache
def compiled(forward):
    """One program for the calls on their own, one for a round: compiling is all the time here."""

    @jax.jit
    def calls(params, prompt, branch_tokens, branch_depths, branch_mask, empty):
        size = prompt.shape[1]
        rows = jnp.arange(size)[None]
        causal = jnp.tril(jnp.ones((1, size, size), bool))
        first, block = forward(params, prompt, rows, causal, empty, rows)
        cache = commit(empty, block, rows, jnp.array([size]))
        at = jnp.arange(branch_tokens.shape[1])[None]
        second, _ = forward(params, branch_tokens, size + branch_depths, branch_mask, cache, at)
        # Ordinary and lookahead decoding begin with the last token of the prompt uncached.
        return first[0], second[0], replace(cache, length=cache.length - 1)

    return calls, jax.jit(functools.partial(decoding.round, forward=forward, config=CONFIG))


def test_logits_and_greedy_text_are_those_of_transformers(family):
    """Logits of a prefill, of packed branches over a cache, and the text of lookahead decoding."""
    lm, golden = family
    prompt = jnp.array([golden["prompt"]], jnp.int32)
    limit = min(len(golden["decode"]), lm.max_length - prompt.shape[1])
    if lm.reading is not None and golden["switch_length"]:
        # A text that crosses the original length is another one: test_long_rope.
        limit = min(limit, golden["switch_length"] - prompt.shape[1])
    assert limit >= 4
    text = init_sequences(
        prompt,
        jnp.array([prompt.shape[1]]),
        jnp.array([limit]),
        jnp.array([[Sequences.NO_STOP]]),
        capacity=64,
    )
    state = decoding.init_state(
        text, config=CONFIG, cache_spec=lm.cache_spec, vocab_size=lm.vocab_size
    )
    calls, advance = compiled(lm.forward)
    tokens, depths, mask = branch_block(golden["branches"])
    first, second, cache = calls(
        lm.params, prompt, tokens[None], depths[None], mask[None], state.cache
    )
    np.testing.assert_allclose(
        np.asarray(first)[golden["positions"]], golden["prefill_logits"], atol=TOLERANCE, rtol=0
    )
    start = 0
    for branch in golden["branches"]:
        rows = [start + row for row in branch["rows"]]
        expected = branch["logits"]
        np.testing.assert_allclose(np.asarray(second)[rows], expected, atol=TOLERANCE, rtol=0)
        start += len(branch["tokens"])

    state = replace(state, cache=cache)
    while not state.sequences.done[0]:
        state = advance(state, lm.params)
    written = state.sequences.tokens[0, prompt.shape[1] :][:limit].tolist()
    assert written == golden["decode"][:limit], f"smallest gap on the way: {golden['gap']}"
