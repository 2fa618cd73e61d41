"""Two-segment attention against a plain softmax over the concatenated segments."""

import jax
import numpy as np
import pytest

from lookahead_jax.attention import attend

attend_jitted = jax.jit(attend, static_argnames="scale")


def plain(queries, cached_keys, cached_values, length, block_keys, block_values, mask, scale):
    """One sequence and query head at a time, in float64."""
    out = np.zeros(queries.shape)
    for b, k, g in np.ndindex(queries.shape[:3]):
        n = length[b]
        keys = np.concatenate([cached_keys[b, k, :n], block_keys[b, k]]).astype(np.float64)
        values = np.concatenate([cached_values[b, k, :n], block_values[b, k]]).astype(np.float64)
        for t, query in enumerate(queries[b, k, g]):
            seen = np.concatenate([np.ones(n, bool), mask[b, t]])
            scores = scale * keys[seen] @ query.astype(np.float64)
            weights = np.exp(scores - scores.max())
            out[b, k, g, t] = (weights / weights.sum()) @ values[seen]
    return out


def random_case(rng, batch_size=3, kv_heads=2, group=3, rows=5, capacity=11, head_dim=4, big=1.0):
    def normal(*shape):
        return (big * rng.normal(size=shape)).astype(np.float32)

    mask = rng.random((batch_size, rows, rows)) < 0.5
    mask |= np.eye(rows, dtype=bool)
    return {
        "queries": normal(batch_size, kv_heads, group, rows, head_dim),
        "cached_keys": normal(batch_size, kv_heads, capacity, head_dim),
        "cached_values": normal(batch_size, kv_heads, capacity, head_dim),
        "length": np.minimum(rng.choice([0, 1, 4, capacity], batch_size), capacity).astype(
            np.int32
        ),
        "block_keys": normal(batch_size, kv_heads, rows, head_dim),
        "block_values": normal(batch_size, kv_heads, rows, head_dim),
        "block_mask": mask,
    }


def both(case, scale=0.5):
    actual = attend_jitted(**case, scale=scale)
    return np.asarray(actual), plain(*case.values(), scale)


@pytest.mark.parametrize("seed", range(6))
def test_grouped_heads_and_different_lengths(seed):
    actual, expected = both(random_case(np.random.default_rng(seed)))
    np.testing.assert_allclose(actual, expected, atol=2e-6)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1, 2), (1, 3, 1, 6, 4, 2), (2, 1, 4, 1, 5, 8)])
def test_other_shapes(shape):
    names = ("batch_size", "kv_heads", "group", "rows", "capacity", "head_dim")
    case = random_case(np.random.default_rng(9), **dict(zip(names, shape, strict=True)))
    actual, expected = both(case)
    np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_large_scores_do_not_overflow():
    actual, expected = both(random_case(np.random.default_rng(3), big=40.0))
    assert np.isfinite(actual).all()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("leftover", [0.0, 1e4, -1e30, 3e38])
def test_leftovers_behind_the_prefix_do_not_matter(leftover):
    """Finite ones: a model's keys and values are finite, or its logits have failed already."""
    case = random_case(np.random.default_rng(4))
    clean = np.asarray(attend_jitted(**case, scale=0.5))
    behind = np.arange(case["cached_keys"].shape[2])[None, :] >= case["length"][:, None]
    assert behind.any()
    for name in ("cached_keys", "cached_values"):
        case[name] = np.where(behind[:, None, :, None], np.float32(leftover), case[name])
    np.testing.assert_array_equal(np.asarray(attend_jitted(**case, scale=0.5)), clean)


def test_rows_that_are_not_seen_do_not_matter():
    case = random_case(np.random.default_rng(5))
    clean = np.asarray(attend_jitted(**case, scale=0.5))
    case["block_mask"][:, :, 2] = False
    case["block_mask"][:, 2, 2] = True
    isolated = np.asarray(attend_jitted(**case, scale=0.5))
    for name in ("block_keys", "block_values"):
        case[name][:, :, 2] = 1e6
    spoiled = np.asarray(attend_jitted(**case, scale=0.5))
    others = [0, 1, 3, 4]
    np.testing.assert_array_equal(spoiled[:, :, :, others], isolated[:, :, :, others])
    assert not np.allclose(isolated[:, :, :, others], clean[:, :, :, others])


def test_low_precision_inputs_are_summed_in_float32():
    case = random_case(np.random.default_rng(6), capacity=64)
    floats = {n: x for n, x in case.items() if x.dtype == np.float32}
    case |= {name: jax.numpy.asarray(x, "bfloat16") for name, x in floats.items()}
    actual = attend_jitted(**case, scale=0.5)
    assert actual.dtype == "bfloat16"
    exact = {name: np.asarray(x, np.float32) for name, x in case.items() if name in floats}
    expected = plain(*(case | exact).values(), 0.5)
    np.testing.assert_allclose(np.asarray(actual, np.float32), expected, atol=0.03)
