"""Other implementations beside this one: `python -m benchmarks.peers --output DIR`.

../README.md says what is compared, how, and how to install the others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from benchmarks.peers import contenders, measure, official, report, table
from benchmarks.peers.contenders import LOOKAHEAD, ORDINARY, PACKAGES, Setting
from benchmarks.peers.external import Timeouts, Weights
from benchmarks.peers.measure import Text
from benchmarks.peers.peer import Peer
from benchmarks.peers.store import Store
from benchmarks.streaming import cpu_name, num_cores
from lookahead_jax.bench.prompts import digest, encode_turn, per_category, read_prompts
from lookahead_jax.bench.records import Point
from lookahead_jax.errors import LookaheadError
from lookahead_jax.models import load_model
from lookahead_jax.models.loading import resolve
from lookahead_jax.prompts import check_lengths
from lookahead_jax.typing import LanguageModel

Advance = Callable[[int, int], None]


def main(
    output: Annotated[Path, typer.Option(help="Directory for measurements and report.")],
    model: Annotated[str, typer.Option(help="Name, directory, .gguf file or hub id.")] = (
        "smollm2-135m"
    ),
    prompts: Annotated[str, typer.Option(help='"builtin", or a JSONL file.')] = "builtin",
    per: Annotated[
        int | None, typer.Option("--per-category", min=1, help="Prompts of each category; all.")
    ] = None,
    window: Annotated[int, typer.Option(help="W, window size.")] = 7,
    ngram: Annotated[int, typer.Option(help="N, n-gram size.")] = 5,
    guesses: Annotated[int, typer.Option(help="G, candidates a round.")] = 7,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens of every text.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of every text.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Peers, once for each: {', '.join(contenders.NAMES)}. All of them."),
    ] = None,
    venv: Annotated[
        list[str] | None,
        typer.Option(help=f"PACKAGE=DIRECTORY: the virtual environment of {', '.join(PACKAGES)}."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="Recorded runs of the authors' code to hold their schedule against."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a peer has to load, and for a text.")
    ] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measures transformers, the authors' code and llama.cpp beside lookahead_jax.

    What DIR has measurements of already is not measured again.
    """
    console = Console(stderr=True)
    try:
        load_before = os.getloadavg()[0]
        every = read_prompts(prompts)
        environments = _environments(venv or ())
        recordings = None if reference is None else official.read_recordings(reference)
        lm, source = load_model(model), resolve(model)
        texts = [
            Text(prompt.id, prompt.category, encode_turn(lm, prompt, (), chat_template=None))
            for prompt in per_category(every, per)
        ]
        longest = max(len(text.tokens) for text in texts)
        check_lengths(lm, longest, max_new_tokens)
        point = Point(window, ngram, guesses)
        conditions = _conditions(lm, point) | {
            "prompts": prompts,
            "prompts_digest": digest(every),
            "max_new_tokens": max_new_tokens,
        }
        with tempfile.TemporaryDirectory(prefix="peers-") as scratch:
            setting = Setting(
                weights=Weights(lm, Path(scratch)),
                source=source if source.suffix == ".gguf" else None,
                point=point,
                context=longest + max_new_tokens,
                venvs=environments,
                logs=output / "logs",
                timeouts=Timeouts(timeout, timeout),
            )
            peers = contenders.chosen(contenders.all_peers(setting), only or ())
            found = _compare(peers, texts, output, conditions, max_new_tokens, repeats, console)
        agreements = None
        if recordings is not None:
            with _bar(console, "Recorded runs") as advance:
                agreements = official.compare(lm, recordings, advance)
        conditions |= {"texts": [text.id for text in texts], "repetitions": repeats}
        results = report.record(conditions, found, agreements, (load_before, os.getloadavg()[0]))
        report.write(output, results, found, agreements)
    except LookaheadError as error:
        _say(console, f"error: {error}")
        raise typer.Exit(2) from error
    if as_json:
        json.dump(results, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    console.print(_view(model, table.HEADINGS, map(table.cells, found)))
    for note in table.notes(found):
        _say(console, note)
    if agreements is not None:
        console.print(
            _view("the authors' schedule", official.HEADINGS, map(official.cells, agreements))
        )
    _say(console, f"in {output}: report.md, results.json")


def _compare(
    peers: Sequence[Peer],
    texts: Sequence[Text],
    output: Path,
    conditions: Mapping[str, Any],
    num_tokens: int,
    repeats: int,
    console: Console,
) -> list[table.Row]:
    """Measures, and makes the table."""
    with Store(output, conditions) as store, _bar(console, "Writing texts") as advance:
        failures = measure.measure(
            peers,
            texts,
            store,
            num_tokens=num_tokens,
            repeats=repeats,
            announce=lambda line: _say(console, line),
            progress=advance,
        )
    return table.rows(peers, texts, store, repeats, failures, reference=ORDINARY, ours=LOOKAHEAD)


def _environments(options: Sequence[str]) -> dict[str, Path]:
    """Virtual environments by package.

    Raises:
        LookaheadError: One is not PACKAGE=DIRECTORY.
    """
    found = {}
    for option in options:
        package, _, directory = option.partition("=")
        if package not in PACKAGES or not directory:
            raise LookaheadError(
                f"--venv takes PACKAGE=DIRECTORY, with a package of {', '.join(PACKAGES)}; "
                f"got {option!r}"
            )
        if not (Path(directory) / "bin" / "python").exists():
            raise LookaheadError(f"--venv {option}: {directory} is no virtual environment")
        found[package] = Path(directory)
    return found


def _conditions(lm: LanguageModel, point: Point) -> dict[str, Any]:
    """What measurements must have in common, prompts and lengths apart."""
    return {
        "model": lm.name,
        "dtype": str(lm.cache_spec.dtype),
        "cpu": cpu_name(),
        "cores": num_cores(),
        "lookahead": str(point),
        "lookahead_small": str(contenders.SMALL_POINT),
    }


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _view(title: str, headings: Sequence[str], lines: Any) -> Table:
    first, *others = headings
    view = Table(Column(first, no_wrap=True), *others, title=title)
    for cells in lines:
        view.add_row(*cells)
    return view


@contextmanager
def _bar(console: Console, what: str) -> Iterator[Advance]:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


if __name__ == "__main__":
    typer.run(main)
