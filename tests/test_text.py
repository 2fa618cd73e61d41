"""Streaming text: pieces join to the whole, and none shows half a character."""

import itertools

import fakes
import pytest
from fakes import ByteTokenizer, WordTokenizer
from hypothesis import given
from hypothesis import strategies as st

from lookahead_jax.text import REPLACEMENT, TextDecoder

texts = st.text(st.sampled_from("ab é€😀\u0301\n"), max_size=20)


def pieces_of(tokenizer, tokens, cuts):
    """The pieces that a stream shows of tokens that come in parts."""
    decoder = TextDecoder(tokenizer)
    edges = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
    parts = [tokens[a:b] for a, b in itertools.pairwise(edges)]
    return [decoder.push(part, last=i == len(parts) - 1) for i, part in enumerate(parts)]


@given(texts, st.lists(st.integers(0, 60), max_size=12))
def test_pieces_join_and_are_whole_characters(text, cuts):
    tokenizer = ByteTokenizer()
    pieces = pieces_of(tokenizer, tokenizer.encode(text), cuts)
    assert "".join(pieces) == text
    assert not any(REPLACEMENT in piece for piece in pieces)


@given(texts, st.lists(st.integers(0, 60), max_size=12), st.data())
def test_special_tokens_add_nothing_wherever_they_are(text, cuts, data):
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(text)
    for _ in range(data.draw(st.integers(0, 3))):
        tokens.insert(data.draw(st.integers(0, len(tokens))), 0)
    assert "".join(pieces_of(tokenizer, tokens, cuts)) == text


@given(st.lists(st.integers(0, 256), max_size=20), st.lists(st.integers(0, 20), max_size=8))
def test_bytes_that_are_no_text_join_to_what_they_are_as_a_whole(tokens, cuts):
    tokenizer = ByteTokenizer()
    assert "".join(pieces_of(tokenizer, tokens, cuts)) == tokenizer.decode(tokens)


@given(
    st.lists(st.sampled_from([0, 66, 67, 68]), max_size=12),
    st.lists(st.integers(0, 12), max_size=12),
)
def test_a_tokens_text_may_depend_on_the_one_before_it(tokens, cuts):
    tokenizer = WordTokenizer()
    assert "".join(pieces_of(tokenizer, tokens, cuts)) == tokenizer.decode(tokens)


def test_a_character_comes_with_its_last_token():
    tokenizer = ByteTokenizer()
    decoder = TextDecoder(tokenizer)
    tokens = tokenizer.encode("a😀b")
    assert [decoder.push([token]) for token in tokens] == ["a", "", "", "", "😀", "b"]


def test_an_unfinished_character_at_the_end_is_shown_as_the_whole_text_has_it():
    tokenizer = ByteTokenizer()
    decoder = TextDecoder(tokenizer)
    tokens = tokenizer.encode("a€")[:-1]
    assert decoder.push(tokens[:2]) == ""
    assert "a" + decoder.push(tokens[2:], last=True).removeprefix("a") == tokenizer.decode(tokens)


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_old_tokens_are_not_decoded_again(step):
    """A long text costs as much per token as a short one."""

    class Counting(fakes.ByteTokenizer):
        longest = 0

        def decode(self, tokens):
            self.longest = max(self.longest, len(tokens))
            return super().decode(tokens)

    tokenizer = Counting()
    decoder = TextDecoder(tokenizer)
    tokens = tokenizer.encode("aé€😀" * 50)
    for start in range(0, len(tokens), step):
        decoder.push(tokens[start : start + step])
    assert tokenizer.longest <= 8 * (step + 4) < len(tokens)
