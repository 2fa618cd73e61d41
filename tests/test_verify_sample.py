"""Verification by sampling: specification 0x05B, exactly, on suffixes and on token trees."""

import functools
from dataclasses import dataclass

import enumerated
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_sampling as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead_jax import Greedy, Sample, noise
from lookahead_jax.processors import FrequencyPenalty, TextContext
from lookahead_jax.sampling import Policy, try_offered
from lookahead_jax.verify import verify_sample

# One position

AUDIT = np.array([0.2, 0.3, 0.1, 0.4], np.float32)
A, B, C, D = range(4)
try_rows = jax.jit(jax.vmap(try_offered, in_axes=(None, None, None, 0)))


def offered(*tokens):
    return np.array(tokens, np.int32), np.ones(len(tokens), bool)


def test_the_frozen_audit_coordinate():
    """0x05B: p = .20 .30 .10 .40 and candidates A, A, B, every uniform on a grid of cells.

    The thresholds .2 = 8/40 and .375 = 15/40 are grid lines, so that counting cells integrates over
    the uniforms exactly.
    """
    size = 40
    centres = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
    grid = np.stack(np.meshgrid(centres, centres, centres, indexing="ij"), -1).reshape(-1, 3)
    tested = jax.tree.map(np.asarray, try_rows(np.log(AUDIT), *offered(A, A, B), grid))
    np.testing.assert_allclose(
        tested.probabilities, np.broadcast_to([0.2, 0, 0.375], grid.shape), rtol=1e-6
    )
    assert tested.accepted.sum(axis=0).tolist() == [8 * 40 * 40, 0, 32 * 15 * 40]
    assert set(tested.accepted.sum(axis=1)) == {0, 1}
    accepted = tested.accepted.any(axis=1)
    assert set(tested.token[tested.accepted[:, 0]]) == {A}
    assert set(tested.token[tested.accepted[:, 2]]) == {B}
    residual = np.exp(jax.nn.log_softmax(tested.residual[~accepted]))
    np.testing.assert_allclose(
        residual, np.broadcast_to([0, 0, 0.2, 0.8], residual.shape), rtol=1e-6
    )
    # Output: A and B by acceptance, C and D by the residual. All of it is the target again.
    output = [*np.bincount(tested.token[accepted], minlength=2) / len(grid), 0, 0]
    output += (1 - accepted.mean()) * residual[0]
    np.testing.assert_allclose(output, AUDIT, rtol=1e-6)


def test_a_uniform_just_below_and_at_the_threshold():
    """Accepted iff u < p: strictly."""
    at = np.float32(0.25)
    below = np.nextafter(at, np.float32(0))
    weights = np.log(np.array([0.25, 0.25, 0.5], np.float32))
    uniforms = np.array([[below], [at]], np.float32)
    tested = try_rows(weights, *offered(1), uniforms)
    assert tested.accepted[:, 0].tolist() == [True, False]


def test_a_token_without_mass_is_never_accepted_and_costs_nothing():
    weights = np.array([1.0, -np.inf, 1.0, -np.inf], np.float32)
    uniforms = np.zeros((1, 4), np.float32)
    tested = try_rows(weights, *offered(1, 3, 1, 2), uniforms)
    np.testing.assert_allclose(tested.probabilities[0], [0, 0, 0, 0.5], rtol=1e-6)
    assert tested.accepted[0].tolist() == [False, False, False, True]
    assert int(tested.token[0]) == 2


def test_when_all_mass_is_offered_the_last_one_is_certain():
    """Whatever rounding makes of it: nothing would be left to draw from."""
    random = np.random.RandomState(0)
    nearly_one = np.nextafter(np.float32(1), np.float32(0))
    for _ in range(50):
        weights = np.full(4, -np.inf, np.float32)
        order = random.permutation(4)[:3]
        weights[order] = random.normal(0, 3, 3)
        tested = try_rows(weights, *offered(*order, order[0]), np.full((1, 4), nearly_one))
        assert tested.probabilities[0, 2] == 1.0
        assert tested.accepted[0].tolist() == [False, False, True, False]
        assert np.all(np.asarray(tested.residual) == -np.inf)


def test_nothing_on_offer_leaves_the_distribution_alone():
    weights = np.log(AUDIT)
    for tokens, counts in [((), ()), ((A, B), (False, False))]:
        tested = try_one(
            weights,
            np.array(tokens, np.int32),
            np.array(counts, bool),
            np.zeros(len(tokens), np.float32),
        )
        assert not np.any(tested.accepted)
        assert not np.any(tested.probabilities)
        np.testing.assert_array_equal(tested.residual, weights)


