"""Jacobi decoding: the specification's toy operator, the bound on sweeps, the stop conditions."""

import fakes
import numpy as np
import pytest
import reference
import specification_figures as figures
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead_jax import jacobi
from lookahead_jax.jacobi import JacobiStop, solve, sweep

RELAXED = settings(deadline=None, max_examples=30)


def operator_of(next_token):
    """All coordinates at once, each from the ones before it in the old vector."""

    def operator(guesses):
        old = tuple(guesses.tolist())
        return np.array([next_token(old[:i]) for i in range(len(old))], np.int32)

    return operator


TOY = operator_of(figures.jacobi_toy)


def vector(values):
    return np.array(values, np.int32)


def test_sweeps_of_the_specification():
    guesses = vector(figures.JACOBI_START)
    for expected in figures.JACOBI_SWEEPS:
        guesses = sweep(TOY, guesses).guesses
        assert tuple(guesses.tolist()) == expected


def test_four_sweeps_solve_the_toy_and_gauss_seidel_takes_one():
    result = solve(TOY, vector(figures.JACOBI_START))
    assert tuple(result.guesses.tolist()) == figures.JACOBI_SOLUTION
    assert (result.sweeps, result.stop) == (4, JacobiStop.HORIZON)
    once = reference.gauss_seidel_sweep(figures.jacobi_toy, (), figures.JACOBI_START)
    assert once == figures.JACOBI_SOLUTION


def test_a_fixed_point_shows_one_sweep_after_it_is_reached():
    at_the_solution = solve(TOY, vector(figures.JACOBI_SOLUTION))
    assert (at_the_solution.sweeps, at_the_solution.stop) == (1, JacobiStop.FIXED_POINT)
    close = solve(TOY, vector((*figures.JACOBI_SOLUTION[:3], 9)))
    assert close.stop is JacobiStop.FIXED_POINT


def test_stable_proven_and_fixed_point_are_told_apart():
    """A coordinate that did not change may still be wrong; one that is proven never is."""
    # Coordinate 3 keeps its value in the second sweep, from inputs that are wrong.
    shown = sweep(TOY, vector((2, 3, 2, 3)))
    assert shown.stable.tolist() == [True, True, False, True]
    assert not shown.fixed_point
    assert shown.guesses[3] != figures.JACOBI_SOLUTION[3]
    assert shown.proven == 3
    assert tuple(shown.guesses[:3].tolist()) == figures.JACOBI_SOLUTION[:3]

    solved = sweep(TOY, vector(figures.JACOBI_SOLUTION))
    assert (bool(solved.fixed_point), int(solved.proven)) == (True, 4)

    # The last sweep of four proves everything, and yet it is no fixed point: something changed.
    last = sweep(TOY, vector(figures.JACOBI_SWEEPS[2]))
    assert (bool(last.fixed_point), int(last.proven)) == (False, 4)


def hashed(salt, vocabulary):
    def next_token(prefix):
        value = salt
        for token in prefix:
            value = (value * 31 + token * 7 + 3) % 10_007
        return value % vocabulary

    return next_token


@RELAXED
@given(st.integers(0, 10_006), st.integers(2, 4), st.sampled_from([1, 3, 6]), st.data())
def test_any_triangular_operator_is_solved_within_m_sweeps(salt, vocabulary, size, data):
    next_token = hashed(salt, vocabulary)
    start = data.draw(st.lists(st.integers(0, vocabulary - 1), min_size=size, max_size=size))
    solution = reference.greedy_generate(next_token, (), size)
    trajectory = reference.jacobi_trajectory(next_token, (), tuple(start))

    result = solve(operator_of(next_token), vector(start))
    assert tuple(result.guesses.tolist()) == solution == trajectory[-1]
    assert result.sweeps <= size
    changes = len(trajectory) - 1
    if changes < size:
        assert (result.sweeps, result.stop) == (changes + 1, JacobiStop.FIXED_POINT)
    else:
        assert (result.sweeps, result.stop) == (size, JacobiStop.HORIZON)

    guesses = vector(start)
    for count in range(1, size + 1):
        shown = sweep(operator_of(next_token), guesses)
        guesses, proven = shown.guesses, int(shown.proven)
        assert proven >= count
        assert tuple(guesses[:proven].tolist()) == solution[:proven]


@pytest.mark.parametrize("block_size", [1, 5])
def test_generate_writes_the_greedy_text(block_size, toy):
    prompts = [(5,), (7, 7, 8, 1, 7, 7), tuple(range(17))]
    results = jacobi.generate(
        toy, prompts, block_size=block_size, max_new_tokens=40, stop_tokens=[20]
    )
    for prompt, result in zip(prompts, results, strict=True):
        assert result.tokens == reference.greedy_generate(fakes.toy_next, prompt, 40, (20,))
        histogram = result.stats.accepted_histogram
        assert len(histogram) == block_size
        assert sum(histogram) == result.stats.rounds
        assert np.dot(histogram, 1 + np.arange(block_size)) == len(result.tokens)
        if block_size == 1:
            assert result.stats.rounds == len(result.tokens)


def test_sweeps_prove_several_tokens_where_tokens_depend_on_little():
    """A reciter's tokens depend on their place alone: every sweep after the first is right."""
    lm = fakes.script_model("abcdefgh")
    result = jacobi.generate(lm, "abc", block_size=5, max_new_tokens=40)
    assert result.text == ("abcdefgh" * 6)[3:43]
    assert result.stats.rounds < 20
