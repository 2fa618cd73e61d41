"""What fewer bits cost: `python -m benchmarks.precision`.

Two questions, for each way of keeping a model (float32, bfloat16, float16, int8 weights):

- How far is it from the float32 model? Loss on a text, and how often another token is likeliest.
- How often do lookahead and ordinary decoding write different tokens, and by how little do the two
  tokens differ where they part?

README.md says what each figure means.
"""

from __future__ import annotations

import functools
import json
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from lookahead_jax import LookaheadConfig, autoregressive, check, generate
from lookahead_jax.errors import LookaheadError
from lookahead_jax.kv_cache import init_cache
from lookahead_jax.models import load_model
from lookahead_jax.typing import Array, LanguageModel

WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "float32, int8": {"int8": True},
    "bfloat16, int8": {"dtype": "bfloat16", "int8": True},
}
"""Arguments of `load_model`."""

CONFIG = LookaheadConfig(window_size=7, ngram_size=5, guess_set_size=7)

Record = dict[str, Any]


@dataclass(frozen=True)
class Quality:
    """A model's predictions of one text, token after token."""

    losses: np.ndarray  # float32 [n], nats
    likeliest: np.ndarray  # int32 [n]


def predictions(lm: LanguageModel, tokens: np.ndarray) -> Quality:
    """Predicts every token but the first of texts int32 [n, T], each on its own."""

    @jax.jit
    def predict(params: Any, text: Array) -> tuple[Array, Array]:
        rows = jnp.arange(text.shape[1], dtype=jnp.int32)[None]
        mask = rows[:, :, None] >= rows[:, None, :]
        logits, _ = lm.forward(params, text, rows, mask, init_cache(lm.cache_spec, 1, 1), rows)
        log_p = jax.nn.log_softmax(logits[0, :-1])
        wanted = jnp.take_along_axis(log_p, text[0, 1:, None], axis=-1)[:, 0]
        return -wanted, jnp.argmax(log_p, axis=-1)

    found = [predict(lm.params, jnp.asarray(text)[None]) for text in tokens]
    losses, likeliest = (np.concatenate([np.asarray(x[i]) for x in found]) for i in range(2))
    return Quality(losses, likeliest)


def texts_of(lm: LanguageModel, count: int, length: int) -> np.ndarray:
    """English that every machine has: the help texts of Python, int32 [count, length]."""
    from pydoc_data.topics import topics

    if lm.tokenizer is None:
        raise LookaheadError(f"{lm.name} has no tokenizer: expected a model that reads text")
    tokens: list[int] = []
    for name in sorted(topics):
        if len(tokens) >= count * length:
            break
        tokens += lm.tokenizer.encode(topics[name])
    return np.array(tokens[: count * length], np.int32).reshape(count, length)


def divergence(lm: LanguageModel, prompts: list[tuple[int, ...]], max_new_tokens: int) -> Record:
    """How often lookahead and ordinary decoding part, and by which gap."""
    options: Any = {"max_new_tokens": max_new_tokens, "stop_tokens": (), "batch_size": 1}
    ours = generate(lm, prompts, config=CONFIG, **options)
    ordinary = autoregressive.generate(lm, prompts, **options)
    gaps, compared = [], 0
    for one, other in zip(ours, ordinary, strict=True):
        pairs = zip(one.tokens, other.tokens, strict=True)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        compared += len(one.tokens) if at is None else at + 1
        if at is not None:
            # Of the two tokens at the parting, a separate pass prefers one, or ties.
            told = [check(lm, x, stop_tokens=()) for x in (one, other)]
            found = [d.gap for r in told for d in r.divergences if d.index == at]
            gaps.append(max(found, default=0.0))
    texts = [check(lm, x, stop_tokens=()) for x in ours]
    rechecked = [d.gap for report in texts for d in report.divergences]
    return {
        "texts": len(prompts),
        "texts_that_part": len(gaps),
        "tokens_compared": compared,
        "gaps_at_the_parting": sorted(gaps),
        "tokens_checked": sum(report.tokens for report in texts),
        "tokens_a_separate_pass_differs_on": len(rechecked),
        "greatest_gap_of_the_check": max(rechecked, default=0.0),
        "smallest_margin": min(report.smallest_margin for report in texts),
    }


