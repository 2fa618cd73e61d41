"""Verification: which path of the verification block the model itself would have written.

Functions here take one sequence without a batch axis; the round maps them over the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from lookahead_jax.layout import VerificationBlock
from lookahead_jax.typing import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Verdict:
    """What a round may publish."""

    accepted: Array  # int32 [], candidate tokens on the accepted path
    path: Array  # int32 [1 + S], its nodes, root first; the last accepted one repeats
    emitted: Array  # int32 [1 + S], the token after each node; the first accepted + 1 count


def verify_greedy(
    block: VerificationBlock, tokens: Array, valid: Array, predictions: Array, max_accepted: int
) -> Verdict:
    """Accepts the longest path that agrees with the model's own choices (specification 0x05A).

    A node agrees if its token is what the model predicts at its parent; it is accepted if it and
    all its ancestors agree. Of the deepest accepted nodes the first wins.

    Args:
        block: Parents, depths, ancestors and paths of the n nodes; node 0 is the ordinary row.
        tokens: int32 [n], input token of each node.
        valid: bool [n]; an invalid node is never accepted.
        predictions: int32 [n], the model's choice after each node.
        max_accepted: Deepest node that may be accepted.
    """
    depths, paths = jnp.asarray(block.depths), jnp.asarray(block.paths)
    is_root = depths == 0
    agrees = is_root | (valid & (tokens == predictions[jnp.asarray(block.parents)]))
    accepted = ~jnp.any(jnp.asarray(block.ancestors) & ~agrees[None, :], axis=-1)
    depth = jnp.where(accepted & (depths <= max_accepted), depths, 0)
    winner = jnp.argmax(depth)
    path = paths[winner]
    return Verdict(accepted=depth[winner], path=path, emitted=predictions[path])
