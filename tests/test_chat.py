"""Conversations: answers are those to the whole conversation, and only new tokens are read."""

import gc
import itertools
from dataclasses import replace

import fakes
import jax
import pytest
import reference

from lookahead_jax import Chat, LookaheadConfig, LookaheadError, generate

CONFIG = LookaheadConfig(3, 4, 3, pool_from_prompt=False)
LIMIT = 20
ASSISTANT, END = fakes.Letters.ASSISTANT, fakes.Letters.END


class Lossy(fakes.Letters):
    """Two tokens have the same text, so that an answer may be read back as other tokens."""

    TWIN, PLAIN = 9, 8

    def decode(self, tokens):
        return super().decode([self.PLAIN if token == self.TWIN else token for token in tokens])


def model(tokenizer=None, **changes):
    return fakes.toy_model(tokenizer=tokenizer or fakes.Letters(), stop_tokens=(END,), **changes)


@pytest.fixture(scope="module")
def lm():
    return model()


def begin(lm, **options):
    return Chat(lm, **{"config": CONFIG, "max_new_tokens": LIMIT, **options})


def expected(lm, messages, limit=LIMIT):
    """(prompt, answer) of a whole conversation in plain Python."""
    prompt = tuple(lm.tokenizer.encode_chat(messages))
    return prompt, reference.greedy_generate(fakes.toy_next, prompt, limit, (END,))


def user(text):
    return {"role": "user", "content": text}


def say(chat, lm, text):
    """Sends a message, checks the answer, and returns its turn."""
    messages = [*map(dict, chat.messages), user(text)]
    prompt, answer = expected(lm, messages)
    running = chat.send(text)
    shown = "".join(chunk.text for chunk in running)
    turn = chat.turns[-1]
    assert turn.result == running.result
    assert turn.result.prompt_tokens == prompt
    assert turn.prompt_tokens == len(prompt)
    assert turn.result.tokens == answer
    assert shown == turn.result.text == lm.tokenizer.decode(answer)
    assert chat.messages == [*messages, {"role": "assistant", "content": shown}]
    return turn


