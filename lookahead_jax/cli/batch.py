"""`lookahead-jax batch`: a file of prompts in a continuous batch, continued where it stopped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lookahead_jax.cli.console import finite, progress_bar, say
from lookahead_jax.cli.engine import Engine
from lookahead_jax.cli.processes import Processes
from lookahead_jax.cli.reports import answer_record, count
from lookahead_jax.cli.rows import AnswerFile, Prompt, read_prompts
from lookahead_jax.cli.settings import Settings
from lookahead_jax.errors import LookaheadError
from lookahead_jax.sampling import Sample

if TYPE_CHECKING:
    from lookahead_jax.results import GenerationResult
    from lookahead_jax.typing import LanguageModel

Row = dict[str, Any]


def run_batch(
    start_engine: Callable[[], Engine],
    settings: Settings,
    input_path: Path,
    output_path: Path,
    *,
    processes: Processes,
    system: str | None,
    batch_size: int,
    validate: bool,
) -> None:
    """Answers the prompts of a file that have no answer yet.

    Args:
        start_engine: Called when there is something to do.
        settings: What decides the answers.
        input_path: JSON lines with "prompt" and perhaps "id", "system" and "seed".
        output_path: JSON lines, in the order of the input; continued if it exists.
        processes: Who works on it together; the first has the output file.
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
    if not processes.is_first:
        rest = prompts[processes.agree(0) :]
        if rest:
            engine = start_engine()
            rows = answer_rows(engine, settings.load(engine), settings, rest, batch_size, validate)
            deque(rows, maxlen=0)
        return
    with AnswerFile(output_path, prompts, settings) as answers:
        processes.agree(answers.finished)
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
    lm = settings.load(engine)
    tokens = rounds = 0
    started = time.monotonic()
    with progress_bar() as progress:
        task = progress.add_task("compiling", total=len(prompts), completed=before)
        rows = answer_rows(engine, lm, settings, prompts[before:], batch_size, validate)
        for finished, (ready, row) in enumerate(in_order(rows), start=before + 1):
            tokens += len(row.get("tokens", ()))
            rounds += row.get("rounds", 0)
            if ready:
                answers.append(ready)
            progress.update(task, description="answering", completed=finished)
    seconds = time.monotonic() - started
    say(
        f"{count(answers.finished - before, 'prompt')} answered in {answers.path}: "
        f"{count(tokens, 'token')}, {tokens / max(rounds, 1):.2f} per round, "
        f"{seconds:.1f} s with compilation"
    )


def in_order(rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[list[Row], Row]]:
    """For each row that comes, the rows whose turn it now is (perhaps none), and the row itself."""
    waiting: dict[int, Row] = {}
    turn = 0
    for index, row in rows:
        waiting[index] = row
        ready = []
        while turn in waiting:
            ready.append(waiting.pop(turn))
            turn += 1
        yield ready, row


def answer_rows(
    engine: Engine,
    lm: LanguageModel,
    settings: Settings,
    prompts: Sequence[Prompt],
    batch_size: int,
    validate: bool,
) -> Iterator[tuple[int, Row]]:
    """Answers as they finish, with the index of their prompt: first those of bad prompts."""
    encoded: dict[int, tuple[int, ...]] = {}
    for index, prompt in enumerate(prompts):
        try:
            encoded[index] = engine.encode(
                lm,
                prompt.text,
                max_new_tokens=settings.max_new_tokens,
                **settings.prompt_arguments(prompt.system),
            )
        except LookaheadError as error:
            yield index, {"error": str(error)}
    if not encoded:
        return
    arguments = settings.decoding_arguments()
    if settings.logprobs:
        arguments["logprobs"] = True
    if isinstance(settings.sampling, Sample):
        seeds = [prompts[index].seed for index in encoded]
        default = settings.sampling.seed
        arguments["seeds"] = [default if seed is None else seed for seed in seeds]
    results = engine.completions(
        lm,
        list(encoded.values()),
        config=settings.config,
        validate=validate,
        batch_size=batch_size,
        **arguments,
    )
    indices = list(encoded)
    for number, result in results:
        yield indices[number], _answer(result, settings)


def _answer(result: GenerationResult, settings: Settings) -> Row:
    return {
        **answer_record(result, settings),
        "rounds": int(result.stats.rounds),
        "tokens_per_round": finite(result.stats.tokens_per_round),
    }
