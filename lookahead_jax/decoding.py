"""Lookahead decoding as a pure function `(state, params) -> state'`.

    state = init_state(...)                     # prompts, empty cache, first window, seeded pool
    state = prefill_state(state, params, ...)   # the prompt's keys and values
    state = round(state, params, ...)           # one packed forward pass; repeat until done

All of it can be jitted, donated, looped on the device and exported: a round has the same shapes and
dtypes going in and coming out. `generate` (generation.py) is the convenient form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from lookahead_jax import pool as pool_lib
from lookahead_jax import window as window_lib
from lookahead_jax.config import LookaheadConfig, WindowAdvance, WindowProposals
from lookahead_jax.kv_cache import KVCache, commit, init_cache
from lookahead_jax.layout import Layout, VerificationBlock, build_layout
from lookahead_jax.noise import Purpose, gumbel
from lookahead_jax.pool import Pool
from lookahead_jax.prefill import prefill
from lookahead_jax.processors import LogitProcessor
from lookahead_jax.sampling import Greedy, Policy, Sample, Sampling
from lookahead_jax.sequences import LogProbs, Sequences, append, context, extent, last_token
from lookahead_jax.typing import Array, CacheSpec, ForwardFn, Params
from lookahead_jax.validation import check_round
from lookahead_jax.verify import Verdict, log_probability, verify_greedy, verify_sample
from lookahead_jax.window import Window


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """Everything a batch carries from round to round. Every leaf has the batch axis in front."""

    sequences: Sequences
    cache: KVCache  # cache.length == sequences.length - 1 between rounds
    window: Window
    pool: Pool
    rounds: Array  # int32 [B], rounds in which the sequence took part
    candidate_rounds: Array  # int32 [B], of these, rounds in which the pool had candidates
    accepted_histogram: Array  # int32 [B, S + 1], rounds by number of accepted candidate tokens


@dataclass(frozen=True)
class Nodes:
    """The rows of a forward call that are verified, as a tree; node 0 is the ordinary row."""

    block: VerificationBlock  # of n nodes; static tables, or those of a device
    tokens: Array  # int32 [B, n]
    valid: Array  # bool [B, n]
    rows: Array  # int32 [n], the row of each

    @property
    def any_valid(self) -> Array:
        """Whether there is any candidate: bool [B]."""
        return jnp.any(self.valid[:, 1:], axis=1)


@dataclass(frozen=True)
class Proposal:
    """One round's packed rows: what goes into the forward pass, and what is to be verified."""

    tokens: Array  # int32 [B, Q]
    positions: Array  # int32 [B, Q]
    mask: Array  # bool [B, Q, Q]
    logit_rows: Array  # int32 [B, W + n]: ordinary row, window columns, nodes behind the root
    nodes: Nodes


def init_state(
    sequences: Sequences,
    *,
    config: LookaheadConfig,
    cache_spec: CacheSpec,
    vocab_size: int,
    first_level: Array | None = None,
) -> DecodeState:
    """The state before prefill.

    Args:
        sequences: The prompts (`init_sequences`). Its token capacity is also the cache's.
        config: W, N, G and the schedule.
        cache_spec: Shape of the model's cache.
        vocab_size: V.
        first_level: int32 [B, W + N - 3], the first window level; prompt tokens in a mixed
            order where it is None (the official code draws them at random).
    """
    batch_size, capacity = sequences.tokens.shape
    if first_level is None:
        size = config.window_size + config.ngram_size - 3
        first_level = _draw_tokens(sequences, jnp.zeros_like(sequences.length), (size,))
    empty = pool_lib.init_pool(
        vocab_size, config.guess_set_size, config.suffix_length, config.pool_slots
    )
    pool = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch_size, *x.shape)), empty)
    if config.pool_from_prompt and config.guess_set_size:
        pool = jax.vmap(pool_lib.insert_sequence)(pool, sequences.tokens, sequences.length)
    return DecodeState(
        sequences=sequences,
        cache=init_cache(cache_spec, batch_size, capacity, extent(sequences)),
        window=jax.vmap(lambda level: window_lib.init_window(config, level))(first_level),
        pool=pool,
        rounds=jnp.zeros((batch_size,), jnp.int32),
        candidate_rounds=jnp.zeros((batch_size,), jnp.int32),
        accepted_histogram=jnp.zeros((batch_size, config.suffix_length + 1), jnp.int32),
    )


