"""Attention of a block of rows over the committed prefix and over the block itself."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from lookahead_jax.typing import Array


def attend(
    queries: Array,
    cached_keys: Array,
    cached_values: Array,
    length: Array,
    block_keys: Array,
    block_values: Array,
    block_mask: Array,
    scale: float,
    *,
    positions: Array | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Array:
    """Grouped-query attention with two segments: a length-masked prefix and a masked block.

    The segments are scored apart and share one softmax, so the mask never has the size of the
    context and the block's keys are never copied behind the prefix. This is the dense reference.

    Args:
        queries: [B, K, H / K, T, D].
        cached_keys: [B, K, C, D].
        cached_values: [B, K, C, D].
        length: int32 [B], how many cached entries count.
        block_keys: [B, K, T, D].
        block_values: [B, K, T, D].
        block_mask: bool [B, T, T]; each row sees itself at least.
        scale: Factor on the scores, 1 / sqrt(D) as a rule.
        positions: int32 [B, T], logical positions; needed with a window. The cached entry j stands
            at position j.
        window: Rows see this many positions, their own included: distance counts logical
            positions, so it is right for rows of isolated branches too. None: all.
        softcap: Scores are squeezed between -softcap and softcap; None: not at all.

    Returns:
        [B, K, H / K, T, D] in the dtype of `queries`; scores and softmax are float32.
    """
    batch_size, num_kv_heads, group, num_rows, head_dim = queries.shape
    capacity = cached_keys.shape[2]
    # Query heads of a group share their keys: one product per key/value head, as rows.
    rows = queries.reshape(batch_size, num_kv_heads, group * num_rows, head_dim)

    def scores(keys: Array) -> Array:
        plain = scale * lax.dot_general(
            rows,
            keys,
            (((3,), (3,)), ((0, 1), (0, 1))),
            precision=lax.Precision.HIGHEST,  # float32 means float32 on accelerators too
            preferred_element_type=jnp.float32,
        )
        return plain if softcap is None else softcap * jnp.tanh(plain / softcap)

    def mix(weights: Array, values: Array) -> Array:
        return lax.dot_general(
            weights.astype(values.dtype),
            values,
            (((3,), (2,)), ((0, 1), (0, 1))),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )

    lowest = jnp.finfo(jnp.float32).min
    live = (jnp.arange(capacity)[None, :] < length[:, None])[:, None, None]
    if window is not None:
        if positions is None:
            raise ValueError("a window needs the positions of the rows")
        oldest = positions - window + 1  # [B, T]
        block_mask = block_mask & (positions[:, None, :] >= oldest[:, :, None])
        seen = jnp.arange(capacity)[None, None, :] >= oldest[:, :, None]  # [B, T, C]
        live = live & jnp.tile(seen, (1, group, 1))[:, None]
    allowed = jnp.broadcast_to(block_mask[:, None], (batch_size, group, num_rows, num_rows))
    allowed = allowed.reshape(batch_size, 1, group * num_rows, num_rows)
    prefix = jnp.where(live, scores(cached_keys), lowest)
    block = jnp.where(allowed, scores(block_keys), lowest)

    peak = jnp.maximum(
        jnp.max(prefix, axis=-1, keepdims=True), jnp.max(block, axis=-1, keepdims=True)
    )
    prefix, block = jnp.exp(prefix - peak), jnp.exp(block - peak)
    total = jnp.sum(prefix, axis=-1, keepdims=True) + jnp.sum(block, axis=-1, keepdims=True)
    mixed = (mix(prefix, cached_values) + mix(block, block_values)) / total
    return mixed.astype(queries.dtype).reshape(queries.shape)
