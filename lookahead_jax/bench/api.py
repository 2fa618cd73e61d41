"""A benchmark as a function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

from lookahead_jax.bench.measuring import Contest, measure
from lookahead_jax.bench.records import Compilation, Measurement, Point, Row
from lookahead_jax.bench.summary import summarise
from lookahead_jax.bench.texts import Task, groups
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError
from lookahead_jax.generation import Prompts
from lookahead_jax.options import Options, Settings
from lookahead_jax.prompts import check_lengths, encode_prompt
from lookahead_jax.typing import LanguageModel


def measure_grid(
    lm: LanguageModel,
    prompts: Prompts,
    points: Sequence[Point],
    *,
    repetitions: int = 3,
    config: LookaheadConfig | None = None,
    **options: Unpack[Options],
) -> Iterator[Row]:
    """Measures lookahead decoding beside ordinary decoding.

    Every prompt is answered by both, right after each other, `repetitions` times at each point.

    Args:
        lm: The model.
        prompts: Texts or lists of token ids.
        points: W, N and G of each row.
        repetitions: At least 1; spreads are over these.
        config: The schedule; W, N and G are the points'.
        **options: See `lookahead_jax.options.Options`, without stop strings and seeds. `batch_size`
            prompts are decoded together, by default 1.

    Yields:
        A row for each point, as it is done.

    Raises:
        LookaheadError: If a value is not usable; nothing is compiled then.
    """
    if type(repetitions) is not int or repetitions < 1:
        raise LookaheadError(f"repetitions must be an integer >= 1, got {repetitions!r}")
    if isinstance(prompts, str):
        raise LookaheadError(f"prompts must be a list of texts or of token lists, got {prompts!r}")
    options = {**options, "batch_size": options.get("batch_size", 1)}
    settings = Settings.of(options)
    if settings.stop_strings or settings.seeds:
        raise LookaheadError("a benchmark takes no stop_strings and no seeds")
    tasks = []
    for number, prompt in enumerate(prompts):
        tokens = encode_prompt(
            lm, prompt, chat_template=settings.chat_template, system=settings.system
        )
        check_lengths(lm, len(tokens), settings.max_new_tokens)
        tasks.append(Task(str(number), "prompt", tokens))
    if not tasks:
        raise LookaheadError("expected at least one prompt, got none")
    contest = Contest(lm, config or LookaheadConfig(), options, groups(tasks, settings.batch_size))
    for point in points:
        contest.config_at(point)
    return _rows(contest, points, repetitions)


def _rows(contest: Contest, points: Sequence[Point], repetitions: int) -> Iterator[Row]:
    ordinary = contest.ordinary()
    places = [(k, group) for k in range(repetitions) for group in range(len(contest.groups))]
    for point in points:
        records = list(measure(contest, point, ordinary, places))
        (compilation,) = (record for record in records if isinstance(record, Compilation))
        yield summarise(compilation, [r for r in records if isinstance(r, Measurement)])
