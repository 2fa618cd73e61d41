"""What Lookahead Parallelism costs and gains: `python -m benchmarks.parallel_rounds --json`.

Rounds of one sequence on 1, 2, ... devices, by either way of exchanging keys and values, side by
side. On a CPU all devices share the same cores: their rounds take turns, where those of chips would
run at once, so what shows is the work that is done twice, and what exchanging costs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from lookahead_jax.bench.timing import Contender, interleave, timed
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError
from lookahead_jax.generation import Lookahead
from lookahead_jax.models import load_model
from lookahead_jax.programs import Program, Requests, compiled
from lookahead_jax.sampling import Greedy, Policy
from lookahead_jax.sequences import Sequences
from lookahead_jax.sharding import make_mesh
from lookahead_jax.shards import build_shards
from lookahead_jax.typing import LanguageModel

SHAPES = ((7, 5, 7), (15, 5, 15))
ROUNDS_BEFORE, ROUNDS = 16, 4
PROMPT_LENGTH, CAPACITY = 48, 256
ELEMENT_BYTES = {"s32": 4, "u32": 4, "f32": 4, "bf16": 2, "f16": 2, "pred": 1}
COLLECTIVE = re.compile(r"= (.+?) (?:all-reduce|all-gather|collective-permute)(?:-start)?\(")

Record = dict[str, Any]


def measure(
    load: Any, shapes: Sequence[tuple[int, int, int]], counts: Sequence[int], repeats: int
) -> Record:
    """Times rounds in the midst of a generation, all from one text.

    Args:
        load: A function of a mesh, or None, that gives the model on it.
        shapes: W, N, G.
        counts: Numbers of devices to share a round; 1 is the ordinary round, on one.
        repeats: Repetitions; each runs every contender once.
    """
    contenders, facts = {}, {}
    models = {n: load(None if n == 1 else make_mesh(lookahead=n)) for n in counts}
    for count, lm in models.items():
        for shape in shapes:
            for exchange in ("broadcast", "refeed") if count > 1 else ("",):
                name = _name(shape, count, exchange)
                contenders[name], facts[name] = _contender(lm, shape, count, exchange)
    times = interleave(contenders, repeats)
    texts = {(name.partition(" on ")[0], *fact.pop("text")) for name, fact in facts.items()}
    for name, fact in facts.items():
        alone = name.partition(" on ")[0] + " on 1"
        fact["milliseconds"] = times.spread(name).scaled(1e3)
        fact["over_one_device"] = times.ratio(name, alone).scaled(1)
    return {
        "format": "parallel-rounds/1",
        "conditions": _conditions(models[counts[0]], repeats),
        "same_text": len(texts) == len(shapes),
        "rounds": facts,
    }


def _name(shape: tuple[int, int, int], count: int, exchange: str) -> str:
    return f"{shape} on {count} {exchange}".strip()


def _contender(
    lm: LanguageModel, shape: tuple[int, int, int], count: int, exchange: str
) -> tuple[Contender, Record]:
    """Something that runs `ROUNDS` rounds, and what is known of them without a clock."""
    config = LookaheadConfig(*shape)
    policy, rows = Policy(Greedy()), config.num_rows
    decoder = Lookahead(config, policy)
    if count > 1:
        config = dataclasses.replace(config, kv_exchange=exchange)
        decoder = Lookahead(config, policy, num_copies=count)
        rows = build_shards(config, count).num_rows + decoder.lag
    program = Program(decoder, lm.forward, lm.cache_spec, lm.vocab_size, CAPACITY, mesh=lm.mesh)
    prompt = (7 * jnp.arange(PROMPT_LENGTH, dtype=jnp.int32) + 3) % lm.vocab_size
    requests = Requests(
        prompt=prompt[None],
        prompt_length=jnp.asarray([PROMPT_LENGTH], jnp.int32),
        max_new_tokens=jnp.asarray([CAPACITY - PROMPT_LENGTH - 16], jnp.int32),
        stop_tokens=jnp.asarray([[Sequences.NO_STOP]], jnp.int32),
        key=jnp.zeros((1, 2), jnp.uint32),
    )
    watched = np.zeros(1, bool)
    state = jax.jit(program.start)(requests, lm.params)
    advance: Any
    advance, _ = compiled(program, "advance", state, lm.params, np.int32(ROUNDS), watched)
    state = advance(state, lm.params, np.int32(ROUNDS_BEFORE), watched)
    state = jax.block_until_ready(state)
    after = advance(state, lm.params, np.int32(ROUNDS), watched)
    args = (state, lm.params, np.int32(ROUNDS), watched)
    fact = {
        "rows_of_a_device": rows,
        "bytes_exchanged": exchanged_bytes(advance.as_text()),
        "tokens": int(after.sequences.length[0] - state.sequences.length[0]),
        "text": np.asarray(after.sequences.tokens)[0, : int(after.sequences.length[0])].tolist(),
    }
    return Contender(lambda: timed(advance, *args), ROUNDS), fact


def exchanged_bytes(text: str) -> int:
    """Bytes of the results of a program's collective operations, each counted once."""
    total = 0
    for result in COLLECTIVE.findall(text):
        for kind, dims in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", result):
            size = np.prod([int(d) for d in dims.split(",") if d], dtype=int)
            total += ELEMENT_BYTES[kind] * int(size)
    return total


def _conditions(lm: LanguageModel, repeats: int) -> Record:
    return {
        "model": lm.name,
        "dtype": lm.cache_spec.dtype,
        "device": jax.devices()[0].device_kind,
        "platform": jax.devices()[0].platform,
        "cores": os.cpu_count(),
        "capacity": CAPACITY,
        "rounds_before": ROUNDS_BEFORE,
        "rounds_of_a_run": ROUNDS,
        "repeats": repeats,
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "lookahead-jax")},
    }


def table(record: Record) -> Table:
    """For people."""
    view = Table(
        "round", "rows", "bytes", "ms", "over one device", title=record["conditions"]["model"]
    )
    for name, fact in record["rounds"].items():
        ratio, low, high = fact["over_one_device"]["median"], *fact["over_one_device"]["quartiles"]
        view.add_row(
            name,
            str(fact["rows_of_a_device"]),
            str(fact["bytes_exchanged"]),
            f"{fact['milliseconds']['median']:.1f}",
            f"{ratio:.3f} ({low:.3f} - {high:.3f})",
        )
    return view


def main(
    model: Annotated[str, typer.Option(help="Name, directory, .gguf file or hub id.")] = (
        "smollm2-135m"
    ),
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    devices: Annotated[int, typer.Option(min=2, help="Most devices; powers of two up to it.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of every contender.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Times the rounds of Lookahead Parallelism beside those of one device."""
    # XLA reads them when the first device is asked for, which is later.
    flags = f"--xla_force_host_platform_device_count={devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    console = Console(stderr=True)
    counts = [1 << i for i in range(devices.bit_length()) if 1 << i <= devices]
    try:
        record = measure(
            lambda mesh: load_model(model, dtype=dtype, mesh=mesh), SHAPES, counts, repeats
        )
    except LookaheadError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    if as_json:
        json.dump(record, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        console.print(table(record))
        if not record["same_text"]:
            console.print("The texts differ: see lookahead_jax.check.")


if __name__ == "__main__":
    typer.run(main)