def prefill_state(
    state: DecodeState, params: Params, *, forward: ForwardFn, chunk: int
) -> DecodeState:
    """The state with the prompts' keys and values committed, all tokens but the last."""
    cache = prefill(state.cache, state.sequences, params, forward=forward, chunk=chunk)
    return replace(state, cache=cache)


def learn_turn(state: DecodeState, kept: Array, *, config: LookaheadConfig) -> DecodeState:
    """The state of a next turn, whose tokens the pool has learnt; pool and window are carried over.

    Args:
        state: The state with the text of the next turn.
        kept: int32 [B], tokens from before, at most `sequences.length - 1`.
        config: W, N, G and the schedule.
    """
    state = replace(state, candidate_rounds=jnp.zeros_like(state.candidate_rounds))
    if not (config.pool_from_prompt and config.guess_set_size):
        return state
    text, first = state.sequences, jnp.maximum(kept - config.suffix_length, 0)
    insert = jax.vmap(pool_lib.insert_sequence)
    return replace(state, pool=insert(state.pool, text.tokens, text.length, first))


def round(
    state: DecodeState,
    params: Params,
    *,
    forward: ForwardFn,
    config: LookaheadConfig,
    sampling: Sampling | None = None,
    processors: tuple[LogitProcessor, ...] = (),
    layout: Layout | None = None,
    validate: bool = False,
) -> DecodeState:
    """One round of lookahead decoding for every sequence that is not done.

    Paper section 3 and algorithm 2; specification 0x06. The forward pass only reads the cache, and
    nothing of the state changes before the verdict: predict, verify, then publish.

    Args:
        state: The state; may be donated.
        params: The model's weights.
        forward: The model.
        config: W, N, G and the schedule.
        sampling: How tokens are chosen; greedy by default.
        processors: Applied to the logits of the target before tokens are chosen, in this order.
        layout: The row tables; built from `config` where None.
        validate: Check the publication plan (`validation.check_round`). The function must then be
            transformed by `jax.experimental.checkify.checkify` before it is jitted.
    """
    layout = build_layout(config) if layout is None else layout
    policy = Policy(Greedy() if sampling is None else sampling, tuple(processors))
    proposal = propose(state, layout)
    with jax.named_scope("forward"):
        logits, block_kv = forward(
            params,
            proposal.tokens,
            proposal.positions,
            proposal.mask,
            state.cache,
            proposal.logit_rows,
        )
    with jax.named_scope("verify"):
        verdict, new_row = verify(state.sequences, proposal, logits, config, policy)
        sequences, count = append(
            state.sequences, verdict.emitted, verdict.accepted + 1, verdict.logprobs
        )
        rows = proposal.nodes.rows[verdict.path]
    if validate:
        check_round(state.sequences, state.cache, proposal, verdict, rows, count, logits)
    with jax.named_scope("commit"):
        cache = commit(state.cache, block_kv, rows, count)
    return publish(state, proposal, sequences, count, cache, new_row, config)


def publish(
    state: DecodeState,
    proposal: Proposal,
    sequences: Sequences,
    count: Array,
    cache: KVCache,
    new_row: Array,
    config: LookaheadConfig,
) -> DecodeState:
    """The state after a round: text and cache are given, pool, window and counts follow.

    Args:
        state: The state before.
        proposal: All that was to be verified.
        sequences: The text with what was emitted.
        count: int32 [B], how many tokens that was.
        cache: The cache with what was committed.
        new_row: int32 [B, W], the model's outputs at the window's deepest level.
        config: W, N, G and the schedule.
    """
    with jax.named_scope("insert"):
        pool = _insert(state, sequences, new_row, count, config)
    with jax.named_scope("advance"):
        window = _advance(state, new_row, count, config)
        active = ~state.sequences.done
        had_candidates = active & proposal.nodes.any_valid
        histogram = jnp.arange(config.suffix_length + 1)[None, :] == (count - 1)[:, None]
        return DecodeState(
            sequences=sequences,
            cache=cache,
            window=window,
            pool=pool,
            rounds=state.rounds + active.astype(jnp.int32),
            candidate_rounds=state.candidate_rounds + had_candidates.astype(jnp.int32),
            accepted_histogram=state.accepted_histogram + histogram.astype(jnp.int32),
        )


def propose(state: DecodeState, layout: Layout) -> Proposal:
    """The packed rows of the next round: window, and candidates from the pool."""
    with jax.named_scope("lookup"):
        guesses, valid = _lookup(state, layout.config)
    with jax.named_scope("pack"):
        return pack(state, guesses, valid, layout)


