"""Models that compile in a fraction of a second and notice what a transformer may forgive.

`ToyForward` keeps each row's token in its key and its position in its value. The token after a row
is a function of what the row sees, exact in integers: of the last two tokens, so that n-grams recur
and candidates are accepted, and now and then of a hash of everything, so that one wrong token
anywhere changes the text. A row that does not see exactly one token at each position up to its own
(a leak, a gap, a position that is off) writes something else at once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from lookahead_jax.kv_cache import BlockKV
from lookahead_jax.typing import CacheSpec, LanguageModel

TOY_VOCAB = 24
TOY_LENGTH = 2048
_BROKEN_SHIFT = 11
_PERTURBED_SHIFT = 5


def _spread(x):
    """A hash of uint32, the same for numpy and jax arrays: wraps at 2**32."""
    x = (x ^ (x >> 15)) * np.uint32(0x2C1B3C6D)
    x = (x ^ (x >> 12)) * np.uint32(0x297A2D39)
    return x ^ (x >> 15)


_POSITION_HASHES = _spread(np.arange(1, TOY_LENGTH + 1, dtype=np.uint32))
_EXPECTED_POSITIONS = np.cumsum(_POSITION_HASHES, dtype=np.uint32)


def _pair(token, position):
    """Of uint32 tokens and positions, an entry of the order-free hash of what is seen."""
    return _spread(token * np.uint32(0x9E3779B1) + position * np.uint32(0x85EBCA77) + 1)


@functools.lru_cache(maxsize=1 << 18)
def toy_next(prefix: tuple[int, ...]) -> int:
    """The oracle's view of `ToyForward`: the token after a whole prefix."""
    tokens = np.asarray(prefix, np.uint32)
    seen = np.sum(_pair(tokens, np.arange(len(tokens), dtype=np.uint32)), dtype=np.uint32)
    previous = prefix[-2] if len(prefix) > 1 else 0
    return _toy_choice(int(prefix[-1]), int(previous), int(seen))


def _toy_choice(last, previous, seen):
    base = 7 * last + 3 * (previous % 2) + 2
    return (base + _PERTURBED_SHIFT * (_spread_int(seen) % 8 == 0)) % TOY_VOCAB


def _spread_int(value: int) -> int:
    return int(_spread(np.array([value], np.uint32))[0])


@dataclass(frozen=True)
class ToyForward:
    """The toy model as a `ForwardFn`. `params` is int32 []: the cache length at which it fails.

    From there on logits are NaN.

    Attributes:
        name: Another name is another program.
        traces: Rows of each call that was traced; does not count for equality.
    """

    name: str = "toy"
    traces: list[int] = field(default_factory=list, compare=False)

    def __call__(self, params, tokens, positions, block_mask, cache, logit_rows):
        self.traces.append(tokens.shape[1])
        capacity = cache.keys[0].shape[2]
        block = BlockKV(
            (tokens[:, None, :, None].astype(jnp.float32),),
            (positions[:, None, :, None].astype(jnp.float32),),
        )
        live = (jnp.arange(capacity)[None, :] < cache.length[:, None])[:, None, :]
        sees = jnp.take_along_axis(block_mask, logit_rows[:, :, None], axis=1)
        prefix = jnp.broadcast_to(live, (*logit_rows.shape, capacity))
        visible = jnp.concatenate([prefix, sees], axis=2)  # [B, r, C + T]

        def entries(cached, new):
            both = jnp.concatenate([cached[:, 0, :, 0], new[:, 0, :, 0]], axis=1)
            # Leftovers may be anything, NaN too; they are not visible.
            return jnp.nan_to_num(both, nan=0.0).astype(jnp.int32).astype(jnp.uint32)[:, None, :]

        seen_tokens = entries(cache.keys[0], block.keys[0])
        seen_positions = entries(cache.values[0], block.values[0])

        def total(values):
            values = jnp.broadcast_to(values, visible.shape)
            return jnp.sum(jnp.where(visible, values, np.uint32(0)), axis=2, dtype=jnp.uint32)

        own = jnp.take_along_axis(positions, logit_rows, axis=1).astype(jnp.uint32)

        def token_at(position):
            at = jnp.broadcast_to(seen_positions, visible.shape) == position[:, :, None]
            found = jnp.where(
                at & visible, jnp.broadcast_to(seen_tokens, visible.shape), np.uint32(0)
            )
            return jnp.sum(found, axis=2, dtype=jnp.uint32)

        hashes = total(_spread(seen_positions + np.uint32(1)))
        whole = hashes == jnp.asarray(_EXPECTED_POSITIONS)[own.astype(jnp.int32)]
        last = token_at(own)
        previous = jnp.where(own > 0, token_at(own - np.uint32(1)), np.uint32(0))
        perturbed = _spread(total(_pair(seen_tokens, seen_positions))) % np.uint32(8) == 0
        choice = np.uint32(7) * last + np.uint32(3) * (previous % np.uint32(2)) + np.uint32(2)
        choice += jnp.where(perturbed, np.uint32(_PERTURBED_SHIFT), np.uint32(0))
        choice += jnp.where(whole, np.uint32(0), np.uint32(_BROKEN_SHIFT))
        choice = choice % np.uint32(TOY_VOCAB)
        logits = jax.nn.one_hot(choice.astype(jnp.int32), TOY_VOCAB, dtype=jnp.float32)
        failing = (cache.length >= params)[:, None, None]
        return jnp.where(failing, jnp.nan, logits), block


