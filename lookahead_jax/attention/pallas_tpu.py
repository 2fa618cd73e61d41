"""A Pallas TPU kernel: online softmax over the block, then over the prefix as far as it is written.

One program of the grid has one key/value head of one sequence, a tile of the rows of its query
heads, and one block of the cache. The last axis of the grid walks the prefix; its extent is known
at run time only, and the blocks that a shorter sequence of the batch does not need are not fetched,
because their index stays that of its last block.

The cache is read as it lies in memory. XLA:TPU lays an array whose last dimension is no multiple of
128 lanes out the other way round, with positions along the lanes, which wastes nothing; the kernel
then reads [D, C] where it otherwise reads [C, D], and no copy is made either way.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from lookahead_jax.attention.interface import (
    LOWEST,
    Rules,
    Shapes,
    axes_of,
    folding_vmap,
    oldest_seen,
    typed_shape,
    windowed_mask,
)
from lookahead_jax.attention.tpu_tiling import LANES, Tiling, needed_blocks
from lookahead_jax.typing import Array

DTYPES = ("bfloat16", "float32")
MAX_ROWS = 256
"""T at most: scores of the block against itself are held at once, in on-chip memory."""


@dataclass(frozen=True)
class PallasTPU:
    """The kernel, for bfloat16 and float32. Cost follows the text, or the window if there is one.

    What lies behind the prefix may be anything, NaN included.
    """

    block_size: int | None = None
    """Cached entries of one step, a multiple of 128; None: as many as suit the on-chip memory."""

    interpret: bool = False
    """Runs it step by step on any platform, slowly: for tests."""

    def why_not(self, platform: str, shapes: Shapes) -> str | None:
        """Platform, dtype, or too many rows."""
        if platform != "tpu" and not self.interpret:
            return f"expected a TPU, got {platform} (interpret=True runs it anywhere, slowly)"
        if len(set(shapes.dtypes)) > 1 or shapes.dtypes[0] not in DTYPES:
            got = ", ".join(shapes.dtypes)
            return f"expected queries, cache and block all bfloat16 or all float32, got {got}"
        if shapes.num_rows > MAX_ROWS:
            return f"expected at most {MAX_ROWS} rows of one call, got {shapes.num_rows}"
        if shapes.head_dim % 8 and not self.interpret:
            return f"expected head_dim to be a multiple of 8, got {shapes.head_dim}"
        if self.block_size is not None and (self.block_size <= 0 or self.block_size % LANES):
            return f"expected block_size to be a multiple of {LANES}, got {self.block_size}"
        return None

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
        """See `Attention`."""
        arrays = (queries, cached_keys, cached_values, length, block_keys, block_values)
        run = folding_vmap(functools.partial(self._run, rules))
        return run(*arrays, block_mask, positions)

    def _run(
        self,
        rules: Rules,
        queries: Array,
        cached_keys: Array,
        cached_values: Array,
        length: Array,
        block_keys: Array,
        block_values: Array,
        block_mask: Array,
        positions: Array,
    ) -> Array:
        batch_size, num_kv_heads, group, num_rows, head_dim = queries.shape
        axes = axes_of(
            *(queries, cached_keys, cached_values, length),
            *(block_keys, block_values, block_mask, positions),
        )
        tiling = Tiling.of(Shapes.of(queries, cached_keys, block_keys), self.block_size)
        padded = tiling.padded_rows

        def pad(x: Array, *axes: int) -> Array:
            widths = [(0, 0)] * x.ndim
            for axis in axes:
                widths[axis] = (0, padded - num_rows)
            return jnp.pad(x, widths)

        mask = windowed_mask(block_mask, positions, rules.window)
        first, end = needed_blocks(length, positions, rules.window, tiling.size)
        operands = [
            *(first, end, length),
            pad(queries, 3).reshape(batch_size, num_kv_heads, group * padded, head_dim),
            *(self._in_memory(tiling.view(x)) for x in (cached_keys, cached_values)),
            *(pad(block_keys, 2), pad(block_values, 2)),
            pad(mask.astype(jnp.int32), 1, 2),
        ]
        if rules.window is not None:
            operands.append(pad(oldest_seen(positions, rules.window), 1)[:, :, None])
        shape = (batch_size, num_kv_heads, group * padded, head_dim)
        kernel = pl.pallas_call(
            functools.partial(_kernel, rules=rules, tiling=tiling),
            grid_spec=tiling.grid_spec(
                shape, jnp.maximum(jnp.max(end - first), 1), rules.window is not None
            ),
            out_shape=typed_shape(shape, queries.dtype, axes),
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
            ),
            cost_estimate=_cost(shape, cached_keys, tiling),
            interpret=self.interpret,
            name="lookahead_attention",
        )
        mixed = kernel(*operands)
        return mixed.reshape(batch_size, num_kv_heads, group, padded, head_dim)[:, :, :, :num_rows]

    def _in_memory(self, cached: Array) -> Array:
        """A cache buffer kept where it is: XLA would else move all of it on chip beforehand."""
        if self.interpret:
            return cached
        return pltpu.with_memory_space_constraint(cached, pltpu.HBM)


def _cost(shape: tuple[int, ...], cached: Array, tiling: Tiling) -> pl.CostEstimate:
    """Of a full cache: the most that a call can take. Each tile of rows reads it anew."""
    all_rows, capacity = math.prod(shape[:3]), cached.shape[2]
    block_rows = shape[0] * shape[1] * tiling.padded_rows * shape[3]
    tiles = shape[2] // tiling.rows
    numbers = 2 * math.prod(shape) + 2 * tiles * cached.size + 2 * block_rows
    mask_bytes = 4 * shape[0] * tiling.padded_rows**2
    return pl.CostEstimate(
        flops=4 * all_rows * (capacity + tiling.padded_rows) * shape[3],
        transcendentals=all_rows * (capacity + tiling.padded_rows),
        bytes_accessed=numbers * cached.dtype.itemsize + mask_bytes,
    )


def _kernel(
    first: Any,
    end: Any,
    length: Any,
    queries: Any,
    cached_keys: Any,
    cached_values: Any,
    block_keys: Any,
    block_values: Any,
    mask: Any,
    *rest: Any,
    rules: Rules,
    tiling: Tiling,
) -> None:
    """One block of the prefix; the first program of a tile of rows reads the block, too."""
    oldest = rest[0] if rules.window is not None else None
    output, peak, total, mixed = rest[-4:]
    b, j = pl.program_id(0), pl.program_id(3)
    # One side's features are along the lanes as a rule; along the sublanes if the cache is turned.
    by_rows, by_features = (((1,), (1,)), ((), ())), (((1,), (0,)), ((), ()))

    def product(x: Array, y: Array, contract: Any) -> Array:
        return lax.dot_general(
            x,
            y,
            contract,
            precision=lax.Precision.HIGHEST if y.dtype == jnp.float32 else None,
            preferred_element_type=jnp.float32,
        )

    def scores(keys: Array, contract: Any, seen: Array) -> Array:
        plain = rules.scale * product(queries[...], keys, contract)
        if rules.softcap is not None:
            plain = rules.softcap * jnp.tanh(plain / rules.softcap)
        return jnp.where(seen, plain, LOWEST)

    def of_all_heads(seen: Array) -> Array:
        """[padded rows, S] as [rows, S]."""
        return jnp.concatenate([seen] * tiling.heads, axis=0)

    @pl.when(j == 0)
    def _() -> None:
        seen = scores(block_keys[...], by_rows, of_all_heads(mask[...]) != 0)
        highest = jnp.max(seen, axis=-1, keepdims=True)
        weights = jnp.exp(seen - highest)
        peak[...] = jnp.broadcast_to(highest, peak.shape)
        total[...] = jnp.broadcast_to(jnp.sum(weights, axis=-1, keepdims=True), total.shape)
        mixed[...] = product(weights.astype(block_values.dtype), block_values[...], by_features)

    index = first[b] + j

    @pl.when(index < end[b])
    def _() -> None:
        begin = index * tiling.size
        at = begin + lax.broadcasted_iota(jnp.int32, (tiling.padded_rows, tiling.size), 1)
        live = at < length[b]
        if oldest is not None:
            live = live & (at >= oldest[...])
        turned = tiling.features_first
        # Every row sees itself, so `before` is a real score, and what is masked weighs nothing.
        seen = scores(
            cached_keys[...],
            by_features if turned else by_rows,
            of_all_heads(live.astype(jnp.int32)) != 0,
        )
        before = peak[:, :1]
        highest = jnp.maximum(before, jnp.max(seen, axis=-1, keepdims=True))
        weights, shrink = jnp.exp(seen - highest), jnp.exp(before - highest)
        # Leftovers times zero are zero only if they are finite.
        values = cached_values[...]
        written = begin + lax.broadcasted_iota(jnp.int32, values.shape, 1 if turned else 0)
        values = jnp.where(written < length[b], values, jnp.zeros_like(values))
        more = product(weights.astype(values.dtype), values, by_rows if turned else by_features)
        peak[...] = jnp.broadcast_to(highest, peak.shape)
        summed = total[:, :1] * shrink + jnp.sum(weights, axis=-1, keepdims=True)
        total[...] = jnp.broadcast_to(summed, total.shape)
        mixed[...] = mixed[...] * shrink + more

    @pl.when(j == pl.num_programs(3) - 1)
    def _() -> None:
        output[...] = (mixed[...] / total[:, :1]).astype(output.dtype)
