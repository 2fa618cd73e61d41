"""Stop strings: texts that end an answer wherever tokens and accepted runs begin and end."""

from __future__ import annotations

from collections.abc import Sequence

from lookahead_jax.text import TextDecoder
from lookahead_jax.typing import Tokenizer


class StopStrings:
    """Lets text through up to the first stop string.

    What could be the beginning of one is held back until it is clear that it is none, so nothing is
    shown that would have to be taken back.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._pending = ""

    def push(self, piece: str, *, last: bool = False) -> tuple[str, str | None]:
        """Takes more text.

        Args:
            piece: The text; nothing may follow a piece that brought a stop string.
            last: Whether the text ends here, so that nothing need be held back.

        Returns:
            The text that may be shown, and the stop string that ended it, if one did. Of several
            the one that is complete first counts, of those the longest. So the result does not
            depend on how the text is cut into pieces.
        """
        text = self._pending + piece
        starts = {stop: text.find(stop) for stop in self._strings}
        found = [(at + len(stop), at, stop) for stop, at in starts.items() if at >= 0]
        if found:
            _, at, stop = min(found)
            self._pending = ""
            return text[:at], stop
        held = 0 if last else max((_overlap(text, stop) for stop in self._strings), default=0)
        self._pending = text[len(text) - held :]
        return text[: len(text) - held], None


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    return next(
        (n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0
    )


class TextWriter:
    """Tokens in, text out, up to a stop string; counts the tokens that belong to the text."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str]) -> None:
        self._decoder = TextDecoder(tokenizer)
        self._stops = StopStrings(stop_strings)
        self._one_by_one = bool(stop_strings)
        self.num_tokens = 0
        self.stop_string: str | None = None

    def push(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """The text that becomes visible; nothing more after a stop string."""
        if not self._one_by_one:
            self.num_tokens += len(tokens)
            return self._decoder.push(tokens, last=last)
        # Which token completes a stop string shows only if they come one at a time.
        shown = []
        for index, token in enumerate(tokens):
            if self.stop_string is not None:
                break
            is_last = last and index == len(tokens) - 1
            piece = self._decoder.push([token], last=is_last)
            visible, self.stop_string = self._stops.push(piece, last=is_last)
            shown.append(visible)
            self.num_tokens += 1
        if last and not tokens and self.stop_string is None:
            visible, self.stop_string = self._stops.push(
                self._decoder.push([], last=True), last=True
            )
            shown.append(visible)
        return "".join(shown)
