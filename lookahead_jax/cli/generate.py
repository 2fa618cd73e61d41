"""`lookahead-jax generate PROMPT`: one prompt, its answers, and what lookahead gained."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lookahead_jax.cli.console import say, working, write_json, write_text
from lookahead_jax.cli.engine import Engine
from lookahead_jax.cli.reports import baseline_line, check_line, closing_line, json_record
from lookahead_jax.cli.settings import Settings
from lookahead_jax.errors import LookaheadError

if TYPE_CHECKING:
    from lookahead_jax.checking import CheckReport
    from lookahead_jax.results import GenerationResult
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


def check_samples(settings: Settings, samples: int) -> None:
    """Refuses a number of answers that makes no sense.

    Raises:
        LookaheadError: If it is below 1, or above 1 for greedy answers.
    """
    if samples < 1:
        raise LookaheadError(f"--samples must be an integer >= 1, got {samples}")
    if samples > 1 and not settings.is_sampling:
        raise LookaheadError("--samples needs --temperature above 0: greedy answers are all alike")


def generate_one(
    engine: Engine,
    settings: Settings,
    prompt: str,
    *,
    system: str | None,
    samples: int,
    batch_size: int,
    as_json: bool,
    baseline: bool,
    check: bool,
    validate: bool,
) -> None:
    """Answers one prompt: text with closing lines on stderr, or one JSON object.

    Args:
        engine: What to call.
        settings: What decides the answers.
        prompt: The prompt.
        system: System prompt, if any.
        samples: How many answers; a single one is streamed.
        batch_size: Most answers decoded together.
        as_json: Print JSON.
        baseline: Decode the ordinary way too, and compare.
        check: Read the answers again, and compare.
        validate: Check every round's publication plan.
    """
    lm = settings.load(engine)
    arguments = {**settings.prompt_arguments(system), **settings.decoding_arguments()}
    if samples > 1:
        arguments |= {"n": samples, "batch_size": min(samples, batch_size)}
    checked = {"config": settings.config, "validate": validate, **arguments}
    if as_json:
        told = {"logprobs": True} if settings.logprobs else {}
        results = _as_list(engine.generate(lm, prompt, **checked, **told))
    elif samples > 1:
        results = _show_samples(engine, lm, settings, prompt, checked)
    else:
        results = [_stream_to_terminal(engine, lm, prompt, checked)]
        say(closing_line(results[0], settings))
    ordinary = _as_list(engine.ordinary(lm, prompt, **arguments)) if baseline else None
    reports = _checked(engine, lm, results, settings) if check else None
    if as_json:
        write_json(json_record(results, settings, ordinary, reports))
        return
    for number, report in enumerate(reports or (), start=1):
        before = f"sample {number}: " if samples > 1 else ""
        say(before + check_line(report, lm.tokenizer))
    for number, (result, other) in enumerate(zip(results, ordinary or (), strict=False), start=1):
        before = f"sample {number}: " if samples > 1 else ""
        say(before + baseline_line(result, other, settings))


def _checked(
    engine: Engine, lm: LanguageModel, results: list[GenerationResult], settings: Settings
) -> list[CheckReport]:
    arguments = settings.decoding_arguments()
    with working("reading the answer again"):
        return [engine.check(lm, r, sample=k, **arguments) for k, r in enumerate(results)]


def _as_list(results: Any) -> list[GenerationResult]:
    return results if isinstance(results, list) else [results]


def _stream_to_terminal(
    engine: Engine, lm: LanguageModel, prompt: str, arguments: dict[str, Any]
) -> GenerationResult:
    with working("compiling and reading the prompt"):
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


def _show_samples(
    engine: Engine,
    lm: LanguageModel,
    settings: Settings,
    prompt: str,
    arguments: dict[str, Any],
) -> list[GenerationResult]:
    """Prints the answers in their order, each as soon as it and those before it are there."""
    total = arguments["n"]
    found: dict[int, GenerationResult] = {}
    finished = engine.completions(lm, [prompt], **arguments)
    for number in range(total):
        while number not in found:
            with working(f"writing {total} answers"):
                index, result = next(finished)
            found[index] = result
        write_text(f"--- {number + 1} of {total} ---\n{found[number].text or ''}\n")
        say(closing_line(found[number], settings))
    return [found[number] for number in range(total)]
