"""States of the package and of the oracle in common terms, and rounds to step them with.

The models here (fakes.py) keep a row's token as its key and its position as its value, so a cache
can be read back as the tokens it stands for.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import reference
from fakes import HEALTHY, TOY_CACHE, TOY_VOCAB, ToyForward

from lookahead_jax import decoding
from lookahead_jax.config import LookaheadConfig, WindowAdvance
from lookahead_jax.decoding import DecodeState
from lookahead_jax.kv_cache import KVCache
from lookahead_jax.pool import NGramPool
from lookahead_jax.sequences import Sequences, init_sequences
from lookahead_jax.window import Window

TOY = ToyForward()


def schedule_of(config: LookaheadConfig) -> reference.Schedule:
    """The oracle's schedule that a configuration stands for."""
    return reference.Schedule(
        verify_during_warmup=config.verify_during_warmup,
        bonus_token=config.bonus_token,
        pool_from_prompt=config.pool_from_prompt,
        pool_from_output=config.pool_from_output,
        advance_by_accepted=config.advance is WindowAdvance.BY_ACCEPTED,
    )


def oracle_settings(
    config: LookaheadConfig, max_new_tokens: int, stop_tokens: Sequence[int] = ()
) -> reference.Settings:
    return reference.Settings(
        config.window_size,
        config.ngram_size,
        config.guess_set_size,
        max_new_tokens,
        tuple(stop_tokens),
        schedule_of(config),
    )


def draw_tokens(tokens: Sequence[int], salt: int, count: int) -> list[int]:
    """The package's guesses where the window has none, in plain ints."""
    mixed = (((k + 1 + salt * count) * 2654435769) % 2**32 for k in range(count))
    return [tokens[(x >> 8) % len(tokens)] for x in mixed]


def mirror_refill(config: LookaheadConfig, round_index: int) -> reference.Refill:
    """What the package draws in a round, as the oracle asks for it."""
    size, levels = config.suffix_length, config.num_levels

    def refill(history: reference.Tokens, count: int) -> list[int]:
        drawn = draw_tokens(history, round_index + 1, levels * size)
        accepted = count // levels
        return [token for level in range(levels) for token in drawn[level * size :][:accepted]]

    return refill


def live_columns(config: LookaheadConfig, levels: reference.Levels) -> list[list[int]]:
    """The set levels without the columns that never reach the full window (see layout.py)."""
    first, *deeper = reference.set_levels(levels)
    return [list(first), *(list(level[len(level) - config.window_size :]) for level in deeper)]


def oracle_view(config: LookaheadConfig, state: reference.State) -> dict[str, Any]:
    return {
        "tokens": list(state.tokens),
        "done": state.finished,
        "cache": list(enumerate(state.cache)),
        "window": live_columns(config, state.levels),
        "pool": {key: list(bucket) for key, bucket in sorted(state.pool.items())},
    }


def package_view(config: LookaheadConfig, state: DecodeState, index: int) -> dict[str, Any]:
    """The same of one sequence of a batch, of arrays in numpy."""
    text, window, cache = state.sequences, state.window, state.cache
    stage, length, cached = window.stage[index], text.length[index], cache.length[index]
    base_size = config.window_size + config.ngram_size - 3 - stage
    keys, values = cache.keys[0][index, 0, :cached, 0], cache.values[0][index, 0, :cached, 0]
    return {
        "tokens": text.tokens[index, :length].tolist(),
        "done": bool(text.done[index]),
        "cache": list(zip(values.astype(int).tolist(), keys.astype(int).tolist(), strict=True)),
        "window": [
            window.base[index, :base_size].tolist(),
            *window.levels[index, :stage].tolist(),
        ],
        "pool": pool_view(state.pool.suffixes[index], config),
    }


def pool_view(suffixes: np.ndarray, config: LookaheadConfig) -> reference.Pool:
    """Buckets by key, oldest first. Empty slots must be on the left of full ones."""
    if config.guess_set_size == 0:
        assert suffixes.shape[1] == 0
        return {}
    slots = suffixes.reshape(len(suffixes), config.guess_set_size, config.suffix_length)
    full = slots[:, :, 0] != NGramPool.EMPTY
    assert np.all(np.diff(full.astype(int), axis=1) >= 0)
    assert np.all(slots[~full] == NGramPool.EMPTY)
    keys = np.nonzero(full.any(axis=1))[0]
    return {int(key): [tuple(s) for s in slots[key][full[key]].tolist()] for key in keys}


def on_host(state: Any) -> Any:
    return jax.tree.map(np.asarray, state)


