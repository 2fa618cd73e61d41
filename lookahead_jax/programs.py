"""The compiled programs of a generation, and their cache.

Two programs run any decoder: `start` builds the state and reads the prompts, `advance` runs rounds
in one `lax.while_loop` until every sequence is done or a number of rounds is over. Generating and
streaming share them: a stream asks for a few rounds at a time.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import checkify

from lookahead_jax.kv_cache import KVCache
from lookahead_jax.sequences import Sequences, init_sequences
from lookahead_jax.typing import Array, CacheSpec, ForwardFn, Params

MAX_PREFILL_CHUNK = 256
"""Most rows of one prefill call."""


class State(Protocol):
    """What the programs need to see of a decoder's state."""

    @property
    def sequences(self) -> Sequences:  # noqa: D102
        ...

    @property
    def cache(self) -> KVCache:  # noqa: D102
        ...

    @property
    def rounds(self) -> Array:  # noqa: D102
        ...

    @property
    def accepted_histogram(self) -> Array:  # noqa: D102
        ...


S = TypeVar("S", bound=State)


class Decoder(Protocol[S]):
    """A decoding algorithm: hashable, static under `jax.jit`."""

    @property
    def overhang(self) -> int:
        """Tokens a round may write past the longest text, which the capacity must include."""
        ...

    def init(self, sequences: Sequences, cache_spec: CacheSpec, vocab_size: int) -> S:
        """The state before prefill."""
        ...

    def prefill(self, state: S, params: Params, forward: ForwardFn, chunk: int) -> S:
        """The state with the prompts read."""
        ...

    def step(self, state: S, params: Params, forward: ForwardFn) -> S:
        """One model call."""
        ...


@dataclass(frozen=True)
class Program:
    """What a compiled program depends on, shapes apart."""

    decoder: Decoder[Any]
    forward: ForwardFn
    cache_spec: CacheSpec
    vocab_size: int
    capacity: int

    def start(
        self,
        prompt: Array,
        prompt_length: Array,
        max_new_tokens: Array,
        stop_tokens: Array,
        params: Params,
    ) -> Any:
        """Prompts int32 [B, P] to the state after prefill, in chunks of P rows or fewer.

        P is a multiple of `MAX_PREFILL_CHUNK` where it is larger.
        """
        sequences = init_sequences(
            prompt, prompt_length, max_new_tokens, stop_tokens, self.capacity
        )
        state = self.decoder.init(sequences, self.cache_spec, self.vocab_size)
        chunk = min(prompt.shape[1], MAX_PREFILL_CHUNK)
        return self.decoder.prefill(state, params, self.forward, chunk)

    def advance(self, state: Any, params: Params, num_rounds: Array) -> Any:
        """Runs at most `num_rounds` rounds, until every sequence is done."""

        def unfinished(carry: tuple[Array, Any]) -> Array:
            i, state = carry
            return (i < num_rounds) & ~jnp.all(state.sequences.done)

        def body(carry: tuple[Array, Any]) -> tuple[Array, Any]:
            i, state = carry
            return i + 1, self.decoder.step(state, params, self.forward)

        return lax.while_loop(unfinished, body, (jnp.zeros((), jnp.int32), state))[1]

    def checked_step(self, state: Any, params: Params) -> tuple[checkify.Error, Any]:
        """One round, and whether its publication plan held."""
        return checkify.checkify(self.decoder.step)(state, params, self.forward)


@dataclass(frozen=True)
class _Signature:
    """Shapes and dtypes of a program's arguments, hashable."""

    treedef: Any
    leaves: tuple[tuple[tuple[int, ...], Any, Any], ...]

    @classmethod
    def of(cls, args: tuple[Any, ...]) -> _Signature:
        leaves, treedef = jax.tree.flatten(args)
        return cls(treedef, tuple((x.shape, x.dtype, getattr(x, "sharding", None)) for x in leaves))

    def abstract(self) -> tuple[Any, ...]:
        return jax.tree.unflatten(
            self.treedef,
            [jax.ShapeDtypeStruct(shape, dtype, sharding=at) for shape, dtype, at in self.leaves],
        )


@functools.lru_cache(maxsize=64)
def _compile(
    program: Program, method: str, donate: tuple[int, ...], signature: _Signature
) -> tuple[Callable[..., Any], list[float]]:
    """The compiled function, and the seconds it took, to be charged to whoever asked first."""
    begin = time.perf_counter()
    function = getattr(program, method)
    compiled = jax.jit(function, donate_argnums=donate).lower(*signature.abstract()).compile()
    return compiled, [time.perf_counter() - begin]


def compiled(
    program: Program, method: str, *args: Any, donate: tuple[int, ...] = ()
) -> tuple[Callable[..., Any], float]:
    """A method compiled for these arguments, and the seconds that took: 0 if it was there already.

    Args:
        program: Equal programs share their compilation. (Bound methods of equal objects are not
            equal, so a method is named.)
        method: "start", "advance" or "checked_step".
        *args: Arrays, or anything with a shape and dtype.
        donate: Arguments whose buffers the program may reuse.
    """
    function, cost = _compile(program, method, donate, _Signature.of(args))
    return function, cost.pop() if cost else 0.0