HEALTHY = np.int32(1 << 30)
"""Parameters of a toy model that never fails."""

TOY_CACHE = CacheSpec(num_layers=1, num_kv_heads=1, head_dim=1)


def toy_model(forward: ToyForward | None = None, **changes) -> LanguageModel:
    lm = LanguageModel(
        name="toy",
        forward=ToyForward() if forward is None else forward,
        params=jnp.asarray(HEALTHY),
        cache_spec=TOY_CACHE,
        vocab_size=TOY_VOCAB,
        max_length=TOY_LENGTH,
    )
    return replace(lm, **changes)


@dataclass(frozen=True)
class RecordedForward:
    """A model whose choices are data: `params` int32 [B, r] is what the rows choose."""

    vocab_size: int

    def __call__(self, params, tokens, positions, block_mask, cache, logit_rows):
        block = BlockKV(
            (tokens[:, None, :, None].astype(jnp.float32),),
            (positions[:, None, :, None].astype(jnp.float32),),
        )
        return jax.nn.one_hot(params, self.vocab_size, dtype=jnp.float32), block


@dataclass(frozen=True)
class ScriptForward:
    """A model that recites: `params` int32 [L] is the whole text, prompt included."""

    vocab_size: int

    def __call__(self, params, tokens, positions, block_mask, cache, logit_rows):
        _, block = RecordedForward(1)(logit_rows, tokens, positions, block_mask, cache, logit_rows)
        own = jnp.take_along_axis(positions, logit_rows, axis=1)
        return jax.nn.one_hot(params[own + 1], self.vocab_size, dtype=jnp.float32), block


class ByteTokenizer:
    """Token 0 is special, token k the byte k - 1: most characters are several tokens."""

    VOCAB = 257
    has_chat_template = False

    def encode(self, text: str) -> list[int]:
        return [1 + byte for byte in text.encode()]

    def encode_chat(self, messages) -> list[int]:
        raise AssertionError("there is no chat template")

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(t - 1 for t in tokens if t).decode("utf-8", errors="replace")


class ChatTokenizer(ByteTokenizer):
    """A chat template that can be read."""

    has_chat_template = True

    def encode_chat(self, messages) -> list[int]:
        return self.encode("".join(f"<{m['role']}:{m['content']}>" for m in messages))


class WordTokenizer(ByteTokenizer):
    """Like sentencepiece: a word brings its space, and a text does not begin with one."""

    def encode(self, text: str) -> list[int]:
        return [1 + ord(letter) for letter in text.replace(" ", "")]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f" {chr(t - 1)}" for t in tokens if t).removeprefix(" ")


def script_model(text: str, tokenizer: ByteTokenizer | None = None, **changes) -> LanguageModel:
    """Recites `text` from wherever a prompt ends, over and over."""
    script = ByteTokenizer().encode(text)
    script = (script * (1 + 512 // len(script)))[:512]
    return replace(
        toy_model(),
        name="reciter",
        forward=ScriptForward(ByteTokenizer.VOCAB),
        params=jnp.asarray(script, jnp.int32),
        vocab_size=ByteTokenizer.VOCAB,
        max_length=512,
        tokenizer=ByteTokenizer() if tokenizer is None else tokenizer,
        **changes,
    )


class Letters(ByteTokenizer):
    """A letter for every token of the toy model but the one that ends a message."""

    has_chat_template = True
    ASSISTANT, USER, SYSTEM, END = 20, 21, 22, 23

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, tokens):
        return "".join(chr(ord("a") + token) for token in tokens if token != self.END)

    def encode_chat(self, messages):
        roles = {"user": self.USER, "assistant": self.ASSISTANT, "system": self.SYSTEM}
        turns = [[roles[m["role"]], *self.encode(m["content"]), self.END] for m in messages]
        return [*itertools.chain(*turns), self.ASSISTANT]
