"""The reference: scores of both segments whole, one softmax over them."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from lookahead_jax.attention.interface import (
    LOWEST,
    Rules,
    Shapes,
    oldest_seen,
    windowed_mask,
)
from lookahead_jax.typing import Array


@dataclass(frozen=True)
class Dense:
    """Scores every cached entry and masks those behind the prefix.

    Cost follows the capacity. Runs anywhere, and is the one that can be differentiated. What lies
    behind the prefix must be finite.
    """

    def why_not(self, platform: str, shapes: Shapes) -> str | None:
        """It always can."""
        del platform, shapes
        return None

    def __call__(
        self,
        queries: Array,
        cached_keys: Array,
        cached_values: Array,
        length: Array,
        block_keys: Array,
        block_values: Array,
        block_mask: Array,
        positions: Array,
        rules: Rules,
    ) -> Array:
        """See `Attention`."""
        batch_size, num_kv_heads, group, num_rows, head_dim = queries.shape
        # Query heads of a group share their keys: one product per key/value head, as rows.
        rows = queries.reshape(batch_size, num_kv_heads, group * num_rows, head_dim)
        at = jnp.arange(cached_keys.shape[2])
        live = live_mask(at, length, positions, group, rules.window)
        allowed = grouped(windowed_mask(block_mask, positions, rules.window), group)
        prefix = jnp.where(live, scores(rows, cached_keys, rules), LOWEST)
        block = jnp.where(allowed, scores(rows, block_keys, rules), LOWEST)

        peak = jnp.maximum(
            jnp.max(prefix, axis=-1, keepdims=True), jnp.max(block, axis=-1, keepdims=True)
        )
        prefix, block = jnp.exp(prefix - peak), jnp.exp(block - peak)
        total = jnp.sum(prefix, axis=-1, keepdims=True) + jnp.sum(block, axis=-1, keepdims=True)
        mixed = (mix(prefix, cached_values) + mix(block, block_values)) / total
        return mixed.astype(queries.dtype).reshape(queries.shape)


def scores(rows: Array, keys: Array, rules: Rules) -> Array:
    """float32 [B, K, M, S] of rows [B, K, M, D] and keys [B, K, S, D]."""
    plain = rules.scale * lax.dot_general(
        rows,
        keys,
        (((3,), (3,)), ((0, 1), (0, 1))),
        precision=lax.Precision.HIGHEST,  # float32 means float32 on accelerators too
        preferred_element_type=jnp.float32,
    )
    return plain if rules.softcap is None else rules.softcap * jnp.tanh(plain / rules.softcap)


def mix(weights: Array, values: Array) -> Array:
    """float32 [B, K, M, D] of weights [B, K, M, S] and values [B, K, S, D]."""
    return lax.dot_general(
        weights.astype(values.dtype),
        values,
        (((3,), (2,)), ((0, 1), (0, 1))),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def grouped(mask: Array, group: int) -> Array:
    """A mask bool [B, T, S] of rows as one of all query heads of a group, [B, 1, G * T, S]."""
    batch_size, num_rows, width = mask.shape
    mask = jnp.broadcast_to(mask[:, None], (batch_size, group, num_rows, width))
    return mask.reshape(batch_size, 1, group * num_rows, width)


def live_mask(at: Array, length: Array, positions: Array, group: int, window: int | None) -> Array:
    """Which cached entries count, bool [B, 1, 1 or G * T, S], of those at `at` int32 [S]."""
    live = (at[None, :] < length[:, None])[:, None, None]
    if window is None:
        return live
    seen = at[None, None, :] >= oldest_seen(positions, window)[:, :, None]  # [B, T, S]
    return live & grouped(seen, group)
