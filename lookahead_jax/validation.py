"""Fail closed: a round's publication plan is checked before anything of it is published.

Specification 0x07. These are checkify checks: transform the round with
`jax.experimental.checkify.checkify`, and look at the error before taking the new state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax.experimental import checkify

from lookahead_jax.kv_cache import KVCache
from lookahead_jax.sequences import Sequences
from lookahead_jax.typing import Array
from lookahead_jax.verify import Verdict

if TYPE_CHECKING:
    from lookahead_jax.decoding import Proposal


def check_round(
    sequences: Sequences,
    cache: KVCache,
    proposal: Proposal,
    verdict: Verdict,
    rows: Array,
    count: Array,
    logits: Array,
) -> None:
    """Checks that everything a round is about to publish agrees.

    Args:
        sequences: The text before the round.
        cache: The cache before the round.
        proposal: The packed rows.
        verdict: What the round may publish.
        rows: int32 [B, 1 + S], packed rows whose keys and values are to be committed.
        count: int32 [B], how many of them, which is also how many tokens are emitted.
        logits: float32 [B, r, V].
    """
    active = ~sequences.done
    frontier = sequences.length - 1

    def holds(what: Array) -> Array:
        """Whether a property [B, ...] holds for every active sequence."""
        what = what.reshape(what.shape[0], -1)
        return jnp.all(what | ~active[:, None])

    checkify.check(holds(jnp.isfinite(logits)), "logits are not finite")
    checkify.check(
        holds(cache.length == frontier),
        "cache holds {cached} tokens, expected one fewer than the text's {length}",
        cached=cache.length,
        length=sequences.length,
    )
    # Every row sees itself and exactly the rows of its own past since the frontier, so how many it
    # sees gives its position. Padding sees itself alone and stands at the frontier.
    visible = jnp.sum(proposal.mask, axis=-1)
    checkify.check(
        holds(proposal.positions == frontier[:, None] + visible - 1),
        "positions and mask do not come from the same layout",
    )
    step = jnp.arange(rows.shape[1])
    checkify.check(
        holds((count >= 1) & (count <= verdict.accepted + 1)),
        "{count} tokens are to be published where {accepted} candidate tokens were accepted",
        count=count,
        accepted=verdict.accepted,
    )
    # The k-th committed row must have the (k-1)-th emitted token as its input, and must see the
    # rows committed before it and nothing else of the block.
    committed = step[None, :] < count[:, None]
    inputs = jnp.take_along_axis(proposal.tokens, rows, axis=1)
    last = jnp.take_along_axis(sequences.tokens, frontier[:, None], axis=1)
    path = jnp.concatenate([last, verdict.emitted[:, :-1]], axis=1)
    sees = jnp.take_along_axis(proposal.mask, rows[:, :, None], axis=1)  # [B, 1 + S, Q]
    sees_path = jnp.take_along_axis(sees, rows[:, None, :], axis=2)  # [B, 1 + S, 1 + S]
    on_path = (~(step[:, None] >= step[None, :])[None] | sees_path) & (
        jnp.sum(sees, axis=-1) == step[None, :] + 1
    )[:, :, None]
    checkify.check(
        holds((inputs == path) | ~committed)
        & holds(on_path | ~committed[:, :, None] | ~committed[:, None, :]),
        "rows to be committed are not those of the winning candidate",
    )
