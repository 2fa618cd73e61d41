"""The static configuration of lookahead decoding."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from lookahead_jax.errors import LookaheadError


class WindowAdvance(enum.Enum):
    """How far the window moves after a steady round (specification 0x03C).

    Both schedules give the same text; they differ in which guesses survive.
    """

    BY_ONE = "by_one"
    """One column a round, whatever was published: the official greedy schedule."""

    BY_ACCEPTED = "by_accepted"
    """One column plus one for every accepted token; the vacated columns are refilled from the
    sequence's own history."""


class WindowProposals(enum.Enum):
    """What the window's rows guess in a sampling run. The text is the same either way.

    Greedy decoding guesses greedily, whatever this says.
    """

    ARGMAX = "argmax"
    """The most likely token: the official code's choice."""

    COUPLED = "coupled"
    """The token that coupled sampling would choose at the row's position, with the same noise, but
    for the filters (top-k, top-p, min-p)."""


@dataclass(frozen=True)
class LookaheadConfig:
    """W, N, G and the schedule of lookahead decoding. Hashable, static under `jax.jit`.

    Attributes:
        window_size: W, columns of the lookahead window; at least 1.
        ngram_size: N, length of the n-grams in the pool; at least 3. A candidate has N - 1 tokens.
        guess_set_size: G, candidates verified per round and n-grams kept per key; 0 turns
            verification off (only useful as a reference).
        advance: How the window moves after a steady round.
        bonus_token: A candidate accepted in full also publishes the model's token after it, so a
            round emits up to N tokens. The official code stops one short, at N - 1.
        verify_during_warmup: Verify pool candidates while the window is still being filled.
        pool_from_prompt: Seed the pool with the prompt's n-grams.
        pool_from_output: Also insert the n-gram that ends at each emitted token.
        pool_slots: Buckets of a hashed pool, (G * S + 1) * 4 bytes each, per sequence; None gives
            every token of the vocabulary a bucket of its own.
        window_proposals: What the window's rows guess in a sampling run.
        kv_exchange: How copies of the model that share the rows of a round (parallel.py) come by
            the keys and values of accepted tokens. "broadcast": from the copy that has computed
            them. "refeed": each computes them again in its next round, S rows more, and no keys
            or values are sent (specification 0x07A). The text is the same either way.

    Raises:
        LookaheadError: If a number is not an int in its range.
    """

    window_size: int = 7
    ngram_size: int = 5
    guess_set_size: int = 7
    advance: WindowAdvance = WindowAdvance.BY_ONE
    bonus_token: bool = True
    verify_during_warmup: bool = True
    pool_from_prompt: bool = True
    pool_from_output: bool = True
    pool_slots: int | None = None
    window_proposals: WindowProposals = WindowProposals.ARGMAX
    kv_exchange: Literal["broadcast", "refeed"] = "broadcast"

    def __post_init__(self) -> None:
        _admit("window_size (W)", self.window_size, 1, "the window needs a column to update")
        _admit(
            "ngram_size (N)",
            self.ngram_size,
            3,
            "the window schedule needs at least two trajectory levels, N - 1 >= 2",
        )
        _admit("guess_set_size (G)", self.guess_set_size, 0, "0 turns verification off")
        if self.pool_slots is not None:
            _admit("pool_slots", self.pool_slots, 1, "a hashed pool needs a bucket")
        if self.kv_exchange not in ("broadcast", "refeed"):
            raise LookaheadError(
                f'kv_exchange must be "broadcast" or "refeed", got {self.kv_exchange!r}'
            )

    @classmethod
    def pinned(
        cls, window_size: int, ngram_size: int, guess_set_size: int, pool_from_prompt: bool = False
    ) -> LookaheadConfig:
        """The schedule of the official implementation at commit eed010d, step for step.

        At most N - 1 tokens a round, no verification during warm-up, one window column a round;
        the pool learns from prompt and output only with `pool_from_prompt`.
        """
        return cls(
            window_size=window_size,
            ngram_size=ngram_size,
            guess_set_size=guess_set_size,
            advance=WindowAdvance.BY_ONE,
            bonus_token=False,
            verify_during_warmup=False,
            pool_from_prompt=pool_from_prompt,
            pool_from_output=pool_from_prompt,
        )

    @property
    def suffix_length(self) -> int:
        """S = N - 1, tokens of one candidate."""
        return self.ngram_size - 1

    @property
    def num_levels(self) -> int:
        """R = N - 1, trajectory levels of the window."""
        return self.ngram_size - 1

    @property
    def num_rows(self) -> int:
        """Q = (W + G)(N - 1), packed rows of a round (specification 0x05C)."""
        return (self.window_size + self.guess_set_size) * self.suffix_length

    @property
    def num_logit_rows(self) -> int:
        """1 + W + G * S: rows whose logits a round needs."""
        return 1 + self.window_size + self.guess_set_size * self.suffix_length

    @property
    def max_accepted(self) -> int:
        """Most candidate tokens that one round can accept; it emits one token more."""
        if self.guess_set_size == 0:
            return 0
        return self.suffix_length if self.bonus_token else self.suffix_length - 1


def _admit(name: str, value: object, least: int, why: str) -> None:
    if type(value) is not int:
        raise LookaheadError(
            f"{name} must be an integer >= {least}, got {value!r} of type {type(value).__name__}"
        )
    if value < least:
        raise LookaheadError(f"{name} must be an integer >= {least}, got {value}: {why}")