def pack(state: DecodeState, guesses: Array, valid: Array, layout: Layout) -> Proposal:
    """Packs ordinary row, window and candidates of every sequence by its warm-up stage.

    Args:
        state: The state.
        guesses: int32 [B, G, S].
        valid: bool [B, G].
        layout: The row tables.
    """
    stage = state.window.stage
    window = jax.vmap(window_lib.window_tokens)(state.window)
    last = last_token(state.sequences)[:, None]
    sources = jnp.concatenate([last, window], axis=1)
    lookahead = jnp.take_along_axis(sources, jnp.asarray(layout.source)[stage], axis=1)
    candidates = jnp.where(valid[:, :, None], guesses, 0).reshape(guesses.shape[0], -1)
    frontier = state.sequences.length - 1
    nodes = Nodes(
        block=layout.block,
        tokens=jnp.concatenate([last, guesses.reshape(candidates.shape)], axis=1),
        valid=jnp.pad(
            jnp.repeat(valid, guesses.shape[2], axis=1),
            ((0, 0), (1, 0)),
            constant_values=True,
        ),
        rows=jnp.asarray(layout.node_rows),
    )
    return Proposal(
        tokens=jnp.concatenate([lookahead, candidates], axis=1),
        positions=frontier[:, None] + jnp.asarray(layout.positions)[stage],
        mask=jnp.asarray(layout.mask)[stage],
        logit_rows=jnp.asarray(layout.logit_rows)[stage],
        nodes=nodes,
    )


def _lookup(state: DecodeState, config: LookaheadConfig) -> tuple[Array, Array]:
    guesses, valid = jax.vmap(pool_lib.lookup)(state.pool, last_token(state.sequences))
    if not config.verify_during_warmup:
        valid = valid & (state.window.stage == config.num_levels - 1)[:, None]
    return guesses, valid


def verify(
    sequences: Sequences,
    proposal: Proposal,
    logits: Array,
    config: LookaheadConfig,
    policy: Policy,
) -> tuple[Verdict, Array]:
    """The verdict of a forward call, and the window's new row int32 [B, w] as far as it is in it.

    Args:
        sequences: The text.
        proposal: The rows.
        logits: float32 [B, w + n, V]: ordinary row, w window columns, nodes behind the root.
        config: W, N, G and the schedule.
        policy: How tokens are chosen.
    """
    nodes = proposal.nodes
    after_window = 1 + logits.shape[1] - nodes.tokens.shape[1]
    logit_rows = np.array([0, *range(after_window, logits.shape[1])], np.int32)
    logprobs = sequences.logprobs is not None

    if policy.is_argmax:
        chosen = Greedy().select(logits)
        predictions = jnp.concatenate([chosen[:, :1], chosen[:, after_window:]], axis=1)
        verdict = jax.vmap(
            lambda t, v, p: verify_greedy(nodes.block, t, v, p, config.max_accepted)
        )(nodes.tokens, nodes.valid, predictions)
        if logprobs:
            rows = jnp.asarray(logit_rows)[verdict.path][:, :, None]
            on_path = log_probability(jnp.take_along_axis(logits, rows, axis=1), verdict.emitted)
            verdict = replace(verdict, logprobs=LogProbs(processed=on_path, raw=on_path))
        return verdict, chosen[:, 1:after_window]

    verdict = jax.vmap(
        lambda tokens, valid, logits, text, key, done: verify_sample(
            nodes.block,
            logit_rows,
            tokens,
            valid,
            logits,
            text,
            key,
            policy,
            config.max_accepted,
            active=~done,
            logprobs=logprobs,
        )
    )(nodes.tokens, nodes.valid, logits, context(sequences), sequences.key, sequences.done)
    return verdict, _guess(sequences, proposal, logits[:, 1:after_window], config, policy)


