"""Rotary position embedding in Hugging Face's order: pairs are (i, i + dims / 2)."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lookahead_jax.kv_cache import Extent
from lookahead_jax.models.config import (
    DecoderConfig,
    DynamicScaling,
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
)
from lookahead_jax.typing import Array


def frequencies(rope: Rope, positions: Array, extent: Extent | None = None) -> Array:
    """Radians per position, float32 [B or 1, T or 1, dims / 2], scaled as the checkpoint says.

    Only dynamic scaling looks at the positions, int32 [B, T], and only it and long rope at the
    extent of the text.
    """
    exponents = np.arange(0, rope.dims, 2, dtype=np.float32) / rope.dims
    plain = 1.0 / np.power(np.float32(rope.theta), exponents)
    match rope.scaling:
        case LinearScaling(factor):
            scaled = plain / np.float32(factor)
        case FrequencyFactors(factors):
            scaled = plain / np.asarray(factors, np.float32)
        case LongRopeScaling() as scaling:
            return _long_rope(plain, scaling, extent)
        case Llama3Scaling() as scaling:
            scaled = _llama3(plain, scaling)
        case YarnScaling() as scaling:
            scaled = _yarn(plain, rope, scaling)
        case DynamicScaling() as scaling:
            return _dynamic(rope, scaling, exponents, positions, extent)
        case None:
            scaled = plain
    return jnp.asarray(scaled)[None, None]


def _llama3(plain: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    wavelengths = 2 * math.pi / plain
    turns = scaling.original_max_position_embeddings / wavelengths
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(ramp, 0.0, 1.0)
    return ((1 - kept) * plain / scaling.factor + kept * plain).astype(np.float32)


def _yarn(plain: np.ndarray, rope: Rope, scaling: YarnScaling) -> np.ndarray:
    """YaRN (Peng et al. 2023, 3.2): interpolates what turns seldom, keeps what turns often."""

    def index_of(turns: float) -> float:
        """The frequency, as an index, that turns so often within the original length."""
        ratio = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return rope.dims * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = index_of(scaling.beta_fast), index_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dims - 1)
    width = high - low if high != low else 0.001
    ramp = np.clip((np.arange(len(plain), dtype=np.float32) - low) / width, 0.0, 1.0)
    return (plain / scaling.factor * ramp + plain * (1 - ramp)).astype(np.float32)


def _long_rope(plain: np.ndarray, scaling: LongRopeScaling, extent: Extent | None) -> Array:
    short, long = (
        jnp.asarray(plain / np.asarray(factors, np.float32))[None, None]
        for factors in (scaling.short_factors, scaling.long_factors)
    )
    if extent is None:
        return short
    return jnp.where(is_long(scaling, extent.max_length)[:, None, None], long, short)


def is_long(scaling: LongRopeScaling, max_length: Any) -> Any:
    """Whether a text of so many tokens is long. Its last token is never read."""
    return max_length - 1 > scaling.original_max_position_embeddings


def _dynamic(
    rope: Rope,
    scaling: DynamicScaling,
    exponents: np.ndarray,
    positions: Array,
    extent: Extent | None,
) -> Array:
    original = scaling.original_max_position_embeddings
    length = jnp.maximum(positions + 1, original)
    if extent is not None:
        length = jnp.maximum(length, extent.prompt_length[:, None])
    length = length.astype(jnp.float32)[:, :, None]
    stretch = scaling.factor * length / original - (scaling.factor - 1)
    theta = rope.theta * stretch ** (rope.dims / (rope.dims - 2))
    return 1.0 / theta ** exponents[None, None]


def rotation(rope: Rope, positions: Array, extent: Extent | None = None) -> tuple[Array, Array]:
    """Cosines and sines, float32 [B, T, dims / 2], of positions int32 [B, T]."""
    angles = positions[:, :, None].astype(jnp.float32) * frequencies(rope, positions, extent)
    turn = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    if isinstance(rope.scaling, YarnScaling | LongRopeScaling):
        turn = turn * np.float32(rope.scaling.attention_factor)
    turn = lax.platform_dependent(turn, cpu=_materialise, default=lambda x: x)
    cosines, sines = jnp.split(turn, 2, axis=-1)
    return cosines, sines


def _materialise(x: Array) -> Array:
    """The array itself, as the result of an operation that XLA:CPU fuses into no consumer.

    Left to itself it evaluates every sine and cosine anew in each layer, for queries and for keys.
    """
    one = jnp.eye(x.shape[-1], dtype=x.dtype)
    return jnp.matmul(x, one, precision=lax.Precision.HIGHEST)


def rotate(x: Array, cosines: Array, sines: Array) -> Array:
    """Rotates x [B, ..., T, D] by the angles of its positions, [B, T, dims / 2], in float32.

    Features from `dims` on stay as they are.
    """
    shape = (cosines.shape[0],) + (1,) * (x.ndim - 3) + cosines.shape[1:]
    cosines, sines = cosines.reshape(shape), sines.reshape(shape)
    half = cosines.shape[-1]
    wide = x.astype(jnp.float32)
    first, second, rest = jnp.split(wide, [half, 2 * half], axis=-1)
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    if rest.shape[-1]:
        turned.append(rest)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


@dataclass(frozen=True)
class Reading:
    """What the keys of a text depend on, as `LanguageModel.reading` has it."""

    scalings: tuple[DynamicScaling | LongRopeScaling, ...]

    def __call__(self, prompt_length: int, max_length: int) -> Hashable:
        """Equal values: the keys of one text are right for the other, where they agree."""
        return tuple(
            is_long(scaling, max_length)
            if isinstance(scaling, LongRopeScaling)
            else max(prompt_length, scaling.original_max_position_embeddings)
            for scaling in self.scalings
        )


def reading(config: DecoderConfig) -> Reading | None:
    """Of a model whose rotary embeddings depend on the extent of a text; else None."""
    scalings = dict.fromkeys(kind.rope.scaling for kind in config.layers if kind.rope is not None)
    found = tuple(x for x in scalings if isinstance(x, DynamicScaling | LongRopeScaling))
    return Reading(found) if found else None
