"""`DecoderConfig` as JSON: what comes back, and what is refused, each in one line."""

import json
from dataclasses import replace

import pytest
import trace_files

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.config import (
    DecoderConfig,
    DynamicScaling,
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    Rope,
    YarnScaling,
    llama_config,
)
from lookahead_jax.models.config_file import KINDS, config_from_json, config_to_json
from lookahead_jax.models.huggingface import read_config

FAMILIES = sorted(path.parent for path in (trace_files.DATA / "families").glob("*/config.json"))
PLAIN = llama_config(64, 32, 48, 2, 4, 2, 8)
SCALINGS = [
    LinearScaling(2.0),
    DynamicScaling(4.0, 32),
    Llama3Scaling(8.0, 1.0, 4.0, 8192),
    YarnScaling(4.0, 32, truncate=False),
    FrequencyFactors((1.0, 1.5, 2.0, 1e-3)),
]


def through_text(config):
    return config_from_json(json.loads(json.dumps(config_to_json(config))), "x.json: decoder")


@pytest.mark.parametrize("directory", FAMILIES, ids=lambda path: path.name)
def test_every_family_comes_back(directory):
    config = read_config(directory)
    again = through_text(config)
    assert again == config
    assert hash(again) == hash(config)  # lists have become tuples, down to the last
    assert through_text(replace(config, int8=True)) == replace(config, int8=True)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: type(scaling).__name__)
def test_every_scaling_comes_back(scaling):
    config = llama_config(64, 32, 48, 2, 4, 2, 8, rope_scaling=scaling)
    assert through_text(config) == config


def test_every_scaling_has_a_kind():
    hints = Rope.__dataclass_fields__["scaling"].type
    assert hints == "RopeScaling | None"
    from lookahead_jax.models.config import RopeScaling

    assert set(KINDS.values()) == set(RopeScaling.__args__)


def test_what_has_a_default_may_be_left_out():
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
    needed += ("num_key_value_heads", "head_dim", "max_position_embeddings")
    raw = {name: config_to_json(PLAIN)[name] for name in needed}
    raw["layers"] = [{"rope": {"theta": 1e4, "dims": 8}}, {"rope": None, "window": 4}]
    config = config_from_json(raw, "x")
    assert isinstance(config, DecoderConfig)
    assert (config.norm, config.gated, config.layers[1].window) == (PLAIN.norm, True, 4)


ROPE = ("layers", 1, "rope")
SCALED = (*ROPE, "scaling")
REFUSED = [
    (("colour",), 1, "colour is not known: written by another version?"),
    ((*ROPE, "colour"), 1, "layers[1].rope.colour is not known: written by another version?"),
    (("kind",), "linear", "kind is not known: written by another version?"),
    (("vocab_size",), None, "vocab_size must be a positive integer of 32 bits, got None"),
    (("vocab_size",), True, "vocab_size must be a positive integer of 32 bits, got True"),
    (("vocab_size",), 0, "vocab_size must be a positive integer of 32 bits, got 0"),
    (("vocab_size",), 2**31, "vocab_size must be a positive integer of 32 bits, got 2147483648"),
    (("vocab_size",), 6.0, "vocab_size must be a positive integer of 32 bits, got 6.0"),
    (("embedding_scale",), "1", "embedding_scale must be a finite number of at least 0, got '1'"),
    (("norm", "epsilon"), float("nan"), "norm.epsilon must be a finite number of at least 0, got"),
    (("norm", "epsilon"), 10**400, "norm.epsilon must be a finite number of at least 0, got"),
    (("norm",), [], "norm must be an object, got []"),
    (("gated",), 1, "gated must be true or false, got 1"),
    (("placement",), "beside", "placement must be one of before, after, around, got 'beside'"),
    (("placement",), [], "placement must be one of before, after, around, got []"),
    (("layers",), {}, "layers must be a list, got {}"),
    (("layers",), [], "layers must be a list of 1 to 1000, got 0"),
    (("layers",), [{"rope": None}] * 1001, "layers must be a list of 1 to 1000, got 1001"),
    (("layers", 1), 7, "layers[1] must be an object, got 7"),
    ((*ROPE, "dims"), 7, "layers[1].rope.dims must be even and at most 8, got 7"),
    ((*ROPE, "dims"), 10, "layers[1].rope.dims must be even and at most 8, got 10"),
    (SCALED, {"factor": 2}, "layers[1].rope.scaling.kind must be one of linear, dynamic, "),
    (SCALED, {"kind": "x"}, "layers[1].rope.scaling.kind must be one of linear, dynamic, "),
    (SCALED, {"kind": []}, "layers[1].rope.scaling.kind must be one of linear, dynamic, "),
    (SCALED, "linear", "layers[1].rope.scaling.kind must be one of linear, dynamic, "),
    (SCALED, {"kind": "linear"}, "layers[1].rope.scaling.factor is missing"),
    (
        SCALED,
        {"kind": "frequency_factors", "factors": [1.0]},
        "layers[1].rope.scaling.factors must be a list of 4, got (1.0,)",
    ),
    (
        ("layers", 0, "experts"),
        {"count": 2, "top_k": 3, "hidden_features": 4},
        "layers[0].experts.top_k must be at most 2, got 3",
    ),
]


@pytest.mark.parametrize(("place", "value", "line"), REFUSED)
def test_what_cannot_be_right_is_named(place, value, line):
    raw = json.loads(json.dumps(config_to_json(PLAIN)))
    node = raw
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    with pytest.raises(LookaheadError) as caught:
        config_from_json(raw, "x.json: decoder")
    assert str(caught.value).startswith(f"x.json: decoder.{line}")
    assert "\n" not in str(caught.value)


def test_missing_fields_and_heads_that_do_not_fit():
    raw = config_to_json(PLAIN)
    without = {name: value for name, value in raw.items() if name != "layers"}
    for changed, line in (
        (without, "x.layers is missing"),
        (None, "x must be an object, got None"),
        (raw | {"num_key_value_heads": 3}, "x: query heads must be a multiple of 3 (key/value"),
    ):
        with pytest.raises(LookaheadError) as caught:
            config_from_json(changed, "x")
        assert str(caught.value).startswith(line)
