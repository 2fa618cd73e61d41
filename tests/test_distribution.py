"""The distribution of sampled texts: exactly enumerated, and held by chi-square tests.

The target is a table of logits after the last two tokens, so every text's probability is known. One
batch decodes a prompt with thousands of seeds. Its pool offers two suffixes that begin with the
likeliest token, two that share a second token, and one that begins with a token that top-k has
removed. Seeds are fixed: nothing here fails by chance. All tests use ALPHA, and the power of the
test against each planted bias is computed, not hoped for.
"""

import functools
from dataclasses import dataclass

import enumerated
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import reference_sampling as oracle
from oracle_states import oracle_settings
from scipy import stats

from lookahead_jax import Greedy, LookaheadConfig, Sample, WindowAdvance, WindowProposals, noise
from lookahead_jax.layout import build_layout
from lookahead_jax.sampling import try_offered

ALPHA = 1e-3
"""Chance to reject a right sampler, per test."""
COUNT = 2048
"""Texts per test."""
LENGTH, TOTAL, VOCAB = 4, 7, 5
"""Whole texts are compared by their first LENGTH tokens, the others one transition at a time."""
FILTERS = oracle.Filters(temperature=1.0, top_k=4)
RESIDUAL = Sample(top_k=4, method="residual")
COUPLED = Sample(top_k=4)


def ranked_table():
    """Every row has the same logits in another order: no ties, and gaps that 0.01 makes certain."""
    random = np.random.RandomState(3)
    values = np.array([2.0, 1.5, 0.9, 0.5, 0.0], np.float32)
    rows = [values[random.permutation(VOCAB)] for _ in range(VOCAB * VOCAB)]
    return np.array(rows).reshape(VOCAB, VOCAB, VOCAB)


TABLE = ranked_table()
CONDITIONAL = enumerated.pair_conditional(TABLE, FILTERS)
KEY, BEFORE = 0, 1
"""The last two tokens of the prompt are BEFORE and KEY."""
LIKELY, SECOND, THIRD, _, REMOVED = np.argsort(-TABLE[BEFORE, KEY]).tolist()
NEXT = int(np.argmax(TABLE[KEY, LIKELY]))
THEN = int(np.argmax(TABLE[LIKELY, NEXT]))
SUFFIXES = [
    (SECOND, NEXT, THEN),  # shares its second token with one that begins otherwise
    (LIKELY, NEXT, THEN),
    (LIKELY, SECOND, NEXT),  # a duplicate by its first token
    (REMOVED, NEXT, NEXT),
    (THIRD, SECOND, LIKELY),
]
PROMPT = [*(token for suffix in SUFFIXES for token in (KEY, *suffix)), BEFORE, KEY]
CONFIG = LookaheadConfig(2, 4, 5)
OTHER_CONFIG = LookaheadConfig(
    3,
    3,
    2,
    advance=WindowAdvance.BY_ACCEPTED,
    window_proposals=WindowProposals.COUPLED,
    pool_slots=2,
)


@functools.cache
def decode(config, sampling, fault=False):
    """COUNT texts; `sampling` is one of the product's ways to sample, or a planted one."""
    program, ways = (OTHER_WAYS, METHODS) if config == OTHER_CONFIG else (ALL_WAYS, WAYS)
    parents = None if config is None else np.array(build_layout(config).block.parents)
    return enumerated.decode(
        TABLE,
        [PROMPT],
        config=config,
        sampling=program,
        max_new_tokens=TOTAL,
        keys=np.stack([np.arange(COUNT), np.full(COUNT, ways.index(sampling))], axis=1),
        parents=unfiltered_parents() if fault else parents,
        optimised=config == CONFIG,
    )


# The test


@functools.cache
def target():
    """Probabilities of all texts, by enumeration."""
    return oracle.continuations(CONDITIONAL, PROMPT, LENGTH).ravel()


def cells(probabilities):
    """Texts in cells of at least five expected ones; all rarer texts are one cell."""
    common = target() * COUNT >= 5
    values = np.asarray(probabilities, float)
    return np.array([*values[common], values[~common].sum()])


def p_value(tokens):
    """Of Pearson's test of the beginnings of texts [COUNT, n] against the target."""
    index = np.ravel_multi_index(tuple(tokens[:, :LENGTH].T), (VOCAB,) * LENGTH)
    counts = np.bincount(index, minlength=VOCAB**LENGTH)
    if counts[target() == 0].any():
        return 0.0  # a text that cannot be
    return stats.chisquare(cells(counts), cells(target()) * COUNT).pvalue


