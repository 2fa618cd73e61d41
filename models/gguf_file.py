"""GGUF files of the Llama architecture: configuration, weights, tokenizer, all in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import (
    MOST_LAYERS,
    SUPPORTED,
    Checkpoint,
    Values,
    check_heads,
)
from lookahead_jax.models.config import (
    DecoderConfig,
    FrequencyFactors,
    LinearScaling,
    RopeScaling,
    llama_config,
)
from lookahead_jax.models.gguf_header import GgufHeader, read_gguf_header
from lookahead_jax.models.gguf_tokenizer import stop_tokens, tokenizer_from_metadata
from lookahead_jax.models.names import GGUF, mark_interleaved_heads, place
from lookahead_jax.models.weights import (
    Progress,
    StoredTensor,
    Target,
    load_parameters,
    read_tensor,
)

FREQUENCY_FACTORS = "rope_freqs.weight"


def load_gguf(path: Path, target: Target, progress: Progress | None = None) -> Checkpoint:
    """Loads a GGUF file.

    The rows of the query and key projections go back to Hugging Face's order, and quantised
    weights become numbers of the target dtype.

    Args:
        path: The file.
        target: What the weights become.
        progress: Told how far the reading is.

    Raises:
        LookaheadError: The model is not supported, or the file is damaged.
    """
    header = read_gguf_header(path)
    config = config_from_header(header, str(path))
    leaves = place(
        header.tensors,
        config,
        GGUF,
        source=str(path),
        ignore=lambda name: name == FREQUENCY_FACTORS or name.endswith(".attn_rot_embd"),
    )
    metadata = Values(header.metadata, str(path))
    tokenizer = tokenizer_from_metadata(metadata)
    params = load_parameters(mark_interleaved_heads(leaves, config), target, progress)
    return Checkpoint(config, params, stop_tokens(metadata), tokenizer)


def config_from_header(header: GgufHeader, source: str) -> DecoderConfig:
    """The hyperparameters that a header describes.

    Raises:
        LookaheadError: Not a supported model, or a value that cannot be right.
    """
    values = Values(header.metadata, source)
    architecture = values.text("general.architecture")
    if architecture != "llama":
        raise LookaheadError(
            f"{source}: architecture {architecture!r} is not supported; supported: {SUPPORTED}"
        )
    if values.integer("split.count", 1) > 1:
        raise LookaheadError(f"{source} is one part of a split model; expected one merged file")
    if values.values.get("llama.expert_count"):
        raise LookaheadError(
            f"{source}: mixtures of experts are not supported; supported: {SUPPORTED}"
        )
    values = _one_number_for_all_layers(values)
    hidden_size = values.integer("llama.embedding_length")
    heads = values.integer("llama.attention.head_count")
    rope_dimensions = values.integer("llama.rope.dimension_count", hidden_size // heads or 1)
    head_dim = values.integer("llama.attention.key_length", rope_dimensions)
    for name in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if values.integer(name, head_dim) != head_dim:
            raise values.wrong(name, f"the head dimension ({head_dim})")
    config = llama_config(
        vocab_size=_embedding(header.tensors, source).shape[0],
        hidden_size=hidden_size,
        intermediate_size=values.integer("llama.feed_forward_length"),
        num_hidden_layers=values.integer("llama.block_count", most=MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=values.integer("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=values.number("llama.attention.layer_norm_rms_epsilon"),
        rope_theta=values.number("llama.rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(values, header.tensors, head_dim),
        max_position_embeddings=values.integer("llama.context_length"),
        tie_word_embeddings=GGUF["head/weight"] not in header.tensors,
        attention_bias=GGUF["layers/attn/q/bias"].format(0) in header.tensors,
        mlp_bias=GGUF["layers/mlp/up/bias"].format(0) in header.tensors,
    )
    return check_heads(config, source)


def _one_number_for_all_layers(values: Values) -> Values:
    """Replaces per-layer lists of equal numbers by the number."""
    uniform = {}
    for name in ("head_count", "head_count_kv"):
        key = f"llama.attention.{name}"
        per_layer = values.values.get(key)
        if isinstance(per_layer, list):
            if len(set(per_layer)) != 1:
                raise values.wrong(key, "the same in all layers")
            uniform[key] = per_layer[0]
    return replace(values, values={**values.values, **uniform})


def _embedding(tensors: Mapping[str, StoredTensor], source: str) -> StoredTensor:
    name = GGUF["embed/weight"]
    if name not in tensors:
        raise LookaheadError(f"{source}: tensor {name} is missing")
    return tensors[name]


def _rope_scaling(
    values: Values, tensors: Mapping[str, StoredTensor], head_dim: int
) -> RopeScaling | None:
    """Linear scaling from the metadata, or the divisors that Llama 3.1 files carry as a tensor."""
    kind = values.text("llama.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise LookaheadError(
            f"{values.source}: rope scaling {kind!r} is not supported; supported: none, linear, "
            f"{FREQUENCY_FACTORS}"
        )
    legacy_factor = values.number("llama.rope.scale_linear", 1.0)
    factor = values.number("llama.rope.scaling.factor") if kind == "linear" else legacy_factor
    if FREQUENCY_FACTORS not in tensors:
        return None if factor == 1.0 else LinearScaling(factor)
    if factor != 1.0:
        raise LookaheadError(
            f"{values.source}: expected linear rope scaling or {FREQUENCY_FACTORS}, got both"
        )
    stored = tensors[FREQUENCY_FACTORS]
    if stored.shape != (head_dim // 2,):
        raise LookaheadError(
            f"{values.source}: tensor {FREQUENCY_FACTORS} has shape {list(stored.shape)}, "
            f"expected [{head_dim // 2}]"
        )
    factors = read_tensor(stored, np.dtype(np.float32))
    if not np.all(np.isfinite(factors) & (factors > 0)):
        raise LookaheadError(
            f"{values.source}: tensor {FREQUENCY_FACTORS} must hold positive numbers"
        )
    return FrequencyFactors(tuple(factors.tolist()))
