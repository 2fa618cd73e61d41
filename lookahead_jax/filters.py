"""Top-k, top-p and min-p without a sort: the threshold is found by bisection.

Sorting a vocabulary is slow on every device. All three filters keep what lies above a threshold,
though, and a threshold is 32 bits, each of which costs one pass over the scores. The results are
transformers' (ties included; its sort is taken to be stable).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lookahead_jax.typing import Array


def keep_top_k(scores: Array, k: int) -> Array:
    """Scores float32 [V], -inf for those less than the k-th greatest. Its equals are all kept."""
    if k >= scores.shape[0]:
        return scores
    order = _ordered(scores)
    threshold = _bisect(lambda least: jnp.sum(order >= least, dtype=jnp.int32) >= k, 32)
    return jnp.where(order >= threshold, scores, -jnp.inf)


def keep_top_p(scores: Array, p: float) -> Array:
    """Scores float32 [V], -inf for the least likely ones, whose mass is at most 1 - p together.

    Of equal scores those with the lower ids go first. At least one token is kept.
    """
    vocab_size = scores.shape[0]
    probabilities = jax.nn.softmax(scores)
    order = _ordered(scores)
    spare = np.float32(1 - p)

    def below(threshold: Array) -> Array:
        return jnp.sum(jnp.where(order < threshold, probabilities, 0.0))

    # The least score of which something is kept: all below it fit into the spare mass, and what
    # is above fits never. The greatest always stays, whatever rounding makes of the sum.
    threshold = _bisect(lambda least: below(least) <= spare, 32)
    threshold = jnp.minimum(threshold, jnp.max(order))
    tied = order == threshold
    each = jnp.max(jnp.where(tied, probabilities, 0.0))
    removed = jnp.floor((spare - below(threshold)) / each)
    removed = jnp.clip(removed, 0, jnp.sum(tied, dtype=jnp.float32) - 1).astype(jnp.int32)
    ids = jnp.arange(vocab_size, dtype=jnp.uint32)
    first_kept = _bisect(
        lambda i: jnp.sum(tied & (ids < i), dtype=jnp.int32) <= removed,
        vocab_size.bit_length(),
    )
    return jnp.where((order < threshold) | (tied & (ids < first_kept)), -jnp.inf, scores)


def keep_min_p(scores: Array, p: float) -> Array:
    """Scores float32 [V], -inf for tokens less likely than p times the likeliest one."""
    probabilities = jax.nn.softmax(scores)
    return jnp.where(probabilities < np.float32(p) * jnp.max(probabilities), -jnp.inf, scores)


def _ordered(scores: Array) -> Array:
    """uint32 [V] in the order of the scores."""
    scores = jnp.where(scores == 0, jnp.zeros_like(scores), scores)  # -0.0 equals 0.0
    bits = lax.bitcast_convert_type(scores.astype(jnp.float32), jnp.uint32)
    sign = np.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def _bisect(holds: Callable[[Array], Array], num_bits: int) -> Array:
    """The greatest uint32 of `num_bits` bits for which `holds`; it holds for 0, and downwards."""

    def try_bit(i: Array, found: Array) -> Array:
        shift = (num_bits - 1 - i).astype(jnp.uint32)
        candidate = found | (np.uint32(1) << shift)
        return jnp.where(holds(candidate), candidate, found)

    return lax.fori_loop(0, num_bits, try_bit, jnp.zeros((), jnp.uint32))
