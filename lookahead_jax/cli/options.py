"""The options that several commands share, with the words that explain them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

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
PoolSlotsOption = Annotated[
    int | None,
    typer.Option(
        "--pool-slots",
        metavar="K",
        help="Keep the n-grams of K tokens at a time, hashed, instead of those of the whole "
        "vocabulary: less memory, perhaps more calls, the same text.",
        show_default=False,
    ),
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
ValidateOption = Annotated[
    bool,
    typer.Option(
        "--validate",
        help="Check every round before its tokens are published; slower.",
    ),
]
BatchSizeOption = Annotated[
    int,
    typer.Option(
        "--batch-size",
        "-b",
        help="Texts decoded together; the next one takes a finished one's place.",
    ),
]
KVExchangeOption = Annotated[
    Literal["broadcast", "refeed"],
    typer.Option(
        "--kv-exchange",
        metavar="NAME",
        help="How copies of the model come by the keys and values of accepted tokens: broadcast "
        "from the copy that has them, or refeed: each computes them again, N - 1 rows more a "
        "call. The text is the same.",
        rich_help_panel="Several devices",
    ),
]
LogprobsOption = Annotated[
    bool,
    typer.Option(
        "--logprobs",
        help="Add each token's log-probability to the JSON: processed, as it was chosen from, and "
        "raw, as the model gave it.",
    ),
]


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and where its compiled programs are kept."""

    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="A named model (see `lookahead-jax models`), a directory with config.json "
            "and safetensors or one that `convert` made, a .gguf file, or a Hugging Face id "
            "org/name.",
        ),
    ] = "smollm2-135m"
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        typer.Option(
            "--dtype",
            metavar="NAME",
            help="float32, or bfloat16 or float16 for half the memory. In float32 the tokens are "
            "exactly those of ordinary decoding; in the others near-ties may fall differently: "
            "see --check.",
        ),
    ] = "float32"
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Keep matrices as int8 with a scale for each output channel: a quarter of "
            "float32's memory. Another model than the whole one, if a near one; lookahead and "
            "ordinary decoding agree on it as they do on any other.",
        ),
    ] = False
    attention: Annotated[
        Literal["auto", "dense", "split", "pallas-tpu", "pallas-gpu"],
        typer.Option(
            "--attention",
            metavar="NAME",
            help="How attention is computed. auto: what serves the machine best. dense: over the "
            "whole cache, the reference. split: plain XLA along the live text. pallas-tpu, "
            "pallas-gpu: a kernel of our own.",
        ),
    ] = "auto"
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            "--cache-dir",
            help="Where compiled programs are kept between runs. Else: 'compiled' in the user's "
            "cache directory, or under LOOKAHEAD_JAX_CACHE.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True)
class MeshOptions:
    """On which devices."""

    mesh: Annotated[
        str | None,
        typer.Option(
            "--mesh",
            metavar="AXES",
            help="Run on several devices: data=1,lookahead=4,model=2. data: groups that share the "
            "batch. lookahead: copies of the model that share the rows of each call. model: "
            "devices that share the weights of a copy. Axes left out are 1.",
            rich_help_panel="Several devices",
            show_default=False,
        ),
    ] = None
    kv_exchange: KVExchangeOption = "broadcast"


