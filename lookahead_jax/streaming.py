"""Text as it comes: one sequence, a few rounds at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from types import TracebackType

from lookahead_jax.batch import Batch, Request
from lookahead_jax.errors import LookaheadError
from lookahead_jax.results import GenerationResult, StreamChunk
from lookahead_jax.stopping import TextWriter


class TextStream:
    """Chunks of one generation as they come; `result` holds the whole of it at the end.

    Leaving it early (`close`, the end of a `with` block, a loop that is left) cancels what has not
    been written and frees the state.
    """

    def __init__(
        self,
        batch: Batch,
        request: Request,
        rounds_per_chunk: int,
        *,
        prompt: tuple[int, ...] | None = None,
        on_end: Callable[[str, GenerationResult | None], None] | None = None,
    ) -> None:
        """A stream over the first slot of a started batch.

        Args:
            batch: The batch.
            request: What was asked for.
            rounds_per_chunk: Rounds between two looks of the host.
            prompt: The whole prompt, where the request is only its end.
            on_end: Called once, at the end or when cancelled, in the place of freeing the state,
                with the text and the result; the result is None where an interrupt in the middle
                of a round took the state with it.
        """
        self._batch = batch
        self._request = request
        self._rounds_per_chunk = rounds_per_chunk
        self._prompt = prompt
        self._on_end = on_end
        self._seconds_before = batch.decode_seconds
        self._result: GenerationResult | None = None
        self._closed = False
        self._chunks = self._run()

    def __iter__(self) -> Iterator[StreamChunk]:
        """The chunks; the stream can be read once, and leaving the loop cancels the rest."""
        try:
            yield from self._chunks
        finally:
            self.close()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what has not been written, and frees the state."""
        self._chunks.close()
        if not self._closed:  # it was never read
            self._end(None, "", finished=False)

    @property
    def result(self) -> GenerationResult:
        """The whole generation; there once the stream is exhausted.

        Raises:
            LookaheadError: If it was not read to its end.
        """
        if self._result is None:
            how = "was cancelled" if self._closed else "has not ended"
            raise LookaheadError(f"the stream {how}: only one read to its end has a result")
        return self._result

    def _run(self) -> Generator[StreamChunk, None, None]:
        batch, tokenizer = self._batch, self._batch.lm.tokenizer
        stops = batch.settings.stop_strings
        writer = None if tokenizer is None else TextWriter(tokenizer, stops)
        text, seen, rounds_seen, over = [], 0, 0, False
        try:
            while not over:
                batch.run(self._rounds_per_chunk)
                progress = batch.progress()
                rounds, over = int(progress.rounds[0]), bool(progress.done[0])
                tokens = progress.output(0, seen)
                if writer is not None:
                    text.append(writer.push(tokens, last=over))
                    over = over or writer.stop_string is not None
                    tokens = tokens[: writer.num_tokens - seen]
                seen += len(tokens)
                yield StreamChunk(
                    text=None if writer is None else text[-1],
                    tokens=tuple(tokens),
                    accepted=max(len(tokens) - (rounds - rounds_seen), 0),
                )
                rounds_seen = rounds
            self._end(writer, "".join(text), finished=True)
        finally:
            if not self._closed:
                self._end(writer, "".join(text), finished=False)

    def _end(self, writer: TextWriter | None, text: str, *, finished: bool) -> None:
        self._closed = True
        result = None
        if self._batch.state is not None:
            result = self._batch.result(
                0,
                self._request,
                self._batch.progress(),
                writer,
                text,
                prompt=self._prompt,
                seconds_before=self._seconds_before,
            )
        if finished:
            self._result = result
        if self._on_end is None:
            self._batch.close()
        else:
            self._on_end(text, result)
