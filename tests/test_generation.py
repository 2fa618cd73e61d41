"""`generate` and `stream`: prompts in, results out, and one line where that cannot be."""

from dataclasses import replace

import fakes
import numpy as np
import pytest
from fakes import ByteTokenizer, ChatTokenizer

from lookahead_jax import (
    LookaheadConfig,
    LookaheadError,
    autoregressive,
    generate,
    jacobi,
    stream,
)

CONFIG = LookaheadConfig(3, 4, 3)
TEXT = "aé€😀 "
PROMPT = (TEXT * 3).encode()[:28].decode()


@pytest.fixture(scope="module")
def reciter():
    return fakes.script_model(TEXT)


def refusal(call, *args, **options):
    """The one line that a call is refused with."""
    with pytest.raises(LookaheadError) as caught:
        call(*args, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message
    return message


ALL = pytest.mark.parametrize(
    "call", [generate, stream, autoregressive.generate, jacobi.generate], ids=lambda c: c.__module__
)


# What is refused, before anything is compiled.


@ALL
@pytest.mark.parametrize("prompt", [[], "", "  \n "])
def test_an_empty_prompt(call, prompt, reciter):
    assert refusal(call, reciter, prompt).startswith("the prompt is empty: expected ")


@pytest.mark.parametrize("prompts", [["abc", ""], [[1, 2], []]])
def test_an_empty_prompt_in_a_list(prompts, reciter):
    assert refusal(generate, reciter, prompts).startswith("the prompt is empty")


@ALL
def test_an_empty_list_is_an_empty_prompt(call, reciter):
    assert refusal(call, reciter, []) == "the prompt is empty: expected at least one token"


@ALL
@pytest.mark.parametrize(
    "bad", [-1, 257, 1 << 40, True, 1.0, "a", None, np.int64(-1), np.bool_(True)], ids=repr
)
def test_ids_that_are_none_of_the_model(call, bad, reciter):
    message = refusal(call, reciter, [1, bad])
    assert message.startswith("a prompt's token ids must be integers in [0, 257), got ")
    assert message.endswith(repr(bad))


@ALL
def test_a_prompt_that_fills_the_context(call, reciter):
    message = refusal(call, reciter, [1] * 512, max_new_tokens=1)
    assert "the prompt has 512 tokens" in message
    assert "holds 512 tokens" in message


@ALL
def test_more_new_tokens_than_the_context_has_room_for(call, reciter):
    message = refusal(call, reciter, [1] * 500, max_new_tokens=13)
    assert "leaves room for 12 new tokens" in message
    assert "max_new_tokens=13" in message


@ALL
@pytest.mark.parametrize("value", [0, -1, True, 1.0, "5", None], ids=repr)
def test_max_new_tokens(call, value, reciter):
    message = refusal(call, reciter, [1], max_new_tokens=value)
    assert message == f"max_new_tokens must be an integer >= 1, got {value!r}"


@ALL
def test_a_system_message_without_a_chat_template(call, reciter):
    assert "needs a chat template" in refusal(call, reciter, "abc", system="be kind")


def test_a_system_message_where_the_template_is_not_used():
    lm = fakes.script_model(TEXT, ChatTokenizer())
    message = refusal(generate, lm, "abc", system="be kind", chat_template=False)
    assert "needs a chat template" in message


@ALL
def test_a_text_for_a_model_without_a_tokenizer(call, toy):
    assert refusal(call, toy, "abc") == (
        "model toy has no tokenizer: expected token ids, got a text prompt"
    )


@ALL
@pytest.mark.parametrize(
    "stops", [[-1], [257], [2.5], [True], ["a"], 3, "ab"], ids=lambda stops: repr(stops)
)
def test_stop_tokens(call, stops, reciter):
    assert refusal(call, reciter, [1], stop_tokens=stops).startswith("stop_tokens must be ")


@pytest.mark.parametrize("value", [0, -1, True, 1.0, None], ids=repr)
def test_rounds_per_chunk(value, reciter):
    message = refusal(stream, reciter, [1], rounds_per_chunk=value)
    assert message == f"rounds_per_chunk must be an integer >= 1, got {value!r}"


@pytest.mark.parametrize("value", [0, -1, True, 2.0, None], ids=repr)
def test_block_size(value, reciter):
    message = refusal(jacobi.generate, reciter, [1], block_size=value)
    assert message == f"block_size must be an integer >= 1, got {value!r}"


# What comes back.


def expected_text(num_tokens, start):
    whole = (TEXT * 50).encode()
    return whole[start : start + num_tokens].decode("utf-8", errors="replace")


def ask(reciter, prompt=PROMPT, num_tokens=40, **options):
    return generate(reciter, prompt, config=CONFIG, max_new_tokens=num_tokens, **options)


def test_a_text_gives_a_result(reciter):
    result = ask(reciter)
    size = len(PROMPT.encode())
    assert result.prompt_tokens == tuple(ByteTokenizer().encode(PROMPT))
    assert result.text == expected_text(40, size)
    assert result.tokens == tuple(1 + byte for byte in (TEXT * 50).encode()[size : size + 40])
    assert result.finish_reason == "length"
    assert result.stats.tokens_per_round > 2


def test_token_ids_of_any_integer_type_are_a_prompt(reciter):
    tokens = ByteTokenizer().encode(PROMPT)
    expected = ask(reciter)
    for prompt in (tokens, tuple(tokens), np.array(tokens), np.array(tokens, np.uint8)):
        if max(tokens) < 256 or np.asarray(prompt).dtype != np.uint8:
            assert ask(reciter, prompt).tokens == expected.tokens


def test_a_list_of_prompts_gives_a_list_of_results(reciter):
    prompts = [PROMPT, "a", "aé"]
    results = ask(reciter, prompts)
    assert [result.prompt_tokens for result in results] == [
        tuple(ByteTokenizer().encode(prompt)) for prompt in prompts
    ]
    assert results[0].tokens == ask(reciter).tokens
    assert isinstance(ask(reciter, ["a"]), list)
    as_ids = ask(reciter, [list(result.prompt_tokens) for result in results])
    assert [result.tokens for result in as_ids] == [result.tokens for result in results]


def test_models_stop_tokens_are_the_default(reciter):
    stop = 1 + ord(" ")
    stopping = replace(reciter, stop_tokens=(stop,))
    result = ask(stopping)
    assert result.finish_reason == "stop"
    assert result.tokens[-1] == stop
    assert result.tokens.count(stop) == 1
    assert ask(stopping, stop_tokens=[]).finish_reason == "length"
    other = ask(stopping, stop_tokens=[1 + ord("a")])
    assert other.tokens[-1] == 1 + ord("a")


def test_a_chat_template_is_used_where_there_is_one():
    lm = fakes.script_model(TEXT, ChatTokenizer())
    encode = lm.tokenizer.encode
    cases = {
        "<user:hi>": {},
        "hi": {"chat_template": False},
        "<system:be kind><user:hi>": {"system": "be kind"},
    }
    for text, options in cases.items():
        assert ask(lm, "hi", **options).prompt_tokens == tuple(encode(text))


@pytest.mark.parametrize("rounds_per_chunk", [1, 2, 5, 1000])
@pytest.mark.parametrize("num_tokens", [40, 38])
def test_a_stream_joins_to_the_text_and_never_shows_half_a_character(
    rounds_per_chunk, num_tokens, reciter
):
    whole = ask(reciter, num_tokens=num_tokens)
    chunks = list(
        stream(
            reciter,
            PROMPT,
            config=CONFIG,
            max_new_tokens=num_tokens,
            rounds_per_chunk=rounds_per_chunk,
        )
    )
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert tuple(token for chunk in chunks for token in chunk.tokens) == whole.tokens
    assert not any("\ufffd" in chunk.text for chunk in chunks[:-1])
    accepted = sum(a * n for a, n in enumerate(whole.stats.accepted_histogram))
    assert sum(chunk.accepted for chunk in chunks) == accepted
    assert len(chunks) == -(-whole.stats.rounds // rounds_per_chunk)


def test_a_streams_result_is_there_at_its_end(reciter):
    running = stream(reciter, PROMPT, config=CONFIG, max_new_tokens=40)
    assert "has not ended" in refusal(lambda: running.result)
    for _ in running:
        assert "has not ended" in refusal(lambda: running.result)
    whole = ask(reciter)
    assert running.result.tokens == whole.tokens
    assert running.result.text == whole.text
    assert running.result.stats.accepted_histogram == whole.stats.accepted_histogram


def test_a_stream_without_a_tokenizer_has_tokens_only(toy):
    chunks = list(stream(toy, [1, 2, 3], config=CONFIG, max_new_tokens=20))
    assert {chunk.text for chunk in chunks} == {None}
    result = generate(toy, [1, 2, 3], config=CONFIG, max_new_tokens=20)
    assert result.text is None
    assert tuple(token for chunk in chunks for token in chunk.tokens) == result.tokens


def test_the_context_can_be_filled_to_the_last_token(reciter):
    result = ask(reciter, [1 + ord("a")] * 500, num_tokens=12)
    assert len(result.prompt_tokens) + len(result.tokens) == reciter.max_length
