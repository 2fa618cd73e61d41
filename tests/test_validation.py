"""Fail closed: with `validate` a planted fault stops the round, and nothing of it is published."""

import functools
from dataclasses import replace

import fakes
import jax
import jax.numpy as jnp
import numpy as np
import planted_faults
import pytest
import reference
from oracle_states import TOY, jitted_round, on_host, package_state, start_batch

from lookahead_jax import LookaheadConfig, LookaheadError, RoundCheckError, generate, stream

CONFIG = LookaheadConfig(3, 4, 3)
PROMPTS = [(1, 2, 3), (7, 7, 8, 1, 7, 7), (5,), (20, 3, 11, 2, 9)]
NEW_TOKENS = 60
CACHE_MESSAGE = "cache holds"
POSITION_MESSAGE = "positions and mask do not come from the same layout"
ROWS_MESSAGE = "rows to be committed are not those of the winning candidate"
LOGITS_MESSAGE = "logits are not finite"

checked_round = functools.partial(planted_faults.faulty_round, CONFIG, TOY, checked=True)


@functools.lru_cache(maxsize=1)
def states():
    """States of four prompts before every round, with the healthy model."""
    state = start_batch(CONFIG, PROMPTS, [NEW_TOKENS] * 4, [[]] * 4)
    history = [state]
    while not np.all(state.sequences.done):
        state = jitted_round(CONFIG)(state, fakes.HEALTHY)
        history.append(state)
    return history


def message_of(state, tables, params=fakes.HEALTHY):
    error, _ = checked_round()(state, params, tables)
    return error.get()


def some_round(accepted):
    """The state before a round in which some sequence accepts that many candidate tokens."""
    for before, after in zip(states(), states()[1:], strict=False):
        grown = np.asarray(after.accepted_histogram) - np.asarray(before.accepted_histogram)
        if np.any(grown[:, accepted]):
            return before
    raise AssertionError(f"no round accepts {accepted} tokens")


def test_sound_rounds_pass_and_are_the_unchecked_ones():
    tables = planted_faults.healthy(CONFIG)
    for before, after in zip(states(), states()[1:], strict=False):
        error, result = checked_round()(before, fakes.HEALTHY, tables)
        assert error.get() is None
        jax.tree.map(np.testing.assert_array_equal, on_host(result), on_host(after))


@pytest.mark.parametrize("fault", planted_faults.COMMIT_FAULTS)
@pytest.mark.parametrize("accepted", [1, 3])
def test_rows_that_are_not_the_winners_are_refused(fault, accepted):
    message = message_of(some_round(accepted), fault(CONFIG))
    assert message is not None
    assert message.startswith(ROWS_MESSAGE)


def test_rows_of_losers_may_be_anything():
    """The fault only shows in a round that commits candidate rows."""
    before = states()[0]
    grown = np.asarray(states()[1].accepted_histogram)
    assert not np.any(grown[:, 1:]), "the first round was to accept nothing"
    tables = planted_faults.another_candidates_rows_are_committed(CONFIG)
    assert message_of(before, tables) is None


def test_rows_with_the_right_tokens_from_two_candidates_are_refused():
    """Equal tokens are not enough: committed rows must be one path, each seeing the ones before.

    Two candidates begin alike, and the second row of one is committed for that of the other.
    """
    prompt = PROMPTS[0]
    right = reference.greedy_generate(fakes.toy_next, prompt, 3)
    bucket = [(*right[:2], (right[2] + 1) % fakes.TOY_VOCAB), right]
    levels = ((1, 2), (3, 4, 5), (6, 7, 8))
    before = reference.State(prompt, 3, prompt[:-1], levels, {prompt[-1]: bucket}, prompt)
    state = package_state(
        CONFIG,
        [before] * len(PROMPTS),
        max_new_tokens=[NEW_TOKENS] * len(PROMPTS),
        stop_tokens=[[0, 0, 0]] * len(PROMPTS),
        capacity=96,
        vocab_size=fakes.TOY_VOCAB,
    )
    stops = np.full_like(state.sequences.stop_tokens, -1)
    state = replace(state, sequences=replace(state.sequences, stop_tokens=stops))
    tables = planted_faults.healthy(CONFIG)
    error, after = checked_round()(state, fakes.HEALTHY, tables)
    assert error.get() is None
    assert np.all(np.asarray(after.accepted_histogram)[:, 3] == 1)

    size = CONFIG.suffix_length
    rows = np.array(tables["node_rows"])
    first, second = (
        1 + c * size + 1 for c in (CONFIG.guess_set_size - 2, CONFIG.guess_set_size - 1)
    )
    rows[[first, second]] = rows[[second, first]]
    message = message_of(state, {**tables, "node_rows": rows})
    assert message is not None
    assert message.startswith(ROWS_MESSAGE)


@pytest.mark.parametrize("off", [-1, 1, -3])
@pytest.mark.parametrize("which", range(4))
def test_a_cache_frontier_that_is_off_is_refused(off, which):
    state = states()[3]
    assert not np.any(state.sequences.done)
    length = np.array(state.cache.length)
    length[which] += off
    message = message_of(
        replace(state, cache=replace(state.cache, length=length)), planted_faults.healthy(CONFIG)
    )
    assert message is not None
    assert message.startswith(CACHE_MESSAGE)


