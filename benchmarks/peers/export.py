"""The weights of a loaded model as files that other implementations read, number for number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np
from safetensors.numpy import save_file

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.config import DecoderConfig, llama_config
from lookahead_jax.models.decoder import DecoderForward
from lookahead_jax.models.gguf_names import GGUF
from lookahead_jax.models.names import HUGGING_FACE
from lookahead_jax.typing import LanguageModel


def why_not(lm: LanguageModel) -> str | None:
    """Why a model cannot be compared with other implementations; None where it can."""
    if not isinstance(lm.forward, DecoderForward) or not _is_plain_llama(lm.forward.config):
        return "the comparison covers Llama models without rope scaling"
    if lm.cache_spec.dtype != "float32":
        return f"the comparison is in float32, the model is in {lm.cache_spec.dtype}"
    return None


def _is_plain_llama(config: DecoderConfig) -> bool:
    """Whether it is what `llama_config` makes, without rope scaling."""
    rope = config.layers[0].rope
    if rope is None or rope.scaling is not None:
        return False
    return config == llama_config(
        config.vocab_size,
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.norm.epsilon,
        rope.theta,
        None,
        config.max_position_embeddings,
        config.tie_word_embeddings,
        config.qkv_bias,
        config.mlp_bias,
    )


def decoder_config(lm: LanguageModel) -> DecoderConfig:
    """The configuration of a model that can be compared.

    Raises:
        LookaheadError: It cannot; the line says why.
    """
    reason = why_not(lm)
    if reason is not None:
        raise LookaheadError(f"model {lm.name}: {reason}")
    assert isinstance(lm.forward, DecoderForward)
    return lm.forward.config


def hugging_face_config(config: DecoderConfig) -> dict[str, Any]:
    """Arguments of transformers' `LlamaConfig`, the rope's apart, which differ by release."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm.epsilon,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
    }


def rope_theta(config: DecoderConfig) -> float:
    """Base of the rotary frequencies of a plain Llama."""
    rope = config.layers[0].rope
    assert rope is not None
    return rope.theta


def named(params: Any, table: dict[str, str]) -> list[tuple[str, jax.Array]]:
    """Leaves by the names of a table of `names.py` or `gguf_names.py`."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        keys = [key.key for key in path]
        head, _, layer = keys[0].partition("_")
        inside = head == "layers"
        pattern = table["/".join(["layers", *keys[1:]] if inside else keys)]
        found.append((pattern.format(layer), leaf))
    return found


def write_hugging_face(lm: LanguageModel, directory: Path) -> None:
    """Writes config.json and model.safetensors, float32, for any transformers since 4.34.

    Raises:
        LookaheadError: The model is of another kind, or the directory cannot be written.
    """
    config = decoder_config(lm)
    settings = hugging_face_config(config) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_theta": rope_theta(config),
        "rope_scaling": None,
        "torch_dtype": "float32",
        "eos_token_id": None,
    }
    tensors = {name: np.asarray(leaf) for name, leaf in named(lm.params, HUGGING_FACE)}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(settings, indent=1)
        (directory / "config.json").write_text(text, encoding="utf-8")
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    except OSError as error:
        raise LookaheadError(f"cannot write the weights to {directory}: {error}") from error


def write_gguf(lm: LanguageModel, path: Path) -> None:
    """Writes a GGUF file in float32, without a vocabulary (`tokenizer.ggml.model` is "none").

    Rows of query and key projections go into llama.cpp's order, which has the two halves of a head
    interleaved.

    Raises:
        LookaheadError: The model is of another kind, or the file cannot be written.
    """
    config = decoder_config(lm)
    if config.qkv_bias or config.mlp_bias:
        raise LookaheadError(f"model {lm.name}: GGUF files of Llama models have no biases")
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(str(path), "llama")
        _describe(writer, config)
        for name, leaf in named(lm.params, GGUF):
            array = np.asarray(leaf)
            kind = name.split(".")[-2]
            writer.add_tensor(name, _interleaved(array, heads[kind]) if kind in heads else array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    except OSError as error:
        raise LookaheadError(f"cannot write the weights to {path}: {error}") from error


def _describe(writer: gguf.GGUFWriter, config: DecoderConfig) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(rope_theta(config))
    writer.add_layer_norm_rms_eps(config.norm.epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("none")


def _interleaved(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows (i, i + D / 2) of each head next to each other."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
