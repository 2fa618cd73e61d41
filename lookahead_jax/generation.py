"""Text in, text out: `generate` and `stream` over any decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

import numpy as np

from lookahead_jax import decoding
from lookahead_jax.batch import Batch, TextStream
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.decoding import DecodeState
from lookahead_jax.errors import LookaheadError
from lookahead_jax.programs import Decoder
from lookahead_jax.prompts import Prompt, encode_prompt
from lookahead_jax.results import GenerationResult
from lookahead_jax.sampling import Greedy
from lookahead_jax.sequences import Sequences
from lookahead_jax.typing import CacheSpec, ForwardFn, LanguageModel, Params


@dataclass(frozen=True)
class Lookahead:
    """Lookahead decoding as a `Decoder`."""

    config: LookaheadConfig
    sampling: Greedy
    validate: bool = False

    @property
    def overhang(self) -> int:
        """A round writes 1 + S tokens from the frontier on, whatever it accepts."""
        return self.config.suffix_length

    def init(self, sequences: Sequences, cache_spec: CacheSpec, vocab_size: int) -> DecodeState:
        """See `decoding.init_state`."""
        return decoding.init_state(
            sequences, config=self.config, cache_spec=cache_spec, vocab_size=vocab_size
        )

    def prefill(
        self, state: DecodeState, params: Params, forward: ForwardFn, chunk: int
    ) -> DecodeState:
        """See `decoding.prefill_state`."""
        return decoding.prefill_state(state, params, forward=forward, chunk=chunk)

    def step(self, state: DecodeState, params: Params, forward: ForwardFn) -> DecodeState:
        """See `decoding.round`."""
        return decoding.round(
            state,
            params,
            forward=forward,
            config=self.config,
            sampling=self.sampling,
            validate=self.validate,
        )


@overload
def generate(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    config: LookaheadConfig | None = None,
    sampling: Greedy | None = None,
    max_new_tokens: int = 128,
    chat_template: bool | None = None,
    system: str | None = None,
    stop_tokens: Sequence[int] | None = None,
    validate: bool = False,
) -> GenerationResult: ...
@overload
def generate(
    lm: LanguageModel,
    prompt: list[str] | Sequence[Sequence[int]],
    *,
    config: LookaheadConfig | None = None,
    sampling: Greedy | None = None,
    max_new_tokens: int = 128,
    chat_template: bool | None = None,
    system: str | None = None,
    stop_tokens: Sequence[int] | None = None,
    validate: bool = False,
) -> list[GenerationResult]: ...
def generate(
    lm: LanguageModel,
    prompt: Prompt | list[str] | Sequence[Sequence[int]],
    *,
    config: LookaheadConfig | None = None,
    sampling: Greedy | None = None,
    max_new_tokens: int = 128,
    chat_template: bool | None = None,
    system: str | None = None,
    stop_tokens: Sequence[int] | None = None,
    validate: bool = False,
) -> GenerationResult | list[GenerationResult]:
    """Writes what ordinary decoding of the model would write, in fewer model calls.

    Args:
        lm: The model (`lookahead_jax.models.load_model`, or your own).
        prompt: A text, or token ids; or a list of either, which is decoded as one batch.
        config: W, N, G and the schedule; (7, 5, 7) by default.
        sampling: How tokens are chosen; greedy by default.
        max_new_tokens: Most tokens to write per prompt.
        chat_template: Whether a text becomes a user's message; by default where the model has a
            chat template.
        system: A system message in front of it.
        stop_tokens: Token ids that end a text; the model's own by default, none if empty.
        validate: Check every round's publication plan before it takes effect. Slower: the host
            looks at every round.

    Returns:
        A `GenerationResult`, or a list of them in the order of the prompts.

    Raises:
        LookaheadError: If the prompt or a setting is not usable; nothing is compiled then.
        RoundCheckError: With `validate`, if a round's checks fail.
    """
    decoder = Lookahead(config or LookaheadConfig(), sampling or Greedy(), validate)
    return run(
        lm,
        decoder,
        prompt,
        max_new_tokens=max_new_tokens,
        chat_template=chat_template,
        system=system,
        stop_tokens=stop_tokens,
        validate=validate,
    )


def stream(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    config: LookaheadConfig | None = None,
    sampling: Greedy | None = None,
    max_new_tokens: int = 128,
    chat_template: bool | None = None,
    system: str | None = None,
    stop_tokens: Sequence[int] | None = None,
    validate: bool = False,
    rounds_per_chunk: int = 1,
) -> TextStream:
    """`generate` for one prompt, text as it comes.

    Args:
        lm: The model.
        prompt: A text, or token ids.
        config: See `generate`.
        sampling: See `generate`.
        max_new_tokens: See `generate`.
        chat_template: See `generate`.
        system: See `generate`.
        stop_tokens: See `generate`.
        validate: See `generate`.
        rounds_per_chunk: Rounds between two looks of the host; more is faster and less prompt.

    Returns:
        An iterable of `StreamChunk`; `.result` is there when it is exhausted.
    """
    if type(rounds_per_chunk) is not int or rounds_per_chunk < 1:
        raise LookaheadError(f"rounds_per_chunk must be an integer >= 1, got {rounds_per_chunk!r}")
    decoder = Lookahead(config or LookaheadConfig(), sampling or Greedy(), validate)
    tokens = encode_prompt(lm, prompt, chat_template=chat_template, system=system)
    batch = Batch.start(lm, decoder, [tokens], max_new_tokens, stop_tokens)
    return TextStream(batch, rounds_per_chunk, validate)


def run(
    lm: LanguageModel,
    decoder: Decoder[Any],
    prompt: Prompt | list[str] | Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    chat_template: bool | None,
    system: str | None,
    stop_tokens: Sequence[int] | None,
    validate: bool = False,
) -> GenerationResult | list[GenerationResult]:
    """Runs any decoder over one prompt or a list of prompts; see `generate`."""
    single = isinstance(prompt, str) or not (
        len(prompt) and isinstance(prompt[0], str | Sequence | np.ndarray)
    )
    prompts = cast("Sequence[Prompt]", [prompt] if single else prompt)
    tokens = [encode_prompt(lm, p, chat_template=chat_template, system=system) for p in prompts]
    batch = Batch.start(lm, decoder, tokens, max_new_tokens, stop_tokens)
    batch.run(validate=validate)
    results = batch.results()
    return results[0] if single else results
