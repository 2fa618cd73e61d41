"""Whether lookahead decoding writes ordinary decoding's text on this device, token for token."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.campaign import Record, Step
from benchmarks.gpu_products import TF32_ERROR, product_error, products, rounded
from lookahead_jax import LookaheadConfig, autoregressive, check, generate
from lookahead_jax.attention import Attention
from lookahead_jax.errors import LookaheadError
from lookahead_jax.kv_cache import init_cache
from lookahead_jax.models.decoder import DecoderForward
from lookahead_jax.models.json_file import read_json
from lookahead_jax.results import GenerationResult, first_difference
from lookahead_jax.sampling import Greedy, Sample
from lookahead_jax.typing import LanguageModel

GOLDEN = Path(__file__).parent.parent / "tests" / "data" / "golden_smollm2.json"
GOLDEN_NAMES = ("question", "python", "arithmetic", "story", "french", "raw_code")
"""Those of similar length: one compiled program serves them all."""

MADE_UP, MADE_UP_LENGTH = 4, 40
"""Prompts for a model that has no golden texts, and their tokens."""


@dataclass(frozen=True)
class Prompt:
    """What is continued.

    Attributes:
        name: For people.
        tokens: Token ids.
        golden: What greedy decoding of another implementation wrote; None where nobody asked one.
    """

    name: str
    tokens: tuple[int, ...]
    golden: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        attention: How attention is computed; None: what serves the platform.
        sampling: How tokens are chosen.
        config: W, N, G.
    """

    attention: Attention | None
    sampling: Greedy | Sample
    config: LookaheadConfig

    @property
    def name(self) -> str:
        """In the record."""
        how = "greedy" if isinstance(self.sampling, Greedy) else "sampled"
        return f"{attention_name(self.attention)}, {how}, {config_name(self.config)}"


def attention_name(attention: Attention | None) -> str:
    """For people and records."""
    return "default attention" if attention is None else repr(attention)


def config_name(config: LookaheadConfig) -> str:
    """(W, N, G)."""
    return f"({config.window_size}, {config.ngram_size}, {config.guess_set_size})"


def prompts_of(lm: LanguageModel) -> tuple[Prompt, ...]:
    """The golden prompts of the demo model; made-up ones of any other."""
    golden = read_json(GOLDEN) if GOLDEN.exists() else {}
    if lm.name == golden.get("model"):
        known = {p["name"]: p for p in golden["prompts"]}
        return tuple(
            Prompt(name, tuple(known[name]["prompt_tokens"]), tuple(known[name]["tokens"]))
            for name in GOLDEN_NAMES
        )
    return tuple(
        Prompt(
            f"made up {i}",
            tuple((7 * j + 3 + 11 * i * i) % lm.vocab_size for j in range(MADE_UP_LENGTH)),
        )
        for i in range(MADE_UP)
    )


def with_attention(lm: LanguageModel, attention: Attention | None) -> LanguageModel:
    """The same model with attention computed in another way.

    Raises:
        LookaheadError: The model is not one of this package's decoders.
    """
    if attention is None:
        return lm
    if not isinstance(lm.forward, DecoderForward):
        raise LookaheadError(f"{lm.name} does not let its attention be chosen")
    return replace(lm, forward=DecoderForward(lm.forward.config, attention))


def exactness_steps(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    cases: Sequence[Case],
    max_new_tokens: int,
) -> list[Step]:
    """Every comparison. Ordinary decoding runs once for all that share it.

    Args:
        lm: A float32 model.
        prompts: What is continued.
        cases: The comparisons, the most worthwhile first.
        max_new_tokens: Tokens of a text. None ends early.
    """

    @functools.cache
    def ordinary(attention: Attention | None, sampling: Greedy | Sample) -> list[GenerationResult]:
        model = with_attention(lm, attention)
        run = functools.partial(autoregressive.generate, model, **options(sampling))
        return [run(prompt.tokens) for prompt in prompts]

    def options(sampling: Greedy | Sample) -> Any:
        return {"sampling": sampling, "max_new_tokens": max_new_tokens, "stop_tokens": ()}

    def run(case: Case) -> Record:
        theirs = ordinary(case.attention, case.sampling)
        model = with_attention(lm, case.attention)
        shared = options(case.sampling)
        ours = [generate(model, p.tokens, config=case.config, **shared) for p in prompts]
        parting = functools.partial(_parting, model, options=shared)
        record = compare(prompts, ours, theirs, parting) | {
            "attention": attention_name(case.attention),
            "sampling": str(case.sampling),
            "config": config_name(case.config),
        }
        if isinstance(case.sampling, Greedy):
            golden = [(p, x) for p, x in zip(prompts, theirs, strict=True) if p.golden is not None]
            record["golden"] = _against_golden(golden, parting)
        return record

    return [Step(case.name, functools.partial(run, case)) for case in cases]


