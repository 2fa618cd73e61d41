"""Which rows of a round each device computes under Lookahead Parallelism (specification 0x07A).

A device is given some columns of the window and some leaves of the verification block, and computes
the rows of which these need to know: a row needs the rows that it sees. So the ordinary row and
what a column sees of the base stripe are computed by every device, and no activation ever crosses
from one to another. All of it is read off the masks and parents of `layout.py`; that candidates are
disjoint suffixes is used nowhere, and a token tree is shared out in the same way.

Devices run one program, so all tables have the same shape on each and a leading device axis P.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from lookahead_jax.config import LookaheadConfig
from lookahead_jax.layout import Layout, VerificationBlock, build_layout


@dataclass(frozen=True, eq=False)
class ShardedLayout:
    """Tables of every device's part of a round: q rows, w columns and n verification nodes.

    A device's rows begin with its nodes: row i is node i. Padding repeats the ordinary row, which
    is node 0, and counts as no candidate's.

    Attributes:
        rows: int32 [P, R, q], packed row that each local row is.
        mask: bool [P, R, q, q], between local rows; padding sees itself alone.
        logit_rows: int32 [P, R, w + n], local rows whose logits are wanted: the ordinary row,
            columns, nodes behind the root.
        owners: int32 [W, 2], device and local column of each window column.
        nodes: int32 [P, n], node of the whole block; the root first.
        is_node: bool [P, n], false for padding.
        block: The local nodes as blocks; every array has the device axis in front.
    """

    rows: np.ndarray
    mask: np.ndarray
    logit_rows: np.ndarray
    owners: np.ndarray
    nodes: np.ndarray
    is_node: np.ndarray
    block: VerificationBlock

    @property
    def num_devices(self) -> int:
        """P."""
        return self.rows.shape[0]

    @property
    def num_rows(self) -> int:
        """q, rows that every device computes in a round."""
        return self.rows.shape[2]


@functools.lru_cache(maxsize=64)
def build_shards(config: LookaheadConfig, num_devices: int) -> ShardedLayout:
    """The tables of a configuration."""
    return shard_layout(build_layout(config), num_devices)


def shard_layout(layout: Layout, num_devices: int) -> ShardedLayout:
    """Shares the rows of a round out among devices.

    Columns and leaves stay in order, so that the first device with the longest accepted path has
    the path that one device would choose. Where they do not divide evenly, the first devices have a
    column more and the last ones a leaf more.
    """
    block = layout.block
    leaves = np.setdiff1d(np.arange(1, len(block.parents)), block.parents)
    columns = _parts(np.arange(layout.config.window_size), num_devices)
    nodes = [
        _needed(block.ancestors, [0, *own]) for own in _parts(leaves, num_devices, larger_last=True)
    ]
    needed = [
        [_device_rows(layout, stage, *own) for stage in range(len(layout.rows))]
        for own in zip(columns, nodes, strict=True)
    ]
    rows, mask = _row_tables(layout, needed)
    w, n = (max(map(len, parts)) for parts in (columns, nodes))
    logit_rows = np.zeros((*rows.shape[:2], w + n), np.int32)
    for device, stage in np.ndindex(rows.shape[:2]):
        place = {packed: i for i, packed in enumerate(needed[device][stage].tolist())}
        deepest = layout.logit_rows[stage][1 + columns[device]].tolist()
        logit_rows[device, stage, 1 : 1 + len(deepest)] = [place[row] for row in deepest]
        logit_rows[device, stage, 1 + w : w + len(nodes[device])] = range(1, len(nodes[device]))
    blocks = [_restrict(block, own, n) for own in nodes]
    return ShardedLayout(
        rows=rows,
        mask=mask,
        logit_rows=logit_rows,
        owners=np.array(
            [(device, j) for device, own in enumerate(columns) for j in range(len(own))], np.int32
        ),
        nodes=np.array([np.pad(own, (0, n - len(own))) for own in nodes], np.int32),
        is_node=np.array([np.arange(n) < len(own) for own in nodes]),
        block=VerificationBlock(
            *(
                np.stack([getattr(block, name) for block in blocks])
                for name in ("parents", "depths", "ancestors", "paths")
            )
        ),
    )


def _parts(items: np.ndarray, count: int, larger_last: bool = False) -> list[np.ndarray]:
    """Items in `count` runs of nearly the same length."""
    sizes = [len(part) for part in np.array_split(items, count)]
    return np.split(items, np.cumsum(sizes[::-1] if larger_last else sizes)[:-1])


def _needed(sees: np.ndarray, wanted: list[int]) -> np.ndarray:
    """The rows that must be computed for the wanted ones, in order."""
    need = np.zeros(len(sees), bool)
    need[wanted] = True
    while (more := need | np.any(sees[need], axis=0)).sum() > need.sum():
        need = more
    return np.flatnonzero(need)


def _device_rows(layout: Layout, stage: int, columns: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Packed rows of one device, its nodes first."""
    own = layout.node_rows[nodes]
    deepest = layout.logit_rows[stage][1 + columns]
    return np.concatenate([own, np.setdiff1d(_needed(layout.mask[stage], [0, *deepest]), own)])


def _row_tables(layout: Layout, needed: list[list[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """`rows` and `mask` of `ShardedLayout`."""
    q = max(len(rows) for stages in needed for rows in stages)
    rows = np.zeros((len(needed), len(layout.rows), q), np.int32)
    mask = np.broadcast_to(np.eye(q, dtype=bool), (*rows.shape, q)).copy()
    for device, stage in np.ndindex(rows.shape[:2]):
        own = needed[device][stage]
        rows[device, stage, : len(own)] = own
        mask[device, stage, : len(own), : len(own)] = layout.mask[stage][np.ix_(own, own)]
    return rows, mask


def _restrict(block: VerificationBlock, nodes: np.ndarray, count: int) -> VerificationBlock:
    """The block of some nodes, parents included, and of copies of the root up to `count` nodes."""
    place = np.zeros(len(block.parents), np.int32)
    place[nodes] = np.arange(len(nodes))
    padded = np.pad(nodes, (0, count - len(nodes)))
    # A copy of the root has no descendants.
    is_own = place[padded] == np.arange(count)
    return VerificationBlock(
        parents=place[block.parents[padded]],
        depths=block.depths[padded],
        ancestors=block.ancestors[np.ix_(padded, padded)] & (is_own | np.eye(count, dtype=bool)),
        paths=place[block.paths[padded]],
    )
