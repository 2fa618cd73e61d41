"""Which settings of a grid a report and its pictures single out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lookahead_jax.bench.records import Point, Row

SHOWN = 6
"""Settings whose accepted lengths are shown."""


def is_measured(row: Row) -> bool:
    """Whether all numbers that are drawn are there: texts of a single token give none."""
    spreads = (row.speed_up, row.round_ms, row.step_ms)
    values = [x for spread in spreads for x in (spread.median, spread.low, spread.high)]
    return all(math.isfinite(value) for value in [row.tokens_per_round, *values])


def is_faster(row: Row) -> bool:
    """Whether lookahead decoding was faster, as far as the digits that are written tell."""
    return float(f"{row.speed_up.median:.3g}") > 1


def best(rows: Sequence[Row]) -> Row:
    """The fastest setting, of those that did not write other texts if there are any.

    Args:
        rows: At least one.
    """
    return max(_trusted(rows), key=_speed_up)


def chosen(rows: Sequence[Row]) -> dict[str, Row]:
    """Up to six settings that differ, by why they are of interest: "fastest, most rows".

    Args:
        rows: At least one.
    """
    if len(rows) == 1:
        return {"the only setting": rows[0]}
    reasons = [
        ("fastest", best(rows)),
        ("most tokens per round", max(rows, key=lambda row: _finite(row.tokens_per_round))),
        ("fewest rows", min(rows, key=lambda row: row.num_rows)),
        ("most rows", max(rows, key=lambda row: row.num_rows)),
    ]
    fastest = reasons[0][1].point.ngram_size
    others = sorted({row.point.ngram_size for row in rows} - {fastest})
    reasons += [
        (f"fastest of N={length}", best([row for row in rows if row.point.ngram_size == length]))
        for length in others
    ]
    why: dict[Point, list[str]] = {}
    for reason, row in reasons:
        why.setdefault(row.point, []).append(reason)
    by_point = {row.point: row for row in rows}
    return {", ".join(told): by_point[point] for point, told in list(why.items())[:SHOWN]}


def _trusted(rows: Sequence[Row]) -> Sequence[Row]:
    return [row for row in rows if row.identical is not False] or rows


def _speed_up(row: Row) -> float:
    return _finite(row.speed_up.median)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -math.inf
