"""Row tables against the specification's figures, the recorded calls, and the oracle's compiler.

The package packs fewer rows than the official code while it warms up: columns of the deeper levels
that the following fills drop anyway are left out (see layout.py). So official tables are compared
without these rows, and the full window without exception.
"""

from itertools import pairwise, product

import numpy as np
import pytest
import reference
import specification_figures as figures
import trace_files

from lookahead_jax import LookaheadConfig
from lookahead_jax.layout import (
    Role,
    build_layout,
    disjoint_suffixes,
    level_sizes,
)

GRID = list(product([1, 2, 3, 5, 8], [3, 4, 5, 7], [0, 1, 3]))
WARM_GRID = [(*sizes, stage) for sizes in GRID for stage in range(sizes[1] - 1)]


def is_dead(row, width, sizes):
    """Whether an official row stands for a column that never reaches the full window."""
    if row.role != "lookahead" or not row.trajectory_level:
        return False
    return row.window_column < sizes[row.trajectory_level] - width


def official_rows(config, stage, position=0):
    sizes = level_sizes(config, stage)
    rows = reference.compile_rows(
        sizes, config.guess_set_size, config.suffix_length, position=position
    )
    return [row for row in rows if not is_dead(row, config.window_size, sizes)]


def packed_rows(layout, stage):
    return [row for row in layout.rows[stage] if row.role is not Role.PADDING]


def place(row):
    """Role, level or candidate, column or offset, of a row of either table."""
    if row.role in ("verify", Role.VERIFY):
        candidate = row.candidate if isinstance(row.role, Role) else row.candidate_id
        return ("verify", candidate, row.suffix_offset)
    if row.role in ("ordinary", Role.ORDINARY):
        return ("ordinary", None, None)
    return ("lookahead", row.trajectory_level, row.window_column)


@pytest.mark.parametrize(("width", "ngram"), figures.WARM_UP_SIZES)
def test_warm_up_sizes_of_the_specification(width, ngram):
    config = LookaheadConfig(width, ngram, 1)
    sizes = [level_sizes(config, stage) for stage in range(config.num_levels)]
    expected = [
        tuple(size for size in stage if size is not None)
        for stage in figures.WARM_UP_SIZES[width, ngram]
    ]
    assert sizes == expected


def test_row_table_of_the_specification():
    layout = build_layout(LookaheadConfig(5, 4, 2))
    rows = layout.rows[-1]
    assert [(*place(row), row.position_offset) for row in rows] == figures.ROW_TABLE
    assert [row.packed_index for row in rows] == list(range(21))
    assert layout.positions[-1].tolist() == [row[3] for row in figures.ROW_TABLE]


def test_mask_and_logit_rows_of_the_specification():
    layout = build_layout(LookaheadConfig(5, 4, 2))
    assert ["".join("01"[int(x)] for x in row) for row in layout.mask[-1]] == figures.MASK
    logit_rows = layout.logit_rows[-1].tolist()
    window = list(range(21))[figures.WINDOW_LOGIT_ROWS]
    verify = list(range(21))[figures.VERIFY_LOGIT_ROWS]
    assert logit_rows == [figures.ORDINARY_ROW, *window, *verify]
    assert layout.node_rows.tolist() == [figures.ORDINARY_ROW, *verify]


@pytest.mark.parametrize(("width", "ngram", "guesses"), figures.ROW_LEDGER)
def test_row_ledger_of_the_specification(width, ngram, guesses):
    rows = build_layout(LookaheadConfig(width, ngram, guesses)).rows[-1]
    roles = [row.role for row in rows]
    counts = tuple(roles.count(role) for role in (Role.ORDINARY, Role.LOOKAHEAD, Role.VERIFY))
    assert counts == figures.ROW_LEDGER[width, ngram, guesses]
    assert roles.count(Role.PADDING) == 0


