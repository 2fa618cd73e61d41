"""SentencePiece BPE as its paper tells it (Kudo and Richardson 2018): a plain loop, for comparison.

Nothing is shared with models/gguf_tokenizer.py, which turns scores into a list of merges for the
tokenizers library; here neighbours are merged by their score, one pair at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

NORMAL, USER_DEFINED, BYTE = 1, 4, 6
SPACE = "\u2581"


class PlainSentencePiece:
    """A vocabulary of a GGUF file's metadata, with no space put in front of a text."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        kinds = ("tokens", "scores", "token_type")
        rows = list(zip(*(metadata[f"tokenizer.ggml.{kind}"] for kind in kinds), strict=True))
        self.ids = {text: i for i, (text, _, kind) in enumerate(rows) if kind == NORMAL}
        self.scores = {text: score for text, score, kind in rows if kind == NORMAL}
        self.whole = {text: i for i, (text, _, kind) in enumerate(rows) if kind == USER_DEFINED}
        self.bytes = {
            int(text[3:5], 16): i for i, (text, _, kind) in enumerate(rows) if kind == BYTE
        }
        self.longest = max((len(text) for text in self.whole), default=0)

    def encode(self, text: str) -> list[int]:
        """Token ids, without a beginning-of-sequence token; control tokens are plain text."""
        ids, run, at = [], "", 0
        while at < len(text):
            size = next(
                (n for n in range(self.longest, 0, -1) if text[at : at + n] in self.whole), 0
            )
            if not size:
                run, at = run + text[at], at + 1
                continue
            ids += [*self._merged(run), self.whole[text[at : at + size]]]
            run, at = "", at + size
        return ids + self._merged(run)

    def _merged(self, run: str) -> list[int]:
        symbols = list(run.replace(" ", SPACE))
        while True:
            pairs = [left + right for left, right in itertools.pairwise(symbols)]
            known = [at for at, pair in enumerate(pairs) if pair in self.scores]
            found = [(-self.scores[pairs[at]], at) for at in known]
            if not found:
                break
            _, at = min(found)
            symbols[at : at + 2] = [pairs[at]]
        ids = []
        for symbol in symbols:
            known = symbol in self.ids
            ids += [self.ids[symbol]] if known else [self.bytes[b] for b in symbol.encode()]
        return ids
