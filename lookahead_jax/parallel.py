"""Lookahead Parallelism: copies of the model share out the rows of a round (paper section 3.4).

Every device runs the forward pass over its own columns of the window and its own candidates
(shards.py), with no word to the others. Then they exchange what the next round depends on:

    the longest accepted path of each device    1 + (1 + S) token ids and counts a sequence
    the window's new row                        w token ids a sequence
    the winner's keys and values                S rows a layer ("broadcast"), or nothing ("refeed")

and every device ends the round with the same state. The text is that of one device, token for
token: for greedy and for coupled sampling, whether a token is accepted is a matter between it and
the text before it, and does not depend on what other candidates there are.

Functions here run inside `jax.shard_map`, where the mesh axis `lookahead` has a name.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from lookahead_jax import decoding
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.decoding import DecodeState, Nodes, Proposal
from lookahead_jax.kv_cache import BlockKV, KVCache, commit, take_rows
from lookahead_jax.layout import VerificationBlock, build_layout
from lookahead_jax.sampling import Greedy, Policy
from lookahead_jax.sequences import Sequences, append
from lookahead_jax.sharding import LOOKAHEAD
from lookahead_jax.shards import ShardedLayout, build_shards
from lookahead_jax.typing import Array, ForwardFn, Params
from lookahead_jax.verify import Verdict


def round(
    state: DecodeState,
    params: Params,
    *,
    forward: ForwardFn,
    config: LookaheadConfig,
    policy: Policy | None = None,
    num_devices: int,
) -> DecodeState:
    """One round shared out among the devices of the axis `lookahead`; else as `decoding.round`.

    Args:
        state: The state, the same on every device.
        params: The model's weights.
        forward: The model.
        config: W, N, G, the schedule, and how keys and values are exchanged.
        policy: How tokens are chosen; greedy by default. Residual sampling cannot be shared out.
        num_devices: Size of the axis.

    Returns:
        The state after the round, the same on every device.
    """
    policy = Policy(Greedy(), ()) if policy is None else policy
    shards, device = build_shards(config, num_devices), lax.axis_index(LOOKAHEAD)
    whole = decoding.propose(state, build_layout(config))
    refeed = config.kv_exchange == "refeed"
    with jax.named_scope("pack"):
        part = _part(whole, state, shards, device)
        call = _with_pending(part, state, config.suffix_length) if refeed else part
    with jax.named_scope("forward"):
        logits, block_kv = forward(
            params, call.tokens, call.positions, call.mask, state.cache, call.logit_rows
        )
    with jax.named_scope("verify"):
        own, own_row = decoding.verify(state.sequences, part, logits, config, policy)
        verdict, winner, new_row = _exchange_tokens(own, own_row, shards)
        sequences, count = append(
            state.sequences, verdict.emitted, verdict.accepted + 1, verdict.logprobs
        )
    with jax.named_scope("commit"):
        if refeed:
            cache = _commit_pending(state, block_kv, count, config.suffix_length)
        else:
            path = _from_winner(block_kv, part.nodes.rows[own.path], winner == device)
            at = jnp.broadcast_to(jnp.arange(own.path.shape[1]), own.path.shape)
            cache = commit(state.cache, path, at, count)
    return decoding.publish(state, whole, sequences, count, cache, new_row, config)


def _part(whole: Proposal, state: DecodeState, shards: ShardedLayout, device: Array) -> Proposal:
    """A device's rows of a proposal."""
    stage = state.window.stage
    rows = jnp.asarray(shards.rows)[device, stage]  # [B, q]
    nodes = jnp.asarray(shards.nodes)[device]
    block = shards.block
    return Proposal(
        tokens=jnp.take_along_axis(whole.tokens, rows, axis=1),
        positions=jnp.take_along_axis(whole.positions, rows, axis=1),
        mask=jnp.asarray(shards.mask)[device, stage],
        logit_rows=jnp.asarray(shards.logit_rows)[device, stage],
        nodes=Nodes(
            block=VerificationBlock(
                *(
                    jnp.asarray(table)[device]
                    for table in (block.parents, block.depths, block.ancestors, block.paths)
                )
            ),
            tokens=whole.nodes.tokens[:, nodes],
            valid=whole.nodes.valid[:, nodes] & jnp.asarray(shards.is_node)[device][None],
            rows=jnp.arange(nodes.shape[0]),
        ),
    )


