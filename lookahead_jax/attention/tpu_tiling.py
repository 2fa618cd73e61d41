"""How the TPU kernel cuts its work: tiles of rows, blocks of the cache, and its grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from lookahead_jax.attention.interface import Shapes, oldest_seen
from lookahead_jax.typing import Array

LANES = 128
TILE_ROWS = 1024
"""Rows of one program at most, T times some query heads."""

SCORE_BYTES = 1 << 20
"""Of the scores of one program, which set the size of a block of the cache."""


@dataclass(frozen=True)
class Tiling:
    """How the work is cut."""

    padded_rows: int
    """T rounded up to whole tiles of the chip."""

    heads: int
    """Query heads of one program; their count times `padded_rows` are its rows."""

    size: int
    """Cached entries of one block."""

    features_first: bool
    """Whether the cache is read as [D, C]."""

    @classmethod
    def of(cls, shapes: Shapes, block_size: int | None) -> Tiling:
        """For some shapes."""
        sublanes = 16 if shapes.dtypes[0] == "bfloat16" else 8
        padded = -(-shapes.num_rows // sublanes) * sublanes
        heads = max(n for n in range(1, shapes.group + 1) if _divides(n, shapes.group, padded))
        fitting = SCORE_BYTES // (4 * heads * padded) // LANES * LANES
        size = min(max(fitting, LANES), 8 * LANES) if block_size is None else block_size
        size = min(size, shapes.capacity)
        return cls(padded, heads, size, shapes.head_dim % LANES != 0)

    @property
    def rows(self) -> int:
        """Of one program."""
        return self.heads * self.padded_rows

    def view(self, cached: Array) -> Array:
        """The cache [B, K, C, D] as it lies in memory."""
        return cached.swapaxes(2, 3) if self.features_first else cached

    def grid_spec(
        self, shape: tuple[int, ...], num_blocks: Array, windowed: bool
    ) -> pltpu.PrefetchScalarGridSpec:
        """Grid [B, K, tiles of rows, blocks of the prefix] and what each program sees."""
        batch_size, num_kv_heads, all_rows, head_dim = shape

        def cached(b: Any, k: Any, r: Any, j: Any, first: Any, end: Any, length: Any) -> Any:
            del r, length
            block = jnp.minimum(first[b] + j, jnp.maximum(end[b] - 1, 0))
            return (b, k, 0, block) if self.features_first else (b, k, block, 0)

        def rows(b: Any, k: Any, r: Any, j: Any, *bounds: Any) -> Any:
            return (b, k, r, 0)

        def block(b: Any, k: Any, r: Any, j: Any, *bounds: Any) -> Any:
            return (b, k, 0, 0)

        def sequence(b: Any, k: Any, r: Any, j: Any, *bounds: Any) -> Any:
            return (b, 0, 0)

        size, tile = (head_dim, self.size), (None, None, self.rows, head_dim)
        in_cache = pl.BlockSpec(
            (None, None, *(size if self.features_first else size[::-1])), cached
        )
        in_block = pl.BlockSpec((None, None, self.padded_rows, head_dim), block)
        specs = [
            pl.BlockSpec(tile, rows),
            *(in_cache, in_cache, in_block, in_block),
            pl.BlockSpec((None, self.padded_rows, self.padded_rows), sequence),
        ]
        if windowed:
            specs.append(pl.BlockSpec((None, self.padded_rows, 1), sequence))
        return pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(batch_size, num_kv_heads, all_rows // self.rows, num_blocks),
            in_specs=specs,
            out_specs=pl.BlockSpec(tile, rows),
            scratch_shapes=[
                pltpu.VMEM((self.rows, LANES), jnp.float32),
                pltpu.VMEM((self.rows, LANES), jnp.float32),
                pltpu.VMEM((self.rows, head_dim), jnp.float32),
            ],
        )


def _divides(heads: int, group: int, padded_rows: int) -> bool:
    return group % heads == 0 and (heads == 1 or heads * padded_rows <= TILE_ROWS)


def needed_blocks(
    length: Array, positions: Array, window: int | None, size: int
) -> tuple[Array, Array]:
    """int32 [B] each: the first block of the prefix that a sequence needs, and where they end."""
    end = (length + size - 1) // size
    if window is None:
        return jnp.zeros_like(end), end
    oldest = jnp.maximum(jnp.min(oldest_seen(positions, window), axis=1), 0)
    return jnp.minimum(oldest // size, end), end
