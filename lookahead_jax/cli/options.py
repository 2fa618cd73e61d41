"""The options that several commands share, with the words that explain them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="A named model (see `lookahead-jax models`), a directory with config.json "
        "and safetensors, a .gguf file, or a Hugging Face id org/name.",
    ),
]
WindowOption = Annotated[
    int,
    typer.Option("--window", "-W", help="W: future positions guessed side by side (at least 1)."),
]
NgramOption = Annotated[
    int,
    typer.Option(
        "--ngram", "-N", help="N: length of the n-grams collected; one call gives at most N tokens."
    ),
]
GuessesOption = Annotated[
    int, typer.Option("--guesses", "-G", help="G: collected n-grams verified in each call.")
]
MaxNewTokensOption = Annotated[
    int, typer.Option("--max-new-tokens", "-n", help="Most tokens in an answer.")
]
SystemOption = Annotated[
    str | None,
    typer.Option(
        "--system", help="System prompt, in the place of the one in the model's chat template."
    ),
]
PlainOption = Annotated[
    bool,
    typer.Option(
        "--no-chat-template", help="Continue the prompt as plain text, without chat template."
    ),
]
DtypeOption = Annotated[
    Literal["float32", "bfloat16"],
    typer.Option(
        "--dtype",
        metavar="NAME",
        help="float32, or bfloat16 for half the memory. In float32 the tokens are exactly those of "
        "ordinary decoding; in bfloat16 near-ties may fall differently.",
    ),
]
ValidateOption = Annotated[
    bool,
    typer.Option(
        "--validate",
        help="Check every round before its tokens are published; slower.",
    ),
]
BatchSizeOption = Annotated[
    int, typer.Option("--batch-size", "-b", help="Prompts of a file decoded together.")
]
CacheDirOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        help="Where compiled programs are kept between runs. Else: 'compiled' in the user's cache "
        "directory, or under LOOKAHEAD_JAX_CACHE.",
        show_default=False,
    ),
]
