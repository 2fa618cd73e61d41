"""What every checkpoint reader hands over, and the checks of numbers that files claim."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.typing import Tokenizer

MOST_LAYERS = 1000
"""More layers, or experts, than any model has: what a damaged file may claim takes no memory."""


@dataclass(frozen=True)
class Checkpoint:
    """A model read from disk.

    Attributes:
        config: Its hyperparameters.
        params: Its parameter tree on the device, as `DecoderConfig` documents it.
        stop_tokens: Token ids that end an answer.
        tokenizer: None where the checkpoint has none.
    """

    config: DecoderConfig
    params: dict[str, Any]
    stop_tokens: tuple[int, ...]
    tokenizer: Tokenizer | None


@dataclass(frozen=True)
class Values:
    """Named values of a file, each checked as it is taken out.

    Attributes:
        values: The names and values.
        source: Name of the file, for messages.
        prefix: What the file has in front of every name, for messages.
    """

    values: Mapping[str, Any]
    source: str
    prefix: str = ""

    def has(self, name: str) -> bool:
        """Whether there is a value other than null."""
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None, *, most: int | None = None) -> int:
        """A positive integer, of at most `most`."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(name, "a positive integer")
        if most is not None and value > most:
            raise self.wrong(name, f"at most {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a positive number")
        if not 0 < value < math.inf:
            raise self.wrong(name, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def wrong(self, name: str, expected: str) -> LookaheadError:
        """The error for a value that is not what it should be."""
        shown = repr(self.values.get(name))
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return LookaheadError(f"{self.source}: {self.prefix}{name} must be {expected}, got {shown}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise LookaheadError(f"{self.source}: {self.prefix}{name} is missing")
        return default


def check_heads(config: DecoderConfig, source: str) -> DecoderConfig:
    """Returns the configuration if its head counts can be what they say.

    Raises:
        LookaheadError: Query heads do not divide among key/value heads, or head_dim is odd.
    """
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads:
        raise LookaheadError(
            f"{source}: query heads must be a multiple of {kv_heads} (key/value heads), got {heads}"
        )
    if config.head_dim % 2:
        raise LookaheadError(f"{source}: head_dim must be even, got {config.head_dim}")
    return config
