"""Keys and values of the committed prefix, and the commit of one verified path.

Layers are separate buffers: slicing a layer out of one stacked array copies it on some backends,
and a scan over layers with the cache as `xs`/`ys` copies all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from lookahead_jax.typing import Array, CacheSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Extent:
    """How long a text is, and how long it can get, on which rotary embeddings may depend."""

    prompt_length: Array  # int32 [B]
    max_length: Array  # int32 [B], prompt and output


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """The committed prefix. What lies behind `length` is leftover and masked."""

    keys: tuple[Array, ...]  # L arrays [B, K, C, D]
    values: tuple[Array, ...]  # L arrays [B, K, C, D]
    length: Array  # int32 [B]
    extent: Extent | None = None
    """Of the text that is being written; None where there is none, as for a block on its own."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BlockKV:
    """Keys and values of the rows of one forward call. They live for one round."""

    keys: tuple[Array, ...]  # L arrays [B, K, T, D]
    values: tuple[Array, ...]  # L arrays [B, K, T, D]


def init_cache(
    spec: CacheSpec, batch_size: int, capacity: int, extent: Extent | None = None
) -> KVCache:
    """An empty cache for `capacity` tokens a sequence."""
    shape = (batch_size, spec.num_kv_heads, capacity, spec.head_dim)

    def buffers() -> tuple[Array, ...]:
        return tuple(jnp.zeros(shape, spec.dtype) for _ in range(spec.num_layers))

    return KVCache(buffers(), buffers(), jnp.zeros((batch_size,), jnp.int32), extent)


def grow(cache: KVCache, capacity: int) -> KVCache:
    """The same prefix with room for more."""

    def grown(buffers: tuple[Array, ...]) -> tuple[Array, ...]:
        more = [(0, 0), (0, 0), (0, capacity - buffers[0].shape[2]), (0, 0)]
        return tuple(jnp.pad(x, more) for x in buffers)

    return replace(cache, keys=grown(cache.keys), values=grown(cache.values))


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

    # One dynamic_update_slice per sequence: the batched form is a scatter, for which XLA:TPU copies
    # the whole cache into another layout.
    def write(b: Array | int, buffers: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(
            lax.dynamic_update_slice(
                buffer, lax.dynamic_slice_in_dim(path, b, 1), (b, 0, start[b], 0)
            )
            for buffer, path in zip(buffers, paths, strict=True)
        )

    buffers = cache.keys + cache.values
    batch_size = rows.shape[0]
    paths = tuple(
        take_rows(x, rows).astype(buffer.dtype)
        for x, buffer in zip(block.keys + block.values, buffers, strict=True)
    )
    one = batch_size == 1
    buffers = write(0, buffers) if one else lax.fori_loop(0, batch_size, write, buffers)
    num_layers = len(cache.keys)
    return replace(
        cache,
        keys=buffers[:num_layers],
        values=buffers[num_layers:],
        length=cache.length + advance,
    )


def take_rows(x: Array, rows: Array) -> Array:
    """Rows int32 [B, n] of x [B, K, T, D], as [B, K, n, D]."""
    if x.shape[0] == 1:
        return jnp.take(x, rows[0], axis=2)  # one gather without batch indices to compute
    return jax.vmap(lambda x, rows: jnp.take(x, rows, axis=1))(x, rows)
