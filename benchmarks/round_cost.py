"""What a round, a step and loading cost: `python -m benchmarks.round_cost --json`.

All ratios come from one run on one machine, so they can be held against a bar where absolute times
cannot. README.md says what each figure means.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import rivals
from benchmarks.memory import loading_memory
from benchmarks.operations import (
    aliased_outputs,
    compile_for_tpu,
    copies_of,
    device_operations,
)
from benchmarks.streaming import cpu_name, num_cores, stream_contenders
from benchmarks.subjects import ROUNDS_BEFORE, Call, Scene
from lookahead_jax.bench.timing import Contender, Times, interleave
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError
from lookahead_jax.models import load_model
from lookahead_jax.sampling import Sample
from lookahead_jax.typing import LanguageModel

FULL = LookaheadConfig(window_size=7, ngram_size=5, guess_set_size=7)
EIGHT_ROWS = LookaheadConfig(window_size=2, ngram_size=3, guess_set_size=2)
SIXTEEN_ROWS = LookaheadConfig(window_size=4, ngram_size=3, guess_set_size=4)

SAMPLING = Sample(temperature=0.8, top_k=50, top_p=0.95, min_p=0.01)
"""Every filter at work."""

PROMPT = "Write a Python class for a bank account: deposit, withdraw, transfer, tests."
PROMPT_LENGTH = 48
"""Tokens of the made-up prompt of a model without a tokenizer."""

TOKENS_PER_TURN = 32
"""Tokens that the two ordinary decoders write in turn."""

STEP, OURS, THEIRS = "ordinary step", "ordinary decoding", "transformers"
ROUND, FORWARD = "round (7, 5, 7)", "forward (7, 5, 7)"
SAMPLED = "sampled round (7, 5, 7)"
ROUND_8, ROUND_16 = "round (2, 3, 2)", "round (4, 3, 4)"

AT_MOST = {
    "round_over_forward": 1.10,
    "step_over_stream": 1.3,
    "step_over_transformers": 0.45,
    "sampled_round_over_forward": 1.15,
    "q8_over_step": 1.5,
    "q16_over_step": 2.0,
}

Record = dict[str, Any]


def measure(
    lm: LanguageModel,
    *,
    repeats: int,
    max_new_tokens: int = 128,
    tpu: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> Record:
    """Times everything in one run.

    Args:
        lm: The model.
        repeats: Repetitions; each runs every contender once.
        max_new_tokens: Room for output behind the prompt.
        tpu: Also count the operations of the programs of a TPU; needs libtpu.
        progress: Called after every repetition.

    Returns:
        `conditions`, `figures` and `milliseconds`, for JSON.
    """
    load_before = os.getloadavg()[0]
    prompt = _prompt(lm)
    scene = Scene.open(lm, prompt, max_new_tokens)
    round_call, step = scene.lookahead(FULL), scene.ordinary()
    forward = scene.forward(FULL, round_call.args[0])
    calls = {
        STEP: step,
        ROUND: round_call,
        FORWARD: forward,
        SAMPLED: scene.lookahead(FULL, SAMPLING),
        ROUND_8: scene.lookahead(EIGHT_ROWS),
        ROUND_16: scene.lookahead(SIXTEEN_ROWS),
    }
    operations = _operations(round_call, forward, tpu)
    contenders = {name: Contender(call.seconds) for name, call in calls.items()}
    ours = scene.generation(TOKENS_PER_TURN)
    contenders[OURS] = Contender(ours.seconds, TOKENS_PER_TURN)
    reason = rivals.why_not(lm)
    compared: Record = {"reason": reason}
    if reason is None:
        theirs = rivals.TransformersModel(lm)
        run = rivals.writer(theirs, prompt, TOKENS_PER_TURN)
        contenders[THEIRS] = Contender(run, TOKENS_PER_TURN)
        compared = {"threads": theirs.threads, "identical": _same_text(ours, theirs, prompt)}
    with ThreadPoolExecutor(num_cores()) as executor:
        streams = stream_contenders(lm.params, executor)
        times = interleave({**contenders, **streams}, repeats, progress=progress)

    return {
        "format": "round-cost/1",
        "conditions": _conditions(lm, scene, step, repeats, reason is None)
        | {"load_average": [round(load_before, 2), round(os.getloadavg()[0], 2)]},
        "figures": _ratios(times, list(streams), compared)
        | {
            "device_operations": operations,
            "cache_copies": _cache_copies(round_call),
        },
        "milliseconds": {name: times.spread(name).scaled(1e3) for name in times.seconds},
    }


def _prompt(lm: LanguageModel) -> tuple[int, ...]:
    if lm.tokenizer is None:
        return tuple((7 * i + 3) % lm.vocab_size for i in range(PROMPT_LENGTH))
    if lm.tokenizer.has_chat_template:
        return tuple(lm.tokenizer.encode_chat([{"role": "user", "content": PROMPT}]))
    return tuple(lm.tokenizer.encode(PROMPT))


def _same_text(ours: Call, theirs: rivals.TransformersModel, prompt: tuple[int, ...]) -> bool:
    """Whether the two decoders that are compared write the same."""
    written = ours.result().sequences.tokens[0, len(prompt) : len(prompt) + TOKENS_PER_TURN]
    return written.tolist() == theirs.generate(prompt, TOKENS_PER_TURN)[0][:TOKENS_PER_TURN]


def _ratios(times: Times, streams: list[str], compared: Record) -> Record:
    fastest = times.fastest(streams)
    pairs = {
        "round_over_forward": (ROUND, FORWARD),
        "sampled_round_over_forward": (SAMPLED, FORWARD),
        "step_over_stream": (STEP, fastest),
        "decoding_over_stream": (OURS, fastest),
        "step_over_transformers": (OURS, THEIRS),
        "q8_over_step": (ROUND_8, STEP),
        "q16_over_step": (ROUND_16, STEP),
    }
    figures: Record = {}
    for name, (over, under) in pairs.items():
        figure: Record = {"at_most": AT_MOST.get(name), "over": over, "under": under}
        if over in times.seconds and under in times.seconds:
            figures[name] = figure | times.ratio(over, under).scaled(1)
        else:
            figures[name] = figure | {"median": None}
    figures["step_over_transformers"] |= compared
    return figures


def _operations(round_call: Call, forward: Call, tpu: bool) -> Record:
    """Of a round, of its bare forward pass, and what the round adds."""
    counted: Record = {platform_name(): _compare(round_call.text, forward.text)}
    if tpu:
        counted["tpu v5e"] = _compare(
            *(
                compile_for_tpu(call.function, *call.args, donate=call.donate)
                for call in (round_call, forward)
            )
        )
    return counted


def _compare(round_text: str, forward_text: str) -> Record:
    whole, bare = device_operations(round_text), device_operations(forward_text)
    return {
        "round": whole.total(),
        "forward": bare.total(),
        "added": whole.total() - bare.total(),
        "round_by_opcode": dict(whole.most_common()),
        "forward_by_opcode": dict(bare.most_common()),
    }


def _cache_copies(round_call: Call) -> Record:
    """Copies of a whole cache buffer in a round, and buffers of the state that it reuses."""
    buffers = round_call.args[0].cache.keys
    text = round_call.text
    return {
        "copies": copies_of(text, buffers[0].shape),
        "at_most": 0,
        "buffers": 2 * len(buffers),
        "state_leaves": len(jax.tree.leaves(round_call.args[0])),
        "aliased_outputs": aliased_outputs(text),
    }


def platform_name() -> str:
    """Of the device that runs the programs."""
    return jax.devices()[0].platform


def _conditions(
    lm: LanguageModel, scene: Scene, step: Call, repeats: int, with_torch: bool
) -> Record:
    packages = ("jax", "jaxlib", "flax", "numpy", "lookahead-jax")
    return {
        "model": lm.name,
        "dtype": lm.cache_spec.dtype,
        "weights_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(lm.params)),
        "device": jax.devices()[0].device_kind,
        "cpu": cpu_name(),
        "cores": num_cores(),
        "prompt_tokens": int(scene.sequences.prompt_length[0]),
        "rounds_before": ROUNDS_BEFORE,
        "cached_tokens_of_step": int(step.args[0].cache.length[0]),
        "capacity": scene.capacity,
        "batch": 1,
        "repeats": repeats,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in packages}
        | (rivals.versions() if with_torch else {}),
    }


def table(record: Record) -> Table:
    """The ratios and the times, for people."""
    view = Table("figure", "median", "quartiles", "at most", title=record["conditions"]["model"])
    for name, figure in record["figures"].items():
        if "median" not in figure:
            continue
        if figure["median"] is None:
            view.add_row(name, "-", figure.get("reason", ""), _bar_of(figure))
        else:
            view.add_row(name, *_cells(figure, 3), _bar_of(figure))
    for name, figure in record["figures"]["device_operations"].items():
        view.add_row(f"operations a round adds ({name})", str(figure["added"]), "", "")
    copies = record["figures"]["cache_copies"]
    view.add_row("cache copies a round", str(copies["copies"]), "", str(copies["at_most"]))
    if memory := record["figures"].get("loading_memory"):
        mib = {key: f"{memory[key] >> 20} MiB" for key in ("peak_bytes", "at_most_bytes")}
        view.add_row("loading, peak memory", mib["peak_bytes"], "", mib["at_most_bytes"])
    view.add_section()
    for name, spread in record["milliseconds"].items():
        median, quartiles = _cells(spread, 1)
        view.add_row(name, f"{median} ms", quartiles, "")
    return view


def _bar_of(figure: Record) -> str:
    return "" if figure["at_most"] is None else str(figure["at_most"])


def _cells(spread: Record, digits: int) -> tuple[str, str]:
    low, high = spread["quartiles"]
    return f"{spread['median']:.{digits}f}", f"{low:.{digits}f} - {high:.{digits}f}"


def main(
    model: Annotated[str, typer.Option(help="Name, directory, .gguf file or hub id.")] = (
        "smollm2-135m"
    ),
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of every contender.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    tpu: Annotated[bool, typer.Option("--tpu", help="Also read a TPU's programs.")] = False,
) -> None:
    """Times rounds, steps and forward passes of a model, side by side."""
    console = Console(stderr=True)
    try:
        with _bar(console, repeats) as advance:
            lm = load_model(model, dtype=dtype)
            record = measure(lm, repeats=repeats, tpu=tpu, progress=advance)
        record["figures"]["loading_memory"] = loading_memory(model, dtype)
    except LookaheadError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    if as_json:
        json.dump(record, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        console.print(table(record))


@contextmanager
def _bar(console: Console, repeats: int) -> Any:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Measuring", total=repeats)
        yield lambda: bar.advance(task)


if __name__ == "__main__":
    typer.run(main)
