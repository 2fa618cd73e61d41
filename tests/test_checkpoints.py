"""Hugging Face directories: what is read is what was written, and bad ones get one clear line."""

import dataclasses
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import checkpoint_files as files
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file, save_file

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models import load_model
from lookahead_jax.models.config import LinearScaling, Llama3Scaling, Rope, llama_config
from lookahead_jax.models.huggingface import (
    load_directory,
    read_config,
    read_safetensors_header,
)
from lookahead_jax.models.weights import CHUNK_ELEMENTS, FLOATS, StoredTensor, Target, read_tensor

TINY_MODEL = Path(__file__).parent / "data" / "tiny_model"
BIASED = files.CONFIG | {"attention_bias": True, "mlp_bias": True}
TIED = files.CONFIG | {"tie_word_embeddings": True}


def error_of(call, *args, **kwargs):
    """The line of the LookaheadError that the call raises."""
    with pytest.raises(LookaheadError) as caught:
        call(*args, **kwargs)
    line = str(caught.value)
    assert "\n" not in line
    return line


def load_error(directory):
    return error_of(load_model, directory)


@pytest.mark.parametrize("config", [files.CONFIG, BIASED, TIED], ids=["plain", "biased", "tied"])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_arrives(tmp_path, config, shards):
    weights = files.random_weights(config)
    tensors = files.hugging_face_names(weights)
    params = load_directory(
        files.write_directory(tmp_path, config, tensors, shards), Target("float32")
    ).params
    assert files.paths_of(params) == set(weights)
    for path, expected in weights.items():
        np.testing.assert_array_equal(files.leaf_at(params, path), expected, err_msg=str(path))


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16", "float16"])
def test_tensors_are_converted(tmp_path, stored, wanted):
    weights = files.random_weights()
    tensors = {
        name: array.astype(stored) for name, array in files.hugging_face_names(weights).items()
    }
    directory = files.write_directory(tmp_path, tensors=tensors)
    params = load_directory(directory, Target(wanted)).params
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(wanted)}
    for path, array in weights.items():
        expected = array.astype(stored).astype(jnp.dtype(wanted))
        np.testing.assert_array_equal(files.leaf_at(params, path), expected)


@pytest.mark.parametrize("heads", [0, 2])
def test_large_tensors_are_converted_in_pieces(tmp_path, heads):
    array = np.arange(3 << 18, dtype=np.float32).reshape(-1, 3) % 251
    assert array.size > 2 * CHUNK_ELEMENTS
    stored = files.interleave(array, heads) if heads else array
    save_file({"x": stored.astype(np.float16)}, tmp_path / "x.safetensors")
    tensor = read_safetensors_header(tmp_path / "x.safetensors")["x"]
    tensor = dataclasses.replace(tensor, interleaved_heads=heads)
    np.testing.assert_array_equal(read_tensor(tensor, np.dtype(np.float32)), array)


def test_the_device_takes_over_the_memory_that_was_read_into(tmp_path):
    array = np.ones((256, 256), np.float32)
    save_file({"x": array}, tmp_path / "x.safetensors")
    tensor = read_safetensors_header(tmp_path / "x.safetensors")["x"]
    host = read_tensor(tensor, np.dtype(np.float32))
    device = jax.device_put(host, jax.devices("cpu")[0])
    assert device.unsafe_buffer_pointer() == host.ctypes.data


def test_weights_are_held_once_while_they_are_loaded(tmp_path):
    config = files.CONFIG | {"vocab_size": 1 << 15, "hidden_size": 1024, "intermediate_size": 2048}
    weights = files.random_weights(config)
    size = sum(array.nbytes for array in weights.values())
    files.write_directory(tmp_path, config, files.hugging_face_names(weights))
    before, after = files.peak_memory_of_loading(tmp_path, "float32")
    assert after - before <= 1.3 * size