def measure(
    model: str,
    *,
    texts: int,
    length: int,
    prompts: int,
    max_new_tokens: int,
    progress: Callable[[], None] = lambda: None,
) -> Record:
    """Measures every way; nothing else may be changed between them."""
    load = functools.partial(load_model, model, progress=lambda done, total: None)
    reference: Quality | None = None
    rows: Record = {}
    for name, arguments in WAYS.items():
        lm = load(**arguments)
        tokens = texts_of(lm, texts, length)
        quality = predictions(lm, tokens)
        reference = reference or quality
        beginnings = [tuple(row[: length // 4].tolist()) for row in tokens[:prompts]]
        rows[name] = {
            "megabytes": sum(x.nbytes for x in jax.tree.leaves(lm.params)) / 1e6,
            "loss": float(quality.losses.mean()),
            "perplexity": math.exp(quality.losses.mean()),
            "perplexity_ratio": math.exp((quality.losses - reference.losses).mean()),
            "same_likeliest": float(np.mean(quality.likeliest == reference.likeliest)),
            **divergence(lm, beginnings, max_new_tokens),
        }
        progress()
    return {
        "model": model,
        "tokens": texts * (length - 1),
        "text": "pydoc_data.topics of Python " + platform.python_version(),
        "config": [CONFIG.window_size, CONFIG.ngram_size, CONFIG.guess_set_size],
        "max_new_tokens": max_new_tokens,
        "device": jax.devices()[0].device_kind,
        "jax": metadata.version("jax"),
        "ways": rows,
    }


def show(console: Console, record: Record) -> None:
    """Prints the record as two tables."""
    quality = Table(title=f"{record['model']}: {record['tokens']} tokens of English")
    for heading in ("kept as", "MB", "perplexity", "over float32's", "same likeliest token"):
        quality.add_column(heading, justify="left" if heading == "kept as" else "right")
    exactness = Table(title="lookahead against ordinary decoding, and against a separate pass")
    for heading in ("kept as", "texts that part", "gaps there", "check differs", "greatest gap"):
        exactness.add_column(heading, justify="left" if heading == "kept as" else "right")
    for name, row in record["ways"].items():
        quality.add_row(
            name,
            f"{row['megabytes']:.0f}",
            f"{row['perplexity']:.3f}",
            f"{row['perplexity_ratio']:.4f}",
            f"{row['same_likeliest']:.2%}",
        )
        exactness.add_row(
            name,
            f"{row['texts_that_part']} of {row['texts']}, {row['tokens_compared']} tokens",
            ", ".join(f"{gap:.4g}" for gap in row["gaps_at_the_parting"]) or "-",
            f"{row['tokens_a_separate_pass_differs_on']} of {row['tokens_checked']} tokens",
            f"{row['greatest_gap_of_the_check']:.4g}",
        )
    console.print(quality)
    console.print(exactness)


def main(
    model: Annotated[str, typer.Option(help="What load_model takes.")] = "smollm2-135m",
    texts: Annotated[int, typer.Option(help="Texts for the loss.", min=1)] = 32,
    length: Annotated[int, typer.Option(help="Tokens of each.", min=8)] = 256,
    prompts: Annotated[int, typer.Option(help="Texts that are continued.", min=1)] = 12,
    max_new_tokens: Annotated[int, typer.Option(help="By so many tokens.", min=1)] = 96,
    output: Annotated[Path | None, typer.Option(help="A JSON file for the figures.")] = None,
) -> None:
    """Measure what bfloat16, float16 and int8 weights cost in quality and in exactness."""
    console = Console(stderr=True)
    with Progress(console=console) as bar:
        task = bar.add_task("Measuring", total=len(WAYS))
        record = measure(
            model,
            texts=texts,
            length=length,
            prompts=min(prompts, texts),
            max_new_tokens=max_new_tokens,
            progress=lambda: bar.advance(task),
        )
    if output is not None:
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    show(Console(width=110), record)


if __name__ == "__main__":
    typer.run(main)
