"""The text is the ordinary decoder's, token for token, however it comes about (contract 9)."""

import functools

import fakes
import numpy as np
import pytest
import reference
import trace_files
from oracle_states import (
    TOY,
    jitted_round,
    on_host,
    package_view,
    start_batch,
    with_leftovers,
)

from lookahead_jax import LookaheadConfig, WindowAdvance, autoregressive, generate
from lookahead_jax.batch import CAPACITY_BUCKET

CONFIG = LookaheadConfig(3, 4, 3)
CONFIGS = [CONFIG, LookaheadConfig(3, 4, 3, advance=WindowAdvance.BY_ACCEPTED)]
NO_STOPS: list[int] = []
BATCH = 8


def toy_text(prompt, limit, stops=()):
    return reference.greedy_generate(fakes.toy_next, tuple(prompt), limit, tuple(stops))


def decode(config, prompts, limits, stops=None, batch=BATCH):
    """Runs a batch to its end, checks every round, and returns texts and the last state."""
    count = len(prompts)
    assert count <= batch
    pad = [*range(count), *[0] * (batch - count)]
    stops = [NO_STOPS] * count if stops is None else stops
    state = start_batch(
        config, [prompts[i] for i in pad], [limits[i] for i in pad], [stops[i] for i in pad]
    )
    advance = jitted_round(config)
    emitted = [[] for _ in pad]
    for _ in range(max(limits)):
        before = on_host((state.sequences, state.accepted_histogram))
        state = advance(state, fakes.HEALTHY)
        text, histogram = on_host((state.sequences, state.accepted_histogram))
        assert np.all(text.length <= text.max_length)
        np.testing.assert_array_equal(np.asarray(state.cache.length), text.length - 1)
        for i in range(count):
            old, new = before[0].length[i], text.length[i]
            np.testing.assert_array_equal(text.tokens[i, :old], before[0].tokens[i, :old])
            assert (new == old) == before[0].done[i]
            if new > old:
                emitted[i].append(tuple(text.tokens[i, old:new].tolist()))
                assert (histogram - before[1])[i].tolist() == [
                    int(new - old - 1 == a) for a in range(config.suffix_length + 1)
                ]
    assert np.all(text.done)
    return emitted[:count], on_host(state)


def joined(rounds):
    return tuple(token for tokens in rounds for token in tokens)


# max_new_tokens


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.advance.value)
def test_max_new_tokens_is_exact_around_the_ngram_size(config):
    """1 to N + 3 tokens, from a prompt whose own continuation fills the pool."""
    prompt = (3, *toy_text((3,), 24))
    limits = list(range(1, config.ngram_size + 4))
    rounds, state = decode(config, [prompt] * len(limits), limits)
    for i, limit in enumerate(limits):
        assert joined(rounds[i]) == toy_text(prompt, limit)
        assert state.sequences.length[i] == len(prompt) + limit
    assert max(len(tokens) for run in rounds for tokens in run) == config.ngram_size


# Stop tokens


def cut_runs():
    """Stop tokens at every place of a text, some of them inside what one round accepts."""
    prompt = (3, *toy_text((3,), 20))
    text = toy_text(prompt, 40)
    return prompt, text, sorted(set(text), key=text.index)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.advance.value)
def test_a_stop_token_ends_the_text_wherever_it_comes(config):
    prompt, text, stops = cut_runs()
    inside = 0
    for start in range(0, len(stops), BATCH):
        group = stops[start : start + BATCH]
        rounds, state = decode(
            config, [prompt] * len(group), [40] * len(group), [[stop] for stop in group]
        )
        free, _ = decode(config, [prompt] * len(group), [40] * len(group))
        for i, stop in enumerate(group):
            expected = text[: text.index(stop) + 1]
            assert joined(rounds[i]) == expected
            assert state.sequences.done[i]
            whole = free[i][len(rounds[i]) - 1]
            inside += len(rounds[i][-1]) < len(whole)
    assert inside, "no stop token fell inside an accepted run"


