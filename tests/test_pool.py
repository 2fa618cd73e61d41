"""The n-gram pool against the specification's one-by-one upserts."""

import functools

import jax
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_states import on_host, pool_view

from lookahead_jax import LookaheadConfig
from lookahead_jax.pool import NGramPool, init_pool, insert, insert_sequence, lookup

VOCAB = 6
RELAXED = settings(deadline=None, max_examples=150)
insert_jitted = jax.jit(insert)
insert_sequence_jitted = jax.jit(insert_sequence)


def view(pool, guesses, size):
    return pool_view(np.asarray(pool.suffixes), LookaheadConfig(1, size + 1, guesses))


@functools.cache
def empty(guesses, size):
    return on_host(init_pool(VOCAB, guesses, size))


shapes = st.sampled_from([(1, 2, 5), (2, 2, 7), (3, 3, 7), (4, 2, 1), (7, 2, 7)])
"""(G, S, rows of one insertion): few, because each is a program."""


@RELAXED
@given(shapes, st.data())
def test_insertions_are_upserts_one_after_the_other(shape, data):
    guesses, size, rows = shape
    # Few different tokens, so that keys and suffixes repeat within and across insertions.
    token = st.integers(0, 2)
    row = st.tuples(token, st.tuples(*[token] * size), st.integers(0, 3).map(bool))
    pool, expected = empty(guesses, size), {}
    for _ in range(data.draw(st.integers(1, 4))):
        entries = data.draw(st.lists(row, min_size=rows, max_size=rows))
        keys, suffixes, valid = zip(*entries, strict=True)
        pool = insert_jitted(
            pool, np.array(keys, np.int32), np.array(suffixes, np.int32), np.array(valid)
        )
        for key, suffix, counts in entries:
            if counts:
                reference.upsert_suffix_lru(expected, key, suffix, guesses)
        assert view(pool, guesses, size) == expected


@RELAXED
@given(shapes, st.data())
def test_lookup_gives_the_bucket_least_recently_seen_first(shape, data):
    guesses, size, rows = shape
    token = st.integers(0, VOCAB - 1)
    entries = data.draw(
        st.lists(st.tuples(token, st.tuples(*[token] * size)), min_size=rows, max_size=rows)
    )
    keys, suffixes = zip(*entries, strict=True)
    pool = insert_jitted(
        empty(guesses, size),
        np.array(keys, np.int32),
        np.array(suffixes, np.int32),
        np.ones(rows, bool),
    )
    expected: reference.Pool = {}
    for key, suffix in entries:
        reference.upsert_suffix_lru(expected, key, suffix, guesses)
    for key in range(VOCAB):
        found, valid = on_host(lookup(pool, np.int32(key)))
        assert found.shape == (guesses, size)
        assert valid.shape == (guesses,)
        assert list(map(tuple, found[valid].tolist())) == expected.get(key, [])


def test_rows_that_do_not_count_may_hold_anything():
    pool = insert_jitted(
        empty(2, 2),
        np.array([3, 999, -5], np.int32),
        np.array([[1, 2], [7, 7], [8, 8]], np.int32),
        np.array([True, False, False]),
    )
    assert view(pool, 2, 2) == {3: [(1, 2)]}


def test_no_rows_count():
    before = insert_jitted(
        empty(2, 2), np.array([3]), np.array([[1, 2]], np.int32), np.array([True])
    )
    after = insert_jitted(before, np.array([3]), np.array([[4, 4]], np.int32), np.array([False]))
    np.testing.assert_array_equal(before.suffixes, after.suffixes)


def test_a_pool_without_slots_takes_everything_and_holds_nothing():
    pool = init_pool(VOCAB, 0, 3)
    after = insert(pool, np.array([1]), np.array([[1, 2, 3]], np.int32), np.array([True]))
    assert after.suffixes.shape == (VOCAB, 0)


def test_an_empty_pool_has_no_candidates():
    found, valid = lookup(init_pool(VOCAB, 3, 2), np.int32(4))
    assert not valid.any()
    assert (np.asarray(found) == NGramPool.EMPTY).all()


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 63, 64, 65, 66, 67, 68, 127, 128, 131, 160])
def test_a_sequence_gives_all_its_ngrams_left_to_right(length):
    """Around the lengths where the last chunk of 64 is full, short or of one n-gram."""
    rng = np.random.default_rng(length)
    tokens = rng.integers(0, VOCAB, 160).astype(np.int32)
    guesses, size = 3, 3
    pool = insert_sequence_jitted(empty(guesses, size), tokens, np.int32(length))
    expected: reference.Pool = {}
    for key, *suffix in reference.prompt_ngrams(tokens[:length].tolist(), size + 1):
        reference.upsert_suffix_lru(expected, key, suffix, guesses)
    assert view(pool, guesses, size) == expected


def test_a_sequence_that_fills_its_array():
    tokens = np.array([1, 2, 3, 1, 2, 4], np.int32)
    pool = insert_sequence_jitted(empty(2, 2), tokens, np.int32(6))
    assert view(pool, 2, 2) == {1: [(2, 3), (2, 4)], 2: [(3, 1)], 3: [(1, 2)]}
