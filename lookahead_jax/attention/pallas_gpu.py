"""A Pallas kernel for GPUs, by way of Triton: the prefix in shares, merged by their log-sum-exp.

One program of the grid has one key/value head of one sequence, a tile of the rows of its query
heads, and one share of the blocks that are written; the first share's program reads the block, too.
Without shares a small batch would leave most of the GPU idle. How many blocks a share has is known
at run time only, so cost follows the text. The results of the shares are merged in plain XLA.

It has been compiled for no GPU yet: its tests interpret it, and lower it to Triton's language.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

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
from lookahead_jax.typing import Array

DTYPES = ("bfloat16", "float16", "float32")
MAX_ROWS = 256
TILE_ROWS = 64
"""Rows of one program at most, which belong to any of the query heads of a group."""


@dataclass(frozen=True)
class PallasGPU:
    """The kernel, for NVIDIA GPUs. Cost follows the text, or the window if there is one.

    What lies behind the prefix may be anything, NaN included.
    """

    block_size: int = 64
    """Cached entries of one step, a power of two, at least 16."""

    shares: int = 8
    """Programs that share the prefix of one sequence and head."""

    interpret: bool = False
    """Runs it step by step on any platform, slowly: for tests."""

    def why_not(self, platform: str, shapes: Shapes) -> str | None:
        """Platform, dtype, features, or too many rows."""
        if platform != "cuda" and not self.interpret:
            return f"expected a CUDA GPU, got {platform} (interpret=True runs it anywhere, slowly)"
        if len(set(shapes.dtypes)) > 1 or shapes.dtypes[0] not in DTYPES:
            got = ", ".join(shapes.dtypes)
            return f"expected one dtype, of {', '.join(DTYPES)}, for all arrays, got {got}"
        if shapes.num_rows > MAX_ROWS:
            return f"expected at most {MAX_ROWS} rows of one call, got {shapes.num_rows}"
        if not self.interpret and not _is_power(shapes.head_dim):
            return f"expected head_dim to be a power of two, at least 16, got {shapes.head_dim}"
        if not _is_power(self.block_size):
            return f"expected block_size to be a power of two, at least 16, got {self.block_size}"
        if self.shares < 1:
            return f"expected shares to be at least 1, got {self.shares}"
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
        all_rows, width = group * num_rows, _power(num_rows)
        tile = min(TILE_ROWS, _power(all_rows))
        padded = -(-all_rows // tile) * tile

        def pad(x: Array, axis: int, size: int) -> Array:
            widths = [(0, 0)] * x.ndim
            widths[axis] = (0, size - x.shape[axis])
            return jnp.pad(x, widths)

        rows = pad(queries.reshape(batch_size, num_kv_heads, all_rows, head_dim), 2, padded)
        mask = windowed_mask(block_mask, positions, rules.window)
        mask = pad(jnp.tile(mask, (1, group, 1)).astype(jnp.int32), 1, padded)
        oldest = jnp.zeros_like(positions)
        if rules.window is not None:
            oldest = jnp.maximum(oldest_seen(positions, rules.window), 0)
        end = -(-length // self.block_size)
        first = jnp.minimum(jnp.min(oldest, axis=1) // self.block_size, end)
        operands = (
            *(jnp.stack([first, end, length], axis=1).astype(jnp.int32), rows),
            *(cached_keys, cached_values),
            *(pad(block_keys, 2, width), pad(block_values, 2, width)),
            *(pad(mask, 2, width), pad(jnp.tile(oldest, (1, group)), 1, padded)),
        )
        shape = (batch_size, num_kv_heads, self.shares, padded)
        kernel = pl.pallas_call(
            functools.partial(_kernel, rules=rules, size=self.block_size, shares=self.shares),
            grid=(batch_size, num_kv_heads, self.shares * (padded // tile)),
            in_specs=self._inputs(tile, width, cached_keys.shape),
            out_specs=[self._output(tile), self._output(tile), self._output(tile, head_dim)],
            out_shape=[
                typed_shape(shape, jnp.float32, axes),
                typed_shape(shape, jnp.float32, axes),
                typed_shape((*shape, head_dim), jnp.float32, axes),
            ],
            compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
            cost_estimate=_cost(rows.shape, cached_keys, width, padded // tile),
            interpret=self.interpret,
            name="lookahead_attention",
        )
        mixed = _merged(*kernel(*operands))[:, :, :all_rows]
        return mixed.reshape(queries.shape).astype(queries.dtype)

    def _inputs(self, tile: int, width: int, cache: tuple[int, ...]) -> list[pl.BlockSpec]:
        """What a program sees: its rows, the whole cache and block of its head."""
        _, _, capacity, head_dim = cache
        shares = self.shares
        whole = pl.BlockSpec((None, None, capacity, head_dim), lambda b, k, i: (b, k, 0, 0))
        block = pl.BlockSpec((None, None, width, head_dim), lambda b, k, i: (b, k, 0, 0))
        return [
            pl.BlockSpec((None, 3), lambda b, k, i: (b, 0)),
            pl.BlockSpec((None, None, tile, head_dim), lambda b, k, i: (b, k, i // shares, 0)),
            *(whole, whole, block, block),
            pl.BlockSpec((None, tile, width), lambda b, k, i: (b, i // shares, 0)),
            pl.BlockSpec((None, tile), lambda b, k, i: (b, i // shares)),
        ]

    def _output(self, tile: int, *features: int) -> pl.BlockSpec:
        shares, zeros = self.shares, (0,) * len(features)
        return pl.BlockSpec(
            (None, None, None, tile, *features),
            lambda b, k, i: (b, k, i % shares, i // shares, *zeros),
        )


def _is_power(number: int) -> bool:
    return number >= 16 and number & (number - 1) == 0


def _power(number: int) -> int:
    """The power of two that is not smaller, and not smaller than 16, a side of a product."""
    return max(16, 1 << (number - 1).bit_length())


def _merged(peak: Array, total: Array, mixed: Array) -> Array:
    """Attention [B, K, M, D] of shares [B, K, shares, M] and [B, K, shares, M, D]."""
    by = jnp.exp(peak - jnp.max(peak, axis=2, keepdims=True))
    return jnp.sum(mixed * by[..., None], axis=2) / jnp.sum(total * by, axis=2)[..., None]


def _cost(rows: tuple[int, ...], cached: Array, width: int, tiles: int) -> pl.CostEstimate:
    """Of a full cache: the most that a call can take. Each tile of rows reads it anew."""
    batch_size, num_kv_heads, all_rows, head_dim = rows
    scores = batch_size * num_kv_heads * all_rows * (cached.shape[2] + width)
    block = batch_size * num_kv_heads * width * head_dim
    numbers = 2 * tiles * cached.size + 2 * tiles * block + 2 * math.prod(rows)
    return pl.CostEstimate(
        flops=4 * scores * head_dim,
        transcendentals=scores,
        bytes_accessed=numbers * cached.dtype.itemsize,
    )


def _kernel(
    bounds: Any,
    queries: Any,
    cached_keys: Any,
    cached_values: Any,
    block_keys: Any,
    block_values: Any,
    mask: Any,
    oldest: Any,
    peak: Any,
    total: Any,
    mixed: Any,
    *,
    rules: Rules,
    size: int,
    shares: int,
) -> None:
    """One share of the prefix for one tile of rows."""
    rows, oldest_row = queries[...], oldest[...]
    first, end, length = bounds[0], bounds[1], bounds[2]
    share = lax.rem(pl.program_id(2), shares)

    def product(x: Array, y: Array, contract: int) -> Array:
        exact = y.dtype == jnp.float32
        return lax.dot_general(
            x,
            y,
            (((1,), (contract,)), ((), ())),
            precision=lax.Precision.HIGHEST if exact else None,
            preferred_element_type=jnp.float32,
        )

    def extended(carry: Any, keys: Array, values: Array, seen: Array) -> Any:
        before, summed, so_far = carry
        scores = rules.scale * product(rows, keys, 1)
        if rules.softcap is not None:
            scores = rules.softcap * jnp.tanh(scores / rules.softcap)
        scores = jnp.where(seen, scores, LOWEST)
        highest = jnp.maximum(before, jnp.max(scores, axis=1))
        # A row that has seen nothing so far has weights of 1 and the lowest peak: they vanish, here
        # or in the merge, as soon as there is a real score.
        weights, shrink = jnp.exp(scores - highest[:, None]), jnp.exp(before - highest)
        more = product(weights.astype(values.dtype), values, 0)
        summed = summed * shrink + jnp.sum(weights, axis=1)
        return highest, summed, so_far * shrink[:, None] + more

    def step(index: Array, carry: Any) -> Any:
        at = index * size + jnp.arange(size)
        written = at < length
        part = pl.ds(index * size, size)
        # What is not written is not read either.
        features = jnp.broadcast_to(written[:, None], (size, rows.shape[1]))
        keys = plgpu.load(cached_keys.at[part, :], mask=features, other=0.0)
        values = plgpu.load(cached_values.at[part, :], mask=features, other=0.0)
        seen = written[None, :] & (at[None, :] >= oldest_row[:, None])
        return extended(carry, keys, values, seen)

    # The block belongs to the first share: its rows see themselves there, so that one has a sum.
    nothing = (
        jnp.full(rows.shape[:1], LOWEST, jnp.float32),
        jnp.zeros(rows.shape[:1], jnp.float32),
        jnp.zeros(rows.shape, jnp.float32),
    )
    seen = (mask[...] != 0) & (share == 0)
    carry = extended(nothing, block_keys[...], block_values[...], seen)
    each = lax.div(end - first + shares - 1, shares)
    begin = first + share * each
    peak[...], total[...], mixed[...] = lax.fori_loop(
        begin, jnp.minimum(begin + each, end), step, carry
    )
