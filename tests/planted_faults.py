"""Faults planted into the tables of a round, for tests that must notice them.

Tables go into the compiled round as data, so that one program serves every fault.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np
from jax.experimental import checkify

from lookahead_jax import decoding
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.layout import Layout, Role, VerificationBlock, build_layout

Tables = dict[str, Any]


def tables_of(layout: Layout) -> Tables:
    """The arrays of a layout, as a pytree."""
    arrays = {
        f.name: getattr(layout, f.name)
        for f in fields(layout)
        if isinstance(getattr(layout, f.name), np.ndarray)
    }
    return {
        **arrays,
        "block": {f.name: getattr(layout.block, f.name) for f in fields(layout.block)},
    }


def layout_of(config: LookaheadConfig, tables: Tables) -> Layout:
    block = VerificationBlock(**tables["block"])
    return replace(build_layout(config), **{**tables, "block": block})


@functools.cache
def faulty_round(config: LookaheadConfig, forward: Any, checked: bool = False) -> Any:
    """`(state, params, tables) -> state'`, or `-> (error, state')` if checked."""

    def step(state, params, tables):
        return decoding.round(
            state,
            params,
            forward=forward,
            config=config,
            layout=layout_of(config, tables),
            validate=checked,
        )

    return jax.jit(checkify.checkify(step) if checked else step)


def healthy(config: LookaheadConfig) -> Tables:
    return tables_of(build_layout(config))


def _changed(config: LookaheadConfig, name: str, change: Callable[[Any], Any]) -> Tables:
    tables = healthy(config)
    return {**tables, name: change(np.array(tables[name]))}


def _set_mask(config: LookaheadConfig, query: int, key: int, seen: bool) -> Tables:
    """An edge of the full window's mask."""
    layout = build_layout(config)
    assert layout.mask[-1, query, key] != seen

    def change(mask):
        mask[-1, query, key] = seen
        return mask

    return _changed(config, "mask", change)


def _row(config: LookaheadConfig, **wanted: int) -> int:
    """Packed index of a row of the full window."""
    (row,) = (
        row
        for row in build_layout(config).rows[-1]
        if all(getattr(row, name) == value for name, value in wanted.items())
    )
    return row.packed_index


def _candidate(config: LookaheadConfig, candidate: int, offset: int) -> int:
    return _row(config, role=Role.VERIFY, candidate=candidate, suffix_offset=offset)


def _window(config: LookaheadConfig, level: int, column: int) -> int:
    return _row(config, role=Role.LOOKAHEAD, trajectory_level=level, window_column=column)


def one_candidate_sees_another(config: LookaheadConfig) -> Tables:
    last = config.guess_set_size - 1
    return _set_mask(config, _candidate(config, last, 0), _candidate(config, last - 1, 0), True)


def a_candidate_sees_the_window(config: LookaheadConfig) -> Tables:
    last = config.guess_set_size - 1
    return _set_mask(config, _candidate(config, last, 0), _window(config, 0, 0), True)


def a_candidate_misses_a_token(config: LookaheadConfig) -> Tables:
    last = config.guess_set_size - 1
    return _set_mask(config, _candidate(config, last, 1), _candidate(config, last, 0), False)


def a_window_row_sees_its_neighbour(config: LookaheadConfig) -> Tables:
    level = config.num_levels - 1
    return _set_mask(config, _window(config, level, 1), _window(config, level, 0), True)


def a_window_row_sees_ahead_in_level_0(config: LookaheadConfig) -> Tables:
    level = config.num_levels - 1
    return _set_mask(config, _window(config, level, 0), _window(config, 0, 0), True)


def the_ordinary_row_sees_the_window(config: LookaheadConfig) -> Tables:
    return _set_mask(config, 0, _window(config, 0, 0), True)


def candidates_stand_one_position_late(config: LookaheadConfig) -> Tables:
    def change(positions):
        positions[:, config.num_rows - config.guess_set_size * config.suffix_length :] += 1
        return positions

    return _changed(config, "positions", change)


def the_deepest_level_stands_one_position_early(config: LookaheadConfig) -> Tables:
    def change(positions):
        level = config.num_levels - 1
        for column in range(config.window_size):
            positions[-1, _window(config, level, column)] -= 1
        return positions

    return _changed(config, "positions", change)


def another_candidates_rows_are_committed(config: LookaheadConfig) -> Tables:
    """The winner's predictions are published, with the keys and values of its neighbour's rows."""

    def change(rows):
        candidates = rows[1:].reshape(config.guess_set_size, config.suffix_length)
        return np.concatenate([rows[:1], np.roll(candidates, 1, axis=0).reshape(-1)])

    return _changed(config, "node_rows", change)


def the_row_after_is_committed(config: LookaheadConfig) -> Tables:
    def change(rows):
        rows[1:-1] += 1
        return rows

    return _changed(config, "node_rows", change)


def logits_of_the_row_before_are_read(config: LookaheadConfig) -> Tables:
    def change(rows):
        rows[:, 1 + config.window_size :] -= 1
        return rows

    return _changed(config, "logit_rows", change)


def window_tokens_of_the_next_column_are_packed(config: LookaheadConfig) -> Tables:
    def change(source):
        first = config.window_size
        source[-1, first:-1] = source[-1, first + 1 :]
        return source

    return _changed(config, "source", change)


PACKING_FAULTS = [
    one_candidate_sees_another,
    a_candidate_sees_the_window,
    a_candidate_misses_a_token,
    a_window_row_sees_its_neighbour,
    a_window_row_sees_ahead_in_level_0,
    the_ordinary_row_sees_the_window,
    candidates_stand_one_position_late,
    the_deepest_level_stands_one_position_early,
    logits_of_the_row_before_are_read,
    window_tokens_of_the_next_column_are_packed,
]
"""Wrong logits in the round itself."""

COMMIT_FAULTS = [another_candidates_rows_are_committed, the_row_after_is_committed]
"""Right logits, wrong keys and values afterwards."""

TEXT_FAULTS = [
    one_candidate_sees_another,
    a_candidate_sees_the_window,
    a_candidate_misses_a_token,
    the_ordinary_row_sees_the_window,
    candidates_stand_one_position_late,
    logits_of_the_row_before_are_read,
    *COMMIT_FAULTS,
]
"""Those that change the text; a wrong window only changes which guesses are tried."""