def transition_p_value(tokens):
    """Of a test of each later token against its distribution after the two before it.

    By then the pool has learned from the window, and candidates are the sampler's own guesses.
    """
    counts = np.zeros((VOCAB,) * 3)
    for position in range(LENGTH, TOTAL):
        np.add.at(counts, tuple(tokens[:, position - 2 : position + 1].T), 1)
    statistic, freedom = 0.0, 0
    for before, last in np.ndindex(VOCAB, VOCAB):
        p = np.array(CONDITIONAL((before, last)))
        seen, expected = counts[before, last], counts[before, last].sum() * p
        if seen[p == 0].any():
            return 0.0
        if expected[p > 0].min() >= 5:
            statistic += np.sum((seen - expected)[p > 0] ** 2 / expected[p > 0])
            freedom += np.sum(p > 0) - 1
    assert freedom > 50
    return stats.chi2.sf(statistic, freedom)


def power(biased):
    """Chance of the test to reject texts of another distribution."""
    expected = cells(target())
    distance = COUNT * np.sum((cells(biased) - expected) ** 2 / expected)
    freedom = len(expected) - 1
    return stats.ncx2.sf(stats.chi2.isf(ALPHA, freedom), freedom, distance)


def test_the_pool_offers_what_the_tests_need():
    assert len({KEY, LIKELY, SECOND, REMOVED}) == 4
    assert KEY not in (NEXT, THEN)
    assert candidates() == SUFFIXES
    p = CONDITIONAL(tuple(PROMPT))
    assert p[REMOVED] == 0
    assert p[LIKELY] > 0.4
    assert len(cells(target())) > 60


def candidates():
    """The first round's, by the oracle of the pool."""
    settings = oracle_settings(CONFIG, LENGTH)
    start = reference.start(settings, PROMPT, [0] * (CONFIG.window_size + CONFIG.ngram_size - 3))
    return list(reference.lookup_candidates(settings, start))


# The algorithm: the uniforms integrated out


def double_removal(p, offered):
    """A repeated token is taken off the mass that is left once more."""
    found, residual, left, tested = [], list(p), 1.0, set()
    for token in offered:
        probability = 1.0 if left <= 0 else min(p[token] / left, 1.0)
        found.append(0.0 if token in tested else probability)
        tested.add(token)
        left -= p[token]
        residual[token] = 0.0
    return found, normalised(residual)


def no_renormalisation(p, offered):
    """A token is accepted with its own probability, whatever was rejected before it."""
    residual, found = list(p), []
    for token in offered:
        found.append(residual[token])
        residual[token] = 0.0
    return found, normalised(residual)


def reused_uniform(p, offered):
    """The draw after the tests uses the first test's uniform, which is at least its threshold."""
    found, residual = oracle.acceptance_probabilities(p, offered)
    if not offered or found[0] >= 1:
        return found, residual
    edges = np.maximum(np.cumsum([0.0, *residual]), found[0])
    return found, normalised(np.diff(edges))


def normalised(masses):
    total = sum(masses)
    return [mass / total if total > 0 else 0.0 for mass in masses]


FAULTS = {
    "double removal": {"tests": double_removal},
    "missing renormalisation": {"tests": no_renormalisation},
    "reused uniform": {"tests": reused_uniform},
    "unfiltered suffixes": {"filtered": False},
}


def walk(**fault):
    return oracle.verified_continuations(CONDITIONAL, PROMPT, LENGTH, candidates(), **fault).ravel()


def test_verification_is_exact_when_its_uniforms_are_integrated_out():
    np.testing.assert_allclose(walk(), target(), atol=1e-14)
    assert abs(target().sum() - 1) < 1e-12


@pytest.mark.parametrize("fault", FAULTS)
def test_the_test_has_the_power_to_catch_a_biased_walk(fault):
    """Power above 0.9999 against each bias, and texts drawn from it are rejected."""
    biased = walk(**FAULTS[fault])
    assert abs(biased.sum() - 1) < 1e-12
    assert power(biased) > 0.9999
    drawn = np.random.RandomState(1).choice(len(biased), COUNT, p=biased / biased.sum())
    assert p_value(np.stack(np.unravel_index(drawn, (VOCAB,) * LENGTH), axis=1)) < ALPHA


def test_the_test_lets_the_target_pass():
    drawn = np.random.RandomState(1).choice(len(target()), COUNT, p=target() / target().sum())
    assert p_value(np.stack(np.unravel_index(drawn, (VOCAB,) * LENGTH), axis=1)) > ALPHA


# The product


