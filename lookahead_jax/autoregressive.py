"""Ordinary decoding on the same model protocol: the baseline, and the oracle of exactness."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack, overload

import jax
import jax.numpy as jnp

from lookahead_jax.generation import Prompts, run
from lookahead_jax.kv_cache import KVCache, commit, init_cache
from lookahead_jax.options import Options, Settings
from lookahead_jax.prefill import prefill
from lookahead_jax.processors import LogitProcessor
from lookahead_jax.prompts import Prompt
from lookahead_jax.results import GenerationResult
from lookahead_jax.sampling import Greedy, Policy, Sampling
from lookahead_jax.sequences import LogProbs, Sequences, append, context, extent, last_token
from lookahead_jax.typing import Array, CacheSpec, ForwardFn, LanguageModel, Params
from lookahead_jax.verify import log_probability


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
        cache=init_cache(cache_spec, batch_size, capacity, extent(sequences)),
        rounds=jnp.zeros((batch_size,), jnp.int32),
        accepted_histogram=jnp.zeros((batch_size, 1), jnp.int32),
    )


def step(
    state: AutoregressiveState,
    params: Params,
    *,
    forward: ForwardFn,
    sampling: Sampling | None = None,
    processors: tuple[LogitProcessor, ...] = (),
) -> AutoregressiveState:
    """One model call, one token for every sequence that is not done."""
    policy = Policy(Greedy() if sampling is None else sampling, tuple(processors))
    tokens = last_token(state.sequences)[:, None]
    positions = (state.sequences.length - 1)[:, None]
    row = jnp.zeros_like(tokens)
    mask = jnp.ones((tokens.shape[0], 1, 1), bool)
    logits, block_kv = forward(params, tokens, positions, mask, state.cache, row)
    chosen, logprobs = _choose(state.sequences, logits, policy)
    sequences, count = append(state.sequences, chosen, jnp.ones_like(state.rounds), logprobs)
    return AutoregressiveState(
        sequences=sequences,
        cache=commit(state.cache, block_kv, row, count),
        rounds=state.rounds + count,
        accepted_histogram=state.accepted_histogram + count[:, None],
    )


def _choose(sequences: Sequences, logits: Array, policy: Policy) -> tuple[Array, LogProbs | None]:
    """Tokens [B, 1] of logits [B, 1, V], and their log-probabilities where they are kept."""
    if policy.is_argmax:
        weights, tokens = logits[:, 0], Greedy().select(logits)
    else:
        weights = jax.vmap(policy.weights)(logits[:, 0], context(sequences))
        nothing = jnp.zeros((0,), jnp.int32)

        def choose(weights: Array, key: Array, position: Array) -> Array:
            return policy.sampling.choose(weights, key, position, nothing, nothing.astype(bool))

        tokens = jax.vmap(choose)(weights, sequences.key, sequences.length)[:, None]
    if sequences.logprobs is None:
        return tokens, None
    return tokens, LogProbs(
        processed=log_probability(weights[:, None], tokens), raw=log_probability(logits, tokens)
    )


@dataclass(frozen=True)
class Autoregressive:
    """Ordinary decoding as a `Decoder` (programs.py)."""

    policy: Policy

    @property
    def overhang(self) -> int:
        """A step writes one token."""
        return 0

    @property
    def lag(self) -> int:
        """The cache is never behind."""
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

    def extend(self, state: AutoregressiveState, kept: Array) -> AutoregressiveState:
        """The state as it is."""
        del kept
        return state

    def step(
        self, state: AutoregressiveState, params: Params, forward: ForwardFn
    ) -> AutoregressiveState:
        """See `step`."""
        return step(
            state,
            params,
            forward=forward,
            sampling=self.policy.sampling,
            processors=self.policy.processors,
        )


@overload
def generate(
    lm: LanguageModel, prompt: Prompt, *, n: None = None, **options: Unpack[Options]
) -> GenerationResult: ...
@overload
def generate(
    lm: LanguageModel, prompt: Prompt, *, n: int, **options: Unpack[Options]
) -> list[GenerationResult]: ...
@overload
def generate(
    lm: LanguageModel, prompt: Prompts, *, n: None = None, **options: Unpack[Options]
) -> list[GenerationResult]: ...
@overload
def generate(
    lm: LanguageModel, prompt: Prompts, *, n: int, **options: Unpack[Options]
) -> list[list[GenerationResult]]: ...
def generate(
    lm: LanguageModel, prompt: Prompt | Prompts, *, n: int | None = None, **options: Unpack[Options]
) -> GenerationResult | list[GenerationResult] | list[list[GenerationResult]]:
    """Ordinary decoding, one token a model call; else as `lookahead_jax.generate`."""
    settings = Settings.of(options)
    return run(lm, Autoregressive(settings.policy), prompt, settings, n=n)
