"""The compiled programs of a generation, and their cache.

Two programs run any decoder: `start` builds the state and reads the prompts, `advance` runs rounds
in one `lax.while_loop` until every sequence is done or a number of rounds is over. Generating and
streaming share them: a stream asks for a few rounds at a time. Two more keep a state in use:
`admit` gives a finished sequence's place to the next prompt, `extend` reads a next turn.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import checkify
from jax.sharding import Mesh, PartitionSpec

from lookahead_jax import kv_cache
from lookahead_jax import sequences as sequences_lib
from lookahead_jax.kv_cache import KVCache
from lookahead_jax.sequences import Sequences, extend, extent, init_sequences
from lookahead_jax.sharding import DATA, manual_axes, shardings, size_of
from lookahead_jax.typing import Array, CacheSpec, ForwardFn, Params

MAX_PREFILL_CHUNK = 256
"""Most rows of one prefill call."""

BATCH, WHOLE = PartitionSpec(DATA), PartitionSpec()
"""Arguments with a batch axis, shared out among the groups of a mesh, and those that all have."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Requests:
    """What a batch is asked for."""

    prompt: Array  # int32 [B, P], padded on the right
    prompt_length: Array  # int32 [B]
    max_new_tokens: Array  # int32 [B]
    stop_tokens: Array  # int32 [B, E], padded with `Sequences.NO_STOP`
    key: Array  # uint32 [B, 2], seed and sample index


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

    @property
    def lag(self) -> int:
        """Tokens that the cache may be behind the text, the last one apart."""
        ...

    def init(self, sequences: Sequences, cache_spec: CacheSpec, vocab_size: int) -> S:
        """The state before prefill."""
        ...

    def prefill(self, state: S, params: Params, forward: ForwardFn, chunk: int) -> S:
        """The state with the prompts read."""
        ...

    def extend(self, state: S, kept: Array) -> S:
        """What is the decoder's own of a next turn, whose text is in the state already.

        `kept` int32 [B] is the number of tokens from before.
        """
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
    logprobs: bool = False
    mesh: Mesh | None = None
    """Where it runs, if on several devices: the state goes where `sharding.RULES` say."""

    def start(self, requests: Requests, params: Params) -> Any:
        """The state after prefill, in chunks of P rows or fewer.

        P is a multiple of `MAX_PREFILL_CHUNK` where it is larger.
        """
        return self._on_mesh(self._start, BATCH, WHOLE)(requests, params)

    def _on_mesh(self, function: Callable[..., Any], *specs: PartitionSpec) -> Callable[..., Any]:
        """A function that returns a state, run by every group of the mesh on its own sequences.

        What happens along the mesh axis `model` is left to the partitioner.
        """
        mesh = self.mesh
        if mesh is None:
            return function
        # Without `check_vma`, because a model of one's own need not know of it.
        mapped = jax.shard_map(
            function,
            mesh=mesh,
            in_specs=specs,
            out_specs=BATCH,
            axis_names=manual_axes(mesh),
            check_vma=False,
        )

        def placed(*args: Any) -> Any:
            state = mapped(*args)
            return lax.with_sharding_constraint(state, shardings(mesh, "state", state))

        return placed

    def _start(self, requests: Requests, params: Params) -> Any:
        sequences = init_sequences(
            requests.prompt,
            requests.prompt_length,
            requests.max_new_tokens,
            requests.stop_tokens,
            self.capacity,
            requests.key,
            self.logprobs,
        )
        state = self.decoder.init(sequences, self.cache_spec, self.vocab_size)
        return self._prefill(state, requests, params)

    def admit(self, state: Any, slot: Array, request: Requests, params: Params) -> Any:
        """The state with a new request in the place of a finished sequence.

        Args:
            state: The state of the batch; may be donated.
            slot: int32 [], the place.
            request: One request, B = 1.
            params: The model's weights.
        """
        return self._on_mesh(self._admit, BATCH, WHOLE, WHOLE, WHOLE)(state, slot, request, params)

    def _admit(self, state: Any, slot: Array, request: Requests, params: Params) -> Any:
        one = self._start(request, params)
        if size_of(self.mesh, DATA) == 1:
            return jax.tree.map(
                lambda batch, new: lax.dynamic_update_slice_in_dim(batch, new, slot, 0), state, one
            )
        # Every group has read the prompt; only the one that has the place takes it in.
        num_slots = state.rounds.shape[0]
        here = slot - num_slots * lax.axis_index(DATA)
        is_here = (here >= 0) & (here < num_slots)
        here = jnp.clip(here, 0, num_slots - 1)

        def put(batch: Array, new: Array) -> Array:
            old = lax.dynamic_slice_in_dim(batch, here, 1, 0)
            return lax.dynamic_update_slice_in_dim(batch, jnp.where(is_here, new, old), here, 0)

        return jax.tree.map(put, state, one)

    def extend(self, state: Any, requests: Requests, kept: Array, params: Params) -> Any:
        """The state with a next turn read: `kept` [B] tokens of the text stay, new ones follow.

        The first `kept` tokens of the cache must still be right, as far as it goes. The counts
        begin anew. The capacity must hold `kept + P` tokens, and one chunk more where the decoder
        has a lag.
        """
        mapped = self._on_mesh(self._extend, BATCH, BATCH, BATCH, WHOLE)
        return mapped(state, requests, kept, params)

    def _extend(self, state: Any, requests: Requests, kept: Array, params: Params) -> Any:
        sequences = extend(
            state.sequences,
            kept,
            requests.prompt,
            requests.prompt_length,
            requests.max_new_tokens,
        )
        state = replace(
            state,
            sequences=sequences,
            cache=replace(
                state.cache,
                length=jnp.minimum(kept, state.cache.length),
                extent=extent(sequences),
            ),
            rounds=jnp.zeros_like(state.rounds),
            accepted_histogram=jnp.zeros_like(state.accepted_histogram),
        )
        return self._prefill(self.decoder.extend(state, kept), requests, params)

    def _prefill(self, state: Any, requests: Requests, params: Params) -> Any:
        chunk = min(requests.prompt.shape[1], MAX_PREFILL_CHUNK)
        return self.decoder.prefill(state, params, self.forward, chunk)

    def advance(self, state: Any, params: Params, num_rounds: Array, watched: Array) -> Any:
        """Runs at most `num_rounds` rounds, until every sequence is done.

        Args:
            state: The state; may be donated.
            params: The model's weights.
            num_rounds: int32 [].
            watched: bool [B], come back as soon as one of these is done.
        """
        mapped = self._on_mesh(self._advance, BATCH, WHOLE, WHOLE, BATCH)
        return mapped(state, params, num_rounds, watched)

    def _advance(self, state: Any, params: Params, num_rounds: Array, watched: Array) -> Any:
        def goes_on(i: Array, state: Any) -> Array:
            done = state.sequences.done
            is_over = ~self._anywhere(~done) | self._anywhere(done & watched)
            return (i < num_rounds) & ~is_over

        def body(carry: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
            i, _, state = carry
            state = self.decoder.step(state, params, self.forward)
            return i + 1, goes_on(i + 1, state), state

        zero = jnp.zeros((), jnp.int32)
        return lax.while_loop(lambda carry: carry[1], body, (zero, goes_on(zero, state), state))[2]

    def _anywhere(self, what: Array) -> Array:
        """Whether something bool [B] holds for any sequence of any group."""
        here = jnp.any(what)
        if size_of(self.mesh, DATA) == 1:
            return here
        # All groups run the same number of rounds, so that the host can look at all of them.
        return lax.pmax(here.astype(jnp.int32), DATA) > 0

    def checked_step(self, state: Any, params: Params) -> tuple[checkify.Error, Any]:
        """One round, and whether its publication plan held."""
        return checkify.checkify(self.decoder.step)(state, params, self.forward)


def device_bytes(program: Any) -> int:
    """Most that a compiled program has on one device at a time, by the compiler's figures.

    That is arguments, results that take over none of them, and temporaries.
    """
    found = program.memory_analysis()
    return (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
        + found.temp_size_in_bytes
    )


def grow_state(state: Any, capacity: int) -> Any:
    """The same state with room for longer texts."""
    return replace(
        state,
        sequences=sequences_lib.grow(state.sequences, capacity),
        cache=kv_cache.grow(state.cache, capacity),
    )


@dataclass(frozen=True)
class _Signature:
    """Shapes and dtypes of a program's arguments, hashable."""

    treedef: Any
    leaves: tuple[tuple[tuple[int, ...], Any, Any], ...]

    @classmethod
    def of(cls, args: tuple[Any, ...]) -> _Signature:
        leaves, treedef = jax.tree.flatten(args)
        return cls(treedef, tuple((x.shape, x.dtype, _committed_to(x)) for x in leaves))

    def abstract(self) -> tuple[Any, ...]:
        return jax.tree.unflatten(
            self.treedef,
            [jax.ShapeDtypeStruct(shape, dtype, sharding=at) for shape, dtype, at in self.leaves],
        )


def _committed_to(x: Any) -> Any:
    """Where an argument must be: None for what goes wherever the others are."""
    return getattr(x, "sharding", None) if getattr(x, "committed", True) else None


@functools.lru_cache(maxsize=64)
def _compile(
    program: Hashable, method: str, donate: tuple[int, ...], signature: _Signature
) -> tuple[Callable[..., Any], list[float]]:
    """The compiled function, and the seconds it took, to be charged to whoever asked first."""
    begin = time.perf_counter()
    function = getattr(program, method)
    compiled = jax.jit(function, donate_argnums=donate).lower(*signature.abstract()).compile()
    return compiled, [time.perf_counter() - begin]


def compiled(
    program: Hashable, method: str, *args: Any, donate: tuple[int, ...] = ()
) -> tuple[Callable[..., Any], float]:
    """A method compiled for these arguments, and the seconds that took: 0 if it was there already.

    Args:
        program: Equal programs share their compilation. (Bound methods of equal objects are not
            equal, so a method is named.)
        method: Its name, such as "advance".
        *args: Arrays, or anything with a shape and dtype.
        donate: Arguments whose buffers the program may reuse.
    """
    function, cost = _compile(program, method, donate, _Signature.of(args))
    return function, cost.pop() if cost else 0.0
