"""Continuous batching: a fixed number of slots, kept busy with a queue of requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lookahead_jax.batch import NO_LIMIT, Batch, Progress, Request
from lookahead_jax.results import GenerationResult
from lookahead_jax.stopping import TextWriter

ROUNDS_BETWEEN_LOOKS = 4
"""Rounds between two looks for stop strings, which only the host can see."""


@dataclass
class _Slot:
    """A sequence that is being decoded."""

    index: int
    request: Request
    writer: TextWriter | None
    seconds_before: float
    text: list[str] = field(default_factory=list)

    def look(self, progress: Progress, slot: int) -> bool:
        """Reads on; whether the sequence is over."""
        over = bool(progress.done[slot])
        if self.writer is not None:
            new = progress.output(slot, self.writer.num_tokens)
            self.text.append(self.writer.push(new, last=over))
            over = over or self.writer.stop_string is not None
        return over


def complete(
    batch: Batch, requests: Sequence[Request], *, at_once: bool = False
) -> Iterator[tuple[int, GenerationResult]]:
    """Decodes requests, a slot each at a time, and yields results as they finish.

    The rounds are one compiled program throughout. It comes back when a sequence has finished, or
    every few rounds where stop strings must be looked for; the slot then goes to the next request,
    whose prompt is read on its own. What a sequence writes depends on no other, so every result is
    what the request would get alone. Closing the iterator frees the state.

    Args:
        batch: A batch that has not started.
        requests: All requests.
        at_once: Come back for a result also where no request waits for its slot.

    Yields:
        Index of the request, and its result.
    """
    waiting = deque(enumerate(requests))
    longest = max(len(request.tokens) for request in requests)
    first = [waiting.popleft() for _ in range(min(batch.num_slots, len(requests)))]
    batch.start([request for _, request in first], longest)
    slots: dict[int, _Slot] = {
        slot: _occupy(batch, index, request) for slot, (index, request) in enumerate(first)
    }
    limit = ROUNDS_BETWEEN_LOOKS if batch.settings.stop_strings else NO_LIMIT
    try:
        while slots:
            batch.run(limit, list(slots) if waiting or at_once else ())
            progress = batch.progress()
            over = [slot for slot, sequence in slots.items() if sequence.look(progress, slot)]
            finished = []
            for slot in over:
                sequence = slots.pop(slot)
                finished.append((sequence.index, _result(batch, slot, sequence, progress)))
            if any(not progress.done[slot] for slot in over):
                batch.finish(over)
            for slot in over:
                if waiting:
                    index, request = waiting.popleft()
                    batch.admit(slot, request)
                    slots[slot] = _occupy(batch, index, request)
            yield from finished
    finally:
        batch.close()


def _occupy(batch: Batch, index: int, request: Request) -> _Slot:
    return _Slot(index, request, _text_writer(batch), batch.decode_seconds)


def _result(batch: Batch, slot: int, sequence: _Slot, progress: Progress) -> GenerationResult:
    return batch.result(
        slot,
        sequence.request,
        progress,
        sequence.writer,
        "".join(sequence.text),
        seconds_before=sequence.seconds_before,
    )


def _text_writer(batch: Batch) -> TextWriter | None:
    """What looks for stop strings; None where there are none."""
    tokenizer, stops = batch.lm.tokenizer, batch.settings.stop_strings
    return TextWriter(tokenizer, stops) if stops and tokenizer is not None else None
