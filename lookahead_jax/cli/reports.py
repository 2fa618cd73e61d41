"""What is told about an answer: lines for people, records for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lookahead_jax.cli.console import finite
from lookahead_jax.cli.settings import Settings
from lookahead_jax.results import first_difference

if TYPE_CHECKING:
    from lookahead_jax.checking import CheckReport
    from lookahead_jax.results import GenerationResult, GenerationStats
    from lookahead_jax.typing import Tokenizer


def closing_line(result: GenerationResult, settings: Settings) -> str:
    """What lookahead gained, in one line."""
    stats = result.stats
    return (
        f"{calls_part(result)}, {finite(stats.tokens_per_second):.1f} tokens/s, "
        f"compile {finite(stats.compile_seconds):.1f} s{cut_part(result, settings)}"
    )


def calls_part(result: GenerationResult) -> str:
    """Tokens and model calls of an answer."""
    stats = result.stats
    return (
        f"{count(len(result.tokens), 'token')} in {count(stats.rounds, 'model call')} "
        f"({finite(stats.tokens_per_round):.2f} tokens per call)"
    )


def cut_part(result: GenerationResult, settings: Settings) -> str:
    """A note where the answer is not whole."""
    if result.finish_reason != "length":
        return ""
    return f"; cut at --max-new-tokens {settings.max_new_tokens}"


def baseline_line(result: GenerationResult, ordinary: GenerationResult, settings: Settings) -> str:
    """Lookahead against ordinary decoding: the same tokens? in which part of the time?"""
    ratio = time_ratio(result, ordinary)
    if ratio is None:
        speed = "too short to time"
    elif ratio >= 1:
        speed = f"lookahead is {ratio:.2f} times as fast"
    else:
        speed = f"lookahead is {1 / ratio:.2f} times slower here"
    differs = first_difference(result.tokens, ordinary.tokens)
    if not settings.same_as_ordinary:
        same = "other draws from the same distribution (--method residual)"
    elif differs is None:
        same = "the same tokens"
    else:
        same = f"the tokens differ from number {differs + 1} on"
    return (
        f"ordinary decoding: {count(ordinary.stats.rounds, 'model call')}, "
        f"{finite(ordinary.stats.decode_seconds):.2f} s against "
        f"{finite(result.stats.decode_seconds):.2f} s, {same}; {speed}"
    )


def check_line(report: CheckReport, tokenizer: Tokenizer | None) -> str:
    """What reading the answer again has found."""
    tokens = count(report.tokens, "token")
    first = report.first
    if first is None:
        return (
            f"check: a separate pass chooses the same {tokens}; the closest choice was won by "
            f"{report.smallest_margin:.4g}"
        )

    def shown(token: int) -> str:
        text = tokenizer.decode([token]) if tokenizer is not None else ""
        return f"{token} {text!r}" if text else str(token)

    more = len(report.divergences) - 1
    return (
        f"check: token {first.index + 1} of {report.tokens} is {shown(first.written)}; a separate "
        f"pass chooses {shown(first.chosen)} by {first.gap:.4g}"
        + (f"; {more} more differ" if more else "")
    )


def _check_record(report: CheckReport) -> dict[str, Any]:
    return {
        "tokens": report.tokens,
        "smallest_margin": _number(report.smallest_margin),
        "divergences": [
            {"index": d.index, "written": d.written, "chosen": d.chosen, "gap": _number(d.gap)}
            for d in report.divergences
        ],
    }


def time_ratio(result: GenerationResult, ordinary: GenerationResult) -> float | None:
    """Time of ordinary decoding over lookahead's: above 1 lookahead is faster. None: unmeasured."""
    ours, theirs = finite(result.stats.decode_seconds), finite(ordinary.stats.decode_seconds)
    return theirs / ours if ours > 0 and theirs > 0 else None


def json_record(
    results: Sequence[GenerationResult],
    settings: Settings,
    ordinary: Sequence[GenerationResult] | None,
    reports: Sequence[CheckReport] | None = None,
) -> dict[str, Any]:
    """The one JSON object of `--json`: of one answer, or of several under "samples"."""
    answers = []
    for index, result in enumerate(results):
        answer = {
            **answer_record(result, settings),
            "prompt_tokens": len(result.prompt_tokens),
            **_stats_record(result.stats),
        }
        if ordinary is not None:
            answer["baseline"] = _baseline_record(result, ordinary[index], settings)
        if reports is not None:
            answer["check"] = _check_record(reports[index])
        answers.append(answer)
    if len(answers) > 1:
        return {"samples": answers, **settings.record()}
    return {**answers[0], **settings.record()}


def answer_record(result: GenerationResult, settings: Settings) -> dict[str, Any]:
    """An answer as JSON; what only some options bring about is there with these options."""
    record: dict[str, Any] = {
        "text": result.text,
        "tokens": [int(token) for token in result.tokens],
        "finish_reason": result.finish_reason,
    }
    if settings.stop_strings:
        record["stop_string"] = result.stop_string
    if settings.logprobs and result.logprobs is not None:
        record["logprobs"] = {
            "processed": _numbers(result.logprobs.processed),
            "raw": _numbers(result.logprobs.raw),
        }
    return record


def _baseline_record(
    result: GenerationResult, ordinary: GenerationResult, settings: Settings
) -> dict[str, Any]:
    differs = first_difference(result.tokens, ordinary.tokens)
    comparable = settings.same_as_ordinary
    return {
        "identical": differs is None if comparable else None,
        "first_difference": differs if comparable else None,
        "time_ratio": time_ratio(result, ordinary),
        **_stats_record(ordinary.stats),
    }


def _stats_record(stats: GenerationStats) -> dict[str, Any]:
    return {
        "rounds": int(stats.rounds),
        "tokens_per_round": finite(stats.tokens_per_round),
        "candidate_rounds": int(stats.candidate_rounds),
        "accepted_histogram": [int(times) for times in stats.accepted_histogram],
        "compile_seconds": finite(stats.compile_seconds),
        "prefill_seconds": finite(stats.prefill_seconds),
        "decode_seconds": finite(stats.decode_seconds),
        "tokens_per_second": finite(stats.tokens_per_second),
        "pool_bytes": int(stats.pool_bytes),
    }


def _numbers(values: Sequence[float]) -> list[float | None]:
    return [_number(value) for value in values]


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def count(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
