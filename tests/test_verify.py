"""Verification: disjoint suffixes against the oracle, and token trees against a plain walk."""

import functools

import jax
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_states import on_host

from lookahead_jax.layout import VerificationBlock, disjoint_suffixes
from lookahead_jax.verify import verify_greedy

RELAXED = settings(deadline=None, max_examples=150)


@functools.cache
def suffix_verifier(guesses, size, max_accepted):
    block = disjoint_suffixes(guesses, size)
    return jax.jit(lambda t, v, p: verify_greedy(block, t, v, p, max_accepted))


@RELAXED
@given(st.sampled_from([(3, 2, 2), (3, 2, 1), (4, 4, 4), (4, 4, 3), (1, 3, 3)]), st.data())
def test_suffixes_are_verified_as_the_oracle_does(shape, data):
    guesses, size, max_accepted = shape
    # Two tokens only: matches, partial ones and ties are common then.
    token = st.integers(0, 1)
    suffix = st.tuples(*[token] * size)
    candidates = data.draw(st.lists(suffix, min_size=guesses, max_size=guesses))
    after = data.draw(st.lists(suffix, min_size=guesses, max_size=guesses))
    valid = data.draw(st.lists(st.integers(0, 4).map(bool), min_size=guesses, max_size=guesses))
    out = data.draw(token)

    verdict = on_host(
        suffix_verifier(*shape)(
            np.array([5, *np.ravel(candidates)], np.int32),
            np.array([True, *np.repeat(valid, size)]),
            np.array([out, *np.ravel(after)], np.int32),
        )
    )
    slots = [slot for slot in range(guesses) if valid[slot]]
    expected = reference.greedy_verify(
        out, [candidates[c] for c in slots], [after[c] for c in slots], max_accepted
    )
    assert verdict.accepted == expected.hits
    assert verdict.emitted[: expected.hits + 1].tolist() == list(expected.tokens)
    path = [0]
    if expected.winner is not None:
        first = 1 + slots[expected.winner] * size
        path += range(first, first + expected.hits)
    assert verdict.path.shape == verdict.emitted.shape == (size + 1,)
    assert verdict.path.tolist() == path + [path[-1]] * (size + 1 - len(path))


def test_the_first_of_equal_candidates_wins():
    verdict = suffix_verifier(3, 2, 2)(
        np.array([5, 8, 1, 6, 7, 6, 7], np.int32),
        np.ones(7, bool),
        np.array([6, 0, 0, 7, 9, 7, 9], np.int32),
    )
    assert verdict.accepted == 2
    assert verdict.path.tolist() == [0, 3, 4]
    assert verdict.emitted.tolist() == [6, 7, 9]


def test_an_invalid_candidate_never_wins_even_if_it_agrees():
    verdict = suffix_verifier(1, 3, 3)(
        np.array([5, 6, 6, 6], np.int32),
        np.array([True, False, False, False]),
        np.full(4, 6, np.int32),
    )
    assert verdict.accepted == 0
    assert verdict.path.tolist() == [0, 0, 0, 0]
    assert verdict.emitted[0] == 6


def test_no_candidates_at_all():
    verdict = suffix_verifier(0, 3, 0)(
        np.array([5], np.int32), np.array([True]), np.array([9], np.int32)
    )
    assert (verdict.accepted, verdict.path.tolist()) == (0, [0, 0, 0, 0])
    assert verdict.emitted.tolist() == [9] * 4


# A genuine tree: contract 11.

TREE = [0, 0, 0, 1, 1, 2, 3, 3, 5, 6, 4]
"""Parent of each node. Branches of different depth, two children of one node, no fixed suffixes."""


def tree_block(parents, path_length):
    depths = [0]
    for node in range(1, len(parents)):
        depths.append(depths[parents[node]] + 1)
    ancestors = np.zeros((len(parents), len(parents)), bool)
    paths = []
    for node in range(len(parents)):
        chain = [node]
        while chain[-1]:
            chain.append(parents[chain[-1]])
        ancestors[node, chain] = True
        paths.append(chain[::-1] + [node] * (path_length - len(chain)))
    return VerificationBlock(
        np.array(parents, np.int32),
        np.array(depths, np.int32),
        ancestors,
        np.array(paths, np.int32),
    )


def longest_walk(parents, tokens, valid, predictions, max_accepted):
    """All accepted nodes by walking down from the root; the deepest, of equals the first."""
    reached = {0: 0}
    for node in range(1, len(parents)):
        parent = parents[node]
        if parent in reached and valid[node] and tokens[node] == predictions[parent]:
            reached[node] = reached[parent] + 1
    allowed = {node: depth for node, depth in reached.items() if depth <= max_accepted}
    return max(allowed.items(), key=lambda item: (item[1], -item[0]))


@functools.cache
def tree_verifier(max_accepted):
    block = tree_block(TREE, path_length=5)
    return jax.jit(lambda t, v, p: verify_greedy(block, t, v, p, max_accepted)), block


@RELAXED
@given(st.data(), st.sampled_from([0, 2, 4]))
def test_a_token_tree_is_verified_from_its_description_alone(data, max_accepted):
    size = len(TREE)
    token = st.integers(0, 1)
    tokens = data.draw(st.lists(token, min_size=size, max_size=size))
    predictions = data.draw(st.lists(token, min_size=size, max_size=size))
    valid = [
        True,
        *data.draw(st.lists(st.integers(0, 5).map(bool), min_size=size - 1, max_size=size - 1)),
    ]
    verify, block = tree_verifier(max_accepted)
    verdict = on_host(
        verify(np.array(tokens, np.int32), np.array(valid), np.array(predictions, np.int32))
    )
    node, depth = longest_walk(TREE, tokens, valid, predictions, max_accepted)
    assert verdict.accepted == depth
    assert verdict.path.tolist() == block.paths[node].tolist()
    assert verdict.emitted.tolist() == [predictions[n] for n in block.paths[node]]


def test_the_deepest_node_of_the_tree_can_win():
    verify, _ = tree_verifier(4)
    verdict = verify(np.arange(11), np.ones(11, bool), np.array([1, 3, 0, 6, 0, 0, 9, 0, 0, 42, 0]))
    assert verdict.path.tolist() == [0, 1, 3, 6, 9]
    assert verdict.emitted.tolist() == [1, 3, 6, 9, 42]


@pytest.mark.parametrize("guesses", [1, 3])
def test_disjoint_suffixes_are_a_special_case_of_a_tree(guesses):
    size = 3
    parents = [0]
    for candidate in range(guesses):
        first = 1 + candidate * size
        parents += [0, *range(first, first + size - 1)]
    expected, actual = tree_block(parents, size + 1), disjoint_suffixes(guesses, size)
    for name in ("parents", "depths", "ancestors", "paths"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name))