@dataclass(frozen=True)
class Planted(Sample):
    """Residual sampling with a fault."""

    fault: str = ""

    def choose(self, weights, key, position, offered, is_offered):
        if offered.shape[0] == 0:
            return super().choose(weights, key, position, offered, is_offered)
        uniforms = noise.uniforms(key, position, offered.shape[0])
        trials = try_offered(weights, offered, is_offered, uniforms)
        mass = jnp.where(is_offered, jax.nn.softmax(weights)[offered], 0.0)
        gumbel = noise.gumbel(key, position, weights.shape[0], noise.Purpose.RESIDUAL)
        token = Greedy().select(trials.residual + gumbel)
        shares = trials.probabilities
        if self.fault == "double removal":
            left = 1.0 - (jnp.cumsum(mass) - mass)
            shares = jnp.where(left > 0, mass / jnp.maximum(left, 1e-9), 1.0)
        elif self.fault == "missing renormalisation":
            shares = mass
        else:
            assert self.fault == "reused uniform"
            first = uniforms[jnp.argmax(is_offered)]
            reached = jnp.cumsum(jax.nn.softmax(trials.residual)) <= first
            last = weights.shape[0] - 1
            reused = jnp.minimum(jnp.sum(reached, dtype=jnp.int32), last)
            token = jnp.where(jnp.any(is_offered), reused, token)
        passes = (trials.probabilities > 0) & (uniforms < shares)
        return jnp.where(jnp.any(passes), offered[jnp.argmax(passes)], token)


FAULTY = {
    fault: Planted(top_k=4, method="residual", fault=fault)
    for fault in FAULTS
    if fault != "unfiltered suffixes"
}
COLD = [
    Sample(temperature=0.01),
    Sample(temperature=0.01, method="residual"),
    Sample(temperature=0.0, method="residual"),
]
METHODS = (COUPLED, RESIDUAL)
WAYS = (*METHODS, *COLD, *FAULTY.values())
ALL_WAYS = enumerated.ByKey(WAYS)


@dataclass(frozen=True)
class BothMethods(Sample):
    """The key's second word says which. A `Sample`: the window guesses with its noise."""

    def choose(self, *args):
        _, key, *_ = args
        return jnp.stack([method.choose(*args) for method in METHODS])[key[1]]


OTHER_WAYS = BothMethods(top_k=4)


def unfiltered_parents():
    """Second tokens of all suffixes survive with the second suffix, the likeliest token's."""
    block = build_layout(CONFIG).block
    parents = np.array(block.parents)
    parents[block.depths == 2] = 1 + CONFIG.suffix_length
    return parents


@pytest.mark.parametrize("sampling", [COUPLED, RESIDUAL], ids=lambda s: s.method)
@pytest.mark.parametrize("config", [None, CONFIG, OTHER_CONFIG], ids=["ordinary", "one", "other"])
def test_texts_have_the_target_distribution(config, sampling):
    """`other` lets the window guess with the noise of coupled sampling."""
    run = decode(config, sampling)
    assert p_value(run.tokens) > ALPHA
    assert transition_p_value(run.tokens) > ALPHA
    if config is not None:
        assert np.mean(np.array(run.accepted) > 0) > 0.3
        assert len(set(run.rounds)) > 2
        assert max(run.accepted) >= 2


@pytest.mark.parametrize("config", [CONFIG, OTHER_CONFIG], ids=["one", "other"])
def test_coupled_sampling_writes_ordinary_samplings_text_for_every_seed(config):
    np.testing.assert_array_equal(decode(config, COUPLED).tokens, decode(None, COUPLED).tokens)


def test_samples_of_one_seed_are_independent():
    """Keys that differ in their second word alone, and methods, which have noise of their own."""
    texts = [decode(None, sampling).tokens for sampling in (COUPLED, RESIDUAL)]
    same = np.mean(np.all(texts[0][:, :LENGTH] == texts[1][:, :LENGTH], axis=1))
    expected = np.sum(target() ** 2)
    assert abs(same - expected) < 4 * np.sqrt(expected / COUNT)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_into_the_product_is_caught(fault):
    unfiltered = fault == "unfiltered suffixes"
    run = decode(CONFIG, RESIDUAL if unfiltered else FAULTY[fault], unfiltered)
    assert p_value(run.tokens) < ALPHA


@pytest.mark.parametrize("config", [None, CONFIG], ids=["ordinary", "one"])
@pytest.mark.parametrize("sampling", COLD, ids=["coupled", "residual", "zero"])
def test_temperatures_towards_zero_agree_with_greedy(config, sampling):
    """The two best logits are 0.5 apart: at 0.01 another token has a chance below 1e-21."""
    text = list(PROMPT)
    for _ in range(TOTAL):
        text.append(int(np.argmax(TABLE[text[-2], text[-1]])))
    run = decode(config, sampling)
    assert np.all(run.tokens == text[len(PROMPT) :])
    assert config is None or min(run.accepted) > 0
