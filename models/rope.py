"""Rotary position embedding in Hugging Face's order: pairs are (i, i + D / 2)."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from lookahead_jax.models.config import (
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    LlamaConfig,
)
from lookahead_jax.typing import Array


def inverse_frequencies(config: LlamaConfig) -> np.ndarray:
    """Radians per position, float32 [D / 2], scaled as the checkpoint says."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
    frequencies = 1.0 / np.power(np.float32(config.rope_theta), exponents)
    match config.rope_scaling:
        case LinearScaling(factor):
            return frequencies / np.float32(factor)
        case FrequencyFactors(factors):
            return frequencies / np.asarray(factors, np.float32)
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling)
        case None:
            return frequencies


def _llama3(frequencies: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(ramp, 0.0, 1.0)
    return ((1 - kept) * frequencies / scaling.factor + kept * frequencies).astype(np.float32)


def rotation(config: LlamaConfig, positions: Array) -> tuple[Array, Array]:
    """Cosines and sines, float32 [B, T, D / 2], of positions int32 [B, T]."""
    angles = positions[:, :, None].astype(jnp.float32) * inverse_frequencies(config)[None, None]
    turn = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
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
    """Rotates x [B, ..., T, D] by the angles of its positions, [B, T, D / 2], in float32."""
    shape = (cosines.shape[0],) + (1,) * (x.ndim - 3) + cosines.shape[1:]
    cosines, sines = cosines.reshape(shape), sines.reshape(shape)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate(
        [first * cosines - second * sines, second * cosines + first * sines], axis=-1
    )
    return turned.astype(x.dtype)
