"""The model protocol: what lookahead decoding needs to know of a language model, and nothing more.

Shape letters, used in every docstring of the package:

    B  sequences in the batch            W  window_size: columns of the lookahead window
    T  rows of one forward call          N  ngram_size: n-gram length
    Q  packed rows of a round            G  guess_set_size: candidates verified per round
       Q = (W + G)(N - 1)                S  = N - 1, tokens of one candidate
    P  prompt length                     R  = N - 1, levels of the window
    C  cache capacity in tokens          V  vocabulary size
    L  layers                            H  query heads, K key/value heads, D head_dim
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import jax
from jax.sharding import Mesh

if TYPE_CHECKING:
    from lookahead_jax.kv_cache import BlockKV, KVCache

Array = jax.Array
Params = Any
"""A pytree of arrays; only the model itself looks inside."""


class ForwardFn(Protocol):
    """One call of a causal language model over a block of T new rows.

    It must be hashable and compare equal by value, because it is static under `jax.jit` (a frozen
    dataclass over a Flax Linen module is), and it must be pure: it reads the cache and returns the
    block's keys and values; the caller decides which of them enter the cache.
    """

    def __call__(
        self,
        params: Params,
        tokens: Array,
        positions: Array,
        block_mask: Array,
        cache: KVCache,
        logit_rows: Array,
    ) -> tuple[Array, BlockKV]:
        """Runs the model over one block.

        Args:
            params: The model's weights.
            tokens: int32 [B, T], the rows' input tokens.
            positions: int32 [B, T], logical positions (rows of isolated branches may share one).
            block_mask: bool [B, T, T]; [b, i, j] says that row i may attend to row j of the block.
            cache: The committed prefix. Row i of sequence b also attends to the cached entries
                [0, cache.length[b]); what lies behind them must not influence the result.
            logit_rows: int32 [B, r], the rows whose next-token logits are wanted.

        Returns:
            logits float32 [B, r, V], and the keys and values of all T rows.
        """
        ...


@dataclass(frozen=True)
class CacheSpec:
    """Shape of a model's key/value cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str = "float32"
    """Name of the dtype in which keys and values are kept."""


class Tokenizer(Protocol):
    """Text to tokens and back."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a plain text, with the special tokens the model expects in front."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation (`role`, `content`), up to where the assistant's answer begins.

        Raises LookaheadError where the model has no chat template.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special tokens left out. Incomplete UTF-8 decodes to U+FFFD."""
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works."""
        ...


@dataclass(frozen=True)
class LanguageModel:
    """A model ready to run: what `load_model` returns and what `generate` takes.

    People who bring their own model build one of these; `tokenizer` may then be None, and prompts
    are token lists.
    """

    name: str
    forward: ForwardFn
    params: Params
    cache_spec: CacheSpec
    vocab_size: int
    max_length: int
    """Context window in tokens: prompt and output together never exceed it."""
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end an answer."""
    tokenizer: Tokenizer | None = None
    mesh: Mesh | None = None
    """The devices that the parameters are on, where there are several (`make_mesh`)."""
    reading: Callable[[int, int], Hashable] | None = None
    """Of a text's prompt length and greatest length, what its keys depend on besides tokens and
    positions. Where it changes, a conversation is read anew from its start. None: on nothing."""