def package_state(
    config: LookaheadConfig,
    states: Sequence[reference.State],
    *,
    max_new_tokens: Sequence[int],
    stop_tokens: Sequence[Sequence[int]],
    capacity: int,
    vocab_size: int,
) -> DecodeState:
    """A batch of oracle states as one state of the package, arrays in numpy."""
    batch_size, width = len(states), config.window_size
    suffix, slots = config.suffix_length, config.guess_set_size
    tokens = np.zeros((batch_size, capacity), np.int32)
    keys = np.full((batch_size, 1, capacity, 1), 7777, np.float32)
    values = np.full((batch_size, 1, capacity, 1), 5555, np.float32)
    base = np.zeros((batch_size, width + config.ngram_size - 3), np.int32)
    levels = np.zeros((batch_size, config.num_levels - 1, width), np.int32)
    pool = np.full((batch_size, vocab_size, slots, suffix), NGramPool.EMPTY, np.int32)
    for i, state in enumerate(states):
        tokens[i, : len(state.tokens)] = state.tokens
        keys[i, 0, : len(state.cache), 0] = state.cache
        values[i, 0, : len(state.cache), 0] = range(len(state.cache))
        first, *deeper = live_columns(config, state.levels)
        base[i, : len(first)] = first
        if deeper:
            levels[i, : len(deeper)] = deeper
        for key, bucket in state.pool.items():
            pool[i, key, slots - len(bucket) :] = bucket
    prompt_length = np.array([state.prompt_length for state in states], np.int32)
    most_stops = max(1, *map(len, stop_tokens))
    stops = [[*row, *[Sequences.NO_STOP] * (most_stops - len(row))] for row in stop_tokens]
    return DecodeState(
        sequences=Sequences(
            tokens=tokens,
            length=np.array([len(state.tokens) for state in states], np.int32),
            prompt_length=prompt_length,
            max_length=prompt_length + np.array(max_new_tokens, np.int32),
            stop_tokens=np.array(stops, np.int32),
            done=np.array([state.finished for state in states]),
            key=np.zeros((batch_size, 2), np.uint32),
            logprobs=None,
        ),
        cache=KVCache(
            (keys,), (values,), np.array([len(state.cache) for state in states], np.int32)
        ),
        window=Window(
            base,
            levels,
            np.array([reference.stage_of(state.levels) for state in states], np.int32),
        ),
        pool=NGramPool(pool.reshape(batch_size, vocab_size, -1), suffix),
        rounds=np.zeros(batch_size, np.int32),
        candidate_rounds=np.zeros((batch_size,), np.int32),
        accepted_histogram=np.zeros((batch_size, suffix + 1), np.int32),
    )


@functools.cache
def jitted_round(config: LookaheadConfig, forward: Any = TOY, **options: Any) -> Any:
    """`(state, params) -> state'`, compiled once a session for equal arguments."""
    return jax.jit(functools.partial(decoding.round, forward=forward, config=config, **options))


@functools.cache
def jitted_start(
    config: LookaheadConfig,
    forward: Any = TOY,
    cache_spec: Any = TOY_CACHE,
    vocab_size: int = TOY_VOCAB,
    capacity: int = 96,
    chunk: int = 16,
) -> Any:
    """`(prompt, prompt_length, max_new_tokens, stop_tokens, first_level, params) -> state`."""

    def start(prompt, prompt_length, max_new_tokens, stop_tokens, first_level, params):
        sequences = init_sequences(prompt, prompt_length, max_new_tokens, stop_tokens, capacity)
        state = decoding.init_state(
            sequences,
            config=config,
            cache_spec=cache_spec,
            vocab_size=vocab_size,
            first_level=first_level,
        )
        return decoding.prefill_state(state, params, forward=forward, chunk=chunk)

    return jax.jit(start)


def start_batch(
    config: LookaheadConfig,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    stop_tokens: Sequence[Sequence[int]],
    *,
    first_levels: Sequence[Sequence[int]] | None = None,
    params: Any = None,
    prompt_size: int = 32,
    num_stops: int = 3,
    **options: Any,
) -> DecodeState:
    """Prompts to the state before the first round. Padding is all nines, and must not matter."""
    padded = np.full((len(prompts), prompt_size), 9, np.int32)
    stops = np.full((len(prompts), num_stops), Sequences.NO_STOP, np.int32)
    for i, (prompt, stop) in enumerate(zip(prompts, stop_tokens, strict=True)):
        padded[i, : len(prompt)] = prompt
        stops[i, : len(stop)] = stop
    return jitted_start(config, **options)(
        jnp.asarray(padded),
        jnp.asarray([len(p) for p in prompts], jnp.int32),
        jnp.asarray(max_new_tokens, jnp.int32),
        jnp.asarray(stops),
        None if first_levels is None else jnp.asarray(first_levels, jnp.int32),
        HEALTHY if params is None else params,
    )


def with_leftovers(state: DecodeState, key: float, value: float) -> DecodeState:
    """The state with other leftovers behind the committed prefix of every layer."""

    def spoil(buffers, leftover):
        capacity = buffers[0].shape[2]
        live = (jnp.arange(capacity)[None, :] < state.cache.length[:, None])[:, None, :, None]
        return tuple(
            jnp.where(jnp.broadcast_to(live, b.shape), b, jnp.asarray(leftover, b.dtype))
            for b in buffers
        )

    cache = replace(
        state.cache, keys=spoil(state.cache.keys, key), values=spoil(state.cache.values, value)
    )
    return replace(state, cache=cache)
