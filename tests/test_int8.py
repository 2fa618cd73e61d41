"""Weight-only int8: rounding, loading, and the model it makes, down to the text it writes."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trace_files

from lookahead_jax import LookaheadConfig, autoregressive, generate
from lookahead_jax.kv_cache import init_cache
from lookahead_jax.models import load_model
from lookahead_jax.models.decoder import DecoderForward, abstract_params
from lookahead_jax.models.huggingface import read_config
from lookahead_jax.models.names import parameter_shapes
from lookahead_jax.models.quantisation import ELEMENTS, is_matrix, quantise

FAMILIES = trace_files.DATA / "families"
SOME = ("gemma2", "gpt2", "qwen3_moe")
"""Tied and scaled embeddings; learned positions and biases; experts and an untied head."""


def quiet(done, total):
    """A progress that shows nothing."""


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 7), (ELEMENTS // 1000 + 3, 1000)])
def test_each_row_is_rounded_to_its_own_scale(shape):
    rng = np.random.default_rng(1)
    weights = rng.normal(size=shape).astype(np.float32)
    weights *= 10.0 ** rng.integers(-3, 3, shape[:-1])[..., None]
    values, scales = quantise(weights)
    assert values.dtype == np.int8
    assert scales.dtype == np.float32
    assert scales.shape == shape[:-1]
    np.testing.assert_array_equal(np.abs(values.astype(int)).max(-1), 127)
    wrong = np.abs(values * scales[..., None] - weights)
    assert np.all(wrong <= 0.5001 * scales[..., None])  # half a step, and the scale's rounding
    assert wrong.max() > 0


def test_rows_of_zeros_stay_zeros():
    values, scales = quantise(np.zeros((2, 4), np.float32))
    np.testing.assert_array_equal(values, 0)
    np.testing.assert_array_equal(scales, 1)


def named(params):
    """Parameters by their path, as text."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {"/".join(key.key for key in path): leaf for path, leaf in leaves}


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_rounds_the_matrices_and_nothing_else(name, dtype):
    whole = named(load_model(FAMILIES / name, progress=quiet).params)
    lm = load_model(FAMILIES / name, dtype=dtype, int8=True, progress=quiet)
    params, config = named(lm.params), lm.forward.config
    assert config == replace(read_config(FAMILIES / name), int8=True)
    assert {path: leaf.shape for path, leaf in params.items()} == parameter_shapes(config)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), lm.params) == jax.tree.map(
        lambda x: (x.shape, x.dtype), abstract_params(config, dtype)
    )
    rounded = set()
    for path, leaf in whole.items():
        if params[path].dtype != jnp.int8:
            assert params[path].dtype == jnp.dtype(dtype)
            np.testing.assert_array_equal(params[path], leaf.astype(dtype), err_msg=path)
            continue
        rounded.add(path.rpartition("/")[2])
        values, scales = quantise(np.asarray(leaf))  # of the file's numbers, not of bfloat16's
        np.testing.assert_array_equal(params[path], values, err_msg=path)
        np.testing.assert_array_equal(params[f"{path}_scale"], scales, err_msg=path)
    assert rounded == {"weight", "gate", "up", "down"} & {p.rpartition("/")[2] for p in whole}
    kept = [path for path in params if params[path].ndim > 1 and params[path].dtype != jnp.int8]
    assert all("router" in p or "positions" in p or p.endswith("_scale") for p in kept), kept


@pytest.mark.parametrize("name", SOME)
def test_logits_are_those_of_the_rounded_weights(name):
    """The same tree with its matrices multiplied out, in the decoder without int8."""
    lm = load_model(FAMILIES / name, int8=True, progress=quiet)

    def multiplied_out(tree):
        return {
            key: multiplied_out(leaf)
            if isinstance(leaf, dict)
            else leaf.astype(jnp.float32) * tree[f"{key}_scale"][..., None]
            if leaf.dtype == jnp.int8
            else leaf
            for key, leaf in tree.items()
            if not key.endswith("_scale")
        }

    plain = DecoderForward(replace(lm.forward.config, int8=False))
    golden = json.loads((FAMILIES / name / "golden.json").read_text(encoding="utf-8"))
    tokens = jnp.array([golden["prompt"]], jnp.int32)
    rows = jnp.arange(tokens.shape[1])[None]
    mask = jnp.tril(jnp.ones((1, tokens.shape[1], tokens.shape[1]), bool))
    arguments = (tokens, rows, mask, init_cache(lm.cache_spec, 1, 1), rows)
    expected, _ = jax.jit(plain)(multiplied_out(lm.params), *arguments)
    logits, _ = jax.jit(lm.forward)(lm.params, *arguments)
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)  # sums in another order
    whole = np.asarray(logits)[0, golden["positions"]]
    lost = np.abs(whole - np.array(golden["prefill_logits"])).max()
    assert 1e-3 < lost < 0.25 * np.abs(golden["prefill_logits"]).max()


def test_lookahead_writes_the_text_of_ordinary_decoding():
    lm = load_model(trace_files.TINY_MODEL, int8=True, progress=quiet)
    prompts = [[5, 9, 2, 7], [1, 3, 3, 1, 3, 3, 1]]
    ordinary = autoregressive.generate(lm, prompts, max_new_tokens=24, stop_tokens=())
    ours = generate(lm, prompts, config=LookaheadConfig(4, 4, 4), max_new_tokens=24, stop_tokens=())
    assert [r.tokens for r in ours] == [r.tokens for r in ordinary]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("embed", "weight"), True),
        (("layers_0", "attn", "q", "weight"), True),
        (("layers_0", "moe", "gate"), True),
        (("layers_0", "moe", "router", "weight"), False),
        (("positions", "weight"), False),
        (("layers_0", "attn", "q", "bias"), False),
        (("final_norm", "scale"), False),
    ],
)
def test_which_parameters_are_matrices(path, expected):
    assert is_matrix(path) == expected
