"""A packed round against separate causal calls on a real transformer, and planted faults.

Tolerance: both sides are float32 and differ in the order of their sums only. Logits of the tiny
model are of size 1 to 10 and agree to 1e-5; a single wrong token or position moves some of them by
0.5 or more. 1e-4 lies between.
"""

import functools
from dataclasses import replace

import fakes
import jax
import jax.numpy as jnp
import numpy as np
import planted_faults
import pytest
import reference
from oracle_states import TOY, package_state, start_batch

from lookahead_jax import LookaheadConfig, decoding
from lookahead_jax.kv_cache import init_cache
from lookahead_jax.prefill import prefill

CONFIG = LookaheadConfig(3, 5, 3)
TOLERANCE = 1e-4
CAPACITY, LONGEST = 48, 32
STAGES = range(CONFIG.num_levels)


def random_states(rng, stage, vocab_size):
    """A batch of two: prompts of different lengths, windows at one stage, buckets not all full."""
    states = []
    for length, num_candidates in ((9, 3), (20, 2)):
        token = functools.partial(rng.integers, 0, vocab_size)
        prompt = tuple(token(size=length).tolist())
        sizes = reference.warm_up_sizes(CONFIG.window_size, CONFIG.ngram_size)[stage]
        levels = tuple(None if s is None else tuple(token(size=s).tolist()) for s in sizes)
        bucket = [tuple(token(size=CONFIG.suffix_length).tolist()) for _ in range(num_candidates)]
        # Two candidates with a common start: their rows must not see each other's.
        bucket[1] = (bucket[0][0], *bucket[1][1:])
        states.append(
            reference.State(
                prompt, length, prompt[:-1], levels, {prompt[-1]: bucket}, prompt, False
            )
        )
    return states


def prefixes_of(state):
    """What the packed rows that want logits stand for, as prefixes of their own."""
    asked = []

    def next_token(prefix):
        asked.append(prefix)
        return 0

    candidates = tuple(state.pool[state.tokens[-1]])
    rows = reference.separate_forwards(next_token, state.tokens, state.levels, candidates)
    window = asked[1 : 1 + len(rows.new_row)][-CONFIG.window_size :]
    return asked[0], window, asked[1 + len(rows.new_row) :]


@pytest.fixture(scope="module")
def separate_logits(tiny):
    """Next-token logits of prefixes, each run as its own causal call from nothing."""

    @jax.jit
    def run(tokens, lengths, params):
        count = tokens.shape[0]
        cache = init_cache(tiny.cache_spec, count, 8)
        offset = jnp.arange(LONGEST)[None, :]
        positions = jnp.broadcast_to(offset, tokens.shape)
        mask = jnp.broadcast_to((offset <= offset.T)[None], (count, LONGEST, LONGEST))
        logits, _ = tiny.forward(params, tokens, positions, mask, cache, lengths[:, None] - 1)
        return logits[:, 0]

    most = 2 * CONFIG.num_logit_rows

    def call(prefixes):
        tokens = np.zeros((most, LONGEST), np.int32)
        for row, prefix in zip(tokens, prefixes, strict=False):
            row[: len(prefix)] = prefix
        lengths = np.ones(most, np.int32)
        lengths[: len(prefixes)] = [len(prefix) for prefix in prefixes]
        return np.asarray(run(tokens, lengths, tiny.params))[: len(prefixes)]

    return call


@pytest.fixture(scope="module")
def packed_logits(tiny):
    """Logits [B, 1 + W + G * S] of a packed call with the given tables."""

    @jax.jit
    def run(state, params, tables):
        layout = planted_faults.layout_of(CONFIG, tables)
        guesses, valid = decoding._lookup(state, CONFIG)
        proposal = decoding.pack(state, guesses, valid, layout)
        return tiny.forward(
            params,
            proposal.tokens,
            proposal.positions,
            proposal.mask,
            state.cache,
            proposal.logit_rows,
        )[0]

    return lambda state, tables: np.asarray(run(state, tiny.params, tables))


