"""Tokens to text, bit by bit, without ever showing half a character."""

from __future__ import annotations

from collections.abc import Sequence

from lookahead_jax.typing import Tokenizer

REPLACEMENT = "\ufffd"


class TextDecoder:
    """Incremental detokenisation: the pieces join to the text of all tokens at once.

    A token's text can depend on the one before it (a leading space, a character split over tokens),
    so a piece is the difference of two decodings: of the tokens shown last, without and with the
    new ones. Older tokens need not be decoded again, which keeps a long text linear.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        self._pending: list[int] = []

    def push(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that the tokens add; an unfinished character is held back unless `last`."""
        self._pending += tokens
        before = self._tokenizer.decode(self._shown)
        after = self._tokenizer.decode(self._shown + self._pending)
        if after.endswith(REPLACEMENT) and not last:
            return ""
        piece = after[len(before) :]
        # Special tokens have no text. What stands before them still decides how the next one reads.
        self._shown = self._pending if piece else self._shown + self._pending
        self._pending = []
        return piece
