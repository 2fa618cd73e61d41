"""Verification: which path of the verification block the model itself would have written.

Functions here take one sequence without a batch axis; the round maps them over the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lookahead_jax.layout import VerificationBlock
from lookahead_jax.processors import TextContext
from lookahead_jax.sampling import Policy
from lookahead_jax.sequences import LogProbs
from lookahead_jax.typing import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Verdict:
    """What a round may publish."""

    accepted: Array  # int32 [], candidate tokens on the accepted path
    path: Array  # int32 [1 + S], its nodes, root first; the last accepted one repeats
    emitted: Array  # int32 [1 + S], the token after each node; the first accepted + 1 count
    logprobs: LogProbs | None = None  # float32 [1 + S] each, of the emitted tokens; if asked for


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


def verify_sample(
    block: VerificationBlock,
    logit_rows: np.ndarray,
    tokens: Array,
    valid: Array,
    logits: Array,
    context: TextContext,
    key: Array,
    policy: Policy,
    max_accepted: int,
    *,
    active: Array | bool = True,
    logprobs: bool = False,
) -> Verdict:
    """Walks down from the root, one token at a time, as ordinary decoding would (0x05B).

    At each depth the surviving nodes have the same tokens before them, hence the same target
    distribution: it is read from the first one's row, and processed with the text that leads there.
    The chosen token is published; the children that have it survive, their siblings do not. So only
    rows on the way are processed, of which there are few, whatever the processing costs.

    Args:
        block: Parents, depths, ancestors and paths of the n nodes; node 0 is the ordinary row.
        logit_rows: int32 [n], static: row of `logits` that belongs to each node.
        tokens: int32 [n], input token of each node.
        valid: bool [n]; an invalid node is never accepted.
        logits: float32 [r, V].
        context: The committed text. Its buffer has room for 1 + S tokens more.
        key: uint32 [2], the sequence's key.
        policy: How tokens are chosen.
        max_accepted: Deepest node that may be accepted.
        active: bool []; a sequence that is done does not walk.
        logprobs: Whether the verdict has log-probabilities.
    """
    parents, depths = jnp.asarray(block.parents), jnp.asarray(block.depths)
    steps = block.paths.shape[1]
    zeros = jnp.zeros((steps,), jnp.float32)

    def walk(carry: tuple) -> tuple:
        depth, survivors, _, emitted, log_p = carry
        row = logits[jnp.asarray(logit_rows)[jnp.argmax(survivors)]]
        text = context
        if policy.processors:
            text = replace(
                context,
                tokens=lax.dynamic_update_slice(context.tokens, emitted, (context.length,)),
                length=context.length + depth,
            )
        weights = policy.weights(row, text)
        children = valid & (depths == depth + 1) & survivors[parents]
        token = policy.sampling.choose(weights, key, context.length + depth, tokens, children)
        agreeing = children & (tokens == token)
        deeper = jnp.any(agreeing) & (depth < max_accepted)
        if log_p is not None:
            log_p = LogProbs(
                processed=log_p.processed.at[depth].set(log_probability(weights, token)),
                raw=log_p.raw.at[depth].set(log_probability(row, token)),
            )
        return (
            depth + deeper.astype(jnp.int32),
            jnp.where(deeper, agreeing, survivors),
            deeper,
            emitted.at[depth].set(token),
            log_p,
        )

    carry = (
        jnp.zeros((), jnp.int32),
        depths == 0,
        jnp.asarray(active),
        jnp.zeros((steps,), jnp.int32),
        LogProbs(zeros, zeros) if logprobs else None,
    )
    accepted, survivors, _, emitted, log_p = lax.while_loop(lambda c: c[2], walk, carry)
    path = jnp.asarray(block.paths)[jnp.argmax(survivors)]
    return Verdict(accepted=accepted, path=path, emitted=emitted, logprobs=log_p)


def log_probability(weights: Array, token: Array) -> Array:
    """float32 [...]: log-probability of tokens [...] under log-weights [..., V]."""
    chosen = jnp.take_along_axis(weights, token[..., None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(weights, axis=-1)