@pytest.mark.parametrize(("width", "ngram", "guesses"), GRID)
def test_row_counts(width, ngram, guesses):
    """Q rows in every stage, and logits for 1 + W + G * S of them only (contract 4)."""
    config = LookaheadConfig(width, ngram, guesses)
    layout = build_layout(config)
    stages, num_rows = ngram - 1, (width + guesses) * (ngram - 1)
    assert config.num_rows == num_rows
    assert layout.positions.shape == (stages, num_rows)
    assert layout.mask.shape == (stages, num_rows, num_rows)
    num_logits = 1 + width + guesses * (ngram - 1)
    assert layout.logit_rows.shape == (stages, num_logits) == (stages, config.num_logit_rows)
    assert layout.source.shape == (stages, width * (ngram - 1))
    assert layout.node_rows.shape == (1 + guesses * (ngram - 1),)
    assert layout.positions.dtype == layout.logit_rows.dtype == layout.source.dtype == np.int32
    assert layout.mask.dtype == bool


@pytest.mark.parametrize(("width", "ngram", "guesses", "stage"), WARM_GRID)
def test_every_stage_is_the_oracles_less_the_dead_columns(width, ngram, guesses, stage):
    config = LookaheadConfig(width, ngram, guesses)
    layout = build_layout(config)
    ours, official = packed_rows(layout, stage), official_rows(config, stage)
    assert list(map(place, ours)) == list(map(place, official))
    assert [row.position_offset for row in ours] == reference.position_ids(official)
    at = [row.packed_index for row in ours]
    mask = layout.mask[stage]
    assert mask[np.ix_(at, at)].tolist() == reference.visibility_mask(official)
    if stage == ngram - 2:
        assert not [row for row in layout.rows[stage] if row.role is Role.PADDING]
        assert len(official) == config.num_rows

    wanted = [row.packed_index for row in ours if row.request_logit]
    assert layout.logit_rows[stage].tolist() == wanted
    places = [place(row) for row in ours if row.request_logit]
    _, window, verify = reference.semantic_rows(official)
    by_index = {row.packed_index: place(row) for row in official}
    assert places[0] == ("ordinary", None, None)
    assert places[1 : 1 + width] == [by_index[index] for index in window][-width:]
    assert places[1 + width :] == [by_index[index] for index in verify]


@pytest.mark.parametrize(("width", "ngram", "guesses", "stage"), WARM_GRID)
def test_padding_sees_itself_and_is_seen_by_nobody(width, ngram, guesses, stage):
    layout = build_layout(LookaheadConfig(width, ngram, guesses))
    mask = layout.mask[stage]
    for row in layout.rows[stage]:
        assert mask[row.packed_index, row.packed_index]
        if row.role is Role.PADDING:
            assert mask[row.packed_index].sum() == mask[:, row.packed_index].sum() == 1
            assert row.packed_index not in layout.logit_rows[stage]
            assert row.packed_index not in layout.node_rows


@pytest.mark.parametrize(("width", "ngram", "guesses", "stage"), WARM_GRID)
def test_every_row_sees_one_token_at_each_position_up_to_its_own(width, ngram, guesses, stage):
    layout = build_layout(LookaheadConfig(width, ngram, guesses))
    for row in packed_rows(layout, stage):
        seen = np.sort(layout.positions[stage][layout.mask[stage, row.packed_index]])
        assert seen.tolist() == list(range(row.position_offset + 1))


