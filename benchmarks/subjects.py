"""What is timed of lookahead_jax: rounds, steps, forward passes in the midst of a generation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from lookahead_jax import autoregressive, decoding
from lookahead_jax import pool as pool_lib
from lookahead_jax.batch import CAPACITY_BUCKET
from lookahead_jax.bench.timing import timed
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.kv_cache import init_cache
from lookahead_jax.layout import build_layout
from lookahead_jax.prefill import prefill
from lookahead_jax.programs import Program
from lookahead_jax.sampling import Greedy, Policy, Sampling
from lookahead_jax.sequences import Sequences, init_sequences, last_token
from lookahead_jax.typing import LanguageModel

ROUNDS_BEFORE = 16
"""Model calls before the state that is timed: the window is full and the pool has learnt."""

PREFILL_CHUNK = 64


@dataclass(frozen=True)
class Scene:
    """One prompt, read; the same for everything that is timed."""

    lm: LanguageModel
    sequences: Sequences
    cache: Any
    """After the prompt."""

    @classmethod
    def open(cls, lm: LanguageModel, prompt: tuple[int, ...], max_new_tokens: int) -> Scene:
        """Reads the prompt.

        Args:
            lm: The model.
            prompt: Token ids.
            max_new_tokens: Room for output. No token ends the text.
        """
        needed = len(prompt) + max_new_tokens + CAPACITY_BUCKET // 8
        capacity = -(-needed // CAPACITY_BUCKET) * CAPACITY_BUCKET
        sequences = init_sequences(
            jnp.asarray([prompt], jnp.int32),
            jnp.asarray([len(prompt)], jnp.int32),
            jnp.asarray([max_new_tokens], jnp.int32),
            jnp.asarray([[Sequences.NO_STOP]], jnp.int32),
            capacity,
        )
        read = functools.partial(prefill, forward=lm.forward, chunk=PREFILL_CHUNK)
        empty = init_cache(lm.cache_spec, 1, capacity)
        return cls(lm, sequences, jax.jit(read)(empty, sequences, lm.params))

    @property
    def capacity(self) -> int:
        """C, tokens."""
        return self.sequences.tokens.shape[1]

    def lookahead(self, config: LookaheadConfig, sampling: Sampling | None = None) -> Call:
        """A whole round; greedy unless told otherwise."""
        lm = self.lm
        state = decoding.init_state(
            self.sequences, config=config, cache_spec=lm.cache_spec, vocab_size=lm.vocab_size
        )
        call = functools.partial(
            decoding.round, forward=lm.forward, config=config, sampling=sampling
        )
        return self._midway(call, replace(state, cache=self.cache))

    def ordinary(self, sampling: Sampling | None = None) -> Call:
        """A whole step of ordinary decoding; greedy unless told otherwise."""
        lm = self.lm
        state = autoregressive.init_state(self.sequences, cache_spec=lm.cache_spec)
        call = functools.partial(autoregressive.step, forward=lm.forward, sampling=sampling)
        return self._midway(call, replace(state, cache=self.cache))

    def generation(self, num_tokens: int) -> Call:
        """Ordinary decoding of some tokens in one loop on the device, as `generate` runs it."""
        lm = self.lm
        decoder = autoregressive.Autoregressive(Policy(Greedy()))
        program = Program(decoder, lm.forward, lm.cache_spec, lm.vocab_size, self.capacity)
        state = autoregressive.init_state(self.sequences, cache_spec=lm.cache_spec)
        limit = jnp.asarray(num_tokens, jnp.int32)
        return Call.compile(
            program.advance,
            replace(state, cache=self.cache),
            lm.params,
            limit,
            jnp.zeros((1,), bool),
        )

    def forward(self, config: LookaheadConfig, state: decoding.DecodeState) -> Call:
        """The bare forward pass of a round: its rows and logit rows, nothing decided or kept.

        Args:
            config: The round's.
            state: What the round would start from.
        """
        guesses, valid = jax.vmap(pool_lib.lookup)(state.pool, last_token(state.sequences))
        rows = decoding.pack(state, guesses, valid, build_layout(config))
        args = (rows.tokens, rows.positions, rows.mask, state.cache, rows.logit_rows)
        return Call.compile(self.lm.forward, self.lm.params, *args, donate=())

    def _midway(self, function: Callable[..., Any], state: Any) -> Call:
        call = Call.compile(function, state, self.lm.params)
        for _ in range(ROUNDS_BEFORE):
            state = call.result(state)
        if bool(state.sequences.done[0]):
            raise ValueError(f"expected room for {ROUNDS_BEFORE} rounds of output, it is too small")
        return replace(call, args=(state, *call.args[1:]))


@dataclass(frozen=True)
class Call:
    """A compiled function and the arguments to time it with."""

    function: Callable[..., Any]
    program: Any
    args: tuple[Any, ...]
    donate: tuple[int, ...]

    @classmethod
    def compile(
        cls, function: Callable[..., Any], *args: Any, donate: tuple[int, ...] = (0,)
    ) -> Call:
        """Compiles for these arguments; the first is donated unless told otherwise."""
        program = jax.jit(function, donate_argnums=donate).lower(*args).compile()
        return cls(function, program, args, donate)

    def result(self, *first: Any) -> Any:
        """What it gives, its first arguments replaced. What is donated, is copied before."""
        return self.program(*self._fresh((*first, *self.args[len(first) :])))

    def seconds(self) -> float:
        """Seconds of one call, from the same arguments every time; copying them does not count."""
        return timed(self.program, *jax.block_until_ready(self._fresh(self.args)))

    @property
    def text(self) -> str:
        """The compiled program."""
        return self.program.as_text()

    def _fresh(self, args: tuple[Any, ...]) -> list[Any]:
        return [
            jax.tree.map(jnp.copy, arg) if i in self.donate else arg for i, arg in enumerate(args)
        ]
