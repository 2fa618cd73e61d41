"""Stops: the text is cut exactly at a stop string or token, however its pieces come."""

import itertools
from dataclasses import replace

import fakes
import pytest
from fakes import ByteTokenizer
from hypothesis import example, given
from hypothesis import strategies as st

from lookahead_jax import LookaheadConfig, LookaheadError, autoregressive, generate, stream
from lookahead_jax.scheduling import ROUNDS_BETWEEN_LOOKS
from lookahead_jax.stopping import StopStrings

letters = st.text(st.sampled_from("abé😀"), max_size=16)
stop_lists = st.lists(st.text(st.sampled_from("abé😀"), min_size=1, max_size=4), max_size=3)
cut_lists = st.lists(st.integers(0, 16), max_size=8)


def earliest(text, strings):
    """What stands before the match that is complete first, and the match: letter by letter."""
    for end in range(1, len(text) + 1):
        complete = [string for string in strings if text[:end].endswith(string)]
        if complete:
            match = max(complete, key=len)
            return text[: end - len(match)], match
    return text, None


def pieces_of(text, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def shown(strings, pieces):
    """The pieces that may be shown, and the match; nothing is pushed after a match."""
    stops, visible = StopStrings(tuple(strings)), []
    for index, piece in enumerate(pieces):
        text, match = stops.push(piece, last=index == len(pieces) - 1)
        visible.append(text)
        if match is not None:
            return visible, match
    return visible, None


# The strings alone


@given(letters, stop_lists, cut_lists)
@example("aab", ["ab"], [2])
@example("aaab", ["aab"], [1, 2, 3])
@example("abab", ["abb", "ba"], [1, 2, 3])
@example("aba", ["b", "aba"], [])
@example("baba", ["ba", "aba"], [2])
def test_any_pieces_give_the_same_text_and_the_same_match(text, strings, cuts):
    visible, match = shown(strings, pieces_of(text, cuts))
    assert ("".join(visible), match) == earliest(text, strings)


@given(letters, stop_lists, cut_lists)
def test_nothing_is_shown_that_could_still_be_cut_off_and_nothing_else_is_held_back(
    text, strings, cuts
):
    pieces = pieces_of(text, cuts)
    stops, seen, visible = StopStrings(tuple(strings)), "", ""
    for piece in pieces:
        more, match = stops.push(piece)
        seen, visible = seen + piece, visible + more
        if match is not None:
            return
        starts = [s[:n] for s in strings for n in range(1, len(s)) if seen.endswith(s[:n])]
        assert visible == seen[: len(seen) - max(map(len, starts), default=0)]


def test_the_end_releases_what_was_held_back():
    stops = StopStrings(("<end>",))
    assert stops.push("text <en") == ("text ", None)
    assert stops.push("d", last=True) == ("<end", None)


def test_a_beginning_that_comes_to_nothing_is_shown():
    stops = StopStrings(("<end>",))
    assert stops.push("a<e") == ("a", None)
    assert stops.push("<e") == ("<e", None)
    assert stops.push("nd>x") == ("", "<end>")


def test_without_strings_everything_is_shown():
    assert StopStrings(()).push("abc") == ("abc", None)


# In generations: a reciter whose characters are one to four tokens

TEXT = "aé€😀 b,"
WHOLE = (TEXT * 40).encode()
PROMPT = TEXT * 2
START = len(PROMPT.encode())
CONFIG = LookaheadConfig(3, 4, 3)
LIMIT = 60


@pytest.fixture(scope="module")
def reciter():
    """It never writes its stop tokens; with as many others the programs are the same."""
    return fakes.script_model(TEXT, stop_tokens=(0, 1, 2))


def ask(lm, strings=(), prompt=PROMPT, num_tokens=LIMIT, decode=generate, **options):
    if decode is generate:
        options["config"] = CONFIG
    return decode(lm, prompt, max_new_tokens=num_tokens, stop_strings=strings, **options)


def expected(strings, num_tokens=LIMIT, start=START):
    """(text, match, number of tokens): tokens are bytes, one shows a character with its last."""
    free = WHOLE[start : start + num_tokens].decode(errors="ignore")
    text, match = earliest(free, strings)
    if match is None:
        return WHOLE[start : start + num_tokens].decode(errors="replace"), None, num_tokens
    return text, match, len((text + match).encode())


def check(result, strings, num_tokens=LIMIT):
    text, match, count = expected(strings, num_tokens, len(result.prompt_tokens))
    start = len(result.prompt_tokens)
    assert result.text == text
    assert result.stop_string == match
    assert result.tokens == tuple(1 + byte for byte in WHOLE[start : start + count])
    assert result.finish_reason == ("length" if match is None else "stop")


EVERY_STRING = sorted({(TEXT * 2)[i : i + n] for i in range(len(TEXT)) for n in (1, 2, 3, 9)})


@pytest.fixture(scope="module")
def rounds(reciter):
    """What each round of the uncut text emits, as slices of the output."""
    running = stream(reciter, PROMPT, config=CONFIG, max_new_tokens=LIMIT)
    ends = list(itertools.accumulate(len(chunk.tokens) for chunk in running))
    return list(itertools.pairwise([0, *ends]))


def test_the_text_is_cut_exactly_wherever_the_string_stands_in_accepted_runs(reciter, rounds):
    straddling = inside = 0
    for string in EVERY_STRING:
        result = ask(reciter, string)
        check(result, [string])
        begin, end = len(result.text.encode()), len(result.tokens)
        straddling += any(begin < edge < end for _, edge in rounds)
        (last,) = (r for r in rounds if r[0] < end <= r[1])
        inside += end < last[1]
        # The host looks every few rounds, and no round is run after it has found the string.
        needed = 1 + rounds.index(last)
        assert needed <= result.stats.rounds < needed + ROUNDS_BETWEEN_LOOKS
    assert straddling, "no string lay across two rounds"
    assert inside, "no string ended inside an accepted run"


@pytest.mark.parametrize(
    "strings",
    [["€😀", "é"], ["b, a", " b"], ["😀 b", "€😀 x", ","], ["never", "b,a"], ["never"]],
    ids=repr,
)
def test_of_several_strings_the_first_one_that_is_complete_ends_the_text(strings, reciter):
    for order in (strings, strings[::-1]):
        result = ask(reciter, order)
        check(result, strings)
        ordinary = ask(reciter, order, decode=autoregressive.generate)
        assert ordinary.tokens == result.tokens
        assert ordinary.text == result.text
        assert ordinary.stop_string == result.stop_string
        assert ordinary.finish_reason == result.finish_reason


def test_a_string_that_the_prompt_begins_does_not_count(reciter):
    """The output alone is searched."""
    result = ask(reciter, ",a")
    check(result, [",a"])
    assert result.text.startswith("aé")


def test_a_half_character_at_the_end_is_as_without_stop_strings(reciter):
    for num_tokens in range(56, 60):
        result = ask(reciter, "never", num_tokens=num_tokens)
        check(result, ["never"], num_tokens)


def test_a_stop_token_before_and_after_a_stop_string(reciter):
    space, comma = 1 + ord(" "), 1 + ord(",")
    before = ask(reciter, "b,a", stop_tokens=[space] * 3)
    assert before.tokens[-1] == space
    assert (before.stop_string, before.finish_reason) == (None, "stop")
    after = ask(reciter, " b", stop_tokens=[comma] * 3)
    assert (after.stop_string, after.finish_reason) == (" b", "stop")
    assert after.text == "aé€😀"


def test_the_first_of_several_stop_tokens_ends_the_text(reciter):
    space, comma, unused = 1 + ord(" "), 1 + ord(","), 1 + ord("z")
    for stops in ([space, comma, unused], [unused, comma, space]):
        result = ask(reciter, stop_tokens=stops)
        assert result.tokens.index(space) == len(result.tokens) - 1
        ordinary = ask(reciter, stop_tokens=stops, decode=autoregressive.generate)
        assert ordinary.tokens == result.tokens
        assert result.finish_reason == "stop"
        assert result.stop_string is None


# Batches


def test_each_sequence_of_a_batch_ends_where_it_would_alone(reciter):
    """Prompts that end at other places of the text, so that their strings come at other times."""
    prompts = [list(ByteTokenizer().encode(PROMPT))[:length] for length in (19, 23, 24, 26)]
    strings = ["é€", "b,a", "never"]
    results = ask(reciter, strings, prompts)
    for result in results:
        check(result, strings)
        alone = ask(reciter, strings, list(result.prompt_tokens))
        assert replace(alone, stats=None) == replace(result, stats=None)
    assert len({len(result.tokens) for result in results}) > 2
    ordinary = ask(reciter, strings, prompts, decode=autoregressive.generate, batch_size=1)
    assert [r.tokens for r in ordinary] == [r.tokens for r in results]
    assert [r.stop_string for r in ordinary] == [r.stop_string for r in results]


def test_the_rounds_stop_when_every_sequence_has_stopped(reciter):
    prompts = [PROMPT] * 4
    free = ask(reciter, (), prompts)
    stopped = ask(reciter, "é€", prompts)
    assert {len(result.tokens) for result in stopped} == {6}
    assert {result.stats.rounds for result in stopped} == {ROUNDS_BETWEEN_LOOKS}
    assert all(result.stats.rounds > 2 * ROUNDS_BETWEEN_LOOKS for result in free)


# What is refused

CALLS = pytest.mark.parametrize(
    "call", [generate, stream, autoregressive.generate], ids=lambda c: c.__name__ + c.__module__
)


def refusal(call, *args, **options):
    with pytest.raises(LookaheadError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@CALLS
@pytest.mark.parametrize("strings", ["", [""], ["a", ""]], ids=repr)
def test_an_empty_stop_string(call, strings, reciter):
    assert refusal(call, reciter, "abc", stop_strings=strings).startswith("stop_strings ")


@CALLS
@pytest.mark.parametrize("strings", [3, [3], ["a", None], b"ab", [b"a"], None], ids=repr)
def test_stop_strings_of_a_wrong_type(call, strings, reciter):
    message = refusal(call, reciter, "abc", stop_strings=strings)
    assert message.startswith("stop_strings ")
    assert "got " in message


@CALLS
def test_stop_strings_of_a_model_without_a_tokenizer(call, toy):
    message = refusal(call, toy, [1, 2], stop_strings=["a"])
    assert "tokenizer" in message
    assert "toy" in message


def test_a_text_model_without_its_tokenizer_still_runs_without_stop_strings(reciter):
    bare = replace(reciter, tokenizer=None)
    result = ask(bare, (), ByteTokenizer().encode(PROMPT))
    assert (result.text, result.stop_string) == (None, None)
    assert result.tokens == ask(reciter).tokens