@pytest.mark.parametrize(
    ("case", "call"),
    [
        pytest.param(case, call, id="w{W}n{N}g{G}-step{step}".format(**case, **call))
        for case, call in trace_files.layout_calls()
    ],
)
def test_recorded_calls(case, call):
    """Tokens, positions and mask of calls of the official code, in every warm-up stage.

    A prefill call is compared from its last prompt token on. The recorded calls pack as many
    candidates as there are; the product always packs G and ignores the empty ones.
    """
    config = LookaheadConfig.pinned(case["W"], case["N"], case["G"])
    stage = len(call["level_sizes"]) - 1
    assert list(level_sizes(config, stage)) == call["level_sizes"]
    layout = build_layout(config)
    skipped = call["n_in"] - 1
    position = call["n_past"] + skipped
    recorded = reference.compile_rows(
        call["level_sizes"], call["n_candidates"], case["N"] - 1, position=position
    )
    kept = [r for r in recorded if not is_dead(r, case["W"], call["level_sizes"])]
    ours = [r for r in packed_rows(layout, stage) if r.candidate < call["n_candidates"]]
    assert list(map(place, ours)) == list(map(place, kept))
    at, official = [r.packed_index for r in ours], [skipped + r.packed_index for r in kept]
    positions = np.array(call["position_ids"])[official]
    assert (position + layout.positions[stage][at]).tolist() == positions.tolist()
    mask = np.array([list(map(int, row)) for row in call["mask"]], bool)
    np.testing.assert_array_equal(
        layout.mask[stage][np.ix_(at, at)], mask[np.ix_(official, official)]
    )

    # Tokens: what `source` reads out of the window is what the official row holds.
    ids = np.array(call["ids"])[skipped:]
    sizes = np.cumsum([0, *call["level_sizes"]])
    levels = [ids[1 + a : 1 + b].tolist() for a, b in pairwise(sizes)]
    base = np.full(case["W"] + case["N"] - 3, -1)
    base[: len(levels[0])] = levels[0]
    deeper = np.full((case["N"] - 2, case["W"]), -1)
    for level, row in enumerate(levels[1:]):
        deeper[level] = row[len(row) - case["W"] :]
    sources = np.concatenate([ids[:1], base, deeper.reshape(-1)])
    lookahead = [r for r in ours if r.role is not Role.VERIFY]
    packed = sources[layout.source[stage]][[r.packed_index for r in lookahead]]
    assert packed.tolist() == ids[[r.packed_index for r in kept][: len(lookahead)]].tolist()


@pytest.mark.parametrize(("width", "ngram"), list(product([1, 2, 3, 5, 8], [3, 4, 5, 7])))
def test_dead_columns_never_reach_the_full_window(width, ngram):
    """Why they can be left out, on the oracle: marked tokens are all gone when it is full."""
    levels: reference.Levels = (tuple(range(width + ngram - 3)), *[None] * (ngram - 2))
    marked: set[int] = set()
    fresh = 1000
    while True:
        stage = reference.stage_of(levels)
        for level, row in enumerate(reference.set_levels(levels)):
            if level:
                marked |= set(row[: len(row) - width])
        if stage == ngram - 2:
            break
        size = len(reference.set_levels(levels)[-1])
        levels = reference.fill_window(levels, tuple(range(fresh, fresh + size)))
        fresh += 1000
    assert not marked & {token for level in reference.set_levels(levels) for token in level}
    assert bool(marked) == (ngram > 3)


@pytest.mark.parametrize(("guesses", "size"), list(product([0, 1, 2, 5], [2, 3, 6])))
def test_disjoint_suffixes_are_a_tree(guesses, size):
    block = disjoint_suffixes(guesses, size)
    assert len(block.parents) == 1 + guesses * size
    for node in range(len(block.parents)):
        chain = [node]
        while block.depths[chain[-1]]:
            assert block.depths[block.parents[chain[-1]]] == block.depths[chain[-1]] - 1
            chain.append(int(block.parents[chain[-1]]))
        assert chain[-1] == 0 == block.parents[0]
        assert set(np.nonzero(block.ancestors[node])[0]) == set(chain)
        path = block.paths[node].tolist()
        assert path == chain[::-1] + [node] * (size + 1 - len(chain))


@pytest.mark.parametrize("config", [LookaheadConfig(5, 4, 2), LookaheadConfig(2, 6, 3)])
def test_verification_rows_and_nodes_are_the_same_tree(config):
    """The mask of the candidate rows and the ancestors of the nodes say the same (contract 11)."""
    layout = build_layout(config)
    at = layout.node_rows
    for stage in range(config.num_levels):
        np.testing.assert_array_equal(layout.mask[stage][np.ix_(at, at)], layout.block.ancestors)
        np.testing.assert_array_equal(layout.positions[stage][at], layout.block.depths)
        wanted = layout.logit_rows[stage]
        np.testing.assert_array_equal(wanted[[0, *range(1 + config.window_size, len(wanted))]], at)


def test_tables_are_built_once():
    assert build_layout(LookaheadConfig(5, 4, 2)) is build_layout(LookaheadConfig(5, 4, 2))
