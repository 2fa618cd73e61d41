"""Randomness as a function of (seed, sample, position, purpose), and of nothing else.

No state is carried and nothing is split off: which round, window, batch slot or chunk of a stream
asks for the noise of a position makes no difference. That is what makes a sampled text
reproducible, and equal to the ordinary decoder's.

A key is uint32 [2], (seed, sample index), used as a threefry key as it is. A position is the index
of the token being chosen in the whole text, prompt included, so that an answer cut at some length
and continued from there is the same text.
"""

from __future__ import annotations

import enum

import jax
import jax.numpy as jnp

from lookahead_jax.typing import Array


class Purpose(enum.IntEnum):
    """Independent streams of one position."""

    COUPLED = 0
    """Gumbel noise that decides the token of coupled sampling."""

    TEST = 1
    """Uniforms of the acceptance tests of residual sampling."""

    RESIDUAL = 2
    """Gumbel noise of the draw after the tests, which must not know how they went."""


def gumbel(key: Array, position: Array, vocab_size: int, purpose: Purpose) -> Array:
    """Gumbel noise float32 [V] of a position.

    Args:
        key: uint32 [2].
        position: int32 [].
        vocab_size: V.
        purpose: The stream.
    """
    return jax.random.gumbel(_stream(key, position, purpose), (vocab_size,), jnp.float32)


def uniforms(key: Array, position: Array, count: int) -> Array:
    """Uniforms float32 [count] in [0, 1), of a position's acceptance tests."""
    return jax.random.uniform(_stream(key, position, Purpose.TEST), (count,), jnp.float32)


def _stream(key: Array, position: Array, purpose: Purpose) -> Array:
    typed = jax.random.wrap_key_data(key, impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(typed, position), int(purpose))
