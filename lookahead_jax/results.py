"""What a generation returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GenerationStats:
    """What one sequence cost.

    Attributes:
        rounds: Model calls after prefill in which the sequence took part. With stop strings that
            includes those between the end of the text and the host's next look.
        tokens_per_round: Output tokens per model call; ordinary decoding has 1.
        accepted_histogram: Entry a counts the rounds in which a candidate tokens were accepted, so
            a + 1 tokens emitted.
        compile_seconds: Tracing and compiling; 0 where the programs were there already.
        prefill_seconds: Reading the prompt, first window and pool included, with the other prompts
            that were read at the same time.
        decode_seconds: The rounds of the whole batch while this sequence was in it.
        candidate_rounds: Model calls in which the pool had candidates; 0 for other decoders.
        pool_bytes: Memory of this sequence's n-gram pool on the device; 0 for other decoders.
        tokens_per_second: This sequence's output tokens over `decode_seconds`.
    """

    rounds: int
    tokens_per_round: float
    accepted_histogram: tuple[int, ...]
    compile_seconds: float
    prefill_seconds: float
    decode_seconds: float
    tokens_per_second: float
    pool_bytes: int = 0
    candidate_rounds: int = 0


@dataclass(frozen=True)
class TokenLogProbs:
    """Natural log-probabilities of the output tokens under the target, one each.

    Attributes:
        processed: Of the distribution they were chosen from: after logit processors, temperature
            and filters. For greedy decoding the softmax of the processed logits.
        raw: Of the softmax of the model's logits as they are.
    """

    processed: tuple[float, ...]
    raw: tuple[float, ...]


@dataclass(frozen=True)
class GenerationResult:
    """Output of one prompt.

    Attributes:
        text: The answer, without special tokens; None where the model has no tokenizer.
        tokens: Output token ids, the stop token included.
        prompt_tokens: The ids the model read, special tokens and chat template included.
        finish_reason: "stop" for a stop token or string, "length" for `max_new_tokens`.
        stats: What it cost.
        logprobs: Of the tokens; None where they were not asked for.
        stop_string: The stop string that ended the text, which is cut before it; the tokens end
            with the one that completed it.
    """

    text: str | None
    tokens: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    finish_reason: Literal["stop", "length"]
    stats: GenerationStats
    logprobs: TokenLogProbs | None = None
    stop_string: str | None = None


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


def first_difference(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """Index of the first token that differs, a missing one included; None if there is none."""
    for index, (token, other) in enumerate(zip(tokens, others, strict=False)):
        if token != other:
            return index
    return None if len(tokens) == len(others) else min(len(tokens), len(others))
