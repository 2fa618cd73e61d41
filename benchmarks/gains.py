"""Tokens per model call on the golden prompts, and whether the text is the golden one.

`python -m benchmarks.gains` prints the table of the README; with `--temperature` it samples, and
compares what the window may guess. It counts calls, so it can run on a busy machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lookahead_jax import (
    GenerationResult,
    LanguageModel,
    LookaheadConfig,
    Options,
    Sample,
    WindowAdvance,
    WindowProposals,
    autoregressive,
    generate,
)
from lookahead_jax.models import load_model

GOLDEN = Path(__file__).parent.parent / "tests" / "data" / "golden_smollm2.json"
PROMPTS = ("question", "python", "arithmetic", "story", "french", "raw_code", "instructions")
CONFIGS = {
    "(3, 3, 3)": LookaheadConfig(3, 3, 3),
    "(5, 4, 5)": LookaheadConfig(5, 4, 5),
    "(7, 5, 7)": LookaheadConfig(7, 5, 7),
    "(7, 5, 7) by accepted": LookaheadConfig(7, 5, 7, advance=WindowAdvance.BY_ACCEPTED),
    "pinned (7, 5, 7)": LookaheadConfig.pinned(7, 5, 7),
}


def main(
    model: Annotated[str, typer.Option(help="The demo model or its file.")] = "smollm2-135m",
    temperature: Annotated[
        float, typer.Option(min=0, help="Above 0: sampled texts, and what the window guesses.")
    ] = 0.0,
    top_p: Annotated[float, typer.Option(help="With a temperature: nucleus sampling.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="With a temperature: texts a prompt.")] = 2,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens a text.")] = 128,
):
    """Counts model calls per prompt and configuration."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    prompts = {p["name"]: p for p in golden["prompts"] if p["name"] in PROMPTS}
    lm = load_model(model)
    if temperature > 0:
        sampling = Sample(temperature=temperature, top_p=top_p)
        _sampled(lm, [prompts[name] for name in PROMPTS], sampling, seeds, max_new_tokens)
        return
    table = Table("prompt", *CONFIGS)
    rows = {name: [name] for name in PROMPTS}
    totals = ["all"]
    for config in CONFIGS.values():
        tokens = rounds = 0
        for name in PROMPTS:
            prompt = prompts[name]
            result = generate(
                lm, prompt["prompt_tokens"], config=config, max_new_tokens=max_new_tokens
            )
            expected = tuple(prompt["tokens"][:max_new_tokens])
            same = "" if result.tokens == expected else " NOT THE SAME TEXT"
            rows[name].append(f"{result.stats.rounds}, {result.stats.tokens_per_round:.2f}{same}")
            tokens += len(result.tokens)
            rounds += result.stats.rounds
        totals.append(f"{tokens / rounds:.2f}")
    for row in (*rows.values(), totals):
        table.add_row(*row)
    Console().print(table)


def _sampled(
    lm: LanguageModel, prompts: list[Any], sampling: Sample, seeds: int, max_new_tokens: int
) -> None:
    """Tokens per call by what the window guesses, and whether the texts are ordinary decoding's."""
    tokens: list[list[int]] = [prompt["prompt_tokens"] for prompt in prompts]
    shared: Options = {"sampling": sampling, "max_new_tokens": max_new_tokens, "batch_size": 14}
    ordinary = autoregressive.generate(lm, tokens, n=seeds, **shared)
    table = Table("prompt", *(proposals.value for proposals in WindowProposals))
    columns = []
    for proposals in WindowProposals:
        config = LookaheadConfig(7, 5, 7, window_proposals=proposals)
        results = generate(lm, tokens, config=config, n=seeds, **shared)
        column = []
        for ours, theirs in zip(results, ordinary, strict=True):
            same = all(a.tokens == b.tokens for a, b in zip(ours, theirs, strict=True))
            column.append(_gain(ours) + ("" if same else " NOT THE SAME TEXT"))
        columns.append([*column, _gain([result for group in results for result in group])])
    names = [*(prompt["name"] for prompt in prompts), "all"]
    for row in zip(names, *columns, strict=True):
        table.add_row(*row)
    Console().print(f"{sampling}, {seeds} texts of up to {max_new_tokens} tokens a prompt", table)


def _gain(results: list[GenerationResult]) -> str:
    rounds = sum(result.stats.rounds for result in results)
    return f"{rounds}, {sum(len(result.tokens) for result in results) / rounds:.2f}"


if __name__ == "__main__":
    typer.run(main)
