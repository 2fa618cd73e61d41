"""Re-verification of finished texts: what it finds, against plain numpy."""

import math
from dataclasses import replace

import fakes
import numpy as np
import pytest

from lookahead_jax import (
    Divergence,
    LookaheadConfig,
    LookaheadError,
    Sample,
    autoregressive,
    check,
    generate,
)
from lookahead_jax.processors import BannedTokens, RepetitionPenalty

CONFIG = LookaheadConfig(3, 3, 3)
PROMPT = (5, 9, 2, 7)
TOLERANCE = 1e-4
"""Logits of the tiny model in two orders of summation; see test_logprobs."""


@pytest.fixture(scope="module")
def written(tiny):
    return generate(tiny, PROMPT, config=CONFIG, max_new_tokens=40, stop_tokens=())


def rows(numpy_tiny, result):
    """Logits that each output token is chosen from."""
    text = (*result.prompt_tokens, *result.tokens)
    return numpy_tiny.logits(text)[len(result.prompt_tokens) - 1 : -1]


def test_a_text_that_was_written_holds(tiny, numpy_tiny, written):
    report = check(tiny, written)
    assert (report.tokens, report.divergences, report.first) == (40, (), None)
    two = np.sort(rows(numpy_tiny, written), axis=-1)[:, -2:]
    margin = (two[:, 1] - two[:, 0]).min()
    assert report.smallest_margin == pytest.approx(margin, abs=TOLERANCE)


@pytest.mark.parametrize("index", [0, 17, 31, 32, 39])
def test_a_changed_token_is_found_with_its_gap(tiny, numpy_tiny, written, index):
    """And what follows it is judged as a continuation of the changed text."""
    tokens = list(written.tokens)
    tokens[index] = (tokens[index] + 1) % tiny.vocab_size
    changed = replace(written, tokens=tuple(tokens))
    report = check(tiny, changed)
    expected = [
        Divergence(i, token, int(row.argmax()), pytest.approx(row.max() - row[token], abs=1e-3))
        for i, (token, row) in enumerate(zip(tokens, rows(numpy_tiny, changed), strict=True))
        if token != row.argmax()
    ]
    assert list(report.divergences) == expected
    assert report.first.index == index
    assert report.first.chosen == written.tokens[index]


def test_options_are_those_of_writing(tiny):
    sampling = Sample(temperature=0.8, top_k=20, top_p=0.9, seed=4)
    options = {"sampling": sampling, "processors": [RepetitionPenalty(1.2), BannedTokens((3,))]}
    first, second = generate(
        tiny, PROMPT, config=CONFIG, n=2, max_new_tokens=34, stop_tokens=(), **options
    )
    assert check(tiny, first, **options).divergences == ()
    assert check(tiny, second, sample=1, **options).divergences == ()
    assert check(tiny, second, **options).divergences
    assert check(tiny, first, **options | {"seeds": [5]}).divergences
    assert check(tiny, first, **options | {"processors": []}).divergences


def test_a_token_that_cannot_be_chosen_is_infinitely_far(tiny, written):
    report = check(tiny, written, processors=[BannedTokens((written.tokens[3],))])
    assert report.first.gap == math.inf


@pytest.mark.parametrize(("prompt_length", "length"), [(1, 1), (2, 32), (300, 33), (16, 64)])
def test_every_length(prompt_length, length):
    """The toy model notices any row that sees too much, too little, or another position."""
    toy = fakes.toy_model()
    prompt = tuple(int(i) % fakes.TOY_VOCAB for i in range(3, 3 + prompt_length))
    result = autoregressive.generate(toy, prompt, max_new_tokens=length, stop_tokens=())
    report = check(toy, result)
    assert (report.tokens, report.divergences) == (length, ())
    wrong = (*result.tokens[:-1], (result.tokens[-1] + 1) % fakes.TOY_VOCAB)
    assert check(toy, replace(result, tokens=wrong)).first.index == length - 1


def test_an_empty_text_has_nothing_to_check(tiny, written):
    report = check(tiny, replace(written, tokens=()))
    assert (report.tokens, report.divergences) == (0, ())


def test_what_cannot_be_checked_is_refused(tiny, written):
    with pytest.raises(LookaheadError, match="draws by the candidates of each round"):
        check(tiny, written, sampling=Sample(method="residual"))
    with pytest.raises(LookaheadError, match="sample must be an integer >= 0, got -1"):
        check(tiny, written, sample=-1)
