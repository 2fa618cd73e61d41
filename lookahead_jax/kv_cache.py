"""Keys and values of the committed prefix, and the commit of one verified path.

Layers are separate buffers: slicing a layer out of one stacked array copies it on some backends,
and a scan over layers with the cache as `xs`/`ys` copies all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from lookahead_jax.typing import Array, CacheSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """The committed prefix. What lies behind `length` is leftover and masked."""

    keys: tuple[Array, ...]  # L arrays [B, K, C, D]
    values: tuple[Array, ...]  # L arrays [B, K, C, D]
    length: Array  # int32 [B]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BlockKV:
    """Keys and values of the rows of one forward call. They live for one round."""

    keys: tuple[Array, ...]  # L arrays [B, K, T, D]
    values: tuple[Array, ...]  # L arrays [B, K, T, D]


def init_cache(spec: CacheSpec, batch_size: int, capacity: int) -> KVCache:
    """An empty cache for `capacity` tokens a sequence."""
    shape = (batch_size, spec.num_kv_heads, capacity, spec.head_dim)

    def buffers() -> tuple[Array, ...]:
        return tuple(jnp.zeros(shape, spec.dtype) for _ in range(spec.num_layers))

    return KVCache(buffers(), buffers(), jnp.zeros((batch_size,), jnp.int32))


def commit(cache: KVCache, block: BlockKV, rows: Array, advance: Array) -> KVCache:
    """Appends rows of a block to the prefix (specification 0x06C).

    All of `rows` are written at `cache.length`, a fixed shape, and `length` moves on by `advance`
    only: the rest is leftover that the next commit overwrites. The caller makes sure that
    `length + n` stays within the capacity, because `dynamic_update_slice` would clamp the start and
    overwrite committed entries without a word.

    Args:
        cache: The committed prefix.
        block: Keys and values of the forward call.
        rows: int32 [B, n], block rows in the order of the path.
        advance: int32 [B], how many of them are accepted, at most n.
    """
    # Nothing may be written before the whole forward pass has read. Without a dependence on the
    # verdict, a layer's keys are ready before its attention runs, XLA writes them early, and copies
    # the whole cache for the reads that follow. `advance` is never negative, which XLA cannot know.
    start = jnp.where(advance < 0, 0, cache.length)

    def append(buffers: tuple[Array, ...], blocks: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(_append(b, x, rows, start) for b, x in zip(buffers, blocks, strict=True))

    return KVCache(
        append(cache.keys, block.keys), append(cache.values, block.values), cache.length + advance
    )


def _append(buffer: Array, block: Array, rows: Array, start: Array) -> Array:
    batch_size = buffer.shape[0]
    if batch_size == 1:
        # A single sequence is written by one dynamic_update_slice; the batched form is a scatter.
        path = jnp.take(block, rows[0], axis=2)
        return lax.dynamic_update_slice(buffer, path.astype(buffer.dtype), (0, 0, start[0], 0))
    path = jax.vmap(lambda x, r: jnp.take(x, r, axis=1))(block, rows).astype(buffer.dtype)
    return jax.vmap(lambda b, x, at: lax.dynamic_update_slice(b, x, (0, at, 0)))(
        buffer, path, start
    )
