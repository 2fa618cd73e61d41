"""Prefill: the prompt's keys and values, chunk by chunk, in one loop on the device."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from lookahead_jax.kv_cache import KVCache, commit
from lookahead_jax.sequences import Sequences
from lookahead_jax.typing import Array, ForwardFn, Params


def prefill(
    cache: KVCache, sequences: Sequences, params: Params, *, forward: ForwardFn, chunk: int
) -> KVCache:
    """Commits every token of the text but the last, which is the next round's ordinary row.

    So the cache is one token behind the text from the start (specification 0x06B). It begins where
    the cache ends: at 0 for a prompt, later for a next turn. Texts of different lengths share the
    chunks; a sequence that has nothing left to read writes leftovers that its next commit
    overwrites.

    Args:
        cache: The part that was read before. Its capacity has room for the longest text, counted
            from where the cache ends and rounded up to whole chunks.
        sequences: The texts.
        params: The model's weights.
        forward: The model.
        chunk: Rows of one forward call.
    """
    batch_size = sequences.tokens.shape[0]
    wanted = sequences.length - 1
    # The last chunk may reach past the buffer; a clamped slice would shift its tokens.
    tokens = jnp.pad(sequences.tokens, ((0, 0), (0, chunk)))
    offset = jnp.arange(chunk, dtype=jnp.int32)
    mask = jnp.broadcast_to(offset[:, None] >= offset[None, :], (batch_size, chunk, chunk))
    rows = jnp.broadcast_to(offset, (batch_size, chunk))
    no_logits = jnp.zeros((batch_size, 0), jnp.int32)

    def unfinished(cache: KVCache) -> Array:
        return jnp.any(cache.length < wanted)

    def read_chunk(cache: KVCache) -> KVCache:
        positions = cache.length[:, None] + offset[None, :]
        part = jnp.take_along_axis(tokens, positions, axis=1)
        _, block = forward(params, part, positions, mask, cache, no_logits)
        return commit(cache, block, rows, jnp.clip(wanted - cache.length, 0, chunk))

    return lax.while_loop(unfinished, read_chunk, cache)
