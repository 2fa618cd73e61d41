"""The ledger of a round, and what acceptance makes of it (specification 0x05C, 0x07, 0x07A).

Counts of rows, bytes and FLOPs are exact. The expectations are a model, the paper's (section 4.3):
candidates independent of each other, each of their tokens accepted with the same probability. Real
candidates share a prompt and are neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError
from lookahead_jax.model_shape import ModelShape, NumberFormat


@dataclass(frozen=True)
class RowLedger:
    """The rows of one call, by what they are for.

    Attributes:
        ordinary: The last token.
        lookahead: The window.
        verification: The candidates.
    """

    ordinary: int
    lookahead: int
    verification: int

    @property
    def total(self) -> int:
        """Q, rows in use."""
        return self.ordinary + self.lookahead + self.verification


def row_ledger(
    config: LookaheadConfig, stage: int | None = None, candidates: int | None = None
) -> RowLedger:
    """The rows in use (specification 0x05C): 1, W (N - 1) - 1 and C (N - 1) once warm.

    A compiled round always has `config.num_rows`; what is not in use is padding. Warm-up stage r
    has W + N - 3 - r columns of level 0 and W of each deeper level (layout.py says why not more).

    Args:
        config: W, N and G.
        stage: Deepest level that is set, 0 to N - 2; None: N - 2, the steady state.
        candidates: C, how many the pool gave; None: G.

    Raises:
        LookaheadError: There is no such stage or candidate.
    """
    last = config.num_levels - 1
    stage = _in_range("stage", last if stage is None else stage, 0, last)
    most = config.guess_set_size
    candidates = _in_range("candidates", most if candidates is None else candidates, 0, most)
    base = config.window_size + config.ngram_size - 3 - stage
    return RowLedger(
        ordinary=1,
        lookahead=base + stage * config.window_size,
        verification=candidates * config.suffix_length,
    )


def dense_mask_bytes(
    num_rows: int,
    prefix_length: int,
    *,
    batch_size: int = 1,
    mask_heads: int = 1,
    item_size: int = 2,
) -> int:
    """M_mask = B H_m Q (K_in + Q) b_m, of a mask over prefix and block (specification 0x07A).

    Args:
        num_rows: Q.
        prefix_length: K_in, tokens in the cache.
        batch_size: B.
        mask_heads: H_m, 1 where the heads share the mask.
        item_size: b_m, bytes of an entry; an additive mask has the model's dtype.
    """
    return batch_size * mask_heads * num_rows * (prefix_length + num_rows) * item_size


def block_mask_bytes(num_rows: int, *, batch_size: int = 1) -> int:
    """B Q Q bytes, of the mask that this package has: a bool for each pair of the block's rows.

    The prefix is masked by its length, so the context does not come in.
    """
    return batch_size * num_rows * num_rows


def temporary_kv_bytes(
    shape: ModelShape, form: NumberFormat, num_rows: int, *, batch_size: int = 1
) -> int:
    """M_KV,temp = B Q L 2 K D b: keys and values of the rows, before any is committed (0x05C)."""
    return batch_size * num_rows * shape.kv_features * form.item_size


def head_flops(shape: ModelShape, num_rows: int, *, batch_size: int = 1) -> int:
    """F_head = 2 B r d V for r rows through the head (specification 0x05C).

    The official code has all Q rows there; this package `LookaheadConfig.num_logit_rows`.
    """
    return 2 * batch_size * num_rows * shape.hidden_size * shape.vocab_size


def expected_progress(acceptance: float, depth: int, candidates: int) -> float:
    """E[R_b] = (gamma + 1) - sum over i = 1..gamma of (1 - alpha**i)**b (specification 0x05C).

    Args:
        acceptance: alpha, the probability that a candidate's token is accepted when all tokens in
            front of it are, 0 to 1.
        depth: gamma, tokens of a candidate that may be accepted, at least 0.
        candidates: b, independent candidates, at least 0.

    Returns:
        Tokens that a round publishes on average, 1 to gamma + 1; the ordinary row's counts.

    Raises:
        LookaheadError: A number is out of range.
    """
    _probability("acceptance", acceptance)
    _in_range("depth", depth, 0)
    _in_range("candidates", candidates, 0)
    misses = ((1 - acceptance**i) ** candidates for i in range(1, depth + 1))
    return depth + 1 - math.fsum(misses)


def step_compression(progress: float, period: float) -> float:
    """S_steps = (f - 1 + E[R_b]) / f: one round in f has candidates (specification 0x05C).

    Args:
        progress: E[R_b], tokens of such a round, at least 1.
        period: f, at least 1.

    Returns:
        Tokens per round on average: how many times fewer steps than ordinary decoding.

    Raises:
        LookaheadError: A number is out of range.
    """
    _at_least("progress", progress, 1)
    _at_least("period", period, 1)
    return (period - 1 + progress) / period


def tokens_per_round(config: LookaheadConfig, acceptance: float, hit_rate: float = 1.0) -> float:
    """Tokens that a round publishes on average, by the paper's model, gamma and b from `config`.

    Args:
        config: G candidates; gamma is N - 1 with a bonus token, else N - 2.
        acceptance: alpha, as in `expected_progress`.
        hit_rate: 1 / f, the share of rounds that find candidates in the pool, 0 to 1.

    Raises:
        LookaheadError: A number is out of range.
    """
    _probability("hit rate", hit_rate)
    progress = expected_progress(acceptance, config.max_accepted, config.guess_set_size)
    return 1.0 if hit_rate == 0 else step_compression(progress, 1 / hit_rate)


def token_time(round_time: float, progress: float) -> float:
    """T_token, time for each token that is published (specification 0x05C).

    Args:
        round_time: All of a round: model, head, packing, pool, commit, exchange. Any unit.
        progress: Tokens it publishes on average, at least 1.
    """
    _at_least("round time", round_time, 0)
    return round_time / _at_least("progress", progress, 1)


def pays_off(round_time: float, progress: float, step_time: float) -> bool:
    """Whether T_round < E[R] T_AR, so that lookahead takes less time, not only fewer steps."""
    return round_time < progress * step_time


def _probability(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise LookaheadError(f"{name} must be a number from 0 to 1, got {value!r}")
    return value


def _at_least(name: str, value: float, least: float) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not least <= value < math.inf:
        raise LookaheadError(f"{name} must be a number of at least {least}, got {value!r}")
    return value


def _in_range(name: str, value: int, least: int, most: int | None = None) -> int:
    if type(value) is not int or value < least or (most is not None and value > most):
        wanted = f"an integer >= {least}" if most is None else f"an integer in {least}..{most}"
        raise LookaheadError(f"{name} must be {wanted}, got {value!r}")
    return value
