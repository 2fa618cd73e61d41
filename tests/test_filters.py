"""Temperature, top-k, top-p and min-p: transformers' results, ties and edges included."""

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_sampling as oracle
import trace_files
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead_jax import LookaheadError, Sample
from lookahead_jax.filters import keep_min_p, keep_top_k, keep_top_p


@functools.cache
def golden():
    text = (trace_files.DATA / "golden_processors.json").read_text(encoding="utf-8")
    return json.loads(text)


def as_floats(row, scale):
    return np.array([-math.inf if x is None else x / scale for x in row], np.float32)


def kept_ids(mask, vocab_size):
    return [i for i, bit in enumerate(f"{int(mask, 16):0{vocab_size}b}") if bit == "1"]


def warp_all(samples):
    """Every setting in one compiled program: [rows, V] -> one [rows, V] each."""
    return jax.jit(lambda rows: [jax.vmap(sample.warp)(rows) for sample in samples])


@pytest.mark.parametrize("index", range(3), ids=["v5", "v33", "v1000"])
def test_filters_are_those_of_transformers(index):
    """All but the masks that float rounding decides, which the golden file leaves out.

    Where transformers' own sort was not stable (see make_golden_processors.py), which of several
    equal scores it removed is arbitrary; how many is not.
    """
    data = golden()["filters"]
    vocabulary = data["vocabularies"][index]
    rows = np.stack([as_floats(row, golden()["scale"]) for row in vocabulary["logits"]])
    results = warp_all([Sample(*setting) for setting in data["settings"]])(rows)
    compared = arbitrary = 0
    for setting, ours in zip(range(len(data["settings"])), map(np.asarray, results), strict=True):
        for row, weights, theirs in zip(
            rows, ours, [found[setting] for found in vocabulary["results"]], strict=True
        ):
            if "close" in theirs:
                continue
            compared += 1
            ours_kept = np.flatnonzero(weights > -np.inf)
            expected = kept_ids(theirs["kept"], len(row))
            if theirs["stable"]:
                assert ours_kept.tolist() == expected, data["settings"][setting]
            else:
                arbitrary += 1
                assert sorted(row[ours_kept]) == sorted(row[expected]), data["settings"][setting]
                tied = row[ours_kept] == row[ours_kept].min()
                candidates = np.flatnonzero(row == row[ours_kept].min())
                assert ours_kept[tied].tolist() == candidates[-tied.sum() :].tolist()
            if "scores" in theirs:
                theirs_scores = as_floats(theirs["scores"], 1)
                np.testing.assert_allclose(
                    weights[ours_kept] - weights.max(),
                    theirs_scores[ours_kept] - theirs_scores.max(),
                    atol=1e-5,
                )
    assert compared >= 0.95 * rows.shape[0] * len(data["settings"])
    assert (arbitrary > 0) == (rows.shape[1] > 16)


SETTINGS = [
    oracle.Filters(0.5, 0, 1.0, 0.0),
    oracle.Filters(1.0, 4, 1.0, 0.0),
    oracle.Filters(1.0, 0, 0.75, 0.0),
    oracle.Filters(1.0, 0, 0.3, 0.0),
    oracle.Filters(1.0, 0, 1.0, 0.37),
    oracle.Filters(1.7, 6, 0.8, 0.15),
]
SIZE = 9
warp_settings = warp_all([Sample(*vars(setting).values()) for setting in SETTINGS])

# Few values: ties are the rule, at the boundary too.
score = st.one_of(st.integers(-4, 4).map(lambda x: x / 2), st.just(-math.inf))


@settings(deadline=None, max_examples=120)
@given(
    st.lists(score, min_size=SIZE, max_size=SIZE).filter(lambda row: max(row) > -math.inf),
    st.sampled_from([1.0, 0.125, 0.31]),
)
def test_filters_are_the_plain_ones(row, scale):
    row = np.array(row, np.float32) * np.float32(scale)
    for setting, result in zip(SETTINGS, warp_settings(row[None]), strict=True):
        expected, margin = setting.with_margin(row.tolist())
        if margin < 1e-5:
            continue  # for instance four equal scores at top_p = 0.75: rounding decides
        weights = np.asarray(result[0])
        assert (weights > -np.inf).tolist() == [x > -math.inf for x in expected], setting
        np.testing.assert_allclose(
            oracle.softmax(weights.tolist()), oracle.softmax(expected), atol=1e-6
        )


