"""A tiny model with rich logits whose texts can be enumerated, and token trees to verify.

`PairForward` reads the two tokens before the next one off its cache and block, as an attention
would, and looks their logits up in a table. So every conditional distribution is known exactly.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import reference_sampling as oracle
from jax import lax

from lookahead_jax import autoregressive, decoding
from lookahead_jax.kv_cache import BlockKV
from lookahead_jax.layout import VerificationBlock, build_layout
from lookahead_jax.sequences import Sequences, init_sequences
from lookahead_jax.typing import CacheSpec, LanguageModel

CACHE = CacheSpec(num_layers=1, num_kv_heads=1, head_dim=1)


def logit_table(vocab_size: int, seed: int, spread: float = 1.0, step: float = 0.25) -> np.ndarray:
    """Logits float32 [V, V, V] after (the token before, the last token), multiples of `step`."""
    random = np.random.RandomState(seed)
    values = random.normal(0, spread, (vocab_size, vocab_size, vocab_size))
    return (np.round(values / step) * step).astype(np.float32)


def loop_table(vocab_size: int, seed: int) -> np.ndarray:
    """Greedy texts go round in circles of three tokens; what leads to the next circle is close."""
    table = logit_table(vocab_size, seed, spread=0.2)
    last = np.arange(vocab_size)
    successor = last - last % 3 + (last + 1) % 3
    for shift, bonus in [(0, 3.0), (3, 2.0), (6, 1.5)]:
        table[:, last, (successor + shift) % vocab_size] += np.float32(bonus)
    return table


@dataclass(frozen=True)
class PairForward:
    """A `ForwardFn` whose params are a table of logits, float32 [V, V, V]."""

    def __call__(self, params, tokens, positions, block_mask, cache, logit_rows):
        block = BlockKV(
            (tokens[:, None, :, None].astype(jnp.float32),),
            (positions[:, None, :, None].astype(jnp.float32),),
        )
        capacity = cache.keys[0].shape[2]
        live = jnp.arange(capacity)[None, :] < cache.length[:, None]
        sees = jnp.take_along_axis(block_mask, logit_rows[:, :, None], axis=1)
        rows = jnp.broadcast_to(live[:, None, :], (*logit_rows.shape, capacity))
        visible = jnp.concatenate([rows, sees], axis=2)
        seen_tokens = jnp.concatenate([cache.keys[0], block.keys[0]], axis=2)[:, None, 0, :, 0]
        seen_at = jnp.concatenate([cache.values[0], block.values[0]], axis=2)[:, None, 0, :, 0]
        own = jnp.take_along_axis(positions, logit_rows, axis=1)

        def token_at(position):
            at = visible & (seen_at == position[:, :, None].astype(jnp.float32))
            found = jnp.sum(jnp.where(at, seen_tokens, jnp.zeros_like(seen_tokens)), axis=2)
            return found.astype(jnp.int32)

        return params[token_at(own - 1), token_at(own)], block


def pair_model(table: np.ndarray, **changes) -> LanguageModel:
    settings = {"name": "pairs", "stop_tokens": (), "max_length": 1024, **changes}
    return LanguageModel(
        forward=PairForward(),
        params=jnp.asarray(table),
        cache_spec=CACHE,
        vocab_size=len(table),
        **settings,
    )


def pair_logits(table: np.ndarray, text: Sequence[int]) -> list[float]:
    """The oracle's view of `PairForward`."""
    return table[text[-2] if len(text) > 1 else 0, text[-1]].tolist()


def pair_conditional(table: np.ndarray, filters: oracle.Filters) -> oracle.Conditional:
    return lambda text: oracle.softmax(filters(pair_logits(table, text)))


# Decoding through the functional layer: one compiled program, the texts of a batch


@dataclass(frozen=True)
class Run:
    tokens: np.ndarray
    """int32 [B, max_new_tokens]; what lies behind a stop token is leftover."""
    texts: list[list[int]]
    accepted: list[int]
    """Candidate tokens accepted by each sequence."""
    rounds: list[int]


OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
"""Compiler options of programs that run for long; conftest.py has the others compiled quickly."""

PART = 1024
"""Sequences decoded at a time."""


@functools.cache
def _start(config, vocab_size: int, capacity: int) -> Any:
    def start(table, prompt, prompt_length, max_new_tokens, stop_tokens):
        sequences = init_sequences(prompt, prompt_length, max_new_tokens, stop_tokens, capacity)
        if config is None:
            state = autoregressive.init_state(sequences, cache_spec=CACHE)
            decoder = autoregressive.Autoregressive(None)
            return decoder.prefill(state, table, PairForward(), prompt.shape[1])
        state = decoding.init_state(
            sequences, config=config, cache_spec=CACHE, vocab_size=vocab_size
        )
        return decoding.prefill_state(state, table, forward=PairForward(), chunk=prompt.shape[1])

    return jax.jit(start)


