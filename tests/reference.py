"""The oracle: Lookahead Decoding in plain ints, lists and dicts.

It follows the specification's pseudocode and the state machine of the recorded traces, and shares
nothing with the package. The model is only `next_token(prefix) -> token`: every packed row is asked
as its own causal call over the tokens it may see, so branches cannot leak into each other.

Letters: W window_size, N ngram_size, G guess_set_size, S = R = N - 1 (candidate length, levels).
A level is a tuple of tokens, or None while it is unset. A stage counts warm-up calls: it is the
index of the deepest set level, so stage R - 1 is the steady state.

The single rules are in `reference_rules`, the packed row layout in `reference_rows`, ordinary and
Jacobi decoding in `reference_jacobi`; all of it can be had from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from reference_jacobi import (
    NextToken,
    gauss_seidel_sweep,
    greedy_generate,
    jacobi_sweep,
    jacobi_trajectory,
)
from reference_rows import (
    Row,
    compile_rows,
    may_see,
    position_ids,
    semantic_rows,
    visibility_mask,
)
from reference_rules import (
    CommitPlan,
    Levels,
    Pool,
    Tokens,
    Verdict,
    advance_by_accepted,
    advance_pinned_window,
    apply_commit_plan,
    build_commit_plan,
    extract_keyed_ngrams,
    fill_window,
    greedy_verify,
    prompt_ngrams,
    set_levels,
    stage_of,
    suffix_length,
    upsert_suffix_lru,
    verify_by_tests,
    warm_up_sizes,
)

__all__ = [
    "CommitPlan",
    "Generation",
    "Levels",
    "NextToken",
    "Pool",
    "Refill",
    "Row",
    "Rows",
    "Schedule",
    "Settings",
    "State",
    "StepRecord",
    "Tokens",
    "Verdict",
    "advance_by_accepted",
    "advance_pinned_window",
    "apply_commit_plan",
    "build_commit_plan",
    "compile_rows",
    "cut",
    "extract_keyed_ngrams",
    "fill_window",
    "finish_round",
    "gauss_seidel_sweep",
    "greedy_generate",
    "greedy_verify",
    "jacobi_sweep",
    "jacobi_trajectory",
    "lookahead_generate",
    "lookahead_round",
    "lookup_candidates",
    "may_see",
    "pack",
    "position_ids",
    "prompt_ngrams",
    "repeat_last",
    "semantic_rows",
    "separate_forwards",
    "set_levels",
    "stage_of",
    "start",
    "suffix_length",
    "upsert_suffix_lru",
    "verify_by_tests",
    "visibility_mask",
    "warm_up_sizes",
]

Refill = Callable[[Tokens, int], Sequence[int]]
"""(history, count) -> `count` tokens for window cells that have no proposal."""


@dataclass(frozen=True)
class Schedule:
    """Choices that change which candidates are tried, never the text."""

    verify_during_warmup: bool = True
    bonus_token: bool = True
    """A full hit brings N tokens (hits up to S) rather than S (hits up to S - 1)."""
    pool_from_prompt: bool = True
    pool_from_output: bool = True
    """Each emitted token inserts the n-gram that it ends."""
    advance_by_accepted: bool = False
    """A full window moves by 1 + hits columns and is refilled, rather than by one."""
    replace_stops_in_window: bool = False
    """Stop tokens in a new row of the full window are refilled (official sampling)."""
    commit_overshoot: bool = False
    """Cache, pool and window take all verified tokens, also behind the end of the text."""
    wrong_history: bool = False
    """The official greedy code's fault: n-grams of the output are read from a history in which
    every token of a round is replaced by the round's last one."""

    @classmethod
    def official(cls, pool_from_prompt: bool, **changes: bool) -> Schedule:
        """The released greedy schedule, its fault included."""
        official = cls(
            verify_during_warmup=False,
            bonus_token=False,
            pool_from_prompt=pool_from_prompt,
            pool_from_output=pool_from_prompt,
            commit_overshoot=True,
            wrong_history=True,
        )
        return replace(official, **changes)


@dataclass(frozen=True)
class Settings:
    """One run's fixed numbers."""

    window_size: int
    ngram_size: int
    guess_set_size: int
    max_new_tokens: int
    stop_tokens: Tokens = ()
    schedule: Schedule = Schedule()

    @property
    def max_hits(self) -> int:
        return suffix_length(self.ngram_size) - (0 if self.schedule.bonus_token else 1)


