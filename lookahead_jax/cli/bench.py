"""`lookahead-jax bench`: lookahead against ordinary decoding over a grid of W, N and G."""

from __future__ import annotations

import contextlib
import datetime
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import typer
from rich.console import Console

from lookahead_jax.bench import pictures, profiling, report
from lookahead_jax.bench.grid import parse_grid
from lookahead_jax.bench.machine import commit, device_name, versions
from lookahead_jax.bench.measuring import Contest, measure
from lookahead_jax.bench.profiling import Shares
from lookahead_jax.bench.prompts import Prompt, digest, per_category, read_prompts
from lookahead_jax.bench.records import Conditions, Measurement, Point, Row
from lookahead_jax.bench.store import Store, results
from lookahead_jax.bench.texts import Reader, Task, groups
from lookahead_jax.bench.tracing import traced
from lookahead_jax.bench.wording import conclusion
from lookahead_jax.cli.console import progress_bar, say, working, write_json
from lookahead_jax.cli.reports import count
from lookahead_jax.cli.settings import Settings, make_settings
from lookahead_jax.errors import LookaheadError
from lookahead_jax.options import Options

if TYPE_CHECKING:
    from lookahead_jax.cli.bench_options import BenchOptions
    from lookahead_jax.cli.engine import Engine
    from lookahead_jax.typing import LanguageModel


@dataclass(frozen=True)
class Request:
    """What is asked for, checked as far as that goes without a model."""

    options: BenchOptions
    settings: Settings
    points: tuple[Point, ...]
    prompts: tuple[Prompt, ...]

    @classmethod
    def of(cls, options: BenchOptions) -> Request:
        """Reads options and prompts.

        Raises:
            LookaheadError: Something is out of range, or a file is not as expected.
        """
        for name, value in (("--repeats", options.repeats), ("--batch-size", options.batch_size)):
            if value < 1:
                raise LookaheadError(f"{name} must be an integer >= 1, got {value}")
        if options.per_category is not None and options.per_category < 1:
            raise LookaheadError(
                f"--per-category must be an integer >= 1, got {options.per_category}"
            )
        settings = make_settings(
            options.text_options(), use_chat_template=not options.no_chat_template
        )
        points = parse_grid(options.grid)
        for point in points:
            point.of(settings.config)
        prompts = per_category(read_prompts(options.prompts), options.per_category)
        return cls(options, settings, points, prompts)

    def conditions(self, lm: LanguageModel) -> Conditions:
        """Under which this process measures; the texts are not counted yet."""
        settings, options = self.settings, self.options
        policy: dict[str, Any] = dict(settings.policy)
        if not settings.use_chat_template:
            policy["chat_template"] = False
        if options.pool_slots is not None:
            policy["pool_slots"] = options.pool_slots
        if options.kv_exchange != "broadcast":
            policy["kv_exchange"] = options.kv_exchange
        return Conditions(
            model=settings.model,
            dtype=settings.dtype + (", int8" if settings.int8 else ""),
            device=device_name(lm.mesh),
            mesh=options.mesh,
            attention=options.attention,
            policy=policy,
            prompts=options.prompts,
            prompts_digest=digest(self.prompts),
            texts=0,
            batch_size=options.batch_size,
            max_new_tokens=options.max_new_tokens,
            repetitions=options.repeats,
            versions=versions(),
            commit=commit(),
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )


