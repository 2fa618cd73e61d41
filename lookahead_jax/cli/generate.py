"""`lookahead-jax generate PROMPT`: one prompt, its answer, and what lookahead gained."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lookahead_jax.cli.console import finite, say, stderr_console, write_json, write_text
from lookahead_jax.cli.engine import Engine
from lookahead_jax.cli.settings import Settings
from lookahead_jax.errors import LookaheadError

if TYPE_CHECKING:
    from lookahead_jax.results import GenerationResult, GenerationStats
    from lookahead_jax.typing import LanguageModel


def read_prompt(argument: str) -> str:
    """The prompt as text: the argument itself, or all of stdin for `-`.

    Raises:
        LookaheadError: If it is not UTF-8, or empty.
    """
    try:
        if argument == "-":
            text = sys.stdin.buffer.read().decode("utf-8-sig").rstrip("\n")
        else:
            # Bytes that are no text reach Python as lone surrogates; encoding finds them.
            text = argument.encode().decode()
    except UnicodeError:
        raise LookaheadError("the prompt must be UTF-8 text; it holds other bytes") from None
    if not text.strip():
        raise LookaheadError("expected a prompt, got an empty text")
    return text


def generate_one(
    engine: Engine,
    settings: Settings,
    prompt: str,
    *,
    system: str | None,
    as_json: bool,
    baseline: bool,
    validate: bool,
) -> None:
    """Answers one prompt: streamed text with a closing line on stderr, or one JSON object."""
    lm = engine.load_model(settings.model, dtype=settings.dtype)
    arguments = settings.generation_arguments(system)
    checked = {"config": settings.config, "validate": validate, **arguments}
    if as_json:
        result = engine.generate(lm, prompt, **checked)
    else:
        result = _stream_to_terminal(engine, lm, prompt, checked)
    if not as_json:
        say(closing_line(result, settings))
    ordinary = engine.ordinary(lm, prompt, **arguments) if baseline else None
    if as_json:
        write_json(json_record(result, settings, ordinary))
    elif ordinary is not None:
        say(baseline_line(result, ordinary))


def _stream_to_terminal(
    engine: Engine, lm: LanguageModel, prompt: str, arguments: dict[str, Any]
) -> GenerationResult:
    with _working("compiling and reading the prompt"):
        chunks = engine.stream(lm, prompt, **arguments)
        iterator = iter(chunks)
        first = next(iterator, None)
    try:
        if first is not None:
            write_text(first.text or "")
        for chunk in iterator:
            write_text(chunk.text or "")
    finally:
        write_text("\n")
    return chunks.result


@contextlib.contextmanager
def _working(what: str) -> Iterator[None]:
    console = stderr_console()
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        yield


def closing_line(result: GenerationResult, settings: Settings) -> str:
    """What lookahead gained, in one line."""
    stats = result.stats
    compile_seconds = finite(stats.compile_seconds)
    line = (
        f"{_count(len(result.tokens), 'token')} in {_count(stats.rounds, 'model call')} "
        f"({finite(stats.tokens_per_round):.2f} tokens per call), "
        f"{finite(stats.tokens_per_second):.1f} tokens/s, compile {compile_seconds:.1f} s"
    )
    if result.finish_reason == "length":
        line += f"; cut at --max-new-tokens {settings.max_new_tokens}"
    return line


def baseline_line(result: GenerationResult, ordinary: GenerationResult) -> str:
    """Lookahead against ordinary decoding: the same tokens? in which part of the time?"""
    ratio = time_ratio(result, ordinary)
    if ratio is None:
        speed = "too short to time"
    elif ratio >= 1:
        speed = f"lookahead is {ratio:.2f} times as fast"
    else:
        speed = f"lookahead is {1 / ratio:.2f} times slower here"
    differs = first_difference(result.tokens, ordinary.tokens)
    same = (
        "the same tokens" if differs is None else f"the tokens differ from number {differs + 1} on"
    )
    return (
        f"ordinary decoding: {_count(ordinary.stats.rounds, 'model call')}, "
        f"{finite(ordinary.stats.decode_seconds):.2f} s against "
        f"{finite(result.stats.decode_seconds):.2f} s, {same}; {speed}"
    )


def time_ratio(result: GenerationResult, ordinary: GenerationResult) -> float | None:
    """Time of ordinary decoding over lookahead's: above 1 lookahead is faster. None: unmeasured."""
    ours, theirs = finite(result.stats.decode_seconds), finite(ordinary.stats.decode_seconds)
    return theirs / ours if ours > 0 and theirs > 0 else None


def first_difference(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """Index of the first token that differs, a missing one included; None if there is none."""
    for index, (token, other) in enumerate(zip(tokens, others, strict=False)):
        if token != other:
            return index
    return None if len(tokens) == len(others) else min(len(tokens), len(others))


def json_record(
    result: GenerationResult, settings: Settings, ordinary: GenerationResult | None
) -> dict[str, Any]:
    """The one JSON object of `--json`."""
    record = {
        "text": result.text,
        "tokens": [int(token) for token in result.tokens],
        "finish_reason": result.finish_reason,
        "prompt_tokens": len(result.prompt_tokens),
        **_stats_record(result.stats),
        **settings.record(),
    }
    if ordinary is not None:
        differs = first_difference(result.tokens, ordinary.tokens)
        record["baseline"] = {
            "identical": differs is None,
            "first_difference": differs,
            "time_ratio": time_ratio(result, ordinary),
            **_stats_record(ordinary.stats),
        }
    return record


def _stats_record(stats: GenerationStats) -> dict[str, Any]:
    return {
        "rounds": int(stats.rounds),
        "tokens_per_round": finite(stats.tokens_per_round),
        "accepted_histogram": [int(count) for count in stats.accepted_histogram],
        "compile_seconds": finite(stats.compile_seconds),
        "prefill_seconds": finite(stats.prefill_seconds),
        "decode_seconds": finite(stats.decode_seconds),
        "tokens_per_second": finite(stats.tokens_per_second),
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
