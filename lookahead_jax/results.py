"""What a generation returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GenerationStats:
    """What one sequence cost.

    Attributes:
        rounds: Model calls after prefill in which the sequence took part.
        tokens_per_round: Output tokens per model call; ordinary decoding has 1.
        accepted_histogram: Entry a counts the rounds in which a candidate tokens were accepted, so
            a + 1 tokens emitted.
        compile_seconds: Tracing and compiling; 0 where the programs were there already.
        prefill_seconds: Reading the prompts of the batch, first window and pool included.
        decode_seconds: The rounds of the whole batch.
        tokens_per_second: This sequence's output tokens over `decode_seconds`.
    """

    rounds: int
    tokens_per_round: float
    accepted_histogram: tuple[int, ...]
    compile_seconds: float
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class GenerationResult:
    """Output of one prompt.

    Attributes:
        text: The answer, without special tokens; None where the model has no tokenizer.
        tokens: Output token ids, the stop token included.
        prompt_tokens: The ids the model read, special tokens and chat template included.
        finish_reason: "stop" for a stop token, "length" for `max_new_tokens`.
        stats: What it cost.
    """

    text: str | None
    tokens: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    finish_reason: Literal["stop", "length"]
    stats: GenerationStats


@dataclass(frozen=True)
class StreamChunk:
    """What became available since the last chunk.

    Attributes:
        text: New text, whole characters only; None where the model has no tokenizer.
        tokens: New token ids.
        accepted: How many of them were accepted candidates, beyond one token per model call.
    """

    text: str | None
    tokens: tuple[int, ...]
    accepted: int
