"""Logit processors: rules that change the logits by the text before them.

A processor is a hashable callable, one row at a time, without a batch axis. Verification hands it
the text that ordinary decoding would hand it, candidate tokens on the way included, so the result
is ordinary decoding's under the same processors. Write your own as a frozen dataclass:

    @dataclass(frozen=True)
    class NoLateNewlines:
        newline: int

        def __call__(self, logits, context):
            late = context.length - context.prompt_length > 100
            return jnp.where(late, logits.at[self.newline].set(-jnp.inf), logits)

They apply in the order given. Where transformers has the same rule, the result is the same. Some
token must be left: where all are forbidden, token 0 is written.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lookahead_jax.errors import LookaheadError
from lookahead_jax.typing import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TextContext:
    """The text before the token that is to be chosen."""

    tokens: Array  # int32 [A], prompt and output; what lies behind `length` is leftover
    length: Array  # int32 []
    prompt_length: Array  # int32 []
    stop_tokens: Array  # int32 [E], padded with -1


class LogitProcessor(Protocol):
    """A pure, hashable function of a row's logits and its text."""

    def __call__(self, logits: Array, context: TextContext) -> Array:
        """Logits float32 [V] to logits float32 [V]."""
        ...


@dataclass(frozen=True)
class RepetitionPenalty:
    """Divides the logits of tokens of the text by `penalty`, or multiplies them where negative."""

    penalty: float

    def __post_init__(self) -> None:
        _admit_number("penalty of RepetitionPenalty", self.penalty)
        if self.penalty <= 0:
            raise LookaheadError(
                f"penalty of RepetitionPenalty must be above 0, got {self.penalty!r}"
            )

    def __call__(self, logits: Array, context: TextContext) -> Array:
        """See `LogitProcessor`."""
        seen = _counts(logits.shape[0], context, jnp.zeros_like(context.length)) > 0
        penalty = np.float32(self.penalty)
        return jnp.where(seen, jnp.where(logits < 0, logits * penalty, logits / penalty), logits)


@dataclass(frozen=True)
class PresencePenalty:
    """Takes `penalty` off the logits of tokens that were written already, prompt left out."""

    penalty: float

    def __post_init__(self) -> None:
        _admit_number("penalty of PresencePenalty", self.penalty)

    def __call__(self, logits: Array, context: TextContext) -> Array:
        """See `LogitProcessor`."""
        written = _counts(logits.shape[0], context, context.prompt_length) > 0
        return logits - np.float32(self.penalty) * written.astype(jnp.float32)


@dataclass(frozen=True)
class FrequencyPenalty:
    """Takes `penalty` off a token's logit for each time it was written, prompt left out."""

    penalty: float

    def __post_init__(self) -> None:
        _admit_number("penalty of FrequencyPenalty", self.penalty)

    def __call__(self, logits: Array, context: TextContext) -> Array:
        """See `LogitProcessor`."""
        count = _counts(logits.shape[0], context, context.prompt_length)
        return logits - np.float32(self.penalty) * count.astype(jnp.float32)


@dataclass(frozen=True)
class NoRepeatNGram:
    """Forbids a token that would end an n-gram of `size` tokens that the text has already."""

    size: int

    def __post_init__(self) -> None:
        _admit_integer("size of NoRepeatNGram", self.size, 1)

    def __call__(self, logits: Array, context: TextContext) -> Array:
        """See `LogitProcessor`."""
        tokens, length, before = context.tokens, context.length, self.size - 1
        capacity, vocab_size = tokens.shape[0], logits.shape[0]
        start = jnp.arange(capacity)
        matches = start + before < length
        for offset in range(before):
            last = tokens[jnp.maximum(length - before + offset, 0)]
            matches &= jnp.roll(tokens, -offset) == last
        forbidden = jnp.where(matches, jnp.roll(tokens, -before), vocab_size)
        return logits.at[forbidden].set(-jnp.inf, mode="drop")


@dataclass(frozen=True)
class LogitBias:
    """Adds to the logits of single tokens.

    Attributes:
        biases: Token to bias; kept as a sorted tuple of pairs, which is hashable.
    """

    biases: tuple[tuple[int, float], ...]

    def __init__(self, biases: Mapping[int, float] | Iterable[tuple[int, float]]) -> None:
        pairs = biases.items() if isinstance(biases, Mapping) else biases
        entries = {_token(token, "LogitBias"): bias for token, bias in pairs}
        for token, bias in entries.items():
            _admit_number(f"bias of token {token} in LogitBias", bias)
        object.__setattr__(self, "biases", tuple(sorted(entries.items())))

    def __call__(self, logits: Array, context: TextContext) -> Array:
        """See `LogitProcessor`."""
        del context
        tokens = np.array([token for token, _ in self.biases], np.int32)
        return logits.at[tokens].add(
            np.array([bias for _, bias in self.biases], np.float32), mode="drop"
        )


@dataclass(frozen=True)
class BannedTokens:
    """Forbids single tokens."""

    tokens: tuple[int, ...]

    def __init__(self, tokens: Iterable[int]) -> None:
        ids = sorted({_token(token, "BannedTokens") for token in tokens})
        object.__setattr__(self, "tokens", tuple(ids))

    def __call__(self, logits: Array, context: TextContext) -> Array:
        """See `LogitProcessor`."""
        del context
        return logits.at[np.array(self.tokens, np.int32)].set(-jnp.inf, mode="drop")


@dataclass(frozen=True)
class MinNewTokens:
    """Forbids the stop tokens until `count` tokens are written."""

    count: int

    def __post_init__(self) -> None:
        _admit_integer("count of MinNewTokens", self.count, 0)

    def __call__(self, logits: Array, context: TextContext) -> Array:
        """See `LogitProcessor`."""
        early = context.length - context.prompt_length < self.count
        vocab_size = logits.shape[0]
        forbidden = jnp.where(early & (context.stop_tokens >= 0), context.stop_tokens, vocab_size)
        return logits.at[forbidden].set(-jnp.inf, mode="drop")


def check_processors(processors: Iterable[LogitProcessor], vocab_size: int) -> None:
    """Refuses tokens that the model does not have.

    Raises:
        LookaheadError: If a bias or a ban is for one.
    """
    for processor in processors:
        if isinstance(processor, LogitBias):
            tokens = [token for token, _ in processor.biases]
        else:
            tokens = processor.tokens if isinstance(processor, BannedTokens) else ()
        if tokens and max(tokens) >= vocab_size:
            raise LookaheadError(
                f"{type(processor).__name__} takes token ids in [0, {vocab_size}), got "
                f"{max(tokens)}"
            )


def _counts(vocab_size: int, context: TextContext, start: Array) -> Array:
    """int32 [V]: how often each token stands in the text from `start` on."""
    at = jnp.arange(context.tokens.shape[0])
    live = (at >= start) & (at < context.length)
    tokens = jnp.where(live, context.tokens, vocab_size)
    return jnp.zeros((vocab_size,), jnp.int32).at[tokens].add(1, mode="drop")


def _admit_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise LookaheadError(f"{name} must be a number, got {value!r}")


def _admit_integer(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise LookaheadError(f"{name} must be an integer >= {least}, got {value!r}")


def _token(token: object, name: str) -> int:
    try:
        value = operator.index(token)  # pyright: ignore[reportArgumentType]
    except TypeError:
        value = -1
    if isinstance(token, bool) or value < 0:
        raise LookaheadError(f"{name} takes token ids, integers >= 0, got {token!r}")
    return value
