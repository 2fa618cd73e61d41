"""Greedy choice: the most likely token, the lowest id of equal ones, always an id."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead_jax import Greedy

select = jax.jit(Greedy().select)


@settings(deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=12, max_size=12))
def test_greedy_is_argmax_and_ties_go_to_the_lowest_id(values):
    logits = np.array(values, np.float32).reshape(2, 6)
    chosen = select(logits)
    assert chosen.dtype == jnp.int32
    assert chosen.tolist() == logits.argmax(-1).tolist()


def test_infinite_logits_are_the_least_and_the_most_likely():
    logits = jnp.array([[-jnp.inf, -2.0, -jnp.inf], [0.0, jnp.inf, 1.0], [-jnp.inf] * 3])
    assert select(logits.astype(jnp.float32)).tolist() == [1, 1, 0]


def test_logits_that_are_all_nan_still_give_an_id():
    assert 0 <= int(select(jnp.full((1, 5), jnp.nan))[0]) < 5


def test_low_precision_logits():
    assert select(jnp.array([[1.0, 3.0, 2.0]], jnp.bfloat16)).tolist() == [1]