@dataclass(frozen=True)
class Run:
    """A benchmark under way."""

    request: Request
    store: Store
    contest: Contest
    left_out: int

    @property
    def conditions(self) -> Conditions:
        """What the report says about it."""
        texts = sum(map(len, self.contest.groups))
        return replace(
            self.store.conditions,
            texts=texts,
            left_out=self.left_out,
            repetitions=self.request.options.repeats,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Repetitions, and groups of texts."""
        return self.request.options.repeats, len(self.contest.groups)

    def rows(self) -> list[Row]:
        """Adds up what was measured of the points that are finished."""
        return self.store.rows(self.request.points, *self.shape)

    def record(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The contents of results.json."""
        return results(self.conditions, rows, len(self.request.points) - len(rows))

    @property
    def missing(self) -> int:
        """Measurements that are still to be made."""
        return sum(len(self.store.missing(point, *self.shape)) for point in self.request.points)


def run_bench(engine: Callable[[], Engine], options: BenchOptions) -> None:
    """Measures what is not measured yet, and reports all of it.

    Args:
        engine: Called when the options are in order.
        options: What to measure.

    Raises:
        LookaheadError: Options, files or the model are not as expected.
        typer.Exit: With code 1, if a text was not ordinary decoding's, or a point has failed; with
            130, if interrupted.
    """
    request = Request.of(options)
    if (reason := pictures.why_not()) is not None:
        say(f"note: {reason}; all else is written, and the same command draws them later")
    with working("loading the model"):
        lm = request.settings.load(engine())
    with Store(options.output, request.conditions(lm)) as store:
        run, shares, failures = None, {}, {}
        try:
            run = _prepare(request, lm, store)
            failures = _measure(run)
            if options.profile is not None:
                shares = _profile(run, options.profile)
        except KeyboardInterrupt:
            if run is not None and (rows := run.rows()):
                say(_write(run, rows, {}))
            say(
                f"interrupted: what was measured is kept in {options.output}; "
                "the same command continues there"
            )
            raise typer.Exit(130) from None
        _report(run, shares, failures)


def _prepare(request: Request, lm: LanguageModel, store: Store) -> Run:
    """Makes the texts, for which the model answers the first turns of conversations."""
    settings, options = request.settings, request.options
    asked: Options = {**settings.decoding_arguments(), "batch_size": options.batch_size}  # pyright: ignore[reportAssignmentType]
    left_out: list[str] = []

    def refused(task_id: str, why: str) -> None:
        if not left_out:
            say(f"note: left out {task_id}: {why}")
        left_out.append(task_id)

    reader = Reader(
        lm=lm,
        chat_template=None if settings.use_chat_template else False,
        max_new_tokens=settings.max_new_tokens,
        answer=lambda tasks: _answers(lm, settings, asked, store, tasks),
        refused=refused,
    )
    tasks = reader.tasks(request.prompts)
    if not tasks:
        raise LookaheadError(f"none of the {len(request.prompts)} prompts can be used")
    if left_out:
        say(f"note: {count(len(left_out), 'text')} left out, {count(len(tasks), 'text')} measured")
    contest = Contest(lm, settings.config, asked, groups(tasks, options.batch_size))
    return Run(request, store, contest, len(left_out))


def _answers(
    lm: LanguageModel,
    settings: Settings,
    asked: Options,
    store: Store,
    tasks: Sequence[Task],
) -> list[tuple[int, ...]]:
    """The model's own answers; those of an earlier run are taken as they are."""
    new = [task for task in tasks if task.id not in store.answers]
    if new:
        alone = groups(new, 1)
        ordinary = Contest(lm, settings.config, asked, alone).ordinary()
        with _bar(len(alone)) as advance:
            for (task,) in alone:
                advance(f"answering first turns: {task.id}", 0)
                (result,) = ordinary.write((task,)).results
                store.add_answer(task.id, result.tokens)
                advance("answering first turns", 1)
    return [store.answers[task.id] for task in tasks]


def _measure(run: Run) -> Mapping[Point, str]:
    """Measures what is missing.

    Returns:
        Points that the device could not do, such as for lack of memory, and why.
    """
    failures: dict[Point, str] = {}
    missing, points = run.missing, run.request.points
    if not missing:
        say(f"everything is measured already in {run.store.directory}")
        return failures
    repetitions, num_groups = run.shape
    total = len(points) * repetitions * num_groups
    if missing < total:
        say(f"{count(missing, 'measurement')} of {total} still to be made")
    else:
        say(
            f"{count(total, 'measurement')}: {count(len(points), 'setting')}, "
            f"{count(run.conditions.texts, 'text')}, {count(repetitions, 'repetition')}"
        )
    ordinary = run.contest.ordinary()
    with _bar(missing) as advance:
        for number, point in enumerate(points, start=1):
            places = run.store.missing(point, *run.shape)
            if not places:
                continue
            here = f"{point} ({number} of {len(points)})"
            advance(f"{here}: compiling", 0)
            try:
                for record in measure(run.contest, point, ordinary, places):
                    run.store.add(record)
                    advance(here, int(isinstance(record, Measurement)))
            except jax.errors.JaxRuntimeError as error:
                failures[point] = str(error).strip().splitlines()[0]
                say(f"{point} cannot be measured: {failures[point]}")
                ordinary = run.contest.ordinary()  # it may have been in the middle of something
    return failures


def _profile(run: Run, directory: Path) -> dict[Point, Shares]:
    """Traces the first texts at every finished point, after all that is timed."""
    points, shares = [row.point for row in run.rows()], {}
    with _bar(len(points)) as advance:
        for point in points:
            advance(f"{point}: tracing", 0)
            shares[point] = traced(run.contest, point, directory / point.name)
            advance(f"{point}: tracing", 1)
    return shares


def _report(run: Run, shares: Mapping[Point, Shares], failures: Mapping[Point, str]) -> None:
    """Writes and prints what was found.

    Raises:
        typer.Exit: With code 1, if a text was not ordinary decoding's, or a point has failed.
    """
    options, rows, conditions = run.request.options, run.rows(), run.conditions
    told = _write(run, rows, shares)
    if options.as_json:
        write_json(run.record(rows))
    else:
        console = Console(highlight=False)
        console.print(report.table(rows))
        if shares:
            console.print(profiling.table(shares))
        for line in conclusion(rows, conditions):
            console.print(line, markup=False, soft_wrap=True)
    say(told)
    others = [row for row in rows if row.identical is False]
    if others:
        hint = "" if options.dtype == "float32" else f" ({options.dtype}: near-ties may do so)"
        say(
            f"error: {count(len(others), 'setting')} of {len(rows)} wrote other texts than "
            f"ordinary decoding{hint}: see {options.output / 'report.md'}"
        )
    if failures:
        say(f"error: {count(len(failures), 'setting')} could not be measured: see above")
    if others or failures:
        raise typer.Exit(1)


def _write(run: Run, rows: Sequence[Row], shares: Mapping[Point, Shares]) -> str:
    """Writes results, report and pictures of what is finished, and says where they are."""
    store, conditions, record = run.store, run.conditions, run.record(rows)
    store.write("results.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
    drawn: list[Path] = []
    if rows and pictures.why_not() is None:
        with working("drawing"):
            drawn = pictures.draw_all(store.directory, rows, conditions)
    text = report.markdown(
        rows,
        conditions,
        unfinished=record["unfinished"],
        pictures=[path.name for path in drawn],
        command=_command(),
    )
    if shares:
        text += "\n" + profiling.markdown(shares)
    written = store.write("report.md", text)
    return f"{written} has all of it" + (f", with {count(len(drawn), 'picture')}" if drawn else "")


def _command() -> str | None:
    """The command line of this process; None where it is something else's."""
    is_ours = sys.argv[1:2] == ["bench"]
    return shlex.join(["lookahead-jax", *sys.argv[1:]]) if is_ours else None


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Callable[[str, int], None]]:
    """A progress bar; what it yields takes what is being done, and how much of it is over now."""
    with progress_bar() as bar:
        task = bar.add_task("", total=total)
        yield lambda what, by: bar.update(task, description=what, advance=by)
