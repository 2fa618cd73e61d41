"""The oracle's row compiler: one record per packed row, from which everything else is read.

Positions, mask and logit slices all come from the same `Row` records (specification 0x04A).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["ordinary", "lookahead", "verify"]


@dataclass(frozen=True)
class Row:
    """What one packed row is. Fields that do not apply to its role are None."""

    packed_index: int
    role: Role
    logical_position: int
    request_logit: bool
    trajectory_level: int | None = None
    window_column: int | None = None
    candidate_id: int | None = None
    suffix_offset: int | None = None


def compile_rows(
    level_sizes: Sequence[int],
    num_candidates: int,
    suffix_size: int,
    position: int,
    num_ordinary: int = 1,
) -> list[Row]:
    """The packed rows of one call: ordinary, levels in level-major order, candidates.

    Args:
        level_sizes: Sizes of the set levels, level 0 first.
        num_candidates: Candidates verified in the call.
        suffix_size: S, tokens of one candidate.
        position: Logical position of the last ordinary row.
        num_ordinary: Committed tokens without K/V: 1, but for a fused prefill.
    """
    rows: list[Row] = []

    def add(role: Role, offset: int, request_logit: bool, **place: int) -> None:
        rows.append(Row(len(rows), role, position + offset, request_logit, **place))

    for back in reversed(range(num_ordinary)):
        add("ordinary", -back, back == 0)
    deepest = len(level_sizes) - 1
    for level, size in enumerate(level_sizes):
        for column in range(size):
            # Level 0 stands one column to the right of the others: its first cell is the ordinary
            # row itself.
            offset = column + max(level, 1)
            add("lookahead", offset, level == deepest, trajectory_level=level, window_column=column)
    for candidate in range(num_candidates):
        for offset in range(suffix_size):
            add("verify", 1 + offset, True, candidate_id=candidate, suffix_offset=offset)
    return rows


def may_see(query: Row, key: Row) -> bool:
    """Whether the first row attends to the second one."""
    if key.role == "ordinary":
        return key.packed_index <= query.packed_index
    if query.role != key.role:
        return False
    if key.role == "verify":
        assert key.suffix_offset is not None
        assert query.suffix_offset is not None
        return query.candidate_id == key.candidate_id and key.suffix_offset <= query.suffix_offset
    assert query.window_column is not None
    assert query.trajectory_level is not None
    assert key.window_column is not None
    assert key.trajectory_level is not None
    if key.trajectory_level == 0:
        reach = query.window_column - (1 if query.trajectory_level > 0 else 0)
        return key.window_column <= reach
    return (
        key.window_column == query.window_column and key.trajectory_level <= query.trajectory_level
    )


def position_ids(rows: Sequence[Row]) -> list[int]:
    return [row.logical_position for row in rows]


def visibility_mask(rows: Sequence[Row]) -> list[list[bool]]:
    """mask[q][k]: row q attends to row k. Every row also sees the whole committed prefix."""
    return [[may_see(query, key) for key in rows] for query in rows]


def semantic_rows(rows: Sequence[Row]) -> tuple[int, list[int], list[int]]:
    """Packed indices of the rows whose logits are wanted: ordinary, window, candidates."""
    wanted = [row for row in rows if row.request_logit]
    (ordinary,) = (row.packed_index for row in wanted if row.role == "ordinary")
    window = [row.packed_index for row in wanted if row.role == "lookahead"]
    verify = [row.packed_index for row in wanted if row.role == "verify"]
    return ordinary, window, verify
