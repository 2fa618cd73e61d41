"""Coupled sampling: the same seed gives the ordinary decoder's text, however it comes about."""

from dataclasses import replace

import fakes
import numpy as np
import pytest

from lookahead_jax import LookaheadConfig, Sample, WindowAdvance, autoregressive, generate, stream
from lookahead_jax.config import WindowProposals

SAMPLE = Sample(temperature=0.25)
"""The toy model's logits are 0 but for one that is 1: that token has 70 % of the mass."""

CONFIG = LookaheadConfig(3, 4, 3, pool_from_prompt=False)
CONFIGS = {
    "plain": CONFIG,
    "by_accepted_coupled_window": LookaheadConfig(
        4,
        3,
        5,
        advance=WindowAdvance.BY_ACCEPTED,
        pool_from_prompt=False,
        window_proposals=WindowProposals.COUPLED,
    ),
    "official_hashed_coupled_window": replace(
        LookaheadConfig.pinned(2, 5, 2), window_proposals=WindowProposals.COUPLED, pool_slots=17
    ),
}
LIMIT = 40
SEEDS = [0, 1, 2, 3, 2**32 - 1, 12345]


def make_prompts():
    """The last one is a text of the model's own, which then goes on in known n-grams."""
    rng = np.random.default_rng(4)
    prompts = [tuple(rng.integers(0, fakes.TOY_VOCAB, n).tolist()) for n in (5, 1, 16, 3, 9)]
    text = [3]
    while len(text) < 16:
        text.append(fakes.toy_next(tuple(text)))
    return [*prompts, tuple(text)]


PROMPTS = make_prompts()


def write(lm, prompts=PROMPTS, call=generate, sampling=SAMPLE, **options):
    """The shapes are those of test_continuous.py, so that programs are shared."""
    options = {"batch_size": 3, "stop_tokens": (2, 16), "seeds": SEEDS, **options}
    return call(lm, prompts, max_new_tokens=LIMIT, sampling=sampling, **options)


@pytest.fixture(scope="module")
def expected(toy):
    """Every prompt alone, one token a call."""
    return [
        write(toy, prompt, autoregressive.generate, seeds=[seed])
        for prompt, seed in zip(PROMPTS, SEEDS, strict=True)
    ]


def accepted(results):
    return sum(a * n for r in results for a, n in enumerate(r.stats.accepted_histogram))


def test_it_is_sampling(toy, expected):
    """Neither greedy nor the same for all seeds."""
    copies = write(toy, [PROMPTS[0]] * 6, config=CONFIG, seeds=range(6))
    assert len({result.tokens for result in copies}) > 3
    written = [token for result in expected for token in result.tokens]
    preferred = 0
    for result in expected:
        text = (*result.prompt_tokens, *result.tokens)
        start = len(result.prompt_tokens)
        preferred += sum(text[i] == fakes.toy_next(text[:i]) for i in range(start, len(text)))
    # 70 % are expected; three standard deviations are 11 % of 150 tokens.
    assert len(written) > 60
    assert 0.5 < preferred / len(written) < 0.9


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_text_is_the_ordinary_samplers(config, toy, expected):
    results = write(toy, config=config)
    assert [result.tokens for result in results] == [result.tokens for result in expected]
    assert [r.finish_reason for r in results] == [r.finish_reason for r in expected]
    assert accepted(results) > 0
    for result in results:
        assert result.stats.rounds <= len(result.tokens)


def test_the_company_of_a_prompt_does_not_matter(toy, expected):
    """Eight slots, another order, and copies of the same prompt with the same seed."""
    order = [4, 2, 0, 5, 3, 1, 1, 4]
    results = write(
        toy,
        [PROMPTS[i] for i in order],
        config=CONFIG,
        batch_size=8,
        seeds=[SEEDS[i] for i in order],
    )
    assert [r.tokens for r in results] == [expected[i].tokens for i in order]


@pytest.mark.parametrize("rounds_per_chunk", [1, 2, 5, 1000])
def test_the_chunks_of_a_stream_do_not_matter(rounds_per_chunk, toy, expected):
    longest = max(range(len(expected)), key=lambda i: len(expected[i].tokens))
    running = stream(
        toy,
        PROMPTS[longest],
        config=CONFIG,
        max_new_tokens=LIMIT,
        stop_tokens=(2, 16),
        sampling=replace(SAMPLE, seed=SEEDS[longest]),
        rounds_per_chunk=rounds_per_chunk,
    )
    tokens = tuple(token for chunk in running for token in chunk.tokens)
    assert tokens == expected[longest].tokens == running.result.tokens


def test_an_answer_that_is_continued_is_the_same_text(toy, expected):
    """Noise belongs to a place in the whole text: a cut makes no difference."""
    short = [result for result in expected if len(result.prompt_tokens) < 12]
    whole = max(short, key=lambda result: len(result.tokens))
    seed, cut = SEEDS[expected.index(whole)], 4
    assert cut < len(whole.tokens) - 4
    begun = (*whole.prompt_tokens, *whole.tokens[:cut])
    rest = write(toy, [begun] * 3, config=CONFIG, seeds=[seed] * 3)[0]
    count = len(whole.tokens) - cut
    assert rest.tokens[:count] == whole.tokens[cut:]


def test_the_seed_is_no_part_of_the_program(toy):
    texts = []
    for seed in range(3):
        sampling = replace(SAMPLE, seed=seed)
        results = write(toy, sampling=sampling, config=CONFIG, seeds=None)
        texts.append([result.tokens for result in results])
        assert seed == 0 or results[0].stats.compile_seconds == 0
    assert texts[0] != texts[1] != texts[2]


def test_a_real_transformer(tiny):
    """In float32 the rows of a round and single rows differ in the last bits only."""
    sampling = Sample(temperature=0.6, top_k=12, top_p=0.9, min_p=0.02)
    prompts = [tuple(range(40, 52)), (5, 17, 99, 3), (64,) * 9]
    found = 0
    for seeds in ([0, 1, 2], [3, 4, 5]):
        # The same programs as in test_logprobs.py.
        options = {"seeds": seeds, "stop_tokens": (), "logprobs": True, "sampling": sampling}
        ahead = write(tiny, prompts, config=CONFIG, **options)
        single = write(tiny, prompts, autoregressive.generate, **options)
        assert [result.tokens for result in ahead] == [result.tokens for result in single]
        found += accepted(ahead)
    assert found > 0