def test_the_first_of_several_stop_tokens_ends_the_text():
    prompt, text, stops = cut_runs()
    late, early = stops[-1], stops[2]
    unused = next(token for token in range(fakes.TOY_VOCAB) if token not in text)
    cases = [[late, early], [early, late], [unused, early, late], [early, early], [unused]]
    rounds, _ = decode(CONFIG, [prompt] * len(cases), [40] * len(cases), cases)
    for stop, run in zip(cases, rounds, strict=True):
        assert joined(run) == toy_text(prompt, 40, stop)
    assert [len(joined(run)) for run in rounds[:4]] == [text.index(early) + 1] * 4
    assert joined(rounds[4]) == text


def test_a_stop_token_as_the_first_one_written():
    prompt, text, _ = cut_runs()
    rounds, state = decode(CONFIG, [prompt], [40], [[text[0]]])
    assert rounds == [[(text[0],)]]
    assert state.rounds[0] == 1


def test_a_stop_token_in_the_prompt_is_a_token_like_others():
    prompt, text, _ = cut_runs()
    unwritten = [token for token in range(fakes.TOY_VOCAB) if token not in text]
    for token in (prompt[-1], prompt[0], unwritten[0]):
        longer = (token, *prompt[1:])
        rounds, _ = decode(CONFIG, [longer], [40], [[token]])
        assert joined(rounds[0]) == toy_text(longer, 40, [token])


# Batches


def different_tasks():
    prompts = [(5,), (7, 7, 8, 1, 7, 7), tuple(range(17)), (3, *toy_text((3,), 28)), (1, 2), (0,)]
    limits = [48, 9, 33, 40, 1, 48]
    stops = [NO_STOPS, NO_STOPS, [toy_text(prompts[2], 33)[20]], [2, 16, 10], NO_STOPS, [6]]
    return prompts, limits, stops


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.advance.value)
def test_a_sequence_in_a_batch_is_what_it_is_alone(config):
    """Text, window, pool and cache, though the others begin and end elsewhere (contract 8)."""
    prompts, limits, stops = different_tasks()
    rounds, state = decode(config, prompts, limits, stops)
    assert len({len(run) for run in rounds}) > 3, "they were to finish at different times"
    for i, task in enumerate(zip(prompts, limits, stops, strict=True)):
        assert joined(rounds[i]) == toy_text(*task)
        alone, own = decode(config, *([x] for x in task), batch=1)
        assert alone[0] == rounds[i]
        assert package_view(config, state, i) == package_view(config, own, 0)
        assert state.rounds[i] == own.rounds[0]
        assert state.accepted_histogram[i].tolist() == own.accepted_histogram[0].tolist()


def test_the_order_of_a_batch_does_not_matter():
    prompts, limits, stops = different_tasks()
    order = [4, 2, 0, 5, 3, 1]
    rounds, state = decode(CONFIG, prompts, limits, stops)
    shuffled, other = decode(
        CONFIG, *([part[i] for i in order] for part in (prompts, limits, stops))
    )
    for place, i in enumerate(order):
        assert shuffled[place] == rounds[i]
        assert package_view(CONFIG, other, place) == package_view(CONFIG, state, i)


# The public functions, on both models.


def test_generate_is_autoregressive_generate_on_the_toy_model(toy):
    prompts = [(5,), (7, 7, 8, 1, 7, 7), tuple(range(17)), (1, 2)]
    ordinary = autoregressive.generate(toy, prompts, max_new_tokens=50, stop_tokens=[11, 22])
    ahead = generate(toy, prompts, config=CONFIG, max_new_tokens=50, stop_tokens=[11, 22])
    for prompt, a, b in zip(prompts, ordinary, ahead, strict=True):
        assert a.tokens == b.tokens == toy_text(prompt, 50, (11, 22))
        assert a.finish_reason == b.finish_reason
        assert a.prompt_tokens == b.prompt_tokens == prompt
        assert b.stats.rounds <= a.stats.rounds == len(a.tokens)
        assert sum(b.stats.accepted_histogram) == b.stats.rounds
        written = sum((a + 1) * n for a, n in enumerate(b.stats.accepted_histogram))
        assert written == len(b.tokens)
        assert b.stats.tokens_per_round == len(b.tokens) / b.stats.rounds
    assert min(b.stats.rounds / a.stats.rounds for a, b in zip(ordinary, ahead, strict=True)) < 0.6


