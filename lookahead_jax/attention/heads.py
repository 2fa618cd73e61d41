"""Attention whose key/value heads are shared out along the mesh axis `model`."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax.sharding import Mesh, PartitionSpec

from lookahead_jax.attention.choice import compute
from lookahead_jax.attention.interface import Attention, Rules, Shapes
from lookahead_jax.sharding import MODEL
from lookahead_jax.typing import Array


@dataclass(frozen=True)
class HeadParallel:
    """Every device of the axis `model` computes its own heads; nothing crosses.

    XLA's partitioner, which has that axis else, cannot look into a kernel. Elsewhere along the mesh
    the arrays may be anything.
    """

    mesh: Mesh
    inner: Attention | None = None
    """How a device computes its heads; None: what the platform's default is."""

    def why_not(self, platform: str, shapes: Shapes) -> str | None:
        """Nothing here; `inner` is asked when its own shapes are known."""
        del platform, shapes

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
        """See `Attention`; K must be divisible by the size of the axis."""
        heads, whole = PartitionSpec(None, MODEL), PartitionSpec()

        def local(*arrays: Array) -> Array:
            return compute(*arrays, rules=rules, implementation=self.inner)

        # Inside of another shard_map the mesh is given, and may not be given again.
        is_inside = not jax.sharding.get_abstract_mesh().empty
        mapped = jax.shard_map(
            local,
            mesh=None if is_inside else self.mesh,
            in_specs=(heads, heads, heads, whole, heads, heads, whole, whole),
            out_specs=heads,
            axis_names={MODEL},
            check_vma=False,
        )
        return mapped(
            queries,
            cached_keys,
            cached_values,
            length,
            block_keys,
            block_values,
            block_mask,
            positions,
        )
