"""Ordinary decoding on the same model protocol: the baseline, and the oracle of exactness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from lookahead_jax.generation import run
from lookahead_jax.kv_cache import KVCache, commit, init_cache
from lookahead_jax.prefill import prefill
from lookahead_jax.prompts import Prompt
from lookahead_jax.results import GenerationResult
from lookahead_jax.sampling import Greedy
from lookahead_jax.sequences import Sequences, append, last_token
from lookahead_jax.typing import Array, CacheSpec, ForwardFn, LanguageModel, Params


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AutoregressiveState:
    """What ordinary decoding carries from step to step."""

    sequences: Sequences
    cache: KVCache
    rounds: Array  # int32 [B]
    accepted_histogram: Array  # int32 [B, 1], for the result's sake: nothing is ever accepted


def init_state(sequences: Sequences, *, cache_spec: CacheSpec) -> AutoregressiveState:
    """The state before prefill."""
    batch_size, capacity = sequences.tokens.shape
    return AutoregressiveState(
        sequences=sequences,
        cache=init_cache(cache_spec, batch_size, capacity),
        rounds=jnp.zeros((batch_size,), jnp.int32),
        accepted_histogram=jnp.zeros((batch_size, 1), jnp.int32),
    )


def step(
    state: AutoregressiveState,
    params: Params,
    *,
    forward: ForwardFn,
    sampling: Greedy | None = None,
) -> AutoregressiveState:
    """One model call, one token for every sequence that is not done."""
    sampling = Greedy() if sampling is None else sampling
    tokens = last_token(state.sequences)[:, None]
    positions = (state.sequences.length - 1)[:, None]
    row = jnp.zeros_like(tokens)
    mask = jnp.ones((tokens.shape[0], 1, 1), bool)
    logits, block_kv = forward(params, tokens, positions, mask, state.cache, row)
    sequences, count = append(state.sequences, sampling.select(logits), jnp.ones_like(state.rounds))
    return AutoregressiveState(
        sequences=sequences,
        cache=commit(state.cache, block_kv, row, count),
        rounds=state.rounds + count,
        accepted_histogram=state.accepted_histogram + count[:, None],
    )


@dataclass(frozen=True)
class Autoregressive:
    """Ordinary decoding as a `Decoder` (programs.py)."""

    sampling: Greedy

    @property
    def overhang(self) -> int:
        """A step writes one token."""
        return 0

    def init(
        self, sequences: Sequences, cache_spec: CacheSpec, vocab_size: int
    ) -> AutoregressiveState:
        """See `init_state`."""
        del vocab_size
        return init_state(sequences, cache_spec=cache_spec)

    def prefill(
        self, state: AutoregressiveState, params: Params, forward: ForwardFn, chunk: int
    ) -> AutoregressiveState:
        """Commits the prompts, all tokens but the last."""
        cache = prefill(state.cache, state.sequences, params, forward=forward, chunk=chunk)
        return replace(state, cache=cache)

    def step(
        self, state: AutoregressiveState, params: Params, forward: ForwardFn
    ) -> AutoregressiveState:
        """See `step`."""
        return step(state, params, forward=forward, sampling=self.sampling)


def generate(
    lm: LanguageModel,
    prompt: Prompt | list[str] | Sequence[Sequence[int]],
    *,
    sampling: Greedy | None = None,
    max_new_tokens: int = 128,
    chat_template: bool | None = None,
    system: str | None = None,
    stop_tokens: Sequence[int] | None = None,
) -> GenerationResult | list[GenerationResult]:
    """Ordinary decoding, one token a model call; else as `lookahead_jax.generate`."""
    return run(
        lm,
        Autoregressive(sampling or Greedy()),
        prompt,
        max_new_tokens=max_new_tokens,
        chat_template=chat_template,
        system=system,
        stop_tokens=stop_tokens,
    )
