"""Every schedule of the package against the oracle, state for state, on the toy model."""

from dataclasses import replace

import fakes
import numpy as np
import pytest
import reference
from oracle_states import (
    draw_tokens,
    jitted_round,
    mirror_refill,
    on_host,
    oracle_settings,
    oracle_view,
    package_view,
    start_batch,
)

from lookahead_jax import LookaheadConfig, WindowAdvance

BATCH = 8
CONFIGS = [
    LookaheadConfig(3, 4, 3),
    LookaheadConfig(3, 4, 3, advance=WindowAdvance.BY_ACCEPTED),
    LookaheadConfig(2, 6, 2, advance=WindowAdvance.BY_ACCEPTED),
    LookaheadConfig(1, 3, 1),
    LookaheadConfig(4, 3, 0),
    LookaheadConfig(5, 3, 4, pool_from_prompt=False, bonus_token=False),
    LookaheadConfig(2, 5, 3, pool_from_output=False, verify_during_warmup=False),
    LookaheadConfig.pinned(4, 4, 2, pool_from_prompt=True),
]


def label(config):
    return "w{window_size}n{ngram_size}g{guess_set_size}-{advance.value}".format_map(vars(config))


def random_task(rng, index):
    """A prompt that the model wrote the end of, a limit, stop tokens; the first is a long one."""
    start = rng.integers(0, fakes.TOY_VOCAB, rng.integers(1, 12)).tolist()
    written = reference.greedy_generate(fakes.toy_next, start, int(rng.integers(0, 20)))
    limit = int(rng.choice([1, 2, 3, 5, 30, 40, 48]))
    stops = rng.integers(0, fakes.TOY_VOCAB, rng.choice([0, 0, 0, 1, 3])).tolist()
    return [*start, *written], limit if index else 48, stops if index else []


@pytest.mark.parametrize("config", CONFIGS, ids=label)
@pytest.mark.parametrize("seed", range(2))
def test_every_state_is_the_oracles(config, seed):
    rng = np.random.default_rng([seed, 77])
    prompts, limits, stops = zip(*(random_task(rng, k) for k in range(BATCH)), strict=True)
    size = config.window_size + config.ngram_size - 3
    given = rng.integers(0, fakes.TOY_VOCAB, (BATCH, size)).tolist() if seed % 2 else None
    first = given or [draw_tokens(prompt, 0, size) for prompt in prompts]
    settings = [oracle_settings(config, *task) for task in zip(limits, stops, strict=True)]
    oracle = [reference.start(*task) for task in zip(settings, prompts, first, strict=True)]
    histograms = np.zeros((BATCH, config.suffix_length + 1), int)
    calls = np.zeros(BATCH, int)
    candidate_calls = np.zeros(BATCH, int)

    state = start_batch(config, prompts, limits, stops, first_levels=given)
    advance = jitted_round(config)
    for index in range(max(limits) + 1):
        host = on_host(state)
        for i, expected in enumerate(oracle):
            assert package_view(config, host, i) == oracle_view(config, expected), (index, i)
            assert host.cache.length[i] == host.sequences.length[i] - 1
        np.testing.assert_array_equal(host.accepted_histogram, histograms)
        np.testing.assert_array_equal(host.rounds, calls)
        np.testing.assert_array_equal(host.candidate_rounds, candidate_calls)
        if all(expected.finished for expected in oracle):
            break
        for i, before in enumerate(oracle):
            if before.finished:
                continue
            record = reference.lookahead_round(
                fakes.toy_next, settings[i], before, mirror_refill(config, int(calls[i]))
            )
            oracle[i] = record.after
            histograms[i, len(record.emitted) - 1] += 1
            calls[i] += 1
            candidate_calls[i] += bool(record.candidates)
        state = advance(state, fakes.HEALTHY)

    for i, expected in enumerate(oracle):
        assert expected.finished
        text = reference.greedy_generate(fakes.toy_next, prompts[i], limits[i], tuple(stops[i]))
        assert expected.output == text
    if config.guess_set_size and config.max_accepted > 1:
        assert histograms[:, 2:].any(), "these tasks were to accept several tokens a round"


def test_oracle_has_something_to_say_about_refills():
    """The mirror of the package's draws is a part of the comparison above, so it must matter."""
    config = replace(CONFIGS[1], pool_from_prompt=False)
    settings = oracle_settings(config, 40)
    first = [0] * (config.window_size + config.ngram_size - 3)
    ends = set()
    for refill in (reference.repeat_last, mirror_refill(config, 3)):
        run = reference.lookahead_generate(fakes.toy_next, [1, 2, 3], settings, first, refill)
        ends.add(tuple(tuple(record.levels[-1] or ()) for record in run.steps))
    assert len(ends) == 2
