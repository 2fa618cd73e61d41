"""The table of shardings: what goes where, and that a model on several devices says the same."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkout import ROOT
from jax.sharding import PartitionSpec
from trace_files import TINY_MODEL

from lookahead_jax import LookaheadConfig, LookaheadError, make_mesh
from lookahead_jax.generation import Lookahead
from lookahead_jax.kv_cache import init_cache
from lookahead_jax.models import load_model
from lookahead_jax.models.config import llama_config
from lookahead_jax.models.decoder import abstract_params
from lookahead_jax.programs import Program, Requests
from lookahead_jax.sampling import Greedy, Policy
from lookahead_jax.sharding import RULES, parse_mesh, shard_params, shardings

FAMILIES = ROOT / "tests" / "data" / "families"
SHAPED = ["gemma2", "qwen3_moe", "gpt2", "olmo2"]
"""Windows and soft caps; experts; biases and learned positions; norms over all heads."""


def specs(root, tree, **axes):
    """Partition spec by path; trailing dimensions that are whole are left out."""
    placed = shardings(make_mesh(**axes), root, tree)
    found = {}
    for path, where in jax.tree_util.tree_leaves_with_path(placed):
        spec = tuple(where.spec)
        while spec and spec[-1] is None:
            spec = spec[:-1]
        found[jax.tree_util.keystr(path, simple=True, separator="/")] = spec
    return found


def test_weights_of_a_layer():
    config = llama_config(64, 32, 48, 1, 4, 2, 8, 1e-5, 1e4, tie_word_embeddings=False)
    found = specs("params", abstract_params(config, "float32"), model=2)
    rows, columns = ("model",), (None, "model")
    assert found == {
        "embed/weight": rows,
        "head/weight": rows,
        "final_norm/scale": (),
        "layers_0/attn_norm/scale": (),
        "layers_0/mlp_norm/scale": (),
        "layers_0/attn/q/weight": rows,
        "layers_0/attn/k/weight": rows,
        "layers_0/attn/v/weight": rows,
        "layers_0/attn/o/weight": columns,
        "layers_0/mlp/gate/weight": rows,
        "layers_0/mlp/up/weight": rows,
        "layers_0/mlp/down/weight": columns,
    }


def test_every_part_of_a_state_has_its_row():
    lm = load_model(TINY_MODEL)
    decoder = Lookahead(LookaheadConfig(3, 3, 3), Policy(Greedy()))
    program = Program(decoder, lm.forward, lm.cache_spec, lm.vocab_size, 64, logprobs=True)
    row = jnp.ones((2,), jnp.int32)
    requests = Requests(
        jnp.ones((2, 16), jnp.int32), row, row, row[:, None], jnp.ones((2, 2), jnp.uint32)
    )
    state = jax.eval_shape(program.start, requests, lm.params)
    found = specs("state", state, data=2, model=2, lookahead=2)
    for path, where in found.items():
        is_cache = re.fullmatch(r"cache/(keys|values)/\d", path)
        assert where == (("data", "model") if is_cache else ("data",)), path
    for part in ("cache/keys/0", "cache/length", "window/base", "pool/suffixes", "rounds"):
        assert part in found
    assert "sequences/logprobs/raw" in found


def test_what_an_axis_does_not_divide_stays_whole():
    down = {"down": {"weight": jnp.zeros((4, 6))}, "up": {"weight": jnp.zeros((9, 4))}}
    tree = {"embed": {"weight": jnp.zeros((7, 4))}, "layers_0": {"mlp": down}}
    assert specs("params", tree, model=2) == {
        "embed/weight": (),
        "layers_0/mlp/down/weight": (None, "model"),
        "layers_0/mlp/up/weight": (),
    }


def test_all_rules_are_of_use():
    """Each rule is the first to fit some path of some model or state."""
    paths = ["state/cache/keys/0", "state/cache/length", "state/sequences/tokens"]
    paths += ["state/window/base", "state/pool/keys", "state/rounds"]
    for family in ("gpt2", "qwen3_moe", "llama"):
        (directory,) = [p for p in FAMILIES.iterdir() if p.name.startswith(family)][:1]
        params = load_model(directory).params
        for path, _ in jax.tree_util.tree_leaves_with_path(params):
            paths.append("params/" + jax.tree_util.keystr(path, simple=True, separator="/"))
    first = {next(rule.what for rule in RULES if re.fullmatch(rule.path, path)) for path in paths}
    assert first == {rule.what for rule in RULES}


def logits_of(lm):
    tokens = jnp.asarray([[5, 3, 9, 2, 7, 11]], jnp.int32)
    offset = jnp.arange(6, dtype=jnp.int32)[None]
    mask = offset[:, :, None] >= offset[:, None, :]
    cache = init_cache(lm.cache_spec, 1, 64)
    forward = jax.jit(lm.forward)
    logits, block = forward(lm.params, tokens, offset, mask, cache, offset)
    return np.asarray(logits), np.asarray(block.keys[-1])


@pytest.mark.parametrize("int8", [False, True], ids=["floats", "int8"])
@pytest.mark.parametrize("family", SHAPED)
def test_a_model_on_two_devices_says_the_same(family, int8):
    directory = FAMILIES / family
    one = load_model(directory, int8=int8)
    two = load_model(directory, int8=int8, mesh=make_mesh(model=2))
    shared = [x for x in jax.tree.leaves(two.params) if not x.sharding.is_fully_replicated]
    assert len(shared) > len(jax.tree.leaves(two.params)) / 3
    for ours, theirs in zip(logits_of(two), logits_of(one), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-5)


def test_parameters_of_ones_own_are_put_by_the_table():
    mesh = make_mesh(model=2)
    params = {"layers_0": {"attn": {"q": {"weight": jnp.ones((8, 4))}}}, "other": jnp.ones(3)}
    placed = shard_params(params, mesh)
    assert placed["layers_0"]["attn"]["q"]["weight"].sharding.spec == PartitionSpec("model")
    assert placed["other"].sharding.is_fully_replicated


def test_meshes_in_words():
    assert parse_mesh("lookahead=4") == {"data": 1, "lookahead": 4, "model": 1}
    assert parse_mesh(" model=2 , data=3") == {"data": 3, "lookahead": 1, "model": 2}
    for text in ("", "4", "lookahead", "lookahead=0", "lookahead=-1", "lookahead=1=2", "a=1"):
        with pytest.raises(LookaheadError, match="a mesh is written data=1,lookahead=4,model=2"):
            parse_mesh(text)
