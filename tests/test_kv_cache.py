"""Commit: a fixed number of rows is written, and only the accepted ones count."""

import functools

import jax
import numpy as np
import pytest
import reference
import specification_figures as figures
from oracle_states import on_host

from lookahead_jax.kv_cache import BlockKV, KVCache, commit, init_cache
from lookahead_jax.typing import CacheSpec

commit_jitted = jax.jit(commit)
LAYERS, KV_HEADS, CAPACITY, HEAD_DIM, ROWS = 2, 3, 20, 4, 7


def random_case(rng, batch_size, lengths):
    def arrays(rows):
        shape = (batch_size, KV_HEADS, rows, HEAD_DIM)
        return tuple(rng.normal(size=shape).astype(np.float32) for _ in range(LAYERS))

    cache = KVCache(arrays(CAPACITY), arrays(CAPACITY), np.array(lengths, np.int32))
    return cache, BlockKV(arrays(ROWS), arrays(ROWS))


@pytest.mark.parametrize("lengths", [[5], [0], [16], [0, 5, 16], [3, 3, 3]])
@pytest.mark.parametrize("seed", range(3))
def test_rows_go_to_the_frontier_of_every_sequence(lengths, seed):
    rng = np.random.default_rng([seed, len(lengths)])
    batch_size = len(lengths)
    cache, block = random_case(rng, batch_size, lengths)
    rows = rng.integers(0, ROWS, (batch_size, 4)).astype(np.int32)
    advance = rng.integers(0, 5, batch_size).astype(np.int32)
    after = on_host(commit_jitted(cache, block, rows, advance))
    np.testing.assert_array_equal(after.length, cache.length + advance)
    for old, new, fresh in zip(
        (*cache.keys, *cache.values),
        (*after.keys, *after.values),
        (*block.keys, *block.values),
        strict=True,
    ):
        for i in range(batch_size):
            start = lengths[i]
            expected = old[i].copy()
            expected[:, start : start + 4] = fresh[i][:, rows[i]]
            # Nothing else changes: not what is committed, and not what lies behind the overhang.
            np.testing.assert_array_equal(new[i], expected)


def test_nothing_accepted_leaves_the_committed_prefix_as_it_was():
    cache, block = random_case(np.random.default_rng(0), 2, [4, 9])
    rows = np.zeros((2, 4), np.int32)
    after = on_host(commit_jitted(cache, block, rows, np.zeros(2, np.int32)))
    np.testing.assert_array_equal(after.length, cache.length)
    for old, new in zip((*cache.keys, *cache.values), (*after.keys, *after.values), strict=True):
        for i, length in enumerate(cache.length):
            np.testing.assert_array_equal(new[i, :, :length], old[i, :, :length])


def test_leftovers_of_a_round_are_overwritten_by_the_next():
    cache, block = random_case(np.random.default_rng(1), 1, [3])
    once = commit_jitted(cache, block, np.array([[0, 1, 2, 3]]), np.array([2], np.int32))
    twice = on_host(commit_jitted(once, block, np.array([[6, 5, 4, 3]]), np.array([3], np.int32)))
    assert twice.length.tolist() == [8]
    for new, fresh in zip(twice.keys, block.keys, strict=True):
        np.testing.assert_array_equal(new[0, :, 3:8], fresh[0][:, [0, 1, 6, 5, 4]])


def test_the_last_place_is_used_and_committed_entries_are_never_shifted():
    """`length + n == C` is the fullest a caller may be (contract 2)."""
    cache, block = random_case(np.random.default_rng(2), 1, [CAPACITY - 4])
    after = on_host(commit_jitted(cache, block, np.array([[0, 1, 2, 3]]), np.array([4], np.int32)))
    np.testing.assert_array_equal(after.keys[0][:, :, :-4], cache.keys[0][:, :, :-4])
    np.testing.assert_array_equal(after.keys[0][:, :, -4:], block.keys[0][:, :, :4])


@pytest.mark.parametrize("batch_size", [1, 2])
def test_keys_are_kept_in_the_caches_dtype(batch_size):
    spec = CacheSpec(num_layers=1, num_kv_heads=1, head_dim=2, dtype="bfloat16")
    cache = init_cache(spec, batch_size, 4)
    fresh = (np.full((batch_size, 1, 1, 2), 1.5, np.float32),)
    rows, one = np.zeros((batch_size, 1), np.int32), np.ones(batch_size, np.int32)
    after = commit(cache, BlockKV(fresh, fresh), rows, one)
    assert after.keys[0].dtype == cache.keys[0].dtype == "bfloat16"
    assert after.keys[0][:, 0, 0].tolist() == [[1.5, 1.5]] * batch_size


def test_an_empty_cache():
    spec = CacheSpec(num_layers=2, num_kv_heads=3, head_dim=4)
    cache = init_cache(spec, batch_size=5, capacity=6)
    assert [x.shape for x in (*cache.keys, *cache.values)] == [(5, 3, 6, 4)] * 4
    assert cache.length.tolist() == [0] * 5


def test_compaction_trace_of_the_specification():
    """128 cached, 21 packed rows, winner 1, two hits: rows 146 and 147 end at 129 and 130.

    The official code writes all packed rows behind the cache and then moves the winner's. Here the
    block stays apart: its row q stands for the official row 128 + q, and the ordinary row and the
    winner's rows are written to the frontier at once. The prefix is the same.
    """
    old, first = figures.COMPACTION["cache_length"], np.arange(160, dtype=np.float32)
    block_rows = figures.COMPACTION["step_length"] - old
    plan = reference.build_commit_plan(**figures.COMPACTION, tokens=(1, 2, 3))
    assert plan.copies == figures.COMPACTION_COPIES
    physical = tuple(range(figures.COMPACTION["step_length"]))
    expected = reference.apply_commit_plan(physical, plan)

    row = functools.partial(np.reshape, shape=(1, 1, -1, 1))
    buffer = (row(np.where(first < old, first, -1)),)
    block = (row(np.arange(old, old + block_rows, dtype=np.float32)),)
    winner = [0, *(source - old for source, _ in figures.COMPACTION_COPIES)]
    rows = np.array([[*winner, winner[-1]]], np.int32)  # a fixed 1 + S rows
    after = on_host(
        commit_jitted(
            KVCache(buffer, buffer, np.array([old], np.int32)),
            BlockKV(block, block),
            rows,
            np.array([3], np.int32),
        )
    )
    assert after.length.tolist() == [figures.COMPACTION_TRIM] == [len(expected)]
    assert after.keys[0][0, 0, : after.length[0], 0].astype(int).tolist() == list(expected)
    assert expected[figures.COMPACTION_FRONTIER :] == (146, 147)
