"""The n-gram pool: per key token, the G most recently seen suffixes, one sequence at a time.

The pool is direct-indexed by token id, [V, G, S], and stored as [V, G * S]: accelerators pad the
two minor dimensions of an array to a tile, which would cost a small trailing [G, S] up to forty
times its size.

A bucket is kept right-aligned, oldest first: the newest suffix is in slot G - 1, empty slots are on
the left. An upsert is then one move for every case of specification 0x03B: drop slot m and append,
where m is the slot of an equal suffix if there is one, else 0 (an empty slot, or the oldest).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from lookahead_jax.typing import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NGramPool:
    """Suffixes by key token."""

    EMPTY: ClassVar[int] = -1

    suffixes: Array  # int32 [V, G * S]
    suffix_length: int = field(metadata={"static": True})  # S


def init_pool(vocab_size: int, guess_set_size: int, suffix_length: int) -> NGramPool:
    """An empty pool."""
    shape = (vocab_size, guess_set_size * suffix_length)
    return NGramPool(jnp.full(shape, NGramPool.EMPTY, jnp.int32), suffix_length)


def lookup(pool: NGramPool, key: Array) -> tuple[Array, Array]:
    """Candidates for a key token, least recently seen first.

    Args:
        pool: The pool.
        key: int32 [], the last token.

    Returns:
        guesses int32 [G, S] and valid bool [G]; what stands in an invalid guess is `EMPTY`.
    """
    guesses = pool.suffixes[key].reshape(-1, pool.suffix_length)
    return guesses, guesses[:, 0] != NGramPool.EMPTY


def insert(pool: NGramPool, keys: Array, suffixes: Array, valid: Array) -> NGramPool:
    """Upserts M n-grams as if one after the other, all at once.

    Doing them one by one would be M dependent read-modify-write steps on the device. But least
    recently used order has the stack property: after any series of upserts a bucket holds the G
    most recent distinct suffixes by last occurrence. So each new bucket is read off the list (old
    bucket, then the new suffixes with this key), where an entry survives if no later entry equals
    it and fewer than G survivors follow it. Rows with equal keys compute equal buckets, so the
    order in which they are stored does not matter.

    Args:
        pool: The pool.
        keys: int32 [M].
        suffixes: int32 [M, S].
        valid: bool [M]; other rows are left out.
    """
    num_new, suffix_length = suffixes.shape
    vocab_size, bucket_size = pool.suffixes.shape
    guess_set_size = bucket_size // suffix_length
    if guess_set_size == 0:
        return pool

    old = pool.suffixes[keys].reshape(num_new, guess_set_size, suffix_length)
    same_key = (keys[:, None] == keys[None, :]) & valid[None, :]  # [M, M]: entry j is in bucket i
    old_is_new = jnp.all(old[:, :, None] == suffixes[None, None], axis=-1)  # [M, G, M]
    old_survives = (old[:, :, 0] != NGramPool.EMPTY) & ~jnp.any(
        old_is_new & same_key[:, None, :], axis=-1
    )
    repeated = jnp.all(suffixes[:, None] == suffixes[None], axis=-1) & same_key  # [M, M]
    later = jnp.arange(num_new)[None, :] > jnp.arange(num_new)[:, None]
    last_occurrence = ~jnp.any(repeated & later, axis=-1)  # [M]

    entries = jnp.concatenate(
        [old, jnp.broadcast_to(suffixes, (num_new, num_new, suffix_length))], axis=1
    )  # [M, G + M, S]
    survives = jnp.concatenate([old_survives, same_key & last_occurrence[None, :]], axis=1)
    order = jnp.arange(guess_set_size + num_new)
    followers = jnp.sum(
        survives[:, None, :] & (order[None, None, :] > order[None, :, None]), axis=-1
    )  # [M, G + M]
    slot = jnp.where(survives, guess_set_size - 1 - followers, -1)
    chosen = slot[:, None, :] == jnp.arange(guess_set_size)[None, :, None]  # [M, G, G + M]
    buckets = jnp.sum(jnp.where(chosen[..., None], entries[:, None], 0), axis=2)
    buckets = jnp.where(jnp.any(chosen, axis=-1)[..., None], buckets, NGramPool.EMPTY)

    rows = jnp.where(valid, keys, vocab_size)
    updated = pool.suffixes.at[rows].set(buckets.reshape(num_new, bucket_size), mode="drop")
    return NGramPool(updated, suffix_length)


def insert_sequence(pool: NGramPool, tokens: Array, length: Array) -> NGramPool:
    """Upserts every n-gram of a token sequence, left to right.

    Args:
        pool: The pool.
        tokens: int32 [A], of which the first `length` count.
        length: int32 [].
    """
    suffix_length, chunk = pool.suffix_length, 64
    num_chunks = (length - suffix_length + chunk - 1) // chunk
    # Padding keeps the last chunk's slice from being clamped to an earlier start.
    padded = jnp.pad(tokens, (0, chunk + suffix_length))

    def body(i: Array, pool: NGramPool) -> NGramPool:
        part = lax.dynamic_slice(padded, (i * chunk,), (chunk + suffix_length,))
        suffixes = jnp.stack([part[1 + s : 1 + s + chunk] for s in range(suffix_length)], axis=1)
        starts = i * chunk + jnp.arange(chunk)
        return insert(pool, part[:chunk], suffixes, starts + suffix_length < length)

    return lax.fori_loop(0, num_chunks, body, pool)