@pytest.fixture(scope="module")
def with_cache(tiny):
    """Oracle states as a state of the package, the tiny model's keys and values in its cache."""
    read = jax.jit(functools.partial(prefill, forward=tiny.forward, chunk=32))

    def build(states):
        state = package_state(
            CONFIG,
            states,
            max_new_tokens=[20] * len(states),
            stop_tokens=[[]] * len(states),
            capacity=CAPACITY,
            vocab_size=tiny.vocab_size,
        )
        empty = init_cache(tiny.cache_spec, len(states), CAPACITY)
        return replace(state, cache=read(empty, state.sequences, tiny.params))

    return build


def check_logits(packed, states, separate_logits):
    """Asserts that every row that counts has the logits of its own causal call."""
    expected, actual = [], []
    for logits, state in zip(packed, states, strict=True):
        ordinary, window, candidates = prefixes_of(state)
        # Empty slots are on the left.
        slots = CONFIG.guess_set_size * CONFIG.suffix_length
        rows = [0, *range(1, 1 + CONFIG.window_size)]
        rows += range(1 + CONFIG.window_size + slots - len(candidates), len(logits))
        expected += [ordinary, *window, *candidates]
        actual.append(logits[rows])
    np.testing.assert_allclose(
        np.concatenate(actual), separate_logits(expected), atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("seed", range(2))
def test_a_packed_call_is_its_separate_calls(
    stage, seed, tiny, separate_logits, packed_logits, with_cache
):
    states = random_states(np.random.default_rng([seed, stage]), stage, tiny.vocab_size)
    packed = packed_logits(with_cache(states), planted_faults.healthy(CONFIG))
    check_logits(packed, states, separate_logits)


@pytest.mark.parametrize("fault", planted_faults.PACKING_FAULTS)
def test_a_fault_in_the_tables_is_noticed(fault, tiny, separate_logits, packed_logits, with_cache):
    states = random_states(np.random.default_rng(5), STAGES[-1], tiny.vocab_size)
    state = with_cache(states)
    check_logits(packed_logits(state, planted_faults.healthy(CONFIG)), states, separate_logits)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_logits(packed_logits(state, fault(CONFIG)), states, separate_logits)


@pytest.mark.parametrize("off", [-1, 1])
def test_a_stale_cache_length_is_noticed(off, tiny, separate_logits, packed_logits, with_cache):
    states = random_states(np.random.default_rng(6), STAGES[-1], tiny.vocab_size)
    state = with_cache(states)
    stale = replace(state, cache=replace(state.cache, length=state.cache.length + off))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_logits(packed_logits(stale, planted_faults.healthy(CONFIG)), states, separate_logits)


# The same faults seen from the text.

TOY_CONFIG = LookaheadConfig(3, 4, 3)
PROMPTS = [(1, 2, 3), (7, 7, 8, 1, 7, 7), (5,), (20, 3, 11, 2, 9)]
NEW_TOKENS = 60


def check_text(tables, *, lag=0):
    """Asserts that four prompts get the oracle's text, by a round with these tables."""
    state = start_batch(TOY_CONFIG, PROMPTS, [NEW_TOKENS] * len(PROMPTS), [[]] * len(PROMPTS))
    advance = planted_faults.faulty_round(TOY_CONFIG, TOY)
    for index in range(NEW_TOKENS):
        if index == 20:
            state = replace(state, cache=replace(state.cache, length=state.cache.length - lag))
        state = advance(state, fakes.HEALTHY, tables)
    assert np.all(state.sequences.done)
    for i, prompt in enumerate(PROMPTS):
        text = np.asarray(state.sequences.tokens)[i, len(prompt) :][:NEW_TOKENS]
        expected = reference.greedy_generate(fakes.toy_next, prompt, NEW_TOKENS)
        assert tuple(text.tolist()) == expected, f"text of prompt {i}"
    return state


def test_sound_tables_give_the_text_and_accept_a_lot():
    state = check_text(planted_faults.healthy(TOY_CONFIG))
    assert np.asarray(state.accepted_histogram)[:, -1].min() >= 1


@pytest.mark.parametrize("fault", planted_faults.TEXT_FAULTS)
def test_a_fault_changes_the_text(fault):
    with pytest.raises(AssertionError, match="text of prompt"):
        check_text(fault(TOY_CONFIG))


def test_a_stale_cache_length_changes_the_text():
    with pytest.raises(AssertionError, match="text of prompt"):
        check_text(planted_faults.healthy(TOY_CONFIG), lag=1)
