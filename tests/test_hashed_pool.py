"""The hashed pool: a direct pool in a bounded number of slots, which keys take from one another."""

import functools
import itertools
from dataclasses import replace

import fakes
import jax
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_states import on_host
from reference_pool import PlainHashedPool

from lookahead_jax import LookaheadConfig, LookaheadError, autoregressive, generate
from lookahead_jax.pool import NGramPool, init_pool, insert, insert_sequence, lookup

KEYS = 8
ROOMY = 64
RELAXED = settings(deadline=None, max_examples=60)
GUESSES, SIZE, ROWS = 2, 2, 7

insert_jitted = jax.jit(insert)
insert_sequence_jitted = jax.jit(insert_sequence)
lookup_all = jax.jit(jax.vmap(lookup, (None, 0)))


@functools.cache
def empty(num_slots):
    return on_host(init_pool(KEYS, GUESSES, SIZE, num_slots))


@functools.cache
def slots(num_slots):
    """The slot of every key, read off pools that hold one n-gram."""
    pools = [upserted(empty(num_slots), [(key, (1, 1))]) for key in range(KEYS)]
    return [int(np.flatnonzero(pool.keys == key).item()) for key, pool in enumerate(pools)]


def upserted(pool, entries):
    """The pool with some n-grams; the rows that are left over do not count."""
    filler = [(0, (3, 3))] * (ROWS - len(entries))
    keys, suffixes = zip(*entries, *filler, strict=True)
    counts = np.arange(ROWS) < len(entries)
    return on_host(
        insert_jitted(pool, np.array(keys, np.int32), np.array(suffixes, np.int32), counts)
    )


def plain(num_slots):
    return PlainHashedPool(slots(num_slots).__getitem__, GUESSES)


def found(pool):
    """The candidates of every key."""
    guesses, valid = on_host(lookup_all(pool, np.arange(KEYS, dtype=np.int32)))
    assert guesses.shape == (KEYS, GUESSES, SIZE)
    return {key: list(map(tuple, guesses[key][valid[key]].tolist())) for key in range(KEYS)}


def assert_holds(pool, expected):
    assert found(pool) == {key: expected.lookup(key) for key in range(KEYS)}
    owners = {slot: key for slot, key in enumerate(pool.keys.tolist()) if key != NGramPool.EMPTY}
    assert owners == expected.owners


token = st.integers(0, 2)
ngram = st.tuples(st.integers(0, KEYS - 1), st.tuples(token, token))
many = st.lists(ngram, max_size=ROWS)
sizes = st.sampled_from([3, 4, 5])


def test_keys_do_collide():
    """Else the tests below would say nothing."""
    for num_slots in (3, 4, 5):
        assert set(slots(num_slots)) <= set(range(num_slots))
        assert 1 < len(set(slots(num_slots))) < KEYS


@RELAXED
@given(sizes, st.lists(many, min_size=1, max_size=4))
def test_insertions_are_upserts_one_after_the_other(num_slots, insertions):
    pool, expected = empty(num_slots), plain(num_slots)
    for entries in insertions:
        pool = upserted(pool, entries)
        for key, suffix in entries:
            expected.upsert(key, suffix)
        assert_holds(pool, expected)


@RELAXED
@given(sizes, st.lists(ngram, max_size=2 * ROWS), st.data())
def test_many_at_once_are_as_good_as_one_by_one(num_slots, entries, data):
    cut = data.draw(st.integers(max(0, len(entries) - ROWS), min(ROWS, len(entries))))
    together = upserted(upserted(empty(num_slots), entries[:cut]), entries[cut:])
    single = empty(num_slots)
    for entry in entries:
        single = upserted(single, [entry])
    np.testing.assert_array_equal(together.keys, single.keys)
    np.testing.assert_array_equal(together.suffixes, single.suffixes)


@RELAXED
@given(st.lists(many, min_size=1, max_size=3))
def test_without_collisions_it_is_the_direct_pool(insertions):
    """With the keys that have a slot each."""
    own = list({slot: key for key, slot in enumerate(slots(ROOMY))}.values())
    assert len(own) > KEYS / 2
    hashed, direct = empty(ROOMY), empty(None)
    for entries in insertions:
        alone = [(own[key % len(own)], suffix) for key, suffix in entries]
        hashed, direct = upserted(hashed, alone), upserted(direct, alone)
        assert found(hashed) == found(direct)


