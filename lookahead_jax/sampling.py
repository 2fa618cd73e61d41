"""How a token is chosen from logits."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from lookahead_jax.typing import Array


@dataclass(frozen=True)
class Greedy:
    """The most likely token; of equal ones, the lowest id."""

    def select(self, logits: Array) -> Array:
        """Tokens int32 [...] of logits [..., V]."""
        # Two plain reductions: the (value, index) pair reduction of argmax is scalar code on a CPU.
        vocab_size = logits.shape[-1]
        best = jnp.max(logits, axis=-1, keepdims=True)
        index = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
        token = jnp.min(jnp.where(logits == best, index, vocab_size), axis=-1)
        return jnp.minimum(token, vocab_size - 1)  # logits that are all NaN equal nothing
