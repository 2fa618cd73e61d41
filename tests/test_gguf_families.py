"""GGUF files of every family: the same model as the checkpoint that they were converted from."""

import dataclasses
import json
from dataclasses import replace

import checkpoint_files as files
import gguf
import gguf_conversion
import jax.numpy as jnp
import numpy as np
import pytest
import trace_files

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models import load_model
from lookahead_jax.models.config import (
    LinearScaling,
    NormPlacement,
    QueryKeyNorm,
    YarnScaling,
)
from lookahead_jax.models.gguf_families import ARCHITECTURES, UNLIKE
from lookahead_jax.models.gguf_file import config_from_header, load_gguf
from lookahead_jax.models.gguf_header import QUANTISED, encoding_of, read_gguf_header
from lookahead_jax.models.gguf_rope import _share
from lookahead_jax.models.huggingface import load_directory
from lookahead_jax.models.rope import frequencies
from lookahead_jax.models.weights import FLOATS, Target

DIRECTORY = trace_files.DATA / "families"
NAMES = sorted(path.parent.name for path in DIRECTORY.glob("*/golden.json"))
NOT_SAID = {"llama_dynamic", "qwen2_window"}
"""No key of GGUF says what these have."""


def near(ours, theirs):
    """Equal, but for numbers that a GGUF file keeps in float32."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return ours == pytest.approx(theirs, rel=1e-6)
    if dataclasses.is_dataclass(ours) and type(ours) is type(theirs):
        names = [field.name for field in dataclasses.fields(ours)]
        return all(near(getattr(ours, name), getattr(theirs, name)) for name in names)
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(near, ours, theirs))
    return ours == theirs


def as_a_gguf_file_says(config, name):
    """The configuration, where a file says the same in another way, or not at all."""
    layers = config.layers
    if name == "llama":  # the divisors that the converter worked out
        (rope,) = {kind.rope for kind in layers}
        layers = tuple(replace(kind, rope=None) for kind in layers)
        assert rope.scaling is not None
    if name == "smollm3":  # every fourth layer, whatever the checkpoint had
        (rope,) = {kind.rope for kind in layers} - {None}
        layers = tuple(replace(kind, rope=rope) for kind in layers)
    return replace(config, layers=layers, norm=replace(config.norm, offset=0.0))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_SAID])
def test_a_converted_file_is_the_same_model(tmp_path, name):
    gguf_conversion.convert(DIRECTORY / name, tmp_path / "m.gguf")
    ours = load_gguf(tmp_path / "m.gguf", Target("float32"))
    theirs = load_directory(DIRECTORY / name, Target("float32"))
    config = ours.config
    if name == "llama":
        rope, original = config.layers[0].rope, theirs.config.layers[0].rope
        position = jnp.zeros((1, 1), jnp.int32)
        expected = np.asarray(frequencies(original, position))
        np.testing.assert_allclose(frequencies(rope, position), expected, rtol=1e-6)
        config = replace(config, layers=tuple(replace(kind, rope=None) for kind in config.layers))
    assert near(config, as_a_gguf_file_says(theirs.config, name))
    assert files.paths_of(ours.params) == files.paths_of(theirs.params)
    for path in files.paths_of(theirs.params):
        expected = files.leaf_at(theirs.params, path)
        if path[-1] == "scale":
            expected = expected + np.float32(theirs.config.norm.offset)
        np.testing.assert_array_equal(files.leaf_at(ours.params, path), expected, str(path))


def test_every_architecture_is_converted():
    found = {
        json.loads((DIRECTORY / name / "config.json").read_text(encoding="utf-8"))["model_type"]
        for name in NAMES
        if name not in NOT_SAID
    }
    assert {gguf_conversion.ARCHITECTURES[kind] for kind in found} == set(ARCHITECTURES)
    assert set(ARCHITECTURES) <= set(gguf.MODEL_ARCH_NAMES.values())


def rewritten(source, path, *, changes=None, tensors=None, architecture=None):
    """A converted file with other metadata (None removes a key) or other tensors."""
    reader = gguf.GGUFReader(source)
    old = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(path), architecture or old)
    values = {
        key: (field.contents(), field.types[0], field.types[-1])
        for key, field in reader.fields.items()
        if not key.startswith(("GGUF.", "general.architecture"))
    }
    for key, value in (changes or {}).items():
        values[f"{old}.{key}"] = value
    for key, entry in values.items():
        if isinstance(entry, tuple):
            value, kind, inner = entry
            writer.add_key_value(
                key.replace(old, architecture or old, 1),
                value,
                kind,
                inner if kind == gguf.GGUFValueType.ARRAY else None,
            )
        else:
            files.add_metadata(writer, key, entry)
    stored = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    for name, array in (stored | (tensors or {})).items():
        if array is not None:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Converted files by family, each made once."""
    directory, made = tmp_path_factory.mktemp("converted"), {}

    def get(name):
        if name not in made:
            made[name] = directory / f"{name}.gguf"
            gguf_conversion.convert(DIRECTORY / name, made[name])
        return made[name]

    return get


