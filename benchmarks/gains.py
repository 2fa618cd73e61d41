"""Tokens per model call on the golden prompts, and whether the text is the golden one.

`python -m benchmarks.gains` prints the table of the README. It counts calls, so it can run on a
busy machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lookahead_jax import LookaheadConfig, WindowAdvance, generate
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


def main(model: Annotated[str, typer.Option(help="The demo model or its file.")] = "smollm2-135m"):
    """Counts model calls per prompt and configuration."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    prompts = {p["name"]: p for p in golden["prompts"] if p["name"] in PROMPTS}
    lm = load_model(model)
    table = Table("prompt", *CONFIGS)
    rows = {name: [name] for name in PROMPTS}
    totals = ["all"]
    for config in CONFIGS.values():
        tokens = rounds = 0
        for name in PROMPTS:
            prompt = prompts[name]
            result = generate(
                lm,
                prompt["prompt_tokens"],
                config=config,
                max_new_tokens=golden["max_new_tokens"],
            )
            same = "" if list(result.tokens) == prompt["tokens"] else " NOT THE SAME TEXT"
            rows[name].append(f"{result.stats.rounds}, {result.stats.tokens_per_round:.2f}{same}")
            tokens += len(result.tokens)
            rounds += result.stats.rounds
        totals.append(f"{tokens / rounds:.2f}")
    for row in (*rows.values(), totals):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
