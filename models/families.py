"""The families: how the config.json of each becomes the one decoder's configuration.

A family is known by its `model_type` in transformers. What a reader does not mention is as in
Llama. Where a value would need something that the decoder does not have, it is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import MOST_LAYERS, Values, check_heads
from lookahead_jax.models.config import (
    Activation,
    DecoderConfig,
    DynamicScaling,
    Experts,
    LayerKind,
    Norm,
    NormPlacement,
    QueryKeyNorm,
    Rope,
)
from lookahead_jax.models.rope_settings import read_rope

ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}


def read_llama(values: Values) -> DecoderConfig:
    """Llama 2, 3, 3.1 and later, SmolLM2: the base of most others."""
    config = _base(values)
    bias = values.flag("attention_bias", False)
    return replace(config, qkv_bias=bias, output_bias=bias, mlp_bias=values.flag("mlp_bias", False))


def read_mistral(values: Values) -> DecoderConfig:
    """Mistral: a sliding window in every layer, if any."""
    return _with_windows(_base(values), _window(values), always=True)


def read_qwen2(values: Values) -> DecoderConfig:
    """Qwen 2 and 2.5: biases of queries, keys and values."""
    config = replace(_base(values), qkv_bias=True)
    return _with_windows(config, _qwen_window(values), _qwen_layer_types(values, config))


def read_qwen3(values: Values) -> DecoderConfig:
    """Qwen 3: normalised query and key heads."""
    config = _base(values, head_dim=128)
    bias = values.flag("attention_bias", False)
    config = replace(config, qk_norm=QueryKeyNorm.HEADS, qkv_bias=bias, output_bias=bias)
    return _with_windows(config, _qwen_window(values), _qwen_layer_types(values, config))


def read_qwen3_moe(values: Values) -> DecoderConfig:
    """Qwen 3 with experts in most layers."""
    config = read_qwen3(values)
    experts = Experts(
        count=values.integer(
            "num_experts" if values.has("num_experts") else "num_local_experts", most=MOST_LAYERS
        ),
        top_k=values.integer("num_experts_per_tok"),
        hidden_features=values.integer("moe_intermediate_size"),
        normalise=values.flag("norm_topk_prob", False),
    )
    _check_experts(values, experts)
    step, dense = values.integer("decoder_sparse_step", 1), values.values.get("mlp_only_layers")
    layers = tuple(
        kind if i in (dense or ()) or (i + 1) % step else replace(kind, experts=experts)
        for i, kind in enumerate(config.layers)
    )
    return replace(config, layers=layers)


def read_mixtral(values: Values) -> DecoderConfig:
    """Mixtral: Mistral with experts in every layer."""
    config = read_mistral(values)
    experts = Experts(
        count=values.integer("num_local_experts", most=MOST_LAYERS),
        top_k=values.integer("num_experts_per_tok"),
        hidden_features=config.intermediate_size,
    )
    _check_experts(values, experts)
    layers = tuple(replace(kind, experts=experts) for kind in config.layers)
    return replace(config, layers=layers)


def read_gemma2(values: Values) -> DecoderConfig:
    """Gemma 2: norms on both sides, soft-caps, every other layer with a window."""
    config = _gemma(values)
    kinds = _layer_types(values, config, lambda i: i % 2 == 0)
    config = replace(
        config,
        attention_softcap=_optional_number(values, "attn_logit_softcapping"),
        final_softcap=_optional_number(values, "final_logit_softcapping"),
    )
    return _with_windows(config, _window(values), kinds)


def read_gemma3_text(values: Values) -> DecoderConfig:
    """Gemma 3 without images: normalised heads, five local layers to a global one."""
    values = replace(values, values={"rope_theta": 1e6, **values.values})
    config = replace(_gemma(values), qk_norm=QueryKeyNorm.HEADS)
    pattern = values.integer("sliding_window_pattern", 6)
    kinds = _layer_types(values, config, lambda i: (i + 1) % pattern != 0)
    if values.flag("use_bidirectional_attention", False):
        raise values.wrong("use_bidirectional_attention", "false for text that is written")
    whole = config.layers[0].rope
    if values.has("rope_parameters"):
        local = read_rope(values, config.head_dim, "sliding_attention")
    else:
        local = Rope(values.number("rope_local_base_freq", 10000.0), config.head_dim)
    window = _window(values)
    layers = tuple(LayerKind(local, window) if sliding else LayerKind(whole) for sliding in kinds)
    # transformers leaves attn_logit_softcapping of a Gemma 3 file unused.
    final_softcap = _optional_number(values, "final_logit_softcapping")
    return replace(config, layers=layers, final_softcap=final_softcap)


def read_phi3(values: Values) -> DecoderConfig:
    """Phi 3 and 4: projections stored as one; partial and long rotary embeddings."""
    known = {name: value for name, value in values.values.items() if value is not None}
    known.setdefault("original_max_position_embeddings", 4096)
    for name in ("rope_parameters", "rope_scaling"):
        rope = known.get(name)
        # Early files call it so.
        if isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type")) == "yarn":
            known[name] = {**rope, "rope_type": "longrope"}
    config = _base(replace(values, values=known), partial=True)
    return _with_windows(config, _window(values), always=True)


def read_olmo2(values: Values) -> DecoderConfig:
    """OLMo 2: norms after attention and MLP, and of all query and key features together."""
    bias = values.flag("attention_bias", False)
    config = _base(values)
    return replace(
        config,
        norm=replace(config.norm, rounds_last=True),
        placement=NormPlacement.AFTER,
        qk_norm=QueryKeyNorm.ALL,
        qkv_bias=bias,
        output_bias=bias,
    )


def read_smollm3(values: Values) -> DecoderConfig:
    """SmolLM 3: every fourth layer does not know positions."""
    config = read_llama(replace(values, values={"tie_word_embeddings": True, **values.values}))
    interval = values.integer("no_rope_layer_interval", 4)
    uses_rope = values.values.get("no_rope_layers")
    if uses_rope is None:
        uses_rope = [int((i + 1) % interval != 0) for i in range(config.num_hidden_layers)]
    if not isinstance(uses_rope, list) or len(uses_rope) != config.num_hidden_layers:
        raise values.wrong("no_rope_layers", "a list with a 0 or 1 for each layer")
    layers = tuple(
        kind if rope else replace(kind, rope=None)
        for kind, rope in zip(config.layers, uses_rope, strict=True)
    )
    config = replace(config, layers=layers)
    if not values.flag("use_sliding_window", False):
        return config
    sliding = _layer_types(values, config, lambda i: not uses_rope[i])
    return _with_windows(config, _window(values), sliding)


def read_gpt2(values: Values) -> DecoderConfig:
    """GPT-2: learned positions, LayerNorm, an MLP without a gate, biases everywhere."""
    if not values.flag("scale_attn_weights", True):
        raise values.wrong("scale_attn_weights", "true")
    if values.flag("scale_attn_by_inverse_layer_idx", False):
        raise values.wrong("scale_attn_by_inverse_layer_idx", "false")
    hidden_size, heads = values.integer("n_embd"), values.integer("n_head")
    if hidden_size % heads:
        raise values.wrong("n_embd", f"a multiple of n_head ({heads})")
    return DecoderConfig(
        vocab_size=values.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=values.integer("n_inner", 4 * hidden_size),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden_size // heads,
        layers=(LayerKind(rope=None),) * values.integer("n_layer", most=MOST_LAYERS),
        max_position_embeddings=values.integer("n_positions"),
        norm=Norm(values.number("layer_norm_epsilon", 1e-5), centered=True, rounds_last=True),
        activation=_activation(values, "activation_function", "gelu_new"),
        gated=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        learned_positions=True,
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
    )


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        read: Its config.json to a configuration.
        members: The models that people know, for messages.
        parity: What it was compared with transformers on.
    """

    read: Callable[[Values], DecoderConfig]
    members: str
    parity: str = "tiny checkpoint"


