"""This package's decoders as peers of the others, and the authors' schedule with their window."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.peer import Facts, Writing
from benchmarks.streaming import num_cores
from lookahead_jax.autoregressive import Autoregressive
from lookahead_jax.batch import Batch, Request
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.generation import Lookahead
from lookahead_jax.options import Settings
from lookahead_jax.programs import Decoder
from lookahead_jax.results import GenerationResult
from lookahead_jax.sampling import Greedy, Policy
from lookahead_jax.typing import LanguageModel
from lookahead_jax.window import init_window

LADE_SEED = 10
"""With which the release of the authors' code draws its first window, in every generation."""

FirstLevel = Callable[[tuple[int, ...]], Sequence[int]]
"""Of a prompt, the W + N - 3 tokens of the first window."""


def decode_all(
    lm: LanguageModel,
    decoder: Decoder[Any],
    prompts: Sequence[tuple[int, ...]],
    max_new_tokens: int,
    stop_tokens: Sequence[int],
    first_levels: Sequence[Sequence[int]] | None = None,
) -> list[GenerationResult]:
    """Texts of some prompts, decoded together.

    Args:
        lm: The model.
        decoder: Ordinary or lookahead decoding.
        prompts: Token ids.
        max_new_tokens: Most tokens of each text.
        stop_tokens: Token ids that end a text.
        first_levels: The first window of each prompt; None: the decoder's own.
    """
    settings = Settings.of(
        {
            "max_new_tokens": max_new_tokens,
            "stop_tokens": list(stop_tokens),
            "batch_size": len(prompts),
        }
    )
    batch = Batch(lm, decoder, settings)
    requests = [Request(prompt) for prompt in prompts]
    batch.start(requests)
    if first_levels is not None:
        assert isinstance(decoder, Lookahead)
        start = jax.vmap(lambda level: init_window(decoder.config, level))
        window = start(jnp.asarray(first_levels, jnp.int32))
        batch.state = replace(batch.state, window=window)
    batch.run()
    progress = batch.progress()
    results = [batch.result(slot, request, progress) for slot, request in enumerate(requests)]
    batch.close()
    return results


@dataclass(frozen=True)
class Ours:
    """A decoder of this package as a `Peer` and its `Session`: the model is loaded already."""

    name: str
    lm: LanguageModel
    decoder: Decoder[Any]
    first_level: FirstLevel | None = None

    @property
    def weights(self) -> str:
        """See `Peer`."""
        return str(self.lm.cache_spec.dtype)

    @property
    def facts(self) -> Facts:
        """See `Session`; XLA has a thread for each core."""
        packages = ("lookahead-jax", "jax", "jaxlib")
        return Facts({name: metadata.version(name) for name in packages}, num_cores())

    def why_not(self) -> str | None:
        """See `Peer`."""
        return None

    def open(self) -> Ours:
        """See `Peer`."""
        return self

    def write(self, prompt: tuple[int, ...], num_tokens: int) -> Writing:
        """See `Session`; the prompt's last token is read by the first round, which is timed."""
        levels = None if self.first_level is None else [self.first_level(prompt)]
        result = decode_all(self.lm, self.decoder, [prompt], num_tokens, (), levels)[0]
        stats = result.stats
        return Writing(result.tokens, stats.rounds, len(result.tokens), stats.decode_seconds)

    def close(self) -> None:
        """See `Session`."""


def ordinary() -> Autoregressive:
    """Greedy ordinary decoding."""
    return Autoregressive(Policy(Greedy()))


def lookahead(config: LookaheadConfig) -> Lookahead:
    """Greedy lookahead decoding."""
    return Lookahead(config, Policy(Greedy()))


def lade_first_level(window_size: int, ngram_size: int, seed: int = LADE_SEED) -> FirstLevel:
    """The first window as the authors' code draws it from the prompt, with Python's `random`."""

    def draw(prompt: tuple[int, ...]) -> list[int]:
        generator = random.Random(seed)
        return [generator.choice(prompt) for _ in range(window_size + ngram_size - 3)]

    return draw
