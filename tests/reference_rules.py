"""The rules of Lookahead Decoding, each a small pure function over ints, lists and dicts.

`reference` puts them together and re-exports them; read its docstring first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Tokens = tuple[int, ...]
Levels = tuple[Tokens | None, ...]
Pool = dict[int, list[Tokens]]


# The pool: specification 0x03B.


def upsert_suffix_lru(pool: Pool, key: int, suffix: Sequence[int], capacity: int) -> None:
    """Makes `suffix` the most recent of `key`'s bucket, which holds at most `capacity`."""
    if capacity == 0:
        return
    bucket = pool.setdefault(key, [])
    suffix = tuple(suffix)
    if suffix in bucket:
        bucket.remove(suffix)
    elif len(bucket) == capacity:
        bucket.pop(0)
    bucket.append(suffix)


def prompt_ngrams(prompt: Sequence[int], ngram_size: int) -> list[Tokens]:
    """All contiguous n-grams of the prompt, left to right; none where the prompt is shorter."""
    return [
        tuple(prompt[start : start + ngram_size]) for start in range(len(prompt) - ngram_size + 1)
    ]


def extract_keyed_ngrams(key: int, levels: Levels, new_row: Sequence[int]) -> list[Tokens]:
    """The W n-grams of a full window, read down its columns before it moves."""
    first, *deeper = set_levels(levels)
    keys = (key, *first)
    return [
        (keys[column], *(level[column] for level in deeper), new_row[column])
        for column in range(len(new_row))
    ]


# The window: specification 0x03A and 0x03C.


def suffix_length(ngram_size: int) -> int:
    """S = R = N - 1. N = 2 has a single level, which the schedule cannot move."""
    if type(ngram_size) is not int or ngram_size < 3:
        raise ValueError("the schedule requires an integer ngram_size >= 3")
    return ngram_size - 1


def set_levels(levels: Levels) -> list[Tokens]:
    return [level for level in levels if level is not None]


def stage_of(levels: Levels) -> int:
    return len(set_levels(levels)) - 1


def warm_up_sizes(window_size: int, ngram_size: int) -> list[tuple[int | None, ...]]:
    """Level sizes before each call, stage by stage; the last entry is the steady state."""
    num_levels = suffix_length(ngram_size)
    longest = window_size + ngram_size - 3
    stages: list[tuple[int | None, ...]] = []
    for stage in range(num_levels):
        deeper = [longest - max(stage - 1, 0)] * stage
        unset = [None] * (num_levels - 1 - stage)
        stages.append((longest - stage, *deeper, *unset))
    return stages


def fill_window(levels: Levels, new_row: Sequence[int]) -> Levels:
    """One step of the warm-up: the new row becomes the next level, the others lose a column."""
    stage = stage_of(levels)
    shifted = [level[1:] for level in set_levels(levels)]
    added = tuple(new_row) if stage == 0 else tuple(new_row[1:])
    return (*shifted, added, *levels[stage + 2 :])


def advance_pinned_window(levels: Levels, new_row: Sequence[int]) -> Levels:
    """Moves a full window by one column, whatever was accepted."""
    return advance_by_accepted(levels, new_row, accepted=0, fill=())


def advance_by_accepted(
    levels: Levels, new_row: Sequence[int], accepted: int, fill: Sequence[int]
) -> Levels:
    """Moves a full window by 1 + accepted columns.

    `fill` holds accepted * R tokens, level 0 first: each level's next tokens at the right. A level
    keeps its size even where accepted exceeds it (the official code would not).
    """
    first, *deeper = set_levels(levels)
    width = len(new_row)
    if [len(first), *map(len, deeper)] != [width - 1] + [width] * (len(levels) - 1):
        raise ValueError("expected the level sizes [W - 1, W, ..., W] and W new tokens")
    if len(fill) != accepted * len(levels):
        raise ValueError(f"expected {accepted * len(levels)} tokens to fill in, got {len(fill)}")
    moved = [deeper[0][1:], *deeper[1:], tuple(new_row)]
    cells = [tuple(fill[index * accepted : (index + 1) * accepted]) for index in range(len(moved))]
    return tuple((row + cell)[accepted:] for row, cell in zip(moved, cells, strict=True))


# Verification: specification 0x05A, 0x05B.