def shared(a, b):
    """How many tokens two texts begin with together."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


MESSAGES = ["hello", "abcabc", "what", "aaaa"]


def test_answers_of_many_turns_are_exact_and_only_new_tokens_are_read(lm):
    chat = begin(lm)
    written = ()
    turns = [say(chat, lm, text) for text in MESSAGES]
    for turn in turns:
        prompt = turn.result.prompt_tokens
        assert len(prompt) > len(written)
        # Of what was written, the last token is not in the cache yet.
        kept = min(shared(written, prompt), max(len(written) - 1, 0))
        assert kept >= len(written) - 1
        assert turn.read_tokens == len(prompt) - kept
        written = prompt + turn.result.tokens
    assert len(written) > 64, "the state was to grow"
    assert {turn.result.finish_reason for turn in turns} == {"stop", "length"}
    assert chat.turns == turns
    for stats in (turn.result.stats for turn in turns):  # counted anew in every turn
        assert sum(stats.accepted_histogram[1:]) <= stats.candidate_rounds <= stats.rounds
    assert sum(sum(turn.result.stats.accepted_histogram[1:]) for turn in turns) > 10


def test_an_answer_is_that_of_generate_for_the_whole_conversation(lm):
    """In fewer model calls, as the n-grams of earlier answers are still in the pool."""
    chat = begin(lm)
    turn = [say(chat, lm, text) for text in MESSAGES][-1]
    whole = generate(lm, turn.result.prompt_tokens, config=CONFIG, max_new_tokens=LIMIT)
    assert turn.result.tokens == whole.tokens
    assert turn.result.text == whole.text
    assert turn.result.finish_reason == whole.finish_reason
    assert turn.result.stats.rounds < whole.stats.rounds


@pytest.mark.parametrize("rounds_per_chunk", [3, 1000])
def test_the_chunks_do_not_matter(rounds_per_chunk, lm):
    chat = begin(lm, rounds_per_chunk=rounds_per_chunk)
    for text in MESSAGES[:3]:
        say(chat, lm, text)


def test_a_system_message_stands_in_front(lm):
    chat = begin(lm, system="sys")
    running = chat.send("hello")
    list(running)
    system = {"role": "system", "content": "sys"}
    prompt, answer = expected(lm, [system, user("hello")])
    assert running.result.prompt_tokens == prompt
    assert running.result.tokens == answer


def test_an_answer_that_is_read_back_as_other_tokens():
    """The cache is kept up to where they differ, and the answer is exact all the same."""
    lossy = model(Lossy())
    chat = begin(lossy)
    written, differed = (), 0
    for text in MESSAGES[:4]:
        turn = say(chat, lossy, text)
        prompt = turn.result.prompt_tokens
        kept = shared(written, prompt)
        differed += 0 < kept < len(written) - 1
        assert turn.read_tokens >= len(prompt) - kept
        assert turn.read_tokens <= len(prompt) - kept + 1
        written = prompt + turn.result.tokens
    assert differed, "every answer was read back as it was written"


def test_a_stop_string_ends_an_answer_and_the_next_one_is_exact(lm):
    """What the device wrote past the string is in no later turn."""
    answers = {text: lm.tokenizer.decode(expected(lm, [user(text)])[1]) for text in MESSAGES}
    message, text = max(answers.items(), key=lambda item: len(item[1]))
    stop = text[5:7]
    chat = begin(lm, stop_strings=stop, rounds_per_chunk=1000)
    running = chat.send(message)
    assert "".join(chunk.text for chunk in running) == text[: text.index(stop)]
    assert running.result.stop_string == stop
    assert chat.messages[-1] == {"role": "assistant", "content": text[: text.index(stop)]}
    messages = [*chat.messages, user("what")]
    running = chat.send("what")
    list(running)
    prompt, answer = expected(lm, messages)
    assert running.result.prompt_tokens == prompt
    assert running.result.tokens == answer[: len(running.result.tokens)]


# Ending early


def test_closing_an_answer_early_keeps_what_was_written(lm):
    chat = begin(lm)
    say(chat, lm, "hello")
    running = chat.send("abcabc")
    pieces = [chunk.text for chunk in itertools.islice(running, 2)]
    running.close()
    assert chat.messages[-2:] == [
        user("abcabc"),
        {"role": "assistant", "content": "".join(pieces)},
    ]
    assert 0 < len("".join(pieces)) < LIMIT
    say(chat, lm, "what")


def test_leaving_the_loop_keeps_what_was_written(lm):
    chat = begin(lm)
    for chunk in chat.send("hello"):
        piece = chunk.text
        break
    list(chat.send("what"))
    partial = {"role": "assistant", "content": piece}
    assert chat.messages[:-1] == [user("hello"), partial, user("what")]
    prompt, answer = expected(lm, chat.messages[:-1])
    assert chat.turns[-1].result.prompt_tokens == prompt
    assert chat.turns[-1].result.tokens == answer


def test_reset_begins_anew(lm):
    chat = begin(lm, system="sys")
    before = [dict(message) for message in chat.messages]
    list(chat.send("hello"))
    first = chat.turns[0]
    chat.reset()
    assert chat.messages == before
    assert chat.turns == []
    list(chat.send("hello"))
    again = chat.turns[0]
    assert again.result.tokens == first.result.tokens
    assert again.read_tokens == first.read_tokens
    assert again.result.stats.accepted_histogram == first.result.stats.accepted_histogram


def bytes_on_device():
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted())


def test_reset_frees_the_state(lm):
    chat = begin(lm)
    list(chat.send("hello"))
    chat.reset()
    before = bytes_on_device()
    list(chat.send("hello"))
    assert bytes_on_device() > before
    chat.reset()
    assert bytes_on_device() == before


# What is refused


def refusal(call, *args, **options):
    with pytest.raises(LookaheadError) as caught:
        list(call(*args, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_too_long_a_conversation_is_refused_and_left_as_it_was(lm):
    small = replace(lm, max_length=60)
    chat = begin(small)
    say(chat, small, "hello")
    messages, turns = [dict(m) for m in chat.messages], list(chat.turns)
    message = refusal(chat.send, "a" * 30)
    assert "60" in message
    assert chat.messages == messages
    assert chat.turns == turns
    say(chat, small, "a")


@pytest.mark.parametrize("text", ["", "  "], ids=repr)
def test_an_empty_message_is_refused(text, lm):
    chat = begin(lm)
    assert refusal(chat.send, text)
    assert chat.messages == []


def test_a_message_that_is_no_text_is_refused(lm):
    assert "got 5" in refusal(begin(lm).send, 5)


@pytest.mark.parametrize("tokenizer", [fakes.ByteTokenizer(), None], ids=["plain", "none"])
def test_a_model_without_a_chat_template_is_refused(tokenizer):
    lm = replace(fakes.toy_model(), tokenizer=tokenizer)

    def converse():
        return begin(lm).send("hello")

    assert "chat template" in refusal(converse)