@dataclass(frozen=True)
class DeviceOptions(MeshOptions):
    """On which devices, and with which other processes."""

    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="The same command runs on every host; they find each other, as on a Cloud TPU "
            "slice. The first one prints and writes.",
            rich_help_panel="Several devices",
        ),
    ] = False
    coordinator: Annotated[
        str | None,
        typer.Option(
            "--coordinator",
            metavar="HOST:PORT",
            help="Where hosts that cannot find each other meet: a port of the first one.",
            rich_help_panel="Several devices",
            show_default=False,
        ),
    ] = None
    num_processes: Annotated[
        int | None,
        typer.Option(
            "--num-processes",
            help="With --coordinator: how many there are.",
            rich_help_panel="Several devices",
            show_default=False,
        ),
    ] = None
    process_id: Annotated[
        int | None,
        typer.Option(
            "--process-id",
            help="With --coordinator: which one this is, from 0.",
            rich_help_panel="Several devices",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True)
class DecodingOptions:
    """The schedule of lookahead decoding, and the length of an answer."""

    window: WindowOption = 7
    ngram: NgramOption = 5
    guesses: GuessesOption = 7
    pool_slots: PoolSlotsOption = None
    max_new_tokens: MaxNewTokensOption = 128


@dataclass(frozen=True)
class SamplingOptions:
    """How a token is drawn."""

    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            "-t",
            help="Draw tokens instead of taking the likeliest. Below 1 likely ones come more "
            "often, above 1 less; 0 is greedy.",
            rich_help_panel="Sampling",
        ),
    ] = 0.0
    top_k: Annotated[
        int,
        typer.Option(
            "--top-k",
            help="Draw from the K likeliest tokens only; 0 for all.",
            rich_help_panel="Sampling",
        ),
    ] = 0
    top_p: Annotated[
        float,
        typer.Option(
            "--top-p",
            help="Draw from the likeliest tokens that make up this share of the probability; "
            "1 for all.",
            rich_help_panel="Sampling",
        ),
    ] = 1.0
    min_p: Annotated[
        float,
        typer.Option(
            "--min-p",
            help="Leave out tokens below this fraction of the likeliest one's probability; "
            "0 for none.",
            rich_help_panel="Sampling",
        ),
    ] = 0.0
    seed: Annotated[
        int,
        typer.Option(
            "--seed", help="The same seed gives the same text.", rich_help_panel="Sampling"
        ),
    ] = 0
    method: Annotated[
        Literal["coupled", "residual"],
        typer.Option(
            "--method",
            metavar="NAME",
            help="coupled: the text is ordinary sampling's under the same seed, token for token. "
            "residual: it is drawn from the same distribution, with other draws.",
            rich_help_panel="Sampling",
        ),
    ] = "coupled"


@dataclass(frozen=True)
class LogitOptions:
    """What changes the logits before a token is chosen, greedily or not."""

    repetition_penalty: Annotated[
        float,
        typer.Option(
            "--repetition-penalty",
            help="Above 1, tokens of prompt and answer become less likely to come again.",
            rich_help_panel="Logits",
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        typer.Option(
            "--presence-penalty",
            help="Taken off the logits of tokens that are in the answer.",
            rich_help_panel="Logits",
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        typer.Option(
            "--frequency-penalty",
            help="Taken off a token's logit for each time it is in the answer.",
            rich_help_panel="Logits",
        ),
    ] = 0.0
    no_repeat_ngram: Annotated[
        int,
        typer.Option(
            "--no-repeat-ngram",
            metavar="LENGTH",
            help="No LENGTH tokens in a row twice; 0 allows it.",
            rich_help_panel="Logits",
        ),
    ] = 0
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias",
            metavar="TOKEN=BIAS",
            help="Add BIAS to the logit of a token id (--json shows ids). Repeatable.",
            rich_help_panel="Logits",
            show_default=False,
        ),
    ] = None
    ban: Annotated[
        list[int] | None,
        typer.Option(
            "--ban",
            metavar="TOKEN",
            help="Never write this token id. Repeatable.",
            rich_help_panel="Logits",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True)
class StopOptions:
    """Where an answer ends, and where it must not."""

    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop",
            metavar="TEXT",
            help="End the answer before TEXT; in it, \\n is a line break, \\t a tab. Repeatable.",
            rich_help_panel="Stopping",
            show_default=False,
        ),
    ] = None
    min_new_tokens: Annotated[
        int,
        typer.Option(
            "--min-new-tokens",
            help="The model cannot end its answer before this many tokens.",
            rich_help_panel="Stopping",
        ),
    ] = 0


@dataclass(frozen=True)
class TextOptions(
    DeviceOptions, StopOptions, LogitOptions, SamplingOptions, DecodingOptions, ModelOptions
):
    """All of these. The last class named comes first in the help."""


@dataclass(frozen=True)
class ChatOptions(TextOptions):
    """The same, with longer answers."""

    max_new_tokens: MaxNewTokensOption = 256
