"""The rotary settings of a GGUF file, in the words of a Hugging Face config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import Values
from lookahead_jax.models.config import DecoderConfig, FrequencyFactors, Rope
from lookahead_jax.models.weights import StoredTensor, read_tensor

FREQUENCY_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"

SETTINGS = (FREQUENCY_FACTORS, SHORT_FACTORS, LONG_FACTORS)
"""Tensors that are settings, and no parameters."""

SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True)
class Rotary:
    """What a file says about rotary embeddings.

    Attributes:
        settings: As config.json's `rope_parameters` would say it.
        factors: Divisors of the frequencies, which a config.json cannot say: Llama 3.1's scaling,
            worked out by llama.cpp's converter.
    """

    settings: Mapping[str, Any]
    factors: tuple[float, ...] | None = None

    def apply(self, config: DecoderConfig) -> DecoderConfig:
        """The configuration with the divisors, if there are any."""
        if self.factors is None:
            return config
        scaling = FrequencyFactors(self.factors)
        layers = tuple(
            replace(kind, rope=Rope(kind.rope.theta, kind.rope.dims, scaling))
            if kind.rope
            else kind
            for kind in config.layers
        )
        return replace(config, layers=layers)


def read_rotary(
    values: Values, tensors: Mapping[str, StoredTensor], head_dim: int, *, partial: bool
) -> Rotary:
    """Reads the keys `rope.*`, and the tensors that hold divisors.

    Args:
        values: The metadata of the architecture.
        tensors: The file's tensors.
        head_dim: D.
        partial: Whether the architecture may rotate a part of the features only.

    Raises:
        LookaheadError: The scaling is not supported, or a number cannot be right.
    """
    dims = values.integer("rope.dimension_count", head_dim)
    if dims != head_dim and not partial:
        raise values.wrong("rope.dimension_count", f"the head dimension ({head_dim})")
    if dims > head_dim or dims % 2:
        raise values.wrong("rope.dimension_count", f"even, and at most {head_dim} (head dimension)")
    settings: dict[str, Any] = {
        "rope_theta": values.number("rope.freq_base", 10000.0),
        "partial_rotary_factor": _share(dims, head_dim),
    }
    kind = _kind(values, tensors)
    settings |= {"rope_type": "default" if kind == "none" else kind}
    if FREQUENCY_FACTORS in tensors:
        if kind != "none":
            raise LookaheadError(
                f"{values.source}: expected {kind} rope scaling or {FREQUENCY_FACTORS}, got both"
            )
        return Rotary(settings, _factors(values, tensors, FREQUENCY_FACTORS, dims))
    if kind == "linear":
        legacy = values.number("rope.scale_linear", 1.0)
        settings["factor"] = values.number("rope.scaling.factor", legacy)
    if kind in ("yarn", "longrope"):
        settings["original_max_position_embeddings"] = values.integer(
            "rope.scaling.original_context_length", values.integer("context_length")
        )
    if kind == "yarn":
        settings |= _yarn(values)
    if kind == "longrope":
        settings |= {
            "short_factor": list(_factors(values, tensors, SHORT_FACTORS, dims)),
            "long_factor": list(_factors(values, tensors, LONG_FACTORS, dims)),
            "attention_factor": values.number("rope.scaling.attn_factor", 1.0),
        }
    return Rotary(settings)


def _kind(values: Values, tensors: Mapping[str, StoredTensor]) -> str:
    """One of SCALINGS. Files of Phi 3 have two sets of divisors and may not name the kind."""
    key = "rope.scaling.type"
    kind = values.text(key, "none")
    if kind not in SCALINGS:
        raise LookaheadError(
            f"{values.source}: rope scaling {kind!r} is not supported; supported: "
            f"{', '.join(SCALINGS)}, {FREQUENCY_FACTORS}"
        )
    if kind == "none" and SHORT_FACTORS in tensors:
        return "longrope"
    if kind == "none" and values.number("rope.scale_linear", 1.0) != 1.0:
        return "linear"
    return kind


def _yarn(values: Values) -> dict[str, Any]:
    """YaRN, with cosines and sines as loud as its paper has them unless the file says otherwise."""
    if values.values.get("rope.scaling.yarn_ext_factor", 1) not in (-1, 1):
        raise values.wrong("rope.scaling.yarn_ext_factor", "1")
    if values.values.get("rope.scaling.yarn_log_multiplier"):
        raise values.wrong("rope.scaling.yarn_log_multiplier", "0")
    factor = values.number("rope.scaling.factor")
    loudness = 0.1 * math.log(max(factor, 1.0)) + 1.0
    loudness = values.number("rope.scaling.yarn_attn_factor", loudness)
    return {
        "factor": factor,
        "beta_fast": values.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": values.number("rope.scaling.yarn_beta_slow", 1.0),
        "attention_factor": loudness * values.number("rope.scaling.attn_factor", 1.0),
    }


def _factors(
    values: Values, tensors: Mapping[str, StoredTensor], name: str, dims: int
) -> tuple[float, ...]:
    if name not in tensors:
        raise LookaheadError(f"{values.source}: tensor {name} is missing")
    stored = tensors[name]
    if stored.shape != (dims // 2,):
        raise LookaheadError(
            f"{values.source}: tensor {name} has shape {list(stored.shape)}, expected [{dims // 2}]"
        )
    factors = read_tensor(stored, np.dtype(np.float32))
    if not np.all(np.isfinite(factors) & (factors > 0)):
        raise LookaheadError(f"{values.source}: tensor {name} must hold positive numbers")
    return tuple(factors.tolist())


def _share(dims: int, head_dim: int) -> float:
    """The share of the features that are rotated, such that its product with D is not too small."""
    share = dims / head_dim
    return share if int(share * head_dim) == dims else math.nextafter(share, 2.0)
