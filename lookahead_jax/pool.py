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
import numpy as np
from jax import lax

from lookahead_jax.typing import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NGramPool:
    """Suffixes by key token: every token of the vocabulary has a bucket of its own."""

    EMPTY: ClassVar[int] = -1

    suffixes: Array  # int32 [V, G * S]
    suffix_length: int = field(metadata={"static": True})  # S


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HashedPool:
    """Suffixes by key token in a bounded number of buckets, for large vocabularies and batches.

    A key's bucket is given by a hash. A key that comes to a bucket of another one takes it over,
    and what was in it is forgotten; apart from that the buckets are those of `NGramPool`.
    """

    keys: Array  # int32 [num_slots], the owner of each bucket, or EMPTY
    suffixes: Array  # int32 [num_slots, G * S]
    suffix_length: int = field(metadata={"static": True})  # S


Pool = NGramPool | HashedPool


def init_pool(
    vocab_size: int, guess_set_size: int, suffix_length: int, num_slots: int | None = None
) -> Pool:
    """An empty pool: direct-indexed, or hashed where `num_slots` is given."""
    num_buckets = vocab_size if num_slots is None else num_slots
    shape = (num_buckets, guess_set_size * suffix_length)
    suffixes = jnp.full(shape, NGramPool.EMPTY, jnp.int32)
    if num_slots is None:
        return NGramPool(suffixes, suffix_length)
    return HashedPool(jnp.full((num_slots,), NGramPool.EMPTY, jnp.int32), suffixes, suffix_length)


def slot_of(pool: HashedPool, key: Array) -> Array:
    """int32 [...]: the bucket of key tokens."""
    mixed = key.astype(jnp.uint32) * np.uint32(2654435769)  # 2**32 / golden ratio
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(2246822519)
    mixed = mixed ^ (mixed >> np.uint32(13))  # every bit of the key has reached the low ones
    return (mixed % np.uint32(pool.keys.shape[0])).astype(jnp.int32)


def lookup(pool: Pool, key: Array) -> tuple[Array, Array]:
    """Candidates for a key token, least recently seen first.

    Args:
        pool: The pool.
        key: int32 [], the last token.

    Returns:
        guesses int32 [G, S] and valid bool [G]; what stands in an invalid guess is `EMPTY`, or
        belongs to another key.
    """
    slot = slot_of(pool, key) if isinstance(pool, HashedPool) else key
    guesses = pool.suffixes[slot].reshape(-1, pool.suffix_length)
    valid = guesses[:, 0] != NGramPool.EMPTY
    if isinstance(pool, HashedPool):
        valid = valid & (pool.keys[slot] == key)
    return guesses, valid


