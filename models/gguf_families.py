"""What a GGUF file's metadata says of a model, in the words of a Hugging Face config.json.

The readers of families.py then make the configuration of it, so that a family is described in one
place whatever file it comes from. Keys and their defaults are those of llama.cpp, whose converter
writes these files (gguf-py's constants.py lists the keys). What the decoder does not have is
refused by the key's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import MOST_LAYERS, Values
from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.models.families import FAMILIES
from lookahead_jax.models.gguf_names import BIASES, EMBEDDING, HEAD, ROUTER
from lookahead_jax.models.gguf_rope import Rotary, read_rotary
from lookahead_jax.models.weights import StoredTensor

Tensors = Mapping[str, StoredTensor]

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (1,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "embedding_scale": (1,),
    "expert_gating_func": (1,),
    "expert_shared_count": (0,),
    "expert_weights_scale": (0, 1),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
    "use_parallel_residual": (False,),
}
"""Keys that need something the decoder does not have, unless they hold one of these."""

GEMMA_27B = {"gemma2": 46, "gemma3": 62}
"""Layers of the size whose scores are divided by sqrt(hidden_size / heads), not sqrt(head_dim). As
in llama.cpp; no key says so."""

UNLIKE = {
    "state-space or recurrent layers": (
        *("mamba", "mamba2", "jamba", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"),
        *("plamo2", "plamo3", "lfm2", "lfm2moe", "kimi-linear", "qwen3next", "qwen35", "qwen35moe"),
        *("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"),
    ),
    "an encoder-decoder": ("t5", "t5encoder"),
    "an encoder": (
        *("bert", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "eurobert"),
        *("jina-bert-v2", "jina-bert-v3", "gemma-embedding", "llama-embed"),
    ),
    "a diffusion model": ("dream", "llada", "llada-moe", "rnd1"),
}
"""Why some architectures cannot be: they are not decoders whose rows attend to a cache."""


@dataclass(frozen=True)
class Architecture:
    """What is particular to a GGUF architecture.

    Attributes:
        family: Its families, by `model_type`, that a file may be of.
        read: Metadata, its rotary settings and tensors to further values of config.json.
        interleaved: Whether the rows of queries and keys are stored interleaved.
    """

    family: str
    read: Callable[[Values, Rotary, Tensors], dict[str, Any]]
    interleaved: bool = False


def _llama(values: Values, rotary: Rotary, tensors: Tensors) -> dict[str, Any]:
    window = _window(values)
    if not values.has("expert_count") or values.values["expert_count"] == 0:
        family = "llama" if window is None else "mistral"
        return {"model_type": family, "sliding_window": window}
    if not values.flag("expert_weights_norm", True):
        raise values.wrong("expert_weights_norm", "true")
    return {
        "model_type": "mixtral",
        "sliding_window": window,
        "num_local_experts": values.integer("expert_count", most=MOST_LAYERS),
        "num_experts_per_tok": values.integer("expert_used_count"),
    }


def _without_window(values: Values, rotary: Rotary, tensors: Tensors) -> dict[str, Any]:
    if _window(values) is not None:
        raise values.wrong("attention.sliding_window", "0: which layers have it is not known")
    return {}


def _qwen3moe(values: Values, rotary: Rotary, tensors: Tensors) -> dict[str, Any]:
    used = values.integer("expert_used_count")
    layers = range(values.integer("block_count", most=MOST_LAYERS))
    inner = values.integer("feed_forward_length") // used or 1
    return _without_window(values, rotary, tensors) | {
        "num_experts": values.integer("expert_count", most=MOST_LAYERS),
        "num_experts_per_tok": used,
        "moe_intermediate_size": values.integer("expert_feed_forward_length", inner),
        "norm_topk_prob": values.flag("expert_weights_norm", True),
        "mlp_only_layers": [i for i in layers if ROUTER.format(i) not in tensors],
    }


def _gemma(values: Values, period: int) -> dict[str, Any]:
    heads = values.integer("attention.head_count")
    large = values.integer("block_count") == GEMMA_27B[values.text("architecture")]
    head_dim = values.integer("attention.key_length", 256)
    return {
        "query_pre_attn_scalar": values.integer("embedding_length") // heads if large else head_dim,
        "attn_logit_softcapping": _softcap(values, "attn_logit_softcapping"),
        "final_logit_softcapping": _softcap(values, "final_logit_softcapping"),
        "layer_types": _layer_types(values, period),
    }


def _gemma2(values: Values, rotary: Rotary, tensors: Tensors) -> dict[str, Any]:
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    values = replace(values, values={**caps, "attention.sliding_window": 4096, **values.values})
    return _gemma(values, 2) | {"sliding_window": _window(values)}


def _gemma3(values: Values, rotary: Rotary, tensors: Tensors) -> dict[str, Any]:
    """Local layers have a rotary base of their own, and no scaling."""
    window = _window(values)
    local = {"rope_type": "default", "rope_theta": values.number("rope.freq_base_swa", 10000.0)}
    return _gemma(values, 6 if window else 1) | {
        "sliding_window": window,
        "rope_parameters": {"full_attention": rotary.settings, "sliding_attention": local},
    }


def _phi3(values: Values, rotary: Rotary, tensors: Tensors) -> dict[str, Any]:
    key = "rope.scaling.original_context_length"
    return {
        "sliding_window": _window(values),
        "original_max_position_embeddings": values.integer(key, values.integer("context_length")),
    }


def _gpt2(values: Values, rotary: Rotary, tensors: Tensors) -> dict[str, Any]:
    return {
        "n_embd": values.integer("embedding_length"),
        "n_head": values.integer("attention.head_count"),
        "n_inner": values.integer("feed_forward_length"),
        "n_layer": values.integer("block_count", most=MOST_LAYERS),
        "n_positions": values.integer("context_length"),
        "layer_norm_epsilon": values.number("attention.layer_norm_epsilon"),
    }


ARCHITECTURES = {
    "llama": Architecture("llama", _llama, interleaved=True),
    "qwen2": Architecture("qwen2", _without_window),
    "qwen3": Architecture("qwen3", _without_window),
    "qwen3moe": Architecture("qwen3_moe", _qwen3moe),
    "gemma2": Architecture("gemma2", _gemma2),
    "gemma3": Architecture("gemma3_text", _gemma3),
    "phi3": Architecture("phi3", _phi3),
    "olmo2": Architecture("olmo2", _without_window),
    "smollm3": Architecture("smollm3", _without_window, interleaved=True),
    "gpt2": Architecture("gpt2", _gpt2),
}
"""By `general.architecture`. Mistral and Mixtral are "llama" there."""


def architecture_of(metadata: Mapping[str, Any], source: str) -> str:
    """The architecture that the metadata names.

    Raises:
        LookaheadError: It is missing, or not supported; the line says why where that is known.
    """
    name = Values(metadata, source).text("general.architecture")
    if name not in ARCHITECTURES:
        reason = next((f" ({why})" for why, names in UNLIKE.items() if name in names), "")
        raise LookaheadError(
            f"{source}: architecture {name!r} is not supported{reason}; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    return name


def read_metadata(metadata: Mapping[str, Any], tensors: Tensors, source: str) -> DecoderConfig:
    """The hyperparameters of a file.

    Args:
        metadata: Its keys and values.
        tensors: Its tensors; they tell the size of the vocabulary, and what may be left out.
        source: Its name, for messages.

    Raises:
        LookaheadError: Not a supported model, or a value that cannot be right.
    """
    name = architecture_of(metadata, source)
    architecture = ARCHITECTURES[name]
    values = _of_architecture(metadata, name, source)
    for key, neutral in NEUTRAL.items():
        if values.has(key) and values.values[key] not in neutral:
            raise values.wrong(key, f"{neutral[-1]} for this version")
    rotary = read_rotary(values, tensors, _head_dim(values), partial=name == "phi3")
    read = _common(values, tensors, rotary) | architecture.read(values, rotary, tensors)
    read = {"model_type": architecture.family} | read
    config = FAMILIES[read["model_type"]].read(Values(read, source))
    biases = {field: any(name in tensors for name in names) for field, names in BIASES.items()}
    # llama.cpp's converter adds to the norms of Gemma what transformers adds when it runs.
    config = replace(config, norm=replace(config.norm, offset=0.0), **biases)
    if values.has("attention.scale"):
        config = replace(config, attention_scale=values.number("attention.scale"))
    return rotary.apply(config)


def _of_architecture(metadata: Mapping[str, Any], name: str, source: str) -> Values:
    """The values whose keys begin with the architecture's name, which messages keep.

    Lists that say the same of every layer become one value.
    """
    values = {
        key.removeprefix(f"{name}."): value
        for key, value in metadata.items()
        if key.startswith(f"{name}.")
    }
    found = Values(values | {"architecture": name}, source, prefix=f"{name}.")
    for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length"):
        per_layer = values.get(key)
        if isinstance(per_layer, list):
            if len(set(per_layer)) != 1:
                raise found.wrong(key, "the same in all layers")
            values[key] = per_layer[0]
    return replace(found, values=values | {"architecture": name})


def _common(values: Values, tensors: Tensors, rotary: Rotary) -> dict[str, Any]:
    if EMBEDDING not in tensors:
        raise LookaheadError(f"{values.source}: tensor {EMBEDDING} is missing")
    read = {
        "vocab_size": tensors[EMBEDDING].shape[0],
        "tie_word_embeddings": HEAD not in tensors,
        "rope_parameters": rotary.settings,
    }
    if values.text("architecture") == "gpt2":
        return read
    heads = values.integer("attention.head_count")
    return read | {
        "hidden_size": values.integer("embedding_length"),
        "intermediate_size": values.integer("feed_forward_length"),
        "num_hidden_layers": values.integer("block_count", most=MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": values.integer("attention.head_count_kv", heads),
        "head_dim": _head_dim(values),
        "max_position_embeddings": values.integer("context_length"),
        "rms_norm_eps": values.number("attention.layer_norm_rms_epsilon"),
    }


def _head_dim(values: Values) -> int:
    heads = values.integer("attention.head_count")
    head_dim = values.integer("embedding_length") // heads or 1
    head_dim = values.integer("attention.key_length", head_dim)
    if values.integer("attention.value_length", head_dim) != head_dim:
        raise values.wrong("attention.value_length", f"the head dimension ({head_dim})")
    return head_dim


def _window(values: Values) -> int | None:
    """None where there is none, which some files write as 0."""
    key = "attention.sliding_window"
    return values.integer(key) if values.has(key) and values.values[key] != 0 else None


def _softcap(values: Values, key: str) -> float | None:
    return values.number(key) if values.has(key) else None


def _layer_types(values: Values, period: int) -> list[str]:
    """All but every `period`th layer have a window, unless the file says otherwise."""
    key = "attention.sliding_window_pattern"
    layers = values.integer("block_count", most=MOST_LAYERS)
    pattern = values.values.get(key, period)
    if isinstance(pattern, list) and len(pattern) == layers:
        sliding = [bool(entry) for entry in pattern]
    elif isinstance(pattern, int) and pattern > 0:
        sliding = [i % pattern < pattern - 1 for i in range(layers)]
    else:
        raise values.wrong(key, f"a positive integer, or {layers} flags")
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]