def _guess(
    sequences: Sequences,
    proposal: Proposal,
    logits: Array,
    config: LookaheadConfig,
    policy: Policy,
) -> Array:
    """The window's new row int32 [B, w] of its logits [B, w, V] in a run that is not greedy."""
    sampling = policy.sampling
    if not isinstance(sampling, Sample) or config.window_proposals is WindowProposals.ARGMAX:
        return Greedy().select(logits)
    # Guesses may share the noise of coupled sampling and stay guesses; in residual sampling the
    # tests and draws have noise of their own, so they cannot know how the guesses came about.
    # The filters are left out: over W rows they would cost more than the few better guesses gain.
    unfiltered = replace(sampling, top_k=0, top_p=1.0, min_p=0.0)
    rows = proposal.logit_rows[:, 1 : 1 + logits.shape[1]]
    positions = 1 + jnp.take_along_axis(proposal.positions, rows, axis=1)

    def guess(row: Array, key: Array, position: Array) -> Array:
        noise = gumbel(key, position, row.shape[0], Purpose.COUPLED)
        return Greedy().select(unfiltered.warp(row) + noise)

    per_row = jax.vmap(guess, in_axes=(0, None, 0))
    return jax.vmap(per_row)(logits, sequences.key, positions)


def _insert(
    state: DecodeState, sequences: Sequences, new_row: Array, count: Array, config: LookaheadConfig
) -> Pool:
    """The window's n-grams, then those that end at the emitted tokens, in that order."""
    if config.guess_set_size == 0:
        return state.pool
    keys, suffixes, valid = jax.vmap(
        lambda window, last, row: window_lib.extract_ngrams(config, window, last, row)
    )(state.window, last_token(state.sequences), new_row)
    if config.pool_from_output:
        more = _output_ngrams(state.sequences, sequences, count, config)
        keys, suffixes, valid = (
            jnp.concatenate(pair, axis=1)
            for pair in zip((keys, suffixes, valid), more, strict=True)
        )
    valid = valid & ~state.sequences.done[:, None]
    return jax.vmap(pool_lib.insert)(state.pool, keys, suffixes, valid)


def _output_ngrams(
    before: Sequences, after: Sequences, count: Array, config: LookaheadConfig
) -> tuple[Array, Array, Array]:
    """N-grams that end at each of up to S + 1 emitted tokens: keys, suffixes, valid."""
    size = config.suffix_length
    # Row e holds the n-gram that ends at the e-th emitted token.
    offset = jnp.arange(size + 1)[:, None] + jnp.arange(-size, 1)[None, :]  # [S + 1, N]
    at = before.length[:, None, None] + offset[None]
    ngrams = jax.vmap(lambda tokens, i: tokens[i])(after.tokens, jnp.maximum(at, 0))
    emitted = jnp.arange(size + 1)[None, :] < count[:, None]
    # A stop token ends the text, so nothing will ever follow its n-gram.
    is_stop = jnp.any(ngrams[:, :, -1:] == after.stop_tokens[:, None, :], axis=-1)
    valid = emitted & ~is_stop & (at[:, :, 0] >= 0)
    return ngrams[:, :, 0], ngrams[:, :, 1:], valid


def _advance(state: DecodeState, new_row: Array, count: Array, config: LookaheadConfig) -> Window:
    batch_size = count.shape[0]
    shape = (config.num_levels, config.suffix_length)
    if config.advance is WindowAdvance.BY_ACCEPTED:
        extra = jnp.maximum(count - 1, 0)
        refill = _draw_tokens(state.sequences, state.rounds + 1, shape)
    else:
        extra = jnp.zeros_like(count)
        refill = jnp.zeros((batch_size, *shape), jnp.int32)
    moved = jax.vmap(
        lambda window, row, by, fill: window_lib.advance_window(config, window, row, by, fill)
    )(state.window, new_row, extra, refill)
    # A finished sequence stands still, so that its state does not depend on its neighbours.
    still = jax.vmap(
        lambda done, old, new: jax.tree.map(lambda a, b: jnp.where(done, a, b), old, new)
    )
    return still(state.sequences.done, state.window, moved)


def _draw_tokens(sequences: Sequences, salt: Array, shape: tuple[int, ...]) -> Array:
    """Tokens [B, *shape] of each sequence in a mixed order: guesses, which cannot change the text.

    The order is a function of the sequence and of `salt` [B] alone, so it does not depend on the
    batch. A multiplicative hash is enough, and compiles far faster than a random generator.
    """
    count = math.prod(shape)
    index = jnp.arange(1, count + 1, dtype=jnp.uint32)[None, :]
    index = index + salt.astype(jnp.uint32)[:, None] * np.uint32(count)
    mixed = index * np.uint32(2654435769)  # 2**32 / golden ratio: consecutive values spread evenly
    at = (mixed >> np.uint32(8)) % sequences.length.astype(jnp.uint32)[:, None]
    return jnp.take_along_axis(sequences.tokens, at, axis=1).reshape(-1, *shape)
