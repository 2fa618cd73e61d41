"""The window: extraction, fill and both ways to advance, against the oracle."""

import functools

import jax
import numpy as np
import pytest
import reference
import specification_figures as figures
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_states import live_columns, on_host

from lookahead_jax import LookaheadConfig
from lookahead_jax.window import Window, advance_window, extract_ngrams, init_window, window_tokens

CONFIGS = [LookaheadConfig(*sizes, 1) for sizes in [(1, 3), (2, 3), (3, 4), (2, 6), (7, 5)]]
LEFTOVER = -77


def to_window(config, levels):
    """Cells that are not set hold a leftover, which must not matter."""
    first, *deeper = live_columns(config, levels)
    base = np.full(config.window_size + config.ngram_size - 3, LEFTOVER, np.int32)
    base[: len(first)] = first
    rows = np.full((config.num_levels - 1, config.window_size), LEFTOVER, np.int32)
    if deeper:
        rows[: len(deeper)] = deeper
    return Window(base, rows, np.int32(len(deeper)))


def from_window(config, window):
    size = config.window_size + config.ngram_size - 3 - int(window.stage)
    return [window.base[:size].tolist(), *window.levels[: window.stage].tolist()]


@functools.cache
def jitted(function, config):
    return jax.jit(functools.partial(function, config))


@st.composite
def windows(draw, steady=False):
    """(config, levels, new_row) with distinct tokens, in a random stage or the steady one."""
    config = draw(st.sampled_from(CONFIGS))
    sizes = reference.warm_up_sizes(config.window_size, config.ngram_size)
    stage = len(sizes) - 1 if steady else draw(st.integers(0, len(sizes) - 1))
    tokens = iter(draw(st.permutations(range(200))))
    levels = tuple(
        None if size is None else tuple(next(tokens) for _ in range(size)) for size in sizes[stage]
    )
    size = [size for size in sizes[stage] if size is not None][-1]
    return config, levels, tuple(next(tokens) for _ in range(size))


def rows_of(config, new_row):
    return np.array(new_row[-config.window_size :], np.int32)


RELAXED = settings(deadline=None, max_examples=80)


def test_extraction_example_of_the_specification():
    config = LookaheadConfig(5, 4, 2)
    keys, suffixes, valid = extract_ngrams(
        config,
        to_window(config, figures.EXTRACTION_LEVELS),
        np.int32(figures.EXTRACTION_KEY),
        np.array(figures.EXTRACTION_NEW_ROW, np.int32),
    )
    ngrams = np.concatenate([keys[:, None], suffixes], axis=1)
    assert list(map(tuple, ngrams.tolist())) == figures.EXTRACTION_NGRAMS
    assert valid.all()


def test_advance_example_of_the_specification():
    config = LookaheadConfig(5, 4, 2)
    moved = advance_window(
        config,
        to_window(config, figures.EXTRACTION_LEVELS),
        np.array(figures.EXTRACTION_NEW_ROW, np.int32),
        np.int32(0),
        np.zeros((3, 3), np.int32),
    )
    assert from_window(config, moved) == [list(level) for level in figures.EXTRACTION_ADVANCED]


@RELAXED
@given(windows(), st.integers(0, 199))
def test_extraction_is_the_oracles_and_waits_for_a_full_window(case, key):
    config, levels, new_row = case
    keys, suffixes, valid = on_host(
        jitted(extract_ngrams, config)(
            to_window(config, levels), np.int32(key), rows_of(config, new_row)
        )
    )
    assert keys.shape == valid.shape == (config.window_size,)
    assert suffixes.shape == (config.window_size, config.suffix_length)
    if levels[-1] is None:
        assert not valid.any()
    else:
        assert valid.all()
        ngrams = np.concatenate([keys[:, None], suffixes], axis=1)
        expected = reference.extract_keyed_ngrams(key, levels, new_row)
        assert list(map(tuple, ngrams.tolist())) == expected


@RELAXED
@given(windows(), st.data())
def test_both_schedules_are_the_oracles(case, data):
    config, levels, new_row = case
    accepted = data.draw(st.integers(0, config.suffix_length))
    refill = np.arange(300, 300 + config.num_levels * config.suffix_length, dtype=np.int32)
    refill = refill.reshape(config.num_levels, config.suffix_length)
    moved = on_host(
        jitted(advance_window, config)(
            to_window(config, levels), rows_of(config, new_row), np.int32(accepted), refill
        )
    )
    if levels[-1] is None:
        expected = reference.fill_window(levels, new_row)
    else:
        fill = refill[:, :accepted].reshape(-1).tolist()
        expected = reference.advance_by_accepted(levels, new_row, accepted, fill)
    assert from_window(config, moved) == live_columns(config, expected)
    assert moved.stage == reference.stage_of(expected)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_warm_up_from_the_first_level_to_the_full_window(config):
    size = config.window_size + config.ngram_size - 3
    levels: reference.Levels = (tuple(range(size)), *[None] * (config.num_levels - 1))
    window = init_window(config, np.arange(size))
    fresh = 100
    for _ in range(config.num_levels + 1):
        assert from_window(config, on_host(window)) == live_columns(config, levels)
        steady = levels[-1] is not None
        size = config.window_size if steady else len(reference.set_levels(levels)[-1])
        new_row = tuple(range(fresh, fresh + size))
        fresh += 100
        advance = reference.advance_pinned_window if steady else reference.fill_window
        levels = advance(levels, new_row)
        window = jitted(advance_window, config)(
            window,
            rows_of(config, new_row),
            np.int32(0),
            np.zeros((config.num_levels, config.suffix_length), np.int32),
        )
    assert int(window.stage) == config.num_levels - 1


def test_window_tokens_are_base_then_levels():
    window = Window(np.arange(4), np.array([[10, 11, 12], [20, 21, 22]]), np.int32(1))
    assert window_tokens(window).tolist() == [0, 1, 2, 3, 10, 11, 12, 20, 21, 22]