def test_long_prompts_are_read_in_chunks(toy):
    """Around the largest chunk, in one batch with a prompt that is read before the others."""
    rng = np.random.default_rng(0)
    lengths = [255, 5, 256, 257, 258, 512, 513, 600]
    prompts = [tuple(rng.integers(0, fakes.TOY_VOCAB, n).tolist()) for n in lengths]
    results = generate(toy, prompts, config=CONFIG, max_new_tokens=6)
    assert [r.tokens for r in results] == [toy_text(prompt, 6) for prompt in prompts]


def test_a_text_and_its_overhang_may_fill_the_capacity_to_the_last_place(toy):
    """125 tokens and an overhang of 3 in two buckets of 64 (contract 2)."""
    prompt = (3, *toy_text((3,), 79))
    assert len(prompt) + 45 + CONFIG.suffix_length == 2 * CAPACITY_BUCKET
    result = generate(toy, prompt, config=CONFIG, max_new_tokens=45)
    assert result.tokens == toy_text(prompt, 45)
    assert result.stats.accepted_histogram[-1]


@functools.cache
def recorded_texts():
    """Greedy outputs of the tiny model by prompt, as the official code had them."""
    texts = {}
    for trace in trace_files.traces("tiny").values():
        if trace["mode"] == "greedy" and trace["eos_token_id"] is not None:
            entry = (trace["prompt_ids"], trace["final"]["output_ids"])
            known = texts.setdefault(trace["prompt_name"], entry)
            if len(entry[1]) > len(known[1]):
                texts[trace["prompt_name"]] = entry
    return texts


TINY_TOKENS = 48


@pytest.fixture(scope="module")
def tiny_ordinary(tiny):
    prompts = [prompt for prompt, _ in recorded_texts().values()]
    return autoregressive.generate(
        tiny, prompts, max_new_tokens=TINY_TOKENS, stop_tokens=tiny.stop_tokens or (2,)
    )


def test_ordinary_decoding_gives_the_recorded_texts(tiny_ordinary):
    stopped = 0
    for (_, text), result in zip(recorded_texts().values(), tiny_ordinary, strict=True):
        assert list(result.tokens) == text[:TINY_TOKENS][: len(result.tokens)]
        assert len(result.tokens) == min(len(text), TINY_TOKENS)
        stopped += result.finish_reason == "stop"
    assert stopped


@pytest.mark.parametrize(
    "config",
    [
        LookaheadConfig(7, 5, 7),
        LookaheadConfig(2, 3, 4, advance=WindowAdvance.BY_ACCEPTED, pool_from_prompt=False),
    ],
    ids=str,
)
def test_lookahead_gives_the_recorded_texts(config, tiny, tiny_ordinary):
    prompts = [prompt for prompt, _ in recorded_texts().values()]
    results = generate(
        tiny,
        prompts,
        config=config,
        max_new_tokens=TINY_TOKENS,
        stop_tokens=tiny.stop_tokens or (2,),
    )
    for ordinary, ahead in zip(tiny_ordinary, results, strict=True):
        assert ahead.tokens == ordinary.tokens
        assert ahead.finish_reason == ordinary.finish_reason
    assert sum(sum(r.stats.accepted_histogram[1:]) for r in results)


def test_leftovers_in_the_cache_do_not_matter():
    """The toy model would notice; other leftovers than zeros are put behind every prefix."""
    prompts, limits = [(5,), (1, 2, 3)], [40, 40]
    state = start_batch(CONFIG, [*prompts] * 4, limits * 4, [NO_STOPS] * 8)
    advance = jitted_round(CONFIG, TOY)
    for index in range(40):
        state = with_leftovers(state, [np.nan, 5.0, -3.0][index % 3], [1.0, np.nan, 2.0][index % 3])
        state = advance(state, fakes.HEALTHY)
    for i, prompt in enumerate(prompts):
        text = np.asarray(state.sequences.tokens)[i, len(prompt) :][:40]
        assert tuple(text.tolist()) == toy_text(prompt, 40)
