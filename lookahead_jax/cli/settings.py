"""What the options of a run say, as the commands hand it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lookahead_jax.attention import Attention, Dense, PallasGPU, PallasTPU, Split
from lookahead_jax.cli.options import TextOptions
from lookahead_jax.cli.policy import (
    make_processors,
    make_sampling,
    parse_stops,
    policy_record,
)
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError
from lookahead_jax.processors import check_processors
from lookahead_jax.sampling import Greedy, Sample
from lookahead_jax.sharding import parse_mesh

if TYPE_CHECKING:
    from lookahead_jax.cli.engine import Engine
    from lookahead_jax.processors import LogitProcessor
    from lookahead_jax.typing import LanguageModel


_ATTENTION: Mapping[str, Attention | None] = {
    "auto": None,
    "dense": Dense(),
    "split": Split(),
    "pallas-tpu": PallasTPU(),
    "pallas-gpu": PallasGPU(),
}


@dataclass(frozen=True)
class Settings:
    """Everything besides the prompt that decides which text comes out, and in how many calls."""

    model: str
    dtype: str
    config: LookaheadConfig
    max_new_tokens: int
    int8: bool = False
    mesh: Mapping[str, int] | None = None
    """Devices along each axis; None: one device. Changes the speed, not the text."""
    attention: Attention | None = None
    """How attention is computed; None: what serves the machine."""
    use_chat_template: bool = True
    sampling: Greedy | Sample = field(default_factory=Greedy)
    processors: tuple[LogitProcessor, ...] = ()
    stop_strings: tuple[str, ...] = ()
    logprobs: bool = False
    """Whether the answers come with log-probabilities. Changes what is told, not the text."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Sampling, processors and stop strings as the options said it, defaults left out."""

    @property
    def is_sampling(self) -> bool:
        """Whether tokens are drawn, so that a seed matters."""
        return isinstance(self.sampling, Sample)

    @property
    def same_as_ordinary(self) -> bool:
        """Whether ordinary decoding must write the same tokens, not only as probable ones."""
        return not (isinstance(self.sampling, Sample) and self.sampling.method == "residual")

    def load(self, engine: Engine) -> LanguageModel:
        """The model.

        Raises:
            LookaheadError: If there is none, or its vocabulary lacks a token of the options.
        """
        more: dict[str, Any] = {}
        if self.mesh is not None:
            more["mesh"] = engine.make_mesh(**self.mesh)
        if self.attention is not None:
            more["attention"] = self.attention
        lm = engine.load_model(self.model, dtype=self.dtype, int8=self.int8, **more)
        check_processors(self.processors, lm.vocab_size)
        return lm

    def prompt_arguments(self, system: str | None) -> dict[str, Any]:
        """Keyword arguments that decide how a text becomes tokens."""
        return {
            "chat_template": None if self.use_chat_template else False,
            "system": system,
        }

    def decoding_arguments(self) -> dict[str, Any]:
        """Keyword arguments of any of the engine's decoders, prompt and schedule aside."""
        arguments: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "sampling": self.sampling,
        }
        if self.processors:
            arguments["processors"] = self.processors
        if self.stop_strings:
            arguments["stop_strings"] = self.stop_strings
        return arguments

    def record(self) -> dict[str, Any]:
        """The settings as a JSON object; what is at its default is left out."""
        record = {
            "model": self.model,
            "dtype": self.dtype,
            "window_size": self.config.window_size,
            "ngram_size": self.config.ngram_size,
            "guess_set_size": self.config.guess_set_size,
            "max_new_tokens": self.max_new_tokens,
            "chat_template": self.use_chat_template,
        }
        if self.int8:
            record["int8"] = True
        if self.config.pool_slots is not None:
            record["pool_slots"] = self.config.pool_slots
        return {**record, **self.policy}


def make_settings(
    options: TextOptions, *, use_chat_template: bool = True, logprobs: bool = False
) -> Settings:
    """The settings of a run, from options.

    Raises:
        LookaheadError: If a value is out of range, or makes no sense without another.
    """
    most, least = options.max_new_tokens, options.min_new_tokens
    if most < 1:
        raise LookaheadError(f"--max-new-tokens must be an integer >= 1, got {most}")
    if least > most:
        raise LookaheadError(
            f"--min-new-tokens must be at most --max-new-tokens ({most}), got {least}"
        )
    config = LookaheadConfig(
        window_size=options.window,
        ngram_size=options.ngram,
        guess_set_size=options.guesses,
        pool_slots=options.pool_slots,
        kv_exchange=options.kv_exchange,
    )
    return Settings(
        model=options.model,
        dtype=options.dtype,
        int8=options.int8,
        mesh=None if options.mesh is None else parse_mesh(options.mesh),
        attention=_ATTENTION[options.attention],
        config=config,
        max_new_tokens=most,
        use_chat_template=use_chat_template,
        sampling=make_sampling(options),
        processors=make_processors(options),
        stop_strings=parse_stops(options.stop),
        logprobs=logprobs,
        policy=policy_record(options),
    )
