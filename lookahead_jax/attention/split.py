"""Block and prefix apart, merged by their log-sum-exp; the prefix as far as it is written."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from lookahead_jax.attention.dense import Dense, grouped, live_mask, mix, scores
from lookahead_jax.attention.interface import (
    LOWEST,
    Rules,
    Shapes,
    oldest_seen,
    varying_like,
    windowed_mask,
)
from lookahead_jax.typing import Array

Partial = tuple[Array, Array, Array]
"""Attention over some of the keys, float32: peak of the scores [B, K, M, 1], sum of the weights
relative to it [B, K, M, 1], values mixed by weights not yet divided by that sum [B, K, M, D]."""


@dataclass(frozen=True)
class Split:
    """Walks the prefix in blocks up to the longest live text of the batch, in plain XLA.

    Cost follows the text and not the capacity, and with a sliding window only what the window sees.
    A cache of one block is served by `Dense`, where leftovers must be finite; else what lies behind
    the prefix may be anything. Runs anywhere; its loop cannot be differentiated backwards.
    """

    block_size: int = 256
    """Cached entries of one step of the loop."""

    def why_not(self, platform: str, shapes: Shapes) -> str | None:
        """It always can, if its blocks have a size."""
        del platform, shapes
        if self.block_size < 1:
            return f"expected block_size to be at least 1, got {self.block_size}"
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
        arrays = (queries, cached_keys, cached_values, length, block_keys, block_values)
        batch_size, num_kv_heads, group, num_rows, head_dim = queries.shape
        capacity, size = cached_keys.shape[2], self.block_size
        if capacity <= size:
            return Dense()(*arrays, block_mask, positions, rules)
        rows = queries.reshape(batch_size, num_kv_heads, group * num_rows, head_dim)

        def step(index: Array, carry: Partial) -> Partial:
            # The last block of a capacity that is not a multiple begins early: what the block
            # before it had is left out.
            wanted = index * size
            begin = jnp.minimum(wanted, capacity - size)
            at = begin + jnp.arange(size)
            live = live_mask(at, length, positions, group, rules.window)
            live = live & (at >= wanted)[None, None, None]
            keys = lax.dynamic_slice_in_dim(cached_keys, begin, size, axis=2)
            values = lax.dynamic_slice_in_dim(cached_values, begin, size, axis=2)
            # Leftovers times zero are zero only if they are finite.
            written = (at[None, :] < length[:, None])[:, None, :, None]
            values = jnp.where(written, values, jnp.zeros_like(values))
            return extended(carry, rows, keys, values, live, rules)

        mask = windowed_mask(block_mask, positions, rules.window)
        nothing = jnp.full((*rows.shape[:3], 1), LOWEST, jnp.float32)
        carry = (nothing, jnp.zeros_like(nothing), jnp.zeros(rows.shape, jnp.float32))
        # The block comes first: each row sees itself there, so its peak is a real score from then
        # on, and what is masked later weighs exp(LOWEST - peak) = 0.
        own = extended(carry, rows, block_keys, block_values, grouped(mask, group), rules)
        peak, total, mixed = (varying_like(x, *arrays, block_mask, positions) for x in own)
        first = jnp.zeros((), jnp.int32)
        if rules.window is not None:
            oldest = jnp.min(oldest_seen(positions, rules.window))
            first = jnp.maximum(oldest, 0) // size
        last = -(-jnp.max(length) // size)
        _, total, mixed = lax.fori_loop(first, last, step, (peak, total, mixed))
        return (mixed / total).astype(queries.dtype).reshape(queries.shape)


def extended(
    carry: Partial, rows: Array, keys: Array, values: Array, seen: Array, rules: Rules
) -> Partial:
    """Attention over more keys: rows [B, K, M, D], keys [B, K, S, D], of which some are `seen`."""
    before, total, mixed = carry
    masked = jnp.where(seen, scores(rows, keys, rules), LOWEST)
    peak = jnp.maximum(before, jnp.max(masked, axis=-1, keepdims=True))
    weights, shrink = jnp.exp(masked - peak), jnp.exp(before - peak)
    total = total * shrink + jnp.sum(weights, axis=-1, keepdims=True)
    return peak, total, mixed * shrink + mix(weights, values)
