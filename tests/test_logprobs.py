"""Log-probabilities of the output: what the model's logits say, whichever round wrote a token."""

import math
from dataclasses import replace

import fakes
import numpy as np
import reference

from lookahead_jax import LookaheadConfig, Sample, autoregressive, generate
from lookahead_jax.processors import BannedTokens

CONFIG = LookaheadConfig(3, 4, 3, pool_from_prompt=False)
LIMIT = 40

TOLERANCE = 1e-4
"""Of a log-probability. Logits of the tiny model are sums of 64 products of numbers around 1, taken
in another order by numpy and in blocks of another size: 1e-5, a few times over. A neighbouring row,
another normalisation or a forgotten filter is off by 1e-2 and more."""

FILTERED = Sample(temperature=0.6, top_k=12, top_p=0.9, min_p=0.02, seed=3)


# In plain numpy


def log_softmax(scores):
    scores = np.asarray(scores, np.float64)
    return scores - scores.max() - np.log(np.sum(np.exp(scores - scores.max())))


def filtered(logits):
    """What FILTERED makes of logits of which no two are equal: log-weights."""
    sampling = FILTERED
    scores = np.asarray(logits, np.float64) / sampling.temperature
    order = np.argsort(-scores)
    keep = np.zeros(len(scores), bool)
    keep[order[: sampling.top_k or None]] = True
    scores = np.where(keep, scores, -np.inf)
    p = np.exp(log_softmax(scores))
    reached = np.cumsum(p[order]) - p[order]  # mass of the likelier ones
    keep[order[reached >= sampling.top_p]] = False
    scores = np.where(keep, scores, -np.inf)
    p = np.exp(log_softmax(scores))
    return np.where(p >= sampling.min_p * p.max(), scores, -np.inf)


def recomputed(numpy_tiny, result, weights):
    """(processed, raw) of a result's tokens; `weights` takes logits to log-weights."""
    text = (*result.prompt_tokens, *result.tokens)
    logits = numpy_tiny.logits(text)
    found = []
    for at in range(len(result.prompt_tokens), len(text)):
        row, token = logits[at - 1], text[at]
        found.append((log_softmax(weights(row))[token], log_softmax(row)[token]))
    return np.array(found).T


def assert_close(logprobs, expected):
    np.testing.assert_allclose(logprobs.processed, expected[0], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(logprobs.raw, expected[1], rtol=0, atol=TOLERANCE)


def accepted(results):
    return sum(sum(result.stats.accepted_histogram[1:]) for result in results)


# The tiny model

TINY_PROMPTS = [tuple(range(40, 52)), (5, 17, 99, 3), (64,) * 9]


def write(lm, prompts, call=generate, **options):
    if call is generate:
        options["config"] = CONFIG
    return call(lm, prompts, max_new_tokens=LIMIT, stop_tokens=(), **options)


def test_sampling_with_filters(tiny, numpy_tiny):
    results = write(tiny, TINY_PROMPTS, sampling=FILTERED, logprobs=True)
    ordinary = write(tiny, TINY_PROMPTS, autoregressive.generate, sampling=FILTERED, logprobs=True)
    assert accepted(results), "no token came as an accepted candidate"
    for result, single in zip(results, ordinary, strict=True):
        assert result.tokens == single.tokens
        expected = recomputed(numpy_tiny, result, filtered)
        assert np.isfinite(expected).all(), "a token was written that the filters remove"
        assert_close(result.logprobs, expected)
        assert_close(result.logprobs, (single.logprobs.processed, single.logprobs.raw))
        assert (expected[0] > expected[1] + 0.1).any(), "the filters change nothing here"


# The toy model: one logit is 1 and the others are 0, which makes everything exact

TOY_PROMPTS = [(3, 9, 4), (5,), (7, 7, 8, 1, 7, 7), (20, 3), (11, 12)]
TOTAL = math.log(math.e + fakes.TOY_VOCAB - 1)


def preferences(result):
    """For each token whether it is the one that the model prefers."""
    text = (*result.prompt_tokens, *result.tokens)
    starts = range(len(result.prompt_tokens), len(text))
    return np.array([text[i] == fakes.toy_next(text[:i]) for i in starts])


def test_greedy(toy):
    """A wrong row would not prefer the token; the later prompts are in slots of earlier ones."""
    results = write(toy, TOY_PROMPTS, logprobs=True, batch_size=2)
    assert accepted(results) > 20
    for prompt, result in zip(TOY_PROMPTS, results, strict=True):
        assert result.tokens == reference.greedy_generate(fakes.toy_next, prompt, LIMIT, ())
        assert len(result.logprobs.raw) == LIMIT
        np.testing.assert_allclose(result.logprobs.raw, 1 - TOTAL, rtol=0, atol=1e-5)
        assert result.logprobs.processed == result.logprobs.raw


def test_greedy_with_processors(toy):
    """Processed ones are of the processed logits, raw ones are not."""
    banned = BannedTokens((reference.greedy_generate(fakes.toy_next, TOY_PROMPTS[0], 1, ())[0],))
    results = write(toy, TOY_PROMPTS[:2], processors=[banned], logprobs=True)
    assert accepted(results)
    surprises = 0
    for result in results:
        assert banned.tokens[0] not in result.tokens
        preferred = preferences(result)
        np.testing.assert_allclose(result.logprobs.raw, preferred - TOTAL, rtol=0, atol=1e-5)
        # Of the other tokens one is removed; where it was the preferred one, the rest is equal.
        rest = np.where(preferred, math.e + fakes.TOY_VOCAB - 2, fakes.TOY_VOCAB - 1)
        expected = preferred - np.log(rest)
        np.testing.assert_allclose(result.logprobs.processed, expected, rtol=0, atol=1e-5)
        surprises += sum(~preferred)
    assert 0 < surprises < LIMIT


def test_a_stop_token_and_a_stop_string_have_theirs_too(toy):
    class Letters(fakes.ByteTokenizer):
        def decode(self, tokens):
            return "".join(chr(ord("a") + token) for token in tokens)

    lm = replace(toy, tokenizer=Letters())
    (free,) = write(lm, TOY_PROMPTS[:1], autoregressive.generate, logprobs=True)
    cut = write(
        lm, TOY_PROMPTS[0], autoregressive.generate, logprobs=True, stop_strings=free.text[5:8]
    )
    count = len(cut.tokens)
    assert cut.stop_string == free.text[5:8]
    assert cut.logprobs.raw == free.logprobs.raw[:count]
    assert cut.logprobs.processed == free.logprobs.processed[:count]
    assert len(cut.text) < count < LIMIT


def test_none_where_nobody_asked(toy):
    assert write(toy, TOY_PROMPTS[0], autoregressive.generate).logprobs is None