def test_a_model_ready_to_run():
    lm = load_model(TINY_MODEL)
    assert lm.vocab_size == 128
    assert lm.max_length == 1024
    assert lm.stop_tokens == (2,)
    assert lm.tokenizer is None
    assert (lm.cache_spec.num_layers, lm.cache_spec.num_kv_heads) == (2, 2)
    assert (lm.cache_spec.head_dim, lm.cache_spec.dtype) == (16, "float32")
    assert hash(lm.forward) == hash(load_model(str(TINY_MODEL)).forward)
    tensors = load_file(TINY_MODEL / "model.safetensors")
    np.testing.assert_array_equal(
        lm.params["layers_1"]["attn"]["k"]["weight"],
        tensors["model.layers.1.self_attn.k_proj.weight"],
    )
    assert load_model(TINY_MODEL, dtype="bfloat16").cache_spec.dtype == "bfloat16"


def test_progress_counts_all_bytes():
    calls = []
    load_model(TINY_MODEL, progress=lambda done, total: calls.append((done, total)))
    total = sum(array.nbytes for array in load_file(TINY_MODEL / "model.safetensors").values())
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1] == (total, total)


def test_harmless_extra_tensors_are_left_out(tmp_path):
    tensors = files.hugging_face_names(files.random_weights(TIED))
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    params = load_directory(
        files.write_directory(tmp_path, TIED, tensors), Target("float32")
    ).params
    assert files.paths_of(params) == set(files.random_weights(TIED))


@pytest.mark.parametrize(
    ("rope", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_theta": 1e4, "rope_scaling": None}, 1e4, None),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
            1e4,
            LinearScaling(2),
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}, 1e5, None),
        (
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                }
            },
            5e5,
            Llama3Scaling(8.0, 1.0, 4.0, 8192),
        ),
        (
            {
                "rope_theta": 5e5,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 32.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            5e5,
            Llama3Scaling(32.0, 1.0, 4.0, 8192),
        ),
    ],
)
def test_both_spellings_of_rotary_parameters(tmp_path, rope, theta, scaling):
    config = {key: value for key, value in files.CONFIG.items() if key != "rope_theta"} | rope
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = read_config(tmp_path)
    assert read.layers[0].rope == Rope(theta, 8, scaling)


def test_a_configuration_that_transformers_wrote(tmp_path):
    parameters = {"rope_type": "linear", "rope_theta": 2e4, "factor": 2.0}
    written = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, num_attention_heads=4, rope_parameters=parameters
    )
    written.save_pretrained(tmp_path)
    read = read_config(tmp_path)
    assert read.layers[0].rope == Rope(2e4, 8, LinearScaling(2.0))
    assert read.norm.epsilon == written.rms_norm_eps
    for name in ("num_hidden_layers", "intermediate_size", "head_dim"):
        assert getattr(read, name) == getattr(written, name)


def test_defaults_are_those_of_hugging_face(tmp_path):
    required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    config = {key: files.CONFIG[key] for key in (*required, "model_type", "num_attention_heads")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_config(tmp_path) == llama_config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        rms_norm_eps=1e-6,
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"model_type": "mamba"},
            "model type 'mamba' is not supported; supported: llama, mistral, qwen2, qwen3, gemma2, "
            "gemma3_text, phi3, olmo2, smollm3, gpt2, mixtral, qwen3_moe",
        ),
        ({"model_type": None}, "model_type is missing"),
        (
            {"hidden_act": "relu"},
            "hidden_act must be one of silu, swish, gelu, gelu_new, gelu_pytorch_tanh, got 'relu'",
        ),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size must be a positive integer, got '32'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer, got True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, got 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a positive number, got nan"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
        (
            {"num_key_value_heads": 3},
            "query heads must be a multiple of 3 (key/value heads), got 4",
        ),
        ({"head_dim": 7}, "head_dim must be even, got 7"),
        (
            {"head_dim": None, "num_attention_heads": 5},
            "hidden_size must be a multiple of num_attention_heads (5), got 32",
        ),
        (
            {"rope_scaling": {"rope_type": "xpos", "factor": 4.0}},
            "rope_scaling: rope type 'xpos' is not supported; supported: default, linear, dynamic, "
            "llama3, yarn, longrope",
        ),
        (
            {"rope_scaling": {"rope_type": "linear"}},
            "rope_scaling: factor is missing",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters must be an object of numbers, the same for all layers, got "
            "{'full_attention': {'rope_type': 'default'}}",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1 for llama, got 0.5"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "quantised safetensors are not supported; use the unquantised checkpoint, "
            "or a GGUF file",
        ),
    ],
)
def test_a_bad_configuration_is_refused_before_weights_are_read(tmp_path, changes, expected):
    (tmp_path / "config.json").write_text(json.dumps(files.CONFIG | changes))
    line = load_error(tmp_path)
    assert line.startswith(f"{tmp_path / 'config.json'}: ")
    assert line.endswith(expected)


