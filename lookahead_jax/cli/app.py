"""Commands and options of `lookahead-jax`."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer

from lookahead_jax.cli.bench_options import BenchOptions
from lookahead_jax.cli.engine import Engine
from lookahead_jax.cli.options import (
    BatchSizeOption,
    ChatOptions,
    GuessesOption,
    LogprobsOption,
    ModelOptions,
    NgramOption,
    PlainOption,
    SystemOption,
    TextOptions,
    ValidateOption,
    WindowOption,
)
from lookahead_jax.cli.plan_options import PlanOptions
from lookahead_jax.cli.processes import join
from lookahead_jax.cli.signature import with_option_groups
from lookahead_jax.errors import LookaheadError

app = typer.Typer(
    name="lookahead-jax",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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

    - `lookahead-jax generate "Why is the sky blue?"`
    - `lookahead-jax generate "Tell me a story." --temperature 0.8 --seed 1`
    - `lookahead-jax chat --show-accepted`
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
@with_option_groups
def generate(
    context: typer.Context,
    options: TextOptions,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt, or - to read it from stdin.")
    ] = None,
    system: SystemOption = None,
    no_chat_template: PlainOption = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object with text, tokens, rounds and times."),
    ] = False,
    logprobs: LogprobsOption = False,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline",
            help="Also decode the ordinary way, with the same options, and compare tokens and "
            "time.",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Read the answer again in a forward pass of its own, and report the first token "
            "that it would not have written, with the gap between the two scores.",
        ),
    ] = False,
    samples: Annotated[
        int,
        typer.Option(
            "--samples",
            metavar="K",
            help="Write K answers, each with draws of its own.",
            rich_help_panel="Sampling",
        ),
    ] = 1,
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
) -> None:
    r"""Answer one prompt, or a file of them with --input and --output.

    The text goes to stdout as it comes; stderr tells how many model calls it took. Each call runs
    (W + G)(N - 1) rows through the model instead of one. Where arithmetic is cheap beside reading
    the weights (accelerators), larger W, N and G pay; on a CPU small ones do.

    Answers are greedy, always the likeliest token, unless --temperature is above 0. The text is
    that of ordinary decoding with the same options (with --method residual, of its distribution).

    - `lookahead-jax generate "Why is the sky blue?" --baseline`
    - `lookahead-jax generate "Tell me a story." --temperature 0.8 --top-p 0.9 --seed 3`
    - `lookahead-jax generate "Name a colour." --temperature 1 --samples 3 --stop "\n"`
    - `lookahead-jax generate - --window 5 --ngram 3 --guesses 5 < prompt.txt`
    - `lookahead-jax generate "Count to ten." --json --logprobs | python -m json.tool`
    - `lookahead-jax generate "Why is the sky blue?" --mesh lookahead=4,model=2`
    """
    from lookahead_jax.cli.batch import run_batch
    from lookahead_jax.cli.generate import check_samples, generate_one, read_prompt
    from lookahead_jax.cli.settings import make_settings

    settings = make_settings(options, use_chat_template=not no_chat_template, logprobs=logprobs)
    check_samples(settings, samples)
    if check and not settings.same_as_ordinary:
        raise LookaheadError(
            "--check compares with what ordinary decoding writes: it needs --method coupled"
        )
    if input_path is None and output_path is None:
        if prompt is None:
            raise LookaheadError("expected a PROMPT, - for stdin, or --input with --output")
        if logprobs and not as_json:
            raise LookaheadError("--logprobs needs --json, which has a place for them")
        if batch_size < 1:
            raise LookaheadError(f"--batch-size must be an integer >= 1, got {batch_size}")
        text = read_prompt(prompt)
        join(context, options)
        generate_one(
            _engine(context, options),
            settings,
            text,
            system=system,
            samples=samples,
            batch_size=batch_size,
            as_json=as_json,
            baseline=baseline,
            check=check,
            validate=validate,
        )
        return
    if input_path is None or output_path is None:
        raise LookaheadError("--input and --output go together; only one of them was given")
    if prompt is not None or as_json or baseline or check or samples > 1:
        raise LookaheadError(
            "--input takes the place of PROMPT, and goes without --json, --baseline, --check, "
            "--samples"
        )
    run_batch(
        lambda: _engine(context, options),
        settings,
        input_path,
        output_path,
        processes=join(context, options),
        system=system,
        batch_size=batch_size,
        validate=validate,
    )


@app.command()
@with_option_groups
def batch(
    context: typer.Context,
    input_path: Annotated[Path, typer.Argument(metavar="INPUT.jsonl", help="The prompts.")],
    output_path: Annotated[Path, typer.Argument(metavar="OUTPUT.jsonl", help="The answers.")],
    options: TextOptions,
    system: SystemOption = None,
    no_chat_template: PlainOption = False,
    logprobs: LogprobsOption = False,
    validate: ValidateOption = False,
    batch_size: BatchSizeOption = 4,
) -> None:
    """Answer a file of prompts, several at a time; the same command continues an interrupted run.

    Each input line is an object with "prompt" and, if wanted, "id" (else the line number), "system"
    (else --system) and "seed" (else --seed). Each output line has id, text, tokens, finish_reason,
    rounds and tokens_per_round, in the order of the input. An answer is on the disk as soon as it
    and all before it are there. Answers do not depend on the batch they were written in.

    A bad input line stops the run before it starts. A prompt that the model refuses, such as one
    that is too long, gets a line with "error" in the place of a text; the others are answered, and
    the exit code is 2. Each line has a fingerprint of its prompt and the options: a file made from
    others is not continued.

    - `lookahead-jax batch prompts.jsonl answers.jsonl --batch-size 8`
    - `lookahead-jax batch prompts.jsonl answers.jsonl --temperature 0.7 --stop "###"`
    """
    from lookahead_jax.cli.batch import run_batch
    from lookahead_jax.cli.settings import make_settings

    settings = make_settings(options, use_chat_template=not no_chat_template, logprobs=logprobs)
    run_batch(
        lambda: _engine(context, options),
        settings,
        input_path,
        output_path,
        processes=join(context, options),
        system=system,
        batch_size=batch_size,
        validate=validate,
    )


@app.command()
@with_option_groups
def chat(
    context: typer.Context,
    options: ChatOptions,
    system: SystemOption = None,
    show_accepted: Annotated[
        bool,
        typer.Option(
            "--show-accepted",
            help="Colour the text that came several tokens at a time, out of one model call.",
        ),
    ] = False,
) -> None:
    r"""Talk with the model. What it has read and written is kept: a turn reads only what is new.

    Answers stream as they come; after each, a line on stderr tells what it cost. Ctrl-C stops an
    answer and keeps what was written. /stats tells what the conversation has cost, /reset forgets
    it, /help lists the commands, /exit or Ctrl-D ends the chat. Without a terminal, each line of
    stdin is a message or a command.

    - `lookahead-jax chat --show-accepted`
    - `lookahead-jax chat --system "Answer in one sentence." --temperature 0.7 --seed 5`
    - `printf 'Name a river.\nAnd another.\n/stats\n' | lookahead-jax chat`
    """
    from lookahead_jax.cli.chat import run_chat
    from lookahead_jax.cli.settings import make_settings

    settings = make_settings(options)
    if join(context, options).count > 1:
        raise LookaheadError("a chat has one terminal: expected one process")
    run_chat(_engine(context, options), settings, system=system, show_accepted=show_accepted)


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
@with_option_groups
def bench(context: typer.Context, options: BenchOptions) -> None:
    r"""Measure lookahead decoding beside ordinary decoding, over a grid of W, N and G.

    Every text is written by both decoders right after each other, --repeats times at each W, N and
    G, and compared token for token: a setting that writes another text is marked, and the exit code
    is 1. Times are those of the loop on the device, in which `generate` runs too; prefill and
    compilation are apart. Ratios are taken within a repetition; told are medians and quartiles.

    An interrupted run goes on where it stopped, and a larger grid or more --repeats are added to
    what is there. Compiled programs are not kept between runs, so that compile seconds are real;
    --cache-dir keeps them, and saves their time.

    - `lookahead-jax bench --output results`
    - `lookahead-jax bench -m tiny-bytes --grid "W=3,5,7,15 N=3,5 G=3,7,15" -n 128 -o results`
    - `lookahead-jax bench --prompts spec_bench.jsonl --per-category 2 --dtype bfloat16 -o spec`
    - `lookahead-jax bench --temperature 0.8 --mesh lookahead=4 --batch-size 2 -o sampled`
    - `lookahead-jax bench --grid "W=7 N=5 G=7" --per-category 1 --profile traces -o results`
    """
    from lookahead_jax.cli.bench import run_bench

    run_bench(lambda: _engine(context, options, keep_programs=False), options)


@app.command()
@with_option_groups
def plan(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="A well-known shape such as llama-3.1-8b or qwen3-4b, a directory with "
            "config.json or one that `convert` made, a .gguf file, or a Hugging Face id, of which "
            "config.json alone is fetched. No weights are read.",
        ),
    ],
    tpu: Annotated[
        str,
        typer.Option(
            "--tpu",
            metavar="SLICE",
            help="The chips: v5e-8, v6e-4, ... The number counts chips for v5e and v6e, but cores "
            "for v4, v5p and tpu7x, two to a chip: v5p-8 is four chips.",
        ),
    ],
    options: PlanOptions,
) -> None:
    """Estimate what a model takes on a TPU, and what lookahead gains there, before renting one.

    Told are the memory of a chip and whether the model fits it (if not, what would), bytes and
    FLOPs of a round, its time over an ordinary step's, and the number of rows up to which they
    are free. On an accelerator, a call that reads all weights for one row computes dozens more in
    the same time: these are the rows that lookahead decoding uses.

    How much faster a text gets depends on how much of the guesses is accepted, which only the text
    decides: measure it with `generate --json` on any machine, and give it to --measured.

    - `lookahead-jax plan --model llama-3.1-8b --tpu v5e-8 --window 15 --guesses 15`
    - `lookahead-jax plan -m qwen3-4b --tpu v6e-1 --int8 --acceptance 0.7 --hit-rate 0.8`
    - `lookahead-jax plan -m llama-3.1-70b --tpu v5p-8 --mesh model=4 --batch 8`
    - `lookahead-jax plan -m phi-4 --tpu v5e-8 -a 0.7 --grid "W=3,7,15 N=3,5 G=3,7" -o g.png`
    """
    from lookahead_jax.cli.plan import run_plan
    from lookahead_jax.models.shapes import find_shape

    run_plan(model, tpu, options, find_shape)


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="The model: whatever --model of other commands takes."),
    ],
    destination: Annotated[
        Path, typer.Argument(metavar="DST", help="The directory to make.", show_default=False)
    ],
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(
            "--dtype",
            metavar="NAME",
            help="float32, bfloat16 or float16. Else: what the matrices of SRC have, and float32 "
            "where they are quantised or not all alike.",
            show_default=False,
        ),
    ] = None,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Store matrices as int8 with a scale for each output channel."),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace the checkpoint that is at DST, once the new one is whole."
        ),
    ] = False,
) -> None:
    """Write a model as a checkpoint in its final form: parameters by Orbax, and the tokenizer.

    Nothing has to be dequantised, renamed or turned around any more when DST is loaded, and each
    device reads its own part of it. A run that is interrupted leaves DST as it was.

    The model is in the host's memory meanwhile; no accelerator is needed.

    - `lookahead-jax convert smollm2-135m smollm2 --dtype bfloat16`
    - `lookahead-jax generate "Why is the sky blue?" --model smollm2 --dtype bfloat16`
    """
    from lookahead_jax.cli.convert import run_convert

    run_convert(source, destination, dtype, int8, overwrite)


@app.command()
def models() -> None:
    """List the families of models, and the models that go by a short name."""
    from rich.console import Console

    from lookahead_jax.cli.models import print_models
    from lookahead_jax.models.demo import cache_directory
    from lookahead_jax.models.families import FAMILIES
    from lookahead_jax.models.named_models import BUNDLED_MODELS, NAMED_MODELS

    named = (*BUNDLED_MODELS.values(), *NAMED_MODELS.values())
    print_models(Console(highlight=False), FAMILIES, named, str(cache_directory()))


def _engine(context: typer.Context, options: ModelOptions, *, keep_programs: bool = True) -> Engine:
    if isinstance(context.obj, Engine):
        return context.obj
    from lookahead_jax.cli.engine import jax_engine

    return jax_engine(options.cache_dir, keep_programs=keep_programs)