VOCAB, COUNT = 6, 5
weight = st.one_of(st.integers(-12, 12).map(lambda x: x / 4), st.just(-np.inf))
weights_row = st.lists(weight, min_size=VOCAB, max_size=VOCAB).filter(lambda w: max(w) > -np.inf)
tokens_row = st.lists(st.integers(0, VOCAB - 1), min_size=COUNT, max_size=COUNT)
flags_row = st.lists(st.booleans(), min_size=COUNT, max_size=COUNT)
uniforms_row = st.lists(
    st.integers(0, 63).map(lambda x: (x + 0.37) / 64), min_size=COUNT, max_size=COUNT
)
try_one = jax.jit(try_offered)


@settings(deadline=None, max_examples=300)
@given(weights_row, tokens_row, flags_row, uniforms_row)
def test_tests_are_the_specifications(weights, tokens, flags, uniforms):
    tested = try_one(
        np.array(weights, np.float32),
        np.array(tokens, np.int32),
        np.array(flags),
        np.array(uniforms, np.float32),
    )
    slots = [slot for slot in range(COUNT) if flags[slot]]
    expected, residual = oracle.acceptance_probabilities(
        oracle.softmax(weights), [tokens[slot] for slot in slots]
    )
    probabilities = np.zeros(COUNT)
    probabilities[slots] = expected
    np.testing.assert_allclose(tested.probabilities, probabilities, atol=2e-5)
    passing = [s for s in slots if uniforms[s] < probabilities[s]]
    if min((abs(uniforms[s] - probabilities[s]) for s in slots), default=1) > 1e-4:
        assert np.flatnonzero(tested.accepted).tolist() == passing[:1]
        if passing:
            assert int(tested.token) == tokens[passing[0]]
    support = [mass > 0 for mass in residual]
    assert (np.asarray(tested.residual) > -np.inf).tolist() == support
    if any(support):
        np.testing.assert_allclose(oracle.softmax(np.asarray(tested.residual)), residual, atol=2e-5)


# A whole walk

DEPTH, ROWS = 4, 40
TREE = [0, 0, 0, 0, 1, 1, 2, 3, 4, 4, 6, 8, 5, 7, 12]
"""Parents. Node 0 is the root; branches of different depth, and up to three children."""
SHAPES = {
    "tree": TREE,
    "suffixes": enumerated.suffix_parents(3, 4),
    "root": [0],
}
TABLE = enumerated.logit_table(4, seed=1)
PREFIX, PROMPT_LENGTH, TEXT_CAPACITY = [2, 0, 3, 1, 1, 0], 4, 16


@dataclass(frozen=True)
class Bump:
    """A processor that looks at everything a context has."""

    def __call__(self, logits, context):
        previous = context.tokens[jnp.maximum(context.length - 2, 0)]
        return logits.at[previous].add(0.5).at[context.prompt_length - 4].add(-0.25)


PROCESSORS = (FrequencyPenalty(0.5), Bump())
WAYS = {
    "greedy": (Greedy(), oracle.Filters()),
    "coupled": (Sample(temperature=0.8, top_k=3), oracle.Filters(temperature=0.8, top_k=3)),
    "residual": (
        Sample(temperature=1.2, min_p=0.05, method="residual"),
        oracle.Filters(temperature=1.2, min_p=0.05),
    ),
}
POLICY = Policy(enumerated.ByKey(tuple(ours for ours, _ in WAYS.values())), PROCESSORS)


@functools.cache
def verifier(shape):
    parents = SHAPES[shape]
    block = enumerated.tree_of(parents, DEPTH + 1)
    # The rows of the logits stand in an order of their own.
    logit_rows = np.random.RandomState(5).permutation(ROWS)[: len(parents)].astype(np.int32)

    def verify(tokens, valid, logits, key, max_accepted):
        prefix = context_of(PREFIX)
        return verify_sample(
            block, logit_rows, tokens, valid, logits, prefix, key, POLICY, max_accepted
        )

    return jax.jit(verify), logit_rows, block


def context_of(prefix):
    tokens = np.full(TEXT_CAPACITY, 3, np.int32)
    tokens[: len(prefix)] = prefix
    return TextContext(
        tokens=jnp.asarray(tokens),
        length=jnp.int32(len(prefix)),
        prompt_length=jnp.int32(PROMPT_LENGTH),
        stop_tokens=jnp.array([-1], jnp.int32),
    )


def plain_walk(parents, tokens, valid, key, name, max_accepted):
    """The oracle's walk. Noise is the package's own, at the positions it is meant for."""
    filters = WAYS[name][1]

    def choose(emitted, offered):
        text = [*PREFIX, *emitted]
        logits = enumerated.pair_logits(TABLE, text)
        logits = oracle.frequency_penalty(0.5)(logits, text, PROMPT_LENGTH)
        logits[text[-2]] += 0.5
        logits[0] -= 0.25
        weights = np.array(filters(logits))
        coupled, drawn, uniforms = noise_at(key, len(text), len(parents))
        if name == "greedy":
            return int(weights.argmax())
        if name == "coupled":
            return int((weights + coupled).argmax())
        found, residual = oracle.acceptance_probabilities(
            oracle.softmax(weights), [token for _, token in offered]
        )
        for (slot, token), probability in zip(offered, found, strict=True):
            if uniforms[slot] < probability:
                return token
        return int((np.log(np.maximum(residual, 1e-300)) + drawn).argmax())

    return oracle.walk_tree(parents, tokens, valid, choose, max_accepted)