FAMILIES = {
    "llama": Family(read_llama, "Llama 2, 3, 3.1, 3.2, SmolLM2", "tiny checkpoints, SmolLM2-135M"),
    "mistral": Family(read_mistral, "Mistral 7B, Nemo"),
    "qwen2": Family(read_qwen2, "Qwen 2, 2.5", "tiny checkpoints"),
    "qwen3": Family(read_qwen3, "Qwen 3"),
    "gemma2": Family(read_gemma2, "Gemma 2"),
    "gemma3_text": Family(read_gemma3_text, "Gemma 3, text only", "tiny checkpoint, Gemma 3 270M"),
    "phi3": Family(read_phi3, "Phi 3, 3.5, 4", "tiny checkpoints"),
    "olmo2": Family(read_olmo2, "OLMo 2"),
    "smollm3": Family(read_smollm3, "SmolLM 3"),
    "gpt2": Family(read_gpt2, "GPT-2"),
    "mixtral": Family(read_mixtral, "Mixtral 8x7B, 8x22B"),
    "qwen3_moe": Family(read_qwen3_moe, "Qwen 3 with experts", "tiny checkpoints"),
}
"""Families by `model_type`."""


def _base(
    values: Values,
    head_dim: int | None = None,
    *,
    partial: bool = False,
    by_type: bool = False,
) -> DecoderConfig:
    """What a Llama has, biases left out."""
    hidden_size = values.integer("hidden_size")
    heads = values.integer("num_attention_heads")
    if not values.has("head_dim") and head_dim is None and hidden_size % heads:
        raise values.wrong("hidden_size", f"a multiple of num_attention_heads ({heads})")
    head_dim = values.integer("head_dim", head_dim or hidden_size // heads)
    layer_type = "full_attention" if by_type else None
    rope = read_rope(values, head_dim, layer_type, partial=partial)
    length = values.integer("max_position_embeddings", 2048)
    if isinstance(rope.scaling, DynamicScaling):
        length = int(length * rope.scaling.factor)  # what the file says is the original length
    return check_heads(
        DecoderConfig(
            vocab_size=values.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=values.integer("intermediate_size"),
            num_attention_heads=heads,
            num_key_value_heads=values.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            layers=(LayerKind(rope),) * values.integer("num_hidden_layers", most=MOST_LAYERS),
            max_position_embeddings=length,
            norm=Norm(values.number("rms_norm_eps", 1e-6)),
            activation=_activation(values, "hidden_act", "silu"),
            tie_word_embeddings=values.flag("tie_word_embeddings", False),
        ),
        values.source,
    )


def _gemma(values: Values) -> DecoderConfig:
    """What Gemma 2 and 3 have in common."""
    defaults = {"tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh"}
    values = replace(values, values={**defaults, **values.values})
    config = _base(
        replace(values, values={**values.values, "hidden_act": values.text("hidden_activation")}),
        head_dim=256,
        by_type=True,
    )
    bias = values.flag("attention_bias", False)
    return replace(
        config,
        norm=replace(config.norm, offset=1.0, rounds_last=True),
        placement=NormPlacement.AROUND,
        attention_scale=values.number("query_pre_attn_scalar", 256.0) ** -0.5,
        embedding_scale=config.hidden_size**0.5,
        qkv_bias=bias,
        output_bias=bias,
    )


def _activation(values: Values, name: str, default: str) -> Activation:
    text = values.text(name, default)
    if text not in ACTIVATIONS:
        raise values.wrong(name, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[text]


def _optional_number(values: Values, name: str) -> float | None:
    return values.number(name) if values.has(name) else None


def _window(values: Values) -> int | None:
    return values.integer("sliding_window") if values.has("sliding_window") else None


def _qwen_window(values: Values) -> int | None:
    return _window(values) if values.flag("use_sliding_window", False) else None


def _qwen_layer_types(values: Values, config: DecoderConfig) -> list[bool]:
    first = values.integer("max_window_layers", 28) if values.has("max_window_layers") else 28
    return _layer_types(values, config, lambda i: i >= first)


def _layer_types(
    values: Values, config: DecoderConfig, is_sliding: Callable[[int], bool]
) -> list[bool]:
    """Which layers have a window: the file's `layer_types`, else the family's own rule."""
    raw: Any = values.values.get("layer_types")
    if raw is None:
        return [is_sliding(i) for i in range(config.num_hidden_layers)]
    known = ("full_attention", "sliding_attention")
    good = isinstance(raw, list) and len(raw) == config.num_hidden_layers
    if not good or not all(entry in known for entry in raw):
        raise values.wrong("layer_types", f"{' or '.join(known)} for each layer")
    return [entry == "sliding_attention" for entry in raw]


def _with_windows(
    config: DecoderConfig,
    window: int | None,
    sliding: Sequence[bool] = (),
    *,
    always: bool = False,
) -> DecoderConfig:
    """The configuration with a window in the layers that have one."""
    if window is None:
        return config
    sliding = [True] * config.num_hidden_layers if always else sliding
    layers = tuple(
        replace(kind, window=window) if slides else kind
        for kind, slides in zip(config.layers, sliding, strict=True)
    )
    return replace(config, layers=layers)


def _check_experts(values: Values, experts: Experts) -> None:
    if experts.top_k > experts.count:
        raise LookaheadError(
            f"{values.source}: num_experts_per_tok must be at most the number of experts "
            f"({experts.count}), got {experts.top_k}"
        )
