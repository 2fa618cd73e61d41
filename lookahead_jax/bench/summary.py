"""From single measurements to a row for each W, N and G."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lookahead_jax.bench.records import CategoryRow, Compilation, Difference, Measurement, Row
from lookahead_jax.bench.timing import Spread

Series = Callable[[Sequence[Measurement]], float]
"""A figure of the measurements of one repetition."""


def summarise(compilation: Compilation, measurements: Sequence[Measurement]) -> Row:
    """The row of one point.

    Args:
        compilation: Of this point.
        measurements: Of this point; every repetition has all groups.
    """
    repetitions = _by_repetition(measurements)
    first = repetitions[0]
    tokens, rounds = _total(first, lambda m: m.tokens), _total(first, lambda m: m.rounds)
    comparable = all(m.differences is not None for m in measurements)

    def spread(figure: Series) -> Spread:
        return Spread.of([figure(repetition) for repetition in repetitions])

    return Row(
        point=compilation.point,
        num_rows=compilation.num_rows,
        device_rows=compilation.device_rows,
        texts=sum(len(m.tokens) for m in first),
        repetitions=len(repetitions),
        tokens=tokens,
        rounds=rounds,
        tokens_per_round=tokens / rounds,
        accepted_histogram=tuple(
            map(sum, zip(*(m.accepted_histogram for m in first), strict=True))
        ),
        hit_rate=_total(first, lambda m: m.candidate_rounds) / rounds,
        round_ms=spread(lambda ms: 1e3 * _round_seconds(ms)),
        token_ms=spread(lambda ms: 1e3 * _token_seconds(ms)),
        step_ms=spread(lambda ms: 1e3 * _step_seconds(ms)),
        ordinary_token_ms=spread(lambda ms: 1e3 * _ordinary_token_seconds(ms)),
        round_over_step=spread(lambda ms: _round_seconds(ms) / _step_seconds(ms)),
        speed_up=spread(_speed_up),
        compile_seconds=compilation.seconds,
        memory_bytes=compilation.memory_bytes,
        allocator_peak_bytes=compilation.allocator_peak_bytes,
        differences=_differences(measurements) if comparable else None,
        categories=_categories(repetitions),
    )


def _by_repetition(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    found: dict[int, list[Measurement]] = {}
    for measurement in measurements:
        found.setdefault(measurement.repetition, []).append(measurement)
    return [found[repetition] for repetition in sorted(found)]


def _total(ms: Sequence[Measurement], of: Callable[[Measurement], Sequence[int]]) -> int:
    return sum(sum(of(m)) for m in ms)


def _round_seconds(ms: Sequence[Measurement]) -> float:
    """Texts that are decoded together share their rounds, as many as the slowest takes."""
    return sum(m.seconds for m in ms) / sum(max(m.rounds) for m in ms)


def _step_seconds(ms: Sequence[Measurement]) -> float:
    return sum(m.ordinary_seconds for m in ms) / sum(max(m.ordinary_tokens) for m in ms)


def _token_seconds(ms: Sequence[Measurement]) -> float:
    return sum(m.seconds for m in ms) / _total(ms, lambda m: m.tokens)


def _ordinary_token_seconds(ms: Sequence[Measurement]) -> float:
    return sum(m.ordinary_seconds for m in ms) / _total(ms, lambda m: m.ordinary_tokens)


def _speed_up(ms: Sequence[Measurement]) -> float:
    """By token, not by text: residual sampling writes texts of other lengths."""
    return _ordinary_token_seconds(ms) / _token_seconds(ms)


def _differences(measurements: Iterable[Measurement]) -> tuple[Difference, ...]:
    """Each once, though every repetition finds it."""
    found = (d for m in measurements for d in m.differences or ())
    return tuple(dict.fromkeys(found))


def _categories(repetitions: Sequence[Sequence[Measurement]]) -> dict[str, CategoryRow]:
    rows = {}
    for category in dict.fromkeys(m.category for m in repetitions[0]):
        alike = [[m for m in ms if m.category == category] for ms in repetitions]
        tokens = _total(alike[0], lambda m: m.tokens)
        rows[category] = CategoryRow(
            texts=sum(len(m.tokens) for m in alike[0]),
            tokens_per_round=tokens / _total(alike[0], lambda m: m.rounds),
            speed_up=Spread.of([_speed_up(ms) for ms in alike]),
        )
    return rows
