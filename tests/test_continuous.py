"""Continuous batches: a long list in a few slots gives what every prompt gives alone."""

import gc
from dataclasses import replace

import fakes
import jax
import numpy as np
import pytest
import reference

from lookahead_jax import (
    LookaheadConfig,
    LookaheadError,
    Sample,
    autoregressive,
    completions,
    generate,
)

CONFIG = LookaheadConfig(3, 4, 3, pool_from_prompt=False)
LIMIT = 40
STOPS = (2, 16)
SAMPLE = Sample(temperature=0.25)


class Letters(fakes.ByteTokenizer):
    """A letter for every token of the toy model; no token is special."""

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, tokens):
        return "".join(chr(ord("a") + token) for token in tokens)


def make_prompts():
    """Lengths from 1 to 16; the texts end at stop tokens after 1 to LIMIT tokens, or do not."""
    rng = np.random.default_rng(3)
    lengths = [5, 1, 16, 2, 9, 3, 12, 1, 7, 4, 16, 6, 2, 11]
    return [tuple(rng.integers(0, fakes.TOY_VOCAB, n).tolist()) for n in lengths]


PROMPTS = make_prompts()


@pytest.fixture(scope="module")
def lm():
    return fakes.toy_model(tokenizer=Letters())


def ask(lm, prompts=PROMPTS, call=generate, **options):
    options = {"max_new_tokens": LIMIT, "stop_tokens": STOPS, **options}
    if call is not autoregressive.generate:
        options.setdefault("config", CONFIG)
    return call(lm, prompts, **options)


def facts(result):
    """What may not depend on the company a prompt is in."""
    return replace(
        result,
        stats=replace(
            result.stats,
            compile_seconds=0,
            prefill_seconds=0,
            decode_seconds=0,
            tokens_per_second=0,
        ),
    )


