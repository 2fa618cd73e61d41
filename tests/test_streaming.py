"""Streams: the text of `generate` in order and in whole characters, and nothing left behind."""

import gc
import itertools

import fakes
import jax
import pytest

from lookahead_jax import LookaheadConfig, LookaheadError, generate, stream

TEXT = "aé€😀 b,"
PROMPT = TEXT * 2
CONFIG = LookaheadConfig(3, 4, 3)
LIMIT = 60


@pytest.fixture(scope="module")
def reciter():
    """It never writes its stop tokens; there are as many as in test_stopping.py."""
    return fakes.script_model(TEXT, stop_tokens=(0, 1, 2))


def begin(lm, rounds_per_chunk=1, **options):
    return stream(
        lm,
        PROMPT,
        config=CONFIG,
        max_new_tokens=LIMIT,
        rounds_per_chunk=rounds_per_chunk,
        **options,
    )


def whole(lm, **options):
    return generate(lm, PROMPT, config=CONFIG, max_new_tokens=LIMIT, **options)


def bytes_on_device():
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted())


@pytest.fixture
def before(reciter):
    """Bytes on the device when everything that is kept for good is there."""
    list(begin(reciter))
    return bytes_on_device()


# The text


@pytest.mark.parametrize("rounds_per_chunk", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("strings", [(), ("😀 b",), ("b,a", ",aé€😀 b,a"), ("never",), ("é",)])
def test_the_pieces_join_to_the_text(rounds_per_chunk, strings, reciter):
    expected = whole(reciter, stop_strings=strings)
    running = begin(reciter, rounds_per_chunk, stop_strings=strings)
    chunks = list(running)
    assert "".join(chunk.text for chunk in chunks) == expected.text
    assert tuple(token for chunk in chunks for token in chunk.tokens) == expected.tokens
    assert not any("\ufffd" in chunk.text for chunk in chunks[:-1])
    for field in ("text", "tokens", "finish_reason", "stop_string", "prompt_tokens"):
        assert getattr(running.result, field) == getattr(expected, field)
    assert len(chunks) == -(-running.result.stats.rounds // rounds_per_chunk)
    assert all(0 <= chunk.accepted < max(len(chunk.tokens), 1) for chunk in chunks)
    if expected.stop_string is None:
        assert running.result.stats.rounds == expected.stats.rounds
        assert running.result.stats.accepted_histogram == expected.stats.accepted_histogram
        accepted = sum(a * n for a, n in enumerate(expected.stats.accepted_histogram))
        assert sum(chunk.accepted for chunk in chunks) == accepted


@pytest.mark.parametrize("rounds_per_chunk", [1, 3])
def test_every_piece_is_a_piece_of_the_text_in_order(rounds_per_chunk, reciter):
    """Also while a stop string may have begun: nothing is shown that is cut off later."""
    strings = (" b,aé€😀 b,aé€x", "😀 b,aé€😀 !", "b,aé€😀 b,aé€😀 b,aé€😀")
    expected = whole(reciter, stop_strings=strings)
    assert expected.stop_string == strings[2]
    seen = ""
    for chunk in begin(reciter, rounds_per_chunk, stop_strings=strings):
        seen += chunk.text
        assert expected.text.startswith(seen)
    assert seen == expected.text


# The end, and before it


def refusal(running):
    with pytest.raises(LookaheadError) as caught:
        _ = running.result
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_closing_frees_the_state(reciter, before):
    running = begin(reciter)
    chunks = iter(running)
    next(chunks)
    state = bytes_on_device() - before
    assert state > 0, "a state is somewhere"
    running.close()
    assert bytes_on_device() == before
    assert "cancelled" in refusal(running)
    running.close()


def test_closing_before_the_first_chunk_frees_the_state(reciter, before):
    running = begin(reciter)
    running.close()
    assert bytes_on_device() == before
    assert "cancelled" in refusal(running)
    assert list(running) == []


def test_leaving_the_loop_frees_the_state(reciter, before):
    running = begin(reciter)
    for _ in running:
        break
    assert bytes_on_device() == before
    assert "cancelled" in refusal(running)


def test_a_with_block_frees_the_state(reciter, before):
    with begin(reciter) as running:
        assert len(list(itertools.islice(running, 3))) == 3
    assert bytes_on_device() == before
    assert "cancelled" in refusal(running)


def test_an_error_in_the_loop_frees_the_state(reciter, before):
    def read():
        with begin(reciter) as running:
            for _ in running:
                raise ArithmeticError("of the reader")

    with pytest.raises(ArithmeticError, match="of the reader"):
        read()
    assert bytes_on_device() == before


def test_the_end_frees_the_state_and_leaves_the_result(reciter, before):
    running = begin(reciter)
    list(running)
    assert bytes_on_device() == before
    running.close()
    assert running.result.text == whole(reciter).text


def test_a_stop_string_frees_the_state(reciter, before):
    running = begin(reciter, stop_strings="é€")
    list(running)
    assert bytes_on_device() == before
    assert running.result.stop_string == "é€"


def test_a_model_that_raises_keeps_its_error_and_frees_the_state(before):
    """The tokenizer is the part of a model that can be made to raise halfway."""

    class Failing(fakes.ByteTokenizer):
        def decode(self, tokens):
            if len(tokens) > 4:
                raise ArithmeticError("no more")
            return super().decode(tokens)

    lm = fakes.script_model("abcd", Failing(), stop_tokens=(0, 1, 2))
    kept = lm.params.nbytes
    running = stream(lm, PROMPT, config=CONFIG, max_new_tokens=LIMIT)
    with pytest.raises(ArithmeticError, match="no more"):
        list(running)
    assert bytes_on_device() == before + kept