def config_of(path):
    return load_gguf(path, Target("float32")).config


def error_of(path):
    with pytest.raises(LookaheadError) as caught:
        load_model(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line


def test_gemma_3_without_keys_has_the_usual_pattern_and_bases(tmp_path, converted):
    absent = ("attention.sliding_window_pattern", "rope.freq_base_swa", "attention.scale")
    changes = dict.fromkeys(absent) | {"attention.sliding_window": 512}
    config = config_of(rewritten(converted("gemma3_text"), tmp_path / "m.gguf", changes=changes))
    assert [kind.window for kind in config.layers] == [512] * 3
    assert {kind.rope.theta for kind in config.layers} == {10000.0}
    assert config.attention_scale == pytest.approx(12**-0.5)
    changes |= {"attention.sliding_window_pattern": 3}
    config = config_of(rewritten(converted("gemma3_text"), tmp_path / "m.gguf", changes=changes))
    assert [kind.window for kind in config.layers] == [512, 512, None]
    assert [kind.rope.scaling for kind in config.layers] == [None, None, LinearScaling(4.0)]
    changes = dict.fromkeys((*absent, "attention.sliding_window"))
    config = config_of(rewritten(converted("gemma3_text"), tmp_path / "m.gguf", changes=changes))
    assert [(kind.window, kind.rope.theta) for kind in config.layers] == [(None, 5000.0)] * 3


def test_gemma_2_without_keys_is_the_published_one(tmp_path, converted):
    absent = ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
    config = config_of(
        rewritten(converted("gemma2"), tmp_path / "m.gguf", changes=dict.fromkeys(absent))
    )
    assert [kind.window for kind in config.layers] == [4096, None, 4096]
    assert (config.attention_softcap, config.final_softcap) == (50.0, 30.0)


@pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3_text", 62)])
def test_the_scores_of_gemma_27b_have_another_scale(tmp_path, converted, name, layers):
    changes = {"block_count": layers, "attention.scale": None}
    changes["attention.sliding_window_pattern"] = None
    path = rewritten(converted(name), tmp_path / "m.gguf", changes=changes)
    header = read_gguf_header(path)
    config = config_from_header(header, "m")
    assert config.attention_scale == pytest.approx((32 // 4) ** -0.5)
    assert config.num_hidden_layers == layers


def test_smollm_3_has_no_positions_in_every_fourth_layer(tmp_path, converted):
    layer = {
        tensor.name.replace("blk.0.", "blk.3."): np.array(tensor.data)
        for tensor in gguf.GGUFReader(converted("smollm3")).tensors
        if tensor.name.startswith("blk.0.")
    }
    path = rewritten(
        converted("smollm3"), tmp_path / "m.gguf", changes={"block_count": 4}, tensors=layer
    )
    assert [kind.rope is None for kind in config_of(path).layers] == [False, False, False, True]


def test_yarn_of_qwen(tmp_path, converted):
    changes = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    }
    path = rewritten(converted("qwen3"), tmp_path / "m.gguf", changes=changes)
    (scaling,) = {kind.rope.scaling for kind in config_of(path).layers}
    loudness = 0.1 * np.log(4.0) + 1.0
    assert near(scaling, YarnScaling(4.0, 64, 32.0, 1.0, float(loudness)))
    changes |= {"rope.scaling.yarn_attn_factor": 1.0, "rope.scaling.yarn_beta_fast": 16.0}
    path = rewritten(converted("qwen3"), tmp_path / "m.gguf", changes=changes)
    (scaling,) = {kind.rope.scaling for kind in config_of(path).layers}
    assert near(scaling, YarnScaling(4.0, 64, 16.0, 1.0, 1.0))


def test_projections_of_phi_3_may_be_apart(tmp_path, converted):
    reader = gguf.GGUFReader(converted("phi3"))
    tensors = {}
    for tensor in reader.tensors:
        if ".attn_qkv." in tensor.name:
            tensors[tensor.name] = None
            parts = np.split(np.array(tensor.data), [48, 72])
            for letter, part in zip("qkv", parts, strict=True):
                tensors[tensor.name.replace("attn_qkv", f"attn_{letter}")] = part
    path = rewritten(converted("phi3"), tmp_path / "m.gguf", tensors=tensors)
    ours, fused = (load_gguf(p, Target("float32")) for p in (path, converted("phi3")))
    assert ours.config == fused.config
    for leaf in files.paths_of(fused.params):
        np.testing.assert_array_equal(
            files.leaf_at(ours.params, leaf), files.leaf_at(fused.params, leaf)
        )


def test_experts_of_early_files_are_stored_one_by_one(tmp_path, converted):
    tensors = {}
    for tensor in gguf.GGUFReader(converted("mixtral")).tensors:
        if "_exps." in tensor.name:
            tensors[tensor.name] = None
            for i, expert in enumerate(np.array(tensor.data)):
                tensors[tensor.name.replace("_exps.", f".{i}.")] = expert
    path = rewritten(converted("mixtral"), tmp_path / "m.gguf", tensors=tensors)
    ours, stacks = (load_gguf(p, Target("float32")) for p in (path, converted("mixtral")))
    for leaf in files.paths_of(stacks.params):
        np.testing.assert_array_equal(
            files.leaf_at(ours.params, leaf), files.leaf_at(stacks.params, leaf)
        )


def test_int8_of_experts_and_of_a_fused_projection(converted):
    for name in ("mixtral", "phi3"):
        params = load_gguf(converted(name), Target("float32", int8=True)).params
        plain = load_gguf(converted(name), Target("float32")).params
        layer, whole = params["layers_0"], plain["layers_0"]
        block, leaf = ("moe", "down") if name == "mixtral" else ("attn", "k")
        stored, expected = layer[block][leaf], whole[block][leaf]
        if name == "phi3":
            stored, scale = stored["weight"], stored["weight_scale"]
            expected = expected["weight"]
        else:
            scale = layer[block][f"{leaf}_scale"]
        assert stored.dtype == jnp.int8
        restored = np.asarray(stored, np.float32) * np.asarray(scale)[..., None]
        assert np.abs(restored - expected).max() <= 0.51 * np.asarray(scale).max()


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("gemma3_text", {"attention.sliding_window_pattern": [True]}, "a positive integer, or 3"),
        ("gemma2", {"attention.causal": False}, "attention.causal must be True"),
        ("qwen2", {"attention.sliding_window": 6}, "qwen2.attention.sliding_window must be 0"),
        ("olmo2", {"attention.sliding_window": 6}, "olmo2.attention.sliding_window must be 0"),
        ("mixtral", {"expert_used_count": 9}, "at most the number of experts (4), got 9"),
        ("mixtral", {"expert_gating_func": 2}, "llama.expert_gating_func must be 1"),
        ("mixtral", {"expert_weights_norm": False}, "llama.expert_weights_norm must be true"),
        ("qwen3_moe", {"expert_shared_count": 1}, "qwen3moe.expert_shared_count must be 0"),
        ("qwen3_moe", {"expert_count": 1 << 20}, "qwen3moe.expert_count must be at most 1000"),
        ("qwen3", {"logit_scale": 2.0}, "qwen3.logit_scale must be 1"),
        ("qwen3", {"rope.scaling.type": "ntk"}, "rope scaling 'ntk' is not supported; supported"),
        ("qwen3", {"rope.scaling.type": "longrope"}, "rope_factors_short.weight is missing"),
        ("llama_yarn", {"rope.scaling.yarn_log_multiplier": 0.1}, "multiplier must be 0"),
        ("llama_yarn", {"rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor must be 1"),
        ("phi3_longrope", {"rope.dimension_count": 14}, "at most 12 (head dimension), got 14"),
        ("phi3_longrope", {"rope.dimension_count": 10}, "has shape [6], expected [5]"),
        ("gpt2", {"attention.layer_norm_epsilon": None}, "gpt2.attention.layer_norm_epsilon is"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, converted, name, changes, expected):
    path = rewritten(converted(name), tmp_path / "m.gguf", changes=changes)
    assert expected in error_of(path)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("mamba", "'mamba' is not supported (state-space or recurrent layers); supported: llama, "),
        ("jamba", "(state-space or recurrent layers)"),
        ("falcon-h1", "(state-space or recurrent layers)"),
        ("granitehybrid", "(state-space or recurrent layers)"),
        ("t5", "(an encoder-decoder)"),
        ("bert", "(an encoder)"),
        ("gemma3n", "architecture 'gemma3n' is not supported; supported: llama, qwen2, qwen3, "),
        ("future", "architecture 'future' is not supported; supported: llama, qwen2, qwen3, "),
    ],
)
def test_other_architectures_are_refused_by_name(tmp_path, converted, architecture, expected):
    path = rewritten(converted("qwen3"), tmp_path / "m.gguf", architecture=architecture)
    assert expected in error_of(path)


def test_reasons_are_given_for_architectures_that_exist():
    known = set(gguf.MODEL_ARCH_NAMES.values())
    named = {name for names in UNLIKE.values() for name in names}
    assert named <= known
    assert not named & set(ARCHITECTURES)


def test_quantisations_without_a_decoder_are_refused_by_name(tmp_path, converted):
    refused = {kind.name for kind in gguf.GGMLQuantizationType} - {*QUANTISED, *FLOATS}
    assert {"IQ4_XS", "IQ2_XXS", "TQ1_0", "MXFP4"} <= refused
    raw = converted("qwen3").read_bytes()
    name = b"blk.0.ffn_up.weight"
    kind_at = raw.index(name) + len(name) + 4 + 2 * 8
    path = tmp_path / "m.gguf"
    for kind in sorted(refused):
        assert encoding_of(kind) is None
        number = int(gguf.GGMLQuantizationType[kind]).to_bytes(4, "little")
        path.write_bytes(raw[:kind_at] + number + raw[kind_at + 4 :])
        assert f"tensor blk.0.ffn_up.weight is stored as {kind}; expected one of" in error_of(path)


@pytest.mark.parametrize("kind", ["mamba2", "t5", "falcon_h1", "gemma3n", "mllama"])
def test_other_model_types_of_hugging_face_are_refused_by_name(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(LookaheadError) as caught:
        load_model(tmp_path)
    line = str(caught.value)
    assert f"model type '{kind}' is not supported; supported: llama, mistral, " in line
    assert "\n" not in line


def test_a_share_of_the_features_is_never_rounded_down():
    for head_dim in range(2, 257, 2):
        for dims in range(2, head_dim + 1, 2):
            assert int(head_dim * _share(dims, head_dim)) == dims


def test_norms_stand_where_the_family_has_them(converted):
    assert config_of(converted("olmo2")).placement is NormPlacement.AFTER
    assert config_of(converted("olmo2")).qk_norm is QueryKeyNorm.ALL
    assert config_of(converted("gemma2")).placement is NormPlacement.AROUND
    assert config_of(converted("qwen3")).qk_norm is QueryKeyNorm.HEADS
