"""What the options of a run say, as the commands hand it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError


@dataclass(frozen=True)
class Settings:
    """Everything besides the prompt that decides which text comes out, and in how many calls."""

    model: str
    dtype: str
    config: LookaheadConfig
    max_new_tokens: int
    use_chat_template: bool

    def generation_arguments(self, system: str | None) -> dict[str, Any]:
        """Keyword arguments of any of the engine's decoders, the schedule aside."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "chat_template": None if self.use_chat_template else False,
            "system": system,
        }

    def record(self) -> dict[str, Any]:
        """The settings as a flat JSON object."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "window_size": self.config.window_size,
            "ngram_size": self.config.ngram_size,
            "guess_set_size": self.config.guess_set_size,
            "max_new_tokens": self.max_new_tokens,
            "chat_template": self.use_chat_template,
        }


def make_settings(
    model: str,
    dtype: str,
    sizes: tuple[int, int, int],
    max_new_tokens: int,
    use_chat_template: bool,
) -> Settings:
    """The settings of a run, from options.

    Raises:
        LookaheadError: If W, N, G or the number of tokens is out of range.
    """
    window_size, ngram_size, guess_set_size = sizes
    if max_new_tokens < 1:
        raise LookaheadError(f"--max-new-tokens must be an integer >= 1, got {max_new_tokens}")
    config = LookaheadConfig(
        window_size=window_size, ngram_size=ngram_size, guess_set_size=guess_set_size
    )
    return Settings(model, dtype, config, max_new_tokens, use_chat_template)
