"""The oracle in the words of the trace files: settings, fields of a step, replay of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import reference
from reference import Schedule, Settings, StepRecord, Verdict
from trace_files import Trace


def settings_of(trace: Trace, **changes: bool) -> Settings:
    """The official schedule of a recorded run; `changes` override fields of the schedule."""
    sampled = trace["mode"] == "sample"
    schedule = Schedule.official(
        bool(trace["pool_from_prompt"]),
        wrong_history=not sampled,
        replace_stops_in_window=sampled,
        advance_by_accepted=not trace["always_fwd_one"],
    )
    stop = () if trace["eos_token_id"] is None else (trace["eos_token_id"],)
    settings = Settings(trace["W"], trace["N"], trace["G"], trace["max_new_tokens"], stop, schedule)
    return replace(settings, schedule=replace(schedule, **changes))


def lists(value: Any) -> Any:
    """Tuples to lists, all the way down, as JSON has them."""
    return [lists(item) for item in value] if isinstance(value, tuple | list) else value


def sizes(levels: reference.Levels) -> list[int | None]:
    return [None if level is None else len(level) for level in levels]


def trace_fields(index: int, record: StepRecord) -> dict[str, Any]:
    """A round of the oracle in the words of the trace files.

    The official step 0 runs the whole prompt; the oracle's round 0 finds all of it but the last
    token in the cache.
    """
    steady = record.stage == len(record.levels) - 1
    prompt_length = record.after.prompt_length
    verdict, candidates = record.verdict, record.candidates
    fields = {
        "i": index,
        "phase": "prefill" if index == 0 else "steady" if steady else "fill",
        "fill_level": record.stage,
        "past": record.levels,
        "sizes": sizes(record.levels),
        "sizes_after": sizes(record.after.levels),
        "n_in": 1 if index else prompt_length,
        "key": record.key if index else None,
        "guess": candidates or None,
        "kv_before": record.cache_before if index else 0,
        "kvcache_len": record.cache_before + 1,
        "step_len": record.step_length,
        "kv_after": len(record.after.cache),
        "out": record.rows.out,
        "inp": record.rows.new_row,
        "garg": record.rows.guess_rows or None,
        "match": verdict.matches,
        "max_hit": verdict.hits,
        "win": verdict.winner,
        "hits": verdict.tokens,
        "lst": verdict.tokens[-1],
        "emit": record.emitted,
        "traj": record.trajectory_ngrams,
        "gen": record.output_ngrams,
    }
    return {name: lists(value) for name, value in fields.items()}


def sorted_pool(pool: reference.Pool) -> list[Any]:
    """A pool as `final.pool` has it."""
    return lists(sorted(pool.items()))


def replay_verdict(
    settings: Settings,
    trace: Trace,
    candidates: tuple[reference.Tokens, ...],
    rows: reference.Rows,
    draws: Iterator[list[Any]],
) -> Verdict:
    """Greedy verification, or the sampling tests with their recorded outcomes."""
    if trace["mode"] == "greedy":
        return reference.greedy_verify(rows.out, candidates, rows.guess_rows, settings.max_hits)

    def accept(depth: int, candidate: int, token: int) -> bool:
        kind, *test, probability, uniform, accepted = next(draws)
        assert (kind, test) == ("t", [depth, candidate, token])
        assert bool(accepted) == (uniform < probability)
        return bool(accepted)

    def draw(_depth: int) -> int:
        kind, token, *_ = next(draws)
        assert kind == "m"
        return token

    return reference.verify_by_tests(candidates, accept, draw)


def replay(trace: Trace, **changes: bool) -> Iterator[tuple[dict[str, Any], StepRecord]]:
    """Runs the oracle on the trace's own model rows and random events, one full step at a time."""
    settings = settings_of(trace, **changes)
    state = reference.start(settings, trace["prompt_ids"], trace["init_window"])
    for step in trace["steps"][: trace["n_full_steps"]]:
        rows = reference.Rows(
            step["out"], tuple(step["inp"]), tuple(map(tuple, step["garg"] or ()))
        )
        candidates = reference.lookup_candidates(settings, state)
        draws = iter(step.get("draws", []))

        def refill(history: reference.Tokens, count: int, draws=draws) -> list[int]:
            events = [next(draws) for _ in range(count)]
            assert all(kind == "c" and token in history for kind, token in events)
            return [token for _, token in events]

        # Candidates that are not the recorded ones have no rows to verify them with.
        assert lists(candidates) == (step["guess"] or [])
        verdict = replay_verdict(settings, trace, candidates, rows, draws)
        record = reference.finish_round(settings, state, candidates, rows, verdict, refill)
        assert next(draws, None) is None
        yield step, record
        state = record.after
