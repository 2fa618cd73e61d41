"""Commands and options of `lookahead-jax`, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from lookahead_jax.cli.console import close_quietly, make_output_safe, say
from lookahead_jax.cli.engine import Engine
from lookahead_jax.cli.options import (
    BatchSizeOption,
    CacheDirOption,
    DtypeOption,
    GuessesOption,
    MaxNewTokensOption,
    ModelOption,
    NgramOption,
    PlainOption,
    SystemOption,
    ValidateOption,
    WindowOption,
)
from lookahead_jax.errors import LookaheadError

app = typer.Typer(
    name="lookahead-jax",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_INTERRUPTED = 130
_DEFAULT_MODEL = "smollm2-135m"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lookahead-jax {metadata.version('lookahead-jax')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """The text of ordinary decoding, exactly, in fewer model calls.

    Lookahead Decoding lets one unchanged language model guess several future tokens in each call
    and verify earlier guesses in the same call. There is no draft model and nothing is trained.

    Try `lookahead-jax generate "Why is the sky blue?"`
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def generate(
    context: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt, or - to read it from stdin.")
    ] = None,
    model: ModelOption = _DEFAULT_MODEL,
    window: WindowOption = 7,
    ngram: NgramOption = 5,
    guesses: GuessesOption = 7,
    max_new_tokens: MaxNewTokensOption = 128,
    system: SystemOption = None,
    no_chat_template: PlainOption = False,
    dtype: DtypeOption = "float32",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object with text, tokens, rounds and times."),
    ] = False,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline", help="Also decode the ordinary way and compare tokens and time."
        ),
    ] = False,
    validate: ValidateOption = False,
    input_path: Annotated[
        Path | None,
        typer.Option(
            "--input", help="Answer the prompts of this JSONL file: see batch.", show_default=False
        ),
    ] = None,
    output_path: Annotated[
        Path | None,
        typer.Option("--output", help="Where the answers to --input go.", show_default=False),
    ] = None,
    batch_size: BatchSizeOption = 4,
    cache_dir: CacheDirOption = None,
) -> None:
    """Answer one prompt, or a file of them with --input and --output.

    The text goes to stdout as it comes; stderr tells how many model calls it took. Each call runs
    (W + G)(N - 1) rows through the model instead of one. Where arithmetic is cheap beside reading
    the weights (accelerators), larger W, N and G pay; on a CPU small ones do.

    - `lookahead-jax generate "Why is the sky blue?" --baseline`
    - `lookahead-jax generate - --window 5 --ngram 3 --guesses 5 < prompt.txt`
    - `lookahead-jax generate "Count to ten." --json | python -m json.tool`
    """
    from lookahead_jax.cli.batch import run_batch
    from lookahead_jax.cli.generate import generate_one, read_prompt
    from lookahead_jax.cli.settings import make_settings

    settings = make_settings(
        model, dtype, (window, ngram, guesses), max_new_tokens, not no_chat_template
    )
    if input_path is None and output_path is None:
        if prompt is None:
            raise LookaheadError("expected a PROMPT, - for stdin, or --input with --output")
        text = read_prompt(prompt)
        generate_one(
            _engine(context, cache_dir),
            settings,
            text,
            system=system,
            as_json=as_json,
            baseline=baseline,
            validate=validate,
        )
        return
    if input_path is None or output_path is None:
        raise LookaheadError("--input and --output go together; only one of them was given")
    if prompt is not None or as_json or baseline:
        raise LookaheadError(
            "--input takes the place of PROMPT, and goes without --json, --baseline"
        )
    run_batch(
        lambda: _engine(context, cache_dir),
        settings,
        input_path,
        output_path,
        system=system,
        batch_size=batch_size,
        validate=validate,
    )