def _exchange_tokens(
    own: Verdict, own_row: Array, shards: ShardedLayout
) -> tuple[Verdict, Array, Array]:
    """What every device has found out, put together: all that is said in token ids and counts.

    Returns:
        The verdict of the first device with the longest path; its `path` stays the device's own,
        for only the winner's is of use, and only to the winner. Then int32 [B], which device that
        is, and the window's new row, int32 [B, W].
    """
    size = own.emitted.shape[1]
    said = jnp.concatenate([own.accepted[:, None], own.emitted, own_row], axis=1)
    every = lax.all_gather(said, LOOKAHEAD)  # [P, B, 1 + (1 + S) + w]
    winner = jnp.argmax(every[:, :, 0], axis=0).astype(jnp.int32)

    def of_winner(x: Array) -> Array:
        return jax.vmap(lambda x, device: x[device], in_axes=(1, 0))(x, winner)

    chosen = of_winner(every)
    verdict = Verdict(
        accepted=chosen[:, 0],
        path=own.path,
        emitted=chosen[:, 1 : 1 + size],
        logprobs=jax.tree.map(lambda x: of_winner(lax.all_gather(x, LOOKAHEAD)), own.logprobs),
    )
    device, column = jnp.asarray(shards.owners).T
    return verdict, winner, every[device, :, 1 + size + column].T


def _from_winner(block: BlockKV, rows: Array, is_winner: Array) -> BlockKV:
    """The keys and values of the winner's path [B, K, 1 + S, D], on every device.

    The ordinary row, in front, is every device's own: they have all computed it alike. Of the
    others a sum over the devices makes the winner's, because what the losers add is zero.
    """

    def exchange(buffers: tuple[Array, ...]) -> tuple[Array, ...]:
        paths = [take_rows(x, rows) for x in buffers]
        mine = [jnp.where(is_winner[:, None, None, None], x[:, :, 1:], 0) for x in paths]
        return tuple(
            jnp.concatenate([x[:, :, :1], new], axis=2)
            for x, new in zip(paths, lax.psum(mine, LOOKAHEAD), strict=True)
        )

    both = exchange(block.keys + block.values)
    return BlockKV(both[: len(block.keys)], both[len(block.keys) :])


def pending(sequences: Sequences, cache: KVCache) -> Array:
    """int32 [B]: published tokens, the last one apart, whose keys and values are still to come."""
    return sequences.length - 1 - cache.length


def _with_pending(part: Proposal, state: DecodeState, size: int) -> Proposal:
    """The rows with `size` rows in front for the pending tokens, which every other row sees."""
    text, cache = state.sequences, state.cache
    offset = jnp.arange(size, dtype=jnp.int32)[None]
    is_pending = offset < pending(text, cache)[:, None]  # [B, size]
    at = jnp.where(is_pending, cache.length[:, None] + offset, text.length[:, None] - 1)
    batch_size, num_rows = part.tokens.shape
    earlier = offset[:, :, None] >= offset[:, None, :]  # [1, size, size]
    itself = offset[:, :, None] == offset[:, None, :]
    among = (earlier & is_pending[:, None, :]) | itself
    before = jnp.broadcast_to(is_pending[:, None, :], (batch_size, num_rows, size))
    nothing = jnp.zeros((batch_size, size, num_rows), bool)
    return replace(
        part,
        tokens=jnp.concatenate([jnp.take_along_axis(text.tokens, at, axis=1), part.tokens], axis=1),
        positions=jnp.concatenate([at, part.positions], axis=1),
        mask=jnp.concatenate(
            [
                jnp.concatenate([among, nothing], axis=2),
                jnp.concatenate([before, part.mask], axis=2),
            ],
            axis=1,
        ),
        logit_rows=part.logit_rows + size,
    )


def _commit_pending(state: DecodeState, block: BlockKV, count: Array, size: int) -> KVCache:
    """Commits the pending tokens and the ordinary row; what was accepted is pending now."""
    waiting = pending(state.sequences, state.cache)
    offset = jnp.arange(size + 1, dtype=jnp.int32)[None]
    rows = jnp.where(offset < waiting[:, None], offset, size)
    return commit(state.cache, block, rows, jnp.where(count > 0, waiting + 1, 0))