def test_tensors_that_do_not_fit_are_named(tmp_path):
    tensors = files.hugging_face_names(files.random_weights())
    name = "model.layers.1.mlp.up_proj.weight"
    missing = {key: array for key, array in tensors.items() if key != name}
    line = load_error(files.write_directory(tmp_path / "a", tensors=missing))
    assert line == f"{tmp_path / 'a'}: tensor {name} is missing"

    biases = {"model.layers.0.self_attn.q_proj.bias": np.ones(32, np.float32)}
    line = load_error(files.write_directory(tmp_path / "b", tensors=tensors | biases))
    assert line.endswith("tensor model.layers.0.self_attn.q_proj.bias is not part of this model")

    line = load_error(
        files.write_directory(tmp_path / "c", tensors=tensors | {name: tensors[name].T.copy()})
    )
    assert line.endswith(f"tensor {name} has shape [32, 64], expected [64, 32]")

    integers = tensors | {name: np.ones((64, 32), np.int8)}
    line = load_error(files.write_directory(tmp_path / "d", tensors=integers))
    assert line.endswith(f"tensor {name} is stored as I8; expected one of F64, F32, F16, BF16")


def test_absurd_sizes_in_the_configuration_take_no_memory(tmp_path):
    files.write_directory(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(files.CONFIG | {"num_hidden_layers": 2**60}))
    assert load_error(tmp_path).endswith(f"num_hidden_layers must be at most 1000, got {2**60}")
    (tmp_path / "config.json").write_text(json.dumps(files.CONFIG | {"num_hidden_layers": 30}))
    assert load_error(tmp_path).endswith("expected 30 layers, but there are only 21 tensors")
    (tmp_path / "config.json").write_text(json.dumps(files.CONFIG | {"vocab_size": 2**60}))
    assert load_error(tmp_path).endswith(f"has shape [64, 32], expected [{2**60}, 32]")


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_is_told(tmp_path, keep):
    path = files.write_directory(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert load_error(tmp_path).startswith(f"{path} is damaged or truncated: ")


@pytest.mark.parametrize(
    "header",
    [
        b"not json at all",
        b"[]",
        b'{"a": {"dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0, 16]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
        b' "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
    ],
)
def test_a_damaged_header_is_told(tmp_path, header):
    path = files.write_directory(tmp_path) / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    assert load_error(tmp_path).startswith(f"{path} is damaged or truncated: ")


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    (tmp_path / "x").write_bytes(b"\0" * 8)
    stored = StoredTensor("x", tmp_path / "x", 0, (4,), FLOATS["F32"])
    line = error_of(read_tensor, stored, np.dtype(np.float32))
    assert line == f"{tmp_path / 'x'} is truncated: it ends inside tensor x"


def test_bad_indices_are_refused(tmp_path):
    directory = files.write_directory(tmp_path / "model", shards=2)
    index = directory / "model.safetensors.index.json"
    good = json.loads(index.read_text())["weight_map"]

    def error_with(weight_map):
        index.write_text(json.dumps({"weight_map": weight_map}))
        return load_error(directory)

    name = "model.norm.weight"
    for escape in ("../model-0.safetensors", str(directory / "model-0.safetensors"), 7, "", []):
        line = error_with(good | {name: escape})
        assert line == f"{index}: a shard must be a file beside it, got {escape!r}"
    assert error_with(good | {name: "absent.safetensors"}).endswith(
        "absent.safetensors: no such file"
    )
    other = {"model-0.safetensors": "model-1.safetensors"}.get(good[name], "model-0.safetensors")
    assert error_with(good | {name: other}) == f"{index}: tensor {name} is not in {other}"
    assert error_with([]).endswith("weight_map must be an object that names the shards")
    index.write_text("{")
    assert load_error(directory).startswith(f"{index} is not valid JSON: ")

    save_file({name: np.ones(32, np.float32)}, directory / "model-2.safetensors")
    assert error_with(good | {"x": "model-2.safetensors"}).startswith(
        f"{directory}: tensor {name} is in both "
    )


def test_missing_files_are_told(tmp_path):
    assert load_error(tmp_path) == f"{tmp_path / 'config.json'}: no such file"
    (tmp_path / "config.json").write_text(json.dumps(files.CONFIG))
    assert load_error(tmp_path) == (
        f"{tmp_path}: expected model.safetensors or model.safetensors.index.json, found neither"
    )
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert load_error(tmp_path) == (
        f"{tmp_path}: only pytorch_model.bin, a pickle, which is never loaded; "
        "expected model.safetensors"
    )
    (tmp_path / "config.json").write_text("[1]")
    assert load_error(tmp_path) == f"{tmp_path / 'config.json'}: expected a JSON object"


def test_names_of_nothing(tmp_path):
    expected = (
        "expected one of the named models (tiny-bytes, smollm2-135m, gemma3-270m), "
        "a directory with config.json, a .gguf file or a Hugging Face id 'org/name'"
    )
    for name in ("no-such-model", "", "a/b/c", str(tmp_path / "absent"), "org/.."):
        assert load_error(name) == f"no model named {name!r}: {expected}"
    assert load_error(tmp_path / "x.gguf") == f"{tmp_path / 'x.gguf'}: no such file"
    assert error_of(load_model, TINY_MODEL, dtype="float8") == (
        "dtype must be one of float32, bfloat16, float16, got 'float8'"
    )


def test_stop_tokens_prefer_the_generation_config(tmp_path):
    files.write_directory(tmp_path)
    assert load_directory(tmp_path, Target("float32")).stop_tokens == (2,)
    generation = tmp_path / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load_directory(tmp_path, Target("float32")).stop_tokens == (5, 6)
    generation.write_text(json.dumps({"eos_token_id": 7}))
    assert load_directory(tmp_path, Target("float32")).stop_tokens == (7,)
    generation.write_text(json.dumps({"temperature": 1.0}))
    assert load_directory(tmp_path, Target("float32")).stop_tokens == (2,)
    generation.write_text(json.dumps({"eos_token_id": "</s>"}))
    assert load_error(tmp_path).endswith("eos_token_id must be a token id or a list, got '</s>'")


def run_offline(cache, code):
    """Runs Python with the hub's network switched off and its cache in a directory."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(cache)}
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        cwd=cache,
        capture_output=True,
        text=True,
        check=False,
    )


def test_hub_models_come_from_the_hub_cache(tmp_path):
    revision = "0" * 40
    repository = tmp_path / "hub" / "models--org--tiny"
    files.write_directory(repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    code = (
        "from lookahead_jax.models import load_model\n"
        "lm = load_model('org/tiny')\n"
        "print(lm.name, lm.vocab_size)"
    )
    result = run_offline(tmp_path, code)
    assert result.stdout == "org/tiny 64\n", result.stderr


def test_hub_models_without_network_are_one_line(tmp_path):
    code = (
        "from lookahead_jax.errors import LookaheadError\n"
        "from lookahead_jax.models import load_model\n"
        "try:\n    load_model('org/absent')\n"
        "except LookaheadError as error:\n    print(error)"
    )
    result = run_offline(tmp_path, code)
    assert result.stdout.startswith("cannot download org/absent: "), result.stderr
    assert result.stdout.count("\n") == 1