@functools.cache
def noise_at(key, position, count):
    coupled, drawn, uniforms = jitted_noise(count)(np.array(key, np.uint32), np.int32(position))
    return np.asarray(coupled), np.asarray(drawn), np.asarray(uniforms)


@functools.cache
def jitted_noise(count):
    return jax.jit(
        lambda key, position: (
            noise.gumbel(key, position, len(TABLE), noise.Purpose.COUPLED),
            noise.gumbel(key, position, len(TABLE), noise.Purpose.RESIDUAL),
            noise.uniforms(key, position, count),
        )
    )


def propose(parents, random):
    """Tokens of a tree, likely ones more often than not, and the text that ends at each node."""
    tokens, texts = [PREFIX[-1]], [PREFIX]
    for parent in parents[1:]:
        likely = int(np.argmax(enumerated.pair_logits(TABLE, texts[parent])))
        token = likely if random.rand() < 0.5 else random.randint(4)
        tokens.append(token)
        texts.append([*texts[parent], token])
    return tokens, texts


@pytest.mark.parametrize(
    ("shape", "max_accepted"),
    [("tree", 4), ("tree", 2), ("suffixes", 4), ("suffixes", 3), ("root", 4)],
)
def test_verification_is_a_plain_walk(shape, max_accepted):
    """Greedy with processors, coupled and residual, each against the oracle on many blocks."""
    parents = SHAPES[shape]
    verify, logit_rows, block = verifier(shape)
    size = len(parents)
    lengths = {name: [] for name in WAYS}
    random = np.random.RandomState(7)
    for case in range(120):
        tokens, texts = propose(parents, random)
        valid = random.rand(size) < 0.9
        logits = np.full((ROWS, 4), np.nan, np.float32)
        for node, text in enumerate(texts):
            logits[logit_rows[node]] = enumerated.pair_logits(TABLE, text)
        for index, name in enumerate(WAYS):
            key = (case, index)
            verdict = verify(
                np.array(tokens, np.int32),
                valid,
                logits,
                np.array(key, np.uint32),
                np.int32(max_accepted),
            )
            emitted, path = plain_walk(parents, tokens, valid, key, name, max_accepted)
            accepted = int(verdict.accepted)
            assert verdict.emitted.shape == verdict.path.shape == (DEPTH + 1,)
            assert accepted == len(emitted) - 1 == len(path) - 1
            assert verdict.emitted[: accepted + 1].tolist() == emitted
            assert verdict.path.tolist() == block.paths[path[-1]].tolist()
            assert [tokens[node] for node in path[1:]] == emitted[:-1]
            lengths[name].append(accepted)
    for name, counts in lengths.items():
        deepest = 0 if shape == "root" else max_accepted
        assert max(counts) == deepest, name
        assert min(counts) == 0


def test_methods_accept_equally_often():
    """A candidate is accepted with its target probability by either method."""
    parents = SHAPES["suffixes"]
    block = enumerated.tree_of(parents, DEPTH + 1)
    tokens = np.array([0, 1, 2, 0, 1, 1, 3, 3, 0, 2, 0, 0, 1], np.int32)
    texts = [PREFIX]
    for node in range(1, len(parents)):
        texts.append([*texts[parents[node]], int(tokens[node])])
    logits = np.array([enumerated.pair_logits(TABLE, text) for text in texts], np.float32)
    methods = enumerated.ByKey((Sample(), Sample(method="residual")))
    count = 8000

    def accepted(key):
        return verify_sample(
            block,
            np.arange(len(parents), dtype=np.int32),
            jnp.asarray(tokens),
            jnp.ones(len(parents), bool),
            jnp.asarray(logits),
            context_of(PREFIX),
            key,
            Policy(methods),
            DEPTH,
        ).accepted

    keys = [[seed, method] for method in range(2) for seed in range(count)]
    found = np.asarray(jax.jit(jax.vmap(accepted))(np.array(keys, np.uint32))) > 0
    p = oracle.softmax(enumerated.pair_logits(TABLE, PREFIX))
    expected = p[1] + p[2]  # two suffixes begin with 1, one with 2
    error = np.sqrt(expected * (1 - expected) / count)
    for share in (found[:count].mean(), found[count:].mean()):
        assert abs(share - expected) < 4 * error
    assert 0.2 < expected < 0.9
