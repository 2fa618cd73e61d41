"""Costs of a model from its configuration, and the configurations of well-known models by name.

Planning needs no weights: a name, a config.json, or the header of a checkpoint is enough.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError

from lookahead_jax.errors import LookaheadError
from lookahead_jax.model_shape import LayerShape, ModelShape, Weights
from lookahead_jax.models.checkpoint import Values
from lookahead_jax.models.config import DecoderConfig, LayerKind, NormPlacement, QueryKeyNorm
from lookahead_jax.models.families import FAMILIES
from lookahead_jax.models.gguf_file import config_from_header
from lookahead_jax.models.gguf_header import read_gguf_header
from lookahead_jax.models.huggingface import read_config
from lookahead_jax.models.loading import HUB_ID
from lookahead_jax.models.manifest import is_checkpoint, read_manifest
from lookahead_jax.models.named_models import BUNDLED_MODELS


def model_shape(name: str, config: DecoderConfig) -> ModelShape:
    """The numbers of a configuration's parameter tree (config.py), by the part they belong to."""
    table = config.vocab_size * config.hidden_size
    embedding = Weights(matrix=table, channels=config.vocab_size)
    positions = config.max_position_embeddings * config.hidden_size
    return ModelShape(
        name=name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_length=config.max_position_embeddings,
        layers=tuple(_layer(config, kind) for kind in config.layers),
        embedding=embedding + Weights(other=positions if config.learned_positions else 0),
        head=None if config.tie_word_embeddings else embedding,
        final_norm=_norm(config, config.hidden_size),
    )


def _norm(config: DecoderConfig, features: int) -> Weights:
    return Weights(other=features * (2 if config.norm.centered else 1))


def _layer(config: DecoderConfig, kind: LayerKind) -> LayerShape:
    hidden, experts = config.hidden_size, kind.experts
    queries = config.num_attention_heads * config.head_dim
    cached = config.num_key_value_heads * config.head_dim
    projected = queries + 2 * cached
    attention = Weights(
        matrix=hidden * (projected + queries),
        channels=projected + hidden,
        other=projected * config.qkv_bias + hidden * config.output_bias,
    )
    if config.qk_norm is QueryKeyNorm.HEADS:
        attention += _norm(config, 2 * config.head_dim)
    elif config.qk_norm is QueryKeyNorm.ALL:
        attention += _norm(config, queries + cached)
    if experts is None:
        inner = config.intermediate_size
        wide = (2 if config.gated else 1) * inner
        biases = (wide + hidden) * config.mlp_bias
        mlp = Weights(matrix=hidden * (wide + inner), channels=wide + hidden, other=biases)
    else:
        inner = experts.hidden_features
        mlp = Weights(
            matrix=experts.count * 3 * hidden * inner,
            channels=experts.count * (2 * inner + hidden),
            router=experts.count * hidden,
        )
    norms = _norm(config, hidden * (2 if config.placement is NormPlacement.AROUND else 1))
    return LayerShape(
        attention=attention + norms,
        mlp=mlp + norms,
        inner_features=inner,
        window=kind.window,
        experts=None if experts is None else (experts.count, experts.top_k),
    )


def find_shape(name: str) -> ModelShape:
    """The shape of a model, no weight of which is read.

    Args:
        name: A name of `KNOWN_SHAPES` or of a model that `load_model` knows, a directory with
            config.json or one that `convert` wrote, a .gguf file, or a Hugging Face id, whose
            config.json alone is fetched.

    Raises:
        LookaheadError: There is no such model, it is not supported, or a file is damaged.
    """
    return model_shape(os.path.basename(os.path.normpath(name)) or name, _find_config(name))


def _find_config(name: str) -> DecoderConfig:
    path = Path(name)
    if name in KNOWN_SHAPES or name in NAMED_SHAPES:
        return known_config(NAMED_SHAPES.get(name, name))
    if name in BUNDLED_MODELS:
        return read_config(BUNDLED_MODELS[name].path)
    if path.suffix == ".gguf":
        return config_from_header(read_gguf_header(path), name)
    if name and path.is_dir():
        return read_manifest(path).config if is_checkpoint(path) else read_config(path)
    if HUB_ID.fullmatch(name) and not path.exists():
        return read_config(_download_config(name))
    known = ", ".join((*KNOWN_SHAPES, *BUNDLED_MODELS))
    raise LookaheadError(
        f"no model named {name!r}: expected one of {known}, a directory with config.json, "
        f"a .gguf file or a Hugging Face id 'org/name'"
    )


