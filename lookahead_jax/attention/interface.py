"""What every implementation of attention is given, and what it must say of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from lookahead_jax.typing import Array

LOWEST = float(jnp.finfo(jnp.float32).min)
"""Score of what a row may not see. Finite, so that a row that sees nothing yet gives no NaN."""


@dataclass(frozen=True)
class Rules:
    """What a model's attention is, besides its arrays; static under `jax.jit`."""

    scale: float
    """Factor on the scores, 1 / sqrt(D) as a rule."""

    window: int | None = None
    """Rows see this many positions, their own included; None: all."""

    softcap: float | None = None
    """Scores are squeezed between -softcap and softcap; None: not at all."""


@dataclass(frozen=True)
class Shapes:
    """The sizes on which it depends whether an implementation can serve."""

    group: int
    """Query heads for each key/value head, H / K."""

    num_rows: int
    """T."""

    capacity: int
    """C."""

    head_dim: int
    """D."""

    dtypes: tuple[str, str, str]
    """Of queries, cache and block."""

    @classmethod
    def of(cls, queries: Array, cached_keys: Array, block_keys: Array) -> Shapes:
        """Of arrays as `attend` takes them."""
        _, _, group, num_rows, head_dim = queries.shape
        dtypes = (str(queries.dtype), str(cached_keys.dtype), str(block_keys.dtype))
        return cls(group, num_rows, cached_keys.shape[2], head_dim, dtypes)


class Attention(Protocol):
    """One way to compute attention over two segments: a frozen dataclass, equal by value."""

    def why_not(self, platform: str, shapes: Shapes) -> str | None:
        """Why it cannot run there, in one line; None if it can.

        Args:
            platform: "cpu", "tpu", "cuda" or "rocm".
            shapes: What it would have to compute.
        """
        ...

    def __call__(
        self,
        queries: Array,
        cached_keys: Array,
        cached_values: Array,
        length: Array,
        block_keys: Array,
        block_values: Array,
        block_mask: Array,
        positions: Array,
        rules: Rules,
    ) -> Array:
        """The arguments of `attend`, all of them arrays with the batch in front, and the rules.

        `positions` counts only where `rules.window` is given.
        """
        ...


def oldest_seen(positions: Array, window: int) -> Array:
    """int32 like `positions`: the oldest position that each row sees, itself included."""
    return positions - window + 1


def windowed_mask(block_mask: Array, positions: Array, window: int | None) -> Array:
    """The block's mask bool [B, T, T], without the rows that a sliding window has left behind."""
    if window is None:
        return block_mask
    return block_mask & (positions[:, None, :] >= oldest_seen(positions, window)[:, :, None])


def axes_of(*arrays: Array) -> frozenset[str]:
    """The mesh axes along which any of them varies inside of `jax.shard_map`; empty outside."""
    return frozenset().union(*(jax.typeof(x).manual_axis_type.varying for x in arrays))


def varying_like(x: Array, *others: Array) -> Array:
    """`x` as a value that may differ along each mesh axis along which one of the others does.

    Inside of `jax.shard_map` a loop's carry must have the type of what the loop makes of it.
    """
    missing = axes_of(*others) - axes_of(x)
    return lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x


def typed_shape(shape: tuple[int, ...], dtype: Any, axes: frozenset[str]) -> jax.ShapeDtypeStruct:
    """Of an array that varies along these mesh axes, which a kernel's result must be told."""
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    kind = jax.sharding.ManualAxisType(varying=axes)
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=kind)


def folding_vmap(function: Callable[..., Array]) -> Callable[..., Array]:
    """A function of arrays with the batch in front, for which `jax.vmap` makes the batch larger.

    A kernel then needs no batching rule, and `vmap` adds no axis to its grid.
    """
    folded = jax.custom_batching.custom_vmap(function)

    @folded.def_vmap
    def rule(axis_size: int, in_batched: list[bool], *arrays: Array) -> tuple[Array, bool]:
        def fold(x: Array, batched: bool) -> Array:
            x = x if batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        result: Any = folded(*map(fold, arrays, in_batched))
        return result.reshape(axis_size, -1, *result.shape[1:]), True

    return folded
