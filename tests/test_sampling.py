"""Greedy choice: the most likely token, the lowest id of equal ones, always an id."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead_jax import Greedy, LookaheadError, Sample

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


@pytest.mark.parametrize("sampling", [Greedy(), Sample(0.7), Sample(0.7, 3, 0.9, 0.1), Sample(0)])
def test_where_nothing_is_left_token_0_is_written(sampling):
    weights = sampling.warp(jnp.full((5,), -jnp.inf))
    assert weights.tolist() == [-jnp.inf] * 5
    nothing = jnp.zeros((0,), jnp.int32)
    key = jnp.array([3, 0], jnp.uint32)
    assert sampling.choose(weights, key, jnp.int32(9), nothing, nothing.astype(bool)) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "1"),
        ("top_k", -1),
        ("top_k", 2.0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("min_p", 2),
        ("seed", -1),
        ("seed", 2**32),
        ("seed", True),
        ("method", "beam"),
    ],
)
def test_bad_settings_are_named(field, value):
    with pytest.raises(LookaheadError) as caught:
        Sample(**{field: value})
    message = str(caught.value)
    assert message.startswith(f"{field} must be ")
    assert message.endswith(f"got {value!r}")
    assert "\n" not in message


def test_low_precision_logits():
    assert select(jnp.array([[1.0, 3.0, 2.0]], jnp.bfloat16)).tolist() == [1]