@pytest.mark.parametrize(
    "fault",
    [
        planted_faults.candidates_stand_one_position_late,
        planted_faults.the_deepest_level_stands_one_position_early,
        planted_faults.one_candidate_sees_another,
        planted_faults.a_window_row_sees_its_neighbour,
        planted_faults.the_ordinary_row_sees_the_window,
        planted_faults.a_candidate_misses_a_token,
    ],
)
def test_positions_and_mask_of_different_layouts_are_refused(fault):
    message = message_of(some_round(3), fault(CONFIG))
    assert message is not None
    assert message.startswith(POSITION_MESSAGE)


def test_positions_of_another_warm_up_stage_are_refused():
    tables = planted_faults.healthy(CONFIG)
    tables["positions"] = np.roll(tables["positions"], 1, axis=0)
    message = message_of(states()[0], tables)
    assert message is not None
    assert message.startswith(POSITION_MESSAGE)


def test_logits_that_are_not_finite_are_refused():
    message = message_of(states()[2], planted_faults.healthy(CONFIG), np.int32(1))
    assert message is not None
    assert message.startswith(LOGITS_MESSAGE)


def test_finished_sequences_are_not_judged():
    """A sequence that is done publishes nothing, so nothing of it can be wrong."""
    state = states()[3]
    done = np.array([True, False, False, False])
    length = np.array(state.cache.length)
    length[0] -= 2
    state = replace(
        state,
        sequences=replace(state.sequences, done=done),
        cache=replace(state.cache, length=length),
    )
    assert message_of(state, planted_faults.healthy(CONFIG)) is None


PROMPT, FAILS_AT = [1, 2, 3, 4], 30


@pytest.fixture(scope="module")
def failing():
    """A model that returns NaN once its cache holds 30 tokens."""
    return fakes.toy_model(params=jnp.asarray(FAILS_AT, jnp.int32))


def run_to_the_failure(failing):
    with pytest.raises(RoundCheckError) as caught:
        generate(failing, PROMPT, config=CONFIG, max_new_tokens=NEW_TOKENS, validate=True)
    return caught.value


def test_generate_raises_and_publishes_nothing_of_the_failed_round(failing, toy):
    error = run_to_the_failure(failing)
    assert str(error) == LOGITS_MESSAGE
    state = on_host(error.state)
    assert state.cache.length[0] >= FAILS_AT
    length, rounds = int(state.sequences.length[0]), int(state.rounds[0])
    written = tuple(state.sequences.tokens[0, len(PROMPT) : length].tolist())
    expected = reference.greedy_generate(fakes.toy_next, PROMPT, NEW_TOKENS)
    assert written == expected[: len(written)]
    assert 0 < len(written) < NEW_TOKENS
    assert not state.sequences.done[0]

    # It is the state that the same number of sound rounds gives, in every leaf.
    sound = stream(toy, PROMPT, config=CONFIG, max_new_tokens=NEW_TOKENS, rounds_per_chunk=rounds)
    chunks = iter(sound)
    next(chunks)
    jax.tree.map(np.testing.assert_array_equal, state, on_host(sound._batch.state))


def test_the_state_before_a_failed_round_can_be_continued(failing):
    state = run_to_the_failure(failing).state
    while not np.all(state.sequences.done):
        state = jitted_round(CONFIG)(state, fakes.HEALTHY)
    text = np.asarray(state.sequences.tokens)[0, len(PROMPT) :][:NEW_TOKENS]
    expected = reference.greedy_generate(fakes.toy_next, PROMPT, NEW_TOKENS)
    assert tuple(text.tolist()) == expected


def test_a_stream_is_checked_too(failing):
    broken = stream(failing, PROMPT, config=CONFIG, max_new_tokens=NEW_TOKENS, validate=True)
    with pytest.raises(RoundCheckError, match=LOGITS_MESSAGE):
        list(broken)
    with pytest.raises(LookaheadError):
        broken.result  # noqa: B018


def test_checks_change_nothing_where_all_is_well(toy):
    plain = generate(toy, PROMPT, config=CONFIG, max_new_tokens=NEW_TOKENS)
    checked = generate(toy, PROMPT, config=CONFIG, max_new_tokens=NEW_TOKENS, validate=True)
    assert checked.tokens == plain.tokens
    assert checked.stats.accepted_histogram == plain.stats.accepted_histogram
    assert checked.stats.rounds == plain.stats.rounds


def test_a_batch_in_which_one_sequence_fails_publishes_for_none(failing):
    """Sequences fail together: the round is one program, and is taken or not as a whole."""
    with pytest.raises(RoundCheckError) as caught:
        generate(
            failing,
            [[1, 2, 3, 4], list(range(20)), [5]],
            config=CONFIG,
            max_new_tokens=NEW_TOKENS,
            validate=True,
        )
    state = on_host(caught.value.state)
    np.testing.assert_array_equal(state.cache.length, state.sequences.length - 1)
    assert (state.cache.length >= FAILS_AT).tolist() == [False, True, False]