@dataclass(frozen=True)
class State:
    """Everything that passes from one round to the next. Rounds never modify a state."""

    tokens: Tokens
    """Prompt and output; the last token is the next round's ordinary row and pool key."""
    prompt_length: int
    cache: Tokens
    """Input token of every cached K/V row."""
    levels: Levels
    pool: Pool
    history: Tokens
    """What n-grams of the output are read from: `tokens`, but for the official fault."""
    finished: bool = False

    @property
    def output(self) -> Tokens:
        return self.tokens[self.prompt_length :]


@dataclass(frozen=True)
class Rows:
    """The target model's choices in one call, row by row."""

    out: int
    """After the ordinary row."""
    new_row: Tokens
    """After each token of the deepest level."""
    guess_rows: tuple[Tokens, ...]
    """After each token of each candidate."""


@dataclass(frozen=True)
class StepRecord:
    """All that happened in one round."""

    stage: int
    levels: Levels
    key: int
    candidates: tuple[Tokens, ...]
    rows: Rows
    verdict: Verdict
    trajectory_ngrams: tuple[Tokens, ...]
    output_ngrams: tuple[Tokens, ...]
    emitted: Tokens
    cache_before: int
    packed: Tokens
    """Input tokens of the call's rows: ordinary, levels in level-major order, candidates."""
    plan: CommitPlan
    after: State

    @property
    def step_length(self) -> int:
        """Physical end of the packed K/V rows."""
        return self.cache_before + len(self.packed)


@dataclass(frozen=True)
class Generation:
    """A finished run."""

    tokens: Tokens
    """The new tokens, at most max_new_tokens, a stop token last where there was one."""
    steps: tuple[StepRecord, ...]
    state: State


def start(settings: Settings, prompt: Sequence[int], init_window: Sequence[int]) -> State:
    """The state before round 0: all prompt tokens but the last are in the cache.

    The official code runs the whole prompt in its first call. The states after it are the same.
    """
    num_levels = suffix_length(settings.ngram_size)
    if len(init_window) != settings.window_size + settings.ngram_size - 3:
        raise ValueError(f"expected W + N - 3 tokens of initial window, got {len(init_window)}")
    pool: Pool = {}
    if settings.schedule.pool_from_prompt:
        for key, *suffix in prompt_ngrams(prompt, settings.ngram_size):
            upsert_suffix_lru(pool, key, suffix, settings.guess_set_size)
    levels: Levels = (tuple(init_window), *[None] * (num_levels - 1))
    prompt = tuple(prompt)
    return State(prompt, len(prompt), prompt[:-1], levels, pool, prompt)


def lookup_candidates(settings: Settings, state: State) -> tuple[Tokens, ...]:
    """The key's bucket, least recently used first; none where the schedule does not verify yet."""
    steady = stage_of(state.levels) == len(state.levels) - 1
    if not (steady or settings.schedule.verify_during_warmup):
        return ()
    return tuple(state.pool.get(state.tokens[-1], ())[: settings.guess_set_size])


def pack(state: State, candidates: Sequence[Tokens]) -> Tokens:
    """The call's input tokens, row by row."""
    window = (token for level in set_levels(state.levels) for token in level)
    return (state.tokens[-1], *window, *(token for suffix in candidates for token in suffix))


def separate_forwards(
    next_token: NextToken, tokens: Tokens, levels: Levels, candidates: Sequence[Tokens]
) -> Rows:
    """Every row of a call as its own causal call (specification 0x07A)."""
    first, *deeper = set_levels(levels)
    if deeper:
        paths = [
            first[:column] + tuple(level[column] for level in deeper)
            for column in range(len(deeper[-1]))
        ]
    else:
        paths = [first[: column + 1] for column in range(len(first))]
    return Rows(
        next_token(tokens),
        tuple(next_token(tokens + path) for path in paths),
        tuple(
            tuple(next_token(tokens + candidate[: offset + 1]) for offset in range(len(candidate)))
            for candidate in candidates
        ),
    )


