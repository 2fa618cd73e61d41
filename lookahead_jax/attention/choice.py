"""`attend`: which implementation runs is settled by the platform that is compiled for."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from lookahead_jax.attention.interface import Attention, Rules, Shapes, varying_like
from lookahead_jax.attention.pallas_tpu import PallasTPU
from lookahead_jax.attention.split import Split
from lookahead_jax.errors import LookaheadError
from lookahead_jax.typing import Array

PLATFORMS = ("cpu", "tpu", "cuda", "rocm")
"""What JAX calls them when it lowers a program."""


def attend(
    queries: Array,
    cached_keys: Array,
    cached_values: Array,
    length: Array,
    block_keys: Array,
    block_values: Array,
    block_mask: Array,
    scale: float,
    *,
    positions: Array | None = None,
    window: int | None = None,
    softcap: float | None = None,
    implementation: Attention | None = None,
) -> Array:
    """Grouped-query attention with two segments: a length-masked prefix and a masked block.

    The segments are scored apart and share one softmax, so the mask never has the size of the
    context and the block's keys are never copied behind the prefix.

    Args:
        queries: [B, K, H / K, T, D].
        cached_keys: [B, K, C, D].
        cached_values: [B, K, C, D].
        length: int32 [B], how many cached entries count.
        block_keys: [B, K, T, D].
        block_values: [B, K, T, D].
        block_mask: bool [B, T, T]; each row sees itself at least.
        scale: Factor on the scores, 1 / sqrt(D) as a rule.
        positions: int32 [B, T], logical positions; needed with a window. The cached entry j stands
            at position j.
        window: Rows see this many positions, their own included: distance counts logical
            positions, so it is right for rows of isolated branches too. None: all.
        softcap: Scores are squeezed between -softcap and softcap; None: not at all.
        implementation: How it is computed. None: what `default` names for the platform that the
            program is compiled for, which need not be the one that it is traced on.

    Returns:
        [B, K, H / K, T, D] in the dtype of `queries`; scores and softmax are float32.

    Raises:
        ValueError: There is a window and no positions.
        LookaheadError: While the program is lowered: `implementation` cannot run on its platform,
            or not these shapes.
    """
    if positions is None:
        if window is not None:
            raise ValueError("a window needs the positions of the rows")
        positions = jnp.zeros(block_mask.shape[:2], jnp.int32)
    arrays = (queries, cached_keys, cached_values, length, block_keys, block_values, block_mask)
    rules = Rules(float(scale), window, softcap)
    return compute(*arrays, positions, rules=rules, implementation=implementation)


def default(platform: str, shapes: Shapes) -> Attention:
    """The implementation that serves a platform where none is asked for.

    On a CPU blocks of 64 were the fastest for short texts, of 64 to 512 that were measured, and
    about as fast as others at 500 tokens; capacities are multiples of 64, so none is cut.
    GPUs have plain XLA until their kernel has been measured on one.
    """
    if platform == "cpu":
        return Split(64)
    if platform == "tpu" and PallasTPU().why_not(platform, shapes) is None:
        return PallasTPU()
    return Split(512)


# Jitted so that all layers of one kind share one trace and one lowering.
@functools.partial(jax.jit, static_argnames=("rules", "implementation"))
def compute(*arrays: Array, rules: Rules, implementation: Attention | None) -> Array:
    """`attend` with its arrays in order and its rules, all of them given; see `Attention`."""
    shapes = Shapes.of(arrays[0], arrays[1], arrays[4])
    branches: dict[str, Any] = {}
    for platform in PLATFORMS:
        chosen = default(platform, shapes) if implementation is None else implementation
        reason = chosen.why_not(platform, shapes)
        if reason is None:
            branches[platform] = functools.partial(_run, chosen, rules)
        else:
            branches[platform] = functools.partial(_refuse, f"{chosen} cannot run: {reason}")
    # Only the branch of the platform is lowered: the compiler sees no conditional.
    return lax.platform_dependent(*arrays, **branches)


def _run(implementation: Attention, rules: Rules, *arrays: Array) -> Array:
    return implementation(*arrays, rules)  # pyright: ignore[reportCallIssue]


def _refuse(reason: str, *arrays: Array) -> Array:
    queries = varying_like(arrays[0], *arrays)
    return queries + _refusal().bind(reason=reason).astype(queries.dtype)


@functools.cache
def _refusal() -> Primitive:
    """An operation that cannot be lowered: only there is known which platform a program is for."""
    refusal = Primitive("cannot_run")

    def lower(ctx: Any, *, reason: str) -> Any:
        raise LookaheadError(reason)

    refusal.def_abstract_eval(lambda *, reason: ShapedArray((), jnp.float32))
    mlir.register_lowering(refusal, lower)
    return refusal
