"""Static tables of a round: which row is what, where it stands, what it sees.

One round packs Q = (W + G)(N - 1) rows, in the official order (specification 0x04A):

    [ordinary | level 0 | level 1 | ... | candidates]

Rows, positions, masks and logit rows all come from one list of `Row` records per warm-up stage, so
they cannot disagree. The tables have a leading stage axis; a compiled round indexes them with each
sequence's own stage, and so serves warm-up and steady state alike.

Stage r has the levels 0..r set. The official code starts from an overlong level 0 of W + N - 3
tokens and drops the first column of every level at each fill, so of the deeper levels' columns
only W ever reach the steady window. The others are never packed here; therefore a warm-up stage
fits into the rows of the steady one. Level l >= 1 holds W columns that stand at the official
columns o..o+W-1 with o = N - 2 - r.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from lookahead_jax.config import LookaheadConfig

Table = Any
"""An array of numpy, or one of JAX where a device looks up its own (shards.py)."""


class Role(enum.IntEnum):
    """What a packed row is for."""

    ORDINARY = 0
    LOOKAHEAD = 1
    VERIFY = 2
    PADDING = 3
    """Nothing: warm-up stages have fewer rows. Sees only itself, and is seen by no row."""


@dataclass(frozen=True)
class Row:
    """One packed row. Fields that do not apply to its role are -1."""

    packed_index: int
    role: Role
    trajectory_level: int = -1
    window_column: int = -1
    """Column as the official code counts them at this stage."""
    candidate: int = -1
    suffix_offset: int = -1
    position_offset: int = 0
    """Logical position less the position of the ordinary row."""
    request_logit: bool = False
    source: int = 0
    """Where its token comes from: see `Layout.source`."""


@dataclass(frozen=True, eq=False)
class VerificationBlock:
    """The rows to verify as a tree: node 0 is the ordinary row, the root.

    Verification and commit use this description alone, so a token tree is a new source of rows and
    no new machinery. Disjoint suffixes (below) are the static special case.

    Attributes:
        parents: int32 [n]; the root is its own parent.
        depths: int32 [n]; root 0.
        ancestors: bool [n, n]; [i, j] says that j lies on the path from the root to i, i included.
        paths: int32 [n, S + 1]; node at each depth on the way to node i, then i repeated.
    """

    parents: Table
    depths: Table
    ancestors: Table
    paths: Table


@dataclass(frozen=True, eq=False)
class Layout:
    """Tables of a round; a leading R is the warm-up stage, R - 1 the steady one.

    Attributes:
        config: What the tables were built from.
        rows: The records that everything else is read off, per stage.
        positions: int32 [R, Q], logical position less that of the ordinary row.
        mask: bool [R, Q, Q], row i may attend to row j of the block.
        source: int32 [R, W * S], token of each lookahead row as an index into
            [last token | window.base | window.levels, flattened].
        logit_rows: int32 [R, 1 + W + G * S]: ordinary row, deepest level, candidates.
        node_rows: int32 [1 + G * S], packed row of each verification node.
        block: The verification nodes as a tree.
    """

    config: LookaheadConfig
    rows: tuple[tuple[Row, ...], ...]
    positions: np.ndarray
    mask: np.ndarray
    source: np.ndarray
    logit_rows: np.ndarray
    node_rows: np.ndarray
    block: VerificationBlock


def level_sizes(config: LookaheadConfig, stage: int) -> tuple[int, ...]:
    """Sizes of the official ragged levels 0..stage (specification 0x03A), before the call."""
    deeper = config.window_size + config.ngram_size - 2 - stage
    return (deeper - 1,) + (deeper,) * stage


@functools.lru_cache(maxsize=64)
def build_layout(config: LookaheadConfig) -> Layout:
    """Compiles the tables of a configuration."""
    stages = tuple(_stage_rows(config, stage) for stage in range(config.num_levels))
    num_candidate_rows = config.guess_set_size * config.suffix_length
    first_candidate_row = config.num_rows - num_candidate_rows
    return Layout(
        config=config,
        rows=stages,
        positions=np.array([[r.position_offset for r in rows] for rows in stages], np.int32),
        mask=np.array([[[_sees(i, j) for j in rows] for i in rows] for rows in stages], bool),
        source=np.array(
            [[r.source for r in rows[:first_candidate_row]] for rows in stages], np.int32
        ),
        logit_rows=np.array(
            [[r.packed_index for r in rows if r.request_logit] for rows in stages], np.int32
        ),
        node_rows=np.array([0, *range(first_candidate_row, config.num_rows)], np.int32),
        block=disjoint_suffixes(config.guess_set_size, config.suffix_length),
    )


def _stage_rows(config: LookaheadConfig, stage: int) -> tuple[Row, ...]:
    width, suffix_length = config.window_size, config.suffix_length
    base_size = level_sizes(config, stage)[0]
    base_capacity = width + config.ngram_size - 3
    first_column = config.ngram_size - 2 - stage
    # The row of level 0 that predicts level 1's first kept column stands one column earlier: the
    # first fill drops no output, every later one does.
    first_base_logit = config.ngram_size - 3

    rows = [Row(0, Role.ORDINARY, request_logit=True)]
    for column in range(base_size):
        rows.append(
            Row(
                len(rows),
                Role.LOOKAHEAD,
                trajectory_level=0,
                window_column=column,
                position_offset=1 + column,
                request_logit=stage == 0 and column >= first_base_logit,
                source=1 + column,
            )
        )
    for level in range(1, stage + 1):
        for j in range(width):
            column = first_column + j
            rows.append(
                Row(
                    len(rows),
                    Role.LOOKAHEAD,
                    trajectory_level=level,
                    window_column=column,
                    position_offset=level + column,
                    request_logit=level == stage,
                    source=1 + base_capacity + (level - 1) * width + j,
                )
            )
    while len(rows) < width * suffix_length:
        rows.append(Row(len(rows), Role.PADDING))
    for candidate in range(config.guess_set_size):
        for offset in range(suffix_length):
            rows.append(
                Row(
                    len(rows),
                    Role.VERIFY,
                    candidate=candidate,
                    suffix_offset=offset,
                    position_offset=1 + offset,
                    request_logit=True,
                )
            )
    return tuple(rows)


def _sees(i: Row, j: Row) -> bool:
    """Whether row i may attend to row j: the edges of specification 0x04A."""
    if i.packed_index == j.packed_index:
        return True
    if Role.PADDING in (i.role, j.role):
        return False
    if j.role is Role.ORDINARY:
        return True
    if i.role is Role.LOOKAHEAD and j.role is Role.LOOKAHEAD:
        if j.trajectory_level == 0:
            # Base stripe row k holds level 0 column k - 1; a deeper level sees one column fewer.
            visible = i.window_column + (1 if i.trajectory_level == 0 else 0)
            return j.window_column < visible
        return j.window_column == i.window_column and j.trajectory_level <= i.trajectory_level
    if i.role is Role.VERIFY and j.role is Role.VERIFY:
        return i.candidate == j.candidate and j.suffix_offset <= i.suffix_offset
    return False


def disjoint_suffixes(num_candidates: int, suffix_length: int) -> VerificationBlock:
    """G suffixes of S tokens under one root, candidate-major, as a verification block."""
    paths = [[0] * (suffix_length + 1)]
    for candidate in range(num_candidates):
        first = 1 + candidate * suffix_length
        for offset in range(suffix_length):
            node = first + offset
            path = [0, *range(first, node + 1)]
            paths.append(path + [node] * (suffix_length + 1 - len(path)))
    num_nodes = len(paths)
    depths = [0] + [1 + k % suffix_length for k in range(num_nodes - 1)]
    ancestors = np.zeros((num_nodes, num_nodes), bool)
    for node, path in enumerate(paths):
        ancestors[node, path] = True
    parents = [path[max(depth - 1, 0)] for path, depth in zip(paths, depths, strict=True)]
    return VerificationBlock(
        parents=np.array(parents, np.int32),
        depths=np.array(depths, np.int32),
        ancestors=ancestors,
        paths=np.array(paths, np.int32),
    )