@pytest.fixture(scope="module")
def alone(lm):
    return [ask(lm, prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def sampled(lm):
    """Every prompt with a seed of its own, eight at a time."""
    return ask(lm, sampling=SAMPLE, seeds=SEEDS)


SEEDS = [7 * i for i in range(len(PROMPTS))]


def test_the_prompts_end_at_different_times(alone):
    assert len(PROMPTS) >= 13
    assert len({result.stats.rounds for result in alone}) > 6
    assert {result.finish_reason for result in alone} == {"stop", "length"}
    for prompt, result in zip(PROMPTS, alone, strict=True):
        assert result.tokens == reference.greedy_generate(fakes.toy_next, prompt, LIMIT, STOPS)
    assert sum(sum(result.stats.accepted_histogram[1:]) for result in alone) > 20


@pytest.mark.parametrize("batch_size", [1, 2])
def test_every_result_is_what_the_prompt_gives_alone_in_the_order_of_the_prompts(
    batch_size, lm, alone
):
    results = ask(lm, batch_size=batch_size)
    assert [result.prompt_tokens for result in results] == PROMPTS
    assert list(map(facts, results)) == list(map(facts, alone))


def test_sampled_results_are_those_of_the_prompts_alone_in_slots_of_any_number(lm, sampled):
    ordinary = [
        ask(lm, prompt, autoregressive.generate, sampling=replace(SAMPLE, seed=seed))
        for prompt, seed in zip(PROMPTS, SEEDS, strict=True)
    ]
    assert [result.tokens for result in sampled] == [result.tokens for result in ordinary]
    assert sum(sum(result.stats.accepted_histogram[1:]) for result in sampled) > 8
    results = ask(lm, sampling=SAMPLE, seeds=SEEDS, batch_size=3)
    assert [result.prompt_tokens for result in results] == PROMPTS
    assert list(map(facts, results)) == list(map(facts, sampled))


def test_the_ordinary_decoder_takes_long_lists_too(lm, sampled):
    decode = autoregressive.generate
    results = ask(lm, call=decode, batch_size=1, sampling=SAMPLE, seeds=SEEDS)
    assert [result.tokens for result in results] == [result.tokens for result in sampled]
    assert [result.stats.rounds for result in results] == [len(r.tokens) for r in sampled]


def test_stop_strings_in_a_long_list(lm):
    """Their ends are found by the host, between rounds, and their slots are refilled too."""
    strings = ["re", "gu", "b", "mm"]
    options = {"stop_strings": strings, "stop_tokens": [23, 23]}
    results = ask(lm, batch_size=2, **options)
    assert len({result.stop_string for result in results}) > 2
    for prompt, result in zip(PROMPTS, results, strict=True):
        single = ask(lm, prompt, **options)
        # How many rounds more were run before the host looked depends on the others.
        assert replace(single, stats=None) == replace(result, stats=None)


def test_validation_of_every_round_and_one_program_for_the_whole_list(lm, alone):
    """The round is traced for the slots and not for the prompts, whatever their lengths."""
    model = replace(lm, forward=fakes.ToyForward("continuous"))
    results = ask(model, batch_size=2, validate=True)
    assert list(map(facts, results)) == list(map(facts, alone))

    traces = list(model.forward.traces)
    assert traces.count(CONFIG.num_rows) == 1
    assert len(traces) == 3, "one program each to start, to admit and for the round"
    ask(model, PROMPTS[3:9], batch_size=2, validate=True)
    assert model.forward.traces == traces


# The order of finishing


def finish_times(rounds, batch_size):
    """When each prompt is done if a slot is refilled as soon as it is free, in rounds."""
    slots, times = [0] * batch_size, []
    for needed in rounds:
        slot = slots.index(min(slots))
        slots[slot] += needed
        times.append(slots[slot])
    return times


@pytest.mark.parametrize("batch_size", [1, 2])
def test_results_come_as_they_finish_and_every_one_once(batch_size, lm, alone):
    times = finish_times([result.stats.rounds for result in alone], batch_size)
    order = []
    for index, result in ask(lm, call=completions, batch_size=batch_size):
        assert facts(result) == facts(alone[index])
        order.append(index)
    assert sorted(order) == list(range(len(PROMPTS)))
    assert [times[index] for index in order] == sorted(times)


def test_a_long_text_does_not_hold_up_the_short_ones(lm, alone):
    by_rounds = sorted(range(len(PROMPTS)), key=lambda i: alone[i].stats.rounds)
    longest, short = by_rounds[-1], by_rounds[:4]
    assert sum(alone[i].stats.rounds for i in short) < alone[longest].stats.rounds
    prompts = [PROMPTS[i] for i in (longest, *short)]
    order = [index for index, _ in ask(lm, prompts, call=completions, batch_size=2)]
    assert order == [1, 2, 3, 4, 0]


# Seeds and samples


def test_the_same_prompt_with_other_seeds(lm, sampled):
    prompts = [PROMPTS[2]] * 8
    texts = [result.tokens for result in ask(lm, prompts, sampling=SAMPLE, seeds=range(8))]
    assert len(set(texts)) > 4
    same = [result.tokens for result in ask(lm, prompts, sampling=replace(SAMPLE, seed=5))]
    assert set(same) == {texts[5]}
    company = ask(lm, [*PROMPTS[:2], PROMPTS[2]] * 3, sampling=SAMPLE, seeds=[3, 4, 5] * 3)
    assert company[2].tokens == texts[5]


def test_samples_of_a_prompt_are_distinct_and_the_same_in_any_company(lm):
    five = ask(lm, PROMPTS[:3], sampling=SAMPLE, n=5)
    assert [len(samples) for samples in five] == [5] * 3
    for prompt, samples in zip(PROMPTS, five, strict=False):
        assert {sample.prompt_tokens for sample in samples} == {prompt}
    assert len({sample.tokens for sample in five[0]}) == 5

    three = ask(lm, PROMPTS, sampling=SAMPLE, n=3)
    for many, few in zip(five, three, strict=False):
        assert list(map(facts, many[:3])) == list(map(facts, few))
    single = ask(lm, PROMPTS[0], sampling=SAMPLE, n=3, batch_size=3)
    assert list(map(facts, single)) == list(map(facts, three[0]))


def test_one_sample_is_the_text_without_n(lm):
    without = ask(lm, PROMPTS[:3], sampling=SAMPLE)
    samples = ask(lm, PROMPTS[:3], sampling=SAMPLE, n=1)
    assert [only.tokens for (only,) in samples] == [result.tokens for result in without]


def test_completions_count_samples_prompt_by_prompt(lm):
    expected = ask(lm, PROMPTS[:3], sampling=SAMPLE, n=3)
    found = dict(ask(lm, PROMPTS[:3], completions, sampling=SAMPLE, n=3))
    assert sorted(found) == list(range(9))
    for index, result in found.items():
        assert facts(result) == facts(expected[index // 3][index % 3])


def test_greedy_samples_are_all_the_same(lm, alone):
    samples = ask(lm, PROMPTS[2], n=4, batch_size=2)
    assert [facts(sample) for sample in samples] == [facts(alone[2])] * 4


# The end, and what is refused


def bytes_on_device():
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted())


def test_closing_the_iterator_frees_the_state(lm):
    ask(lm, batch_size=2)
    before = bytes_on_device()
    iterator = ask(lm, call=completions, batch_size=2)
    next(iterator)
    assert bytes_on_device() > before
    iterator.close()
    assert bytes_on_device() == before
    assert list(iterator) == []


def test_leaving_the_loop_frees_the_state(lm):
    ask(lm, batch_size=2)
    before = bytes_on_device()
    for _ in ask(lm, call=completions, batch_size=2):
        break
    assert bytes_on_device() == before


def refusal(call, *args, **options):
    with pytest.raises(LookaheadError) as caught:
        list(call(*args, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


CALLS = pytest.mark.parametrize(
    "call", [generate, completions, autoregressive.generate], ids=["ahead", "each", "ordinary"]
)


@CALLS
@pytest.mark.parametrize("value", [0, -1, True, 2.0, "8", None], ids=repr)
def test_a_batch_size_that_cannot_be(call, value, lm):
    message = refusal(call, lm, PROMPTS, batch_size=value)
    assert message == f"batch_size must be an integer >= 1, got {value!r}"


@CALLS
@pytest.mark.parametrize("value", [0, -1, True, 2.0, "8"], ids=repr)
def test_a_number_of_samples_that_cannot_be(call, value, lm):
    assert refusal(call, lm, PROMPTS, n=value) == f"n must be an integer >= 1, got {value!r}"


@CALLS
@pytest.mark.parametrize("seeds", [[], [1], [1] * 15], ids=len)
def test_seeds_of_a_wrong_number(call, seeds, lm):
    message = refusal(call, lm, PROMPTS, sampling=SAMPLE, seeds=seeds)
    assert message.startswith("seeds ")
    assert "14" in message
    assert str(len(seeds)) in message


@CALLS
@pytest.mark.parametrize("seeds", [5, 3.0, {1, 2}], ids=repr)
def test_seeds_that_are_no_list(call, seeds, lm):
    message = refusal(call, lm, PROMPTS[:2], sampling=SAMPLE, seeds=seeds)
    assert message.startswith("seeds ")
    assert message.endswith(repr(seeds))


@CALLS
@pytest.mark.parametrize("bad", [-1, 1 << 32, 1.0, True, "a", None], ids=repr)
def test_a_seed_that_cannot_be(call, bad, lm):
    message = refusal(call, lm, PROMPTS[:2], sampling=SAMPLE, seeds=[1, bad])
    assert message.startswith("seed")
    assert message.endswith(repr(bad))


@CALLS
def test_one_bad_prompt_of_many_is_found_before_any_is_decoded(call, lm):
    message = refusal(call, lm, [*PROMPTS, (99,)])
    assert message.startswith("a prompt's token ids must be integers in [0, 24)")


def test_a_text_is_no_list_of_its_letters(lm):
    assert "got 'abc'" in refusal(completions, lm, "abc")
