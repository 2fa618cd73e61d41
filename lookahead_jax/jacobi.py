"""Vanilla Jacobi decoding (specification 0x02): for reference and for teaching.

A block of m guesses is updated as a whole until it is the model's own greedy continuation. Three
conditions are easy to conflate (specification 0x02B), so they have names here:

* `stable`: a coordinate did not change in the last sweep. Alone it proves nothing: its inputs may
  still be wrong.
* `proven`: every coordinate before it is stable too, so its inputs were right, and so is it.
* fixed point: no coordinate changed; the whole block is proven.

A sweep proves at least one coordinate more than the last, so m sweeps always end in a fixed point.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Unpack, cast

import jax
import jax.numpy as jnp

from lookahead_jax.errors import LookaheadError
from lookahead_jax.generation import Prompts, run
from lookahead_jax.kv_cache import KVCache, commit, init_cache
from lookahead_jax.options import Options, Settings
from lookahead_jax.prefill import prefill
from lookahead_jax.prompts import Prompt
from lookahead_jax.results import GenerationResult
from lookahead_jax.sampling import Greedy
from lookahead_jax.sequences import Sequences, append, extent, last_token
from lookahead_jax.typing import Array, CacheSpec, ForwardFn, LanguageModel, Params


class JacobiStop(enum.Enum):
    """Why a solve ended."""

    FIXED_POINT = "the last sweep changed nothing"
    HORIZON = "as many sweeps as coordinates: the block is right, one sweep before it shows"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sweep:
    """What one sweep shows."""

    guesses: Array  # int32 [m], the updated vector
    stable: Array  # bool [m], unchanged coordinates
    proven: Array  # int32 [], leading coordinates that are the greedy continuation
    fixed_point: Array  # bool []


@dataclass(frozen=True)
class JacobiResult:
    """Outcome of `solve`."""

    guesses: Array  # int32 [m]
    sweeps: int
    stop: JacobiStop


def sweep(operator: Callable[[Array], Array], guesses: Array) -> Sweep:
    """Applies a triangular operator to the old vector, all coordinates at once.

    Args:
        operator: int32 [m] to int32 [m]; coordinate i may read coordinates before i only.
        guesses: int32 [m].
    """
    updated = operator(guesses)
    return _compare(guesses, updated)


def _compare(guesses: Array, updated: Array) -> Sweep:
    stable = updated == guesses
    leading = jnp.sum(jnp.cumprod(stable.astype(jnp.int32)), dtype=jnp.int32)
    return Sweep(
        guesses=updated,
        stable=stable,
        proven=jnp.minimum(leading + 1, guesses.shape[0]),
        fixed_point=jnp.all(stable),
    )


def solve(operator: Callable[[Array], Array], guesses: Array) -> JacobiResult:
    """Sweeps until a fixed point, or as often as there are coordinates, which is enough."""
    for count in range(1, guesses.shape[0] + 1):
        result = sweep(operator, guesses)
        guesses = result.guesses
        if bool(result.fixed_point):
            return JacobiResult(guesses, count, JacobiStop.FIXED_POINT)
    return JacobiResult(guesses, guesses.shape[0], JacobiStop.HORIZON)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class JacobiState:
    """What Jacobi decoding carries from sweep to sweep."""

    sequences: Sequences
    cache: KVCache
    guesses: Array  # int32 [B, m], guesses for the tokens after the last one
    rounds: Array  # int32 [B]
    accepted_histogram: Array  # int32 [B, m], sweeps by tokens published beyond one


@dataclass(frozen=True)
class Jacobi:
    """Jacobi decoding as a `Decoder` (programs.py).

    Each sweep publishes what it proves, at least one token, and the block moves on by as much; the
    guesses behind it are kept.
    """

    block_size: int

    def __post_init__(self) -> None:
        if type(self.block_size) is not int or self.block_size < 1:
            raise LookaheadError(f"block_size must be an integer >= 1, got {self.block_size!r}")

    @property
    def overhang(self) -> int:
        """A sweep writes one row for each coordinate."""
        return self.block_size

    @property
    def lag(self) -> int:
        """The cache is never behind."""
        return 0

    def init(self, sequences: Sequences, cache_spec: CacheSpec, vocab_size: int) -> JacobiState:
        """The state before prefill; the first guesses repeat the last prompt token."""
        del vocab_size
        batch_size, capacity = sequences.tokens.shape
        shape = (batch_size, self.block_size)
        return JacobiState(
            sequences=sequences,
            cache=init_cache(cache_spec, batch_size, capacity, extent(sequences)),
            guesses=jnp.broadcast_to(last_token(sequences)[:, None], shape),
            rounds=jnp.zeros((batch_size,), jnp.int32),
            accepted_histogram=jnp.zeros(shape, jnp.int32),
        )

    def prefill(
        self, state: JacobiState, params: Params, forward: ForwardFn, chunk: int
    ) -> JacobiState:
        """Commits the prompts, all tokens but the last."""
        cache = prefill(state.cache, state.sequences, params, forward=forward, chunk=chunk)
        return replace(state, cache=cache)

    def extend(self, state: JacobiState, kept: Array) -> JacobiState:
        """The state as it is: the guesses are carried over."""
        del kept
        return state

    def step(self, state: JacobiState, params: Params, forward: ForwardFn) -> JacobiState:
        """One sweep."""
        batch_size, size = state.guesses.shape
        # Row i holds guess i - 1 (the last token for i = 0) and predicts coordinate i.
        tokens = jnp.concatenate(
            [last_token(state.sequences)[:, None], state.guesses[:, :-1]], axis=1
        )
        offset = jnp.arange(size, dtype=jnp.int32)[None, :]
        rows = jnp.broadcast_to(offset, (batch_size, size))
        mask = jnp.broadcast_to(offset <= offset.T, (batch_size, size, size))
        positions = (state.sequences.length - 1)[:, None] + offset
        logits, block_kv = forward(params, tokens, positions, mask, state.cache, rows)
        updated = Greedy().select(logits)
        result = jax.vmap(_compare)(state.guesses, updated)

        sequences, count = append(state.sequences, updated, result.proven)
        kept = jnp.minimum(offset + count[:, None], size - 1)
        return JacobiState(
            sequences=sequences,
            cache=commit(state.cache, block_kv, rows, count),
            guesses=jnp.take_along_axis(updated, kept, axis=1),
            rounds=state.rounds + (count > 0).astype(jnp.int32),
            accepted_histogram=state.accepted_histogram
            + (offset == (count - 1)[:, None]).astype(jnp.int32),
        )


def generate(
    lm: LanguageModel,
    prompt: Prompt | Prompts,
    *,
    block_size: int = 16,
    **options: Unpack[Options],
) -> GenerationResult | list[GenerationResult]:
    """Jacobi decoding with a block of `block_size` guesses; else as `lookahead_jax.generate`.

    It is greedy, without logit processors: whether a guess is right then depends on guesses that
    may not be, and no path is ever certain.

    Raises:
        LookaheadError: If a value is not usable.
    """
    decoder = Jacobi(block_size)
    settings = Settings.of(options)
    if not settings.policy.is_argmax or settings.logprobs:
        raise LookaheadError(
            "Jacobi decoding is greedy here: it takes no Sample, no processors and no logprobs"
        )
    return cast(
        "GenerationResult | list[GenerationResult]", run(lm, decoder, prompt, settings, n=None)
    )