def _download_config(repository: str) -> Path:
    try:
        return Path(huggingface_hub.hf_hub_download(repository, "config.json")).parent
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LookaheadError(f"cannot download config.json of {repository}: {reason}") from error


def known_config(name: str) -> DecoderConfig:
    """The configuration of a name of `KNOWN_SHAPES`, which decides costs (not the rotary scaling).

    Raises:
        LookaheadError: There is no such name.
    """
    if name not in KNOWN_SHAPES:
        raise LookaheadError(f"no shape named {name!r}: expected {', '.join(KNOWN_SHAPES)}")
    values = KNOWN_SHAPES[name]
    return FAMILIES[values["model_type"]].read(Values(values, name))


def _known(
    family: str,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    layers: int,
    heads: tuple[int, int, int],
    length: int,
    *,
    tied: bool = False,
    **more: Any,
) -> Mapping[str, Any]:
    """What config.json says of a model; `heads` are query heads, key/value heads and head_dim."""
    return MappingProxyType(
        {
            "model_type": family,
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "intermediate_size": intermediate_size,
            "num_hidden_layers": layers,
            "num_attention_heads": heads[0],
            "num_key_value_heads": heads[1],
            "head_dim": heads[2],
            "max_position_embeddings": length,
            "tie_word_embeddings": tied,
            **more,
        }
    )


def _gemma3(
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    layers: int,
    heads: tuple[int, int, int],
    length: int,
    window: int,
) -> Mapping[str, Any]:
    sizes = (vocab_size, hidden_size, intermediate_size, layers, heads, length)
    return _known("gemma3_text", *sizes, tied=True, sliding_window=window)


_EXPERTS: dict[str, Any] = {
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
_MIXTRAL: dict[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 2}

KNOWN_SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "smollm2-135m": _known("llama", 49152, 576, 1536, 30, (9, 3, 64), 8192, tied=True),
        "llama-3.2-1b": _known("llama", 128256, 2048, 8192, 16, (32, 8, 64), 131072, tied=True),
        "llama-3.2-3b": _known("llama", 128256, 3072, 8192, 28, (24, 8, 128), 131072, tied=True),
        "llama-3.1-8b": _known("llama", 128256, 4096, 14336, 32, (32, 8, 128), 131072),
        "llama-3.1-70b": _known("llama", 128256, 8192, 28672, 80, (64, 8, 128), 131072),
        "qwen3-0.6b": _known("qwen3", 151936, 1024, 3072, 28, (16, 8, 128), 40960, tied=True),
        "qwen3-4b": _known("qwen3", 151936, 2560, 9728, 36, (32, 8, 128), 40960, tied=True),
        "qwen3-8b": _known("qwen3", 151936, 4096, 12288, 36, (32, 8, 128), 40960),
        "qwen3-32b": _known("qwen3", 151936, 5120, 25600, 64, (64, 8, 128), 40960),
        "qwen3-30b-a3b": _known(
            "qwen3_moe", 151936, 2048, 6144, 48, (32, 4, 128), 40960, **_EXPERTS
        ),
        "gemma-3-270m": _gemma3(262144, 640, 2048, 18, (4, 1, 256), 32768, 512),
        "gemma-3-1b": _gemma3(262144, 1152, 6912, 26, (4, 1, 256), 32768, 512),
        "gemma-3-4b": _gemma3(262208, 2560, 10240, 34, (8, 4, 256), 131072, 1024),
        "gemma-3-27b": _gemma3(262208, 5376, 21504, 62, (32, 16, 128), 131072, 1024),
        "phi-4": _known("phi3", 100352, 5120, 17920, 40, (40, 10, 128), 16384),
        "mistral-7b": _known("mistral", 32768, 4096, 14336, 32, (32, 8, 128), 32768),
        "mixtral-8x7b": _known("mixtral", 32000, 4096, 14336, 32, (32, 8, 128), 32768, **_MIXTRAL),
    }
)
"""What decides costs of the config.json of well-known models, text part, by name.

From their repositories on the Hugging Face hub: HuggingFaceTB/SmolLM2-135M-Instruct, meta-llama/
Llama-3.2-1B, -3B, Llama-3.1-8B, -70B, Qwen/Qwen3-0.6B, -4B, -8B, -32B, -30B-A3B, google/
gemma-3-270m, -1b-pt, -4b-pt, -27b-pt, microsoft/phi-4, mistralai/Mistral-7B-v0.3,
Mixtral-8x7B-v0.1.
"""

NAMED_SHAPES: Mapping[str, str] = MappingProxyType({"gemma3-270m": "gemma-3-270m"})
"""Names of named_models.py that are spelt otherwise here."""