@functools.cache
def _finish(config, sampling, processors, label: str, optimised: bool) -> Any:
    del label

    def step(state, table, parents):
        options = {"forward": PairForward(), "sampling": sampling, "processors": processors}
        if config is None:
            return autoregressive.step(state, table, **options)
        layout = build_layout(config)
        if parents is not None:
            layout = replace(layout, block=replace(layout.block, parents=parents))
        return decoding.round(state, table, config=config, layout=layout, **options)

    def finish(state, table, parents):
        return lax.while_loop(
            lambda state: ~jnp.all(state.sequences.done),
            lambda state: step(state, table, parents),
            state,
        )

    return jax.jit(finish, compiler_options=OPTIMISED if optimised else None)


def _repeat(state, count: int):
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape[1:])), state)


def decode(
    table: np.ndarray,
    prompts: Sequence[Sequence[int]],
    *,
    config: Any,
    sampling: Any,
    processors: tuple = (),
    max_new_tokens: int,
    stop_tokens: Sequence[int] = (),
    keys: Any = None,
    parents: Any = None,
    label: str = "",
    optimised: bool = False,
) -> Run:
    """Texts of `PairForward`, by lookahead decoding or, where `config` is None, one by one.

    A single prompt is decoded once for each of the keys. Programs are compiled once for equal
    arguments; another `label` is another program. `parents` plants a fault into the verification
    block: other parents of its nodes. `optimised` is for long runs.
    """
    count, longest = len(prompts), max(map(len, prompts))
    padded = np.zeros((count, longest), np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    stops = np.array(list(stop_tokens) or [Sequences.NO_STOP], np.int32)
    keys = np.zeros((count, 2)) if keys is None else np.asarray(keys)
    table = jnp.asarray(table)
    state = _start(config, len(table), longest + max_new_tokens + 8)(
        table,
        jnp.asarray(padded),
        jnp.asarray(lengths),
        jnp.full((count,), max_new_tokens, jnp.int32),
        jnp.broadcast_to(jnp.asarray(stops), (count, len(stops))),
    )
    finish = _finish(config, sampling, processors, label, optimised)
    parts = []
    # Parts bound the memory of thousands of sequences.
    for part in np.split(keys, max(1, len(keys) // PART)):
        begin = state
        if count < len(part):
            begin = _repeat(state, len(part))
        key = jnp.asarray(part, jnp.uint32)
        begin = replace(begin, sequences=replace(begin.sequences, key=key))
        end = finish(begin, table, parents)
        parts.append(jax.tree.map(np.asarray, (end.sequences, end.rounds, end.accepted_histogram)))
    lengths = np.broadcast_to(lengths, (len(keys),))
    text, rounds, histogram = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    tokens, ends = text.tokens, text.length
    return Run(
        tokens=np.stack(
            [row[n : n + max_new_tokens] for row, n in zip(tokens, lengths, strict=True)]
        ),
        texts=[row[n:e].tolist() for row, n, e in zip(tokens, lengths, ends, strict=True)],
        accepted=(histogram @ np.arange(histogram.shape[1])).tolist(),
        rounds=rounds.tolist(),
    )


@dataclass(frozen=True)
class ByKey:
    """Several ways of sampling in one compiled program: the key's second word says which."""

    samplings: tuple

    def warp(self, logits):
        return logits

    def choose(self, weights, key, position, offered, is_offered):
        tokens = [
            sampling.choose(sampling.warp(weights), key, position, offered, is_offered)
            for sampling in self.samplings
        ]
        return jnp.stack(tokens)[key[1]]


# Token trees


def tree_of(parents: Sequence[int], path_length: int) -> VerificationBlock:
    """The description of a token tree; parents come before their children."""
    chains = [[0]]
    for node in range(1, len(parents)):
        chains.append([*chains[parents[node]], node])
    ancestors = np.zeros((len(parents), len(parents)), bool)
    for node, chain in enumerate(chains):
        ancestors[node, chain] = True
    return VerificationBlock(
        parents=np.array(parents, np.int32),
        depths=np.array([len(chain) - 1 for chain in chains], np.int32),
        ancestors=ancestors,
        paths=np.array(
            [chain + [chain[-1]] * (path_length - len(chain)) for chain in chains], np.int32
        ),
    )


def suffix_parents(num_candidates: int, suffix_length: int) -> list[int]:
    """Disjoint suffixes as a tree."""
    parents = [0]
    for candidate in range(num_candidates):
        first = 1 + candidate * suffix_length
        parents += [0, *range(first, first + suffix_length - 1)]
    return parents
