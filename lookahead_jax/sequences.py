"""The text of a batch: prompt and output tokens, and when each sequence ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from lookahead_jax.kv_cache import Extent
from lookahead_jax.processors import TextContext
from lookahead_jax.typing import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LogProbs:
    """Log-probabilities (natural) of tokens under the target distribution."""

    processed: Array  # float32 [...], after logit processors, temperature and filters
    raw: Array  # float32 [...], of the model's logits as they are


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sequences:
    """Prompt and output of every sequence, padded to one capacity."""

    NO_STOP: ClassVar[int] = -1
    """Padding of `stop_tokens`; equals no token id."""

    tokens: Array  # int32 [B, A], prompt then output; what lies behind `length` is leftover
    length: Array  # int32 [B], prompt and output so far
    prompt_length: Array  # int32 [B]
    max_length: Array  # int32 [B], length at which the sequence ends without a stop token
    stop_tokens: Array  # int32 [B, E]
    done: Array  # bool [B]
    key: Array  # uint32 [B, 2], (seed, sample index) of each sequence; see noise.py
    logprobs: LogProbs | None  # float32 [B, A], of the output tokens; None where nobody asks


def init_sequences(
    prompt: Array,
    prompt_length: Array,
    max_new_tokens: Array,
    stop_tokens: Array,
    capacity: int,
    key: Array | None = None,
    logprobs: bool = False,
) -> Sequences:
    """Sequences that hold their prompts and nothing else.

    Args:
        prompt: int32 [B, P], padded on the right.
        prompt_length: int32 [B], at least 1.
        max_new_tokens: int32 [B], at least 1.
        stop_tokens: int32 [B, E], padded with `Sequences.NO_STOP`.
        capacity: A, tokens a sequence can hold, overhang of the last round included.
        key: uint32 [B, 2], seed and sample index; zeros where it is None.
        logprobs: Whether log-probabilities of the output are kept.
    """
    shape = (prompt.shape[0], capacity)
    tokens = jnp.pad(prompt.astype(jnp.int32), ((0, 0), (0, capacity - prompt.shape[1])))
    return Sequences(
        tokens=tokens,
        length=jnp.copy(prompt_length),  # of its own, so that the state can be donated
        prompt_length=prompt_length,
        max_length=prompt_length + max_new_tokens,
        stop_tokens=stop_tokens,
        done=jnp.zeros(prompt_length.shape, bool),
        key=jnp.zeros((shape[0], 2), jnp.uint32) if key is None else key,
        logprobs=LogProbs(jnp.zeros(shape), jnp.zeros(shape)) if logprobs else None,
    )


def context(sequences: Sequences) -> TextContext:
    """The text as logit processors see it, with the batch axis in front."""
    return TextContext(
        tokens=sequences.tokens,
        length=sequences.length,
        prompt_length=sequences.prompt_length,
        stop_tokens=sequences.stop_tokens,
    )


def extent(sequences: Sequences) -> Extent:
    """How long the texts are and can get, in buffers of its own: the state is donated."""
    return Extent(jnp.copy(sequences.prompt_length), jnp.copy(sequences.max_length))


def extend(
    sequences: Sequences, kept: Array, tokens: Array, count: Array, max_new_tokens: Array
) -> Sequences:
    """A next turn: the first `kept` tokens, then new ones, all of it the prompt of what follows.

    Args:
        sequences: The text so far.
        kept: int32 [B], tokens that stay.
        tokens: int32 [B, P], the new ones, padded on the right. The caller makes sure that
            `kept + P` is within the capacity.
        count: int32 [B], how many of them count, at least 1.
        max_new_tokens: int32 [B].
    """
    write = jax.vmap(lambda text, new, at: lax.dynamic_update_slice(text, new, (at,)))
    length = kept + count
    return replace(
        sequences,
        tokens=write(sequences.tokens, tokens, kept),
        length=length,
        prompt_length=jnp.copy(length),
        max_length=length + max_new_tokens,
        done=jnp.zeros_like(sequences.done),
    )


def grow(sequences: Sequences, capacity: int) -> Sequences:
    """The same text with room for more."""
    more = ((0, 0), (0, capacity - sequences.tokens.shape[1]))
    return replace(
        sequences,
        tokens=jnp.pad(sequences.tokens, more),
        logprobs=jax.tree.map(lambda x: jnp.pad(x, more), sequences.logprobs),
    )


def last_token(sequences: Sequences) -> Array:
    """int32 [B]: the token whose keys and values are not cached yet."""
    at = sequences.length[:, None] - 1
    return jnp.take_along_axis(sequences.tokens, at, axis=1)[:, 0]


def append(
    sequences: Sequences, emitted: Array, count: Array, logprobs: LogProbs | None = None
) -> tuple[Sequences, Array]:
    """Publishes tokens, cut after a stop token and at `max_length`.

    Args:
        sequences: The text so far.
        emitted: int32 [B, n].
        count: int32 [B], how many of them the model vouches for; sequences that are done take none.
        logprobs: float32 [B, n] each, of the emitted tokens, where the sequences keep them.

    Returns:
        The text, and int32 [B], how many tokens were published.
    """
    batch_size, width = emitted.shape
    offset = jnp.arange(width)[None, :]
    is_stop = jnp.any(emitted[:, :, None] == sequences.stop_tokens[:, None, :], axis=-1)
    until_stop = jnp.min(jnp.where(is_stop, offset + 1, width), axis=-1)
    room = sequences.max_length - sequences.length
    count = jnp.minimum(jnp.minimum(count, until_stop), room)
    count = jnp.where(sequences.done, 0, count)

    published = offset < count[:, None]
    at = jnp.where(published, sequences.length[:, None] + offset, sequences.tokens.shape[1])
    rows = jnp.arange(batch_size)[:, None]
    length = sequences.length + count
    stopped = jnp.any(is_stop & published, axis=-1)
    kept = sequences.logprobs
    if kept is not None and logprobs is not None:
        kept = jax.tree.map(lambda x, new: x.at[rows, at].set(new, mode="drop"), kept, logprobs)
    return replace(
        sequences,
        logprobs=kept,
        tokens=sequences.tokens.at[rows, at].set(emitted, mode="drop"),
        length=length,
        done=sequences.done | stopped | (length >= sequences.max_length),
    ), count
