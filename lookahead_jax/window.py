"""The lookahead window: R = N - 1 levels of future guesses, one sequence at a time.

Functions here take one sequence without a batch axis; the round maps them over the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from lookahead_jax.config import LookaheadConfig
from lookahead_jax.typing import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Window:
    """Trajectory levels of one sequence (specification 0x01A and 0x03A).

    At stage r the official ragged level 0 is `base[:W + N - 3 - r]`, W - 1 tokens when steady. The
    live current token stands in front of it and is not stored. Level l >= 1 is `levels[l - 1]`, set
    where l <= stage.
    """

    base: Array  # int32 [W + N - 3]
    levels: Array  # int32 [R - 1, W]
    stage: Array  # int32 [], deepest level that is set


def init_window(config: LookaheadConfig, first_level: Array) -> Window:
    """A window at stage 0.

    Args:
        config: W and N.
        first_level: int32 [W + N - 3], the first guesses, level 0. Any tokens will do: they can
            change how much is accepted and never what is written.
    """
    return Window(
        base=first_level.astype(jnp.int32),
        levels=jnp.zeros((config.num_levels - 1, config.window_size), jnp.int32),
        stage=jnp.zeros((), jnp.int32),
    )


def window_tokens(window: Window) -> Array:
    """Tokens in the order that `Layout.source` counts, less the live token in front."""
    return jnp.concatenate([window.base, window.levels.reshape(-1)])


def extract_ngrams(
    config: LookaheadConfig, window: Window, last_token: Array, new_row: Array
) -> tuple[Array, Array, Array]:
    """The W n-grams that a steady round harvests (specification 0x03B), in insertion order.

    Args:
        config: W and N.
        window: The window before it advances.
        last_token: int32 [], the live key.
        new_row: int32 [W], the model's outputs at the deepest level.

    Returns:
        keys int32 [W], suffixes int32 [W, S], valid bool [W] (all false while warming up).
    """
    keys = jnp.concatenate([last_token[None], window.base[: config.window_size - 1]])
    suffixes = jnp.concatenate([window.levels, new_row[None]]).T
    steady = window.stage == config.num_levels - 1
    return keys, suffixes, jnp.broadcast_to(steady, keys.shape)


def advance_window(
    config: LookaheadConfig, window: Window, new_row: Array, extra: Array, refill: Array
) -> Window:
    """The window after a round: one more level while warming up, shifted when steady.

    Args:
        config: W and N.
        window: The window that the round packed.
        new_row: int32 [W], the model's outputs at the deepest level.
        extra: int32 [], columns to move beyond one (0 for `BY_ONE`, accepted tokens for
            `BY_ACCEPTED`); at most S. Warm-up always moves by one.
        refill: int32 [R, S], tokens for the columns that `extra` vacates, level by level.
    """
    width = config.window_size
    steady = window.stage == config.num_levels - 1

    # Warm-up: the kept columns of the deeper levels stand still (see layout.py), level 0 loses its
    # first token, and the outputs become the next level.
    filled = lax.dynamic_update_slice(
        window.levels, new_row[None], (jnp.minimum(window.stage, config.num_levels - 2), 0)
    )
    filled_base = jnp.roll(window.base, -1)

    # Steady: level l takes over level l + 1, the outputs become the deepest level.
    sources = jnp.concatenate(
        [
            window.levels,
            new_row[None],
        ]
    )
    extended = jnp.concatenate([sources, refill], axis=1)
    shifted = lax.dynamic_slice(extended, (0, extra), (config.num_levels, width))
    # Level 0 stores one token fewer: its missing first cell is the live token.
    shifted_base = jnp.zeros_like(window.base).at[: width - 1].set(shifted[0, 1:])

    return Window(
        base=jnp.where(steady, shifted_base, filled_base),
        levels=jnp.where(steady, shifted[1:], filled),
        stage=jnp.minimum(window.stage + 1, config.num_levels - 1),
    )