def compare(
    prompts: Sequence[Prompt],
    ours: Sequence[GenerationResult],
    theirs: Sequence[GenerationResult],
    parting: Callable[[GenerationResult, GenerationResult, int], Record],
) -> Record:
    """Texts of lookahead decoding beside those of ordinary decoding.

    Args:
        prompts: One for each text.
        ours: Lookahead decoding's.
        theirs: Ordinary decoding's.
        parting: Told the two texts and where they part, says how close the choice was.
    """
    mismatches = []
    for prompt, one, other in zip(prompts, ours, theirs, strict=True):
        at = first_difference(one.tokens, other.tokens)
        if at is not None:
            found = {"lookahead": _token(one, at), "ordinary": _token(other, at)}
            mismatches.append(
                {"prompt": prompt.name, "index": at, **found} | parting(one, other, at)
            )
    rounds = sum(x.stats.rounds for x in ours)
    return {
        "texts": len(ours),
        "tokens": sum(len(x.tokens) for x in ours),
        "identical": len(ours) - len(mismatches),
        "mismatches": mismatches,
        "model_calls": rounds,
        "tokens_per_call": round(sum(len(x.tokens) for x in ours) / max(rounds, 1), 4),
        "decode_seconds": round(sum(x.stats.decode_seconds for x in ours), 4),
        "ordinary_decode_seconds": round(sum(x.stats.decode_seconds for x in theirs), 4),
        "compile_seconds": round(sum(x.stats.compile_seconds for x in (*ours, *theirs)), 2),
    }


def _token(result: GenerationResult, index: int) -> int | None:
    return result.tokens[index] if index < len(result.tokens) else None


def _parting(
    lm: LanguageModel, one: GenerationResult, other: GenerationResult, at: int, *, options: Any
) -> Record:
    """By how much a separate pass prefers one token where two texts part, 0 if it is indifferent.

    In logits for greedy decoding, in log-weights and noise for sampling.
    """
    reports = [check(lm, x, **options) for x in (one, other)]
    gaps = [d.gap for report in reports for d in report.divergences if d.index == at]
    return {
        "gap": max(gaps, default=0.0),
        "separate_pass_agrees_with": [
            name
            for name, report in zip(("lookahead", "other"), reports, strict=True)
            if all(d.index != at for d in report.divergences)
        ],
    }


def _against_golden(
    texts: Sequence[tuple[Prompt, GenerationResult]],
    parting: Callable[[GenerationResult, GenerationResult, int], Record],
) -> Record:
    """Ordinary decoding's greedy texts beside the golden ones, as far as they go."""
    mismatches = []
    for prompt, result in texts:
        golden = (prompt.golden or ())[: len(result.tokens)]
        at = first_difference(result.tokens[: len(golden)], golden)
        if at is not None:
            rest = replace(result, tokens=golden)
            found = {"golden": golden[at], "ordinary": result.tokens[at]}
            mismatches.append(
                {"prompt": prompt.name, "index": at, **found} | parting(rest, result, at)
            )
    return {"texts": len(texts), "mismatches": mismatches}


def precision(lm: LanguageModel) -> Record:
    """What the decoder's products of float32 are computed in, asked for and measured."""
    row, mask = jnp.zeros((1, 8), jnp.int32), jnp.ones((1, 8, 8), bool)
    cache = init_cache(lm.cache_spec, 1, 1024)
    args = (lm.params, row, row, mask, cache, row)
    counted = products(jax.jit(lm.forward).lower(*args).as_text())
    error = product_error()
    return {
        "jax_default_matmul_precision": jax.config.values.get("jax_default_matmul_precision"),
        "products_asked_for": dict(counted),
        "may_be_rounded": rounded(counted),
        "relative_error": error,
        "relative_error_at_most": TF32_ERROR,
        "float32_is_float32": not rounded(counted) and error < TF32_ERROR,
    }


def verdict(steps: Mapping[str, Record]) -> Record:
    """`exact`: whether all texts are the same and float32 is float32; None if nothing is known."""
    told = [
        not r["mismatches"] and not r.get("golden", {}).get("mismatches")
        for r in steps.values()
        if "mismatches" in r
    ]
    precise = [r["float32_is_float32"] for r in steps.values() if "float32_is_float32" in r]
    return {"exact": all(told + precise) if told else None}