def kept(keeps, *rows):
    """Ids that each filter keeps of each row; one compiled program."""
    rows = jnp.array(rows, jnp.float32)
    results = jax.jit(lambda rows: [jax.vmap(keep)(rows) for keep in keeps])(rows)
    return [[np.flatnonzero(row > -np.inf).tolist() for row in np.asarray(r)] for r in results]


def top_p(p):
    return lambda scores: keep_top_p(scores, p)


def top_k(k):
    return lambda scores: keep_top_k(scores, k)


def min_p(p):
    return lambda scores: keep_min_p(scores, p)


def test_equal_scores_at_an_exact_boundary():
    """Probabilities that floats hold exactly: cumulative <= 1 - p removes the boundary itself."""
    keeps = [top_p(0.75), top_p(0.5), top_p(0.51), top_p(1e-9), min_p(1.0)]
    quarters, halves = [0.0] * 4, [0.0, 0.0, math.log(2), -math.inf]
    assert kept(keeps, quarters, halves) == [
        [[1, 2, 3], [1, 2]],
        [[2, 3], [2]],
        [[1, 2, 3], [1, 2]],
        [[3], [2]],
        [[0, 1, 2, 3], [2]],
    ]


def test_ties_with_the_kth_are_all_kept_and_zeros_of_both_signs_are_equal():
    keeps = [top_k(2), top_k(1), top_k(5), top_k(99), top_p(0.5)]
    everything = [[0, 1, 2, 3, 4]]
    assert kept(keeps, [0.0, 2.0, -0.0, -1.0, 0.0]) == [
        [[0, 1, 2, 4]],
        [[1]],
        everything,
        everything,
        [[1]],
    ]


def test_one_token_is_always_kept():
    """Also where its neighbours are infinitely unlikely, and at extreme scores."""
    rows = [[-math.inf, -3e38, -math.inf], [3e38, 1e38, -3e38]]
    assert kept([top_k(1), top_p(1e-7), min_p(1)], *rows) == [[[1], [0]]] * 3


def test_filters_apply_in_transformers_order():
    """Top-p sees what temperature and top-k left, min-p what top-p left."""
    cases = [
        (Sample(top_k=2, top_p=0.5), [0]),  # 0.3 / 0.7 < 0.5
        (Sample(top_p=0.5), [0, 1]),
        (Sample(temperature=3.0, top_p=0.5), [0, 1]),
        (Sample(temperature=0.2, top_p=0.5), [0]),
        (Sample(temperature=0.5, min_p=0.6), [0]),  # (3/4) ** 2 < 0.6
        (Sample(min_p=0.6), [0, 1]),
    ]
    found = kept([sample.warp for sample, _ in cases], np.log([0.4, 0.3, 0.2, 0.1]))
    assert found == [[expected] for _, expected in cases]


def test_a_tiny_temperature_is_finite():
    logits = jnp.array([1e30, -1e30, 1e30, 5.0], jnp.float32)
    weights = np.asarray(jax.jit(Sample(temperature=1e-30).warp)(logits))
    assert not np.isnan(weights).any()
    np.testing.assert_array_equal(np.asarray(jax.nn.softmax(weights)), [0.5, 0, 0.5, 0])


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "1"},
        {"temperature": True},
        {"top_k": -1},
        {"top_k": 2.0},
        {"top_k": True},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_p": math.nan},
        {"top_p": None},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"seed": -1},
        {"seed": 2**32},
        {"seed": 1.0},
        {"seed": None},
        {"method": "gumbel"},
        {"method": None},
    ],
    ids=str,
)
def test_bad_values_say_what_was_expected_and_what_came(values):
    ((name, value),) = values.items()
    with pytest.raises(LookaheadError) as error:
        Sample(**values)
    message = str(error.value)
    assert message.startswith(name)
    assert repr(value) in message
    assert "\n" not in message


def test_samples_are_values():
    assert Sample(0.7, seed=2**32 - 1) == Sample(0.7, seed=2**32 - 1)
    assert hash(Sample(0.7, 5)) == hash(Sample(0.7, 5))
    assert len({Sample(), Sample(0.7), Sample(top_k=3), Sample(method="residual"), Sample()}) == 4