def insert(pool: Pool, keys: Array, suffixes: Array, valid: Array) -> Pool:
    """Upserts M n-grams as if one after the other, all at once.

    Doing them one by one would be M dependent read-modify-write steps on the device. But least
    recently used order has the stack property: after any series of upserts a bucket holds the G
    most recent distinct suffixes by last occurrence. So each new bucket is read off the list (old
    bucket, then the new suffixes that belong in it), where an entry survives if no later entry
    equals it and fewer than G survivors follow it. In a hashed pool a bucket belongs to the last
    key that came to it, and only what came after the last other key counts. Rows of one bucket
    compute equal results, so the order in which they are stored does not matter.

    Args:
        pool: The pool.
        keys: int32 [M].
        suffixes: int32 [M, S].
        valid: bool [M]; other rows are left out.
    """
    num_new, suffix_length = suffixes.shape
    num_buckets, bucket_size = pool.suffixes.shape
    guess_set_size = bucket_size // suffix_length
    if guess_set_size == 0:
        return pool
    order = jnp.arange(num_new)

    # [M, M]: entry j is in bucket i; [M]: whether the old content of bucket i still counts.
    if isinstance(pool, HashedPool):
        slots = slot_of(pool, keys)
        same_slot = (slots[:, None] == slots[None, :]) & valid[None, :]
        last = jnp.max(jnp.where(same_slot, order, -1), axis=1)
        owners = keys[jnp.maximum(last, 0)]
        foreign = same_slot & (keys[None, :] != owners[:, None])
        last_foreign = jnp.max(jnp.where(foreign, order, -1), axis=1)
        in_bucket = same_slot & (order[None, :] > last_foreign[:, None])
        old_counts = (pool.keys[slots] == owners) & (last_foreign < 0)
    else:
        slots = keys
        owners = keys
        in_bucket = (keys[:, None] == keys[None, :]) & valid[None, :]
        old_counts = jnp.ones((num_new,), bool)

    old = pool.suffixes[slots].reshape(num_new, guess_set_size, suffix_length)
    old_is_new = jnp.all(old[:, :, None] == suffixes[None, None], axis=-1)  # [M, G, M]
    old_survives = (
        old_counts[:, None]
        & (old[:, :, 0] != NGramPool.EMPTY)
        & ~jnp.any(old_is_new & in_bucket[:, None, :], axis=-1)
    )
    repeated = jnp.all(suffixes[:, None] == suffixes[None], axis=-1) & in_bucket  # [M, M]
    later = order[None, :] > order[:, None]
    is_last = ~jnp.any(repeated & later, axis=-1)  # [M], of its bucket

    entries = jnp.concatenate(
        [old, jnp.broadcast_to(suffixes, (num_new, num_new, suffix_length))], axis=1
    )  # [M, G + M, S]
    survives = jnp.concatenate([old_survives, in_bucket & is_last[None, :]], axis=1)
    place = jnp.arange(guess_set_size + num_new)
    followers = jnp.sum(
        survives[:, None, :] & (place[None, None, :] > place[None, :, None]), axis=-1
    )  # [M, G + M]
    slot = jnp.where(survives, guess_set_size - 1 - followers, -1)
    chosen = slot[:, None, :] == jnp.arange(guess_set_size)[None, :, None]  # [M, G, G + M]
    buckets = jnp.sum(jnp.where(chosen[..., None], entries[:, None], 0), axis=2)
    buckets = jnp.where(jnp.any(chosen, axis=-1)[..., None], buckets, NGramPool.EMPTY)

    rows = jnp.where(valid, slots, num_buckets)
    updated = pool.suffixes.at[rows].set(buckets.reshape(num_new, bucket_size), mode="drop")
    if isinstance(pool, HashedPool):
        return HashedPool(pool.keys.at[rows].set(owners, mode="drop"), updated, suffix_length)
    return NGramPool(updated, suffix_length)


def insert_sequence(pool: Pool, tokens: Array, length: Array, start: Array | int = 0) -> Pool:
    """Upserts the n-grams of a token sequence from `start` on, left to right.

    Args:
        pool: The pool.
        tokens: int32 [A], of which the first `length` count.
        length: int32 [].
        start: int32 [], where the first n-gram begins, at least 0.
    """
    suffix_length, chunk = pool.suffix_length, 64
    num_chunks = (length - start - suffix_length + chunk - 1) // chunk
    # Padding keeps the last chunk's slice from being clamped to an earlier start.
    padded = jnp.pad(tokens, (0, chunk + suffix_length))

    def body(i: Array, pool: Pool) -> Pool:
        first = start + i * chunk
        part = lax.dynamic_slice(padded, (first,), (chunk + suffix_length,))
        suffixes = jnp.stack([part[1 + s : 1 + s + chunk] for s in range(suffix_length)], axis=1)
        starts = first + jnp.arange(chunk)
        return insert(pool, part[:chunk], suffixes, starts + suffix_length < length)

    return lax.fori_loop(0, num_chunks, body, pool)


def pool_bytes(pool: Pool) -> int:
    """Memory of a pool, or of a batch of pools, in bytes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(pool))
