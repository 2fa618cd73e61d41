"""The rotary settings of a Hugging Face config.json, in every spelling that is about."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import Values
from lookahead_jax.models.config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)

SCALINGS = "default, linear, dynamic, llama3, yarn, longrope"


def read_rope(
    values: Values, head_dim: int, layer_type: str | None = None, *, partial: bool = False
) -> Rope:
    """The rotary embedding of the layers, or of the layers of one type.

    transformers 5 writes one `rope_parameters`, by layer type where types differ; before,
    `rope_theta` and `rope_scaling` stood at the top level, and the kind was called `type` before it
    was `rope_type`.

    Args:
        values: The configuration.
        head_dim: D.
        layer_type: "full_attention" or "sliding_attention", where they differ.
        partial: Whether the family may rotate a part of the features only.

    Raises:
        LookaheadError: The kind is not supported, or a number cannot be right.
    """
    name = "rope_parameters" if values.has("rope_parameters") else "rope_scaling"
    raw = values.values.get(name) or {}
    if layer_type is not None and isinstance(raw, Mapping) and layer_type in raw:
        raw = raw[layer_type]
        name = f"{name}: {layer_type}"
    if not isinstance(raw, Mapping) or any(isinstance(entry, Mapping) for entry in raw.values()):
        raise values.wrong(name, "an object of numbers, the same for all layers")
    rope = Values(raw, f"{values.source}: {name}")
    theta = rope.number("rope_theta", values.number("rope_theta", 10000.0))
    share = rope.number("partial_rotary_factor", values.number("partial_rotary_factor", 1.0))
    if share != 1 and not partial:
        holder = rope if rope.has("partial_rotary_factor") else values
        raise holder.wrong("partial_rotary_factor", f"1 for {values.text('model_type')}")
    if head_dim % 2:
        raise LookaheadError(f"{values.source}: head_dim must be even, got {head_dim}")
    dims = int(head_dim * share)
    if dims % 2 or not 0 < dims <= head_dim:
        raise LookaheadError(
            f"{values.source}: partial_rotary_factor must leave an even number of features, up to "
            f"head_dim ({head_dim}), got {share}"
        )
    return Rope(theta, dims, _scaling(values, rope, dims))


def _scaling(values: Values, rope: Values, dims: int) -> RopeScaling | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "dynamic":
            return DynamicScaling(
                rope.number("factor"), values.integer("max_position_embeddings", 2048)
            )
        case "llama3":
            scaling = Llama3Scaling(
                factor=rope.number("factor"),
                low_freq_factor=rope.number("low_freq_factor"),
                high_freq_factor=rope.number("high_freq_factor"),
                original_max_position_embeddings=_original_length(values, rope),
            )
            if scaling.high_freq_factor <= scaling.low_freq_factor:
                raise rope.wrong("high_freq_factor", "greater than low_freq_factor")
            return scaling
        case "yarn":
            return _yarn(values, rope)
        case "longrope" | "su":
            return _longrope(values, rope, dims)
    raise LookaheadError(
        f"{rope.source}: rope type {kind!r} is not supported; supported: {SCALINGS}"
    )


def _yarn(values: Values, rope: Values) -> YarnScaling:
    original = _original_length(values, rope)
    factor = rope.number("factor", values.integer("max_position_embeddings", 2048) / original)
    attention_factor = rope.values.get("attention_factor")
    if attention_factor is None:
        over, under = rope.values.get("mscale"), rope.values.get("mscale_all_dim")
        if over and under:
            attention_factor = _loudness(factor, over) / _loudness(factor, under)
        else:
            attention_factor = _loudness(factor)
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=float(attention_factor),
        truncate=rope.flag("truncate", True),
    )


def _loudness(factor: float, scale: float = 1.0) -> float:
    """YaRN's attention temperature (Peng et al. 2023, equation 22), as a factor on sine, cosine."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope(values: Values, rope: Values, dims: int) -> LongRopeScaling:
    original = _original_length(values, rope)
    factor = rope.number("factor", values.integer("max_position_embeddings", 2048) / original)
    attention_factor = 1.0
    if factor > 1:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original))
    return LongRopeScaling(
        short_factors=_factors(rope, "short_factor", dims),
        long_factors=_factors(rope, "long_factor", dims),
        original_max_position_embeddings=original,
        attention_factor=rope.number("attention_factor", attention_factor),
    )


def _original_length(values: Values, rope: Values) -> int:
    """As transformers has it, a value at the top level goes before one among the settings."""
    name = "original_max_position_embeddings"
    holder = rope if rope.has(name) and not values.has(name) else values
    return holder.integer(name, values.integer("max_position_embeddings", 2048))


def _factors(rope: Values, name: str, dims: int) -> tuple[float, ...]:
    factors = rope.values.get(name)
    if not isinstance(factors, list) or len(factors) != dims // 2:
        raise rope.wrong(name, f"a list of {dims // 2} positive numbers")
    if not all(isinstance(x, int | float) and x > 0 for x in factors):
        raise rope.wrong(name, f"a list of {dims // 2} positive numbers")
    return tuple(float(x) for x in factors)
