"""`lookahead-jax batch`: a file of prompts, answered in groups, continued where it stopped."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lookahead_jax.cli.console import finite, say, stderr_console
from lookahead_jax.cli.engine import Engine
from lookahead_jax.cli.rows import AnswerFile, Prompt, read_prompts
from lookahead_jax.cli.settings import Settings
from lookahead_jax.errors import LookaheadError

if TYPE_CHECKING:
    from lookahead_jax.results import GenerationResult
    from lookahead_jax.typing import LanguageModel


def run_batch(
    start_engine: Callable[[], Engine],
    settings: Settings,
    input_path: Path,
    output_path: Path,
    *,
    system: str | None,
    batch_size: int,
    validate: bool,
) -> None:
    """Answers the prompts of a file that have no answer yet.

    Args:
        start_engine: Called when there is something to do.
        settings: What decides the answers.
        input_path: JSON lines with "prompt" and perhaps "id" and "system".
        output_path: JSON lines, in the order of the input; continued if it exists.
        system: System prompt of the rows that name none.
        batch_size: Most prompts decoded together.
        validate: Check every round's publication plan.

    Raises:
        LookaheadError: Before any work, if a file is not as expected; after all work, if some
            prompts could not be answered.
        typer.Exit: With code 130, if interrupted.
    """
    if batch_size < 1:
        raise LookaheadError(f"--batch-size must be an integer >= 1, got {batch_size}")
    if input_path.resolve() == output_path.resolve():
        raise LookaheadError(f"input and output must be two files, got {input_path} twice")
    prompts = read_prompts(input_path, system)
    with AnswerFile(output_path, prompts, settings) as answers:
        try:
            _answer_rest(start_engine, settings, prompts, answers, batch_size, validate)
        except KeyboardInterrupt:
            say(
                f"interrupted: {answers.finished} of {len(prompts)} prompts are answered and kept "
                f"in {output_path}; the same command continues there"
            )
            raise typer.Exit(130) from None
        if answers.failed:
            raise LookaheadError(
                f'{answers.failed} of {len(prompts)} prompts have an "error" in the place of a '
                f"text in {output_path}"
            )


def _answer_rest(
    start_engine: Callable[[], Engine],
    settings: Settings,
    prompts: Sequence[Prompt],
    answers: AnswerFile,
    batch_size: int,
    validate: bool,
) -> None:
    before = answers.finished
    if before == len(prompts):
        say(f"all {len(prompts)} prompts are already answered in {answers.path}")
        return
    if before:
        say(f"{before} of {len(prompts)} prompts are already answered in {answers.path}")
    engine = start_engine()
    lm = engine.load_model(settings.model, dtype=settings.dtype)
    tokens = rounds = 0
    started = time.monotonic()
    with _progress() as progress:
        task = progress.add_task("compiling", total=len(prompts), completed=before)
        for group in groups(prompts[before:], batch_size):
            rows = answer_group(engine, lm, settings, group, validate)
            answers.append(rows)
            tokens += sum(len(row.get("tokens", ())) for row in rows)
            rounds += sum(row.get("rounds", 0) for row in rows)
            progress.update(task, description="answering", completed=answers.finished)
    seconds = time.monotonic() - started
    say(
        f"{answers.finished - before} prompts answered in {answers.path}: {tokens} tokens, "
        f"{tokens / max(rounds, 1):.2f} per round, {seconds:.1f} s with compilation"
    )


def groups(prompts: Sequence[Prompt], batch_size: int) -> Iterator[list[Prompt]]:
    """Neighbours with the same system prompt, at most `batch_size` at a time."""
    for _, same_system in itertools.groupby(prompts, key=lambda prompt: prompt.system):
        while group := list(itertools.islice(same_system, batch_size)):
            yield group


def answer_group(
    engine: Engine, lm: LanguageModel, settings: Settings, group: Sequence[Prompt], validate: bool
) -> list[dict[str, Any]]:
    """Answers a group in one call; a prompt that the model refuses gets an "error" alone."""
    arguments = settings.generation_arguments(group[0].system)
    texts = [prompt.text for prompt in group]
    try:
        results = engine.generate(lm, texts, config=settings.config, validate=validate, **arguments)
    except LookaheadError as error:
        if len(group) == 1:
            return [{"error": str(error)}]
        alone = [answer_group(engine, lm, settings, [prompt], validate) for prompt in group]
        return [row for rows in alone for row in rows]
    return [_answer(result) for result in results]


def _answer(result: GenerationResult) -> dict[str, Any]:
    return {
        "text": result.text,
        "tokens": [int(token) for token in result.tokens],
        "finish_reason": result.finish_reason,
        "rounds": int(result.stats.rounds),
        "tokens_per_round": finite(result.stats.tokens_per_round),
    }


def _progress() -> Progress:
    console = stderr_console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
