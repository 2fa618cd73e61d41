"""`python -m lookahead_jax.models.training DIRECTORY`."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lookahead_jax.errors import LookaheadError

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def main(
    directory: Annotated[
        Path, typer.Argument(help="For checkpoints, losses, the plot and the model.")
    ],
    steps: Annotated[int, typer.Option(help="Updates.", min=1)] = 1300,
    batch_size: Annotated[int, typer.Option(help="Texts of an update.", min=1)] = 8,
    length: Annotated[int, typer.Option(help="Bytes of a text, the model's context.", min=8)] = 512,
    learning_rate: Annotated[float, typer.Option(help="Its greatest value.")] = 3e-3,
    seed: Annotated[int, typer.Option(help="Of weights and of the order of texts.", min=0)] = 0,
    hidden_size: Annotated[int, typer.Option(help="Features.", min=5)] = 160,
    layers: Annotated[int, typer.Option(help="Layers.", min=1)] = 5,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.", min=1)] = 100,
    text: Annotated[
        Path | None,
        typer.Option(
            help="Directory with .py files to learn from.", show_default="the standard library"
        ),
    ] = None,
) -> None:
    """Train a small byte-level Llama on the sources of Python's standard library.

    This is how the model `tiny-bytes` was made. The same command continues an interrupted run, and
    gives what an uninterrupted one gives. In the end DIRECTORY/model is a checkpoint for
    `lookahead-jax generate --model DIRECTORY/model`, and loss.png shows how the loss fell.
    """
    from lookahead_jax.models.training.corpus import read_corpus, standard_library
    from lookahead_jax.models.training.export import export
    from lookahead_jax.models.training.loop import TrainingSettings
    from lookahead_jax.models.training.plot import plot_losses
    from lookahead_jax.models.training.run import Loss, held_out_loss, read_losses, train

    settings = TrainingSettings(
        steps=steps,
        batch_size=batch_size,
        length=length,
        learning_rate=learning_rate,
        seed=seed,
        hidden_size=hidden_size,
        num_layers=layers,
    )
    corpus = read_corpus(text or standard_library(), length)
    console = Console(stderr=True)
    console.print(
        f"{len(corpus.training) / 1e6:.1f} MB of text to learn from, "
        f"{len(corpus.held_out) / 1e6:.1f} MB held out"
    )
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[told]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=steps, told="compiling")
        clock = [time.monotonic()]

        def show(loss: Loss) -> None:
            now = time.monotonic()
            speed, clock[0] = batch_size * length / (now - clock[0]), now
            told = f"{loss.training / math.log(2):.3f} bits per byte, {speed:,.0f} bytes/s"
            bar.update(task, completed=loss.step, told=told)
            if loss.held_out is not None:
                bits = loss.held_out / math.log(2)
                bar.console.print(f"step {loss.step}: held out {bits:.3f} bits per byte")

        with _interrupts() as interrupted:
            state = train(
                directory,
                corpus,
                settings,
                save_every=save_every,
                progress=show,
                should_stop=lambda: bool(interrupted),
            )
    if interrupted and int(state.step) < steps:
        console.print(f"stopped and saved after step {int(state.step)}: the same command goes on")
        raise typer.Exit(130)
    export(directory / "model", state.params, settings)
    bits = held_out_loss(state.params, corpus, settings) / math.log(2)
    console.print(f"{directory / 'model'}: {bits:.3f} bits per byte of held-out text")
    plot_losses(directory / "loss.png", read_losses(directory), batch_size * length)


@contextmanager
def _interrupts() -> Iterator[list[bool]]:
    """Collects Ctrl-C instead of raising it in the middle of a step; the second one raises."""
    noted: list[bool] = []

    def note(*_: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def run() -> int:
    """Runs the command; bad input and interrupts are one line."""
    console = Console(stderr=True, highlight=False)
    try:
        code = app(prog_name="python -m lookahead_jax.models.training", standalone_mode=False)
    except LookaheadError as error:
        console.print(f"error: {error}", markup=False)
        return 2
    except typer.TyperException as error:
        console.print(f"error: {error.format_message()} (--help lists the options)", markup=False)
        return 2
    return code or 0


if __name__ == "__main__":
    sys.exit(run())