@app.command()
def batch(
    context: typer.Context,
    input_path: Annotated[Path, typer.Argument(metavar="INPUT.jsonl", help="The prompts.")],
    output_path: Annotated[Path, typer.Argument(metavar="OUTPUT.jsonl", help="The answers.")],
    model: ModelOption = _DEFAULT_MODEL,
    window: WindowOption = 7,
    ngram: NgramOption = 5,
    guesses: GuessesOption = 7,
    max_new_tokens: MaxNewTokensOption = 128,
    system: SystemOption = None,
    no_chat_template: PlainOption = False,
    dtype: DtypeOption = "float32",
    validate: ValidateOption = False,
    batch_size: BatchSizeOption = 4,
    cache_dir: CacheDirOption = None,
) -> None:
    """Answer a file of prompts, several at a time; the same command continues an interrupted run.

    Each input line is an object with "prompt" and, if wanted, "id" (else the line number) and
    "system" (else --system). Each output line has id, text, tokens, finish_reason, rounds and
    tokens_per_round, in the order of the input. Finished groups are on the disk at once.

    A bad input line stops the run before it starts. A prompt that the model refuses, such as one
    that is too long, gets a line with "error" in the place of a text; the others are answered, and
    the exit code is 2. Each line has a fingerprint of its prompt and the options: a file made from
    others is not continued.

    - `lookahead-jax batch prompts.jsonl answers.jsonl --batch-size 8`
    """
    from lookahead_jax.cli.batch import run_batch
    from lookahead_jax.cli.settings import make_settings

    run_batch(
        lambda: _engine(context, cache_dir),
        make_settings(model, dtype, (window, ngram, guesses), max_new_tokens, not no_chat_template),
        input_path,
        output_path,
        system=system,
        batch_size=batch_size,
        validate=validate,
    )


@app.command()
def explain(
    window: WindowOption = 5,
    ngram: NgramOption = 4,
    guesses: GuessesOption = 2,
    candidates: Annotated[
        int | None,
        typer.Option(
            "--candidates", help="How many of the G candidates the pool had.", show_default="G"
        ),
    ] = None,
    stage: Annotated[
        int | None,
        typer.Option(
            "--stage",
            help="Deepest window level that is set: 0 at the start, N - 2 once warm.",
            show_default="N - 2",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="List every row, also where there are many.")
    ] = False,
) -> None:
    """Show the rows of one round, and draw which of them sees which.

    A round packs the last token, the window (N - 1 levels of W columns, on which the model works
    out new n-grams) and G candidates of N - 1 tokens into one model call. The mask keeps these
    branches apart, so that none of them changes what another one says.

    - `lookahead-jax explain --window 5 --ngram 4 --guesses 2`
    - `lookahead-jax explain --stage 0 --candidates 1`
    """
    from rich.console import Console

    from lookahead_jax.cli.explain import print_explanation
    from lookahead_jax.config import LookaheadConfig

    config = LookaheadConfig(window_size=window, ngram_size=ngram, guess_set_size=guesses)
    print_explanation(Console(highlight=False), config, stage, candidates, full)


@app.command()
def models() -> None:
    """List the models that go by a short name."""
    from rich.console import Console

    from lookahead_jax.cli.models import print_models
    from lookahead_jax.models.demo import NAMED_MODELS, cache_directory

    print_models(Console(highlight=False), NAMED_MODELS.values(), str(cache_directory()))


def _engine(context: typer.Context, cache_dir: Path | None) -> Engine:
    if isinstance(context.obj, Engine):
        return context.obj
    from lookahead_jax.cli.engine import jax_engine

    return jax_engine(cache_dir)


def run(arguments: Sequence[str] | None = None, engine: Engine | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: Without the program's name; None for those of the process.
        engine: What to call in the place of the package's own functions.

    Returns:
        The exit code: 0, 2 for bad input, 130 if interrupted.
    """
    make_output_safe()
    try:
        return app(arguments, obj=engine, prog_name="lookahead-jax", standalone_mode=False) or 0
    except LookaheadError as error:
        return _fail(str(error))
    except typer.TyperException as error:
        return _fail(f"{error.format_message().rstrip('.')} (--help lists the options)")
    finally:
        close_quietly()


def _fail(message: str) -> int:
    say("error: " + " ".join(message.split()))
    return 2


def main(engine: Engine | None = None) -> None:
    """The `lookahead-jax` program; `engine` as in `run`."""
    code = run(engine=engine)
    if code == _INTERRUPTED:
        # A computation under way cannot be called off, and an ordinary exit would wait for it.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
