"""Text in, text out: `generate` and `stream` over any decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast, overload

import numpy as np

from lookahead_jax import decoding, parallel
from lookahead_jax.batch import Batch, Request
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.decoding import DecodeState
from lookahead_jax.errors import LookaheadError
from lookahead_jax.options import Options, Settings
from lookahead_jax.programs import Decoder
from lookahead_jax.prompts import Prompt, check_lengths, encode_prompt
from lookahead_jax.results import GenerationResult
from lookahead_jax.sampling import Policy, Sample
from lookahead_jax.scheduling import complete
from lookahead_jax.sequences import Sequences
from lookahead_jax.sharding import LOOKAHEAD, size_of
from lookahead_jax.streaming import TextStream
from lookahead_jax.typing import Array, CacheSpec, ForwardFn, LanguageModel, Params


@dataclass(frozen=True)
class Lookahead:
    """Lookahead decoding as a `Decoder`.

    Raises:
        LookaheadError: Copies of the model are to share rounds, which the sampling method forbids.
    """

    config: LookaheadConfig
    policy: Policy
    validate: bool = False
    num_copies: int | None = None
    """Copies of the model along the mesh axis `lookahead` that share each round; None: no axis."""

    def __post_init__(self) -> None:
        sampling = self.policy.sampling
        is_residual = isinstance(sampling, Sample) and sampling.method == "residual"
        if self.num_copies is not None and is_residual and not self.policy.is_argmax:
            raise LookaheadError(
                'method="residual" tests all candidates one after the other, on one device: '
                f'expected method="coupled" on a mesh with lookahead={self.num_copies}'
            )

    @property
    def overhang(self) -> int:
        """A round writes 1 + S tokens from the frontier on, whatever it accepts."""
        return self.config.suffix_length

    @property
    def lag(self) -> int:
        """Where accepted tokens are fed again, those of one round."""
        is_behind = self.num_copies is not None and self.config.kv_exchange == "refeed"
        return self.config.suffix_length if is_behind else 0

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

    def extend(self, state: DecodeState, kept: Array) -> DecodeState:
        """See `decoding.learn_turn`."""
        return decoding.learn_turn(state, kept, config=self.config)

    def step(self, state: DecodeState, params: Params, forward: ForwardFn) -> DecodeState:
        """See `decoding.round`, and `parallel.round` for copies that share it."""
        if self.num_copies is not None:
            return parallel.round(
                state,
                params,
                forward=forward,
                config=self.config,
                policy=self.policy,
                num_devices=self.num_copies,
            )
        return decoding.round(
            state,
            params,
            forward=forward,
            config=self.config,
            sampling=self.policy.sampling,
            processors=self.policy.processors,
            validate=self.validate,
        )


Prompts = list[str] | Sequence[Sequence[int]]


@overload
def generate(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    config: LookaheadConfig | None = None,
    validate: bool = False,
    n: None = None,
    **options: Unpack[Options],
) -> GenerationResult: ...
@overload
def generate(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    config: LookaheadConfig | None = None,
    validate: bool = False,
    n: int,
    **options: Unpack[Options],
) -> list[GenerationResult]: ...
@overload
def generate(
    lm: LanguageModel,
    prompt: Prompts,
    *,
    config: LookaheadConfig | None = None,
    validate: bool = False,
    n: None = None,
    **options: Unpack[Options],
) -> list[GenerationResult]: ...
@overload
def generate(
    lm: LanguageModel,
    prompt: Prompts,
    *,
    config: LookaheadConfig | None = None,
    validate: bool = False,
    n: int,
    **options: Unpack[Options],
) -> list[list[GenerationResult]]: ...
def generate(
    lm: LanguageModel,
    prompt: Prompt | Prompts,
    *,
    config: LookaheadConfig | None = None,
    validate: bool = False,
    n: int | None = None,
    **options: Unpack[Options],
) -> GenerationResult | list[GenerationResult] | list[list[GenerationResult]]:
    """Writes what ordinary decoding of the model would write, in fewer model calls.

    Args:
        lm: The model (`lookahead_jax.models.load_model`, or your own).
        prompt: A text, or token ids; or a list of either, which is decoded `batch_size` at a time.
        config: W, N, G and the schedule; (7, 5, 7) by default.
        validate: Check every round's publication plan before it takes effect. Slower: the host
            looks at every round.
        n: Write this many texts for each prompt, sampled independently.
        **options: See `lookahead_jax.options.Options`: sampling, processors, max_new_tokens,
            chat_template, system, stop_tokens, stop_strings, logprobs, seeds, batch_size.

    Returns:
        A `GenerationResult` for a prompt, a list for a list of prompts, in their order; with `n` a
        list of `n` results in the place of each result.

    Raises:
        LookaheadError: If a prompt or a setting is not usable; nothing is compiled then.
        RoundCheckError: With `validate`, if a round's checks fail.
    """
    settings = Settings.of(options)
    decoder = lookahead(lm, config, settings, validate)
    return run(lm, decoder, prompt, settings, n=n, validate=validate)


def completions(
    lm: LanguageModel,
    prompts: Prompts,
    *,
    config: LookaheadConfig | None = None,
    validate: bool = False,
    n: int = 1,
    **options: Unpack[Options],
) -> Iterator[tuple[int, GenerationResult]]:
    """`generate` for a long list: each result as soon as it is there.

    At most `batch_size` sequences are decoded at a time, by one compiled program; the slot of a
    finished one goes to the next.

    Args:
        lm: The model.
        prompts: Texts or lists of token ids.
        config: See `generate`.
        validate: See `generate`.
        n: See `generate`.
        **options: See `lookahead_jax.options.Options`.

    Returns:
        An iterator over (i * n + k, result) for the k-th text of prompt i, in the order in which
        they finish. Closing it frees the state.

    Raises:
        LookaheadError: At once, if a prompt or a setting is not usable.
    """
    settings = Settings.of(options)
    decoder = lookahead(lm, config, settings, validate)
    if isinstance(prompts, str) or not all(_is_prompt(p) for p in _listed(prompts)):
        raise LookaheadError(f"prompts must be a list of texts or of token lists, got {prompts!r}")
    requests = _requests(lm, prompts, settings, n)
    if not requests:
        return iter(())
    batch = _checked_batch(lm, decoder, settings, requests, validate)
    return complete(batch, requests, at_once=True)


def stream(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    config: LookaheadConfig | None = None,
    validate: bool = False,
    rounds_per_chunk: int = 1,
    **options: Unpack[Options],
) -> TextStream:
    """`generate` for one prompt, text as it comes.

    Args:
        lm: The model.
        prompt: A text, or token ids.
        config: See `generate`.
        validate: See `generate`.
        rounds_per_chunk: Rounds between two looks of the host; more is faster and less prompt.
        **options: See `lookahead_jax.options.Options`.

    Returns:
        An iterable of `StreamChunk`; `.result` is there when it is exhausted. Leaving it early
        cancels the rest.
    """
    check_rounds_per_chunk(rounds_per_chunk)
    settings = Settings.of(options)
    decoder = lookahead(lm, config, settings, validate)
    (request,) = _requests(lm, [prompt], settings, 1)  # pyright: ignore[reportArgumentType]
    batch = _checked_batch(lm, decoder, settings, [request], validate)
    batch.start([request])
    return TextStream(batch, request, rounds_per_chunk)


def run(
    lm: LanguageModel,
    decoder: Decoder[Any],
    prompt: Prompt | Prompts,
    settings: Settings,
    *,
    n: int | None,
    validate: bool = False,
) -> Any:
    """Runs any decoder over one prompt or a list of prompts; see `generate`."""
    listed = _listed(prompt)
    single = isinstance(prompt, str) or not (len(listed) and _is_prompt(listed[0]))
    prompts = cast("Prompts", [prompt] if single else prompt)
    count = 1 if n is None else n
    requests = _requests(lm, prompts, settings, count)
    batch = _checked_batch(lm, decoder, settings, requests, validate)
    results = dict(complete(batch, requests))
    groups = [[results[i * count + k] for k in range(count)] for i in range(len(requests) // count)]
    shaped = [group[0] for group in groups] if n is None else groups
    return shaped[0] if single else shaped


def _listed(prompts: Any) -> Any:
    """What should be a prompt or a list of prompts, if it can be either."""
    if not isinstance(prompts, str | Sequence | np.ndarray):
        raise LookaheadError(f"a prompt must be a text or a list of token ids, got {prompts!r}")
    return prompts


def _is_prompt(value: object) -> bool:
    return isinstance(value, str | Sequence | np.ndarray)


def check_rounds_per_chunk(rounds_per_chunk: object) -> None:
    """Refuses what is not a number of rounds."""
    if type(rounds_per_chunk) is not int or rounds_per_chunk < 1:
        raise LookaheadError(f"rounds_per_chunk must be an integer >= 1, got {rounds_per_chunk!r}")


def lookahead(
    lm: LanguageModel,
    config: LookaheadConfig | None,
    settings: Settings,
    validate: bool = False,
) -> Lookahead:
    """The decoder of these settings, for the devices that the model is on.

    Raises:
        LookaheadError: If `config` is none, or the settings do not go with several devices.
    """
    if not isinstance(config, LookaheadConfig | None):
        raise LookaheadError(f"config must be a LookaheadConfig, got {config!r}")
    config, copies = config or LookaheadConfig(), size_of(lm.mesh, LOOKAHEAD)
    return Lookahead(config, settings.policy, validate, copies if copies > 1 else None)


def _requests(lm: LanguageModel, prompts: Prompts, settings: Settings, n: int) -> list[Request]:
    """The n requests of each prompt, prompt by prompt."""
    if type(n) is not int or n < 1:
        raise LookaheadError(f"n must be an integer >= 1, got {n!r}")
    if settings.seeds is not None and len(settings.seeds) != len(prompts):
        raise LookaheadError(
            f"seeds must be one for each prompt: expected {len(prompts)}, got {len(settings.seeds)}"
        )
    tokens = [
        encode_prompt(lm, p, chat_template=settings.chat_template, system=settings.system)
        for p in prompts
    ]
    return [
        Request(prompt, settings.seed(i), k) for i, prompt in enumerate(tokens) for k in range(n)
    ]


def _checked_batch(
    lm: LanguageModel,
    decoder: Decoder[Any],
    settings: Settings,
    requests: Sequence[Request],
    validate: bool,
) -> Batch:
    """A batch that can read these requests; what does not fit is refused here and now."""
    batch = Batch(lm, decoder, settings, validate)
    check_lengths(lm, max(len(r.tokens) for r in requests), settings.max_new_tokens)
    return batch
