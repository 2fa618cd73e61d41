"""Conversations: the cache and the n-gram pool are carried from turn to turn."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Unpack

from lookahead_jax.batch import Batch, Request
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError
from lookahead_jax.generation import check_rounds_per_chunk, lookahead
from lookahead_jax.options import Options, Settings
from lookahead_jax.prompts import check_lengths
from lookahead_jax.results import GenerationResult
from lookahead_jax.streaming import TextStream
from lookahead_jax.typing import LanguageModel


@dataclass(frozen=True)
class TurnStats:
    """What one turn cost.

    Attributes:
        prompt_tokens: Tokens of the conversation before the answer.
        read_tokens: How many of them were read in this turn; the others were in the cache.
        result: The answer, or as much of it as was written before it was cancelled.
    """

    prompt_tokens: int
    read_tokens: int
    result: GenerationResult


class Chat:
    """A conversation with one model.

    Every turn reads only what is new. What the chat template makes of the conversation is compared
    with the tokens in the cache, and from the first difference on (where an answer does not encode
    to the tokens that it was written as) it is read again; so an answer is always the one that the
    whole conversation would get from `generate`.
    """

    def __init__(
        self,
        lm: LanguageModel,
        *,
        config: LookaheadConfig | None = None,
        rounds_per_chunk: int = 1,
        **options: Unpack[Options],
    ) -> None:
        """A conversation without messages.

        Args:
            lm: The model; it needs a chat template.
            config: W, N, G and the schedule; (7, 5, 7) by default.
            rounds_per_chunk: Rounds between two chunks of an answer.
            **options: See `lookahead_jax.options.Options`.

        Raises:
            LookaheadError: If a value is not usable, or the model has no chat template.
        """
        check_rounds_per_chunk(rounds_per_chunk)
        settings = Settings.of(options)
        if lm.tokenizer is None or not lm.tokenizer.has_chat_template:
            raise LookaheadError(f"model {lm.name} has no chat template: expected a chat model")
        if settings.chat_template is False:
            raise LookaheadError("a chat needs the chat template, got chat_template=False")
        self._lm = lm
        self._tokenizer = lm.tokenizer
        self._settings = settings
        self._decoder = lookahead(lm, config, settings)
        self._rounds_per_chunk = rounds_per_chunk
        self._system = settings.system
        self._batch: Batch | None = None
        self._stream: TextStream | None = None
        self._cached: tuple[int, ...] = ()
        self._read_as: Hashable = None
        self.messages: list[dict[str, str]] = []
        self.turns: list[TurnStats] = []
        self.reset()

    def reset(self) -> None:
        """Forgets the conversation, and frees its memory."""
        self._cancel()
        if self._batch is not None:
            self._batch.close()
            self._batch = None
        self._cached = ()
        system = self._system
        self.messages = [] if system is None else [{"role": "system", "content": system}]
        self.turns = []

    def send(self, message: str) -> TextStream:
        """Says something; the answer is streamed.

        An answer that is not read to its end is cut where it was left, and becomes the assistant's
        message like that.

        Raises:
            LookaheadError: If the message is empty or does not fit the context any more; the
                conversation is as before then.
        """
        if not isinstance(message, str) or not message.strip():
            raise LookaheadError(f"expected a message, got {message!r}")
        self._cancel()
        messages = [*self.messages, {"role": "user", "content": message}]
        prompt = tuple(self._tokenizer.encode_chat(messages))
        check_lengths(self._lm, len(prompt), self._settings.max_new_tokens)

        reading = self._reading(len(prompt))
        # Nothing is kept where there is no batch.
        kept = _common(prompt[:-1], self._cached) if reading == self._read_as else 0
        request = Request(prompt[kept:], self._settings.seed(0))
        if self._batch is None:
            batch = Batch(self._lm, self._decoder, self._settings)
            batch.start([request])
            self._batch = batch
        else:
            batch = self._batch
            self._cached = self._cached[:kept]
            batch.extend(kept, request)
        self.messages, self._read_as = messages, reading

        def end(text: str, result: GenerationResult | None) -> None:
            self._stream = None
            self.messages = [*messages, {"role": "assistant", "content": text}]
            if result is None:
                self._batch, self._cached = None, ()
                return
            # The last token is not in the cache yet (specification 0x06B), and what was written
            # past a stop string is no part of the conversation.
            self._cached = (*prompt, *result.tokens)[:-1]
            self.turns.append(TurnStats(len(prompt), len(request.tokens), result))

        self._stream = TextStream(batch, request, self._rounds_per_chunk, prompt=prompt, on_end=end)
        return self._stream

    def _reading(self, prompt_length: int) -> Hashable:
        """What the keys of this turn's text depend on (`LanguageModel.reading`)."""
        if self._lm.reading is None:
            return None
        return self._lm.reading(prompt_length, prompt_length + self._settings.max_new_tokens)

    def _cancel(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _common(tokens: tuple[int, ...], others: tuple[int, ...]) -> int:
    """Length of the common beginning."""
    pairs = zip(tokens, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(others)))