@dataclass(frozen=True)
class Verdict:
    """What one round decided."""

    tokens: Tokens
    """The 1 + hits tokens the target model agrees with, not yet cut at a stop token."""
    hits: int
    """Candidate rows whose K/V is kept."""
    winner: int | None
    """Candidate those rows belong to; None without hits."""
    matches: Tokens = ()
    """Hits of every candidate (greedy)."""


def greedy_verify(
    out: int, candidates: Sequence[Tokens], guess_rows: Sequence[Tokens], max_hits: int
) -> Verdict:
    """The longest candidate prefix that greedy decoding produces; the first candidate wins ties.

    `out` follows the ordinary row, `guess_rows[c][j]` follows token j of candidate c. With
    max_hits = S - 1 (official) a round gives at most S tokens; with S a full hit brings the token
    after the candidate too.
    """
    matches = []
    for candidate, after in zip(candidates, guess_rows, strict=True):
        expected = (out, *after)
        hits = 0
        while hits < min(len(candidate), max_hits) and candidate[hits] == expected[hits]:
            hits += 1
        matches.append(hits)
    hits = max(matches, default=0)
    if hits == 0:
        return Verdict((out,), 0, None, tuple(matches))
    winner = matches.index(hits)
    return Verdict((out, *guess_rows[winner])[: hits + 1], hits, winner, tuple(matches))


def verify_by_tests(
    candidates: Sequence[Tokens],
    accept: Callable[[int, int, int], bool],
    draw: Callable[[int], int],
) -> Verdict:
    """The official sampling verification, with its random events supplied by the caller.

    At each depth the surviving candidates are tested in order, repeated tokens included.

    Args:
        candidates: The candidates of the round.
        accept: (depth, candidate, token) -> outcome of that acceptance test.
        draw: depth -> a sample from what the rejected tokens left of the distribution.
    """
    tokens: list[int] = []
    survivors = list(range(len(candidates)))
    winner = None
    for depth in range(len(candidates[0]) if candidates else 0):
        tested = ((c, candidates[c][depth]) for c in survivors)
        accepted = next(((c, token) for c, token in tested if accept(depth, c, token)), None)
        if accepted is None:
            break
        winner, token = accepted
        tokens.append(token)
        survivors = [c for c in survivors if candidates[c][depth] == token]
    else:
        if candidates:
            return Verdict(tuple(tokens), len(tokens) - 1, winner if len(tokens) > 1 else None)
    tokens.append(draw(len(tokens)))
    return Verdict(tuple(tokens), len(tokens) - 1, winner)


# Publication: specification 0x06B, 0x06C.


@dataclass(frozen=True)
class CommitPlan:
    """Which packed K/V rows move where, and where the cache ends afterwards."""

    copies: tuple[tuple[int, int], ...]
    trim_exclusive: int
    next_uncached_token: int


def build_commit_plan(
    cache_length: int,
    step_length: int,
    num_guess_tokens: int,
    suffix_size: int,
    winner: int | None,
    tokens: Tokens,
) -> CommitPlan:
    """Plans the K/V of a round: the ordinary row stays, the winner's accepted rows follow it.

    Args:
        cache_length: K_in, rows before the call; the call has one ordinary row.
        step_length: Physical end of the packed rows.
        num_guess_tokens: Rows of all candidates together, the last rows of the call.
        suffix_size: S, rows of one candidate.
        winner: The candidate whose rows are kept; None keeps none.
        tokens: The tokens to publish. The last of them has no K/V yet.
    """
    frontier = cache_length + 1
    hits = len(tokens) - 1 if winner is not None else 0
    if len(tokens) != hits + 1:
        raise ValueError(f"expected one token without a winner, got {len(tokens)}")
    source = step_length - num_guess_tokens + (winner or 0) * suffix_size
    copies = tuple((source + row, frontier + row) for row in range(hits))
    return CommitPlan(copies, frontier + hits, tokens[-1])


def apply_commit_plan(physical_rows: Sequence[int], plan: CommitPlan) -> Tokens:
    """Compacts the rows of a cache (here: the input token of each row) as planned."""
    rows = list(physical_rows)
    for source, target in plan.copies:
        rows[target] = rows[source]
    return tuple(rows[: plan.trim_exclusive])
