"""What a round costs over an ordinary step, by its rows, for a model with made-up weights.

Both run as `generate` runs them: several model calls in one loop on the device, from the same state
every time. A single call would measure how long Python takes to start a program with some hundred
buffers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.campaign import Record, Step
from benchmarks.gpu_exactness import attention_name, config_name
from benchmarks.gpu_memory import memory_of
from benchmarks.subjects import Call
from lookahead_jax.attention import Attention
from lookahead_jax.autoregressive import Autoregressive
from lookahead_jax.bench.timing import Contender, interleave
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError
from lookahead_jax.generation import Lookahead
from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.models.decoder import DecoderForward, abstract_params, cache_spec
from lookahead_jax.models.weights import DTYPES
from lookahead_jax.programs import Decoder, Program
from lookahead_jax.sampling import Greedy, Policy
from lookahead_jax.sequences import Sequences, init_sequences
from lookahead_jax.typing import Array, Params

STEP, ROUND = "ordinary step", "round"

THRESHOLDS = (1.1, 1.5, 2.0)
"""Ordinary steps."""


@dataclass(frozen=True)
class Conditions:
    """What all points of a model have in common.

    Attributes:
        dtype: Of weights, activations and cache.
        capacity: C, tokens of the cache.
        live: Tokens of the text before the first call; the cache has one less.
        calls: Model calls of one run, of which a time is the mean.
        repeats: Runs that count.
        pause: Seconds of rest before a run.
    """

    dtype: str = "bfloat16"
    capacity: int = 2048
    live: int = 512
    calls: int = 16
    repeats: int = 15
    pause: float = 0.02

    def check(self, configs: Sequence[LookaheadConfig]) -> None:
        """Raises LookaheadError for a dtype there is not, and a text that might not fit."""
        if self.dtype not in DTYPES:
            raise LookaheadError(f"expected a dtype of {', '.join(DTYPES)}, got {self.dtype!r}")
        longest = max((c.ngram_size for c in configs), default=1)
        needed = self.live + (self.calls + 1) * longest
        if needed > self.capacity:
            raise LookaheadError(
                f"expected a capacity of at least {needed} for {self.live} live tokens and "
                f"{self.calls} calls of up to {longest} tokens, got {self.capacity}"
            )


@dataclass(frozen=True)
class Point:
    """One round to time.

    Attributes:
        config: W, N, G.
        attention: How attention is computed; None: what serves the platform.
    """

    config: LookaheadConfig
    attention: Attention | None = None

    @property
    def name(self) -> str:
        """In the record."""
        rows = f"{self.config.num_rows} rows {config_name(self.config)}"
        return rows if self.attention is None else f"{rows}, {attention_name(self.attention)}"


def round_steps(
    config: DecoderConfig,
    points: Sequence[Point],
    conditions: Conditions,
    device: Any = None,
) -> list[Step]:
    """The ordinary step, then every point, each beside the ordinary step.

    Args:
        config: The model's shape.
        points: What to time, the most worthwhile first.
        conditions: The rest.
        device: Its memory is looked at; the first one where None.
    """
    conditions.check([point.config for point in points])
    device = jax.devices()[0] if device is None else device
    model = _Model.make(config, conditions)
    step = model.call(Autoregressive(Policy(Greedy())), None)

    def ordinary() -> Record:
        times = _times({STEP: step}, conditions)
        return {
            "milliseconds": {STEP: times.spread(STEP).scaled(1e3)},
            "weights_bytes": sum(x.nbytes for x in jax.tree.leaves(model.params)),
            "live_tokens": model.live_tokens(step),
            "memory": memory_of(step, device),
        }

    def timed(point: Point) -> Record:
        call = model.call(Lookahead(point.config, Policy(Greedy())), point.attention)
        times = _times({STEP: step, ROUND: call}, conditions)
        return {
            "rows": point.config.num_rows,
            "logit_rows": point.config.num_logit_rows,
            "config": config_name(point.config),
            "attention": attention_name(point.attention),
            "ratio": times.ratio(ROUND, STEP).scaled(1),
            "milliseconds": {name: times.spread(name).scaled(1e3) for name in times.seconds},
            "live_tokens": model.live_tokens(call),
            "memory": memory_of(call, device),
        }

    steps = [Step(point.name, functools.partial(timed, point)) for point in points]
    return [Step(STEP, ordinary), *steps]


def _times(calls: Mapping[str, Call], conditions: Conditions) -> Any:
    contenders = {name: Contender(call.seconds, conditions.calls) for name, call in calls.items()}
    return interleave(contenders, conditions.repeats, pause=conditions.pause)


@dataclass(frozen=True)
class _Model:
    """Made-up weights and a made-up text, half written."""

    config: DecoderConfig
    conditions: Conditions
    params: Params
    sequences: Sequences
    buffers: tuple[tuple[Array, ...], tuple[Array, ...]]
    """Keys and values of the whole capacity."""

    @classmethod
    def make(cls, config: DecoderConfig, conditions: Conditions) -> _Model:
        spec = cache_spec(config, conditions.dtype)
        one = (1, spec.num_kv_heads, conditions.capacity, spec.head_dim)

        def buffers(seed: int) -> tuple[Array, ...]:
            return tuple(
                _normal(jax.random.key(seed + i), one, conditions.dtype, 1.0)
                for i in range(spec.num_layers)
            )

        live, room = conditions.live, conditions.capacity - conditions.live
        sequences = init_sequences(
            jax.random.randint(jax.random.key(1), (1, live), 0, config.vocab_size, jnp.int32),
            jnp.asarray([live], jnp.int32),
            jnp.asarray([room], jnp.int32),
            jnp.asarray([[Sequences.NO_STOP]], jnp.int32),
            conditions.capacity,
        )
        params = random_params(config, conditions.dtype)
        return cls(config, conditions, params, sequences, (buffers(1000), buffers(2000)))

    def call(self, decoder: Decoder[Any], attention: Attention | None) -> Call:
        """Some model calls in one loop, compiled."""
        spec, vocab = cache_spec(self.config, self.conditions.dtype), self.config.vocab_size
        forward = DecoderForward(self.config, attention)
        program = Program(decoder, forward, spec, vocab, self.conditions.capacity)
        state = jax.jit(lambda text: decoder.init(text, spec, vocab))(self.sequences)
        keys, values = self.buffers
        length = self.sequences.length - 1
        state = replace(state, cache=replace(state.cache, keys=keys, values=values, length=length))
        limit, watched = jnp.asarray(self.conditions.calls, jnp.int32), jnp.zeros((1,), bool)
        return Call.compile(program.advance, state, self.params, limit, watched)

    def live_tokens(self, call: Call) -> list[int]:
        """Of the text, before and after a run.

        Raises:
            RuntimeError: It did not make all of its calls, so its time would be wrong.
        """
        after = call.result()
        if (made := int(after.rounds[0])) != self.conditions.calls:
            raise RuntimeError(f"expected {self.conditions.calls} model calls, {made} were made")
        return [int(call.args[0].sequences.length[0]), int(after.sequences.length[0])]


def random_params(config: DecoderConfig, dtype: str) -> Params:
    """Weights of a shape, made on the device: normal with deviation 0.02, norms 1, biases 0."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(abstract_params(config, dtype))

    def made(index: int, path: Any, leaf: Any) -> Array:
        if len(leaf.shape) > 1:
            return _normal(jax.random.key(index), leaf.shape, dtype, 0.02)
        ones = getattr(path[-1], "key", None) == "scale"
        return jnp.full(leaf.shape, 1 if ones else 0, leaf.dtype)

    return jax.tree.unflatten(tree, [made(i, *leaf) for i, leaf in enumerate(leaves)])


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _normal(key: Array, shape: tuple[int, ...], dtype: str, deviation: float) -> Array:
    return jax.random.normal(key, shape, dtype) * jnp.asarray(deviation, dtype)


def rows_at(points: Sequence[tuple[int, float]], ratio: float) -> float | None:
    """Rows at which a round first costs so many ordinary steps, between measured ones in a line.

    One row is an ordinary step. None where no point costs as much.

    Args:
        points: Rows and ratio, in any order.
        ratio: Above 1.
    """
    before = (1, 1.0)
    for point in sorted(points):
        if point[1] >= ratio:
            (q0, r0), (q1, r1) = before, point
            return q0 + (q1 - q0) * (ratio - r0) / (r1 - r0)
        before = point
    return None


def thresholds(steps: Mapping[str, Record]) -> Record:
    """Rows at which a round with the default attention costs 1.1, 1.5 and 2 ordinary steps."""
    points = [
        (r["rows"], r["ratio"]["median"])
        for r in steps.values()
        if r.get("attention") == attention_name(None)
    ]
    if not points:
        return {}
    found = {str(t): rows_at(points, t) for t in THRESHOLDS}
    return {
        "rows_at_ratio": {t: None if r is None else round(r, 1) for t, r in found.items()},
        "most_rows": max(points)[0],
    }