def cut(tokens: Iterable[int], stop_tokens: Tokens, limit: int | None = None) -> Tokens:
    """The tokens up to and with the first stop token, at most `limit` of them."""
    kept: list[int] = []
    for token in tokens:
        if len(kept) == limit:
            break
        kept.append(token)
        if token in stop_tokens:
            break
    return tuple(kept)


def finish_round(
    settings: Settings,
    state: State,
    candidates: tuple[Tokens, ...],
    rows: Rows,
    verdict: Verdict,
    refill: Refill,
) -> StepRecord:
    """All that follows verification: publish, insert n-grams, move the window."""
    schedule, capacity = settings.schedule, settings.guess_set_size
    limit = None if schedule.commit_overshoot else settings.max_new_tokens - len(state.output)
    emitted = cut(verdict.tokens, settings.stop_tokens, limit)
    committed = verdict.tokens if schedule.commit_overshoot else emitted
    hits = len(committed) - 1

    packed = pack(state, candidates)
    physical = state.cache + packed
    plan = build_commit_plan(
        cache_length=len(state.cache),
        step_length=len(physical),
        num_guess_tokens=sum(map(len, candidates)),
        suffix_size=suffix_length(settings.ngram_size),
        winner=verdict.winner if hits else None,
        tokens=committed,
    )

    key, levels = state.tokens[-1], state.levels
    steady = stage_of(levels) == len(levels) - 1
    trajectory = extract_keyed_ngrams(key, levels, rows.new_row) if steady else []
    new_row = rows.new_row
    if not steady:
        levels = fill_window(levels, new_row)
    else:
        if schedule.replace_stops_in_window:
            stops = settings.stop_tokens
            new_row = tuple(
                refill(state.history, 1)[0] if token in stops else token for token in new_row
            )
        accepted = hits if schedule.advance_by_accepted else 0
        fill = refill(state.history, accepted * len(levels)) if accepted else ()
        levels = advance_by_accepted(levels, new_row, accepted, fill)

    history, output_ngrams = state.history, []
    for token in emitted:
        history += (verdict.tokens[-1] if schedule.wrong_history else token,)
        long_enough = len(history) >= settings.ngram_size
        if schedule.pool_from_output and long_enough and token not in settings.stop_tokens:
            output_ngrams.append(history[-settings.ngram_size :])

    pool = {bucket_key: list(bucket) for bucket_key, bucket in state.pool.items()}
    for first, *suffix in [*trajectory, *output_ngrams]:
        upsert_suffix_lru(pool, first, suffix, capacity)

    tokens = state.tokens + emitted
    finished = (
        emitted[-1] in settings.stop_tokens
        or len(tokens) - state.prompt_length >= settings.max_new_tokens
    )
    after = replace(
        state,
        tokens=tokens,
        cache=apply_commit_plan(physical, plan),
        levels=levels,
        pool=pool,
        history=history,
        finished=finished,
    )
    return StepRecord(
        stage=stage_of(state.levels),
        levels=state.levels,
        key=key,
        candidates=candidates,
        rows=rows,
        verdict=verdict,
        trajectory_ngrams=tuple(trajectory),
        output_ngrams=tuple(output_ngrams),
        emitted=emitted,
        cache_before=len(state.cache),
        packed=packed,
        plan=plan,
        after=after,
    )


def repeat_last(history: Tokens, count: int) -> Tokens:
    """The plainest refill: the last token again and again."""
    return history[-1:] * count


def lookahead_round(
    next_token: NextToken, settings: Settings, state: State, refill: Refill = repeat_last
) -> StepRecord:
    """One whole greedy round."""
    candidates = lookup_candidates(settings, state)
    rows = separate_forwards(next_token, state.tokens, state.levels, candidates)
    verdict = greedy_verify(rows.out, candidates, rows.guess_rows, settings.max_hits)
    return finish_round(settings, state, candidates, rows, verdict, refill)


def lookahead_generate(
    next_token: NextToken,
    prompt: Sequence[int],
    settings: Settings,
    init_window: Sequence[int],
    refill: Refill = repeat_last,
) -> Generation:
    """Greedy Lookahead Decoding from prompt to end, every round recorded."""
    state = start(settings, prompt, init_window)
    steps: list[StepRecord] = []
    while not state.finished:
        steps.append(lookahead_round(next_token, settings, state, refill))
        state = steps[-1].after
    return Generation(state.output[: settings.max_new_tokens], tuple(steps), state)
