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
    """Commits every prompt token but the last, which is the first round's ordinary row.

    So the cache is one token behind the text from the start (specification 0x06B). Prompts of
    different lengths share the chunks; a sequence whose prompt has ended writes leftovers that its
    next commit overwrites.

    Args:
        cache: An empty cache whose capacity is at least the longest prompt, rounded up to whole
            chunks.
        sequences: The prompts.
        params: The model's weights.
        forward: The model.
        chunk: Rows of one forward call.
    """
    batch_size = sequences.tokens.shape[0]
    wanted = sequences.prompt_length - 1
    # The last chunk may reach past the buffer; a clamped slice would shift its tokens.
    tokens = jnp.pad(sequences.tokens, ((0, 0), (0, chunk)))
    offset = jnp.arange(chunk, dtype=jnp.int32)
    mask = jnp.broadcast_to(offset[:, None] >= offset[None, :], (batch_size, chunk, chunk))
    rows = jnp.broadcast_to(offset, (batch_size, chunk))
    no_logits = jnp.zeros((batch_size, 0), jnp.int32)

    def body(i: Array, cache: KVCache) -> KVCache:
        start = i * chunk
        part = lax.dynamic_slice(tokens, (0, start), (batch_size, chunk))
        positions = jnp.broadcast_to(start + offset, (batch_size, chunk))
        _, block = forward(params, part, positions, mask, cache, no_logits)
        return commit(cache, block, rows, jnp.clip(wanted - start, 0, chunk))

    num_chunks = (jnp.max(wanted) + chunk - 1) // chunk
    return lax.fori_loop(0, num_chunks, body, cache)