def rivals():
    """Two keys of one slot, of three."""
    pairs = itertools.combinations(range(KEYS), 2)
    return next((a, b) for a, b in pairs if slots(3)[a] == slots(3)[b])


def test_a_key_that_lost_its_slot_has_no_candidates_and_begins_anew():
    first, rival = rivals()
    pool = upserted(empty(3), [(first, (1, 2)), (first, (2, 2))])
    assert found(pool)[first] == [(1, 2), (2, 2)]
    pool = upserted(pool, [(rival, (0, 1))])
    assert found(pool)[first] == []
    assert found(pool)[rival] == [(0, 1)]
    pool = upserted(pool, [(first, (1, 1))])
    assert found(pool)[first] == [(1, 1)]
    assert found(pool)[rival] == []


def test_a_key_without_n_grams_takes_no_slot():
    """A lookup alone changes nothing, and rows that do not count take nothing over."""
    first, rival = rivals()
    pool = upserted(empty(3), [(first, (1, 2))])
    assert found(pool)[rival] == []
    after = on_host(
        insert_jitted(
            pool,
            np.full(ROWS, rival, np.int32),
            np.ones((ROWS, SIZE), np.int32),
            np.zeros(ROWS, bool),
        )
    )
    np.testing.assert_array_equal(after.keys, pool.keys)
    assert found(after)[first] == [(1, 2)]


@pytest.mark.parametrize(("start", "length"), [(0, 0), (0, 66), (0, 131), (9, 80), (64, 160)])
def test_a_sequence_gives_all_its_ngrams_left_to_right(start, length):
    tokens = np.random.default_rng(length).integers(0, KEYS, 160).astype(np.int32)
    pool = on_host(
        insert_sequence_jitted(empty(5), tokens, np.int32(length), start=np.int32(start))
    )
    expected = plain(5)
    expected.upsert_sequence(tokens[start:length].tolist(), SIZE)
    assert_holds(pool, expected)


def test_large_ids_spread_over_the_slots():
    """Consecutive ids and multiples of the number of slots do not gather in a few."""
    for keys in (range(1000, 1256), range(0, 256 * 64, 64)):
        pool = init_pool(1 << 17, 1, 1, 64)
        pool = insert_jitted(
            pool,
            np.array(keys, np.int32),
            np.ones((256, 1), np.int32),
            np.ones(256, bool),
        )
        # 64 * (1 - 1/e**4) of 64 slots are taken by 256 keys that choose at random.
        assert np.sum(np.asarray(pool.keys) != NGramPool.EMPTY) > 50


# Whole generations

CONFIG = LookaheadConfig(3, 4, 3, pool_from_prompt=False)
PROMPTS = [(3, 9, 4), (5,), (7, 7, 8, 1, 7, 7)]


def test_a_generation_writes_the_same_text(toy):
    """Also in slots that are used again, where the last text's n-grams are gone."""
    config = replace(CONFIG, pool_slots=5)
    results = generate(toy, PROMPTS, config=config, max_new_tokens=60, batch_size=2)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.tokens == reference.greedy_generate(fakes.toy_next, prompt, 60, ())
        assert sum(result.stats.accepted_histogram[1:])
        assert result.stats.pool_bytes == 5 * (CONFIG.guess_set_size * 3 + 1) * 4


def test_the_memory_of_other_pools(toy):
    """The direct one grows with the vocabulary; the ordinary decoder has none."""
    options = {"max_new_tokens": 40, "stop_tokens": (2, 16)}  # as in test_continuous.py
    direct = generate(toy, PROMPTS[0], config=CONFIG, **options)
    assert direct.stats.pool_bytes == fakes.TOY_VOCAB * CONFIG.guess_set_size * 3 * 4
    assert autoregressive.generate(toy, PROMPTS[0], **options).stats.pool_bytes == 0


@pytest.mark.parametrize("num_slots", [None, 1, 5])
def test_the_arrays_have_what_the_formula_says(num_slots):
    pool = init_pool(KEYS, GUESSES, SIZE, num_slots)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(pool))
    row = GUESSES * SIZE
    assert size == 4 * (KEYS * row if num_slots is None else num_slots * (row + 1))


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "8"], ids=repr)
def test_a_number_of_slots_that_cannot_be(value):
    with pytest.raises(LookaheadError, match=r"^pool_slots must be .*got ") as caught:
        LookaheadConfig(3, 4, 3, pool_slots=value)
    assert "\n" not in str(caught.value)
